"""Whether a server with Python models grows by what passes through it: streamed answers, open requests, reloads.

    .cache/venv/bin/python test/growth.py [--answers 1000000] [--reloads 300]   after `make build`; prints what was there before and after
"""
import argparse
import collections
import http.client
import json
import os
import pathlib
import sys
import tempfile
import threading
import time

import harness

PYTHON = f"--backend-config=python,python={sys.executable}"

COUNT = """
import collections
import os
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    # N answers; of a request with N < 0 one, and -N - 1 more as soon as the model's folder has a file "go".
    def initialize(self, args):
        self.kept, self.over = collections.deque(), threading.Event()
        self.go = os.path.join(args["model_repository"], "go")
        self.thread = threading.Thread(target=self.let_go)
        self.thread.start()

    def finalize(self):
        self.over.set()
        self.thread.join()

    def let_go(self):
        while not self.over.wait(0.01):
            while self.kept and os.path.exists(self.go):
                sender, n = self.kept.popleft()
                for i in range(1, n):
                    self.send(sender, i)
                sender.send(flags=FINAL)

    def execute(self, requests):
        for request in requests:
            n = int(pb_utils.get_input_tensor_by_name(request, "N").as_numpy()[0])
            sender = request.get_response_sender()
            if n > 0:
                threading.Thread(target=self.count, args=(sender, n)).start()
            else:
                self.send(sender, 0)
                self.kept.append((sender, -n))

    def count(self, sender, n):
        for i in range(n):
            self.send(sender, i)
        sender.send(flags=FINAL)

    def send(self, sender, i):
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([i], np.int32))]))
"""
COUNT_CONFIG = """
backend: "python" model_transaction_policy { decoupled: true }
input { name: "N" data_type: TYPE_INT32 dims: 1 } output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
instance_group { kind: KIND_CPU count: 1 }
"""
CONSTANT = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([%d], np.int32))]) for _ in requests]
"""
CONSTANT_CONFIG = """
backend: "python" input { name: "N" data_type: TYPE_INT32 dims: 1 } output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
instance_group { kind: KIND_CPU count: 1 }
"""


def lay(root):
    """The models."""
    for name, config, source in (("count", COUNT_CONFIG, COUNT), ("constant", CONSTANT_CONFIG, CONSTANT % 0)):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(config)
        (root / name / "1" / "model.py").write_text(source)
    return root


class Held(collections.namedtuple("Held", "memory descriptors threads processes")):
    """What the processes of a server hold: bytes that are resident and no file's."""

    def __str__(self):
        return f"{self.memory / 1e6:.1f} MB, {self.descriptors} descriptors, {self.threads} threads, {self.processes} processes"


def kind(pid):
    line = harness.cmdline(pid).split(b"\0")
    return "model" if b"-u" in line[1:2] else "worker" if b"sluice-worker" in line[0] else "gateway"


def held(server):
    """{kind of process: Held} of a server and all its processes."""
    found = {}
    for pid in [server.pid, *harness.descendants(server.pid)]:
        try:
            status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
            memory = sum(int(status[k].split()[0]) << 10 for k in ("RssAnon", "RssShmem"))
            one = Held(memory, len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"]), 1)
        except (OSError, KeyError):  # it has just ended
            continue
        name = kind(pid)
        found[name] = Held(*map(sum, zip(one, found[name]))) if name in found else one
    return found


def begin(server, n):
    """A request for n answers over HTTP, with its status read; its answers are to be read."""
    c = http.client.HTTPConnection(server.http, timeout=300)
    c.request("POST", "/v2/models/count/generate_stream", json.dumps({"N": n}))
    return c, c.getresponse()


def read(c, response):
    """How many answers come. The last is checked."""
    count, last = 0, b""
    while part := response.read1(1 << 16):
        last = last[-200:] + part
        count += part.count(b"}")  # one an answer
    c.close()
    if count:
        value = json.loads(last.strip().rsplit(b"\n", 1)[-1][6:]).get("OUT")
        assert value == count - 1, f"the last of {count} answers is {value}"
    return count


def streamed(server, answers, streams=4):
    """So many answers, by streams at a time."""
    got = []
    threads = [threading.Thread(target=lambda: got.append(read(*begin(server, answers // streams)))) for _ in range(streams)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sum(got) == answers, f"{sum(got)} answers, want {answers}"


def reload(server, model, value):
    """Writes the model's file anew, loads it and asks it."""
    model.write_text(CONSTANT % value)
    os.utime(model, (value + 1, value + 1))
    status, _, text = server.ask("/v2/repository/models/constant/load", b"{}", timeout=60)
    assert status == 200, text
    status, _, text = server.ask("/v2/models/constant/generate", b'{"N": 1}')
    assert status == 200 and json.loads(text)["OUT"] == value, text


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--answers", type=int, default=1_000_000)
    p.add_argument("--reloads", type=int, default=300)
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = lay(pathlib.Path(folder))
        server = harness.Server([root], [PYTHON, "--model-control-mode=explicit", "--load-model=*"])
        try:
            def show(what, since):
                print(f"{what}, {time.monotonic() - since:.1f} s: " + "; ".join(f"{k} {v}" for k, v in sorted(held(server).items())), flush=True)

            began = time.monotonic()
            streamed(server, 20_000)
            show("after 20000 answers", began)
            began = time.monotonic()
            streamed(server, a.answers)
            show(f"after {a.answers} more", began)
            for times in (10, a.reloads):
                began = time.monotonic()
                for i in range(times):
                    reload(server, root / "constant" / "1" / "model.py", times * 1000 + i)
                show(f"after {times} reloads", began)
        finally:
            server.stop()


if __name__ == "__main__":
    main()

"""kill -9 of a Python model's process in each phase of its life, under load: no unary request is lost, streams that had begun
say that they end, and nothing stays behind."""
import json
import os
import re
import signal
import threading

import pytest

import growth
import harness
from test_backends import lay

MODEL = """
import os
import pathlib
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FOLDER = pathlib.Path(__file__).parent.parent

def reach(phase):
    # Says which process is in a phase that somebody holds up, and stays there.
    hold = FOLDER / f"hold-{phase}"
    try:
        os.rename(hold, FOLDER / f"held-{phase}-{os.getpid()}")
    except FileNotFoundError:
        return
    time.sleep(600)

reach("import")

class TritonPythonModel:
    def initialize(self, args):
        reach("initialize")

    def execute(self, requests):
        reach("execute")
        return [self.answer(r) for r in requests]

    def answer(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "IN")
        if FOLDER.name == "calls":
            try:
                os.rename(FOLDER / "hold-call", FOLDER / f"held-call-{os.getpid()}")
                (FOLDER.parent / "work" / "hold-execute").touch()
            except FileNotFoundError:
                pass
            called = pb_utils.InferenceRequest(model_name="work", inputs=[tensor], requested_output_names=["OUT"])
            response = called.exec()
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
            return pb_utils.InferenceResponse(response.output_tensors())
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor.as_numpy() + 1)])

    def finalize(self):
        reach("finalize")
"""
STREAM = """
import os
import pathlib
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

FOLDER = pathlib.Path(__file__).parent.parent

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.count, args=(request.get_response_sender(),), daemon=True).start()

    def count(self, sender):
        for i in range(20):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([i], np.float32))]))
            if i == 10:
                threading.Event().wait(0.05)
        sender.send(flags=1)
"""
CONFIG = """
backend: "python" max_batch_size: 8 dynamic_batching {}
input { name: "IN" data_type: TYPE_FP32 dims: 1 } output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
instance_group { kind: KIND_CPU count: 2 } %s
"""
STREAM_CONFIG = """
backend: "python" model_transaction_policy { decoupled: true }
input { name: "IN" data_type: TYPE_FP32 dims: 1 } output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
instance_group { kind: KIND_CPU count: 1 }
"""
ENDED = re.compile("is not healthy|worker process ended")
REPLACED = 'parameters { key: "MAX_REQUESTS" value { string_value: "1000" } }'


class Load:
    """Callers of unary models and of streams, and what they got wrong."""

    def __init__(self, server, models):
        self.server, self.over, self.wrong, self.calls, self.streams, self.cut = server, threading.Event(), [], 0, 0, 0
        targets = [(self.call, (m,)) for m in models for _ in range(2)] + [(self.stream, ()) for _ in range(2)]
        self.threads = [threading.Thread(target=self.guard, args=t) for t in targets]

    def guard(self, f, args):
        while not self.over.is_set():
            try:
                f(*args)
            except Exception as e:
                self.wrong.append(repr(e))

    def call(self, model):
        body = json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [7]}]}).encode()
        status, _, text = self.server.ask(f"/v2/models/{model}/infer", body, timeout=60)
        if status != 200 or json.loads(text)["outputs"][0]["data"] != [8]:
            self.wrong.append((model, status, text))
        self.calls += 1

    def stream(self):
        status, _, text = self.server.ask("/v2/models/stream/generate_stream", b'{"IN": 0}', timeout=60)
        events = [json.loads(line[6:]) for line in text.splitlines() if line]
        got = [e.get("OUT") for e in events]
        if status == 200 and got == list(range(20)):
            self.streams += 1
        elif got and got[-1] is None and len(got) > 1 and got[:-1] == list(range(len(got) - 1)) and ENDED.search(events[-1]["error"]):
            self.cut += 1  # it had begun, and says so
        else:
            self.wrong.append(("stream", status, text[-300:]))

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for t in self.threads:
            t.join()

    def more(self):
        """Waits until everybody has been answered anew."""
        calls, streams = self.calls, self.streams + self.cut
        harness.wait_for(lambda: self.calls > calls + 20 and self.streams + self.cut > streams + 3, 60, "more answers")


def processes(server, model):
    """The processes of a model: the memory of their channels has the names of their instances."""
    def has(pid):
        try:
            return any(os.readlink(f"/proc/{pid}/fd/{fd}").startswith(f"/memfd:sluice-{model}_") for fd in range(3, 8))
        except OSError:
            return False
    return [p for p in harness.descendants(server.pid) if growth.kind(p) == "model" and has(p)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    config = {"work": CONFIG % "", "calls": CONFIG % "", "replaced": CONFIG % REPLACED, "stream": STREAM_CONFIG}
    root = lay(tmp_path_factory.mktemp("models"), **{m: (text, ["model.py"]) for m, text in config.items()})
    for m in config:
        (root / m / "1" / "model.py").write_text(STREAM if m == "stream" else MODEL)
    return root


@pytest.fixture(scope="module")
def server(built, root):
    s = harness.Server([root], [growth.PYTHON, "--model-control-mode=explicit", "--load-model=*"])
    yield s
    assert s.stop() == 0, "exit status after SIGTERM\n" + s.log()[-3000:]


@pytest.fixture(scope="module")
def load(server):
    with Load(server, ["work", "calls", "replaced"]) as load:
        load.more()
        load.worker = growth.held(server)["worker"]
        yield load


def held(root, model, phase):
    """The process that is held in a phase."""
    found = harness.wait_for(lambda: list((root / model).glob(f"held-{phase}-*")), 60, f"a process in {phase}")
    pid = int(found[0].name.rsplit("-", 1)[1])
    found[0].unlink()
    return pid


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    harness.wait_for(lambda: not harness.alive(pid), 60, "its end")


def all_there(server):
    want = {"work": (2,), "calls": (2,), "replaced": (2, 3, 4), "stream": (1,)}
    harness.wait_for(lambda: all(len(processes(server, m)) in n for m, n in want.items()), 60, f"processes: {want}")


def checked(server, load):
    load.more()
    all_there(server)
    load.more()
    assert not load.wrong, load.wrong[:3]


@pytest.mark.parametrize("phase", ["import", "initialize"])
def test_while_it_starts(server, root, load, phase):
    (root / "work" / f"hold-{phase}").touch()
    kill(processes(server, "work")[0])
    pid = held(root, "work", phase)
    load.more()
    kill(pid)
    checked(server, load)


def test_execute(server, root, load):
    (root / "work" / "hold-execute").touch()
    kill(held(root, "work", "execute"))
    checked(server, load)


def test_idle_and_streaming(server, root, load):
    cut = load.cut
    for model in ("replaced", "stream"):
        kill(processes(server, model)[0])
    checked(server, load)
    assert load.cut > cut


def test_in_a_call(server, root, load):
    """The caller dies; then the one that it has called, which holds the request."""
    (root / "calls" / "hold-call").touch()
    caller = held(root, "calls", "call")
    called = held(root, "work", "execute")
    kill(caller)
    load.more()
    kill(called)
    checked(server, load)


def test_while_replaced(server, root, load):
    """The next process is initialized while the one before serves: either may die."""
    for which in ("next", "before"):
        before = set(processes(server, "replaced"))
        (root / "replaced" / "hold-initialize").touch()
        pid = held(root, "replaced", "initialize")
        kill(pid if which == "next" else (before & set(processes(server, "replaced")) - {pid}).pop())
        if which == "before":
            load.more()
            kill(pid)
        checked(server, load)


def test_finalize(server, root, load):
    """The processes that a reload has put out of service."""
    model = root / "work" / "1" / "model.py"
    (root / "work" / "hold-finalize").touch()
    model.write_text(MODEL + "# another\n")
    status = []
    reload = threading.Thread(target=lambda: status.append(server.ask("/v2/repository/models/work/load", b"{}", timeout=60)[0]))
    reload.start()
    pid = held(root, "work", "finalize")
    load.more()
    kill(pid)
    reload.join()
    assert status == [200]
    checked(server, load)


def test_nothing_grows(server, root, load):
    """What the worker holds stays the same over all these deaths."""
    def fewer():
        return growth.held(server)["worker"].descriptors <= load.worker.descriptors + 20  # connections and replaced processes come and go

    harness.wait_for(fewer, 60, f"descriptors given back: {growth.held(server)['worker']}, before {load.worker}")
    assert growth.held(server)["worker"].memory < load.worker.memory + 32e6
    checked(server, load)


def test_worker(server, root, load):
    """All processes of the models go with their worker, and the next one has them again."""
    before = [p for p in harness.descendants(server.pid) if growth.kind(p) == "model"]
    kill(server.workers()[0])
    harness.wait_for(lambda: not any(map(harness.alive, before)), 60, "the end of the worker's processes")
    checked(server, load)

"""Python models that misbehave: they close descriptors that aren't theirs, write without end, use up memory, leave children and
threads behind, answer faster than anybody reads. Their own requests may fail; nobody else's, and nothing stays behind."""
import http.client
import json
import os
import signal
import threading
import time

import pytest

import growth
import harness
from test_backends import lay

MODEL = """
import multiprocessing
import os
import resource
import sys
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.left = []

    def execute(self, requests):
        return [self.answer(r) for r in requests]

    def answer(self, request):
        what = pb_utils.get_input_tensor_by_name(request, "WHAT").as_numpy().flat[0].decode()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([str(getattr(self, what)()).encode()], np.object_))])

    def fine(self):
        return "fine"

    def close(self):
        os.closerange(3, 21)
        return "closed"

    def flood(self):
        for i in range(200_000):
            print("a line of a flood", i)
        return "flooded"

    def memory(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        used = int(open("/proc/self/statm").read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), hard))
        try:
            return np.ones(1 << 28, np.float64).sum()
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

    def pool(self):
        self.left.append(multiprocessing.get_context("fork").Pool(3))
        return self.left[-1].map(len, ["a", "bc"])

    def threads(self):
        for _ in range(5):
            t = threading.Thread(target=time.sleep, args=(600,))
            t.start()
            self.left.append(t)
        return "left"

    def poison(self):
        os._exit(9)
"""
CONFIG = """
backend: "python"
input { name: "WHAT" data_type: TYPE_STRING dims: 1 } output { name: "OUT" data_type: TYPE_STRING dims: 1 }
instance_group { kind: KIND_CPU count: 1 } parameters { key: "EXECUTE_TIMEOUT_MS" value { string_value: "20000" } }
"""


def ask(server, model, what, id=""):
    """(status, output or error)"""
    body = {"id": id, "inputs": [{"name": "WHAT", "datatype": "BYTES", "shape": [1], "data": [what]}]}
    status, _, text = server.ask(f"/v2/models/{model}/infer", json.dumps(body).encode(), timeout=60)
    answer = json.loads(text)
    return status, answer["error"] if "error" in answer else answer["outputs"][0]["data"][0]


@pytest.fixture
def server(start, tmp_path):
    root = lay(tmp_path / "models", bad=(CONFIG, ["model.py"]), good=(CONFIG, ["model.py"]))
    for m in ("bad", "good"):
        (root / m / "1" / "model.py").write_text(MODEL)
    server = start([root], [growth.PYTHON])
    yield server
    assert server.over() or ask(server, "good", "fine") == (200, "fine")


def serves(server):
    harness.wait_for(lambda: ask(server, "bad", "fine") == (200, "fine"), 60, "an answer of the next process")


def test_descriptors(server):
    """Its channel is among what it closes: the process is replaced, whatever it may have said before."""
    status, text = ask(server, "bad", "close")
    assert status in (500, 503) and "is not healthy" in text, (status, text)
    serves(server)


def test_flood(server):
    assert ask(server, "bad", "flood") == (200, "flooded")
    assert ask(server, "bad", "fine") == (200, "fine")
    harness.wait_for(lambda: "dropped_before" in server.log() or server.log().count("a line of a flood") < 50_000, 60, "a bounded log")
    assert os.path.getsize(server.log_path) < 20e6


def test_memory(server):
    """No memory is an exception, and the process serves on."""
    status, text = ask(server, "bad", "memory")
    assert status == 500 and "MemoryError" in text, (status, text)
    assert ask(server, "bad", "fine") == (200, "fine")


def test_poison(server):
    """What ends two processes is refused, and the log names it."""
    status, text = ask(server, "bad", "poison", id="the poisonous one")
    assert status == 503 and "exit status 9" in text, (status, text)
    assert "the poisonous one" in server.log()
    serves(server)


@pytest.mark.parametrize("killed", ["process", "worker", "gateway", "stopped"])
def test_left_behind(server, killed):
    """Children and threads of a model end with its process, whoever ends first."""
    assert ask(server, "bad", "pool") == (200, "[1, 2]") and ask(server, "bad", "threads") == (200, "left")
    gone = harness.descendants(server.pid)
    assert len(gone) >= 6, gone
    if killed == "gateway":
        os.kill(server.pid, signal.SIGKILL)
    elif killed == "worker":
        os.kill(server.workers()[0], signal.SIGKILL)
    elif killed == "stopped":
        assert server.stop(60) == 0
    else:
        children = [p for p in gone if growth.kind(p) == "model" and len(harness.descendants(p)) == 3]
        gone = [*harness.descendants(children[0]), *children]
        os.kill(children[0], signal.SIGKILL)
    harness.wait_for(lambda: not any(map(harness.alive, gone)), 60, "the end of all processes")
    if killed == "process":
        serves(server)
    elif killed == "worker":
        harness.wait_for(lambda: server.status("/v2/models/bad/ready") == 200 and server.status("/v2/models/good/ready") == 200, 60, "a new worker")
        serves(server)


LARGE = """
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    # Large answers without end, until nobody wants them; OUT of a request with N < 0: answers so far, threads at it.
    def initialize(self, args):
        self.sent, self.busy, self.ticks = 0, 0, 0

    def execute(self, requests):
        for request in requests:
            n = int(pb_utils.get_input_tensor_by_name(request, "N").as_numpy()[0])
            sender = request.get_response_sender()
            if n < 0:
                told = np.array([self.sent, self.busy], np.float32)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", told)]), flags=1)
                continue
            self.busy += 1
            threading.Thread(target=self.answer, args=(sender, n)).start()

    def answer(self, sender, n):
        try:
            for _ in range(n):
                if sender.is_cancelled():
                    break
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(250_000, np.float32))]))
                self.sent += 1
            sender.send(flags=1)
        finally:
            self.busy -= 1
"""
CALLER = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    # Reads one answer, nothing for a second, then all; gives their number.
    def execute(self, requests):
        responses = []
        for request in requests:
            n = pb_utils.get_input_tensor_by_name(request, "N")
            answers = pb_utils.InferenceRequest(model_name="large", inputs=[n], requested_output_names=["OUT"]).exec(decoupled=True)
            next(answers)
            time.sleep(1)
            count = 1
            for answer in answers:
                count += 0 if answer.has_error() else len(answer.output_tensors())
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([count], np.float32))]))
        return responses
"""
LARGE_CONFIG = """
backend: "python" model_transaction_policy { decoupled: true }
input { name: "N" data_type: TYPE_INT32 dims: 1 } output { name: "OUT" data_type: TYPE_FP32 dims: -1 }
instance_group { kind: KIND_CPU count: 1 }
"""
CALLER_CONFIG = """
backend: "python" input { name: "N" data_type: TYPE_INT32 dims: 1 } output { name: "OUT" data_type: TYPE_FP32 dims: -1 }
instance_group { kind: KIND_CPU count: 1 }
"""
ENDLESS = 1_000_000
MOST = 400e6  # bytes of a process


@pytest.fixture
def large(start, tmp_path):
    root = lay(tmp_path / "models", large=(LARGE_CONFIG, ["model.py"]), caller=(CALLER_CONFIG, ["model.py"]))
    (root / "large" / "1" / "model.py").write_text(LARGE)
    (root / "caller" / "1" / "model.py").write_text(CALLER)
    return start([root], [growth.PYTHON])


def state(server):
    """Answers that the model has sent, and threads that send."""
    _, _, text = server.ask("/v2/models/large/generate", b'{"N": -1}', timeout=60)
    return json.loads(text)["OUT"]


def still(server):
    """Waits until the model has sent nothing more for a while; what it had sent."""
    sent = None
    end = time.monotonic() + 60
    while time.monotonic() < end:
        now = state(server)
        if now == sent:
            return now
        sent = now
        time.sleep(1)
    raise AssertionError(f"it sends on: {sent}")


def test_client_that_stops_reading(large):
    """What waits for it is bounded, others are served meanwhile, and when it goes nothing of it is left."""
    c = http.client.HTTPConnection(large.http, timeout=60)
    c.request("POST", "/v2/models/large/generate_stream", json.dumps({"N": ENDLESS}))
    response = c.getresponse()
    response.read(100)
    sent, _ = still(large)
    assert sent < 1000
    for name, held in growth.held(large).items():
        assert held.memory < MOST, (name, held)
    c.sock.close()
    response.close()
    harness.wait_for(lambda: state(large)[1] == 0, 60, "an end of sending")


def test_caller_that_stops_reading(large):
    """A calling model that takes its time has all answers, of which worker and gateway hold a part. It keeps them all
    itself, as in Triton, since they may be iterated once more."""
    told = []
    call = threading.Thread(target=lambda: told.append(large.ask("/v2/models/caller/generate", b'{"N": 1000}', timeout=120)))
    call.start()
    most = 0
    while call.is_alive():
        most = max([most] + [held.memory for kind, held in growth.held(large).items() if kind != "model"])
        call.join(0.02)
    status, _, text = told[0]
    assert status == 200 and json.loads(text)["OUT"] == 1000, text
    assert most < MOST, most
    harness.wait_for(lambda: state(large)[1] == 0, 60, "an end of sending")


def test_caller_that_goes(large):
    """A call ends with the client that it is made for, and what was not read of it."""
    c = http.client.HTTPConnection(large.http, timeout=60)
    c.request("POST", "/v2/models/caller/generate", json.dumps({"N": ENDLESS}))
    harness.wait_for(lambda: state(large)[0] > 10, 60, "answers for the calling model")
    c.close()
    harness.wait_for(lambda: state(large)[1] == 0, 60, "an end of sending")

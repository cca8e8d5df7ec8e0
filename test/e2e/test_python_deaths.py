"""Processes of Python models die: nothing but streams that had begun is lost, and nothing stays behind."""
import json
import os
import pathlib
import signal
import sys
import threading

import harness
from test_backends import lay

PYTHON = f"--backend-config=python,python={sys.executable}"

ADD = """
import json, os, signal
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if tensor.flat[0] == -1:
                os.kill(os.getpid(), signal.SIGKILL)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor + 1)]))
        return responses
"""
CONFIG = """
backend: "python" max_batch_size: 8 dynamic_batching {}
input { name: "IN" data_type: TYPE_FP32 dims: 1 } output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
instance_group { kind: KIND_CPU count: 2 }
"""


def infer(server, value):
    body = json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [value]}]}).encode()
    status, _, text = server.ask("/v2/models/add/infer", body)
    return status, text


def processes(server):
    """The Python processes of a server's models."""
    found = []
    for pid in harness.descendants(server.pid):
        try:
            line = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if len(line) > 2 and line[2].endswith(b"runner.py"):
            found.append(pid)
    return found


def models(tmp_path):
    root = lay(tmp_path / "models", add=(CONFIG, ["model.py"]))
    (root / "add" / "1" / "model.py").write_text(ADD)
    return root


def test_killed_under_load(start, tmp_path):
    """Every request has its answer while processes are killed; what kills two processes is refused, with the cause."""
    server = start([models(tmp_path)], [PYTHON])
    wrong, over = [], threading.Event()

    def call():
        while not over.is_set():
            status, text = infer(server, 1)
            if status != 200 or json.loads(text)["outputs"][0]["data"] != [2]:
                wrong.append((status, text))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for c in callers:
        c.start()
    try:
        for _ in range(3):
            harness.wait_for(lambda: len(processes(server)) == 2, 60, "two processes")
            before = processes(server)
            os.kill(before[0], signal.SIGKILL)
            harness.wait_for(lambda: before[0] not in processes(server), 60, "the end of the one that was killed")
    finally:
        over.set()
        for c in callers:
            c.join()
    assert not wrong, wrong[:3]
    status, text = infer(server, -1)
    assert status == 503 and b"is not healthy. (signal: killed)" in text, (status, text)
    harness.wait_for(lambda: infer(server, 3)[0] == 200, 60, "an answer after it")


def test_nothing_stays(start, tmp_path):
    """When the gateway is killed, the processes of its models end, too."""
    server = start([models(tmp_path)], [PYTHON])
    pids = harness.descendants(server.pid)
    assert len(processes(server)) == 2
    os.kill(server.pid, signal.SIGKILL)
    harness.wait_for(lambda: not any(map(harness.alive, pids)), 60, "the end of all processes")


def test_ready_says_the_truth(start, tmp_path):
    """A model whose processes can't be started any more is not ready; it is again when they can."""
    root = models(tmp_path)
    server = start([root], [PYTHON])
    source = root / "add" / "1" / "model.py"
    source.write_text("raise RuntimeError('broken meanwhile')\n")
    for pid in processes(server):
        os.kill(pid, signal.SIGKILL)
    harness.wait_for(lambda: server.status("/v2/models/add/ready") != 200, 60, "not ready")
    source.write_text(ADD)
    harness.wait_for(lambda: server.status("/v2/models/add/ready") == 200, 90, "ready again")
    harness.wait_for(lambda: infer(server, 1)[0] == 200, 60, "an answer")


LATE = """
import threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            first, pause = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            threading.Thread(target=self.answer, args=(request.get_response_sender(), first, pause), daemon=True).start()

    def answer(self, sender, first, pause):
        if first:
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1], np.float32))]))
        print("a stream began")
        time.sleep(float(pause))
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([2], np.float32))]), flags=1)
"""
LATE_CONFIG = """
backend: "python" model_transaction_policy { decoupled: true }
input { name: "IN" data_type: TYPE_FP32 dims: 2 } output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
"""


def test_streams(start, tmp_path):
    """When a process is killed, a stream that had begun ends with an error, and one without an answer is executed again."""
    root = lay(tmp_path / "models", late=(LATE_CONFIG, ["model.py"]))
    (root / "late" / "1" / "model.py").write_text(LATE)
    server = start([root], [PYTHON])
    answers = {}

    def stream(first):
        _, _, text = server.ask("/v2/models/late/generate_stream", json.dumps({"IN": [first, 3]}).encode(), timeout=60)
        answers[first] = text

    callers = [threading.Thread(target=stream, args=(first,)) for first in (0, 1)]
    for c in callers:
        c.start()
    harness.wait_for(lambda: server.log().count("a stream began") == 2, 60, "two streams")
    os.kill(processes(server)[0], signal.SIGKILL)
    for c in callers:
        c.join()
    assert b'"OUT":2' in answers[0] and b"error" not in answers[0], answers
    assert b'"OUT":1' in answers[1] and b"is not healthy" in answers[1] and b'"OUT":2' not in answers[1], answers

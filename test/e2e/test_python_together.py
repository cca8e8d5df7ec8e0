"""Instances that share a process (INSTANCES_IN_PROCESS)."""
import json
import os
import signal
import sys
import threading

import harness
from test_backends import lay
from test_python_deaths import processes

PYTHON = f"--backend-config=python,python={sys.executable}"

MODEL = """
import os, threading
import numpy as np
import triton_python_backend_utils as pb_utils

LOADS = []
LOADS.append(1)
BOTH = threading.Barrier(2)
GROWN = []

class TritonPythonModel:
    made = 0

    def initialize(self, args):
        type(self).made += 1
        self.weights = LOADS

    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if value.flat[0] == 2:  # two instances meet
                BOTH.wait(60)
            if value.flat[0] == 3:  # the process gets too large, in all instances
                GROWN.append(b"x" * (600 << 20))
            if value.flat[0] == 4:
                threading.Event().wait()
            out = np.array([[value.flat[0], os.getpid(), len(LOADS), self.made]], np.float64)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
        return responses
"""
CONFIG = """
backend: "python" max_batch_size: 1
input { name: "IN" data_type: TYPE_FP32 dims: 1 } output { name: "OUT" data_type: TYPE_FP64 dims: 4 }
instance_group { kind: KIND_CPU count: %d }
parameters { key: "INSTANCES_IN_PROCESS" value: { string_value: "%d" } }
"""


def infer(server, value):
    body = json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [value]}]}).encode()
    status, _, text = server.ask("/v2/models/m/infer", body)
    return json.loads(text)["outputs"][0]["data"] if status == 200 else (status, text)


def models(tmp_path, instances, together, parameters=""):
    root = lay(tmp_path / "models", m=(CONFIG % (instances, together) + parameters, ["model.py"]))
    (root / "m" / "1" / "model.py").write_text(MODEL)
    return root


def both(server, value):
    """What two requests at a time have for an answer."""
    answers = []
    callers = [threading.Thread(target=lambda: answers.append(infer(server, value))) for _ in range(2)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    return answers


def test_one_process(start, tmp_path):
    """Four instances in one process: the module is imported once, objects are four, and they execute at a time."""
    server = start([models(tmp_path, 4, 4)], [PYTHON])
    pid, = processes(server)
    for _ in range(8):
        assert infer(server, 1) == [1, pid, 1, 4]
    assert both(server, 2) == [[2, pid, 1, 4]] * 2


def test_more_than_fit(start, tmp_path):
    """Five instances, two in a process: three processes, one of which has a place without instance; all end with the server."""
    server = start([models(tmp_path, 5, 2)], [PYTHON])
    assert len(processes(server)) == 3
    server.stop()


def test_killed(start, tmp_path):
    """A process that is killed under load takes no request with it, and the next one has all instances."""
    server = start([models(tmp_path, 4, 4)], [PYTHON])
    wrong, over, answers = [], threading.Event(), [0] * 4

    def call(i):
        while not over.is_set():
            answer = infer(server, 1)
            answers[i] += 1
            if answer[0] != 1:
                wrong.append(answer)

    callers = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for c in callers:
        c.start()
    try:
        for _ in range(3):
            harness.wait_for(lambda: len(processes(server)) == 1 and server.ask("/v2/models/m/ready")[0] == 200, 60, "one process")
            before = list(answers)  # a request that was in two processes that died is refused
            harness.wait_for(lambda: all(a > b for a, b in zip(answers, before)), 60, "an answer for each caller")
            pid, = processes(server)
            os.kill(pid, signal.SIGKILL)
            harness.wait_for(lambda: pid not in processes(server), 60, "the end of the one that was killed")
        harness.wait_for(lambda: infer(server, 1)[3:] == [4], 60, "four instances in the next process")
    finally:
        over.set()
        for c in callers:
            c.join()
    assert not wrong


def test_max_requests(start, tmp_path):
    """Requests are counted for the process; when it is used up all instances move, and it ends."""
    server = start([models(tmp_path, 2, 2, 'parameters { key: "MAX_REQUESTS" value: { string_value: "10" } }')], [PYTHON])
    first, = processes(server)

    def moved():
        both(server, 1)
        return first not in processes(server)

    harness.wait_for(moved, 60, "the end of the first process")
    assert infer(server, 1)[0] == 1


class Load:
    """Callers who want an answer each time; .wrong are those that weren't one."""

    def __init__(self, server, callers):
        self.server, self.over, self.answers, self.wrong = server, threading.Event(), [0] * callers, []
        self.threads = [threading.Thread(target=self.call, args=(i,)) for i in range(callers)]

    def call(self, i):
        while not self.over.is_set():
            answer = infer(self.server, 1)
            self.answers[i] += 1
            if answer[0] != 1:
                self.wrong.append(answer)

    def more(self):
        before = list(self.answers)
        harness.wait_for(lambda: all(a > b for a, b in zip(self.answers, before)), 60, "an answer for each caller")

    def __enter__(self):
        for t in self.threads:
            t.start()
        self.more()
        return self

    def __exit__(self, *_):
        self.over.set()
        for t in self.threads:
            t.join()


def whole(server, before):
    """Waits until another process has all four instances, and the model is ready."""
    harness.wait_for(lambda: len(processes(server)) == 1 and before not in processes(server), 60, "one process, another than before")
    pid, = processes(server)
    harness.wait_for(lambda: infer(server, 1)[1:] == [pid, 1, 4], 60, "four instances in it")
    harness.wait_for(lambda: server.status("/v2/models/m/ready") == 200, 60, "ready")
    assert both(server, 2) == [[2, pid, 1, 4]] * 2  # at least two of them execute at a time


def test_too_large(start, tmp_path):
    """The memory of a shared process is that of all its instances: they all move, nobody's request fails, the model stays ready."""
    server = start([models(tmp_path, 4, 4, 'parameters { key: "MAX_RSS_MB" value: { string_value: "500" } }')], [PYTHON])
    first, = processes(server)
    unready = []
    with Load(server, 3) as load:
        assert infer(server, 3)[:2] == [3, first]

        def moved():
            if server.status("/v2/models/m/ready") != 200:
                unready.append(1)
            return first not in processes(server)

        harness.wait_for(moved, 60, "the end of the first process")
        load.more()
    assert not load.wrong and not unready, (load.wrong[:3], unready)
    whole(server, first)


def test_hangs(start, tmp_path):
    """One instance that hangs has the process replaced, for all: its own request fails with the cause, and those of others are
    answered in the next one."""
    server = start([models(tmp_path, 4, 4, 'parameters { key: "EXECUTE_TIMEOUT_MS" value: { string_value: "3000" } }'
                                           'parameters { key: "RETRY" value: { string_value: "no" } }')], [PYTHON])
    first, = processes(server)
    status, text = infer(server, 4)
    assert status == 503 and b"execute took longer than 3s" in text, (status, text)
    harness.wait_for(lambda: first not in processes(server), 60, "the end of the process that hung")
    whole(server, first)


def test_hangs_under_load(start, tmp_path):
    """The same while others are called: what they have had in the process that is killed is executed once more."""
    server = start([models(tmp_path, 4, 4, 'parameters { key: "EXECUTE_TIMEOUT_MS" value: { string_value: "3000" } }')], [PYTHON])
    first, = processes(server)
    with Load(server, 2) as load:
        status, text = infer(server, 4)  # it hangs in two processes
        assert status == 503 and b"execute took longer than 3s" in text, (status, text)
        load.more()
    assert not load.wrong, load.wrong[:3]
    whole(server, first)


def test_another_count(start, tmp_path):
    """A reload with other instances."""
    root = models(tmp_path, 4, 4)
    server = start([root], [PYTHON, "--model-control-mode=explicit", "--load-model=m"])
    (root / "m" / "config.pbtxt").write_text(CONFIG % (2, 2) + 'name: "m"')
    assert server.ask("/v2/repository/models/m/load", b"{}")[0] == 200
    harness.wait_for(lambda: len(processes(server)) == 1, 60, "one process")
    assert infer(server, 1)[3] == 2

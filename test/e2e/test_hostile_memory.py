"""Callers with regions who mean harm: memory that is not there, and descriptors of what is none."""
import json
import os

import numpy as np
import pytest

import harness
from shared_memory import Caller, descriptors, model, placed, request

HUGE = 60 << 30


@pytest.fixture(scope="module")
def server(built, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    model(folder, "numbers", batch=0, datatype="INT32")
    model(folder, "words", batch=0, datatype="STRING")
    model(folder, "plain", batch=0)
    model(folder, "together", batch=8, more="dynamic_batching { max_queue_delay_microseconds: 1000 }")
    model(folder, "sequence", batch=4, more="sequence_batching { max_sequence_idle_microseconds: 5000000 }")
    sockets = tmp_path_factory.mktemp("sockets")
    s = harness.Server([folder], [f"--http-unix-socket={sockets}/http"])
    s.socket = f"{sockets}/http"
    yield s
    assert s.stop() == 0, s.log()[-3000:]


@pytest.mark.parametrize("name, datatype, shape", [("numbers", "INT32", [HUGE // 4]), ("words", "BYTES", [1]),
                                                   ("together", "FP32", [1, HUGE // 4]), ("sequence", "FP32", [1, HUGE // 4]),
                                                   ("plain", "FP32", [HUGE // 4 - 1])])
def test_sparse(server, name, datatype, shape):
    """A file with a hole of 60 GB costs its owner nothing, and must not cost a worker its life."""
    workers = server.workers()
    fd = os.memfd_create("region")
    os.ftruncate(fd, HUGE)
    with Caller(server.socket) as c:
        assert c.pass_descriptors("hole", {"byte_size": HUGE}, [fd]) == (200, None)
        tensor = {"name": "INPUT0", "datatype": datatype, "shape": shape, "parameters": placed("hole", HUGE)}
        if name == "plain":
            tensor["parameters"] = placed("hole", HUGE - 4, 1)
        document = {"inputs": [tensor]}
        if name == "sequence":
            document["parameters"] = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
        status, answer = c.infer(name, json.dumps(document).encode())
        if name == "plain":
            assert status == 400 and "is too large to be copied" in answer["error"], (status, answer)
        else:
            assert status == 503 and "tensor memory" in answer["error"], (status, answer)
        assert c.unregister("hole")[0] == 200
        assert c.infer("plain", json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}).encode())[0] == 200
    os.close(fd)
    assert server.workers() == workers
    assert descriptors(server.pid) == 0

"""Models that say themselves whether they are ready."""
import json
import sys
import threading

import pytest
import tritonclient.grpc as grpcclient
from test_backends import lay

PYTHON = f"--backend-config=python,python={sys.executable}"

MODEL = """
import pathlib, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

SAYS = pathlib.Path(__file__).parent.parent / "says"

class TritonPythonModel:
    def execute(self, requests):
        while (SAYS.parent / "busy").exists():
            time.sleep(0.01)
        if pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy().flat[0] == 2:
            ready = pb_utils.is_model_ready("says")
        else:
            ready = True
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[ready]], np.float32))]) for _ in requests]
    ASYNC def is_ready(self):
        return eval(SAYS.read_text())
"""
CONFIG = """
backend: "python" max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: 1 } output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
instance_group { kind: KIND_CPU count: 2 }
"""


def infer(server, value):
    body = json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [value]}]}).encode()
    return server.ask("/v2/models/says/infer", body)


@pytest.mark.parametrize("kind", ["", "async "])
def test_is_ready(start, tmp_path, kind):
    root = lay(tmp_path / "models", says=(CONFIG, ["model.py"]))
    (root / "says" / "1" / "model.py").write_text(MODEL.replace("ASYNC ", kind))
    says = root / "says" / "says"
    says.write_text("True")
    server = start([root], [PYTHON])
    client = grpcclient.InferenceServerClient(server.grpc)
    for text, ready in (("True", True), ("False", False), ("1", False), ("1/0", False), ("True", True)):
        says.write_text(text)
        assert server.ask("/v2/models/says/ready")[0] == (200 if ready else 400), text
        assert server.ask("/v2/health/ready")[0] == (200 if ready else 400), text
        assert server.ask("/v2/health/live")[0] == 200
        assert client.is_model_ready("says") is ready and client.is_server_ready() is ready
        assert json.loads(infer(server, 2)[2])["outputs"][0]["data"] == [float(ready)]
    busy = root / "says" / "busy"
    busy.write_text("")
    answers = []
    callers = [threading.Thread(target=lambda: answers.append(infer(server, 1)[0])) for _ in range(2)]
    for c in callers:
        c.start()
    assert server.ask("/v2/models/says/ready")[0] == 200
    busy.unlink()
    for c in callers:
        c.join()
    assert answers == [200, 200]

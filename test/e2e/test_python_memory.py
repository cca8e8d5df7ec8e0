"""Large tensors of Python models: views on what requests sent, answers written where they are sent from, nobody's data for another."""
import sys
import threading

import numpy as np
import tritonclient.http as httpclient

from test_backends import lay

PYTHON = f"--backend-config=python,python={sys.executable}"

MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]
        self.kept = []

    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if self.name.startswith("inplace"):
                tensor += 1
                out = tensor
            elif self.name == "keeps":
                self.kept = (self.kept + [tensor])[-8:]
                assert all((k == k.flat[0]).all() for k in self.kept), "a view that was kept has changed"
                out = self.kept[0]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
        return responses
"""
CONFIG = """
backend: "python" %s
input { name: "IN" data_type: TYPE_FP32 dims: -1 } output { name: "OUT" data_type: TYPE_FP32 dims: -1 }
instance_group { kind: KIND_CPU count: 1 }
"""
ISOLATED = 'parameters { key: "ISOLATE" value { string_value: "yes" } }'
SIZE = 150_000


def infer(client, model, value, size=SIZE):
    tensor = httpclient.InferInput("IN", [size], "FP32")
    tensor.set_data_from_numpy(np.full(size, value, np.float32))
    return client.infer(model, [tensor]).as_numpy("OUT")


def test_large(start, tmp_path):
    root = lay(tmp_path / "models", inplace=(CONFIG % "", ["model.py"]), inplace_apart=(CONFIG % ISOLATED, ["model.py"]),
               keeps=(CONFIG % "", ["model.py"]))
    for model in ("inplace", "inplace_apart", "keeps"):
        (root / model / "1" / "model.py").write_text(MODEL)
    server = start([root], [PYTHON])
    wrong = []

    def call(model, base):
        with httpclient.InferenceServerClient(server.http) as client:
            try:
                for i in range(40):
                    out = infer(client, model, base + i, SIZE + 16 * i)
                    right = (out == out[0]).all() if model == "keeps" else (out == base + i + 1).all()
                    if not right:
                        wrong.append((model, base, i))
            except Exception as e:
                wrong.append((model, base, str(e)))

    callers = [threading.Thread(target=call, args=(m, b)) for m, b in
               (("inplace", 0), ("inplace", 1000), ("inplace_apart", 2000), ("keeps", 3000), ("keeps", 4000))]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert not wrong, wrong[:5]

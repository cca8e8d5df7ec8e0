"""Sources of model.py for tests of the runner."""
import numpy as np

HEAD = "import asyncio, json, os, sys, time, threading\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n"
OUT = """
def out(request, x):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.asarray(x))])
"""

ONE = {"inputs": {"IN": np.arange(3, dtype=np.float32)}}
TWO = ONE, {**ONE, "key": 1 << 16 | 1}


def model(body, head=""):
    """A model whose class has that body, indented by four."""
    return f"{HEAD}{head}\nclass TritonPythonModel:\n{body}"


def execute(body, kind="def"):
    """A model whose execute has that body, indented by eight, from line 10 on; out(request, x) makes a response."""
    return model(f"    {kind} execute(self, requests):\n" + body, OUT)

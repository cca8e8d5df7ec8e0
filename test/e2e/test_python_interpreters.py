"""The runner under other interpreters: those of SLUICE_TEST_PYTHONS (paths with colons between them), else those found on PATH and under
~/.pyenv/versions. Each needs numpy. Named ones have all tests of test/python, found ones the first file of them."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from test_backends import lay

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NAMED = [p for p in os.environ.get("SLUICE_TEST_PYTHONS", "").split(":") if p]
OLDEST = (3, 9)
MODEL = """
import sys
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        said = f"{sys.version_info[0]}.{sys.version_info[1]} {np.__version__}".encode()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([said], np.object_))]) for _ in requests]
"""
CONFIG = """
backend: "python" input { name: "IN" data_type: TYPE_FP32 dims: -1 } output { name: "OUT" data_type: TYPE_STRING dims: -1 }
parameters { key: "PYTHON" value: { string_value: "%s" } }
"""


def found():
    """Interpreters of other versions than this one's."""
    all = {}
    for minor in range(OLDEST[1], 20):
        path = shutil.which(f"python3.{minor}")
        if path and "/shims/" not in path and minor != sys.version_info[1]:  # a shim may have none to run
            all[minor] = path
    for path in pathlib.Path.home().glob(".pyenv/versions/*/bin/python3.*"):
        name = re.fullmatch(r"python3\.(\d+)", path.name)
        if name and int(name[1]) >= OLDEST[1] and int(name[1]) != sys.version_info[1]:
            all.setdefault(int(name[1]), str(path))
    return [path for _, path in sorted(all.items())]


@pytest.fixture(params=NAMED or found(), ids=lambda p: p.strip("/").replace("/", "-"))
def python(request):
    """(path, what it says of itself)."""
    asked = subprocess.run([request.param, "-c", "import sys, numpy; print('%d.%d' % sys.version_info[:2], numpy.__version__)"],
                           capture_output=True, text=True)
    if asked.returncode:
        pytest.skip(f"{request.param}: {(asked.stderr.strip().splitlines() or ['it can not be run'])[-1]}")
    return request.param, asked.stdout.strip()


def test_runner(python):
    """The runner's own tests, with a process of that interpreter."""
    tests = ["test/python"] if NAMED else ["test/python/test_runner.py"]
    result = subprocess.run([sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests], cwd=ROOT, capture_output=True, text=True,
                            env={**os.environ, "SLUICE_TEST_PYTHON": python[0]})
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]


def test_served(start, tmp_path, python):
    """The parameter PYTHON, over the whole way."""
    root = lay(tmp_path / "models", m=(CONFIG % python[0], ["model.py"]))
    (root / "m" / "1" / "model.py").write_text(MODEL)
    server = start([root])
    body = json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1]}]}).encode()
    status, _, text = server.ask("/v2/models/m/infer", body)
    assert status == 200 and json.loads(text)["outputs"][0]["data"] == [python[1]], text

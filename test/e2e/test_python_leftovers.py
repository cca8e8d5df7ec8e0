"""What is left behind when a gateway with Python models, its worker or a model's process is killed with -9 under load: nothing.
The server has temporary, cache and runtime folders of its own, so that whatever it leaves there is its own."""
import http.client
import json
import os
import pathlib
import signal
import threading

import pytest

import growth
import harness
from test_backends import lay

UNARY = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.calls = args["model_name"] == "calls"

    def execute(self, requests):
        return [self.answer(r) for r in requests]

    def answer(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "IN")
        if not self.calls:
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor.as_numpy() + 1)])
        called = pb_utils.InferenceRequest(model_name="unary", inputs=[tensor], requested_output_names=["OUT"]).exec()
        return pb_utils.InferenceResponse(called.output_tensors(), called.error())
"""
STREAM = """
import threading
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.count, args=(request.get_response_sender(),), daemon=True).start()

    def count(self, sender):
        for i in range(50):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(20_000, i, np.float32))]))
        sender.send(flags=1)
"""
CONFIG = """
backend: "python" %s
input { name: "IN" data_type: TYPE_FP32 dims: -1 } output { name: "OUT" data_type: TYPE_FP32 dims: -1 }
instance_group { kind: KIND_CPU count: 2 }
"""
MODELS = {"unary": (CONFIG % "", UNARY), "calls": (CONFIG % "", UNARY),
          "stream": (CONFIG % "model_transaction_policy { decoupled: true }", STREAM)}
SHARED = pathlib.Path("/dev/shm")


class Load:
    """Callers of every model, until the end; .answers of each. Their answers may be errors: the server is killed."""

    def __init__(self, server):
        self.server, self.over, self.answers = server, threading.Event(), dict.fromkeys(MODELS, 0)
        self.threads = [threading.Thread(target=self.call, args=(m,)) for m in MODELS for _ in range(2)]

    def call(self, model):
        body = json.dumps({"IN": [1.0] * 20_000}).encode()  # too large for a frame of the channel
        what = "generate_stream" if model == "stream" else "generate"
        while not self.over.is_set():
            try:
                if self.server.ask(f"/v2/models/{model}/{what}", body, timeout=60)[0] == 200:
                    self.answers[model] += 1
            except (OSError, http.client.HTTPException):
                self.over.wait(0.05)

    def more(self):
        before = dict(self.answers)
        harness.wait_for(lambda: all(self.answers[m] > before[m] for m in MODELS), 60, "more answers of each model")

    def __enter__(self):
        for t in self.threads:
            t.start()
        self.more()
        return self

    def __exit__(self, *_):
        self.over.set()
        for t in self.threads:
            t.join()


def mine(pids):
    """Objects of /dev/shm that one of these processes has mapped or open."""
    found = set()
    for pid in pids:
        for link in [*pathlib.Path(f"/proc/{pid}/fd").glob("*"), *pathlib.Path(f"/proc/{pid}/map_files").glob("*")]:
            try:
                target = os.readlink(link)
            except OSError:
                continue
            if target.startswith(f"{SHARED}/") and not target.endswith(" (deleted)"):
                found.add(target)
    return found


def files(folder):
    """Files, sockets and folders below a folder."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


@pytest.mark.parametrize("killed", ["process", "worker", "gateway"])
def test_nothing_is_left(start, tmp_path, monkeypatch, killed):
    root = lay(tmp_path / "models", **{m: (config, ["model.py"]) for m, (config, _) in MODELS.items()})
    for m, (_, source) in MODELS.items():
        (root / m / "1" / "model.py").write_text(source)
    temporary, cache = tmp_path / "temporary", tmp_path / "cache"
    for name, folder in {"TMPDIR": temporary, "XDG_RUNTIME_DIR": temporary, "XDG_CACHE_HOME": cache}.items():
        folder.mkdir(exist_ok=True)
        monkeypatch.setenv(name, str(folder))
    server = start([root], [growth.PYTHON])
    laid = files(cache)
    children = harness.descendants(server.pid)
    models = [p for p in children if growth.kind(p) == "model"]
    worker, = server.workers()
    assert len(models) == 6, children
    with Load(server) as load:
        shared = mine([server.pid, *children])
        target = {"process": models[0], "worker": worker, "gateway": server.pid}[killed]
        gone = {"process": models[:1], "worker": [worker, *models], "gateway": [server.pid, *children]}[killed]
        while_running = files(temporary)
        os.kill(target, signal.SIGKILL)
        if killed == "gateway":
            load.over.set()
        harness.wait_for(lambda: not any(map(harness.alive, gone)), 60, "the end of the processes")
        if killed != "gateway":
            load.more()
            harness.wait_for(lambda: len([p for p in harness.descendants(server.pid) if growth.kind(p) == "model"]) == 6, 60, "all processes")
    if killed == "gateway":
        assert files(temporary) == [], f"while it ran: {while_running}"
    else:
        assert len(files(temporary)) == len(while_running), (files(temporary), while_running)
        assert server.stop() == 0, server.log()[-2000:]
        assert files(temporary) == []
    assert not [s for s in shared if os.path.exists(s)]
    assert files(cache) == laid
    assert not list(root.rglob("__pycache__"))

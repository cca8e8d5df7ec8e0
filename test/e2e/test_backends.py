"""Backends say what they are: patches of configs, model files of their own, and backends that are found by folder."""
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import tritonclient.http as httpclient

import harness
from foreign_worker import COUNTER, ECHO, FOLDER, Stream, Worker


def lay(root, **models):
    """Model folders: name=(config or None, names of empty files in version 1)."""
    for name, (config, files) in models.items():
        (root / name / "1").mkdir(parents=True)
        if config is not None:
            (root / name / "config.pbtxt").write_text(config)
        for f in files:
            (root / name / "1" / f).touch()
    return root


def index(server):
    return {e["name"]: e for e in json.loads(server.ask("/v2/repository/index", b"{}")[2])}


@pytest.fixture
def foreign():
    """A worker in Python, as somebody else starts it."""
    workers = []

    def begin(change=""):
        workers.append(Worker(lie=change))
        return ["--local-workers=false", f"--worker=127.0.0.1:{workers[0].port}", "--worker-insecure"]

    yield begin
    for w in workers:
        w.kill()


def count(server, model, n):
    """The answers of a counter over a stream."""
    s = Stream(server)
    try:
        s.count(n, model=model)
        return [int(r.as_numpy("OUT")[0]) for r, _ in s.wait(n)]
    finally:
        s.close()


def test_patch(start, tmp_path, foreign):
    """A config that names the backend and nothing more is completed by its word; what contradicts it is refused, by name and place."""
    models = lay(tmp_path / "models", bare=('backend: "counter"', []), same=(COUNTER, []),
                 part=('backend: "counter" input { name: "N" } parameters { key: "own" value { string_value: "kept" } }', []),
                 batch=('backend: "counter"\nmax_batch_size: 4', []), type=('backend: "counter"\ninput { name: "N" data_type: TYPE_FP32 }', []),
                 unary=('backend: "counter"\nmodel_transaction_policy { decoupled: false }', []))
    server = start(repositories=[models], flags=["--exit-on-error=false", "--strict-readiness=false", *foreign()])
    for name in ("bare", "same", "part"):
        config = server.get(f"/v2/models/{name}/config")
        assert config["model_transaction_policy"]["decoupled"] is True and config["max_batch_size"] == 0
        assert [(t["name"], t["data_type"], t["dims"]) for t in config["input"] + config["output"]] == \
            [("N", "TYPE_INT32", [1]), ("OUT", "TYPE_INT32", [1])]
        assert count(server, name, 3) == [0, 1, 2]
    assert server.get("/v2/models/part/config")["parameters"]["own"]["string_value"] == "kept"
    reasons = {name: e.get("reason", "") for name, e in index(server).items()}
    assert "batch/config.pbtxt:2:1: configuration specified max_batch_size 4, but the backend of model 'batch' specified max_batch_size 0" in reasons["batch"]
    assert "type/config.pbtxt:2:19: unable to load model 'type', configuration expects datatype TYPE_FP32 for input 'N', model provides TYPE_INT32" \
        in reasons["type"]
    assert "unary/config.pbtxt:2:28: model 'unary': the backend specifies decoupled true but the model configuration specifies decoupled false" \
        in reasons["unary"]


def test_model_file(start, tmp_path, foreign):
    """A folder without a config is served by the backend whose model file lies in it."""
    models = lay(tmp_path / "models", silent=(None, ["model.count"]), named=('default_model_filename: "model.count"', ["model.count"]),
                 absent=('backend: "counter"', ["other"]))
    server = start(repositories=[models], flags=["--exit-on-error=false", "--strict-readiness=false", *foreign("format")])
    for name in ("silent", "named"):
        config = server.get(f"/v2/models/{name}/config")
        assert (config["backend"], config["default_model_filename"]) == ("counter", "model.count")
        assert count(server, name, 2) == [0, 1]
    assert "unable to find '1/model.count' for model 'absent': the version folder holds other" in index(server)["absent"]["reason"]


def test_not_found(start, tmp_path):
    """Triton's words for a backend that is nowhere, and for files that nobody runs."""
    tensors = ' input { name: "A" data_type: TYPE_FP32 dims: 1 } output { name: "B" data_type: TYPE_FP32 dims: 1 }'
    models = lay(tmp_path / "models", nowhere=('backend: "x"' + tensors, []), own=('backend: "own"' + tensors, ["libtriton_own.so"]),
                 runtime=('backend: "x" runtime: "libfoo.so"' + tensors, []), lib=('backend: "y"' + tensors, []))
    backends = tmp_path / "backends"
    (backends / "y").mkdir(parents=True)
    (backends / "y" / "libtriton_y.so").touch()
    server = start(repositories=[models], flags=["--exit-on-error=false", "--strict-readiness=false", f"--backend-directory={backends}"])
    reasons = {name: e["reason"] for name, e in index(server).items()}
    assert "unable to find backend library for backend 'x', try specifying runtime on the model configuration. (no worker has backend 'x'" in reasons["nowhere"]
    assert f"unable to find backend library 'libfoo.so' for model 'runtime', searched: 'runtime/1' 'runtime' '{backends}/x' (" in reasons["runtime"]
    assert "lies in the model's folder 'own/1', from where nothing is run without --allow-model-backends" in reasons["own"]
    assert "unable to load shared library of backend 'y': file too short" in reasons["lib"]


def echo(server, value):
    a = httpclient.InferInput("A", [1, 3], "FP32")
    a.set_data_from_numpy(np.full((1, 3), value, np.float32))
    t = httpclient.InferInput("TEXT", [1, 1], "BYTES")
    t.set_data_from_numpy(np.array([["é"]], np.object_))
    with httpclient.InferenceServerClient(server.http, network_timeout=60, connection_timeout=60) as c:
        r = c.infer("echo", [a, t])
    assert (r.as_numpy("A_OUT") == value).all()


def test_program(start, tmp_path):
    """<backend-directory>/<name>/sluice-worker-<name> is started as a worker, started again when it is killed, and ends with the gateway,
    also when that is killed."""
    models = lay(tmp_path / "models", echo=(ECHO, []), count=('backend: "counter"', []))
    folder = tmp_path / "backends" / "echo"
    folder.mkdir(parents=True)
    script = folder / "sluice-worker-echo"
    script.write_text(f'#!/bin/sh\necho $$ >>{tmp_path}/pids\nexec {sys.executable} {FOLDER}/worker.py "$@"\n')
    script.chmod(0o755)
    server = start(repositories=[models], flags=[f"--backend-directory={tmp_path}/backends"])
    pids = lambda: [int(p) for p in (tmp_path / "pids").read_text().split()]  # noqa: E731
    echo(server, 1)
    assert count(server, "count", 3) == [0, 1, 2]
    os.kill(pids()[-1], signal.SIGKILL)
    echo(server, 2)  # waits for the next
    assert len(pids()) == 2
    server.kill()
    harness.wait_for(lambda: not harness.alive(pids()[-1]), 10, "the program ends with the gateway")


def test_program_is_no_program(tmp_path):
    """A file that can't be run is named before anything is served."""
    folder = tmp_path / "backends" / "x"
    folder.mkdir(parents=True)
    (folder / "sluice-worker-x").write_text("#!/bin/sh\n")
    (tmp_path / "models").mkdir()
    ended = subprocess.run([str(harness.BINARY), "serve", f"--model-repository={tmp_path}/models", f"--backend-directory={tmp_path}/backends",
                            "--http-port=0", "--grpc-port=0", "--metrics-port=0"], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and "sluice-worker-x is not executable" in ended.stderr + ended.stdout

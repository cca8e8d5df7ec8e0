"""OpenVINO's and TensorFlow's models from end to end, most of them without a config; nothing is lost with a worker."""
import json
import os
import shutil
import signal
import threading

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

import harness

DATA = harness.ROOT / "workers" / "backend" / "openvino" / "testdata"
# Name of the model -> files by their names in the version folder, config, what SUM is of a and b
MODELS = {
    "addsub": ({"addsub.xml": "model.xml", "addsub.bin": "model.bin"}, None, lambda a, b: a + b),
    "saved": ({"model.savedmodel": "model.savedmodel"}, None, lambda a, b: 2 * (a + b)),
    "graph": ({"model.graphdef": "model.graphdef"}, None, lambda a, b: a + b),
    "two": ({"addsub.xml": "model.xml", "addsub.bin": "model.bin"},
            'backend: "openvino" max_batch_size: 32 dynamic_batching { } instance_group { count: 2 kind: KIND_CPU }', lambda a, b: a + b),
}


@pytest.fixture(scope="module", autouse=True)
def engine():
    harness.engine("openvino")


def lay(root, names=tuple(MODELS)):
    for name in names:
        files, config, _ = MODELS[name]
        (root / name / "1").mkdir(parents=True)
        for source, to in files.items():
            copy = shutil.copytree if (DATA / source).is_dir() else shutil.copy
            copy(DATA / source, root / name / "1" / to)
        if config:
            (root / name / "config.pbtxt").write_text(config)
    return root


def ask(module, client, name, rows, seed=1):
    a, b = np.random.default_rng(seed).random((2, rows, 4), np.float32)
    tensors = []
    for n, data in (("A", a), ("B", b)):
        tensors.append(module.InferInput(n, [rows, 4], "FP32"))
        tensors[-1].set_data_from_numpy(data)
    got = client.infer(name, tensors)
    np.testing.assert_array_equal(got.as_numpy("SUM"), MODELS[name][2](a, b), err_msg=name)
    np.testing.assert_array_equal(got.as_numpy("DIFF"), a - b, err_msg=name)


@pytest.mark.parametrize("protocol,module", [("http", httpclient), ("grpc", grpcclient)])
def test_answers(start, tmp_path, protocol, module):
    server = start(repositories=[lay(tmp_path)])
    with module.InferenceServerClient(getattr(server, protocol)) as client:
        for name in MODELS:
            for rows in (1, 3, 4):
                ask(module, client, name, rows)
    config = server.get("/v2/models/saved/config")
    assert config["platform"] == "tensorflow_savedmodel" and config["backend"] == "tensorflow" and config["max_batch_size"] == 4
    assert server.get("/v2/models/addsub/config")["backend"] == "openvino"


def test_refused(start, tmp_path):
    """What OpenVINO can't do is said by name, and the others are served."""
    lay(tmp_path, ["addsub"])
    (tmp_path / "strings" / "1").mkdir(parents=True)
    shutil.copy(DATA / "strings.graphdef", tmp_path / "strings" / "1" / "model.graphdef")
    (tmp_path / "gpu" / "1").mkdir(parents=True)
    shutil.copy(DATA / "addsub.xml", tmp_path / "gpu" / "1" / "model.xml")
    (tmp_path / "gpu" / "config.pbtxt").write_text('backend: "openvino" parameters { key: "TARGET_DEVICE" value { string_value: "GPU" } }')
    server = start(repositories=[tmp_path], flags=["--exit-on-error=false"], ready=False)
    said = {e["name"]: e for e in json.loads(server.ask("/v2/repository/index", b"{}")[2])}
    assert "StringToHashBucketFast" in said["strings"]["reason"] or "strings, which OpenVINO" in said["strings"]["reason"], said["strings"]
    assert "parameter 'TARGET_DEVICE' is 'GPU'" in said["gpu"]["reason"]
    assert said["addsub"]["state"] == "READY"


def test_worker_killed(start, tmp_path):
    """Callers get every answer while the worker is killed, and killed again."""
    server = start(repositories=[lay(tmp_path, ["two"])])
    done, wrong, stop = [0], [], threading.Event()

    def call(seed):
        with grpcclient.InferenceServerClient(server.grpc) as client:
            while not stop.is_set():
                try:
                    ask(grpcclient, client, "two", 1 + done[0] % 5, seed)
                    done[0] += 1
                except Exception as e:  # noqa: BLE001 every failure is one too many
                    wrong.append(repr(e))
                    return

    callers = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for c in callers:
        c.start()
    try:
        for _ in range(2):
            at = done[0]
            harness.wait_for(lambda: done[0] > at + 30 or wrong, 30, "answers")
            os.kill(server.workers()[0], signal.SIGKILL)
        at = done[0]
        harness.wait_for(lambda: done[0] > at + 30 or wrong, 30, "answers after the worker's end")
    finally:
        stop.set()
        for c in callers:
            c.join(60)
    assert not wrong

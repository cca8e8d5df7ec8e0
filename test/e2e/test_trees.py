"""Models of trees from end to end: the file alone is a model, answers are those of its own library, and nothing is lost with a worker."""
import base64
import json
import os
import re
import shutil
import signal
import subprocess
import threading

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

import harness

DATA = harness.ROOT / "workers" / "backend" / "fil" / "testdata"
CASES = json.loads((DATA / "cases.json").read_text())
TYPES = {"FP32": np.float32, "FP64": np.float64}
PROBA = 'backend: "fil" parameters { key: "predict_proba" value { string_value: "true" } }'
# The file by its default name, and a config where there is one.
MODELS = {"xgb_regression": ("xgboost.json", None), "xgb_multi": ("xgboost.json", PROBA), "xgb_binary": ("xgboost.ubj", PROBA),
          "xgb_legacy": ("xgboost.model", PROBA), "lgb_multi": ("model.txt", PROBA), "skl_extra": ("checkpoint.tl", PROBA)}


@pytest.fixture(scope="module", autouse=True)
def engine():
    harness.engine("treelite")


def array(a):
    return np.frombuffer(base64.b64decode(a["data"]), TYPES[a["datatype"]]).reshape(a["shape"])


def lay(root, names=tuple(MODELS)):
    for name in names:
        file, config = MODELS[name]
        (root / name / "1").mkdir(parents=True)
        shutil.copy(DATA / CASES[name]["file"], root / name / "1" / file)
        if config:
            (root / name / "config.pbtxt").write_text(config)
    return root


def ask(module, client, name):
    rows = array(CASES[name]["input"])
    tensor = module.InferInput("input__0", list(rows.shape), CASES[name]["input"]["datatype"])
    tensor.set_data_from_numpy(rows)
    return client.infer(name, [tensor]).as_numpy("output__0")


@pytest.mark.parametrize("protocol,module", [("http", httpclient), ("grpc", grpcclient)])
def test_answers(start, tmp_path, protocol, module):
    server = start(repositories=[lay(tmp_path)])
    with module.InferenceServerClient(getattr(server, protocol)) as client:
        for name in MODELS:
            np.testing.assert_array_equal(ask(module, client, name), array(CASES[name]["want"]), err_msg=name)


def test_refused(start, tmp_path):
    """A file that is none, one that ends too early, and one in another format than the config says: each by itself, in words."""
    lay(tmp_path, ["xgb_regression"])
    for name, data, config, _ in (broken := [
            ("none", b"\x00" * 64, None, "does not seem to be a model of trees"),
            ("short", (DATA / "multi.txt").read_bytes()[:6000], None, 'the line "end of trees" is missing'),
            ("other", (DATA / "multi.txt").read_bytes(), 'backend: "fil" parameters { key: "model_type" value { string_value: "xgboost_ubj" } }',
             "it can't be read as xgboost_ubj, and seems to be of model_type 'lightgbm'")]):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.txt").write_bytes(data)
        if config:
            (tmp_path / name / "config.pbtxt").write_text(config)
    server = start(repositories=[tmp_path], flags=["--exit-on-error=false"], ready=False)
    said = {e["name"]: e for e in json.loads(server.ask("/v2/repository/index", b"{}")[2])}
    for name, _, _, text in broken:
        assert said[name]["state"] == "UNAVAILABLE" and text in said[name]["reason"], said[name]
        assert str(tmp_path) not in said[name]["reason"]
    assert said["xgb_regression"]["state"] == "READY"


def command(*args):
    done = subprocess.run([harness.BINARY, *args], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def test_engines(tmp_path):
    """The command and a check say which engine there is, and how to get one that is missing."""
    rows = command("engines")
    assert re.search(r"\| fil +\| treelite +\| [0-9.]+ +\| .*libtreelite.so", rows) and "to get it" not in rows, rows
    assert "version 1 with fil (treelite " in command("check", str(lay(tmp_path, ["xgb_regression"])))
    away = f"--engines-directory={tmp_path}/none"
    rows = command("engines", away)
    assert re.search(r"\| fil +\| treelite +\| missing +\| ", rows), rows
    assert "Backend fil has no treelite: treelite's library is not there: " in rows and "to get it: make engine-treelite" in rows
    found = command("check", str(tmp_path), away)
    assert "backend 'fil' of model 'xgb_regression' can't be used: treelite's library is not there: " in found, found
    assert "(make engine-treelite)" in found


def test_worker_killed(start, tmp_path):
    """Callers get every answer while the worker is killed, and killed again."""
    server = start(repositories=[lay(tmp_path, ["xgb_multi"])])
    want = array(CASES["xgb_multi"]["want"])
    done, wrong, stop = [0], [], threading.Event()

    def call():
        with grpcclient.InferenceServerClient(server.grpc) as client:
            while not stop.is_set():
                try:
                    assert np.array_equal(ask(grpcclient, client, "xgb_multi"), want)
                    done[0] += 1
                except Exception as e:  # noqa: BLE001 every failure is one too many
                    wrong.append(repr(e))
                    return

    callers = [threading.Thread(target=call) for _ in range(3)]
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

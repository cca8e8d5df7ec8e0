"""`sluice models` against a real server in explicit mode: tables, JSON, overrides, dependents, exit statuses."""
import json
import signal
import subprocess

import pytest

import harness

CONFIG = """backend: "identity"
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }
"""
ENSEMBLE = """platform: "ensemble"
max_batch_size: 4
input { name: "X" data_type: TYPE_INT32 dims: -1 }
output { name: "Y" data_type: TYPE_INT32 dims: -1 }
ensemble_scheduling { step [ { model_name: "step" model_version: -1
  input_map { key: "INPUT0" value: "X" } output_map { key: "OUTPUT0" value: "Y" } } ] }
"""


@pytest.fixture
def explicit(start, tmp_path):
    for name, config in (("step", CONFIG), ("pipe", ENSEMBLE),
                         ("late", CONFIG + 'parameters { key: "creation_delay_ms" value { string_value: "1200" } }\n'),
                         ("bad", CONFIG.replace("identity", "nothing"))):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(config)
    return start(repositories=[tmp_path], flags=["--model-control-mode=explicit"])


def models(server, *args, status=0):
    """(stdout, stderr) of a command that must end with a status."""
    done = subprocess.run([harness.BINARY, "models", *args, f"--url={server.http}"], capture_output=True, text=True, timeout=30)
    assert done.returncode == status, (args, done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


def states(server):
    return {m["name"]: m.get("state") for m in json.loads(models(server, "list", "--json")[0])}


def test_load_and_unload(explicit):
    out, err = models(explicit, "load", "late", "--interval=50ms")
    assert "| late  | 1       | READY |" in out and "late version 1: LOADING (" in err
    assert states(explicit)["late"] == "READY"
    out, _ = models(explicit, "unload", "late", "--quiet")
    assert "UNAVAILABLE | unloaded" in out and states(explicit)["late"] == "UNAVAILABLE"
    out, _ = models(explicit, "list", "--ready", "--json")
    assert json.loads(out) == []


def test_refusals(explicit, start, tmp_path):
    _, err = models(explicit, "load", "bad", status=1)
    assert "failed to load 'bad'" in err and "nothing" in err
    _, err = models(explicit, "load", "none", status=1)
    assert "failed to load 'none'" in err
    models(explicit, "load", status=2)
    (tmp_path / "empty").mkdir()
    other = start(repositories=[tmp_path / "empty"])
    _, err = models(other, "load", "late", status=1)
    assert "explicit model load / unload is not allowed" in err
    assert other.stop() == 0
    _, err = models(other, "list", status=3)
    assert "no answer from http://" in err


def test_overrides(explicit, tmp_path):
    config, data = tmp_path / "new.pbtxt", tmp_path / "data"
    config.write_text(CONFIG.replace("4", "16"))
    data.write_bytes(b"x" * 100_000)
    models(explicit, "load", "step", f"--config={config}")
    assert explicit.get("/v2/models/step/config")["max_batch_size"] == 16
    out, _ = models(explicit, "load", "new", f"--config={config}", f"--file=5/data={data}")
    assert "| new   | 5       | READY |" in out
    _, err = models(explicit, "load", "new", f"--file=5/data={data}", status=2)
    assert "--file needs --config" in err


def test_dependents(explicit):
    models(explicit, "load", "pipe")
    assert {k: v for k, v in states(explicit).items() if k in ("pipe", "step")} == {"pipe": "READY", "step": "READY"}
    models(explicit, "unload", "pipe", "--dependents")
    harness.wait_for(lambda: states(explicit)["step"] == "UNAVAILABLE", 5, "the step unloaded, too")
    assert states(explicit)["pipe"] == "UNAVAILABLE"


def test_watch(explicit, tmp_path):
    with open(tmp_path / "watched", "w") as out:
        watch = subprocess.Popen([harness.BINARY, "models", "watch", "step", "--json", "--interval=20ms", f"--url={explicit.http}"], stdout=out)
    try:
        told = lambda: [json.loads(line) for line in (tmp_path / "watched").read_text().splitlines()]
        models(explicit, "load", "step")
        harness.wait_for(lambda: told() and told()[-1].get("state") == "READY", 5, "READY told")
        models(explicit, "unload", "step")
        harness.wait_for(lambda: told()[-1].get("state") == "UNAVAILABLE", 5, "UNAVAILABLE told")
        watch.send_signal(signal.SIGINT)
        assert watch.wait(5) == 0
        assert {m["name"] for m in told()} == {"step"}
    finally:
        watch.kill()
        watch.wait(10)
    models(explicit, "load", "step")
    out, _ = models(explicit, "watch", "step", "--until-ready")
    assert out.endswith("step version 1: READY\n")

"""compose.yaml as processes: each service in a root directory like its image's, as its user, with its configuration and checks."""
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import harness
import mesh

sys.path.insert(0, str(harness.ROOT / "test" / "deploy"))

import faults  # noqa: E402
import reading  # noqa: E402


def why_not():
    if os.geteuid():
        return "it takes root to make the services' root directories"
    for program in ("unshare", "mount", "chroot"):
        if not shutil.which(program):
            return f"{program} is not there"
    done = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True, timeout=10)
    return done.stderr.strip() or mesh.missing()


def test_compose(built, tmp_path):
    if reason := why_not():
        pytest.skip(reason)
    faults.Redis(tmp_path).kill()  # skips where there is none
    reading.compose()  # builds what reads it, which can take longer than the rest
    models = tmp_path / "models"
    shutil.copytree(harness.DEMO / "simple", models / "simple")
    for p in [models, *models.parents][:-2]:
        p.chmod(p.stat().st_mode | 0o055)
    done = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable,
                           str(pathlib.Path(__file__).parent / "stack.py"), str(models)], capture_output=True, text=True, timeout=170,
                          env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr[-20000:]
    out = json.loads(done.stdout.splitlines()[-1])
    print(out)
    assert out["right"] == 80 and out["right_after_restart"] == 40
    assert sum(out["each"]) == 80 and min(out["each"]) > 0, "both gateways answer"
    assert out["limits"] == [True, True]
    assert out["lane"] == [True, True], "both share memory with the one worker"
    assert out["stopped"] == {"envoy": 0, "gateway-1": 0, "gateway-2": 0, "worker": 0, "control": 0}
    if "prometheus" not in out["left_out"]:
        assert set(out["targets"].values()) == {"up"} and out["rules"] > 0

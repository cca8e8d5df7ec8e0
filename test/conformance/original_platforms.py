#!/usr/bin/env python3
"""Asks the real server what it answers to platform_cases.py and writes platforms.json.

    original_platforms.py   needs scripts/peer.sh, the test models (make models), and the right to make /opt/ml/models
"""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import original
import platform_cases
import platforms

OPT = pathlib.Path("/opt/ml/models")


def lay(folder):
    """The test models in the original's Python backend, and what platforms.lay makes of them under /opt/ml/models."""
    models = folder / "models"
    original.translate(original.ROOT / ".cache/test-models/models", models)
    platforms.lay(models, OPT)
    base = folder / "base"
    base.mkdir()
    for name in (platform_cases.DEFAULT, "plain"):
        (base / name).symlink_to(models / name)
    return base


def wait_for(port):
    """The platform's front end begins last."""
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"nobody listens on port {port}")


def record(base, log, cases, *flags, **environment):
    """The answers; {"crash": true} where the server ended, which is then started again."""
    port = original.free_ports(1)[0]
    os.environ.update(environment)
    server = original.Original(base, log, "--model-control-mode=explicit", f"--load-model={platform_cases.DEFAULT}", *(f.format(port=port) for f in flags))
    golden = {}
    try:
        for name, case in cases.items():
            if server.process is None or server.process.poll() is not None:
                server.begin()
                wait_for(port)
            stubs = original.harness.descendants(server.process.pid)
            golden[name] = platforms.exchange(f"127.0.0.1:{port}", case, str(OPT))
            if golden[name]["status"] == 0:
                try:
                    server.process.wait(60)
                except subprocess.TimeoutExpired:
                    server.process.kill()
                    server.process.wait()
                golden[name] = {"crash": True}
                for pid in filter(original.harness.alive, stubs):  # its Python processes don't notice
                    os.kill(pid, signal.SIGKILL)
    finally:
        server.end()
    return golden


def main():
    if OPT.exists():
        raise SystemExit(f"{OPT} is there already: it would be written to")
    with tempfile.TemporaryDirectory() as folder, open(pathlib.Path(folder) / "log", "w+") as log:
        try:
            base = lay(pathlib.Path(folder))
            golden = {
                "sagemaker": record(base, log, platform_cases.SAGEMAKER, "--allow-sagemaker=true", "--sagemaker-port={port}", "--model-namespacing=true",
                                    SAGEMAKER_TRITON_DEFAULT_MODEL_NAME=platform_cases.DEFAULT),
                "vertex": record(base, log, platform_cases.VERTEX, "--allow-vertex-ai=true", "--vertex-ai-port={port}",
                                 AIP_PREDICT_ROUTE="/predict", AIP_HEALTH_ROUTE="/health"),
            }
        finally:
            shutil.rmtree(OPT, ignore_errors=True)
            if OPT.parent.exists() and not any(OPT.parent.iterdir()):
                OPT.parent.rmdir()
    path = pathlib.Path(__file__).with_name("platforms.json")
    path.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")
    print(f"{path.name}: {len(golden['sagemaker'])} answers of SageMaker's front end, {len(golden['vertex'])} of Vertex AI's")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Asks the real server what it answers to cases.py and writes golden.json.

    original.py         needs scripts/peer.sh and the test models (make models)

The models are those of the tests with an identity in the original's Python backend: no package brings its own identity.
"""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test"))

import cases  # noqa: E402
import exchange  # noqa: E402
import harness  # noqa: E402

MODEL = '''import json
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.pairs = [(i["name"], o["name"]) for i, o in zip(config["input"], config["output"])]
        self.delay = float(config["parameters"].get("execute_delay_ms", {}).get("string_value", 0)) / 1000

    def execute(self, requests):
        time.sleep(self.delay)
        answers = []
        for r in requests:
            out = [pb_utils.Tensor(o, pb_utils.get_input_tensor_by_name(r, i).as_numpy()) for i, o in self.pairs
                   if o in r.requested_output_names()]
            answers.append(pb_utils.InferenceResponse(out))
        return answers
'''


def free_ports(n):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def translate(source, target):
    for model in [*sorted(source.iterdir()), ROOT / "models/identity_fp32"]:
        config = (model / "config.pbtxt").read_text().replace('backend: "identity"', 'backend: "python"')
        for version in (v for v in model.iterdir() if v.is_dir()):
            folder = target / model.name / version.name
            folder.mkdir(parents=True)
            (folder / "model.py").write_text(MODEL)
        (target / model.name / "config.pbtxt").write_text(config)
        if (model / "labels.txt").exists():
            (target / model.name / "labels.txt").write_text((model / "labels.txt").read_text())


class Original:
    """The real server, started again where a case ended it."""

    def __init__(self, repository, log, *flags):
        self.repository, self.log, self.process, self.flags = repository, log, None, flags
        self.http, self.grpc, self.metrics = (f"127.0.0.1:{p}" for p in free_ports(3))

    def begin(self):
        ports = {k: a.rsplit(":", 1)[1] for k, a in (("HTTP_PORT", self.http), ("GRPC_PORT", self.grpc), ("METRICS_PORT", self.metrics))}
        self.process = subprocess.Popen([ROOT / "scripts/peer.sh", "serve", self.repository, "--exit-on-error=false", *self.flags],
                                        env=dict(os.environ, **ports), stdout=self.log, stderr=subprocess.STDOUT)
        end = time.monotonic() + 120
        while exchange.http(self.http, "/v2/health/live", None, {})["status"] != 200:
            if time.monotonic() > end or self.process.poll() is not None:
                self.log.seek(0)
                sys.exit(self.log.read()[-3000:])
            time.sleep(0.2)

    def ask(self, name, send, address, case):
        if self.process is None or self.process.poll() is not None:
            self.begin()
        stubs = harness.descendants(self.process.pid)
        answer = send(address, *case)
        if answer.get("status") == 0 or answer.get("code") == "UNAVAILABLE":
            try:
                self.process.wait(5)
                print(f"{name}: the original ended with {self.process.returncode}")
                for pid in filter(harness.alive, stubs):  # its Python processes don't notice
                    os.kill(pid, signal.SIGKILL)
                return {"crash": True}
            except subprocess.TimeoutExpired:
                pass
        return answer

    def end(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)


def control(repository, log):
    """The answers to CONTROL, of a server where load calls alone load."""
    server = Original(repository, log, "--model-control-mode=explicit")
    server.begin()
    try:
        return {n: exchange.either((server.http, server.grpc), *c) for n, c in cases.CONTROL.items()}
    finally:
        server.end()


def main():
    with tempfile.TemporaryDirectory() as folder:
        repository = pathlib.Path(folder) / "models"
        translate(ROOT / ".cache/test-models/models", repository)
        with open(pathlib.Path(folder) / "log", "w+") as log:
            server = Original(repository, log)
            try:
                golden = {"http": {n: server.ask(n, exchange.http, server.http, c) for n, c in cases.HTTP.items()},
                          "grpc": {n: server.ask(n, exchange.grpc, server.grpc, c) for n, c in cases.GRPC.items()}}
            finally:
                server.end()
            golden["control"] = control(repository, log)
    path = pathlib.Path(__file__).with_name("golden.json")
    path.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")
    print(f"{path.name}: {len(golden['http'])} answers over HTTP, {len(golden['grpc'])} over gRPC")


if __name__ == "__main__":
    main()

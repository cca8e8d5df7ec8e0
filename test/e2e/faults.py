"""Load and servers for fault tests: bench/loadgen against an address, a model to ask, a redis-server."""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess

import pytest

import harness

LOADGEN = harness.ROOT / "bin" / "loadgen"

CONFIG = '''backend: "identity"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: 16 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 16 }
instance_group { count: 2 }
dynamic_batching { }
'''


def repository(folder, **models):
    """A repository of identity models: name -> what its config has further."""
    for name, more in (models or {"echo": ""}).items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(CONFIG + more)
    return folder


class Load:
    """bench/loadgen on one model, over each of the protocols, from the constructor until end()."""

    def __init__(self, address, model="echo", protocols=("http", "grpc"), concurrency=4):
        if not LOADGEN.exists():
            pytest.skip("bin/loadgen is not there: go build -o bin/loadgen ./bench/loadgen")
        self.processes = {p: subprocess.Popen(
            [str(LOADGEN), "-protocol", p, "-address", address, "-model", model, "-input", "INPUT0", "-shape", "1,16", "-concurrency",
             str(concurrency), "-streams", "2", "-warmup", "0s", "-duration", "600s"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for p in protocols}

    def end(self):
        """{protocol: what it measured}: requests, errors, failures {text: count}, p50_us, p99_us, max_us, seconds."""
        out = {}
        for p, process in self.processes.items():
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        try:
            for p, process in self.processes.items():
                text, complaint = process.communicate(timeout=30)
                assert process.returncode == 0, f"loadgen over {p}: {complaint.decode()}"
                out[p] = json.loads(text)
        finally:
            self.kill()
        return out

    def kill(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait(10)


class Redis:
    """A real redis-server on a free port."""

    def __init__(self, folder):
        places = [os.environ.get("SLUICE_REDIS_SERVER"), harness.ROOT / ".cache/redis/usr/bin/redis-server", shutil.which("redis-server")]
        binary = next((p for p in places if p and pathlib.Path(p).exists()), None)
        if not binary:
            pytest.skip("no redis-server: scripts/setup.sh redis lays one down")
        self.port = harness.free_port()
        self.command = [str(binary), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder), "--maxmemory", "64mb"]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL)
        harness.wait_for(lambda: self.say("PING") == "+PONG", 10, "redis-server answers")

    def say(self, command):
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as s:
                s.sendall(command.encode() + b"\r\n")
                return s.recv(1000).decode().split("\r\n")[0]
        except OSError:
            return ""

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)


def summary(results):
    """One line for a report."""
    return "; ".join(f"{p}: {r['requests']} requests, {r['errors']} failed {r.get('failures', '')}, p50 {r['p50_us'] / 1e3:.1f} ms, "
                     f"p99 {r['p99_us'] / 1e3:.1f} ms, longest {r['max_us'] / 1e3:.0f} ms" for p, r in results.items())

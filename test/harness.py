"""Starts bin/sluice for the Python tests: on ephemeral ports of the loopback address, stopped by its process id alone."""
import functools
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import warnings

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = pathlib.Path(os.environ.get("SLUICE_BINARY") or ROOT / "bin" / "sluice")
DEMO = ROOT / "models"
TEST_MODELS = ROOT / ".cache" / "test-models" / "models"
BROKEN = ROOT / ".cache" / "test-models" / "broken"
ANALYZER = ROOT / ".cache" / "peer" / "perf" / "perf_analyzer"


PATIENCE = 20  # s: what takes no time on an idle machine may take that long on a busy one


def wait_for(condition, seconds, what):
    """Polls until condition() is true, for seconds or PATIENCE, whichever is longer; its value is given back. What must be
    quick is measured by the test."""
    seconds = max(seconds, PATIENCE)
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"after {seconds} s still not: {what}")
        time.sleep(0.01)


def on_time(test):
    """Marks a test of how soon something happens, which a busy machine fails by being late: it has three tries, and pytest's
    summary warns of those that failed. Each has a folder of its own for tmp_path."""
    @functools.wraps(test)
    def run(*args, **kwargs):
        folder = kwargs.get("tmp_path")
        for n in range(3):
            if folder:
                kwargs["tmp_path"] = folder / f"try-{n}"
                kwargs["tmp_path"].mkdir()
            try:
                return test(*args, **kwargs)
            except Exception as e:
                if n == 2:
                    raise
                warnings.warn(f"{test.__name__} is tried again: {str(e)[:300]}")
    return run


HANDED_OUT = set()
# Where free_port looks, FROM-TO: test runs side by side (scripts/pytest.sh) each have their own.
PORTS = range(*map(int, os.environ.get("SLUICE_TEST_PORTS", "20000-32000").split("-")))


def free_port():
    """A TCP port that was free a moment ago, for programs that can't choose one themselves: none that the system gives to
    outgoing connections (Linux: from 32768 on), which would take it in between."""
    while True:
        port = random.choice(PORTS)
        if port in HANDED_OUT:
            continue
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        HANDED_OUT.add(port)
        return port


def missing():
    """Why no server can be started here; "" when one can."""
    for path in (BINARY, ROOT / "bin" / "sluice-worker", DEMO, TEST_MODELS):
        if not path.exists():
            return f"{path.relative_to(ROOT)} is not there: make build models"
    return ""


def engine(name):
    """Skips what needs an engine that is not there: make engine-NAME brings it, and make test all that CI has."""
    folder = pathlib.Path(os.environ.get("SLUICE_ENGINES") or ROOT / ".cache" / "engines") / name
    if not folder.is_dir():
        pytest.skip(f"no engine {name}: make engine-{name}")


def alive(pid):
    """Whether a process is there and no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid):
    """All processes below pid, without it."""
    kids = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as f:
                    kids.setdefault(int(f.read().rsplit(")", 1)[1].split()[1]), []).append(int(entry))
            except OSError:
                pass
    found, todo = [], list(kids.get(pid, []))
    while todo:
        p = todo.pop()
        found.append(p)
        todo += kids.get(p, [])
    return found


class Server:
    """One bin/sluice serve. The constructor returns when its ports are known and, with ready, when it is ready."""

    def __init__(self, repositories=(DEMO, TEST_MODELS), flags=(), ready=True, scheme="http", place=None, program=None):
        """place is a server that has ended, whose ports this one takes; program is run in place of bin/sluice."""
        at = {p: getattr(place, p).rsplit(":", 1)[1] if place else 0 for p in ("http", "grpc", "metrics")}
        self.folder = tempfile.TemporaryDirectory(prefix="sluice-test-")
        folder = pathlib.Path(self.folder.name)
        self.log_path = folder / "log"
        port_file = folder / "ports.json"
        command = [str(program or BINARY), "serve", *(f"--model-repository={r}" for r in repositories), "--http-address=127.0.0.1",
                   "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1", f"--http-port={at['http']}", f"--grpc-port={at['grpc']}",
                   f"--metrics-port={at['metrics']}", f"--port-file={port_file}", *flags]
        self.started = time.monotonic()
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        self.pid = self.process.pid
        try:
            wait_for(lambda: self.over() or port_file.exists() and port_file.stat().st_size, 30, "ports written to --port-file")
            self.fail_if_over()
            ports = json.loads(port_file.read_text())
            self.ports = ports
            self.http, self.grpc, self.metrics = (f"127.0.0.1:{ports[k]}" if ports.get(k) else None for k in ("http", "grpc", "metrics"))
            if ready:
                wait_for(lambda: self.over() or scheme == "http" and self.status("/v2/health/ready") == 200 or scheme == "https", 60, "ready")
                self.fail_if_over()
        except BaseException:
            self.kill()
            raise

    def over(self):
        return self.process.poll() is not None

    def fail_if_over(self):
        if self.over():
            raise AssertionError(f"bin/sluice ended with {self.process.returncode}:\n{self.log()[-1500:]}")

    def log(self):
        return self.log_path.read_text(errors="replace")

    def ask(self, path, body=None, headers=None, method=None, timeout=20):
        """(status, headers, bytes) of one HTTP exchange; body bytes make it a POST."""
        request = urllib.request.Request(f"http://{self.http}{path}", data=body, headers=headers or {}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as r:
                return r.status, r.headers, r.read()
        except urllib.error.HTTPError as e:
            with e:
                return e.code, e.headers, e.read()

    def get(self, path):
        status, _, body = self.ask(path)
        assert status == 200, f"GET {path}: {status} {body[:300]}"
        return json.loads(body)

    def status(self, path):
        try:
            return self.ask(path, timeout=5)[0]
        except OSError:
            return 0

    def metrics_text(self):
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10) as r:
            return r.read().decode()

    def workers(self):
        return [p for p in descendants(self.pid) if b"sluice-worker" in cmdline(p)]

    def stop(self, seconds=40):
        """SIGTERM, then its exit status."""
        if not self.over():
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        finally:
            self.kill()

    def kill(self):
        if not self.over():
            self.process.kill()
            self.process.wait(10)


def cmdline(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            return f.read()
    except OSError:
        return b""

"""Load and servers for fault tests: callers that check their answers, a model to ask, a redis-server."""
import json
import os
import pathlib
import select
import shutil
import socket
import subprocess
import time

import pytest

import harness

CALLERS = harness.ROOT / "bin" / "callers"

CONFIG = '''backend: "identity"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_INT32 dims: 16 }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: 16 }
instance_group { count: 2 }
dynamic_batching { }
'''


def repository(folder, **models):
    """A repository of identity models: name -> what its config has further."""
    for name, more in (models or {"echo": ""}).items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(CONFIG + more)
    return folder


class Callers:
    """bin/callers, which calls over each of the protocols and checks every answer, from the constructor until end(). Models are
    what each adds to its input: {"echo": 0}, or a list of such numbers; sequences is a model that sums up."""

    def __init__(self, address, models=None, protocols=("http", "grpc"), callers=4, sequences="", sequence_callers=0, headers=None,
                 distinct=0, pace="0s"):
        if not CALLERS.exists():
            pytest.skip("bin/callers is not there: go build -o bin/callers ./test/callers")
        spec = ",".join(f"{m}={':'.join(map(str, n if isinstance(n, (list, tuple)) else [n]))}" for m, n in (models or {}).items())
        command = [str(CALLERS), f"-address={address}", f"-protocols={','.join(protocols)}", f"-callers={callers}", f"-models={spec}",
                   f"-sequences={sequences}", f"-sequence-callers={sequence_callers}", f"-distinct={distinct}", f"-pace={pace}"]
        command += [f"-header={k}={v}" for k, v in (headers or {}).items()]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.rest = b""

    def answer(self, seconds):
        """The next line of JSON."""
        end = time.monotonic() + seconds
        while b"\n" not in self.rest:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, end - time.monotonic()))
            part = self.process.stdout.read(1 << 16) if ready else b""
            assert part, f"bin/callers says nothing: {'it ended' if ready else 'too late'}"
            self.rest += part
        line, self.rest = self.rest.split(b"\n", 1)
        return json.loads(line)

    def say(self, line):
        """Has a line obeyed: allow, forbid, killed, count (test/callers)."""
        self.process.stdin.write(line.encode() + b"\n")
        return self.answer(20)

    def count(self):
        """{calls, failed, wrong} so far."""
        return self.say("count")

    def end(self):
        """{kind: what its callers saw}: calls, failed, wrong, failures {text: {count, in_flight}}, wrongs {text: count}, p50_ms,
        p99_ms, longest_ms, seconds. Kinds are protocols, and "PROTOCOL sequences"."""
        try:
            self.process.stdin.write(b"end\n")
            result = self.answer(60)
            assert self.process.wait(10) == 0
            return result
        finally:
            self.kill()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        self.process.stdin.close()
        self.process.stdout.close()


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

    def call(self, *words):
        """One command: bytes, a list of them, a number, None, or an error as its text."""
        words = [w if isinstance(w, bytes) else w.encode() for w in words]
        with socket.create_connection(("127.0.0.1", self.port), 10) as s, s.makefile("rb") as f:
            s.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
            return reply(f)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)


def reply(f):
    """One reply of Redis. Source: RESP2."""
    kind, rest = (line := f.readline().rstrip(b"\r\n"))[:1], line[1:]
    if kind == b"$":
        return None if rest == b"-1" else f.read(int(rest) + 2)[:-2]
    if kind == b"*":
        return [reply(f) for _ in range(int(rest))]
    return int(rest) if kind == b":" else rest if kind == b"+" else rest.decode()


def summary(results):
    """One line for a report."""
    return "; ".join(f"{p}: {r['calls']} calls, {r['failed']} failed {r['failures'] or ''}, {r['wrong']} wrong, p50 {r['p50_ms']:.1f} ms, "
                     f"p99 {r['p99_ms']:.1f} ms, longest {r['longest_ms']:.0f} ms" for p, r in results.items())

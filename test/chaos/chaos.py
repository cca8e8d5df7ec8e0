"""What the scenarios stand on: a mesh with callers whose every answer is checked (bin/callers), faults that are counted, and the
figures of what callers saw.

    @scenario("Redis killed", share=2)
    def killed(t):
        for _ in t.rounds():            # once at least, then until the scenario's time is over
            t.redis.kill()
            t.fault("kills of Redis")
            t.more(500)                 # waits for so many further calls
            t.redis.start()

A scenario runs on a World, a mesh with models, gateways, Redis and control plane, which the next scenario takes over when it wants
the same one and nothing went wrong.
"""
import collections
import contextlib
import dataclasses
import json
import pathlib
import re
import signal
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "test"), str(ROOT / "test" / "e2e")]

import faults  # noqa: E402
import harness  # noqa: E402
import models  # noqa: E402
from mesh import Mesh, missing  # noqa: E402, F401

CALLERS = 6  # of each protocol
SCENARIOS = {}
# Calls whose connection ended, which a killed gateway may do to those that it had in flight.
BROKEN = re.compile(r"^connection:|upstream connect error|connection (termination|failure)|reset|RST_STREAM|^Unavailable")


@dataclasses.dataclass
class Scenario:
    name: str
    run: object
    world: object         # makes the World
    share: float          # of the time, beside the others' shares
    refused: re.Pattern   # failures that are right, however many
    callers: dict         # of faults.Callers, beside those of the world
    short: bool           # it is in make test


def scenario(name, world=None, share=1, refused=None, callers=None, short=True):
    def add(run):
        SCENARIOS[name] = Scenario(name, run, world or World, share, re.compile(refused) if refused else None, callers or {}, short)
        return run
    return add


class World:
    """Two gateways with their cache and limits in one Redis, and a repository that they poll; a control plane of its own."""
    flags = ()
    callers = {}
    topology = {"upstream": {"ejection": "1s"}}
    program = None

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="sluice-chaos-")
        self.path = pathlib.Path(self.folder.name)
        self.redis = self.mesh = None
        try:
            self.repository = models.Repository(self.path / "models")
            self.redis = faults.Redis(self.path)
            self.limits = self.path / "limits.yaml"
            self.limits.write_text(models.LIMITS)
            self.prepare()
            self.mesh = Mesh(gateways=2, repositories=[self.repository.path], topology=self.topology, program=self.program, flags=[
                "--model-control-mode=poll", "--repository-poll-secs=1", "--exit-grace-ms=300",
                f"--cache-config=redis,host=127.0.0.1,port={self.redis.port}", f"--limits-file={self.limits}",
                f"--limits-redis=host=127.0.0.1,port={self.redis.port}", *self.flags])
        except BaseException:
            self.close()
            raise

    def prepare(self):
        """What a kind of world needs before its mesh."""

    def close(self):
        if self.mesh:
            self.mesh.close()
        if self.redis:
            self.redis.kill()


class Trial:
    """One scenario under way."""

    def __init__(self, scenario, world, seconds):
        self.scenario, self.world, self.mesh, self.redis, self.repository = scenario, world, world.mesh, world.redis, world.repository
        self.faults, self.kills, self.extra, self.problems = collections.Counter(), 0, 0, []
        self.options = {"models": models.STEADY, "callers": CALLERS, "distinct": 300, **world.callers, **scenario.callers}
        self.options["models"] = self.repository.numbers(self.options["models"])
        self.began = time.monotonic()
        self.end = self.began + seconds

    def rounds(self):
        """Begins one round at least, and no further one that would not end in time if it took as long as the last one."""
        while True:
            began = time.monotonic()
            yield
            if time.monotonic() + (time.monotonic() - began) / 2 > self.end:
                return

    def fault(self, what, n=1):
        self.faults[what] += n

    def killed(self):
        """Something was killed a moment ago that takes calls with it: each caller may lose one."""
        self.kills += 1
        self.callers.say("killed")

    def more(self, n, seconds=30):
        """Waits for n further calls."""
        least = self.callers.count()["calls"] + n
        harness.wait_for(lambda: self.callers.count()["calls"] >= least, seconds, f"{n} further calls")

    def for_seconds(self, seconds, n=20):
        """Waits for a time, and for some calls in it."""
        least = self.callers.count()["calls"] + n
        time.sleep(seconds)
        harness.wait_for(lambda: self.callers.count()["calls"] >= least, 20, f"{n} further calls")

    def calm(self, n=300):
        """Waits until n calls in a row have not failed: callers have got over the fault."""
        def none_failed():
            before = self.callers.count()["failed"]
            self.more(n)
            return self.callers.count()["failed"] == before
        harness.wait_for(none_failed, 20, f"{n} calls of which none fails")

    def expect(self, right, what):
        """One more call, made by the scenario itself, and whether its answer was right."""
        self.extra += 1
        if not right:
            self.problems.append(what)

    @contextlib.contextmanager
    def frozen(self, process):
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def run(self):
        self.mesh.healthy()
        self.callers = faults.Callers(self.mesh.http, **self.options)
        try:
            self.more(100)
            self.scenario.run(self)
            self.mesh.healthy(30)
            self.more(200)
            return self.row(self.callers.end())
        finally:
            self.callers.kill()

    def row(self, results):
        """The scenario's line, from what the callers saw."""
        row = {"scenario": self.scenario.name, "faults": dict(self.faults), "calls": self.extra, "failed": 0,
               "in_flight": 0, "refused": 0, "wrong": len(self.problems), "longest_ms": 0, "failures": {}, "wrongs": {p: self.problems.count(p) for p in self.problems}}
        for kind, r in results.items():
            row["calls"] += r["calls"]
            row["failed"] += r["failed"]
            row["wrong"] += r["wrong"]
            row["longest_ms"] = max(row["longest_ms"], round(r["longest_ms"]))
            for text, f in r["failures"].items():
                row["failures"][f"{kind}: {text.strip()}"] = f["count"]
                if self.scenario.refused and self.scenario.refused.search(text):
                    row["refused"] += f["count"]
                elif BROKEN.search(text):
                    row["in_flight"] += f["in_flight"]
            for text, n in r["wrongs"].items():
                row["wrongs"][f"{kind}: {text}"] = n
        callers = self.options["callers"] + self.options.get("sequence_callers", 0)
        row["in_flight"] = min(row["in_flight"], self.kills * callers * len(self.options.get("protocols", "12")))
        row["seconds"] = round(time.monotonic() - self.began, 1)
        row["right"] = row["wrong"] == 0 and row["failed"] == row["in_flight"] + row["refused"]
        return row


class Worlds:
    """The world that the last scenario left. Not for two scenarios at a time. .kept is the folder of logs of those that went
    wrong, if any did."""

    def __init__(self):
        self.last = self.kept = None

    def world(self, kind):
        """A world of that kind."""
        if type(self.last) is not kind:
            self.close()
            self.last = kind()
        return self.last

    def run(self, s, seconds):
        """Runs a scenario; what it raises is its own fault, and ends its world."""
        trial = Trial(s, self.world(s.world), seconds)
        try:
            row = trial.run()
        except BaseException:
            self.keep(s)
            self.close()
            raise
        if not row["right"]:
            self.keep(s)
            self.close()
        return row

    def keep(self, s):
        """Keeps the logs of a scenario that went wrong."""
        self.kept = self.kept or pathlib.Path(tempfile.mkdtemp(prefix="sluice-chaos-logs-"))
        for name, text in self.last.mesh.logs().items():
            (self.kept / f"{s.name.replace(' ', '-')}.{name}.log").write_text(text)

    def close(self):
        last, self.last = self.last, None
        if last:
            last.close()


def shares(chosen, seconds):
    """The seconds of each scenario."""
    total = sum(s.share for s in chosen)
    return {s.name: seconds * s.share / total for s in chosen}


def save(rows, path):
    pathlib.Path(path).write_text(json.dumps(rows, indent=1) + "\n")

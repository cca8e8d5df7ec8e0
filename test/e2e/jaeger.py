"""Jaeger on ephemeral ports: OTLP in (.grpc, .http, host:port), traces out (.trace, .find). Ended by its process id."""
import json
import os
import pathlib
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request

import pytest

import harness

JAEGER = pathlib.Path(os.environ.get("SLUICE_JAEGER") or harness.ROOT / ".cache" / "jaeger" / "jaeger")


def missing():
    """Why there is no Jaeger here; "" when there is one."""
    return "" if JAEGER.exists() else f"{JAEGER.name} is not there: make jaeger"


class Span:
    """One span of a trace: .name, .service, .tags, .events (names), .links ([(trace, span)]), .start and .end in us, .children."""

    def __init__(self, raw, processes):
        self.id, self.trace, self.name = raw["spanID"], raw["traceID"], raw["operationName"]
        self.service = processes[raw["processID"]]["serviceName"]
        self.resource = {t["key"]: t["value"] for t in processes[raw["processID"]]["tags"]}
        self.tags = {t["key"]: t["value"] for t in raw["tags"]}
        self.start, self.end = raw["startTime"], raw["startTime"] + raw["duration"]
        self.events = [f["value"] for log in raw["logs"] for f in log["fields"] if f["key"] == "event"]
        below = [r for r in raw["references"] if r["refType"] == "CHILD_OF"]
        self.parent = below[0]["spanID"] if below else None
        self.links = [(r["traceID"], r["spanID"]) for r in raw["references"] if r["refType"] != "CHILD_OF"]
        self.children = []

    def child(self, name):
        """The one child of that name."""
        found = [c for c in self.children if c.name == name]
        assert len(found) == 1, f"{self.name} has {[c.name for c in self.children]}, looking for one {name}"
        return found[0]

    def path(self, *names):
        span = self
        for name in names:
            span = span.child(name)
        return span


class Trace:
    def __init__(self, raw):
        self.id = raw["traceID"]
        self.spans = [Span(s, raw["processes"]) for s in raw["spans"]]
        self.by_id = {s.id: s for s in self.spans}
        for s in self.spans:
            if s.parent in self.by_id:
                self.by_id[s.parent].children.append(s)
        for s in self.spans:
            s.children.sort(key=lambda c: c.start)
        self.roots = [s for s in self.spans if s.parent not in self.by_id]

    def named(self, name):
        found = [s for s in self.spans if s.name == name]
        assert len(found) == 1, f"{name} is there {len(found)} times in {sorted(s.name for s in self.spans)}"
        return found[0]


class Jaeger:
    def __init__(self):
        self.grpc, self.http, self.api = (f"127.0.0.1:{harness.free_port()}" for _ in range(3))
        self.log = tempfile.TemporaryFile("w+")
        self.start()

    def start(self):
        self.process = subprocess.Popen([str(JAEGER), f"--otlp-grpc={self.grpc}", f"--otlp-http={self.http}", f"--query={self.api}"],
                                        stdout=self.log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            harness.wait_for(lambda: self.process.poll() is not None or self.up(), 20, "Jaeger's query API")
            assert self.process.poll() is None, f"Jaeger ended with {self.process.returncode}: {self.text()[-1000:]}"
        except BaseException:
            self.kill()
            raise

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def up(self):
        try:
            self.get("/api/services")
            return True
        except OSError:
            return False

    def get(self, path):
        try:
            with urllib.request.urlopen(f"http://{self.api}{path}", timeout=10) as r:
                return json.load(r)["data"]
        except urllib.error.HTTPError as e:
            with e:
                return None

    def look(self, trace_id, *names, more=lambda trace: True):
        """A trace if it has spans of all these names by now and more() says so."""
        data = self.get(f"/api/traces/{trace_id}")
        if not data:
            return None
        trace = Trace(data[0])
        return trace if {*names} <= {s.name for s in trace.spans} and more(trace) else None

    def trace(self, trace_id, *names, more=lambda trace: True):
        """The same, waited for: spans of one trace come by several ways."""
        return harness.wait_for(lambda: self.look(trace_id, *names, more=more), 15, f"trace {trace_id} with {names}")

    def find(self, service, operation, **tags):
        """The traces with a span of that name and these tags."""
        query = {"service": service, "operation": operation, "lookback": "1h", "limit": 100}
        if tags:
            query["tags"] = json.dumps(tags)
        return [Trace(t) for t in self.get("/api/traces?" + urllib.parse.urlencode(query)) or []]

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)


@pytest.fixture(scope="module")
def jaeger():
    if reason := missing():
        pytest.skip(reason)
    j = Jaeger()
    yield j
    j.kill()

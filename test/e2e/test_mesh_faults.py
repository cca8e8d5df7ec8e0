"""What breaks behind and around Envoy while load runs through it, and what callers see of it, beside the scenarios of test/chaos
(docs/0017-deploy.md has the figures)."""
import http.client
import http.server
import json
import os
import signal
import ssl
import subprocess
import threading

import pytest

import faults
import harness
from certificates import Live, authority, certificate
from mesh import mesh  # noqa: F401  (a fixture)

# Calls in flight at one time, of each protocol.
IN_FLIGHT = 4


@pytest.fixture
def load():
    """Starts load; what a test leaves running is ended."""
    made = []

    def begin(address, **options):
        made.append(faults.Callers(address, {"echo": 0}, callers=IN_FLIGHT, **options))
        return made[-1]

    yield begin
    for l in made:
        l.kill()


@pytest.fixture
def report(record_property):
    """Keeps the figures of a test: they are printed with -s and written down in docs/0017-deploy.md."""
    def tell(what, results):
        text = f"{what}: {faults.summary(results)}"
        record_property("figures", text)
        print("\n" + text)
    return tell


def answered(m):
    """Calls through Envoy that a gateway has answered with success so far."""
    return sum(m.stat(f"cluster.{c}/default.upstream_rq_{k}") for c in ("http", "grpc") for k in ("2xx",))


def more(m, n, seconds=120):
    """Waits for n further calls to be answered."""
    before = answered(m)
    harness.wait_for(lambda: answered(m) >= before + n, seconds, f"{n} more calls answered")


def none_failed(results, least):
    for p, r in results.items():
        assert not r["failed"] and not r["wrong"], f"{p}: {r['failed']} failed, {r['failures']}, {r['wrong']} wrong, {r['wrongs']}"
    assert sum(r["calls"] for r in results.values()) >= least, results


def test_gateway_killed_with_many_callers(mesh, report, tmp_path):
    """kill -9 of one of two gateways, five times, under 48 callers: what it had in flight fails at most. Calls whose
    connection is refused go to the other gateway, however many they are at one time."""
    callers, kills = 24, 5  # of each protocol
    # Health checks are slow, so that Envoy goes on choosing the one that is dead.
    m = mesh(gateways=2, repositories=[faults.repository(tmp_path / "models")],
             topology={"upstream": {"ejection": "1s", "health_interval": "1s"}})
    running = faults.Callers(m.http, {"echo": 0}, callers=callers)
    try:
        more(m, 1000)
        for _ in range(kills):
            m.gateways[0].kill()
            m.settled("http/default", 1)
            m.replace(0)
            m.healthy(30)
            more(m, 500)
        results = running.end()
    finally:
        running.kill()
    report(f"one of two gateways killed {kills} times under {2 * callers} callers", results)
    stats = {f"{p} {k}": m.stat(f"cluster.{p}/default.{k}") for p in ("http", "grpc")
             for k in ("upstream_rq_retry", "upstream_rq_retry_success", "upstream_rq_retry_overflow", "upstream_cx_connect_fail")}
    print(stats)
    for p, r in results.items():
        assert r["failed"] <= kills * callers and not r["wrong"], f"{p}: {r['failures']} {r['wrongs']}"
        assert not any("connection failure" in text for text in r["failures"]), f"{p}: {r['failures']} {stats}"
        assert stats[f"{p} upstream_rq_retry_overflow"] == 0, f"{p}: {r['failures']} {stats}"


@pytest.mark.parametrize("transport", ["sluice", "library"])
def test_gateway_drained(mesh, load, report, tmp_path, transport):
    """SIGTERM to one of two: every call is answered, and it ends with status 0."""
    m = mesh(gateways=2, repositories=[faults.repository(tmp_path / "models")],
             flags=[f"--http-transport={transport}", f"--grpc-transport={transport}"])
    running = load(m.http)
    more(m, 1000)
    assert m.gateways[0].stop() == 0, m.gateways[0].log()[-2000:]
    more(m, 1000)
    results = running.end()
    report(f"gateway drained, transport {transport}", results)
    none_failed(results, 2000)


class Collector(http.server.ThreadingHTTPServer):
    """Takes spans over OTLP/HTTP, or, frozen, takes the call and says nothing."""
    daemon_threads = True

    def __init__(self, port=0):
        self.batches, self.frozen, self.ended = 0, threading.Event(), threading.Event()
        super().__init__(("127.0.0.1", port), CollectorHandler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def port(self):
        return self.server_address[1]

    def end(self):
        self.ended.set()
        self.shutdown()
        self.server_close()


class CollectorHandler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.frozen.is_set():
            self.server.ended.wait(60)
        self.server.batches += 1
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.mark.parametrize("fault", ["gone", "frozen"])
def test_collector_gone(mesh, load, report, tmp_path, fault):
    """Every call is traced, and then nobody takes the spans: they are dropped and counted, and no call fails."""
    collector = Collector()
    try:
        m = mesh(gateways=2, repositories=[faults.repository(tmp_path / "models")],
                 flags=["--trace-config=mode=opentelemetry", "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS",
                        f"--trace-config=opentelemetry,url=http://127.0.0.1:{collector.port}/v1/traces",
                        "--trace-config=opentelemetry,bsp_schedule_delay=100", "--trace-config=opentelemetry,bsp_max_queue_size=256"])
        running = load(m.http)
        harness.wait_for(lambda: collector.batches >= 3, 15, "spans")
        if fault == "frozen":
            collector.frozen.set()
        else:
            collector.end()

        def dropped(g):
            return next(float(l.split()[-1]) for l in g.metrics_text().splitlines() if l.startswith("sluice_traces_dropped_total "))

        before = [dropped(g) for g in m.gateways]
        harness.wait_for(lambda: all(dropped(g) > b + 100 for g, b in zip(m.gateways, before)), 20, "dropped spans are counted")
        more(m, 1000)
        port = collector.port
        if fault == "gone":
            collector = Collector(port)
            harness.wait_for(lambda: collector.batches >= 1, 30, "spans come again")
        results = running.end()
        report(f"collector {fault}", results)
        none_failed(results, 1000)
        for g in m.gateways:
            g.process.send_signal(signal.SIGTERM)
        assert [g.process.wait(40) for g in m.gateways] == [0, 0]
    finally:
        collector.end()


@pytest.mark.parametrize("gateways,picker", [(1, False), (2, False), (2, True)])
def test_all_workers_killed(mesh, load, report, tmp_path, gateways, picker):
    """kill -9 of the workers of all gateways at one time, three times: no gateway is ready meanwhile, but calls wait there, as
    they do when the gateway is asked directly. None fails."""
    topology = {"services": {"picker": {}}} if picker else None
    m = mesh(gateways=gateways, repositories=[faults.repository(tmp_path / "models")], topology=topology)
    running = load(m.http)
    more(m, 1000)
    for _ in range(3):
        old = [g.workers()[0] for g in m.gateways]
        for worker in old:
            os.kill(worker, signal.SIGKILL)
        for g, worker in zip(m.gateways, old):
            harness.wait_for(lambda: set(g.workers()) - {worker} and g.status("/v2/health/ready") == 200, 15, "a worker again")
        more(m, 200)
    more(m, 1000)
    results = running.end()
    report(f"the workers of all {gateways} gateways killed three times{', with a picker' * picker}", results)
    none_failed(results, 2000)


class SecureLoad:
    """Callers over TLS in a closed loop: one that keeps its connection, and one that makes a new one for each call."""

    def __init__(self, address, authority):
        self.host, port = address.split(":")
        self.port = int(port)
        self.context = ssl.create_default_context(cafile=str(authority))
        self.done, self.failed, self.names = {"kept": 0, "new": 0}, [], set()
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(kind,), daemon=True) for kind in self.done]
        for t in self.threads:
            t.start()

    def connect(self):
        c = http.client.HTTPSConnection(self.host, self.port, context=self.context, timeout=20)
        c.connect()
        self.names.add(dict(pair for rdn in c.sock.getpeercert()["subject"] for pair in rdn)["commonName"])
        return c

    def run(self, kind):
        body = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "data": [1] * 16}]})
        connection = None
        while not self.stopping.is_set():
            try:
                if connection is None or kind == "new":
                    connection = self.connect()
                connection.request("POST", "/v2/models/echo/infer", body)
                answer = connection.getresponse()
                text = answer.read()
                if answer.status != 200:
                    self.failed.append((kind, answer.status, text[:200]))
                self.done[kind] += 1
                if kind == "new":
                    connection.close()
            except (OSError, http.client.HTTPException) as e:
                self.failed.append((kind, repr(e)))
                connection = None

    def end(self):
        self.stopping.set()
        for t in self.threads:
            t.join(30)


def test_certificate_rotated(mesh, tmp_path, record_property):
    """Envoy's certificate is replaced three times under load: no call fails, whether its connection is old or new."""
    ca = authority(tmp_path)
    live = Live(tmp_path)
    live.install(certificate(tmp_path, "zero", ca))
    m = mesh(gateways=1, listener={"tls": {"cert": str(live.cert), "key": str(live.key)}}, wait=False,
             repositories=[faults.repository(tmp_path / "models")])
    m.listening()
    m.settled("http/default", 1)
    running = SecureLoad(m.http, ca[0])
    try:
        for name in ("one", "two", "three"):
            live.install(certificate(tmp_path, name, ca))
            harness.wait_for(lambda: name in running.names or running.failed, 15, "the new certificate")
            done = dict(running.done)
            harness.wait_for(lambda: all(running.done[k] > done[k] + 20 for k in done) or running.failed, 15, "calls")
    finally:
        running.end()
    record_property("figures", f"certificate rotated three times: {running.done} calls, {len(running.failed)} failed")
    print(f"\ncertificate rotated three times: {running.done} calls, {len(running.failed)} failed")
    assert not running.failed and running.names == {"zero", "one", "two", "three"}


@pytest.mark.parametrize("manifest", ["pool/envoy.yaml", "sidecar/inference.yaml"])
def test_envoy_drained(mesh, tmp_path, manifest):
    """What Kubernetes runs before it stops an Envoy: callers are told to go elsewhere, and are served meanwhile."""
    yaml = pytest.importorskip("yaml")
    found = [c for d in yaml.safe_load_all((harness.ROOT / "deploy/kubernetes" / manifest).read_text()) if d["kind"] == "Deployment"
             for c in d["spec"]["template"]["spec"]["containers"] if c["name"] == "envoy"]
    command = found[0]["lifecycle"]["preStop"]["exec"]["command"]
    m = mesh(gateways=1, repositories=[faults.repository(tmp_path / "models")])
    host, port = m.http.split(":")
    kept = http.client.HTTPConnection(host, int(port), timeout=10)
    body = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "data": [1] * 16}]})

    def ask():
        kept.request("POST", "/v2/models/echo/infer", body)
        answer = kept.getresponse()
        answer.read()
        assert answer.status == 200
        return answer.getheader("connection")

    assert ask() is None
    script = command[-1].replace("/dev/tcp/127.0.0.1/9901", "/dev/tcp/" + m.admin_address.replace(":", "/")).replace("sleep 25", "true")
    done = subprocess.run([*command[:-1], script], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0 and done.stdout.startswith("HTTP/1.1 200 OK"), done
    told = harness.wait_for(lambda: ask() == "close", 10, "the caller is told")
    assert told

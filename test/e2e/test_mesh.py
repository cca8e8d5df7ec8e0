"""The control plane against a real Envoy: the clients that people have, through the mesh, while routes and gateways change."""
import collections
import http.client
import http.server
import json
import shutil
import signal
import socket
import ssl
import subprocess
import threading

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

import harness
from certificates import Live, authority, certificate, openssl
from mesh import Load, mesh  # noqa: F401  (mesh is a fixture)

CONFIG = """backend: "identity"
max_batch_size: 0
input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }
version_policy { all {} }
instance_group { count: 1 kind: KIND_CPU }
"""
BODY = json.dumps({"inputs": [{"name": "INPUT0", "shape": [4], "datatype": "INT32", "data": [1, 2, 3, 4]}]}).encode()


def which(folder, *versions, name="which", config=CONFIG):
    """A repository with one model that says in each answer which version it is."""
    for v in versions:
        (folder / name / str(v)).mkdir(parents=True, exist_ok=True)
    (folder / name / "config.pbtxt").write_text(config)
    return folder


def answered(status, _, body):
    """What a Load notes of an answer: its model and version."""
    if status != 200:
        return None
    answer = json.loads(body)
    return f"{answer['model_name']}/{answer['model_version']}"


def add_sub(module, count=16):
    """The inputs of `simple` and what it must answer."""
    a, b = np.arange(count, dtype=np.int32).reshape(1, count), np.ones((1, count), np.int32)
    inputs = []
    for name, values in (("INPUT0", a), ("INPUT1", b)):
        tensor = module.InferInput(name, values.shape, "INT32")
        tensor.set_data_from_numpy(values)
        inputs.append(tensor)
    return inputs, a + b


def integers(module, values):
    tensor = module.InferInput("INPUT0", values.shape, "INT32")
    tensor.set_data_from_numpy(values)
    return [tensor]


@pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
def test_clients(mesh, delta):
    """Both clients on Envoy's one port, from an Envoy that speaks either xDS protocol; the control plane is in the gateway or apart."""
    m = mesh(gateways=1, delta=delta, inside=delta)
    inputs, want = add_sub(httpclient)
    with httpclient.InferenceServerClient(m.http) as client:
        assert client.is_server_ready() and client.is_model_ready("simple")
        assert (client.infer("simple", inputs).as_numpy("OUTPUT0") == want).all()
    inputs, want = add_sub(grpcclient)
    with grpcclient.InferenceServerClient(m.grpc) as client:
        assert client.is_server_ready() and client.is_model_ready("simple")
        assert (client.infer("simple", inputs).as_numpy("OUTPUT0") == want).all()
    if m.inside:
        metrics = dict(l.rsplit(" ", 1) for l in m.gateways[0].metrics_text().splitlines() if l.startswith("sluice_xds_"))
        assert metrics == {"sluice_xds_envoys": "1", "sluice_xds_rejected_updates_total": "0", "sluice_xds_held_routes": "0"}, metrics
    # the access log has both, with the gateway that answered
    calls = m.calls(least=2, where=lambda c: c["path"].endswith("/infer") or c["path"].endswith("/ModelInfer"))
    assert {c["protocol"] for c in calls} == {"HTTP/1.1", "HTTP/2"}
    assert {c["gateway"] for c in calls} == {m.gateways[0].http, m.gateways[0].grpc}
    if shutil.which("curl"):  # HTTP/2 without TLS
        got = subprocess.run(["curl", "-s", "--http2-prior-knowledge", "-o", "/dev/null", "-w", "%{http_version} %{http_code}",
                              f"http://{m.http}/v2/health/ready"], capture_output=True, text=True, timeout=20)
        assert got.stdout == "2 200", got


def test_routes(mesh, tmp_path):
    """Canary, alias, version routes and mirror, and Envoy's deadline, in one mesh."""
    repository = which(tmp_path, 1, 2, 3)
    m = mesh(gateways=[{}, {}, {"name": "shadow", "group": "shadow"}], repositories=[repository], topology={"routes": [
        {"model": "which", "targets": [{"version": "1", "weight": 90}, {"version": "2", "weight": 7}, {"version": "3", "weight": 3}],
         "mirror": [{"group": "shadow", "percent": 100}]},
        {"model": "which", "version": "2", "targets": [{"version": "3"}]},
        {"model": "best", "targets": [{"model": "which", "version": "2"}]}]})

    with Load(m, "/v2/models/which/infer", BODY, pick=answered) as load:
        load.wait(3000)
    assert not load.failed
    seen = collections.Counter(load.answers)
    total = sum(seen.values())
    for version, share in (("1", 0.90), ("2", 0.07), ("3", 0.03)):  # within five standard deviations
        off = 5 * (share * (1 - share) / total) ** 0.5
        assert abs(seen[f"which/{version}"] / total - share) < off, seen

    # every call went to the mirror as well, whose answers nobody saw
    shadow = lambda: sum(s["inference_stats"]["success"]["count"]  # noqa: E731
                         for s in m.gateways[2].get("/v2/models/which/stats")["model_stats"])
    harness.wait_for(lambda: shadow() >= total, 5, "mirrored calls")

    # a version that the caller names; versions with a route of their own
    for asked, got in (("1", "which/1"), ("2", "which/3"), ("3", "which/3")):
        status, _, body = m.ask(f"/v2/models/which/versions/{asked}/infer", BODY)
        assert answered(status, None, body) in ((got,) if asked == "2" else ("which/1", "which/2", "which/3")), (asked, body)
    # an alias, over HTTP by its path, over gRPC by its header
    status, _, body = m.ask("/v2/models/best/infer", BODY)
    assert answered(status, None, body) == "which/2"
    assert json.loads(m.ask("/v2/models/best/config")[2])["name"] == "which"
    with grpcclient.InferenceServerClient(m.grpc) as client:
        values = np.arange(4, dtype=np.int32)
        got = client.infer("best", integers(grpcclient, values), headers={"x-sluice-model": "best"})
        assert (got.get_response().model_name, got.get_response().model_version) == ("which", "2")
        with pytest.raises(grpcclient.InferenceServerException, match="unknown model: 'best'"):
            client.infer("best", integers(grpcclient, values))
        # a target is Envoy's word: a caller's own does not get through
        got = client.infer("which", integers(grpcclient, values), headers={"x-sluice-target": "which/1"})
        assert got.get_response().model_version == "3"


def test_alias_switches_when_ready(mesh, tmp_path):
    """An alias moves to a version that the gateways load one after the other, under load, without one failed call."""
    repositories = [which(tmp_path / str(i), 1) for i in range(2)]
    m = mesh(gateways=[{"repositories": [r]} for r in repositories], delta=True, flags=["--model-control-mode=explicit", "--load-model=*"],
             topology={"routes": [{"model": "prod", "targets": [{"model": "which", "version": "1"}]}]})
    with Load(m, "/v2/models/prod/infer", BODY, pick=answered) as load:
        load.wait(100)
        m.change(routes=[{"model": "prod", "targets": [{"model": "which", "version": "2"}]}])
        harness.wait_for(lambda: "a route waits for its target" in m.log("xds"), 5, "the control plane holds the alias")
        for i, gateway in enumerate(m.gateways):
            load.wait(100)
            assert set(load.answers) == {"which/1"}, f"switched with {i} of 2 gateways ready"
            which(repositories[i], 2)
            status, _, body = gateway.ask("/v2/repository/models/which/load", b"{}")
            assert status == 200, body
        harness.wait_for(lambda: load.answers[-1] == "which/2", 10, "the switch")
        load.wait(100)
        assert set(load.answers[-50:]) == {"which/2"}
    assert not load.failed, load.failed[:5]
    assert "a route has switched" in m.log("xds")


def test_gateways_come_and_go(mesh, tmp_path):
    """Drained by the topology, stopped by a signal, joined and taken out, under load, without one failed call."""
    m = mesh(gateways=3, repositories=[which(tmp_path, 1)], delta=True)
    with Load(m, "/v2/models/which/infer", BODY, pick=answered) as load, \
            Load(m, "/v2/models/which/versions/1/infer", BODY, threads=2) as other:
        load.wait(100)
        m.topology["gateways"][0]["draining"] = True
        m.write()
        m.settled("http/default", healthy=2)
        load.wait(100)
        before = m.gateways[0].get("/v2/models/which/stats")["model_stats"][0]["inference_stats"]["success"]["count"]
        load.wait(100)
        assert m.gateways[0].get("/v2/models/which/stats")["model_stats"][0]["inference_stats"]["success"]["count"] == before
        m.topology["gateways"][0]["draining"] = False
        m.add()
        m.write()
        m.settled("http/default", healthy=4)
        m.gateways[1].process.send_signal(signal.SIGTERM)
        assert m.gateways[1].process.wait(20) == 0
        load.wait(100)
        del m.topology["gateways"][1]
        m.write()
        harness.wait_for(lambda: len(m.hosts("http/default")) == 3, 10, "the gateway that has ended to be gone from Envoy")
        load.wait(100)
        other.wait(10)
    assert not load.failed and not other.failed, (load.failed[:5], other.failed[:5])


def test_control_plane_restarts(mesh, tmp_path):
    """Without a control plane Envoy keeps what it had; the next one changes nothing that has not changed."""
    m = mesh(gateways=2, repositories=[which(tmp_path, 1)])
    with Load(m, "/v2/models/which/infer", BODY, threads=2) as load:
        load.wait(50)
        updates = m.stat("listener_manager.lds.update_success")
        m.plane.kill()
        m.plane.wait(10)
        load.wait(100)
        m.start_plane(port=int(m.xds.rsplit(":", 1)[1]))
        harness.wait_for(lambda: m.stat("control_plane.connected_state") == 1, 15, "Envoy at the new control plane")
        load.wait(50)
        m.add()
        m.write()
        m.settled("http/default", healthy=3)
        load.wait(100)
    assert not load.failed, load.failed[:5]
    assert m.stat("listener_manager.listener_modified") == 0 and m.stat("cluster_manager.cluster_modified") == 0, updates
    assert m.stat("listener_manager.lds.update_rejected") + m.stat("cluster_manager.cds.update_rejected") == 0


def test_large_tensors(mesh):
    """Tensors of 4 MB both ways, over both protocols, and of 16 MB, which are more than Envoy holds of a call."""
    m = mesh(gateways=1)
    for megabytes in (4, 16):
        values = np.arange(megabytes << 18, dtype=np.float32).reshape(1, -1)
        for module, at in ((httpclient, m.http), (grpcclient, m.grpc)):
            tensor = module.InferInput("INPUT0", values.shape, "FP32")
            tensor.set_data_from_numpy(values)
            with module.InferenceServerClient(at) as client:
                assert (client.infer("identity_fp32", [tensor]).as_numpy("OUTPUT0") == values).all(), (module, megabytes)


def test_certificates_rotate(mesh, tmp_path):
    """Files that are replaced reach Envoy over the control plane: new connections see the new certificate, old ones go on."""
    ca = authority(tmp_path)
    live = Live(tmp_path)
    live.install(certificate(tmp_path, "first", ca))
    m = mesh(gateways=1, listener={"tls": {"cert": str(live.cert), "key": str(live.key)}}, wait=False, delta=True,
             repositories=[which(tmp_path / "models", 1)])
    m.listening()
    m.settled("http/default", 1)
    context = ssl.create_default_context(cafile=str(ca[0]))
    host, port = m.http.split(":")

    def subject():
        with socket.create_connection((host, int(port)), 10) as raw, context.wrap_socket(raw, server_hostname="localhost") as s:
            return dict(pair for rdn in s.getpeercert()["subject"] for pair in rdn)["commonName"]

    assert subject() == "first"
    kept = http.client.HTTPSConnection(host, int(port), context=context, timeout=20)
    kept.connect()
    live.install(certificate(tmp_path, "second", ca))
    harness.wait_for(lambda: subject() == "second", 10, "the new certificate")
    kept.request("POST", "/v2/models/which/infer", BODY)
    assert kept.getresponse().status == 200
    kept.close()


def test_tls_everywhere(mesh, tmp_path):
    """Callers, gateways and the control plane all show certificates; what Envoy shows gateways is rotated too."""
    ca = authority(tmp_path)
    gateway, plane, envoy, caller = (certificate(tmp_path, name, ca) for name in ("gateway", "plane", "envoy", "caller"))
    live = Live(tmp_path)
    live.install(envoy)
    m = mesh(gateways=1, repositories=[which(tmp_path / "models", 1)], scheme="https", wait=False,
             flags=[f"--http-server-cert={gateway[0]}", f"--http-server-key={gateway[1]}", f"--http-root-cert={ca[0]}", "--http-use-ssl-mutual=true",
                    "--grpc-use-ssl-mutual=true", f"--grpc-server-cert={gateway[0]}", f"--grpc-server-key={gateway[1]}", f"--grpc-root-cert={ca[0]}"],
             listener={"tls": {"cert": str(gateway[0]), "key": str(gateway[1]), "client_ca": str(ca[0])}},
             topology={"upstream": {"tls": {"ca": str(ca[0]), "cert": str(live.cert), "key": str(live.key), "name": "localhost"}}},
             xds_flags=[f"--xds-cert={plane[0]}", f"--xds-key={plane[1]}", f"--xds-root-cert={ca[0]}"],
             bootstrap=[f"--ca={ca[0]}", f"--cert={envoy[0]}", f"--key={envoy[1]}", "--server-name=localhost"])
    m.listening()
    m.settled("http/default", 1)
    m.settled("grpc/default", 1)
    context = ssl.create_default_context(cafile=str(ca[0]))
    context.load_cert_chain(*map(str, caller))
    host, port = m.http.split(":")

    def status():
        connection = http.client.HTTPSConnection("localhost", int(port), context=context, timeout=20)
        connection.request("POST", "/v2/models/which/infer", BODY)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status

    assert status() == 200
    with grpcclient.InferenceServerClient(f"localhost:{port}", ssl=True, root_certificates=str(ca[0]), private_key=str(caller[1]),
                                          certificate_chain=str(caller[0])) as client:
        client.infer("which", integers(grpcclient, np.arange(4, dtype=np.int32)))
    # a caller without a certificate is not let in
    with pytest.raises((ssl.SSLError, ConnectionError)):
        bare = http.client.HTTPSConnection("localhost", int(port), context=ssl.create_default_context(cafile=str(ca[0])), timeout=20)
        bare.request("GET", "/v2/health/ready")
        bare.getresponse()
    assert {c.get("peer") for c in m.calls(least=1, where=lambda c: c.get("status") == 200)} == {"spiffe://mesh/caller"}
    # an Envoy without a certificate is told nothing
    with socket.create_connection(("127.0.0.1", int(m.xds.split(":")[1])), 10) as raw, pytest.raises((ssl.SSLError, ConnectionError)):
        with ssl.create_default_context(cafile=str(ca[0])).wrap_socket(raw, server_hostname="localhost") as s:
            s.recv(1)
    live.install(certificate(tmp_path, "envoy-2", ca))
    serial = openssl("x509", "-in", live.cert, "-noout", "-serial").decode().strip().removeprefix("serial=").lower().lstrip("0")
    harness.wait_for(lambda: serial in m.admin("/certs").lower(), 10, "the new certificate towards gateways")
    assert status() == 200


def test_zones_and_sockets(mesh, tmp_path):
    """Calls stay in Envoy's zone while its gateways are healthy; gateways may listen on Unix sockets alone."""
    repository = which(tmp_path / "models", 1)
    m = mesh(gateways=[{"zone": "here", "flags": [f"--http-unix-socket={tmp_path}/http", f"--grpc-unix-socket={tmp_path}/grpc"]}, {"zone": "there"}],
             repositories=[repository], zone="here", wait=False)
    m.topology["gateways"][0].update(http=f"unix:{tmp_path}/http", grpc=f"unix:{tmp_path}/grpc")
    m.write()
    m.listening()
    for name in ("http", "grpc"):
        harness.wait_for(lambda: m.hosts(f"{name}/default").get(f"{tmp_path}/{name}") == "healthy", 15, f"the {name} socket")
        m.settled(f"{name}/default", 2)

    def counts():
        return [g.get("/v2/models/which/stats")["model_stats"][0]["inference_stats"]["success"]["count"] for g in m.gateways]

    with grpcclient.InferenceServerClient(m.grpc) as client:
        def call():
            assert m.ask("/v2/models/which/infer", BODY)[0] == 200
            client.infer("which", integers(grpcclient, np.arange(4, dtype=np.int32)))

        def local():  # Envoy's workers hear of health a little later than its admin interface
            before = counts()
            call()
            return counts() == [before[0] + 2, before[1]]

        harness.wait_for(local, 5, "both protocols at the gateway of the zone")
        before = counts()
        for _ in range(10):
            call()
        assert counts() == [before[0] + 20, before[1]]
    m.topology["gateways"][0]["draining"] = True
    m.write()
    m.settled("http/default", 1)
    with Load(m, "/v2/models/which/infer", BODY, threads=1) as load:
        load.wait(20)
        harness.wait_for(lambda: counts()[1] > before[1], 5, "calls in the other zone")
    assert not load.failed


class Faulty(http.server.ThreadingHTTPServer):
    """A gateway that is ready and then refuses: behave(headers) gives (status, headers) of an inference."""
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, behave):
        self.behave, self.asked = behave, 0
        super().__init__(("127.0.0.1", 0), FaultyHandler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self):
        return f"127.0.0.1:{self.server_address[1]}"


class FaultyHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, headers=(), body=b"{}"):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer(200)

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/v2/repository/index":
            return self.answer(403)  # what it has is not known
        self.server.asked += 1
        self.answer(*self.server.behave(self.headers))


def test_retries(mesh):
    """Repeated is only what was certainly not begun, never a sequence's call, and only within the budget."""
    barrier = threading.Event()
    barrier.set()
    mood = {"status": 503, "reason": "not_ready"}

    def behave(_):
        barrier.wait(10)
        return mood["status"], [("x-sluice-reason", mood["reason"])] if mood["reason"] else []

    with Faulty(behave) as a, Faulty(behave) as b:
        m = mesh(gateways=0, topology={"gateways": [{"name": "a", "http": a.address}, {"name": "b", "http": b.address}],
                                       "upstream": {"errors_in_row": 1000, "retries": 2, "retry_budget": 5.0, "max_requests": 60}}, wait=False)
        m.listening()
        m.settled("http/default", 2)

        def attempts(headers=None):
            before = a.asked + b.asked
            status, got, _ = m.ask("/v2/models/x/infer", BODY, headers)
            assert status == mood["status"] and int(got["x-envoy-attempt-count"]) == a.asked + b.asked - before
            return a.asked + b.asked - before

        assert attempts() == 3  # not_ready: the other gateway may be
        assert attempts({"x-sluice-sequence": "7"}) == 1
        assert attempts({"x-envoy-max-retries": "1"}) == 3  # that is not for callers to say
        mood["reason"] = "stopping"
        assert attempts() == 3
        for reason in ("queue_full", ""):  # it may have been begun, or others are as full
            mood["reason"] = reason
            assert attempts() == 1
        mood["status"] = 500
        assert attempts({"x-envoy-retry-on": "5xx"}) == 1

        # many at once: those beyond the budget (5 % of max_requests: 3) get the first answer
        mood.update(status=503, reason="not_ready")
        barrier.clear()
        before = a.asked + b.asked
        with Load(m, "/v2/models/x/infer", BODY, threads=24) as load:
            harness.wait_for(lambda: a.asked + b.asked - before >= 24, 10, "24 calls in flight")
            load.stopping.set()
            barrier.set()
        repeated = a.asked + b.asked - before - 24
        assert load.done == 24 and repeated < 24, (load.done, repeated)
        assert m.stat("cluster.http/default.upstream_rq_retry_overflow") > 0


def test_faulty_gateway_is_left_out(mesh, tmp_path):
    """A gateway that answers 503 without a reason, or breaks connections, is ejected; one that refuses with a reason is not."""
    mood = {"headers": [("x-sluice-reason", "queue_full")]}
    with Faulty(lambda _: (503, mood["headers"])) as bad:
        m = mesh(gateways=1, repositories=[which(tmp_path, 1)], topology={"upstream": {"errors_in_row": 3, "ejection": "30s"}}, wait=False)
        m.topology["gateways"].append({"name": "bad", "http": bad.address})
        m.write()
        m.listening()
        m.settled("http/default", 2)
        # Envoy draws the gateway of each call by chance: it is asked until more than errors_in_row were refused in a row.
        harness.wait_for(lambda: m.ask("/v2/models/which/infer", BODY) and bad.asked > 5, 10, "calls to the gateway that refuses")
        assert m.stat("cluster.http/default.outlier_detection.ejections_enforced_total") == 0
        mood["headers"] = []
        harness.wait_for(lambda: m.ask("/v2/models/which/infer", BODY) and
                         m.stat("cluster.http/default.outlier_detection.ejections_active") == 1, 10, "the ejection")
        assert m.stat("cluster.http/default.outlier_detection.ejections_enforced_total") == 1
        harness.wait_for(lambda: {m.ask("/v2/models/which/infer", BODY)[0] for _ in range(20)} == {200}, 3, "calls to the good one alone")


def test_a_model_goes_where_it_is(mesh, tmp_path):
    """A model that some gateways have not is asked for where it is; over gRPC by the header that names it."""
    both = which(tmp_path / "both", 1)
    m = mesh(gateways=[{"repositories": [both]}, {"repositories": [both, which(tmp_path / "one", 1, name="rare")]}])
    harness.wait_for(lambda: m.hosts("http/default/rare"), 5, "the model's own cluster")
    m.settled("http/default/rare", 1)
    m.settled("grpc/default/rare", 1)
    harness.wait_for(lambda: m.ask("/v2/models/rare/infer", BODY)[0] == 200, 5, "the route")
    assert {m.ask("/v2/models/rare/infer", BODY)[0] for _ in range(20)} == {200}
    with grpcclient.InferenceServerClient(m.grpc) as client:
        for _ in range(20):
            client.infer("rare", integers(grpcclient, np.arange(4, dtype=np.int32)), headers={"x-sluice-model": "rare"})


def test_deadlines(mesh):
    """grpc-timeout and x-envoy-upstream-rq-timeout-ms bound a call at Envoy too; without them nothing does."""
    hold = threading.Event()
    with Faulty(lambda _: (hold.wait(10), (200, []))[1]) as slow:
        m = mesh(gateways=0, topology={"gateways": [{"name": "slow", "http": slow.address}]}, wait=False)
        m.listening()
        m.settled("http/default", 1)
        status, headers, _ = m.ask("/v2/models/x/infer", BODY, {"x-envoy-upstream-rq-timeout-ms": "100"})
        assert status == 504
        call = m.calls(least=1)[-1]
        assert call["flags"] == "UT" and call["duration_ms"] < 5000
        hold.set()
        assert m.ask("/v2/models/x/infer", BODY)[0] == 200

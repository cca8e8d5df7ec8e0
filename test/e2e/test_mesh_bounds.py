"""Bounds that Envoy holds by itself (circuit breakers, streams of a connection, grpc-timeout), and a control plane that must show who
it is to gateways with a policy, measured by its own metrics."""
import concurrent.futures
import contextlib
import json
import shutil
import subprocess
import threading
import time
import urllib.request

import grpc
import pytest

import harness
from mesh import Load, mesh  # noqa: F401  a fixture
from test_identity import make_key
from test_mesh import Faulty

BODY = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}).encode()
METHOD = "/inference.GRPCInferenceService/ModelInfer"


def test_circuit_breaker(mesh):  # noqa: F811
    """Of calls that would be more than max_requests at once the rest is refused at once, and said to be by the breaker."""
    hold = threading.Event()
    with Faulty(lambda _: (hold.wait(20), (200, []))[1]) as slow:
        m = mesh(gateways=0, topology={"gateways": [{"name": "slow", "http": slow.address}], "upstream": {"max_requests": 3, "health_interval": "200ms"}},
                 wait=False)
        m.listening()
        m.settled("http/default", 1)
        with concurrent.futures.ThreadPoolExecutor(3) as callers:
            held = [callers.submit(m.ask, "/v2/models/x/infer", BODY) for _ in range(3)]
            try:
                harness.wait_for(lambda: slow.asked >= 3, 10, "three calls in flight")
                status, headers, _ = m.ask("/v2/models/x/infer", BODY)
                assert status == 503 and headers["x-envoy-overloaded"] == "true"
                assert m.calls(least=1, where=lambda c: c["status"] == 503)[-1]["flags"] == "UO"
            finally:
                hold.set()
            assert [h.result()[0] for h in held] == [200] * 3


@pytest.fixture
def held():
    """A gRPC server that answers each call when .go is set, and counts .asked."""
    class Held(grpc.GenericRpcHandler):
        asked, go, lock = 0, threading.Event(), threading.Lock()

        def service(self, details):
            if details.method != METHOD:
                return None

            def answer(request, _):
                with self.lock:
                    self.asked += 1
                self.go.wait(20)
                return b""
            return grpc.unary_unary_rpc_method_handler(answer)

    server, handler = grpc.server(concurrent.futures.ThreadPoolExecutor(8)), Held()
    server.add_generic_rpc_handlers((handler,))
    handler.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield handler
    handler.go.set()
    server.stop(0).wait(10)


@contextlib.contextmanager
def in_front_of(mesh, held, **upstream):  # noqa: F811
    """An Envoy in front of held, for which another HTTP port says that it is ready."""
    with Faulty(lambda _: (200, [])) as ready:
        m = mesh(gateways=0, topology={"gateways": [{"name": "held", "http": ready.address, "grpc": held.address}], "upstream": upstream}, wait=False)
        m.listening()
        m.settled("grpc/default", 1)
        yield m


def test_streams_of_a_connection(mesh, held):  # noqa: F811
    """A caller's connection has max_streams calls at once; the next one waits for its turn and is not refused."""
    with in_front_of(mesh, held, max_streams=2) as m:
        with grpc.insecure_channel(m.grpc) as channel:
            grpc.channel_ready_future(channel).result(20)  # Envoy has said how many
            call = channel.unary_unary(METHOD)
            calls = [call.future(b"", timeout=20) for _ in range(3)]
            harness.wait_for(lambda: held.asked == 2, 10, "two calls in flight")
            assert m.stat("http.mesh.downstream_rq_active") == 2
            held.go.set()
            assert [c.result(20) for c in calls] == [b""] * 3
        assert held.asked == 3


def test_grpc_timeout(mesh, held):  # noqa: F811
    """Envoy ends a call by the deadline that it carries, whatever the gateway does about it."""
    if not shutil.which("curl"):
        pytest.skip("curl is not there")
    with in_front_of(mesh, held) as m:
        got = subprocess.run(["curl", "-s", "-o", "/dev/null", "-D", "-", "--http2-prior-knowledge", "--max-time", "10", "-X", "POST", f"http://{m.http}{METHOD}",
                              "-H", "content-type: application/grpc", "-H", "te: trailers", "-H", "grpc-timeout: 300m", "--data-binary", "@-"], input="\0" * 5,
                             capture_output=True, text=True, timeout=20)
        assert "grpc-status: 4" in got.stdout.lower(), got
        [call] = m.calls(least=1)
        assert 250 <= call["duration_ms"] < 5000, call


def test_token(mesh, tmp_path):  # noqa: F811
    """Gateways with a policy tell a control plane that shows a key their models and their load; its metrics say how it picks."""
    keys, lines = {}, ""
    for who in ("app", "plane"):
        keys[who], line = make_key(who)
        lines += line
    (tmp_path / "keys").write_text(lines)
    (tmp_path / "policy.yaml").write_text("rules:\n- {principals: app, actions: [infer]}\n- {principals: plane, actions: [read]}\n")
    (tmp_path / "id.yaml").write_text("api-keys: keys\n")
    (tmp_path / "token").write_text(keys["plane"] + "\n")
    m = mesh(gateways=2, flags=[f"--identity={tmp_path}/id.yaml", f"--policy={tmp_path}/policy.yaml"], xds_flags=["--metrics-port=0"],
             topology={"services": {"picker": {"timeout": "2s"}}, "upstream": {"token_file": str(tmp_path / "token")}})
    port = json.loads((m.path / "xds.json").read_text())["metrics"]

    def metrics():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as r:
            return dict(l.rsplit(" ", 1) for l in r.read().decode().splitlines() if not l.startswith("#"))

    picks = 'sluice_picker_picks_total{why="load"}'
    harness.wait_for(lambda: m.ask("/v2/models/identity_fp32/infer", BODY, {"X-Api-Key": keys["app"]})[0] == 200 and picks in metrics(), 15,
                     "a call that was picked for by load")
    assert metrics()["sluice_xds_envoys"] == "1" and metrics()['sluice_config_reloads_total{config="topology",result="taken"}'] == "1"
    m.file.write_text("gatways: []")
    harness.wait_for(lambda: metrics()['sluice_config_reloads_total{config="topology",result="refused"}'] == "1", 10, "the refusal")
    assert keys["plane"] not in m.log("xds") + m.admin("/config_dump?include_eds")


def test_topology_that_is_cut(mesh):  # noqa: F811
    """The topology is emptied, written again slowly in place, cut amid a line, and removed while calls run: none fails."""
    m = mesh(gateways=2, xds_flags=["--metrics-port=0"])
    port = json.loads((m.path / "xds.json").read_text())["metrics"]
    text = m.file.read_text()

    def good(value):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as r:
            return f'sluice_config_last_reload_successful{{config="topology"}} {value}' in r.read().decode()
    with Load(m, "/v2/models/identity_fp32/infer", BODY) as load:
        load.wait(100)
        m.file.write_text("")
        harness.wait_for(lambda: good(0), 10, "the empty topology is told of")
        with open(m.file, "w") as f:
            for part in [text[i:i + 16] for i in range(0, len(text), 16)]:
                f.write(part)
                f.flush()
                time.sleep(0.05)
        harness.wait_for(lambda: good(1), 10, "it is whole again")
        m.file.write_text(text[:len(text) // 2])
        harness.wait_for(lambda: good(0), 10, "the half topology is told of")
        m.file.unlink()
        m.write()
        harness.wait_for(lambda: good(1), 10, "it is there again")
        m.file.unlink()
        harness.wait_for(lambda: good(0), 10, "it is gone")
        load.wait(100)
    assert not load.failed and load.done > 500, (load.done, load.failed[:5])
    assert f"{m.file} is cut" in m.log("xds")
    assert "the file says nothing; write 'gateways: []' if that is meant" in m.log("xds")


def test_retry_past_the_picker(mesh):  # noqa: F811
    """A call that the picked gateway certainly did not begin is repeated elsewhere: the picker's word does not bind it to that one."""
    with Faulty(lambda _: (503, [("x-sluice-reason", "not_ready")])) as half:
        m = mesh(gateways=2, topology={"services": {"picker": {"timeout": "2s"}}, "upstream": {"errors_in_row": 1000, "balance": "round_robin"}})
        # it reports the load of an idle gateway, and takes no call
        m.topology["gateways"][1]["http"] = half.address
        m.write()
        m.settled("http/default", 2)
        harness.wait_for(lambda: half.address in m.hosts("http/default"), 10, "the gateway that takes no call")
        m.settled("http/default", 2)

        def attempts():
            status, headers, _ = m.ask("/v2/models/identity_fp32/infer", BODY)
            assert status == 200
            return int(headers["x-envoy-attempt-count"])

        harness.wait_for(lambda: attempts() == 2, 15, "a call that was picked for it")
        # Round robin gives the other one for the second attempt; by chance it might be the same again.
        assert set(taken := [attempts() for _ in range(30)]) <= {1, 2} and 2 in taken, taken
        line = m.calls(least=1, where=lambda c: c.get("attempts") == 2)[-1]
        assert line["picked"] == m.gateways[1].name and line["gateway"] == m.gateways[0].http, line

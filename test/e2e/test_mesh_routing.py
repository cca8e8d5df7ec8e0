"""Calls go where they are done first, where their answers are, and where their sequences live: three gateways behind one Envoy."""
import concurrent.futures
import http.client
import json
import signal
import threading
import time

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import harness
import sequence_models
from mesh import mesh  # noqa: F401
from test_identity import make_key

CONFIG = """backend: "identity"
max_batch_size: {batch}
input {{ name: "INPUT0" data_type: TYPE_INT32 dims: -1 }}
output {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }}
instance_group {{ count: 1 kind: KIND_CPU }}
parameters {{ key: "execute_delay_ms" value {{ string_value: "{delay}" }} }}
{more}
"""


def model(folder, name, delay=0, batch=1, more=""):
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(CONFIG.format(delay=delay, batch=batch, more=more))
    return folder


def body(value=1):
    return json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [value]}]}).encode()


def executed(server, name):
    return server.get(f"/v2/models/{name}/stats")["model_stats"][0]["execution_count"]


def drive(m, name, seconds, clients=12, over="http"):
    """Clients that call as soon as they have their answers. The calls that each gateway executed, and what failed."""
    before = [executed(g, name) for g in m.gateways]
    end = time.monotonic() + seconds
    faults, latencies = [], []

    def over_http():
        c = http.client.HTTPConnection(m.http, timeout=20)
        while time.monotonic() < end:
            at = time.monotonic()
            c.request("POST", f"/v2/models/{name}/infer", body())
            r = c.getresponse()
            text = r.read()
            latencies.append(time.monotonic() - at)
            if r.status != 200:
                faults.append((r.status, text))
        c.close()

    def over_grpc():
        with grpcclient.InferenceServerClient(m.grpc) as c:
            t = tensor()
            while time.monotonic() < end:
                at = time.monotonic()
                try:
                    c.infer(name, [t])
                except InferenceServerException as e:
                    faults.append(e)
                latencies.append(time.monotonic() - at)

    threads = [threading.Thread(target=over_http if over == "http" else over_grpc) for _ in range(clients)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(seconds + 30)
    latencies.sort()
    counts = [executed(g, name) - b for g, b in zip(m.gateways, before)]
    return counts, faults, latencies[len(latencies) * 99 // 100]


def tensor(value=1):
    t = grpcclient.InferInput("INPUT0", [1, 1], "INT32")
    t.set_data_from_numpy(np.array([[value]], np.int32))
    return t


def reported(m):
    """Waits until the picker has heard of all gateways."""
    harness.wait_for(lambda: m.log("xds").count("endpoint picker: a gateway reports its load") >= len(m.gateways), 10, "all gateways report")


@harness.on_time
def test_skew_evens_out(mesh, tmp_path):
    """One gateway is twelve times as slow as the others. Round robin sends it a third of the calls, and all wait for it; the picker
    sends it what it can do in the time, over HTTP and gRPC. With the control plane and its picker gone, calls go on."""
    folders = [model(tmp_path / str(i), "skewed", delay) for i, delay in enumerate((5, 5, 60))]
    m = mesh(gateways=[{"repositories": [f]} for f in folders], topology={"upstream": {"balance": "round_robin", "health_interval": "200ms"}})
    round_robin, faults, slow_p99 = drive(m, "skewed", 2)
    assert not faults and round_robin[2] > 0.2 * sum(round_robin), (round_robin, faults[:3])
    m.change(services={"picker": {}})
    harness.wait_for(lambda: "ext_proc" in m.admin("/config_dump?resource=dynamic_listeners"), 10, "the picker in Envoy")
    reported(m)
    for over in ("http", "grpc"):
        picked, faults, p99 = drive(m, "skewed", 2, over=over)
        print(f"{over}: round robin {round_robin} p99 {slow_p99:.3f} s, picked {picked} p99 {p99:.3f} s")
        assert not faults, faults[:3]
        assert picked[2] < 0.15 * sum(picked) and min(picked[:2]) > 0.3 * sum(picked), picked
        assert sum(picked) > 1.5 * sum(round_robin) and p99 < 0.7 * slow_p99, (picked, round_robin, p99, slow_p99)
    assert m.stat("http.mesh.ext_proc.streams_failed") == 0
    m.plane.kill()
    m.plane.wait(10)
    alone, faults, _ = drive(m, "skewed", 1)
    assert not faults and all(n > 0 for n in alone), (alone, faults[:3])


def test_round_robin_weighted_by_load(mesh, tmp_path):
    """Without a picker Envoy weighs gateways by what they report: out of band on the gRPC port, in answers on that of HTTP."""
    folders = [model(tmp_path / str(i), "skewed", delay) for i, delay in enumerate((5, 5, 60))]
    m = mesh(gateways=[{"repositories": [f]} for f in folders], flags=["--load-report=text"],
             topology={"upstream": {"balance": "load", "health_interval": "200ms"}})
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        both = [pool.submit(drive, m, "skewed", 2, 6, over) for over in ("http", "grpc")]
        [f.result() for f in both]

    def weighed(over):  # without weights the slow one has a third
        counts, faults, _ = drive(m, "skewed", 1, over=over)
        assert not faults, faults[:3]
        return counts[2] < 0.2 * sum(counts)

    for over in ("http", "grpc"):
        harness.wait_for(lambda: weighed(over), 10, f"few calls to the slow gateway over {over}")


def accumulate(client, value, sequence, start=False, end=False, name="oldest", **kwargs):
    module = httpclient if isinstance(client, httpclient.InferenceServerClient) else grpcclient
    t = module.InferInput("VALUE", [1, 1], "INT32")
    t.set_data_from_numpy(np.array([[value]], np.int32))
    result = client.infer(name, [t], sequence_id=sequence, sequence_start=start, sequence_end=end, **kwargs)
    return int(result.as_numpy("SUM")[0, 0])


def sequences(folder):
    state = f"state {{ {sequence_models.STATE} }} max_sequence_idle_microseconds: 60000000"
    sequence_models.write(folder, "oldest", sequence_models.config("oldest { max_candidate_sequences: 32 }", sequence_models.SUM, state, 8),
                          {"1/model.onnx": sequence_models.accumulator()})
    return folder


def begun(server, name="oldest"):
    return server.get(f"/v2/models/{name}/stats")["model_stats"][0]["inference_count"]


def test_sequences_stay(mesh, tmp_path):
    """Sequences keep their state while gateways come, drain and die; those whose gateway died are told so, and may begin anew."""
    folder = sequences(tmp_path / "models")
    m = mesh(gateways=3, repositories=[folder], topology={"services": {"picker": {}}})
    reported(m)
    ids = [*range(1, 13), *(f"job-{i}" for i in range(6))]
    with httpclient.InferenceServerClient(m.http, concurrency=4) as over_http, grpcclient.InferenceServerClient(m.grpc) as over_grpc:
        clients = {s: (over_http, over_grpc)[i % 2] for i, s in enumerate(ids)}
        sums = {}

        def step(value, which=ids, **kwargs):
            for s in which:
                sums[s] = sums.get(s, 0) + value
                assert accumulate(clients[s], value, s, **kwargs) == sums[s], s

        step(5, start=True)
        homes = [begun(g) for g in m.gateways]
        assert all(homes), f"all gateways have some: {homes}"
        step(7)
        assert [begun(g) for g in m.gateways] == [2 * n for n in homes]

        m.add(repositories=[folder])
        m.write()
        m.settled("http/default", 4)
        reported(m)
        step(1)
        m.topology["gateways"][0]["draining"] = True
        m.write()
        harness.wait_for(lambda: "draining" in str(m.admin("/clusters")) or m.hosts("http/default").get(m.gateways[0].http) != "healthy", 5, "it drains")
        new = f"new-{len(ids)}"
        clients[new], sums[new] = over_http, 3
        assert accumulate(over_http, 3, new, start=True) == 3

        victim = m.gateways[1]
        before = begun(victim)
        step(2, ids + [new])
        lost = begun(victim) - before
        assert lost, "the gateway that dies has sequences"
        victim.process.send_signal(signal.SIGKILL)
        victim.process.wait(10)
        told, went_on = [], []
        for s in [*ids, new]:
            def call(s=s):
                return accumulate(clients[s], 1, s)
            try:
                value = call()
            except InferenceServerException as e:
                if "sequence_lost" not in str(e) and "has ended" not in str(e):
                    # the picker learns of a death within moments; until then Envoy says what it sees
                    def ended():
                        with pytest.raises(InferenceServerException) as again:
                            call()
                        return again.value if "has ended" in str(again.value) else None
                    e = harness.wait_for(ended, 5, "the picker's notice")
                assert "has ended: the gateway 'gateway-1' that had it is gone" in str(e), e
                assert e.status() in ("503", "StatusCode.UNAVAILABLE"), e.status()
                told.append(s)
            else:
                assert value == sums[s] + 1, s
                sums[s] = value
                went_on.append(s)
        assert len(told) == lost and went_on, (told, lost)
        for s in told:
            sums[s] = 0
        step(4, told, start=True)
        step(6, [*ids, new], end=True)

    status, headers, text = m.ask("/v2/models/oldest/infer", json.dumps({"parameters": {"sequence_id": 777}, "inputs": [
        {"name": "VALUE", "shape": [1, 1], "datatype": "INT32", "data": [1]}]}).encode())
    assert status == 400 and b"must specify the START flag on the first request" in text, (status, text)


@pytest.mark.parametrize("authz", [True, False], ids=["authz", "keys alone"])
def test_callers_have_their_own_sequences(mesh, tmp_path, authz):
    """Another tenant ends, begins and tries to continue sequences of the same IDs while their gateway drains: they go on where they are."""
    keys, lines = {}, ""
    for who, tenant in (("red", "red"), ("ruby", "red"), ("blue", "blue")):
        keys[who], line = make_key(who, f"--tenant={tenant}")
        lines += line
    (tmp_path / "keys").write_text(lines)
    (tmp_path / "proof").write_text("0123456789abcdef" * 3)
    (tmp_path / "id.yaml").write_text("api-keys: keys\nproxies: {trusted: 127.0.0.1, proof-key: proof}\n")
    flags = [f"--identity={tmp_path}/id.yaml"]
    services = {"picker": {}, **({"authz": {"timeout": "5s"}} if authz else {})}
    m = mesh(gateways=2, repositories=[sequences(tmp_path / "models")], topology={"services": services}, flags=flags,
             xds_flags=flags if authz else [])
    reported(m)
    ids = [*range(1, 13), *(f"job-{i}" for i in range(6))]
    with httpclient.InferenceServerClient(m.http, concurrency=4) as over_http, grpcclient.InferenceServerClient(m.grpc) as over_grpc:

        def step(who, value, **kwargs):
            """What each sequence answers: a sum, or the error's beginning"""
            out = set()
            for i, s in enumerate(ids):
                try:
                    out.add(accumulate((over_http, over_grpc)[i % 2], value, s, headers={"x-api-key": keys[who]}, **kwargs))
                except InferenceServerException as e:
                    out.add(e.message().replace(f" {s} ", " ID "))
            return out

        unknown = {"inference request for sequence ID to model 'oldest' must specify the START flag on the first request of the sequence"}
        assert step("red", 1, start=True) == {1}
        assert all(begun(g) for g in m.gateways), "both gateways have some"
        m.topology["gateways"][0]["draining"] = True
        m.write()
        harness.wait_for(lambda: m.hosts("http/default").get(m.gateways[0].http) != "healthy", 5, "it drains")
        assert step("blue", 50) == unknown
        assert step("blue", 50, end=True) == unknown
        assert step("red", 2) == {3}
        assert step("blue", 100, start=True) == {100}
        assert step("red", 3) == {6}
        assert step("blue", 100, end=True) == {200}
        if authz:  # else the picker knows the keys alone
            assert step("ruby", 4) == {10}, "of the same tenant"
            assert step("red", -4) == {6}
        assert step("blue", 50) == unknown
        assert step("red", 4, end=True) == {10}
        assert step("red", 4) == unknown


@harness.on_time
def test_sequences_of_a_stopping_gateway(mesh, tmp_path):
    """After SIGTERM a gateway's sequences go on through its grace, though Envoy finds it unhealthy; new ones begin elsewhere."""
    m = mesh(gateways=2, repositories=[sequences(tmp_path / "models")], flags=["--exit-grace-ms=2500"], topology={"services": {"picker": {}}})
    reported(m)
    with httpclient.InferenceServerClient(m.http) as c:
        for s in range(1, 13):
            assert accumulate(c, 1, s, start=True) == 1
        lost = begun(m.gateways[0])
        assert 0 < lost < 12
        m.gateways[0].process.send_signal(signal.SIGTERM)
        harness.wait_for(lambda: m.hosts("http/default").get(m.gateways[0].http) != "healthy", 2, "it is not ready")
        for s in range(1, 13):
            assert accumulate(c, 1, s) == 2
        time.sleep(0.3)  # a report, each 100 ms, tells the picker that it takes nothing new
        before = begun(m.gateways[0])
        for s in range(20, 26):
            assert accumulate(c, 1, s, start=True) == 1
        assert begun(m.gateways[0]) == before
        m.gateways[0].process.wait(20)
        harness.wait_for(lambda: "does not report its load" in m.log("xds"), 5, "the picker's notice")
        told = []
        for s in range(1, 13):
            try:
                assert accumulate(c, 1, s) == 3
            except InferenceServerException as e:
                assert "has ended: the gateway 'gateway-0' that had it is gone" in str(e), e
                told.append(s)
        assert len(told) == lost


def test_models_and_answers_are_found(mesh, tmp_path):
    """A model that one gateway has is found over gRPC, where only the message names it. Equal requests go to the gateway that has
    their answer, so three caches do the work of one."""
    repositories = []
    for i in range(3):
        folder = model(tmp_path / str(i), "kept", delay=1, more="response_cache { enable: true }")
        if i == 2:
            model(folder, "rare")
        repositories.append(folder)
    m = mesh(gateways=[{"repositories": [f]} for f in repositories], flags=["--cache-config=local,size=10485760"],
             topology={"services": {"picker": {}}})
    reported(m)
    with grpcclient.InferenceServerClient(m.grpc) as c:
        for _ in range(10):
            assert c.infer("rare", [tensor()]).as_numpy("OUTPUT0")[0, 0] == 1
        big = grpcclient.InferInput("INPUT0", [1, 1_000_000], "INT32")
        big.set_data_from_numpy(np.arange(1_000_000, dtype=np.int32).reshape(1, -1))
        assert c.infer("rare", [big]).as_numpy("OUTPUT0")[0, -1] == 999_999
        for i in range(3):
            for value in range(20):
                assert c.infer("kept", [tensor(value)], request_id=f"r{i}").as_numpy("OUTPUT0")[0, 0] == value
                assert m.ask("/v2/models/kept/infer", body(value))[0] == 200
    counts = [executed(g, "kept") for g in m.gateways]
    # over HTTP the same numbers stand in other bytes, which may have another place
    assert sum(counts) <= 2 * 20 + 4 and sum(n > 0 for n in counts) >= 2, counts


@harness.on_time
def test_canary_is_picked_for(mesh, tmp_path):
    """A route shares calls out between two groups; in each of them the picker chooses."""
    gateways = [{"repositories": [model(tmp_path / str(i), "skewed", delay)], "group": group}
                for i, (delay, group) in enumerate(((5, "default"), (60, "default"), (5, "new"), (60, "new")))]
    m = mesh(gateways=gateways, topology={"services": {"picker": {}}, "upstream": {"balance": "round_robin", "health_interval": "200ms"}, "routes": [
        {"model": "skewed", "targets": [{"weight": 60}, {"weight": 40, "group": "new"}]}]})
    reported(m)
    for over in ("http", "grpc"):
        counts, faults, _ = drive(m, "skewed", 1.5, over=over)
        total = sum(counts)
        assert not faults and counts[1] + counts[3] < 0.15 * total, (over, counts, faults[:3])
        assert 0.25 * total < counts[2] < 0.55 * total, (over, counts)


def test_hash_of_a_header(mesh, tmp_path):
    """Without a picker calls of one x-sluice-sequence stay together by Envoy's ring."""
    folder = model(tmp_path, "plain")
    m = mesh(gateways=3, repositories=[folder], topology={"upstream": {"balance": "hash", "health_interval": "200ms"}})
    homes = set()
    for s in range(12):
        before = [executed(g, "plain") for g in m.gateways]
        for _ in range(4):
            assert m.ask("/v2/models/plain/infer", body(), {"x-sluice-sequence": str(s)})[0] == 200
        counts = [executed(g, "plain") - b for g, b in zip(m.gateways, before)]
        assert sorted(counts) == [0, 0, 4], counts
        homes.add(counts.index(4))
    assert len(homes) > 1


@pytest.mark.parametrize("transport", ["sluice", "library"])
def test_load_is_reported(start, tmp_path, transport):
    """In answers to those who ask as the original is asked, and out of band on the gRPC port."""
    s = start(repositories=[model(tmp_path, "one", delay=30)], flags=[f"--grpc-transport={transport}", f"--http-transport={transport}"])
    status, headers, _ = s.ask("/v2/models/one/infer", body())
    assert status == 200 and "endpoint-load-metrics" not in headers
    enough = threading.Event()

    def busy():
        while not enough.is_set():
            s.ask("/v2/models/one/infer", body())

    threads = [threading.Thread(target=busy) for _ in range(5)]
    for t in threads:
        t.start()
    try:
        harness.wait_for(lambda: "sluice.queue_depth/one/1=" in load(s, "text") and "sluice.queue_depth/one/1=0" not in load(s, "text"), 10,
                         "a queue in the report")
        report = json.loads(load(s, "JSON").removeprefix("JSON "))
        assert report["named_metrics"]["sluice.instances"] == 1 and report["application_utilization"] > 1
    finally:
        enough.set()
        for t in threads:
            t.join(20)
    channel = grpc.insecure_channel(s.grpc)
    with channel:
        stream = channel.unary_stream("/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics", request_serializer=lambda x: x,
                                      response_deserializer=lambda x: x)
        begin, reports = time.monotonic(), []
        for r in stream(b"\x0a\x05\x10\x80\xe1\xeb\x17"):  # report_interval of 50 ms
            reports.append(r)
            if len(reports) == 4:
                break
        assert 0.1 < time.monotonic() - begin < 5
        assert all(b"sluice.service_time/one/1" in r and b"sluice.ready" in r for r in reports)
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", request_serializer=lambda x: x, response_deserializer=lambda x: x)
        message = b"\x0a\x03one\x2a\x13\x0a\x06INPUT0\x12\x05INT32\x1a\x02\x01\x01" + b"\x3a\x04\x01\x00\x00\x00"
        for asked, key, begins in (("text", "endpoint-load-metrics", "TEXT "), ("json", "endpoint-load-metrics", "JSON {"),
                                   ("", None, None)):  # that of bin this client keeps for itself
            _, call = infer.with_call(message, metadata=[("endpoint-load-metrics-format", asked)] if asked else None)
            trailers = {k: v for k, v in call.trailing_metadata() if k.startswith("endpoint-load-metrics")}
            assert not trailers if key is None else trailers[key].startswith(begins), (asked, trailers)


def load(server, form):
    return server.ask("/v2/models/one/infer", body(), {"endpoint-load-metrics-format": form})[1].get("endpoint-load-metrics", "")

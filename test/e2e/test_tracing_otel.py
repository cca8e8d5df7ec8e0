"""Spans, read back from a real Jaeger: from Envoy to the worker, batches with their links, ensembles, errors, sampling, faults."""
import json
import os
import secrets
import threading
import time

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

import harness
from jaeger import Jaeger, jaeger, missing  # noqa: F401
from mesh import mesh  # noqa: F401

GATEWAY, WORKER = "triton-inference-server", "sluice-worker"
SIMPLE = json.dumps({"id": "r1", "inputs": [{"name": n, "shape": [1, 16], "datatype": "INT32", "data": [1] * 16} for n in ("INPUT0", "INPUT1")]}).encode()
ONE = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [1]}]}).encode()
PAIR = """backend: "identity"
max_batch_size: 2
input { name: "INPUT0" data_type: TYPE_INT32 dims: 1 }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: 1 }
instance_group { count: 1 kind: KIND_CPU }
dynamic_batching { preferred_batch_size: 2 max_queue_delay_microseconds: 5000000 }
"""
IMPATIENT = PAIR.rstrip("}\n ") + " default_queue_policy { allow_timeout_override: true default_timeout_microseconds: 1000000 } }\n"
TWICE = """platform: "ensemble"
max_batch_size: 2
input { name: "IN" data_type: TYPE_INT32 dims: 16 }
output { name: "OUT" data_type: TYPE_INT32 dims: 16 }
ensemble_scheduling {
  step { model_name: "simple" model_version: -1 input_map { key: "INPUT0" value: "IN" } input_map { key: "INPUT1" value: "IN" }
    output_map { key: "OUTPUT0" value: "sum" } }
  step { model_name: "simple" model_version: -1 input_map { key: "INPUT0" value: "sum" } input_map { key: "INPUT1" value: "IN" }
    output_map { key: "OUTPUT0" value: "OUT" } }
}
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, config in (("pair", PAIR), ("impatient", IMPATIENT), ("twice", TWICE)):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
    return folder


def flags(collector, *more):
    return [f"--trace-config={c}" for c in ("mode=opentelemetry", "rate=0", f"opentelemetry,url=http://{collector}/v1/traces",
                                            "opentelemetry,bsp_schedule_delay=50", *more)]


def parent(sampled=True):
    """A new trace's ID, and the headers of a caller in it."""
    trace = secrets.token_hex(16)
    return trace, {"traceparent": f"00-{trace}-{secrets.token_hex(8)}-{'01' if sampled else '00'}"}


@pytest.fixture(scope="module")
def traced(built, jaeger, models):  # noqa: F811
    s = harness.Server(repositories=(harness.DEMO, harness.TEST_MODELS, models), flags=flags(jaeger.http, "opentelemetry,baggage=team"))
    yield s
    assert s.stop() == 0, s.log()[-2000:]


LEAF = ("compute", "batch", "infer")


def test_from_envoy_to_the_worker(mesh, jaeger, models):  # noqa: F811
    m = mesh(gateways=1, repositories=(harness.DEMO, models), flags=flags(jaeger.http),
             topology={"services": {"collector": {"address": jaeger.grpc}}})
    trace, headers = parent()
    assert m.ask("/v2/models/simple/infer", SIMPLE, headers)[0] == 200
    client = grpcclient.InferenceServerClient(m.grpc)
    both, over = parent()
    inputs = [grpcclient.InferInput(n, [1, 16], "INT32") for n in ("INPUT0", "INPUT1")]
    for i in inputs:
        i.set_data_from_numpy(np.ones((1, 16), np.int32))
    client.infer("simple", inputs, headers=over)

    for one, protocol in ((trace, "http"), (both, "grpc")):
        t = jaeger.trace(one, "InferRequest", "output", more=lambda t: any(s.service == "envoy" for s in t.spans))
        call = t.named("InferRequest")
        above = t.by_id[call.parent]  # all the way up, every span is Envoy's
        assert above.service == "envoy" and call.service == GATEWAY and call.tags["span.kind"] == "server"
        assert [s.service for s in t.roots] == ["envoy"]
        assert sorted(c.name for c in call.children) == ["admission", "simple"]
        model = call.child("simple")
        assert model.tags["triton.model_name"] == "simple" and model.tags["triton.model_version"] == 1
        assert {c.name for c in model.children} == {"queue", "compute"}
        batch = model.path("compute", "batch")
        assert sorted(c.name for c in batch.children) == ["infer", "input", "output"]
        assert {c.service for c in batch.children} == {WORKER} and batch.child("input").resource["service.instance.id"] == "cpu"
        assert batch.tags["sluice.batch.requests"] == 1 and batch.tags["sluice.instance"] == "simple_0_0"
        for s in t.spans:
            if s.parent in t.by_id and s.service != "envoy":
                up = t.by_id[s.parent]
                assert up.start - 1000 <= s.start and s.end <= up.end + 1000, f"{s.name} is not within {up.name}"
        if protocol == "http":
            assert call.tags["http.response.status_code"] == 200 and call.tags["url.path"] == "/v2/models/simple/infer"
            assert model.tags["triton.request_id"] == "r1"
        else:
            assert call.tags["rpc.method"] == "ModelInfer" and call.tags["rpc.grpc.status_code"] == 0


def test_a_batch_links_its_requests(traced, jaeger):  # noqa: F811
    calls = [parent() for _ in range(2)]
    threads = [threading.Thread(target=traced.ask, args=("/v2/models/pair/infer", ONE, h)) for _, h in calls]
    for t in threads:
        t.start()
    for t in threads:
        t.join(20)
    traces = [jaeger.trace(i, "InferRequest", "compute") for i, _ in calls]
    batches = [s for t in traces for s in t.spans if s.name == "batch"]
    assert len(batches) == 1 and batches[0].tags["sluice.batch.requests"] == 2 and batches[0].tags["sluice.batch.rows"] == 2
    assert sorted(batches[0].links) == sorted((t.id, t.named("pair").id) for t in traces)
    for t in traces:
        assert t.named("compute").links == [(batches[0].trace, batches[0].id)]


def test_steps_of_an_ensemble_nest(traced, jaeger):  # noqa: F811
    trace, headers = parent()
    body = json.dumps({"inputs": [{"name": "IN", "shape": [1, 16], "datatype": "INT32", "data": [1] * 16}]}).encode()
    status, _, answer = traced.ask("/v2/models/twice/infer", body, headers)
    assert status == 200 and json.loads(answer)["outputs"][0]["data"] == [3] * 16
    t = jaeger.trace(trace, "InferRequest", "twice", "output", more=lambda t: len(t.spans) == 17)
    twice = t.named("InferRequest").child("twice")
    assert [c.name for c in twice.children] == ["simple", "simple"]
    for step in twice.children:
        assert step.tags["triton.trace_parent_id"] == twice.tags["triton.trace_id"]
        assert step.path(*LEAF).service == WORKER
    assert twice.children[0].end <= twice.children[1].start + 1000


def test_errors_have_a_status_and_a_reason(traced, jaeger):  # noqa: F811
    trace, headers = parent()
    assert traced.ask("/v2/models/simple/infer", ONE, headers)[0] == 400
    t = jaeger.trace(trace, "InferRequest", "simple")
    for s in (t.named("InferRequest"), t.named("simple")):
        assert s.tags["error"] is True and s.tags["otel.status_code"] == "ERROR" and s.tags["error.type"] == "invalid argument"
        assert "expected 2 inputs" in s.tags["otel.status_description"]
    trace, headers = parent()
    assert traced.ask("/v2/models/nothing/infer", ONE, headers)[0] == 404
    refused = jaeger.trace(trace, "InferRequest", "admission")
    assert refused.named("InferRequest").tags["error.type"] == "not found" and len(refused.spans) == 2

    trace, headers = parent()  # one that times out in the queue: another, for a batch of two, waits for a second row
    late = json.dumps({"parameters": {"timeout": 20000}, "inputs": json.loads(ONE)["inputs"]}).encode()
    status, _, answer = traced.ask("/v2/models/impatient/infer", late, headers)
    assert status == 503, answer
    t = jaeger.trace(trace, "InferRequest", "queue")
    assert t.named("queue").tags["error.type"] == "queue_timeout" and not t.named("queue").children
    assert t.named("queue").end - t.named("queue").start >= 15000, "microseconds"


def test_who_is_sampled(traced, jaeger):  # noqa: F811
    """rate=0: whom the caller sampled, and nobody else; then one by one as settings change at run time."""
    quiet, headers = parent(sampled=False)
    assert traced.ask("/v2/models/simple/infer", SIMPLE, headers)[0] == 200
    own = json.dumps({**json.loads(SIMPLE), "id": "own"}).encode()
    assert traced.ask("/v2/models/simple/infer", own)[0] == 200
    told, headers = parent()
    assert traced.ask("/v2/models/simple/infer", SIMPLE, {**headers, "baggage": "team=blue%20sky,secret=x", "tracestate": "a=b"})[0] == 200
    t = jaeger.trace(told, "InferRequest")
    assert t.named("InferRequest").tags["baggage.team"] == "blue sky" and "secret" not in json.dumps(t.named("InferRequest").tags)
    assert t.named("InferRequest").tags["w3c.tracestate"] == "a=b"
    assert jaeger.get(f"/api/traces/{quiet}") is None
    assert {x.id for x in jaeger.find(GATEWAY, "InferRequest", **{"triton.request_id": "own"})} == set()

    def setting(body, model=""):
        status, _, answer = traced.ask(f"/v2{model}/trace/setting", json.dumps(body).encode())
        assert status == 200, answer
        return json.loads(answer)
    shown = setting({"trace_rate": "2"}, "/models/simple_string")
    assert shown["trace_mode"] == "opentelemetry" and shown["trace_rate"] == "2" and shown["bsp_schedule_delay"] == "50"
    client = grpcclient.InferenceServerClient(traced.grpc)
    inputs = [grpcclient.InferInput(n, [1, 16], "BYTES") for n in ("INPUT0", "INPUT1")]
    for i in inputs:
        i.set_data_from_numpy(np.array([[b"1"] * 16], dtype=object))
    for _ in range(4):  # over gRPC the body alone names the model
        client.infer("simple_string", inputs, request_id="half")
    found = harness.wait_for(lambda: len(f := jaeger.find(GATEWAY, "simple_string", **{"triton.request_id": "half"})) >= 2 and f, 10, "two traces")
    assert len(found) == 2 and all(f.named("InferRequest").parent is None for f in found)
    setting({"trace_rate": None}, "/models/simple_string")
    assert setting({"trace_level": ["OFF"]})["trace_level"] == ["OFF"]
    off, headers = parent()
    assert traced.ask("/v2/models/simple/infer", SIMPLE, headers)[0] == 200
    setting({"trace_level": None})
    seen, headers = parent()
    assert traced.ask("/v2/models/simple/infer", SIMPLE, headers)[0] == 200
    jaeger.trace(seen, "InferRequest")
    assert jaeger.get(f"/api/traces/{off}") is None


def test_loads_have_spans_and_the_cache_is_seen(built, jaeger, start):  # noqa: F811
    """Over OTLP/gRPC, by the standard variables alone."""
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{jaeger.grpc}", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_SERVICE_NAME": "by-env",
           "OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_TRACES_SAMPLER": "parentbased_always_on", "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test"}
    os.environ.update(env)
    try:
        s = start(flags=["--model-control-mode=explicit", "--cache-config=local,size=1048576", "--load-model=mlp"])
    finally:
        for name in env:
            del os.environ[name]
    config = json.dumps({"parameters": {"config": json.dumps({"response_cache": {"enable": True}})}}).encode()
    for path, body in (("load", config), ("unload", b"")):
        status, _, answer = s.ask(f"/v2/repository/models/simple/{path}", body, method="POST")
        assert status == 200, answer
        if path == "load":
            for _ in range(2):
                assert s.ask("/v2/models/simple/infer", SIMPLE)[0] == 200
    load = harness.wait_for(lambda: jaeger.find("by-env", "POST /v2/repository/models/{model}/load"), 10, "the load's span")[0].roots[0]
    assert load.tags["triton.model_name"] == "simple" and load.resource["deployment.environment"] == "test"
    found = harness.wait_for(lambda: len(f := jaeger.find("by-env", "simple")) == 2 and f, 10, "two requests")
    hits = {f.named("simple").tags["sluice.cache"]: f for f in found}
    assert set(hits) == {"miss", "hit"}
    assert {c.name for c in hits["hit"].named("simple").children} == {"cache lookup"}
    assert {c.name for c in hits["miss"].named("simple").children} == {"cache lookup", "queue", "compute"}
    assert s.stop() == 0


def test_the_collector_goes_and_comes(built, start):
    """What can't be exported is lost and counted; requests go on, and spans come again."""
    if reason := missing():
        pytest.skip(reason)
    j = Jaeger()
    try:
        os.environ["OTEL_BSP_EXPORT_TIMEOUT"] = "300"
        try:
            s = start(flags=flags(j.http))
        finally:
            del os.environ["OTEL_BSP_EXPORT_TIMEOUT"]
        trace, headers = parent()
        assert s.ask("/v2/models/simple/infer", SIMPLE, headers)[0] == 200
        j.trace(trace, "InferRequest")
        j.kill()

        def lost():
            assert s.ask("/v2/models/simple/infer", SIMPLE, parent()[1], timeout=5)[0] == 200
            line = [l for l in s.metrics_text().splitlines() if l.startswith("sluice_traces_dropped_total ")]
            return float(line[0].split()[1]) >= 3
        harness.wait_for(lost, 20, "spans are lost and counted")
        j.start()

        def again():
            trace, headers = parent()
            assert s.ask("/v2/models/simple/infer", SIMPLE, headers, timeout=5)[0] == 200
            end = time.monotonic() + 1
            while not j.look(trace, "InferRequest") and time.monotonic() < end:
                time.sleep(0.02)
            return j.look(trace, "InferRequest")
        harness.wait_for(again, 20, "spans come again")
        last, headers = parent()
        assert s.ask("/v2/models/simple/infer", SIMPLE, headers)[0] == 200
        assert s.stop() == 0  # which flushes
        j.trace(last, "InferRequest", "output")
        assert s.log().count("can't be exported") == 1 and s.log().count("exported again") == 1
    finally:
        j.kill()

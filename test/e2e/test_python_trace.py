"""A caller's trace reaches the models that a Python model calls, read back from a real Jaeger; and what models see of their requests."""
import json
import secrets
import shutil

import pytest

import harness
from jaeger import jaeger  # noqa: F401

MODELS = harness.ROOT / "test/python_models"


@pytest.fixture(scope="module")
def traced(built, jaeger, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("models")
    for name in ("evaluate", "one_by_one"):
        shutil.copytree(MODELS / name, folder / name)
    s = harness.Server(repositories=[folder], flags=[f"--trace-config={c}" for c in (
        "mode=opentelemetry", "rate=0", f"opentelemetry,url=http://{jaeger.http}/v1/traces", "opentelemetry,bsp_schedule_delay=50")])
    yield s
    assert s.stop() == 0, s.log()[-2000:]


def evaluate(server, code, headers=None, **members):
    body = {"inputs": [{"name": "CODE", "shape": [1], "datatype": "BYTES", "data": [code]}], **members}
    status, _, answer = server.ask("/v2/models/evaluate/infer", json.dumps(body).encode(), headers)
    assert status == 200, answer
    return json.loads(json.loads(answer)["outputs"][0]["data"][0])


def test_calls_nest(traced, jaeger):  # noqa: F811
    trace = secrets.token_hex(16)
    headers = {"traceparent": f"00-{trace}-{secrets.token_hex(8)}-01"}
    context, answer = evaluate(traced, "result = [request.trace().get_context(), ask('one_by_one', [tensor('IN', [4])])]", headers)
    assert answer == {"OUT": ["int32", [1], [8]]}
    version, seen, span, flags = json.loads(context)["traceparent"].split("-")
    assert (version, seen, flags) == ("00", trace, "01")
    t = jaeger.trace(trace, "InferRequest", "evaluate", "one_by_one", more=lambda t: sum(s.name == "infer" for s in t.spans) == 2)
    assert span in t.by_id, "a model's own spans hang on one of the server's"
    called = t.named("one_by_one")
    above = []
    while called.parent in t.by_id:
        called = t.by_id[called.parent]
        above.append(called.name)
    assert "evaluate" in above and above[-1] == "InferRequest", above
    caller = t.named("evaluate").path("compute", "batch")  # which is executed itself, too
    assert caller.tags["sluice.instance"] == "evaluate_0" and caller.start <= t.named("one_by_one").start
    batch = t.named("one_by_one").path("compute", "batch")
    assert batch.tags["sluice.instance"] == "one_by_one_0" and "infer" in [c.name for c in batch.children]


def test_not_traced(traced):
    assert evaluate(traced, "result = request.trace().get_context()") is None


def test_timeout(traced):
    """As the client gave it, in us."""
    assert evaluate(traced, "result = request.timeout()", parameters={"timeout": 5000000}) == 5000000
    assert evaluate(traced, "result = json.loads(request.parameters() or '{}')", parameters={"timeout": 5000000, "a": 1, "b": "x", "c": True, "d": 1.5}) == {
        "a": 1, "b": "x", "c": True, "d": 1.5}


def test_metrics(traced):
    """Who has a model's answer finds what it has counted, of all kinds."""
    evaluate(traced, """
model.kept['families'] = [pb_utils.MetricFamily(name=f'py_{k}', description=k, kind=getattr(pb_utils.MetricFamily, k.upper()))
                          for k in ('counter', 'gauge', 'histogram')]
c, g, h = model.kept['families']
model.kept['metrics'] = c.Metric(labels={'a': '1'}), g.Metric(labels={'a': '1'}), h.Metric(labels={'a': '1'}, buckets=[1, 2])
""")
    page = metrics(traced)
    assert 'py_counter{a="1"} 0' in page and 'py_gauge{a="1"} 0' in page and "# HELP py_counter counter" in page
    for n in range(3):
        value = evaluate(traced, """
c, g, h = model.kept['metrics']
c.increment(2); g.set(7); g.increment(-1); h.observe(1.5); h.observe(9)
result = [c.value(), g.value()]""")
        assert value == [2 * (n + 1), 6]
        page = metrics(traced)
        assert f'py_counter{{a="1"}} {2 * (n + 1)}' in page and 'py_gauge{a="1"} 6' in page
        assert f'py_histogram_bucket{{a="1",le="2"}} {n + 1}' in page and f'py_histogram_count{{a="1"}} {2 * (n + 1)}' in page


def metrics(server):
    import urllib.request
    with urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=20) as r:
        return r.read().decode()


def test_log_lines(traced):
    word = secrets.token_hex(8)
    evaluate(traced, f"pb_utils.Logger.log_warn('{word}a'); print('{word}b'); import sys; print('{word}c', file=sys.stderr)")
    for end in "abc":
        harness.wait_for(lambda: word + end in traced.log(), 10, f"the line {end}")
    lines = {e: next(line for line in traced.log().splitlines() if word + e in line) for e in "abc"}
    assert lines["a"].startswith("W") and all("model=evaluate" in line for line in lines.values()), lines

"""Python models that call others: every form, through cache, limits and traces; what ends them; model control and metrics."""
import http.client
import json
import secrets
import shutil
import sys
import threading

import pytest

import harness
from jaeger import jaeger  # noqa: F401  a fixture
from test_backends import lay

PYTHON = f"--backend-config=python,python={sys.executable}"
MODELS = harness.ROOT / "test" / "python_models"

ADD = """
import json, os, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for r in requests:
            a = pb_utils.get_input_tensor_by_name(r, "IN").as_numpy()
            said = json.dumps([r.request_id(), r.correlation_id(), r.flags(), r.timeout(), r.parameters(), r.trace().get_context()])
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", a + 1),
                pb_utils.Tensor("SAID", np.array([said.encode()], np.object_))]))
        return answers
"""
ADD_CONFIG = """
backend: "python" input { name: "IN" data_type: TYPE_FP32 dims: -1 }
output { name: "OUT" data_type: TYPE_FP32 dims: -1 } output { name: "SAID" data_type: TYPE_STRING dims: 1 }
"""
WAITS = """
import pathlib, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.folder = pathlib.Path(args["model_repository"])

    def execute(self, requests):
        for r in requests:
            (self.folder / "began").touch()
            while not r.is_cancelled() and not (self.folder / "go").exists():
                time.sleep(0.002)
            if r.is_cancelled():
                (self.folder / "cancelled").touch()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.float32))]) for r in requests]
"""
WAITS_CONFIG = """
backend: "python" input { name: "IN" data_type: TYPE_FP32 dims: -1 } output { name: "OUT" data_type: TYPE_FP32 dims: -1 }
"""
STREAM = """
import pathlib
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.sent = pathlib.Path(args["model_repository"]) / "sent"

    def execute(self, requests):
        for r in requests:
            sender, n = r.get_response_sender(), int(pb_utils.get_input_tensor_by_name(r, "IN").as_numpy()[0])
            for i in range(n):
                if sender.is_cancelled():
                    break
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(20000, i, np.float32))]))
                self.sent.write_text(str(i + 1))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
STREAM_CONFIG = """
backend: "python" model_transaction_policy { decoupled: true }
input { name: "IN" data_type: TYPE_FP32 dims: -1 } output { name: "OUT" data_type: TYPE_FP32 dims: -1 }
"""
ASYNC = """
import asyncio, json
import numpy as np
import triton_python_backend_utils as pb_utils

def request(model, value, **more):
    return pb_utils.InferenceRequest(model_name=model, inputs=[pb_utils.Tensor("IN", np.array([value], np.float32))],
                                     requested_output_names=["OUT"], **more)

class TritonPythonModel:
    async def execute(self, requests):
        found = []
        for r in requests:
            sums = await asyncio.gather(*(request("add", i).async_exec() for i in range(20)))
            got = [float(a.output_tensors()[0].as_numpy()[0]) for a in sums]
            stream = await request("stream", 30).async_exec(decoupled=True)
            async for a in stream:
                if a.output_tensors():
                    got.append(float(a.output_tensors()[0].as_numpy()[7]))
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", np.array([json.dumps(got).encode()], np.object_))]))
        return found
"""
EVALUATE_CONFIG = (MODELS / "evaluate" / "config.pbtxt").read_text()
CALL = """
def add(value=1.0, outputs=("OUT",), model="add", **more):
    return ask(model, [tensor("IN", [value], np.float32)], outputs, **more)
"""


def model(root, name, config, source):
    lay(root, **{name: (config, ["model.py"])})
    (root / name / "1" / "model.py").write_text(source)
    return root / name


def repository(folder):
    """Models to call, and two that run code: `evaluate` with one instance, `pair` with two."""
    root = folder / "models"
    source = (MODELS / "evaluate" / "1" / "model.py").read_text()
    model(root, "evaluate", EVALUATE_CONFIG, source)
    model(root, "pair", EVALUATE_CONFIG + "instance_group { kind: KIND_CPU count: 2 }", source)
    model(root, "add", ADD_CONFIG, ADD)
    model(root, "waits", WAITS_CONFIG, WAITS)
    model(root, "stream", STREAM_CONFIG, STREAM)
    model(root, "async", EVALUATE_CONFIG, ASYNC)
    model(root, "cached", ADD_CONFIG + "response_cache { enable: true }", ADD)
    shutil.copytree(MODELS / "sums", root / "sums")
    return root


@pytest.fixture(scope="module")
def calling(built, tmp_path_factory):
    """A server of these models; .models is their folder."""
    root = repository(tmp_path_factory.mktemp("calls"))
    s = harness.Server(repositories=[root], flags=[PYTHON, "--cache-config=local,size=16777216"])
    s.models = root
    yield s
    assert s.stop() == 0, s.log()[-2000:]


def run(server, code, model="evaluate", headers=None, **members):
    """What a model makes of code: (status, result or error text)."""
    body = {"inputs": [{"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [CALL + code]}], **members}
    status, _, text = server.ask(f"/v2/models/{model}/infer", json.dumps(body).encode(), headers, timeout=120)
    answer = json.loads(text)
    return status, json.loads(answer["outputs"][0]["data"][0]) if status == 200 else answer["error"]


def count(server, model, what="success"):
    return server.get(f"/v2/models/{model}/stats")["model_stats"][0]["inference_stats"][what]["count"]


def test_sync(calling):
    """An answer, what is passed on, and a call that is made again."""
    assert run(calling, "result = add(4)") == (200, {"OUT": ["float32", [1], [5]]})
    said = "result = json.loads(add(1, ['SAID'], request_id='r7', timeout=77000000, parameters={'a': 1, 'b': True, 'c': 'x'})['SAID'][2][0][2:])"
    status, got = run(calling, said)
    assert status == 200 and got[:4] == ["r7", 0, 0, 77000000], got
    assert json.loads(got[4]) == {"a": 1, "b": True, "c": "x"} and got[5] is None
    assert run(calling, "r = pb_utils.InferenceRequest(model_name='add', inputs=[tensor('IN', [1], np.float32)], requested_output_names=['OUT'])\n"
                        "result = [told(r.exec()) for i in range(3)]") == (200, [{"OUT": ["float32", [1], [2]]}] * 3)


def test_parameters(calling):
    """Those that a client sends reach the model with their kinds; the reserved ones do not."""
    status, got = run(calling, "result = [request.parameters(), request.timeout()]",
                      parameters={"b": True, "i": 3, "d": 1.5, "s": "x", "timeout": 5000000, "priority": 0})
    assert status == 200 and json.loads(got[0]) == {"b": True, "i": 3, "d": 1.5, "s": "x"} and got[1] == 5000000


def test_async_and_decoupled(calling):
    """Many calls at a time by coroutines, and the answers of a stream."""
    assert run(calling, "", "async") == (200, [float(i + 1) for i in range(20)] + [float(i) for i in range(30)])
    assert run(calling, "result = [a['OUT'][2][0] for a in add(12, model='stream', decoupled=True) if a]")[1] == list(range(12))


def test_nested_and_sequences(calling):
    """A call whose model calls another one, and sequences of calls."""
    code = "result = add(2)"
    outer = f"result = ask('pair', [pb_utils.Tensor('CODE', np.array([{CALL + code!r}.encode()], np.object_))])['RESULT'][2][0]"
    status, got = run(calling, outer)
    assert status == 200 and json.loads(got[2:]) == {"OUT": ["float32", [1], [3]]}, got
    assert run(calling, "result = [ask('sums', [tensor('IN', [n])], ['SUM'], correlation_id=99, flags=f)['SUM'][2][0]"
                        " for n, f in ((1, 1), (2, 0), (3, 2))]")[0] == 200


def test_errors(calling):
    """The texts that models look for, and their codes."""
    code = "a = pb_utils.InferenceRequest(model_name='{}', inputs=[tensor('IN', [1], np.float32)], requested_output_names=['{}']).exec()\n" \
           "result = [a.error().message(), int(a.error().code())]"
    status, got = run(calling, code.format("nobody", "OUT"))
    assert got[0] == "Model nobody - Error when running inference: Failed for execute the inference request. Model 'nobody' is not ready.", got
    assert "Please use 'decoupled=True'" in run(calling, code.format("stream", "OUT"))[1][0]
    assert "unexpected inference output 'ZZ' for model 'add'" in run(calling, code.format("add", "ZZ"))[1][0]


def test_cycle(calling):
    """What can only wait for itself fails at once, and says why; with an instance left it works."""
    inner = "ask('{}', [pb_utils.Tensor('CODE', np.array(['result = 5'.encode()], np.object_))])"
    status, got = run(calling, "result = " + inner.format("evaluate"))
    assert status == 200 and "all of its instances wait for" in got and "has 1" in got, got
    assert run(calling, "result = " + inner.format("pair"), "pair") == (200, {"RESULT": ["object", [1], ["b:5"]]})


def test_cached(calling):
    """A called model's response cache answers."""
    before = count(calling, "cached", "cache_hit")
    assert run(calling, "result = [add(41, model='cached') for i in range(3)]") == (200, [{"OUT": ["float32", [1], [42]]}] * 3)
    assert count(calling, "cached", "cache_hit") == before + 2


def test_timeout_is_the_callers(calling):
    """What is left of the caller's time is all that a call has."""
    status, got = run(calling, "result = [request.timeout(), json.loads(add(1, ['SAID'])['SAID'][2][0][2:])[3]]", parameters={"timeout": 30000000})
    assert status == 200 and got[0] == 30000000 and 0 < got[1] <= 30000000, got


def test_cancelled(calling):
    """A client that leaves ends what was called for it."""
    folder = calling.models / "waits"
    body = {"inputs": [{"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [CALL + "request.inputs(); result = add(model='waits')"]}]}
    client = http.client.HTTPConnection(calling.http)
    client.request("POST", "/v2/models/evaluate/infer", json.dumps(body))
    harness.wait_for((folder / "began").exists, 60, "the called model")
    client.close()
    harness.wait_for((folder / "cancelled").exists, 60, "the end of the call")
    (folder / "go").touch()
    try:
        assert run(calling, "result = add(model='waits')")[0] == 200
    finally:
        (folder / "go").unlink()


def test_stream_left(calling):
    """The first answers of a long stream come in order, and its model is free again when nobody wants more."""
    code = """
import itertools, pathlib
it = pb_utils.InferenceRequest(model_name='stream', inputs=[tensor('IN', [100000], np.float32)], requested_output_names=['OUT']).exec(decoupled=True)
result = [float(a.output_tensors()[0].as_numpy()[0]) for a in itertools.islice(it, 300)]
it.cancel()
"""
    status, got = run(calling, code)
    assert status == 200 and got == list(range(300)), got
    harness.wait_for(lambda: run(calling, "result = [a['OUT'][2][0] for a in add(1, model='stream', decoupled=True) if a]")[1] == [0], 60, "the stream's model is free")


def test_flood(calling):
    """More calls than may be open are refused one by one; the others are answered, and the model goes on."""
    folder = calling.models / "waits"
    code = """
import asyncio
async def flood():
    made = [pb_utils.InferenceRequest(model_name='waits', inputs=[tensor('IN', [1], np.float32)], requested_output_names=['OUT']).async_exec()
            for i in range(400)]
    refused = 0
    for f in asyncio.as_completed(made):
        a = await f
        if a.has_error():
            refused += 1
            why = a.error().message()
        if refused == 400 - 256:
            open(%r, 'w').close()
    return refused, why
result = asyncio.run(flood())
""" % str(folder / "go")
    try:
        status, got = run(calling, code)
    finally:
        (folder / "go").unlink(missing_ok=True)
    assert status == 200 and got[0] == 144, got
    assert run(calling, "result = add(1)")[0] == 200


def test_model_control(start, tmp_path):
    """In initialize and in execute: load with a config and with files, readiness, unload; refusals by their texts."""
    root = repository(tmp_path)
    source = (MODELS / "evaluate" / "1" / "model.py").read_text().replace(
        "self.kept = {}", "self.kept = {}\n        pb_utils.load_model('add')\n        self.kept['ready'] = pb_utils.is_model_ready('add')")
    model(root, "loads", EVALUATE_CONFIG, source)
    server = start([root], [PYTHON, "--model-control-mode=explicit"])
    assert server.ask("/v2/repository/models/loads/load", b"{}", timeout=120)[0] == 200
    assert run(server, "result = model.kept['ready']", "loads") == (200, True)
    assert run(server, "result = attempt(pb_utils.load_model, 'nobody')", "loads")[1].startswith("TritonModelException: Failed to load model: ")
    assert run(server, "pb_utils.unload_model('add'); result = 1", "loads") == (200, 1)
    harness.wait_for(lambda: run(server, "result = pb_utils.is_model_ready('add')", "loads") == (200, False), 60, "add is unloaded")
    config = json.dumps({"backend": "python", "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}],
                         "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]}]})
    source = ADD.replace("a + 1", "a + 10").replace("pb_utils.Tensor(\"SAID\", np.array([said.encode()], np.object_))", "")
    code = f"pb_utils.load_model('fresh', config={config!r}, files={{'file:1/model.py': {source!r}.encode()}}); result = add(1, model='fresh')"
    assert run(server, code, "loads") == (200, {"OUT": ["float32", [1], [11]]})
    got = run(server, "result = attempt(pb_utils.load_model, 'fresh', files={'file:1/model.py': b'x'})", "loads")[1]
    assert got.startswith("TritonModelException: Failed to load model: "), got


def test_metrics(calling):
    """A metric shows when it is declared; same labels in several instances are one."""
    code = """
family = model.kept['family'] = pb_utils.MetricFamily('calls_made', 'Calls.', pb_utils.MetricFamily.COUNTER)
metric = model.kept['metric'] = family.Metric({'a': 'b'})
"""
    assert run(calling, code)[0] == 200
    line = 'calls_made{a="b"} '
    harness.wait_for(lambda: line + "0" in calling.metrics_text(), 60, "the metric of 0")
    status, before = run(calling, "model.kept['metric'].increment(3); result = model.kept['metric'].value()")
    assert (status, before) == (200, 3)
    harness.wait_for(lambda: line + "3" in calling.metrics_text(), 60, "the metric of 3")
    histogram = """
model.kept['histograms'] = pb_utils.MetricFamily('calls_took', 'Took.', pb_utils.MetricFamily.HISTOGRAM)
model.kept['histograms'].Metric({'a': 'b'}, [1, 2])
"""
    assert run(calling, histogram)[0] == 200
    harness.wait_for(lambda: 'calls_took_bucket{a="b",le="1"} 0' in calling.metrics_text(), 60, "a histogram without observations")
    assert run(calling, "del model.kept['histograms']")[0] == 200
    harness.wait_for(lambda: "calls_took" not in calling.metrics_text(), 60, "the end of a family that was deleted")
    both = """
model.kept['first'] = pb_utils.MetricFamily('calls_twice', 'First.', pb_utils.MetricFamily.GAUGE)
model.kept['second'] = pb_utils.MetricFamily('calls_twice', 'Second.', pb_utils.MetricFamily.GAUGE)
model.kept['second'].Metric()
del model.kept['first']
"""
    assert run(calling, both)[0] == 200
    harness.wait_for(lambda: "calls_twice 0" in calling.metrics_text(), 60, "a metric of the second family of a name")
    assert "# HELP calls_twice First." in calling.metrics_text()
    run(calling, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    harness.wait_for(lambda: "calls_made" not in calling.metrics_text(), 60, "the end of the metrics of a process that died")


def test_trace(start, tmp_path, jaeger):  # noqa: F811
    """One trace from the caller's span to the batch of the called model, whose code knows it."""
    root = repository(tmp_path)
    server = start([root], [PYTHON, *(f"--trace-config={c}" for c in (
        "mode=opentelemetry", "rate=0", f"opentelemetry,url=http://{jaeger.http}/v1/traces", "opentelemetry,bsp_schedule_delay=50"))])
    trace, above = secrets.token_hex(16), secrets.token_hex(8)
    code = "result = [request.trace().get_context(), json.loads(add(1, ['SAID'], trace=request.trace())['SAID'][2][0][2:])[5]]"
    status, got = run(server, code, headers={"traceparent": f"00-{trace}-{above}-01", "tracestate": 'a=b,c="d'})
    assert status == 200
    assert [json.loads(g)["tracestate"] for g in got] == ['a=b,c="d'] * 2
    own, called = (json.loads(g)["traceparent"].split("-") for g in got)
    assert own[1] == called[1] == trace
    t = jaeger.trace(trace, "InferRequest", "add", more=lambda t: len([s for s in t.spans if s.name == "batch"]) == 2
                     and len([s for s in t.spans if s.name == "output"]) == 2)
    caller = t.named("InferRequest").child("evaluate")
    assert sorted(c.name for c in caller.children) == ["add", "compute", "queue"]
    assert t.named("InferRequest").parent == above
    seen, at = [], t.named("add").child("compute").child("batch")
    while at is not None:
        seen.append(at.id)
        at = t.by_id.get(at.parent)
    assert caller.id in seen, "the called model's batch is below the caller's span"
    assert {own[2], called[2]} <= {s.id for s in t.spans}, "what a model adds to its trace is below one of these spans"

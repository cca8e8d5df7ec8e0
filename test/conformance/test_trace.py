"""The trace extension: settings through tritonclient on both protocols, and what stands in the files."""
import collections
import json
import os
import signal
import time

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import harness

MODULES = {"http": httpclient, "grpc": grpcclient}
DEFAULTS = {"trace_level": ["OFF"], "trace_rate": "1000", "trace_count": "-1", "log_frequency": "0", "trace_mode": "triton"}
CORE = ["REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END",
        "INFER_RESPONSE_COMPLETE", "REQUEST_END"]
FRONT = {"http": (["HTTP_RECV_START", "HTTP_RECV_END"], ["HTTP_SEND_START", "HTTP_SEND_END"]),
         "grpc": (["GRPC_WAITREAD_START", "GRPC_WAITREAD_END"], ["GRPC_SEND_START", "GRPC_SEND_END"])}


class Caller:
    """A client of one protocol whose settings are plain dictionaries."""

    def __init__(self, server, protocol):
        self.protocol, self.module = protocol, MODULES[protocol]
        self.client = self.module.InferenceServerClient(getattr(server, protocol))

    def infer(self, model="identity_int32", dtype=np.int32, datatype="INT32", values=(1, 2, 3, 4), request_id=""):
        array = np.array([values], dtype)
        tensor = self.module.InferInput("INPUT0", list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        return self.client.infer(model, [tensor], request_id=request_id)

    def settings(self, model=None):
        return self.plain(self.client.get_trace_settings(model or None))

    def update(self, settings, model=None):
        return self.plain(self.client.update_trace_settings(model or None, settings))

    def plain(self, got):
        if self.protocol == "grpc":
            got = {k: list(v.value) if k == "trace_level" else v.value[0] for k, v in got.settings.items()}
        return got


@pytest.fixture(params=["http", "grpc"])
def protocol(request):
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def traced(built, folder):
    """A server with a trace file, and tracing off."""
    s = harness.Server(flags=[f"--trace-config=triton,file={folder}/t.json"])
    yield s
    assert s.stop() == 0, s.log()[-3000:]
    files = list(folder.glob("t.json*"))
    assert files and all(isinstance(json.loads(f.read_text()), list) for f in files)


@pytest.fixture
def caller(traced, protocol):
    c = Caller(traced, protocol)
    yield c
    for model in ("identity_int32", None):
        c.update({"trace_level": None, "trace_rate": None, "trace_count": None, "log_frequency": None}, model)


def traces(path):
    """id → {"model", "version", "request_id", "times": {name: ns}, "tensors": [(activity, tensor)]} of a file."""
    found = collections.defaultdict(lambda: {"times": {}, "tensors": []})
    for e in json.loads(path.read_text()):
        t = found[e["id"]]
        t.update({k: e[k] for k in ("model_name", "model_version", "request_id", "parent_id") if k in e})
        for stamp in e.get("timestamps", ()):
            t["times"][stamp["name"]] = stamp["ns"]
        if "activity" in e:
            t["tensors"].append((e["activity"], e["tensor"]))
    return found


def written(folder, seen, count=1):
    """The traces of numbered files that were not there before."""
    def ready():
        new = [f for f in folder.glob("t.json.[0-9]*") if f not in seen and f.suffix != ".part"]
        return sorted(new, key=lambda f: int(f.suffix[1:])) if len(new) >= count else None
    return [traces(f) for f in harness.wait_for(ready, 10, "trace files")]


@pytest.fixture
def seen(folder, caller):
    return set(folder.glob("t.json*"))


def test_defaults(server, protocol):
    c = Caller(server, protocol)
    assert c.settings() == DEFAULTS | {"trace_file": ""}
    assert c.settings("identity_int32") == c.settings()
    with pytest.raises(InferenceServerException, match="Request for unknown model : nope"):
        c.settings("nope")
    with pytest.raises(InferenceServerException, match="trace file name is not given"):
        c.update({"trace_level": ["TIMESTAMPS"]})
    assert "trace" in (c.client.get_server_metadata()["extensions"] if protocol == "http" else
                       c.client.get_server_metadata().extensions)


def test_settings(caller, folder):
    file = {"trace_file": f"{folder}/t.json"}
    assert caller.settings() == DEFAULTS | file
    changed = {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "3", "trace_count": "50", "log_frequency": "7"}
    assert caller.update(changed) == DEFAULTS | file | changed
    assert caller.settings("identity_int32") == DEFAULTS | file | changed, "a model follows the global settings"
    own = caller.update({"trace_rate": "2"}, "identity_int32")
    assert own == DEFAULTS | file | changed | {"trace_rate": "2"}
    assert caller.settings() == DEFAULTS | file | changed
    assert caller.update({"trace_rate": None}, "identity_int32") == DEFAULTS | file | changed
    assert caller.update(dict.fromkeys(changed)) == DEFAULTS | file
    with pytest.raises(InferenceServerException, match="can not be updated through network protocol") as e:
        caller.update({"trace_file": "/tmp/elsewhere"})
    assert e.value.status() in ("501", "StatusCode.UNIMPLEMENTED")


def test_timestamps(caller, folder, seen):
    caller.update({"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "log_frequency": "1"}, "identity_int32")
    caller.infer(request_id='a"}],\n\\')
    caller.infer("identity_int8", np.int8, "INT8")  # another model is not traced
    [got] = written(folder, seen)
    [t] = got.values()
    assert (t["model_name"], t["model_version"], t["request_id"]) == ("identity_int32", 1, 'a"}],\n\\')
    first, last = FRONT[caller.protocol]
    assert sorted(t["times"]) == sorted(first + CORE + last)
    order = [t["times"][n] for n in first + CORE + last]
    assert order == sorted(order), t["times"]
    assert 0 <= time.monotonic_ns() - order[-1] < 60e9, "the clock is the monotonic one, as in the original"
    assert not t["tensors"]


def test_tensors(caller, folder, seen):
    caller.update({"trace_level": ["TENSORS"], "trace_rate": "1", "log_frequency": "1"})
    caller.infer()
    caller.infer("identity_bytes", np.object_, "BYTES", ['a"b', "", "c,d", "é"])
    caller.infer("identity_fp16", np.float16, "FP16", [1, -0.5, 2, 4])
    names = ["TENSOR_QUEUE_INPUT", "TENSOR_BACKEND_INPUT", "TENSOR_BACKEND_OUTPUT"]
    for got, data, dtype in zip(written(folder, seen, 3), ["1,2,3,4", '"a""b","","c,d","é"', "1,-0.5,2,4"], ["INT32", "BYTES", "FP16"]):
        [t] = got.values()
        assert not t["times"]
        assert [a for a, _ in t["tensors"]] == names
        for activity, tensor in t["tensors"]:
            name = "OUTPUT0" if activity.endswith("OUTPUT") else "INPUT0"
            assert tensor == {"name": name, "data": data, "shape": "1,4", "dtype": dtype}


def test_rate_and_count(caller, folder, seen):
    """Every third request, twice; then the count is used up and its traces lie in one file."""
    caller.update({"trace_level": ["TIMESTAMPS"], "trace_rate": "3", "trace_count": "2"})
    for i in range(12):
        caller.infer(request_id=str(i + 1))
    [got] = written(folder, seen)
    assert [t["request_id"] for t in got.values()] == ["3", "6"]
    assert caller.settings()["trace_count"] == "0"


@pytest.mark.parametrize("protocol", ["http"])
def test_failed_requests(caller, folder, seen, traced):
    """A request that its model refuses, and one that can't be read, are traced as far as they got."""
    caller.update({"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "log_frequency": "2"})
    assert traced.ask("/v2/models/identity_int32/infer", b'{"inputs":[]}')[0] == 400
    assert traced.ask("/v2/models/identity_int32/infer", b'{"inputs":[')[0] == 500
    [got] = written(folder, seen)
    refused, unread = (got[i] for i in sorted(got))  # a trace is written when its answer was sent: maybe after the next one
    first, last = FRONT["http"]
    assert sorted(refused["times"]) == sorted(first + ["REQUEST_START", "REQUEST_END"] + last) and refused["model_version"] == 1
    assert sorted(unread["times"]) == sorted(first + last) and "model_name" not in unread


PAIR = """platform: "ensemble" max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }
ensemble_scheduling {
  step { model_name: "identity_int32" model_version: -1 input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "mid" } }
  step { model_name: "identity_int32" model_version: -1 input_map { key: "INPUT0" value: "mid" } output_map { key: "OUTPUT0" value: "OUTPUT0" } }
}
"""


def test_ensemble(start, tmp_path):
    """The steps are children of the ensemble, counted with it and kept beside it; it computes nothing itself."""
    (tmp_path / "models/pair/1").mkdir(parents=True)
    (tmp_path / "models/pair/config.pbtxt").write_text(PAIR)
    s = start(repositories=(harness.TEST_MODELS, tmp_path / "models"), flags=[
        "--trace-config=level=TIMESTAMPS", "--trace-config=level=TENSORS", "--trace-config=rate=2", "--trace-config=triton,log-frequency=1",
        f"--trace-config=triton,file={tmp_path}/t.json"])
    c = Caller(s, "grpc")
    for i in range(2):
        c.infer("pair", request_id=str(i + 1))
    got = traces(harness.wait_for(lambda: next(tmp_path.glob("t.json.0"), None), 10, "the trace file"))
    parent, *steps = got.values()
    assert parent["model_name"] == "pair" and parent["request_id"] == "2" and "parent_id" not in parent
    assert not any(n.startswith("COMPUTE") for n in parent["times"]) and {"REQUEST_START", "QUEUE_START", "REQUEST_END"} <= set(parent["times"])
    assert [a for a, _ in parent["tensors"]] == ["TENSOR_QUEUE_INPUT", "TENSOR_BACKEND_OUTPUT"]
    assert len(steps) == 2
    for step in steps:
        assert step["model_name"] == "identity_int32" and step["parent_id"] == min(got)
        assert set(CORE) <= set(step["times"])
        assert parent["times"]["REQUEST_START"] <= step["times"]["REQUEST_START"] <= step["times"]["REQUEST_END"] <= parent["times"]["REQUEST_END"]


def test_cache_hit(start, tmp_path):
    """An answer from the cache was queued and not computed."""
    (tmp_path / "models/cached/1").mkdir(parents=True)
    config = (harness.TEST_MODELS / "identity_int32/config.pbtxt").read_text().replace('name: "identity_int32"', 'name: "cached"')
    (tmp_path / "models/cached/config.pbtxt").write_text(config + "response_cache { enable: true }\n")
    s = start(repositories=(tmp_path / "models",), flags=[
        "--cache-config=local,size=1000000", "--trace-config=level=TIMESTAMPS", "--trace-config=level=TENSORS", "--trace-config=rate=1",
        "--trace-config=triton,log-frequency=2", f"--trace-config=triton,file={tmp_path}/t.json"])
    c = Caller(s, "http")
    for _ in range(2):
        c.infer("cached")
    got = traces(harness.wait_for(lambda: next(tmp_path.glob("t.json.0"), None), 10, "the trace file"))
    miss, hit = got.values()
    first, last = FRONT["http"]
    assert sorted(miss["times"]) == sorted(first + CORE + last)
    assert sorted(hit["times"]) == sorted(first + [n for n in CORE if not n.startswith("COMPUTE")] + last)
    assert [a for a, _ in hit["tensors"]] == ["TENSOR_QUEUE_INPUT", "TENSOR_BACKEND_OUTPUT"]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_file_after_the_end(start, tmp_path, end):
    """Without log_frequency all traces are in one file: whole after SIGTERM, valid after SIGKILL."""
    s = start(flags=["--trace-config=level=TIMESTAMPS", "--trace-config=rate=1", f"--trace-config=triton,file={tmp_path}/t.json"])
    c = Caller(s, "grpc")
    for _ in range(100):
        c.infer()
    file = tmp_path / "t.json"
    harness.wait_for(file.exists, 10, "the trace file")
    if end == signal.SIGTERM:
        c.infer()
        assert s.stop() == 0
        assert len(traces(file)) == 101
    else:
        os.kill(s.pid, end)
        s.process.wait(10)
        assert 0 < len(traces(file)) <= 100
    assert [f.name for f in tmp_path.iterdir()] == ["t.json"]


def test_deprecated_flags(start, tmp_path):
    s = start(flags=[f"--trace-file={tmp_path}/t.json", "--trace-level=TIMESTAMPS", "--trace-level=TENSORS", "--trace-rate=5",
                     "--trace-count=9", "--trace-log-frequency=3", "--trace-config=rate=1"])
    assert Caller(s, "http").settings() == {
        "trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "1", "trace_count": "9", "log_frequency": "3",
        "trace_file": f"{tmp_path}/t.json", "trace_mode": "triton"}
    assert "--trace-rate is overridden by the rate of --trace-config" in s.log()
    assert "--trace-file is deprecated" in s.log()

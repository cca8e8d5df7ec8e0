"""model_warmup: every instance runs the samples before its version is ready, and a sample that fails fails the load.

The texts are those that the original gave for the same configs and its Python backend.
"""
import os
import signal
import struct
import subprocess

import numpy as np
import pytest
import tritonclient.http as httpclient
from onnx import TensorProto, helper, numpy_helper

import harness

CONFIG = """backend: "identity"
max_batch_size: {batch}
input {{ name: "INPUT0" data_type: {kind} dims: [ -1 ] }}
output {{ name: "OUTPUT0" data_type: {kind} dims: [ -1 ] }}
{extra}
"""
LOOKUP = """backend: "onnxruntime"
max_batch_size: 4
input {{ name: "INDEX" data_type: TYPE_INT64 dims: [ 1 ] }}
output {{ name: "VALUE" data_type: TYPE_FP32 dims: [ 1 ] }}
instance_group {{ count: 2 kind: KIND_CPU }}
model_warmup {{ name: "look" batch_size: 3 count: 2 inputs {{ key: "INDEX" value {{ data_type: TYPE_INT64 dims: [ 1 ] {data} }} }} }}
"""
UNKNOWN = "[request id: <id_unknown>] "
SEQUENCE = """sequence_batching { control_input [
  { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
  { name: "ID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] } ] }
"""


def warmup(name="s", size=1, count=1, data="dims: [ 2 ] zero_data: true", kind="TYPE_FP32", key="INPUT0"):
    given = f'inputs {{ key: "{key}" value {{ data_type: {kind} {data} }} }}' if key else ""
    return f'model_warmup {{ name: "{name}" batch_size: {size} count: {count} {given} }}\n'


def put(repository, name, config, files=None):
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    for path, data in (files or {}).items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(data)


def lookup():
    """VALUE = table[INDEX], which fails for an index that the table does not have."""
    nodes = [helper.make_node("Gather", ["table", "INDEX"], ["VALUE"], axis=0)]
    made = helper.make_graph(nodes, "lookup", [helper.make_tensor_value_info("INDEX", TensorProto.INT64, ["rows", 1])],
                             [helper.make_tensor_value_info("VALUE", TensorProto.FLOAT, ["rows", 1])],
                             [numpy_helper.from_array(np.arange(4, dtype=np.float32), "table")])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], producer_name="sluice")
    model.ir_version = 8
    return model.SerializeToString()


# model: (config, files, reason in the index; None: it is ready)
CASES = {
    "ok": (warmup(size=2, count=3) + "instance_group { count: 2 kind: KIND_CPU }", {}, None),
    "skipped": (warmup(size=0), {}, None),
    "empty": (warmup(data="dims: [ 0 ] zero_data: true"), {}, None),
    "untrue": (warmup(data="dims: [ 2 ] zero_data: false"), {}, None),
    "random": (warmup(data="dims: [ 3 ] random_data: true"), {}, None),
    "file": (warmup(data='dims: [ 2 ] input_data_file: "f"'), {"warmup/f": bytes(8)}, None),
    "long": (warmup(data='dims: [ 2 ] input_data_file: "f"'), {"warmup/f": bytes(16)}, None),
    "sequence": (warmup() + SEQUENCE, {}, None),
    "variable": (warmup(data="dims: [ -1 ] zero_data: true"), {},
                 "warmup setting expects all variable-size dimensions are specified for input 'INPUT0'"),
    "unset": (warmup(data="dims: [ 2 ]"), {}, UNKNOWN + "warmup setting expects input 'INPUT0' to have input_data_type set"),
    "short": (warmup(data='dims: [ 2 ] input_data_file: "f"'), {"warmup/f": bytes(4)},
              UNKNOWN + "warmup setting expects 8 bytes, but the data provided from fonly has 4 bytes"),
    "datatype": (warmup(kind="TYPE_INT32"), {},
                 UNKNOWN + "inference input 'INPUT0' data-type is 'INT32', but model 'datatype' expects 'FP32'"),
    "none": (warmup(key=""), {}, UNKNOWN + "expected 1 inputs but got 0 inputs for model 'none'. Got input(s) [], but missing "
             "required input(s) ['INPUT0']. Please provide all required input(s)."),
    "unknown": (warmup(key="X"), {}, UNKNOWN + "expected 1 inputs but got 0 inputs for model 'unknown'. Got input(s) [], but "
                "missing required input(s) ['INPUT0']. Please provide all required input(s)."),
}
# These read below the model's folder, or are refused earlier, and so have texts of our own.
OTHERS = {
    "outside": (warmup(data='dims: [ 2 ] input_data_file: "../config.pbtxt"'), {}, "outside model directory"),
    "absent": (warmup(data='dims: [ 2 ] input_data_file: "f"'), {}, "failed to open text file for read warmup/f: No such file or directory"),
    "large": (warmup(size=5), {}, "failed to run warmup sample 's': batch size 5 for 'large', max allowed is 4"),
    "huge": (warmup(data="dims: [ 1000000000 ] zero_data: true"), {}, "more than the 1073741824 bytes that a version's samples may have"),
}
WORDS = {
    "words": (warmup("z", kind="TYPE_STRING") + warmup("r", kind="TYPE_STRING", data="dims: [ 2 ] random_data: true")
              + warmup("f", kind="TYPE_STRING", data='dims: [ 2 ] input_data_file: "f"'), None),
    "words_few": (warmup(kind="TYPE_STRING", data='dims: [ 3 ] input_data_file: "f"'),
                  UNKNOWN + "expected 3 string elements for inference input 'INPUT0' for model 'words_few', got 2"),
}


@pytest.fixture(scope="module")
def warm(built, tmp_path_factory):
    repository = tmp_path_factory.mktemp("warmup")
    for name, (extra, files, _) in {**CASES, **OTHERS}.items():
        put(repository, name, CONFIG.format(batch=4, kind="TYPE_FP32", extra=extra), files)
    for name, (extra, _) in WORDS.items():
        put(repository, name, CONFIG.format(batch=4, kind="TYPE_STRING", extra=extra), {"warmup/f": b"\1\0\0\0a\2\0\0\0bc"})
    put(repository, "lookup", LOOKUP.format(data="zero_data: true"), {"1/model.onnx": lookup()})
    put(repository, "lookup_fails", LOOKUP.format(data='input_data_file: "index"'),
        {"1/model.onnx": lookup(), "warmup/index": struct.pack("<q", 9)})
    s = harness.Server([repository], flags=["--exit-on-error=false"], ready=False)
    s.repository = repository
    yield s
    assert s.stop() == 0, s.log()[-3000:]


def index_of(server):
    with httpclient.InferenceServerClient(server.http) as c:
        return {m["name"]: m for m in c.get_model_repository_index()}


def statistics(server, model):
    with httpclient.InferenceServerClient(server.http) as c:
        return c.get_inference_statistics(model)["model_stats"][0]


def test_samples_decide_whether_a_model_is_ready(warm):
    index = index_of(warm)
    for name, reason in [(n, r) for n, (_, _, r) in CASES.items()] + [(n, r) for n, (_, r) in WORDS.items()]:
        want = ("UNAVAILABLE", f"Invalid argument: {reason}") if reason else ("READY", None)
        assert (index[name]["state"], index[name].get("reason")) == want, name
    for name, (_, _, reason) in OTHERS.items():
        assert index[name]["state"] == "UNAVAILABLE" and reason in index[name]["reason"], index[name]


def test_a_sample_that_fails_fails_the_load(warm):
    m = index_of(warm)["lookup_fails"]
    assert m["state"] == "UNAVAILABLE"
    assert m["reason"].startswith("Invalid argument: failed to run warmup sample 'look': ") and m["reason"].endswith("; "), m


def test_every_instance_runs_every_sample_and_statistics_say_so(warm):
    # Two instances, three rounds of a batch of two: what the original counted for the same config.
    s = statistics(warm, "ok")
    assert (s["inference_count"], s["execution_count"], s["inference_stats"]["success"]["count"]) == (12, 6, 12)
    assert [(b["batch_size"], b["compute_infer"]["count"]) for b in s["batch_stats"]] == [(2, 6)]
    s = statistics(warm, "lookup")
    assert (s["inference_count"], s["execution_count"]) == (12, 4)
    assert statistics(warm, "skipped").get("inference_count", 0) == 0
    assert statistics(warm, "sequence")["execution_count"] == 1


def test_instances_of_a_new_worker_are_warmed_up(start, tmp_path):
    put(tmp_path, "ok", CONFIG.format(batch=4, kind="TYPE_FP32", extra=CASES["ok"][0]))
    server = start([tmp_path])
    assert statistics(server, "ok")["execution_count"] == 6
    (pid,) = server.workers()
    os.kill(pid, signal.SIGKILL)
    harness.wait_for(lambda: statistics(server, "ok")["execution_count"] == 12, 20, "both instances warm again")
    harness.wait_for(lambda: server.status("/v2/models/ok/ready") == 200, 20, "ready again")


def test_check_reads_the_samples(warm):

    out = subprocess.run([str(harness.BINARY), "check", str(warm.repository)], capture_output=True, text=True, timeout=60)
    assert out.returncode != 0
    text = out.stdout + out.stderr
    assert "fonly has 4 bytes" in text and "all variable-size dimensions" in text

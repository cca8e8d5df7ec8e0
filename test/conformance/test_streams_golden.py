#!/usr/bin/env python3
"""Streams and generate answer as the original's do: answers, parameters, error texts, frames, statuses.

    test_streams_golden.py    asks the real server (scripts/peer.sh) and writes streams.json

Identity and repeat are written in Python for the original. Where ours is better on purpose, BETTER says how.
"""
import json
import pathlib
import struct
import sys
import tempfile

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as stubs

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "test"), str(ROOT / "test/conformance")]

import exchange  # noqa: E402
import harness  # noqa: E402

GOLDEN = pathlib.Path(__file__).with_name("streams.json")
REPEAT_MODEL = '''import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            send = r.get_response_sender().send
            values, delays, _ = (pb_utils.get_input_tensor_by_name(r, n).as_numpy() for n in ("IN", "DELAY", "WAIT"))
            for i, (v, ms) in enumerate(zip(values, delays)):
                time.sleep(ms / 1000)
                send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([v], np.int32)), pb_utils.Tensor("IDX", np.array([i], np.uint32))]))
            send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''


def tensor(name, kind, dims):
    return f'{{ name: "{name}" data_type: TYPE_{kind} dims: {dims} }}'


def config(inputs, outputs, rest="", batch=0):
    return f"max_batch_size: {batch}\ninput [ {', '.join(inputs)} ]\noutput [ {', '.join(outputs)} ]\n{rest}"


def same(kind, dims, n=1, batch=0):
    """An identity model's config."""
    return config([tensor(f"INPUT{i}", kind, dims) for i in range(n)], [tensor(f"OUTPUT{i}", kind, dims) for i in range(n)], batch=batch)


MODELS = {
    "text": same("STRING", "[1]"), "texts": same("STRING", "[-1]"), "numbers": same("INT32", "[-1]"), "rows": same("INT32", "[2]", batch=8),
    "matrix": same("FP64", "[-1,-1]"), "half": same("FP16", "[-1]"), "flags": same("BOOL", "[-1]"), "two": same("INT32", "[1]", 2),
    "repeat": config([tensor("IN", "INT32", "[-1]"), tensor("DELAY", "UINT32", "[-1]"), tensor("WAIT", "UINT32", "[1]")],
                     [tensor("OUT", "INT32", "[1]"), tensor("IDX", "UINT32", "[1]")],
                     "model_transaction_policy { decoupled: true }"),
}
GENERATE = {
    f"{model} {body}": (model, body) for model, body in [
        ("text", '{"INPUT0":"hi"}'), ("text", '{"INPUT0":["hi"]}'), ("text", '{"INPUT0":[["hi"]]}'), ("text", '{"INPUT0":["a","b"]}'),
        ("text", '{"INPUT0":3}'), ("text", '{"INPUT0":null}'), ("text", '{"INPUT0":{"a":1}}'), ("text", '{"INPUT0":"hi","id":"r7"}'),
        ("text", '{"INPUT0":"hi","id":7}'), ("text", '{"INPUT0":"hi","parameters":{"a":1,"b":"x","c":1.5,"d":true}}'),
        ("text", '{"INPUT0":"hi","parameters":{"a":{"n":1}}}'), ("text", '{"INPUT0":"hi","parameters":[1]}'),
        ("text", '{"INPUT0":"hi","a":[1]}'), ("text", '{"INPUT0":"hi","a":null}'), ("text", '{"INPUT0":"hi","a":{"x":1}}'),
        ("text", '{"INPUT0":"hi","parameters":{"INPUT0":"zz"}}'), ("text", '{"parameters":{"INPUT0":"zz"}}'),
        ("text", '{"INPUT0":"hi","triton_x":1,"sequence_id":5,"priority":"x","timeout":1000000}'), ("text", '{}'), ("text", ''), ("text", '{'),
        ("text", '[]'), ("text", 'null'), ("text", '{"INPUT0":"a","INPUT0":"b"}'), ("text", '{"id":"only"}'), ("text", '{"INPUT0":"a"} x'),
        ("texts", '{"INPUT0":["a","b"]}'), ("texts", '{"INPUT0":[]}'), ("texts", '{"INPUT0":["only"]}'), ("texts", '{"INPUT0":["\\"\\n\u00e9"]}'),
        ("numbers", '{"INPUT0":5}'), ("numbers", '{"INPUT0":[5,6]}'), ("numbers", '{"INPUT0":[5,"x"]}'), ("numbers", '{"INPUT0":5.5}'),
        ("numbers", '{"INPUT0":true}'), ("rows", '{"INPUT0":[1,2]}'), ("rows", '{"INPUT0":[1,2,3,4]}'), ("rows", '{"INPUT0":[1,2,3]}'),
        ("rows", '{"INPUT0":7}'), ("rows", '{"INPUT0":[[1],[2]]}'), ("matrix", '{"INPUT0":[[1,2]]}'), ("matrix", '{"INPUT0":[[1],[2]]}'),
        ("matrix", '{"INPUT0":[0.5,1,2]}'), ("half", '{"INPUT0":1}'), ("flags", '{"INPUT0":true}'), ("flags", '{"INPUT0":1}'),
        ("two", '{"INPUT0":1,"INPUT1":2}'), ("two", '{"INPUT0":1}'), ("nope", '{"INPUT0":1}'), ("text/versions/1", '{"INPUT0":"v"}'),
        ("text/versions/9", '{"INPUT0":"v"}'), ("text/versions/z", '{"INPUT0":"v"}'),
        ("repeat", '{"IN":[4],"DELAY":[0],"WAIT":0}'), ("repeat", '{"IN":[4,5],"DELAY":[0,1],"WAIT":0,"id":"z"}'),
        ("repeat", '{"IN":[],"DELAY":[],"WAIT":0}'),
    ]
}


def message(model, inputs, id="", version="", **params):
    m = pb.ModelInferRequest(model_name=model, model_version=version, id=id)
    for name, (kind, shape, raw) in inputs.items():
        m.inputs.add(name=name, datatype=kind, shape=shape)
        if raw is not None:
            m.raw_input_contents.append(raw)
    for name, value in params.items():
        field = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(m.parameters[name], field, value)
    return m


def numbers(*values, model="numbers", **more):
    return message(model, {"INPUT0": ("INT32", [len(values)], struct.pack(f"<{len(values)}i", *values))}, **more)


def repeat(values, delays=None, **more):
    delays, n = delays or [0] * len(values), len(values)
    return message("repeat", {"IN": ("INT32", [n], struct.pack(f"<{n}i", *values)), "DELAY": ("UINT32", [n], struct.pack(f"<{n}I", *delays)),
                              "WAIT": ("UINT32", [1], bytes(4))}, **more)


FINAL = {"triton_enable_empty_final_response": True}
STREAMS = {
    "nothing": [], "ordinary": [numbers(1, id="a"), numbers(2, 3, id="b"), numbers()], "ordinary final": [numbers(1, id="a", **FINAL)],
    "decoupled": [repeat([1, 2, 3], id="d")], "decoupled final": [repeat([1, 2], id="d", **FINAL)], "none": [repeat([], id="d")],
    "none final": [repeat([], id="d", **FINAL)], "unknown": [message("nope", {}, id="u"), numbers(5, id="after")],
    "unknown version": [numbers(1, id="v", version="7")], "no version": [numbers(1, id="v", version="z"), numbers(2)],
    "other input": [message("numbers", {"X": ("INT32", [1], bytes(4))}, id="f"), numbers(2, id="ok")],
    "reserved": [numbers(1, id="f", triton_x=1), numbers(2, id="ok")],
    "final of a wrong type": [numbers(1, id="f", triton_enable_empty_final_response="x"), numbers(2, id="ok")],
    "no data": [message("numbers", {"INPUT0": ("INT32", [1], None)}, id="f"), numbers(2, id="ok")],
    "too large a batch": [message("rows", {"INPUT0": ("INT32", [9, 2], bytes(72))}, id="f"), numbers(2, id="ok")],
}
# What the original does and ours does not.
BETTER = {
    # it says 200 with an error in the body
    ("generate", 'repeat {"IN":[4,5],"DELAY":[0,1],"WAIT":0,"id":"z"}'): {"status": 400},
    ("generate", 'repeat {"IN":[],"DELAY":[],"WAIT":0}'): {"status": 400},
}


def generated(address, verb):
    answers = {}
    for name, (model, body) in GENERATE.items():
        a = exchange.http(address, f"/v2/models/{model}/{verb}", body.encode(), {})
        answers[name] = {k: a[k] for k in ("status", "body") if k in a}
    return answers


def said(m):
    r = m.infer_response
    outputs = {o.name: [o.datatype, list(o.shape), r.raw_output_contents[i].hex()] for i, o in enumerate(r.outputs)}
    return {"error": m.error_message, "id": r.id, "model": r.model_name, "version": r.model_version, "outputs": outputs,
            "final": r.parameters["triton_final_response"].bool_param if "triton_final_response" in r.parameters else None}


def streamed(address):
    answers = {}
    with grpc.insecure_channel(address) as channel:
        stub = stubs.GRPCInferenceServiceStub(channel)
        for name, messages in STREAMS.items():
            answers[name] = [said(m) for m in stub.ModelStreamInfer(iter(messages), timeout=20)]
    return answers


def repository(folder, original):
    for name, text in MODELS.items():
        (folder / name / "1").mkdir(parents=True)
        backend = "python" if original else "repeat" if name == "repeat" else "identity"
        (folder / name / "config.pbtxt").write_text(f'backend: "{backend}"\n{text}\ninstance_group [ {{ kind: KIND_CPU }} ]\n')
        if original:
            import original as recorder
            (folder / name / "1" / "model.py").write_text(REPEAT_MODEL if name == "repeat" else recorder.MODEL)
    return folder


def everything(http, rpc):
    return {"generate": generated(http, "generate"), "generate_stream": generated(http, "generate_stream"), "stream": streamed(rpc)}


@pytest.fixture(scope="module")
def answers(built, tmp_path_factory):
    server = harness.Server(repositories=[repository(tmp_path_factory.mktemp("models"), False)])
    try:
        yield everything(server.http, server.grpc)
    finally:
        server.kill()


@pytest.mark.parametrize("kind", ["generate", "generate_stream", "stream"])
def test_as_the_original(answers, kind):
    golden = json.loads(GOLDEN.read_text())[kind]
    assert set(answers[kind]) == set(golden)
    wrong = {}
    for name, want in golden.items():
        if (kind, name) in BETTER:
            want = want | BETTER[kind, name]
        if answers[kind][name] != want:
            wrong[name] = (answers[kind][name], want)
    assert not wrong, "\n".join(f"{n}:\n  got  {got}\n  want {want}" for n, (got, want) in wrong.items())


def main():
    import original
    with tempfile.TemporaryDirectory() as folder:
        with open(pathlib.Path(folder) / "log", "w+") as log:
            server = original.Original(repository(pathlib.Path(folder) / "models", True), log)
            server.begin()
            try:
                harness.wait_for(lambda: exchange.http(server.http, "/v2/health/ready", None, {})["status"] == 200, 120, "ready")
                golden = everything(server.http, server.grpc)
            finally:
                server.end()
    GOLDEN.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")
    print(f"{GOLDEN.name}: {sum(map(len, golden.values()))} answers")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Ensembles answer as the original's do: values, parameters, error texts, metadata.

    test_ensembles_golden.py    asks the real server (scripts/peer.sh) and writes ensembles.json

Steps are identity models; for the original they are written in Python.
"""
import json
import pathlib
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "test"), str(ROOT / "test/conformance")]

import exchange  # noqa: E402
import harness  # noqa: E402

GOLDEN = pathlib.Path(__file__).with_name("ensembles.json")


def tensors(kind, names, dims="-1", extra=""):
    return "".join(f'{kind} [ {{ name: "{n}" data_type: TYPE_FP32 dims: [ {dims} ]{extra} }} ]\n' for n in names.split())


def step(model, given, made):
    text = f'  step {{ model_name: "{model}" model_version: -1'
    for field, pairs in (("input_map", given), ("output_map", made)):
        for key, value in (p.split("=") for p in pairs.split()):
            text += f' {field} {{ key: "{key}" value: "{value}" }}'
    return text + " }\n"


def ensemble(outputs, *steps, inputs=None):
    return 'platform: "ensemble"\nmax_batch_size: 4\n' + (inputs or tensors("input", "IN")) + tensors("output", outputs) + (
        "ensemble_scheduling {\n" + "".join(steps) + "}\n")


def repository(folder, backend="identity"):
    head = f'backend: "{backend}"\ninstance_group [ {{ count: 1 kind: KIND_CPU }} ]\n'
    models = {
        "a": head + "max_batch_size: 4\n" + tensors("input", "IN") + tensors("output", "OUT"),
        "b": head + "max_batch_size: 4\n" + tensors("input", "IN") + tensors("output", "OUT"),
        "flat": head + tensors("input", "IN") + tensors("output", "OUT"),
        "rows": head + tensors("input", "IN", "-1, -1") + tensors("output", "OUT", "-1, -1"),
        "two": head + "max_batch_size: 4\n" + tensors("input", "IN0") + tensors("input", "IN1", extra=" optional: true") + tensors("output", "OUT0 OUT1"),
        "chain": ensemble("OUT", step("a", "IN=IN", "OUT=MID"), step("b", "IN=MID", "OUT=OUT")),
        "nested": ensemble("OUT", step("chain", "IN=IN", "OUT=MID"), step("a", "IN=MID", "OUT=OUT")),
        "join": ensemble("OUT OUT2", step("a", "IN=IN", "OUT=L"), step("b", "IN=IN", "OUT=R"), step("two", "IN0=L IN1=R", "OUT0=OUT OUT1=OUT2")),
        "no_batch": ensemble("OUT", step("flat", "IN=IN", "OUT=OUT")),
        "expanded": ensemble("OUT", step("rows", "IN=IN", "OUT=MID"), step("a", "IN=MID", "OUT=OUT")),
        "maybe": ensemble("OUT OUT2", step("two", "IN0=IN IN1=X", "OUT0=OUT OUT1=OUT2"), inputs=tensors("input", "IN X", extra=" optional: true")),
    }
    for name, config in models.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
    return folder


def infer(model, *inputs, **rest):
    return f"/v2/models/{model}/infer", json.dumps({"inputs": list(inputs), **rest}).encode(), {}


def tensor(name="IN", rows=1, datatype="FP32"):
    return {"name": name, "datatype": datatype, "shape": [rows, 2], "data": [1, 2] * rows}


CASES = {
    "chain": infer("chain", tensor()),
    "chain, rows": infer("chain", tensor(rows=4)),
    "id and sequence": infer("chain", tensor(), id="r1", parameters={"sequence_id": 7, "sequence_start": True, "priority": 3}),
    "sequence named by a string": infer("chain", tensor(), parameters={"sequence_id": "abc", "sequence_end": True}),
    "nested": infer("nested", tensor(rows=2)),
    "join": infer("join", tensor()),
    "join, one output": infer("join", tensor(), outputs=[{"name": "OUT2"}]),
    "classes": infer("chain", tensor(), outputs=[{"name": "OUT", "parameters": {"classification": 1}}]),
    "without a batch": infer("no_batch", tensor()),
    "rows without a batch": infer("no_batch", tensor(rows=2)),
    "expanded": infer("expanded", tensor(rows=3)),
    "an optional input": infer("maybe", tensor(), tensor("X")),
    "an optional input left out": infer("maybe", tensor()),
    "no input": infer("maybe"),
    "too many rows": infer("chain", tensor(rows=5)),
    "datatype": infer("chain", tensor(datatype="INT32")),
    "unknown output": infer("chain", tensor(), outputs=[{"name": "ZZ"}]),
    "metadata": ("/v2/models/chain", None, {}),
    "ready": ("/v2/models/nested/ready", None, {}),
    "config": ("/v2/models/join/config", None, {}),
}


def plain(answer):
    """The answer without what may differ: the order of outputs, a field that the recorded release has not."""
    body = answer["body"]
    if isinstance(body, dict):
        body = json.loads(json.dumps(body))
        if "ensemble_scheduling" in body:
            body["ensemble_scheduling"].pop("max_inflight_requests", None)
        if isinstance(body.get("outputs"), list):
            body["outputs"].sort(key=lambda o: o["name"])
    return answer["status"], body


@pytest.fixture(scope="module")
def ensembles(built, tmp_path_factory):
    s = harness.Server(repositories=[repository(tmp_path_factory.mktemp("ensembles"))])
    yield s
    assert s.stop() == 0, "exit status after SIGTERM\n" + s.log()[-3000:]


@pytest.mark.parametrize("name", CASES)
def test_as_the_original(ensembles, name):
    assert plain(exchange.http(ensembles.http, *CASES[name])) == plain(json.loads(GOLDEN.read_text())[name])


def record():
    import original
    with tempfile.TemporaryDirectory() as folder, open(pathlib.Path(folder) / "log", "w+") as log:
        models = repository(pathlib.Path(folder) / "models", "python")
        for config in models.glob("*/config.pbtxt"):
            if "python" in config.read_text():
                (config.parent / "1" / "model.py").write_text(PYTHON)
        server = original.Original(models, log)
        try:
            golden = {n: server.ask(n, exchange.http, server.http, c) for n, c in CASES.items()}
        finally:
            server.end()
    GOLDEN.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")
    print(f"{GOLDEN.name}: {len(golden)} answers")


PYTHON = '''import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.pairs = [(i["name"], o["name"]) for i, o in zip(config["input"], config["output"])]

    def execute(self, requests):
        answers = []
        for r in requests:
            given = {i: pb_utils.get_input_tensor_by_name(r, i) for i, _ in self.pairs}
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor(o, given[i].as_numpy()) for i, o in self.pairs if given[i]]))
        return answers
'''

if __name__ == "__main__":
    record()

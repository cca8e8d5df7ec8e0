"""The repository of the fault trials: models that add a number, which says what was loaded, and one that sums up."""
import json
import os
import pathlib
import random
import shutil
import urllib.error

import numpy as np
from onnx import TensorProto, helper

import harness
import sequence_models

LIMITS = """rules:
- {name: all, requests: {rate: 1000000/s, burst: 1000000}}
- {name: shut, models: shut, requests: 1/h}
"""
IO = """max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_INT32 dims: 16 }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: 16 }
"""
IDENTITY = 'backend: "identity"\n' + IO + "instance_group { count: 2 }\ndynamic_batching { }\n"
ADDER = 'backend: "onnxruntime"\n' + IO + "instance_group { count: 1 kind: KIND_CPU }\nresponse_cache { enable: true }\n"
CHAIN = 'platform: "ensemble"\n' + IO + """ensemble_scheduling {
step { model_name: "low" model_version: -1 input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "middle" } }
step { model_name: "high" model_version: -1 input_map { key: "INPUT0" value: "middle" } output_map { key: "OUTPUT0" value: "OUTPUT0" } }
}
"""
SUM = sequence_models.config("oldest { max_candidate_sequences: 256 }", sequence_models.SUM,
                             f"state {{ {sequence_models.STATE} }} max_sequence_idle_microseconds: 60000000", 8)
POLLED = [f"m{i}" for i in range(6)]  # whose versions change
STEADY = ["echo", "cached", "which", "which/1", "chain"]


def adder(number):
    """OUTPUT0 is INPUT0 + number."""
    shape = ["batch", 16]
    return sequence_models.graph([helper.make_node("Add", ["INPUT0", "K"], ["OUTPUT0"])], [("INPUT0", TensorProto.INT32, shape)],
                                 [("OUTPUT0", TensorProto.INT32, shape)], {"K": np.array([number], np.int32)})


class Repository:
    """Folders of models. .serves has what each model adds in each of its versions: 1000 times the version and more; the steps of
    the ensemble chain add less."""

    def __init__(self, path):
        self.path, self.next = pathlib.Path(path), 0
        self.beside = self.path.parent / "beside"
        self.beside.mkdir(parents=True)
        self.serves = {"low": {1: 1}, "high": {1: 10}, "which": {1: 1001, 2: 2001}}
        self.serves |= {name: {1: 1001} for name in POLLED}
        for name, config in (("echo", IDENTITY), ("cached", IDENTITY + "response_cache { enable: true }\n"), ("shut", IDENTITY)):
            self.config(name, config)
            (self.path / name / "1").mkdir()
        for name, versions in self.serves.items():
            self.config(name, ADDER + "version_policy { all { } }\n")
            for version, number in versions.items():
                self.put(name, version, number)
        self.config("chain", CHAIN)
        (self.path / "chain" / "1").mkdir()
        self.config("sum", SUM)
        (self.path / "sum" / "1").mkdir()
        (self.path / "sum" / "1" / "model.onnx").write_bytes(sequence_models.accumulator())

    def config(self, name, text):
        (self.path / name).mkdir(parents=True, exist_ok=True)
        part = self.beside / "config"
        part.write_text(text)
        part.replace(self.path / name / "config.pbtxt")

    def put(self, name, version, number):
        """Writes a version, or its file anew, beside the repository and moves it there."""
        self.serves[name][version] = number
        self.next += 1
        part = self.beside / str(self.next)
        part.mkdir()
        (part / "model.onnx").write_bytes(adder(number))
        folder = self.path / name / str(version)
        if folder.exists():
            os.replace(part / "model.onnx", folder / "model.onnx")
        else:
            part.replace(folder)

    def remove(self, name, version):
        del self.serves[name][version]
        gone = self.beside / f"gone-{self.next}"
        self.next += 1
        (self.path / name / str(version)).rename(gone)
        shutil.rmtree(gone)

    def newest(self, name):
        """What the newest version adds."""
        return self.serves[name][max(self.serves[name])]

    def chain(self):
        return self.newest("low") + self.newest("high")

    def numbers(self, names):
        """What callers of models, or of models' versions, may see."""
        return {name: self.number(*name.split("/")) for name in names}

    def number(self, name, version=None):
        if version:
            return self.serves[name][int(version)]
        return self.chain() if name == "chain" else self.newest(name) if name in self.serves else 0


def question(value):
    """A request of sixteen equal numbers."""
    tensor = {"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "data": [value] * 16}
    return json.dumps({"inputs": [tensor]}).encode()


def added(server, model):
    """What a gateway, asked directly, adds now; None while it does not answer."""
    value = random.randrange(2**30)
    try:
        status, _, text = server.ask(f"/v2/models/{model}/infer", question(value))
    except (OSError, urllib.error.URLError):
        return None
    return json.loads(text)["outputs"][0]["data"][0] - value if status == 200 else None


def wait_for(servers, model, number):
    """Waits until all gateways answer with what was written last."""
    harness.wait_for(lambda: all(added(s, model) == number for s in servers), 30, f"{model} adds {number} everywhere")

#!/usr/bin/env python3
"""Assembles model repositories.

    make_models.py demo DIR WHEELS  what `make run` serves: examples/models with the model files out of the wheels in WHEELS
    make_models.py test DIR         models of the identity backend, and broken ones, for test/conformance and test/e2e
    make_models.py bench DIR        mlp, mlp_cached, image_mean and identity: DIR/sluice for us, DIR/peer for the original

Needs numpy and onnx. What is there already is written again; other files in DIR stay.
"""
import argparse
import json
import pathlib
import shutil
import zipfile

import graphs
import speech_graphs
import text_graphs

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATATYPES = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32",
             "FP64", "STRING")


def put(repo, name, config, files=None):
    """One model: its config.pbtxt and its files, by path below the model's folder."""
    folder = repo / name
    (folder / "1").mkdir(parents=True, exist_ok=True)
    if config is not None:
        (folder / "config.pbtxt").write_text(config)
    size = 0
    for path, data in (files or {}).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        size += len(data)
    print(f"  {repo.name}/{name}" + (f"  {size / 1024:.0f} KiB" if size else ""), flush=True)


def text_models(wheel):
    """The files of the models that read text."""
    with zipfile.ZipFile(wheel) as z:
        folder = "rapidocr_onnxruntime/models/"
        names = {"page_detector": "ch_PP-OCRv4_det_infer", "line_angle": "ch_ppocr_mobile_v2.0_cls_infer",
                 "line_recognizer": "ch_PP-OCRv4_rec_infer"}
        models = {name: z.read(folder + file + ".onnx") for name, file in names.items()}
    models |= {"page_pixels": text_graphs.page_pixels(), "page_mask": text_graphs.page_mask(),
               "angle_pixels": text_graphs.angle_pixels(), "line_pixels": text_graphs.line_pixels(),
               "line_text": text_graphs.line_text(text_graphs.characters(models["line_recognizer"]))}
    return {name: {"1/model.onnx": data} for name, data in models.items()} | {"find_text": {}, "read_line": {}}


def speech_model(wheel):
    with zipfile.ZipFile(wheel) as z:
        return speech_graphs.detector(z.read("silero_vad/data/silero_vad.onnx"))


def demo(repo, wheels):
    source = ROOT / "examples" / "models"
    with zipfile.ZipFile(next(wheels.glob("magika-*.whl"))) as z:
        folder = "magika/models/standard_v3_3/"
        model = z.read(folder + "model.onnx")
        labels = json.loads(z.read(folder + "config.min.json"))["target_labels_space"]
    files = {
        "magika": {"1/model.onnx": model, "labels.txt": ("\n".join(labels) + "\n").encode()},
        "simple": {"1/model.onnx": graphs.add_sub()},
        "simple_string": {"1/model.onnx": graphs.add_sub_string()},
        "mlp": {"1/model.onnx": graphs.mlp()},
        "identity_fp32": {},
        "file_type": {"1/model.py": (source / "file_type" / "1" / "model.py").read_bytes(),
                      "labels.txt": ("\n".join(labels) + "\n").encode()},
        "silero_vad": {"1/model.onnx": speech_model(next(wheels.glob("silero_vad-*.whl")))},
    } | text_models(next(wheels.glob("rapidocr_onnxruntime-*.whl")))
    for name in sorted(files):
        put(repo, name, (source / name / "config.pbtxt").read_text(), files[name])


def tensor(kind, name, datatype, dims, extra=""):
    return f'{kind} [ {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {", ".join(map(str, dims))} ]{extra} }} ]\n'


def identity(name, tensors, max_batch=8, extra=""):
    """config.pbtxt of an identity model; tensors are (datatype, dims) and are called INPUT0, INPUT1, ..."""
    text = f'name: "{name}"\nbackend: "identity"\nmax_batch_size: {max_batch}\n'
    for i, (datatype, dims) in enumerate(tensors):
        text += tensor("input", f"INPUT{i}", datatype, dims) + tensor("output", f"OUTPUT{i}", datatype, dims)
    return text + extra + "instance_group [ { count: 1 kind: KIND_CPU } ]\n"


def test(repo):
    for datatype in DATATYPES:
        if datatype == "FP32":
            continue  # the demo repository has it
        name = "identity_" + ("bytes" if datatype == "STRING" else datatype.lower())
        put(repo, name, identity(name, [(datatype, [-1])]))
    put(repo, "plain", identity("plain", [("FP32", [-1, 2])], max_batch=0))
    put(repo, "two", identity("two", [("INT32", [4]), ("FP32", [-1])]))
    put(repo, "raw_bytes", identity("raw_bytes", [("STRING", [1])]))
    delay = 'parameters: { key: "execute_delay_ms" value: { string_value: "%d" } }\n'
    put(repo, "slow", identity("slow", [("INT32", [1])], max_batch=1, extra=delay % 200))
    put(repo, "brief", identity("brief", [("INT32", [1])], max_batch=4, extra=delay % 5 + "dynamic_batching { }\n"))
    put(repo, "queue2", identity("queue2", [("INT32", [1])], max_batch=1, extra=delay % 300 + (
        "dynamic_batching { default_queue_policy { max_queue_size: 2 } }\n")))
    put(repo, "expires", identity("expires", [("INT32", [1])], max_batch=1, extra=delay % 300 + (
        "dynamic_batching { default_queue_policy { default_timeout_microseconds: 50000 allow_timeout_override: true } }\n")))
    text = identity("classes", [("FP32", [4])])
    put(repo, "classes", text.replace('{ name: "OUTPUT0"', '{ label_filename: "labels.txt" name: "OUTPUT0"'),
        {"labels.txt": b"a\nb\nc\nd\n"})
    shaped = tensor("input", "INPUT0", "FP32", [2, 2], " reshape: { shape: [ 4 ] }") + tensor(
        "output", "OUTPUT0", "FP32", [2, 2], " reshape: { shape: [ 4 ] }")
    put(repo, "reshaped", 'name: "reshaped"\nbackend: "identity"\nmax_batch_size: 8\n' + shaped)
    put(repo, "versions", identity("versions", [("INT32", [4])], extra="version_policy: { specific { versions: [ 1, 3 ] } }\n"))
    for version in (2, 3):
        (repo / "versions" / str(version)).mkdir(exist_ok=True)


def broken(repo):
    """Models that can't load, one reason each; their server must serve the others."""
    put(repo, "good", identity("good", [("INT32", [4])]))
    put(repo, "bad_field", 'name: "bad_field"\nbackend: "identity"\nno_such_field: 1\n')
    put(repo, "bad_model", 'name: "bad_model"\nbackend: "onnxruntime"\nmax_batch_size: 0\n', {"1/model.onnx": b"not a model"})
    put(repo, "no_file", 'name: "no_file"\nbackend: "onnxruntime"\nmax_batch_size: 0\n')
    put(repo, "no_backend", 'name: "no_backend"\nbackend: "no_such_backend"\nmax_batch_size: 0\n')


PEER_MODEL = '''import json
import os

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.input, self.output = config["input"][0]["name"], config["output"][0]["name"]
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        path = os.path.join(args["model_repository"], args["model_version"], "model.onnx")
        self.session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def execute(self, requests):
        """One run for the whole batch, as a careful user of the Python backend writes it."""
        arrays = [pb_utils.get_input_tensor_by_name(r, self.input).as_numpy() for r in requests]
        batch = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        result = self.session.run([self.output], {self.input: batch})[0]
        responses, at = [], 0
        for a in arrays:
            part = pb_utils.Tensor(self.output, result[at:at + len(a)])
            responses.append(pb_utils.InferenceResponse([part]))
            at += len(a)
        return responses
'''


PEER_IDENTITY = '''import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(r, "INPUT0").as_numpy())])
                for r in requests]
'''


def bench(root):
    batching = "dynamic_batching { preferred_batch_size: [ 8, 16, 32 ] max_queue_delay_microseconds: 200 }\n"
    models = (("mlp", 32, ("INPUT0", [512]), ("OUTPUT0", [128]), batching, graphs.mlp()),
              # every request of the driver is the same, so all but the first are hits
              ("mlp_cached", 32, ("INPUT0", [512]), ("OUTPUT0", [128]), batching + "response_cache { enable: true }\n", graphs.mlp()),
              ("image_mean", 8, ("IMAGE", [3, 224, 224]), ("MEAN", [1]), "dynamic_batching { }\n", graphs.image_mean()))
    cpu = "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
    threads = "".join(f'parameters {{ key: "{k}_op_thread_count" value: {{ string_value: "1" }} }}\n' for k in ("intra", "inter"))
    for name, batch, given, answered, extra, data in models:
        body = f"max_batch_size: {batch}\n" + tensor("input", given[0], "FP32", given[1]) + tensor(
            "output", answered[0], "FP32", answered[1]) + extra + cpu
        put(root / "sluice", name, f'name: "{name}"\nbackend: "onnxruntime"\n' + body + threads, {"1/model.onnx": data})
        put(root / "peer", name, f'name: "{name}"\nbackend: "python"\n' + body,
            {"1/model.onnx": data, "1/model.py": PEER_MODEL.encode()})
    config = identity("identity_fp32", [("FP32", [-1])], 64, "dynamic_batching { }\n")
    put(root / "sluice", "identity_fp32", config)
    put(root / "peer", "identity_fp32", config.replace('"identity"', '"python"'), {"1/model.py": PEER_IDENTITY.encode()})


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("demo", "test", "bench"))
    p.add_argument("dir", type=pathlib.Path)
    p.add_argument("wheels", type=pathlib.Path, nargs="?")
    args = p.parse_args()
    if args.what == "demo":
        if args.wheels is None:
            p.error("demo needs the folder of the wheels")
        demo(args.dir, args.wheels)
    elif args.what == "test":
        shutil.rmtree(args.dir, ignore_errors=True)
        test(args.dir / "models")
        broken(args.dir / "broken")
    else:
        bench(args.dir)


if __name__ == "__main__":
    main()

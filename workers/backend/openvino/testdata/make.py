#!/usr/bin/env python3
"""Writes the models of this folder. Run once, with openvino 2026.4.1 and tensorflow-cpu 2.21; what it wrote is committed.

    make.py openvino | tensorflow
"""
import pathlib
import sys

import numpy as np

HERE = pathlib.Path(__file__).parent


def native():
    import openvino as ov
    from openvino import opset13 as op

    def save(name, inputs, outputs):
        for n, o in outputs.items():
            o.output(0).get_tensor().set_names({n})
        for n, i in inputs.items():
            i.output(0).get_tensor().set_names({n})
        results = [op.result(o) for o in outputs.values()]
        ov.serialize(ov.Model(results, list(inputs.values()), name), HERE / f"{name}.xml", HERE / f"{name}.bin")

    def two(kind, shape=(-1, 4)):
        return {n: op.parameter(list(shape), kind, name=n) for n in ("A", "B")}

    # SUM = A + B, DIFF = A - B, of any batch.
    i = two(np.float32)
    save("addsub", i, {"SUM": op.add(i["A"], i["B"]), "DIFF": op.subtract(i["A"], i["B"])})
    # The same, with a batch of one alone.
    i = two(np.int64, (1, 4))
    save("fixed", i, {"SUM": op.add(i["A"], i["B"]), "DIFF": op.subtract(i["A"], i["B"])})
    # 4 -> 8 -> 3, with weights.
    rng = np.random.default_rng(1)
    x = op.parameter([-1, 4], np.float32, name="X")
    h = op.relu(op.matmul(x, op.constant(rng.standard_normal((4, 8)).astype(np.float32)), False, False))
    save("mlp", {"X": x}, {"Y": op.matmul(h, op.constant(rng.standard_normal((8, 3)).astype(np.float32)), False, False)})
    # The values of X that are not 0: how many there are is known when they are counted.
    x = op.parameter([-1], np.float32, name="X")
    found = op.non_zero(x, "i64")
    save("nonzero", {"X": x}, {"INDEX": found})
    # One output of each type, from an input of that type, and a dimension of 1 to 8.
    for name, kind in (("f64", np.float64), ("f16", np.float16), ("u8", np.uint8), ("bool", np.bool_), ("i32", np.int32)):
        x = op.parameter(ov.PartialShape([-1, ov.Dimension(1, 8)]), kind, name="X")
        one = op.concat([x, x], 1)
        save(f"twice_{name}", {"X": x}, {"Y": one})
    # A sum over all inferences of a request: state.
    x = op.parameter([1, 4], np.float32, name="X")
    before = op.read_value(op.constant(np.zeros((1, 4), np.float32)), "sum")
    after = op.add(x, before)
    keep = op.assign(after, "sum")
    x.output(0).get_tensor().set_names({"X"})
    y = op.result(after)
    after.output(0).get_tensor().set_names({"Y"})
    ov.serialize(ov.Model([y], [keep], [x], "stateful"), HERE / "stateful.xml", HERE / "stateful.bin")
    # A long time: products of large matrices, one after the other.
    x = op.parameter([1], np.float32, name="X")
    y = op.broadcast(x, op.constant(np.array([2048, 2048], np.int64)))
    for _ in range(24):
        y = op.tanh(op.matmul(y, y, False, False))
    save("long", {"X": x}, {"Y": op.reduce_sum(y, op.constant(np.array([0, 1], np.int64)))})


def tf():
    import tensorflow as tf

    class AddSub(tf.Module):
        def __init__(self):
            super().__init__()
            self.scale = tf.Variable(2.0)

        @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, "A"), tf.TensorSpec([None, 4], tf.float32, "B")])
        def __call__(self, A, B):
            return {"SUM": self.scale * (A + B), "DIFF": A - B}

    m = AddSub()
    tf.saved_model.save(m, str(HERE / "model.savedmodel"), signatures={"serving_default": m.__call__.get_concrete_function()})

    graph = tf.Graph()
    with graph.as_default():
        a = tf.compat.v1.placeholder(tf.float32, [None, 4], "A")
        b = tf.compat.v1.placeholder(tf.float32, [None, 4], "B")
        tf.add(a, b, name="SUM")
        tf.subtract(a, b, name="DIFF")
    (HERE / "model.graphdef").write_bytes(graph.as_graph_def().SerializeToString())

    graph = tf.Graph()
    with graph.as_default():
        a = tf.compat.v1.placeholder(tf.string, [None], "A")
        tf.strings.to_hash_bucket_fast(tf.strings.regex_replace(a, "a+", "b"), 7, name="BUCKET")
    (HERE / "strings.graphdef").write_bytes(graph.as_graph_def().SerializeToString())


{"openvino": native, "tensorflow": tf}[sys.argv[1]]()

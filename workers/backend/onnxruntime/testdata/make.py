"""Writes the models of this folder: python3 make.py, with the packages onnx and numpy."""
import os

import numpy as np
from onnx import TensorProto as T
from onnx import checker, helper, numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
value = helper.make_tensor_value_info


def save(name, nodes, inputs, outputs, initializers=(), check=True, opset=21):
    graph = helper.make_graph(nodes, name, inputs, outputs, list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    if check:
        checker.check_model(model)
    path = os.path.join(HERE, name + ".onnx")
    with open(path, "wb") as f:
        f.write(model.SerializeToString(deterministic=True))
    print(f"{name}.onnx {os.path.getsize(path)} bytes")


def const(name, array):
    return numpy_helper.from_array(np.asarray(array), name)


# Sum and difference of rows of 16.
save("addsub",
     [helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
      helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"])],
     [value("INPUT0", T.FLOAT, ["N", 16]), value("INPUT1", T.FLOAT, ["N", 16])],
     [value("OUTPUT0", T.FLOAT, ["N", 16]), value("OUTPUT1", T.FLOAT, ["N", 16])])

# The same without a batch dimension.
save("fixed", [helper.make_node("Add", ["A", "B"], ["C"])],
     [value("A", T.INT32, [4]), value("B", T.INT32, [4])], [value("C", T.INT32, [4])])

# Every datatype of the protocol, unchanged.
TYPES = {"BOOL": T.BOOL, "UINT8": T.UINT8, "UINT16": T.UINT16, "UINT32": T.UINT32, "UINT64": T.UINT64, "INT8": T.INT8,
         "INT16": T.INT16, "INT32": T.INT32, "INT64": T.INT64, "FP16": T.FLOAT16, "FP32": T.FLOAT, "FP64": T.DOUBLE,
         "BF16": T.BFLOAT16, "BYTES": T.STRING}
save("types", [helper.make_node("Identity", ["in_" + n], ["out_" + n]) for n in TYPES],
     [value("in_" + n, t, ["N", "D_" + n]) for n, t in TYPES.items()],
     [value("out_" + n, t, ["N", "D_" + n]) for n, t in TYPES.items()])

# Strings joined.
save("strings", [helper.make_node("StringConcat", ["A", "B"], ["C"])],
     [value("A", T.STRING, ["N", 2]), value("B", T.STRING, ["N", 2])], [value("C", T.STRING, ["N", 2])])

# How large the output is depends on the data.
save("nonzero", [helper.make_node("NonZero", ["X"], ["Y"])], [value("X", T.FLOAT, ["N"])], [value("Y", T.INT64, [1, "M"])])

# Declares that Y has X's shape; it has the shape S.
save("lies", [helper.make_node("Reshape", ["X", "S"], ["Y"])],
     [value("X", T.FLOAT, ["N", "D"]), value("S", T.INT64, [2])], [value("Y", T.FLOAT, ["N", "D"])])

# The output's rank is not known.
save("unranked", [helper.make_node("Reshape", ["X", "S"], ["Y"])],
     [value("X", T.FLOAT, ["N"]), value("S", T.INT64, ["K"])], [helper.make_tensor_value_info("Y", T.FLOAT, None)], check=False)

# B has a value of its own.
save("optional", [helper.make_node("Add", ["X", "B"], ["Y"])],
     [value("X", T.FLOAT, ["N"]), value("B", T.FLOAT, [1])], [value("Y", T.FLOAT, ["N"])],
     [const("B", np.array([10], np.float32))])

save("scalar", [helper.make_node("Neg", ["X"], ["Y"])], [value("X", T.FLOAT, [])], [value("Y", T.FLOAT, [])])

# Adds one COUNT times; a long run for tests of cancellation.
body = helper.make_graph(
    [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Add", ["x", "x1"], ["y"])], "body",
    [value("i", T.INT64, []), value("go", T.BOOL, []), value("x", T.FLOAT, ["D"])],
    [value("go_on", T.BOOL, []), value("y", T.FLOAT, ["D"])])
save("loop", [helper.make_node("Identity", ["one"], ["x1"]), helper.make_node("Loop", ["COUNT", "", "X"], ["Y"], body=body)],
     [value("COUNT", T.INT64, [1]), value("X", T.FLOAT, ["D"])], [value("Y", T.FLOAT, ["D"])],
     [const("one", np.array([1], np.float32))])

# A ragged input twice, and the ends of the requests as rows. Y declares R's dimension.
save("ragged", [helper.make_node("Add", ["R", "R"], ["Y"]), helper.make_node("Reshape", ["ENDS", "column"], ["ROWS"])],
     [value("R", T.FLOAT, ["K"]), value("ENDS", T.INT32, ["N"])], [value("Y", T.FLOAT, ["K"]), value("ROWS", T.INT32, ["N", 1])],
     [const("column", np.array([-1, 1], np.int64))])

# An output that is no tensor.
save("sequence", [helper.make_node("SequenceConstruct", ["X"], ["Y"])], [value("X", T.FLOAT, [2])],
     [helper.make_tensor_sequence_value_info("Y", T.FLOAT, [2])])

# The multilayer perceptron of the benchmarks, its weights made by the optimiser at load.
nodes, at = [], "X"
for i, (k, n) in enumerate([(512, 1024), (1024, 1024), (1024, 128)]):
    for what, shape in [("w", [k, n]), ("b", [n])]:
        nodes.append(helper.make_node("ConstantOfShape", [f"{what}shape{i}"], [f"{what}{i}"],
                                      value=helper.make_tensor("v", T.FLOAT, [1], [0.001])))
    nodes.append(helper.make_node("Gemm", [at, f"w{i}", f"b{i}"], [f"g{i}"]))
    at = f"g{i}"
    if i < 2:
        nodes.append(helper.make_node("Relu", [at], [f"r{i}"]))
        at = f"r{i}"
nodes[-1].output[0] = "Y"
save("mlp", nodes, [value("X", T.FLOAT, ["N", 512])], [value("Y", T.FLOAT, ["N", 128])],
     [const(f"wshape{i}", np.array(s, np.int64)) for i, s in enumerate([(512, 1024), (1024, 1024), (1024, 128)])] +
     [const(f"bshape{i}", np.array([s], np.int64)) for i, s in enumerate([1024, 1024, 128])])

# No model at all.
with open(os.path.join(HERE, "broken.onnx"), "wb") as f:
    f.write(b"this is no model")

# Its weights lie in the file "weights" beside it, which ONNX Runtime reads when it loads the model.
weights = const("W", np.zeros(4, np.float32))
weights.ClearField("raw_data")
weights.data_location = T.EXTERNAL
for key, text in (("location", "weights"), ("offset", "0"), ("length", "16")):
    weights.external_data.add(key=key, value=text)
save("external", [helper.make_node("Add", ["X", "W"], ["Y"])], [value("X", T.FLOAT, [4])], [value("Y", T.FLOAT, [4])],
     [weights], check=False)

"""The ONNX graphs that the project writes itself. Weights come from seeded generators: two runs write the same bytes."""
import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper


def _model(name, nodes, inputs, outputs, weights=None):
    tensors = [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(nodes, name, inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="sluice")
    model.ir_version = 8
    checker.check_model(model)
    return model.SerializeToString(deterministic=True)


def _value(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, ["batch"] + shape)


def add_sub():
    """INT32 [16] twice to their sum and their difference."""
    kind = TensorProto.INT32
    nodes = [helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
             helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"])]
    return _model("add_sub", nodes, [_value("INPUT0", kind, [16]), _value("INPUT1", kind, [16])],
                  [_value("OUTPUT0", kind, [16]), _value("OUTPUT1", kind, [16])])


def add_sub_string():
    """The same for numbers written as strings."""
    kind = TensorProto.STRING
    nodes = [helper.make_node("Cast", ["INPUT0"], ["a"], to=TensorProto.INT32),
             helper.make_node("Cast", ["INPUT1"], ["b"], to=TensorProto.INT32),
             helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Sub", ["a", "b"], ["difference"]),
             helper.make_node("Cast", ["sum"], ["OUTPUT0"], to=kind),
             helper.make_node("Cast", ["difference"], ["OUTPUT1"], to=kind)]
    return _model("add_sub_string", nodes, [_value("INPUT0", kind, [16]), _value("INPUT1", kind, [16])],
                  [_value("OUTPUT0", kind, [16]), _value("OUTPUT1", kind, [16])])


def mlp(seed=7, sizes=(512, 1024, 1024, 128)):
    """FP32 [512] through two hidden layers of 1024 to [128]."""
    rng = np.random.RandomState(seed)
    nodes, weights, x = [], {}, "INPUT0"
    for i, (a, b) in enumerate(zip(sizes, sizes[1:])):
        last = i == len(sizes) - 2
        weights[f"w{i}"] = (rng.standard_normal((a, b)) * np.sqrt(2.0 / a)).astype(np.float32)
        weights[f"b{i}"] = (rng.standard_normal(b) * 0.1).astype(np.float32)
        nodes.append(helper.make_node("MatMul", [x, f"w{i}"], [f"product{i}"]))
        nodes.append(helper.make_node("Add", [f"product{i}", f"b{i}"], ["OUTPUT0" if last else f"sum{i}"]))
        if not last:
            nodes.append(helper.make_node("Relu", [f"sum{i}"], [f"layer{i}"]))
        x = f"layer{i}"
    return _model("mlp", nodes, [_value("INPUT0", TensorProto.FLOAT, [sizes[0]])],
                  [_value("OUTPUT0", TensorProto.FLOAT, [sizes[-1]])], weights)


def image_mean():
    """FP32 [3,224,224] (602,112 bytes) to its mean [1]: nearly no compute, all transport."""
    nodes = [helper.make_node("ReduceMean", ["IMAGE"], ["m"], axes=[1, 2, 3], keepdims=1),
             helper.make_node("Flatten", ["m"], ["MEAN"], axis=1)]
    return _model("image_mean", nodes, [_value("IMAGE", TensorProto.FLOAT, [3, 224, 224])],
                  [_value("MEAN", TensorProto.FLOAT, [1])])

"""The graph around the model of silero-vad that makes it stateful without code on the server.

The package's wrapper puts the last 64 samples of a chunk in front of the next one and carries the state of the network;
here both are implicit state: what a sequence's request leaves behind, the next one finds.
"""
import numpy as np
import onnx
from onnx import TensorProto, checker, helper, numpy_helper

RATE, CHUNK, CONTEXT = 16000, 512, 64


def detector(package_model):
    """FP32 CHUNK [512] at 16 kHz to PROBABILITY [1]; states CONTEXT [64] and NETWORK [2,128], rows first."""
    inner = onnx.load_model_from_string(package_model)

    def value(name, *dims):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *dims])

    weights = {"sr": np.int64(RATE), "from": np.array([CHUNK]), "to": np.array([CHUNK + CONTEXT]), "axis": np.array([1])}
    before = [helper.make_node("Concat", ["CONTEXT_IN", "CHUNK"], ["input"], axis=1),
              helper.make_node("Transpose", ["NETWORK_IN"], ["state"], perm=[1, 0, 2])]
    after = [helper.make_node("Identity", ["output"], ["PROBABILITY"]),
             helper.make_node("Slice", ["input", "from", "to", "axis"], ["CONTEXT_OUT"]),
             helper.make_node("Transpose", ["stateN"], ["NETWORK_OUT"], perm=[1, 0, 2])]
    graph = helper.make_graph(
        before + list(inner.graph.node) + after, "speech", [value("CHUNK", CHUNK), value("CONTEXT_IN", CONTEXT), value("NETWORK_IN", 2, 128)],
        [value("PROBABILITY", 1), value("CONTEXT_OUT", CONTEXT), value("NETWORK_OUT", 2, 128)],
        list(inner.graph.initializer) + [numpy_helper.from_array(a, n) for n, a in weights.items()])
    model = helper.make_model(graph, opset_imports=inner.opset_import, producer_name="sluice")
    model.ir_version = inner.ir_version
    checker.check_model(model)
    return model.SerializeToString(deterministic=True)

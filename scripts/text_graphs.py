"""The small graphs around the text models of rapidocr-onnxruntime, so that a page is read without code on the server.

What they compute is what the package does before and after its models.
"""
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIDE = 736  # shorter side of a page at least
LINE = 48  # height of a line for the recogniser
LINE_WIDTH, ANGLE_WIDTH = 320, 192  # least width for the recogniser, width for the classifier
THRESHOLD, TURNED = 0.3, 0.9


class Graph:
    """Collects the nodes of a graph; each method gives the name of its result."""

    def __init__(self):
        self.nodes, self.weights, self.count = [], [], 0

    def const(self, value, dtype=np.float32):
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def op(self, kind, *inputs, out=None, domain="", **attributes):
        self.count += 1
        name = out or f"t{self.count}"
        self.nodes.append(helper.make_node(kind, inputs, [name], domain=domain, **attributes))
        return name

    def size(self, tensor, axis):
        """One dimension of a tensor, as a float of shape [1]."""
        return self.op("Cast", self.op("Shape", tensor, start=axis, end=axis + 1), to=TensorProto.FLOAT)

    def int64(self, tensor):
        return self.op("Cast", tensor, to=TensorProto.INT64)

    def planes(self, image):
        """[h, w, 3] of RGB bytes as [1, 3, h, w] floats in the order blue, green, red."""
        x = self.op("Cast", self.op("Gather", image, self.const([2, 1, 0], np.int64), axis=2), to=TensorProto.FLOAT)
        return self.op("Unsqueeze", self.op("Transpose", x, perm=[2, 0, 1]), self.const([0], np.int64))

    def resize(self, x, height, width):
        """x at another size, with values from -1 to 1; height and width are int64 of shape [1]."""
        sizes = self.op("Concat", self.const([1, 3], np.int64), height, width, axis=0)
        x = self.op("Resize", x, "", "", sizes, mode="linear", coordinate_transformation_mode="half_pixel")
        return self.op("Div", self.op("Sub", self.op("Div", x, self.const(255)), self.const(0.5)), self.const(0.5))

    def pad(self, x, by, out):
        zeros = self.const([0] * 7, np.int64)
        return self.op("Pad", x, self.op("Concat", zeros, by, axis=0), self.const(0), out=out)

    def model(self, name, inputs, outputs):
        values = [[helper.make_tensor_value_info(n, t, s) for n, t, s in side] for side in (inputs, outputs)]
        graph = helper.make_graph(self.nodes, name, *values, self.weights)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
        m = helper.make_model(graph, opset_imports=opsets, producer_name="sluice")
        m.ir_version = 8
        onnx.checker.check_model(m)
        return m.SerializeToString()


def page_pixels():
    """IMAGE, RGB [h, w, 3], as the detector wants it: enlarged to SIDE, sides in steps of 32."""
    g = Graph()
    h, w = g.size("IMAGE", 0), g.size("IMAGE", 1)
    ratio = g.op("Max", g.const([1]), g.op("Div", g.const([SIDE]), g.op("Min", h, w)))
    sides = []
    for side in (h, w):
        steps = g.op("Round", g.op("Div", g.op("Floor", g.op("Mul", side, ratio)), g.const([32])))
        sides.append(g.int64(g.op("Mul", g.op("Max", steps, g.const([1])), g.const([32]))))
    g.op("Identity", g.resize(g.planes("IMAGE"), *sides), out="PIXELS")
    return g.model("page_pixels", [("IMAGE", TensorProto.UINT8, ["h", "w", 3])], [("PIXELS", TensorProto.FLOAT, [1, 3, "H", "W"])])


def page_mask():
    """MAP, how likely each pixel is text, as a MASK of 0 and 1, wider by a pixel to the right and below."""
    g = Graph()
    over = g.op("Cast", g.op("Greater", "MAP", g.const(THRESHOLD)), to=TensorProto.FLOAT)
    wide = g.op("MaxPool", over, kernel_shape=[2, 2], pads=[1, 1, 0, 0])
    axes = g.const([0, 1], np.int64)
    g.op("Cast", g.op("Squeeze", wide, axes), to=TensorProto.UINT8, out="MASK")
    g.op("Squeeze", "MAP", axes, out="LIKELY")
    return g.model("page_mask", [("MAP", TensorProto.FLOAT, [1, 1, "H", "W"])],
                   [("MASK", TensorProto.UINT8, ["H", "W"]), ("LIKELY", TensorProto.FLOAT, ["H", "W"])])


def _line(g, image, least, most):
    """image at the height of a line, padded on the right to least; most bounds its width where it is given."""
    h, w = g.size(image, 0), g.size(image, 1)
    width = g.op("Mul", g.op("Div", w, h), g.const([LINE]))
    wanted = g.op("Max", g.op("Floor", width), g.const([least])) if most is None else g.const([most])
    used = g.op("Min", g.op("Ceil", width), wanted)
    x = g.resize(g.planes(image), g.const([LINE], np.int64), g.int64(used))
    return x, g.int64(g.op("Sub", wanted, used))


def angle_pixels():
    """LINE, RGB [h, w, 3], as the classifier wants it."""
    g = Graph()
    x, rest = _line(g, "LINE", ANGLE_WIDTH, ANGLE_WIDTH)
    g.pad(x, rest, "PIXELS")
    return g.model("angle_pixels", [("LINE", TensorProto.UINT8, ["h", "w", 3])],
                   [("PIXELS", TensorProto.FLOAT, [1, 3, LINE, ANGLE_WIDTH])])


def line_pixels():
    """LINE as the recogniser wants it, turned where ANGLE says that it stands on its head."""
    g = Graph()
    turned = g.op("Slice", "LINE", g.const([-1, -1], np.int64), g.const([-(1 << 31)] * 2, np.int64), g.const([0, 1], np.int64),
                  g.const([-1, -1], np.int64))
    on_head = g.op("Greater", g.op("Gather", "ANGLE", g.const(1, np.int64), axis=1), g.const(TURNED))
    x, rest = _line(g, g.op("Where", on_head, turned, "LINE"), LINE_WIDTH, None)
    g.pad(x, rest, "PIXELS")
    return g.model("line_pixels", [("LINE", TensorProto.UINT8, ["h", "w", 3]), ("ANGLE", TensorProto.FLOAT, [1, 2])],
                   [("PIXELS", TensorProto.FLOAT, [1, 3, LINE, "W"])])


def line_text(characters):
    """SCORES of the recogniser as CHARACTERS: the best one of each step, without repetitions and blanks."""
    g = Graph()
    best = g.op("ArgMax", "SCORES", axis=2, keepdims=0)
    score = g.op("Squeeze", g.op("ReduceMax", "SCORES", axes=[2], keepdims=0), g.const([0], np.int64))
    best = g.op("Squeeze", best, g.const([0], np.int64))
    before = g.op("Slice", g.op("Concat", g.const([-1], np.int64), best, axis=0), g.const([0], np.int64), g.const([-1], np.int64))
    keep = g.op("And", g.op("Not", g.op("Equal", best, before)), g.op("Not", g.op("Equal", best, g.const(0, np.int64))))
    g.op("LabelEncoder", g.op("Compress", best, keep, axis=0), out="CHARACTERS", domain="ai.onnx.ml",
         keys_int64s=list(range(len(characters))), values_strings=characters, default_string="")
    kept = g.op("Cast", keep, to=TensorProto.FLOAT)
    some = g.op("Max", g.op("ReduceSum", kept, keepdims=1), g.const([1]))
    g.op("Div", g.op("ReduceSum", g.op("Mul", score, kept), keepdims=1), some, out="CONFIDENCE")
    return g.model("line_text", [("SCORES", TensorProto.FLOAT, [1, "T", len(characters)])],
                   [("CHARACTERS", TensorProto.STRING, ["n"]), ("CONFIDENCE", TensorProto.FLOAT, [1])])


def characters(recogniser):
    """What the recogniser's classes stand for: a blank, the characters that its file carries, a space."""
    for p in onnx.load_from_string(recogniser).metadata_props:
        if p.key == "character":
            return ["blank"] + p.value.splitlines() + [" "]
    raise ValueError("the recogniser carries no characters")

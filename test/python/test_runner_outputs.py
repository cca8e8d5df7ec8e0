"""Outputs of models beside their config."""
import numpy as np
import pytest
from model_sources import ONE, execute

CONFIG = {"max_batch_size": 0, "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1, 2]},
                                          {"name": "S", "data_type": "TYPE_STRING", "dims": [1]}]}


@pytest.mark.parametrize("config, tensors, want", [
    ({}, "('OUT', np.zeros((3, 2), np.float32)), ('S', np.array(['x'], object))", None),
    ({}, "('OUT', np.zeros((3, 2), np.float64)),",
     "model 'm', output 'OUT': the model gave datatype TYPE_FP64, its configuration says TYPE_FP32"),
    ({}, "('OUT', np.zeros((3, 3), np.float32)),", "model 'm', output 'OUT': the model gave shape [3, 3], its configuration says [-1, 2]"),
    ({}, "('OUT', np.zeros(4, np.float32)),", "model 'm', output 'OUT': the model gave shape [4], its configuration says [-1, 2]"),
    ({}, "('OUT', np.zeros((3, 2), np.int32)),",
     "model 'm', output 'OUT': the model gave datatype TYPE_INT32, its configuration says TYPE_FP32"),
    ({"max_batch_size": 8}, "('OUT', np.zeros((1, 3, 2), np.float32)),", None),
    ({"max_batch_size": 8}, "('OUT', np.zeros((3, 2), np.float32)),",
     "model 'm', output 'OUT': the model gave shape [3, 2], its configuration says [-1, -1, 2]"),
    ({}, "('NO', np.zeros(1)),", "model 'm' gave output 'NO', which is not in its configuration"),
    ({}, "('OUT', np.zeros((0, 2), np.float32)), ('OUT', np.zeros((0, 2), np.float32))", "model 'm' gave output 'OUT' twice"),
])
def test_outputs_against_the_config(start, config, tensors, want):
    peer = start(execute(f"        return [pb_utils.InferenceResponse([pb_utils.Tensor(n, a) for n, a in [{tensors}]])]\n"),
                 {**CONFIG, **config})
    answer, = peer.answers({**ONE, "outputs": ("OUT", "S")})
    assert answer.message == (want or "") and answer.code == (13 if want else 0)


@pytest.mark.parametrize("give, data_type, dims, batch, want", [
    ("np.array([1, 2])", "TYPE_INT32", [2], 0, np.array([1, 2], np.int32)),
    ("np.array([1, 200], np.uint8)", "TYPE_INT16", [2], 0, np.array([1, 200], np.int16)),
    ("np.array([1, 2**40])", "TYPE_INT32", [2], 0, "the model gave datatype TYPE_INT64, its configuration says TYPE_INT32"),
    ("np.array([-1, 1])", "TYPE_UINT64", [2], 0, "the model gave datatype TYPE_INT64, its configuration says TYPE_UINT64"),
    ("np.array([1.5], np.float16)", "TYPE_FP32", [1], 0, np.array([1.5], np.float32)),
    ("np.array([1.5])", "TYPE_FP32", [1], 0, "the model gave datatype TYPE_FP64, its configuration says TYPE_FP32"),
    ("np.array([True])", "TYPE_INT8", [1], 0, "the model gave datatype TYPE_BOOL, its configuration says TYPE_INT8"),
    ("np.array([1, 0])", "TYPE_BOOL", [2], 0, np.array([True, False])),
    ("np.array([1], np.float16)", "TYPE_BOOL", [1], 0, np.array([True])),
    ("np.array([2])", "TYPE_BOOL", [1], 0, "the model gave datatype TYPE_INT64, its configuration says TYPE_BOOL"),
    ("np.ones(1, np.int8)", "TYPE_INT8", [16], 0, np.ones(1, np.int8)),
    ("np.ones(1, np.int8)", "TYPE_INT8", [-1], 8, np.ones(1, np.int8)),
    ("np.ones(2, np.int8)", "TYPE_INT8", [16], 0, "the model gave shape [2], its configuration says [16]"),
    ("np.zeros(5, np.int8)", "TYPE_INT8", [1], 8, np.zeros((5, 1), np.int8)),
    ("np.zeros((1, 5), np.int8)", "TYPE_INT8", [5], 0, np.zeros(5, np.int8)),
    ("np.zeros((), np.int8)", "TYPE_INT8", [1], 0, np.zeros(1, np.int8)),
    ("np.zeros(5, np.int8)", "TYPE_INT8", [-1], 8, "the model gave shape [5], its configuration says [-1, -1]"),
    ("np.zeros((1, 2), np.int8)", "TYPE_INT8", [1], 8, "the model gave shape [1, 2], its configuration says [-1, 1]"),
    ("np.zeros(4, np.int8)", "TYPE_INT8", [1], 8, "the model gave shape [4], its configuration says [-1, 1]"),
    ("np.zeros((2, 3), np.int8)", "TYPE_INT8", [3, 2], 0, "the model gave shape [2, 3], its configuration says [3, 2]"),
])
def test_outputs_that_are_made_to_fit(start, give, data_type, dims, batch, want):
    """What models of Triton's own tests mistake: widths of numbers, BOOL, dimensions of size 1, and one element where there are more."""
    peer = start(execute(f"        return [out(0, {give})]\n"),
                 {"max_batch_size": batch, "output": [{"name": "OUT", "data_type": data_type, "dims": dims}]})
    peer.levels(2)
    for _ in range(2):
        answer, = peer.answers({**ONE, "rows": 5})  # as many as fit
        if isinstance(want, str):
            assert answer.message == f"model 'm', output 'OUT': {want}"
        else:
            got = answer.outputs["OUT"]
            assert got.dtype == want.dtype and got.shape == want.shape
            np.testing.assert_array_equal(got, want)
    peer.finalize()
    assert len(peer.logs) == (not isinstance(want, str))


def test_outputs_are_pruned(start):
    peer = start(execute("        return [pb_utils.InferenceResponse([pb_utils.Tensor(n, np.ones(1)) for n in 'AB']) for r in requests]\n"))
    a, b = peer.answers({**ONE, "outputs": ("B",)}, {**ONE, "outputs": ("A", "B")})
    assert list(a.outputs) == ["B"] and list(b.outputs) == ["A", "B"]

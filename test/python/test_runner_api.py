"""triton_python_backend_utils and c_python_backend_utils: what needs no server."""
import gc
import sys

import numpy as np
import peer
import pytest

sys.path.insert(0, str(peer.RUNNER.parent))
import c_python_backend_utils as c  # noqa: E402
import triton_python_backend_utils as pb_utils  # noqa: E402
from sluice_runner import dlpack  # noqa: E402

TME = pb_utils.TritonModelException
FP32 = np.arange(6, dtype=np.float32).reshape(2, 3)


def tensor(name="T", array=FP32):
    return pb_utils.Tensor(name, array)


def request(**kwargs):
    return pb_utils.InferenceRequest(**{"inputs": [tensor()], "model_name": "m", "requested_output_names": ["o"], **kwargs})


def test_names():
    """Both modules have what models import from them."""
    for name in pb_utils.__all__:
        assert hasattr(pb_utils, name), name
    for name in c.__all__:
        assert hasattr(c, name), name
    for name in ("Tensor", "InferenceRequest", "InferenceResponse", "TritonError", "TritonModelException", "Logger", "PreferredMemory",
                 "MetricFamily", "load_model", "unload_model", "is_model_ready", "TRITONSERVER_MEMORY_CPU", "TRITONSERVER_MEMORY_GPU"):
        assert getattr(pb_utils, name) is getattr(c, name)
    assert c.shared_memory.free_memory() == c.shared_memory.free_memory()
    assert (pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
            pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL, pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL,
            pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE) == (1, 2, 1, 1, 2)


NUMBERS = {1: np.bool_, 2: np.uint8, 3: np.uint16, 4: np.uint32, 5: np.uint64, 6: np.int8, 7: np.int16, 8: np.int32, 9: np.int64,
           10: np.float16, 11: np.float32, 12: np.float64, 13: np.object_}


def test_types():
    for number, numpy in NUMBERS.items():
        assert pb_utils.triton_to_numpy_type(number) is numpy and pb_utils.numpy_to_triton_type(numpy) == number
        if number != 13:
            assert tensor(array=np.zeros(1, numpy)).triton_dtype() == number
    assert pb_utils.numpy_to_triton_type(np.bytes_) == 13 and pb_utils.numpy_to_triton_type(np.complex64) is None
    assert pb_utils.triton_to_numpy_type(0) is None and pb_utils.triton_to_numpy_type(14) is None
    assert pb_utils.triton_string_to_numpy("TYPE_BOOL") is bool and pb_utils.triton_string_to_numpy("TYPE_STRING") is np.object_
    for name in ("TYPE_BF16", "FP32"):
        with pytest.raises(KeyError):
            pb_utils.triton_string_to_numpy(name)


def test_tensor():
    t = pb_utils.Tensor(name="T", numpy_array=FP32)
    assert (t.name(), t.shape(), t.is_cpu(), t.__dlpack_device__()) == ("T", [2, 3], True, (1, 0))
    assert t.as_numpy() is FP32
    assert tensor(array=np.array(["a", "bc"], "S2")).triton_dtype() == 13
    assert tensor(array=np.array(5.0)).shape() == []
    for array in (np.array(["a"]), np.zeros(1, np.complex64), np.zeros(1, ">f4"), np.zeros(1, "M8[s]")):
        with pytest.raises(TME, match="^NumPy dtype is not supported.$"):
            tensor(array=array)
    for array in ([1.0], 1.0, np.float32(1), None):
        with pytest.raises(TypeError):
            tensor(array=array)
    with pytest.raises(TypeError):
        tensor(None)
    with pytest.raises(TypeError):
        tensor("", None)
    with pytest.raises(TME, match="^Tensor name cannot be an empty string.$"):
        tensor("")


@pytest.mark.parametrize("array, wire", [
    (np.array([b"a", "ä", 1, None], object), b"\1\0\0\0a\2\0\0\0\xc3\xa4\1\0\0\0001\4\0\0\0None"),
    (np.array([b"a\0", b"bc"], "S3"), b"\1\0\0\0a\2\0\0\0bc"),
    (np.array([[b"1", b"2"], [b"3", b"4"]], object).T, b"\1\0\0\x001\1\0\0\x003\1\0\0\x002\1\0\0\x004"),
    (np.array([b"x" * 300], object), b"\x2c\1\0\0" + b"x" * 300),
])
def test_bytes(array, wire):
    assert pb_utils.serialize_byte_tensor(array) == wire
    back = pb_utils.deserialize_bytes_tensor(wire)
    assert back.dtype == object and back.ndim == 1
    assert back.tolist() == [x if isinstance(x, bytes) else str(x).encode() for x in array.ravel().tolist()]


def test_bytes_without_elements():
    assert pb_utils.serialize_byte_tensor(np.array([], object)) == ()
    assert pb_utils.serialize_byte_tensor(FP32) is None
    assert pb_utils.deserialize_bytes_tensor(b"").shape == (0,)
    for bad in (b"\1", b"\1\0\0\0", b"\1\0\0\0ab"):
        with pytest.raises(ValueError):
            pb_utils.deserialize_bytes_tensor(bad)


@pytest.mark.parametrize("dtype", [t for n, t in NUMBERS.items() if n != 13])
def test_dlpack(dtype):
    data = np.array([[0, 1], [1, 0]]).astype(dtype)
    t = tensor(array=data)
    idle = sys.getrefcount(t)
    capsule = t.to_dlpack()
    assert sys.getrefcount(t) == idle + 1
    del capsule
    assert sys.getrefcount(t) == idle
    for source in (t, t.to_dlpack()):
        u = pb_utils.Tensor.from_dlpack("U", source)
        array = u.as_numpy()
        assert array.dtype == dtype and u.shape() == [2, 2] and array.ctypes.data == data.ctypes.data
        del u, source
        gc.collect()
        np.testing.assert_array_equal(array, data)  # the array holds the memory
        del array
    gc.collect()
    assert sys.getrefcount(t) == idle and not dlpack._exported


def test_dlpack_with_numpy():
    t = tensor()
    np.testing.assert_array_equal(np.from_dlpack(t), FP32)
    u = pb_utils.Tensor.from_dlpack("U", FP32)
    np.testing.assert_array_equal(u.as_numpy(), FP32)
    assert pb_utils.Tensor.from_dlpack("U", np.zeros((0, 3), np.int8)).shape() == [0, 3]
    np.testing.assert_array_equal(np.from_dlpack(tensor(array=FP32.T)), FP32.T)  # a copy, in C order


def test_dlpack_refusals():
    with pytest.raises(TME, match="^DLPack does not have support for string tensors.$"):
        tensor(array=np.array([b""], object)).to_dlpack()
    with pytest.raises(TME, match="^DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported.$"):
        pb_utils.Tensor.from_dlpack("U", FP32.T)
    for source in (None, 1, [1]):
        with pytest.raises(TME, match="^Provided tensor is not supported."):
            pb_utils.Tensor.from_dlpack("U", source)
    with pytest.raises(TME, match="^Tensor name cannot be an empty string.$"):
        pb_utils.Tensor.from_dlpack("", None)
    with pytest.raises(TypeError):
        pb_utils.Tensor.from_dlpack(None, FP32)
    with pytest.raises(TME, match="^DLPack tensor of type code 5, 64 bits, 1 lanes is not supported.$"):
        pb_utils.Tensor.from_dlpack("U", np.zeros(1, np.complex64))
    capsule = tensor().to_dlpack()
    pb_utils.Tensor.from_dlpack("U", capsule)
    with pytest.raises(TME):  # once is enough
        pb_utils.Tensor.from_dlpack("U", capsule)
    gc.collect()
    assert not dlpack._exported


def test_request():
    r = pb_utils.InferenceRequest("id", 5, (tensor(),), ("b", "a"), "m", 2, 3, 4, pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0),
                                  c.InferenceTrace(), {"a": 1, "b": True, "c": "x", "d": 1.5})
    assert (r.request_id(), r.correlation_id(), r.flags(), r.timeout(), r.requested_output_names()) == ("id", 5, 3, 4, {"a", "b"})
    assert pb_utils.json.loads(r.parameters()) == {"a": 1, "b": True, "c": "x", "d": 1.5}
    assert [t.name() for t in r.inputs()] == ["T"] and not r.is_cancelled() and r.trace().get_context() is None
    assert pb_utils.get_input_tensor_by_name(r, "T") is r.inputs()[0] and pb_utils.get_input_tensor_by_name(r, "U") is None
    r.set_flags(1)
    assert r.flags() == 1
    assert request(correlation_id="text").correlation_id() == "text"
    assert (request().correlation_id(), request().request_id(), request().parameters(), request(requested_output_names=[]).inputs()[0].name()) == \
        (0, "", "{}", "T")
    with pytest.raises(TME, match="has no reference to the decoupled state"):
        r.get_response_sender().send(pb_utils.InferenceResponse())


@pytest.mark.parametrize("wrong", [
    {"inputs": None}, {"inputs": [1]}, {"inputs": "x"}, {"requested_output_names": None}, {"requested_output_names": [None]},
    {"requested_output_names": "x"}, {"model_name": None}, {"model_name": 1}, {"request_id": None}, {"correlation_id": None},
    {"model_version": None}, {"model_version": "1"}, {"model_version": 1.0}, {"flags": None}, {"flags": -1}, {"timeout": None},
    {"preferred_memory": None}, {"preferred_memory": 1}, {"trace": None}])
def test_wrong_requests(wrong):
    with pytest.raises(TypeError):
        request(**wrong)


@pytest.mark.parametrize("wrong, text", [
    ({"inputs": [None]}, "Input tensor for request with id '' and model name 'm' should not be empty."),
    ({"requested_output_names": [""]}, "Requested output name for request with id '' and model name 'm' should not be empty."),
    ({"correlation_id": 1.5}, "Correlation ID must be integer or string"),
    ({"parameters": {1: 1}}, "Expect parameters keys to have type str, found type <class 'int'>"),
    ({"parameters": {"a": []}}, "Expect parameters values to have type bool/int/str, found type <class 'list'>"),
])
def test_refused_requests(wrong, text):
    with pytest.raises(TME) as e:
        request(**wrong)
    assert str(e.value) == text


def test_response():
    r = pb_utils.InferenceResponse([tensor()], parameters={"a": 1})
    with pytest.raises(pb_utils.TritonModelException, match="Expect parameters values to have type bool/int/str, found type <class 'float'>"):
        pb_utils.InferenceResponse([tensor()], parameters={"a": 0.5})
    assert r.output_tensors()[0].name() == "T" and not r.has_error() and r.error() is None and r.parameters() == '{"a": 1}'
    assert pb_utils.get_output_tensor_by_name(r, "T") is r.output_tensors()[0] and pb_utils.get_output_tensor_by_name(r, "U") is None
    r = pb_utils.InferenceResponse(error=pb_utils.TritonError("no"))
    assert r.has_error() and (r.error().message(), r.error().code()) == ("no", pb_utils.TritonError.INTERNAL) and r.parameters() == "{}"
    for wrong in ({"output_tensors": None}, {"output_tensors": [1]}, {"error": "no"}):
        with pytest.raises(TypeError):
            pb_utils.InferenceResponse(**wrong)
    with pytest.raises(TME, match="^Output tensor for inference response should not be empty.$"):
        pb_utils.InferenceResponse([None])


def test_error():
    codes = [getattr(pb_utils.TritonError, name) for name in ("UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED",
                                                              "ALREADY_EXISTS", "CANCELLED")]
    assert [int(code) for code in codes] == list(range(8))
    assert pb_utils.TritonError("x", code=codes[2]).code() == pb_utils.TritonError.NOT_FOUND
    for args in ((None,), ("x", None), ("x", 1)):
        with pytest.raises(TypeError):
            pb_utils.TritonError(*args)
    assert issubclass(TME, Exception) and str(TME("x")) == "x"


def test_logger(capsys):
    """Without a server the lines are on stderr."""
    pb_utils.Logger.log("plain")
    assert pb_utils.Logger.LogLevel.INFO is pb_utils.Logger.INFO
    logger = pb_utils.Logger
    for wrong in (lambda: logger.log("x", None), lambda: logger.log("x", 1), lambda: logger.log_info(None), lambda: logger.log_warn(None),
                  lambda: logger.log_error(None), lambda: logger.log_verbose(None), lambda: logger.log(1)):
        with pytest.raises(TypeError):
            wrong()
    assert capsys.readouterr().err == "plain\n"


def test_without_a_server():
    for call in (lambda: pb_utils.load_model("a"), lambda: pb_utils.is_model_ready("a"), lambda: request().exec()):
        with pytest.raises(TME):
            call()
    counter = pb_utils.MetricFamily("n", "d", pb_utils.MetricFamily.COUNTER).Metric()
    with pytest.raises(TME):
        counter.value()
    assert pb_utils.empty("x", (2, 3), "int8").as_numpy().shape == (2, 3)


CONFIG = '{"name": "m", "max_batch_size": 4, "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [4]}], "output": ' \
    '[{"name": "O", "data_type": "TYPE_INVALID", "dims": []}], "sequence_batching": {}, "model_transaction_policy": {"decoupled": true}}'
FUNCTION = "auto-complete-config function for model 'm'"


@pytest.mark.parametrize("change, text", [
    (lambda m: m.set_max_batch_size(2), f"configuration specified max_batch_size 4, but in {FUNCTION} specified max_batch_size 2"),
    (lambda m: m.set_dynamic_batching(),
     f"Configuration specified scheduling_choice as 'sequence_batching', but {FUNCTION} tries to set scheduling_choice as 'dynamic_batching'"),
    (lambda m: m.set_model_transaction_policy({"x": 1}),
     f"model transaction property in {FUNCTION} contains property other than 'decoupled'."),
    (lambda m: m.set_model_transaction_policy({"decoupled": False}),
     "trying to change decoupled property in auto-complete-config for model 'm', which is already set to 'True'."),
    (lambda m: m.add_input({"name": "A", "data_type": "TYPE_FP32", "dims": [1], "x": 1}),
     f"input 'A' in {FUNCTION} contains property other than 'name', 'data_type', 'dims' and 'optional'."),
    (lambda m: m.add_output({"name": "A", "data_type": "TYPE_FP32", "dims": [1], "optional": True}),
     f"output 'A' in {FUNCTION} contains property other than 'name', 'data_type' and 'dims'."),
    (lambda m: m.add_input({"data_type": "TYPE_FP32", "dims": [1]}), f"input in {FUNCTION} is missing 'name' property."),
    (lambda m: m.add_output({"name": "A", "dims": [1]}), f"output 'A' in {FUNCTION} is missing 'data_type' property."),
    (lambda m: m.add_input({"name": "A", "data_type": "TYPE_FP32"}), f"input 'A' in {FUNCTION} is missing 'dims' property."),
    (lambda m: m.add_input({"name": "IN", "data_type": "TYPE_INT32", "dims": [4]}),
     "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'IN', model provides TYPE_INT32"),
    (lambda m: m.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [5]}),
     "model 'm', tensor 'IN': the model expects dims [5] but the model configuration specifies dims [4]"),
])
def test_config_refusals(change, text):
    config = pb_utils.ModelConfig(CONFIG)
    with pytest.raises(ValueError) as e:
        change(config)
    assert str(e.value) == text
    assert config.as_dict() == pb_utils.json.loads(CONFIG)


def test_config():
    config = pb_utils.ModelConfig(CONFIG)
    config.set_max_batch_size(8)
    config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [4], "optional": True})
    config.add_output({"name": "O", "data_type": "TYPE_STRING", "dims": [-1]})
    config.add_output({"name": "P", "data_type": "TYPE_BOOL", "dims": [1]})
    config.set_model_transaction_policy({"decoupled": True})
    got = config.as_dict()
    assert got["max_batch_size"] == 8 and got["input"] == [{"name": "IN", "data_type": "TYPE_FP32", "dims": [4], "optional": True}]
    assert [o["name"] for o in got["output"]] == ["O", "P"] and got["output"][0]["data_type"] == "TYPE_STRING"
    assert pb_utils.get_input_config_by_name(got, "IN")["dims"] == [4] and pb_utils.get_output_config_by_name(got, "Q") is None
    assert pb_utils.using_decoupled_model_transaction_policy(got) and not pb_utils.using_decoupled_model_transaction_policy({})
    config = pb_utils.ModelConfig('{"name": "n"}')
    config.set_dynamic_batching()
    config.set_max_batch_size(1)
    config.add_input({"name": "A", "data_type": "TYPE_FP32", "dims": [1]})
    assert config.as_dict() == {"name": "n", "dynamic_batching": {}, "max_batch_size": 1,
                                "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [1]}]}

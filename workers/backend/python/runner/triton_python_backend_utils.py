"""The API of Python models."""
import json
import struct

import numpy as np

from sluice_runner import channel as _channel
from sluice_runner import model as _model
from sluice_runner import strings as _strings
from sluice_runner.control import is_model_ready, load_model, unload_model
from sluice_runner.errors import TritonError, TritonModelException
from sluice_runner.logger import Logger
from sluice_runner.metrics import MetricFamily
from sluice_runner.model_config import ModelConfig
from sluice_runner.request import TRITONSERVER_MEMORY_CPU, TRITONSERVER_MEMORY_GPU, InferenceRequest, PreferredMemory
from sluice_runner.response import InferenceResponse
from sluice_runner.tensor import DATATYPES as _DATATYPES
from sluice_runner.tensor import NUMPY_TYPES as _NUMPY_TYPES
from sluice_runner.tensor import Tensor

__all__ = [
    "TRITONSERVER_MEMORY_CPU", "TRITONSERVER_MEMORY_GPU", "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START", "TRITONSERVER_REQUEST_RELEASE_ALL", "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL", "TRITON_STRING_TO_NUMPY", "InferenceRequest", "InferenceResponse", "Logger", "MetricFamily",
    "ModelConfig", "PreferredMemory", "Tensor", "TritonError", "TritonModelException", "deserialize_bytes_tensor", "empty",
    "get_input_config_by_name", "get_input_tensor_by_name", "get_model_dir", "get_output_config_by_name", "get_output_tensor_by_name",
    "is_model_ready", "json", "load_model", "np", "numpy_to_triton_type", "serialize_byte_tensor", "struct", "triton_string_to_numpy",
    "triton_to_numpy_type", "unload_model", "using_decoupled_model_transaction_policy",
]

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2

TRITON_STRING_TO_NUMPY = {
    "TYPE_BOOL": bool, "TYPE_UINT8": np.uint8, "TYPE_UINT16": np.uint16, "TYPE_UINT32": np.uint32, "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8, "TYPE_INT16": np.int16, "TYPE_INT32": np.int32, "TYPE_INT64": np.int64, "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32, "TYPE_FP64": np.float64, "TYPE_STRING": np.object_,
}


def triton_string_to_numpy(triton_type_string):
    """numpy's type of a datatype of a config, as TYPE_FP32. KeyError where numpy has none."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type):
    """numpy's type of a datatype's number, None where there is none."""
    return _NUMPY_TYPES[data_type] if data_type in range(len(_NUMPY_TYPES)) else None


def numpy_to_triton_type(data_type):
    """The number of the datatype of a numpy type, None where there is none."""
    try:
        dtype = np.dtype(data_type)
    except TypeError:
        return None
    number = _DATATYPES.get(dtype)
    return 13 if number is None and dtype.kind == "S" else number


def _named(tensors, name):
    for tensor in tensors:
        if tensor.name() == name:
            return tensor
    return None


def get_input_tensor_by_name(inference_request, name):
    """The request's input tensor of that name, None where it has none."""
    if type(inference_request) is InferenceRequest:
        return inference_request._input(name)
    return _named(inference_request.inputs(), name)


def get_output_tensor_by_name(inference_response, name):
    """The response's output tensor of that name, None where it has none."""
    return _named(inference_response.output_tensors(), name)


def _configured(items, name):
    for item in items:
        if item["name"] == name:
            return item
    return None


def get_input_config_by_name(model_config, name):
    """What a config, a dict, says of an input; None where it has none of that name."""
    return _configured(model_config.get("input", ()), name)


def get_output_config_by_name(model_config, name):
    """What a config, a dict, says of an output; None where it has none of that name."""
    return _configured(model_config.get("output", ()), name)


def using_decoupled_model_transaction_policy(model_config):
    """Whether a config, a dict, is of a decoupled model."""
    if "model_transaction_policy" not in model_config:
        return False
    return model_config["model_transaction_policy"]["decoupled"]


def serialize_byte_tensor(input_tensor):
    """The wire form of an array of objects or of S, bytes: of each element its length, u32, and itself. () of an empty one, None of
    other types."""
    if input_tensor.size == 0:
        return ()
    return _strings.encode(input_tensor) if input_tensor.dtype.kind in "OS" else None


def deserialize_bytes_tensor(encoded_tensor):
    """An array of bytes objects, of one dimension, from its wire form."""
    return _strings.array_of(_strings.decode(encoded_tensor))


def get_model_dir():
    """The folder of the model's version; of a Python-based backend the version's, not the backend's."""
    return _model.folder()


def empty(name, shape, dtype):
    """A tensor to fill and answer with, whose array lies where answers are sent from: it is not copied. Its array must not be written
    after the answer. Triton has no such function."""
    c = _channel.current()
    if c is None:
        return Tensor(name, np.empty(shape, dtype))
    return c.empty(name, shape, dtype)

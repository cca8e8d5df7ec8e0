"""The messages and the service of proto/worker, made at run time of its descriptors (worker.binpb), so that any protobuf 4 or later
does: Hello, Batch, … are classes of this module, the values of enumerations its integers. Beside them, errors as an exception
and tensors as numpy arrays."""
import pathlib

import grpc
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_files = descriptor_pb2.FileDescriptorSet.FromString((pathlib.Path(__file__).parent / "worker.binpb").read_bytes()).file
_pool = descriptor_pool.DescriptorPool()  # of its own: another package's model_config.proto does not disturb
for _file in _files:
    _pool.Add(_file)
for _name, _class in message_factory.GetMessageClassesForFiles([f.name for f in _files], _pool).items():
    if _name.count(".") <= 3:  # those inside of others are their attributes
        globals()[_name.rsplit(".", 1)[1]] = _class
for _file in _files:
    for _enum in _file.enum_type:
        globals().update({v.name: v.number for v in _enum.value})

_service = _pool.FindServiceByName("sluice.worker.v2.Worker")


def _message(descriptor):
    return message_factory.GetMessageClass(descriptor)


def handler(servicer):
    """The service for a grpc server. servicer has a method of each call's name; those that it has not are UNIMPLEMENTED."""
    calls = {}
    for m in _service.methods:
        if behaviour := getattr(servicer, m.name, None):
            proto = descriptor_pb2.MethodDescriptorProto()
            m.CopyToProto(proto)
            kind = {(False, False): grpc.unary_unary_rpc_method_handler, (False, True): grpc.unary_stream_rpc_method_handler,
                    (True, True): grpc.stream_stream_rpc_method_handler}[proto.client_streaming, proto.server_streaming]
            calls[m.name] = kind(behaviour, request_deserializer=_message(m.input_type).FromString,
                                 response_serializer=lambda r: r.SerializeToString())
    return grpc.method_handlers_generic_handler(_service.full_name, calls)


class Fault(Exception):
    """What a client is told. code is one of proto/worker's Code."""

    def __init__(self, message, code=INTERNAL, reason=""):
        super().__init__(message)
        self.error = Error(code=code, reason=reason, message=message)


TYPES = {TYPE_BOOL: np.bool_, TYPE_UINT8: np.uint8, TYPE_UINT16: np.uint16, TYPE_UINT32: np.uint32, TYPE_UINT64: np.uint64,
         TYPE_INT8: np.int8, TYPE_INT16: np.int16, TYPE_INT32: np.int32, TYPE_INT64: np.int64, TYPE_FP16: np.float16,
         TYPE_FP32: np.float32, TYPE_FP64: np.float64}
KINDS = {np.dtype(t): name for name, t in TYPES.items()}


class Tensor:
    """A tensor as it came: bytes, with its datatype and shape. array() is a view, for all types but BYTES and BF16."""

    def __init__(self, name, data_type, shape, data):
        self.name, self.data_type, self.shape, self.data = name, data_type, list(shape), data

    @staticmethod
    def of(name, array):
        return Tensor(name, KINDS[array.dtype], array.shape, array.tobytes())

    def array(self):
        return np.frombuffer(self.data, TYPES[self.data_type]).reshape(self.shape)


def headers(outputs):
    return [Output(name=t.name, data_type=t.data_type, shape=t.shape) for t in outputs]

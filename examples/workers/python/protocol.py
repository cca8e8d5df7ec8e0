"""The messages and the service of proto/worker, made at run time of its descriptors (worker.binpb), so that any protobuf 4 or later
does: Hello, Batch, … are classes of this module, the values of enumerations its integers."""
import pathlib

import grpc
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

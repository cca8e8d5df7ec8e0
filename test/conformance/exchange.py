"""Sends one case and gives its answer in the form that golden.json keeps."""
import base64
import json
from http.client import HTTPConnection, HTTPException

import grpc as grpcio
from google.protobuf import json_format
from tritonclient.grpc import service_pb2, service_pb2_grpc


def http(address, path, body, headers):
    """{"status", "body" (JSON where it is, else text), "header_length" and "tail" (base64) of a binary answer}"""
    connection = HTTPConnection(address, timeout=20)
    try:
        connection.request("GET" if body is None else "POST", path, body, headers)
        answer = connection.getresponse()
        data, length = answer.read(), answer.headers.get("Inference-Header-Content-Length")
        got = {"status": answer.status}
        if length is not None:
            got["header_length"] = True
            got["tail"] = base64.b64encode(data[int(length):]).decode()
            data = data[:int(length)]
        try:
            got["body"] = json.loads(data)
        except ValueError:
            got["body"] = data.decode(errors="replace")
        return got
    except (OSError, HTTPException) as e:
        return {"status": 0, "body": type(e).__name__}
    finally:
        connection.close()


def grpc(address, rpc, request):
    """{"code", "message"} or {"code": "OK", "answer"}"""
    with grpcio.insecure_channel(address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        method = getattr(stub, rpc)
        kind = getattr(service_pb2, {"LogSettings": "LogSettingsRequest"}.get(rpc, rpc + "Request"))
        try:
            answer = method(json_format.ParseDict(request, kind()), timeout=20)
            return {"code": "OK", "answer": json_format.MessageToDict(answer, preserving_proto_field_name=True)}
        except grpcio.RpcError as e:
            return {"code": e.code().name, "message": e.details()}


def either(addresses, *case):
    """One case of CONTROL: over gRPC where it begins with the name of a call."""
    return grpc(addresses[1], *case) if len(case) == 2 else http(addresses[0], *case)

"""Requests whose answers are compared with the original's, over HTTP and gRPC.

original.py sends them to the real server and keeps its answers in golden.json; test_golden.py sends them to ours. OURS
holds the answers that differ on purpose, each with its reason.
"""
import json
import struct

LENGTH = "Inference-Header-Content-Length"


def infer(*inputs, **rest):
    return json.dumps({"inputs": list(inputs), **rest}).encode()


def tensor(name="INPUT0", datatype="INT32", shape=(1, 4), data=(1, 2, 3, 4), **rest):
    t = {"name": name, "datatype": datatype, "shape": list(shape), **rest}
    if data is not None:
        t["data"] = data if isinstance(data, str) else list(data)
    return t


def binary(header, *raw):
    """(body, headers) of a request in the binary tensor extension."""
    return header + b"".join(raw), {LENGTH: str(len(header)), "Content-Type": "application/octet-stream"}


def sized(size, **rest):
    return tensor(data=None, parameters={"binary_data_size": size}, **rest)


ROW = struct.pack("<4i", 1, 2, 3, 4)
INT32 = "/v2/models/identity_int32/infer"
INT8 = "/v2/models/identity_int8/infer"
TRACE = "/v2/trace/setting"
ASK = {"name": "OUTPUT0"}

# name: (path, body or None, headers); a body makes it a POST, METHOD in the headers another method.
HTTP = {
    "live": ("/v2/health/live", None, {}),
    "ready": ("/v2/health/ready", None, {}),
    "live by POST": ("/v2/health/live", b"", {}),
    "server metadata by POST": ("/v2", b"", {}),
    "no such path": ("/v2/nothing", None, {}),
    "path with a slash behind": ("/v2/", None, {}),
    "models without a name": ("/v2/models", None, {}),
    "root": ("/", None, {}),
    "model metadata": ("/v2/models/identity_int32", None, {}),
    "model metadata, version 1": ("/v2/models/identity_int32/versions/1", None, {}),
    "model metadata without batching": ("/v2/models/plain", None, {}),
    "model metadata of two versions": ("/v2/models/versions", None, {}),
    "model metadata by POST": ("/v2/models/identity_int32", b"", {}),
    "unknown model": ("/v2/models/nope", None, {}),
    "unknown version": ("/v2/models/identity_int32/versions/9", None, {}),
    "version that policy left out": ("/v2/models/versions/versions/2", None, {}),
    "version that is no number": ("/v2/models/identity_int32/versions/abc", None, {}),
    "version 0": ("/v2/models/identity_int32/versions/0", None, {}),
    "version -1": ("/v2/models/identity_int32/versions/-1", None, {}),
    "version of 30 digits": ("/v2/models/identity_int32/versions/" + "9" * 30, None, {}),
    "model ready": ("/v2/models/identity_int32/ready", None, {}),
    "version ready": ("/v2/models/identity_int32/versions/1/ready", None, {}),
    "unknown model ready": ("/v2/models/nope/ready", None, {}),
    "unknown version ready": ("/v2/models/identity_int32/versions/9/ready", None, {}),
    "version that is no number ready": ("/v2/models/identity_int32/versions/abc/ready", None, {}),
    "model config": ("/v2/models/identity_int32/config", None, {}),
    "model config with batching": ("/v2/models/brief/config", None, {}),
    "model config with a queue policy": ("/v2/models/expires/config", None, {}),
    "model config with reshape": ("/v2/models/reshaped/config", None, {}),
    "model config with a version policy": ("/v2/models/versions/config", None, {}),
    "model config with labels": ("/v2/models/classes/config", None, {}),
    "unknown model config": ("/v2/models/nope/config", None, {}),
    "unknown version config": ("/v2/models/identity_int32/versions/9/config", None, {}),
    "unknown model stats": ("/v2/models/nope/stats", None, {}),
    "unknown version stats": ("/v2/models/identity_int32/versions/9/stats", None, {}),
    "index by GET": ("/v2/repository/index", None, {}),
    "logging": ("/v2/logging", None, {}),
    "logging, unknown field": ("/v2/logging", b'{"log_nothing":true}', {}),
    "logging, wrong type": ("/v2/logging", b'{"log_info":"yes"}', {}),
    "logging, wrong format": ("/v2/logging", b'{"log_format":"klingon"}', {}),
    "logging, file": ("/v2/logging", b'{"log_file":"x.log"}', {}),
    "logging, no JSON": ("/v2/logging", b"{", {}),
    "logging, verbose -1": ("/v2/logging", b'{"log_verbose_level":-1}', {}),
    "logging, info on": ("/v2/logging", b'{"log_info":true}', {}),
    "trace settings": (TRACE, None, {}),
    "trace settings of a model": ("/v2/models/plain/trace/setting", None, {}),
    "trace settings of an unknown model": ("/v2/models/nope/trace/setting", None, {}),
    "trace settings of a version": ("/v2/models/plain/versions/1/trace/setting", None, {}),
    "trace settings, unknown model before the body": ("/v2/models/nope/trace/setting", b"{", {}),
    "trace settings, no change": (TRACE, b"{}", {}),
    "trace settings, unknown field": (TRACE, b'{"unknown":1,"trace_mode":"opentelemetry"}', {}),
    "trace settings, list": (TRACE, b"[]", {}),
    "trace settings, empty body": (TRACE, b"", {}),
    "trace settings, no JSON": (TRACE, b"hello", {}),
    "trace settings, file": (TRACE, b'{"trace_file":"x"}', {}),
    "trace settings, file null": (TRACE, b'{"trace_file":null,"trace_rate":"x"}', {}),
    "trace settings, all null": (TRACE, b'{"trace_level":null,"trace_rate":null,"trace_count":null,"log_frequency":null}', {}),
    "trace settings, level no list": (TRACE, b'{"trace_level":"OFF"}', {}),
    "trace settings, level of numbers": (TRACE, b'{"trace_level":[1]}', {}),
    "trace settings, level empty": (TRACE, b'{"trace_level":[]}', {}),
    "trace settings, level unknown": (TRACE, b'{"trace_level":["X"]}', {}),
    "trace settings, level OFF and another": (TRACE, b'{"trace_level":["OFF","TIMESTAMPS"]}', {}),
    "trace settings, level without a file": (TRACE, b'{"trace_level":["TIMESTAMPS"]}', {}),
    "trace settings, level OFF": (TRACE, b'{"trace_level":["OFF"]}', {}),
    "trace settings, rate a number": (TRACE, b'{"trace_rate":5}', {}),
    "trace settings, rate no number": (TRACE, b'{"trace_rate":"x"}', {}),
    "trace settings, rate empty": (TRACE, b'{"trace_rate":""}', {}),
    "trace settings, rate too big": (TRACE, b'{"trace_rate":"4294967296"}', {}),
    "trace settings, rate -1": (TRACE, b'{"trace_rate":"-1"}', {}),
    "trace settings, rate with letters": (TRACE, b'{"trace_rate":"12abc"}', {}),
    "trace settings, count -2": (TRACE, b'{"trace_count":"-2"}', {}),
    "trace settings, count too big": (TRACE, b'{"trace_count":"3000000000"}', {}),
    "trace settings, count no number": (TRACE, b'{"trace_count":"abc","log_frequency":"y"}', {}),
    "trace settings, count a list": (TRACE, b'{"trace_count":["3"]}', {}),
    "trace settings, frequency no number": (TRACE, b'{"log_frequency":"x"}', {}),
    "trace settings, frequency too big": (TRACE, b'{"log_frequency":"99999999999"}', {}),
    "trace settings, frequency a number": (TRACE, b'{"log_frequency":7}', {}),
    "trace settings, two faults": (TRACE, b'{"trace_count":"x","trace_rate":"y"}', {}),
    "trace settings, set and cleared 1": (TRACE, b'{"trace_rate":"7","trace_count":"5","log_frequency":"3"}', {}),
    "trace settings, set and cleared 2": ("/v2/models/plain/trace/setting", b'{"trace_rate":"9"}', {}),
    "trace settings, set and cleared 3": (TRACE, b'{"trace_rate":"8","trace_count":null}', {}),
    "trace settings, set and cleared 4": ("/v2/models/plain/trace/setting", None, {}),
    "trace settings, set and cleared 5": ("/v2/models/plain/trace/setting", b'{"trace_rate":null}', {}),
    "trace settings, set and cleared 6": (TRACE, b'{"trace_rate":null,"trace_count":null,"log_frequency":null}', {}),
    "index, no JSON": ("/v2/repository/index", b"{", {}),
    "load": ("/v2/repository/models/plain/load", b"", {}),
    "unload": ("/v2/repository/models/plain/unload", b"", {}),
    "load, unknown parameter": ("/v2/repository/models/plain/load", b'{"parameters":{"zz":"1"}}', {}),
    "load, no JSON": ("/v2/repository/models/plain/load", b"garbage", {}),
    "load of another repository": ("/v2/repository/x/models/plain/load", b"", {}),
    "infer, shape []": (INT32, infer(tensor(shape=(), data=())), {}),
    "infer, shape [] with one element": (INT32, infer(tensor(shape=(), data=(1,))), {}),
    "infer by GET": (INT32, None, {}),
    "infer": (INT32, infer(tensor()), {}),
    "infer, version 1": ("/v2/models/identity_int32/versions/1/infer", infer(tensor()), {}),
    "infer with an id": (INT32, infer(tensor(), id="a/b c"), {}),
    "infer with an empty id": (INT32, infer(tensor(), id=""), {}),
    "infer with a number as id": (INT32, infer(tensor(), id=4), {}),
    "infer, data nested": (INT32, infer(tensor(shape=[2, 2], data=[[1, 2], [3, 4]])), {}),
    "infer, named output": (INT32, infer(tensor(), outputs=[ASK]), {}),
    "infer, output list empty": (INT32, infer(tensor(), outputs=[]), {}),
    "infer, two in two out": ("/v2/models/two/infer", infer(tensor(), tensor("INPUT1", "FP32", [1, 2], [0.5, -1e9])), {}),
    "infer, one of two outputs": ("/v2/models/two/infer", infer(
        tensor(), tensor("INPUT1", "FP32", [1, 2], [0.5, 2]), outputs=[{"name": "OUTPUT1"}]), {}),
    "infer, no batching": ("/v2/models/plain/infer", infer(tensor(datatype="FP32", shape=[2, 2], data=[1, 2, 3, 4.5])), {}),
    "infer, latest of two versions": ("/v2/models/versions/infer", infer(tensor()), {}),
    "infer, reshape": ("/v2/models/reshaped/infer", infer(tensor(datatype="FP32", shape=[1, 2, 2], data=[1, 2, 3, 4])), {}),
    "infer, BOOL": ("/v2/models/identity_bool/infer", infer(tensor(datatype="BOOL", data=[True, False, True, True])), {}),
    "infer, BOOL from numbers": ("/v2/models/identity_bool/infer", infer(tensor(datatype="BOOL", data=[1, 0, 1, 0])), {}),
    "infer, BYTES": ("/v2/models/identity_bytes/infer", infer(tensor(datatype="BYTES", data=["a", "", "ü\"\\", "d\n"])), {}),
    "infer, BYTES from numbers": ("/v2/models/identity_bytes/infer", infer(tensor(datatype="BYTES", data=[1, 2, 3, 4])), {}),
    "infer, FP32 whole numbers": ("/v2/models/identity_fp32/infer", infer(tensor(datatype="FP32", data=[1, 2.5, -3, 1e10])), {}),
    "infer, FP64": ("/v2/models/identity_fp64/infer", infer(tensor(datatype="FP64", data=[1, 2.5, 0.1, 1e300])), {}),
    "infer, FP32 too big": ("/v2/models/identity_fp32/infer", infer(tensor(datatype="FP32", data=[1, 2, 3, 1e300])), {}),
    "infer, UINT64 greatest": ("/v2/models/identity_uint64/infer", infer(tensor(datatype="UINT64", data=[2**64 - 1, 0, 1, 2])), {}),
    "infer, INT64 least": ("/v2/models/identity_int64/infer", infer(tensor(datatype="INT64", data=[-2**63, 2**63 - 1, 1, 2])), {}),
    "infer, INT8 limits": (INT8, infer(tensor(datatype="INT8", data=[-128, 127, 0, 1])), {}),
    "infer, INT8 too big": (INT8, infer(tensor(datatype="INT8", data=[1, 2, 3, 300])), {}),
    "infer, INT8 too small": (INT8, infer(tensor(datatype="INT8", data=[1, 2, 3, -129])), {}),
    "infer, UINT8 negative": ("/v2/models/identity_uint8/infer", infer(tensor(datatype="UINT8", data=[1, 2, 3, -1])), {}),
    "infer, INT32 too big": (INT32, infer(tensor(data=[1, 2, 3, 2**40])), {}),
    "infer, INT32 from a fraction": (INT32, infer(tensor(data=[1, 2, 3, 4.5])), {}),
    "infer, INT32 from a string": (INT32, infer(tensor(data=[1, 2, 3, "4"])), {}),
    "infer, INT32 from null": (INT32, infer(tensor(data=[1, 2, 3, None])), {}),
    "infer, FP32 from a string": ("/v2/models/identity_fp32/infer", infer(tensor(datatype="FP32", data=[1, 2, 3, "4"])), {}),
    "infer, BOOL from a string": ("/v2/models/identity_bool/infer", infer(tensor(datatype="BOOL", data=[True, False, True, "x"])), {}),
    "infer, FP16 by JSON": ("/v2/models/identity_fp16/infer", infer(tensor(datatype="FP16")), {}),
    "infer, BF16 by JSON": ("/v2/models/identity_bf16/infer", infer(tensor(datatype="BF16")), {}),
    "infer, FP16 answered by JSON": ("/v2/models/identity_fp16/infer", *binary(
        infer(tensor(datatype="FP16", data=None, parameters={"binary_data_size": 8})), b"\0\x3c" * 4)),
    "infer, unknown model": ("/v2/models/nope/infer", infer(tensor()), {}),
    "infer, unknown version": ("/v2/models/identity_int32/versions/9/infer", infer(tensor()), {}),
    "infer, version no number": ("/v2/models/identity_int32/versions/x/infer", infer(tensor()), {}),
    "infer, empty body": (INT32, b"", {}),
    "infer, no JSON": (INT32, b"hello", {}),
    "infer, half a JSON": (INT32, infer(tensor())[:-2], {}),
    "infer, JSON is a list": (INT32, b"[]", {}),
    "infer, no inputs": (INT32, b"{}", {}),
    "infer, inputs no list": (INT32, b'{"inputs":4}', {}),
    "infer, inputs null": (INT32, b'{"inputs":null}', {}),
    "infer, inputs empty": (INT32, infer(), {}),
    "infer, inputs empty, with an id": (INT32, infer(id="r4"), {}),
    "infer, input no object": (INT32, b'{"inputs":[4]}', {}),
    "infer, input without name": (INT32, b'{"inputs":[{"shape":[1,4],"datatype":"INT32","data":[1,2,3,4]}]}', {}),
    "infer, input without shape": (INT32, b'{"inputs":[{"name":"INPUT0","datatype":"INT32","data":[1,2,3,4]}]}', {}),
    "infer, input without datatype": (INT32, b'{"inputs":[{"name":"INPUT0","shape":[1,4],"data":[1,2,3,4]}]}', {}),
    "infer, shape no list": (INT32, b'{"inputs":[{"name":"INPUT0","shape":4,"datatype":"INT32","data":[1,2,3,4]}]}', {}),
    "infer, shape of strings": (INT32, infer(tensor(shape=["1", "4"])), {}),
    "infer, shape negative": (INT32, infer(tensor(shape=[1, -4])), {}),
    "infer, shape overflows": (INT32, infer(tensor(shape=[1, 2**62, 8])), {}),
    "infer, input without data": (INT32, infer(tensor(data=None)), {}),
    "infer, wrong input": (INT32, infer(tensor("X")), {}),
    "infer, input twice": (INT32, infer(tensor(), tensor()), {}),
    "infer, one input too many": (INT32, infer(tensor(), tensor("INPUT1")), {}),
    "infer, one input missing": ("/v2/models/two/infer", infer(tensor()), {}),
    "infer, wrong shape": ("/v2/models/two/infer", infer(tensor(shape=[1, 3], data=[1, 2, 3]), tensor(
        "INPUT1", "FP32", [1, 2], [0.5, 2])), {}),
    "infer, wrong rank": (INT32, infer(tensor(shape=[1, 2, 2])), {}),
    "infer, wrong rank without batching": ("/v2/models/plain/infer", infer(tensor(datatype="FP32", shape=[4])), {}),
    "infer, wrong shape without batching": ("/v2/models/plain/infer", infer(tensor(datatype="FP32", shape=[1, 4])), {}),
    "infer, no batch dimension": (INT32, infer(tensor(shape=[4])), {}),
    "infer, batch sizes differ": ("/v2/models/two/infer", infer(tensor(), tensor("INPUT1", "FP32", [2, 1], [0.5, 2])), {}),
    "infer, batch too big": (INT32, infer(tensor(shape=[9, 1], data=range(9))), {}),
    "infer, batch 0": (INT32, infer(tensor(shape=[0, 4], data=[])), {}),
    "infer, no element": (INT32, infer(tensor(shape=[1, 0], data=[])), {}),
    "infer, datatype differs": (INT32, infer(tensor(datatype="FP32")), {}),
    "infer, unknown datatype": (INT32, infer(tensor(datatype="INT33")), {}),
    "infer, lower case datatype": (INT32, infer(tensor(datatype="int32")), {}),
    "infer, too few elements": (INT32, infer(tensor(data=[1, 2, 3])), {}),
    "infer, too many elements": (INT32, infer(tensor(data=[1, 2, 3, 4, 5])), {}),
    "infer, data no list": (INT32, infer(tensor(data="abcd")), {}),
    "infer, unknown output": (INT32, infer(tensor(), outputs=[{"name": "ZZ"}]), {}),
    "infer, output without name": (INT32, infer(tensor(), outputs=[{}]), {}),
    "infer, outputs no list": (INT32, infer(tensor(), outputs=4), {}),
    "infer, reserved parameter": (INT32, infer(tensor(), parameters={"triton_x": 1}), {}),
    "infer, parameter is a list": (INT32, infer(tensor(), parameters={"x": [1]}), {}),
    "infer, parameter is null": (INT32, infer(tensor(), parameters={"x": None}), {}),
    "infer, parameters": (INT32, infer(tensor(), parameters={"a": 1, "b": True, "c": "x", "d": 1.5}), {}),
    "infer, parameters no object": (INT32, infer(tensor(), parameters=4), {}),
    "infer, timeout is a string": (INT32, infer(tensor(), parameters={"timeout": "soon"}), {}),
    "infer, priority is a string": (INT32, infer(tensor(), parameters={"priority": "high"}), {}),
    "infer, sequence_start no bool": (INT32, infer(tensor(), parameters={"sequence_id": 1, "sequence_start": "x"}), {}),
    "infer, sequence_id on a stateless model": (INT32, infer(tensor(), parameters={"sequence_id": 7, "sequence_start": True}), {}),
    "infer, timeout": (INT32, infer(tensor(), parameters={"timeout": 1000000}), {}),
    "infer, timeout -1": (INT32, infer(tensor(), parameters={"timeout": -1}), {}),
    "infer, timeout with a fraction": (INT32, infer(tensor(), parameters={"timeout": 1.5}), {}),
    "infer, timeout 2^64-1": (INT32, infer(tensor(), parameters={"timeout": 2**64 - 1}), {}),
    "infer, timeout null": (INT32, infer(tensor(), parameters={"timeout": None}), {}),
    "infer, priority without levels": (INT32, infer(tensor(), parameters={"priority": 7}), {}),
    "infer, priority -1": (INT32, infer(tensor(), parameters={"priority": -1}), {}),
    "infer, priority a number as a string": (INT32, infer(tensor(), parameters={"priority": "1"}), {}),
    "infer, priority 2^64": (INT32, infer(tensor(), parameters={"priority": 2**64}), {}),
    "infer, priority true": (INT32, infer(tensor(), parameters={"priority": True}), {}),
    "infer, binary in, JSON out": (INT32, *binary(infer(sized(16)), ROW)),
    "infer, binary both ways": (INT32, *binary(infer(sized(16), outputs=[{**ASK, "parameters": {"binary_data": True}}]), ROW)),
    "infer, all outputs binary": (INT32, infer(tensor(), parameters={"binary_data_output": True}), {}),
    "infer, all binary but one": ("/v2/models/two/infer", infer(tensor(), tensor("INPUT1", "FP32", [1, 1], [0.5]), parameters={
        "binary_data_output": True}, outputs=[{**ASK, "parameters": {"binary_data": False}}, {"name": "OUTPUT1"}]), {}),
    "infer, binary size not the shape's": (INT32, *binary(infer(sized(3)), b"abc")),
    "infer, binary size too big": (INT32, *binary(infer(sized(20)), ROW + b"abcd")),
    "infer, binary size more than the body": (INT32, *binary(infer(sized(16)), b"abc")),
    "infer, binary size less than the body": (INT32, *binary(infer(sized(16)), ROW + b"tail")),
    "infer, binary size negative": (INT32, *binary(infer(sized(-1)), ROW)),
    "infer, binary size a string": (INT32, *binary(infer(sized("16")), ROW)),
    "infer, binary size of 2^63": (INT32, *binary(infer(sized(2**63 - 1)), ROW)),
    "infer, binary size and data": (INT32, *binary(infer(tensor(parameters={"binary_data_size": 16})), ROW)),
    "infer, header length beyond the body": (INT32, infer(tensor()), {LENGTH: "999"}),
    "infer, header length negative": (INT32, infer(tensor()), {LENGTH: "-4"}),
    "infer, header length no number": (INT32, infer(tensor()), {LENGTH: "x"}),
    "infer, header length with a tail": (INT32, infer(tensor()), {LENGTH: "12x"}),
    "infer, BYTES binary": ("/v2/models/identity_bytes/infer", *binary(infer(tensor(
        datatype="BYTES", shape=[1, 2], data=None, parameters={"binary_data_size": 11})), b"\3\0\0\0abc\0\0\0\0")),
    "infer, BYTES binary cut": ("/v2/models/identity_bytes/infer", *binary(infer(tensor(
        datatype="BYTES", shape=[1, 2], data=None, parameters={"binary_data_size": 6})), b"\3\0\0\0ab")),
    "infer, BYTES binary, a length beyond": ("/v2/models/identity_bytes/infer", *binary(infer(tensor(
        datatype="BYTES", shape=[1, 1], data=None, parameters={"binary_data_size": 8})), b"\xff\xff\xff\x7fabcd")),
    "infer, BYTES binary, one too few": ("/v2/models/identity_bytes/infer", *binary(infer(tensor(
        datatype="BYTES", shape=[1, 2], data=None, parameters={"binary_data_size": 7})), b"\3\0\0\0abc")),
    "infer, raw request": (INT32, ROW, {LENGTH: "0"}),
    "infer, raw request, size odd": (INT32, b"abc", {LENGTH: "0"}),
    "infer, raw request, two inputs": ("/v2/models/two/infer", ROW, {LENGTH: "0"}),
    "infer, raw request, empty": (INT32, b"", {LENGTH: "0"}),
    "infer, raw request, BYTES": ("/v2/models/raw_bytes/infer", b"hello", {LENGTH: "0"}),
    "infer, raw request, BYTES of any shape": ("/v2/models/identity_bytes/infer", b"hello", {LENGTH: "0"}),
    "infer, raw request, two variable dims": ("/v2/models/plain/infer", ROW, {LENGTH: "0"}),
    "infer, classification": ("/v2/models/classes/infer", infer(tensor(datatype="FP32", data=[0.5, 4, 1, 3]), outputs=[
        {**ASK, "parameters": {"classification": 2}}]), {}),
    "infer, classification, all": ("/v2/models/classes/infer", infer(tensor(datatype="FP32", data=[0.5, 4, 1, 4]), outputs=[
        {**ASK, "parameters": {"classification": 9}}]), {}),
    "infer, classification of a batch": ("/v2/models/classes/infer", infer(tensor(
        datatype="FP32", shape=[2, 4], data=[1, 2, 3, 4, 8, 7, 6, 5]), outputs=[{**ASK, "parameters": {"classification": 1}}]), {}),
    "infer, classification without labels": (INT32, infer(tensor(), outputs=[{**ASK, "parameters": {"classification": 2}}]), {}),
    "infer, classification of BOOL": ("/v2/models/identity_bool/infer", infer(tensor(datatype="BOOL", data=[False, True, False, False]), outputs=[
        {**ASK, "parameters": {"classification": 1}}]), {}),
    "infer, classification of BYTES": ("/v2/models/identity_bytes/infer", infer(tensor(
        datatype="BYTES", data=["a", "b", "c", "d"]), outputs=[{**ASK, "parameters": {"classification": 1}}]), {}),
    "infer, classification 0": ("/v2/models/classes/infer", infer(tensor(datatype="FP32"), outputs=[
        {**ASK, "parameters": {"classification": 0}}]), {}),
    "infer, classification -1": ("/v2/models/classes/infer", infer(tensor(datatype="FP32"), outputs=[
        {**ASK, "parameters": {"classification": -1}}]), {}),
    "infer, classification a string": ("/v2/models/classes/infer", infer(tensor(datatype="FP32"), outputs=[
        {**ASK, "parameters": {"classification": "2"}}]), {}),
    "infer, unknown encoding": (INT32, infer(tensor()), {"Content-Encoding": "br"}),
    "infer, not gzip though it says so": (INT32, infer(tensor()), {"Content-Encoding": "gzip"}),
    "infer, shared memory region unknown": (INT32, infer(tensor(data=None, parameters={
        "shared_memory_region": "r", "shared_memory_byte_size": 16})), {}),
    "infer, data and shared memory": (INT32, infer(tensor(parameters={
        "shared_memory_region": "r", "shared_memory_byte_size": 16})), {}),
}

B64_ROW = "AQAAAAIAAAADAAAABAAAAA=="
GRPC_TENSOR = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 4]}


def model_infer(*inputs, raw=(B64_ROW,), model="identity_int32", **rest):
    return "ModelInfer", {"modelName": model, "inputs": list(inputs) or [GRPC_TENSOR], "rawInputContents": list(raw), **rest}


def typed(field, values, **rest):
    return {**GRPC_TENSOR, "contents": {field: values}, **rest}


# name: (RPC, request in the JSON form of protobuf)
GRPC = {
    "live": ("ServerLive", {}),
    "ready": ("ServerReady", {}),
    "model ready": ("ModelReady", {"name": "identity_int32"}),
    "unknown model ready": ("ModelReady", {"name": "nope"}),
    "version no number ready": ("ModelReady", {"name": "identity_int32", "version": "x"}),
    "metadata": ("ModelMetadata", {"name": "identity_int32"}),
    "metadata of an unknown model": ("ModelMetadata", {"name": "nope"}),
    "metadata of an unknown version": ("ModelMetadata", {"name": "identity_int32", "version": "9"}),
    "metadata, version no number": ("ModelMetadata", {"name": "identity_int32", "version": "abc"}),
    "config of an unknown model": ("ModelConfig", {"name": "nope"}),
    "stats of an unknown model": ("ModelStatistics", {"name": "nope"}),
    "logging": ("LogSettings", {}),
    "logging, unknown": ("LogSettings", {"settings": {"log_nothing": {"boolParam": True}}}),
    "logging, wrong type": ("LogSettings", {"settings": {"log_info": {"stringParam": "yes"}}}),
    "logging, wrong format": ("LogSettings", {"settings": {"log_format": {"stringParam": "klingon"}}}),
    "logging, file": ("LogSettings", {"settings": {"log_file": {"stringParam": "x.log"}}}),
    "trace settings": ("TraceSetting", {}),
    "trace settings of a model": ("TraceSetting", {"model_name": "plain"}),
    "trace settings of an unknown model": ("TraceSetting", {"model_name": "nope"}),
    "trace settings, unknown": ("TraceSetting", {"settings": {"unknown": {"value": ["1"]}}}),
    "trace settings, file": ("TraceSetting", {"settings": {"trace_file": {"value": ["x"]}, "trace_rate": {"value": ["x"]}}}),
    "trace settings, level OFF and another": ("TraceSetting", {"settings": {"trace_level": {"value": ["TENSORS", "OFF"]}}}),
    "trace settings, level without a file": ("TraceSetting", {"settings": {"trace_level": {"value": ["TENSORS"]}}}),
    "trace settings, rate no number": ("TraceSetting", {"settings": {"trace_rate": {"value": ["x"]}}}),
    "trace settings, rate too big": ("TraceSetting", {"settings": {"trace_rate": {"value": ["4294967296"]}}}),
    "trace settings, two rates": ("TraceSetting", {"settings": {"trace_rate": {"value": ["1", "2"]}}}),
    "trace settings, count -2": ("TraceSetting", {"settings": {"trace_count": {"value": ["-2"]}}}),
    "trace settings, count too big": ("TraceSetting", {"settings": {"trace_count": {"value": ["3000000000"]}}}),
    "trace settings, two counts": ("TraceSetting", {"settings": {"trace_count": {"value": ["1", "2"]}}}),
    "trace settings, frequency no number": ("TraceSetting", {"settings": {"log_frequency": {"value": ["x"]}}}),
    "trace settings, two frequencies": ("TraceSetting", {"settings": {"log_frequency": {"value": ["1", "2"]}}}),
    "trace settings, set and cleared 1": ("TraceSetting", {"settings": {"trace_rate": {"value": ["7"]}, "trace_count": {"value": ["5"]}}}),
    "trace settings, set and cleared 2": ("TraceSetting", {"settings": {"log_frequency": {"value": ["3"]}}, "model_name": "plain"}),
    "trace settings, set and cleared 3": ("TraceSetting", {"settings": {"trace_rate": {}, "trace_count": {}}}),
    "trace settings, set and cleared 4": ("TraceSetting", {"settings": {"log_frequency": {}}, "model_name": "plain"}),
    "load": ("RepositoryModelLoad", {"modelName": "plain"}),
    "unload": ("RepositoryModelUnload", {"modelName": "plain"}),
    "load, unknown parameter": ("RepositoryModelLoad", {"modelName": "plain", "parameters": {"zz": {"string_param": "x"}}}),
    "load, config no string": ("RepositoryModelLoad", {"modelName": "plain", "parameters": {"config": {"int64_param": 1}}}),
    "load, file no bytes": ("RepositoryModelLoad", {"modelName": "plain", "parameters": {"file:1/x": {"string_param": "x"}}}),
    "load of another repository": ("RepositoryModelLoad", {"repositoryName": "x", "modelName": "plain"}),
    "unload of another repository": ("RepositoryModelUnload", {"repositoryName": "x", "modelName": "plain"}),
    "unload, dependents no bool": ("RepositoryModelUnload", {"modelName": "plain", "parameters": {"unload_dependents": {"string_param": "x"}}}),
    "infer": model_infer(),
    "infer with an id": model_infer(id="r1"),
    "infer, typed": model_infer(typed("intContents", [1, 2, 3, 4]), raw=()),
    "infer, typed INT8": model_infer(typed("intContents", [1, 2, 3, 4], datatype="INT8"), raw=(), model="identity_int8"),
    "infer, typed INT8 too big": model_infer(typed("intContents", [1, 2, 3, 400], datatype="INT8"), raw=(), model="identity_int8"),
    "infer, typed UINT8": model_infer(typed("uintContents", [1, 2, 3, 255], datatype="UINT8"), raw=(), model="identity_uint8"),
    "infer, typed INT64": model_infer(typed("int64Contents", [1, 2, 3, -4], datatype="INT64"), raw=(), model="identity_int64"),
    "infer, typed UINT64": model_infer(typed("uint64Contents", [1, 2, 3, 4], datatype="UINT64"), raw=(), model="identity_uint64"),
    "infer, typed FP32": model_infer(typed("fp32Contents", [1, 2, 3, 4.5], datatype="FP32"), raw=(), model="identity_fp32"),
    "infer, typed FP64": model_infer(typed("fp64Contents", [1, 2, 3, 4.5], datatype="FP64"), raw=(), model="identity_fp64"),
    "infer, typed BOOL": model_infer(typed("boolContents", [True, False, True, True], datatype="BOOL"), raw=(), model="identity_bool"),
    "infer, typed BYTES": model_infer(typed("bytesContents", ["YQ==", "", "YmI=", "Yw=="], datatype="BYTES"), raw=(), model="identity_bytes"),
    "infer, typed FP16": model_infer(typed("fp32Contents", [1, 2, 3, 4], datatype="FP16"), raw=(), model="identity_fp16"),
    "infer, typed in the wrong field": model_infer(typed("fp32Contents", [1, 2, 3, 4]), raw=()),
    "infer, typed, too few": model_infer(typed("intContents", [1, 2, 3]), raw=()),
    "infer, typed, too many": model_infer(typed("intContents", [1, 2, 3, 4, 5]), raw=()),
    "infer, typed and raw": model_infer(typed("intContents", [1, 2, 3, 4])),
    "infer, no data": model_infer(raw=()),
    "infer, two raw for one input": model_infer(raw=(B64_ROW, B64_ROW)),
    "infer, raw too short": model_infer(raw=("AQAAAAIAAAADAAAA",)),
    "infer, raw too long": model_infer(raw=("AQAAAAIAAAADAAAABAAAAAUAAAA=",)),
    "infer, unknown model": model_infer(model="nope"),
    "infer, no model": model_infer(model=""),
    "infer, unknown version": model_infer(modelVersion="9"),
    "infer, version no number": model_infer(modelVersion="x"),
    "infer, wrong input": model_infer({**GRPC_TENSOR, "name": "X"}),
    "infer, no input": ("ModelInfer", {"modelName": "identity_int32"}),
    "infer, wrong rank": model_infer({**GRPC_TENSOR, "shape": [4]}),
    "infer, batch too big": model_infer({**GRPC_TENSOR, "shape": [9, 1]}, raw=("AAAA" * 12,)),
    "infer, negative shape": model_infer({**GRPC_TENSOR, "shape": [1, -4]}),
    "infer, datatype differs": model_infer({**GRPC_TENSOR, "datatype": "FP32"}),
    "infer, unknown datatype": model_infer({**GRPC_TENSOR, "datatype": "INT33"}),
    "infer, unknown output": model_infer(outputs=[{"name": "ZZ"}]),
    "infer, named output": model_infer(outputs=[{"name": "OUTPUT0"}]),
    "infer, reserved parameter": model_infer(parameters={"triton_x": {"int64Param": 1}}),
    "infer, custom uint64": model_infer(parameters={"u": {"uint64Param": 1}}),
    "infer, custom double": model_infer(parameters={"d": {"doubleParam": 1.5}}),
    "infer, custom scalars": model_infer(parameters={"i": {"int64Param": 1}, "b": {"boolParam": True}, "s": {"stringParam": "x"}}),
    "infer, empty parameter": model_infer(parameters={"e": {}}),
    "infer, timeout a string": model_infer(parameters={"timeout": {"stringParam": "x"}}),
    "infer, timeout": model_infer(parameters={"timeout": {"int64Param": 1000000}}),
    "infer, timeout -1": model_infer(parameters={"timeout": {"int64Param": -1}}),
    "infer, timeout uint64": model_infer(parameters={"timeout": {"uint64Param": 5}}),
    "infer, timeout without a value": model_infer(parameters={"timeout": {}}),
    "infer, priority without levels": model_infer(parameters={"priority": {"uint64Param": 7}}),
    "infer, priority int64": model_infer(parameters={"priority": {"int64Param": 1}}),
    "infer, priority -1": model_infer(parameters={"priority": {"int64Param": -1}}),
    "infer, priority a string": model_infer(parameters={"priority": {"stringParam": "1"}}),
    "infer, priority a double": model_infer(parameters={"priority": {"doubleParam": 1.0}}),
    "infer, priority without a value": model_infer(parameters={"priority": {}}),
    "infer, priority a bool": model_infer(parameters={"priority": {"boolParam": True}}),
    "infer, priority uint64": model_infer(parameters={"priority": {"uint64Param": 0}}),
    "infer, sequence_start a string": model_infer(parameters={"sequence_id": {"int64Param": 1}, "sequence_start": {"stringParam": "x"}}),
    "infer, classification": model_infer(outputs=[{"name": "OUTPUT0", "parameters": {"classification": {"int64Param": 2}}}]),
    "infer, classification with labels": model_infer(
        {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4]}, raw=("AACAPwAAAEAAAEBAAACAQA==",), model="classes",
        outputs=[{"name": "OUTPUT0", "parameters": {"classification": {"int64Param": 2}}}]),
    "infer, classification a string": model_infer(outputs=[{"name": "OUTPUT0", "parameters": {"classification": {"stringParam": "2"}}}]),
    "infer, BYTES cut": model_infer({**GRPC_TENSOR, "datatype": "BYTES", "shape": [1, 2]}, raw=("AwAAAGFi",), model="identity_bytes"),
    "infer, shared memory unknown": model_infer({**GRPC_TENSOR, "parameters": {
        "shared_memory_region": {"stringParam": "r"}, "shared_memory_byte_size": {"int64Param": 16}}}, raw=()),
}


def load(model, **parameters):
    return f"/v2/repository/models/{model}/load", json.dumps({"parameters": parameters}).encode() if parameters else b"", {}


def unload(model, **parameters):
    return f"/v2/repository/models/{model}/unload", json.dumps({"parameters": parameters}).encode() if parameters else b"", {}


PLAIN_READY = "/v2/models/plain/ready", None, {}
INDEX = "/v2/repository/index", b"", {}

# In this order, on a server of its own in the control mode explicit: (HTTP case) or (rpc, request).
CONTROL = {
    "index at the start": INDEX,
    "server ready, nothing loaded": ("/v2/health/ready", None, {}),
    "model ready, not loaded": PLAIN_READY,
    "metadata, not loaded": ("/v2/models/plain", None, {}),
    "statistics, not loaded": ("/v2/models/plain/stats", None, {}),
    "load an unknown model": load("nope"),
    "load an unknown model over gRPC": ("RepositoryModelLoad", {"modelName": "nope"}),
    "load nothing over gRPC": ("RepositoryModelLoad", {}),
    "load": load("plain"),
    "model ready, loaded": PLAIN_READY,
    "load again": load("plain"),
    "load, an empty object": ("/v2/repository/models/plain/load", b"{}", {}),
    "load, an array": ("/v2/repository/models/plain/load", b"[]", {}),
    "load, another member": ("/v2/repository/models/plain/load", b'{"zz":1}', {}),
    "load, no parameters": ("/v2/repository/models/plain/load", b'{"parameters":{}}', {}),
    "load, parameters an array": ("/v2/repository/models/plain/load", b'{"parameters":[]}', {}),
    "load, parameters null": ("/v2/repository/models/plain/load", b'{"parameters":null}', {}),
    "load, config a number": load("plain", config=1),
    "load, a parameter that is not there": load("plain", zz="1"),
    "load, a parameter that is not there, a flag": load("plain", zz=True),
    "load, unload_dependents": load("plain", unload_dependents=True),
    "load, config is no JSON": load("plain", config="{"),
    "load, config of another model": load("plain", config='{"name":"other"}'),
    "load, config with an unknown field": load("plain", config='{"nofield":1}'),
    "load, config with a wrong value": load("plain", config='{"max_batch_size":-1}'),
    "load, a file without config": load("plain", **{"file:1/model.py": "AAAA"}),
    "load, a file without config over gRPC": ("RepositoryModelLoad", {"modelName": "plain", "parameters": {"file:1/x": {"bytes_param": "AAAA"}}}),
    "model ready after faults": PLAIN_READY,
    "ready index": ("/v2/repository/index", b'{"ready":true}', {}),
    "unload an unknown model": unload("nope"),
    "unload nothing over gRPC": ("RepositoryModelUnload", {}),
    "unload": unload("plain"),
    "unload again": unload("plain", unload_dependents=True),
    "model ready, unloaded": PLAIN_READY,
    "metadata, unloaded": ("/v2/models/plain", None, {}),
    "infer, unloaded": ("/v2/models/plain/infer", b"{}", {}),
    "infer over gRPC, unloaded": ("ModelInfer", {"modelName": "plain"}),
    "ready index, unloaded": ("/v2/repository/index", b'{"ready":true}', {}),
    "unload over gRPC, another parameter": ("RepositoryModelUnload", {"modelName": "plain", "parameters": {"zz": {"string_param": "x"}}}),
    "load over gRPC": ("RepositoryModelLoad", {"modelName": "plain"}),
    "unload over gRPC with dependents": ("RepositoryModelUnload", {"modelName": "plain", "parameters": {"unload_dependents": {"bool_param": True}}}),
}

# What we answer otherwise, and why: (reason, statuses or codes that are right, pattern of the error's text).
INTACT = "the original wraps numbers that the datatype can't hold: never change what was sent"
PARSER = "same meaning; the words after the colon are its JSON library's"
OURS = {
    "http": {
        "infer, INT8 too big": (INTACT, {400}, "300|range|fit"),
        "infer, INT8 too small": (INTACT, {400}, "-129|range|fit"),
        "infer, INT32 too big": (INTACT, {400}, "1099511627776|range|fit"),
        "infer, FP32 too big": ("it answers Infinity, which is no JSON", {400}, "range|fit|1e|infinit"),
        "infer, empty body": ("it takes an empty body for a raw request of no element", {200, 400, 500}, ""),
        "infer, raw request, empty": ("a binary answer without the length of its header", {200}, ""),
        "infer, shape overflows": ("it compares the shape before it counts", {400}, "elements|unexpected shape"),
        "infer, batch sizes differ": ("which of the two differs is its hash order", {400}, "batch size does not match other inputs for 'two'"),
        "infer, header length no number": ("it takes it for 0, a raw request", {400}, "header"),
        "infer, header length with a tail": ("it takes the digits alone", {400}, "header"),
        "infer, not gzip though it says so": ("it runs the model on nothing", {400}, "gzip|decompress"),
        "infer, classification of BYTES": ("it crashes", {400, 500, 501}, "class"),
        "infer, one input too many": ("its list of missing inputs is cut off", {400}, "expected 1 inputs but got 2 inputs for model 'identity_int32'"),
        "infer, batch 0": ("it expects the bytes of one row", {400}, "."),
        "infer, half a JSON": (PARSER, {500}, "^failed to parse the request JSON buffer: "),
        "infer, no JSON": (PARSER, {500}, "^failed to parse the request JSON buffer: "),
        "logging, no JSON": (PARSER, {500}, "^failed to parse the request JSON buffer: "),
        "trace settings, no JSON": (PARSER, {500}, "^failed to parse the request JSON buffer: "),
        "trace settings, rate -1": ("it takes it for 4294967295", {400}, "Unable to parse 'trace_rate', value is out of range"),
        "trace settings, rate with letters": ("it takes the digits alone", {400}, "Unable to parse 'trace_rate', got: 12abc"),
        "trace settings, count -2": ("a blank that gRPC has and HTTP has not", {400}, "Unable to parse 'trace_count'. Expecting value >= -1, got: -2"),
        "index, no JSON": (PARSER, {500}, "^failed to parse the request JSON buffer: "),
        "logging, wrong format": ("a wrong value is no unavailability", {400, 503}, "klingon"),
        "load, no JSON": (PARSER, {500}, "^failed to parse the request JSON buffer: "),
    },
    "grpc": {
        "infer, typed INT8 too big": (INTACT, {"INVALID_ARGUMENT"}, "400|range|fit"),
        "infer, two raw for one input": ("it drops the second", {"OK", "INVALID_ARGUMENT"}, ""),
        "infer, negative shape": ("its arithmetic shows", {"INVALID_ARGUMENT"}, "."),
        "infer, unknown datatype": ("it names no datatype", {"INVALID_ARGUMENT"}, "INT33|<invalid>"),
    },
    "control": {
        name: ("it does not say why", {500, "INTERNAL"}, "^failed to load 'plain', failed to poll from model repository: .*" + why)
        for name, why in (("load, config is no JSON", "Invalid config override"), ("load, config of another model", "[a-z]"),
                          ("load, config with an unknown field", "nofield"), ("load, config with a wrong value", "[a-z]"),
                          ("load, a file without config", "'config' must be specified"),
                          ("load, a file without config over gRPC", "'config' must be specified"))
    },
}

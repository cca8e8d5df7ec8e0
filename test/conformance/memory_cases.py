"""Calls about shared memory, in order on one server, whose answers are compared with the original's.

original_memory.py sends them to the real server and keeps its answers in golden_memory.json; test_golden_memory.py sends
them to ours. A case is a call over HTTP (three members), over gRPC (two), or READ of the region's own bytes (a tuple of
one). OURS holds the answers that differ on purpose, each with its reason.
"""
import base64
import json
import pathlib
import struct

KEY = "/golden_memory"
KEY2 = "/golden_memory_2"  # the original takes one key for one region
SIZE = 256
INT32 = "/v2/models/identity_int32/infer"
BYTES = "/v2/models/identity_bytes/infer"
ROW = struct.pack("<4i", 1, 2, 3, 4)
TEXTS = b"".join(struct.pack("<I", len(t)) + t for t in (b"one", b"", b"three", b"four"))


class Region:
    """The memory of a client: the row at 0, four texts at 32."""

    def __init__(self):
        self.path, self.second = (pathlib.Path("/dev/shm" + k) for k in (KEY, KEY2))
        for path in (self.path, self.second):
            path.write_bytes((ROW.ljust(32, b"\0") + TEXTS).ljust(SIZE, b"\0"))

    def read(self, offset, size):
        return {"bytes": self.path.read_bytes()[offset:offset + size].hex()}

    def close(self):
        self.path.unlink()
        self.second.unlink()


def post(path, document=None):
    return path, b"" if document is None else document if isinstance(document, bytes) else json.dumps(document).encode(), {}


def get(path):
    return path, None, {}


def register(name, kind="system", **document):
    return post(f"/v2/{kind}sharedmemory/region/{name}/register", document)


def cuda(name, handle=b"h" * 64, device=0, size=64):
    return register(name, "cuda", raw_handle={"b64": base64.b64encode(handle).decode()}, device_id=device, byte_size=size)


def shared(region="a", size=16, offset=None, **more):
    p = {"shared_memory_region": region, "shared_memory_byte_size": size, "shared_memory_offset": offset, **more}
    return {k: v for k, v in p.items() if v is not None}


def infer(parameters=None, output=None, path=INT32, shape=(1, 4), datatype="INT32", **more):
    tensor = {"name": "INPUT0", "datatype": datatype, "shape": list(shape)}
    if parameters is None:
        tensor["data"] = [5, 6, 7, 8]
    else:
        tensor["parameters"] = parameters
    document = {"inputs": [tensor], **more}
    if output is not None:
        document["outputs"] = [{"name": "OUTPUT0", "parameters": output}]
    return post(path, document)


def param(v):
    if isinstance(v, bool):
        return {"boolParam": v}
    return {"int64Param": v} if isinstance(v, int) else {"stringParam": v}


def rpc(parameters=None, output=None, shape=(1, 4), datatype="INT32", model="identity_int32"):
    tensor = {"name": "INPUT0", "datatype": datatype, "shape": list(shape)}
    request = {"modelName": model, "inputs": [tensor]}
    if parameters is None:
        request["rawInputContents"] = [base64.b64encode(ROW).decode()]
    else:
        tensor["parameters"] = {k: param(v) for k, v in parameters.items()}
    if output is not None:
        request["outputs"] = [{"name": "OUTPUT0", "parameters": {k: param(v) for k, v in output.items()}}]
    return "ModelInfer", request


MAX = 2**63 - 1
CASES = {
    "status of all, none": get("/v2/systemsharedmemory/status"),
    "status of one, unknown": get("/v2/systemsharedmemory/region/a/status"),
    "unregister one, unknown": post("/v2/systemsharedmemory/region/a/unregister"),
    "unregister all, none": post("/v2/systemsharedmemory/unregister"),
    "register, empty body": post("/v2/systemsharedmemory/region/a/register"),
    "register, no JSON": post("/v2/systemsharedmemory/region/a/register", b"{"),
    "register, an array": post("/v2/systemsharedmemory/region/a/register", []),
    "register, no key": register("a", offset=0, byte_size=64),
    "register, key a number": register("a", key=5, byte_size=64),
    "register, key empty": register("a", key="", byte_size=64),
    "register, no size": register("a", key=KEY),
    "register, size a string": register("a", key=KEY, byte_size="64"),
    "register, size -1": register("a", key=KEY, byte_size=-1),
    "register, size 2^63": register("a", key=KEY, byte_size=2**63),
    "register, size 2^64": register("a", key=KEY, byte_size=2**64),
    "register, size a fraction": register("a", key=KEY, byte_size=1.5),
    "register, size 0": register("zero", key=KEY, byte_size=0),
    "unregister, size 0": post("/v2/systemsharedmemory/region/zero/unregister"),
    "register, offset -1": register("a", key=KEY, offset=-1, byte_size=64),
    "register, offset a string": register("a", key=KEY, offset="0", byte_size=64),
    "register, offset beyond": register("a", key=KEY, offset=SIZE, byte_size=64),
    "register, size beyond": register("a", key=KEY, byte_size=SIZE + 1),
    "register, offset and size beyond": register("a", key=KEY, offset=SIZE - 8, byte_size=16),
    "register, sum overflows": register("a", key=KEY, offset=2**64 - 8, byte_size=16),
    "register, no such file": register("a", key="/golden_memory_absent", byte_size=64),
    "register, key with a folder": register("a", key="/no/such", byte_size=64),
    "register, reserved prefix": register("a", key="/triton_python_backend_shm_region_1", byte_size=64),
    "register": register("a", key=KEY, offset=0, byte_size=SIZE),
    "register, twice": register("a", key=KEY, byte_size=64),
    "register without offset": register("b", key=KEY, byte_size=64),
    "unregister without offset": post("/v2/systemsharedmemory/region/b/unregister"),
    "register with an offset and an encoded name": register("c%20c", key=KEY2, offset=32, byte_size=64),
    "status of an encoded name": get("/v2/systemsharedmemory/region/c%20c/status"),
    "infer, offset within the offset": infer(shared("c c", len(TEXTS)), path=BYTES, datatype="BYTES"),
    "infer, beyond a range within its file": infer(shared("c c", 16, 56)),
    "status of one": get("/v2/systemsharedmemory/region/a/status"),
    "status of all": get("/v2/systemsharedmemory/status"),
    "status by POST": post("/v2/systemsharedmemory/status"),
    "register by GET": get("/v2/systemsharedmemory/region/a/register"),
    "register without a name": post("/v2/systemsharedmemory/register", {"key": KEY, "byte_size": 64}),
    "unregister by GET": get("/v2/systemsharedmemory/region/a/unregister"),
    "status as of CUDA": get("/v2/cudasharedmemory/region/a/status"),
    "unregister as of CUDA": post("/v2/cudasharedmemory/region/a/unregister"),
    "unregister": post("/v2/systemsharedmemory/region/b/unregister"),
    "unregister, a body": post("/v2/systemsharedmemory/region/c%20c/unregister", b"{"),
    "infer": infer(shared()),
    "infer, both by region": infer(shared(), shared(offset=64)),
    "read what it wrote": (("READ", 64, 16),),
    "infer, output alone": infer(None, shared(offset=128)),
    "read what it wrote alone": (("READ", 128, 16),),
    "infer, output, larger room": infer(None, shared(offset=128, size=32)),
    "infer, output too small": infer(None, shared(offset=128, size=8)),
    "infer, output size 0": infer(None, shared(offset=128, size=0)),
    "infer, output offset beyond": infer(None, shared(offset=SIZE)),
    "infer, output beyond": infer(None, shared(offset=SIZE - 8)),
    "infer, output of an unknown region": infer(None, shared("x")),
    "infer, output without size": infer(None, shared(size=None)),
    "infer, output, size a string": infer(None, shared(size="16")),
    "infer, output, region a number": infer(None, shared(region=5)),
    "infer, output, offset a string": infer(None, shared(offset="0")),
    "infer, output, offset -1": infer(None, shared(offset=-1)),
    "infer, output, offset alone": infer(None, {"shared_memory_offset": 8}),
    "infer, output, size alone": infer(None, {"shared_memory_byte_size": 8}),
    "infer, output and classes": infer(None, shared(classification=1)),
    "infer, output and binary data": infer(None, shared(binary_data=True)),
    "infer, output and no binary data": infer(None, shared(binary_data=False, offset=128)),
    "infer, unknown region": infer(shared("x")),
    "infer, without size": infer(shared(size=None)),
    "infer, size a string": infer(shared(size="16")),
    "infer, region a number": infer(shared(region=5)),
    "infer, size too small": infer(shared(size=12)),
    "infer, size too large": infer(shared(size=20)),
    "infer, size 0": infer(shared(size=0)),
    "infer, size -1": infer(shared(size=-1)),
    "infer, offset": infer(shared(offset=16)),
    "infer, offset to the end": infer(shared(offset=SIZE - 16)),
    "infer, offset one too many": infer(shared(offset=SIZE - 15)),
    "infer, offset beyond": infer(shared(offset=SIZE)),
    "infer, offset huge": infer(shared(offset=MAX)),
    "infer, offset 2^64-8": infer(shared(offset=2**64 - 8)),
    "infer, offset -1": infer(shared(offset=-1)),
    "infer, size huge": infer(shared(size=MAX)),
    "infer, wrong shape": infer(shared(), shape=(1, 3)),
    "infer, BYTES": infer(shared(size=len(TEXTS), offset=32), path=BYTES, datatype="BYTES"),
    "infer, BYTES, from and to": infer(shared(size=len(TEXTS), offset=32), shared(size=64, offset=128), path=BYTES, datatype="BYTES"),
    "read the texts": (("READ", 128, 64),),
    "infer, BYTES, larger room": infer(shared(size=64, offset=32), path=BYTES, datatype="BYTES"),
    "infer, BYTES, cut": infer(shared(size=len(TEXTS) - 1, offset=32), path=BYTES, datatype="BYTES"),
    "infer, BYTES, too few": infer(shared(size=len(TEXTS) - 8, offset=32), path=BYTES, datatype="BYTES"),
    "infer, BYTES, output too small": infer(shared(size=len(TEXTS), offset=32), shared(size=16, offset=128), path=BYTES, datatype="BYTES"),
    "gRPC status of all": ("SystemSharedMemoryStatus", {}),
    "gRPC status of one": ("SystemSharedMemoryStatus", {"name": "a"}),
    "gRPC status of one, unknown": ("SystemSharedMemoryStatus", {"name": "x"}),
    "gRPC register, twice": ("SystemSharedMemoryRegister", {"name": "a", "key": KEY, "byte_size": 64}),
    "gRPC register, no key": ("SystemSharedMemoryRegister", {"name": "g", "byte_size": 64}),
    "gRPC register, no name": ("SystemSharedMemoryRegister", {"key": KEY, "byte_size": 64}),
    "gRPC status, no name": ("SystemSharedMemoryStatus", {"name": ""}),
    "gRPC register, absent": ("SystemSharedMemoryRegister", {"name": "g", "key": "/golden_memory_absent", "byte_size": 64}),
    "gRPC register, beyond": ("SystemSharedMemoryRegister", {"name": "g", "key": KEY2, "byte_size": SIZE + 1}),
    "gRPC register": ("SystemSharedMemoryRegister", {"name": "g", "key": KEY2, "offset": 16, "byte_size": 64}),
    "gRPC infer": rpc(shared()),
    "gRPC infer, both": rpc(shared(), shared(offset=64)),
    "gRPC infer, output alone": rpc(None, shared(offset=64)),
    "gRPC infer, output, larger room": rpc(None, shared(offset=64, size=32)),
    "gRPC infer, output too small": rpc(None, shared(offset=64, size=8)),
    "gRPC infer, output of an unknown region": rpc(None, shared("x")),
    "gRPC infer, output beyond": rpc(None, shared(offset=SIZE - 8)),
    "gRPC infer, output and classes": rpc(None, shared(classification=2, offset=64, size=64)),
    "gRPC read the classes": (("READ", 64, 32),),
    "gRPC infer, output without size": rpc(None, shared(size=None)),
    "gRPC infer, output offset alone": rpc(None, {"shared_memory_offset": 8}),
    "gRPC infer, unknown region": rpc(shared("x")),
    "gRPC infer, contents too": ("ModelInfer", {"modelName": "identity_int32", "inputs": [{
        "name": "INPUT0", "datatype": "INT32", "shape": [1, 4], "contents": {"intContents": [1, 2, 3, 4]},
        "parameters": {k: param(v) for k, v in shared().items()}}]}),
    "gRPC infer, raw contents too": ("ModelInfer", {**rpc(shared())[1], "rawInputContents": [base64.b64encode(ROW).decode()]}),
    "gRPC infer, the second by raw contents": ("ModelInfer", {"modelName": "two", "inputs": [
        {"name": "INPUT0", "datatype": "INT32", "shape": [1, 4], "parameters": {k: param(v) for k, v in shared().items()}},
        {"name": "INPUT1", "datatype": "INT32", "shape": [1, 4]}], "rawInputContents": [base64.b64encode(ROW).decode()]}),
    "gRPC infer, size too small": rpc(shared(size=12)),
    "gRPC infer, size a string": rpc(shared(size="16")),
    "gRPC infer, offset a string": rpc(shared(offset="0")),
    "gRPC infer, region a number": rpc(shared(region=5)),
    "gRPC infer, size 0": rpc(shared(size=0)),
    "gRPC infer, size -1": rpc(shared(size=-1)),
    "gRPC infer, offset one too many": rpc(shared(offset=SIZE - 15)),
    "gRPC infer, offset -1": rpc(shared(offset=-1)),
    "gRPC infer, offset huge": rpc(shared(offset=MAX)),
    "gRPC infer, another parameter": rpc(shared(zz=1)),
    "gRPC infer, BYTES, from and to": rpc(shared(size=len(TEXTS), offset=32), shared(size=64, offset=128), datatype="BYTES", model="identity_bytes"),
    "gRPC unregister": ("SystemSharedMemoryUnregister", {"name": "g"}),
    "gRPC unregister again": ("SystemSharedMemoryUnregister", {"name": "g"}),
    "CUDA status of all": get("/v2/cudasharedmemory/status"),
    "CUDA status of one": get("/v2/cudasharedmemory/region/a/status"),
    "CUDA register": cuda("d"),
    "CUDA register, empty body": post("/v2/cudasharedmemory/region/d/register"),
    "CUDA register, no handle": register("d", "cuda", device_id=0, byte_size=64),
    "CUDA register, handle a string": register("d", "cuda", raw_handle="x", device_id=0, byte_size=64),
    "CUDA register, handle without b64": register("d", "cuda", raw_handle={}, device_id=0, byte_size=64),
    "CUDA register, b64 a number": register("d", "cuda", raw_handle={"b64": 1}, device_id=0, byte_size=64),
    "CUDA register, handle no base64": register("d", "cuda", raw_handle={"b64": "!!!!"}, device_id=0, byte_size=64),
    "CUDA register, handle too short": cuda("d", b"short"),
    "CUDA register, no device": register("d", "cuda", raw_handle={"b64": ""}, byte_size=64),
    "CUDA register, device -1": cuda("d", device=-1),
    "CUDA register, device 99": cuda("d", device=99),
    "CUDA register, no size": register("d", "cuda", raw_handle={"b64": ""}, device_id=0),
    "CUDA register without a name": post("/v2/cudasharedmemory/register", {"byte_size": 64}),
    "CUDA unregister": post("/v2/cudasharedmemory/region/d/unregister"),
    "CUDA unregister all": post("/v2/cudasharedmemory/unregister"),
    "gRPC CUDA status": ("CudaSharedMemoryStatus", {}),
    "gRPC CUDA status of one": ("CudaSharedMemoryStatus", {"name": "d"}),
    "gRPC CUDA register": ("CudaSharedMemoryRegister", {"name": "d", "raw_handle": base64.b64encode(b"h" * 64).decode(), "byte_size": 64}),
    "gRPC CUDA register, short": ("CudaSharedMemoryRegister", {"name": "d", "raw_handle": base64.b64encode(b"h").decode(), "byte_size": 64}),
    "gRPC CUDA unregister": ("CudaSharedMemoryUnregister", {"name": "d"}),
    "unregister all": post("/v2/systemsharedmemory/unregister"),
    "status after all": get("/v2/systemsharedmemory/status"),
    "gRPC unregister all": ("SystemSharedMemoryUnregister", {}),
}

ONE_KEY = "the original has one region for a key"
PAGES = "the original takes offsets of whole pages"
ENCODED = "the original does not decode names in paths, and its client encodes them"
BEYOND = "what is beyond is told in one way"
# What we answer otherwise, and why: (reason, statuses or codes that are right, pattern of the error's text).
OURS = {
    "register, no JSON": ("same meaning", {500}, "^failed to parse the request JSON buffer: "),
    "register, size 0": (BEYOND, {400}, "failed to register shared memory region 'zero': invalid args"),
    "register, sum overflows": (BEYOND, {400}, "failed to register shared memory region 'a': invalid args"),
    "register, reserved prefix": ("it says why", {400}, "shared memory key '/triton_python_backend_shm_region_1' is reserved"),
    "register without offset": (ONE_KEY, {200}, ""),
    "register with an offset and an encoded name": (PAGES, {200}, ""),
    "status of an encoded name": (ENCODED, {200}, ""),
    "status of all": (ENCODED, {200}, ""),
    "infer, offset within the offset": (ENCODED, {200}, ""),
    "infer, beyond a range within its file": (ENCODED, {400}, "Invalid offset \\+ byte size for shared memory region: 'c c'"),
    "gRPC register": (PAGES, {"OK"}, ""),
    "CUDA register": ("there is no GPU", {400, 501}, "."),
    "CUDA register, device 99": ("there is no such GPU", {400, 501}, "."),
    "gRPC register, no name": ("every region has a name", {"INVALID_ARGUMENT"}, "'region name' is necessary to register system shared memory region"),
    "gRPC CUDA register": ("there is no GPU", {"INVALID_ARGUMENT", "UNIMPLEMENTED"}, "."),
    "gRPC CUDA register, short": ("it says why", {"INVALID_ARGUMENT"}, "'raw_handle' must be a cudaIpcMemHandle_t of 64 bytes, got 1"),
}

"""What the tests of clients' shared memory share: models, memory in files, and calls over a Unix socket with a descriptor."""
import contextlib
import http.client
import json
import os
import pathlib
import socket
import struct

import numpy as np

IDENTITY = """name: "%s"
backend: "identity"
max_batch_size: %d
input [ { name: "INPUT0" data_type: TYPE_%s dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_%s dims: [ -1 ] } ]
parameters: { key: "execute_delay_ms" value: { string_value: "%d" } }
instance_group [ { count: 1 kind: KIND_CPU } ]
%s
"""


def model(folder, name, delay=0, batch=8, datatype="FP32", more=""):
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(IDENTITY % (name, batch, datatype, datatype, delay, more))


class Memory:
    """A file of shared memory, under a name of its own."""

    def __init__(self, size, tag=""):
        self.key = f"/e2e_{os.getpid()}_{id(self):x}{tag}"
        self.path = pathlib.Path("/dev/shm" + self.key)
        self.path.write_bytes(bytes(size))
        self.path.chmod(0o600)
        self.size = size

    def write(self, array, offset=0):
        with open(self.path, "r+b") as f:
            f.seek(offset)
            f.write(array.tobytes())

    def read(self, count, offset=0, datatype=np.float32):
        data = self.path.read_bytes()[offset:offset + count * np.dtype(datatype).itemsize]
        return np.frombuffer(data, datatype)

    def remove(self):
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()


def placed(region, size, offset=0):
    return {"shared_memory_region": region, "shared_memory_byte_size": size, "shared_memory_offset": offset}


def request(count, source=None, target=None, data=None):
    """The document of one FP32 row, to or from regions."""
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, count]}
    if source:
        tensor["parameters"] = source
    else:
        tensor["data"] = data if data is not None else [1.0] * count
    document = {"inputs": [tensor]}
    if target:
        document["outputs"] = [{"name": "OUTPUT0", "parameters": target}]
    return json.dumps(document).encode()


class Caller:
    """One HTTP connection, over TCP or a Unix socket."""

    def __init__(self, address, headers=None):
        self.headers = headers or {}
        if address.startswith("/"):
            self.connection = http.client.HTTPConnection("localhost", timeout=30)
            self.connection.sock = socket.socket(socket.AF_UNIX)
            self.connection.sock.settimeout(30)
            self.connection.sock.connect(address)
        else:
            self.connection = http.client.HTTPConnection(address, timeout=30)

    def call(self, path, body=None):
        self.connection.request("GET" if body is None else "POST", path, body, self.headers)
        return self.answer()

    def answer(self):
        r = self.connection.getresponse()
        data = r.read()
        return r.status, (json.loads(data) if data else None)

    def register(self, name, key, size, offset=0):
        return self.call(f"/v2/systemsharedmemory/region/{name}/register", json.dumps({"key": key, "offset": offset, "byte_size": size}).encode())

    def unregister(self, name=None):
        return self.call(f"/v2/systemsharedmemory/region/{name}/unregister" if name else "/v2/systemsharedmemory/unregister", b"")

    def status(self):
        return self.call("/v2/systemsharedmemory/status")

    def infer(self, model, body):
        return self.call(f"/v2/models/{model}/infer", body)

    def pass_descriptors(self, name, document, descriptors):
        """A register call whose descriptors travel beside its bytes."""
        body = json.dumps(document).encode()
        head = f"POST /v2/systemsharedmemory/region/{name}/register HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        sock = self.connection.sock
        socket.send_fds(sock, [head + body], descriptors)
        r = http.client.HTTPResponse(sock, method="POST")
        r.begin()
        data = r.read()
        return r.status, (json.loads(data) if data else None)

    def close(self):
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


F_ADD_SEALS, F_SEAL_SHRINK, F_SEAL_GROW = 1033, 2, 4


def sealed(size):
    """A memfd that nobody can shrink."""
    import fcntl
    fd = os.memfd_create("region", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
    return fd


def texts(*elements):
    return b"".join(struct.pack("<I", len(e)) + e for e in elements)


def descriptors(pid):
    """How many descriptors of clients' memory a process has."""
    n = 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
            n += target.startswith("/dev/shm/e2e_") or target.startswith("/memfd:region")
    return n


def mappings(pid):
    """How many mappings of clients' memory a process has."""
    with open(f"/proc/{pid}/maps") as f:
        return sum("/dev/shm/e2e_" in line or "/memfd:region" in line for line in f)

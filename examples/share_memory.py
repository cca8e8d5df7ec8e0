#!/usr/bin/env python3
"""Infers with tensors in memory that this process shares with the server, without a copy on the way.

    share_memory.py SOCKET [MODEL]      SOCKET: of sluice serve --http-unix-socket=SOCKET; MODEL: identity_fp32

The memory is a memfd, sealed so that nobody can cut it off under the server. It has no name: its descriptor travels over
the Unix socket beside a register call without a key. Needs numpy alone.
"""
import fcntl
import http.client
import json
import mmap
import os
import socket
import sys

import numpy as np

F_ADD_SEALS, F_SEAL_SHRINK, F_SEAL_GROW = 1033, 2, 4
COUNT = 150_528  # FP32: 602 KB


def ask(sock, path, document, descriptor=None):
    """One POST over the socket, with a descriptor beside it where there is one."""
    body = json.dumps(document).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    socket.send_fds(sock, [head + body], [] if descriptor is None else [descriptor])
    answer = http.client.HTTPResponse(sock, method="POST")
    answer.begin()
    data = answer.read()
    if answer.status != 200:
        sys.exit(f"{path}: {answer.status} {data.decode()}")
    return json.loads(data) if data else None


def main():
    path, model = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "identity_fp32"
    size = 4 * COUNT
    descriptor = os.memfd_create("tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 2 * size)
    fcntl.fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
    memory = mmap.mmap(descriptor, 2 * size)
    tensors = np.frombuffer(memory, np.float32).reshape(2, 1, COUNT)
    tensors[0] = np.random.default_rng().random((1, COUNT), np.float32)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        ask(sock, "/v2/systemsharedmemory/region/tensors/register", {"byte_size": 2 * size}, descriptor)

        def place(offset):
            return {"shared_memory_region": "tensors", "shared_memory_byte_size": size, "shared_memory_offset": offset}

        answer = ask(sock, f"/v2/models/{model}/infer", {
            "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, COUNT], "parameters": place(0)}],
            "outputs": [{"name": "OUTPUT0", "parameters": place(size)}]})
        print(answer)
        print("equal" if (tensors[0] == tensors[1]).all() else "not equal")
        ask(sock, "/v2/systemsharedmemory/region/tensors/unregister", {})


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Inputs and outputs in device memory, by CUDA handles, against a running server with a GPU.

  cuda_shm.py [--http localhost:8000] [--grpc localhost:8001] [--model identity_fp32] [--input INPUT0] [--output OUTPUT0] [--device 0]

It registers regions with tritonclient's own helpers (tritonclient.utils.cuda_shared_memory, which need cuda-python), runs the
model with its input and its output on the device over both protocols, and checks the values, what status says, and what is
refused: a handle of nothing, a range that is larger than its memory, a region that is unknown. It ends with 0 when all of it
is right. The model returns its input."""
import argparse
import base64
import sys

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
import tritonclient.utils.cuda_shared_memory as cudashm
from tritonclient.utils import InferenceServerException


def check(what, ok):
    print(("ok   " if ok else "FAIL ") + what)
    return ok


def refused(what, call, text):
    try:
        call()
    except InferenceServerException as e:
        return check(f"{what} is refused: {e.message()}", text in e.message())
    return check(f"{what} is refused", False)


def regions_of(client, module):
    status = client.get_cuda_shared_memory_status()
    return {r["name"] for r in status} if module is httpclient else set(status.regions)


def infer(client, module, o, shape, size):
    tensor = module.InferInput(o.input, shape, "FP32")
    tensor.set_shared_memory("cuda_in", size)
    wanted = module.InferRequestedOutput(o.output)
    wanted.set_shared_memory("cuda_out", size)
    client.infer(o.model, [tensor], outputs=[wanted])


def over(module, url, o):
    client = module.InferenceServerClient(url)
    client.unregister_cuda_shared_memory()
    values = np.random.default_rng(7).standard_normal((1, o.elements), dtype=np.float32)
    size = values.nbytes
    source = cudashm.create_shared_memory_region("cuda_in", size, o.device)
    target = cudashm.create_shared_memory_region("cuda_out", size, o.device)
    good = True
    try:
        cudashm.set_shared_memory_region(source, [values])
        cudashm.set_shared_memory_region(target, [np.zeros_like(values)])
        client.register_cuda_shared_memory("cuda_in", cudashm.get_raw_handle(source), o.device, size)
        client.register_cuda_shared_memory("cuda_out", cudashm.get_raw_handle(target), o.device, size)
        good &= check("status names both regions", regions_of(client, module) == {"cuda_in", "cuda_out"})
        for _ in range(3):
            infer(client, module, o, list(values.shape), size)
        got = cudashm.get_contents_as_numpy(target, np.float32, list(values.shape))
        good &= check(f"{size} bytes came back on the device", np.array_equal(got, values))
        handle = cudashm.get_raw_handle(source)
        good &= refused("a range that is larger than its memory",
                        lambda: client.register_cuda_shared_memory("cuda_large", handle, o.device, size + (64 << 20)), "less than")
        nothing = base64.b64encode(bytes(64))
        good &= refused("a handle of nothing", lambda: client.register_cuda_shared_memory("cuda_nothing", nothing, o.device, 64), "")
        client.unregister_cuda_shared_memory("cuda_in")
        good &= refused("a region that was given up", lambda: infer(client, module, o, list(values.shape), size), "cuda_in")
        client.unregister_cuda_shared_memory()
        good &= check("status names none", not regions_of(client, module))
    finally:
        cudashm.destroy_shared_memory_region(source)
        cudashm.destroy_shared_memory_region(target)
    return good


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--http", default="localhost:8000")
    p.add_argument("--grpc", default="localhost:8001")
    p.add_argument("--model", default="identity_fp32")
    p.add_argument("--input", default="INPUT0")
    p.add_argument("--output", default="OUTPUT0")
    p.add_argument("--elements", type=int, default=150528)
    p.add_argument("--device", type=int, default=0)
    o = p.parse_args()
    good = True
    for name, module, url in (("HTTP", httpclient, o.http), ("gRPC", grpcclient, o.grpc)):
        print(f"over {name}, {url}")
        good &= over(module, url, o)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()

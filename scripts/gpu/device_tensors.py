#!/usr/bin/env python3
"""Tensors in device memory on a machine with a GPU: ensembles whose steps share the device, and CUDA regions in place.

  device_tensors.py [--bin bin] [--device 0] [--elements 1048576] [--rounds 200] [--no-regions]

It starts bin/sluice-worker on the GPU and bin/sluice before it, with identity models that take device memory, and checks: an
ensemble of three steps returns its input, small and large, alone and by eight callers at once; so it does without device memory
for the worker (--device-memory-byte-size=0), which it compares the speed with; regions that tritonclient's own helpers make
(tritonclient.utils.cuda_shared_memory, which needs cuda-python) are read and written; a request whose tensor lies on the
device of a worker that is killed is answered all the same. It prints what the worker says of page-locked arenas, and ends with 0 when all is right."""
import argparse
import concurrent.futures
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import numpy as np
import tritonclient.http as httpclient

MODEL = """name: "%s" backend: "identity" max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
parameters: { key: "execute_delay_ms" value: { string_value: "%d" } }
instance_group [ { count: 2 kind: KIND_GPU gpus: [ %d ] } ]
"""
ENSEMBLE = """name: "%s" platform: "ensemble" max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { %s }
"""


def check(what, ok):
    print(("ok   " if ok else "FAIL ") + what, flush=True)
    return bool(ok)


def repository(folder, device):
    def write(name, text):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(text)
    for name, delay in (("first", 0), ("second", 0), ("slow", 1000)):
        write(name, MODEL % (name, delay, device))
    for name, steps in (("chain", ("first", "second", "first")), ("waits", ("first", "slow"))):
        tensors = ["INPUT0", *"AB"[:len(steps) - 1], "OUTPUT0"]
        write(name, ENSEMBLE % (name, "\n".join(
            'step { model_name: "%s" model_version: -1 input_map { key: "INPUT0" value: "%s" } output_map { key: "OUTPUT0" value: "%s" } }'
            % (step, tensors[i], tensors[i + 1]) for i, step in enumerate(steps))))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A gateway and a worker on the GPU, with this much device memory for tensors."""

    def __init__(self, o, root, limit):
        self.binaries, self.root, self.limit, self.device, self.port = pathlib.Path(o.bin), root, limit, o.device, free_port()
        (root / "worker").unlink(missing_ok=True)
        self.log = open(root / "log", "w+")
        self.start_worker()
        self.gateway = subprocess.Popen(
            [self.binaries / "sluice", "serve", f"--model-repository={root}/models", f"--http-port={self.port}", "--allow-grpc=false",
             "--allow-metrics=false", "--local-workers=false", f"--worker=unix:{root}/worker",
             "--backend-config=identity,device-memory=true"], stdout=self.log, stderr=self.log)
        self.wait()

    def start_worker(self):
        self.worker = subprocess.Popen([self.binaries / "sluice-worker", f"--device=gpu:{self.device}", f"--listen=unix:{self.root}/worker",
                                        f"--device-memory-byte-size={self.limit}"], stdout=self.log, stderr=self.log)

    def wait(self):
        for _ in range(600):
            try:
                return urllib.request.urlopen(f"http://localhost:{self.port}/v2/health/ready", timeout=5).close()
            except OSError:
                time.sleep(0.1)
        raise SystemExit("the server is not ready:\n" + self.said())

    def said(self):
        self.log.flush()
        return (self.root / "log").read_text()

    def stop(self):
        for p in (self.gateway, self.worker):
            p.terminate()
            p.wait(30)

    def infer(self, name, values):
        with httpclient.InferenceServerClient(f"localhost:{self.port}", network_timeout=60) as client:
            tensor = httpclient.InferInput("INPUT0", list(values.shape), "FP32")
            tensor.set_data_from_numpy(values)
            return client.infer(name, [tensor]).as_numpy("OUTPUT0")


def values(elements, seed):
    return np.random.default_rng(seed).standard_normal((1, elements), dtype=np.float32)


def ensembles(s, o):
    good = True
    for elements in (1, 7, 1000, o.elements):
        v = values(elements, elements)
        good &= check(f"a chain of three steps returns {elements} floats", np.array_equal(s.infer("chain", v), v))

    def ask(i):
        v = values(1 + 997 * i, i)
        return all(np.array_equal(s.infer("chain", v), v) for _ in range(10))
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        good &= check("eight callers at once have their own answers", all(threads.map(ask, range(8))))
    return good


def speed(s, o):
    v = values(o.elements, 1)
    s.infer("chain", v)
    start = time.monotonic()
    for _ in range(o.rounds):
        s.infer("chain", v)
    return (time.monotonic() - start) / o.rounds * 1e3


def regions(s, o):
    import tritonclient.utils.cuda_shared_memory as cudashm
    v = values(o.elements, 2)
    source = cudashm.create_shared_memory_region("in", v.nbytes, o.device)
    target = cudashm.create_shared_memory_region("out", v.nbytes, o.device)
    try:
        cudashm.set_shared_memory_region(source, [v])
        cudashm.set_shared_memory_region(target, [np.zeros_like(v)])
        with httpclient.InferenceServerClient(f"localhost:{s.port}") as client:
            for name, region in (("in", source), ("out", target)):
                client.register_cuda_shared_memory(name, cudashm.get_raw_handle(region), o.device, v.nbytes)
            tensor = httpclient.InferInput("INPUT0", list(v.shape), "FP32")
            tensor.set_shared_memory("in", v.nbytes)
            wanted = httpclient.InferRequestedOutput("OUTPUT0")
            wanted.set_shared_memory("out", v.nbytes)
            start = time.monotonic()
            for _ in range(o.rounds):
                client.infer("first", [tensor], outputs=[wanted])
            took = (time.monotonic() - start) / o.rounds * 1e3
            client.unregister_cuda_shared_memory()
        got = cudashm.get_contents_as_numpy(target, np.float32, list(v.shape))
        return check(f"{v.nbytes} bytes from region to region in {took:.2f} ms", np.array_equal(got, v))
    finally:
        cudashm.destroy_shared_memory_region(source)
        cudashm.destroy_shared_memory_region(target)


def killed(s):
    v = values(1000, 3)
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        call = other.submit(s.infer, "waits", v)
        time.sleep(0.5)
        s.worker.send_signal(signal.SIGKILL)
        s.worker.wait(10)
        s.start_worker()
        good = check("a request whose tensor was lost with the worker is answered", np.array_equal(call.result(60), v))
    s.wait()
    return good & check("the next worker serves", np.array_equal(s.infer("chain", v), v))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", default="bin")
    p.add_argument("--device", type=int, default=0)
    p.add_argument("--elements", type=int, default=1 << 20)
    p.add_argument("--rounds", type=int, default=200)
    p.add_argument("--no-regions", action="store_true", help="without clients' regions, which need cuda-python")
    o = p.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        repository(root / "models", o.device)
        took = {}
        for name, limit in (("on the device", 1 << 30), ("through the host", 0)):
            s = Server(o, root, limit)
            try:
                good &= ensembles(s, o)
                took[name] = speed(s, o)
                if limit and not o.no_regions:
                    good &= regions(s, o)
                if limit:
                    good &= killed(s)
            finally:
                s.stop()
            arenas = [line for line in s.said().splitlines() if "page-locked" in line or "can't be used" in line]
            print("\n".join(arenas) or "     both arenas are page-locked")
        for name, ms in took.items():
            print(f"     a chain of three steps with {4 * o.elements} bytes {name}: {ms:.2f} ms")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()

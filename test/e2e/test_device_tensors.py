"""Ensembles of steps on a GPU, with a driver on plain memory in the place of NVIDIA's that counts copies: what one step makes in
device memory the next one on that device gets there, and everybody else through the host."""
import base64
import concurrent.futures
import mmap
import os
import shutil
import signal
import struct
import subprocess

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import harness
from shared_memory import model

PORTS = """
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ %s ]
"""


def ensemble(folder, name, outputs, *steps):
    """Steps are (model, input tensor, output tensor)."""
    (folder / name / "1").mkdir(parents=True)
    text = f'name: "{name}"\nplatform: "ensemble"\nmax_batch_size: 8\n'
    text += PORTS % ", ".join('{ name: "%s" data_type: TYPE_FP32 dims: [ -1 ] }' % o for o in outputs)
    text += "ensemble_scheduling {\n"
    for step, source, target in steps:
        text += 'step { model_name: "%s" model_version: -1 ' % step
        text += 'input_map { key: "INPUT0" value: "%s" } output_map { key: "OUTPUT0" value: "%s" } }\n' % (source, target)
    (folder / name / "config.pbtxt").write_text(text + "}\n")


class Control:
    """The numbers that the driver keeps in the file "control": see workers/internal/cuda/cudatest."""
    NAMES = "to_device to_host on_device allocations bytes pinned capacity fail_copy fail_pin fail_alloc".split()

    def __init__(self, path):
        path.write_bytes(bytes(8 * len(self.NAMES)))
        with open(path, "r+b") as f:
            self.memory = mmap.mmap(f.fileno(), 0)

    def __getitem__(self, name):
        return struct.unpack_from("q", self.memory, 8 * self.NAMES.index(name))[0]

    def __setitem__(self, name, value):
        struct.pack_into("q", self.memory, 8 * self.NAMES.index(name), value)

    def copies(self):
        return tuple(self[n] for n in self.NAMES[:3])


class Rig:
    """A server with a worker that has "GPU 0" and takes device memory, and one on a CPU."""

    def __init__(self, folder, root):
        compiler = shutil.which("cc")
        if not compiler:
            pytest.skip("there is no C compiler for the driver")
        self.control, self.socket, self.root = Control(root / "control"), root / "worker", root
        source = harness.ROOT / "workers/internal/cuda/cudatest/testdata/fake.c"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", root / "libcuda.so.1", source, "-ldl"], check=True)
        for name, batching in (("one", ""), ("two", ""), ("many", "dynamic_batching { max_queue_delay_microseconds: 20000 }"), ("slow", "")):
            model(folder, name, more=batching, delay=500 if name == "slow" else 0)
            config = folder / name / "config.pbtxt"
            config.write_text(config.read_text().replace("KIND_CPU", "KIND_GPU gpus: [ 0 ]"))
        model(folder, "host")
        ensemble(folder, "chain", ["OUT"], ("one", "INPUT0", "A"), ("two", "A", "B"), ("one", "B", "OUT"))
        ensemble(folder, "away", ["OUT"], ("one", "INPUT0", "A"), ("host", "A", "B"), ("two", "B", "OUT"))
        ensemble(folder, "both", ["A", "OUT"], ("one", "INPUT0", "A"), ("two", "A", "OUT"))
        ensemble(folder, "fork", ["B", "C"], ("one", "INPUT0", "A"), ("two", "A", "B"), ("many", "A", "C"))
        ensemble(folder, "batches", ["OUT"], ("many", "INPUT0", "A"), ("many", "A", "OUT"))
        ensemble(folder, "far", ["OUT"], ("host", "INPUT0", "A"), ("one", "A", "OUT"))
        ensemble(folder, "apart", ["B", "C"], ("one", "INPUT0", "B"), ("host", "INPUT0", "C"))
        ensemble(folder, "waits", ["OUT"], ("one", "INPUT0", "A"), ("slow", "A", "OUT"))
        self.gpu = self.start(f"--listen=unix:{root}/worker", "--device=gpu:0")
        port = harness.free_port()
        self.cpu = self.start(f"--listen=127.0.0.1:{port}", "--insecure")
        harness.wait_for(self.socket.exists, 10, "the worker's socket")
        self.server = harness.Server([folder], ["--local-workers=false", f"--worker=unix:{root}/worker", f"--worker=127.0.0.1:{port}",
                                                "--worker-insecure", "--backend-config=identity,device-memory=true"])

    def start(self, *flags):
        return subprocess.Popen([harness.BINARY.parent / "sluice-worker", *flags], env={"LD_LIBRARY_PATH": str(self.root)})

    def stop(self):
        self.server.stop()
        for w in (self.gpu, self.cpu):
            w.terminate()
            w.wait(20)


@pytest.fixture(scope="module")
def rig(built, tmp_path_factory):
    r = Rig(tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("gpu"))
    yield r
    r.stop()
    assert r.control["allocations"] == r.control["pinned"] == 0, "the worker left something on the device"


def infer(module, client, name, values):
    tensor = module.InferInput("INPUT0", list(values.shape), "FP32")
    tensor.set_data_from_numpy(values)
    return client.infer(name, [tensor])


VALUES = np.arange(64, dtype=np.float32).reshape(1, 64)


@pytest.mark.parametrize("name,outputs,copies", [
    ("one", ["OUTPUT0"], (1, 1, 0)),
    ("chain", ["OUT"], (1, 1, 2)),           # into the first step, out of the last; the steps themselves copy on the device
    ("away", ["OUT"], (2, 2, 0)),            # the step between is on a CPU
    ("both", ["A", "OUT"], (2, 2, 0)),       # the client wants what is between
    ("fork", ["B", "C"], (1, 2, 2)),
])
def test_copies(rig, name, outputs, copies):
    with httpclient.InferenceServerClient(rig.server.http) as client:
        infer(httpclient, client, name, VALUES)
        before = rig.control.copies()
        got = infer(httpclient, client, name, VALUES)
        assert tuple(b - a for a, b in zip(before, rig.control.copies())) == copies
    for output in outputs:
        assert np.array_equal(got.as_numpy(output), VALUES)


@pytest.fixture
def region(rig, tmp_path_factory):
    """Device memory of a client's, registered, with VALUES in it."""
    path = tmp_path_factory.getbasetemp().parent / "client"  # the handle, 64 bytes, holds its name
    path.write_bytes(VALUES.tobytes())
    raw = str(path).encode()
    assert len(raw) < 64
    with httpclient.InferenceServerClient(rig.server.http) as client:
        client.register_cuda_shared_memory("client", base64.b64encode(raw.ljust(64, b"\0")), 0, VALUES.nbytes)
        yield path
        client.unregister_cuda_shared_memory("client")
    path.unlink()


@pytest.mark.parametrize("name,outputs,copies", [
    ("one", ["OUTPUT0"], (0, 1, 1)),
    ("chain", ["OUT"], (0, 1, 3)),           # the first step reads the client's memory where it lies
    ("fork", ["B", "C"], (0, 2, 3)),
    ("far", ["OUT"], (1, 2, 0)),             # the first step is on a CPU
    ("apart", ["B", "C"], (1, 2, 0)),        # one of the two is: it is read once for both
])
def test_from_clients_memory(rig, region, name, outputs, copies):
    with httpclient.InferenceServerClient(rig.server.http) as client:
        tensor = httpclient.InferInput("INPUT0", list(VALUES.shape), "FP32")
        tensor.set_shared_memory("client", VALUES.nbytes)
        for _ in range(2):
            before = rig.control.copies()
            got = client.infer(name, [tensor])
        assert tuple(b - a for a, b in zip(before, rig.control.copies())) == copies
        for output in outputs:
            assert np.array_equal(got.as_numpy(output), VALUES)
        tensor.set_shared_memory("client", VALUES.nbytes - 4)
        with pytest.raises(InferenceServerException, match="byte size"):
            client.infer(name, [tensor])


def test_batches(rig):
    """Rows of several requests are cut and gathered on the device, and each request has its own."""
    rng = np.random.default_rng(4)

    def ask(i):
        values = rng.standard_normal((1 + i % 3, 64)).astype(np.float32)
        with grpcclient.InferenceServerClient(rig.server.grpc) as client:
            for _ in range(5):
                assert np.array_equal(infer(grpcclient, client, "batches", values).as_numpy("OUT"), values), i
    before = rig.control.copies()
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, range(16)))
    after = rig.control.copies()
    assert after[2] > before[2] and after[1] - before[1] <= 80


def test_device_full(rig):
    """Without device memory the tensors go through the host, and the answers are the same."""
    with httpclient.InferenceServerClient(rig.server.http) as client:
        rig.control["fail_alloc"] = 2
        try:
            large = np.ones((1, 300000), np.float32)  # no block of that size was kept
            before = rig.control.copies()
            assert np.array_equal(infer(httpclient, client, "both", large).as_numpy("OUT"), large)
            assert rig.control.copies() == before, "the host was not used"
        finally:
            rig.control["fail_alloc"] = 0
        assert np.array_equal(infer(httpclient, client, "chain", large).as_numpy("OUT"), large)


def test_copies_fail(rig):
    """What the device can't copy fails its request, and no other."""
    with httpclient.InferenceServerClient(rig.server.http) as client:
        rig.control["fail_copy"] = 700
        try:
            with pytest.raises(InferenceServerException) as e:
                infer(httpclient, client, "chain", VALUES)
            assert "an illegal memory access was encountered (700)" in e.value.message()
            assert np.array_equal(infer(httpclient, client, "host", VALUES).as_numpy("OUTPUT0"), VALUES)
        finally:
            rig.control["fail_copy"] = 0
        assert np.array_equal(infer(httpclient, client, "chain", VALUES).as_numpy("OUT"), VALUES)


def test_worker_dies(rig):
    """A worker that dies with a tensor on its device: the steps run once more when it is back, and the caller has its answer."""
    with httpclient.InferenceServerClient(rig.server.http, connection_timeout=30, network_timeout=30) as client, \
            concurrent.futures.ThreadPoolExecutor(1) as other:
        def wait():
            with httpclient.InferenceServerClient(rig.server.http, network_timeout=30) as own:
                return infer(httpclient, own, "waits", VALUES)
        call = other.submit(wait)
        seen = rig.control["on_device"], rig.control["to_device"]
        harness.wait_for(lambda: (rig.control["on_device"], rig.control["to_device"]) != seen, 10, "the first step")
        os.kill(rig.gpu.pid, signal.SIGKILL)
        rig.gpu.wait(10)
        rig.control["allocations"] = rig.control["bytes"] = rig.control["pinned"] = 0
        rig.gpu = rig.start(f"--listen=unix:{rig.root}/worker", "--device=gpu:0")
        assert np.array_equal(call.result(40).as_numpy("OUT"), VALUES)
        assert np.array_equal(infer(httpclient, client, "chain", VALUES).as_numpy("OUT"), VALUES)

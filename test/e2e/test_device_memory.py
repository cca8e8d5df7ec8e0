"""CUDA regions through the real server and workers, with a driver on plain memory in the place of NVIDIA's."""
import base64
import shutil
import subprocess

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import harness
from shared_memory import model

CLIENTS = {"http": httpclient, "grpc": grpcclient}
VALUES = np.arange(64, dtype=np.float32)


def handle(path):
    return base64.b64encode(str(path).encode().ljust(64, b"\0"))


@pytest.fixture(scope="module")
def server(built, tmp_path_factory):
    """A server with a worker that has "GPU 0", and one without over TCP; model by model an instance on each."""
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("there is no C compiler for the driver")
    folder, root = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("gpu")
    source = harness.ROOT / "workers/internal/cuda/cudatest/testdata/fake.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", root / "libcuda.so.1", source], check=True)
    model(folder, "elsewhere")
    model(folder, "there")
    config = folder / "there" / "config.pbtxt"
    config.write_text(config.read_text().replace("KIND_CPU", "KIND_GPU gpus: [ 0 ]"))
    port = harness.free_port()
    places = [["--device=gpu:0", f"--listen=unix:{root}/worker"], [f"--listen=127.0.0.1:{port}", "--insecure"]]
    workers = [subprocess.Popen([harness.BINARY.parent / "sluice-worker", *flags], env={"LD_LIBRARY_PATH": str(root)}) for flags in places]
    try:
        harness.wait_for((root / "worker").exists, 10, "the worker's socket")
        s = harness.Server([folder], ["--local-workers=false", f"--worker=unix:{root}/worker", f"--worker=127.0.0.1:{port}", "--worker-insecure"])
        yield s
        assert s.stop() == 0, s.log()[-3000:]
        assert [w.poll() for w in workers] == [None, None], "a worker ended"
    finally:
        for w in workers:
            w.terminate()
            w.wait(20)


@pytest.fixture
def memory(tmp_path_factory):
    """What a client has on the device."""
    path = tmp_path_factory.getbasetemp().parent / "device"  # 64 bytes hold its name
    path.write_bytes(VALUES.tobytes())
    assert len(str(path)) < 64
    yield path
    path.unlink()


@pytest.mark.parametrize("protocol", CLIENTS)
@pytest.mark.parametrize("name", ["there", "elsewhere"])
def test_in_and_out(server, memory, protocol, name):
    """Where the device is, and where it is not: then the worker that has it reads and writes for the other."""
    module = CLIENTS[protocol]
    with module.InferenceServerClient(getattr(server, protocol)) as client:
        client.register_cuda_shared_memory("device", handle(memory), 0, VALUES.nbytes)
        status = client.get_cuda_shared_memory_status()
        assert [r["name"] for r in status] == ["device"] if protocol == "http" else list(status.regions) == ["device"]
        tensor = module.InferInput("INPUT0", [1, 8], "FP32")
        tensor.set_shared_memory("device", 32, offset=32)
        wanted = module.InferRequestedOutput("OUTPUT0")
        wanted.set_shared_memory("device", 64, offset=128)
        client.infer(name, [tensor], outputs=[wanted])
        client.unregister_cuda_shared_memory("device")
    got = np.fromfile(memory, np.float32)
    want = VALUES.copy()
    want[32:40] = VALUES[8:16]
    assert np.array_equal(got, want)


@pytest.mark.parametrize("protocol", CLIENTS)
def test_refused(server, memory, protocol):
    cases = [
        (handle("/nowhere"), 0, 4, "invalid resource handle (400); the process that exported it may have ended or freed the memory"),
        (handle("self"), 0, 4, "a process can't open a handle of its own memory"),
        (handle(memory), 0, VALUES.nbytes + 1, "has 256 bytes, less than 257"),
        (handle(memory), 1, 4, "failed to register CUDA shared memory region 'device': no worker of this host has GPU 1"),
    ]
    with CLIENTS[protocol].InferenceServerClient(getattr(server, protocol)) as client:
        for raw, device, size, text in cases:
            with pytest.raises(InferenceServerException) as e:
                client.register_cuda_shared_memory("device", raw, device, size)
            assert text in e.value.message()
        client.register_cuda_shared_memory("device", handle(memory), 0, VALUES.nbytes)  # the name is free
        client.unregister_cuda_shared_memory()

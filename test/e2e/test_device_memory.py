"""CUDA regions through the real server and workers, with a driver on plain memory in the place of NVIDIA's."""
import base64
import concurrent.futures
import json
import shutil
import subprocess
import time

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


def register(server, name, raw, device, size):
    """(status, text) of a register call whose handle is base64 of raw, or any text."""
    text = raw if isinstance(raw, str) else base64.b64encode(raw).decode()
    body = json.dumps({"raw_handle": {"b64": text}, "device_id": device, "byte_size": size})
    status, _, answer = server.ask(f"/v2/cudasharedmemory/region/{name}/register", body.encode())
    return status, answer.decode()


def test_forged(server, memory):
    """Handles that nobody exported, of other lengths, devices that are none, sizes that can't be: refused, and nothing is kept."""
    good = str(memory).encode().ljust(64, b"\0")
    rng = np.random.default_rng(23)
    cases = [(rng.bytes(64), 0, 4) for _ in range(20)]
    other = [b"", good[:63], good + b"\0", good * 20000, "no base64!", b"\0" * 64, b"/dev/zero".ljust(64, b"\0")]
    cases += [(raw, 0, 4) for raw in other]
    cases += [(good, d, 4) for d in (-1, 1, 7, 2**31 - 1, 2**31, -2**63, 2**63 - 1, 2**64, 0.5, "0")]
    cases += [(good, 0, n) for n in (-1, VALUES.nbytes + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64)]
    for raw, device, size in cases:
        status, text = register(server, "forged", raw, device, size)
        assert status in (400, 501) or status == 500 and "JSON" in text, (raw[:70], device, size, status, text[:300])
    with httpclient.InferenceServerClient(server.http) as client:
        assert client.get_cuda_shared_memory_status() == []
        for _ in range(200):  # the driver opens 64 at a time
            client.register_cuda_shared_memory("device", base64.b64encode(good), 0, VALUES.nbytes)
            client.unregister_cuda_shared_memory("device")


@pytest.mark.parametrize("name", ["there", "elsewhere"])
def test_places_outside(server, memory, name):
    """Offsets and sizes that leave the region, also by overflow."""
    with httpclient.InferenceServerClient(server.http) as client:
        client.register_cuda_shared_memory("device", handle(memory), 0, VALUES.nbytes)
        for offset in (VALUES.nbytes, VALUES.nbytes - 28, 2**40, 2**63 - 16, 2**64 - 16):
            for into in (False, True):
                tensor = {"name": "INPUT0", "shape": [1, 8], "datatype": "FP32"}
                place = {"shared_memory_region": "device", "shared_memory_byte_size": 32, "shared_memory_offset": offset}
                inside = dict(place, shared_memory_offset=0)
                body = {"inputs": [dict(tensor, parameters=inside if into else place)],
                        "outputs": [{"name": "OUTPUT0", "parameters": place if into else inside}]}
                status, _, answer = server.ask(f"/v2/models/{name}/infer", json.dumps(body).encode())
                assert status == 400, (offset, into, status, answer)
        client.unregister_cuda_shared_memory("device")
    assert memory.read_bytes() == VALUES.tobytes()


@pytest.mark.parametrize("name", ["there", "elsewhere"])
def test_unregistered_in_use(server, memory, name):
    """Requests that are under way when a region is unregistered are answered, or refused; when the call has returned nothing
    writes to the memory, and what was answered is there."""
    place = {"shared_memory_region": "device", "shared_memory_byte_size": 32}
    tensor = {"name": "INPUT0", "shape": [1, 8], "datatype": "FP32", "parameters": dict(place, shared_memory_offset=0)}
    answered = []
    with httpclient.InferenceServerClient(server.http) as client, concurrent.futures.ThreadPoolExecutor(4) as others:
        for turn in range(25):
            fresh = VALUES.copy()
            fresh[:8] = turn
            memory.write_bytes(fresh.tobytes())
            client.register_cuda_shared_memory("device", handle(memory), 0, VALUES.nbytes)

            def ask(i):
                body = {"inputs": [tensor], "outputs": [{"name": "OUTPUT0", "parameters": dict(place, shared_memory_offset=32 * (i + 1))}]}
                return server.ask(f"/v2/models/{name}/infer", json.dumps(body).encode())[0]
            calls = [others.submit(ask, i) for i in range(4)]
            time.sleep(turn % 5 / 1000)
            client.unregister_cuda_shared_memory("device")
            after = memory.read_bytes()
            for i, call in enumerate(calls):
                assert call.result(20) in (200, 400, 404)
                if call.result() == 200:
                    answered.append(i)
                    assert after[32 * (i + 1):32 * (i + 2)] == fresh[:8].tobytes(), (turn, i)
            time.sleep(0.02)
            assert memory.read_bytes() == after, turn
    assert answered


def test_one_handle_of_two(server, memory):
    """Two names of one allocation are two regions: one that goes leaves the other."""
    with httpclient.InferenceServerClient(server.http) as client:
        for name in ("first", "second"):
            client.register_cuda_shared_memory(name, handle(memory), 0, VALUES.nbytes)
        client.unregister_cuda_shared_memory("first")
        tensor = httpclient.InferInput("INPUT0", [1, 8], "FP32")
        tensor.set_shared_memory("second", 32)
        got = client.infer("there", [tensor]).as_numpy("OUTPUT0")
        client.unregister_cuda_shared_memory("second")
    assert np.array_equal(got[0], VALUES[:8])

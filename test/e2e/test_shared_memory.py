"""Clients' shared memory against the real server: whose it is, what ends it, and that nobody's fault is another's."""
import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

import harness
from shared_memory import Caller, Memory, descriptors, mappings, model, placed, request, sealed, texts

ROW = np.arange(16, dtype=np.float32)
SLOW = 2500  # ms: what is to be seen meanwhile must be, on a busy machine too
CLIENTS = {"http": httpclient, "grpc": grpcclient}


@pytest.fixture(scope="module")
def server(built, tmp_path_factory):
    """One server for the tests that leave it as it was."""
    folder = tmp_path_factory.mktemp("models")
    model(folder, "plain", batch=0)
    model(folder, "batched", batch=8, more="dynamic_batching { max_queue_delay_microseconds: 2000 }")
    model(folder, "slow", delay=SLOW, batch=0)
    model(folder, "words", batch=8, datatype="STRING")
    model(folder, "cached", batch=8, more="response_cache { enable: true }")
    model(folder, "sequence", batch=4, more="sequence_batching { max_sequence_idle_microseconds: 5000000 }")
    (folder / "chain" / "1").mkdir(parents=True)
    (folder / "chain" / "config.pbtxt").write_text("""name: "chain"
platform: "ensemble"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step [
  { model_name: "batched" model_version: -1 input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "middle" } },
  { model_name: "batched" model_version: -1 input_map { key: "INPUT0" value: "middle" } output_map { key: "OUTPUT0" value: "OUTPUT0" } } ] }
""")
    sockets = tmp_path_factory.mktemp("sockets")
    s = harness.Server([folder], [f"--http-unix-socket={sockets}/http", f"--grpc-unix-socket={sockets}/grpc", "--cache-config=local,size=1048576",
                                  "--metrics-interval-ms=100"])
    s.socket = f"{sockets}/http"
    s.grpc_socket = f"unix:{sockets}/grpc"
    os.chmod(s.socket, 0o777)
    os.chmod(sockets, 0o755)
    for parent in list(sockets.parents)[:3]:
        if parent.stat().st_uid == os.getuid() and parent.name.startswith("pytest"):
            os.chmod(parent, 0o755)
    yield s
    assert references(s) == 0
    assert s.stop() == 0, s.log()[-3000:]


def references(s):
    """What requests hold by the metrics, once nothing is in flight."""
    def held():
        return [line for line in s.metrics_text().splitlines() if line.startswith("sluice_client_memory_references")][0].split()[-1] == "0"
    harness.wait_for(held, 10, "references to regions given back")
    return 0


@pytest.mark.parametrize("protocol", CLIENTS)
def test_helpers(server, protocol):
    """The calls of the official simple_*_shm_client examples, with tritonclient's helpers as they are."""
    module, address = CLIENTS[protocol], getattr(server, protocol)
    count = 150_000  # 600 KB
    data = np.random.default_rng(1).random((1, count), np.float32)
    size = data.nbytes
    with module.InferenceServerClient(address) as client:
        client.unregister_system_shared_memory()
        into = shm.create_shared_memory_region("input_data", f"/e2e_{os.getpid()}_in", size)
        out = shm.create_shared_memory_region("output_data", f"/e2e_{os.getpid()}_out", size)
        try:
            shm.set_shared_memory_region(into, [data])
            client.register_system_shared_memory("input_data", f"/e2e_{os.getpid()}_in", size)
            client.register_system_shared_memory("output_data", f"/e2e_{os.getpid()}_out", size)
            status = client.get_system_shared_memory_status()
            names = [r["name"] for r in status] if protocol == "http" else list(status.regions)
            assert sorted(names) == ["input_data", "output_data"]
            tensor = module.InferInput("INPUT0", [1, count], "FP32")
            tensor.set_shared_memory("input_data", size)
            wanted = module.InferRequestedOutput("OUTPUT0")
            wanted.set_shared_memory("output_data", size)
            for name in ("batched", "chain", "cached", "cached"):
                shm.set_shared_memory_region(out, [np.zeros_like(data)])
                result = client.infer(name, [tensor], outputs=[wanted])
                output = result.get_output("OUTPUT0")
                shape = output["shape"] if protocol == "http" else list(output.shape)
                assert shape == [1, count]
                assert (shm.get_contents_as_numpy(out, np.float32, [1, count]) == data).all(), name
            np.testing.assert_array_equal(client.infer("batched", [tensor]).as_numpy("OUTPUT0"), data)
            client.unregister_system_shared_memory("input_data")
            with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'input_data'"):
                client.infer("batched", [tensor], outputs=[wanted])
            client.unregister_system_shared_memory()
            status = client.get_system_shared_memory_status()
            assert status == [] if protocol == "http" else not status.regions
        finally:
            shm.destroy_shared_memory_region(into)
            shm.destroy_shared_memory_region(out)


def test_streams(server):
    """Requests of a stream name regions too, those of sequences as well."""
    answers = []
    with Memory(256) as m, grpcclient.InferenceServerClient(server.grpc) as client:
        m.write(ROW)
        client.register_system_shared_memory("stream", m.key, m.size)
        client.start_stream(lambda result, error: answers.append((result, error)))
        tensor = grpcclient.InferInput("INPUT0", [1, 16], "FP32")
        tensor.set_shared_memory("stream", 64)
        wanted = grpcclient.InferRequestedOutput("OUTPUT0")
        wanted.set_shared_memory("stream", 64, 64)
        client.async_stream_infer("batched", [tensor], outputs=[wanted], request_id="one")
        client.async_stream_infer("sequence", [tensor], outputs=[wanted], sequence_id=7, sequence_start=True, sequence_end=True)
        bad = grpcclient.InferInput("INPUT0", [1, 16], "FP32")
        bad.set_shared_memory("nowhere", 64)
        client.async_stream_infer("batched", [bad])
        harness.wait_for(lambda: len(answers) == 3, 10, "three answers")
        client.stop_stream()
        assert [str(e) for _, e in answers if e] == ["Unable to find shared memory region: 'nowhere'"]
        np.testing.assert_array_equal(m.read(16, 64), ROW)
        client.unregister_system_shared_memory("stream")


def test_words(server):
    """BYTES in regions are counted where they are read; a lie in them is the request's error."""
    data = texts(b"one", b"", b"three")
    with Memory(256) as m, Caller(server.http) as c:
        assert c.register("words", m.key, 256)[0] == 200

        def ask(size, target=None):
            document = {"inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [1, 3], "parameters": placed("words", size)}]}
            if target:
                document["outputs"] = [{"name": "OUTPUT0", "parameters": target}]
            return c.infer("words", json.dumps(document).encode())

        m.path.write_bytes(data.ljust(256, b"\0"))
        assert ask(len(data))[1]["outputs"][0]["data"] == ["one", "", "three"]
        assert ask(len(data), placed("words", 64, 128))[0] == 200
        assert m.path.read_bytes()[128:128 + len(data)] == data
        m.path.write_bytes((b"\xff\xff\xff\xff" + data[4:]).ljust(256, b"\0"))
        for target in (None, placed("words", 64, 128)):
            status, body = ask(len(data), target)
            assert status == 400 and "string" in body["error"], body
        c.unregister()


def test_passed_descriptor(server):
    """A descriptor over the Unix socket is a region without a name; only one, only of memory, and none stays open."""
    worker = server.workers()[0]
    before = descriptors(server.pid), descriptors(worker), len(os.listdir(f"/proc/{server.pid}/fd"))
    with Caller(server.socket) as c:
        fd = sealed(4096)
        os.pwrite(fd, ROW.tobytes(), 128)
        status, body = c.pass_descriptors("passed", {"offset": 128, "byte_size": 3968}, [fd])
        assert status == 200, body
        assert c.status()[1] == [{"name": "passed", "key": "", "offset": 128, "byte_size": 3968}]
        status, body = c.infer("plain", request(16, placed("passed", 64), placed("passed", 64, 64)).replace(b"[1, 16]", b"[16]"))
        assert status == 200 and "data" not in body["outputs"][0], body
        assert os.pread(fd, 64, 192) == ROW.tobytes()
        for document, fds, why in (({"byte_size": 64}, [fd, fd], "one descriptor at most"), ({"byte_size": 64}, [fd] * 5, "one descriptor at most"),
                                   ({"byte_size": 4097}, [fd], "invalid args"), ({"offset": 4096, "byte_size": 1}, [fd], "invalid args"),
                                   ({"byte_size": 2**63}, [fd], "invalid args"), ({"key": "/absent_e2e", "byte_size": 1}, [fd], "Unable to open"),
                                   ({}, [fd], "no 'byte_size' field")):
            status, body = c.pass_descriptors("other", document, fds)
            assert status in (400, 500) and why in body["error"], (document, body)
        read, write = os.pipe()
        with open(os.devnull, "r+b") as device, open(server.log_path, "rb") as file:
            for other in (read, write, device.fileno(), file.fileno()):
                status, body = c.pass_descriptors("other", {"byte_size": 1}, [other])
                assert status == 400 and "the descriptor is not of memory" in body["error"], body
        readonly = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        status, body = c.pass_descriptors("other", {"byte_size": 64}, [readonly])
        assert status == 400 and "the descriptor is not of memory" in body["error"], body
        for f in (read, write, readonly, fd):
            os.close(f)
        assert c.unregister("passed")[0] == 200
        assert c.status()[1] == []
    harness.wait_for(lambda: (descriptors(server.pid), descriptors(worker)) == before[:2], 10, "descriptors closed")
    harness.wait_for(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) <= before[2], 10, "nothing else is open either")
    assert mappings(worker) == 0


def test_truncated(server):
    """A client that shrinks, cuts, unlinks or replaces its file harms itself alone."""
    with Memory(1 << 20) as m, Memory(4096) as honest, Caller(server.http) as c:
        m.write(np.tile(ROW, 4096))
        honest.write(ROW)
        assert c.register("cut", m.key, m.size)[0] == 200
        assert c.register("honest", honest.key, 4096)[0] == 200
        good = request(16, placed("honest", 64), placed("honest", 64, 1024))
        far = request(16, placed("cut", 64, (1 << 20) - 64))
        assert c.infer("batched", far)[0] == 200
        worker = server.workers()
        os.truncate(m.path, 4096)
        for body in (far, request(16, None, placed("cut", 64, 1 << 19)), request(65536, placed("cut", 262144))):
            status, answer = c.infer("batched", body)
            assert status == 400 and "'cut'" in answer["error"], answer
            assert c.infer("batched", good)[0] == 200
        os.truncate(m.path, 0)
        status, answer = c.infer("batched", request(16, placed("cut", 64)))
        assert status == 400 and "'cut'" in answer["error"], answer
        assert c.infer("chain", request(16, placed("cut", 64)))[0] == 400
        # its name is another file's now: the region is what was registered
        m.remove()
        assert c.infer("batched", good)[0] == 200
        assert server.workers() == worker
        c.unregister("cut")
        honest.remove()
        with open(honest.path, "wb") as f:
            f.write(bytes(8))
        assert c.infer("batched", good)[0] == 200, "the open file counts, not its name"
        assert c.register("small", honest.key, 64)[0] == 400
        c.unregister()


def test_truncated_while_it_runs(server):
    """The memory goes away under requests, again and again, beside an honest client."""
    stop, wrong = threading.Event(), []

    def honest():
        with Memory(4096) as m, Caller(server.http) as c:
            m.write(ROW)
            c.register("steady", m.key, 4096)
            while not stop.is_set():
                status, body = c.infer("batched", request(16, placed("steady", 64), placed("steady", 64, 2048)))
                if status != 200 or (m.read(16, 2048) != ROW).any():
                    wrong.append((status, body))
            c.unregister("steady")

    workers = server.workers()
    thread = threading.Thread(target=honest)
    thread.start()
    try:
        with Caller(server.http) as c:
            for n in range(20):
                with Memory(1 << 20, f"_{n}") as m:
                    assert c.register(f"hostile_{n}", m.key, m.size)[0] == 200
                    cutter = threading.Timer(0.002 * (n % 5), os.truncate, (m.path, 0))
                    cutter.start()
                    for _ in range(3):
                        status, body = c.infer("batched", request(262144, placed(f"hostile_{n}", 1 << 20), placed(f"hostile_{n}", 1 << 20)))
                        assert status in (200, 400), body
                    cutter.join()
                    status, body = c.infer("batched", request(262144, placed(f"hostile_{n}", 1 << 20)))
                    assert status == 400, body
                    assert c.unregister(f"hostile_{n}")[0] == 200
    finally:
        stop.set()
        thread.join()
    assert not wrong
    assert server.workers() == workers, "no worker was lost"


def test_numbers(server):
    """Negative and huge numbers, on both protocols."""
    with Memory(4096) as m, Caller(server.http) as c, grpcclient.InferenceServerClient(server.grpc) as g:
        for size, offset in ((4097, 0), (1, 4096), (2**63 - 1, 0), (2**63, 1), (2**64 - 1, 1), (4096, 2**64 - 4096), (1, 2**63), (2**63, 2**63)):
            status, body = c.register("n", m.key, size, offset)
            assert status == 400 and body["error"] == "failed to register shared memory region 'n': invalid args", (size, offset, body)
            with pytest.raises(InferenceServerException, match="failed to register shared memory region 'n': invalid args"):
                g.register_system_shared_memory("n", m.key, size, offset)
        for bad in (-1, 1.5, 2**64, "64"):
            assert c.register("n", m.key, bad)[0] == 500
        assert c.register("n", m.key, 4096)[0] == 200
        for place in (placed("n", 64, 4033), placed("n", 64, 2**63), placed("n", 64, 2**64 - 64), placed("n", 2**64 - 1), placed("n", 2**63, 2**63),
                      placed("n", 2**64 - 1, 1)):
            for body in (request(16, place), request(16, None, place)):
                status, answer = c.infer("batched", body)
                assert status == 400 and answer["error"].startswith("Invalid offset"), (place, answer)
        assert c.infer("batched", request(16, placed("n", 64, -1)))[0] == 500
        c.unregister()


def test_keys(server, start, tmp_path):
    """Keys are names in one folder; a flag says how they may begin."""
    with Caller(server.http) as c:
        for key in ("/../etc/passwd", "..", ".", "", "/", "//", "/a/b", "a\0b", "/" + "x" * 300, "/proc/self/mem"):
            status, body = c.register("k", key, 64)
            assert status == 500 and body["error"].startswith("Unable to open shared memory region: '"), (key, body)
        link = Memory(64)
        os.symlink(link.path, str(link.path) + "_link")
        os.mkfifo(str(link.path) + "_fifo")
        os.mkdir(str(link.path) + "_dir")
        try:
            for tag in ("_link", "_fifo", "_dir"):
                assert c.register("k", link.key + tag, 64)[0] == 500, tag
        finally:
            os.unlink(str(link.path) + "_link")
            os.unlink(str(link.path) + "_fifo")
            os.rmdir(str(link.path) + "_dir")
            link.remove()
        status, body = c.register("k", "/triton_python_backend_shm_region_x", 64)
        assert status == 400 and "reserved" in body["error"]
    model(tmp_path, "plain", batch=0)
    s = start([tmp_path], [f"--client-shm-prefix=e2e_{os.getpid()}", "--client-shm-max-regions=2", "--client-shm-max-byte-size=8192"])
    with Memory(8192) as m, Caller(s.http) as c:
        status, body = c.register("k", "/other", 64)
        assert status == 400 and "--client-shm-prefix" in body["error"]
        assert c.register("a", m.key, 4096)[0] == 200
        status, body = c.register("b", m.key, 4097)
        assert status == 429 and "the most is 8192" in body["error"]
        assert c.register("b", m.key, 1)[0] == 200
        status, body = c.register("c", m.key, 1)
        assert status == 429 and "the most is 2" in body["error"]
        assert c.unregister("b")[0] == 200
        assert c.register("c", m.key, 1)[0] == 200
    text = s.metrics_text()
    assert 'sluice_client_memory_regions{owner="user"} 2' in text
    assert 'sluice_client_memory_bytes{owner="user"} 4097' in text
    assert s.stop() == 0


def test_principals(start, tmp_path):
    """A region is its principal's: for another one it is not there, in any call."""
    model(tmp_path, "plain", batch=0)
    (tmp_path / "policy.yaml").write_text("rules:\n- {principals: [alice, bob], actions: [infer, shared-memory, metadata]}\n")
    keys = {}
    for name in ("alice", "bob"):
        done = subprocess.run([harness.BINARY, "keys", "new", name], capture_output=True, text=True, check=True)
        keys[name] = done.stderr.strip().split()[-1]
        with open(tmp_path / "keys.txt", "a") as f:
            f.write(done.stdout)
    s = start([tmp_path], [f"--api-keys={tmp_path}/keys.txt", f"--policy={tmp_path}/policy.yaml"])
    with Memory(4096) as m, Memory(4096, "_bob") as other, Caller(s.http, {"X-API-Key": keys["alice"]}) as alice, \
            Caller(s.http, {"X-API-Key": keys["bob"]}) as bob:
        m.write(ROW)
        assert alice.register("r", m.key, 4096)[0] == 200
        assert bob.status() == (200, [])
        assert bob.call("/v2/systemsharedmemory/region/r/status") == (404, {"error": "Unable to find system shared memory region: 'r'"})
        body = request(16, placed("r", 64)).replace(b"[1, 16]", b"[16]")
        assert bob.infer("plain", body) == (404, {"error": "Unable to find shared memory region: 'r'"})
        target = request(16, None, placed("r", 64)).replace(b"[1, 16]", b"[16]")
        assert bob.infer("plain", target)[0] == 404
        assert bob.unregister("r")[0] == 200 and bob.unregister()[0] == 200
        assert alice.infer("plain", body)[0] == 200
        assert bob.register("r", other.key, 64)[0] == 200, "names are each owner's own"
        assert alice.status()[1][0]["byte_size"] == 4096 and bob.status()[1][0]["byte_size"] == 64
        assert alice.unregister()[0] == 200
        assert len(bob.status()[1]) == 1
    assert s.stop() == 0


OTHER = """
import os, sys
sys.path[:0] = sys.argv[1:2]
from shared_memory import Caller, placed, request
os.setgid(4711); os.setuid(4711)
c = Caller(sys.argv[2])
print(c.status()[1], c.infer("plain", request(16, placed("mine", 64)).replace(b"[1, 16]", b"[16]"))[0], c.unregister("mine")[0])
print(c.register("other", sys.argv[3], 64)[0])
open("/dev/shm" + sys.argv[3] + "_own", "wb").write(bytes(64))
print(c.register("other", sys.argv[3] + "_own", 64)[0], len(c.status()[1]), c.unregister()[0])
os.unlink("/dev/shm" + sys.argv[3] + "_own")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_users(server):
    """Over the Unix socket a region is its user's, and so must its file be."""
    with Memory(4096) as m, Caller(server.socket) as c:
        assert c.register("mine", m.key, 4096)[0] == 200
        here = os.path.dirname(__file__)
        done = subprocess.run([sys.executable, "-c", OTHER, here, server.socket, m.key], capture_output=True, text=True, timeout=30)
        assert done.stdout.splitlines() == ["[] 404 200", "500", "200 1 200"], done.stdout + done.stderr
        assert len(c.status()[1]) == 1
        with Caller(server.http) as tcp:  # the kernel knows the user there too
            assert tcp.status()[1] == c.status()[1]
        c.unregister()


def test_elsewhere(start, tmp_path):
    """Through a proxy nothing is local; the flag decides both ways."""
    model(tmp_path, "plain", batch=0)
    proxied = {"X-Forwarded-For": "192.0.2.1"}
    text = {"error": "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."}
    with Memory(4096) as m, Memory(4096, "_far") as other:
        body = request(16, placed("r", 64)).replace(b"[1, 16]", b"[16]")
        other.path.chmod(0o666)
        for flags, near, far in (([], 200, 501), (["--allow-client-shm=true"], 200, 200), (["--allow-client-shm=false"], 501, 501)):
            s = start([tmp_path], flags)
            with Caller(s.http, proxied) as remote, Caller(s.http) as local, grpcclient.InferenceServerClient(s.grpc) as g:
                for c, want, key in ((local, near, m.key), (remote, far, other.key)):
                    status, answer = c.register("r", key, 64)
                    assert status == want and (want == 200 or answer == text), (flags, answer)
                    assert c.status()[0] == want
                if far == 200:  # the kernel's word is on the proxy
                    status, answer = remote.register("m", m.key, 64)
                    assert status == 500 and "the server can't tell which user calls" in answer["error"], answer
                    absent = {"error": answer["error"].replace(m.key, f"{m.key}_absent")}
                    assert remote.register("m", f"{m.key}_absent", 64) == (500, absent)
                if near == 501:
                    with pytest.raises(InferenceServerException, match="--allow-client-shm=true") as e:
                        g.get_system_shared_memory_status()
                    assert e.value.status() == "StatusCode.UNIMPLEMENTED"
                else:
                    assert local.infer("plain", body)[0] == 200
                    assert remote.infer("plain", body)[0] == (200 if far == 200 else 404), "its own, or none"
                    local.unregister("r")
                    assert local.infer("plain", body)[0] == 404
            s.kill()


def test_unregister_waits(server):
    """Unregister takes the name at once and comes back when the request has been answered."""
    with Memory(4096) as m, Caller(server.http) as c, Caller(server.http) as other:
        m.write(ROW)
        assert c.register("busy", m.key, 4096)[0] == 200
        body = request(16, placed("busy", 64), placed("busy", 64, 64)).replace(b"[1, 16]", b"[16]")
        answers = []
        began = time.monotonic()
        thread = threading.Thread(target=lambda: answers.append(c.infer("slow", body)))
        thread.start()
        harness.wait_for(lambda: "sluice_client_memory_references 2" in server.metrics_text(), 10, "the request runs")
        gone = []
        leaver = threading.Thread(target=lambda: gone.append((other.unregister("busy"), time.monotonic())))
        leaver.start()
        with Caller(server.http) as third:
            harness.wait_for(lambda: third.status()[1] == [], 5, "the name is gone")
            assert third.infer("slow", body)[0] == 404
            assert not gone, "it waits"
            assert third.register("busy", m.key, 64)[0] == 200, "the name is free"
            assert third.unregister("busy")[0] == 200
        thread.join()
        leaver.join()
        assert answers[0][0] == 200 and gone[0][0][0] == 200
        assert gone[0][1] - began >= SLOW / 1000, "it waited for the instance"
        np.testing.assert_array_equal(m.read(16, 64), ROW)


def test_caller_leaves(server):
    """The instance of a caller who left has the memory until it is done with it."""
    with Memory(4096) as m, Caller(server.http) as c:
        m.write(ROW)
        assert c.register("left", m.key, 4096)[0] == 200
        body = request(16, placed("left", 64), placed("left", 64, 64)).replace(b"[1, 16]", b"[16]")
        with Caller(server.http) as leaving:
            leaving.connection.request("POST", "/v2/models/slow/infer", body)
            harness.wait_for(lambda: "sluice_client_memory_references 2" in server.metrics_text(), 10, "the request runs")
        assert c.unregister("left")[0] == 200
        assert references(server) == 0
        assert mappings(server.workers()[0]) == 0


def test_storm(server):
    """Regions come and go under requests that use them: each answer is right or says that the region is not there."""
    stop, wrong = threading.Event(), []

    def user(n):
        with Memory(4096, f"_{n}") as m, Caller(server.http) as c:
            m.write(ROW + n)
            while not stop.is_set():
                status, body = c.register(f"storm_{n % 2}", m.key, 4096)
                if status not in (200, 400):
                    wrong.append(body)
                status, body = c.infer("batched", request(16, placed(f"storm_{n % 2}", 64)))
                if status == 200:
                    first = body["outputs"][0]["data"][0]
                    if first not in range(4):
                        wrong.append(body)
                elif status != 404:
                    wrong.append(body)
                c.unregister(f"storm_{n % 2}")

    threads = [threading.Thread(target=user, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    stop.wait(2)
    stop.set()
    for t in threads:
        t.join()
    assert not wrong, wrong[:3]
    assert references(server) == 0
    with Caller(server.http) as c:
        c.unregister()
    assert descriptors(server.pid) == 0 and mappings(server.workers()[0]) == 0


def test_worker_killed(server):
    """A request whose worker dies is executed by the next one, which has the regions too."""
    with Memory(4096) as m, Caller(server.http) as c:
        m.write(ROW)
        assert c.register("kept", m.key, 4096)[0] == 200
        body = request(16, placed("kept", 64), placed("kept", 64, 64)).replace(b"[1, 16]", b"[16]")
        answers = []
        thread = threading.Thread(target=lambda: answers.append(c.infer("slow", body)))
        thread.start()
        harness.wait_for(lambda: "sluice_client_memory_references 2" in server.metrics_text(), 10, "the request runs")
        os.kill(server.workers()[0], signal.SIGKILL)
        thread.join()
        assert answers[0][0] == 200, answers
        np.testing.assert_array_equal(m.read(16, 64), ROW)
        assert c.infer("batched", request(16, placed("kept", 64)))[0] == 200
        c.unregister()
    references(server)


def ours():
    """The names of ours in a folder that everything on the machine has names in."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("sluice")}


def test_restart_leaves_nothing(start, tmp_path):
    """A gateway that is killed leaves no process, no name and no memory of a client's behind."""
    model(tmp_path, "plain", batch=0)
    s = start([tmp_path])
    with Memory(4096) as m, Caller(s.http) as c:
        assert c.register("r", m.key, 4096)[0] == 200
        workers = s.workers()
        before = ours()
        s.kill()
        harness.wait_for(lambda: not any(map(harness.alive, workers)), 10, "its workers end")
        assert ours() <= before
        again = start([tmp_path], place=s)
        with Caller(again.http) as c2:
            assert c2.status() == (200, [])
            assert c2.register("r", m.key, 4096)[0] == 200
        assert again.stop() == 0


def test_cuda(server):
    """Without a GPU a handle is refused in words that say so."""
    with Caller(server.http) as c, grpcclient.InferenceServerClient(server.grpc) as g:
        import base64
        handle = base64.b64encode(bytes(64)).decode()
        body = json.dumps({"raw_handle": {"b64": handle}, "device_id": 0, "byte_size": 64}).encode()
        status, answer = c.call("/v2/cudasharedmemory/region/d/register", body)
        assert status in (400, 501) and "GPU" in answer["error"], answer
        assert c.call("/v2/cudasharedmemory/status") == (200, [])
        with pytest.raises(InferenceServerException, match="GPU"):
            g.register_cuda_shared_memory("d", base64.b64encode(bytes(64)), 0, 64)

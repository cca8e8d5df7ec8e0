"""Callers with regions who mean harm: memory that is not there, and descriptors of what is none."""
import contextlib
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import harness
from shared_memory import Caller, Memory, descriptors, model, placed, request

HUGE = 60 << 30
ROW = np.arange(16, dtype=np.float32)
CLIENTS = {"http": httpclient, "grpc": grpcclient}
NOBODY = 4711


@pytest.fixture(scope="module")
def server(built, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    model(folder, "numbers", batch=0, datatype="INT32")
    model(folder, "words", batch=0, datatype="STRING")
    model(folder, "plain", batch=0)
    model(folder, "together", batch=8, more="dynamic_batching { max_queue_delay_microseconds: 1000 }")
    model(folder, "sequence", batch=4, more="sequence_batching { max_sequence_idle_microseconds: 5000000 }")
    sockets = tmp_path_factory.mktemp("sockets")
    s = harness.Server([folder], [f"--http-unix-socket={sockets}/http"])
    s.socket = f"{sockets}/http"
    yield s
    assert s.stop() == 0, s.log()[-3000:]


@pytest.mark.parametrize("name, datatype, shape", [("numbers", "INT32", [HUGE // 4]), ("words", "BYTES", [1]),
                                                   ("together", "FP32", [1, HUGE // 4]), ("sequence", "FP32", [1, HUGE // 4]),
                                                   ("plain", "FP32", [HUGE // 4 - 1])])
def test_sparse(server, name, datatype, shape):
    """A file with a hole of 60 GB costs its owner nothing, and must not cost a worker its life."""
    workers = server.workers()
    fd = os.memfd_create("region")
    os.ftruncate(fd, HUGE)
    with Caller(server.socket) as c:
        assert c.pass_descriptors("hole", {"byte_size": HUGE}, [fd]) == (200, None)
        tensor = {"name": "INPUT0", "datatype": datatype, "shape": shape, "parameters": placed("hole", HUGE)}
        if name == "plain":
            tensor["parameters"] = placed("hole", HUGE - 4, 1)
        document = {"inputs": [tensor]}
        if name == "sequence":
            document["parameters"] = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
        status, answer = c.infer(name, json.dumps(document).encode())
        if name == "plain":
            assert status == 400 and "is too large to be copied" in answer["error"], (status, answer)
        else:
            assert status == 503 and "tensor memory" in answer["error"], (status, answer)
        assert c.unregister("hole")[0] == 200
        assert c.infer("plain", json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}).encode())[0] == 200
    os.close(fd)
    assert server.workers() == workers
    assert descriptors(server.pid) == 0


def infer(client, module, source, target=None, data=None):
    """One row through the model plain, from a region or as data, to a region if target names one."""
    tensor = module.InferInput("INPUT0", [16], "FP32")
    tensor.set_data_from_numpy(data) if source is None else tensor.set_shared_memory(source, 64)
    wanted = module.InferRequestedOutput("OUTPUT0")
    if target:
        wanted.set_shared_memory(target, 64)
    return client.infer("plain", [tensor], outputs=[wanted])


def refusal(ask, *args):
    """What a call is refused with; None: it was not."""
    try:
        ask(*args)
    except InferenceServerException as e:
        return str(e.message())
    return None


def known(client):
    """The names of all regions that a caller is told of."""
    status = client.get_system_shared_memory_status()
    return sorted(r["name"] for r in status) if isinstance(status, list) else sorted(status.regions)


def attack(protocol, address, key, shared):
    """What a process of another user gets over loopback TCP. key: a file of root's, mode 0600, that root registered as "mine";
    shared: one that everybody may write, which root registered too."""
    module = CLIENTS[protocol]
    own = pathlib.Path(f"/dev/shm{key}_own_{protocol}")
    own.write_bytes(ROW.tobytes() + bytes(64))
    own.chmod(0o600)
    told = {}
    try:
        with module.InferenceServerClient(address) as client:
            told["list"] = known(client)
            told["read"] = refusal(infer, client, module, "mine")
            told["write"] = refusal(infer, client, module, None, "mine", -ROW)
            client.unregister_system_shared_memory("mine")
            client.unregister_system_shared_memory()
            told["register"] = refusal(client.register_system_shared_memory, "stolen", key, 64)
            told["absent"] = refusal(client.register_system_shared_memory, "stolen", key + "_absent", 64)
            told["shared"] = refusal(client.register_system_shared_memory, "stolen", shared, 64)
            told["copied"] = refusal(infer, client, module, "stolen")
            client.register_system_shared_memory("own", "/" + own.name, 128)
            told["own"] = infer(client, module, "own").as_numpy("OUTPUT0").tolist() == ROW.tolist(), known(client)
            client.unregister_system_shared_memory()
    finally:
        own.unlink()
    return told


def import_all():
    """Has the clients import what they import late: another user may not be able to read it."""
    for module in CLIENTS.values():
        with module.InferenceServerClient("127.0.0.1:1") as client, contextlib.suppress(OSError, InferenceServerException):
            client.is_server_live()


def as_nobody(call, *args):
    """What a function of this file returns in a process of another user."""
    code = (f"import json, os, sys; sys.path[:0] = json.loads(sys.argv[1]); import test_hostile_memory as t; t.import_all(); "
            f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY}); "
            f"print(json.dumps(t.{call.__name__}(*json.loads(sys.argv[2]))))")
    command = [sys.executable, "-c", code, json.dumps(sys.path), json.dumps(args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("protocol", CLIENTS)
def test_memory_of_another_user(server, protocol):
    """Over loopback TCP a region is its user's, and so must its file be: the kernel knows whose the socket is."""
    module = CLIENTS[protocol]
    address = getattr(server, protocol)
    with Memory(4096, protocol) as m, Memory(4096, f"{protocol}_shared") as shared, \
            module.InferenceServerClient(address) as client:
        m.write(ROW)
        shared.path.chmod(0o666)
        client.register_system_shared_memory("mine", m.key, 4096)
        client.register_system_shared_memory("shared", shared.key, 64)
        try:
            told = as_nobody(attack, protocol, address, m.key, shared.key)
            absent = "Unable to find shared memory region: '%s'"
            assert told == {"list": [], "read": absent % "mine", "write": absent % "mine",
                            "register": f"Unable to open shared memory region: '{m.key}'",
                            "absent": f"Unable to open shared memory region: '{m.key}_absent'",
                            "shared": "shared memory region 'stolen': another caller has registered its memory",
                            "copied": absent % "stolen", "own": [True, ["own"]]}
            np.testing.assert_array_equal(m.read(16), ROW)
            assert known(client) == ["mine", "shared"]
            # the same user goes on as before, by any way
            np.testing.assert_array_equal(infer(client, module, "mine").as_numpy("OUTPUT0"), ROW)
            with grpcclient.InferenceServerClient(server.grpc) as g, Caller(server.socket) as c:
                assert known(g) == ["mine", "shared"] and len(c.status()[1]) == 2
                g.register_system_shared_memory("again", m.key, 64)
                infer(g, grpcclient, None, "again", -ROW)
                np.testing.assert_array_equal(m.read(16), -ROW)
            client.unregister_system_shared_memory("shared")
            assert as_nobody(attack, protocol, address, m.key, shared.key)["shared"] is None, "it was given up"
        finally:
            client.unregister_system_shared_memory()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_memory_of_another_user_by_library(start, tmp_path):
    """The standard libraries' transports know the user too, and the log says nothing of a kernel that does not."""
    model(tmp_path, "plain", batch=0)
    s = start([tmp_path], ["--http-transport=library", "--grpc-transport=library"])
    with Memory(4096) as m, httpclient.InferenceServerClient(s.http) as client, \
            grpcclient.InferenceServerClient(s.grpc) as g:
        m.write(ROW)
        client.register_system_shared_memory("mine", m.key, 4096)
        for protocol in CLIENTS:
            told = as_nobody(attack, protocol, getattr(s, protocol), m.key, m.key)
            assert told["list"] == [] and told["own"] == [True, ["own"]]
            assert [name for name, why in told.items() if why is None] == []
        assert known(g) == ["mine"]
        np.testing.assert_array_equal(infer(g, grpcclient, "mine").as_numpy("OUTPUT0"), ROW)
        client.unregister_system_shared_memory()
    assert "the kernel does not tell" not in s.log()
    assert s.stop() == 0


def two_principals(tmp_path):
    """The keys of alice and bob, and flags of a server on the model plain that knows them."""
    model(tmp_path, "plain", batch=0)
    rule = "{principals: [alice, bob], actions: [infer, shared-memory, metadata]}"
    (tmp_path / "policy.yaml").write_text(f"rules:\n- {rule}\n")
    keys = {}
    for name in ("alice", "bob"):
        done = subprocess.run([harness.BINARY, "keys", "new", name], capture_output=True, text=True, check=True)
        keys[name] = done.stderr.strip().split()[-1]
        with open(tmp_path / "keys.txt", "a") as f:
            f.write(done.stdout)
    return keys, [f"--api-keys={tmp_path}/keys.txt", f"--policy={tmp_path}/policy.yaml"]


def test_memory_of_another_principal(start, tmp_path):
    """What one principal has registered is refused to others, however they name it, until it is given up."""
    keys, flags = two_principals(tmp_path)
    s = start([tmp_path], [*flags, f"--http-unix-socket={tmp_path}/http"])
    taken = {"error": "shared memory region 'r': another caller has registered its memory"}
    shown = {name: {"X-API-Key": key} for name, key in keys.items()}
    with Memory(4096) as m, Caller(s.http, shown["alice"]) as alice, Caller(s.http, shown["bob"]) as bob, \
            Caller(f"{tmp_path}/http", shown["bob"]) as near, grpcclient.InferenceServerClient(s.grpc) as g:
        link = pathlib.Path(f"{m.path}_link")
        os.link(m.path, link)
        try:
            assert alice.register("a", m.key, 64)[0] == 200
            assert alice.register("b", m.key, 64, 64)[0] == 200, "its owner may register it again"
            for c in (bob, near):
                for key in (m.key, f"/{link.name}"):
                    assert c.register("r", key, 64, 128) == (403, taken)
            with pytest.raises(InferenceServerException, match="another caller has registered its memory") as e:
                g.register_system_shared_memory("r", m.key, 64, headers={"x-api-key": keys["bob"]})
            assert e.value.status() == "StatusCode.PERMISSION_DENIED"
            assert alice.unregister("a")[0] == 200
            assert bob.register("r", m.key, 64) == (403, taken), "one of the two is left"
            assert alice.unregister("b")[0] == 200
            assert bob.register("r", m.key, 64)[0] == 200
            assert alice.register("a", m.key, 64)[0] == 403
        finally:
            link.unlink()
    assert s.stop() == 0


def test_names_of_principals(start, tmp_path):
    """Through a proxy nobody knows the user: there names are reserved for principals."""
    keys, flags = two_principals(tmp_path)
    s = start([tmp_path], [*flags, "--allow-client-shm=true", f"--client-shm-prefix=e2e_{os.getpid()}_{{principal}}_"])
    files = {name: pathlib.Path(f"/dev/shm/e2e_{os.getpid()}_{name}_x") for name in ("alice", "bob", "alice_", "carol")}
    try:
        for path in files.values():
            path.write_bytes(ROW.tobytes())
            path.chmod(0o600)
        for name, other in (("alice", "bob"), ("bob", "alice")):
            with Caller(s.http, {"X-API-Key": keys[name], "X-Forwarded-For": "192.0.2.1"}) as c:
                assert c.register("r", f"/{files[name].name}", 64) == (200, None)
                body = request(16, placed("r", 64)).replace(b"[1, 16]", b"[16]")
                assert c.infer("plain", body)[1]["outputs"][0]["data"] == ROW.tolist()
                for foreign in (other, "carol"):
                    status, answer = c.register("stolen", f"/{files[foreign].name}", 64)
                    assert status == 400 and "--client-shm-prefix" in answer["error"], (foreign, answer)
                link = files[name].with_name(files[name].name + "_link")
                os.link(files["carol"], link)
                try:
                    assert c.register("stolen", f"/{link.name}", 64)[0] == 500, "its other name may be anybody's"
                finally:
                    link.unlink()
                if name == "alice":
                    assert c.register("mine", f"/{files['alice_'].name}", 64)[0] == 200, "it begins with e2e_N_alice_"
    finally:
        for path in files.values():
            path.unlink(missing_ok=True)
    assert s.stop() == 0

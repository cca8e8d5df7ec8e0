"""Hostile clients on the built server, by test/soak and one by one: it stays up within its memory, honest clients are served, and
nothing is left."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import socket
import subprocess
import threading
import time

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

import harness
from shared_memory import model

SOAK = harness.ROOT / "bin" / "soak"


@pytest.fixture(scope="module")
def soak(built):
    if not SOAK.exists():
        subprocess.run(["go", "build", "-o", SOAK, "./test/soak"], cwd=harness.ROOT, check=True, timeout=300)

    def run(*args):
        done = subprocess.run([SOAK, f"-server={harness.BINARY}", *args], capture_output=True, text=True, timeout=300, env=os.environ)
        print(done.stdout)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout
    return run


@pytest.mark.parametrize("args,kinds", [
    (["-seconds=6", "-seed=11"], 10),
    (["-seconds=3", "-seed=12", "-tls", "-only=tls-,h1-slow,h2-rapid,grpc-half"], 3),
    (["-seconds=4", "-seed=13", "-http-transport=library", "-grpc-transport=library", "-memory=1536"], 6),
], ids=["sluice", "tls", "library"])
def test_short_soak(soak, args, kinds, monkeypatch):
    """What `make soak` does for ten minutes, for a few seconds: workers are killed in between, and many attacks have their turn.
    Connections are read by three loops, as on a machine of twelve cores."""
    monkeypatch.setenv("GOMAXPROCS", "12")
    said = soak(*args)
    killed, ran = re.search(r"(\d+) workers were killed, (\d+) of \d+ attacks ran", said).groups()
    assert "round 1" in said and int(killed) > 0 and int(ran) >= kinds, said


def test_short_churn(soak):
    """Reloads, cached answers, regions and cancellation at random, as `bin/soak -churn -seconds 3600` does for an hour."""
    said = soak("-churn", "-seconds=8", "-seed=14", "-pace=60ms")
    assert int(re.search(r"(\d+) answers checked", said).group(1)) > 200, said

MIB = 1 << 20


@pytest.fixture(scope="module")
def victim(built, tmp_path_factory):
    """A server that everybody may control, with models for large tensors."""
    folder = tmp_path_factory.mktemp("models")
    model(folder, "floats", batch=0, datatype="FP64")
    model(folder, "bytes", batch=0, datatype="INT8")
    for i in range(4):
        model(folder, f"hostage{i}", batch=0, datatype="INT32")
    model(folder, "honest", batch=0, datatype="INT32")
    s = harness.Server([folder], ["--model-control-mode=explicit", "--load-model=*"])
    yield s
    assert s.stop() == 0, s.log()[-3000:]


def resident(s):
    return int(pathlib.Path(f"/proc/{s.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def used(s):
    """Seconds of CPU."""
    fields = pathlib.Path(f"/proc/{s.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def bounded(s, mib):
    """The gateway never holds more than so many MiB beyond what it held at first, and answers an honest client all along."""
    first, over, stop = resident(s), [0], threading.Event()

    def watch():
        while not stop.wait(0.02):
            over[0] = max(over[0], resident(s) - first)
    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = used(s)
    try:
        yield
        tensor = {"name": "INPUT0", "shape": [2], "datatype": "INT32", "data": [1, 2]}
        status, _, answer = s.ask("/v2/models/honest/infer", json.dumps({"inputs": [tensor]}).encode())
        assert status == 200, answer
    finally:
        stop.set()
        watcher.join()
    print(f"at most {over[0] / MIB:.0f} MiB more, {used(s) - begin:.1f} s of CPU")
    assert over[0] < mib * MIB, f"{over[0] / MIB:.0f} MiB more than at first, at most {mib} are allowed"


def binary(name, datatype, data, outputs):
    """The header and the body of a request with one binary tensor."""
    tensor = {"name": "INPUT0", "shape": [data.size], "datatype": datatype, "parameters": {"binary_data_size": data.nbytes}}
    head = json.dumps({"inputs": [tensor], "outputs": [{"name": "OUTPUT0", "parameters": outputs}]}).encode()
    text = (f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: a\r\nInference-Header-Content-Length: {len(head)}\r\n"
            f"Content-Length: {len(head) + data.nbytes}\r\n")
    return text.encode(), b"\r\n" + head + data.tobytes()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_classes_of_all_elements(victim, protocol):
    """8 MB of FP64 as classes are 327 MB of text: refused, or made within a bound, and not for a caller who has left."""
    data = -np.random.default_rng(1).random(MIB) * 1e300
    head, body = binary("floats", "FP64", data, {"classification": data.size})
    with bounded(victim, 512):
        for _ in range(4):
            if protocol == "http":
                with socket.create_connection(victim.http.rsplit(":", 1), 20) as s:
                    s.sendall(head + body)
                    time.sleep(0.3)
                continue
            wanted = grpcclient.InferRequestedOutput("OUTPUT0", class_count=data.size)
            with grpcclient.InferenceServerClient(victim.grpc) as client, contextlib.suppress(InferenceServerException):
                tensor = grpcclient.InferInput("INPUT0", [data.size], "FP64")
                tensor.set_data_from_numpy(data)
                client.infer("floats", [tensor], outputs=[wanted], client_timeout=0.3)
        begin = used(victim)
        harness.wait_for(lambda: "sluice_body_memory_bytes 0" in victim.metrics_text(), 20, "nothing is held for callers who have left")
        assert used(victim) - begin < 5, "it went on for callers who have left"


@pytest.mark.parametrize("header", [b"", b"Accept-Encoding: gzip\r\n"], ids=["plain", "gzip"])
def test_json_that_nobody_reads(victim, header):
    """Ten connections send 20 MB of INT8 and want JSON, which is some 90 MB, and read nothing."""
    data = np.random.default_rng(2).integers(-128, 128, 20 * MIB, np.int8)
    head, body = binary("bytes", "INT8", data, {"binary_data": False})
    with bounded(victim, 768), contextlib.ExitStack() as held:
        for _ in range(10):
            s = held.enter_context(socket.create_connection(victim.http.rsplit(":", 1), 20))
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            with contextlib.suppress(OSError):  # it may have been refused before it was whole
                s.sendall(head + header + body)
        time.sleep(4)


def test_warm_up_without_end(victim):
    """Four loads that warm up for ever, by one who leaves, stop nobody's load, and an unload ends them."""
    tensor = {"data_type": "TYPE_INT32", "dims": [1]}
    endless = {"name": "endless", "batch_size": 1, "count": 2**32 - 1, "inputs": {"INPUT0": dict(tensor, zero_data=True)}}
    config = {"backend": "identity", "input": [dict(tensor, name="INPUT0")], "output": [dict(tensor, name="OUTPUT0")],
              "instance_group": [{"count": 1, "kind": "KIND_CPU"}], "model_warmup": [endless]}
    body = json.dumps({"parameters": {"config": json.dumps(config)}}).encode()
    for i in range(4):
        with contextlib.suppress(OSError):
            victim.ask(f"/v2/repository/models/hostage{i}/load", body, timeout=0.5)
    begin = time.monotonic()
    for name in ["honest", *(f"hostage{i}" for i in range(4))]:
        status, _, answer = victim.ask(f"/v2/repository/models/{name}/unload", b"", timeout=harness.PATIENCE)
        assert status == 200, (name, answer)
    for name in ["honest", *(f"hostage{i}" for i in range(4))]:
        status, _, answer = victim.ask(f"/v2/repository/models/{name}/load", b"", timeout=harness.PATIENCE)
        assert status == 200, (name, answer)
    assert time.monotonic() - begin < harness.PATIENCE


def test_malformed_requests_fill_no_log(victim):
    """What callers do wrong does not fill the disk."""
    before = victim.log_path.stat().st_size
    connection = http.client.HTTPConnection(victim.http, timeout=20)
    with contextlib.closing(connection):
        for _ in range(5000):
            connection.request("POST", "/v2/models/honest/infer", b'{"inputs":[' + b"x" * 1100)
            answer = connection.getresponse()
            answer.read()
            assert answer.status in (400, 500)
    grown = victim.log_path.stat().st_size - before
    assert grown < 512 << 10, f"5000 refused requests wrote {grown} bytes"

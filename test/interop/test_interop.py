"""Clients of others' making against the built server, on its own transports and on the libraries': curl, grpc-go, grpc-js, hey, wrk,
perf_analyzer (the C++ client), and pipelined requests. Answers are checked, not only their status. The public Python clients
are test/conformance/test_clients.py's, Envoy is test/e2e/test_mesh*.py's."""
import json
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess

import numpy as np
import pytest

import certificates
import harness

HERE = pathlib.Path(__file__).parent
TOOLS = harness.ROOT / ".cache" / "interop"
REPEAT = """backend: "repeat"
input [ { name: "IN" data_type: TYPE_INT32 dims: -1 }, { name: "DELAY" data_type: TYPE_UINT32 dims: -1 }, { name: "WAIT" data_type: TYPE_UINT32 dims: 1 } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: 1 }, { name: "IDX" data_type: TYPE_UINT32 dims: 1 } ]
model_transaction_policy { decoupled: true }
instance_group { count: 4 kind: KIND_CPU }
"""
IDENTITY = """backend: "identity"
input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }
instance_group { count: 2 kind: KIND_CPU }
"""
FIXED = IDENTITY.replace("-1", "16")  # perf_analyzer wants outputs of known shapes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for name, text in (("repeat", REPEAT), ("identity", IDENTITY), ("fixed", FIXED)):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(text)
    return root


@pytest.fixture(scope="module", params=["sluice", "library"])
def server(built, folder, request):
    s = harness.Server(repositories=[folder], flags=[f"--{p}-transport={request.param}" for p in ("http", "grpc")])
    yield s
    assert s.stop() == 0, "exit status after SIGTERM\n" + s.log()[-3000:]


@pytest.fixture
def secure(start, folder, tmp_path):
    """A server with TLS on its gRPC port: (server, its certificate). The library's TLS is Go's own too."""
    cert, key = certificates.authority(tmp_path, "server")
    return start(repositories=[folder], flags=["--grpc-use-ssl=1", f"--grpc-server-cert={cert}", f"--grpc-server-key={key}"]), cert


def tool(path, how):
    found = path if path.exists() else shutil.which(path.name)
    if not found:
        pytest.skip(f"{path.name} is not there: {how}")
    return str(found)


def run(*command, data=b"", timeout=60, retry=()):
    """What a program writes. retry are exit statuses after which it is tried again: curl 7.88 ends with 92 now and then when it is
    answered, and reset with NO_ERROR, while it sends."""
    for _ in range(10):
        done = subprocess.run([str(c) for c in command], input=data, capture_output=True, timeout=timeout)
        if done.returncode not in retry:
            break
    assert done.returncode == 0, f"{command[0]}: {done.returncode}\n{done.stdout.decode()[-2000:]}\n{done.stderr.decode()[-2000:]}"
    return done.stdout


def curl(*args, **kwargs):
    return run(tool(pathlib.Path("curl"), "a package of every system"), "-sS", "--max-time", "20", *args, retry=(92,), **kwargs)


def question(n, id="q"):
    values = [(i * 1234567) % 2**31 - 2**30 for i in range(n)]
    return values, json.dumps({"id": id, "inputs": [{"name": "INPUT0", "shape": [n], "datatype": "INT32", "data": values}]}).encode()


# ---- curl

WAYS = {"HTTP/1.1": (["--http1.1"], "1.1"), "HTTP/1.0": (["--http1.0"], "1"), "prior knowledge": (["--http2-prior-knowledge"], "2"),
        "upgrade": (["--http2"], "2"), "chunked": (["--http1.1", "-H", "Transfer-Encoding: chunked"], "1.1"),
        "Expect": (["--http1.1", "-H", "Expect: 100-continue"], "1.1"), "chunked, Expect": (["--http1.1", "-H", "Transfer-Encoding: chunked", "-H",
                   "Expect: 100-continue"], "1.1"), "upgrade, Expect": (["--http2", "-H", "Expect: 100-continue"], "2"),
        "compressed": (["--http1.1", "--compressed"], "1.1")}


@pytest.mark.parametrize("way, n", [(way, n) for way in WAYS for n in (3, 4000, 100_000) if n != 4000 or way.startswith("upgrade")])
def test_curl(server, way, n):
    args, version = WAYS[way]
    values, body = question(n)
    if way.startswith("upgrade") and len(body) > 65535:
        version = "1.1"  # such a body is not upgraded
    out = curl(*args, "-H", "Content-Type: application/json", "--data-binary", "@-", "-w", "\n%{http_version} %{response_code}",
               f"http://{server.http}/v2/models/identity/infer", data=body)
    answer, said = out.rsplit(b"\n", 1)
    assert said.decode() == f"{version} 200", out[-300:]
    answer = json.loads(answer)
    assert answer["id"] == "q" and answer["outputs"][0]["data"] == values


@pytest.mark.parametrize("way", ["HTTP/1.1", "upgrade"])  # curl 7.88 fails on the second by prior knowledge, with any server
def test_curl_keeps_its_connection(server, way):
    url = f"http://{server.http}/v2/models/identity"
    out = curl(*WAYS[way][0], *[url] * 5, "-w", "\n%{num_connects} %{response_code}\n").decode().splitlines()
    assert [json.loads(line)["name"] for line in out[::2]] == ["identity"] * 5
    assert [line for line in out[1::2]] == ["1 200"] + ["0 200"] * 4


def test_curl_head_and_faults(server):
    url = f"http://{server.http}"
    for way in ("HTTP/1.1", "prior knowledge", "upgrade"):
        ask = lambda *a: curl(*WAYS[way][0], "-o", "/dev/null", "-w", "%{response_code}", *a).decode()
        assert ask(f"{url}/v2/models/none") == "404"
        assert ask(f"{url}/v2/models/identity/infer", "-d", "{") == "500"  # as the original
        assert ask(f"{url}/nowhere") == "404"
        assert ask("-X", "DELETE", f"{url}/v2") == ask("-X", "DELETE", "--http1.1", f"{url}/v2")


def grpc_frame(message=b""):
    return b"\0" + struct.pack(">I", len(message)) + message


@pytest.mark.parametrize("way", ["prior knowledge", "upgrade"])
def test_curl_grpc(server, way):
    """A unary call by hand; the answer of ServerLive is field 1, true."""
    out = curl(*WAYS[way][0], "-D", "-", "-H", "content-type: application/grpc", "-H", "te: trailers", "--data-binary", "@-", "-w", "\n%{http_version}",
               f"http://{server.grpc}/inference.GRPCInferenceService/ServerLive", data=grpc_frame())
    assert b"grpc-status: 0" in out and b"\0\0\0\0\2\x08\x01" in out and out.endswith(b"\n2")
    assert (b"101 Switching Protocols" in out) == (way == "upgrade")


def test_curl_grpc_tls(secure):
    s, cert = secure
    out = curl("--cacert", cert, "-D", "-", "-H", "content-type: application/grpc", "-H", "te: trailers", "--data-binary", "@-", "-w", "\n%{http_version}",
               f"https://{s.grpc}/inference.GRPCInferenceService/ServerLive", data=grpc_frame())
    assert b"grpc-status: 0" in out and b"\0\0\0\0\2\x08\x01" in out and out.endswith(b"\n2")


# ---- pipelining

def test_pipelining(server):
    """A hundred requests, of every framing, in one write; the answers come in order and are theirs."""
    sent, want = b"", []
    for i in range(100):
        values, body = question(1 + i * 7 % 50, id=f"n{i}")
        head = f"POST /v2/models/identity/infer HTTP/1.1\r\nHost: h\r\n"
        if i % 3 == 0:
            at = len(body) // 2
            body = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (body[:at], body[at:])) + b"0\r\n\r\n"
            sent += head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + body
        else:
            sent += head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
        want.append((f"n{i}", values))
        if i % 10 == 9:
            sent += b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n"
            want.append(None)
    host, port = server.http.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=20) as s:
        s.sendall(sent)
        f = s.makefile("rb")
        for w in want:
            assert f.readline() == b"HTTP/1.1 200 OK\r\n", w
            length = 0
            while (line := f.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            body = f.read(length)
            if w:
                answer = json.loads(body)
                assert (answer["id"], answer["outputs"][0]["data"]) == w


# ---- grpc-go and grpc-js

@pytest.fixture(scope="session")
def grpcgo(tmp_path_factory):
    binary = tmp_path_factory.mktemp("grpcgo") / "grpcgo"
    subprocess.run(["go", "build", "-trimpath", "-ldflags=-s -w", "-o", binary, "./test/interop/grpcgo"], cwd=harness.ROOT, check=True, timeout=300,
                   env={**os.environ, "CGO_ENABLED": "0"})  # as bin/sluice, so that they share what the compiler makes
    return binary


def test_grpc_go(server, grpcgo):
    out = run(grpcgo, server.grpc).decode()
    assert out.count("ok ") == 10, out


def test_grpc_js(server):
    node = tool(TOOLS / "node", "scripts/setup.sh interop")
    if not (TOOLS / "grpcjs/node_modules/@grpc/grpc-js").exists():
        pytest.skip("grpc-js is not there: scripts/setup.sh interop")
    done = subprocess.run([node, HERE / "grpcjs/client.js", server.grpc, harness.ROOT], capture_output=True, text=True, timeout=60,
                          env={"NODE_PATH": str(TOOLS / "grpcjs/node_modules"), "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0 and done.stdout.count("ok ") == 10, done.stdout + done.stderr


# ---- generators of load

def test_hey(server, tmp_path):
    """hey counts bytes: all answers are of one length, which curl's is."""
    hey = tool(TOOLS / "hey", "scripts/setup.sh interop")
    _, body = question(100)
    (tmp_path / "body").write_bytes(body)
    url = f"http://{server.http}/v2/models/identity/infer"
    one = len(curl("--data-binary", "@-", url, data=body))
    out = run(hey, "-disable-compression", "-n", "2000", "-c", "20", "-m", "POST", "-T", "application/json", "-D", tmp_path / "body", url).decode()
    assert re.search(r"\[200\]\s+2000 responses", out), out
    assert re.search(rf"Size/request:\s+{one} bytes", out), out


@pytest.mark.parametrize("connections", [1, 32])
def test_wrk(server, connections):
    wrk = tool(TOOLS / "wrk", "scripts/setup.sh interop")
    out = run(wrk, "-t1", f"-c{connections}", "-d1s", "--timeout", "20s", "-s", HERE / "check.lua", f"http://{server.http}").decode()
    right, wrong, errors = map(int, re.search(r"RIGHT (\d+) WRONG (\d+) ERRORS (\d+)", out).groups())
    assert right > 50 and wrong == 0 and errors == 0, out


@pytest.mark.parametrize("args", [["-i", "http"], ["-i", "grpc"], ["-i", "grpc", "--streaming", "--async"]], ids=["http", "grpc", "streaming"])
def test_perf_analyzer(server, tmp_path, args):
    """The C++ client. It checks each answer against validation_data."""
    if not harness.ANALYZER.exists():
        pytest.skip("perf_analyzer is not there: scripts/peer.sh analyzer")
    values = [int(v) for v in np.arange(16) * 7 - 50]
    (tmp_path / "data.json").write_text(json.dumps({"data": [{"INPUT0": {"content": values, "shape": [16]}}],
                                                    "validation_data": [{"OUTPUT0": {"content": values, "shape": [16]}}]}))
    out = run(harness.ROOT / "scripts/peer.sh", "pa", "-m", "fixed", *args, "-u", server.http if args[1] == "http" else server.grpc, "--input-data",
              tmp_path / "data.json", "--concurrency-range", "8:8", "-p", "300", "-r", "3", "-s", "999").decode()
    assert "infer/sec" in out and "Failed" not in out, out[-2000:]

"""HTTP as it goes over the wire: headers, encodings, transports, limits."""
import gzip
import http.client
import json
import shutil
import socket
import ssl
import struct
import subprocess
import zlib

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import harness
from certificates import authority

INFER = "/v2/models/identity_int32/infer"
BODY = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 4], "datatype": "INT32", "data": [1, 2, 3, 4]}]}).encode()


def data_of(body):
    return json.loads(body)["outputs"][0]["data"]


def test_content_types(server):
    status, headers, _ = server.ask(INFER, BODY)
    assert status == 200 and headers["Content-Type"] == "application/json"
    status, headers, _ = server.ask("/v2/models/nope", None)
    assert status == 404 and headers["Content-Type"] == "application/json"
    body = BODY[:-1] + b',"parameters":{"binary_data_output":true}}'
    status, headers, answer = server.ask(INFER, body)
    n = int(headers["Inference-Header-Content-Length"])
    assert headers["Content-Type"] == "application/octet-stream" and answer[n:] == struct.pack("<4i", 1, 2, 3, 4)


@pytest.mark.parametrize("encoding,pack,unpack", [
    ("gzip", gzip.compress, gzip.decompress), ("deflate", zlib.compress, zlib.decompress)])
def test_encodings(server, encoding, pack, unpack):
    big = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 2000], "datatype": "INT32", "data": [7] * 2000}]}).encode()
    status, headers, body = server.ask(INFER, pack(big), {"Content-Encoding": encoding, "Accept-Encoding": encoding})
    assert status == 200 and headers["Content-Encoding"] == encoding
    assert data_of(unpack(body)) == [7] * 2000


def test_unknown_encoding_says_which_there_are(server):
    status, headers, body = server.ask(INFER, BODY, {"Content-Encoding": "br"})
    assert status == 501 and json.loads(body)["error"] == "Unsupported compression type"
    assert headers["Accept-Encoding"] == "gzip, deflate"


def test_header_forwarding(server):
    """A forwarded header becomes a request parameter: "fail" has the identity backend fail with its text."""
    status, _, body = server.ask(INFER, BODY, {"Fail": "forwarded over HTTP", "X-Other": "1"})
    assert "forwarded over HTTP" in json.loads(body).get("error", ""), (status, body)
    tensor = grpcclient.InferInput("INPUT0", [1, 4], "INT32")
    tensor.set_data_from_numpy(np.zeros((1, 4), np.int32))
    with grpcclient.InferenceServerClient(server.grpc) as c:
        with pytest.raises(InferenceServerException, match="forwarded over gRPC"):
            c.infer("identity_int32", [tensor], headers={"fail": "forwarded over gRPC"})
    assert server.ask(INFER, BODY, {"Failure": "no whole match"})[0] == 200


def test_decompression_is_bounded(start):
    s = start(flags=["--http-max-input-size=65536"])
    bomb = gzip.compress(b" " * 50_000_000)
    status, _, body = s.ask(INFER, bomb, {"Content-Encoding": "gzip"})
    assert status in (400, 413), body
    status, _, body = s.ask(INFER, b" " * 200_000)
    assert status in (400, 413) and b"65536" in body, body
    assert s.ask(INFER, BODY)[0] == 200


def test_chunked_body(server):
    c = http.client.HTTPConnection(server.http, timeout=20)
    c.request("POST", INFER, iter([BODY[:10], BODY[10:]]), {"Transfer-Encoding": "chunked"}, encode_chunked=True)
    r = c.getresponse()
    assert r.status == 200 and data_of(r.read()) == [1, 2, 3, 4]
    c.close()


def test_many_requests_on_one_connection(server):
    c = http.client.HTTPConnection(server.http, timeout=20)
    for i in range(200):
        c.request("POST", INFER, BODY if i % 3 else b"no json")
        r = c.getresponse()
        body = r.read()
        assert r.status == (200 if i % 3 else 500), body
    c.close()


@pytest.mark.parametrize("junk", [
    b"GET / HTTP/9.9\r\n\r\n", b"\x00\xff" * 100, b"POST /v2/models/identity_int32/infer HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /v2/models/identity_int32/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    b"POST /v2/models/identity_int32/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"GET /v2/../../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"GET /v2/models/..%2f..%2fetc/config HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nX: " + b"a" * 3_000_000 + b"\r\n\r\n"], ids=range(8))
def test_junk_is_refused(server, junk):
    host, port = server.http.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=20) as s:
        try:
            s.sendall(junk)
            s.shutdown(socket.SHUT_WR)
            answer = s.recv(65536)
        except OSError:
            answer = b""
    assert b" 200 " not in answer.split(b"\r\n")[0], answer[:200]
    assert server.status("/v2/health/ready") == 200


def test_long_content_length_takes_no_memory(server):
    """A body that is announced and never comes costs nothing."""
    host, port = server.http.rsplit(":", 1)
    sockets = []
    for _ in range(20):
        s = socket.create_connection((host, int(port)), timeout=20)
        s.sendall(b"POST /v2/models/identity_int32/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n{")
        sockets.append(s)
    try:
        assert server.ask(INFER, BODY)[0] == 200
    finally:
        for s in sockets:
            s.close()
    assert server.ask(INFER, BODY)[0] == 200


def test_metrics(server):
    server.ask(INFER, BODY)
    text = server.metrics_text()
    for name in ("nv_inference_request_success", "nv_inference_request_failure", "nv_inference_count", "nv_inference_exec_count",
                 "nv_inference_request_duration_us", "nv_inference_queue_duration_us", "nv_inference_compute_infer_duration_us",
                 "nv_inference_pending_request_count"):
        assert f'{name}{{model="identity_int32",' in text or f"{name}{{" in text and 'model="identity_int32"' in text, name
    other = http.client.HTTPConnection(server.metrics, timeout=10)
    other.request("GET", "/nothing")
    assert other.getresponse().status == 404
    other.close()


def curl(*args):
    if not shutil.which("curl"):
        pytest.skip("curl is not there")
    return subprocess.run(["curl", "-sS", "--max-time", "20", *args], capture_output=True, check=True).stdout


def test_h2c(server):
    out = curl("--http2-prior-knowledge", "-w", "\n%{http_version} %{response_code}", "-d", BODY.decode(), f"http://{server.http}{INFER}")
    body, _, last = out.rpartition(b"\n")
    assert last == b"2 200" and data_of(body) == [1, 2, 3, 4]


def test_unix_sockets(start, tmp_path):
    h, g = tmp_path / "h.sock", tmp_path / "g.sock"
    s = start(flags=[f"--http-unix-socket={h}", f"--grpc-unix-socket={g}"])
    assert data_of(curl("--unix-socket", str(h), "-d", BODY.decode(), f"http://localhost{INFER}")) == [1, 2, 3, 4]
    with grpcclient.InferenceServerClient(f"unix:{g}") as c:
        assert c.is_server_ready() and c.is_model_ready("simple")
    assert s.stop() == 0
    assert not h.exists() and not g.exists()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return authority(tmp_path_factory.mktemp("tls"), "localhost")


def test_tls(start, certificate):
    cert, key = certificate
    s = start(scheme="https", flags=[f"--http-server-cert={cert}", f"--http-server-key={key}", "--grpc-use-ssl=true",
                                     f"--grpc-server-cert={cert}", f"--grpc-server-key={key}"])
    array = np.arange(4, dtype=np.int32).reshape(1, 4)
    port = s.http.rsplit(":", 1)[1]
    context = ssl.create_default_context(cafile=str(cert))
    with httpclient.InferenceServerClient(f"localhost:{port}", ssl=True, ssl_context_factory=lambda: context) as c:
        harness.wait_for(c.is_server_ready, 30, "ready over HTTPS")
        tensor = httpclient.InferInput("INPUT0", [1, 4], "INT32")
        tensor.set_data_from_numpy(array)
        np.testing.assert_array_equal(c.infer("identity_int32", [tensor]).as_numpy("OUTPUT0"), array)
    port = s.grpc.rsplit(":", 1)[1]
    with grpcclient.InferenceServerClient(f"localhost:{port}", ssl=True, root_certificates=str(cert)) as c:
        tensor = grpcclient.InferInput("INPUT0", [1, 4], "INT32")
        tensor.set_data_from_numpy(array)
        np.testing.assert_array_equal(c.infer("identity_int32", [tensor]).as_numpy("OUTPUT0"), array)
    assert s.stop() == 0

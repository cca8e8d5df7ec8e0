"""TLS whose files change, Unix sockets alone, and the limits of bodies in the original's words."""
import gzip
import json
import shutil
import socket
import ssl
import types

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient

import harness
from certificates import Live, authority, certificate

INFER = "/v2/models/identity_int32/infer"


def body(n):
    return json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, n], "datatype": "INT32", "data": [1] * n}]}).encode()


def shown(port, ca, pair=None):
    """The certificate that a port shows, after a request's worth of talk: a refused client hears of it only then."""
    context = ssl.create_default_context(cafile=ca)
    context.set_alpn_protocols(["h2", "http/1.1"])
    if pair:
        context.load_cert_chain(*map(str, pair))
    with socket.create_connection(("127.0.0.1", port), 10) as plain, context.wrap_socket(plain, server_hostname="localhost") as s:
        s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
        assert s.recv(9), "closed"
        return s.getpeercert(binary_form=True)


def served(port, ca, pair=None):
    try:
        return bool(shown(port, ca, pair))
    except (OSError, AssertionError):
        return False


def der(pem):
    return ssl.PEM_cert_to_DER_cert(pem.read_text())


@pytest.mark.parametrize("transport", ["sluice", "library"])
def test_certificates_keys_and_roots_are_read_again(start, tmp_path, transport):
    ca, clients, others = authority(tmp_path), authority(tmp_path, "clients"), authority(tmp_path, "others")
    one, two, three = (certificate(tmp_path, name, ca) for name in ("one", "two", "three"))
    client, other = certificate(tmp_path, "client", clients), certificate(tmp_path, "other", others)
    live = Live(tmp_path)
    live.install(one)
    roots = tmp_path / "roots.pem"
    shutil.copy(clients[0], roots)
    flags = [f"--{p}-transport={transport}" for p in ("http", "grpc")] + ["--http-use-ssl-mutual=true", "--grpc-use-ssl-mutual=true"]
    for p in ("http", "grpc"):
        flags += [f"--{p}-server-cert={live.cert}", f"--{p}-server-key={live.key}", f"--{p}-root-cert={roots}"]
    s = start([harness.TEST_MODELS], flags=flags, scheme="https")
    ports = [s.ports["http"], s.ports["grpc"]]

    def all_show(pair):
        return all(served(p, ca[0], client) and shown(p, ca[0], client) == der(pair[0]) for p in ports)

    def good(value):
        return all(f'sluice_config_last_reload_successful{{config="{p} certificates"}} {value}' in s.metrics_text() for p in ("http", "grpc"))
    harness.wait_for(lambda: all_show(one), 60, "the first certificate")
    assert not any(served(p, ca[0]) or served(p, ca[0], other) for p in ports)

    live.install(two)  # each file replaced at once
    harness.wait_for(lambda: all_show(two), 60, "the second certificate")
    assert good(1)

    live.key.with_suffix(".part").write_text("half a key")
    live.key.with_suffix(".part").replace(live.key)
    harness.wait_for(lambda: good(0), 60, "the broken key is told of")
    assert all_show(two) and "the old certificates stay in use" in s.log()

    live.install(three)
    harness.wait_for(lambda: all_show(three) and good(1), 60, "the third certificate")

    shutil.copy(others[0], tmp_path / "roots.part")
    (tmp_path / "roots.part").replace(roots)
    harness.wait_for(lambda: all(served(p, ca[0], other) for p in ports), 60, "clients of the new root")
    assert not any(served(p, ca[0], client) for p in ports)
    assert s.stop() == 0


def test_unix_sockets_alone(start, tmp_path):
    """HTTP, gRPC and metrics without a TCP port: inference, model control, statistics."""
    paths = {p: tmp_path / f"{p}.sock" for p in ("http", "grpc", "metrics")}
    s = start([harness.TEST_MODELS], ready=False, place=types.SimpleNamespace(**dict.fromkeys(paths, "no:-1")), flags=[
        *(f"--{p}-unix-socket={path}" for p, path in paths.items()), "--model-control-mode=explicit", "--load-model=identity_int32"])
    assert (s.ports["http"], s.ports["grpc"], s.ports["metrics"]) == (0, 0, 0)

    def ask(protocol, method, path, data=b""):
        with socket.socket(socket.AF_UNIX) as c:
            c.settimeout(20)
            c.connect(str(paths[protocol]))
            c.sendall(f"{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
            said = b"".join(iter(lambda: c.recv(65536), b""))
        return int(said.split()[1]), said
    harness.wait_for(lambda: ask("http", "GET", "/v2/health/ready")[0] == 200, 20, "ready")
    status, said = ask("http", "POST", INFER, body(2))
    assert status == 200 and b'"data":[1,1]' in said
    assert ask("http", "POST", "/v2/repository/models/identity_fp64/load")[0] == 200
    with grpcclient.InferenceServerClient(f"unix:{paths['grpc']}") as c:
        tensor = grpcclient.InferInput("INPUT0", [1, 3], "INT32")
        tensor.set_data_from_numpy(np.arange(3, dtype=np.int32).reshape(1, 3))
        assert c.infer("identity_int32", [tensor]).as_numpy("OUTPUT0").tolist() == [[0, 1, 2]]
        assert c.is_model_ready("identity_fp64")
        c.unload_model("identity_fp64")
    status, said = ask("metrics", "GET", "/metrics")
    assert status == 200 and b'nv_inference_request_success{model="identity_int32",version="1"} 2' in said
    assert s.stop() == 0
    assert not any(path.exists() for path in paths.values())


@pytest.mark.parametrize("transport", ["sluice", "library"])
def test_limits_of_bodies(start, transport):
    s = start([harness.TEST_MODELS], flags=["--http-max-input-size=100000", f"--http-transport={transport}"])

    def error(data, **headers):
        status, _, said = s.ask(INFER, data, headers)
        return status, json.loads(said).get("error")

    def chunked(data, size):
        host, port = s.http.split(":")
        with socket.create_connection((host, int(port)), 20) as c:
            c.sendall(f"POST {INFER} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            try:
                c.sendall(b"".join(b"%x\r\n%s\r\n" % (len(data[i:i + size]), data[i:i + size]) for i in range(0, len(data), size)) + b"0\r\n\r\n")
            except OSError:
                pass  # it has heard enough
            return c.recv(65536).decode()
    large, words = body(40000), "bytes exceeds the maximum allowed input size of 100000 bytes. Use --http-max-input-size to increase the limit."
    assert error(large) == (400, f"request JSON size of {len(large)} {words}")
    assert error(gzip.compress(large), **{"Content-Encoding": "gzip"}) == (400, f"request JSON size of 100001 {words}")
    assert f"request JSON size of 100001 {words}" in chunked(large, 5000)
    assert error(b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"INT32","data":' + b"[" * 120 + b"1" + b"]" * 120 + b"}]}") == (
        400, "JSON nesting depth exceeds maximum allowed limit (100)")
    assert error(body(26000))[1].startswith("JSON input 'INPUT0' has a byte_size (104000 bytes) that exceeds the maximum allowed value of 100000 bytes.")
    if transport == "sluice":
        assert "Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks." in chunked(b" " * 65537, 1)
    assert error(body(3)) == (200, None)


@pytest.mark.parametrize("strikes,refused", [(2, True), (0, False)])
@pytest.mark.parametrize("transport", ["sluice", "library"])
def test_ping_strikes(start, transport, strikes, refused):
    s = start([harness.TEST_MODELS], flags=[f"--grpc-transport={transport}", f"--grpc-http2-max-ping-strikes={strikes}"])
    host, port = s.grpc.split(":")
    with socket.create_connection((host, int(port)), 60) as c:
        c.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0" + b"\0\0\x08\6\0\0\0\0\0pingping" * 8)
        said = b""
        try:
            while b"too_many_pings" not in said and said.count(b"pingping") < 8:
                got = c.recv(65536)
                if not got:
                    break
                said += got
        except OSError:
            pass
    assert (b"too_many_pings" in said) == refused, said
    with grpc.insecure_channel(s.grpc) as channel:
        assert channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"") == b"\x08\x01"

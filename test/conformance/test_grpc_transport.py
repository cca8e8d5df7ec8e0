"""gRPC's transport, seen by clients that are not gRPC's own: curl by prior knowledge and by HTTP/1."""
import shutil
import struct
import subprocess

import pytest


def curl(*args, data=b""):
    if not shutil.which("curl"):
        pytest.skip("curl is not there")
    for _ in range(10):
        run = subprocess.run(["curl", "-sS", "--max-time", "20", *args], input=data, capture_output=True)
        if run.returncode != 92:  # so ends curl 7.88 now and then when it is answered, and reset with NO_ERROR, while it sends
            break
    run.check_returncode()
    return run.stdout


def call(server, method, *args, message=b"", tail="\n%{http_version} %{response_code}", kind="application/grpc"):
    """What curl writes on a unary call: header, trailers and the message."""
    return curl("--http2-prior-knowledge", "-D", "-", "-H", f"content-type: {kind}", "-H", "te: trailers", *args, "--data-binary", "@-",
                "-w", tail, f"http://{server.grpc}/inference.GRPCInferenceService/{method}", data=b"\0" + struct.pack(">I", len(message)) + message)


def test_prior_knowledge(server):
    out = call(server, "ServerLive")
    assert b"HTTP/2 200" in out and b"grpc-status: 0" in out
    assert b"\0\0\0\0\2\x08\x01" in out  # live: true
    assert out.endswith(b"\n2 200")


def test_status(server):
    out = call(server, "ModelReady", message=b"\x0a\x04none")
    assert b"grpc-status: " in out and out.endswith(b"\n2 200")


def test_not_grpc(server):
    out = call(server, "ServerLive", kind="text/plain")
    assert b"HTTP/2 415" in out and b"grpc-status: 3" in out


def test_two_content_types(server):
    for other in ("text/plain", "application/grpcx"):
        out = call(server, "ServerLive", "-H", f"content-type: {other}")
        assert b"HTTP/2 200" in out and b"grpc-status: 0" in out  # one of them is gRPC's


def test_http1(server, transport):
    if transport == "library":  # says nothing in words
        with pytest.raises(subprocess.CalledProcessError):
            curl("--http1.1", f"http://{server.grpc}/")
        return
    out = curl("--http1.1", "-w", "\n%{http_version} %{response_code}", f"http://{server.grpc}/")
    assert out.startswith(b"this port speaks gRPC over HTTP/2") and out.endswith(b"\n1.1 505")

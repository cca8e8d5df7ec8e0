"""Clients that speak TLS, and mean harm: each is refused or ended soon, and nothing of it is kept."""
import os
import pathlib
import socket
import ssl
import struct
import subprocess
import time

import pytest

import harness
from certificates import authority, certificate

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
READY = b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
SOON = 10  # s


@pytest.fixture(scope="module", params=["sluice", "library"])
def server(built, request, tmp_path_factory):
    """Both ports speak TLS and take clients' certificates, which nobody needs."""
    folder = tmp_path_factory.mktemp("certificates")
    ca = authority(folder)
    pair = certificate(folder, "server", ca)
    flags = []
    for p in ("http", "grpc"):
        flags += [f"--{p}-transport={request.param}", f"--{p}-server-cert={pair[0]}", f"--{p}-server-key={pair[1]}",
                  f"--{p}-root-cert={ca[0]}"]
    s = harness.Server([harness.TEST_MODELS], [*flags, "--grpc-use-ssl=true"], scheme="https")
    s.folder_of_certificates, s.ca = folder, ca
    harness.wait_for(lambda: talk(s, "http") or talk(s, "grpc"), 60, "an answer over TLS")
    yield s
    assert s.stop() == 0, s.log()[-3000:]


def context(ca, alpn=None, low=ssl.TLSVersion.TLSv1_2, high=ssl.TLSVersion.TLSv1_3):
    c = ssl.create_default_context(cafile=ca)
    c.minimum_version, c.maximum_version = low, high
    if alpn:
        c.set_alpn_protocols(alpn)
    return c


def talk(s, port, alpn=None, name="localhost", **kwargs):
    """What is answered to a first request in the protocol that was agreed on; b"" where the connection is ended."""
    try:
        c = context(s.ca[0], alpn or (["h2"] if port == "grpc" else None), **kwargs)
        with socket.create_connection(("127.0.0.1", s.ports[port]), SOON) as plain, c.wrap_socket(plain, server_hostname=name) as t:
            t.sendall(PREFACE if t.selected_alpn_protocol() == "h2" or port == "grpc" else READY)
            return t.recv(100)
    except (ssl.SSLError, ConnectionError):
        return b""


def descriptors(s):
    return len(os.listdir(f"/proc/{s.pid}/fd"))


def used(s):
    """Seconds of CPU."""
    fields = pathlib.Path(f"/proc/{s.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture(autouse=True)
def nothing_is_left(server):
    before = descriptors(server)
    yield
    harness.wait_for(lambda: descriptors(server) <= before + 4, 30, "the descriptors are back")
    assert talk(server, "http").startswith(b"HTTP/1.1 200") and talk(server, "grpc")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("port", ["http", "grpc"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_versions_are_refused(server, port, version):
    c = context(server.ca[0], low=version, high=version)
    c.set_ciphers("ALL:@SECLEVEL=0")
    with socket.create_connection(("127.0.0.1", server.ports[port]), SOON) as plain, pytest.raises((ssl.SSLError, ConnectionError)) as e:
        c.wrap_socket(plain, server_hostname="localhost")
    assert "VERSION" in str(e.value).upper(), e.value


MANY = [f"x{i:04}-{'y' * 100}" for i in range(150)]  # 16 KB


@pytest.mark.parametrize("port,alpn,answer", [
    pytest.param("http", ["http/1.1"], b"HTTP/1.1 200", id="http"),
    pytest.param("http", [*MANY, "http/1.1"], b"HTTP/1.1 200", id="http-many"),
    pytest.param("http", ["foo"], b"", id="http-unknown"),
    pytest.param("http", ["\x7f" * 255], b"", id="http-long"),
    pytest.param("http", ["HTTP/1.1"], b"", id="http-case"),
    pytest.param("http", ["h3", "acme-tls/1"], b"", id="http-others"),
    pytest.param("grpc", ["h2"], None, id="grpc"),
    pytest.param("grpc", [*MANY, "h2"], None, id="grpc-many"),
    pytest.param("grpc", ["foo"], b"", id="grpc-unknown"),
    pytest.param("grpc", ["http/1.1"], b"", id="grpc-http"),
])
def test_protocols(server, port, alpn, answer):
    """Who offers protocols and none that is spoken is refused by the handshake; None is an answer in frames."""
    got = talk(server, port, alpn)
    if answer is None:
        assert got[3:4] == b"\4", got  # SETTINGS
    else:
        assert got.startswith(answer) and bool(got) == bool(answer), got


def test_h2_over_the_http_port(server):
    """Where both are offered either may be chosen, and what was chosen is spoken."""
    got = talk(server, "http", ["h2", "http/1.1"])
    assert got.startswith(b"HTTP/1.1 200") or got[3:4] == b"\4", got
    c, address = context(server.ca[0], ["http/1.1"]), ("127.0.0.1", server.ports["http"])
    with socket.create_connection(address, SOON) as plain, c.wrap_socket(plain, server_hostname="localhost") as t:
        t.sendall(PREFACE)  # which is not what was agreed on
        said = t.recv(1000)
    assert not said.startswith(b"HTTP/1.1 200"), said


@pytest.mark.parametrize("port", ["http", "grpc"])
@pytest.mark.parametrize("keys", ["-tls1_2 R", "-tls1_3 K"])
def test_renegotiation(server, port, keys):
    """TLS 1.2 clients can't negotiate anew. Keys of TLS 1.3 may be updated, and many updates cost little."""
    version, key = keys.split()
    before = used(server)
    command = ["openssl", "s_client", version, "-alpn", "h2" if port == "grpc" else "http/1.1", "-CAfile", server.ca[0]]
    p = subprocess.Popen([*command, "-connect", f"127.0.0.1:{server.ports[port]}"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        for _ in range(60):  # a read of its own makes each line a command
            p.stdin.write(f"{key}\n".encode())
            p.stdin.flush()
            time.sleep(0.02)
    except BrokenPipeError:
        pass  # the server has ended the connection
    finally:
        try:
            said = p.communicate(timeout=SOON)[0].decode(errors="replace")
        except (subprocess.TimeoutExpired, ValueError):
            p.kill()
            said = p.stdout.read().decode(errors="replace")
        p.wait(SOON)
    if key == "R":
        assert "RENEGOTIATING" in said and any(w in said for w in ("alert", "unexpected", "error", "closed")), said[-600:]
    else:
        assert "KEYUPDATE" in said, said[-600:]
    assert used(server) - before < 2, "60 updates took more than 2 s of CPU"


@pytest.mark.parametrize("port", ["http", "grpc"])
@pytest.mark.parametrize("name", ["x" * 63 + ("." + "y" * 60) * 3, "localhost.", "xn--nxasmq6b", "_.._", "0x7f.1"])
def test_names(server, port, name):
    """A name that the server does not have (SNI) is nothing to it; the client alone finds that out."""
    c = context(server.ca[0], ["h2"] if port == "grpc" else None)
    c.check_hostname = False
    with socket.create_connection(("127.0.0.1", server.ports[port]), SOON) as plain:
        try:
            with c.wrap_socket(plain, server_hostname=name) as t:
                t.sendall(PREFACE if port == "grpc" else READY)
                assert t.recv(10)
        except (ssl.SSLError, ValueError) as e:
            assert "alert" in str(e).lower() or "label" in str(e).lower(), e


@pytest.mark.parametrize("port", ["http", "grpc"])
def test_connections_that_end_early(server, port):
    """300 that are reset in the middle of the handshake, and 300 with a whole one or a session that is resumed."""
    c, session = context(server.ca[0], ["h2"] if port == "grpc" else None, high=ssl.TLSVersion.TLSv1_2), None
    hello = ssl.MemoryBIO()
    try:
        context(server.ca[0]).wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError:
        pass
    begun = hello.read()
    before = used(server)
    for i in range(300):
        with socket.create_connection(("127.0.0.1", server.ports[port]), SOON) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            s.sendall(begun[:1 + i * len(begun) // 300])
        with socket.create_connection(("127.0.0.1", server.ports[port]), SOON) as s, \
                c.wrap_socket(s, server_hostname="localhost", session=session) as t:
            session = t.session or session
    assert used(server) - before < 15


@pytest.mark.parametrize("port", ["http", "grpc"])
def test_chains_of_thousands(server, port, tmp_path):
    """A client's chain of 200 KB, none of it signed by whom the server trusts, is refused soon and costs little."""
    other = authority(tmp_path, "other")
    pair = certificate(tmp_path, "client", other)
    leaf, root = pair[0].read_text(), other[0].read_text()
    before, begin = used(server), time.monotonic()
    for count in (10, 400, 4000):
        chain = tmp_path / f"chain{count}.pem"
        chain.write_text(leaf + root * count)
        c = context(server.ca[0], ["h2"] if port == "grpc" else None)
        c.load_cert_chain(chain, pair[1])
        try:
            with socket.create_connection(("127.0.0.1", server.ports[port]), SOON) as plain, \
                    c.wrap_socket(plain, server_hostname="localhost") as t:
                t.sendall(PREFACE if port == "grpc" else READY)
                assert not t.recv(10), f"a chain of {count} was taken"
        except (ssl.SSLError, ConnectionError):
            pass
    assert used(server) - before < 3 and time.monotonic() - begin < 20

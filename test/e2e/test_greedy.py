"""Clients that ask for much and take nothing: they fill the memory that all answers and bodies share, and must not keep it. Who
reads slowly keeps what he waits for."""
import concurrent.futures
import contextlib
import http.client
import json
import socket
import struct
import threading
import time

import pytest
from tritonclient.grpc import service_pb2

from shared_memory import model

MIB = 1 << 20
SOON = 30  # s: what is not taken is dropped after five; before it was a minute
RATE = 200_000  # bytes a second of who reads slowly


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def field(name, value):
    """A header field that needs no table (RFC 7541, 6.2.2)."""
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value


CALL = b"".join(field(*f) for f in ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
                                    (b":authority", b"a"), (b"content-type", b"application/grpc"), (b"te", b"trailers")))
DATA, HEADERS, RESET, SETTINGS, WINDOW = 0, 1, 3, 4, 8
END_STREAM, END_HEADERS = 1, 4


class Frames:
    """A connection that speaks HTTP/2 frames."""

    def __init__(self, address, window):
        self.socket = socket.create_connection(address.rsplit(":", 1), timeout=60)
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, window)))
        self.stream = -1

    def call(self, size):
        """Asks for an answer of so many bytes."""
        self.stream += 2
        tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, size // 4]}
        request = service_pb2.ModelInferRequest(model_name="plain", inputs=[tensor], raw_input_contents=[bytes(size)]).SerializeToString()
        message = b"\0" + struct.pack(">I", len(request)) + request
        sent = frame(HEADERS, END_HEADERS, self.stream, CALL)
        for at in range(0, len(message), 16384):
            last = at + 16384 >= len(message)
            sent += frame(DATA, END_STREAM if last else 0, self.stream, message[at:at + 16384])
        self.socket.sendall(sent)

    def exactly(self, n):
        got = b""
        while len(got) < n:
            some = self.socket.recv(n - len(got))
            if not some:
                raise EOFError
            got += some
        return got

    def next(self):
        """kind, flags, stream and payload of the next frame."""
        head = self.exactly(9)
        return head[3], head[4], int.from_bytes(head[5:], "big"), self.exactly(int.from_bytes(head[:3], "big"))

    def close(self):
        self.socket.close()


def slow_grpc(server, size, begun, result):
    """Reads an answer at RATE, and opens the windows for what it has read."""
    c = Frames(server.grpc, 65535)
    c.call(size)
    got = 0
    with contextlib.closing(c):
        while True:
            kind, flags, stream, payload = c.next()
            if kind == DATA and payload:
                got += len(payload)
                begun.set()
                time.sleep(len(payload) / RATE)
                grant = struct.pack(">I", len(payload))
                c.socket.sendall(frame(WINDOW, 0, 0, grant) + frame(WINDOW, 0, stream, grant))
            if kind == RESET or kind in (DATA, HEADERS) and flags & END_STREAM:
                result.append((kind, got))
                return


def slow_http(server, size, begun, result):
    """Reads an answer at RATE, with a small window of its own."""
    with small(server) as s:
        s.sendall(post(size))
        answer = http.client.HTTPResponse(s)
        answer.begin()
        begun.set()
        got = 0
        while some := answer.read(16384):
            got += len(some)
            time.sleep(len(some) / RATE)
        result.append((HEADERS, got))


def small(server):
    """A connection to HTTP whose kernel takes little ahead."""
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    s.settimeout(60)
    host, port = server.http.rsplit(":", 1)
    s.connect((host, int(port)))
    return s


def post(size):
    head = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, size // 4], "parameters": {"binary_data_size": size}}],
                       "parameters": {"binary_data_output": True}}).encode()
    return (f"POST /v2/models/plain/infer HTTP/1.1\r\nHost: a\r\nInference-Header-Content-Length: {len(head)}\r\n"
            f"Content-Length: {len(head) + size}\r\n\r\n").encode() + head + bytes(size)


def honest(server, size):
    """The status and the body of a request of so many bytes. What is refused before all was sent may be cut off."""
    with contextlib.closing(socket.create_connection(server.http.rsplit(":", 1), timeout=60)) as s:
        try:
            s.sendall(post(size))
            answer = http.client.HTTPResponse(s)
            answer.begin()
            return answer.status, answer.read()
        except ConnectionError as e:
            return 503, str(e)


def begins(server, slow, size):
    """Starts a slow reader, whose answer has begun to come: it has its memory. Its result comes last."""
    begun, result = threading.Event(), []
    thread = threading.Thread(target=slow, args=(server, size, begun, result))
    thread.start()
    assert begun.wait(20), result
    return thread, result


@pytest.fixture
def greedy(start, tmp_path):
    """Starts a server with so much memory for requests and answers."""
    model(tmp_path, "plain")
    return lambda requests, answers: start([tmp_path], [f"--request-arena-byte-size={requests}", f"--response-arena-byte-size={answers}"])


def check_served_again(server, size):
    """Asks until there is an answer, and wants it soon. An answer that has no memory waits for it, and those behind it wait too; a
    request that has none is refused at once. It comes at once where the slow ones were just dropped."""
    begin, refused = time.monotonic(), 0
    while True:
        status, body = honest(server, size)
        took = time.monotonic() - begin
        if status == 200:
            break
        assert status == 503, (status, body)
        refused += 1
        assert took < SOON, f"for {SOON} s others hear {body}"
        time.sleep(0.1)
    print(f"served again after {took:.1f} s, refused {refused} times")
    assert took < SOON, f"{took:.1f} s, refused {refused} times"


def no_window(server, size, left, calls):
    """Answers that no window lets through: small ones fill the memory of answers, large ones, which are their requests' inputs, that
    of requests. left is the size of those that take what is left."""
    reader, result = begins(server, slow_grpc, 1_200_000)
    attacker = Frames(server.grpc, 0)
    with contextlib.closing(attacker):
        for n in [size] * calls + [left] * 40:
            attacker.call(n)
        while (got := attacker.next())[:2] != (HEADERS, END_STREAM | END_HEADERS):
            assert got[0] != RESET, "no call was refused: memory was not full"
        check_served_again(server, size)
        dropped = 0
        while dropped < 10:
            kind, _, _, payload = attacker.next()
            dropped += kind == RESET and int.from_bytes(payload, "big") == 11  # ENHANCE_YOUR_CALM
    reader.join(60)
    assert result and result[0][0] == HEADERS and result[0][1] > 1_200_000, result
    assert "memory is scarce, answers that their clients don't take are dropped" in server.log()


def nothing_is_read(server, size):
    """The same over HTTP/1.1, where each answer has a connection."""
    reader, result = begins(server, slow_http, 1_200_000)
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            s = stack.enter_context(small(server))
            with contextlib.suppress(OSError):  # it may be refused before it has sent all
                s.sendall(post(size))
        check_served_again(server, size)
    reader.join(60)
    assert result and result[0][1] >= 1_200_000, result
    assert "memory is scarce, clients that don't take their answers are cut off" in server.log()


def test_who_takes_nothing_keeps_nothing(greedy):
    """All at once, on servers of their own: most of it is waiting."""
    cases = [(no_window, greedy(8 * MIB, 4 * MIB), 60_000, 10_000, 70), (no_window, greedy(8 * MIB, 4 * MIB), 400_000, 70_000, 20),
             (nothing_is_read, greedy(32 * MIB, 4 * MIB), 5 * MIB)]
    with concurrent.futures.ThreadPoolExecutor() as several:
        for done in [several.submit(*case) for case in cases]:
            done.result()

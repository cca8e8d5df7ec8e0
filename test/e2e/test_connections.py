"""How gRPC connections live and end: their age, with calls that outlive it, and pings of a server to silent clients."""
import socket
import struct
import threading
import time

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.grpc import service_pb2

IDENTITY = """backend: "identity"
input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }
instance_group { count: 4 kind: KIND_CPU }
"""
SERVICE = "/inference.GRPCInferenceService/"


@pytest.fixture(params=["sluice", "library"])
def transport_of(request):
    return request.param


@pytest.fixture
def begin(start, tmp_path, transport_of):
    """Starts a server of one model on each transport."""
    (tmp_path / "identity" / "1").mkdir(parents=True)
    (tmp_path / "identity" / "config.pbtxt").write_text(IDENTITY)
    return lambda *flags: start([tmp_path], flags=[f"--grpc-transport={transport_of}", *flags])


def message(delay_ms):
    r = service_pb2.ModelInferRequest(model_name="identity", raw_input_contents=[np.arange(3, dtype=np.int32).tobytes()])
    r.inputs.add(name="INPUT0", datatype="INT32", shape=[3])
    r.parameters["delay_ms"].int64_param = delay_ms
    return r.SerializeToString()


def channel(server, retries=False):
    return grpc.insecure_channel(server.grpc, options=[("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", int(retries))])


class Raw:
    """A client of frames: it reads them, answers settings, and pings where told to."""

    def __init__(self, server, answers=True):
        host, port = server.grpc.split(":")
        self.socket, self.answers = socket.create_connection((host, int(port)), 20), answers
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
        self.left, self.pings, self.goaways = b"", 0, []

    def send(self, kind, flags, stream, payload=b""):
        self.socket.sendall(struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload)

    def call(self, stream, body, end=True):
        def field(name, value):
            return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value
        block = b"".join(field(*f) for f in (
            (b":method", b"POST"), (b":scheme", b"http"), (b":path", SERVICE.encode() + b"ModelInfer"), (b":authority", b"a"),
            (b"content-type", b"application/grpc"), (b"te", b"trailers")))
        self.send(1, 4, stream, block)
        self.send(0, 1 if end else 0, stream, b"\0" + struct.pack(">I", len(body)) + body)

    def until_the_end(self, seconds):
        """Reads until the server closes; true if it did in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.socket.settimeout(max(end - time.monotonic(), 0.01))
            try:
                got = self.socket.recv(65536)
            except TimeoutError:
                return False
            except OSError:
                return True
            if not got:
                return True
            self.left += got
            while len(self.left) >= 9 and len(self.left) >= 9 + int.from_bytes(self.left[:3], "big"):
                n = int.from_bytes(self.left[:3], "big")
                kind, flags, payload = self.left[3], self.left[4], self.left[9:9 + n]
                self.left = self.left[9 + n:]
                if kind == 4 and not flags & 1:
                    self.send(4, 1, 0)
                elif kind == 6 and not flags & 1:
                    self.pings += 1
                    if self.answers:
                        self.send(6, 1, 0, payload)
                elif kind == 7:
                    self.goaways.append(int.from_bytes(payload[:4], "big"))
        return False


def test_age_with_long_calls(begin):
    """A call in flight over the age limit is answered within grace, unary and on a stream, while others move to new
    connections and none fails. (The client may begin one behind the last GOAWAY, beside either transport; it sends
    that one again, as the server has not begun it.)"""
    s = begin("--grpc-max-connection-age=700", "--grpc-max-connection-age-grace=20000")
    with channel(s, retries=True) as ch, grpcclient.InferenceServerClient(s.grpc, channel_args=[("grpc.use_local_subchannel_pool", 1)]) as streamer:
        long = [ch.unary_unary(SERVICE + "ModelInfer").future(message(2500), timeout=20) for _ in range(2)]
        got, over = [], threading.Event()
        streamer.start_stream(lambda result, error: (got.append((result, error)), over.set()))
        tensor = grpcclient.InferInput("INPUT0", [3], "INT32")
        tensor.set_data_from_numpy(np.arange(3, dtype=np.int32))
        streamer.async_stream_infer("identity", [tensor], parameters={"delay_ms": 2500})
        live, calls, end = ch.unary_unary(SERVICE + "ServerLive"), 0, time.monotonic() + 2.2
        while time.monotonic() < end:
            assert live(b"", timeout=10) == b"\x08\x01"
            calls += 1
        assert calls > 20 and not any(f.done() for f in long)
        for f in long:
            assert service_pb2.ModelInferResponse.FromString(f.result()).raw_output_contents[0] == np.arange(3, dtype=np.int32).tobytes()
        assert over.wait(20) and got[0][1] is None, got
        streamer.stop_stream()


def test_grace_is_an_end(begin):
    """What is in flight when the grace is over is cut off, its request with it."""
    s = begin("--grpc-max-connection-age=300", "--grpc-max-connection-age-grace=300")
    with channel(s) as ch:
        with pytest.raises(grpc.RpcError) as e:
            ch.unary_unary(SERVICE + "ModelInfer")(message(30000), timeout=25)
        assert e.value.code() == grpc.StatusCode.UNAVAILABLE, e.value
        assert ch.unary_unary(SERVICE + "ServerLive")(b"", timeout=10) == b"\x08\x01"


def test_age_of_silent_connections(begin):
    """A connection without calls is told and closed, also without grace."""
    s = begin("--grpc-max-connection-age=300")
    c = Raw(s)
    assert c.until_the_end(20) and c.goaways[0] == 2**31 - 1 and c.goaways[-1] == 0, c.goaways


def test_silent_clients_are_pinged(begin, transport_of):
    """A client with a call that answers pings keeps it; one that does not is cut off; one without a call is let alone, but
    by grpc-go, which pings it too."""
    s = begin("--grpc-keepalive-time=200", "--grpc-keepalive-timeout=500", "--grpc-http2-max-pings-without-data=0")
    good, gone, idle = Raw(s), Raw(s, answers=False), Raw(s, answers=False)
    for c in (good, gone):
        c.call(1, message(30000))
    ended = {}

    def read(name, c):
        began = time.monotonic()
        ended[name] = c.until_the_end(3.2), time.monotonic() - began
    threads = [threading.Thread(target=read, args=pair) for pair in (("good", good), ("gone", gone), ("idle", idle))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert ended["gone"][0] and gone.pings == 1 and ended["gone"][1] > 0.4, (ended, gone.pings)
    assert not ended["good"][0] and good.pings >= 2, (ended, good.pings)
    if transport_of == "sluice":
        assert not ended["idle"][0] and idle.pings == 0, (ended, idle.pings)

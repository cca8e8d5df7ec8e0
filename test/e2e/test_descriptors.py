"""A gateway that runs out of file descriptors: living callers keep their connections, and new clients are served in place of
those that rest."""
import http.client
import json
import socket
import threading
import time

import grpc
import pytest

import faults
import harness
from tritonclient.grpc import service_pb2

LIMIT = 256
BODY = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "data": [1] * 16}]})


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A gateway that may open LIMIT files."""
    if reason := harness.missing():
        pytest.skip(reason)
    wrapper = tmp_path / "sluice"
    wrapper.write_text(f'#!/bin/sh\nulimit -n {LIMIT}\nexec {harness.BINARY} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setattr(harness, "BINARY", wrapper)
    s = harness.Server(repositories=[faults.repository(tmp_path / "models")])
    yield s
    s.kill()


class Callers:
    """Clients that call every tenth of a second, each on a connection of its own that it keeps."""

    def __init__(self, server, number):
        self.server, self.done, self.failed, self.over = server, 0, [], threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(number)]
        for t in self.threads:
            t.start()

    def run(self, i):
        try:
            self.over_grpc() if i % 2 else self.over_http()
        except (OSError, http.client.HTTPException, grpc.RpcError) as e:
            self.failed.append(repr(e))

    def over_http(self):
        c = http.client.HTTPConnection(self.server.http, timeout=20)
        c.connect()
        c.auto_open = 0  # a connection that is lost is a failure
        while not self.over.wait(0.1):
            # A large body takes a goroutine, and a parked connection a second descriptor to get it.
            c.request("POST", "/v2/models/echo/infer", BODY + " " * (40_000 * (self.done % 3 == 0)))
            r = c.getresponse()
            r.read()
            assert r.status == 200
            self.done += 1

    def over_grpc(self):
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        with grpc.insecure_channel(self.server.grpc, options=options) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelReady",
                                       request_serializer=service_pb2.ModelReadyRequest.SerializeToString,
                                       response_deserializer=service_pb2.ModelReadyResponse.FromString)
            while not self.over.wait(0.1):
                assert call(service_pb2.ModelReadyRequest(name="echo"), timeout=20).ready
                self.done += 1

    def end(self):
        self.over.set()
        for t in self.threads:
            t.join(30)


@pytest.mark.parametrize("port", ["http", "grpc"])
def test_out_of_descriptors(server, port):
    callers = Callers(server, 8)
    resting = []
    try:
        harness.wait_for(lambda: callers.done > 50, 20, "calls")
        host, number = getattr(server, port).split(":")
        for _ in range(2 * LIMIT):
            resting.append(socket.create_connection((host, int(number)), 20))
        began = callers.done
        harness.wait_for(lambda: callers.done > began + 100 or callers.failed, 20, "more calls")
        assert not callers.failed
        # Clients that are new are served, one after the other.
        longest = 0
        for _ in range(20):
            at = time.monotonic()
            status, _, _ = server.ask("/v2/models/echo/infer", BODY.encode())
            longest = max(longest, time.monotonic() - at)
            assert status == 200
        harness.wait_for(lambda: callers.done > began + 100 or callers.failed, 20, "more calls")
    finally:
        callers.end()
        for s in resting:
            s.close()
    log = server.log()
    print(f"{port}: {callers.done} calls, failed {callers.failed}, a new client waited {longest:.2f} s at most")
    assert not callers.failed
    assert longest < 10
    told = [l for l in log.splitlines() if "descriptors" in l or "accept failed" in l or "given up" in l]
    print("\n".join(told[:6]))
    assert 0 < len(told) < 40 and not any("given up" in l for l in told), told[:10]

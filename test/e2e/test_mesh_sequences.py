"""Sequences through Envoy while the endpoint picker is away, hangs or is slow: refused at times, never answered by another life."""
import collections
import queue
import signal
import threading
import time

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import harness
from mesh import mesh  # noqa: F401  (a fixture)
from test_mesh_routing import accumulate, begun, body, model, reported, sequences

SEQUENCES = 10  # over each protocol


class Caller:
    """A client of one sequence. When it is refused it begins again, with the same correlation ID, as the refusal tells it."""

    def __init__(self, m, over, sequence):
        self.m, self.over, self.sequence = m, over, sequence
        self.sum, self.calls, self.wrong, self.refused = None, 0, [], collections.Counter()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        module = httpclient if self.over == "http" else grpcclient
        with module.InferenceServerClient(self.m.http) as client:
            while not self.stop.is_set():
                start = self.sum is None
                value = 1000 if start else 1
                self.calls += 1
                try:
                    got = accumulate(client, value, self.sequence, start=start)
                except InferenceServerException as e:
                    self.refused[f"{e.status()} {str(e.message())[:60]}"] += 1
                    self.sum = None
                    time.sleep(0.02)
                    continue
                self.sum = value if start else self.sum + value
                if got != self.sum:
                    self.wrong.append((got, self.sum))
                    self.sum = None


class Bystander:
    """A client of a model without sequences, whose calls all succeed."""

    def __init__(self, m):
        self.m, self.calls, self.failed, self.stop = m, 0, [], threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.stop.is_set():
            status, _, text = self.m.ask("/v2/models/plain/infer", body())
            self.calls += 1
            if status != 200:
                self.failed.append((status, text))


def killed(m):
    """The control plane, and with it the picker, ends and is back after a second."""
    port = int(m.xds.rsplit(":", 1)[1])
    m.plane.kill()
    m.plane.wait(10)
    time.sleep(1)
    m.start_plane(port)


def frozen(m):
    m.plane.send_signal(signal.SIGSTOP)
    time.sleep(2)
    m.plane.send_signal(signal.SIGCONT)


def slow(m):
    """Each second answer or so comes after Envoy has given the picker up, which is 200 ms."""
    for _ in range(8):
        m.plane.send_signal(signal.SIGSTOP)
        time.sleep(0.23)
        m.plane.send_signal(signal.SIGCONT)
        time.sleep(0.1)


def gateway_restarted(m):
    """The picker and a gateway: what lived there has ended, what lives elsewhere goes on."""
    old = m.gateways[0]
    old.kill()
    killed(m)
    m.gateways[0] = harness.Server(repositories=m.repositories, flags=m.flags, place=old)
    m.gateways[0].name = old.name
    m.settled("http/default", 2)


@pytest.mark.parametrize("balance", ["least_request", "hash"])
@pytest.mark.parametrize("fault", [killed, frozen, slow, gateway_restarted], ids=lambda f: f.__name__)
def test_sequences_while_the_picker_fails(mesh, tmp_path, record_property, fault, balance):
    folder = model(sequences(tmp_path / "models"), "plain")
    m = mesh(gateways=2, repositories=[folder], topology={"services": {"picker": {}}, "upstream": {"balance": balance, "ejection": "1s"}})
    reported(m)
    callers = [Caller(m, over, n + 1000 * (over == "grpc")) for n in range(1, SEQUENCES + 1) for over in ("http", "grpc")]
    bystander = Bystander(m)
    try:
        harness.wait_for(lambda: all(c.calls > 5 for c in callers), 20, "all sequences run")
        fault(m)
        harness.wait_for(lambda: all(c.sum is not None for c in callers), 20, "all sequences run again")
        refused = sum(sum(c.refused.values()) for c in callers)
        before = sum(c.calls for c in callers)
        harness.wait_for(lambda: sum(c.calls for c in callers) > before + 500, 30, "500 calls more")
    finally:
        for c in [*callers, bystander]:
            c.stop.set()
        for c in [*callers, bystander]:
            c.thread.join(20)
    why = sum((c.refused for c in callers), collections.Counter())
    wrong = [w for c in callers for w in c.wrong]
    text = f"{fault.__name__}: {sum(c.calls for c in callers)} calls, {len(wrong)} wrong, {sum(why.values())} refused, " \
           f"others: {bystander.calls} calls, {len(bystander.failed)} failed"
    record_property("figures", text)
    print("\n" + text, dict(why))
    assert not wrong, wrong[:5]
    assert sum(why.values()) == refused, f"refused after all was well again: {why}"
    if fault is not gateway_restarted:  # which takes with it what it had in flight
        assert not bystander.failed, bystander.failed[:3]
        assert all(text.startswith(("503", "StatusCode.UNAVAILABLE")) for text in why), why


def test_sequences_outlive_the_picker(mesh, tmp_path):
    """A picker that was started anew learns from the gateways where sequences live: they go on, also where only it has been asked
    in between, and a stream goes on with what was begun in it alone."""
    m = mesh(gateways=3, repositories=[sequences(tmp_path / "models")], topology={"services": {"picker": {}}})
    reported(m)
    with httpclient.InferenceServerClient(m.http) as over_http, grpcclient.InferenceServerClient(m.http) as over_grpc:
        both = [(c, s) for s in range(1, 13) for c in (over_http, over_grpc)]
        ids = {(id(c), s): s + 100 * (c is over_grpc) for c, s in both}
        for c, s in both:
            assert accumulate(c, 5, ids[id(c), s], start=True) == 5
        for turn in range(1, 4):
            port = int(m.xds.rsplit(":", 1)[1])
            m.plane.kill()
            m.plane.wait(10)
            with pytest.raises(InferenceServerException, match="nothing says where sequence 1 of model 'oldest' lives"):
                accumulate(over_http, 1, 1)
            m.start_plane(port)

            def step(c, s):
                try:
                    return accumulate(c, 1, s)
                except InferenceServerException as e:
                    assert e.status() in ("503", "StatusCode.UNAVAILABLE"), e
                    return None

            for c, s in both:
                assert harness.wait_for(lambda: step(c, ids[id(c), s]), 10, "the picker knows the sequence") == 5 + turn
        for c, s in both:
            assert accumulate(c, 1, ids[id(c), s], end=True) == 9
            with pytest.raises(InferenceServerException, match="must specify the START flag on the first request"):
                harness.wait_for(lambda: step_after_end(c, ids[id(c), s]), 10, "the gateway's word")


def step_after_end(client, sequence):
    """Raises what a client hears of a sequence that has ended. For a moment the picker may think that it lives."""
    try:
        return accumulate(client, 1, sequence)
    except InferenceServerException as e:
        if "has ended here" in e.message():
            return None
        raise


def test_streams_have_their_own_sequences(mesh, tmp_path):
    """Over a stream, whose messages the picker does not see, sequences go on in the stream that began them; unary calls may go on
    with them, and a unary START ends them."""
    m = mesh(gateways=2, repositories=[sequences(tmp_path / "models")], topology={"services": {"picker": {}}})
    reported(m)
    t = grpcclient.InferInput("VALUE", [1, 1], "INT32")

    class Stream:
        def __init__(self):
            self.client, self.answers = grpcclient.InferenceServerClient(m.http), queue.Queue()
            self.client.start_stream(callback=lambda result, error: self.answers.put((result, error)))

        def step(self, value, sequence, **flags):
            t.set_data_from_numpy(np.array([[value]], np.int32))
            self.client.async_stream_infer("oldest", [t], sequence_id=sequence, **flags)
            result, error = self.answers.get(timeout=20)
            return str(error) if error else int(result.as_numpy("SUM")[0, 0])

        def close(self):
            self.client.stop_stream()
            self.client.close()

    streams = [Stream() for _ in range(6)]
    try:
        with grpcclient.InferenceServerClient(m.http) as unary:
            for n, s in enumerate(streams, 1):  # each gateway has some
                assert s.step(1, n, sequence_start=True) == 1
                assert s.step(2, n) == 3
            assert all(begun(g) for g in m.gateways), "both gateways have streams"
            for n, s in enumerate(streams, 1):
                assert accumulate(unary, 3, n) == 6, "a unary call goes on with it"
                assert s.step(4, n) == 10
                assert "was not begun in this stream" in streams[n % 6].step(1, n) or "must specify the START" in streams[n % 6].step(1, n)
                assert accumulate(unary, 50, n, start=True) == 50
                assert "was not begun in this stream" in s.step(1, n)
                assert accumulate(unary, 1, n) == 51
                assert s.step(7, n, sequence_start=True) == 7
                assert accumulate(unary, 1, n) == 8
                assert s.step(1, n, sequence_end=True) == 9
                assert s.step(1, 100 + n) == f"inference request for sequence {100 + n} to model 'oldest' must " \
                    "specify the START flag on the first request of the sequence"
    finally:
        for s in streams:
            s.close()


def test_a_closed_picker_refuses_all(mesh, tmp_path):
    """`closed: true`: without the picker every call is refused, with 503."""
    m = mesh(gateways=1, repositories=[model(tmp_path / "models", "plain")], topology={"services": {"picker": {"closed": True}}})
    reported(m)
    harness.wait_for(lambda: m.ask("/v2/models/plain/infer", body())[0] == 200, 5, "calls are answered")
    m.plane.kill()
    m.plane.wait(10)
    assert m.ask("/v2/models/plain/infer", body())[0] == 503

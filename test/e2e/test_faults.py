"""Workers and gateways that are killed or stopped under load: what callers see, and what stays behind."""
import json
import os
import signal
import threading
import time

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

import harness


class Load:
    """Closed-loop callers of one model over one protocol; errors are kept with their times."""

    def __init__(self, server, model, protocol, callers=4):
        self.module = {"http": httpclient, "grpc": grpcclient}[protocol]
        self.address, self.model = getattr(server, protocol), model
        self.done, self.errors, self.lock = 0, [], threading.Lock()
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.call, args=(i,), daemon=True) for i in range(callers)]
        for t in self.threads:
            t.start()

    def call(self, seed):
        array = np.full((1, 1), seed, np.int32)
        with self.module.InferenceServerClient(self.address) as c:
            tensor = self.module.InferInput("INPUT0", [1, 1], "INT32")
            tensor.set_data_from_numpy(array)
            while not self.stopping.is_set():
                try:
                    got = c.infer(self.model, [tensor]).as_numpy("OUTPUT0")
                    assert got.tolist() == [[seed]], f"got {got}, want {seed}"
                    with self.lock:
                        self.done += 1
                except Exception as e:
                    if self.stopping.is_set():
                        return
                    with self.lock:
                        self.errors.append((time.monotonic(), e))
                    self.stopping.wait(0.01)

    def reached(self, n, seconds=30):
        harness.wait_for(lambda: self.done >= n, seconds, f"{n} requests done (now {self.done}, errors {self.errors[:3]})")

    def end(self):
        self.stopping.set()
        for t in self.threads:
            t.join(30)


def shared_memory():
    """What lies in /dev/shm and is mapped by no process: tests beside this one have regions of their own."""
    mapped = b"".join(filter(None, map(maps, filter(str.isdigit, os.listdir("/proc")))))
    return {name for name in os.listdir("/dev/shm") if f"/dev/shm/{name}\n".encode() not in mapped}


def maps(pid):
    try:
        with open(f"/proc/{pid}/maps", "rb") as f:
            return f.read()
    except OSError:  # it has ended, or is another's
        return b""


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@harness.on_time
def test_worker_killed_under_load(start, protocol):
    """Back within a second plus load time; what it held is tried again, or fails once as unavailable."""
    s = start(repositories=[harness.TEST_MODELS])
    before = s.workers()
    assert before, "a server without a worker process"
    load = Load(s, "brief", protocol)
    try:
        load.reached(50)
        killed = time.monotonic()
        os.kill(before[0], signal.SIGKILL)
        done = load.done
        load.reached(done + 8, 10)
        back = time.monotonic() - killed
        load.reached(load.done + 50)
    finally:
        load.end()
    assert back < 1.5, f"answers came back after {back:.2f} s"
    after = s.workers()
    assert len(after) == len(before) and before[0] not in after
    for _, e in load.errors:
        assert getattr(e, "status", lambda: "")() in ("503", "StatusCode.UNAVAILABLE"), repr(e)
    assert len(load.errors) <= 4, load.errors
    assert s.status("/v2/health/ready") == 200
    assert s.stop() == 0


@harness.on_time
def test_readiness_tells_of_a_lost_worker(start, tmp_path):
    """Between death and return neither server nor model is ready, and the server lives; the model takes a while to load."""
    (tmp_path / "heavy" / "1").mkdir(parents=True)
    (tmp_path / "heavy" / "config.pbtxt").write_text(
        'backend: "identity"\nmax_batch_size: 1\ninput { name: "INPUT0" data_type: TYPE_INT32 dims: 1 }\n'
        'output { name: "OUTPUT0" data_type: TYPE_INT32 dims: 1 }\n'
        'parameters { key: "creation_delay_ms" value { string_value: "700" } }\n')
    s = start(repositories=[tmp_path])
    os.kill(s.workers()[0], signal.SIGKILL)
    harness.wait_for(lambda: s.status("/v2/health/ready") == 400 and s.status("/v2/models/heavy/ready") == 400, 0.6, "not ready")
    assert s.status("/v2/health/live") == 200
    with grpcclient.InferenceServerClient(s.grpc) as c:
        assert not c.is_server_ready() and not c.is_model_ready("heavy") and c.is_server_live()
    harness.wait_for(lambda: s.status("/v2/health/ready") == 200 and s.status("/v2/models/heavy/ready") == 200, 10, "ready again")


def test_request_that_kills_is_refused(start, tmp_path):
    """A request under which workers die is answered with an error, and the server goes on."""
    model = tmp_path / "crashing" / "1"
    model.mkdir(parents=True)
    (tmp_path / "crashing" / "config.pbtxt").write_text(
        'backend: "identity"\nmax_batch_size: 1\ninput { name: "INPUT0" data_type: TYPE_INT32 dims: 1 }\n'
        'output { name: "OUTPUT0" data_type: TYPE_INT32 dims: 1 }\nparameters { key: "allow_crash" value { string_value: "true" } }\n')
    s = start(repositories=[tmp_path])
    body = {"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [1]}]}
    status, _, answer = s.ask("/v2/models/crashing/infer", json.dumps({**body, "parameters": {"crash": True}}).encode())
    assert status == 503, answer
    harness.wait_for(lambda: s.ask("/v2/models/crashing/infer", json.dumps(body).encode())[0] == 200, 15, "a healthy request is served")
    assert s.stop() == 0


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_drain_under_load(start, protocol):
    """SIGTERM: everything that was accepted is answered, then it ends with 0."""
    s = start(repositories=[harness.TEST_MODELS])
    load = Load(s, "brief", protocol)
    load.reached(50)
    workers = s.workers()
    stopped = time.monotonic()
    s.process.send_signal(signal.SIGTERM)
    # Callers stop as soon as they meet a server that says it is stopping; until then none may fail.
    harness.wait_for(lambda: s.over() or load.errors, 40, "the end")
    assert s.process.wait(40) == 0, s.log()[-3000:]
    seconds = time.monotonic() - stopped
    load.end()
    for when, e in load.errors:
        assert when - stopped > 0.9, f"{e!r} {when - stopped:.3f} s after SIGTERM, in the grace"
        assert any(w in str(e) for w in ("shutting down", "refused")), repr(e)
    assert seconds < 10
    harness.wait_for(lambda: not any(map(harness.alive, workers)), 5, "no worker left")


def test_not_ready_before_it_refuses(start):
    """In the grace after SIGTERM the server says that it is not ready and still serves: load balancers can notice."""
    s = start(repositories=[harness.TEST_MODELS])
    s.process.send_signal(signal.SIGTERM)
    harness.wait_for(lambda: s.status("/v2/health/ready") == 400, 1, "not ready")
    body = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [1]}]}).encode()
    assert s.ask("/v2/models/brief/infer", body)[0] == 200
    assert s.process.wait(40) == 0


def test_drain_finishes_what_is_in_flight(start):
    """Requests on a model of 200 ms that were sent before SIGTERM get their answers."""
    s = start(repositories=[harness.TEST_MODELS])
    body = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [1]}]}).encode()
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(s.ask("/v2/models/slow/infer", body)[0])) for _ in range(5)]
    for t in threads:
        t.start()
    harness.wait_for(lambda: 'model="slow"' in s.metrics_text() and pending(s) >= 3, 5, "requests waiting")
    s.process.send_signal(signal.SIGTERM)
    assert s.process.wait(40) == 0, s.log()[-3000:]
    for t in threads:
        t.join(10)
    assert answers == [200] * 5


def test_drain_has_an_end(start):
    """At --exit-timeout-secs what still waits is answered with 503, and the exit status is 0."""
    s = start(repositories=[harness.TEST_MODELS], flags=["--exit-timeout-secs=1", "--exit-grace-ms=0"])
    body = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [1]}]}).encode()
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(s.ask("/v2/models/slow/infer", body)[0])) for _ in range(16)]
    for t in threads:
        t.start()
    harness.wait_for(lambda: 'model="slow"' in s.metrics_text() and pending(s) >= 14, 5, "requests waiting")
    s.process.send_signal(signal.SIGTERM)
    assert s.process.wait(15) == 0, s.log()[-3000:]
    for t in threads:
        t.join(10)
    assert len(answers) == 16 and set(answers) == {200, 503}, answers


def pending(server):
    lines = [x for x in server.metrics_text().splitlines() if x.startswith("nv_inference_pending_request_count{") and 'model="slow"' in x]
    return sum(float(x.rsplit(" ", 1)[1]) for x in lines)


def test_gateway_killed_leaves_nothing(start):
    """kill -9 of the gateway under load: its workers end, /dev/shm is as before."""
    before = shared_memory()
    s = start(repositories=[harness.TEST_MODELS])
    load = Load(s, "brief", "grpc")
    load.reached(20)
    workers = harness.descendants(s.pid)
    assert workers
    s.process.kill()
    s.process.wait(10)
    load.end()
    harness.wait_for(lambda: not any(map(harness.alive, workers)), 5, "the workers end")
    harness.wait_for(lambda: shared_memory() <= before, 5, "nothing new lies in /dev/shm")


def test_clients_killed_again_and_again(start):
    """Connections that break with requests in flight harm nobody else."""
    import http.client
    s = start(repositories=[harness.TEST_MODELS])
    body = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [1]}]}).encode()
    load = Load(s, "brief", "http", callers=2)
    for _ in range(20):
        connections = []
        for _ in range(16):
            c = http.client.HTTPConnection(s.http, timeout=20)
            c.request("POST", "/v2/models/brief/infer", body)
            connections.append(c)
        for c in connections:
            c.sock.close()
    load.reached(load.done + 20)
    load.end()
    assert not load.errors
    assert s.stop() == 0

"""A worker in another language (foreign_worker.py): what it serves, kill -9, cancellation, and variants of it that lie."""
import json
import subprocess
import threading
import time

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import harness
from foreign_worker import Stream, Worker, busy, joined  # noqa: F401  joined is a fixture


def echo(module, client, value, text, rows=1):
    a = module.InferInput("A", [rows, 3], "FP32")
    a.set_data_from_numpy(np.full((rows, 3), value, np.float32))
    t = module.InferInput("TEXT", [rows, 1], "BYTES")
    t.set_data_from_numpy(np.array([[text]] * rows, np.object_))
    r = client.infer("echo", [a, t])
    assert (r.as_numpy("A_OUT") == value).all() and r.as_numpy("A_OUT").shape == (rows, 3)
    assert r.as_numpy("TEXT_OUT").tolist() == [[text]] * rows


def test_echo(joined):
    """Batches of several requests, both protocols, BYTES, and a model's error."""
    server, _ = joined()
    faults = []

    def many(k):
        try:
            with httpclient.InferenceServerClient(server.http) as h, grpcclient.InferenceServerClient(server.grpc) as g:
                for n in range(20):
                    echo(httpclient, h, k * 100 + n, f"{k} {n} é".encode(), 1 + n % 3)
                    echo(grpcclient, g, k * 100 + n, b"\0\xff" * n, 1 + n % 2)
        except Exception as e:  # shown below
            faults.append(e)
    threads = [threading.Thread(target=many, args=(k,)) for k in range(6)]
    [t.start() for t in threads]
    [t.join(60) for t in threads]
    assert not faults, faults[:2]
    stats = server.get("/v2/models/echo/stats")["model_stats"][0]
    assert stats["execution_count"] < stats["inference_count"], "requests share batches"
    with httpclient.InferenceServerClient(server.http) as h:
        assert h.get_model_repository_index()[0]["state"] == "READY"


def test_counter(joined):
    """Any number of answers to a request, and the end where there is none."""
    server, _ = joined()
    s = Stream(server)
    try:
        s.count(5)
        got = s.wait(5)
        assert [int(r.as_numpy("OUT")[0]) for r, e in got if r.as_numpy("OUT") is not None] == [0, 1, 2, 3, 4]
        assert got[-1][0].get_response().parameters["triton_final_response"].bool_param
        s.count(0)
        last = s.wait(6)[5][0]
        assert not last.get_response().outputs and last.get_response().parameters["triton_final_response"].bool_param
    finally:
        s.close()


def test_cancelled(joined):
    """A caller that leaves ends what the worker does for it."""
    server, _ = joined()
    with grpcclient.InferenceServerClient(server.grpc) as c:
        t = grpcclient.InferInput("DELAY_MS", [1], "INT32")
        t.set_data_from_numpy(np.array([60_000], np.int32))
        done = []
        call = c.async_infer("sleeper", [t], callback=lambda result, error: done.append(error))
        harness.wait_for(lambda: busy(server, "sleeper"), 10, "the instance is busy")
        call.cancel()
        harness.wait_for(lambda: done, 10, "the caller is told")
        t.set_data_from_numpy(np.array([1], np.int32))
        begin = time.monotonic()
        assert c.infer("sleeper", [t]).as_numpy("OUT").tolist() == [1]
        assert time.monotonic() - begin < 20, "the instance is free again"


def sleep(module, client, ms):
    t = module.InferInput("DELAY_MS", [1], "INT32")
    t.set_data_from_numpy(np.array([ms], np.int32))
    return int(client.infer("sleeper", [t]).as_numpy("OUT")[0])


def test_late_and_out_of_order(joined):
    """One instance has several requests open, and the shortest is answered first; unload waits for them."""
    server, _ = joined(flags=["--model-control-mode=explicit", "--load-model=*"])
    answered, begin = [], time.monotonic()

    def ask(ms):
        with httpclient.InferenceServerClient(server.http, network_timeout=60) as h:
            answered.append(sleep(httpclient, h, ms))
    threads = [threading.Thread(target=ask, args=(ms,)) for ms in [1500, 1200, 900, 600, 300] + [1800] * 40]  # more than may be open
    [t.start() for t in threads[:5]]
    [t.join(30) for t in threads[:5]]
    assert answered == [300, 600, 900, 1200, 1500]
    [t.start() for t in threads[5:]]
    harness.wait_for(lambda: busy(server, "sleeper"), 10, "open requests")
    time.sleep(0.3)
    with httpclient.InferenceServerClient(server.http, network_timeout=60) as h:
        h.unload_model("sleeper")
    [t.join(30) for t in threads[5:]]
    assert answered[5:] == [1800] * 40
    assert time.monotonic() - begin < 30, "one after the other they would take 77 s"


@pytest.mark.parametrize("lie", ["free twice", "free at the end", "free without room"])
def test_lies_about_free(joined, lie):
    """The worker is lost; who had no answer is served by an honest one in its place."""
    server, workers = joined(lie)
    got = []

    def ask():
        with httpclient.InferenceServerClient(server.http, network_timeout=60) as h:
            try:
                got.append(sleep(httpclient, h, 5))
            except InferenceServerException as e:
                got.append(e.status())
    t = threading.Thread(target=ask)
    t.start()
    t.join(60)
    assert got == ["503"], "the request under which the worker was lost twice is refused"
    assert "is lost" in server.log()
    workers[0].kill()
    workers.append(Worker(workers[0].port))
    with httpclient.InferenceServerClient(server.http, network_timeout=60, connection_timeout=60) as h:
        def answers():
            try:
                return sleep(httpclient, h, 5) == 5
            except InferenceServerException:
                return False
        harness.wait_for(answers, 30, "an honest worker in its place serves")


def failed(server, ms):
    """The text and the status of a request of the sleeper's that fails."""
    with httpclient.InferenceServerClient(server.http, network_timeout=60, connection_timeout=60) as h:
        with pytest.raises(InferenceServerException) as told:
            sleep(httpclient, h, ms)
    return told.value.status(), told.value.message()


def test_silent(joined):
    """The worker has no limit of its own: the gateway fails an open request of which it hears nothing for too long, and names it in
    the log. The answer that comes in the end is dropped, and nobody else is harmed."""
    server, _ = joined(flags=["--open-request-timeout-secs=1"])
    begin = time.monotonic()
    status, text = failed(server, 9000)
    assert status == "500" and "gave no answer for" in text, (status, text)
    assert time.monotonic() - begin < 8.5, "it fails before its answer comes"
    line = next(line for line in server.log().splitlines() if "nothing was heard of it" in line)
    assert "sleeper" in line and "127.0.0.1" in line, line
    with httpclient.InferenceServerClient(server.http, network_timeout=60) as h:
        assert sleep(httpclient, h, 5) == 5
        harness.wait_for(lambda: time.monotonic() - begin > 10, 20, "the answer has come")
        assert sleep(httpclient, h, 5) == 5
    assert "is lost" not in server.log()


def test_forgotten(joined):
    """Requests that the worker has forgotten count as open until their model is unloaded, which is no fault then."""
    server, _ = joined("forgets", flags=["--open-request-timeout-secs=1", "--model-control-mode=explicit", "--load-model=*"])
    got = []
    threads = [threading.Thread(target=lambda: got.append(failed(server, 1)[0])) for _ in range(8)]
    [t.start() for t in threads]
    [t.join(60) for t in threads]
    assert got == ["500"] * 8
    with httpclient.InferenceServerClient(server.http, network_timeout=60) as h:
        begin = time.monotonic()
        h.unload_model("sleeper")
        assert time.monotonic() - begin < 5, "unload waits for nothing that was failed"
        h.load_model("sleeper")
        echo(httpclient, h, 1, b"x")
    assert "is lost" not in server.log()


def test_killed(joined):
    """kill -9 under load: what is in flight waits for the worker that comes back, and nothing is wrong."""
    server, workers = joined()
    stop, faults, calls = threading.Event(), [], [0]

    def load():
        with httpclient.InferenceServerClient(server.http, network_timeout=60, connection_timeout=60) as h:
            n = 0
            while not stop.is_set():
                n += 1
                try:
                    echo(httpclient, h, n % 1000, b"x")
                except Exception as e:
                    faults.append(e)
                calls[0] += 1
    threads = [threading.Thread(target=load) for _ in range(3)]
    [t.start() for t in threads]
    for _ in range(3):
        harness.wait_for(lambda at=calls[0]: calls[0] > at + 30, 30, "calls are answered")
        port = workers[-1].port
        workers[-1].kill()
        workers.append(Worker(port))
    harness.wait_for(lambda at=calls[0]: calls[0] > at + 30, 30, "calls are answered again")
    stop.set()
    [t.join(60) for t in threads]
    assert not faults, faults[:3]


@pytest.mark.parametrize("lie, want", [("protocol", "the worker speaks protocol 1, this gateway 2"), ("lane", "byte table 2, which was not offered"),
                                       ("file", "can't be: the model format with platform")])
def test_another_protocol(tmp_path, lie, want):
    """A worker that speaks another protocol is not used, and the log says why; the gateway waits for one that fits."""
    worker, log = Worker(lie=lie), tmp_path / "log"
    (tmp_path / "models").mkdir()
    with open(log, "w") as out:
        gateway = subprocess.Popen([str(harness.BINARY), "serve", f"--model-repository={tmp_path}/models", "--local-workers=false", "--http-port=0",
                                    f"--worker=127.0.0.1:{worker.port}", "--worker-insecure", "--grpc-port=0", "--metrics-port=0"],
                                   stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        harness.wait_for(lambda: want in log.read_text(), 10, want)
    finally:
        gateway.terminate()
        gateway.wait(20)
        worker.kill()


@pytest.mark.parametrize("lie", ["batch", "size", "tensors", "request", "code"])
def test_lies(joined, lie):
    """A worker that breaks the protocol harms nobody else: the call fails in the end, and the gateway goes on."""
    server, workers = joined(lie)
    with httpclient.InferenceServerClient(server.http, network_timeout=60, connection_timeout=60) as h:
        with pytest.raises(InferenceServerException) as told:
            echo(httpclient, h, 1, b"x")
        assert told.value.status() in ("500", "503"), told.value
        assert h.is_server_live()
    workers[0].kill()
    workers.append(Worker(workers[0].port))
    with httpclient.InferenceServerClient(server.http, network_timeout=60, connection_timeout=60) as h:
        def answered():
            try:
                echo(httpclient, h, 2, b"y")
                return True
            except InferenceServerException:
                return False
        harness.wait_for(answered, 30, "an honest worker in its place serves")


def test_gone(joined):
    """A worker that doesn't come back keeps nobody waiting: calls get 503 after --worker-wait-secs, then at once, and neither the
    index nor the ready calls say that the model is ready. It heals by itself."""
    server, workers = joined(flags=["--worker-wait-secs=2"])
    body = json.dumps({"inputs": [{"name": "DELAY_MS", "shape": [1], "datatype": "INT32", "data": [1]}]}).encode()

    def call():
        begin = time.monotonic()
        status, headers, text = server.ask("/v2/models/sleeper/infer", body)
        return status, headers.get("x-sluice-reason"), text, time.monotonic() - begin

    def index():
        status, _, text = server.ask("/v2/repository/index", b"{}")
        assert status == 200
        return {m["name"]: (m["state"], m.get("reason", "")) for m in json.loads(text)}

    assert call()[0] == 200 and index()["sleeper"] == ("READY", "")
    workers[0].kill()
    harness.wait_for(lambda: server.status("/v2/models/sleeper/ready") != 200, 10, "the model is not ready")
    status, reason, text, took = call()
    assert (status, reason) == (503, "not_ready") and b"no worker has served model 'sleeper' version 1 for 2s" in text and took < 10
    assert call()[3] < 1.5, "nobody waits any more"
    assert index()["sleeper"] == ("UNAVAILABLE", "Unavailable: no worker has served model 'sleeper' version 1 for 2s")
    assert server.status("/v2/models/sleeper/ready") != 200 and server.status("/v2/health/ready") != 200
    with grpcclient.InferenceServerClient(server.grpc) as c:
        t = grpcclient.InferInput("DELAY_MS", [1], "INT32")
        t.set_data_from_numpy(np.array([1], np.int32))
        with pytest.raises(InferenceServerException) as told:
            c.infer("sleeper", [t])
        assert told.value.status() == "StatusCode.UNAVAILABLE"
    workers.append(Worker(workers[0].port))
    harness.wait_for(lambda: server.status("/v2/models/sleeper/ready") == 200, 20, "the model is ready again")
    assert call()[0] == 200 and index()["sleeper"] == ("READY", "")
    harness.wait_for(lambda: server.status("/v2/health/ready") == 200, 20, "the server is ready: its models come back one by one")

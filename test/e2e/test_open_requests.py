"""Requests that models keep open: one instance answers many late, some are cancelled, a worker dies, a model is unloaded, the server ends."""
import concurrent.futures
import json
import os
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

REPEAT = """backend: "repeat"
input [ { name: "IN" data_type: TYPE_INT32 dims: -1 }, { name: "DELAY" data_type: TYPE_UINT32 dims: -1 }, { name: "WAIT" data_type: TYPE_UINT32 dims: 1 } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: 1 }, { name: "IDX" data_type: TYPE_UINT32 dims: 1 } ]
instance_group { count: 1 kind: KIND_CPU }
"""
SQUARE = """backend: "square"
max_batch_size: 8
dynamic_batching {}
input { name: "IN" data_type: TYPE_INT32 dims: 1 }
output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
instance_group { count: 1 kind: KIND_CPU }
parameters { key: "CUSTOM_INFER_DELAY_NS" value { string_value: "50000000" } }
"""
PHASES = SQUARE + 'parameters { key: "CUSTOM_OUTPUT_DELAY_NS" value { string_value: "150000000" } }\n'
DECOUPLED = "model_transaction_policy { decoupled: true }\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for name, text in (("once", REPEAT), ("repeat", REPEAT + DECOUPLED), ("square", SQUARE + DECOUPLED), ("phases", PHASES)):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(text)
    return root


def serve(folder, *flags):
    return harness.Server(repositories=[folder], flags=["--model-control-mode=explicit", "--load-model=*", *flags])


@pytest.fixture(scope="module", params=["sluice", "library", "stream"])
def server(built, folder, request):
    """Both kinds of transports, and batches that go to the worker over gRPC."""
    kind = request.param
    s = serve(folder, "--worker-stream=true") if kind == "stream" else serve(folder, *(f"--{p}-transport={kind}" for p in ("http", "grpc")))
    yield s
    assert s.stop() == 0, "exit status after SIGTERM\n" + s.log()[-3000:]


def tensors(client, **values):
    made = []
    for name, array in values.items():
        made.append(client.InferInput(name, array.shape, str(array.dtype).upper()))
        made[-1].set_data_from_numpy(array)
    return made


def repeat(client, values, delays, wait=0):
    return tensors(client, IN=np.array(values, np.int32), DELAY=np.array(delays, np.uint32), WAIT=np.array([wait], np.uint32))


def square(client, n):
    return tensors(client, IN=np.array([[n]], np.int32))


def stats(server, model):
    s = server.get(f"/v2/models/{model}/stats")["model_stats"][0]
    return (s["inference_count"], s["execution_count"], s["inference_stats"]["success"]["count"], s["inference_stats"]["fail"]["count"])


def since(server, model, before):
    return tuple(a - b for a, b in zip(stats(server, model), before))


def busy(server, model):
    return sum(float(line.rsplit(" ", 1)[1]) for line in server.metrics_text().splitlines()
               if line.startswith("sluice_instances_busy{") and f'model="{model}"' in line)


class Stream:
    """A gRPC stream whose answers are in a queue."""

    def __init__(self, server):
        self.got = queue.Queue()
        self.client = grpcclient.InferenceServerClient(server.grpc)
        self.client.start_stream(lambda result, error: self.got.put((result, error)))

    def ask(self, model, inputs, **more):
        self.client.async_stream_infer(model, inputs, **more)

    def next(self, seconds=20):
        """The next answer as (OUT or None, whether it is final), or its error's text."""
        result, error = self.got.get(timeout=seconds)
        if error is not None:
            return error.message()
        out = result.as_numpy("OUT")
        return None if out is None else int(out.flat[0]), result.get_response().parameters["triton_final_response"].bool_param

    def close(self, cancel=False):
        self.client.stop_stream(cancel_requests=cancel)
        self.client.close()


@harness.on_time
def test_one_instance_answers_many_late(server):
    """40 answers that each come 400 ms later: one after the other they would take 16 s."""
    before, start = stats(server, "once"), time.monotonic()
    with grpcclient.InferenceServerClient(server.grpc) as client, concurrent.futures.ThreadPoolExecutor(40) as pool:
        def ask(n):
            return int(client.infer("once", repeat(grpcclient, [n], [400])).as_numpy("OUT")[0])
        assert list(pool.map(ask, range(40))) == list(range(40))
    assert time.monotonic() - start < 6
    harness.wait_for(lambda: since(server, "once", before) == (40, 40, 40, 0), 5, "statistics of 40 requests")
    assert busy(server, "once") == 0
    s = server.get("/v2/models/once/stats")["model_stats"][0]["inference_stats"]
    assert s["compute_infer"]["ns"] / s["compute_infer"]["count"] > 390e6, "the time until an answer is the model's"


def test_one_answer_of_a_model_that_is_not_decoupled(server):
    with httpclient.InferenceServerClient(server.http) as client:
        assert client.infer("once", repeat(httpclient, [7], [20])).as_numpy("OUT")[0] == 7
        with pytest.raises(InferenceServerException, match="gives one answer"):
            client.infer("once", repeat(httpclient, [], []))
    s = Stream(server)
    for n in (3, 4):
        s.ask("once", repeat(grpcclient, [n, 60], [30, 60000]), request_id=str(n))
    assert [s.next(), s.next()] == [(3, True), (4, True)]
    s.close()
    harness.wait_for(lambda: busy(server, "once") == 0, 5, "an idle instance")


@harness.on_time
def test_square(server):
    before = stats(server, "square")
    s = Stream(server)
    s.ask("square", square(grpcclient, 3), request_id="a", enable_empty_final_response=True)
    assert [s.next() for _ in range(4)] == [(3, False)] * 3 + [(None, True)]
    s.ask("square", square(grpcclient, 0), enable_empty_final_response=True)
    assert s.next() == (None, True)
    start = time.monotonic()
    for _ in range(20):  # in batches, beside each other
        s.ask("square", square(grpcclient, 5))
    assert [s.next() for _ in range(100)] == [(5, False)] * 100
    assert time.monotonic() - start < 3
    s.ask("square", square(grpcclient, -1))
    assert "fewer than 0" in s.next()
    s.close()
    harness.wait_for(lambda: since(server, "square", before)[2:] == (22, 1), 5, "22 successes and a failure")
    assert since(server, "square", before)[0] == 23


def test_compute_phases(server):
    """A model that says when it has computed is not held to compute until it has answered."""
    with httpclient.InferenceServerClient(server.http) as client:
        assert client.infer("phases", square(httpclient, 3)).as_numpy("OUT")[0][0] == 3
    s = server.get("/v2/models/phases/stats")["model_stats"][0]
    times = {phase: s["inference_stats"][phase]["ns"] / s["inference_stats"]["success"]["count"] for phase in ("compute_infer", "compute_output")}
    assert times["compute_infer"] >= 50e6 and times["compute_output"] >= 150e6, times
    assert s["batch_stats"][0]["compute_output"]["ns"] >= 150e6, s["batch_stats"]


def test_cancelled_requests_leave(server):
    before = stats(server, "repeat")
    s, beside = Stream(server), Stream(server)
    for _ in range(5):
        s.ask("repeat", repeat(grpcclient, [1, 2], [0, 600000]))
    beside.ask("repeat", repeat(grpcclient, [8, 9], [0, 700]))
    assert [s.next() for _ in range(5)] == [(1, False)] * 5
    assert beside.next() == (8, False)
    s.close(cancel=True)
    assert beside.next() == (9, False)
    beside.close()
    harness.wait_for(lambda: busy(server, "repeat") == 0, 5, "an idle instance")
    harness.wait_for(lambda: since(server, "repeat", before) == (6, 6, 1, 5), 5, "a success and five failures")


def test_client_timeout(server):
    with grpcclient.InferenceServerClient(server.grpc) as client:
        with pytest.raises(InferenceServerException, match="(?i)deadline.exceeded"):
            client.infer("once", repeat(grpcclient, [1], [600000]), client_timeout=0.3)
        harness.wait_for(lambda: busy(server, "once") == 0, 5, "an idle instance")
        assert client.infer("once", repeat(grpcclient, [2], [1])).as_numpy("OUT")[0] == 2


def test_worker_that_is_killed(server):
    """What has no answer yet is executed once more; what has begun ends with an error."""
    s = Stream(server)
    s.ask("repeat", repeat(grpcclient, [1, 2], [0, 60000]))
    assert s.next() == (1, False)
    with grpcclient.InferenceServerClient(server.grpc) as client, concurrent.futures.ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(client.infer, "once", repeat(grpcclient, [n], [1500])) for n in range(8)]
        harness.wait_for(lambda: busy(server, "once") == 1, 5, "open requests")
        time.sleep(0.5)
        for pid in server.workers():
            os.kill(pid, signal.SIGKILL)
        assert "worker process ended" in s.next()
        assert [int(a.result(30).as_numpy("OUT")[0]) for a in asked] == list(range(8))
    s.ask("repeat", repeat(grpcclient, [3], [5]))
    assert s.next() == (3, False)
    s.close()


def test_unload_waits(server):
    with grpcclient.InferenceServerClient(server.grpc) as client, concurrent.futures.ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(client.infer, "once", repeat(grpcclient, [n], [1000])) for n in range(5)]
        harness.wait_for(lambda: busy(server, "once") == 1, 5, "open requests")
        time.sleep(0.3)
        start = time.monotonic()
        client.unload_model("once")
        assert [int(a.result(30).as_numpy("OUT")[0]) for a in asked] == list(range(5))
        harness.wait_for(lambda: not client.is_model_ready("once"), 10, "the model is unloaded")
        assert time.monotonic() - start < 8
        client.load_model("once")
        assert client.infer("once", repeat(grpcclient, [6], [1])).as_numpy("OUT")[0] == 6


def test_shutdown_waits(built, folder):
    server = serve(folder)
    answers = []
    with httpclient.InferenceServerClient(server.http, concurrency=4) as client:
        asked = [client.async_infer("once", repeat(httpclient, [n], [1500])) for n in range(4)]
        harness.wait_for(lambda: stats(server, "once") is not None and busy(server, "once") == 1, 5, "open requests")
        time.sleep(0.3)
        ended = threading.Thread(target=lambda: answers.append(server.stop()))
        ended.start()
        answers += [int(a.get_result().as_numpy("OUT")[0]) for a in asked]
        ended.join(40)
    assert sorted(answers) == [0, 0, 1, 2, 3], "four answers, and the exit status"


def large(client, value, delay):
    """A request of 20 MB, answered late."""
    n = 5 << 19
    return repeat(client, np.full(n, value), np.concatenate(([delay], np.zeros(n - 1))))


def arena(server):
    return next(float(line.rsplit(" ", 1)[1]) for line in server.metrics_text().splitlines() if line.startswith("sluice_request_arena_used_bytes"))


@pytest.mark.parametrize("flags", [("--http-transport=sluice", "--grpc-transport=sluice"), ("--http-transport=library", "--grpc-transport=library"),
                                   ("--worker-stream=true",)], ids=["sluice", "library", "stream"])
def test_inputs_are_given_back_before_the_answer(built, tmp_path, flags):
    """Of 32 MiB two requests of 20 MB are open at a time, where their inputs are given back; their worker's death ends them."""
    for name, text in (("keeps", REPEAT), ("gives", REPEAT + 'parameters { key: "release_inputs" value { string_value: "true" } }\n')):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(text)
    server = serve(tmp_path, "--request-arena-byte-size=33554432", *flags)
    try:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            at_rest = arena(server)

            def ask(model, library, value, delay):
                address = server.grpc if library is grpcclient else server.http
                with library.InferenceServerClient(address) as client:
                    return int(client.infer(model, large(library, value, delay)).as_numpy("OUT")[0])
            kept = pool.submit(ask, "keeps", httpclient, 1, 4000)
            harness.wait_for(lambda: busy(server, "keeps") == 1, 10, "an open request")
            assert arena(server) - at_rest > 20e6
            with pytest.raises(InferenceServerException):
                ask("keeps", httpclient, 2, 0)
            assert kept.result(30) == 1
            harness.wait_for(lambda: arena(server) - at_rest < 1e6, 5, "free memory")
            given = []
            for library in (httpclient, grpcclient, httpclient):
                given.append(pool.submit(ask, "gives", library, len(given), 60000 if len(given) < 2 else 1))
                if len(given) < 3:
                    time.sleep(1)  # it has come, and waits for its answer
                    harness.wait_for(lambda: busy(server, "gives") == 1 and arena(server) - at_rest < 1e6, 5, "an open request without inputs")
                    assert not given[-1].done()
            assert given[2].result(30) == 2
            for pid in server.workers():
                os.kill(pid, signal.SIGKILL)
            for lost in given[:2]:
                with pytest.raises(InferenceServerException, match="worker process ended"):
                    lost.result(30)
            assert ask("gives", grpcclient, 5, 1) == 5, "an answer of the next worker"
    finally:
        assert server.stop() == 0


def test_request_that_is_never_answered(built, folder):
    """Its model is named in the log."""
    server = serve(folder, "--open-request-timeout-secs=1")
    try:
        with httpclient.InferenceServerClient(server.http) as client:
            with pytest.raises(InferenceServerException, match="no answer for 1"):
                client.infer("once", repeat(httpclient, [1], [600000]), request_id="lost")
            assert client.infer("once", repeat(httpclient, [1], [10])).as_numpy("OUT")[0] == 1
        lines = [line for line in server.log().splitlines() if "nothing was heard of it" in line]
        assert len(lines) == 1 and "once" in lines[0] and "lost" in lines[0], lines
        assert busy(server, "once") == 0
        assert json.loads(server.ask("/v2/models/once/stats")[2])["model_stats"][0]["inference_stats"]["fail"]["count"] == 1
    finally:
        server.stop()

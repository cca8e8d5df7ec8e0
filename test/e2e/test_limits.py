"""Memory that runs out, workers that hang or live elsewhere, callers that leave: what is refused is counted, and it passes."""
import json
import os
import signal
import subprocess
import threading
import time

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

import harness
from certificates import authority, certificate

ONE = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [1]}]}).encode()
CONFIG = """backend: "identity"
max_batch_size: 1
input {{ name: "INPUT0" data_type: TYPE_INT32 dims: -1 }}
output {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }}
instance_group {{ count: {count} kind: KIND_CPU }}
parameters {{ key: "execute_delay_ms" value {{ string_value: "{delay}" }} }}
"""


def repository(folder, **models):
    """A repository of identity models: their names with (delay in ms, instances)."""
    for name, (delay, count) in models.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(CONFIG.format(delay=delay, count=count))
    return folder


def at_once(calls):
    results = [None] * len(calls)

    def run(i):
        results[i] = calls[i]()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    return results


def metric(server, name, **labels):
    """The sum of a metric's series with these labels."""
    total = 0
    for line in server.metrics_text().splitlines():
        if line.startswith(name + "{") and all(f'{k}="{v}"' in line for k, v in labels.items()):
            total += float(line.rsplit(" ", 1)[1])
    return total


@pytest.mark.parametrize("flag", ["--request-arena-byte-size=4194304", "--max-body-memory-byte-size=3000000"])
def test_memory_full_is_counted_and_passes(start, tmp_path, flag):
    """Bodies without room: 503 with the reason memory_full on both protocols, each in the metrics, and then it serves again."""
    s = start(repositories=[repository(tmp_path, big=(300, 1))], flags=[flag])
    n = 300_000
    head = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, n], "datatype": "INT32", "parameters": {"binary_data_size": 4 * n}}],
                       "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}).encode()

    def http():
        status, headers, _ = s.ask("/v2/models/big/infer", head + bytes(4 * n), {"Inference-Header-Content-Length": str(len(head))})
        return status, headers["X-Sluice-Reason"]

    answers = at_once([http] * 6)
    refused = answers.count((503, "memory_full"))
    assert refused > 0 and refused + answers.count((200, None)) == 6, answers
    with grpcclient.InferenceServerClient(s.grpc) as c:
        tensor = grpcclient.InferInput("INPUT0", [1, n], "INT32")
        tensor.set_data_from_numpy(np.zeros((1, n), np.int32))

        def grpc():
            try:
                return c.infer("big", [tensor]).as_numpy("OUTPUT0").size == n
            except InferenceServerException as e:
                assert e.status() == "StatusCode.UNAVAILABLE", e
                return False
        refused += at_once([grpc] * 6).count(False)

        def again():
            """A call that is served. The memory of the last ones is back a moment after their answers were read."""
            nonlocal refused
            served = grpc()
            refused += not served
            return served
        harness.wait_for(again, 5, "memory")
    harness.wait_for(lambda: "\nsluice_body_memory_bytes 0\n" in s.metrics_text(), 5, "no memory in use")
    assert http() == (200, None)
    assert metric(s, "sluice_refusals_total", model="big", reason="memory_full") == refused
    assert metric(s, "nv_inference_request_failure", model="big", reason="REJECTED") == refused


@harness.on_time
def test_deadline_is_named(start, tmp_path):
    """Callers whose deadline passes are told so, in the queue and in the worker.

    The server answers a little before the deadline, at which grpc-go resets the call whatever was said; on a busy machine
    the reset may still win, and the client then says CANCELLED. So most must be named right, and all must end."""
    s = start(repositories=[repository(tmp_path, one=(120, 1))])
    with grpcclient.InferenceServerClient(s.grpc) as c:
        tensor = grpcclient.InferInput("INPUT0", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.zeros((1, 1), np.int32))
        said = []
        for _ in range(15):
            with pytest.raises(InferenceServerException) as e:
                c.infer("one", [tensor], client_timeout=0.04)
            said.append(e.value.status())
    assert set(said) <= {"StatusCode.DEADLINE_EXCEEDED", "StatusCode.CANCELLED"}
    assert said.count("StatusCode.DEADLINE_EXCEEDED") > 7, said
    left = lambda: sum(metric(s, "sluice_refusals_total", model="one", reason=r) for r in ("deadline", "cancelled"))
    harness.wait_for(lambda: left() == 15, 5, "15 callers counted that left")
    assert metric(s, "sluice_refusals_total", model="one", reason="deadline") > 7


def test_abandoned_requests_are_not_executed(start, tmp_path):
    """One request executes; of six behind it whose callers hang up, none does."""
    import http.client
    s = start(repositories=[repository(tmp_path, one=(500, 1))])
    first = threading.Thread(target=s.ask, args=("/v2/models/one/infer", ONE))
    first.start()
    connections = [http.client.HTTPConnection(s.http, timeout=20) for _ in range(6)]
    try:
        for c in connections:
            c.request("POST", "/v2/models/one/infer", ONE)
        harness.wait_for(lambda: metric(s, "nv_inference_pending_request_count", model="one") == 6, 5, "six wait")
    finally:
        for c in connections:
            c.close()
    first.join(20)
    harness.wait_for(lambda: metric(s, "sluice_refusals_total", model="one", reason="cancelled") == 6, 5, "six are counted as cancelled")
    stats = s.get("/v2/models/one/stats")["model_stats"][0]
    assert stats["execution_count"] == 1 and stats["inference_stats"]["fail"]["count"] == 6
    assert metric(s, "nv_inference_request_failure", model="one", reason="CANCELED") == 6


@harness.on_time
def test_instances_execute_in_parallel(start, tmp_path):
    s = start(repositories=[repository(tmp_path, four=(400, 4))])
    begin = time.monotonic()
    assert [a[0] for a in at_once([lambda: s.ask("/v2/models/four/infer", ONE)] * 4)] == [200] * 4
    assert time.monotonic() - begin < 1.2


def test_counts_are_exact(start, tmp_path):
    """After a known number of requests the figures are those, over both protocols and in the metrics."""
    s = start(repositories=[repository(tmp_path, one=(0, 1))])
    for _ in range(7):
        assert s.ask("/v2/models/one/infer", ONE)[0] == 200
    bad = json.dumps({**json.loads(ONE), "parameters": {"fail": "on purpose"}}).encode()
    assert [s.ask("/v2/models/one/infer", bad)[0] for _ in range(3)] == [500] * 3
    assert s.ask("/v2/models/one/infer", b"{")[0] >= 400  # never reached the model
    of_http = s.get("/v2/models/one/stats")["model_stats"][0]
    with grpcclient.InferenceServerClient(s.grpc) as c:
        of_grpc = c.get_inference_statistics("one").model_stats[0]
    kept = of_http["inference_stats"]
    # What failed in the model was executed, and counts as such.
    assert (of_http["inference_count"], of_http["execution_count"], kept["success"]["count"], kept["fail"]["count"]) == (10, 10, 7, 3)
    assert (of_grpc.inference_count, of_grpc.execution_count) == (10, 10)
    assert (of_grpc.inference_stats.success.count, of_grpc.inference_stats.fail.count) == (7, 3)
    assert metric(s, "nv_inference_request_success", model="one") == 7
    assert metric(s, "nv_inference_request_failure", model="one", reason="BACKEND") == 3
    assert metric(s, "sluice_request_duration_seconds_count", model="one") == 7
    assert metric(s, "sluice_refusals_total", model="one", reason="invalid") == 1


def test_hanging_worker_is_replaced(start, tmp_path):
    """A worker that is stopped, not dead, is found out; the request that it held is answered by its successor."""
    s = start(repositories=[repository(tmp_path, one=(0, 1))])
    worker = s.workers()[0]
    os.kill(worker, signal.SIGSTOP)
    try:
        assert s.ask("/v2/models/one/infer", ONE, timeout=40)[0] == 200
        harness.wait_for(lambda: not harness.alive(worker), 5, "the end of the worker that hung")
        assert worker not in s.workers()
    finally:
        if harness.alive(worker):
            os.kill(worker, signal.SIGCONT)


def test_stopped_while_loading(built, tmp_path):
    """SIGTERM before the models are there: it ends at once, with 0 and nothing left."""
    repository(tmp_path / "models", late=(0, 1))
    with open(tmp_path / "models" / "late" / "config.pbtxt", "a") as f:
        f.write('parameters { key: "creation_delay_ms" value { string_value: "20000" } }\n')
    log = tmp_path / "log"
    with open(log, "w") as out:
        process = subprocess.Popen([harness.BINARY, "serve", f"--model-repository={tmp_path / 'models'}", "--http-port=0", "--grpc-port=0",
                                    "--metrics-port=0", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1"], stdout=out, stderr=out)
    try:
        workers = harness.wait_for(lambda: "worker is up" in log.read_text() and harness.descendants(process.pid), 10, "a worker")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0, log.read_text()
        harness.wait_for(lambda: not any(map(harness.alive, workers)), 5, "no worker left")
    finally:
        process.kill()
        process.wait(10)


def test_remote_worker_with_mutual_tls(start, tmp_path):
    """Instances on a worker behind TCP serve beside the local ones; it may die and come back."""
    ca = authority(tmp_path)
    for name in ("worker", "gateway"):
        certificate(tmp_path, name, ca)
    address = f"127.0.0.1:{harness.free_port()}"

    def remote():
        return subprocess.Popen([harness.BINARY.parent / "sluice-worker", f"--listen={address}", f"--tls-cert={tmp_path / 'worker.pem'}",
                                 f"--tls-key={tmp_path / 'worker.key'}", f"--tls-ca={tmp_path / 'ca.pem'}"], stderr=subprocess.DEVNULL)
    worker = remote()
    try:
        s = start(repositories=[repository(tmp_path / "models", two=(20, 2))], flags=[
            f"--worker={address}", f"--worker-cert={tmp_path / 'gateway.pem'}", f"--worker-key={tmp_path / 'gateway.key'}",
            f"--worker-root-cert={tmp_path / 'ca.pem'}"])
        assert metric(s, "sluice_worker_up") == 2
        assert {a[0] for a in at_once([lambda: s.ask("/v2/models/two/infer", ONE)] * 8)} == {200}
        worker.kill()
        worker.wait(10)
        assert [s.ask("/v2/models/two/infer", ONE)[0] for _ in range(5)] == [200] * 5
        worker = remote()
        harness.wait_for(lambda: metric(s, "sluice_worker_restarts_total", worker=address) >= 1 and
                         metric(s, "sluice_worker_up", worker=address) == 1, 30, "the worker is used again")
        assert {a[0] for a in at_once([lambda: s.ask("/v2/models/two/infer", ONE)] * 8)} == {200}
        assert s.stop() == 0
        assert worker.poll() is None, "a worker that listens outlives its gateway"
    finally:
        worker.kill()
        worker.wait(10)

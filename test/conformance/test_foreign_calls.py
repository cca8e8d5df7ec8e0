"""Calls of models in a worker in another language (foreign_worker.py): a model that adds what others answer."""
import json
import subprocess
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

import harness
from foreign_worker import Worker, busy, joined  # noqa: F401  joined is a fixture


def numbers(server, model, values, headers=None):
    """The status, the reason and the answer of an inference."""
    body = {"inputs": [{"name": "A", "shape": [len(values)], "datatype": "INT32", "data": values}]}
    request = urllib.request.Request(f"http://{server.http}/v2/models/{model}/infer", json.dumps(body).encode(), headers or {})
    try:
        with urllib.request.urlopen(request, timeout=60) as r:
            return r.status, "", json.load(r)["outputs"][0]["data"]
    except urllib.error.HTTPError as e:
        return e.code, e.headers.get("x-sluice-reason", ""), json.load(e)["error"]


def test_sum(joined):
    """A model that calls two others, one that calls that, and what can only wait for itself."""
    server, _ = joined()
    assert numbers(server, "sum", [1, 2, 3]) == (200, "", [2, 4, 6])
    assert numbers(server, "chain", [1, 2]) == (200, "", [3, 6])
    counts = {m: server.get(f"/v2/models/{m}/stats")["model_stats"][0]["inference_stats"]["success"]["count"] for m in ("first", "second", "sum")}
    assert counts == {"first": 3, "second": 2, "sum": 2}, "calls count at their models"
    begin = time.monotonic()
    assert numbers(server, "itself", [1])[:2] == (503, "call_cycle")
    assert numbers(server, "ping", [1])[:2] == (503, "call_cycle")
    assert time.monotonic() - begin < 10, "that needs no timeout"
    assert numbers(server, "sum", [5]) == (200, "", [10])


def test_sum_cancelled(joined):
    """A caller that leaves ends what was called for it."""
    server, _ = joined()
    with grpcclient.InferenceServerClient(server.grpc) as c:
        t = grpcclient.InferInput("DELAY_MS", [1], "INT32")
        t.set_data_from_numpy(np.array([60_000], np.int32))
        done = []
        call = c.async_infer("slow_sum", [t], callback=lambda result, error: done.append(error))
        harness.wait_for(lambda: busy(server, "sleeper"), 10, "the called model is busy")
        call.cancel()
        harness.wait_for(lambda: done and not busy(server, "sleeper") and not busy(server, "slow_sum"), 10, "both instances are free")
        t.set_data_from_numpy(np.array([1], np.int32))
        assert c.infer("slow_sum", [t]).as_numpy("OUT").tolist() == [1]


def test_sum_killed(joined):
    """kill -9 with open calls: requests are executed once more by the worker that comes back."""
    server, workers = joined()
    stop, faults, calls = threading.Event(), [], [0]

    def load(k):
        while not stop.is_set():
            got = numbers(server, "chain", [calls[0], k])
            if got[0] != 200 or got[2][1] != 3 * k:
                faults.append(got)
            calls[0] += 1
    threads = [threading.Thread(target=load, args=(k,)) for k in range(3)]
    [t.start() for t in threads]
    for _ in range(3):
        harness.wait_for(lambda at=calls[0]: calls[0] > at + 20, 30, "calls are answered")
        port = workers[-1].port
        workers[-1].kill()
        workers.append(Worker(port))
    harness.wait_for(lambda at=calls[0]: calls[0] > at + 20, 30, "calls are answered again")
    stop.set()
    [t.join(60) for t in threads]
    assert not faults, faults[:3]


def test_sum_policy(joined, tmp_path):
    """A call has the rights of the caller that it serves."""
    keys = {}
    for who in ("all", "half"):
        made = subprocess.run([harness.BINARY, "keys", "new", who], capture_output=True, text=True, check=True, timeout=20)
        keys[who] = made.stderr.strip()
        with open(tmp_path / "keys", "a") as f:
            f.write(made.stdout)
    (tmp_path / "policy.yaml").write_text('''rules:
- {principals: [all, half], actions: infer, models: [sum, first]}
- {principals: all, actions: infer, models: second}
- {principals: anonymous, actions: [metadata, metrics]}
''')
    server, _ = joined(flags=[f"--api-keys={tmp_path}/keys", f"--policy={tmp_path}/policy.yaml"])
    assert numbers(server, "sum", [1], {"X-Api-Key": keys["all"]}) == (200, "", [2])
    status, _, text = numbers(server, "sum", [1], {"X-Api-Key": keys["half"]})
    assert status == 403 and "'half' has no right to 'inference' on model 'second'" in text


@pytest.mark.parametrize("lie, status, text", [("call_batch", 400, "has ended"), ("call_id", 500, ""), ("call_flood", 200, "")])
def test_lies_of_calls(joined, lie, status, text):
    """Calls that break the rules are refused, or end their worker; the gateway goes on."""
    server, workers = joined(lie)
    got = numbers(server, "sum", [1, 2])
    assert got[0] == status and text in str(got[2]) or lie != "call_batch" and got[0] in (200, 500, 503), got
    if lie == "call_id":
        assert got[0] != 200, got
    assert numbers(server, "first", [1, 2]) == (200, "", [1, 2]) or lie == "call_id"
    workers[0].kill()
    workers.append(Worker(workers[0].port))
    harness.wait_for(lambda: numbers(server, "sum", [1, 2]) == (200, "", [2, 4]), 60, "an honest worker in its place serves")

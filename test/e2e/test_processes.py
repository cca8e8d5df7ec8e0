"""Models in worker processes of their own: what the end of one harms, what its memory is worth, and tensors that pass between them."""
import json
import os
import signal
import threading
import time

import numpy as np
import pytest
import tritonclient.http as httpclient

import harness

MODEL = """backend: "identity"
max_batch_size: 4
input {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }}
instance_group {{ count: 1 kind: KIND_CPU }}
parameters {{ key: "execute_delay_ms" value {{ string_value: "{delay}" }} }}
"""
OWN = 'parameters { key: "worker_process" value { string_value: "model" } }\n'
ENSEMBLE = """platform: "ensemble"
max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
ensemble_scheduling {
  step { model_name: "own" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "T" } }
  step { model_name: "other" model_version: -1 input_map { key: "IN" value: "T" } output_map { key: "OUT" value: "OUT" } }
}
"""


@pytest.fixture
def server(start, tmp_path):
    for name, config in (("own", MODEL.format(delay=0) + OWN), ("other", MODEL.format(delay=0) + OWN), ("shared", MODEL.format(delay=0)),
                         ("both", ENSEMBLE)):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(config)
    return start(repositories=[tmp_path], flags=["--model-control-mode=explicit", "--load-model=*"])


def processes(server):
    """The worker processes by the name that metrics give them."""
    text = server.metrics_text()
    up = {line.split('worker="')[1].split('"')[0] for line in text.splitlines() if line.startswith("sluice_worker_up{") and line.endswith(" 1")}
    return up, server.workers()


def infer(client, name, n=20_000):
    data = np.arange(n, dtype=np.float32).reshape(1, n)
    i = httpclient.InferInput("IN", [1, n], "FP32")
    i.set_data_from_numpy(data)
    assert (client.infer(name, [i]).as_numpy("OUT") == data).all()


def test_kill_harms_its_models_alone(server):
    """kill -9 of one process under load: its model's calls wait until it is back, and the others notice nothing."""
    harness.wait_for(lambda: processes(server)[0] == {"cpu", "cpu/identity/own", "cpu/identity/other"}, 10, "three processes")
    assert len(server.workers()) == 3
    stop, faults, calls, slowest = threading.Event(), [], {}, {}

    def load(name):
        with httpclient.InferenceServerClient(server.http, network_timeout=30, connection_timeout=30) as c:
            while not stop.is_set():
                began = time.monotonic()
                try:
                    infer(c, name)
                except Exception as e:  # shown below
                    faults.append((name, e))
                slowest[name] = max(slowest.get(name, 0), time.monotonic() - began)
                calls[name] = calls.get(name, 0) + 1

    threads = [threading.Thread(target=load, args=(name,)) for name in ("own", "other", "shared", "both")]
    [t.start() for t in threads]
    killed = None
    for _ in range(3):
        at = dict(calls)
        harness.wait_for(lambda: all(calls.get(n, 0) > at.get(n, 0) + 10 for n in ("own", "other", "shared", "both")), 20, "all are served")
        before = server.workers()
        killed = next(p for p in before if serves(server, p, "own"))
        os.kill(killed, signal.SIGKILL)
        harness.wait_for(lambda: killed not in server.workers() and len(server.workers()) == 3, 20, "another process")
        assert set(before) - {killed} <= set(server.workers()), "the other processes stay"
    at = dict(calls)
    harness.wait_for(lambda: all(calls[n] > at[n] + 10 for n in ("own", "other", "shared", "both")), 20, "all are served again")
    stop.set()
    [t.join(30) for t in threads]
    assert not faults, faults[:3]


def serves(server, pid, model):
    """Whether a process is the one of a model: its lines in the log name both."""
    lines = (line.replace('"', "") + " " for line in server.log().splitlines())
    return any(f"pid={pid} " in line and f"worker=cpu/identity/{model} " in line for line in lines)


def resident(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS")) * 1024


def test_unload_ends_the_process(server):
    """Unload of a model with a process of its own ends it, and with it all its memory; load starts another."""
    with httpclient.InferenceServerClient(server.http) as c:
        for _ in range(4):
            infer(c, "own", 4_000_000)
        mine = next(p for p in server.workers() if serves(server, p, "own"))
        assert resident(mine) > 4_000_000
        rest = set(server.workers()) - {mine}
        status, _, body = server.ask("/v2/repository/models/own/unload", json.dumps({"parameters": {}}).encode())
        assert status == 200, body
        harness.wait_for(lambda: not harness.alive(mine), 20, "the process has ended")
        assert set(server.workers()) == rest
        harness.wait_for(lambda: processes(server)[0] == {"cpu", "cpu/identity/other"}, 10, "its metrics are gone")
        assert "cpu/identity/own" not in server.metrics_text()
        infer(c, "other")
        assert server.ask("/v2/repository/models/own/load", b"{}")[0] == 200
        infer(c, "own")
        infer(c, "both", 100_000)
        assert len(server.workers()) == 3


def test_bounded(start, tmp_path):
    """No more processes than --worker-process-limit: the load that needs one more fails with a reason."""
    for name in "abc":
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(MODEL.format(delay=0))
    server = start(repositories=[tmp_path], flags=["--model-control-mode=explicit", "--worker-processes=identity=model", "--worker-process-limit=2"])
    loads = [server.ask(f"/v2/repository/models/{name}/load", b"{}") for name in "abc"]
    assert [status for status, _, _ in loads[:2]] == [200, 200] and loads[2][0] != 200
    assert b"there are 2 beside the shared ones" in loads[2][2]
    assert len(server.workers()) == 3

"""A caller whose loads never end: others' loads, the unloads of such models, restarts, and the bounds of each."""
import json
import subprocess
import threading
import time

import pytest

import harness
from test_identity import make_key

IDENTITY = """backend: "identity"
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 2 ] }
instance_group { kind: KIND_CPU count: 1 }
"""
WARMUP = 'model_warmup { name: "s" batch_size: 1 count: %d inputs { key: "INPUT0" value { data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } } }\n'
DELAY = 'parameters { key: "%s" value { string_value: "%d" } }\n'
KINDS = {
    "count": WARMUP % 4294967295,  # refused
    "slow": WARMUP % 100000 + DELAY % ("execute_delay_ms", 20),  # more than half an hour
    "stuck": WARMUP % 1 + DELAY % ("execute_delay_ms", 3600000),  # one batch of an hour
    "worker": DELAY % ("creation_delay_ms", 3600000),  # an instance that takes an hour to be made
}
POLICY = """rules:
- {principals: [mallory], actions: control, models: ["slow*", "stuck*", "worker*", "count*"]}
- {principals: [alice], actions: control, models: ["good*"]}
- {principals: [alice, mallory], actions: read}
"""
REFUSED = ("warmup sample 's' runs 4294967295 batches of 1 requests on 1 instances: with it the version has more than 100000 requests of warm-up, "
           "the most of --model-warmup-max-requests")


def put(repository, name, more=""):
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(IDENTITY + more)


def control(server, key, name, what):
    """status, error and seconds of a load or unload call."""
    begin = time.monotonic()
    status, _, answer = server.ask(f"/v2/repository/models/{name}/{what}", b"{}", {"X-Api-Key": key}, "POST")
    return status, json.loads(answer or "{}").get("error", ""), time.monotonic() - begin


def states(server, key=""):
    rows = json.loads(server.ask("/v2/repository/index", b"", {"X-Api-Key": key} if key else {}, "POST")[2])
    return {r["name"]: (r.get("state", ""), r.get("reason", "")) for r in rows}


@pytest.fixture
def callers(start, tmp_path):
    """a server whose models are loaded by calls, and the keys of its callers"""
    repository = tmp_path / "models"
    for kind, more in KINDS.items():
        for n in range(4):
            put(repository, f"{kind}{n}", more)
    for n in range(2):
        put(repository, f"good{n}")
    keys = {who: make_key(who) for who in ("mallory", "alice")}
    (tmp_path / "keys").write_text("".join(line for _, line in keys.values()))
    (tmp_path / "policy.yaml").write_text(POLICY)
    server = start([repository], [f"--api-keys={tmp_path}/keys", f"--policy={tmp_path}/policy.yaml", "--model-control-mode=explicit"])
    return server, {who: key for who, (key, _) in keys.items()}


@pytest.mark.parametrize("kind", ["slow", "stuck", "worker"])
def test_loads_that_never_end(callers, kind):
    server, keys = callers
    answers = {}

    def load(name):
        answers[name] = control(server, keys["mallory"], name, "load")

    loads = [threading.Thread(target=load, args=(f"{kind}{n}",)) for n in range(4)]
    for t in loads:
        t.start()
    loading = lambda: [s for s, _ in states(server, keys["alice"]).values()].count("LOADING")
    harness.wait_for(lambda: loading() >= 3, 20, "three of four loads have a thread")  # the fourth may be LOADING and wait
    status, error, took = control(server, keys["alice"], "good0", "load")
    print(f"{kind}: another's load took {took:.3f} s")
    assert (status, error) == (200, "") and took < 10
    for n in range(4):
        status, error, took = control(server, keys["mallory"], f"{kind}{n}", "unload")
        print(f"{kind}: the unload took {took:.3f} s")
        assert (status, error) == (200, "") and took < 10
    for t in loads:
        t.join(10)
    assert {name: a[:2] for name, a in answers.items()} == {
        f"{kind}{n}": (400, f"load of model '{kind}{n}' was overtaken by an unload") for n in range(4)}
    assert control(server, keys["alice"], "good1", "load")[0] == 200
    assert loading() == 0
    begin = time.monotonic()
    assert server.stop() == 0, server.log()[-3000:]
    print(f"{kind}: the stop took {time.monotonic() - begin:.1f} s")


def test_too_many_requests_of_warm_up(callers):
    server, keys = callers
    for n in range(4):
        status, error, took = control(server, keys["mallory"], f"count{n}", "load")
        assert (status, error) == (400, f"load failed for model 'count{n}': version 1 is at UNAVAILABLE state: Invalid argument: {REFUSED};\n") and took < 10


def test_restart_with_such_a_repository(start, tmp_path):
    repository = tmp_path / "models"
    for kind in ("count", "slow", "worker"):
        for n in range(4):
            put(repository, f"{kind}{n}", KINDS[kind])
    put(repository, "good0")
    checked = subprocess.run([harness.BINARY, "check", repository], capture_output=True, text=True, timeout=60)
    assert checked.stdout.count(REFUSED) == 4 and checked.returncode == 1, checked.stdout
    server = start([repository], ["--exit-on-error=false", "--model-warmup-max-secs=2", "--model-load-max-secs=4", "--model-load-thread-count=16"], ready=False)
    assert server.status("/v2/health/ready") == 400, "strict readiness: not all models could be loaded"
    assert server.status("/v2/models/good0/ready") == 200
    got = states(server)
    assert got["good0"] == ("READY", "")
    for n in range(4):
        assert got[f"count{n}"] == ("UNAVAILABLE", "Invalid argument: " + REFUSED)
        assert got[f"slow{n}"][0] == "UNAVAILABLE" and "did not end in 2s (--model-warmup-max-secs): " in got[f"slow{n}"][1], got
        assert got[f"worker{n}"] == ("UNAVAILABLE", f"Unavailable: 'worker{n}' version 1 did not load in 4s (--model-load-max-secs)")
    assert server.stop() == 0, server.log()[-3000:]

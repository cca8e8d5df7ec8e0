"""The response cache end to end: what it must never answer, what it says of itself, and Redis that fails under load."""
import json
import signal
import subprocess
import threading
import time

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.grpc import service_pb2, service_pb2_grpc

import harness

LOCAL = "--cache-config=local,size=16777216"
CACHED = "response_cache { enable: true }\n"
HEAD = 'backend: "identity"\ninstance_group { count: 1 kind: KIND_CPU }\n'
ONE = HEAD + """max_batch_size: 0
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1, -1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1, -1 ] }
"""
TWO = HEAD + """max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }
input { name: "INPUT1" data_type: TYPE_INT32 dims: -1 }
output { name: "OUTPUT1" data_type: TYPE_INT32 dims: -1 }
"""
ORDERED = HEAD + """max_batch_size: 1
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1, -1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1, -1 ] }
dynamic_batching { preserve_ordering: true }
"""
ENSEMBLE = """platform: "ensemble"
max_batch_size: 0
input { name: "IN" data_type: TYPE_INT32 dims: [ -1, -1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ -1, -1 ] }
ensemble_scheduling { step { model_name: "step" model_version: -1
  input_map { key: "INPUT0" value: "IN" } output_map { key: "OUTPUT0" value: "OUT" } } }
"""


def repository(folder, **configs):
    for name, config in configs.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
    return folder


def tensor(values, shape, name="INPUT0"):
    return {"name": name, "shape": shape, "datatype": "INT32", "data": values}


def body(*inputs, **members):
    return json.dumps({"inputs": list(inputs), **members}).encode()


def ask(server, model, request):
    """(status, cache status, decoded body)."""
    status, headers, answer = server.ask(f"/v2/models/{model}/infer", request)
    return status, headers["Cache-Status"], json.loads(answer)


def state(server, model, request):
    status, cached, answer = ask(server, model, request)
    assert status == 200, answer
    return cached


def executions(server, model):
    return server.get(f"/v2/models/{model}/stats")["model_stats"][0]["execution_count"]


HIT, MISS = "sluice; hit", "sluice; fwd=miss"


@pytest.fixture(scope="module")
def cached(built, tmp_path_factory):
    folder = repository(tmp_path_factory.mktemp("cached"), one=ONE + CACHED, two=TWO + CACHED, plain=ONE,
                        short=ONE + CACHED + 'parameters { key: "response_cache_ttl" value { string_value: "0.3" } }',
                        tagged=ONE + CACHED + 'parameters { key: "response_cache_tags" value { string_value: "blue" } }',
                        slow=ONE + CACHED + 'parameters { key: "execute_delay_ms" value { string_value: "300" } }',
                        ordered=ORDERED + CACHED, step=ONE, chain=ENSEMBLE + CACHED,
                        part=ONE + CACHED, whole=ENSEMBLE.replace('"step"', '"part"'))
    s = harness.Server([folder], [LOCAL, "--model-control-mode=explicit", "--load-model=*"])
    s.folder_of_models = folder
    yield s
    assert s.stop() == 0, s.log()[-2000:]


def reload(server, model):
    """Loads a model again that has changed a little."""
    config = server.folder_of_models / model / "config.pbtxt"
    config.write_text(config.read_text() + 'parameters { key: "changed" value { string_value: "yes" } }\n')
    assert server.ask(f"/v2/repository/models/{model}/load", b"{}")[0] == 200


def test_hit_says_so_and_its_age(cached):
    request = body(tensor([1, 2], [1, 2]), id="a")
    status, headers, first = cached.ask("/v2/models/one/infer", request)
    assert (status, headers["Cache-Status"], headers["Age"]) == (200, MISS, None)
    status, headers, second = cached.ask("/v2/models/one/infer", request.replace(b'"a"', b'"b"'))
    assert (status, headers["Cache-Status"], headers["Age"]) == (200, HIT, "0")
    assert json.loads(second) == {**json.loads(first), "id": "b"}
    _, headers, _ = cached.ask("/v2/models/plain/infer", request)
    assert headers["Cache-Status"] is None and headers["Age"] is None


def test_never_the_answer_of_another_request(cached):
    six = [1, 2, 3, 4, 5, 6]
    for request, shape in ((body(tensor(six, [2, 3])), [2, 3]), (body(tensor(six, [3, 2])), [3, 2])):
        status, cache, answer = ask(cached, "one", request)
        assert (status, cache, answer["outputs"][0]["shape"]) == (200, MISS, shape)
    for temperature in (.1, .9):
        assert state(cached, "one", body(tensor(six, [1, 6]), parameters={"temperature": temperature})) == MISS
    inputs = tensor([1], [1, 1]), tensor([2], [1, 1], "INPUT1")
    for wanted in (["OUTPUT1"], ["OUTPUT0"], ["OUTPUT0", "OUTPUT1"]):
        status, cache, answer = ask(cached, "two", body(*inputs, outputs=[{"name": n} for n in wanted]))
        assert (status, cache, [o["name"] for o in answer["outputs"]]) == (200, MISS, wanted)
    assert state(cached, "two", body(*inputs)) == MISS
    assert state(cached, "two", body(*reversed(inputs))) == HIT


def test_classes_are_made_of_the_kept_answer(cached):
    request = {"outputs": [{"name": "OUTPUT0", "parameters": {"classification": 1}}]}
    inputs = tensor([3, 9], [1, 2]), tensor([0, 0], [1, 2], "INPUT1")
    assert ask(cached, "two", body(*inputs, **request))[1:] == (MISS, ask(cached, "two", body(*inputs, **request))[2])
    request["outputs"][0]["parameters"]["classification"] = 2
    status, cache, answer = ask(cached, "two", body(*inputs, **request))
    assert (cache, [d.split(":")[1] for d in answer["outputs"][0]["data"]]) == (HIT, ["1", "0"])


def test_error_is_not_kept(cached):
    request = body(tensor([7], [1, 1]), parameters={"fail": "boom"})
    for _ in range(3):
        status, _, answer = ask(cached, "one", request)
        assert status == 500 and "boom" in answer["error"]


def test_sequence_passes_by(cached):
    request = body(tensor([8], [1, 1]), parameters={"sequence_id": 5, "sequence_start": True})
    assert [state(cached, "one", request) for _ in range(2)] == ["sluice; fwd=bypass"] * 2


def test_reload_forgets(cached):
    request = body(tensor([9], [1, 1]))
    assert [state(cached, "one", request) for _ in range(2)] == [MISS, HIT]
    reload(cached, "one")
    assert [state(cached, "one", request) for _ in range(2)] == [MISS, HIT]


def test_ensemble_forgets_with_its_step(cached):
    request = body(tensor([1, 2], [1, 2], "IN"))
    assert [state(cached, "chain", request) for _ in range(2)] == [MISS, HIT]
    reload(cached, "step")
    assert [state(cached, "chain", request) for _ in range(2)] == [MISS, HIT]


def test_step_of_an_ensemble_is_cached_by_itself(cached):
    request = body(tensor([3, 4], [1, 2], "IN"))
    for _ in range(3):
        status, cache, answer = ask(cached, "whole", request)
        assert (status, cache, answer["outputs"][0]["data"]) == (200, None, [3, 4])
    stats = cached.get("/v2/models/part/stats")["model_stats"][0]
    assert (stats["execution_count"], stats["inference_stats"]["cache_hit"]["count"]) == (1, 2)


def test_ends(cached):
    request = body(tensor([1], [1, 1]))
    assert [state(cached, "short", request) for _ in range(2)] == [MISS, HIT]
    harness.wait_for(lambda: state(cached, "short", request) == MISS, 5, "the answer ends")


def purge(server, **selector):
    status, _, answer = server.ask("/v2/cache/purge", json.dumps(selector).encode())
    return status, json.loads(answer)


def test_purge(cached):
    request, marked = body(tensor([1], [1, 1])), body(tensor([1], [1, 1]), parameters={"sluice_cache_tags": "red,blue"})
    cases = (({"model": "tagged"}, 2), ({"tag": "red"}, 1), ({"tag": "blue"}, 2), ({"model": "tagged", "version": "2"}, 0),
             ({"model": "tagged", "version": "1"}, 2), ({"model": "one", "tag": "blue"}, 0))
    for selector, count in cases:
        for r in (request, marked):
            state(cached, "tagged", r)
        assert purge(cached, **selector) == (200, {"purged": count}), selector
        assert [state(cached, "tagged", r) for r in (request, marked)].count(MISS) == count
    assert purge(cached, version="1") == (400, {"error": "purging version '1' needs its model"})
    assert purge(cached, tags="red")[0] == 400
    assert purge(cached)[1]["purged"] >= 2


def test_grpc(cached):
    x = grpcclient.InferInput("INPUT0", [1, 3], "INT32")
    x.set_data_from_numpy(np.array([[4, 5, 6]], np.int32))
    with grpc.insecure_channel(cached.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.ModelInferRequest(model_name="one", raw_input_contents=[x._get_content()])
        request.inputs.append(x._get_tensor())
        got = [stub.ModelInfer.with_call(request) for _ in range(2)]
        assert got[0][0] == got[1][0]
        assert [dict(c.trailing_metadata()).get("cache-status") for _, c in got] == [MISS, HIT]
        assert dict(got[1][1].trailing_metadata())["age"] == "0"
        # sluice.admin.Admin/PurgeCache with {model: "one"}
        call = channel.unary_unary("/sluice.admin.Admin/PurgeCache")
        assert call(b"\x0a\x03one")[1] >= 1
        assert dict(stub.ModelInfer.with_call(request)[1].trailing_metadata())["cache-status"] == MISS


def at_once(n, call):
    results = [None] * n

    def run(i):
        results[i] = call(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    return results


def test_identical_requests_are_executed_once(cached):
    request = body(tensor([1, 2, 3], [1, 3]))
    before = executions(cached, "slow")
    states = at_once(20, lambda _: state(cached, "slow", request))
    assert states.count(MISS) == 1 and states.count("sluice; fwd=miss; collapsed") == 19
    assert executions(cached, "slow") == before + 1


@harness.on_time
def test_hit_answers_in_its_turn(cached):
    kept = body(tensor([1], [1, 1, 1]))
    assert [state(cached, "ordered", kept) for _ in range(2)] == [MISS, HIT]
    ended = {}

    def slow(_):
        state(cached, "ordered", body(tensor([2], [1, 1, 1]), parameters={"delay_ms": 500}))
        ended["slow"] = time.monotonic()

    thread = threading.Thread(target=slow, args=(0,))
    thread.start()
    pending = 'nv_inference_exec_count{model="ordered"'
    time.sleep(0.15)
    assert pending in cached.metrics_text() and state(cached, "ordered", kept) == HIT
    ended["hit"] = time.monotonic()
    thread.join(30)
    assert ended["hit"] > ended["slow"] - 0.05


def test_statistics_and_metrics(start, tmp_path):
    s = start([repository(tmp_path, one=ONE + CACHED, plain=ONE)], ["--response-cache-byte-size=1048576"])
    request = body(tensor([1, 2], [1, 2]))
    for _ in range(3):
        ask(s, "one", request)
    ask(s, "plain", request)
    model, = s.get("/v2/models/one/stats")["model_stats"]
    stats = model["inference_stats"]
    counts = {k: stats[k]["count"] for k in stats}
    # as the original counts the same three requests
    assert (model["inference_count"], model["execution_count"]) == (1, 1)
    assert counts == {"success": 3, "fail": 0, "queue": 3, "compute_input": 1, "compute_infer": 1, "compute_output": 1, "cache_hit": 2,
                      "cache_miss": 1}
    assert stats["cache_hit"]["ns"] > 0 and stats["cache_miss"]["ns"] > 0
    text = s.metrics_text()
    for line in ('nv_cache_num_hits_per_model{model="one",version="1"} 2', 'nv_cache_num_misses_per_model{model="one",version="1"} 1',
                 'nv_inference_count{model="one",version="1"} 1', 'nv_inference_request_success{model="one",version="1"} 3',
                 "nv_cache_num_entries 1", "nv_cache_num_lookups 3", "nv_cache_num_hits 2", "nv_cache_num_misses 1", "nv_cache_num_evictions 0"):
        assert line in text.splitlines(), line
    for name in ("nv_cache_hit_duration_per_model", "nv_cache_miss_duration_per_model", "nv_cache_lookup_duration",
                 "nv_cache_insertion_duration", "nv_cache_util"):
        assert f"\n{name}" in text
    assert 'nv_cache_num_hits_per_model{model="plain"' not in text


def test_refused_at_load(start, tmp_path):
    s = start([repository(tmp_path, seq=ONE.replace("max_batch_size: 0", "max_batch_size: 4") + CACHED + "sequence_batching { }\n",
                          dec=ONE + CACHED + "model_transaction_policy { decoupled: true }\n",
                          ttl=ONE + CACHED + 'parameters { key: "response_cache_ttl" value { string_value: "soon" } }\n')],
              [LOCAL, "--exit-on-error=false"], ready=False)
    reasons = {}

    def known():
        index = json.loads(s.ask("/v2/repository/index", b"{}")[2])
        reasons.update({m["name"]: m.get("reason", "") for m in index if m.get("state") == "UNAVAILABLE"})
        return len(reasons) == 3

    harness.wait_for(known, 20, "three models are refused")
    assert "Response Cache does not currently support model seq with sequence batching scheduler. Please disable the response cache." in reasons["seq"]
    assert "Response Cache does not currently support model dec with 'decoupled' transaction policy. Please disable the response cache." in reasons["dec"]
    assert "'soon' is no time to live" in reasons["ttl"]


def test_without_a_cache(start, tmp_path):
    s = start([repository(tmp_path, one=ONE + CACHED)])
    assert [ask(s, "one", body(tensor([1], [1, 1])))[1] for _ in range(2)] == [None, None]
    assert purge(s)[0] == 501
    assert "there is no --cache-config" in s.log() and "nv_cache" not in s.metrics_text()


@pytest.mark.parametrize("flags, text", [
    (["--cache-config=local"], "No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got local"),
    (["--cache-config=local,"], "--cache-config option format is '<cache name>,<setting>=<value>'. Got local,"),
    (["--cache-config=local,ttl=1"], "Failed to initialize LocalCache: config didn't contain a valid 'size' field."),
    (["--cache-config=local,size=9", "--response-cache-byte-size=9"],
     "Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide one or the other."),
    (["--cache-config=redis,port=1"], "Failed to initialize RedisCache, didn't specify address. Must at a minimum specify 'host' and 'port'"),
    (["--cache-config=disk,size=9"], "there is no cache 'disk'"),
])
def test_flags(built, tmp_path, flags, text):
    done = subprocess.run([harness.BINARY, "serve", f"--model-repository={tmp_path}", *flags], capture_output=True, text=True, timeout=20)
    assert done.returncode != 0 and text in done.stderr, done.stderr


def flag(redis, more=""):
    return f"--cache-config=redis,host=127.0.0.1,port={redis.port}{more}"


def test_gateways_share_redis(start, tmp_path, redis):
    folder = repository(tmp_path / "m", one=ONE + CACHED)
    # the budget is for this machine, which may be busy
    one, two = (start([folder], [flag(redis, ",prefix=t:,budget=500,ttl=60")]) for _ in range(2))
    request = body(tensor([1, 2], [1, 2]))
    assert state(one, "one", request) == MISS
    harness.wait_for(lambda: redis.say("DBSIZE") == ":1", 5, "the answer is in Redis")
    assert state(two, "one", request) == HIT
    two.kill()
    three = start([folder], [flag(redis, ",prefix=t:,budget=500,ttl=60")])
    assert state(three, "one", request) == HIT  # after a restart
    (folder / "one" / "1" / "weights").write_text("other")
    four = start([folder], [flag(redis, ",prefix=t:,budget=500,ttl=60")])
    assert state(four, "one", request) == MISS  # other content
    assert purge(one, model="one")[1]["purged"] >= 1
    assert state(three, "one", request) == MISS


@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_redis_fails_under_load(start, tmp_path, redis, fault):
    s = start([repository(tmp_path / "m", one=ONE + CACHED)], [flag(redis)])
    stop, failed, asked = threading.Event(), [], []

    def load(n):
        i = 0
        while not stop.is_set():
            i += 1
            try:
                status, _, answer = ask(s, "one", body(tensor([n, i % 50], [1, 2])))
                if status != 200 or answer["outputs"][0]["data"] != [n, i % 50]:
                    failed.append((status, answer))
            except OSError as e:
                failed.append(e)
        asked.append(i)

    threads = [threading.Thread(target=load, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    time.sleep(0.5)
    redis.process.send_signal(signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
    try:
        is_open = 'sluice_cache_breaker_open{level="redis"} 1'
        harness.wait_for(lambda: is_open in s.metrics_text(), 10, "the breaker opens")
        time.sleep(0.3)
    finally:
        stop.set()
        for t in threads:
            t.join(30)
    assert not failed, failed[:3]
    assert len(asked) == 4 and sum(asked) > 100
    if fault == "frozen":
        redis.process.send_signal(signal.SIGCONT)
    else:
        redis.start()
    request = body(tensor([1, 1], [1, 2]), parameters={"again": True})
    harness.wait_for(lambda: state(s, "one", request) == HIT, 15, "Redis is asked again")

"""Limits on callers: 429 and RESOURCE_EXHAUSTED with a reason and when to come back, by principal and model, alone or through Redis."""
import hashlib
import json
import signal
import socket
import subprocess
import threading
import time

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import harness
from test_limits import at_once, metric, repository

ONE = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [1]}]}).encode()


def tensor(kind, n=1):
    t = kind.InferInput("INPUT0", [1, n], "INT32")
    t.set_data_from_numpy(np.zeros((1, n), np.int32))
    return t


@pytest.fixture
def limited(start, tmp_path):
    """A server of the models with limits, and with keys for the principals a and b, of whom b is in the group gold."""

    def begin(rules, flags=(), **models):
        limits = tmp_path / "limits.yaml"
        limits.write_text(rules)
        keys, lines = {}, []
        for name, groups in (("a", ()), ("b", ("gold",))):
            keys[name] = f"a-key-of-{name}"
            lines.append(f"{name} sha256:{hashlib.sha256(keys[name].encode()).hexdigest()}" + (f" groups={','.join(groups)}" if groups else ""))
        (tmp_path / "keys").write_text("\n".join(lines) + "\n")
        s = start(repositories=[repository(tmp_path / "models", **(models or {"fast": (0, 1)}))],
                  flags=[f"--limits-file={limits}", f"--api-keys={tmp_path / 'keys'}", *flags])
        s.keys, s.limits = keys, limits
        return s

    return begin


def as_(s, who):
    return {"Authorization": "Bearer " + s.keys[who]} if who else {}


def infer(s, who=None, model="fast", body=ONE):
    status, headers, text = s.ask(f"/v2/models/{model}/infer", body, as_(s, who))
    return status, headers, text


def test_rate_by_principal_http(limited):
    s = limited("rules: [{name: mine, each: principal, principals: authenticated, requests: 2/min}]")
    assert [infer(s, "a")[0] for _ in range(2)] == [200, 200]
    status, headers, body = infer(s, "a")
    assert status == 429 and headers["X-Sluice-Reason"] == "rate_limited" and 25 <= int(headers["Retry-After"]) <= 30, (status, headers)
    assert json.loads(body)["error"].startswith("limit 'mine' of principal 'a': requests 2/min; try again in ")
    assert infer(s, "b")[0] == 200 and all(infer(s)[0] == 200 for _ in range(4)), "others have their own, or none"
    assert s.ask("/v2/models/fast/config", headers=as_(s, "a"))[0] == 200, "the rule is about inference"
    with httpclient.InferenceServerClient(s.http) as c:
        with pytest.raises(InferenceServerException) as e:
            c.infer("fast", [tensor(httpclient)], headers=as_(s, "a"))
        assert e.value.status() == "429"
    assert metric(s, "sluice_limit_refusals_total", rule="mine", limit="requests", reason="rate_limited") == 2
    assert metric(s, "sluice_call_refusals_total", protocol="http", reason="rate_limited") == 2


def test_rate_by_model_grpc(limited):
    """Over gRPC the body names the model; the refusal says when to come back in the trailer and as google.rpc.RetryInfo."""
    s = limited("rules: [{name: dear, models: dear, each: principal, requests: 1/min}]", fast=(0, 1), dear=(0, 1))
    with grpcclient.InferenceServerClient(s.grpc) as c:
        def ask(model, who):
            c.infer(model, [tensor(grpcclient)], headers={k.lower(): v for k, v in as_(s, who).items()})

        ask("dear", "a")
        ask("fast", "a")
        ask("dear", "b")
        with pytest.raises(InferenceServerException) as e:
            ask("dear", "a")
        assert e.value.status() == "StatusCode.RESOURCE_EXHAUSTED" and "limit 'dear' of principal 'a'" in e.value.message()
    with grpc.insecure_channel(s.grpc) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", request_serializer=bytes, response_deserializer=bytes)
        request = grpcclient.service_pb2.ModelInferRequest(model_name="dear", raw_input_contents=[bytes(4)])
        request.inputs.add(name="INPUT0", datatype="INT32", shape=[1, 1])
        with pytest.raises(grpc.RpcError) as e:
            call(request.SerializeToString(), metadata=[("authorization", "Bearer " + s.keys["a"])])
        trailer = dict(e.value.trailing_metadata())
        assert e.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and trailer["x-sluice-reason"] == "rate_limited", trailer
        assert 50 <= int(trailer["retry-after"]) <= 60
        assert b"type.googleapis.com/google.rpc.RetryInfo" in trailer["grpc-status-details-bin"]
    assert metric(s, "sluice_refusals_total", model="dear", reason="rate_limited") == 2


def test_concurrency(limited):
    s = limited("rules: [{name: few, each: principal, concurrency: 2}]", slow=(400, 8))
    answers = at_once([lambda: infer(s, "a", "slow")[0]] * 5 + [lambda: infer(s, "b", "slow")[0]])
    assert sorted(answers[:5]) == [200, 200, 429, 429, 429] and answers[5] == 200, answers
    status, headers, _ = infer(s, "a", "slow")
    assert status == 200, "the room is there again"
    with grpcclient.InferenceServerClient(s.grpc) as c:
        def ask():
            try:
                c.infer("slow", [tensor(grpcclient)])
                return "OK"
            except InferenceServerException as e:
                return e.status()

        answers = at_once([ask] * 4)
        assert sorted(answers) == ["OK", "OK"] + ["StatusCode.RESOURCE_EXHAUSTED"] * 2, answers
    assert metric(s, "sluice_limit_refusals_total", rule="few", reason="concurrency") == 5
    # a caller who leaves gives his room back
    for _ in range(3):
        with socket.create_connection(tuple(s.http.split(":"))) as left:
            left.sendall(b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s"
                         % (s.keys["a"].encode(), len(ONE), ONE))
    harness.wait_for(lambda: infer(s, "a", "slow")[0] == 200, 5, "room after callers left")


def test_bytes_in_flight(limited):
    """What is announced counts before it is read; what is not announced counts when it is there."""
    s = limited("rules: [{name: bodies, bytes_in_flight: 100KB}]", slow=(400, 8))
    n = 10_000
    body = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, n], "datatype": "INT32", "parameters": {"binary_data_size": 4 * n}}],
                       "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(body))}

    def ask():
        status, got, _ = s.ask("/v2/models/slow/infer", body + bytes(4 * n), headers)
        return status, got["X-Sluice-Reason"]

    answers = at_once([ask] * 4)
    assert sorted(answers, key=str) == [(200, None), (200, None), (429, "bytes_in_flight"), (429, "bytes_in_flight")], answers
    status, got, text = s.ask("/v2/models/slow/infer", bytes(200_000), {"Inference-Header-Content-Length": "0"})
    assert (status, got["X-Sluice-Reason"], got["Retry-After"]) == (429, "bytes_in_flight", None) and b"can never pass" in text
    with grpcclient.InferenceServerClient(s.grpc) as c:
        def rpc():
            try:
                return c.infer("slow", [tensor(grpcclient, n)]).as_numpy("OUTPUT0").size == n
            except InferenceServerException as e:
                return e.status()

        answers = at_once([rpc] * 4)
        assert sorted(answers, key=str) == ["StatusCode.RESOURCE_EXHAUSTED"] * 2 + [True] * 2, answers
    assert ask() == (200, None)


def test_half_calls_keep_nothing(limited):
    """Calls whose body never comes, over both protocols, and such whose model is not there give back what they held, and a length
    that was only announced is no debt of the others."""
    s = limited("rules: [{name: one, concurrency: 1}, {name: bytes, bytes: {rate: 1KB/s, burst: 100KB}}, {name: models, each: model, requests: 5/h}]",
                slow=(0, 1))
    head = b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n{"
    for n in (1000, 10**17):
        with socket.create_connection(tuple(s.http.split(":"))) as half:
            half.sendall(head % n)
            if n == 1000:
                harness.wait_for(lambda: metric(s, "sluice_requests_in_flight", protocol="http") == 1, 5, "it is open")
                assert infer(s, model="slow")[0] == 429
            else:
                assert b" 400 " in half.recv(100)
        harness.wait_for(lambda: metric(s, "sluice_requests_in_flight", protocol="http") == 0, 5, "it has ended")
    with grpc.insecure_channel(s.grpc) as channel:
        never = threading.Event()
        half = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer").future(iter(never.wait, None))
        harness.wait_for(lambda: metric(s, "sluice_requests_in_flight", protocol="grpc") == 1, 5, "it is open")
        assert infer(s, model="slow")[0] == 429
        half.cancel()
        harness.wait_for(lambda: metric(s, "sluice_requests_in_flight", protocol="grpc") == 0, 5, "it has ended")
        never.set()
    meters = metric(s, "sluice_limit_meters")
    answers = [infer(s, model=f"none{i}")[0] for i in range(20)]
    assert answers.count(429) >= 14 and set(answers) <= {404, 400, 429}, answers
    assert metric(s, "sluice_limit_meters") <= meters + 1, "names that nobody has take no room"
    assert infer(s, model="slow")[0] == 200


def test_compute_time_and_elements(limited):
    s = limited("rules:\n- {name: time, groups: gold, compute: {rate: 10ms/s, burst: 100ms}}\n- {name: size, models: slow, elements: {rate: 1/s, burst: 3}}",
                slow=(200, 1), other=(200, 1))
    assert infer(s, "b", "other")[0] == 200
    status, headers, body = infer(s, "b", "other")
    assert status == 429 and headers["X-Sluice-Reason"] == "rate_limited" and b"compute 10ms/s" in body
    assert 5 <= int(headers["Retry-After"]) <= 20, "what it took beyond the burst comes back first"
    assert infer(s, "a", "other")[0] == 200
    four = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 3], "datatype": "INT32", "data": [1, 2, 3]}]}).encode()
    assert infer(s, "a", "slow", four)[0] == 200
    assert infer(s, "a", "slow", four)[0] == 429


def test_reload(limited):
    s = limited("rules: [{name: r, requests: 1/h}]")
    assert [infer(s)[0] for _ in range(2)] == [200, 429]
    s.limits.write_text("rules: [{name: r, requests: x}]")
    harness.wait_for(lambda: "the limits file is wrong" in s.log(), 5, "the fault in the log")
    assert infer(s)[0] == 429, "the old limits stay"
    s.limits.write_text("rules: [{name: r, requests: 5/h}]")
    harness.wait_for(lambda: "the limits file was read" in s.log(), 5, "read again")
    assert infer(s)[0] == 200
    assert s.stop() == 0


def test_files_that_are_cut(limited, tmp_path):
    """The files of limits and of keys are emptied, written again slowly in place, and removed while calls run: none is refused
    that was not before, none is let through that was, and the metrics say what is wrong with the files."""
    rules = ("rules:\n- {name: mine, each: principal, principals: a, requests: {rate: 100000/s, burst: 100000}}\n"
             "- {name: none, principals: b, requests: {rate: 1/d, burst: 1}}\n")
    s = limited(rules)
    keys = tmp_path / "keys"
    lines = keys.read_text()
    assert infer(s, "b")[0] == 200
    over, seen = threading.Event(), {"a": [], "b": [], None: []}

    def call(who):
        while not over.is_set():
            seen[who].append(infer(s, who)[0])
            time.sleep(0.01)

    def slowly(path, text):
        with open(path, "w") as f:
            for part in [text[i:i + 8] for i in range(0, len(text), 8)]:
                f.write(part)
                f.flush()
                time.sleep(0.1)

    def good(config, value):
        return f'sluice_config_last_reload_successful{{config="{config}"}} {value}' in s.metrics_text()
    callers = [threading.Thread(target=call, args=(who,)) for who in seen]
    for c in callers:
        c.start()
    try:
        for path, text, config in ((s.limits, rules, "limits"), (keys, lines, "policy")):
            path.write_text("")
            harness.wait_for(lambda config=config: good(config, 0), 10, f"the empty file of {config} is told of")
            slowly(path, text)
            harness.wait_for(lambda config=config: good(config, 1), 10, f"the file of {config} is whole again")
            path.unlink()
            harness.wait_for(lambda config=config: good(config, 0), 10, f"the file of {config} is gone")
            path.write_text(text)
            harness.wait_for(lambda config=config: good(config, 1), 10, f"the file of {config} is there again")
    finally:
        over.set()
        for c in callers:
            c.join()
    assert {who: set(got) for who, got in seen.items()} == {"a": {200}, "b": {429}, None: {200}}, {who: len(got) for who, got in seen.items()}
    assert "limits.yaml: the file says nothing; write 'rules: []' if that is meant" in s.log()
    assert "keys: the file says nothing; write a line 'no keys' if no key is to count" in s.log()
    s.limits.write_text("rules: []\n")
    harness.wait_for(lambda: infer(s, "b")[0] == 200, 10, "no limits, in words")
    assert s.stop() == 0


def test_wrong_file(start, tmp_path):
    wrong = tmp_path / "limits.yaml"
    wrong.write_text("rules:\n- {name: a, request: 1/s}\n")
    done = subprocess.run([str(harness.BINARY), "serve", f"--model-repository={tmp_path}", f"--limits-file={wrong}", "--http-port=0", "--grpc-port=0",
                           "--metrics-port=0"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 1 and "line 2: field request not found" in done.stderr + done.stdout


def test_fair_shares_of_a_full_queue(limited, tmp_path):
    """a fills the queue; b's request takes the place of a's newest, which hears why."""
    config = tmp_path / "models" / "busy" / "config.pbtxt"
    config.parent.joinpath("1").mkdir(parents=True)
    config.write_text("""backend: "identity"
max_batch_size: 1
input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }
instance_group { count: 1 kind: KIND_CPU }
dynamic_batching { default_queue_policy { max_queue_size: 4 } }
parameters { key: "execute_delay_ms" value { string_value: "400" } }
""")
    s = limited("weights: [{groups: gold, weight: 1}]")
    answers = []

    def ask(who):
        status, headers, _ = infer(s, who, "busy")
        answers.append((who, status, headers["X-Sluice-Reason"]))

    threads = []

    def begin(who, pending):
        threads.append(threading.Thread(target=ask, args=(who,)))
        threads[-1].start()
        harness.wait_for(lambda: metric(s, "nv_inference_pending_request_count", model="busy") >= pending, 5, f"{pending} requests wait")

    begin("a", 0)
    for i in range(1, 5):
        begin("a", i)
    begin("b", 4)
    harness.wait_for(lambda: answers, 5, "who gives way")
    assert answers == [("a", 503, "fair_share")]
    for t in threads:
        t.join(20)
    assert sorted(answers)[:5] == [("a", 200, None)] * 4 + [("a", 503, "fair_share")] and ("b", 200, None) in answers, answers
    assert metric(s, "sluice_refusals_total", model="busy", reason="fair_share") == 1


def test_two_gateways_share_limits_and_redis_goes(limited, redis):
    rules = "rules: [{name: shared, each: principal, requests: 6/h}, {name: held, concurrency: 100}]"
    flag = f"--limits-redis=host=127.0.0.1,port={redis.port},budget=500"  # for this machine, which may be busy
    first = limited(rules, [flag])
    second = harness.Server(repositories=[first.limits.parent / "models"], flags=[f"--limits-file={first.limits}", flag, f"--api-keys={first.limits.parent / 'keys'}"])
    second.keys = first.keys
    try:
        answers = [infer(s, "a")[0] for _ in range(6) for s in (first, second)]
        assert answers.count(200) == 6 and answers.count(429) == 6, answers
        assert metric(first, "sluice_limit_redis_failures_total") == 0 == second.log().count("Redis does not")

        redis.process.send_signal(signal.SIGSTOP)
        slowest = 0
        for i in range(60):
            began = time.monotonic()
            status = infer((first, second)[i % 2], "b")[0]
            slowest = max(slowest, time.monotonic() - began)
            assert status in (200, 429)
        assert slowest < 3, f"a call took {slowest:.3f} s while Redis was frozen"
        up = lambda: [line for line in first.metrics_text().splitlines() if line.startswith("sluice_limit_redis_up ")]  # noqa: E731
        assert up() == ["sluice_limit_redis_up 0"]
        redis.process.send_signal(signal.SIGCONT)
        harness.wait_for(lambda: up() == ["sluice_limit_redis_up 1"], 10, "shared again")
        assert infer(first, "a")[0] == infer(second, "a")[0] == 429, "what was used is known"
        redis.kill()
        assert all(infer(s, "b")[0] in (200, 429) for _ in range(5) for s in (first, second))
    finally:
        assert second.stop() == 0
    assert first.stop() == 0

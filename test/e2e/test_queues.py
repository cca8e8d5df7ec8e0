"""Priorities, queue policies and the rate limiter, as clients see them."""
import json
import os
import signal
import threading
import time

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import harness

CONFIG = """backend: "identity"
max_batch_size: 1
input {{ name: "INPUT0" data_type: TYPE_INT32 dims: -1 }}
output {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }}
instance_group {{ count: 1 kind: KIND_CPU {group} }}
parameters {{ key: "execute_delay_ms" value {{ string_value: "{delay}" }} }}
{rest}
"""
REASON = "X-Sluice-Reason"
LONG = {"delay_ms": 700}


def model(folder, name, delay, rest="", group=""):
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(CONFIG.format(delay=delay, rest=rest, group=group))


def body(**parameters):
    return json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [1]}], "parameters": parameters}).encode()


class Calls:
    """Requests that are under way at the same time; each gives its status, reason and text, and when it ended."""

    def __init__(self, server, name):
        self.server, self.path, self.threads, self.ended, self.answers = server, f"/v2/models/{name}/infer", [], [], {}

    def add(self, label, **parameters):
        def run():
            status, headers, text = self.server.ask(self.path, body(**parameters))
            self.ended.append(label)
            self.answers[label] = (status, headers[REASON], json.loads(text).get("error"))
        before = self.pending()
        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()
        return before

    def pending(self):
        return sum(float(line.rsplit(" ", 1)[1]) for line in self.server.metrics_text().splitlines()
                   if line.startswith("nv_inference_pending_request_count{") and self.path.split("/")[3] in line)

    def queue(self, *calls):
        """Queues one after another, each when the one before is known to wait; the first has the instance."""
        for label, parameters in calls:
            before = self.add(label, **parameters)
            if len(self.threads) == 1:
                time.sleep(0.05)
                continue
            harness.wait_for(lambda: label in self.answers or self.pending() > before, 5, f"{label} queued")
        return self

    def wait(self):
        for t in self.threads:
            t.join(30)
        return self.ended


def counter(server, name, model):
    stats = server.get(f"/v2/models/{model}/stats")["model_stats"][0]
    return stats["inference_stats"][name]


LEVELS = """dynamic_batching { priority_levels: 3 default_priority_level: 2
  default_queue_policy { max_queue_size: 2 }
  priority_queue_policy { key: 1 value { max_queue_size: 1 } }
  priority_queue_policy { key: 3 value { timeout_action: DELAY default_timeout_microseconds: 20000 } } }
"""


@pytest.fixture(scope="module")
def levels(built, tmp_path_factory):
    folder = tmp_path_factory.mktemp("queues")
    model(folder, "levels", 5, LEVELS)
    model(folder, "fair", 5, LEVELS + 'parameters { key: "priority_fairness" value { string_value: "2" } }')
    model(folder, "override", 400, "dynamic_batching { default_queue_policy { default_timeout_microseconds: 200000 allow_timeout_override: true } }")
    model(folder, "plain", 1)
    s = harness.Server(repositories=[folder])
    yield s
    s.kill()


@harness.on_time
def test_levels_leave_in_order(levels):
    """1 before 2, which is the default, before 3; of one level in order, and those that were delayed last."""
    calls = Calls(levels, "levels").queue(("first", LONG), ("third", {"priority": 3}), ("second", {"priority": 2}), ("default", {}),
                                          ("high", {"priority": 1}))
    assert calls.wait() == ["first", "high", "second", "default", "third"], calls.answers
    assert {a[0] for a in calls.answers.values()} == {200}


def test_levels_have_their_own_limits(levels):
    """A full level refuses, with the original's text and a reason that is counted; the others take requests."""
    calls = Calls(levels, "levels").queue(("first", LONG), ("a", {"priority": 1}), ("b", {"priority": 1}), ("c", {}), ("d", {}), ("e", {}),
                                          ("f", {"priority": 3}), ("g", {"priority": 3}), ("h", {"priority": 3}))
    calls.wait()
    refused = {label for label, a in calls.answers.items() if a != (200, None, None)}
    assert refused == {"b", "e"}, calls.answers
    assert {calls.answers[r] for r in refused} == {(503, "queue_full", "[request id: <id_unknown>] Exceeds maximum queue size")}
    assert f'sluice_refusals_total{{model="levels",reason="queue_full",version="1"}} 2' in levels.metrics_text()


@harness.on_time
def test_fairness_serves_low_levels(levels):
    """Each second batch begins with the request that waits longest, so the low one isn't last."""
    calls = Calls(levels, "fair").queue(("first", LONG), ("low", {"priority": 3}), ("x", {}), ("y", {}), ("high", {"priority": 1}))
    ended = calls.wait()
    assert ended.index("low") <= 2, ended


def test_timeout_is_exact(levels):
    """A request's own timeout shortens the model's; both are kept to a few milliseconds, though the instance is busy for 400.
    A machine that is busy itself gets three tries at being in time; none may ever end early."""
    for rounds in (1, 2, 3):
        waits = timeouts(levels)
        assert set(waits) == {"own", "longer", "default"}
        assert waits["own"] >= 0.05 and waits["longer"] >= 0.2 and waits["default"] >= 0.2, waits
        if waits["own"] < 0.12 and waits["longer"] < 0.27 and waits["default"] < 0.27:
            break
    else:
        pytest.fail(f"late three times: {waits}")
    assert f'sluice_refusals_total{{model="override",reason="queue_timeout",version="1"}} {3 * rounds}' in levels.metrics_text()
    assert int(counter(levels, "fail", "override")["count"]) == 3 * rounds


def timeouts(levels):
    """How long three requests waited until they were refused."""
    waits = {}
    with grpcclient.InferenceServerClient(levels.grpc) as c:
        tensor = grpcclient.InferInput("INPUT0", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.zeros((1, 1), np.int32))

        def call(label, **rest):
            begin = time.monotonic()
            try:
                c.infer("override", [tensor], **rest)
            except InferenceServerException as e:
                assert (e.status(), e.message()) == ("StatusCode.UNAVAILABLE", "Request timeout expired"), e
                waits[label] = time.monotonic() - begin

        threads = [threading.Thread(target=call, args=("first",))]
        threads[0].start()
        time.sleep(0.05)
        for label, rest in (("own", {"timeout": 50_000}), ("longer", {"timeout": 5_000_000}), ("default", {})):
            threads.append(threading.Thread(target=call, args=(label,), kwargs=rest))
            threads[-1].start()
        for t in threads:
            t.join(20)
    return waits


def test_priority_out_of_range(levels):
    """Above the levels it is refused, where the original takes it silently for the default; without levels nobody looks at it."""
    want = "[request id: <id_unknown>] priority 4 is more than the 3 priority levels of 'levels'"
    status, _, text = levels.ask("/v2/models/levels/infer", body(priority=4))
    assert (status, json.loads(text)["error"]) == (400, want)
    assert levels.ask("/v2/models/plain/infer", body(priority=4))[0] == 200
    with grpcclient.InferenceServerClient(levels.grpc) as c, httpclient.InferenceServerClient(levels.http) as h:
        tensor = grpcclient.InferInput("INPUT0", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.zeros((1, 1), np.int32))
        with pytest.raises(InferenceServerException) as e:
            c.infer("levels", [tensor], priority=4)
        assert (e.value.status(), e.value.message()) == ("StatusCode.INVALID_ARGUMENT", want)
        assert c.infer("levels", [tensor], priority=3).as_numpy("OUTPUT0").shape == (1, 1)
        tensor = httpclient.InferInput("INPUT0", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.zeros((1, 1), np.int32))
        assert h.infer("levels", [tensor], priority=1, timeout=1_000_000).as_numpy("OUTPUT0").shape == (1, 1)


def shared(folder, *models):
    for name, delay, count, priority in models:
        model(folder, name, delay, group=f'rate_limiter {{ resources {{ name: "R" global: true count: {count} }} priority: {priority} }}')
    return folder


def load(server, seconds, *models):
    """Four clients for each model; the executions of each, and how long its instance was busy."""
    end = time.monotonic() + seconds

    def run(name):
        while time.monotonic() < end:
            assert server.ask(f"/v2/models/{name}/infer", body())[0] == 200
    threads = [threading.Thread(target=run, args=(m,)) for m in models for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    executed = {}
    for m in models:
        infer = counter(server, "compute_infer", m)
        executed[m] = (int(infer["count"]), int(infer["ns"]) / 1e9)
    return executed


@harness.on_time
def test_models_share_a_resource(start, tmp_path):
    """Never both at once, both get on, and priority 3 has a third of the turns of priority 1."""
    repository = shared(tmp_path, ("one", 10, 1, 1), ("three", 10, 1, 3))
    begin = time.monotonic()
    s = start(repositories=[repository], flags=["--rate-limit=execution_count"])
    begin = time.monotonic()
    executed = load(s, 3, "one", "three")
    took = time.monotonic() - begin
    (one, busy1), (three, busy3) = executed["one"], executed["three"]
    assert busy1 + busy3 <= took, f"{busy1} s and {busy3} s of {took} s: both at once"
    assert one + three > 100 and 2.5 < one / three < 3.5, executed
    assert s.stop() == 0


@harness.on_time
def test_without_the_limiter_settings_are_ignored(start, tmp_path):
    s = start(repositories=[shared(tmp_path, ("one", 20, 1, 1), ("three", 20, 1, 3))])
    begin = time.monotonic()
    executed = load(s, 1, "one", "three")
    took = time.monotonic() - begin
    assert sum(busy for _, busy in executed.values()) > 1.3 * took, executed


@harness.on_time
def test_too_little_of_a_resource_refuses_the_load(start, tmp_path):
    """In the original's words; two that fit in side by side run at the same time."""
    repository = shared(tmp_path, ("small", 20, 1, 1), ("other", 20, 1, 1), ("large", 1, 3, 1))
    s = start(repositories=[repository], flags=["--rate-limit=execution_count", "--rate-limit-resource=r:2", "--exit-on-error=false",
                                                "--strict-readiness=false"])
    index = {m["name"]: m for m in json.loads(s.ask("/v2/repository/index", b"")[2])}
    assert index["large"]["state"] == "UNAVAILABLE" and index["small"]["state"] == "READY"
    assert index["large"]["reason"] == ('Invalid argument: Resource count for "R" is limited to 2 which will prevent scheduling of one or '
                                        'more model instances, the minimum required count is 3')
    begin = time.monotonic()
    executed = load(s, 1, "small", "other")
    took = time.monotonic() - begin
    assert sum(busy for _, busy in executed.values()) > 1.3 * took, executed


@harness.on_time
def test_resources_come_and_go_with_models(start, tmp_path):
    """There is as much as the neediest loaded model needs: with it two others run side by side, without it in turn."""
    repository = shared(tmp_path, ("one", 20, 1, 1), ("two", 20, 1, 1), ("large", 1, 2, 1))
    s = start(repositories=[repository], flags=["--rate-limit=execution_count", "--model-control-mode=explicit", "--load-model=one",
                                                "--load-model=two"])

    def together():
        begin = time.monotonic()
        before = {m: int(counter(s, "compute_infer", m)["ns"]) / 1e9 for m in ("one", "two")}
        executed = load(s, 0.8, "one", "two")
        return sum(busy - before[m] for m, (_, busy) in executed.items()) / (time.monotonic() - begin)
    assert together() <= 1
    assert s.ask("/v2/repository/models/large/load", b"{}")[0] == 200
    assert s.ask("/v2/models/large/infer", body())[0] == 200
    assert together() > 1.3
    assert s.ask("/v2/repository/models/large/unload", b"{}")[0] == 200
    harness.wait_for(lambda: s.status("/v2/models/large/ready") != 200, 5, "unloaded")
    assert together() <= 1
    assert s.ask("/v2/repository/models/one/load", b"{}")[0] == 200  # again, beside itself
    assert together() <= 1
    assert s.stop() == 0


def test_a_lost_worker_gives_back(start, tmp_path):
    """The worker dies while a batch has the resource: the other model and, later, its own go on."""
    s = start(repositories=[shared(tmp_path, ("slow", 1500, 1, 1), ("fast", 1, 1, 1))], flags=["--rate-limit=execution_count"])
    calls = Calls(s, "slow").queue(("first", {}))
    other = Calls(s, "fast").queue(("second", {}))
    s_workers = s.workers()
    assert other.pending() == 1 and len(s_workers) == 1
    os.kill(s_workers[0], signal.SIGKILL)
    other.wait()
    calls.wait()
    assert {*calls.answers.values(), *other.answers.values()} == {(200, None, None)}, (calls.answers, other.answers)

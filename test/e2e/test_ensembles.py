"""Ensembles with the public clients: parallel steps, outputs that are not asked for, failures that name their step."""
import concurrent.futures
import json
import time

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import harness

MODEL = """backend: "identity"
max_batch_size: 4
input [ {{ name: "IN" data_type: TYPE_{kind} dims: [ -1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_{kind} dims: [ -1 ] }} ]
instance_group [ {{ count: {count} kind: KIND_CPU }} ]
parameters {{ key: "execute_delay_ms" value {{ string_value: "{delay}" }} }}
"""
JOIN = """backend: "identity"
max_batch_size: 4
input [ { name: "IN0" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "IN1" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT0" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "OUT1" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
QUEUE = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }\n"


def put(repo, name, config):
    (repo / name / "1").mkdir(parents=True)
    (repo / name / "config.pbtxt").write_text(config)


def model(repo, name, delay=0, count=1, extra="", kind="FP32"):
    put(repo, name, MODEL.format(delay=delay, count=count, kind=kind) + extra)


def ensemble(repo, name, outputs, *steps, kind="FP32"):
    """steps are (model, "IN=A IN2=B", "OUT=C"); the ensemble's input is called IN."""
    text = 'platform: "ensemble"\nmax_batch_size: 4\n'
    text += f'input [ {{ name: "IN" data_type: TYPE_{kind} dims: [ -1 ] }} ]\n'
    for out in outputs.split():
        text += f'output [ {{ name: "{out}" data_type: TYPE_{kind} dims: [ -1 ] }} ]\n'
    text += "ensemble_scheduling {\n"
    for step, given, made in steps:
        text += f'  step {{ model_name: "{step}" model_version: -1'
        for field, pairs in (("input_map", given), ("output_map", made)):
            for key, value in (p.split("=") for p in pairs.split()):
                text += f' {field} {{ key: "{key}" value: "{value}" }}'
        text += " }\n"
    put(repo, name, text + "}\n")


@pytest.fixture(scope="module")
def ensembles(built, tmp_path_factory):
    repo = tmp_path_factory.mktemp("ensembles")
    for name, delay, count in (("first", 0, 1), ("second", 0, 1), ("slow", 300, 4), ("slower", 300, 4), ("leaving", 300, 4)):
        model(repo, name, delay, count)
    model(repo, "narrow", 300, 1, QUEUE)
    model(repo, "number", kind="INT32")
    put(repo, "join", JOIN)
    ensemble(repo, "chain", "OUT", ("first", "IN=IN", "OUT=MID"), ("second", "IN=MID", "OUT=OUT"))
    ensemble(repo, "nested", "OUT", ("chain", "IN=IN", "OUT=MID"), ("first", "IN=MID", "OUT=OUT"))
    ensemble(repo, "branches", "OUT OUT2", ("slow", "IN=IN", "OUT=L"), ("slower", "IN=IN", "OUT=R"),
             ("join", "IN0=L IN1=R", "OUT0=OUT OUT1=OUT2"))
    ensemble(repo, "either", "A B", ("first", "IN=IN", "OUT=A"), ("second", "IN=IN", "OUT=B"))
    ensemble(repo, "full", "OUT", ("first", "IN=IN", "OUT=MID"), ("narrow", "IN=MID", "OUT=OUT"))
    ensemble(repo, "used", "OUT", ("leaving", "IN=IN", "OUT=MID"), ("second", "IN=MID", "OUT=OUT"))
    ensemble(repo, "bad_type", "OUT", ("first", "IN=IN", "OUT=MID"), ("number", "IN=MID", "OUT=OUT"))
    ensemble(repo, "bad_flow", "OUT", ("first", "IN=NOBODY", "OUT=OUT"))
    ensemble(repo, "bad_step", "OUT", ("nobody", "IN=IN", "OUT=OUT"))
    ensemble(repo, "circle1", "OUT", ("circle2", "IN=IN", "OUT=OUT"))
    ensemble(repo, "circle2", "OUT", ("circle1", "IN=IN", "OUT=OUT"))
    s = harness.Server(repositories=[repo], ready=False,
                       flags=["--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false", "--strict-readiness=false"])
    harness.wait_for(lambda: s.status("/v2/health/ready") == 200, 30, "ready")
    yield s
    assert s.stop() == 0, "exit status after SIGTERM\n" + s.log()[-3000:]


@pytest.fixture(params=["http", "grpc"])
def ask(ensembles, request):
    """ask(model, array, outputs, **options) over either protocol."""
    client = {"http": httpclient, "grpc": grpcclient}[request.param]
    address = getattr(ensembles, request.param)

    def infer(name, data, outputs=(), **options):
        with client.InferenceServerClient(address) as c:
            given = client.InferInput("IN", list(data.shape), "FP32")
            given.set_data_from_numpy(data)
            wanted = [client.InferRequestedOutput(n) for n in outputs] or None
            return c.infer(name, [given], outputs=wanted, **options)

    return infer


def count(server, name):
    stats = server.get(f"/v2/models/{name}/stats")["model_stats"][0]
    return stats["inference_count"], stats["execution_count"], stats["inference_stats"]["success"]["count"]


def failures(server, name):
    found = {}
    for line in server.metrics_text().splitlines():
        if line.startswith("nv_inference_request_failure{") and f'model="{name}"' in line:
            found[line.split('reason="')[1].split('"')[0]] = int(float(line.rsplit(" ", 1)[1]))
    return found


@pytest.mark.parametrize("name", ["chain", "nested"])
def test_values_pass_through(ask, name):
    """Small and large tensors, several rows."""
    for rows, n in ((1, 3), (4, 5), (2, 200_000)):
        data = np.random.default_rng(n).random((rows, n), np.float32)
        assert np.array_equal(ask(name, data).as_numpy("OUT"), data)


def test_statistics(ensembles, ask):
    """The ensemble counts its request as one execution, and each step its own."""
    before = {n: count(ensembles, n) for n in ("chain", "first", "second")}
    ask("chain", np.zeros((3, 2), np.float32))
    for name, was in before.items():
        assert tuple(a - b for a, b in zip(count(ensembles, name), was)) == (3, 1, 1), name
    stats = ensembles.get("/v2/models/chain/stats")["model_stats"][0]
    assert [b["batch_size"] for b in stats["batch_stats"]].count(3) == 1


@harness.on_time
def test_steps_run_beside_each_other(ask):
    data = np.ones((1, 2), np.float32)
    start = time.monotonic()
    result = ask("branches", data)
    took = time.monotonic() - start
    assert np.array_equal(result.as_numpy("OUT"), data) and np.array_equal(result.as_numpy("OUT2"), data)
    assert 0.3 <= took < 0.55, took


def test_only_what_was_asked_for_runs(ensembles, ask):
    first, second = count(ensembles, "first"), count(ensembles, "second")
    result = ask("either", np.ones((1, 2), np.float32), outputs=["B"])
    assert result.as_numpy("B") is not None and result.as_numpy("A") is None
    assert count(ensembles, "first") == first and count(ensembles, "second") != second


def test_failures_name_the_step(ensembles, ask):
    before = failures(ensembles, "nested").get("BACKEND", 0), failures(ensembles, "first").get("BACKEND", 0)
    with pytest.raises(InferenceServerException) as caught:
        ask("nested", np.ones((1, 2), np.float32), parameters={"fail": "boom"})
    assert "in ensemble 'nested', in ensemble 'chain', boom (step 0, model 'first')" in str(caught.value)
    assert (failures(ensembles, "nested")["BACKEND"], failures(ensembles, "first")["BACKEND"]) == (before[0] + 1, before[1] + 1)


@harness.on_time
def test_a_full_step_refuses_at_once(ensembles, ask):
    """One runs, one waits, the others hear at once that the step's queue is full."""
    before = failures(ensembles, "full").get("REJECTED", 0)

    def one(_):
        start = time.monotonic()
        try:
            ask("full", np.ones((1, 2), np.float32))
            return "answered", time.monotonic() - start
        except InferenceServerException as e:
            return str(e), time.monotonic() - start

    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(one, range(6)))
    refused = [took for text, took in answers if "in ensemble 'full', " in text and "Exceeds maximum queue size (step 1, model 'narrow')" in text]
    assert len(refused) >= 3 and len(refused) + [text for text, _ in answers].count("answered") == 6, answers
    assert max(refused) < 0.3 and max(took for _, took in answers) < 3, answers
    assert failures(ensembles, "full")["REJECTED"] - before == len(refused)


def test_a_caller_that_leaves_takes_its_steps_with_it(ensembles):
    with grpcclient.InferenceServerClient(ensembles.grpc) as c:
        given = grpcclient.InferInput("IN", [1, 2], "FP32")
        given.set_data_from_numpy(np.ones((1, 2), np.float32))
        before = {n: failures(ensembles, n).get("CANCELED", 0) for n in ("branches", "slow", "slower")}
        with pytest.raises(InferenceServerException, match="(?i)deadline.exceeded"):
            c.infer("branches", [given], client_timeout=0.1)
    for name, was in before.items():
        harness.wait_for(lambda: failures(ensembles, name).get("CANCELED", 0) == was + 1, 5, f"{name} counts the cancelled request")


def test_a_step_unloads_while_it_is_used(ensembles, ask):
    """What runs is answered; afterwards the ensemble is not ready, until its step is back."""
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(ask, "used", np.ones((1, 2), np.float32))
        time.sleep(0.1)
        assert ensembles.ask("/v2/repository/models/leaving/unload", b"{}")[0] == 200
        assert waiting.result(10).as_numpy("OUT").sum() == 2
    harness.wait_for(lambda: ensembles.status("/v2/models/used/ready") == 400, 5, "the ensemble is not ready without its step")
    with pytest.raises(InferenceServerException):
        ask("used", np.ones((1, 2), np.float32))
    assert ensembles.ask("/v2/repository/models/leaving/load", b"{}")[0] == 200
    harness.wait_for(lambda: ensembles.status("/v2/models/used/ready") == 200, 5, "the ensemble is ready with its step")
    assert ask("used", np.ones((1, 2), np.float32)).as_numpy("OUT").sum() == 2


def test_what_is_wrong_stands_in_the_index(ensembles):
    status, _, body = ensembles.ask("/v2/repository/index", b"{}")
    reasons = {m["name"]: m.get("reason", "") for m in json.loads(body)}
    for name, want in {
        "chain": "",
        "bad_type": "in ensemble bad_type, ensemble tensor MID: inconsistent data type: TYPE_FP32 is inferred from model first while "
                    "TYPE_INT32 is inferred from model number",
        "bad_flow": "ensemble input 'IN' for ensemble bad_flow' is not used",
        "bad_step": "ensemble bad_step contains models that are not available or ambiguous: nobody",
        "circle1": "circular dependency between ensembles: circle1 -> ... -> circle2 -> circle1",
    }.items():
        assert want in reasons[name] and (want or not reasons[name]), f"{name}: {reasons[name]}"
    config = ensembles.get("/v2/models/chain/config")
    assert config["platform"] == "ensemble" and config["model_transaction_policy"] == {"decoupled": False}

"""Sequences: their slots, their controls, their state, and what ends them."""
import concurrent.futures
import http.client as http_client
import json
import os
import random
import signal
import threading
import time

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

import harness
import sequence_models


@pytest.fixture(scope="module")
def sequences(built, tmp_path_factory):
    s = harness.Server([sequence_models.repository(tmp_path_factory.mktemp("sequences"))])
    yield s
    assert s.stop() == 0, s.log()[-3000:]


@pytest.fixture(params=["http", "grpc"])
def client(request, sequences):
    with opened(sequences, request.param) as c:
        yield c


def opened(server, protocol="grpc"):
    if protocol == "http":
        return httpclient.InferenceServerClient(server.http, concurrency=16)
    return grpcclient.InferenceServerClient(server.grpc)


def ask(client, model, value, sequence, start=False, end=False, output="SUM", name="VALUE", kind="INT32", **kwargs):
    module = httpclient if isinstance(client, httpclient.InferenceServerClient) else grpcclient
    data = np.array(value, np.object_ if kind == "BYTES" else np.int32).reshape(1, -1)
    tensor = module.InferInput(name, list(data.shape), kind)
    tensor.set_data_from_numpy(data)
    result = client.infer(model, [tensor], sequence_id=sequence, sequence_start=start, sequence_end=end, **kwargs)
    return result.as_numpy(output)[0].tolist() if output else result


def refused(text, *args, **kwargs):
    with pytest.raises(InferenceServerException) as e:
        ask(*args, **kwargs)
    assert text in str(e.value), e.value


def statistics(server, model):
    return server.get(f"/v2/models/{model}/stats")["model_stats"][0]


@pytest.mark.parametrize("model", ["direct", "oldest", "ordered"])
def test_two_sequences_of_the_example(client, model):
    """What the sequence examples of tritonclient do: two sequences with interleaved steps, one with a string for an id."""
    values = [11, 7, 5, 3, 2, 0, 1]
    ids = (random.randrange(1, 1 << 40), f"named {random.random()}")
    sums = {i: [] for i in ids}
    for k, v in enumerate([0] + values):
        for sequence, sign in zip(ids, (1, -1)):
            sums[sequence] += ask(client, model, sign * v, sequence, start=k == 0, end=k == len(values))
    want = np.cumsum([0] + values).tolist()
    assert sums[ids[0]] == want and sums[ids[1]] == [-v for v in want]


def test_refusals(client):
    must = "must specify the START flag on the first request of the sequence"
    refused("inference request to model 'direct' must specify a non-zero or non-empty correlation ID", client, "direct", 1, 0)
    refused(f"inference request for sequence 77 to model 'direct' {must}", client, "direct", 1, 77)
    refused(f"inference request for sequence abc to model 'direct' {must}", client, "direct", 1, "abc")
    assert ask(client, "direct", 1, 77, start=True, end=True) == [1]
    refused(f"inference request for sequence 77 to model 'direct' {must}", client, "direct", 1, 77)
    module = httpclient if isinstance(client, httpclient.InferenceServerClient) else grpcclient
    two = module.InferInput("VALUE", [2, 1], "INT32")
    two.set_data_from_numpy(np.ones((2, 1), np.int32))
    with pytest.raises(InferenceServerException, match="inference request to model 'direct' must specify batch-size 1 due to requirements of sequence batcher"):
        client.infer("direct", [two], sequence_id=78, sequence_start=True)


def test_a_start_begins_anew(client):
    assert ask(client, "direct", 5, 6, start=True) == [5]
    assert ask(client, "direct", 5, 6) == [10]
    assert ask(client, "direct", 2, 6, start=True) == [2]
    assert ask(client, "direct", 2, 6, end=True) == [4]


@harness.on_time
def test_idle_sequences_end(client):
    assert ask(client, "direct_idle", 1, 1, start=True) == [1]
    time.sleep(0.15)
    assert ask(client, "direct_idle", 1, 1) == [2]
    time.sleep(0.5)
    refused("must specify the START flag", client, "direct_idle", 1, 1)


@harness.on_time
def test_the_backlog_waits_for_a_slot(client):
    for s in (1, 2):
        ask(client, "direct_idle", s, s, start=True)
    begin = time.monotonic()
    assert ask(client, "direct_idle", 3, 3, start=True, end=True) == [3]  # once one of the others was idle for too long
    assert 0.2 < time.monotonic() - begin < 2
    for s in (1, 2):
        ask(client, "direct_idle", s, s + 10, start=True)
    refused("timeout of the corresponding sequence has been expired", client, "direct_idle", 1, 4, start=True, timeout=50_000)


@harness.on_time
def test_a_batch_waits_for_its_slots(sequences):
    with opened(sequences) as one, opened(sequences) as two:
        begin = time.monotonic()
        ask(one, "direct_wait", 1, 1, start=True)
        assert time.monotonic() - begin > 0.25  # one of two slots has a request
        first = statistics(sequences, "direct_wait")
        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            answers = [pool.submit(ask, one, "direct_wait", 1, 1), pool.submit(ask, two, "direct_wait", 1, 2, True)]
            assert [a.result() for a in answers] == [[2], [1]]
        assert time.monotonic() - begin < 0.25
        after = statistics(sequences, "direct_wait")
    assert (after["execution_count"] - first["execution_count"], after["inference_count"] - first["inference_count"]) == (1, 2)


@pytest.mark.parametrize("kind", ["uint64", "int64", "uint32", "int32", "string"])
def test_controls(client, kind):
    model = "controls_" + kind
    steps = [ask(client, model, v, 7, start=v == 0, end=v == 2, output=None) for v in range(3)]
    tell = [tuple(s.as_numpy(n + "_OUT")[0][0] for n in ("START", "END", "READY", "CORRID", "VALUE")) for s in steps]
    corrid = b"7" if kind == "string" else 7
    assert tell == [(1, False, 2.5, corrid, 0), (0, False, 2.5, corrid, 1), (0, True, 2.5, corrid, 2)]
    if kind == "string":
        assert ask(client, model, 0, "a name", True, True, output="CORRID_OUT") == [b"a name"]
    else:
        refused("takes no string", client, model, 0, "a name", start=True)
    big = (1 << (62 if isinstance(client, grpcclient.InferenceServerClient) else 63)) + 5
    if kind in ("uint32", "int32"):
        refused("has 32 bits", client, model, 0, big, start=True)
    elif not isinstance(client, grpcclient.InferenceServerClient):
        got = ask(client, model, 0, big, True, True, output="CORRID_OUT")
        assert got == [{"uint64": big, "int64": big - (1 << 64), "string": str(big).encode()}[kind]]


def test_null_requests_fill_empty_slots(sequences):
    """The second slot's request goes with a null request in the first one, which counts in no statistics."""
    before = statistics(sequences, "controls_uint64")
    with opened(sequences) as c:
        for s in (1, 2):
            ask(c, "controls_uint64", 0, s, start=True, output="VALUE_OUT")
        assert ask(c, "controls_uint64", 9, 2, output="VALUE_OUT") == [9]
        for s in (1, 2):
            ask(c, "controls_uint64", 0, s, end=True, output="VALUE_OUT")
    after = statistics(sequences, "controls_uint64")
    assert after["inference_count"] - before["inference_count"] == 5
    assert after["execution_count"] - before["execution_count"] == 5


def test_initial_state_from_a_file(client):
    assert ask(client, "seeded", 1, 3, start=True) == [1001]
    assert ask(client, "seeded", 1, 3) == [1002]
    assert ask(client, "seeded", 1, 3, start=True, end=True) == [1001]


@pytest.mark.parametrize("model,kind,values", [("collect_int32", "INT32", list(range(40))), ("collect_string", "BYTES", [b"a", b"", b"long" * 99])])
def test_states_grow(client, model, kind, values):
    """The state is as long as what came; sequences of different lengths don't disturb one another."""
    ids = (21, 22, 23)
    have = {i: [] for i in ids}
    for k, v in enumerate(values):
        for i in ids:
            part = [v] * (i - 20)
            have[i] += part
            assert ask(client, model, part, i, start=k == 0, end=k == len(values) - 1, output="ALL", kind=kind) == have[i]


def test_states_are_not_the_clients(client):
    r = ask(client, "direct", 1, 5, start=True, end=True, output=None)
    assert r.as_numpy("STATE_OUT") is None
    refused("unexpected inference output 'STATE_OUT' for model 'direct'", client, "direct", 1, 5, start=True,
            outputs=[(httpclient if isinstance(client, httpclient.InferenceServerClient) else grpcclient).InferRequestedOutput("STATE_OUT")])
    only = (httpclient if isinstance(client, httpclient.InferenceServerClient) else grpcclient).InferRequestedOutput("SUM")
    assert ask(client, "direct", 1, 5, start=True, outputs=[only]) == [1]
    assert ask(client, "direct", 1, 5, end=True, outputs=[only]) == [2]  # though only SUM was asked for


def test_iterative_sequences(client):
    begin = statistics_of(client, "iterative")
    assert ask(client, "iterative", 4, 0, output="OUTPUT0", name="INPUT0", parameters={"iterations": 5}) == [4]
    assert statistics_of(client, "iterative") - begin == 5
    assert ask(client, "iterative", 4, 9, start=True, output="OUTPUT0", name="INPUT0", parameters={"iterations": 2}) == [4]
    assert ask(client, "iterative", 4, 9, start=True, output="OUTPUT0", name="INPUT0") == [4]
    refused("must specify the START flag", client, "iterative", 4, 10, name="INPUT0")


def statistics_of(client, model):
    stats = client.get_inference_statistics(model)
    if isinstance(client, httpclient.InferenceServerClient):
        return int(stats["model_stats"][0]["execution_count"])
    return stats.model_stats[0].execution_count


def run_sequences(server, model, sequences, together, callers):
    """Each caller takes so many sequences together and walks them step by step. A plan is (id, values, abandoned)."""
    wrong = []

    def run(k):
        with opened(server, "grpc" if k % 2 else "http") as c:
            mine = sequences[k::callers]
            for at in range(0, len(mine), together):
                some = mine[at:at + together]
                for step in range(len(some[0][1])):
                    for s, values, abandoned in some:
                        last = step == len(values) - 1
                        if last and abandoned:
                            continue
                        got = ask(c, model, values[step], s, start=step == 0, end=last)
                        if got != [sum(values[:step + 1])]:
                            wrong.append((s, step, got, values))

    with concurrent.futures.ThreadPoolExecutor(callers) as pool:
        for done in [pool.submit(run, k) for k in range(callers)]:
            done.result()
    assert not wrong, wrong[:5]


def plans(count, steps, abandoned):
    rng = random.Random(count)
    return [(s, [rng.randrange(-99, 99) for _ in range(steps)], rng.random() < abandoned) for s in range(1, count + 1)]


def test_a_thousand_interleaved_sequences(sequences):
    """All of them live at the same time, over both protocols, and a tenth is abandoned in the middle."""
    run_sequences(sequences, "thousand", plans(1000, 4, 0.1), 50, 20)
    stats = statistics(sequences, "thousand")
    assert stats["inference_count"] > stats["execution_count"]  # they shared batches


def test_sequences_queue_for_slots(sequences):
    """More sequences than slots, some abandoned: the backlog lets each in when a slot is free."""
    run_sequences(sequences, "oldest", plans(240, 4, 0.05), 1, 12)
    run_sequences(sequences, "direct_idle", plans(60, 4, 0.1), 1, 6)


def test_state_outlives_the_worker(start, tmp_path):
    """Implicit state is the gateway's: a sequence goes on where it was. A model that keeps its own state begins anew."""
    server = start([sequence_models.repository(tmp_path)])
    with opened(server) as c:
        assert ask(c, "direct", 5, 1, start=True) == [5]
        assert ask(c, "plain", 5, 1, start=True, output="OUTPUT0", name="INPUT0") == [5]
        (worker,) = server.workers()
        os.kill(worker, signal.SIGKILL)
        assert ask(c, "direct", 6, 1) == [11]  # waits for the next worker
        assert ask(c, "direct", 1, 1, end=True) == [12]
        refused("its state was lost with its worker", c, "plain", 5, 1, output="OUTPUT0", name="INPUT0")
        assert ask(c, "plain", 5, 1, start=True, output="OUTPUT0", name="INPUT0") == [5]


def test_workers_end_under_sequences(start, tmp_path):
    """Workers are killed while sequences run: what an ended worker had is executed once more, and every sum is right."""
    server = start([sequence_models.repository(tmp_path)])
    done = threading.Event()
    killed = []

    def kill():
        while not done.wait(0.7):
            for worker in server.workers():
                if len(killed) < 2:
                    os.kill(worker, signal.SIGKILL)
                    killed.append(worker)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for _ in range(10):  # one is soon over on a fast machine
            run_sequences(server, "thousand", plans(1200, 4, 0.0), 50, 8)
            if len(killed) == 2:
                break
    finally:
        done.set()
        killer.join()
    assert len(killed) == 2


LOST = ("503", "sequence_lost")


def walk(server, protocol, ids, done, failures):
    """Sequences of a model that keeps its state in the worker, step by step. After a failure the client goes on twice without
    START, as one does who knows nothing of it, and then begins anew. Failures are (status, reason)."""
    def http(c, sequence, start):
        body = {"parameters": {"sequence_id": sequence, "sequence_start": start},
                "inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [5]}]}
        c.request("POST", "/v2/models/plain/infer", json.dumps(body), {"Content-Type": "application/json"})
        answer = c.getresponse()
        answer.read()
        return None if answer.status == 200 else (str(answer.status), answer.headers.get("X-Sluice-Reason"))

    def grpc_(c, sequence, start):
        tensor = grpcclient.InferInput("INPUT0", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.array([[5]], np.int32))
        try:
            c.infer("plain", [tensor], sequence_id=sequence, sequence_start=start)
        except InferenceServerException as e:
            text = e.message()
            return ("503" if "UNAVAILABLE" in e.status() else e.status(),
                    "sequence_lost" if "was lost with its worker" in text else text)
        return None

    if protocol == "http":
        host, port = server.http.split(":")
        c, step = http_client.HTTPConnection(host, int(port), timeout=60), http
    else:
        c, step = grpcclient.InferenceServerClient(server.grpc), grpc_
    left = dict.fromkeys(ids, 3)  # steps without START until it begins anew; None: it goes on
    while not done.is_set():
        for i in ids:
            start = left[i] is not None and left[i] > 1
            failed = step(c, i, start)
            if failed is None:
                left[i] = None
                continue
            failures.append(failed)
            left[i] = 0 if left[i] is None else left[i] + 1
    c.close()


def test_lost_sequences_say_so(start, tmp_path):
    """Whenever a worker ends, each request of a sequence whose state it had gets 503 with reason sequence_lost until it begins
    anew: those that were executed, those that waited, and those that come later."""
    server = start([sequence_models.repository(tmp_path)])
    done, failures = threading.Event(), []
    with concurrent.futures.ThreadPoolExecutor(4) as pool:  # as many sequences as the instance has slots
        walks = [pool.submit(walk, server, p, [k], done, failures) for k, p in enumerate(["http", "grpc"] * 2, 1)]
        for _ in range(4):
            time.sleep(1)
            for worker in server.workers():
                os.kill(worker, signal.SIGKILL)
        time.sleep(3)
        done.set()
        for w in walks:
            w.result(60)
    counts = {f: failures.count(f) for f in set(failures)}
    print(counts)
    assert set(counts) == {LOST} and counts[LOST] >= 4 * 4, counts
    with opened(server) as c:
        refused("must specify the START flag", c, "plain", 5, 999, output="OUTPUT0", name="INPUT0")

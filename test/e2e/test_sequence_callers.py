"""Whose sequences are: tenants with equal correlation IDs, callers who hold all slots, and limits on sequences."""
import hashlib
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
import sequence_models
from test_limits import metric

CALLERS = {"red-1": "red", "red-2": "red", "blue-1": "blue", "alone": ""}  # principal: tenant
MUST = "must specify the START flag"
ENSEMBLE = """platform: "ensemble"
max_batch_size: 4
input { name: "IN" data_type: TYPE_INT32 dims: [1] }
output { name: "OUT" data_type: TYPE_INT32 dims: [1] }
ensemble_scheduling { step { model_name: "direct" model_version: -1
  input_map { key: "VALUE" value: "IN" } output_map { key: "SUM" value: "OUT" } } }
"""


@pytest.fixture
def serve(start, tmp_path):
    """A server of the models with sequences that knows CALLERS by their keys; rules are those of a limits file."""

    def begin(*flags, rules=""):
        lines = [f"{who} sha256:{hashlib.sha256(who.encode()).hexdigest()}" + (f" tenant={t}" if t else "") for who, t in CALLERS.items()]
        (tmp_path / "keys").write_text("\n".join(lines) + "\n")
        repo = sequence_models.repository(tmp_path / "models")
        sequence_models.write(repo, "whole", ENSEMBLE, {})
        sequence_models.write(repo, "direct_idle_many", sequence_models.config(
            "direct {}", sequence_models.SUM, f"state {{ {sequence_models.STATE} }} max_sequence_idle_microseconds: 300000", 8),
            {"1/model.onnx": sequence_models.accumulator()})
        if rules:
            (tmp_path / "limits.yaml").write_text(rules)
            flags = (*flags, f"--limits-file={tmp_path}/limits.yaml")
        return start([repo], flags=[f"--api-keys={tmp_path}/keys", *flags])

    return begin


def step(server, who, model, value, sequence, start=False, end=False, protocol="http", **kwargs):
    """The sum, or the error's (status, text)"""
    module = {"http": httpclient, "grpc": grpcclient}[protocol]
    tensor_in, tensor_out = {"whole": ("IN", "OUT"), "plain": ("INPUT0", "OUTPUT0")}.get(model, ("VALUE", "SUM"))
    tensor = module.InferInput(tensor_in, [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[value]], np.int32))
    headers = {"x-api-key": who} if who else {}
    with module.InferenceServerClient(getattr(server, protocol)) as c:
        try:
            result = c.infer(model, [tensor], sequence_id=sequence, sequence_start=start, sequence_end=end, headers=headers, **kwargs)
        except InferenceServerException as e:
            return e.status(), e.message()
        return int(result.as_numpy(tensor_out)[0][0])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("model", ["direct", "oldest", "whole"])
@pytest.mark.parametrize("sequence", [7, "a name"])
def test_tenants_have_their_own(serve, protocol, model, sequence):
    """One that counts from 1 as others do goes on where it was, whatever they begin, end, or try to continue."""
    s = serve()

    def ask(who, value, **kwargs):
        return step(s, who, model, value, sequence, protocol=protocol, **kwargs)

    assert ask("red-1", 1, start=True) == 1
    for stranger in ("blue-1", "alone", ""):
        assert MUST in ask(stranger, 50)[1], "not continued"
        assert MUST in ask(stranger, 50, end=True)[1], "not ended"
    assert ask("blue-1", 100, start=True) == 100, "begun beside it"
    assert ask("alone", 1000, start=True) == 1000
    assert ask("", 1000) == 2000, "callers without a tenant share theirs, as all do without keys"
    assert ask("red-1", 2) == 3
    assert ask("blue-1", 100, end=True) == 200
    assert ask("red-2", 3) == 6, "of the same tenant"
    assert MUST in ask("blue-1", 1)[1]
    assert ask("red-1", 4, end=True) == 10
    assert ask("", 0, end=True) == 2000


@pytest.mark.parametrize("scope,shared", [("caller", False), ("none", True)])
def test_scopes(serve, scope, shared):
    s = serve(f"--sequence-scope={scope}")
    assert step(s, "red-1", "direct", 1, 7, start=True) == 1
    for other in ("red-2", "blue-1", ""):
        got = step(s, other, "direct", 10, 7, protocol="grpc")
        assert got > 10 if shared else MUST in got[1], (other, got)


def test_one_stream_has_its_callers_sequences(serve):
    s = serve()
    assert step(s, "red-1", "direct", 1, 7, start=True) == 1
    answers = queue.Queue()
    with grpcclient.InferenceServerClient(s.grpc) as c:
        c.start_stream(lambda result, error: answers.put(error or result.as_numpy("SUM")[0][0]), headers={"x-api-key": "blue-1"})
        for k, (start, end) in enumerate([(False, False), (True, False), (False, True)]):
            tensor = grpcclient.InferInput("VALUE", [1, 1], "INT32")
            tensor.set_data_from_numpy(np.array([[5 + k]], np.int32))
            c.async_stream_infer("direct", [tensor], sequence_id=7, sequence_start=start, sequence_end=end)
        got = [answers.get(timeout=20) for _ in range(3)]
        c.stop_stream()
    assert MUST in str(got[0]) and got[1:] == [6, 13]
    assert step(s, "red-1", "direct", 2, 7, end=True) == 3


class Holder:
    """A caller who keeps sequences of a model alive until it is left."""

    def __init__(self, server, who, model, ids):
        self.args, self.ids, self.done = (server, who, model), ids, threading.Event()
        self.begun = [step(*self.args, 0, i, start=True) for i in ids]
        self.thread = threading.Thread(target=self.hold)

    def hold(self):
        while not self.done.wait(0.05):
            for i in self.ids:
                step(*self.args, 0, i)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()


def raw(server, who, model, sequence):
    """(status, reason) of a START over HTTP"""
    body = {"inputs": [{"name": "VALUE", "shape": [1, 1], "datatype": "INT32", "data": [1]}],
            "parameters": {"sequence_id": sequence, "sequence_start": True}}
    status, headers, _ = server.ask(f"/v2/models/{model}/infer", json.dumps(body).encode(), {"x-api-key": who})
    return status, headers["X-Sluice-Reason"]


def test_a_start_does_not_wait_without_end(serve):
    """Who holds both slots of a model keeps another out no longer than the bound, and the other is told why."""
    s = serve("--sequence-slot-timeout-secs=1")
    with Holder(s, "blue-1", "direct_idle", [1, 2]) as h:
        assert h.begun == [0, 0]
        began = time.monotonic()
        assert raw(s, "red-1", "direct_idle", 9) == (503, "sequence_slots")
        assert 0.9 < time.monotonic() - began < 5
        got = step(s, "red-1", "direct_idle", 1, 9, start=True, protocol="grpc")
        assert got == ("StatusCode.UNAVAILABLE", "sequence 9 of model 'direct_idle' has waited 1s for one of 2 slots")
    assert metric(s, "sluice_refusals_total", model="direct_idle", reason="sequence_slots") == 2
    assert step(s, "red-1", "direct_idle", 3, 9, start=True, end=True) == 3


def test_slots_go_round(serve):
    """Who holds all slots and asks for more gets none before the others who wait, however many it asks for first."""
    s = serve()
    got = []

    def ask(who, sequence):
        answer = step(s, who, "plain", 1, sequence, start=True, end=True, parameters={"delay_ms": 150})
        got.append((who, answer))

    for i in range(1, 5):
        assert step(s, "blue-1", "plain", 0, i, start=True) == 0
    threads = [threading.Thread(target=ask, args=("blue-1", 10 + k)) for k in range(6)]
    threads += [threading.Thread(target=ask, args=("red-1", 10 + k)) for k in range(2)]
    for n, t in enumerate(threads, 1):
        t.start()
        harness.wait_for(lambda n=n: pending(s, "plain") == n, 10, "its place in line")
    assert step(s, "blue-1", "plain", 0, 1, end=True) == 0
    for t in threads:
        t.join()
    assert got == [("red-1", 1)] * 2 + [("blue-1", 1)] * 6


def pending(server, model):
    return metric(server, "nv_inference_pending_request_count", model=model)


LIMITED = "rules: [{name: few, each: principal, principals: authenticated, sequences: 3}]"


@pytest.mark.parametrize("model", ["direct", "oldest", "whole"])
def test_a_caller_has_so_many_sequences(serve, model):
    """The fourth is refused while three live, whatever their last calls were; each end makes room for one."""
    s = serve(rules=LIMITED)
    with Holder(s, "blue-1", model, range(1, 4)) as h:
        assert h.begun == [0] * 3
        for protocol, code in (("http", "429"), ("grpc", "StatusCode.RESOURCE_EXHAUSTED")):
            got = step(s, "blue-1", model, 1, 5, start=True, protocol=protocol)
            assert got[0] == code and "limit 'few' of principal 'blue-1': sequences 3; try again in" in got[1], got
        assert step(s, "blue-1", model, 0, 3, start=True) == 0, "which began anew"
        assert step(s, "red-1", model, 1, 5, start=True, end=True) == 1, "another caller"
        assert step(s, "", model, 1, 5, start=True, end=True) == 1, "whom the rule does not name"
    assert raw(s, "blue-1", "direct" if model == "whole" else model, 5) == (429, "sequences")
    assert step(s, "blue-1", model, 0, 3, end=True) == 0
    assert step(s, "blue-1", model, 5, 5, start=True) == 5
    assert step(s, "blue-1", model, 5, 6, start=True)[0] == "429"
    assert metric(s, "sluice_limit_refusals_total", rule="few", limit="sequences", reason="sequences") >= 4


def test_nothing_stays_counted(serve):
    """What ended by itself, with its worker, or with its model makes room."""
    s = serve("--model-control-mode=explicit", "--load-model=*", "--allow-remote-control=true", rules=LIMITED)

    def three(model):
        harness.wait_for(lambda: step(s, "blue-1", model, 0, 1, start=True) == 0, 10, "room for the first")
        got = [step(s, "blue-1", model, 0, i, start=True) for i in range(2, 5)]
        assert got[:2] == [0] * 2 and got[2][0] == "429", got

    three("direct_idle_many")
    time.sleep(0.6)  # idle for too long
    three("plain")
    for worker in s.workers():
        os.kill(worker, signal.SIGKILL)
    three("plain")
    assert s.ask("/v2/repository/models/plain/unload", b"{}")[0] == 200
    three("direct")
    assert s.ask("/v2/repository/models/direct/unload", b"{}")[0] == 200
    three("oldest")

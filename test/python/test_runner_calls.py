"""Calls of a model: of other models, of model control, of metrics."""
import json

import numpy as np
import pytest
from model_sources import ONE, TWO, execute, model
from sluice_runner import layout as l

KEY = 1 << 16
REQUEST = """        request = pb_utils.InferenceRequest(model_name="other", requested_output_names=["O"],
                                            inputs=[pb_utils.Tensor("I", np.arange(4, dtype=np.int32))])
"""


def run(peer, *requests):
    """Sends a batch whose answer comes after the calls that it makes."""
    return peer.execute(*(requests or (ONE,)))


def result(peer):
    answers = peer.result(l.RESULT)[2]
    assert isinstance(answers, list), answers
    return answers[0].outputs["OUT"].tolist()


def test_exec(start):
    peer = start(execute("""        request = pb_utils.InferenceRequest(
            request_id="r", correlation_id=5, inputs=[pb_utils.Tensor("I", np.array(["ä", b"x"], object)), requests[0].inputs()[0]],
            requested_output_names=["P", "O"], model_name="other", model_version=3, flags=3, timeout=7, parameters={"a": 1, "b": "c", "d": True})
        response = request.exec()
        assert not response.has_error() and response.error() is None and json.loads(response.parameters()) == {"q": 2}
        assert [t.name() for t in response.output_tensors()] == ["O"]
        return [out(0, pb_utils.get_output_tensor_by_name(response, "O").as_numpy() * 2)]
"""))
    run(peer)
    call = peer.call()
    assert call[1:9] == (KEY, "other", 3, 5, 7, 3, "r", '{"a": 1, "b": "c", "d": true}')
    assert call.outputs == ["O", "P"] and call.inputs["I"].tolist() == ["ä".encode(), b"x"] and call.inputs["IN"].tolist() == [0, 1, 2]
    peer.answer_call(call, {"O": np.arange(3)}, parameters='{"q": 2}')
    assert result(peer) == [0, 2, 4]
    peer.finalize()
    assert len(peer.given) == 1  # the answer's memory, when its tensor was gone


def test_exec_fails(start):
    peer = start(execute(REQUEST + """        response = request.exec()
        assert response.has_error() and response.output_tensors() == []
        return [out(0, np.array([response.error().message(), response.error().code().name], object))]
"""))
    for code, name in ((13, "INTERNAL"), (5, "NOT_FOUND"), (14, "UNAVAILABLE"), (8, "UNAVAILABLE"), (3, "INVALID_ARG")):
        run(peer)
        peer.answer_call(peer.call(), code=code, message="not ready")
        assert result(peer) == [b"not ready", name.encode()]


def test_request_is_executed_again(start):
    peer = start(execute(REQUEST + "        return [out(0, [request.exec().output_tensors()[0].as_numpy()[0] for _ in range(3)])]\n"))
    run(peer)
    for i in range(3):
        peer.answer_call(peer.call(), {"O": np.array([i])})
    assert result(peer) == [0, 1, 2]


def test_answers_in_blocks_outlive_their_response(start):
    """Large answers are views on memory that is given back when no array is left."""
    peer = start(execute(REQUEST + """        self.kept = getattr(self, "kept", [])
        self.kept.append(request.exec().output_tensors()[0].as_numpy())
        if len(self.kept) == 3:
            sums = [float(a.sum()) for a in self.kept]
            self.kept.clear()
            return [out(0, sums)]
        return [out(0, [0.0])]
"""))
    for i in range(3):
        run(peer)
        peer.answer_call(peer.call(), {"O": np.full(50000, i, np.float64)})
        assert result(peer) == ([0.0] if i < 2 else [0.0, 50000.0, 100000.0])
        assert i == 2 or not peer.given
    peer.finalize()
    assert len(peer.given) == 3


def test_not_in_initialize(start):
    peer = start(model("""    def initialize(self, args):
        try:
            pb_utils.InferenceRequest(model_name="o", inputs=[], requested_output_names=[]).exec()
        except pb_utils.TritonModelException as e:
            print(e)
    def execute(self, requests): pass
    finalize = lambda self: self.initialize(0)
"""))
    peer.finalize()
    peer.close()
    assert peer.output["stdout"].decode() == "BLS is only supported during the 'execute' function.\n" * 2


PARENT = """        for r in reversed(requests):
            %s
            pb_utils.InferenceRequest(model_name="o", inputs=%s, requested_output_names=[]%s).exec()
        return [out(0, [1.0])] * len(requests)
"""


@pytest.mark.parametrize("before, inputs, more", [
    ("r.inputs()", "[]", ""), ("pass", "r.inputs()", ""), ("requests[0].inputs()", "[]", ", trace=r.trace()")])
def test_parent(start, before, inputs, more):
    """A call serves the request whose trace it has, whose inputs it passes on, or whose inputs were looked at last."""
    peer = start(execute(PARENT % (before, inputs, more)))
    run(peer, *TWO)
    for key in (KEY | 1, KEY):
        call = peer.call()
        assert call.parent == key
        peer.answer_call(call, {})
    assert result(peer) == [1.0]


def test_no_parent(start):
    """A thread that outlives its batch calls for nobody."""
    peer = start(execute("""        r = pb_utils.InferenceRequest(model_name="o", inputs=[], requested_output_names=[])
        go = self.go = threading.Event()
        threading.Thread(target=lambda: (go.wait(), r.exec())).start()
        return [out(0, [1.0])]
    def is_ready(self):
        self.go.set()
        return True
"""))
    run(peer)
    assert result(peer) == [1.0]
    peer.ask_ready(1)
    call = peer.call()
    assert call.parent == 0
    peer.answer_call(call, {})
    peer.readiness.get(timeout=60)
    peer.finalize()


def test_threads(start):
    """Threads that wait for one another's answers hand them on; answers come in another order than calls."""
    peer = start(execute("""        def ask(i):
            r = pb_utils.InferenceRequest(model_name="o", inputs=[pb_utils.Tensor("I", np.array([i]))], requested_output_names=[])
            for _ in range(20):
                got = r.exec().output_tensors()[0].as_numpy()
                assert got[0] == 2 * i, (got, i)
            done.append(i)
        done = []
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
        for t in threads: t.start()
        ask(8)
        for t in threads: t.join()
        return [out(0, np.array(sorted(done)))]
"""))
    run(peer)
    waiting, left = [], {i: 20 for i in range(9)}
    while left:
        waiting.append(peer.call())
        if len(waiting) == min(5, len(left)):
            for call in reversed(waiting):
                i = int(call.inputs["I"][0])
                left[i] -= 1
                if not left[i]:
                    del left[i]
                peer.answer_call(call, {"O": call.inputs["I"] * 2})
            waiting.clear()
    assert result(peer) == list(range(9))
    peer.finalize()


STREAM = REQUEST + """        it = request.exec(decoupled=True)
        got = [[t.as_numpy().tolist() for t in r.output_tensors()] for r in it]
        again = [[t.as_numpy().tolist() for t in r.output_tensors()] for r in it]
        assert got == again, (got, again)
        return [out(0, np.array([json.dumps(got)], object))]
"""


@pytest.mark.parametrize("bare", [True, False])
def test_stream(start, bare):
    """Ends with an empty response where the model sent its final flag alone; may be iterated again."""
    peer = start(execute(STREAM))
    run(peer)
    call = peer.call()
    assert call.flags == 4
    for i in range(12):
        peer.answer_call(call, {"O": np.full(2, i)}, final=not bare and i == 11)
    if bare:
        peer.answer_call(call)
    got = json.loads(peer.result(l.RESULT)[2][0].outputs["OUT"][0])
    assert got == [[[i, i]] for i in range(12)] + [[]] * bare
    assert len(peer.given) == 12  # each answer is given back when it was taken, though the iterator keeps it


def test_stream_is_taken(start):
    """Answers without segments are taken by TAKEN."""
    peer = start(execute(STREAM))
    run(peer)
    call = peer.call()
    for i in range(3):
        peer.answer_call(call, {}, final=i == 2)
    assert json.loads(peer.result(l.RESULT)[2][0].outputs["OUT"][0]) == [[]] * 3
    assert peer.taken == [call.id] * 3


def test_stream_cancelled(start):
    peer = start(execute(REQUEST + """        it = request.exec(decoupled=True)
        next(it)
        it.cancel()
        n = sum(1 for _ in it)
        next(request.exec(decoupled=True))  # and one that is dropped
        return [out(0, [n])]
"""))
    run(peer)
    call = peer.call()
    peer.answer_call(call, {"O": np.ones(1)}, final=False)
    assert peer.others.get(timeout=60)[:2] == (l.CALLCANCEL, call.id)
    peer.answer_call(call, {}, code=1, message="cancelled")
    call = peer.call()
    peer.answer_call(call, {"O": np.ones(1)}, final=False)
    assert peer.others.get(timeout=60)[:2] == (l.CALLCANCEL, call.id)
    assert result(peer) == [1]
    peer.answer_call(call, {"O": np.ones(1)}, final=True)  # nobody wants it: its memory comes back all the same
    run(peer)
    peer.answer_call(peer.call(), {}, final=True)
    call = peer.call()
    peer.answer_call(call, {}, final=True)
    assert result(peer) == [1]
    assert len(peer.given) == 3


def test_async_exec(start):
    """Many at a time on the loop, no thread; exec in a coroutine does not stop them."""
    peer = start(execute("""        def ask(i):
            return pb_utils.InferenceRequest(model_name="o", inputs=[pb_utils.Tensor("I", np.array([i]))], requested_output_names=[])
        futures = [ask(i).async_exec() for i in range(20)]
        first = ask(20).exec().output_tensors()[0].as_numpy()[0]
        got = await asyncio.gather(*futures)
        assert threading.active_count() == 1
        return [out(0, [first] + [r.output_tensors()[0].as_numpy()[0] for r in got])]
""", "async def"))
    for _ in range(2):
        run(peer)
        calls = [peer.call() for _ in range(21)]
        for call in reversed(calls):
            peer.answer_call(call, {"O": call.inputs["I"] * 2})
        assert result(peer) == [40] + [2 * i for i in range(20)]
    peer.finalize()


def test_async_stream(start):
    peer = start(execute(REQUEST + """        it = await request.async_exec(decoupled=True)
        got = [r.output_tensors()[0].as_numpy()[0] async for r in it]
        got += [r.output_tensors()[0].as_numpy()[0] for r in it]
        return [out(0, got)]
""", "async def"))
    run(peer)
    call = peer.call()
    for i in range(5):
        peer.answer_call(call, {"O": np.full(1, i)}, final=i == 4)
    assert result(peer) == [0, 1, 2, 3, 4] * 2


def test_async_exec_cancelled(start):
    peer = start(execute(REQUEST + """        try:
            await asyncio.wait_for(request.async_exec(), 0.01)
        except asyncio.TimeoutError:
            pass
        return [out(0, (await request.async_exec()).output_tensors()[0].as_numpy())]
""", "async def"))
    run(peer)
    late = peer.call()
    assert peer.others.get(timeout=60)[:2] == (l.CALLCANCEL, late.id)
    peer.answer_call(late, {"O": np.array([1])})
    peer.answer_call(peer.call(), {"O": np.array([2])})
    assert result(peer) == [2]
    peer.finalize()
    assert len(peer.given) == 2


def test_async_exec_in_a_loop_of_the_model(start):
    """asyncio.run in a plain execute, and a loop in a thread of the model's own."""
    peer = start(execute("""        async def ask(i):
            r = pb_utils.InferenceRequest(model_name="o", inputs=[pb_utils.Tensor("I", np.array([i]))], requested_output_names=[])
            return (await r.async_exec()).output_tensors()[0].as_numpy()[0]
        async def both():
            return await asyncio.gather(ask(1), ask(2))
        got = []
        t = threading.Thread(target=lambda: got.extend(asyncio.run(both())))
        t.start()
        got.extend(asyncio.run(both()))
        t.join()
        return [out(0, got)]
"""))
    for _ in range(3):
        run(peer)
        for _ in range(4):
            call = peer.call()
            peer.answer_call(call, {"O": call.inputs["I"] * 10})
        assert result(peer) == [10, 20, 10, 20]
    peer.finalize()


def test_answer_too_large_for_a_frame(start):
    """A REPLY whose body lies in the exchange memory: that is given back."""
    peer = start(execute(REQUEST + "        return [out(0, [len(request.exec().parameters())])]\n"))
    run(peer)
    call = peer.call()
    body = bytes((3,)) + peer.answer({}, parameters=json.dumps({"x": "y" * 200000}))
    segment = peer.allocate(len(body), 1)
    peer.channels[0].areas[1][segment[1]:segment[1] + len(body)] = body
    peer.channels[0].write(1, l.REPLY, call.id, l.SEGMENT.pack(*segment), l.BODY_ELSEWHERE)
    assert result(peer) == [200009]
    assert segment in peer.given


CONTROL = """        said = []
        for f in (lambda: pb_utils.load_model("a"), lambda: pb_utils.load_model("a", "{}", {"file:1/m": b"abc"}),
                  lambda: pb_utils.load_model(model_name="a", files=[1]), lambda: pb_utils.unload_model("b"),
                  lambda: pb_utils.unload_model("b", unload_dependents=True), lambda: pb_utils.is_model_ready("c"),
                  lambda: pb_utils.is_model_ready("c", "2"), lambda: pb_utils.is_model_ready("bad"), lambda: pb_utils.load_model("bad"),
                  lambda: pb_utils.unload_model("bad"), lambda: pb_utils.load_model(None), lambda: pb_utils.load_model("a", None)):
            try:
                said.append(f())
            except pb_utils.TritonModelException as e:
                said.append(str(e))
            except TypeError:
                said.append("TypeError")
        return [out(0, np.array([json.dumps(said)], object))]
"""


def test_model_control(start):
    peer = start(execute(CONTROL))
    asked = []

    def control(what, name, argument, files):
        asked.append((what, name, argument, files))
        if name == "bad":
            raise ValueError("no such model")
        return argument != "2"

    peer.control = control
    said = json.loads(peer.answers(ONE)[0].outputs["OUT"][0])
    assert said == [None, None, "failed to load model 'a', files should be a dictionary of file paths and file contents", None, None, True,
                    False, "Failed to check model readiness: no such model", "Failed to load model: no such model",
                    "Failed to unload model: no such model", "TypeError", "TypeError"]
    assert asked[:4] == [(1, "a", "", {}), (1, "a", "{}", {"file:1/m": b"abc"}), (2, "b", "", {}), (2, "b", "1", {})]
    assert len(set(peer.parents)) == 1 and peer.parents[0]  # the request's


def test_whose_model_control(start):
    """In a batch of several requests that of the one that was looked at last; in threads, and without a look, the model's own."""
    peer = start(execute("""        import threading
        pb_utils.unload_model("a")
        keys = []
        for r in requests:
            pb_utils.get_input_tensor_by_name(r, "IN").as_numpy()
            pb_utils.unload_model("a")
        t = threading.Thread(target=pb_utils.unload_model, args=("a",))
        t.start()
        t.join()
        return [out(0, np.ones(1)) for r in requests]
"""))
    peer.control = lambda *_: None
    assert [a.code for a in peer.answers(ONE, {**ONE, "key": 1 << 16 | 1})] == [0, 0]
    none, first, second, thread = peer.parents
    assert none == thread == 0 and first and second and first != second


METRICS = """        M = pb_utils.MetricFamily
        c = M("c", "counts", M.COUNTER)
        a, b = c.Metric(labels={"x": "1"}), c.Metric({"x": "1"})
        a.increment(2)
        b.increment(3.5)
        said = [a.value(), c.Metric().value()]
        g = M(name="g", description="gauge", kind=M.GAUGE).Metric()
        h = M("h", "histogram", M.HISTOGRAM)
        o = h.Metric(buckets=[0.1, 1, 10])
        o.observe(0.5)
        gone = M("gone", "", M.GAUGE)
        lost = gone.Metric()
        lost.set(4)
        gone = None
        M("again", "", M.COUNTER)
        M("again", "", M.GAUGE)  # the other is gone
        for f in (lambda: a.increment(-1), lambda: a.set(1), lambda: a.observe(1), lambda: o.increment(1), lambda: o.set(1), lambda: o.value(),
                  lambda: c.Metric(labels=[1]), lambda: h.Metric(buckets=(1,)), lambda: c.Metric(buckets=[1]), lambda: h.Metric(),
                  lambda: h.Metric(buckets=[2, 1]), lambda: lost.set(1), lambda: lost.value(), lambda: M("c", "", M.GAUGE),
                  lambda: M(None, "", M.GAUGE), lambda: M("x", "", 1), lambda: a.increment("1")):
            try:
                said.append(f())
            except pb_utils.TritonModelException as e:
                said.append(str(e).replace(DELETED, "DELETED"))
            except TypeError:
                said.append("TypeError")
        return [out(0, np.array([json.dumps(said)], object))]
DELETED = ("Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should be deleted AFTER its "
           "corresponding 'Metric' objects have been deleted.")
"""


def test_the_first_description_stays(start):
    """Also when the family that brought it is gone, as in Triton."""
    peer = start(execute("""        M = pb_utils.MetricFamily
        a, b = M("c", "first", M.COUNTER), M("c", "second", M.COUNTER)
        a = None
        b.Metric().increment(1)
        b = None
        M("c", "third", M.COUNTER)
        return [out(0, np.ones(1))]
"""))
    assert peer.answers(ONE)[0].code == 0
    assert [m[3] for m in peer.metrics if m[1] == 3] == ["first", "first", "first", "third"]


def test_metrics(start):
    peer = start(execute(METRICS))
    said = json.loads(peer.answers(ONE)[0].outputs["OUT"][0])
    kind = "TRITONSERVER_METRIC_KIND_"
    assert said[:2] == [5.5, 0] and said[2:8] == [
        f"Failed to increment metric value: {kind}COUNTER can only be incremented monotonically by non-negative values.",
        f"Failed to set metric value: {kind}COUNTER does not support Set", f"Failed to observe metric value: {kind}COUNTER does not support "
        "Observe", f"Failed to increment metric value: {kind}HISTOGRAM does not support Increment",
        f"Failed to set metric value: {kind}HISTOGRAM does not support Set", f"Failed to get metric value: {kind}HISTOGRAM does not support Value"]
    assert said[8:] == ["Failed to create metric. Labels must be a dictionary.", "Failed to create metric. Buckets must be a list.",
                        "Failed to create metric. Unexpected buckets found.", "Failed to create metric. Missing required buckets.",
                        "Error when creating Metric: buckets must ascend, not [2.0, 1.0]", "Failed to set metric value: DELETED",
                        "Failed to get metric value: DELETED",
                        "Error when creating MetricFamily: metric family 'c' is there, of kind COUNTER", "TypeError", "TypeError", "TypeError"]
    x, none = '{"x": "1"}', "{}"
    assert peer.metrics[:7] == [
        (0, 3, "c", "counts", "", [], 0), (0, 3, "c", "counts", x, [], 0), (0, 1, "c", "", x, [], 2), (0, 1, "c", "", x, [], 3.5),
        (0, 3, "c", "counts", none, [], 0), (1, 3, "g", "gauge", "", [], 0), (1, 3, "g", "gauge", none, [], 0)]
    # The family of g is gone as soon as its metric alone is held.
    assert (1, 4, "g", "", none, [], 0) in peer.metrics and (2, 3, "h", "histogram", none, [0.1, 1, 10], 0) in peer.metrics
    assert (2, 2, "h", "", none, [], 0.5) in peer.metrics and (1, 4, "gone", "", none, [], 0) in peer.metrics

"""Response senders, decoupled models, and models whose execute is a coroutine function."""
import json
import queue

import numpy as np
import pytest
from model_sources import ONE, TWO, execute, model
from peer import string
from sluice_runner import layout as l

KEY = 1 << 16
SEND = "        s = requests[0].get_response_sender()\n"


def texts(body):
    """A model that answers with the texts of the exceptions that its statements raise."""
    return execute(SEND + "        said = []\n" + "".join(
        f"        try:\n            {line}\n        except pb_utils.TritonModelException as e:\n            said.append(str(e))\n" for line in body)
        + "        print(json.dumps(said))\n")


def said(peer):
    peer.finalize()
    peer.close()
    return json.loads(peer.output["stdout"].decode().splitlines()[0])


@pytest.mark.parametrize("decoupled, body, want", [
    (False, ["s.send(out(0, [1.0]), flags=5)", "s.send(flags=2)"], ["Unsupported flag provided."] * 2),
    (False, ["s.send()"], None),
    (False, ["s.send(flags=1)"], ["Non-decoupled model cannot send complete final before sending a response."]),
    (False, ["s.send(out(0, [1.0]))", "s.send(out(0, [1.0]))", "s.send(flags=1)", "s.send(flags=1)", "s.send(out(0, [1.0]))"],
     ["Non-decoupled model cannot send more than one response.", "Response sender has been closed.",
      "Non-decoupled model cannot send more than one response."]),
    (True, ["s.send(out(0, [1.0]), 1)", "s.send(out(0, [1.0]))", "s.send(flags=1)"], ["Response sender has been closed."] * 2),
])
def test_refusals(start, decoupled, body, want):
    peer = start(texts(body), decoupled=decoupled)
    peer.answers(ONE)
    assert said(peer) == ([f"Unable to send response. {w}" for w in want] if want else
                          ["Inference Response object must be provided when the response flags is set to zero."])


def test_wrong_types(start):
    peer = start(execute(SEND + """        for args in ((1,), (None, None), (None, "1"), (None, -1), (None, 1.0)):
            try:
                s.send(*args)
            except TypeError:
                continue
            raise AssertionError(args)
        try:
            type(s)()
        except TypeError:
            pass
        assert s is requests[0].get_response_sender()
        s.send(out(0, [1.0]), flags=1)
"""))
    assert peer.answers(ONE)[0].status == l.OPEN
    assert peer.part().flags == l.FINAL | l.HAS_RESPONSE


@pytest.mark.parametrize("end", ["s.send(flags=1)", "pass"])
def test_answer_without_final(start, end):
    """The one answer of a model that isn't decoupled ends its request, whether its final flag comes later or never."""
    peer = start(execute(SEND + f"        s.send(out(0, [1.0]))\n        {end}\n"))
    for _ in range(2):
        assert peer.answers(ONE)[0].status == l.OPEN
        part = peer.part()
        assert part.flags == l.FINAL | l.HAS_RESPONSE and part.answer.outputs["OUT"].tolist() == [1.0]
    peer.finalize()
    assert peer.parts.empty()


def test_answered_twice(start):
    peer = start(execute(SEND + "        s.send(out(0, [1.0]), 1)\n        return [out(0, [1.0])]\n"))
    failed = peer.answers(ONE)
    assert failed.message == "Unable to send response. Non-decoupled model cannot send more than one response."
    assert peer.part().answer.outputs["OUT"].tolist() == [1.0]


def test_stream(start):
    """Answers on the way, then what they said before is counted in RESULT; the sender goes on in a thread."""
    peer = start(execute(SEND + """        s.send(out(0, [0.0]))
        def later(s):
            for i in (1.0, 2.0):
                s.send(out(0, [i]))
            s.send(flags=1)
        threading.Thread(target=later, args=(s,)).start()
"""), decoupled=True)
    number = peer.execute(ONE)
    got, events, answers = peer.result(l.RESULT)
    assert got == number and events >= 1 and answers[0].status == l.OPEN
    parts = [peer.part() for _ in range(4)]
    assert [p.flags for p in parts] == [2, 2, 2, 1] and {p.key for p in parts} == {KEY}
    assert [p.answer.outputs["OUT"].tolist() for p in parts[:3]] == [[0.0], [1.0], [2.0]]
    peer.finalize()


def test_sender_is_dropped(start):
    peer = start(execute("        requests[0].get_response_sender().send(out(0, [0.0]))\n"), decoupled=True)
    peer.answers(*TWO)
    parts = [peer.part() for _ in range(3)]
    assert [(p.key, p.flags) for p in parts if p.flags != "drop"] == [(KEY, 2)]
    assert {p.key for p in parts if p.flags == "drop"} == {KEY, KEY | 1}


def test_failure_after_final(start):
    """A batch that fails after some of its requests are through: their senders are closed, and so are the others."""
    peer = start(model("""    def execute(self, requests):
        self.senders = [r.get_response_sender() for r in requests]
        self.senders[0].send(flags=1)
        raise ValueError("boom")
    def finalize(self):
        for s in self.senders:
            try:
                s.send(flags=1)
            except pb_utils.TritonModelException as e:
                print(e)
"""), decoupled=True)
    assert peer.answers(*TWO).message.startswith("ValueError: boom")
    assert peer.part().flags == l.FINAL
    peer.finalize()
    peer.close()
    assert peer.output["stdout"].decode().count("Response sender has been closed.") == 2
    with pytest.raises(queue.Empty):
        peer.parts.get_nowait()


def test_large_answers_of_senders(start):
    peer = start(execute(SEND + "        s.send(out(0, np.ones(100000)), 1)\n"), decoupled=True)
    peer.answers(ONE)
    answer = peer.part().answer
    assert answer.segments["OUT"][0] == 3 and answer.outputs["OUT"].sum() == 100000
    assert not peer.blocks


def test_no_room(start):
    peer = start(execute("        return [out(0, np.ones(100000)), out(0, [1.0])]\n"))
    peer.refuse_need = "memory is full"
    bad, good = peer.answers(*TWO)
    assert (bad.code, bad.message, good.code) == (14, "memory is full", 0)


def test_cancelled(start):
    peer = start(execute(SEND + """        while not (requests[0].is_cancelled() and s.is_cancelled()):
            time.sleep(0.001)
        s.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("gone", pb_utils.TritonError.CANCELLED)), 1)
"""), decoupled=True)
    peer.execute(ONE)
    peer.cancel(KEY)
    peer.result(l.RESULT)
    assert peer.part().answer.code == 1


ASYNC = """        await asyncio.sleep(0)
        return [out(r, r.inputs()[0].as_numpy() + 1) for r in requests]
"""


def test_async(start):
    peer = start(execute(ASYNC, "async def"))
    assert peer.hooks & l.IS_ASYNC
    for _ in range(3):
        answers = peer.answers(*TWO)
        assert [a.outputs["OUT"].tolist() for a in answers] == [[1, 2, 3]] * 2
    peer.finalize()


@pytest.mark.parametrize("body, want", [
    ("        raise ValueError('boom')\n", "ValueError: boom\n\nAt:\n  1/model.py(10): execute\n"),
    ("        await asyncio.sleep(0)\n        sys.exit(1)\n", "SystemExit: 1\n\nAt:\n  1/model.py(11): execute\n"),
    ("        return 5\n", "Expected a list in the execute return, found type '<class 'int'>'."),
])
def test_async_fails(start, body, want):
    peer = start(execute(body, "async def"))
    for _ in range(2):
        assert peer.answers(ONE).message == want
    peer.finalize()


def test_coroutine_of_a_plain_execute(start):
    peer = start(execute("        return self.later(requests)\n    async def later(self, requests):\n" + ASYNC))
    assert not peer.hooks & l.IS_ASYNC
    for _ in range(3):
        assert peer.answers(ONE)[0].outputs["OUT"].tolist() == [1, 2, 3]
    peer.finalize()


def test_async_batches_overlap(start):
    """Of a model that is not decoupled, as many as the worker sends."""
    peer = start(model("""    def initialize(self, args):
        self.there = 0
        self.all = asyncio.Event()
    async def execute(self, requests):
        self.there += 1
        if self.there == 3:
            self.all.set()
        await self.all.wait()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""), async_batches=3)
    numbers = [peer.execute({"inputs": {"IN": np.full(1, i)}, "key": KEY | i}) for i in range(3)]
    got = {n: answers[0].outputs["OUT"][0] for n, _, answers in (peer.result(l.RESULT) for _ in range(3))}
    assert got == dict(zip(numbers, range(3)))
    peer.finalize()


def test_async_decoupled(start):
    """The instance is free at once; a short batch passes a long one."""
    peer = start(execute("""        s = requests[0].get_response_sender()
        if requests[0].inputs()[0].as_numpy()[0] == 0:
            self.first = asyncio.Event()
            await self.first.wait()
        s.send(out(0, requests[0].inputs()[0].as_numpy()), 1)
        self.first.set()
""", "async def"), decoupled=True)
    for i in range(2):
        answers = peer.answers({"inputs": {"IN": np.full(1, i)}, "key": KEY | i})
        assert answers[0].status == l.OPEN
    assert [peer.part().key for _ in range(2)] == [KEY | 1, KEY]
    peer.finalize()


@pytest.mark.parametrize("body, want", [
    ("raise ValueError('boom')", "ValueError: boom\n\nAt:\n  1/model.py(12): execute\n"),
    ("return 3", "Python model 'm_0_0' is using the decoupled mode and the execute function must return None."),
])
def test_async_decoupled_fails(start, body, want):
    """What it has not answered gets the error; Triton's clients hang."""
    peer = start(execute(f"""        requests[0].get_response_sender().send(flags=1)
        await asyncio.sleep(0)
        {body}
""", "async def"), decoupled=True)
    peer.answers(*TWO)
    first, second = peer.part(), peer.part()
    assert (first.key, first.flags, second.key, second.flags) == (KEY, 1, KEY | 1, 3)
    assert second.answer.message == f"Failed to process the request(s) for model 'm_0_0', message: {want}"
    peer.finalize()
    peer.close()
    assert "Traceback" in peer.output["stderr"].decode()


def test_async_decoupled_error_text(start):
    peer = start(execute("        await asyncio.sleep(0)\n        raise ValueError('boom')\n", "async def"), decoupled=True)
    peer.answers(ONE)
    part = peer.part()
    assert part.flags == 3 and part.answer.code == 13
    assert part.answer.message == ("Failed to process the request(s) for model 'm_0_0', message: ValueError: boom\n\nAt:\n"
                                   "  1/model.py(11): execute\n")


def test_async_initialize_fails(start):
    """The process goes on to its end."""
    peer = start(model("    def initialize(self, args): raise ValueError('boom')\n    async def execute(self, requests): pass\n"), raw=True)
    peer.result(l.HELLO)
    for kind, what, answer in ((l.LOAD, peer.load, l.LOADED), (l.INITIALIZE, peer.args(), l.FAILED)):
        peer.command(kind, string(json.dumps(what)))
        peer.result(answer)
    peer.finalize()


def test_async_ready(start):
    """is_ready is asked while batches are executed."""
    peer = start(model("""    def initialize(self, args):
        self.asked = asyncio.Event()
    async def execute(self, requests):
        await self.asked.wait()
        return [pb_utils.InferenceResponse([]) for r in requests]
    async def is_ready(self):
        self.asked.set()
        return True
"""))
    peer.execute(ONE)
    peer.ask_ready(4)
    assert peer.readiness.get(timeout=60) == (4, 1, "")
    assert peer.result(l.RESULT)[2][0].code == 0


def test_ready_while_busy(start):
    """is_ready has a thread of its own: a plain execute that waits does not delay it."""
    peer = start(execute("""        self.asked.wait()
        return [out(0, [1.0])]
    def initialize(self, args):
        self.asked = threading.Event()
    def is_ready(self):
        self.asked.set()
        return False
"""))
    peer.execute(ONE)
    peer.ask_ready(1)
    assert peer.readiness.get(timeout=60) == (1, 0, "")
    assert peer.result(l.RESULT)[2][0].code == 0


def test_exit_of_a_task(start):
    """SystemExit of a task that the model started does not end the process."""
    peer = start(execute("""        async def leave():
            sys.exit(4)
        asyncio.get_running_loop().create_task(leave())
        return [out(0, [1.0])]
""", "async def"))
    for _ in range(3):
        assert peer.answers(ONE)[0].outputs["OUT"].tolist() == [1.0]
    peer.finalize()

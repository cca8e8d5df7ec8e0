"""Memory of inputs and outputs: views on shared memory, what models write into them, and what outlives a batch."""
import os

import numpy as np
import pytest
from model_sources import execute
from peer import AREA_SIZE, request
from sluice_runner import layout as l

KEY = 1 << 16
LARGE = 40000  # float32: 160 kB, more than a view's least size


def asked(value, area=2, n=LARGE, **kwargs):
    return {"inputs": {"IN": np.full(n, value, np.float32)}, "area": area, **kwargs}


IS_VIEW = "import mmap\ndef is_view(a):\n    while isinstance(a, np.ndarray) and a.base is not None:\n        a = a.base\n    return isinstance(a, mmap.mmap)\n"


def views(body, kind="def"):
    return IS_VIEW + execute(body, kind)


@pytest.mark.parametrize("area, n, dtype, decoupled, kind, want", [
    (2, LARGE, None, False, "def", True), (1, LARGE, None, False, "def", True), (2, 10000, None, False, "def", False),
    (0, 5000, None, False, "def", False), (2, LARGE, None, True, "def", False), (2, LARGE, None, False, "async def", False)])
def test_views(start, area, n, dtype, decoupled, kind, want):
    """Large inputs are views, where the batch has ended when execute has returned."""
    peer = start(views("""        x = requests[0].inputs()[0].as_numpy()
        assert x.flags.writeable
        requests[0].get_response_sender().send(out(0, [float(is_view(x)), x.sum()]), 1)
""", kind), decoupled=decoupled)
    peer.answers(asked(1, area, n))
    assert peer.part().answer.outputs["OUT"].tolist() == [want, n]


@pytest.mark.parametrize("area", [1, 2])
def test_writes_stay_private(start, area):
    """What a model writes into an input nobody else sees: not the arena, and not the next request that lies there."""
    peer = start(views("""        x = requests[0].inputs()[0].as_numpy()
        assert is_view(x)
        before = x.sum()
        x[:] = 7
        x[0] = 9
        return [out(0, [before, x.sum()])]
"""))
    for value in (1, 2, 3):
        peer.next_offset = 1 << 20
        answer, = peer.answers(asked(value, area))
        assert answer.outputs["OUT"].tolist() == [value * LARGE, 7 * LARGE + 2]
        memory = peer.channels[0].areas[area]
        assert np.frombuffer(memory, np.float32, LARGE, 1 << 20).tolist() == [value] * LARGE
    assert not peer.logs


@pytest.mark.parametrize("keep", ["x", "x[5:]", "requests", "requests[0]", "requests[0].inputs()[0]", "requests[0].inputs()[0].to_dlpack()"])
def test_kept_inputs(start, keep):
    """A view that outlives its batch keeps its bytes; from then on inputs are copied, and the log says so once."""
    peer = start(views(f"""        x = requests[0].inputs()[0].as_numpy()
        self.kept = getattr(self, "kept", [])
        self.kept.append({keep})
        self.views = getattr(self, "views", []) + [is_view(x)]
        if len(self.kept) < 3:
            return [out(0, [0.0])]
        arrays = []
        for k in self.kept:
            k = k[0] if isinstance(k, list) else k
            k = k.inputs()[0] if hasattr(k, "inputs") else k
            k = pb_utils.Tensor.from_dlpack("x", k) if type(k).__name__ == "PyCapsule" else k
            arrays.append(k.as_numpy() if hasattr(k, "as_numpy") else k)
        return [out(0, [a.mean() for a in arrays] + self.views)]
"""))
    peer.levels(15)
    for value in (1, 2, 3):
        peer.next_offset = 1 << 20
        answer, = peer.answers(asked(value))
    assert answer.outputs["OUT"].tolist() == [1, 2, 3, True, False, False]
    peer.finalize()
    assert [text for _, _, _, text in peer.logs] == ["model 'm' keeps inputs after their batch: from now on its inputs are copied"]


def test_kept_by_an_exception(start):
    """An exception that held a view, in a cycle of frames, does not count."""
    peer = start(views("""        x = requests[0].inputs()[0].as_numpy()
        view = is_view(x)
        try:
            raise ValueError(x)
        except ValueError as e:
            x = kept = e
        if len(requests) == 2:
            raise kept
        return [out(0, [float(view)])]
"""))
    for _ in range(2):
        assert peer.answers(asked(1))[0].outputs["OUT"].tolist() == [1.0]
        assert peer.answers(asked(1), asked(2, key=KEY | 1)).message.startswith("ValueError: ")


def test_identity_of_views(start):
    """Answers that are views on inputs are copied before the inputs' memory is another's."""
    peer = start(views("        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', r.inputs()[0].as_numpy())]) for r in requests]\n"))
    for value in range(4):
        peer.next_offset = 1 << 20
        answers = peer.answers(asked(value), asked(value + 0.5, key=KEY | 1))
        assert [a.outputs["OUT"].mean() for a in answers] == [value, value + 0.5]
    assert not peer.logs


def test_grant(start):
    """Large answers lie in the grant while it lasts, small ones in the frame."""
    peer = start(execute("""        return [out(0, np.full(n, n, np.float32)) for n in (20000, 10, 20000, 20000)]
"""))
    requests = [{"inputs": {}, "key": KEY | i} for i in range(4)]
    answers = peer.answers(*requests, grant=(3, 8192, 200000))
    segments = [a.segments["OUT"] for a in answers]
    assert [a.outputs["OUT"].sum() for a in answers] == [20000.0 ** 2, 100, 20000.0 ** 2, 20000.0 ** 2]
    assert segments[0] == (3, 8192, 80000) and segments[1][0] == 0 and segments[2] == (3, 8192 + 80000, 80000)
    assert segments[3][0] == 3 and segments[3][1] >= 1 << 20  # the grant was used up: a block of its own
    assert not peer.blocks and not peer.given


EMPTY = """        t = pb_utils.empty("OUT", (%d,), np.float32)
        t.as_numpy()[:] = 3
        %s
"""


@pytest.mark.parametrize("grant", [(3, 8192, 200000), (3, 8192, 1000), (0, 0, 0)])
@pytest.mark.parametrize("n", [10, LARGE])
def test_empty(start, grant, n):
    """pb_utils.empty makes the array where answers are sent from."""
    peer = start(execute(EMPTY % (n, "return [pb_utils.InferenceResponse([t])]")))
    answer, = peer.answers({"inputs": {}}, grant=grant)
    assert answer.outputs["OUT"].tolist() == [3.0] * n
    area, offset, length = answer.segments["OUT"]
    assert (area, length) == (3 if n == LARGE else 0, 4 * n)
    if n == LARGE:
        assert (offset == 8192) == (grant[2] == 200000)
    peer.finalize()
    assert not peer.blocks and not peer.given


def test_empty_is_not_sent(start):
    """Its block is given back; sent twice it is copied the second time; by a sender it goes without the grant."""
    peer = start(execute(EMPTY % (LARGE, """if len(requests) == 2:
            return [pb_utils.InferenceResponse([t]), pb_utils.InferenceResponse([t])]
        if requests[0].timeout():
            requests[0].get_response_sender().send(pb_utils.InferenceResponse([t]), 1)
            return [None]
        return [out(0, [1.0])]""")))
    request = {"inputs": {}}
    assert peer.answers(request)[0].outputs["OUT"].tolist() == [1.0]
    a, b = peer.answers(request, {**request, "key": KEY | 1})
    assert a.segments != b.segments and a.outputs["OUT"].sum() == b.outputs["OUT"].sum() == 3 * LARGE
    assert peer.answers({**request, "timeout": 1}, grant=(3, 8192, 200000))[0].status == l.OPEN
    part = peer.part().answer
    assert part.segments["OUT"][1] != 8192 and part.outputs["OUT"].sum() == 3 * LARGE
    peer.finalize()
    assert not peer.blocks and len(peer.given) == 1


def test_array_of_empty(start):
    """An array that outlives its tensor keeps the block; another tensor of it is copied."""
    peer = start(execute("""        x = pb_utils.empty("other", LARGE, "float32").as_numpy()
        x[:] = 5
        import gc
        gc.collect()
        return [out(0, x)]
LARGE = %d
""" % LARGE))
    assert peer.answers({"inputs": {}})[0].outputs["OUT"].sum() == 5 * LARGE
    peer.finalize()
    assert not peer.blocks


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("area", [0, 2])
def test_stacked(start, area, together):
    """An input of all requests in one array: a view on them where they lie one behind the other."""
    peer = start(IS_VIEW + execute("""        assert isinstance(requests, list)
        x = requests.stacked("IN")
        first = requests[0].inputs()[0].as_numpy()
        view = first.ctypes.data == x.ctypes.data
        try:
            requests.stacked("NO")
        except KeyError:
            response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([view])), pb_utils.Tensor("X", x[:, 0].copy())])
        x[:] = 9  # of all of them
        assert not view or first[0, 0] == 9
        x = first = None
        return [response] * len(requests)
"""))
    n = 32768 if area else 16
    batch = [{"inputs": {"IN": np.full((i + 1, n), i, np.float32)}, "area": area, "key": KEY | i, "outputs": ("OUT", "X")} for i in range(3)]
    if not together:
        for request in batch:
            request["inputs"] = {"IN": request["inputs"]["IN"], "between": np.zeros(5, np.int8)}
    peer.levels(15)
    for _ in range(2):
        answer, _, _ = peer.answers(*batch)
        assert answer.outputs["X"].tolist() == [0, 1, 1, 2, 2, 2]
        assert answer.outputs["OUT"].tolist() == [together]
    assert not peer.logs


def test_noncontiguous_outputs(start):
    peer = start(execute("        a = np.arange(60000.).reshape(200, 300)\n"
                         "        return [out(0, a.T), out(0, a[::2, ::3]), out(0, np.array(5.0)), out(0, a.T[:2, :2]), out(0, np.asfortranarray(a))]\n"))
    a = np.arange(60000.).reshape(200, 300)
    answers = peer.answers(*({"inputs": {}, "key": KEY | i} for i in range(5)))
    for answer, want in zip(answers, (a.T, a[::2, ::3], np.array(5.0), a.T[:2, :2], a)):
        np.testing.assert_array_equal(answer.outputs["OUT"], want)


def test_bf16(start):
    """BF16 has no numpy type: it goes by DLPack."""
    peer = start(execute("""        t = requests[0].inputs()[0]
        try:
            t.as_numpy()
        except pb_utils.TritonModelException as e:
            assert str(e).startswith("Tensor dtype is BF16")
        u = pb_utils.Tensor.from_dlpack("OUT", t)
        assert u.triton_dtype() == 14
        return [pb_utils.InferenceResponse([u])]
"""))
    for n in (4, LARGE):
        data = np.arange(n, dtype=np.uint16)
        answer, = peer.answers({"inputs": {"IN": data}, "dtypes": {"IN": 14}, "area": 2 if n == LARGE else 0})
        np.testing.assert_array_equal(answer.outputs["OUT"], data)


def test_results_larger_than_a_frame(start):
    """Many small answers make a body that lies in the exchange memory."""
    peer = start(execute("        return [out(r, np.full(1000, i, np.float64)) for i, r in enumerate(requests)]\n"))
    answers = peer.answers(*({"inputs": {"IN": np.ones(500)}, "key": KEY | i} for i in range(300)))
    assert [a.outputs["OUT"].sum() for a in answers] == [1000.0 * i for i in range(300)]
    # What is left is the body's own block, which the worker frees when it has read it.
    assert {area for area, _ in peer.blocks} <= {1}


def test_growth(start):
    """A thousand batches and fifty thousand answers later, the process is no larger."""
    peer = start(execute("""        s = requests[0].get_response_sender()
        for _ in range(50):
            s.send(out(0, [1.0]))
        s.send(flags=1)
"""), decoupled=True)

    def resident():
        with open(f"/proc/{peer.process.pid}/statm") as f:
            return int(f.read().split()[1])

    def rounds(n):
        for _ in range(n):
            peer.answers({"inputs": {"IN": np.ones(4)}})
            for _ in range(51):
                peer.part()

    rounds(200)
    before = resident()
    rounds(1000)
    assert resident() - before < 500  # pages


def test_area_grows(start):
    """An area that has grown is mapped again; views of the batch that saw it grow keep the mapping they have."""
    peer = start(views("        return [out(0, [float(is_view(r.inputs()[0].as_numpy())), r.inputs()[0].as_numpy().mean()]) for r in requests]\n"))
    assert peer.answers(asked(1))[0].outputs["OUT"].tolist() == [True, 1]
    frames = peer.channels[0]
    os.ftruncate(frames.fds[2], 2 * AREA_SIZE)
    frames.areas[2].resize(2 * AREA_SIZE)
    for want in (False, True):  # the first mapping is in use when the larger segment comes
        peer.next_offset = 1 << 20
        first = request(**asked(2))
        second = request(**asked(3, key=KEY | 1))
        allocate, at = peer.allocate, iter((1 << 20, AREA_SIZE + 4096))
        peer.allocate = lambda size, area: (area, next(at), size)
        answers = peer.answers(first, second)
        peer.allocate = allocate
        assert [a.outputs["OUT"].tolist() for a in answers] == [[True, 2], [want, 3]]
        if not want:
            peer.next_offset = AREA_SIZE + (1 << 20)
            assert peer.answers(asked(4))[0].outputs["OUT"].tolist() == [True, 4]


def test_no_room_halfway(start):
    """A response whose second tensor finds no room: the first one's block comes back, and the model goes on."""
    peer = start(execute("""        a, b = (pb_utils.Tensor(n, np.ones(50000)) for n in ("OUT", "B"))
        r = pb_utils.InferenceResponse([a, b])
        if requests[0].timeout() == 1:
            return [r]
        s = requests[0].get_response_sender()
        if requests[0].timeout() == 2:
            s.send(r, 1)
            return None
        c = pb_utils.InferenceRequest(model_name="o", inputs=[a, b], requested_output_names=[]).exec()
        return [out(0, np.array([c.error().message()], object))]
"""))
    room = {"inputs": {}, "outputs": ("OUT", "B")}

    def once(timeout):
        peer.given.clear()
        peer.needs_left = 1
        return peer.answers({**room, "timeout": timeout})[0]

    got = once(1)
    assert (got.code, got.message, len(peer.given)) == (14, "memory is full", 1)
    assert once(2).status == l.OPEN
    assert peer.part().answer.message == "memory is full" and len(peer.given) == 1
    assert once(3).outputs["OUT"].tolist() == [b"memory is full"] and len(peer.given) == 1
    peer.needs_left = 1 << 30
    assert peer.answers({**room, "timeout": 1})[0].code == 0
    assert not peer.blocks


def test_no_room_for_a_body(start):
    """RESULT is too large for a frame, and there is no room for it elsewhere: the batch fails, as clients are told."""
    peer = start(execute("        return [out(r, np.full(1000, i, np.float64)) for i, r in enumerate(requests)]\n"))
    peer.refuse_need = "memory is full"
    many = [{"inputs": {}, "key": KEY | i} for i in range(300)]
    assert isinstance(peer.answers(*many), list)  # each fails by itself
    peer = start(execute("""        return [pb_utils.InferenceResponse([pb_utils.Tensor("O", np.ones(50000 if r is requests[0] else 1, bool))], parameters={'p': 'x' * 5000})
                for r in requests]
"""))
    many = [{**m, "outputs": ("O",)} for m in many]
    peer.needs_left = 1  # for the first one's tensor
    assert peer.answers(*many).message == "memory is full"
    assert len(peer.given) == 1 and not peer.blocks
    peer.needs_left = 1
    assert peer.answers(many[0])[0].outputs["O"].sum() == 50000


def test_long_texts(start):
    """An exception with a text beyond a frame's size."""
    peer = start(execute("        raise ValueError('x' * 1000000)\n"))
    peer.refuse_need = "memory is full"
    for _ in range(2):
        failed = peer.answers({"inputs": {}})
        assert failed.message.startswith("ValueError: xxx") and len(failed.message) <= 16384 and failed.traceback.endswith("xxx\n")

"""Frames of the worker's codec, read and written by the runner's, byte by byte; and frames that are cut short or random."""
import json
import random
import struct

import numpy as np
import peer
import pytest
from sluice_runner import batch, layout as l, sender, wire
from sluice_runner.response import InferenceResponse
from sluice_runner.tensor import Tensor

GOLDEN = {f["name"]: (f["kind"], bytes.fromhex(f["body"])) for f in
          json.loads((peer.ROOT / "workers" / "backend" / "python" / "testdata" / "frames.json").read_text())}
CHECKS = batch.OutputChecks("m", {})


class Channel:
    """As much of a channel as the codec looks at."""
    checks = CHECKS

    def __init__(self):
        self.open_keys, self.sent = set(), []

    def place_apart(self, size, data):
        raise AssertionError("a small tensor goes with the frame")

    def send(self, kind, number, body):
        self.sent.append((kind, body))


class Asked:
    """As much of a request as the codec looks at."""
    _key, _outputs, _rows = 3 << 16 | 5, {"OUT"}, 1


def framed(kind, body):
    size = len(body) + 23 & ~7
    return bytearray(l.HEADER.pack(size, kind, 0, 0, 1) + body + bytes(size - 16 - len(body)))


def read(body):
    return batch.Decoder(Channel(), False, False).read(framed(l.EXECUTE, body))


def test_batch():
    kind, body = GOLDEN["a batch of two requests"]
    assert kind == l.EXECUTE
    (first, second), grant = read(body)
    assert grant is None
    assert (first.request_id(), first.correlation_id(), first.flags(), first.requested_output_names()) == ("first", 42, 1, {"OUT"})
    assert json.loads(first.parameters()) == {"a": 1, "b": "ü\""} and second.parameters() == "{}"
    assert (second.request_id(), second.correlation_id(), second.flags()) == ("", "text", 2)
    assert first._key != second._key and first._rows == second._rows == 1
    for request, values in ((first, [1, 2]), (second, [3, 4])):
        tensor, = request.inputs()
        assert tensor.name() == "IN" and tensor.shape() == [1, 2] and tensor.as_numpy().tolist() == [values]


def test_result():
    body = wire.Body()
    body.add(struct.pack("<QBI", 2, 0, 3))
    answer = InferenceResponse([Tensor("OUT", np.array([[1, 2]], np.float32))])
    batch.respond(body, b"\1", answer, Asked(), CHECKS, None)
    body.add(bytes((l.OPEN, l.RESCHEDULED)))
    assert (l.RESULT, body.finish()) == GOLDEN["a result of three requests"]


def test_part():
    channel = Channel()
    sender.send_part(channel, Asked(), InferenceResponse([Tensor("OUT", np.array(["a", "ü"], object))]), l.FINAL)
    assert channel.sent == [GOLDEN["a last answer of a stream"]]


def test_frames_cut_short():
    """They are refused by an exception, never read beyond."""
    _, body = GOLDEN["a batch of two requests"]
    for n in range(len(body) - 16):
        with pytest.raises((struct.error, IndexError, ValueError, TypeError)):
            requests, _ = batch.Decoder(Channel(), False, False).read(framed(l.EXECUTE, body)[:16 + n])
            for request in requests:
                for tensor in request.inputs():
                    tensor.as_numpy()


def test_random_frames():
    """Bytes that were changed at random make a batch or an exception, whatever they are."""
    _, body = GOLDEN["a batch of two requests"]
    chance = random.Random(7)
    for _ in range(3000):
        changed = framed(l.EXECUTE, body)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(16 + 25, len(changed))] = chance.randrange(256)
        try:
            requests, _ = batch.Decoder(Channel(), False, False).read(changed)
            for request in requests:
                for tensor in request.inputs():
                    tensor.as_numpy()
        except Exception as e:
            assert not isinstance(e, (SystemError, MemoryError)), e

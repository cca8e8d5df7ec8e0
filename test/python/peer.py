"""The worker's end of the channel of a Python model, in Python, for tests of the runner. docs/0025-python-channel.md."""
import collections
import ctypes
import functools
import json
import mmap
import os
import pathlib
import queue
import select
import signal
import struct
import subprocess
import sys
import threading

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RUNNER = ROOT / "workers" / "backend" / "python" / "runner" / "runner.py"
sys.path.insert(0, str(RUNNER.parent))

from sluice_runner import layout as l  # noqa: E402
from sluice_runner import strings  # noqa: E402
from sluice_runner.tensor import DATATYPES, DTYPES  # noqa: E402

PATIENCE = 60  # s
AREA_SIZE = 64 << 20


def string(s):
    s = s.encode() if isinstance(s, str) else s
    return struct.pack("<I", len(s)) + s


class Reader:
    """Reads the body of a frame."""

    def __init__(self, frame):
        self.frame, self.at = frame, 16

    def take(self, layout):
        values = struct.unpack_from("<" + layout, self.frame, self.at)
        self.at += struct.calcsize("<" + layout)
        return values if len(values) > 1 else values[0]

    def string(self):
        n = self.take("I")
        self.at += n
        return bytes(self.frame[self.at - n:self.at]).decode()


Answer = collections.namedtuple("Answer", "status code message parameters outputs segments")
Part = collections.namedtuple("Part", "key flags answer")
Call = collections.namedtuple("Call", "id parent model version correlation timeout flags request_id parameters outputs inputs")
Failed = collections.namedtuple("Failed", "command message traceback")


class Frames:
    """The worker's side of the memory of one channel."""

    def __init__(self, areas):
        self.fd = os.memfd_create("channel")
        os.ftruncate(self.fd, l.MEMORY_SIZE)
        self.map = mmap.mmap(self.fd, l.MEMORY_SIZE)
        struct.pack_into("<II", self.map, 0, l.MAGIC, l.PROTOCOL)
        self.events = [os.eventfd(0) for _ in range(4)]
        self.ready, self.asked = os.eventfd(0), 0
        self.written = [0, 0]
        self.lock = threading.Lock()
        self.done = [0] * 4
        self.fds = {}
        self.areas = {}
        for area in (1,) + areas:
            fd = self.fds[area] = os.memfd_create(f"area-{area}")
            os.ftruncate(fd, AREA_SIZE)
            self.areas[area] = mmap.mmap(fd, AREA_SIZE)

    def argument(self):
        return {"memory": self.fd, "exchange": self.fds[1], "ready": self.ready, "events": self.events,
                "areas": {str(a): fd for a, fd in self.fds.items() if a != 1}}

    def inherited(self):
        return [self.fd, self.ready, *self.events, *self.fds.values()]

    def write(self, ring, kind, number, body, flags=0):
        with self.lock:
            self._write(ring, kind, number, body, flags)

    def _write(self, ring, kind, number, body, flags):
        size = len(body) + 23 & ~7
        at = self.written[ring] % l.RING_SIZE
        if at + size > l.RING_SIZE:
            struct.pack_into("<II", self.map, l.RINGS_AT + ring * l.RING_SIZE + at, l.RING_SIZE - at, 0)
            self.written[ring] += l.RING_SIZE - at
            at = 0
        while self.written[ring] + size - struct.unpack_from("<Q", self.map, l.READ_AT[ring])[0] > l.RING_SIZE:
            select.select([], [], [], 0.001)
        base = l.RINGS_AT + ring * l.RING_SIZE + at
        l.HEADER.pack_into(self.map, base, size, kind, flags, 0, number)
        self.map[base + 16:base + 16 + len(body)] = body
        self.written[ring] += size
        os.eventfd_write(self.events[ring], 1)

    def read(self, ring):
        """(kind, id, frame) of the next announced frame."""
        at = self.done[ring] % l.RING_SIZE
        base = l.RINGS_AT + ring * l.RING_SIZE
        size, kind = struct.unpack_from("<IB", self.map, base + at)
        if not kind:
            self.done[ring] += l.RING_SIZE - at
            at = 0
        size, kind, flags, _, number = l.HEADER.unpack_from(self.map, base + at)
        frame = bytes(self.map[base + at:base + at + size])
        self.done[ring] += size
        struct.pack_into("<Q", self.map, l.READ_AT[ring], self.done[ring])
        if flags & l.BODY_ELSEWHERE:
            area, offset, length = l.SEGMENT.unpack_from(frame, 16)
            frame = frame[:16] + bytes(self.areas[area][offset:offset + length])
        return kind, number, frame


class Peer:
    """A runner process with one channel or more, and its answers. Frames of channel 0 unless said otherwise."""

    def __init__(self, folder, model, areas=(2, 3), channels=1, python=os.environ.get("SLUICE_TEST_PYTHON") or sys.executable, environment=None, **load):
        """model is the source of model.py; it is written to folder/m/1. load overrides fields of LOAD."""
        version = pathlib.Path(folder) / "m" / "1"
        version.mkdir(parents=True, exist_ok=True)
        if model is not None:
            (version / "model.py").write_text(model)
        self.channels = [Frames(areas) for _ in range(channels)]
        self.load = {"model_file": str(version / "model.py"), "module": "1.model", "path": [str(version), str(version.parent)],
                     "model_dir": str(version), "name": "m", "version": "1", "decoupled": False, "async_batches": 1, "instances": channels,
                     "options": {}, **load}
        self.results = [queue.Queue() for _ in range(channels)]
        self.parts, self.calls, self.others, self.readiness = queue.Queue(), queue.Queue(), queue.Queue(), queue.Queue()
        self.logs, self.metrics = [], []
        self.next_offset = 1 << 20
        self.blocks = {}     # of NEED, by (area, offset): length
        self.given = []      # segments that came back
        self.parents = []    # of CONTROL
        self.taken = []      # calls whose answer was taken
        self.batches = 0
        self.events_seen = [0] * channels
        self.refuse_need = None
        self.needs_left = 1 << 30  # NEED frames that are granted
        self.metric_values = {}
        self.control = lambda what, model, argument, files: None
        argument = json.dumps({"protocol": 1, "channels": [c.argument() for c in self.channels]})
        self.process = subprocess.Popen(
            [python, "-u", str(RUNNER), argument], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            pass_fds=[fd for c in self.channels for fd in c.inherited()], start_new_session=True,
            preexec_fn=functools.partial(ctypes.CDLL(None).prctl, 1, signal.SIGKILL),  # PR_SET_PDEATHSIG, as the worker does
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})})
        self.output = {"stdout": b"", "stderr": b""}
        self.over = os.eventfd(0)
        self.threads = [threading.Thread(target=self._drain, args=(name,), daemon=True) for name in self.output]
        self.threads += [threading.Thread(target=self._read, args=(c,), daemon=True) for c in range(channels)]
        for t in self.threads:
            t.start()

    # What the process says.

    def _drain(self, name):
        for line in getattr(self.process, name):
            self.output[name] += line

    def _read(self, c):
        frames = self.channels[c]
        while True:
            ready, _, _ = select.select([frames.events[2], frames.events[3], self.over], [], [])
            if self.over in ready:
                return
            for ring in (3, 2):
                if frames.events[ring] in ready:
                    for _ in range(os.eventfd_read(frames.events[ring])):
                        kind, number, frame = frames.read(ring)
                        (self._event if ring == 3 else self._result)(c, kind, number, Reader(frame))

    def _result(self, c, kind, number, r):
        if kind == l.CALL:
            return self._call(c, number, r)
        if kind == l.HELLO:
            value = (r.take("I"), r.string(), r.string(), r.string())
        elif kind == l.LOADED:
            value = r.take("I")
        elif kind == l.COMPLETED:
            value = json.loads(r.string())
        elif kind == l.FAILED:
            value = Failed(r.take("B"), r.string(), r.string())
        elif kind == l.RESULT:
            events, ending = r.take("QB")
            if ending:
                value = (number, events, Failed(l.EXECUTE, r.string(), r.string()))
            else:
                value = (number, events, [self._request(c, r) for _ in range(r.take("I"))])
        else:
            value = None
        self.results[c].put((kind, value))

    def _request(self, c, r):
        status = r.take("B")
        return self._response(c, r, status) if status == l.ANSWERED else Answer(status, 0, "", "", {}, {})

    def _response(self, c, r, status=l.ANSWERED):
        code, message, parameters = r.take("B"), r.string(), r.string()
        outputs, segments = {}, {}
        for _ in range(r.take("H")):
            name, array, segment = self._tensor(c, r)
            outputs[name], segments[name] = array, segment
            self.blocks.pop(segment[:2], None)
        return Answer(status, code, message, parameters, outputs, segments)

    def _tensor(self, c, r):
        dtype, rank, _ = r.take("BBH")
        shape = struct.unpack_from(f"<{rank}q", r.frame, r.at)
        r.at += 8 * rank
        name = r.string()
        area, offset, length = segment = r.take("BQQ")
        memory = r.frame if area == 0 else self.channels[c].areas[area]
        data = bytes(memory[offset:offset + length])
        assert area or offset % 8 == 0, segment
        if dtype == l.BYTES:
            array = strings.array_of(strings.decode(data)).reshape(shape)
        elif dtype == l.BF16:
            array = np.frombuffer(data, np.uint16).reshape(shape)
        else:
            array = np.frombuffer(data, DTYPES[dtype]).reshape(shape)
        return name, array, segment

    def _event(self, c, kind, number, r):
        self.events_seen[c] += 1
        if kind == l.PART:
            key, flags = r.take("QB")
            self.parts.put(Part(key, flags, self._response(c, r) if flags & l.HAS_RESPONSE else None))
        elif kind == l.DROP:
            self.parts.put(Part(r.take("Q"), "drop", None))
        elif kind == l.NEED:
            size, answer = r.take("QB")
            self.needs_left -= 1
            if self.refuse_need or self.needs_left < 0:
                self.reply(number, b"\0" + string(self.refuse_need or "memory is full"), c)
            else:
                segment = self.allocate(size, 3 if answer else 1)
                self.blocks[segment[:2]] = size
                self.reply(number, b"\1" + l.SEGMENT.pack(*segment), c)
        elif kind == l.GIVE:
            segment = r.take("BQQ")
            self.blocks.pop(segment[:2], None)
            self.given.append(segment)
        elif kind == l.READINESS:
            self.readiness.put((number, r.take("B"), r.string()))
        elif kind == l.TAKEN:
            self.taken.append(number)
        elif kind == l.CALL:
            self._call(c, number, r)
        elif kind == l.CONTROL:
            what, parent, model, argument = r.take("B"), r.take("Q"), r.string(), r.string()
            self.parents.append(parent)
            files = {}
            for _ in range(r.take("I")):
                name = r.string()
                area, offset, length = r.take("BQQ")
                files[name] = bytes(self.channels[c].areas[area][offset:offset + length])
            try:
                value = self.metric_values.get((model, argument), 0) if what == l.CONTROL_METRIC else self.control(what, model, argument, files)
                self.reply(number, b"\1" + (struct.pack("<d", value) if what >= l.CONTROL_READY else b""), c)
            except ValueError as e:
                self.reply(number, b"\0" + string(str(e)), c)
        elif kind == l.LOG:
            self.logs.append((r.take("B"), r.string(), r.take("I"), r.string()))
        elif kind == l.METRIC:
            for _ in range(r.take("H")):
                kind, change, family, help, labels = r.take("B"), r.take("B"), r.string(), r.string(), r.string()
                buckets = [r.take("d") for _ in range(r.take("H"))]
                value = r.take("d")
                self.metrics.append((kind, change, family, help, labels, buckets, value))
                key = (family, labels)
                if change in (0, 1):
                    self.metric_values[key] = value + (self.metric_values.get(key, 0) if change else 0)
        else:
            self.others.put((kind, number, r))

    def _call(self, c, number, r):
        parent, model = r.take("Q"), r.string()
        version, correlation, _, timeout, flags, _ = r.take("qQQQII")
        request_id, text, parameters = r.string(), r.string(), r.string()
        outputs, inputs = r.take("HH")
        outputs = [r.string() for _ in range(outputs)]
        tensors = {}
        for _ in range(inputs):
            name, array, segment = self._tensor(c, r)
            tensors[name] = array
            self.blocks.pop(segment[:2], None)
        self.calls.put(Call(number, parent, model, version, text or correlation, timeout, flags, request_id, parameters, outputs, tensors))

    # What it is told.

    def allocate(self, size, area):
        offset = self.next_offset
        self.next_offset += size + 4095 & ~4095
        return area, offset, size

    def command(self, kind, body=b"", number=0, channel=0, flags=0):
        self.channels[channel].write(0, kind, number, body, flags)

    def ask_ready(self, number, channel=0):
        """Asks whether the model is ready: question number, of which those before are known."""
        c = self.channels[channel]
        os.eventfd_write(c.ready, number - c.asked)
        c.asked = number

    def reply(self, number, body, channel=0):
        self.channels[channel].write(1, l.REPLY, number, body)

    def result(self, kind, channel=0):
        """The value of the next frame of results, which must be of that kind."""
        try:
            got, value = self.results[channel].get(timeout=PATIENCE)
        except queue.Empty:
            raise AssertionError(f"no frame of kind {kind}; stderr: {self.output['stderr'].decode()}") from None
        assert got == kind, (got, value, self.output["stderr"].decode())
        return value

    def part(self):
        return self.parts.get(timeout=PATIENCE)

    def call(self):
        return self.calls.get(timeout=PATIENCE)

    def start(self, config=None, channel=0, **args):
        """HELLO, LOAD, INITIALIZE; gives the hooks."""
        assert self.result(l.HELLO, channel)[0] == l.PROTOCOL
        self.command(l.LOAD, string(json.dumps(self.load)), channel=channel)
        hooks = self.result(l.LOADED, channel)
        self.command(l.INITIALIZE, string(json.dumps(self.args(config, **args))), channel=channel)
        self.result(l.INITIALIZED, channel)
        return hooks

    def args(self, config=None, **args):
        return {"model_config": json.dumps(config or {}), "model_instance_kind": "CPU", "model_instance_name": "m_0_0",
                "model_instance_device_id": "0", "model_repository": self.load["path"][1], "model_version": "1", "model_name": "m", **args}

    def execute(self, *requests, grant=(0, 0, 0), channel=0):
        """Sends a batch; gives its id."""
        self.batches += 1
        body = struct.pack("<II", len(requests), len(requests)) + l.SEGMENT.pack(*grant)
        data, fixes = [], []
        for r in requests:
            r = request(**r) if isinstance(r, dict) else r
            body += r.head
            for head, array, area in r.tensors:
                wire = strings.encode(array) if array.dtype.kind in "OS" else array.tobytes()
                body += head
                if area:
                    segment = self.allocate(len(wire), area)
                    self.channels[channel].areas[area][segment[1]:segment[1] + len(wire)] = wire
                    body += l.SEGMENT.pack(*segment)
                else:
                    fixes.append((len(body), wire))
                    body += bytes(l.SEGMENT.size)
        at = 16 + len(body) + 7 & ~7
        body = bytearray(body) + bytes(at - 16 - len(body))
        for place, wire in fixes:
            l.SEGMENT.pack_into(body, place, 0, at, len(wire))
            body += wire + bytes(-len(wire) & 7)
            at += len(wire) + 7 & ~7
        if len(body) + 16 > l.LARGEST_FRAME:
            segment = self.allocate(len(body), 1)
            self.channels[channel].areas[1][segment[1]:segment[1] + len(body)] = bytes(body)
            self.command(l.EXECUTE, l.SEGMENT.pack(*segment), self.batches, channel, l.BODY_ELSEWHERE)
        else:
            self.command(l.EXECUTE, bytes(body), self.batches, channel)
        return self.batches

    def answers(self, *requests, **kwargs):
        """Executes a batch; gives what RESULT says of its requests, or Failed."""
        number = self.execute(*requests, **kwargs)
        got, events, answers = self.result(l.RESULT, kwargs.get("channel", 0))
        assert got == number
        return answers

    def answer(self, outputs, code=0, message="", parameters=""):
        """The body of a response."""
        body = bytes((code,)) + string(message) + string(parameters) + struct.pack("<H", len(outputs))
        data = []
        for name, array in outputs.items():
            wire = strings.encode(array) if array.dtype.kind in "OS" else array.tobytes()
            segment = self.allocate(len(wire), 1)
            self.channels[0].areas[1][segment[1]:segment[1] + len(wire)] = wire
            data.append(segment)
            body += tensor_head(name, array) + l.SEGMENT.pack(*segment)
        return body

    def answer_call(self, call, outputs=None, final=True, **error):
        flags = l.FINAL * final | l.HAS_RESPONSE * (outputs is not None or bool(error))
        self.reply(call.id, bytes((flags,)) + (self.answer(outputs or {}, **error) if flags & l.HAS_RESPONSE else b""))

    def cancel(self, key):
        struct.pack_into("<I", self.channels[0].map, l.CANCELLED_AT + 4 * (key & 0xFFFF), key >> 16)

    def levels(self, bits):
        struct.pack_into("<I", self.channels[0].map, l.LOG_LEVELS_AT, bits)

    def finalize(self):
        """FINALIZE on all channels; the process must end by itself with 0."""
        for c in range(len(self.channels)):
            self.command(l.FINALIZE, channel=c)
            self.result(l.FINALIZED, c)
        status = self.process.wait(PATIENCE)
        assert status == 0, (status, self.output["stderr"].decode())

    def close(self):
        if self.over is None:
            return
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.eventfd_write(self.over, 1)
        for t in self.threads:
            t.join()
        for stream in (self.process.stdout, self.process.stderr):
            stream.close()
        for c in self.channels:
            for fd in c.inherited():
                os.close(fd)
        os.close(self.over)
        self.over = None


def tensor_head(name, array, dtype=None):
    dtype = dtype or DATATYPES.get(array.dtype, l.BYTES)
    return struct.pack(f"<BBH{array.ndim}q", dtype, array.ndim, 0, *array.shape) + string(name)


Request = collections.namedtuple("Request", "head tensors")


def request(inputs, key=1 << 16, outputs=("OUT",), rows=1, flags=0, correlation=0, timeout=0, id="", trace="", parameters="", area=0,
            dtypes=None):
    """A request of a batch. inputs: {name: array}; area is where they lie."""
    text = correlation if isinstance(correlation, str) else ""
    head = l.REQUEST.pack(key, 0 if text else correlation, timeout, rows, flags, len(inputs), len(outputs), 0)
    head += string(id) + string(text) + string(trace) + string(parameters) + b"".join(map(string, outputs))
    return Request(head, [(tensor_head(n, a, (dtypes or {}).get(n)), a, area) for n, a in inputs.items()])

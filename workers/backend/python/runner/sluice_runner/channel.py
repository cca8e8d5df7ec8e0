"""A channel to the worker: what is written on it, and blocks of memory for large tensors.

A process has one or more; each is served by a thread of its own, and calls of models go by the channel of their thread, or by
the first where their thread serves none.
"""
import threading

import numpy as np

from . import rings, wire
from .areas import Areas
from .layout import (BODY_ELSEWHERE, EVENTS, EXCHANGE, GIVE, HEADER, LARGEST_FRAME, NEED, RESPONSES, RESULTS, SEGMENT, U64)
from .replies import Replies, checked
from .tensor import Tensor, byte_size, datatype_of, received

ALIGNMENT = 64  # of tensors in a grant


class Channel:
    """The process's end of one channel."""

    def __init__(self, memory, exchange, events, areas, ready):
        """Numbers are inherited descriptors; areas: {area: descriptor}, without the exchange memory; ready: the eventfd of READY."""
        self.memory = rings.Memory(memory)
        self.ready = ready
        self.areas = Areas({EXCHANGE: exchange, **areas})
        self.answers_apart = RESPONSES in self.areas.areas  # answers have memory of their own
        self.commands = rings.RingReader(self.memory, 0, events[0])
        self.replies = Replies(self.memory, events[1], self.areas, self.give)
        self.results = rings.RingWriter(self.memory, RESULTS, events[RESULTS])
        self.events = rings.RingWriter(self.memory, EVENTS, events[EVENTS])
        self.grant = None           # of the batch that is being executed
        self.open_keys = set()      # of requests without a final answer
        self.serving = False        # between initialize and finalize
        self.executes = None        # the thread that is in execute

    def send_result(self, kind, number, body):
        self._send(self.results, kind, number, body)

    def send(self, kind, number, body):
        """Writes a frame of the ring of events."""
        self._send(self.events, kind, number, body)

    def _send(self, ring, kind, number, body):
        if len(body) + HEADER.size <= LARGEST_FRAME:
            return ring.write(kind, number, body)
        segment = self.need(len(body), False)
        self.write_block(segment, body)
        ring.write(kind, number, SEGMENT.pack(*segment), BODY_ELSEWHERE)

    def need(self, size, answer):
        """(area, offset, length) of a block to write, where answers lie or in the exchange memory. TritonModelException where there is
        no room."""
        body = U64.pack(size) + bytes((answer,))
        frame = self.replies.ask(lambda number: self.events.write(NEED, number, body))
        return checked(wire.Reader(frame)).take(SEGMENT)

    def give(self, segment):
        """Gives a block back; finalizers call it too."""
        self.events.write_soon(GIVE, 0, SEGMENT.pack(*segment))

    def take_back(self, placed):
        """Gives back the blocks of tensors that are not sent after all. The grant's are the worker's anyway."""
        for packed in placed:
            segment = SEGMENT.unpack(packed)
            if self.grant is None or not self.grant.has(segment):
                self.give(segment)
        placed.clear()

    def write_block(self, segment, data):
        area, offset, _ = segment
        shared = self.areas.areas[area].shared_to(offset + len(data))
        shared[offset:offset + len(data)] = data

    def place(self, size, data):
        """Copies a large tensor into the batch's grant, or into a block of its own; gives its packed segment."""
        segment = self.grant.take(size) if self.grant is not None else None
        return self._copied(segment or self.need(size, self.answers_apart), size, data)

    def place_apart(self, size, data):
        """As place, for answers that go without RESULT: the grant is not for them."""
        return self._copied(self.need(size, self.answers_apart), size, data)

    def _copied(self, segment, size, data):
        if type(data) is Tensor and data._array is not None:
            area, offset, _ = segment
            array = data._array
            np.ndarray(array.shape, array.dtype, self.areas.areas[area].shared_to(offset + size), offset)[...] = array
        else:
            self.write_block(segment, data if type(data) is not Tensor else data._raw())
        return SEGMENT.pack(segment[0], segment[1], size)

    def empty(self, name, shape, dtype):
        """A tensor for an answer, in the memory that it is sent from."""
        dtype = np.dtype(dtype)
        number = datatype_of(dtype)
        if dtype.kind in "OS":
            return Tensor(name, np.empty(shape, dtype))
        shape = tuple(shape) if np.iterable(shape) else (shape,)
        size = byte_size(number, shape)
        if size <= wire.INLINE:
            return Tensor(name, np.empty(shape, dtype))
        grant = self.grant
        segment = grant.take(size) if grant is not None else None
        block = Block(self, segment or self.need(size, self.answers_apart), grant if segment else None)
        return received(name, number, shape, block.memory(), 0, size, 0, block)


class Grant:
    """The block that comes with a batch for its answers."""

    def __init__(self, area, offset, length):
        self.area, self.begin, self.at, self.end = area, offset, offset, offset + length

    def has(self, segment):
        """Whether a segment is of it."""
        return segment[0] == self.area and self.begin <= segment[1] < self.end

    def take(self, size):
        """A segment of it; None where too little is left."""
        at = self.at + ALIGNMENT - 1 & -ALIGNMENT
        if at + size > self.end:
            return None
        self.at = at + size
        return self.area, at, size


class Leased(np.ndarray):
    """Bytes of a block. Arrays on it hold it, and with it the block."""
    block = None


class Block:
    """Memory for one tensor: of a grant, or the process's own until it was sent. It is given back when nobody holds it."""
    __slots__ = ("channel", "segment", "grant", "sent", "__weakref__")

    def __init__(self, channel, segment, grant=None):
        self.channel, self.segment, self.grant, self.sent = channel, segment, grant, False

    def memory(self, private=False):
        """The block as an array of bytes that holds it."""
        area, offset, length = self.segment
        shared = self.channel.areas.areas[area].shared_to(offset + length)
        leased = np.ndarray.__new__(Leased, (length,), np.uint8, shared, offset)
        leased.block = self
        return leased

    def send(self, tensor, place):
        """The packed segment of a tensor that lies here, the first time that it is sent; None: it has to be copied."""
        if self.sent or self.grant is not None and (self.grant is not self.channel.grant or place != self.channel.place):
            return None
        self.sent = True
        return SEGMENT.pack(*self.segment)

    def __del__(self):
        if not self.sent and self.grant is None:
            self.channel.give(self.segment)


class Received(Block):
    """A block that came with an answer to a call. It is never sent on: the worker gave it to read."""
    __slots__ = ()

    def send(self, tensor, place):
        return None


_threads = threading.local()
_channels = []


def announce(channel):
    """Adds a channel of the process. Calls of threads that serve none go by the first."""
    _channels.append(channel)


def serve(channel):
    """Has calls of this thread go by a channel."""
    _threads.channel = channel


def current():
    """The channel of this thread; None in a process that has none."""
    return getattr(_threads, "channel", None) or (_channels[0] if _channels else None)


def all_channels():
    """The channels of this process, in the order of its argument."""
    return _channels


def replace_all(channel):
    """Has all calls of this process go by another channel: in a process that was forked off."""
    global _threads
    _channels[:] = [channel] if channel else []
    _threads = threading.local()

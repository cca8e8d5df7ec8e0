"""The memory of a channel and its rings. A ring has one reader at a time; its writers take its lock. The eventfd of a ring
counts frames: a reader looks at as many as it was told of."""
import collections
import mmap
import os
import select
import threading
import time

from .layout import (BODY_ELSEWHERE, CANCELLED_AT, HEADER, LARGEST_FRAME, LOG_LEVELS_AT, MAGIC, MEMORY_SIZE, PROTOCOL, READ_AT,
                     RING_SIZE, RINGS_AT, SEGMENT, SLOTS, STATE_AT)

ONE = (1).to_bytes(8, "little")


class Memory:
    """The memfd of a channel, mapped."""

    def __init__(self, fd):
        self.map = mmap.mmap(fd, MEMORY_SIZE)
        self.view = memoryview(self.map)
        # Items of a cast view are read and written whole; struct writes byte by byte.
        self.words = self.view.cast("I")
        self.longs = self.view.cast("Q")
        if self.words[0] != MAGIC or self.words[1] != PROTOCOL:
            raise RuntimeError(f"channel memory: magic {self.words[0]:#x} version {self.words[1]}, want {MAGIC:#x} version {PROTOCOL}")

    def wants(self, level):
        """Whether log lines of a level (a bit) are wanted now."""
        return self.words[LOG_LEVELS_AT // 4] & level

    def ending(self):
        return self.words[STATE_AT // 4] == 1

    def cancelled(self, key):
        """Whether the request of a key was cancelled."""
        slot = key & 0xFFFF
        return slot < SLOTS and self.words[CANCELLED_AT // 4 + slot] == key >> 16 & 0xFFFFFFFF


class RingReader:
    """The reader's end of a ring. Its methods are for one thread at a time."""

    def __init__(self, memory, ring, event):
        self.memory, self.event = memory, event
        self.start = RINGS_AT + ring * RING_SIZE
        self.at = self.done = 0
        self.done_at = READ_AT[ring] // 8
        os.set_blocking(event, True)

    def wait(self):
        """How many frames were announced since it last returned; waits for one."""
        while True:
            try:
                return int.from_bytes(os.read(self.event, 8), "little")
            except BlockingIOError:  # the other end has made it non-blocking
                poll = select.poll()
                poll.register(self.event, select.POLLIN)
                poll.poll()

    def announced(self):
        """As wait, but 0 where none is announced. The eventfd must not block."""
        try:
            return int.from_bytes(os.read(self.event, 8), "little")
        except BlockingIOError:
            return 0

    def poll(self):
        """As wait, but 0 where none is announced."""
        poll = select.poll()
        poll.register(self.event, select.POLLIN)
        return self.wait() if poll.poll(0) else 0

    def next(self):
        """(kind, flags, id, frame) of the next announced frame. The frame is a copy, header and all."""
        at = self.at
        size, kind, flags, _, number = HEADER.unpack_from(self.memory.view, self.start + at)
        while not kind:
            self.done += RING_SIZE - at
            at = 0
            size, kind, flags, _, number = HEADER.unpack_from(self.memory.view, self.start)
        begin = self.start + at
        frame = bytearray(self.memory.view[begin:begin + size])
        self.at = (at + size) % RING_SIZE
        self.done += size
        self.memory.longs[self.done_at] = self.done
        return kind, flags, number, frame


class RingWriter:
    """The writer's end of a ring; any thread."""

    def __init__(self, memory, ring, event):
        self.memory, self.event = memory, event
        self.start = RINGS_AT + ring * RING_SIZE
        self.at = self.written = 0
        self.frames = 0  # written, ever
        self.done_at = READ_AT[ring] // 8
        self.lock = threading.Lock()
        self.later = collections.deque()

    def write(self, kind, number, body, flags=0):
        """Writes one frame; waits for room. body is bytes of at most LARGEST_FRAME, its header not counted."""
        with self.lock:
            self._write(kind, number, body, flags)
        if self.later:
            self._write_later()

    def write_soon(self, kind, number, body):
        """Writes one frame, from a finalizer: it may run inside of write, whose lock it must not wait for."""
        self.later.append((kind, number, body))
        self._write_later()

    def _write_later(self):
        # Who holds the lock looks for what was left to it when it has let go.
        while self.later and self.lock.acquire(False):
            try:
                while self.later:
                    self._write(*self.later.popleft(), 0)
            finally:
                self.lock.release()

    def _write(self, kind, number, body, flags):
        size = len(body) + 23 & ~7
        if size > LARGEST_FRAME:
            raise ValueError(f"a frame of {size} bytes, at most {LARGEST_FRAME}")
        at = self.at
        left = RING_SIZE - at
        need = size if size <= left else size + left
        if self.written + need - self.memory.longs[self.done_at] > RING_SIZE:
            self._wait_for_room(need)
        view = self.memory.view
        if size > left:
            view[self.start + at:self.start + at + 8] = HEADER.pack(left, 0, 0, 0, 0)[:8]
            at = 0
        begin = self.start + at
        HEADER.pack_into(view, begin, size, kind, flags, 0, number)
        view[begin + 16:begin + 16 + len(body)] = body
        self.at = (at + size) % RING_SIZE
        self.written += need
        self.frames += 1
        os.write(self.event, ONE)

    def _wait_for_room(self, need):
        pause = 5e-5
        while self.written + need - self.memory.longs[self.done_at] > RING_SIZE:
            if self.memory.ending():
                raise SystemExit("the worker ends this process")
            time.sleep(pause)
            pause = min(2 * pause, 2e-3)


def whole(frame, flags, areas):
    """The frame with its body in place, wherever the body lay."""
    if not flags & BODY_ELSEWHERE:
        return frame
    return frame[:16] + areas.copy(*SEGMENT.unpack_from(frame, 16))

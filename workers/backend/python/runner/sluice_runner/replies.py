"""Replies to what the process asked for. Whoever waits for one reads the ring of replies itself and hands on those of others;
no thread does it for all. Of several threads that wait one is the reader, the others sleep until theirs is there or the
reader has left. Event loops that have futures open read along with add_reader.
"""
import itertools
import threading

from . import rings
from .errors import TritonModelException
from .layout import BODY_ELSEWHERE, HEADER, REPLIES, SEGMENT


class Waiter:
    """One caller's wait for the replies to one frame. deliver is called by whichever thread reads the ring."""
    __slots__ = ("frames", "wake")

    def __init__(self):
        self.frames = []   # replies that came
        self.wake = None   # a lock that its thread sleeps on

    def deliver(self, frame):
        self.frames.append(frame)

    def there(self):
        return self.frames


class Replies:
    """The ring of replies and who waits for what."""

    def __init__(self, memory, event, areas, give):
        """give(segment) gives back a block."""
        self.ring = rings.RingReader(memory, REPLIES, event)
        self.areas, self.give = areas, give
        self.numbers = itertools.count(1)
        self.waiters = {}          # id of a frame -> who wants its replies
        self.mutex = threading.Lock()
        self.reading = False       # a thread is at the ring
        self.sleeping = []         # waiters whose threads sleep
        self.loops = {}            # event loop -> futures open in it

    def open(self, waiter):
        """An id for a frame that is answered to waiter, until close."""
        number = next(self.numbers)
        self.waiters[number] = waiter
        return number

    def close(self, number):
        self.waiters.pop(number, None)

    def wait(self, waiter, done):
        """Returns when done() says so, which deliver to this waiter has made true."""
        while not done():
            with self.mutex:
                if done():
                    return
                first = not self.reading
                if first:
                    self.reading = True
                else:
                    waiter.wake = threading.Lock()
                    waiter.wake.acquire()
                    self.sleeping.append(waiter)
            if first:
                try:
                    self._read(self.ring.wait())
                finally:
                    self._leave()
            else:
                waiter.wake.acquire()  # until delivered, or until the reader has left

    def read_ready(self):
        """Reads what is there, from an event loop that was told of it; another thread that reads is left to it."""
        with self.mutex:
            if self.reading:
                return
            self.reading = True
        try:
            count = self.ring.poll()
            if count:
                self._read(count)
        finally:
            self._leave()

    def _leave(self):
        with self.mutex:
            self.reading = False
            if self.sleeping:
                self.sleeping.pop().wake.release()

    def _read(self, count):
        for _ in range(count):
            _, flags, number, frame = self.ring.next()
            if flags & BODY_ELSEWHERE:
                segment = SEGMENT.unpack_from(frame, HEADER.size)
                frame = rings.whole(frame, flags, self.areas)
                self.give(segment)
            waiter = self.waiters.get(number)
            if waiter is None:
                continue  # nobody wants it: its call was given up
            waiter.deliver(frame)
            with self.mutex:
                if waiter in self.sleeping:
                    self.sleeping.remove(waiter)
                    waiter.wake.release()

    def join(self, loop):
        """Has an event loop read along, until leave; its thread calls both."""
        count = self.loops.get(loop, 0)
        if not count:
            loop.add_reader(self.ring.event, self.read_ready)
        self.loops[loop] = count + 1

    def leave(self, loop):
        self.loops[loop] -= 1
        if not self.loops[loop]:
            del self.loops[loop]
            loop.remove_reader(self.ring.event)

    def ask(self, write):
        """The one reply to the frame that write(id) writes."""
        waiter = Waiter()
        number = self.open(waiter)
        try:
            write(number)
            self.wait(waiter, waiter.there)
        finally:
            self.close(number)
        return waiter.frames[0]


def checked(reader):
    """The reader of a reply behind its "ok"; its message as a TritonModelException where it says no."""
    ok, = reader.frame[reader.at:reader.at + 1]
    reader.at += 1
    if not ok:
        raise TritonModelException(reader.string())
    return reader

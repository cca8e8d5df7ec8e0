"""The memory that segments name. The worker allocates all of it; a process reads what it was given and writes into blocks
that were given to it for that.

Large inputs are views on a private mapping: what a model writes there is its own copy of the page. Such pages are dropped
after the batch, for they would hide what comes to lie there next. A view that outlives its batch keeps its mapping, whose
pages are made private first; the next batch has another mapping, and from then on inputs are copied.
"""
import ctypes
import gc
import mmap
import os
import sys
import threading

import numpy as np

from .layout import EXCHANGE, RESPONSES

PAGE = mmap.PAGESIZE
NO_RESERVE = 0x4000  # of mmap; the mmap module has the name from Python 3.12 on


class Area:
    """One memfd: a shared mapping for blocks to write, one to read, a private one for inputs."""

    def __init__(self, number, fd):
        self.number, self.fd = number, fd
        self.lock = threading.Lock()
        self.size = 0             # of what is mapped
        self.shared = None        # readable, and writable where the process may write
        self.private = None
        self.idle_references = 0  # to private, while no input is a view on it
        self.inputs = []          # (offset, length) of the batch's views

    def reach(self, end):
        """Maps it, or again where it has grown."""
        with self.lock:
            if end <= self.size:
                return
            size = os.fstat(self.fd).st_size
            if end > size:
                raise ValueError(f"a segment that ends at {end} in area {self.number} of {size} bytes")
            writable = self.number in (EXCHANGE, RESPONSES)
            self.shared = mmap.mmap(self.fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE * writable)
            self.size = size  # last: other threads look at it without the lock

    def shared_to(self, end):
        """The shared mapping; any thread."""
        if end > self.size:
            self.reach(end)
        return self.shared

    def private_to(self, end):
        """The private mapping; for the thread that executes batches. None where the area has grown since the batch's first input."""
        if self.private is None or end > self.private_size and not self.inputs:
            if end > self.size:
                self.reach(end)
            self.private_size = self.size
            self.private = mmap.mmap(self.fd, self.private_size, mmap.MAP_PRIVATE | NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE)
            self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.private))
            self.idle_references = sys.getrefcount(self.private)
        return self.private if end <= self.private_size else None


class Areas:
    """The areas of a channel. Methods on inputs are for the thread that executes batches."""

    def __init__(self, descriptors):
        """descriptors: {area: fd}"""
        self.areas = {number: Area(number, fd) for number, fd in descriptors.items()}
        self.copies = False  # a view has outlived its batch: inputs are copied from then on
        try:
            self.pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.pagemap = None  # then all pages of inputs are dropped

    def copy(self, area, offset, length):
        """A copy of a segment, a bytearray."""
        return bytearray(memoryview(self.areas[area].shared_to(offset + length))[offset:offset + length])

    def block(self, area):
        """The shared mapping of an area, to write into blocks of it."""
        return self.areas[area]

    def input(self, area, offset, length):
        """The private mapping in which a large input is a view, good until end_batch; None where it has to be copied."""
        a = self.areas[area]
        mapped = a.private_to(offset + length)
        if mapped is not None:
            a.inputs.append((offset, length))
        return mapped

    def end_batch(self):
        """Drops what the model wrote into its inputs, when it has let go of them; true if it has not. Comes before the result is
        sent: afterwards their memory is another's."""
        kept = False
        for a in self.areas.values():
            if not a.inputs:
                continue
            if sys.getrefcount(a.private) > a.idle_references:
                gc.collect()  # an exception that was caught may hold them in a cycle
            if sys.getrefcount(a.private) > a.idle_references:
                self._keep(a)
                kept = True
            else:
                self._drop_written(a)
            a.inputs.clear()
        self.copies |= kept
        return kept

    @staticmethod
    def _keep(a):
        """Makes the pages of inputs private by writing to each; its views alone hold the mapping from then on."""
        for offset, length in a.inputs:
            pages = np.ndarray((length - 1) // PAGE + 1, np.uint8, a.private, offset, (PAGE,))
            pages |= 0
            a.private[offset + length - 1] = a.private[offset + length - 1]
        a.private = None

    def _drop_written(self, a):
        for offset, length in a.inputs:
            first, end = offset // PAGE, (offset + length - 1) // PAGE + 1
            if self.pagemap is not None:
                entries = os.pread(self.pagemap, 8 * (end - first), 8 * (a.address // PAGE + first))
                state = np.frombuffer(entries, np.uint64) >> np.uint64(61)  # bit 0: of the file, 1: swapped, 2: present
                written = np.flatnonzero((state > 1) & (state & np.uint64(1) == 0))
                if not written.size:
                    continue
                first, end = first + int(written[0]), first + int(written[-1]) + 1
            a.private.madvise(mmap.MADV_DONTNEED, first * PAGE, min(end * PAGE, a.private_size) - first * PAGE)

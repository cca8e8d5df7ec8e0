"""BYTES tensors: their wire form is the length of each element, u32, and then the element."""
import struct

import numpy as np

LENGTH = struct.Struct("<I")
FROMITER = tuple(map(int, np.__version__.split(".")[:2])) >= (1, 23)  # takes objects
PREFIXES = [LENGTH.pack(n) for n in range(256)]


def encode(array):
    """The wire form of an array of objects or of S, in C order. What isn't bytes is its str() in UTF-8."""
    items = array.ravel().tolist()  # an array of S becomes bytes, as Python reads them: without zeros at the end
    try:
        return b"".join([PREFIXES[len(s)] + s for s in items])
    except (IndexError, TypeError):  # longer ones, or others than bytes
        return b"".join([part for s in items for part in _prefixed(s)])


def _prefixed(item):
    if not isinstance(item, bytes):
        item = str(item).encode("utf-8")
    return LENGTH.pack(len(item)), item


def decode(data, count=None):
    """A list of bytes. data is bytes-like; with count it must have as many."""
    data = bytes(data)
    if count is not None and count > 8:
        items = _equal(data, count)
        if items is not None:
            return items
    items, at, end = [], 0, len(data)
    add, unpack = items.append, LENGTH.unpack_from
    try:
        while at < end:
            n, = unpack(data, at)
            start = at + 4
            at = start + n
            add(data[start:at])
    except struct.error:
        raise ValueError(f"BYTES data of {end} bytes ends within the length of an element") from None
    if at != end:
        raise ValueError(f"BYTES data of {end} bytes ends within an element")
    if count is not None and len(items) != count:
        raise ValueError(f"BYTES data has {len(items)} elements, want {count}")
    return items


def _equal(data, count):
    """The items, where all have one length; None."""
    n, = LENGTH.unpack_from(data)
    if not n or len(data) != count * (4 + n):
        return None
    rows = np.frombuffer(data, np.dtype([("length", "<u4"), ("item", f"V{n}")]))
    return rows["item"].tolist() if (rows["length"] == n).all() else None


def array_of(items, shape=None):
    """A list of bytes as an array of objects."""
    array = np.fromiter(items, np.object_, len(items)) if FROMITER else np.array(items, np.object_)
    return array if shape is None else array.reshape(shape)

"""Reads and writes bodies of frames: strings, tensors, responses."""
import struct

from .layout import HEADER, SEGMENT, U32

INLINE = 8192          # a tensor of up to so many bytes lies in the frame itself
INLINE_IN_ALL = 65536  # of one frame
HEAD = HEADER.size
EMPTY = bytes(4)       # the empty string
SHAPES = [struct.Struct(f"<{rank}q") for rank in range(256)]

_heads = {}            # (name, dtype, shape) -> what stands before the tensor's segment
_pack = U32.pack


def string(s):
    """A string as the channel has it. Lone surrogates, as os.fsdecode makes them, become question marks."""
    if not s:
        return EMPTY
    try:
        data = s.encode()
    except UnicodeEncodeError:
        data = s.encode(errors="replace")
    return _pack(len(data)) + data


def blob(data):
    return _pack(len(data)) + data


class Reader:
    """Reads a body from its beginning."""
    __slots__ = ("frame", "at")

    def __init__(self, frame, at=HEAD):
        self.frame, self.at = frame, at

    def take(self, layout):
        values = layout.unpack_from(self.frame, self.at)
        self.at += layout.size
        return values

    def string(self):
        n, = U32.unpack_from(self.frame, self.at)
        start = self.at + 4
        self.at = start + n
        return self.frame[start:self.at].decode() if n else ""

    def tensor(self):
        """(name, dtype, shape, area, offset, length)"""
        frame, at = self.frame, self.at
        dtype, rank = frame[at], frame[at + 1]
        shape = SHAPES[rank].unpack_from(frame, at + 4)
        at += 4 + 8 * rank
        end = at + 4 + U32.unpack_from(frame, at)[0]
        area, offset, length = SEGMENT.unpack_from(frame, end)
        self.at = end + SEGMENT.size
        return frame[at + 4:end].decode(), dtype, shape, area, offset, length


def tensor_head(name, dtype, shape):
    """What stands before a tensor's segment."""
    key = (name, dtype, shape)
    head = _heads.get(key)
    if head is None:
        if len(_heads) > 4096:
            _heads.clear()
        head = struct.pack(f"<BBH{len(shape)}q", dtype, len(shape), 0, *shape) + string(name)
        _heads[key] = head
    return head


class Body:
    """A body that is being written. Small tensors lie behind it in the frame, large ones in blocks."""
    __slots__ = ("parts", "length", "data", "inline", "placed")

    def __init__(self):
        self.parts = []
        self.length = HEAD
        self.data = []   # (part that is its segment, bytes)
        self.inline = 0  # bytes of tensors that lie in the frame
        self.placed = []  # packed segments of those in blocks

    def add(self, part):
        self.parts.append(part)
        self.length += len(part)

    def lay(self, tensor, place):
        """Says where a tensor lies: (packed segment, None), or (None, bytes) of one that goes with the frame. place(size, bytes or
        Tensor) copies a large one into a block and gives its packed segment; what it raises passes through."""
        if tensor._owner is not None:
            segment = tensor._owner.send(tensor, place)
            if segment is not None:
                self.placed.append(segment)
                return segment, None
        size = tensor._size()
        data = None
        if size < 0 or size <= INLINE:
            data = tensor._wire()
            size = len(data)
            if size <= INLINE and self.inline + size <= INLINE_IN_ALL:
                self.inline += size + 7 & ~7
                return None, data
        segment = place(size, tensor if data is None else data)
        self.placed.append(segment)
        return segment, None

    def tensor(self, tensor, place):
        """Adds a tensor."""
        segment, data = self.lay(tensor, place)
        head = tensor_head(tensor._name, tensor._dtype, tensor._shape)
        self.parts.append(head)
        self.parts.append(segment)
        self.length += len(head) + SEGMENT.size
        if segment is None:
            self.data.append((len(self.parts) - 1, data))

    def response(self, code, message, parameters):
        """Adds a response without tensors."""
        self.add(bytes((code,)) + string(message) + string(parameters) + b"\0\0")

    def finish(self):
        """The body's bytes."""
        if not self.data:
            return b"".join(self.parts)
        parts, at = self.parts, self.length
        tail = []
        for part, data in self.data:
            if at & 7:
                tail.append(bytes(-at & 7))
                at = at + 7 & ~7
            n = len(data)
            parts[part] = SEGMENT.pack(0, at, n)
            tail.append(data)
            at += n
        return b"".join(parts + tail)

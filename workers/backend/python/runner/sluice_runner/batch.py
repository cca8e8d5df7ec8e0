"""Batches: EXECUTE becomes a list of requests, and their answers become RESULT."""
import math

import numpy as np

from .channel import Grant
from .errors import ErrorCode, Refused, TritonModelException, WIRE_CODES, describe
from .layout import BATCH, BF16, BYTES, FRAME, HEADER, REQUEST, SEGMENT
from .logger import Logger
from .request import RELEASE_ALL, InferenceRequest, InferenceTrace
from .tensor import DTYPES, NAMES, Tensor, received
from .wire import INLINE, INLINE_IN_ALL, Reader, string, tensor_head

VIEWS_FROM = 65536  # bytes of an input that becomes a view on shared memory
NO_STRINGS = bytes(16)
PLAIN = bytes(9)  # code, message and parameters of a response that has none

new = object.__new__


class RequestList(list):
    """The requests of a batch."""

    def stacked(self, name):
        """An input of all requests in one array, along the first axis: a view where it lies together, else a copy. KeyError where
        a request does not have it."""
        arrays = []
        for request in self:
            tensor = next((t for t in request._inputs if t._name == name), None)
            if tensor is None:
                raise KeyError(name)
            arrays.append(tensor.as_numpy())
        if len(arrays) == 1:
            return arrays[0]
        return _joined(arrays) if _together(arrays) else np.concatenate(arrays)


def _together(arrays):
    """Whether the arrays are one behind the other in one buffer."""
    first = arrays[0]
    at = first.ctypes.data
    for a in arrays:
        if a.base is None or a.base is not first.base or a.dtype != first.dtype or a.shape[1:] != first.shape[1:] or not a.ndim:
            return False
        if a.ctypes.data != at or not a.flags.c_contiguous:
            return False
        at += a.nbytes
    return first.dtype.kind != "O"


def _joined(arrays):
    first = arrays[0]
    shape = (sum(a.shape[0] for a in arrays),) + first.shape[1:]
    return np.lib.stride_tricks.as_strided(first, shape, first.strides)


class Decoder:
    """Reads EXECUTE frames of a channel."""

    def __init__(self, channel, views, decoupled):
        """views: large inputs are views on shared memory, good until the batch has ended."""
        self.channel, self.views, self.decoupled = channel, views, decoupled
        self.viewed = False   # the last batch has such views
        self.outputs = {}     # number of outputs -> (their bytes, their names) of the last request that asked for so many
        self.heads = []       # of each input of the last request: (its bytes, dtype, shape, name)

    def read(self, frame):
        """(requests, grant) of a batch. The grant is None where there is none."""
        count, _, area, offset, length = BATCH.unpack_from(frame, HEADER.size)
        at = HEADER.size + BATCH.size
        requests = RequestList()
        for _ in range(count):
            request, at = self._request(frame, at)
            requests.append(request)
        return requests, Grant(area, offset, length) if length else None

    def _request(self, frame, at):
        r = new(InferenceRequest)
        key, correlation, timeout, rows, flags, inputs, outputs, _ = REQUEST.unpack_from(frame, at)
        at += REQUEST.size
        r._key, r._timeout, r._rows, r._flags = key, timeout, rows, flags
        if frame[at:at + 16] == NO_STRINGS:
            at += 16
            r._id, r._correlation, r._trace, r._parameters = "", correlation, "", "{}"
        else:
            reader = Reader(frame, at)
            r._id = reader.string()
            r._correlation = reader.string() or correlation
            r._trace = reader.string()
            r._parameters = reader.string() or "{}"
            at = reader.at
        known = self.outputs.get(outputs)
        if known is not None and frame.startswith(known[0], at):
            at += len(known[0])
        else:
            reader = Reader(frame, at)
            names = frozenset([reader.string() for _ in range(outputs)])
            known = self.outputs[outputs] = bytes(frame[at:reader.at]), names
            at = reader.at
        r._outputs = known[1]
        r._inputs = tensors = []
        for i in range(inputs):
            tensor, at = self._input(frame, at, i, key)
            tensors.append(tensor)
        r._channel = self.channel
        r._decoupled = self.decoupled
        r._sender = None
        r._release = RELEASE_ALL
        return r, at

    def _input(self, frame, at, i, key):
        heads = self.heads
        if i < len(heads) and frame.startswith(heads[i][0], at):
            head = heads[i]
            at += len(head[0])
        else:
            reader = Reader(frame, at)
            name, dtype, shape = reader.tensor()[:3]
            end = reader.at - SEGMENT.size
            head = bytes(frame[at:end]), dtype, shape, name
            at = end
            del heads[i:]  # those that follow are others too, most likely
            heads.append(head)
        area, offset, length = SEGMENT.unpack_from(frame, at)
        _, dtype, shape, name = head
        if area == FRAME:
            buffer = frame
        else:
            areas, buffer = self.channel.areas, None
            if length >= VIEWS_FROM and self.views and dtype != BYTES and not areas.copies:
                buffer = areas.input(area, offset, length)
            if buffer is None:
                buffer, offset = areas.copy(area, offset, length), 0
            else:
                self.viewed = True
        return received(name, dtype, shape, buffer, offset, length, key), at + SEGMENT.size


class OutputChecks:
    """What the config says of outputs. Tensors that contradict it are refused."""

    def __init__(self, name, config):
        """config: the model's, a dict; outputs that it is silent of are not checked."""
        self.name = name
        self.batched = int(config.get("max_batch_size") or 0) > 0
        self.outputs = {o["name"]: o for o in config.get("output") or ()}
        for state in (config.get("sequence_batching") or {}).get("state") or ():
            self.outputs.setdefault(state["output_name"], state)
        self.said = set()  # (name, dtype) of what was made to fit
        self.passed = {}   # (name, dtype, shape) of those that were found right -> head

    def admit(self, tensor, rows):
        """(tensor, head): what is sent in place of a tensor that was not found right before, and what stands before it on the channel.
        A tensor that contradicts the config is Refused. Where nothing is lost it is made what the config says, since models of Triton's
        own tests answer so: integers of another width that has room for them, floats of a smaller one, zeros and ones as BOOL, and
        dimensions of size 1 that are missing or too many."""
        key = tensor._name, tensor._dtype, tensor._shape
        config = self.outputs.get(tensor._name)
        if config is None:
            fault = self.unknown(tensor._name)
            if fault is not None:
                raise Refused(fault)
        else:
            made = self._shaped(self._typed(tensor, config), config, rows)
            if made is not tensor:
                if key[:2] not in self.said:
                    self.said.add(key[:2])
                    Logger.log_warn(f"model '{self.name}', output '{tensor._name}': the model gave TYPE_{NAMES[key[1]]} {list(key[2])}, which is "
                                    f"made TYPE_{NAMES[made._dtype]} {list(made._shape)}, as its configuration says")
                return made, tensor_head(made._name, made._dtype, made._shape)
        if len(self.passed) > 4096:
            self.passed.clear()
        head = self.passed[key] = tensor_head(*key)
        return tensor, head

    def unknown(self, name):
        """Why an output that nobody asked for is refused; None: it is left out."""
        if self.outputs and name not in self.outputs:
            return f"model '{self.name}' gave output '{name}', which is not in its configuration"
        return None

    def _typed(self, tensor, config):
        """The tensor in the config's datatype."""
        want = config.get("data_type", "TYPE_INVALID")[len("TYPE_"):]
        have = NAMES[tensor._dtype]
        if want in ("INVALID", have):
            return tensor
        dtype = DTYPES[NAMES.index(want)] if want in NAMES else None
        if dtype is not None and tensor._dtype not in (BYTES, BF16):
            array = tensor.as_numpy()
            kinds = array.dtype.kind + dtype.kind
            if set(kinds) <= set("iu") and (not array.size or np.iinfo(dtype).min <= array.min() and array.max() <= np.iinfo(dtype).max) or \
                    kinds == "ff" and array.dtype.itemsize < dtype.itemsize or \
                    dtype.kind == "b" and kinds[0] in "iuf" and np.isin(array, (0, 1)).all():
                return Tensor(tensor._name, array.astype(dtype))
        raise Refused(f"model '{self.name}', output '{tensor._name}': the model gave datatype TYPE_{have}, its configuration says TYPE_{want}")

    def _shaped(self, tensor, config, rows):
        """The tensor in a shape that the config allows. One that is changed has as many rows as its request."""
        dims = (config.get("reshape") or {}).get("shape") if "reshape" in config else config.get("dims")
        if dims is None:
            return tensor
        dims = [int(d) for d in dims]
        full = ([-1] + dims) if self.batched else dims
        shape = list(tensor._shape)
        if len(full) == len(shape) and all(d < 0 or d == s for d, s in zip(full, shape)):
            return tensor
        fixed = math.prod(d for d in full if d >= 0)
        unknown = sum(d < 0 for d in full)
        if unknown <= 1 and fixed and math.prod(shape) % fixed == 0:
            want = [math.prod(shape) // fixed if d < 0 else d for d in full]
            if self.batched and want[0] != rows:
                want = []
            if math.prod(want) == math.prod(shape) and [d for d in want if d != 1] == [d for d in shape if d != 1] and tensor._dtype != BF16:
                return Tensor(tensor._name, tensor.as_numpy().reshape(want))
        if math.prod(shape) == 1:  # models of Triton's tests answer with one number
            if (tensor._name, tensor._shape) not in self.said:
                self.said.add((tensor._name, tensor._shape))
                Logger.log_warn(f"model '{self.name}', output '{tensor._name}': the model gave shape {shape}, its configuration says {full}")
            return tensor
        raise Refused(f"model '{self.name}', output '{tensor._name}': the model gave shape {shape}, its configuration says {full}")


def respond(body, before, response, request, checks, place):
    """Adds a response to a body, after the bytes before: the outputs that its request, or the sender of it, asked for, or an error in
    place of what is refused. Blocks for large ones come from place, a method of a channel."""
    error = response._error
    if error is not None:
        body.add(before)
        return body.response(WIRE_CODES[error._code], error._message, response._parameters)
    parts, data = body.parts, body.data
    mark = len(parts), len(body.placed), len(data), body.inline
    parts.append(None)
    length, count, names = body.length, 0, None
    outputs, passed = request._outputs, checks.passed
    try:
        for tensor in response._tensors:
            name = tensor._name
            if name not in outputs:
                fault = checks.unknown(name)
                if fault is not None:
                    raise Refused(fault)
                continue
            key = name, tensor._dtype, tensor._shape
            head = passed.get(key)
            if head is None:
                tensor, head = checks.admit(tensor, request._rows)
            if count:
                names = names or {response._tensors[0]._name}
                if name in names:
                    raise Refused(f"model '{checks.name}' gave output '{name}' twice")
                names.add(name)
            count += 1
            array = tensor._array
            if array is not None and tensor._dtype != BYTES and array.nbytes <= INLINE and body.inline < INLINE_IN_ALL and tensor._owner is None:
                segment, wire = None, array.tobytes()  # the usual case, of what lay does
                body.inline += array.nbytes + 7 & ~7
            else:
                segment, wire = body.lay(tensor, place)
            parts.append(head)
            parts.append(segment)
            length += len(head) + SEGMENT.size
            if segment is None:
                data.append((len(parts) - 1, wire))
    except Exception as e:
        # No room (TritonModelException), a refusal, an element's __str__, an array that can't be copied.
        place.__self__.take_back(body.placed[mark[1]:])
        del body.placed[mark[1]:]
        del parts[mark[0]:], data[mark[2]:]
        body.inline = mark[3]
        body.add(before)
        if isinstance(e, TritonModelException):
            return body.response(WIRE_CODES[ErrorCode.UNAVAILABLE], str(e), "")
        text = str(e) if isinstance(e, Refused) else describe(e, "")[0]
        return body.response(WIRE_CODES[ErrorCode.INTERNAL], text, "")
    if response._parameters:
        said = before + PLAIN[:5] + string(response._parameters) + count.to_bytes(2, "little")
    else:
        said = before + PLAIN + count.to_bytes(2, "little")
    parts[mark[0]] = said
    body.length = length + len(said)

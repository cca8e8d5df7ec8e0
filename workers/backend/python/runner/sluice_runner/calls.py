"""Calls of other models: exec, async_exec, and the iterator over the answers of a decoupled one."""
import struct
import threading

from . import wire
from .channel import Received, current
from .errors import CODES, ErrorCode, TritonError, TritonModelException
from .layout import CALL, CALLCANCEL, FINAL, FRAME, HAS_RESPONSE, SEGMENT, TAKEN
from .replies import Waiter
from .request import looked_into
from .response import InferenceResponse
from .tensor import received

CALL_HEAD = struct.Struct("<Q")
CALL_BODY = struct.Struct("<qQQQII")  # version, correlation, priority, timeout, flags, 0
DECOUPLED = 4  # of a call's flags


class Call(Waiter):
    """A call under way and its answers, in their wire form until somebody takes them."""
    __slots__ = ("channel", "number", "name", "ended", "ready", "discarded")

    def __init__(self, channel, name):
        super().__init__()
        self.channel, self.name = channel, name
        self.ended = False      # the final answer has come
        self.ready = None       # called when an answer comes, once
        self.discarded = False  # nobody wants what comes
        self.number = channel.replies.open(self)

    def deliver(self, frame):
        flags = frame[wire.HEAD]
        if flags & FINAL:
            self.ended = True
            self.channel.replies.close(self.number)
        self.frames.append(frame)
        if self.discarded:
            self.discard()
        ready, self.ready = self.ready, None
        if ready is not None:
            ready()

    def there(self):
        return self.frames or self.ended

    def take(self, copied):
        """The next answer that came, as an InferenceResponse. copied: its memory is given back at once."""
        reader = wire.Reader(self.frames.pop(0))
        flags, = reader.take(BYTE)
        if not flags & HAS_RESPONSE:
            return InferenceResponse()
        return read_response(self.channel, reader, copied, self)

    def cancel(self):
        if not self.ended:
            self.channel.events.write_soon(CALLCANCEL, self.number, b"")

    def discard(self):
        """Gives back what has come and will come, unread."""
        self.discarded = True
        while self.frames:
            try:
                self.take(False)
            except IndexError:  # another thread has it
                return


BYTE = struct.Struct("<B")


def read_response(channel, reader, copied, call):
    """An InferenceResponse from a REPLY. Its large tensors lie in blocks that are given back when nobody holds them, or are copied
    and given back at once."""
    frame, at = reader.frame, reader.at
    response = new(InferenceResponse)
    response._error = None
    if frame.startswith(PLAIN, at):
        response._parameters = ""
        reader.at = at + len(PLAIN)
    else:
        code, = reader.take(BYTE)
        message, response._parameters = reader.string(), reader.string()
        if code:
            response._error = TritonError(message, CODES.get(code, ErrorCode.INTERNAL))
    count, = reader.take(COUNT)
    tensors, given = [], False
    for _ in range(count):
        name, dtype, shape, area, offset, length = reader.tensor()
        if area == FRAME:
            tensor = received(name, dtype, shape, frame, offset, length)
        elif copied:
            tensor = received(name, dtype, shape, channel.areas.copy(area, offset, length), 0, length)
            channel.give((area, offset, length))
            given = True
        else:
            block = Received(channel, (area, offset, length))
            tensor = received(name, dtype, shape, block.memory(), 0, length, 0, block)
            given = True
        tensors.append(tensor)
    if call is not None and copied and not given:
        channel.events.write_soon(TAKEN, call.number, b"")
    response._tensors = tensors
    return response


PLAIN = bytes(9)  # code, message and parameters of a response that has none
new = object.__new__
COUNT = struct.Struct("<H")


def begin(request, decoupled):
    """Writes CALL; gives the Call."""
    channel = current()
    if channel is None or not channel.serving:
        raise TritonModelException("BLS is only supported during the 'execute' function.")
    call = Call(channel, request._model)
    body = None
    try:
        body = _body(channel, request, decoupled)
        channel.send(CALL, call.number, body.finish())
    except BaseException:
        channel.replies.close(call.number)
        if body is not None:
            channel.take_back(body.placed)
        raise
    return call


def parent_of(channel, request):
    """The key of the open request that a call serves: that whose trace it has, else whose input it passes on, else that of the batch
    of one which this code executes, else whose inputs were looked at last, else the only open one. 0: none."""
    for key in keys_of(request):
        if key in channel.open_keys:
            return key
    try:
        key, = channel.open_keys.copy()
    except ValueError:
        return 0
    return key


def keys_of(request):
    """Keys of requests that a call may serve, the likeliest first."""
    return [request._trace._key] + [t._origin for t in request._inputs] + [looked_into.get()]


_heads = {}  # what calls say of themselves -> their bytes, between the parent and the inputs


def _head(request, decoupled):
    """A call's bytes between its parent and its inputs."""
    inputs = len(request._inputs)
    plain = not request._id and not request._correlation and request._parameters == "{}"
    key = request._model, request._version, request._timeout, request._flags, request._outputs, inputs, decoupled
    head = _heads.get(key) if plain else None
    if head is not None:
        return head
    correlation = request._correlation
    number, text = (0, correlation) if isinstance(correlation, str) else (correlation, "")
    parameters = request._parameters if request._parameters != "{}" else ""
    outputs = sorted(request._outputs)
    head = b"".join([wire.string(request._model),
                     CALL_BODY.pack(request._version, number, 0, request._timeout, request._flags & 3 | DECOUPLED * decoupled, 0),
                     wire.string(request._id), wire.string(text), wire.string(parameters), struct.pack("<HH", len(outputs), inputs),
                     *map(wire.string, outputs)])
    if plain:
        if len(_heads) >= 256:
            _heads.clear()
        _heads[key] = head
    return head


def _body(channel, request, decoupled):
    body = wire.Body()
    body.add(CALL_HEAD.pack(parent_of(channel, request)) + _head(request, decoupled))
    try:
        for tensor in request._inputs:
            body.tensor(tensor, channel.place_apart)
    except BaseException:
        channel.take_back(body.placed)
        raise
    return body


def failed(error):
    """The response of a call that could not be made."""
    return InferenceResponse(error=TritonError(str(error)))


def call(request, decoupled):
    _own(request)
    channel = current()
    if not decoupled and channel is not None and channel.executes == threading.get_ident() and channel.serving:
        return call_here(channel, request)
    if hasattr(channel, "call"):  # of a process that was forked off
        responses = channel.call(request, decoupled)
        return ResponseIterator._of(responses) if decoupled else responses[0]
    try:
        made = begin(request, decoupled)
    except TritonModelException as e:
        if current() is None or not current().serving:
            raise
        return ResponseIterator._of([failed(e)]) if decoupled else failed(e)
    if decoupled:
        return ResponseIterator._of(made)
    made.channel.replies.wait(made, made.there)
    return made.take(False)


def call_here(channel, request):
    """A call of one answer by the thread that executes the batch: the thread of the worker that waits for the batch's result makes it,
    so the frame goes where that looks."""
    replies, waiter = channel.replies, Waiter()
    number = replies.open(waiter)
    try:
        try:
            body = _body(channel, request, False)
            try:
                channel.send_result(CALL, number, body.finish())
            except BaseException:
                channel.take_back(body.placed)
                raise
        except TritonModelException as e:
            return failed(e)
        replies.wait(waiter, waiter.there)
    finally:
        replies.close(number)
    reader = wire.Reader(waiter.frames[0])
    flags, = reader.take(BYTE)
    return read_response(channel, reader, False, None) if flags & HAS_RESPONSE else InferenceResponse()


def call_async(request, decoupled):
    import asyncio
    _own(request)
    loop = asyncio.get_running_loop()
    if hasattr(current(), "call"):
        return loop.run_in_executor(None, call, request, decoupled)
    try:
        made = begin(request, decoupled)
    except TritonModelException as e:
        if current() is None or not current().serving:
            raise
        future = loop.create_future()
        future.set_result(ResponseIterator._of([failed(e)]) if decoupled else failed(e))
        return future
    return future_of(loop, made, lambda: ResponseIterator._of(made) if decoupled else made.take(False))


def future_of(loop, made, result):
    """A future of a loop, which this thread runs: done with result() when the call has an answer. The loop reads replies until then."""
    replies, thread = made.channel.replies, threading.get_ident()
    future = loop.create_future()

    def settle():
        if not future.done():
            try:
                future.set_result(result())
            except Exception as e:
                future.set_exception(e)

    def ready():
        (loop.call_soon if threading.get_ident() == thread else loop.call_soon_threadsafe)(settle)

    def over(future):
        replies.leave(loop)
        made.ready = None
        if future.cancelled():
            made.cancel()
            made.discard()

    replies.join(loop)
    future.add_done_callback(over)
    made.ready = ready
    if made.there():  # it came in between
        settle()
    return future


def _own(request):
    if not hasattr(request, "_model"):
        raise TritonModelException("a request that was received has no model to be executed by: make an InferenceRequest of it")


class ResponseIterator:
    """The answers to a call of a decoupled model, each as it comes. It ends with an empty response where the model sent its final
    flag alone. When it has ended it may be iterated again, from the first answer."""

    def __init__(self, response):
        self._begin(None, [response])

    @classmethod
    def _of(cls, source):
        """Of a Call, or of a list of all responses."""
        it = object.__new__(cls)
        if isinstance(source, Call):
            it._begin(source, [])
        else:
            it._begin(None, source)
        return it

    def _begin(self, made, responses):
        self._call = made           # None when the last answer was taken
        self._responses = responses  # taken ones, copies: they are kept without holding what the worker has for answers
        self._next = 0

    def __iter__(self):
        if self._call is None and self._next >= len(self._responses):
            self._next = 0
        return self

    def __next__(self):
        made = self._call
        if self._next < len(self._responses):
            pass
        elif made is None:
            raise StopIteration("Iteration is done for the responses.")
        else:
            made.channel.replies.wait(made, made.there)
            self._take(made)
        self._next += 1
        return self._responses[self._next - 1]

    def _take(self, made):
        self._responses.append(made.take(True))
        if made.ended and not made.frames:
            self._call = None

    def __aiter__(self):
        return self.__iter__()

    async def __anext__(self):
        import asyncio
        made = self._call
        if self._next >= len(self._responses):
            if made is None:
                raise StopAsyncIteration
            if not made.there():
                await future_of(asyncio.get_running_loop(), made, lambda: None)
            self._take(made)
        self._next += 1
        return self._responses[self._next - 1]

    def cancel(self):
        """Tells the called model that no more answers are wanted."""
        if self._call is not None:
            self._call.cancel()

    def __del__(self):
        made = getattr(self, "_call", None)
        if made is not None:
            made.cancel()
            made.discard()


ResponseIterator.__module__ = "c_python_backend_utils"

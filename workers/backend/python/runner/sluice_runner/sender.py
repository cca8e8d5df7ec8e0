"""InferenceResponseSender: answers apart from what execute returns."""
import threading

from . import batch, wire
from .errors import ErrorCode, TritonModelException, WIRE_CODES, instance, number
from .layout import DROP, FINAL, HAS_RESPONSE, PART, U64
from .response import InferenceResponse

_lock = threading.Lock()  # of the states of all senders; held for a moment


class InferenceResponseSender:
    """Sends answers to one request, from any thread, also after execute has returned."""
    # It holds no request, so that inputs are freed while answers go on.
    __slots__ = ("_key", "_channel", "_outputs", "_rows", "_decoupled", "_sent", "_closed", "__weakref__")

    def __init__(self):
        raise TypeError("c_python_backend_utils.InferenceResponseSender: No constructor defined!")

    def send(self, response=None, flags=0):
        """Sends an answer. TRITONSERVER_RESPONSE_COMPLETE_FINAL says that it is the last, which may also be sent without one."""
        if response is not None:
            instance(response, InferenceResponse, "response")
        flags = number(flags, "flags", 0, (1 << 32) - 1)
        if flags not in (0, FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and not flags:
            raise TritonModelException("Inference Response object must be provided when the response flags is set to zero.")
        before = self._sent, self._closed
        self._advance(response, flags)
        if not self._decoupled:  # its one answer ends the request, whatever the flags
            if response is None:
                return
            flags = FINAL
        try:
            send_part(self._channel, self, response, flags)
        except BaseException:  # nothing was sent
            self._sent, self._closed = before
            raise

    def _advance(self, response, flags):
        """Refuses what must not follow, and closes after the last."""
        if self._decoupled is None:
            raise TritonModelException("Unable to send response. Response sender has no reference to the decoupled state of the model.")
        with _lock:
            if not self._decoupled:
                if response is not None and self._sent:
                    raise TritonModelException("Unable to send response. Non-decoupled model cannot send more than one response.")
                if response is None and flags and not self._sent:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send complete final before sending a response.")
            if self._closed:
                raise TritonModelException("Unable to send response. Response sender has been closed.")
            if flags:
                self._closed = True
            self._sent = True

    def is_cancelled(self):
        """Whether the client no longer wants an answer."""
        return self._key != 0 and self._channel.memory.cancelled(self._key)

    def __del__(self):
        if not self._closed and self._key and (self._decoupled or not self._sent):
            self._closed = True
            self._channel.open_keys.discard(self._key)
            self._channel.events.write_soon(DROP, 0, U64.pack(self._key))


InferenceResponseSender.__module__ = "c_python_backend_utils"


def sender_of(request):
    """A new sender for a request."""
    s = object.__new__(InferenceResponseSender)
    s._key, s._channel, s._decoupled = request._key, request._channel, request._decoupled
    s._outputs, s._rows = request._outputs, request._rows
    s._sent = s._closed = False
    return s


def close(request):
    """Closes the sender of a request that was answered or will come again."""
    sender = request._sender
    if sender is not None:
        sender._closed = True


def send_part(channel, request, response, flags):
    """Writes PART for a request, or the sender of one."""
    key = request._key
    body = wire.Body()
    if response is None:
        body.add(U64.pack(key) + bytes((flags,)))
    else:
        before = U64.pack(key) + bytes((flags | HAS_RESPONSE,))
        batch.respond(body, before, response, request, channel.checks, channel.place_apart)
    try:
        channel.send(PART, 0, body.finish())
    except TritonModelException:
        channel.take_back(body.placed)
        raise
    if flags & FINAL:
        channel.open_keys.discard(key)


def fail(channel, request, message):
    """Ends a request that has no final answer with an error."""
    sender = request.get_response_sender()
    with _lock:
        if sender._closed:
            return
        sender._closed = True
    body = wire.Body()
    body.add(U64.pack(request._key) + bytes((FINAL | HAS_RESPONSE,)))
    body.response(WIRE_CODES[ErrorCode.INTERNAL], message, "")
    channel.open_keys.discard(request._key)
    channel.send(PART, 0, body.finish())

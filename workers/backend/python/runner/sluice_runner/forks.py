"""Processes that a model forks off, as multiprocessing does: what they write must not get into the rings of their parent, and their
calls go through it. A child opens a connection for each of its threads by sending one end of it over a socket that it has
inherited; the parent has a thread for each. Programs that are started, and spawned interpreters, have no channel at all.
"""
import os
import pickle
import signal
import socket
import struct
import threading

from . import calls, channel, control, metrics, request, sender
from .errors import TritonError, TritonModelException
from .request import InferenceRequest
from .response import InferenceResponse
from .tensor import received

LENGTH = struct.Struct("<Q")

_parents_end = _childs_end = None
_accepting = None  # the thread, from the first fork on


def watch():
    """Has processes that are forked off from now on call through this one."""
    global _parents_end, _childs_end
    _parents_end, _childs_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.register_at_fork(before=_hold_signals, after_in_parent=_forked, after_in_child=_born)


_forking = threading.local()  # .mask: signals that the thread which forks had blocked


def _hold_signals():
    """Keeps back the signals that a child deals with in another way than its parent. One that comes before the child can would be
    lost, and multiprocessing.Pool waits for ever for a child that it has sent SIGTERM."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))


def _release_signals():
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _forked():
    global _accepting
    _release_signals()
    if _accepting is None and _parents_end is not None:  # a child's children go to their grandparent
        _accepting = threading.Thread(target=_accept, name="forked processes", daemon=True)
        _accepting.start()


def _accept():
    while True:
        _, fds, _, _ = socket.recv_fds(_parents_end, 1, 1)
        for fd in fds:
            threading.Thread(target=_serve, args=(socket.socket(fileno=fd),), name="forked process", daemon=True).start()


def _serve(connection):
    """Answers what a thread of a forked process asks for, until it is gone."""
    with connection:
        while True:
            try:
                asked = _receive(connection)
            except (OSError, EOFError):
                return
            try:
                answer = None, _carry_out(*asked)
            except TritonModelException as e:
                answer = str(e), None
            try:
                _send(connection, answer)
            except OSError:
                return


def _carry_out(index, what, *args):
    c = channel.all_channels()[index]
    channel.serve(c)
    if what == "send":
        return c.send(*args)
    if what == "control":
        key, *asked = args
        request.looked_into.set(key)
        return control.ask(c, *asked)
    fields, tensors, keys, decoupled = args
    asked = InferenceRequest(inputs=[_unpacked(t) for t in tensors], **fields)
    request.looked_into.set(next((k for k in keys if k in c.open_keys), 0))
    got = asked.exec(decoupled)
    return [_packed_response(r) for r in (got if decoupled else [got])]


def _packed(tensor):
    return tensor._name, tensor._dtype, tensor._shape, bytes(tensor._wire())


def _unpacked(packed):
    name, dtype, shape, data = packed
    return received(name, dtype, shape, bytearray(data), 0, len(data))


def _packed_response(r):
    error = r._error and (r._error.message(), r._error.code())
    return [_packed(t) for t in r._tensors], error, r._parameters


def _unpacked_response(packed):
    tensors, error, parameters = packed
    r = InferenceResponse([_unpacked(t) for t in tensors], error and TritonError(*error))
    r._parameters = parameters
    return r


def _send(connection, value):
    data = pickle.dumps(value)
    connection.sendall(LENGTH.pack(len(data)) + data)


def _receive(connection):
    n, = LENGTH.unpack(_exactly(connection, LENGTH.size))
    return pickle.loads(_exactly(connection, n))


def _exactly(connection, n):
    data = bytearray(n)
    view = memoryview(data)
    while view:
        got = connection.recv_into(view)
        if not got:
            raise EOFError
        view = view[got:]
    return data


# In the child.

def _born():
    """Makes a process that was forked off another's child: its memory has the parent's channels, which it must leave alone."""
    global _parents_end, _accepting
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _release_signals()
    if _parents_end is not None:
        _parents_end.close()
        _parents_end = _accepting = None
    sender._lock, metrics._lock = threading.Lock(), threading.Lock()
    mine, all_of_them = channel.current(), channel.all_channels()
    if not mine or isinstance(mine, Remote):
        return channel.replace_all(all_of_them and Remote(mine.index, mine.memory))
    for c in all_of_them:
        c.events = c.results = c.replies = Gone()
    channel.replace_all(Remote(all_of_them.index(mine), mine.memory))


class Gone:
    """In place of what belongs to the parent."""
    frames = 0

    def write_soon(self, *_):
        """What finalizers would give back is the parent's, which does so itself."""

    def leave(self, _):
        pass

    def close(self, _):
        pass

    def _refuse(self, *_):
        raise TritonModelException("a process that the model has forked off can't answer the model's requests, nor go on with its calls")

    write = wait = ask = open = join = _refuse


class Remote:
    """The channel of a process that was forked off: its parent's."""
    serving = True
    executes = None

    def __init__(self, index, memory):
        self.index, self.memory = index, memory
        self.threads = threading.local()
        self.events = self  # of metrics and logs; none are written by finalizers

    def ask(self, *what):
        connection = getattr(self.threads, "connection", None)
        if connection is None:
            ours, theirs = socket.socketpair()
            with theirs:
                socket.send_fds(_childs_end, [b"c"], [theirs.fileno()])
            connection = self.threads.connection = ours
        try:
            _send(connection, (self.index,) + what)
            why, value = _receive(connection)
        except (OSError, EOFError) as e:
            raise TritonModelException(f"the model's process is gone: {e}") from None
        if why is not None:
            raise TritonModelException(why)
        return value

    def send(self, kind, number, body):
        self.ask("send", kind, number, body)

    def write_soon(self, *_):
        pass

    def control(self, what, model, argument, files):
        return self.ask("control", request.looked_into.get(), what, model, argument, files)

    def call(self, asked, decoupled):
        """The responses to a call, all at once."""
        fields = {"request_id": asked._id, "correlation_id": asked._correlation, "requested_output_names": sorted(asked._outputs),
                  "model_name": asked._model, "model_version": asked._version, "flags": asked._flags, "timeout": asked._timeout,
                  "parameters": request.parameters_of(asked)}
        packed = self.ask("call", fields, [_packed(t) for t in asked._inputs], calls.keys_of(asked), decoupled)
        return [_unpacked_response(p) for p in packed]

    def empty(self, name, shape, dtype):
        import numpy as np

        from .tensor import Tensor
        return Tensor(name, np.empty(shape, dtype))

"""Asks a model's is_ready whenever the worker asks, on a thread of its own: a batch that is executed does not delay the answer.
Coroutines run on the event loop of execute where it has one, else on one of their own."""
import os
import sys
import threading
import traceback

from . import wire
from .channel import serve
from .errors import describe
from .layout import READINESS

LONGEST_TEXT = 16384  # characters


def watch(server):
    """Starts the thread of an initialized instance, if its model has the hook."""
    if hasattr(server.instance.object, "is_ready"):
        threading.Thread(target=_watch, args=(server,), name="is_ready", daemon=True).start()


def _watch(server):
    channel = server.channel
    serve(channel)
    number = 0
    try:
        while True:
            number += int.from_bytes(os.read(channel.ready, 8), "little")
            ready, error = _ask(server)
            channel.send(READINESS, number, bytes((ready,)) + wire.string(error[:LONGEST_TEXT]))
    except BaseException:  # the runner's own fault: the worker starts another process
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _ask(server):
    """(whether it is ready, why that can't be said)."""
    try:
        ready = server.instance.ready()
        if hasattr(ready, "__await__"):
            ready = _awaited(server.loop, ready)
        if isinstance(ready, BaseException):
            raise ready
        if type(ready) is not bool:
            return False, "is_ready() must return a boolean value"
        return ready, ""
    except BaseException as e:  # SystemExit too
        return False, describe(e, server.root)[0]


async def _result(ready):
    """What it gives or raises."""
    try:
        return await ready
    except BaseException as e:
        return e


def _awaited(loop, ready):
    import asyncio
    if loop is None:
        return asyncio.run(_result(ready))
    return asyncio.run_coroutine_threadsafe(_result(ready), loop).result()

"""Serves a channel: reads commands and carries them out, one by one, or on an event loop once execute has turned out to be a
coroutine function."""
import json
import os
import sys
import traceback

from . import logger, readiness
from . import model as models
from . import sender, wire
from .channel import serve
from .errors import TritonModelException, describe
from .instance import LONGEST_TEXT, Instance
from .layout import (COMPLETE, COMPLETED, EXECUTE, FAILED, FINALIZE, FINALIZED, HELLO, INITIALIZE, INITIALIZED, IS_ASYNC, LOAD, LOADED,
                     PROTOCOL, U32)
from .rings import whole


class Finished(Exception):
    """FINALIZE was carried out."""


class Server:
    """Serves one channel, on the thread that calls run."""

    def __init__(self, channel):
        self.channel = channel
        self.instance = None
        self.model = None
        self.root = ""
        self.loop = None    # once batches are executed on it
        self.tasks = set()  # of the loop, that must not be forgotten
        self.finished = False
        self.failure = None

    def hello(self):
        import numpy
        version = ".".join(map(str, sys.version_info[:3]))
        body = U32.pack(PROTOCOL) + wire.string(version) + wire.string(sys.implementation.name) + wire.string(numpy.__version__)
        self.channel.send_result(HELLO, 0, body)

    def run(self):
        """Returns when the worker has had the instance finalized."""
        serve(self.channel)
        self.hello()
        ring, areas = self.channel.commands, self.channel.areas
        try:
            while self.loop is None:
                for _ in range(ring.wait()):
                    kind, flags, number, frame = ring.next()
                    if flags:
                        frame = whole(frame, flags, areas)
                    self.carry_out(kind, number, frame)
                    frame = None
            while not self.finished:
                try:
                    self.loop.run_forever()
                except SystemExit:  # of a task of the model's own
                    traceback.print_exc()
            if self.failure is not None:
                raise self.failure
        except Finished:
            pass
        finally:
            if self.loop is not None:
                self.loop.close()

    def carry_out(self, kind, number, frame):
        """One command. Raises Finished after the last."""
        if kind == EXECUTE:
            held = self.instance.run(number, frame)
            if held is not None:
                self._await(number, held)
        elif kind == FINALIZE:
            self._finalize()
        else:
            try:
                self._prepare(kind, wire.Reader(frame).string())
            except BaseException as e:  # SystemExit too
                message, trace = describe(e, self.root)
                self.channel.send_result(FAILED, 0, bytes((kind,)) + wire.string(message[:LONGEST_TEXT]) + wire.string(trace[-LONGEST_TEXT:]))

    def _prepare(self, kind, text):
        if kind == LOAD:
            load = json.loads(text)
            self.root = models.root(load)
            self.model = models.loaded(load, logger.install_handler)
            self.instance = Instance(self.channel, self.model)
            self.channel.send_result(LOADED, 0, U32.pack(self.model.hooks()))
        elif kind == COMPLETE:
            self.channel.send_result(COMPLETED, 0, wire.string(self.instance.complete(text)))
        elif kind == INITIALIZE:
            if self.model.hooks() & IS_ASYNC:
                self._new_loop()
            try:
                self.instance.initialize(json.loads(text))
            except BaseException:
                self.loop = None
                raise
            self.channel.send_result(INITIALIZED, 0, b"")
            readiness.watch(self)
            if self.loop is not None:
                self._use_loop()
        else:
            raise RuntimeError(f"a command of kind {kind}")

    def _finalize(self):
        try:
            if self.instance is not None:  # else no instance has come
                self.instance.finalize()
        except BaseException:  # only logged
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        self.channel.send_result(FINALIZED, 0, b"")
        raise Finished

    # What follows is for models whose execute is a coroutine function.

    def _new_loop(self):
        import asyncio
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)

    def _use_loop(self):
        """Has the loop read commands and replies, once run returns to it."""
        # A callback may come twice for one event, where an exception has left the loop in between.
        os.set_blocking(self.channel.commands.event, False)
        self.loop.add_reader(self.channel.commands.event, self._read_commands)
        self.channel.replies.join(self.loop)

    def _read_commands(self):
        ring = self.channel.commands
        for _ in range(ring.announced()):
            kind, flags, number, frame = ring.next()
            try:
                self.carry_out(kind, number, whole(frame, flags, self.channel.areas))
            except Finished:
                self.finished = True
                self.loop.stop()
            except BaseException as e:
                self._end(e)

    def _await(self, number, held):
        """Awaits what execute has returned and answers the batch with it."""
        if self.loop is None:  # a coroutine out of a plain execute
            self._new_loop()
            self._use_loop()
            self.instance.decoder.views = False  # batches may overlap from now on
        if self.instance.decoupled:
            self.instance.accept(number, held)
            self._start(self._answer_parts(held))
        else:
            self._start(self._answer(number, held))

    def _start(self, coroutine):
        task = self.loop.create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task):
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._end(task.exception())

    def _end(self, error):
        """Has run raise an error of the runner itself, which the loop would only log."""
        self.failure, self.finished = error, True
        self.loop.stop()

    async def _answer(self, number, held):
        failure = None
        try:
            held[1] = await held[1]
        except BaseException as e:
            failure = describe(e, self.root)
        if failure is not None:
            self.instance.fail(number, held, *failure)
        else:
            self.instance.answer(number, held)

    async def _answer_parts(self, held):
        """Of a decoupled model: what it has not answered when it fails gets the error."""
        requests, coroutine, _ = held
        held.clear()
        try:
            returned = await coroutine
            if returned is not None:
                raise TritonModelException(
                    f"Python model '{self.instance.name}' is using the decoupled mode and the execute function must return None.")
        except BaseException as e:
            message, trace = describe(e, self.root)
            print(trace, file=sys.stderr, end="", flush=True)
            for request in requests:
                sender.fail(self.channel, request,
                            f"Failed to process the request(s) for model '{self.instance.name}', message: {message}")

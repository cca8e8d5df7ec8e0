"""An instance of the model: its life, and what it does with a batch."""
import json
import struct
import threading

from . import batch, sender, wire
from .errors import TritonModelException, describe, relative
from .layout import ANSWERED, FINAL, IS_ASYNC, OPEN, RESCHEDULED, RESULT, U64
from .request import RELEASE_RESCHEDULE, looked_into
from .response import InferenceResponse

LONGEST_TEXT = 16384  # characters
BEGINNING = struct.Struct("<QBI")  # of RESULT: events, ending, requests
ANSWER = bytes((ANSWERED,))


def failed(channel, message, traceback):
    """The body of RESULT of a batch that has failed. Texts beyond a frame's size are cut."""
    return U64.pack(channel.events.frames) + b"\1" + wire.string(message[:LONGEST_TEXT]) + wire.string(traceback[-LONGEST_TEXT:])


class Instance:
    """TritonPythonModel of a channel. Its methods are for the thread that serves the channel."""

    def __init__(self, channel, model):
        self.channel, self.model = channel, model
        self.name = model.name
        self.object = None
        self.execute = None
        self.decoder = self.thread = None
        channel.checks = batch.OutputChecks(model.name, {})

    def complete(self, config):
        """The config, a JSON str, as auto_complete_config leaves it."""
        from .model_config import ModelConfig
        given = ModelConfig(config)
        hook = getattr(self.model.kind, "auto_complete_config", None)
        if hook is not None:
            given = hook(given)
        if not isinstance(given, ModelConfig):
            raise TritonModelException(f"auto_complete_config function in model '{self.name}' must return a valid pb.ModelConfig object.")
        return json.dumps(given._model_config)

    def initialize(self, args):
        """Makes the object and calls its initialize. args: str to str, as Triton gives them."""
        self.name = args.get("model_instance_name", self.name)
        config = json.loads(args.get("model_config") or "{}")
        self.channel.checks = batch.OutputChecks(self.model.name, config)
        policy = config.get("model_transaction_policy") or {}
        self.decoupled = self.model.decoupled or bool(policy.get("decoupled"))
        waits = not self.decoupled and not self.model.hooks() & IS_ASYNC
        self.decoder = batch.Decoder(self.channel, waits, self.decoupled)
        self.thread = threading.get_ident()
        self.object = self.model.kind()
        if hasattr(self.object, "initialize"):
            self.object.initialize(dict(args))
        self.execute = getattr(self.object, "execute", None)
        if self.execute is None:
            where = relative(self.model.load["model_file"], self.model.root)
            raise TritonModelException(f"Python model {where} does not implement `execute` method.")
        self.channel.serving = True

    def ready(self):
        """What is_ready says: a bool, or a coroutine of one. True where the model has none."""
        hook = getattr(self.object, "is_ready", None)
        return True if hook is None else hook()

    def finalize(self):
        self.channel.serving = False
        hook = getattr(self.object, "finalize", None)
        if hook is not None:
            hook()
        self.object = self.execute = None

    def run(self, number, frame):
        """Executes a batch. Gives [requests, coroutine, grant] of one that is to be awaited and then answered, else None."""
        channel = self.channel
        requests, channel.grant = self.decoder.read(frame)
        channel.open_keys.update([r._key for r in requests])
        returned = failure = None
        channel.executes = self.thread
        looked_into.set(requests[0]._key if len(requests) == 1 else 0)
        try:
            returned = self.execute(requests)
        except BaseException as e:  # SystemExit too
            failure = describe(e, self.model.root)
        channel.executes = None
        # Whoever answers must be the last to hold the requests.
        held = [requests, returned, channel.grant]
        requests = None
        if failure is not None:
            self.fail(number, held, *failure)
        elif hasattr(returned, "__await__") and hasattr(returned, "send"):
            channel.grant = None  # batches may overlap: the grant is for when it answers
            return held
        else:
            returned = None
            self.answer(number, held)
        return None

    def answer(self, number, held):
        """Writes RESULT for [requests, what execute returned, grant], which are taken out of held."""
        channel = self.channel
        requests, returned, channel.grant = held
        try:
            responses = self._checked(requests, returned)
        except TritonModelException as e:
            return self.fail(number, held, str(e), "")
        held.clear()
        body = wire.Body()
        body.parts.append(None)  # the beginning, which says how many events were written before
        body.length += BEGINNING.size
        left = []
        for request, response in zip(requests, responses):
            if response is not None:
                batch.respond(body, ANSWER, response, request, channel.checks, channel.place)
                channel.open_keys.discard(request._key)
            elif request._release == RELEASE_RESCHEDULE:
                body.add(bytes((RESCHEDULED,)))
                sender.close(request)
                channel.open_keys.discard(request._key)
            else:
                body.add(bytes((OPEN,)))
                left.append(request.get_response_sender())  # when nobody holds it any more, the request has failed
        count = len(requests)
        if self.decoder.viewed:
            del requests, returned
            request = response = responses = None
            self._end_views()
        self._result(number, body, count)

    def _result(self, number, body, count):
        channel = self.channel
        body.parts[0] = BEGINNING.pack(channel.events.frames, 0, count)
        try:
            channel.send_result(RESULT, number, body.finish())
        except TritonModelException as e:  # no room for a body of many answers
            channel.take_back(body.placed)
            channel.send_result(RESULT, number, failed(channel, str(e), ""))
        channel.grant = None

    def fail(self, number, held, message, traceback):
        """Writes RESULT of a batch that has failed as a whole."""
        channel = self.channel
        for request in held[0]:
            request.get_response_sender()._closed = True
            channel.open_keys.discard(request._key)
        request = None
        held.clear()
        if self.decoder.viewed:
            self._end_views()
        channel.grant = None
        channel.send_result(RESULT, number, failed(channel, message, traceback))

    def accept(self, number, held):
        """Writes RESULT of a batch that is executed while others are: all its requests are open, and answered one by one."""
        senders = [request.get_response_sender() for request in held[0]]
        body = wire.Body()
        body.parts.append(None)
        body.length += BEGINNING.size
        body.add(bytes(len(senders)))
        self._result(number, body, len(senders))

    def _end_views(self):
        self.decoder.viewed = False
        if self.channel.areas.end_batch():
            from .logger import Logger
            Logger.log_warn(f"model '{self.model.name}' keeps inputs after their batch: from now on its inputs are copied")

    def _checked(self, requests, returned):
        """The responses that execute returned, one for each request."""
        if returned is None:
            return [None] * len(requests)
        if self.decoupled:
            raise TritonModelException(
                f"Python model '{self.name}' is using the decoupled mode and the execute function must return None.")
        if not isinstance(returned, list):
            raise TritonModelException(f"Expected a list in the execute return, found type '{type(returned)}'.")
        if len(returned) != len(requests):
            raise TritonModelException(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(returned)}\n")
        for request, response in zip(requests, returned):
            if response is None:
                continue
            if request._release == RELEASE_RESCHEDULE:
                raise TritonModelException("Expected a None object in the execute function return list for reschduled request, "
                                           f"found type '{type(response)}'.")
            if not isinstance(response, InferenceResponse):
                raise TritonModelException("Expected an 'InferenceResponse' object in the execute function return list, "
                                           f"found type '{type(response)}'.")
            if request._sender is not None:
                request._sender._advance(response, FINAL)
        return returned

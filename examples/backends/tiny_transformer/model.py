"""Backend "tiny_transformer": a text goes on, with the tensors and parameters that clients of Triton's vLLM backend know.

Its model is a folder with a config and 1/model.json: {"seed": of the weights, "slots": texts at a time, "longest": bytes of one}.
"""
import json
import os
import threading

import numpy as np
import triton_python_backend_utils as pb_utils
from engine import Engine, Text, Transformer

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
SAMPLING = {"max_tokens": int, "temperature": float, "seed": int, "stop": lambda s: [s] if isinstance(s, str) else list(s)}


def answer(text):
    return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array([text], np.object_))])


def error(message, code=pb_utils.TritonError.INVALID_ARG):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code))


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_input({"name": "stream", "data_type": "TYPE_BOOL", "dims": [1], "optional": True})
        config.add_input({"name": "sampling_parameters", "data_type": "TYPE_STRING", "dims": [1], "optional": True})
        config.add_output({"name": "text_output", "data_type": "TYPE_STRING", "dims": [-1]})
        config.set_max_batch_size(0)
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def initialize(self, args):
        with open(os.path.join(pb_utils.get_model_dir(), "model.json")) as f:
            options = json.load(f)
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self.families = [pb_utils.MetricFamily("tiny_transformer_tokens", "Tokens written", pb_utils.MetricFamily.COUNTER),
                         pb_utils.MetricFamily("tiny_transformer_open", "Texts in the engine", pb_utils.MetricFamily.GAUGE)]
        self.tokens, self.running = [family.Metric(labels=labels) for family in self.families]
        self.senders, self.lock, self.broken = set(), threading.Lock(), None
        self.engine = Engine(Transformer(options["seed"], options["longest"]), options["slots"], self.fail)
        self.engine.start()

    def execute(self, requests):
        """Takes texts; the engine's thread answers them."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                self.begin(request, sender)
            except ValueError as e:
                sender.send(error(str(e)), FINAL)

    def begin(self, request, sender):
        prompt = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0]
        longest = self.engine.transformer.longest
        if not 0 < len(prompt) < longest:
            raise ValueError(f"text_input has {len(prompt)} bytes, want 1 to {longest - 1}")
        parameters = json.loads(request.parameters() or "{}")
        given = {k: v for k, v in parameters.items() if k in SAMPLING}
        tensor = pb_utils.get_input_tensor_by_name(request, "sampling_parameters")
        if tensor is not None:
            given.update(json.loads(tensor.as_numpy()[0]))
        if set(given) - set(SAMPLING):
            raise ValueError(f"sampling parameters are {', '.join(SAMPLING)}")
        tensor = pb_utils.get_input_tensor_by_name(request, "stream")
        stream = bool(parameters.get("stream") if tensor is None else tensor.as_numpy()[0])
        parts = []

        def told(new, over):
            self.tokens.increment(len(new))
            parts.append(new)
            if over:
                self.forget(sender)
            if stream or over:
                sender.send(answer(b"".join(parts)), FINAL if over else 0)
                parts.clear()

        def dropped():
            if not sender.is_cancelled():
                return False
            self.forget(sender)
            sender.send(flags=FINAL)
            return True

        text = Text(prompt, told, dropped, **{k: SAMPLING[k](v) for k, v in given.items()})
        with self.lock:
            if self.broken is not None:
                return sender.send(error(self.broken, pb_utils.TritonError.UNAVAILABLE), FINAL)
            self.senders.add(sender)
            self.running.set(len(self.senders))
        self.engine.add(text)

    def forget(self, sender):
        with self.lock:
            self.senders.discard(sender)
            self.running.set(len(self.senders))

    def fail(self, cause):
        """What is open gets the error, and so does what comes later."""
        with self.lock:
            self.broken = f"the engine has failed: {cause}"
            left, self.senders = self.senders, set()
            self.running.set(0)
        pb_utils.Logger.log_error(self.broken)
        for sender in left:
            sender.send(error(self.broken, pb_utils.TritonError.UNAVAILABLE), FINAL)

    def finalize(self):
        self.engine.stop()

"""Model control: load_model, unload_model, is_model_ready. They wait for the server's answer."""
import struct

from . import wire
from .channel import current
from .errors import TritonModelException, instance, text
from .layout import CONTROL, CONTROL_LOAD, CONTROL_METRIC, CONTROL_READY, CONTROL_UNLOAD, SEGMENT, U32, U64
from .replies import checked
from .request import looked_into

NUMBER = struct.Struct("<d")


def load_model(model_name, config="", files=None):
    """Loads a model, or loads it again; waits for it. config, JSON, overrides its config; files, only with config, are its files:
    {"file:1/model.onnx": bytes}."""
    name = text(model_name, "model_name")
    config = text(config, "config")
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(f"failed to load model '{name}', files should be a dictionary of file paths and file contents")
    contents = {text(k, "files"): bytes(instance(v, (bytes, bytearray), "files")) for k, v in (files or {}).items()}
    _ask("Failed to load model: ", CONTROL_LOAD, name, config, contents)


def unload_model(model_name, unload_dependents=False):
    """Unloads a model; does not wait for it to end."""
    name = text(model_name, "model_name")
    _ask("Failed to unload model: ", CONTROL_UNLOAD, name, "1" if instance(unload_dependents, bool, "unload_dependents") else "")


def is_model_ready(model_name, model_version=""):
    """Whether a model, or a version of it, answers requests."""
    name, version = text(model_name, "model_name"), text(model_version, "model_version")
    return _ask("Failed to check model readiness: ", CONTROL_READY, name, version) != 0


def metric_value(channel, family, labels):
    """The value of a metric over all instances."""
    return ask(channel, CONTROL_METRIC, family, labels)


def _ask(prefix, what, model, argument, files=None):
    channel = current()
    if channel is None:
        raise TritonModelException(prefix + "this process has no channel to the server")
    try:
        return ask(channel, what, model, argument, files)
    except TritonModelException as e:
        raise TritonModelException(prefix + str(e)) from None


def ask(channel, what, model, argument, files=None):
    """The number that CONTROL is answered with, 0 without one; TritonModelException of a refusal."""
    files = files or {}
    if hasattr(channel, "control"):  # of a process that was forked off
        return channel.control(what, model, argument, files)
    parent = looked_into.get()  # of whose caller the rights count; the model's own where no request is served
    parts = [bytes((what,)), U64.pack(parent if parent in channel.open_keys else 0), wire.string(model), wire.string(argument), U32.pack(len(files))]
    for name, content in files.items():
        segment = channel.need(len(content), False)
        channel.write_block(segment, content)
        parts += [wire.string(name), SEGMENT.pack(*segment)]
    body = b"".join(parts)
    reader = checked(wire.Reader(channel.replies.ask(lambda number: channel.send(CONTROL, number, body))))
    return reader.take(NUMBER)[0] if what in (CONTROL_READY, CONTROL_METRIC) else 0

"""Errors of models: TritonError with its codes, TritonModelException, and how an exception reads to a client and in the log."""
import enum
import os
import sys
import traceback


class ErrorCode(enum.Enum):
    """Code of a TritonError. Source: TRITONSERVER_Error_Code, tritonserver.h."""
    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7

    def __int__(self):
        return self.value

    __index__ = __int__


# Codes as the channel has them. Source: enum Code, proto/worker/worker.proto.
WIRE_CODES = {ErrorCode.UNKNOWN: 2, ErrorCode.INTERNAL: 13, ErrorCode.NOT_FOUND: 5, ErrorCode.INVALID_ARG: 3,
              ErrorCode.UNAVAILABLE: 14, ErrorCode.UNSUPPORTED: 12, ErrorCode.ALREADY_EXISTS: 6, ErrorCode.CANCELLED: 1}
CODES = {wire: code for code, wire in WIRE_CODES.items()}
# Those that Triton has no code for.
CODES.update({7: ErrorCode.UNAVAILABLE, 8: ErrorCode.UNAVAILABLE, 16: ErrorCode.UNAVAILABLE})


class TritonError:
    """An error for the client of one request: a message and a code."""
    __slots__ = ("_message", "_code", "__weakref__")

    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    def __init__(self, message, code=ErrorCode.INTERNAL):
        self._message = text(message, "message")
        self._code = instance(code, ErrorCode, "code")

    def message(self):
        return self._message

    def code(self):
        return self._code


class TritonModelException(Exception):
    """A call of a model to its server that is refused or has failed."""


TritonModelException.__module__ = "c_python_backend_utils"


class Refused(Exception):
    """An answer that contradicts the model's config: its text is for the client."""


def instance(value, kind, name):
    """value, which must be of a type."""
    if not isinstance(value, kind):
        kinds = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        raise TypeError(f"{name} must be {kinds}, not {type(value).__name__}")
    return value


def text(value, name):
    """A str; UTF-8 bytes are taken too, as Triton does."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode()
    raise TypeError(f"{name} must be str, not {type(value).__name__}")


def number(value, name, low, high):
    """An int of a range. A bool and what has __index__ is taken too; a float is not."""
    if isinstance(value, float) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be int, not {type(value).__name__}")
    value = value.__index__()
    if not low <= value <= high:
        raise TypeError(f"{name} must be in {low}..{high}, not {value}")
    return value


RUNNER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def describe(error, folder):
    """(message, traceback) of an exception: what a client sees, with files relative to the model's folder and its innermost frame
    first, and the whole for the log."""
    frames = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        if not name.startswith((RUNNER, "<frozen importlib")):
            frames.append(f"  {relative(name, folder)}({line}): {frame.f_code.co_name}\n")
    try:
        text = str(error)
    except Exception as e:  # of the model's own class
        text = f"its text can't be had: {type(e).__name__}"
    message = f"{type(error).__name__}: {text}"
    if frames:
        message += "\n\nAt:\n" + "".join(reversed(frames))
    elif isinstance(error, TritonModelException):  # of the runner itself
        message = text
    whole = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return message, whole


def relative(name, folder):
    """A file's path below the model's folder, or below the folder that it was imported from."""
    if not os.path.isabs(name):
        return name
    for start in [folder] + sorted(sys.path, key=len, reverse=True):
        if start and name.startswith(start.rstrip("/") + "/"):
            return name[len(start.rstrip("/")) + 1:]
    return os.path.basename(name)

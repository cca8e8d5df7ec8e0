"""Logger of models: lines of the server's log. A line that the log does not want costs one look into shared memory."""
import enum
import sys

from . import wire
from .channel import current
from .errors import instance, text
from .layout import ERROR_LEVEL, INFO_LEVEL, LOG, U32, VERBOSE_LEVEL, WARNING_LEVEL


class LogLevel(enum.Enum):
    """Level of a line. Source: LogLevel of Triton's Python backend."""
    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3

    def __int__(self):
        return self.value

    __index__ = __int__


_BITS = {LogLevel.INFO: INFO_LEVEL, LogLevel.WARNING: WARNING_LEVEL, LogLevel.ERROR: ERROR_LEVEL, LogLevel.VERBOSE: VERBOSE_LEVEL}
LONGEST = 30000  # characters, of 4 bytes at most
# The worker's bits of wanted levels: bit 0 error, 1 warning, 2 info, 3 verbose; they are the levels of LOG.


class Logger:
    """Writes lines of the server's log, with the file and the line of the caller."""
    LogLevel = LogLevel
    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    def log(message, level=LogLevel.INFO):
        _log(_BITS[instance(level, LogLevel, "level")], message)

    @staticmethod
    def log_info(message):
        _log(INFO_LEVEL, message)

    @staticmethod
    def log_warn(message):
        _log(WARNING_LEVEL, message)

    @staticmethod
    def log_error(message):
        _log(ERROR_LEVEL, message)

    @staticmethod
    def log_verbose(message):
        _log(VERBOSE_LEVEL, message)


def _log(level, message):
    if type(message) is not str:
        message = text(message, "message")
    channel = current()
    if channel is None:
        return print(message, file=sys.stderr)
    if channel.memory.wants(level):
        caller = sys._getframe(2)
        write(channel, level, caller.f_code.co_filename, caller.f_lineno, message)


def write(channel, level, file, line, message):
    """A line of the log; a long one is cut, so that it fits into a frame."""
    channel.send(LOG, 0, bytes((level,)) + wire.string(file) + U32.pack(max(line, 0)) + wire.string(message[:LONGEST]))


def install_handler():
    """Has Python's root logger write to the server's log: parameter PYTHON_LOGGING."""
    import logging

    class Handler(logging.Handler):
        """Lines of the logging module."""

        def emit(self, record):
            level = ERROR_LEVEL if record.levelno >= logging.ERROR else WARNING_LEVEL if record.levelno >= logging.WARNING else \
                INFO_LEVEL if record.levelno >= logging.INFO else VERBOSE_LEVEL
            channel = current()
            try:
                if channel is not None and channel.memory.wants(level):
                    write(channel, level, record.pathname, record.lineno, self.format(record))
            except Exception:
                self.handleError(record)

    root = logging.getLogger()
    handler = Handler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    root.addHandler(handler)
    if root.level > logging.INFO or root.level == logging.NOTSET:
        root.setLevel(logging.INFO)


for _class in (LogLevel, Logger):
    _class.__module__ = "c_python_backend_utils"

"""InferenceRequest: of a batch, received, or made by a model that calls another one."""
import contextvars
import json

from .errors import TritonModelException, instance, number, text
from .tensor import Tensor

# The key of the request that the code which runs now has looked into last: calls that it makes serve it.
looked_into = contextvars.ContextVar("sluice_request", default=0)

RELEASE_ALL, RELEASE_RESCHEDULE = 1, 2


class MemoryType:
    """Where answers of a call may lie. Source: PreferredMemory::MemoryType of Triton's Python backend."""
    __slots__ = ("name", "value")

    def __init__(self, name, value):
        self.name, self.value = name, value

    def __int__(self):
        return self.value

    __index__ = __int__

    def __repr__(self):
        return f"<MemoryType.{self.name}: {self.value}>"


TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU = MemoryType("TRITONSERVER_MEMORY_GPU", 0)
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU = MemoryType("TRITONSERVER_MEMORY_CPU", 1)
_DEFAULT_MEMORY = MemoryType("DEFAULT", 2)


class PreferredMemory:
    """Where the answers of a call should lie. They lie in the CPU's memory whatever is preferred."""
    __slots__ = ("_type", "_device")

    def __init__(self, preferred_memory_type, preferred_device_id=0):
        self._type = instance(preferred_memory_type, MemoryType, "preferred_memory_type")
        self._device = number(preferred_device_id, "preferred_device_id", -1 << 63, (1 << 63) - 1)


class InferenceTrace:
    """The trace that a request belongs to. A call that is given it becomes its child."""
    __slots__ = ("_context", "_key")

    def __init__(self):
        self._context, self._key = "", 0

    def get_context(self):
        """The W3C headers as a JSON object, None without."""
        return self._context or None


def parameters_json(parameters, types=(bool, int, str, float)):
    """Parameters of a request or a response as a JSON object. Responses may have no floats, as in Triton."""
    if parameters is None:
        return ""
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect dict, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, types):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
    return json.dumps(parameters) if parameters else ""


def parameters_of(request):
    """The parameters of a request as a dict."""
    return json.loads(request._parameters)


class InferenceRequest:
    """A request to this model, or one that this model makes of another."""
    # Those received have a key and a channel; _sender is made when it is asked for.
    __slots__ = ("_id", "_correlation", "_inputs", "_outputs", "_flags", "_timeout", "_parameters", "_trace", "_key", "_channel", "_sender",
                 "_release", "_rows", "_model", "_version", "_preferred", "_decoupled", "__weakref__")

    def __init__(self, request_id="", correlation_id=0, inputs=None, requested_output_names=None, model_name=None, model_version=-1,
                 flags=0, timeout=0, preferred_memory=PreferredMemory(_DEFAULT_MEMORY), trace=InferenceTrace(), parameters=None):
        self._id = request_id if type(request_id) is str else text(request_id, "request_id")
        if correlation_id is None:
            raise TypeError("correlation_id must be int or str, not NoneType")
        inputs = inputs[:] if type(inputs) is list else _items(inputs, "inputs")
        for tensor in inputs:
            if type(tensor) is not Tensor and tensor is not None:
                instance(tensor, Tensor, "inputs")
        names = [name if type(name) is str else text(name, "requested_output_names")
                 for name in (requested_output_names if type(requested_output_names) is list else
                              _items(requested_output_names, "requested_output_names"))]
        self._model = model_name if type(model_name) is str else text(model_name, "model_name")
        self._version = number(model_version, "model_version", -1 << 63, (1 << 63) - 1)
        self._flags = number(flags, "flags", 0, (1 << 32) - 1)
        self._timeout = number(timeout, "timeout", 0, (1 << 64) - 1)
        self._preferred = instance(preferred_memory, PreferredMemory, "preferred_memory")
        self._trace = instance(trace, InferenceTrace, "trace")
        self._parameters = parameters_json(parameters) or "{}"
        if isinstance(correlation_id, str):
            self._correlation = correlation_id
        elif isinstance(correlation_id, int):
            self._correlation = number(correlation_id, "correlation_id", 0, (1 << 64) - 1)
        else:
            raise TritonModelException("Correlation ID must be integer or string")
        if None in inputs or "" in names:
            what = "Input tensor" if None in inputs else "Requested output name"
            raise TritonModelException(f"{what} for request with id '{self._id}' and model name '{self._model}' should not be empty.")
        self._inputs, self._outputs = inputs, frozenset(names)
        self._key = self._rows = 0
        self._channel = self._sender = None
        self._release = RELEASE_ALL
        self._decoupled = None

    def inputs(self):
        """The input tensors that were sent."""
        if self._key:
            looked_into.set(self._key)
        return list(self._inputs)

    def _input(self, name):
        if self._key:
            looked_into.set(self._key)
        for tensor in self._inputs:
            if tensor._name == name:
                return tensor
        return None

    def request_id(self):
        return self._id

    def correlation_id(self):
        """An int, 0 for none, or a str."""
        return self._correlation

    def flags(self):
        return self._flags

    def set_flags(self, flags):
        self._flags = number(flags, "flags", 0, (1 << 32) - 1)

    def timeout(self):
        """Microseconds, as the client gave them; 0 for none."""
        return self._timeout

    def parameters(self):
        """A JSON object, as a str."""
        return self._parameters

    def requested_output_names(self):
        """The names of the outputs that are asked for, a set."""
        return set(self._outputs)

    def trace(self):
        """The trace that the request belongs to."""
        if type(self._trace) is str:
            trace = InferenceTrace()
            trace._context, trace._key = self._trace, self._key
            self._trace = trace
        return self._trace

    def is_cancelled(self):
        """Whether the client no longer wants an answer."""
        return self._key != 0 and self._channel.memory.cancelled(self._key)

    def get_response_sender(self):
        """Always the same InferenceResponseSender. It answers apart from what execute returns, from any thread."""
        sender = self._sender
        if sender is None:
            from .sender import sender_of
            sender = self._sender = sender_of(self)
        return sender

    def set_release_flags(self, flags):
        """TRITONSERVER_REQUEST_RELEASE_RESCHEDULE: the request comes again; execute gives None for it."""
        self._release = number(flags, "flags", 0, (1 << 32) - 1)

    def exec(self, decoupled=False):
        """Calls the model and waits: an InferenceResponse, of which has_error tells a failure, or with decoupled a ResponseIterator."""
        return _calls().call(self, instance(decoupled, bool, "decoupled"))

    def async_exec(self, decoupled=False):
        """As exec, an awaitable."""
        return _calls().call_async(self, instance(decoupled, bool, "decoupled"))


def _calls():
    """The module calls, which needs this one to be imported."""
    global _module
    if _module is None:
        from . import calls
        _module = calls
    return _module


_module = None


def _items(value, name):
    """The items of a sequence, which is no str and no bytes."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__len__") or not hasattr(value, "__iter__") or isinstance(value, dict):
        raise TypeError(f"{name} must be a list, not {type(value).__name__}")
    return list(value)


for _class in (MemoryType, PreferredMemory, InferenceTrace, InferenceRequest):
    _class.__module__ = "c_python_backend_utils"

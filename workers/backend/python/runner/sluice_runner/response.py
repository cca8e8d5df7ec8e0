"""InferenceResponse: an answer, by a model or to its call of another."""
from .errors import TritonError, TritonModelException, instance
from .request import _items, parameters_json
from .tensor import Tensor


class InferenceResponse:
    """Output tensors, or an error; with an error the tensors are not sent. Parameters go to the client with either."""
    __slots__ = ("_tensors", "_error", "_parameters", "__weakref__")

    def __init__(self, output_tensors=(), error=None, parameters=None):
        tensors = output_tensors[:] if type(output_tensors) is list else _items(output_tensors, "output_tensors")
        for tensor in tensors:
            if type(tensor) is not Tensor and tensor is not None:
                instance(tensor, Tensor, "output_tensors")
        if error is not None:
            instance(error, TritonError, "error")
        self._parameters = "" if parameters is None else parameters_json(parameters, (bool, int, str))
        for tensor in tensors:
            if tensor is None:
                raise TritonModelException("Output tensor for inference response should not be empty.")
        self._tensors, self._error = tensors, error

    def output_tensors(self):
        return list(self._tensors)

    def has_error(self):
        return self._error is not None

    def error(self):
        """A TritonError, None without."""
        return self._error

    def parameters(self):
        """A JSON object, as a str."""
        return self._parameters or "{}"


InferenceResponse.__module__ = "c_python_backend_utils"

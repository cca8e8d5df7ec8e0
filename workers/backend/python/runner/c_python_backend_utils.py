"""Classes of the API of Python models, as triton_python_backend_utils has them, and some that it has not."""
from sluice_runner.calls import ResponseIterator
from sluice_runner.control import is_model_ready, load_model, unload_model
from sluice_runner.errors import TritonError, TritonModelException
from sluice_runner.logger import Logger
from sluice_runner.metrics import Metric, MetricFamily, MetricKind
from sluice_runner.request import (TRITONSERVER_MEMORY_CPU, TRITONSERVER_MEMORY_GPU, InferenceRequest, InferenceTrace, MemoryType,
                                   PreferredMemory)
from sluice_runner.response import InferenceResponse
from sluice_runner.sender import InferenceResponseSender
from sluice_runner.tensor import Tensor

__all__ = [
    "TRITONSERVER_MEMORY_CPU", "TRITONSERVER_MEMORY_GPU", "InferenceRequest", "InferenceResponse", "InferenceResponseSender",
    "InferenceTrace", "Logger", "MemoryType", "Metric", "MetricFamily", "MetricKind", "PreferredMemory", "ResponseIterator",
    "SharedMemory", "Tensor", "TritonError", "TritonModelException", "is_model_ready", "load_model", "shared_memory", "unload_model",
]


class SharedMemory:
    """Triton's shared memory of one instance, for tests that look for leaks there. Here is none."""

    def free_memory(self):
        """Bytes that are free: always the same."""
        return 1 << 30


shared_memory = SharedMemory()

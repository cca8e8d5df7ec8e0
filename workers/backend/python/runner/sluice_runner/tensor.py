"""Tensor of models: made of a numpy array or of a DLPack capsule by the model, or of a segment by the runner."""
import math

import numpy as np

from . import strings
from .errors import TritonModelException, text
from .layout import BF16, BYTES, ITEM_SIZES

# numpy's type of each datatype; BF16 has none.
NUMPY_TYPES = (None, np.bool_, np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32, np.int64, np.float16,
               np.float32, np.float64, np.object_, None)
DTYPES = tuple(t and np.dtype(t) for t in NUMPY_TYPES)
DATATYPES = {d: i for i, d in enumerate(DTYPES) if d is not None}
NAMES = ("INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "STRING",
         "BF16")

new = object.__new__


def datatype_of(dtype):
    """The datatype of a numpy dtype, a number of TRITONSERVER_datatype_enum."""
    number = DATATYPES.get(dtype)
    if number is not None:
        return number
    if dtype.kind == "S":
        return BYTES
    raise TritonModelException("NumPy dtype is not supported.")


class Tensor:
    """A named tensor. It keeps the array that it was made of; the array is copied when the tensor leaves."""
    # A received tensor has a buffer, and its array is made when somebody asks. _owner keeps memory alive that is given back when
    # nobody holds the tensor or its array; _origin is the key of the request that it came with, 0 for none.
    __slots__ = ("_name", "_dtype", "_shape", "_array", "_buffer", "_offset", "_length", "_origin", "_owner", "__weakref__")

    def __init__(self, name, numpy_array):
        self._name = text(name, "name")
        if not isinstance(numpy_array, np.ndarray):
            raise TypeError(f"numpy_array must be numpy.ndarray, not {type(numpy_array).__name__}")
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        self._dtype = DATATYPES.get(numpy_array.dtype) or datatype_of(numpy_array.dtype)
        self._shape = numpy_array.shape
        self._array = numpy_array
        self._buffer = self._owner = None
        self._origin = 0

    def name(self):
        return self._name

    def shape(self):
        return list(self._shape)

    def triton_dtype(self):
        """The datatype, a number of TRITONSERVER_datatype_enum."""
        return self._dtype

    def is_cpu(self):
        return True

    def as_numpy(self):
        """The array; writeable. It lives as long as somebody holds it."""
        array = self._array
        if array is None:
            array = self._array = self._view()
        return array

    def _view(self):
        if self._dtype == BF16:
            raise TritonModelException("Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead.")
        if self._dtype == BYTES:
            return strings.array_of(strings.decode(self._raw(), math.prod(self._shape)), self._shape)
        return np.ndarray(self._shape, DTYPES[self._dtype], self._buffer, self._offset)

    def _raw(self):
        """The bytes of a tensor that has a buffer."""
        return memoryview(self._buffer)[self._offset:self._offset + self._length]

    def _size(self):
        """Bytes of the wire form, -1 where only encoding it tells."""
        if self._buffer is not None and (self._array is None or self._dtype != BYTES):
            return self._length
        if self._dtype == BYTES:
            return -1
        return self._array.nbytes

    def _wire(self):
        """The wire form, bytes-like."""
        array = self._array
        if array is None:
            return self._raw()
        if self._dtype == BYTES:
            return strings.encode(array)
        return array.tobytes()

    def to_dlpack(self):
        """A DLPack capsule. It holds this tensor until its consumer lets go of it."""
        from . import dlpack
        return dlpack.capsule_of(self)

    def __dlpack__(self, stream=None, max_version=None, dl_device=None, copy=None):
        from . import dlpack
        if copy:
            raise BufferError("a tensor's capsule is never a copy")
        if dl_device is not None and tuple(dl_device) != (dlpack.CPU, 0):
            raise BufferError(f"a tensor on the CPU has no capsule for device {tuple(dl_device)}")
        return dlpack.capsule_of(self)

    def __dlpack_device__(self):
        return (1, 0)

    @staticmethod
    def from_dlpack(name, tensor):
        """A tensor of a DLPack capsule, or of what has __dlpack__ and __dlpack_device__. Its memory is held, not copied; that of
        another device is copied to the CPU by the framework it came from."""
        from . import dlpack
        name = text(name, "name")
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        return dlpack.tensor_of(name, tensor)


Tensor.__module__ = "c_python_backend_utils"


def received(name, dtype, shape, buffer, offset, length, origin=0, owner=None):
    """A tensor on memory that the runner has."""
    t = new(Tensor)
    t._name = name
    t._dtype = dtype
    t._shape = shape
    t._array = None
    t._buffer = buffer
    t._offset = offset
    t._length = length
    t._origin = origin
    t._owner = owner
    return t


def byte_size(dtype, shape):
    """Bytes of a tensor of any datatype but BYTES."""
    return math.prod(shape) * ITEM_SIZES[dtype]

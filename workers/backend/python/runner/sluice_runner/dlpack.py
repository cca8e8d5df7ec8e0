"""DLPack capsules, without a compiled part. Source: dlpack.h, version 0.8 (unversioned DLManagedTensor)."""
import ctypes
import math
import sys

import numpy as np

from .errors import TritonModelException
from .layout import BF16, BYTES, ITEM_SIZES
from .tensor import DTYPES, Tensor, datatype_of, new, received

CPU, CUDA, PINNED = 1, 2, 3  # kinds of devices
NAME, USED = b"dltensor", b"used_dltensor"
INT, UINT, FLOAT, BFLOAT, BOOLEAN = 0, 1, 2, 4, 6  # type codes

_TYPES = {1: (BOOLEAN, 8), 2: (UINT, 8), 3: (UINT, 16), 4: (UINT, 32), 5: (UINT, 64), 6: (INT, 8), 7: (INT, 16), 8: (INT, 32), 9: (INT, 64),
          10: (FLOAT, 16), 11: (FLOAT, 32), 12: (FLOAT, 64), BF16: (BFLOAT, 16)}
_DATATYPES = {code: number for number, code in _TYPES.items()}


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_api = ctypes.pythonapi
_new_capsule = _api.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_is_valid = _api.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
_pointer_of = _api.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_rename = _api.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
# The same of a capsule that is being destroyed, which must not become a Python object again.
_library = ctypes.PyDLL(None)
_is_valid_dying = _library.PyCapsule_IsValid
_is_valid_dying.restype, _is_valid_dying.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p)
_pointer_of_dying = _library.PyCapsule_GetPointer
_pointer_of_dying.restype, _pointer_of_dying.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)

_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)

_exported = {}  # address of a DLManagedTensor -> what must live as long: it, its shape, the tensor, the array


@_Deleter
def _delete(address):
    _exported.pop(address, None)


@_Destructor
def _destroy(capsule):
    if _is_valid_dying(capsule, NAME):  # nobody has consumed it
        _exported.pop(_pointer_of_dying(capsule, NAME), None)


def capsule_of(tensor):
    """A capsule of a tensor. The tensor is held until the consumer lets go."""
    if tensor._dtype == BYTES:
        raise TritonModelException("DLPack does not have support for string tensors.")
    owner = tensor._owner
    if type(owner) is Imported:
        address, device, number, array = owner.address, owner.device, owner.device_id, None
    else:
        array = _contiguous(tensor)
        address, device, number = array.ctypes.data, CPU, 0
    shape = (ctypes.c_int64 * max(len(tensor._shape), 1))(*tensor._shape)
    managed = DLManagedTensor()
    t = managed.tensor
    t.data, t.device_type, t.device_id, t.ndim = address, device, number, len(tensor._shape)
    t.code, t.bits = _TYPES[tensor._dtype]
    t.lanes = 1
    t.shape = shape
    managed.deleter = ctypes.cast(_delete, ctypes.c_void_p)
    at = ctypes.addressof(managed)
    _exported[at] = managed, shape, tensor, array
    return _new_capsule(at, NAME, ctypes.cast(_destroy, ctypes.c_void_p))


def _contiguous(tensor):
    """The tensor's memory as an array in C order."""
    if tensor._dtype == BF16:
        return np.ndarray((tensor._length,), np.uint8, tensor._buffer, tensor._offset)
    return np.ascontiguousarray(tensor.as_numpy())


class Imported:
    """The memory of a capsule that was consumed, until nobody holds it."""
    __slots__ = ("address", "device", "device_id", "managed", "__weakref__")

    def __init__(self, managed, device, device_id, address):
        self.managed, self.device, self.device_id, self.address = managed, device, device_id, address

    def send(self, tensor, place):
        return None  # it is copied

    def __del__(self):
        deleter = DLManagedTensor.from_address(self.managed).deleter
        if deleter:
            _Deleter(deleter)(self.managed)


class Memory(np.ndarray):
    """Bytes of a consumed capsule. Arrays on it hold it, and with it the capsule's memory."""
    imported = None


def tensor_of(name, source):
    """A Tensor of a capsule, or of an object that makes one."""
    if type(source).__name__ == "PyCapsule":
        return _consume(name, source)
    if not hasattr(source, "__dlpack__") or not hasattr(source, "__dlpack_device__"):
        raise TritonModelException("Provided tensor is not supported. Tensor must be a DLPack capsule "
                                   "        or have `__dlpack__` and `__dlpack_device__` attributes")
    device = int(source.__dlpack_device__()[0])
    if device not in (CPU, CUDA, PINNED):
        raise TritonModelException(f"DLDevice type {device} is not support by Python backend.")
    # A device's consumer says on which stream it reads; 1 is the default one, on which the framework copies later.
    return _consume(name, source.__dlpack__(stream=1 if device == CUDA else None))


def _consume(name, capsule):
    if not _is_valid(capsule, NAME):
        raise TritonModelException("Provided tensor is not supported. The DLPack capsule was consumed before, or is of another version.")
    address = _pointer_of(capsule, NAME)
    t = DLManagedTensor.from_address(address).tensor
    shape = tuple(t.shape[i] for i in range(t.ndim))
    if t.strides and 0 not in shape:
        _check_order(shape, [t.strides[i] for i in range(t.ndim)])
    if t.device_type not in (CPU, CUDA, PINNED):
        raise TritonModelException(f"DLDevice type {t.device_type} is not support by Python backend.")
    dtype = _DATATYPES.get((t.code, t.bits)) if t.lanes == 1 else None
    if dtype is None:
        raise TritonModelException(f"DLPack tensor of type code {t.code}, {t.bits} bits, {t.lanes} lanes is not supported.")
    length = math.prod(shape) * ITEM_SIZES[dtype]
    _rename(capsule, USED)
    owner = Imported(address, t.device_type, t.device_id, (t.data or 0) + t.byte_offset)
    if t.device_type == CUDA:
        tensor = received(name, dtype, shape, None, 0, length, 0, owner)
        tensor.__class__ = DeviceTensor
        return tensor
    if length:
        memory = np.ndarray.__new__(Memory, (length,), np.uint8, (ctypes.c_ubyte * length).from_address(owner.address))
    else:
        memory = np.ndarray.__new__(Memory, (0,), np.uint8)
    memory.imported = owner
    return received(name, dtype, shape, memory, 0, length, 0, owner)


def _check_order(shape, strides):
    want = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1:
            if stride != want:
                raise TritonModelException("DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are "
                                           "supported.")
            want *= size


class DeviceTensor(Tensor):
    """A tensor in the memory of a device. When it is sent, the framework that is loaded copies it to the CPU."""
    __slots__ = ()

    def is_cpu(self):
        return False

    def as_numpy(self):
        raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")

    def __dlpack__(self, stream=None, max_version=None, dl_device=None, copy=None):
        return capsule_of(self)

    def __dlpack_device__(self):
        return (self._owner.device, self._owner.device_id)

    def _size(self):
        return -1

    def _wire(self):
        torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
        if torch is not None:
            host = torch.utils.dlpack.from_dlpack(self.to_dlpack()).cpu()
            return (host.view(torch.int16) if self._dtype == BF16 else host).numpy().tobytes()
        if cupy is not None:
            return cupy.asnumpy(cupy.from_dlpack(self)).tobytes()
        raise TritonModelException(f"tensor '{self._name}' is in GPU memory, and no framework is loaded that copies it: torch or cupy")


DeviceTensor.__module__ = "c_python_backend_utils"

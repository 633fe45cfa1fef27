"""The memory of an engine for Python: as an address, as a buffer, for NumPy and over DLPack."""
from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

DTYPES = ("fp32", "bf16", "fp16")  # by the number that the interface gives them
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
CPU, CUDA = 1, 2  # DLPack's kinds of device


@dataclass(frozen=True)
class Memory:
    """Elements in memory of an engine, row-major with this shape, at an address that does not change.

    The engine owns the memory, and this object keeps the engine alive. Whether the elements are valid depends on what is
    acquired. `dtype` is "fp32", "bf16" or "fp16". `device` is DLPack's pair of device type and number. `is_readonly`: arrays of
    NumPy are read-only, because the engine alone writes parameters.
    """

    address: int
    shape: tuple[int, ...]
    dtype: str
    device: tuple[int, int] = (CPU, 0)
    owner: Any = None
    is_readonly: bool = False

    @property
    def elems(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.elems * BYTES[self.dtype]

    def buffer(self) -> Any:
        """Returns the bytes as a writable object with the buffer protocol. ValueError: the memory is on a GPU.

        Do not write to the memory of a parameter: the optimizer alone changes it.
        """
        if self.device[0] != CPU:
            raise ValueError("memory of a device is no buffer; use DLPack")
        made = (ctypes.c_char * self.nbytes).from_address(self.address)
        made._owner = self.owner
        return made

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """For numpy.asarray. bf16 appears as its 16 bits (uint16)."""
        kind = {"fp32": "<f4", "fp16": "<f2", "bf16": "<u2"}[self.dtype]
        if self.device[0] != CPU:
            raise AttributeError("memory of a device has no array interface; use DLPack")
        return {"version": 3, "shape": self.shape, "typestr": kind, "data": (self.address, self.is_readonly)}

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's pair of device type and number."""
        return self.device

    def __dlpack__(self, stream: Any = None, **_: Any) -> Any:
        """Returns a DLPack capsule (https://dmlc.github.io/dlpack). Copies nothing.

        `stream` is not waited for: the work of the engine is ordered on its compute stream, on which the consumer must work too.
        """
        return capsule(self)


# ------------------------------------------------------------------- DLPack --

class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_CODES = {"fp32": (2, 32), "fp16": (2, 16), "bf16": (4, 16)}
_alive: dict[int, tuple[Any, ...]] = {}  # what consumers still use, by the address of its struct


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _drop(address: int) -> None:
    _alive.pop(address, None)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _drop_unused(capsule_address: int) -> None:
    """Frees a capsule that was never consumed, which still has its first name."""
    if _is_valid(capsule_address, b"dltensor"):
        _alive.pop(_pointer(capsule_address, b"dltensor"), None)


_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))
_NAME = ctypes.create_string_buffer(b"dltensor")  # the capsule keeps the address


def capsule(memory: Memory) -> Any:
    """Makes a DLPack capsule of memory. What the consumer uses is kept alive until it calls the deleter."""
    shape = (ctypes.c_int64 * max(len(memory.shape), 1))(*memory.shape)
    code, bits = _CODES[memory.dtype]
    managed = _Managed()
    managed.tensor = _Tensor(memory.address, *memory.device, len(memory.shape), code, bits, 1, shape, None, 0)
    managed.deleter = ctypes.cast(_drop, ctypes.c_void_p)
    address = ctypes.addressof(managed)
    _alive[address] = (managed, shape, memory.owner)
    return _new(address, ctypes.addressof(_NAME), ctypes.cast(_drop_unused, ctypes.c_void_p))

"""The class Memory: memory of the engine for Python, by its address, as a buffer, as an array of numpy, or over DLPack."""
from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

DTYPES = ("fp32", "bf16", "fp16")  # the index is the number of the type in the interface (sherd_dtype)
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "uint8": 1}
CPU, CUDA = 1, 2  # DLPack's kinds of device


@dataclass(frozen=True)
class Memory:
    """A tensor in memory of the engine: elements of `shape` and `dtype`, row-major, at `address`.

    `dtype` is "fp32", "bf16" or "fp16", and "uint8" for an activation, whose bytes mean what the trainer likes.

    The engine owns the memory. The object, and every array or tensor that is made from it, keeps the engine object alive through
    `owner`, but Engine.destroy still ends the memory. Which values are there depends on what is acquired (Engine.data).
    `device` is DLPack's pair of the kind of device (CPU or CUDA) and its number. With `is_readonly`, which parameters have,
    numpy's arrays over it are read-only: the engine alone writes parameters.
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
        """The size in bytes."""
        return self.elems * BYTES[self.dtype]

    def buffer(self) -> Any:
        """Returns the bytes as an object with the buffer protocol, without a copy.

        The buffer is writable even for a parameter, which nobody but the engine may write. Raises ValueError on a GPU.
        """
        if self.device[0] != CPU:
            raise ValueError("memory of a device is no buffer; use DLPack")
        made = (ctypes.c_char * self.nbytes).from_address(self.address)
        made._owner = self.owner
        return made

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """numpy's array interface, for numpy.asarray without a copy; bf16 appears as unsigned integers of 16 bits.

        Raises AttributeError for memory on a GPU.
        """
        kind = {"fp32": "<f4", "fp16": "<f2", "bf16": "<u2", "uint8": "|u1"}[self.dtype]
        if self.device[0] != CPU:
            raise AttributeError("memory of a device has no array interface; use DLPack")
        return {"version": 3, "shape": self.shape, "typestr": kind, "data": (self.address, self.is_readonly)}

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's kind and number of the device."""
        return self.device

    def __dlpack__(self, stream: Any = None, **_: Any) -> Any:
        """Returns a DLPack capsule ("dltensor") over the memory, without a copy.

        The call waits for nothing and ignores `stream`. The engine's work is ordered on its compute stream, so the consumer
        has to work on that stream, or on one that waits for it.
        """
        return capsule(self)


# ------------------------------------------------------------------- DLPack --

class _Tensor(ctypes.Structure):
    """DLTensor of DLPack."""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    """DLManagedTensor of DLPack."""

    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_CODES = {"fp32": (2, 32), "fp16": (2, 16), "bf16": (4, 16), "uint8": (1, 8)}  # DLPack's code of the type, and its bits
_alive: dict[int, tuple[Any, ...]] = {}  # what consumers still use, by the address of the DLManagedTensor


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _drop(address: int) -> None:
    """The deleter that the consumer of a tensor calls when it is done with it."""
    _alive.pop(address, None)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _drop_unused(capsule_address: int) -> None:
    """The destructor of a capsule. A consumer renames the capsule; one that still has its first name was never consumed."""
    if _is_valid(capsule_address, b"dltensor"):
        _alive.pop(_pointer(capsule_address, b"dltensor"), None)


_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))
_NAME = ctypes.create_string_buffer(b"dltensor")  # a capsule keeps the address of its name, so the name must stay


def capsule(memory: Memory) -> Any:
    """Makes a DLPack capsule over the memory, which keeps the owner of the memory alive until its consumer is done."""
    shape = (ctypes.c_int64 * max(len(memory.shape), 1))(*memory.shape)
    code, bits = _CODES[memory.dtype]
    managed = _Managed()
    managed.tensor = _Tensor(memory.address, *memory.device, len(memory.shape), code, bits, 1, shape, None, 0)
    managed.deleter = ctypes.cast(_drop, ctypes.c_void_p)
    address = ctypes.addressof(managed)
    _alive[address] = (managed, shape, memory.owner)
    return _new(address, ctypes.addressof(_NAME), ctypes.cast(_drop_unused, ctypes.c_void_p))

"""The exceptions of the package: one class for each status of the library (sherd.h has the list).

The text of an exception is the library's own message: what failed, where, and what to do. Each class but AgainError also has
the built-in exception as a base that fits its cause, so `except ValueError` and the like work. PREFIX has what Python adds to a text.
"""
from __future__ import annotations


class SherdError(Exception):
    """The base of all exceptions that libsherd causes. `status` is the name of the status in sherd.h."""

    status = "SHERD_E_INVAL"


class AgainError(SherdError):
    """Something was busy. Make the same call again."""

    status = "SHERD_E_AGAIN"


class InvalidError(SherdError, ValueError):
    """An argument or an input is wrong. The same call would fail again: change it."""

    status = "SHERD_E_INVAL"


class StateError(SherdError, RuntimeError):
    """The call is not allowed in the present state of the object."""

    status = "SHERD_E_STATE"


class NotSupportedError(SherdError, NotImplementedError):
    """This build or this configuration does not support the call."""

    status = "SHERD_E_NOTSUP"


class OutOfMemoryError(SherdError, MemoryError, RuntimeError):
    """There is too little memory. The message says how much is missing and, at seal, the nearest setting that fits.

    It is a RuntimeError whose text begins as torch's does, since that is how loops that try a smaller batch know such an error
    (find_executable_batch_size of Accelerate).
    """

    status = "SHERD_E_NOMEM"


class InputOutputError(SherdError, OSError):
    """Reading or writing a file or a drive failed."""

    status = "SHERD_E_IO"


class NumericError(SherdError, ArithmeticError):
    """A number is out of the range that is allowed."""

    status = "SHERD_E_NUMERIC"


class PeerLostError(SherdError, ConnectionError):
    """A rank of the world is lost. Destroy the world and make a new one."""

    status = "SHERD_E_PEER_LOST"


class DeviceError(SherdError, RuntimeError):
    """Work on the device failed. Destroy the world and make a new one."""

    status = "SHERD_E_DEVICE"


BY_STATUS: dict[str, type[SherdError]] = {
    kind.status: kind
    for kind in (AgainError, InvalidError, StateError, NotSupportedError, OutOfMemoryError, InputOutputError,
                 NumericError, PeerLostError, DeviceError)
}

PREFIX: dict[type[SherdError], str] = {OutOfMemoryError: "sherd is out of memory. "}

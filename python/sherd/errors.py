"""Failures as exceptions. Each has the message of the engine: what failed, where, and what to do."""
from __future__ import annotations


class SherdError(Exception):
    """Anything that libsherd refuses or that fails in it. `status` is the name of its sherd_status."""

    status = "SHERD_E_INVAL"


class AgainError(SherdError):
    """Something is busy. Try again."""

    status = "SHERD_E_AGAIN"


class InvalidError(SherdError, ValueError):
    """An argument or an input is wrong. Change it."""

    status = "SHERD_E_INVAL"


class StateError(SherdError, RuntimeError):
    """The call is not allowed at this point."""

    status = "SHERD_E_STATE"


class NotSupportedError(SherdError, NotImplementedError):
    """This build or this configuration cannot do it."""

    status = "SHERD_E_NOTSUP"


class OutOfMemoryError(SherdError, MemoryError):
    """It does not fit in memory. The message says what is missing and, at seal, the nearest setting that fits."""

    status = "SHERD_E_NOMEM"


class InputOutputError(SherdError, OSError):
    """A file or a drive failed."""

    status = "SHERD_E_IO"


class NumericError(SherdError, ArithmeticError):
    """A number is outside the range that is allowed."""

    status = "SHERD_E_NUMERIC"


class PeerLostError(SherdError, ConnectionError):
    """A rank of the world is lost. Make a new world."""

    status = "SHERD_E_PEER_LOST"


class DeviceError(SherdError, RuntimeError):
    """Work on the device failed."""

    status = "SHERD_E_DEVICE"


BY_STATUS: dict[str, type[SherdError]] = {
    kind.status: kind
    for kind in (AgainError, InvalidError, StateError, NotSupportedError, OutOfMemoryError, InputOutputError,
                 NumericError, PeerLostError, DeviceError)
}

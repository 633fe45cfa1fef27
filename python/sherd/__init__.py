"""sherd: the Python interface of a ZeRO engine that is written in C.

The classes World, Config, Engine and Checkpoint stand for objects of the C library. include/sherd.h has the whole contract of
each call, and docs/python.md is the user's page. sherd.torch trains PyTorch modules with them. `import sherd` does not need
PyTorch or numpy.

Four terms recur in the docstrings:

* A collective call is one that every rank of the world makes, in the same order. A local call concerns its own rank alone.
* A blocking call waits for other ranks or for a drive before it returns. Calls release the GIL while they run.
* One thread at a time drives an engine, and all engines of one world. It may be another thread each time.
* Where the library fails, a call raises the subclass of SherdError that belongs to the status (sherd/errors.py).
"""
from __future__ import annotations

from sherd._library import library
from sherd.checkpoint import Checkpoint
from sherd.config import Config
from sherd.engine import BACKWARD, EVAL, FORWARD, Engine, Report
from sherd.errors import (AgainError, DeviceError, InputOutputError, InvalidError, NotSupportedError, NumericError,
                          OutOfMemoryError, PeerLostError, SherdError, StateError)
from sherd.memory import Memory
from sherd.world import World

__all__ = ["AgainError", "BACKWARD", "Checkpoint", "Config", "DeviceError", "EVAL", "Engine", "FORWARD",
           "InputOutputError", "InvalidError", "Memory", "NotSupportedError", "NumericError", "OutOfMemoryError", "PeerLostError", "Report",
           "SherdError", "StateError", "World", "version"]


def version() -> str:
    """Returns the version of libsherd, such as "0.1.0", and the commit where it was built in a git checkout. Local.

    Raises FileNotFoundError where there is no libsherd (as every first use of the library does), ImportError where libsherd
    and the list of its interface (api.json) do not fit each other.
    """
    return library().version().decode()

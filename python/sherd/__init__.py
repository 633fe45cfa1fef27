"""sherd: a ZeRO engine in C, for Python.

World, Config and Engine are the objects of the library, whose calls sherd.h documents. sherd.torch trains PyTorch modules with
them.
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
    """Returns the version of libsherd and, if it was built in a checkout, the commit."""
    return library().version().decode()

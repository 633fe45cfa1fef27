"""Accelerate's Accelerator over engines of sherd: a script changes `from accelerate import Accelerator` to this package, and nothing else.

docs/accelerate.md is the user's page. torch.distributed, which Accelerate sets up, continues to serve loaders, metrics and printing;
the engines have a separate world of sherd. configuration.py says what an engine is made of, training.py holds a model's window, and
accelerator.py has Accelerate's calls.
"""
from typing import Any

import accelerate

from sherd.accelerate.accelerator import Accelerator

__all__ = ["Accelerator"]


def __getattr__(name: str) -> Any:
    """Returns Accelerate's object of that name, so that `from sherd.accelerate import Accelerator, DistributedType` is one import too."""
    return getattr(accelerate, name)

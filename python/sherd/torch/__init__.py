"""Trains PyTorch modules with sherd: initialize() returns the engine that trains a model. docs/pytorch.md is the user's page."""
from __future__ import annotations

from sherd.torch.compare import compare
from sherd.torch.engine import Engine, initialize
from sherd.torch.gathered import gathered_parameters
from sherd.torch.units import divide

__all__ = ["Engine", "compare", "divide", "gathered_parameters", "initialize"]

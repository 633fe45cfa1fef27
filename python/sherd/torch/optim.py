"""What stands in for the optimizer: its groups and rates, for learning-rate schedulers and for who looks at them."""
from __future__ import annotations

import math
from typing import Any, Callable

import torch

from sherd.errors import NotSupportedError
from sherd.torch.units import Division

SCALER = ("torch's GradScaler is not used with sherd: the engine scales the loss in engine.backward() and skips updates that "
          "overflow, as the key fp16 says; leave the scaler out, call engine.backward(loss) and engine.step()")


class EngineOptimizer(torch.optim.Optimizer):
    """The engine's optimizer as torch's schedulers see it. Updates are made by engine.step(): `step` does nothing here."""

    def __init__(self, division: Division, rate: float) -> None:
        super().__init__([{"params": [param.tensor for param in division.params if not param.is_frozen]}], {"lr": rate})
        self._given = [group["lr"] for group in self.param_groups]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        return closure() if closure is not None else None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The engine clears gradients itself."""

    @property
    def _step_supports_amp_scaling(self) -> bool:
        raise NotSupportedError(SCALER)

    def rates(self) -> list[float] | None:
        """The rate of each of the engine's groups where somebody has set one, NaN for the schedule's; None: nobody has."""
        now = [group["lr"] for group in self.param_groups]
        if now == self._given:
            return None
        return [math.nan if rate is None else float(rate) for rate in now]

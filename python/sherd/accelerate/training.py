"""A prepared model in training: its window, its engine, which is made by the first forward, and the optimizer that the script sees."""
from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch import nn

from sherd.errors import NotSupportedError
from sherd.torch import first
from sherd.torch.hooks import untraced

if TYPE_CHECKING:
    from sherd.accelerate.accelerator import Accelerator

GUARD = 1e-6  # in the divisor of torch's clip coefficient


class Optimizer(AcceleratedOptimizer):
    """What prepare() makes of an optimizer: Accelerate's wrapper, whose step is the engine's."""

    def __init__(self, accelerator: "Accelerator", optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer, device_placement=False)
        self._accelerator = accelerator  # which lives as long as its optimizers

    def _training(self) -> "Training":
        return self._accelerator._training_of(self)

    def step(self, closure: Any = None) -> None:
        """Updates the model where gradients are synchronised. Collective, blocking. Does nothing where there are no gradients."""
        if closure is not None:
            raise NotSupportedError("optimizer.step(closure) evaluates the model again inside of the step: call step() without it")
        if self.gradient_state.sync_gradients:
            self._is_overflow = self._training().update()

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drops the gradients that no step has used, where gradients are synchronised. Collective and blocking where there are any."""
        if self.gradient_state.sync_gradients:
            self._training().drop()


@dataclass
class Training:
    """A prepared model with its optimizer, its engine, and the window that is open."""

    model: nn.Module
    optimizer: Optimizer | None = None
    engine: Any = None
    clipping: float = 0  # of the configuration; 0: none
    micro: int = 0  # micro-batches of the window
    clip: float | None = None  # the coefficient of clip_grad_norm_() for the prepared step
    handles: list[Any] = field(default_factory=list)

    def end_micro_batch(self) -> None:
        """Ends the micro-batch whose backward is over, if there is one. The window stays open. Collective, blocking."""
        if self.engine is not None and self.engine._backwards > 0:
            self.engine.prepare_step()
            self.micro += 1

    def prepared(self) -> Any:
        """Returns the report of the step that is prepared, and prepares it where it is not; None: there are no gradients."""
        self.end_micro_batch()
        if self.micro == 0:
            return None
        if self.engine.prepared is None:
            self.engine.close_window()
            self.engine.prepare_step()
        return self.engine.prepared

    def norm(self, report: Any) -> float:
        """The norm of the gradient as torch has it: the sum of the window's losses, of which the engine takes the mean."""
        return self.micro * report.grad_norm

    def clip_by(self, most: float) -> float:
        """Clips the step to a norm of at most `most`, and returns the norm before. Collective, blocking."""
        report = self.prepared()
        if report is None:
            return 0.0
        norm = self.norm(report) * (1 if self.clip is None else self.clip)
        self.clip = (1 if self.clip is None else self.clip) * coefficient(norm, most)
        return norm

    def update(self) -> bool:
        """Makes the update, and returns whether it was skipped for an overflow. Collective, blocking."""
        report = self.prepared()
        if report is None:
            return False
        if self.clip is None:
            self.clip = coefficient(self.norm(report), self.clipping) if self.clipping > 0 else 1.0
        report = self.engine.apply_step(clip_coefficient=self.micro * self.clip)
        self.micro, self.clip = 0, None
        return bool(report.has_overflow)

    def drop(self) -> None:
        """Drops the window. Collective and blocking where there is one."""
        if self.engine is not None and self.engine.has_window:
            self.engine.discard()
        self.micro, self.clip = 0, None


def coefficient(norm: float, most: float) -> float:
    """The factor of torch's clip_grad_norm_; 1 for a norm that is not finite, with which there is no update."""
    return min(1.0, most / (norm + GUARD)) if math.isfinite(norm) else 1.0


class Maker:
    """The hook before a prepared model's first forward, which makes the engine and seals it by this batch."""

    def __init__(self, accelerator: "Accelerator | None" = None) -> None:
        self._accelerator = (lambda: None) if accelerator is None else weakref.ref(accelerator)

    def __deepcopy__(self, _memo: Any) -> "Maker":
        return Maker()

    def __reduce__(self) -> Any:
        return Maker, ()

    @untraced
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        accelerator = self._accelerator()
        found = None if accelerator is None else accelerator._trainings.get(id(module))
        if found is None or found.model is not module or found.engine is not None:
            return None
        return first.sealed(accelerator.engine(module), module, args, kwargs)

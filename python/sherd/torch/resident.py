"""Decides when units are acquired and released where parameters always have values and gradients are whole until the step.

That is so at stages 0 and 1 (but with "deterministic", which takes the gradients of each micro-batch, and with activations), and at stage 2 with backward_uses
"any", if an update does not have to know which units a backward has reached (sherd.unused_units). There a forward needs no parameter that
is not there, and gradients may come in any order. So modules need no hooks (hooks.py): a backward acquires a unit when the first of its
gradients has come.
"""
from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd import Variable

from sherd.engine import BACKWARD, EVAL, FORWARD
from sherd.torch.hooks import Attached, current_task, first_order_check, transforms_check
from sherd.torch.tensors import Driver
from sherd.torch.units import Division, Param

NONE = -1


class Hooks(Attached):
    """The hooks of such a model, in the place of hooks.Hooks. attach sets them, detach removes them.

    One unit at a time is acquired: in a forward the first one, and in a backward the one whose gradients come.
    """

    hiding = None  # a gradient may enter a module by any way

    def __init__(self, model: nn.Module, division: Division, driver: Driver) -> None:
        super().__init__(model, division, driver)
        self._depth = 0  # forwards of the model that run, one inside of another
        self._which: int | None = None  # the pass of the outermost one, which has acquired the first unit
        self._tasks: set[int] = set()  # the backwards that run, one inside of another
        self._held = NONE  # the unit that is acquired for BACKWARD

    # ------------------------------------------------------------ attaching --

    def attach(self) -> None:
        """Sets the hooks: of the model itself, and of every trainable parameter."""
        self._attach({self.model: None})

    # -------------------------------------------------------------- forward --

    def enter(self, _of: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Begins a forward of the model, unless it is a part of another one or is computed again in a backward. Returns the arguments."""
        if not self._depth and current_task() < 0:
            which = FORWARD if torch.is_grad_enabled() else EVAL
            if which == FORWARD and self._is_trained:
                transforms_check("")
            if self.before_forward is not None:
                self.before_forward()
            self.driver.check_all()
            if which == FORWARD:
                self.driver.open_grads()
            self.driver.acquire(0, which)
            self._which = which
            for unit in range(1, len(self.division.units)):
                self.driver.acquire(unit, which)  # the compute stream then follows what has made its values
                self.driver.release(unit, which)
        self._depth += 1
        return args, kwargs

    def leave(self, _of: Any, _output: Any) -> None:
        """Ends a forward, also after an exception."""
        if self._depth:  # else enter() failed
            self._depth -= 1
        if not self._depth and self._which is not None:
            which, self._which = self._which, None
            self.driver.release(0, which)

    def open_backward(self, loss: torch.Tensor | None) -> None:
        """Prepares for the backward of `loss`; None: for one that has had its first gradient. Local."""
        if loss is not None:
            self.driver.open_grads()

    # ------------------------------------------------------------- backward --

    def on_param(self, param: Param) -> None:
        """Is called when autograd has accumulated a parameter's gradient: acquires its unit for BACKWARD."""
        task = current_task()
        if task not in self._tasks:
            self._begin_backward(task)
        if param.unit != self._held:
            self._let_go()
            self.driver.reach(param)
            self._held = param.unit
        self.driver.accumulated(param.number)

    def _begin_backward(self, task: int) -> None:
        first_order_check()
        if self.before_backward is not None:
            self.before_backward()
        self._tasks.add(task)
        Variable._execution_engine.queue_callback(lambda: self._end_backward(task))

    def _end_backward(self, task: int) -> None:
        self._tasks.discard(task)
        self._let_go()

    def _let_go(self) -> None:
        """Releases the unit that is acquired for BACKWARD, if there is one."""
        unit, self._held = self._held, NONE
        if unit != NONE:
            self.driver.release(unit, BACKWARD)

    # ------------------------------------------------------------- failures --

    @property
    def is_idle(self) -> bool:
        """Whether neither a forward nor a backward is under way."""
        return not self._depth and not self._tasks

    @property
    def is_in_backward(self) -> bool:
        """Whether a backward has begun and not ended."""
        return bool(self._tasks)

    def forget(self) -> None:
        """Forgets what is under way after the window was dropped, which releases all units."""
        self._depth, self._which, self._held = 0, None, NONE
        self._tasks.clear()

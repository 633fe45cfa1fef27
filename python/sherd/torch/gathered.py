"""Whole weights in the model's own parameters for some time, for functions that initialise, average or convert them."""
from __future__ import annotations

import contextlib
import ctypes
import weakref
from typing import TYPE_CHECKING, Any, Iterable, Iterator

import torch
from torch import nn

from sherd.errors import StateError
from sherd.torch import weights
from sherd.torch.hooks import Single
from sherd.torch.say import collective
from sherd.torch.units import Param

if TYPE_CHECKING:
    from sherd.torch.engine import Engine

OWNER = "_sherd_engine"  # of a parameter: a weak reference to its engine


class Owner(Single):
    """A weak reference from a parameter to its engine."""
    def __init__(self, engine: "Engine") -> None:
        super().__init__(None, weakref.ref(engine))


def mark(engine: "Engine") -> None:
    """Marks the parameters with their engine, so that gathered_parameters() needs no engine as an argument."""
    for param in engine.division.params:
        setattr(param.tensor, OWNER, Owner(engine))


def unmark(engine: "Engine") -> None:
    """Removes these marks."""
    for param in engine.division.params:
        if hasattr(param.tensor, OWNER):
            delattr(param.tensor, OWNER)


def owner_of(tensor: torch.Tensor) -> "Engine | None":
    """Returns the engine that has this tensor as a parameter, or None."""
    reference = getattr(tensor, OWNER, None)
    return None if reference is None else reference.of()


@contextlib.contextmanager
def gathered_parameters(of: nn.Module | torch.Tensor | Iterable[torch.Tensor], modify: bool = False,
                        modifier_rank: int | None = None) -> Iterator[None]:
    """Gives parameters their whole values on every rank, for the body of a `with` statement. Collective, blocking.

    `of` is a module, a parameter, or several parameters. Each has its shape and compute type, in memory of its own. With
    `modify`, the values of rank `modifier_rank` (default 0; giving it implies `modify`) become the engine's on all ranks at the
    end. Elements that did not change keep their exact master weights. Parameters that no engine has are not touched. StateError:
    a forward or backward is under way. The body must not call the engine.
    """
    chosen = list(of.parameters()) if isinstance(of, nn.Module) else [of] if isinstance(of, torch.Tensor) else list(of)
    modify = modify or modifier_rank is not None
    shown = [Shown(engine, param) for engine, param in owned(chosen)]
    try:
        for one in shown:
            one.show(modify)
        yield
        if modify:
            for one in shown:
                one.write_back(modifier_rank or 0)
    finally:
        for one in shown:
            one.hide()


def owned(tensors: list[torch.Tensor]) -> list[tuple["Engine", Param]]:
    """Returns those of the tensors that an engine has, with their engines."""
    found: dict[int, tuple["Engine", Param]] = {}
    for tensor in tensors:
        engine = owner_of(tensor)
        if engine is not None:
            engine.seal()  # a checkpoint may wait to be loaded
            if not engine.hooks.is_idle:
                raise StateError("gathered_parameters() is for between steps: a forward or backward of the engine is under way")
            found[id(tensor)] = (engine, next(p for p in engine.division.params if p.tensor is tensor))
    return list(found.values())


class Shown:
    """One parameter that has its whole value for some time."""

    def __init__(self, engine: "Engine", param: Param) -> None:
        self.engine, self.param, self.world = engine, param, engine.world
        self.bound = engine.driver.by_number[param.number]
        self.is_shown = False
        self.exact: torch.Tensor | None = None  # fp32, kept for write_back

    @collective("gathered_parameters()")
    def show(self, modify: bool) -> None:
        """Reads the parameter and shows it. Collective."""
        exact = weights.read(self.engine.core, self.param)
        self.exact = exact if modify else None
        self.param.tensor.data = exact.to(self.bound.awake.dtype, copy=modify).to(self.bound.awake.device)
        self.is_shown = True
        self.engine.refusals.shown.add(id(self.param.tensor))

    @collective("gathered_parameters()")
    def write_back(self, root: int) -> None:
        """Writes the elements that changed on rank `root`, on all ranks. Collective."""
        core, world = self.engine.core, self.world
        values = self.param.tensor.data.detach().to("cpu").contiguous()
        assert self.exact is not None
        if values.shape != self.exact.shape:
            raise StateError(f"parameter {self.param.name} is {list(self.exact.shape)} and was given {list(values.shape)} inside "
                             f"gathered_parameters(): a shape does not change")
        begun = self.exact.to(self.bound.awake.dtype)
        same = (values == begun) | (values.isnan() & begun.isnan())
        made = torch.where(same, self.exact, values.to(torch.float32)).contiguous()
        is_changed = bytearray([not bool(same.all())])
        if world.size > 1:
            world.broadcast(is_changed, root)
        if not is_changed[0]:
            return
        if world.size > 1 and made.numel():
            world.broadcast((ctypes.c_char * (4 * made.numel())).from_address(made.data_ptr()), root)
        weights.write(core, self.param, made)

    def hide(self) -> None:
        """Shows NaN again. Local."""
        self.engine.refusals.shown.discard(id(self.param.tensor))
        if self.is_shown:
            self.param.tensor.data = self.bound.asleep
            self.bound.version = self.param.tensor._version
        self.is_shown = False
        self.exact = None

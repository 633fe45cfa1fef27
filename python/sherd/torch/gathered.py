"""Shows whole weights in the model's own parameters for a while, as code that initialises, averages or converts weights needs."""
from __future__ import annotations

import contextlib
import ctypes
import weakref
from typing import TYPE_CHECKING, Any, Iterable, Iterator, TypeGuard

import torch
from torch import nn

from sherd.errors import StateError
from sherd.torch import weights
from sherd.torch.hooks import Single
from sherd.torch.say import collective
from sherd.torch.units import Param

if TYPE_CHECKING:
    from sherd.torch.engine import Engine

OWNER = "_sherd_engine"  # the attribute of a parameter that refers weakly to its engine


class Owner(Single):
    """The value of that attribute."""

    def __init__(self, engine: "Engine") -> None:
        super().__init__(None, weakref.ref(engine))


def mark(engine: "Engine") -> None:
    """Notes the engine at each of its parameters, so that gathered_parameters() needs only the parameters."""
    for param in engine.division.params:
        setattr(param.tensor, OWNER, Owner(engine))


def unmark(engine: "Engine") -> None:
    """Takes the notes of mark() back."""
    for param in engine.division.params:
        if hasattr(param.tensor, OWNER):
            delattr(param.tensor, OWNER)


def owner_of(tensor: torch.Tensor) -> "Engine | None":
    """Returns the engine that has the parameter; None: no engine has it, or the engine has ended."""
    reference = getattr(tensor, OWNER, None)
    return None if reference is None else reference.of()


@contextlib.contextmanager
def gathered_parameters(of: "Engine | nn.Module | torch.Tensor | Iterable[torch.Tensor]", modify: bool = False,
                        modifier_rank: int | None = None) -> Iterator[None]:
    """A context inside which parameters have their whole values on every rank, in the compute type, in memory of their own.

    of: a module or an engine, for all its parameters, or a parameter, or several. Parameters that no engine has do not change.
    modify: what was changed inside becomes the engine's at the end, on all ranks as rank `modifier_rank` has it. Elements that
        were not changed keep their exact master weights.
    modifier_rank: the rank whose changes count; default 0. A rank that is given implies `modify`.

    Nothing is written where the code inside raises. It takes the memory of the parameters once in the compute type, and with
    `modify` once more in fp32. Collective, blocking, between steps, with the same parameters in the same order on every rank; no
    forward of the engine inside. Raises StateError (a forward or backward is under way, a parameter was written in place before,
    or a shape was changed).
    """
    of = of.module if is_engine(of) else of
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


def is_engine(of: Any) -> "TypeGuard[Engine]":
    """Whether it is an engine."""
    from sherd.torch.engine import Engine  # which needs this file itself

    return isinstance(of, Engine)


def owned(tensors: list[torch.Tensor]) -> list[tuple["Engine", Param]]:
    """Returns each tensor that an engine has, once, with its engine, which is sealed if it is not yet. Collective. StateError."""
    found: dict[int, tuple["Engine", Param]] = {}
    for tensor in tensors:
        engine = owner_of(tensor)
        if engine is not None:
            engine.seal()  # a load of a checkpoint may wait for the first batch
            if not engine.hooks.is_idle:
                raise StateError("gathered_parameters() is for between steps: a forward or backward of the engine is under way")
            param = next(p for p in engine.division.params if p.tensor is tensor)
            if id(tensor) not in engine.refusals.shown:
                engine.driver.by_number[param.number].check()  # after this context the write could not be detected
            found[id(tensor)] = (engine, param)
    return list(found.values())


class Shown:
    """One parameter that is shown whole."""

    def __init__(self, engine: "Engine", param: Param) -> None:
        self.engine, self.param, self.world = engine, param, engine.world
        self.bound = engine.driver.by_number[param.number]
        self.is_shown = False
        self.exact: torch.Tensor | None = None  # the exact values [the parameter's shape], fp32, for write_back

    @collective("gathered_parameters()")
    def show(self, modify: bool) -> None:
        """Reads the values and shows them in the parameter. Collective, blocking."""
        exact = weights.read(self.engine.core, self.param)
        self.exact = exact if modify else None
        self.bound.rouse(exact.to(self.bound.awake.dtype, copy=modify).to(self.bound.awake.device))
        self.is_shown = True
        self.engine.refusals.shown.add(id(self.param.tensor))

    @collective("gathered_parameters()")
    def write_back(self, root: int) -> None:
        """Writes what rank `root` has changed to the engine, on all ranks. Collective, blocking. StateError: another shape."""
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
        """Makes the parameter show what it showed before. Local."""
        self.engine.refusals.shown.discard(id(self.param.tensor))
        if self.is_shown:
            self.bound.rest()
        self.is_shown = False
        self.exact = None

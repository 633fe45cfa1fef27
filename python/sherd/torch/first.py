"""Seals an engine by the first forward of its module, where the script calls the module and not the engine."""
from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterator

from torch import nn

from sherd.torch import gathered
from sherd.torch.hooks import untraced

if TYPE_CHECKING:
    from sherd.torch.engine import Engine


class Owned:
    """A hook that refers weakly to what has set it, `owner()`. A copy of it, and what is pickled of it, belong to nobody (None)."""

    def __init__(self, owner: Any = None) -> None:
        self.owner: Callable[[], Any] = (lambda: None) if owner is None else weakref.ref(owner)

    def __deepcopy__(self, _memo: Any) -> "Owned":
        return type(self)()

    def __reduce__(self) -> Any:
        return type(self), ()


class First(Owned):
    """The hook before a module's forward that seals the engine; of(engine, module) sets it. It does nothing for an engine that has ended.

    It does nothing in a copy of the model either, where another engine has the parameters, or where others stand in their places
    for a while (torch.func.functional_call): that forward is not the engine's.
    """

    @untraced
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        engine = self.owner()
        if engine is None or engine.is_sealed and engine.waiting is None or not is_own(engine):
            return None
        return sealed(engine, module, args, kwargs)


def sealed(engine: "Engine", module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Seals the engine inside of a hook before the module's forward, and returns the arguments with which the forward goes on.

    The order comes from a trace of the whole model, so only its forward is a batch; a part of it would leave other units out.
    """
    before = set(module._forward_pre_hooks)
    engine.seal((args, kwargs) if module is engine.module else None)
    for key in [key for key in module._forward_pre_hooks if key not in before]:
        args, kwargs = module._forward_pre_hooks[key](module, args, kwargs)  # torch does not see them in this call yet
    return args, kwargs


def of(engine: "Engine", module: nn.Module) -> Any:
    """Sets the hook before the module's forward. Returns torch's handle, which removes it."""
    return module.register_forward_pre_hook(First(engine), with_kwargs=True, prepend=True)


def is_own(engine: "Engine") -> bool:
    """Whether the parameters that the model has now are those that the engine has, and no other engine has them."""
    now = dict(engine.module.named_parameters(remove_duplicate=False))
    return all(now.get(param.name) is param.tensor and gathered.owner_of(param.tensor) in (None, engine)
               for param in engine.division.params)


class Call:
    """The hook on the engine's module, from initialize() until the engine is sealed and has its checkpoint. All of it is local."""

    def __init__(self, engine: "Engine") -> None:
        self._attach(engine)

    def _attach(self, engine: "Engine") -> None:
        self._handle = of(engine, engine.module)

    def end(self) -> None:
        """Removes the hook. Does nothing after the first time."""
        self._handle.remove()

    @contextlib.contextmanager
    def suspended(self, engine: "Engine") -> Iterator[None]:
        """A context without the hook, in which the engine is sealed: the trace calls the model."""
        self.end()
        try:
            yield
        finally:
            self._attach(engine)

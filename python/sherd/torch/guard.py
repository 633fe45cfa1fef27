"""Refuses, by name, calls of torch that would separate a model from its engine."""
from __future__ import annotations

from typing import Any, Callable

import torch
from torch import nn

from sherd.errors import StateError
from sherd.torch.hooks import Single
from sherd.torch.tensors import Driver
from sherd.torch.units import Division


class Refusals:
    """The guards of a model: hooks of state_dict() and load_state_dict(), and a replacement of Module._apply, for each module.

    `driver` knows which parameters are readable. `attach` sets the guards, `detach` removes them; both are local.
    """

    def __init__(self, model: nn.Module, division: Division, driver: Driver) -> None:
        self.model, self.driver = model, driver
        self.params = {id(p.tensor): p for p in division.params}
        self.shown: set[int] = set()  # ids of parameters that gathered_parameters() makes whole at present
        self._handles: list[Any] = []

    def attach(self) -> None:
        """Sets the guards. Only modules that own parameters of the engine get hooks of state_dict() and load_state_dict()."""
        for module in self.model.modules():
            module._apply = Apply(self, module)  # to(), half(), cuda() and share_memory() call it
            if any(id(t) in self.params for t in module._parameters.values()):
                self._handles += [module.register_state_dict_pre_hook(Reads(self, module)),
                                  module.register_load_state_dict_pre_hook(Writes(self, module))]

    def detach(self) -> None:
        for module in self.model.modules():
            vars(module).pop("_apply", None)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def first_asleep(self, module: nn.Module) -> str | None:
        """Returns the name of the module's first own parameter that has no values on this rank now; None: all have."""
        for tensor in module._parameters.values():
            param = self.params.get(id(tensor))
            if param is not None and id(tensor) not in self.shown and not self.driver.is_awake(param.unit):
                return param.name
        return None

    def first_hidden(self, module: nn.Module) -> str | None:
        """Returns the name of the module's first own parameter that is not shown by gathered_parameters(); None: all are."""
        return next((self.params[id(t)].name for t in module._parameters.values()
                     if id(t) in self.params and id(t) not in self.shown), None)


class Reads(Single):
    """A hook before state_dict() of a module. Raises StateError where a parameter has no values on this rank now."""

    def __init__(self, refusals: Refusals, module: nn.Module) -> None:
        super().__init__(None, module)  # type: ignore[arg-type]
        self.refusals = refusals

    def __call__(self, *_: Any) -> None:
        name = self.refusals.first_asleep(self.of)
        if name is not None:
            raise StateError(f"parameter {name} is not whole on this rank now, so the module's state_dict() has no values: "
                             f"use engine.state_dict(), or sherd.torch.gathered_parameters around the call")


class Writes(Reads):
    """A hook before load_state_dict() of a module. Raises StateError unless gathered_parameters() shows its parameters."""

    def __call__(self, *_: Any) -> None:
        name = self.refusals.first_hidden(self.of)
        if name is not None:
            raise StateError(f"load_state_dict() of a module would write parameter {name} without the "
                             f"engine: use engine.load_state_dict() or engine.load_checkpoint(), or load before "
                             f"sherd.torch.initialize")


class Apply(Reads):
    """Replaces a module's _apply, which torch calls for everything that moves or casts a module.

    Raises StateError where the call would change the type or the device of a parameter. Buffers are changed as asked.
    """

    def __call__(self, change: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        for tensor in self.of.parameters(recurse):
            probe = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            if change(probe) is not probe:
                raise StateError(f"the parameters of {type(self.of).__name__} are the engine's memory, which is neither moved nor "
                                 f"cast: bf16 and fp16 are keys of the configuration, the device is the world's; buffers "
                                 f"alone may be changed")
        for module in self.of.modules() if recurse else [self.of]:
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = change(buffer)
        return self.of

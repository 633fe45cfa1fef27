"""First values: from the tensors that the model has, or from an init function where it was made on the meta device."""
from __future__ import annotations

from typing import Callable

import torch
from torch import nn

from sherd.engine import Engine
from sherd.torch.tensors import flat_range
from sherd.torch.units import Division, Param

Init = Callable[[nn.Module], None]


def fill(engine: Engine, model: nn.Module, division: Division, init: Init | None, same_on_all: bool) -> None:
    """Fills every parameter by ranges and frees the storage that it had, one after the other. Collective.

    `same_on_all`: every rank fills from its own tensors. Else rank 0's values reach all, as with DistributedDataParallel.
    Modules with parameters on meta are made one at a time by `init`, on rank 0 alone.
    """
    for param in division.params:
        if not param.tensor.is_meta:
            fill_from_tensor(engine, param, param.tensor, same_on_all)
            release(param.tensor)
    for module in model.modules():
        own = [param for param in division.params if any(param.tensor is t for t in module._parameters.values())]
        if any(param.tensor.is_meta for param in own):
            fill_by_init(engine, module, own, init or initializer(model))


def fill_from_tensor(engine: Engine, param: Param, tensor: torch.Tensor, same_on_all: bool) -> None:
    def values(first: int, out: memoryview) -> None:
        flat_range(tensor, first, out)

    if same_on_all or engine.world.size == 1:
        engine.fill(param.number, values)
    else:
        engine.fill_from(param.number, 0, values if engine.world.rank == 0 else None)


def release(tensor: nn.Parameter) -> None:
    """The parameter shows zeros of its shape until it is bound; its storage is free unless somebody else has it."""
    tensor.data = torch.zeros((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)


def fill_by_init(engine: Engine, module: nn.Module, params: list[Param], init: Init) -> None:
    """One module's own parameters, made real for as long as it takes, on the rank that has the values."""
    names = {id(t): name for name, t in module._parameters.items() if t is not None}
    made: dict[str, torch.Tensor] = {}
    if engine.world.rank == 0:
        made = initialized(module, init)
    for param in params:
        if param.tensor.is_meta:
            fill_from_tensor(engine, param, made.get(names[id(param.tensor)], param.tensor), same_on_all=False)


def initialized(module: nn.Module, init: Init) -> dict[str, torch.Tensor]:
    """The values of a module's own parameters by name; the module itself stays on meta."""
    kept = dict(module._parameters)
    try:
        for name, tensor in kept.items():
            if tensor is not None:
                module._parameters[name] = nn.Parameter(torch.empty(tensor.shape, dtype=torch.float32), tensor.requires_grad)
        with torch.no_grad():
            init(module)
        return {name: tensor.detach() for name, tensor in module._parameters.items() if tensor is not None}
    finally:
        module._parameters.clear()
        module._parameters.update(kept)


def initializer(model: nn.Module) -> Init:
    """What the model itself has for it: transformers' _init_weights, else each module's reset_parameters."""
    if hasattr(model, "_init_weights"):
        return model._init_weights

    def reset(module: nn.Module) -> None:
        if not hasattr(module, "reset_parameters"):
            raise ValueError(f"{type(module).__name__} has parameters on the meta device and no reset_parameters: give "
                             f"initialize an init function (init=) or weights to read")
        module.reset_parameters()

    return reset

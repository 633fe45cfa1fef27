"""First values: from the tensors that the model has, or from an init function if it is on the meta device."""
from __future__ import annotations

import contextlib
import math
from typing import Callable, Iterator

import torch
from torch import nn

from sherd.engine import Engine
from sherd.torch.tensors import flat_range
from sherd.torch.units import Division, Param

Init = Callable[[nn.Module], None]


def fill(engine: Engine, model: nn.Module, division: Division, init: Init | None, same_on_all: bool) -> None:
    """Fills every parameter in ranges, and frees the storage that it had, one parameter after the other. Collective.

    With `same_on_all` every rank fills from its own tensors. Otherwise rank 0's values go to all ranks, as with
    DistributedDataParallel. Modules on the meta device are initialised one at a time by `init`, on rank 0 alone.
    """
    for param in division.params:
        if not param.tensor.is_meta:
            fill_from_tensor(engine, param, param.tensor, same_on_all)
            release(param.tensor)
    unfilled = {id(param.tensor): param for param in division.params if param.tensor.is_meta}
    for module in model.modules() if unfilled else ():
        own = [unfilled.pop(id(t)) for t in module._parameters.values() if id(t) in unfilled]
        if own:
            fill_by_init(engine, module, own, init or initializer(model))


def fill_from_tensor(engine: Engine, param: Param, tensor: torch.Tensor, same_on_all: bool) -> None:
    def values(first: int, out: memoryview) -> None:
        flat_range(tensor, first, out)

    if same_on_all or engine.world.size == 1:
        engine.fill(param.number, values)
    else:
        engine.fill_from(param.number, 0, values if engine.world.rank == 0 else None)


def release(tensor: nn.Parameter) -> None:
    """Frees the storage of a parameter, unless somebody else has it too. Until it is bound, the parameter shows zeros in its
    shape."""
    tensor.data = torch.zeros((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)


def release_all(division: Division) -> None:
    for param in division.params:
        if not param.tensor.is_meta:
            release(param.tensor)


def fill_by_init(engine: Engine, module: nn.Module, params: list[Param], init: Init) -> None:
    """Initialises one module's own parameters on the rank that has the values, and fills them. They are real only meanwhile."""
    names = {id(t): name for name, t in module._parameters.items() if t is not None}
    made: dict[str, torch.Tensor] = {}
    if engine.world.rank == 0:
        made = initialized(module, init)
    for param in params:
        fill_from_tensor(engine, param, made.get(names[id(param.tensor)], param.tensor), same_on_all=False)


def initialized(module: nn.Module, init: Init) -> dict[str, torch.Tensor]:
    """Returns the initial values of a module's own parameters by name. The module itself stays on the meta device."""
    with shadow_params(module), torch.no_grad():
        init(module)
        return {name: tensor.detach() for name, tensor in module._parameters.items() if tensor is not None}


def make_buffers(model: nn.Module, init: Init | None) -> None:
    """Gives values to buffers on the meta device, by the function that initialises the parameters. A buffer without values is
    refused by name."""
    for prefix, module in model.named_modules():
        names = [name for name, buffer in module._buffers.items() if buffer is not None and buffer.is_meta]
        if not names:
            continue
        for name in names:
            module._buffers[name] = unset_like(module._buffers[name])
        with shadow_params(module), torch.no_grad():
            (init or initializer(model))(module)
        for name in names:
            if is_unset(module._buffers[name]):
                raise ValueError(f"buffer {prefix}.{name} is on the meta device and nothing gives it values: give initialize an "
                                 f"init function (init=) that does, or make the buffers outside of torch.device('meta')")


def unset_like(buffer: torch.Tensor) -> torch.Tensor:
    value = math.nan if buffer.is_floating_point() else False if buffer.dtype == torch.bool else torch.iinfo(buffer.dtype).min
    return torch.full(buffer.shape, value, dtype=buffer.dtype, device="cpu")


def is_unset(buffer: torch.Tensor) -> bool:
    if buffer.dtype == torch.bool:
        return not bool(buffer.any())
    return bool((buffer.isnan() if buffer.is_floating_point() else buffer == torch.iinfo(buffer.dtype).min).any())


@contextlib.contextmanager
def shadow_params(module: nn.Module) -> Iterator[None]:
    """Replaces a module's parameters by others while an init function writes to them."""
    kept = dict(module._parameters)
    try:
        for name, tensor in kept.items():
            if tensor is not None:
                module._parameters[name] = nn.Parameter(torch.empty(tensor.shape, dtype=torch.float32), tensor.requires_grad)
        yield
    finally:
        module._parameters.clear()
        module._parameters.update(kept)


def initializer(model: nn.Module) -> Init:
    """Returns the model's own function for it: transformers' _init_weights, else each module's reset_parameters."""
    if hasattr(model, "_init_weights"):
        return model._init_weights

    def reset(module: nn.Module) -> None:
        if not hasattr(module, "reset_parameters"):
            raise ValueError(f"{type(module).__name__} has parameters or buffers on the meta device and no reset_parameters: give "
                             f"initialize an init function (init=) or weights to read")
        module.reset_parameters()

    return reset

"""Gives parameters and buffers their initial values.

They come from the tensors that the model has, or from an init function where the model was made on the meta device.
"""
from __future__ import annotations

import contextlib
import ctypes
import math
from typing import Callable, Iterator

import torch
from torch import nn

from sherd.engine import Engine
from sherd.torch.tensors import flat_range
from sherd.torch.units import Division, Param, is_managed

Init = Callable[[nn.Module], None]  # gives a module's own parameters and buffers values, in place


def fill(engine: Engine, model: nn.Module, params: list[Param], init: Init | None, same_on_all: bool) -> None:
    """Fills parameters of the model and frees the storage that it had, one parameter after the other. Collective, blocking.

    With `same_on_all` every rank fills from its own tensors, and the ranks compare them. Otherwise rank 0's values go to all
    ranks, as in DistributedDataParallel. Where parameters are on meta, rank 0 makes the values of one module at a time with `init`
    (None: what initializer() finds), and sends them to all ranks. Raises what sherd.Engine.fill_from raises, and what `init`
    raises.
    """
    for param in params:
        if not param.tensor.is_meta:
            fill_from_tensor(engine, param, param.tensor, same_on_all)
            release(param.tensor)
    init = init or initializer(model)
    unfilled = {id(param.tensor): param for param in params if param.tensor.is_meta}
    for module in model.modules() if unfilled else ():
        own = [unfilled.pop(id(t)) for t in module._parameters.values() if id(t) in unfilled]
        if own:
            fill_by_init(engine, module, own, init)


def fill_from_tensor(engine: Engine, param: Param, tensor: torch.Tensor, same_on_all: bool) -> None:
    """Fills one parameter from a tensor of its shape: from each rank's own, or from rank 0's. Collective."""
    def values(first: int, out: memoryview) -> None:
        flat_range(tensor, first, out)

    if same_on_all or engine.world.size == 1:
        engine.fill(param.number, values)
    else:
        engine.fill_from(param.number, 0, values if engine.world.rank == 0 else None)


def release(tensor: nn.Parameter) -> None:
    """Frees the parameter's storage, unless something else refers to it. Until it is bound, the parameter shows zeros."""
    tensor.data = torch.zeros((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)


def release_all(division: Division) -> None:
    """Frees the storage of all parameters that are not on meta."""
    for param in division.params:
        if not param.tensor.is_meta:
            release(param.tensor)


def fill_by_init(engine: Engine, module: nn.Module, params: list[Param], init: Init) -> None:
    """Fills one module's own parameters from an init function, which rank 0 alone calls. Collective."""
    names = {id(t): name for name, t in module._parameters.items() if t is not None}
    made: dict[str, torch.Tensor] = {}
    if engine.world.rank == 0:
        made = initialized(module, init)
    for param in params:
        fill_from_tensor(engine, param, made.get(names[id(param.tensor)], param.tensor), same_on_all=False)


def initialized(module: nn.Module, init: Init) -> dict[str, torch.Tensor]:
    """Returns the values that an init function gives a module's own parameters, by name. The module itself stays on meta."""
    with shadow_params(module), torch.no_grad():
        init(module)
        return {name: tensor.detach() for name, tensor in module._parameters.items() if tensor is not None}


def make_buffers(model: nn.Module, init: Init | None) -> None:
    """Gives buffers on meta their values, by the same init function as the parameters of their module. Local.

    Raises ValueError, with the name, for a buffer that the function does not fill, and for a quantised weight on meta.
    """
    for name, tensor in model.named_parameters():
        if tensor.is_meta and not is_managed(tensor):
            raise ValueError(f"parameter {name} is of {tensor.dtype} and on the meta device, where only weights= gives it values: make it "
                             f"outside of torch.device('meta'), or give initialize the weights")
    init = init or initializer(model)
    for prefix, module in model.named_modules():
        names = [name for name, buffer in module._buffers.items() if buffer is not None and buffer.is_meta]
        if not names:
            continue
        for name in names:
            module._buffers[name] = unset_like(module._buffers[name])
        with shadow_params(module), torch.no_grad():
            init(module)
        for name in names:
            if is_unset(module._buffers[name]):
                raise ValueError(f"buffer {prefix}.{name} is on the meta device and nothing gives it values: give initialize an "
                                 f"init function (init=) that does, or make the buffers outside of torch.device('meta')")


def raw(buffer: torch.Tensor) -> bytes:
    """Returns the bytes of a buffer's elements, row-major."""
    flat = buffer.detach().cpu().contiguous().reshape(-1)
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


def unset_like(buffer: torch.Tensor) -> torch.Tensor:
    """Returns a buffer on the CPU whose elements mean "not set": NaN, False, or the smallest integer of the type."""
    value = math.nan if buffer.is_floating_point() else False if buffer.dtype == torch.bool else torch.iinfo(buffer.dtype).min
    return torch.full(buffer.shape, value, dtype=buffer.dtype, device="cpu")


def is_unset(buffer: torch.Tensor) -> bool:
    """Whether an element is still as unset_like made it; of a bool buffer, whether all elements are."""
    if buffer.dtype == torch.bool:
        return not bool(buffer.any())
    return bool((buffer.isnan() if buffer.is_floating_point() else buffer == torch.iinfo(buffer.dtype).min).any())


@contextlib.contextmanager
def shadow_params(module: nn.Module) -> Iterator[None]:
    """A context in which a module has new fp32 parameters on the CPU, to which an init function can write."""
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
    """Returns the model's own init function: _init_weights of a transformers model, else each module's reset_parameters.

    A model inside of another, such as a vision tower, has an _init_weights of its own for its modules, as in transformers. The
    function raises ValueError for a module that has no reset_parameters.
    """
    if hasattr(model, "_init_weights"):
        inner = {}
        for owner in model.modules():  # outer before inner
            if hasattr(owner, "_init_weights"):
                inner.update(dict.fromkeys(owner.modules(), owner._init_weights))
        return lambda module: inner[module](module)

    def reset(module: nn.Module) -> None:
        if not hasattr(module, "reset_parameters"):
            raise ValueError(f"{type(module).__name__} has parameters or buffers on the meta device and no reset_parameters: give "
                             f"initialize an init function (init=) or weights to read")
        module.reset_parameters()

    return reset

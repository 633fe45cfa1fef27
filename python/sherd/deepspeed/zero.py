"""deepspeed.zero: the contexts around building a model and around changing its values."""
from __future__ import annotations

import contextlib
from typing import Any, Iterable, Iterator

import torch
from torch import nn

import sherd.torch
from sherd.deepspeed import comm
from sherd.deepspeed.refusals import missing, refused
from sherd.errors import NotSupportedError

_ONE = "a parameter is a whole tensor until deepspeed.initialize(), and the engine's after it"
_INIT = {  # arguments of Init that ask for what there is not
    "data_parallel_group": "the engine is in the world of all ranks", "zero_param_parallel_group": "there is no hpZ",
    "mpu": "the engine has data parallelism alone", "zero_quantized_weights": "there is no ZeRO++",
    "zero_quantized_nontrainable_weights": "there is no ZeRO++", "sequence_data_parallel_group": "there is no sequence parallelism",
    "param_swapper": "\"offload_param\" says where parameters are",
}


class Init(contextlib.AbstractContextManager["Init"]):
    """The context in which a script builds its model. It changes nothing: deepspeed.initialize() divides the model.

    Each rank has the whole model in its own memory until then, and the values of rank 0 count. A model that is too large for that is
    made under deepspeed.OnDevice(device="meta"); deepspeed.initialize() then makes its values module by module, or reads them from a file
    (sherd_options={"weights": path}). Raises NotSupportedError for arguments that ask for what there is not.
    """

    def __init__(self, module: nn.Module | None = None, data_parallel_group: Any = None, mem_efficient_linear: bool = True,
                 remote_device: str | None = None, pin_memory: bool = False, config_dict_or_path: Any = None, config: Any = None,
                 enabled: bool = True, dtype: torch.dtype | None = None, mpu: Any = None, **others: Any) -> None:
        for name, value in {"data_parallel_group": data_parallel_group, "mpu": mpu, **others}.items():
            if name not in _INIT:
                raise TypeError(f"deepspeed.zero.Init() has no argument {name}")
            if enabled and value:
                raise NotSupportedError(f"deepspeed.zero.Init({name}=): {_INIT[name]}")
        if enabled:
            comm.init_distributed()

    def __exit__(self, *_: Any) -> None:
        return None


@contextlib.contextmanager
def GatheredParameters(params: Any, modifier_rank: int | None = None, fwd_module: nn.Module | None = None,
                       enabled: bool = True) -> Iterator[None]:
    """A context inside which parameters have their whole values on every rank. Collective, blocking, between steps.

    With `modifier_rank`, what that rank has changed inside becomes the engine's at the end, on all ranks; without it, nothing does.
    Parameters that no engine has do not change. A model needs no `fwd_module`: the engine finds what its forward reads.
    """
    with sherd.torch.gathered_parameters(list(tensors_of(params)), modifier_rank=modifier_rank) if enabled else contextlib.nullcontext():
        yield


def tensors_of(params: Any) -> Iterable[torch.Tensor]:
    """Yields the tensors of a parameter, a module, a dict, or of what has such things in it."""
    if isinstance(params, torch.Tensor):
        yield params
    elif isinstance(params, nn.Module):
        yield from params.parameters()
    elif params is not None:
        for one in params.values() if isinstance(params, dict) else params:
            yield from tensors_of(one)


def register_external_parameter(module: nn.Module, parameter: torch.Tensor) -> None:
    """Does nothing: the trace of the first batch finds what a module's forward reads of other modules. Raises RuntimeError as DeepSpeed's."""
    if not isinstance(parameter, nn.Parameter):
        raise RuntimeError("deepspeed.zero.register_external_parameter() needs a torch.nn.Parameter")


def unregister_external_parameter(module: nn.Module, parameter: torch.Tensor) -> None:
    """Does nothing, as register_external_parameter() does."""
    register_external_parameter(module, parameter)


def zero_wrapper_for_fp_tensor_constructor(fn: Any, target_fp_dtype: torch.dtype) -> Any:
    """Returns the function as it is: Init changes no type. transformers puts another function in its place for a while."""
    return fn


TiledLinear = refused("deepspeed.zero.TiledLinear", "use torch.nn.Linear; several smaller ones are divided as they are")
TiledLinearReturnBias = refused("deepspeed.zero.TiledLinearReturnBias", "use torch.nn.Linear; several smaller ones are divided as they are")
MiCS_Init = refused("deepspeed.zero.MiCS_Init", "there is no MiCS: stages divide over all ranks")
ZeroParamStatus = refused("deepspeed.zero.ZeroParamStatus", _ONE)
ZeroParamType = refused("deepspeed.zero.ZeroParamType", _ONE)


def __getattr__(name: str) -> Any:
    raise missing(f"deepspeed.zero.{name}")

"""deepspeed.utils: the log, exact values of parameters, modules that are gathered as one, and small helpers of scripts."""
from __future__ import annotations

import contextlib
import ctypes
import logging as _logging
import sys
from typing import Any, Callable

import torch
from torch import nn

from sherd.deepspeed.loader import RepeatingLoader
from sherd.deepspeed.refusals import missing, refused
from sherd.errors import NotSupportedError
from sherd.torch import gathered, weights

LEAF = "_sherd_z3_leaf"  # the attribute of a module that is one unit
_PARTS = "an engine has values by name (sherd.torch.Engine.core.read_local, docs/values.md)"


# -------------------------------------------------------------------- log --

def _made() -> _logging.Logger:
    found = _logging.getLogger("DeepSpeed")
    if not found.handlers:
        handler = _logging.StreamHandler(sys.stdout)
        handler.setFormatter(_logging.Formatter("[%(asctime)s] [%(levelname)s] [%(filename)s:%(lineno)d:%(funcName)s] %(message)s"))
        found.addHandler(handler)
        found.setLevel(_logging.WARNING)
        found.propagate = False
    return found


logger = _made()


def rank() -> int:
    """This rank's number; -1 where the ranks have not met. Local."""
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else -1


def log_dist(message: str, ranks: list[int] | None = None, level: int = _logging.INFO) -> None:
    """Writes a line to the log on these ranks; on every rank without them or with -1, and where the ranks have not met. Local."""
    if not ranks or ranks[0] == -1 or rank() in (-1, *ranks):
        logger.log(level, f"[Rank {rank()}] {message}")


def log_dist_once(message: str, ranks: list[int] | None = None, level: int = _logging.INFO) -> None:
    """log_dist(), once for each message. Local."""
    if message not in _logged:
        _logged.add(message)
        log_dist(message, ranks, level)


_logged: set[str] = set()


def see_memory_usage(message: str, force: bool = False) -> None:
    """Writes the memory of torch's allocator to the log, with `force`. Local; engine.memory_report() has the engine's."""
    if force and torch.cuda.is_available():
        log_dist(f"{message}: {torch.cuda.memory_allocated() / 2**30:.2f} GiB, at most {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB",
                 ranks=[0], level=_logging.WARNING)


# ----------------------------------------------------------------- values --

def _own(param: torch.Tensor, call: str) -> Any:
    """Returns the engine of a parameter, and what the engine knows of it. Collective where it has to seal the engine."""
    for engine, found in gathered.owned([param]):
        return engine, found
    raise NotSupportedError(f"deepspeed.utils.{call}(): no engine has this parameter")


def safe_get_full_fp32_param(param: torch.Tensor) -> torch.Tensor:
    """Returns the exact values of a parameter, fp32, on the CPU. Collective, blocking, between a forward and a backward."""
    engine, found = _own(param, "safe_get_full_fp32_param")
    return weights.read(engine.core, found)


def safe_set_full_fp32_param(param: torch.Tensor, value: torch.Tensor) -> None:
    """Writes the values of a parameter, the same on every rank. Collective, blocking, between steps."""
    engine, found = _own(param, "safe_set_full_fp32_param")
    weights.write(engine.core, found, value)


def safe_get_full_optimizer_state(param: torch.Tensor, optim_state_key: str) -> torch.Tensor:
    """Returns a part of the optimizer's state of a parameter, such as "exp_avg", fp32, on the CPU. Collective, blocking."""
    engine, found = _own(param, "safe_get_full_optimizer_state")
    out = torch.empty(param.shape, dtype=torch.float32)
    if param.numel():
        engine.core.read(found.number, optim_state_key, 0, param.numel(), (ctypes.c_float * param.numel()).from_address(out.data_ptr()))
    return out


def safe_set_full_optimizer_state(param: torch.Tensor, value: torch.Tensor, optim_state_key: str) -> None:
    """Writes a part of the optimizer's state of a parameter, the same on every rank. Collective, blocking, between steps."""
    engine, found = _own(param, "safe_set_full_optimizer_state")
    weights.check_shape(f"parameter {found.name}", param.shape, value.shape)
    flat = value.detach().to("cpu", torch.float32).contiguous()
    if param.numel():
        engine.core.write(found.number, (ctypes.c_float * param.numel()).from_address(flat.data_ptr()), optim_state_key)


def _refused_functions() -> dict[str, type]:
    grad = ("gradients are read between sherd.torch.Engine.prepare_step() and apply_step() (engine.engine.core.read(number, \"grad\"), "
            "docs/values.md); with sherd_options={\"retain_grads\": True}, param.grad is this rank's until the step")
    found = {f"safe_{what}_full_grad": grad for what in ("get", "set")}
    found["safe_update_full_grad_vectorized"] = grad
    for what in ("get", "set"):
        for of in ("fp32_param", "grad", "optimizer_state"):
            found[f"safe_{what}_local_{of}"] = _PARTS
    return {name: refused(f"deepspeed.utils.{name}", why) for name, why in found.items()}


globals().update(_refused_functions())


# ------------------------------------------------------------------ units --

def set_z3_leaf_modules(model: nn.Module, leaf_module_classes: list[Any], raise_if_not_found: bool = True) -> list[nn.Module]:
    """Notes modules of these classes, or class names, whose parameters deepspeed.initialize() gathers together. Returns them. Local."""
    wanted = tuple(one for one in leaf_module_classes if isinstance(one, type))
    names = {one for one in leaf_module_classes if isinstance(one, str)}
    found = [one for one in model.modules() if isinstance(one, wanted) or type(one).__name__ in names]
    if raise_if_not_found and not found:
        raise ValueError(f"the model has no module of {leaf_module_classes}")
    for one in found:
        set_z3_leaf_module(one, True)
    return found


def unset_z3_leaf_modules(model: nn.Module, leaf_module_classes: list[Any], raise_if_not_found: bool = True) -> list[nn.Module]:
    """Takes back what set_z3_leaf_modules() has noted. Returns these modules. Local."""
    found = set_z3_leaf_modules(model, leaf_module_classes, raise_if_not_found)
    for one in found:
        set_z3_leaf_module(one, False)
    return found


def set_z3_leaf_module(model: nn.Module, flag: bool) -> None:
    """Notes one module, or takes the note back. Local."""
    setattr(model, LEAF, flag)


def z3_leaf_module(model: nn.Module) -> bool:
    """Whether the module is noted. Local."""
    return bool(getattr(model, LEAF, False))


def get_z3_leaf_modules(model: nn.Module) -> list[nn.Module]:
    """Returns the modules that are noted. Local."""
    return [one for one in model.modules() if z3_leaf_module(one)]


# ---------------------------------------------------------------- helpers --

class OnDevice(contextlib.AbstractContextManager["OnDevice"]):
    """A context in which tensors are made on a device and in a type. "meta" is for models too large for the memory of a rank."""

    def __init__(self, dtype: torch.dtype | None = None, device: Any = "meta", enabled: bool = True) -> None:
        self._dtype, self._device, self._enabled = dtype, device, enabled

    def __enter__(self) -> "OnDevice":
        if self._enabled:
            self._before, self._on = torch.get_default_dtype(), torch.device(self._device)
            torch.set_default_dtype(self._dtype or self._before)
            self._on.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        if self._enabled:
            torch.set_default_dtype(self._before)
            self._on.__exit__(*failure)


def clone_tensors_for_torch_save(item: Any, device: Any = "cpu") -> Any:
    """Returns a copy of lists, tuples and dicts in which tensors have memory of their own, so that torch.save writes that alone. Local."""
    if isinstance(item, torch.Tensor):
        return item.detach().clone().to(device)
    if isinstance(item, (list, tuple)):
        return type(item)(clone_tensors_for_torch_save(one, device) for one in item)
    if isinstance(item, dict):
        return type(item)((name, clone_tensors_for_torch_save(one, device)) for name, one in item.items())
    return item


def instrument_w_nvtx(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function as it is."""
    return function


class groups:
    """deepspeed.utils.groups, for data parallelism alone."""

    @staticmethod
    def get_data_parallel_world_size() -> int:
        return torch.distributed.get_world_size()

    @staticmethod
    def get_data_parallel_rank() -> int:
        return torch.distributed.get_rank()

    @staticmethod
    def get_data_parallel_group() -> Any:
        return torch.distributed.group.WORLD

    @staticmethod
    def get_model_parallel_world_size() -> int:
        return 1

    @staticmethod
    def get_model_parallel_rank() -> int:
        return 0

    _get_data_parallel_world_size, _get_data_parallel_rank = get_data_parallel_world_size, get_data_parallel_rank
    _get_data_parallel_group, _get_model_parallel_world_size = get_data_parallel_group, get_model_parallel_world_size
    _get_sequence_parallel_world_size = get_model_parallel_world_size
    _get_sequence_parallel_rank = get_model_parallel_rank


def __getattr__(name: str) -> Any:
    raise missing(f"deepspeed.utils.{name}")

"""deepspeed.checkpointing: activations that are computed again in backward, by torch.utils.checkpoint."""
from __future__ import annotations

from typing import Any, Callable

import torch.utils.checkpoint

from sherd.config import read_config
from sherd.deepspeed.refusals import missing, refused
from sherd.errors import NotSupportedError

REFUSED = {
    "partition_activations": "activations are this rank's own, as there is no model parallelism",
    "contiguous_checkpointing": "torch's allocator has the activations", "contiguous_memory_optimization": "torch's allocator has the activations",
    "checkpoint_in_cpu": "wrap the forward in torch.autograd.graph.save_on_cpu()", "cpu_checkpointing": "wrap the forward in "
    "torch.autograd.graph.save_on_cpu()", "profile": "torch.profiler shows it", "synchronize_checkpoint_boundary": "torch.profiler shows it",
    "synchronize": "torch.profiler shows it",
}
_is_configured = False


def configure(mpu_: Any, deepspeed_config: Any = None, **options: Any) -> None:
    """Takes the settings of activation checkpointing. Raises NotSupportedError for one that changes something, by its name."""
    global _is_configured
    if isinstance(deepspeed_config, str):
        deepspeed_config = read_config(deepspeed_config)
    block = (deepspeed_config or {}).get("activation_checkpointing", {}) if isinstance(deepspeed_config, (dict, type(None))) else {}
    for name, value in {**block, **options}.items():
        if value and name in REFUSED:
            raise NotSupportedError(f"deepspeed.checkpointing.configure({name}=): {REFUSED[name]}")
        if name not in (*REFUSED, "num_checkpoints", "number_checkpoints"):
            raise TypeError(f"deepspeed.checkpointing.configure() has no argument {name}")
    if mpu_ is not None and getattr(mpu_, "get_model_parallel_world_size", lambda: 1)() != 1:
        raise NotSupportedError("deepspeed.checkpointing.configure(mpu_): the engine has data parallelism alone")
    _is_configured = True


def is_configured() -> bool:
    """Whether configure() was called. Local."""
    return _is_configured


def reset() -> None:
    """Does nothing: no buffer is stored between iterations."""


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs function(*args), and runs it again in backward in place of keeping its activations. Local."""
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)


non_reentrant_checkpoint = checkpoint

_SEEDS = "its random numbers are for tensor parallelism: torch.utils.checkpoint keeps those of the device"
get_cuda_rng_tracker = refused("deepspeed.checkpointing.get_cuda_rng_tracker", _SEEDS)
model_parallel_cuda_manual_seed = refused("deepspeed.checkpointing.model_parallel_cuda_manual_seed", _SEEDS)
CheckpointFunction = refused("deepspeed.checkpointing.CheckpointFunction", "call deepspeed.checkpointing.checkpoint()")


def __getattr__(name: str) -> Any:
    raise missing(f"deepspeed.checkpointing.{name}")

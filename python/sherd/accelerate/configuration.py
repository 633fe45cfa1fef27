"""Where the configuration of an Accelerator's engines comes from, how "auto" is filled, and what of Accelerate an engine cannot have."""
from __future__ import annotations

import copy
import json
import math
import os
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from accelerate.utils import DeepSpeedPlugin

from sherd.accelerate.training import Configured, Optimizer, Scheduler
from sherd.config import ConfigSource, read_config
from sherd.errors import InvalidError, NotSupportedError

REFUSED = {  # arguments of Accelerate's Accelerator, with what they ask for
    "fsdp_plugin": "FSDP: the engine shards by \"zero_optimization\": {\"stage\": 3}",
    "megatron_lm_plugin": "Megatron-LM",
    "torch_tp_plugin": "tensor parallelism",
    "parallelism_config": "tensor, context and sequence parallelism",
    "dynamo_backend": "compiling by prepare(): compile the model, or its blocks by block.compile()",
    "dynamo_plugin": "compiling by prepare(): compile the model, or its blocks by block.compile()",
}
VARIABLES = {  # what `accelerate launch` sets for the same
    "ACCELERATE_USE_FSDP": "fsdp_plugin", "ACCELERATE_USE_MEGATRON_LM": "megatron_lm_plugin",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "parallelism_config",
}


def given_config(source: ConfigSource | None, plugin: DeepSpeedPlugin | None) -> dict[str, Any]:
    """Returns the configuration from the argument, else from a DeepSpeedPlugin, else from the launcher's variables, else stage 2."""
    if source is not None:
        return read_config(source)
    names = ("ACCELERATE_DEEPSPEED_CONFIG_FILE", "ACCELERATE_DEEPSPEED_ZERO_STAGE")
    if plugin is None and (os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true" or any(name in os.environ for name in names)):
        plugin = DeepSpeedPlugin()
    if plugin is None:
        return {"zero_optimization": {"stage": 2}}
    config = copy.deepcopy(plugin.deepspeed_config)
    config.pop("steps_per_print", None)  # the plugin's own, an Inf
    if config.get("gradient_accumulation_steps") == 1:
        del config["gradient_accumulation_steps"]  # the plugin's own where the file has none
    for key in ("offload_optimizer", "offload_param"):
        block = config["zero_optimization"].get(key)
        if block is not None and block.get("device") in (None, "none"):
            del config["zero_optimization"][key]
        elif block is not None:
            config["zero_optimization"][key] = {name: value for name, value in block.items() if value is not None}
    return config


def is_unset(config: Mapping[str, Any], key: str) -> bool:
    """Whether the key is missing or "auto"."""
    return config.get(key, "auto") == "auto"


def block_of(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Returns a block of the configuration as a copy; empty where there is none."""
    return dict(config.get(key) or {})


# ------------------------------------------------------------ filling "auto" --

@dataclass
class Facts:
    """What an Accelerator knows when it makes the engine of a model."""

    micro_batch: int | None  # the smallest batch of a rank among the prepared loaders; None: no loader has one
    accumulation: int
    precision: str  # "no", "bf16" or "fp16"
    optimizers: Sequence[Optimizer]  # of the model
    has_schedule: bool  # a scheduler of torch over one of them is prepared
    schedule: Scheduler | None  # the prepared DummyScheduler
    ranks: int
    splits_batches: bool


@dataclass
class Filled:
    """What an engine is made of."""

    config: dict[str, Any]  # without what it leaves open
    clipping: float  # the norm to which it clips; 0: none
    unscheduled: list[str]  # the values of its scheduler that are "auto" still: it is removed, and the script must set the rates


def filled(given: Mapping[str, Any], facts: Facts) -> Filled:
    """Returns the configuration of a model's engine. Raises InvalidError where a value is "auto" and cannot be derived, and where Accelerate
    and the configuration have different values."""
    config = copy.deepcopy(dict(given))
    fill_batches(config, facts)
    clipping = config.get("gradient_clipping", "auto")
    config["gradient_clipping"] = 0  # it is of the sum, which the door clips
    for kind in ("bf16", "fp16"):
        block = block_of(config, kind)
        if block.get("enabled", "auto") == "auto":
            config[kind] = {**block, "enabled": facts.precision == kind}
    fill_optimizer(config, facts)
    unscheduled = fill_scheduler(config, facts)
    config["sherd"] = {**block_of(config, "sherd"), "open_windows": True}
    return Filled(config, 0.0 if clipping == "auto" else float(clipping), unscheduled)


def fill_batches(config: dict[str, Any], facts: Facts) -> None:
    """Fills the sizes of batches and the accumulation."""
    if is_unset(config, "train_batch_size"):
        config.pop("train_batch_size", None)
    if is_unset(config, "train_micro_batch_size_per_gpu"):
        if facts.micro_batch is None and "train_micro_batch_size_per_gpu" in config:
            raise InvalidError('"train_micro_batch_size_per_gpu" is "auto", and no prepared loader has a batch_size: write the number in '
                               "the configuration")
        config["train_micro_batch_size_per_gpu"] = facts.micro_batch or 1
        if "train_batch_size" in config:
            del config["train_micro_batch_size_per_gpu"]
    key = "gradient_accumulation_steps"
    if is_unset(config, key):
        config[key] = facts.accumulation
    elif config[key] != facts.accumulation and not (config.get("deterministic") is True and config[key] > facts.accumulation):
        raise InvalidError(f"\"{key}\" is {config[key]} in the configuration and {facts.accumulation} in Accelerator(): write \"auto\", or "
                           f"give both the same number. With \"deterministic\" the one of the configuration may be larger: it is the most "
                           f"backwards before a step")


def fill_optimizer(config: dict[str, Any], facts: Facts) -> None:
    """Fills the optimizer: "auto" from a DummyOptim; sherd.torch reads a torch optimizer by itself."""
    if not facts.optimizers:
        config["optimizer"] = {"type": "none"}
    for one in facts.optimizers:
        if not isinstance(one.optimizer, Configured):
            continue
        block = block_of(config, "optimizer")
        if not block:
            raise InvalidError('DummyOptim is for a configuration with "optimizer", and this one has none: write {"type": "AdamW"} there, or '
                               "prepare an optimizer of torch")
        params = {key: one.optimizer.values.get(key, value) if value == "auto" else value for key, value in block_of(block, "params").items()}
        params = {key: value for key, value in params.items() if value != "auto"}  # the other values have the optimizer's defaults
        config["optimizer"] = {**block, "params": {"lr": one.optimizer.values["lr"], **params}}


def fill_scheduler(config: dict[str, Any], facts: Facts) -> list[str]:
    """Fills the scheduler from a DummyScheduler, as Accelerate does for DeepSpeed, and leaves it out where the script has the rates.

    Returns the remaining values; with such values the block is removed too.
    """
    dummy = None if facts.schedule is None else facts.schedule.dummy
    block = block_of(config, "scheduler")
    if dummy is not None and dummy.lr_scheduler_callable is None and not block:
        raise InvalidError('DummyScheduler is for a configuration with "scheduler", and this one has none: write it there, give '
                           "lr_scheduler_callable=, or prepare a scheduler of torch")
    if not block:
        return []
    if facts.has_schedule or not facts.optimizers or dummy is not None and dummy.lr_scheduler_callable is not None:
        del config["scheduler"]  # the script's has the rates
        return []
    params = block_of(block, "params")
    if dummy is not None:
        own = {"warmup_min_lr": 0, "warmup_max_lr": facts.optimizers[0].defaults["lr"], "warmup_num_steps": max(1, dummy.warmup_num_steps)}
        if dummy.total_num_steps is not None:
            own["total_num_steps"] = dummy.total_num_steps if facts.splits_batches else math.ceil(dummy.total_num_steps / facts.ranks)
        params = {key: own.get(key, value) if value == "auto" else value for key, value in params.items()}
    left = [key for key, value in params.items() if value == "auto"]
    config["scheduler"] = {**block, "params": params}
    if left:
        del config["scheduler"]
    return left


# ------------------------------------------------------------------ refused --

def check_given(given: Mapping[str, Any]) -> None:
    """Raises NotSupportedError for arguments of Accelerator, and for variables of `accelerate launch`, that an engine cannot have."""
    for name, text in REFUSED.items():
        if given.get(name) is not None:
            raise NotSupportedError(f"sherd.accelerate.Accelerator({name}=) asks for {text}, which an engine does not have")
    for variable, name in VARIABLES.items():
        if os.environ.get(variable, "false").lower() == "true":
            raise NotSupportedError(f"{variable} asks for {REFUSED[name]}, which an engine does not have: change the file of accelerate config")
    if os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no").lower() != "no":
        raise NotSupportedError(f"ACCELERATE_DYNAMO_BACKEND asks for {REFUSED['dynamo_backend']}")
    for handler in given.get("kwargs_handlers") or ():
        kind = type(handler).__name__
        hook = getattr(handler, "comm_hook", None)
        if kind in ("FP8RecipeKwargs", "AORecipeKwargs", "TERecipeKwargs", "MSAMPRecipeKwargs"):
            raise NotSupportedError(f"sherd.accelerate.Accelerator(kwargs_handlers=[{kind}]): an engine has no fp8")
        if kind == "DistributedDataParallelKwargs" and hook is not None and getattr(hook, "value", hook) != "no":
            raise NotSupportedError("DistributedDataParallelKwargs(comm_hook=): \"communication_data_type\" of the configuration is the type in "
                                    "which gradients travel")


def check_device(kind: str) -> None:
    """Raises NotSupportedError for devices that an engine does not have."""
    if kind not in ("cpu", "cuda"):
        raise NotSupportedError(f"sherd.accelerate on a device of type {kind} (TPU, XPU, NPU, MPS): an engine computes on CUDA devices, or on the "
                                f"CPU with Accelerator(cpu=True)")


def plugin_of(one: Any, several: Any) -> DeepSpeedPlugin | None:
    """Returns the plugin that Accelerator() was given. Raises NotSupportedError for several."""
    given = several if one is None else one
    if isinstance(given, Mapping):
        if len(given) > 1:
            raise NotSupportedError("sherd.accelerate.Accelerator(deepspeed_plugins=) with several plugins: give sherd_config= or one plugin")
        given = next(iter(given.values()), None)
    return given


# ---------------------------------------------------------------- precision --

def precision_of(config: Mapping[str, Any]) -> str | None:
    """Returns the mixed_precision that the configuration alone asks for; None: it leaves that open."""
    return next((kind for kind in ("bf16", "fp16") if block_of(config, kind).get("enabled") is True), None)


def check_precision(precision: str, config: Mapping[str, Any]) -> None:
    """Raises NotSupportedError for fp8, and InvalidError where Accelerate and the configuration name different types."""
    if precision == "fp8":
        raise NotSupportedError("fp8 under sherd.accelerate: use mixed_precision=\"bf16\", \"fp16\" or \"no\"")
    for kind in ("bf16", "fp16"):
        enabled = block_of(config, kind).get("enabled", "auto")
        if enabled in (True, False) and enabled != (precision == kind):
            raise InvalidError(f"mixed_precision is \"{precision}\" and \"{kind}\": {{\"enabled\": {json.dumps(enabled)}}} stands in the "
                               f"configuration: write \"auto\" there, or make both the same")


def scaling(config: Mapping[str, Any], handler: Any) -> dict[str, Any]:
    """Returns the block fp16 with what Accelerate's GradScalerKwargs say; without them, with the values of torch's GradScaler.

    What the configuration gives itself stays. Raises InvalidError where both give a value and the two differ, NotSupportedError for
    values that the engine's scaler does not have.
    """
    block = block_of(config, "fp16")
    if handler is None:
        own: dict[str, Any] = {"loss_scale_window": 2000, "hysteresis": 1}
    elif not handler.enabled:
        own = {"loss_scale": 1}
    else:
        power = math.log2(handler.init_scale)
        if not power.is_integer():
            raise NotSupportedError(f"GradScalerKwargs(init_scale={handler.init_scale}): an engine begins with a power of 2")
        for name, value in (("growth_factor", 2.0), ("backoff_factor", 0.5)):
            if getattr(handler, name) != value:
                raise NotSupportedError(f"GradScalerKwargs({name}={getattr(handler, name)}): an engine's loss scale doubles and halves, which is "
                                        f"{value}")
        own = {"initial_scale_power": int(power), "loss_scale_window": handler.growth_interval, "hysteresis": 1}
        for key, value in own.items():
            if key != "hysteresis" and block.get(key, value) != value:
                raise InvalidError(f"\"fp16\" has \"{key}\": {block[key]} in the configuration, and GradScalerKwargs gives {value}: leave one out")
    return {**own, **block}

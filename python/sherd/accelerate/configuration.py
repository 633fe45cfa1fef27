"""Where the configuration of an Accelerator's engines comes from, and what of Accelerate's arguments an engine cannot have."""
from __future__ import annotations

import copy
import json
import os
from typing import Any, Mapping

from accelerate.utils import DeepSpeedPlugin

from sherd.errors import InvalidError, NotSupportedError

ConfigSource = str | os.PathLike[str] | Mapping[str, Any]
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
        if isinstance(source, Mapping):
            return copy.deepcopy(dict(source))
        with open(source, encoding="utf-8") as file:
            return json.load(file)
    names = ("ACCELERATE_DEEPSPEED_CONFIG_FILE", "ACCELERATE_DEEPSPEED_ZERO_STAGE")
    if plugin is None and (os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true" or any(name in os.environ for name in names)):
        plugin = DeepSpeedPlugin()
    if plugin is None:
        return {"zero_optimization": {"stage": 2}}
    config = copy.deepcopy(plugin.deepspeed_config)
    config.pop("steps_per_print", None)  # the plugin's own, an Inf
    for key in ("offload_optimizer", "offload_param"):
        block = config["zero_optimization"].get(key)
        if block is not None and block.get("device") in (None, "none"):
            del config["zero_optimization"][key]
        elif block is not None:
            config["zero_optimization"][key] = {name: value for name, value in block.items() if value is not None}
    return config


def is_unset(config: Mapping[str, Any], key: str) -> bool:
    """Whether the key is left out or "auto"."""
    return config.get(key, "auto") == "auto"


def block_of(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Returns a block of the configuration as a copy; empty where there is none."""
    return dict(config.get(key) or {})


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
        if kind in ("GradScalerKwargs", "FP8RecipeKwargs", "AORecipeKwargs", "TERecipeKwargs", "MSAMPRecipeKwargs"):
            raise NotSupportedError(f"sherd.accelerate.Accelerator(kwargs_handlers=[{kind}]): an engine has no fp8, and scales by itself")
        if kind == "DistributedDataParallelKwargs" and hook is not None and getattr(hook, "value", hook) != "no":
            raise NotSupportedError("DistributedDataParallelKwargs(comm_hook=): \"communication_data_type\" of the configuration is the type in "
                                    "which gradients travel")


def plugin_of(one: Any, several: Any) -> DeepSpeedPlugin | None:
    """Returns the plugin that Accelerator() was given. Raises NotSupportedError for several."""
    given = several if one is None else one
    if isinstance(given, Mapping):
        if len(given) > 1:
            raise NotSupportedError("sherd.accelerate.Accelerator(deepspeed_plugins=) with several plugins: give sherd_config= or one plugin")
        given = next(iter(given.values()), None)
    return given


def check_precision(precision: str, enabled: Mapping[str, Any]) -> None:
    """Raises NotSupportedError for fp16 and fp8, and InvalidError where Accelerate and the configuration name other types."""
    if precision in ("fp16", "fp8") or enabled["fp16"] is True:
        raise NotSupportedError(f"{'fp8' if precision == 'fp8' else 'fp16'} under sherd.accelerate: use mixed_precision=\"bf16\" or \"no\", or "
                                f"sherd.torch, which has fp16")
    if enabled["bf16"] in (True, False) and enabled["bf16"] != (precision == "bf16"):
        raise InvalidError(f"mixed_precision is \"{precision}\" and \"bf16\": {{\"enabled\": {json.dumps(enabled['bf16'])}}} stands in the "
                           f"configuration: write \"auto\" there, or make both the same")

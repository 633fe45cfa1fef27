"""DeepSpeed's calls over an engine of sherd: a script changes `import deepspeed` to `import sherd.deepspeed as deepspeed`, and nothing else.

`python -m sherd.run --as deepspeed SCRIPT` lets this package stand in for deepspeed without a change. docs/deepspeed.md is the user's page.
Names that DeepSpeed keeps in other modules are there too (_MODULES); what there is not is refused by its name (_REFUSED).
"""
from __future__ import annotations

import argparse
import sys
from types import ModuleType
from typing import Any

from sherd.deepspeed import accelerator, checkpointing, comm, engine, loader, ops, schedules, utils, zero
from sherd.deepspeed.accelerator import get_accelerator
from sherd.deepspeed.comm import init_distributed
from sherd.deepspeed.engine import DeepSpeedEngine, initialize
from sherd.deepspeed.loader import DeepSpeedDataLoader
from sherd.deepspeed.refusals import MissingError, missing, refused, refusing_module
from sherd.deepspeed.utils import OnDevice, log_dist, logger

# The release of DeepSpeed whose names and arguments these are.
__version__ = version = "0.19.8"
__version_major__, __version_minor__, __version_patch__ = 0, 19, 8

_MODULES = {  # DeepSpeed's modules, and those of this package that have their names
    "accelerator": accelerator, "accelerator.real_accelerator": accelerator, "checkpoint.utils": utils,
    "checkpointing": checkpointing, "comm": comm, "comm.comm": comm,
    "ops": ops, "ops.adam": ops, "ops.adam.cpu_adam": ops, "ops.adam.fused_adam": ops, "ops.adagrad": ops, "ops.lamb": ops, "ops.lion": ops,
    "runtime.activation_checkpointing.checkpointing": checkpointing, "runtime.dataloader": loader, "runtime.engine": engine,
    "runtime.lr_schedules": schedules, "runtime.utils": utils, "runtime.zero": zero, "runtime.zero.partition_parameters": zero,
    "utils": utils, "utils.logging": utils, "utils.z3_leaf_module": utils, "zero": zero,
}
_REFUSED = {  # DeepSpeed's modules that are not here; each name in them can be imported, and its use is refused
    "autotuning": "there is no autotuner; `sherd plan` says what fits",
    "compression": "there is no compression",
    "inference": "sherd trains; an engine for inference is deepspeed.initialize() without an optimizer, and engine.generate()",
    "linear": "there are no quantised linear layers",
    "module_inject": "modules are not replaced",
    "moe": "there is no expert parallelism; experts are divided as other modules are",
    "moe.layer": "there is no expert parallelism; experts are divided as other modules are",
    "moe.sharded_moe": "there is no expert parallelism; experts are divided as other modules are",
    "moe.utils": "there is no expert parallelism; experts are divided as other modules are",
    "ops.op_builder": "nothing is compiled at run time",
    "ops.sparse_attention": "use torch's attention",
    "ops.transformer": "use torch's layers",
    "pipe": "there is no pipeline parallelism; the stages of ZeRO divide a model of any form",
    "profiling": "torch.profiler shows what a model does",
    "profiling.flops_profiler": "torch.profiler shows what a model does",
    "runtime.compiler": "compile by torch.compile, or engine.compile()",
    "runtime.config": "the configuration is a dict or a file (docs/configuration.md)",
    "runtime.fp16": "the block \"fp16\" of the configuration has the scaler",
    "runtime.hybrid_engine": "engine.generate() makes text between steps",
    "runtime.pipe": "there is no pipeline parallelism; the stages of ZeRO divide a model of any form",
    "runtime.pipe.engine": "there is no pipeline parallelism; the stages of ZeRO divide a model of any form",
    "runtime.pipe.module": "there is no pipeline parallelism; the stages of ZeRO divide a model of any form",
    "runtime.pipe.topology": "there is no pipeline parallelism; the stages of ZeRO divide a model of any form",
    "runtime.sequence_parallel": "there is no sequence parallelism",
    "runtime.sequence_parallel.ulysses_sp": "there is no sequence parallelism",
    "sequence": "there is no sequence parallelism",
    "sequence.layer": "there is no sequence parallelism",
    "utils.timer": "\"wall_clock_breakdown\": true writes the times to the log",
    "utils.zero_to_fp32": "`sherd checkpoint export` writes the weights of a checkpoint, and engine.engine.save_pretrained() those of an engine",
}
PipelineModule = refused("deepspeed.PipelineModule", _REFUSED["pipe"])
PipelineEngine = refused("deepspeed.PipelineEngine", _REFUSED["pipe"])
InferenceEngine = refused("deepspeed.InferenceEngine", _REFUSED["inference"])
DeepSpeedHybridEngine = refused("deepspeed.DeepSpeedHybridEngine", _REFUSED["runtime.hybrid_engine"])
DeepSpeedTransformerLayer = refused("deepspeed.DeepSpeedTransformerLayer", _REFUSED["ops.transformer"])
init_inference = refused("deepspeed.init_inference", _REFUSED["inference"])
tp_model_init = refused("deepspeed.tp_model_init", "there is no tensor parallelism")
replace_transformer_layer = refused("deepspeed.replace_transformer_layer", _REFUSED["module_inject"])


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds --deepspeed and --deepspeed_config, and their older names, to a parser. Returns it. Local."""
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed's configuration")
    for name in ("deepspeed", "deepscale"):
        group.add_argument(f"--{name}", default=False, action="store_true", help="for the script's own code; the engine does not read it")
        group.add_argument(f"--{name}_config", default=None, type=str, help="the path of a JSON file with DeepSpeed's keys")
    return parser


def _place(name: str, module: ModuleType) -> None:
    """Makes a module known under a name in this package, and makes the packages on the way that are not there."""
    parent, _, last = name.rpartition(".")
    if parent and f"{__name__}.{parent}" not in sys.modules:
        between = ModuleType(f"{__name__}.{parent}")
        between.__path__ = []  # type: ignore[attr-defined]
        between.__getattr__ = lambda attribute: _absent(f"{parent}.{attribute}")  # type: ignore[method-assign]
        _place(parent, between)
    sys.modules[f"{__name__}.{name}"] = module
    vars(sys.modules[f"{__name__}.{parent}" if parent else __name__]).setdefault(last, module)


def _absent(name: str) -> Any:
    raise missing(f"deepspeed.{name}")


for _name, _module in _MODULES.items():
    _place(_name, _module)
for _name, _why in _REFUSED.items():
    _place(_name, refusing_module(f"{__name__}.{_name}", f"deepspeed.{_name}", _why))


def __getattr__(name: str) -> Any:
    return _absent(name)

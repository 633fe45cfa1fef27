"""Whole weights under the names of the model: read one at a time, written, saved and loaded."""
from __future__ import annotations

import base64
import ctypes
import hashlib
import json
import os
from collections.abc import Mapping as AbstractMapping
from typing import TYPE_CHECKING, Any, Iterator, Mapping

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from sherd.engine import Engine as Core
from sherd.errors import SherdError
from sherd.torch.say import collective
from sherd.torch.units import Division, Param, some

if TYPE_CHECKING:
    from sherd.torch.engine import Engine

Path = str | os.PathLike[str]
CLIENT_STATE = "client_state"  # the blob that has it, as JSON
DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
FILE_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
               torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}


# ------------------------------------------------------------------ values --

def value_of(param: Param) -> str:
    """The name of a parameter's exact value: "master"; for a frozen one "compute"."""
    return "compute" if param.is_frozen else "master"


def read(core: Core, param: Param) -> torch.Tensor:
    """Returns the exact values of a parameter in its shape, as fp32 in memory of their own. Collective."""
    count = param.tensor.numel()
    array = (ctypes.c_float * max(count, 1))()
    core.read(param.number, value_of(param), 0, count, array)
    return torch.frombuffer(array, dtype=torch.float32)[:count].reshape(param.tensor.shape)


def write(core: Core, param: Param, values: torch.Tensor) -> None:
    """Writes these values, the same on every rank. Collective, between steps."""
    if tuple(values.shape) != tuple(param.tensor.shape):
        raise ValueError(f"parameter {param.name} is {list(param.tensor.shape)}, and the values are {list(values.shape)}")
    flat = values.detach().to("cpu", torch.float32).contiguous().reshape(-1)
    if flat.numel():
        core.write(param.number, (ctypes.c_float * flat.numel()).from_address(flat.data_ptr()), value_of(param))


def names_of(model: nn.Module, division: Division) -> dict[str, Param]:
    """Returns every name that a parameter has in the model; a tied one has several."""
    by_tensor = {id(param.tensor): param for param in division.params}
    return {name: by_tensor[id(tensor)] for name, tensor in model.named_parameters(remove_duplicate=False)}


def buffers_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Returns the buffers that a state_dict has."""
    transient = {f"{prefix}.{name}" if prefix else name for prefix, module in model.named_modules()
                 for name in module._non_persistent_buffers_set}
    return {name: buffer for name, buffer in model.named_buffers(remove_duplicate=False) if name not in transient}


class StateDict(AbstractMapping[str, torch.Tensor]):
    """The weights by name. Each is gathered when it is read, and nothing is kept.

    Every rank reads the same names in the same order, as `items()` does. `dict(...)` of it holds all weights. Parameters are
    exact fp32 on the CPU; buffers are copies in their own type, on their device.
    """

    def __init__(self, engine: "Engine") -> None:
        self.world, self._core = engine.world, engine.core
        self._params, self._buffers = names_of(engine.module, engine.division), buffers_of(engine.module)

    @collective("engine.state_dict()")
    def __getitem__(self, name: str) -> torch.Tensor:
        if name in self._buffers:
            return self._buffers[name].detach().clone()
        return read(self._core, self._params[name])

    def __iter__(self) -> Iterator[str]:
        yield from self._params
        yield from self._buffers

    def __len__(self) -> int:
        return len(self._params) + len(self._buffers)

    def shape(self, name: str) -> torch.Size:
        return (self._buffers[name] if name in self._buffers else self._params[name].tensor).shape


def load_state_dict(core: Core, model: nn.Module, division: Division, values: Mapping[str, torch.Tensor],
                    strict: bool = True) -> tuple[list[str], list[str]]:
    """Writes weights by name, the same on every rank. Returns the missing and the unexpected names. Collective."""
    params, buffers = names_of(model, division), buffers_of(model)
    given = {id(params[name]) for name in params if name in values}
    missing = [name for name, param in params.items() if id(param) not in given]
    missing += [name for name in buffers if name not in values]
    unexpected = [name for name in values if name not in params and name not in buffers]
    if strict and (missing or unexpected):
        raise ValueError(f"the weights do not fit {type(model).__name__}: missing {some(missing)}, unexpected "
                         f"{some(unexpected)}; strict=False takes what fits")
    written: set[int] = set()
    for name, param in params.items():
        if name in values and id(param) not in written:
            write(core, param, values[name])
            written.add(id(param))
    with torch.no_grad():
        for name, buffer in buffers.items():
            if name in values:
                buffer.copy_(values[name])
    return missing, unexpected


# ------------------------------------------------------------------- files --

def save_pretrained(engine: "Engine", folder: Path, dtype: torch.dtype, max_file_bytes: int) -> None:
    """Writes the weights as safetensors with the model's names, and its config.json if it has one. Collective.

    The buffers of a state_dict are written in their own type, from rank 0. A tied weight is written once, as transformers does.
    More than `max_file_bytes` of data become several files with an index.
    """
    if dtype not in DTYPES:
        raise ValueError(f"weights are saved as float32, bfloat16 or float16, not {dtype}")
    buffers = {name: buffer.detach().cpu().contiguous() for name, buffer in distinct(buffers_of(engine.module)).items()}
    engine.core.export_safetensors(folder, DTYPES[dtype], maps_of(engine.division, buffers), max_file_bytes=max_file_bytes)
    if engine.world.rank == 0:
        for part in ("config", "generation_config"):
            config = getattr(engine.module, part, None)
            if hasattr(config, "save_pretrained"):
                config.save_pretrained(folder)
    engine.world.barrier()


def import_weights(core: Core, model: nn.Module, division: Division, path: Path) -> None:
    """Fills every parameter, and every buffer of a state_dict, from safetensors with the model's names. Each rank reads what it
    holds. Collective.

    `path` is a file, a folder or an index. The prefix of the base model may be missing; tied names and other buffers may be
    there.
    """
    buffers = distinct(buffers_of(model))
    values = {name: torch.empty(buffer.shape, dtype=buffer.dtype, device="cpu") for name, buffer in buffers.items()}
    asked = {param.name for param in division.params} | buffers.keys()
    prefix = getattr(model, "base_model_prefix", "")
    extra = [name for name in names_of(model, division) if name not in asked]
    extra += [name for name, _ in model.named_buffers(remove_duplicate=False) if name not in asked]
    core.import_safetensors(path, maps_of(division, values), may_be_extra=[escaped(name) for name in extra],
                            optional_prefix=prefix + "." if prefix and hasattr(model, prefix) else None)
    with torch.no_grad():
        for name, buffer in buffers.items():
            if buffer.is_meta:
                owner, _, own = name.rpartition(".")
                model.get_submodule(owner)._buffers[own] = values[name]
            else:
                buffer.copy_(values[name])


def distinct(buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns each buffer once, by the first of its names."""
    names: dict[int, str] = {}
    for name, buffer in buffers.items():
        names.setdefault(id(buffer), name)
    return {name: buffers[name] for name in names.values()}


def maps_of(division: Division, buffers: Mapping[str, torch.Tensor]) -> list[dict[str, Any]]:
    """Returns the tensors of a file: every parameter by its name, then the buffers, in memory that the caller keeps."""
    maps: list[dict[str, Any]] = [{"name": param.name, "param": param.name, "shape": tuple(param.tensor.shape)}
                                  for param in division.params]
    for name, buffer in buffers.items():
        if buffer.dtype not in FILE_DTYPES:
            raise ValueError(f"buffer {name} is of {buffer.dtype}, which files of weights cannot have: register it with "
                             f"persistent=False")
        maps.append({"name": name, "shape": tuple(buffer.shape), "data": buffer.data_ptr(),
                     "data_dtype": FILE_DTYPES[buffer.dtype]})
    return maps


def escaped(name: str) -> str:
    """Returns a pattern that matches this name only."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


# ------------------------------------------------------------- checkpoints --

def save_checkpoint(engine: "Engine", folder: Path, tag: str | None, client_state: Mapping[str, Any] | None,
                    **options: Any) -> None:
    """Saves what a run needs to continue: weights, optimizer, counters, buffers, schedulers of torch, `client_state`. Collective.

    What is not the engine's is kept as JSON and never as a pickle. Buffers that have changed are part of it, up to 1 MiB.
    """
    try:
        text = json.dumps({"client_state": dict(client_state or {}), "schedule": schedule_state(engine),
                           "buffers": engine.buffers.changed()})
    except TypeError as error:
        raise TypeError(f"client_state is kept as JSON, and {error}: give numbers, text, lists and dicts") from error
    engine.core.set_blob(CLIENT_STATE, text.encode())
    engine.core.save(folder, tag, **options)


def kept_text(core: Core) -> str | None:
    """Returns the blob of save_checkpoint(), or None if another program saved the checkpoint."""
    try:
        return core.blob(CLIENT_STATE).decode()
    except SherdError:
        return None


def kept_of(text: str | None) -> dict[str, Any]:
    return {"client_state": {}, "schedule": None, "buffers": {}} if text is None else json.loads(text)


class Buffers:
    """The buffers of a model that training changes, such as statistics of a BatchNorm: those that differ from their start."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._begun = {name: digest(buffer) for name, buffer in buffers_of(model).items()}

    def changed(self) -> dict[str, dict[str, str]]:
        """Returns them as JSON: type and bytes by name. A checkpoint has rank 0's."""
        return {name: {"dtype": str(buffer.dtype).removeprefix("torch."),
                       "data": base64.b64encode(raw(buffer)).decode()}
                for name, buffer in buffers_of(self._model).items() if digest(buffer) != self._begun.get(name)}

    def take(self, kept: Mapping[str, Mapping[str, str]]) -> None:
        """Sets the buffers from such JSON. Buffers that the model no longer has are ignored."""
        buffers = buffers_of(self._model)
        with torch.no_grad():
            for name in kept.keys() & buffers.keys():
                data = bytearray(base64.b64decode(kept[name]["data"]))
                values = torch.frombuffer(data, dtype=getattr(torch, kept[name]["dtype"]))
                buffers[name].copy_(values.reshape(buffers[name].shape))


def raw(buffer: torch.Tensor) -> bytes:
    flat = buffer.detach().cpu().contiguous().reshape(-1)
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


def digest(buffer: torch.Tensor) -> bytes:
    return hashlib.sha256(raw(buffer)).digest()


def schedule_state(engine: "Engine") -> Any:
    """Returns the state of torch schedulers. Functions are left to the script."""
    given = engine.lr_scheduler
    return [state_of(one) for one in given] if isinstance(given, list) else state_of(given)


def state_of(scheduler: Any) -> dict[str, Any] | None:
    if scheduler is None:
        return None
    state = {}
    for key, value in scheduler.state_dict().items():
        try:
            json.dumps(value)
            state[key] = value
        except TypeError:
            continue
    return state


def schedule_load(engine: "Engine", kept: Any) -> None:
    """Loads such a state, and the rates with it: torch keeps the rates in the optimizer, and many schedulers continue from them."""
    given = engine.lr_scheduler
    if given is None:
        return
    schedulers = given if isinstance(given, list) else [given]
    states = kept if isinstance(kept, list) else [kept]
    if len(schedulers) != len(states):
        raise ValueError(f"the checkpoint has the schedules of {len(states)} optimizers, and initialize() was given those of "
                         f"{len(schedulers)}: give as many, or load with load_module_only=True")
    for scheduler, state in zip(schedulers, states):
        if scheduler is None or state is None:
            continue
        scheduler.load_state_dict(state)
        if isinstance(scheduler, LRScheduler):
            for group, rate in zip(scheduler.optimizer.param_groups, scheduler.get_last_lr()):
                group["lr"] = rate
    engine.rates.forget_epochs()

"""Reads, writes, exports and imports whole weights under the model's names, one tensor at a time."""
from __future__ import annotations

import ctypes
import os
from collections import OrderedDict
from collections.abc import Mapping as AbstractMapping
from typing import TYPE_CHECKING, Any, Iterable, Iterator, Mapping, Sequence

import torch
from torch import nn

from sherd.engine import Engine as Core
from sherd.errors import InvalidError, StateError
from sherd.torch import fill, pretrained
from sherd.torch.say import collective
from sherd.torch.units import Division, Param, is_managed, matches, some

if TYPE_CHECKING:
    from sherd.torch.engine import Engine

Path = str | os.PathLike[str]
DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
# torch's types, with their names in safetensors.
FILE_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
               torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}


# ------------------------------------------------------------------ values --

def value_of(param: Param) -> str:
    """Returns the name of the exact value of a parameter: its master weights, or of a frozen one what passes read."""
    return "compute" if param.is_frozen else "master"


def read(core: Core, param: Param, value: str | None = None) -> torch.Tensor:
    """Returns a parameter's exact values [its shape], fp32, on the CPU, in memory of their own. Collective, blocking.

    `value` is one of those of sherd.Engine.read; None: value_of().
    """
    count = param.tensor.numel()
    array = (ctypes.c_float * max(count, 1))()
    core.read(param.number, value or value_of(param), 0, count, array)
    return torch.frombuffer(array, dtype=torch.float32)[:count].reshape(param.tensor.shape)


def check_shape(what: str, wanted: torch.Size, given: torch.Size) -> None:
    """Raises ValueError where values have another shape than a parameter or buffer, which is called `what` in the message."""
    if wanted != given:
        raise ValueError(f"{what} is {list(wanted)}, and the values are {list(given)}")


def write(core: Core, param: Param, values: torch.Tensor) -> None:
    """Writes the values of a parameter [its shape], which are the same on every rank. Collective, blocking, between steps.

    Raises ValueError for another shape, and what sherd.Engine.write raises.
    """
    check_shape(f"parameter {param.name}", param.tensor.shape, values.shape)
    flat = values.detach().to("cpu", torch.float32).contiguous().reshape(-1)
    if flat.numel():
        core.write(param.number, (ctypes.c_float * flat.numel()).from_address(flat.data_ptr()), value_of(param))


def names_of(model: nn.Module, division: Division) -> dict[str, Param]:
    """Returns the engine's parameter for every name in the model. A tied parameter has several names.

    Raises StateError for a parameter that came into the model later.
    """
    by_tensor = {id(param.tensor): param for param in division.params}
    tensors = {name: tensor for name, tensor in model.named_parameters(remove_duplicate=False) if is_managed(tensor)}
    late = next((name for name, tensor in tensors.items() if id(tensor) not in by_tensor), None)
    if late is not None:
        raise StateError(f"parameter {late} came into the model after sherd.torch.initialize, and the engine does not have it: change the "
                         f"model before")
    return {name: by_tensor[id(tensor)] for name, tensor in tensors.items()}


def buffers_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Returns the buffers that a state_dict has, by name: all but those that are registered with persistent=False."""
    transient = pretrained.transient_of(model)
    return {name: buffer for name, buffer in model.named_buffers(remove_duplicate=False) if name not in transient}


def unmanaged_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Returns what a state_dict has and the engine does not: buffers, and frozen parameters of other types (quantised weights)."""
    frozen = {name: tensor for name, tensor in model.named_parameters(remove_duplicate=False) if not is_managed(tensor)}
    return {**frozen, **buffers_of(model)}


class StateDict(AbstractMapping[str, torch.Tensor]):
    """A mapping from names to weights, each of which is read when it is asked for. Nothing is gathered before, and nothing is kept.

    Reading is collective and blocking: every rank reads the same names in the same order, as `items()` does. `dict(...)` of it
    holds all weights, and so does what torch.save() writes of it, on every rank. Parameters are fp32 and exact, in their shapes, on
    the CPU; buffers are copies of the module's own. Both are the caller's. Names and shapes are local. Raises KeyError (no such
    name), and what sherd.Engine.read raises.
    """

    def __init__(self, engine: "Engine") -> None:
        self.world, self._core = engine.world, engine.core
        self._params, self._buffers = names_of(engine.module, engine.division), unmanaged_of(engine.module)

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

    def __reduce__(self) -> Any:
        """Makes copies and pickles, as torch.save writes them, of all weights in a plain dict. Collective, blocking."""
        return OrderedDict, (), None, None, iter(self.items())  # torch.load takes this class with weights_only too

    def shape(self, name: str) -> torch.Size:
        """Returns the shape of a weight or buffer without reading it. Local."""
        return (self._buffers[name] if name in self._buffers else self._params[name].tensor).shape


def load_state_dict(core: Core, model: nn.Module, division: Division, values: Mapping[str, torch.Tensor],
                    strict: bool = True) -> tuple[list[str], list[str]]:
    """Writes weights and buffers by name; the values are the same on every rank. Collective, blocking, between steps.

    Returns the names that `values` lacks, and those that the model lacks. With `strict`, either raises ValueError, and so does another
    shape, before anything is written. A tied parameter needs one of its names.
    """
    params, buffers = names_of(model, division), unmanaged_of(model)
    given = {id(params[name]) for name in params if name in values}
    missing = [name for name, param in params.items() if id(param) not in given]
    missing += [name for name in buffers if name not in values]
    unexpected = [name for name in values if name not in params and name not in buffers]
    if strict and (missing or unexpected):
        raise ValueError(f"the weights do not fit {type(model).__name__}: missing {some(missing)}, unexpected "
                         f"{some(unexpected)}; strict=False takes what fits")
    for name in values:
        shape = values.shape(name) if isinstance(values, StateDict) else values[name].shape  # a StateDict reads what it is asked for
        if name in params:
            check_shape(f"parameter {name}", params[name].tensor.shape, shape)
        elif name in buffers:
            check_shape(f"buffer {name}", buffers[name].shape, shape)
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
    """Writes the weights as safetensors under the model's own names, and config.json where the model has one.

    Buffers that a state_dict has are written in their own type, rank 0's. A tied weight is written once, as transformers does it.
    More data than `max_file_bytes` become several files with an index. Collective, blocking, between steps. Raises ValueError for
    a `dtype` or a buffer's type that files cannot have, and what sherd.Engine.export_safetensors raises.
    """
    if dtype not in DTYPES:
        raise ValueError(f"weights are saved as float32, bfloat16 or float16, not {dtype}")
    buffers = {name: buffer.detach().cpu().contiguous() for name, buffer in distinct(unmanaged_of(engine.module)).items()}
    engine.core.export_safetensors(folder, DTYPES[dtype], maps_of(engine.division, buffers), max_file_bytes=max_file_bytes)
    if engine.world.rank == 0:
        for part in ("config", "generation_config"):
            config = getattr(engine.module, part, None)
            if hasattr(config, "save_pretrained"):
                config.save_pretrained(folder)
    engine.world.barrier()


def import_weights(core: Core, model: nn.Module, division: Division, path: Path, may_miss: Sequence[str] = (),
                   may_be_extra: Sequence[str] = ()) -> None:
    """Fills every parameter, and the other tensors of a state_dict (unmanaged_of), from safetensors under the model's names.

    `path` is a file, a folder or an index. Each rank reads the elements that it stores, and all other tensors. The file may have names that
    transformers changes when it loads, any of the names of tied weights, and tensors that the model computes itself.
    `may_miss` and `may_be_extra` are patterns (fnmatch): of the model's names that the file may lack, which keep the values that
    they have, and of the file's names that the model may lack. A buffer on meta that the file lacks stays on meta. Collective,
    blocking, after seal and before the first acquire. Raises what sherd.Engine.import_safetensors raises.
    """
    buffers = distinct(unmanaged_of(model))
    values = {name: start_of(buffer, matches(name, may_miss)) for name, buffer in buffers.items()}
    maps = maps_of(division, values)
    names = Names(model, division, path, [one["name"] for one in maps])
    try:
        core.import_safetensors(path, [{**one, "name": names.of(one["name"])} for one in maps], may_miss,
                                [*may_be_extra, *map(escaped, names.passed_over())], f"{names.prefix}." if names.prefix else None)
    except InvalidError:
        names.check(may_miss, may_be_extra)
        raise
    made: dict[int, torch.Tensor] = {}  # what takes the place of a tensor on meta, by its id
    with torch.no_grad():
        for name, buffer in buffers.items():
            if not buffer.is_meta:
                buffer.copy_(values[name])
            elif not matches(name, may_miss) or not fill.is_unset(values[name]):
                is_param = isinstance(buffer, nn.Parameter)
                made[id(buffer)] = nn.Parameter(values[name], requires_grad=False) if is_param else values[name]
    for module in model.modules():
        for own in (module._parameters, module._buffers):
            own.update({name: made[id(tensor)] for name, tensor in own.items() if id(tensor) in made})


def start_of(buffer: torch.Tensor, is_kept: bool) -> torch.Tensor:
    """Returns memory on the CPU to which a file's tensor is read; with `is_kept` it has the buffer's values before."""
    if not is_kept:
        return torch.empty(buffer.shape, dtype=buffer.dtype, device="cpu")
    return fill.unset_like(buffer) if buffer.is_meta else buffer.detach().to("cpu", copy=True).contiguous()


class Names:
    """The names of a file's tensors that are not in a model, of which the engine asks for `asked`. Local."""

    def __init__(self, model: nn.Module, division: Division, path: Path, asked: Sequence[str]) -> None:
        self._model, self._path, self._asked = model, path, dict.fromkeys(asked)
        self._file = dict.fromkeys(pretrained.names_in(path))
        params = names_of(model, division)
        self._all = [*params, *(name for name, _ in model.named_buffers(remove_duplicate=False))]
        prefix = getattr(model, "base_model_prefix", "")
        self.prefix = prefix if prefix and hasattr(model, prefix) else ""  # the file's names may all lack it
        self._renamed: dict[str, str] = {}
        if self._missing():
            tied = {param.name: name for name, param in params.items() if name in self._file and param.name not in self._file}
            self._renamed = {**pretrained.renamed(model, self._file, self._all), **tied}

    def of(self, name: str) -> str:
        """Returns the file's name of one of the model's tensors."""
        return self._renamed.get(name, name)

    def _missing(self) -> list[str]:
        """Returns which of `asked` the file lacks."""
        return [name for name in self._asked if self.of(name) not in self._file and name.removeprefix(f"{self.prefix}.") not in self._file]

    def _unused(self) -> list[str]:
        """Returns which of the file's tensors are for none of `asked`."""
        used = {self.of(name) for name in self._asked} | {name.removeprefix(f"{self.prefix}.") for name in self._asked}
        return [name for name in self._file if name not in used]

    def passed_over(self) -> list[str]:
        """Returns the names of tensors that the engine does not ask for and that the model computes or ties itself."""
        ours = [name for name in self._all if name not in self._asked]
        ours += [name.removeprefix(f"{self.prefix}.") for name in ours]
        return ours + [name for name in self._unused() if pretrained.is_computed(self._model, name)]

    def check(self, may_miss: Iterable[str], may_be_extra: Iterable[str]) -> None:
        """Raises InvalidError where the file does not fit and transformers may have written it in another form than the model's.

        It has then other tensors in place of some of the model's.
        """
        missing = [name for name in self._missing() if not matches(name, may_miss)]
        others = [name for name in self._unused() if not matches(name, [*may_be_extra, *map(escaped, self.passed_over())])]
        if missing and others and hasattr(self._model, "from_pretrained"):
            kind, path = type(self._model).__name__, os.fspath(self._path)
            raise InvalidError(f"the names in {path} are not those of {kind} in memory: the file lacks {some(missing)}, and has "
                               f"{some(others)}. Where from_pretrained() converts such a file, make the model by "
                               f"{kind}.from_pretrained({path!r}), and call initialize() without weights=. What may be missing or extra "
                               f"is named in may_miss= and may_be_extra=") from None


def distinct(buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns each buffer once, by the first of its names."""
    names: dict[int, str] = {}
    for name, buffer in buffers.items():
        names.setdefault(id(buffer), name)
    return {name: buffers[name] for name in names.values()}


def maps_of(division: Division, buffers: Mapping[str, torch.Tensor]) -> list[dict[str, Any]]:
    """Returns the maps of a file's tensors (sherd_tensor_map): every parameter by its name, and after them the buffers.

    The buffers' memory has to stay until the maps were used. Raises ValueError for a type that safetensors does not have.
    """
    maps: list[dict[str, Any]] = [{"name": param.name, "param": param.name, "shape": tuple(param.tensor.shape)}
                                  for param in division.params]
    for name, buffer in buffers.items():
        if buffer.dtype not in FILE_DTYPES:
            raise ValueError(f"{name} is of {buffer.dtype}, which files of weights cannot have: make it a buffer that is registered "
                             f"with persistent=False")
        maps.append({"name": name, "shape": tuple(buffer.shape), "data": buffer.data_ptr(),
                     "data_dtype": FILE_DTYPES[buffer.dtype]})
    return maps


def escaped(name: str) -> str:
    """Returns a pattern (fnmatch) that only this name matches."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)

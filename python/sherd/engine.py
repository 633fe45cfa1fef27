"""The engine: what is declared, acquired, stepped, read and saved. sherd.h has each call's whole contract."""
from __future__ import annotations

import contextlib
import ctypes
import json
import os
import weakref
from types import SimpleNamespace
from typing import Any, Callable, Iterator, Mapping, Sequence

from sherd._callbacks import Calls, written
from sherd._library import encoded, fields_of, library
from sherd.config import Config
from sherd.memory import CPU, CUDA, DTYPES, Memory
from sherd.world import World

FORWARD, BACKWARD, EVAL = 0, 1, 2
Fill = Callable[[int, memoryview], None]
Progress = Callable[[int, int], None]


class Report(SimpleNamespace):
    """Numbers of the engine under the names of their struct in sherd.h."""


class Engine:
    """An engine of `world`, made from `config` (a Config, a path or a mapping). Collective.

    Declare groups, units, parameters and passes; `seal`; `fill`; then acquire and release units in forward and backward
    and `step`. Everything that is not declared "Local" in sherd.h is collective here too.
    """

    def __init__(self, world: World, config: Config | str | os.PathLike[str] | Mapping[str, Any]) -> None:
        self._lib = library()
        self.world = world
        own = config if isinstance(config, Config) else Config(config)
        out = ctypes.c_void_p()
        try:
            with own.errors_by_key():
                self._lib.engine_create(world.handle, own.handle, ctypes.byref(out))
        finally:
            if own is not config:
                own.destroy()
        self._handle: int | None = out.value
        self._lib.interrupts.share(out.value, world.handle)
        self._end = weakref.finalize(self, _destroy, self._lib, out.value, os.getpid())  # at the program's end too
        self._shapes: list[tuple[int, ...]] = []
        self._dtypes: list[str | None] = []
        self.is_sealed = False
        info = self.info
        self._compute = DTYPES[info.compute_dtype]
        self.device = (CPU, 0) if info.backend == "cpu" else (CUDA, world.device)  # where parameters are, as DLPack says it

    @property
    def handle(self) -> int:
        if self._handle is None:
            raise ValueError("the engine is destroyed")
        return self._handle

    # -------------------------------------------------------- declarations --

    def add_group(self, name: str, **values: Any) -> int:
        """A group of parameters with rates of its own (lr, weight_decay, beta1, beta2, eps, exclude_1d), or an optimizer
        ("Lamb"); its number."""
        return self._add("group_add", self._lib.new("group_params", name=name, **values))

    def add_unit(self, name: str, **values: Any) -> int:
        """A unit: parameters that are gathered together. `name` is unique. Its number."""
        return self._add("unit_add", self._lib.new("unit_params", name=name, **values))

    def add_param(self, unit: int, name: str, shape: Sequence[int], **values: Any) -> int:
        """A parameter of a unit (group, frozen, atom_elems, dtype); its number."""
        limit = self._lib.constants["SHERD_MAX_NDIM"]
        if len(shape) > limit:
            raise ValueError(f"parameter {name} has {len(shape)} dimensions; there can be {limit}")
        struct = self._lib.new("param_params", name=name, ndim=len(shape), **values)
        struct.shape[: len(shape)] = shape
        number = self._add("param_add", struct, unit)
        self._shapes.append(tuple(shape))
        self._dtypes.append(DTYPES[values["dtype"]] if values.get("dtype", -1) >= 0 else None)
        return number

    def _add(self, call: str, struct: Any, *before: int) -> int:
        out = ctypes.c_int32()
        getattr(self._lib, call)(self.handle, *before, ctypes.byref(struct), ctypes.byref(out))
        return out.value

    def add_reads(self, unit: int, param: int) -> None:
        """While `unit` is acquired, `param` of another unit is readable too, and its gradient can be added to."""
        self._lib.unit_reads(self.handle, unit, param)

    def add_pass(self, which: int, unit: int, held: int = 0) -> None:
        """`unit` comes next in the order of FORWARD, BACKWARD or EVAL, held over `held` further acquires."""
        if held:
            self._lib.pass_add_held(self.handle, which, unit, held)
        else:
            self._lib.pass_add(self.handle, which, unit)

    def bind(self, param: int, data: int, grad: int | None) -> None:
        """The trainer's own memory for a parameter, by address, at stages 0 to 2; both outlive the engine."""
        self._lib.param_bind(self.handle, param, data, grad)

    def describe_run(self, text: str) -> None:
        """What makes this run this run (seed, data), held against resumed state. Before seal."""
        self._lib.engine_describe_run(self.handle, text.encode())

    def set_stream(self, stream: int) -> None:
        """A CUDA stream of the trainer's own, by handle (0: the legacy default stream), as the compute stream. Before seal."""
        self._lib.engine_set_stream(self.handle, stream)

    def seal(self) -> None:
        """Plans, compares the ranks' plans, allocates all memory. Collective, blocking."""
        self._lib.engine_seal(self.handle)
        self.is_sealed = True

    # -------------------------------------------------------- first values --

    def fill(self, param: int, values: Fill | Any) -> None:
        """Fills `param` from an fp32 buffer of all its elements, or by `values(first_elem, out)` range by range.

        `out` is a writable memoryview of floats, valid in the call. Local, after seal, before the first acquire.
        """
        function = values if callable(values) else _from_buffer(values)
        with Calls() as calls:
            made = calls.make("sherd_fill_fn", lambda first, count, out: function(first, _floats(out, count)))
            self._lib.param_fill(self.handle, param, made, None)

    def fill_from(self, param: int, root: int, values: Fill | Any | None) -> None:
        """The same from rank `root` alone; the others give None. Collective, blocking."""
        function = values if callable(values) or values is None else _from_buffer(values)
        with Calls() as calls:
            made = calls.make("sherd_fill_fn", function and (
                lambda first, count, out: function(first, _floats(out, count))))
            self._lib.param_fill_from(self.handle, param, root, made, None)

    # -------------------------------------------------------------- passes --

    def acquire(self, unit: int, which: int) -> None:
        """Makes a unit's parameters readable, for BACKWARD its gradients writable. Every rank in the same order."""
        self._lib.unit_acquire(self.handle, unit, which)

    def release(self, unit: int, which: int) -> None:
        self._lib.unit_release(self.handle, unit, which)

    @contextlib.contextmanager
    def acquired(self, unit: int, which: int) -> Iterator[None]:
        """`with engine.acquired(unit, FORWARD):` acquires, and releases whatever happens inside."""
        self.acquire(unit, which)
        try:
            yield
        finally:
            self.release(unit, which)

    def data(self, param: int) -> Memory:
        """The parameter's elements, to be read while its unit is acquired."""
        return self._memory(param, self._lib.param_data(self.handle, param), is_readonly=True)

    def grad(self, param: int) -> Memory:
        """The parameter's gradient, to be added to while its unit is acquired for BACKWARD."""
        return self._memory(param, self._lib.param_grad(self.handle, param))

    def address(self, param: int) -> Memory:
        """Where `data` is whenever the unit is acquired, from seal to destroy: made once, kept in a view. Local."""
        return self._memory(param, self._lib.param_address(self.handle, param), is_readonly=True)

    def grad_address(self, param: int) -> Memory:
        """The same of `grad`."""
        return self._memory(param, self._lib.param_grad_address(self.handle, param))

    def _memory(self, param: int, address: int | None, is_readonly: bool = False) -> Memory:
        if not address:
            raise self._lib.error(self._lib.constants["SHERD_E_STATE"])
        return Memory(address, self._shapes[param], self._dtypes[param] or self._compute, self.device, self, is_readonly)

    @contextlib.contextmanager
    def evaluating(self, keep_units: int | None = None) -> Iterator[None]:
        """Many passes of EVAL and no step: the first `keep_units` units of that order stay gathered between them (None: as
        the key sherd.eval_keep_units says). Collective, at a boundary."""
        struct = self._lib.new("eval_params", **({} if keep_units is None else {"keep_units": keep_units}))
        self._lib.eval_begin(self.handle, ctypes.byref(struct))
        try:
            yield
        finally:
            self._lib.eval_end(self.handle)

    # ---------------------------------------------------------------- step --

    @property
    def loss_scale(self) -> float:
        return self._lib.loss_scale(self.handle)

    def step(self) -> Report:
        """Once per micro-batch, after its backward; at the boundary the update. Collective."""
        return self._report("step_report", "step")

    def prepare(self) -> Report:
        """The first half: at the boundary one of `apply` and `discard` must follow."""
        return self._report("step_report", "step_prepare")

    def apply(self, group_lr: Sequence[float] | None = None, **values: Any) -> None:
        """The second half: grad_norm, clip_coefficient, overflow from outside; a rate per group (NaN: the schedule's)."""
        struct = self._lib.new("step_params", **values)
        if group_lr is not None:
            rates = (ctypes.c_double * len(group_lr))(*group_lr)
            struct.group_lr, struct.group_count = rates, len(group_lr)
        self._lib.step_apply(self.handle, ctypes.byref(struct))

    def grad_norms(self) -> list[float]:
        """The L2 norm of each parameter's gradient, by number: between `prepare` at a boundary and `apply`. Collective."""
        out = (ctypes.c_double * len(self._shapes))()
        self._lib.grad_norms(self.handle, out, len(out))
        return list(out)

    def discard(self) -> None:
        """Drops the window's gradients; nothing else changes. What to call after a failure in a micro-batch. Collective."""
        self._lib.step_discard(self.handle)

    def wait(self) -> Report:
        """The report of the last boundary, complete."""
        return self._report("step_report", "step_wait")

    def undo(self) -> None:
        """Back to before the last update, where a spare generation of the state exists."""
        self._lib.step_undo(self.handle)

    def close_window(self) -> None:
        """The next step is a boundary even if the window is short."""
        self._lib.step_close_window(self.handle)

    def monitor_write(self, tag: str, value: float) -> None:
        """A number for what csv_monitor and tensorboard write, such as "Train/Samples/train_loss"; nothing where neither is on, and
        on ranks other than 0. Local."""
        self._lib.monitor_write(self.handle, tag.encode(), value)

    def _report(self, struct: str, call: str) -> Report:
        made = self._lib.new(struct)
        getattr(self._lib, call)(self.handle, ctypes.byref(made))
        return Report(**fields_of(made))

    # ------------------------------------------------------------- looking --

    def plan(self, as_json: bool = False) -> str | dict[str, Any]:
        """The plan of this rank as a table, or as what its JSON says. Before seal too."""
        form = self._lib.constants["SHERD_PLAN_JSON" if as_json else "SHERD_PLAN_TABLE"]
        text = written(lambda write: self._lib.engine_plan(self.handle, form, write, None))
        return json.loads(text) if as_json else text

    def memory(self) -> Report:
        """Bytes of this rank by purpose, planned and held. Local."""
        return self._report("memory_report", "engine_memory")

    def traffic(self) -> Report:
        """Bytes of this rank between media, planned and counted. Local."""
        return self._report("traffic_report", "engine_traffic")

    @property
    def info(self) -> Report:
        """Stage, compute type, batch sizes, counters. Local."""
        return self._report("engine_info", "engine_query")

    def fingerprint(self, param: int | None = None) -> int:
        """Of all master weights, or of one parameter's. Collective."""
        out = ctypes.c_uint64()
        if param is None:
            self._lib.engine_fingerprint(self.handle, ctypes.byref(out))
        else:
            self._lib.param_fingerprint(self.handle, param, ctypes.byref(out))
        return out.value

    # -------------------------------------------------------------- values --

    def read(self, param: int, value: str = "master", first: int = 0, count: int | None = None,
             out: Any = None) -> Any:
        """Elements of a value ("master", "compute", "grad", a part of the state) as fp32; docs/values.md. Collective.

        To `out`, a writable fp32 buffer, else to a new array of ctypes.
        """
        count = self._count(param, first, count)
        out = (ctypes.c_float * count)() if out is None else out
        self._lib.param_read(self.handle, param, value.encode(), first, count, _float_pointer(out, count))
        return out

    def write(self, param: int, values: Any, value: str = "master", first: int = 0) -> None:
        """The opposite, from an fp32 buffer that is the same on every rank, at a boundary. Collective."""
        count = memoryview(values).nbytes // 4
        self._lib.param_write(self.handle, param, value.encode(), first, count, _float_pointer(values, count))

    def read_local(self, param: int, value: str = "master", out: Any = None) -> Any:
        """What this rank owns of a value (`local` has the range), read by it alone; else as `read`. Local."""
        first, count = self.local(param)
        out = (ctypes.c_float * count)() if out is None else out
        self._lib.param_read_local(self.handle, param, value.encode(), first, count, _float_pointer(out, count))
        return out

    def local(self, param: int) -> tuple[int, int]:
        """First element and count of the range that this rank owns. Local."""
        first, count = ctypes.c_size_t(), ctypes.c_size_t()
        self._lib.param_local(self.handle, param, ctypes.byref(first), ctypes.byref(count))
        return first.value, count.value

    def _count(self, param: int, first: int, count: int | None) -> int:
        if count is not None:
            return count
        elems = 1
        for extent in self._shapes[param]:
            elems *= extent
        return elems - first

    def keep_state(self, is_kept: bool = True) -> None:
        """A clean end leaves the state files on NVMe from now on, or not: for a program that was asked to stop. Local."""
        self._lib.engine_keep_state(self.handle, is_kept)

    def set_step(self, step: int, micro_step: int) -> None:
        """Counters of a run that goes on here. Collective."""
        self._lib.engine_set_step(self.handle, step, micro_step)

    def set_blob(self, key: str, data: bytes | None, **values: Any) -> None:
        """Keeps bytes of the trainer's with the state (is_per_rank). Local."""
        struct = self._lib.new("blob_params", **values)
        self._lib.blob_set(self.handle, key.encode(), data, len(data or b""), ctypes.byref(struct))

    def blob(self, key: str, **values: Any) -> bytes:
        """Those bytes. InvalidError where there are none of that key. Local."""
        struct, length = self._lib.new("blob_params", **values), ctypes.c_size_t()
        self._lib.blob_get(self.handle, key.encode(), None, ctypes.byref(length), ctypes.byref(struct))
        data = ctypes.create_string_buffer(max(length.value, 1))
        self._lib.blob_get(self.handle, key.encode(), data, ctypes.byref(length), ctypes.byref(struct))
        return data.raw[: length.value]

    # --------------------------------------------------------------- files --

    def save(self, folder: str | os.PathLike[str], tag: str | None = None, progress: Progress | None = None,
             **values: Any) -> None:
        """Saves a checkpoint to folder/tag (is_async, keep_last); docs/checkpoints.md. Collective."""
        with Calls() as calls:
            struct = self._lib.new("save_params", progress=calls.make("sherd_progress_fn", progress), **values)
            self._lib.checkpoint_save(self.handle, encoded(os.fspath(folder)), encoded(tag), ctypes.byref(struct))

    def wait_saved(self) -> Report:
        """Waits for an asynchronous save and raises its failure if it had one."""
        return self._report("checkpoint_report", "checkpoint_wait")

    def load(self, folder: str | os.PathLike[str], tag: str | None = None, may_miss: Sequence[str] = (),
             may_be_extra: Sequence[str] = (), progress: Progress | None = None, weights_only: bool = False) -> None:
        """Goes on from a checkpoint, whoever saved it; instead of filling, or between steps. Collective."""
        with Calls() as calls:
            struct = self._lib.new("load_params", progress=calls.make("sherd_progress_fn", progress),
                                   weights_only=weights_only, **_patterns(may_miss=may_miss, may_be_extra=may_be_extra))
            self._lib.checkpoint_load(self.handle, encoded(os.fspath(folder)), encoded(tag), ctypes.byref(struct))

    def export_safetensors(self, path: str | os.PathLike[str], dtype: str = "fp32",
                           tensors: Sequence[Mapping[str, Any]] | None = None, **values: Any) -> None:
        """Writes the weights under their names, or as the maps say (fields of sherd_tensor_map). Collective."""
        struct = self._lib.new("export_params", dtype=DTYPES.index(dtype), **self._maps(tensors), **values)
        self._lib.export_safetensors(self.handle, encoded(os.fspath(path)), ctypes.byref(struct))

    def import_safetensors(self, path: str | os.PathLike[str], tensors: Sequence[Mapping[str, Any]] | None = None,
                           may_miss: Sequence[str] = (), may_be_extra: Sequence[str] = (),
                           optional_prefix: str | None = None) -> None:
        """Reads weights, instead of filling or between steps. Collective."""
        struct = self._lib.new("import_params", optional_prefix=optional_prefix, **self._maps(tensors),
                               **_patterns(may_miss=may_miss, may_be_extra=may_be_extra))
        self._lib.import_safetensors(self.handle, encoded(os.fspath(path)), ctypes.byref(struct))

    def _maps(self, tensors: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
        if tensors is None:
            return {}
        array = (self._lib.types.structs["sherd_tensor_map"] * len(tensors))()
        for made, given in zip(array, tensors):
            self._lib.tensor_map_init(ctypes.byref(made))
            for name, value in given.items():
                if name == "shape":
                    made.ndim = len(value)
                    made.shape[: len(value)] = value
                else:
                    setattr(made, name, encoded(value))
        return {"tensors": array, "num_tensors": len(tensors)}

    # ----------------------------------------------------------------- end --

    def destroy(self) -> None:
        """Waits for work in flight and frees all memory: nothing of `data` and `address` may be touched again. Without this call
        it comes when nobody has the engine or memory of it any more, or at the end of the program."""
        self._end()
        self._handle = None

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: Any) -> None:
        self.destroy()


def _destroy(lib: Any, handle: int, process: int) -> None:
    """Of the process that made the engine, and not of a child that it has forked."""
    lib.interrupts.forget(handle)
    if os.getpid() == process:
        lib.engine_destroy(handle)


def _floats(address: Any, count: int) -> memoryview:
    array = ctypes.cast(address, ctypes.POINTER(ctypes.c_float * count)).contents
    return memoryview(array).cast("B").cast("f")


def _from_buffer(values: Any) -> Fill:
    whole = memoryview(values).cast("B").cast("f")

    def fill(first: int, out: memoryview) -> None:
        out[:] = whole[first: first + len(out)]

    return fill


def _float_pointer(values: Any, count: int) -> Any:
    """A pointer to the fp32 elements of a buffer; also of one that is read-only, which is then copied."""
    view = memoryview(values).cast("B")
    if view.nbytes < 4 * count:
        raise ValueError(f"a buffer of {view.nbytes} bytes does not hold {count} fp32 elements")
    if view.readonly:
        return (ctypes.c_float * count).from_buffer_copy(view)
    return (ctypes.c_float * count).from_buffer(view)


def _patterns(**lists: Sequence[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, patterns in lists.items():
        if patterns:
            fields[name] = (ctypes.c_char_p * len(patterns))(*(pattern.encode() for pattern in patterns))
            fields["num_" + name] = len(patterns)
    return fields

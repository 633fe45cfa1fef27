"""The engine: declares a model, acquires its units, steps, reads values and saves. sherd.h has the whole contract of each call."""
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
    """Numbers of the engine, under the names of their struct in sherd.h."""


class Engine:
    """An engine in `world`, made from `config` (a Config, the path of a JSON file, or a mapping with its keys).

    The program declares groups, units, parameters and passes, then calls `seal` and `fill`. Then it acquires and releases units
    in forward and backward, and calls `step` once per micro-batch. Every rank makes the same calls in the same order. A call that
    is not marked "Local" is collective, and blocks until the ranks that it needs have come.

    The engine holds a reference to the world and copies what it needs of the configuration. One thread at a time drives it.
    Errors are those of sherd.errors. InvalidError at creation names the key that is wrong, or that differs between ranks.
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
        """The sherd_engine * as a number, which the engine owns. ValueError after `destroy`."""
        if self._handle is None:
            raise ValueError("the engine is destroyed")
        return self._handle

    # -------------------------------------------------------- declarations --

    def add_group(self, name: str, **values: Any) -> int:
        """Declares a parameter group and returns its number. Local, before seal.

        `values` are lr, weight_decay, beta1, beta2, eps, exclude_1d (LAMB), and optimizer, the name of another optimizer
        ("Lamb"). What is not given comes from the configuration. Group 0 always exists and has every value of the configuration.
        """
        return self._add("group_add", self._lib.new("group_params", name=name, **values))

    def add_unit(self, name: str, **values: Any) -> int:
        """Declares a unit, whose parameters are gathered together, and returns its number. Local, before seal.

        `name` is unique in the engine. `values` are backward_uses (-1: backward may use the unit any number of times) and
        retain_grads, as in sherd_unit_params.
        """
        return self._add("unit_add", self._lib.new("unit_params", name=name, **values))

    def add_param(self, unit: int, name: str, shape: Sequence[int], **values: Any) -> int:
        """Declares a parameter of a unit, row-major with this shape, and returns its number. Local, before seal.

        `name` is unique in the engine. `values` are group (a number), frozen, atom_elems (ranks cut the parameter only at
        multiples of it), and dtype (a number of sherd_dtype; default: the engine's compute type), as in sherd_param_params.
        ValueError: the shape has too many dimensions.
        """
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
        """Declares that `unit` reads `param` of another unit, such as a tied embedding. Local, before seal.

        While `unit` is acquired, `param` is readable too, and in BACKWARD its gradient can be added to.
        """
        self._lib.unit_reads(self.handle, unit, param)

    def add_pass(self, which: int, unit: int, held: int = 0) -> None:
        """Declares `unit` as the next one in the order of the pass `which` (FORWARD, BACKWARD or EVAL). Local, before seal.

        `held`: the unit is released after this many further acquires of the pass. A pass without declarations has a default
        order: FORWARD the order of the units, BACKWARD its reverse, EVAL that of FORWARD.
        """
        if held:
            self._lib.pass_add_held(self.handle, which, unit, held)
        else:
            self._lib.pass_add(self.handle, which, unit)

    def bind(self, param: int, data: int, grad: int | None) -> None:
        """Binds the trainer's own memory to a parameter, by address, at stages 0 to 2. Local, before seal.

        `data` and `grad` point to row-major elements in the parameter's shape and type, on the engine's device. `grad` is None
        for a frozen parameter. Both stay the caller's and must outlive the engine. NotSupportedError at stage 3.
        """
        self._lib.param_bind(self.handle, param, data, grad)

    def describe_run(self, text: str) -> None:
        """Describes this run in the trainer's words (seed, data), in at most 255 bytes. Local, before seal.

        The text is stored with state on NVMe. An engine that resumes such state with another text says so in the log and in
        `info.resume_differs`.
        """
        self._lib.engine_describe_run(self.handle, text.encode())

    def set_stream(self, stream: int) -> None:
        """Makes a CUDA stream of the trainer's the compute stream. Local, before seal.

        `stream` is a handle; 0 is the legacy default stream. The stream must outlive the engine. NotSupportedError on the CPU.
        """
        self._lib.engine_set_stream(self.handle, stream)

    def seal(self) -> None:
        """Makes the plan, compares it with the plans of all ranks, and allocates all memory. Collective, blocking.

        InvalidError: the models of the ranks differ. OutOfMemoryError: the plan does not fit; the message has what is missing and
        the nearest setting that fits.
        """
        self._lib.engine_seal(self.handle)
        self.is_sealed = True

    # -------------------------------------------------------- first values --

    def fill(self, param: int, values: Fill | Any) -> None:
        """Fills a parameter with its first values. Local, after seal, before the first acquire.

        `values` is a buffer of fp32 with all elements of the parameter, row-major; or a function values(first_elem, out), which
        writes the elements from `first_elem` on to `out`, a writable memoryview of floats that is valid in that call only. The
        engine asks for ranges in any order, some of them twice, and every rank must give the same values. An exception of the
        function ends the call and is raised again.
        """
        function = values if callable(values) else _from_buffer(values)
        with Calls() as calls:
            made = calls.make("sherd_fill_fn", lambda first, count, out: function(first, _floats(out, count)))
            self._lib.param_fill(self.handle, param, made, None)

    def fill_from(self, param: int, root: int, values: Fill | Any | None) -> None:
        """Fills a parameter with values that only rank `root` has. Collective, blocking; otherwise as `fill`.

        The other ranks give None; what they give is ignored.
        """
        function = values if callable(values) or values is None else _from_buffer(values)
        with Calls() as calls:
            made = calls.make("sherd_fill_fn", function and (
                lambda first, count, out: function(first, _floats(out, count))))
            self._lib.param_fill_from(self.handle, param, root, made, None)

    # -------------------------------------------------------------- passes --

    def acquire(self, unit: int, which: int) -> None:
        """Makes the parameters of a unit readable, and for BACKWARD its gradients writable. `which`: FORWARD, BACKWARD or EVAL.

        Every rank acquires and releases the same units in the same order. The declared order is prefetched; another order is
        legal and slower. The call may wait for other ranks, the link or a drive. The gradients are zero at the first acquire of a
        micro-batch. A call that fails changes nothing. OutOfMemoryError: another unit has the unit's place in memory.
        """
        self._lib.unit_acquire(self.handle, unit, which)

    def release(self, unit: int, which: int) -> None:
        """Releases a unit. Its memory must not be used any more until it is acquired again.

        After the last release for BACKWARD the gradient is reduced over the ranks. If that fails, the next `step` fails too and
        drops the window. StateError: the unit is not acquired.
        """
        self._lib.unit_release(self.handle, unit, which)

    @contextlib.contextmanager
    def acquired(self, unit: int, which: int) -> Iterator[None]:
        """Acquires a unit for the body of a `with` statement, and releases it even after an exception."""
        self.acquire(unit, which)
        try:
            yield
        finally:
            self.release(unit, which)

    def data(self, param: int) -> Memory:
        """Returns the elements of a parameter, which are valid and may be read while its unit is acquired. Local.

        The optimizer alone changes parameters, so arrays that NumPy makes of it are read-only. StateError: the unit is not
        acquired.
        """
        return self._memory(param, self._lib.param_data(self.handle, param), is_readonly=True)

    def grad(self, param: int) -> Memory:
        """Returns the gradient of a parameter, in its shape and type, to be added to while its unit is acquired for BACKWARD.
        Local.

        StateError: it is not acquired for BACKWARD, or the parameter is frozen.
        """
        return self._memory(param, self._lib.param_grad(self.handle, param))

    def address(self, param: int) -> Memory:
        """Returns the memory where `data` is whenever the unit is acquired. Local, after seal.

        The address stays the same from seal to destroy, so a view may be made once and kept. While the unit is not acquired, the
        memory may hold other bytes. NotSupportedError with sherd.free_packing, where units have no fixed place.
        """
        return self._memory(param, self._lib.param_address(self.handle, param), is_readonly=True)

    def grad_address(self, param: int) -> Memory:
        """Returns the memory where `grad` is whenever the unit is acquired for BACKWARD. Local, after seal; otherwise as
        `address`."""
        return self._memory(param, self._lib.param_grad_address(self.handle, param))

    def _memory(self, param: int, address: int | None, is_readonly: bool = False) -> Memory:
        if not address:
            raise self._lib.error(self._lib.constants["SHERD_E_STATE"])
        return Memory(address, self._shapes[param], self._dtypes[param] or self._compute, self.device, self, is_readonly)

    @contextlib.contextmanager
    def evaluating(self, keep_units: int | None = None) -> Iterator[None]:
        """Begins an evaluation of many EVAL passes without a step, for the body of a `with` statement. Collective, blocking.

        At stage 3, the first `keep_units` units in the order of EVAL stay gathered between the passes. None stands for the value
        of the key sherd.eval_keep_units, which is also the largest one allowed. No unit may be acquired and no step prepared.
        Calls that change parameters are refused in the body (StateError).
        """
        struct = self._lib.new("eval_params", **({} if keep_units is None else {"keep_units": keep_units}))
        self._lib.eval_begin(self.handle, ctypes.byref(struct))
        try:
            yield
        finally:
            self._lib.eval_end(self.handle)

    # ---------------------------------------------------------------- step --

    @property
    def loss_scale(self) -> float:
        """The factor by which the trainer multiplies the loss before backward; 1 unless fp16 is on. It changes only at a
        boundary. Local."""
        return self._lib.loss_scale(self.handle)

    def step(self) -> Report:
        """Ends a micro-batch, after its backward; at a boundary it also updates the parameters. Collective, blocking.

        The report has the fields of sherd_step_report; `grad_norm`, the times and the bytes are filled at a boundary.
        """
        return self._report("step_report", "step")

    def prepare(self) -> Report:
        """Does the first half of `step`: reduces the gradients and takes their norm. Collective, blocking.

        If the report says is_boundary, `apply` or `discard` must follow. If not, nothing else follows.
        """
        return self._report("step_report", "step_prepare")

    def apply(self, group_lr: Sequence[float] | None = None, **values: Any) -> None:
        """Does the second half of `step`: the update. Collective, blocking.

        `group_lr` is a learning rate for each group, in the order of creation; NaN stands for the schedule's. `values` are
        grad_norm (to clip by), clip_coefficient and overflow (1: skip this update), which replace the engine's own. Every rank
        gives the same.
        """
        struct = self._lib.new("step_params", **values)
        if group_lr is not None:
            rates = (ctypes.c_double * len(group_lr))(*group_lr)
            struct.group_lr, struct.group_count = rates, len(group_lr)
        self._lib.step_apply(self.handle, ctypes.byref(struct))

    def grad_norms(self) -> list[float]:
        """Returns the L2 norm of each parameter's gradient, by parameter number. Collective, blocking.

        The gradient is the mean over the window, without the loss scale and before clipping. The bits are the same in every
        layout. The value is 0 for a frozen parameter and NaN where a gradient has an Inf or a NaN. It is called after `prepare`
        at a boundary and before `apply` or `discard` (else StateError).
        """
        out = (ctypes.c_double * len(self._shapes))()
        self._lib.grad_norms(self.handle, out, len(out))
        return list(out)

    def discard(self) -> None:
        """Drops the gradients of the window and releases all units; nothing else changes. Collective, blocking.

        Training continues with the first micro-batch of the window. It is the one call after an exception in forward, backward or
        an evaluation: the other ranks learn of it in their next collective call, which raises StateError there, and then call it
        too.
        """
        self._lib.step_discard(self.handle)

    def wait(self) -> Report:
        """Returns the complete report of the last boundary, with the times of work that the device has finished since. Blocking.

        It waits for the device, and is called before the next micro-batch. Local.
        """
        return self._report("step_report", "step_wait")

    def undo(self) -> None:
        """Returns to the state before the last update, parameters and counters included. Collective, blocking.

        It works once after an update. NotSupportedError: no spare generation of the state exists; one does where all of the state
        is on NVMe. StateError: there was no update yet, or it is undone already.
        """
        self._lib.step_undo(self.handle)

    def close_window(self) -> None:
        """Makes the next `step` or `prepare` a boundary, even if the window is short. Every rank calls it.

        The gradient is then the mean over the micro-batches that the window has.
        """
        self._lib.step_close_window(self.handle)

    def monitor_write(self, tag: str, value: float) -> None:
        """Writes a number such as the loss to the files of csv_monitor and tensorboard, under a tag like
        "Train/Samples/train_loss". Local.

        It does nothing on ranks other than 0, before seal, and where no monitor is on. InvalidError: the tag is not 1 to 127
        printable ASCII characters.
        """
        self._lib.monitor_write(self.handle, tag.encode(), value)

    def _report(self, struct: str, call: str) -> Report:
        made = self._lib.new(struct)
        getattr(self._lib, call)(self.handle, ctypes.byref(made))
        return Report(**fields_of(made))

    # ------------------------------------------------------------- looking --

    def plan(self, as_json: bool = False) -> str | dict[str, Any]:
        """Returns the plan of this rank as a table, or as the object that its JSON describes. Local; before seal too."""
        form = self._lib.constants["SHERD_PLAN_JSON" if as_json else "SHERD_PLAN_TABLE"]
        text = written(lambda write: self._lib.engine_plan(self.handle, form, write, None))
        return json.loads(text) if as_json else text

    def memory(self) -> Report:
        """Returns the bytes of this rank by purpose, planned and held, with the fields of sherd_memory_report. Local."""
        return self._report("memory_report", "engine_memory")

    def traffic(self) -> Report:
        """Returns the bytes that this rank moves between media, planned and counted, with the fields of sherd_traffic_report.
        Local.

        It waits for transfers of the drive that are under way.
        """
        return self._report("traffic_report", "engine_traffic")

    @property
    def info(self) -> Report:
        """Stage, compute type, batch sizes and counters, with the fields of sherd_engine_info. Local; before seal too."""
        return self._report("engine_info", "engine_query")

    def fingerprint(self, param: int | None = None) -> int:
        """Returns the fingerprint (64 bits) of all master weights, or of one parameter's. Collective, blocking.

        Equal weights have equal fingerprints on every layout; docs/numerics.md has the formula. It reads the weights once.
        """
        out = ctypes.c_uint64()
        if param is None:
            self._lib.engine_fingerprint(self.handle, ctypes.byref(out))
        else:
            self._lib.param_fingerprint(self.handle, param, ctypes.byref(out))
        return out.value

    # -------------------------------------------------------------- values --

    def read(self, param: int, value: str = "master", first: int = 0, count: int | None = None,
             out: Any = None) -> Any:
        """Returns elements [first, first + count) of a parameter's value as exact fp32, row-major. Collective, blocking.

        `value` is "master", "compute", "grad" (between `prepare` and `apply`) or a part of the optimizer's state such as
        "exp_avg"; docs/values.md lists them. `count` None: to the end of the parameter. `out` is a writable fp32 buffer of at
        least `count` elements; without it a new array of ctypes is returned. Every rank gives the same arguments. StateError: a
        unit is acquired.
        """
        count = self._count(param, first, count)
        out = (ctypes.c_float * count)() if out is None else out
        self._lib.param_read(self.handle, param, value.encode(), first, count, _float_pointer(out, count))
        return out

    def write(self, param: int, values: Any, value: str = "master", first: int = 0) -> None:
        """Writes elements of a value from `first` on, for the next updates to use. Collective, blocking, at a boundary.

        `values` is an fp32 buffer with the same elements on every rank (compared). What is written to "master" is also written,
        rounded, to what passes read. StateError: a unit is acquired or a window is open.
        """
        count = memoryview(values).nbytes // 4
        self._lib.param_write(self.handle, param, value.encode(), first, count, _float_pointer(values, count))

    def read_local(self, param: int, value: str = "master", out: Any = None) -> Any:
        """Returns the part of a value that this rank owns (`local` has its range), as `read` does. Local, blocking.

        After the first acquire. `out` is a writable fp32 buffer for at least that many elements.
        """
        first, count = self.local(param)
        out = (ctypes.c_float * count)() if out is None else out
        self._lib.param_read_local(self.handle, param, value.encode(), first, count, _float_pointer(out, count))
        return out

    def local(self, param: int) -> tuple[int, int]:
        """Returns the first element and the count of the range of a parameter that this rank owns. Local, after seal.

        At stages 1 to 3 no other rank has these elements, and the count may be 0. At stage 0 the range is the whole parameter.
        """
        first, count = ctypes.c_size_t(), ctypes.c_size_t()
        self._lib.param_local(self.handle, param, ctypes.byref(first), ctypes.byref(count))
        return first.value, count.value

    def _count(self, param: int, first: int, count: int | None) -> int:
        """The number of elements from `first` to the end, unless `count` is given."""
        if count is not None:
            return count
        elems = 1
        for extent in self._shapes[param]:
            elems *= extent
        return elems - first

    def keep_state(self, is_kept: bool = True) -> None:
        """Decides whether the state files on NVMe stay after a clean end, so that a later run can resume them. Local, after seal.

        It is for a program that was asked to stop. It has no effect where no state is on NVMe.
        """
        self._lib.engine_keep_state(self.handle, is_kept)

    def set_step(self, step: int, micro_step: int) -> None:
        """Sets the counters of a run that continues: updates done and micro-batches seen. Collective, blocking, at a boundary."""
        self._lib.engine_set_step(self.handle, step, micro_step)

    def set_blob(self, key: str, data: bytes | None, **values: Any) -> None:
        """Keeps a copy of the trainer's own bytes under `key`, to be saved with the state. None removes them. Local.

        `values`: is_per_rank=1 saves one blob for each rank; otherwise rank 0's blob is saved and all ranks find it after a load.
        All blobs of a rank have at most 1 MiB.
        """
        struct = self._lib.new("blob_params", **values)
        self._lib.blob_set(self.handle, key.encode(), data, len(data or b""), ctypes.byref(struct))

    def blob(self, key: str, **values: Any) -> bytes:
        """Returns the bytes that are kept under `key`. Local.

        `values`: is_per_rank=1, and rank=N for another rank's blob after a load. InvalidError: there is no blob of that key.
        """
        struct, length = self._lib.new("blob_params", **values), ctypes.c_size_t()
        self._lib.blob_get(self.handle, key.encode(), None, ctypes.byref(length), ctypes.byref(struct))
        data = ctypes.create_string_buffer(max(length.value, 1))
        self._lib.blob_get(self.handle, key.encode(), data, ctypes.byref(length), ctypes.byref(struct))
        return data.raw[: length.value]

    # --------------------------------------------------------------- files --

    def save(self, folder: str | os.PathLike[str], tag: str | None = None, progress: Progress | None = None,
             **values: Any) -> None:
        """Saves a checkpoint to folder/tag, on all ranks or on none. Collective, between steps; docs/checkpoints.md.

        `tag` None: "step-" and the number of updates. `progress(done_bytes, all_bytes)` is called with this rank's bytes, on this
        thread. `values` are is_async (1: return when the state is copied in memory) and keep_last (how many checkpoints stay). It
        replaces a checkpoint of that name in one moment; a failure leaves the earlier ones as they are. StateError: a window is
        open. InputOutputError: the folder or the drive.
        """
        with Calls() as calls:
            struct = self._lib.new("save_params", progress=calls.make("sherd_progress_fn", progress), **values)
            self._lib.checkpoint_save(self.handle, encoded(os.fspath(folder)), encoded(tag), ctypes.byref(struct))

    def wait_saved(self) -> Report:
        """Waits for an asynchronous save, raises its failure if there was one, returns its report. Collective while one runs."""
        return self._report("checkpoint_report", "checkpoint_wait")

    def load(self, folder: str | os.PathLike[str], tag: str | None = None, may_miss: Sequence[str] = (),
             may_be_extra: Sequence[str] = (), progress: Progress | None = None, weights_only: bool = False) -> None:
        """Loads the checkpoint folder/tag, to continue from it. Collective, blocking; after seal instead of filling, or between
        steps.

        The run that saved it may have had any world size, stage, tier and precision. `tag` None: the newest one. `may_miss` and
        `may_be_extra` are shell patterns of parameters that the checkpoint or this model may lack. With `weights_only` the
        optimizer begins anew and the counters stay. InvalidError: another model, or a damaged file, by its name and tensor.
        InputOutputError: there is no such checkpoint.
        """
        with Calls() as calls:
            struct = self._lib.new("load_params", progress=calls.make("sherd_progress_fn", progress),
                                   weights_only=weights_only, **_patterns(may_miss=may_miss, may_be_extra=may_be_extra))
            self._lib.checkpoint_load(self.handle, encoded(os.fspath(folder)), encoded(tag), ctypes.byref(struct))

    def export_safetensors(self, path: str | os.PathLike[str], dtype: str = "fp32",
                           tensors: Sequence[Mapping[str, Any]] | None = None, **values: Any) -> None:
        """Writes the master weights as safetensors, to a ".safetensors" file or a folder. Collective, blocking, between steps.

        `dtype` is "fp32", "bf16" or "fp16". `tensors` are mappings with the fields of sherd_tensor_map, in the order of the file;
        None: every parameter under its own name. `values` are other fields of sherd_export_params, such as max_file_bytes. Rank 0
        writes. The files of an earlier export stay until the new ones are complete. NumericError: a value is too large for
        `dtype`.
        """
        struct = self._lib.new("export_params", dtype=DTYPES.index(dtype), **self._maps(tensors), **values)
        self._lib.export_safetensors(self.handle, encoded(os.fspath(path)), ctypes.byref(struct))

    def import_safetensors(self, path: str | os.PathLike[str], tensors: Sequence[Mapping[str, Any]] | None = None,
                           may_miss: Sequence[str] = (), may_be_extra: Sequence[str] = (),
                           optional_prefix: str | None = None) -> None:
        """Reads weights from safetensors: a file, its index, or a folder. Collective, blocking; instead of filling, or between
        steps.

        The files are the same on every rank. `tensors` is as for `export_safetensors`. `may_miss` and `may_be_extra` are shell
        patterns of tensors that the file or the map may lack. `optional_prefix` is a prefix of the map's names that the names of
        the file may all lack. InvalidError names a tensor that is missing, extra, damaged, or of another shape or type.
        """
        struct = self._lib.new("import_params", optional_prefix=optional_prefix, **self._maps(tensors),
                               **_patterns(may_miss=may_miss, may_be_extra=may_be_extra))
        self._lib.import_safetensors(self.handle, encoded(os.fspath(path)), ctypes.byref(struct))

    def _maps(self, tensors: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
        """The fields `tensors` and `num_tensors` from mappings; none for None."""
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
        """Waits for work in flight and frees all memory. Local.

        What `data` and `address` returned must not be touched any more. Without this call it happens when nothing refers to the
        engine or its memory any more, or at the end of the program. May be called twice.
        """
        self._end()
        self._handle = None

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: Any) -> None:
        self.destroy()


def _destroy(lib: Any, handle: int, process: int) -> None:
    """Destroys the engine in the process that made it; in a forked child it does nothing."""
    lib.interrupts.forget(handle)
    if os.getpid() == process:
        lib.engine_destroy(handle)


def _floats(address: Any, count: int) -> memoryview:
    """A writable memoryview of `count` floats at an address."""
    array = ctypes.cast(address, ctypes.POINTER(ctypes.c_float * count)).contents
    return memoryview(array).cast("B").cast("f")


def _from_buffer(values: Any) -> Fill:
    """A fill function that copies from a buffer of all elements."""
    whole = memoryview(values).cast("B").cast("f")

    def fill(first: int, out: memoryview) -> None:
        out[:] = whole[first: first + len(out)]

    return fill


def _float_pointer(values: Any, count: int) -> Any:
    """A pointer to the fp32 elements of a buffer. A read-only buffer is copied."""
    view = memoryview(values).cast("B")
    if view.nbytes < 4 * count:
        raise ValueError(f"a buffer of {view.nbytes} bytes does not hold {count} fp32 elements")
    if view.readonly:
        return (ctypes.c_float * count).from_buffer_copy(view)
    return (ctypes.c_float * count).from_buffer(view)


def _patterns(**lists: Sequence[str]) -> dict[str, Any]:
    """The fields of a struct for lists of patterns; empty lists are left out."""
    fields: dict[str, Any] = {}
    for name, patterns in lists.items():
        if patterns:
            fields[name] = (ctypes.c_char_p * len(patterns))(*(pattern.encode() for pattern in patterns))
            fields["num_" + name] = len(patterns)
    return fields

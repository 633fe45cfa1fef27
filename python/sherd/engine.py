"""The class Engine: a model is declared to it, and its units are acquired, updated, read and saved.

Each method is a call of the C library, and include/sherd.h has the whole contract of that call.
"""
from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import warnings
import weakref
from types import SimpleNamespace
from typing import Any, Callable, Iterator, Mapping, Sequence

from sherd._callbacks import Calls, written
from sherd._library import encoded, fields_of, library
from sherd.config import Config
from sherd.errors import InvalidError
from sherd.memory import CPU, CUDA, DTYPES, Memory
from sherd.world import World

FORWARD, BACKWARD, EVAL = 0, 1, 2  # the kinds of a pass: sherd_pass
Fill = Callable[[int, memoryview], None]  # gets the first element of a range and the memory to write its values to
Progress = Callable[[int, int], None]  # gets the bytes of this rank that are done, and all of them


class Report(SimpleNamespace):
    """A report of the engine: the fields of a struct of sherd.h as attributes, with their names and units."""


class Engine:
    """An engine in `world`, made from `config`: a Config, which stays the caller's, or a path or mapping to make one from.

    Declare groups, units, parameters and passes; call seal; fill the parameters. Then, for each micro-batch, acquire and release
    the units in forward and backward, and call step. docs/guide.md explains these terms.

    Groups, units and parameters are known by the numbers that the add_ methods return, from 0 on in the order of declaration.
    Elements of a parameter are counted row-major from 0. The engine owns all memory that it gives out, and keeps `world` alive.
    One thread at a time drives an engine.

    Making an engine is collective and blocking: the ranks compare their configurations. Raises InvalidError (a value of the
    configuration is wrong, or the ranks' configurations differ), NotSupportedError, PeerLostError. After destroy, methods raise
    ValueError. PeerLostError and DeviceError, which any collective method may raise, are not listed with each method.
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
        self._process = os.getpid()
        # It runs at the end of the program too.
        self._end = weakref.finalize(self, _destroy, self._lib, out.value, self._process, warns=world.rank == 0)
        self._shapes: list[tuple[int, ...]] = []
        self._dtypes: list[str | None] = []
        self._activations: dict[int, int] = {}  # of units: bytes
        self.is_sealed = False
        self.is_evaluating = False  # inside evaluating()
        info = self.info
        self._compute = DTYPES[info.compute_dtype]
        self.device = (CPU, 0) if info.backend == "cpu" else (CUDA, world.device)  # of the parameters; DLPack's kind and number

    @property
    def handle(self) -> int:
        """The address of the sherd_engine. Raises ValueError after destroy."""
        if self._handle is None:
            raise ValueError("the engine is destroyed")
        return self._handle

    @property
    def is_open(self) -> bool:
        """Whether destroy was not called yet. Local."""
        return self._handle is not None

    # -------------------------------------------------------- declarations --
    #
    # Every rank makes the same declarations, before seal. Each call is local; seal compares the models of all ranks. Each raises
    # InvalidError for a wrong argument and StateError after seal, and where it takes `values`, TypeError for an unknown field.

    def add_group(self, name: str, **values: Any) -> int:
        """Adds a group: parameters that have rates of their own, or an optimizer of their own. Returns its number. Local.

        `values` are the fields of sherd_group_params: `lr`, `weight_decay`, `beta1`, `beta2`, `eps`, `exclude_1d` and `optimizer`
        (a name of optimizer.type, such as "Lamb"). Values that are missing are those of the configuration. Group 0 always exists.
        """
        return self._add("group_add", self._lib.new("group_params", name=name, **values))

    def add_unit(self, name: str, **values: Any) -> int:
        """Adds a unit: parameters that are gathered and released together. Returns its number. Local.

        `name` is unique in the engine. `values` are the fields of sherd_unit_params: `backward_uses` (0, or SHERD_USES_ANY, which
        is -1, where nobody knows how often backward uses the unit) and `retain_grads` (1: gradients stay readable until the step).
        """
        return self._add("unit_add", self._lib.new("unit_params", name=name, **values))

    def add_param(self, unit: int, name: str, shape: Sequence[int], **values: Any) -> int:
        """Adds a parameter of `unit`, with at most 8 dimensions. Returns its number. Local.

        `name` is unique in the engine. `values` are the fields of sherd_param_params: `group` (a number, default 0), `frozen` (1:
        no gradient, no state), `atom_elems` (ranks cut the parameter only at multiples of so many elements) and `dtype` (0: fp32
        whatever the engine computes in; default -1: the compute type). Raises ValueError for too many dimensions.
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
        """Makes a declaration and returns the number that the library gives."""
        out = ctypes.c_int32()
        getattr(self._lib, call)(self.handle, *before, ctypes.byref(struct), ctypes.byref(out))
        return out.value

    def add_reads(self, unit: int, param: int) -> None:
        """Declares that `unit` reads `param`, a parameter of another unit. Local.

        While `unit` is acquired, `param` is readable too, and in backward its gradient can be added to.
        """
        self._lib.unit_reads(self.handle, unit, param)

    def add_pass(self, which: int, unit: int, held: int = 0) -> None:
        """Declares `unit` as the next one in the order of the pass `which`: FORWARD, BACKWARD or EVAL. Local.

        A unit may be repeated. It is released after `held` further acquires of the pass. A pass without such a call has a default
        order: FORWARD the order of declaration, BACKWARD the reverse of FORWARD, EVAL that of FORWARD.
        """
        if held:
            self._lib.pass_add_held(self.handle, which, unit, held)
        else:
            self._lib.pass_add(self.handle, which, unit)

    def add_activation(self, unit: int, len_bytes: int, device: str | None = None) -> None:
        """Declares how many bytes the forward of `unit` leaves for its backward, of one micro-batch on one rank. Local.

        `device` says where they wait: "none" (on the device), "cpu" (host memory) or "nvme" (files); None: as sherd.activations.device
        says. The passes list the unit once for FORWARD and once for BACKWARD (docs/activations.md). Raises NotSupportedError (a unit
        with SHERD_USES_ANY, or an engine for inference; at seal, a unit that a pass lists more than once).
        """
        struct = self._lib.new("activation_params", len_bytes=len_bytes, device=device)
        self._lib.activation_add(self.handle, unit, ctypes.byref(struct))
        self._activations[unit] = len_bytes

    def bind(self, param: int, data: int, grad: int | None) -> None:
        """Binds memory of the trainer to a parameter, by its addresses, at stages 0 to 2. Local, before seal.

        `data` and `grad` have the parameter's shape and type, row-major, without padding; `grad` is None for a frozen parameter.
        Both stay the caller's and must outlive the engine, which alone writes `data`. Raises NotSupportedError at stage 3.
        """
        self._lib.param_bind(self.handle, param, data, grad)

    def describe_run(self, text: str) -> None:
        """Describes what makes this run different from others, such as its seed and data: at most 255 bytes. Local, before seal.

        State on a drive is stored with the text. A run that resumes state with another text warns, and info.resume_differs says so.
        """
        self._lib.engine_describe_run(self.handle, text.encode())

    def set_stream(self, stream: int) -> None:
        """Makes a CUDA stream of the trainer's, by its handle, the compute stream; 0 is the legacy default stream.

        Local, before seal. The stream stays the caller's and must outlive the engine. Raises NotSupportedError on the CPU.
        """
        self._lib.engine_set_stream(self.handle, stream)

    def seal(self) -> None:
        """Makes the plan, compares it with the other ranks' plans, and allocates all memory. Collective, blocking.

        Raises InvalidError (the ranks' models differ, or a value cannot be met), OutOfMemoryError (the message says what is
        missing and the nearest setting that fits), StateError (sealed already).
        """
        self._lib.engine_seal(self.handle)
        self.is_sealed = True

    # -------------------------------------------------------- first values --

    def fill(self, param: int, values: Fill | Any) -> None:
        """Gives `param` its initial values. Local, after seal and before the first acquire. Every rank has to give the same values.

        `values` is a contiguous fp32 buffer of all elements, or a function. `values(first_elem, out)` writes the values from
        element `first_elem` on to `out`, a writable memoryview of floats that is valid during the call; it is called on this
        thread, for any ranges, for some twice. What the function raises comes out of fill. A trainable parameter whose state was
        resumed keeps its values. Raises InvalidError, StateError, InputOutputError, TypeError (a buffer whose elements are not fp32),
        ValueError (a buffer that is too short).
        """
        function = values if callable(values) else _from_buffer(values)
        with Calls() as calls:
            made = calls.make("sherd_fill_fn", lambda first, count, out: function(first, _floats(out, count)))
            self._lib.param_fill(self.handle, param, made, None)

    def fill_from(self, param: int, root: int, values: Fill | Any | None) -> None:
        """Gives `param` the values that rank `root` has; the `values` of the other ranks are not used and may be None.

        On rank `root`, `values` is what it is in fill. Collective, blocking. Raises what fill raises, on all ranks (an error of Python,
        such as TypeError, is raised on `root`, and InvalidError on the others); InvalidError where the ranks' arguments differ;
        OutOfMemoryError.
        """
        # A buffer is looked at inside the call, so that the other ranks are notified of a wrong one.
        function = values if callable(values) or values is None else lambda first, out: _from_buffer(values)(first, out)
        with Calls() as calls:
            made = calls.make("sherd_fill_fn", function and (
                lambda first, count, out: function(first, _floats(out, count))))
            self._lib.param_fill_from(self.handle, param, root, made, None)

    # -------------------------------------------------------------- passes --

    def acquire(self, unit: int, which: int) -> None:
        """Acquires `unit` for the pass `which`: its parameters become readable and, for BACKWARD, its gradients writable.

        Collective: every rank acquires and releases the same units in the same order, to evaluate too. Blocks until the values are
        there, except on a GPU, where the compute stream may wait for them instead. A call that fails changes nothing. Raises
        StateError, OutOfMemoryError (a held unit has its place in memory; the message names it), InputOutputError (this rank's
        drive).
        """
        self._lib.unit_acquire(self.handle, unit, which)

    def release(self, unit: int, which: int) -> None:
        """Releases `unit`, also where the call fails. After its last use in backward, its gradient is reduced. Collective.

        Raises StateError (it is not acquired), InputOutputError; the next step then fails too and drops the window.
        """
        self._lib.unit_release(self.handle, unit, which)

    @contextlib.contextmanager
    def acquired(self, unit: int, which: int) -> Iterator[None]:
        """A context that acquires a unit and releases it at the end, also after an exception inside. Collective.

        Use it as `with engine.acquired(unit, FORWARD):`.
        """
        self.acquire(unit, which)
        try:
            yield
        finally:
            self.release(unit, which)

    def data(self, param: int) -> Memory:
        """Returns the parameter's elements, in its shape and type, to be read while its unit is acquired. Local, no copy.

        Raises StateError while neither its unit nor a unit that reads it is acquired.
        """
        return self._memory(param, self._lib.param_data(self.handle, param), is_readonly=True)

    def grad(self, param: int) -> Memory:
        """Returns the parameter's gradient, in its shape and type, to be added to while its unit is acquired for BACKWARD.

        It is zero at the first acquire of a micro-batch. Local, no copy. Raises StateError at any other time; with `retain_grads` of
        add_unit it can be read until the step too.
        """
        return self._memory(param, self._lib.param_grad(self.handle, param))

    def address(self, param: int) -> Memory:
        """Returns the memory that `data` returns whenever the unit is acquired. Its address is the same from seal to destroy.

        So a view can be made once and stored; while the unit is not acquired, its bytes may be another unit's. Local, after seal.
        Raises StateError, also where the parameter has no fixed address (sherd.free_packing).
        """
        return self._memory(param, self._lib.param_address(self.handle, param), is_readonly=True)

    def grad_address(self, param: int) -> Memory:
        """Returns the same for `grad`. Raises StateError for a frozen parameter too. Local, after seal."""
        return self._memory(param, self._lib.param_grad_address(self.handle, param))

    def activation_bytes(self, unit: int) -> int:
        """Returns the bytes that were declared for the activation of `unit`; 0: none. Local."""
        return self._activations.get(unit, 0)

    def put_activation(self, unit: int) -> Memory:
        """Returns the bytes into which the forward of `unit` writes what its backward will read, while it is acquired for FORWARD.

        They are on the engine's device, aligned to 4096 bytes, at an address that does not change. From the release on they are the
        engine's. A second call in a micro-batch replaces what the first one put. Local; blocks only for a drive. Raises StateError (the
        unit is not acquired or has no activation, or the units do not run in the order of the passes), InputOutputError.
        """
        return self._activation("activation_put", unit)

    def get_activation(self, unit: int) -> Memory:
        """Returns the same memory with the bytes that were put, to be read while `unit` is acquired for BACKWARD.

        The release ends them. Local; blocks only for a drive. Raises StateError (the unit is not acquired, or nothing was put in this
        micro-batch), InputOutputError (the bytes are lost: discard the window).
        """
        return self._activation("activation_get", unit)

    def _activation(self, call: str, unit: int) -> Memory:
        """Makes a call that gives a unit's activation, and returns its memory."""
        out = ctypes.c_void_p()
        getattr(self._lib, call)(self.handle, unit, ctypes.byref(out))
        return Memory(out.value or 0, (self._activations[unit],), "uint8", self.device, self)

    def _memory(self, param: int, address: int | None, is_readonly: bool = False) -> Memory:
        """Returns the memory at an address that the library gave. NULL is a failure, whose message the library keeps."""
        if not address:
            raise self._lib.error(self._lib.constants["SHERD_E_STATE"])
        return Memory(address, self._shapes[param], self._dtypes[param] or self._compute, self.device, self, is_readonly)

    @contextlib.contextmanager
    def evaluating(self, keep_units: int | None = None) -> Iterator[None]:
        """A context for an evaluation in many passes of EVAL over parameters that do not change, such as the generation of text.

        At stage 3, the first `keep_units` units of EVAL's order stay gathered between the passes; None: as many as
        sherd.eval_keep_units says. Inside, steps and writes raise StateError. Collective, blocking, with the same argument on
        every rank. No unit may be acquired and no step prepared; a window may be open. Raises StateError, InvalidError (more
        units than the plan has places for).
        """
        struct = self._lib.new("eval_params", **({} if keep_units is None else {"keep_units": keep_units}))
        self._lib.eval_begin(self.handle, ctypes.byref(struct))
        self.is_evaluating = True
        try:
            yield
        finally:
            self.is_evaluating = False
            self._lib.eval_end(self.handle)

    # ---------------------------------------------------------------- step --

    @property
    def loss_scale(self) -> float:
        """The factor by which the trainer multiplies the loss before backward; 1 unless fp16 is on. Local."""
        return self._lib.loss_scale(self.handle)

    def group_lr(self, group: int, step: int) -> float:
        """Returns the learning rate that the configuration gives a group in update number `step`, which counts from 1. Local.

        It is the schedule's rate, or the group's own without a schedule; rates that were passed to `apply` are ignored. NaN for a group or
        step that there is not, and where optimizer.type is none.
        """
        return self._lib.group_lr(self.handle, group, step)

    def step(self) -> Report:
        """Ends a micro-batch; call it once for each, after its backward. Returns the report (sherd_step_report).

        At the boundary it takes the norm, clips, updates and publishes. Collective, blocking. Raises StateError (also where the
        ranks acquired different units), InputOutputError, NumericError ("deterministic": a gradient is too large for its sum).
        """
        return self._report("step_report", "step")

    def step_queue(self) -> None:
        """Does what step does, and returns when the norm is known and the update is queued (sherd_step_queue). Collective, blocking.

        `wait` gives the report. An acquire waits for the update of its unit, and every call that reads or changes state for all of it.
        Below stage 3, memory of parameters is not to be read before `wait`. All ranks call the same of step and step_queue. Raises what
        step raises; a failure of the update itself (InputOutputError) comes with the next call that waits for it.
        """
        self._lib.step_queue(self.handle)

    def prepare(self) -> Report:
        """Does the first half of step: all that comes before the update. Returns the report. Collective, blocking.

        Where the report has is_boundary 1, apply or discard must follow; otherwise nothing follows.
        """
        return self._report("step_report", "step_prepare")

    def apply(self, group_lr: Sequence[float] | None = None, group_beta1: Sequence[float] | None = None,
              group_weight_decay: Sequence[float] | None = None, **values: Any) -> None:
        """Does the second half of step, the update, after prepare at a boundary. Collective, blocking.

        `group_lr` has one learning rate for each group, in the order of creation (NaN: the schedule's); None: the schedule's for
        all. `group_beta1` (or the momentum) and `group_weight_decay` are such lists too, for what the groups have otherwise. `values` are
        other fields of sherd_step_params, which replace what the engine found: `grad_norm` and `clip_coefficient` (NaN: the engine's
        own), `overflow` (1: treat the step as one that overflowed), `is_queued` (1: return when the update is queued, as step_queue
        does). Raises InvalidError, StateError, ValueError (lists of different lengths).
        """
        lists = {"group_lr": group_lr, "group_beta1": group_beta1, "group_weight_decay": group_weight_decay}
        given = {name: (ctypes.c_double * len(listed))(*listed) for name, listed in lists.items() if listed is not None}
        counts = {len(listed) for listed in given.values()}
        if len(counts) > 1:
            raise ValueError(f"{', '.join(given)} have different lengths: each has one number for each group")
        struct = self._lib.new("step_params", **values)
        for name, listed in given.items():
            setattr(struct, name, listed)
            struct.group_count = len(listed)
        self._lib.step_apply(self.handle, ctypes.byref(struct))

    def grad_norms(self) -> list[float]:
        """Returns the L2 norm of each parameter's mean gradient, unscaled and before clipping, by the parameter's number.

        It is 0 for a frozen parameter, and NaN where the gradient has an Inf or a NaN. Call it between prepare at a boundary and
        apply or discard. Collective, blocking. Raises StateError, InputOutputError.
        """
        out = (ctypes.c_double * len(self._shapes))()
        self._lib.grad_norms(self.handle, out, len(out))
        return list(out)

    def discard(self) -> None:
        """Drops the window: its gradients are lost, and units that are still acquired count as released. Nothing else changes.

        Call it instead of apply, or after an exception in forward, backward or an evaluation. Collective, blocking: it returns
        when all ranks have come, wherever each of them stopped. Raises StateError (before seal, or after an update that failed).
        """
        self._lib.step_discard(self.handle)

    def wait(self) -> Report:
        """Waits for the device's work and returns the complete report of the last boundary. Local.

        Behind step_queue it also waits for the update: the first call before the next boundary is then collective. Raises StateError before
        seal, and the failure of that update (InputOutputError).
        """
        return self._report("step_report", "step_wait")

    def undo(self) -> None:
        """Returns to the state before the last update, with parameters and counters. Collective, blocking.

        Raises NotSupportedError (there is no spare generation; one exists where all state rests on NVMe), StateError (there was no
        update, or it is undone already), InputOutputError.
        """
        self._lib.step_undo(self.handle)

    def close_window(self) -> None:
        """Makes the next step or prepare a boundary, even if the window is short. Local; call it on all ranks alike."""
        self._lib.step_close_window(self.handle)

    def skip_micro_batch(self) -> None:
        """Takes part in a micro-batch for which this rank has no data, in place of forward and backward; step follows, as on all ranks.

        The mean of the window is over the micro-batches that had data. Local, but other ranks may wait for it as for an acquire. Raises
        StateError (the micro-batch has begun, or a unit is acquired), and what acquire and release raise.
        """
        self._lib.micro_batch_skip(self.handle)

    def weigh_micro_batch(self, weight: int) -> None:
        """Gives the weight of this rank's micro-batch, such as its number of tokens: at most sherd.most_weight, which must be set.

        The mean of the window is then the sum of weight times gradient, divided by the sum of weights. Call it before the first acquire for
        BACKWARD. Local. Raises StateError (the key is not set, or backward has begun), InvalidError.
        """
        if not isinstance(weight, int) or not 0 <= weight < 2**64:
            raise InvalidError(f"a weight is a whole number from 0 to below 2**64, not {weight}")
        self._lib.micro_batch_weight(self.handle, weight)

    def monitor_write(self, tag: str, value: float) -> None:
        """Writes a number of the trainer's to the files of csv_monitor and tensorboard, at the samples that were seen so far.

        `tag` is its name, such as "Train/Samples/train_loss": 1 to 127 printable ASCII characters. Does nothing on ranks other
        than 0, before seal, and where neither monitor is on. Local; writes a file. Raises InvalidError, StateError.
        """
        self._lib.monitor_write(self.handle, tag.encode(), value)

    def _report(self, struct: str, call: str) -> Report:
        """Makes a call that fills a struct, and returns its fields."""
        made = self._lib.new(struct)
        getattr(self._lib, call)(self.handle, ctypes.byref(made))
        return Report(**fields_of(made))

    # ------------------------------------------------------------- looking --

    def plan(self, as_json: bool = False) -> str | dict[str, Any]:
        """Returns the plan of this rank: a table as text, or with `as_json` the plan's JSON as a dict.

        Before seal it is made from the declarations so far. Local.
        """
        form = self._lib.constants["SHERD_PLAN_JSON" if as_json else "SHERD_PLAN_TABLE"]
        text = written(lambda write: self._lib.engine_plan(self.handle, form, write, None))
        return json.loads(text) if as_json else text

    def memory(self) -> Report:
        """Returns the bytes of this rank's memory by purpose, as planned and as held now (sherd_memory_report). Local."""
        return self._report("memory_report", "engine_memory")

    def traffic(self) -> Report:
        """Returns the bytes that this rank moves between media, as planned and as counted since seal (sherd_traffic_report).

        Local. It waits for the drive's transfers that are under way.
        """
        return self._report("traffic_report", "engine_traffic")

    @property
    def info(self) -> Report:
        """The stage, compute type, batch sizes, counters and more (sherd_engine_info); before seal too. Local."""
        return self._report("engine_info", "engine_query")

    def fingerprint(self, param: int | None = None) -> int:
        """Returns the fingerprint of all master weights, or of those of one parameter: a number of 64 bits. Collective, blocking.

        Two runs with the same master weights, in any layout, have the same fingerprint (docs/numerics.md).
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
        """Returns elements [first, first + count) of a value of a parameter as exact fp32; `count` None: to its end.

        `value` is "master", "compute", "grad" (of a prepared step) or a part of the optimizer's state, such as "exp_avg"
        (docs/values.md). The values go to `out`, a writable and contiguous fp32 buffer of the caller's, which is returned; without
        it, to a new array of ctypes. Collective, blocking, with the same arguments on every rank; no unit may be acquired. Raises
        InvalidError (there is no such value or range, or the ranks' arguments differ), StateError, OutOfMemoryError,
        InputOutputError, ValueError (`out` is too small, or read-only), TypeError (`out` is not fp32).
        """
        count = self._count(param, first, count)
        out = (ctypes.c_float * count)() if out is None else out
        self._lib.param_read(self.handle, param, value.encode(), first, count, _float_pointer(out, count, is_written=True))
        return out

    def write(self, param: int, values: Any, value: str = "master", first: int = 0) -> None:
        """Writes a contiguous fp32 buffer to the elements of a value of a parameter, from element `first` on, on all ranks.

        "master" changes the master weights and, rounded, what passes read; "compute" gives both the rounded values; a part of the
        state changes alone. Collective, blocking, with the same arguments and values on every rank; at a boundary, where no unit
        is acquired. Raises what read raises, also for `values`.
        """
        count = _fp32_bytes(values).nbytes // 4
        self._lib.param_write(self.handle, param, value.encode(), first, count, _float_pointer(values, count))

    def read_local(self, param: int, value: str = "master", out: Any = None) -> Any:
        """Returns the elements of a value that this rank owns (`local` gives the range), as exact fp32.

        `value` and `out` are as in read. Local, blocking; after the first acquire. Raises what read raises.
        """
        first, count = self.local(param)
        out = (ctypes.c_float * count)() if out is None else out
        self._lib.param_read_local(self.handle, param, value.encode(), first, count, _float_pointer(out, count, is_written=True))
        return out

    def local(self, param: int) -> tuple[int, int]:
        """Returns the first element and the count of the range of a parameter that this rank owns. Local, after seal.

        At stages 1 to 3 no other rank owns an element of it, and the count may be 0; at stage 0 every rank owns all elements.
        """
        first, count = ctypes.c_size_t(), ctypes.c_size_t()
        self._lib.param_local(self.handle, param, ctypes.byref(first), ctypes.byref(count))
        return first.value, count.value

    def _count(self, param: int, first: int, count: int | None) -> int:
        """Returns `count`, or how many elements there are from `first` to the parameter's end."""
        if count is not None:
            return count
        elems = 1
        for extent in self._shapes[param]:
            elems *= extent
        return elems - first

    def keep_state(self, is_kept: bool = True) -> None:
        """Decides whether a clean end leaves the state files on NVMe, so that the run can continue later. Local.

        It is for a program that was asked to stop. Where one rank keeps its state, all do. Raises StateError before seal.
        """
        self._lib.engine_keep_state(self.handle, is_kept)

    def set_step(self, step: int, micro_step: int) -> None:
        """Sets the counters of a run that continues here: updates done, and micro-batches seen. Collective, blocking.

        After seal: before the first acquire, or at a boundary. Raises InvalidError (below 0, or the ranks' arguments differ),
        StateError, InputOutputError.
        """
        self._lib.engine_set_step(self.handle, step, micro_step)

    def set_blob(self, key: str, data: bytes | None, **values: Any) -> None:
        """Keeps a copy of the trainer's bytes under `key`, to be saved with the state. None removes them. Local, at any time.

        `values`: `is_per_rank` (1: each rank has its own; 0, the default: rank 0's are saved, and all ranks find them after a
        load), `is_large` (1: of any size; checkpoints have it, and state on NVMe does not). All blobs of a rank that are not large
        have at most 1 MiB together. Raises InvalidError (the key, or too many bytes), OutOfMemoryError.
        """
        struct = self._lib.new("blob_params", **values)
        self._lib.blob_set(self.handle, key.encode(), data, len(data or b""), ctypes.byref(struct))

    def blob(self, key: str, **values: Any) -> bytes:
        """Returns the bytes that are stored under `key`. Local. Raises InvalidError where there are none.

        `values`: `is_per_rank`, and with it `rank` (whose bytes; default: this rank's).
        """
        struct, length = self._lib.new("blob_params", **values), ctypes.c_size_t()
        self._lib.blob_get(self.handle, key.encode(), None, ctypes.byref(length), ctypes.byref(struct))
        data = ctypes.create_string_buffer(max(length.value, 1))
        self._lib.blob_get(self.handle, key.encode(), data, ctypes.byref(length), ctypes.byref(struct))
        return data.raw[: length.value]

    # --------------------------------------------------------------- files --

    def save(self, folder: str | os.PathLike[str], tag: str | None = None, progress: Progress | None = None,
             **values: Any) -> None:
        """Saves parameters, optimizer state, counters and blobs as the checkpoint folder/tag (docs/checkpoints.md).

        Without a tag it is "step-" and the number of updates. `progress` is called on this thread. `values`: `is_async` (1: the
        call returns when the state is copied in memory) and `keep_last` (how many complete checkpoints stay in the folder; 0: all);
        the configuration has their defaults. With `may_be_in_window` 1 the call may come inside of a window, whose gradients are not
        in the checkpoint and stay in the engine. Collective, blocking, else between steps, with the same names on every rank. A
        failure leaves earlier checkpoints as they are. Raises StateError (a window is open), InvalidError, InputOutputError,
        NotSupportedError, OutOfMemoryError.
        """
        with Calls() as calls:
            struct = self._lib.new("save_params", progress=calls.make("sherd_progress_fn", progress), **values)
            self._lib.checkpoint_save(self.handle, encoded(os.fspath(folder)), encoded(tag), ctypes.byref(struct))

    def wait_saved(self) -> Report:
        """Waits until an asynchronous save is complete, and returns the report of the last save or load. Collective while one runs.

        The report is sherd_checkpoint_report. Raises the failure of the save, such as InputOutputError.
        """
        return self._report("checkpoint_report", "checkpoint_wait")

    def load(self, folder: str | os.PathLike[str], tag: str | None = None, may_miss: Sequence[str] = (),
             may_be_extra: Sequence[str] = (), progress: Progress | None = None, weights_only: bool = False) -> None:
        """Loads the checkpoint folder/tag to continue from it; without a tag, the one that folder/latest names.

        The run that saved it may have had any number of ranks, stage, device and precision. `may_miss` and `may_be_extra` are
        patterns of names (fnmatch): of parameters that the checkpoint may lack, and of those that this model may lack. With
        `weights_only` the optimizer's state begins at zero and the counters stay. `progress` is called on this thread. Collective,
        blocking; after seal, instead of filling, or between steps. Raises StateError (a window is open), InputOutputError (there
        is no checkpoint), InvalidError (another model, or damaged).
        """
        with Calls() as calls:
            struct = self._lib.new("load_params", progress=calls.make("sherd_progress_fn", progress),
                                   weights_only=weights_only, **_patterns(may_miss=may_miss, may_be_extra=may_be_extra))
            self._lib.checkpoint_load(self.handle, encoded(os.fspath(folder)), encoded(tag), ctypes.byref(struct))

    def export_safetensors(self, path: str | os.PathLike[str], dtype: str = "fp32",
                           tensors: Sequence[Mapping[str, Any]] | None = None, **values: Any) -> None:
        """Writes the weights as safetensors, rounded once to `dtype` ("fp32", "bf16" or "fp16").

        A path that ends in ".safetensors" is one file, any other path a folder. `tensors` are dicts of the fields of
        sherd_tensor_map, one for each tensor in the order of the file; None: every parameter under its own name and shape.
        `values`: `max_file_bytes` (most data in one file of a folder). Collective, blocking, between steps; rank 0 writes. Raises
        InvalidError (a map that does not fit), InputOutputError, NumericError (a value is too large for `dtype`), StateError,
        OutOfMemoryError.
        """
        struct = self._lib.new("export_params", dtype=DTYPES.index(dtype), **self._maps(tensors), **values)
        self._lib.export_safetensors(self.handle, encoded(os.fspath(path)), ctypes.byref(struct))

    def import_safetensors(self, path: str | os.PathLike[str], tensors: Sequence[Mapping[str, Any]] | None = None,
                           may_miss: Sequence[str] = (), may_be_extra: Sequence[str] = (),
                           optional_prefix: str | None = None) -> None:
        """Reads weights from safetensors: a file, a folder or an index. It must be the same on every rank.

        `tensors` are as in export_safetensors. `may_miss` and `may_be_extra` are patterns of names (fnmatch): of tensors that the
        file may lack, and of those that `tensors` may lack. The file's names may all lack `optional_prefix`. Collective, blocking;
        before the first acquire instead of filling, or between steps. Raises InvalidError (tensors missing, extra or of another
        shape, or a damaged file), InputOutputError, StateError, OutOfMemoryError.
        """
        struct = self._lib.new("import_params", optional_prefix=optional_prefix, **self._maps(tensors),
                               **_patterns(may_miss=may_miss, may_be_extra=may_be_extra))
        self._lib.import_safetensors(self.handle, encoded(os.fspath(path)), ctypes.byref(struct))

    def _maps(self, tensors: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
        """Returns the fields `tensors` and `num_tensors` of a struct for a list of maps; none for None."""
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
        """Waits for work in flight and frees all memory: nobody may touch again what `data` and `address` returned.

        It first completes an asynchronous save, as wait_saved does, which is collective while the save runs. The failure of such
        a save is raised after all memory is freed. While an exception is handled (`except`, `finally`, the end of a `with` block),
        it does not wait, since other ranks may never come: a save that runs is then dropped, with a warning.

        Otherwise not collective, but with state on NVMe a rank waits for the others, for 10 seconds at most. May be called twice.
        Without this call the engine ends when nothing refers to it or to a Memory of it any more, or at the end of the program.
        That end waits for no save either, and warns.
        """
        try:
            if self._end.alive and self._process == os.getpid() and sys.exc_info()[0] is None:
                self.wait_saved()
        finally:
            self._end()
            self._handle = None

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: Any) -> None:
        self.destroy()


def _destroy(lib: Any, handle: int, process: int, warns: bool) -> None:
    """Destroys an engine in the process that made it, and does nothing in a child that this process has forked.

    With `warns` it warns of an asynchronous save that is dropped. It does not wait for the save, since this may be the end of a
    program that has failed on this rank alone.
    """
    lib.interrupts.forget(handle)
    if os.getpid() != process:
        return
    report = lib.new("checkpoint_report")
    lib.checkpoint_query(handle, ctypes.byref(report))
    lib.engine_destroy(handle)
    if report.is_running and warns:
        warnings.warn("sherd: the engine ended before its last asynchronous save was complete, and this checkpoint is lost: at the end "
                      "of a program, call engine.wait_saved() or engine.destroy() on all ranks", stacklevel=3)


def _floats(address: Any, count: int) -> memoryview:
    """Returns `count` floats at an address as a writable memoryview, without a copy."""
    array = ctypes.cast(address, ctypes.POINTER(ctypes.c_float * count)).contents
    return memoryview(array).cast("B").cast("f")


def _from_buffer(values: Any) -> Fill:
    """Returns a function that fills ranges from an fp32 buffer of all elements."""
    whole = _fp32_bytes(values).cast("f")

    def fill(first: int, out: memoryview) -> None:
        out[:] = whole[first: first + len(out)]

    return fill


def _fp32_bytes(values: Any) -> memoryview:
    """Returns the bytes of a buffer of fp32 elements. Raises TypeError for elements of another type, whose bits would be misread."""
    view = memoryview(values)
    if view.format.lstrip("@=<") not in ("f", "B", "b", "c"):
        raise TypeError(f"values are a buffer of fp32 elements (or of their bytes), and this one has the format {view.format!r}")
    return view.cast("B")


def _float_pointer(values: Any, count: int, is_written: bool = False) -> Any:
    """Returns a pointer to the first `count` fp32 elements of a buffer, or of a copy of it where the buffer is read-only.

    Raises ValueError where the buffer is smaller, or is read-only and would be written, and TypeError as _fp32_bytes.
    """
    view = _fp32_bytes(values)
    if view.nbytes < 4 * count:
        raise ValueError(f"a buffer of {view.nbytes} bytes does not hold {count} fp32 elements")
    if view.readonly and is_written:
        raise ValueError("values cannot be read into a buffer that is read-only")
    if view.readonly:
        return (ctypes.c_float * count).from_buffer_copy(view)
    return (ctypes.c_float * count).from_buffer(view)


def _patterns(**lists: Sequence[str]) -> dict[str, Any]:
    """Returns the fields of a struct for lists of patterns, with their counts."""
    fields: dict[str, Any] = {}
    for name, patterns in lists.items():
        if patterns:
            fields[name] = (ctypes.c_char_p * len(patterns))(*(pattern.encode() for pattern in patterns))
            fields["num_" + name] = len(patterns)
    return fields

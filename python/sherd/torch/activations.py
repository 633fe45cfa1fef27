"""Moves what autograd saves in the forward of a unit to the unit's activation, which is memory of the engine (docs/activations.md).

Torch asks hooks (torch.autograd.graph.saved_tensors_hooks) for what a node of its graph is to have in place of a tensor. Here that is a
Saved. It has a place in the activation, to which the bytes are copied, or the tensor itself. Nobody else has the tensor as a rule, so its
memory is free when the module's forward has gone on. The trace (trace.py) runs the same code without memory, and so finds how many bytes
each scope takes.

Whole storages are copied, so several tensors over one storage take its bytes once, and each has the strides that it had: an operation
gives the same bits on the copy as on the tensor.
"""
from __future__ import annotations

import fnmatch
import math
import weakref
from typing import Any, Callable, Iterable, Mapping, Sequence, Union

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from sherd.engine import BACKWARD, FORWARD, Engine
from sherd.errors import StateError
from sherd.torch import leftovers
from sherd.torch.hooks import current_task, tensors_in
from sherd.torch.say import warn
from sherd.torch.tensors import Driver, device_of, tensor_over
from sherd.torch.units import Division, Scope

Choice = Union[None, Sequence[str], Mapping[str, Union[str, None]]]  # of initialize(activations=): which units, and where they wait
Declared = tuple[str, int, int]  # a scope's name, the unit whose activation it uses, and how many bytes the trace has found
LEAST_BYTES = 4096  # smaller tensors stay where they are: a copy costs more than their memory
ALIGN_BYTES = 512  # of each storage in an activation, as torch's own allocators align theirs or better
MOST_STORAGE = 8  # a tensor that is a smaller part of its storage than 1 / MOST_STORAGE stays, and keeps the storage
MOST_SCOPES = 2  # what more scopes save, such as a mask of all blocks, stays: one copy of it is enough

autograd = torch._C._autograd


class Saved:
    """What a node of autograd has in place of a tensor that it has saved.

    `record` is None while `tensor` is the tensor itself, without its grad_fn: that may be the node, which would keep itself. Otherwise the
    tensor's storage lies at `offset` of the record's memory.
    """

    __slots__ = ("tensor", "version", "record", "offset", "dtype", "shape", "stride", "first", "__weakref__")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor: torch.Tensor | None = tensor if tensor.grad_fn is None else tensor.detach()
        self.version = tensor._version
        self.record: Any = None

    def move(self, record: Any, offset: int) -> None:
        """Takes the place in a record in exchange for the tensor."""
        tensor = self.tensor
        self.dtype, self.shape, self.stride, self.first = tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()
        self.record, self.offset, self.tensor = record, offset, None

    def read(self) -> torch.Tensor:
        """Returns the tensor that was saved, or one over the record's memory. Torch calls it in backward."""
        if self.record is not None:
            return self.record.read(self)
        if self.tensor._version != self.version:  # torch leaves it to its hooks to look
            raise RuntimeError(f"one of the variables needed for gradient computation has been modified by an inplace operation: "
                               f"[{self.tensor.type()} {list(self.tensor.shape)}] is at version {self.tensor._version}; expected "
                               f"version {self.version} instead")
        return self.tensor


class Record:
    """What one forward has put into an activation. `place` is the unit, or in the trace the name of the scope."""

    def __init__(self, place: Any, room_bytes: float) -> None:
        self.place, self.room_bytes = place, room_bytes
        self.used_bytes = 0
        self.is_open = True  # the forward of the unit has not ended
        # Of each storage, with torch's count of writes to it: its offset. The reference keeps the number of the storage from another one.
        self._offsets: dict[tuple[int, int], tuple[int, StorageWeakRef]] = {}

    def offset_of(self, tensor: torch.Tensor) -> int | None:
        """Returns where the storage of a tensor lies, as it is now; None: it was not copied."""
        found = self._offsets.get((tensor.untyped_storage()._cdata, tensor._version))
        return None if found is None else found[0]

    def take(self, tensor: torch.Tensor) -> int | None:
        """Takes memory for the storage of a tensor. Returns its offset; None: there is too little."""
        storage, offset = tensor.untyped_storage(), self.used_bytes
        if offset + storage.nbytes() > self.room_bytes:
            return None
        self.used_bytes += (storage.nbytes() + ALIGN_BYTES - 1) // ALIGN_BYTES * ALIGN_BYTES
        self._offsets[storage._cdata, tensor._version] = offset, StorageWeakRef(storage)
        return offset

    def close(self) -> None:
        """Ends the forward: nothing is put any more."""
        self.is_open = False
        self._offsets.clear()

    def note(self, saved: Saved) -> None:
        """Notes that a node of autograd will read from the record, whose tensor it has until now."""

    def read(self, saved: Saved) -> torch.Tensor:
        raise NotImplementedError


# ------------------------------------------------------------------ forward --

class Saver:
    """The hooks of saved tensors around the forward of a model, and the rule by which they move a tensor or leave it.

    Its subclasses have the memory. A saver belongs to one hooks.Hooks, which notifies it of the progress of forward and backward.
    """

    def __init__(self, model: nn.Module, device: torch.device, awake: Iterable[torch.Tensor] = ()) -> None:
        self._model, self._device = model, device
        self._awake = {tensor.untyped_storage()._cdata for tensor in awake}  # storages of parameters while their units are acquired
        self._scopes: list[Scope] = []  # whose forward runs, outer before inner
        self._own: set[int] = set()  # storages of parameters and buffers, which stay
        self._users: dict[int, tuple[StorageWeakRef, set[str]]] = {}  # of storages: the scopes for which this forward has copied it
        self._waiting: dict[int, weakref.ref[Saved]] = {}  # of storages: what was saved last where there is no activation
        self.stayed_bytes = 0  # what has found no room in the last forward
        me = weakref.ref(self)  # the model may store a graph
        self._hooks = (lambda tensor: pack(me(), tensor), Saved.read)

    def begin(self) -> None:
        """Begins a forward with gradients. Where the script has hooks of its own around it, these stay alone. Local."""
        self._scopes.clear()
        self.stayed_bytes = 0
        if not autograd._saved_tensors_hooks_is_enabled() or autograd._top_saved_tensors_default_hooks(False) is not None:
            return
        self._own = self._awake | {tensor.untyped_storage()._cdata for module in self._model.modules()
                     for tensor in (*module._parameters.values(), *module._buffers.values())
                     if tensor is not None and tensor.layout is torch.strided}
        self._forget_forward()
        autograd._push_saved_tensors_default_hooks(*self._hooks)

    def end(self) -> None:
        """Ends the forward that begin() has begun, wherever it is. Local."""
        while self._is_on_top():
            autograd._pop_saved_tensors_default_hooks()
        self._scopes.clear()
        self._forget_forward()

    def _is_on_top(self) -> bool:
        top = autograd._top_saved_tensors_default_hooks(False)
        return top is not None and top[0] is self._hooks[0]

    def _forget_forward(self) -> None:
        self._users.clear()
        self._waiting.clear()

    def enter(self, scope: Scope, given: Any) -> None:
        """Begins the forward of a scope whose units are acquired, with the arguments that its module is given. Local.

        Inside of torch.utils.checkpoint, what the scope saves is computed again, and just before it the checkpoint has saved what the scope
        is given. The scope's activation takes that.
        """
        self._scopes.append(scope)
        if not self._waiting or self.place_of(scope) is None or self._is_on_top():
            return
        for tensor in tensors_in(given):
            last = self._waiting.pop(tensor.untyped_storage()._cdata, None) if tensor.layout is torch.strided else None
            saved = None if last is None else last()
            if saved is not None and saved.tensor._version == saved.version:
                self._move(saved, scope)

    def leave(self) -> None:
        """Ends the forward of the innermost scope. Local."""
        if self._scopes:
            self._scopes.pop()

    def pack(self, tensor: torch.Tensor) -> Saved:
        """Returns what a node of autograd has in place of a tensor."""
        saved = Saved(tensor)
        if self._scopes and current_task() < 0 and self._may_move(tensor):
            scope = self._scopes[-1]
            if self.place_of(scope) is None:
                self._waiting[tensor.untyped_storage()._cdata] = weakref.ref(saved)
            else:
                self._move(saved, scope)
        return saved

    def _may_move(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is one of those that are moved, by what it is."""
        if type(tensor) is not torch.Tensor and not leftovers.is_left(tensor):
            return False
        if tensor.layout is not torch.strided or tensor.device != self._device or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
            return False
        storage = tensor.untyped_storage()
        elems = math.prod(length for length, stride in zip(tensor.shape, tensor.stride()) if stride)  # which lie in memory once
        return (storage.nbytes() >= LEAST_BYTES and tensor.numel() * elems > 0 and storage._cdata not in self._own
                and storage.nbytes() <= MOST_STORAGE * elems * tensor.element_size())

    def _move(self, saved: Saved, scope: Scope) -> None:
        """Copies a tensor to the place of a scope, unless its storage is there already. Without room it stays."""
        tensor, place = saved.tensor, self.place_of(scope)
        record = self.record_of(place)
        if record is None:
            return
        offset = record.offset_of(tensor)
        if offset is None:
            storage = tensor.untyped_storage()
            users = self._users.setdefault(storage._cdata, (StorageWeakRef(storage), set()))[1]
            if scope.name not in users and len(users) >= MOST_SCOPES:
                return
            offset = record.take(tensor)
            if offset is None:
                self.stayed_bytes += storage.nbytes()
                return
            users.add(scope.name)
            self.write(place, offset, tensor)
        record.note(saved)
        saved.move(record, offset)

    # ------------------------------------------------- what subclasses have --

    def place_of(self, scope: Scope) -> Any:
        """Returns the place to which the scope moves what it saves; None: there is none."""
        raise NotImplementedError

    def record_of(self, place: Any) -> Record | None:
        """Returns the record of the present forward in a place; None: nothing can be put there."""
        raise NotImplementedError

    def write(self, place: Any, offset: int, tensor: torch.Tensor) -> None:
        """Copies the storage of a tensor to a place."""

    def release(self, unit: int, which: int) -> None:
        """Is called before a unit is released. Local."""

    def end_all(self) -> None:
        """Ends all that was put, and a forward that has not ended. Local."""
        self.end()

    def outside(self, grads: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...] | None:
        """Returns gradients that leave a scope in memory of their own; None: they have such memory."""
        return None


def pack(saver: Saver | None, tensor: torch.Tensor) -> Saved:
    """Is torch's pack hook. It refers to the saver weakly: torch keeps the hook with the graph, where Python's garbage collector does not
    find it."""
    return Saved(tensor) if saver is None else saver.pack(tensor)


# -------------------------------------------------------------------- trace --

class Measured(Record):
    """A record without memory of a scope's forward in the trace."""

    def __init__(self, scope: Scope, measurer: "Measurer") -> None:
        super().__init__(scope.name, math.inf)
        self._scope, self._measurer = scope, weakref.ref(measurer)
        self._tensors: weakref.WeakKeyDictionary[Saved, torch.Tensor] = weakref.WeakKeyDictionary()  # they have no memory

    def note(self, saved: Saved) -> None:
        self._tensors[saved] = saved.tensor

    def read(self, saved: Saved) -> torch.Tensor:
        measurer = self._measurer()
        if measurer is not None and not all(measurer.is_acquired(unit) for unit in self._scope.units):
            measurer.late.add(self._scope.name)
        return self._tensors[saved]


class Measurer(Saver):
    """The saver of a trace: it finds how many bytes each scope's forward saves. Scopes `without` an activation save nothing in it."""

    def __init__(self, model: nn.Module, device: torch.device, without: set[str]) -> None:
        super().__init__(model, device)
        self._without = set(without)
        self.is_acquired: Callable[[int], bool]  # whether a unit is acquired for BACKWARD
        self._records: dict[str, Measured] = {}
        self.late: set[str] = set()  # scopes of which a backward reads something while their units are not acquired

    def place_of(self, scope: Scope) -> str | None:
        if not scope.units or scope.name in self._without:
            return None
        self._records.setdefault(scope.name, Measured(scope, self))
        return scope.name

    def record_of(self, place: str) -> Record:
        return self._records[place]

    def declared(self, division: Division, forward: Sequence[tuple[int, int]],
                 backward: Sequence[tuple[int, int]]) -> tuple[list[Declared], set[str]]:
        """Returns the scopes that have an activation, and the names of those that save something and cannot have one.

        The passes list the units with the number of further acquires for which each is held.

        The unit of a scope is one that each pass acquires once. A unit that is held to the end of forward has none: its bytes would be on
        the device all the time.
        """
        counts = [[unit for unit, _ in uses].count for uses in (forward, backward)]
        held = {unit for index, (unit, count) in enumerate(forward) if count and index + count >= len(forward) - 1}
        found = []
        for scope in division.scopes:
            used = self._records[scope.name].used_bytes if scope.name in self._records else 0
            units = [unit for unit in scope.units if unit not in held and all(count(unit) == 1 for count in counts)]
            if used and units and scope.name not in self.late:
                found.append((scope.name, units[-1], used))
        return found, {name for name, record in self._records.items() if record.used_bytes} - {name for name, _, _ in found}


# ----------------------------------------------------------------- training --

class Put(Record):
    """What one forward has put into the activation of a unit. It ends when the unit is released for BACKWARD, or with the micro-batch."""

    def __init__(self, memory: "Memory", unit: int) -> None:
        super().__init__(unit, memory.bytes_of[unit])
        self._memory = memory
        self.is_got = self.is_ended = False
        self._nodes: weakref.WeakSet[Saved] = weakref.WeakSet()

    def note(self, saved: Saved) -> None:
        self._nodes.add(saved)

    @property
    def is_needed(self) -> bool:
        """Whether a backward may come that reads the bytes."""
        return not self.is_ended and len(self._nodes) > 0

    def end(self) -> None:
        """Ends the bytes: what comes to read them is refused."""
        self.close()
        self.is_ended = True

    def read(self, saved: Saved) -> torch.Tensor:
        name = self._memory.names[self.place]
        if self.is_ended:
            raise StateError(f"what the forward of module {name} has saved for its backward has ended: it is in the activation of the unit, which is "
                             f"there until the module's first backward is over, and until engine.step(). Go through a graph once "
                             f"(retain_graph), or leave the module out of sherd.torch.initialize(..., activations=)")
        if not self.is_got:
            try:
                self._memory.get(self.place)
            except StateError as error:
                raise StateError(f"what the forward of module {name} has saved cannot be read ({error}). Where a gradient reached the module by "
                                 f"another way than its outputs, give the loss to engine.backward(loss) in place of loss.backward(), return "
                                 f"from forward every tensor that the loss is made of, or leave the module out of "
                                 f"sherd.torch.initialize(..., activations=)") from None
            self.is_got = True
        flat = self._memory.over(self.place, saved.dtype)
        return flat.as_strided(saved.shape, saved.stride, saved.offset // flat.element_size() + saved.first)


class Memory:
    """The activations of an engine's units as tensors. `bytes_of` and `names` are by unit."""

    def __init__(self, core: Engine, bytes_of: dict[int, int], names: dict[int, str]) -> None:
        self._core, self.bytes_of, self.names = core, bytes_of, names
        self.tensors: dict[int, torch.Tensor] = {}  # of each unit: its bytes, whose address stays
        self._views: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._storages: set[int] = set()

    def put(self, unit: int) -> None:
        """Begins to put the unit's activation. Raises what sherd.Engine.put_activation raises."""
        memory = self._core.put_activation(unit)
        if unit not in self.tensors:
            self.tensors[unit] = tensor_over(memory)
            self._storages.add(self.tensors[unit].untyped_storage()._cdata)

    def get(self, unit: int) -> None:
        """Has the bytes come back. Raises what sherd.Engine.get_activation raises."""
        self._core.get_activation(unit)

    def has(self, tensor: torch.Tensor | None) -> bool:
        """Whether a tensor lies in one of the activations."""
        return tensor is not None and tensor.layout is torch.strided and tensor.untyped_storage()._cdata in self._storages

    def over(self, unit: int, dtype: torch.dtype) -> torch.Tensor:
        """Returns the unit's bytes as elements of a type."""
        key = unit, dtype
        if key not in self._views:
            self._views[key] = self.tensors[unit].view(dtype)
        return self._views[key]


class Mover(Saver):
    """The saver of a training: it moves what scopes save to the activations of units."""

    def __init__(self, model: nn.Module, driver: Driver, division: Division, declared: Sequence[Declared]) -> None:
        core = driver.engine
        super().__init__(model, device_of(core.device), [one.awake for one in driver.by_number.values()])
        self._unit_of = {name: unit for name, unit, _ in declared}
        self._memory = Memory(core, {unit: core.activation_bytes(unit) for _, unit, _ in declared},
                              {unit: division.units[unit].name for _, unit, _ in declared})
        self._stream = torch.cuda.current_stream(self._device).cuda_stream if self._device.type == "cuda" else None
        self._puts: dict[int, Put] = {}
        self._refused: set[int] = set()  # units that have no place in this forward
        self._has_warned = False
        self.packed_bytes = 0  # what the last forward has copied

    def begin(self) -> None:
        self.packed_bytes = 0
        self._refused.clear()
        super().begin()

    def end(self) -> None:
        super().end()
        if self.stayed_bytes and not self._has_warned:
            self._has_warned = True
            warn(f"{self.stayed_bytes} bytes that this forward saves for its backward have no room in the activations of the units, and stay in "
                 f"torch's memory. Their sizes are those of the first batch: give sherd.torch.initialize(..., example=) the largest batch of the "
                 f"training. Later forwards do not warn")

    def place_of(self, scope: Scope) -> int | None:
        return self._unit_of.get(scope.name) if scope.units else None

    def record_of(self, place: int) -> Put | None:
        put = self._puts.get(place)
        if put is not None and put.is_open:
            return put
        if place in self._refused or put is not None and put.is_needed:  # another forward of this micro-batch has it
            return None
        if self._stream is not None and torch.cuda.current_stream(self._device).cuda_stream != self._stream:
            return None  # the engine's moves follow its own compute stream
        try:
            self._memory.put(place)
        except StateError:  # the units run in another order than the plan's, and it has no place
            self._refused.add(place)
            return None
        self._puts[place] = made = Put(self._memory, place)
        return made

    def write(self, place: int, offset: int, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        count = storage.nbytes()
        source = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (count,), (1,))
        self._memory.tensors[place][offset: offset + count].copy_(source)
        self.packed_bytes += count

    def release(self, unit: int, which: int) -> None:
        put = self._puts.get(unit)
        if put is None:
            return
        if which == FORWARD:
            put.close()
        elif which == BACKWARD:
            put.end()
            del self._puts[unit]

    def end_all(self) -> None:
        super().end()
        for put in self._puts.values():
            put.end()
        self._puts.clear()

    def outside(self, grads: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...] | None:
        """A backward may return what it has saved as a gradient, and the memory is another activation's after the scope."""
        made = tuple(one.clone() if self._memory.has(one) else one for one in grads)
        return made if any(new is not old for new, old in zip(made, grads)) else None


# ------------------------------------------------------------------ options --

def choice_check(choice: Any) -> None:
    """Raises TypeError for an argument `activations` that is neither patterns nor a dict of them, and ValueError for an unknown device."""
    if choice is None:
        return
    if isinstance(choice, (str, bytes)) or not isinstance(choice, (Mapping, Sequence)):
        raise TypeError(f"activations is a list of patterns of units' names, or a dict from patterns to devices, not {choice!r}")
    for pattern, device in choice.items() if isinstance(choice, Mapping) else ((pattern, None) for pattern in choice):
        if not isinstance(pattern, str):
            raise TypeError(f"activations has patterns of units' names, and {pattern!r} is none")
        if device not in (None, "none", "cpu", "nvme"):
            raise ValueError(f"activations[{pattern!r}]={device!r} is \"none\", \"cpu\" or \"nvme\", or None for sherd.activations.device")


NEEDS_USES = "with backward_uses=\"any\" nobody knows when the backward of a unit is over"
NEEDS_TRACE = "there was no trace to measure it"


def none_found(division: Division, could: Sequence[Declared], choice: Choice) -> str:
    """Returns why no unit has an activation, for a warning. `could` are those that the choice leaves out."""
    if could:
        return f"activations={choice!r} matches none of {', '.join(dict.fromkeys(division.units[unit].name for _, unit, _ in could))}"
    return f"no unit that each pass acquires once saves a tensor of {LEAST_BYTES} bytes, except those that torch.utils.checkpoint computes again"


def declare(core: Engine, division: Division, found: Sequence[Declared], choice: Choice) -> None:
    """Declares the activations that a trace has found. Local, before seal."""
    devices = chosen(choice, [division.units[unit].name for _, unit, _ in found])
    for unit in dict.fromkeys(unit for _, unit, _ in found):
        core.add_activation(unit, sum(count for _, other, count in found if other == unit), devices[division.units[unit].name])


def chosen(choice: Choice, names: Iterable[str]) -> dict[str, str | None]:
    """Returns those of the units' names that have an activation, each with its device; None: that of the configuration."""
    if choice is None:
        return {name: None for name in names}
    pairs = list(choice.items()) if isinstance(choice, Mapping) else [(pattern, None) for pattern in choice]
    found = ((name, [device for pattern, device in pairs if fnmatch.fnmatchcase(name, pattern)]) for name in names)
    return {name: devices[0] for name, devices in found if devices}

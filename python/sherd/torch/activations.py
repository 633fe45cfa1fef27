"""Moves what autograd saves in the forward of a unit to the unit's activation, which is memory of the engine (docs/activations.md).

Torch asks hooks (torch.autograd.graph.saved_tensors_hooks) for what a node of its graph is to have in place of a tensor. Here that is a
Saved. It has a place in the activation, to which the bytes are copied, or the tensor itself. Nobody else has the tensor as a rule, so its
memory is free when the module's forward has gone on. The trace (trace.py) runs the same code without memory, and so finds how many bytes
each scope takes.

Whole storages are copied, so several tensors over one storage take its bytes once, and each has the strides that it had: an operation
gives the same bits on the copy as on the tensor.
"""
from __future__ import annotations

import math
import weakref
from typing import Any, Callable, Iterable, Sequence

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from sherd.torch import leftovers
from sherd.torch.hooks import current_task, tensors_in
from sherd.torch.units import Division, Scope

Declared = tuple[str, int, int]  # a scope's name, the unit whose activation it uses, and how many bytes the trace has found
LEAST_BYTES = 4096  # smaller tensors stay where they are: a copy costs more than their memory
ALIGN_BYTES = 512  # of each storage in an activation, as torch's own allocators align theirs or better
MOST_STORAGE = 8  # a tensor that is a smaller part of its storage than 1 / MOST_STORAGE stays, and keeps the storage
MOST_SCOPES = 2  # what more scopes save, such as a mask of all blocks, stays: one copy of it is enough

autograd = torch._C._autograd


class Saved:
    """What a node of autograd has in place of a tensor that it has saved.

    `record` is None while `tensor` is the tensor itself. Otherwise its storage lies at `offset` of the record's memory.
    """

    __slots__ = ("tensor", "version", "record", "offset", "dtype", "shape", "stride", "first", "__weakref__")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor: torch.Tensor | None = tensor
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

    Its subclasses have the memory. A saver belongs to one hooks.Hooks, which tells it where the forward and backward are.
    """

    def __init__(self, model: nn.Module, device: torch.device, awake: Iterable[torch.Tensor] = ()) -> None:
        self._model, self._device = model, device
        self._awake = {tensor.untyped_storage()._cdata for tensor in awake}  # storages of parameters while their units are acquired
        self._scopes: list[Scope] = []  # whose forward runs, outer before inner
        self._own: set[int] = set()  # storages of parameters and buffers, which stay
        self._users: dict[int, tuple[StorageWeakRef, set[Any]]] = {}  # of storages: in which places this forward has copied it
        self._waiting: dict[int, weakref.ref[Saved]] = {}  # of storages: what was saved last where there is no activation
        self.stayed_bytes = 0  # what has found no room in this forward
        me = weakref.ref(self)  # a graph may be kept by the model
        self._hooks = (lambda tensor: pack(me(), tensor), Saved.read)

    def begin(self) -> None:
        """Begins a forward with gradients. Where the script has hooks of its own around it, these stay alone. Local."""
        self._scopes.clear()
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
        self.stayed_bytes = 0

    def enter(self, scope: Scope, given: Any) -> None:
        """Begins the forward of a scope whose units are acquired, with the arguments that its module is given. Local.

        Inside of torch.utils.checkpoint, what the scope saves is computed again, and just before it the checkpoint has saved what the scope
        is given. The scope's activation takes that.
        """
        self._scopes.append(scope)
        place = self.place_of(scope)
        if place is None or not self._waiting or self._is_on_top():
            return
        for tensor in tensors_in(given):
            last = self._waiting.pop(tensor.untyped_storage()._cdata, None) if tensor.layout is torch.strided else None
            saved = None if last is None else last()
            if saved is not None and saved.tensor._version == saved.version:
                self._move(saved, place)

    def leave(self) -> None:
        """Ends the forward of the innermost scope. Local."""
        if self._scopes:
            self._scopes.pop()

    def pack(self, tensor: torch.Tensor) -> Saved:
        """Returns what a node of autograd has in place of a tensor."""
        saved = Saved(tensor)
        if self._scopes and current_task() < 0 and self._may_move(tensor):
            place = self.place_of(self._scopes[-1])
            if place is None:
                self._waiting[tensor.untyped_storage()._cdata] = weakref.ref(saved)
            else:
                self._move(saved, place)
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

    def _move(self, saved: Saved, place: Any) -> None:
        """Copies a tensor to a place, unless its storage is there already. Without room it stays."""
        tensor = saved.tensor
        record = self.record_of(place)
        if record is None:
            return
        offset = record.offset_of(tensor)
        if offset is None:
            storage = tensor.untyped_storage()
            users = self._users.setdefault(storage._cdata, (StorageWeakRef(storage), set()))[1]
            if place not in users and len(users) >= MOST_SCOPES:
                return
            offset = record.take(tensor)
            if offset is None:
                self.stayed_bytes += storage.nbytes()
                return
            users.add(place)
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

"""Removes the tensors of a trace from a program's caches and lists.

A model's code may keep tensors where a module's attributes do not lead: in functools.lru_cache, in a dict of masks, in a list that
a hook fills. Of a trace these are tensors without memory (torch's FakeTensor). The first real forward would compute with them, and
its gradients would be nothing, without a word from torch.
"""
from __future__ import annotations

import contextlib
import functools
import gc
import types
import weakref
from collections import deque
from typing import Any, Iterable, Iterator

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

FAKE = "FakeTensor"  # the name of the class, which takes long to import
MOST_STEPS = 4  # how deep a cache is searched: the cache, its entries, a result, and what is in that
ADVICE = ("the model's code has stored a tensor of the trace that finds the model's order, where sherd.torch does not find it: call the "
          "model once on a batch before sherd.torch.initialize, so that it keeps real ones")
OPAQUE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.FrameType)  # what a search does not enter


def is_left(value: Any) -> bool:
    """Whether the value is a tensor without memory. Outside of a trace there should be none."""
    return type(value).__name__ == FAKE


class Contents:
    """What containers (dicts, lists, sets, deques, also nested ones) had when the object was made."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._kept: list[tuple[Any, Any]] = []
        seen: set[int] = set()
        pending = list(values)
        while pending:
            value = pending.pop()
            if not isinstance(value, (dict, list, set, deque)) or id(value) in seen:
                continue
            seen.add(id(value))
            kept = list(value.items()) if isinstance(value, dict) else list(value)
            self._kept.append((value, kept))
            pending.extend(inner for _, inner in kept) if isinstance(value, dict) else pending.extend(kept)

    def restore(self) -> None:
        """Gives those that have changed since then what they had."""
        for value, kept in self._kept:
            now = list(value.items()) if isinstance(value, dict) else list(value)
            if len(now) == len(kept) and all(same(a, b) for a, b in zip(now, kept)):
                continue
            value.clear()
            if isinstance(value, (dict, set)):
                value.update(kept)
            else:
                value.extend(kept)


def attributes_in(value: Any) -> Iterator[dict[str, Any]]:
    """Yields the attributes of the objects in what a module is given, and of those in them, in at most MOST_STEPS steps.

    A cache that the module fills has its tensors there. Tensors and modules are passed over.
    """
    seen: set[int] = set()
    level = [value]
    for _ in range(1 + MOST_STEPS):
        inner: list[Any] = []
        for one in level:
            if id(one) in seen or isinstance(one, (torch.Tensor, nn.Module, *OPAQUE)):
                continue
            seen.add(id(one))
            if isinstance(one, dict):
                inner.extend(one.values())
            elif isinstance(one, (list, tuple, set, deque)):
                inner.extend(one)
            elif isinstance(getattr(one, "__dict__", None), dict):
                yield vars(one)
                inner.extend(vars(one).values())
        level = inner


@contextlib.contextmanager
def given_kept(example: Any) -> Iterator[None]:
    """A context at whose end the objects in what a module is given have what they had at its beginning (attributes_in)."""
    contents = Contents(attributes_in(example))
    try:
        yield
    finally:
        contents.restore()


def same(a: Any, b: Any) -> bool:
    """Whether two entries are the same objects; those of dicts are pairs."""
    return a is b or isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b) == 2 and a[0] is b[0] and a[1] is b[1]


@functools.lru_cache(maxsize=None)
def mode_class() -> Any:
    """Returns the class of the modes of a trace: FakeTensorModes that take real tensors too, and know which of their tensors are alive."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Mode(FakeTensorMode):
        def __init__(self) -> None:
            super().__init__(allow_non_fake_inputs=True)
            self._made: list[weakref.ref[torch.Tensor]] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = super().__torch_dispatch__(func, types, args, kwargs)
            self._made.extend(weakref.ref(one) for one in tree_leaves(result) if is_left(one))
            return result

        def alive(self) -> list[torch.Tensor]:
            return list({id(one): one for one in (made() for made in self._made) if one is not None}.values())

    return Mode


def alive(modes: list[Any]) -> list[torch.Tensor]:
    """Returns the tensors of these modes that are alive."""
    return [tensor for mode in modes for tensor in mode.alive()]


def take_out(modes: list[Any]) -> None:
    """Clears each functools.lru_cache that has a tensor of one of these modes (mode_class), and removes such tensors from lists, deques,
    sets and dicts. Attributes of objects stay as they are. Local. Where none is alive, it costs nothing; else it goes through all
    objects of the process."""
    for generation in (1, 2):  # most of what is alive is young garbage; to look through all objects of a process takes long
        if not alive(modes):
            return
        gc.collect(generation)
    ids = {id(tensor) for tensor in alive(modes)}
    if not ids:
        return
    for cache in [one for one in gc.get_objects() if type(one) is functools._lru_cache_wrapper]:
        if leads_to(cache, ids):
            cache.cache_clear()
    gc.collect()
    found = alive(modes)
    for tensor in found:
        remove(tensor, [found], MOST_STEPS)


def leads_to(cache: Any, ids: set[int]) -> bool:
    """Whether one of the objects is in the cache, in at most MOST_STEPS steps."""
    seen, level = {id(cache)}, [cache]
    for _ in range(MOST_STEPS):
        level = [inner for inner in gc.get_referents(*level) if id(inner) not in seen and not isinstance(inner, OPAQUE)]
        if any(id(inner) in ids for inner in level):
            return True
        seen.update(map(id, level))
        level = [inner for inner in level if not isinstance(inner, torch.Tensor)]
        if not level:
            return False
    return False


def remove(value: Any, mine: list[Any], steps: int) -> None:
    """Removes an object from the containers that have it, but for those in `mine`, which this search has made. A tuple that has it is
    removed from those that have the tuple."""
    holders = gc.get_referrers(value)
    for holder in holders:
        if holder is mine or any(holder is one for one in mine):
            continue
        if isinstance(holder, (list, deque)):
            kept = [one for one in holder if one is not value]
            holder.clear()
            holder.extend(kept)
        elif isinstance(holder, set):
            holder.discard(value)
        elif isinstance(holder, dict) and not is_namespace(holder):
            for key in [key for key, one in holder.items() if one is value]:
                del holder[key]
        elif isinstance(holder, tuple) and steps:
            remove(holder, [*mine, holders], steps - 1)


def is_namespace(holder: dict[Any, Any]) -> bool:
    """Whether the dict has the names of a module, or the attributes of an object."""
    return "__builtins__" in holder or any(getattr(one, "__dict__", None) is holder for one in gc.get_referrers(holder)
                                           if not isinstance(one, (dict, list, tuple, types.FrameType)))

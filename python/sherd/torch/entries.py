"""Finds the nodes of autograd's graph at which a gradient comes into a module's forward otherwise than by an output.

A module may leave a tensor in an attribute, a list or an object of any class, and the loss may be made of it. No hook of an output
sees the gradient that comes back by that way, though the module's parameters have to be acquired for it.

Torch numbers the nodes of a thread in the order in which they are made, and a backward runs those that are ready from the highest
number down. So the nodes of one forward of a module are a range of numbers. A gradient can only come in by another way before an
output's if one of these nodes leads to no output, or is made after an output. Few modules have such nodes. Where one has, a walk
over the graph from the loss finds the edges that lead into the range.

A backward may run on another thread than the forward, whose nodes have numbers of their own. Every node with a number of the range
is then taken for one at which a gradient may enter.
"""
from __future__ import annotations

import bisect
import threading
import weakref
from typing import TYPE_CHECKING, Any, Iterable

import torch

if TYPE_CHECKING:
    from sherd.torch.hooks import Call

Node = Any  # torch.autograd.graph.Node

next_number = torch._C._autograd._get_sequence_nr  # of the node that this thread makes next


class Entries:
    """The calls of forwards that a gradient may enter otherwise than by an output.

    Those of the last forward of the model are stored, since the caller may use what a call hides and drop its outputs. Earlier ones are
    known as long as their outputs or inputs are. `_open` has those of which no walk has met every node.
    """

    def __init__(self) -> None:
        self._hiding: weakref.WeakSet[Call] = weakref.WeakSet()
        self._open: weakref.WeakSet[Call] = weakref.WeakSet()
        self._last: list[Call] = []
        self._known: dict[Any, bool] = {}  # by the shape of a call's graph: whether the call hides any

    def note(self, call: Call, outputs: list[Node], is_again: bool) -> None:
        """Notes a call whose forward has ended, with the nodes of its outputs. `is_again`: it runs inside of a backward. Local.

        The whole graph of a call is looked at once for each shape. A shape is how many nodes there are, and at the outputs also which.
        """
        key = (id(call.scope), call.last - call.first, *(shape_of(node, call.first, call.last) for node in outputs))
        if key not in self._known:
            self._known[key] = hides(outputs, call.first, call.last)
        if self._known[key]:
            self._hiding.add(call)
            self._open.add(call)
            if not is_again:
                self._last.append(call)

    def begin_forward(self) -> None:
        """Begins another forward of the model, or forgets the last one. Local."""
        self._last.clear()

    def first_name(self) -> str | None:
        """Returns the name of the module of the last of these calls, of which no walk has met every node; None: there is none."""
        last = max(self._open, key=lambda call: call.first, default=None)
        return None if last is None else last.scope.name or "of the whole model"

    def expect(self, tensors: Iterable[torch.Tensor]) -> None:
        """Makes each of these calls begin before the first node of it that a backward from `tensors` runs. Local."""
        if not self._hiding:
            return
        roots = [t.grad_fn for t in tensors if t.grad_fn is not None]
        if not roots:
            return
        ranges = Ranges(list(self._hiding))
        met = ranges.entered(roots)
        for call, count in zip(ranges.calls, met):
            if count >= call.last - call.first:
                self._open.discard(call)


class Ranges:
    """The ranges of numbers of several calls, of which any two are apart or one is inside of the other."""

    def __init__(self, calls: list[Call]) -> None:
        self.calls = sorted(calls, key=lambda call: (call.first, -call.last))
        self._firsts = [call.first for call in self.calls]
        self._outer: list[int] = []  # of each call: the one around it, or -1
        for number, call in enumerate(self.calls):
            outer = number - 1
            while outer >= 0 and self.calls[outer].last < call.last:
                outer = self._outer[outer]
            self._outer.append(outer)

    def innermost(self, number: int) -> int:
        """Returns the index of the innermost call whose range has a node's number; -1: none has."""
        index = bisect.bisect_right(self._firsts, number) - 1
        while index >= 0 and self.calls[index].last <= number:
            index = self._outer[index]
        return index

    def around(self, index: int) -> list[int]:
        """Returns a call and those around it, the outermost first."""
        found = []
        while index >= 0:
            found.append(index)
            index = self._outer[index]
        return found[::-1]

    def entered(self, roots: list[Node]) -> list[int]:
        """Walks the graph from its roots, and has every call begin at the nodes by which the walk enters its range.

        Returns of each call how many of its nodes the walk has met.
        """
        met = [0] * len(self.calls)
        is_one_thread = all(call.thread == threading.get_ident() for call in self.calls)
        hooked: set[tuple[Node, int]] = set()
        seen: set[Node] = set()
        pending: list[tuple[Node, int]] = [(root, -1) for root in roots]  # each with the innermost call that it is reached from
        while pending:
            node, came_from = pending.pop()
            inner = self.innermost(node._sequence_nr())
            if not is_one_thread:
                came_from = -1
            if inner != came_from and inner >= 0:
                left = set(self.around(came_from))
                for index in self.around(inner):
                    if index not in left and (node, index) not in hooked:
                        hooked.add((node, index))
                        node.register_prehook(self.calls[index].on_entry)
            if node in seen:
                continue
            seen.add(node)
            if inner >= 0:
                met[inner] += 2 if node.name() == "CopySlices" else 1
            if not is_one_thread or node._sequence_nr() >= self._firsts[0]:  # what was made before all these calls leads to none of them
                pending += [(child, inner) for child, _ in node.next_functions if child is not None]
        for index in reversed(range(len(met))):
            if self._outer[index] >= 0:
                met[self._outer[index]] += met[index]
        return met


def hides(outputs: list[Node], first: int, last: int) -> bool:
    """Whether one of the nodes from `first` up to `last` leads to no output, or was made after an output that is not its own."""
    seen: dict[Node, int] = {}
    pending = list(outputs)
    while pending:
        node = pending.pop()
        if node not in seen and first <= node._sequence_nr() < last:
            seen[node] = node._sequence_nr()
            pending += [child for child, _ in node.next_functions if child is not None]
    ends = [seen[node] for node in outputs if node in seen]
    # The change of a view in place is one node, and has another one inside, to which nothing leads.
    count = len(seen) + sum(node.name() == "CopySlices" for node in seen)
    return count < last - first or any(number > min(ends) for node, number in seen.items() if node not in outputs)


def shape_of(node: Node, first: int, last: int) -> tuple[Any, ...]:
    """Returns what an output's node is, and to which nodes its gradient goes on, as far as they are from `first` up to `last`."""
    numbers = [-1 if child is None else child._sequence_nr() for child, _ in node.next_functions]
    return node.name(), node._sequence_nr() - first, *(number - first if first <= number < last else None for number in numbers)

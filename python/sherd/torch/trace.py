"""Finds the order in which a model uses its units.

The order comes from a trace: one forward and backward on tensors without memory (torch's FakeTensorMode), under the same hooks
as in training. Where that is not possible, it is the order in which the modules are registered.
"""
from __future__ import annotations

import contextlib
import json
import random
import sys
from dataclasses import dataclass, field, replace
from typing import Any, Iterator

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sherd.engine import BACKWARD, FORWARD
from sherd.torch import leftovers
from sherd.torch.activations import Choice, Declared, Measurer, chosen, none_found
from sherd.torch.hooks import Hooks, current_task, mapped, tensors_in
from sherd.torch.tensors import buffers_dtype, cast_to
from sherd.torch.units import Division, Param, Scope

Use = tuple[int, int]  # a unit, and for how many further acquires of the pass it is held
MOST_ROUNDS = 8  # most traces of one model: each may find further modules that use another module's parameters


@dataclass
class Order:
    """The passes of a model: which units it acquires, in which order, and for how long it holds each."""

    forward: list[Use] = field(default_factory=list)
    backward: list[Use] = field(default_factory=list)
    strays: list[tuple[str, int]] = field(default_factory=list)  # names of modules that use a unit of another module, and the unit
    late: list[str] = field(default_factory=list)  # names of scopes whose backward reads parameters after their gradients are complete
    reason: str = ""  # why there was no trace; "" where the passes come from one
    activations: list[Declared] = field(default_factory=list)  # what the forwards of scopes save for their backwards
    unsaved: str = ""  # why there is nothing of that; "" where there is, and where it was not looked for

    @property
    def is_traced(self) -> bool:
        """Whether the passes come from a trace."""
        return not self.reason

    def to_json(self) -> str:
        """Returns the order as text, for the other ranks."""
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str) -> "Order":
        """Makes the order from the text of to_json."""
        values = json.loads(text)
        for name in ("forward", "backward", "strays", "activations"):
            values[name] = [tuple(pair) for pair in values[name]]
        return cls(**values)


def order_of(model: nn.Module, division: Division, example: Any, dtype: torch.dtype,
             device: torch.device = torch.device("cpu"), measures: bool = False, choice: Choice = None) -> Order:
    """Returns the order in which `model(*args, **kwargs)` and a backward from its output use the units. Local.

    `example` is (args, kwargs) or None; of its tensors only shapes, types and strides are used. `dtype` is the engine's compute
    type. With `measures`, the order has what scopes save for backward, of the units of a choice; where there is nothing, it says why not.
    Nothing of the model changes, and no memory of its size is taken. What the model's code keeps elsewhere of the trace (in
    caches and lists) is taken out there (leftovers.py). In `division`, modules that use other modules' parameters become scopes, and
    scopes that read parameters late are marked. Raises nothing that the model's own code raises: the order is then that of
    registration, with the reason.
    """
    if example is None:
        return registered(division, "no batch was there yet: give initialize(..., example=batch)")
    modes: list[Any] = []
    order = tried(model, division, example, dtype, device, modes, measures, choice)
    if measures and not order.is_traced:
        again = tried(model, division, example, dtype, device, modes, False, None)
        if again.is_traced:  # torch.func, for one, takes no hooks of saved tensors
            order = replace(again, unsaved=f"the model does not take hooks of saved tensors ({order.reason})")
    leftovers.take_out(modes)
    return order


def tried(model: nn.Module, division: Division, example: Any, dtype: torch.dtype, device: torch.device, modes: list[Any],
          measures: bool, choice: Choice) -> Order:
    """Returns the order that a trace finds, or that of registration with the failure of the trace."""
    kept = [(scope, list(scope.units), scope.is_late) for scope in division.scopes]
    try:
        with apart():
            return traced(model, division, example, dtype, device, modes, measures, choice)
    except Exception as error:  # a model's own code may fail in any way on tensors without values
        division.scopes[:] = [scope for scope, _, _ in kept]  # the other ranks hear only of what a whole trace has found
        for scope, units, is_late in kept:
            scope.units[:], scope.is_late = units, is_late
        return registered(division, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")


def apart() -> contextlib.AbstractContextManager[Any]:
    """A context in which hooks of saved tensors around the first forward, as of checkpoint(engine, x), do not see what autograd saves.

    torch.func takes no such hooks at all, so there is none where none is around.
    """
    has_hooks = torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
    return torch.autograd.graph.saved_tensors_hooks(same, same) if has_hooks else contextlib.nullcontext()


def same(tensor: torch.Tensor) -> torch.Tensor:
    """Returns what it is given: what autograd saves stays as it is."""
    return tensor


# ------------------------------------------------------------ registration --

def registered(division: Division, reason: str) -> Order:
    """Returns the order of the module tree, in which outer scopes hold their units while inner scopes are visited.

    Backward is its reverse.
    """
    return Order(uses_of(tree_events(division, reverse=False)), uses_of(tree_events(division, reverse=True)),
                 reason=reason)


def tree_events(division: Division, reverse: bool) -> list[tuple[bool, int]]:
    """Returns the acquires (True) and releases (False) of units in a walk over the tree of scopes, forward or in reverse."""
    events: list[tuple[bool, int]] = []

    def visit(scopes: list[Scope]) -> None:
        outer = [s for s in scopes if not any(s is not o and inside(s.name, o.name) for o in scopes)]
        for scope in reversed(outer) if reverse else outer:
            inner = [s for s in scopes if s is not scope and inside(s.name, scope.name)]
            events.extend((True, unit) for unit in scope.units)
            visit(inner)
            events.extend((False, unit) for unit in reversed(scope.units))

    visit(division.scopes)
    return events


def inside(name: str, outer: str) -> bool:
    """Whether the module `name` is below the module `outer`; the whole model's name is ""."""
    return outer == "" or name.startswith(outer + ".")


def uses_of(events: list[tuple[bool, int]]) -> list[Use]:
    """Turns acquires (True) and releases (False) into uses: each unit with the number of further acquires before its release.

    Nested acquires of one unit are one use. A unit that is never released is held to the end.
    """
    uses: list[list[int]] = []
    open_uses: dict[int, list[int]] = {}
    for is_acquire, unit in events:
        if is_acquire and unit in open_uses:
            open_uses[unit][2] += 1
        elif is_acquire:
            open_uses[unit] = [unit, len(uses), 1]
            uses.append(open_uses[unit])
        else:
            use = open_uses[unit]
            use[2] -= 1
            if not use[2]:
                use[1] = len(uses) - use[1] - 1
                del open_uses[unit]
    for use in open_uses.values():
        use[1] = len(uses)  # held to the end
    return [(unit, held) for unit, held, _ in uses]


# ------------------------------------------------------------------- trace --

class Recorder:
    """Stands in the place of the engine during the trace (hooks.Acquirer): records acquires and releases."""

    sleeps = False

    def __init__(self) -> None:
        self.events: dict[int, list[tuple[bool, int]]] = {FORWARD: [], BACKWARD: []}
        self.held: dict[int, int] = {}

    def acquire(self, unit: int, which: int) -> None:
        self.events[which].append((True, unit))
        self.held[unit] = self.held.get(unit, 0) + 1

    def release(self, unit: int, which: int) -> None:
        self.events[which].append((False, unit))
        self.held[unit] -= 1

    def begin_backward(self) -> None:
        pass

    def accumulated(self, number: int) -> None:
        pass


class Reads(TorchDispatchMode):
    """A mode of torch that finds parameters, and views of them, that an operation reads while their unit is not acquired.

    `strays` has the unit of each that a forward reads, with the innermost module whose forward it is, and `late` the units that a
    backward reads.
    """

    supports_higher_order_operators = True  # such as flex_attention; what they read comes as their arguments too

    def __init__(self, recorder: Recorder, params: list[Param], stack: list[nn.Module]) -> None:
        super().__init__()
        self.recorder, self.stack = recorder, stack
        self._kept = [p.tensor.untyped_storage() for p in params]  # else other tensors might get their numbers
        self.unit_of = {storage_of(p.tensor): p.unit for p in params}
        self.strays: list[tuple[nn.Module, int]] = []
        self.late: list[int] = []

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                unit = self.unit_of.get(storage_of(tensor))
                if unit is not None and not self.recorder.held.get(unit):
                    self._note(unit)
        return func(*args, **(kwargs or {}))

    def _note(self, unit: int) -> None:
        if self.stack:
            self.strays.append((self.stack[-1], unit))
        elif current_task() >= 0:
            self.late.append(unit)


def storage_of(tensor: torch.Tensor) -> int:
    """Returns a number of the tensor's storage, which its views have too, and no other storage that lives at the same time."""
    return tensor.untyped_storage()._cdata


def traced(model: nn.Module, division: Division, example: Any, dtype: torch.dtype, device: torch.device,
           modes: list[Any], measures: bool, choice: Choice) -> Order:
    """Returns the order that a trace finds, with what is saved where it `measures`.

    It is repeated until no parameter is read while its unit is not acquired, and until what is saved is what can be moved.
    Appends to `modes` the modes in which it has made tensors. Raises what the model's own code raises, and RuntimeError where
    MOST_ROUNDS traces were not enough, or where nothing that the hooks can do has a parameter there when it is read.
    """
    names = {module: name for name, module in model.named_modules()}
    strays: list[tuple[str, int]] = []
    without: set[str] = set()  # scopes that have no activation
    left_out: list[Declared] = []  # those of them that could have one, and are not chosen
    for turn in range(MOST_ROUNDS):
        measurer = Measurer(model, device, without) if measures else None
        recorder, reads = one_round(model, division, example, dtype, device, modes, measurer)
        for module, unit in reads.strays:
            division.add_use(names[module], module, unit)
            strays.append((names[module], unit))
        for unit in reads.late:
            mark_late(division, unit)
        if not reads.strays and not reads.late:
            late = [scope.name for scope in division.scopes if scope.is_late]
            forward, backward = uses_of(recorder.events[FORWARD]), uses_of(recorder.events[BACKWARD])
            if measurer is None:
                return Order(forward, backward, strays, late)
            could, lost = measurer.declared(division, forward, backward)
            names = chosen(choice, [division.units[unit].name for _, unit, _ in could])
            found = [one for one in could if division.units[one[1]].name in names]
            left_out += [one for one in could if one not in found]
            lost |= {name for name, _, _ in left_out} - without
            if lost and turn + 1 < MOST_ROUNDS:  # other scopes may take what these were given
                without |= lost
                continue
            return Order(forward, backward, strays, late, activations=found, unsaved="" if found else none_found(division, left_out, choice))
    raise RuntimeError(f"parameters are used outside of every module that could be a scope, in {strays[-1][0] if strays else 'the model'}")


def mark_late(division: Division, unit: int) -> None:
    """Marks all scopes that use a unit which a backward has read when it was released. RuntimeError: they are marked already."""
    users = [scope for scope in division.scopes if unit in scope.units]
    if all(scope.is_late for scope in users):
        raise RuntimeError(f"the backward reads parameters of {division.units[unit].name} where no hook of a module comes before it")
    for scope in users:
        scope.is_late = True


def one_round(model: nn.Module, division: Division, example: Any, dtype: torch.dtype, device: torch.device,
              modes: list[Any], measurer: Measurer | None) -> tuple[Recorder, Reads]:
    """Runs one forward and backward on tensors without memory. Returns what was recorded, and the reads that were found.

    Where the forward had strays, there was no backward. Raises what the model's own code raises.
    """
    recorder, stack = Recorder(), []
    modes.append(leftovers.mode_class()())
    with restored(model), leftovers.given_kept(example), random_kept(), as_written(), modes[-1]:
        shadow = shadowed(model, division, dtype, device)
        hooks = Hooks(model, shadow, recorder)
        hooks.saver = measurer
        if measurer is not None:
            measurer.is_acquired = hooks.is_in_backward_of
        hooks.attach()
        handles = [nn.modules.module.register_module_forward_pre_hook(lambda m, _a: stack.append(m)),
                   nn.modules.module.register_module_forward_hook(lambda m, _a, _o: stack.pop() and None, always_call=True)]
        try:
            if not model.training:
                model.train()  # modules may compute again in backward (checkpointing) only in training
            args, kwargs = mapped(example, lambda tensor: like(tensor, device))
            with torch.enable_grad(), Reads(recorder, shadow.params, stack) as reads:  # the engine's first call may be an evaluation
                output = model(*args, **kwargs)
                if not reads.strays:  # their gradients would come to units that are not acquired; the next round acquires these
                    backward_from(output, hooks)
        finally:
            hooks.detach()
            for handle in handles:
                handle.remove()
    return recorder, reads


def like(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Returns a new tensor of the same shape and strides. It is made in the present mode, while the input may come from another."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype or tensor.dtype, device=device)
    return made.requires_grad_(tensor.requires_grad)


def backward_from(output: Any, hooks: Hooks) -> None:
    """Runs a backward from `output.loss` where there is one, else from the sum of all outputs that require a gradient."""
    loss = getattr(output, "loss", None)
    tensors = [loss] if isinstance(loss, torch.Tensor) else tensors_in(output)
    losses = [t.sum() for t in tensors if t.requires_grad and t.is_floating_point()]
    if losses:
        total = torch.stack([loss.float() for loss in losses]).sum()
        hooks.expect(total)
        total.backward()


def shadowed(model: nn.Module, division: Division, dtype: torch.dtype, device: torch.device) -> Division:
    """Replaces the model's parameters and buffers, in place, by ones without memory; restored() takes that back.

    Returns the division over the new parameters.
    """
    of_buffers = buffers_dtype(division, dtype)
    made = {id(p.tensor): nn.Parameter(like(p.tensor, device, torch.float32 if p.is_fp32 else dtype).detach(),
                                       requires_grad=not p.is_frozen) for p in division.params}
    for module in model.modules():
        for name, tensor in module._parameters.items():
            if tensor is not None:
                module._parameters[name] = made[id(tensor)] if id(tensor) in made else like(tensor, device)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = like(buffer, device, cast_to(buffer, of_buffers))
    units = [replace(unit, params=[replace(p, tensor=made[id(p.tensor)]) for p in unit.params]) for unit in division.units]
    return Division(units, division.scopes)


@contextlib.contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """A context at whose end all modules have the attributes, parameters and buffers that they had at its beginning, and the
    containers among their attributes, also those of members and hooks, have what they had."""
    kept = [(module, dict(vars(module)), dict(module._parameters), dict(module._buffers)) for module in model.modules()]
    contents = leftovers.Contents(value for _, attributes, _, _ in kept for name, value in attributes.items()
                                  if name not in ("_parameters", "_buffers"))
    try:
        yield
    finally:
        contents.restore()
        for module, attributes, parameters, buffers in kept:
            vars(module).clear()
            vars(module).update(attributes)
            for held, before in ((module._parameters, parameters), (module._buffers, buffers)):
                held.clear()
                held.update(before)


def as_written() -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which modules that torch.compile was applied to run uncompiled."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext()


@contextlib.contextmanager
def random_kept() -> Iterator[None]:
    """A context that leaves the program's random numbers, of Python, of numpy and of torch on the CPU, as they were."""
    state, cpu = random.getstate(), torch.get_rng_state()
    numpy = sys.modules.get("numpy")
    of_numpy = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        random.setstate(state)
        torch.set_rng_state(cpu)
        if numpy is not None:
            numpy.random.set_state(of_numpy)

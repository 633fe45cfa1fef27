"""The order of units: from one forward and backward on tensors without memory, else the order of registration."""
from __future__ import annotations

import contextlib
import json
import random
import sys
from dataclasses import dataclass, field, replace
from typing import Any, Iterator

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from sherd.engine import BACKWARD, FORWARD
from sherd.torch.hooks import Hooks, mapped, tensors_in
from sherd.torch.tensors import cast_to
from sherd.torch.units import Division, Scope

Use = tuple[int, int]  # a unit, and over how many further acquires it is held
MOST_ROUNDS = 8  # of finding modules that use what another one owns


@dataclass
class Order:
    """The passes of a model. `reason` says why they are not those of a forward and backward; "" if they are."""

    forward: list[Use] = field(default_factory=list)
    backward: list[Use] = field(default_factory=list)
    strays: list[tuple[str, int]] = field(default_factory=list)  # modules by name that use a unit of another one
    in_place: list[str] = field(default_factory=list)  # modules by name that change what they are given
    reason: str = ""

    @property
    def is_traced(self) -> bool:
        return not self.reason

    def to_json(self) -> str:
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str) -> "Order":
        values = json.loads(text)
        for name in ("forward", "backward", "strays"):
            values[name] = [tuple(pair) for pair in values[name]]
        return cls(**values)


def order_of(model: nn.Module, division: Division, example: Any, dtype: torch.dtype,
             device: torch.device = torch.device("cpu")) -> Order:
    """Returns the order in which `model(*args, **kwargs)` and a backward from its output use the units.

    `example` is (args, kwargs) or None. The model does not change, and no memory of its size is needed. Modules that use
    parameters of other modules are added to the scopes of the division.
    """
    if example is None:
        return registered(division, "no batch was there yet: give initialize(..., example=batch)")
    try:
        return traced(model, division, example, dtype, device)
    except Exception as error:  # whatever a model's own code meets on tensors without values
        return registered(division, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")


# ------------------------------------------------------------ registration --

def registered(division: Division, reason: str) -> Order:
    """Returns the order of the module tree, in which outer scopes are held while inner ones run; backward is its reverse."""
    return Order(uses_of(tree_events(division, reverse=False)), uses_of(tree_events(division, reverse=True)),
                 reason=reason)


def tree_events(division: Division, reverse: bool) -> list[tuple[bool, int]]:
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
    return outer == "" or name.startswith(outer + ".")


def uses_of(events: list[tuple[bool, int]]) -> list[Use]:
    """Turns acquires (True) and releases into uses: each has the number of further acquires before its release."""
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
        use[1] = len(uses)  # to the end
    return [(unit, held) for unit, held, _ in uses]


# ------------------------------------------------------------------- trace --

class Recorder:
    """What the hooks drive while the order is found."""

    def __init__(self) -> None:
        self.events: dict[int, list[tuple[bool, int]]] = {FORWARD: [], BACKWARD: []}
        self.held: dict[int, int] = {}

    def acquire(self, unit: int, which: int) -> None:
        self.events[which].append((True, unit))
        self.held[unit] = self.held.get(unit, 0) + 1

    def release(self, unit: int, which: int) -> None:
        self.events[which].append((False, unit))
        self.held[unit] -= 1

    def accumulated(self, number: int) -> None:
        pass


class Strays(TorchFunctionMode):
    """Notices parameters that are used while their unit is not acquired, and the module that uses them."""

    def __init__(self, recorder: Recorder, unit_of: dict[int, int], stack: list[nn.Module]) -> None:
        super().__init__()
        self.recorder, self.unit_of, self.stack = recorder, unit_of, stack
        self.found: list[tuple[nn.Module, int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.stack and next(tensors_in(result), None) is not None:
            for tensor in tensors_in((args, kwargs)):
                unit = self.unit_of.get(id(tensor))
                if unit is not None and not self.recorder.held.get(unit):
                    self.found.append((self.stack[-1], unit))
        return result


def traced(model: nn.Module, division: Division, example: Any, dtype: torch.dtype, device: torch.device) -> Order:
    names = {module: name for name, module in model.named_modules()}
    strays: list[tuple[str, int]] = []
    for _ in range(MOST_ROUNDS):
        try:
            recorder, found = one_round(model, division, example, dtype, device)
        except InPlace as error:
            error.mark(division)
            continue
        if not found:
            in_place = [scope.name for scope in division.scopes if scope.is_in_place]
            return Order(uses_of(recorder.events[FORWARD]), uses_of(recorder.events[BACKWARD]), strays, in_place)
        for module, unit in found:
            division.add_use(names[module], module, unit)
            strays.append((names[module], unit))
    raise RuntimeError(f"parameters are used outside of every module that could be a scope, in {strays[-1][0]}")


class InPlace(Exception):
    """A scope changes its input in place, which torch refuses after a gate."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope.name)
        self.scope = scope

    def mark(self, division: Division) -> None:
        """Marks scopes of the same kind too."""
        for scope in division.scopes:
            scope.is_in_place = scope.is_in_place or type(scope.module) is type(self.scope.module)


def one_round(model: nn.Module, division: Division, example: Any, dtype: torch.dtype,
              device: torch.device) -> tuple[Recorder, list[tuple[nn.Module, int]]]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    recorder, stack = Recorder(), []
    with restored(model), random_kept(), as_written(), FakeTensorMode(allow_non_fake_inputs=True):
        shadow, unit_of = shadowed(model, division, dtype, device)
        hooks = Hooks(model, shadow, recorder)
        hooks.attach()
        handles = [nn.modules.module.register_module_forward_pre_hook(lambda m, _a: stack.append(m)),
                   nn.modules.module.register_module_forward_hook(lambda m, _a, _o: stack.pop() and None, always_call=True)]
        try:
            if not model.training:
                model.train()  # what is computed again in backward, is so in training alone
            args, kwargs = mapped(example, lambda tensor: like(tensor, device))
            with torch.enable_grad():  # the first call may be an evaluation
                with Strays(recorder, unit_of, stack) as strays:
                    output = model(*args, **kwargs)
                if not strays.found:  # whose gradients would come to units that nobody has acquired; the next round has them
                    backward_from(output)
        except RuntimeError as error:
            if hooks.failed is not None and not hooks.failed.is_in_place and "modified inplace" in str(error):
                raise InPlace(hooks.failed) from error
            raise
        finally:
            hooks.detach()
            for handle in handles:
                handle.remove()
    return recorder, strays.found


def like(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Returns a tensor of the same shape, made in the current mode, because an input may come from another mode."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype or tensor.dtype, device=device)
    return made.requires_grad_(tensor.requires_grad)


def backward_from(output: Any) -> None:
    """Runs a backward from the loss if the output has one, else from all tensors of the output."""
    loss = getattr(output, "loss", None)
    tensors = [loss] if isinstance(loss, torch.Tensor) else list(tensors_in(output))
    losses = [t.sum() for t in tensors if t.requires_grad and t.is_floating_point()]
    if losses:
        torch.stack([loss.float() for loss in losses]).sum().backward()


def shadowed(model: nn.Module, division: Division, dtype: torch.dtype,
             device: torch.device) -> tuple[Division, dict[int, int]]:
    """Replaces the model's parameters and buffers by tensors without memory; gives the division over these."""
    made = {id(p.tensor): nn.Parameter(like(p.tensor, device, torch.float32 if p.is_fp32 else dtype).detach(),
                                       requires_grad=p.tensor.requires_grad) for p in division.params}
    for module in model.modules():
        for name, tensor in module._parameters.items():
            if tensor is not None:
                module._parameters[name] = made[id(tensor)] if id(tensor) in made else like(tensor, device)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = like(buffer, device, cast_to(buffer, dtype))
    units = [replace(unit, params=[replace(p, tensor=made[id(p.tensor)]) for p in unit.params]) for unit in division.units]
    return Division(units, division.scopes), {id(made[id(p.tensor)]): p.unit for p in division.params}


@contextlib.contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Restores what a forward stores in its modules."""
    kept = [(module, dict(vars(module)), dict(module._parameters), dict(module._buffers)) for module in model.modules()]
    try:
        yield
    finally:
        for module, attributes, parameters, buffers in kept:
            vars(module).clear()
            vars(module).update(attributes)
            for held, before in ((module._parameters, parameters), (module._buffers, buffers)):
                held.clear()
                held.update(before)


def as_written() -> contextlib.AbstractContextManager[Any]:
    """Runs modules that torch.compile has wrapped as they are written."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext()


@contextlib.contextmanager
def random_kept() -> Iterator[None]:
    """Restores the program's random number generators."""
    state, cpu = random.getstate(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(state)
        torch.set_rng_state(cpu)

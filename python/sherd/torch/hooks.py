"""Decides when units are acquired and released, by hooks of modules in forward, and of tensors and parameters in backward.

A module's forward enters its scope and leaves it. In backward, a scope begins when the first gradient reaches one of its outputs,
or another tensor that the forward made (entries.py). It ends when gradients have come to all its outputs and have left through its
inputs, or when the gradients of all its parameters are complete. Where torch.utils.checkpoint computes a segment again, its scopes
are entered inside of backward.
"""
from __future__ import annotations

import copy
import dataclasses
import functools
import operator
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.autograd import Variable

from sherd.engine import BACKWARD, EVAL, FORWARD
from sherd.errors import NotSupportedError, StateError
from sherd.torch import asleep, entries
from sherd.torch.units import Division, Param, Scope

if TYPE_CHECKING:
    from sherd.torch.activations import Saver

# Returns what compiles the code that this thread runs, or None. The first releases of torch do not report it; with them it may be torch._dynamo.
compiler_of_thread = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: sys.modules.get("torch._dynamo"))
current_task = torch._C._current_graph_task_id  # the number of the backward that runs on this thread; below 0: none
# The transforms of torch.func in which a forward with gradients is refused, by torch's names: what they are called, and what to do instead.
TRANSFORMS = {
    "Vmap": ("torch.vmap", "call the engine on the whole batch, or once for each sample (under torch.no_grad(), torch.vmap is an evaluation)"),
    "Grad": ("torch.func.grad (or vjp, jacrev, hessian)",
             "call engine.backward(loss), which leaves the gradient of an input that requires one in its .grad"),
}


def transform() -> str | None:
    """Returns torch's name of the outermost transform of torch.func that is under way, such as "Vmap"; None: there is none."""
    if not torch._C._are_functorch_transforms_active():
        return None
    return str(torch._C._functorch.get_interpreter_stack()[0].key().name)


def transforms_check(name: str) -> None:
    """Raises NotSupportedError inside of a transform of torch.func, for a forward with gradients of the module `name` that begins.

    What the module returns there is not what the caller gets, so no gradient would reach it. Where the module's units are open already, a
    scope around the transform has them, and nobody calls this.
    """
    given = transform()
    if given is not None and given in TRANSFORMS:
        label, instead = TRANSFORMS[given]
        raise NotSupportedError(f"{label} goes over {f'module {name}' if name else 'the model'} in a forward with gradients, "
                                f"and the backward would not find the module's outputs: {instead}")


def first_order_check() -> None:
    """Raises NotSupportedError in a backward with create_graph=True."""
    if torch.is_grad_enabled():
        raise NotSupportedError("a backward with create_graph=True (a gradient of a gradient) goes through units another time "
                                "where nobody acquires them: sherd.torch does not do it")


class Acquirer(Protocol):
    """The interface through which hooks acquire and release: tensors.Driver in training, trace.Recorder in the trace.

    `accumulated` is called when autograd has accumulated a gradient of the parameter with that number.
    """

    sleeps: bool  # a parameter has values only while its unit is acquired

    def acquire(self, unit: int, which: int) -> None: ...

    def begin_backward(self) -> None: ...

    def release(self, unit: int, which: int) -> None: ...

    def accumulated(self, number: int) -> None: ...


class Call:
    """One call of a scope's module in forward, and how far a backward has come with it.

    `task` is the backward that has begun with the call. `outputs` counts the nodes of its outputs, and `outputs_done` those that have
    had their gradients. `has_inputs`: one of the arguments requires a gradient. `inputs_done` is set when nothing of the call is
    left in this backward but outputs that may still get gradients. The nodes that the forward made on its thread have the numbers from
    `first` up to `last` (entries.py).

    Only while the forward runs, `given` has the arguments of the module, or a list of their tensors, `gates` has each input that requires a gradient, its gate and the
    gate's node, and `before` the tensors that the caller gave, each with its grad_fn, by their ids.
    """

    __slots__ = ("hooks", "scope", "task", "is_open", "has_inputs", "inputs_done", "outputs",
                 "outputs_done", "first", "last", "thread", "given", "gates", "before", "__weakref__")

    def __init__(self, hooks: "Hooks", scope: Scope) -> None:
        self.hooks, self.scope = hooks, scope
        self.task = -1
        self.is_open = self.has_inputs = self.inputs_done = False
        self.outputs = self.outputs_done = self.first = self.last = 0
        self.thread = threading.get_ident()
        self.given: Any = None
        self.gates: list[tuple[torch.Tensor, torch.Tensor, entries.Node]] = []
        self.before: dict[int, tuple[torch.Tensor, Any]] = {}

    def on_output(self, _grads: Any) -> None:
        """Is called when the gradients of a node of outputs have come."""
        self.hooks.begin(self)
        self.outputs_done += 1
        if self.inputs_done:
            self.hooks.try_end(self)

    def is_behind(self, other: "Call") -> bool:
        """Whether the call was made after the other one, and nothing of it can run any more when the other one's backward begins.

        What has inputs ends by its gates, and only its outputs keep it open then.
        """
        return (self.inputs_done or not self.has_inputs) and self.first >= other.last and self.thread == other.thread

    def on_entry(self, _grads: Any) -> None:
        """Is called before a node of the call that a gradient reaches from outside, by whichever way."""
        self.hooks.begin(self)

    def on_gate(self, grads: Any) -> Any:
        """Is called before the first gradient leaves through an input; again for each further input that has a gate.

        Returns the gradients in memory of their own; None: they are in such memory.

        A gate is a view of the input, which is made before every node inside of the scope. Autograd runs nodes that are ready in the
        reverse of the order in which they were made, so all nodes inside have run by then. Raises StateError where no output had a
        gradient before.
        """
        if self.task != current_task():
            raise StateError(f"a gradient came into module {self.scope.name or 'of the whole model'} by another way than its "
                             f"outputs, before its parameters were there: call engine.backward(loss) in place of loss.backward(), "
                             f"return from forward every tensor of it that the loss is made of, or make the module that uses it a "
                             f"unit (units=)")
        replaced = self.hooks.outside(grads)  # before the end of the scope
        if replaced is not None and not self.is_open:
            raise StateError(f"the backward of module {self.scope.name or 'of the whole model'} gives what its forward has saved as the gradient of "
                             f"several inputs, whose memory is another module's by now: return a copy, or leave the module out of "
                             f"sherd.torch.initialize(..., activations=)")
        if not self.inputs_done:
            self.inputs_done = True
            self.hooks.try_end(self)
        return replaced


class Attached:
    """Hooks of a model's modules and parameters: what sets them, and takes them off. `driver` acquires and releases for them."""

    saver: Saver | None = None  # moves what autograd saves to activations

    def __init__(self, model: nn.Module, division: Division, driver: Any) -> None:
        self.model, self.division, self.driver = model, division, driver
        self._params = division.params
        self._is_trained = any(not param.is_frozen for param in division.params)
        self._handles: list[Any] = []
        self.before_forward: Any = None  # called when an outermost forward begins
        self.before_backward: Any = None  # called when a backward, or one inside of it, reaches its first module or parameter

    def _attach(self, modules: dict[nn.Module, Any]) -> None:
        """Sets the hooks around the forward of modules, each with what it is known by, and of every trainable parameter."""
        for module, known_by in modules.items():
            self._handles += [module.register_forward_pre_hook(Entry(self, known_by), with_kwargs=True, prepend=True),
                              module.register_forward_hook(Exit(self, known_by), always_call=True)]
        for index, param in enumerate(self._params):
            if not param.is_frozen:
                self._handles.append(param.tensor.register_post_accumulate_grad_hook(Accumulated(self, index)))

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.end_activations()

    def end_activations(self) -> None:
        """Ends all activations, with a micro-batch, a dropped window or the engine. Local."""
        if self.saver is not None:
            self.saver.end_all()


class Hooks(Attached):
    """The hooks of a model, and what they know of its passes.

    Each unit counts its open uses, so that scopes that nest or overlap acquire it once. attach sets the hooks, detach removes them.
    Errors of the engine come out of the model's forward or backward.
    """

    driver: Acquirer

    def __init__(self, model: nn.Module, division: Division, driver: Acquirer) -> None:
        super().__init__(model, division, driver)
        count = len(division.units)
        self.trainable = [sum(not p.is_frozen for p in unit.params) for unit in division.units]
        self._has_frozen = [any(p.is_frozen for p in unit.params) for unit in division.units]
        self._reads = [0] * count  # of each unit: its open uses by forward and evaluation
        self._grads = [0] * count  # of each unit: its open uses by backward
        self._left = [0] * count  # of each unit: parameters whose gradients have not come yet in the backward `_left_task`
        self._left_task = [-1] * count
        self._stack: list[tuple[Scope | None, int, Call | None]] = []  # scopes whose forward runs, outer before inner
        self._open: dict[int, list[Call]] = {}  # of each backward: the calls that it has begun and not ended
        self._entries = entries.Entries()
        self._ids: dict[tuple[int, ...], set[int]] = {}  # of units: of their parameters
        # The unit that was computed again last. It stays acquired, because its backward usually comes next.
        self._lingering: int | None = None
        self.which = FORWARD  # the pass of the outermost forward: FORWARD or EVAL

    # ------------------------------------------------------------ attaching --

    def attach(self) -> None:
        """Sets the hooks: of every scope, of the model itself, and of every trainable parameter."""
        scopes = {scope.module: scope for scope in self.division.scopes}
        self._attach({self.model: Scope("", self.model), **scopes})

    # -------------------------------------------------------------- forward --

    def enter(self, scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Begins a scope's forward: acquires its units, and returns the arguments for the module, with gates around inputs."""
        is_again = current_task() >= 0
        if not self._stack and not is_again:
            self._begin_forward()
        which = BACKWARD if is_again else self.which
        is_followed = which != EVAL and torch.is_grad_enabled() and bool(scope.units)  # by a backward
        if is_followed and not is_again:
            if self._is_trained and not all(self._reads[unit] for unit in scope.units):
                transforms_check(scope.name)
        self._take_all(scope, which)
        call = None
        if is_followed:
            call = Call(self, scope)
            torch.clear_autocast_cache()  # autocast then casts weights inside of the call that uses them
            args, kwargs = gated(call, args, kwargs)
            call.first = entries.next_number()
        self._stack.append((scope, which, call))
        if self.saver is not None and which == FORWARD:
            if len(self._stack) == 1:
                self.saver.begin()
            self.saver.enter(scope, (args, kwargs))
        return args, kwargs

    def _begin_forward(self) -> None:
        self.which = FORWARD if torch.is_grad_enabled() else EVAL
        if self.which == FORWARD:
            self._entries.begin_forward()
        if self.before_forward is not None:
            self.before_forward()

    def leave(self, scope: Scope, output: Any) -> Any:
        """Ends a scope's forward, also after an exception: releases its units. Returns another output, or None to keep this one."""
        if not self._stack or self._stack[-1][0] is not scope:
            return None  # enter() failed for this scope
        _, which, call = self._stack.pop()
        if self.saver is not None and which == FORWARD:
            self.saver.leave()
            if not self._stack:
                self.saver.end()
        is_again = current_task() >= 0
        replaced = None
        if call is not None:
            replaced = self._hook_outputs(call, output, is_again)
        elif scope.units:
            replaced = self._copied(scope, output, {})
        for unit in reversed(scope.units):
            self._give(unit, which, lingers=which == BACKWARD)
        if not self._stack:
            self.expect(output if replaced is None else replaced)
        return replaced

    def open_backward(self, loss: torch.Tensor | None) -> None:
        """Prepares for the backward of `loss`; None: of what the outermost forward has returned. Local."""
        if loss is not None:
            self.expect(loss)
        if self.driver.sleeps:
            self.driver.begin_backward()

    def expect(self, value: Any) -> None:
        """Prepares for a backward from the tensors in `value`: calls that a gradient may enter otherwise than by their outputs begin
        there too. Local.

        The outermost forward does it for what it returns, and the engine for its loss. It costs nothing where no call has such a way.
        """
        self._entries.expect(tensors_in(value))

    @property
    def hiding(self) -> str | None:
        """The name of a module that a gradient may enter by a way that no expect() has found yet; None: there is none."""
        return self._entries.first_name()

    def _hook_outputs(self, call: Call, output: Any, is_again: bool) -> Any:
        """Sets hooks on the outputs that require gradients, and counts them. `is_again`: the forward runs inside of a backward.

        Tensors that the module has put into its caller's objects, or has changed there, are outputs too. What the module hands through
        is given back as it came. Returns the new output, or None where nothing was replaced.
        """
        given, before, owners = ungated(call)
        replaced = self._copied(call.scope, output, owners)
        nodes = {}
        for tensor in tensors_in((given, output if replaced is None else replaced)):
            node = tensor.grad_fn
            if node is not None and node not in nodes and before.get(id(tensor), (None, None))[1] is not node:
                nodes[node] = node.register_prehook(call.on_output)
        call.outputs = len(nodes)
        call.last = entries.next_number()
        self._entries.note(call, list(nodes), is_again)
        return replaced

    def _copied(self, scope: Scope, output: Any, owners: dict[int, torch.Tensor]) -> Any:
        """Returns an output with copies of the scope's parameters and of views of them, whose memory may be another unit's after the scope,
        and with the inputs in place of their gates, by whose ids `owners` has them. None: there is none of these."""
        mine = self._own(tuple(scope.units))

        def outside(t: torch.Tensor) -> torch.Tensor:
            return t.clone() if id(t) in mine or id(t._base) in mine else owners.get(id(t), t)

        replaced = mapped(output, outside, keeps=True)
        return None if replaced is output else replaced

    def _own(self, units: tuple[int, ...]) -> set[int]:
        """Returns the ids of the parameters of these units."""
        if units not in self._ids:
            self._ids[units] = {id(p.tensor) for unit in units for p in self.division.units[unit].params}
        return self._ids[units]

    # ------------------------------------------------------------- backward --

    def begin(self, call: Call) -> None:
        """Begins a call's backward when the first gradient reaches one of its outputs: acquires its units for BACKWARD.

        Raises NotSupportedError for a backward with create_graph=True.
        """
        task = current_task()
        if call.task == task:
            return
        first_order_check()
        call.task, call.is_open = task, True
        call.inputs_done, call.outputs_done = False, 0
        if task not in self._open:
            self._begin_backward(task)
        for other in [one for one in self._open[task] if one.is_behind(call)]:
            self._open[task].remove(other)
            self._end(other)
        self._take_all(call.scope, BACKWARD)
        self._open[task].append(call)
        for unit in call.scope.units:
            if self._left_task[unit] != task:
                self._left_task[unit], self._left[unit] = task, self.trainable[unit]

    def _begin_backward(self, task: int) -> None:
        if self.before_backward is not None:
            self.before_backward()
        self._open[task] = []
        Variable._execution_engine.queue_callback(lambda: self._end_backward(task))

    def on_param(self, param: Param) -> None:
        """Is called when autograd has accumulated a parameter's gradient. Raises StateError where its unit is not acquired."""
        unit = param.unit
        if not self._grads[unit]:
            raise StateError(f"parameter {param.name} got a gradient while its unit {self.division.units[unit].name} was not "
                             f"acquired: a tensor left the module otherwise than as an output of its forward, or the parameter "
                             f"is used by a module that does not own it; give initialize an example batch, or name the module "
                             f"that uses it in units=")
        self.driver.accumulated(param.number)
        if self._left_task[unit] != current_task():
            return  # a backward inside of the one that holds the unit (checkpointing): there may be others
        self._left[unit] -= 1
        if self._left[unit] == 0:
            for calls in list(self._open.values()):
                for call in [c for c in calls if unit in c.scope.units]:
                    self.try_end(call)

    def try_end(self, call: Call) -> None:
        """Ends a call's backward if nothing more can come to it."""
        if not call.is_open:
            return
        if call.has_inputs and not call.inputs_done:
            return
        if call.has_inputs and call.outputs_done >= call.outputs or not call.scope.is_late and self._is_complete(call):
            self._open[call.task].remove(call)
            self._end(call)

    def _is_complete(self, call: Call) -> bool:
        """Whether all trainable parameters of the scope have their gradients, and it has no others.

        A frozen one may be needed for the gradient of something that is not a parameter.
        """
        units = call.scope.units
        return all(self._left[unit] == 0 and not self._has_frozen[unit] for unit in units) and any(self.trainable[unit] for unit in units)

    def _end(self, call: Call) -> None:
        call.is_open = False
        for unit in reversed(call.scope.units):
            self._give(unit, BACKWARD)

    def _end_backward(self, task: int) -> None:
        """Ends all calls that are still open after a backward; autograd calls it at the end of the backward."""
        for call in self._open.pop(task, []):
            self._end(call)
        self._drop_lingering()

    # ---------------------------------------------------------------- units --

    def _take_all(self, scope: Scope, which: int) -> None:
        """Acquires the units of a scope: all of them, or none where one fails."""
        taken: list[int] = []
        try:
            for unit in scope.units:
                self._take(unit, which)
                taken.append(unit)
        except BaseException:
            for unit in reversed(taken):
                self._give(unit, which)
            raise

    def _take(self, unit: int, which: int) -> None:
        """Adds a use of a unit; the first one acquires it. A lingering unit is taken as it is."""
        counts = self._grads if which == BACKWARD else self._reads
        if which == BACKWARD and self._lingering == unit:
            self._lingering = None
            return
        if not counts[unit]:
            self._drop_lingering()
            self.driver.acquire(unit, which)
        counts[unit] += 1

    def _give(self, unit: int, which: int, lingers: bool = False) -> None:
        """Takes a use of a unit away; the last one releases it, unless the unit is to linger."""
        counts = self._grads if which == BACKWARD else self._reads
        if lingers and counts[unit] == 1:
            self._drop_lingering()
            self._lingering = unit
            return
        counts[unit] -= 1
        if not counts[unit]:
            if self.saver is not None:
                self.saver.release(unit, which)
            self.driver.release(unit, which)

    def _drop_lingering(self) -> None:
        """Releases the lingering unit, if there is one."""
        unit, self._lingering = self._lingering, None
        if unit is not None:
            self._give(unit, BACKWARD)

    def is_in_backward_of(self, unit: int) -> bool:
        """Whether the unit is acquired for BACKWARD."""
        return self._grads[unit] > 0

    def outside(self, grads: Any) -> Any:
        """Returns gradients that leave a scope in memory of their own; None: they are in such memory."""
        return None if self.saver is None or grads is None else self.saver.outside(grads)

    # ------------------------------------------------------------- failures --

    @property
    def is_idle(self) -> bool:
        """Whether nothing is acquired and neither a forward nor a backward is under way."""
        return not self._stack and not self._open and not any(self._grads) and not any(self._reads)

    @property
    def is_in_backward(self) -> bool:
        """Whether a backward has begun and not ended."""
        return bool(self._open)

    def forget(self) -> None:
        """Forgets all open uses after the window was dropped, which releases all units."""
        self._stack.clear()
        self._open.clear()
        self._entries.begin_forward()
        self._lingering = None
        self.end_activations()
        for counts in (self._reads, self._grads):
            counts[:] = [0] * len(counts)


class Single:
    """A hook that belongs to one engine. It refuses to be copied or pickled, and so does a model that has it.

    `of` is what the hook is about: a scope, a module, a parameter's index, or an engine.
    """

    def __init__(self, hooks: Any, of: Any) -> None:
        self.hooks, self.of = hooks, of

    def __deepcopy__(self, _memo: Any) -> Any:
        return self.__reduce__()

    def __reduce__(self) -> Any:
        raise TypeError(asleep.NOT_COPIED)


def untraced(function: Any) -> Any:
    """Returns `function` as one that torch.compile calls and does not compile.

    torch._dynamo takes seconds to import, so it is used only where it is imported already, and where it compiles code on this thread.
    """
    disabled: list[Any] = []

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        if not torch.compiler.is_dynamo_compiling() and compiler_of_thread() is None:
            return function(*args)
        if not disabled:
            disabled.append(sys.modules["torch._dynamo"].disable(function))
        return disabled[0](*args)

    return call


class Entry(Single):
    """The hook before a scope's forward."""

    @untraced
    def __call__(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.hooks.enter(self.of, args, kwargs)


class Exit(Single):
    """The hook after a scope's forward."""

    @untraced
    def __call__(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        return self.hooks.leave(self.of, output)


class Accumulated(Single):
    """The hook after a parameter's gradient was accumulated.

    Python's garbage collector does not see the hooks of a tensor. So this one refers weakly to Hooks, which refers to the tensor.
    """

    def __init__(self, hooks: Hooks, index: int) -> None:
        super().__init__(weakref.ref(hooks), index)

    def __call__(self, _tensor: torch.Tensor) -> None:
        hooks = self.hooks()
        hooks.on_param(hooks._params[self.of])


# ----------------------------------------------------------------- tensors --

def tensors_in(value: Any) -> list[torch.Tensor]:
    """Returns the tensors in what a module takes or returns: in dicts, lists, tuples and dataclasses, nested too."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        inside = value.values()
    elif isinstance(value, (list, tuple)):
        inside = value
    elif is_dataclass(value):
        inside = fields_of(value).values()
    else:
        return []
    found: list[torch.Tensor] = []
    for inner in inside:
        if isinstance(inner, torch.Tensor):
            found.append(inner)
        elif inner is not None:
            found += tensors_in(inner)
    return found


def is_dataclass(value: Any) -> bool:
    """Whether the value is an object of a dataclass, and not the class itself."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def fields_of(value: Any) -> dict[str, Any]:
    """Returns the fields of an object of a dataclass that have values."""
    names = (field.name for field in dataclasses.fields(value))
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def mapped(value: Any, change: Any, keeps: bool = False) -> Any:
    """Returns `value` with `change` applied to every tensor in it, in containers of the same kinds.

    What does not change stays the same object. With `keeps`, dicts, lists and dataclasses that are not frozen stay the same objects
    in any case, and get the changed tensors.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) is tuple:  # as most arguments are
        made = [mapped(inner, change, keeps) for inner in value]
        return value if all(map(operator.is_, made, value)) else tuple(made)
    if isinstance(value, dict):
        old = dict(value.items())
    elif isinstance(value, (list, tuple)):
        old = dict(enumerate(value))
    elif is_dataclass(value):
        old = fields_of(value)
    else:
        return value
    if not old:
        return value
    new = {key: mapped(inner, change, keeps) for key, inner in old.items()}
    changed = {key: inner for key, inner in new.items() if inner is not old[key]}
    if not changed:
        return value
    if isinstance(value, (dict, list)) and keeps:
        for key, inner in changed.items():
            value[key] = inner
        return value
    if isinstance(value, dict):
        return type(value)(**new) if dataclasses.is_dataclass(value) else type(value)(new)
    if isinstance(value, (list, tuple)):
        return type(value)(*new.values()) if hasattr(value, "_fields") else type(value)(new.values())
    made = value if keeps and not type(value).__dataclass_params__.frozen else copy.copy(value)
    for name, inner in changed.items():
        object.__setattr__(made, name, inner)  # it may be frozen
    return made


FLAT = (torch.Tensor, type(None), bool, int, float, str)  # what contains no other tensors


def gated(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments, with a gate (Call.on_gate) in place of each tensor that requires gradients. ungated() ends what this begins.

    A module may change a dict, a list or a dataclass that it is given, and its caller reads it afterwards. So these stay the same
    objects, which have the gates while the module runs. A gate is a view, so a module may change it in place, as its caller may who gets
    a part of it back.
    """
    call.given = args, kwargs
    call.before = {id(t): (t, t.grad_fn) for t in tensors_in(call.given)}
    inputs = [t for t, _ in call.before.values() if t.requires_grad]
    if not inputs:
        return args, kwargs
    call.has_inputs = True
    for tensor in inputs:
        gate = tensor.view_as(tensor)
        gate.grad_fn.register_prehook(call.on_gate)  # type: ignore[union-attr]
        call.gates.append((tensor, gate, gate.grad_fn))
    made = {id(tensor): gate for tensor, gate, _ in call.gates}
    if is_flat(args) and is_flat(kwargs.values()):  # as most are: only tensors that were given can be outputs, too
        call.given = [tensor for tensor, _ in call.before.values()]
        return tuple(made.get(id(one), one) for one in args), {name: made.get(id(one), one) for name, one in kwargs.items()}
    call.given = mapped(call.given, lambda t: made.get(id(t), t), keeps=True)
    return call.given


def is_flat(values: Any) -> bool:
    """Whether there are no containers among the values."""
    return all(isinstance(one, FLAT) for one in values)


def ungated(call: Call) -> tuple[Any, dict[int, tuple[torch.Tensor, Any]], dict[int, torch.Tensor]]:
    """Puts the caller's tensors back in place of the gates where these still are in the caller's objects.

    Returns the arguments (a list of their tensors will do) as they are then, what `call.before` was, and the input of each gate by the gate's id.
    """
    changed = [tensor.grad_fn for tensor, _, _ in call.gates if tensor.grad_fn is not call.before[id(tensor)][1]]
    if changed:
        watch_changes(call, changed, [node for _, _, node in call.gates])
    owners = {id(gate): tensor for tensor, gate, _ in call.gates}
    given, before = call.given, call.before
    if type(given) is tuple and owners:
        given = mapped(given, lambda t: owners.get(id(t), t), keeps=True)
    call.given, call.gates, call.before = None, [], {}
    return given, before, owners


def watch_changes(call: Call, changed: list[entries.Node], gates: list[entries.Node]) -> None:
    """Has gradients that leave the call through inputs which its module has changed in place be noticed (Call.on_gate).

    `changed` has the nodes of these inputs after the changes. Torch has put the changes between an input and what made it, so the
    gradient may pass by the gate. The node of the first change is then the last one of the call that it meets.
    """
    end = entries.next_number()

    def first_of(node: entries.Node) -> entries.Node:
        inner: entries.Node | None = node
        while inner is not None and call.first <= inner._sequence_nr() < end:
            node, inner = inner, inner.next_functions[0][0] if inner.next_functions else None
        return node

    later = list(gates)  # what runs later than the node that comes next, where it runs at all
    for node in sorted(map(first_of, changed), key=lambda node: node._sequence_nr()):
        node.register_hook(functools.partial(on_change, call, tuple(later)))
        later.append(node)


def on_change(call: Call, later: tuple[entries.Node, ...], _left: Any, _came: Any) -> None:
    """Is called after the node of a first change. Where none of the nodes `later` it is to run, the gradients have left the call."""
    if not any(map(torch._C._will_engine_execute_node, later)):
        call.on_gate(None)

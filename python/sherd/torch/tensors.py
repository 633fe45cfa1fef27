"""Shows the engine's memory as the parameters and gradients of a model.

A unit has one address from seal to destroy, so every tensor over it is made once. At stage 3 a parameter is either awake (its unit
is acquired, and it shows the engine's memory) or asleep (it shows its shape, without memory). A use of a parameter that is asleep
is refused by name (asleep.py).
"""
from __future__ import annotations

import math
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from sherd.engine import BACKWARD, Engine
from sherd.errors import StateError
from sherd.memory import CPU, Memory
from sherd.torch import asleep, leftovers
from sherd.torch.units import Division, Param, is_managed

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "uint8": torch.uint8}


def tensor_over(memory: Memory) -> torch.Tensor:
    """Returns a tensor over the engine's memory, without a copy. Nobody may use it after the engine's memory has ended."""
    if memory.elems == 0:
        return torch.empty(memory.shape, dtype=DTYPES[memory.dtype], device=device_of(memory.device))
    if memory.device[0] == CPU:
        return torch.frombuffer(memory.buffer(), dtype=DTYPES[memory.dtype]).view(memory.shape)
    return torch.from_dlpack(memory)


def device_of(device: tuple[int, int]) -> torch.device:
    """Returns torch's device for DLPack's kind and number."""
    return torch.device("cpu") if device[0] == CPU else torch.device("cuda", device[1])


def asleep_like(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor that shows NaN in the shape of a parameter. It has memory for one element."""
    return torch.full((), math.nan, dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)


class Taken(torch.Tensor):
    """What `.grad` shows after the engine has taken a gradient: its shape, type and device, without memory for its elements.

    Code that computes with it or copies its elements gets a StateError (of torch, a RuntimeError, for numpy() and tolist()). With None
    in its place, code that clips or reads gradients would pass over the parameter in silence. Code that clears gradients passes over
    it. What autograd adds to it is in `added` until the hook of the parameter takes it.
    """

    param_name: str
    added: torch.Tensor | None = None
    is_cleared = False  # zero_() was called
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def of(grad: torch.Tensor, param_name: str) -> "Taken":
        made = torch.Tensor._make_subclass(Taken, asleep_like(grad))
        made.param_name = param_name
        return made

    @classmethod
    def __torch_dispatch__(cls, op: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        if op is aten._foreach_zero_.default:
            others = [one for one in args[0] if not isinstance(one, Taken)]
            if others:
                torch._foreach_zero_(others)
            for one in args[0]:
                if isinstance(one, Taken):
                    one.is_cleared = True
            return None
        adds = op in (aten.add_.Tensor, aten.add.Tensor) and torch._C._current_graph_task_id() >= 0
        if op is aten.zero_.default:
            args[0].is_cleared = True
        if adds:
            args[0].added = args[1]
        if adds or op in (aten.zero_.default, aten.detach_.default):
            return args[0]
        name = next(one.param_name for one in tree_leaves((args, kwargs)) if isinstance(one, Taken))
        raise StateError(f"the gradient of {name} is not in .grad: the engine has taken it, and clips and reduces it itself. Clip by the "
                         f"key gradient_clipping, or by accelerator.clip_grad_norm_(), get the norm from engine.get_global_grad_norm(), and leave "
                         f"updates to engine.step(); initialize(..., retain_grads=True) keeps gradients readable until the step")

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Taken({self.param_name}, {list(self.shape)})"


class Bound:
    """One parameter of the model, bound to the engine's memory.

    `awake` and `grad` lie over the engine's memory, `asleep` is what the parameter shows at other times. `sleeps` is true at
    stage 3; otherwise `asleep` is `awake`. `grad` is None for a frozen parameter.
    """

    __slots__ = ("param", "tensor", "awake", "asleep", "grad", "taken", "address", "rest_address", "sleeps", "kind", "asleep_kind",
                 "version", "rest_version", "is_written", "grad_version", "window")

    def __init__(self, engine: Engine, param: Param, sleeps: bool) -> None:
        self.param, self.tensor = param, param.tensor
        self.awake = tensor_over(engine.address(param.number))
        self.asleep = asleep_like(self.awake) if sleeps else self.awake
        self.grad = None if param.is_frozen else tensor_over(engine.grad_address(param.number))
        self.taken = None if self.grad is None else Taken.of(self.grad, param.name)
        self.address, self.rest_address = self.awake.data_ptr(), self.asleep.data_ptr()
        self.sleeps = sleeps
        self.kind = self.asleep_kind = type(self.tensor)  # its classes, awake and asleep
        # torch's counts of writes in place, to the parameter while it is awake and while its unit is not acquired, and to its gradient.
        # A change shows a write outside of the engine.
        self.version = self.rest_version = self.grad_version = 0
        self.is_written = False  # somebody has written to the parameter while it was awake
        self.window = -1  # the number of the micro-batch (Driver.window) whose gradient is in `grad`

    def bind(self) -> None:
        """Makes the model's parameter show the engine's memory, and frees the storage that the parameter had."""
        self.tensor.grad = None
        if self.tensor.is_meta:  # its .data cannot go to another device; a swap keeps the object, to which others may refer
            torch.utils.swap_tensors(self.tensor, nn.Parameter(self.asleep, self.tensor.requires_grad))
        self.kind, self.version = type(self.tensor), self.tensor._version
        if self.sleeps:
            self.asleep_kind, self.rest_version = asleep.kind_of(self.kind), asleep.COUNT + self.param.number % asleep.MOST_PARAMS
        setattr(self.tensor, asleep.NAME, self.param.name)
        self.rest()

    def rest(self) -> None:
        """Makes the parameter show what it shows while its unit is not acquired, whatever it has shown until now."""
        if self.sleeps:
            sleep([self])
        else:
            self.tensor.data = self.asleep
            self.version = self.rest_version = self.tensor._version

    def rouse(self, values: torch.Tensor) -> None:
        """Makes the parameter show values, by its own class."""
        self.tensor.__class__ = self.kind
        self.tensor.data = values

    def show_taken(self, window: int) -> None:
        """Shows in .grad that the engine has taken the gradient of micro-batch `window`, or None where there was none in it."""
        if self.taken is not None:
            self.taken.is_cleared = False
        self.tensor.grad = self.taken if self.window == window else None

    def check_shown(self, window: int) -> None:
        """Raises StateError where .grad is no longer the engine's tensor, because somebody has cleared it after a backward of
        micro-batch `window`, or has put another tensor in its place."""
        shown = self.tensor.grad
        if self.window == window and (shown is None or shown is self.taken and shown.is_cleared):
            raise StateError(f"the gradient of {self.param.name} was cleared after its backward, as module.zero_grad() does, and the "
                             f"engine has added it already: engine.zero_grad() drops it, and so does zero_grad() of the optimizer")
        if self.is_replaced:
            self.refuse_grad("replaced")

    @property
    def is_replaced(self) -> bool:
        """Whether .grad shows a tensor that the engine has not put there."""
        shown = self.tensor.grad
        return shown is not None and shown is not self.grad and shown is not self.taken

    def check_grad(self, is_kept: bool) -> None:
        """Checks that nobody has written to a gradient that `is_kept` until the step, and that the parameter was not frozen meanwhile.

        Whether such a write counts depends on the stage: the engine may have reduced the gradient already. StateError names the parameter.
        """
        if self.grad is not None and not self.tensor.requires_grad:
            raise StateError(f"parameter {self.param.name} was frozen (requires_grad_(False)) after the engine was made, which goes on "
                             f"to update it, by momentum and weight decay: freeze it before sherd.torch.initialize, or set the rate and "
                             f"the weight decay of its group to 0")
        if is_kept and self.grad._version != self.grad_version:
            self.refuse_grad("written")

    def refuse_grad(self, how: str) -> NoReturn:
        """Raises the StateError of a gradient that was `how` by others than a backward."""
        raise StateError(f"the gradient of {self.param.name} was {how} by other code than a backward, and engine.step() takes the gradients as the "
                         f"backward made them: clip by the key gradient_clipping, get the norm from engine.get_global_grad_norm(), and "
                         f"scale the loss in place of its gradients")

    def check(self) -> None:
        """Raises StateError, with the name, where the parameter was given other memory, was written in place, or was unfrozen.

        Call it while the unit is not acquired.
        """
        tensor = self.tensor
        if tensor.data_ptr() != self.rest_address:
            self.refuse_move()
        if tensor._version != self.rest_version or self.is_written:
            raise StateError(f"parameter {self.param.name} was written in place outside the engine, which would not last; "
                             f"write values inside sherd.torch.gathered_parameters(modify=True), or load them with engine.load_state_dict()")
        if self.grad is None and tensor.requires_grad:
            raise StateError(f"parameter {self.param.name} was frozen when the engine was made and requires a gradient now; "
                             f"unfreeze it before sherd.torch.initialize")

    def refuse_move(self) -> NoReturn:
        """Raises the StateError of a parameter that shows other memory than the engine's."""
        raise StateError(f"parameter {self.param.name} was given other memory (its .data was set, or the model was "
                         f"moved); it is the engine's: write values inside sherd.torch.gathered_parameters(modify=True), or load "
                         f"them with engine.load_state_dict()")


def wake(bound: list[Bound]) -> None:
    """Makes parameters show the engine's memory, which has their values."""
    for one in bound:
        one.rouse(one.awake)
    asleep.set_versions([one.tensor for one in bound], [one.version for one in bound])


def sleep(bound: list[Bound]) -> None:
    """Makes parameters show no values, by a class that says so."""
    for one in bound:
        one.tensor.data = one.asleep
    asleep.set_versions([one.tensor for one in bound], [one.rest_version for one in bound])
    for one in bound:
        one.tensor.__class__ = one.asleep_kind


AS_OPTION = "a script of Accelerate or DeepSpeed gives sherd_options={\"backward_uses\": \"any\"}"


def for_modules(text: str, backwards: int) -> str:
    """Returns a message of the engine with what to do in Python in place of the calls of C that it names.

    `backwards` counts the backward passes since the last step. Where there were several, a step is forgotten more often than not.
    """
    what, found, _ = text.partition("; acquire it for SHERD_FORWARD")
    if found:
        return (f"{what}. Where a gradient goes through a frozen model to its input, leave that model out of sherd.torch.initialize(), or out "
                f"of accelerator.prepare(), and move it to the device")
    what, found, _ = text.partition("; list every use with sherd_pass_add")
    if not found:
        return text
    first = (f"this is backward {backwards} since the last engine.step(), which each micro-batch needs after its backward, with "
             f"gradient_accumulation_steps too (engine.zero_grad() drops a backward that no step is to use): " if backwards > 1 else "")
    return (f"{first}{what}; the plan comes from the example, or else from the first batch, also of an evaluation: give "
            f"sherd.torch.initialize(..., example=) a batch of the training, and backward_uses=\"any\" where a step goes through the model "
            f"more than once (several forwards or losses); {AS_OPTION}")


class Driver:
    """Acquires and releases units of an engine, and makes the model's parameters show what is acquired (hooks.Acquirer).

    Making it binds all parameters of the division. With `retains_grads` gradients stay in .grad until the step.
    """

    def __init__(self, engine: Engine, division: Division, retains_grads: bool = False) -> None:
        info = engine.info
        self.engine = engine
        self.sleeps = info.stage == 3
        self.retains_grads = retains_grads
        self.bound = [[Bound(engine, param, self.sleeps) for param in unit.params] for unit in division.units]
        self.by_number = {bound.param.number: bound for unit in self.bound for bound in unit}
        self._held = [0] * len(division.units)  # how often each unit is acquired and not released
        self._turn = 0  # the number of the present backward, for asleep.COUNT
        self.window = 0  # the number of the present micro-batch; it also goes up when a window is dropped
        self.backwards = 0  # since the last step, for messages
        for unit in self.bound:
            for bound in unit:
                bound.bind()

    def acquire(self, unit: int, which: int) -> None:
        """Acquires a unit: its parameters show their values and, for BACKWARD, have their gradients. Collective.

        Raises StateError where a parameter was changed outside of the engine, and what sherd.Engine.acquire raises.
        """
        bound = self.bound[unit]
        if not self._held[unit]:
            with asleep.looked_at():
                for one in bound:
                    one.check()
                    if which == BACKWARD:
                        one.check_shown(self.window)
        self._acquire(unit, which)
        if self.sleeps and self._held[unit] == 1:
            wake(bound)
        if which == BACKWARD:
            for one in bound:
                one.tensor.grad = one.grad

    def _acquire(self, unit: int, which: int) -> None:
        try:
            self.engine.acquire(unit, which)
        except StateError as error:
            raise StateError(for_modules(str(error), self.backwards)) from None
        self._held[unit] += 1

    def release(self, unit: int, which: int) -> None:
        """Releases a unit: its parameters sleep again at stage 3. Collective.

        After BACKWARD, unless gradients are retained, .grad shows that the engine has taken the gradient (Taken), or is None where
        there was none in this micro-batch. Raises StateError, after the release, where a parameter was given other memory or .grad
        another tensor meanwhile, and what sherd.Engine.release raises.
        """
        bound = self.bound[unit]
        moved = next((one for one in bound if self.sleeps and one.tensor.data_ptr() != one.address), None)
        self._held[unit] -= 1
        replaced = next((one for one in bound if which == BACKWARD and one.is_replaced), None)
        if which == BACKWARD and not self.retains_grads:
            for one in bound:
                one.show_taken(self.window)
        if self.sleeps and not self._held[unit]:
            for one in bound:
                one.is_written = one.is_written or one.tensor._version != one.version
            sleep(bound)
        self.engine.release(unit, which)
        if moved is not None:
            moved.refuse_move()
        if replaced is not None:
            replaced.refuse_grad("replaced")

    def reach(self, reached: Param) -> None:
        """Acquires the unit of a parameter for BACKWARD after the first gradient of the unit, which is that of this parameter.

        The further ones come to the engine's memory. It is for parameters that do not sleep. Collective. Raises what acquire raises.
        """
        bound = self.bound[reached.unit]
        for one in bound:
            one.check()
            if one.param is not reached or one.window == self.window:  # else autograd has made what it shows
                one.check_shown(self.window)
        self._acquire(reached.unit, BACKWARD)
        for one in bound:
            shown = one.tensor.grad
            if shown is None or shown is one.taken and shown.added is None:
                one.tensor.grad = one.grad

    def check_all(self) -> None:
        """Checks all parameters, which do not sleep, before a forward. Local.

        Raises StateError where one was changed outside of the engine.
        """
        for bound in self.bound:
            for one in bound:
                one.check()

    def open_grads(self) -> None:
        """Clears .grad of all parameters, which do not sleep, of earlier micro-batches, so that autograd makes the first gradients. Local.

        What comes to others is added (Taken). Raises StateError where somebody has cleared or replaced a gradient.
        """
        for bound in self.bound:
            for one in bound:
                if one.taken is not None:
                    one.check_shown(self.window)
                    if one.tensor.grad is one.taken and one.window != self.window:
                        one.tensor.grad = None

    def accumulated(self, number: int) -> None:
        """Notes a gradient that autograd has accumulated for a parameter, in the engine's memory where .grad was that. Local.

        Autograd made another tensor where .grad was None, as where somebody cleared .grad meanwhile, and it comes to the engine's memory
        here.
        """
        one = self.by_number[number]
        made = one.tensor.grad
        if made is not one.grad:
            if made is one.taken:
                made, one.taken.added = one.taken.added, None
            if leftovers.is_left(made):
                raise StateError(f"the gradient of {one.param.name} has no memory: {leftovers.ADVICE}")
            one.grad.add_(made)
            one.tensor.grad = one.grad
        one.window, one.grad_version = self.window, one.grad._version

    def begin_backward(self) -> None:
        """Gives all parameters that are asleep another count of writes in place (asleep.COUNT). Local."""
        ahead = asleep.MOST_PARAMS if self._turn + 1 < asleep.MOST_TURNS else -self._turn * asleep.MOST_PARAMS
        self._turn = (self._turn + 1) % asleep.MOST_TURNS
        for unit, bound in enumerate(self.bound):
            for one in bound:
                one.rest_version += ahead
            if not self._held[unit]:
                asleep.set_versions([one.tensor for one in bound], [one.rest_version for one in bound])

    def refusal(self, error: BaseException) -> StateError | None:
        """Returns the error of a backward that has read a parameter whose unit was not acquired; None: it is another failure. Local."""
        number = asleep.number_in(error)
        if number is None:
            return None
        param = self.by_number[number].param
        return StateError(f"the backward reads parameter {param.name} when its unit is not acquired, because a gradient reached the module "
                          f"that uses it by another way than its outputs: give the loss to engine.backward(loss) in place of "
                          f"loss.backward(), return from forward every tensor that the loss is made of, or make the module that uses the "
                          f"parameter a unit (units=)")

    def is_awake(self, unit: int) -> bool:
        """Whether the unit's parameters show their values now."""
        return not self.sleeps or self._held[unit] > 0

    def forget(self) -> None:
        """Puts everything back to "not acquired" after a window was dropped, which releases all units. Local."""
        self.window += 1
        for unit, bound in enumerate(self.bound):
            self._held[unit] = 0
            for one in bound:
                one.tensor.grad = None
            if self.sleeps:
                sleep(bound)

    def end_micro_batch(self) -> None:
        """Ends the micro-batch, before the step: retained gradients end, and the next gradients begin at zero. Local.

        Raises StateError where a gradient was changed after the backward; nothing has ended then.
        """
        every = [one for unit in self.bound for one in unit]
        with asleep.looked_at():
            for one in every:
                one.check_shown(self.window)
                one.check_grad(self.retains_grads and one.window == self.window)
            if self.retains_grads:
                for one in every:
                    one.tensor.grad = None
        self.window += 1


def compute_dtype(engine: Engine) -> torch.dtype:
    """Returns the type in which the engine computes."""
    return tuple(DTYPES.values())[engine.info.compute_dtype]


def buffers_dtype(division: Division, dtype: torch.dtype) -> torch.dtype:
    """Returns the type to which cast_to() casts buffers, in an engine that computes in `dtype`. Local, before the engine's memory is
    bound.

    It is fp32, in which nothing is cast, where the model has parameters of `dtype` already: the program that cast them did not cast the
    other buffers on purpose, such as the fp32 frequencies of rotary embeddings.
    """
    return torch.float32 if any(param.tensor.dtype == dtype for param in division.params) else dtype


def cast_buffers(model: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    """Moves all buffers of the model to the device, and casts those of floating-point types as model.to(dtype) does.

    In fp32 no buffer is cast. Parameters that the engine does not manage (quantised weights) are moved too.
    """
    for tensor in model.parameters():
        if not is_managed(tensor) and tensor.device != device:
            tensor.data = tensor.data.to(device)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device, cast_to(buffer, dtype))


def cast_to(buffer: torch.Tensor, dtype: torch.dtype) -> torch.dtype:
    """Returns the type that a buffer has in a model that computes in `dtype`."""
    return dtype if buffer.is_floating_point() and dtype != torch.float32 else buffer.dtype


def flat_range(tensor: torch.Tensor, first: int, out: Any) -> None:
    """Writes elements of a tensor (not on meta), row-major from `first` on, as fp32 to `out`, a memoryview of floats."""
    target = torch.frombuffer(out, dtype=torch.float32)
    target.copy_(tensor.detach().reshape(-1)[first: first + len(out)])

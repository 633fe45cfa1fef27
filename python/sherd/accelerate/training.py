"""A prepared model in training: its window, its engine, which is made by the first forward, and what the script sees of both."""
from __future__ import annotations

import contextlib
import copy
import math
import weakref
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Iterator

import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch import nn

from sherd.errors import InvalidError, NotSupportedError, StateError
from sherd.torch import first, resident
from sherd.torch.hooks import untraced

if TYPE_CHECKING:
    from sherd.accelerate.accelerator import Accelerator

GUARD = 1e-6  # in the divisor of torch's clip coefficient


# ------------------------------------------------------ optimizer, schedule --

class Configured:
    """What Accelerate's DummyOptim says, in the form of an optimizer of torch: groups whose rates may be set until the engine is made."""

    def __init__(self, dummy: Any, lr: float) -> None:
        given = list(dummy.params)
        self.param_groups = given if given and isinstance(given[0], dict) else [{"params": given}]
        for group in self.param_groups:
            group["params"] = list(group["params"])
            group.setdefault("lr", lr)
        self.values = {"lr": dummy.lr, "weight_decay": dummy.weight_decay, **dummy.kwargs}  # for what is "auto" in the configuration
        self.defaults = {"lr": lr}


class Optimizer(AcceleratedOptimizer):
    """What prepare() makes of an optimizer: Accelerate's wrapper, whose step is the engine's. `given` is what prepare() was given."""

    def __init__(self, accelerator: "Accelerator", optimizer: torch.optim.Optimizer | Configured, given: Any) -> None:
        super().__init__(optimizer, device_placement=False)
        self._accelerator = accelerator  # which lives as long as its optimizers
        self.given = given
        self._rates = self.rates()
        self._parts: dict[int, Part] = {}  # by the training's id, where it has parameters of several models

    def of(self, found: "Training", is_shared: bool) -> Any:
        """Returns what the engine of a training gets: the optimizer, or one over its part of the parameters where others share it. Local."""
        if not is_shared:
            return self.optimizer
        if id(found) not in self._parts:
            self._parts[id(found)] = Part(self.optimizer, found.model)
        return self._parts[id(found)].optimizer

    def share_groups(self, found: "Training") -> None:
        """Makes rates that the script or the engine has set stand on the other side too. Local."""
        if id(found) in self._parts:
            self._parts[id(found)].share()

    def rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.param_groups]

    def has_rates_by_hand(self) -> bool:
        """Whether the script has set rates since prepare(). Local."""
        return self.rates() != self._rates

    def step(self, closure: Any = None) -> None:
        """Updates the model where gradients are synchronised. Collective, blocking. Does nothing where there are no gradients."""
        if closure is not None:
            raise NotSupportedError("optimizer.step(closure) evaluates the model again inside of the step: call step() without it")
        if not self.gradient_state.sync_gradients:
            return
        owners = self._accelerator._trainings_of(self)
        if len(owners) > 1:  # an overflow of one model skips the update of all, as torch's scaler does
            reports = [found.prepared() for found in owners]
            if any(report is not None and report.has_overflow for report in reports):
                for found, report in zip(owners, reports):
                    if report is not None and not report.has_overflow:
                        found.drop()
        for found in owners:
            found.step(self)

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drops the gradients that no step has used, where gradients are synchronised. Collective and blocking where there are any."""
        if self.gradient_state.sync_gradients:
            for found in self._accelerator._trainings_of(self):
                found.zero_grad(self)


class Part:
    """The part of an optimizer that is of one model, as an optimizer with groups of its own, for the model's engine."""

    def __init__(self, whole: torch.optim.Optimizer, model: nn.Module) -> None:
        own = {id(param) for param in model.parameters()}
        self.optimizer = copy.copy(whole)
        self._pairs = []
        for group in whole.param_groups:
            params = [param for param in group["params"] if id(param) in own]
            if params:
                self._pairs.append((group, {**group, "params": params}))
        self.optimizer.param_groups = [part for _, part in self._pairs]
        self._last = [dict(part) for part in self.optimizer.param_groups]
        whole._opt_called = True  # type: ignore[attr-defined] # torch's schedulers warn of a wrong order of calls where this is not set

    def share(self) -> None:
        """Copies what has changed in the groups of the one to those of the other; what the script has set goes first. Local."""
        for (group, part), last in zip(self._pairs, self._last):
            for key in group.keys() - {"params"}:
                value = group[key] if group[key] != last.get(key) else part.get(key, group[key])
                group[key] = part[key] = last[key] = value


class Scheduler:
    """What prepare() makes of Accelerate's DummyScheduler: the schedule is the configuration's, and the engine steps it."""

    def __init__(self, accelerator: "Accelerator", dummy: Any) -> None:
        self._accelerator, self.dummy = accelerator, dummy

    def belongs_to(self, optimizer: Optimizer) -> bool:
        return self.dummy.optimizer in (optimizer, optimizer.given)

    def step(self, *_args: Any, **_kwargs: Any) -> None:
        """Does nothing: each update steps the schedule."""

    def get_last_lr(self) -> list[float]:
        """Returns the rates of the groups for the next update. Local."""
        own = [optimizer for optimizer in self._accelerator._optimizers if self.belongs_to(optimizer)]
        return own[0].rates() if own else [self.dummy.optimizer.lr]

    get_lr = get_last_lr

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing: the state is in the engine's checkpoint."""
        return {}

    def load_state_dict(self, _state: dict[str, Any]) -> None:
        """Does nothing, as state_dict()."""


class Scaler:
    """What `accelerator.scaler` is with fp16: the engines scale the loss, and a script may look at the scale."""

    def __init__(self, accelerator: "Accelerator", begin: float) -> None:
        self._accelerator, self._begin = weakref.ref(accelerator), begin

    def get_scale(self) -> float:
        """Returns the loss scale of the first engine; before there is one, that with which it begins. Local."""
        accelerator = self._accelerator()
        engines = [] if accelerator is None else [one.engine for one in accelerator._trainings.values() if one.engine is not None]
        return engines[0].loss_scale if engines else self._begin

    def is_enabled(self) -> bool:
        return True

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing: the loss scale is in the engine's checkpoint."""
        return {}

    def load_state_dict(self, _state: dict[str, Any]) -> None:
        """Does nothing, as state_dict()."""

    def scale(self, *_args: Any) -> Any:
        """Raises NotSupportedError, as the other calls do by which a script scales by itself."""
        raise NotSupportedError("accelerator.scaler scales nothing, since the engines do: call accelerator.backward(loss) and "
                                "optimizer.step(), with the loss as it is")

    unscale_ = step = update = scale


# ------------------------------------------------------------------- window --

@dataclass
class Training:
    """A prepared model with its optimizers, its engine, and the window that is open."""

    model: nn.Module  # as prepare() was given it; torch.compile may have wrapped it
    optimizers: list[Optimizer] = field(default_factory=list)
    engine: Any = None
    clipping: float = 0  # of the configuration; 0: none
    unscheduled: list[str] = field(default_factory=list)  # values of the configuration's scheduler that nothing has filled
    micro: int = 0  # micro-batches of the window
    clip: float | None = None  # the coefficient of clip_grad_norm_() for the prepared step
    stepped: list[Optimizer] = field(default_factory=list)  # those of several optimizers whose step() has come for this window
    cleared: list[Optimizer] = field(default_factory=list)  # and those whose zero_grad() has
    apart: int = 0  # contexts of no_sync() that are open
    weights: dict[str, torch.Tensor] | None = None  # while hooks of save_state() run: what state_dict() gives
    saved: dict[str, torch.Tensor] | None = None  # while save_state() runs: what Accelerate gets, and does not save
    handles: list[Any] = field(default_factory=list)
    shown: list[tuple[nn.Parameter, Any]] = field(default_factory=list)  # what .grad of the parameters shows after a backward

    @property
    def module(self) -> nn.Module:
        """The model below what torch.compile has wrapped around it."""
        return getattr(self.model, "_orig_mod", self.model)

    def is_of(self, model: Any) -> bool:
        return model is self.model or model is self.module

    def attach(self, accelerator: "Accelerator") -> None:
        """Sets what makes the engine, and the calls of the module that are another's now. Local."""
        for one in {id(self.model): self.model, id(self.module): self.module}.values():
            self.handles.append(one.register_forward_pre_hook(Maker(accelerator), with_kwargs=True, prepend=True))
        self.module.state_dict = StateDict(self.module, accelerator)  # type: ignore[method-assign]
        self.module.zero_grad = ZeroGrad(self.module, accelerator)  # type: ignore[method-assign]
        if accelerator.num_processes > 1 and not hasattr(self.module, "no_sync"):
            self.module.no_sync = NoSync(self.module, accelerator)  # type: ignore[assignment] # DDP has it, around one rank there is no DDP

    def detach(self) -> None:
        """Takes them off again. Local."""
        for handle in self.handles:
            handle.remove()
        for name in ("state_dict", "zero_grad", "no_sync"):
            if isinstance(vars(self.module).get(name), OfModule):
                del vars(self.module)[name]

    def end_micro_batch(self) -> None:
        """Ends the micro-batch whose backward is over, if there is one. The window stays open. Collective, blocking."""
        if self.engine is None or not self.engine.has_backward:
            return
        for done, call in ((self.stepped, "step"), (self.cleared, "zero_grad")):
            if done:
                raise NotSupportedError(f"a backward came after the {call}() of {len(done)} of the {len(self.optimizers)} optimizers of the "
                                        f"{type(self.module).__name__}: an engine updates all parameters of a model together, so call {call}() "
                                        f"of each of them before the next forward")
        self.share_groups()
        self.engine.prepare_step()
        self.micro += 1
        self.shown = [(param, param.grad) for param in self.engine.module.parameters() if param.grad is not None]

    def see_cleared(self) -> None:
        """Drops the window where the script has cleared .grad of all parameters. Raises StateError for some of them. Collective then.

        Where modules have no hooks, a forward takes away what .grad shows too, so the two are not distinguished.
        """
        if self.micro == 0 or not self.shown:
            return
        cleared = [param for param, grad in self.shown if param.grad is None or getattr(param.grad, "is_cleared", False)]
        if not cleared:
            return
        if len(cleared) == len(self.shown) and not isinstance(self.engine.hooks, resident.Hooks):
            self.drop()
            return
        name = next(name for name, one in self.module.named_parameters() if one is cleared[0])
        raise StateError(f"the gradient of {name} was cleared after its backward, by the script or by another forward with gradients: an engine "
                         f"has added it up already, so drop all gradients with optimizer.zero_grad(), and write torch.no_grad() around "
                         f"forwards without a backward")

    def share_groups(self) -> None:
        """Copies rates between the script's optimizers and their parts, if an optimizer has several models. Local."""
        for one in self.optimizers:
            one.share_groups(self)

    def take_over_zero_grad(self) -> None:
        """Makes zero_grad() of the optimizers that the script has given drop the window, as that of the prepared ones does. Local."""
        for one in self.optimizers:
            if not isinstance(one.optimizer, Configured):
                one.optimizer.zero_grad = lambda set_to_none=True, one=one: self.zero_grad(one)  # type: ignore[method-assign]

    def prepared(self) -> Any:
        """Returns the report of the step that is prepared, and prepares it where it is not; None: there are no gradients."""
        self.end_micro_batch()
        self.see_cleared()
        if self.micro == 0:
            return None
        if self.engine.prepared is None:
            self.engine.close_window()
            self.engine.prepare_step()
        return self.engine.prepared

    def norm(self, report: Any) -> float:
        """The norm of the gradient as torch has it: the sum of the window's losses, of which the engine takes the mean."""
        return self.micro * report.grad_norm

    def norm_before(self) -> float:
        """Returns the norm of the gradient as clipping so far leaves it; 0 where there is none. Collective, blocking."""
        report = self.prepared()
        return 0.0 if report is None else self.norm(report) * (1 if self.clip is None else self.clip)

    def clip_further(self, by: float) -> None:
        """Multiplies the gradient of the prepared step, where there is one. Local."""
        if self.micro:
            self.clip = (1 if self.clip is None else self.clip) * by

    def step(self, optimizer: Optimizer) -> None:
        """Makes the update, with the last of the optimizers. Collective, blocking."""
        if self.apart:
            raise NotSupportedError("optimizer.step() inside of no_sync(), as LocalSGD calls it, would update each rank by its own gradient: "
                                    "all ranks of an engine have the same weights. Call it outside, or leave LocalSGD out (enabled=False)")
        if self.prepared() is None:
            if (self.engine is None or not self.engine.is_sealed) and any(param.grad is not None for param in self.module.parameters()):
                raise StateError(f"the {type(self.module).__name__} has gradients, and its own forward was not called yet, by which its engine "
                                 f"is made: call the model itself, accelerator.engine(model)(...), or accelerator.engine(model).seal(...) with an "
                                 f"example before the first call of a part of it")
            return
        self.stepped.append(optimizer)
        if len({id(one) for one in self.stepped}) < len(self.optimizers):
            return
        is_overflow = self.update()
        for one in self.optimizers:
            one._is_overflow = is_overflow

    def update(self) -> bool:
        """Makes the update that is prepared, and returns whether it was skipped for an overflow. Collective, blocking.

        Raises InvalidError at the second one where the configuration's scheduler lacks values and the script has set no rate: a loop may
        set them after the step.
        """
        if self.unscheduled and self.engine.global_steps and not any(one.has_rates_by_hand() for one in self.optimizers):
            raise InvalidError(f"\"scheduler\" has {', '.join(self.unscheduled)} as \"auto\", no scheduler is prepared and no rate was set by "
                               f"hand: write the numbers in the configuration, or prepare a scheduler of torch or a DummyScheduler")
        if self.clip is None:
            self.clip = coefficient(self.norm(self.engine.prepared), self.clipping) if self.clipping > 0 else 1.0
        self.share_groups()
        report = self.engine.apply_step(clip_coefficient=self.micro * self.clip)
        self.share_groups()
        self._begin_window()
        return bool(report.has_overflow)

    def zero_grad(self, optimizer: Optimizer) -> None:
        """Drops the window, with the last of the optimizers. Collective and blocking where there is one."""
        if self.stepped or self.engine is None or not self.engine.has_window:
            return  # the gradients of an optimizer that has stepped are used already
        self.cleared.append(optimizer)
        if len({id(one) for one in self.cleared}) == len(self.optimizers):
            self.drop()

    def drop(self) -> None:
        """Drops the window. Collective and blocking where there is one."""
        if self.engine is not None and self.engine.has_window:
            self.engine.discard()
        self._begin_window()

    def read(self, is_kept: bool = True) -> dict[str, torch.Tensor]:
        """Returns the weights by name, in fp32 and on the CPU; without `is_kept`, nothing on this rank. Collective, blocking.

        Names of one tied parameter have one tensor, as in the state_dict() of a module: what saves weights knows by that what is tied.
        """
        values = self.engine.state_dict()
        params = {name: id(param) for name, param in self.module.named_parameters(remove_duplicate=False)}
        first_of: dict[int, str] = {}  # by the parameter: its first name
        made: dict[str, torch.Tensor] = {}
        for name in values:
            other = first_of.setdefault(params.get(name, id(name)), name)
            value = values[name] if other == name else made.get(other)
            if is_kept and value is not None:
                made[name] = value
        return made

    def _begin_window(self) -> None:
        self.micro, self.clip = 0, None
        self.stepped, self.cleared = [], []
        self.shown = []


def coefficient(norm: float, most: float) -> float:
    """The factor of torch's clip_grad_norm_; 1 for a norm that is not finite, with which there is no update."""
    return min(1.0, most / (norm + GUARD)) if math.isfinite(norm) else 1.0


def reached(loss: torch.Tensor, trainings: list[Training]) -> list[Training]:
    """Returns the trainings whose parameters the backward of `loss` reaches, found by a walk over its graph. Local."""
    owners = {id(param): found for found in trainings for param in found.module.parameters()}
    seen, pending, met = set(), [loss.grad_fn], {}
    while pending and len(met) < len(trainings):
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found = owners.get(id(getattr(node, "variable", None)))
        if found is not None:
            met[id(found)] = found
        pending += [one for one, _ in node.next_functions]
    return list(met.values())


# ---------------------------------------------------- in the module's place --

class OfModule:
    """Something of an accelerator's that a prepared module keeps. In a copy of the module it has no accelerator, and does nothing."""

    def __init__(self, module: nn.Module, accelerator: "Accelerator | None" = None) -> None:
        self.module = module
        self._accelerator = (lambda: None) if accelerator is None else weakref.ref(accelerator)

    def __deepcopy__(self, memo: dict[int, Any]) -> "OfModule":
        return type(self)(memo.get(id(self.module), self.module))

    def __reduce__(self) -> Any:
        return type(self), (self.module,)

    def training(self) -> Training | None:
        """The module's training, where it is prepared still."""
        accelerator = self._accelerator()
        return None if accelerator is None else accelerator._found(self.module)

    def leave(self) -> None:
        """Takes the module out of its accelerator, as free_memory() does, and leaves the engine as it is. Local."""
        found, accelerator = self.training(), self._accelerator()
        if found is not None and accelerator is not None:
            found.detach()
            del accelerator._trainings[id(found.module)]


class StateDict(OfModule):
    """A prepared module's state_dict(): where the engine has parts of the parameters alone, at stage 3, it is all ranks' call."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found, accelerator = self.training(), self._accelerator()
        if found is None or accelerator is None or not accelerator._has_parts(found):
            return type(self.module).state_dict(self.module, *args, **kwargs)
        given = dict(zip(("destination", "prefix", "keep_vars"), args)) | kwargs
        into = OrderedDict() if given.get("destination") is None else given["destination"]
        weights = accelerator._weights(found, f"state_dict() of the {type(self.module).__name__}", may_be_alone=True)
        into.update({given.get("prefix", "") + name: value for name, value in weights.items()})
        return into


class ZeroGrad(OfModule):
    """A prepared module's zero_grad(), which drops the window, in the middle of one too: torch's clears the gradients of all backwards."""

    def __call__(self, set_to_none: bool = True) -> None:
        found = self.training()
        if found is not None and found.stepped:
            raise NotSupportedError(f"zero_grad() of the {type(self.module).__name__} between the step() of its {len(found.optimizers)} optimizers: "
                                    f"an engine updates all parameters of a model together, so call it after the last of them")
        if found is not None:
            found.drop()
        type(self.module).zero_grad(self.module, set_to_none)


class LoadStateDict(OfModule):
    """A prepared module's load_state_dict(), inside of the hooks of load_state()."""

    def __call__(self, values: Any, strict: bool = True, assign: bool = False) -> Any:
        found = self.training()
        if found is None or found.engine is None or not found.engine.is_sealed:
            return type(self.module).load_state_dict(self.module, values, strict, assign)
        return found.engine.load_state_dict(values, strict)


class NoSync(OfModule):
    """A prepared module's no_sync(), which DDP's wrapper would have. Each backward is reduced all the same."""

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        found = self.training()
        if found is None:
            yield
            return
        found.apart += 1
        try:
            yield
        finally:
            found.apart -= 1


class Maker(first.Owned):
    """The hook before a prepared model's first forward, which makes the engine and seals it by this batch."""

    @untraced
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        accelerator = self.owner()
        found = None if accelerator is None else accelerator._found(module)
        if found is None or found.engine is not None:
            return None
        assert accelerator is not None
        engine = accelerator.engine(module)
        if module is not engine.module:  # the wrapper of torch.compile: no hook of the module has been looked up yet
            engine.seal((args, kwargs))
            return None
        return first.sealed(engine, module, args, kwargs)

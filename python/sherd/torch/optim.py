"""Optimizers and schedules as torch has them: read for the engine's configuration, and followed in their rates."""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Mapping

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from sherd.config import Config
from sherd.errors import NotSupportedError, StateError
from sherd.torch.units import Division

SCALER = ("torch's GradScaler is not used with sherd: the engine scales the loss in engine.backward() and skips updates that "
          "overflow, as the key fp16 says; leave the scaler out, call engine.backward(loss) and engine.step()")
STEP = "updates are made by engine.step(), which steps the scheduler of initialize() too: leave out optimizer.step()"
CHANGES = ("amsgrad", "maximize", "differentiable", "decoupled_lr", "cautious_factor")  # make another optimizer of it
ADAMS = ("lr", "betas", "eps", "weight_decay")
# By optimizer.type: the numbers of a group, under torch's names, and those that all groups have alike.
NUMBERS = {"SGD": ("lr", "weight_decay", "momentum"), "Adagrad": ("lr", "eps", "weight_decay"), "Lion": ("lr", "betas", "weight_decay")}
ALIKE = {"SGD": ("dampening", "nesterov"), "Adagrad": ("lr_decay", "initial_accumulator_value")}
LIONS = ("Lion", "DeepSpeedCPULion", "FusedLion")  # of other packages, known by their names
KEYS = {"lr": "lr", "weight_decay": "weight_decay", "eps": "eps"}  # of a group, as sherd_group_params calls them


@dataclass
class Groups:
    """Parameter groups: the trainable parameters of each, and its values under torch's names."""

    tensors: list[list[nn.Parameter]]
    values: list[dict[str, Any]] = field(default_factory=list)

    def numbers(self) -> dict[int, list[int]]:
        """The groups that each tensor is in, by its id."""
        found: dict[int, list[int]] = {}
        for index, own in enumerate(self.tensors):
            for tensor in own:
                found.setdefault(id(tensor), []).append(index)
        return found


# ----------------------------------------------------------------- reading --

def type_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The keys of the block "optimizer" that a torch optimizer says; NotSupportedError by name for what sherd has not."""
    kind = type(optimizer)
    is_lion = kind.__name__ in LIONS and all(set(NUMBERS["Lion"]) <= set(group) for group in optimizer.param_groups)
    if kind not in (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad) and not is_lion:
        raise NotSupportedError(f"sherd has no optimizer {kind.__name__}: it has torch.optim.AdamW, Adam, SGD and Adagrad, Lion, "
                                f"and by the configuration (optimizer.type) Lamb too")
    for flag in CHANGES:
        if any(group.get(flag) for group in optimizer.param_groups):
            raise NotSupportedError(f"{kind.__name__}(..., {flag}=True) is another optimizer than the one that sherd has; "
                                    f"leave {flag} out")
    if any(float(state.get("step", 1)) != 0 for state in optimizer.state.values()):  # Adagrad's is there from the start
        raise StateError(f"the {kind.__name__} that initialize() was given has made steps already, and its state is not taken "
                         f"over: make a new one, or load a checkpoint with engine.load_checkpoint()")
    if is_lion or kind in (torch.optim.SGD, torch.optim.Adagrad):
        return {"type": "Lion" if is_lion else kind.__name__}
    is_decoupled = kind is torch.optim.AdamW or bool(optimizer.param_groups[0].get("decoupled_weight_decay"))
    return {"type": "AdamW"} if kind is torch.optim.AdamW else {"type": "Adam", "params.adam_w_mode": is_decoupled}


def read_optimizer(optimizer: torch.optim.Optimizer, config: Config) -> Groups:
    """Fills the block "optimizer" of `config` from a torch optimizer; InvalidError where the file says something else."""
    says = type_of(optimizer)
    for key, value in says.items():
        config.set(f"optimizer.{key}", value)
    groups = Groups([list(group["params"]) for group in optimizer.param_groups],
                    [without_params(group) for group in optimizer.param_groups])
    first = groups.values[0]
    for key in NUMBERS.get(says["type"], ADAMS):
        config.set(f"optimizer.params.{key}", [float(x) for x in first[key]] if key == "betas" else float(first[key]))
    for key in ALIKE.get(says["type"], ()):
        if any(values[key] != first[key] for values in groups.values):
            raise NotSupportedError(f"parameter groups of {says['type']} have several values of {key}; sherd has one for all")
        config.set(f"optimizer.params.{key}", first[key] if isinstance(first[key], bool) else float(first[key]))
    return groups


def without_params(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def read_groups(given: Any, config: Config) -> Groups:
    """Groups as torch's optimizers take them: parameters, or dicts with "params" and values over those of `config`."""
    items = list(given)
    if not items or not isinstance(items[0], Mapping):
        items = [{"params": items}]
    defaults = configured(config)
    return Groups([list(as_tensors(item["params"])) for item in items],
                  [{**defaults, **without_params(item)} for item in items])


def as_tensors(params: Any) -> Iterable[nn.Parameter]:
    for item in [params] if isinstance(params, torch.Tensor) else params:
        yield item[1] if isinstance(item, tuple) else item  # named_parameters() will do


def configured(config: Config) -> dict[str, Any]:
    """The values of a group that says nothing of its own."""
    resolved = config.resolved()
    kind = str(resolved.get("optimizer.type", {}).get("value"))
    read = next((keys for name, keys in NUMBERS.items() if name.lower() == kind.lower()), ADAMS)
    values = {key: resolved[f"optimizer.params.{key}"]["value"] for key in read
              if f"optimizer.params.{key}" in resolved}
    return {"lr": 0.0, **values}


def check_groups(groups: Groups, division: Division) -> None:
    """Every trainable parameter is in one group."""
    numbers = groups.numbers()
    for param in division.params:
        found = numbers.get(id(param.tensor), [])
        if not param.is_frozen and not found:
            raise ValueError(f"parameter {param.name} requires a gradient and is in no parameter group: add it to one, or "
                             f"freeze it (requires_grad_(False)) before sherd.torch.initialize")
        if len(found) > 1:
            raise ValueError(f"parameter {param.name} is in the parameter groups {found[0]} and {found[1]}")
    known = {id(param.tensor) for param in division.params}
    for index, own in enumerate(groups.tensors):
        if any(id(tensor) not in known for tensor in own):
            raise ValueError(f"parameter group {index} has a tensor that is no parameter of the model")


# --------------------------------------------------------------- following --

class EngineOptimizer(torch.optim.Optimizer):
    """The engine's optimizer as torch's schedulers see it. Updates are made by engine.step(): `step` does nothing here, for
    loops that call both, as with DeepSpeed."""

    def __init__(self, groups: Groups) -> None:
        super().__init__([{"params": own, **values} for own, values in zip(groups.tensors, groups.values)],
                         groups.values[0])

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        return closure() if closure is not None else None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The engine clears gradients itself."""

    @property
    def _step_supports_amp_scaling(self) -> bool:
        raise NotSupportedError(SCALER)

    def state_dict(self) -> dict[str, Any]:
        raise StateError("the optimizer's state is in the engine: save it with engine.save_checkpoint()")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise StateError("the optimizer's state is in the engine: load it with engine.load_checkpoint()")


class Rates:
    """The rates that groups have now, where a person or a scheduler of torch sets them.

    `optimizer` has the groups; it is the person's own, or an EngineOptimizer. `scheduler` is stepped with each update.
    """

    def __init__(self, groups: Groups, optimizer: torch.optim.Optimizer | None, scheduler: Any, base_lr: float) -> None:
        self.groups, self.base_lr = groups, base_lr
        self.optimizer = optimizer if optimizer is not None else EngineOptimizer(groups)
        self._given = [dict(values) for values in groups.values]
        if optimizer is not None:
            take_over(optimizer)
        self.scheduler = made_scheduler(scheduler, self.optimizer)

    def check_config(self, config: Config) -> None:
        """One of the two says the rates."""
        if self.scheduler is not None and config.resolved().get("scheduler.type", {}).get("value"):
            raise ValueError("the configuration has a scheduler and initialize() was given an lr_scheduler: leave one out")

    def now(self) -> list[float] | None:
        """A rate for each of the engine's groups where somebody has set one, NaN for the schedule's; None: nobody has."""
        rates = [] if len(self.groups.values) == 1 else [math.nan]  # the default group has no parameters then
        is_set = self.scheduler is not None
        for index, (group, given) in enumerate(zip(self.optimizer.param_groups, self._given)):
            self._check_rest(index, group, given)
            rate = float(group["lr"])
            is_own = self.scheduler is not None or rate != float(given["lr"])
            is_set = is_set or is_own
            rates.append(rate if is_own else math.nan)
        return rates if is_set else None

    @staticmethod
    def _check_rest(index: int, group: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        for key in ("betas", "eps", "weight_decay", "momentum"):
            if key in group and group[key] != given[key]:
                raise StateError(f"{key} of parameter group {index} was {given[key]} when the engine was made and is {group[key]} now: "
                                 f"only rates may change (torch's OneCycleLR and CyclicLR: cycle_momentum=False)")

    def after_update(self) -> None:
        """The scheduler that initialize() was given goes on by one, as with DeepSpeed; it is not to be called by the script too."""
        self.optimizer._opt_called = True  # what torch's schedulers look at to warn of a wrong order
        if self.scheduler is not None:
            self.scheduler.step()

    def lr(self, of_schedule: float | None) -> list[float]:
        """The rates of the groups; `of_schedule` is the default group's in the last update, by the configuration."""
        now = [float(group["lr"]) for group in self.optimizer.param_groups]
        if of_schedule is None or self.now() is not None:
            return now
        share = of_schedule / self.base_lr if self.base_lr else 1.0
        return [rate * share for rate in now]


def made_scheduler(scheduler: Any, optimizer: torch.optim.Optimizer) -> Any:
    """A scheduler over the groups: as it is, or made by the function that the person gave."""
    if scheduler is None or isinstance(scheduler, LRScheduler) or hasattr(scheduler, "step"):
        if isinstance(scheduler, LRScheduler) and scheduler.optimizer is not optimizer:
            raise ValueError("lr_scheduler has another optimizer than initialize() was given: give both, or give lr_scheduler "
                             "as a function of the optimizer")
        return scheduler
    if callable(scheduler):
        return scheduler(optimizer)
    raise TypeError(f"lr_scheduler is a scheduler of torch, or a function that makes one of an optimizer, not {scheduler!r}")


def take_over(optimizer: torch.optim.Optimizer) -> None:
    """A torch optimizer whose groups go on saying the rates, and which makes no step any more."""
    def refused(*_: Any, **__: Any) -> None:
        raise StateError(STEP)

    refused._wrapped_by_lr_sched = True  # type: ignore[attr-defined] # else schedulers warn that it was replaced
    optimizer.step = refused  # type: ignore[method-assign]
    optimizer.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]


# ------------------------------------------------------------- declaration --

def read(config: Config, division: Division, optimizer: torch.optim.Optimizer | None, model_parameters: Any,
         scheduler: Any) -> Rates:
    """What initialize() was given of optimizer, groups and scheduler; `config` has it when this returns."""
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer is one of torch's (torch.optim.AdamW(...)), not {optimizer!r}")
    if optimizer is not None:
        groups = read_optimizer(optimizer, config)
    else:
        trainable = [param.tensor for param in division.params if not param.is_frozen]
        groups = read_groups(trainable if model_parameters is None else model_parameters, config)
    check_groups(groups, division)
    rates = Rates(groups, optimizer, scheduler, float(configured(config)["lr"]))
    rates.check_config(config)
    return rates


def declare(groups: Groups, add_group: Callable[..., int]) -> dict[int, int]:
    """Declares the engine's groups; the one of each tensor by its id. One alone is the default group, which has the
    configuration's values."""
    numbers = []
    for index, values in enumerate(groups.values):
        own = {name: float(values[key]) for key, name in KEYS.items() if key in values}
        if "betas" in values:
            own["beta1"], own["beta2"] = (float(beta) for beta in values["betas"])
        if "momentum" in values:
            own["beta1"] = float(values["momentum"])
        numbers.append(0 if len(groups.values) == 1 else add_group(str(values.get("name", f"group {index}")), **own))
    return {tensor: numbers[found[0]] for tensor, found in groups.numbers().items()}

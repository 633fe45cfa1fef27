"""Optimizers and schedulers of torch: they are read for the engine's configuration, and their learning rates are followed."""
from __future__ import annotations

import fnmatch
import math
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, Sequence

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from sherd.config import Config
from sherd.errors import InvalidError, NotSupportedError, StateError
from sherd.torch.units import Division

if TYPE_CHECKING:
    from sherd.torch.engine import Engine

SCALER = ("torch's GradScaler is not used with sherd: with \"fp16\": {\"enabled\": true} in the configuration, engine.backward() scales the "
          "loss, and engine.step() skips updates that overflow. Leave the scaler out, call engine.backward(loss) and engine.step()")
STEP = "updates are made by engine.step(), which steps the scheduler of initialize() too: leave out optimizer.step()"
CHANGES = ("amsgrad", "maximize", "differentiable", "decoupled_lr", "cautious_factor")  # make another optimizer of it
ADAMS = ("lr", "betas", "eps", "weight_decay")
# By optimizer.type: the numbers of a group, under torch's names.
NUMBERS = {"SGD": ("lr", "weight_decay", "momentum"), "Adagrad": ("lr", "eps", "weight_decay"), "Lion": ("lr", "betas", "weight_decay"),
           "Muon": ("lr", "weight_decay", "momentum")}
# What all groups of the engine that read it have alike, with what the engine takes where nobody says it.
ALIKE: dict[str, dict[str, Any]] = {
    "Adam": {"adam_w_mode": True},
    "SGD": {"dampening": 0.0, "nesterov": False},
    "Adagrad": {"lr_decay": 0.0, "initial_accumulator_value": 0.0},
    "Muon": {"nesterov": True, "ns_steps": 5, "adjust_lr_fn": "original"},
}
MUONS_OWN = {"ns_coefficients": (3.4445, -4.775, 2.0315), "eps": 1e-7}  # the engine has these
MUONS_RATES = ("original", "match_rms_adamw")
LIONS = ("Lion", "DeepSpeedCPULion", "FusedLion")  # of other packages, known by their names
MUON = getattr(torch.optim, "Muon", None)  # since torch 2.9
KEYS = {"lr": "lr", "weight_decay": "weight_decay", "eps": "eps"}  # of a group, as sherd_group_params calls them


@dataclass
class Group:
    """Parameters that are updated with the same values."""

    tensors: list[nn.Parameter]
    values: dict[str, Any]  # under torch's names
    own: dict[str, Any]  # what of them the engine is told
    name: str  # as the engine calls it
    label: str  # as a sentence calls it
    kind: str | None = None  # its optimizer.type; None: the configuration's


@dataclass
class Groups:
    """Parameter groups; those of several torch optimizers follow each other."""

    all: list[Group]
    has_default: bool = False  # the first one is the engine's default group, which has the configuration's values

    def numbers(self) -> dict[int, list[int]]:
        """The numbers of the groups that each tensor is in, by the tensor's id."""
        found: dict[int, list[int]] = {}
        for index, group in enumerate(self.all):
            for tensor in group.tensors:
                found.setdefault(id(tensor), []).append(index)
        return found


# ----------------------------------------------------------------- reading --

def type_of(optimizer: torch.optim.Optimizer) -> str:
    """Returns the optimizer.type of a torch optimizer. NotSupportedError names what sherd does not have."""
    kind = type(optimizer)
    is_lion = kind.__name__ in LIONS and all(set(NUMBERS["Lion"]) <= set(group) for group in optimizer.param_groups)
    if kind not in (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad, MUON) and not is_lion:
        raise NotSupportedError(f"sherd has no optimizer {kind.__name__}: it has torch.optim.AdamW, Adam, SGD, Adagrad and Muon, Lion, "
                                f"and by the configuration (optimizer.type) Lamb too")
    for flag in CHANGES:
        if any(group.get(flag) for group in optimizer.param_groups):
            raise NotSupportedError(f"{kind.__name__}(..., {flag}=True) is another optimizer than the one that sherd has; "
                                    f"leave {flag} out")
    if kind is MUON:
        check_muon(optimizer)
    if any(float(state.get("step", 1)) != 0 for state in optimizer.state.values()):  # Adagrad's is there from the start
        raise StateError(f"the {kind.__name__} that initialize() was given has made steps already, and its state is not taken "
                         f"over: make a new one, or load a checkpoint with engine.load_checkpoint()")
    return "Lion" if is_lion else kind.__name__


def check_muon(optimizer: torch.optim.Optimizer) -> None:
    """Checks that the iteration of a torch Muon is the engine's."""
    for group in optimizer.param_groups:
        for key, value in MUONS_OWN.items():
            given = tuple(group[key]) if isinstance(group[key], (list, tuple)) else group[key]
            if given != value:
                raise NotSupportedError(f"Muon(..., {key}={given}) is not what sherd has: its iteration is that of {key}={value}; "
                                        f"leave {key} out")
        if (group["adjust_lr_fn"] or "original") not in MUONS_RATES:
            raise NotSupportedError(f"Muon(..., adjust_lr_fn={group['adjust_lr_fn']!r}) is not what sherd has: give one of "
                                    f"{', '.join(MUONS_RATES)}")


def alike_of(kind: str, group: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a group for settings that all groups have in common."""
    if kind == "Adam":
        return {"adam_w_mode": bool(group.get("decoupled_weight_decay"))}
    if kind == "SGD" and not group["momentum"]:
        return {}
    says = {key: group[key] for key in ALIKE.get(kind, ())}
    if kind == "Muon":
        says["adjust_lr_fn"] = says["adjust_lr_fn"] or "original"
    return says


def read_optimizers(optimizers: Sequence[torch.optim.Optimizer], config: Config) -> Groups:
    """Fills the block "optimizer" of `config` from torch optimizers. The first one is the engine's, the others are those of their
    groups. InvalidError: the file says something else."""
    groups = Groups([])
    first = type_of(optimizers[0])
    config.set("optimizer.type", first)
    for number, optimizer in enumerate(optimizers):
        kind = type_of(optimizer)
        for index, given in enumerate(optimizer.param_groups):
            values = without_params(given)
            of = "" if len(optimizers) == 1 else f" of optimizer {number} ({kind})"
            groups.all.append(Group(list(given["params"]), values, own={key: values[key] for key in NUMBERS.get(kind, ADAMS)},
                                    kind=None if kind == first else kind, label=f"parameter group {index}{of}",
                                    name=str(values.get("name", f"group {len(groups.all)}"))))
    groups.has_default = len(groups.all) == 1
    for key, value in groups.all[0].own.items():
        config.set(f"optimizer.params.{key}", [float(x) for x in value] if key == "betas" else float(value))
    read_alike(groups, first, config)
    return groups


def read_alike(groups: Groups, first: str, config: Config) -> None:
    """Reads the settings that exist once in an engine. NotSupportedError: groups have different values."""
    said: dict[str, dict[str, Any]] = {}  # by key and type
    for group in groups.all:
        kind = group.kind or first
        for key, value in alike_of(kind, group.values).items():
            if said.setdefault(key, {}).setdefault(kind, value) != value:
                raise NotSupportedError(f"parameter groups of {kind} have several values of {key}; sherd has one for all")
    for key, kinds in said.items():
        is_default = all(value == ALIKE[kind][key] for kind, value in kinds.items())
        is_free = is_default and str(config.resolved()[f"optimizer.params.{key}"]["origin"]).startswith("default")
        is_one = len(set(kinds.values())) == 1
        if is_free and not (is_one and first in kinds):
            continue  # each has what it has where nobody says anything
        if not is_one:
            texts = " and ".join(f"{kind} has {key}={value}" for kind, value in kinds.items())
            raise NotSupportedError(f"{texts}: sherd has one {key} for all groups that read it")
        value = next(iter(kinds.values()))
        if key == "nesterov" and value and first not in kinds:
            momentum = next(group.values["momentum"] for group in groups.all if group.kind in kinds)
            config.set("optimizer.params.momentum", float(momentum))  # which the key nesterov asks for
        config.set(f"optimizer.params.{key}", value if isinstance(value, (bool, int, str)) else float(value))


def without_params(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def read_groups(given: Any, config: Config, division: Division) -> Groups:
    """Reads groups in the forms that torch's optimizers take: parameters, or dicts with "params" and values that replace those of
    `config`."""
    items = list(given)
    if not items or not isinstance(items[0], Mapping):
        items = [{"params": items}]
    defaults = configured(config)
    if defaults["lr"] is None:
        raise InvalidError("optimizer.params.lr is \"auto\", and initialize() was given no optimizer to take the rate from: write the "
                           "rate into the configuration, or give optimizer=torch.optim.AdamW(...)")
    said = {entry["name"]: entry for entry in config.resolved()["sherd.groups"]["value"] or ()}
    groups = Groups([])
    for index, item in enumerate(items):
        own = without_params(item)
        name = str(own.get("name", f"group {index}"))
        values = {**(configured_group(said[name], config) if name in said else defaults), **own}
        groups.all.append(Group(list(as_tensors(item["params"])), values, own, name, f"parameter group {index}"))
    groups.has_default = len(items) == 1
    if groups.has_default:
        matched_move(groups, list(said.values()), config, division)
    return groups


def as_tensors(params: Any) -> Iterable[nn.Parameter]:
    for item in [params] if isinstance(params, torch.Tensor) else params:
        yield item[1] if isinstance(item, tuple) else item  # named_parameters() will do


def configured(config: Config) -> dict[str, Any]:
    """Returns the values of a group without values of its own."""
    resolved = config.resolved()
    kind = str(resolved.get("optimizer.type", {}).get("value"))
    read = next((keys for name, keys in NUMBERS.items() if name.lower() == kind.lower()), ADAMS)
    values = {key: resolved[f"optimizer.params.{key}"]["value"] for key in read
              if f"optimizer.params.{key}" in resolved}
    return {"lr": 0.0, **values}


# ------------------------------------------------------------ sherd.groups --

def configured_group(entry: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Returns the values of a group that an entry of sherd.groups describes."""
    params: dict[str, Any] = entry.get("params") or {}
    if "type" not in entry:
        return {**configured(config), **params}
    given = {key.removeprefix("optimizer.params."): one["value"] for key, one in config.resolved().items()
             if key.startswith("optimizer.params.") and not str(one["origin"]).startswith(("default", "auto"))}
    with Config({"optimizer": {"type": entry["type"], "params": {**given, **params}}}) as its:
        return configured(its)


def matched_move(groups: Groups, entries: Sequence[Mapping[str, Any]], config: Config, division: Division) -> None:
    """Moves parameters of the default group to the groups of sherd.groups whose patterns match their names, as the engine does,
    so that torch's schedulers see these groups too."""
    names = {id(param.tensor): param.name for param in division.params}
    for entry in entries:
        patterns = entry.get("matching") or ()
        patterns = [patterns] if isinstance(patterns, str) else patterns
        moved, rest = [], []
        for tensor in groups.all[0].tensors:
            is_matched = any(fnmatch.fnmatchcase(names.get(id(tensor), ""), one) for one in patterns)
            (moved if is_matched else rest).append(tensor)
        groups.all[0].tensors = rest
        if moved:
            values = {**configured_group(entry, config), "name": entry["name"]}
            groups.all.append(Group(moved, values, {}, entry["name"], f"parameter group {entry['name']}"))
    if not groups.all[0].tensors and len(groups.all) > 1:
        del groups.all[0]
        groups.has_default = False


def check_groups(groups: Groups, division: Division) -> None:
    """Checks that every trainable parameter is in exactly one group."""
    numbers = groups.numbers()
    for param in division.params:
        found = numbers.get(id(param.tensor), [])
        if not param.is_frozen and not found:
            raise ValueError(f"parameter {param.name} requires a gradient and is in no parameter group: add it to one, or "
                             f"freeze it (requires_grad_(False)) before sherd.torch.initialize")
        if len(found) > 1:
            first, second = (groups.all[index].label.removeprefix("parameter group ") for index in found[:2])
            raise ValueError(f"parameter {param.name} is in the parameter groups {first} and {second}")
    known = {id(param.tensor) for param in division.params}
    for group in groups.all:
        if any(id(tensor) not in known for tensor in group.tensors):
            raise ValueError(f"{group.label} has a tensor that is no parameter of the model")


# --------------------------------------------------------------- following --

class NoScaler:
    """Replaces the flag by which torch's GradScaler asks whether an optimizer scales gradients itself, and refuses the question."""

    def __bool__(self) -> bool:
        raise NotSupportedError(SCALER)


class EngineOptimizer(torch.optim.Optimizer):
    """The engine's optimizer, for torch's schedulers. engine.step() makes the updates, so `step` does nothing here; this is for
    loops that call both, as with DeepSpeed."""

    _step_supports_amp_scaling = NoScaler()

    def __init__(self, groups: Groups) -> None:
        super().__init__([{**group.values, "params": group.tensors} for group in groups.all], groups.all[0].values)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        return closure() if closure is not None else None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does nothing: the engine clears gradients itself."""

    def state_dict(self) -> dict[str, Any]:
        raise StateError("the optimizer's state is in the engine: save it with engine.save_checkpoint()")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise StateError("the optimizer's state is in the engine: load it with engine.load_checkpoint()")


class Rates:
    """The learning rates of the groups, where a person or schedulers of torch set them.

    `optimizers` have the groups. They are the person's own, or one EngineOptimizer. `schedulers` are stepped with each update;
    None stands for an optimizer without one.
    """

    def __init__(self, groups: Groups, optimizer: Any, scheduler: Any, base_lr: float) -> None:
        self.groups, self.base_lr = groups, base_lr
        self._is_list = isinstance(optimizer, (list, tuple))
        self.optimizers = as_list(optimizer) if optimizer is not None else [EngineOptimizer(groups)]
        self._given = [dict(group.values) for group in groups.all]
        if optimizer is not None:
            for one in self.optimizers:
                take_over(one)
        self.schedulers = made_schedulers(scheduler, self.optimizers)
        self._epochs: list[Any] | None = None  # last_epoch of each scheduler when the engine last stepped them
        self._is_one_scheduler = len(self.schedulers) != len(self.optimizers)  # the person's own, over several

    @property
    def optimizer(self) -> Any:
        """One optimizer, or a list if a list was given."""
        return self.optimizers if self._is_list else self.optimizers[0]

    @property
    def scheduler(self) -> Any:
        """One scheduler, or a list with one for each optimizer of a list; None if there is none."""
        if all(one is None for one in self.schedulers):
            return None
        return self.schedulers if self._is_list and not self._is_one_scheduler else self.schedulers[0]

    def check_config(self, config: Config) -> None:
        """Checks that only one of the configuration and the scheduler sets the rates."""
        if self.scheduler is not None and config.resolved().get("scheduler.type", {}).get("value"):
            raise ValueError("the configuration has a scheduler and initialize() was given an lr_scheduler: leave one out")

    def now(self) -> list[float] | None:
        """Returns a rate for each of the engine's groups, NaN for the rate of the schedule; None if nobody has set a rate."""
        rates = [] if self.groups.has_default else [math.nan]  # the default group has no parameters then
        is_set = False
        index = 0
        for number, optimizer in enumerate(self.optimizers):
            is_scheduled = self._is_one_scheduler or self.schedulers[number] is not None
            for group in optimizer.param_groups[:len(self._given) - index]:
                self._check_rest(self.groups.all[index].label, group, self._given[index])
                rate = float(group["lr"])
                is_own = is_scheduled or rate != float(self._given[index]["lr"])
                is_set = is_set or is_own
                rates.append(rate if is_own else math.nan)
                index += 1
        return rates if is_set else None

    @staticmethod
    def _check_rest(label: str, group: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        for key in ("betas", "eps", "weight_decay", "momentum"):
            if key in given and group[key] != given[key]:
                raise StateError(f"{key} of {label} was {given[key]} when the engine was made and is {group[key]} now: "
                                 f"only rates may change (torch's OneCycleLR and CyclicLR: cycle_momentum=False)")

    def epochs(self) -> list[Any]:
        return [getattr(scheduler, "last_epoch", None) for scheduler in self.schedulers]

    def are_stepped_twice(self) -> bool:
        """Whether somebody else has stepped one of the schedulers since the engine last did."""
        return any(isinstance(now, int) and isinstance(then, int) and now > then
                   for now, then in zip(self.epochs(), self._epochs or ()))

    def forget_epochs(self) -> None:
        """Is called after the schedulers were loaded, which counts as nobody's step."""
        self._epochs = None

    def after_update(self) -> None:
        """Steps the schedulers that initialize() was given, as DeepSpeed does. The script must not step them too."""
        for optimizer in self.optimizers:
            optimizer._opt_called = True  # what torch's schedulers look at to warn of a wrong order
        for scheduler in self.schedulers:
            if scheduler is not None:
                scheduler.step()
        self._epochs = self.epochs()

    def lr(self, of_schedule: float | None) -> list[float]:
        """Returns the rate of each group. `of_schedule` is the rate of the default group in the last update, by the
        configuration."""
        now = [float(group["lr"]) for optimizer in self.optimizers for group in optimizer.param_groups]
        if of_schedule is None or self.now() is not None:
            return now
        share = of_schedule / self.base_lr if self.base_lr else 1.0
        return [rate * share for rate in now]


def as_list(given: Any) -> list[Any]:
    return list(given) if isinstance(given, (list, tuple)) else [given]


def made_schedulers(given: Any, optimizers: list[torch.optim.Optimizer]) -> list[Any]:
    """Returns a scheduler for each optimizer, from one scheduler, a list, or a function that makes one from an optimizer. An
    object that is not a scheduler of torch may drive several optimizers."""
    if isinstance(given, (list, tuple)):
        if len(given) != len(optimizers):
            raise ValueError(f"lr_scheduler is a list of {len(given)}, and there are {len(optimizers)} optimizers: give one for each, "
                             f"None for those that keep their rates")
        return [made_scheduler(one, optimizer) for one, optimizer in zip(given, optimizers)]
    if len(optimizers) > 1 and isinstance(given, LRScheduler):
        raise ValueError(f"lr_scheduler is one of torch's, over one optimizer, and there are {len(optimizers)}: give a list with one "
                         f"for each (None for those that keep their rates), or a function that makes one of each")
    if len(optimizers) > 1 and hasattr(given, "step"):
        return [given]
    return [made_scheduler(given, optimizer) for optimizer in optimizers]


def made_scheduler(scheduler: Any, optimizer: torch.optim.Optimizer) -> Any:
    """Returns a scheduler over the groups: the given one, or the one that the given function makes."""
    if scheduler is None or isinstance(scheduler, LRScheduler) or hasattr(scheduler, "step"):
        if isinstance(scheduler, LRScheduler) and scheduler.optimizer is not optimizer:
            raise ValueError("lr_scheduler has another optimizer than initialize() was given: give both, or give lr_scheduler "
                             "as a function of the optimizer")
        return scheduler
    if callable(scheduler):
        return scheduler(optimizer)
    raise TypeError(f"lr_scheduler is a scheduler of torch, or a function that makes one of an optimizer, not {scheduler!r}")


def take_over(optimizer: torch.optim.Optimizer) -> None:
    """Makes a torch optimizer keep setting the rates of its groups, but make no steps any more."""
    def refused(*_: Any, **__: Any) -> None:
        raise StateError(STEP)

    refused._wrapped_by_lr_sched = True  # type: ignore[attr-defined] # else schedulers warn that it was replaced
    optimizer.step = refused  # type: ignore[method-assign]
    optimizer.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]
    optimizer._step_supports_amp_scaling = NoScaler()  # type: ignore[attr-defined]


class Watch:
    """Refuses the step of a torch optimizer over the engine's parameters that initialize() was not given.

    Such an optimizer is never handed to the engine. Its step would make its state, as large as the model, before it meets the first
    gradient (tensors.Taken). torch reports the steps to a hook that all optimizers share. The hook is removed at the engine's second
    update, because a loop has reached its optimizer by then.
    """

    UPDATES = 2

    def __init__(self, engine: "Engine") -> None:
        self._engine, self._updates = weakref.ref(engine), 0
        self.end = weakref.finalize(engine, register_optimizer_step_pre_hook(self._before_step).remove)

    def _before_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        engine = self._engine()
        if engine is None or any(optimizer is one for one in engine.rates.optimizers):
            return
        if any(engine.has_param(tensor) for group in optimizer.param_groups for tensor in group["params"]):
            raise StateError(f"initialize() was not given this {type(optimizer).__name__}, which has parameters of the engine, and its "
                             f"step() cannot update them. engine.step() makes the updates: leave this optimizer out, or give it to "
                             f"initialize(..., optimizer=)")

    def after_update(self) -> None:
        self._updates += 1
        if self._updates == self.UPDATES:
            self.end()


# ------------------------------------------------------------- declaration --

def check_optimizers(optimizer: Any, config: Config) -> None:
    """Refuses objects that are no optimizers of torch, and arguments that give the groups twice."""
    given = as_list(optimizer)
    if not given or not all(isinstance(one, torch.optim.Optimizer) for one in given):
        raise TypeError(f"optimizer is one of torch's (torch.optim.AdamW(...)) or a list of them, not {optimizer!r}")
    entries = config.resolved()["sherd.groups"]["value"] or ()
    if any(entry.get("matching") for entry in entries):
        raise ValueError("the configuration has sherd.groups with patterns (\"matching\") and initialize() was given an optimizer, "
                         "whose groups are another division: leave one out")


def read(config: Config, division: Division, optimizer: Any, model_parameters: Any, scheduler: Any) -> Rates:
    """Reads the optimizers, groups and schedulers that initialize() was given, and sets them in `config`."""
    if optimizer is not None:
        check_optimizers(optimizer, config)
        groups = read_optimizers(as_list(optimizer), config)
    else:
        trainable = [param.tensor for param in division.params if not param.is_frozen]
        groups = read_groups(trainable if model_parameters is None else model_parameters, config, division)
    check_groups(groups, division)
    rates = Rates(groups, optimizer, scheduler, float(configured(config)["lr"]))
    rates.check_config(config)
    return rates


def declare(groups: Groups, add_group: Callable[..., int]) -> dict[int, int]:
    """Declares the engine's groups. Returns the number of the group of each tensor, by id. The default group has the
    configuration's values."""
    numbers = []
    for index, group in enumerate(groups.all):
        own: dict[str, Any] = {name: float(group.own[key]) for key, name in KEYS.items() if key in group.own}
        if "betas" in group.own:
            own["beta1"], own["beta2"] = (float(beta) for beta in group.own["betas"])
        if "momentum" in group.own:
            own["beta1"] = float(group.own["momentum"])
        if group.kind is not None:
            own["optimizer"] = group.kind
        numbers.append(0 if groups.has_default and index == 0 else add_group(group.name, **own))
    return {tensor: numbers[found[0]] for tensor, found in groups.numbers().items()}

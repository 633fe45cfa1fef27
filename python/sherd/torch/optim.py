"""Reads torch's optimizers, parameter groups and schedulers into the engine's configuration, and follows their learning rates.

The engine makes all updates. A torch optimizer is read once, at initialize(); after that only its groups' rates matter. Numbers
have torch's names here; docs/numerics.md has the formulas and their sources.
"""
from __future__ import annotations

import fnmatch
import inspect
import json
import math
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, NoReturn, Sequence

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from sherd.config import Config
from sherd.errors import InvalidError, NotSupportedError, StateError
from sherd.torch import regroup
from sherd.torch.say import warn
from sherd.torch.units import Division

if TYPE_CHECKING:
    from sherd.torch.engine import Engine

SCALER = ("torch's GradScaler is not used with sherd: with \"fp16\": {\"enabled\": true} in the configuration, engine.backward() scales the "
          "loss, and engine.step() skips updates that overflow. Leave the scaler out, call engine.backward(loss) and engine.step()")
STEP = "updates are made by engine.step(), which steps the scheduler of initialize() too: leave out optimizer.step()"
CHANGES = ("amsgrad", "maximize", "differentiable", "decoupled_lr", "cautious_factor")  # flags that make another method of it
ADAMS = ("lr", "betas", "eps", "weight_decay")
# The numbers of a group that an optimizer reads, under torch's names, by optimizer.type. ADAMS is for all types not listed here.
NUMBERS = {"SGD": ("lr", "weight_decay", "momentum"), "Adagrad": ("lr", "eps", "weight_decay"), "Lion": ("lr", "betas", "weight_decay"),
           "Muon": ("lr", "weight_decay", "momentum")}
# Settings of which an engine has one value, for all groups that read it, by optimizer.type; with the engine's defaults.
ALIKE: dict[str, dict[str, Any]] = {
    "Adam": {"adam_w_mode": True},
    "SGD": {"dampening": 0.0, "nesterov": False},
    "Adagrad": {"lr_decay": 0.0, "initial_accumulator_value": 0.0},
    "Muon": {"nesterov": True, "ns_steps": 5, "adjust_lr_fn": "original"},
}
# The constants of Muon's Newton-Schulz iteration (Jordan et al. 2024), which are torch's defaults; the engine has no others.
MUONS_OWN = {"ns_coefficients": (3.4445, -4.775, 2.0315), "eps": 1e-7}
MUONS_RATES = ("original", "match_rms_adamw")  # the values of torch's adjust_lr_fn that the engine has
LIONS = ("Lion", "DeepSpeedCPULion", "FusedLion")  # class names of Lion in other packages; torch has none
MUON = getattr(torch.optim, "Muon", None)  # torch 2.9 and later have it
KEYS = {"lr": "lr", "weight_decay": "weight_decay", "eps": "eps"}  # torch's names: fields of sherd_group_params


@dataclass
class Group:
    """Parameters that are updated with the same numbers, like torch's parameter groups."""

    tensors: list[nn.Parameter]
    values: dict[str, Any]  # its numbers and settings under torch's names
    own: dict[str, Any]  # those of the values that are declared to the engine
    name: str  # its name in the engine
    label: str  # its name in messages
    kind: str | None = None  # its optimizer.type; None: the configuration's


@dataclass
class Groups:
    """All parameter groups, in the order of the torch optimizers that they come from."""

    all: list[Group]
    has_default: bool = False  # the first group is the engine's group 0, whose values are the configuration's

    def numbers(self) -> dict[int, list[int]]:
        """Returns the indices of the groups that each tensor is in, by the tensor's id."""
        found: dict[int, list[int]] = {}
        for index, group in enumerate(self.all):
            for tensor in group.tensors:
                found.setdefault(id(tensor), []).append(index)
        return found


# ----------------------------------------------------------------- reading --

def type_of(optimizer: torch.optim.Optimizer) -> str:
    """Returns the optimizer.type that stands for a torch optimizer.

    Raises NotSupportedError for a class, flag or constant that sherd does not have, StateError where it has made steps already.
    """
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
    if any(float(state.get("step", 1)) != 0 for state in optimizer.state.values()):  # Adagrad has state before its first step
        raise StateError(f"the {kind.__name__} that initialize() was given has made steps already, and its state is not taken "
                         f"over: make a new one, or load a checkpoint with engine.load_checkpoint()")
    return "Lion" if is_lion else kind.__name__


def check_muon(optimizer: torch.optim.Optimizer) -> None:
    """Raises NotSupportedError unless Muon's iteration and its adjustment of the rate are among those of the engine."""
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
    """Returns what a group of an optimizer `kind` says of the settings of which an engine has one value (ALIKE)."""
    if kind == "Adam":
        return {"adam_w_mode": bool(group.get("decoupled_weight_decay"))}
    if kind == "SGD" and not group["momentum"]:
        return {}
    says = {key: group[key] for key in ALIKE.get(kind, ())}
    if kind == "Muon":
        says["adjust_lr_fn"] = says["adjust_lr_fn"] or "original"
    return says


def read_optimizers(optimizers: Sequence[torch.optim.Optimizer], config: Config) -> Groups:
    """Fills the block "optimizer" of `config` from torch optimizers, and returns their groups.

    The first optimizer becomes optimizer.type; the groups of the others name their types. Raises InvalidError where the
    configuration gives another value, NotSupportedError where sherd does not have what an optimizer asks for, StateError.
    """
    groups = Groups([])
    first = type_of(optimizers[0])
    give(config, "type", first, first)
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
        give(config, f"params.{key}", [float(x) for x in value] if key == "betas" else float(value), first)
    read_alike(groups, first, config)
    return groups


def give(config: Config, key: str, value: Any, kind: str) -> None:
    """Sets a key of the block "optimizer" to what an optimizer of torch's of that kind has. Raises InvalidError, which says which of two
    values is whose, where the configuration has another one."""
    key = f"optimizer.{key}"
    try:
        config.set(key, value)
    except InvalidError:
        found = config.resolved()[key]
        if str(found["origin"]).startswith(("default", "auto")):
            raise
        place = "" if config.is_dict else f" ({found['origin']})"
        raise InvalidError(f"{key} is {json.dumps(found['value'])} in the configuration{place}, and {json.dumps(value)} in the torch optimizer "
                           f"({kind}) that initialize() was given: take the key out of the configuration, or give both one value") from None


def read_alike(groups: Groups, first: str, config: Config) -> None:
    """Sets the settings of which an engine has one value. Raises NotSupportedError where groups have several values."""
    said: dict[str, dict[str, Any]] = {}  # what the groups say, by key and optimizer.type
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
            continue  # each type then has its own default
        if not is_one:
            texts = " and ".join(f"{kind} has {key}={value}" for kind, value in kinds.items())
            raise NotSupportedError(f"{texts}: sherd has one {key} for all groups that read it")
        value = next(iter(kinds.values()))
        if key == "nesterov" and value and first not in kinds:
            momentum = next(group.values["momentum"] for group in groups.all if group.kind in kinds)
            give(config, "params.momentum", float(momentum), next(iter(kinds)))  # the key nesterov needs a momentum
        give(config, f"params.{key}", value if isinstance(value, (bool, int, str)) else float(value), next(iter(kinds)))


def without_params(group: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a group of torch's without its tensors."""
    return {key: value for key, value in group.items() if key != "params"}


def read_groups(given: Any, config: Config, division: Division) -> Groups:
    """Reads groups in the form in which torch's optimizers take them: parameters, or dicts with "params" and values.

    A value that a dict lacks is that of `config`. One group alone becomes the default group, from which sherd.groups of `config`
    may take parameters. Raises InvalidError where the rate is "auto".
    """
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
    """Yields the tensors of one parameter, a list of them, or pairs of name and parameter, as named_parameters() gives them."""
    for item in [params] if isinstance(params, torch.Tensor) else params:
        yield item[1] if isinstance(item, tuple) else item


def configured(config: Config) -> dict[str, Any]:
    """Returns the values of a group that gives none of its own; they are the configuration's. A rate of "auto" is None."""
    resolved = config.resolved()
    kind = str(resolved.get("optimizer.type", {}).get("value"))
    read = next((keys for name, keys in NUMBERS.items() if name.lower() == kind.lower()), ADAMS)
    values = {key: resolved[f"optimizer.params.{key}"]["value"] for key in read
              if f"optimizer.params.{key}" in resolved}
    return {"lr": 0.0, **values}


def is_inference(config: Config) -> bool:
    """Whether the engine makes no updates (optimizer.type "none"), so that it has no gradients either."""
    return str(config.resolved()["optimizer.type"]["value"]) == "none"


# ------------------------------------------------------------ sherd.groups --

def configured_group(entry: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Returns the values of a group for which sherd.groups has an entry: the entry's, else the configuration's."""
    params: dict[str, Any] = entry.get("params") or {}
    if "type" not in entry:
        return {**configured(config), **params}
    given = {key.removeprefix("optimizer.params."): one["value"] for key, one in config.resolved().items()
             if key.startswith("optimizer.params.") and not str(one["origin"]).startswith(("default", "auto"))}
    with Config({"optimizer": {"type": entry["type"], "params": {**given, **params}}}) as its:
        return configured(its)


def matched_move(groups: Groups, entries: Sequence[Mapping[str, Any]], config: Config, division: Division) -> None:
    """Moves parameters of the default group to the groups of sherd.groups whose patterns match their names.

    The engine does the same when it seals. It is done here too, so that torch's schedulers find these groups.
    """
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
    """Raises ValueError unless every trainable parameter is in exactly one group, and groups have parameters of the model alone."""
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
    """Replaces a flag of torch's optimizers. torch's GradScaler reads this flag, and reading it raises NotSupportedError."""

    def __bool__(self) -> bool:
        raise NotSupportedError(SCALER)


class EngineOptimizer(torch.optim.Optimizer):
    """A torch optimizer that stands for the engine's, so that schedulers have groups to work on.

    engine.step() makes the updates. `step` does nothing, for loops that call it in addition to engine.step(), as loops with DeepSpeed do. It
    warns once, unless `warns` is False.
    """

    _step_supports_amp_scaling = NoScaler()
    warns = True

    def __init__(self, groups: Groups) -> None:
        super().__init__([{**group.values, "params": group.tensors} for group in groups.all], groups.all[0].values)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Does nothing but call `closure`, whose result it returns."""
        if self.warns:
            self.warns = False
            warn("engine.optimizer.step() does nothing: call engine.step() after the backward of each micro-batch, which makes the updates, "
                 "and leave optimizer.step() out")
        return closure() if closure is not None else None


class Rates:
    """The learning rates of the groups, which the script or schedulers of torch may set.

    `optimizers` have the groups; they are the script's own, or one EngineOptimizer. `schedulers` has one entry for each optimizer,
    None where there is none, or a single object that drives them all. The engine steps them with each update.
    """

    def __init__(self, groups: Groups, optimizer: Any, scheduler: Any) -> None:
        self.groups = groups
        self._is_list = isinstance(optimizer, (list, tuple))
        self.optimizers = as_list(optimizer) if optimizer is not None else [EngineOptimizer(groups)]
        self._given = [dict(group.values) for group in groups.all]
        self._shown = [float(given.get("lr") or 0.0) for given in self._given]  # the rates that nobody has set, as the groups show them
        self._used: list[float] | None = None  # the rates that now() returned for the last update
        self.schedulers = made_schedulers(scheduler, self.optimizers)
        for one in self.optimizers:
            take_over(one)
        self._epochs: list[Any] | None = None  # last_epoch of each scheduler when the engine last stepped them
        self._is_one_scheduler = len(self.schedulers) != len(self.optimizers)  # one object drives several optimizers
        self._has_schedule = self._has_lists = False  # the configuration has a schedule; it has a number for each group

    @property
    def optimizer(self) -> Any:
        """The optimizer, or the list of them where a list was given."""
        return self.optimizers if self._is_list else self.optimizers[0]

    @property
    def scheduler(self) -> Any:
        """The scheduler, or a list with one for each optimizer where a list of optimizers was given; None: there is none."""
        if all(one is None for one in self.schedulers):
            return None
        return self.schedulers if self._is_list and not self._is_one_scheduler else self.schedulers[0]

    def check_config(self, config: Config) -> None:
        """Notes the configuration's schedule. Raises ValueError where the script has a scheduler too."""
        self._has_schedule = bool(config.resolved().get("scheduler.type", {}).get("value"))
        self._has_lists = any(key.startswith("scheduler.params.") and isinstance(one["value"], list)
                              for key, one in config.resolved().items())
        if self.scheduler is not None and self._has_schedule:
            raise ValueError("the configuration has a scheduler and initialize() was given an lr_scheduler: leave one out, the block "
                             "\"scheduler\" or lr_scheduler=")

    def now(self) -> dict[str, list[float]] | None:
        """Returns the lists of sherd.Engine.apply with what has been set for each of the engine's groups; None where nothing has.

        NaN stands for the configuration's: a rate is that for a group whose optimizer has no scheduler and whose rate is what it showed
        (`show`); the first beta (or momentum) and the weight decay are that where they are what they were at initialize(). Raises
        StateError where another number was changed.
        """
        default = [] if self.groups.has_default else [math.nan]  # for the engine's group 0, which then has no parameters
        rates, betas, decays = list(default), list(default), list(default)
        index = 0
        for number, optimizer in enumerate(self.optimizers):
            is_scheduled = self._is_one_scheduler or self.schedulers[number] is not None
            for group in optimizer.param_groups[:len(self._given) - index]:
                given = self._given[index]
                self._check_rest(self.groups.all[index].label, group, given)
                rate = float(group["lr"])
                rates.append(rate if is_scheduled or rate != self._shown[index] else math.nan)
                betas.append(changed(first_beta(group), first_beta(given)))
                decays.append(changed(group.get("weight_decay"), given.get("weight_decay")))
                index += 1
        lists = {"group_lr": rates, "group_beta1": betas, "group_weight_decay": decays}
        return {name: listed for name, listed in lists.items() if not all(map(math.isnan, listed))} or None

    @staticmethod
    def _check_rest(label: str, group: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """Raises StateError where a number of a group that does not change in training is not what it was at initialize()."""
        for key in ("betas", "eps"):
            if key in given and (group[key][1:] != given[key][1:] if key == "betas" else group[key] != given[key]):
                raise StateError(f"{key} of {label} was {given[key]} when the engine was made and is {group[key]} now: the rate, the weight "
                                 f"decay, and the momentum or the first of the betas may change, and no other number")

    def _free(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields the index and torch's group of each group whose rate no scheduler of torch sets."""
        index = 0
        for number, optimizer in enumerate(self.optimizers):
            scheduler = self.schedulers[0 if self._is_one_scheduler else number]
            for group in optimizer.param_groups[:len(self._given) - index]:
                if not isinstance(scheduler, LRScheduler):
                    yield index, group
                index += 1

    def by_hand(self) -> list[float | None]:
        """Returns the rates that the script has set for the next update; None for a group without such a rate."""
        rates: list[float | None] = [None] * len(self._given)
        for index, group in self._free():
            if float(group["lr"]) != self._shown[index]:
                rates[index] = float(group["lr"])
        return rates

    def show(self, of_config: Callable[[int], float], is_sealed: bool, keeps: bool) -> None:
        """Makes the groups show the rates that the configuration's schedule gives the next update. `of_config` is that of lr().

        Does nothing without such a schedule. As a schedule of torch does, it replaces rates that the script has set; with `keeps`,
        before they were used, they stay.
        """
        first = 0 if self.groups.has_default else 1
        if not self._has_schedule or first and self._has_lists and not is_sealed:
            return
        for index, group in self._free():
            rate = of_config(first + index)
            if not math.isnan(rate) and not (keeps and float(group["lr"]) != self._shown[index]):
                group["lr"] = self._shown[index] = rate

    def others(self) -> list[list[float | None]]:
        """Returns the momentum (or first beta) and the weight decay of each group that are not those of initialize(), else None."""
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups][:len(self._given)]
        pairs = [(changed(first_beta(group), first_beta(given)), changed(group.get("weight_decay"), given.get("weight_decay")))
                 for group, given in zip(groups, self._given)]
        return [[None if math.isnan(one) else one for one in pair] for pair in pairs]

    def take_others(self, kept: Sequence[Sequence[float | None] | None]) -> None:
        """Sets the numbers that others() returned in another run, in the order of the groups now."""
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups][:len(self._given)]
        for group, pair in zip(groups, kept):
            beta, decay = pair or (None, None)
            if beta is not None and "betas" in group:
                group["betas"] = (beta, *group["betas"][1:])
            elif beta is not None and "momentum" in group:
                group["momentum"] = beta
            if decay is not None:
                group["weight_decay"] = decay

    def take(self, kept: Sequence[float | None]) -> None:
        """Sets the rates that by_hand() returned in another run, in the order of the groups now. A scheduler of torch has its own."""
        self._used = None
        for index, group in self._free():
            group["lr"] = group["lr"] if kept[index] is None else kept[index]

    def named(self, division: Division) -> list[regroup.Groups]:
        """Returns the names of the parameters of each group of each optimizer, by which a later run recognises the groups."""
        names = {id(param.tensor): param.name for param in division.params}
        groups = iter(self.groups.all)
        return [[[names[id(tensor)] for tensor in next(groups).tensors] for _ in optimizer.param_groups] for optimizer in self.optimizers]

    def epochs(self) -> list[Any]:
        """Returns torch's counter of steps of each scheduler; None for a scheduler that has none."""
        return [getattr(scheduler, "last_epoch", None) for scheduler in self.schedulers]

    def are_stepped_twice(self) -> bool:
        """Whether the script has stepped one of the schedulers since the engine last did."""
        return any(isinstance(now, int) and isinstance(then, int) and now > then
                   for now, then in zip(self.epochs(), self._epochs or ()))

    def forget_epochs(self) -> None:
        """Forgets the counters of the schedulers after these were loaded, because a load is no step."""
        self._epochs = None

    def after_update(self, used: Mapping[str, list[float]] | None) -> None:
        """Steps the schedulers that initialize() was given by one, as DeepSpeed does. The script must not step them too.

        `used` is what now() returned for this update.
        """
        self._used = (used or {}).get("group_lr") if self._has_schedule else None
        for optimizer in self.optimizers:
            optimizer._opt_called = True  # torch's schedulers warn of a wrong order of calls where this is not set
        for scheduler in self.schedulers:
            if scheduler is not None:
                scheduler.step()
        self._epochs = self.epochs()

    def lr(self, of_config: Callable[[int], float], is_sealed: bool) -> list[float]:
        """Returns the rates of the groups. `of_config` gives the configuration's rate for a group of the engine that has no other.

        A rate that the script has set for the next update counts first, and then one that it had set for the last update.

        Until it is sealed, the engine does not know whether its group 0 counts in a schedule's lists. Where that matters, the rates
        are then those of the groups, without the schedule.
        """
        first = 0 if self.groups.has_default else 1
        rates = (self.now() or {}).get("group_lr") or [math.nan] * (first + len(self._given))
        rates = [used if math.isnan(rate) else rate for rate, used in zip(rates, self._used or rates)]
        if first and self._has_lists and not is_sealed:
            return [float(given["lr"]) if math.isnan(rate) else rate for rate, given in zip(rates[first:], self._given)]
        return [of_config(number) if math.isnan(rates[number]) else rates[number] for number in range(first, len(rates))]


def first_beta(group: Mapping[str, Any]) -> Any:
    """Returns the first of the betas of a group, or its momentum; None where it has neither."""
    return group["betas"][0] if "betas" in group else group.get("momentum")


def changed(now: Any, given: Any) -> float:
    """Returns a number of a group where it is not what it was at initialize(); else NaN."""
    return math.nan if now is None or given is None or now == given else float(now)


def as_list(given: Any) -> list[Any]:
    """Returns a list or tuple as a list, and any other value as a list of one."""
    return list(given) if isinstance(given, (list, tuple)) else [given]


def made_schedulers(given: Any, optimizers: list[torch.optim.Optimizer]) -> list[Any]:
    """Returns a scheduler for each optimizer: from one scheduler, a list of them, or a function that makes one for an optimizer.

    A single object that has `step` and is no scheduler of torch may drive several optimizers; it is then the only entry. Raises
    ValueError where the numbers do not fit, TypeError.
    """
    if isinstance(given, (list, tuple)):
        if len(given) != len(optimizers):
            raise ValueError(f"lr_scheduler is a list of {len(given)}, and there are {len(optimizers)} optimizers: give one for each, "
                             f"None for those that keep their rates")
        return [made_scheduler(one, optimizer) for one, optimizer in zip(given, optimizers)]
    if len(optimizers) > 1 and isinstance(given, LRScheduler):
        raise ValueError(f"lr_scheduler is one of torch's, over one optimizer, and there are {len(optimizers)}: give a list with one "
                         f"for each (None for those that keep their rates), or a function that makes one of each")
    if len(optimizers) > 1 and hasattr(given, "step") and not isinstance(given, type):
        return [steppable(given)]
    return [made_scheduler(given, optimizer) for optimizer in optimizers]


def made_scheduler(scheduler: Any, optimizer: torch.optim.Optimizer) -> Any:
    """Returns the scheduler of one optimizer: the one that was given, or what the given function makes.

    Raises ValueError for a scheduler over another optimizer, TypeError for what is neither a scheduler nor a function, and for a
    scheduler that the engine cannot step.
    """
    if scheduler is None:
        return None
    if hasattr(scheduler, "step") and not isinstance(scheduler, type):
        if isinstance(scheduler, LRScheduler) and scheduler.optimizer is not optimizer:
            raise ValueError("lr_scheduler has another optimizer than initialize() was given: give both, or give lr_scheduler "
                             "as a function of the optimizer")
        return steppable(scheduler)
    if callable(scheduler):
        return steppable(scheduler(optimizer))
    raise TypeError(f"lr_scheduler is a scheduler of torch, or a function that makes one of an optimizer, not {scheduler!r}")


def steppable(scheduler: Any) -> Any:
    """Returns the scheduler. Raises TypeError where its step() needs arguments (ReduceLROnPlateau), which the engine does not have."""
    try:
        listed = inspect.signature(scheduler.step).parameters.values()
    except (TypeError, ValueError, AttributeError):  # a step() without a signature, or None from a function
        return scheduler
    needed = [one.name for one in listed if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    if needed:
        raise TypeError(f"{type(scheduler).__name__}.step() needs {', '.join(needed)}, and engine.step() does not know it: step this "
                        f"scheduler yourself, after engine.step(), and do not give it to initialize(); make it over the optimizer that "
                        f"initialize() was given, or over engine.optimizer. The engine takes the rates that it sets")
    return scheduler


def take_over(optimizer: torch.optim.Optimizer) -> None:
    """Takes a torch optimizer over: its groups still give the rates, and calls that would bypass the engine raise StateError."""
    def refused(text: str) -> Callable[..., NoReturn]:
        def call(*_: Any, **__: Any) -> NoReturn:
            raise StateError(text)
        return call

    if not isinstance(optimizer, EngineOptimizer):
        step = refused(STEP)
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined] # otherwise schedulers warn of a replaced step()
        optimizer.step = step  # type: ignore[method-assign]
    optimizer.state_dict = refused(  # type: ignore[method-assign]
        "the optimizer's state is in the engine: save it with engine.save_checkpoint()")
    optimizer.load_state_dict = refused(  # type: ignore[method-assign]
        "the optimizer's state is in the engine: load it with engine.load_checkpoint()")
    optimizer.add_param_group = refused(  # type: ignore[method-assign]
        "the engine has the groups that initialize() was given, and would not train the parameters of another one: make all groups, and "
        "put all parameters into the model, before sherd.torch.initialize")
    optimizer._step_supports_amp_scaling = NoScaler()  # type: ignore[attr-defined]


def clear_by(engine: "Engine", optimizers: list[torch.optim.Optimizer]) -> None:
    """Makes zero_grad() of the optimizers the engine's (Engine.zero_grad). The engine's own optimizer warns on rank 0 alone."""
    reference = weakref.ref(engine)

    def zero_grad(set_to_none: bool = True) -> None:
        of = reference()
        if of is not None:
            of.clear("optimizer.zero_grad()")

    for optimizer in optimizers:
        optimizer.zero_grad = zero_grad  # type: ignore[method-assign]
        if isinstance(optimizer, EngineOptimizer):
            optimizer.warns = engine.rank == 0


class Watch:
    """Refuses the step of a torch optimizer over the engine's parameters that initialize() was not given.

    Such a step would make its state, as large as the model, before it met the first gradient and failed (tensors.Taken).

    The engine does not know such an optimizer. It learns of the optimizer's steps by a hook of torch's that all optimizers of the
    process share. To cost little, the hook stays only until the engine's second update: a loop has called its optimizer by then.
    """

    UPDATES = 2  # updates of the engine after which the hook goes

    def __init__(self, engine: "Engine") -> None:
        self._engine, self._updates = weakref.ref(engine), 0
        self.end = weakref.finalize(engine, register_optimizer_step_pre_hook(self._before_step).remove)

    def _before_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        """The hook, which torch calls before the step of any optimizer."""
        engine = self._engine()
        if engine is None or any(optimizer is one for one in engine.rates.optimizers):
            return
        if any(engine.has_param(tensor) for group in optimizer.param_groups for tensor in group["params"]):
            raise StateError(f"initialize() was not given this {type(optimizer).__name__}, which has parameters of the engine, and its "
                             f"step() cannot update them. engine.step() makes the updates: leave this optimizer out, or give it to "
                             f"initialize(..., optimizer=)")

    def after_update(self) -> None:
        """Counts an update of the engine, and removes the hook after the last one that it watches."""
        self._updates += 1
        if self._updates == self.UPDATES:
            self.end()


# ------------------------------------------------------------- declaration --

def check_optimizers(optimizer: Any, config: Config) -> None:
    """Raises TypeError for what is no optimizer of torch's, ValueError where the configuration divides the parameters too."""
    given = as_list(optimizer)
    if not given or not all(isinstance(one, torch.optim.Optimizer) for one in given):
        raise TypeError(f"optimizer is one of torch's (torch.optim.AdamW(...)) or a list of them, not {optimizer!r}")
    entries = config.resolved()["sherd.groups"]["value"] or ()
    if any(entry.get("matching") for entry in entries):
        raise ValueError("the configuration has sherd.groups with patterns (\"matching\") and initialize() was given an optimizer, "
                         "whose groups are another division: leave one out")


def read(config: Config, division: Division, optimizer: Any, model_parameters: Any, scheduler: Any) -> Rates:
    """Reads the optimizers, groups and schedulers that initialize() was given, and sets `config` accordingly. Local.

    Raises TypeError, ValueError, InvalidError, NotSupportedError and StateError, as the functions above say.
    """
    if optimizer is not None:
        check_optimizers(optimizer, config)
        groups = read_optimizers(as_list(optimizer), config)
    else:
        trainable = [param.tensor for param in division.params if not param.is_frozen]
        groups = read_groups(trainable if model_parameters is None else model_parameters, config, division)
    check_groups(groups, division)
    rates = Rates(groups, optimizer, scheduler)
    rates.check_config(config)
    return rates


def declare(groups: Groups, add_group: Callable[..., int]) -> dict[int, int]:
    """Declares the groups to the engine by `add_group`. Returns the engine's number of the group of each tensor, by its id.

    The default group is group 0, which exists already and has the configuration's values.
    """
    numbers = []
    for index, group in enumerate(groups.all):
        own: dict[str, Any] = {name: float(group.own[key]) for key, name in KEYS.items() if key in group.own}
        if group.values.get("lr") is not None:
            own["lr"] = float(group.values["lr"])  # that of sherd.groups too, which the engine else reads when it is sealed
        if "betas" in group.own:
            own["beta1"], own["beta2"] = (float(beta) for beta in group.own["betas"])
        if "momentum" in group.own:
            own["beta1"] = float(group.own["momentum"])
        if group.kind is not None:
            own["optimizer"] = group.kind
        numbers.append(0 if groups.has_default and index == 0 else add_group(group.name, **own))
    return {tensor: numbers[found[0]] for tensor, found in groups.numbers().items()}

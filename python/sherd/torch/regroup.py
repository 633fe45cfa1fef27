"""Puts what a checkpoint has of parameter groups into the order that the groups have now.

The optimizer's state goes by the names of parameters. But rates that the script has set, and the lists in states of torch's schedulers,
have an entry for each group. So a checkpoint has the names of the parameters of each group too, by which its groups are recognised.
"""
from __future__ import annotations

from typing import Any

import torch

from sherd.errors import InvalidError
from sherd.torch.units import some

Groups = list[list[str]]  # the names of the parameters of each group

# The lists in the states of torch's schedulers: those that have an entry for each group, and those that have none.
BY_GROUP = ("base_lrs", "_last_lr", "lr_lambdas", "max_lrs", "min_lrs", "base_momentums", "max_momentums")
OTHERS = ("_milestones", "_schedule_phases")
NESTED = "_schedulers"  # the states of schedulers inside of one (SequentialLR, ChainedScheduler)


def order(before: Groups, now: Groups) -> list[int]:
    """Returns for each group of `now` which one of `before` it is: the one that has parameters of it. Others may have come or gone.

    Raises LookupError, with a text, where the groups are not those of `before` in any order.
    """
    if before == now:
        return list(range(len(now)))
    owners = {name: number for number, names in enumerate(before) for name in names}
    found: list[int] = []
    for names in now:
        were = {owners[name] for name in names if name in owners}
        if len(were) != 1:
            raise LookupError(f"the group of {some(names)} is {'several groups' if were else 'not'} there")
        found += were
    if sorted(found) != list(range(len(before))):
        raise LookupError(f"the {len(now)} of now are {len(set(found))} of {len(before)} there")
    return found


def schedule(state: dict[str, Any], before: Groups, now: Groups) -> dict[str, Any]:
    """Returns the state of a scheduler, with its lists, tuples and tensors in the order of the groups of now, also those in dicts.

    A list that has one value for all groups fits any groups, if there are as many. Raises InvalidError, with the name, for another one where
    the groups are not recognised, and for a list that torch's schedulers do not have where the groups are in another order.
    """
    try:
        groups, why = order(before, now), "are in another order there"
    except LookupError as error:
        groups, why = [], f"are not recognised: {error.args[0]}"

    def arranged(key: str, listed: Any) -> Any:
        if key not in BY_GROUP and len(listed) != len(before):
            return listed
        if groups and len(listed) == len(before) and (key in BY_GROUP or groups == sorted(groups)):
            return type(listed)(listed[group] for group in groups) if isinstance(listed, (list, tuple)) else listed[groups]
        if len(listed) == len(now) and all(repr(one) == repr(listed[0]) for one in listed):
            return listed
        raise InvalidError(f"the schedule of the checkpoint has a list {key} with as many entries as parameter groups, and the groups of now "
                           f"{why}. Give the groups that the checkpoint has, or load with load_module_only=True")

    def entry(key: str, value: Any) -> Any:
        if key == NESTED:
            return [schedule(one, before, now) for one in value]
        if key in OTHERS:
            return value
        if type(value) is dict:  # such as the state of a scheduler inside of the script's own
            return schedule(value, before, now)
        is_listed = isinstance(value, (list, tuple)) or isinstance(value, torch.Tensor) and value.dim() > 0
        return arranged(key, value) if is_listed else value

    return {key: entry(key, value) for key, value in state.items()}

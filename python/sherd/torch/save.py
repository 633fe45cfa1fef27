"""Saves checkpoints, and what the engine does not know of: client state, torch's schedules, rates that were set, buffers.

These are in two large blobs of a checkpoint, rank 0's: CLIENT_STATE is JSON, and CLIENT_BYTES has the tensors in it (packed.py).
"""
from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Mapping, Sequence

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from sherd.engine import Engine as Core
from sherd.errors import InvalidError
from sherd.torch import regroup
from sherd.torch.fill import raw
from sherd.torch.packed import Packer, unpack
from sherd.torch.say import warn
from sherd.torch.units import matches
from sherd.torch.weights import Path, distinct, unmanaged_of
from sherd.world import World

if TYPE_CHECKING:
    from sherd.torch.engine import Engine

CLIENT_STATE = "client_state"
CLIENT_BYTES = "client_state.bytes"


@dataclass
class Kept:
    """The two blobs, as they are in a checkpoint. `text` is None where another program saved it."""

    text: str | None
    data: bytes

    def shared(self, world: World) -> "Kept":
        """Returns rank 0's on all ranks. Collective, blocking."""
        text = json.loads(world.share(json.dumps(self.text).encode()))
        return Kept(text, world.share(self.data))

    def read(self) -> dict[str, Any]:
        """Returns client state, schedule, rates and other numbers, groups and buffers. Raises ValueError where the blobs are not of save_checkpoint().

        Earlier versions wrote no rates or other numbers, no groups, and the bytes of buffers in base64.
        """
        kept: dict[str, Any] = {"client_state": {}, "schedule": None, "buffers": {}}
        found = kept if self.text is None else json.loads(self.text)
        if not isinstance(found, dict) or not kept.keys() <= found.keys():
            raise ValueError(f"it is not an object with {', '.join(kept)}")
        try:
            old = {name: torch.frombuffer(bytearray(base64.b64decode(one["data"])), dtype=getattr(torch, one["dtype"]))
                   for name, one in found["buffers"].items() if "data" in one}
            return {"rates": [], "others": [], "groups": None, **unpack(found, self.data), **({"buffers": old} if old else {})}
        except (AttributeError, KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"it is damaged, {error!r}") from None


def kept_by(core: Core) -> Kept:
    """Returns what an engine has of a checkpoint that it has loaded. Local."""
    text = blob_of(core, CLIENT_STATE)
    return Kept(None if text is None else text.decode(errors="replace"), blob_of(core, CLIENT_BYTES) or b"")


def blob_of(core: Core, key: str) -> bytes | None:
    """Returns a blob of the run; None where there is none, as when another program or an earlier version has saved it."""
    try:
        return core.blob(key)
    except InvalidError:
        return None


def save_checkpoint(engine: "Engine", folder: Path, tag: str | None, client_state: Mapping[str, Any] | None,
                    **options: Any) -> None:
    """Saves everything that a later run needs: weights, optimizer, counters, buffers, torch's schedulers, rates that the script
    has set, `client_state`.

    Quantised weights count as buffers. Collective, blocking, between steps. Raises TypeError where `client_state` has what
    Packer.pack does not take, and what sherd.Engine.save raises.
    """
    packer = Packer()
    text = json.dumps({"client_state": packer.pack(dict(client_state or {}), "client_state"),
                       "schedule": packer.pack(schedule_state(engine), "a schedule"), "rates": engine.rates.by_hand(),
                       "others": engine.rates.others(), "groups": engine.rates.named(engine.division),
                       "buffers": packer.pack(engine.buffers.saved(), "the buffers")})
    engine.core.set_blob(CLIENT_STATE, text.encode(), is_large=1)
    engine.core.set_blob(CLIENT_BYTES, packer.bytes(), is_large=1)
    try:
        engine.core.save(folder, tag, **options)
    finally:
        forget(engine)


def forget(engine: "Engine") -> None:
    """Gives the memory of both blobs back: a checkpoint has them, or they were read. Local."""
    engine.core.set_blob(CLIENT_STATE, None)
    engine.core.set_blob(CLIENT_BYTES, None)


class Buffers:
    """Finds what a checkpoint has of that which a state_dict has and the engine does not (unmanaged_of): buffers, such as the statistics of
    a BatchNorm, and quantised weights that load_state_dict() has written.

    It keeps a SHA-256 digest of each quantised weight as it was when the object was made, and compares with it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._begun = {name: digest(one) for name, one in distinct(unmanaged_of(model)).items() if isinstance(one, nn.Parameter)}

    def saved(self) -> dict[str, torch.Tensor]:
        """Returns each buffer of this rank, and each quantised weight that has changed, by its first name. Local. A checkpoint has rank 0's."""
        return {name: one for name, one in distinct(unmanaged_of(self._model)).items()
                if not isinstance(one, nn.Parameter) or digest(one) != self._begun.get(name)}

    def check(self, kept: Mapping[str, torch.Tensor]) -> None:
        """Raises InvalidError, with the name, where one of these buffers has another number of elements in the model. Local."""
        buffers = unmanaged_of(self._model)
        for name in kept.keys() & buffers.keys():
            if kept[name].numel() != buffers[name].numel():
                raise InvalidError(f"buffer {name} is {list(kept[name].shape)} in the checkpoint and {list(buffers[name].shape)} in the model: "
                                   f"give it that shape before the load")

    def take(self, kept: Mapping[str, torch.Tensor], own: Sequence[str] = ()) -> None:
        """Writes what saved() returned to the model's buffers. Local. Names that match `own`, or that the model does not have, are passed
        over; a buffer that is None in the model is made."""
        buffers = unmanaged_of(self._model)
        with torch.no_grad():
            for name in [name for name in kept if not matches(name, own)]:
                path, _, last = name.rpartition(".")
                owner = dict(self._model.named_modules()).get(path)
                if name in buffers:
                    buffers[name].copy_(kept[name].reshape(buffers[name].shape))
                elif owner is not None and owner._buffers.get(last, kept) is None:
                    near = next(iter(self._model.parameters()), kept[name])
                    owner._buffers[last] = kept[name].clone().to(near.device)


def digest(buffer: torch.Tensor) -> bytes:
    return hashlib.sha256(raw(buffer)).digest()


def schedule_state(engine: "Engine") -> Any:
    """Returns the state of torch's scheduler, or a list of states; values that a checkpoint does not store, such as functions, are omitted."""
    given = engine.lr_scheduler
    return [state_of(one) for one in given] if isinstance(given, list) else state_of(given)


def state_of(scheduler: Any) -> dict[str, Any] | None:
    """Returns those entries of a scheduler's state_dict() that a checkpoint keeps; None for None."""
    if scheduler is None:
        return None
    state = {}
    for key, value in scheduler.state_dict().items():
        try:
            Packer().pack(value, key)
            state[key] = value
        except TypeError:
            continue
    return state


Schedules = list[tuple[Any, dict[str, Any]]]  # schedulers, each with its state


def arranged(engine: "Engine", kept: Mapping[str, Any]) -> tuple[list[Any], list[Any], Schedules]:
    """Returns what Kept.read() has of rates and schedules in the order of the groups now: rates and other numbers (optim.Rates.others) by
    group, and states by scheduler. Local.

    Numbers of other groups are not taken, with a warning. Raises InvalidError where the checkpoint has the states of another number of
    schedulers, or a state of other groups. Earlier versions did not keep the groups, which are then taken to be those of now.
    """
    now = engine.rates.named(engine.division)
    before = now if kept["groups"] is None else kept["groups"]
    of_before, of_now = sum(before, []), sum(now, [])
    others = [pair if any(one is not None for one in pair) else None for pair in kept["others"]]
    return (numbers_of(engine, kept["rates"], of_before, of_now), numbers_of(engine, others, of_before, of_now),
            schedules_of(engine, kept["schedule"], before, now))


def numbers_of(engine: "Engine", kept: Sequence[Any], before: regroup.Groups, now: regroup.Groups) -> list[Any]:
    """Returns the numbers that the script has set for the groups of now; None for a group without one."""
    if all(one is None for one in kept):
        return [None] * len(now)
    try:
        if len(kept) != len(before):  # of an earlier version
            raise LookupError(f"there are {len(now)}")
        return [kept[group] for group in regroup.order(before, now)]
    except LookupError as error:
        if engine.rank == 0:
            warn(f"the checkpoint has learning rates, or other numbers, that its script has set for {len(kept)} parameter groups, and they are not "
                 f"those of now ({error.args[0]}): the rates are not taken, so set them in engine.optimizer.param_groups")
        return [None] * len(now)


def schedules_of(engine: "Engine", kept: Any, before: list[regroup.Groups], now: list[regroup.Groups]) -> Schedules:
    """Returns the schedulers that a checkpoint has states for, each with its state, in the order of the groups now."""
    given = engine.lr_scheduler
    if given is None or kept is None:
        return []
    schedulers = given if isinstance(given, list) else [given]
    states = kept if isinstance(kept, list) else [kept]
    if len(schedulers) != len(states):
        raise InvalidError(f"the checkpoint has the schedules of {len(states)} optimizers, and initialize() was given those of "
                           f"{len(schedulers)}: give as many, or load with load_module_only=True")
    if not len(states) == len(before) == len(now):  # one object drives all optimizers
        before, now = [sum(before, [])], [sum(now, [])]
    pairs = []
    for number, scheduler in enumerate(schedulers):
        mine = set(sum(now[number], []))
        of = next((of for of, groups in enumerate(before) if mine.intersection(sum(groups, []))), number)
        if scheduler is not None and states[of] is not None:
            pairs.append((scheduler, regroup.schedule(states[of], before[of], now[number])))
    return pairs


def schedule_load(engine: "Engine", schedules: Schedules) -> None:
    """Gives the schedulers their states, and sets the rates of their groups. Local.

    torch keeps the rates with the optimizer, and many schedulers compute the next rate from the present one.
    """
    for scheduler, state in schedules:
        scheduler.load_state_dict(state)
        if isinstance(scheduler, LRScheduler):
            for group, rate in zip(scheduler.optimizer.param_groups, scheduler.get_last_lr()):
                group["lr"] = rate
    if schedules:
        engine.rates.forget_epochs()

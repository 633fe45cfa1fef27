"""Saves checkpoints, and what the engine does not know of: client state, torch's schedules, rates that were set, changed buffers.

These are in two large blobs of a checkpoint, rank 0's: CLIENT_STATE is JSON, and CLIENT_BYTES has the tensors in it (packed.py).
"""
from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Mapping

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from sherd.engine import Engine as Core
from sherd.errors import InvalidError
from sherd.torch.fill import raw
from sherd.torch.packed import Packer, unpack
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
        """Returns client state, schedule, rates and buffers. Raises ValueError where the blobs are not of save_checkpoint().

        Earlier versions wrote no rates, and the bytes of buffers in base64.
        """
        kept: dict[str, Any] = {"client_state": {}, "schedule": None, "buffers": {}}
        found = kept if self.text is None else json.loads(self.text)
        if not isinstance(found, dict) or not kept.keys() <= found.keys():
            raise ValueError(f"it is not an object with {', '.join(kept)}")
        try:
            old = {name: torch.frombuffer(bytearray(base64.b64decode(one["data"])), dtype=getattr(torch, one["dtype"]))
                   for name, one in found["buffers"].items() if "data" in one}
            return {"rates": [], **unpack(found, self.data), **({"buffers": old} if old else {})}
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
    """Saves everything that a later run needs: weights, optimizer, counters, changed buffers, torch's schedulers, rates that the script
    has set, `client_state`.

    Quantised weights count as buffers. Collective, blocking, between steps. Raises TypeError where `client_state` has what
    Packer.pack does not take, and what sherd.Engine.save raises.
    """
    packer = Packer()
    text = json.dumps({"client_state": packer.pack(dict(client_state or {}), "client_state"),
                       "schedule": packer.pack(schedule_state(engine), "a schedule"), "rates": engine.rates.by_hand(),
                       "buffers": packer.pack(engine.buffers.changed(), "the buffers")})
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
    """Finds what was changed of that which a state_dict has and the engine does not (unmanaged_of): buffers, such as the statistics of a
    BatchNorm, and quantised weights that load_state_dict() has written.

    It keeps a SHA-256 digest of each buffer as it was when the object was made, and compares with it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._begun = {name: digest(buffer) for name, buffer in distinct(unmanaged_of(model)).items()}

    def changed(self) -> dict[str, torch.Tensor]:
        """Returns each buffer that has changed on this rank, by its first name. Local. A checkpoint has rank 0's."""
        return {name: buffer for name, buffer in distinct(unmanaged_of(self._model)).items() if digest(buffer) != self._begun.get(name)}

    def take(self, kept: Mapping[str, torch.Tensor]) -> None:
        """Writes what changed() returned to the model's buffers. Local. A name that the model does not have is passed over."""
        buffers = unmanaged_of(self._model)
        with torch.no_grad():
            for name in kept.keys() & buffers.keys():
                buffers[name].copy_(kept[name].reshape(buffers[name].shape))


def digest(buffer: torch.Tensor) -> bytes:
    return hashlib.sha256(raw(buffer)).digest()


def schedule_state(engine: "Engine") -> Any:
    """Returns the state of torch's scheduler, or a list of states; what a checkpoint does not keep, such as functions, is left out."""
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


def schedule_load(engine: "Engine", kept: Any) -> None:
    """Gives the schedulers the states that schedule_state() returned, and sets the rates of their groups. Local.

    torch keeps the rates with the optimizer, and many schedulers compute the next rate from the present one. Raises ValueError
    where the checkpoint has the states of another number of schedulers.
    """
    given = engine.lr_scheduler
    if given is None:
        return
    schedulers = given if isinstance(given, list) else [given]
    states = kept if isinstance(kept, list) else [kept]
    if len(schedulers) != len(states):
        raise ValueError(f"the checkpoint has the schedules of {len(states)} optimizers, and initialize() was given those of "
                         f"{len(schedulers)}: give as many, or load with load_module_only=True")
    for scheduler, state in zip(schedulers, states):
        if scheduler is None or state is None:
            continue
        scheduler.load_state_dict(state)
        if isinstance(scheduler, LRScheduler):
            for group, rate in zip(scheduler.optimizer.param_groups, scheduler.get_last_lr()):
                group["lr"] = rate
    engine.rates.forget_epochs()

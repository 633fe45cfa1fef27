"""Loading checkpoints: load_checkpoint(), before the first batch and after it.

The plan needs the order of the units, which the first batch gives. A load before that batch would fix the order of registration
for the whole run. So the engine remembers such a load and answers at once from the files. Until the load is done, the model does
not have the values that its owner expects. A call that would show or use them is refused (Guard), or does the load first.
"""
from __future__ import annotations

import inspect
import json
import os
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sherd.checkpoint import Checkpoint
from sherd.engine import Engine as Core
from sherd.errors import BY_STATUS, InputOutputError, SherdError, StateError
from sherd.torch import gathered, weights
from sherd.torch.hooks import Single

if TYPE_CHECKING:
    from sherd.torch.engine import Engine

COUNTERS = ("step", "micro_step")


@dataclass
class Load:
    """A load of FOLDER/TAG. `text` is the blob of save_checkpoint(), and `counters` are the manifest's. Both are read without the
    engine."""

    folder: str
    tag: str
    weights_only: bool
    options: dict[str, Any]
    text: str | None
    counters: dict[str, Any]

    def run(self, engine: "Engine") -> None:
        """Loads weights, state and buffers. Collective."""
        engine.core.load(self.folder, self.tag, weights_only=self.weights_only, **self.options)
        if not self.weights_only and weights.kept_text(engine.core) != self.text:  # which the engine has compared with its checksum
            raise InputOutputError(f"{os.path.join(self.folder, self.tag)} is not what engine.load_checkpoint() read: it is damaged, or was "
                                   f"saved again meanwhile")
        engine.buffers.take(weights.kept_of(self.text)["buffers"])


def load_checkpoint(engine: "Engine", folder: weights.Path, tag: str | None, weights_only: bool,
                    options: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Goes on from a checkpoint that any layout has saved. Returns the folder and the client state, or (None, {}) where there is no
    checkpoint, as DeepSpeed does. Collective."""
    inspect.signature(Core.load).bind(engine.core, folder, tag, weights_only=weights_only, **options)  # other options: TypeError
    if engine.is_sealed:
        engine.core.wait_saved()  # an asynchronous save may become the latest checkpoint
    found = looked(engine, os.fspath(folder), tag)
    if found is None:
        return None, {}
    kept = weights.kept_of(found["text"])
    load = Load(os.path.abspath(folder), found["tag"], weights_only, options, found["text"],
                {} if weights_only else {key: found[key] for key in COUNTERS})
    if engine.is_sealed:
        engine.waiting = None  # a load that failed: this one takes its place
        load.run(engine)
    else:
        engine.waiting = engine.waiting or Waiting(engine)
        engine.waiting.loads.append(load)
    if not weights_only and kept["schedule"] is not None:
        weights.schedule_load(engine, kept["schedule"])
    return os.path.join(folder, found["tag"]), kept["client_state"]


def looked(engine: "Engine", folder: str, tag: str | None) -> dict[str, Any] | None:
    """Returns on all ranks what rank 0 finds, or raises its failure there. Collective."""
    answer: dict[str, Any] = {}
    if engine.world.rank == 0:
        try:
            answer["found"] = look(folder, tag)
        except (SherdError, OSError) as error:
            answer = {"status": getattr(error, "status", InputOutputError.status), "error": str(error)}
    answer = json.loads(engine.world.share(json.dumps(answer).encode()))
    if "error" in answer:
        raise BY_STATUS[answer["status"]](answer["error"])
    return answer["found"]


def look(folder: str, tag: str | None) -> dict[str, Any] | None:
    """Returns the tag, the blob and the counters of a checkpoint, or None if the folder has none."""
    if tag is None and not os.path.exists(os.path.join(folder, "latest")):
        return None
    with Checkpoint(folder, tag) as saved:
        text = saved.blob(weights.CLIENT_STATE)
        return {"tag": saved.tag, "text": None if text is None else text.decode(),
                **{key: saved.manifest[key] for key in COUNTERS}}


class Waiting:
    """The loads of an engine that wait for its first batch, and the guards of the model until then."""

    def __init__(self, engine: "Engine") -> None:
        self.loads: list[Load] = []
        self.model, guard = engine.module, Guard(engine)
        gathered.mark(engine)  # gathered_parameters() finds the engine, which does the loads first
        self._handles = [handle for module in engine.module.modules() for handle in (
            module.register_forward_pre_hook(guard), module.register_state_dict_pre_hook(guard),
            module.register_load_state_dict_pre_hook(guard))]

    def counters(self) -> dict[str, Any]:
        """Returns the counters that the engine will have; {} if no load brings any."""
        return {key: value for load in self.loads for key, value in load.counters.items()}

    def open(self, engine: "Engine") -> None:
        """Removes the guards: the engine is about to be sealed or destroyed."""
        gathered.unmark(engine)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def run(self, engine: "Engine") -> None:
        """Does the loads in order. A load that fails stays, so that no later call trains from other values. Collective."""
        while self.loads:
            self.loads[0].run(engine)
            del self.loads[0]


class Guard(Single):
    """Runs before the forward, state_dict() and load_state_dict() of a module that a load is about to change."""

    def __init__(self, engine: "Engine") -> None:
        super().__init__(None, weakref.ref(engine))

    def __call__(self, *_: Any) -> None:
        if self.of() is not None:
            raise StateError("the checkpoint of engine.load_checkpoint() is loaded with the first batch, and until then the module has its "
                             "values from before: call engine(batch) first, use engine.state_dict(), or give initialize(..., "
                             "example=batch), with which load_checkpoint() loads at once")

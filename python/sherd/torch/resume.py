"""Loads checkpoints: load_checkpoint(), before the first batch and after it.

The plan needs the order of the units, which the trace of the first batch gives. A load before that batch would fix the order of
registration for the whole run. So the engine puts such a load off, and answers at once from the files. Until the load is done, the
model has other values than the script expects. Calls that would show or use them are refused (Guard), or do the load first. This
holds too where the load fails, until it is made again.
"""
from __future__ import annotations

import contextlib
import inspect
import json
import os
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterator

from sherd.checkpoint import Checkpoint
from sherd.engine import Engine as Core
from sherd.errors import BY_STATUS, InputOutputError, InvalidError, SherdError, StateError
from sherd.torch import gathered, save
from sherd.torch.hooks import Single
from sherd.torch.say import warn
from sherd.torch.units import some
from sherd.torch.weights import Path

if TYPE_CHECKING:
    from sherd.torch.engine import Engine

WAITS = ("the checkpoint of engine.load_checkpoint() is loaded with the first batch, or with the next one where that failed, and until "
         "then the module has other values: call engine(batch) first, use engine.state_dict(), or give initialize(..., example=batch), "
         "with which load_checkpoint() loads at once")
COUNTERS = ("step", "micro_step", "samples")  # their names in the manifest and in sherd_engine_info


@dataclass
class Load:
    """A load of FOLDER/TAG.

    `kept` is the data that save_checkpoint() stored, and `counters` are the manifest's; both were read from the files, without the engine.
    `counters` is empty where only weights are loaded. `options` are those of sherd.Engine.load.
    """

    folder: str
    tag: str
    weights_only: bool
    options: dict[str, Any]
    kept: save.Kept
    counters: dict[str, Any]

    def run(self, engine: "Engine") -> None:
        """Loads weights, state and buffers into the sealed engine. Collective, blocking.

        Raises what sherd.Engine.load raises, and InputOutputError where the stored data have changed since they were read.
        """
        kept = self.kept.read()["buffers"]
        engine.buffers.check(kept)
        engine.core.load(self.folder, self.tag, weights_only=self.weights_only, **self.options)
        if not self.weights_only and save.kept_by(engine.core) != self.kept:  # the engine has checked its blobs
            raise InputOutputError(f"{os.path.join(self.folder, self.tag)} is not what engine.load_checkpoint() read: it is damaged, or was "
                                   f"saved again meanwhile")
        if not self.weights_only:
            save.forget(engine)
        engine.buffers.take(kept, engine.own_buffers if engine.rank else ())


def load_checkpoint(engine: "Engine", folder: Path, tag: str | None, weights_only: bool,
                    options: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Loads a checkpoint, which any layout may have saved, or puts the load off until the first batch. Collective, blocking.

    Returns the folder and the client state, or (None, {}) where there is no checkpoint, as DeepSpeed does, with a warning. The
    schedulers and rates are loaded at once. Raises TypeError (an unknown option), what rank 0 meets when it looks at the files, and what Load.run raises.
    """
    inspect.signature(Core.load).bind(engine.core, folder, tag, weights_only=weights_only, **options)  # refuses other options
    if engine.is_sealed:
        engine.core.wait_saved()  # an asynchronous save may become the latest checkpoint
    found = looked(engine, os.fspath(folder), tag)
    if found is None:
        return None, {}
    kept = found["kept"].read()
    rates, others, schedules = ([], [], []) if weights_only else save.arranged(engine, kept)
    load = Load(os.path.abspath(folder), found["tag"], weights_only, options, found["kept"],
                {} if weights_only else {key: found[key] for key in COUNTERS})
    if engine.is_sealed:
        load.run(engine)
        engine.loaded()  # a load that waited had failed before, and this one takes its place
    else:
        engine.waiting = engine.waiting or Waiting(engine)
        engine.waiting.loads.append(load)
    if not weights_only:
        engine.show_rates(keeps=True)
        engine.rates.take(rates)
        save.schedule_load(engine, schedules)
        engine.rates.take_others(others)
    return os.path.join(folder, found["tag"]), kept["client_state"]


def looked(engine: "Engine", folder: str, tag: str | None) -> dict[str, Any] | None:
    """Returns what look() returns on rank 0, on all ranks, or raises on all ranks what it raises there. Collective, blocking.

    Rank 0 warns where that is nothing.
    """
    answer: dict[str, Any] = {}
    kept = save.Kept(None, b"")
    if engine.world.rank == 0:
        try:
            answer["found"] = look(folder, tag)
            if answer["found"] is not None:
                kept = answer["found"].pop("kept")
            else:
                answer["missing"] = missing(folder)
        except (SherdError, OSError) as error:
            answer = {"status": getattr(error, "status", InputOutputError.status), "error": str(error)}
        except Exception as error:  # the other ranks wait for an answer, whatever it is
            answer = {"status": InvalidError.status, "error": f"{os.path.join(folder, tag or 'latest')}: {error!r}"}
    answer = json.loads(engine.world.share(json.dumps(answer).encode()))
    if "error" in answer:
        raise BY_STATUS[answer["status"]](answer["error"])
    if answer["found"] is None and engine.world.rank == 0:
        warn(f"engine.load_checkpoint() has loaded nothing, so the values of the model stay as they are: {answer['missing']}")
    if answer["found"] is not None:
        answer["found"]["kept"] = kept.shared(engine.world)
    return answer["found"]


def look(folder: str, tag: str | None) -> dict[str, Any] | None:
    """Returns tag, counters and the stored data of a checkpoint, read from its files; None where no tag is given and the folder has
    no latest checkpoint. Local. Raises what Checkpoint raises, and InvalidError where `folder` is a file, and where the blobs are not
    of save_checkpoint()."""
    if os.path.isfile(folder):
        raise InvalidError(f"{folder} is a file, and a checkpoint is a folder that engine.save_checkpoint() has made: give weights that "
                           f"torch.save() has written to engine.load_state_dict(torch.load(...)), and safetensors to "
                           f"sherd.torch.initialize(..., weights=)")
    if tag is None and not os.path.exists(os.path.join(folder, "latest")):
        return None
    with Checkpoint(folder, tag) as saved:
        text = saved.blob(save.CLIENT_STATE)
        try:
            kept = save.Kept(None if text is None else text.decode(), saved.blob(save.CLIENT_BYTES) or b"")
            kept.read()
        except ValueError as error:
            raise InvalidError(f"{saved.path} has bytes under the key {save.CLIENT_STATE} that engine.save_checkpoint() did not write: "
                               f"{error}") from None
        counters = {key: saved.manifest.get(key) for key in COUNTERS}
        if counters["samples"] is None:  # a checkpoint of an earlier version
            counters["samples"] = (saved.manifest["micro_step"] * saved.manifest["train_micro_batch_size_per_gpu"]
                                   * saved.manifest["world_size"])
        return {"tag": saved.tag, "kept": kept, **counters}


def missing(folder: Path) -> str:
    """Returns a text that says what was looked for in a folder without a latest checkpoint, and what is there instead. Local."""
    whole = os.path.abspath(folder)
    looked_for = f"there is no file {os.path.join(whole, 'latest')}, which save_checkpoint() writes"
    if not os.path.isdir(whole):
        return f"{looked_for}, because there is no folder {whole}"
    if has_manifest(whole):
        return f"{looked_for}. {whole} is a checkpoint itself: give load_checkpoint({os.path.dirname(whole)!r}, tag={os.path.basename(whole)!r})"
    tags = sorted(name for name in os.listdir(whole) if not name.startswith(".") and has_manifest(os.path.join(whole, name)))
    return looked_for + (f". The folder has the checkpoints {some(tags)}: give load_checkpoint() a tag" if tags else "")


def has_manifest(folder: str) -> bool:
    """Whether the folder is a complete checkpoint (docs/checkpoint-format.md)."""
    return os.path.isfile(os.path.join(folder, "manifest.json"))


class Waiting:
    """The loads of an engine that wait for its first batch, and the guards of the model until the loads are done.

    Making it sets the guards on the engine's model, `suspended` takes them off for a while, and `end` removes them.
    """

    def __init__(self, engine: "Engine") -> None:
        self.loads: list[Load] = []
        self._handles: list[Any] = []
        gathered.mark(engine)  # gathered_parameters() finds the engine, which does the loads first
        self._guard(engine)

    def _guard(self, engine: "Engine") -> None:
        guard = Guard(engine)
        self._handles = [handle for module in engine.module.modules() for handle in (
            module.register_state_dict_pre_hook(guard), module.register_load_state_dict_pre_hook(guard))]
        self._handles += [module.register_forward_pre_hook(guard, prepend=True)  # nothing is acquired for a forward that is refused
                          for module in engine.module.modules() if module is not engine.module]  # the model's forward loads (first.py)

    def counters(self) -> dict[str, Any]:
        """Returns the counters that the engine will have after the loads; {} where no load changes them. Local."""
        return {key: value for load in self.loads for key, value in load.counters.items()}

    @contextlib.contextmanager
    def suspended(self, engine: "Engine") -> Iterator[None]:
        """A context without the guards, in which the engine is sealed: the trace calls the model. Local."""
        self.end()
        try:
            yield
        finally:
            self._guard(engine)

    def end(self) -> None:
        """Removes the guards. Local."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def run(self, engine: "Engine") -> None:
        """Runs the loads in their order. Collective, blocking. Raises what a load raises.

        A load that fails stays in the list, and the guards stay too, so that no later call trains from other values.
        """
        while self.loads:
            self.loads[0].run(engine)
            del self.loads[0]


class Guard(Single):
    """A hook before state_dict() and load_state_dict() of a module that a load will change, and before the forward of a part of the
    model. Raises StateError."""

    def __init__(self, engine: "Engine") -> None:
        super().__init__(None, weakref.ref(engine))

    def __call__(self, *_: Any) -> None:
        engine = self.of()
        if engine is not None and engine.waiting is not None:  # a hook before this one may have loaded it
            raise StateError(WAITS)

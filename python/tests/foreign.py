"""Runs scripts that nobody wrote for sherd, as they are and with their import changed, and compares the losses.

The sources are no part of the project: SHERD_FOREIGN names a folder that has them as <library>/<path in its repository>. Lists of
scripts are in foreign_<library>.py, what stands in for downloads is in foreign_data.py, and test_foreign.py runs all of it.
"""
from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import re
import sys
import tempfile
import types
from dataclasses import dataclass, field
from typing import Any

import ranks

SPLIT = "\n\n"  # between the texts of ranks
LIMIT = 300  # seconds of one run
TOLERANCE = 1e-5  # of losses and metrics, relative above 1 and absolute below, over STEPS values
STEPS = 30  # after them the tolerance grows with their number, as what rounding leaves does

_told: dict[str, list[float]] = {}  # of this process, by name


@dataclass(frozen=True)
class Script:
    """A script, how it is started, and what is expected of it."""

    path: str  # below SHERD_FOREIGN
    changes: dict[str, str]  # what sherd's side changes in its text: what stands there, and what takes its place
    arguments: tuple[str, ...] = ()  # {stage} in them is the stage, of the unchanged script the first one
    again: tuple[str, ...] = ()  # the arguments of a second start in the same folder, such as one that resumes
    stands_in: tuple[str, ...] = ("foreign_data:hub",)  # functions that replace what downloads, for both sides alike, as module:function
    needs: tuple[str, ...] = ()  # modules without which it is skipped
    environment: dict[str, str] = field(default_factory=dict)  # of both sides
    name: str = ""  # in the table; the file's name where it is ""
    stages: tuple[int, ...] = (2, 3)
    ranks: tuple[int, ...] = (1, 2)
    least: int = 30  # losses of a rank
    tolerance: float = TOLERANCE  # more where a script computes in 16 bits
    package: str = ""  # the package that sherd's side stands in for, as `python -m sherd.run --as` does
    refused: str = ""  # a pattern of what sherd's side is refused with; "": it runs

    @property
    def title(self) -> str:
        return self.name or os.path.basename(self.path)


def report(name: str, value: float) -> None:
    """Notes a number that both sides are to have alike, such as a metric. For functions of `stands_in`."""
    _told.setdefault(name, []).append(float(value))


def config(stage: int) -> dict[str, Any]:
    """The configuration of sherd's side: all is left to the script, and no parameter is so small that it stays whole at stage 3."""
    return {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto", "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}


def run(script: Script, world_size: int, stage: int | None, folder: str) -> tuple[list[dict[str, list[float]]], str]:
    """Runs a script on so many ranks, with sherd at this stage, or unchanged (None). Blocking. Its working folder is `folder`.

    Returns what each rank reported, and the texts of the ranks that failed; "" where none did.
    """
    os.makedirs(folder)
    reported, failed = start(script, script.arguments, world_size, stage, folder)
    if script.again and not failed:
        more, failed = start(script, script.again, world_size, stage, folder)
        reported = [{name: one[name] + two.get(name, []) for name in one} for one, two in zip(reported, more)]
    return reported, failed


def start(script: Script, arguments: tuple[str, ...], world_size: int, stage: int | None,
          folder: str) -> tuple[list[dict[str, list[float]]], str]:
    """Does what run() says, for one start with these arguments."""
    with open(os.path.join(folder, "ds_config.json"), "w", encoding="utf-8") as file:
        json.dump(config(stage or 0), file)
    own = []
    for name in ("meet", "torch"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))
    for rank in range(world_size):
        values = {"SHERD_THREADS": "1", "ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "HF_HOME": folder,
                  "TOKENIZERS_PARALLELISM": "false", "REPORTED": os.path.join(folder, f"reported_{rank}.json"), **script.environment}
        if world_size > 1 or script.package:  # DeepSpeed wants the variables of a launcher on one rank too
            values |= {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world_size),
                       "SHERD_RANK": str(rank), "SHERD_WORLD_SIZE": str(world_size), "SHERD_RENDEZVOUS": f"unix://{folder}/meet",
                       "MEETING": f"file://{folder}/torch"}
        if stage is not None:
            values |= {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_CONFIG_FILE": os.path.join(folder, "ds_config.json"),
                       "ACCELERATE_DEEPSPEED_ZERO_STAGE": str(stage)}
        own.append(values)
    job = json.dumps({"path": source(script), "changes": script.changes if stage is not None else {}, "stands_in": script.stands_in,
                      "arguments": [one.replace("{stage}", str(script.stages[0] if stage is None else stage)) for one in arguments],
                      "package": script.package if stage is not None else ""})
    ended = ranks.start(os.path.abspath(__file__), (job,), own, folder)
    failed = SPLIT.join(f"rank {rank} ended with {status}:\n{text}" for rank, (status, text) in enumerate(ended) if status != 0)
    reported = []
    for values in own:
        if os.path.exists(values["REPORTED"]):
            with open(values["REPORTED"], encoding="utf-8") as file:
                reported.append(json.load(file))
    return reported, failed


def source(script: Script) -> str:
    return os.path.join(os.environ["SHERD_FOREIGN"], script.path)


def difference(ours: list[dict[str, list[float]]], plain: list[dict[str, list[float]]], tolerance: float) -> tuple[float, float]:
    """Returns the largest difference of what the ranks reported: over STEPS values, and over all as a part of the tolerance.

    Raises AssertionError where they reported another number of values.
    """
    found, part = 0.0, 0.0
    for rank, (own, other) in enumerate(zip(ours, plain, strict=True)):
        assert set(own) == set(other), (rank, sorted(own), sorted(other))
        for name, values in other.items():
            assert len(own[name]) == len(values), f"rank {rank} reported {len(own[name])} of {name}, and {len(values)} as it is"
            for index, (one, two) in enumerate(zip(own[name], values)):
                apart = abs(one - two) / max(1.0, abs(two)) if one == one and two == two else float(one == one or two == two)
                found = max(found, apart if index < STEPS else 0.0)
                part = max(part, apart / (tolerance * max(1.0, (index + 1) / STEPS)))
    return found, part


def results(script: Script) -> list[tuple[int, int | None, str, bool]]:
    """Runs a script in all its ways. Returns rows of ranks, stage (None: as it is), what came of it, and whether that is as expected."""
    rows: list[tuple[int, int | None, str, bool]] = []
    for world_size in script.ranks:
        with tempfile.TemporaryDirectory() as folder:
            plain, failed = run(script, world_size, None, os.path.join(folder, "plain"))
            if failed:
                rows.append((world_size, None, f"fails as it is: {failed}", False))
                continue
            many = min(len(reported.get("loss", ())) for reported in plain)
            if many < script.least:
                rows.append((world_size, None, f"makes {many} losses as it is, and {script.least} are wanted", False))
            for stage in script.stages:
                ours, failed = run(script, world_size, stage, os.path.join(folder, f"stage_{stage}"))
                rows.append((world_size, stage, *judged(script, ours, plain, failed)))
    return rows


def judged(script: Script, ours: list[dict[str, list[float]]], plain: list[dict[str, list[float]]], failed: str) -> tuple[str, bool]:
    """Returns what came of sherd's side, and whether it is as expected."""
    if failed:
        said = [re.sub(r"^\[rank\d+\]: ", "", text.rstrip().rsplit("\n", 1)[-1]) for text in failed.split(SPLIT)]
        named = [one for one in said if script.refused and re.search(script.refused, one)]
        return (f"refused: {named[0]}", True) if named else (f"fails: {failed}", False)
    if script.refused:
        return f"runs, and is to be refused with {script.refused}", False
    try:
        found, part = difference(ours, plain, script.tolerance)
    except AssertionError as error:
        return str(error), False
    return f"{len(ours[0]['loss'])} losses, largest difference of the first {STEPS} {found:.1e}, of all {part:.2f} of what is allowed", part <= 1


def record_losses() -> None:
    """Notes the value of each tensor that torch's backward() begins with, on both sides alike."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    plain = torch.Tensor.backward

    def backward(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if not isinstance(self, FakeTensor):  # a trace of the model, which has no values
            report("loss", self.detach().float().sum())
        plain(self, *args, **kwargs)

    torch.Tensor.backward = backward


def main(job: str) -> None:
    """Runs a script in this process, as a rank."""
    given = json.loads(job)
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    import torch
    if "MEETING" in os.environ:
        torch.distributed.init_process_group("gloo", init_method=os.environ["MEETING"], rank=int(os.environ["RANK"]),
                                             world_size=int(os.environ["WORLD_SIZE"]))
    if given["package"]:
        from sherd.run import stand_in
        stand_in(given["package"])
    for one in given["stands_in"]:
        module, name = one.split(":")
        getattr(importlib.import_module(module), name)()
    record_losses()
    with open(given["path"], encoding="utf-8") as file:
        text = file.read()
    for old, new in given["changes"].items():
        if old not in text:
            sys.exit(f"{given['path']} has no {old!r}")
        text = text.replace(old, new)
    script = types.ModuleType("__main__")
    script.__file__ = given["path"]
    sys.modules["__main__"] = script
    sys.argv = [given["path"], *given["arguments"]]
    sys.path.insert(0, os.path.dirname(given["path"]))
    exec(compile(text, given["path"], "exec"), script.__dict__)
    with open(os.environ["REPORTED"], "w", encoding="utf-8") as file:
        json.dump(_told, file)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    import foreign
    foreign.main(sys.argv[1])

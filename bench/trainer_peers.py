#!/usr/bin/env python3
"""Steps of the C trainer's model, and of PyTorch's FSDP2 with fused AdamW and DeepSpeed with its CPUAdam, all over this machine
alone: GPT-2's shape, the same data and initial weights. In every cell, of a shape, a type and a stage, ours and one peer
take turns, so their ratio can be compared; seconds cannot be, with those of another run. Steps are those of the slowest
rank, the boundary is what is left of a step behind the last backward, the peak is the largest PSS of a rank in one more step,
the start is what passes until the first step could begin.

bf16 is the usual of each: parameters that are gathered and multiplied in bf16 over fp32 masters, which the optimizer updates
(FSDP2: MixedPrecisionPolicy with param_dtype bf16, gradients reduced in fp32; DeepSpeed and ours: "bf16": {"enabled": true}).
FSDP2 that keeps parameters after forward (reshard_after_forward=False) stands for stage 2; it has no stage 1.

With --offload ours queues its updates, and the wait for the last one counts for the last step of a turn: let turns have some steps.

The peers' interpreter is --python, or the venv that --make makes from PyPI's torch and deepspeed."""
from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import pytorch
from peak import Peak
from pytorch import LOSS_APART, Contestant, DeepSpeed, Fsdp2, Team

POSITIONS = 1024
BF16_APART = 2**-7  # relative, of the first step: the peers' loss is itself a number of bf16, which has eight bits
# What DeepSpeed's own tuning (ds_nvme_tune) finds on drives of a few GB/s, and four buffers, as ours has.
PIPELINED = {"buffer_count": 4, "pipeline_read": True, "pipeline_write": True}
AIO = {"block_size": 1 << 20, "queue_depth": 32, "single_submit": False, "overlap_events": True, "thread_count": 1}
SIZES = ("layers", "width", "heads", "vocab", "batch", "length", "threads", "started")

# ------------------------------------------------------------ the contestants --


class Sharded(Fsdp2):
    """FSDP2 at stage 3; at 2 it keeps what it gathered."""

    def open(self) -> None:
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        torch.distributed.init_process_group("gloo")
        how = {"mesh": init_device_mesh("cpu", (self.world_size,)), "reshard_after_forward": self.arguments.stage == 3}
        if self.arguments.precision == "bf16":
            how["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in self.model.blocks:
            fully_shard(block, **how)
        fully_shard(self.model, **how)
        Contestant.open(self)


class Zero(DeepSpeed):
    def config(self, stage: int) -> dict:
        return config_of(self.arguments)


KINDS = {"fsdp2": Sharded, "deepspeed": Zero}


def config_of(arguments) -> dict:
    """What DeepSpeed and the trainer read."""
    config = Contestant.config(argparse.Namespace(arguments=arguments), arguments.stage)
    if arguments.offload != "none":
        config["zero_optimization"]["offload_optimizer"] = {"device": arguments.offload, "nvme_path": arguments.nvme_path, **PIPELINED}
        config["aio"] = AIO
    if arguments.precision == "bf16":
        config["bf16"] = {"enabled": True}
    return config


def start_write(arguments, folder: str) -> None:
    """Weights as llm.c writes them and the rows, for ours: the ones that every contestant draws."""
    import torch

    made = Contestant.__new__(Contestant)
    made.arguments, made.world_size = arguments, arguments.world
    values = made.model_make().state_dict()
    rows = []
    for made.rank in range(arguments.world):
        rows.append(made.rows_make())
    torch.stack(rows, 1).to(torch.int32).numpy().tofile(os.path.join(folder, "rows"))
    padding = -arguments.vocab % 128
    with open(os.path.join(folder, "weights.bin"), "wb") as out:
        sizes = (POSITIONS, arguments.vocab, arguments.layers, arguments.heads, arguments.width, arguments.vocab + padding)
        out.write(struct.pack("<8i", 20240326, 3, *sizes).ljust(1024, b"\0"))
        values["tokens.weight"].numpy().tofile(out)
        out.write(bytes(4 * padding * arguments.width))
        values["places.weight"].numpy().tofile(out)
        for part in ("norm1", "qkv", "out", "norm2", "up", "down"):
            for kind in ("weight", "bias"):
                for layer in range(arguments.layers):
                    values[f"blocks.{layer}.{part}.{kind}"].numpy().tofile(out)
        values["norm.weight"].numpy().tofile(out)
        values["norm.bias"].numpy().tofile(out)


class Contest(Team):
    """A team whose memory is looked at from outside, the same way whatever it is written in."""

    def __init__(self, name: str, arguments, folder: str) -> None:
        self.folder = folder
        super().__init__(name, arguments.world, arguments, folder)

    def command(self, name: str, arguments) -> list[str]:
        arguments.started = time.time()
        sizes = [word for key in SIZES for word in (f"--{key}", repr(getattr(arguments, key)))]
        if name == "sherd":
            return [arguments.trainer, *sizes, "--positions", str(POSITIONS), "--config", json.dumps(config_of(arguments)),
                    "--weights", os.path.join(self.folder, "weights.bin"), "--rows", os.path.join(self.folder, "rows")]
        return [arguments.python, __file__, "--serve", name, *sizes, "--clip", str(arguments.clip),
                "--stage", str(arguments.stage), "--precision", arguments.precision, "--offload", arguments.offload,
                "--nvme-path", arguments.nvme_path]

    def peak_bytes(self) -> int:
        watches = [Peak(rank.pid) for rank in self.ranks]
        for watch in watches:
            watch.__enter__()
        self.ask("step 1")
        for watch in watches:
            watch.__exit__()
        return max(watch.bytes for watch in watches)


# ------------------------------------------------------------------ the table --


def figures(team: Contest) -> dict:
    return {"name": team.name, "step_s": statistics.median(team.seconds), "boundary_s": statistics.median(team.boundary_seconds),
            "cpu_s": statistics.median(team.cpu_seconds), "seconds": team.seconds, "cpu_seconds": team.cpu_seconds,
            "boundary_seconds": team.boundary_seconds, "first_loss": team.first_loss,
            "start_s": max(rank["ready_s"] for rank in team.start), "first_step_s": team.first_s, "peak_bytes": team.peak_bytes()}


def pair(peer: str, arguments, folder: str) -> list[dict]:
    teams = []
    try:
        for name in ("sherd", peer):
            teams.append(Contest(name, arguments, folder))
            teams[-1].warm()
        for number in range(arguments.rounds):
            for team in teams if number % 2 == 0 else reversed(teams):
                team.turn(arguments.steps)
        return [figures(team) for team in teams]
    finally:
        for team in teams:
            team.close()


def losses_check(rows: list[dict], precision: str) -> None:
    apart = abs(rows[0]["first_loss"] - rows[1]["first_loss"]) / rows[1]["first_loss"]
    if not apart <= (LOSS_APART if precision == "fp32" else BF16_APART):
        sys.exit(f"peers: the first loss of {rows[0]['name']} is {apart:.2g} from that of {rows[1]['name']}")


def cell_print(cell: dict) -> None:
    ours, theirs = cell["rows"]
    for row in (ours, theirs):
        ratios = [mine / base for mine, base in zip(row["seconds"], ours["seconds"])]
        print(f"{cell['shape']:>8} {cell['precision']:5} {cell['stage']:5} {row['name']:10} {row['step_s']:8.3f} "
              f"{statistics.median(ratios):6.2f} {min(ratios):6.2f}-{max(ratios):<6.2f} {row['cpu_s'] / ours['cpu_s']:6.2f} "
              f"{row['boundary_s']:9.3f} {row['peak_bytes'] / 2**20:9.0f} {row['start_s']:8.2f} {row['first_step_s']:8.2f} "
              f"{row['first_loss']:11.7f}", flush=True)


def cells(arguments, folder: str) -> list[dict]:
    done = []
    for shape in arguments.shapes.split(","):
        arguments.batch, arguments.length = map(int, shape.split("x"))
        sizes = [word for key in SIZES[:-1] for word in (f"--{key}", str(getattr(arguments, key)))]
        subprocess.run([arguments.python, __file__, "--write", folder, "--world", str(arguments.world), *sizes], check=True)
        for precision in arguments.precisions.split(","):
            for stage in map(int, arguments.stages.split(",")):
                arguments.stage, arguments.precision = stage, precision
                for peer in arguments.peers.split(","):
                    if peer == "fsdp2" and stage == 1:
                        continue
                    try:
                        rows = pair(peer, arguments, folder)
                    except RuntimeError as error:
                        print(f"# left out: {error}", file=sys.stderr)
                        continue
                    done.append({"shape": shape, "precision": precision, "stage": stage, "rows": rows})
                    cell_print(done[-1])
                    losses_check(rows, precision)
    return done


def venv_make(folder: str) -> str:
    python = os.path.join(folder, "bin", "python")
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "torch", "numpy", "deepspeed"], check=True)
    return python


def arguments_read():
    parser = argparse.ArgumentParser(prog="./run bench peers", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=os.environ.get("SHERD_PYTHON", "python3"),
                        help="the peers' interpreter (SHERD_PYTHON, else python3)")
    parser.add_argument("--make", metavar="FOLDER", help="make a venv with torch and deepspeed there, if there is none, and use it")
    parser.add_argument("--peers", default="fsdp2,deepspeed", help="of them (fsdp2,deepspeed)")
    parser.add_argument("--shapes", default="2x64,4x128", help="sequences and tokens of a rank (2x64,4x128)")
    parser.add_argument("--precisions", default="fp32,bf16", help="(fp32,bf16)")
    parser.add_argument("--stages", default="1,2,3", help="(1,2,3)")
    parser.add_argument("--offload", default="none", choices=["none", "cpu", "nvme"],
                        help="where optimizer state rests; DeepSpeed takes nvme at stage 3 (none)")
    parser.add_argument("--nvme-path", default=".", help="folder on the drive for nvme (.)")
    parser.add_argument("--world", type=int, default=2, help="ranks (2)")
    parser.add_argument("--threads", type=int, default=1, help="threads of a rank (1)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1, help="steps of a turn (1)")
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm (1)")
    parser.add_argument("--json", help="file for the figures")
    for name, value in {"layers": 12, "width": 768, "heads": 12, "vocab": 50257}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"of the model ({value})")
    for name in ("--serve", "--write", "--trainer", "--precision"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    for name in ("--batch", "--length", "--stage"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    parser.set_defaults(model="gpt")  # of those that a contestant can make
    return parser.parse_args()


def main() -> None:
    arguments = arguments_read()
    if arguments.serve:
        return pytorch.serve(arguments, KINDS)
    if arguments.write:
        return start_write(arguments, arguments.write)
    if arguments.make:
        arguments.python = venv_make(arguments.make)
    versions = subprocess.run([arguments.python, "-c", "import torch, importlib.metadata as m; print(torch.__version__, "
                               "*(m.version(d.name) for d in m.distributions() if d.name == 'deepspeed'))"],
                              capture_output=True, text=True, check=False)
    if versions.returncode != 0:
        sys.exit(f"peers: {arguments.python} has no torch; --python names one that has, --make FOLDER makes one")
    print(f"# machine  {platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}; torch, deepspeed {versions.stdout.strip()}")
    print(f"# command  ./run bench peers {' '.join(sys.argv[3:])}")
    print(f"# {arguments.world} ranks of {arguments.threads} threads, clip {arguments.clip}, {arguments.rounds} rounds of "
          f"{arguments.steps} steps")
    print(f"{'shape':>8} {'type':5} {'stage':5} {'':10} {'step s':>8} {'ratio':>6} {'of rounds':>13} {'of CPU':>6} "
          f"{'boundary':>9} {'peak MiB':>9} {'start s':>8} {'1st step':>8} {'first loss':>11}")
    with tempfile.TemporaryDirectory() as folder:
        done = cells(arguments, folder)
    if arguments.json:
        with open(arguments.json, "w") as out:
            json.dump({"command": sys.argv, "versions": versions.stdout.split(), "cells": done}, out, indent=1)


if __name__ == "__main__":
    main()

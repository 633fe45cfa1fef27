#!/usr/bin/env python3
"""A PyTorch model whose training does not fit in a memory control group, trained in it by sherd.torch at stage 3 with state
on NVMe; in the same group plain torch with AdamW is killed. Peaks are those of the group's own processes, and what the
plan says and what torch takes by itself; pages of files are left out.

Needs the right to make control groups; without it ends with 77."""
from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from peak import OWN, Peak, pss_bytes

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLACES = (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max"))
BATCH, LENGTH = 1, 32


def model_make(arguments, device: str):
    import torch

    sys.path.insert(0, str(ROOT / "examples/pytorch/plain"))
    from nanogpt import GPT
    with torch.device(device):
        torch.manual_seed(1)
        return GPT(arguments.layers, arguments.width, 4, LENGTH)


def batch():
    import torch

    rows = torch.randint(256, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(2))
    return rows[:, :-1], rows[:, 1:]


def platform_bytes() -> int:
    """What the process takes once torch has trained a small model of the same kind."""
    import torch

    small = argparse.Namespace(layers=1, width=64)
    model = model_make(small, "cpu")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(*batch()).backward()
        optimizer.step()
    return pss_bytes(kinds=OWN)


def init(module) -> None:
    """First values of one module; as examples/pytorch/plain/nanogpt.py draws them."""
    import torch

    if isinstance(module, torch.nn.LayerNorm):
        module.reset_parameters()
    else:
        torch.nn.init.normal_(module.weight, std=0.02)
        if getattr(module, "bias", None) is not None:
            torch.nn.init.zeros_(module.bias)


def sharded_run(arguments) -> dict:
    import sherd.torch

    platform = platform_bytes()
    model = model_make(arguments, "meta")
    nvme = {"device": "nvme", "nvme_path": arguments.dir}
    with Peak(kinds=OWN) as peak:
        engine = sherd.torch.initialize(model, init=init, config={
            "train_micro_batch_size_per_gpu": BATCH, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
            "zero_optimization": {"stage": 3, "offload_optimizer": {**nvme, "buffer_size": arguments.buffer, "gradients": "nvme"},
                                  "offload_param": {**nvme, "buffer_size": arguments.buffer, "max_in_cpu": 0}}})
        losses = []
        for _ in range(arguments.steps):
            loss = engine(*batch())
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    planned = engine.memory_report().total_planned
    parameters = sum(p.numel() for p in model.parameters())
    engine.destroy()
    return {"losses": losses, "peak_bytes": peak.bytes, "platform_bytes": platform, "planned_bytes": planned,
            "parameters": parameters}


def plain_run(arguments) -> dict:
    import torch

    model = model_make(arguments, "cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    losses = []
    for _ in range(arguments.steps):
        loss = model(*batch())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses}


def group_make(limit_bytes: int) -> str | None:
    """A control group with the limit; None where none can be made."""
    for place, name in PLACES:
        folder = os.path.join(place, f"sherd-{os.getpid()}")
        try:
            os.mkdir(folder)
            with open(os.path.join(folder, name), "w") as out:
                out.write(str(limit_bytes))
            return folder
        except OSError:
            if os.path.isdir(folder):
                os.rmdir(folder)
    return None


def part_run(part: str, group: str, arguments, folder: str) -> subprocess.CompletedProcess[str]:
    """This script again, as one part, inside the group from its first instruction."""
    own = [sys.executable, __file__, "--part", part, "--dir", folder]
    for key in ("layers", "width", "steps", "buffer"):
        own += [f"--{key}", str(getattr(arguments, key))]
    paths = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT / "python")]))
    return subprocess.run(["sh", "-c", 'echo $$ >"$0"/cgroup.procs && exec "$@"', group, *own], stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "SHERD_THREADS": "1"})


def both_run(arguments) -> None:
    group = group_make(arguments.limit << 20)
    if group is None:
        print("skipped: no memory control group can be made here")
        sys.exit(77)
    try:
        with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
            sharded = part_run("sharded", group, arguments, folder)
            plain = part_run("plain", group, arguments, folder)
    finally:
        os.rmdir(group)
    assert sharded.returncode == 0, f"sherd.torch ended with {sharded.returncode} in {arguments.limit} MiB"
    report(json.loads(sharded.stdout.splitlines()[-1]), plain, arguments)


def report(sharded: dict, plain: subprocess.CompletedProcess[str], arguments) -> None:
    def mib(name: str) -> float:
        return sharded[name] / 2**20

    print(f"{sharded['parameters'] / 1e6:.0f} M parameters, whole state {sharded['parameters'] * 16 / 2**20:.0f} MiB, "
          f"limit {arguments.limit} MiB")
    print(f"sherd.torch, stage 3, state and parameters on NVMe: losses {sharded['losses']}")
    print(f"peak {mib('peak_bytes'):.0f} MiB; plan {mib('planned_bytes'):.0f}, torch by itself {mib('platform_bytes'):.0f}, "
          f"together {mib('planned_bytes') + mib('platform_bytes'):.0f}")
    assert plain.returncode == -signal.SIGKILL, f"plain torch ended with {plain.returncode} in the same group: the limit shows nothing"
    print("plain torch in the same group is killed")
    assert sharded["losses"][-1] < sharded["losses"][0], "nothing was learned"
    most = sharded["planned_bytes"] + sharded["platform_bytes"] + (arguments.slack << 20)
    assert sharded["peak_bytes"] <= most, f"the peak is more than plan, torch and {arguments.slack} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(prog="./run bench torch-limited", description=__doc__)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--limit", type=int, default=4096, help="MiB of the group (4096)")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--buffer", type=int, default=1 << 22, help="elements of a buffer of NVMe")
    parser.add_argument("--slack", type=int, default=320, help="MiB for activations and what the C library keeps of freed temporaries (320)")
    parser.add_argument("--dir", default=".", help="folder on the drive")
    parser.add_argument("--part", choices=("sharded", "plain"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError as missing:
        print(f"skipped: {missing}: SHERD_PYTHON names an interpreter that has torch")
        sys.exit(77)
    if arguments.part is None:
        return both_run(arguments)
    torch.set_num_threads(1)
    print(json.dumps(sharded_run(arguments) if arguments.part == "sharded" else plain_run(arguments)))


main()

#!/usr/bin/env python3
"""The peers of check.sh --part rivals, as far as they are installed, with a tiny model on the CPU: their losses are those of
random weights, and they say what the part looks for."""
import importlib.util
import math
import re
import subprocess
import sys
from pathlib import Path

RIVALS = Path(__file__).resolve().parents[2] / "bench" / "rivals.py"
TINY = "--device cpu --hidden 32 --layers 2 --heads 4 --kv-heads 2 --inner 64 --vocab 64 --batch 2 --length 16 --accumulation 2 --steps 3"
PACKAGES = {"fsdp2": ("torch", "transformers"), "deepspeed": ("torch", "transformers", "deepspeed")}


def check(peer: str) -> None:
    ran = subprocess.run([sys.executable, RIVALS, peer, *TINY.split()], capture_output=True, text=True, timeout=280, check=False)
    said = ran.stdout.splitlines()
    losses = [float(loss) for loss in re.findall(rf"^{peer} step \d: [0-9.]+ s, loss ([0-9.]+)$", ran.stdout, re.M)]
    if ran.returncode != 0 or len(set(losses)) != 3 or any(abs(loss - math.log(64)) > 0.3 for loss in losses):
        sys.exit(f"{peer}: status {ran.returncode}, losses {losses}: {ran.stdout}{ran.stderr[-2000:]}")
    if not re.match(rf"{peer} [0-9.]+ s a step, [0-9]+ tokens/s, [0-9.]+ ms a layer", said[-1]):
        sys.exit(f"{peer}: the last line is {said[-1]}")
    print(f"{peer}: {losses}")


def main() -> None:
    there = [peer for peer, packages in PACKAGES.items() if all(map(importlib.util.find_spec, packages))]
    if not there:
        print("skipped: torch and transformers are not installed")
        sys.exit(77)
    for peer in there:
        check(peer)


main()

"""Compares drawn models under sherd.torch with plain torch, whose losses leave modules by another way than outputs (torch_ways.py).

Gradients are equal, or the engine refuses by name: with loss.backward(), of whose loss it does not know, and without a trace where the
model itself reads a weight of another module. SHERD_DEBUG=1 overwrites memory outside of its live range.

usage: test_torch_ways.py [--seed SEED] [--seconds N | CASE ...]
Without --seconds it takes a fixed sample, or with SHERD_TEST_LONG=1 a larger one."""
from __future__ import annotations

import argparse
import os
import time
import traceback

import ranks

try:
    import torch
except ImportError as missing:
    ranks.skip(str(missing))

from sherd.torch import activations
from torch_compare import case_check
from torch_ways import WayCase

SAMPLE, LONG_SAMPLE, AT_ONCE = 24, 600, 8
WORLDS = (1, 2, 3)
REFUSED = ("another way than its outputs", "otherwise than as an output", "expected version")  # by the engine, or by torch


def way_check(seed: int, number: int) -> str:
    """Compares one drawn model. Returns "equal" or "refused". Raises AssertionError, and what else is wrong. Collective."""
    case = WayCase(seed, number, large=bool(os.environ.get("WAYS_LARGE")))
    try:
        case_check(case, f"way{number}", case.stage, **case.zero)
    except RuntimeError as error:
        if case.is_raw and any(text in str(error) for text in REFUSED) or case.stage == 3 and case.reads_past(str(error)):
            return "refused"
        raise
    return "equal"


def rank_main(seed: int, numbers: list[int]) -> None:
    activations.LEAST_BYTES = 1  # the models are small
    results, failed = [], []
    for number in numbers:
        print(f"case {number}", flush=True)
        try:
            results.append(way_check(seed, number))
        except Exception:  # a failure of one case does not end the others
            failed.append(number)
            print(f"case {number}, {WayCase(seed, number)}, rank {os.environ['SHERD_RANK']}:\n{traceback.format_exc()}")
    print(f"{results.count('equal')} equal, {results.count('refused')} refused")
    assert not failed, f"failed: {failed}"


def main(seed: int, seconds: int | None, numbers: list[int]) -> None:
    environment = {"SHERD_DEBUG": "1", **({"WAYS_LARGE": "1"} if seconds else {})}
    count = LONG_SAMPLE if os.environ.get("SHERD_TEST_LONG") else SAMPLE
    failed, tried, until = [], 0, time.monotonic() + (seconds or 0)
    while time.monotonic() < until if seconds else tried < (len(numbers) or count):
        chosen = numbers or list(range(tried, tried + AT_ONCE))
        world = WORLDS[tried // AT_ONCE % len(WORLDS)]
        try:
            texts = ranks.run(world, "--seed", str(seed), *map(str, chosen), **environment)
            print(f"cases {chosen[0]} to {chosen[-1]} on {world} ranks: {texts[0].splitlines()[-1]}", flush=True)
        except AssertionError as error:
            failed.append(f"{chosen[0]} to {chosen[-1]} on {world} ranks")
            print(f"FAIL {error}", flush=True)
        tried += len(chosen)
    print(f"ways: {tried} cases, seed {seed}, {len(failed)} failed")
    assert not failed, f"failed: {failed}"


torch.set_num_threads(1)
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--seed", type=int, default=42, help="draws the models (default 42)")
parser.add_argument("--seconds", type=int, help="goes on to draw for so many seconds, also large blocks")
parser.add_argument("cases", type=int, nargs="*", help="numbers of the cases to compare")
given = parser.parse_args()
if ranks.rank() is None:
    ranks.ready()
    main(given.seed, given.seconds, given.cases)
else:
    rank_main(given.seed, given.cases)

"""Compares modules under sherd.torch with the same modules in plain torch: what they return, and their gradients.

This is done on one rank and on two, at stages that take turns (with SHERD_TEST_LONG=1, at all). SHERD_DEBUG=1 overwrites memory outside of its live range.

usage: test_torch_modules.py [CASE ...]"""
from __future__ import annotations

import os
import sys
import traceback

import ranks

try:
    import torch
except ImportError as missing:
    ranks.skip(str(missing))

from torch_cases import all_cases
from torch_compare import case_check

# By the number of ranks: the stages at which a case is compared, by the rest of its place divided by 3. With SHERD_TEST_LONG it is all.
STAGES = {1: ([3], [0], []), 2: ([], [3], [1, 2])}


def stages_of(size: int, place: int) -> list[int]:
    """Returns the stages at which a case is compared, by its place in the list of cases."""
    turns = STAGES[size]
    return sorted({stage for turn in turns for stage in turn}) if os.environ.get("SHERD_TEST_LONG") else turns[place % 3]


def rank_main(names: list[str]) -> None:
    cases, failed = all_cases(), []
    for place, name in enumerate(cases):
        for stage in stages_of(int(os.environ["SHERD_WORLD_SIZE"]), place) if not names or name in names else ():
            try:
                case_check(cases[name], name, stage)
            except Exception:  # a failure of one case does not end the others
                failed.append(f"{name} at stage {stage}")
                print(f"case {name}, stage {stage}, rank {os.environ['SHERD_RANK']}:\n{traceback.format_exc()}")
    assert not failed, f"failed: {', '.join(failed)}"


def main() -> None:
    failed = []
    for size in STAGES:
        try:
            ranks.run(size, *sys.argv[1:], SHERD_DEBUG="1")
            print(f"{size} ranks: as in plain torch")
        except AssertionError as error:
            failed.append(f"{size} ranks")
            print(f"{failed[-1]}: {error}")
    assert not failed, f"failed: {failed}"


torch.set_num_threads(1)
if ranks.rank() is None:
    ranks.ready()
    main()
else:
    rank_main(sys.argv[1:])

"""Compares modules under sherd.torch with the same modules in plain torch: what they return, and their gradients.

This is done at every stage, on one rank and on two. SHERD_DEBUG=1 overwrites memory outside of its live range.

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

STAGES = {1: [3, 0], 2: [3, 2, 1]}


def rank_main(names: list[str]) -> None:
    cases, failed = all_cases(), []
    for stage in STAGES[int(os.environ["SHERD_WORLD_SIZE"])]:
        for name in names or cases:
            try:
                case_check(cases[name], name, stage)
            except Exception:  # a failure of one case does not end the others
                failed.append(f"{name} at stage {stage}")
                print(f"case {name}, stage {stage}, rank {os.environ['SHERD_RANK']}:\n{traceback.format_exc()}")
    assert not failed, f"failed: {', '.join(failed)}"


def main() -> None:
    failed = []
    for size, stages in STAGES.items():
        try:
            ranks.run(size, *sys.argv[1:], SHERD_DEBUG="1")
            print(f"{size} ranks, stages {stages}: {len(sys.argv[1:] or all_cases())} cases are as in plain torch")
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

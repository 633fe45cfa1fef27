"""Tests that scripts nobody wrote for sherd train with their import changed as they do without: `test_foreign.py [NAME...]`.

It prints a table: what ran, with the largest difference of the losses, what was refused, and what is skipped. foreign.py says more.
"""
from __future__ import annotations

import importlib.util
import os
import sys

import ranks

if not os.path.isdir(os.environ.get("SHERD_FOREIGN", "")):
    ranks.skip("SHERD_FOREIGN names no folder with the sources of scripts, as <library>/<path in its repository>")
try:
    import accelerate  # noqa: F401  what is imported here is not imported by each rank
    import datasets  # noqa: F401
    import evaluate  # noqa: F401
    import torch  # noqa: F401
    import transformers  # noqa: F401
except ImportError as error:
    ranks.skip(f"torch, transformers, accelerate, datasets or evaluate is not here: {error}")

import foreign
import foreign_accelerate
import foreign_deepspeed
import foreign_transformers

LISTS = [foreign_accelerate, foreign_deepspeed, foreign_transformers]


def why_skipped(script: foreign.Script) -> str:
    """Returns why a script cannot run here; "" where it can."""
    if not os.path.isfile(foreign.source(script)):
        return f"there is no {script.path}"
    missing = [name for name in script.needs if importlib.util.find_spec(name) is None]
    return f"{', '.join(missing)} is not installed" if missing else ""


def main(names: list[str]) -> int:
    failures = 0
    for script in (script for one in LISTS for script in one.SCRIPTS):
        if names and not any(name in script.title for name in names):
            continue
        reason = why_skipped(script)
        if reason:
            print(f"{script.title:32} skipped: {reason}", flush=True)
            continue
        for world_size, stage, text, is_expected in foreign.results(script):
            side = "as it is" if stage is None else f"stage {stage}"
            failures += not is_expected
            print(f"{script.title:32} {world_size} ranks, {side}: {'' if is_expected else 'FAILED: '}{text}", flush=True)
    print(f"{failures} failed")
    return min(failures, 1)


if __name__ == "__main__":
    ranks.ready()
    sys.exit(main(sys.argv[1:]))

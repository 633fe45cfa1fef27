"""Accelerate's own example scripts, for test_foreign.py."""
from __future__ import annotations

from typing import Any

from foreign import Script


def example(path: str, *arguments: str, **options: Any) -> Script:
    """A script of the folder examples, whose import of the Accelerator changes."""
    return Script(f"accelerate/examples/{path}", {"from accelerate import Accelerator": "from sherd.accelerate import Accelerator"},
                  ("--cpu", *arguments), **options)


SCRIPTS = [
    example("nlp_example.py"),
]

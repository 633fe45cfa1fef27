"""Holds modules.txt against the tree, and the core against its budget of lines: core.py SOURCE [--sizes]. Every source of the library
stands there once. --sizes prints the lines of the core and of each module."""

import sys
from collections import Counter
from pathlib import Path

# The core is at most this long.
BUDGET = 15_000
FOLDERS = ("include", "base", "kernels", "collectives", "offload", "engine")
SUFFIXES = {".c", ".h", ".cu", ".cuh"}

root = Path(sys.argv[1])
listed, sizes, part = [], Counter(), None
for text in (root / "modules.txt").read_text(encoding="utf-8").splitlines():
    text = text.split("#")[0].strip()
    if text.startswith("["):
        part = text[1:].split("]")[0]
    elif text:
        listed.append(text)
        sizes[part] += len((root / text).read_text(encoding="utf-8").splitlines())

failed = False
found = {str(path.relative_to(root)) for top in FOLDERS for path in (root / top).rglob("*") if path.suffix in SUFFIXES}
for path in sorted(found - set(listed)):
    print(f"{path} is neither of the core nor of a module: modules.txt lacks it")
    failed = True
for path, count in Counter(listed).items():
    if count > 1:
        print(f"{path} stands {count} times in modules.txt")
        failed = True
if sizes["core"] > BUDGET:
    print(f"the core has {sizes['core']:,} lines, and its budget is {BUDGET:,} (tests/house/core.py): put what a plain step does not need into a module")
    failed = True
if "--sizes" in sys.argv[2:]:
    for name, lines in sizes.items():
        print(f"{lines:7,} {name}")
if not failed:
    print(f"the core has {sizes['core']:,} lines of {BUDGET:,}")
sys.exit(failed)

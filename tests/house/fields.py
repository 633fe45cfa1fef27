"""No internal struct has more than 40 fields: fields.py SOURCE. A pointer to a function is a field, and so is each name of a list."""

import re
import sys
from pathlib import Path

MOST = 40
FOLDERS = ("base", "kernels", "collectives", "offload", "engine", "models", "planning", "cli", "trainer")

root = Path(sys.argv[1])
failed = False
for path in sorted(path for top in FOLDERS for path in (root / top).rglob("*") if path.suffix in {".c", ".h", ".cuh"}):
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(encoding="utf-8"), flags=re.S)
    for name, body in re.findall(r"\bstruct(?: (\w+))? \{\n(.*?)^\}", text, re.S | re.M):
        members = [member for member in re.sub(r"\{[^{}]*\}", "", body).split(";") if member.strip()]
        fields = sum(1 if "(*" in member else member.count(",") + 1 for member in members)
        if fields > MOST:
            print(f"{path.relative_to(root)}: struct {name} has {fields} fields, and at most {MOST} can be read at a glance: group some of them")
            failed = True
sys.exit(failed)

"""Holds the sizes that pages state against the tree: sizes.py SOURCE [--write]. A size in lines may be off by a tenth, so that a page
changes now and then and not with every commit; what is counted has to be right. --write puts the sizes of today into the pages, those in
lines in two digits."""

import re
import sys
from pathlib import Path

TOLERANCE = 0.1
SUFFIXES = {".c", ".h", ".cu", ".cuh", ".cpp", ".py", ".sh"}
NUMBER = r"([0-9][0-9,]*)"

root = Path(sys.argv[1])


def source_files():
    for top in sorted(root.iterdir()):
        if top.is_dir() and not top.name.startswith((".", "build")):
            yield from (path for path in sorted(top.rglob("*")) if path.suffix in SUFFIXES)


def lines(path, title=None):
    """Counts the lines of a file; with a title, those from the heading of that title on."""
    text = (root / path).read_text(encoding="utf-8").splitlines()
    if title is None:
        return len(text)
    [begin] = [i for i, line in enumerate(text) if re.fullmatch(rf"/\* -+ {re.escape(title)} -- \*/", line)]
    return len(text) - begin


def matches(path, pattern):
    """Counts the lines of a file that match."""
    return len(re.findall(pattern, (root / path).read_text(encoding="utf-8"), re.M))


def path_lines(item):
    """Counts the files that an item of the reading order names: `folder/file`, or `file` in the folder of the one before."""
    page = (root / "docs/architecture.md").read_text(encoding="utf-8")
    found = re.search(rf"^\* \*\*{item}\*\*(.*?)(?=^\* |^$)", page, re.M | re.S)
    if found is None:
        sys.exit(f'docs/architecture.md has no item "{item}" in its reading order')
    folder, count = Path(), 0
    for name, title in re.findall(r'`([\w/]+\.[ch])`(?:\s\(from\s"([^"]*)"\son\))?', found.group(1)):
        folder = Path(name).parent if "/" in name else folder
        count += lines(folder / Path(name).name, title or None)
    return count


def core_lines():
    """Counts the core: the files of the first part of modules.txt."""
    core = (root / "modules.txt").read_text(encoding="utf-8").split("[core]")[1].split("\n[")[0]
    return sum(lines(text.split("#")[0].strip()) for text in core.splitlines() if text.split("#")[0].strip())


source = list(source_files())
tests = [path for path in source if "tests" in path.relative_to(root).parts[:2]]  # python/tests, too
afternoon = path_lines("An afternoon")

# The page, the words around the sizes, and the sizes of today.
CLAIMS = [
    ("README.md", rf"about {NUMBER} lines show", [afternoon]),
    ("docs/architecture.md", rf"\*\*An afternoon\*\*, about {NUMBER} lines", [afternoon]),
    ("docs/architecture.md", rf"\*\*The engine\*\*, about {NUMBER} lines", [path_lines("The engine")]),
    ("docs/architecture.md", rf"\*\*The core\*\*, about {NUMBER} lines", [core_lines()]),
    ("docs/comparison.md", rf"about {NUMBER} lines of source, of which about {NUMBER} are tests", [sum(map(lines, source)), sum(map(lines, tests))]),
    ("docs/adding-an-optimizer.md", rf"a complete example in {NUMBER}\s+lines", [lines("tests/engine/sgd.c")]),
]


# The same of what is counted.
COUNTS = [
    ("README.md", rf"{NUMBER} schedules of DeepSpeed and transformers", [matches("engine/optimizers/schedule_list.h", r"^SHERDI_SCHEDULE\(")]),
    ("docs/promises.md", rf"lists the {NUMBER} calls", [sum(matches(path, r"^SHERD_(?:API|CALL) ") for path in (root / "include").glob("sherd*.h"))]),
]


def rounded(size):
    unit = 10 ** max(len(str(size)) - 2, 0)
    return f"{round(size / unit) * unit:,}"


failed = False
for page, pattern, sizes in CLAIMS + COUNTS:
    is_counted = (page, pattern, sizes) in COUNTS
    text = (root / page).read_text(encoding="utf-8")
    found = re.search(pattern, text)
    if found is None:
        print(f"{page} has no sizes in the words {pattern}: tests/house/sizes.py has to know the new words")
        failed = True
        continue
    if "--write" in sys.argv[2:]:
        for group in range(len(sizes), 0, -1):  # from the last one, so that the places of the others stay
            text = text[: found.start(group)] + (str if is_counted else rounded)(sizes[group - 1]) + text[found.end(group) :]
        (root / page).write_text(text, encoding="utf-8")
        continue
    for said, size in zip(found.groups(), sizes):
        if abs(int(said.replace(",", "")) - size) > (0 if is_counted else TOLERANCE * size):
            print(f"{page} says {said} where there are {size:,} ({found.group(0)!r}); python3 tests/house/sizes.py . --write mends it")
            failed = True
if not failed:
    print(f"{sum(len(sizes) for *_, sizes in CLAIMS)} sizes on pages, all within a tenth, and {len(COUNTS)} counts")
sys.exit(failed)

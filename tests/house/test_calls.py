"""docs/calls.md against the headers and the library: test_calls.py PAGE API_JSON INCLUDE_FOLDER [PROBE]

Every call of the headers stands in one row of one table. "who calls" agrees with the words Collective and Local of the call's comment.
What PROBE (calls.c) has found by making the calls agrees with the columns "allocates" and "still allowed after".
"""
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

page, api_path, include, *probe = sys.argv[1:]
COLUMNS = ["call", "who calls", "waits for", "allocates", "still allowed after"]
WAITS = {"ranks", "device", "drive", "update", "the update before", "its unit's update"}
FAILURES = {"window", "update", "world", "device"}
MAY_MEET = {("sherd_unit_acquire", "world"), ("sherd_unit_release", "world")}  # they work where they meet nobody
failures = []


def fail(text):
    failures.append(text)


def rows_of(path):
    """The rows of all tables with these columns, by call."""
    rows, inside = {}, False
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else None
        inside = cells is not None and (inside or cells == COLUMNS)
        if not inside or cells == COLUMNS or set(line) <= set("|-"):
            continue
        for call in re.findall(r"`(\w+)`", cells[0]):
            if call in rows:
                fail(f"{call} stands in two rows")
            rows[call] = dict(zip(COLUMNS, cells))
    return rows


def calls_of_headers():
    """Each call with the comment before it: those of the list, and those that stand inline in sherd_mpi.h and sherd_cuda.h."""
    found = {}
    for header in sorted(Path(include).glob("sherd*.h")):
        text = header.read_text(encoding="utf-8")
        comment, blank = "", False
        for part in re.finditer(r"/\*(.*?)\*/|^\s*\n|(?:SHERD_API|SHERD_CALL|static inline)\s[\w\s*]*?\b(sherd_\w+)\(", text, re.S | re.M):
            if part[2]:
                found[part[2]] = comment
            elif part[1] is not None and text[: part.start()].rsplit("\n", 1)[-1].strip() == "":
                comment = part[1]
            elif part[1] is None:
                comment = ""
    return found


def allowed_after(cell):
    words = cell.split(",")
    if words[0] in ("all", "none"):
        return FAILURES if words[0] == "all" else set()
    return {word.strip() for word in words if "with" not in word} | ({"update"} if "with state" in cell else set())


def check_row(call, row):
    if not re.match(r"(all ranks|alike|local)\b", row["who calls"]):
        fail(f'{call}: who calls is "{row["who calls"]}"')
    if row["waits for"] != "–" and not set(row["waits for"].split(", ")) <= WAITS:
        fail(f'{call}: waits for "{row["waits for"]}"')
    if not re.match(r"(yes|no|–)\b|–", row["allocates"]):
        fail(f'{call}: allocates is "{row["allocates"]}"')
    if not allowed_after(row["still allowed after"]) <= FAILURES:
        fail(f'{call}: still allowed after "{row["still allowed after"]}"')


def check_words(call, row, comment):
    is_collective = re.search(r"(?<!Not )\b[Cc]ollective\b", comment) is not None
    is_local = re.search(r"\bLocal\b|Not collective", comment) is not None
    if is_collective and not row["who calls"].startswith("all ranks"):
        fail(f'{call}: the header says that it is collective, and the page "{row["who calls"]}"')
    if is_local and not is_collective and row["who calls"].startswith("all ranks"):
        fail(f'{call}: the header says that it is local, and the page "{row["who calls"]}"')


def check_probe(rows):
    with tempfile.TemporaryDirectory() as folder:
        lines = subprocess.run([*probe, folder], check=True, stdout=subprocess.PIPE, text=True).stdout.split("\n")
    seen = [line.split() for line in lines if line]
    for call, made, *after in seen:
        row = rows[call]
        if made == "allocates" and row["allocates"] == "no":
            fail(f"{call} allocates, and the page says no")
        claimed = allowed_after(row["still allowed after"])
        for word in ("update", "world", "device"):
            if (word in after) != (word in claimed) and (call, word) not in MAY_MEET:
                fail(f'{call}: after "{word}" it is {"allowed" if word in after else "refused"}, and the page says "{row["still allowed after"]}"')
    return len(seen)


rows, headers = rows_of(page), calls_of_headers()
api = set(json.loads(Path(api_path).read_text(encoding="utf-8"))["functions"])
inline = {call for call in headers if call not in api}
for call in sorted((api | inline) - set(rows)):
    fail(f"{call} is in no table of {page}")
for call in sorted(set(rows) - api - inline):
    fail(f"{call} is in a table of {page}, and in no header")
for call in sorted(api - set(headers)):
    fail(f"{call}: this test does not find its comment")
for call in sorted(set(rows) & set(headers)):
    check_row(call, rows[call])
    check_words(call, rows[call], headers[call])
count = check_probe(rows) if probe and not failures else 0
if failures:
    sys.exit("\n".join(failures))
print(f"{len(rows)} calls in tables, {count} of them made")

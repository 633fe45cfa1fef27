#!/usr/bin/env python3
"""Counts the tokens of C by room, without comments: of the product alone, so not of tests/, bench/ and the demo trainer."""

import argparse
import re
import subprocess
import sys
from collections import Counter

NOT_COUNTED = ("tests/", "bench/", "trainer/", "python/")
COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')', re.S)
TOKEN = re.compile(
    r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''  # strings, characters
    r"|[A-Za-z_]\w*|\.?\d(?:[eEpP][+-]|[\w.])*"  # words, numbers
    r"|\.\.\.|<<=|>>=|->|\+\+|--|&&|\|\||##|[-+*/%&|^!=<>]=|<<|>>|[^\s\w]"
)


def git(*arguments):
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def tokens(text):
    """Counts the tokens of a source."""
    return len(TOKEN.findall(COMMENT.sub(lambda found: found[1] or " ", text)))


def rooms(commit):
    """Counts the tokens in each folder of a commit; without one, of the files as they are."""
    counts = Counter()
    names = git("ls-tree", "-r", "--name-only", commit) if commit else git("ls-files")
    for name in names.splitlines():
        if name.endswith((".c", ".h")) and not name.startswith(NOT_COUNTED):
            text = git("show", f"{commit}:{name}") if commit else open(name, encoding="utf-8").read()
            counts[name.rpartition("/")[0]] += tokens(text)
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--since", metavar="COMMIT", help="also count that commit, and print the differences")
    options = parser.parse_args()
    now = rooms(None)
    before = rooms(options.since) if options.since else None
    for room in [*sorted(now | (before or {})), "all"]:
        numbers = [sum(counts.values()) if room == "all" else counts[room] for counts in (before, now) if counts is not None]
        if before is not None:
            numbers.append(numbers[1] - numbers[0])
        print(f"{room:24}", *(f"{number:9,}" for number in numbers))


if __name__ == "__main__":
    sys.exit(main())

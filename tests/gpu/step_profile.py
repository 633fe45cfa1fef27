"""The time of a step by kernel, from what Nsight Compute measured (--csv --page raw, gpu__time_duration.sum): step_profile.py FILE.
A step is what lies between two launches of the kernel that begins one; the last line is the sum."""

import collections
import csv
import re
import sys

ONCE_A_STEP = "embed_forward"  # of a micro-batch, and a step of what is measured has one
UNITS = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}


def launches(path):
    """(name, microseconds) of each launch, in order."""
    with open(path, encoding="utf-8") as lines:
        rows = list(csv.DictReader(line for line in lines if line.startswith('"')))
    unit = UNITS[rows[0]["gpu__time_duration.sum"]]  # the row of units
    for row in rows[1:]:
        name = re.sub(r"^void |\(.*", "", row["Kernel Name"])
        yield name, unit * float(row["gpu__time_duration.sum"].replace(",", ""))


def whole_steps(run):
    """The launches of whole steps, and how many steps they are; of all where no step is whole."""
    marks = [index for index, (name, _) in enumerate(run) if ONCE_A_STEP in name]
    if len(marks) < 2:
        return run, 1
    return run[marks[0]:marks[-1]], len(marks) - 1


def main():
    """A table, the longest first."""
    run, steps = whole_steps(list(launches(sys.argv[1])))
    total = sum(time for _, time in run)
    by_name = collections.defaultdict(list)
    for name, time in run:
        by_name[name].append(time)
    print(f"{'us a step':>10} {'share':>6} {'launches':>8} {'us each':>8}  kernel")
    for name, times in sorted(by_name.items(), key=lambda item: -sum(item[1])):
        print(f"{sum(times) / steps:10.1f} {100 * sum(times) / total:5.1f}% {len(times) / steps:8.1f} "
              f"{sum(times) / len(times):8.1f}  {name[:150]}")
    print(f"{total / steps / 1e3:.2f} ms of kernels a step, {len(run) / steps:.0f} launches, of {steps} steps")


if __name__ == "__main__":
    sys.exit(main())

"""The time of a step by kernel, from what Nsight Compute measured (--csv --page raw, gpu__time_duration.sum): step_profile.py FILE.
A step is what lies between two launches of a kernel that each step launches once; the last line is the sum. Ends with 1 where no step
is whole: half of one, or two halves, would look like one."""

import collections
import csv
import re
import sys

ONCE_A_STEP = ("embed_forward", "loss_finish")  # once a micro-batch, and a step of what is measured has one
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
    """The launches of whole steps, and how many steps they are, by the kernel that shows the most; 0 where no step is whole."""
    found = [], 0
    for once in ONCE_A_STEP:
        marks = [index for index, (name, _) in enumerate(run) if once in name]
        if len(marks) - 1 > found[1]:
            found = run[marks[0]:marks[-1]], len(marks) - 1
    return found


def main():
    """A table, the longest first."""
    everything = list(launches(sys.argv[1]))
    run, steps = whole_steps(everything)
    if steps == 0:
        print(f"no whole step in {len(everything)} launches: none is the second of {' or of '.join(ONCE_A_STEP)}")
        return 1
    total = sum(time for _, time in run)
    by_name = collections.defaultdict(list)
    for name, time in run:
        by_name[name].append(time)
    print(f"{'us a step':>10} {'share':>6} {'launches':>8} {'us each':>8}  kernel")
    for name, times in sorted(by_name.items(), key=lambda item: -sum(item[1])):
        print(f"{sum(times) / steps:10.1f} {100 * sum(times) / total:5.1f}% {len(times) / steps:8.1f} "
              f"{sum(times) / len(times):8.1f}  {name[:150]}")
    print(f"{total / steps / 1e3:.2f} ms of kernels a step, {len(run) / steps:.0f} launches, of {steps} steps")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""What sherd.redundancy costs when nothing happens: the trainer with `none`, `host` and `peer` in turn, another one first in each round; median
step time, ratios round by round, and memory per rank. The median of the ratios has an interval that holds it with 95 %, by the sign test. The second update of `peer` overlaps with the next forward pass: its ratio is to a step and an update more."""
import argparse
import json
import math
import platform
import re
import statistics
import subprocess
import sys
import tempfile


def train(arguments, folder, mode):
    log = f"{folder}/{mode}.jsonl"
    command = [arguments.trainer, "--data", arguments.data, "--config", f"{folder}/{mode}.json",
               "--ranks", str(arguments.ranks), "--threads", str(arguments.threads),
               "--steps", str(arguments.steps), "--eval-every", "0", "--sample", "1", "--log", log] + arguments.rest
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    memory = re.search(r"memory per rank: ([0-9.]+ \w+)", output).group(1)
    lines = [json.loads(line) for line in open(log)][3:]
    return (1000 * statistics.median(line["seconds"] for line in lines), memory,
            1000 * statistics.median(line["figures"]["update_s"] for line in lines))


def interval(values):
    """Gives two of the values between which their median lies with 95 %, by the sign test; with too few of them, all lie between."""
    count, tail, at = len(values), 0.0, 0
    while True:
        tail += math.comb(count, at) / 2**count
        if tail > 0.025 or at > count // 2:
            break
        at += 1
    low = max(at - 1, 0)
    return sorted(values)[low], sorted(values)[count - 1 - low]


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog="Arguments after -- go to the trainer.")
    parser.add_argument("--trainer", default="build/trainer/sherd-llm")
    parser.add_argument("--data", default="build/data/kjv.txt", help="text to train on")
    parser.add_argument("--config", default="trainer/default.json")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--modes", default="none,host,peer", help="without peer for Muon (default: %(default)s)")
    parser.add_argument("rest", nargs="*")
    arguments = parser.parse_args()

    print(f"# machine  {platform.machine()}, Linux {platform.release()}")
    print(f"# command  {' '.join(sys.argv)}")
    modes = arguments.modes.split(",")
    times = {mode: [] for mode in modes}
    updates = []
    memory = {}
    with tempfile.TemporaryDirectory() as folder:
        text = open(arguments.config).read()
        for mode in modes:
            with open(f"{folder}/{mode}.json", "w") as out:
                key = f'"redundancy": "{mode}"'
                out.write(text.replace('"sherd": {', f'"sherd": {{{key}, ', 1) if '"sherd": {' in text else
                          text.replace("{", f'{{"sherd": {{{key}}},', 1))
        for number in range(arguments.rounds):
            first = number % len(modes)
            for mode in modes[first:] + modes[:first]:
                milliseconds, memory[mode], update = train(arguments, folder, mode)
                times[mode].append(milliseconds)
                if mode == "none":
                    updates.append(update)
    for mode, values in times.items():
        print(f"{mode:6} {statistics.median(values):9.2f} ms a step "
              f"({min(values):.2f} .. {max(values):.2f})  {memory[mode]} per rank")
    print(f"update {statistics.median(updates):9.2f} ms of them, with none")
    for mode in modes[1:]:
        values = [own / (step + (update if mode == "peer" else 0)) for step, update, own in zip(times["none"], updates, times[mode])]
        of = "a step and an update" if mode == "peer" else "a step"
        low, high = interval(values)
        print(f"{mode:6} {statistics.median(values):9.3f} of {of} ({low:.3f} .. {high:.3f}; rounds {min(values):.3f} .. {max(values):.3f})")


main()

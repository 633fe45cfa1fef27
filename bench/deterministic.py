#!/usr/bin/env python3
"""What the deterministic mode costs: the default model of the trainer with and without it, in turn,
2 ranks of 1 thread; median step time, their ratio round by round, and memory per rank."""
import argparse
import json
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
               "--steps", str(arguments.steps), "--eval-every", "0", "--sample", "1", "--log", log]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    memory = re.search(r"memory per rank: ([0-9.]+ \w+)", output).group(1)
    seconds = [json.loads(line)["seconds"] for line in open(log)]
    return 1000 * statistics.median(seconds[3:]), memory


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainer", default="build/trainer/sherd-llm")
    parser.add_argument("--data", default="build/data/kjv.txt", help="text to train on")
    parser.add_argument("--config", default="trainer/default.json")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()

    print(f"# machine  {platform.machine()}, Linux {platform.release()}")
    print(f"# command  {' '.join(sys.argv)}")
    times = {"default": [], "deterministic": []}
    memory = {}
    with tempfile.TemporaryDirectory() as folder:
        text = open(arguments.config).read()
        for mode in times:
            key = "{" if mode == "default" else '{\n  "deterministic": true,'
            with open(f"{folder}/{mode}.json", "w") as out:
                out.write(text.replace("{", key, 1))
        for _ in range(arguments.rounds):
            for mode in times:
                milliseconds, memory[mode] = train(arguments, folder, mode)
                times[mode].append(milliseconds)
    for mode, values in times.items():
        print(f"{mode:14} {statistics.median(values):9.2f} ms a step "
              f"({min(values):.2f} .. {max(values):.2f})  {memory[mode]} per rank")
    ratios = [b / a for a, b in zip(times["default"], times["deterministic"])]
    print(f"{'ratio':14} {statistics.median(ratios):9.3f}    ({min(ratios):.3f} .. {max(ratios):.3f})")


main()

#!/usr/bin/env python3
"""A prediction and the run that it is about: `sherd plan` measures this machine's rates and says what a step of the trainer takes and
needs, then the trainer makes the steps. Prints a line for each layout and round, and the medians. With --best the plan chooses the layout."""
import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile

OFFLOADS = {"none": ("none", "none"), "optimizer-cpu": ("cpu", "none"), "optimizer-nvme": ("nvme", "none"),
            "params-cpu": ("cpu", "cpu"), "params-nvme": ("nvme", "nvme")}
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SIZE = r"([0-9.]+) ([KMGT]?i?B)"


def machine():
    with open("/proc/cpuinfo") as lines:
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "?")
    with open("/proc/meminfo") as lines:
        kib = int(next(lines).split()[1])
    cores = open("/proc/cpuinfo").read().count("\nprocessor") + 1
    return f"{name}, {cores} cores, {kib / 2**20:.1f} GiB"


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"predicted: {' '.join(command)} ends with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


def config_write(a, stage, offload, path):
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
    for key, device in zip(("offload_optimizer", "offload_param"), OFFLOADS[offload]):
        if device != "none":
            zero[key] = {"device": device}
        if device != "none" and a.backend == "cuda":
            zero[key]["pin_memory"] = True
        if device == "nvme":
            zero[key]["nvme_path"] = a.nvme_path
            zero[key].update({"fast_init": True} if key == "offload_optimizer" else {"max_in_cpu": 0})
    config = {"train_micro_batch_size_per_gpu": a.batch, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
              "zero_optimization": zero}
    if a.precision != "fp32":
        config[a.precision] = {"enabled": True}
    with open(path, "w") as out:
        json.dump(config, out)


def predict(a, config):
    """The row of the plan, and further options of the trainer."""
    command = [a.sherd, "plan", "--arch", a.arch, "--preset", a.preset, "--tokens", str(a.length), "--world", str(a.ranks),
               "--backend", a.backend, "--json", "--rates", a.rates, "--nvme-path", a.nvme_path]
    for option in ("rate", "device_memory", "host_memory", "nvme_space", "activations"):
        if getattr(a, option) is not None:
            command += ["--" + option.replace("_", "-"), getattr(a, option)]
    if a.best:
        command += ["--batch", str(a.batch), "--best", "--force", "--out", config]
    else:
        command += ["--config", config]
    done = run(command)
    place = re.search(r"the trainer takes --activations ([\w-]+)", done.stderr)
    place = place.group(1) if place else a.activations
    if a.verbose:
        print(done.stderr, end="")
    return json.loads(done.stdout), ["--activations", place] if place else []


def size(text, pattern):
    found = re.search(pattern, text)
    return float(found.group(1)) * UNITS[found.group(2)] if found else 0


def train(a, config, more, folder):
    log = f"{folder}/log"
    said = run([a.trainer, "--data", a.data, "--config", config, "--arch", a.arch, "--preset", a.preset, "--length", str(a.length),
                "--ranks", str(a.ranks), "--backend", a.backend, "--steps", str(a.steps), "--sample", "0", "--eval-every", "0",
                "--log", log] + more + a.trainer_args).stdout
    steps = [json.loads(line) for line in open(log)]
    half = steps[len(steps) // 2:]  # a start warms up
    apart = size(said, rf"end: device .* in addition {SIZE} of activations")
    return {"step_s": statistics.median(step["seconds"] for step in half),
            "wait_s": statistics.median(step["figures"]["exposed_s"] for step in half),
            "device": (size(said, rf"end: device {SIZE} planned") + apart, size(said, rf"end: device .* planned, {SIZE} held") + apart,
                       size(said, rf"GPU reports {SIZE}")),
            "host": (size(said, rf"end: host {SIZE} planned"), size(said, rf"end: host .* planned, {SIZE} held"),
                     size(said, rf"end: host .* {SIZE} at its most")),
            "pinned": (size(said, rf"end: pinned {SIZE} planned"), size(said, rf"end: pinned .* planned, {SIZE} held"),
                       size(said, rf"end: pinned .* reports {SIZE} locked"))}


def memory_text(plan, got):
    """What the plan, the trainer's engine and the system say, in GiB."""
    planned = {"device": plan["device_bytes"] + plan["activation_bytes"], "host": plan["host_bytes"], "pinned": plan["pinned_bytes"]}
    parts = []
    for name, (_, held, system) in ((name, got[name]) for name in planned):
        text = f"{name} {planned[name] / 2**30:.2f} planned, {held / 2**30:.2f} held"
        parts.append(text if name == "device" and system == 0 else f"{text}, {system / 2**30:.2f} the system's")
    return "; ".join(parts)


def layout_run(a, stage, offload, folder):
    ratios, rounds = [], []
    for _ in range(a.rounds):
        config = f"{folder}/config.json"
        if not a.best:
            config_write(a, stage, offload, config)
        plan, more = predict(a, config)
        got = train(a, config, more, folder)
        ratios.append(plan["queued_s"] / got["step_s"])
        rounds.append((plan, got))
        print(f"  round: predicted {plan['queued_s']:.4g} s, measured {got['step_s']:.4g} s, ratio {ratios[-1]:.3f}; waited "
              f"{max(0, plan['queued_s'] - plan['compute_s']):.4g} s and {got['wait_s']:.4g} s; "
              + ", ".join(f"{name} {rate['value']:.3g} {rate['origin']}" for name, rate in plan["rates"].items()), flush=True)
    plan, got = rounds[-1]
    predicted, measured = (statistics.median(values) for values in
                           ([p["queued_s"] for p, _ in rounds], [g["step_s"] for _, g in rounds]))
    tokens = a.batch * a.length * a.ranks * plan["accumulation"]
    print(f"{plan['model']}, stage {plan['stage']}, offload {plan['offload']}, {a.ranks} rank{'s' * (a.ranks > 1)}: predicted "
          f"{predicted:.4g} s a step, {tokens / predicted:.0f} tokens/s; measured {measured:.4g} s, {tokens / measured:.0f} tokens/s; ratio "
          f"{statistics.median(ratios):.3f} ({min(ratios):.3f}..{max(ratios):.3f}); GiB: {memory_text(plan, got)}", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="./run bench predicted", description=__doc__,
                                     epilog="What follows -- is for the trainer.")
    parser.add_argument("--sherd", default="build/cli/sherd")
    parser.add_argument("--trainer", default="build/trainer/sherd-llm")
    parser.add_argument("--data", default="build/data/kjv.txt", help="text to train on")
    parser.add_argument("--arch", default="gpt2")
    parser.add_argument("--preset", default="124m")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--precision", default="bf16", choices=("fp32", "bf16", "fp16"))
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--stage", type=int, default=3)
    parser.add_argument("--offloads", default="none,optimizer-nvme", help="of " + ", ".join(OFFLOADS))
    parser.add_argument("--nvme-path", default=".")
    parser.add_argument("--best", action="store_true", help="the plan chooses, for these, each as for sherd plan:")
    for name in ("device-memory", "host-memory", "nvme-space"):
        parser.add_argument("--" + name)
    parser.add_argument("--activations", help="as for sherd plan and the trainer")
    parser.add_argument("--rates", default="measured", help="as for sherd plan (default: measured)")
    parser.add_argument("--rate", help="as for sherd plan")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--verbose", action="store_true", help="print what the plan says on standard error")
    ours, theirs = sys.argv[1:], []
    if "--" in ours:
        theirs = ours[ours.index("--") + 1:]
        ours = ours[:ours.index("--")]
    a = parser.parse_args(ours)
    a.trainer_args = theirs
    print(f"# machine  {machine()}")
    print(f"# command  ./run bench predicted {' '.join(sys.argv[1:])}", flush=True)
    for offload in ["chosen"] if a.best else a.offloads.split(","):
        with tempfile.TemporaryDirectory() as folder:
            layout_run(a, a.stage, offload, folder)


main()

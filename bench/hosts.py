#!/usr/bin/env python3
"""Steps of the trainer on two hosts with two ranks each: flat, with a second copy and with replicas; next to the same ranks on one host, and
to what `sherd plan` predicts from rates that are measured in the same round. The rate of arithmetic is that of the ranks on one host.
What goes to the other host is compared with the plan and with the counters of the interfaces."""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time

LAYOUTS = {"one host": {}, "before": {}, "flat": {}, "second copy": {"zero_hpz_partition_size": 2}, "replicas": {"shard_size": 2}}


def machine():
    with open("/proc/cpuinfo") as lines:
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "?")
    return f"{name}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"


def config_write(a, layout):
    zero = {"stage": a.stage, "stage3_param_persistence_threshold": 0}
    config = {"train_micro_batch_size_per_gpu": a.batch, "bf16": {"enabled": True},
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "zero_optimization": zero}
    for key, value in LAYOUTS[layout].items():
        if key == "shard_size":
            config["sherd"] = {key: value}
        else:
            zero[key] = value
    path = f"{a.folder}/{layout.replace(' ', '-')}.json"
    with open(path, "w") as out:
        json.dump(config, out)
    return path


def start(a, is_one, command):
    """Starts a command as four ranks: of the first host, or two on each."""
    first, second = a.hosts.split()
    on = f"{first}:4" if is_one else f"{first}:2,{second}:2"
    line = (f"OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 SHERD_CPU_BIND=none timeout -k 5 600 mpirun --oversubscribe {a.mpi} "
            f"--host {on} --map-by slot -n 4 -x SHERD_CPU_BIND {shlex.join(command)}")
    return subprocess.Popen([f"{a.folder}/agent", first, line], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(job, what):
    said = job.communicate()[0]
    if job.returncode != 0:
        sys.exit(f"hosts: {what} ends with {job.returncode}:\n{said}")


def rates_limit(a):
    for host in a.hosts.split():
        done = subprocess.run(["ip", "netns", "exec", host, "tc", "qdisc", "add", "dev", a.interface, "root", "tbf", "rate", a.rate, "burst", "256k",
                               "latency", "50ms"], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"hosts: the rate of a wire cannot be limited: {done.stderr}")


def sent(a):
    """What the interfaces of both hosts have sent."""
    total = 0
    for host in a.hosts.split():
        shown = subprocess.run(["ip", "-n", host, "-s", "-j", "link", "show", "dev", a.interface], capture_output=True, text=True, check=True)
        total += json.loads(shown.stdout)[0]["stats64"]["tx"]["bytes"]
    return total


def end(a, job):
    """Ends what runs on the hosts: a trainer would validate after its last step."""
    for host in a.hosts.split():
        pids = subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True, check=True).stdout.split()
        subprocess.run(["kill", "-9"] + pids, stderr=subprocess.DEVNULL, check=False)
    job.communicate()


def train(a, layout, config):
    """The steps after the first one."""
    log = f"{a.folder}/log"
    trainer = a.before if layout == "before" else f"{a.build}/trainer/sherd-llm"
    if os.path.exists(log):
        os.remove(log)
    job = start(a, layout == "one host", [trainer, "--data", a.data, "--arch", "gpt2", "--preset", a.preset, "--length", str(a.length), "--config",
                                          config, "--steps", str(a.steps + 1), "--sample", "0", "--eval-every", "0", "--threads", "1", "--quiet",
                                          "--log", log])
    marks = {}
    lines = 0
    while lines < a.steps:
        if job.poll() is not None:
            finish(job, layout)
            sys.exit(f"hosts: {layout} ends after {lines} steps")
        if os.path.exists(log):
            with open(log) as text:
                lines = text.read().count("\n")
        if lines in (1, a.steps) and lines not in marks:
            marks[lines] = sent(a)
        time.sleep(0.005)
    end(a, job)
    with open(log) as text:
        steps = [json.loads(line) for line in text.read().splitlines()[1:a.steps]]
    figures = [step["figures"] for step in steps]
    return {"step_s": statistics.median(step["seconds"] for step in steps),
            "compute_s": statistics.median(figure["compute_s"] for figure in figures),
            "counted": sum(figure.get("between_bytes", 0) for figure in figures),
            "planned": sum(figure.get("between_planned", 0) for figure in figures),
            "interfaces": marks[a.steps] - marks[1]}


def plan(a, layout, config, options):
    command = [f"{a.build}/cli/sherd", "plan", "--arch", "gpt2", "--preset", a.preset, "--tokens", str(a.length), "--world", "4",
               "--ranks-per-host", "4" if layout == "one host" else "2", "--config", config, "--json"] + options
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"hosts: {shlex.join(command)}:\n{done.stderr}")
    return json.loads(done.stdout)


def round_run(a, layouts, configs, number):
    """What each layout took, and what was predicted."""
    rates = f"{a.folder}/rates.json"
    finish(start(a, False, [f"{a.build}/cli/sherd", "bench", "--size", a.size, "--rounds", "3", "--force", "--out", rates]), "sherd bench")
    got = {name: train(a, name, configs[name]) for name in (layouts if number % 2 == 0 else layouts[::-1])}
    with open(rates) as text:
        print(f"  round {number + 1}: rates " + ", ".join(f"{name} {rate:.4g}" for name, rate in json.load(text).items()
                                                          if name in ("wire", "between", "device")), end="")
    flops = plan(a, "one host", configs["one host"], ["--rate", "flops=1e9"])["compute_s"] * 1e9 / got["one host"]["compute_s"]
    print(f", flops {flops:.4g}; load {os.getloadavg()[0]:.1f}")
    for name in layouts:
        if name != "before":
            got[name]["predicted"] = plan(a, name, configs[name], ["--rates", rates, "--rate", f"flops={flops}"])["queued_s"]
        print(f"    {name:12} {got[name]['step_s']:.3f} s, arithmetic {got[name]['compute_s']:.3f} s, predicted "
              f"{got[name].get('predicted', 0):.3f} s", flush=True)
    return got


def results_print(a, layouts, rounds):
    def middle(values):
        return statistics.median(list(values))

    one = [got["one host"]["step_s"] for got in rounds]
    count = a.steps - 1
    print(f"{'layout':12} {'step, s':>8} {'beyond':>7} {'predicted':>9} {'ratio':>6}  {'MB a step planned, counted, interfaces':40} {'over':>6}")
    for name in layouts:
        mine = [got[name] for got in rounds]
        ratio = middle(got["predicted"] / got["step_s"] for got in mine) if name != "before" else 0
        bytes_of = [middle(got[key] / count / 1e6 for got in mine) for key in ("planned", "counted", "interfaces")]
        over = bytes_of[2] / bytes_of[1] if bytes_of[1] > 0 else 0
        print(f"{name:12} {middle(got['step_s'] for got in mine):8.3f} {middle(got['step_s'] - o for got, o in zip(mine, one)):7.3f} "
              f"{middle(got.get('predicted', 0) for got in mine):9.3f} {ratio:6.3f}  "
              + f"{', '.join(f'{value:.1f}' for value in bytes_of):40} {over:6.3f}")
    for base in ("before", "flat"):
        if base in layouts:
            print(f"beyond one host, replicas over {base}: " + ", ".join(
                f"{value:.3f}" for value in sorted((got["replicas"]["step_s"] - o) / (got[base]["step_s"] - o) for got, o in zip(rounds, one))))


def main():
    parser = argparse.ArgumentParser(prog="./run bench hosts", description=__doc__)
    for name in ("build", "folder", "hosts", "interface", "mpi"):
        parser.add_argument("--" + name, help=argparse.SUPPRESS)
    parser.add_argument("--before", help="the sherd-llm of another build, which runs flat next to the others")
    parser.add_argument("--data", help="text to train on (default: the build's)")
    parser.add_argument("--rate", default="1gbit", help="of the wire of each host, as for tc (default: 1gbit)")
    parser.add_argument("--preset", default="124m", help="of gpt2")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=64, help="tokens of a sequence")
    parser.add_argument("--stage", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--size", default="8M", help="as for sherd bench")
    parser.add_argument("--rounds", type=int, default=5)
    a = parser.parse_args()
    if a.steps < 2:
        parser.error("--steps wants at least 2: the first one does not count")
    a.build = os.path.realpath(a.build)
    a.data = os.path.realpath(a.data or f"{a.build}/data/kjv.txt")
    a.before = a.before and os.path.realpath(a.before)
    rates_limit(a)
    layouts = [name for name in LAYOUTS if name != "before" or a.before]
    configs = {name: config_write(a, name) for name in layouts}
    print(f"# machine  {machine()}, {subprocess.run(['mpirun', '--version'], capture_output=True, text=True).stdout.splitlines()[0]}")
    print(f"# command  ./run bench hosts {' '.join(sys.argv[11:])}", flush=True)
    results_print(a, layouts, [round_run(a, layouts, configs, number) for number in range(a.rounds)])


main()

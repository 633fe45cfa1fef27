#!/usr/bin/env python3
"""Steps of sherd.torch and of plain torch with fused AdamW, DistributedDataParallel, FSDP2 and DeepSpeed: the same model
(GPT-2's shape, or with `--model linears` as many linear layers, whose cost is calls alone), data and initial weights, fp32,
over gloo on this machine. `foreach` is plain torch with the foreach AdamW. The doors `accelerate`, `deepspeed-as` and
`trainer` are sherd's in place of Accelerate, DeepSpeed and transformers' Trainer; their cost is the ratio to `sherd`. All of one table take turns in one run, so their
ratios can be compared; seconds cannot be, with those of another run. Ratios are of medians, of the rounds from smallest to
largest, of the medians of processor time, and of the least seconds and least processor time: what others on the machine
take is in the least ones least.

The interpreter is the one that SHERD_PYTHON names; what it does not have is left out with the reason."""
from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

from peak import Peak, pss_bytes

STARTED = time.time()
ROOT = pathlib.Path(__file__).resolve().parent.parent
LR, BETAS, EPS, DECAY = 1e-4, (0.9, 0.999), 1e-8, 0.01
LOSS_APART = 1e-6  # relative, of the first step
TABLES = {1: ["plain", "sherd-0", "sherd-3"], 2: ["sherd-3", "fsdp2", "deepspeed-3", "sherd-0", "ddp"]}

# ------------------------------------------------------------ one contestant --


class Contestant:
    """One rank of it. `step` trains on one micro-batch and gives its loss."""

    def __init__(self, arguments, rank: int, world_size: int) -> None:
        self.arguments, self.rank, self.world_size = arguments, rank, world_size
        self.model = self.model_make()
        self.rows = self.rows_make()
        self.open()

    def model_make(self):
        import torch

        if self.arguments.model == "linears":
            return linears(self.arguments)
        sys.path.insert(0, str(ROOT / "examples/pytorch/plain"))
        from nanogpt import GPT
        a = self.arguments
        torch.manual_seed(1)
        return GPT(a.layers, a.width, a.heads, max(1024, a.length), a.vocab)

    def rows_make(self):
        import torch

        draw = torch.Generator().manual_seed(2)
        a = self.arguments
        return torch.randint(a.vocab, (16, self.world_size, a.batch, a.length + 1), generator=draw)[:, self.rank]

    def open(self) -> None:
        self.optimizer = self.optimizer_make(fused=True)

    def optimizer_make(self, **way):
        import torch

        return torch.optim.AdamW(self.model.parameters(), lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, **way)

    def step(self, number: int) -> float:
        import torch

        rows = self.rows[number % len(self.rows)]
        loss = self.model(rows[:, :-1], rows[:, 1:])
        loss.backward()
        self.backward_end = time.perf_counter()
        if self.arguments.clip > 0:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.arguments.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def config(self, stage: int) -> dict:
        """In the form that DeepSpeed and sherd read."""
        return {"train_micro_batch_size_per_gpu": self.arguments.batch, "gradient_clipping": self.arguments.clip,
                "optimizer": {"type": "AdamW", "params": {"lr": LR, "betas": list(BETAS), "eps": EPS, "weight_decay": DECAY}},
                "zero_optimization": {"stage": stage}}


class Foreach(Contestant):
    def open(self) -> None:
        self.optimizer = self.optimizer_make(foreach=True)


def linears(arguments):
    """A row of linear layers, which takes tokens as numbers; its loss is the mean square of what comes out."""
    import torch

    class Linears(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(*(torch.nn.Linear(arguments.width, arguments.width) for _ in range(arguments.layers)))

        def forward(self, inputs, _targets):
            rows = torch.nn.functional.one_hot(inputs % arguments.width, arguments.width).float()
            return (self.layers(rows) - 1).square().mean()

    torch.manual_seed(1)
    return Linears()


class Ddp(Contestant):
    def open(self) -> None:
        import torch

        torch.distributed.init_process_group("gloo")
        self.model = torch.nn.parallel.DistributedDataParallel(self.model)
        super().open()


class Fsdp2(Contestant):
    def open(self) -> None:
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        torch.distributed.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (self.world_size,))
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        super().open()


class DeepSpeed(Contestant):
    stage = 3

    def open(self) -> None:
        os.environ["DS_ACCELERATOR"] = "cpu"
        import deepspeed
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        deepspeed.init_distributed("gloo")
        config = self.config(self.stage)
        config.pop("optimizer")
        optimizer = DeepSpeedCPUAdam(self.model.parameters(), lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
        self.engine = deepspeed.initialize(model=self.model, optimizer=optimizer, config=config)[0]

    def step(self, number: int) -> float:
        rows = self.rows[number % len(self.rows)]
        loss = self.engine(rows[:, :-1], rows[:, 1:])
        self.engine.backward(loss)
        self.backward_end = time.perf_counter()
        self.engine.step()
        return loss.item()


class Sherd(DeepSpeed):
    def open(self) -> None:
        import sherd.torch

        self.engine = sherd.torch.initialize(self.model, config=self.config(self.stage))


class Accelerated(DeepSpeed):
    def open(self) -> None:
        from sherd.accelerate import Accelerator

        super(DeepSpeed, self).open()
        self.accelerator = Accelerator(sherd_config={"zero_optimization": {"stage": self.stage}}, cpu=True)
        self.model, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)

    def step(self, number: int) -> float:
        rows = self.rows[number % len(self.rows)]
        loss = self.model(rows[:, :-1], rows[:, 1:])
        self.accelerator.backward(loss)
        self.backward_end = time.perf_counter()
        if self.arguments.clip > 0:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.arguments.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


class AsDeepSpeed(DeepSpeed):
    def open(self) -> None:
        import sherd.deepspeed

        self.engine = sherd.deepspeed.initialize(model=self.model, config=self.config(self.stage))[0]


class Trained(DeepSpeed):
    """The Trainer's loop runs on a thread of its own, and waits for a turn where it asks for the next batch."""

    def open(self) -> None:
        import queue
        import threading

        import torch
        import transformers
        from sherd.transformers import Trainer, TrainingArguments

        turns, self.turns, self.results = queue.Queue(), None, queue.Queue()
        self.turns = turns

        class Rows(torch.utils.data.IterableDataset):
            def __iter__(rows):
                while True:
                    yield {"rows": turns.get()}

        class StepTimes(transformers.TrainerCallback):
            def on_step_end(callback, *_, **__) -> None:
                self.results.put(time.perf_counter())

        class Losses(Trainer):
            def compute_loss(own, model, inputs, **_):
                self.loss = model(inputs["rows"][..., :-1], inputs["rows"][..., 1:])
                return self.loss

        a = self.arguments
        self.folder = tempfile.TemporaryDirectory()
        arguments = TrainingArguments(self.folder.name, max_steps=10 ** 6, per_device_train_batch_size=a.batch, learning_rate=LR, report_to=[],
                                      remove_unused_columns=False, weight_decay=DECAY, adam_beta1=BETAS[0], adam_beta2=BETAS[1], adam_epsilon=EPS, max_grad_norm=a.clip,
                                      lr_scheduler_type="constant", logging_strategy="no", save_strategy="no", disable_tqdm=True, use_cpu=True)
        trainer = Losses(model=self.model, args=arguments, train_dataset=Rows(), callbacks=[StepTimes()],
                         sherd={"zero_optimization": {"stage": self.stage}})
        self.give(0)  # the loader is a batch ahead

        def train() -> None:
            try:
                trainer.train()
            except BaseException:
                traceback.print_exc()
                os._exit(1)

        threading.Thread(target=train, daemon=True).start()

    def give(self, number: int) -> None:
        for row in self.rows[number % len(self.rows)]:
            self.turns.put(row)

    def step(self, number: int) -> float:
        self.backward_end = time.perf_counter()
        self.give(number + 1)
        self.results.get()
        return self.loss.item()


def staged(kind: type[DeepSpeed], stage: int) -> type[DeepSpeed]:
    return type(f"{kind.__name__}{stage}", (kind,), {"stage": stage})


KINDS = {"plain": Contestant, "foreach": Foreach, "ddp": Ddp, "fsdp2": Fsdp2,
         **{f"deepspeed-{stage}": staged(DeepSpeed, stage) for stage in (1, 2, 3)},
         **{f"{name}-{stage}": staged(kind, stage) for stage in (0, 1, 2, 3)
            for name, kind in {"sherd": Sherd, "accelerate": Accelerated, "deepspeed-as": AsDeepSpeed, "trainer": Trained}.items()}}


def serve(arguments, kinds: dict) -> None:
    """One rank, which does what stdin says: `step COUNT`, `peak`; answers are lines of JSON on what was stdout."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    import torch

    torch.set_num_threads(arguments.threads)
    platform_bytes = pss_bytes()
    imported = time.time() - arguments.started
    contestant = kinds[arguments.serve](arguments, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    print(json.dumps({"import_s": imported, "ready_s": time.time() - arguments.started, "platform_bytes": platform_bytes}), file=out)
    number = 0
    for line in sys.stdin:
        word, *count = line.split()
        losses, seconds, cpu_seconds, boundary_seconds = [], [], [], []
        with Peak() if word == "peak" else open(os.devnull) as peak:
            for _ in range(int(count[0]) if count else 1):
                start, cpu_start = time.perf_counter(), time.process_time()
                losses.append(contestant.step(number))
                seconds.append(time.perf_counter() - start)
                boundary_seconds.append(seconds[-1] - (contestant.backward_end - start))
                cpu_seconds.append(time.process_time() - cpu_start)
                number += 1
        print(json.dumps({"losses": losses, "seconds": seconds, "cpu_seconds": cpu_seconds,
                          "boundary_seconds": boundary_seconds, "peak_bytes": getattr(peak, "bytes", 0)}), file=out)


# ------------------------------------------------------------------ the table --


def port_free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Team:
    """All ranks of one contestant, as processes that wait between their turns."""

    def __init__(self, name: str, world_size: int, arguments, folder: str) -> None:
        self.name, self.log = name, os.path.join(folder, f"{name}.{world_size}.log")
        own = self.command(name, arguments)
        shared = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port_free()),
                  "SHERD_PORT": str(port_free()), "OMP_NUM_THREADS": str(arguments.threads),
                  "SHERD_THREADS": str(arguments.threads),
                  "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT / "python")]))}
        self.ranks = []
        for rank in range(world_size):
            environment = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_SIZE": str(world_size)}
            with open(self.log, "a") as log:
                self.ranks.append(subprocess.Popen(own, stdin=subprocess.PIPE, stderr=log, stdout=subprocess.PIPE, text=True,
                                                   env=environment))
        self.start = self.answers()
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []
        self.boundary_seconds: list[float] = []
        self.first_loss = 0.0

    def command(self, name: str, arguments) -> list[str]:
        own = [sys.executable, __file__, "--serve", name, "--started", repr(time.time())]
        for key in ("model", "layers", "width", "heads", "vocab", "batch", "length", "clip", "threads"):
            own += [f"--{key}", str(getattr(arguments, key))]
        return own

    def answers(self) -> list[dict]:
        lines = [rank.stdout.readline() for rank in self.ranks]
        if not all(lines):
            self.close()
            with open(self.log) as log:
                raise RuntimeError(f"{self.name} ended: {log.read()[-1500:]}")
        return [json.loads(line) for line in lines]

    def ask(self, what: str) -> list[dict]:
        for rank in self.ranks:
            rank.stdin.write(what + "\n")
            rank.stdin.flush()
        return self.answers()

    def turn(self, steps: int) -> None:
        """Takes the median step of a turn: of the slowest rank, and of all processors together."""
        answers = self.ask(f"step {steps}")
        self.seconds.append(statistics.median(map(max, zip(*(answer["seconds"] for answer in answers)))))
        self.boundary_seconds.append(statistics.median(map(max, zip(*(answer["boundary_seconds"] for answer in answers)))))
        self.cpu_seconds.append(statistics.median(map(sum, zip(*(answer["cpu_seconds"] for answer in answers)))))

    def warm(self) -> None:
        answers = self.ask("step 1")
        self.first_loss = statistics.fmean(answer["losses"][0] for answer in answers)
        self.first_s = max(answer["seconds"][0] for answer in answers)
        self.ask("step 1")

    def close(self) -> None:
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            try:
                rank.wait(20)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()


def teams_start(names: list[str], world_size: int, arguments, folder: str) -> list[Team]:
    teams = []
    for name in names:
        try:
            team = Team(name, world_size, arguments, folder)
            team.warm()
            teams.append(team)
        except RuntimeError as error:
            print(f"# left out: {error}", file=sys.stderr)
    return teams


def row(team: Team, base: Team) -> dict:
    ratios = [mine / theirs for mine, theirs in zip(team.seconds, base.seconds)]
    peaks = team.ask("peak")
    return {"name": team.name, "step_s": statistics.median(team.seconds), "seconds": team.seconds,
            "ratio": statistics.median(team.seconds) / statistics.median(base.seconds),
            "least_ratio": min(team.seconds) / min(base.seconds),
            "cpu_least_ratio": min(team.cpu_seconds) / min(base.cpu_seconds),
            "cpu_ratio": statistics.median(team.cpu_seconds) / statistics.median(base.cpu_seconds),
            "cpu_seconds": team.cpu_seconds, "ratio_least": min(ratios), "ratio_most": max(ratios), "first_loss": team.first_loss,
            "import_s": max(rank["import_s"] for rank in team.start), "ready_s": max(rank["ready_s"] for rank in team.start),
            "first_step_s": team.first_s, "peak_bytes": max(rank["peak_bytes"] for rank in peaks),
            "platform_bytes": max(rank["platform_bytes"] for rank in team.start)}


def table_print(rows: list[dict], world_size: int, arguments) -> None:
    print(f"\n{world_size} ranks of {arguments.threads} threads, {arguments.batch} x {arguments.length} tokens a rank, "
          f"clip {arguments.clip}, {arguments.rounds} rounds of {arguments.steps} steps")
    print(f"{'':12} {'step s':>8} {'ratio':>7} {'of rounds':>13} {'of CPU':>7} {'least':>13} "
          f"{'first loss':>11} {'import s':>9} {'ready s':>8} {'1st step':>8} "
          f"{'peak MiB':>9} {'platform':>9}")
    for r in rows:
        print(f"{r['name']:12} {r['step_s']:8.3f} {r['ratio']:7.3f} {r['ratio_least']:6.3f}-{r['ratio_most']:<6.3f} "
              f"{r['cpu_ratio']:7.3f} {r['least_ratio']:6.3f}-{r['cpu_least_ratio']:<6.3f} "
              f"{r['first_loss']:11.7f} {r['import_s']:9.2f} {r['ready_s']:8.2f} {r['first_step_s']:8.2f} "
              f"{r['peak_bytes'] / 2**20:9.0f} {r['platform_bytes'] / 2**20:9.0f}")


def losses_check(rows: list[dict]) -> None:
    for r in rows:
        apart = abs(r["first_loss"] - rows[0]["first_loss"]) / rows[0]["first_loss"]
        if apart > LOSS_APART:
            sys.exit(f"pytorch: the first loss of {r['name']} is {apart:.2g} from that of {rows[0]['name']}")


def table(names: list[str], world_size: int, arguments, folder: str) -> list[dict]:
    teams = teams_start(names, world_size, arguments, folder)
    for number in range(arguments.rounds):
        first = number % max(len(teams), 1)
        for team in teams[first:] + teams[:first]:
            team.turn(arguments.steps)
    rows = [row(team, teams[0]) for team in teams]
    for team in teams:
        team.close()
    table_print(rows, world_size, arguments)
    losses_check(rows)
    return rows


def installed_bytes(name: str) -> int | None:
    """What pip put there for one package, without what it depends on."""
    try:
        files = importlib.metadata.files(name) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return sum(path.stat().st_size for path in (pathlib.Path(file.locate()) for file in files) if path.is_file())


def arguments_read():
    parser = argparse.ArgumentParser(prog="./run bench torch", description=__doc__)
    parser.add_argument("--ranks", default="1,2", help="worlds, one table each (1,2)")
    parser.add_argument("--who", help=f"of {', '.join(KINDS)}; ratios are to the first")
    parser.add_argument("--model", choices=("gpt", "linears"), default="gpt")
    parser.add_argument("--batch", type=int, default=4, help="sequences of a rank (4)")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence (128)")
    parser.add_argument("--threads", type=int, default=1, help="threads of a rank (1)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="steps of a turn (2)")
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm; 0: none (1)")
    parser.add_argument("--json", help="file for the figures")
    for name, value in {"layers": 12, "width": 768, "heads": 12, "vocab": 50257}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"of the model ({value})")
    parser.add_argument("--serve", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, default=STARTED, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = arguments_read()
    try:
        import torch
    except ImportError as missing:
        sys.exit(f"pytorch: {missing}: SHERD_PYTHON names an interpreter that has torch")
    if arguments.serve:
        return serve(arguments, KINDS)
    sizes = {name: installed_bytes(name) for name in ("torch", "deepspeed", "sherd")}
    print(f"# machine  {platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}, torch {torch.__version__}")
    print(f"# command  {' '.join(sys.argv)}")
    print("# installed " + ", ".join(f"{name} {size / 2**20:.0f} MiB" for name, size in sizes.items() if size))
    tables = {}
    with tempfile.TemporaryDirectory() as folder:
        for world_size in map(int, arguments.ranks.split(",")):
            names = arguments.who.split(",") if arguments.who else TABLES.get(world_size, TABLES[2])
            tables[world_size] = table(names, world_size, arguments, folder)
    if arguments.json:
        with open(arguments.json, "w") as out:
            json.dump({"command": sys.argv, "torch": torch.__version__, "installed_bytes": sizes, "tables": tables}, out, indent=1)


if __name__ == "__main__":
    main()

"""Tests sherd.accelerate: scripts in which the import alone changes train as with Accelerate itself."""
from __future__ import annotations

import copy
import json
import os
import pickle
import sys
import tempfile
import unittest
import warnings
from typing import Any
from unittest import mock

import ranks

try:
    import torch
    import accelerate
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from accelerate.utils import GradScalerKwargs, find_executable_batch_size
    from accelerate.utils.deepspeed import DummyOptim, DummyScheduler
    from safetensors.torch import load_file
except ImportError as error:
    ranks.skip(f"torch or accelerate is not here: {error}")

import sherd
import sherd.accelerate
from torch import nn

IMPORT = "from accelerate import Accelerator\n"
MODEL = '''
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Model(nn.Module):
    """Blocks, a tied head, and statistics of BatchNorm."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(32, 16)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16, bias=False))
                                    for _ in range(2))  # a bias before BatchNorm would have a gradient of rounding alone
        self.batch = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.batch(x.transpose(1, 2)).transpose(1, 2))


def made():
    torch.manual_seed(7)
    model = Model()
    ids = torch.randint(0, 32, (84, 6), generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(ids), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(2))
    optimizer = torch.optim.AdamW([{"params": model.words.parameters(), "lr": 2e-3},
                                   {"params": [p for n, p in model.named_parameters() if not n.startswith("words")]}], lr=1e-3)
    return model, optimizer, loader


def loss_of(model, ids):
    return F.cross_entropy(model(ids).flatten(0, 1), ids.roll(1, 1).flatten())
'''
# A loop as the documentation of Accelerate has it. 84 samples in batches of 4 end with a short window at every epoch.
ACCUMULATE = IMPORT + MODEL + '''
def main(reported, epochs=6, steps=2, **options):
    accelerator = Accelerator(gradient_accumulation_steps=steps, **options)
    model, optimizer, loader = made()
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 60)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for epoch in range(epochs):
        model.train()
        for (ids,) in loader:
            with accelerator.accumulate(model):
                loss = loss_of(model, ids)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    reported("norm", accelerator.clip_grad_norm_(model.parameters(), 0.5).item())
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            reported("loss", accelerator.gather(loss.detach()).mean().item())
            reported("lr", scheduler.get_last_lr()[0])
        model.eval()
        with torch.no_grad():
            reported("evaluated", accelerator.gather_for_metrics(torch.stack([loss_of(model, ids) for (ids,) in loader])).mean().item())
    for name, value in accelerator.get_state_dict(model).items():
        reported(name, value.double().norm().item())
    return accelerator, model, optimizer, loader
'''
# Windows of 3 backwards and one step without a division, of which one is dropped in part; rates by hand; things are prepared apart.
BY_HAND = IMPORT + MODEL + '''
def main(reported, **options):
    accelerator = Accelerator(**options)
    model, optimizer, loader = made()
    loader = accelerator.prepare(loader)
    optimizer = accelerator.prepare(optimizer)
    model = accelerator.prepare_model(model)
    number = 0
    for epoch in range(5 * accelerator.num_processes):
        for (ids,) in loader:
            number += 1
            optimizer.param_groups[0]["lr"] = 2e-3 / number
            if number % 3:
                with accelerator.no_sync(model):
                    loss = loss_of(model, ids)
                    accelerator.backward(loss)
            else:
                loss = loss_of(model, ids)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                reported("skipped", float(accelerator.optimizer_step_was_skipped))
            reported("loss", accelerator.reduce(loss.detach(), "mean").item())
            if number == 4:
                optimizer.zero_grad()  # the window has a backward less
    for name, value in accelerator.get_state_dict(model).items():
        reported(name, value.double().norm().item())
'''
# Two models, each with its optimizer; the loss of the one goes through the other.
ADVERSARIES = IMPORT + MODEL + '''
def main(reported, **options):
    accelerator = Accelerator(**options)
    torch.manual_seed(3)
    maker, judge = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    of_maker, of_judge = (torch.optim.Adam(one.parameters(), lr=1e-2) for one in (maker, judge))
    maker, of_judge, judge, of_maker = accelerator.prepare(maker, of_judge, judge, of_maker)
    for step in range(15):
        torch.manual_seed(10 * step + accelerator.process_index)
        true, noise = torch.randn(8, 4), torch.randn(8, 4)
        of_judge.zero_grad()
        loss = judge(maker(noise).detach()).mean()
        accelerator.backward(loss)
        loss = F.softplus(-judge(true)).mean()
        accelerator.backward(loss)
        of_judge.step()
        of_maker.zero_grad()
        of_judge.zero_grad()
        reported("judged", accelerator.reduce(loss.detach(), "mean").item())
        loss = F.softplus(-judge(maker(noise))).mean()
        accelerator.backward(loss)
        of_maker.step()
        reported("made", accelerator.reduce(loss.detach(), "mean").item())
'''
# Two optimizers of one model, with a schedule each.
TWO_OPTIMIZERS = IMPORT + MODEL + '''
def main(reported, **options):
    accelerator = Accelerator(**options)
    model, _, loader = made()
    blocks = {id(p) for p in model.blocks.parameters()}
    optimizers = [torch.optim.AdamW([p for p in model.parameters() if (id(p) in blocks) == inside], lr=rate)
                  for inside, rate in ((True, 2e-3), (False, 1e-3))]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(one, 0.9) for one in optimizers]
    model, loader, *prepared = accelerator.prepare(model, loader, *optimizers, *schedulers)
    for (ids,) in loader:
        loss = loss_of(model, ids)
        accelerator.backward(loss)
        for one in prepared:
            one.step()
        for one in prepared[:2]:
            one.zero_grad()
        reported("loss", loss.item())
'''
# One optimizer of two models, whose groups have parameters of both, with a schedule; both are clipped together.
TWO_MODELS = IMPORT + MODEL + '''
def main(reported, **options):
    accelerator = Accelerator(gradient_accumulation_steps=2, **options)
    torch.manual_seed(3)
    text, image = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    both = [*text.parameters(), *image.parameters()]
    optimizer = torch.optim.AdamW([{"params": [p for p in both if p.ndim == 2]}, {"params": [p for p in both if p.ndim == 1], "lr": 1e-3}], lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    text, optimizer, image, scheduler, _ = accelerator.prepare(text, optimizer, image, scheduler, DataLoader(torch.zeros(8, 4), batch_size=8))
    for step in range(12):
        torch.manual_seed(10 * step + accelerator.process_index)
        with accelerator.accumulate(text, image):
            x = torch.randn(8, 4)
            if step in (8, 9):
                with torch.no_grad():
                    x = text(x)
            loss = image(x if step in (8, 9) else text(x)).square().mean()  # the text is left out of a window
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                reported("norm", accelerator.clip_grad_norm_([*text.parameters(), *image.parameters()], 0.1).item())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        reported("loss", accelerator.reduce(loss.detach(), "mean").item())
'''
# Gradients that the script drops by the module, or by the optimizer that it has made, in the middle of a window too.
DROPPED = IMPORT + MODEL + '''
def main(reported, **options):
    accelerator = Accelerator(**options)
    model, plain, loader = made()
    model, optimizer, loader = accelerator.prepare(model, plain, loader)
    for number, (ids,) in enumerate(loader):
        loss = loss_of(model, ids)
        accelerator.backward(loss)
        if number % 4 == 3:
            model.zero_grad()
        elif number % 4 == 1:
            plain.zero_grad()
        elif number % 8 == 2:
            for param in model.parameters():
                param.grad = None
        optimizer.step()
        if number % 2:
            model.zero_grad()
        reported("loss", loss.item())
'''
# What MiniMind's pretraining has: a buffer of complex numbers, a rate by hand for each micro-batch, accumulation by hand, clipping, a
# parameter that gets no gradient. Each global batch is of the same samples whatever the number of ranks. It stops and resumes.
MINIMIND = IMPORT + MODEL + '''
import math


class Mind(Model):
    def __init__(self):
        super().__init__()
        self.register_buffer("pos_cis", torch.polar(torch.ones(6, 8), torch.outer(torch.arange(6.), 0.1 ** torch.arange(8.))), persistent=False)
        self.unused = nn.Parameter(torch.ones(3))
        self.batch = nn.LayerNorm(6)

    def forward(self, ids):
        x = torch.view_as_complex(self.words(ids).unflatten(-1, (8, 2))) * self.pos_cis
        x = torch.view_as_real(x).flatten(-2)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.batch(x.transpose(1, 2)).transpose(1, 2))


def get_lr(now, all, rate):
    return rate / 10 + 0.5 * rate * (1 + math.cos(math.pi * now / all))


def main(reported, folder=None, first=0, last=12, **options):
    accelerator = Accelerator(**options)
    torch.manual_seed(7)
    model = Mind()
    ids = torch.randint(0, 32, (8 * 2 * 6, 6), generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(ids), batch_size=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accumulation = 8 // accelerator.num_processes
    if first:
        accelerator.load_state(folder)
    for epoch in range(first // 6, 2):
        skipped = first % 6 if epoch == first // 6 else 0
        batches = accelerator.skip_first_batches(loader, accumulation * skipped) if skipped else loader
        total = 0
        for step, (ids,) in enumerate(batches, accumulation * skipped):
            update = 6 * epoch + step // accumulation
            for group in optimizer.param_groups:
                group["lr"] = get_lr(update, 12, 2e-3)
            loss = loss_of(model, ids) / accumulation
            accelerator.backward(loss)
            total = total + loss.detach()
            if (step + 1) % accumulation == 0:
                reported("norm", accelerator.clip_grad_norm_(model.parameters(), 0.5).item())
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                reported("loss", accelerator.reduce(total, "mean").item())
                total = 0
                if update + 1 == last < 12:
                    accelerator.save_state(folder)
                    return accelerator, model, optimizer
    if accelerator.is_main_process:
        reported("saved", sum(v.double().norm().item() for n, v in accelerator.unwrap_model(model).state_dict().items() if n != "unused"))
    return accelerator, model, optimizer
'''


def fresh() -> None:
    """Forgets Accelerate's state of the process, as a new one has it. The process group stays."""
    for kind in (AcceleratorState, GradientState, PartialState):
        kind._reset_state()


def run(text: str, door: str, **options: Any) -> tuple[dict[str, list[float]], Any]:
    """Runs a script with the import from this door, and returns what it reported by name, and what main() returned."""
    fresh()
    found: dict[str, list[float]] = {}
    names: dict[str, Any] = {}
    exec(compile(text.replace(IMPORT, f"from {door} import Accelerator\n"), f"<{door}>", "exec"), names)
    return found, names["main"](lambda name, value: found.setdefault(name.removeprefix("module."), []).append(value), **options)


def compare(text: str, many: int, stages: tuple[int, ...] = (2, 3), **options: Any) -> None:
    """Compares a script under Accelerate with the same under sherd.accelerate; it makes so many losses at least."""
    plain, _ = run(text, "accelerate", **options)
    assert max(map(len, plain.values())) >= many, {name: len(values) for name, values in plain.items()}
    for stage in stages:
        ours, _ = run(text, "sherd.accelerate", sherd_config=config(stage), **options)
        assert set(ours) == set(plain), (list(ours), list(plain))
        for name, values in plain.items():
            torch.testing.assert_close(torch.tensor(ours[name]), torch.tensor(values), rtol=1e-5, atol=1e-5,
                                       msg=lambda said: f"stage {stage}, {name}: {said}")


def config(stage: int, **more: Any) -> dict[str, Any]:
    return {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": "auto"},
            "bf16": {"enabled": "auto"}, "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}}, **more}


# The keys of MiniMind's file; its fp16 is refused with the bf16 of its launcher, and its betas and decay are the script's here.
MIND = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 2, "allgather_partitions": True, "allgather_bucket_size": 1e8, "overlap_comm": True,
                              "reduce_scatter": True, "reduce_bucket_size": 1e8, "contiguous_gradients": True},
        "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1},
        "bf16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
        "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": "auto", "warmup_num_steps": "auto",
                                                          "total_num_steps": "auto"}}}


def as_plain() -> None:
    """The scripts above, on however many ranks there are, over 30 steps at least."""
    compare(ACCUMULATE, 30, epochs=3 * PartialState().num_processes)
    compare(ACCUMULATE, 10, stages=(0,), epochs=1)
    compare(BY_HAND, 50)
    compare(TWO_MODELS, 12, stages=(3,))
    plain, _ = run(ADVERSARIES, "accelerate")
    for options in ({}, {"sherd_config": {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}}):
        ours, _ = run(ADVERSARIES, "sherd.accelerate", sherd_options={"backward_uses": "any"}, **options)
        for name, values in plain.items():
            torch.testing.assert_close(torch.tensor(ours[name]), torch.tensor(values), rtol=1e-5, atol=1e-5)


def saved(folder: str) -> None:
    """Saves after two epochs, and trains one more."""
    _, (accelerator, model, optimizer, _) = run(ACCUMULATE, "sherd.accelerate", sherd_config=config(3), epochs=2)
    accelerator.register_for_checkpointing(Counter(5))
    for _ in range(2):  # the second one takes the place of the first one
        accelerator.save_state(os.path.join(folder, "state"))
    assert "model.safetensors" not in os.listdir(os.path.join(folder, "state"))  # the engine's checkpoint has the weights
    accelerator.save_model(model, os.path.join(folder, "model"))
    values = accelerator.get_state_dict(model)
    written = load_file(os.path.join(folder, "model", "model.safetensors"))
    assert set(values) - set(written) <= {"head.weight", "words.weight"}, sorted(written)
    assert all(torch.equal(value, values[name]) for name, value in written.items())
    losses, step = epoch(accelerator, model, optimizer), accelerator.step
    if accelerator.is_main_process:
        with open(os.path.join(folder, "losses.json"), "w", encoding="utf-8") as file:
            json.dump([losses, step], file)
    accelerator.wait_for_everyone()


def resumed(folder: str) -> None:
    """Goes on from there, before the first batch and after others, on however many ranks there are."""
    with open(os.path.join(folder, "losses.json"), encoding="utf-8") as file:
        wanted, step = json.load(file)
    for epochs in (0, 1):
        text = ACCUMULATE[:ACCUMULATE.index("    for name, value in acc")] + ACCUMULATE[ACCUMULATE.index("    return acc"):]
        _, (accelerator, model, optimizer, _) = run(text, "sherd.accelerate", sherd_config=config(2), epochs=epochs)
        counter = Counter(0)
        accelerator.register_for_checkpointing(counter)
        accelerator.load_state(os.path.join(folder, "state"))
        assert (counter.value, accelerator.step) == (5, step), (counter.value, accelerator.step, step)
        torch.testing.assert_close(torch.tensor(epoch(accelerator, model, optimizer)), torch.tensor(wanted), rtol=1e-5, atol=1e-5)


def mind(folder: str, first: str, last: str) -> None:
    """MiniMind's script from one update to another, compared with what plain() has written, on however many ranks there are."""
    with open(os.path.join(folder, "plain.json"), encoding="utf-8") as file:
        plain = json.load(file)
    ours, _ = run(MINIMIND, "sherd.accelerate", sherd_config=MIND, folder=os.path.join(folder, "state"), first=int(first), last=int(last))
    for name in ("loss", "norm"):
        torch.testing.assert_close(torch.tensor(ours[name]), torch.tensor(plain[name][int(first):int(last)]), rtol=1e-5, atol=1e-5)
    if "saved" in ours:
        torch.testing.assert_close(torch.tensor(ours["saved"]), torch.tensor(plain["saved"]), rtol=1e-5, atol=1e-5)


def together() -> None:
    """state_dict() at stage 3 by all ranks, and by one alone; a step inside of no_sync()."""
    _, (accelerator, model, optimizer, loader) = run(ACCUMULATE, "sherd.accelerate", sherd_config=config(3), epochs=1)
    whole = accelerator.unwrap_model(model).state_dict()
    values = accelerator.get_state_dict(model)
    assert list(whole) == list(values) and all(torch.equal(whole[name], values[name]) for name in values)
    with model.no_sync():
        accelerator.backward(model(torch.ones(2, 6, dtype=torch.int64)).mean())
        refused(sherd.NotSupportedError, "LocalSGD", optimizer.step)
    optimizer.zero_grad()
    sherd.accelerate.accelerator.PATIENCE, sherd.accelerate.accelerator.LONGEST = 0.05, 1
    if accelerator.is_main_process:
        with warnings.catch_warnings(record=True) as reported:
            warnings.simplefilter("always")
            refused(sherd.StateError, "save_state.. needs.*is_main_process.*within 1 seconds", accelerator.save_state)
        assert any("has waited 0.05 seconds" in str(one.message) for one in reported), reported
        refused(sherd.StateError, "load_state.. needs", accelerator.load_state)
        refused(sherd.StateError, "state_dict.. of the Model needs what all ranks have.*within 0.05", model.state_dict)
    torch.distributed.barrier()


def refused(kind: type[Exception], said: str, call: Any) -> None:
    with unittest.TestCase().assertRaisesRegex(kind, said):
        call()


class Counter:
    """An object of a script's that has a state."""

    def __init__(self, value: int) -> None:
        self.value = value

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


def epoch(accelerator: Any, model: nn.Module, optimizer: Any) -> list[float]:
    """Trains on the first samples of all, whichever rank has them, and returns the losses."""
    losses, ids = [], torch.arange(8 * 6).view(8, 6) % 32
    model.eval()  # BatchNorm knows a rank's own batch
    for _ in range(5):
        own = ids.chunk(accelerator.num_processes)[accelerator.process_index]
        loss = nn.functional.cross_entropy(model(own).flatten(0, 1), own.roll(1, 1).flatten())
        accelerator.backward(loss)
        optimizer.step()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
    return losses


def start(world_size: int, *arguments: str) -> None:
    """Runs a function of this file on so many ranks, with torch.distributed over gloo; the ranks meet in a file."""
    with tempfile.TemporaryDirectory() as folder:
        own = [{"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world_size),
                "SHERD_RANK": str(rank), "SHERD_WORLD_SIZE": str(world_size), "SHERD_RENDEZVOUS": f"unix://{folder}/meet",
                "SHERD_THREADS": "1", "ACCELERATE_USE_CPU": "true", "MEETING": f"file://{folder}/torch"} for rank in range(world_size)]
        ended = ranks.start(sys.argv[0], arguments, own)
    failed = [f"rank {number} ended with {status}:\n{text}" for number, (status, text) in enumerate(ended) if status != 0]
    assert not failed, "\n".join(failed)


class Scripts(unittest.TestCase):
    def test_files_of_a_configuration_are_read_as_the_engine_reads_them(self) -> None:
        """A file may have comments and trailing commas; what is wrong in it is reported with its name and the place."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "own.json")
            for text, said in (('{ // stage\n "a//b": "c, }", /* x */\n "l": [1, 2, // e\n ],\n}', None), ('{"a": 1, "a": 2}', "the key a twice"),
                               ('{\n "a" 1}', "own.json:2:6: it is not JSON"), ("[1]", "an object of JSON")):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                if said is None:
                    self.assertEqual(sherd.config.read_config(path), {"a//b": "c, }", "l": [1, 2]})
                else:
                    with self.assertRaisesRegex(sherd.InvalidError, said):
                        sherd.accelerate.Accelerator(cpu=True, sherd_config=path)
            with self.assertRaisesRegex(FileNotFoundError, "none.json is not there: give the path"):
                sherd.accelerate.Accelerator(cpu=True, sherd_config=os.path.join(folder, "none.json"))

    def test_one_rank(self) -> None:
        as_plain()

    def test_two_ranks(self) -> None:
        start(2, "as_plain")

    def test_state_on_another_number_of_ranks(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            start(2, "saved", folder)
            start(1, "resumed", folder)
        with tempfile.TemporaryDirectory() as folder:
            start(1, "saved", folder)
            start(2, "resumed", folder)

    def test_two_optimizers_of_a_model(self) -> None:
        compare(TWO_OPTIMIZERS, 20, stages=(3,))

    def test_one_optimizer_of_two_models(self) -> None:
        compare(TWO_MODELS, 12, stages=(0, 3))

    def test_gradients_dropped_by_the_script(self) -> None:
        compare(DROPPED, 20)
        by_module = DROPPED.replace("number % 8 == 2", "False")
        compare(by_module, 20, stages=(0,))
        with self.assertRaisesRegex(sherd.StateError, "was cleared after its backward"):
            compare(DROPPED, 20, stages=(0,))

    def test_what_all_ranks_call(self) -> None:
        start(2, "together")

    def test_pretraining_of_minimind(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            plain, _ = run(MINIMIND, "accelerate")
            with open(os.path.join(folder, "plain.json"), "w", encoding="utf-8") as file:
                json.dump(plain, file)
            mind(folder, "0", "12")
            start(4, "mind", folder, "0", "9")
            start(2, "mind", folder, "9", "12")


class Calls(unittest.TestCase):
    def made(self, config: Any = None, batch: int | None = 2, **options: Any) -> tuple[sherd.accelerate.Accelerator, nn.Module, Any]:
        """An accelerator with a model, an optimizer, and a loader of this batch size, all of them prepared."""
        fresh()
        accelerator = sherd.accelerate.Accelerator(sherd_config=config, **options)
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
        if batch is not None:
            accelerator.prepare(torch.utils.data.DataLoader(torch.zeros(8, 4), batch_size=batch))
        return accelerator, model, optimizer

    def test_refused_by_name(self) -> None:
        fresh()
        for options, said in (({"fsdp_plugin": 1}, "fsdp_plugin.*FSDP"), ({"megatron_lm_plugin": 1}, "megatron_lm_plugin"),
                              ({"parallelism_config": 1}, "parallelism"), ({"dynamo_backend": "inductor"}, "block.compile"),
                              ({"deepspeed_plugins": {"a": 1, "b": 2}}, "several plugins")):
            with self.subTest(options), self.assertRaisesRegex(sherd.NotSupportedError, said):
                fresh()
                sherd.accelerate.Accelerator(**options)
        with mock.patch.dict(os.environ, {"ACCELERATE_USE_FSDP": "true"}), self.assertRaisesRegex(sherd.NotSupportedError, "ACCELERATE_USE_FSDP"):
            sherd.accelerate.Accelerator()
        with self.assertRaisesRegex(sherd.InvalidError, "mixed_precision is .no. and .bf16"):
            fresh()
            sherd.accelerate.Accelerator(mixed_precision="no", sherd_config={"bf16": {"enabled": True}})
        with self.assertRaisesRegex(sherd.NotSupportedError, "type xla"):
            sherd.accelerate.configuration.check_device("xla")
        accelerator, model, optimizer = self.made()
        loss = model(torch.ones(2, 4)).mean()
        for call, said in ((lambda: accelerator.clip_grad_value_(model.parameters(), 1), "clip_grad_value_"),
                           (lambda: accelerator.clip_grad_norm_(model[0].parameters(), 1), "all trainable parameters"),
                           (lambda: accelerator.clip_grad_norm_(model.parameters(), 1, norm_type=1), "norm_type=1"),
                           (lambda: accelerator.backward(loss, create_graph=True), "create_graph"),
                           (lambda: optimizer.step(lambda: 1), "closure")):
            with self.assertRaisesRegex(sherd.NotSupportedError, said):
                call()
        loss.backward()
        model[0].zero_grad()
        with self.assertRaisesRegex(sherd.StateError, "gradient of 0.weight was cleared"):
            optimizer.step()
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).mean() + model(torch.zeros(2, 4)).mean()
        with self.assertRaisesRegex(sherd.StateError, 'sherd_options={"backward_uses": "any"}'):
            accelerator.backward(loss)
        accelerator.sync_gradients = False
        with self.assertRaisesRegex(sherd.StateError, "sync_gradients"):
            accelerator.clip_grad_norm_(model.parameters(), 1)
        accelerator.sync_gradients = True
        for optimizers, said in ((2, "is in the parameter groups"), (0, "no prepared model")):
            accelerator, model, _ = self.made()
            one = accelerator.prepare(torch.optim.AdamW((model if optimizers else nn.Linear(2, 2)).parameters(), lr=1))
            with self.assertRaisesRegex((sherd.SherdError, ValueError), said):
                model(torch.ones(2, 4))
                one.step()
        fresh()
        accelerator = sherd.accelerate.Accelerator()
        model = accelerator.prepare(nn.Linear(2, 2))
        self.assertFalse(model(torch.ones(2, 2)).requires_grad)  # for inference
        with self.assertRaisesRegex(sherd.StateError, "no optimizer of the Linear is prepared"):
            accelerator.backward(model(torch.ones(2, 2)).sum())
        with self.assertRaisesRegex(sherd.StateError, "gradient goes through a frozen model.*out of accelerator.prepare"):
            model(torch.ones(2, 2, requires_grad=True)).sum().backward()
        with self.assertRaisesRegex(sherd.StateError, "before its SGD was prepared"):
            accelerator.prepare(torch.optim.SGD(model.parameters(), lr=1))

    def test_where_the_configuration_comes_from(self) -> None:
        path = tempfile.NamedTemporaryFile("w", suffix=".json")
        json.dump(config(1), path)
        path.flush()
        plugin = accelerate.utils.DeepSpeedPlugin(zero_stage=3)
        variables = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}
        for options, own, stage in (({}, {}, 2), ({"config": path.name}, {}, 1), ({"config": config(0)}, variables, 0),
                                    ({"deepspeed_plugin": plugin}, {}, 3), ({}, variables, 3),
                                    ({}, {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_CONFIG_FILE": path.name}, 1)):
            with self.subTest(stage=stage), mock.patch.dict(os.environ, own):
                accelerator, model, _ = self.made(**options)
                self.assertEqual(accelerator.engine(model).zero_optimization_stage(), stage)
                self.assertEqual(accelerator.distributed_type, accelerate.DistributedType.NO)
        accelerator, model, _ = self.made(config(2, train_micro_batch_size_per_gpu=3, gradient_accumulation_steps=4), gradient_accumulation_steps=4)
        engine = accelerator.engine(model)
        self.assertEqual((engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()), (3, 4))
        for changes, options, said in (({}, {}, "train_micro_batch_size_per_gpu.*no prepared loader"),
                                       ({"gradient_accumulation_steps": 2, "train_micro_batch_size_per_gpu": 1}, {}, "2 in the conf.*1 in Accel")):
            accelerator, model, _ = self.made({**config(2), **changes}, None, **options)
            with self.assertRaisesRegex(sherd.InvalidError, said):
                accelerator.engine(model)

    def test_what_comes_at_the_wrong_time_is_named(self) -> None:
        accelerator, model, optimizer = self.made()
        model[0](torch.ones(2, 4)).mean().backward()  # a part of it, before there is an engine
        with self.assertRaisesRegex(sherd.StateError, "own forward was not called yet"):
            optimizer.step()
        optimizer.given.zero_grad()
        accelerator.backward(model(torch.ones(2, 4)).mean())
        accelerator.clip_grad_norm_(model.parameters(), 1)
        with self.assertRaisesRegex(sherd.StateError, "optimizer.step.. first"):
            model(torch.ones(2, 4))
        optimizer.step()
        self.assertEqual(accelerator.engine(model).global_steps, 1)

    def test_a_state_that_is_saved_between_two_backwards(self) -> None:
        """It has what the last step has left, and the window goes on."""
        ends = []
        for is_saved in (True, False):
            accelerator, model, optimizer = self.made()
            with tempfile.TemporaryDirectory() as folder:
                for number in range(4):
                    accelerator.backward(model(torch.full((2, 4), number + 1.0)).square().mean() / 2)
                    if number == 2 and is_saved:
                        with self.assertWarnsRegex(UserWarning, "inside of a window"):
                            accelerator.save_state(folder)
                    if number % 2:
                        optimizer.step()
                        optimizer.zero_grad()
                    if number == 1:
                        first = accelerator.get_state_dict(model)
                ends.append(accelerator.get_state_dict(model))
                if is_saved:
                    accelerator.load_state(folder)
                    self.assertEqual(accelerator.engine(model).global_steps, 1)
                    for name, value in accelerator.get_state_dict(model).items():
                        self.assertTrue(torch.equal(value, first[name]))
        for name, value in ends[0].items():
            self.assertTrue(torch.equal(value, ends[1][name]))

    def test_modules_of_losses_and_forwards_of_a_script(self) -> None:
        accelerator, _, _ = self.made(mixed_precision="bf16")
        criterion = accelerator.prepare(nn.MSELoss())
        model = nn.Linear(4, 4)
        model.forward = lambda x, of=model.forward: 2 * of(x)  # type: ignore[method-assign]
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        out = model(torch.ones(2, 4))
        torch.testing.assert_close(out, 2 * (torch.ones(2, 4) @ model.weight.float().T + model.bias.float()), rtol=2e-2, atol=2e-2)
        accelerator.backward(criterion(out, torch.zeros(2, 4)))
        optimizer.step()

    def test_what_the_file_of_minimind_says(self) -> None:
        """It starts, or is refused by an error that has both values."""
        begun = {**MIND, "fp16": {**MIND["fp16"], "enabled": True}}
        with self.assertRaisesRegex(sherd.InvalidError, "mixed_precision is .bf16. and .fp16.: ..enabled.: true"):
            self.made(begun, mixed_precision="bf16")
        accelerator, model, optimizer = self.made(begun)  # the file alone decides
        self.assertEqual(accelerator.mixed_precision, "fp16")
        for betas, said in (((0.9, 0.999), "betas is .0.9, 0.95. in the conf.*.0.9, 0.999. in the torch"),
                            ((0.9, 0.95), "scheduler.*warmup_max_lr.*no rate was set by hand")):
            fresh()
            accelerator = sherd.accelerate.Accelerator(sherd_config=MIND)
            model = nn.Linear(4, 4)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=betas, weight_decay=0.1)
            model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2))
            with self.assertRaisesRegex(sherd.InvalidError, said):
                for x in loader:
                    accelerator.backward(model(x).mean())
                    optimizer.step()

    def test_who_says_the_precision(self) -> None:
        """The launcher's "no" stands where nobody has said anything, and "auto" is the launcher's precision."""
        for launcher, enabled, said in (("no", True, "bf16"), ("bf16", "auto", "bf16"), ("fp16", "auto", "fp16"), ("no", "auto", "no")):
            with mock.patch.dict(os.environ, {"ACCELERATE_MIXED_PRECISION": launcher}):
                accelerator, model, _ = self.made({"bf16": {"enabled": enabled}, "fp16": {"enabled": "auto"}})
            self.assertEqual(accelerator.mixed_precision, said)
            model(torch.ones(2, 4))
            self.assertEqual(next(model.parameters()).dtype, {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[said])

    def test_a_plugin_whose_file_has_no_accumulation(self) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 2}, file)
            file.flush()
            plugin = accelerate.utils.DeepSpeedPlugin(hf_ds_config=file.name)
        accelerator, model, _ = self.made(deepspeed_plugin=plugin, gradient_accumulation_steps=4)
        self.assertEqual(accelerator.engine(model).gradient_accumulation_steps(), 4)

    def test_dummy_optimizer_and_scheduler(self) -> None:
        """What they say fills "auto", and the engine steps the schedule."""
        given = config(2, optimizer={"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
                       scheduler={"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                                                                      "warmup_num_steps": "auto", "total_num_steps": "auto"}})
        trained = []
        for is_dummy in (True, False):
            fresh()
            accelerator = sherd.accelerate.Accelerator(sherd_config=given if is_dummy else config(2))
            torch.manual_seed(1)
            model = nn.Linear(4, 4)
            values = {"lr": 0.01, "weight_decay": 0.1, "betas": (0.9, 0.95)}
            optimizer = (DummyOptim if is_dummy else torch.optim.AdamW)(model.parameters(), **values)
            schedule = DummyScheduler(optimizer, total_num_steps=8, warmup_num_steps=3) if is_dummy else \
                torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
            loader = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
            model, optimizer, schedule, loader = accelerator.prepare(model, optimizer, schedule, loader)
            self.assertEqual(optimizer.param_groups[0]["lr"], 0.01)
            rates = []
            for x in loader:
                accelerator.backward(model(x).square().mean())
                if not is_dummy:
                    optimizer.param_groups[0]["lr"] = trained[0][0][len(rates)]
                rates.append(optimizer.param_groups[0]["lr"])
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            trained.append((rates, accelerator.get_state_dict(model)["weight"]))
            with tempfile.TemporaryDirectory() as folder:
                accelerator.save_state(folder)
                accelerator.load_state(folder)
        self.assertLess(trained[0][0][0], trained[0][0][2])  # it warms up
        self.assertAlmostEqual(max(trained[0][0]), 0.01, places=6)
        self.assertTrue(torch.equal(trained[0][1], trained[1][1]))
        for changes, options, said in (({"optimizer": None}, {}, "DummyOptim"), ({"scheduler": None}, {}, "DummyScheduler")):
            fresh()
            accelerator = sherd.accelerate.Accelerator(sherd_config={key: value for key, value in {**given, **changes}.items() if value})
            model = nn.Linear(4, 4)
            optimizer = DummyOptim(model.parameters())
            model, _, _, _ = accelerator.prepare(model, optimizer, DummyScheduler(optimizer, 8), loader)
            with self.assertRaisesRegex(sherd.InvalidError, said):
                accelerator.engine(model)

    def test_fp16_with_the_engines_scale(self) -> None:
        """A step that overflows is skipped and reports it; the scale is the script's to look at."""
        handler = GradScalerKwargs(init_scale=2.0 ** 30, growth_interval=3)
        accelerator, model, optimizer = self.made(config(2), mixed_precision="fp16", kwargs_handlers=[handler])
        self.assertEqual(accelerator.scaler.get_scale(), 2.0 ** 30)
        skipped, losses = [], []
        for _ in range(30):
            loss = model(torch.ones(2, 4)).square().mean()
            self.assertEqual(loss.dtype, torch.float32)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            skipped.append(accelerator.optimizer_step_was_skipped)
            losses.append(loss.item())
        self.assertTrue(skipped[0] and not skipped[-2] or not skipped[-1])
        self.assertLess(accelerator.scaler.get_scale(), 2.0 ** 30)
        self.assertLess(losses[-1], losses[0] / 10)
        with self.assertRaisesRegex(sherd.NotSupportedError, "accelerator.backward"):
            accelerator.scaler.scale(loss)
        with tempfile.TemporaryDirectory() as folder:
            accelerator.save_state(folder)
            scale = accelerator.scaler.get_scale()
            accelerator.load_state(folder)
            self.assertEqual(accelerator.scaler.get_scale(), scale)
        for options, own, said in (({"growth_factor": 3.0}, {}, "growth_factor=3"), ({"init_scale": 3.0}, {}, "power of 2"),
                                   ({"growth_interval": 5}, {"loss_scale_window": 7}, "loss_scale_window.: 7.*gives 5")):
            with self.assertRaisesRegex(sherd.SherdError, said):
                self.made(config(2, fp16={"enabled": True, **own}), kwargs_handlers=[GradScalerKwargs(**options)])

    def test_fp16_of_two_models(self) -> None:
        """A loss is scaled by the engine that it goes through."""
        accelerator, first, optimizer = self.made(config(2, fp16={"enabled": True, "initial_scale_power": 4}))
        second = nn.Linear(1, 1)
        second, other = accelerator.prepare(second, torch.optim.AdamW(second.parameters(), lr=0.1))
        accelerator.backward(second(first(torch.ones(2, 4)).detach()).square().mean())
        other.step()
        self.assertEqual((accelerator.engine(first).has_window, accelerator.engine(second).global_steps), (False, 1))
        with self.assertRaisesRegex(sherd.StateError, "loss through two engines"):
            accelerator.backward(second(first(torch.ones(2, 4))).square().mean())

    def test_an_overflow_skips_all_models_of_an_optimizer(self) -> None:
        accelerator, _, _ = self.made()
        models = [nn.Linear(2, 1), nn.Linear(2, 1)]
        *models, optimizer = accelerator.prepare(*models, torch.optim.SGD([*models[0].parameters(), *models[1].parameters()], lr=1))
        accelerator.backward(models[0](torch.ones(1, 2)).sum())
        accelerator.backward(models[1](torch.ones(1, 2)).sum() * float("inf"))
        before = models[0].weight.clone()
        with self.assertWarnsRegex(UserWarning, "Inf or NaN"):
            optimizer.step()
        self.assertTrue(accelerator.optimizer_step_was_skipped)
        self.assertTrue(torch.equal(models[0].weight, before))
        accelerator.backward(models[0](torch.ones(1, 2)).sum())
        optimizer.step()
        self.assertFalse(torch.equal(models[0].weight, before))

    def test_out_of_memory_makes_the_batch_smaller(self) -> None:
        sizes = []

        @find_executable_batch_size(starting_batch_size=3)
        def train(batch_size: int) -> int:
            sizes.append(batch_size)
            accelerator, model, _ = self.made()
            world = sherd.World.simulate(0, 1, host_bytes=1000 if batch_size > 2 else 1 << 30)
            with mock.patch.object(sherd.accelerate.accelerator, "world_of", lambda _: world):
                accelerator.engine(model).seal(((torch.ones(batch_size, 4),), {}))
            return batch_size

        self.assertEqual((train(), sizes), (2, [3, 2]))

    def test_hooks_of_a_script_get_weights(self) -> None:
        """As diffusers' scripts save: by the main process alone, at stage 3 too, and all models again."""
        accelerator, model, optimizer = self.made(config(3))
        accelerator.backward(model(torch.ones(2, 4)).mean())
        optimizer.step()
        got = []

        def save(models: list[nn.Module], weights: list[Any], folder: str) -> None:
            got.extend([models[0].state_dict(), weights.pop()])
            torch.save(got[0], os.path.join(folder, "own.pt"))

        def load(models: list[nn.Module], folder: str) -> None:
            models.pop().load_state_dict(torch.load(os.path.join(folder, "own.pt")))

        accelerator.register_save_state_pre_hook(save)
        accelerator.register_load_state_pre_hook(load)
        values = accelerator.get_state_dict(model)
        with tempfile.TemporaryDirectory() as folder:
            accelerator.save_state(folder)
            accelerator.backward(model(torch.ones(2, 4)).mean())
            optimizer.step()
            accelerator.load_state(folder)
        for one in (*got, accelerator.get_state_dict(model)):
            self.assertTrue(all(torch.equal(one[name], value) for name, value in values.items()))

    def test_objects_of_a_script_see_weights_while_they_are_saved(self) -> None:
        accelerator, model, _ = self.made(config(3))
        model(torch.ones(2, 4))
        counter = Counter(0)
        counter.state_dict = lambda: {"value": len(model.state_dict())}  # type: ignore[method-assign]
        accelerator.register_for_checkpointing(counter)
        with tempfile.TemporaryDirectory() as folder:
            accelerator.save_state(folder)
            accelerator.load_state(folder)
        self.assertEqual(counter.value, 4)

    def test_rates_of_an_optimizer_of_two_models_are_saved(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            rates = []
            for is_new in (True, False):
                fresh()
                accelerator = sherd.accelerate.Accelerator()
                torch.manual_seed(1)
                first, second = nn.Linear(2, 2), nn.Linear(2, 1)
                optimizer = torch.optim.AdamW([{"params": first.parameters(), "lr": 0.2}, {"params": second.parameters()}], lr=0.1)
                first, second, optimizer, schedule = accelerator.prepare(first, second, optimizer,
                                                                         torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))
                if is_new:
                    accelerator.backward(second(first(torch.ones(1, 2))).sum())
                    optimizer.step()
                    schedule.step()
                    accelerator.save_state(folder)
                else:
                    accelerator.load_state(folder)
                accelerator.backward(second(first(torch.ones(1, 2))).sum())
                optimizer.step()
                rates.append([group["lr"] for group in optimizer.param_groups])
            self.assertEqual(rates, [[0.1, 0.05]] * 2)

    def test_names_and_limits_of_saved_states(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            project = accelerate.utils.ProjectConfiguration(folder, automatic_checkpoint_naming=True, total_limit=2)
            accelerator, model, optimizer = self.made(project_config=project)
            values = []
            for _ in range(3):
                accelerator.backward(model(torch.ones(2, 4)).mean())
                optimizer.step()
                accelerator.save_state()
                values.append(accelerator.get_state_dict(model)["0.weight"])
            self.assertEqual(sorted(os.listdir(os.path.join(folder, "checkpoints"))), ["checkpoint_1", "checkpoint_2"])
            accelerator.load_state(os.path.join(folder, "checkpoints", "checkpoint_1"))
            self.assertTrue(torch.equal(accelerator.get_state_dict(model)["0.weight"], values[1]))
            accelerator.load_state()
            self.assertTrue(torch.equal(accelerator.get_state_dict(model)["0.weight"], values[2]))

    def test_windows_of_deterministic_engines(self) -> None:
        """The key gives the most backwards of a window; one more is refused. The plan has the memory that adds them up."""
        accelerator, model, optimizer = self.made(config(2, deterministic=True) | {"gradient_accumulation_steps": 3})
        for count in (1, 3, 2):
            for _ in range(count):
                accelerator.backward(model(torch.ones(2, 4)).mean())
            optimizer.step()
        self.assertEqual(accelerator.engine(model).global_steps, 3)
        with self.assertRaisesRegex(sherd.StateError, "gradient_accumulation_steps is 3"):
            for _ in range(4):
                accelerator.backward(model(torch.ones(2, 4)).mean())
        planned = []
        for is_open, accumulation in ((False, 1), (False, 2), (True, 1)):
            model = nn.Linear(64, 64)
            accelerator, _, _ = self.made({"zero_optimization": {"stage": 2}}, mixed_precision="bf16")
            engine = accelerator.engine(accelerator.prepare(model, torch.optim.AdamW(model.parameters()))[0]) if is_open else \
                sherd.torch.initialize(model, {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": accumulation,
                                               "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}, torch.optim.AdamW(model.parameters()))
            engine.seal(((torch.ones(2, 64),), {}))
            planned.append(engine.plan(True)["grads_bytes"])
        self.assertLess(planned[0], planned[1])
        self.assertEqual(planned[1], planned[2])

    def test_a_compiled_model(self) -> None:
        """Compiled before prepare(), or after."""
        got = []
        for way in ("plain", "before", "after"):
            fresh()
            accelerator = sherd.accelerate.Accelerator(sherd_config=config(3))
            torch.manual_seed(1)
            model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            given = torch.compile(model, backend="eager") if way == "before" else model
            loader = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
            made, optimizer, loader = accelerator.prepare(given, optimizer, loader)
            self.assertIs(made, given)
            if way == "after":
                made.compile(backend="eager")
            for x in loader:
                accelerator.backward(made(x).mean())
                accelerator.clip_grad_norm_(made.parameters(), 0.1)
                optimizer.step()
            self.assertIs(accelerator.engine(made), accelerator.engine(model))
            got.append(accelerator.get_state_dict(made))
        for other in got[1:]:
            torch.testing.assert_close({name.removeprefix("_orig_mod."): value for name, value in other.items()}, got[0])

    def test_the_model_stays_itself(self) -> None:
        accelerator, model, optimizer = self.made()
        twin = copy.deepcopy(model)
        self.assertEqual(list(twin.state_dict()), list(model.state_dict()))
        self.assertEqual(list(pickle.loads(pickle.dumps(model)).state_dict()), list(model.state_dict()))
        self.assertIs(accelerator.unwrap_model(model), model)
        self.assertIs(type(model), nn.Sequential)
        optimizer.step()  # without gradients
        self.assertEqual(accelerator.clip_grad_norm_(model.parameters(), 1).item(), 0)
        self.assertTrue(torch.equal(model(torch.ones(2, 4)), twin(torch.ones(2, 4))))
        self.assertTrue(torch.equal(accelerator.unwrap_model(model).state_dict()["0.weight"], twin[0].weight))
        accelerator.backward(model(torch.ones(2, 4)).mean() * float("nan"))
        with self.assertWarnsRegex(UserWarning, "Inf or NaN"):
            optimizer.step()
        self.assertTrue(accelerator.optimizer_step_was_skipped)
        with accelerator.accumulate(model):
            model(torch.ones(2, 4)).mean().backward()  # without the accelerator
            optimizer.step()
        self.assertFalse(accelerator.optimizer_step_was_skipped)
        self.assertEqual(accelerator.engine(model).global_steps, 1)
        accelerator.free_memory()
        self.assertFalse(accelerator._trainings)

    def test_the_configurations_clipping_and_two_norms(self) -> None:
        """The key clips where the script does not, by the norm of the sum of the losses."""
        got = []
        for key, calls in (("auto", (0.01,)), (0.01, ()), ("auto", (0.02, 0.01))):
            accelerator, model, optimizer = self.made(config(2, gradient_clipping=key))
            for _ in range(3):
                for _ in range(2):
                    accelerator.backward(model(torch.ones(2, 4)).mean())
                norms = [accelerator.clip_grad_norm_(model.parameters(), most).item() for most in calls]
                if len(norms) == 2:
                    self.assertAlmostEqual(norms[1], 0.02, places=5)
                optimizer.step()
            got.append({name: value.tolist() for name, value in accelerator.get_state_dict(model).items()})
        torch.testing.assert_close(*[{name: torch.tensor(value) for name, value in one.items()} for one in got[:2]])
        torch.testing.assert_close(*[{name: torch.tensor(value) for name, value in one.items()} for one in got[1:]])

    def test_tied_weights_are_one_tensor_in_a_state_dict(self) -> None:
        _, (accelerator, model, _, _) = run(ACCUMULATE, "sherd.accelerate", epochs=1)
        values = accelerator.get_state_dict(model)
        self.assertIs(values["head.weight"], values["words.weight"])

    def test_bf16_is_close_to_autocast(self) -> None:
        plain, _ = run(ACCUMULATE, "accelerate", epochs=1, mixed_precision="bf16", cpu=True)
        for options in ({"sherd_config": config(3)}, {"mixed_precision": "bf16"}):
            ours, _ = run(ACCUMULATE, "sherd.accelerate", epochs=1, cpu=True, **options, **({} if "mixed_precision" in options else
                                                                                          {"mixed_precision": "bf16"}))
            for name in ("loss", "norm", "evaluated"):
                torch.testing.assert_close(torch.tensor(ours[name]), torch.tensor(plain[name]), rtol=3e-2, atol=3e-2)


if __name__ == "__main__":
    if "MEETING" in os.environ:
        torch.distributed.init_process_group("gloo", init_method=os.environ["MEETING"], rank=int(os.environ["RANK"]),
                                             world_size=int(os.environ["WORLD_SIZE"]))
        globals()[sys.argv[1]](*sys.argv[2:])
        torch.distributed.destroy_process_group()
        sys.exit()
    ranks.ready()
    warnings.filterwarnings("error", message="sherd")
    unittest.main(argv=sys.argv, warnings=False)  # the filters stay as they are

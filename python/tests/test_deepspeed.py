"""Tests sherd.deepspeed and sherd.run: programs in the shapes of DeepSpeed's pages train as plain torch with the same gradient."""
from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from typing import Any, Callable
from unittest import mock

import ranks

try:
    import torch
except ImportError as error:
    ranks.skip(f"torch is not here: {error}")
import sherd
import sherd.deepspeed as deepspeed
import sherd.run
import sherd.torch
from sherd.deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from sherd.deepspeed.runtime.lr_schedules import WarmupLR
from torch import nn

STEPS = 32
HAS_ACCELERATE = importlib.util.find_spec("accelerate") is not None  # it looks for DeepSpeed when it is imported, so it is not imported here
Window = list[tuple[int, float]]  # the micro-batches of an update, and the factor of each one's loss


def made() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


def rank_and_size() -> tuple[int, int]:
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A micro-batch of this rank."""
    generator = torch.Generator().manual_seed(100 * number + rank_and_size()[0])
    return torch.randn(4, 6, generator=generator), torch.randint(0, 3, (4,), generator=generator)


def loss_of(model: Callable[..., torch.Tensor], number: int) -> torch.Tensor:
    x, wanted = batch(number)
    return nn.functional.cross_entropy(model(x), wanted)


def config(stage: int, accumulation: int = 1, **more: Any) -> dict[str, Any]:
    return {"train_batch_size": 4 * accumulation * rank_and_size()[1], "gradient_accumulation_steps": accumulation, "gradient_clipping": 0.4,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, **more}


ADAM = {"optimizer": {"type": "Adam", "params": {"lr": 1e-2, "betas": [0.8, 0.99], "weight_decay": 1e-3, "adam_w_mode": False}}}


def plain(windows: list[Window], optimizer: Callable[[Any], torch.optim.Optimizer], clip: float = 0.4, schedule: Any = None,
          params: Callable[[nn.Module], Any] = nn.Module.parameters) -> tuple[list[float], list[float]]:
    """What torch makes of these windows, with gradients averaged over ranks: the losses, and the norms of the updates."""
    model = made()
    of_model = optimizer(params(model))
    of_rates = None if schedule is None else schedule(of_model)
    losses, norms = [], []
    for window in windows:
        for number, factor in window:
            loss = loss_of(model, number)
            losses.append(loss.item())
            (factor * loss).backward()
        for param in model.parameters():
            if rank_and_size()[1] > 1:
                torch.distributed.all_reduce(param.grad)
                param.grad /= rank_and_size()[1]
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip)))
        of_model.step()
        if of_rates is not None:
            of_rates.step()
        of_model.zero_grad()
    return losses, norms


def compare(found: tuple[list[float], list[float]], wanted: tuple[list[float], list[float]]) -> None:
    for ours, plains in zip(found, wanted):
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(plains), rtol=1e-5, atol=1e-5)


def adam(params: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=1e-2, betas=(0.8, 0.99), weight_decay=1e-3)


# ---------------------------------------------------------------- programs --

def accumulated(stage: int) -> None:
    """config_params, an optimizer of the configuration, and a step() after each backward."""
    model = made()
    engine, optimizer, loader, scheduler = deepspeed.initialize(model=model, model_parameters=(p for p in model.parameters()),
                                                                config_params=config(stage, 2, **ADAM))
    assert (loader, scheduler, engine.module) == (None, None, model) and optimizer.param_groups[0]["lr"] == 1e-2
    losses, norms = [], []
    for number in range(STEPS):
        assert engine.is_gradient_accumulation_boundary() == (number % 2 == 1)
        loss = engine(batch(number)[0])
        loss = nn.functional.cross_entropy(loss, batch(number)[1])
        scaled = engine.backward(loss)
        torch.testing.assert_close(scaled, loss / 2)
        engine.step()
        losses.append(loss.item())
        assert engine.was_step_applied() == (number % 2 == 1) and engine.micro_steps == number + 1
        if number % 2:
            norms.append(engine.get_global_grad_norm())
    assert engine.global_steps == STEPS // 2 and engine.get_batch_info() == (8 * engine.world_size, 4, 2)
    compare((losses, norms), plain([[(n, 0.5), (n + 1, 0.5)] for n in range(0, STEPS, 2)], adam))


def groups(model: nn.Module) -> list[dict[str, Any]]:
    return [{"params": list(model[0].parameters()), "lr": 3e-3}, {"params": [p for n, p in model.named_parameters() if not n.startswith("0")]}]


def given(stage: int) -> None:
    """A function that makes the optimizer, one that makes the scheduler, groups, and an optimizer of the configuration that does not count."""
    model = made()
    schedule = functools.partial(torch.optim.lr_scheduler.LinearLR, start_factor=1.0, end_factor=0.1, total_iters=25)
    engine, optimizer, _, scheduler = deepspeed.initialize(model=model, model_parameters=groups(model),
                                                           optimizer=lambda params: FusedAdam(params, lr=1e-2, weight_decay=0.1),
                                                           lr_scheduler=schedule, config=config(stage, **ADAM))
    assert isinstance(scheduler, torch.optim.lr_scheduler.LinearLR) and optimizer is scheduler.optimizer
    losses, norms = [], []
    for number in range(STEPS):
        loss = loss_of(engine, number)
        loss.backward()  # without the engine's backward
        engine.step()
        losses.append(loss.item())
        norms.append(engine.get_global_grad_norm())
        assert engine.get_lr() == scheduler.get_last_lr()
    compare((losses, norms), plain([[(n, 1)] for n in range(STEPS)], lambda params: torch.optim.AdamW(params, lr=1e-2, weight_decay=0.1),
                                   schedule=schedule, params=groups))


def by_hand(stage: int) -> None:
    """A boundary that the script sets, with one step() a window; two losses before a step; windows of other lengths; undivided losses."""
    model = made()
    engine, *_ = deepspeed.initialize(model=model, optimizer=adam(model.parameters()), config=config(stage, 3))
    losses, norms, windows, number = [], [], [], 0

    def backward(**options: Any) -> None:
        nonlocal number
        loss = loss_of(engine, number)
        losses.append(loss.item())
        engine.backward(loss, **options)
        number += 1

    for length in (3, 2, 4) * 4:
        engine.set_gradient_accumulation_boundary(False)
        windows.append([(number + n, 1 / 3) for n in range(length)])
        for _ in range(length - 1):
            backward()
        engine.set_gradient_accumulation_boundary(is_boundary=True)
        backward()
        engine.step()
        norms.append(engine.get_global_grad_norm())
    windows += [[(number, 1), (number + 1, 1 / 3)], [(number + 2, 1)]]
    backward(scale_wrt_gas=False)
    backward()
    engine.step()
    norms.append(engine.get_global_grad_norm())
    engine.set_train_batch_size(4 * engine.world_size)
    backward()
    engine.step()
    norms.append(engine.get_global_grad_norm())
    compare((losses, norms), plain(windows, adam))


def unmanaged(stage: int) -> None:
    """managed_gradient_accumulation: false, with which each step() updates."""
    model = made()
    engine, *_ = deepspeed.initialize(model=model, config={**config(stage, 2, **ADAM), "managed_gradient_accumulation": False})
    losses, norms, windows = [], [], [[(3 * n + k, 0.5) for k in range(1 + n % 3)] for n in range(12)]
    for window in windows:
        for number, _ in window:
            loss = loss_of(engine, number)
            losses.append(loss.item())
            engine.backward(loss)
        engine.step()
        norms.append(engine.get_global_grad_norm())
    compare((losses, norms), plain(windows, adam))


def warmed(stage: int) -> None:
    """A schedule of DeepSpeed's, in the configuration and as an object; both give the same rates."""
    rates = []
    for number in range(2):
        model = made()
        options: dict[str, Any] = {"config": config(stage, **ADAM)}
        if number:
            options["optimizer"] = DeepSpeedCPUAdam(model.parameters(), lr=1e-2, adamw_mode=False)
            options["lr_scheduler"] = WarmupLR(options["optimizer"], 0.001, 0.01, warmup_num_steps=6, warmup_type="linear")
        else:
            options["config"]["scheduler"] = {"type": "WarmupLR", "params": {"warmup_min_lr": 0.001, "warmup_max_lr": 0.01,
                                                                             "warmup_num_steps": 6, "warmup_type": "linear"}}
        engine, optimizer, _, scheduler = deepspeed.initialize(model=model, **options)
        rates.append([scheduler.get_lr()])
        for step in range(8):
            engine.backward(loss_of(engine, step))
            engine.step()
            rates[-1].append(scheduler.get_last_lr())
            assert engine.get_lr() == [group["lr"] for group in optimizer.param_groups]
        assert scheduler.state_dict() == {"last_batch_iteration": 7}
        scheduler.load_state_dict({"last_batch_iteration": 7})
        with unittest.TestCase().assertRaisesRegex(sherd.StateError, "count twice"):
            scheduler.step()
        engine.destroy()
    assert rates[0] == rates[1] and rates[0][0] == rates[0][1] == [0.001] and abs(rates[0][-1][0] - 0.01) < 1e-12, rates


def values(stage: int) -> None:
    """zero.Init, GatheredParameters, exact values of weights and moments, whole weights, a file of weights."""
    with deepspeed.zero.Init(config_dict_or_path=config(stage)):
        model = made()
    engine, *_ = deepspeed.initialize(model=model, config=config(stage, **ADAM))
    weight = model[3].weight
    engine.backward(loss_of(engine, 0))
    engine.step()
    with deepspeed.zero.GatheredParameters([weight], modifier_rank=0):
        if engine.global_rank == 0:
            nn.init.constant_(weight, 0.25)
    with deepspeed.zero.GatheredParameters(model.parameters()):
        assert torch.equal(weight, torch.full_like(weight, 0.25)), weight
    with deepspeed.zero.GatheredParameters([weight], modifier_rank=0, enabled=False):
        pass
    deepspeed.zero.register_external_parameter(model, weight)
    assert torch.equal(deepspeed.utils.safe_get_full_fp32_param(weight), torch.full(weight.shape, 0.25))
    deepspeed.utils.safe_set_full_fp32_param(weight, torch.full(weight.shape, 0.5))
    moment = deepspeed.utils.safe_get_full_optimizer_state(weight, "exp_avg")
    assert moment.shape == weight.shape and moment.abs().sum() > 0
    deepspeed.utils.safe_set_full_optimizer_state(weight, moment * 2, "exp_avg")
    assert torch.equal(deepspeed.utils.safe_get_full_optimizer_state(weight, "exp_avg"), moment * 2)
    whole = engine.module_state_dict()
    assert list(whole) == list(dict(made().state_dict())) and torch.equal(whole["3.weight"], torch.full(weight.shape, 0.5))
    if stage == 3:
        consolidated = engine._zero3_consolidated_16bit_state_dict()
        assert (consolidated is None) == (engine.global_rank != 0)
    with tempfile.TemporaryDirectory() as folder:
        assert engine.save_16bit_model(folder) == (stage != 3)
        engine.config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True
        assert engine.save_16bit_model(folder, "all.bin")
        if engine.global_rank == 0:
            written = torch.load(os.path.join(folder, "all.bin"))
            assert all(torch.equal(written[name], value) for name, value in whole.items())
        deepspeed.comm.barrier()


def read_at_once(stage: int) -> None:
    """Parameters read right after a step, as a moving average or torch.save of a state_dict does, have the values of the update."""
    for _ in range(6 if 0 < stage < 3 else 1):
        model = made()
        engine, *_ = deepspeed.initialize(model=model, config=config(stage, **ADAM))
        plainly = sherd.torch.initialize(made(), config(stage, **ADAM), world=deepspeed.comm.world())
        for one, step in ((engine, engine.step), (plainly, plainly.step)):
            for number in range(2):
                one.backward(loss_of(one, number))
                step()
                if stage < 3:
                    found = {name: value.clone() for name, value in one.module.state_dict().items()}
                    torch.testing.assert_close(found, dict(getattr(one, "engine", one).state_dict().items()))
            one.destroy()


def loaded(stage: int) -> None:
    """A loader of the engine's, a configuration on the command line, and an evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "ds_config.json"), "w", encoding="utf-8") as file:
            json.dump({**config(stage, **ADAM), "steps_per_print": 10}, file)
        parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
        args = parser.parse_args(["--deepspeed", "--deepspeed_config", file.name])
        rows = [(batch(n)[0][0], n) for n in range(22)]
        engine, _, loader, _ = deepspeed.initialize(args=args, model=made(), training_data=rows,
                                                    collate_fn=lambda some: (torch.stack([x for x, _ in some]), [n for _, n in some]))
    loader.num_workers = 0
    seen = []
    for x, numbers in loader:
        seen += numbers
        engine.backward(engine(x).pow(2).mean())
        engine.step()
    world_size = engine.world_size
    sampler = torch.utils.data.DistributedSampler(rows, world_size, engine.global_rank)
    assert seen == list(sampler) and len(loader) == -(-len(list(sampler)) // 4), seen
    assert next(loader.__class__.__iter__(loader))[1] == seen[:4]
    endless = deepspeed.runtime.dataloader.RepeatingLoader(loader)
    assert [next(endless)[1] for _ in range(len(loader) + 1)][-1] == seen[:4]
    engine.eval()
    with torch.no_grad():
        engine(rows[0][0][None])
    assert not engine.module.training and engine.train().module.training


def saved(folder: str) -> None:
    engine, *_ = deepspeed.initialize(model=made(), config=config(2, 1, **ADAM))
    for number in range(3):
        engine.backward(loss_of(engine, number))
        engine.step()
    engine.backward(loss_of(engine, 3) * float("inf"))
    engine.step()
    assert (engine.global_steps, engine.skipped_steps, engine.optimizer.overflow) == (4, 1, True)
    assert engine.save_checkpoint(folder, client_state={"epoch": 3, "best": [1.5]})
    engine.backward(loss_of(engine, 4))
    assert engine.save_checkpoint(os.path.join(folder, "window"))  # before its step
    engine.zero_grad()
    reported(engine, os.path.join(folder, "losses.json"))


def resumed(folder: str) -> None:
    engine, *_ = deepspeed.initialize(model=made(), config=config(3, 1, **ADAM))
    assert engine.load_checkpoint(os.path.join(folder, "window"))[0] is not None and engine.global_steps == 4
    path, state = engine.load_checkpoint(folder)
    assert path == os.path.join(folder, "global_step4") and state == {"epoch": 3, "best": [1.5]}, (path, state)
    assert (engine.global_steps, engine.skipped_steps) == (4, 1)
    reported(engine, None, os.path.join(folder, "losses.json"))
    assert engine.load_checkpoint(os.path.join(folder, "nothing")) == (None, None)


def reported(engine: Any, written: str | None, wanted: str | None = None) -> None:
    """Trains on samples that are the same on any number of ranks, and writes the losses, or compares them with what was written."""
    losses = []
    x = torch.linspace(-1, 1, 24).view(4, 6)
    for _ in range(3):
        loss = (engine(x) ** 2).mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    if written is not None and engine.global_rank == 0:
        with open(written, "w", encoding="utf-8") as file:
            json.dump(losses, file)
    if wanted is not None:
        with open(wanted, encoding="utf-8") as file:
            torch.testing.assert_close(torch.tensor(losses), torch.tensor(json.load(file)), rtol=1e-5, atol=1e-5)
    deepspeed.comm.barrier()


def programs() -> None:
    for program, stages in ((accumulated, (2, 3)), (given, (2, 3)), (by_hand, (0, 3)), (unmanaged, (2,)), (warmed, (3,)), (values, (2, 3)),
                            (loaded, (2,)), (read_at_once, (1, 2))):
        for stage in stages:
            program(stage)


def start(world_size: int, *arguments: str, **environment: str) -> list[str]:
    """Runs a function of this file on so many ranks, and returns what they printed. torch.distributed's ranks meet by sherd's."""
    with tempfile.TemporaryDirectory() as folder:
        own = [{"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank), "SHERD_RANK": str(rank),
                "SHERD_WORLD_SIZE": str(world_size), "SHERD_RENDEZVOUS": f"unix://{folder}/meet", "SHERD_THREADS": "1",
                **environment} for rank in range(world_size)]
        ended = ranks.start(sys.argv[0], arguments, own)
    failed = [f"rank {number} ended with {status}:\n{text}" for number, (status, text) in enumerate(ended) if status != 0]
    assert not failed, "\n".join(failed)
    return [text for _, text in ended]


def written(folder: str, text: str, name: str = "script.py") -> str:
    """Writes a file, and returns its path."""
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(text)
    return file.name


class Programs(unittest.TestCase):
    def test_one_rank(self) -> None:
        start(1, "programs")

    def test_two_ranks(self) -> None:
        start(2, "programs")

    def test_checkpoint_on_another_number_of_ranks(self) -> None:
        for many, others in ((2, 1), (1, 2)):
            with tempfile.TemporaryDirectory() as folder:
                start(many, "saved", folder)
                start(others, "resumed", folder)


# ------------------------------------------------------------------- calls --

class Calls(unittest.TestCase):
    def engine(self, **more: Any) -> Any:
        return deepspeed.initialize(model=made(), config=config(2, **{**ADAM, **more}))[0]

    def test_refused_by_name(self) -> None:
        engine = self.engine()
        engine.backward(loss_of(engine, 0))
        engine.step()
        from sherd.deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer as split  # an import alone is not refused
        for call, said in ((lambda: deepspeed.init_inference(made()), "deepspeed.init_inference: .*without an optimizer"),
                           (lambda: split({}), "deepspeed.moe.utils.split_params.*expert parallelism"),
                           (lambda: deepspeed.moe.layer.MoE(8), "deepspeed.moe.layer.MoE"),
                           (lambda: deepspeed.PipelineModule([]), "PipelineModule: there is no pipeline"),
                           (lambda: type("Mine", (deepspeed.pipe.PipelineModule,), {}), "pipe.PipelineModule"),
                           (lambda: deepspeed.tp_model_init(1), "tensor parallelism"),
                           (lambda: deepspeed.zero.TiledLinear(2, 2), "TiledLinear"),
                           (lambda: deepspeed.zero.Init(zero_quantized_weights=True), "zero_quantized_weights"),
                           (lambda: deepspeed.utils.safe_get_full_grad(1), "prepare_step"),
                           (lambda: deepspeed.checkpointing.configure(None, partition_activations=True), "partition_activations"),
                           (lambda: deepspeed.checkpointing.configure(None, {"activation_checkpointing": {"cpu_checkpointing": True}}),
                            "save_on_cpu"),
                           (lambda: deepspeed.checkpointing.get_cuda_rng_tracker(), "tensor parallelism"),
                           (lambda: deepspeed.comm.initialize_mesh_device((1, 1), ("a", "b")), "data parallelism"),
                           (lambda: deepspeed.comm.log_summary(), "comms_logger"),
                           (lambda: deepspeed.no_such_call, "no deepspeed.no_such_call"),
                           (lambda: deepspeed.runtime.no_such_module, "no deepspeed.runtime.no_such_module"),
                           (lambda: deepspeed.comm.no_such_call, "no deepspeed.comm.no_such_call"),
                           (lambda: FusedAdam([nn.Parameter(torch.zeros(1))], bias_correction=False), "bias_correction"),
                           (lambda: engine.no_such_call, "no engine.no_such_call"),
                           (lambda: engine.monitor, "engine has no monitor: .*tensorboard"),
                           (lambda: engine.train_batch(iter([])), "pipeline engine"),
                           (lambda: engine.step(lr_kwargs={"epoch": 1}), "lr_kwargs"),
                           (lambda: engine.save_checkpoint("x", save_latest=False), "save_latest"),
                           (lambda: engine.save_checkpoint("x", exclude_frozen_parameters=True), "exclude_frozen_parameters"),
                           (lambda: engine.load_checkpoint("x", load_optimizer_states=False), "load_module_only"),
                           (lambda: engine.load_checkpoint("x", custom_load_fn=print), "custom_load_fn"),
                           (lambda: engine.compile(schedule=[]), "schedule"),
                           (lambda: deepspeed.initialize(model=made(), mesh_param=(1, 1), config=config(2, **ADAM)), "mesh_param"),
                           (lambda: deepspeed.initialize(model=made(), mpu=Parts(), config=config(2, **ADAM)), "mpu="),
                           (lambda: deepspeed.initialize(model=made(), lr_scheduler=WarmupLR, config=config(2, **ADAM)), "WarmupLR.*configuration"),
                           (lambda: self.engine(tensor_parallel={"autotp_size": 2}), "autotp_size")):
            with self.subTest(said), self.assertRaisesRegex(sherd.NotSupportedError, said):
                call()
        self.assertFalse(hasattr(deepspeed, "no_such_call") or hasattr(engine, "no_such_call"))
        self.assertFalse(isinstance(engine.module, deepspeed.PipelineModule))

    def test_what_is_wrong_says_so(self) -> None:
        engine = self.engine()
        args = argparse.Namespace(deepspeed_config="a.json")
        for call, said in ((lambda: deepspeed.initialize(model=made()), "no configuration"),
                           (lambda: deepspeed.initialize(args, made(), config={}), "several configurations: config= and args.deepspeed_config"),
                           (lambda: deepspeed.initialize(config={}), "needs a model"),
                           (lambda: deepspeed.initialize(model=made(), model_parameters=made().parameters(), config=config(2)), "no optimizer"),
                           (lambda: engine.set_train_batch_size(7), "no multiple of 4")):
            with self.assertRaisesRegex(sherd.InvalidError, said):
                call()
        with self.assertRaisesRegex(sherd.StateError, "no backward"):
            engine.step()
        with tempfile.TemporaryDirectory() as folder:
            for text, said in (("{", "is not JSON"), ("{\"bf16\": {\"enabled\": true, \"enabled\": false}}", "the key enabled twice")):
                with self.assertRaisesRegex(sherd.InvalidError, said):
                    deepspeed.initialize(model=made(), config=written(folder, text, "ds_config.json"))
            os.makedirs(os.path.join(folder, "global_step3"))
            for name, text in (("latest", "global_step3"), ("global_step3/mp_rank_00_model_states.pt", "")):
                written(folder, text, name)
            with self.assertRaisesRegex(sherd.InvalidError, "import_deepspeed"):
                engine.load_checkpoint(folder)
        with self.assertRaises(FileNotFoundError):
            deepspeed.initialize(model=made(), config="nowhere.json")

    def test_inference_without_an_optimizer(self) -> None:
        model = made()
        wanted = copy.deepcopy(model)(batch(0)[0])
        engine, optimizer, _, _ = deepspeed.initialize(model=model, config=config(3))
        self.assertIsNone(optimizer)
        torch.testing.assert_close(engine(batch(0)[0]), wanted)
        with self.assertRaisesRegex(sherd.StateError, "for inference"):
            engine.backward(wanted.sum())

    def test_a_backward_that_fails_loses_its_window(self) -> None:
        engine = self.engine(gradient_accumulation_steps=2, train_batch_size=8)
        engine.backward(loss_of(engine, 0))
        engine.step()
        loss = loss_of(engine, 1)
        with self.assertRaises(RuntimeError):
            engine.backward(loss.detach())
        with self.assertWarnsRegex(UserWarning, "dropped"):
            engine.backward(loss_of(engine, 1))
        engine.step()
        self.assertEqual(engine.global_steps, 1)

    def test_leaf_modules_are_one_unit(self) -> None:
        model = nn.Sequential(made(), made())
        self.assertEqual(deepspeed.utils.set_z3_leaf_modules(model, [nn.Sequential]), [model, model[0], model[1]])
        deepspeed.utils.set_z3_leaf_module(model, False)
        engine, *_ = deepspeed.initialize(model=model, config=config(3, **ADAM))
        self.assertEqual(len(engine.engine.division.units), 2)

    def test_activations_are_computed_again(self) -> None:
        model, x = made(), torch.randn(2, 6, requires_grad=True)
        wanted, = torch.autograd.grad(model(x).sum(), x)
        deepspeed.checkpointing.configure(None, num_checkpoints=2)
        found, = torch.autograd.grad(deepspeed.checkpointing.checkpoint(model, x).sum(), x)
        self.assertTrue(torch.equal(found, wanted) and deepspeed.checkpointing.is_configured())

    def test_meta_device(self) -> None:
        with deepspeed.OnDevice(dtype=torch.bfloat16, device="meta"):
            model = nn.Linear(4, 4)
        self.assertEqual((model.weight.device.type, model.weight.dtype, torch.zeros(1).dtype), ("meta", torch.bfloat16, torch.float32))
        accelerator = deepspeed.accelerator.get_accelerator()
        self.assertIn(accelerator.device_name(0), ("cpu", "cuda:0"))


class Parts:
    """A unit of model parallelism over two ranks."""

    def get_model_parallel_world_size(self) -> int:
        return 2


# -------------------------------------------------------------------- run --

SCRIPT = '''
import argparse, importlib.metadata, importlib.util, os, sys
import deepspeed
import deepspeed.comm as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.adam import FusedAdam
from deepspeed.runtime.zero.partition_parameters import Init
from deepspeed.utils import logger
import torch

assert importlib.util.find_spec("deepspeed") is not None
assert importlib.metadata.version("deepspeed") == deepspeed.__version__
assert sys.modules["__main__"].__file__ == __file__ and sys.argv[0] == __file__
parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
deepspeed.init_distributed()
assert (dist.get_rank(), dist.get_world_size()) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
model = torch.nn.Linear(2, 1)
engine, *_ = deepspeed.initialize(args=args, model=model, optimizer=FusedAdam(model.parameters()), config={"train_batch_size": 2})
loss = engine(torch.ones(2, 2)).sum()
engine.backward(loss)
engine.step()
total = torch.ones(1)
dist.all_reduce(total)
print("ranks", int(total), "local rank", args.local_rank, "steps", engine.global_steps)
'''
# Accelerate's own DeepSpeed branch over the stand-in.
ACCELERATE = '''
import torch
from accelerate import Accelerator

accelerator = Accelerator()
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = torch.utils.data.DataLoader(torch.arange(48.0).view(12, 4) / 48, batch_size=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
print(accelerator.distributed_type.value, type(model).__module__)
losses = []
for x in list(loader) * 2:
    with accelerator.accumulate(model):
        loss = model(x).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    losses.append(loss.item())
assert losses[6] < losses[0] and model.global_steps == 6, (losses, model.global_steps)
assert set(accelerator.get_state_dict(model)) == {"weight", "bias"}
print("trained")
'''
# One write, in which another rank's does not come.
STARTED = "import os, sys; os.write(1, (str(sorted(v for v in os.environ.items() if v[0] in NAMES)) + f' {sys.argv[1:]}\\n').encode())"
NAMES = ("ACCELERATE_DEEPSPEED_ZERO_STAGE", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "ACCELERATE_MIXED_PRECISION", "WORLD_SIZE")
YAML = '''
compute_environment: LOCAL_MACHINE
deepspeed_config:
  gradient_accumulation_steps: 3
  gradient_clipping: 0.5
  zero_stage: 3
distributed_type: DEEPSPEED
downcast_bf16: 'no'
mixed_precision: bf16
num_machines: 1
num_processes: 2
use_cpu: false
'''


def ran(script: str, *options: str) -> None:
    """Runs a script by sherd.run, as this rank."""
    sherd.run.main([*options, script])


class Run(unittest.TestCase):
    def test_script_that_imports_the_package(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            script = written(folder, SCRIPT)
            for many, options, said in ((1, (), "local rank -1"), (2, ("--local_rank",), "local rank {}")):
                for rank, text in enumerate(start(many, "ran", script, "--as", "deepspeed", *options)):
                    self.assertIn(f"ranks {many} {said.format(rank)} steps 1", text)

    @unittest.skipUnless(HAS_ACCELERATE, "accelerate is not installed")
    def test_accelerate_over_the_stand_in(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            text, = start(1, "ran", written(folder, ACCELERATE), "--as", "deepspeed", MASTER_ADDR="127.0.0.1", MASTER_PORT="0", HF_HOME=folder,
                          ACCELERATE_USE_DEEPSPEED="true", ACCELERATE_DEEPSPEED_ZERO_STAGE="2", ACCELERATE_GRADIENT_ACCUMULATION_STEPS="2")
        self.assertIn("DEEPSPEED sherd.deepspeed.engine\ntrained", text)

    def test_ranks_as_by_the_command(self) -> None:
        for options, wanted in ((["--num_gpus", "3"], ["--standalone", "--nproc-per-node", "3", "-m", "sherd.run", "--as", "deepspeed",
                                                       "--local_rank"]),
                                (["--num_gpus", "1", "--master_port", "0"], ["--standalone", "--nproc-per-node", "1", "-m", "sherd.run", "--as",
                                                                             "deepspeed", "--local_rank"]),
                                (["-n", "2", "--no_local_rank", "--master_port", "5"], ["--master-port", "5", "--nproc-per-node", "2", "-m",
                                                                                        "sherd.run", "--as", "deepspeed"])):
            with mock.patch("torch.distributed.run.main") as started:
                sherd.run.main(["--as", "deepspeed", *options, __file__, "--deepspeed"])
            started.assert_called_once_with([*wanted, __file__, "--deepspeed"])

    @unittest.skipUnless(HAS_ACCELERATE, "accelerate is not installed")
    def test_ranks_of_a_file_of_accelerate(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            script, file = written(folder, STARTED.replace("NAMES", repr(NAMES))), written(folder, YAML, "accelerate.yaml")
            done = subprocess.run([sys.executable, "-m", "sherd.run", "--accelerate", file, "--main_process_port", "0", script, "--epochs", "2"],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        wanted = f"{list(zip(NAMES, ('3', '3', 'bf16', '2')))} ['--epochs', '2']"
        self.assertEqual((done.returncode, done.stdout.count(wanted)), (0, 2), done.stdout)

    @unittest.skipUnless(HAS_ACCELERATE, "accelerate is not installed")
    def test_file_that_cannot_be_started(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for text, said in (("a: [", "is not YAML"), ("hello", "has no keys"), (YAML.replace("num_processes", "num_proceses"),
                               "num_proceses is not a key .* is num_processes meant"), (YAML.replace("zero_stage", "zero_stag"),
                               "deepspeed_config.zero_stag is not a key .* is deepspeed_config.zero_stage meant"),
                               (YAML.replace("DEEPSPEED", "FSDP"), "distributed_type FSDP is not one"),
                               (YAML.replace("LOCAL_MACHINE", "AMAZON_SAGEMAKER"), "AMAZON_SAGEMAKER"),
                               (YAML.replace("bf16", "bf17"), "bf17"),
                               (YAML.replace("num_machines: 1", "num_machines: 2\nmachine_rank: 0\nmain_process_ip: 127.0.0.1"), "standard")):
                path = written(folder, text, "accelerate.yaml")
                with self.subTest(said), self.assertRaisesRegex(SystemExit, said), mock.patch.dict(os.environ):
                    sherd.run.main(["--accelerate", path, "--main_process_port", "0", __file__])
            with self.assertRaisesRegex(SystemExit, "No such file"):
                sherd.run.main(["--accelerate", os.path.join(folder, "none.yaml"), __file__])

    def test_command_line(self) -> None:
        for arguments, said in ((["--as", "torch", __file__], "invalid choice"), (["--num_gpus", "0", __file__], "no number of ranks"),
                                (["nowhere.py"], "no script nowhere.py"), (["--nocturnal", __file__], "unrecognized|--nocturnal")):
            printed = io.StringIO()
            with self.subTest(said), self.assertRaises(SystemExit), contextlib.redirect_stderr(printed):
                sherd.run.main(arguments)
            self.assertRegex(printed.getvalue(), said)


if __name__ == "__main__":
    if sys.argv[1:2] not in (["programs"], ["saved"], ["resumed"], ["ran"]):
        ranks.ready()
        unittest.main()
    globals()[sys.argv[1]](*sys.argv[2:])

"""Tests that torch's optimizers, groups and schedulers are read by initialize(), set the rates, or are refused by name."""
from __future__ import annotations

import copy
import json
import sys
import tempfile
import unittest
from unittest import mock

import ranks

try:
    import torch
except ImportError as error:
    ranks.skip(str(error))

import sherd.torch
from sherd.errors import InvalidError, NotSupportedError, SherdError, StateError
from sherd.torch import optim, regroup
from torch import nn

SILENT = {"train_batch_size": 4, "gradient_clipping": 0}
STEPS = 6
ROWS = 16  # enough that no singular value of a gradient is mere rounding: Muon would make it as large as the others
EPS = 1e-3  # large enough that the last bit of a gradient near zero does not become a whole step


def model_of() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.LayerNorm(8))


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(ROWS, 8, generator=generator) for _ in range(STEPS)]


def decayed(model: nn.Module) -> list[dict[str, object]]:
    """Returns two groups: matrices with weight decay, and the rest without, at a rate of its own."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0, "lr": 3e-2}]


def plain(make, schedule=None, model_of=model_of) -> list[torch.Tensor]:
    """Returns the weights that plain torch makes, by the optimizer or the list of optimizers that `make` returns."""
    model = model_of()
    made = make(model)
    optimizers = made if isinstance(made, list) else [made]
    schedulers = [schedule(optimizer) for optimizer in optimizers] if schedule else []
    for batch in batches():
        model.zero_grad()
        model(batch).square().mean().backward()
        for one in optimizers + schedulers:
            one.step()
    return [p.detach().clone() for p in model.parameters()]


def ours(make=None, schedule=None, config=None, groups=None, model_of=model_of) -> tuple[list[torch.Tensor], list[float]]:
    """Returns the weights that sherd.torch makes, and the rates at the end."""
    model = model_of()
    optimizer = make(model) if make else None
    engine = sherd.torch.initialize(model, config or SILENT, optimizer=optimizer,
                                    lr_scheduler=schedule(optimizer) if schedule and optimizer else schedule,
                                    model_parameters=groups(model) if groups else None)
    try:
        train(engine, batches())
        return values_of(engine), engine.get_lr()
    finally:
        engine.destroy()


def train(engine: sherd.torch.Engine, inputs: list[torch.Tensor]) -> None:
    for batch in inputs:
        engine.backward(engine(batch).square().mean())
        engine.step()


def values_of(engine: sherd.torch.Engine) -> list[torch.Tensor]:
    return [torch.frombuffer(engine.core.read(p.number), dtype=torch.float32).reshape(p.tensor.shape).clone()
            for p in engine.division.params]


class TestRead(unittest.TestCase):
    def assert_close(self, left: list[torch.Tensor], right: list[torch.Tensor]) -> None:
        for one, other in zip(left, right, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-6)

    def test_a_torch_optimizer_trains_as_torch_does(self) -> None:
        for name, make in (
                ("AdamW", lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, betas=(0.8, 0.95), eps=EPS)),
                ("AdamW, groups", lambda m: torch.optim.AdamW(decayed(m), lr=1e-2, eps=EPS)),
                ("Adam", lambda m: torch.optim.Adam(m.parameters(), lr=1e-2, weight_decay=0.1, eps=EPS)),
                ("Adam, fused", lambda m: torch.optim.Adam(m.parameters(), lr=1e-2, fused=True, eps=EPS))):
            with self.subTest(name):
                self.assert_close(ours(make)[0], plain(make))

    def test_a_scheduler_drives_the_rates(self) -> None:
        def make(model):
            return torch.optim.AdamW(decayed(model), lr=1e-2, eps=EPS)

        def schedule(optimizer):
            return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))

        values, rates = ours(make, schedule)
        self.assert_close(values, plain(make, schedule))
        self.assertEqual([round(rate, 9) for rate in rates], [round(1e-2 / 7, 9), round(3e-2 / 7, 9)])

    def test_schedules_that_change_more_than_rates(self) -> None:
        """OneCycleLR and CyclicLR change the first beta or the momentum, and scripts the weight decay."""
        class Decaying(torch.optim.lr_scheduler.LRScheduler):
            def step(self, epoch=None):
                for group in self.optimizer.param_groups:
                    group["weight_decay"] *= 1.5
                super().step(epoch)

            def get_lr(self):
                return [group["lr"] for group in self.optimizer.param_groups]

        def cycle(optimizer):
            return torch.optim.lr_scheduler.OneCycleLR(optimizer, [1e-2] * len(optimizer.param_groups), total_steps=20)

        def cyclic(optimizer):
            return torch.optim.lr_scheduler.CyclicLR(optimizer, 1e-3, 1e-2, 2, 3)

        makes = {"AdamW": lambda m: torch.optim.AdamW(decayed(m), lr=1e-2, eps=EPS),
                 "SGD": lambda m: torch.optim.SGD(decayed(m), lr=1e-2, momentum=0.9)}
        for name, schedule in (("AdamW", cycle), ("AdamW", cyclic), ("SGD", cycle), ("SGD", cyclic), ("AdamW", Decaying), ("SGD", Decaying)):
            with self.subTest(name, schedule=schedule.__name__):
                self.assert_close(ours(makes[name], schedule)[0], plain(makes[name], schedule))
        with self.assertRaisesRegex(sherd.InvalidError, "which has a momentum of 0: give the group a momentum when it is made"):
            engine = sherd.torch.initialize(model := model_of(), SILENT, optimizer=torch.optim.SGD(model.parameters(), lr=1e-2))
            engine.backward(engine(batches()[0]).square().mean())
            engine.optimizer.param_groups[0]["momentum"] = 0.5
            try:
                engine.step()
            finally:
                engine.discard()
                engine.destroy()

    def test_a_loaded_schedule_goes_on_from_its_rates(self) -> None:
        def schedule(optimizer):  # it computes the next rate from the one in the group
            return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

        def make(model):
            return torch.optim.AdamW(decayed(model), lr=1e-2)

        rates = ours(make, schedule)[1]
        with tempfile.TemporaryDirectory() as folder:
            for part in (batches()[:4], batches()[4:]):
                model = model_of()
                optimizer = make(model)
                engine = sherd.torch.initialize(model, SILENT, optimizer=optimizer, lr_scheduler=schedule(optimizer), example=part[0])
                engine.load_checkpoint(folder)
                for batch in part:
                    engine.backward(engine(batch).square().mean())
                    engine.step()
                engine.save_checkpoint(folder)
                self.assertEqual(engine.get_lr(), rates if len(part) == 2 else [rate * 4 for rate in rates])
                engine.destroy()

    def test_rates_that_the_script_has_set_are_loaded(self) -> None:
        config = {**SILENT, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}}

        with tempfile.TemporaryDirectory() as folder:
            engine = self.configured(config, decayed)
            engine.optimizer.param_groups[1]["lr"] = 1e-4
            train(engine, batches()[:1])
            engine.save_checkpoint(folder)
            engine.destroy()
            halved = lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
            for schedule, rates in ((None, [1e-2, 1e-4]), (halved, [5e-3, 15e-3])):
                engine = self.configured(config, decayed, schedule)
                engine.load_checkpoint(folder)
                self.assertEqual(engine.get_lr(), rates)
                train(engine, batches()[:1])
                self.assertEqual(engine.get_lr(), rates)
                engine.destroy()
            other = self.configured(config)
            with self.assertWarnsRegex(UserWarning, "has set for 2 parameter groups, and they are not those of now .*0.weight.*several groups there"):
                other.load_checkpoint(folder)
            self.assertEqual(other.get_lr(), [1e-2])
            other.destroy()

    def test_groups_over_the_configuration(self) -> None:
        config = {**SILENT, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "eps": EPS}}}
        values, rates = ours(config=config, groups=decayed)
        self.assert_close(values, plain(lambda m: torch.optim.AdamW(decayed(m), lr=1e-2, eps=EPS)))
        self.assertEqual(rates, [1e-2, 3e-2])

    def test_a_schedule_as_a_function(self) -> None:
        config = {**SILENT, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.01, "eps": EPS}}}

        def schedule(optimizer):
            return torch.optim.lr_scheduler.StepLR(optimizer, 2)

        self.assert_close(ours(config=config, schedule=schedule)[0],
                          plain(lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, eps=EPS), schedule))

    def test_rates_of_the_configuration(self) -> None:
        config = {**SILENT, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
                  "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 100, "warmup_type": "linear"}}}
        self.assertAlmostEqual(ours(config=config)[1][0], 1e-2 * (STEPS - 2) / 100, places=9)

    def test_rates_are_told_before_the_first_batch(self) -> None:
        """Before the first batch, and after a load before it, get_lr() is what it is afterwards."""
        matching = {"name": "vectors", "matching": "*bias", "params": {"lr": 3e-2}}
        named = {"name": "group 1", "params": {"eps": EPS}}
        for groups, entries in ((None, []), (decayed, []), (None, [matching]), (decayed, [named])):
            config = {**SILENT, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "sherd": {"groups": entries},
                      "scheduler": {"type": "constant_with_warmup", "params": {"warmup_num_steps": 8}}}
            with self.subTest(groups=groups, entries=entries), tempfile.TemporaryDirectory() as folder:
                engine = self.configured(config, groups)
                first = engine.get_lr()
                train(engine, batches()[:1])
                self.assertEqual(first, engine.get_lr())
                train(engine, batches()[1:4])
                engine.save_checkpoint(folder)
                again = self.configured(config, groups)
                again.load_checkpoint(folder)
                self.assertEqual(again.get_lr(), engine.get_lr())
                self.assertGreater(again.get_lr()[-1], 0)
                for one in (engine, again):
                    one.destroy()

    def test_rates_of_a_list_are_not_told_before_the_first_batch(self) -> None:
        config = {**SILENT, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
                  "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": [2e-2, 4e-2]}}}
        engine = self.configured(config, decayed)
        self.assertEqual(engine.get_lr(), [1e-2, 3e-2])
        engine.destroy()

    def test_groups_show_the_rates_of_a_schedule_of_the_configuration(self) -> None:
        """They show the next update's. A rate that the script sets is that of one update, also of one after a load."""
        config = {**SILENT, "scheduler": {"type": "constant_with_warmup", "params": {"warmup_num_steps": 10}}}

        def engine_of() -> sherd.torch.Engine:
            model = model_of()
            matrices, rest = decayed(model)
            optimizers = [torch.optim.AdamW([matrices], lr=1e-2), torch.optim.SGD([rest], lr=3e-2)]
            return sherd.torch.initialize(model, config, optimizer=optimizers, example=batches()[0])

        def shown(engine: sherd.torch.Engine) -> list[float]:
            return [one.param_groups[0]["lr"] for one in engine.optimizer]

        def wanted(step: int) -> list[float]:
            return [engine.core.group_lr(number, step) for number in (1, 2)]

        with tempfile.TemporaryDirectory() as folder:
            engine = engine_of()
            for step in range(1, 5):
                self.assertEqual(shown(engine), wanted(step))
                self.assertLess(shown(engine)[0], 1e-2)
                if step == 3:
                    engine.optimizer[0].param_groups[0]["lr"] = 0.5
                train(engine, batches()[:1])
                self.assertEqual(engine.get_lr(), [0.5 if step == 3 else wanted(step)[0], wanted(step)[1]])
            engine.optimizer[1].param_groups[0]["lr"] = 0.25
            engine.save_checkpoint(folder)
            other = engine_of()
            other.load_checkpoint(folder)
            for one in (engine, other):
                self.assertEqual(shown(one), [wanted(5)[0], 0.25])
                train(one, batches()[1:2])
                self.assertEqual(shown(one), wanted(6))
            self.assertEqual(engine.fingerprint(), other.fingerprint())
            engine.load_checkpoint(folder)
            self.assertEqual((shown(engine), engine.get_lr()), ([wanted(5)[0], 0.25], [wanted(4)[0], 0.25]))
            for one in (engine, other):
                one.destroy()

    def configured(self, config, groups=None, schedule=None) -> sherd.torch.Engine:
        model = model_of()
        return sherd.torch.initialize(model, config, model_parameters=groups(model) if groups else None, lr_scheduler=schedule)

    def test_rates_of_groups_under_a_schedule_of_the_configuration(self) -> None:
        for params, wanted in (({"type": "constant_with_warmup", "params": {"warmup_num_steps": 2 * (STEPS - 1)}}, [5e-3, 15e-3]),
                               ({"type": "WarmupLR", "params": {"warmup_max_lr": 2e-2, "warmup_num_steps": 2}}, [2e-2, 2e-2])):
            config = {**SILENT, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "scheduler": params}
            with self.subTest(params["type"]):
                for rate, one in zip(ours(config=config, groups=decayed)[1], wanted, strict=True):
                    self.assertAlmostEqual(rate, one, places=12)


class Lion(torch.optim.Optimizer):
    """Lion as in Chen et al. 2023, algorithm 2."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                blend = m * group["betas"][0] + p.grad * (1 - group["betas"][0])
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * blend.sign())
                m.mul_(group["betas"][1]).add_(p.grad * (1 - group["betas"][1]))


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-2, weight_decay=0.1),
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, weight_decay=0.1),
    "SGD, dampening": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.8, dampening=0.5),
    "SGD, Nesterov": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, weight_decay=0.1),
    "Adagrad, decayed": lambda p: torch.optim.Adagrad(p, lr=1e-2, lr_decay=0.01, initial_accumulator_value=0.1),
    "Lion": lambda p: Lion(p, lr=1e-3, weight_decay=0.1),
}


class TestHundredSteps(unittest.TestCase):
    """Compares optimizers over a hundred steps. The loss is linear in the weights, so its gradients do not depend on them."""

    def inputs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        generator = torch.Generator().manual_seed(3)
        return [(torch.randn(4, 8, generator=generator), torch.randn(4, 8, generator=generator)) for _ in range(100)]

    def linear(self) -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(8, 8, bias=False))

    def test_each_optimizer_is_torchs(self) -> None:
        for name, make in OPTIMIZERS.items():
            with self.subTest(name):
                theirs, model = self.linear(), self.linear()
                optimizer = make(theirs.parameters())
                engine = sherd.torch.initialize(model, SILENT, optimizer=make(model.parameters()))
                for x, y in self.inputs():
                    optimizer.zero_grad()
                    (theirs(x) * y).mean().backward()
                    optimizer.step()
                    engine.backward((engine(x) * y).mean())
                    engine.step()
                ours_now = torch.frombuffer(engine.core.read(0), dtype=torch.float32).reshape(8, 8)
                torch.testing.assert_close(ours_now, theirs[0].weight.detach(), rtol=0, atol=1e-6)
                engine.destroy()

    def test_groups_have_momenta_of_their_own(self) -> None:
        def make(model):
            groups = [{**group, "momentum": momentum} for group, momentum in zip(decayed(model), (0.0, 0.9))]
            return torch.optim.SGD(groups, lr=1e-2)

        for one, other in zip(ours(make)[0], plain(make), strict=True):
            torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-6)

    def test_groups_over_a_configuration_with_momentum(self) -> None:
        config = {**SILENT, "optimizer": {"type": "SGD", "params": {"lr": 1e-2, "momentum": 0.9}}}
        for one, other in zip(ours(config=config, groups=decayed)[0],
                              plain(lambda m: torch.optim.SGD(decayed(m), lr=1e-2, momentum=0.9)), strict=True):
            torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-6)


# ----------------------------------------------------- Muon, and several --

HAS_MUON = hasattr(torch.optim, "Muon")
WITHOUT = "this torch has no Muon"


class ExactMuon(torch.optim.Muon if HAS_MUON else torch.optim.Optimizer):
    """torch.optim.Muon with its Newton-Schulz iteration in float64; torch computes it in bfloat16."""

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                blend = p.grad.lerp(buffer, group["momentum"]) if group["nesterov"] else buffer
                step = orthogonal(blend.double(), group["ns_steps"]) * self.factor(group["adjust_lr_fn"], *p.shape)
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * step)

    @staticmethod
    def factor(rule: str | None, rows: int, cols: int) -> float:
        return 0.2 * max(rows, cols) ** 0.5 if rule == "match_rms_adamw" else max(1, rows / cols) ** 0.5


def orthogonal(x: torch.Tensor, steps: int) -> torch.Tensor:
    """Brings the singular values of a matrix near 1 by Newton-Schulz iterations (Jordan et al. 2024)."""
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    return x


def matrices_of() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16, bias=False), nn.GELU(), nn.Linear(16, 8, bias=False))


def both(model: nn.Module, kind=None, **options) -> list[torch.optim.Optimizer]:
    """Returns Muon for the matrices, and AdamW for the rest in two groups."""
    rest = [p for p in model.parameters() if p.ndim <= 1]
    return [(kind or torch.optim.Muon)([p for p in model.parameters() if p.ndim > 1], lr=1e-2, **options),
            torch.optim.AdamW([{"params": rest[:1], "lr": 3e-2}, {"params": rest[1:], "betas": (0.8, 0.9)}], lr=2e-2, eps=EPS)]


def exact(model: nn.Module, **options) -> list[torch.optim.Optimizer]:
    """Returns the same with ExactMuon, for plain torch."""
    return both(model, ExactMuon, **options)


def halving(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """Returns a scheduler; it multiplies the rates of AdamW by 0.5 in each step, and those of another optimizer by 0.8."""
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5 if isinstance(optimizer, torch.optim.AdamW) else 0.8)


@unittest.skipUnless(HAS_MUON, WITHOUT)
class TestMuon(unittest.TestCase):
    def assert_close(self, left: list[torch.Tensor], right: list[torch.Tensor]) -> None:
        for one, other in zip(left, right, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)  # the iteration amplifies rounding up to 500 times

    def test_matrices_are_updated_as_by_torch(self) -> None:
        for name, options in (("by default", {}), ("of AdamW's size", {"adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.3}),
                              ("without Nesterov", {"nesterov": False, "momentum": 0.8, "ns_steps": 3})):
            with self.subTest(name):
                now, rates = ours(lambda m, o=options: torch.optim.Muon(m.parameters(), lr=1e-2, **o), model_of=matrices_of)
                self.assert_close(now, plain(lambda m, o=options: ExactMuon(m.parameters(), lr=1e-2, **o), model_of=matrices_of))
                self.assertEqual(rates, [1e-2])

    def test_torchs_own_differs_by_its_bfloat16(self) -> None:
        def make(model):
            return torch.optim.Muon(model.parameters(), lr=1e-2)

        for one, other, begun in zip(ours(make, model_of=matrices_of)[0], plain(make, model_of=matrices_of), matrices_of().parameters(),
                                     strict=True):
            self.assertLess(float((one - other).norm() / (other - begun.detach()).norm()), 0.05)

    def test_several_optimizers_with_their_schedules(self) -> None:
        wanted = plain(exact, halving)
        for name, make, schedule in (("a list", both, lambda given: [halving(one) for one in given]),
                                     ("a function", lambda model: tuple(both(model)), lambda given: halving)):
            with self.subTest(name):
                values, rates = ours(make, schedule)
                self.assert_close(values, wanted)
                for rate, want in zip(rates, (1e-2 * 0.8 ** STEPS, 3e-2 * 0.5 ** STEPS, 2e-2 * 0.5 ** STEPS), strict=True):
                    self.assertAlmostEqual(rate, want, places=12)
        self.assert_close(ours(both)[0], plain(exact))

    def test_the_order_of_optimizers_is_the_persons(self) -> None:
        self.assert_close(ours(lambda m: both(m)[::-1])[0], plain(exact))
        self.assert_close(ours(lambda m: both(m, nesterov=False)[::-1])[0], plain(lambda m: exact(m, nesterov=False)))

    def test_sgd_with_a_nesterov_of_its_own(self) -> None:
        def together(model, kind, **options):
            return [kind([p for p in model.parameters() if p.ndim > 1], lr=1e-2),
                    torch.optim.SGD([p for p in model.parameters() if p.ndim <= 1], lr=1e-2, **options)]

        for options in ({}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}):
            with self.subTest(options):
                for turn in (1, -1):
                    self.assert_close(ours(lambda m, o=options, t=turn: together(m, torch.optim.Muon, **o)[::t])[0],
                                      plain(lambda m, o=options: together(m, ExactMuon, **o)))

    def test_one_of_several_keeps_its_rates(self) -> None:
        rates = ours(both, lambda given: [None, halving(given[1])])[1]
        self.assertEqual([round(rate, 9) for rate in rates], [1e-2, round(3e-2 / 64, 9), round(2e-2 / 64, 9)])

    def test_what_the_engine_gives_back(self) -> None:
        model = model_of()
        optimizers = both(model)
        engine = sherd.torch.initialize(model, SILENT, optimizer=optimizers, lr_scheduler=halving)
        self.assertEqual([type(one).__name__ for one in engine.optimizer], ["Muon", "AdamW"])
        self.assertEqual([one.optimizer for one in engine.lr_scheduler], optimizers)
        optimizers[1].param_groups[1]["eps"] = 0.5
        engine.backward(engine(batches()[0]).sum())
        with self.assertRaisesRegex(StateError, r"eps of parameter group 1 of optimizer 1 \(AdamW\)"):
            engine.step()
        engine.destroy()

    def test_a_checkpoint_goes_on(self) -> None:
        wanted, rates = ours(both, lambda given: halving)
        with tempfile.TemporaryDirectory() as folder:
            for part in (batches()[:4], batches()[4:]):
                model = model_of()
                engine = sherd.torch.initialize(model, SILENT, optimizer=both(model), lr_scheduler=halving, example=part[0])
                engine.load_checkpoint(folder)
                train(engine, part)
                engine.save_checkpoint(folder)
                values, now = values_of(engine), engine.get_lr()
                engine.destroy()
            self.assertEqual(now, rates)
            for one, other in zip(values, wanted, strict=True):
                self.assertTrue(torch.equal(one, other))
            model = model_of()
            engine = sherd.torch.initialize(model, {**SILENT, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}},
                                            lr_scheduler=halving, example=batches()[0])
            with self.assertRaises(SherdError):
                engine.load_checkpoint(folder)
            engine.destroy()

    def test_two_ranks(self) -> None:
        ranks.run(2)


def rank_main() -> None:
    """What each of two ranks does, with half of each batch."""
    wanted = plain(exact, halving)
    for stage in (1, 3):
        model = model_of()
        engine = sherd.torch.initialize(model, {**SILENT, "zero_optimization": {"stage": stage}}, optimizer=both(model),
                                        lr_scheduler=halving)
        train(engine, [batch.chunk(2)[engine.rank] for batch in batches()])
        for one, other in zip(values_of(engine), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
        engine.destroy()
    TestResumedGroups().test_optimizers_in_another_order()


class TestSeveral(unittest.TestCase):
    def test_one_of_every_type(self) -> None:
        def make(model):
            left = list(model.parameters())
            return [torch.optim.AdamW(left[:1], lr=1e-2, eps=EPS), torch.optim.Adam(left[1:2], lr=1e-2, weight_decay=0.3, eps=EPS),
                    torch.optim.Adagrad(left[2:3], lr=1e-2, initial_accumulator_value=0.1), Lion(left[3:4], lr=1e-3),
                    torch.optim.SGD(left[4:], lr=1e-2, momentum=0.8, dampening=0.5, weight_decay=0.1)]

        wanted = plain(make)
        for turn in (lambda made: made, lambda made: made[::-1], lambda made: made[1:] + made[:1]):
            values, rates = ours(lambda model, turn=turn: turn(make(model)))
            self.assertEqual(sorted(rates), [1e-3, 1e-2, 1e-2, 1e-2, 1e-2])
            for one, other in zip(values, wanted, strict=True):
                torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-6)


class TestResumedGroups(unittest.TestCase):
    """Tests that a run goes on with its groups in another order as if it had not ended, or is refused by name."""

    SCHEDULES = {
        "exponential": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.7),
        "by group": lambda o: torch.optim.lr_scheduler.LambdaLR(o, [Power(0.5 if g["eps"] == EPS else 0.9) for g in o.param_groups]),
        "cyclic": lambda o: torch.optim.lr_scheduler.CyclicLR(
            o, [g["lr"] / 9 for g in o.param_groups], [g["lr"] for g in o.param_groups], 2, 3),
        "sequence": lambda o: torch.optim.lr_scheduler.SequentialLR(o, [
            torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=3), torch.optim.lr_scheduler.CosineAnnealingLR(o, 8)], [2]),
        "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, [g["lr"] for g in o.param_groups], 20),
        "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2)}

    def engine_of(self, turn: int, schedule=None, move: bool = False, **options) -> sherd.torch.Engine:
        """Makes an engine with three groups of AdamW, in the order 1 or -1, two of which have one eps."""
        model = model_of()
        matrices, rest = decayed(model)
        groups = [{**matrices, "eps": EPS}, {**rest, "params": rest["params"][:2]}, {**rest, "params": rest["params"][2:], "lr": 5e-2}]
        if move:
            groups[1]["params"].append(groups[2]["params"].pop())
        optimizer = torch.optim.AdamW(groups[::turn], lr=1e-2)
        return sherd.torch.initialize(model, SILENT, optimizer=optimizer, lr_scheduler=schedule and schedule(optimizer), **options)

    def assert_goes_on(self, make, before=lambda engine: None) -> None:
        """Trains once without an end, and once with a resume in another order in the middle."""
        marks = []
        for ends in (False, True):
            engine = make(1)
            train(engine, batches()[:3])
            before(engine)
            with tempfile.TemporaryDirectory() as own:
                folder = engine.world.share(own.encode()).decode()
                if ends:
                    engine.save_checkpoint(folder)
                    engine.destroy()
                    engine = make(-1)
                    engine.load_checkpoint(folder)
                train(engine, batches()[3:])
                engine.world.barrier()
            marks.append((engine.fingerprint(), engine.get_lr()[::-1 if ends else 1]))
            engine.destroy()
        self.assertEqual(*marks)

    def test_schedules_of_torch_go_on(self) -> None:
        for name, schedule in self.SCHEDULES.items():
            with self.subTest(name):
                self.assert_goes_on(lambda turn: self.engine_of(turn, schedule))

    def test_schedulers_around_one_of_torch_go_on(self) -> None:
        class Around(torch.optim.lr_scheduler.ExponentialLR):
            def state_dict(self):
                return {"inner": super().state_dict()}

            def load_state_dict(self, state):
                super().load_state_dict(state["inner"])

        self.assert_goes_on(lambda turn: self.engine_of(turn, lambda o: Around(o, 0.7)))

    def test_other_values_by_group_are_refused(self) -> None:
        """A tuple, a list in a dict or a tensor of a scheduler of the script's own may have an entry for each group."""
        for value in ((0.5, 0.7, 0.9), {"factors": [0.5, 0.7, 0.9]}, torch.tensor([0.5, 0.7, 0.9])):
            class Own(torch.optim.lr_scheduler.ExponentialLR):
                def __init__(self, optimizer):
                    self.factors = value
                    super().__init__(optimizer, 0.7)

            with self.assertRaisesRegex(sherd.InvalidError, "list factors with as many entries as parameter groups.*another order"):
                self.assert_goes_on(lambda turn: self.engine_of(turn, Own))

    def test_rates_that_the_script_has_set_stay_with_their_groups(self) -> None:
        def set_one(engine: sherd.torch.Engine) -> None:
            engine.optimizer.param_groups[0]["lr"] = 1e-4

        self.assert_goes_on(self.engine_of, set_one)

    def test_optimizers_in_another_order(self) -> None:
        def make(turn: int) -> sherd.torch.Engine:
            model = model_of()
            first, *rest = model.parameters()
            optimizers = [torch.optim.SGD([first], lr=1e-2), torch.optim.AdamW([{"params": rest[:2]}, {"params": rest[2:], "lr": 3e-2}][::turn])]
            schedules = [torch.optim.lr_scheduler.ExponentialLR(optimizers[0], 0.5), torch.optim.lr_scheduler.LinearLR(optimizers[1])]
            return sherd.torch.initialize(model, SILENT, optimizer=optimizers[::turn], lr_scheduler=schedules[::turn])

        self.assert_goes_on(make)

    def test_groups_of_the_configuration(self) -> None:
        def make(turn: int) -> sherd.torch.Engine:
            model = model_of()
            config = {**SILENT, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "eps": EPS}}}
            return sherd.torch.initialize(model, config, model_parameters=decayed(model)[::turn], lr_scheduler=self.SCHEDULES["exponential"])

        self.assert_goes_on(make)

    def test_other_groups_are_refused_by_name(self) -> None:
        """Before anything is loaded. Where a list has one value for all groups, nothing is to be recognised."""
        class Own(torch.optim.lr_scheduler.LRScheduler):
            def __init__(self, optimizer: torch.optim.Optimizer) -> None:
                self.peaks = [group["lr"] for group in optimizer.param_groups]
                super().__init__(optimizer)

            def get_lr(self) -> list[float]:
                return self.peaks

        exponential = self.SCHEDULES["exponential"]
        with tempfile.TemporaryDirectory() as folder:
            for name, schedule in (("exponential", exponential), ("own", Own)):
                engine = self.engine_of(1, schedule)
                train(engine, batches()[:1])
                engine.save_checkpoint(folder, tag=name)
                engine.destroy()
            for tag, turn, schedule, move, words in (
                    ("exponential", 1, exponential, True, "list base_lrs .*the groups of now are not recognised: the group of 0.bias, 2.bias, "
                                                          "3.bias is several groups there"),
                    ("own", -1, Own, False, "list peaks with as many entries as parameter groups, and the groups of now are in another order")):
                engine = self.engine_of(turn, schedule, move, example=batches()[0])
                mark = engine.fingerprint()
                with self.assertRaisesRegex(InvalidError, words):
                    engine.load_checkpoint(folder, tag=tag)
                self.assertEqual((engine.fingerprint(), engine.global_steps), (mark, 0))
                engine.load_checkpoint(folder, tag=tag, load_module_only=True)
                engine.destroy()
            engine = self.engine_of(1, Own)
            engine.load_checkpoint(folder, tag="own")
            self.assertEqual(engine.lr_scheduler.peaks, [1e-2, 3e-2, 5e-2])
            engine.destroy()

    def test_groups_that_were_split_or_joined(self) -> None:
        for before, now in (([["a"], ["b"]], [["a", "b"]]), ([["a", "b"]], [["a"], ["b"]]), ([["a"]], [["a"], ["new"]]), ([["a"]], [["b"]])):
            with self.assertRaises(LookupError):
                regroup.order(before, now)
        self.assertEqual(regroup.order([["a", "gone"], ["b"]], [["b", "new"], ["a"]]), [1, 0])
        self.assertEqual(regroup.order([[], [], ["a"]], [[], [], ["a"]]), [0, 1, 2])
        state = {"base_lrs": [1e-2, 1e-2], "_milestones": [3], "last_epoch": 4}
        self.assertEqual(regroup.schedule(state, [["a"], ["b", "c"]], [["a", "b"], ["c"]]), state)
        with self.assertRaisesRegex(InvalidError, "base_lrs"):
            regroup.schedule(state, [["a"], ["b", "c"]], [["a", "b", "c"]])

    def test_a_checkpoint_of_an_earlier_version_goes_by_the_order(self) -> None:
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(optim.Rates, "named", lambda *_: None):
            engine = self.engine_of(1, self.SCHEDULES["exponential"])
            train(engine, batches()[:1])
            engine.save_checkpoint(folder)
            wanted = engine.get_lr()
            engine.destroy()
            with mock.patch.object(optim.Rates, "named", NAMED):
                engine = self.engine_of(1, self.SCHEDULES["exponential"])
                engine.load_checkpoint(folder)
                self.assertEqual(engine.get_lr(), wanted)
                engine.destroy()


NAMED = optim.Rates.named


class Power:
    """A factor for LambdaLR whose state a scheduler's state has, as an object's."""

    def __init__(self, base: float) -> None:
        self.base = base

    def __call__(self, step: int) -> float:
        return self.base ** step


class TestConfigured(unittest.TestCase):
    """Tests Muon and groups that the configuration alone describes."""

    MUON = {"type": "Muon", "params": {"lr": 1e-2, "weight_decay": 0.1}}
    ADAMW = {"type": "AdamW", "params": {"lr": 2e-2, "betas": [0.9, 0.999], "eps": EPS, "weight_decay": 0.01}}

    def assert_as_plain(self, values: list[torch.Tensor], schedule=None) -> None:
        def make(model):
            if not HAS_MUON:
                self.skipTest(WITHOUT)
            return [ExactMuon([p for p in model.parameters() if p.ndim > 1], lr=1e-2),
                    torch.optim.AdamW([p for p in model.parameters() if p.ndim <= 1], lr=2e-2, eps=EPS)]

        for one, other in zip(values, plain(make, schedule), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)

    def config(self, *groups: dict[str, object]) -> dict[str, object]:
        return {**SILENT, "optimizer": self.MUON, "sherd": {"groups": list(groups)}}

    def test_groups_by_names_of_parameters(self) -> None:
        config = self.config({"name": "vectors", "matching": ["*bias", "3.*"], **self.ADAMW})
        values, rates = ours(config=config)
        self.assert_as_plain(values)
        self.assertEqual(rates, [1e-2, 2e-2])

    def test_their_rates_follow_a_scheduler_of_torch(self) -> None:
        def schedule(optimizer):
            return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

        config = self.config({"name": "biases", "matching": "*bias", **self.ADAMW}, {"name": "norm", "matching": "3.*", **self.ADAMW})
        values, rates = ours(config=config, schedule=schedule)
        self.assert_as_plain(values, schedule)
        self.assertEqual(rates, [1e-2 / 64, 2e-2 / 64, 2e-2 / 64])

    def test_a_group_of_that_name(self) -> None:
        config = self.config({"name": "vectors", **self.ADAMW})
        self.assert_as_plain(ours(config=config, groups=lambda m: [
            {"params": [p for p in m.parameters() if p.ndim > 1]},
            {"params": [p for p in m.parameters() if p.ndim <= 1], "name": "vectors"}])[0])

    def test_a_vector_is_refused_by_name(self) -> None:
        with self.assertRaisesRegex(SherdError, "0.bias"):
            ours(config=self.config())


class TestRefused(unittest.TestCase):
    def refused(self, error: type, words: str, make=None, config=None, model_of=model_of, **options) -> None:
        model = model_of()
        with self.assertRaisesRegex(error, words):
            sherd.torch.initialize(model, config or SILENT, optimizer=make(model) if make else None, **options).destroy()

    def test_a_rate_that_nobody_gives(self) -> None:
        silent = {**SILENT, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}
        self.refused(sherd.InvalidError, 'lr is "auto".*optimizer=torch.optim', config=silent)

    def test_other_optimizers(self) -> None:
        self.refused(NotSupportedError, "no optimizer RMSprop", lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-2))
        self.refused(NotSupportedError, "maximize", lambda m: torch.optim.SGD(m.parameters(), lr=1e-2, maximize=True))
        self.refused(NotSupportedError, "several values of dampening", lambda m: torch.optim.SGD(
            [{**group, "dampening": i / 2} for i, group in enumerate(decayed(m))], lr=1e-2, momentum=0.9))
        self.refused(NotSupportedError, "amsgrad", lambda m: torch.optim.AdamW(m.parameters(), amsgrad=True))
        self.refused(TypeError, "torch.optim.AdamW", lambda m: "AdamW")

    @unittest.skipUnless(HAS_MUON, WITHOUT)
    def test_other_muons(self) -> None:
        for words, options in (("ns_coefficients", {"ns_coefficients": (2.0, -1.5, 0.5)}), ("eps", {"eps": 1e-5}),
                               ("adjust_lr_fn='spectral_unclamped'.*match_rms_adamw", {"adjust_lr_fn": "spectral_unclamped"})):
            try:
                torch.optim.Muon(matrices_of().parameters(), **options)
            except ValueError:
                continue  # this version of torch does not have the option either
            self.refused(NotSupportedError, words, lambda m, o=options: both(m, **o))
        self.refused(NotSupportedError, "parameter groups of Muon have several values of ns_steps", lambda m: torch.optim.Muon(
            [{"params": [p], "ns_steps": 3 + i} for i, p in enumerate(m.parameters())]), model_of=matrices_of)
        self.refused(NotSupportedError, "Muon has nesterov=False and SGD has nesterov=True: sherd has one nesterov", lambda m: [
            torch.optim.Muon([p for p in m.parameters() if p.ndim > 1], nesterov=False),
            torch.optim.SGD([p for p in m.parameters() if p.ndim <= 1], momentum=0.9, nesterov=True)])
        config = {**SILENT, "optimizer": {"type": "Muon", "params": {"nesterov": False}}}
        self.refused(InvalidError, "nesterov", both, config)

    @unittest.skipUnless(HAS_MUON, WITHOUT)
    def test_several_that_are_not_one_division(self) -> None:
        def twice(model):
            return [*both(model), torch.optim.SGD([model[0].bias])]

        self.refused(ValueError, r"0.bias is in the parameter groups 0 of optimizer 1 \(AdamW\) and 0 of optimizer 2 \(SGD\)", twice)
        self.refused(ValueError, "0.bias requires a gradient and is in no parameter group", lambda m: both(m)[:1])
        self.refused(NotSupportedError, "no optimizer RMSprop",
                     lambda m: [both(m)[0], torch.optim.RMSprop([p for p in m.parameters() if p.ndim <= 1])])
        self.refused(TypeError, "or a list of them", lambda m: [both(m)[0], "AdamW"])
        config = {**SILENT, "sherd": {"groups": [{"name": "vectors", "type": "AdamW", "matching": "*bias"}]}}
        self.refused(ValueError, "sherd.groups with patterns", both, config)

    @unittest.skipUnless(HAS_MUON, WITHOUT)
    def test_schedules_that_are_not_one_for_each(self) -> None:
        for words, schedule in (("a list with one for each", lambda given: halving(given[0])),
                                ("a list of 1, and there are 2 optimizers", lambda given: [halving(given[0])]),
                                ("another optimizer", lambda given: [halving(one) for one in given[::-1]])):
            model = model_of()
            optimizers = both(model)
            with self.assertRaisesRegex(ValueError, words):
                sherd.torch.initialize(model, SILENT, optimizer=optimizers, lr_scheduler=schedule(optimizers))

    def test_a_contradiction_names_both(self) -> None:
        def make(model):
            return torch.optim.AdamW(model.parameters(), lr=1e-2)

        def configured(**optimizer) -> dict[str, object]:
            return {**SILENT, "optimizer": optimizer}

        lr = "^optimizer.params.lr is 0.001 in the configuration{}, and 0.01 in the torch optimizer .AdamW. that initialize.. was given: take"
        self.refused(InvalidError, lr.format(""), make, configured(type="AdamW", params={"lr": 1e-3}))
        self.refused(InvalidError, '^optimizer.type is "SGD" in the configuration, and "AdamW" in the torch optimizer', make,
                     configured(type="SGD"))
        self.refused(InvalidError, "^optimizer.params.adam_w_mode is false in the configuration, and true in the torch optimizer",
                     lambda m: torch.optim.Adam(m.parameters(), decoupled_weight_decay=True),
                     configured(type="Adam", params={"adam_w_mode": False}))
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(configured(type="AdamW", params={"lr": 1e-3}), file)
            file.flush()
            self.refused(InvalidError, lr.format(rf" \({file.name}:1:\d+\)"), make, file.name)

    def test_a_key_that_nobody_knows_is_told(self) -> None:
        config = {**SILENT, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "zero_optimisation": {"stage": 3}}
        with self.assertWarnsRegex(UserWarning, "zero_optimisation"):
            sherd.torch.initialize(model_of(), config).destroy()

    def test_two_schedules(self) -> None:
        config = {**SILENT, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "scheduler": {"type": "WarmupLR"}}
        self.refused(ValueError, "leave one out", None, config,
                     lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2))

    def test_a_schedule_that_the_engine_cannot_step(self) -> None:
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
        self.refused(TypeError, r"ReduceLROnPlateau.step\(\) needs metrics.*step this scheduler yourself",
                     lambda m: torch.optim.AdamW(m.parameters()), lr_scheduler=plateau)
        model = model_of()
        optimizer = torch.optim.AdamW(model.parameters())
        with self.assertRaisesRegex(TypeError, "needs metrics"):
            sherd.torch.initialize(model, SILENT, optimizer=optimizer, lr_scheduler=plateau(optimizer))

    def test_groups_that_leave_some_out(self) -> None:
        self.refused(ValueError, "0.bias requires a gradient and is in no parameter group",
                     lambda m: torch.optim.AdamW([p for p in m.parameters() if p.ndim > 1]))
        self.refused(ValueError, "group 1 has a tensor that is no parameter",
                     lambda m: torch.optim.AdamW([{"params": m.parameters()}, {"params": nn.Parameter(torch.ones(1))}]))

    def test_state_that_would_be_lost(self) -> None:
        def make(model):
            optimizer = torch.optim.AdamW(model.parameters())
            model(batches()[0]).sum().backward()
            optimizer.step()
            return optimizer

        self.refused(StateError, "has made steps", make)

    def test_calls_that_belong_to_the_engine(self) -> None:
        model = model_of()
        optimizer = torch.optim.AdamW(model.parameters())
        engine = sherd.torch.initialize(model, SILENT, optimizer=optimizer)
        with self.assertRaisesRegex(StateError, "engine.step"):
            optimizer.step()
        self.refused_calls(optimizer)
        optimizer.zero_grad()
        for group in optimizer.param_groups:
            group["betas"] = (0.5, 0.5)
        engine.backward(engine(batches()[0]).sum())
        with self.assertRaisesRegex(StateError, "betas of parameter group 0"):
            engine.step()
        engine.destroy()

    def refused_calls(self, optimizer: torch.optim.Optimizer) -> None:
        """Asserts that calls are refused that would have no effect on the engine."""
        with self.assertRaisesRegex(StateError, "save_checkpoint"):
            copy.copy(optimizer.state_dict())
        with self.assertRaisesRegex(StateError, "load_checkpoint"):
            optimizer.load_state_dict({"state": {}, "param_groups": []})
        with self.assertRaisesRegex(StateError, "before sherd.torch.initialize"):
            optimizer.add_param_group({"params": nn.Parameter(torch.ones(1))})

    def test_a_scaler(self) -> None:
        config = {**SILENT, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}}
        engine = sherd.torch.initialize(model_of(), config)
        with self.assertRaisesRegex(NotSupportedError, "GradScaler"):
            scaler = torch.amp.GradScaler("cpu")
            scaler.scale(torch.ones(()))
            scaler.step(engine.optimizer)
        self.refused_calls(engine.optimizer)
        engine.destroy()


if __name__ == "__main__":
    if ranks.rank() is not None:
        rank_main()
    else:
        ranks.ready()
        unittest.main()

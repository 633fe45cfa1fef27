"""Optimizers, groups and schedulers of torch: read by initialize(), followed in their rates, and refused by name."""
from __future__ import annotations

import copy
import sys
import tempfile
import unittest

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import sherd.torch
from sherd.errors import InvalidError, NotSupportedError, StateError
from torch import nn

SILENT = {"train_batch_size": 4, "gradient_clipping": 0}
STEPS = 6
EPS = 1e-3  # so large that gradients near zero do not turn their last bit into a step


def model_of() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.LayerNorm(8))


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(4, 8, generator=generator) for _ in range(STEPS)]


def decayed(model: nn.Module) -> list[dict[str, object]]:
    matrices = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0, "lr": 3e-2}]


def plain(make, schedule=None) -> list[torch.Tensor]:
    """The weights that torch alone makes."""
    model = model_of()
    optimizer = make(model)
    scheduler = schedule(optimizer) if schedule else None
    for batch in batches():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return [p.detach().clone() for p in model.parameters()]


def ours(make=None, schedule=None, config=None, groups=None) -> tuple[list[torch.Tensor], list[float]]:
    model = model_of()
    optimizer = make(model) if make else None
    engine = sherd.torch.initialize(model, config or SILENT, optimizer=optimizer,
                                    lr_scheduler=schedule(optimizer) if schedule and optimizer else schedule,
                                    model_parameters=groups(model) if groups else None)
    try:
        for batch in batches():
            engine.backward(engine(batch).square().mean())
            engine.step()
        values = [torch.frombuffer(engine.core.read(p.number), dtype=torch.float32).reshape(p.tensor.shape).clone()
                  for p in engine.division.params]
        return values, engine.get_lr()
    finally:
        engine.destroy()


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

    def test_a_loaded_schedule_goes_on_from_its_rates(self) -> None:
        def schedule(optimizer):  # multiplies the rate that stands in the group
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


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, algorithm 2."""

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
    """The gradients are those of a product, so they are the same whatever the weights have become."""

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


class TestRefused(unittest.TestCase):
    def refused(self, error: type, words: str, make=None, config=None, **options) -> None:
        model = model_of()
        with self.assertRaisesRegex(error, words):
            sherd.torch.initialize(model, config or SILENT, optimizer=make(model) if make else None, **options).destroy()

    def test_other_optimizers(self) -> None:
        self.refused(NotSupportedError, "no optimizer RMSprop", lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-2))
        self.refused(NotSupportedError, "maximize", lambda m: torch.optim.SGD(m.parameters(), lr=1e-2, maximize=True))
        self.refused(NotSupportedError, "several values of dampening", lambda m: torch.optim.SGD(
            [{**group, "dampening": i / 2} for i, group in enumerate(decayed(m))], lr=1e-2, momentum=0.9))
        self.refused(NotSupportedError, "amsgrad", lambda m: torch.optim.AdamW(m.parameters(), amsgrad=True))
        self.refused(TypeError, "torch.optim.AdamW", lambda m: "AdamW")

    def test_a_contradiction_names_both(self) -> None:
        config = {**SILENT, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
        self.refused(InvalidError, "0.001 at .* the program gives 0.01",
                     lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2), config)

    def test_a_key_that_nobody_knows_is_told(self) -> None:
        config = {**SILENT, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "zero_optimisation": {"stage": 3}}
        with self.assertWarnsRegex(UserWarning, "zero_optimisation"):
            sherd.torch.initialize(model_of(), config).destroy()

    def test_two_schedules(self) -> None:
        config = {**SILENT, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "scheduler": {"type": "WarmupLR"}}
        self.refused(ValueError, "leave one out", None, config,
                     lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2))

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
        optimizer.zero_grad()
        for group in optimizer.param_groups:
            group["betas"] = (0.5, 0.5)
        engine.backward(engine(batches()[0]).sum())
        with self.assertRaisesRegex(StateError, "betas of parameter group 0"):
            engine.step()
        engine.destroy()

    def test_a_scaler(self) -> None:
        config = {**SILENT, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}}
        engine = sherd.torch.initialize(model_of(), config)
        with self.assertRaisesRegex(NotSupportedError, "GradScaler"):
            scaler = torch.amp.GradScaler("cpu")
            scaler.scale(torch.ones(()))
            scaler.step(engine.optimizer)
        with self.assertRaisesRegex(StateError, "save_checkpoint"):
            copy.copy(engine.optimizer.state_dict())
        engine.destroy()


if __name__ == "__main__":
    unittest.main()

"""Tests that compare() finds no difference where there is none, and names the module, gradient or weight where one is planted.

Each planted fault is one that a real model can have: it behaves otherwise in the second run of the same forward, on one rank, or in
the engine."""
from __future__ import annotations

import os
import sys
import unittest
from typing import Any

import ranks

try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError as error:
    ranks.skip(f"torch is not here: {error}")

import sherd
import sherd.torch
from torch_cases import Case, all_cases
from torch_compare import model_make

WIDTH, VOCAB = 8, 16
ADAM = {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}}


def config(stage: int = 3, **more: Any) -> dict[str, Any]:
    return {"train_micro_batch_size_per_gpu": 1, "optimizer": ADAM,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, **more}


class Block(nn.Module):
    def __init__(self, probability: float = 0.1) -> None:
        super().__init__()
        self.up, self.act, self.down, self.drop = nn.Linear(WIDTH, 12), nn.GELU(), nn.Linear(12, WIDTH), nn.Dropout(probability)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(self.act(self.up(x))))


class Model(nn.Module):
    """Three blocks between an embedding and a head that are tied, with dropout and a BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed, self.blocks = nn.Embedding(VOCAB, WIDTH), nn.ModuleList(Block() for _ in range(3))
        self.norm, self.head = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x.flatten(0, 1)).view_as(x))


def planted(module: nn.Module, number: int = 1, where: str = "act") -> Model:
    """Returns a model with another module in one of its blocks."""
    model = Model()
    setattr(model.blocks[number], where, module)
    return model


def tokens(count: int = 1, rank: int = 0) -> Any:
    made = [torch.randint(VOCAB, (3, 5), generator=torch.Generator().manual_seed(10 * rank + one)) for one in range(count)]
    return made[0] if count == 1 else made


def loss_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten())


def compared(model: nn.Module, batch: Any = None, *args: Any, **options: Any) -> Any:
    return sherd.torch.compare(model, tokens() if batch is None else batch, *(args or (config(),)), **{"loss": loss_of, **options})


# ------------------------------------------------------------ planted faults --

class Counted(nn.Module):
    """Draws by a counter that all copies of it share, as a class attribute is."""

    count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if type(x) is torch.Tensor:
            Counted.count += 1
        return x * (1 + 0.01 * (Counted.count % 2))


class Typed(nn.Module):
    """Returns fp64 in every other forward."""

    turn = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Typed.turn += type(x) is torch.Tensor
        return x.double() if Typed.turn % 2 else x


class Floats(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float()


class Twisted(torch.autograd.Function):
    """A backward that is another one in every other call."""

    turn = 0

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(_ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        Twisted.turn += type(grad) is torch.Tensor
        return grad * (1 + 0.5 * (Twisted.turn % 2))


class Backward(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Twisted.apply(x)


class Skipped(nn.Module):
    """Calls its module in every other forward."""

    turn = 0

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Skipped.turn += type(x) is torch.Tensor
        return self.inner(x) if Skipped.turn % 2 else torch.tanh(x)


class Counts(nn.Module):
    """Counts its forwards in a buffer, by a counter of the class."""

    turn = 0

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if type(x) is torch.Tensor:
            Counts.turn += 1
            self.seen[1] = Counts.turn
        return torch.tanh(x)


class Reader(nn.Module):
    """Reads a parameter of another block, where the traced forward did not."""

    other: Any = ()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) if type(x) is not torch.Tensor else torch.tanh(x) * self.other[0].weight.mean()


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float("nan")


class OneRankTest(unittest.TestCase):
    """What is found on one rank."""

    def check(self, result: Any, where: str, name: str, *words: str) -> Any:
        first = result.first
        self.assertIsNotNone(first, result)
        self.assertEqual((first.where, first.name), (where, name), result)
        for word in words:
            self.assertIn(word, str(result))
        return first

    def check_equal(self, result: Any) -> None:
        self.assertTrue(result.is_equal, result)
        self.assertIn("do the same", result.verdict)

    def test_model_without_a_fault_is_the_same(self) -> None:
        for stage, more in ((0, {}), (3, {"bf16": {"enabled": True}}), (2, {"fp16": {"enabled": True, "initial_scale_power": 8}}),
                            (3, {"gradient_accumulation_steps": 2}), (3, {"gradient_clipping": 0.1})):
            with self.subTest(stage=stage, more=more):
                result = compared(Model(), tokens(3), config(stage, **more), steps=3)
                self.check_equal(result)
                self.assertEqual(len(result.losses), 3 * more.get("gradient_accumulation_steps", 1))
        self.assertIn("clipped on both sides", str(result))

    def test_cases_of_modules_are_the_same(self) -> None:
        """No module of the other tests is called different: modules that hand tensors through, checkpointing, tied and frozen weights."""
        cases = {name: case for name, case in all_cases().items() if type(case).window is Case.window}
        self.assertGreater(len(cases), 20)
        for name, case in cases.items():
            with self.subTest(case=name):
                batches = [case.feed(torch.Generator().manual_seed(one)) for one in range(2)]
                no_decay = {**config(), "optimizer": {"type": "Adam", "params": {"lr": 1e-2}}}
                result = sherd.torch.compare(model_make(case), batches, no_decay, lambda model, x: model(x).square().mean(),
                                             backward_uses=case.uses)
                self.check_equal(result)

    def test_random_numbers_by_a_counter_are_named(self) -> None:
        first = self.check(compared(planted(Counted())), "forward", "blocks.1.act", "Counted", "random numbers")
        self.assertAlmostEqual(first.relative, 0.01, places=3)
        self.assertAlmostEqual(abs(first.got / first.expected), 1.01, delta=0.011)
        self.assertEqual((first.step, first.call, len(first.index)), (1, 1, 3))

    def test_wrong_type_is_named(self) -> None:
        self.check(compared(planted(nn.Sequential(Typed(), Floats()))), "forward", "blocks.1.act.0", "its type is float64 in sherd")

    def test_backward_of_a_module_is_named_by_the_output_below_it(self) -> None:
        self.check(compared(planted(Backward(), number=2)), "gradient of the output", "blocks.2.up", "Linear", "backward of that")

    def test_module_that_one_side_alone_calls_is_named(self) -> None:
        self.check(compared(planted(Skipped())), "forward", "blocks.1.act.inner", "not in plain torch, where the module is not called")

    def test_loss_that_mixes_batches_is_told_from_the_model(self) -> None:
        before: list[torch.Tensor] = []

        def mixed(model: Any, ids: torch.Tensor) -> torch.Tensor:
            loss = loss_of(model, ids)
            before.append(loss.detach())
            return loss + before[-2] if len(before) > 1 else loss

        result = sherd.torch.compare(Model(), tokens(), config(), mixed)
        self.check(result, "loss", "", "look at the loss function")
        self.assertNotEqual(*result.losses[0])

    def test_buffer_is_named(self) -> None:
        first = self.check(compared(planted(Counts())), "buffer", "blocks.1.act.seen")
        self.assertEqual(first.index, (1,))

    def test_layouts_differ_first_at_the_first_module_of_16_bits(self) -> None:
        half = config(bf16={"enabled": True})
        first = self.check(compared(Model(), None, half, against=config(), tolerance=1e-5), "forward", "embed", "the other layout")
        self.assertTrue(1e-4 < first.relative < 1e-2, first)
        self.check(compared(Model(), None, half, precision=torch.float32, tolerance=1e-5), "forward", "embed", "plain torch")
        self.check_equal(compared(Model(), None, half, against=config()))
        self.check_equal(compared(Model(), None, config(3), against=config(0)))

    def test_optimizer_of_another_rate_differs_in_the_update(self) -> None:
        slow = {**config(), "optimizer": {**ADAM, "params": {**ADAM["params"], "lr": 5e-3}}}
        first = self.check(compared(Model(), None, config(), against=slow), "update", "embed.weight", "look at the optimizer")
        self.assertEqual(first.step, 1)

    def test_parameter_without_gradient_is_explained(self) -> None:
        model = Model()
        model.blocks[0].spare = nn.Linear(WIDTH, 2)
        self.check(compared(model), "update", "blocks.0.spare.weight", "got no gradient in this step", "weight decay")

    def test_what_the_engine_refuses_is_named(self) -> None:
        model = Model()
        model.blocks[0].act = Reader()
        model.blocks[0].act.other = (model.blocks[2].down,)
        result = compared(model)
        self.check(result, "forward", "blocks.0.act", "sherd raises StateError", "blocks.2.down.weight", "plain torch does not")
        self.assertIsInstance(result.error, sherd.StateError)

    def test_a_loss_function_that_is_refused_is_named(self) -> None:
        """The exception comes outside of every module: where a loss reads a parameter, and in a second backward through the model."""
        def reads(model: Any, ids: torch.Tensor) -> torch.Tensor:
            return loss_of(model, ids) + model.head.weight.square().mean()

        def twice(model: Any, ids: torch.Tensor) -> torch.Tensor:
            return loss_of(model, ids) + loss_of(model, ids.flip(0))

        for loss, begin in ((reads, "In step 1, the loss function is the first that differs: sherd raises StateError there, and plain torch does not: "),
                            (twice, "In step 1, the backward is the first that differs: sherd raises StateError there, and plain torch does not: ")):
            verdict = sherd.torch.compare(Model(), tokens(), config(), loss, world=sherd.World.self()).verdict
            self.assertTrue(verdict.startswith(begin), verdict)
            self.assertEqual(verdict, verdict.strip())

    def test_what_fails_in_plain_torch_too_is_raised(self) -> None:
        class Failing(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                if type(x) is torch.Tensor:
                    raise ValueError("not here")
                return x

        with self.assertRaisesRegex(ValueError, "not here"):
            compared(planted(Failing()))

    def test_nan_on_both_sides_is_no_difference_and_is_told(self) -> None:
        result = compared(planted(Broken()), steps=1)
        self.check_equal(result)
        self.assertIn("The output of blocks.1.act (Broken) has NaN on both sides", result.verdict)

    def test_outputs_of_all_forms_and_several_calls_are_told_apart(self) -> None:
        class Many(nn.Module):
            def forward(self, x: torch.Tensor) -> Any:
                Counted.count += type(x) is torch.Tensor
                return {"one": (torch.tanh(x), [x * (2 + Counted.count % 2 // 1 * (Counted.count > 1))])}

        class Caller(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.many = Many()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.many(x)["one"][0] + self.many(x)["one"][1][0]

        Counted.count = 0
        first = self.check(compared(planted(Caller())), "forward", "blocks.1.act.many", "['one'][1][0]")
        self.assertIn("output ['one'][1][0]", first.subject)


class CallersTest(unittest.TestCase):
    """What compare() takes from its caller, and leaves as it was."""

    def test_optimizers_and_schedulers_of_torch_are_followed(self) -> None:
        for make in (lambda p: torch.optim.AdamW(p, lr=1e-2), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
                     lambda p: torch.optim.Adagrad(p, lr=1e-2)):
            model = Model()
            optimizer = make([{"params": list(model.blocks.parameters())}, {"params": [*model.embed.parameters(), *model.norm.parameters()]}])
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
            base = {key: value for key, value in config().items() if key != "optimizer"}
            with self.subTest(optimizer=type(optimizer).__name__):
                result = compared(model, tokens(2), base, optimizer=optimizer, lr_scheduler=schedule, steps=3)
                self.assertTrue(result.is_equal, result)
                self.assertEqual((len(optimizer.state) > 0, schedule.last_epoch), (type(optimizer) is torch.optim.Adagrad, 0))

    def test_configured_optimizers_are_those_of_torch(self) -> None:
        kinds: list[dict[str, Any]] = [{"type": "Adam", "params": {"lr": 1e-2, "weight_decay": 0.1, "adam_w_mode": False}},
                                       {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}, {"type": "Adagrad", "params": {"lr": 0.1}}]
        for one in kinds:
            with self.subTest(optimizer=one["type"]):
                result = compared(Model(), tokens(2), {**config(), "optimizer": one,
                                                       "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4}}}, steps=3)
                self.assertTrue(result.is_equal, result)
        if hasattr(torch.optim, "Muon"):
            muon = {"optimizer": {"type": "Muon"}, "sherd": {"groups": [{"name": "others", "type": "AdamW", "matching": [
                "embed.*", "head.*", "norm.*", "*.bias"]}]}}
            result = compared(Model(), tokens(2), {**config(), **muon}, steps=3)
            self.assertTrue(result.is_equal, result)
            self.assertIn("the updates by Muon were not compared", str(result))
        result = compared(Model(), None, {**config(), "optimizer": {"type": "Lamb", "params": {"lr": 1e-2}}})
        self.assertTrue(result.is_equal, result)
        self.assertIn("plain torch has no such Lamb", str(result))

    def test_caller_keeps_model_and_random_numbers(self) -> None:
        model, state = Model(), torch.get_rng_state()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        compared(model)
        self.assertTrue(torch.equal(state, torch.get_rng_state()))
        self.assertTrue(all(torch.equal(value, before[name]) for name, value in model.state_dict().items()))
        self.assertFalse(any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()))
        engine = sherd.torch.initialize(model, config(), example=tokens())  # it is free for an engine
        engine.destroy()

    def test_output_is_the_loss_where_none_is_given(self) -> None:
        class Own(Model):
            def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> Any:  # type: ignore[override]
                logits = super().forward(ids)
                return {"logits": logits, "loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten())}

        result = sherd.torch.compare(Own(), {"ids": tokens(), "labels": tokens()}, config())
        self.assertTrue(result.is_equal, result)
        with self.assertRaisesRegex(TypeError, "the loss is one number, not a tensor"):
            sherd.torch.compare(Model(), tokens(), config())

    def test_model_on_meta_and_inference_are_compared(self) -> None:
        with torch.device("meta"):
            model = Model()
        result = compared(model)
        self.assertTrue(result.is_equal, result)
        result = compared(Model().eval(), None, {**config(), "optimizer": {"type": "none"}})
        self.assertTrue(result.is_equal, result)
        self.assertFalse(any("gradient" in entry.where for entry in result.entries))

    def test_wrong_arguments_are_refused(self) -> None:
        for words, error, call in (("steps=0", ValueError, {"steps": 0}), ("precision=", ValueError, {"against": {}, "precision": torch.float32}),
                                   ("has no option unit", TypeError, {"unit": 1}), ("calls the model", TypeError, {"loss": lambda *_: 0})):
            with self.subTest(words), self.assertRaisesRegex(error, words):
                compared(Model(), **call)


class OnRank(nn.Module):
    """Computes otherwise on rank 1 in every other forward."""

    turn = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        OnRank.turn += type(x) is torch.Tensor
        return torch.tanh(x) * (1.5 if OnRank.turn % 2 and ranks.rank() == 1 else 1)


def rank_main() -> None:
    """What each of two ranks runs. Each has its own batches, dropout and statistics."""
    rank, world = int(os.environ["SHERD_RANK"]), sherd.World.from_env()
    torch.manual_seed(50 + rank)
    for stage, more in ((3, {}), (1, {"bf16": {"enabled": True}}), (2, {"gradient_accumulation_steps": 2, "gradient_clipping": 0.1})):
        result = compared(Model(), tokens(3, rank), config(stage, **more), steps=3, world=world)
        assert result.is_equal, f"stage {stage}: {result}"
    found = compared(planted(OnRank()), tokens(2, rank), world=world)
    print(f"first {found.first.where} {found.first.name} on {found.first.rank}, own {found.differences[0].where}")
    print(str(found).splitlines()[0])


class TwoRanksTest(unittest.TestCase):
    def test_ranks_agree_on_the_first_difference(self) -> None:
        for number, text in enumerate(ranks.run(2)):
            self.assertIn(f"first forward blocks.1.act on 1, own {'forward' if number == 1 else 'mean gradient'}", text)
            self.assertIn("In step 1, on rank 1, the output of blocks.1.act (OnRank) is the first that differs", text)


torch.set_num_threads(1)
if ranks.rank() is None:
    ranks.ready()
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
else:
    rank_main()

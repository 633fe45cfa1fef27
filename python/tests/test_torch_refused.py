"""Tests that calls which would separate a model from its engine are refused by name."""
from __future__ import annotations

import copy
import logging
import os
import pickle
import unittest
import warnings

import ranks

os.environ.setdefault("SHERD_DEBUG", "1")
try:
    import torch
    from torch import nn
except ImportError as error:
    ranks.skip(f"torch is not here: {error}")

import sherd
import sherd.torch
from test_torch_core import LENGTH, WIDTH, Model, batch, config, made
from test_torch_engine import engine_of


def seeded(inputs: int, outputs: int) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))


class Refused(unittest.TestCase):
    def setUp(self) -> None:
        self.engine = engine_of(3, options={"example": batch(0)})
        self.model = self.engine.module

    def tearDown(self) -> None:
        self.engine.destroy()

    def test_copies(self) -> None:
        with self.assertRaisesRegex(TypeError, "sherd engine"):
            copy.deepcopy(self.model)
        with self.assertRaisesRegex(TypeError, "sherd engine"):
            pickle.dumps(self.model)

    def test_state_dicts(self) -> None:
        with self.assertRaisesRegex(sherd.StateError, "engine.state_dict"):
            self.model.state_dict()
        with self.assertRaisesRegex(sherd.StateError, "engine.load_state_dict"):
            self.model.load_state_dict(made("plain").state_dict())
        with self.assertRaisesRegex(sherd.StateError, "blocks.0.up.weight"):
            self.model.blocks[0].up.load_state_dict(nn.Linear(WIDTH, 64).state_dict())

    def test_moves(self) -> None:
        for change in (lambda: self.model.half(), lambda: self.model.to("meta"), lambda: self.model.blocks[0].double()):
            with self.assertRaisesRegex(sherd.StateError, "engine's memory"):
                change()

    def test_writes(self) -> None:
        weight = self.model.blocks[0].up.weight
        for write in (lambda: weight.copy_(torch.zeros_like(weight)), lambda: weight.zero_(), lambda: nn.init.normal_(weight),
                      lambda: weight.data.mul_(2), lambda: weight.detach()[0].fill_(1)):
            with self.assertRaisesRegex(sherd.StateError, "blocks.0.up.weight has no values"), torch.no_grad():
                write()
        kept, weight.data = weight.data, torch.zeros_like(weight)
        with self.assertRaisesRegex(sherd.StateError, "blocks.0.up.weight"):
            self.engine(batch(0))
        weight.data = kept
        self.assertTrue(torch.isfinite(self.engine(batch(0))))

    def test_reads(self) -> None:
        """A parameter that is not acquired names itself when it is read, and has its shape."""
        weight = self.model.blocks[0].up.weight
        for read in (lambda: weight.norm(), lambda: weight.sum().item(), lambda: torch.isnan(weight), lambda: weight.data.float(),
                     lambda: weight.cpu(), lambda: weight.t() @ weight, lambda: weight.detach().numpy(), lambda: weight.tolist(),
                     lambda: nn.functional.linear(torch.ones(1, WIDTH), weight), lambda: torch.stack([weight]), lambda: weight[0],
                     lambda: weight.T.sum(), lambda: weight.new_tensor(weight), lambda: weight.to(torch.float64),
                     lambda: self.model.blocks[0].up(torch.ones(1, WIDTH)), lambda: list(weight), lambda: weight == 1):
            with self.assertRaisesRegex(sherd.StateError, "parameter blocks.0.up.weight has no values .*gathered_parameters"):
                read()
        self.assertEqual((weight.shape, weight.numel(), weight.dtype, weight.is_leaf), ((64, WIDTH), 64 * WIDTH, torch.float32, True))
        self.assertEqual(torch.zeros_like(weight).sum(), 0)
        self.assertIs(weight.to(weight.dtype), weight)
        self.assertEqual((weight.type(), weight.new_tensor([1.0]).item()), ("torch.FloatTensor", 1))
        self.assertFalse(hasattr(weight, "__cuda_array_interface__"))
        self.assertIsInstance(weight, nn.Parameter)
        self.assertIn("blocks.0.up.weight", repr(weight))
        with sherd.torch.gathered_parameters(weight):
            self.assertTrue(torch.isfinite(weight.norm()))
            self.assertIs(type(weight), nn.Parameter)

    def test_writes_below_stage_3(self) -> None:
        engine = engine_of(1, options={"example": batch(0)})
        with torch.no_grad():
            engine.module.norm.weight.mul_(2)
        with self.assertRaisesRegex(sherd.StateError, "norm.weight was written"):
            engine(batch(0))
        engine.destroy()

    def test_unfrozen_later(self) -> None:
        for options in ({"example": batch(0)}, {}):
            engine = engine_of(3, made("frozen"), options=options)
            engine.module.norm.requires_grad_(True)
            with self.assertRaisesRegex(sherd.StateError, "norm.weight was frozen"):
                engine(batch(0))
            engine.destroy()

    def test_frozen_later(self) -> None:
        for which in ("before the first batch", "before the forward", "before the step"):
            engine = engine_of(3, options={} if which == "before the first batch" else {"example": batch(0)})
            if which != "before the step":
                engine.module.norm.requires_grad_(False)
            engine.backward(engine(batch(0)))
            engine.module.norm.requires_grad_(False)
            with self.assertRaisesRegex(sherd.StateError, "norm.weight was frozen .* after the engine was made"):
                engine.step()
            engine.destroy()

    def test_frozen_for_the_first_batch_alone(self) -> None:
        """What is trained is as at initialize(), also where the first batch, which makes the plan, is one without some gradients."""
        marks = []
        for options in ({"example": batch(0)}, {}):
            engine = engine_of(3, options={**options, "backward_uses": "any"})
            engine.module.norm.requires_grad_(False)
            engine.backward(engine(batch(0)))
            self.assertFalse(engine.module.norm.weight.requires_grad)
            engine.module.norm.requires_grad_(True)
            engine.backward(engine(batch(1)))
            self.assertTrue(engine.step().was_updated)
            marks.append(engine.fingerprint())
            engine.destroy()
        self.assertEqual(*marks)

    def test_memory_set_in_a_forward(self) -> None:
        class Sets(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.weight.data = self.weight.data * 2
                return super().forward(x)

        model = nn.Sequential(nn.Linear(4, 4), Sets(4, 4))
        engine = sherd.torch.initialize(model, config(3), world=sherd.World.self(), example=torch.ones(1, 4), units=[nn.Linear])
        with self.assertRaisesRegex(sherd.StateError, "1.weight was given other memory"):
            engine(torch.ones(1, 4))
        engine.discard()
        engine.destroy()

    def test_parameters_that_come_later(self) -> None:
        self.model.blocks[1].up = nn.Linear(WIDTH, 4 * WIDTH)
        with torch.no_grad():
            self.engine(batch(0))
        self.engine.backward(self.engine(batch(0)))
        with self.assertRaisesRegex(sherd.StateError, r"blocks.1.up.weight came into the model after"):
            self.engine.step()

    def test_scaler(self) -> None:
        optimizer = torch.optim.AdamW((model := made("plain")).parameters(), lr=1e-2, weight_decay=0)
        own = engine_of(3, model, options={"optimizer": optimizer, "example": batch(0)})
        for engine in (self.engine, own):
            scaler = torch.amp.GradScaler("cpu")
            scaler.scale(engine(batch(0))).backward()
            with self.assertRaisesRegex(sherd.NotSupportedError, 'GradScaler.*"fp16": {"enabled": true}.*call engine.backward'):
                scaler.step(engine.optimizer)
        own.destroy()

    def test_evaluation_by_another_way(self) -> None:
        """An evaluation that reads parameters which training does not read there names them: in the model's forward, and outside of it."""
        class Last(Model):
            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                if self.training:
                    return super().forward(ids)
                x = self.words(ids) + self.places
                return nn.functional.linear(x[:, -1:], self.blocks[0].up.weight)

        engine = engine_of(3, Last(), options={"example": batch(0)})
        engine.eval()
        for read in (lambda: engine(batch(0)), lambda: engine.module.norm(engine.module.places), lambda: engine.module.places.norm()):
            with torch.no_grad(), self.assertRaisesRegex(sherd.StateError, "parameter (blocks.0.up.weight|places) has no values"):
                read()
        engine.train()
        engine.backward(engine(batch(0)))
        self.assertTrue(engine.step().was_updated)
        engine.destroy()

    def test_gradient_past_the_outputs(self) -> None:
        """A frozen weight through which a gradient comes past the outputs is not there in loss.backward(), of which the engine does not know
        the loss: torch's count of writes shows it, and a warning says why. engine.backward(loss) has it there."""
        class Keeps(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.up, self.probe = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH).requires_grad_(False)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.kept = self.probe(self.up(x)).pow(2).mean()
                return x

        model = Model()
        model.blocks = nn.ModuleList([Keeps(), Keeps()])
        engine = engine_of(3, model, options={"example": batch(0)})
        loss = engine(batch(0))
        with self.assertWarnsRegex(UserWarning, "blocks.*another way.*engine.backward"):
            with self.assertRaisesRegex(RuntimeError, "expected version"):
                (loss + sum(block.kept for block in model.blocks)).backward()
        engine.discard()
        engine(batch(0))
        engine.backward(sum(block.kept for block in model.blocks))
        self.assertTrue(engine.step().was_updated)
        engine.destroy()

    def test_gradients_of_gradients(self) -> None:
        with self.assertRaisesRegex(sherd.NotSupportedError, "create_graph"):
            self.engine(batch(0)).backward(create_graph=True)
        with self.assertRaises(sherd.StateError):
            self.engine.step()

    def test_transforms(self) -> None:
        """They are refused in a forward with gradients, and nothing stays acquired. An evaluation by vmap has the values of its samples."""
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        samples = torch.randn(3, 2, 4)
        engine = sherd.torch.initialize(model, config(3), world=sherd.World.self(), units=[nn.Linear])
        with self.assertRaisesRegex(sherd.NotSupportedError, "first batch comes through torch.vmap.*example=batch"):
            torch.vmap(engine)(samples)
        for step in range(2):
            for whole in (engine, engine.module):
                if engine.is_sealed:
                    with self.assertRaisesRegex(sherd.NotSupportedError, "^torch.vmap goes over module 0 .*whole batch"):
                        torch.vmap(whole)(samples)
                    with self.assertRaisesRegex(sherd.NotSupportedError, r"^torch.func.grad .*engine.backward\(loss\)"):
                        torch.func.grad(lambda x: whole(x).sum())(samples[0])
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                engine.backward(engine(samples).sum())
            engine.step()
        with torch.no_grad():
            torch.testing.assert_close(torch.vmap(engine)(samples), torch.stack([engine(one) for one in samples]))
        engine.destroy()

    def test_a_transform_inside_of_a_module(self) -> None:
        """A module may use vmap over what belongs to its own unit, as long as only it is entered as a whole."""
        class Over(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.vmap(self.inner)(x)

        model = nn.Sequential(Over(), Over())
        twin = copy.deepcopy(model)
        engine = sherd.torch.initialize(model, config(3), world=sherd.World.self(), units=[Over])
        samples = torch.randn(3, 2, 4)
        loss = engine(samples).sum()
        torch.testing.assert_close(loss, twin(samples).sum())
        engine.backward(loss)
        self.assertTrue(engine.step().was_updated)
        engine.destroy()

    def test_two_parameters_over_one_storage(self) -> None:
        model = made("plain")
        model.head.weight = nn.Parameter(model.words.weight.data)
        with self.assertRaisesRegex(ValueError, "head.weight.*one storage"):
            engine_of(3, model)

    def test_arguments(self) -> None:
        config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD", "params": {"lr": 1}}}
        with self.assertRaisesRegex(TypeError, "torch.nn.Module, not dict"):
            sherd.torch.initialize({}, config)
        with self.assertRaisesRegex(TypeError, "a dict with the same keys, not NoneType"):
            sherd.torch.initialize(made("plain"), None)
        for option, words in (("exmaple", r"no option exmaple: is example meant\?"), ("zzz", "no option zzz; besides.*example, units")):
            with self.assertRaisesRegex(TypeError, words):
                sherd.torch.initialize(made("plain"), config, **{option: batch(0)})
        with self.assertRaisesRegex(FileNotFoundError, "nowhere.safetensors' is not there"):
            sherd.torch.initialize(made("plain"), config, weights="nowhere.safetensors")
        sherd.torch.initialize(made("plain"), config_params=config, world=sherd.World.self()).destroy()  # DeepSpeed's old name
        with self.assertRaisesRegex(TypeError, "config= and config_params= are two names of one argument"):
            sherd.torch.initialize(made("plain"), config, config_params=config)
        with self.assertRaisesRegex(TypeError, "a dict with the same keys, not NoneType"):
            sherd.torch.initialize(made("plain"))

    def test_a_first_batch_of_a_wrong_shape(self) -> None:
        """The forward raises torch's error. Torch does not log the same error of the trace before."""
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
        engine = sherd.torch.initialize(model, config(3), world=sherd.World.self())
        with self.assertNoLogs("torch._subclasses.fake_tensor"), self.assertWarnsRegex(UserWarning, r"\[2, 5\] X \[8, 8\]"):
            with self.assertRaisesRegex(RuntimeError, "cannot be multiplied .2x5 and 8x8."):
                engine(torch.ones(2, 5))
        self.assertFalse(logging.getLogger("torch._subclasses.fake_tensor").disabled)
        engine.destroy()

    def test_one_loss_through_two_engines(self) -> None:
        """With fp16 it is cut between the engines (docs/pytorch.md); the gradients are then those of one graph."""
        norms, x = [], torch.ones(2, 8)
        for fp16 in (False, True):
            first, second = (sherd.torch.initialize(made_of, config(3, fp16={"enabled": fp16, "initial_scale_power": 8}), world=sherd.World.self(),
                                                    example=torch.ones(2, 8, dtype=torch.float16 if fp16 else torch.float32))
                             for made_of in (seeded(8, 8), seeded(8, 1)))
            given = x.to(torch.float16 if fp16 else torch.float32)
            if fp16:
                with self.assertRaisesRegex(sherd.StateError, "A loss through two engines has no scale that fits both.*docs/pytorch.md"):
                    first.backward(second(first(given)).mean())
                for one in (first, second):
                    one.discard()
                between = first(given)
                cut = between.detach().requires_grad_()
                loss = second(cut).mean()
                second.backward(loss)
                first.backward((between * (cut.grad.float() / second.loss_scale)).sum())
            else:
                first.backward(second(first(given)).mean())
            norms.append([one.step().grad_norm for one in (first, second)])
            for one in (first, second):
                one.destroy()
        for exact, rounded in zip(*norms):
            self.assertAlmostEqual(exact, rounded, delta=5e-3 * exact)

    def test_a_step_before_anything(self) -> None:
        engine = engine_of(3)
        with self.assertRaisesRegex(sherd.StateError, r"none yet: call engine\(batch\)"):
            engine.step()
        engine.destroy()

    def test_a_second_engine(self) -> None:
        early = engine_of(3, model := made("plain"))
        engine = engine_of(3, model, options={"example": batch(0)})
        for make in (lambda: engine_of(3, model), lambda: early(batch(0))):
            with self.assertRaisesRegex(sherd.StateError, "another sherd engine"):
                make()
        engine.destroy()

    def test_the_tuple_of_deepspeed(self) -> None:
        with self.assertRaisesRegex(TypeError, "one object, the engine.*engine.optimizer"):
            engine, _optimizer, _, _ = self.engine

    def test_after_destroy(self) -> None:
        self.engine.destroy()
        self.assertTrue(torch.isnan(self.model.norm.weight).all())
        for use in (lambda: self.engine(batch(0)), self.engine.step, self.engine.state_dict,
                    lambda: self.engine.backward(torch.ones((), requires_grad=True))):
            with self.assertRaisesRegex(sherd.StateError, "destroyed"):
                use()

    def test_after_a_seal_that_failed(self) -> None:
        def init(module: nn.Module) -> None:
            raise KeyError("in init")

        with torch.device("meta"):
            model = made("plain")
        engine = engine_of(3, model, options={"init": init})
        with self.assertRaisesRegex(KeyError, "in init"):
            engine(batch(0))
        for use in (lambda: engine(batch(0)), engine.step, engine.state_dict):
            with self.assertRaisesRegex(sherd.StateError, "make the model and the engine anew"):
                use()
        engine.destroy()


if __name__ == "__main__":
    unittest.main()

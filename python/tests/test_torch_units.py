"""Tests policies of dividing a model, orders that cannot be traced, types of parameters, retained gradients, and memory."""
from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import importlib
import importlib.util
import os
import sys
import tempfile
import threading
import unittest
import weakref
from typing import Any, ClassVar

import ranks

os.environ.setdefault("SHERD_DEBUG", "1")
try:
    import torch
    from torch import nn
except ImportError as error:
    ranks.skip(f"torch is not here: {error}")

import sherd
import sherd.torch
from sherd.torch import leftovers
from sherd.torch.hooks import mapped, tensors_in
from sherd.torch.trace import order_of, registered
from test_torch_core import Block, Model, batch, config, made
from test_torch_engine import engine_of, masters, train, trained


def names(model: nn.Module, policy: Any = None) -> list[str]:
    """Returns the names of the units into which a policy divides a model."""
    return [unit.name for unit in sherd.torch.divide(model, policy).units]


class Policies(unittest.TestCase):
    def setUp(self) -> None:
        self.model = made("plain")

    def test_default(self) -> None:
        self.assertEqual(names(self.model), ["Model", "words", "blocks.0", "blocks.1", "blocks.2", "norm"])
        division = sherd.torch.divide(self.model)
        self.assertEqual([scope.units for scope in division.scopes if scope.name == "head"], [[1]])
        self.assertEqual(names(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))), ["0", "2"])
        self.assertEqual(names(nn.MultiheadAttention(4, 2)), ["MultiheadAttention"])
        block = Block()
        self.assertEqual(names(nn.Sequential(block, block, block)), ["0"])

    def test_a_class_may_have_the_name_of_a_member(self) -> None:
        """The model's own parameters are in a unit with the name of its class, whatever its members are called."""
        def init(self: nn.Module) -> None:
            nn.Module.__init__(self)
            self.own, self.model = nn.Parameter(torch.ones(1)), nn.Linear(4, 4)
            self.add_module("model (whole)", nn.Linear(4, 1))

        def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
            return getattr(self, "model (whole)")(self.model(x) * self.own).square().mean()

        for kind in ("model", ""):
            for policy in (None, ["model"], [nn.Linear]):
                made_of = type(kind, (nn.Module,), {"__init__": init, "forward": forward})()
                twin, x = copy.deepcopy(made_of), torch.ones(2, 4)
                engine = sherd.torch.initialize(made_of, config(3), world=sherd.World.self(), units=policy, example=x)
                found = [unit.name for unit in engine.division.units]
                self.assertEqual(len(found), len(set(found)), found)
                loss = engine(x)
                torch.testing.assert_close(loss, twin(x))
                engine.backward(loss)
                self.assertTrue(engine.step().was_updated)
                engine.destroy()

    def test_given(self) -> None:
        everything = "Model", "words"
        for policy in (Block, [Block], ["Block"], ["blocks.*.up", "blocks.?"], list(self.model.blocks),
                       lambda module, name: isinstance(module, Block)):
            found = names(self.model, policy)
            self.assertTrue(set(everything) <= set(found) and "blocks.1" in found, f"{policy}: {found}")
        self.assertIn("blocks.0.up", names(self.model, ["blocks.*.up"]))
        self.assertEqual(names(self.model, 500), ["Model", "words", "blocks.0.norm", "blocks.0.up", "blocks.0.down",
                                                  "blocks.1.norm", "blocks.1.up", "blocks.1.down", "blocks.2.norm",
                                                  "blocks.2.up", "blocks.2.down", "norm"])
        with self.assertRaisesRegex(ValueError, "it has words, blocks, blocks.0 and"):
            names(self.model, ["layers.*"])
        with self.assertRaisesRegex(ValueError, "no parameters"):
            names(nn.ReLU())

    def test_each_trains_alike(self) -> None:
        wanted = trained(2)
        for policy in (10**9, [Block, nn.Linear], [Model]):
            engine = engine_of(3, options={"units": policy})
            train(engine, 2)
            for name, value in masters(engine).items():
                torch.testing.assert_close(value, wanted[name], rtol=1e-4, atol=1e-4)
            engine.destroy()


class Orders(unittest.TestCase):
    def test_nothing_of_the_model_changes(self) -> None:
        class Caches(Model):
            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                self.seen = super().forward(ids)
                self.count += 1
                if "numpy" in sys.modules:
                    sys.modules["numpy"].random.rand()
                self.register_buffer("late", self.seen.detach(), persistent=False)
                return self.seen

        model = Caches()
        model.register_buffer("count", torch.zeros(()))
        before = {name: value.clone() for name, value in model.state_dict().items()}
        drawn = torch.get_rng_state()
        numpy = importlib.import_module("numpy") if importlib.util.find_spec("numpy") else None
        drawn_by_numpy = numpy.random.get_state()[1].tolist() if numpy else None
        order = order_of(model, sherd.torch.divide(model), ((batch(0),), {}), torch.float32)
        self.assertTrue(order.is_traced, order.reason)
        self.assertTrue(torch.equal(drawn, torch.get_rng_state()))
        if numpy:
            self.assertEqual(numpy.random.get_state()[1].tolist(), drawn_by_numpy)
        self.assertFalse(hasattr(model, "seen") or hasattr(model, "late"))
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(value, before[name]) and type(value) is torch.Tensor, name)
        self.assertTrue(all(type(p) is nn.Parameter for p in model.parameters()))

    def test_transforms_inside_of_a_model_are_traced(self) -> None:
        class Curved(Model):
            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                return super().forward(ids) + torch.func.grad(lambda x: x.square().sum())(torch.ones(2)).sum()

        model = Curved()
        order = order_of(model, sherd.torch.divide(model), ((batch(0),), {}), torch.float32)
        self.assertTrue(order.is_traced, order.reason)

    def test_hooks_and_members_that_the_first_pass_adds_are_added_once(self) -> None:
        """transformers sets its hooks for output_hidden_states so, and notes it in an attribute that the trace takes back."""
        class Watched(Model):
            is_watched = False

            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                if not self.is_watched:
                    self.is_watched, self.seen = True, []
                    self.add_module(f"late{len(self._modules)}", nn.Identity())
                    for block in self.blocks:
                        block.register_forward_hook(lambda _module, _args, output: self.seen.append(output))
                return super().forward(ids)

        model = Watched()
        engine = engine_of(3, model)
        engine(batch(0))
        self.assertEqual((len(model.seen), sum(name.startswith("late") for name in model._modules)), (3, 1))
        engine.destroy()

    def test_leftovers_are_taken_out(self) -> None:
        """Of every kind of container; what has none of them stays."""
        mode, kept, cache = leftovers.mode_class()(), torch.ones(2), functools.lru_cache(lambda n: {"of": torch.ones(n)})
        other = functools.lru_cache(lambda n: n)
        seen, masks, pairs, some = [1, kept], {"a": kept}, {}, {2}
        with mode:
            for number in range(5):
                seen.append(torch.ones(number))
                masks[number] = torch.ones(2)
                pairs[number] = (number, (torch.ones(2), 1))
            some.add(torch.ones(1))
            cache(3)
        other(3)
        leftovers.take_out([mode])
        self.assertEqual((len(seen), masks.keys(), pairs, some), (2, {"a"}, {}, {2}))
        self.assertIs(seen[1], kept)
        self.assertEqual((cache.cache_info().currsize, other.cache_info().currsize), (0, 1))

    def test_registration_is_what_a_plain_model_does(self) -> None:
        model = made("plain")
        division = sherd.torch.divide(model)
        found = order_of(model, division, ((batch(0),), {}), torch.float32)
        guessed = registered(division, "asked")
        self.assertEqual(found.forward, guessed.forward)
        self.assertEqual({unit for unit, _ in found.backward}, {unit for unit, _ in guessed.backward})

    def test_views_of_parameters_in_attributes(self) -> None:
        """They would keep the values of initialize(); a hook before the forward, as spectral_norm's, makes them anew."""
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[0].turned = model[0].weight.t()
        with self.assertRaisesRegex(ValueError, "0.turned is a view of parameter 0.weight"):
            sherd.torch.divide(model)
        sherd.torch.divide(nn.Sequential(torch.nn.utils.spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 4)))

    def test_graphs_of_one_form_are_looked_at_once(self) -> None:
        engine = engine_of(3, options={"example": batch(0)})
        known = []
        for step in range(4):
            engine.backward(engine(batch(step)))
            engine.step()
            known.append(len(engine.hooks._entries._known))
        self.assertEqual(known, known[:1] * 4)
        engine.destroy()

    def test_a_trace_that_fails_leaves_nothing(self) -> None:
        """What a trace finds before it fails is not kept: the other ranks do not hear of it."""
        class Failing(Model):
            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                x = nn.functional.linear(self.words(ids) + self.places, self.blocks[0].up.weight)
                x.register_hook(lambda grad: grad * float(grad.sum().item() < 9)) if x.requires_grad else None
                return x.mean()

        model = Failing()
        division = sherd.torch.divide(model)
        before = [(scope.name, list(scope.units)) for scope in division.scopes]
        found = order_of(model, division, ((batch(0),), {}), torch.float32)
        self.assertIn("DataDependent", found.reason)
        self.assertEqual([(scope.name, list(scope.units)) for scope in division.scopes], before)

    def test_what_cannot_be_traced_says_why(self) -> None:
        class Looks(Model):
            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                return super().forward(ids) if int(self.norm.weight[0].item()) < 9 else ids

        torch.manual_seed(7)
        engine = sherd.torch.initialize(Looks(), config(3), world=sherd.World.self())
        with self.assertWarnsRegex(UserWarning, "registration .*DataDependent"):
            with self.assertRaisesRegex(sherd.StateError, "norm.weight has no values"):  # outside of the module that owns it
                engine(batch(0))
        engine.destroy()


class Types(unittest.TestCase):
    def test_norms_in_fp32(self) -> None:
        class Norm(nn.LayerNorm):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return super().forward(x.float()).to(x.dtype)

        model = made("plain")
        for owner in (*model.blocks, model):
            owner.norm.__class__ = Norm
        engine = engine_of(3, model, bf16={"enabled": True}, options={"fp32": [Norm], "example": batch(0)})
        self.assertTrue(engine.order.is_traced, engine.order.reason)
        train(engine, 2)
        self.assertEqual(model.norm.weight.dtype, torch.float32)
        self.assertEqual(model.words.weight.dtype, torch.bfloat16)
        wanted = trained(2)
        for name, value in masters(engine).items():
            self.assertLess((value - wanted[name]).abs().mean(), 1e-3, name)
        engine.destroy()


    def test_buffers_of_a_model_that_has_the_type(self) -> None:
        """A model in bf16 keeps its other buffers as they are; one in fp32 is cast as model.to() casts it."""
        for dtype in (torch.bfloat16, torch.float32):
            model = made("plain").to(dtype)
            model.register_buffer("frequencies", torch.rand(3))
            engine = engine_of(3, model, bf16={"enabled": True}, options={"example": batch(0)})
            engine.seal()
            self.assertEqual(model.frequencies.dtype, torch.float32 if dtype == torch.bfloat16 else torch.bfloat16)
            engine.destroy()

    def test_other_types(self) -> None:
        with self.assertRaisesRegex(ValueError, "places is of torch.float64"):
            sherd.torch.divide(made("plain").double())

        class Quantised(Model):
            """A model with a frozen weight of 8 bits, and with sparse gradients."""

            def __init__(self) -> None:
                super().__init__()
                self.bits = nn.Parameter(torch.arange(16, dtype=torch.uint8), requires_grad=False)
                self.words.sparse = True

            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                return super().forward(ids) * (1 + self.bits.float().mean() / 100)

        torch.manual_seed(7)
        engine = engine_of(3, Quantised(), options={"example": batch(0)})
        self.assertTrue(engine.order.is_traced, engine.order.reason)
        train(engine, 2)
        torch.manual_seed(7)
        twin = Quantised()
        twin.words.sparse = False
        wanted = trained(2, twin)
        for name, value in masters(engine).items():
            torch.testing.assert_close(value, wanted[name], rtol=1e-4, atol=1e-4)
        weights = dict(engine.state_dict())
        self.assertEqual(weights.keys(), twin.state_dict().keys())
        self.assertTrue(torch.equal(weights["bits"], twin.bits))
        weights["bits"] = weights["bits"].flip(0)
        self.assertEqual(engine.load_state_dict(weights), ([], []))
        self.assertTrue(torch.equal(engine.module.bits, twin.bits.flip(0)))
        with tempfile.TemporaryDirectory() as folder:
            engine.save_pretrained(folder)
            other = engine_of(3, Quantised(), options={"example": batch(0), "weights": folder})
        self.assertTrue(torch.equal(other.module.bits, engine.module.bits))
        self.assertEqual(other.fingerprint(), engine.fingerprint())
        for one in (engine, other):
            one.destroy()

    def test_dataclasses_pass_through_gates(self) -> None:
        @dataclasses.dataclass(frozen=True)
        class Batch:
            x: torch.Tensor
            label: str

        class Inner(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, given: Batch) -> Batch:
                return dataclasses.replace(given, x=self.linear(given.x))

        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.blocks = nn.Linear(4, 4), nn.ModuleList([Inner(), Inner()])

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                given = Batch(self.first(x), "kept")
                for block in self.blocks:
                    given = block(given)
                assert given.label == "kept"
                return given.x.square().mean()

        torch.manual_seed(3)
        twin = Outer()
        x, engine = torch.randn(2, 4), engine_of(3, copy.deepcopy(twin), options={"example": torch.randn(2, 4), "retain_grads": True})
        engine.backward(engine(x))
        twin(x).backward()
        for p, wanted in zip(engine.module.parameters(), twin.parameters()):
            torch.testing.assert_close(p.grad, wanted.grad, rtol=1e-5, atol=1e-6)
        self.assertEqual([held for _, held in engine.order.backward], [0, 0, 0])  # without gates, all are held to the end of backward
        change = lambda tensor: tensor + 1
        given = Batch(x, "kept")
        self.assertTrue(torch.equal(mapped([given], change)[0].x, x + 1))
        self.assertIs(mapped(given, lambda tensor: tensor), given)
        engine.destroy()

    def test_fields_that_are_none_of_an_object_pass_through_gates(self) -> None:
        @dataclasses.dataclass(slots=True)
        class Slotted:
            kind: ClassVar[str] = "k"
            x: torch.Tensor | None = None
            later: torch.Tensor = dataclasses.field(init=False)

        @dataclasses.dataclass
        class Begun:
            x: torch.Tensor
            count: dataclasses.InitVar[int]

            def __post_init__(self, count: int) -> None:
                self.x = self.x * count

        x, change = torch.ones(2), lambda tensor: tensor + 1
        for given in (Slotted(x), Begun(x, 1)):
            self.assertEqual([t.tolist() for t in tensors_in(mapped(given, change))], [[2, 2]])
            self.assertEqual(given.x.tolist(), [1, 1])
            self.assertIs(mapped(given, change, keeps=True), given)
            self.assertEqual(given.x.tolist(), [2, 2])
        self.assertIs(mapped(Begun, change), Begun)  # the class, as an argument
        self.assertEqual(list(tensors_in(Begun)), [])


class Kept(unittest.TestCase):
    def test_first_batch_without_gradients(self) -> None:
        """An engine that is sealed by a first batch without gradients trains as well as any other."""
        wanted = trained(1)
        for mode in (torch.no_grad, torch.inference_mode):
            engine = engine_of(3)
            with mode():
                engine(batch(0))
            self.assertTrue(engine.order.is_traced and engine.order.backward, engine.order.reason)
            train(engine, 1)
            with engine.core.evaluating(), torch.no_grad():
                engine(batch(0))
            for name, value in masters(engine).items():
                torch.testing.assert_close(value, wanted[name], rtol=1e-4, atol=1e-4)
            engine.destroy()

    def test_what_a_module_fills_is_filled_by_real_passes_alone(self) -> None:
        """The first batch comes with a cache, an object of a plain class with others in it, as those of transformers are."""
        class Layer:
            def __init__(self) -> None:
                self.states: torch.Tensor | None = None

        class Cache:
            def __init__(self) -> None:
                self.layers = [Layer()]
                self.passes = 0

        class Cached(Model):
            def forward(self, ids: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
                states = self.words(ids)
                if cache is not None:
                    before, cache.passes = cache.layers[-1].states, cache.passes + 1
                    states = states if before is None else torch.cat([before, states], 1)
                    cache.layers.append(Layer())
                    cache.layers[-1].states = cache.layers[0].states = states
                for block in self.blocks:
                    states = block(states)
                return self.head(self.norm(states)).square().mean()

        torch.manual_seed(0)
        engine, cache = engine_of(3, Cached()), Cache()
        with torch.no_grad():
            for passes in (1, 2):
                engine(batch(0), cache)
                self.assertEqual((cache.passes, len(cache.layers), cache.layers[0].states.shape[1]), (passes, 1 + passes, 8 * passes))
        self.assertTrue(engine.order.is_traced)
        train(engine, 1)
        engine.destroy()

    def test_gradients_until_the_step(self) -> None:
        for stage in (0, 3):
            engine, model = engine_of(stage, options={"retain_grads": True}), made("plain")
            for step in range(2):
                engine.backward(engine(batch(0)))
                model.zero_grad()
                if step == 0:
                    model(batch(0)).backward()
                    for p, twin in zip(engine.module.parameters(), model.parameters()):
                        torch.testing.assert_close(p.grad, twin.grad, rtol=1e-4, atol=1e-6)
                engine.step()
                self.assertTrue(all(p.grad is None for p in engine.module.parameters()))
            engine.destroy()

    def test_graphs_go_without_a_backward(self) -> None:
        engine = engine_of(3, options={"example": batch(0)})
        seen: list[weakref.ref[torch.Tensor]] = []
        engine.module.blocks[1].register_forward_hook(lambda _m, _a, out: seen.append(weakref.ref(out)))
        for _ in range(2):
            engine(batch(0))
        engine.backward(engine(batch(0)))
        gc.collect()
        self.assertEqual([ref() for ref in seen], [None] * 3)
        engine.destroy()

    def test_engines_end_with_their_last_user(self) -> None:
        engine = engine_of(3, options={"example": batch(0)})
        weight, gone = engine.module.norm.weight, weakref.ref(engine.core)
        with torch.no_grad():
            engine(batch(0))
        del engine
        gc.collect()
        with self.assertRaisesRegex(sherd.StateError, "norm.weight has no values"):
            weight.norm()
        del weight
        gc.collect()
        self.assertIsNone(gone())

    def test_another_thread(self) -> None:
        engine = engine_of(3, options={"example": batch(0)})
        for step in range(2):
            loss = engine(batch(step))
            thread = threading.Thread(target=engine.backward, args=(loss,))
            thread.start()
            thread.join()
            engine.step()
        wanted = trained(2)
        for name, value in masters(engine).items():
            torch.testing.assert_close(value, wanted[name], rtol=1e-4, atol=1e-4)
        engine.destroy()


if __name__ == "__main__":
    unittest.main()

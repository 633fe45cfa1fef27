"""Tests the engine's object: what scripts do around a step."""
from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import gc
import math
import os
import resource
import sys
import tempfile
import unittest
import warnings
from typing import Any, Callable, Iterator
from unittest import mock

import ranks

os.environ.setdefault("SHERD_DEBUG", "1")
try:
    import torch
    from torch import nn
    from torch.optim.optimizer import _global_optimizer_pre_hooks
except ImportError as error:
    ranks.skip(f"torch is not here: {error}")

import sherd
import sherd.torch
from sherd._library import library
from sherd.torch.first import First
from test_torch_core import LENGTH, WIDTH, Model, batch, config, made, plain_steps


def engine_of(stage: int = 3, model: nn.Module | None = None, accumulation: int = 1, options: dict[str, Any] | None = None,
              **changes: Any) -> sherd.torch.Engine:
    return sherd.torch.initialize(model or made("plain"), config(stage, accumulation, **changes), world=sherd.World.self(),
                                  **(options or {}))


def train(engine: sherd.torch.Engine, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        engine.backward(engine(batch(step)))
        engine.step()


def masters(engine: sherd.torch.Engine) -> dict[str, torch.Tensor]:
    """Returns the master weights by name."""
    return {p.name: torch.tensor(list(engine.core.read(p.number))).view(p.tensor.shape) for p in engine.division.params}


def trained(steps: int, model: nn.Module | None = None) -> dict[str, torch.Tensor]:
    """Returns the weights that plain torch makes in so many steps, by name."""
    model = model or made("plain")
    plain_steps(model, steps, 1)
    return {name: p.detach() for name, p in model.named_parameters()}


class Interop(unittest.TestCase):
    def capsule(self, engine: sherd.Engine, call: str, param: int) -> Any:
        """Returns what a call of C gives, in the capsule that a binding in C would make of it."""
        new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
            ("PyCapsule_New", ctypes.pythonapi))
        made = ctypes.c_void_p()
        getattr(library(), call)(engine.handle, param, ctypes.byref(made))
        return new(made, b"dltensor_versioned", None)

    def test_tensors_of_the_c_interface_lie_over_the_engines_memory(self) -> None:
        for dtype, torch_dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
            types = {} if dtype == "fp32" else {dtype: {"enabled": True}}
            settings = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, **types}
            with sherd.Engine(sherd.World.self(), settings) as engine:
                unit = engine.add_unit("u")
                param = engine.add_param(unit, "w", [3, 70])
                engine.seal()
                engine.fill(param, torch.arange(210, dtype=torch.float32).numpy())
                data = torch.from_dlpack(self.capsule(engine, "param_dlpack", param))
                grad = torch.from_dlpack(self.capsule(engine, "param_grad_dlpack", param))
                self.assertEqual((data.shape, data.dtype), ((3, 70), torch_dtype))
                self.assertEqual((data.data_ptr(), grad.data_ptr()), (engine.address(param).address, engine.grad_address(param).address))
                with engine.acquired(unit, sherd.BACKWARD):
                    self.assertEqual(data.float().view(-1).tolist(), [float(torch.tensor(i).to(torch_dtype)) for i in range(210)])
                    grad += 1
                    self.assertEqual(torch.from_dlpack(engine.grad(param)).sum().item(), 210)


class Loop(unittest.TestCase):
    def assert_weights(self, engine: sherd.torch.Engine, wanted: dict[str, torch.Tensor], rounds: bool = False) -> None:
        """Asserts that the master weights are these; with `rounds`, where products are rounded, that they are so on average."""
        for name, value in masters(engine).items():
            if rounds:
                self.assertLess((value - wanted[name]).abs().mean(), 3e-3, name)
            else:
                torch.testing.assert_close(value, wanted[name], rtol=1e-4, atol=1e-4, msg=lambda text: f"{name}: {text}")

    def test_four_lines(self) -> None:
        for stage in (0, 3):
            engine = engine_of(stage)
            train(engine, 4)
            self.assert_weights(engine, trained(4))
            self.assertTrue(engine.order.is_traced, engine.order.reason)
            self.assertEqual((engine.global_steps, engine.micro_steps, engine.zero_optimization_stage()), (4, 4, stage))
            self.assertEqual(engine.global_samples, 4 * engine.train_batch_size())
            self.assertEqual((engine.global_rank, engine.local_rank), (0, 0))
            self.assertTrue(engine.was_step_applied())
            self.assertGreater(engine.get_global_grad_norm(), 0)
            self.assertGreater(engine.memory_report().total_held, 0)
            self.assertIn("stage", engine.plan())
            self.assertEqual(engine.fingerprint(), engine.report.fingerprint)
            engine.destroy()

    def test_a_short_window_is_closed(self) -> None:
        """It is closed before its last step or after it, and its mean is over what it has."""
        once = engine_of(accumulation=1)
        train(once, 1)
        for is_behind in (False, True):
            engine = engine_of(accumulation=3)
            engine.backward(engine(batch(0)))
            with tempfile.TemporaryDirectory() as folder:
                if is_behind:
                    self.assertFalse(engine.step().is_boundary)
                    with self.assertRaisesRegex(sherd.StateError, r"1 micro-batches so far.*engine.close_window\(\)"):
                        engine.save_checkpoint(folder)
                self.assertFalse(engine.is_gradient_accumulation_boundary())
                engine.close_window()
                self.assertTrue(engine.is_gradient_accumulation_boundary())
                self.assertTrue(engine.step().was_updated)
                self.assertEqual((engine.fingerprint(), engine.micro_steps), (once.fingerprint(), 1))
                self.assertFalse(engine.is_gradient_accumulation_boundary())
                engine.save_checkpoint(folder)
            engine.destroy()
        once.destroy()

    def test_micro_batches_have_weights(self) -> None:
        """The mean is over what was weighed, as plain torch makes it of scaled losses; a micro-batch without data counts nothing."""
        weights = (6, 2)
        for stage in (0, 1, 2, 3):
            model = made("plain")
            for micro, weight in enumerate(weights):
                (model(batch(micro)) * weight / sum(weights)).backward()
            wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(grad) for grad in wanted.values()])).item()
            engine = engine_of(stage, accumulation=3, sherd={"most_weight": 10})
            for micro, weight in enumerate(weights):
                loss = engine(batch(micro))
                engine.weigh_micro_batch(weight)
                engine.backward(loss)
                self.assertFalse(engine.step().is_boundary)
            engine.skip_micro_batch()
            self.assertTrue(engine.has_backward)
            report = engine.step()
            self.assertTrue(report.was_updated)
            self.assertAlmostEqual(report.grad_norm, norm, delta=1e-4 * norm)
            engine.weigh_micro_batch(10)
            with self.assertRaisesRegex(sherd.InvalidError, "sherd.most_weight is 10"):
                engine.weigh_micro_batch(11)
            loss = engine(batch(0))
            engine.backward(loss)
            with self.assertRaisesRegex(sherd.StateError, "has begun"):
                engine.skip_micro_batch()
            engine.discard()
            engine.destroy()

    def test_a_rank_without_data_seals_the_engine(self) -> None:
        engine = engine_of(accumulation=2, options={"example": batch(0)})
        engine.skip_micro_batch()
        engine.step()
        engine.backward(engine(batch(0)))
        self.assertTrue(engine.step().was_updated)
        once = engine_of(accumulation=1)
        train(once, 1)
        self.assertEqual(engine.fingerprint(), once.fingerprint())
        engine.skip_micro_batch()
        engine.step()
        engine.skip_micro_batch()
        with self.assertRaisesRegex(sherd.StateError, "no rank had data"):
            engine.step()
        engine.destroy()
        once.destroy()

    def test_a_step_in_two_halves(self) -> None:
        """It is step(), with the norm between; a coefficient takes the place of gradient_clipping's."""
        for stage in (0, 2, 3):
            for accumulation in (1, 2):
                halves, clipped, whole = (engine_of(stage, accumulation=accumulation, gradient_clipping=clip) for clip in (0, 0, 0.1))
                for step in range(2):
                    for micro in range(accumulation):
                        for engine in (halves, clipped, whole):
                            self.assertEqual(engine.has_window, micro > 0)
                            engine.backward(engine(batch(step * accumulation + micro)))
                            self.assertTrue(engine.has_window and engine.has_backward)
                        found = [halves.prepare_step(), clipped.prepare_step()]
                        is_last = micro + 1 == accumulation
                        self.assertEqual([bool(report.is_boundary) for report in found], [is_last] * 2)
                        if is_last:
                            self.assertEqual((halves.has_window, halves.has_backward), (True, False))
                            report = halves.apply_step(clip_coefficient=min(1, 0.1 / (found[0].grad_norm + 1e-6)))
                            clipped.apply_step()
                            want = whole.step()
                            self.assertEqual((report.grad_norm, report.clip_coefficient, report.fingerprint),
                                             (want.grad_norm, want.clip_coefficient, want.fingerprint))
                            self.assertEqual(found[0].grad_norm, report.grad_norm)
                            self.assertLess(report.clip_coefficient, 1)
                            self.assertEqual(clipped.report.clip_coefficient, 1)
                            self.assertEqual((halves.global_steps, halves.get_global_grad_norm()), (step + 1, report.grad_norm))
                            self.assertFalse(halves.has_window or whole.has_window)
                        else:
                            whole.step()
                        self.assertEqual(halves.was_step_applied(), is_last)
                self.assertNotEqual(clipped.fingerprint(), whole.fingerprint())
                for engine in (halves, clipped, whole):
                    engine.destroy()

    def test_halves_of_a_step_in_other_places(self) -> None:
        engine = engine_of(2)
        for call in (engine.apply_step, engine.prepare_step):
            with self.assertRaisesRegex(sherd.StateError, "no step is prepared|there was none yet"):
                call()
        engine.backward(engine(batch(0)))
        engine.prepare_step()
        for coefficient in (-1, math.nan, math.inf):
            with self.assertRaisesRegex(ValueError, "finite number"):
                engine.apply_step(clip_coefficient=coefficient)
        with self.assertRaisesRegex(sherd.StateError, "prepared"):
            engine.prepare_step()
        engine.optimizer.param_groups[0]["lr"] = 0.5  # the rates are those of apply_step()
        self.assertEqual(engine.apply_step().lr, 0.5)
        with self.assertRaisesRegex(sherd.StateError, "no step is prepared"):
            engine.apply_step()
        engine.backward(engine(batch(0)) * math.inf)
        self.assertEqual(engine.prepare_step().has_overflow, 1)
        with self.assertWarnsRegex(UserWarning, "Inf or NaN"):
            self.assertEqual(engine.apply_step(clip_coefficient=1).was_updated, 0)
        engine.backward(engine(batch(0)))
        engine.prepare_step()
        engine.discard()
        self.assertFalse(engine.has_window)
        with self.assertRaisesRegex(sherd.StateError, "no step is prepared"):
            engine.apply_step()
        self.assertEqual(engine.global_steps, 1)
        engine.destroy()

    def test_windows_whose_length_is_not_known_before(self) -> None:
        """close_window() ends them, and their means are those of windows that have this length."""
        for stage in (0, 2, 3):
            engine, model, first = engine_of(stage, sherd={"open_windows": True}), made("plain"), 0
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0)
            for length in (3, 1, 2):
                for micro in range(first, first + length):
                    self.assertFalse(engine.is_gradient_accumulation_boundary())
                    engine.backward(engine(batch(micro)))
                    if micro + 1 == first + length and length != 2:
                        engine.close_window()
                        self.assertTrue(engine.is_gradient_accumulation_boundary())
                    report = engine.step()
                    (model(batch(micro)) / length).backward()
                if length == 2:
                    self.assertTrue(engine.has_window)
                    engine.close_window()
                    report = engine.step()
                self.assertTrue(report.was_updated)
                optimizer.step()
                optimizer.zero_grad()
                first += length
            self.assert_weights(engine, {name: p.detach() for name, p in model.named_parameters()})
            several = engine_of(stage, accumulation=2, options={"example": batch(0)})
            self.assertEqual(engine.memory_report().total_planned, several.memory_report().total_planned)  # with the sum
            engine.destroy()
        engine = engine_of(2, accumulation=2, deterministic=True, sherd={"open_windows": True})
        train(engine, 2)
        with self.assertRaisesRegex(sherd.StateError, "gradient_accumulation_steps is 2, the most that"):
            engine(batch(2))
        engine.close_window()
        self.assertTrue(engine.step().was_updated)
        engine.destroy()

    def test_habits_that_change_nothing(self) -> None:
        """Calls what scripts call around a step, between steps and inside of one, and what must have no effect."""
        for stage in (1, 3):
            engine = engine_of(stage, accumulation=2)
            for step in range(3):
                for half in range(2):
                    self.assertEqual(engine.is_gradient_accumulation_boundary(), half == 1)
                    with engine.no_sync():
                        loss = engine.train()(batch(2 * step + half))
                    engine.module.zero_grad(set_to_none=half == 0)
                    engine.zero_grad()
                    engine.backward(loss)
                    engine.step()
                    self.assertEqual(engine.was_step_applied(), half == 1)
                    with self.assertWarnsRegex(UserWarning, r"^sherd: engine.optimizer.step\(\) does nothing: call engine.step\(\)") \
                            if step + half == 0 else contextlib.nullcontext():  # once
                        engine.optimizer.step()
                    engine.optimizer.zero_grad()
                    with torch.no_grad():
                        engine.eval()(batch(0))
                    with torch.inference_mode():
                        engine(batch(1))
                engine.module.to("cpu").float().requires_grad_(True)
            model = made("plain")
            plain_steps(model, 3, 2)
            self.assert_weights(engine, dict(model.named_parameters()))
            engine.destroy()

    def test_grads_cleared_in_the_middle_of_backward(self) -> None:
        """Where a hook sets .grad to None, the engine copies once more and loses nothing."""
        engine = engine_of(3, options={"example": batch(0)})
        loss = engine(batch(0))
        for block in engine.module.blocks:
            block.norm.register_full_backward_hook(lambda module, *_: [setattr(p, "grad", None) for p in module.parameters()] and
                                                   None)
        engine.backward(engine(batch(0)))
        del loss
        engine.step()
        self.assert_weights(engine, trained(1))
        engine.destroy()

    def test_two_losses_and_two_forwards(self) -> None:
        engine = engine_of(3, options={"backward_uses": "any"})
        for step in range(2):
            first, second = engine(batch(step)), engine(batch(step + 10))
            engine.backward(first / 2, retain_graph=True)
            engine.backward(second / 4)
            engine.backward(engine(batch(step + 10)) / 4)
            engine.backward(first / 2)
            engine.step()
        model = made("plain")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0)
        for step in range(2):
            optimizer.zero_grad()
            (model(batch(step)) + model(batch(step + 10)) / 2).backward()
            optimizer.step()
        self.assert_weights(engine, dict(model.named_parameters()))
        engine.destroy()

    def test_every_way_into_modules_without_hooks(self) -> None:
        """Where gradients are whole until the step, backwards may come as they like: one graph twice, by the module alone, by a parameter."""
        class Open(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.kept = self.first(x)
                return self.second(self.kept)

        def gradients(model: nn.Module, backward: Any) -> None:
            x = torch.arange(8.0).view(2, 4)
            y = model(x)
            backward(y.square().mean(), retain_graph=True)
            backward(model.kept.sin().mean() + model.second.weight.square().mean(), retain_graph=True)
            backward(y.mean())
            backward(model(x).cos().mean())

        for way in ("engine", "script"):
            torch.manual_seed(3)
            model = Open()
            plain = copy.deepcopy(model)
            gradients(plain, lambda loss, **more: loss.backward(**more))
            engine = sherd.torch.initialize(model, config(0), units=[nn.Linear], world=sherd.World.self(),
                                            example=torch.ones(2, 4))
            self.assertFalse(model.first._forward_pre_hooks or model.first._forward_hooks)
            gradients(model, engine.backward if way == "engine" else lambda loss, **more: loss.backward(**more))
            engine.prepare_step()
            for param, wanted in zip(engine.division.params, plain.parameters()):
                read = torch.tensor(list(engine.core.read(param.number, "grad"))).view(wanted.shape)
                torch.testing.assert_close(read, wanted.grad, msg=lambda text: f"{way}, {param.name}: {text}")
            engine.apply_step()
            engine.destroy()

    def test_a_unit_that_is_passed_by_is_left_out_at_all_stages(self) -> None:
        """With "skip" an update depends on what a backward has reached, and it is the same at stages 0 and 3."""
        class Passed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.used, self.idle = nn.Linear(4, 4), nn.Linear(4, 4)
                self.idle.forward = lambda x: x * 2  # type: ignore[method-assign]

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.used(self.idle(self.used(x)))

        found = []
        for stage in (0, 1, 3):
            torch.manual_seed(3)
            keys = config(stage, sherd={"unused_units": "skip"},
                          optimizer={"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}})
            engine = sherd.torch.initialize(Passed(), keys, units=[nn.Linear], world=sherd.World.self(), example=torch.ones(1, 4))
            for _ in range(2):
                engine.backward(engine(torch.ones(2, 4)).square().mean())
                engine.step()
            found.append(engine.fingerprint())
            engine.destroy()
        self.assertEqual(len(set(found)), 1)

    def test_the_first_forward_may_be_inside_of_hooks_of_saved_tensors(self) -> None:
        """The caller computes the whole model again in backward, or keeps what is saved elsewhere; the trace has no part in it."""
        def around(engine: sherd.torch.Engine, ids: torch.Tensor) -> torch.Tensor:
            return torch.utils.checkpoint.checkpoint(engine, ids, use_reentrant=False)

        def moved(engine: sherd.torch.Engine, ids: torch.Tensor) -> torch.Tensor:
            with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.numpy(), torch.from_numpy):
                return engine(ids)

        for call, stages in ((around, (0, 3)), (moved, (0, 2))):
            for stage in stages:
                engine = engine_of(stage, options={"backward_uses": "any"})
                with warnings.catch_warnings():
                    warnings.simplefilter("error")  # the trace does not fail
                    engine.backward(call(engine, batch(0)))
                engine.step()
                self.assert_weights(engine, trained(1))
                engine.destroy()

    def test_too_many_uses_are_named(self) -> None:
        engine = engine_of(3, options={"example": batch(0)})
        engine.backward(engine(batch(0)))
        with self.assertRaisesRegex(sherd.StateError, "backward use.*from the first batch.*backward_uses=\"any\" where a step goes"):
            engine.backward(engine(batch(0)))
        engine.discard()
        train(engine, 1)
        self.assert_weights(engine, trained(1))
        engine.destroy()

    def test_warnings_name_the_script(self) -> None:
        """Warnings name the script's line, whichever functions of sherd and torch lie between the two."""
        with self.assertWarnsRegex(UserWarning, "no batch was there yet: give initialize.*example=") as met:
            engine = engine_of(3, comment="", nonsense=1)
            engine.seal()
        self.assertEqual({os.path.basename(one.filename) for one in met.warnings}, {os.path.basename(__file__)})
        loss = engine.module(batch(0))
        engine.hooks._stack.append((None, 0, None))  # type: ignore[arg-type] # as Ctrl-C in a forward leaves it
        with self.assertWarnsRegex(UserWarning, "dropped") as met:
            engine(batch(0))
        self.assertEqual(os.path.basename(met.filename), os.path.basename(__file__))
        del loss
        engine.destroy()

    def test_a_model_of_another_type_than_the_keys_warns(self) -> None:
        for keys, said in (({}, 'has bf16 parameters .places.*computes in fp32.*"bf16": {"enabled": true}'),
                           ({"fp16": {"enabled": True}}, "computes in fp16"), ({"bf16": {"enabled": "auto"}}, "computes in fp32")):
            with self.assertWarnsRegex(UserWarning, said) as met:
                engine_of(3, made("plain").bfloat16(), **keys).destroy()
            self.assertEqual(len(met.warnings), 1)
        for keys in ({"bf16": {"enabled": False}}, {"bf16": {"enabled": True}}):
            engine_of(3, made("plain").bfloat16(), **keys).destroy()  # a warning is an error in this file
        engine_of(3, **{"bf16": {"enabled": True}}).destroy()

    def test_steps_of_the_script_that_count_twice_or_not_at_all_are_told(self) -> None:
        scheduler = lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10)
        engine = engine_of(3, options={"example": batch(0), "lr_scheduler": scheduler})
        train(engine, 2)
        other = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1)
        for step in range(2, 5):
            engine.lr_scheduler.step()
            with warnings.catch_warnings(record=True) as met:
                warnings.simplefilter("always")
                train(engine, 1, first=step)
            self.assertEqual(["counts twice" in str(one.message) for one in met], [True] if step == 2 else [])
        engine.destroy()
        engine = engine_of(3)  # not sealed yet
        forgotten = torch.optim.SGD(engine.module.parameters(), lr=1)
        for param in engine.module.parameters():
            param.grad = torch.ones_like(param)
        with self.assertRaisesRegex(sherd.StateError, "not given this SGD.*cannot update them"):
            forgotten.step()
        for one in (other, engine.optimizer):
            with contextlib.nullcontext() if one is other else self.assertWarnsRegex(UserWarning, "optimizer.step.. does nothing"):
                one.step()
        train(engine, 2)
        self.assertFalse(_global_optimizer_pre_hooks)
        engine.destroy()

    def test_gradients_that_the_engine_has_taken_are_refused_by_name(self) -> None:
        uses: tuple[Callable[[list[nn.Parameter]], Any], ...] = (
            lambda params: nn.utils.clip_grad_norm_(params, 1.0), lambda params: nn.utils.clip_grad_value_(params, 1.0),
            lambda params: params[0].grad.norm(), lambda params: params[0].grad.mul_(2), lambda params: torch.cat([params[0].grad]))
        for stage in (0, 3):
            engine, twin = engine_of(stage, options={"example": batch(0)}), engine_of(stage, options={"example": batch(0)})
            params = list(engine.module.parameters())
            for step in range(2):
                for one in (engine, twin):
                    one.backward(one(batch(step)))
                for use in uses:
                    with self.assertRaisesRegex(sherd.StateError, "gradient of .* is not in .grad.*gradient_clipping"):
                        use(params)
                self.assertIn("Taken(", repr(params[0].grad))
                for one in (engine, twin):
                    one.step()
            self.assertEqual(engine.fingerprint(), twin.fingerprint())
            for one in (engine, twin):
                one.destroy()

    def test_gradients_that_are_cleared_are_not_in_the_step(self) -> None:
        """As in torch: a loop looks at gradients, clears them, and goes through the model again."""
        clears: tuple[Callable[[sherd.torch.Engine], Any], ...] = (
            lambda engine: engine.zero_grad(), lambda engine: engine.optimizer.zero_grad(set_to_none=False))
        for stage in (0, 1, 2, 3):
            for retains in (False, True):
                engine = engine_of(stage, options={"example": batch(0), "retain_grads": retains})
                for step in range(2):
                    for clear in clears:
                        loss = engine(batch(step + 7))
                        engine.backward(loss) if retains else loss.backward()
                        clear(engine)
                    loss = engine(batch(step))
                    clears[0](engine)  # between a forward and its backward there is nothing to clear
                    engine.backward(loss)
                    engine.step()
                self.assert_weights(engine, trained(2))
                engine.destroy()

    def test_gradients_that_are_cleared_beside_the_engine_are_refused(self) -> None:
        """The list of another optimizer also has parameters of its own, whose gradients are cleared."""
        for again in (True, False):  # another backward finds it, or the step
            engine = engine_of(3, options={"example": batch(0), "backward_uses": "any"})
            params, own = list(engine.module.parameters()), nn.Parameter(torch.ones(2))
            for clears in [functools.partial(torch.optim.SGD(order, lr=1, foreach=foreach).zero_grad, set_to_none=False)
                           for foreach in (True, False) for order in ([own, *params], [*params, own])] + [engine.module.zero_grad]:
                engine.backward(engine(batch(3)))
                own.grad = torch.ones(2)
                clears()
                if clears != engine.module.zero_grad:
                    self.assertEqual(own.grad.tolist(), [0, 0])
                with self.assertRaisesRegex(sherd.StateError, "cleared after its backward.*engine.zero_grad"):
                    engine.backward(engine(batch(3))) if again else engine.step()
                engine.discard()
            train(engine, 1)
            self.assert_weights(engine, trained(1))
            engine.destroy()

    def test_clearing_does_not_drop_other_micro_batches(self) -> None:
        engine = engine_of(1, accumulation=2, options={"example": batch(0)})
        engine.backward(engine(batch(0)))
        engine.step()
        engine.zero_grad()
        engine.backward(engine(batch(1)))
        with self.assertRaisesRegex(sherd.StateError, r"^engine.zero_grad\(\) .* drop the 1 earlier micro-batch.*engine.discard"):
            engine.zero_grad()
        engine.step()
        model = made("plain")
        plain_steps(model, 1, 2)
        self.assert_weights(engine, dict(model.named_parameters()))
        engine.destroy()

    def test_a_window_in_one_micro_batch_is_told(self) -> None:
        """Loops of plain torch go through all micro-batches before their step."""
        engine = engine_of(1, accumulation=2, options={"example": batch(0)})
        with self.assertWarnsRegex(UserWarning, "2 backward passes before this engine.step.*after each"):
            for _ in range(2):
                engine.backward(engine(batch(0)))
            engine.step()
        for _ in range(2):  # it warns once, and a warning is an error in this file
            engine.backward(engine(batch(0)))
        engine.step()
        engine.destroy()

    def test_a_forgotten_step_is_told_first(self) -> None:
        """A second backward without a step is refused where the plan knows of one. Several forwards in one backward are another fault."""
        again = "^this is backward 2 since the last engine.step.., which each micro-batch needs after its backward"
        for stage in (2, 3):
            for direct in (False, True):
                engine = engine_of(stage, options={"example": batch(0)})
                train(engine, 2)
                for attempt in (1, 2):
                    loss = engine(batch(2))
                    with self.assertRaisesRegex(sherd.StateError, again) if attempt == 2 else contextlib.nullcontext():
                        loss.backward() if direct else engine.backward(loss)
                engine.discard()
                losses = engine(batch(2)) + engine(batch(3))
                with self.assertRaisesRegex(sherd.StateError, '^unit .*backward_uses="any" where'):
                    losses.backward() if direct else engine.backward(losses)
                engine.discard()
                engine.destroy()

    def test_a_taken_gradient_is_refused_in_a_backward_too(self) -> None:
        """A hook that runs while other units are in backward computes with the gradient of a unit that is complete."""
        engine = engine_of(3, options={"example": batch(0)})
        seen: list[Any] = []

        def look(module: nn.Module, *_: Any) -> None:
            with self.assertRaisesRegex(sherd.StateError, "gradient of blocks.2.up.weight is not in .grad"):
                engine.module.blocks[2].up.weight.grad.norm()
            seen.append(module)

        engine.module.blocks[0].register_full_backward_hook(look)
        for step in range(2):
            engine.backward(engine(batch(step)))
            engine.step()
        self.assertEqual(len(seen), 2)
        self.assert_weights(engine, trained(2))
        engine.destroy()

    def test_a_change_of_a_gradient_is_refused_at_the_step(self) -> None:
        """The refused window is dropped, and the next one trains as if it had not been there."""
        def replace(params: list[nn.Parameter]) -> None:
            params[0].grad = torch.ones_like(params[0])

        kept = ((lambda params: nn.utils.clip_grad_norm_(params, 1e-9), "written"), (lambda params: params[-1].grad.mul_(3), "written"),
                (lambda params: [p.grad.zero_() for p in params], "written"), (replace, "replaced"))
        for stage in (1, 3):
            for changes in (kept, ((replace, "replaced"),)):
                engine = engine_of(stage, options={"example": batch(0), "retain_grads": changes is kept})
                params = list(engine.module.parameters())
                train(engine, 1)
                for change, said in changes:
                    engine.backward(engine(batch(5)))
                    change(params)
                    with self.assertRaisesRegex(sherd.StateError, f"was {said} by other code than a backward, and engine.step"):
                        engine.step()
                    with self.assertRaisesRegex(sherd.StateError, "the next forward drops the window"):
                        engine.step()
                    with self.assertWarnsRegex(UserWarning, "dropped"):
                        engine(batch(5))
                engine.backward(engine(batch(1)))
                engine.step()
                self.assert_weights(engine, trained(2))
                engine.destroy()

    def test_a_change_of_a_gradient_between_backwards_is_refused(self) -> None:
        """Where a step has several backwards, what was cleared, replaced or written after the first one is not lost in silence."""
        def gone(engine: sherd.torch.Engine) -> None:
            engine.module.blocks[1].up.weight.grad = None

        def ones(engine: sherd.torch.Engine) -> None:
            engine.module.blocks[1].up.weight.grad = torch.ones_like(engine.module.blocks[1].up.weight)

        def clip(engine: sherd.torch.Engine) -> None:
            nn.utils.clip_grad_norm_(engine.module.parameters(), 1e-9)

        changes = ((gone, "was cleared"), (lambda engine: engine.module.zero_grad(set_to_none=False), "was cleared"), (ones, "was replaced"),
                   (clip, "is not in .grad"))
        for stage in (0, 3):
            engine = engine_of(stage, options={"example": batch(0), "backward_uses": "any"})
            train(engine, 1)
            for again in ("forward", "graph"):
                for change, said in changes:
                    loss = engine(batch(5))
                    engine.backward(loss, retain_graph=True)
                    with self.assertRaisesRegex(sherd.StateError, f"the gradient of .* {said}"):
                        if again == "forward":
                            loss = engine(batch(6))
                        change(engine)
                        loss.backward()
                    engine.discard()
            engine.backward(engine(batch(5)))
            engine.discard()
            with self.assertRaisesRegex(sherd.StateError, "was replaced"):  # torch would add to it
                ones(engine)
                engine.backward(engine(batch(5)))
            engine.discard()
            hook = engine.module.blocks[1].up.weight.register_post_accumulate_grad_hook(
                lambda param: setattr(param, "grad", torch.ones_like(param)))
            with self.assertRaisesRegex(sherd.StateError, "the gradient of blocks.1.up.weight was replaced"):
                engine.backward(engine(batch(5)))
            hook.remove()
            engine.discard()
            engine.backward(engine(batch(1)))
            engine.step()
            self.assert_weights(engine, trained(2))
            engine.destroy()

    def test_gradients_that_are_kept_can_be_read(self) -> None:
        engine = engine_of(1, options={"example": batch(0), "retain_grads": True})
        engine.backward(engine(batch(0)))
        self.assertGreater(sum(float(p.grad.norm()) for p in engine.module.parameters()), 0)
        engine.step()
        engine.destroy()

    def test_a_skipped_update_warns_once(self) -> None:
        engine = engine_of(3, options={"example": batch(0)})
        for step in range(3):
            loss = engine(batch(step))
            engine.backward(loss * math.nan if step < 2 else loss)
            if step == 0:
                with self.assertWarnsRegex(UserWarning, "gradient of update 1 has Inf or NaN.*outside of their modules"):
                    engine.step()
            else:
                engine.step()  # a warning is an error in this file
            self.assertEqual(engine.was_step_applied(), step == 2)
        engine.destroy()
        engine = engine_of(3, options={"example": batch(0)}, fp16={"enabled": True})
        engine.backward(engine(batch(0)) * math.nan)
        engine.step()
        self.assertFalse(engine.was_step_applied())
        engine.destroy()

    def test_the_modules_own_forward_comes_first(self) -> None:
        """It seals the engine as a call of the engine does, with the order of the whole trace, in training and in evaluation."""
        order = engine_of(3, options={"example": batch(0)}).order
        for stage in (0, 2, 3):
            for is_evaluated in (False, True):
                model = made("plain")
                engine = engine_of(stage, model)
                self.assertFalse(engine.is_sealed)
                if is_evaluated:
                    with torch.no_grad():
                        self.assertEqual(model(batch(0)), made("plain")(batch(0)))
                for step in range(2):
                    model(ids=batch(step)).backward()
                    engine.step()
                self.assertEqual(engine.order, order)
                self.assertFalse(any(isinstance(hook, First) for hook in model._forward_pre_hooks.values()))
                self.assert_weights(engine, trained(2))
                engine.destroy()

    def test_a_load_comes_with_the_modules_own_forward(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            saved = engine_of(3)
            train(saved, 1)
            saved.save_checkpoint(folder)
            for stage in (0, 2, 3):
                model = made("plain")
                engine = engine_of(stage, model)
                engine.load_checkpoint(folder)
                engine.backward(model(batch(1)))
                engine.step()
                self.assert_weights(engine, trained(2))
                engine.destroy()
            saved.destroy()

    def test_forwards_that_are_not_the_engines_do_not_seal(self) -> None:
        """A copy of the model, other values in the parameters' places, a model whose engine has ended, and one of another engine."""
        model = made("plain")
        engine, other = engine_of(3, model), engine_of(3, model)
        twin, values = copy.deepcopy(model), {name: p.detach() * 2 for name, p in model.named_parameters()}
        want = twin(batch(0))
        self.assertEqual(want, made("plain")(batch(0)))
        self.assertNotEqual(torch.func.functional_call(model, values, (batch(0),)), want)
        self.assertFalse(engine.is_sealed or other.is_sealed)
        del other
        gc.collect()
        self.assertEqual(model(batch(0)), want)
        self.assertTrue(engine.is_sealed)
        engine.destroy()
        model = made("plain")
        first, second = engine_of(2, model), engine_of(2, model)
        second(batch(0))
        self.assertFalse(first.is_sealed)
        second.destroy()
        model = made("plain")
        engine_of(2, model).destroy()
        self.assertEqual(model(batch(0)), want)

    def test_module_outside_the_engine(self) -> None:
        engine = engine_of(3, options={"example": batch(0)})
        engine.module(batch(0)).backward()
        engine.step()
        block, x = engine.module.blocks[1], torch.randn(2, LENGTH, WIDTH)
        with torch.no_grad():
            self.assertTrue(torch.isfinite(block(x)).all())
        self.assertTrue(torch.isfinite(block(x)).all())
        train(engine, 1, first=1)
        self.assert_weights(engine, trained(2))
        engine.destroy()

    def test_exceptions(self) -> None:
        """After an exception in forward nothing stays acquired; after one in backward the next forward drops the window."""
        fails = {"forward": False, "backward": False}

        def fail_forward(*_: Any) -> None:
            if fails["forward"]:
                raise KeyError("in forward")

        def interrupt(*_: Any) -> None:
            raise KeyboardInterrupt

        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                return x.clone()

            @staticmethod
            def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
                if fails["backward"]:
                    raise KeyError("in backward")
                return grad

        model = made("plain")
        model.blocks[1].up.register_forward_pre_hook(fail_forward)
        model.blocks[1].up.register_forward_hook(lambda _m, _a, out: Fails.apply(out))
        engine = engine_of(3, model, options={"example": batch(0)})
        train(engine, 1)
        fails["forward"] = True
        with self.assertRaisesRegex(KeyError, "in forward"):
            engine(batch(5))
        fails["forward"] = False
        interrupts = model.blocks[1].up.register_forward_pre_hook(interrupt)
        with self.assertRaises(KeyboardInterrupt):
            engine(batch(5))
        interrupts.remove()
        fails["backward"] = True
        with self.assertWarnsRegex(UserWarning, "dropped"):
            engine(batch(7))
        loss = engine(batch(6))
        with self.assertRaisesRegex(KeyError, "in backward"):
            engine.backward(loss)
        with self.assertRaisesRegex(sherd.StateError, "failed"):
            engine.step()
        fails["backward"] = False
        with self.assertWarnsRegex(UserWarning, "dropped"):
            train(engine, 1, first=1)
        self.assert_weights(engine, trained(2))
        engine.destroy()

    def test_an_engine_for_inference(self) -> None:
        """With the optimizer none, a model whose parameters require gradients is evaluated as it is."""
        model = made("plain")
        with torch.no_grad():
            wanted = model(batch(0))
        engine = engine_of(3, model, optimizer={"type": "none"})
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                loss = engine(batch(0))
            self.assertEqual((loss.item(), loss.requires_grad), (wanted.item(), False))
        engine.destroy()

    def test_schedulers_drive_the_rate(self) -> None:
        engine = engine_of(3)
        for group in engine.optimizer.param_groups:
            group["lr"] = 1e-2
        scheduler = torch.optim.lr_scheduler.LambdaLR(engine.optimizer, lambda step: 0.5 ** step)
        for step in range(3):
            engine.backward(engine(batch(step)))
            engine.step()
            scheduler.step()
        model = made("plain")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0)
        twin = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** step)
        for step in range(3):
            optimizer.zero_grad()
            model(batch(step)).backward()
            optimizer.step()
            twin.step()
        self.assert_weights(engine, dict(model.named_parameters()))
        self.assertEqual(engine.get_lr(), scheduler.get_last_lr())
        engine.destroy()

    def test_bf16_fp16_and_autocast(self) -> None:
        for changes in ({"bf16": {"enabled": True}}, {"fp16": {"enabled": True, "initial_scale_power": 8}}):
            engine = engine_of(3, **changes)
            self.assertEqual(engine.loss_scale, 256 if "fp16" in changes else 1)
            train(engine, 3)
            self.assertTrue(engine.report.was_updated)
            self.assert_weights(engine, trained(3), rounds=True)
            if "fp16" in changes:
                with self.assertRaisesRegex(sherd.StateError, "engine.backward"):
                    engine(batch(0)).backward()
            engine.destroy()
        engine, model = engine_of(3), made("plain")
        with torch.autocast("cpu", torch.bfloat16):
            train(engine, 2)
            self.assert_weights(engine, trained(2, model), rounds=True)
        engine.destroy()

    def test_meta_model_by_init(self) -> None:
        with torch.device("meta"):
            model = made("plain")

        def init(module: nn.Module) -> None:
            for parameter in module.parameters(recurse=False):
                parameter.fill_(0.25)

        engine = engine_of(3, model, options={"init": init, "example": batch(0)})
        self.assertTrue(all((value == 0.25).all() for value in masters(engine).values()))
        self.assertTrue(torch.isfinite(engine(batch(0))))
        self.assertIs(model.head.weight, model.words.weight)
        train(engine, 2)
        engine.destroy()


class Queued(unittest.TestCase):
    """Steps that return before their update is over."""

    def test_queued_and_waited_steps_give_the_same_bits(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for stage, tier in TIERS:
                same_bits(sherd.World.self(), stage, tier, folder)

    def test_the_same_bits_on_two_ranks(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            ranks.run(2, "queued_on_ranks", folder)

    def test_parameters_that_can_be_read_at_any_time_are_new_behind_a_step(self) -> None:
        for stage in (1, 2):
            engine = engine_of(stage, wide(), bf16={"enabled": True}, zero_optimization=offloaded(stage, "cpu", ""))
            for _ in range(2):
                engine.backward(engine(torch.ones(1, SIDE, dtype=torch.bfloat16)))
                engine.step()
                shown = [param.detach().clone() for param in engine.module.parameters()]
                self.assertTrue(all(map(torch.equal, shown, [one.bfloat16() for one in masters(engine).values()])))
            engine.destroy()

    def test_what_comes_behind_a_queued_step_finds_its_values(self) -> None:
        """Each call comes first after a step, whose update takes a while."""
        x = torch.ones(1, SIDE)

        def gathered(engine: sherd.torch.Engine) -> Any:
            with sherd.torch.gathered_parameters(engine.module):
                return [param.sum().item() for param in engine.module.parameters()]

        def raising(engine: sherd.torch.Engine) -> Any:
            with mock.patch.object(engine.module[1], "forward", side_effect=KeyError("in forward")), self.assertRaises(KeyError):
                engine(x)
            return engine(x).item()

        def cleared(engine: sherd.torch.Engine) -> Any:
            engine.backward(engine(x))
            engine.zero_grad()
            return engine.fingerprint()

        def generated(engine: sherd.torch.Engine) -> Any:
            with engine.evaluating(), torch.no_grad():
                return engine(x).item()

        def loaded(engine: sherd.torch.Engine) -> Any:
            engine.load_checkpoint(folder, "first")
            return engine.fingerprint(), engine.global_steps, engine.boundary.fingerprint, engine.boundary.grad_norm

        def saved(engine: sherd.torch.Engine) -> Any:
            engine.save_checkpoint(folder, "second")
            engine.load_state_dict(zeros)
            engine.load_checkpoint(folder, "second")
            return engine.fingerprint()

        def written(engine: sherd.torch.Engine) -> Any:
            engine.load_state_dict(zeros)
            return engine.fingerprint(), engine.report.fingerprint

        zeros = {name: torch.zeros_like(param) for name, param in wide().state_dict().items()}
        calls: list[Callable[[sherd.torch.Engine], Any]] = [
            lambda engine: {name: value.sum().item() for name, value in engine.state_dict().items()}, gathered, raising, cleared, generated,
            lambda engine: engine(x).item(), lambda engine: engine.core.read(0, "exp_avg")[0], lambda engine: engine.core.read_local(0)[0],
            lambda engine: engine.fingerprint(), lambda engine: vars(copy.copy(engine.report))["fingerprint"], saved, written, loaded]
        found: list[list[Any]] = []
        for is_queued in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                engine = queueing(engine_of(3, wide(), zero_optimization=offloaded(3, "nvme", folder)), is_queued)
                engine.backward(engine(x))
                engine.step()
                engine.save_checkpoint(folder, "first")
                found.append([])
                for call in calls:
                    engine.backward(engine(x))
                    engine.step()
                    self.assertEqual("fingerprint" in vars(engine.report), not is_queued)
                    found[-1].append(call(engine))
                engine.backward(engine(x))
                report = engine.step()
                engine.destroy()
                found[-1] += [report.fingerprint, report.grad_norm]
                self.assertTrue(all(param.isnan().all() for param in engine.module.parameters()))
                engine = engine_of(3, wide(), zero_optimization=offloaded(3, "nvme", folder))
                engine.backward(engine(x))
                report = engine.step()
                del engine  # and nobody has waited
                gc.collect()
                if is_queued:
                    with self.assertRaisesRegex(sherd.StateError, "ended before"):
                        report.fingerprint
        self.assertEqual(*found)

    def test_a_drive_that_fails_is_told_by_the_call_that_waits(self) -> None:
        def forward_and_step(engine: sherd.torch.Engine) -> None:
            train(engine, 1)

        calls: list[Callable[[sherd.torch.Engine], Any]] = [
            lambda engine: engine.wait(), lambda engine: engine(batch(1)), forward_and_step, lambda engine: dict(engine.state_dict()),
            lambda engine: engine.report.fingerprint, lambda engine: engine.save_checkpoint(folder), lambda engine: engine.destroy()]
        with tempfile.TemporaryDirectory() as folder:
            engine = engine_of(zero_optimization=offloaded(3, "nvme", folder))
            train(engine, 1)
            before = engine.wait().fingerprint
            for call in calls:
                engine.backward(engine(batch(1)))
                with no_writes():
                    report = engine.step()
                    with self.assertRaisesRegex(sherd.InputOutputError, "writing state"):
                        call(engine)
                for _ in range(2):  # StateError after a call that reads state has reported it
                    with self.assertRaisesRegex((sherd.InputOutputError, sherd.StateError), "writing state"):
                        report.fingerprint
                if call is not calls[-1]:
                    with self.assertRaisesRegex(sherd.StateError, "sherd_step_undo"):
                        engine(batch(1))
                    engine.core.undo()
                    self.assertEqual((engine.fingerprint(), engine.global_steps), (before, 1))
                    with warnings.catch_warnings(record=True):  # of the window that a failed forward or step has left
                        engine(batch(1))


TIERS = [(0, "none"), (1, "cpu"), (2, "nvme"), (3, "none"), (3, "cpu"), (3, "nvme")]
SIDE = 512  # of the matrices of wide()


def offloaded(stage: int, tier: str, folder: str) -> dict[str, Any]:
    """Returns the block zero_optimization of a configuration."""
    device = {"device": tier, **({"nvme_path": folder, "buffer_size": 65536} if tier == "nvme" else {})}
    return {"stage": stage, "stage3_param_persistence_threshold": 20, **({} if tier == "none" else {"offload_optimizer": device})}


def wide() -> nn.Module:
    """Returns a model whose update takes some milliseconds. Its output is a scalar."""
    torch.manual_seed(7)
    return nn.Sequential(*(nn.Linear(SIDE, SIDE) for _ in range(3)), nn.Linear(SIDE, 1), nn.Flatten(0))


def queueing(engine: sherd.torch.Engine, is_queued: bool) -> sherd.torch.Engine:
    """Makes an engine wait for each update, unless `is_queued`. Returns it."""
    if not is_queued:
        engine._queues = lambda: False  # type: ignore[method-assign]
    return engine


@contextlib.contextmanager
def no_writes() -> Iterator[None]:
    """A context in which this process cannot write to files."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def same_bits(world: sherd.World, stage: int, tier: str, folder: str) -> None:
    """Trains by queued and by waited steps, with clipping and one overflow, and asserts that both give the same.

    The last update is made in two halves, with a rate of the script's.
    """
    found = []
    for is_queued in (True, False):
        engine = queueing(sherd.torch.initialize(made("plain"), config(stage, 2, gradient_clipping=0.5, zero_optimization=offloaded(
            stage, tier, folder)), world=world), is_queued)
        reports, known, losses, steps = [], [], [], []
        engine._has_warned = True  # of the overflow
        for micro in range(6):
            losses.append(engine(batch(6 * world.rank + micro)))
            engine.backward(losses[-1] * (math.inf if micro == 3 else 1))
            if micro == 5:
                engine.optimizer.param_groups[0]["lr"] = 0.03
                assert engine.prepare_step().is_boundary
            reports.append(engine.apply_step(clip_coefficient=0.25) if micro == 5 else engine.step())
            steps.append((engine.global_steps, engine.was_step_applied()))
            if micro % 2:
                queues = is_queued and (stage, tier) in QUEUED and micro != 3
                assert ("fingerprint" not in vars(reports[-1])) == queues, (stage, tier, micro)
            known.append(dict(vars(reports[-1])))
            assert world.rank or (reports[-1].grad_norm > 0) == (micro in (1, 5))  # one rank alone may read it
        assert engine.wait() is reports[-1]
        changed = [name for then, now in zip(known, reports) for name, value in then.items() if str(value) != str(getattr(now, name))]
        assert not changed, (stage, tier, changed)
        found.append([[loss.item() for loss in losses], steps, [
            (one.is_boundary, one.was_updated, one.has_overflow, one.fingerprint, one.grad_norm, one.clip_coefficient, one.lr, one.step,
             one.micro_step, one.skipped_steps, one.loss_scale) for one in reports], engine.fingerprint()])
        assert (reports[-1].beside_s > 0) == (is_queued and queues), (stage, tier)
        engine.destroy()
    assert str(found[0]) == str(found[1]), (stage, tier, found)  # NaN is not equal to itself
    assert [report[2] for report in found[0][2][1::2]] == [0, 1, 0], found


QUEUED = [(3, "cpu"), (3, "nvme")]


class Ranks(unittest.TestCase):
    def test_other_first_values(self) -> None:
        """Rank 0's weights are trained. With same_on_all, ranks whose weights differ are refused."""
        texts = ranks.run(2, "other_first_values")
        self.assertEqual(texts[0], texts[1])

    def test_failures(self) -> None:
        ranks.run(2, "failures")

    def test_errors_name_the_collective_call(self) -> None:
        ranks.run(2, "other_calls")
        ranks.run(2, "clears")

    def test_halves_of_steps_and_open_windows_on_two_ranks(self) -> None:
        ranks.run(2, "halves")

    def test_other_modules_on_other_ranks(self) -> None:
        """They are refused with what allows them, where something does."""
        for stage in (2, 3):
            ranks.run(2, "other_modules", str(stage), SHERD_DEBUG="0")  # with 1, all gathers meet


def halves(world: sherd.World) -> None:
    """A loop that calls the module itself, closes windows by hand and clips by a coefficient."""
    for stage in (0, 2, 3):
        model, plain, first = made("plain"), made("plain"), 0
        engine = sherd.torch.initialize(model, config(stage, sherd={"open_windows": True}), world=world)
        optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0)
        for length in (1, 3, 2):
            for micro in range(first, first + length):
                model(batch(micro * world.size + world.rank)).backward()
                if micro + 1 == first + length:
                    engine.close_window()
                report = engine.prepare_step()
                for rank in range(world.size):
                    (plain(batch(micro * world.size + rank)) / (length * world.size)).backward()
            norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.05)
            assert abs(norm.item() - report.grad_norm) < 1e-4, (norm, report.grad_norm)
            engine.apply_step(clip_coefficient=min(1, 0.05 / (report.grad_norm + 1e-6)))
            optimizer.step()
            optimizer.zero_grad()
            first += length
        for name, value in masters(engine).items():
            torch.testing.assert_close(value, dict(plain.named_parameters())[name].detach(), rtol=1e-4, atol=1e-4)
        model(batch(0)).backward()
        engine.close_window()
        engine.prepare_step()
        try:
            engine.apply_step(clip_coefficient=0.5 + world.rank)
        except sherd.InvalidError as error:
            assert str(error).endswith(f"rank {world.rank} was in engine.apply_step()"), error
        else:
            raise AssertionError("other coefficients are not noticed")
        assert engine.apply_step(clip_coefficient=0.5).clip_coefficient == 0.5
        engine.destroy()


def other_first_values(world: sherd.World) -> None:
    """The ranks' models have different weights and buffers."""
    model = made("plain") if world.rank == 0 else Model()
    for name, value in (("features", torch.rand(3, 5)), ("mask", torch.rand(4) < 0.5), ("empty", torch.zeros(0))):
        model.register_buffer(name, value + world.rank if name == "features" else value)
    engine = sherd.torch.initialize(model, config(3), world=world)
    engine.seal()
    shared = [world.share(repr(buffer.reshape(-1).tolist()).encode()) for buffer in model.buffers()]
    assert shared == [repr(buffer.reshape(-1).tolist()).encode() for buffer in model.buffers()]
    for name, value in masters(engine).items():
        assert torch.equal(value, dict(made("plain").named_parameters())[name])
    engine.destroy()
    engine = sherd.torch.initialize(made("plain") if world.rank == 0 else Model(), config(1), world=world,
                                    same_on_all=True, example=batch(0))
    try:
        engine(batch(0))
    except sherd.InvalidError as error:
        print(str(error).rpartition("; rank")[0])
    else:
        raise AssertionError("ranks that start from other values are not noticed")


def other_calls(world: sherd.World) -> None:
    """Rank 0 alone saves a checkpoint, as in a script that says `if rank == 0`."""
    engine = sherd.torch.initialize(made("plain"), config(3), world=world, example=batch(0))
    try:
        engine.save_checkpoint("unused") if world.rank == 0 else engine(batch(0))
    except sherd.InvalidError as error:
        assert str(error).endswith("; rank 0 was in engine.save_checkpoint()" if world.rank == 0 else "; rank 1 was in engine(...)"), error
    else:
        raise AssertionError("other calls are not noticed")


def other_modules(world: sherd.World) -> None:
    """Each rank leaves out another block, as LayerDrop does."""
    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor, left_out: int) -> torch.Tensor:
            for number, block in enumerate(self.blocks):
                x = x if number == left_out else block(x)
            return x.square().mean()

    for options in ({"backward_uses": "any"}, {}):
        engine = sherd.torch.initialize(Drops(), config(int(sys.argv[2])), world=world, example=(torch.ones(2, 4), -1), **options)
        try:
            engine.backward(engine(torch.ones(2, 4), world.rank))
            engine.step()
            assert options, "what the ranks do differently is not noticed"
        except sherd.InvalidError as error:
            assert not options and 'If the ranks run different modules' in str(error) and 'backward_uses="any")' in str(error), error


def queued_on_ranks(world: sherd.World) -> None:
    """Queued steps give the same bits, and a drive that fails on one rank is reported to both."""
    for stage, tier in TIERS:
        same_bits(world, stage, tier, sys.argv[2])
    engine = sherd.torch.initialize(made("plain"), config(3, zero_optimization=offloaded(3, "nvme", sys.argv[2])), world=world)
    train(engine, 1)
    before = engine.wait().fingerprint
    engine.backward(engine(batch(1)))
    with no_writes() if world.rank == 1 else contextlib.nullcontext():
        engine.step()
        try:
            engine.wait()
            raise AssertionError("the failure was not raised")
        except sherd.InputOutputError as error:
            assert ("writing state" in str(error)) == (world.rank == 1) and "rank 1" in str(error) and "engine.wait()" in str(error), error
    engine.core.undo()
    assert engine.fingerprint() == before
    engine.destroy()


def clears(world: sherd.World) -> None:
    """The library fails while gradients are dropped, and the error has what the script has called."""
    engine = sherd.torch.initialize(made("plain"), config(3), world=world, example=batch(0))
    engine.backward(engine(batch(0)))
    for call, clear in (("engine.zero_grad()", engine.zero_grad), ("optimizer.zero_grad()", engine.optimizer.zero_grad),
                        ("engine.discard()", engine.discard)):
        with mock.patch.object(engine.core, "discard", side_effect=sherd.PeerLostError("a rank is lost")):
            try:
                clear()
            except sherd.PeerLostError as error:
                assert str(error) == f"a rank is lost; rank {world.rank} was in {call}", error
            else:
                raise AssertionError("the failure was not raised")
    engine.optimizer.zero_grad()
    engine.destroy()


def failures(world: sherd.World) -> None:
    """The forward fails on all ranks, and they continue. Then one rank gives up, and the other one gets an error that says why."""
    engine = sherd.torch.initialize(made("plain"), config(3), world=world, example=batch(0))
    fails = [False]

    def fail(*_: Any) -> None:
        if fails[0]:
            raise KeyError("in forward")

    engine.module.blocks[1].up.register_forward_pre_hook(fail)
    train(engine, 1)
    fails[0] = True
    try:
        engine(batch(1))
    except KeyError:
        fails[0] = False
    train(engine, 1, first=1)
    for name, value in masters(engine).items():
        torch.testing.assert_close(value, trained(2)[name], rtol=1e-4, atol=1e-4)
    if world.rank == 1:
        world.abort("rank 1 has had enough")
        return
    try:
        train(engine, 2)
    except sherd.PeerLostError as error:
        assert "had enough" in str(error)
    else:
        raise AssertionError("rank 0 went on alone")


if __name__ == "__main__":
    if ranks.rank() is not None:
        globals()[sys.argv[1]](sherd.World.from_env())
        sys.exit()
    ranks.ready()
    warnings.filterwarnings("error", message="sherd")
    unittest.main(argv=sys.argv, warnings=False)  # the filters stay as they are

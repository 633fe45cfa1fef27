"""Tests PyTorch on a GPU: the engine's memory as tensors of the device, and weights as plain torch makes them there.

The test is skipped where torch finds no GPU.
"""
from __future__ import annotations

import copy
import importlib.util
import os
import pathlib
import sys
import unittest
from types import ModuleType
from unittest import mock

import ranks

os.environ.setdefault("SHERD_BACKEND", "cuda")
try:
    import torch
except ImportError as error:
    ranks.skip(f"torch is not here: {error}")
if not torch.cuda.is_available():
    ranks.skip("torch has no CUDA here")

import sherd
import sherd.torch
from sherd.torch import activations
from test_torch_core import batch, config, made

STEPS = 4
# At this rate torch alone comes to 0.05 to 0.08 of the first loss in so many steps, whatever the seed. At 1e-2 its loss jumps about,
# and how far it falls says nothing.
RATE, EXAMPLE_STEPS = 3e-3, 40
SAME_STEPS = 10  # after these, what was rounded otherwise may have grown


def example(name: str) -> ModuleType:
    """Returns a script of examples/pytorch as a module."""
    path = pathlib.Path(__file__).resolve().parents[2] / "examples" / "pytorch" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trained_by_torch() -> dict[str, torch.Tensor]:
    model = made("plain").cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(step).cuda()).backward()
        optimizer.step()
    return {name: p.detach().cpu() for name, p in model.named_parameters()}


def losses_of_torch(model: torch.nn.Module, rows: torch.Tensor) -> list[float]:
    """Returns the losses of the example, trained by torch alone."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0)
    losses = []
    for _ in range(EXAMPLE_STEPS):
        optimizer.zero_grad()
        loss = model(rows[:, :-1], rows[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Device(unittest.TestCase):
    def setUp(self) -> None:
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.set_default_device("cuda")

    def tearDown(self) -> None:
        torch.set_default_device("cpu")

    def test_parameters_and_gradients_are_on_the_device(self) -> None:
        for stage in range(4):
            engine = sherd.torch.initialize(made("plain"), config(stage), world=sherd.World.self())
            loss = engine(batch(0).cuda())
            engine.backward(loss)
            self.assertEqual((engine.device.type, loss.device.type), ("cuda", "cuda"))
            for param in engine.module.parameters():
                self.assertEqual(param.device, engine.device)
            engine.step()

    def test_every_stage_follows_plain_torch(self) -> None:
        torch.set_default_device("cpu")  # models are made on the CPU, so that both start from the same values
        wanted = trained_by_torch()
        for stage in range(4):
            engine = sherd.torch.initialize(made("plain"), config(stage), world=sherd.World.self())
            for step in range(STEPS):
                engine.backward(engine(batch(step).cuda()))
                engine.step()
            for p in engine.division.params:
                got = torch.tensor(list(engine.core.read(p.number))).view(wanted[p.name].shape)
                torch.testing.assert_close(got, wanted[p.name], rtol=1e-3, atol=1e-4, msg=lambda text: f"stage {stage}, {p.name}: {text}")

    def test_activations_keep_the_bits(self) -> None:
        results = []
        for device in ("none", "cpu"):
            with mock.patch.object(activations, "LEAST_BYTES", 1):
                keys = {"deterministic": True, "sherd": {"activations": {"device": device, "buffer_count": 1}}}
                engine = sherd.torch.initialize(made("plain"), config(3, **keys), world=sherd.World.self(), example=batch(0).cuda())
                losses = []
                for step in range(STEPS):
                    losses.append(engine(batch(step).cuda()))
                    engine.backward(losses[-1])
                    engine.step()
            results.append(([loss.item() for loss in losses], engine.fingerprint()))
            self.assertEqual(engine.memory_report().host_activations_planned > 0, device == "cpu")
            engine.destroy()
        self.assertEqual(*results)

    def test_the_example_learns(self) -> None:
        rows = torch.arange(2 * 33).view(2, 33) % 50
        torch.manual_seed(1)
        model = example("nanogpt").GPT(layers=2, width=64, heads=4, length=32)
        wanted = losses_of_torch(copy.deepcopy(model), rows)
        engine = sherd.torch.initialize(model, config(3, optimizer={"type": "AdamW", "params": {"lr": RATE}}))
        losses = []
        for _ in range(EXAMPLE_STEPS):
            loss = engine(rows[:, :-1], rows[:, 1:])
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, by torch alone {wanted[0]:.4f} -> {wanted[-1]:.4f}")
        torch.testing.assert_close(torch.tensor(losses[:SAME_STEPS]), torch.tensor(wanted[:SAME_STEPS]), rtol=1e-2, atol=0)
        self.assertLess(losses[-1], 0.5 * losses[0])


if __name__ == "__main__":
    unittest.main(argv=sys.argv)

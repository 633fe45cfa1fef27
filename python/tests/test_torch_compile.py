"""Tests torch.compile around a model, on it, on its blocks, and on one that an engine has: the weights are plain torch's."""
from __future__ import annotations

import os
import unittest
from unittest import mock

import ranks

try:
    import torch
except ImportError as error:
    ranks.skip(str(error))

os.environ["SHERD_DEBUG"] = "1"  # parameters that are not acquired are NaN

import sherd.torch
import torch._dynamo
from torch import nn

STEPS = 3
BACKEND = "aot_eager"  # all of torch.compile except the compiler that makes C++
CONFIG = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0,
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "eps": 1e-3}}}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def made() -> Model:
    torch.manual_seed(1)
    return Model()


def batch(step: int) -> torch.Tensor:
    return torch.randint(0, 16, (2, 8), generator=torch.Generator().manual_seed(step))


def loss_of(model, step: int) -> torch.Tensor:
    ids = batch(step)
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.roll(1, 1).flatten())


def plain() -> dict[str, torch.Tensor]:
    """Returns the weights that plain torch makes."""
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3, weight_decay=0)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    return model.state_dict()


def compiled(form: str) -> nn.Module:
    """Returns the model with torch.compile applied in one of the forms; "afterwards" is not applied here."""
    model = made()
    if form == "around":
        return torch.compile(model, backend=BACKEND)
    for module in {"model": [model], "blocks": model.blocks}.get(form, []):
        module.compile(backend=BACKEND)
    return model


class TestCompile(unittest.TestCase):
    def test_forms(self) -> None:
        want = plain()
        for stage in (0, 3):
            for form in ("around", "model", "blocks", "afterwards"):
                with self.subTest(form, stage=stage):
                    keys = {"zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}
                    engine = sherd.torch.initialize(compiled(form), {**CONFIG, **keys}, example=batch(0))
                    if form == "afterwards":
                        engine.module.compile(backend=BACKEND)
                    self.assertTrue(engine.order.is_traced, engine.order.reason)
                    for step in range(STEPS):
                        engine.backward(loss_of(engine, step))
                        engine.step()
                    got = dict(engine.state_dict())
                    self.assertEqual(got.keys(), want.keys())
                    for name, tensor in got.items():
                        torch.testing.assert_close(tensor, want[name], rtol=1e-5, atol=1e-6, msg=name)
                    engine.destroy()
                    torch.compiler.reset()

    def test_code_that_was_compiled_without_the_engine(self) -> None:
        """The model, or another one of its class, has run compiled before the engine had it, and the other one runs in the same process."""
        want = plain()
        for is_same in (True, False):
            with self.subTest(is_same=is_same), mock.patch.object(torch._dynamo.config, "skip_nnmodule_hook_guards", True):
                model, other = compiled("around"), compiled("around")
                first = model if is_same else other
                loss_of(first, 0).backward()
                first.zero_grad()
                keys = {"zero_optimization": {"stage": 1}}
                engine = sherd.torch.initialize(model, {**CONFIG, **keys})
                for step in range(STEPS):
                    loss_of(other, step).backward()
                    engine.backward(loss_of(engine, step))
                    engine.step()
                for name, tensor in engine.state_dict().items():
                    torch.testing.assert_close(tensor, want[name], rtol=1e-5, atol=1e-6, msg=name)
                engine.destroy()
                torch.compiler.reset()


if __name__ == "__main__":
    unittest.main()

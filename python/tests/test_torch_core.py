"""Tests units, order and hooks: the gradients of many kinds of models equal plain torch's.

SHERD_DEBUG=1 fills memory with NaN outside of its use.
"""
from __future__ import annotations

import os
import sys
import unittest
import warnings
from typing import Any, Callable

import ranks

os.environ.setdefault("SHERD_DEBUG", "1")
try:
    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.checkpoint import checkpoint
except ImportError as error:
    ranks.skip(f"torch is not here: {error}")

import sherd
import sherd.torch

WIDTH, WORDS, LENGTH = 16, 32, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """A model of blocks, with a tied head and a parameter of its own; ids [2, LENGTH] -> mean loss. `run` calls a block."""

    def __init__(self, run: Callable[..., Any] | None = None, blocks: int = 3) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.blocks = nn.ModuleList([Block() for _ in range(blocks)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.run = run or (lambda block, x: block(x))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places
        for block in self.blocks:
            x = self.run(block, x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), ids.flatten())


class Segment(Model):
    """A model in which torch.utils.checkpoint computes two blocks at a time again."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__(blocks=4)
        self.reentrant = reentrant

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places
        for i in (0, 2):
            x = checkpoint(lambda x, i=i: self.blocks[i + 1](self.blocks[i](x)), x, use_reentrant=self.reentrant)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), ids.flatten())


class Twice(Model):
    """A model that calls two of its blocks twice, and the third one never."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.words(ids.flip(0)) + self.places
        for block in [self.blocks[0], self.blocks[1], self.blocks[0], self.blocks[1]]:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), ids.flatten())


class Adapted(nn.Module):
    """A frozen layer, which comes first, with a small trainable part."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH)
        self.base.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.base(x).tanh()
        return out + self.b(self.a(x))


class Frozen(Model):
    """A model of which large parts are frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Adapted() for _ in range(3)])
        self.words.weight.requires_grad_(False)
        self.norm.requires_grad_(False)


class Reader(nn.Module):
    """A module that uses the weight of another module, which it does not call."""

    def __init__(self, other: nn.Linear) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.others = [other]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x * self.scale, self.others[0].weight)


class Stray(Model):
    """A model with a Reader of one of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.reader = Reader(self.middle)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.middle(self.words(ids) + self.places)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.reader(self.norm(x))).flatten(0, 1), ids.flatten())


class Pair(nn.Module):
    """A block that returns a dict with two tensors, one of which goes straight to the loss. Some parameters are never used."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.unused = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(2, 2)

    def forward(self, *, x: torch.Tensor, aux: torch.Tensor) -> dict[str, Any]:
        return {"x": x + self.one(x), "aux": [aux + self.two(x).pow(2).mean()], "none": None}


class Pairs(Model):
    """A model of such blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Pair() for _ in range(3)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, aux = self.words(ids) + self.places, torch.zeros(())
        for block in self.blocks:
            out = block(x=x, aux=aux)
            x, aux = out["x"], out["aux"][0]
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), ids.flatten()) + aux


class Floats(nn.Module):
    """A model with a float input that has no gradient, attention, a convolution, and a module that returns a view of its
    parameter."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Parameter(torch.randn(WORDS, WIDTH))

        def forward(self) -> torch.Tensor:
            return self.rows[:LENGTH]

    def __init__(self) -> None:
        super().__init__()
        self.table = self.Table()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 32, 0.0, batch_first=True), 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = F.one_hot(ids % WIDTH, WIDTH).float()
        x = self.conv(x.transpose(1, 2)).transpose(1, 2) + self.table()
        return self.layers(x + self.attention(x, x, x)[0]).pow(2).mean()


class InPlace(nn.Module):
    """A model whose modules change in place their own inputs, which are other modules' outputs."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.up(F.relu(x, inplace=True))

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH))
        self.layers = nn.ModuleList([self.Layer() for _ in range(3)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.first(F.one_hot(ids % WIDTH, WIDTH).float())
        for layer in self.layers:
            x = layer(x)
        return x.pow(2).mean()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": Model,
    "reentrant": lambda: Model(lambda block, x: checkpoint(block, x, use_reentrant=True)),
    "recomputed": lambda: Model(lambda block, x: checkpoint(block, x, use_reentrant=False)),
    "segment_reentrant": lambda: Segment(True),
    "segment": lambda: Segment(False),
    "twice": Twice,
    "frozen": Frozen,
    "stray": Stray,
    "pairs": Pairs,
    "floats": Floats,
    "in_place": InPlace,
}


def batch(seed: int) -> torch.Tensor:
    """Returns ids [2, LENGTH], drawn from the seed."""
    return torch.randint(0, WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(seed), device="cpu")


def config(stage: int, accumulation: int = 1, **changes: Any) -> dict[str, Any]:
    return {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": accumulation, "gradient_clipping": 0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, **changes}


def made(name: str) -> nn.Module:
    """Returns a model of MODELS, with the same weights each time."""
    torch.manual_seed(7)
    return MODELS[name]()


def plain_steps(model: nn.Module, steps: int, batches: int) -> list[dict[str, torch.Tensor]]:
    """Trains a model in plain torch, and returns the gradients of every step, each the mean over `batches` batches."""
    optimizer, result = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0), []
    for step in range(steps):
        optimizer.zero_grad()
        for i in range(batches):
            (model(batch(step * batches + i)) / batches).backward()
        result.append({name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
                       for name, p in model.named_parameters() if p.requires_grad})
        for p in model.parameters():
            if p.requires_grad and p.grad is None:
                p.grad = torch.zeros_like(p)  # the engine updates such a parameter by a gradient of zero
        optimizer.step()
    return result


def engine_step(engine: sherd.torch.Engine, step: int, accumulation: int = 1) -> dict[str, torch.Tensor]:
    """Runs one window of the engine, and returns the gradients by which it updates."""
    world = engine.world
    for i in range(accumulation):
        loss = engine(batch((step * accumulation + i) * world.size + world.rank))
        engine.backward(loss)
        report = engine.prepare_step()
    assert report.is_boundary
    grads = {p.name: torch.tensor(list(engine.core.read(p.number, "grad"))).view(p.tensor.shape)
             for p in engine.division.params if not p.is_frozen}
    engine.apply_step()
    return grads


def compare(name: str, world: sherd.World, stage: int, traced: bool, accumulation: int = 1, steps: int = 3) -> None:
    """Compares the gradients of a few steps with plain torch's. Without `traced` the order is that of registration."""
    expected = plain_steps(made(name), steps, accumulation * world.size)
    model = made(name)
    engine = sherd.torch.initialize(model, config(stage, accumulation), world=world,
                                    example=batch(0) if traced else None)
    if not traced:
        engine.seal()
    for step in range(steps):
        for param, grad in engine_step(engine, step, accumulation).items():
            wanted = expected[step][param]
            assert torch.allclose(grad, wanted, rtol=2e-4, atol=2e-6), \
                f"{name}, stage {stage}, traced {traced}, step {step}: {param} differs by {(grad - wanted).abs().max()}"
        with torch.no_grad():
            assert torch.isfinite(engine(batch(99)))
    engine.destroy()


def on_ranks() -> None:
    """What each rank of several does."""
    world = sherd.World.from_env()
    warnings.simplefilter("ignore")
    for name in sys.argv[2].split(","):
        for stage in (1, 2, 3):
            compare(name, world, stage, traced=True, accumulation=1 + stage % 2, steps=2)
    compare("plain", world, 3, traced=False, accumulation=2, steps=2)


class TestGradients(unittest.TestCase):
    def test_every_model_alone(self) -> None:
        warnings.filterwarnings("error", message="sherd")
        for name in MODELS:
            for stage in (0, 2, 3) if os.environ.get("SHERD_TEST_LONG") else (0, 3):
                with self.subTest(model=name, stage=stage):
                    compare(name, sherd.World.self(), stage, traced=True)

    def test_order_of_registration(self) -> None:
        for name in ("plain", "recomputed", "segment_reentrant", "twice", "frozen", "pairs"):
            for stage in (1, 3):
                with self.subTest(model=name, stage=stage), self.assertWarnsRegex(UserWarning, "registration"):
                    compare(name, sherd.World.self(), stage, traced=False, accumulation=2)

    def test_three_ranks(self) -> None:
        """With SHERD_TEST_LONG, two ranks too."""
        for size in (2, 3) if os.environ.get("SHERD_TEST_LONG") else (3,):
            ranks.run(size, "on_ranks", "plain,twice,segment,frozen,segment_reentrant")


if __name__ == "__main__":
    if ranks.rank() is not None:
        on_ranks()
    else:
        unittest.main()

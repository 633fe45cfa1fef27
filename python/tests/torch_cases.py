"""Modules for test_torch_modules.py, each with its input and with one window of forwards and backwards.

A case is a class: `make()` gives the module, `feed(draw)` one rank's input of a step, and `window(t, x)` runs the forwards
and backwards of a step, where t(x) calls the module and t.backward(loss) runs backward; it may return tensors (gradients of
inputs, losses) that have to equal plain torch's too. Inputs are drawn, so ranks and steps have different ones.
"""
from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

ROWS, LENGTH, WIDTH, VOCAB = 3, 5, 8, 16


class Case:
    """Floats [ROWS, LENGTH, WIDTH] in, the mean square out."""

    uses: str | None = None  # backward_uses of the engine
    unused: tuple[str, ...] = ()  # parameters that get no gradient in any step

    def make(self) -> nn.Module:
        raise NotImplementedError

    def feed(self, draw: torch.Generator) -> torch.Tensor:
        return torch.randn(ROWS, LENGTH, WIDTH, generator=draw)

    def window(self, t, x):
        loss = t(x).square().mean()
        t.backward(loss)
        return [loss.detach()]


class Chain(nn.Module):
    """Parts one after the other, in a ModuleList as the layers of a model are."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x


class Mlp(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


def mlps(count: int = 3) -> Chain:
    return Chain(*(Mlp() for _ in range(count)))


class TokenCase(Case):
    def feed(self, draw):
        return torch.randint(VOCAB, (ROWS, LENGTH), generator=draw)


# ------------------------------------------------------------ single modules --


class LinearCase(Case):
    def make(self):
        return Chain(nn.Linear(WIDTH, 12), nn.Linear(12, 6, bias=False))


class EmbeddingCase(TokenCase):
    def make(self):
        return Chain(nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, 4))


class NormCase(Case):
    def make(self):
        return Chain(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.RMSNorm(WIDTH), nn.GroupNorm(1, LENGTH), nn.Linear(WIDTH, 3))

    def window(self, t, x):  # of cubes: the squares of what a norm makes have no gradient
        loss = t(x).pow(3).mean()
        t.backward(loss)
        return [loss.detach()]


class ConvCase(Case):
    def make(self):
        return Chain(nn.Conv1d(LENGTH, 6, 3, padding=1), nn.GELU(), nn.Conv1d(6, 4, 1, bias=False), nn.BatchNorm1d(4), nn.Conv1d(4, 2, 1))


class RecurrentCase(Case):
    """Its weights are in a list that torch makes beside the parameters."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent = nn.LSTM(WIDTH, 6, num_layers=2, batch_first=True)

        def forward(self, x):
            return self.recurrent(x)[0]

    def make(self):
        return self.Module()


class AttentionCase(Case):
    """MultiheadAttention reads the weight of its out_proj without calling it."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(WIDTH, WIDTH)
            self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

        def forward(self, x):
            x = self.first(x)
            return self.attention(x, x, x, need_weights=False)[0]

    def make(self):
        return self.Module()


class ScaledDotCase(Case):
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
            return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    def make(self):
        return Chain(self.Module(), self.Module())


class EncoderCase(Case):
    def make(self):
        layers = (nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True) for _ in range(2))
        return Chain(*layers, nn.Linear(WIDTH, 3))


# ------------------------------------------------------- sharing and freezing --


class TiedCase(TokenCase):
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.layers = nn.Embedding(VOCAB, WIDTH), mlps(2)
            self.head = nn.Linear(WIDTH, VOCAB, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, tokens):
            return self.head(self.layers(self.tokens(tokens)))

    def make(self):
        return self.Module()

    def window(self, t, tokens):
        loss = F.cross_entropy(t(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
        t.backward(loss)
        return [loss.detach()]


class ReadByParentCase(TiedCase):
    """The parent reads the weights of modules that it does not call."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places, self.layers = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH), mlps(2)
            self.scale = nn.Parameter(torch.ones(WIDTH))

        def forward(self, tokens):
            x = self.layers(self.tokens(tokens) + self.places.weight)
            return F.linear(x * self.scale, self.tokens.weight)

    def make(self):
        return self.Module()


class SharedBlockCase(Case):
    """Two names for one block."""

    def make(self):
        block = Mlp()
        return Chain(block, Mlp(), block)


class CalledTwiceCase(Case):
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.last = Mlp(), Mlp()

        def forward(self, x):
            return self.last(self.block(self.block(x) * 0.5))

    def make(self):
        return self.Module()


class LoraCase(Case):
    """A frozen base with a trained addition."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(WIDTH, WIDTH)
            self.base.requires_grad_(False)
            self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

        def forward(self, x):
            return torch.tanh(self.base(x) + self.up(self.down(x)))

    def make(self):
        return Chain(*(self.Module() for _ in range(3)))


class FrozenBlockCase(Case):
    """The gradient passes through a block that has none of its own."""

    def make(self):
        model = mlps(3)
        model.parts[1].requires_grad_(False)
        return model


class FrozenStartCase(Case):
    """No gradient passes through the first blocks."""

    def make(self):
        model = mlps(3)
        model.parts[0].requires_grad_(False)
        return model


class UnusedCase(Case):
    unused = ("parts.1.spare.weight", "parts.1.spare.bias")

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return self.used(x)

    def make(self):
        return Chain(Mlp(), self.Module(), Mlp())


class UnusedBlockCase(Case):
    """A whole block is out of every other step."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks, self.calls = nn.ModuleList(Mlp() for _ in range(3)), 0

        def forward(self, x, is_whole):
            for number, block in enumerate(self.blocks):
                x = block(x) if is_whole or number != 1 else x
            return x

    def make(self):
        return self.Module()

    def window(self, t, x):
        loss = t(x, t.step_number % 2 == 0).square().mean()
        t.backward(loss)
        return [loss.detach()]


class NoGradientUsedCase(Case):
    """What a block makes is detached: it runs, and nothing comes back to it."""

    unused = ("first.up.weight", "first.up.bias", "first.down.weight", "first.down.bias")

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = Mlp(), Mlp()

        def forward(self, x):
            return self.last(self.first(x).detach())

    def make(self):
        return self.Module()


# ------------------------------------------------------------- recomputation --


class CheckpointCase(Case):
    is_reentrant, segment = False, 1

    class Module(nn.Module):
        def __init__(self, is_reentrant, segment):
            super().__init__()
            self.is_reentrant, self.segment = is_reentrant, segment
            self.first, self.blocks = nn.Linear(WIDTH, WIDTH), nn.ModuleList(Mlp() for _ in range(4))

        def run(self, x, first):
            for block in self.blocks[first:first + self.segment]:
                x = block(x)
            return x

        def forward(self, x):
            x = self.first(x)
            for first in range(0, len(self.blocks), self.segment):
                x = checkpoint(self.run, x, first, use_reentrant=self.is_reentrant)
            return x

    def make(self):
        return self.Module(self.is_reentrant, self.segment)


class CheckpointReentrantCase(CheckpointCase):
    is_reentrant = True


class CheckpointSegmentCase(CheckpointCase):
    segment = 2


class CheckpointSegmentReentrantCase(CheckpointCase):
    is_reentrant, segment = True, 2


class DropoutCase(CheckpointCase):
    """What is recomputed draws the same numbers again."""

    class Module(CheckpointCase.Module):
        def run(self, x, first):
            return F.dropout(super().run(x, first), 0.3, self.training)

    def window(self, t, x):
        torch.manual_seed(t.step_number)
        return super().window(t, x)


# ------------------------------------------------- inputs, losses and windows --


class InputGradientCase(Case):
    def make(self):
        return mlps(3)

    def window(self, t, x):
        x = x.requires_grad_()
        loss = t(x).square().mean()
        t.backward(loss)
        return [loss.detach(), x.grad]


class DictionaryCase(Case):
    """What goes in and out is nested, and not all of it is used."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = Mlp(), Mlp()

        def forward(self, inputs, *, scale):
            left = self.left(inputs["x"])
            return {"sides": (left, self.right(left) * scale), "rest": None}

    def make(self):
        return self.Module()

    def window(self, t, x):
        out = t({"x": x}, scale=0.5)
        loss = out["sides"][1].square().mean()
        t.backward(loss)
        return [loss.detach()]


class TwoLossesCase(Case):
    """One forward, two backwards through the same graph."""

    uses = "any"

    def make(self):
        return mlps(3)

    def window(self, t, x):
        out = t(x)
        first, second = out.square().mean(), out.abs().mean()
        t.backward(first, retain_graph=True)
        t.backward(second)
        return [first.detach(), second.detach()]


class SummedLossesCase(Case):
    """Two forwards before one backward."""

    uses = "any"

    def make(self):
        return mlps(3)

    def window(self, t, x):
        loss = t(x).square().mean() + t(x.flip(0) * 0.5).abs().mean()
        t.backward(loss)
        return [loss.detach()]


class TwoPairsCase(Case):
    """Two forwards, each with its backward, before the step."""

    uses = "any"

    def make(self):
        return mlps(3)

    def window(self, t, x):
        losses = []
        for value in (x, x.flip(0) * 0.5):
            loss = t(value).square().mean()
            t.backward(loss)
            losses.append(loss.detach())
        return losses


class CrossedPairsCase(Case):
    """Two forwards, then the two backwards."""

    uses = "any"

    def make(self):
        return mlps(3)

    def window(self, t, x):
        losses = [t(value).square().mean() for value in (x, x.flip(0) * 0.5)]
        for loss in losses:
            t.backward(loss)
        return [loss.detach() for loss in losses]


class EvaluationCase(Case):
    def make(self):
        return mlps(3)

    def window(self, t, x):
        with torch.no_grad():
            before = t(x).square().mean()
        loss = t(x).square().mean()
        t.backward(loss)
        with torch.no_grad():
            after = t(x * 2).square().mean()
        return [before, loss.detach(), after]


class EvaluationBetweenCase(Case):
    """An evaluation between a forward and its backward."""

    def make(self):
        return mlps(3)

    def window(self, t, x):
        loss = t(x).square().mean()
        with torch.no_grad():
            between = t(x * 2).square().mean()
        t.backward(loss)
        return [between, loss.detach()]


class Stop(Exception):
    """What the module below raises."""


class RaisingCase(Case):
    """A forward that ends in the middle, before the one that counts."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Mlp() for _ in range(3))

        def forward(self, x, is_stopped=False):
            for number, block in enumerate(self.blocks):
                if is_stopped and number == 2:
                    raise Stop
                x = block(x)
            return x

    def make(self):
        return self.Module()

    def window(self, t, x):
        try:
            t(x, is_stopped=True)
        except Stop:
            pass
        loss = t(x).square().mean()
        t.backward(loss)
        return [loss.detach()]


class DroppedForwardCase(Case):
    """A forward in training mode whose loss nobody uses."""

    def make(self):
        return mlps(3)

    def window(self, t, x):
        t(x * 3)
        loss = t(x).square().mean()
        t.backward(loss)
        return [loss.detach()]


class HookedCase(Case):
    """The person's own hooks see parameters and gradients."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = mlps(2)

        def forward(self, x):
            x = self.blocks(x)
            x.register_hook(lambda gradient: gradient * 2) if x.requires_grad else None
            return x

    def make(self):
        return self.Module()


class AutocastCase(Case):
    def make(self):
        return mlps(3)

    def window(self, t, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = t(x).float().square().mean()
        t.backward(loss)
        return [loss.detach()]


def all_cases() -> dict[str, Case]:
    found = [Case]
    for kind in found:
        found += [sub for sub in kind.__subclasses__() if sub not in found]
    return {kind.__name__.removesuffix("Case"): kind() for kind in found if kind not in (Case, TokenCase)}

"""Draws models for test_torch_ways.py: blocks whose loss leaves them by another way than an output, or by one.

A block computes x + body(x), and a second loss by a probe. Drawn are the body, what the model does around its blocks, the way
by which the second loss leaves the block, whether the probe is frozen, trained or also on the main path, whether it comes before or
after the output, and how the training calls it.
"""
from __future__ import annotations

import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from torch_cases import LENGTH, ROWS, Case

WAYS = ("output", "attribute", "list", "object given", "object returned", "closure", "autograd function", "hook", "read by the caller")
PROBES = ("frozen", "trained", "on the main path")
AROUND = ("chain", "tied", "skips", "dict")
SEEN: list[torch.Tensor] = []


class Bag:
    """An object of a class of its own, in which no search for tensors looks."""

    def __init__(self) -> None:
        self.items: list[torch.Tensor] = []


class OnContext(torch.autograd.Function):
    """A matrix product that keeps the weight on its context, past what autograd saves."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.x, ctx.weight = x, weight
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        return grad @ ctx.weight, grad.flatten(0, -2).t() @ ctx.x.flatten(0, -2)


# ---------------------------------------------------------------------- bodies --

class Body(nn.Module):
    """The base of what blocks compute: [ROWS, LENGTH, width] of both. Its linear layer is `mix`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width)

    def forward(self, x):
        return torch.tanh(self.mix(x))


class Gated(Body):
    def __init__(self, width):
        super().__init__(width)
        self.gate = nn.Linear(width, width)

    def forward(self, x):
        return F.silu(self.gate(x)) * self.mix(x)


class Normed(Body):
    def __init__(self, width):
        super().__init__(width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return self.mix(self.norm(x))


class Scaled(Body):
    def __init__(self, width):
        super().__init__(width)
        self.norm, self.scale = nn.RMSNorm(width), nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x):
        return self.mix(self.norm(x)) * self.scale


class Attention(Body):
    def __init__(self, width):
        super().__init__(width)
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.mix(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Multihead(Body):
    def __init__(self, width):
        super().__init__(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x):
        return self.mix(self.attention(x, x, x)[0])


class Convolved(Body):
    def __init__(self, width):
        super().__init__(width)
        self.over = nn.Conv1d(LENGTH, LENGTH, 3, padding=1)

    def forward(self, x):
        return self.mix(torch.tanh(self.over(x)))


class Recurrent(Body):
    def __init__(self, width):
        super().__init__(width)
        self.recurrent = nn.LSTM(width, width, batch_first=True)

    def forward(self, x):
        return self.mix(self.recurrent(x)[0])


class Experts(Body):
    def __init__(self, width):
        super().__init__(width)
        self.router, self.experts = nn.Linear(width, 2), nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, x):
        shares = self.router(x).softmax(-1)
        return self.mix(sum(shares[..., i:i + 1] * expert(x) for i, expert in enumerate(self.experts)))


class Twice(Body):
    def forward(self, x):
        return torch.tanh(self.mix(torch.tanh(self.mix(x))))


class WeightNormed(Body):
    def __init__(self, width):
        super().__init__(width)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(width, width))

    def forward(self, x):
        return self.mix(torch.tanh(self.normed(x)))


class Nested(Body):
    """It has blocks of its own, which are units where the policy divides by size."""

    def __init__(self, width):
        super().__init__(width)
        self.inner = nn.ModuleList(Body(width) for _ in range(2))

    def forward(self, x):
        for inner in self.inner:
            x = x + 0.5 * inner(x)
        return self.mix(x)


class Detached(Body):
    """The weight is read for the gradient of its input after it has its own gradient."""

    def forward(self, x):
        return torch.tanh(self.mix(torch.tanh(F.linear(x, self.mix.weight.detach()))))


class KeptOnContext(Body):
    def forward(self, x):
        return torch.tanh(OnContext.apply(self.mix(x), self.mix.weight))


class InPlace(Body):
    """It changes its input in place, which its caller sees."""

    def forward(self, x):
        x.mul_(0.5).tanh_()
        return self.mix(x)


class InPlaceInside(Body):
    def forward(self, x):
        return self.mix(x).add_(x).tanh_()


class Transformed(Body):
    """It uses transforms of torch.func inside."""

    def forward(self, x):
        rows = torch.vmap(lambda row: F.linear(row, self.mix.weight, self.mix.bias))(x)
        return torch.tanh(rows) + 0.1 * torch.func.grad(lambda y: F.linear(y, self.mix.weight).square().sum())(x)


class Normaliser(Body):
    """A view, a slice and a part of it that is changed in place."""

    def forward(self, x):
        y = self.mix(x).view(-1, x.shape[-1])
        y[1:] += 0.25
        return y.view_as(x)


BODIES = (Body, Gated, Normed, Scaled, Attention, Multihead, Convolved, Recurrent, Experts, Twice, WeightNormed, Nested, Detached,
          KeptOnContext, InPlace, InPlaceInside, Normaliser, Transformed)


# ---------------------------------------------------------------------- models --

class Block(nn.Module):
    def __init__(self, case: "WayCase") -> None:
        super().__init__()
        self.case, self.body = case, case.body(case.width)
        if case.probe != "on the main path":
            self.probe = nn.Linear(case.width, case.width, bias=False).requires_grad_(case.probe == "trained")
        if case.way == "hook":
            self.body.register_forward_hook(lambda _module, _args, h: SEEN.append(self.second(h)))

    def second(self, h: torch.Tensor) -> torch.Tensor:
        """Returns the second loss of what the body gives."""
        weight = (self.body.mix if self.case.probe == "on the main path" else self.probe).weight
        return (OnContext.apply(h, weight) if self.case.way == "autograd function" else F.linear(h, weight)).square().mean() * 3

    def forward(self, x, bag=None):
        case = self.case
        h = self.body(x)
        if case.is_before and case.way != "hook":
            second = self.second(h)
        out = x + h
        if not case.is_before and case.way != "hook":
            second = self.second(h)
        if case.way == "output":
            return out, second
        if case.way == "object returned":
            given = Bag()
            given.items.append(second)
            return out, given
        if case.way in ("attribute", "autograd function", "read by the caller"):
            self.second_loss = second
        elif case.way == "list":
            SEEN.append(second)
        elif case.way == "object given":
            bag.items.append(second)
        elif case.way == "closure":
            self.get = lambda: second
        return out


class Model(nn.Module):
    def __init__(self, case: "WayCase") -> None:
        super().__init__()
        self.case, self.start = case, nn.Linear(case.width, case.width)
        self.blocks = nn.ModuleList(Block(case) for _ in range(case.blocks))
        self.end = nn.Linear(case.width, 4)
        if case.around == "tied":
            self.scale = nn.Parameter(torch.full((case.width,), 0.7))

    def run(self, block, x, bag):
        if self.case.saves_elsewhere:
            with torch.autograd.graph.save_on_cpu():
                return block(x, bag)
        if self.case.checkpoints is None:
            return block(x, bag)
        return checkpoint(block, x, bag, use_reentrant=self.case.checkpoints)

    def forward(self, x):
        case, bag, skips = self.case, Bag(), []
        SEEN.clear()
        if not case.is_traced and x.sum().item() > 1e9:
            x = x * 2
        h, losses = self.start(x), []
        for block in self.blocks:
            skips.append(h)
            h = self.run(block, h, bag)
            if case.way in ("output", "object returned"):
                h, left = h
                losses += [left] if case.way == "output" else left.items
            elif case.way == "closure":
                losses.append(block.get())
            elif case.way in ("attribute", "autograd function"):
                losses.append(block.second_loss)
        if case.around == "skips":
            h = h + sum(skips[1:]) * 0.3
        elif case.around == "tied":
            h = F.linear(h * self.scale, self.start.weight)
        loss = self.end(h).square().mean() + sum(losses) + sum(SEEN) + sum(bag.items)
        return {"loss": loss} if case.around == "dict" else loss


class WayCase(Case):
    """The model that a seed and a number draw. `str()` says what is drawn, `stage` and `zero` how it is trained."""

    least, most = 1e-6, 20.0  # it sums over blocks, some of which lead hardly anywhere

    def __init__(self, seed: int, number: int, large: bool = False) -> None:
        draw = random.Random(f"{seed}/{number}")
        self.body, self.around = draw.choice(BODIES), draw.choice(AROUND)
        self.way, self.probe = draw.choice(WAYS), draw.choice(PROBES)
        self.is_before, self.is_traced = draw.random() < 0.3, draw.random() < 0.75
        # torch.utils.checkpoint's use_reentrant; with it, only outputs have gradients. Plain torch does not compute again what changed its
        # input, and has no hooks of saved tensors around torch.func.
        self.checkpoints = None if self.body in (InPlace, Transformed) else draw.choice((None, None, None, False, self.way == "output"))
        self.saves_elsewhere = self.checkpoints is None and self.body is not Transformed and draw.random() < 0.15
        self.is_raw = draw.random() < 0.2  # loss.backward() in place of engine.backward(loss)
        self.uses = draw.choice((None, None, None, "any"))
        self.stage = draw.choice((3, 3, 3, 3, 2, 1, 0))
        self.blocks = draw.choice((2, 3, 4))
        self.zero = {} if draw.random() < 0.3 else {"stage3_prefetch_bucket_size": draw.choice((0, 100))}
        if draw.random() < 0.2:
            self.zero["offload_param"] = {"device": "cpu"}
        self.width = 8
        if large and draw.random() < 0.1:  # blocks that are larger than what is gathered ahead
            self.width, self.zero = 1500, {}
        self.activations = draw.choice(("none", "none", "cpu"))

    def __str__(self) -> str:
        held = {False: "checkpoint, ", True: "reentrant checkpoint, ", None: "save_on_cpu, " if self.saves_elsewhere else ""}[self.checkpoints]
        return (f"{self.blocks} {self.body.__name__} of {self.width}, {self.around}, {self.way}, probe {self.probe}, {held}"
                f"{'before' if self.is_before else 'after'} the output, {'traced' if self.is_traced else 'not traced'}, "
                f"{'loss.backward' if self.is_raw else 'engine.backward'}, uses {self.uses}, stage {self.stage}, {self.zero}, "
                f"activations {self.activations}")

    def reads_past(self, error: str) -> bool:
        """Whether the error names the weight that the model itself reads, of which nobody knows where there is no trace."""
        return not self.is_traced and self.around == "tied" and "start.weight has no values" in error

    def make(self):
        return Model(self)

    def feed(self, draw):
        return torch.randn(ROWS, LENGTH, self.width, generator=draw)

    def window(self, t, x):
        out = t(x)
        loss = out["loss"] if isinstance(out, dict) else out
        if self.way == "read by the caller":
            model = t.model if hasattr(t, "model") else t.engine.module
            loss = loss + sum(block.second_loss for block in model.blocks)
        loss = loss * 0.3  # else some of the models diverge, and roundings with them
        if self.is_raw and hasattr(t, "engine"):
            loss.backward()
        else:
            t.backward(loss)
        return [loss.detach()]

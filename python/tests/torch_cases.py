"""The cases of test_torch_modules.py: modules, each with its input and with one window of forwards and backwards.

A case is a class. `make()` returns the module, and `feed(draw)` one rank's input of a step, drawn from a generator, so that ranks
and steps have different inputs. `window(t, x)` runs the forwards and backwards of a step, where t(x) calls the module,
t.backward(loss) runs backward, and t.step_number counts the steps from 0. It returns tensors (losses, gradients of inputs) that
have to equal plain torch's too.
"""
from __future__ import annotations

import concurrent.futures
import dataclasses
import functools

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

ROWS, LENGTH, WIDTH, VOCAB = 3, 5, 8, 16


class Case:
    """The base of all cases. Its input is floats [ROWS, LENGTH, WIDTH], and its loss the mean square of the output."""

    uses: str | None = None  # backward_uses of the engine
    activations = "none"  # where they wait
    least = 1e-4  # the gradient that every trained parameter has at least somewhere
    most = 1.0  # how many times the usual difference from plain torch it may have
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
    """Calls its parts one after the other. They are in a ModuleList, as the layers of a model are."""

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
    """The base of cases whose input is tokens [ROWS, LENGTH]."""

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

    def window(self, t, x):  # cubes, because mean squares of what norms make have hardly any gradient
        loss = t(x).pow(3).mean()
        t.backward(loss)
        return [loss.detach()]


class ConvCase(Case):
    def make(self):
        return Chain(nn.Conv1d(LENGTH, 6, 3, padding=1), nn.GELU(), nn.Conv1d(6, 4, 1, bias=False), nn.BatchNorm1d(4), nn.Conv1d(4, 2, 1))


class RecurrentCase(Case):
    """An LSTM has its weights in a list in addition to its parameters."""

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
    """One block has two names."""

    def make(self):
        block = Mlp()
        return Chain(block, Mlp(), block)


class CalledTwiceCase(Case):
    """A module is called twice in one forward."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.last = Mlp(), Mlp()

        def forward(self, x):
            return self.last(self.block(self.block(x) * 0.5))

    def make(self):
        return self.Module()


class LoraCase(Case):
    """A frozen layer has a small trained addition, as LoRA has (Hu et al. 2021)."""

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
    """The gradient passes through a block whose own parameters are frozen."""

    def make(self):
        model = mlps(3)
        model.parts[1].requires_grad_(False)
        return model


class FrozenStartCase(Case):
    """The first block is frozen, so no gradient reaches it."""

    def make(self):
        model = mlps(3)
        model.parts[0].requires_grad_(False)
        return model


class UnusedCase(Case):
    """A module has parameters that no forward uses."""

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
    """Every other step leaves a whole block out."""

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
    """The output of a block is detached, so the block runs and gets no gradient."""

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
    """Blocks are computed again in backward, `segment` of them in each call of torch.utils.checkpoint."""

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
    """A segment that is computed again draws the same random numbers again."""

    class Module(CheckpointCase.Module):
        def run(self, x, first):
            return F.dropout(super().run(x, first), 0.3, self.training)

    def window(self, t, x):
        torch.manual_seed(t.step_number)
        return super().window(t, x)


# ------------------------------------------------- inputs, losses and windows --


class InputGradientCase(Case):
    """The input has a gradient too."""

    def make(self):
        return mlps(3)

    def window(self, t, x):
        x = x.requires_grad_()
        loss = t(x).square().mean()
        t.backward(loss)
        return [loss.detach(), x.grad]


class DictionaryCase(Case):
    """Input and output are nested in dicts and tuples, and the loss uses only a part of the output."""

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


class StateDictCase(Case):
    """Blocks put their results into a dict, which their caller reads, and return nothing."""

    class Block(Mlp):
        def forward(self, state):
            assert state["kept"] is state["x"]
            state["x"] = super().forward(state["x"])
            state["aux"] = state["aux"] + state["x"].square().mean()
            state["kept"] = state["x"]

    class Module(nn.Module):
        def __init__(self, block):
            super().__init__()
            self.first, self.blocks = nn.Linear(WIDTH, WIDTH), nn.ModuleList(block() for _ in range(3))

        def begin(self, x):
            return {"x": x, "aux": torch.zeros(()), "kept": x}

        def forward(self, x):
            begun = self.first(x)
            state = self.begin(begun)
            for block in self.blocks:
                block(state)
            state = vars(state) if isinstance(state, State) else state
            x, aux, kept = state.values() if isinstance(state, dict) else state
            assert x is kept
            return (x + begun).square().mean() + aux

    def make(self):
        return self.Module(self.Block)

    def window(self, t, x):
        loss = t(x)
        t.backward(loss)
        return [loss.detach()]


class StateListCase(StateDictCase):
    """The same with a list."""

    class Block(Mlp):
        def forward(self, state):
            x, aux, _ = state
            x = super().forward(x)
            state[:] = [x, aux + x.square().mean(), x]

    class Module(StateDictCase.Module):
        def begin(self, x):
            return [x, torch.zeros(()), x]


@dataclasses.dataclass
class State:
    x: torch.Tensor
    aux: torch.Tensor
    kept: torch.Tensor


class StateDataclassCase(StateDictCase):
    """The same with a dataclass."""

    class Block(Mlp):
        def forward(self, state):
            state.x = state.kept = super().forward(state.x)
            state.aux = state.aux + state.x.square().mean()

    class Module(StateDictCase.Module):
        def begin(self, x):
            return State(x, torch.zeros(()), x)


class AuxiliaryLossCase(Case):
    """Blocks add to a loss in a dataclass and in a list in addition to their outputs, and read what the caller put there."""

    recomputes = False

    class Block(Mlp):
        def forward(self, x, state, *, losses):
            x = super().forward(x) * 0.5 + torch.tanh(state.kept)
            self.add(state, x.square().mean())
            losses.append(x.abs().mean())
            return x

        def add(self, state, loss):
            state.aux += loss

    class Module(nn.Module):
        def __init__(self, block, recomputes):
            super().__init__()
            self.recomputes = recomputes
            self.first, self.blocks = nn.Linear(WIDTH, WIDTH), nn.ModuleList(block() for _ in range(3))

        def forward(self, x):
            x = self.first(x)
            state, losses = State(x, torch.zeros(()), x), []
            for block in self.blocks:
                x = checkpoint(block, x, state, losses=losses, use_reentrant=False) if self.recomputes else block(x, state, losses=losses)
            assert state.x is state.kept
            return (x + state.kept).square().mean() + state.aux + sum(losses)

    def make(self):
        return self.Module(self.Block, self.recomputes)

    def window(self, t, x):
        loss = t(x)
        t.backward(loss)
        return [loss.detach()]


class AuxiliaryLossCheckpointCase(AuxiliaryLossCase):
    recomputes = True


class AuxiliaryLossReplacedCase(AuxiliaryLossCase):
    """The loss is another tensor after each block, so that the blocks change no tensor in place."""

    class Block(AuxiliaryLossCase.Block):
        def add(self, state, loss):
            state.aux = state.aux + loss


class AuxiliaryLossReplacedCheckpointCase(AuxiliaryLossReplacedCase):
    recomputes = True


class UnusedStateCase(StateDictCase):
    """Nobody uses what the last block puts into the dict, and the tensor that it was given is used further."""

    unused = ("blocks.2.up.weight", "blocks.2.up.bias", "blocks.2.down.weight", "blocks.2.down.bias")

    class Module(StateDictCase.Module):
        def forward(self, x):
            begun = self.first(x)
            state = self.begin(begun)
            for block in self.blocks:
                state, before = dict(state), state
                block(state)
            return (before["x"] + begun).square().mean() + before["aux"]


class TwoLossesCase(Case):
    """One forward is followed by two backwards through the same graph."""

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
    """Two forwards are followed by one backward of their summed losses."""

    uses = "any"

    def make(self):
        return mlps(3)

    def window(self, t, x):
        loss = t(x).square().mean() + t(x.flip(0) * 0.5).abs().mean()
        t.backward(loss)
        return [loss.detach()]


class TwoPairsCase(Case):
    """Two forwards, each followed by its own backward, come before the step."""

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
    """Two forwards are followed by their two backwards."""

    uses = "any"

    def make(self):
        return mlps(3)

    def window(self, t, x):
        losses = [t(value).square().mean() for value in (x, x.flip(0) * 0.5)]
        for loss in losses:
            t.backward(loss)
        return [loss.detach() for loss in losses]


class EvaluationCase(Case):
    """There is an evaluation before the forward and one after the backward."""

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
    """There is an evaluation between a forward and its backward."""

    def make(self):
        return mlps(3)

    def window(self, t, x):
        loss = t(x).square().mean()
        with torch.no_grad():
            between = t(x * 2).square().mean()
        t.backward(loss)
        return [between, loss.detach()]


class Stop(Exception):
    """The exception that the module of RaisingCase raises."""


class RaisingCase(Case):
    """A forward raises in its middle; the next forward trains."""

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
    """A forward with gradients has no backward; the next forward trains."""

    def make(self):
        return mlps(3)

    def window(self, t, x):
        t(x * 3)
        loss = t(x).square().mean()
        t.backward(loss)
        return [loss.detach()]


class HookedCase(Case):
    """The module sets a hook of its own on a tensor, which doubles the gradient."""

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
    """The forward runs under torch.autocast."""

    def make(self):
        return mlps(3)

    def window(self, t, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = t(x).float().square().mean()
        t.backward(loss)
        return [loss.detach()]


class CachingCase(Case):
    """The module keeps tensors of its first forward where no attribute of a module leads: in an lru_cache and in dicts, one of them
    in a tuple. A hook keeps what it sees."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks, self.kept, self.seen = mlps(2), {}, []
            self.blocks.register_forward_hook(lambda _module, _args, output: self.seen.append(output.detach().mean()))

        def forward(self, x):
            length = x.shape[1]
            if length not in self.kept:
                self.kept[length] = [torch.tril(torch.ones(length, length))]
            if id(self) not in KEPT:
                KEPT[id(self)] = (length, torch.full((length, 1), 0.5))
            assert all(type(one) is torch.Tensor for one in self.seen)
            return lower(self, length) @ (self.kept[length][0] @ self.blocks(x) + KEPT[id(self)][1])

    def make(self):
        KEPT.clear()
        return self.Module()


KEPT: dict[int, tuple[int, torch.Tensor]] = {}


@functools.lru_cache
def lower(_owner: nn.Module, length: int) -> torch.Tensor:
    return torch.tril(torch.ones(length, length)) / length


class FrozenEarlyCase(Case):
    """The model itself uses a frozen matrix early and a trained scale late: backward needs the matrix after the scale's gradient."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = Mlp()
            self.proj = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3, requires_grad=False)
            self.blocks = mlps(2)
            self.scale = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x):
            return self.blocks(F.linear(self.first(x), self.proj)) * self.scale

    def make(self):
        return self.Module()


class ListWithForwardCase(Case):
    """A list of modules that has parameters and a forward of its own, one whose parameters its owner uses, and weights that torch's
    parametrizations compute at each use."""

    class Stack(nn.ModuleList):
        def __init__(self, blocks):
            super().__init__(blocks)
            self.scale = nn.Parameter(torch.full((WIDTH,), 1.5))

        def forward(self, x):
            for block in self:
                x = block(x) * self.scale
            return x

    class Bag(nn.ModuleList):
        def __init__(self, blocks):
            super().__init__(blocks)
            self.shift = nn.Parameter(torch.zeros(WIDTH))

    class Module(nn.Module):
        def __init__(self, stack, bag):
            super().__init__()
            self.stack, self.bag = stack, bag
            self.normed = Chain(*(nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH, bias=has_bias))
                                  for has_bias in (True, False)))

        def forward(self, x):
            return self.normed(self.bag[0](self.stack(x) + self.bag.shift))

    def make(self):
        return self.Module(self.Stack([Mlp(), Mlp()]), self.Bag([Mlp()]))


class RepeatedCheckpointCase(Case):
    """A module that is no unit of its own, called twice, each time computed again in a backward inside of the backward."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.start, self.inner = nn.Linear(WIDTH, WIDTH), Mlp()
            self.scale = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x):
            x = self.start(x) * self.scale
            for _ in range(2):
                x = checkpoint(self.inner, x, use_reentrant=True)
            return x

    def make(self):
        return self.Module()


class AnotherWayEachStepCase(Case):
    """A second loss leaves its block in every other step by an attribute, in the others with the output; the nodes are as many."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix, self.probe = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False)

        def forward(self, x, is_kept):
            h = torch.tanh(self.mix(x))
            second = F.linear(h, self.probe.weight.data).square().mean()
            out = x + h
            self.kept = second if is_kept else torch.zeros(())
            return out * 1.0 if is_kept else out + second

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.blocks = nn.Linear(WIDTH, WIDTH), nn.ModuleList(AnotherWayEachStepCase.Block() for _ in range(3))

        def forward(self, x, is_kept):
            x = self.first(x)
            for block in self.blocks:
                x = block(x, is_kept)
            return x.square().mean() + sum(block.kept for block in self.blocks)

    def make(self):
        return self.Module()

    def window(self, t, x):
        loss = t(x, t.step_number % 2 == 1)
        t.backward(loss)
        return [loss.detach()]


class SecondLossInsideCase(AnotherWayEachStepCase):
    """A second backward through the same graph comes from a tensor inside of what the first one's loss was made of."""

    uses = "any"

    class Block(AnotherWayEachStepCase.Block):
        def forward(self, x, is_kept):
            h = torch.tanh(self.mix(x))
            out = x + h
            self.kept = F.linear(h, self.probe.weight.data)
            self.second = self.kept.square().mean()
            return out

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.blocks = nn.Linear(WIDTH, WIDTH), nn.ModuleList(SecondLossInsideCase.Block() for _ in range(3))

        def forward(self, x, is_kept):
            x = self.first(x)
            for block in self.blocks:
                x = block(x, is_kept)
            return x.square().mean() + sum(block.second for block in self.blocks), x.abs().mean() + self.blocks[1].kept.abs().mean()

    def make(self):
        return self.Module()

    def window(self, t, x):
        first, second = t(x, True)
        t.backward(first, retain_graph=True)
        t.backward(second)
        return [first.detach(), second.detach()]


class OtherThreadCase(AnotherWayEachStepCase):
    """The forward runs in another thread than the backward."""

    def window(self, t, x):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: [torch.zeros(1, requires_grad=True) + 1 for _ in range(999)]).result()
            loss = pool.submit(t, x, True).result()
        t.backward(loss)
        return [loss.detach()]


class HandedThroughCase(Case):
    """What comes through a module that changes nothing, as it is or as a view, is changed in place after it."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
            self.through = nn.ModuleList(HandedThroughCase.Through(way) for way in ("same", "view", "slice", "tuple", "switched off"))

        def forward(self, x):
            h = self.first(x)
            for module in self.through:
                given = h
                h = module(h)
                h = h[0] if isinstance(h, tuple) else h
                h += 0.5
                h = h.view_as(given) if h.numel() == given.numel() else given
                h *= 0.75
            return self.last(h)

    class Through(nn.Module):
        def __init__(self, way):
            super().__init__()
            self.way, self.scale, self.inner = way, nn.Parameter(torch.ones(WIDTH)), nn.Sequential(nn.Identity(), nn.LayerNorm(WIDTH))

        def forward(self, x):
            if self.way == "view":
                return x.view(-1, WIDTH)
            if self.way == "slice":
                return x[:1]
            if self.way == "tuple":
                return x, x * self.scale.detach()
            return self.inner[0](x) if self.way == "switched off" else x

    @property
    def unused(self):
        return tuple(name for name, _ in self.make().named_parameters() if name.startswith("through"))

    def make(self):
        return self.Module()


def all_cases() -> dict[str, Case]:
    """Returns a case of each class, by the name of the class without "Case"."""
    found = [Case]
    for kind in found:
        found += [sub for sub in kind.__subclasses__() if sub not in found]
    return {kind.__name__.removesuffix("Case"): kind() for kind in found if kind not in (Case, TokenCase)}

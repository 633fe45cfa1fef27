"""Tests that the buffers of rank 0 reach all ranks at each boundary, with what that costs and what it refuses."""
from __future__ import annotations

import json
import sys
import tempfile
import unittest
from typing import Any
from unittest import mock

import ranks

try:
    import torch
    from torch import nn
except ImportError as error:
    ranks.skip(f"torch is not here: {error}")

import sherd
import sherd.torch
from sherd.torch import buffers

WIDTH = 8


class Counts(nn.Module):
    """A block with buffers of every kind, which each rank changes by what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        for name, buffer, persistent in (("seen", torch.zeros(2, dtype=torch.int32), True), ("flags", torch.zeros(3, dtype=torch.bool), False),
                                         ("turned", torch.zeros(3, 4).t(), True), ("waves", torch.zeros(2, dtype=torch.complex64), True),
                                         ("expanded", torch.zeros(1, 2).expand(3, 2), False), ("none", torch.zeros(0, 3), True),
                                         ("small", torch.zeros(5, dtype=torch.float8_e4m3fn), True), ("own", torch.zeros(2), True)):
            self.register_buffer(name, buffer, persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if type(x) is torch.Tensor and self.training:  # not in the trace
            with torch.no_grad():
                for buffer in (self.seen, self.turned, self.waves, self.own):
                    buffer += x[0, 0].to(torch.int32).to(buffer.dtype)
                self.expanded[:1] += x[0, 0]
                self.flags[int(x[0, 0]) % 3] = True
                self.small.copy_((self.small.float() + x[0, 0].round()).to(self.small.dtype))
        return self.norm(self.linear(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.blocks, self.head = nn.ModuleList([Counts(), Counts()]), nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).square().mean()


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(97 * rank + step)) * 3 + 2 * rank


def engine_of(world: sherd.World, model: nn.Module | None = None, stage: int = 3, accumulation: int = 1, keys: dict[str, Any] | None = None,
              **options: Any) -> sherd.torch.Engine:
    config = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": accumulation, "gradient_clipping": 0,
              "optimizer": {"type": "SGD", "params": {"lr": 1e-3}},
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, **(keys or {})}
    return sherd.torch.initialize(Model() if model is None else model, config, world=world, example=torch.zeros(4, WIDTH), **options)


def train(engine: sherd.torch.Engine, step: int) -> None:
    engine.backward(engine(batch(engine.rank, step)))
    engine.step()


def others(engine: sherd.torch.Engine) -> set[str]:
    """Returns the names, without the block, of the buffers that are not alike on all ranks. Collective."""
    found = set()
    for name, buffer in engine.module.named_buffers():
        mine = repr(buffer.float().tolist() if not buffer.is_complex() else buffer.tolist())
        if engine.world.sum([float(engine.world.share(mine.encode()).decode() != mine)])[0]:
            found.add(name.split(".", 2)[-1])
    return found


ALL = {"norm.running_mean", "norm.running_var", "seen", "flags", "turned", "waves", "expanded", "small", "own"}


# ------------------------------------------------------------- on several ranks --


def alike(world: sherd.World) -> None:
    """Rank 0's own statistics, which are those of plain torch over its batches, reach all ranks at the boundary, and not before."""
    for stage in (0, 3):
        engine, twin = engine_of(world, stage=stage, accumulation=2), Model()
        for step in range(4):
            engine.backward(engine(batch(world.rank, step)))
            changed = {name: repr(buffer) for name, buffer in engine.module.named_buffers()}
            assert others(engine) >= ALL - {"flags"}, others(engine)
            engine.step()
            assert not others(engine) if step % 2 else others(engine), (step, others(engine))
            for name, buffer in engine.module.named_buffers():
                if world.rank == 0:  # nothing comes to rank 0
                    assert repr(buffer) == changed[name], name
            with torch.no_grad():
                twin(batch(0, step))
        for name in ("seen", "flags", "own", "turned", "waves"):
            assert torch.equal(getattr(engine.module.blocks[0], name), getattr(twin.blocks[0], name)), name
        torch.testing.assert_close(engine.module.blocks[0].norm.running_mean, twin.blocks[0].norm.running_mean, rtol=1e-2, atol=1e-2)
        assert engine.module.blocks[1].norm.num_batches_tracked == 4 and engine.module.blocks[1].expanded.stride(0) == 0
        engine.destroy()
    engine = engine_of(world, keys={"bf16": {"enabled": True}})  # which casts them after the engine has given them their first values
    with torch.no_grad():
        engine.module.blocks[0].norm.running_mean.fill_(world.rank)
    engine.backward(engine(batch(world.rank, 0).bfloat16()))
    engine.step()
    assert not others(engine) and engine.module.blocks[0].norm.running_mean.dtype == torch.bfloat16
    engine.destroy()


def options(world: sherd.World) -> None:
    """What is left out, and what same_on_all says."""
    for given, wanted in (({"own_buffers": ["*.own", "*norm.running_*"]}, {"own", "norm.running_mean", "norm.running_var"}),
                          ({"broadcast_buffers": False}, ALL), ({"same_on_all": True}, ALL),
                          ({"same_on_all": True, "broadcast_buffers": True}, set())):
        model = Model()
        if "same_on_all" not in given:
            model.blocks[0].own.fill_(world.rank)
        engine = engine_of(world, model, **given)
        begun = others(engine)
        assert begun == ({"own"} if "own_buffers" in given else set()), (given, begun)
        train(engine, 3)
        assert others(engine) >= wanted - {"flags"} and others(engine) <= wanted, (given, others(engine))
        engine.destroy()


def bytes_counted(world: sherd.World) -> None:
    """One broadcast, which is in the traffic of the world; without buffers nothing is exchanged."""
    sent = {}
    for name, model, given in (("with", Model(), {}), ("without", Model(), {"broadcast_buffers": False}),
                               ("left out", Model(), {"own_buffers": ["*"]}), ("none", Plain(), {})):
        engine = engine_of(world, model, **given)
        with mock.patch.object(sherd.World, "broadcast", autospec=True, side_effect=sherd.World.broadcast) as call:
            before, counted = world.traffic(), engine.core.traffic().wire_counted
            train(engine, 1)
            sent[name] = [after - begun for after, begun in zip(world.traffic(), before)]
            assert engine.core.traffic().wire_counted - counted == sent[name][0]
            assert call.call_count == (name == "with"), (name, call.call_count)
        engine.destroy()
    message = buffers.places(buffers.layout_of(dict(Model().named_buffers())))[1]
    extra = [a - b for a, b in zip(sent["with"], sent["without"])]
    assert extra == ([message * (world.size - 1), 0] if world.rank == 0 else [0, message]), (extra, message)
    assert sent["left out"] == sent["without"]


class Plain(nn.Module):
    """A model without buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x).square().mean()


def shapes(world: sherd.World) -> None:
    """A buffer that grows on all ranks is shared as it is then. One that is another on a rank is refused by name."""
    engine = engine_of(world)
    train(engine, 1)
    for name, buffer in (("seen", torch.full((3,), world.rank, dtype=torch.int64)), ("late", torch.full((2,), world.rank))):
        engine.module.blocks[1].register_buffer(name, buffer)
    block = engine.module.blocks[1]
    block.forward = lambda x: block.norm(block.linear(x))
    train(engine, 2)
    assert block.seen.tolist() == [0, 0, 0] and block.late.tolist() == [0, 0] and not others(engine)
    if world.rank == 1:
        block.late = torch.zeros(4)
    refused(lambda: train(engine, 3), "buffer blocks.1.late is float32 [4] on rank 1, and int64 [2] on rank 0: make the same model",
            world.rank == 1)
    block.late = torch.full((2,), world.rank)
    train(engine, 4)
    if world.rank == 0:
        block.late = torch.zeros(2)
    refused(lambda: train(engine, 5), "buffer blocks.1.late is int64 [2] on rank 1, and float32 [2] on rank 0")
    block.late = torch.full((2,), float(world.rank))
    train(engine, 6)
    assert not others(engine)
    engine.destroy()
    for given, text in (({}, "buffer blocks.0.own is float32 [3] on rank 1, and float32 [2] on rank 0"), ({"own_buffers": ["*own"]}, "")):
        model = Model()
        if world.rank == 1:
            model.blocks[0].own = torch.zeros(3)
        refused(lambda: train(engine_of(world, model, **given), 1), text, bool(text))
    model = Model()
    if world.rank == 1:
        del model.blocks[1].flags
        model.blocks[1].register_buffer("flags", torch.zeros(3, dtype=torch.bool))
        model.blocks[1].forward = lambda x: x
    refused(lambda: engine_of(world, model), "rank 1 has its buffers in another order than rank 0")


class Late(nn.Module):
    """A model that gets its only buffer in a forward of the training."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 1)
        self.register_buffer("late", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and type(x) is torch.Tensor:
            self.late = (0 if self.late is None else self.late) + x.detach().mean(0)
        return self.linear(x).square().mean()


def late(world: sherd.World) -> None:
    """A buffer that comes with a forward reaches the other ranks, and a resume has it."""
    engine = engine_of(world, Late())
    for step in range(3):
        train(engine, step)
        mine = json.dumps(engine.module.late.tolist()).encode()
        assert mine == world.share(mine), step
    engine.destroy()


def refused(call: Any, text: str, is_refused: bool = True) -> None:
    try:
        call()
    except ValueError as error:
        assert is_refused and text in str(error), error
    else:
        assert not is_refused, f"not refused: {text}"


class Buffers(unittest.TestCase):
    def test_two_ranks(self) -> None:
        ranks.run(2, "alike", "options", "bytes_counted", "shapes", "late")

    def test_three_ranks(self) -> None:
        ranks.run(3, "alike", "bytes_counted")

    def test_one_rank_exchanges_nothing(self) -> None:
        engine = engine_of(sherd.World.self())
        with mock.patch.object(sherd.World, "broadcast", side_effect=AssertionError), \
                mock.patch.object(sherd.World, "sum", side_effect=AssertionError):
            train(engine, 1)
        engine.destroy()

    def test_checkpoints_have_all_buffers(self) -> None:
        """Also those that had not changed when it was saved, and one that the model does not have yet."""
        engine = engine_of(sherd.World.self(), Late())
        other = engine_of(sherd.World.self())
        with tempfile.TemporaryDirectory() as folder:
            other.save_checkpoint(folder + "/other", "begin")
            begun = {name: buffer.clone() for name, buffer in other.module.named_buffers() if name.endswith(("mean", "var", "tracked"))}
            for step in range(2):
                train(other, step)
                train(engine, step)
            other.load_checkpoint(folder + "/other", "begin")
            for name, value in begun.items():
                self.assertTrue(torch.equal(dict(other.module.named_buffers())[name], value), name)
            engine.save_checkpoint(folder + "/late")
            resumed = engine_of(sherd.World.self(), Late())
            resumed.load_checkpoint(folder + "/late")
            self.assertTrue(torch.equal(resumed.module.late, engine.module.late))
            grown = Late()
            grown.late = torch.zeros(WIDTH + 1)
            wrong = engine_of(sherd.World.self(), grown)
            with self.assertRaisesRegex(sherd.InvalidError, r"buffer late is \[8\] in the checkpoint and \[9\]"):
                wrong.load_checkpoint(folder + "/late")
            self.assertEqual(wrong.global_steps, 0)
        for one in (engine, other, resumed, wrong):
            one.destroy()

    def test_any_name_of_a_buffer_is_its_own(self) -> None:
        model = Plain()
        model.register_buffer("first", torch.zeros(2))
        model.register_buffer("second", model.first)
        self.assertNotIn("first", buffers.Shared(mock.Mock(size=2, rank=0), model, ["second"])._found())

    def test_wrong_options(self) -> None:
        for given, words in (({"broadcast_buffers": "*running*"}, "broadcast_buffers is True, False or None.*own_buffers="),
                             ({"broadcast_buffers": ["a"]}, "True, False or None"), ({"own_buffers": "*own"}, "own_buffers is a list of patterns")):
            with self.assertRaisesRegex(TypeError, words):
                engine_of(sherd.World.self(), **given)

    def test_sparse(self) -> None:
        model = Plain()
        model.register_buffer("edges", torch.eye(3).to_sparse())
        with self.assertRaisesRegex(ValueError, "buffer edges is torch.sparse_coo, .*own_buffers="):
            buffers.Shared(mock.Mock(size=2, rank=0), model).share()


if __name__ == "__main__":
    if ranks.rank() is not None:
        world = sherd.World.from_env()
        for case in sys.argv[1:]:
            globals()[case](world)
        sys.exit()
    ranks.ready()
    unittest.main(argv=sys.argv)

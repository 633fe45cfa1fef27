"""Tests activations under sherd.torch: what autograd saves goes to the engine's memory and comes back, and no number changes.

SHERD_DEBUG=1 overwrites memory outside of its live range.
"""
from __future__ import annotations

import contextlib
import gc
import os
import sys
import tempfile
import unittest
import warnings
import weakref
from typing import Any, Callable, Iterator
from unittest import mock

import ranks

os.environ.setdefault("SHERD_DEBUG", "1")
try:
    import torch
    from torch import nn
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.nn import functional as F
    from torch.utils.checkpoint import checkpoint
except ImportError as error:
    ranks.skip(f"torch is not here: {error}")

import sherd
import sherd.torch
from sherd.torch import activations

WIDTH, WORDS, LENGTH, ROWS = 32, 64, 32, 4
DEVICES = ("none", "cpu", "nvme")


class Block(nn.Module):
    """A block of GPT-2: attention whose queries, keys and values are parts of one tensor, a dropout, and a mask of its caller's."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm2, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)) * mask
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class Model(nn.Module):
    """A small GPT-2: ids [rows, LENGTH] -> mean loss. `run` calls a block."""

    def __init__(self, run: Callable[..., Any] | None = None) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.blocks, self.norm = nn.ModuleList([Block() for _ in range(4)]), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.run = run or (lambda block, *given: block(*given))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places
        mask = (ids % 3 > 0).unsqueeze(-1).expand_as(x).float()
        for block in self.blocks:
            x = self.run(block, x, mask)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), ids.roll(-1, 1).flatten())


class Layers(nn.Module):
    """x [rows, WIDTH] -> mean loss, through three layers of `make`."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.start, self.layers = nn.Linear(WIDTH, WIDTH), nn.ModuleList([make() for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.start(x)
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def recomputed(reentrant: bool = False) -> Model:
    return Model(lambda block, *given: checkpoint(block, *given, use_reentrant=reentrant))


def batch(seed: int, rows: int = ROWS) -> torch.Tensor:
    return torch.randint(0, WORDS, (rows, LENGTH), generator=torch.Generator().manual_seed(seed))


def config(device: str, stage: int = 3, accumulation: int = 1, folder: str = ".", **changes: Any) -> dict[str, Any]:
    return {"train_micro_batch_size_per_gpu": ROWS, "gradient_accumulation_steps": accumulation, "deterministic": True,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
            "sherd": {"activations": {"device": device, "nvme_path": folder, "buffer_count": 1}}, **changes}


def begun(model: nn.Module, device: str, example: Any = None, options: dict[str, Any] = {}, **keys: Any) -> sherd.torch.Engine:
    options = {"example": batch(0) if example is None else example, **options}
    engine = sherd.torch.initialize(model, config(device, **keys), **options)
    torch.manual_seed(5)
    return engine


def step(engine: sherd.torch.Engine, given: Any) -> float:
    """Trains one micro-batch, and returns its loss."""
    loss = engine(given)
    engine.backward(loss)
    engine.step()
    return loss.item()


def trained(model: nn.Module, device: str, micro_batches: int = 4, **keys: Any) -> tuple[int, list[float], Any]:
    """Trains a model on batches of this rank. Returns the fingerprint, the losses and the report of memory."""
    engine = begun(model, device, **keys)
    losses = [step(engine, batch(number * engine.world.size + engine.world.rank)) for number in range(micro_batches)]
    result = engine.fingerprint(), losses, engine.memory_report()
    engine.destroy()
    return result


@contextlib.contextmanager
def copied() -> Iterator[list[tuple[StorageWeakRef, int]]]:
    """A context whose list gets each storage that is copied to an activation of a training, with its bytes."""
    found: list[tuple[StorageWeakRef, int]] = []
    write = activations.Mover.write

    def noted(self: Any, place: int, offset: int, tensor: torch.Tensor) -> None:
        found.append((StorageWeakRef(tensor.untyped_storage()), tensor.untyped_storage().nbytes()))
        write(self, place, offset, tensor)

    with mock.patch.object(activations.Mover, "write", noted):
        yield found


def no_hooks() -> bool:
    """Whether torch has no hooks of saved tensors."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is None


def on_ranks() -> None:
    """What each rank of several does: prints the fingerprints by device, with and without checkpointing."""
    with tempfile.TemporaryDirectory() as folder:
        for make in (Model, recomputed):
            for device in DEVICES:
                fingerprint, losses, memory = trained(make(), device, accumulation=2, folder=folder)
                assert (memory.activations_planned > 0) == (device != "none")
                print(f"{fingerprint:x} {losses}")


class TestActivations(unittest.TestCase):
    def setUp(self) -> None:
        warnings.filterwarnings("error", message="sherd")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def tearDown(self) -> None:
        self.assertTrue(no_hooks())

    def test_the_bits_are_those_without(self) -> None:
        for name, make in (("plain", Model), ("recomputed", recomputed), ("reentrant", lambda: recomputed(True))):
            for stage in (3, 2, 1):
                with self.subTest(model=name, stage=stage):
                    results = [trained(make(), device, stage=stage, accumulation=2, folder=self.folder)[:2]
                               for device in (DEVICES if stage == 3 else ("none", "cpu"))]
                    self.assertTrue(all(one == results[0] for one in results[1:]), results)

    def test_stages_below_2_without_determinism(self) -> None:
        for stage in (0, 1):
            results = [trained(Model(), device, stage=stage, deterministic=False)[:2] for device in ("none", "cpu")]
            self.assertEqual(*results)

    def test_two_ranks(self) -> None:
        texts = ranks.run(2, "on_ranks")
        fingerprints = [[line.split()[0] for line in text.splitlines()] for text in texts]
        self.assertEqual(fingerprints[0], fingerprints[1])
        self.assertEqual(len(set(fingerprints[0])), 1)  # what is computed again has the same bits too
        for text in texts:
            self.assertEqual(len({line.split(" ", 1)[1] for line in text.splitlines()}), 1)

    def test_the_plan_has_the_bytes(self) -> None:
        x = ROWS * LENGTH * WIDTH * 4
        # Inputs of two norms and of four products; queries, keys and values as one; what gelu has; what the dropout has drawn.
        block = x * (2 + 1 + 1 + 1 + 4) + 3 * x + 4 * x + x
        for device, report in (("cpu", "host_activations_planned"), ("nvme", "nvme_activations_planned")):
            engine = begun(Model(), device, folder=self.folder)
            self.assertEqual(dict((name, size) for name, _, size in engine.order.activations),
                             {"blocks.0": block + x, "blocks.1": block + x, "blocks.2": block, "blocks.3": block, "norm": x})
            memory = engine.memory_report()
            self.assertEqual(memory.activations_planned, block + x)  # one place, of the longest
            self.assertEqual(getattr(memory, report), 4 * block + 2 * x)  # all but the last of forward
            step(engine, batch(0))
            self.assertEqual((engine.hooks.saver.packed_bytes, engine.hooks.saver.stayed_bytes), (4 * block + 3 * x, 0))
            engine.destroy()

    def test_torch_holds_what_it_is_given_no_longer(self) -> None:
        for make in (Model, recomputed):
            engine = begun(make(), "cpu")
            with copied() as found:
                loss = engine(batch(0))
                held = sum(size for storage, size in found if not storage.expired())
                self.assertGreater(sum(size for _, size in found), 4 * ROWS * LENGTH * WIDTH * 4)
                self.assertLessEqual(held, 2 * ROWS * LENGTH * WIDTH * 4)  # the mask, which two blocks keep, and the output of the last block
                engine.backward(loss)
                engine.step()
            engine.destroy()

    def test_graphs_go_without_a_backward(self) -> None:
        """Also those in which nodes keep what they have made themselves."""
        patch = mock.patch.object(activations, "LEAST_BYTES", 1 << 15)
        patch.start()
        self.addCleanup(patch.stop)
        engine = begun(Model(), "cpu")
        alive: weakref.WeakSet[activations.Saved] = weakref.WeakSet()
        pack = activations.Saver.pack

        def noted(saver: Any, tensor: torch.Tensor) -> activations.Saved:
            saved = pack(saver, tensor)
            alive.add(saved)
            return saved

        with mock.patch.object(activations.Saver, "pack", noted):
            loss = engine(batch(0))
        self.assertTrue(any(saved.record is None and saved.tensor.numel() > 1 for saved in alive) and any(saved.record for saved in alive))
        del loss
        gc.collect()
        self.assertEqual(len(alive), 0)
        engine.destroy()

    def test_evaluations_move_nothing(self) -> None:
        results = []
        for device in ("none", "cpu"):
            engine = begun(Model(), device)
            loss = engine(batch(0))
            with copied() as found:
                with torch.no_grad():
                    engine(batch(1))
                with engine.evaluating():
                    engine.module(batch(2))
            self.assertEqual(found, [])
            engine.backward(loss)
            engine.step()
            results.append((step(engine, batch(3)), engine.fingerprint()))
            engine.destroy()
        self.assertEqual(*results)

    def test_a_forward_that_fails_leaves_nothing(self) -> None:
        class Broken(Block):
            error: type[BaseException] | None = None

            def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
                x = super().forward(x, mask)
                if self.error is not None:
                    raise self.error
                return x

        for error, warning in ((ZeroDivisionError, None), (KeyboardInterrupt, "did not end")):
            model = Model()
            model.blocks[2].__class__ = Broken
            engine = begun(model, "cpu")
            step(engine, batch(0))
            model.blocks[2].error = error
            with self.assertRaises(error):
                engine(batch(9))
            model.blocks[2].error = None
            torch.manual_seed(6)
            with self.assertWarnsRegex(UserWarning, warning) if warning else contextlib.nullcontext():
                step(engine, batch(1))
            self.assertTrue(no_hooks())
            fingerprint = engine.fingerprint()
            engine.destroy()
            engine = begun(Model(), "none")
            step(engine, batch(0))
            torch.manual_seed(6)
            step(engine, batch(1))
            self.assertEqual(engine.fingerprint(), fingerprint)
            engine.destroy()

    def test_other_lengths_than_the_trace_has(self) -> None:
        """What a longer batch saves stays in torch's memory, with one warning. The first batch is the one of the trace."""
        results = []
        for device in ("none", "cpu"):
            engine = begun(Model(), device, options={"example": None})
            losses = [step(engine, batch(0)), step(engine, batch(0, 2))]
            with self.assertWarnsRegex(UserWarning, "bytes that this forward saves.*example=") if device == "cpu" else contextlib.nullcontext():
                losses.append(step(engine, batch(1, 7)))
            losses += [step(engine, batch(2, 7)), step(engine, batch(3))]
            results.append((losses, engine.fingerprint()))
            engine.destroy()
        self.assertEqual(*results)

    def test_another_forward_of_the_micro_batch(self) -> None:
        """The first forward has the activations while its graph is alive; what the other one saves stays."""
        results = []
        for device in ("none", "cpu"):
            engine = begun(Model(), device)
            kept = engine(batch(0))
            with copied() as found:
                loss = engine(batch(1))
                self.assertEqual(found, [])
                engine.backward(loss)
                engine.step()
                engine(batch(2))  # nobody keeps its graph
                self.assertEqual(bool(found), device == "cpu")
            step(engine, batch(3))
            results.append((kept.item(), engine.fingerprint()))
            if device == "cpu":
                with self.assertRaisesRegex(sherd.StateError, "has ended"):
                    engine.backward(kept)
                engine.discard()
            engine.destroy()
        self.assertEqual(*results)

    def test_what_has_ended_is_refused(self) -> None:
        engine = begun(Model(), "cpu")
        loss = engine(batch(0))
        engine.backward(loss, retain_graph=True)
        node = loss.grad_fn
        while node.name() != "NativeLayerNormBackward0":
            node = next(child for child, _ in node.next_functions if child is not None)
        with self.assertRaisesRegex(sherd.StateError, "module norm has saved for its backward has ended"):
            node._saved_input
        engine.step()
        engine.destroy()

    def test_saved_tensors_that_are_gradients_leave_as_copies(self) -> None:
        class Slope(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                ctx.save_for_backward(x.cos())
                return x.sin()

            @staticmethod
            def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
                return ctx.saved_tensors[0].mul_(grad)

        class Sine(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return super().forward(Slope.apply(x))

        x, results = torch.randn(64, WIDTH), []
        for device in ("none", "cpu"):
            engine = begun(Layers(lambda: Sine(WIDTH, WIDTH)), device, example=x)
            results.append(([step(engine, x + number) for number in range(3)], engine.fingerprint()))
            engine.destroy()
        self.assertEqual(*results)

    def test_saved_tensors_that_are_gradients_of_several_inputs_are_refused(self) -> None:
        class Slopes(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                ctx.save_for_backward(x.cos(), y.cos())
                return x.sin() + y.sin()

            @staticmethod
            def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
                return tuple(one.mul_(grad) for one in ctx.saved_tensors)

        class Pair(nn.Linear):
            def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                return super().forward(Slopes.apply(x, y))

        class Pairs(Layers):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x = y = self.start(x)
                for layer in self.layers:
                    x, y = layer(x, y * 2), x
                return x.square().mean()

        x = torch.randn(64, WIDTH)
        engine = begun(Pairs(lambda: Pair(WIDTH, WIDTH)), "cpu", example=x)
        with self.assertRaisesRegex(sherd.StateError, "module layers.2 gives what its forward has saved as the gradient of several inputs"):
            engine.backward(engine(x))
        engine.discard()
        engine.destroy()

    def test_writes_in_place_are_found(self) -> None:
        """What was copied has the value that it had; of what stays, torch's refusal is given in its words."""
        class Changed(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y = super().forward(x).tanh()
                y.mul_(2)
                return y

        engine = begun(Layers(lambda: Changed(WIDTH, WIDTH)), "cpu", example=torch.randn(64, WIDTH))
        loss = engine(torch.randn(1, WIDTH))  # too small to be moved
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation.*is at version 1; expected version 0"):
            engine.backward(loss)
        engine.discard()
        step(engine, torch.randn(64, WIDTH))
        engine.destroy()

    def test_hooks_of_the_script_come_first(self) -> None:
        with copied() as found:
            engine = begun(Model(), "cpu")
            with torch.autograd.graph.save_on_cpu():
                loss = engine(batch(0))
            engine.backward(loss)
            engine.step()
            self.assertEqual(found, [])
            step(engine, batch(1))
            self.assertNotEqual(found, [])
            engine.destroy()

    def test_models_without_activations_say_why(self) -> None:
        class Transformed(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return super().forward(torch.func.grad(lambda y: y.square().sum())(x))

        def of(options: dict[str, Any], make: Callable[[], nn.Module], example: torch.Tensor, text: str) -> None:
            fingerprints = []
            for device in ("none", "cpu"):
                with self.assertWarnsRegex(UserWarning, text) if device == "cpu" else contextlib.nullcontext():
                    engine = begun(make(), device, example, {} if device == "none" and "activations" in options else options)
                step(engine, example)
                fingerprints.append(engine.fingerprint())
                self.assertEqual(engine.memory_report().activations_planned, 0)
                engine.destroy()
            self.assertEqual(*fingerprints)

        x = torch.randn(64, WIDTH)
        of({"backward_uses": "any"}, Model, batch(0), "nobody knows")
        of({"activations": ["encoder.*"]}, Model, batch(0), "matches none of blocks.0, blocks.1")
        of({}, lambda: Layers(lambda: Transformed(WIDTH, WIDTH)), x, "does not take hooks of saved tensors")
        of({}, lambda: Layers(lambda: nn.Linear(WIDTH, WIDTH)), x[:2], "saves a tensor of 4096 bytes")

    def test_units_that_are_used_twice_have_none(self) -> None:
        class Twice(Model):
            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                x, mask = self.words(ids) + self.places, torch.ones(())
                for block in [*self.blocks, self.blocks[1]]:
                    x = block(x, mask)
                return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), ids.flatten())

        results = []
        for device in ("none", "cpu"):
            engine = begun(Twice(), device)
            results.append((step(engine, batch(0)), engine.fingerprint()))
            self.assertTrue(device == "none" or [name for name, _, _ in engine.order.activations] == ["blocks.0", "blocks.2", "blocks.3", "norm"])
            engine.destroy()
        self.assertEqual(*results)

    def test_units_and_devices_are_chosen(self) -> None:
        engine = begun(Model(), "none", options={"activations": {"blocks.3": "none", "blocks.[01]": "cpu", "blocks.2": "nvme"}}, folder=self.folder)
        memory = engine.memory_report()
        self.assertTrue(memory.activations_planned and memory.host_activations_planned)
        step(engine, batch(0))
        fingerprint = engine.fingerprint()
        engine.destroy()
        self.assertEqual(fingerprint, trained(Model(), "none", micro_batches=1)[0])
        engine = begun(Model(), "cpu", options={"activations": ["blocks.3"]})
        x = ROWS * LENGTH * WIDTH * 4
        self.assertEqual(engine.order.activations, [("blocks.3", 5, 18 * x)])  # with the mask, which blocks before it have otherwise
        step(engine, batch(0))
        self.assertEqual((engine.hooks.saver.packed_bytes, engine.hooks.saver.stayed_bytes), (18 * x, 0))
        engine.destroy()
        for wrong, kind, text in (("blocks.*", TypeError, "list of patterns"), ({"blocks.*": "gpu"}, ValueError, "\"none\", \"cpu\" or \"nvme\""),
                                  ([3], TypeError, "patterns of units")):
            with self.assertRaisesRegex(kind, text):
                sherd.torch.initialize(Model(), config("cpu"), activations=wrong)

    def test_inference_has_none(self) -> None:
        engine = begun(Model(), "cpu", optimizer={"type": "none"})
        with torch.no_grad():
            engine(batch(0))
        self.assertEqual(engine.memory_report().activations_planned, 0)
        engine.destroy()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if ranks.rank() is not None:
        on_ranks()
    else:
        ranks.ready()
        unittest.main()

"""Tests the engine under numpy: its memory as arrays in place, training compared with plain numpy, and the example."""
from __future__ import annotations

import os
import re
import sys
import unittest
from pathlib import Path

import ranks

try:
    import numpy as np
except ImportError as missing:
    ranks.skip(f"{missing} (SHERD_PYTHON names an interpreter that has numpy)")

import sherd

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "python" / "minimal.py"
SIZE, STEPS, LR, BETAS, EPS, DECAY = 200, 20, 0.01, (0.9, 0.999), 1e-8, 0.1


def config(stage: int, **changes: object) -> dict[str, object]:
    return {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}, "gradient_clipping": 0,
            "optimizer": {"type": "AdamW", "params": {"lr": LR, "betas": list(BETAS), "eps": EPS, "weight_decay": DECAY}},
            **changes}


def first_values() -> np.ndarray:
    return np.random.default_rng(5).standard_normal((2, SIZE // 2)).astype(np.float32)


def gradient(weight: np.ndarray, rank: int, step: int) -> np.ndarray:
    """Returns the gradient of a loss that has another minimum in each step and on each rank."""
    return weight - np.random.default_rng((rank, step)).standard_normal(weight.shape).astype(np.float32)


def trained_plainly(world_size: int) -> np.ndarray:
    """Returns the weights that AdamW (Loshchilov and Hutter 2019) makes of the mean gradients, computed in double."""
    weight = first_values().astype(np.float64)
    m, v = np.zeros_like(weight), np.zeros_like(weight)
    for step in range(1, STEPS + 1):
        grad = np.mean([gradient(weight, rank, step) for rank in range(world_size)], axis=0)
        m = BETAS[0] * m + (1 - BETAS[0]) * grad
        v = BETAS[1] * v + (1 - BETAS[1]) * grad * grad
        weight -= LR * DECAY * weight
        weight -= LR * (m / (1 - BETAS[0] ** step)) / (np.sqrt(v / (1 - BETAS[1] ** step)) + EPS)
    return weight


def train(world: sherd.World, stage: int) -> tuple[np.ndarray, int]:
    """Returns the weights after STEPS steps, and the fingerprint. The views are made once, before the first acquire."""
    with sherd.Engine(world, config(stage)) as engine:
        unit = engine.add_unit("u")
        param = engine.add_param(unit, "w", [2, SIZE // 2])
        engine.seal()
        engine.fill(param, first_values())
        weight = np.asarray(engine.address(param))
        assert not weight.flags.writeable  # because the engine alone writes parameters
        grad = np.asarray(engine.grad_address(param))
        for step in range(1, STEPS + 1):
            with engine.acquired(unit, sherd.FORWARD):
                assert np.asarray(engine.data(param)).ctypes.data == weight.ctypes.data
                down = gradient(weight, world.rank, step)
            with engine.acquired(unit, sherd.BACKWARD):
                grad += down
            engine.step()
        return np.array(engine.read(param)).reshape(2, -1), engine.fingerprint()


def part_trains() -> None:
    """Trains at every stage, compares the weights with numpy's, and prints the fingerprints."""
    world = sherd.World.from_env()
    want = trained_plainly(world.size)
    for stage in range(4):
        got, fingerprint = train(world, stage)
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
        print(f"{fingerprint:x}")


def part_refuses() -> None:
    """Makes engines whose configurations differ, which raises the engine's error on every rank."""
    world = sherd.World.from_env()
    try:
        sherd.Engine(world, config(stage=1 if world.rank == 0 else 2))
    except sherd.SherdError as error:
        assert "stage" in str(error), error
        print(type(error).__name__)


class TestNumpy(unittest.TestCase):
    def test_training_equals_the_plain_one(self) -> None:
        for size in (1, 2, 3):
            texts = ranks.run(size, "part_trains")
            self.assertEqual(len(set(texts)), 1)
            self.assertEqual(len(set(texts[0].split())), 1, "the stages have one fingerprint")

    def test_ranks_that_differ_are_refused(self) -> None:
        for size in (2, 3):
            kinds = set(ranks.run(size, "part_refuses"))
            self.assertEqual(len(kinds), 1)
            self.assertIn("Error", kinds.pop())

    def test_the_example_learns(self) -> None:
        for size in (1, 2, 3):
            texts = ranks.run(size, "part_example")
            losses = {tuple(re.findall(r"loss (\S+),", text)) for text in texts}
            self.assertEqual(len(losses), 1)
            self.assertLess(float(losses.pop()[-1]), 0.01)

    def test_memory_of_other_types(self) -> None:
        with sherd.World.self() as world, sherd.Engine(world, config(0, bf16={"enabled": True})) as engine:
            unit = engine.add_unit("u")
            param = engine.add_param(unit, "w", [3])
            engine.seal()
            engine.fill(param, np.array([1, -2, 0.5], np.float32))
            with engine.acquired(unit, sherd.FORWARD):
                bits = np.asarray(engine.data(param))
                self.assertEqual(bits.dtype, np.uint16)
                self.assertEqual((bits.astype(np.uint32) << 16).view(np.float32).tolist(), [1, -2, 0.5])

    def test_an_array_keeps_its_engine(self) -> None:
        with sherd.World.self() as world:
            engine = sherd.Engine(world, config(0))
            param = engine.add_param(engine.add_unit("u"), "w", [4])
            engine.seal()
            engine.fill(param, np.full(4, 3, np.float32))
            for made in (np.asarray, np.from_dlpack):
                view = made(engine.address(param))
                self.assertEqual(view.tolist(), [3, 3, 3, 3])
            del engine
            self.assertEqual(view.tolist(), [3, 3, 3, 3])


PARTS = {"part_trains": part_trains, "part_refuses": part_refuses,
         "part_example": lambda: os.execv(sys.executable, [sys.executable, str(EXAMPLE)])}

if __name__ == "__main__":
    if ranks.rank() is not None:
        PARTS[sys.argv[1]]()
    else:
        unittest.main(argv=sys.argv[:1])

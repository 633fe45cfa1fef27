"""Fits y = sin x by a network of two layers: numpy computes, sherd holds, shards, reduces and updates.

Alone: python minimal.py. With several ranks: torchrun --nproc-per-node 2 minimal.py, or under mpirun or srun.
"""
from dataclasses import dataclass

import numpy as np
import sherd

HIDDEN, BATCH, STEPS = 64, 128, 400
CONFIG = {"train_micro_batch_size_per_gpu": BATCH, "zero_optimization": {"stage": 3}, "gradient_clipping": 1.0,
          "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0}}}


@dataclass
class Layer:
    """A unit of the engine, which is gathered and released as one. The arrays are views of the engine's memory, made
    once: they mean something while the unit is acquired."""

    unit: int
    params: tuple[int, int]
    weight: np.ndarray = None
    bias: np.ndarray = None
    weight_grad: np.ndarray = None
    bias_grad: np.ndarray = None


def build(engine: sherd.Engine) -> list[Layer]:
    layers = []
    for i, (inputs, outputs) in enumerate([(1, HIDDEN), (HIDDEN, 1)]):
        unit = engine.add_unit(f"layer {i}")
        layers.append(Layer(unit, (engine.add_param(unit, f"layers.{i}.weight", [inputs, outputs]),
                                   engine.add_param(unit, f"layers.{i}.bias", [outputs]))))
    engine.seal()  # plans, then allocates; after it nothing does
    first = np.random.default_rng(0)  # the same on all ranks
    for layer in layers:
        layer.weight, layer.bias = (np.asarray(engine.address(param)) for param in layer.params)
        layer.weight_grad, layer.bias_grad = (np.asarray(engine.grad_address(param)) for param in layer.params)
        scale = layer.weight.shape[0] ** -0.5
        for param, shape in zip(layer.params, (layer.weight.shape, layer.bias.shape)):
            engine.fill(param, (scale * first.standard_normal(shape)).astype(np.float32))
    return layers


def forward(engine: sherd.Engine, layers: list[Layer], x: np.ndarray) -> list[np.ndarray]:
    """The inputs of each layer, and last what comes out."""
    values = [x]
    for layer in layers:
        with engine.acquired(layer.unit, sherd.FORWARD):
            out = values[-1] @ layer.weight + layer.bias
        values.append(np.tanh(out) if layer is not layers[-1] else out)
    return values


def backward(engine: sherd.Engine, layers: list[Layer], values: list[np.ndarray], down: np.ndarray) -> None:
    """Adds to the gradients; `down` is the loss's by what came out."""
    for layer, x in zip(reversed(layers), reversed(values[:-1])):
        with engine.acquired(layer.unit, sherd.BACKWARD):
            layer.weight_grad += x.T @ down
            layer.bias_grad += down.sum(axis=0)
            down = (down @ layer.weight.T) * (1 - x ** 2)


def main() -> None:
    world = sherd.World.from_env()
    engine = sherd.Engine(world, CONFIG)
    layers = build(engine)
    draws = np.random.default_rng(1 + world.rank)  # each rank its own data
    for step in range(1, STEPS + 1):
        x = draws.uniform(-np.pi, np.pi, (BATCH, 1)).astype(np.float32)
        values = forward(engine, layers, x)
        error = values[-1] - np.sin(x)
        backward(engine, layers, values, 2 * error / BATCH)
        report = engine.step()  # reduces, clips, updates
        if step % 100 == 0:
            loss = world.sum([float(np.mean(error ** 2))])[0] / world.size
            print(f"rank {world.rank} of {world.size}, step {step}: loss {loss:.5f}, gradient norm {report.grad_norm:.3f}")
    engine.destroy()
    world.destroy()


if __name__ == "__main__":
    main()

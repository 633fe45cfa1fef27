"""Compares a module under sherd.torch with the same module in plain torch: what it returns, and its gradients.

No module is changed for the comparison. Adam with both betas 0 and a large eps moves a weight by rate * gradient, so the weights after a
step show the gradients. Needs torch.
"""
from __future__ import annotations

import functools
import os

import torch

from torch_cases import Case

STEPS, RATE, EPS = 3, 0.25, 1e6
WEIGHT_MOST, VALUE_MOST = 4e-6, 1e-5  # largest differences, relative to 1 or to the largest value, whichever is more
SETTINGS = {"lr": RATE * EPS, "betas": [0.0, 0.0], "eps": EPS, "weight_decay": 0.0}


@functools.lru_cache
def rendezvous() -> str:
    """Returns the meeting point of the ranks of the test. Each engine has another one in the same folder."""
    return os.environ["SHERD_RENDEZVOUS"]


class Plain:
    """The module in plain torch. Every rank plays all ranks, so its gradients are the means over the inputs of all ranks."""

    def __init__(self, case: Case, world_size: int) -> None:
        self.model, self.share, self.step_number = model_make(case), 1 / world_size, 0

    def __call__(self, *args, **kwargs):
        return self.model(*args, **kwargs)

    def backward(self, loss: torch.Tensor, **how) -> None:
        (loss * self.share).backward(**how)

    def step(self) -> dict[str, torch.Tensor]:
        """Moves the weights, and returns the gradients by name."""
        grads = {}
        with torch.no_grad():
            for name, param in self.model.named_parameters():
                if param.grad is not None:
                    param -= RATE * param.grad
                    grads[name], param.grad = param.grad, None
        self.step_number += 1
        return grads


class Sharded:
    """The module under sherd.torch, in a world of its own."""

    def __init__(self, case: Case, stage: int, name: str, **zero: object) -> None:
        import sherd.torch

        os.environ["SHERD_RENDEZVOUS"] = f"{rendezvous()}-{name}"
        self.engine = sherd.torch.initialize(model_make(case), backward_uses=case.uses, config={
            "train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": SETTINGS}, "gradient_clipping": 0,
            "sherd": {"activations": {"device": case.activations, "buffer_count": 1}},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0, **zero}})
        self.step_number = 0

    def __call__(self, *args, **kwargs):
        return self.engine(*args, **kwargs)

    def backward(self, loss: torch.Tensor, **how) -> None:
        self.engine.backward(loss, **how)

    def step(self) -> None:
        self.engine.step()
        self.step_number += 1


def weights(engine) -> dict[str, torch.Tensor]:
    """Returns the weights that passes read, by name."""
    return {p.name: torch.frombuffer(engine.core.read(p.number, "compute"), dtype=torch.float32).view(p.tensor.shape)
            for p in engine.division.params}


def model_make(case: Case) -> torch.nn.Module:
    """Returns the module of a case, with the same weights each time."""
    torch.manual_seed(11)
    return case.make()


def feed(case: Case, step: int, rank: int) -> torch.Tensor:
    return case.feed(torch.Generator().manual_seed(100 * step + rank))


def check_close(what: str, got: torch.Tensor, want: torch.Tensor, most: float) -> None:
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)} for {tuple(want.shape)}"
    apart = (got.float() - want.float()).abs().max().item() / max(1, want.abs().max().item())
    assert apart <= most, f"{what}: apart by {apart:.3g}"


def values_check(what: str, got: list[torch.Tensor], want: list[torch.Tensor], most: float) -> None:
    assert len(got) == len(want)
    for number, (a, b) in enumerate(zip(got, want)):
        check_close(f"{what}, result {number}", a, b, most)


def case_check(case: Case, name: str, stage: int, **zero: object) -> None:
    """Compares one case at one stage, on the ranks of this world; `zero` has further keys of zero_optimization. Collective."""
    rank, size = int(os.environ["SHERD_RANK"]), int(os.environ["SHERD_WORLD_SIZE"])
    plain, sharded = Plain(case, size), Sharded(case, stage, f"{name}-{stage}", **zero)
    try:
        windows_check(case, plain, sharded, rank, size)
    finally:
        sharded.engine.destroy()


def windows_check(case: Case, plain: Plain, sharded: Sharded, rank: int, size: int) -> None:
    """Trains both for a few steps, and compares them after each."""
    with_gradient = {n for n, p in plain.model.named_parameters() if p.requires_grad} - set(case.unused)
    for step in range(STEPS):
        results = [case.window(plain, feed(case, step, played)) for played in range(size)]
        grads = plain.step()
        if step == 0:
            blind = {n for n in with_gradient if n not in grads or grads[n].abs().max() < case.least}
            assert not blind, f"plain torch gives {blind} no gradient: the case shows nothing"
        got = case.window(sharded, feed(case, step, rank))
        # In plain torch, the gradient of an input is that of the loss divided by the number of ranks.
        values_check(f"step {step}", got, [r if r.dim() == 0 else r * size for r in results[rank]], VALUE_MOST * case.most)
        sharded.step()
        state = weights(sharded.engine)
        for key, value in plain.model.named_parameters():
            check_close(f"step {step}, weight {key}", state[key], value, WEIGHT_MOST * case.most)

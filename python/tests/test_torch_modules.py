"""Compares modules under sherd.torch with the same modules in plain torch: what they return, and their gradients.

This is done at every stage, on one rank and on two. SHERD_DEBUG=1 overwrites memory outside of its live range. No module is
changed for the test. Adam with both betas 0 and a large eps moves a weight by rate * gradient, so the weights after a step show the
gradients.

usage: test_torch_modules.py [CASE ...]"""
from __future__ import annotations

import os
import sys
import traceback

import ranks

try:
    import torch
except ImportError as missing:
    ranks.skip(str(missing))

from torch_cases import Case, all_cases

STAGES = {1: [3, 0], 2: [3, 2, 1]}
STEPS, RATE, EPS = 3, 0.25, 1e6
WEIGHT_MOST, VALUE_MOST = 4e-6, 1e-5  # largest absolute differences; weights and results are around 1
SETTINGS = {"lr": RATE * EPS, "betas": [0.0, 0.0], "eps": EPS, "weight_decay": 0.0}


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

    def __init__(self, case: Case, stage: int, name: str) -> None:
        import sherd.torch

        os.environ["SHERD_RENDEZVOUS"] = f"{MEET}-{name}"
        self.engine = sherd.torch.initialize(model_make(case), backward_uses=case.uses, config={
            "train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": SETTINGS}, "gradient_clipping": 0,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}})
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
    apart = (got.float() - want.float()).abs().max().item()
    assert apart <= most, f"{what}: apart by {apart:.3g}"


def values_check(what: str, got: list[torch.Tensor], want: list[torch.Tensor], most: float) -> None:
    assert len(got) == len(want)
    for number, (a, b) in enumerate(zip(got, want)):
        check_close(f"{what}, result {number}", a, b, most)


def case_check(case: Case, name: str, stage: int) -> None:
    """Compares one case at one stage."""
    rank, size = int(os.environ["SHERD_RANK"]), int(os.environ["SHERD_WORLD_SIZE"])
    plain, sharded = Plain(case, size), Sharded(case, stage, f"{name}-{stage}")
    with_gradient = {n for n, p in plain.model.named_parameters() if p.requires_grad} - set(case.unused)
    for step in range(STEPS):
        results = [case.window(plain, feed(case, step, played)) for played in range(size)]
        grads = plain.step()
        if step == 0:
            blind = {n for n in with_gradient if n not in grads or grads[n].abs().max() < 1e-4}
            assert not blind, f"plain torch gives {blind} no gradient: the case shows nothing"
        got = case.window(sharded, feed(case, step, rank))
        # In plain torch, the gradient of an input is that of the loss divided by the number of ranks.
        values_check(f"step {step}", got, [r if r.dim() == 0 else r * size for r in results[rank]], VALUE_MOST)
        sharded.step()
        state = weights(sharded.engine)
        for key, value in plain.model.named_parameters():
            check_close(f"step {step}, weight {key}", state[key], value, WEIGHT_MOST)
    sharded.engine.destroy()


def rank_main(names: list[str]) -> None:
    cases, failed = all_cases(), []
    for stage in STAGES[int(os.environ["SHERD_WORLD_SIZE"])]:
        for name in names or cases:
            try:
                case_check(cases[name], name, stage)
            except Exception:  # a failure of one case does not end the others
                failed.append(f"{name} at stage {stage}")
                print(f"case {name}, stage {stage}, rank {os.environ['SHERD_RANK']}:\n{traceback.format_exc()}")
    assert not failed, f"failed: {', '.join(failed)}"


def main() -> None:
    failed = []
    for size, stages in STAGES.items():
        try:
            ranks.run(size, *sys.argv[1:], SHERD_DEBUG="1")
            print(f"{size} ranks, stages {stages}: {len(sys.argv[1:] or all_cases())} cases are as in plain torch")
        except AssertionError as error:
            failed.append(f"{size} ranks")
            print(f"{failed[-1]}: {error}")
    assert not failed, f"failed: {failed}"


torch.set_num_threads(1)
if ranks.rank() is None:
    ranks.ready()
    main()
else:
    MEET = os.environ["SHERD_RENDEZVOUS"]
    rank_main(sys.argv[1:])

"""Evaluation in many passes, such as text from a transformers model whose parameters are sharded."""
from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Iterator

import torch

if TYPE_CHECKING:
    from sherd.torch.engine import Engine

UNFINISHED = "_has_unfinished_sequences"  # transformers' question at the end of each token


@contextlib.contextmanager
def evaluating(engine: "Engine", keep_units: int | None = None) -> Iterator[None]:
    """Runs the body of a `with` statement without gradients; units stay gathered as far as sherd.eval_keep_units has planned.
    Collective.

    The body must not train.
    """
    engine.seal()
    with torch.no_grad(), engine.core.evaluating(keep_units):
        yield


def generate(engine: "Engine", *args: Any, **kwargs: Any) -> Any:
    """Calls the model's own generate(). Collective: a rank whose text has ended makes empty passes until all have ended."""
    model = engine.module
    if not hasattr(model, "generate"):
        raise AttributeError(f"{type(model).__name__} has no generate(): it is a method of transformers' models")
    was_training = model.training
    model.eval()
    try:
        with evaluating(engine), together(engine, kwargs):
            return model.generate(*args, **kwargs)
    finally:
        model.train(was_training)


@contextlib.contextmanager
def together(engine: "Engine", kwargs: dict[str, Any]) -> Iterator[None]:
    """Makes every rank do as many passes as the rank that needs most."""
    model, world = engine.module, engine.world
    if world.size == 1 or engine.core.info.stage < 3:
        yield
        return
    kwargs["synced_gpus"] = True

    def has_unfinished(this_peer_finished: bool, synced_gpus: bool, device: Any) -> bool:
        return world.sum([0.0 if this_peer_finished else 1.0])[0] > 0

    setattr(model, UNFINISHED, has_unfinished)
    try:
        yield
    finally:
        delattr(model, UNFINISHED)

"""Evaluates in many passes: generates text with a transformers model whose parameters are sharded."""
from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Iterator

import torch

if TYPE_CHECKING:
    from sherd.torch.engine import Engine

UNFINISHED = "_has_unfinished_sequences"  # the method that transformers calls after each token, to know whether to continue


@contextlib.contextmanager
def evaluating(engine: "Engine", keep_units: int | None = None) -> Iterator[None]:
    """A context for passes without gradients, between which units stay gathered as far as sherd.eval_keep_units has planned.

    Inside there is no step and no training. Collective, blocking; seals the engine where it is not sealed. Raises what
    sherd.Engine.evaluating raises.
    """
    engine.seal()
    with torch.no_grad(), engine.core.evaluating(keep_units):
        yield


def generate(engine: "Engine", *args: Any, **kwargs: Any) -> Any:
    """Calls the model's own generate() in evaluation mode, and returns its result. Collective, blocking.

    It is an evaluation of its own, or a part of the one that is open. Ranks whose text has ended make empty passes until the text of
    all ranks has ended. Raises AttributeError where the model has no generate().
    """
    model = engine.module
    if not hasattr(model, "generate"):
        raise AttributeError(f"{type(model).__name__} has no generate(): it is a method of transformers' models")
    was_training = model.training
    model.eval()
    try:
        with contextlib.nullcontext() if engine.core.is_evaluating else evaluating(engine), torch.no_grad(), together(engine, kwargs):
            return model.generate(*args, **kwargs)
    finally:
        model.train(was_training)


@contextlib.contextmanager
def together(engine: "Engine", kwargs: dict[str, Any]) -> Iterator[None]:
    """A context in which every rank makes as many passes as the rank that needs most: at stage 3 passes gather, and at every stage the
    ranks compare their passes at the next step.

    It uses transformers' own option synced_gpus, whose exchange goes over `engine.world` here.
    """
    model, world = engine.module, engine.world
    if world.size == 1:
        yield
        return
    kwargs["synced_gpus"] = True

    def has_unfinished(this_peer_finished: bool, *_: Any, **_further: Any) -> bool:  # transformers' arguments differ by version
        return world.sum([0.0 if this_peer_finished else 1.0])[0] > 0

    setattr(model, UNFINISHED, has_unfinished)
    try:
        yield
    finally:
        delattr(model, UNFINISHED)

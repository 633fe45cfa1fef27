"""Evaluates in many passes: generates text with a transformers model whose parameters are sharded."""
from __future__ import annotations

import contextlib
import functools
import inspect
from typing import TYPE_CHECKING, Any, Callable, Iterator

import torch
from torch import nn

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
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with contextlib.nullcontext() if engine.core.is_evaluating else evaluating(engine), torch.no_grad(), together(engine):
            return model.generate(*args, **kwargs)
    finally:
        for module, was_training in modes:
            module.training = was_training


@contextlib.contextmanager
def together(engine: "Engine") -> Iterator[None]:
    """A context in which every rank makes as many passes as the rank that needs most: at stage 3 passes gather, and at every stage the
    ranks compare their passes at the next step.

    It is about every module in the model that has transformers' generate(), since a wrapper (of adapters, with a value head, of
    images and text) calls that of a member. It uses transformers' own option synced_gpus, whose exchange goes over `engine.world`
    here.
    """
    world = engine.world

    def has_unfinished(this_peer_finished: bool, synced_gpus: bool, *_: Any, **_further: Any) -> bool:  # more differ by version
        if not synced_gpus:
            return not this_peer_finished
        return world.sum([0.0 if this_peer_finished else 1.0])[0] > 0

    with contextlib.ExitStack() as replaced:
        for module in generating(engine.module) if world.size > 1 else ():
            replaced.enter_context(replacing(module, "generate", synced(module.generate)))
            replaced.enter_context(replacing(module, UNFINISHED, has_unfinished))
        yield


def generating(model: nn.Module) -> list[nn.Module]:
    """Returns the modules in the model whose generate() is transformers': it is their class's, or a member's that a wrapper has as its
    attribute. Wrappers whose own generate() passes the call on are not among them."""
    return [module for module in model.modules()
            if hasattr(type(getattr(vars(module).get("generate"), "__self__", module)), UNFINISHED)]


def synced(generate: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a module's generate() as one that goes on until all ranks have ended."""
    names, is_open = parameters_of(generate)
    more = {"synced_gpus": True} if is_open or "synced_gpus" in names else {}

    @functools.wraps(generate)
    def call(*args: Any, **kwargs: Any) -> Any:
        return generate(*args, **{**kwargs, **more})

    return call


@contextlib.contextmanager
def replacing(module: nn.Module, name: str, value: Any) -> Iterator[None]:
    """A context in which the module has `value` as its own attribute `name`, in place of its class's."""
    kept = {name: vars(module)[name]} if name in vars(module) else {}
    vars(module)[name] = value
    try:
        yield
    finally:
        del vars(module)[name]
        vars(module).update(kept)


def parameters_of(function: Callable[..., Any]) -> tuple[list[str], bool]:
    """Returns the names of the arguments that a function takes, and whether it takes any others by name too."""
    parameters = inspect.signature(function).parameters.values()
    variable = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return [one.name for one in parameters if one.kind not in variable], any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)

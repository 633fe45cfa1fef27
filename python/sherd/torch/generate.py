"""Evaluates in many passes: generates text with a transformers model whose parameters are sharded."""
from __future__ import annotations

import contextlib
import functools
import inspect
from typing import TYPE_CHECKING, Any, Callable, Iterator

import torch
from torch import nn

from sherd.errors import StateError
from sherd.torch import first
from sherd.torch.hooks import tensors_in

if TYPE_CHECKING:
    from sherd.torch.engine import Engine, Example

UNFINISHED = "_has_unfinished_sequences"  # the method that transformers calls after each token, to know whether to continue


# -------------------------------------------------------------- evaluation --

@contextlib.contextmanager
def evaluating(engine: "Engine", keep_units: int | None = None) -> Iterator[None]:
    """A context for passes without gradients, between which units stay gathered as far as sherd.eval_keep_units has planned.

    Inside there is no step and no training, and ranks may generate texts of different lengths. Collective, blocking. Before the
    engine is sealed it begins with the first forward inside (Opening). Raises what sherd.Engine.evaluating raises.
    """
    if engine.opening is not None:
        raise StateError("engine.evaluating() is open already: one evaluation ends before the next one begins")
    with torch.no_grad(), together(engine), contextlib.ExitStack() as opened:
        def begin() -> None:
            opened.enter_context(engine.core.evaluating(keep_units))

        if engine.is_sealed:
            engine.seal()  # a load of a checkpoint may wait still, since it had failed
            begin()
        else:
            opened.callback(Opening(engine, begin).end)
        yield


class Opening:
    """An evaluation that was opened before the engine has a plan, which needs a batch. It begins with the seal.

    Making it sets hooks on all parts of the model, by which the first forward seals the engine, as that of the model does always. Engine.seal calls `begin`; `end` removes the
    hooks. All are local.
    """

    def __init__(self, engine: "Engine", begin: Callable[[], Any]) -> None:
        self.engine, self._begin = engine, begin
        self._handles: list[Any] = []
        engine.opening = self
        self._attach()

    def _attach(self) -> None:
        model = self.engine.module  # which has the hook in any case
        self._handles = [first.of(self.engine, module) for module in model.modules() if module is not model]

    def begin(self) -> None:
        """Begins the evaluation. Collective, blocking. Raises what sherd.Engine.evaluating raises."""
        self.end()
        self._begin()

    def end(self) -> None:
        """Ends the wait. Does nothing after the first time."""
        self.engine.opening = None
        self._detach()

    def _detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """A context without the hooks, in which the engine is sealed: the trace calls the model. Local."""
        self._detach()
        try:
            yield
        finally:
            self._attach()


# -------------------------------------------------------------- generation --

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
        seal(engine, model.generate, args, kwargs)
        is_inside = engine.core.is_evaluating or engine.opening is not None
        with contextlib.nullcontext() if is_inside else evaluating(engine), torch.no_grad(), together(engine):
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
        for module in generating(engine.module):
            replaced.enter_context(replacing(module, "generate", synced(engine, module.generate)))
            if world.size > 1:
                replaced.enter_context(replacing(module, UNFINISHED, has_unfinished))
        yield


def generating(model: nn.Module) -> list[nn.Module]:
    """Returns the modules in the model whose generate() is transformers': it is their class's, or a member's that a wrapper has as its
    attribute. Wrappers whose own generate() passes the call on are not among them."""
    return [module for module in model.modules()
            if hasattr(type(getattr(vars(module).get("generate"), "__self__", module)), UNFINISHED)]


def synced(engine: "Engine", generate: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a module's generate() as one that seals the engine by its first arguments, and goes on until all ranks have ended."""
    names, is_open = parameters_of(generate)
    more = {"synced_gpus": True} if engine.world.size > 1 and (is_open or "synced_gpus" in names) else {}

    @functools.wraps(generate)
    def call(*args: Any, **kwargs: Any) -> Any:
        seal(engine, generate, args, kwargs)
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


# ------------------------------------------------------------------- order --

def seal(engine: "Engine", generate: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Seals the engine by what generate() is given, where it is not sealed. Where that has no tensors, the first forward seals it."""
    example = None if engine.is_sealed else example_of(engine.module, generate, args, kwargs)
    if example is not None:
        engine.seal(example)


def example_of(model: nn.Module, generate: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> "Example | None":
    """Returns what generate() is given as a batch of the model's forward; None where there are no tensors. Local.

    These are the prompt, its mask, images: what a trace of training needs. A pass of generation has more, such as a cache. A prompt of
    embeddings becomes one of tokens, since a model that trains reads its embedding, and a decoder begins with one token.
    """
    inner = generating(model)
    given = {name: value for name, value in named(generate, args, kwargs).items() if tensors_in(value)}
    if not given:
        return None
    known, is_open = parameters_of(model.forward)
    if is_open:  # a wrapper passes on what its member takes
        known += [name for module in inner for name in parameters_of(module.forward)[0]]
    prompt = "inputs" if "inputs" in given else next(iter(given))
    batch = {name: value for name, value in given.items() if name in known}
    one = tensors_in(given[prompt])[0]
    if "inputs_embeds" in batch and "input_ids" in known:
        shape = batch.pop("inputs_embeds").shape[:2]
        if prompt in known:
            batch.setdefault("input_ids", torch.zeros(shape, dtype=torch.long, device=one.device))
    if "decoder_input_ids" in known and any(getattr(getattr(module, "config", None), "is_encoder_decoder", False) for module in inner):
        batch.setdefault("decoder_input_ids", torch.zeros((len(one), 1), dtype=torch.long, device=one.device))
    return () if prompt in known else (given[prompt],), batch


def named(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call by their names; the first one of *args is "inputs". Raises TypeError as the call would."""
    bound = inspect.signature(function).bind_partial(*args, **kwargs)
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        found.update(value if kind is inspect.Parameter.VAR_KEYWORD else
                     zip(["inputs"], value) if kind is inspect.Parameter.VAR_POSITIONAL else [(name, value)])
    return found


def parameters_of(function: Callable[..., Any]) -> tuple[list[str], bool]:
    """Returns the names of the arguments that a function takes, and whether it takes any others by name too."""
    parameters = inspect.signature(function).parameters.values()
    variable = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return [one.name for one in parameters if one.kind not in variable], any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)

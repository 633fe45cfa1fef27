"""Sees what passes through the modules of a model, for compare(): what each returns, and the gradients of that and of the parameters.

The hooks change nothing. They are set before the engine's, so that they see what a module returns itself, and the gradient of a
parameter before the engine has taken it.
"""
from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, Callable, Iterable, Iterator

import torch
from torch import nn

from sherd.torch.differ import Key
from sherd.torch.hooks import current_task, fields_of, is_dataclass

Take = Callable[[Key, torch.Tensor], None]


def named_tensors(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors in what a module returns, with the way to each: "", "[0]", ".logits", ".hidden_states[2]"."""
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    inner: Any = ()
    if isinstance(value, Mapping):
        inner = [(f"[{key!r}]", one) for key, one in value.items()]
    elif isinstance(value, (list, tuple)):
        inner = [(f"[{number}]", one) for number, one in enumerate(value)]
    elif is_dataclass(value):
        inner = [(f".{name}", one) for name, one in fields_of(value).items()]
    for part, one in inner:
        yield from named_tensors(one, path + part)


class Taps:
    """The hooks of one model. They give what they see to a function while `giving` is under way, and do nothing otherwise.

    `scale` is the factor of the loss, by which gradients are divided. `blind` has the names of the parameters whose own gradients are not
    seen: those on meta, which are made anew without their hooks, and those that are given.
    """

    def __init__(self, model: nn.Module, blind: Iterable[str] = ()) -> None:
        self.scale = 1.0
        self.blind = {*blind, *(name for name, param in model.named_parameters() if param.is_meta)}
        self._take: Take | None = None
        self._calls: Counter[Any] = Counter()
        self._stack: list[tuple[str, str]] = []  # names and classes of the modules whose forward runs
        self._handles: list[Any] = []
        for name, module in model.named_modules():
            label = name, type(module).__name__
            self._handles.append(module.register_forward_pre_hook(partial(self._enter, label)))
            self._handles.append(module.register_forward_hook(partial(self._leave, label), with_kwargs=True))
        for name, param in model.named_parameters():
            if param.requires_grad and name not in self.blind:
                self._handles.append(param.register_post_accumulate_grad_hook(partial(self._accumulated, name)))

    def end(self) -> None:
        for handle in self._handles:
            handle.remove()

    @contextlib.contextmanager
    def giving(self, take: Take) -> Iterator[None]:
        """A context in which the hooks give what they see to `take`: forward and backward of one micro-batch."""
        self._calls.clear()
        self._stack.clear()
        self._take = take
        try:
            yield
        finally:
            self._take = None

    def innermost(self) -> tuple[str, str]:
        """Returns name and class of the innermost module whose forward has begun and not ended; two empty texts where there is none."""
        return self._stack[-1] if self._stack else ("", "")

    def _count(self, *what: Any) -> int:
        self._calls[what] += 1
        return self._calls[what]

    def _enter(self, label: tuple[str, str], _module: nn.Module, _args: Any) -> None:
        if self._take is not None:
            self._stack.append(label)

    def _leave(self, label: tuple[str, str], _module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Gives what a module has returned. A forward inside of a backward (checkpointing) has been seen before, but for its gradients."""
        if self._take is None:
            return
        self._stack.pop()
        is_again = current_task() >= 0
        call = self._count("again" if is_again else "forward", label)
        given = {id(tensor) for _, tensor in named_tensors((args, kwargs))}
        for part, tensor in named_tensors(output):
            if not is_again:
                self._take(Key("forward", *label, call, part), tensor)
            # The gradient of what a module hands through as it came is that of all uses, of which the engine's view of it has a part.
            if tensor.requires_grad and not tensor.is_leaf and id(tensor) not in given:
                where = "gradient of the output" + (", computed again" if is_again else "")
                tensor.register_hook(partial(self._gradient, Key(where, *label, call, part)))

    def _gradient(self, key: Key, grad: torch.Tensor) -> None:
        """Gives the gradient of an output, of which there may be several backward passes."""
        if self._take is not None:
            self._take(key.at(self._count(key)), self._unscaled(grad))

    def _accumulated(self, name: str, param: torch.Tensor) -> None:
        if self._take is not None and param.grad is not None:
            self._take(Key("gradient", name, "parameter", self._count("gradient", name)), self._unscaled(param.grad))

    def _unscaled(self, grad: torch.Tensor) -> torch.Tensor:
        return grad.detach() if self.scale == 1 else grad.detach() / self.scale

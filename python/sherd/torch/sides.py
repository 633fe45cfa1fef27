"""The two sides of compare(): an engine, and plain torch, which does what the configuration of that engine says."""
from __future__ import annotations

import contextlib
import copy
import ctypes
import random
import sys
from typing import Any, Callable, Iterator, Mapping

import torch
from torch import nn

from sherd.config import Config
from sherd.torch import buffers, optim, tensors, weights
from sherd.torch.engine import ConfigSource, Engine, as_call, initialize
from sherd.torch.hooks import mapped
from sherd.torch.taps import Taps
from sherd.torch.units import Param
from sherd.world import World

Loss = Callable[[Any, Any], torch.Tensor]  # gets the model and a batch, calls the model, and returns the loss


class Streams:
    """The states of the random number generators of torch, Python and numpy in this process, at the time when it is made."""

    def __init__(self) -> None:
        self._torch, self._python = torch.get_rng_state(), random.getstate()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
        numpy = sys.modules.get("numpy")
        self._numpy = numpy.random.get_state() if numpy is not None and hasattr(numpy, "random") else None

    def restore(self) -> None:
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """A context at whose end the generators have these states again."""
        try:
            yield
        finally:
            self.restore()


class Reached(BaseException):
    """Ends a call of a loss function when it calls the model. It is none of the exceptions that the function may catch."""


def example_of(model: nn.Module, batch: Any, loss: Loss | None) -> Any:
    """Returns the arguments with which the loss function calls the model, which is not run. Raises TypeError where it does not call it."""
    if loss is None:
        return as_call(batch)
    found: list[Any] = []

    def reach(_module: nn.Module, args: Any, kwargs: Any) -> None:
        found.append((args, kwargs))
        raise Reached

    handle = model.register_forward_pre_hook(reach, with_kwargs=True)
    try:
        with contextlib.suppress(Reached), Streams().kept():
            loss(model, copy.deepcopy(batch))
    finally:
        handle.remove()
    if not found:
        raise TypeError("loss= is a function of the model and a batch, which calls the model that it is given: "
                        "lambda model, batch: criterion(model(batch[0]), batch[1])")
    return found[0]


class Sharded:
    """The side of an engine. `prepare` and `apply` are the halves of its step; gradients can be read between them."""

    def __init__(self, world: World, given: tuple[Any, ...], config: ConfigSource | None,
                 example: tuple[nn.Module, Any, Loss | None]) -> None:
        model, optimizer, lr_scheduler, model_parameters, options = given
        self.config, self.options = config, dict(options)
        args = self.options.pop("example", None)
        args, kwargs = as_call(args) if args is not None else example_of(*example)
        self.has_own_weights = self.options.get("weights") is None and not any(param.is_meta for param in model.parameters())
        self.taps = Taps(model)
        self.engine: Engine = initialize(model, config, optimizer, lr_scheduler, model_parameters, world, **self.options)
        self.dtype = tensors.compute_dtype(self.engine.core)
        self.buffers_dtype = tensors.buffers_dtype(self.engine.division, self.dtype)
        self.engine.seal((args, kwargs))
        self.params = self.engine.division.params
        self.is_trained = not all(param.is_frozen for param in self.params)

    def forward(self, loss: Loss, batch: Any) -> torch.Tensor:
        return loss(self.engine, batch)

    def backward(self, loss: torch.Tensor) -> None:
        self.engine.backward(loss)

    def prepare(self, is_last: bool) -> Any:
        """Ends a micro-batch; the last one ends its window. Returns the report."""
        if is_last:
            self.engine.close_window()
        return self.engine.prepare_step()

    def gradient(self, param: Param) -> torch.Tensor | None:
        return weights.read(self.engine.core, param, "grad")

    def apply(self) -> None:
        self.engine.apply_step()

    def weight(self, param: Param) -> torch.Tensor:
        return weights.read(self.engine.core, param)

    def set_weight(self, param: Param, values: torch.Tensor) -> None:
        weights.write(self.engine.core, param, values)

    def buffers(self) -> dict[str, torch.Tensor]:
        return dict(self.engine.module.named_buffers())

    def end(self) -> None:
        self.taps.end()
        self.engine.destroy()


class Plain:
    """The side of plain torch, which does what the configuration of an engine says.

    Passes read parameters of the engine's types, and the optimizer updates fp32 `masters`; in fp32 the two are one.
    """

    def __init__(self, like: Sharded, given: tuple[Any, ...], precision: torch.dtype | None) -> None:
        model, optimizer, lr_scheduler, _, options = given
        engine = like.engine
        self.engine, self.model, self.precision = engine, model, precision
        self.dtype = precision or like.dtype
        names = {id(tensor): name for name, tensor in model.named_parameters()}
        self._take_values(like)
        self.taps = Taps(model, like.taps.blind)
        named = dict(self.model.named_parameters())
        self.masters: dict[str, torch.Tensor] = {}
        for param in like.params:
            tensor = named[param.name].requires_grad_(not param.is_frozen)
            master = tensor.data.float()
            tensor.data = tensor.data.to(precision or (torch.float32 if param.is_fp32 else like.dtype))
            self.masters[param.name] = tensor if tensor.dtype == torch.float32 else nn.Parameter(master, tensor.requires_grad)
        tensors.cast_buffers(model, precision or like.buffers_dtype, engine.device)
        self.named = named
        with Config(like.config) as settings:
            resolved = {key: one["value"] for key, one in settings.resolved().items()}
        self.clip, self.optimizer_name = resolved["gradient_clipping"], resolved["optimizer.type"]
        self.optimizers = self._optimizers(like, optimizer, resolved, names)
        # torch makes Muon's iteration in bf16, and the engine in fp32, so these updates differ by far more than the tolerance.
        self.rounded = {id(tensor) for one in self.optimizers or () if type(one) is optim.MUON for group in one.param_groups
                        for tensor in group["params"]}
        self.schedulers = optim.made_schedulers(lr_scheduler, self.optimizers or [])
        self.has_engines_rates = lr_scheduler is None
        shares = options.get("broadcast_buffers")
        self.shares = not options.get("same_on_all", False) if shares is None else shares
        self.shared = buffers.Shared(engine.world, model, options.get("own_buffers", ()))
        self.grads: dict[str, torch.Tensor | None] = {}
        self.rates: list[float] = []  # the engine's, of the update that comes next
        self.scale, self.micros = 1.0, 0

    def _take_values(self, like: Sharded) -> None:
        """Gives the copy its first weights and buffers: those of rank 0, or the engine's where the caller's model has none. Collective."""
        engine = self.engine
        if not like.has_own_weights:
            materialize(self.model, engine.device)
            values = dict(engine.state_dict())
            with torch.no_grad():
                for name, param in self.model.named_parameters():
                    param.copy_(values[name])
                for (_, mine), (_, its) in zip(self.model.named_buffers(), engine.module.named_buffers()):
                    mine.copy_(its)
        self.model.to(engine.device)
        if like.has_own_weights and not like.options.get("same_on_all", False):
            for param in self.model.parameters():
                param.data = from_rank(engine.world, param.data, 0)
            buffers.Shared(engine.world, self.model, like.options.get("own_buffers", ())).share()

    def _optimizers(self, like: Sharded, given: Any, resolved: Mapping[str, Any],
                    names: Mapping[int, str]) -> list[torch.optim.Optimizer] | None:
        """Returns torch's optimizers over the masters: those that were given, or such as the configuration says.

        `names` has the names of the parameters of those that were given, by their ids. None: torch has no such optimizer.
        """
        if given is None:
            return configured_optimizers(like.engine, resolved, {id(param.tensor): self.masters[param.name] for param in like.params})
        made = optim.as_list(given)
        masters = {tensor: self.masters[name] for tensor, name in names.items() if name in self.masters}
        for one in made:
            for group in one.param_groups:
                group["params"] = [masters[id(tensor)] for tensor in group["params"]]
            for tensor in list(one.state):  # Adagrad has state from the beginning on
                one.state[masters[id(tensor)]] = one.state.pop(tensor)
        return made

    def forward(self, loss: Loss, batch: Any) -> torch.Tensor:
        if self.precision is not None:
            batch = mapped(batch, lambda one: one.to(self.precision) if one.is_floating_point() else one)
        return loss(self.model, batch)

    def backward(self, loss: torch.Tensor) -> None:
        """Runs backward, and adds the gradients to those of the window, unscaled."""
        self.scale = self.engine.loss_scale
        (loss * self.scale if self.scale != 1 else loss).backward()
        for name, tensor in self.named.items():
            if tensor.grad is not None:
                found, tensor.grad = tensor.grad.to_dense() if tensor.grad.is_sparse else tensor.grad, None
                before = self.grads.get(name)
                self.grads[name] = found.float() / self.scale if before is None else before + found.float() / self.scale

    def prepare(self, is_last: bool) -> None:
        """Ends a micro-batch. Behind the last one, the gradients are the means over micro-batches and ranks. Collective."""
        self.micros += 1
        if not is_last:
            return
        self.rates = [group["lr"] for one in self.engine.rates.optimizers for group in one.param_groups]
        world = self.engine.world
        listed = [name for name, master in self.masters.items() if master.requires_grad]
        some = world.sum([float(self.grads.get(name) is not None) for name in listed])
        for name, count in zip(listed, some):
            mine = self.grads.get(name)
            if count:
                mine = torch.zeros_like(self.masters[name]) if mine is None else mine
                self.grads[name] = mean(world, mine / self.micros if self.micros > 1 else mine)
        self.micros = 0

    def gradient(self, param: Param) -> torch.Tensor | None:
        return self.grads.get(param.name)

    def apply(self) -> None:
        """Clips, and makes the update as torch does."""
        grads = {name: grad for name, grad in self.grads.items() if grad is not None}
        norm = torch.stack([grad.double().norm() for grad in grads.values()]).norm().item() if grads else 0.0
        factor = min(1.0, self.clip / (norm + 1e-6)) if self.clip else 1.0
        for name, grad in grads.items():
            self.masters[name].grad = grad * factor if factor < 1 else grad
        if self.has_engines_rates:
            for group, rate in zip((group for one in self.optimizers or () for group in one.param_groups), self.rates):
                group["lr"] = rate
        for one in self.optimizers or ():
            one.step()
            one._opt_called = True  # torch's schedulers warn where the step of a copied optimizer is not the one that they replaced
        for scheduler in self.schedulers:
            if scheduler is not None:
                scheduler.step()
        for master in self.masters.values():
            master.grad = None

    def after(self) -> None:
        """Ends a window, with an update or without one. Collective."""
        self.grads.clear()
        if self.shares:
            self.shared.share()

    def is_rounded(self, param: Param) -> bool:
        """Whether the optimizer of a parameter rounds its update to fewer bits than the engine does."""
        return id(self.masters[param.name]) in self.rounded

    def weight(self, param: Param) -> torch.Tensor:
        return self.masters[param.name].detach()

    def set_weight(self, param: Param, values: torch.Tensor) -> None:
        with torch.no_grad():
            for tensor in (self.masters[param.name], self.named[param.name]):
                tensor.copy_(values)

    def buffers(self) -> dict[str, torch.Tensor]:
        return dict(self.model.named_buffers())


def materialize(model: nn.Module, device: torch.device) -> None:
    """Gives parameters and buffers on meta memory on the device, without values. Those that are tied stay so."""
    made: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for name, param in module._parameters.items():
            if param is not None and param.is_meta:
                made.setdefault(id(param), nn.Parameter(torch.empty_like(param, device=device), param.requires_grad))
                module._parameters[name] = made[id(param)]  # type: ignore[assignment]
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = made.setdefault(id(buffer), torch.empty_like(buffer, device=device))


def from_rank(world: World, tensor: torch.Tensor, root: int) -> torch.Tensor:
    """Returns the tensor of rank `root`, in new memory or that of `tensor`. Collective, blocking."""
    if world.size == 1 or not tensor.numel():
        return tensor
    there = tensor.detach().cpu().contiguous().clone()
    world.broadcast((ctypes.c_char * (there.numel() * there.element_size())).from_address(there.data_ptr()), root)
    return there.to(tensor.device)


def mean(world: World, tensor: torch.Tensor) -> torch.Tensor:
    """Returns the mean of a tensor over the ranks, added in their order. Collective, blocking."""
    if world.size == 1:
        return tensor
    total = from_rank(world, tensor, 0).clone()
    for root in range(1, world.size):
        total += from_rank(world, tensor, root)
    return total / world.size


def configured_optimizers(engine: Engine, resolved: Mapping[str, Any],
                          masters: Mapping[int, torch.Tensor]) -> list[torch.optim.Optimizer] | None:
    """Returns an optimizer of torch for each group of an engine that was given none; None where torch has no such optimizer.

    `masters` has the tensor that each of the engine's parameters stands for, by its id.
    """
    kinds = {"adamw": torch.optim.AdamW, "adam": torch.optim.AdamW if resolved["optimizer.params.adam_w_mode"] else torch.optim.Adam,
             "sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "muon": optim.MUON}
    types = {entry["name"]: entry["type"] for entry in resolved["sherd.groups"] or () if "type" in entry}
    made = []
    for group, shown in zip(engine.rates.groups.all, engine.rates.optimizers[0].param_groups):
        name = str(types.get(group.name, resolved["optimizer.type"])).lower()
        kind = kinds.get(name)
        if kind is None or name.startswith("adam") and not resolved["optimizer.params.bias_correction"]:
            return None
        title = next((one for one in optim.ALIKE if one.lower() == name), "")
        alike = {key: resolved[f"optimizer.params.{key}"] for key in optim.ALIKE.get(title, ()) if key != "adam_w_mode"}
        numbers = next((keys for one, keys in optim.NUMBERS.items() if one.lower() == name), optim.ADAMS)
        values = {key: shown[key] for key in numbers}
        made.append(kind([masters[id(tensor)] for tensor in group.tensors], **values, **alike))
    return made

"""Compares a model under sherd with the same model in plain torch, or in another layout: compare() finds where they first differ.

Both sides go through the same batches, one after the other, with the same random numbers. sides.py has the sides, taps.py the hooks
that see what each module returns and which gradients come, and differ.py finds the largest difference and writes the verdict.
"""
from __future__ import annotations

import contextlib
import copy
import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Callable, Iterator

import torch
from torch import nn

from sherd.errors import DeviceError, OutOfMemoryError, PeerLostError
from sherd.torch.differ import TOLERANCES, Comparison, Entry, Key, Ledger, Refused
from sherd.torch.engine import ConfigSource, as_call
from sherd.torch.sides import Loss, Plain, Sharded, Streams
from sherd.torch.taps import named_tensors
from sherd.torch.units import Param
from sherd.world import World

FATAL = (PeerLostError, DeviceError, OutOfMemoryError, torch.OutOfMemoryError)  # they say nothing of a module


def compare(model: nn.Module, batch: Any, config: ConfigSource | None = None, loss: Loss | None = None, *,
            against: ConfigSource | None = None, steps: int = 2, tolerance: float | None = None,
            precision: torch.dtype | None = None, optimizer: Any = None, lr_scheduler: Any = None, model_parameters: Any = None,
            world: World | None = None, **options: Any) -> Comparison:
    """Finds the first module whose output or gradient under sherd is another one than in plain torch. Collective, blocking.

    Copies of the model make `steps` updates on both sides; the caller's objects and random numbers stay as they were. After each
    micro-batch, this compares what every module returned, in the order of forward, the loss, and the gradients of these outputs and
    of the parameters, in the order of backward; after each update, the mean gradients, the weights and the buffers. It ends after the
    first step that has a difference. The copies take the memory of the model twice, and what the modules return in one micro-batch is
    in host memory meanwhile.

    Plain torch accumulates, averages over the ranks, scales and clips as `config` says, and has the types of the engine, with fp32
    weights that its optimizer updates. It takes the rates of a schedule of the configuration from the engine. Behind each update the
    other side gets sherd's weights, so that differences of rounding do not add up.

    model: a torch.nn.Module that no engine trains yet. What torch.compile has wrapped is compared uncompiled.
    batch: this rank's batch, as in `example` of Engine, or a list of batches, one for each micro-batch, which begins again at its end.
    config, optimizer, lr_scheduler, model_parameters, world, options: as in initialize().
    loss: a function of the model and a batch that calls the model and returns the loss, as the script does. None: the batch has the
        model's arguments, and the loss is the output, its first tensor or its `loss`.
    against: a configuration of another engine, which takes the place of plain torch.
    steps: how many updates are made at most.
    tolerance: the largest difference, relative to the largest value of the tensor, that counts as none. None: 1e-5 in fp32, 1e-2 in
        fp16, 5e-2 in bf16.
    precision: the type in which plain torch computes; None: the engine's. torch.float32 shows what the engine's 16 bits change.

    Returns a Comparison, whose text says what was found. The ranks agree on `first`; `entries` are each rank's own. Raises what
    initialize() raises, what the model raises in plain torch, what copy.deepcopy raises of it, TypeError (the loss is no scalar),
    ValueError.
    """
    if steps < 1 or against is not None and precision is not None:
        raise ValueError(f"steps={steps} is at least 1" if steps < 1 else "precision= is of plain torch, in whose place against= puts an engine")
    model = getattr(model, "_orig_mod", model)
    batches = batch if isinstance(batch, list) else [batch]
    if not batches:
        raise ValueError("batch is an empty list: give a batch, or a list of them")
    given = (model, optimizer, lr_scheduler, model_parameters, options)
    world = world or World.from_env()
    with Streams().kept(), contextlib.ExitStack() as ends:
        mine, others = copied(given), copied(given)
        example = others[0], batches[0], loss
        tested = Sharded(world, mine, config, example)
        ends.callback(tested.end)
        expected: Plain | Sharded
        if against is None:
            expected = Plain(tested, others, precision)
        else:
            expected = Sharded(world, others, against, example)
            ends.callback(expected.end)
        return Run(tested, expected, batches, loss or default_loss, tolerance).run(steps)


def copied(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns copies of a model and of what refers to its parameters, which refer to those of the copy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of torch's schedulers, whose optimizers are copied with them
        made: tuple[Any, ...] = copy.deepcopy(given)
    for param in made[0].parameters():
        param.grad = None
    return made


def default_loss(model: Any, batch: Any) -> torch.Tensor:
    """Calls the model with a batch that has its arguments. Returns the loss: `loss` of the output, else its first tensor."""
    args, kwargs = as_call(batch)
    output = model(*args, **kwargs)
    found = getattr(output, "loss", None)
    found = output.get("loss") if found is None and isinstance(output, Mapping) else found
    return next((tensor for _, tensor in named_tensors(output)), output) if found is None else found


# --------------------------------------------------------------------- run --

class Run:
    """A comparison of two sides. The results of the tested side are stored until the expected side has the same results."""

    def __init__(self, tested: Sharded, expected: Plain | Sharded, batches: list[Any], loss: Loss, tolerance: float | None) -> None:
        self.tested, self.expected, self.batches, self.loss = tested, expected, batches, loss
        self.world = tested.engine.world
        self.tolerance = max(TOLERANCES[side.dtype] for side in (tested, expected)) if tolerance is None else tolerance
        other = "plain torch" if isinstance(expected, Plain) else "the other layout"
        self.ledger = Ledger(self.tolerance, other, tested.dtype == expected.dtype)
        # The parameters of the other side by name: an engine has numbers of its own for them.
        self.its = {param.name: param for param in (tested if isinstance(expected, Plain) else expected).params}
        self.losses: list[tuple[float, float]] = []
        self.notes: list[str] = []
        self.micro = self.number = 0  # micro-batches and steps so far
        self.has_overflowed = self.has_clipped = False
        # Of each parameter, the elements whose gradients have agreed in all steps. An optimizer such as Adam may turn a difference of
        # the last bits of a gradient into one of the whole step, so the updates of other elements say nothing.
        self.agreed: dict[str, torch.Tensor] = {}

    def run(self, steps: int) -> Comparison:
        first = None
        self._weights()
        while first is None and self.number < steps:
            self.number += 1
            self.ledger.begin_step(self.number)
            self._step()
            first = self._agree()
            if isinstance(self.expected, Plain) and self.tested.is_trained and self.expected.optimizers is None:
                self.notes.append(f"plain torch has no such {self.expected.optimizer_name}, so one step was compared, without its update")
                break
        if isinstance(self.expected, Plain) and self.expected.rounded:
            self.notes.append("torch makes Muon's iteration in bf16 and sherd in fp32, so the updates by Muon were not compared")
        return Comparison(first, self.ledger.entries, self.losses, self.notes, self.tolerance, self.number, self.ledger.other,
                          self.ledger.error)

    def _agree(self) -> Entry | None:
        """Returns the first difference of all ranks, of the lowest rank that has it. Collective."""
        mine = self.ledger.first()
        place = -1.0 if mine is None else float(self.ledger.entries.index(mine))
        rank, size = self.world.rank, self.world.size
        places = self.world.sum([place if one == rank else 0.0 for one in range(size)])
        found = [(at, one) for one, at in enumerate(places) if at >= 0]
        if not found:
            return None
        text = b"" if mine is None else json.dumps({**asdict(mine), "rank": rank if size > 1 else None}).encode()
        return Entry.from_dict(json.loads(self.world.share(text, root=min(found)[1])))

    def _weights(self) -> None:
        """Compares the weights with which the sides begin."""
        for param in self.tested.params:
            key = Key("weight", param.name, "parameter")
            self.ledger.keep(key, self.tested.weight(param))
            self.ledger.meet(key, self.expected.weight(self.its[param.name]))

    def _step(self) -> None:
        count = self.tested.engine.gradient_accumulation_steps()
        report = None
        for index in range(count):
            batch = self.batches[self.micro % len(self.batches)]
            self.micro += 1
            self.ledger.micro = index + 1 if count > 1 else 0
            self._micro_batch(batch)
            if self.ledger.error is not None or not self.tested.is_trained:
                return
            report = self.tested.prepare(index + 1 == count)
            self.expected.prepare(index + 1 == count)
        self.ledger.micro = 0
        self._update(report)

    def _micro_batch(self, batch: Any) -> None:
        """Runs forward and backward on both sides with the same random numbers."""
        streams = Streams()
        got = self._pass(self.tested, batch, self.ledger.keep)
        streams.restore()
        refused = self.ledger.error
        try:
            wanted = self._pass(self.expected, batch, self.ledger.meet)
        except Exception as error:
            if refused is not None:
                raise error from refused  # the model fails in plain torch too
            raise
        self.ledger.end_pass()
        if got is not None and wanted is not None:
            self.losses.append((got, wanted))

    def _pass(self, side: Plain | Sharded, batch: Any, take: Callable[..., None]) -> float | None:
        """Runs a forward and a backward, of which the hooks give all to `take`. Returns the loss; None where the engine refused it."""
        is_trained, is_done = self.tested.is_trained, False
        with side.taps.giving(take), torch.set_grad_enabled(is_trained):
            with self._refusals(side, "forward"):
                loss, is_done = side.forward(self.loss, copy.deepcopy(batch)), True
            if not is_done:
                return None
            if not isinstance(loss, torch.Tensor) or is_trained and loss.numel() != 1:
                raise TypeError(f"the loss is one number, not {describe(loss)}: give compare(loss=) a function of the model and the batch")
            take(Key("loss", "", ""), loss)
            if is_trained:
                side.taps.scale = side.engine.loss_scale
                with self._refusals(side, "backward"):
                    side.backward(loss)
        return float(loss.detach()) if loss.numel() == 1 else None

    @contextlib.contextmanager
    def _refusals(self, side: Plain | Sharded, where: str) -> Iterator[None]:
        """A context at whose end an exception of the tested side is noted, and not raised."""
        try:
            yield
        except FATAL:
            raise
        except Exception as error:
            if side is not self.tested:
                raise
            self.ledger.refuse(Refused(error, where, *side.taps.innermost()))

    def _update(self, report: Any) -> None:
        """Compares the mean gradients, makes the update on both sides, and compares weights and buffers."""
        trained = [param for param in self.tested.params if not param.is_frozen]
        for param in trained:
            self._gradient(param)
        plain = self.expected if isinstance(self.expected, Plain) else None
        before = {param.name: self.expected.weight(self.its[param.name]).cpu().clone() for param in trained}
        self._note_update(report)
        self.tested.apply()
        without = {param.name for param in trained if plain is not None and plain.gradient(param) is None}
        updates = plain is None or plain.optimizers is not None and not report.has_overflow
        if updates:
            self.expected.apply()
        if plain is not None:
            plain.after()
        if updates and not report.has_overflow:
            for param in trained:
                self._updated(param, before.pop(param.name), param.name in without)
        for name, buffer in self.tested.buffers().items():
            self.ledger.keep(Key("buffer", name, "buffer"), buffer)
        for name, buffer in self.expected.buffers().items():
            self.ledger.meet(Key("buffer", name, "buffer"), buffer)
        self.ledger.end_pass()

    def _updated(self, param: Param, before: torch.Tensor, has_no_gradient: bool) -> None:
        """Compares an updated parameter, and gives the other side sherd's value of it: differences of rounding do not add up. Collective."""
        key, its, mine = Key("update", param.name, "parameter"), self.its[param.name], self.tested.weight(param)
        hint = ("The parameter got no gradient in this step: plain torch leaves it, and sherd updates it by a gradient of zero, with weight "
                "decay." if has_no_gradient else "")
        if not (isinstance(self.expected, Plain) and self.expected.is_rounded(its)):
            self.ledger.keep(key, mine)
            self.ledger.meet(key, self.expected.weight(its), before=before, judged=self.agreed.get(param.name), hint=hint)
        self.expected.set_weight(its, mine)

    def _gradient(self, param: Param) -> None:
        """Compares the mean gradient of a parameter. Collective."""
        key = Key("mean gradient", param.name, "parameter")
        got, wanted = self.tested.gradient(param), self.expected.gradient(self.its[param.name])
        wanted = torch.zeros_like(got) if wanted is None else wanted.cpu().float()
        self.ledger.keep(key, got)
        self.ledger.meet(key, wanted)
        same = (got - wanted).abs() <= self.tolerance * wanted.abs()
        self.agreed[param.name] = same & self.agreed[param.name] if param.name in self.agreed else same

    def _note_update(self, report: Any) -> None:
        """Notes what the configuration does to the first such step that a plain script does not."""
        clip = self.expected.clip if isinstance(self.expected, Plain) else 0.0
        if report.has_overflow and not self.has_overflowed:
            self.has_overflowed = True
            self.notes.append(f"the gradient of step {self.number} has Inf or NaN in it, so neither side made an update")
        elif clip and report.grad_norm > clip and not self.has_clipped:
            self.has_clipped = True
            self.notes.append(f"in step {self.number} the gradients were clipped on both sides, from a norm of {report.grad_norm:.4g} to {clip:g}, "
                              f"as gradient_clipping says, whose default is 1")


def describe(loss: Any) -> str:
    """Returns a text with what a loss function has returned."""
    return f"a tensor {list(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"

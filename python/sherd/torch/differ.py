"""Finds the largest difference of two tensors, and says in sentences where two runs of a model first differ, for compare()."""
from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

TOLERANCES = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}  # by the type in which the engine computes
ROUNDING = 4 * torch.finfo(torch.float32).eps  # what an update of a weight may lose, as a part of the largest weight
# Gradients far below the others, such as that of a bias before a softmax, are sums of rounding errors. So the difference of a gradient is
# measured relative to this part of the largest gradient so far, if that is more than its own largest element.
SMALL = 0.01
MOST_LINES = 10  # of a Comparison's text


@dataclass(frozen=True)
class Key:
    """What is compared. `where` is "forward", "loss", "gradient of the output", "gradient" and so on; `call` counts from 1."""

    where: str
    name: str
    kind: str
    call: int = 1
    part: str = ""
    backward: int = 1

    def at(self, backward: int) -> "Key":
        return replace(self, backward=backward)

    @property
    def is_gradient(self) -> bool:
        return "gradient" in self.where


@dataclass(frozen=True)
class Entry:
    """One comparison: of what one module returned, of a gradient, a weight or a buffer.

    `where` is "weight" (at the start), "forward", "loss", "gradient of the output", "gradient" (of a parameter, on this rank, of this
    micro-batch), "mean gradient", "update" or "buffer"; `name` and `kind` are those of the module, `kind` "parameter" or "buffer" else.
    `step` counts from 1 (0: before the first), and so does `micro` where a step has several micro-batches. `call` says in which call of
    the module in this micro-batch, `part` where in its output the tensor was. `absolute` is the largest difference, `relative` the same
    divided by the largest expected value, `index` its place, and `got` and `expected` the two values there, in sherd and on the other
    side.
    NaN on both sides is no difference, and `has_nan` is set. `problem` says what could not be compared: shapes, types, a call on one
    side alone. `rank` is the rank that found it, where there are several.
    """

    step: int
    micro: int
    where: str
    name: str
    kind: str
    call: int
    part: str
    is_equal: bool = False
    absolute: float = math.inf
    relative: float = math.inf
    index: tuple[int, ...] = ()
    got: float = math.nan
    expected: float = math.nan
    has_nan: bool = False
    problem: str = ""
    hint: str = ""
    rank: int | None = None

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "Entry":
        return Entry(**{**values, "index": tuple(values["index"])})

    @property
    def subject(self) -> str:
        """What was compared, such as "the output .logits of lm_head (Linear)"."""
        if self.problem and not self.kind and self.where != "loss":  # an exception outside of modules
            return "the backward" if self.where == "backward" else "the loss function"
        of = f"{self.name or 'the whole model'} ({self.kind})"
        call = f" in call {self.call}" if self.call > 1 else ""
        if self.where == "forward":
            return f"the output{self.part and ' '}{self.part} of {of}{call}"
        if self.where.startswith("gradient of the output"):
            return f"the gradient of the output{self.part and ' '}{self.part} of {of}{call}"
        if self.where == "loss":
            return "the loss"
        if self.where == "backward":
            return f"the backward, where {of} is computed again,"
        return {"weight": "the first value of", "gradient": "this rank's gradient of", "mean gradient": "the mean gradient of",
                "update": "the updated value of", "buffer": "the value of"}.get(self.where, self.where) + f" {self.kind} {self.name}"

    def numbers(self, other: str) -> str:
        """Returns the difference in words; `other` is what the other side is called."""
        if self.problem:
            return self.problem
        place = f" at {list(self.index)}" if self.index else ""
        relative = f" ({self.relative:.3g} of the largest value)" if math.isfinite(self.relative) else ""
        return (f"the largest difference is {self.absolute:.3g}{relative}{place}, where sherd has {self.got:.7g} "
                f"and {other} has {self.expected:.7g}")


@dataclass(frozen=True)
class Refused:
    """An exception of the engine's side. `name` and `kind` are those of the innermost module whose forward ran."""

    error: Exception
    where: str
    name: str
    kind: str


@dataclass(frozen=True)
class Comparison:
    """What compare() has found; its text says it in sentences.

    first: the first difference, which is the same on all ranks; None: there is none.
    entries: all that was compared on this rank, in the order of time.
    losses: of each micro-batch, sherd's loss and the other side's.
    notes: effects of the configuration that a plain script may not have, and omitted comparisons.
    tolerance: the largest relative difference that counts as none.
    steps: how many steps were compared.
    other: what the other side is called.
    error: the exception with which the engine has refused what the other side does, else None.
    """

    first: Entry | None
    entries: list[Entry]
    losses: list[tuple[float, float]]
    notes: list[str]
    tolerance: float
    steps: int
    other: str
    error: Exception | None = None

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return self.first is None

    @property
    def differences(self) -> list[Entry]:
        """The entries that differ on this rank, in the order of time."""
        return [entry for entry in self.entries if not entry.is_equal]

    @property
    def verdict(self) -> str:
        """What was found, in sentences."""
        first = self.first
        if first is None:
            steps = f"{self.steps} step{'s' if self.steps > 1 else ''}"
            return (f"sherd and {self.other} do the same in {steps}: {len(self.entries)} outputs, gradients, weights and buffers differ by at "
                    f"most {self.tolerance:g} of their largest values." + self._of_nan())
        when = "Before the first step" if first.step == 0 else f"In step {first.step}"
        micro = f", micro-batch {first.micro}" if first.micro else ""
        rank = f", on rank {first.rank}" if first.rank is not None else ""
        text = f"{when}{micro}{rank}, {first.subject} is the first that differs: {first.numbers(self.other)}."
        return " ".join(one.strip() for one in (text, first.hint or HINTS.get(first.where, ""), self._of_nan()) if one.strip())

    def _of_nan(self) -> str:
        found = next((entry for entry in self.entries if entry.has_nan), None)
        return f" {found.subject[0].upper()}{found.subject[1:]} has NaN on both sides." if found is not None else ""

    def __str__(self) -> str:
        lines = [self.verdict, *(f"Note: {note}." for note in self.notes)]
        later = self.differences[1:]
        if later:
            lines.append(f"Later, {len(later)} more differ:" if len(later) > MOST_LINES else "Later, these differ too:")
            lines += [f"  {entry.subject}: {entry.numbers(self.other)}" for entry in later[:MOST_LINES]]
        return "\n".join(lines)


HINTS = {
    "forward": "All outputs before it are equal, so look at the other inputs of this module: random numbers, state that it "
               "keeps, types.",
    "loss": "All outputs of modules are equal, so look at the loss function: the state that it has between calls, and its inputs other than the output.",
    "gradient of the output": "All gradients before it are equal, so look at what uses this output, and at the backward of that.",
    "gradient": "The gradients of the outputs before it are equal, so look at how the module that owns it uses it.",
    "mean gradient": "The gradients of each rank are equal, so look at how they are averaged: micro-batches, ranks, the type of the sum.",
    "update": "The gradients are equal, so look at the optimizer: its type, rate, decay, groups and clipping.",
}


def as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor on the CPU in a type in which differences are exact enough; a complex number is two."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    tensor = tensor.to_dense() if tensor.layout != torch.strided else tensor
    is_wide = tensor.dtype == torch.float64 or not tensor.is_floating_point()
    return tensor.cpu().to(torch.float64 if is_wide else torch.float32)


class Ledger:
    """The entries of a comparison. `keep` takes what the tested side has, and `meet` compares the other side's with it.

    `other` is what the other side is called. `has_one_type`: both sides compute in one type, so that types are compared too.
    """

    def __init__(self, tolerance: float, other: str, has_one_type: bool) -> None:
        self.tolerance, self.other, self.has_one_type = tolerance, other, has_one_type
        self.entries: list[Entry] = []
        self.error: Exception | None = None
        self.micro = 0
        self._refused: Refused | None = None
        self._step = 0
        self._kept: dict[Key, torch.Tensor] = {}
        self._largest = 0.0  # of the gradients of this step

    def begin_step(self, number: int) -> None:
        self._step, self._largest = number, 0.0

    def first(self) -> Entry | None:
        return next((entry for entry in self.entries if not entry.is_equal), None)

    def refuse(self, refused: Refused) -> None:
        """Notes that the tested side raised. What it has not done then is no difference."""
        self._refused, self.error = refused, refused.error

    def keep(self, key: Key, tensor: torch.Tensor) -> None:
        """Keeps a copy of a tensor of the tested side, on the CPU."""
        self._kept[key] = tensor.detach().to("cpu", copy=True)

    def meet(self, key: Key, tensor: torch.Tensor, before: torch.Tensor | None = None, judged: torch.Tensor | None = None, hint: str = "") -> None:
        """Compares a tensor of the other side with the one that was stored for the same key.

        Of an update, `before` has the weights before it, and `judged` the elements that count.
        """
        kept = self._kept.pop(key, None)
        if kept is None:
            if self._refused is None:
                self._add(key, problem=lacking(key, self.other, "sherd"))
            return
        types = [str(one.dtype).removeprefix("torch.") for one in (kept, tensor)]
        if kept.shape != tensor.shape:
            self._add(key, problem=f"its shape is {list(kept.shape)} in sherd and {list(tensor.shape)} in {self.other}")
        elif self.has_one_type and types[0] != types[1] and "gradient" != key.where:
            self._add(key, problem=f"its type is {types[0]} in sherd and {types[1]} in {self.other}")
        else:
            self._compare(key, as_numbers(kept), as_numbers(tensor), before, judged, hint)

    def end_pass(self) -> None:
        """Ends what both sides have done: notes what the tested side alone has done, and that it was refused."""
        for key in self._kept if self._refused is None else ():
            self._add(key, problem=lacking(key, "sherd", self.other))
        self._kept.clear()
        if self._refused is not None:
            one = self._refused
            self._add(Key(one.where, one.name, one.kind), problem=f"sherd raises {type(one.error).__name__} there, and {self.other} does not: "
                      f"{str(one.error).rstrip('.')}", hint=" ")
            self._refused = None

    def _compare(self, key: Key, got: torch.Tensor, wanted: torch.Tensor, before: torch.Tensor | None, judged: torch.Tensor | None,
                 hint: str) -> None:
        if not wanted.numel():
            self._add(key, is_equal=True, absolute=0.0, relative=0.0)
            return
        same = (got == wanted) | got.isnan() & wanted.isnan()
        apart = (got - wanted).abs().masked_fill(same, 0).nan_to_num(nan=math.inf)
        if judged is not None:
            apart.masked_fill_(~judged, 0)
        at = int(apart.argmax())
        absolute = float(apart.reshape(-1)[at])
        largest, lost = largest_of(wanted), 0.0
        if before is not None:
            largest, lost = largest_of(wanted - before.float().cpu()), ROUNDING * largest
        if key.is_gradient:
            self._largest = max(self._largest, largest)
            largest = max(largest, SMALL * self._largest)
        over = max(absolute - lost, 0.0)
        relative = over / largest if largest else math.inf if over else 0.0
        index = tuple(int(one) for one in torch.unravel_index(torch.tensor(at), wanted.shape)) if wanted.dim() else ()
        self._add(key, is_equal=relative <= self.tolerance, absolute=absolute, relative=relative, index=index, got=float(got.reshape(-1)[at]),
                  expected=float(wanted.reshape(-1)[at]), has_nan=bool(wanted.isnan().any()), hint=hint)

    def _add(self, key: Key, **found: Any) -> None:
        self.entries.append(Entry(self._step, self.micro, key.where, key.name, key.kind, key.call, key.part, **found))


def lacking(key: Key, there: str, not_there: str) -> str:
    """Returns a text of what one side alone has done."""
    return f"it is there in {there} and not in {not_there}, where {'no gradient comes' if key.is_gradient else 'the module is not called'}"


def largest_of(tensor: torch.Tensor) -> float:
    """Returns the largest magnitude of the finite elements."""
    return float(tensor.abs().masked_fill(~tensor.isfinite(), 0).max())

"""How a model is divided: into units of parameters, and scopes, the modules whose forward and backward use the units."""
from __future__ import annotations

import fnmatch
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Callable, Sequence, Union

import torch
from torch import nn

Policy = Union[None, type, int, Sequence[Any], Callable[[nn.Module, str], bool]]
TYPES = (torch.float32, torch.bfloat16, torch.float16)
NEVER_CALLED = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)  # their owner uses what they hold


@dataclass
class Param:
    """A parameter of the model, under its first name. `number` is its number in the engine."""

    name: str
    tensor: nn.Parameter
    unit: int
    number: int = -1
    is_fp32: bool = False  # whatever the engine computes in

    @property
    def is_frozen(self) -> bool:
        return not self.tensor.requires_grad


@dataclass
class Unit:
    """Parameters that are gathered together."""

    name: str
    params: list[Param] = field(default_factory=list)


@dataclass
class Scope:
    """A module that needs these units during its forward and in its backward."""

    name: str
    module: nn.Module
    units: list[int] = field(default_factory=list)
    is_in_place: bool = False  # its forward changes what it is given, which no gate may stand before


@dataclass
class Division:
    """Units, and scopes in the order of the module tree (an outer one comes before inner ones)."""

    units: list[Unit]
    scopes: list[Scope]

    @property
    def params(self) -> list[Param]:
        return [param for unit in self.units for param in unit.params]

    def add_use(self, name: str, module: nn.Module, unit: int) -> None:
        """Notes that `module` uses parameters of `unit` too."""
        scope = next((scope for scope in self.scopes if scope.module is module), None)
        if scope is None:
            scope = Scope(name, module)
            self.scopes.append(scope)
        if unit not in scope.units:
            scope.units.append(unit)


def divide(model: nn.Module, policy: Policy = None) -> Division:
    """Divides a model into units by a policy.

    The policy is None (the repeated blocks of lists), module classes, a least number of elements, a list of modules or of
    patterns of names, or a function of a module and its name. Other parameters are divided by the modules that own them.
    """
    check_params(model)
    roots = rest(model, chosen(model, policy))
    uses = collect_uses(model, roots)
    return number(model, uses)


# ------------------------------------------------------------------ choice --

def chosen(model: nn.Module, policy: Policy) -> set[nn.Module]:
    if policy is None:
        return repeated_blocks(model)
    if isinstance(policy, int):
        return by_size(model, policy)
    if isinstance(policy, type):
        policy = (policy,)
    if callable(policy):
        picked = {module for name, module in model.named_modules() if policy(module, name)}
    else:
        picked = {module for name, module in model.named_modules() if any(fits(e, module, name) for e in policy)}
    if not picked:
        names = [name for name, _ in model.named_modules() if name]
        raise ValueError(f"the modules {policy!r} are none of {type(model).__name__}'s: it has {some(names)}")
    return picked


def some(names: list[str]) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") if names else "nothing"


def fits(entry: Any, module: nn.Module, name: str) -> bool:
    """Whether an entry of a list means this module: it is the module itself, its class, the name of either, or a pattern."""
    if isinstance(entry, type):
        return isinstance(module, entry)
    if isinstance(entry, str):
        return entry == type(module).__name__ or fnmatch.fnmatchcase(name, entry)
    return entry is module


def repeated_blocks(module: nn.Module) -> set[nn.Module]:
    """Returns the members of the outermost lists that contain several modules of one class with parameters."""
    members = [member for member in module._modules.values() if member is not None and owns_any(member)]
    kinds = Counter(type(member) for member in members)
    if isinstance(module, (nn.ModuleList, nn.Sequential)) and kinds and max(kinds.values()) > 1:
        return set(members)
    return set().union(*map(repeated_blocks, members))


def by_size(model: nn.Module, least_elems: int) -> set[nn.Module]:
    """Returns the smallest modules that have so many elements. Elements in smaller such modules inside do not count."""
    found: set[nn.Module] = set()

    def visit(module: nn.Module) -> int:
        elems = sum(p.numel() for p in module.parameters(recurse=False)) + sum(map(visit, module.children()))
        if elems >= least_elems and not isinstance(module, NEVER_CALLED):
            found.add(module)
            return 0
        return elems

    visit(model)
    return found


def rest(model: nn.Module, roots: set[nn.Module]) -> set[nn.Module]:
    """Returns the roots, and the modules that own the other parameters; if such modules are nested and contain no root, the
    outermost."""
    result = set(roots)

    def visit(module: nn.Module) -> None:
        if module in roots:
            return
        if owns_directly(module):
            result.add(module)
            if not any(inner in roots for inner in module.modules()):
                return
        for child in module.children():
            visit(child)

    visit(model)
    return result


def owns_any(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def owns_directly(module: nn.Module) -> bool:
    """The module has parameters of its own, or in a list that only it can use."""
    if isinstance(module, NEVER_CALLED):
        return False
    lists = [c for c in module.children() if isinstance(c, (nn.ParameterList, nn.ParameterDict))]
    return any(next(m.parameters(recurse=False), None) is not None for m in [module, *lists])


# ---------------------------------------------------------------- division --

def collect_uses(model: nn.Module, roots: set[nn.Module]) -> dict[nn.Module, tuple[str, list[nn.Parameter]]]:
    """Returns by root what the modules below it own, in the order of the tree."""
    uses: dict[nn.Module, tuple[str, list[nn.Parameter]]] = {}

    def visit(module: nn.Module, name: str, root: nn.Module | None) -> None:
        if module in roots:
            root = module
            uses.setdefault(root, (name, []))
        if root is not None:
            uses[root][1].extend(t for t in module.parameters(recurse=False) if is_managed(t))
        for child_name, child in module.named_children():
            visit(child, f"{name}.{child_name}" if name else child_name, root)

    visit(model, "", None)
    return uses


def number(model: nn.Module, uses: dict[nn.Module, tuple[str, list[nn.Parameter]]]) -> Division:
    """Numbers the parameters. A parameter belongs to the unit of the first root that uses it; other roots use that unit too."""
    names = {id(tensor): name for name, tensor in model.named_parameters()}
    units: list[Unit] = []
    scopes: list[Scope] = []
    unit_of: dict[int, int] = {}
    for root, (name, tensors) in uses.items():
        own = list({id(t): t for t in tensors if id(t) not in unit_of}.values())
        if own:
            unit_of.update((id(t), len(units)) for t in own)
            params = [Param(names[id(t)], t, len(units)) for t in own]
            units.append(Unit(name or type(model).__name__, params))
        used = list(dict.fromkeys(unit_of[id(t)] for t in tensors))
        if used:
            scopes.append(Scope(name, root, used))
    if not units:
        raise ValueError(f"{type(model).__name__} has no parameters")
    return Division(units, scopes)


def keep_fp32(model: nn.Module, division: Division, policy: Policy) -> None:
    """Marks the parameters of the modules that a policy chooses as fp32. None chooses no module."""
    if policy is not None:
        kept = {id(tensor) for module in chosen(model, policy) for tensor in module.parameters()}
        for param in division.params:
            param.is_fp32 = id(param.tensor) in kept


def is_managed(tensor: nn.Parameter) -> bool:
    """Whether the engine manages a parameter. Frozen parameters of other types (quantised weights) stay torch's own, whole on
    every rank."""
    return tensor.is_floating_point() or tensor.requires_grad


def check_params(model: nn.Module) -> None:
    """Refuses by name what the engine cannot have: other types, and two parameters over one storage, which would become two."""
    seen: dict[int, tuple[str, nn.Parameter]] = {}
    for name, tensor in model.named_parameters():
        if is_managed(tensor) and tensor.dtype not in TYPES:
            raise ValueError(f"parameter {name} is of {tensor.dtype}; the engine has parameters of fp32, bf16 and fp16")
        if tensor.is_meta or tensor.numel() == 0:
            continue
        address = tensor.untyped_storage().data_ptr()
        if address in seen:
            raise ValueError(f"parameters {seen[address][0]} and {name} are two parameters over one storage; tie them as one "
                             f"(module.weight = other.weight), or give one a copy")
        seen[address] = (name, tensor)

"""Divides a model into units (parameters that are gathered together) and scopes (the modules whose passes use the units)."""
from __future__ import annotations

import fnmatch
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Sequence, Union

import torch
from torch import nn

Policy = Union[None, type, int, Sequence[Any], Callable[[nn.Module, str], bool]]  # which modules are units; see divide()
TYPES = (torch.float32, torch.bfloat16, torch.float16)  # what the engine's parameters may be
# Modules without a forward of their own: the module that owns them uses what they hold.
LISTS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


@dataclass
class Param:
    """A parameter of the model."""

    name: str  # the first of its names in the model
    tensor: nn.Parameter
    unit: int  # index of its unit in Division.units, which is also the engine's number of the unit
    number: int = -1  # the engine's number of the parameter; -1 until it is declared
    is_fp32: bool = False  # it stays fp32 in an engine that computes in bf16 or fp16
    is_frozen: bool = False  # it has no gradient and is not trained, as at initialize(): requires_grad may be another at the first batch


@dataclass
class Unit:
    """Parameters that are gathered and released together. `name` is that of the module that owns them."""

    name: str
    params: list[Param] = field(default_factory=list)


@dataclass
class Scope:
    """A module that needs its units from the beginning of its forward to the end, and in its backward."""

    name: str
    module: nn.Module
    units: list[int] = field(default_factory=list)  # indices in Division.units
    is_late: bool = False  # its backward reads parameters after all of them have their gradients


@dataclass
class Division:
    """The units of a model, and its scopes in the order of the module tree (outer before inner)."""

    units: list[Unit]
    scopes: list[Scope]

    @property
    def params(self) -> list[Param]:
        """The parameters of all units, in the order in which they are declared to the engine."""
        return [param for unit in self.units for param in unit.params]

    def add_use(self, name: str, module: nn.Module, unit: int) -> None:
        """Notes that `module` also uses parameters of `unit`. The module becomes a scope if it is none yet."""
        scope = next((scope for scope in self.scopes if scope.module is module), None)
        if scope is None:
            scope = Scope(name, module)
            self.scopes.append(scope)
        if unit not in scope.units:
            scope.units.append(unit)


def divide(model: nn.Module, policy: Policy = None) -> Division:
    """Divides a model into units and scopes. Local; changes nothing in the model.

    `policy` chooses the modules whose parameters become one unit each:

    * None: the repeated blocks of lists (nn.ModuleList, nn.Sequential);
    * a class of modules;
    * a number: the smallest modules with at least so many elements;
    * a list of modules, classes, names of classes, or patterns of module names (fnmatch);
    * a function of a module and its name that returns whether it is chosen.

    Each outermost module that owns parameters which the policy leaves over becomes a unit too. Raises ValueError (the policy
    chooses nothing, the model has no parameters, a parameter has a type that the engine does not have, or two parameters share
    one storage).
    """
    check_params(model)
    roots = rest(model, chosen(model, policy))
    uses = collect_uses(model, roots)
    return number(model, uses)


# ------------------------------------------------------------------ choice --

def chosen(model: nn.Module, policy: Policy) -> set[nn.Module]:
    """Returns the modules that a policy chooses. Raises ValueError where it names modules and the model has none of them."""
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


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns (fnmatch) matches a name."""
    return any(fnmatch.fnmatchcase(name, one) for one in patterns)


def some(names: list[str]) -> str:
    """Returns a text with the first three names and how many more there are, for messages."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") if names else "nothing"


def fits(entry: Any, module: nn.Module, name: str) -> bool:
    """Whether an entry of a policy's list means this module: the module itself, its class or the name of the class, or a
    pattern that its name matches."""
    if isinstance(entry, type):
        return isinstance(module, entry)
    if isinstance(entry, str):
        return entry == type(module).__name__ or fnmatch.fnmatchcase(name, entry)
    return entry is module


def repeated_blocks(module: nn.Module) -> set[nn.Module]:
    """Returns the members with parameters of the outermost lists in which several such members are of one class."""
    members = [member for member in module._modules.values() if member is not None and owns_any(member)]
    kinds = Counter(type(member) for member in members)
    if isinstance(module, (nn.ModuleList, nn.Sequential)) and kinds and max(kinds.values()) > 1:
        return set(members)
    return set().union(*map(repeated_blocks, members))


def by_size(model: nn.Module, least_elems: int) -> set[nn.Module]:
    """Returns the smallest modules with at least so many elements. Elements of a module that is returned do not count for the
    modules around it."""
    found: set[nn.Module] = set()

    def visit(module: nn.Module) -> int:
        elems = sum(p.numel() for p in module.parameters(recurse=False)) + sum(map(visit, module.children()))
        if elems >= least_elems and not is_list(module):
            found.add(module)
            return 0
        return elems

    visit(model)
    return found


def rest(model: nn.Module, roots: set[nn.Module]) -> set[nn.Module]:
    """Returns the roots and, for the parameters that are in no root, the modules that own them.

    Such a module stands for all parameters below it. Where there is a root below it, the modules below it are searched too, and
    it keeps only what is in no other root.
    """
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
    """Whether the module, or a module below it, has a parameter."""
    return next(module.parameters(), None) is not None


def is_list(module: nn.Module) -> bool:
    """Whether the module is a list or a dict without a forward of its own. torch.nn.utils.parametrize has lists with one."""
    return isinstance(module, LISTS) and type(module).forward is nn.Module.forward


def owns_directly(module: nn.Module) -> bool:
    """Whether the module has parameters of its own, or in lists, which only this module can use."""
    if is_list(module):
        return False
    own, pending = [module], [module]
    while pending:
        lists = [child for child in pending.pop().children() if is_list(child)]
        own += lists
        pending += lists
    return any(next(m.parameters(recurse=False), None) is not None for m in own)


# ---------------------------------------------------------------- division --

def collect_uses(model: nn.Module, roots: set[nn.Module]) -> dict[nn.Module, tuple[str, list[nn.Parameter]]]:
    """Returns for each root its name and the parameters of the modules below it, up to the next root; in the order of the tree."""
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
    """Makes units and scopes. A parameter belongs to the unit of the first root that uses it; other roots use that unit too.

    Raises ValueError where the model has no parameters.
    """
    names = {id(tensor): name for name, tensor in model.named_parameters()}
    units: list[Unit] = []
    scopes: list[Scope] = []
    unit_of: dict[int, int] = {}
    for root, (name, tensors) in uses.items():
        own = list({id(t): t for t in tensors if id(t) not in unit_of}.values())
        if own:
            unit_of.update((id(t), len(units)) for t in own)
            params = [Param(names[id(t)], t, len(units), is_frozen=not t.requires_grad) for t in own]
            units.append(Unit(name or name_of_whole(model), params))
        used = list(dict.fromkeys(unit_of[id(t)] for t in tensors))
        if used:
            scopes.append(Scope(name, root, used))
    if not units:
        raise ValueError(f"{type(model).__name__} has no parameters")
    lost = [name for name, tensor in model.named_parameters() if is_managed(tensor) and id(tensor) not in unit_of]
    if lost:
        raise ValueError(f"the parameters {some(lost)} are in no module that has a forward: let the module that uses them own them, or "
                         f"name a module around them in units=")
    return Division(units, scopes)


def name_of_whole(model: nn.Module) -> str:
    """Returns the name of the unit of the model itself: that of its class, which no other module of it has as its name."""
    taken, name = {name for name, _ in model.named_modules()}, type(model).__name__
    while name in taken:
        name += " (whole)"
    return name


def keep_fp32(model: nn.Module, division: Division, policy: Policy) -> None:
    """Marks the parameters below the modules that a policy chooses as fp32. Here the policy None chooses nothing."""
    if policy is not None:
        kept = {id(tensor) for module in chosen(model, policy) for tensor in module.parameters()}
        for param in division.params:
            param.is_fp32 = id(param.tensor) in kept


def is_managed(tensor: nn.Parameter) -> bool:
    """Whether the engine takes the parameter over. A frozen one that is not floating-point (a quantised weight) stays torch's
    own, whole on every rank, as buffers do."""
    return tensor.is_floating_point() or tensor.requires_grad


def check_params(model: nn.Module) -> None:
    """Raises ValueError, with the name, for parameters that the engine cannot have: those of other types, and two parameters
    over one storage, which the engine would separate, as it would a view of a parameter in a module's attribute or buffer."""
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
    for where, module in model.named_modules():
        if module._forward_pre_hooks:  # as torch.nn.utils.spectral_norm has, which makes the attribute anew in each forward
            continue
        for name, value in {**vars(module), **module._buffers}.items():
            if isinstance(value, torch.Tensor) and not value.is_meta and value.layout is torch.strided and value.numel():
                shared = seen.get(value.untyped_storage().data_ptr())
                if shared is not None and value is not shared[1]:
                    raise ValueError(f"{where}{'.' if where else ''}{name} is a view of parameter {shared[0]}, which would keep the values of "
                                     f"now: make the view in forward, from the parameter")

"""Refuses, by name, uses of a parameter that is asleep: at stage 3, one whose unit is not acquired, so that it has no values.

Its memory is another unit's then. A forward, or code outside of it, reads the parameter itself, which has a class of its own while it
is asleep. A backward reads what autograd saved, such as a view of the parameter, with whose address nothing is wrong. But torch
compares counts of writes in place there, which a tensor shares with its views: while a parameter is asleep, its count is another one.
"""
from __future__ import annotations

import functools
import re
from typing import Any, Callable, Sequence

import torch
from torch.utils._pytree import tree_leaves

from sherd.errors import StateError

NAME = "_sherd_name"  # the attribute of a parameter, or of a view of it, that has its name
NOT_COPIED = ("the model is trained by a sherd engine, whose memory its parameters are: it is not copied or pickled; "
              "save it with engine.save_checkpoint or save_pretrained, and copy it before sherd.torch.initialize")
# torch's count of writes in place to a parameter that is asleep: COUNT and its number, and a multiple of MOST_PARAMS, which is another one
# in each backward. So a view that was read in forward while the parameter slept is found in backward, too.
COUNT, MOST_PARAMS, MOST_TURNS = 1 << 30, 1 << 20, 1 << 10


looked_at = torch._C.DisableTorchFunctionSubclass  # a context in which torch asks no class, for what reads no values


class Asleep:
    """The class that a parameter has in addition to its own (kind_of) while it is asleep: uses of its values raise StateError, with its name.

    What does not read values goes through: shape, type, .grad, hooks. The name is in the attribute NAME of the tensor. torch asks
    __torch_function__ for nearly all of its functions and methods. What torch.tensor(parameter), as_subclass(), to_dlpack(), a C++
    extension or TorchScript does with the tensor is not seen, and finds NaN.
    """

    @classmethod
    def __torch_function__(cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function_name(func)
        if is_passing(name, func, args, kwargs or {}):
            with looked_at():
                return func(*args, **(kwargs or {}))
        found = next(one for one in tree_leaves((args, kwargs)) if isinstance(one, Asleep))
        label = getattr(found, NAME, "of a sherd engine")
        if name in ("__repr__", "__format__", "__str__"):
            return f"Parameter {label}, {list(found.shape)}, which has no values on this rank now"
        if name in VIEWS:
            with looked_at():
                made = func(*args, **(kwargs or {})).as_subclass(AsleepView)
            setattr(made, NAME, label)
            return made
        raise StateError(f"parameter {label} has no values on this rank now, and {name} uses them: at stage 3 they are there in the forward "
                         f"and the backward of the modules that are known to use the parameter. For a forward of the engine, name a module "
                         f"around this use in units=, or let the training's forward, which is traced, make it too; elsewhere use "
                         f"sherd.torch.gathered_parameters, engine.state_dict() or engine(...)")

    def __deepcopy__(self, _memo: Any) -> Any:
        raise TypeError(NOT_COPIED)

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise TypeError(NOT_COPIED)


class AsleepView(Asleep, torch.Tensor):
    """What .data, .T and detach() give of a parameter that is asleep."""


# Functions and methods of torch that read no value of a tensor; properties read none either.
PASSING = frozenset("""
    size stride numel nelement dim ndimension element_size data_ptr storage_offset is_contiguous is_floating_point is_complex is_signed
    get_device requires_grad_ register_hook register_post_accumulate_grad_hook retain_grad is_shared is_pinned is_same_size is_conj is_neg
    is_inference has_names untyped_storage storage_type __dir__ __hash__ __len__ _is_view _is_zerotensor is_set_to dense_dim sparse_dim
    zeros_like ones_like empty_like full_like rand_like randn_like randint_like new_zeros new_ones new_empty new_full new_empty_strided
    result_type can_cast _has_compatible_shallow_copy_type
""".split())
VIEWS = frozenset("data detach T mT H mH real".split())  # what gives a view that is asleep, too


def is_passing(name: str, func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a function of torch with this name, called with these arguments, reads no value of a parameter that is asleep."""
    if name == "to":  # it gives the parameter itself where it has the type and the device already
        with looked_at():
            probe = torch.empty(0, dtype=args[0].dtype, device=args[0].device)
            return probe.to(*args[1:], **kwargs) is probe
    if name in ("type", "new_tensor"):
        return len(args) + len(kwargs) == 1 or name == "new_tensor" and not any(isinstance(one, Asleep) for one in tree_leaves((args[1:], kwargs)))
    return name in PASSING or func.__name__ in ("__get__", "__set__", "__delete__") and name not in VIEWS


def function_name(func: Any) -> str:
    """Returns the name of a function of torch as it is written: of a property's getter, that of the property."""
    name = getattr(func, "__name__", str(func))
    if name != "__get__":
        return name
    owner = func.__self__
    return getattr(getattr(owner, "fget", owner), "__name__", name)


@functools.lru_cache(maxsize=None)
def kind_of(kind: type) -> type:
    """Returns the class that a parameter of the class `kind` has while it is asleep: both Asleep and `kind`."""
    return type(kind)(kind.__name__, (Asleep, kind), {"__module__": kind.__module__})


def setter() -> Callable[[Sequence[torch.Tensor], Sequence[int]], None]:
    """Returns a function that sets torch's counts of writes in place to tensors, each of which its views share with it.

    The first releases of torch that had the call set one count, and later ones several.
    """
    set_counts = torch._C._autograd._unsafe_set_version_counter
    try:
        set_counts((), ())
    except TypeError:
        def set_each(tensors: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
            for tensor, version in zip(tensors, versions):
                set_counts(tensor, version)

        return set_each
    return lambda tensors, versions: set_counts(tuple(tensors), tuple(versions))


set_versions = setter()


def number_in(error: BaseException) -> int | None:
    """Returns the number of the parameter that a backward has found asleep, by torch's message; None: it is another failure."""
    found = re.search(r"is at version (\d+); expected version", str(error)) if isinstance(error, RuntimeError) else None
    return (int(found[1]) - COUNT) % MOST_PARAMS if found and int(found[1]) >= COUNT else None

"""What sherd.deepspeed does not have: its names can be imported, because scripts import more than they use, and their use is refused."""
from __future__ import annotations

from types import ModuleType
from typing import Any, NoReturn

from sherd.errors import NotSupportedError

PAGE = "docs/deepspeed.md has what is there"


class MissingError(NotSupportedError, AttributeError):
    """A name that is not there. hasattr() is False for it."""


def missing(name: str) -> MissingError:
    """Returns the error for a name that is not there."""
    return MissingError(f"sherd.deepspeed has no {name}: {PAGE}")


def refused(name: str, why: str) -> type:
    """Returns a class that stands for a class or a function: nothing is an instance of it, and each call and each subclass of it raises
    NotSupportedError with the name and the reason."""
    def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotSupportedError(f"{name}: {why}")

    return type(name.rpartition(".")[2], (), {"__new__": refuse, "__init_subclass__": refuse, "__doc__": f"Refused: {why}"})


def refusing_module(place: str, name: str, why: str) -> ModuleType:
    """Returns a module, at `place`, each name of which is refused. `name` is what DeepSpeed calls it."""
    made = ModuleType(place, f"Refused: {why}")
    made.__path__ = []  # it may be a package

    def getattr_(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        found = refused(f"{name}.{attribute}", why)
        setattr(made, attribute, found)
        return found

    made.__getattr__ = getattr_  # type: ignore[method-assign]
    return made

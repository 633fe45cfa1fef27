"""Adds to messages what only this package knows: the script's line to a warning, the name of the call to an error. Keeps torch's log
silent where the package says better what happens."""
from __future__ import annotations

import contextlib
import functools
import logging
import sys
import warnings
from typing import Any, Callable, Iterator, TypeVar

from sherd.errors import SherdError

Function = TypeVar("Function", bound=Callable[..., Any])


def warn(text: str) -> None:
    """Gives a UserWarning that names the line of the user's script: frames of sherd and of the libraries below it are passed over."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).split(".")[0] in ("sherd", "torch", "contextlib", "accelerate"):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"sherd: {text}", stacklevel=level)


@contextlib.contextmanager
def unlogged(name: str) -> Iterator[None]:
    """A context in which the logger of that name is silent."""
    logger = logging.getLogger(name)
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled


def collective(name: str) -> Callable[[Function], Function]:
    """Returns a decorator for a collective method, called `name` in messages, of an object that has `world`.

    The library does not know the calls of this package. So where there are several ranks, the decorator adds to the text of a
    SherdError in which call this rank was.
    """
    def decorated(function: Function) -> Function:
        @functools.wraps(function)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return function(self, *args, **kwargs)
            except SherdError as error:
                if self.world.size > 1 and not hasattr(error, "sherd_call"):
                    error.sherd_call = name  # type: ignore[attr-defined] # the innermost call is named
                    error.args = (f"{error}; rank {self.world.rank} was in {name}",)
                raise

        return call  # type: ignore[return-value]

    return decorated

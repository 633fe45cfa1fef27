"""Lets the library call functions of Python, and collects the text that it writes in pieces."""
from __future__ import annotations

import ctypes
from typing import Any, Callable

from sherd._library import library


class Calls:
    """A context around a call of the library that calls Python functions back.

    The first exception that such a function raises is raised again at the end of the context, in place of the call's own error.

    with Calls() as calls:
        lib.some_call(..., calls.make("sherd_write_fn", function), None)
    """

    def __init__(self) -> None:
        self._raised: BaseException | None = None
        self._kept: list[Any] = []

    def make(self, name: str, function: Callable[..., None] | None) -> Any:
        """Returns `function` as a callback of the C type `name`, which lives as long as the context; None becomes NULL.

        The function gets the arguments of the C callback without the first one, `ctx`.
        """
        kind = library().types.callbacks[name]
        if function is None:
            return kind()
        gives_status = library().api["callbacks"][name]["returns"] == "sherd_status"

        def called(_context: Any, *arguments: Any) -> int | None:
            try:
                function(*arguments)
                return 0 if gives_status else None
            except BaseException as error:  # an exception cannot pass through C; it is raised after the call
                self._raised = self._raised or error
                return library().constants["SHERD_E_INVAL"] if gives_status else None

        self._kept.append(kind(called))
        return self._kept[-1]

    def __enter__(self) -> "Calls":
        return self

    def __exit__(self, *_: Any) -> None:
        self._kept.clear()
        if self._raised is not None:
            raise self._raised from None


def written_bytes(call: Callable[[Any], None]) -> bytes:
    """Returns the bytes that `call` writes to the sherd_write_fn that it is given."""
    pieces: list[bytes] = []
    with Calls() as calls:
        call(calls.make("sherd_write_fn", lambda text, length: pieces.append(ctypes.string_at(text, length))))
    return b"".join(pieces)


def written(call: Callable[[Any], None]) -> str:
    """Returns the text that `call` writes to the sherd_write_fn that it is given."""
    return written_bytes(call).decode()

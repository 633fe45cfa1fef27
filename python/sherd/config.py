"""Configurations: DeepSpeed's keys, from a file, a dict, or both."""
from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
from typing import Any, Iterator, Mapping

from sherd._callbacks import written
from sherd._library import library
from sherd.errors import SherdError

# How the library names a place in the one line of JSON that a dict becomes: before a message, or inside it.
_PLACE = re.compile(r"\bconfiguration:1:\d+: | \(configuration:1:\d+\)| at configuration:1:\d+")


def as_json(value: Any) -> str:
    """A path becomes text. Anything else that JSON does not have is refused (TypeError)."""
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    raise TypeError(f"a configuration has text, numbers, lists and dicts in it, and {value!r} is of type {type(value).__name__}")


class Config:
    """A configuration: the path of a JSON file, or a mapping with the same keys.

    docs/configuration.md lists the keys. InvalidError names the key that is wrong, and for a file also the line and column.
    InputOutputError: the file cannot be read. TypeError: the source is neither a path nor a mapping. Local.
    """

    def __init__(self, source: str | os.PathLike[str] | Mapping[str, Any]) -> None:
        self._lib = library()
        self._is_dict = isinstance(source, Mapping)
        out = ctypes.c_void_p()
        if isinstance(source, Mapping):
            text = json.dumps(source, default=as_json).encode()
            with self.errors_by_key():
                self._lib.config_parse(text, len(text), ctypes.byref(out))
        elif not isinstance(source, (str, bytes, os.PathLike)):
            raise TypeError(f"a configuration is the path of a JSON file or a dict with the same keys, not "
                            f"{type(source).__name__}")
        else:
            self._lib.config_load(os.fsencode(source), ctypes.byref(out))
        self._handle: int | None = out.value

    @property
    def handle(self) -> int:
        """The sherd_config * as a number, which this object owns. ValueError after `destroy`."""
        if self._handle is None:
            raise ValueError("the configuration is destroyed")
        return self._handle

    def set(self, key: str, value: Any) -> None:
        """Sets one key, such as "optimizer.params.lr", if it is "auto" or missing. Local.

        InvalidError: the file gives another value. A key that begins with "!" overrides the file.
        """
        with self.errors_by_key():
            self._lib.config_set(self.handle, key.encode(), json.dumps(value).encode())

    def has(self, key: str) -> bool:
        """Whether the key has a value, from the file, the program or by default. Local."""
        return bool(self._lib.config_has(self.handle, key.encode()))

    def resolved(self) -> dict[str, Any]:
        """Returns all keys, each with its value and origin. Local."""
        return json.loads(written(lambda write: self._lib.config_dump(self.handle, write, None)))

    @property
    def warnings(self) -> list[str]:
        """What the reader warned of, such as keys that are ignored."""
        count = self._lib.config_warning_count(self.handle)
        return [self._by_key(self._lib.config_warning(self.handle, index).decode()) for index in range(count)]

    @contextlib.contextmanager
    def errors_by_key(self) -> Iterator[None]:
        """Removes lines and columns from errors that are raised in the body, if the source is a mapping: it has no lines."""
        try:
            yield
        except SherdError as error:
            error.args = (self._by_key(str(error)),)
            raise

    def _by_key(self, text: str) -> str:
        return _PLACE.sub("", text) if self._is_dict else text

    def destroy(self) -> None:
        """Frees the configuration. Local; may be called twice, and as soon as an engine is made from it."""
        if self._handle is not None:
            self._lib.config_destroy(self._handle)
            self._handle = None

    def __enter__(self) -> "Config":
        return self

    def __exit__(self, *_: Any) -> None:
        self.destroy()

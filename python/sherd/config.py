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
    """A path is text; what else JSON has not is refused."""
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    raise TypeError(f"a configuration has text, numbers, lists and dicts in it, and {value!r} is of type {type(value).__name__}")


class Config:
    """A configuration: the path of a JSON file, or a mapping with the same keys.

    docs/configuration.md lists the keys. InvalidError names the key that is wrong, and in a file its line and column too.
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
        if self._handle is None:
            raise ValueError("the configuration is destroyed")
        return self._handle

    def set(self, key: str, value: Any) -> None:
        """Sets one key ("optimizer.params.lr"): fills "auto" and what is not there; another explicit value is an error.

        A key that begins with "!" overrides the file.
        """
        with self.errors_by_key():
            self._lib.config_set(self.handle, key.encode(), json.dumps(value).encode())

    def has(self, key: str) -> bool:
        """Whether the key has a value, from the file, the program or by default."""
        return bool(self._lib.config_has(self.handle, key.encode()))

    def resolved(self) -> dict[str, Any]:
        """All keys with value and origin."""
        return json.loads(written(lambda write: self._lib.config_dump(self.handle, write, None)))

    @property
    def warnings(self) -> list[str]:
        count = self._lib.config_warning_count(self.handle)
        return [self._by_key(self._lib.config_warning(self.handle, index).decode()) for index in range(count)]

    @contextlib.contextmanager
    def errors_by_key(self) -> Iterator[None]:
        """Errors that are raised inside name the keys of a dict without lines and columns: nobody wrote those lines."""
        try:
            yield
        except SherdError as error:
            error.args = (self._by_key(str(error)),)
            raise

    def _by_key(self, text: str) -> str:
        return _PLACE.sub("", text) if self._is_dict else text

    def destroy(self) -> None:
        """May be called twice, and as soon as an engine is made of it."""
        if self._handle is not None:
            self._lib.config_destroy(self._handle)
            self._handle = None

    def __enter__(self) -> "Config":
        return self

    def __exit__(self, *_: Any) -> None:
        self.destroy()

"""The class Config: a configuration with DeepSpeed's keys, from a file or a dict, completed by the program."""
from __future__ import annotations

import contextlib
import copy
import ctypes
import json
import os
import re
import weakref
from typing import Any, Iterator, Mapping

from sherd._callbacks import written
from sherd._library import library
from sherd.errors import InvalidError, SherdError

ConfigSource = str | os.PathLike[str] | Mapping[str, Any]  # the path of a JSON file, or a dict with the same keys

# Texts, comments, and commas after the last entry of a list or a block.
_PARTS = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/|,(?=(?:\s|//[^\n]*|/\*.*?\*/)*[}\]])', re.DOTALL)
# A dict becomes one line of JSON. This pattern finds what the library's messages say of places in it, at their beginning or inside.
_PLACE = re.compile(r"\bconfiguration:1:\d+: | \(configuration:1:\d+\)| at configuration:1:\d+")


def as_json(value: Any) -> str:
    """Turns a path into text, for json.dumps. Raises TypeError for any other object that JSON does not have."""
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    raise TypeError(f"a configuration has text, numbers, lists and dicts in it, and {value!r} is of type {type(value).__name__}")


def read_config(source: ConfigSource) -> dict[str, Any]:
    """Returns a configuration as a dict of its own, before any key is looked at. A file may have comments and trailing commas.

    It is for programs that complete a configuration before they make an engine. Local. Raises InvalidError (no JSON, or a key twice; it
    names the file), FileNotFoundError, TypeError (neither a path nor a mapping), and what open() raises.
    """
    if isinstance(source, Mapping):
        return copy.deepcopy(dict(source))
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"a configuration is the path of a JSON file or a dict with the same keys, not {type(source).__name__}")
    if not os.path.exists(source):
        raise FileNotFoundError(f"the configuration {os.fspath(source)} is not there: give the path of a JSON file, or a dict")
    with open(source, encoding="utf-8") as file:
        return parsed(file.read(), os.fspath(source))


def parsed(text: str, name: str) -> dict[str, Any]:
    """Returns the text of a configuration as a dict. `name` says in messages what it is. Raises InvalidError."""
    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise InvalidError(f"{name}: a block has the key {twice} twice")
        return dict(pairs)

    plain = _PARTS.sub(lambda found: found[1] or re.sub(r"[^\n]", " ", found[0]), text)  # lines and columns stay
    try:
        made = json.loads(plain, object_pairs_hook=distinct)
    except json.JSONDecodeError as error:
        raise InvalidError(f"{name}:{error.lineno}:{error.colno}: it is not JSON: {error.msg}") from None
    if not isinstance(made, dict):
        raise InvalidError(f"{name}: a configuration is an object of JSON, and this is a {type(made).__name__}")
    return made


class Config:
    """A configuration, from the path of a JSON file or from a mapping with the same keys.

    docs/configuration.md lists the keys, which are DeepSpeed's and those under "sherd". A file may have comments and trailing
    commas. An engine copies what it needs, so the configuration may be destroyed as soon as the engine is made. All methods are
    local; after destroy they raise ValueError. `is_dict` says whether it is from a mapping.

    Raises InvalidError (it names the wrong key, and in a file also the line and column), InputOutputError (the file cannot be
    read), TypeError (neither a path nor a mapping, or a value that JSON does not have).
    """

    def __init__(self, source: ConfigSource) -> None:
        self._lib = library()
        self.is_dict = isinstance(source, Mapping)
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
        self._end = weakref.finalize(self, self._lib.config_destroy, out.value)

    @property
    def handle(self) -> int:
        """The address of the sherd_config. Raises ValueError after destroy."""
        if self._handle is None:
            raise ValueError("the configuration is destroyed")
        return self._handle

    def set(self, key: str, value: Any) -> None:
        """Sets one key, for example "optimizer.params.lr", to `value`, which is anything that JSON has.

        Raises InvalidError where the file or the dict gives the key another explicit value (not "auto"), for a value out of range
        and for an unknown key. A key that begins with "!" overrides the file. A later call replaces what an earlier call set.
        """
        with self.errors_by_key():
            self._lib.config_set(self.handle, key.encode(), json.dumps(value).encode())

    def has(self, key: str) -> bool:
        """Whether the key has a value: from the file, from the program or by default. False for "auto" and for unknown keys."""
        return bool(self._lib.config_has(self.handle, key.encode()))

    def resolved(self) -> dict[str, Any]:
        """Returns the resolved configuration: {key: {"value": ..., "origin": ...}} for each key that has an effect or is given.

        The value is None where there is none; the origin is a text that begins with "default" or "auto" where nobody gave it.
        """
        return json.loads(written(lambda write: self._lib.config_dump(self.handle, write, None)))

    @property
    def warnings(self) -> list[str]:
        """The warnings about this configuration, such as keys that have no effect; one text each."""
        count = self._lib.config_warning_count(self.handle)
        return [self._by_key(self._lib.config_warning(self.handle, index).decode()) for index in range(count)]

    @contextlib.contextmanager
    def errors_by_key(self) -> Iterator[None]:
        """A context in which the text of SherdError names keys alone, where the configuration comes from a dict.

        The library names lines and columns of the JSON that the dict became, which the user has never seen.
        """
        try:
            yield
        except SherdError as error:
            error.args = (self._by_key(str(error)),)
            raise

    def _by_key(self, text: str) -> str:
        return _PLACE.sub("", text) if self.is_dict else text

    def destroy(self) -> None:
        """Frees the configuration. May be called twice, and as soon as an engine is made from it.

        Without this call, the end of this object does it.
        """
        self._end()
        self._handle = None

    def __enter__(self) -> "Config":
        return self

    def __exit__(self, *_: Any) -> None:
        self.destroy()

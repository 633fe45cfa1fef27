"""Makes the ctypes types of the structs, callbacks and arguments that the list of the interface (api.json) names.

This module opens no library, so a test can compare the layouts of the structs with the compiler's.
"""
from __future__ import annotations

import ctypes
from typing import Any

SCALARS: dict[str, Any] = {
    "void": None, "char": ctypes.c_char, "int": ctypes.c_int, "float": ctypes.c_float, "double": ctypes.c_double,
    "size_t": ctypes.c_size_t, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
}


class Types:
    """The types of one list of the interface: `structs` and `callbacks` by their C names, and `of` for any other type."""

    def __init__(self, api: dict[str, Any]) -> None:
        self.structs = {name: type(name, (ctypes.Structure,), {}) for name in api["structs"]}
        self._api = api
        self.callbacks = {name: self._function(entry) for name, entry in api["callbacks"].items()}
        for name, entry in api["structs"].items():
            self.structs[name]._fields_ = [(field["name"], self._field(field)) for field in entry["fields"]]

    def of(self, text: str) -> Any:
        """Returns the ctypes type for a type as the headers write it, such as "const char *"; None for void.

        A `const char *` is bytes or None in Python. Raises KeyError for a type that the list does not have.
        """
        words = text.replace("const", " ").replace("*", " * ").split()
        base, stars = words[0], len(words) - 1
        base = self._api["aliases"].get(base, base)
        if base == "const char *":
            base, stars = "char", stars + 1
        return self._pointed(base, stars)

    def _pointed(self, base: str, stars: int) -> Any:
        """Returns the type of `base` with this number of pointers. Handles and void pointers are plain addresses."""
        if base == "char" and stars:
            made, stars = ctypes.c_char_p, stars - 1
        elif base in ("void", *self._api["handles"]) and stars:
            made, stars = ctypes.c_void_p, stars - 1
        else:
            made = self._plain(base)
        for _ in range(stars):
            made = ctypes.POINTER(made)
        return made

    def _plain(self, base: str) -> Any:
        if base in self._api["enums"]:
            return ctypes.c_int
        return SCALARS[base] if base in SCALARS else self.structs.get(base) or self.callbacks[base]

    def _function(self, entry: dict[str, Any]) -> Any:
        return ctypes.CFUNCTYPE(self.of(entry["returns"]), *(self._argument(a["type"]) for a in entry["args"]))

    def _argument(self, text: str) -> Any:
        """Returns the type of a callback's argument. Text that a callback receives need not end with a NUL, so it is an address."""
        return ctypes.c_void_p if text == "const char *" else self.of(text)

    def _field(self, field: dict[str, Any]) -> Any:
        made = self.of(field["type"])
        return made * field["count"] if "count" in field else made

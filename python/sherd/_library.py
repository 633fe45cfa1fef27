"""Opens libsherd with ctypes, from the list of its interface (api.json). Calls release the GIL while they run."""
from __future__ import annotations

import ctypes
import functools
import json
import os
from pathlib import Path
from typing import Any, Callable, Iterator

from sherd._interrupt import Interrupts
from sherd._types import Types
from sherd.errors import BY_STATUS, PREFIX, SherdError

HERE = Path(__file__).resolve().parent


def _candidates() -> Iterator[Path]:
    """Yields the places where libsherd may be: the path in SHERD_LIBRARY alone where it is set; else in the folder of this file, as in a
    wheel, then in the build folder of a source tree."""
    named = os.environ.get("SHERD_LIBRARY")
    if named:
        yield Path(named)
        return
    for folder in (HERE, HERE / "lib", HERE.parent / "sherd.libs", HERE.parent.parent / "build"):
        yield from sorted(folder.glob("libsherd*.so*"), key=lambda path: len(path.name))


def find_library() -> Path:
    """Returns the absolute path of libsherd. Raises FileNotFoundError, which names the places that were searched."""
    for path in _candidates():
        if path.is_file():
            return path.resolve()
    raise FileNotFoundError(
        f"libsherd is not where SHERD_LIBRARY says ({os.environ['SHERD_LIBRARY']})" if os.environ.get("SHERD_LIBRARY")
        else f"libsherd is neither in {HERE} nor in {HERE.parent.parent / 'build'}; set SHERD_LIBRARY to its path")


def find_list(library: Path) -> Path:
    """Returns the path of api.json: in the folder of the library, in the folder of this file, or where `meson install` puts it.

    Raises FileNotFoundError."""
    places = [library.parent / "api.json", HERE / "api.json",
              *(parent / "share" / "sherd" / "api.json" for parent in library.parents)]
    for path in places:
        if path.is_file():
            return path
    raise FileNotFoundError(f"the list of the interface (api.json) that belongs to {library} is neither in its folder nor "
                            f"in share/sherd of a folder above it; build and install sherd anew")


# A call that may wait for other ranks has one of these types as its first argument.
_WAITING = ("sherd_world *", "sherd_engine *")


class Library:
    """An opened libsherd. Its functions are attributes without their prefix: `lib.world_self(...)` calls sherd_world_self.

    A function whose status must be used raises the exception of that status, with the library's message, and returns None.
    `constants` has the macros and enumerators by name, `types` the ctypes types, `api` the list of the interface.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.api = json.loads(find_list(path).read_text(encoding="utf-8"))
        self.types = Types(self.api)
        self.constants: dict[str, Any] = dict(self.api["constants"])
        for members in self.api["enums"].values():
            self.constants.update(members)
        self._names = {code: name for name, code in self.api["enums"]["sherd_status"].items()}
        self._dll = ctypes.CDLL(str(path))
        self._check_version()
        self.interrupts = Interrupts(lambda world, why: self.world_abort(world, why))
        for name, entry in self.api["functions"].items():
            setattr(self, name.removeprefix("sherd_"), self._bind(name, entry))

    def _check_version(self) -> None:
        """Raises ImportError where the library and the list of its interface are of different versions."""
        listed = ".".join(str(self.constants[f"SHERD_VERSION_{part}"]) for part in ("MAJOR", "MINOR", "PATCH"))
        self._dll.sherd_version.restype = ctypes.c_char_p
        version = self._dll.sherd_version().decode()
        if version.split()[0].split("-")[0] != listed:
            raise ImportError(f"{self.path} is sherd {version}, and the list of the interface in its folder is of {listed}")

    def _bind(self, name: str, entry: dict[str, Any]) -> Callable[..., Any]:
        """Returns the function with its types, its check of the status and, where it may wait, its guard for Ctrl-C."""
        function = getattr(self._dll, name, None)
        if function is None:
            raise ImportError(f"{self.path} has no {name}, which the list of the interface in its folder has: build both anew")
        function.argtypes = [self.types.of(argument["type"]) for argument in entry["args"]]
        function.restype = self.types.of(entry["returns"])
        if entry["returns"] == "sherd_status" and entry["must_use"]:
            function.errcheck = self._check
            if entry["args"] and entry["args"][0]["type"] in _WAITING:
                return self.interrupts.guarded(function)
        return function

    def _check(self, status: int, _function: Any, _arguments: Any) -> None:
        """Raises the exception of a status other than SHERD_OK; ctypes calls it after each call (errcheck)."""
        if status != 0:
            raise self.error(status)

    def error(self, status: int) -> SherdError:
        """Returns the exception of a status, with the message of the last failure on this thread."""
        kind = BY_STATUS.get(self._names.get(status, ""), SherdError)
        return kind(PREFIX.get(kind, "") + self.last_error().decode(errors="replace"))

    def new(self, struct: str, **values: Any) -> Any:
        """Returns a struct of the interface with its defaults, and with `values` in place of some. Text may be str or None.

        `struct` is its name without "sherd_". Raises TypeError for a field that the struct does not have.
        """
        made = self.types.structs["sherd_" + struct]()
        getattr(self, struct + "_init")(ctypes.byref(made))
        for name, value in values.items():
            if not hasattr(made, name):
                raise TypeError(f"sherd_{struct} has no field {name}")
            setattr(made, name, encoded(value))
        return made

    def callback(self, name: str, function: Callable[..., Any]) -> Any:
        """Returns `function` as a C callback of the type `name`. Keep the result alive as long as C may call it."""
        return self.types.callbacks[name](function)

    def has(self, function: str) -> bool:
        """Whether the interface has the function, given without its prefix."""
        return "sherd_" + function in self.api["functions"]


def encoded(value: Any) -> Any:
    """Returns text and paths as bytes, which ctypes wants, and any other value as it is."""
    return value.encode() if isinstance(value, str) else os.fsencode(value) if isinstance(value, os.PathLike) else value


def fields_of(struct: Any) -> dict[str, Any]:
    """Returns the fields of a struct by name, with text decoded, without struct_size and reserved fields."""
    result = {}
    for name, *_ in struct._fields_:
        value = getattr(struct, name)
        if name not in ("struct_size", "reserved"):
            result[name] = value.decode(errors="replace") if isinstance(value, bytes) else value
    return result


@functools.cache
def library() -> Library:
    """Returns the libsherd of this process, which the first call opens. Raises FileNotFoundError or ImportError."""
    return Library(find_library())

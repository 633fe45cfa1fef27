"""Reads a checkpoint without an engine: its manifest, and the trainer's own bytes (blobs).

docs/checkpoint-format.md describes the files, docs/checkpoints.md how an engine saves and loads them.
"""
from __future__ import annotations

import ctypes
import json
import os
import weakref
from typing import Any, BinaryIO

from sherd._callbacks import written
from sherd._library import encoded, library
from sherd._xxh3 import xxh3
from sherd.errors import InvalidError

LENGTH_BYTES = 8  # a safetensors file begins with the length of its header, a number of so many bytes
EXTENT_BYTES, DIGITS = 65536, 16  # the header has a checksum of so many digits for each range of so many bytes of the data


class Checkpoint:
    """The checkpoint FOLDER/TAG, opened for reading; without a tag, the one that FOLDER/latest names.

    `manifest` is a dict with what `sherd checkpoint inspect --json` prints, `tag` the tag, and `path` the checkpoint's folder.
    All calls are local. One thread at a time may use the object.

    Raises InputOutputError (there is no such checkpoint), InvalidError (it is damaged or of another format), OutOfMemoryError,
    NotSupportedError (a build without libxxhash).
    """

    def __init__(self, folder: str | os.PathLike[str], tag: str | None = None) -> None:
        lib, out = library(), ctypes.c_void_p()
        lib.checkpoint_open(encoded(os.fspath(folder)), encoded(tag), ctypes.byref(out))
        self._end = weakref.finalize(self, lib.checkpoint_close, out.value)
        form = lib.constants["SHERD_PLAN_JSON"]
        self.manifest: dict[str, Any] = json.loads(written(lambda write: lib.checkpoint_write(out.value, form, write, None)))
        self.tag: str = self.manifest["tag"]
        self.path = os.path.join(os.fspath(folder), self.tag)

    def blob(self, key: str) -> bytes | None:
        """Returns the bytes that the run kept under `key` (Engine.set_blob without is_per_rank); None where there are none.

        They are rank 0's, and are compared with the checksums that the file's header has. The header itself is not compared with
        its own checksum; Engine.load and `sherd checkpoint verify` do that. Raises InvalidError where the file is damaged, OSError
        where it cannot be read.
        """
        path = os.path.join(self.path, f"rank-00000-of-{self.manifest['world_size']:05d}.safetensors")
        try:
            file = open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb")
        except FileNotFoundError:
            return None  # rank 0 had nothing to save, so it has no data file
        with file:
            return _tensor(file, path, f"blob:{key}")

    def close(self) -> None:
        """Closes the checkpoint; `manifest` and `blob` still work. May be called twice. The end of the object closes it too."""
        self._end()

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _tensor(file: BinaryIO, path: str, name: str) -> bytes | None:
    """Returns the bytes of one tensor of a data file; None where it has no such tensor. Raises InvalidError where they are damaged."""
    size = os.fstat(file.fileno()).st_size
    begin = LENGTH_BYTES + int.from_bytes(file.read(LENGTH_BYTES), "little")
    try:
        if begin > size:
            raise ValueError("the header is longer than the file")
        header = json.loads(file.read(begin - LENGTH_BYTES))
        if header.get(name) is None:
            return None
        first, end = header[name]["data_offsets"]
        if not 0 <= first <= end <= size - begin:
            raise ValueError(f"{name} lies outside the file")
        return _checked(file, begin, first, end, header["__metadata__"]["checksums"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidError(f"{path} is damaged: {error}") from None


def _checked(file: BinaryIO, begin: int, first: int, end: int, checksums: str) -> bytes:
    """Returns bytes [first, end) of the data, which begin at `begin`. Raises ValueError where an extent differs from its checksum."""
    pieces, at = [], first // EXTENT_BYTES
    file.seek(begin + at * EXTENT_BYTES)
    for number in range(at, -(-end // EXTENT_BYTES)):
        pieces.append(file.read(EXTENT_BYTES))
        if f"{xxh3(pieces[-1]):016x}" != checksums[number * DIGITS: (number + 1) * DIGITS]:
            raise ValueError(f"bytes {number * EXTENT_BYTES} to {number * EXTENT_BYTES + len(pieces[-1])} of the data do not match their "
                             f"checksum")
    return b"".join(pieces)[first - at * EXTENT_BYTES: end - at * EXTENT_BYTES]

"""Reads a checkpoint without an engine: its manifest, and the trainer's own bytes (blobs).

docs/checkpoint-format.md describes the files, docs/checkpoints.md how an engine saves and loads them.
"""
from __future__ import annotations

import ctypes
import json
import os
import weakref
from typing import Any

from sherd._callbacks import written, written_bytes
from sherd._library import encoded, library


class Checkpoint:
    """The checkpoint FOLDER/TAG, opened for reading; without a tag, the one that FOLDER/latest names.

    `manifest` is a dict with what `sherd checkpoint inspect --json` prints, `tag` the tag, and `path` the checkpoint's folder.
    All calls are local. One thread at a time may use the object.

    Raises InputOutputError (there is no such checkpoint), InvalidError (it is damaged or of another format), OutOfMemoryError,
    NotSupportedError (a build without libxxhash).
    """

    def __init__(self, folder: str | os.PathLike[str], tag: str | None = None) -> None:
        self._lib, out = library(), ctypes.c_void_p()
        self._lib.checkpoint_open(encoded(os.fspath(folder)), encoded(tag), ctypes.byref(out))
        self._handle = out.value
        self._end = weakref.finalize(self, self._lib.checkpoint_close, self._handle)
        form = self._lib.constants["SHERD_PLAN_JSON"]
        self.manifest: dict[str, Any] = json.loads(written(lambda write: self._lib.checkpoint_write(self._handle, form, write, None)))
        self.tag: str = self.manifest["tag"]
        self.path = os.path.join(os.fspath(folder), self.tag)

    def blob(self, key: str) -> bytes | None:
        """Returns the bytes that the run stored under `key` (Engine.set_blob without is_per_rank); None where there are none.

        They are rank 0's, and are compared with their checksums. Raises InvalidError where they are damaged, InputOutputError.
        """
        if self._end.peek() is None:
            raise ValueError("the checkpoint is closed")
        is_there = ctypes.c_int()
        data = written_bytes(lambda write: self._lib.checkpoint_blob(self._handle, encoded(key), ctypes.byref(is_there), write, None))
        return data if is_there.value else None

    def close(self) -> None:
        """Closes the checkpoint; `manifest` still works. May be called twice. The end of the object closes it too."""
        self._end()

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

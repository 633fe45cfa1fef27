"""Packs the state of a script as JSON and the bytes of its tensors. Never a pickle: a file that is read runs no code.

JSON has neither tensors nor tuples, and its keys are text. Such a value is an object with the key TAG, which says what it is.
"""
from __future__ import annotations

import math
from typing import Any

import torch

from sherd.torch.fill import raw

TAG = "$"


class Packer:
    """Packs values one after the other; their bytes come to `bytes()` together."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._end = 0

    def pack(self, value: Any, where: str) -> Any:
        """Returns a value as JSON has it. `where` is what messages call it.

        Taken are None, bool, int, float, text, lists, tuples and dicts of such values, tensors and numpy's arrays and numbers. A
        tensor comes back on the CPU. Raises TypeError for anything else.
        """
        if value is None or isinstance(value, (bool, int, float, str)):
            return value if type(value) in (type(None), bool, int, float, str) else plain(value)
        if isinstance(value, (list, tuple)):
            items = [self.pack(one, f"{where}[{i}]") for i, one in enumerate(value)]
            return items if isinstance(value, list) else {TAG: "tuple", "items": items}
        if isinstance(value, dict):
            if all(isinstance(key, str) for key in value) and TAG not in value:
                return {key: self.pack(one, f"{where}[{key!r}]") for key, one in value.items()}
            return {TAG: "dict", "items": [[self.pack(key, f"a key of {where}"), self.pack(one, f"{where}[{key!r}]")]
                                           for key, one in value.items()]}
        if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_quantized and not value.is_meta:
            return self._bytes("tensor", str(value.dtype).removeprefix("torch."), value.shape, raw(value.resolve_conj().resolve_neg()))
        if type(value).__module__ == "numpy":  # which the script has imported
            import numpy
            if isinstance(value, numpy.generic):
                return self.pack(value.item(), where)
            if isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
                return self._bytes("array", value.dtype.str, value.shape, value.tobytes())
        raise TypeError(f"{where} is of {type(value).__qualname__}, which a checkpoint does not keep: give numbers, text, None, lists, "
                        f"tuples, dicts, tensors and numpy's arrays")

    def _bytes(self, kind: str, dtype: str, shape: Any, data: bytes) -> dict[str, Any]:
        begin, self._end = self._end, self._end + len(data)
        self._parts.append(data)
        return {TAG: kind, "dtype": dtype, "shape": list(shape), "begin": begin}

    def bytes(self) -> bytes:
        """Returns the bytes of all tensors and arrays that were packed."""
        return b"".join(self._parts)


def plain(value: Any) -> Any:
    """Returns a number or text of a class of its own, such as an enum's, as one of Python's."""
    return next(kind(value) for kind in (int, float, str) if isinstance(value, kind))


def unpack(value: Any, data: bytes) -> Any:
    """Returns what pack() was given; `data` is what bytes() gave. Raises ValueError or TypeError where it cannot be that."""
    if isinstance(value, list):
        return [unpack(one, data) for one in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(TAG)
    if kind is None:
        return {key: unpack(one, data) for key, one in value.items()}
    if kind == "tuple":
        return tuple(unpack(one, data) for one in value["items"])
    if kind == "dict":
        return {unpack(key, data): unpack(one, data) for key, one in value["items"]}
    if kind not in ("tensor", "array"):
        raise ValueError(f"it has a value of the kind {kind!r}, which this version does not know")
    count, begin = math.prod(value["shape"]), value["begin"]
    if kind == "array":
        import numpy
        array = numpy.frombuffer(data, numpy.dtype(value["dtype"]), count, begin)
        return array.reshape(value["shape"]).copy()
    dtype = getattr(torch, value["dtype"])
    if count == 0:
        return torch.empty(value["shape"], dtype=dtype, device="cpu")
    own = bytearray(memoryview(data)[begin:begin + count * dtype.itemsize])
    return torch.frombuffer(own, dtype=dtype, count=count).reshape(value["shape"])

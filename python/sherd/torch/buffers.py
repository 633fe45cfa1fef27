"""Gives all ranks the buffers of rank 0, such as the statistics of a BatchNorm, which each rank takes from its own batches."""
from __future__ import annotations

import ctypes
import json
from typing import Any, Iterable, Sequence

import torch
from torch import nn

from sherd.torch.units import matches
from sherd.world import World

ALIGN = 16  # bytes; a buffer begins at a multiple in the message, as large as the elements of any type
HEAD = ALIGN  # bytes of the message before the first buffer
Layout = list[list[Any]]  # the name, the type and the shape of each buffer, as JSON has them


class Shared:
    """The buffers of a model that are equal on all ranks, and the message of their bytes, one after the other.

    The ranks agree once which buffers these are, by name, type and shape, and again where rank 0 has others since. `own` are patterns
    of names that do not belong to them; of a buffer with several names, one is enough. Without buffers, and on one rank, nothing is exchanged.
    """

    def __init__(self, world: World, model: nn.Module, own: Sequence[str] = ()) -> None:
        self._world, self._model, self._own = world, model, list(own)
        self._agreed: Layout | None = None

    def share(self) -> None:
        """Gives all ranks rank 0's values, in one broadcast. Collective, blocking.

        Raises ValueError, with the name, on a rank whose buffers are not those of rank 0: on all ranks where they agree anew.
        """
        if self._world.size == 1:
            return
        if self._agreed is None:
            self._agree()
        found = self._found()
        if not self._agreed and found:  # they came with a forward
            self._agree()
        if not self._agreed:
            return
        layout, agreed = layout_of(found), self._agreed
        begins, length = places(agreed)
        message = torch.zeros(length, dtype=torch.uint8, device="cpu")
        if self._world.rank == 0 and layout == agreed:
            pack(message, begins, list(found.values()))
        elif self._world.rank == 0:
            message[0] = 1
        self._world.broadcast((ctypes.c_char * length).from_address(message.data_ptr()))
        if message[0]:  # rank 0 has others since
            self._agree()
            self.share()
        elif layout != agreed:
            raise ValueError(difference(layout, agreed, self._world.rank))
        elif self._world.rank != 0:
            unpack(message, begins, list(found.values()))

    def _found(self) -> dict[str, torch.Tensor]:
        """Returns the buffers by name. Raises ValueError for one whose elements are not in one memory."""
        own = {id(buffer) for name, buffer in self._model.named_buffers(remove_duplicate=False) if matches(name, self._own)}
        found = {name: buffer for name, buffer in self._model.named_buffers() if id(buffer) not in own}
        for name, buffer in found.items():
            if buffer.layout != torch.strided:
                raise ValueError(f"buffer {name} is {buffer.layout}, and only dense ones reach other ranks: name it in own_buffers=, with "
                                 f"which each rank has its own")
        return found

    def _agree(self) -> None:
        """Takes rank 0's buffers as those of all ranks. Collective. Raises ValueError on all ranks where a rank has others."""
        mine = layout_of(self._found())
        agreed = json.loads(self._world.share(json.dumps(mine).encode()))
        text = difference(mine, agreed, self._world.rank)
        differ = self._world.sum([float(bool(text) and rank == self._world.rank) for rank in range(self._world.size)])
        if any(differ):
            raise ValueError(self._world.share(text.encode(), root=differ.index(1.0)).decode())
        self._agreed = agreed


def options_check(broadcast: Any, own: Any) -> None:
    """Raises TypeError for values of broadcast_buffers= and own_buffers= that would fail later."""
    if broadcast not in (None, True, False):
        raise TypeError(f"broadcast_buffers is True, False or None, not {broadcast!r}; own_buffers= has patterns of names that are left out")
    if isinstance(own, str) or not all(isinstance(one, str) for one in own):
        raise TypeError(f"own_buffers is a list of patterns of names of buffers, not {own!r}")


def layout_of(found: dict[str, torch.Tensor]) -> Layout:
    return [[name, str(buffer.dtype).removeprefix("torch."), list(buffer.shape)] for name, buffer in found.items()]


def difference(mine: Layout, first: Layout, rank: int) -> str:
    """Returns a text with the first buffer that is another one on rank 0; "" where there is none."""
    here, there = {name: rest for name, *rest in mine}, {name: rest for name, *rest in first}
    for name in {**here, **there}:
        if here.get(name) != there.get(name):
            texts = [f"{one[name][0]} {one[name][1]}" if name in one else "not there" for one in (here, there)]
            return (f"buffer {name} is {texts[0]} on rank {rank}, and {texts[1]} on rank 0: make the same model on all ranks, or name the buffer in "
                    f"own_buffers=, with which each rank has its own")
    return "" if mine == first else f"rank {rank} has its buffers in another order than rank 0: make the same model on all ranks"


def places(layout: Layout) -> tuple[list[int], int]:
    """Returns where each buffer begins in the message, and the length of the message, in bytes."""
    begins, end = [], HEAD
    for _, dtype, shape in layout:
        begins.append(end)
        size = getattr(torch, dtype).itemsize * torch.Size(shape).numel()
        end += (size + ALIGN - 1) // ALIGN * ALIGN
    return begins, end


def devices(buffers: Iterable[torch.Tensor]) -> list[torch.device]:
    return list(dict.fromkeys(buffer.device for buffer in buffers))


def pack(message: torch.Tensor, begins: list[int], buffers: list[torch.Tensor]) -> None:
    """Writes the bytes of the buffers to the message. Each device copies its own at once."""
    with torch.no_grad():
        for device in devices(buffers):
            mine = [(begin, bytes_of(buffer)) for begin, buffer in zip(begins, buffers) if buffer.device == device]
            joined = torch.cat([flat for _, flat in mine]).cpu()
            for (begin, _), flat in zip(mine, joined.split([flat.numel() for _, flat in mine])):
                message[begin:begin + flat.numel()] = flat


def unpack(message: torch.Tensor, begins: list[int], buffers: list[torch.Tensor]) -> None:
    """Writes what the message has to the buffers, in place."""
    for device in devices(buffers):
        there = message.to(device)
        for begin, buffer in zip(begins, buffers):
            if buffer.device != device:
                continue
            values = there[begin:begin + buffer.numel() * buffer.element_size()].view(buffer.dtype).reshape(buffer.shape)
            for dim, stride in enumerate(buffer.stride()):
                if stride == 0:  # an expanded dimension, whose elements are one
                    buffer, values = buffer[(slice(None),) * dim + (slice(0, 1),)], values[(slice(None),) * dim + (slice(0, 1),)]
            with torch.inference_mode(buffer.is_inference()), torch.no_grad():
                buffer.copy_(values)


def bytes_of(buffer: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of a buffer's elements, row-major, on its device."""
    return buffer.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)

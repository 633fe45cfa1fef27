"""Worlds: the ranks that train together."""
from __future__ import annotations

import ctypes
import weakref
from typing import Any, Sequence

from sherd._interrupt import in_reach
from sherd._library import encoded, library


class World:
    """A rank's place among the ranks of a job. Made by one of the class methods; one thread drives its engines.

    `params` of the class methods are the fields of sherd_world_params: transport, device, local_rank, timeout_ns,
    cpu_threads, backend.
    """

    def __init__(self, handle: int, device: int = -1) -> None:
        self._lib = library()
        self._device = device
        self._handle: int | None = handle
        if self.size > 1 and self.transport != "sim":
            self._lib.interrupts.add(handle, handle)
        self._end = weakref.finalize(self, _destroy, self._lib, handle)

    @classmethod
    def self(cls) -> "World":
        """One rank, alone."""
        return cls(_made("world_self"))

    @classmethod
    def from_env(cls, **params: Any) -> "World":
        """The world that the launcher set up (torchrun, mpirun, srun, SHERD_RANK), else one rank alone.

        Collective over the job; blocks until all ranks have met. docs/launching.md has the variables.
        """
        return cls(_met("world_from_env", _params(params)), params.get("device", -1))

    @classmethod
    def create(cls, rank: int, world_size: int, rendezvous: str, **params: Any) -> "World":
        """An explicit meeting at "tcp://host:port" or "unix:///path". Collective, blocks."""
        return cls(_met("world_create", rank, world_size, encoded(rendezvous), _params(params)), params.get("device", -1))

    @classmethod
    def simulate(cls, rank: int, world_size: int, **machine: Any) -> "World":
        """A rank that moves nothing and counts everything: what plans are made on.

        `machine` are the fields of sherd_simulate_params: backend, ranks_per_host, device_bytes, host_bytes.
        """
        struct = library().new("simulate_params", **machine)
        return cls(_made("world_simulate_with", rank, world_size, ctypes.byref(struct)))

    @property
    def handle(self) -> int:
        if self._handle is None:
            raise ValueError("the world is destroyed")
        return self._handle

    @property
    def rank(self) -> int:
        return self._lib.world_rank(self.handle)

    @property
    def size(self) -> int:
        return self._lib.world_size(self.handle)

    @property
    def local_rank(self) -> int:
        return self._lib.world_local_rank(self.handle)

    @property
    def device(self) -> int:
        """The number of this rank's GPU, where its engines are on GPUs."""
        return self._device if self._device >= 0 else self.local_rank % max(self._lib.device_count(b"cuda"), 1)

    @property
    def transport(self) -> str:
        return self._lib.world_transport(self.handle).decode()

    def barrier(self) -> None:
        """Returns when all ranks have come. Collective, blocking."""
        self._lib.world_barrier(self.handle)

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sums over the ranks, in their order: the same bits on all. Collective, blocking."""
        array = (ctypes.c_double * len(values))(*values)
        self._lib.world_sum_f64(self.handle, array, len(values))
        return list(array)

    def broadcast(self, data: Any, root: int = 0) -> None:
        """Rank `root`'s bytes reach all, in place: `data` is a writable buffer of one length. Collective, blocking."""
        view = memoryview(data).cast("B")
        self._lib.world_broadcast(self.handle, (ctypes.c_char * len(view)).from_buffer(view), len(view), root)

    def share(self, data: bytes, root: int = 0) -> bytes:
        """Rank `root`'s bytes, of any length, on all ranks; what the others give is not read. Collective, blocking."""
        length = bytearray(len(data).to_bytes(8, "little"))
        self.broadcast(length, root)
        count = int.from_bytes(length, "little")
        whole = bytearray(data if self.rank == root else count)
        if count:
            self.broadcast(whole, root)
        return bytes(whole)

    def split(self, color: int | None, key: int = 0) -> "World | None":
        """A world of the ranks that gave the same color, ordered by `key` and then by their rank here; None for a
        rank whose color is None or below 0.

        Collective over all ranks of this world, blocking. What a program calls that has tensor or pipeline parallelism
        of its own: its engines' world is the data-parallel group. The new world holds nothing of this one: either may be
        destroyed first; as long as this one is there its failure is the other's too.
        """
        out = ctypes.c_void_p()
        none = self._lib.constants["SHERD_SPLIT_NONE"]
        device = self.device
        self._lib.world_split(self.handle, none if color is None else color, key, ctypes.byref(out))
        return None if out.value is None else World(out.value, device)

    def traffic(self) -> tuple[int, int]:
        """Bytes that this rank sent and received since the world was made."""
        sent, received = ctypes.c_uint64(), ctypes.c_uint64()
        self._lib.world_traffic(self.handle, ctypes.byref(sent), ctypes.byref(received))
        return sent.value, received.value

    def abort(self, why: str) -> None:
        """Gives up for all ranks: their current and later calls raise PeerLostError with `why`. Never blocks."""
        self._lib.world_abort(self.handle, why.encode())

    def destroy(self) -> None:
        """Drops this reference, as the end of this object does; engines hold their own. May be called twice."""
        self._end()
        self._handle = None

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *_: Any) -> None:
        self.destroy()

    def __repr__(self) -> str:
        return "World(destroyed)" if self._handle is None else f"World(rank {self.rank} of {self.size}, {self.transport})"


def _destroy(lib: Any, handle: int) -> None:
    lib.interrupts.forget(handle)
    lib.world_destroy(handle)


def _params(values: dict[str, Any]) -> Any:
    return ctypes.byref(library().new("world_params", **values))


def _made(call: str, *arguments: Any) -> int:
    out = ctypes.c_void_p()
    getattr(library(), call)(*arguments, ctypes.byref(out))
    assert out.value is not None
    return out.value


def _met(call: str, *arguments: Any) -> int:
    """The same where ranks meet."""
    return in_reach(lambda: _made(call, *arguments), library().world_destroy)

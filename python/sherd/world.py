"""Worlds: the ranks that train together."""
from __future__ import annotations

import ctypes
import weakref
from typing import Any, Sequence

from sherd._interrupt import in_reach
from sherd._library import encoded, library


class World:
    """The place of this rank among the ranks of a job. Use one of the class methods to make one.

    `params` of the class methods are the fields of sherd_world_params: transport, device, local_rank, timeout_ns, cpu_threads and
    backend. One thread at a time makes calls on a world and its engines. Engines hold a reference of their own.
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
        """Makes a world of one rank. Local."""
        return cls(_made("world_self"))

    @classmethod
    def from_env(cls, **params: Any) -> "World":
        """Makes the world that the launcher set up (torchrun, mpirun, srun or SHERD_RANK); without a launcher, one rank.

        Collective over the job; blocks until all ranks have met. docs/launching.md has the variables. InvalidError: they
        contradict each other. PeerLostError: a rank never came. NotSupportedError: no transport reaches all hosts.
        """
        return cls(_met("world_from_env", _params(params)), params.get("device", -1))

    @classmethod
    def create(cls, rank: int, world_size: int, rendezvous: str, **params: Any) -> "World":
        """Makes a world whose ranks meet at "tcp://host:port" (rank 0 listens there) or "unix:///path". Collective, blocking."""
        return cls(_met("world_create", rank, world_size, encoded(rendezvous), _params(params)), params.get("device", -1))

    @classmethod
    def simulate(cls, rank: int, world_size: int, **machine: Any) -> "World":
        """Makes a simulated world, seen from one rank. It moves no data and counts all traffic; plans are made on it. Local.

        `machine` are the fields of sherd_simulate_params: backend, ranks_per_host, device_bytes, host_bytes.
        """
        struct = library().new("simulate_params", **machine)
        return cls(_made("world_simulate_with", rank, world_size, ctypes.byref(struct)))

    @property
    def handle(self) -> int:
        """The sherd_world * as a number, which this object owns. ValueError after `destroy`."""
        if self._handle is None:
            raise ValueError("the world is destroyed")
        return self._handle

    @property
    def rank(self) -> int:
        """The number of this rank, from 0 to size - 1."""
        return self._lib.world_rank(self.handle)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._lib.world_size(self.handle)

    @property
    def local_rank(self) -> int:
        """The number of this rank among the ranks of its host."""
        return self._lib.world_local_rank(self.handle)

    @property
    def device(self) -> int:
        """The number of this rank's GPU, if its engines are on GPUs."""
        return self._device if self._device >= 0 else self.local_rank % max(self._lib.device_count(b"cuda"), 1)

    @property
    def transport(self) -> str:
        """The name of the transport that moves the data, such as "shm" or "nccl"."""
        return self._lib.world_transport(self.handle).decode()

    def barrier(self) -> None:
        """Returns when all ranks have called it. Collective, blocking."""
        self._lib.world_barrier(self.handle)

    def sum(self, values: Sequence[float]) -> list[float]:
        """Returns the sums of the values over the ranks, added in double in the order of ranks: the same bits on all. Collective,
        blocking."""
        array = (ctypes.c_double * len(values))(*values)
        self._lib.world_sum_f64(self.handle, array, len(values))
        return list(array)

    def broadcast(self, data: Any, root: int = 0) -> None:
        """Copies the bytes of rank `root` to all ranks, in place. Collective, blocking.

        `data` is a writable buffer of the same length on every rank.
        """
        view = memoryview(data).cast("B")
        self._lib.world_broadcast(self.handle, (ctypes.c_char * len(view)).from_buffer(view), len(view), root)

    def share(self, data: bytes, root: int = 0) -> bytes:
        """Returns the bytes of rank `root` on all ranks. They may have any length. Collective, blocking.

        What the other ranks give is ignored.
        """
        length = bytearray(len(data).to_bytes(8, "little"))
        self.broadcast(length, root)
        count = int.from_bytes(length, "little")
        whole = bytearray(data if self.rank == root else count)
        if count:
            self.broadcast(whole, root)
        return bytes(whole)

    def split(self, color: int | None, key: int = 0) -> "World | None":
        """Makes a world of the ranks that gave the same `color`, ordered by `key` and then by their rank here. Collective,
        blocking.

        A rank whose color is None or below 0 gets None. A trainer with tensor or pipeline parallelism of its own makes its
        data-parallel group this way, and creates its engines there. Either world may be destroyed first. As long as both exist, a
        failure of this world is also a failure of the new one.
        """
        out = ctypes.c_void_p()
        none = self._lib.constants["SHERD_SPLIT_NONE"]
        device = self.device
        self._lib.world_split(self.handle, none if color is None else color, key, ctypes.byref(out))
        return None if out.value is None else World(out.value, device)

    def traffic(self) -> tuple[int, int]:
        """Returns the bytes that this rank has sent and received since the world was made. Local."""
        sent, received = ctypes.c_uint64(), ctypes.c_uint64()
        self._lib.world_traffic(self.handle, ctypes.byref(sent), ctypes.byref(received))
        return sent.value, received.value

    def abort(self, why: str) -> None:
        """Ends the world for all ranks: their current and later calls raise PeerLostError with `why`. Any thread; never blocks."""
        self._lib.world_abort(self.handle, why.encode())

    def destroy(self) -> None:
        """Drops this reference, as the end of this object does. Engines hold their own. Local; may be called twice."""
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
    """A reference to a sherd_world_params with these fields."""
    return ctypes.byref(library().new("world_params", **values))


def _made(call: str, *arguments: Any) -> int:
    """Calls a function that makes an object, and returns the object's handle."""
    out = ctypes.c_void_p()
    getattr(library(), call)(*arguments, ctypes.byref(out))
    assert out.value is not None
    return out.value


def _met(call: str, *arguments: Any) -> int:
    """The same for a function in which ranks meet, so that Ctrl-C can end the wait."""
    return in_reach(lambda: _made(call, *arguments), library().world_destroy)

"""The class World: the ranks that train together, as one of them sees them."""
from __future__ import annotations

import ctypes
import weakref
from typing import Any, Sequence

from sherd._interrupt import in_reach
from sherd._library import encoded, library


class World:
    """One rank's view of the world: the ranks of a job, and the means by which they reach each other.

    The class methods self, from_env, create and simulate make worlds, and so does the method split. One thread drives all
    engines of a world. The world is destroyed by destroy, at the end of a `with` block, when nothing refers to the object any
    more, or at the end of the program. Engines hold references of their own. After destroy every method raises ValueError,
    except destroy itself and repr.

    The keyword arguments `params` of from_env and create are the fields of sherd_world_params (sherd.h): `transport`, `device`,
    `local_rank`, `timeout_ns` and `host_timeout_ns` (nanoseconds), `cpu_threads` and `backend`. Any other name raises TypeError.

    Where the main thread waits in a call of a world of several ranks, Ctrl-C ends the call (docs/python.md).
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
        """Makes the world that the launcher set up: torchrun, mpirun, mpiexec, srun, or explicit SHERD_RANK, SHERD_WORLD_SIZE
        and SHERD_RENDEZVOUS. Where no launcher is seen, the world is this rank alone. docs/launching.md lists the variables.

        Collective over the job; blocks until all ranks have met, for two minutes at most unless SHERD_TIMEOUT (seconds) says
        otherwise. Raises InvalidError (variables contradict each other, ranks have different secrets), NotSupportedError (no
        transport can move data between these hosts), PeerLostError (a rank never came; the message says which).
        """
        return cls(_met("world_from_env", _params(params)), params.get("device", -1))

    @classmethod
    def create(cls, rank: int, world_size: int, rendezvous: str, **params: Any) -> "World":
        """Makes a world at an explicit meeting point: "tcp://host:port", where rank 0 listens, or "unix:///path/of/socket" on
        one host. Collective, blocking. Raises what from_env raises.
        """
        return cls(_met("world_create", rank, world_size, encoded(rendezvous), _params(params)), params.get("device", -1))

    @classmethod
    def simulate(cls, rank: int, world_size: int, **machine: Any) -> "World":
        """Makes a simulated world, as rank `rank` of `world_size` sees it. It moves no data but counts all traffic; plans for
        large worlds are made on it. Local.

        The keyword arguments `machine` are the fields of sherd_simulate_params (sherd_tools.h): `backend` ("cpu" or "cuda"),
        `ranks_per_host`, `device_bytes` (what a rank may take of its device) and `host_bytes` (what all ranks of a host may take
        of its memory). Raises InvalidError (no such backend, a negative number), TypeError (no such field).
        """
        struct = library().new("simulate_params", **machine)
        return cls(_made("world_simulate_with", rank, world_size, ctypes.byref(struct)))

    @property
    def handle(self) -> int:
        """The address of the sherd_world. Raises ValueError after destroy."""
        if self._handle is None:
            raise ValueError("the world is destroyed")
        return self._handle

    @property
    def rank(self) -> int:
        """This rank's number, from 0 to size - 1. Local."""
        return self._lib.world_rank(self.handle)

    @property
    def size(self) -> int:
        """The number of ranks. Local."""
        return self._lib.world_size(self.handle)

    @property
    def local_rank(self) -> int:
        """This rank's number among the ranks of its host. Local."""
        return self._lib.world_local_rank(self.handle)

    @property
    def device(self) -> int:
        """The number of this rank's GPU; it has a meaning only where the engines of the world are on GPUs. Local."""
        return self._device if self._device >= 0 else self.local_rank % max(self._lib.device_count(b"cuda"), 1)

    @property
    def transport(self) -> str:
        """The name of the transport: "self", "threads", "shm", "mpi", "nccl", or "sim" for a simulated world. Local."""
        return self._lib.world_transport(self.handle).decode()

    def barrier(self) -> None:
        """Returns when all ranks have called it. Collective, blocking. Raises PeerLostError."""
        self._lib.world_barrier(self.handle)

    def sum(self, values: Sequence[float]) -> list[float]:
        """Returns the sum of each value over the ranks, as a new list of the same length.

        Values are added in double, in the order of the ranks, so all ranks get the same bits. The length must be the same on all
        ranks. Collective, blocking. Raises PeerLostError.
        """
        array = (ctypes.c_double * len(values))(*values)
        self._lib.world_sum_f64(self.handle, array, len(values))
        return list(array)

    def broadcast(self, data: Any, root: int = 0) -> None:
        """Copies the bytes of rank `root`'s `data` into the `data` of all other ranks.

        `data` is a writable, contiguous buffer of the caller's, with the same number of bytes on every rank. Collective, blocking.
        Raises TypeError for a buffer that is not like that, PeerLostError.
        """
        view = memoryview(data).cast("B")
        self._lib.world_broadcast(self.handle, (ctypes.c_char * len(view)).from_buffer(view), len(view), root)

    def share(self, data: bytes, root: int = 0) -> bytes:
        """Returns the bytes that rank `root` gave, on all ranks; they may have any length.

        What other ranks give as `data` is not read. Collective, blocking; two broadcasts, or one where there are no bytes.
        """
        length = bytearray(len(data).to_bytes(8, "little"))
        self.broadcast(length, root)
        count = int.from_bytes(length, "little")
        whole = bytearray(data if self.rank == root else count)
        if count:
            self.broadcast(whole, root)
        return bytes(whole)

    def split(self, color: int | None, key: int = 0) -> "World | None":
        """Makes a world of the ranks that gave the same color, over the same transport. The new ranks are ordered by `key`, and
        ranks with equal keys by their rank in this world. Returns None on a rank whose color is None or below 0.

        A program that has tensor or pipeline parallelism of its own makes its data-parallel group this way, and creates the
        engine in that world. The new world holds no reference to this one, so either may be destroyed first. As long as this
        world exists, its failure is a failure of the new one too.

        Collective over all ranks of this world, those that want no world too; blocking. Raises, on all ranks alike,
        OutOfMemoryError, InputOutputError or DeviceError (no rank gets a world, this one stays usable), NotSupportedError (a
        simulated world), PeerLostError.
        """
        out = ctypes.c_void_p()
        none = self._lib.constants["SHERD_SPLIT_NONE"]
        device = self.device
        self._lib.world_split(self.handle, none if color is None else color, key, ctypes.byref(out))
        return None if out.value is None else World(out.value, device)

    def traffic(self) -> tuple[int, int]:
        """Returns how many bytes this rank has sent and how many it has received since the world was made. Local."""
        sent, received = ctypes.c_uint64(), ctypes.c_uint64()
        self._lib.world_traffic(self.handle, ctypes.byref(sent), ctypes.byref(received))
        return sent.value, received.value

    def abort(self, why: str) -> None:
        """Ends the world for all ranks: their current and later calls raise PeerLostError, with this rank and `why`.

        Local; never blocks. Any thread may call it.
        """
        self._lib.world_abort(self.handle, why.encode())

    def destroy(self) -> None:
        """Drops this object's reference to the world, as the end of the object does. Engines hold references of their own.

        Local. May be called twice. In a forked child it ends nothing of the parent's.
        """
        self._end()
        self._handle = None

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *_: Any) -> None:
        self.destroy()

    def __repr__(self) -> str:
        return "World(destroyed)" if self._handle is None else f"World(rank {self.rank} of {self.size}, {self.transport})"


def _destroy(lib: Any, handle: int) -> None:
    """Destroys a world. This is a finalizer of the World object, so it must not refer to that object."""
    lib.interrupts.forget(handle)
    lib.world_destroy(handle)


def _params(values: dict[str, Any]) -> Any:
    """Returns a pointer to a sherd_world_params with these fields."""
    return ctypes.byref(library().new("world_params", **values))


def _made(call: str, *arguments: Any) -> int:
    """Calls a function of the library whose last argument is the address for a new handle, and returns that handle."""
    out = ctypes.c_void_p()
    getattr(library(), call)(*arguments, ctypes.byref(out))
    assert out.value is not None
    return out.value


def _met(call: str, *arguments: Any) -> int:
    """Does what _made does, for a call in which ranks meet: Ctrl-C ends the wait."""
    return in_reach(lambda: _made(call, *arguments), library().world_destroy)

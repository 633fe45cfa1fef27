"""deepspeed.comm: the calls of torch.distributed, over the ranks that the launcher started.

A name that is not defined here is torch.distributed's. The engines have a separate world of sherd, which world() returns.
"""
from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from sherd.deepspeed.refusals import missing
from sherd.errors import InvalidError, NotSupportedError
from sherd.world import World

PORT = 29500  # torch's own default, where the launcher names none
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # by which torch.distributed finds its ranks

_world: World | None = None  # of the process


def world() -> World:
    """Returns the world of sherd's that has the launcher's ranks; all engines of this door are in it. Collective at the first call."""
    global _world
    if _world is None:
        _world = World.from_env()
    if torch.distributed.is_initialized() and (torch.distributed.get_rank(), torch.distributed.get_world_size()) != (_world.rank, _world.size):
        raise InvalidError(f"torch.distributed has rank {torch.distributed.get_rank()} of {torch.distributed.get_world_size()}, and sherd's world "
                           f"has rank {_world.rank} of {_world.size}: start the script by a launcher that both read (docs/launching.md), such as "
                           f"torchrun")
    return _world


def init_distributed(dist_backend: str | None = None, auto_mpi_discovery: bool = True, distributed_port: int = PORT, verbose: bool = True,
                     timeout: timedelta | None = None, init_method: str | None = None, dist_init_required: bool | None = None,
                     config: Any = None, rank: int = -1, world_size: int = -1) -> None:
    """Makes torch.distributed's process group where there is none, and sherd's world. Collective, blocking.

    The ranks are those of torchrun, and also those of `sherd launch`, mpirun and srun, of which torch knows nothing; without a launcher
    it is one rank. RANK, LOCAL_RANK and WORLD_SIZE are set where they are not. The backend is NCCL with a GPU, else gloo, unless
    `dist_backend` names another one. Raises what World.from_env raises, and InvalidError where torch and sherd found other ranks.
    """
    if torch.distributed.is_initialized() or dist_init_required is False:
        world()
        return
    backend = dist_backend or ("nccl" if torch.cuda.is_available() else "gloo")
    options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    if init_method is not None or all(name in os.environ for name in VARIABLES):
        if init_method is not None and rank >= 0:
            options |= {"rank": rank, "world_size": world_size}
        torch.distributed.init_process_group(backend, init_method=init_method, **options)
        world()
        return
    found = world()
    for name, value in (("RANK", found.rank), ("WORLD_SIZE", found.size), ("LOCAL_RANK", found.local_rank)):
        os.environ.setdefault(name, str(value))
    torch.distributed.init_process_group(backend, store=store(found, distributed_port), rank=found.rank, world_size=found.size, **options)


def store(found: World, port: int) -> torch.distributed.Store:
    """Returns a store for torch.distributed, in which the ranks of the world meet. Collective, blocking."""
    if found.size == 1:
        return torch.distributed.HashStore()
    host, made = os.environ.get("MASTER_ADDR") or socket.gethostname(), None
    if found.rank == 0:
        made = torch.distributed.TCPStore(host, 0, found.size, is_master=True, wait_for_workers=False)
        port = made.port
    host, port = found.share(f"{host} {port}".encode()).decode().split()
    return made or torch.distributed.TCPStore(host, int(port), found.size, is_master=False)


def is_initialized() -> bool:
    """Whether torch.distributed has its process group. Local."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def get_local_rank() -> int:
    """This rank's number among the ranks of its host. Local; collective where init_distributed() was not called."""
    return int(os.environ["LOCAL_RANK"]) if "LOCAL_RANK" in os.environ else world().local_rank


def get_world_group() -> Any:
    """Returns the group of all ranks. Local."""
    return torch.distributed.group.WORLD


def get_global_rank(group: Any = None, group_rank: int = 0) -> int:
    """Returns the number among all ranks of a group's rank. Local."""
    return group_rank if group is None else torch.distributed.get_global_rank(group, group_rank)


def get_all_ranks_from_group(group: Any = None) -> list[int]:
    """Returns the ranks of a group, of all where it is None. Local."""
    return torch.distributed.get_process_group_ranks(group or get_world_group())


def all_gather_base(output_tensor: torch.Tensor, input_tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """all_gather_into_tensor(), under its older name; so is allgather_fn()."""
    return torch.distributed.all_gather_into_tensor(output_tensor, input_tensor, *args, **kwargs)


def reduce_scatter_base(output_tensor: torch.Tensor, input_tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """reduce_scatter_tensor(), under its older name; so is reduce_scatter_fn()."""
    return torch.distributed.reduce_scatter_tensor(output_tensor, input_tensor, *args, **kwargs)


allgather_fn, reduce_scatter_fn = all_gather_base, reduce_scatter_base


def inference_all_reduce(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """all_reduce(). Collective."""
    return torch.distributed.all_reduce(tensor, *args, **kwargs)


def configure(deepspeed_config: Any = None, enabled: bool | None = None, **options: Any) -> None:
    """Raises NotSupportedError where it asks for a log of communication."""
    if enabled or options:
        raise NotSupportedError("deepspeed.comm.configure(): the log of communication is the block \"comms_logger\" of the configuration, and "
                                "has what the engine sends")


def log_summary(*_args: Any, **_kwargs: Any) -> None:
    """Raises NotSupportedError."""
    raise NotSupportedError("deepspeed.comm.log_summary(): \"comms_logger\": {\"enabled\": true} writes what the engine sends to the log, which "
                            "SHERD_LOG=info shows")


def initialize_mesh_device(*_args: Any, **_kwargs: Any) -> None:
    """Raises NotSupportedError."""
    raise NotSupportedError("deepspeed.comm.initialize_mesh_device(): the engine has data parallelism alone; a trainer with other groups gives "
                            "sherd.torch.initialize(world=) the ranks that hold the same part of the model")


def __getattr__(name: str) -> Any:
    if not name.startswith("_") and hasattr(torch.distributed, name):
        return getattr(torch.distributed, name)
    raise missing(f"deepspeed.comm.{name}")

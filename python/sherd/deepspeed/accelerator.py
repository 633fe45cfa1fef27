"""deepspeed.accelerator: the device of this rank, as scripts ask for it."""
from __future__ import annotations

import contextlib
import os
from typing import Any

import torch

from sherd.deepspeed.refusals import missing


class DeepSpeedAccelerator:
    """A GPU, or the CPU. What is not defined here is torch.cuda's, or torch.cpu's, under the same name."""

    def __init__(self) -> None:
        self._name = "cuda" if torch.cuda.is_available() else "cpu"
        self._torch = torch.cuda if self._name == "cuda" else torch.cpu

    def device_name(self, device_index: int | None = None) -> str:
        """Returns the device's name, such as "cuda:1" or "cpu". Local."""
        return self._name if device_index is None or self._name == "cpu" else f"{self._name}:{device_index}"

    def device(self, device_index: int | None = None) -> Any:
        """Returns a context in which tensors are made on the device. Local."""
        return contextlib.nullcontext() if self._name == "cpu" else torch.cuda.device(device_index)

    def set_device(self, device_index: int) -> None:
        """Chooses the GPU. Local."""
        if self._name == "cuda":
            torch.cuda.set_device(device_index)

    def current_device(self) -> int:
        """Returns the number of the GPU, on the CPU that of the rank on its host. Local."""
        return torch.cuda.current_device() if self._name == "cuda" else int(os.environ.get("LOCAL_RANK", 0))

    def current_device_name(self) -> str:
        """Returns the device's name with its number. Local."""
        return self.device_name(self.current_device())

    def device_count(self) -> int:
        """Returns the number of GPUs, 1 on the CPU. Local."""
        return torch.cuda.device_count() if self._name == "cuda" else 1

    def is_available(self) -> bool:
        """True. Local."""
        return True

    def is_synchronized_device(self) -> bool:
        """Whether calls have ended when they return. Local."""
        return self._name == "cpu"

    def communication_backend_name(self) -> str:
        """Returns the backend of torch.distributed. Local."""
        return "nccl" if self._name == "cuda" else "gloo"

    def synchronize(self, device_index: int | None = None) -> None:
        """Waits for the device. Local, blocking."""
        if self._name == "cuda":
            torch.cuda.synchronize(device_index)

    def empty_cache(self) -> None:
        """Gives the memory that torch keeps back. Local."""
        if self._name == "cuda":
            torch.cuda.empty_cache()

    def is_bf16_supported(self) -> bool:
        """Whether the device computes in bf16. Local."""
        return self._name == "cpu" or torch.cuda.is_bf16_supported()

    def is_fp16_supported(self) -> bool:
        """Whether the engine trains in fp16 on the device. Local."""
        return self._name == "cuda"

    def supported_dtypes(self) -> list[torch.dtype]:
        """Returns the types in which an engine computes. Local."""
        found = [torch.float32]
        return found + [torch.bfloat16] * self.is_bf16_supported() + [torch.float16] * self.is_fp16_supported()

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is on the device. Local."""
        return tensor.device.type == self._name

    def pin_memory(self, tensor: torch.Tensor, align_bytes: int = 1) -> torch.Tensor:
        """Returns the tensor in pinned memory, where there is a GPU. Local."""
        return tensor.pin_memory() if self._name == "cuda" else tensor

    def random(self) -> Any:
        """Returns torch.random. Local."""
        return torch.random

    def manual_seed(self, seed: int) -> Any:
        """Seeds torch's random numbers of the device. Local."""
        return torch.cuda.manual_seed(seed) if self._name == "cuda" else torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> Any:
        """Seeds torch's random numbers of all devices. Local."""
        return torch.cuda.manual_seed_all(seed) if self._name == "cuda" else torch.manual_seed(seed)

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        """Returns the state of torch's random numbers. Local."""
        return torch.get_rng_state() if self._name == "cpu" else torch.cuda.get_rng_state(device_index or self.current_device())

    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        """Sets the state of torch's random numbers. Local."""
        if self._name == "cpu":
            torch.set_rng_state(new_state)
        else:
            torch.cuda.set_rng_state(new_state, device_index or self.current_device())

    def _bytes(self, name: str, device_index: int | None) -> int:
        return 0 if self._name == "cpu" else int(getattr(torch.cuda, name)(device_index))

    def memory_allocated(self, device_index: int | None = None) -> int:
        """Returns the bytes that torch has on a GPU. Local; engine.memory_report() has the engine's."""
        return self._bytes("memory_allocated", device_index)

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        """Returns the most bytes that torch had on a GPU. Local."""
        return self._bytes("max_memory_allocated", device_index)

    def memory_reserved(self, device_index: int | None = None) -> int:
        """Returns the bytes that torch's allocator keeps on a GPU. Local."""
        return self._bytes("memory_reserved", device_index)

    def max_memory_reserved(self, device_index: int | None = None) -> int:
        """Returns the most bytes that torch's allocator reserved on a GPU. Local."""
        return self._bytes("max_memory_reserved", device_index)

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        """Begins the count of the most bytes anew. Local."""
        if self._name == "cuda":
            torch.cuda.reset_peak_memory_stats(device_index)

    def total_memory(self, device_index: int | None = None) -> int:
        """Returns the bytes of a GPU, on the CPU those of the host. Local."""
        if self._name == "cuda":
            return torch.cuda.get_device_properties(self.current_device() if device_index is None else device_index).total_memory
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def range_push(self, message: str) -> None:
        """Does nothing."""

    def range_pop(self) -> None:
        """Does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(self._torch, name):
            raise missing(f"deepspeed.accelerator.get_accelerator().{name}")
        return getattr(self._torch, name)


_accelerator: DeepSpeedAccelerator | None = None


def get_accelerator() -> DeepSpeedAccelerator:
    """Returns the device of this process. Local."""
    global _accelerator
    if _accelerator is None:
        _accelerator = DeepSpeedAccelerator()
    return _accelerator


def __getattr__(name: str) -> Any:
    raise missing(f"deepspeed.accelerator.{name}")

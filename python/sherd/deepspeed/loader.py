"""The data loader that deepspeed.initialize(training_data=) returns, and RepeatingLoader."""
from __future__ import annotations

from typing import Any, Callable, Iterator

import torch
from torch.utils.data import DataLoader, DistributedSampler


class DeepSpeedDataLoader(DataLoader[Any]):
    """A loader of a rank's part of a dataset. iter() begins anew, and next() of the loader itself goes on."""

    _batches: Iterator[Any] | None = None

    def __iter__(self) -> Any:
        found = super().__iter__()
        self._batches = found
        return found

    def __next__(self) -> Any:
        if self._batches is None:
            iter(self)
        return next(self._batches)  # type: ignore[arg-type]


class RepeatingLoader:
    """A loader without an end: after the last batch, it begins again."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.data_iter = loader, iter(loader)

    def __iter__(self) -> "RepeatingLoader":
        return self

    def __next__(self) -> Any:
        try:
            return next(self.data_iter)
        except StopIteration:
            self.data_iter = iter(self.loader)
            return next(self.data_iter)


def made(dataset: Any, batch_size: int, world_size: int, rank: int, shuffle: bool, sampler: Any, collate_fn: Callable[..., Any] | None,
         workers: int | None, drop_last: bool, pin_memory: bool) -> DeepSpeedDataLoader:
    """Returns a loader with DeepSpeed's defaults: the sampler is torch's of several ranks, and two processes read. Local."""
    return DeepSpeedDataLoader(dataset, batch_size=batch_size, sampler=sampler or DistributedSampler(dataset, world_size, rank, shuffle=shuffle),
                               collate_fn=collate_fn, num_workers=2 if workers is None else workers, drop_last=drop_last,
                               pin_memory=pin_memory and torch.cuda.is_available())

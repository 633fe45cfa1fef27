"""The memory of a process, for the benchmarks in Python."""
from __future__ import annotations

import threading


WHOLE = ("Pss:",)
# Without the pages of files, a library's mostly: how many of those are there is the page cache's affair.
OWN = ("Pss_Anon:", "Pss_Shmem:")


def pss_bytes(process: int | str = "self", kinds: tuple[str, ...] = WHOLE) -> int:
    """Pages of a process, those shared with others in equal parts."""
    with open(f"/proc/{process}/smaps_rollup") as lines:
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(kinds))


class Peak:
    """The largest pss_bytes() while it is entered, in `bytes`; looked at fifty times in a second."""

    def __init__(self, process: int | str = "self", kinds: tuple[str, ...] = WHOLE) -> None:
        self.process, self.kinds = process, kinds

    def __enter__(self) -> "Peak":
        self.bytes, self.is_over = 0, threading.Event()
        self.watch = threading.Thread(target=self.run)
        self.watch.start()
        return self

    def run(self) -> None:
        while not self.is_over.wait(0.02):
            self.bytes = max(self.bytes, pss_bytes(self.process, self.kinds))

    def __exit__(self, *error: object) -> None:
        self.is_over.set()
        self.watch.join()
        self.bytes = max(self.bytes, pss_bytes(self.process, self.kinds))

"""Runs tests on several ranks: a test starts itself once for each rank, as processes that meet at a socket."""
from __future__ import annotations

import os
import subprocess
import sys
import tempfile

SKIPPED = 77  # the exit status of a test that is skipped


def rank() -> int | None:
    """Returns the rank that this process plays; None in the test itself, which starts the ranks."""
    return int(os.environ["SHERD_RANK"]) if "SHERD_RANK" in os.environ else None


def run(world_size: int, *arguments: str, **environment: str) -> list[str]:
    """Runs sys.argv[0] with these arguments on `world_size` ranks, and returns what each of them printed. Blocking.

    `environment` goes to every rank, over the variables of the world. Raises AssertionError, with the texts, where a rank failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        started = [_start(number, world_size, folder, arguments, environment) for number in range(world_size)]
        texts = [process.communicate()[0] for process in started]
    failed = [f"rank {number} ended with {process.returncode}:\n{text}"
              for number, (process, text) in enumerate(zip(started, texts)) if process.returncode != 0]
    assert not failed, "\n".join(failed)
    return texts


def _start(number: int, world_size: int, folder: str, arguments: tuple[str, ...],
           environment: dict[str, str]) -> subprocess.Popen[str]:
    """Starts one rank, with one thread for computing."""
    own = {"SHERD_RANK": str(number), "SHERD_WORLD_SIZE": str(world_size),
           "SHERD_RENDEZVOUS": f"unix://{folder}/meet", "OMP_NUM_THREADS": "1", "SHERD_THREADS": "1"}
    return subprocess.Popen([sys.executable, sys.argv[0], *arguments], env={**os.environ, **own, **environment},
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def skip(reason: str) -> None:
    """Ends the process as a test that is skipped, and prints the reason."""
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)

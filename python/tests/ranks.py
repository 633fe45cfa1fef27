"""Runs tests on several ranks: a test starts itself once for each rank, as processes that meet at a socket."""
from __future__ import annotations

import atexit
import os
import runpy
import subprocess
import sys
import tempfile
import threading
from multiprocessing.connection import Connection, Pipe
from typing import Any

SKIPPED = 77  # the exit status of a test that is skipped

_forker: Connection | None = None  # to the process that ready() has made


def rank() -> int | None:
    """Returns the rank that this process plays; None in the test itself, which starts the ranks."""
    return int(os.environ["SHERD_RANK"]) if "SHERD_RANK" in os.environ else None


def ready() -> None:
    """Makes a process from which ranks are forked from now on, with all that the test has imported: torch takes seconds.

    Call it before anything has computed: forked processes cannot go on with autograd. Their texts have the same hashes, so
    tests that shall see sets in other orders on other ranks start fresh processes, without this call.
    """
    global _forker
    if rank() is None and _forker is None:
        if "torch" in sys.modules:
            import torch._dynamo  # noqa: F401  the first step of any torch optimizer does, for seconds
        ours, theirs = Pipe()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            ours.close()
            _serve(theirs)
        theirs.close()
        _forker = ours
        atexit.register(_end, child)


def run(world_size: int, *arguments: str, **environment: str) -> list[str]:
    """Runs sys.argv[0] with these arguments on `world_size` ranks, and returns what each of them printed. Blocking.

    `environment` goes to every rank, over the variables of the world. Raises AssertionError, with the texts, where a rank failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        own = [{"SHERD_RANK": str(number), "SHERD_WORLD_SIZE": str(world_size), "SHERD_RENDEZVOUS": f"unix://{folder}/meet",
                "SHERD_THREADS": "1", **environment} for number in range(world_size)]
        ended = start(sys.argv[0], arguments, own)
    failed = [f"rank {number} ended with {status}:\n{text}" for number, (status, text) in enumerate(ended) if status != 0]
    assert not failed, "\n".join(failed)
    return [text for _, text in ended]


def start(script: str, arguments: tuple[str, ...], environments: list[dict[str, str]], folder: str = ".") -> list[tuple[int, str]]:
    """Runs a script in `folder`, once for each environment and at the same time, with one thread for computing. Blocking.

    Returns the exit status (a signal's number below 0) and the output of each.
    """
    whole = [{**os.environ, "OMP_NUM_THREADS": "1", **own} for own in environments]
    script = os.path.abspath(script)
    if _forker is not None:
        _forker.send((script, arguments, whole, os.path.abspath(folder)))
        return _forker.recv()
    started = [subprocess.Popen([sys.executable, script, *arguments], cwd=folder, env=own, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True) for own in whole]
    texts = [process.communicate()[0] for process in started]
    return [(process.returncode, text) for process, text in zip(started, texts)]


def _end(child: int) -> None:
    """Ends the process of ready()."""
    _forker.close()
    os.waitpid(child, 0)


def _serve(client: Connection) -> None:
    """Forks processes for start(), until the test has ended."""
    while True:
        try:
            script, arguments, environments, folder = client.recv()
        except EOFError:
            os._exit(0)
        outputs = [tempfile.TemporaryFile() for _ in environments]
        children = []
        for environment, output in zip(environments, outputs):
            children.append(os.fork())
            if children[-1] == 0:
                client.close()
                _become(script, arguments, environment, folder, output.fileno())
        ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        texts = []
        for output in outputs:
            output.seek(0)
            texts.append(output.read().decode(errors="replace"))
            output.close()
        client.send(list(zip(ended, texts)))


def _become(script: str, arguments: tuple[str, ...], environment: dict[str, str], folder: str, output: int) -> None:
    """Goes on as a process that was started with this script, and exits.

    What is registered for the end of the program is done. The interpreter itself is not taken down, which takes a second with torch.
    """
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(script)
    status: Any = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        status = ended.code
    except BaseException:
        status = 1
        sys.excepthook(*sys.exc_info())
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()  # waits for threads, as the interpreter does
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


def skip(reason: str) -> None:
    """Ends the process as a test that is skipped, and prints the reason."""
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)

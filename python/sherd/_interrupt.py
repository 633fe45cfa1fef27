"""Ctrl-C while the library waits for other ranks.

Python runs signal handlers between steps of the interpreter, and a call of the library is one step, however long it waits. So
while the main thread is in a call that may wait, signals wake a thread of this module (signal.set_wakeup_fd). If the wait
continues, that thread aborts the world for all ranks. The call then ends, and Python raises KeyboardInterrupt.
"""
from __future__ import annotations

import os
import select
import signal
import threading
from typing import Any, Callable

GRACE_S = 1.0  # a call that ends by itself meanwhile leaves the world whole


class Interrupts:
    """The interrupts of one opened library. `abort(world, why)` ends a world for all its ranks, by handle; it never blocks."""

    def __init__(self, abort: Callable[[int, bytes], None], grace_s: float = GRACE_S) -> None:
        self._abort = abort
        self.grace_s = grace_s
        self._worlds: dict[int, int] = {}  # of worlds and engines, by handle: the world of several ranks they wait for
        self._lock = threading.Lock()  # guards the next two, so that no call ends while it is given up
        self._waits_for: int | None = None  # the world of the main thread's call
        self._calls = 0
        self._pipe: tuple[int, int] | None = None
        self._before = -1  # who else is woken by signals: an event loop
        os.register_at_fork(after_in_child=self._forget_parent)

    def add(self, handle: int, world: int) -> None:
        """From now on, calls of `handle`, a world or an engine, may wait for the ranks of `world`."""
        self._worlds[handle] = world

    def share(self, handle: int, world: int) -> None:
        """Does the same for `handle` if `world` has several ranks that can be waited for, which its own `add` has told."""
        if world in self._worlds:
            self._worlds[handle] = world

    def forget(self, handle: int) -> None:
        self._worlds.pop(handle, None)

    @property
    def is_waiting(self) -> bool:
        """Whether the main thread is in a call that Ctrl-C would end."""
        return self._waits_for is not None

    def guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Makes a call whose first argument is a world or an engine, and which may wait."""
        def call(handle: Any, *arguments: Any) -> Any:
            world = self._worlds.get(handle)
            if world is None or self._waits_for is not None or not _is_main_thread():
                return function(handle, *arguments)
            return self._call(world, function, handle, *arguments)

        return call

    def _call(self, world: int, function: Callable[..., Any], *arguments: Any) -> Any:
        pipe = self._pipe or self._start()
        before: int | None = None
        try:
            self._begin(world)
            before = self._before = signal.set_wakeup_fd(pipe[1], warn_on_full_buffer=False)
            return function(*arguments)
        finally:
            if before is not None:
                signal.set_wakeup_fd(before)
            self._begin(None)

    def _begin(self, world: int | None) -> None:
        with self._lock:
            self._waits_for = world
            self._calls += 1

    # ---------------------------------------------------------- the thread --

    def _start(self) -> tuple[int, int]:
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        threading.Thread(target=self._watch, args=self._pipe, name="sherd-interrupts", daemon=True).start()
        return self._pipe

    def _watch(self, reader: int, writer: int) -> None:
        while True:
            signals = self._read(reader, writer, None)
            if signal.SIGINT not in signals or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
                continue  # somebody else's handler has other plans
            with self._lock:
                call = self._calls
            self._read(reader, writer, self.grace_s)  # or until the second Ctrl-C
            self._give_up(call)

    def _read(self, reader: int, writer: int, timeout_s: float | None) -> bytes:
        """Reads the numbers of the signals that came, and passes them on to whoever waited for them before."""
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        if not poll.poll(None if timeout_s is None else timeout_s * 1000):
            return b""
        signals = os.read(reader, 64)
        if self._before not in (-1, writer):
            try:
                os.write(self._before, signals)
            except OSError:
                pass  # full or closed: as Python does it itself
        return signals

    def _give_up(self, call: int) -> None:
        """Aborts the world if the main thread is still in that call."""
        with self._lock:
            if self._calls == call and self._waits_for is not None:
                self._abort(self._waits_for, b"interrupted by SIGINT (Ctrl-C)")

    def _forget_parent(self) -> None:
        """In a forked child: there is no thread and no rank to wait for. Worlds that the child makes are its own."""
        if self._waits_for is not None:
            signal.set_wakeup_fd(-1)
        self._lock, self._pipe, self._before, self._waits_for = threading.Lock(), None, -1, None
        self._worlds.clear()


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def in_reach(meeting: Callable[[], int], drop: Callable[[int], None]) -> int:
    """Runs `meeting`, which waits for ranks while there is no world to abort yet, so that Ctrl-C ends the wait.

    It runs on a thread of its own, which continues until its time limit. What it makes after Ctrl-C is given to `drop`.
    """
    if not _is_main_thread() or "OMPI_COMM_WORLD_SIZE" in os.environ:  # MPI's own calls belong to one thread
        return meeting()
    made: list[int] = []
    raised: list[BaseException] = []
    lock = threading.Lock()
    is_left = False

    def run() -> None:
        try:
            handle = meeting()
        except BaseException as error:
            raised.append(error)
            return
        with lock:
            if not is_left:
                made.append(handle)
                return
        drop(handle)

    thread = threading.Thread(target=run, name="sherd-meeting", daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        with lock:
            is_left = True
        for handle in made:
            drop(handle)
        raise
    if raised:
        raise raised[0]
    return made[0]

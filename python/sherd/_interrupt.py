"""Makes Ctrl-C end a call of the library that waits for other ranks.

Python runs the handlers of signals between two steps of the interpreter, and a call of the library is one step, however long it
waits. So while the main thread is in a call that may wait, signals wake a thread of this module (signal.set_wakeup_fd). If the
call has not ended after GRACE_S seconds, the thread aborts the world for all ranks: the call then ends, and Python raises
KeyboardInterrupt.
"""
from __future__ import annotations

import os
import select
import signal
import threading
import time
from typing import Any, Callable

GRACE_S = 1.0  # seconds between Ctrl-C and the abort; a call that ends by itself in this time leaves the world whole


class Interrupts:
    """Ends the waiting calls of one opened library on Ctrl-C.

    `abort(world, why)` aborts a world, given by its handle, for all ranks; it must never block. `grace_s` is in seconds.
    """

    def __init__(self, abort: Callable[[int, bytes], None], grace_s: float = GRACE_S) -> None:
        self._abort = abort
        self.grace_s = grace_s
        self._worlds: dict[int, int] = {}  # handle of a world or an engine: the world of several ranks for which its calls wait
        self._lock = threading.Lock()  # guards the next two fields, so that a call does not end while its world is aborted
        self._waits_for: int | None = None  # the world for which the main thread's present call waits; None: it is in no call
        self._calls = 0  # counts the begins and ends of calls, so that an abort never hits a later call
        self._pipe: tuple[int, int] | None = None  # reader and writer; None until the thread runs
        self._before = -1  # the wakeup descriptor that was set before ours, say an event loop's; -1: none
        os.register_at_fork(after_in_child=self._forget_parent)

    def add(self, handle: int, world: int) -> None:
        """Declares that calls on `handle`, a world or an engine, may wait for the ranks of `world`."""
        self._worlds[handle] = world

    def share(self, handle: int, world: int) -> None:
        """Does the same, but only where `world` itself was added: it then has several ranks, which can be waited for."""
        if world in self._worlds:
            self._worlds[handle] = world

    def forget(self, handle: int) -> None:
        """Takes back what add or share declared for `handle`, which may be destroyed afterwards."""
        self._worlds.pop(handle, None)

    @property
    def is_waiting(self) -> bool:
        """Whether the main thread is in a call that Ctrl-C would end."""
        return self._waits_for is not None

    def guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function`, whose first argument is the handle of a world or an engine, as a call that Ctrl-C can end.

        Only calls of the main thread are watched, because Python raises KeyboardInterrupt there.
        """
        def call(handle: Any, *arguments: Any) -> Any:
            world = self._worlds.get(handle)
            if world is None or self._waits_for is not None or not _is_main_thread():
                return function(handle, *arguments)
            return self._call(world, function, handle, *arguments)

        return call

    def _call(self, world: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """Runs one call of the main thread that may wait for `world`."""
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
        """Notes that a call which waits for `world` begins; None: that it has ended."""
        with self._lock:
            self._waits_for = world
            self._calls += 1

    # ---------------------------------------------------------- the thread --

    def _start(self) -> tuple[int, int]:
        """Starts the thread with its pipe."""
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        threading.Thread(target=self._watch, args=self._pipe, name="sherd-interrupts", daemon=True).start()
        return self._pipe

    def _watch(self, reader: int, writer: int) -> None:
        """The thread: waits for SIGINT, then for the end of the time of grace, and aborts the world if the call still waits."""
        while True:
            signals = self._read(reader, writer, None)
            if signal.SIGINT not in signals or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
                continue  # the program has a handler of its own, which decides what happens
            with self._lock:
                call = self._calls
            over = time.monotonic() + self.grace_s
            while (rest := over - time.monotonic()) > 0 and signal.SIGINT not in self._read(reader, writer, rest):
                pass  # other signals do not end the time of grace, but a second Ctrl-C does
            self._give_up(call)

    def _read(self, reader: int, writer: int, timeout_s: float | None) -> bytes:
        """Waits for signals and returns their numbers, one byte each; b"" after `timeout_s` seconds (None: no limit).

        It passes the signals on to the wakeup descriptor that was set before.
        """
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        if not poll.poll(None if timeout_s is None else timeout_s * 1000):
            return b""
        signals = os.read(reader, 64)
        if self._before not in (-1, writer):
            try:
                os.write(self._before, signals)
            except OSError:
                pass  # the other descriptor is full or closed; Python itself ignores that too
        return signals

    def _give_up(self, call: int) -> None:
        """Aborts the world if the main thread is still in that call."""
        with self._lock:
            if self._calls == call and self._waits_for is not None:
                self._abort(self._waits_for, b"interrupted by SIGINT (Ctrl-C)")

    def _forget_parent(self) -> None:
        """Starts anew in a forked child: it has neither the thread nor the parent's worlds, and may make worlds of its own."""
        if self._waits_for is not None:
            signal.set_wakeup_fd(-1)
        self._lock, self._pipe, self._before, self._waits_for = threading.Lock(), None, -1, None
        self._worlds.clear()


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def in_reach(meeting: Callable[[], int], drop: Callable[[int], None]) -> int:
    """Returns the handle that `meeting` makes, and lets Ctrl-C end the wait in it.

    A meeting waits for other ranks before a world exists that could be aborted. So it runs on a thread of its own. After Ctrl-C
    this thread continues until its time limit; if it still makes a handle, `drop` is called with it. Raises what `meeting` raises.
    """
    if not _is_main_thread() or "OMPI_COMM_WORLD_SIZE" in os.environ:  # MPI wants its calls on one thread
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

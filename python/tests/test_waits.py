"""Tests what happens while the library waits for other ranks: Ctrl-C, other threads, forked children."""
from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
import unittest
import warnings
from pathlib import Path
from typing import Callable

import ranks

import sherd
from sherd._library import library

CONFIG = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 0.05}},
          "zero_optimization": {"stage": 3}, "gradient_clipping": 0}
LIMIT_NS = 40 * 10**9  # longest wait for other ranks, so that a test that hangs fails


def is_asleep() -> bool:
    """Whether the main thread sleeps in the kernel."""
    with open(f"/proc/self/task/{threading.main_thread().native_id}/stat", encoding="ascii") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "S"


def when_waiting(action: Callable[[], None], is_waiting: Callable[[], bool]) -> None:
    """Runs `action` on a thread of its own as soon as the main thread waits inside a call of the library."""
    def run() -> None:
        asleep = 0
        while asleep < 3:  # a main thread that is seen asleep once may wait for the GIL, which it gets while this thread sleeps
            time.sleep(0.01)
            asleep = asleep + 1 if is_waiting() and is_asleep() else 0
        action()

    threading.Thread(target=run, daemon=True).start()


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def in_call() -> bool:
    """Whether the main thread is in a call that Ctrl-C can end."""
    return library().interrupts.is_waiting


def in_meeting() -> bool:
    """Whether a meeting of ranks is under way, which runs on a thread of its own."""
    return any(thread.name == "sherd-meeting" for thread in threading.enumerate())


def engine_of(world: sherd.World) -> tuple[sherd.Engine, int, int]:
    """Returns a sealed and filled engine with one unit and one parameter, and the numbers of both."""
    engine = sherd.Engine(world, CONFIG)
    unit = engine.add_unit("u")
    param = engine.add_param(unit, "w", [256])
    engine.seal()
    engine.fill(param, lambda first, out: None)
    return engine, unit, param


# --------------------------------------------------------------------- parts --
#
# A part is what the ranks of one test do. One of the ranks creates a file to notify the other that it may continue.

def reported() -> Path:
    """Returns the path of that file."""
    return Path(os.environ["SHERD_TEST_REPORTED"])


def wait_until_told() -> None:
    while not reported().exists():
        time.sleep(0.01)


def interrupted_in(world: sherd.World, call: Callable[[], object], action: Callable[[], None] = interrupt) -> None:
    """Rank 1 waits in `call` for rank 0, which does not come, until Ctrl-C (`action`) ends the wait. Then rank 0's `call` fails, and
    names rank 1."""
    if world.rank == 1:
        when_waiting(action, in_call)
        try:
            call()
        except KeyboardInterrupt:
            print("interrupted")
        reported().touch()
    else:
        wait_until_told()
        try:
            call()
        except sherd.PeerLostError as error:
            print(error)


def part_is_interrupted() -> None:
    world = sherd.World.from_env(timeout_ns=LIMIT_NS)
    world.barrier()
    interrupted_in(world, world.barrier)


def part_step_is_interrupted() -> None:
    world = sherd.World.from_env(timeout_ns=LIMIT_NS)
    engine, unit, _ = engine_of(world)
    with engine.acquired(unit, sherd.BACKWARD):
        pass
    interrupted_in(world, engine.step)
    engine.destroy()


def wakeup_pipe() -> tuple[int, int]:
    """Sets a wakeup descriptor, as an event loop does. The package passes on to it each signal that it has seen."""
    woken = os.pipe()
    os.set_blocking(woken[1], False)
    signal.set_wakeup_fd(woken[1])
    return woken


def signals_seen(reader: int, *numbers: int) -> None:
    """Sends this process one signal after the other, each as soon as the package has seen the one before."""
    for number in numbers:
        os.kill(os.getpid(), number)
        assert os.read(reader, 1)[0] == number


def part_other_signals_come() -> None:
    """Between Ctrl-C and the end of the wait come other signals. The wait ends by itself in the time of grace."""
    library().interrupts.grace_s = LIMIT_NS / 1e9
    seen: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    woken = wakeup_pipe()
    world = sherd.World.from_env(timeout_ns=LIMIT_NS)
    if world.rank == 1:
        when_waiting(lambda: (signals_seen(woken[0], signal.SIGINT, signal.SIGUSR1, signal.SIGUSR1), reported().touch()), in_call)
        try:
            world.barrier()
            raise AssertionError("Ctrl-C was lost")
        except KeyboardInterrupt:
            pass
    else:
        wait_until_told()
        world.barrier()
    world.barrier()
    assert set(seen) == ({signal.SIGUSR1} if world.rank == 1 else set())
    print("whole")


def part_is_interrupted_twice() -> None:
    """A second Ctrl-C ends the time of grace."""
    library().interrupts.grace_s = LIMIT_NS / 1e9
    woken = wakeup_pipe()
    world = sherd.World.from_env(timeout_ns=10 * LIMIT_NS)
    world.barrier()
    interrupted_in(world, world.barrier, lambda: signals_seen(woken[0], signal.SIGINT, signal.SIGINT))


def part_has_a_handler() -> None:
    """A script's own handler, such as one that stops after this step, gets the signal, and the wait continues to its end."""
    library().interrupts.grace_s = 0
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    woken = wakeup_pipe()
    world = sherd.World.from_env(timeout_ns=LIMIT_NS)
    if world.rank == 1:
        when_waiting(lambda: (interrupt(), os.read(woken[0], 1), reported().touch()), in_call)
        world.barrier()
        assert seen == [signal.SIGINT]
    else:
        wait_until_told()
        world.barrier()
    assert signal.set_wakeup_fd(-1) == woken[1]
    world.barrier()
    print("whole")


def part_is_alone() -> None:
    """The other rank never comes to the meeting."""
    when_waiting(interrupt, in_meeting)
    try:
        sherd.World.from_env()
    except KeyboardInterrupt:
        print("interrupted")


def part_lets_others_run() -> None:
    """Rank 1 comes to the barrier only after a thread of rank 0 has worked, while rank 0's main thread waits in the barrier."""
    world = sherd.World.from_env(timeout_ns=LIMIT_NS)
    if world.rank == 0:
        when_waiting(lambda: (sum(range(10**6)), reported().touch()), in_call)
    else:
        wait_until_told()
    world.barrier()
    print("met")


def part_forks() -> None:
    """A forked child, such as a data loader's, ends as any program does, and the parent's world and engine are not affected."""
    world = sherd.World.from_env(timeout_ns=LIMIT_NS)
    engine, unit, param = engine_of(world)
    warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of a fork where threads run
    child = os.fork()
    if child == 0:
        assert signal.set_wakeup_fd(-1) == -1
        try:
            interrupt()
            while True:
                pass
        except KeyboardInterrupt:
            with sherd.World.self() as own:
                own.barrier()
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    for _ in range(3):
        with engine.acquired(unit, sherd.BACKWARD):
            memoryview(engine.grad(param).buffer()).cast("B").cast("f")[0] += 1
        engine.step()
    assert world.sum([1.0]) == [world.size]
    print(f"{engine.fingerprint():x}")
    engine.destroy()
    world.destroy()


PARTS = {function.__name__: function for function in (
    part_is_interrupted, part_step_is_interrupted, part_is_interrupted_twice, part_other_signals_come, part_has_a_handler, part_is_alone,
    part_lets_others_run, part_forks)}


class TestWaits(unittest.TestCase):
    def run_told(self, part: str) -> list[str]:
        """Runs a part on two ranks and returns what they printed."""
        with tempfile.TemporaryDirectory() as folder:
            return ranks.run(2, part, SHERD_TEST_REPORTED=str(Path(folder) / "reported"))

    def test_ctrl_c_ends_a_wait_and_the_others_learn_of_it(self) -> None:
        for part in ("part_is_interrupted", "part_step_is_interrupted", "part_is_interrupted_twice"):
            texts = self.run_told(part)
            self.assertEqual(texts[1].strip(), "interrupted")
            self.assertRegex(texts[0], "rank 1.*SIGINT")

    def test_a_handler_of_the_script_keeps_the_world(self) -> None:
        self.assertEqual([text.strip() for text in self.run_told("part_has_a_handler")], ["whole", "whole"])

    def test_other_signals_do_not_end_the_time_of_grace(self) -> None:
        self.assertEqual([text.strip() for text in self.run_told("part_other_signals_come")], ["whole", "whole"])

    def test_ctrl_c_ends_the_meeting(self) -> None:
        self.assertEqual(ranks.run(1, "part_is_alone", SHERD_WORLD_SIZE="2")[0].strip(), "interrupted")

    def test_threads_run_while_a_call_waits(self) -> None:
        self.assertEqual([text.strip() for text in self.run_told("part_lets_others_run")], ["met", "met"])

    def test_children_leave_the_world_alone(self) -> None:
        for size in (1, 2, 3):
            texts = ranks.run(size, "part_forks")
            self.assertEqual(len(set(texts)), 1)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts the tests in the background has it ignored
    if ranks.rank() is not None:
        PARTS[sys.argv[1]]()
    else:
        unittest.main(argv=sys.argv[:1])

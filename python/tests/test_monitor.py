"""Tests the files of csv_monitor and tensorboard: reads them by a reader of its own, and by TensorBoard's where it is installed."""
from __future__ import annotations

import ctypes
import importlib.util
import struct
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any, Iterator

import sherd

STEPS, MICRO = 5, 4  # steps of a run, samples of a micro-batch


def run(folder: Path) -> None:
    """Makes a few steps of a model of two weights, and writes a loss as a number of the trainer's own."""
    monitors = {name: {"enabled": True, "output_path": str(folder), "job_name": name} for name in ("csv_monitor", "tensorboard")}
    engine = sherd.Engine(sherd.World.self(), {
        "train_micro_batch_size_per_gpu": MICRO, "optimizer": {"type": "AdamW", "params": {"lr": 0.05}}, "wall_clock_breakdown": True,
        "scheduler": {"type": "linear", "params": {"num_training_steps": 10}}, **monitors})
    unit = engine.add_unit("line")
    param = engine.add_param(unit, "w", [2])
    engine.seal()
    engine.fill(param, ctypes.create_string_buffer(8))
    for step in range(STEPS):
        with engine.acquired(unit, sherd.FORWARD):
            pass
        with engine.acquired(unit, sherd.BACKWARD):
            memoryview(engine.grad(param).buffer()).cast("B").cast("f")[0] += 3
        engine.step()
        engine.monitor_write("Train/Samples/train_loss", 1 / (step + 1))
    engine.destroy()


# ---- a reader of event files, by the formats of TensorFlow's records and of protocol buffers

def crc32c(data: bytes) -> int:
    """Returns CRC-32C (Castagnoli, RFC 3720) of the bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    """Returns the checksum as TensorFlow's records have it: rotated, with a constant added."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data: bytes) -> Iterator[bytes]:
    """Yields the records of a file, with their checksums compared."""
    at = 0
    while at < len(data):
        length, length_crc = struct.unpack_from("<QI", data, at)
        assert length_crc == masked(data[at: at + 8])
        record = data[at + 12: at + 12 + length]
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked(record)
        yield record
        at += 16 + length


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns the varint of protocol buffers that begins at `at`, and the offset after it."""
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def fields(data: bytes) -> dict[int, Any]:
    """Returns the fields of a message of protocol buffers by their numbers; of a repeated field the last one."""
    found: dict[int, Any] = {}
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            found[key >> 3], at = varint(data, at)
        elif key & 7 == 2:
            length, at = varint(data, at)
            found[key >> 3], at = data[at: at + length], at + length
        else:
            kind, width = ("<d", 8) if key & 7 == 1 else ("<f", 4)
            found[key >> 3], at = struct.unpack_from(kind, data, at)[0], at + width
    return found


def scalars(file: Path) -> dict[str, list[tuple[int, float]]]:
    """Returns the (step, value) pairs of each tag in an event file. The first event gives the version of the format."""
    events = [fields(record) for record in records(file.read_bytes())]
    assert events[0][3] == b"brain.Event:2"
    assert all(abs(event[1] - time.time()) < 3600 for event in events)
    found: dict[str, list[tuple[int, float]]] = {}
    for event in events[1:]:
        value = fields(fields(event[5])[1])
        found.setdefault(value[1].decode(), []).append((event[2], value[2]))
    return found


class TestMonitor(unittest.TestCase):
    def setUp(self) -> None:
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = Path(self.scratch.name)
        run(self.folder)
        [self.board] = (self.folder / "tensorboard").iterdir()

    def check(self, found: dict[str, list[tuple[int, float]]]) -> None:
        """Compares the (step, value) pairs of each tag with those of the run."""
        steps = [MICRO * (step + 1) for step in range(STEPS)]
        for tag, values in {"lr": [0.05 * (1 - step / 10) for step in range(STEPS)], "grad_norm": [3.0] * STEPS,
                            "train_loss": [1 / (step + 1) for step in range(STEPS)]}.items():
            got = found[f"Train/Samples/{tag}"]
            self.assertEqual([step for step, _ in got], steps)
            for (_, value), want in zip(got, values):
                self.assertAlmostEqual(value, want, delta=1e-6 * abs(want))
        for part in ("forward", "backward", "backward_inner", "backward_allreduce", "step"):
            self.assertEqual(len(found[f"Train/Samples/elapsed_time_ms_{part}"]), STEPS)

    def test_checksum_is_the_standards(self) -> None:
        self.assertEqual(crc32c(b"123456789"), 0xE3069283)

    def test_events_by_hand(self) -> None:
        self.assertIn("tfevents", self.board.name)
        self.check(scalars(self.board))

    def test_rows(self) -> None:
        found = {}
        for file in (self.folder / "csv_monitor").iterdir():
            head, *rows = file.read_text().splitlines()
            tag = head.split(",")[1]
            self.assertEqual(file.name, f"Train_Samples_{tag}.csv")
            found[f"Train/Samples/{tag}"] = [(int(step), float(value)) for step, value in (row.split(",") for row in rows)]
        self.check(found)

    @unittest.skipIf(importlib.util.find_spec("tensorboard") is None, "no tensorboard")
    def test_events_by_tensorboard(self) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        reader = EventAccumulator(str(self.board.parent))
        reader.Reload()
        self.check({tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]})


if __name__ == "__main__":
    unittest.main(verbosity=1)

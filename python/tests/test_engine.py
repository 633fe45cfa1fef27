"""Tests the package without torch: worlds, configurations, engines, their memory, values and files."""
from __future__ import annotations

import ctypes
import gc
import math
import sys
import tempfile
import unittest
import warnings
from pathlib import Path
from unittest import mock

import ranks

import sherd
from sherd._library import library

CONFIG = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 0.05}},
          "zero_optimization": {"stage": 3}, "gradient_clipping": 0}


def line(world: sherd.World, **changes: object) -> tuple[sherd.Engine, int, int]:
    """Returns an engine of y = w x + b, with (w, b) as one parameter that is filled with zeros, and the numbers of unit and
    parameter."""
    engine = sherd.Engine(world, {**CONFIG, **changes})
    unit = engine.add_unit("line")
    param = engine.add_param(unit, "w", [2])
    engine.seal()
    engine.fill(param, ctypes.create_string_buffer(8))
    return engine, unit, param


def train(world: sherd.World, engine: sherd.Engine, unit: int, param: int, steps: int = 150) -> None:
    """Trains w and b towards y = 3 x + 1."""
    for step in range(steps):
        x = (step * 7 + world.rank * 3) % 10 / 10
        with engine.acquired(unit, sherd.FORWARD):
            w, b = memoryview(engine.data(param).buffer()).cast("B").cast("f")
        error = w * x + b - (3 * x + 1)
        with engine.acquired(unit, sherd.BACKWARD):
            grad = memoryview(engine.grad(param).buffer()).cast("B").cast("f")
            grad[0] += 2 * error * x
            grad[1] += 2 * error
        assert engine.step().is_boundary


def on_ranks() -> None:
    """What each rank does in test_several_ranks."""
    world = sherd.World.from_env()
    engine, unit, param = line(world)
    train(world, engine, unit, param)
    assert world.sum([1.0, world.rank]) == [world.size, sum(range(world.size))]
    word = bytearray(b"rank 1" if world.rank == 1 else b"......")
    world.broadcast(word, root=1)
    assert word == b"rank 1"
    assert world.share(b"of rank 1" if world.rank == 1 else b"", root=1) == b"of rank 1" and world.share(b"") == b""
    print(f"fingerprint {engine.fingerprint():x}")
    engine.destroy()


def on_groups() -> None:
    """What each rank does in the test of groups: even and odd ranks train apart, with the ranks of a group in reverse order."""
    world = sherd.World.from_env()
    assert world.split(None) is None
    group = world.split(world.rank % 2, key=-world.rank)
    assert group is not None and group.transport == world.transport
    assert group.size == len(range(world.rank % 2, world.size, 2))
    assert group.rank == group.size - 1 - world.rank // 2
    assert group.sum([world.rank]) == [sum(range(world.rank % 2, world.size, 2))]
    engine, unit, param = line(group)
    world.destroy()
    train(group, engine, unit, param)
    print(f"fingerprint {engine.fingerprint():x}")
    engine.destroy()


def on_ranks_wrong_buffer() -> None:
    """Rank 0 has a buffer that is not fp32, and no other rank waits for it. What the others have is not looked at."""
    world = sherd.World.from_env()
    engine = sherd.Engine(world, CONFIG)
    param = engine.add_param(engine.add_unit("u"), "w", [8])
    engine.seal()
    doubles = (ctypes.c_double * 8)()
    try:
        engine.fill_from(param, 0, doubles)
    except TypeError as error:
        assert world.rank == 0 and "fp32 elements" in str(error), error
    except sherd.InvalidError as error:
        assert world.rank > 0, error
    else:
        raise AssertionError("taken as fp32")
    engine.fill_from(param, 0, (ctypes.c_float * 8)(*range(8)) if world.rank == 0 else doubles)
    assert list(engine.read(param)) == list(range(8))
    engine.destroy()


class TestEngine(unittest.TestCase):
    def setUp(self) -> None:
        self.world = sherd.World.self()

    def test_trains(self) -> None:
        engine, unit, param = line(self.world)
        train(self.world, engine, unit, param, steps=300)
        w, b = engine.read(param)
        self.assertAlmostEqual(w, 3, delta=0.5)
        self.assertAlmostEqual(b, 1, delta=0.5)
        self.assertEqual(engine.info.step, 300)
        self.assertGreater(engine.memory().total_held, 0)
        self.assertIn("stage 3", engine.plan())
        self.assertIsInstance(engine.plan(as_json=True), dict)
        engine.destroy()

    def test_a_configuration_with_objects(self) -> None:
        nvme = {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": Path("/mnt/nvme")}}
        with sherd.Config({"zero_optimization": nvme}) as config:
            self.assertEqual(config.resolved()["zero_optimization.offload_optimizer.nvme_path"]["value"], ["/mnt/nvme"])
        with self.assertRaisesRegex(TypeError, "text, numbers, lists and dicts.*is of type object"):
            sherd.Config({"train_batch_size": object()})

    def test_errors_about_a_dict_name_the_key_alone(self) -> None:
        both = {"bf16": {"enabled": True}, "fp16": {"enabled": True}}
        for wrong, said in (({"zero_optimization": {"stage": 7}}, "zero_optimization.stage is 7"),
                            (both, "fp16.enabled and bf16.enabled are both true"),
                            ({**CONFIG, "train_batch_size": 5, "gradient_accumulation_steps": 2}, "train_batch_size 5 is not")):
            with self.assertRaisesRegex(sherd.InvalidError, "^" + said):
                sherd.Engine(self.world, wrong)
        with sherd.Config({"zero_optimization": {"stage": 3}}) as config:
            with self.assertRaisesRegex(sherd.InvalidError, "zero_optimization.stage is 3, and the program gives 2"):
                config.set("zero_optimization.stage", 2)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write('{"zero_optimization": {\n"stage": 7}}')
            file.flush()
            with self.assertRaisesRegex(sherd.InvalidError, f"^{file.name}:2:1: zero_optimization.stage is 7"):
                sherd.Config(file.name)

    def test_a_configuration_that_is_forgotten_is_freed(self) -> None:
        with mock.patch.object(library(), "config_destroy", wraps=library().config_destroy) as freed:
            config = sherd.Config(CONFIG)
            handle = config.handle
            freed.assert_not_called()
            del config
            gc.collect()
            freed.assert_called_once_with(handle)
            with sherd.Config(CONFIG) as config:
                handle = config.handle
            config.destroy()
            del config
            gc.collect()
            self.assertEqual([call.args for call in freed.mock_calls], [freed.mock_calls[0].args, (handle,)])

    def test_errors_carry_the_sentence(self) -> None:
        with self.assertRaisesRegex(sherd.InvalidError, "stage") as caught:
            sherd.Config({"zero_optimization": {"stage": 7}})
        self.assertIsInstance(caught.exception, ValueError)
        engine, unit, param = line(self.world)
        with self.assertRaisesRegex(sherd.StateError, "w"):
            engine.data(param)
        with self.assertRaisesRegex(sherd.StateError, "line"):
            engine.release(unit, sherd.FORWARD)
        with self.assertRaises(TypeError):
            engine.add_group("g", rate=1)
        engine.destroy()
        with self.assertRaisesRegex(ValueError, "destroyed"):
            engine.step()

    def test_what_a_callback_raises_comes_out(self) -> None:
        engine = sherd.Engine(self.world, CONFIG)
        param = engine.add_param(engine.add_unit("u"), "w", [4])
        engine.seal()

        def fails(_first: int, _out: memoryview) -> None:
            raise KeyError("no such tensor")

        with self.assertRaisesRegex(KeyError, "no such tensor"):
            engine.fill(param, fails)
        engine.destroy()

    def test_gradients_have_norms(self) -> None:
        engine, unit, param = line(self.world)
        with engine.acquired(unit, sherd.BACKWARD):
            grad = memoryview(engine.grad(param).buffer()).cast("B").cast("f")
            grad[0], grad[1] = 3, 4
        self.assertAlmostEqual(engine.prepare().grad_norm, 5)
        self.assertEqual(engine.grad_norms(), [5])
        engine.apply()
        engine.destroy()

    def test_micro_batches_have_weights(self) -> None:
        engine, unit, param = line(self.world, gradient_accumulation_steps=3, sherd={"most_weight": 10})
        for weight, value in ((6, 4.0), (2, 8.0)):
            engine.weigh_micro_batch(weight)
            with engine.acquired(unit, sherd.BACKWARD):
                memoryview(engine.grad(param).buffer()).cast("B").cast("f")[0] = value
            self.assertFalse(engine.step().is_boundary)
        engine.skip_micro_batch()
        self.assertAlmostEqual(engine.prepare().grad_norm, (6 * 4 + 2 * 8) / 8, places=5)
        engine.apply()
        with self.assertRaisesRegex(sherd.InvalidError, "sherd.most_weight is 10"):
            engine.weigh_micro_batch(11)
        with self.assertRaisesRegex(sherd.InvalidError, "not -1"):
            engine.weigh_micro_batch(-1)
        engine.destroy()

    def test_buffers_of_other_elements_are_refused(self) -> None:
        engine = sherd.Engine(self.world, CONFIG)
        param = engine.add_param(engine.add_unit("u"), "w", [2])
        engine.seal()
        doubles = (ctypes.c_double * 2)(1, 2)
        for call in (lambda: engine.fill(param, doubles), lambda: engine.fill_from(param, 0, doubles)):
            with self.assertRaisesRegex(TypeError, "fp32 elements.*format '.*d'"):
                call()
        engine.fill(param, bytes((ctypes.c_float * 2)(1, 2)))
        for call in (lambda: engine.write(param, doubles), lambda: engine.read(param, out=doubles)):
            with self.assertRaisesRegex(TypeError, "fp32 elements.*format '.*d'"):
                call()
        for read in (engine.read, engine.read_local):
            with self.assertRaisesRegex(ValueError, "read-only"):
                read(param, out=bytes(8))
        self.assertEqual(list(engine.read(param)), [1.0, 2.0])
        engine.destroy()

    def test_a_wrong_buffer_of_the_root_is_told_to_all(self) -> None:
        ranks.run(2, "on_ranks_wrong_buffer")

    def test_values_and_blobs(self) -> None:
        engine, unit, param = line(self.world)
        engine.write(param, (ctypes.c_float * 2)(2.5, -1.0))
        self.assertEqual(list(engine.read(param)), [2.5, -1.0])
        self.assertEqual(list(engine.read(param, "exp_avg", first=1)), [0.0])
        self.assertEqual(engine.local(param), (0, 2))
        engine.keep_state()
        train(self.world, engine, unit, param, steps=1)
        self.assertEqual(list(engine.read_local(param, "exp_avg")), list(engine.read(param, "exp_avg")))
        engine.set_blob("place", b"batch 7")
        self.assertEqual(engine.blob("place"), b"batch 7")
        with self.assertRaises(sherd.InvalidError):
            engine.blob("nothing")
        engine.destroy()

    def test_files(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            engine, unit, param = line(self.world)
            train(self.world, engine, unit, param, steps=20)
            seen: list[tuple[int, int]] = []
            engine.set_blob("place", b"batch 7")
            engine.save(Path(folder), "a", progress=lambda done, whole: seen.append((done, whole)))
            engine.export_safetensors(Path(folder) / "w.safetensors")
            after = engine.fingerprint()
            with sherd.Checkpoint(folder) as saved:
                self.assertEqual((saved.tag, saved.manifest["step"], saved.manifest["fingerprint"]), ("a", 20, f"{after:016x}"))
                self.assertEqual((saved.blob("place"), saved.blob("nothing")), (b"batch 7", None))
            with self.assertRaisesRegex(ValueError, "closed"):
                saved.blob("place")
            with self.assertRaisesRegex(sherd.InputOutputError, "none"):
                sherd.Checkpoint(folder, "none")
            train(self.world, engine, unit, param, steps=5)
            engine.load(folder)
            self.assertEqual(engine.fingerprint(), after)
            self.assertTrue(seen)
            train(self.world, engine, unit, param, steps=5)
            engine.import_safetensors(Path(folder) / "w.safetensors")
            self.assertEqual(engine.fingerprint(), after)
            engine.destroy()

    def test_the_end_of_an_engine_completes_an_asynchronous_save_or_warns(self) -> None:
        """A save in a thread is complete after destroy and at the end of `with`. Other ends do not wait for it."""
        with tempfile.TemporaryDirectory() as folder:
            def saving(tag: str) -> sherd.Engine:
                engine, _, _ = line(self.world, checkpoint={"async": True})
                engine.save(folder, tag)
                return engine

            with warnings.catch_warnings():
                warnings.simplefilter("error")
                saving("destroyed").destroy()
                with saving("left"):
                    pass
                for tag in ("destroyed", "left"):
                    sherd.Checkpoint(folder, tag).close()
            with self.assertWarnsRegex(UserWarning, "engine.wait_saved()"), self.assertRaises(ZeroDivisionError), saving("failed"):
                1 / 0
            with self.assertWarnsRegex(UserWarning, "engine.wait_saved()"):
                saving("forgotten")
                gc.collect()
            engine = saving("refused")
            with mock.patch.object(engine, "wait_saved", side_effect=sherd.InputOutputError("full")), \
                    self.assertWarns(UserWarning), self.assertRaisesRegex(sherd.InputOutputError, "full"):
                engine.destroy()
            with self.assertRaisesRegex(ValueError, "destroyed"):
                engine.plan()
            for tag in ("failed", "forgotten", "refused"):
                with self.assertRaises(sherd.InputOutputError):
                    sherd.Checkpoint(folder, tag)

    def test_blobs_of_files_are_compared_with_their_checksums(self) -> None:
        """The blob ends at any place in an extent, lies in several ones, and each byte of it counts."""
        engine, _, _ = line(self.world)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "a" / "rank-00000-of-00001.safetensors"
            for size in (0, 1, 65536 - 24, 65536 - 10, 200_000):
                data = bytes(i * 7 % 251 for i in range(size))
                engine.set_blob("place", data)
                engine.save(folder, "a")
                with sherd.Checkpoint(folder, "a") as saved:
                    self.assertEqual(saved.blob("place"), data)
                whole = file.read_bytes()
                begin = len(whole) - size
                for at in {0, size // 2, size - 1} if size else ():
                    damaged = bytearray(whole)
                    damaged[begin + at] ^= 1
                    file.write_bytes(damaged)
                    with sherd.Checkpoint(folder, "a") as saved, self.assertRaisesRegex(sherd.InvalidError, "rank 0.s data do not match their checksum"):
                        saved.blob("place")
        engine.destroy()

    def test_memory(self) -> None:
        memory = sherd.Memory(ctypes.addressof(values := (ctypes.c_float * 6)(*range(6))), (2, 3), "fp32",
                              owner=values)
        self.assertEqual(list(memoryview(memory.buffer()).cast("B").cast("f")), [0, 1, 2, 3, 4, 5])
        self.assertEqual(memory.__dlpack_device__(), (1, 0))
        memory.__dlpack__()  # a capsule that nobody consumes frees what it holds
        try:
            import numpy
        except ImportError:
            return
        taken = numpy.from_dlpack(memory)
        numpy.asarray(memory)[1, 2] = 7
        self.assertEqual(taken.tolist(), [[0, 1, 2], [3, 4, 7]])

    def test_several_ranks(self) -> None:
        texts = [ranks.run(size, "on_ranks")[0] for size in (2, 3)]
        self.assertTrue(all("fingerprint" in text for text in texts))

    def test_groups_of_ranks_train_as_worlds_of_their_size(self) -> None:
        alone = ranks.run(2, "on_ranks")[0]
        self.assertEqual(ranks.run(4, "on_groups"), 4 * [alone])

    def test_activations_come_back(self) -> None:
        """What three units leave for backward passes through one place on the device, to host memory or to files."""
        size = 5000  # no multiple of a page
        with tempfile.TemporaryDirectory() as folder:
            for device in ("none", "cpu", "nvme"):
                engine = sherd.Engine(self.world, {**CONFIG, "sherd": {"activations": {
                    "device": device, "nvme_path": folder, "buffer_count": 1}}})
                units = [engine.add_unit(f"unit {number}") for number in range(3)]
                for unit in units:
                    engine.add_param(unit, f"w{unit}", [2])
                    engine.add_activation(unit, size, device if unit == 1 else None)
                with self.assertRaisesRegex(sherd.InvalidError, "already"):
                    engine.add_activation(units[0], size)
                engine.seal()
                for param in range(3):
                    engine.fill(param, ctypes.create_string_buffer(8))
                memory = engine.memory()
                self.assertGreaterEqual(memory.activations_planned, size * (3 if device == "none" else 1))
                self.assertEqual(memory.host_activations_planned > 0, device == "cpu")
                self.assertEqual(memory.nvme_activations_planned > 0, device == "nvme")
                for step in range(2):
                    addresses = []
                    for unit in units:
                        with engine.acquired(unit, sherd.FORWARD):
                            put = engine.put_activation(unit)
                            self.assertEqual((put.shape, put.dtype, put.nbytes), ((size,), "uint8", size))
                            memoryview(put.buffer()).cast("B")[:] = bytes((step + unit + i) % 251 for i in range(size))
                            addresses.append(put.address)
                    with self.assertRaisesRegex(sherd.StateError, "not acquired"):
                        engine.put_activation(units[0])
                    for unit in reversed(units):
                        with engine.acquired(unit, sherd.BACKWARD):
                            got = engine.get_activation(unit)
                            self.assertEqual(got.address, addresses[unit])
                            self.assertEqual(bytes(got.buffer()), bytes((step + unit + i) % 251 for i in range(size)))
                    engine.step()
                engine.destroy()

    def test_simulated(self) -> None:
        world = sherd.World.simulate(0, 64, host_bytes=1 << 34)
        engine = sherd.Engine(world, CONFIG)
        engine.add_param(engine.add_unit("u"), "w", [1000, 1000])
        self.assertLess(engine.memory().state_planned, 3 * 4 * 1e6 / 64 * 1.1)
        self.assertTrue(math.isfinite(engine.traffic().wear_days))
        engine.destroy()

    def test_too_little_memory_reads_as_torch_says_it(self) -> None:
        """Loops that try a smaller batch look for a RuntimeError with these words."""
        with sherd.Engine(sherd.World.simulate(0, 1, host_bytes=1000), CONFIG) as engine:
            engine.add_param(engine.add_unit("u"), "w", [1000, 1000])
            with self.assertRaisesRegex(RuntimeError, "^sherd is out of memory\\. the plan needs") as found:
                engine.seal()
        self.assertIsInstance(found.exception, sherd.OutOfMemoryError)
        self.assertEqual(len(found.exception.args), 1)


if __name__ == "__main__":
    if ranks.rank() is not None:
        {"on_ranks": on_ranks, "on_groups": on_groups, "on_ranks_wrong_buffer": on_ranks_wrong_buffer}[sys.argv[1]]()
    else:
        unittest.main(argv=sys.argv[:1])

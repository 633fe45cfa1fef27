"""Tests weights in and out of a model under sherd.torch: by name, in files, in checkpoints, gathered; and generated text."""
from __future__ import annotations

import importlib.util
import io
import os
import random
import re
import sys
import tempfile
import unittest
import warnings
from unittest import mock

import ranks

try:
    import torch
except ImportError as error:
    ranks.skip(str(error))
try:
    import transformers
except ImportError:
    transformers = None

import sherd.torch
from sherd.errors import InputOutputError, InvalidError, PeerLostError, SherdError, StateError
from sherd.torch import generate
from torch import nn

CONFIG = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0,
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.01}}}


class Tied(nn.Module):
    """A model with a tied head, buffers that training changes (BatchNorm's), and one that it does not change."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.GELU()) for _ in range(3))
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.full((1,), 0.5))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) * self.scale
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def made(seed: int = 1) -> Tied:
    torch.manual_seed(seed)
    return Tied()


def engine_of(stage: int, model: nn.Module | None = None, **options) -> sherd.torch.Engine:
    config = {**CONFIG, "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, **options.pop("keys", {})}
    return sherd.torch.initialize(made() if model is None else model, config, **options)


def train(engine, steps: int, start: int = 0) -> None:
    for step in range(start, start + steps):
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(0, 16, (2 * engine.world_size, 8), generator=generator)[2 * engine.rank:][:2].reshape(-1)
        logits = engine(ids)
        engine.backward(nn.functional.cross_entropy(logits, ids.roll(1)))
        engine.step()


def same(left, right) -> None:
    """Asserts that two mappings have the same names and the same values."""
    left, right = dict(left), dict(right)
    assert left.keys() == right.keys(), left.keys() ^ right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor.float(), right[name].float()), name


def refused(call, words: str, kind: type = StateError) -> None:
    """Asserts that a call raises an error of this kind with these words."""
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")


# ------------------------------------------------------------------- cases --

def state_dict_has_what_torch_has(stage: int) -> None:
    model = made()
    want = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    engine = engine_of(stage, model, example=torch.zeros(2, dtype=torch.long))
    same(engine.state_dict(), want)
    file = io.BytesIO()
    torch.save(engine.state_dict(), file)
    file.seek(0)
    same(torch.load(file, weights_only=True), want)
    other = {name: tensor + 1 for name, tensor in want.items() if tensor.is_floating_point()}
    missing, unexpected = engine.load_state_dict({**other, "more": torch.ones(1)}, strict=False)
    assert unexpected == ["more"] and all("num_batches" in name for name in missing), (missing, unexpected)
    same({n: t for n, t in engine.state_dict().items() if n in other}, other)
    try:
        engine.load_state_dict({"embed.weight": torch.ones(16, 8)})
        raise AssertionError("missing names were taken")
    except ValueError as error:
        assert "blocks.0.0.weight" in str(error), error
    try:
        engine.load_state_dict({"embed.weight": torch.ones(4, 8)}, strict=False)
        raise AssertionError("another shape was taken")
    except ValueError as error:
        assert "embed.weight is [16, 8]" in str(error), error
    mark = engine.fingerprint()
    for name, shape in (("blocks.2.0.bias", 3), ("blocks.2.1.running_mean", 1)):  # the last of their kinds
        refused(lambda: engine.load_state_dict({**want, name: torch.ones(shape)}), f"{name} is [8], and the values are [{shape}]", ValueError)
    assert engine.fingerprint() == mark
    engine.load_state_dict(engine.state_dict())
    assert engine.fingerprint() == mark
    engine.destroy()


def checkpoint_goes_on(stage: int, folder: str) -> None:
    engine = engine_of(stage)
    train(engine, 3)
    state = {"epoch": 2, "best": 0.25, "python": random.Random(4).getstate(), 7: {"$": None}, "torch": torch.Generator().manual_seed(4).get_state(),
             "wide": torch.arange(600_000.0).reshape(2, -1).t(), "bits": torch.tensor([True, False]), "none": torch.empty(0, 3)}
    assert engine.save_checkpoint(folder, client_state=state)
    train(engine, 3, start=3)
    want, mark = dict(engine.state_dict()), engine.fingerprint()
    engine.destroy()
    again = engine_of(stage, made(7))
    where, client = again.load_checkpoint(folder)  # the load waits for the first batch
    assert where == os.path.join(folder, "step-000003") and list(client) == list(state), (where, client)
    for key, value in state.items():
        assert torch.equal(client[key], value) if isinstance(value, torch.Tensor) else client[key] == value, key
    assert not again.is_sealed and (again.global_steps, again.micro_steps) == (3, 3)
    assert again.global_samples == 3 * again.train_batch_size()
    for use in (again.module.state_dict, lambda: again.module.blocks[0](torch.zeros(1, 8)), lambda: again.module.load_state_dict(want)):
        refused(use, "loaded with the first batch")
    refused(lambda: again.load_checkpoint(folder, tag="none"), "none", InputOutputError)
    train(again, 3, start=3)
    assert again.order.is_traced and again.global_steps == 6
    assert again.fingerprint() == mark
    same(again.state_dict(), want)
    again.save_checkpoint(folder, tag=7)  # type: ignore[arg-type] # DeepSpeed takes a number as the tag too
    assert again.load_checkpoint(folder, tag="step-000003", load_module_only=True)[1]["epoch"] == 2  # not the last one that was saved
    assert again.load_checkpoint(folder, tag=7)[0] == os.path.join(folder, "7")  # type: ignore[arg-type]
    try:
        again.save_checkpoint(folder, client_state={"model": object()})
        raise AssertionError("an object was taken")
    except TypeError as error:
        assert "client_state['model'] is of object, which a checkpoint does not keep" in str(error), error
    again.destroy()


def whole_weights(stage: int) -> None:
    engine = engine_of(stage)
    train(engine, 1)
    before = dict(engine.state_dict())
    with sherd.torch.gathered_parameters(engine):
        same(engine.module.state_dict(), before)
        with torch.no_grad():
            engine.module.embed.weight.zero_()
    same(engine.state_dict(), before)
    with sherd.torch.gathered_parameters(engine.module.embed.weight, modify=True):
        with torch.no_grad():
            engine.module.embed.weight[engine.rank, 3] = 5.0  # what rank 0 changes counts
    after = dict(engine.state_dict())
    assert after["head.weight"][0, 3] == 5.0
    before["embed.weight"][0, 3] = 5.0
    same({n: t for n, t in after.items() if n != "head.weight"}, {n: t for n, t in before.items() if n != "head.weight"})
    try:
        with sherd.torch.gathered_parameters(engine.module.blocks):
            engine(torch.zeros(2, dtype=torch.long))
        raise AssertionError("a forward in the middle was taken")
    except StateError as error:
        assert "blocks.0" in str(error), error
    engine.discard()
    train(engine, 1, start=1)
    if stage < 3:  # at stage 3 torch refuses the write
        with torch.no_grad():
            engine.module.embed.weight.mul_(2)
        for modify in (False, True):  # it would be forgotten, or the masters would be twice as large
            refused(lambda: gathered_parameters_once(engine, modify), "embed.weight was written in place outside")
    engine.destroy()


def gathered_parameters_once(engine: sherd.torch.Engine, modify: bool) -> None:
    with sherd.torch.gathered_parameters(engine, modify=modify):
        pass


def exact_masters_below_bf16() -> None:
    engine = engine_of(3, keys={"bf16": {"enabled": True}}, example=torch.zeros(4, dtype=torch.long))
    train(engine, 2)
    before = dict(engine.state_dict())
    with sherd.torch.gathered_parameters(engine.module, modify=True):
        assert engine.module.embed.weight.dtype == torch.bfloat16
        with torch.no_grad():
            engine.module.embed.weight[1] *= 2
    after = dict(engine.state_dict())
    assert torch.equal(after["embed.weight"][2:], before["embed.weight"][2:])
    assert not torch.equal(after["embed.weight"][1], before["embed.weight"][1])
    engine.destroy()


def pretrained(stage: int, folder: str) -> None:
    engine = engine_of(stage)
    train(engine, 2)
    want = dict(engine.state_dict())
    engine.save_pretrained(folder)
    engine.destroy()
    with torch.device("meta"):
        model = Tied()
    engine = engine_of(stage, model, example=torch.zeros(4, dtype=torch.long), weights=folder)
    got = dict(engine.state_dict())
    assert got["blocks.0.1.num_batches_tracked"] == 2 and got["scale"] == 0.5
    same({n: t for n, t in got.items() if "running" not in n}, {n: t for n, t in want.items() if "running" not in n})
    if engine.rank == 0:  # the file has rank 0's statistics
        same(got, want)
    engine.destroy()
    try:
        engine_of(stage, nn.Linear(2, 2), example=torch.zeros(1, 2), weights=folder)
        raise AssertionError("another model was taken")
    except InvalidError as error:
        assert "weight" in str(error), error


def text(stage: int, folder: str) -> None:
    config = transformers.GPT2Config(vocab_size=32, n_positions=32, n_embd=16, n_layer=3, n_head=2, bos_token_id=0,
                                     eos_token_id=1, pad_token_id=1)
    torch.manual_seed(3)
    model = transformers.GPT2LMHeadModel(config)
    ids = torch.arange(2, 8)[None]
    rest = {"attention_mask": torch.ones_like(ids), "do_sample": False}
    want = model.eval().generate(ids, max_new_tokens=9, **rest)
    engine = sherd.torch.initialize(model, {**CONFIG, "sherd": {"eval_keep_units": 2}, "zero_optimization": {
        "stage": stage, "stage3_param_persistence_threshold": 0}}, example={"input_ids": ids})
    got = engine.generate(ids, max_new_tokens=9 - 3 * engine.rank, **rest)
    assert torch.equal(got[:, :12], want[:, :got.shape[1]][:, :12]), (got, want)
    with engine.evaluating():  # several prompts share an evaluation
        for _ in range(2):
            assert torch.equal(engine.generate(ids, max_new_tokens=6, **rest), want[:, :12])
        refused(lambda: engine.evaluating().__enter__(), "sherd_eval_begin")
    if engine.world.size > 1:  # versions of transformers ask with different arguments whether a rank goes on
        with generate.together(engine):
            unfinished = getattr(model, generate.UNFINISHED)
            assert unfinished(engine.rank > 0, synced_gpus=True, device=ids.device, cur_len=6, max_length=15)
            assert not unfinished(True, True, ids.device) and unfinished(False, False) and not unfinished(True, False)
    engine.train()
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()  # also compares what the ranks have acquired, to generate too
    engine.save_pretrained(folder)
    engine.destroy()
    again = transformers.GPT2LMHeadModel.from_pretrained(folder)
    assert again.config.n_layer == 3
    assert not torch.equal(again.transformer.wte.weight, model.transformer.wte.weight)


def adapter(stage: int, folder: str) -> None:
    """An adapter that is trained as docs/pytorch.md says computes the same in plain PEFT, in every bit."""
    import peft
    ids = torch.arange(2, 10)[None]

    def base() -> nn.Module:
        torch.manual_seed(3)
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=32, n_positions=32, n_embd=16, n_layer=2, n_head=2,
                                                                    attn_pdrop=0, embd_pdrop=0, resid_pdrop=0))

    lora = peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=16, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)
    for kept, how, is_same in ((["*lora_*"], {}, True), (None, {}, False), (None, {"autocast_adapter_dtype": False}, True)):
        engine = engine_of(stage, peft.get_peft_model(base(), lora), fp32=kept, keys={"bf16": {"enabled": True}})
        for _ in range(3):
            engine.backward(engine(input_ids=ids, labels=ids).loss)
            engine.step()
        with torch.no_grad():
            want = engine.eval()(input_ids=ids).logits
        values = dict(engine.state_dict())
        if engine.rank == 0:
            engine.module.save_pretrained(folder, state_dict=values)
            again = peft.PeftModel.from_pretrained(base().bfloat16(), folder, **how)
            with torch.no_grad():
                got = again.eval()(input_ids=ids).logits
            assert torch.equal(got, want) == is_same and torch.allclose(got, want, atol=0.02), (kept, how, (got - want).abs().max())
        engine.destroy()


def others_bytes(stage: int, folder: str) -> None:
    """Rank 0 reads the files, and the other one has the same error."""
    engine = engine_of(stage)
    folder = os.path.dirname(folder)
    for _ in range(2):
        refused(lambda: engine.load_checkpoint(folder, "binary"), "binary has bytes under the key client_state that", InvalidError)
        with mock.patch("sherd.torch.resume.look", side_effect=KeyError("step")):
            refused(lambda: engine.load_checkpoint(folder, "x"), f"{folder}/x: KeyError('step')", InvalidError)
    engine.destroy()


def finds_nothing(stage: int, folder: str) -> None:
    """A load that finds no checkpoint says where it looked, on rank 0, and a file in place of a folder is refused on all ranks."""
    engine = engine_of(stage)
    if engine.rank == 0:
        os.makedirs(os.path.join(folder, "empty"), exist_ok=True)
        with open(os.path.join(folder, "m.pth"), "w") as file:
            file.write("weights")
    engine.world.barrier()
    for _ in range(2):  # before the first batch and after it
        places = [(f"{folder}/ckpts", f"no file {folder}/ckpts/latest, .* no folder {folder}/ckpts$"),
                  (f"{folder}/empty", f"no file {folder}/empty/latest, which save_checkpoint.. writes$")]
        if engine.is_sealed:
            engine.save_checkpoint(f"{folder}/saved", tag="t")
            if engine.rank == 0:
                os.remove(f"{folder}/saved/latest")
            engine.world.barrier()
            places += [(f"{folder}/saved", "has the checkpoints t: give load_checkpoint.. a tag$"),
                       (f"{folder}/saved/t", f"is a checkpoint itself: give load_checkpoint.'{folder}/saved', tag='t'.$")]
        for place, words in places:
            with warnings.catch_warnings(record=True) as reported:
                warnings.simplefilter("always")
                assert engine.load_checkpoint(place) == (None, {})
            texts = [str(one.message) for one in reported if "load_checkpoint" in str(one.message)]
            assert len(texts) == (engine.rank == 0) and all(re.search(words, text) for text in texts), (texts, words)
        for tag in (None, "t"):
            refused(lambda: engine.load_checkpoint(f"{folder}/m.pth", tag), "m.pth is a file, and a checkpoint is a folder", InvalidError)
        train(engine, 1)
    engine.destroy()


def lost_while_saving(stage: int, folder: str) -> None:
    """Rank 1 ends without a word while its part of an asynchronous save is not complete, and rank 0's destroy says so."""
    engine = engine_of(stage, keys={"checkpoint": {"async": True}})
    train(engine, 1)
    engine.save_checkpoint(folder, tag="whole")
    assert engine.wait_saved().step == 1 and os.path.isdir(os.path.join(folder, "whole"))
    engine.save_checkpoint(folder, tag="lost")
    if engine.rank == 1:
        os._exit(0)
    refused(engine.destroy, "rank 0 was in engine.destroy()", PeerLostError)
    refused(lambda: engine(torch.zeros(2, dtype=torch.long)), "destroyed")
    assert not os.path.exists(os.path.join(folder, "lost"))


CASES = {"state_dict": lambda stage, folder: state_dict_has_what_torch_has(stage), "checkpoint": checkpoint_goes_on,
         "whole": lambda stage, folder: whole_weights(stage), "pretrained": pretrained, "text": text, "adapter": adapter}
NEEDS = {"text": transformers, "text_at_1": transformers, "adapter": transformers and importlib.util.find_spec("peft")}
ON_RANKS = {**CASES, "text_at_1": lambda _stage, folder: text(1, folder), "others_bytes": others_bytes,
            "nothing": finds_nothing, "lost": lost_while_saving}


class TestWeights(unittest.TestCase):
    def test_alone(self) -> None:
        for stage in (0, 3):
            for name, case in CASES.items():
                if not NEEDS.get(name, True):
                    continue
                with self.subTest(name, stage=stage), tempfile.TemporaryDirectory() as folder:
                    case(stage, folder)
        exact_masters_below_bf16()

    def test_two_ranks(self) -> None:
        names = [name for name in (*CASES, "text_at_1") if NEEDS.get(name, True)]
        with tempfile.TemporaryDirectory() as folder:
            ranks.run(2, folder, *names, "nothing", "lost", SHERD_DEBUG="1")

    def test_a_load_that_finds_nothing(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            finds_nothing(3, folder)

    def test_a_load_that_waits(self) -> None:
        """Calls that need values make a waiting load first. If it fails, the next call makes it again before anything trains."""
        with tempfile.TemporaryDirectory() as folder:
            saved = engine_of(3, keys={"checkpoint": {"async": True}})
            train(saved, 1)  # changes the statistics of BatchNorm
            saved.save_checkpoint(folder, client_state={"epoch": 1}, is_async=0)
            shown, fails = engine_of(3, made(7)), engine_of(3, made(7))
            for engine in (shown, fails):
                self.assertEqual(engine.load_checkpoint(folder, load_module_only=True)[1], {"epoch": 1})
            with self.assertWarnsRegex(UserWarning, "registration"), sherd.torch.gathered_parameters(shown.module):
                same(shown.module.state_dict(), saved.state_dict())
            os.remove(os.path.join(folder, "step-000001", "manifest.json"))
            for _ in range(2):
                refused(lambda: train(fails, 1), "manifest.json", InputOutputError)
            saved.save_checkpoint(folder, tag="again", is_async=1)
            saved.load_checkpoint(folder)
            fails.load_checkpoint(folder, tag="again")
            train(fails, 1)
            saved.save_checkpoint(folder, tag="last", is_async=1)
            for engine in (saved, shown, fails):
                engine.destroy()
            self.assertTrue(os.path.isdir(os.path.join(folder, "last")))

    def test_nothing_trains_until_the_load_is_done(self) -> None:
        """After a seal or a load that failed, the module stays guarded, and the engine neither steps nor runs backward."""
        ids = torch.zeros(2, dtype=torch.long)
        with tempfile.TemporaryDirectory() as folder:
            saved = engine_of(3)
            train(saved, 1)
            saved.save_checkpoint(folder)
            manifest, away = os.path.join(folder, "step-000001", "manifest.json"), os.path.join(folder, "away")
            for stage in (0, 3):
                unsealed, engine = engine_of(stage, made(7)), engine_of(stage, made(7))
                for one in (unsealed, engine):
                    one.load_checkpoint(folder)

                def guarded(engine: sherd.torch.Engine) -> None:
                    for use in (lambda: engine.module.blocks[0](torch.zeros(1, 8)), engine.step,
                                lambda: engine.backward(torch.ones((), requires_grad=True))):
                        refused(use, "loaded with the first batch")
                    for use in (engine.module.state_dict, lambda: engine.module.load_state_dict({})):
                        with self.assertRaises(StateError):
                            use()

                with mock.patch.object(unsealed.core, "seal", side_effect=sherd.OutOfMemoryError("no room")):
                    refused(lambda: unsealed(ids), "no room", sherd.OutOfMemoryError)
                guarded(unsealed)
                unsealed.destroy()
                unsealed.module(ids)
                guarded(engine)
                os.rename(manifest, away)
                for load in (lambda: engine(ids), lambda: engine.module(ids), lambda: engine.load_checkpoint(folder), lambda: engine(ids)):
                    refused(load, "manifest.json", InputOutputError)
                    guarded(engine)
                os.rename(away, manifest)
                if stage == 0:  # a later load takes the place of the one that failed, once it is done
                    with mock.patch.object(engine.core, "load", side_effect=InvalidError("damaged")):
                        refused(lambda: engine.load_checkpoint(folder), "damaged", InvalidError)
                    guarded(engine)
                    engine.load_checkpoint(folder)
                engine(ids)
                self.assertEqual((engine.global_steps, engine.fingerprint()), (1, saved.fingerprint()))
                engine.module(ids)
                self.assertEqual(len(engine.module.embed._forward_pre_hooks), int(stage == 3))  # the engine's own alone
                train(engine, 1, start=1)
                engine.destroy()
            saved.destroy()

    def test_files_and_checkpoints_have_quantised_weights(self) -> None:
        ids, kept = torch.zeros(2, dtype=torch.long), nn.Parameter(torch.arange(6, dtype=torch.uint8), requires_grad=False)

        def quantised(elems: int = 6) -> nn.Module:
            model = made()
            model.bits = nn.Parameter(torch.arange(elems, dtype=torch.int64).to(torch.uint8), requires_grad=False)
            model.again = nn.Module()
            model.again.bits = model.bits
            return model

        with tempfile.TemporaryDirectory() as folder:
            engine, other = engine_of(3, quantised(), example=ids), engine_of(3, quantised(), example=ids)
            engine.load_state_dict({**dict(engine.state_dict()), "bits": kept.flip(0), "again.bits": kept.flip(0)})
            engine.save_checkpoint(folder)
            self.assertEqual([name for name in engine.buffers.saved() if "bits" in name], ["bits"])  # once, by its first name
            other.load_checkpoint(folder)
            self.assertEqual(other.module.again.bits.tolist(), [5, 4, 3, 2, 1, 0])
            engine.save_pretrained(folder + "/files")
            with torch.device("meta"):
                models = [quantised() for _ in range(2)]
            models[0].second = nn.Module()
            models[0].second.register_buffer("scale", models[0].scale)
            read = engine_of(3, models[0], example=ids, weights=folder + "/files")
            self.assertIs(read.module.again.bits, read.module.bits)
            self.assertIs(read.module.second.scale, read.module.scale)
            self.assertEqual((read.module.bits.tolist(), read.module.bits.dtype), ([5, 4, 3, 2, 1, 0], torch.uint8))
            read.destroy()
            refused(lambda: engine_of(3, models[1], example=ids, init=lambda module: [p.fill_(1) for p in module.parameters(False)]),
                    "parameter bits is of torch.uint8 and on the meta device", ValueError)
            large = engine_of(3, quantised(1 << 20), example=ids)
            large.save_checkpoint(folder, tag="same")  # what did not change is not in the checkpoint
            large.load_state_dict({"bits": torch.zeros(1 << 20, dtype=torch.uint8)}, strict=False)
            large.save_checkpoint(folder, tag="large")
            large.load_state_dict({"bits": torch.ones(1 << 20, dtype=torch.uint8)}, strict=False)
            large.load_checkpoint(folder, tag="large")
            self.assertEqual(int(large.module.bits.sum()), 0)
            for one in (engine, other, large):
                one.destroy()

    def test_files_may_miss_tensors_and_have_more(self) -> None:
        ids = torch.zeros(2, dtype=torch.long)
        with tempfile.TemporaryDirectory() as folder:
            saved = engine_of(3, example=ids)
            want = dict(saved.state_dict())
            saved.save_pretrained(folder)
            saved.destroy()
            def other(is_meta: bool) -> nn.Module:
                with torch.device("meta" if is_meta else "cpu"):
                    model = made(7)
                    model.blocks[1][0] = nn.Linear(8, 8, bias=False)
                    model.new = nn.BatchNorm1d(8)
                if not is_meta:
                    model.new.running_mean.fill_(4)
                return model

            refused(lambda: engine_of(3, other(True), example=ids, weights=folder, may_miss=["new.*"]), "blocks.1.0.bias", InvalidError)
            for is_meta in (False, True):
                engine = engine_of(3, other(is_meta), example=ids, weights=folder, may_miss=["new.*"], may_be_extra=["*.1.0.bias"])
                got = dict(engine.state_dict())
                self.assertEqual((float(got["new.weight"].sum()), float(got["new.running_mean"].sum())), (8, 0 if is_meta else 32))
                same({name: got[name] for name in want if name in got}, {name: want[name] for name in want if name in got})
                engine.destroy()
            refused(lambda: engine_of(3, may_miss=["new.*"]), "may_miss is a list of patterns of names for weights=", TypeError)
            refused(lambda: engine_of(3, weights=folder, may_be_extra="*"), "may_be_extra is a list", TypeError)

    @unittest.skipIf(transformers is None, "transformers is not installed")
    def test_folders_of_transformers_have_other_names(self) -> None:
        """Renamed, tied and computed tensors are found or passed over as from_pretrained() does; joined ones are refused."""
        from safetensors import torch as files

        small = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        neox = transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**small))  # embed_out in the file, lm_head in memory
        gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2))
        llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**small, tie_word_embeddings=True))
        mixtral = transformers.MixtralForCausalLM(transformers.MixtralConfig(**small, num_local_experts=2, num_key_value_heads=2))

        sight = transformers.CLIPVisionConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=16,
                                              patch_size=8)  # the places of its patches are a buffer that only its own init function knows
        llava = transformers.LlavaForConditionalGeneration(transformers.LlavaConfig(vision_config=sight, text_config=llama.config, image_token_id=5))

        def changed(model: nn.Module, strip: str, without: str, **more: torch.Tensor) -> dict[str, torch.Tensor]:
            kept = {name: value for name, value in model.state_dict().items() if name != without}
            return {**{name.removeprefix(strip): value.clone() for name, value in kept.items()}, **more}

        mask = {"h.0.attn.bias": torch.ones(1, 1, 8, 8), "h.0.attn.masked_bias": torch.ones(())}
        frequencies = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
        with tempfile.TemporaryDirectory() as folder:
            def read(model: nn.Module, tensors: dict[str, torch.Tensor] | None = None) -> None:
                model.save_pretrained(folder)
                if tensors is not None:
                    files.save_file(tensors, os.path.join(folder, "model.safetensors"), {"format": "pt"})
                with torch.device("meta"):
                    empty = type(model)(model.config)
                engine = engine_of(3, empty, example=torch.zeros(1, 2, dtype=torch.long), weights=folder)
                same(engine.state_dict(), model.state_dict())
                engine.destroy()

            read(neox)
            read(llava)
            read(gpt2, changed(gpt2, "transformer.", "lm_head.weight", **mask))
            read(llama, changed(llama, "", "model.embed_tokens.weight", **frequencies))
            refused(lambda: read(llama, changed(llama, "", "", **{"model.layers.0.mlp.up_proj.bias": torch.ones(16)})), "may_be_extra", InvalidError)
            refused(lambda: read(mixtral), f"MixtralForCausalLM.from_pretrained({folder!r})", InvalidError)

    def test_weights_alone_come_with_buffers_that_match_their_checksum(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            engine = engine_of(3)
            train(engine, 1)  # changes the statistics of BatchNorm
            engine.save_checkpoint(folder, "t")
            file = os.path.join(folder, "t", "rank-00000-of-00001.safetensors")
            with open(file, "r+b") as opened:
                opened.seek(-1, os.SEEK_END)  # the buffers are the last tensor
                byte = opened.read(1)
                opened.seek(-1, os.SEEK_END)
                opened.write(bytes([byte[0] ^ 1]))
            for weights_only in (True, False):
                refused(lambda: engine.load_checkpoint(folder, "t", load_module_only=weights_only), "do not match their checksum",
                        InvalidError)
            engine.destroy()

    def test_bytes_of_another_program_are_refused_on_all_ranks(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            engine = engine_of(3, example=torch.zeros(2, dtype=torch.long))
            for tag, data in (("binary", b"\xff\xfe"), ("text", b"epoch 3"), ("other", b'{"epoch": 3}'), ("number", b"3")):
                engine.core.set_blob("client_state", data)
                engine.core.save(folder, tag)
                refused(lambda: engine.load_checkpoint(folder, tag), f"{tag} has bytes under the key client_state that", InvalidError)
            engine.core.load(folder, "other")  # the weights are whole
            engine.destroy()
            ranks.run(2, folder, "others_bytes")

    def test_meta_without_values(self) -> None:
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(4, 4), Masked())
        with self.assertRaisesRegex(ValueError, "1.mask|Masked"):
            sherd.torch.initialize(model, CONFIG, example=torch.zeros(2, 4))


class Masked(nn.Module):
    """A module with a buffer that it cannot make anew: it has no reset_parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.mask


if __name__ == "__main__":
    if ranks.rank() is not None:
        for case in sys.argv[2:]:
            ON_RANKS[case](3, os.path.join(sys.argv[1], case))
    else:
        ranks.ready()
        unittest.main()

"""Tests evaluations and texts that come before any batch, and generate() of models that wrap another one."""
from __future__ import annotations

import os
import sys
import tempfile
import unittest
import warnings
from typing import Any, Callable

import ranks

os.environ.setdefault("SHERD_DEBUG", "1")
try:
    import torch
    from torch import nn
except ImportError as error:
    ranks.skip(f"torch is not here: {error}")
try:
    import transformers
    import transformers.models.gpt2.modeling_gpt2
    import transformers.models.t5.modeling_t5
except ImportError:
    transformers = None
try:
    import peft
except ImportError:
    peft = None

import sherd
import sherd.torch
from test_torch_core import batch, made
from test_torch_engine import engine_of as plain_engine_of, masters, train, trained

WIDTH, VOCAB, NEW = 16, 32, 9
IDS = torch.arange(2, 8)[None]
TEXT = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
PIXELS = torch.linspace(-1, 1, 8).view(1, 2, 4)
GREEDY = {"do_sample": False}


# ------------------------------------------------------------------ models --

def gpt2() -> nn.Module:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=32, n_embd=WIDTH, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1, pad_token_id=1,
        attn_pdrop=0, embd_pdrop=0, resid_pdrop=0))


def lora() -> nn.Module:
    chosen = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False)
    return peft.get_peft_model(gpt2(), chosen)


def t5() -> nn.Module:
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=VOCAB, d_model=WIDTH, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0, dropout_rate=0))


class Valued(nn.Module):
    """A language model with a value head, whose generate() is the language model's."""

    def __init__(self) -> None:
        super().__init__()
        self.lm, self.value = gpt2(), nn.Linear(WIDTH, 1)
        self.generate = self.lm.generate

    def forward(self, input_ids: torch.Tensor, **others: Any) -> Any:
        output = self.lm(input_ids, output_hidden_states=True, **others)
        return output.logits, self.value(output.hidden_states[-1])


class Seeing(nn.Module):
    """A language model that is a member of a model of images and text, whose own generate() takes nothing that it does not name."""

    def __init__(self) -> None:
        super().__init__()
        self.vision, self.language_model = nn.Sequential(nn.Linear(4, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)), gpt2()

    def embeds(self, pixel_values: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.vision(pixel_values), self.language_model.get_input_embeddings()(input_ids)], 1)

    def forward(self, pixel_values: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        return self.language_model(inputs_embeds=self.embeds(pixel_values, input_ids)).logits

    def generate(self, pixel_values: torch.Tensor, input_ids: torch.Tensor, max_new_tokens: int) -> torch.Tensor:
        return self.language_model.generate(inputs_embeds=self.embeds(pixel_values, input_ids), max_new_tokens=max_new_tokens, **GREEDY)


class Own(nn.Module):
    """A model with a generate() of its own, which is not transformers'. The head comes before the blocks that it is used after."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for block in reversed(self.blocks):
            x = x + block(x).tanh()
        return self.head(x)

    @torch.no_grad()
    def generate(self, prompt: torch.Tensor, count: int) -> torch.Tensor:
        for _ in range(count):
            prompt = torch.cat([prompt, self(prompt)[:, -1:].argmax(-1)], 1)
        return prompt


# Of each case: its model, the arguments of generate() other than the number of tokens, a batch of the training, and the package that it needs.
CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], dict[str, Any], Any]] = {
    "own": (Own, {"prompt": IDS}, {"ids": IDS}, torch),
    "plain": (gpt2, {**TEXT, **GREEDY}, TEXT, transformers),
    "embeds": (gpt2, {"inputs_embeds": torch.linspace(-1, 1, 6 * WIDTH).view(1, 6, WIDTH), **GREEDY}, TEXT, transformers),
    "nothing": (gpt2, {**GREEDY}, TEXT, transformers),
    "encoder_decoder": (t5, {**TEXT, **GREEDY}, {**TEXT, "decoder_input_ids": IDS}, transformers),
    "adapters": (lora, {**TEXT, **GREEDY}, TEXT, peft),
    "value_head": (Valued, {**TEXT, **GREEDY}, TEXT, transformers),
    "member": (Seeing, {"pixel_values": PIXELS, "input_ids": IDS}, {"pixel_values": PIXELS, "input_ids": IDS}, transformers),
}


def model_of(name: str) -> nn.Module:
    torch.manual_seed(3)
    return CASES[name][0]()


def engine_of(model: nn.Module, stage: int, **options: Any) -> sherd.torch.Engine:
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, "sherd": {"eval_keep_units": 1}}
    return sherd.torch.initialize(model, config, **options)


def numbers(engine: sherd.torch.Engine, given: dict[str, Any], steps: int) -> int:
    """Trains, and returns the fingerprint of the weights. Its steps compare what the ranks have acquired, in generation too."""
    engine.train()
    for _ in range(steps):
        output = engine(**given)
        outputs = output if isinstance(output, tuple) else (getattr(output, "logits", output),)
        engine.backward(sum(one.float().square().mean() for one in outputs))
        engine.step()
    return engine.fingerprint()


def count_of(name: str, count: int) -> dict[str, int]:
    return {"count" if name == "own" else "max_new_tokens": count}


# -------------------------------------------------------------------- cases --

def generation_comes_first(name: str, stage: int, by: str = "engine") -> None:
    """Texts of different lengths, by engine or module, are the plain model's. The order is that of training, and so are the numbers."""
    _, asked, given, package = CASES[name]
    if package is None:
        return
    want = model_of(name).eval().generate(**asked, **count_of(name, NEW))
    whole = engine_of(model_of(name), stage, example=given)
    engine = engine_of(model_of(name), stage)
    short = NEW if name == "own" else NEW - 3 * engine.rank
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="sherd")
        if by == "module":  # inside of one evaluation, as the engine's own is then too
            engine.eval()
            with engine.evaluating():
                got = engine.module.generate(**asked, **count_of(name, short))
                assert engine.core.is_evaluating
                engine.generate(**asked, **count_of(name, 1))
        else:
            got = engine.generate(**asked, **count_of(name, short))
    assert torch.equal(got, want[:, :got.shape[1]]) and want.shape[1] - got.shape[1] == NEW - short, (name, got, want)
    assert (engine.order.forward, engine.order.backward) == (whole.order.forward, whole.order.backward), (name, engine.order, whole.order)
    assert numbers(engine, given, 2) == numbers(whole, given, 2), name
    engine.destroy()
    whole.destroy()


# -------------------------------------------------------------------- tests --

class Generation(unittest.TestCase):
    def test_generation_comes_first(self) -> None:
        for name in CASES:
            with self.subTest(name):
                generation_comes_first(name, 3)
        for stage in (0, 2):
            generation_comes_first("plain", stage, "module")

    def test_generation_comes_first_on_two_and_three_ranks(self) -> None:
        ranks.run(2, *(f"{name} 3 engine" for name in CASES), "plain 3 module", "value_head 3 module", "adapters 2 module", "adapters 0 engine")
        ranks.run(3, "own 3 engine", "value_head 3 engine")

    def test_text_of_a_model_that_cannot_be_traced(self) -> None:
        class Untraced(Own):
            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                assert ids.sum().item() > 0
                return super().forward(ids)

        torch.manual_seed(3)
        engine = engine_of(Untraced(), 3)
        with self.assertWarnsRegex(UserWarning, "that of registration .*DataDependent"):
            got = engine.generate(IDS, NEW)
        self.assertTrue(torch.equal(got, model_of("own").eval().generate(IDS, NEW)))
        numbers(engine, {"ids": IDS}, 2)
        engine.destroy()

    def test_modes_of_modules_stay(self) -> None:
        engine = engine_of(Own(), 3)
        engine.module.blocks[1].eval()
        engine.generate(IDS, 2)
        self.assertEqual([block.training for block in engine.module.blocks], [True, False, True])
        engine.destroy()


class Evaluations(unittest.TestCase):
    def test_evaluation_comes_first(self) -> None:
        """The first forward inside is traced, of the engine and of the module. What is trained afterwards is what it would be."""
        wanted, order = trained(2), plain_engine_of(3, options={"example": batch(0)}).order
        for stage in (2, 3):
            for call in (lambda engine: engine(batch(0)), lambda engine: engine.module(batch(0)), lambda engine: engine.module(ids=batch(0))):
                engine, model = plain_engine_of(stage), made("plain")
                engine.eval()
                with engine.evaluating():
                    self.assertFalse(engine.is_sealed)
                    for _ in range(2):
                        self.assertEqual(call(engine), model(batch(0)))
                        self.assertTrue(engine.core.is_evaluating)
                    with self.assertRaisesRegex(sherd.StateError, "sherd_eval_begin"), engine.evaluating():
                        pass
                self.assertFalse(engine.core.is_evaluating)
                self.assertEqual(engine.order, order)
                engine.train()
                train(engine, 2)
                for name, value in masters(engine).items():
                    torch.testing.assert_close(value, wanted[name], rtol=1e-4, atol=1e-4)
                engine.destroy()

    def test_evaluation_of_a_part_comes_first(self) -> None:
        """It is right, and the order is that of registration, since a part does not show how the whole is used."""
        engine = plain_engine_of(3)
        with self.assertWarnsRegex(UserWarning, "that of registration"), engine.evaluating():
            got = engine.module.norm(torch.ones(2, 16))
        self.assertTrue(torch.isfinite(got).all())
        train(engine, 1)
        engine.destroy()

    def test_evaluation_without_a_forward(self) -> None:
        engine = plain_engine_of(3)
        for _ in range(2):
            with engine.evaluating():
                with self.assertRaisesRegex(sherd.StateError, "open already"), engine.evaluating():
                    pass
        self.assertFalse(engine.is_sealed)
        train(engine, 1)
        self.assertTrue(engine.order.is_traced)
        engine.destroy()
        with self.assertRaisesRegex(sherd.StateError, "destroyed"), engine.evaluating():
            engine.module(batch(0))

    def test_a_load_comes_with_the_first_evaluation(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            saved = plain_engine_of(3)
            train(saved, 1)
            saved.save_checkpoint(folder)
            engine = plain_engine_of(3)
            engine.load_checkpoint(folder)
            with engine.evaluating(), torch.no_grad():
                self.assertEqual(engine.module(batch(0)), saved(batch(0)))
            self.assertTrue(engine.order.is_traced)
            for one in (saved, engine):
                train(one, 1, first=1)
            self.assertEqual(engine.fingerprint(), saved.fingerprint())
            for one in (saved, engine):
                one.destroy()

    def test_more_units_than_planned_are_told_by_the_first_forward(self) -> None:
        engine = plain_engine_of(3)
        with self.assertRaisesRegex(sherd.InvalidError, "eval_keep_units"), engine.evaluating(3):
            engine(batch(0))
        train(engine, 1)
        engine.destroy()


if __name__ == "__main__":
    if ranks.rank() is not None:
        for one in sys.argv[1:]:
            name, stage, by = one.split()
            generation_comes_first(name, int(stage), by)
    else:
        ranks.ready()
        unittest.main()

"""Tests generate() of models that wrap another one, and of those that have one of their own."""
from __future__ import annotations

import os
import sys
import unittest
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

import sherd.torch

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


# Of each case: its model, what generate() is given beside the number of tokens, a batch of the training, and the package that it needs.
CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], dict[str, Any], Any]] = {
    "own": (Own, {"prompt": IDS}, {"ids": IDS}, torch),
    "plain": (gpt2, {**TEXT, **GREEDY}, TEXT, transformers),
    "embeds": (gpt2, {"inputs_embeds": torch.linspace(-1, 1, 6 * WIDTH).view(1, 6, WIDTH), **GREEDY}, TEXT, transformers),
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

def text_is_generated(name: str, stage: int) -> None:
    """Texts of different lengths are the plain model's, and the ranks train afterwards."""
    _, asked, given, package = CASES[name]
    if package is None:
        return
    want = model_of(name).eval().generate(**asked, **count_of(name, NEW))
    engine = engine_of(model_of(name), stage, example=given)
    short = NEW if name == "own" else NEW - 3 * engine.rank
    got = engine.generate(**asked, **count_of(name, short))
    assert torch.equal(got, want[:, :got.shape[1]]) and want.shape[1] - got.shape[1] == NEW - short, (name, got, want)
    numbers(engine, given, 1)
    engine.destroy()


# -------------------------------------------------------------------- tests --

class Generation(unittest.TestCase):
    def test_text_is_generated(self) -> None:
        for name in CASES:
            with self.subTest(name):
                text_is_generated(name, 3)

    def test_text_is_generated_on_two_and_three_ranks(self) -> None:
        ranks.run(2, *(f"{name} 3" for name in CASES), "adapters 2", "adapters 0")
        ranks.run(3, "own 3", "value_head 3")

    def test_modes_of_modules_stay(self) -> None:
        engine = engine_of(Own(), 3, example=IDS)
        engine.module.blocks[1].eval()
        engine.generate(IDS, 2)
        self.assertEqual([block.training for block in engine.module.blocks], [True, False, True])
        engine.destroy()


if __name__ == "__main__":
    if ranks.rank() is not None:
        for one in sys.argv[1:]:
            name, stage = one.split()
            text_is_generated(name, int(stage))
    else:
        ranks.ready()
        unittest.main()

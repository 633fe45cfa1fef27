"""What stands in for downloads where scripts of others run: small data, small random models, and metrics, made here."""
from __future__ import annotations

import os
import random
from typing import Any, Callable

import foreign

WORDS = [f"w{number}" for number in range(60)]
STD = 0.2  # of weights; wide, so that an update too few shows in the losses


def sentences(rng: random.Random, many: int) -> list[str]:
    return [" ".join(rng.choices(WORDS, k=rng.randint(3, 9))) for _ in range(many)]


def pairs(rng: random.Random, many: int) -> dict[str, list[Any]]:
    """Rows of glue's mrpc."""
    first = sentences(rng, many)
    return {"sentence1": first, "sentence2": sentences(rng, many), "label": [len(one.split()) % 2 for one in first], "idx": list(range(many))}


def texts(rng: random.Random, many: int) -> dict[str, list[Any]]:
    """Rows of wikitext."""
    return {"text": [" ".join(sentences(rng, 3)) for _ in range(many)]}


def translations(rng: random.Random, many: int) -> dict[str, list[Any]]:
    """Rows of wmt16."""
    return {"translation": [{"en": one, "ro": " ".join(reversed(one.split()))} for one in sentences(rng, many)]}


def preferences(rng: random.Random, many: int) -> dict[str, list[Any]]:
    """Rows for DPO."""
    return {"prompt": sentences(rng, many), "chosen": [f" {one}" for one in sentences(rng, many)],
            "rejected": [f" {one}" for one in sentences(rng, many)]}


# By the names that scripts give: how rows are made, and how many each split has.
DATASETS: dict[str, tuple[Callable[[random.Random, int], dict[str, list[Any]]], dict[str, int]]] = {
    "wmt16": (translations, {"train": 160, "validation": 10, "test": 10}),
    "preferences": (preferences, {"train": 160, "test": 10}),
    "nyu-mll/glue": (pairs, {"train": 392, "validation": 50, "test": 50}),  # an odd number of batches, the last one short
    "Salesforce/wikitext": (texts, {"train": 520, "validation": 8, "test": 8}),
}


def load_dataset(name: str, /, *_args: Any, split: str | None = None, **_kwargs: Any) -> Any:
    """Stands in for datasets.load_dataset."""
    import datasets
    make, sizes = DATASETS[name]
    sizes = sizes | {"train": int(os.environ.get("FOREIGN_ROWS", sizes["train"]))}
    made = {which: datasets.Dataset.from_dict(make(random.Random(which), many)) for which, many in sizes.items()}
    return datasets.DatasetDict(made) if split is None else made[split]


def tokenizer(*_args: Any, **_kwargs: Any) -> Any:
    """Stands in for from_pretrained of tokenizers: one token a word."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast
    named = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(named + WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)])
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
                                   eos_token="[SEP]", bos_token="[CLS]", model_max_length=64)


def model_config(kind: str) -> Any:
    """The configuration of a small model for an Auto class of this name."""
    import transformers
    words = len(WORDS) + 4
    if kind == "AutoModelForCausalLM":
        return transformers.LlamaConfig(vocab_size=words, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=2, eos_token_id=3,
                                        initializer_range=STD / 4)
    return transformers.BertConfig(vocab_size=words, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                   max_position_embeddings=64, pad_token_id=0, initializer_range=STD)


class Metric:
    """Stands in for what evaluate.load gives: the accuracy of classes, over the samples of all add_batch()."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self.hits: list[float] = []

    def add_batch(self, *, predictions: Any, references: Any) -> None:
        self.hits += [float(int(one) == int(two)) for one, two in zip(predictions, references)]

    def compute(self, *, predictions: Any = (), references: Any = (), **_kwargs: Any) -> dict[str, float]:
        if len(predictions) and isinstance(predictions[0], str):  # texts, such as translations, each with a list of references
            words = [(one.split(), two[0].split()) for one, two in zip(predictions, references)]
            predictions = [sum(a == b for a, b in zip(*pair)) for pair in words]
            foreign.report("words", sum(predictions))
            return {"score": float(sum(predictions))}
        self.add_batch(predictions=predictions, references=references)
        accuracy = sum(self.hits) / max(1, len(self.hits))
        foreign.report("samples", len(self.hits))
        foreign.report("accuracy", accuracy)
        self.hits = []
        return {"accuracy": accuracy, "f1": accuracy}


def hub() -> None:
    """Replaces what downloads from the Hub. A path of this machine is loaded as it is."""
    import datasets
    import evaluate
    import torch
    import transformers
    datasets.load_dataset = load_dataset
    evaluate.load = Metric
    transformers.utils.check_min_version = lambda _version: None

    def local(kind: Any, made: Callable[..., Any]) -> None:
        plain = kind.from_pretrained

        def from_pretrained(name: str, *args: Any, **kwargs: Any) -> Any:
            return plain(name, *args, **kwargs) if os.path.isdir(name) else made(name, *args, **kwargs)

        kind.from_pretrained = from_pretrained

    def model_of(kind: Any) -> Callable[..., Any]:
        def made(_name: str, *_args: Any, **kwargs: Any) -> Any:
            config = kwargs.get("config") or model_config(kind.__name__)
            with torch.random.fork_rng():
                torch.manual_seed(5)
                return kind.from_config(config)
        return made

    local(transformers.AutoTokenizer, tokenizer)
    local(transformers.AutoConfig, lambda *_args, **_kwargs: model_config("AutoModelForCausalLM"))
    for name in ("AutoModelForSequenceClassification", "AutoModelForCausalLM"):
        local(getattr(transformers, name), model_of(getattr(transformers, name)))


def folders() -> None:
    """Replaces what downloads, but for models and tokenizers: the folders decoder, classifier and translator have small ones."""
    import torch
    import transformers
    if not os.path.isdir("decoder") and os.environ.get("RANK", "0") == "0":
        words = len(WORDS) + 4
        t5 = transformers.T5Config(vocab_size=words, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, pad_token_id=0, eos_token_id=3,
                                   decoder_start_token_id=0, dropout_rate=0.1)
        for name, kind, config in (("classifier", transformers.BertForSequenceClassification, model_config("")),
                                   ("translator", transformers.T5ForConditionalGeneration, t5),
                                   ("decoder", transformers.LlamaForCausalLM, model_config("AutoModelForCausalLM"))):
            torch.manual_seed(5)
            kind(config).save_pretrained(name)
            tokenizer().save_pretrained(name)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    hub()


def images() -> None:
    """Writes small images of three kinds to the folder images, and stands in for timm, whose models come with weights."""
    import types
    import sys
    import torch
    if not os.path.isdir("images") and os.environ.get("RANK", "0") == "0":
        import numpy
        from PIL import Image
        os.makedirs("images.part")
        rng = numpy.random.default_rng(1)
        for number in range(800):
            kind = number % 3
            pixels = rng.integers(0, 120, (16, 16, 3), dtype=numpy.uint8)
            pixels[..., kind] += 100
            Image.fromarray(pixels).save(f"images.part/kind{kind}_{number}.jpg")
        os.rename("images.part", "images")
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    made = types.ModuleType("timm")
    made.create_model = vision_model  # type: ignore[attr-defined]
    sys.modules["timm"] = made


def vision_model(_name: str, pretrained: bool, num_classes: int) -> Any:
    """Stands in for timm.create_model: a small network with BatchNorm and a classifier."""
    import torch
    from torch import nn

    class Vision(nn.Module):
        default_cfg = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}

        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 8, 16, 16), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
            self.fc = nn.Linear(32, num_classes)

        def get_classifier(self) -> nn.Module:
            return self.fc

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.fc(self.body(images))

    with torch.random.fork_rng():
        torch.manual_seed(5)
        return Vision()

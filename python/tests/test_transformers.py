"""Tests sherd.transformers: the Trainer trains by an engine as it does by itself, one feature at a time."""
from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest
import warnings
from typing import Any, Callable
from unittest import mock

import ranks

try:
    import accelerate
    import torch
    import transformers
    transformers.Trainer, transformers.LlamaForCausalLM, transformers.T5ForConditionalGeneration
except ImportError as error:
    ranks.skip(f"torch, transformers or accelerate is not here: {error}")

import sherd
import sherd.transformers
from safetensors.torch import load_file
from torch import nn

BEFORE = os.path.join(sys.prefix, "transformers-before")  # .ci/run installs it there
TIMES = ("runtime", "per_second", "preparation_time", "total_flos")  # parts of the names in a log that differ from run to run
WORDS = 24


# -------------------------------------------------------------------- cases --

def rows(many: int, seed: int = 3) -> list[dict[str, Any]]:
    """Texts of 4 to 9 words, whose labels leave some words out."""
    rng = random.Random(seed)
    made = []
    for _ in range(many):
        ids = [rng.randrange(3, WORDS) for _ in range(rng.randint(4, 9))]
        made.append({"input_ids": ids, "labels": [-100 if rng.random() < 0.3 else (7 * one) % WORDS for one in ids]})
    return made


def collate(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    longest = max(len(one["input_ids"]) for one in batch)
    def padded(name: str, value: int) -> torch.Tensor:
        return torch.tensor([one[name] + [value] * (longest - len(one[name])) for one in batch])
    ids = padded("input_ids", 0)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": padded("labels", -100)}


def llama(dropout: float = 0.1, **more: Any) -> nn.Module:
    torch.manual_seed(7)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=32, initializer_range=0.3, pad_token_id=0, bos_token_id=1, eos_token_id=2, attention_dropout=dropout, **more))


def config(stage: int, **more: Any) -> dict[str, Any]:
    return {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto", "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": "auto"}, **more}


def trainer(door: Any, folder: str, stage: int | None, kind: str = "Trainer", model: Callable[[], nn.Module] = llama, many: int = 18,
            options: dict[str, Any] | None = None, **arguments: Any) -> Any:
    """Makes a Trainer of this door."""
    arguments = {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 3, "gradient_accumulation_steps": 2, "num_train_epochs": 1,
                 "learning_rate": 1e-3, "logging_steps": 1, "report_to": [], "disable_tqdm": True, "use_cpu": True, "save_strategy": "no",
                 "weight_decay": 0.1, **arguments}
    args = getattr(door, kind.replace("Trainer", "TrainingArguments"))(folder, **arguments)
    given = {} if stage is None else {"sherd": config(stage)}
    given = {"model": model(), "args": args, "train_dataset": rows(many), "eval_dataset": rows(7, 4), "data_collator": collate, **given}
    made = getattr(door, kind)(**{**given, **(options or {})})
    made.remove_callback(transformers.PrinterCallback)
    return made


def t5() -> nn.Module:
    torch.manual_seed(7)
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=WORDS, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0))


def lora(model: nn.Module | None = None, **more: Any) -> nn.Module:
    import peft
    model = model or llama()
    torch.manual_seed(8)
    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, **more))


def accuracy(found: Any) -> dict[str, float]:
    """What compute_metrics is given, as numbers."""
    logits = found.predictions[0] if isinstance(found.predictions, tuple) else found.predictions
    is_logits = logits.ndim == found.label_ids.ndim + 1
    hits = (logits.argmax(-1) if is_logits else logits[:, :found.label_ids.shape[1]]) == found.label_ids[:, :logits.shape[1]]
    return {"accuracy": float(hits.mean()), "samples": float(len(logits)), "sum": float(abs(logits[found.label_ids != -100]).mean())
            if is_logits else float(logits.sum())}


def by_sum(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), reduction="sum") / num_items_in_batch


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self) -> Any:
        return iter(rows(200))


class Mine(transformers.TrainerCallback):
    """Stops an epoch early, evaluates and saves when it likes."""

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> Any:
        control.should_epoch_stop = state.global_step == 2
        control.should_evaluate = control.should_save = state.global_step in (1, 4)
        assert isinstance(given["model"], transformers.LlamaForCausalLM) and given["optimizer"].param_groups
        return control


def tied() -> nn.Module:
    return llama(tie_word_embeddings=True)


def narrow() -> nn.Module:
    """A model that has no memory for more than two samples, and fails in its second forward."""
    model, calls = llama(), []

    def check(_module: nn.Module, _args: Any, given: dict[str, Any]) -> None:
        if type(given["input_ids"]) is torch.Tensor:  # an engine's trace is not counted
            calls.append(len(given["input_ids"]))
        if model.training and calls and calls[-1] > 2 and len(calls) > 1:
            raise RuntimeError("CUDA out of memory.")

    model.register_forward_pre_hook(check, with_kwargs=True)
    return model


def of_groups(door: Any, folder: str, stage: int | None, **arguments: Any) -> Any:
    """A Trainer with an optimizer and a schedule of the script."""
    model = llama()
    optimizer = torch.optim.SGD([{"params": model.model.parameters(), "lr": 0.02}, {"params": model.lm_head.parameters()}], lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    return trainer(door, folder, stage, model=lambda: model, options={"optimizers": (optimizer, schedule)}, **arguments)


def layered() -> nn.Module:
    return lora(modules_to_save=["lm_head"])


def prompted() -> nn.Module:
    import peft
    model = llama()
    torch.manual_seed(8)
    return peft.get_peft_model(model, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))


def second(door: Any, folder: str, stage: int | None, **given: Any) -> Any:
    """A Trainer of the model that another one has trained."""
    earlier = trainer(door, os.path.join(folder, "earlier"), stage, **given)
    earlier.train()
    return trainer(door, folder, stage, **{**given, "model": lambda: earlier.model, "seed": 5})


def adapting(door: Any, folder: str, stage: int | None, **given: Any) -> Any:
    """A Trainer of adapters on a model that another one has trained, which is gone."""
    earlier = trainer(door, os.path.join(folder, "earlier"), stage, **given)
    earlier.train()
    model = lora(earlier.model)
    del earlier
    return trainer(door, folder, stage, **{**given, "model": lambda: model})


def evaluating(door: Any, folder: str, stage: int | None, **given: Any) -> Any:
    """A Trainer that evaluates and saves what another one has trained."""
    earlier = trainer(door, os.path.join(folder, "earlier"), stage, **given)
    earlier.train()
    made = trainer(door, folder, stage, **{**given, "model": lambda: earlier.model})
    made.evaluate()
    made.train = lambda: None
    made.earlier = earlier
    return made


EVALUATED = {"eval_strategy": "steps", "eval_steps": 3}
SAVED = {"max_steps": 5, "save_strategy": "steps", "save_steps": 2, "save_total_limit": 2}
CASES: dict[str, dict[str, Any]] = {
    "a cosine with warm-up": {"warmup_steps": 3, "lr_scheduler_type": "cosine"},
    "no clipping, no accumulation": {"max_grad_norm": 0.0, "lr_scheduler_type": "constant", "gradient_accumulation_steps": 1, "max_steps": 7},
    "label smoothing": {"label_smoothing_factor": 0.2},
    "weights of tokens by rank": {"average_tokens_across_devices": False},
    "a loss function": {"options": {"compute_loss_func": by_sum}},
    "ragged epochs": {"many": 19, "gradient_accumulation_steps": 3, "num_train_epochs": 2},
    "dropped last batches": {"many": 19, "dataloader_drop_last": True, "model": tied},
    "sampling by length": {"train_sampling_strategy": "group_by_length", "num_train_epochs": 2},
    "batches of equal work": {"train_sampling_strategy": "batch_rebalance"},
    "an endless dataset": {"dataset": Endless, "max_steps": 6, "accelerator_config": {"dispatch_batches": False}},
    "evaluation": {**EVALUATED, "eval_on_start": True, "options": {"compute_metrics": accuracy}},
    "evaluation in parts": {**EVALUATED, "eval_accumulation_steps": 1, "include_for_metrics": ["inputs", "loss"],
                            "options": {"compute_metrics": accuracy}},
    "a schedule by the metric": {**EVALUATED, "lr_scheduler_type": "reduce_lr_on_plateau", "metric_for_best_model": "loss",
                                 "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5}},
    "callbacks": {"options": {"callbacks": [Mine()]}},
    "early stopping": {**EVALUATED, "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "load_best_model_at_end": True,
                       "save_total_limit": 2, "metric_for_best_model": "samples",
                       "options": {"compute_metrics": accuracy, "callbacks": [transformers.EarlyStoppingCallback(2)]}},
    "checkpointing of activations": {"gradient_checkpointing": True},
    "its reentrant form": {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}, "max_steps": 4},
    "torch_compile": {"torch_compile": True, "torch_compile_backend": "eager", "max_steps": 3, "gradient_accumulation_steps": 1},
    "noise in the embedding": {"neftune_noise_alpha": 5.0},
    "Adagrad, loss at the end of epochs": {"optim": "adagrad", "logging_strategy": "epoch"},
    "an optimizer of the script": {"make": of_groups},
    "LoRA": {"model": lora, **EVALUATED, "save_strategy": "steps", "save_steps": 3, "load_best_model_at_end": True, "learning_rate": 5e-3},
    "generation": {"kind": "Seq2SeqTrainer", "model": t5, **EVALUATED, "predict_with_generate": True, "generation_max_length": 8,
                   "generation_num_beams": 2, "learning_rate": 0.02, "max_steps": 3, "options": {"compute_metrics": accuracy}},
    "another dataset by name": {**EVALUATED, "evaluated": {"one": rows(7, 4), "two": rows(5, 5)}},
    "trained twice": {"max_steps": 3, "twice": True},
    "resumed in an epoch": {**SAVED, "save_total_limit": None, "resumed": True},
    "LoRA resumed, weights of the best": {**SAVED, **EVALUATED, "save_total_limit": None, "model": lora, "resumed": True, "eval_steps": 2,
                                          "load_best_model_at_end": True},
    "the best of weights alone": {**SAVED, **EVALUATED, "eval_steps": 2, "load_best_model_at_end": True, "save_only_model": True,
                                  "learning_rate": 0.05},
    "a batch size that is found": {"model": narrow, "auto_find_batch_size": True, "per_device_train_batch_size": 4, "max_steps": 4},
    "LoRA with a layer that trains whole": {"model": layered, **SAVED, **EVALUATED, "eval_steps": 2, "save_total_limit": None, "resumed": True,
                                            "load_best_model_at_end": True},
    "a second Trainer of the model": {"make": second, "max_steps": 3},
    "a model made by the Trainer": {"max_steps": 3, "twice": True, "options": {"model": None, "model_init": lambda: llama()}},
    "adapters on a model that a Trainer has trained": {"make": adapting, "max_steps": 2},
    "a second Trainer evaluates": {"make": evaluating, "max_steps": 2},
    "a cosine down to a least rate": {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-4}, "max_steps": 3},
    "prompts that are tuned": {"model": prompted, "max_steps": 3, "save_strategy": "steps", "save_steps": 1},
}
LONG = ("torch_compile", "its reentrant form", "an endless dataset", "another dataset by name", "Adagrad, loss at the end of epochs",
        "evaluation in parts", "noise in the embedding", "trained twice", "batches of equal work", "dropped last batches", "callbacks",
        "the best of weights alone", "a loss function", "label smoothing")  # with SHERD_TEST_LONG alone


def numbers(history: list[dict[str, Any]]) -> list[dict[str, float]]:
    """The numbers of a Trainer's log that are not times."""
    return [{name: value for name, value in one.items() if not any(part in name for part in TIMES)} for one in history]


def played(door: Any, stage: int | None, make: Callable[..., Any] = trainer, twice: bool = False, resumed: bool = False, dataset: Any = None,
           evaluated: Any = None, **given: Any) -> dict[str, Any]:
    """Trains a case, and returns its numbers: the log, an evaluation after it, and the weights that save_model() has written."""
    with tempfile.TemporaryDirectory() as own:
        box = [own]
        if torch.distributed.is_initialized():
            torch.distributed.broadcast_object_list(box)
        made = make(door, box[0], stage, **given)
        if dataset is not None:
            made.train_dataset = dataset()
        if evaluated is not None:
            made.eval_dataset = evaluated
        for _ in range(1 + twice):
            made.train()
        if resumed:
            made = make(door, box[0], stage, **given)
            made.train(resume_from_checkpoint=os.path.join(box[0], "checkpoint-2"))
        found: dict[str, Any] = {"log": numbers(made.state.log_history), "evaluated": numbers([made.evaluate()])}
        found["predicted"] = torch.as_tensor(made.predict(rows(6, 5)).metrics["test_loss"])
        made.save_model()
        made.accelerator.wait_for_everyone()
        found["files"] = sorted(os.listdir(box[0]))
        found["weights"] = load_file(os.path.join(box[0], next(one for one in found["files"] if one.endswith(".safetensors"))))
        made.accelerator.wait_for_everyone()
    return found


def difference(ours: Any, plain: Any, path: str = "") -> float:
    """The largest difference of numbers in what two runs have reported: relative above 1, absolute below. AssertionError: they have other keys."""
    if isinstance(plain, dict):
        assert set(ours) == set(plain), (path, sorted(ours), sorted(plain))
        return max([difference(ours[name], value, f"{path}/{name}") for name, value in plain.items()], default=0.0)
    if isinstance(plain, list):
        assert len(ours) == len(plain), (path, ours, plain)
        return max([difference(*both, f"{path}/{at}") for at, both in enumerate(zip(ours, plain))], default=0.0)
    if isinstance(plain, str):
        assert ours == plain, (path, ours, plain)
        return 0.0
    one, two = torch.as_tensor(ours, dtype=torch.float64), torch.as_tensor(plain, dtype=torch.float64)
    found = ((one - two).abs() / two.abs().clamp(min=1)).max().item()
    assert found <= 1e-5, f"{path}: {ours} in place of {plain}"
    return found


def as_plain(*names: str) -> None:
    """The cases, on however many ranks there are: at stages 2 and 3 in turn, or at those of the variable STAGES."""
    print(f"transformers {transformers.__version__}:", flush=True)
    for at, name in enumerate(names):
        plain = played(transformers, None, **CASES[name])
        for stage in map(int, os.environ["STAGES"].split()) if "STAGES" in os.environ else [2 + at % 2]:
            ours = played(sherd.transformers, stage, **CASES[name])
            print(f"{name}, stage {stage}: {difference(ours, plain):.1e}", flush=True)



# ---------------------------------------------------------------- resuming --

def saved(folder: str) -> None:
    """Trains and saves, on however many ranks there are, of one batch of 4 all together."""
    made = trainer(sherd.transformers, folder, 3, model=lambda: llama(0.0), many=20, gradient_accumulation_steps=1, warmup_steps=4,
                   **SAVED)
    made.train()
    if made.is_world_process_zero():
        assert sorted(os.listdir(folder)) == ["checkpoint-4", "checkpoint-5"], os.listdir(folder)
        with open(os.path.join(folder, "log.json"), "w", encoding="utf-8") as file:
            json.dump(numbers(made.state.log_history), file)


def resumed(folder: str) -> None:
    """Goes on from there on one rank, with a new engine and with one that has trained further, and compares with transformers itself."""
    with open(os.path.join(folder, "log.json"), encoding="utf-8") as file:
        wanted = json.load(file)
    options = {"model": lambda: llama(0.0), "many": 20, "gradient_accumulation_steps": 1, "warmup_steps": 4, "per_device_train_batch_size": 4, **SAVED,
               "save_strategy": "no"}
    plain = trainer(transformers, folder, None, **options)
    plain.train()
    difference(wanted, numbers(plain.state.log_history))
    made = trainer(sherd.transformers, folder, 2, **options)
    for _ in range(2):
        made.train(resume_from_checkpoint=os.path.join(folder, "checkpoint-4"))
        difference(numbers(made.state.log_history)[-2:-1], wanted[-2:-1])
        assert made.accelerator.engine(made.model).global_steps == 5
        for name, value in plain.model.state_dict().items():
            difference(made.accelerator.get_state_dict(made.model)[name], value, name)


def processes(many: int, *arguments: str, **environment: str) -> None:
    """Runs a function of this file on so many ranks. Several have a process group of torch's, and a world of sherd's."""
    with tempfile.TemporaryDirectory() as folder:
        own = [{"AS_A_RANK": "1", "SHERD_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **environment} for _ in range(many)]
        for rank, one in enumerate(own if many > 1 else []):
            one |= {"RANK": str(rank), "WORLD_SIZE": str(many), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(many), "SHERD_RANK": str(rank),
                    "SHERD_WORLD_SIZE": str(many), "SHERD_RENDEZVOUS": f"unix://{folder}/sherd", "MEETING": f"file://{folder}/torch"}
        ended = ranks.start(sys.argv[0], arguments, own)
    print(ended[0][1], end="")
    assert not any(status for status, _ in ended), "\n".join(text for status, text in ended if status)


def meet() -> None:
    """Makes the process group of a rank that processes() has started."""
    if "MEETING" in os.environ:
        torch.distributed.init_process_group("gloo", init_method=os.environ["MEETING"], rank=int(os.environ["RANK"]),
                                             world_size=int(os.environ["WORLD_SIZE"]))


class Tests(unittest.TestCase):
    def test_the_trainer_trains_as_by_itself(self) -> None:
        """Each case on one rank or on two, at stage 2 or 3; with SHERD_TEST_LONG on both, at both."""
        names = list(CASES)
        if os.environ.get("SHERD_TEST_LONG"):
            for many in (1, 2):
                processes(many, "as_plain", *names, STAGES="2 3")
        else:
            names = [name for name in names if name not in LONG]
            processes(1, "as_plain", *names[::2])
            processes(2, "as_plain", *names[1::2])

    @unittest.skipUnless(os.path.isdir(BEFORE), f"{BEFORE} has no release of transformers before this one")
    def test_the_release_before(self) -> None:
        """The overrides are private names of transformers, so cases that use most of them run under its release before this one, too."""
        path = os.pathsep.join(filter(None, [BEFORE, os.environ.get("PYTHONPATH")]))
        ended = subprocess.run([sys.executable, sys.argv[0], "as_plain", "LoRA resumed, weights of the best", "resumed in an epoch"],
                               env={**os.environ, "PYTHONPATH": path, "AS_A_RANK": "1", "SHERD_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(ended.returncode, 0, ended.stdout)
        self.assertNotIn(f"transformers {transformers.__version__}:", ended.stdout)

    def test_saved_on_two_ranks_and_resumed_on_one(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            processes(2, "saved", folder)
            processes(1, "resumed", folder)

    def made(self, configuration: Any = None, **arguments: Any) -> Any:
        return trainer(sherd.transformers, self.folder, None, model=lambda: llama(0.0), max_steps=2, options={"sherd": configuration}, **arguments)

    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name

    def test_where_the_configuration_comes_from(self) -> None:
        path = os.path.join(self.folder, "ds_config.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config(1), file)
        variables = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_CONFIG_FILE": path, "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}
        for given, argument, own, stage in ((None, None, {}, 2), (path, None, {}, 1), (config(3), path, {}, 3), (None, path, {}, 1),
                                            (None, config(3), {}, 3), (None, json.dumps(config(0)), {}, 0), (None, None, variables, 1)):
            with self.subTest(given=given, argument=argument), mock.patch.dict(os.environ, own):
                made = self.made(given, deepspeed=argument, max_grad_norm=0.7)
                made.train()
                engine = made.accelerator.engine(made.model)
                self.assertEqual(engine.zero_optimization_stage(), stage)
                self.assertEqual((engine.train_batch_size(), engine.gradient_accumulation_steps()), (4, 2))
                self.assertEqual(made.args.deepspeed, argument)
                self.assertFalse(made.is_deepspeed_enabled)
                self.assertFalse(transformers.integrations.is_deepspeed_zero3_enabled())

    def test_arguments_that_transformers_has_made_with_deepspeed_lose_it(self) -> None:
        """The package deepspeed is not needed here: what transformers' own arguments have with it is put there by hand."""
        args = transformers.TrainingArguments(self.folder, use_cpu=True, report_to=[])
        args.deepspeed, args.deepspeed_plugin = config(3), object()
        args.distributed_state.distributed_type = accelerate.DistributedType.DEEPSPEED
        model = llama()
        made = sherd.transformers.Trainer(model, args, train_dataset=rows(4))
        self.assertEqual(made.accelerator.distributed_type, accelerate.DistributedType.NO)
        self.assertEqual((made.args.deepspeed, made.args.deepspeed_plugin, made.is_deepspeed_enabled), (config(3), None, False))
        model.lm_head.weight.ds_id = 0
        with self.assertRaisesRegex(sherd.InvalidError, "made under deepspeed.zero.Init"):
            sherd.transformers.Trainer(model, args, train_dataset=rows(4))

    def test_auto_is_filled_from_the_arguments_as_transformers_does(self) -> None:
        args = sherd.transformers.TrainingArguments(self.folder, per_device_train_batch_size=2, gradient_accumulation_steps=3, bf16=True,
                                                    learning_rate=0.5, warmup_steps=7, use_cpu=True)
        scheduler = {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto",
                                                         "total_num_steps": "auto"}}
        given = config(3, scheduler=scheduler)
        given["zero_optimization"].update(stage3_prefetch_bucket_size="auto", stage3_param_persistence_threshold="auto")
        found = sherd.transformers.filled(given, args, 2, llama(), 90)
        self.assertEqual(found, {
            "train_batch_size": 6, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3, "gradient_clipping": 1.0,
            "bf16": {"enabled": True}, "fp16": {"enabled": False},
            "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.5, "warmup_num_steps": 7, "total_num_steps": 90}},
            "zero_optimization": {"stage": 3, "reduce_bucket_size": 256, "stage3_prefetch_bucket_size": 230,
                                  "stage3_param_persistence_threshold": 160}})
        self.assertEqual(given["train_batch_size"], "auto")
        with self.assertRaisesRegex(sherd.InvalidError, "gradient_clipping is 2, and max_grad_norm is 1.0; scheduler.params.warmup_num_steps is 5"):
            sherd.transformers.filled({"gradient_clipping": 2, "scheduler": {"params": {"warmup_num_steps": 5}}}, args, 2, llama(), 90)

    def test_the_scheduler_of_the_configuration_takes_the_place_of_the_arguments(self) -> None:
        params = {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto", "warmup_type": "linear"}
        made = trainer(sherd.transformers, self.folder, None, warmup_steps=4, save_strategy="steps", save_steps=5, num_train_epochs=2,
                       options={"sherd": config(2, scheduler={"type": "WarmupDecayLR", "params": params})})
        made.train()
        rates = [one["learning_rate"] for one in made.state.log_history if "loss" in one]
        torch.testing.assert_close(rates, [0.0, 0.0, 2.5e-4, 5e-4, 7.5e-4, 1e-3, 5e-3 / 6, 4e-3 / 6, 3e-3 / 6, 2e-3 / 6], atol=1e-9, rtol=0)
        made.train(resume_from_checkpoint=os.path.join(self.folder, "checkpoint-5"))
        self.assertEqual([one["learning_rate"] for one in made.state.log_history if "loss" in one], rates)
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer := torch.optim.AdamW((model := llama()).parameters()))
        made = trainer(sherd.transformers, self.folder, None, model=lambda: model, options={
            "optimizers": (optimizer, schedule), "sherd": config(2, scheduler={"type": "WarmupLR"})})
        with self.assertRaisesRegex(sherd.InvalidError, "was given a scheduler too"):
            made.train()

    def test_16_bits_are_close_to_those_of_the_trainer_and_are_saved_as_its_own(self) -> None:
        plain = trainer(transformers, self.folder, None, model=lambda: llama(0.0), bf16=True, max_steps=4)
        plain.train()
        for kind in ("bf16", "fp16"):
            made = self.made(config(3), **{kind: True}, save_strategy="steps", save_steps=1)
            made.train()
            losses = [[one["loss"] for one in a_trainer.state.log_history if "loss" in one] for a_trainer in (made, plain)]
            torch.testing.assert_close(losses[0], losses[1][:2], rtol=3e-2, atol=3e-2)
            made.train(resume_from_checkpoint=os.path.join(self.folder, "checkpoint-1"))
            self.assertEqual([one["loss"] for one in made.state.log_history if "loss" in one], losses[0])
            made.save_model()
            self.assertEqual(load_file(os.path.join(self.folder, "model.safetensors"))["lm_head.weight"].dtype, torch.float32)
            self.assertEqual(transformers.AutoConfig.from_pretrained(self.folder).dtype, torch.float32)

    def test_the_options_of_the_command_line_are_transformers_own(self) -> None:
        parser = transformers.HfArgumentParser(sherd.transformers.Seq2SeqTrainingArguments)
        [args] = parser.parse_args_into_dataclasses(["--output_dir", self.folder, "--deepspeed", "some.json", "--use_cpu"])
        self.assertEqual((args.deepspeed, args.use_cpu), ("some.json", True))

    def test_what_is_refused(self) -> None:
        for changes, arguments, said in (({"gradient_accumulation_steps": 3}, {}, "gradient_accumulation_steps is 3, and gradient_acc.* is 2"),
                                         ({"optimizer": {"type": "AdamW", "params": {"lr": 0.5}}}, {}, "lr"),
                                         ({}, {"optim": "adafactor"}, "Adafactor")):
            with self.subTest(said), self.assertRaisesRegex(sherd.SherdError, said):
                self.made({**config(2), **changes}, **arguments).train()
        with self.assertRaisesRegex(sherd.InvalidError, "bf16"):
            self.made(config(2, bf16={"enabled": True}))
        made = self.made(config(2), bf16_full_eval=True)  # it trains in fp32
        made.train()
        self.assertEqual(made.model.lm_head.weight.dtype, torch.float32)
        with self.assertRaisesRegex(sherd.StateError, "neither moved nor cast"):
            made.evaluate()
        with self.assertRaisesRegex(sherd.NotSupportedError, "FSDP"), mock.patch.dict(os.environ, {"ACCELERATE_USE_FSDP": "true"}):
            self.made()
        trainer(transformers, self.folder, None, max_steps=1, save_strategy="steps", save_steps=1).train()
        with self.assertRaisesRegex(sherd.InvalidError, "optimizer.pt, which transformers' own Trainer has written"):
            self.made().train(resume_from_checkpoint=os.path.join(self.folder, "checkpoint-1"))
        with self.assertRaisesRegex(sherd.NotSupportedError, "has no int._build_accelerator_args"):
            sherd.transformers.check_names(int)


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if "AS_A_RANK" in os.environ:
        gc.freeze()  # each train() collects, which takes a third of a second over what the imports have made
        meet()
        globals()[sys.argv[1]](*sys.argv[2:])
        sys.exit()
    ranks.ready()
    unittest.main(argv=sys.argv, warnings=False)

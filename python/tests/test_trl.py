"""Tests sherd.trl: SFT and DPO train by an engine as they do by themselves."""
from __future__ import annotations

import gc
import os
import random
import sys
import tempfile
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import ranks

try:
    import datasets
    import peft
    import torch
    import transformers
    import trl
    trl.SFTTrainer, trl.DPOTrainer, transformers.LlamaForCausalLM
except ImportError as error:
    ranks.skip(f"torch, transformers, peft, datasets or trl is not here: {error}")

import foreign_data
import sherd.trl
import test_transformers
from safetensors.torch import load_file

LORA = {"peft_config": lambda: peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)}
EVALUATED = {"eval_strategy": "steps", "eval_steps": 2}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # the trainer, changes of its arguments, and what else it is given
    "SFT": ("SFT", EVALUATED, {}),
    "DPO with a copy of the model that follows": ("DPO", {**EVALUATED, "sync_ref_model": True, "ref_model_sync_steps": 2}, {}),
    "SFT, packed, of an adapter": ("SFT", {"packing": True, "padding_free": False, "max_length": 24}, LORA),
    "DPO of an adapter": ("DPO", EVALUATED, LORA),
}


def played(door: Any, stage: int | None, folder: str, kind: str, arguments: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Trains a case in a folder that has the model, and returns its log and the weights that it saves."""
    rng = random.Random(1)
    make = foreign_data.preferences if kind == "DPO" else foreign_data.texts
    data, out = datasets.Dataset.from_dict(make(rng, 16)), os.path.join(folder, f"{kind}_{stage}")
    args = getattr(door, f"{kind}Config")(out, **{
        "per_device_train_batch_size": 2, "per_device_eval_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 3, "logging_steps": 1,
        "report_to": [], "disable_tqdm": True, "use_cpu": True, "bf16": False, "save_strategy": "no", "learning_rate": 1e-3, **arguments})
    made = getattr(door, f"{kind}Trainer")(
        model=transformers.LlamaForCausalLM.from_pretrained(folder), args=args, train_dataset=data, eval_dataset=data.select(range(5)),
        processing_class=foreign_data.tokenizer(), **({} if stage is None else {"sherd": test_transformers.config(stage)}),
        **{name: value() for name, value in more.items()})
    made.remove_callback(transformers.PrinterCallback)
    made.train()
    made.save_model()
    made.accelerator.wait_for_everyone()
    name = next(one for one in sorted(os.listdir(out)) if one.endswith(".safetensors"))
    return {"log": test_transformers.numbers(made.state.log_history), "weights": load_file(os.path.join(out, name))}


def as_plain(folder: str, *names: str) -> None:
    """The cases, on however many ranks there are, at stages 2 and 3 in turn."""
    for at, name in enumerate(names):
        plain = played(trl, None, folder, *CASES[name])
        stage = 3 - at % 2
        found = test_transformers.difference(played(sherd.trl, stage, folder, *CASES[name]), plain)
        print(f"{name}, stage {stage}: {found:.1e}", flush=True)


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    if "AS_A_RANK" in os.environ:
        gc.freeze()
        test_transformers.meet()
        as_plain(*sys.argv[1:])
        sys.exit()
    ranks.ready()
    with tempfile.TemporaryDirectory() as scratch:
        torch.manual_seed(7)
        transformers.LlamaForCausalLM(foreign_data.model_config("AutoModelForCausalLM")).save_pretrained(scratch)
        test_transformers.processes(1, scratch, *list(CASES)[:2])
        test_transformers.processes(2, scratch, *list(CASES)[2:])

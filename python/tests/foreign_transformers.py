"""transformers' example scripts of its Trainer, and TRL's, for test_foreign.py."""
from __future__ import annotations

from typing import Any

from foreign import Script

STEPS = ("--do_train", "--do_eval", "--output_dir", "out", "--max_steps", "16", "--per_device_train_batch_size", "4", "--gradient_accumulation_steps",
         "2", "--learning_rate", "1e-3", "--warmup_steps", "4", "--logging_steps", "2", "--report_to", "none", "--disable_tqdm", "true",
         "--use_cpu", "--eval_strategy", "steps", "--eval_steps", "8", "--save_strategy", "steps", "--save_steps", "8")


def example(path: str, *arguments: str, **options: Any) -> Script:
    """A script of transformers' folder examples/pytorch, whose import of the Trainer and its arguments changes."""
    return Script(f"transformers/examples/pytorch/{path}", {"from transformers import (": "from sherd.transformers import ("},
                  (*arguments, *STEPS), stands_in=("foreign_data:folders",), needs=("datasets", "evaluate"), **options)


def trl(which: str, imports: dict[str, str], *arguments: str, **options: Any) -> Script:
    """A script that TRL installs as its command line."""
    return Script(f"trl/trl/scripts/{which}.py", imports, ("--model_name_or_path", "decoder", "--bf16", "false", "--dtype", "float32", *arguments,
                                                           *(one for one in STEPS if one not in ("--do_train", "--do_eval"))),
                  stands_in=("foreign_data:folders",), needs=("trl", "datasets"), **options)


SFT = {"from trl import SFTTrainer,": "from sherd.trl import SFTTrainer,", "from trl import DatasetMixtureConfig,": "from sherd.trl import "
       "DatasetMixtureConfig,"}
DPO = {"from trl import DPOTrainer,": "from sherd.trl import DPOTrainer,", "from trl import DatasetMixtureConfig,": "from sherd.trl import "
       "DatasetMixtureConfig,"}
LORA = ("--use_peft", "--lora_r", "4", "--lora_alpha", "8", "--lora_target_modules", "q_proj", "v_proj")

SCRIPTS = [
    example("language-modeling/run_clm.py", "--model_name_or_path", "decoder", "--dataset_name", "Salesforce/wikitext", "--block_size", "32"),
    example("text-classification/run_glue.py", "--model_name_or_path", "classifier", "--dataset_name", "nyu-mll/glue", "--max_seq_length", "24",
            "--do_predict"),
    example("translation/run_translation.py", "--model_name_or_path", "translator", "--dataset_name", "wmt16", "--source_lang", "en",
            "--target_lang", "ro", "--predict_with_generate", "--max_target_length", "12", "--num_beams", "2", "--do_predict"),
    trl("sft", SFT, "--dataset_name", "Salesforce/wikitext", "--max_length", "32"),
    trl("sft", SFT, "--dataset_name", "Salesforce/wikitext", "--max_length", "32", "--packing", *LORA, name="sft.py (LoRA, packed)"),
    trl("dpo", DPO, "--dataset_name", "preferences", "--max_length", "32"),
    trl("dpo", DPO, "--dataset_name", "preferences", "--max_length", "32", *LORA, name="dpo.py (LoRA)"),
]

"""Accelerate's own example scripts, for test_foreign.py."""
from __future__ import annotations

from typing import Any

from foreign import Script


def example(path: str, *arguments: str, **options: Any) -> Script:
    """A script of the folder examples, whose import of the Accelerator changes."""
    return Script(f"accelerate/examples/{path}", {"from accelerate import Accelerator": "from sherd.accelerate import Accelerator"},
                  ("--cpu", *arguments), **options)


def feature(which: str, *arguments: str, **options: Any) -> Script:
    return example(f"by_feature/{which}.py", *arguments, **options)


def vision(which: str, *arguments: str, **options: Any) -> Script:
    """An example with images, of which there are as many on any number of ranks."""
    return example(f"{which}.py", "--data_dir", "images", *arguments, stands_in=("foreign_data:hub", "foreign_data:images"),
                   needs=("torchvision", "PIL"), least=15, **options)


def config_support(*arguments: str, **options: Any) -> Script:
    return Script("accelerate/examples/by_feature/deepspeed_with_config_support.py",
                  {"from accelerate import Accelerator": "from sherd.accelerate import Accelerator"},
                  ("--dataset_name", "Salesforce/wikitext", "--model_name_or_path", "small", "--block_size", "32",
                   "--gradient_accumulation_steps", "2", "--seed", "3", "--output_dir", "out", "--checkpointing_steps", "epoch",
                   "--learning_rate", "1e-3", *arguments), needs=("deepspeed",), **options)


RESUMED = ("--cpu", "--checkpointing_steps", "10", "--resume_from_checkpoint", "step_30")

SCRIPTS = [
    example("nlp_example.py"),
    example("complete_nlp_example.py", "--with_tracking", "--checkpointing_steps", "10", again=RESUMED),
    feature("gradient_accumulation", "--gradient_accumulation_steps", "3"),
    feature("automatic_gradient_accumulation", environment={"FOREIGN_ROWS": "5120"}),
    feature("checkpointing", "--checkpointing_steps", "10", again=RESUMED),
    feature("checkpointing", "--checkpointing_steps", "epoch", name="checkpointing.py (epochs)",
            again=("--cpu", "--checkpointing_steps", "epoch", "--resume_from_checkpoint", "epoch_0")),
    feature("tracking", "--with_tracking"),
    feature("early_stopping", least=5),
    feature("multi_process_metrics"),
    feature("memory"),
    feature("gradient_accumulation_for_autoregressive_models", "--gradient_accumulation_steps", "3"),
    feature("cross_validation", needs=("sklearn",)),
    feature("local_sgd", ranks=(1,)),
    feature("local_sgd", ranks=(2,), name="local_sgd.py (2 ranks)", refused="LocalSGD"),
    feature("profiler"),
    feature("schedule_free", needs=("schedulefree",), refused="AdamWScheduleFree"),
    feature("ddp_comm_hook"),
    feature("ddp_comm_hook", "--ddp_comm_hook", "bf16", name="ddp_comm_hook.py (bf16)", ranks=(2,), refused="comm_hook"),
    config_support("--load_best_model", ranks=(1,)),
    config_support(ranks=(2,)),  # a rank of Accelerate's own loads the best state before another one has written it
    vision("cv_example"),
    vision("complete_cv_example", "--checkpointing_steps", "4", "--with_tracking",
           again=("--cpu", "--data_dir", "images", "--checkpointing_steps", "4", "--resume_from_checkpoint", "step_12")),
]

"""Schedules against the code that they are made after: DeepSpeed's and transformers' classes, step by step on an optimizer of
torch with two groups. test_schedule_packages.py PRINT_SCHEDULE; skipped without these packages."""
import importlib.util
import json
import math
import subprocess
import sys
import tempfile
import types
import warnings
from pathlib import Path

try:
    import torch
    from transformers import optimization
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

LR, BETAS, STEPS = 0.02, (0.85, 0.97), 60
RTOL = 1e-13  # the same formulas in doubles; a logarithm and a power may round otherwise
DEEPSPEED = [
    ("WarmupLR", {"warmup_min_lr": 1e-3, "warmup_max_lr": 0.1, "warmup_num_steps": 12}),
    ("WarmupLR", {"warmup_num_steps": 12, "warmup_type": "linear"}),
    ("WarmupLR", {"warmup_min_lr": [1e-3, 2e-3], "warmup_max_lr": [0.1, 0.3], "warmup_num_steps": 7}),
    ("WarmupDecayLR", {"total_num_steps": 40, "warmup_num_steps": 10, "warmup_type": "linear"}),
    ("WarmupCosineLR", {"total_num_steps": 45, "warmup_num_steps": 10, "warmup_min_ratio": 0.1, "cos_min_ratio": 0.05}),
    ("OneCycle", {"cycle_min_lr": 1e-3, "cycle_max_lr": 0.1, "cycle_first_step_size": 10}),
    ("OneCycle", {"cycle_min_lr": 1e-3, "cycle_max_lr": 0.1, "cycle_first_step_size": 10, "cycle_second_step_size": 17,
                  "decay_step_size": 3, "decay_lr_rate": 0.4, "decay_mom_rate": 0.002}),
    ("OneCycle", {"cycle_min_lr": 1e-3, "cycle_max_lr": 0.1, "cycle_first_step_size": 9, "cycle_second_step_size": 16,
                  "cycle_first_stair_count": 3, "cycle_second_stair_count": 4, "cycle_min_mom": 0.5, "cycle_max_mom": 0.7}),
    ("OneCycle", {"cycle_min_lr": [1e-3, 2e-3], "cycle_max_lr": [0.1, 0.2], "cycle_first_step_size": 11, "cycle_first_stair_count": 5,
                  "cycle_min_mom": [0.8, 0.7], "cycle_max_mom": [0.9, 0.95]}),
    ("OneCycle", {"cycle_min_lr": 1e-3, "cycle_max_lr": 0.1, "cycle_first_step_size": 8, "cycle_second_step_size": 0,
                  "cycle_momentum": False, "decay_step_size": 5}),
    ("LRRangeTest", {"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 7, "lr_range_test_step_rate": 2.5}),
    ("LRRangeTest", {"lr_range_test_min_lr": [1e-4, 3e-4], "lr_range_test_step_size": 7, "lr_range_test_staircase": True}),
]
WSD = {"num_decay_steps": 12, "num_training_steps": 50}
TRANSFORMERS = [
    ("constant", {}),
    ("constant_with_warmup", {"num_warmup_steps": 9}),
    ("linear", {"num_warmup_steps": 9, "num_training_steps": 50}),
    ("linear", {"num_warmup_steps": 0, "num_training_steps": 50}),
    ("cosine", {"num_warmup_steps": 9, "num_training_steps": 50}),
    ("cosine", {"num_warmup_steps": 0, "num_training_steps": 50, "num_cycles": 1.25}),
    ("cosine_with_restarts", {"num_warmup_steps": 9, "num_training_steps": 50}),
    ("cosine_with_restarts", {"num_warmup_steps": 9, "num_training_steps": 50, "num_cycles": 3}),
    ("cosine_with_min_lr", {"num_warmup_steps": 9, "num_training_steps": 50, "min_lr_rate": 0.1}),
    ("cosine_with_min_lr", {"num_warmup_steps": 9, "num_training_steps": 50, "min_lr": 0.004}),
    ("polynomial", {"num_warmup_steps": 9, "num_training_steps": 50}),
    ("polynomial", {"num_warmup_steps": 9, "num_training_steps": 50, "lr_end": 1e-3, "power": 2.5}),
    ("inverse_sqrt", {"num_warmup_steps": 9}),
    ("inverse_sqrt", {"num_warmup_steps": 9, "timescale": 100}),
    ("inverse_sqrt", {"num_warmup_steps": 0}),
    ("warmup_stable_decay", {"num_warmup_steps": 9, **WSD}),
    ("warmup_stable_decay", {"num_warmup_steps": 9, "num_decay_steps": 12, "num_stable_steps": 20, "warmup_type": "cosine",
                             "decay_type": "linear", "min_lr_ratio": 0.1}),
    ("warmup_stable_decay", {"num_warmup_steps": 9, **WSD, "warmup_type": "1-sqrt", "decay_type": "1-sqrt"}),
]


def deepspeed_schedules() -> object:
    """DeepSpeed's module of schedules alone: its package asks for a compiler and devices when it is imported."""
    found = importlib.util.find_spec("deepspeed")
    if found is None or not found.submodule_search_locations:
        return None
    package, utils = types.ModuleType("deepspeed"), types.ModuleType("deepspeed.utils")
    utils.logger = types.SimpleNamespace(warning=lambda *args: None)
    sys.modules.update({"deepspeed": package, "deepspeed.utils": utils})
    path = Path(found.submodule_search_locations[0]) / "runtime" / "lr_schedules.py"
    spec = importlib.util.spec_from_file_location("lr_schedules", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def optimizer() -> torch.optim.Optimizer:
    tensors = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    return torch.optim.AdamW([{"params": tensors[:1]}, {"params": tensors[1:], "lr": LR / 2}], lr=LR, betas=BETAS)


def theirs(schedule: object, owner: torch.optim.Optimizer) -> list[list[float]]:
    """What each update would use, then the schedule goes on."""
    rows = []
    for _ in range(STEPS):
        rows.append([float(number) for group in owner.param_groups for number in (group["lr"], *group["betas"])])
        owner.step()
        schedule.step()
    return rows


def ours(program: str, folder: Path, name: str, params: dict) -> list[list[float]]:
    file = folder / "config.json"
    file.write_text(json.dumps({"train_batch_size": 1, "optimizer": {"type": "AdamW", "params": {"lr": LR, "betas": BETAS}},
                                "scheduler": {"type": name, "params": params}}))
    text = subprocess.run([program, file, str(STEPS)], check=True, capture_output=True, text=True).stdout
    return [[float(number) for number in line.split()] for line in text.splitlines()]


def compare(name: str, params: dict, got: list[list[float]], want: list[list[float]]) -> None:
    assert len(got) == len(want) == STEPS
    for step, (mine, other) in enumerate(zip(got, want), 1):
        for index, (a, b) in enumerate(zip(mine, other)):
            assert math.isclose(a, b, rel_tol=RTOL, abs_tol=1e-17), f"{name} {params}: step {step}, number {index}: {a!r}, not {b!r}"


def main(program: str) -> None:
    module = deepspeed_schedules()
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, params in DEEPSPEED if module is not None else ():
            owner = optimizer()
            compare(name, params, ours(program, Path(folder), name, params), theirs(getattr(module, name)(owner, **params), owner))
            count += 1
        for name, params in TRANSFORMERS:
            owner = optimizer()
            made = optimization.TYPE_TO_SCHEDULER_FUNCTION[optimization.SchedulerType(name)](owner, **params)
            compare(name, params, ours(program, Path(folder), name, params), theirs(made, owner))
            count += 1
    print(f"{count} schedules of {STEPS} steps{'' if module is not None else '; no deepspeed here'}")


warnings.simplefilter("ignore")
main(sys.argv[1])

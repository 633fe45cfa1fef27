"""Tests the scripts of examples/pytorch.

Each differs in 4 to 10 lines from the plain script in the same folder, trains on one rank and on two, and starts with the plain script's
loss.
"""
from __future__ import annotations

import difflib
import importlib.util
import json
import os
import re
import sys
import tempfile

import ranks

SCRIPTS = {"nanogpt": ["--layers", "2", "--width", "32"], "minimind": ["--hidden", "32", "--layers", "2"],
           "finetune": ["--model", "qwen3"]}
STEPS = 11
LEAST, MOST = 4, 10  # lines in which a script and the plain one may differ
APART = 2e-3  # largest difference of losses: they are printed with four digits, and the norm that clips is summed in another order


def lines_check(folder: str, name: str) -> None:
    """Asserts in how many lines a script differs from the plain one."""
    with open(os.path.join(folder, "plain", name + ".py")) as plain, open(os.path.join(folder, name + ".py")) as ours:
        apart = list(difflib.ndiff(plain.readlines(), ours.readlines()))
    taken, added = (sum(line.startswith(mark) for line in apart) for mark in "-+")
    print(f"{name}: {taken} lines taken out, {added} put in")
    assert LEAST <= max(taken, added) <= MOST, f"{name} is {taken} and {added} lines from the plain script"


def losses(output: str) -> list[float]:
    """Returns the losses in a script's output."""
    return [float(text) for text in re.findall(r"^step \d+ loss ([0-9.]+)$", output, re.MULTILINE)]


def script_run(script: str, scratch: str, *arguments: str, **environment: str) -> list[float]:
    """Runs a script as one rank alone, and returns the losses that it printed."""
    [(status, output)] = ranks.start(script, arguments, [environment], scratch)
    assert status == 0, output
    return losses(output)


def world_output(size: int, script: str, *arguments: str) -> str:
    """Runs a script on several ranks, and returns what rank 0 printed. ranks.run starts what sys.argv[0] names."""
    test, sys.argv[0] = sys.argv[0], script
    try:
        return ranks.run(size, *arguments)[0]
    finally:
        sys.argv[0] = test


def script_check(folder: str, name: str, scratch: str, text: str) -> None:
    """Runs a script alone and on two ranks, and compares its losses with the plain script's."""
    config = os.path.join(folder, "ds_config.json")
    arguments = ["--data", text, "--steps", str(STEPS), "--length", "32", "--batch", "2", *SCRIPTS[name]]
    plain = script_run(os.path.join(folder, "plain", name + ".py"), scratch, *arguments)
    alone = script_run(os.path.join(folder, name + ".py"), scratch, *arguments, "--config", config)
    world = losses(world_output(2, os.path.join(folder, name + ".py"), *arguments, "--config", config))
    print(f"{name}: plain {plain}, alone {alone}, two ranks {world}")
    assert len(plain) == len(alone) == len(world) == 2
    assert all(abs(a - b) <= APART for a, b in zip(plain, alone)), f"{name} alone trains otherwise than in plain torch"
    assert abs(world[0] - plain[0]) <= APART, f"{name}: rank 0 of two starts with another loss"
    assert world[1] < world[0], f"{name} learns nothing on two ranks"


def trainer_check(folder: str, scratch: str, text: str) -> None:
    """Runs hf_trainer.py alone and on two ranks, and with the import of plain transformers. Without accelerate it is left out."""
    if importlib.util.find_spec("accelerate") is None:
        print("hf_trainer is left out: there is no accelerate")
        return
    script, plain, begin, config = (os.path.join(folder, "hf_trainer.py"), *(os.path.join(scratch, name) for name in ("plain.py", "begin.py", "c.json")))
    with open(script) as ours, open(plain, "w") as out:
        out.write(ours.read().replace("from sherd.transformers import", "from transformers import"))
    with open(begin, "w") as out:  # where torch's ranks meet, which needs no port
        out.write("import os, runpy, sys, torch\ntorch.distributed.init_process_group('gloo', init_method=os.environ['MEETING'], world_size=2, "
                  "rank=int(os.environ['RANK']))\nsys.argv.pop(0)\nrunpy.run_path(sys.argv[0], run_name='__main__')\n")
    with open(config, "w") as out:
        json.dump({"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": "auto"}, out)
    arguments = ("--data", text, "--length", "32", "--max_steps", "12", "--logging_steps", "3", "--per_device_train_batch_size", "2", "--output_dir",
                 os.path.join(scratch, "out"), "--learning_rate", "1e-3", "--use_cpu", "--disable_tqdm", "true", "--report_to", "none")
    alone = [{"WORLD_SIZE": "1"}]
    world = [{"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "SHERD_RANK": str(rank), "SHERD_THREADS": "1",
              "SHERD_WORLD_SIZE": "2", "SHERD_RENDEZVOUS": f"unix://{scratch}/meet", "MEETING": f"file://{scratch}/torch"} for rank in range(2)]
    found = []
    for start, own, more in ((plain, alone, ()), (script, alone, ("--deepspeed", config)), (begin, world, (script, "--deepspeed", config))):
        ended = ranks.start(start, (*more[:len(more) - 2], *arguments, *more[-2:]), own, scratch)
        assert not any(status for status, _ in ended), "\n".join(output for _, output in ended)
        found.append([float(value) for value in re.search(r"^loss ([0-9.]+) at first, ([0-9.]+) at the end$", ended[0][1], re.MULTILINE).groups()])
    print(f"hf_trainer: plain {found[0]}, alone {found[1]}, two ranks {found[2]}")
    assert all(abs(a - b) <= 2e-4 for a, b in zip(found[0], found[1])), "the Trainer trains otherwise than by itself"
    assert found[2][1] < found[2][0], "the Trainer learns nothing on two ranks"


def main() -> None:
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/pytorch")
    for name in SCRIPTS:
        lines_check(folder, name)
    try:  # with what the scripts need of transformers, which reads its modules when they are first used
        import torch  # noqa: F401
        import transformers
        transformers.Qwen3ForCausalLM, transformers.GPT2LMHeadModel, transformers.Trainer
    except ImportError as missing:
        ranks.skip(f"the lines are counted; {missing}")
    ranks.ready()
    with tempfile.TemporaryDirectory() as scratch:
        text = os.path.join(scratch, "text")
        with open(text, "w") as out:
            out.writelines(f"{i % 37} times {i % 11} is {(i % 37) * (i % 11)}.\n" for i in range(800))
        for name in SCRIPTS:
            script_check(folder, name, scratch, text)
        trainer_check(folder, scratch, text)


main()

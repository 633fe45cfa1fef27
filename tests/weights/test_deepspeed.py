"""tools/import_deepspeed.py on checkpoints that are laid out as DeepSpeed lays them out: of stages 1 to 3 and universal, with
classes that torch does not know and one that would run a program. usage: test_deepspeed.py SCRIPT TRAINER"""
import enum
import importlib.util
import os
import shutil
import sys
import tempfile

try:
    import safetensors.torch
    import torch
    import transformers
except ImportError as missing:
    print(f"skipped: {missing} (SHERD_PYTHON names an interpreter that has torch, transformers, safetensors and numpy)")
    sys.exit(77)

from trainer import Trainer

torch.manual_seed(1)
torch.set_num_threads(1)
spec = importlib.util.spec_from_file_location("importer", sys.argv[1])
importer = importlib.util.module_from_spec(spec)
spec.loader.exec_module(importer)
STEP = 7


class LossScaler:
    """As DeepSpeed's, which its files hold as an object."""

    def __init__(self):
        self.cur_scale = 1.0


class ZeroStage(enum.IntEnum):
    """As DeepSpeed's, by which its files say their stage: not a number to whom torch does not know the class."""

    optimizer_states = 1
    gradients = 2
    weights = 3


class Runs:
    """What reads it as a pickle runs this."""

    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


def model_make():
    config = transformers.GPT2Config(vocab_size=256, n_positions=256, n_embd=64, n_layer=2, n_head=4, initializer_range=0.15,
                                     bos_token_id=None, eos_token_id=None)
    return transformers.GPT2LMHeadModel(config)


def parts_of(model):
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    return {"model": weights, "exp_avg": {n: torch.randn_like(v) for n, v in weights.items()},
            "exp_avg_sq": {n: torch.rand_like(v) for n, v in weights.items()}}


def groups_of(weights):
    """Two, as with weight decay for matrices alone."""
    return [[n for n, v in weights.items() if v.dim() > 1], [n for n, v in weights.items() if v.dim() <= 1]]


def flat_2(values, names, world):
    """Equal parts of a group, padded to a multiple of 2 * world."""
    flat = torch.cat([values[n].flatten() for n in names])
    flat = torch.cat([flat, torch.full((-flat.numel() % (2 * world),), 9.0)])
    return flat.chunk(world)


def flat_3(values, names, world):
    slices = [[] for _ in range(world)]
    for n in names:
        own = -(-values[n].numel() // world)
        flat = torch.cat([values[n].flatten(), torch.full((own * world - values[n].numel(),), 9.0)])
        for rank in range(world):
            slices[rank].append(flat[rank * own:(rank + 1) * own])
    return [torch.cat(s) for s in slices]


def zero_write(folder, parts, stage, world, extra):
    os.makedirs(folder)
    weights, groups = parts["model"], groups_of(parts["model"])
    shapes = [{n: weights[n].shape for n in names} for names in groups]
    cut = flat_3 if stage == 3 else flat_2
    flats = {part: [cut(values, names, world) for names in groups] for part, values in parts.items()}
    for rank in range(world):
        own = {part: [flat[rank].clone() for flat in flats[part]] for part in parts}
        base = {"state": {i: {"step": STEP, "exp_avg": own["exp_avg"][i], "exp_avg_sq": own["exp_avg_sq"][i]} for i in range(2)},
                "param_groups": []}
        state = {"zero_stage": ZeroStage(stage), "partition_count": world, "loss_scaler": extra, "overflow": False}
        state.update({"fp32_flat_groups": own["model"], "optimizer_state_dict": base} if stage == 3 else
                     {"single_partition_of_fp32_groups": own["model"], "base_optimizer_state": base})
        torch.save({"optimizer_state_dict": state, "ds_version": "0.16"},
                   os.path.join(folder, f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"))
        name = f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" if stage == 3 else "mp_rank_00_model_states.pt"
        torch.save({"module": {}, "param_shapes": shapes, "frozen_param_shapes": None}, os.path.join(folder, name))


def universal_write(folder, parts):
    for name in parts["model"]:
        os.makedirs(os.path.join(folder, "zero", name))
        for part, file in (("model", "fp32"), ("exp_avg", "exp_avg"), ("exp_avg_sq", "exp_avg_sq")):
            torch.save({"param": parts[part][name]}, os.path.join(folder, "zero", name, file + ".pt"))
        torch.save(torch.tensor(STEP), os.path.join(folder, "zero", name, "step.pt"))


def convert(folder, out, *args, expect=0):
    """The message where it has to fail."""
    try:
        importer.main([folder, out, *args])
    except SystemExit as ended:
        assert expect != 0, ended.code
        return ended.code
    assert expect == 0, "it did not fail"
    return ""


def hold(out, parts):
    for part, values in parts.items():
        got = safetensors.torch.load_file(os.path.join(out, part + ".safetensors"))
        assert got.keys() == values.keys(), part
        for name, want in values.items():
            assert torch.equal(got[name], want), (part, name)
    with safetensors.safe_open(os.path.join(out, "model.safetensors"), "pt") as file:
        assert file.metadata()["step"] == str(STEP)


def main(scratch):
    t, model = Trainer(sys.argv[2], scratch), model_make()
    parts, want = parts_of(model), t.loss_of(model)
    for stage, world in ((1, 3), (2, 2), (3, 4)):
        folder, out = t.path(f"zero{stage}"), t.path(f"out{stage}")
        zero_write(folder, parts, stage, world, LossScaler())
        convert(folder, out, "--moments")
        hold(out, parts)
        got = t.first_loss("gpt2", os.path.join(out, "model.safetensors"))
        assert abs(got - want) <= 1e-5, (got, want)
        print(f"ok   stage {stage} on {world} ranks: loss {got:.9g}, of transformers {want:.9g}")
    universal_write(t.path("universal"), parts)
    convert(t.path("universal"), t.path("out-u"), "--moments")
    hold(t.path("out-u"), parts)
    print("ok   universal")

    ran = t.path("ran")
    zero_write(t.path("hostile"), parts, 2, 1, Runs(shutil.copyfile, t.text, ran))
    convert(t.path("hostile"), t.path("out-h"))
    assert not os.path.exists(ran)
    convert(t.path("hostile"), t.path("out-h"), "--trust")
    assert os.path.exists(ran), "the test itself"
    zero_write(t.path("system"), parts, 2, 1, Runs(os.unlink, ran))
    assert "--trust" in convert(t.path("system"), t.path("out-s"), expect=1)
    assert os.path.exists(ran)
    print("ok   what a file would run is not run")

    os.remove(os.path.join(t.path("zero3"), "zero_pp_rank_1_mp_rank_00_optim_states.pt"))
    assert "others are missing" in convert(t.path("zero3"), t.path("out-m"), expect=1)
    os.remove(os.path.join(t.path("zero2"), "zero_pp_rank_1_mp_rank_00_optim_states.pt"))
    assert "written by 2 ranks" in convert(t.path("zero2"), t.path("out-m"), expect=1)
    assert "neither" in convert(scratch, t.path("out-m"), expect=1)
    print("ok   what is missing is reported")

    os.makedirs(t.path("out-o"))
    os.mkfifo(os.path.join(t.path("out-o"), "exp_avg.safetensors"))
    assert "is no regular file" in convert(t.path("universal"), t.path("out-o"), "--moments", expect=1)
    assert os.listdir(t.path("out-o")) == ["exp_avg.safetensors"]
    print("ok   what is no file is not replaced")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(scratch)

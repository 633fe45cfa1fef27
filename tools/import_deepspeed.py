#!/usr/bin/env python3
"""Weights and moments of a DeepSpeed checkpoint as safetensors, which sherd imports (docs/weights.md).

Reads   a folder of ZeRO (zero_pp_rank_*_mp_rank_00_optim_states.pt and *model_states.pt, stages 1 to 3),
        or of a universal checkpoint (zero/NAME/fp32.pt, exp_avg.pt, exp_avg_sq.pt)
Writes  OUT/model.safetensors, and with --moments OUT/exp_avg.safetensors and OUT/exp_avg_sq.safetensors: fp32, one
        tensor per parameter by DeepSpeed's name, the number of updates in the metadata ("step")

A .pt file is a pickle, which can run any program when it is read as pickles are. Here none is: torch reads tensors and
plain values (weights_only), and a class that it does not know, as DeepSpeed's loss scaler, becomes an object without
content. Where that cannot be done (a file that calls the system, torch before 2.6, files that torch before 1.6 wrote)
the file is refused, unless --trust says that it may run what it likes.
"""
import argparse
import os
import re
import stat
import sys

try:
    import torch
    from safetensors.torch import save_file
except ImportError as missing:
    sys.exit(f"import_deepspeed.py needs torch and safetensors: {missing}")

PARTS = {"model": "fp32", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}  # of files here: of a universal checkpoint


class Refused(Exception):
    pass


# ---- reading without running

class Nothing:
    """Stands for every class and function that a file names and torch does not know."""

    def __new__(cls, *_, **__):
        return object.__new__(cls)

    def __init__(self, *_, **__):
        pass

    def __setstate__(self, _):
        pass


def load(path, trust):
    try:
        if trust:
            return torch.load(path, map_location="cpu", weights_only=False)
        unknown = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        with torch.serialization.safe_globals([(Nothing, name) for name in unknown]):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except AttributeError as error:
        raise Refused(f"{path}: this torch ({torch.__version__}) cannot read it without running what is in it; "
                      f"use 2.6 or later, or --trust") from error
    except Exception as error:  # whatever a file makes torch raise
        raise Refused(f"{path}: {error}" + ("" if trust else " (--trust reads it as any pickle, which runs what is in it)")) from error


# ---- files of ZeRO

def files_of(folder, pattern):
    """By rank, which have to be 0, 1, 2, ..."""
    found = {}
    for name in os.listdir(folder):
        match = re.fullmatch(pattern, name)
        if match:
            found[int(match.group("rank"))] = os.path.join(folder, name)
    if sorted(found) != list(range(len(found))):
        raise Refused(f"{folder}: files of ranks {sorted(found)} are there, others are missing")
    return [found[rank] for rank in sorted(found)]


class Zero:
    """A checkpoint of stages 1 to 3. What is flat there is cut by the shapes that the model's file has."""

    def __init__(self, folder, trust):
        pattern = r"(?:bf16_|fp16_)?zero_pp_rank_(?P<rank>\d+)_mp_rank_00_optim_states\.pt"
        paths = files_of(folder, pattern)
        if not paths:
            raise Refused(f"{folder}: there is neither zero/ nor zero_pp_rank_0_mp_rank_00_optim_states.pt; give the folder "
                          f"of one tag, of a run without tensor parallelism")
        if any(re.search(r"_mp_rank_0*[1-9]\d*_", name) for name in os.listdir(folder)):
            raise Refused(f"{folder}: it was written with tensor parallelism; convert it with DeepSpeed's ds_to_universal.py first")
        self.ranks = [load(path, trust)["optimizer_state_dict"] for path in paths]
        self.stage = 3 if "fp32_flat_groups" in self.ranks[0] else 2  # what it says is an object of a class of DeepSpeed's
        self.world = self.ranks[0]["partition_count"]
        self.world = max(self.world) if isinstance(self.world, (list, tuple)) else int(self.world)
        if self.world != len(self.ranks):
            raise Refused(f"{folder}: it was written by {self.world} ranks, and files of {len(self.ranks)} are there")
        self.models = [load(path, trust) for path in self.model_paths(folder)]
        self.groups = self.models[0]["param_shapes"]
        self.groups = [self.groups] if isinstance(self.groups, dict) else self.groups

    def model_paths(self, folder):
        if self.stage == 3:
            paths = files_of(folder, r"zero_pp_rank_(?P<rank>\d+)_mp_rank_00_model_states\.pt")
        else:
            path = os.path.join(folder, "mp_rank_00_model_states.pt")
            paths = [path] if os.path.exists(path) else []
        if not paths:
            raise Refused(f"{folder}: it has no *model_states.pt, which has the names and shapes")
        return paths

    def flat(self, rank, part):
        """What a rank has of a part: a list, by group (stages 1 and 2) or by sub-group (stage 3)."""
        state = self.ranks[rank]
        if part == "model":
            return state["fp32_flat_groups" if self.stage == 3 else "single_partition_of_fp32_groups"]
        base = state["optimizer_state_dict" if self.stage == 3 else "base_optimizer_state"]
        base = base["state"] if isinstance(base, dict) else dict(enumerate(base))
        return [base[i][part] for i in sorted(base)]

    def step(self):
        base = self.ranks[0]["optimizer_state_dict" if self.stage == 3 else "base_optimizer_state"]
        base = base["state"] if isinstance(base, dict) else dict(enumerate(base))
        step = base[min(base)].get("step") if base else None
        return None if step is None else int(step)

    def tensors(self, part):
        result = self.sliced(part) if self.stage == 3 else self.cut(part)
        if part == "model":
            result.update(self.frozen())
        return result

    def cut(self, part):
        """Stages 1 and 2: the ranks' partitions of a group one after the other, then padding."""
        result = {}
        for group, shapes in enumerate(self.groups):
            flat = torch.cat([self.flat(rank, part)[group].float() for rank in range(self.world)])
            at = 0
            for name, shape in shapes.items():
                elems = shape.numel()
                if at + elems > flat.numel():
                    raise Refused(f"{part}: parameter {name} ends at element {at + elems} of a group of {flat.numel()}")
                result[name] = flat[at:at + elems].reshape(shape).clone()
                at += elems
            if flat.numel() - at >= 2 * self.world + max(shape.numel() for shape in shapes.values()):
                raise Refused(f"{part}: {flat.numel() - at} elements of group {group} belong to no parameter")
        return result

    def sliced(self, part):
        """Stage 3: each parameter is cut into as many slices as there are ranks, the last one padded."""
        flats = [torch.cat([piece.float() for piece in self.flat(rank, part)]) for rank in range(self.world)]
        result, at = {}, 0
        for shapes in self.groups:
            for name, shape in shapes.items():
                elems = shape.numel()
                own = -(-elems // self.world)
                if at + own > flats[0].numel():
                    raise Refused(f"{part}: parameter {name} ends at element {at + own} of slices of {flats[0].numel()}")
                result[name] = torch.cat([flat[at:at + own] for flat in flats])[:elems].reshape(shape).clone()
                at += own
        return result

    def frozen(self):
        shapes = self.models[0].get("frozen_param_shapes") or {}
        result = {}
        for name, shape in shapes.items():
            pieces = [model["frozen_param_fragments"][name].float().flatten() for model in self.models]
            result[name] = torch.cat(pieces)[:shape.numel()].reshape(shape).clone()
        return result


# ---- universal

class Universal:
    def __init__(self, folder, trust):
        self.root, self.trust = os.path.join(folder, "zero"), trust
        self.names = sorted(name for name in os.listdir(self.root)
                            if os.path.isfile(os.path.join(self.root, name, "fp32.pt")))
        if not self.names:
            raise Refused(f"{self.root}: there is no NAME/fp32.pt")

    def value(self, name, file):
        value = load(os.path.join(self.root, name, file), self.trust)
        return value["param"] if isinstance(value, dict) else value

    def step(self):
        path = os.path.join(self.root, self.names[0], "step.pt")
        return int(self.value(self.names[0], "step.pt")) if os.path.exists(path) else None

    def tensors(self, part):
        return {name: self.value(name, PARTS[part] + ".pt").float().contiguous() for name in self.names}


def main(argv=None):
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("folder", help="the checkpoint: the folder of one tag (DIR/global_step100)")
    words.add_argument("out", help="folder to write to")
    words.add_argument("--moments", action="store_true", help="exp_avg and exp_avg_sq too")
    words.add_argument("--strip", default="", metavar="PREFIX", help="take PREFIX off names that begin with it")
    words.add_argument("--trust", action="store_true", help="read files as any pickle, which may run what it likes")
    args = words.parse_args(argv)
    try:
        kind = Universal if os.path.isdir(os.path.join(args.folder, "zero")) else Zero
        checkpoint = kind(args.folder, args.trust)
        os.makedirs(args.out, exist_ok=True)
        step = checkpoint.step()
        about = {"format": "pt", **({} if step is None else {"step": str(step)})}
        paths = {part: os.path.join(args.out, part + ".safetensors") for part in (PARTS if args.moments else ("model",))}
        for path in paths.values():
            if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
                raise Refused(f"{path} is there and is no regular file, so no new file replaces it; name another folder")
        for part, path in paths.items():
            tensors = {name.removeprefix(args.strip): value for name, value in checkpoint.tensors(part).items()}
            save_file(tensors, path + ".partial", metadata=about)
            os.replace(path + ".partial", path)
            print(f"{path}: {len(tensors)} tensors of {sum(t.numel() for t in tensors.values())} elements")
    except (Refused, OSError) as error:
        sys.exit(f"import_deepspeed.py: {error}")
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        sys.exit(f"import_deepspeed.py: {args.folder} is not laid out as a checkpoint of DeepSpeed: "
                 f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()

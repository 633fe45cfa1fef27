"""Finds which names the weights of a model have in published files: weights.import_weights() asks.

A file may have the names of an earlier version of the model, which transformers renames when it loads, and tensors that the model
computes itself, such as masks. docs/weights.md is the user's page.
"""
from __future__ import annotations

import json
import os
import re
from typing import Collection

from torch import nn

HEADER_BYTES = 100_000_000  # most bytes of a file's header; the format has this limit
MASKED = ("attn", "attention", "crossattention", "self_attn")  # modules that had causal masks as buffers of these names
MASKS = ("bias", "masked_bias")


def names_in(path: str | os.PathLike[str]) -> list[str]:
    """Returns the names of the tensors in a file of safetensors, an index, or a folder with one of them. Local.

    It is empty where the file cannot be read: the engine says why when it reads the values.
    """
    path = os.fspath(path)
    try:
        if os.path.isdir(path):
            there = sorted(name for name in os.listdir(path) if name.endswith((".safetensors", ".safetensors.index.json")))
            usual = [name for name in ("model.safetensors", "model.safetensors.index.json") if name in there]
            path = os.path.join(path, (usual or there)[0])
        if path.endswith(".json"):
            with open(path, encoding="utf-8") as file:
                return list(json.load(file)["weight_map"])
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            return [name for name in json.loads(file.read(min(length, HEADER_BYTES))) if name != "__metadata__"]
    except (OSError, ValueError, LookupError, TypeError):
        return []


def renamed(model: nn.Module, names: Collection[str], known: Collection[str]) -> dict[str, str]:
    """Returns the file's name of each weight that transformers renames when it loads, by its name in the model. Local.

    `names` are the file's and `known` the model's. Tensors that transformers also changes, such as experts that it joins, are not
    among them. It is empty for models that are not of transformers, and for its versions below 5, which have no list of renamings.
    """
    if not hasattr(model, "base_model_prefix"):
        return {}
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightRenaming, dot_natural_key, rename_source_key

        listed = get_model_conversion_mapping(model)
        renamings = [one for one in listed if isinstance(one, WeightRenaming)]
        others = [one for one in listed if not isinstance(one, WeightRenaming)]
        found = {}
        for name in sorted(names, key=dot_natural_key):  # in the order of transformers, on which some renamings depend
            own, changes = rename_source_key(name, renamings, others, model.base_model_prefix, dict.fromkeys(known, True))
            if changes is None and own != name and own in known and name not in known:
                found[own] = name
    except (ImportError, AttributeError, TypeError, ValueError):  # another version, which has other functions: no name is known
        return {}
    return found


def transient_of(model: nn.Module) -> set[str]:
    """Returns the names of the buffers that a state_dict does not have: those that are registered with persistent=False."""
    return {f"{prefix}.{name}" if prefix else name for prefix, module in model.named_modules()
            for name in module._non_persistent_buffers_set}


def is_computed(model: nn.Module, name: str) -> bool:
    """Whether a tensor of a file, which is no weight of the model, is one that the model computes itself. Local.

    These are buffers without a place in a state_dict that were in another module once, such as the frequencies of rotations, masks
    of attention, and what a model of transformers lists.
    """
    ends = {".".join(buffer.split(".")[-2:]) for buffer in transient_of(model)}
    if any(name.endswith(f".{end}") for end in ends if "." in end):
        return True
    if any(re.search(one, name) for one in getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()):
        return True
    owner, _, leaf = name.rpartition(".")
    if leaf not in MASKS or owner.rpartition(".")[2] not in MASKED:
        return False
    modules = dict(model.named_modules())
    module = modules.get(owner, modules.get(f"{getattr(model, 'base_model_prefix', '')}.{owner}"))
    return module is not None and leaf not in module._parameters  # a Linear without bias has this name in it

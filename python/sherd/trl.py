"""TRL's trainers over an engine of sherd: a script changes `from trl import SFTConfig, SFTTrainer` to this module.

docs/transformers.md is the user's page, and sherd.transformers has the mixin, which other trainers of TRL take first as these do.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sherd.torch
import trl
from trl.trainer.callbacks import SyncRefModelCallback

from sherd.transformers import ArgumentsMixin, TrainerMixin


@dataclass
class SFTConfig(ArgumentsMixin, trl.SFTConfig):
    """TRL's SFTConfig, whose `deepspeed` is the engine's configuration."""


@dataclass
class DPOConfig(ArgumentsMixin, trl.DPOConfig):
    """TRL's DPOConfig, whose `deepspeed` is the engine's configuration."""


class SFTTrainer(TrainerMixin, trl.SFTTrainer):
    """TRL's SFTTrainer, which trains by an engine of sherd. TrainerMixin has the arguments."""


class Synced(SyncRefModelCallback):
    """TRL's callback of sync_ref_model, which reads the weights of the model that an engine trains."""

    @staticmethod
    def sync_target_model(model: Any, target_model: Any, alpha: float) -> None:
        """Mixes the weights into the reference model. Collective, blocking."""
        with sherd.torch.gathered_parameters(model):
            SyncRefModelCallback.sync_target_model(model, target_model, alpha)


class DPOTrainer(TrainerMixin, trl.DPOTrainer):
    """TRL's DPOTrainer, which trains by an engine of sherd. The reference model is whole on each rank."""

    def add_callback(self, callback: Any) -> None:
        """As the Trainer's; it adds Synced in place of TRL's own."""
        super().add_callback(Synced(callback.ref_model, callback.accelerator) if type(callback) is SyncRefModelCallback else callback)


def __getattr__(name: str) -> Any:
    """Returns TRL's object of that name, so that `from sherd.trl import ModelConfig, SFTTrainer` is one import too."""
    return getattr(trl, name)

"""deepspeed.ops: the names of DeepSpeed's optimizers. The engine makes the updates, wherever its state is."""
from __future__ import annotations

from typing import Any

import torch

from sherd.deepspeed.refusals import missing, refused
from sherd.errors import NotSupportedError


def _adam(call: str, params: Any, adam_w_mode: bool, bias_correction: bool, amsgrad: bool, values: dict[str, Any]) -> torch.optim.Optimizer:
    """Returns torch's optimizer that says the same."""
    if not bias_correction:
        raise NotSupportedError(f"{call}(bias_correction=False): write the block \"optimizer\" with it into the configuration, or leave it out")
    if amsgrad:
        raise NotSupportedError(f"{call}(amsgrad=True): the engine has no AMSGrad")
    return (torch.optim.AdamW if adam_w_mode else torch.optim.Adam)(params, **values)


def FusedAdam(params: Any, lr: float = 1e-3, bias_correction: bool = True, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
              adam_w_mode: bool = True, weight_decay: float = 0.0, amsgrad: bool = False, set_grad_none: bool = True) -> torch.optim.Optimizer:
    """Returns torch.optim.AdamW, or Adam without adam_w_mode, from which deepspeed.initialize() reads groups and values. Local."""
    return _adam("FusedAdam", params, adam_w_mode, bias_correction, amsgrad, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})


def DeepSpeedCPUAdam(model_params: Any, lr: float = 1e-3, bias_correction: bool = True, betas: tuple[float, float] = (0.9, 0.999),
                     eps: float = 1e-8, weight_decay: float = 0, amsgrad: bool = False, adamw_mode: bool = True,
                     fp32_optimizer_states: bool = True) -> torch.optim.Optimizer:
    """Returns torch.optim.AdamW, or Adam without adamw_mode. The state is on the CPU where "offload_optimizer" says so. Local."""
    if not fp32_optimizer_states:
        raise NotSupportedError("DeepSpeedCPUAdam(fp32_optimizer_states=False): \"sherd\": {\"moment_encoding\": \"bf16\"} in the configuration "
                                "keeps moments in bf16")
    return _adam("DeepSpeedCPUAdam", model_params, adamw_mode, bias_correction, amsgrad,
                 {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})


class FusedLion(torch.optim.Optimizer):
    """Lion, of which deepspeed.initialize() reads groups and values; also under the name DeepSpeedCPULion."""

    def __init__(self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0,
                 **options: Any) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})


def DeepSpeedCPUAdagrad(model_params: Any, lr: float = 1e-2, eps: float = 1e-10, weight_decay: float = 0,
                        amsgrad: bool = False) -> torch.optim.Optimizer:
    """Returns torch.optim.Adagrad. Local."""
    return torch.optim.Adagrad(model_params, lr=lr, eps=eps, weight_decay=weight_decay)


DeepSpeedCPULion = FusedLion
FusedLamb = refused("deepspeed.ops.lamb.FusedLamb", "write \"optimizer\": {\"type\": \"Lamb\"} into the configuration")
ZenFlowCPUAdam = refused("deepspeed.ops.adam.ZenFlowCPUAdam", "there is no ZenFlow")


def __getattr__(name: str) -> Any:
    raise missing(f"deepspeed.ops.{name}")

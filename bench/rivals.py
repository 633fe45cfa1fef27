#!/usr/bin/env python3
"""Steps of a model in the form of Qwen2.5 by one peer, its optimizer state in host memory: PyTorch's FSDP2 with CPU offload, or
DeepSpeed's ZeRO-3 with offload of parameters and optimizer. One GPU, transformers' model, random weights and tokens, activations
recomputed, gradients clipped. tests/gpu/check.sh --part rivals compares it with the trainer of the same shape and tokens.

Each peer is used as well as its documentation says. FSDP2 keeps gradients and gathered parameters on the GPU between the
micro-batches of a step, and its AdamW is the fused one; DeepSpeed has its own CPUAdam. fp32 masters and moments, bf16 products.
A line for the start and for each step as soon as it is known; the rate is that of the last step."""
from __future__ import annotations

import argparse
import os
import socket
import sys
import time

LR, BETAS, EPS, DECAY = 1e-4, (0.9, 0.95), 1e-8, 0.1
DRAWN = 1 << 22  # first values that are drawn, and then repeated: a start is not what is compared here


def config_of(arguments):
    from transformers import Qwen2Config

    return Qwen2Config(hidden_size=arguments.hidden, num_hidden_layers=arguments.layers, num_attention_heads=arguments.heads,
                       num_key_value_heads=arguments.kv_heads, intermediate_size=arguments.inner, vocab_size=arguments.vocab,
                       max_position_embeddings=max(32768, arguments.length), rope_theta=1e6, tie_word_embeddings=False,
                       use_cache=False)


def model_of(config, **how):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", **how)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


class Fsdp2:
    def __init__(self, arguments) -> None:
        import torch
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

        on_gpu = arguments.device == "cuda"
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
        config = config_of(arguments)
        with torch.device("meta"):
            self.model = model_of(config, dtype=torch.float32)
        how = {"mesh": torch.distributed.init_device_mesh(arguments.device, (1,)),
               "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
               "offload_policy": CPUOffloadPolicy() if on_gpu else OffloadPolicy()}
        for layer in self.model.model.layers:
            fully_shard(layer, **how)
        fully_shard(self.model, **how)
        self.model.to_empty(device="cpu")
        self.values_draw(torch)
        self.model.model.rotary_emb = type(self.model.model.rotary_emb)(config).to(arguments.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, fused=True)

    def values_draw(self, torch) -> None:
        drawn = torch.randn(DRAWN) * 0.02
        with torch.no_grad():
            for param in self.model.parameters():
                flat = param.to_local().view(-1)
                if param.dim() == 1:
                    flat.fill_(1.0)
                    continue
                for first in range(0, flat.numel(), DRAWN):
                    flat[first:first + DRAWN] = drawn[:min(DRAWN, flat.numel() - first)]

    def step(self, rows) -> float:
        import torch

        for number, row in enumerate(rows):
            is_last = number == len(rows) - 1
            self.model.set_requires_gradient_sync(is_last)
            self.model.set_reshard_after_backward(is_last)
            loss = self.model(input_ids=row, labels=row).loss
            (loss / len(rows)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


class Zero3:
    def __init__(self, arguments) -> None:
        import deepspeed
        import torch

        device = {"device": "cpu", "pin_memory": arguments.device == "cuda"}
        config = {"train_micro_batch_size_per_gpu": arguments.batch, "gradient_accumulation_steps": arguments.accumulation,
                  "gradient_clipping": 1.0, "bf16": {"enabled": True},
                  "optimizer": {"type": "AdamW", "params": {"lr": LR, "betas": list(BETAS), "eps": EPS, "weight_decay": DECAY}},
                  "zero_optimization": {"stage": 3, "overlap_comm": True, "contiguous_gradients": True, "offload_optimizer": device,
                                        "offload_param": device, "sub_group_size": 1 << 30}}
        deepspeed.init_distributed("nccl" if arguments.device == "cuda" else "gloo", auto_mpi_discovery=False)
        with torch.device(arguments.device):  # where it is whole once; initialize shards it
            model = model_of(config_of(arguments), dtype=torch.bfloat16)
        self.engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())

    def step(self, rows) -> float:
        for row in rows:
            loss = self.engine(input_ids=row, labels=row).loss
            self.engine.backward(loss)
            self.engine.step()
        return loss.item()


PEERS = {"fsdp2": Fsdp2, "deepspeed": Zero3}


def say(arguments, text: str) -> None:
    """On what was stdout: the packages print to it too."""
    print(f"{arguments.peer} {text}", file=arguments.out, flush=True)


def arguments_read():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=list(PEERS))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    for name, value in (("hidden", 3584), ("layers", 12), ("heads", 28), ("kv-heads", 4), ("inner", 18944), ("vocab", 152064),
                        ("batch", 2), ("length", 4096), ("accumulation", 8), ("steps", 2)):
        parser.add_argument(f"--{name}", type=int, default=value, help=f"({value})")
    return parser.parse_args()


def main() -> None:
    started = time.perf_counter()
    arguments = arguments_read()
    arguments.out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    os.environ.update(alone)
    try:
        import torch
        peer = PEERS[arguments.peer](arguments)
    except ImportError as error:
        sys.exit(f"rivals: {arguments.peer} is not installed for {sys.executable}: {error}")
    tokens = arguments.accumulation * arguments.batch * arguments.length
    say(arguments, f"{torch.__version__}: {arguments.layers} layers, started in {time.perf_counter() - started:.1f} s")
    draw = torch.Generator().manual_seed(2)
    for number in range(arguments.steps):
        rows = torch.randint(arguments.vocab, (arguments.accumulation, arguments.batch, arguments.length), generator=draw)
        rows = rows.to(arguments.device)
        start = time.perf_counter()
        loss = peer.step(rows)
        if arguments.device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        say(arguments, f"step {number + 1}: {seconds:.3f} s, loss {loss:.4f}")
    held = f"; {torch.cuda.max_memory_reserved() / 2**30:.1f} GiB of the GPU" if arguments.device == "cuda" else ""
    say(arguments, f"{seconds:.3f} s a step, {tokens / seconds:.0f} tokens/s, {1e3 * seconds / arguments.layers:.1f} ms a layer{held}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""MiniMind-3 (the architecture of github.com/jingyaogong/minimind), trained on the bytes of a text file.
The names of its weights are those of transformers' Qwen3."""
import argparse
import math

import sherd.torch
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    """Grouped queries, a norm on each head of queries and keys, rotary positions in two halves."""

    def __init__(self, hidden, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, hidden // heads
        self.q_proj = nn.Linear(hidden, heads * self.size, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(heads * self.size, hidden, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(self.size, eps=1e-6), nn.RMSNorm(self.size, eps=1e-6)

    def rotate(self, x):
        half = self.size // 2
        angles = torch.arange(x.shape[2], device=x.device)[:, None] * 1e6 ** (-torch.arange(half, device=x.device) / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    def forward(self, x):
        batch, length, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(batch, length, self.heads, self.size)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(batch, length, self.kv_heads, self.size)).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        seen = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True, enable_gqa=True)
        return self.o_proj(seen.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        inner = 64 * math.ceil(math.pi * hidden / 64)
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, hidden, heads, kv_heads):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(hidden, eps=1e-6)
        self.self_attn = Attention(hidden, heads, kv_heads)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps=1e-6)
        self.mlp = FeedForward(hidden)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, vocab, hidden, layers, heads, kv_heads):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads, kv_heads) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden, eps=1e-6)
        self.is_recomputed = False

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.is_recomputed and self.training else layer(x)
        return self.norm(x)


class MiniMind(nn.Module):
    """tokens [batch, length + 1] -> mean loss of the next token over all places."""

    def __init__(self, vocab=256, hidden=768, layers=8, heads=8, kv_heads=4):
        super().__init__()
        self.model = Trunk(vocab, hidden, layers, heads, kv_heads)
        self.lm_head = nn.Linear(hidden, vocab, bias=False)
        self.lm_head.weight = self.model.embed_tokens.weight
        for value in self.parameters():
            if value.dim() > 1:
                nn.init.normal_(value, std=0.02)

    def forward(self, tokens):
        logits = self.lm_head(self.model(tokens[:, :-1]))
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="a text file")
    parser.add_argument("--config", default="ds_config.json", help="stage, optimizer, offload")
    parser.add_argument("--out", help="file for the weights")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=256, help="MiniMind-3 has 768")
    parser.add_argument("--layers", type=int, default=4, help="MiniMind-3 has 8")
    parser.add_argument("--recompute", action="store_true", help="do not keep the activations of layers")
    args = parser.parse_args()

    torch.manual_seed(42)
    with open(args.data, "rb") as text:
        data = torch.frombuffer(bytearray(text.read()), dtype=torch.uint8).long()
    model = MiniMind(hidden=args.hidden, layers=args.layers)
    model.model.is_recomputed = args.recompute
    engine = sherd.torch.initialize(model, config=args.config)
    draw = torch.Generator().manual_seed(42 + engine.rank)
    for step in range(args.steps):
        starts = torch.randint(len(data) - args.length, (args.batch,), generator=draw).tolist()
        loss = engine(torch.stack([data[at:at + args.length + 1] for at in starts]))
        engine.backward(loss)
        engine.step()
        if engine.rank == 0 and (step % 10 == 0 or step == args.steps - 1):
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    if args.out:
        engine.save_pretrained(args.out)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""A small GPT on the bytes of a text file, read and written one byte at a time."""
import argparse
import math

import sherd.torch
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """tokens [batch, length] -> mean loss over the targets [batch, length], or logits [batch, length, vocab] without them."""

    def __init__(self, layers, width, heads, length, vocab=256):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        for name, value in self.named_parameters():
            if value.dim() > 1:
                deep = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(value, std=0.02 / math.sqrt(2 * layers) if deep else 0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, targets=None):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="a text file")
    parser.add_argument("--config", default="ds_config.json", help="stage, optimizer, offload")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    args = parser.parse_args()

    torch.manual_seed(1)
    with open(args.data, "rb") as text:
        data = torch.frombuffer(bytearray(text.read()), dtype=torch.uint8).long()
    model = GPT(args.layers, args.width, args.heads, args.length)
    engine = sherd.torch.initialize(model, config=args.config)
    draw = torch.Generator().manual_seed(1 + engine.rank)
    for step in range(args.steps):
        starts = torch.randint(len(data) - args.length, (args.batch,), generator=draw).tolist()
        rows = torch.stack([data[at:at + args.length + 1] for at in starts])
        loss = engine(rows[:, :-1], rows[:, 1:])
        engine.backward(loss)
        engine.step()
        if engine.rank == 0 and (step % 10 == 0 or step == args.steps - 1):
            print(f"step {step} loss {loss.item():.4f}", flush=True)

    model.eval()
    with torch.no_grad():
        out = data[:1].view(1, 1)
        for _ in range(100):
            logits = engine(out[:, -args.length:])[:, -1]
            out = torch.cat([out, logits.softmax(-1).multinomial(1, generator=draw)], 1)
    print(bytes(out[0].tolist()).decode(errors="replace"))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Trains a model of transformers on the bytes of a text file: a folder that save_pretrained made, or a small GPT-2 or
Qwen3 with random weights."""
import argparse

import sherd.torch
import torch
import transformers


def model_make(kind):
    sizes = {"vocab_size": 256, "bos_token_id": None, "eos_token_id": None}
    if kind == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=128, n_layer=4, n_head=4, **sizes))
    if kind == "qwen3":
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
            hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
            head_dim=32, tie_word_embeddings=True, **sizes))
    return transformers.AutoModelForCausalLM.from_pretrained(kind)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="a text file")
    parser.add_argument("--config", default="ds_config.json", help="stage, optimizer, offload")
    parser.add_argument("--model", default="gpt2", help="gpt2, qwen3 (small, random weights) or a folder")
    parser.add_argument("--out", help="folder for the weights")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    args = parser.parse_args()

    transformers.set_seed(1)
    with open(args.data, "rb") as text:
        data = torch.frombuffer(bytearray(text.read()), dtype=torch.uint8).long()
    model = model_make(args.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, args.steps)
    engine = sherd.torch.initialize(model, config=args.config, optimizer=optimizer, lr_scheduler=schedule)
    draw = torch.Generator().manual_seed(1 + engine.rank)
    model.train()
    for step in range(args.steps):
        starts = torch.randint(len(data) - args.length, (args.batch,), generator=draw).tolist()
        rows = torch.stack([data[at:at + args.length] for at in starts])
        loss = engine(input_ids=rows, labels=rows).loss
        engine.backward(loss)
        engine.step()
        if engine.rank == 0 and (step % 10 == 0 or step == args.steps - 1):
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    if args.out:
        engine.save_pretrained(args.out)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""transformers' Trainer over a sherd engine: its import is all that differs. A small GPT-2 with random weights on the bytes of
a text file; every argument of the Trainer is an option, and --deepspeed names the engine's configuration."""
from sherd.transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments, set_seed


def main():
    parser = HfArgumentParser(TrainingArguments, description=__doc__)
    parser.add_argument("--data", required=True, help="a text file")
    parser.add_argument("--length", type=int, default=128)
    args, more = parser.parse_args_into_dataclasses()
    with open(more.data, "rb") as text:
        data = text.read()
    rows = [list(data[at:at + more.length]) for at in range(0, len(data) - more.length + 1, more.length)]
    set_seed(args.seed)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_embd=128, n_layer=4, n_head=4, bos_token_id=None, eos_token_id=None))
    trainer = Trainer(model, args, train_dataset=[{"input_ids": row, "labels": row} for row in rows])
    trainer.train()
    trainer.save_model()
    if trainer.is_world_process_zero():
        losses = [one["loss"] for one in trainer.state.log_history if "loss" in one]
        print(f"loss {losses[0]:.4f} at first, {losses[-1]:.4f} at the end")


if __name__ == "__main__":
    main()

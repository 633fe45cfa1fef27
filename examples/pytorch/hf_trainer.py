#!/usr/bin/env python3
"""transformers' Trainer over a sherd engine: the Trainer has data, logging and the loop, the engine memory, gradients and
updates. A small GPT-2 with random weights on the bytes of a text file."""
import argparse
import os

import sherd.torch
import torch
import transformers


class NoOptimizer(torch.optim.Optimizer):
    """What the Trainer steps: engine.step() has made the update before."""

    def __init__(self):
        super().__init__([torch.nn.Parameter(torch.zeros(1))], {"lr": 0.0})

    def step(self, closure=None):
        pass


class ShardedTrainer(transformers.Trainer):
    """A Trainer whose micro-batches go through `engine`."""

    def __init__(self, engine, **more):
        super().__init__(model=engine.module, optimizers=(NoOptimizer(), None), **more)
        self.engine = engine

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        loss = self.engine(**self._prepare_inputs(inputs)).loss
        self.engine.backward(loss)
        self.engine.step()
        return loss.detach() / self.args.gradient_accumulation_steps  # the Trainer logs their sum

    def _get_grad_norm(self, *_, **__):
        return self.engine.get_global_grad_norm()


class Rows(torch.utils.data.Dataset):
    """This rank's share of the rows of a text."""

    def __init__(self, path, length, rank, world_size):
        with open(path, "rb") as text:
            data = torch.frombuffer(bytearray(text.read()), dtype=torch.uint8).long()
        self.rows = data[:len(data) // length * length].view(-1, length)[rank::world_size]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, at):
        return {"input_ids": self.rows[at], "labels": self.rows[at]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="a text file")
    parser.add_argument("--config", default="ds_config.json", help="stage, optimizer, offload")
    parser.add_argument("--out", default="trainer_out", help="folder of the Trainer's logs")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    args = parser.parse_args()

    transformers.set_seed(1)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=256, n_embd=128, n_layer=4, n_head=4, bos_token_id=None, eos_token_id=None))
    engine = sherd.torch.initialize(model, config=args.config)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):  # else the Trainer would make a process group of its own
        os.environ.pop(name, None)
    trainer = ShardedTrainer(
        engine, train_dataset=Rows(args.data, args.length, engine.rank, engine.world_size),
        args=transformers.TrainingArguments(
            args.out, max_steps=args.steps, per_device_train_batch_size=args.batch, max_grad_norm=0.0, use_cpu=True,
            lr_scheduler_type="constant", logging_steps=5, save_strategy="no", report_to=[],
            disable_tqdm=True, log_level="info" if engine.rank == 0 else "error"))
    trainer.train()
    if engine.rank == 0:
        print(f"loss {trainer.state.log_history[0]['loss']:.4f} at first, {trainer.state.log_history[-2]['loss']:.4f} at the end")


if __name__ == "__main__":
    main()

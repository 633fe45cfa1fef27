"""The trainer as a program, and its validation loss computed by transformers on the same tokens."""
import json
import os
import subprocess

LENGTH, BATCH = 64, 2
VALIDATION_BATCHES = 16  # of trainer/trainer.c; the last 1/20 of the text is for validation (data.c)


class Trainer:
    def __init__(self, program, scratch):
        self.program, self.scratch = program, scratch
        self.text = os.path.join(scratch, "text")
        with open(self.text, "w") as out:
            for i in range(1500):
                out.write(f"{i % 37} times {i % 11} is {(i % 37) * (i % 11)}. ")

    def path(self, name):
        return os.path.join(self.scratch, name)

    def run(self, arch, *args, steps=1, stage=3, ranks=2, expect=0):
        """Runs it with a preset of `arch`, or with a model's folder; the log's last step, or the message where it has to fail."""
        log = self.path("log")
        model = ["--model", arch] if os.path.exists(arch) else ["--arch", arch, "--preset", "tiny"]
        done = subprocess.run(
            [self.program, "--data", self.text, *model, "--length", str(LENGTH), "--batch", str(BATCH),
              "--precision", "fp32", "--stage", str(stage), "--ranks", str(ranks), "--threads", "1",
             "--sample", "0", "--eval-every", "0", "--quiet", "--steps", str(steps), "--log", log, *args],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        if done.returncode != expect:
            raise AssertionError(f"the trainer ended with {done.returncode}: {done.stdout}")
        if expect != 0:
            return done.stdout
        with open(log) as lines:
            return json.loads([line for line in lines if '"loss"' in line][-1])

    def first_loss(self, arch, path, **how):
        """Validation loss of weights from a file, before anything changed them: a step with the rate 0 changes none."""
        return self.run(arch, "--init", path, "--lr", "0", **how)["validation_loss"]

    def validation_tokens(self):
        """[sequences, LENGTH + 1]: as order_validate chooses them."""
        with open(self.text, "rb") as data:
            tokens = list(data.read())
        train = len(tokens) - len(tokens) // 20
        room = len(tokens) - train - 1 - LENGTH
        sequences = VALIDATION_BATCHES * BATCH
        starts = [train + room * index // (sequences - 1) for index in range(sequences)]
        return [tokens[at:at + LENGTH + 1] for at in starts]

    def loss_of(self, model):
        import torch

        tokens = torch.tensor(self.validation_tokens())
        with torch.no_grad():
            logits = model.eval()(tokens[:, :-1]).logits
            return torch.nn.functional.cross_entropy(
                logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1)).item()

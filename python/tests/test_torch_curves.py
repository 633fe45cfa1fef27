"""Compares loss curves of sherd.torch at stages 0 to 3 on 1, 2 and 3 ranks with that of plain torch (AdamW, fp32).

All start from the same weights. The fingerprints of every step are the same at all stages, and in deterministic mode also on all
numbers of ranks.
"""
from __future__ import annotations

import json
import os

import ranks

try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError as missing:
    ranks.skip(str(missing))

STEPS, BATCH, LENGTH, VOCAB = 50 if os.environ.get("SHERD_TEST_LONG") else 25, 6, 12, 32
EXACT_STEPS = 8
SETTINGS = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1}
FIRST_MOST, LAST_MOST = 1e-6, 1e-4  # largest relative differences of two losses, at the first and at the last step


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """A small GPT: tokens [batch, LENGTH + 1] -> mean loss of the next token."""

    def __init__(self, width: int = 32, layers: int = 3) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCAB, bias=False)
        self.head.weight = self.tokens.weight
        for value in (self.tokens.weight, self.places.weight):
            nn.init.normal_(value, std=0.1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens[:, :-1]) + self.places(torch.arange(LENGTH))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens[:, 1:].flatten())


def model_make() -> Model:
    """Returns the model, with the same weights each time."""
    torch.manual_seed(3)
    return Model()


def data() -> torch.Tensor:
    """Returns tokens [STEPS, BATCH, LENGTH + 1]. Each is a function of the one before, or noise, so there is something to learn."""
    draw = torch.Generator().manual_seed(4)
    rows = torch.randint(VOCAB, (STEPS, BATCH, LENGTH + 1), generator=draw)
    for at in range(1, LENGTH + 1):
        is_kept = torch.rand(STEPS, BATCH, generator=draw) < 0.8
        rows[..., at] = torch.where(is_kept, (rows[..., at - 1] * 5 + 3) % VOCAB, rows[..., at])
    return rows


def plain_curve() -> list[float]:
    """Returns the losses of plain torch, one for each step."""
    model = model_make()
    optimizer = torch.optim.AdamW(model.parameters(), **SETTINGS)
    losses = []
    for rows in data():
        loss = model(rows)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def engine_make(name: str, **keys):
    """Returns an engine in a world of its own: the ranks meet at another socket each time."""
    import sherd.torch

    os.environ["SHERD_RENDEZVOUS"] = f"{MEET}-{name}"
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": SETTINGS}, "gradient_clipping": 0,
              "zero_optimization": {"stage": keys.pop("stage"), "stage3_param_persistence_threshold": 40}, **keys}
    return sherd.torch.initialize(model_make(), config=config)


def stage_run(stage: int) -> dict[str, list]:
    """Trains with one micro-batch in a step, this rank's share of the rows. Returns this rank's losses, and the fingerprints."""
    engine = engine_make(f"stage-{stage}", stage=stage)
    share = BATCH // engine.world.size
    losses, prints = [], []
    for rows in data():
        loss = engine(rows[engine.world.rank * share:(engine.world.rank + 1) * share])
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        prints.append(engine.fingerprint())
    engine.destroy()
    return {"losses": losses, "prints": prints}


def exact_run(stage: int) -> list[int]:
    """Trains in deterministic mode, and returns the fingerprints.

    A micro-batch has one row, so that torch computes the same gradients whatever the number of ranks.
    """
    share = BATCH // int(os.environ["SHERD_WORLD_SIZE"])
    engine = engine_make(f"exact-{stage}", stage=stage, deterministic=True, gradient_accumulation_steps=share)
    prints = []
    for rows in data()[:EXACT_STEPS]:
        for row in rows[engine.world.rank * share:(engine.world.rank + 1) * share]:
            engine.backward(engine(row[None]))
            engine.step()
        prints.append(engine.fingerprint())
    engine.destroy()
    return prints


def rank_main() -> None:
    stages = [stage_run(stage) for stage in range(4)]
    exact = [exact_run(stage) for stage in (1, 3)]
    print(json.dumps({"stages": stages, "exact": exact}))


def check_close(what: str, got: float, want: float, most: float) -> None:
    apart = abs(got - want) / abs(want)
    print(f"{what}: {got:.9g} and {want:.9g}, apart {apart:.2g}")
    assert apart <= most, what


def world_check(size: int, plain: list[float]) -> list[int]:
    """Compares a world of `size` ranks with plain torch, and returns the fingerprints of its deterministic run."""
    answers = [json.loads(text.splitlines()[-1]) for text in ranks.run(size)]
    for stage in range(4):
        losses = [sum(values) / size for values in zip(*(answer["stages"][stage]["losses"] for answer in answers))]
        check_close(f"{size} ranks, stage {stage}, first step", losses[0], plain[0], FIRST_MOST)
        check_close(f"{size} ranks, stage {stage}, last step", losses[-1], plain[-1], LAST_MOST)
        for answer in answers:
            same = answer["stages"][stage]["prints"] == answers[0]["stages"][0]["prints"]
            assert same, f"{size} ranks: stage {stage} has other fingerprints than stage 0"
    assert len(set(answers[0]["stages"][0]["prints"])) == STEPS, "a step changed nothing"
    for answer in answers:
        assert answer["exact"] == [answers[0]["exact"][0]] * 2, f"{size} ranks, deterministic: the stages differ"
    return answers[0]["exact"][0]


def main() -> None:
    plain = plain_curve()
    assert plain[-1] < plain[0] - 0.5, "plain torch learned nothing"
    exact = [world_check(size, plain) for size in (1, 2, 3)]
    assert exact[0] == exact[1] == exact[2], f"deterministic: the worlds have other fingerprints: {exact}"
    print("the curves are plain torch's, the fingerprints equal")


torch.set_num_threads(1)
if ranks.rank() is None:
    ranks.ready()
    main()
else:
    MEET = os.environ["SHERD_RENDEZVOUS"]
    rank_main()

"""DeepSpeed's own examples: sherd's side stands in for the package, and the other side is DeepSpeed itself."""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from foreign import Script

HERE = {"DS_ACCELERATOR": "cpu"}


class Images:
    """Stands in for torchvision.datasets.CIFAR10."""

    def __init__(self, *_args: Any, train: bool, **_kwargs: Any) -> None:
        import torch
        generator = torch.Generator().manual_seed(int(train))
        self.images = torch.randn(520 if train else 40, 3, 32, 32, generator=generator)
        self.labels = torch.arange(len(self.images)) % 10

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        return self.images[index], int(self.labels[index])


def images() -> None:
    """Replaces CIFAR10, and gives the model the same first values on both sides."""
    import torch
    import torchvision
    torchvision.datasets.CIFAR10 = Images
    torch.manual_seed(3)


def words() -> None:
    """Replaces the texts and the tokenizer of train_bert_ds.py."""
    import foreign_data
    import transformers
    foreign_data.DATASETS["wikitext"] = foreign_data.DATASETS["Salesforce/wikitext"]
    made = foreign_data.tokenizer()
    made.mask_token = "[UNK]"
    transformers.AutoTokenizer.from_pretrained = lambda *_args, **_kwargs: made


def logs() -> None:
    """Replaces what only writes: a summary of tensorboard's, and git."""
    import sys
    nothing = SimpleNamespace(add_scalar=lambda *_args, **_kwargs: None)
    sys.modules.setdefault("torch.utils.tensorboard", SimpleNamespace(SummaryWriter=lambda **_kwargs: nothing))  # type: ignore[arg-type]
    import sh
    said = SimpleNamespace(stdout=b"")
    sh.git = SimpleNamespace(log=lambda *_args, **_kwargs: said, diff=lambda *_args, **_kwargs: said)


CIFAR = "deepspeed/training/cifar/cifar10_deepspeed.py"
BERT = "deepspeed/training/HelloDeepSpeed/train_bert_ds.py"


def bert(name: str, every: str, **options: Any) -> Script:
    """train_bert_ds.py, which computes in bf16 and whose losses are bf16; a step of these is 0.6 %."""
    return Script(BERT, {}, ("--checkpoint_dir", "run", "--batch_size", "4", "--num_iterations", "33", "--checkpoint_every", every,
                             "--num_layers", "2", "--h_dim", "32", "--ff_dim", "48", "--num_heads", "4", "--dropout", "0"),
                  stands_in=("foreign_data:hub", "foreign_deepspeed:words", "foreign_deepspeed:logs"), name=name, stages=(1,), tolerance=1e-2,
                  needs=("deepspeed", "datasets", "fire", "loguru", "pytz", "sh"), environment=HERE, package="deepspeed", **options)


SCRIPTS = [
    Script(CIFAR, {}, ("--epochs", "1", "--dtype", "fp32", "--stage", "{stage}"), stands_in=("foreign_deepspeed:images",),
           needs=("deepspeed", "torchvision"), environment=HERE, package="deepspeed"),
    Script(CIFAR, {}, ("--epochs", "1", "--dtype", "fp32", "--moe"), stands_in=("foreign_deepspeed:images",), needs=("deepspeed", "torchvision"),
           environment=HERE, name="cifar10_deepspeed.py --moe", stages=(0,), ranks=(1,), package="deepspeed",
           refused="moe.layer.MoE: there is no expert parallelism"),
    bert("train_bert_ds.py", "16", ranks=(1,)),
    bert("train_bert_ds.py, no checkpoint", "33", ranks=(2,)),  # the folder that each rank names has the second of the clock in it
]

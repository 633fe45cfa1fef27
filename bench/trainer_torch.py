#!/usr/bin/env python3
"""A training step of GPT-2 by PyTorch alone, compiled: what bench-trainer --backend cuda is held against.

The model of examples/pytorch/plain/nanogpt.py, in bf16 by autocast with fp32 weights, fused AdamW, no dropout. The share of
the peak counts operations as trainer/speed.c does. Times are medians of steps behind those that compile.
"""
import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "pytorch" / "plain"))

import torch  # noqa: E402
from nanogpt import GPT  # noqa: E402

WARM_STEPS = 5


def flops_per_token(model, layers, width, length):
    """(6 x weights that are multiplied by + 12 x layers x width x length), as PaLM counts; the tied head counts once."""
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and not name.startswith("places"))
    return 6 * matrices + 12 * layers * width * length


def peak_tflops(name):
    """Dense bf16 of the data sheet; 0: not known."""
    sheet = {"H100 PCIe": 756, "H100": 989, "H200": 989, "A100": 312, "L40S": 362, "B200": 2250}
    return next((rate for word, rate in sheet.items() if word in name), 0)


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def step_seconds(model, args):
    tokens = torch.randint(args.vocab, (args.batch, args.length + 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=args.device == "cuda")
    loss_of = model if args.eager else torch.compile(model)
    seconds, loss = [], None
    for _ in range(WARM_STEPS + args.steps):
        wait(args.device)
        start = time.perf_counter()
        with torch.autocast(args.device, dtype=torch.bfloat16):
            loss = loss_of(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait(args.device)
        seconds.append(time.perf_counter() - start)
        if len(seconds) == 1:
            print(f"# the first step, with what it compiles: {seconds[0]:.1f} s", flush=True)
    return seconds[WARM_STEPS:], loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    for name, value in (("layers", 12), ("width", 768), ("heads", 12), ("vocab", 50304), ("batch", 32), ("length", 1024),
                        ("steps", 20)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--peak-tflops", type=float, default=0, help="of the device (default: by its name)")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_default_device(args.device)
    torch.set_float32_matmul_precision("high")
    model = GPT(args.layers, args.width, args.heads, args.length, args.vocab)
    seconds, loss = step_seconds(model, args)
    median, tokens = statistics.median(seconds), args.batch * args.length
    name = torch.cuda.get_device_name() if args.device == "cuda" else "the CPU"
    rate = flops_per_token(model, args.layers, args.width, args.length) * tokens / median
    peak = 1e12 * (args.peak_tflops or peak_tflops(name))
    print(f"# PyTorch {torch.__version__} on {name}, {'eager' if args.eager else 'compiled'}")
    share = f", MFU {100 * rate / peak:.1f} %" if peak else ""
    print(f"step {1e3 * median:.2f} ms ({1e3 * min(seconds):.2f} .. {1e3 * max(seconds):.2f}), {tokens / median:.0f} tokens/s"
          f"{share}; loss {loss:.4f}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""AdamW of PyTorch on a GPU, for bench-gpu, and its fp32 products, for bench-gpu-product.

    gpu_peers.py [--elems N] [--device N] [--rounds N]   times it, prints JSON
    gpu_peers.py --serve                                 does what bench-gpu says, a line each:
        setup ELEMS DEVICE      ->  names of what can be timed, tab between
        setup ROWS COLS DEVICE  ->  the same of products, in the order of bench/products.c
        run INDEX REPEATS       ->  seconds, by the device's clock
"""
import argparse
import gc
import json
import os
import statistics
import sys

try:
    import torch
except ImportError as error:
    sys.exit(f"gpu_peers: {error}")
if not torch.cuda.is_available():
    sys.exit("gpu_peers: this PyTorch has no CUDA, or there is no device")

LR, BETAS, EPS, DECAY = 1e-4, (0.9, 0.999), 1e-8, 0.01


class Timed:
    """Calls by name, and how long they take."""

    def __init__(self, device):
        self.device = torch.device("cuda", device)
        self.rows = {}

    def seconds(self, name, repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.device(self.device):
            torch.cuda.synchronize()
            start.record()
            for _ in range(repeats):
                self.rows[name]()
            end.record()
            end.synchronize()
        return start.elapsed_time(end) * 1e-3 / repeats


class Products(Timed):
    def __init__(self, rows, cols, device):
        super().__init__(device)
        torch.backends.cuda.matmul.allow_tf32 = False
        x = torch.rand(rows, cols, device=self.device)
        tall = x.view(cols, rows)
        small = torch.rand(rows, rows, device=self.device)
        square, wide, high = torch.empty_like(small), torch.empty_like(x), torch.empty_like(tall)
        self.rows = {
            "x xt": lambda: torch.mm(x, x.T, out=square),
            "a a + b a": lambda: torch.addmm(small, small, small, beta=-4, out=square),
            "b x + a x": lambda: torch.addmm(x, small, x, beta=3, out=wide),
            "xt x": lambda: torch.mm(tall.T, tall, out=square),
            "x b + a x": lambda: torch.addmm(tall, tall, small, beta=3, out=high),
        }


class Peers(Timed):
    def __init__(self, elems, device):
        super().__init__(device)
        self.p = torch.rand(elems, device=self.device)
        self.g16 = torch.rand(elems, device=self.device, dtype=torch.bfloat16).mul_(1e-3)
        self.p16 = self.p.bfloat16()
        self.p.grad = torch.rand(elems, device=self.device).mul_(1e-3)
        for way in ("fused", "foreach"):
            optimizer = torch.optim.AdamW([self.p], LR, BETAS, EPS, DECAY, **{way: True})
            optimizer.step()
            self.rows[f"torch {way} fp32"] = optimizer.step
            if way == "fused":
                self.optimizer = optimizer
                self.rows["torch fused mixed"] = self.mixed

    def mixed(self):
        """Gradient to fp32, step, parameter to bf16: what a fp32 optimizer does with bf16 training."""
        self.p.grad.copy_(self.g16)
        self.optimizer.step()
        self.p16.copy_(self.p)


def serve():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the package says of itself is no answer
    peers = None
    for line in sys.stdin:
        words = line.split()
        with torch.no_grad():
            if words[0] == "setup":
                peers = None  # its memory first; its rows refer to it
                gc.collect()
                torch.cuda.empty_cache()
                peers = (Products if len(words) == 4 else Peers)(*map(int, words[1:]))
                answer = "\t".join(peers.rows)
            else:
                answer = repr(peers.seconds(list(peers.rows)[int(words[1])], int(words[2])))
        print(answer, file=answers, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--elems", type=int, default=1 << 26)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    with torch.no_grad():
        peers = Peers(options.elems, options.device)
        seconds = {name: [] for name in peers.rows}
        for _ in range(options.rounds + 1):
            for name in peers.rows:
                seconds[name].append(peers.seconds(name, 10))
    print(json.dumps({
        "torch": torch.__version__, "device": torch.cuda.get_device_name(options.device), "elems": options.elems,
        "gel_per_s": {name: options.elems / statistics.median(s[1:]) * 1e-9 for name, s in seconds.items()},
    }, indent=1))


if __name__ == "__main__":
    main()

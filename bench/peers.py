#!/usr/bin/env python3
"""AdamW of PyTorch and of DeepSpeed (its CPU Adam), as far as they are installed, for bench-adam.

    peers.py [--elems N] [--threads N] [--rounds N]    times what is there, prints JSON
    peers.py --serve                                   does what bench-adam says, a line each:
        setup ELEMS THREADS  ->  names of what can be timed, tab between
        run INDEX REPEATS    ->  seconds
"""
import argparse
import ctypes
import json
import os
import statistics
import sys
import time

try:
    import torch
except ImportError as error:
    sys.exit(f"peers: {error}")

LR, BETAS, EPS, DECAY = 1e-4, (0.9, 0.999), 1e-8, 0.01


def deepspeed_op():
    """The operator of DeepSpeedCPUAdam, built on first use; None where there is none."""
    try:
        from deepspeed.ops.op_builder import CPUAdamBuilder
        return CPUAdamBuilder().load(verbose=False)
    except Exception as error:  # whatever a foreign build fails with
        print(f"peers: no DeepSpeed: {str(error).splitlines()[0]}", file=sys.stderr)
        return None


def tensor(elems, scale, dtype=torch.float32):
    """On huge pages, as sherd's memory is: no peer shall lose for that."""
    x = torch.empty(elems, dtype=dtype)
    start = -(-x.data_ptr() // 4096) * 4096
    end = x.data_ptr() + x.numel() * x.element_size()
    madv_hugepage = 14
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(max(end - start, 0)), madv_hugepage)
    step = 1 << 20
    for first in range(0, elems, step):
        x[first:first + step] = torch.rand(min(step, elems - first)).add_(2.0**-24).mul_(scale)
    return x


class Peers:
    def __init__(self, op, elems, threads):
        torch.set_num_threads(threads)
        self.op, self.step = op, 0
        self.p, self.m, self.v, self.g = (tensor(elems, scale) for scale in (1.0, 1e-3, 1e-5, 1e-3))
        self.rows = {}
        if op is not None:
            op.create_adam(0, LR, *BETAS, EPS, DECAY, True, False)
            self.g16 = tensor(elems, 1e-3, torch.bfloat16)
            self.p16 = tensor(elems, 1.0, torch.bfloat16)
            self.rows["deepspeed fp32"] = self.deepspeed_f32
            self.rows["deepspeed mixed"] = self.deepspeed_mixed
        self.p.grad = self.g
        for way in ("foreach", "fused"):
            optimizer = self.torch_optimizer(way)
            if optimizer is not None:
                self.rows[f"torch {way} fp32"] = optimizer.step

    def torch_optimizer(self, way):
        try:
            optimizer = torch.optim.AdamW([self.p], LR, BETAS, EPS, DECAY, **{way: True})
            optimizer.step()
            return optimizer
        except (TypeError, RuntimeError, ValueError):
            return None  # this version has no such way on the CPU

    def deepspeed_f32(self):
        self.step += 1
        self.op.adam_update(0, self.step, LR, *BETAS, EPS, DECAY, True, self.p, self.g, self.m, self.v)

    def deepspeed_mixed(self):
        """What ZeRO-Offload does for bf16: gradient to fp32, step, parameter to bf16."""
        self.g.copy_(self.g16)
        self.deepspeed_f32()
        self.p16.copy_(self.p)

    def seconds(self, name, repeats):
        start = time.perf_counter()
        for _ in range(repeats):
            self.rows[name]()
        return (time.perf_counter() - start) / repeats


def serve():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the packages say of themselves is no answer
    op, peers = deepspeed_op(), None
    for line in sys.stdin:
        words = line.split()
        with torch.no_grad():
            if words[0] == "setup":
                peers = None  # its memory first
                peers = Peers(op, int(words[1]), int(words[2]))
                answer = "\t".join(peers.rows)
            else:
                answer = repr(peers.seconds(list(peers.rows)[int(words[1])], int(words[2])))
        print(answer, file=answers, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--elems", type=int, default=1 << 24)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    with torch.no_grad():
        peers = Peers(deepspeed_op(), options.elems, options.threads)
        seconds = {name: [] for name in peers.rows}
        for _ in range(options.rounds + 1):
            for name in peers.rows:
                seconds[name].append(peers.seconds(name, 1))
    print(json.dumps({
        "torch": torch.__version__, "elems": options.elems, "threads": options.threads,
        "gel_per_s": {name: options.elems / statistics.median(s[1:]) * 1e-9 for name, s in seconds.items()},
    }, indent=1))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""torch.save and torch.distributed.checkpoint for bench-checkpoint, of as many bytes and into a folder of TMPDIR.

    checkpoint_peers.py --serve    does what bench-checkpoint says, a line each:
        setup ELEMS THREADS  ->  names of what can be timed, tab between
        run INDEX REPEATS    ->  seconds
"""
import os
import shutil
import sys
import tempfile
import time

try:
    import torch
    import torch.distributed.checkpoint as dcp
except ImportError as error:
    sys.exit(f"peers: {error}")

UNITS, PARTS = 16, ("master", "exp_avg", "exp_avg_sq")


def sync(path, is_dropped=False):
    """What was written is on the medium; then a later read does not find it in memory."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    if is_dropped:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


class Peers:
    def __init__(self, elems, threads):
        torch.set_num_threads(threads)
        folder = tempfile.gettempdir()
        self.file, self.folder = os.path.join(folder, "torch.pt"), os.path.join(folder, "dcp")
        self.state = {f"unit.{u}:{part}": torch.full((elems // UNITS,), 0.5)
                      for u in range(UNITS) for part in PARTS}
        self.rows = {"torch.save": (self.clear, self.save), "torch.load": (self.drop, self.load),
                     "dcp.save": (self.clear_folder, self.save_folder), "dcp.load": (self.drop, self.load_folder)}

    def clear(self):
        if os.path.exists(self.file):
            os.remove(self.file)

    def save(self):
        torch.save(self.state, self.file)
        sync(self.file)

    def clear_folder(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def save_folder(self):
        dcp.save(self.state, checkpoint_id=self.folder, no_dist=True)  # syncs its files

    def drop(self):
        for path in [self.file] + [os.path.join(self.folder, name) for name in os.listdir(self.folder)] \
                if os.path.isdir(self.folder) else [self.file]:
            sync(path, is_dropped=True)

    def load(self):
        loaded = torch.load(self.file, weights_only=True)
        for name, values in loaded.items():
            self.state[name].copy_(values)

    def load_folder(self):
        dcp.load(self.state, checkpoint_id=self.folder, no_dist=True)

    def seconds(self, index, repeats):
        prepare, run = list(self.rows.values())[index]
        total = 0.0
        for _ in range(repeats):
            prepare()
            start = time.perf_counter()
            run()
            total += time.perf_counter() - start
        return total / repeats


def serve():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the packages say of themselves is no answer
    peers = None
    for line in sys.stdin:
        words = line.split()
        if words[0] == "setup":
            peers = Peers(int(words[1]), int(words[2]))
            answer = "\t".join(peers.rows)
        else:
            answer = repr(peers.seconds(int(words[1]), int(words[2])))
        print(answer, file=answers, flush=True)


if __name__ == "__main__":
    if sys.argv[1:] != ["--serve"]:
        sys.exit(__doc__)
    serve()

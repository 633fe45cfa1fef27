#!/usr/bin/env bash
# Builds a small NCCL from its source into a folder that check.sh --carried takes: the functions that sherd calls, by rings,
# for one architecture. From 2.30 on NCCL holds several ranks on one GPU.  fetch-nccl.sh SOURCE DIR [ARCH] [JOBS]
set -euo pipefail
if [ $# -lt 2 ] || [ "${1#-}" != "$1" ]; then
    echo "usage: tests/gpu/fetch-nccl.sh SOURCE DIR [ARCH, default 90] [JOBS, default 2]" >&2
    exit 2
fi
source=$(realpath "$1")
arch=${3:-90}
mkdir -p "$2/usr/lib/x86_64-linux-gnu" "$2/usr/include"
to=$(realpath "$2")/usr

# As collectives/nccl_library.h lists them; a test that needs another one finds it missing.
FUNCTIONS="SendRecv|AllGather RING *|(AllReduce|ReduceScatter) Sum (f32|f16|bf16) RING *"

# A copy, since a few lines are changed: kernels for symmetric memory over networks and for more types than one are most of
# what the library compiles, and nothing here calls them.
work=$(realpath "$2")/.packages/nccl
mkdir -p "$work/bin"
cp -r "$source/src" "$source/makefiles" "$work/"
sed -i -e 's/^exclude_gin = .*/exclude_gin = True/' -e 's/^all_tys = .*/all_tys = ["f32"]/' -e 's/^all_reds = .*/all_reds = ["sum"]/' \
    "$work/src/device/symmetric/generate.py"

# The compiler with NCCL's own headers before those of a NCCL that lies in the toolkit's folder, less optimised, and
# without a second pass over every file for dependencies, which one build does not need.
cat >"$work/bin/g++" <<SH
#!/bin/sh
case " \$* " in *" -MM "*) echo "none.o:"; exit ;; esac
exec $(command -v g++) -I$work/build/include "\$@" -O1 -g0
SH
chmod +x "$work/bin/g++"

# `lib` alone: neither the static library nor tools. With NVTX: 2.30.7 does not link without.
make -C "$work/src" -j "${4:-2}" lib BUILDDIR="$work/build" CXX="$work/bin/g++" CUDA_HOME="${CUDA_HOME:-/usr/local/cuda}" \
    NVCC_GENCODE="-gencode=arch=compute_$arch,code=sm_$arch" ONLY_FUNCS="$FUNCTIONS"
library=$(realpath "$work/build/lib/libnccl.so.2")
strip --strip-unneeded -o "$to/lib/x86_64-linux-gnu/libnccl.so.2" "$library"
cp "$work/build/include/nccl.h" "$to/include/"
du -h "$to/lib/x86_64-linux-gnu/libnccl.so.2" | awk '{ print "NCCL is " $1 }'
python3 - "$to/lib/x86_64-linux-gnu/libnccl.so.2" <<'PY'
import ctypes, sys
version = ctypes.c_int()
ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL | 2).ncclGetVersion(ctypes.byref(version))  # 2: every symbol now
print(f"it opens, and is {version.value}; several ranks on a GPU need 23000")
PY

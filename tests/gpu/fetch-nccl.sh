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

make -C "$source" -j "${4:-2}" src.build CUDA_HOME="${CUDA_HOME:-/usr/local/cuda}" NVTX=0 \
    NVCC_GENCODE="-gencode=arch=compute_$arch,code=sm_$arch" ONLY_FUNCS="$FUNCTIONS"
library=$(realpath "$source/build/lib/libnccl.so.2")
strip --strip-unneeded -o "$to/lib/x86_64-linux-gnu/libnccl.so.2" "$library"
cp "$source/build/include/nccl.h" "$to/include/"
du -h "$to/lib/x86_64-linux-gnu/libnccl.so.2" | awk '{ print "NCCL is " $1 }'

#!/bin/sh
# Every public header compiles alone, as C17 and as C++, with warnings as errors: headers.sh INCLUDE [CUDA], CUDA the
# folder of the toolkit's headers. Without the vendor's headers its typed header is left out.
set -eu
include=$1
cuda=${2-}
failed=0
for header in "$include"/sherd*.h; do
    name=$(basename "$header")
    flags=""
    if [ "$name" = sherd_mpi.h ]; then
        command -v mpicc >/dev/null || continue
        flags=$(mpicc --showme:compile)
    fi
    if [ "$name" = sherd_cuda.h ]; then
        [ -n "$cuda" ] && flags="-isystem $cuda"
        # shellcheck disable=SC2086
        if ! echo '#include <cuda_runtime_api.h>' | ${CC:-cc} $flags -fsyntax-only -x c - 2>/dev/null; then
            echo "$name: there is no cuda_runtime_api.h"
            continue
        fi
        # shellcheck disable=SC2086
        if echo '#include <nccl.h>' | ${CC:-cc} $flags -fsyntax-only -x c - 2>/dev/null; then
            flags="$flags -DSHERD_WITH_NCCL"
        fi
    fi
    # shellcheck disable=SC2086
    echo "#include <$name>" | ${CC:-cc} -std=c17 -Wall -Wextra -Werror -pedantic -I"$include" $flags -fsyntax-only -x c - || failed=1
    if command -v "${CXX:-c++}" >/dev/null; then
        # shellcheck disable=SC2086
        echo "#include <$name>" | ${CXX:-c++} -std=c++17 -Wall -Wextra -I"$include" $flags -fsyntax-only -x c++ - || failed=1
    fi
    [ $failed = 0 ] && echo "$name stands alone"
done
exit $failed

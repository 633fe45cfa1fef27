#!/bin/sh
# Every public header compiles alone, as C17 and as C++, with warnings as errors.
set -eu
include=$1
failed=0
for header in "$include"/sherd*.h; do
    name=$(basename "$header")
    flags=""
    if [ "$name" = sherd_mpi.h ]; then
        command -v mpicc >/dev/null || continue
        flags=$(mpicc --showme:compile)
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

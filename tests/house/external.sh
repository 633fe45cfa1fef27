#!/bin/sh
# The project as a stranger uses it: installed into an empty folder, found by pkg-config, the guide's
# example compiled outside the tree (shared and static, what of them is installed) and trained on one rank and on three;
# a client in C++ too.
set -eu
build=$1
source=$2
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT

meson install -C "$build" --no-rebuild --quiet --destdir "$scratch/root"
pc=$(find "$scratch/root" -name sherd.pc)
prefix=$(sed -n 's/^prefix=//p' "$pc")
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
root="$scratch/root$prefix"
libdir=$(dirname "$(find "$scratch/root" -name 'libsherd.*' | head -n 1)")
docs=$(find "$scratch/root" -type d -path "*/doc/sherd")

# The guide's example is the file, which is installed too.
awk -v heading='## A trainer in a page' -v language=c -f "$source/tests/house/block.awk" "$docs/docs/guide.md" >"$scratch/guide.c"
diff "$scratch/guide.c" "$docs/examples/minimal/minimal.c"
diff -r "$source/docs" "$docs/docs"

# flags ARGUMENTS: what pkg-config says.
flags() {
    pkg-config --define-variable=prefix="$root" "$@" sherd
}

cd "$scratch"
kinds=""
if [ -e "$libdir/libsherd.so" ]; then
    PKG_CONFIG_LIBDIR=$PKG_CONFIG_PATH pkg-config --cflags --libs sherd # where no other package is known
    # shellcheck disable=SC2046
    ${CC:-cc} -std=c17 -Wall -Wextra -Werror guide.c $(flags --cflags --libs) -Wl,-rpath,"$libdir" -o shared
    kinds="$kinds shared"
fi
if [ -e "$libdir/libsherd.a" ]; then
    # The archive by its name, since the shared one may lie beside it.
    # shellcheck disable=SC2046
    ${CC:-cc} -std=c17 guide.c $(flags --cflags --libs --static | sed 's/-lsherd\b/-l:libsherd.a/') -o static
    kinds="$kinds static"
fi
if command -v "${CXX:-c++}" >/dev/null; then
    cat >client.cpp <<'END'
#include <cstring>
#include <sherd.h>
int main()
{
    sherd_world *world = nullptr;
    int          is_alone = sherd_world_self(&world) == SHERD_OK && sherd_world_size(world) == 1;

    sherd_world_destroy(world);
    return is_alone && std::strlen(sherd_version()) > 0 ? 0 : 1;
}
END
    # shellcheck disable=SC2046
    ${CXX:-c++} -std=c++17 -Wall -Wextra -Werror client.cpp $(flags --cflags --libs) -Wl,-rpath,"$libdir" -o client
    ./client
fi

check() {
    echo "$2"
    echo "$2" | grep -q "$1: y = 3.00 x + 1.00"
}
for kind in $kinds; do
    check "rank 0 of 1" "$("./$kind")"
done
for rank in 0 1 2; do
    SHERD_RANK=$rank SHERD_WORLD_SIZE=3 SHERD_RENDEZVOUS="unix://$scratch/meet" "./${kinds##* }" >"out.$rank" 2>&1 &
    pids="${pids-} $!"
done
for pid in $pids; do
    wait "$pid"
done
for rank in 0 1 2; do
    check "rank $rank of 3" "$(cat "out.$rank")"
done

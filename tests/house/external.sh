#!/bin/sh
# The project as a stranger uses it: installed into an empty folder, found by pkg-config, the README's
# example compiled outside the tree (shared and static) and trained on one rank and on three.
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
libdir=$(dirname "$(find "$scratch/root" -name 'libsherd.so')")

# The README's example is the file.
awk '/^```c$/ { inside = 1; next } /^```$/ { inside = 0 } inside' "$source/README.md" >"$scratch/readme.c"
diff "$scratch/readme.c" "$source/examples/minimal/minimal.c"

cd "$scratch"
# shellcheck disable=SC2046
${CC:-cc} -std=c17 -Wall -Wextra -Werror readme.c $(pkg-config --define-variable=prefix="$root" --cflags --libs sherd) \
    -Wl,-rpath,"$libdir" -o shared
# libudev is what a static hwloc would need; the one here may be shared.
# shellcheck disable=SC2046
${CC:-cc} -std=c17 readme.c $(pkg-config --define-variable=prefix="$root" --cflags sherd) "$libdir/libsherd.a" \
    $(pkg-config --define-variable=prefix="$root" --static --libs sherd | sed 's/-lsherd//; s/-ludev//') -o static

check() {
    echo "$2"
    echo "$2" | grep -q "$1: y = 3.00 x + 1.00"
}
check "rank 0 of 1" "$(./shared)"
check "rank 0 of 1" "$(./static)"
for rank in 0 1 2; do
    SHERD_RANK=$rank SHERD_WORLD_SIZE=3 SHERD_RENDEZVOUS="unix://$scratch/meet" ./shared >"out.$rank" 2>&1 &
    pids="${pids-} $!"
done
for pid in $pids; do
    wait "$pid"
done
for rank in 0 1 2; do
    check "rank $rank of 3" "$(cat "out.$rank")"
done

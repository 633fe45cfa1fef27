#!/bin/sh
# examples/bound: the program's own memory has the trained weights at every stage that binds, on one rank and on three; stage 3 is
# refused: test_bound.sh PROGRAM SHERD SOURCE.
set -eu
program=$1
sherd=$2
source=$3
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT

for stage in 0 1 2; do
    "$program" $stage "$scratch/one.$stage" >"$scratch/out"
    "$sherd" launch -n 3 "$program" $stage "$scratch/three.$stage" >>"$scratch/out"
    [ "$(grep -cE '^sin\(1\) = 0.841, the network says 0\.8[345]' "$scratch/out")" = 2 ] || { cat "$scratch/out" && exit 1; }
    cmp "$scratch/one.0" "$scratch/one.$stage"
    cmp "$scratch/three.0" "$scratch/three.$stage"
done
[ "$(wc -c <"$scratch/one.0")" = $(((3 * 32 + 1) * 4)) ]
if cmp -s "$scratch/one.0" "$scratch/three.0"; then
    echo "three ranks, which see other data, have trained what one rank has" && exit 1
fi
if "$program" 3 >"$scratch/out" 2>&1 || ! grep -q "bound: .*stage 3 does not" "$scratch/out"; then
    cat "$scratch/out" && exit 1
fi
lines=$(wc -l <"$source/examples/bound/bound.c")
[ "$lines" -le 150 ] || { echo "examples/bound/bound.c has $lines lines" && exit 1; }

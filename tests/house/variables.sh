#!/bin/sh
# docs/environment.md has the environment variables that the code reads, and no others; `sherd env` prints each that is set:
# variables.sh SOURCE.
set -eu
cd "$1"
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT

# Names in quotes, but for constants of the interface that messages name.
{
    grep -rhoE '"SHERD_[A-Z_]+"' --include='*.c' --include='*.h' --include='*.cu' base collectives engine kernels offload planning cli models trainer examples
    grep -rhE 'os\.environ' --include='*.py' python/sherd | grep -oE '"SHERD_[A-Z_]+"'
} | tr -d '"' | sort -u | while read -r name; do
    case $name in SHERD_E_* | SHERD_USES_*) continue ;; esac
    echo "$name"
done >"$scratch/read"
sed -n 's/^| \(`SHERD_[^|]*\) |.*/\1/p' docs/environment.md | grep -oE 'SHERD_[A-Z_]+' | sort -u >"$scratch/listed"
sed -n '/^static void put_environment/,/^}/p' engine/env.c | grep -oE 'SHERD_[A-Z_]+' | sort -u >"$scratch/printed"

failed=0
# differ A B SENTENCE: lines of A that B lacks.
differ() {
    comm -23 "$1" "$2" | while read -r name; do echo "$name $3"; done >"$scratch/lines"
    cat "$scratch/lines"
    [ ! -s "$scratch/lines" ] || failed=1
}
[ -s "$scratch/read" ] && [ -s "$scratch/printed" ]
differ "$scratch/read" "$scratch/listed" "is read and not in docs/environment.md"
differ "$scratch/listed" "$scratch/read" "is in docs/environment.md and nothing reads it"
differ "$scratch/listed" "$scratch/printed" "is not printed by sherd env (engine/env.c)"
exit $failed

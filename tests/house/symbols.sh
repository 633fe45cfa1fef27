#!/bin/sh
# The shared library exports what the public headers mark SHERD_API or SHERD_CALL, all of it and nothing else, and each is called with
# what a caller can get wrong: symbols.sh LIBRARY HEADER ...
set -eu
library=$1
shift
wanted=$(cat "$@" | tr '\n' ' ' | grep -oE 'SHERD_(API|CALL)[^;]*;' | grep -oE '\bsherd_[a-z0-9_]+\(' | tr -d '(' | sort -u)
got=$(nm -D --defined-only "$library" | awk '{ print $3 }' | sed 's/@.*//' | sort -u)
if [ "$wanted" != "$got" ]; then
    echo "declared in the headers (<) and exported (>) differ:"
    t=$(mktemp -d)
    echo "$wanted" >"$t/wanted"
    echo "$got" >"$t/got"
    diff "$t/wanted" "$t/got" || true
    rm -r "$t"
    exit 1
fi
calls=$(dirname "$1")/../tests/engine/test_arguments.c
for name in $wanted; do
    if ! grep -q "$name(" "$calls"; then
        echo "$name is never called in $calls"
        exit 1
    fi
done
echo "$got" | wc -l | sed 's/$/ symbols, all declared and called/'

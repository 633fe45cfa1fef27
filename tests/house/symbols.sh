#!/bin/sh
# The shared library exports what sherd.h marks SHERD_API, all of it and nothing else.
set -eu
library=$1
header=$2
wanted=$(tr '\n' ' ' <"$header" | grep -oE 'SHERD_API[^;]*;' | grep -oE '\bsherd_[a-z0-9_]+\(' | tr -d '(' | sort -u)
got=$(nm -D --defined-only "$library" | awk '{ print $3 }' | sed 's/@.*//' | sort -u)
if [ "$wanted" != "$got" ]; then
    echo "declared in sherd.h (<) and exported (>) differ:"
    t=$(mktemp -d)
    echo "$wanted" >"$t/wanted"
    echo "$got" >"$t/got"
    diff "$t/wanted" "$t/got" || true
    rm -r "$t"
    exit 1
fi
echo "$got" | wc -l | sed 's/$/ symbols, all declared/'

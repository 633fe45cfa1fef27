#!/bin/sh
# The commands that pages name are there, with their options: commands.sh SOURCE.
set -eu
cd "$1"
failed=0
missing() {
    echo "a page names $1, which is not there"
    failed=1
}

# Lines of code, and what stands in backticks.
# shellcheck disable=SC2016
code=$(awk '/^```/ { inside = !inside; next }
    inside { print; next }
    { for (n = split($0, part, "`"); n > 1; n--) if (n % 2 == 0) print part[n] }' \
    README.md CONTRIBUTING.md docs/*.md examples/*/README.md | sed 's/ #.*//')

# named PATTERN: what fits it, once each; there is something.
named() {
    names=$(printf '%s\n' "$code" | grep -oE -- "$1" | sed 's/.* //' | sort -u)
    [ -n "$names" ] || { echo "no page names '$1'"; exit 1; }
}

named '^(\./run )?sherd [a-z]+'
for name in $names; do
    grep -q "{\"$name\", cli_" cli/sherd.c || missing "sherd $name"
done
named '^\./run bench [a-z-]+'
for name in $names; do
    bench/run --list | grep -q "^  $name " || [ "$name" = --help ] || missing "./run bench $name"
done
code=$(printf '%s\n' "$code" | grep -E '^(\./run )?(sherd|train) ')
named ' --[a-z][a-z-]+'
for name in $names; do
    grep -qE -- "(^|[\" (|])$name([ ,\\\"]|$)|\"${name#--}\"" cli/*.c trainer/options.c || missing "the option $name"
done

[ $failed = 0 ] && echo "the commands that pages name are there"
exit $failed

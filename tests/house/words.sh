#!/bin/sh
# One word for one thing: words that docs/glossary.md has retired are in no name, comment, message or page: words.sh SOURCE.
# Dated results keep the words of their day.
set -eu
cd "$1"
failed=0

# retired WORD PATTERN: an extended expression, whole words in any case.
retired() {
    if find . -path './build*' -prune -o -path ./.git -prune -o -path ./docs/results -prune -o -type f -print |
        grep -E '\.(c|h|cu|cuh|cpp|md|py|sh)$' | grep -vE '^\./(docs/glossary\.md|tests/house/words\.sh)$' | sort |
        xargs grep -nHiE "$2"; then
        echo "\"$1\" is a retired word: docs/glossary.md has the one to take"
        failed=1
    fi
}

for word in $(sed -n '/^## Retired/,$ s/^| `\([a-z_]*\)` .*/\1/p' docs/glossary.md); do
    retired "$word" "(^|[^a-z])$word([^a-z]|\$)"
done
exit $failed

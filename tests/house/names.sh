#!/bin/sh
# Every name of ours that a comment or a page says is there: names.sh SOURCE. A name with a trailing underscore stands for
# all that begin so.
set -eu
cd "$1"
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT

code=$(find . \( -path './build*' -o -path './.*' \) -prune -o -type f \
    \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.in' \) -print)
other=$(find . \( -path './build*' -o -path './.*' \) -prune -o -type f \
    \( -name 'meson*' -o -name '*.sh' -o -name '*.py' -o -name run \) -print)

# Code and comments apart. A line comment begins a line or follows a space: there are addresses with //.
# shellcheck disable=SC2086
awk -v code="$scratch/code" -v comments="$scratch/comments" '
    FNR == 1 { inside = 0 }
    {
        rest = $0
        while (rest != "") {
            if (inside) {
                at = index(rest, "*/")
                print FILENAME ":" FNR ": " (at ? substr(rest, 1, at - 1) : rest) > comments
                rest = at ? substr(rest, at + 2) : ""
                inside = !at
            } else if (match(rest, /\/\*|(^|[ \t])\/\//)) {
                print substr(rest, 1, RSTART - 1) > code
                inside = substr(rest, RSTART, 2) == "/*"
                text = substr(rest, RSTART + RLENGTH)
                if (!inside) {
                    print FILENAME ":" FNR ": " text > comments
                    text = ""
                }
                rest = text
            } else {
                print rest > code
                rest = ""
            }
        }
    }' $code
# shellcheck disable=SC2086
cat $other >>"$scratch/code"
for file in $code; do
    basename "$file" | sed 's/\.[a-z]*$//'
done >>"$scratch/code"
grep -n '' README.md CONTRIBUTING.md docs/*.md >>"$scratch/comments"

name='\b(sherdi?|SHERDI?)_[A-Za-z0-9_]+'
grep -ohE "$name" "$scratch/code" | sort -u >"$scratch/known"
grep -ohE "$name" "$scratch/comments" | sort -u >"$scratch/named"
[ -s "$scratch/known" ] && [ -s "$scratch/named" ]

failed=0
for said in $(awk '
    NR == FNR { known[$0] = 1; names[++n] = $0; next }
    /_$/ { for (i = 1; i <= n; i++) if (index(names[i], $0) == 1) next }
    !($0 in known)' "$scratch/known" "$scratch/named"); do
    echo "$said is nowhere in the code, but is named here:"
    grep -wF "$said" "$scratch/comments" | cut -c1-160
    failed=1
done
[ $failed = 0 ] && wc -l <"$scratch/named" | sed 's/$/ names in comments and pages, all in the code/'
exit $failed

#!/bin/sh
# What the pages link to is there, and so is every file of ours that a page or a comment names by its folder:
# links.sh SOURCE.
set -eu
cd "$1"
failed=0
folders='base|kernels|collectives|offload|engine|models|planning|cli|python|trainer|examples|include|bench|tools|tests|docs'
sources='^(\./)?('$folders')/.*\.([ch]|cu|cuh|cpp|py)$'
pages='README.md CONTRIBUTING.md docs/*.md examples/*/README.md'

# missing LOCATION NAME FROM: says so unless NAME is there, seen from the folder FROM.
missing() {
    if [ ! -e "$3/$2" ]; then
        echo "$1: there is no $2"
        failed=1
    fi
}

# A link to a place on a page is held against the headings of that page, written as they are in links.
anchors() {
    sed -n 's/^##* //p' "$1" | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9_ -]//g; s/ /-/g'
}

# shellcheck disable=SC2086
links=$(grep -noE '\]\([^) ]+\)' $pages docs/results/*.md | sed 's/](\(.*\))$/\1/')
named=$(find . -path './build*' -prune -o -type f -print | grep -E "$sources" | sort |
    xargs grep -noE "(^|[^A-Za-z0-9_./<-])($folders)/[A-Za-z0-9_./-]+\.([ch]|cu|cuh|cpp|sh|py|md|json)\b" \
        $pages | sed 's/:\([0-9]*\):[^A-Za-z]*/:\1:/')
[ -n "$links" ] && [ -n "$named" ]

while IFS=: read -r page line link; do
    case $link in
    http:* | https:*) continue ;;
    esac
    target=${link%%#*}
    folder=$(dirname "$page")
    [ -z "$target" ] && target=$(basename "$page")
    missing "$page:$line" "$target" "$folder"
    case $link in
    *.md#* | '#'*)
        if ! anchors "$folder/$target" | grep -qx -- "${link#*#}"; then
            echo "$page:$line: $target has no heading ${link#*#}"
            failed=1
        fi
        ;;
    esac
done <<END
$links
END
while IFS=: read -r page line name; do
    missing "$page:$line" "$name" .
done <<END
$named
END

[ $failed = 0 ] && printf '%s\n%s\n' "$links" "$named" | wc -l | sed 's/$/ links and names of files, all there/'
exit $failed

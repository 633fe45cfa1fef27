#!/usr/bin/env bash
# Checks whether two engines do the same. OLD and NEW are texts that tests/campaign/record.c wrote, or programs that
# write such texts; programs are run with the arguments that follow. Prints which layouts differ, and the first lines
# that differ.
#
# compare.sh OLD NEW [ARGUMENTS]
set -euo pipefail

[ $# -ge 2 ] || { echo "usage: $0 OLD NEW [ARGUMENTS]" >&2; exit 2; }
old=$1 new=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# text_of FILE NAME ARGUMENTS: puts the text of FILE, or of the program FILE, into $folder/NAME.
text_of() {
    local file=$1 name=$2
    shift 2
    if [ -x "$file" ]; then
        "$file" "$@" >"$folder/$name"
    else
        cat "$file" >"$folder/$name"
    fi
}

text_of "$old" old "$@"
text_of "$new" new "$@"
[ -s "$folder/old" ] || { echo "$old has written nothing" >&2; exit 1; }
if cmp -s "$folder/old" "$folder/new"; then
    tail -n 1 "$folder/new"
    exit 0
fi
diff "$folder/old" "$folder/new" | sed -n 's|^[<>] \([^:]*/micro [0-9]*\).*|\1|p' | sort | uniq -c || true
diff "$folder/old" "$folder/new" | head -n 40
exit 1

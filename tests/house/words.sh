#!/bin/sh
# One word for one thing: retired words are in no name, comment, message or page: words.sh SOURCE. docs/glossary.md has the words that are
# used. Dated results have the words of their day. Words of the second list are retired from comments and pages; names still have some.
set -eu
cd "$1"
failed=0

# What was, and what is said now.
retired="
landing           staging buffer
landings          staging buffers
num_stays         live ranges
is_fixed          is_deterministic
is_padded         reserved
param_place       param_space
grad_place        grad_space
gather_place      gather_pool_offset
transient_place   transient_pool_offset
order_place       sherdi_order_buffer
config_place      sherdi_config_location
meeting_place     meeting_point
env_place         env_launch
peers_place       peers_address
cuda_place        sherdi_cuda_target
span_place        span_view
saves_place       saves_position
batch_place       batch_layout
attention_place   attention_offsets
row_place         row_kind
hf_numbers        hf_constants
stretch           range
stretches         ranges
shard_piece       sherdi_shard_range
embed_piece       embed_range
piece_bytes       portion_bytes
scatter_run       scatter_work
sherdi_kept       sherdi_linked
sherdi_dry_tell   sherdi_dry_emit
norm_window       norm_cache
trace_span        trace_interval
"

# retired_find WORD NOW PATTERN: an extended expression, whole words in any case.
retired_find() {
    if find . -path './build*' -prune -o -path ./.git -prune -o -path ./docs/results -prune -o -type f -print |
        grep -E '\.(c|h|cu|cuh|cpp|md|py|sh)$' | grep -vE '^\./tests/house/words\.sh$' | sort |
        xargs grep -nHiE "$3"; then
        echo "\"$1\" is retired: say \"$2\""
        failed=1
    fi
}

while read -r word now; do
    [ -z "$word" ] || retired_find "$word" "$now" "(^|[^a-z])$word([^a-z]|\$)"
done <<LIST
$retired
LIST

# Words of comments and pages, and what is said now.
prose="
told              reported; notified; exchanged; passed
untold            unreported
beside            overlapping with; next to; in addition to; split (of a master)
"
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
# shellcheck disable=SC2046
awk '
    FNR == 1 { inside = 0 }
    {
        rest = $0
        while (rest != "") {
            at = inside ? 1 : match(rest, /\/\*|(^|[ \t])\/\//)
            if (!at) next
            if (!inside) {
                is_line = substr(rest, RSTART, 2) != "/*"
                rest = substr(rest, RSTART + RLENGTH)
                inside = !is_line
                if (is_line) { print FILENAME ":" FNR ": " rest; next }
            }
            end = index(rest, "*/")
            print FILENAME ":" FNR ": " (end ? substr(rest, 1, end - 1) : rest)
            inside = !end
            rest = end ? substr(rest, end + 2) : ""
        }
    }' $(find . \( -path './build*' -o -path ./.git \) -prune -o -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' \) -print | sort) \
    >"$scratch/prose"
find . \( -path './build*' -o -path ./.git -o -path ./docs/results \) -prune -o -type f \( -name '*.md' -o -name '*.py' \) -print | sort |
    xargs grep -n '' >>"$scratch/prose"

while read -r word now; do
    if [ -n "$word" ] && grep -E "(^|[^A-Za-z_\`.>-])$word([^A-Za-z_\`(]|\$)" "$scratch/prose"; then
        echo "\"$word\" is retired from comments and pages: say $now"
        failed=1
    fi
done <<LIST
$prose
LIST
exit $failed

#!/bin/sh
# One word for one thing: retired words are in no name, comment, message or page: words.sh SOURCE. docs/glossary.md has the words that are
# used. Dated results keep the words of their day.
set -eu
cd "$1"
failed=0

# What was, and what is said now.
retired="
landing           staging buffer
landings          staging buffers
bridge            bounce buffer
bridges           bounce buffers
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
exit $failed

# Models of 7 and of 14 billion parameters on one GPU, their state in host memory or on a drive, and peers beside them. Parts of
# check.sh, which has what they call. A GPU of 80 GiB and a host of 126 GiB are what the plans are held against, also where
# the machine has more.
# shellcheck shell=bash disable=SC2046,SC2154

LEAST_SEVEN=10800      # tokens/s at 512k tokens a step: 50 % of an H100 by six operations for a parameter and a token
LEAST_SEVEN_SMALL=0.90 # of that at 64k tokens
LEAST_OF_RIVAL=1.0

# Qwen2.5-7B, Qwen2.5-14B, and the form of both; a rehearsal has models of the same form.
SEVEN=$(sized "--preset 7b" "--hidden 16 --layers 2 --heads 2 --kv-heads 1 --inner 32 --vocab 256")
FOURTEEN=$(sized "--preset 7b --hidden 5120 --layers 48 --heads 40 --kv-heads 8 --inner 13824" "$SEVEN")
RIVAL_LAYERS=$(sized 12 2) # that peers have memory for: 16 to 20 bytes an element, and pinned memory in powers of two
TOKENS=$(sized 4096 8)     # of a sequence
SMALL=$(sized 8 2) LARGE=$(sized 64 4) # micro-batches of a step: 64k and 512k tokens with two sequences in each

# config NAME STAGE ZERO [SHERD]: a configuration in $OUT/NAME.json; ZERO and SHERD are members of their blocks.
config() {
    printf '{"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0, "bf16": {"enabled": true},
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
 "zero_optimization": {"stage": %s, "stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 600000000,
  "stage3_max_live_parameters": 2000000000, %s},
 "sherd": {%s}}\n' "$2" "$3" "${4-}" >"$OUT/$1.json"
}

# planned NAME MODEL ACCUMULATION ARGS: a row of sherd plan for the configuration of this name, in $OUT/NAME.planned. RATES: what
# it is made from.
planned() {
    local name=$1 model=$2 accumulation=$3
    shift 3
    # shellcheck disable=SC2086
    "$(program sherd)" plan --arch qwen2 $model --config "$OUT/$name.json" --tokens "$TOKENS" --backend cuda --device-memory 80G \
        --host-memory 126G --stage 3 --rates "${RATES-$(sized measured "$OUT/rates.json")}" --nvme-path "$OUT" --set "gradient_accumulation_steps=$accumulation" --json "$@" >"$OUT/$name.planned"
}

# of_plan NAME KEY: a number of that row.
of_plan() { grep -oE '"'"$2"'": ?[0-9.e+-]+' "$OUT/$1.planned" | sed 's/.*: *//'; }

bytes_of_plan() {
    of_plan "$@" | awk '{ if ($1 < 1073741824) printf "%.1f MiB", $1 / 1048576; else printf "%.1f GiB", $1 / 1073741824 }'
}

# plan_tell NAME MODEL ACCUMULATION ARGS: what the plan says, as a figure.
plan_tell() {
    planned "$@"
    figure "$1 planned: device $(bytes_of_plan "$1" device_bytes) and $(bytes_of_plan "$1" activation_bytes) of activations, host $(
        bytes_of_plan "$1" host_bytes), drive $(bytes_of_plan "$1" nvme_bytes), $(of_plan "$1" queued_s | awk '{ printf "%.3g", $1 }') s a step"
}

# The plan measures the device's rates itself; in a rehearsal they are measured once, and small.
rates_measure() {
    [ "$EMULATED" = 0 ] || [ -s "$OUT/rates.json" ] ||
        "$(program sherd)" bench --backend cuda --ranks 1 --size 64K --rounds 1 --nvme-path "$OUT" --flops 500T --out "$OUT/rates.json"
}

# billions NAME CONFIG MODEL ACCUMULATION STEPS ARGS: the trainer; its start and each of its steps are reported when they are over.
billions() {
    local name=$1 config=$2 model=$3 accumulation=$4 steps=$5
    shift 5
    # shellcheck disable=SC2086
    trained "$name" --arch qwen2 $model --config "$OUT/$config.json" --length "$TOKENS" --accumulation "$accumulation" --steps "$steps" \
        $(sized "" "--peak-tflops 1 --threads 1") "$@" | tee >(grep --line-buffered -E '^(start:|end:|step )' | sed -u "s/^/  $name: /" >&3)
}

# rate_tell NAME CONFIG: tokens per second of the median step after the first, beside the plan's.
rate_tell() {
    local tokens_per_s predicted
    tokens_per_s=$(rate "$1" 1)
    predicted=$(awk -v s="$(of_plan "$2" queued_s)" -v tokens="$(step_tokens "$1")" 'BEGIN { printf "%.0f", (s > 0 ? tokens / s : 0) }')
    figure "$1 $tokens_per_s tokens/s, planned $predicted, MFU $(mfu "$1") %, $(sed -n 's/^loss /loss /p' "$OUT/$1.said"); $(
        sed -n 's/^end: //p' "$OUT/$1.said" | paste -sd';')"
    value "$1" "$tokens_per_s"
}

step_tokens() { sed -n '1s/.*"tokens": \([0-9]*\).*/\1/p' "$OUT/$1.jsonl"; }
fingerprints() { sed -n 's/.*"step": \([0-9]*\),.*"fingerprint": "\([0-9a-fx]*\)".*/\1 \2/p' "$OUT/$1.jsonl" | head -n "$2"; }

# fp32 masters and moments in host memory; bf16 parameters, fp32 gradients and activations on the device.
part_seven() {
    local small large
    config seven 3 '"offload_optimizer": {"device": "cpu"}'
    rates_measure
    plan_tell seven "$SEVEN" "$SMALL"
    billions seven_64k seven "$SEVEN" "$SMALL" 5
    learned seven_64k
    rate_tell seven_64k seven
    planned seven "$SEVEN" "$LARGE"
    billions seven_512k seven "$SEVEN" "$LARGE" 3
    learned seven_512k
    rate_tell seven_512k seven
    small=$(rate seven_64k 1) large=$(rate seven_512k 1)
    line "$large" least "$LEAST_SEVEN" " tokens/s at 512k"
    line "$(awk -v a="$small" -v b="$large" 'BEGIN { printf "%.3f", (b > 0 ? a / b : 0) }')" least "$LEAST_SEVEN_SMALL" " of it at 64k"
    billions seven_again seven "$SEVEN" "$SMALL" 2
    if [ "$(fingerprints seven_64k 2)" != "$(fingerprints seven_again 2)" ]; then
        say "two runs differ: $(fingerprints seven_64k 2 | tr '\n' ' '), again $(fingerprints seven_again 2 | tr '\n' ' ')"
        return 1
    fi
    figure "one fingerprint of two runs: $(fingerprints seven_again 2 | tail -n 1)"
}

# rival NAME: its last step, beside ours. One that is missing, or that has too little memory, is reported, and no failure of ours.
rival() {
    local name=$1 theirs status=0
    # shellcheck disable=SC2046
    PYTHONPATH=${CARRIED_SITE-} DS_SKIP_CUDA_CHECK=1 timeout -k 5 "$(sized 115 60)" "$PYTHON" "$root/bench/rivals.py" "$name" \
        --layers "$RIVAL_LAYERS" --accumulation "$SMALL" --batch 2 --length "$TOKENS" 2>"$OUT/rival_$name.error" |
        tee "$OUT/rival_$name.said" >(sed -u 's/^/  rival /' >&3) >/dev/null || status=$?
    theirs=$(sed -n "s/^$name .* a step, \([0-9]*\) tokens\/s.*/\1/p" "$OUT/rival_$name.said")
    if [ -z "$theirs" ]; then
        figure "$name gave no step (status $status): $(tail -n 1 "$OUT/rival_$name.error" | cut -c 1-200)"
        return 0
    fi
    figure "$(tail -n 1 "$OUT/rival_$name.said")"
    value "$name" "$theirs"
    line "$(awk -v a="$(rate rival_ours 1)" -v b="$theirs" 'BEGIN { printf "%.3f", a / b }')" least "$LEAST_OF_RIVAL" " of $name"
}

part_rivals() {
    local ours
    [ -n "$PYTHON" ] || skip "there is no PyTorch with CUDA here"
    config seven 3 '"offload_optimizer": {"device": "cpu"}'
    billions rival_ours seven "$SEVEN --layers $RIVAL_LAYERS" "$SMALL" 2
    ours=$(rate rival_ours 1)
    figure "ours $RIVAL_LAYERS layers, $ours tokens/s, $(awk -v rate="$ours" -v tokens="$(step_tokens rival_ours)" -v layers="$RIVAL_LAYERS" \
        'BEGIN { printf "%.1f", 1e3 * tokens / rate / layers }') ms a layer"
    value ours "$ours"
    rival fsdp2
    rival deepspeed
}

# Eight bytes an element on the host: bf16 parameters, what they lack of the masters beside them, and moments in 16 bits. Then as
# many layers of the 7B model as have their state, of which a drive keeps two generations, in 50 GiB.
part_fourteen() {
    local layers
    local in_16_bits='"master_encoding": "bf16_beside", "moment_encoding": "bf16"'
    config fourteen 3 '"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}' "$in_16_bits"
    rates_measure
    plan_tell fourteen "$FOURTEEN" "$SMALL" --activations recompute
    billions fourteen fourteen "$FOURTEEN" "$SMALL" 2 --activations recompute
    learned fourteen
    rate_tell fourteen fourteen
    config deepest 3 '"offload_optimizer": {"device": "nvme", "nvme_path": "'"$OUT"'/state"}' "$in_16_bits"
    for layers in $(seq "$(sized 28 4)" -1 1); do
        RATES=assumed planned deepest "$SEVEN --layers $layers" "$SMALL" --nvme-space "$(sized 50G 2400K)" && break
    done
    plan_tell deepest "$SEVEN --layers $layers" "$SMALL"
    rm -rf "$OUT/state"
    mkdir -p "$OUT/state"
    billions deepest deepest "$SEVEN --layers $layers" "$SMALL" 2
    learned deepest
    rate_tell deepest deepest
    figure "deepest has $layers layers"
    value deepest_layers "$layers"
    rm -rf "$OUT/state"
}

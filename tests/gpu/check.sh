#!/usr/bin/env bash
# Everything that needs a GPU, in calls of under eight minutes: builds for the machine's device, runs the benchmarks, the
# trainer and the tests that skip elsewhere, and prints a page for docs/results/. See --help and docs/gpu.md. With --emulated
# it rehearses itself: every part on the emulated device, to its figure.
# shellcheck disable=SC2317 # parts are called by name
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)

# Lines that figures are held against; empty would be none.
MOST_EXPOSED=3.0      # % of a step of the trainer, GPT-2 124M
MOST_OFFLOAD=1.10     # the boundary over the longer of link and host update
LEAST_ADAM_OF_COPY=0.90 # rate of AdamW over that of the device's own copy
LEAST_ADAM_OF_TORCH=1.0
LEAST_LAMB_OF_COPY=0.90
MOST_BESIDE=1.05      # the largest of a queued step over backward and the longest of forward, update and link
LEAST_OFFLOADED=0.85  # tokens/s of GPT-2 774M with offload over those without
MOST_ATTENTION_APART=0.02 # of the largest number, from what the first choice gives
LEAST_MFU=50             # %, GPT-2 124M; an H100 gives 52.4

# NAME LIMIT_S HOW WHAT, in the order in which they run: whether it is right at all, then figures, then the long suites. What
# gives a figure runs alone; those with "beside" that follow each other run at the same time; "asked" is alone, by its name only.
PARTS="
env 20 alone the device, as sherd sees it
kernels 60 beside conformance of the backend, lanes and events
compute 90 beside the trainer's operations against the CPU's, and its losses
attention 60 alone bench gpu-attention, heads of 64 and of 128: each choice of kernels, how fast, and how far from the first
adam 90 alone bench gpu: AdamW, its state in encodings, the other element-wise updates
trainer 90 alone GPT-2 124M, bf16, 32 x 1024; beside it with the other kernels of attention
exposed 45 alone the engine's exposed share of its step
compiled 180 alone the same model by PyTorch alone, torch.compile
choices 150 alone the same with each choice of kernels, beside the default; graphs on a small step
profile 120 alone the time of a step by kernel, by the default and with cuDNN's attention
large 150 alone GPT-2 774M, half a million tokens a step, with and without offload
queued 240 alone bench offload --trainer: GPT-2 774M and layers of a 7B model, state on the host, 8k to 64k tokens a step
nccl 300 beside NCCL, a rank on each device or several on one, whose processes take turns there
proof 150 beside sherd test, fingerprints of CPU and GPU
engine 220 beside the engine's tests, its memory on the device
worlds 150 beside several ranks on one device: threads, processes, and ranks that are lost
torch 90 beside PyTorch's tensors on the device
sanitizer 240 beside memcheck over the kernels and the trainer, racecheck
offload 120 alone bench gpu-offload
lamb 50 alone bench gpu, LAMB; bench gpu-product, the matrix products of Muon
memory 100 alone bench memory: planned, held, and what the device reports
seven 465 asked 7B on one GPU, fp32 state on the host: 64k and 512k tokens a step, as planned and as measured
rivals 300 asked the same model with fewer layers by FSDP2 with CPU offload and by DeepSpeed ZeRO-3 offload, beside ours
fourteen 465 asked 14B with 8 bytes an element on the host; the most layers of 7B whose state fits 50 GiB of drive
"

usage() {
    cat <<'TEXT'
usage: tests/gpu/check.sh [OPTIONS]

  --part LIST    parts, by commas, instead of all: env, kernels, compute, attention, adam, trainer, exposed, compiled, choices,
                 profile, large, queued, nccl, proof, engine, worlds, torch, sanitizer, offload, lamb, memory; and by name only
                 seven, rivals, fourteen, each in a call of its own
  --limit S      seconds for all, the build among them (default: 465); parts that get none are not run
  --out DIR      logs, check.json (a line for each part, as soon as it is known) and page.md (default: build-gpu/check);
                 with --part beside what earlier calls left of other parts
  --build DIR    build folder (default: build-gpu)
  --no-build     the build folder is ready
  --arch A       gpu_arch of the build (default: that of the device by its number, else native)
  --carried F    a folder that fetch-debs.sh made, or its archive: packages that the machine lacks
  --python FILE  an interpreter with PyTorch (default: python3)
  --emulated     rehearses on the emulated device, in a build that has its tests: sizes are small, no line is judged

Prints what it found as a page in Markdown. Exit status: 0 when all that ran passed, 77 without a device, else 1.
TEXT
}

say() { printf '%s\n' "$*"; }

# ------------------------------------------------------------------- parts --
# Each runs in a process of its own under a time limit, what it prints is its log. 0: passed, 77: nothing was tested, the
# reason in the last line that says "skipped: "; figures by `figure` and `value`.

# On the page as soon as it is known (descriptor 3), and in the part's row.
figure() {
    printf '%s\n' "$*" >>"$OUT/$PART.figure"
    printf -- '- %s\n' "$*" >&3
}

# value NAME NUMBER: a figure for programs; what is no number, as a ratio of nothing, is none.
value() {
    local number=null
    if [[ ${2-} =~ ^-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?$ ]]; then number=$2; fi
    printf '"%s": %s\n' "$1" "$number" >>"$OUT/$PART.values"
}

# line VALUE most|least BOUND UNIT: tells the bound, and fails the part where it is missed.
line() {
    [ -n "$3" ] || return 0
    printf 'at %s %s%s\n' "$2" "$3" "$4" >>"$OUT/$PART.line"
    [ "$EMULATED" = 0 ] || return 0
    awk -v value="$1" -v bound="$3" -v is_most="$([ "$2" = most ] && echo 1 || echo 0)" \
        'BEGIN { exit !(value != "" && (is_most == 1 ? value <= bound : value >= bound)) }' || echo missed >"$OUT/$PART.missed"
}

skip() {
    say "skipped: $*" >&2
    exit 77
}

# sized REAL EMULATED: an emulated device is a thousand times as slow.
sized() {
    if [ "$EMULATED" = 0 ]; then say "$1"; else say "$2"; fi
}

# program NAME: its path; the part ends where it was not built.
program() {
    local path
    case $1 in
    sherd) path=$(sized cli/sherd tests/cli/sherd_emulated_command) ;;
    trainer) path=$(sized trainer/sherd-llm tests/trainer/sherd-llm-emulated) ;;
    bench-gpu-attention) path=$(sized bench/bench-gpu-attention tests/trainer/bench-gpu-attention-emulated) ;;
    bench-gpu) path=$(sized bench/bench-gpu tests/kernels/bench-gpu-emulated) ;;
    bench-gpu-product) path=$(sized bench/bench-gpu-product tests/gpu/bench-gpu-product-emulated) ;;
    bench-gpu-offload) path=$(sized bench/bench-gpu-offload tests/gpu/bench-gpu-offload-emulated) ;;
    bench-offload) path=$(sized bench/bench-offload tests/trainer/bench-offload-emulated) ;;
    bench-memory) path=$(sized bench/bench-memory tests/gpu/bench-memory-emulated) ;;
    kernels) path=$(sized tests/kernels/test_device_cuda tests/kernels/test_device_emulated) ;;
    esac
    [ -x "$BUILD/$path" ] || skip "$path was not built"
    say "$BUILD/$path"
}

# suite NAME JOBS: its tests; not all at once, since processes take turns on a device. One that hangs is ended before the part
# is, as what it started would go on in the parts that follow.
suite() {
    local status=0
    python3 "$root/tests/gpu/suite.py" "$BUILD" "$(sized gpu rehearsal)-$1" --jobs "$2" --seconds $((PART_SECONDS - 5)) | tee "$OUT/$PART.tests" || status=$?
    figure "$(tail -n 1 "$OUT/$PART.tests")"
    value programs_passed "$(sed -n '$s/^\([0-9]*\) passed.*/\1/p' "$OUT/$PART.tests")"
    return "$status"
}

# number FILE NAME KEY: of the row of that name, in the largest of the tables that a benchmark wrote.
number() { sed -n "s/.*\"name\": \"$2\".*\"$3\": \[\([0-9.]*\),.*/\1/p" "$1" | tail -n 1; }

# trained NAME ARGS: the trainer on the GPU; its log in $OUT/NAME.jsonl, what it says in $OUT/NAME.said.
trained() {
    local name=$1 trainer
    shift
    trainer=$(program trainer)
    "$trainer" --backend cuda --data "$OUT/text" --precision bf16 --ranks 1 --sample 0 --eval-every 0 \
        --log "$OUT/$name.jsonl" "$@" 2>&1 | tee "$OUT/$name.said"
}

train() { trained "$1" --arch gpt2 "${@:2}"; }

# last_loss NAME: of a run; empty where it is no number.
last_loss() { sed -n 's/^loss [0-9.]* -> \([0-9.]*\)$/\1/p' "$OUT/$1.said"; }

# learned NAME [OTHER]: whether the loss fell, and is that of the other run within a hundredth: a wrong kernel is fast too.
learned() {
    local first
    first=$(sed -n 's/^loss \([0-9.]*\) -> .*/\1/p' "$OUT/$1.said")
    awk -v first="${first:-0}" -v last="$(last_loss "$1")" -v other="$(last_loss "${2:-$1}")" -v falls="$((EMULATED == 0))" \
        'BEGIN { gap = last - other; exit !(last > 0 && (!falls || last < first) && gap * gap <= 1e-4 * other * other) }' || {
        say "the loss of $1 is wrong: $(sed -n '/^loss /p' "$OUT/$1.said"), ${2:-the first} $(last_loss "${2:-$1}")"
        return 1
    }
}

# rate NAME FIRST: tokens per second of the median step after the FIRST ones.
rate() {
    sed 's/.*"tokens": \([0-9]*\).*"seconds": \([0-9.e+-]*\).*/\1 \2/' "$OUT/$1.jsonl" | awk -v first="$2" '
        { if (NR > first) print ($1 - before) / $2; before = $1 }' | sort -n | awk '{ v[NR] = $1 } END { if (NR) printf "%.0f\n", v[int((NR + 1) / 2)] }'
}

TINY="--hidden 16 --layers 1 --heads 2 --kv-heads 2 --inner 32 --vocab 256 --batch 1 --length 8 --threads 1"

part_env() {
    local sherd
    sherd=$(program sherd)
    "$sherd" env | tee "$OUT/env.said"
    figure "$(sed -n 's/^ *cuda device 0 *:* *//p' "$OUT/env.said")"
    grep -q '^ *cuda device 0' "$OUT/env.said"
}

part_kernels() { suite kernels 2; }
part_compute() { suite compute 3; }
part_worlds() { SHERD_NCCL_LIBRARY=/nonexistent suite worlds 4; }
part_nccl() { NCCL_RAS_ENABLE=0 suite nccl 1; }
part_engine() { suite engine "$(sized 8 3)"; }

# An optimizer after the other: each has its verdict as soon as it is known.
part_proof() {
    local status=0 sherd optimizer
    sherd=$(program sherd)
    for optimizer in $(sized "adamw muon lamb lion sgd adagrad" adamw); do
        # shellcheck disable=SC2046
        (cd "$OUT" && "$sherd" test --backend cuda --optimizer "$optimizer" $(sized "-n 2 --time-limit 20" "-n 1 --rows durable") |
            tee -a "$OUT/proof.said") || status=$?
        figure "$optimizer $(tail -n 1 "$OUT/proof.said")"
    done
    return "$status"
}

# sanitized NAME COMMAND: under the sanitizer, and ended before the part is; a figure as soon as it is known.
sanitized() {
    local name=$1 status=0
    shift
    timeout -k 2 $((PART_SECONDS - 8)) "$@" >"$OUT/sanitizer.$name" 2>&1 || status=$?
    cat "$OUT/sanitizer.$name"
    case $status in
    124 | 137) figure "$name: over $((PART_SECONDS - 8)) s" ;;
    *) figure "$name: $(sed -n 's/^=* *\(.*SUMMARY.*\)/\1/p' "$OUT/sanitizer.$name" | tail -n 1)" ;;
    esac
    return "$status"
}

# All at a time, since each waits for the device most of its time.
part_sanitizer() {
    local tool kernels trainer memcheck status=0 race all step
    kernels=$(program kernels)
    trainer=$(program trainer)
    tool=$(command -v compute-sanitizer || command -v /usr/local/cuda/bin/compute-sanitizer || true)
    [ -n "$tool" ] || skip "compute-sanitizer is not installed"
    # What a call of the runtime answers is the program's to look at: some ask for what a device may lack.
    memcheck="$tool --tool memcheck --leak-check no --report-api-errors no --error-exitcode 9"
    sanitized racecheck-sumsq "$tool" --tool racecheck --error-exitcode 9 "$kernels" sumsq_equals &
    race=$!
    # Heads of 64, a length and a vocabulary that nothing divides.
    # shellcheck disable=SC2046,SC2086
    sanitized memcheck-trainer $memcheck "$trainer" --backend cuda --data "$OUT/text" --arch gpt2 --precision bf16 --ranks 1 --sample 0 \
        --eval-every 0 $(sized "--hidden 256 --layers 1 --heads 4 --kv-heads 4 --inner 512 --vocab 257 --batch 2 --length 200 --steps 2" "$TINY --steps 1") &
    step=$!
    # shellcheck disable=SC2086
    sanitized memcheck-kernels $memcheck "$kernels" "$(sized "" sumsq_equals)" &
    all=$!
    wait "$race" || status=$?
    # On some virtual machines it cannot attach at all: that says nothing about the kernels.
    if grep -qiE 'device not supported|not supported on this' "$OUT/sanitizer.racecheck-sumsq"; then
        kill "$step" "$all" 2>/dev/null || true
        skip "compute-sanitizer does not work here: $(grep -iE -m 1 'not supported' "$OUT/sanitizer.racecheck-sumsq")"
    fi
    wait "$step" || status=$?
    wait "$all" || status=$?
    return "$status"
}

# bench_gpu ROWS NAME [NAME..]: against the device's own copy and, where PyTorch is installed, against its AdamW.
bench_gpu() {
    local peers=() bench name
    bench=$(program bench-gpu)
    if [ "$PART" = adam ] && [ -n "$PYTHON" ] && [ "$EMULATED" = 0 ]; then
        peers=(--peers "$PYTHON")
    fi
    "$bench" --sizes "$(sized 16M,128M,512M 1K)" --rounds "$(sized 7 1)" --repeats "$(sized 256 4)" --rows "$1" --json "$OUT/$PART.rows" "${peers[@]}"
    for name in "${@:2}"; do
        figure "$name: $(number "$OUT/$PART.rows" "$name" gb_per_s) GB/s, $(number "$OUT/$PART.rows" "$name" of_copy) of copy"
    done
    value gb_per_s "$(number "$OUT/$PART.rows" "$2" gb_per_s)"
    value of_copy "$(number "$OUT/$PART.rows" "$2" of_copy)"
}

# What choices give differs by roundings; a wrong kernel differs by more. The log says what a choice lacks.
# attention_rates NAME ARGS: each choice for one shape of heads; tells how far the furthest is from the first in $most.
attention_rates() {
    local name=$1 bench choice direction rate apart
    shift
    bench=$(program bench-gpu-attention)
    "$bench" "$@" --json "$OUT/attention_$name.rows"
    for choice in own warpgroup cudnn; do
        for direction in forward backward; do
            rate=$(number "$OUT/attention_$name.rows" "$choice $direction" tflop_per_s)
            [ -n "$rate" ] || continue
            apart=$(number "$OUT/attention_$name.rows" "$choice $direction" apart)
            most=$(awk -v a="$most" -v b="$apart" 'BEGIN { print (b > a ? b : a) }')
            figure "$name $choice $direction $(number "$OUT/attention_$name.rows" "$choice $direction" us) us, $rate TFLOP/s"
            value "${name}_${choice}_${direction}_tflop_per_s" "$rate"
        done
    done
}

# Heads of GPT-2 124M, and of Llama 3 8B with one sequence of 8192 tokens.
part_attention() {
    local most=0
    # shellcheck disable=SC2046
    attention_rates heads_64 $(sized "--batch 32" "--batch 1 --length 70 --heads 2 --rounds 1 --repeats 1")
    # shellcheck disable=SC2046
    attention_rates heads_128 $(sized "--batch 1 --length 8192 --heads 32" "--batch 1 --length 70 --heads 2 --rounds 1 --repeats 1") \
        $(sized "--kv-heads 8" "--kv-heads 1") --width 128
    line "$most" most "$MOST_ATTENTION_APART" " of the largest number"
}

part_adam() {
    local of_torch
    bench_gpu adamw,lion,sgd,adagrad "adamw mixed bf16" "adamw, state of 10 bytes" "adamw, bf16 moments" "adamw, fp8 moments" \
        "lion mixed bf16" "lion, state of 6 bytes" "sgd with momentum, mixed" "adagrad mixed bf16"
    line "$(number "$OUT/adam.rows" "adamw mixed bf16" of_copy)" least "$LEAST_ADAM_OF_COPY" " of copy"
    of_torch=$(number "$OUT/adam.rows" "torch fused mixed" ours_of_this)
    if [ -n "$of_torch" ]; then
        figure "ours / torch fused mixed: $of_torch"
        value of_torch "$of_torch"
        line "$of_torch" least "$LEAST_ADAM_OF_TORCH" " of torch"
    else
        figure "no PyTorch here"
    fi
}

part_lamb() {
    bench_gpu lamb "lamb mixed, both sweeps"
    line "$(number "$OUT/lamb.rows" "lamb mixed, both sweeps" of_copy)" least "$LEAST_LAMB_OF_COPY" " of copy"
    bench_products
}

# In fp32 and one chain of sums an element; PyTorch's beside them are cuBLAS's.
bench_products() {
    local peers=() bench name of_torch
    bench=$(program bench-gpu-product)
    if [ -n "$PYTHON" ] && [ "$EMULATED" = 0 ]; then
        peers=(--peers "$PYTHON")
    fi
    # shellcheck disable=SC2046
    "$bench" $(sized "--rows 1024 --cols 4096" "--rows 64 --cols 128 --rounds 1 --repeats 1") --json "$OUT/products.rows" "${peers[@]}"
    for name in "X X^T, symmetric" "B X + a X"; do
        of_torch=$(number "$OUT/products.rows" "$name" of_torch)
        figure "$name: $(number "$OUT/products.rows" "$name" tflop_per_s) TFLOP/s${of_torch:+, $of_torch of torch}"
    done
}

part_offload() {
    local ratio step bench tier
    bench=$(program bench-gpu-offload)
    for tier in cpu nvme; do # each by itself: a slow drive takes no figure of the host's memory away
        # shellcheck disable=SC2046
        "$bench" $(sized "--elems 64M --rounds 5" "--elems 16K --rounds 1 --compute 0 --fast") --place "$tier" --dir "$OUT" --json "$OUT/offload.$tier"
        ratio=$(sed -n 's/.*"step_to_limit": \[\([0-9.]*\),.*/\1/p' "$OUT/offload.$tier")
        [ -n "$ratio" ] || continue
        step=$(sed -n 's/.*"step_to_longest": \[\([0-9.]*\),.*/\1/p' "$OUT/offload.$tier")
        figure "state on $tier: boundary / max(link, host) $ratio, step / max(link, host, compute) $step"
        value "${tier}_boundary" "$ratio"
        value "${tier}_step" "$step"
        line "$ratio" most "$MOST_OFFLOAD" ""
    done
}

# Ends with 1 by itself where planned is not held, or not what the device reports.
part_memory() {
    local bench
    bench=$(program bench-memory)
    # shellcheck disable=SC2046
    (cd "$OUT" && "$bench" --backend cuda --real-only --worlds 1,2 --stages 1,3 $(sized "--models 124m --offloads none,optimizer-cpu" "--models 100K --offloads none") --json memory.rows)
    figure "$(wc -l <"$OUT/memory.rows") rows as planned"
}

# With a stand-in for PyTorch where the rehearsal gives one.
part_torch() {
    [ -n "$PYTHON" ] || skip "there is no PyTorch with CUDA here"
    [ -e "$BUILD/libsherd.so" ] || skip "libsherd.so was not built"
    PYTHONPATH=$root/python SHERD_LIBRARY=$BUILD/libsherd.so "$PYTHON" "$root/python/tests/test_torch_cuda.py" 2>&1 | tee "$OUT/torch.said"
    figure "$(grep -E '^Ran [0-9]+ tests?' "$OUT/torch.said"): $(tail -n 1 "$OUT/torch.said")"
    figure "nanogpt.py: $(sed -n 's/^loss /loss /p' "$OUT/torch.said" | tail -n 1)"
}

# mfu NAME: %, of the median step of a run.
mfu() { sed -n 's/^median step .*MFU \([0-9.]*\) %.*/\1/p' "$OUT/$1.said"; }

# attention NAME ARGS: the same by it. Attention decides how far a step is above its products, so this tells where a rate that is
# missed comes from.
attention() {
    local name=$1
    shift
    train "attention_$name" "$@" --attention "$name"
    learned "attention_$name" trainer
    figure "attention $name $(rate "attention_$name" "$(sized 5 2)") tokens/s, MFU $(mfu "attention_$name") %$(
        sed -n 's/^attention /, &/p' "$OUT/attention_$name.said")"
    value "${name}_mfu_percent" "$(mfu "attention_$name")"
}

part_trainer() {
    local share shape attempts_failed=0
    shape=$(sized "--preset 124m --batch 32 --length 1024 --steps 25" "$TINY --steps 4 --peak-tflops 1")
    # shellcheck disable=SC2086
    train trainer $shape
    learned trainer
    share=$(mfu trainer)
    figure "$(rate trainer "$(sized 5 2)") tokens/s, MFU $share % of the median step"
    value tokens_per_s "$(rate trainer "$(sized 5 2)")"
    value mfu_percent "$share"
    line "$share" least "$LEAST_MFU" " %"
    # shellcheck disable=SC2086
    attempt attention own $shape
    # shellcheck disable=SC2086
    attempt attention cudnn $shape
    return "$attempts_failed"
}

# small NAME ARGS: steps per second of 10 million parameters and 128 tokens, which the host's calls decide.
small() {
    local name=$1 steps_per_s
    shift
    # shellcheck disable=SC2046
    train "small_$name" $(sized "--hidden 320 --layers 6 --heads 5 --kv-heads 5 --inner 1280 --vocab 8192 --batch 1 --length 128 --steps 300" \
        "$TINY --steps 6") "$@"
    steps_per_s=$(rate "small_$name" "$(sized 20 3)" | awk -v tokens="$(sized 128 8)" '{ printf "%.1f", $1 / tokens }')
    figure "small $name $steps_per_s steps/s$(sed -n 's/^[0-9]* passes of units.*/, &/p' "$OUT/small_$name.said")"
    value "small_$name" "$steps_per_s"
}

# chosen NAME ARGS: tokens per second with these choices, as a figure beside the default's, which is the first.
chosen() {
    local name=$1 tokens_per_s of_default
    shift
    # shellcheck disable=SC2046
    train "choice_$name" $(sized "--preset 124m --batch 32 --length 1024 --steps 15" "$TINY --steps 4") "$@"
    learned "choice_$name" "$([ ! -e "$OUT/choice_default.jsonl" ] || echo choice_default)"
    tokens_per_s=$(rate "choice_$name" "$(sized 5 2)")
    of_default=$(rate choice_default "$(sized 5 2)" 2>/dev/null || true)
    figure "$name $tokens_per_s tokens/s ($(awk -v a="$tokens_per_s" -v b="${of_default:-0}" 'BEGIN { printf "%.3f", (b > 0 ? a / b : 0) }'))$(
        sed -n 's/^attention /, &/p' "$OUT/choice_$name.said")"
    value "$name" "$tokens_per_s"
}

# attempt FUNCTION NAME ARGS: in a process of its own, since one choice that fails is not the end of the others.
attempt() {
    local status
    set +e
    (
        set -e
        "$@"
    )
    status=$?
    set -e
    [ "$status" = 0 ] || figure "$1 $2 FAILED"
    [ "$status" = 0 ] || attempts_failed=1
}

part_choices() {
    local attempts_failed=0
    rm -f "$OUT"/choice_* "$OUT"/small_*
    attempt chosen default
    attempt chosen own --attention own
    attempt chosen cudnn --attention cudnn
    attempt chosen tuned --tune 8 --tuned "$OUT/products.tsv"
    attempt chosen parts_of_logits --logits-rows 8192
    attempt chosen graphs --graphs
    attempt small default
    attempt small graphs --graphs
    attempt chosen all --graphs --tune 8 --tuned "$OUT/products.tsv"
    attempt chosen again --graphs --tune 8 --tuned "$OUT/products.tsv"
    cat "$OUT/choice_all.said" "$OUT/choice_again.said" 2>/dev/null | grep -h '^fingerprint' | sort -u >"$OUT/choices.bits" || true
    figure "$(wc -l <"$OUT/choices.bits") fingerprint of the last two"
    return "$attempts_failed"
}

# Not below it: the model that PyTorch compiles, in the same run as the trainer's.
part_compiled() {
    local share ours
    [ -n "$PYTHON" ] || skip "there is no PyTorch with CUDA here"
    "$PYTHON" "$root/bench/trainer_torch.py" | tee "$OUT/compiled.said"
    share=$(sed -n 's/^step .*MFU \([0-9.]*\) %.*/\1/p' "$OUT/compiled.said")
    ours=$(mfu trainer 2>/dev/null || true)
    figure "MFU $share % by torch.compile, ${ours:-not measured} % ours"
    value mfu_percent "$share"
    [ -z "$ours" ] || line "$ours" least "${share:-0}" " % of the trainer"
}

part_exposed() {
    local percent sherd
    sherd=$(program sherd)
    # shellcheck disable=SC2046
    SHERD_TRACE=$OUT/trace.json train exposed $(sized "--preset 124m --batch 32 --length 1024 --steps 10" "$TINY --steps 4") --quiet
    "$sherd" trace "$OUT/trace.json" --skip "$(sized 4 1)"
    percent=$("$sherd" trace "$OUT/trace.json" --skip "$(sized 4 1)" --json |
        sed -n 's/.*"median": {[^{]*"exposed_share": \([0-9.]*\).*/\1/p' | awk '{ printf "%.2f", 100 * $1 }')
    figure "$percent % of a step, median of $(sized 6 3)"
    value exposed_percent "$percent"
    line "$percent" most "$MOST_EXPOSED" " %"
}

# profiled NAME STEPS ARGS: the kernels of the trainer's later steps under Nsight Compute, which runs them one at a time.
profiled() {
    local name=$1 ncu=$2 trainer
    shift 2
    trainer=$(program trainer)
    # As the program meets them: warm caches, and the clocks that the device has.
    # A step has 465 to 515 launches, and a window of two steps holds a whole one wherever it begins.
    # shellcheck disable=SC2046
    "$ncu" --metrics gpu__time_duration.sum --clock-control none --cache-control none --csv --page raw --log-file "$OUT/profile.$name.csv" \
        --launch-skip "$(sized 1400 0)" --launch-count "$(sized 1100 100)" "$trainer" --backend cuda --data "$OUT/text" --arch gpt2 \
        --precision bf16 --ranks 1 --sample 0 --eval-every 0 $(sized "--preset 124m --batch 32 --length 1024 --steps 6" "$TINY --steps 2") "$@"
    python3 "$root/tests/gpu/step_profile.py" "$OUT/profile.$name.csv" | tee "$OUT/profile.$name.said"
    figure "$name: $(tail -n 1 "$OUT/profile.$name.said")"
}

part_profile() {
    local attempts_failed=0 ncu
    ncu=$(command -v ncu || command -v /usr/local/cuda/bin/ncu || true)
    [ -n "$ncu" ] || skip "ncu is not installed"
    attempt profiled default "$ncu"
    attempt profiled cudnn "$ncu" --attention cudnn
    return "$attempts_failed"
}

part_large() {
    local shape inside offloaded share
    shape=$(sized "--preset 774m --batch 8 --length 1024 --accumulation 64 --steps 3" "$TINY --accumulation 2 --steps 3")
    # shellcheck disable=SC2086
    train large_inside $shape
    inside=$(rate large_inside 1)
    # shellcheck disable=SC2086
    train large_offloaded $shape --offload cpu
    offloaded=$(rate large_offloaded 1)
    share=$(awk -v a="$offloaded" -v b="$inside" 'BEGIN { printf "%.3f", (b > 0 ? a / b : 0) }')
    figure "tokens/s: $inside, state on cpu $offloaded ($share)"
    value tokens_per_s "$inside"
    value offloaded_share "$share"
    line "$share" least "$LEAST_OFFLOADED" ""
}

# beside NAME ARGS: steps of this model whose update on the host runs beside the next forward, waits, and is not there.
beside() {
    local name=$1 bench file=$OUT/queued.$1 cell
    shift
    bench=$(program bench-offload)
    # shellcheck disable=SC2046
    "$bench" --trainer --backend cuda --place cpu --stage 2 --dtype bf16 --recompute --json "$file" "$@" $(
        sized "--threads $(nproc) --rounds 3 --steps 2 --shapes 8x1024,16x1024,32x1024,64x1024" \
            "--threads 1 --rounds 1 --steps 1 --shapes 1x8")
    sed -n 's/.*"name": "\([^"]*\)", "tokens": \([0-9]*\).*/\1 \2/p' "$file" >"$file.cells"
    while read -r cell _ tokens; do
        beside_cell "$name" "$file" "$cell" "$tokens"
    done <"$file.cells"
}

# beside_cell NAME FILE CELL TOKENS: what was found of one size of micro-batch.
beside_cell() {
    local key ratio rates=""
    for key in waited queued; do
        rates="$rates$key $(awk -v tokens="$4" -v s="$(number "$2" "$3 bf16" "${key}_s")" 'BEGIN { printf "%.0f", tokens / s }'), "
    done
    rates="${rates}without an update $(awk -v tokens="$4" -v f="$(number "$2" "$3 bf16" forward_s)" \
        -v b="$(number "$2" "$3 bf16" backward_s)" 'BEGIN { printf "%.0f", tokens / (f + b) }')"
    ratio=$(number "$2" "$3 bf16" ratio)
    figure "$1 $3 tokens/s $rates, of the limit $ratio"
    value "$1_$3" "$ratio"
    say "$ratio" >>"$OUT/queued.ratios"
}

# The 7B model's width and vocabulary; what a layer costs does not depend on how many there are.
part_queued() {
    local attempts_failed=0
    # shellcheck disable=SC2046
    attempt beside 774m --preset $(sized 774m tiny)
    # shellcheck disable=SC2046
    attempt beside 7b $(sized "--arch minimind --preset 104m --layers 4 --hidden 4096 --heads 32 --inner 11008 --vocab 32000" \
        "--arch minimind --preset tiny --layers 2")
    line "$(sort -n "$OUT/queued.ratios" | tail -n 1)" most "$MOST_BESIDE" " of the limit"
    return "$attempts_failed"
}

# By number where meson knows it: nvcc's own "native" may be an older one.
arch_find() {
    local number
    number=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '. ')
    case $number in
    80 | 86 | 89 | 90 | 100) say "$number" ;;
    *) say native ;;
    esac
}

# Everything optional on auto. A warning of a compiler that we have not met ends nothing, nor does one program that is not
# built: its part says so.
part_build() {
    if ! command -v meson >/dev/null || ! command -v ninja >/dev/null; then
        say "FAILED: meson and ninja are needed"
        return 1
    fi
    if ! [ -f "$BUILD/build.ninja" ]; then
        meson setup "$BUILD" "$root" -Dgpu_arch="${ARCH:-$(arch_find)}" -Dcuda=enabled -Dwerror=false || return 1
    fi
    ninja -C "$BUILD" -j "$(nproc)" -k 0
}

if [ "${1-}" = --run-part ]; then # by itself, below
    PART=$2 PART_SECONDS=$3
    # shellcheck source=tests/gpu/billions.sh
    . "$root/tests/gpu/billions.sh"
    "part_$PART"
    exit
fi

# ----------------------------------------------------------------- command --

command_line="tests/gpu/check.sh $*"
carried="" only="" has_build=0 limit=465 python=python3
export OUT="" BUILD=$root/build-gpu EMULATED=0 PYTHON="" ARCH=""
while [ $# -gt 0 ]; do
    case $1 in
    --carried | --out | --build | --part | --limit | --arch | --python)
        [ $# -gt 1 ] && [ -n "$2" ] || { usage >&2 && exit 2; }
        case $1 in
        --carried) carried=$(realpath "$2") ;;
        --out) OUT=$(realpath -m "$2") ;;
        --build) BUILD=$(realpath -m "$2") ;;
        --part) only=$2 ;;
        --limit) limit=$2 ;;
        --arch) ARCH=$2 ;;
        --python) python=$2 ;;
        esac
        shift 2
        ;;
    --no-build)
        has_build=1
        shift
        ;;
    --emulated)
        EMULATED=1
        has_build=1
        shift
        ;;
    --help | -h)
        usage
        exit 0
        ;;
    *)
        usage >&2
        exit 2
        ;;
    esac
done
OUT=${OUT:-$BUILD/check}
for part in ${only//,/ }; do
    if ! grep -q "^$part " <<<"$PARTS"; then
        say "check.sh: there is no part '$part'" >&2
        exit 2
    fi
done
started=$SECONDS
left() { echo $((limit - (SECONDS - started))); }

if [ "$EMULATED" = 0 ] && ! nvidia-smi -L >/dev/null 2>&1 && ! [ -e /dev/nvidia0 ]; then
    say "skipped: there is no GPU here (no nvidia-smi that answers, no /dev/nvidia0)"
    exit 77
fi
# A driver that nobody has open starts anew with every program, for seconds.
[ "$EMULATED" = 1 ] || [ ! -r /dev/nvidia0 ] || exec 9</dev/nvidia0
mkdir -p "$OUT" "$BUILD"
# What an earlier call has left of other parts stays: together they are one check.
kept=$OUT/check.json
[ -n "$only" ] || rm -f "$kept" "$OUT/page.md"
rm -f "$OUT/rows" "$OUT/failed"
todo=${only:-$(awk '{ print $1 }' <<<"$PARTS")}
for part in ${todo//,/ } $([ $has_build = 1 ] || say build); do
    rm -f "$OUT/$part".*
    [ ! -f "$kept" ] || sed -i "/^{\"part\": \"$part\",/d" "$kept"
done

# Packages that are not installed: a copy of their pkg-config files that says where they are. A NCCL among them is taken
# before any other, and has rings alone (fetch-nccl.sh).
carried_use() {
    local libs=$carried/usr/lib/x86_64-linux-gnu pc
    if [ -f "$carried" ]; then
        mkdir -p "$BUILD/carried"
        tar xzf "$carried" -C "$BUILD/carried" --strip-components=1 || return 1
        carried=$BUILD/carried
        libs=$carried/usr/lib/x86_64-linux-gnu
    fi
    mkdir -p "$BUILD/pkgconfig"
    for pc in "$libs"/pkgconfig/*.pc "$libs"/*/pkgconfig/*.pc "$libs"/*/lib/pkgconfig/*.pc; do
        [ -f "$pc" ] && sed -e "s,=/usr,=$carried/usr," -e '/^Requires.private/d' -e '/^Libs.private/d' "$pc" \
            >"$BUILD/pkgconfig/$(basename "$pc")"
    done
    export PKG_CONFIG_PATH=$BUILD/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
    export CPATH=$carried/usr/include:$carried/usr/include/x86_64-linux-gnu${CPATH:+:$CPATH}
    export LIBRARY_PATH=$libs:$libs/openblas-pthread:$carried/lib/x86_64-linux-gnu${LIBRARY_PATH:+:$LIBRARY_PATH}
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$libs:$libs/openblas-pthread:$libs/openmpi/lib:$libs/pmix2/lib:$carried/lib/x86_64-linux-gnu
    export LD_LIBRARY_PATH CARRIED_LIBS=$libs OPAL_PREFIX=$carried/usr CARRIED_SITE=$carried/usr/share/sherd-site
    if [ -e "$libs/libnccl.so.2" ]; then
        export SHERD_NCCL_LIBRARY=$libs/libnccl.so.2 NCCL_ALGO=RING
    fi
    # Tools come last: what the machine has itself goes before.
    mkdir -p "$BUILD/bin"
    ln -sf "$carried/usr/bin/pkgconf" "$BUILD/bin/pkg-config"
    ln -sf "$carried/usr/bin/ninja" "$BUILD/bin/ninja"
    printf '#!/usr/bin/env python3\nimport sys\nsys.path.insert(0, "%s")\nfrom mesonbuild.mesonmain import main\nsys.exit(main())\n' \
        "$carried/usr/share/sherd-meson" >"$BUILD/bin/meson"
    chmod +x "$BUILD/bin/meson"
    export PATH=$PATH:$BUILD/bin
}

# NCCL, cuBLASLt and cuDNN that came with Python, where the toolkit has none. Of their folders of headers, which have a runtime of
# another version too, those alone that are wanted. A line for each that was found.
wheels_use() {
    local folder header
    command -v python3 >/dev/null || return 0
    while read -r folder; do
        for header in "$folder"/include/{nccl,cublasLt,cublas_api,cudnn*}.h; do
            [ -f "$header" ] || continue
            mkdir -p "$BUILD/wheels"
            ln -sf "$header" "$BUILD/wheels/"
            say "# wheels   $(basename "$header") of $(basename "$folder")"
        done
        if [ -d "$folder/lib" ]; then
            export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder/lib
            [ -e "$folder/lib/libnccl.so.2" ] && export SHERD_NCCL_LIBRARY=${SHERD_NCCL_LIBRARY:-$folder/lib/libnccl.so.2}
        fi
    done < <(python3 -c '
import glob, os, sys
for entry in sys.path:
    for folder in sorted(glob.glob(os.path.join(entry, "nvidia", "*"))):
        if os.path.basename(folder) in ("nccl", "cublas", "cudnn", "cu12", "cu13"):
            print(folder)' 2>/dev/null)
    [ ! -d "$BUILD/wheels" ] || export CPATH=${CPATH:+$CPATH:}$BUILD/wheels
    return 0
}

# A Python with PyTorch, for peers, with its own libraries before those from above; "" where there is none.
python_find() {
    if "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' >/dev/null 2>&1; then
        PYTHON=$OUT/with-torch
        printf '#!/bin/sh\nLD_LIBRARY_PATH=%s${CARRIED_LIBS:+:$CARRIED_LIBS} exec %s "$@"\n' "'${LD_LIBRARY_PATH-}'" "'$python'" >"$PYTHON"
        chmod +x "$PYTHON"
    fi
}

processor() { sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1; }
memory_of() { awk -v name="$1:" '$1 == name { printf "%.0f", $2 / 1048576 }' /proc/meminfo; }
device() {
    if [ "$EMULATED" = 1 ]; then
        say "emulated: no figure below is one of a GPU"
    else
        nvidia-smi --query-gpu=name,memory.total,driver_version,persistence_mode --format=csv,noheader 2>/dev/null | tr '\n' ';' || true
    fi
}

heading() {
    say "# $(date -u +%F): sherd on a GPU$([ "$EMULATED" = 0 ] || echo " (rehearsal, emulated)")"
    say ""
    say '```'
    say "# date     $(date -u '+%F %H:%M UTC')"
    say "# machine  $(processor), $(nproc) cores, $(memory_of MemTotal) GiB, $(memory_of MemAvailable) free, $(uname -sr)"
    say "# device   $(device)"
    say "# source   $(git -C "$root" describe --always --dirty 2>/dev/null || echo 'no git checkout')"
    say "# command  $command_line"
}

# Characters of a text that JSON wants escaped.
quoted() { printf '"%s"' "$(printf '%s' "$1" | sed 's/\\/\\\\/g; s/"/\\"/g' | tr '\000-\037' ' ')"; }

# row PART RESULT SECONDS FIGURE LINE; in files, since parts that run at the same time are processes.
row() {
    local values=""
    [ ! -s "$OUT/$1.values" ] || values=$(paste -sd, "$OUT/$1.values")
    say "| $1 | $2 | $3 | ${4:-} | ${5:-} |" >>"$OUT/rows"
    say "$1: $2 (${3} s)${4:+: $4}${5:+; line: $5}"
    printf '{"part": "%s", "result": %s, "seconds": %s, "figure": %s, "line": %s, "values": {%s}, "emulated": %s}\n' "$1" \
        "$(quoted "$2")" "$3" "$(quoted "${4:-}")" "$(quoted "${5:-}")" "$values" "$([ "$EMULATED" = 1 ] && echo true || echo false)" \
        >>"$OUT/check.json"
    case $2 in FAIL* | MISSED | "not finished"*) touch "$OUT/failed" ;; esac
}

# Ends the build, and all that it has started, when so little time is left that no part would run.
build_run() {
    local before=$SECONDS status=0 seconds
    seconds=$(($(left) - 60))
    [ "$seconds" -gt 1 ] || seconds=1
    timeout -k 5 "$seconds" "$root/tests/gpu/check.sh" --run-part build "$seconds" 3>/dev/null >"$OUT/build.log" 2>&1 || status=$?
    if [ "$status" != 0 ]; then
        say '```'
        grep -E 'error:|ERROR|FAILED' "$OUT/build.log" | head -n 30 || tail -n 30 "$OUT/build.log"
        say '```'
        if [ "$status" = 124 ] || [ "$status" = 137 ]; then
            row build "FAIL: over $seconds s" $((SECONDS - before)) "what was built goes on; call again, and it ends" ""
        else
            row build "FAIL: status $status" $((SECONDS - before)) "$(grep -c '^FAILED' "$OUT/build.log") targets failed; what was built goes on" ""
        fi
        return
    fi
    row build pass $((SECONDS - before)) "$(tail -n 40 "$BUILD/meson-logs/meson-log.txt" | sed -n 's/^ *\(hwloc\|Open MPI\|liburing\|libxxhash\|openblas (trainer)\|CUDA\|NCCL\) *: *\(YES\|NO\).*/\1 \2/p' | tr '\n' ',' | sed 's/,$//; s/,/, /g')" ""
}

# Text as it is, in Markdown.
block() {
    say ""
    say '```'
    say "$1"
    say '```'
}

# What a result page wants to see of a log.
shown() {
    case $1 in
    env | adam | lamb | offload | exposed) grep -v ': round [0-9]* of' "$OUT/$1.log" ;;
    proof) tail -n 60 "$OUT/$1.log" ;;
    nccl | worlds | engine | kernels) cat "$OUT/$1.tests" ;;
    trainer | compiled | large) tail -n 8 "$OUT/$1.log" ;;
    esac
}

part_run() {
    local name=$1 seconds=$2 what=$3 status=0 before=$SECONDS is_short=0 result figures skipped
    if [ "$(left)" -lt 10 ]; then
        row "$name" "not run" 0 "no time left" ""
        return
    fi
    if [ "$seconds" -gt "$(left)" ]; then
        is_short=1 seconds=$(left)
    fi
    say ""
    say "## $name: $what"
    say ""
    timeout -k 5 "$seconds" "$root/tests/gpu/check.sh" --run-part "$name" "$seconds" 3>&1 >"$OUT/$name.log" 2>&1 || status=$?
    say ""
    case $status in
    0) result=pass ;;
    77) result="not tested" ;;
    124 | 137) result=$([ $is_short = 1 ] && say "not finished: $seconds s were left" || say "FAIL: over $seconds s") ;;
    *) result="FAIL: status $status" ;;
    esac
    [ "$status" != 0 ] || [ ! -f "$OUT/$name.missed" ] || result="MISSED"
    touch "$OUT/$name.figure"
    figures=$(tr '\n' ';' <"$OUT/$name.figure" | sed 's/;$//; s/;/; /g')
    if [ "$status" = 77 ]; then
        skipped=$(sed -n 's/.*skipped: //p' "$OUT/$name.log" | tail -n 1)
        figures=${skipped:-$figures}
    elif [ "$EMULATED" = 1 ]; then
        figures="emulated: $figures"
    fi
    row "$name" "$result" $((SECONDS - before)) "$figures" "$(paste -sd';' "$OUT/$name.line" 2>/dev/null || true)"
    case $result in
    pass | MISSED)
        if [ -n "$(shown "$name")" ]; then
            block "$(shown "$name")"
        fi
        ;;
    FAIL* | "not finished"*) block "$(tail -n 40 "$OUT/$name.log")" ;;
    esac
}

# Whatever goes wrong in one, the next has its turn.
part_surely() { part_run "$@" </dev/null || row "$1" "FAIL: check.sh" 0 "see $OUT/$1.log" ""; }

# group_run NAME..: waits for parts that run at the same time, and tells what each said.
group_run() {
    local name
    wait
    for name; do cat "$OUT/$name.text"; done
}

# is_wanted NAME HOW: whether this call runs the part.
is_wanted() {
    [ -n "$1" ] || return 1
    if [ -n "$only" ]; then
        [[ ",$only," == *",$1,"* ]]
    else
        [ "$2" != asked ] || [ "$EMULATED" = 1 ]
    fi
}

parts_run() {
    local name seconds how what group=()
    while read -r name seconds how what; do
        is_wanted "$name" "$how" || continue
        if [ "$how" = beside ]; then
            part_surely "$name" "$seconds" "$what" >"$OUT/$name.text" 2>&1 &
            group+=("$name")
            continue
        fi
        group_run "${group[@]}"
        group=()
        part_surely "$name" "$seconds" "$what"
    done <<<"$PARTS"
    group_run "${group[@]}"
}

all() {
    heading
    [ -z "$carried" ] || carried_use || say "# carried  cannot be unpacked"
    wheels_use
    [ "$EMULATED" = 1 ] || say "# memory   $(python3 "$root/tests/gpu/grow_memory.py" 24 2>&1 | tail -n 1)"
    say '```'
    say ""
    [ "$has_build" = 1 ] || build_run
    if [ "$EMULATED" = 1 ]; then # where a real NCCL knows nothing of the device
        export SHERD_EMULATOR_GUARD=0 SHERD_EMULATOR_EAGER=1 SHERD_NCCL_LIBRARY=/nonexistent
    fi
    # A text to train on: this project's own.
    find "$root/engine" "$root/kernels" -name '*.[ch]' -exec cat {} + >"$OUT/text"
    parts_run
    say ""
    say "## All"
    say ""
    say "| part | result | seconds | figure | line |"
    say "|---|---|---|---|---|"
    cat "$OUT/rows"
    say ""
    if [ -e "$OUT/failed" ]; then
        say "$((SECONDS - started)) seconds; something failed or missed its line"
        return 1
    fi
    say "$((SECONDS - started)) seconds; all that ran passed"
}

python_find
set +e
(
    set -e
    all
) 2>&1 | tee -a "$OUT/page.md"
exit "${PIPESTATUS[0]}"

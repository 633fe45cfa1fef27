#!/usr/bin/env bash
# Everything that needs a GPU, in one call and under eight minutes: builds for the machine's device, runs the tests that
# skip elsewhere, the benchmarks and the trainer, and prints a page for docs/results/. See --help and docs/gpu.md.
# shellcheck disable=SC2317 # parts are called by name
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)

# Lines that figures are held against; empty would be none.
MOST_EXPOSED=3.0      # % of a step of the trainer, GPT-2 124M
MOST_OFFLOAD=1.10     # the boundary over the longer of link and host update
LEAST_ADAM_OF_COPY=0.90 # rate of AdamW over that of the device's own copy
LEAST_ADAM_OF_TORCH=1.0
LEAST_LAMB_OF_COPY=0.90
LEAST_OFFLOADED=0.85  # tokens/s of GPT-2 774M with offload over those without
LEAST_MFU=40             # %, GPT-2 124M

# NAME LIMIT_S WHAT, in the order in which they run.
PARTS="
env 20 the device, as sherd sees it
kernels 60 conformance of the backend, lanes and events
worlds 70 several ranks on one device: threads, processes
nccl 40 NCCL, a rank on each device
engine 100 the engine's tests, its memory on the device
proof 110 sherd test, fingerprints of CPU and GPU
sanitizer 80 memcheck and racecheck over the kernels
adam 45 bench gpu, AdamW
lamb 40 bench gpu, LAMB
offload 60 bench gpu-offload
memory 40 bench memory, GPT-2 124M: planned, held, and what the device reports
trainer 45 GPT-2 124M, bf16, 32 x 1024
exposed 45 the engine's exposed share of its step
large 90 GPT-2 774M, accumulation 8, with and without offload
"

usage() {
    cat <<'TEXT'
usage: tests/gpu/check.sh [OPTIONS]

  --debs DIR     packages that fetch-debs.sh unpacked (or a .tar.gz of that folder), where the machine has none
  --out DIR      logs (default: build-gpu/check)
  --build DIR    build folder (default: build-gpu)
  --no-build     the build folder is ready
  --only LIST    parts, by commas: env, kernels, worlds, nccl, engine, proof, sanitizer, adam, lamb, offload, memory,
                 trainer, exposed, large
  --limit S      seconds for all, the build among them (default: 465); parts that get none are not run

Prints what it found as a page in Markdown. Exit status: 0 when all that ran passed, 77 without a device, else 1.
TEXT
}

say() { printf '%s\n' "$*"; }

# ------------------------------------------------------------------- parts --
# Each runs in a process of its own under a time limit, what it prints is its log. 0: passed, 77: skipped, the
# reason in the last line that says "skipped: "; figures by `figure`.

figure() { printf '%s\n' "$*" >>"$OUT/$PART.figure"; }

# line VALUE most|least BOUND UNIT: tells the bound, and fails the part where it is missed.
line() {
    [ -n "$3" ] || return 0
    printf 'at %s %s%s\n' "$2" "$3" "$4" >"$OUT/$PART.line"
    awk -v value="$1" -v bound="$3" -v is_most="$([ "$2" = most ] && echo 1 || echo 0)" \
        'BEGIN { exit !(value != "" && (is_most == 1 ? value <= bound : value >= bound)) }' || echo missed >"$OUT/$PART.missed"
}

skip() {
    say "skipped: $*"
    exit 77
}

# suite NAME: the tests of a suite of the build.
suite() {
    local status=0 ok skipped
    # Not all at once: processes take turns on a device.
    meson test -C "$BUILD" --no-rebuild --print-errorlogs --num-processes 4 --suite "$1" | tee "$OUT/$PART.tests" || status=$?
    ok=$(awk '/^Ok: / { print $2 }' "$OUT/$PART.tests")
    skipped=$(awk '/^Skipped: / { print $2 }' "$OUT/$PART.tests")
    cp "$BUILD/meson-logs/testlog.txt" "$OUT/$PART.testlog" 2>/dev/null || true
    figure "${ok:-0} programs passed, ${skipped:-0} skipped"
    if [ "$status" = 0 ] && [ "${ok:-0}" = 0 ]; then
        skip "$(grep -h 'skipped: ' "$OUT/$PART.testlog" | sed 's/.*skipped: //' | head -n 1)"
    fi
    return "$status"
}

# number FILE NAME KEY: of the row of that name, in the largest of the tables that a benchmark wrote.
number() { sed -n "s/.*\"name\": \"$2\".*\"$3\": \[\([0-9.]*\),.*/\1/p" "$1" | tail -n 1; }

# The trainer on the GPU; its log in $OUT/NAME.jsonl.
train() {
    local name=$1
    shift
    "$TRAINER" --help | grep -q -- --backend || skip "this trainer knows no --backend"
    "$TRAINER" --backend cuda --data "$OUT/text" --arch gpt2 --precision bf16 --ranks 1 --sample 0 --eval-every 0 \
        --log "$OUT/$name.jsonl" "$@"
}

# rate NAME FIRST: tokens per second of the median step after the FIRST ones.
rate() {
    sed 's/.*"tokens": \([0-9]*\).*"seconds": \([0-9.e+-]*\).*/\1 \2/' "$OUT/$1.jsonl" | awk -v first="$2" '
        { if (NR > first) print ($1 - before) / $2; before = $1 }' | sort -n | awk '{ v[NR] = $1 } END { if (NR) printf "%.0f\n", v[int((NR + 1) / 2)] }'
}

mfu() { sed -n 's/.*MFU \([0-9.]*\) %.*/\1/p' "$1" | tail -n 1; }

part_env() {
    "$SHERD" env
    figure "$("$SHERD" env | sed -n 's/^ *cuda device 0 *:* *//p')"
}

part_kernels() { suite gpu-kernels; }
part_worlds() { SHERD_NCCL_LIBRARY=/nonexistent suite gpu-worlds; }
part_nccl() { suite gpu-nccl; }
part_engine() { suite gpu-engine; }

part_proof() {
    local status=0
    (cd "$OUT" && "$SHERD" test --backend cuda -n 2 --time-limit 20) | tee "$OUT/proof.text" || status=$?
    figure "$(tail -n 1 "$OUT/proof.text")"
    return "$status"
}

part_sanitizer() {
    local tool suite_program="$BUILD/tests/kernels/test_device_cuda" status=0 race
    tool=$(command -v compute-sanitizer || command -v /usr/local/cuda/bin/compute-sanitizer || true)
    [ -n "$tool" ] || skip "compute-sanitizer is not installed"
    "$tool" --tool racecheck --error-exitcode 9 "$suite_program" sumsq_equals >"$OUT/sanitizer.race" 2>&1 &
    race=$!
    "$tool" --tool memcheck --leak-check no --error-exitcode 9 "$suite_program" || status=$?
    wait "$race" || status=$?
    cat "$OUT/sanitizer.race"
    # On some virtual machines it cannot attach at all: that says nothing about the kernels.
    if grep -qiE 'device not supported|not supported on this' "$OUT/sanitizer.race"; then
        skip "compute-sanitizer does not work here: $(grep -iE -m 1 'not supported' "$OUT/sanitizer.race")"
    fi
    figure "memcheck all, racecheck sumsq: $(grep -h 'SUMMARY' "$OUT/sanitizer.race" "$OUT/sanitizer.log" | sed 's/=* *//' | tr '\n' ';')"
    return "$status"
}

# bench_gpu ROWS NAME: against the device's own copy and, where PyTorch is installed, against its AdamW.
bench_gpu() {
    local peers=()
    if [ "$1" = adamw ] && [ -n "$PYTHON" ]; then
        peers=(--peers "$PYTHON")
    fi
    "$BUILD/bench/bench-gpu" --sizes 16M,128M,1G --rows "$1" --json "$OUT/$PART.json" "${peers[@]}"
    figure "$2: $(number "$OUT/$PART.json" "$2" gb_per_s) GB/s, $(number "$OUT/$PART.json" "$2" of_copy) of copy"
}

part_adam() {
    local of_torch
    bench_gpu adamw "adamw mixed bf16"
    line "$(number "$OUT/adam.json" "adamw mixed bf16" of_copy)" least "$LEAST_ADAM_OF_COPY" ""
    of_torch=$(number "$OUT/adam.json" "torch fused mixed" ours_of_this)
    if [ -n "$of_torch" ]; then
        figure "ours / torch fused mixed: $of_torch"
        line "$of_torch" least "$LEAST_ADAM_OF_TORCH" " of torch"
    else
        figure "no PyTorch here"
    fi
}

part_lamb() {
    bench_gpu lamb "lamb mixed, both sweeps"
    line "$(number "$OUT/lamb.json" "lamb mixed, both sweeps" of_copy)" least "$LEAST_LAMB_OF_COPY" ""
}

part_offload() {
    local ratio
    "$BUILD/bench/bench-gpu-offload" --elems 64M --rounds 5 --dir "$OUT" --json "$OUT/offload.json"
    for tier in cpu nvme; do
        ratio=$(sed -n "s/.*\"place\": \"$tier\".*\"step_to_limit\": \[\([0-9.]*\),.*/\1/p" "$OUT/offload.json" | tail -n 1)
        [ -n "$ratio" ] || continue
        figure "state on $tier: boundary / max(link, host) $ratio, step / max(link, host, compute) $(
            sed -n "s/.*\"place\": \"$tier\".*\"step_to_longest\": \[\([0-9.]*\),.*/\1/p" "$OUT/offload.json")"
        line "$ratio" most "$MOST_OFFLOAD" ""
    done
}

# Ends with 1 by itself where planned is not held, or not what the device reports.
part_memory() {
    (cd "$OUT" && "$BUILD/bench/bench-memory" --backend cuda --real-only --models 124m --worlds 1,2 --json memory.json)
    figure "$(wc -l <"$OUT/memory.json") rows as planned"
}

part_trainer() {
    train trainer --preset 124m --batch 32 --length 1024 --steps 20
    figure "$(rate trainer 5) tokens/s, MFU $(mfu "$OUT/trainer.log") %"
    line "$(mfu "$OUT/trainer.log")" least "$LEAST_MFU" " %"
}

part_exposed() {
    local percent
    SHERD_TRACE=$OUT/trace.json train exposed --preset 124m --batch 32 --length 1024 --steps 10 --quiet
    "$SHERD" trace "$OUT/trace.json" --skip 4
    percent=$("$SHERD" trace "$OUT/trace.json" --skip 4 --json |
        sed -n 's/.*"median": {[^{]*"exposed_share": \([0-9.]*\).*/\1/p' | awk '{ printf "%.2f", 100 * $1 }')
    figure "$percent % of a step, median of 6"
    line "$percent" most "$MOST_EXPOSED" " %"
}

part_large() {
    local shape="--preset 774m --batch 8 --length 1024 --accumulation 8 --steps 5" inside offloaded share
    # shellcheck disable=SC2086
    train large_inside $shape
    inside=$(rate large_inside 2)
    # shellcheck disable=SC2086
    train large_offloaded $shape --offload cpu
    offloaded=$(rate large_offloaded 2)
    share=$(awk -v a="$offloaded" -v b="$inside" 'BEGIN { printf "%.3f", b > 0 ? a / b : 0 }')
    figure "tokens/s: $inside, state on cpu $offloaded ($share)"
    line "$share" least "$LEAST_OFFLOADED" ""
}

if [ "${1-}" = --part ]; then
    PART=$2
    "part_$PART"
    exit
fi

# ----------------------------------------------------------------- command --

command_line="tests/gpu/check.sh $*"
debs="" only="" has_build=0 limit=465
export OUT="" BUILD=$root/build-gpu
while [ $# -gt 0 ]; do
    case $1 in
    --debs | --out | --build | --only | --limit)
        [ $# -gt 1 ] || { usage >&2 && exit 2; }
        case $1 in
        --debs) debs=$(realpath "$2") ;;
        --out) OUT=$(realpath -m "$2") ;;
        --build) BUILD=$(realpath -m "$2") ;;
        --only) only=$2 ;;
        --limit) limit=$2 ;;
        esac
        shift 2
        ;;
    --no-build)
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

if ! nvidia-smi -L >/dev/null 2>&1 && ! [ -e /dev/nvidia0 ] && [ "$has_build" = 0 ]; then
    say "skipped: there is no GPU here (no nvidia-smi that answers, no /dev/nvidia0)"
    exit 77
fi
mkdir -p "$OUT" "$BUILD"
rm -f "$OUT"/*.figure "$OUT"/*.line "$OUT"/*.missed

# Packages that are not installed: a copy of their pkg-config files that says where they are.
debs_use() {
    local libs=$debs/usr/lib/x86_64-linux-gnu pc
    if [ -f "$debs" ]; then
        mkdir -p "$BUILD/debs"
        tar xzf "$debs" -C "$BUILD/debs" --strip-components=1
        debs=$BUILD/debs
        libs=$debs/usr/lib/x86_64-linux-gnu
    fi
    mkdir -p "$BUILD/pkgconfig"
    for pc in "$libs"/pkgconfig/*.pc "$libs"/*/pkgconfig/*.pc "$libs"/*/lib/pkgconfig/*.pc; do
        [ -f "$pc" ] && sed -e "s,=/usr,=$debs/usr," -e '/^Requires.private/d' -e '/^Libs.private/d' "$pc" \
            >"$BUILD/pkgconfig/$(basename "$pc")"
    done
    export PKG_CONFIG_PATH=$BUILD/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
    export CPATH=$debs/usr/include:$debs/usr/include/x86_64-linux-gnu${CPATH:+:$CPATH}
    export LIBRARY_PATH=$libs:$libs/openblas-pthread:$debs/lib/x86_64-linux-gnu${LIBRARY_PATH:+:$LIBRARY_PATH}
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$libs:$libs/openblas-pthread:$libs/openmpi/lib:$libs/pmix2/lib:$debs/lib/x86_64-linux-gnu
    export LD_LIBRARY_PATH OPAL_PREFIX=$debs/usr
    if ! command -v pkg-config >/dev/null && ! command -v pkgconf >/dev/null; then
        mkdir -p "$BUILD/bin"
        ln -sf "$debs/usr/bin/pkgconf" "$BUILD/bin/pkg-config"
        export PATH=$PATH:$BUILD/bin
    fi
}

# NCCL and cuBLAS that came with Python, where the toolkit has none.
wheels_use() {
    local folder
    command -v python3 >/dev/null || return 0
    while read -r folder; do
        [ -d "$folder/include" ] && [ -f "$folder/include/nccl.h" ] && export CPATH=${CPATH:+$CPATH:}$folder/include
        if [ -d "$folder/lib" ]; then
            export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder/lib
            [ -e "$folder/lib/libnccl.so.2" ] && export SHERD_NCCL_LIBRARY=${SHERD_NCCL_LIBRARY:-$folder/lib/libnccl.so.2}
        fi
    done < <(python3 -c '
import glob, os, sys
for entry in sys.path:
    for folder in glob.glob(os.path.join(entry, "nvidia", "*")):
        name = os.path.basename(folder)
        if name in ("nccl", "cublas", "cu12", "cu13"):
            print(folder)' 2>/dev/null)
    return 0
}

# A Python with PyTorch, for peers, without the libraries from above; "" where there is none.
python_find() {
    export PYTHON=""
    if python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' >/dev/null 2>&1; then
        PYTHON=$BUILD/python
        printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec python3 "$@"\n' "'${LD_LIBRARY_PATH-}'" >"$PYTHON"
        chmod +x "$PYTHON"
    fi
}

# Everything optional on auto; what does not link here is left out rather than all lost.
build() {
    local jobs
    jobs=$(nproc)
    if ! command -v meson >/dev/null || ! command -v ninja >/dev/null; then
        say "meson and ninja are needed"
        return 1
    fi
    [ -f "$BUILD/build.ninja" ] || meson setup "$BUILD" "$root" -Dgpu_arch=native -Dcuda=enabled || return 1
    ninja -C "$BUILD" -j "$jobs" && return 0
    say "once more without MPI and hwloc"
    meson configure "$BUILD" -Dmpi=disabled -Dhwloc=disabled && ninja -C "$BUILD" -j "$jobs"
}

python_find
[ -z "$debs" ] || debs_use
wheels_use

processor() { sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1; }
say "# $(date -u +%F): sherd on a GPU"
say ""
say '```'
say "# date     $(date -u '+%F %H:%M UTC')"
say "# machine  $(processor), $(nproc) cores, $(awk '/^MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo), $(uname -sr)"
say "# device   $(nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2>/dev/null | tr '\n' ';' || true)"
say "# source   $(git -C "$root" describe --always --dirty 2>/dev/null || echo 'no git checkout')"
say "# command  $command_line"
say '```'
say ""

result_rows=""
failed=0
# row PART RESULT SECONDS FIGURE LINE
row() {
    result_rows+="| $1 | $2 | $3 | ${4:-} | ${5:-} |"$'\n'
    say "$1: $2 (${3} s)${4:+: $4}${5:+; line: $5}"
}

if [ "$has_build" = 0 ]; then
    before=$SECONDS
    status=0
    build >"$OUT/build.log" 2>&1 &
    builder=$!
    while kill -0 "$builder" 2>/dev/null && [ "$(left)" -gt 60 ]; do sleep 1; done
    if kill -0 "$builder" 2>/dev/null; then
        kill "$builder"
        say "the build did not end in time"
    fi
    wait "$builder" || status=$?
    if [ "$status" != 0 ]; then
        tail -n 40 "$OUT/build.log"
        row build FAIL $((SECONDS - before)) "see build.log" ""
        exit 1
    fi
    row build pass $((SECONDS - before)) "$(sed -n 's/^ *\(hwloc\|Open MPI\|liburing\|libxxhash\|openblas (trainer)\|CUDA\|NCCL\) *: *\(YES\|NO\).*/\1 \2/p' "$OUT/build.log" | tr '\n' ',' | sed 's/,$//; s/,/, /g')" ""
fi
export SHERD=$BUILD/cli/sherd TRAINER=$BUILD/examples/llm/sherd-llm
if ! "$SHERD" env >"$OUT/env.text" 2>&1 || ! grep -q 'cuda device 0' "$OUT/env.text"; then
    say "skipped: $(grep 'cuda devices' "$OUT/env.text" || tail -n 1 "$OUT/env.text")"
    exit 77
fi
# A text to train on: this project's own.
find "$root" -name '*.[ch]' -not -path '*/build*' -exec cat {} + >"$OUT/text"

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
    trainer | large) tail -n 6 "$OUT/$1.log" ;;
    esac
}

part_run() {
    local name=$1 seconds=$2 what=$3 status=0 before=$SECONDS result figures
    if [ "$(left)" -lt 10 ]; then
        row "$name" "not run" 0 "no time left" ""
        return
    fi
    [ "$seconds" -le "$(left)" ] || seconds=$(left)
    timeout -k 5 "$seconds" "$root/tests/gpu/check.sh" --part "$name" >"$OUT/$name.log" 2>&1 || status=$?
    case $status in
    0) result=pass ;;
    77) result=skip ;;
    124 | 137) result="FAIL: over $seconds s" ;;
    *) result="FAIL: status $status" ;;
    esac
    [ "$status" = 0 ] && [ -f "$OUT/$name.missed" ] && result="MISSED"
    case $result in FAIL* | MISSED) failed=1 ;; esac
    touch "$OUT/$name.figure"
    figures=$(tr '\n' ';' <"$OUT/$name.figure" | sed 's/;$//; s/;/; /g')
    [ "$status" != 77 ] || figures=$(sed -n 's/.*skipped: //p' "$OUT/$name.log" | tail -n 1)
    say ""
    say "## $name: $what"
    say ""
    row "$name" "$result" $((SECONDS - before)) "$figures" "$(cat "$OUT/$name.line" 2>/dev/null || true)"
    case $result in
    pass | MISSED)
        if [ -n "$(shown "$name")" ]; then
            block "$(shown "$name")"
        fi
        ;;
    FAIL*) block "$(tail -n 40 "$OUT/$name.log")" ;;
    esac
}

while read -r name seconds what; do
    if [ -n "$name" ] && { [ -z "$only" ] || [[ ",$only," == *",$name,"* ]]; }; then
        part_run "$name" "$seconds" "$what" </dev/null
    fi
done <<<"$PARTS"

say ""
say "## All"
say ""
say "| part | result | seconds | figure | line |"
say "|---|---|---|---|---|"
printf '%s' "$result_rows"
say ""
say "$((SECONDS - started)) seconds; $([ $failed = 0 ] && echo "all that ran passed" || echo "something failed or missed its line")"
exit $failed

#!/bin/sh
# The trainer on the emulated GPU, or on a real one: test_trainer_cuda.sh PROGRAM GROUP [real]. Its losses follow the CPU's; how a
# run is laid out does not show in its bits.
# shellcheck disable=SC2317 # the functions are called by name
set -eu
program=$1
group=$2
is_real=${3-}
if [ -n "$is_real" ] && ! nvidia-smi -L >/dev/null 2>&1 && ! [ -e /dev/nvidia0 ]; then
    echo "skipped: there is no GPU here"
    exit 77
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0

awk 'BEGIN { for (i = 0; i < 1500; i++) printf "%d times %d is %d. ", i % 37, i % 11, (i % 37) * (i % 11) }' >"$scratch/text"

fail() {
    echo "not ok: $*"
    failed=1
}

# tiny ARGS: a small run of one rank, its log in $scratch/log.
tiny() {
    "$program" --data "$scratch/text" --hidden 32 --layers 2 --heads 4 --inner 48 --length 16 --steps 4 --batch 2 \
        --sample 0 --threads 1 --ranks 1 --eval-every 0 --log "$scratch/log" "$@" >"$scratch/out" 2>&1 || {
        fail "$*"
        cat "$scratch/out"
    }
}

fingerprints() {
    sed 's/.*"fingerprint": "\(0x[0-9a-f]*\)".*/\1/' "$scratch/log" | tr '\n' ' '
}

# same NAME WANT GOT
same() {
    if [ -z "$2" ] || [ "$2" != "$3" ]; then
        fail "$1: $3, not $2"
    fi
}

# near NAME BOUND: the losses of $scratch/log and $scratch/other, relative.
near() {
    sed 's/.*"loss": \([0-9.]*\),.*/\1/' "$scratch/log" >"$scratch/a"
    sed 's/.*"loss": \([0-9.]*\),.*/\1/' "$scratch/other" >"$scratch/b"
    paste "$scratch/a" "$scratch/b" | awk -v bound="$2" '
        { gap = ($1 - $2) / $2; if (gap < 0) gap = -gap; if (gap > bound) { print "losses " $1 ", " $2; bad = 1 } }
        END { exit bad || NR < 4 }' || fail "$1"
}

# Steps enough for the losses to part, and twice as many in the long list.
follows() {
    steps=4
    [ -n "${SHERD_TEST_LONG-}" ] && steps=8
    for arch in minimind gpt2; do
        heads="--kv-heads 2"
        [ "$arch" = gpt2 ] && heads="--kv-heads 4"
        for precision in fp32:1e-4 bf16:2e-2 fp16:1e-2; do
            bound=${precision#*:}
            # shellcheck disable=SC2086
            tiny --arch $arch --preset tiny $heads --precision "${precision%:*}" --steps $steps --backend cpu
            mv "$scratch/log" "$scratch/other"
            # shellcheck disable=SC2086
            tiny --arch $arch --preset tiny $heads --precision "${precision%:*}" --steps $steps --backend cuda --sample 3
            near "$arch ${precision%:*}" "$bound"
        done
    done
    tiny --backend cuda --kv-heads 2 --peak-tflops 1
    grep -qE "^median step .*, MFU [0-9.]+ %$" "$scratch/out" || fail "no MFU: $(cat "$scratch/out")"
    if [ -z "$is_real" ]; then
        if SHERD_EMULATOR_DEVICES=0 "$program" --data "$scratch/text" --backend cuda >"$scratch/out" 2>&1; then
            fail "trains without a device"
        fi
        grep -q "sherd-llm: " "$scratch/out" || fail "no sentence: $(cat "$scratch/out")"
    fi
}

# A step is reported while the next one computes: what the ranks send for that is not the engine's, and each step is reported once, in order.
queued() {
    tiny --kv-heads 2 --precision bf16 --backend cuda --ranks 2 --accumulation 2 --steps 7 --eval-every 3 --save "$scratch/saved" --save-every 5
    sed -n 's/.*"step": \([0-9]*\), "loss".*"ranks_off_plan": \([0-9]*\),.*/\1 \2/p' "$scratch/log" | tail -n +2 | tr '\n' ' ' >"$scratch/steps"
    [ "$(cat "$scratch/steps")" = "2 0 3 0 4 0 5 0 6 0 7 0 " ] || fail "steps and ranks off plan: $(cat "$scratch/steps")"
    [ "$(grep -c validation "$scratch/log")" = 3 ] || fail "validations: $(cat "$scratch/log")"
    tiny --kv-heads 2 --precision bf16 --backend cuda --minutes 0.03 # the trial queues steps too
    [ "$(ls "$scratch/saved" | tr '\n' ' ')" = "latest step-000005 step-000007 " ] || fail "saves: $(ls "$scratch/saved")"
}

# All in bf16; in fp32 the sample has the two ends.
layouts() {
    for precision in fp32 bf16; do
        want=""
        for layout in "--stage 0" "--stage 0" "--stage 1" "--stage 2" "--stage 3" "--stage 3 --recompute" \
            "--stage 2 --offload cpu" "--stage 3 --graphs"; do
            case "$precision $layout ${SHERD_TEST_LONG-}" in
            "fp32 --stage 1 " | "fp32 --stage 2 " | "fp32 --stage 3 " | "fp32 --stage 3 --graphs ") continue ;;
            esac
            # shellcheck disable=SC2086
            tiny --kv-heads 2 --precision $precision --backend cuda $layout
            got=$(fingerprints)
            want=${want:-$got}
            same "$precision $layout" "$want" "$got"
        done
    done
}

# Activations in host memory: one place for two or three layers, so that some have to go.
moved() {
    echo '{"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true}, "sherd": {"activations": {"buffer_count": 1}}}' >"$scratch/moved.json"
    want=""
    for places in device cpu cheap:1,recompute-cpu; do
        tiny --layers 3 --kv-heads 2 --backend cuda --graphs --config "$scratch/moved.json" --activations $places
        want=${want:-$(fingerprints)}
        same "activations on $places" "$want" "$(fingerprints)"
    done
}

"$group"
[ "$group" = layouts ] && queued && moved
exit $failed

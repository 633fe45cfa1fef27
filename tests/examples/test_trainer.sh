#!/bin/sh
# The trainer as a person starts it: test_trainer.sh PROGRAM GROUP. Layouts must give the same
# fingerprints, bad input a sentence.
# shellcheck disable=SC2317 # the functions are called by name
set -eu
program=$1
group=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

awk 'BEGIN { for (i = 0; i < 1500; i++) printf "%d times %d is %d. ", i % 37, i % 11, (i % 37) * (i % 11) }' >"$scratch/text"

# tiny ARGS: a small run, its log in $scratch/log, its output in $scratch/out.
tiny_flags="--hidden 48 --layers 2 --heads 4 --kv-heads 2 --inner 80 --length 24 --steps 4 --sample 0 --threads 1 --eval-every 0"
tiny() {
    # shellcheck disable=SC2086
    "$program" --data "$scratch/text" $tiny_flags --log "$scratch/log" "$@" >"$scratch/out" 2>&1 || {
        echo "failed: $*"
        cat "$scratch/out"
        failed=1
    }
}

fail() {
    echo "not ok: $*"
    failed=1
}

fingerprints() {
    sed 's/.*"fingerprint": "\(0x[0-9a-f]*\)".*/\1/' "$scratch/log" | tr '\n' ' '
}

losses() {
    sed 's/.*"loss": \([0-9.]*\),.*/\1/' "$scratch/log" | tr '\n' ' '
}

# same NAME WANT GOT
same() {
    if [ -z "$2" ] || [ "$2" != "$3" ]; then
        fail "$1: $3, not $2"
    fi
}

stages() {
    for arch in minimind gpt2; do
        heads=""
        [ "$arch" = gpt2 ] && heads="--kv-heads 4"
        for precision in fp32 bf16; do
            for ranks in 1 2 4; do
                want=""
                for stage in 0 1 2 3; do
                    # shellcheck disable=SC2086
                    tiny --arch "$arch" --preset tiny $heads --precision "$precision" --ranks "$ranks" --stage "$stage"
                    got=$(fingerprints)
                    want=${want:-$got}
                    same "$arch $precision, $ranks ranks, stage $stage" "$want" "$got"
                done
            done
        done
    done
}

# What the machine does must not show: threads, recomputation, processes.
machine() {
    tiny --ranks 2 --stage 3
    want=$(fingerprints)
    tiny --ranks 2 --stage 3 --threads 3
    same "three threads" "$want" "$(fingerprints)"
    tiny --ranks 2 --stage 2 --recompute
    same "recomputation" "$want" "$(fingerprints)"
    tiny --ranks 2 --stage 3 --sample 5 --eval-every 1
    same "validation after each step" "$want" "$(fingerprints)"

    # The global batch of 4 micro-batches is the same however it is laid out.
    tiny --ranks 4 --precision fp32
    data=$(losses | cut -d' ' -f1)
    tiny --ranks 2 --accumulation 2 --precision fp32
    same "loss of 2 ranks x 2 micro-batches" "$data" "$(losses | cut -d' ' -f1)"
    tiny --ranks 1 --accumulation 4 --precision fp32
    same "loss of 4 micro-batches" "$data" "$(losses | cut -d' ' -f1)"
    tiny --ranks 1 --precision fp16 --steps 2
}

launched() {
    tiny --ranks 2 --stage 3
    want=$(fingerprints)
    for rank in 0 1; do
        # shellcheck disable=SC2086
        SHERD_RANK=$rank SHERD_WORLD_SIZE=2 SHERD_RENDEZVOUS="unix://$scratch/meet" \
            "$program" --data "$scratch/text" $tiny_flags --stage 3 --log "$scratch/log.$rank" >"$scratch/out.$rank" 2>&1 &
        pids="${pids-} $!"
    done
    for pid in $pids; do
        wait "$pid" || fail "a process failed: $(cat "$scratch"/out.?)"
    done
    mv "$scratch/log.0" "$scratch/log"
    same "two processes" "$want" "$(fingerprints)"
    [ ! -e "$scratch/log.1" ] || fail "rank 1 wrote a log"
    OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 timeout 20 "$program" --data "$scratch/text" >"$scratch/probe" 2>&1 || true
    if command -v mpirun >/dev/null && ! grep -q "built without MPI" "$scratch/probe"; then
        # MPI leaves memory behind when it ends, which is not ours to report.
        # shellcheck disable=SC2086
        ASAN_OPTIONS=${ASAN_OPTIONS-}:detect_leaks=0 mpirun --oversubscribe -n 2 "$program" --data "$scratch/text" $tiny_flags --stage 1 --log "$scratch/log" \
            >"$scratch/out" 2>&1 || fail "mpirun: $(cat "$scratch/out")"
        same "mpirun" "$want" "$(fingerprints)"
    fi
}

# One job, however it is laid out: every printed digit of the log is the same, the time apart.
deterministic() {
    printf '{"deterministic": true, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": "auto",
        "bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "zero_optimization": {"stage": "auto"}}' >"$scratch/config.json"
    want=""
    for layout in "1 6 0" "1 6 3" "6 1 3" "6 1 0" "2 3 1" "3 2 2"; do
        # shellcheck disable=SC2086
        set -- $layout
        tiny --config "$scratch/config.json" --ranks "$1" --accumulation "$2" --stage "$3"
        got=$(sed 's/"seconds": [0-9.e+-]*, //' "$scratch/log")
        want=${want:-$got}
        same "the log of $1 ranks x $2 micro-batches, stage $3" "$want" "$got"
    done
}

# refused WORDS ARGS: exits 1 or 2 and says WORDS.
refused() {
    words=$1
    shift
    code=0
    "$program" "$@" >"$scratch/out" 2>&1 || code=$?
    if [ "$code" != 1 ] && [ "$code" != 2 ]; then
        fail "exit code $code: $*"
    fi
    grep -q -- "$words" "$scratch/out" || fail "'$words' is not said by: $*: $(cat "$scratch/out")"
}

mistakes() {
    refused "--data PATH is needed"
    refused "unrecognized option" --data "$scratch/text" --bogus
    refused "is no option" --data "$scratch/text" more
    refused "requires an argument" --data
    refused "takes gpt2 or minimind, not 'bert'" --data "$scratch/text" --arch bert
    refused "gpt2 has no preset '1t'; it has tiny bytes 124m" --data "$scratch/text" --arch gpt2 --preset 1t
    refused "takes a number from 0 to 3, not '4'" --data "$scratch/text" --stage 4
    refused "takes a number of at least 1, not '12x'" --data "$scratch/text" --hidden 12x
    refused "takes a number of at least 0, not '-1e-3'" --data "$scratch/text" --lr=-1e-3
    refused "takes fp32, bf16 or fp16, not 'int8'" --data "$scratch/text" --precision int8
    refused "hidden 50 is not a multiple of heads 4" --data "$scratch/text" --hidden 50 --heads 4
    refused "too few for --length 5000" --data "$scratch/text" --arch gpt2 --length 5000
    refused "No such file" --data "$scratch/missing"
    refused "No such file" --data "$scratch/text" --config "$scratch/missing.json"
    refused "cannot be written" --data "$scratch/text" --log /missing/log
    printf 'short' >"$scratch/short"
    refused "too short" --data "$scratch/short"
    printf '\377\376 not text' >"$scratch/binary"
    refused "neither UTF-8 text" --data "$scratch/binary"
    refused "give --vocab 256" --data "$scratch/text" --vocab 100
    printf '{"optimizer": {"type": "AdamW"' >"$scratch/bad.json"
    refused "bad.json:1" --data "$scratch/text" --config "$scratch/bad.json"
    printf '{"optimizer": {"type": "Lion"}}' >"$scratch/bad.json"
    refused "Lion" --data "$scratch/text" --config "$scratch/bad.json"

    "$program" --help >"$scratch/out" 2>&1 || fail "--help fails"
    grep -q "mpirun" "$scratch/out" || fail "--help has no examples"
}

summary() {
    tiny --ranks 2 --sample 20 --prompt "3 times"
    for words in "validation loss" "memory per rank" "at stage 0" "steps/s" "3 times|" "fingerprint of the weights 0x"; do
        grep -qF -- "$words" "$scratch/out" || fail "no '$words' in the summary: $(cat "$scratch/out")"
    done
    [ "$(wc -l <"$scratch/log")" = 4 ] || fail "the log has not 4 lines"

    # A configuration of one's own; "auto" is filled, the command line is over the file.
    cat >"$scratch/own.json" <<'JSON'
{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3,
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "zero_optimization": {"stage": 1},
 "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_num_steps": "auto"}}}
JSON
    tiny --config "$scratch/own.json" --ranks 2 --lr 5e-3
    grep -q "ZeRO stage 1, fp32, 2 ranks" "$scratch/out" || fail "own.json: $(cat "$scratch/out")"
    grep -q "a step is 12 sequences" "$scratch/out" || fail "own.json: $(cat "$scratch/out")"
    tail -1 "$scratch/log" | grep -q '"tokens": 1152,' || fail "own.json: $(tail -1 "$scratch/log")"

    # Ctrl-C finishes the step and sums up.
    rm "$scratch/log"
    # shellcheck disable=SC2086
    "$program" --data "$scratch/text" $tiny_flags --steps 100000 --ranks 2 --log "$scratch/log" >"$scratch/out" 2>&1 &
    pid=$!
    until [ -s "$scratch/log" ]; do
        kill -0 "$pid" || break
        sleep 0.1
    done
    kill -TERM "$pid"
    wait "$pid" || fail "stopping fails: $(cat "$scratch/out")"
    grep -q "stopped after step" "$scratch/out" || fail "stopping: $(cat "$scratch/out")"
    grep -q "memory per rank" "$scratch/out" || fail "no summary after stopping"
}

$group
[ $failed = 0 ] && echo "$group: ok"
exit $failed

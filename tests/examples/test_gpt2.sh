#!/bin/sh
# examples/gpt2 as a person starts it: test_gpt2.sh PROGRAM SHERD SOURCE. Layouts give the fingerprints that docs/numerics.md promises,
# what was saved goes on anywhere, bad input gives a sentence, and the file stays one that is read in one go.
set -eu
program=$1
sherd=$2
source=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 SHERD_THREADS=1

fail() {
    echo "not ok: $*"
    failed=1
}

# same NAME WANT GOT
same() {
    if [ -z "$2" ] || [ "$2" != "$3" ]; then
        fail "$1: $3, not $2"
    fi
}

awk 'BEGIN { for (i = 0; i < 800; i++) printf "%d times %d is %d. ", i % 37, i % 11, (i % 37) * (i % 11) }' >"$scratch/text"
small="--data $scratch/text --length 16 --layers 2 --width 16 --heads 2"

# config STAGE DETERMINISTIC OFFLOAD: writes $scratch/json. A step has twelve sequences, in micro-batches of two.
config() {
    printf '{"train_batch_size": 12, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0, "deterministic": %s,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "zero_optimization": {"stage": %s%s}}' "$2" "$1" "$3" >"$scratch/json"
}

# run ARGS: the small model; output in $scratch/out.
run() {
    # shellcheck disable=SC2086
    "$program" $small --config "$scratch/json" --steps 4 "$@" >"$scratch/out" 2>&1 || fail "$*: $(cat "$scratch/out")"
}

fingerprint() {
    sed -n 's/.*: fingerprint //p' "$scratch/out"
}

# The loss on what is held out, the last.
held() {
    sed -n 's/^step 4: loss \([0-9.]*\) on what is held out$/\1/p' "$scratch/out"
}

# The loss that the line of a step has.
loss() {
    sed -n "s/^step $1: loss \([0-9.]*\), .*/\1/p" "$scratch/out"
}

"$program" --data "$scratch/text" --length 32 --layers 1 --width 32 --steps 60 --batch 4 >"$scratch/out"
awk -v first="$(loss 10)" -v last="$(loss 60)" 'BEGIN { exit !(first > 2.5 && last < 0.7 * first) }' ||
    fail "the loss does not fall: $(cat "$scratch/out")"

# One micro-batch a step: all stages agree. Micro-batches that are added up: 0 as 1, 2 as 3. Deterministic: everything does.
one=""
for ranks in 1 2 3; do
    for stage in 0 1 2 3; do
        config $stage true ""
        run --ranks $ranks --eval-every 2
        one=${one:-$(fingerprint)}
        same "deterministic, $ranks ranks, stage $stage" "$one" "$(fingerprint)"
        one_held=${one_held:-$(held)}
        same "held out, $ranks ranks, stage $stage" "$one_held" "$(held)"
        config $stage false ""
        run --ranks $ranks
        [ $((stage % 2)) = 1 ] || even=$(fingerprint)
        same "$ranks ranks, stage $stage as the stage below" "$even" "$(fingerprint)"
        sed -i 's/"train_batch_size": 12, //' "$scratch/json"
        run --ranks $ranks
        [ $stage != 0 ] || want=$(fingerprint)
        same "$ranks ranks, stage $stage, one micro-batch" "$want" "$(fingerprint)"
    done
done
[ "$(loss 4)" ] || fail "no line for a step: $(cat "$scratch/out")"

mkdir "$scratch/drive"
for tier in cpu nvme; do
    device="\"device\": \"$tier\", \"nvme_path\": \"$scratch/drive\""
    config 3 true ", \"offload_optimizer\": {$device}, \"offload_param\": {$device}"
    "$program" --data "$scratch/text" --config "$scratch/json" --steps 0 >"$scratch/out" 2>&1 || {
        grep -q "io_uring\|libxxhash" "$scratch/out" && continue
    }
    run --ranks 2
    same "state and parameters on $tier" "$one" "$(fingerprint)"
done
[ -z "$(ls -A "$scratch/drive")" ] || fail "a clean end leaves $(ls "$scratch/drive")"

# Saved by three ranks, gone on from by one and by two.
config 3 true ""
run --ranks 3 --steps 2 --save "$scratch/saved"
[ -e "$scratch/saved/step-000002/manifest.json" ] || fail "nothing is saved: $(cat "$scratch/out")"
for ranks in 1 2; do
    cp -r "$scratch/saved" "$scratch/saved.$ranks"
    config $ranks true ""
    run --ranks $ranks --save "$scratch/saved.$ranks" --resume 1 --save-every 3
    same "gone on from by $ranks ranks" "$one" "$(fingerprint)"
    [ -z "$(loss 2)" ] && [ -n "$(loss 3)" ] || fail "the run began anew: $(cat "$scratch/out")"
    same "checkpoints" "latest step-000002 step-000003 step-000004 " "$(ls "$scratch/saved.$ranks" | tr '\n' ' ')"
done
run --ranks 2 --save "$scratch/none" --resume 1
same "nothing to go on from" "$one" "$(fingerprint)"

# Stopped by a signal, and gone on from to four steps behind that.
config 2 true ""
: >"$scratch/out"
# shellcheck disable=SC2086
"$program" $small --config "$scratch/json" --ranks 2 --steps 1000000 --save "$scratch/stopped" >"$scratch/out" 2>&1 &
pid=$!
until grep -q "^step 3:" "$scratch/out" || ! kill -0 "$pid"; do sleep 0.02; done
kill -INT "$pid"
wait "$pid" || fail "stopped: status $?: $(cat "$scratch/out")"
step=$(sed -n "s,^step \([0-9]*\): saved in $scratch/stopped\$,\1,p" "$scratch/out")
run --steps $((step + 2)) --save "$scratch/stopped" --resume 1
resumed=$(fingerprint)
run --steps $((step + 2)) --ranks 3
same "stopped after step $step" "$(fingerprint)" "$resumed"

# Processes are ranks.
config 3 false ""
run --ranks 2
want=$(fingerprint)
# shellcheck disable=SC2086
"$sherd" launch -n 2 "$program" $small --config "$scratch/json" --steps 4 >"$scratch/out" 2>&1 || fail "sherd launch: $(cat "$scratch/out")"
same "sherd launch" "$want" "$(fingerprint)"
OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 timeout 20 "$program" --data "$scratch/text" >"$scratch/probe" 2>&1 || true
if command -v mpirun >/dev/null && ! grep -q "built without MPI" "$scratch/probe"; then
    # shellcheck disable=SC2086 # MPI leaves memory behind when it ends
    ASAN_OPTIONS=${ASAN_OPTIONS-}:detect_leaks=0 mpirun --oversubscribe -n 2 "$program" $small --config "$scratch/json" --steps 4 \
        >"$scratch/out" 2>&1 || fail "mpirun: $(cat "$scratch/out")"
    same "mpirun" "$want" "$(fingerprint)"
fi

# refused SENTENCE ARGS: fails with that sentence.
refused() {
    sentence=$1
    shift
    if "$@" >"$scratch/out" 2>&1; then
        fail "$*: taken"
    fi
    grep -qE -- "$sentence" "$scratch/out" || fail "$*: $(cat "$scratch/out")"
}
printf 'short' >"$scratch/short"
printf '{"zero_optimization": {"stage": 3},\n "optimizer": }' >"$scratch/torn.json"
printf '{"train_batch_size": 2,\n "zero_optimization": {"stages": 3}}' >"$scratch/key.json"
printf '{"bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}' >"$scratch/bf16.json"
data="--data $scratch/text"
# shellcheck disable=SC2086
{
    refused "gpt2: --steps: takes a number from 0 to 1000000" "$program" $data --steps many
    refused "gpt2: --layers: takes a number from 1 to 64" "$program" $data --layers 65
    refused "gpt2: --step: there is no such option" "$program" $data --step 3
    refused "gpt2: --steps: needs a value" "$program" $data --steps
    refused "gpt2: --data: needs a value" "$program"
    refused "gpt2: --resume: needs --save" "$program" $data --resume 1
    refused "gpt2: --width: is no multiple of --heads" "$program" $data --width 30
    refused "gpt2: $scratch/none.txt: No such file" "$program" --data "$scratch/none.txt"
    refused "gpt2: $scratch/short: is shorter than" "$program" --data "$scratch/short"
    refused "gpt2: configuration: .*torn.json:2:15" "$program" $data --config "$scratch/torn.json"
    refused "key.json:2:[0-9]*: .*stages" "$program" $data --config "$scratch/key.json"
    refused "this trainer computes in fp32" "$program" $data --config "$scratch/bf16.json"
    refused "transformer|wte.weight|shape|parameter" "$program" $data --save "$scratch/saved" --resume 1 --width 32
    refused "gpt2: --ranks: the launcher has started another number" "$sherd" launch -n 2 "$program" $data --ranks 3
}
"$program" --help >"$scratch/out"
grep -q -- "--save-every " "$scratch/out" || fail "--help: $(cat "$scratch/out")"

lines=$(wc -l <"$source/examples/gpt2/gpt2.c")
[ "$lines" -le 700 ] || fail "examples/gpt2/gpt2.c has $lines lines, more than the 700 that pages promise"
exit $failed

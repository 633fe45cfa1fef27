#!/bin/sh
# sherd diff, on logs and checkpoints of the trainer: test_diff.sh SHERD TRAINER.
set -eu
sherd=$1
trainer=$2
subcommand=diff
. "$(dirname "$0")/lib.sh"

awk 'BEGIN { for (i = 0; i < 1500; i++) printf "%d times %d is %d. ", i % 37, i % 11, (i % 37) * (i % 11) }' >"$scratch/text"

# train NAME ARGS: a run, whose log of fingerprints is NAME.log.
train() {
    name=$1
    shift
    printf '{"sherd": {"fingerprints": {"file": "%s", "state_interval": 2}}}\n' "$scratch/$name.log" >"$scratch/$name.json"
    "$trainer" --data "$scratch/text" --hidden 48 --layers 2 --heads 4 --kv-heads 2 --inner 80 --length 24 --sample 0 --threads 1 \
        --eval-every 0 --quiet --config "$scratch/$name.json" "$@" >"$scratch/$name.out" 2>&1 || {
        echo "not ok: the trainer fails"
        cat "$scratch/$name.out"
        exit 1
    }
}

train a --steps 8 --ranks 2 --stage 3 --save "$scratch/a" --save-every 4
train same --steps 8 --ranks 2 --stage 3
train stage --steps 8 --ranks 2 --stage 1
train rate --steps 8 --ranks 2 --stage 3 --lr 0.002
train short --steps 3 --ranks 2 --stage 3
train other --steps 3 --ranks 2 --stage 3 --layers 3

# Runs that are equal.
run 0 "$scratch/a.log" "$scratch/same.log"
says out "equal in 8 steps, from 1 to 8"
run 0 "$scratch/a.log" "$scratch/stage.log"
run 0 "$scratch/a.log" "$scratch/short.log"
says out "equal in 3 steps, from 1 to 3"
run 0 "$scratch/a.log" "$scratch/same.log" --json
says out '{"is_equal": true, "equal_steps": 8}'

# Another rate makes other weights of an equal gradient.
run 1 "$scratch/a.log" "$scratch/rate.log"
says out ": weights"
run 1 "$scratch/a.log" "$scratch/rate.log" --json
says out '"is_equal": false'
says out '"kind": "weights"'

# A log and a checkpoint, in both orders, and two checkpoints.
for checkpoint in a a/latest a/step-000004; do
    run 0 "$scratch/a.log" "$scratch/$checkpoint"
    run 0 "$scratch/$checkpoint" "$scratch/stage.log"
done
run 1 "$scratch/rate.log" "$scratch/a/step-000004"
says out "step 4: unit "
says out ", all ranks: "
run 0 "$scratch/a/step-000004" "$scratch/a/step-000004"
run 2 "$scratch/a/step-000004" "$scratch/a/step-000008"
says err "is of step 4, and"
run 2 "$scratch/short.log" "$scratch/a/step-000008"
says err "is of step 8, which"
run 2 "$scratch/other.log" "$scratch/a/step-000004"
says err "which"

# A byte of a checkpoint.
cp -r "$scratch/a" "$scratch/damaged"
file=$(ls "$scratch"/damaged/step-000008/rank-00001-of-00002.safetensors)
size=$(wc -c <"$file")
printf 'x' | dd of="$file" bs=1 seek=$((size - 3000)) conv=notrunc 2>/dev/null
run 1 "$scratch/a.log" "$scratch/damaged"
says out "step 8: unit "
says out ", rank 1: "
says out "damaged: "
run 1 "$scratch/a.log" "$scratch/damaged" --json
says out '"rank": 1'
says out '"damage": "'
run 1 "$scratch/damaged/step-000008" "$scratch/a/step-000008"
says out "step 8: parameter "

# A run that goes on after a checkpoint: the lines that it makes again count, and those behind them do not.
cp "$scratch/a.log" "$scratch/again.log"
printf '{"sherd": {"fingerprints": {"file": "%s"}}}\n' "$scratch/again.log" >"$scratch/again.json"
"$trainer" --data "$scratch/text" --hidden 48 --layers 2 --heads 4 --kv-heads 2 --inner 80 --length 24 --sample 0 --threads 1 \
    --eval-every 0 --quiet --config "$scratch/again.json" --steps 8 --ranks 2 --stage 3 --resume-from "$scratch/a/step-000004" \
    >"$scratch/again.out" 2>&1 || { cat "$scratch/again.out"; failed=1; }
[ "$(grep -c '"step": 6' "$scratch/again.log")" = 2 ] || failed=1
run 0 "$scratch/a.log" "$scratch/again.log"
says out "equal in 8 steps, from 1 to 8"

# Files that are damaged, or none.
awk 'NR == 4 { sub(/"gradients": \["./, "\"gradients\": [\"0") } { print }' "$scratch/a.log" >"$scratch/bit.log"
cmp -s "$scratch/a.log" "$scratch/bit.log" && awk 'NR == 4 { sub(/"gradients": \["./, "\"gradients\": [\"1") } { print }' \
    "$scratch/a.log" >"$scratch/bit.log"
run 2 "$scratch/a.log" "$scratch/bit.log"
says err "bit.log, line 4: it is damaged"
tail -n +2 "$scratch/a.log" >"$scratch/tail.log"
run 2 "$scratch/tail.log" "$scratch/a.log"
says err "tail.log, line 1: a step stands before the layout"
size=$(wc -c <"$scratch/a.log")
head -c $((size - 20)) "$scratch/a.log" >"$scratch/cut.log"
run 0 "$scratch/a.log" "$scratch/cut.log"
says err "it is not whole and is left out"
says out "equal in 7 steps"
run 2 "$scratch/a.log" "$scratch/text"
: >"$scratch/empty.log"
run 2 "$scratch/a.log" "$scratch/empty.log"
says err "empty.log has no step"
run 2 "$scratch/a.log" "$scratch/other.log"
says err "are of different models"
tail -n 3 "$scratch/a.log" >"$scratch/last"
head -n 1 "$scratch/a.log" | cat - "$scratch/last" >"$scratch/late.log"
run 2 "$scratch/short.log" "$scratch/late.log"
says err "have no step in common: steps 1 to 3, and 6 to 8"
run 2 "$scratch/a.log" "$scratch/nowhere.log"
says err "cannot open"

# Mistakes.
run 2 "$scratch/a.log"
says err "it compares two runs, and 1 is given"
run 2 "$scratch/a.log" "$scratch/a.log" "$scratch/a.log"
run 2 --nonsense
run 0 --help
says out "usage: sherd diff A B [--json]"

[ $failed = 0 ] && echo "sherd diff finds"
exit $failed

#!/bin/sh
# The benchmark of speed: test_speed.sh BENCH-SPEED. That it runs everywhere and that bytes are as planned;
# never how long something takes.
set -eu
program=$1
scratch=$(mktemp -d ./speed-XXXXXX)
trap 'rm -rf "$scratch"' EXIT

fail() {
    echo "not ok: $*"
    exit 1
}

tiers=none,cpu,nvme
cells=30
status=0
"$program" --brief --offload $tiers --nvme-path "$scratch" --json "$scratch/json" --plot "$scratch/plot.svg" \
    >"$scratch/out" 2>"$scratch/err" || status=$?
if grep -q "without libxxhash" "$scratch/err"; then
    tiers=none,cpu
    cells=21
    status=0
    "$program" --brief --offload $tiers --json "$scratch/json" >"$scratch/out" 2>"$scratch/err" || status=$?
fi
cat "$scratch/out"
[ $status = 0 ] || fail "exit code $status: $(cat "$scratch/err")"
grep -q "^all $((cells * 3)) steps moved and held the bytes that were planned" "$scratch/out" || fail "no verdict"
[ "$(wc -l <"$scratch/json")" = $((cells + 1)) ] || fail "the JSON has not a line a cell"
grep -q '"stage": 3.*"wire_bytes": [1-9]' "$scratch/json" || fail "nothing was sent"
[ -z "$(find "$scratch" -name 'sherd-*')" ] || fail "files are left: $(ls "$scratch")"

# A trainer that moves other bytes than it planned.
cat >"$scratch/trainer" <<'SH'
#!/bin/sh
while [ "$1" != --log ]; do shift; done
for step in 1 2; do
    echo "{\"step\": $step, \"tokens\": $step, \"seconds\": 1.0,
        \"figures\": {\"wire_bytes\": 7, \"wire_planned\": $((4 + ODD + step)), $ZEROS}}"
done >"$2"
SH
chmod +x "$scratch/trainer"
ZEROS='"memory_planned": 1, "memory_held": 1'
for medium in link_down link_up nvme_read nvme_written; do
    ZEROS="$ZEROS, \"${medium}_bytes\": 0, \"${medium}_planned\": 0"
done
export ZEROS
for odd in 1 0; do # the second step is as planned; it is not
    status=0
    ODD=$odd "$program" --trainer "$scratch/trainer" --stages 2 --worlds 2 --rounds 1 --steps 1 \
        --first-steps 1 >"$scratch/out" 2>"$scratch/err" || status=$?
    [ $status = $((1 - odd)) ] || fail "exit code $status: $(cat "$scratch/out" "$scratch/err")"
done
# A log without the bytes is no proof.
status=0
ODD=1 ZEROS='"other": 1' "$program" --trainer "$scratch/trainer" --stages 2 --worlds 2 --rounds 1 --steps 1 --first-steps 1 \
    >"$scratch/none" 2>&1 || status=$?
[ $status = 2 ] || fail "exit code $status without bytes in the log"
grep -q "has no whole number of this name: link_down_bytes" "$scratch/none" || fail "$(cat "$scratch/none")"
grep -q "^1 of 1 steps moved or held other bytes than planned" "$scratch/out" || fail "off plan: $(cat "$scratch/out")"

# refused WORDS ARGS: exits 2 and says WORDS.
refused() {
    words=$1
    shift
    status=0
    "$program" "$@" >"$scratch/out" 2>&1 || status=$?
    [ $status = 2 ] || fail "exit code $status: $*"
    grep -q -- "$words" "$scratch/out" || fail "'$words' is not said by: $*: $(cat "$scratch/out")"
}
refused "--stages takes LIST (0 to 3, none twice), not '4'" --stages 4
refused "--worlds takes LIST (1 to 256, none twice), not '1,1'" --worlds 1,1
refused "--offload takes LIST, not 'disk'" --offload disk
refused "cannot be shared out to 3 ranks" --worlds 3
refused "no trainer /missing" --trainer /missing
refused "takes gpt2, minimind, llama" --stages 0 --worlds 1 --rounds 1 --arch lama
refused "nothing to run" --stages 0 --offload cpu
refused "'more' is no option" more

#!/bin/sh
# sherd test on a device: test_device.sh EMULATED SHERD, the command over the emulated device and as it is.
set -eu
emulated=$(realpath "$1")
sherd=$(realpath "$2")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
cd "$scratch"
export SHERD_EMULATOR_EAGER=1

fail() {
    echo "not ok: $*"
    cat "$scratch/out"
    failed=1
}
# says TEXT
says() {
    grep -qF -- "$1" "$scratch/out" || fail "no '$1'"
}
# agree ROWS ARGS: so many rows, each with the fingerprint of the CPU beside the device's.
agree() {
    rows=$1
    shift
    "$emulated" test --backend cuda "$@" >"$scratch/out" 2>&1 || fail "sherd test $* on the emulated device"
    says "PASS: $rows of $rows rows agree"
    awk '/ ok$/ { n++; if ($(NF - 4) !~ /^[0-9a-f]+$/ || length($(NF - 4)) != 16 || $(NF - 4) != $(NF - 3)) bad = 1 }
        END { exit bad || n == 0 }' "$scratch/out" || fail "two fingerprints a row: $*"
}

# Each optimizer and offload, and stages over ranks. The first with a look at whether the host touches the device's
# memory, which takes time.
agree 7 -n 2 --optimizer adamw --rows "default bf16"
export SHERD_EMULATOR_GUARD=0
agree 7 -n 2 --optimizer lamb --rows "default fp32"
agree 1 -n 2 --rows "Lamb, deterministic bf16, 2 ranks x"
agree 1 -n 2 --rows "Muon, deterministic bf16, 2 ranks x"
agree 1 -n 2 --rows "deterministic fp32, 2 ranks"

# The variable counts, and the option before it.
SHERD_BACKEND=cuda "$emulated" test -n 1 --rows "deterministic fp32, 1 rank x" >"$scratch/out" 2>&1 || fail "SHERD_BACKEND"
grep -qE "^layouts +cpu +cuda" "$scratch/out" || fail "SHERD_BACKEND is not looked at"
SHERD_BACKEND=cuda "$emulated" test --backend cpu -n 1 --rows "deterministic fp32, 1 rank x" >"$scratch/out" 2>&1 || fail "--backend cpu"
grep -qE "^layouts +fingerprint" "$scratch/out" || fail "--backend cpu is not looked at"

# Without a device a sentence; a device there may be where this runs.
status=0
SHERD_EMULATOR_DEVICES=0 "$emulated" test --backend cuda >"$scratch/out" 2>&1 || status=$?
[ "$status" = 1 ] || fail "no device gives $status"
says "sherd: backend cuda: "
status=0
CUDA_VISIBLE_DEVICES="" "$sherd" test --backend cuda -n 1 --rows "fp32, 1 rank x" >"$scratch/out" 2>&1 || status=$?
[ "$status" = 1 ] || fail "no visible device gives $status"
says "sherd: backend cuda: "
status=0
"$sherd" test --backend abacus >"$scratch/out" 2>&1 || status=$?
[ "$status" = 1 ] || fail "a backend that is not there gives $status"
says "abacus"
status=0
"$sherd" test --optimizer newton >"$scratch/out" 2>&1 || status=$?
[ "$status" = 2 ] || fail "an optimizer that is not there gives $status"
says "--optimizer wants adamw, lamb, lion, sgd, adagrad, muon or all, not 'newton'"
status=0
"$sherd" test --rows nothing >"$scratch/out" 2>&1 || status=$?
[ "$status" = 2 ] || fail "no row gives $status"
says "no row has 'nothing' in its name"

[ $failed = 0 ] && echo "sherd test compares with a device"
exit $failed

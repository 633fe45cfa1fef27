#!/bin/sh
# A model whose state is larger than the memory it may use: test_limited.sh BENCH-LIMITED. In a control group
# or, where none can be made, under RLIMIT_DATA; every step has the numbers of a run in memory.
set -eu
program=$1
elems=24M # 288 MiB of state, twice that on the drive
limit_mib=192
free_kib=$(df -Pk . | awk 'NR == 2 { print $4 }')
if [ "$free_kib" -lt $((1 << 20)) ]; then
    echo "skipped: $free_kib KiB free in $(pwd), a GiB is needed"
    exit 77
fi
scratch=$(mktemp -d ./limited-XXXXXX)
trap 'rm -rf "$scratch"' EXIT
export SHERD_THREADS=1 # RLIMIT_DATA counts the stack of every thread

# The limit is one: in memory alone the model does not fit.
if (
    # shellcheck disable=SC3045
    ulimit -d $((limit_mib << 10))
    "$program" --part memory --elems $elems --steps 1
) >"$scratch/out" 2>&1; then
    echo "not ok: the model fits into $limit_mib MiB"
    exit 1
fi
grep -q "offload_optimizer on nvme would fit" "$scratch/out" || {
    echo "not ok: seal does not say what would fit: $(cat "$scratch/out")"
    exit 1
}
grep -q "that are free under the limit of this process (RLIMIT_DATA)" "$scratch/out" || {
    echo "not ok: seal does not say what the limit is: $(cat "$scratch/out")"
    exit 1
}

status=0
"$program" --dir "$scratch" --elems $elems --limit ${limit_mib}M --steps 2 --buffer-size 512K >"$scratch/out" 2>&1 || status=$?
cat "$scratch/out"
if grep -q "without libxxhash" "$scratch/out"; then
    exit 77
fi
[ $status = 0 ] || exit 1
[ -z "$(find "$scratch" -name 'sherd-*')" ] || {
    echo "not ok: files are left: $(ls "$scratch")"
    exit 1
}

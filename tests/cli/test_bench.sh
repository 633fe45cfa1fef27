#!/bin/sh
# sherd bench, small: test_bench.sh SHERD LOAD_RATES [BACKEND]. Nothing is asked of the times.
set -eu
sherd=$1
load_rates=$2
backend=${3-cpu}
subcommand=bench
. "$(dirname "$0")/lib.sh"
mkdir "$scratch/drive" "$scratch/tmp"
export TMPDIR="$scratch/tmp"
unset SHERD_RANK SHERD_WORLD_SIZE SHERD_RENDEZVOUS SHERD_BACKEND

# loads FILE RATE... of the backend that it was measured on
loads() {
    "$load_rates" "$backend" "$@" || failed=1
}

# On a device: two ranks share it.
if [ $# -gt 2 ]; then
    run 0 --backend "$3" --ranks 2 --size 64K --rounds 1 --out "$scratch/device.json" --check
    loads "$scratch/device.json" wire down up device host products
    grep -q "\"backend\": \"$3\"" "$scratch/device.json" || failed=1
    [ $failed = 0 ] && echo "sherd bench measures on $3"
    exit $failed
fi

# Two ranks; a file that a plan takes.
run 0 --size 64K --rounds 2 --out "$scratch/rates.json"
says out "2 ranks, 2 to a host, by shm"
says out "sent by a rank in gathers and reductions"
loads "$scratch/rates.json" wire down up device host products
for key in ranks machine command date; do
    if ! grep -q "\"$key\": " "$scratch/rates.json"; then
        echo "not ok: no $key in the file"
        failed=1
    fi
done
if "$sherd" plan --help | grep -q -- --rates; then
    "$sherd" plan --arch gpt2 --preset 124m --world 8 --rates "$scratch/rates.json" >"$scratch/out" || failed=1
fi

# It stays what it is, unless that is said.
before=$(cat "$scratch/rates.json")
run 1 --size 1K --rounds 1 --out "$scratch/rates.json"
says err "--force overwrites it"
[ "$before" = "$(cat "$scratch/rates.json")" ] || failed=1
# What is no file is refused before anything is measured, and what was there stays when the new one cannot be whole.
mkfifo "$scratch/pipe"
ln -s rates.json "$scratch/link"
for odd in pipe link; do
    run 1 --ranks 1 --size 1K --rounds 1 --out "$scratch/$odd" --force
    says err "only a regular file is replaced"
done
[ -p "$scratch/pipe" ] && [ -L "$scratch/link" ] || { echo "not ok: what is no file" && failed=1; }
[ "$before" = "$(cat "$scratch/rates.json")" ] || failed=1
mkdir "$scratch/.rates.json.partial"
run 1 --ranks 1 --size 1K --rounds 1 --out "$scratch/rates.json" --force
[ "$before" = "$(cat "$scratch/rates.json")" ] || failed=1
rmdir "$scratch/.rates.json.partial"
run 0 --ranks 3 --size 1K --rounds 1 --flops 400T --out "$scratch/rates.json" --force --json
loads "$scratch/rates.json" flops wire down up device host products
says out '"ranks": 3'
says out '"flops": 4e14'
if command -v python3 >/dev/null; then
    python3 -c 'import json, sys; o = json.load(sys.stdin); assert o["wire"] > 0 and len(o["ranges"]["wire"]) == 2' \
        <"$scratch/out" || failed=1
fi

# One rank sends nothing. The check needs no drive.
run 0 --ranks 1 --size 1K --rounds 1 --out "$scratch/one.json" --check
loads "$scratch/one.json" down up device host products
says out "params-cpu"

# Drives, where this build can use them.
run 0 --size 64K --rounds 1 --nvme-path "$scratch/drive" --out "$scratch/nvme.json" --check
loads "$scratch/nvme.json" wire down up nvme_read nvme_write device host products
says out "optimizer-nvme"

# Mistakes are reported before anything is measured.
run 1 --nvme-path "$scratch/nowhere"
says err "--nvme-path: $scratch/nowhere: No such file or directory"
run 1 --out "$scratch/nowhere/rates.json"
says err "--out: $scratch/nowhere: No such file or directory"
run 2 --ranks 0
run 2 --size 12x
run 2 --rounds none
run 2 --flops fast
run 2 --check --json
run 2 more
SHERD_RANK=0 SHERD_WORLD_SIZE=1 run 2 --ranks 2
says err "the launcher says how many ranks there are"
run 1 --ranks 2 --size 32G
says err "--size N measures with fewer elements"
run 0 --help
says out "--nvme-path DIR"

# A launcher's rank, alone; then one that is interrupted. Nobody leaves anything behind.
SHERD_RANK=0 SHERD_WORLD_SIZE=1 run 0 --size 1K --rounds 1
says out "1 rank, "
mkfifo "$scratch/progress"
"$sherd" bench --size 1M --rounds 20 --nvme-path "$scratch/drive" 2>"$scratch/progress" >/dev/null &
bench=$!
exec 3<"$scratch/progress"
read -r _ <&3
read -r _ <&3 # drives come next
kill -TERM $bench
wait $bench 2>/dev/null && failed=1
exec 3<&-
left=$(find "$scratch/drive" "$scratch/tmp" -mindepth 1)
if [ -n "$left" ]; then
    echo "not ok: left behind: $left"
    failed=1
fi

[ $failed = 0 ] && echo "sherd bench measures"
exit $failed

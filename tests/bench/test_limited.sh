#!/bin/sh
# bench limited and bench predicted, small: test_limited.sh ROOT BENCH_LIMITED SHERD TRAINER PYTHON. The figures are there and agree with each
# other; nothing is asked of the times.
set -eu
root=$1
limited=$(realpath "$2")
sherd=$(realpath "$3")
trainer=$(realpath "$4")
python=$5
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

fail() {
    echo "not ok: $*"
    cat out
    exit 1
}

# Where the whole would fit, since a small plan has buffers that a smaller limit would not hold.
"$limited" --elems 1M --limit 1G --steps 2 --drive-size 16M --drive-rounds 1 >out 2>&1 || fail "bench limited"
grep -q "the same fingerprints in 2 steps" out || fail "no fingerprints"
# Planned is held, and the system has that and more of the process.
[ "$(grep -c "^memory, " out)" = 2 ] || fail "no memory"
sed -n 's/^memory, [^:]*: \([0-9.]*\) GiB planned, \([0-9.]*\) held, pinned \([0-9.]*\) planned, \([0-9.]*\) held; the system reports \([0-9.]*\) at its most, \([0-9.]*\) locked$/\1 \2 \3 \4 \5 \6/p' out |
    awk '{ lines++ } $1 != $2 || $3 != $4 || $1 == 0 || $5 < $2 || $6 < $4 { exit 1 } END { if (lines != 2) exit 1 }' || fail "memory"
if ! grep -q "^# no limit of the drive: " out; then
    # The rate of a step, and its share of the drive's, are one figure printed twice.
    sed -nE 's|^the drive alone,.* 2 rounds: reads ([0-9.]+) GB/s, writes ([0-9.]+) GB/s, both in turn ([0-9.]+) GB/s$|\3|p; s|^a step on NVMe: ([0-9.]+) s, ([0-9.]+) GB/s, ([0-9.]+) of the.*|\2 \3|p' out |
        awk 'NR == 1 { drive = $1 } NR == 2 { gap = $1 - drive * $2; exit !(drive > 0 && gap < 0.02 + 0.02 * $1 && gap > -0.02 - 0.02 * $1) } END { if (NR != 2) exit 1 }' ||
        fail "rates beside the limit"
    grep -qE "^predicted .* [0-9.]+ s, ratio [0-9.]+$" out || fail "no prediction"
fi
[ -z "$(find . -name 'bench-limit*')" ] || fail "a file is left"

# The prediction of a plan beside the trainer; rates are assumed, so that nothing is measured here.
seq 20000 >text
"$python" "$root/bench/predicted.py" --sherd "$sherd" --trainer "$trainer" --data text --preset tiny --length 32 --batch 2 --offloads optimizer-nvme \
    --rates assumed --rate flops=1e9 --rounds 1 --steps 4 >out 2>&1 || fail "bench predicted"
"$python" - <<'PY' || fail "predicted beside measured"
import re
text = open("out").read()
row = re.search(r"predicted ([0-9.e-]+) s a step, ([0-9]+) tokens/s; measured ([0-9.e-]+) s, ([0-9]+) tokens/s; ratio ([0-9.]+)", text)
predicted, tokens, measured, trained, ratio = map(float, row.groups())
assert abs(tokens * predicted / 64 - 1) < 0.05 and abs(predicted / measured / ratio - 1) < 0.01, row.group(0)
for name, planned, held in re.findall(r"(device|host|pinned) ([0-9.]+) planned, ([0-9.]+) held", text):
    assert abs(float(planned) - float(held)) <= 0.01, text
assert "flops 1e+09 given" in text and "host 2.5e+10 assumed" in text, text
assert re.search(r"host [0-9.]+ planned, [0-9.]+ held, [0-9.]+ the system's; pinned .* the system's", text), text
PY
echo "predictions and limits are reported"

#!/bin/sh
# The offload benchmark at sizes that mean nothing: test_offload.sh PROGRAM BACKEND SOURCE. Each way runs to its table, tells the
# parts and the limit that it makes of them, and leaves no files.
set -eu
program=$1 backend=$2 source=$3
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
mkdir "$scratch/drive"
failed=0

fail() {
    echo "not ok: $*"
    failed=1
}

# bench NAME ARGUMENTS: what it prints in NAME.said, and in NAME.errors.
bench() {
    name=$1
    shift
    "$program" --dir "$scratch/drive" --fast --rounds 2 --json "$scratch/$name.json" "$@" >"$scratch/$name.said" 2>"$scratch/$name.errors" ||
        fail "$name ended with $?: $(cat "$scratch/$name.said" "$scratch/$name.errors")"
    [ -z "$(ls -A "$scratch/drive")" ] || fail "$name left $(ls -A "$scratch/drive")"
}

# columns NAME WORDS: of the table of the trainer's steps.
columns() {
    heading=$(sed -n 's/^shape  *type  *//p' "$scratch/$1.said" | tr -s ' ')
    [ "$heading" = "$2" ] || fail "$1 has the columns '$heading'"
}

# rows NAME: of its JSON: the limit is made of the parts of the same round, and each row's parts are times.
rows() {
    python3 - "$scratch/$1.json" "$2" "$3" <<'PYTHON' || fail "the JSON of $1: $(cat "$scratch/$1.json")"
import json, sys
cells = json.load(open(sys.argv[1]))["cells"]
assert [cell["name"] for cell in cells] == sys.argv[2].split(","), cells
for cell in cells:
    assert cell["peak_bytes"] > 0 and all(cell[key][0] > 0 for key in sys.argv[3].split(",")), cell
    backward, limit, ratio = cell["backward_s"], cell["limit_s"], cell["ratio"]
    assert backward[1] < limit[2] and cell["queued_s"][1] / limit[2] <= ratio[2] * 1.001 and ratio[1] <= ratio[0] <= ratio[2], cell
PYTHON
}

if [ "$backend" = cpu ]; then
    bench step --elems 64K --beside
    grep -q '^step / max(I/O alone, update alone): ' "$scratch/step.said" || fail "a step: $(cat "$scratch/step.said")"

    parts="queued waited none forward backward update drive left limit ratio of rounds first but first waits read write"
    bench trainer --trainer --preset tiny --shapes 1x16,2x8 --steps 2
    columns trainer "$parts peak MiB"
    rows trainer "1x16 fp32,2x8 fp32,1x16 bf16,2x8 bf16" queued_s,waited_s,none_s,forward_s,update_s,drive_s

    # A stand-in for DeepSpeed: two lines of what is asked, in the form of the script's answers.
    cat >"$scratch/python" <<'SH'
#!/bin/sh
echo "$*, $RANK of $WORLD_SIZE" >>"$0.said"
while [ "$1" != --nvme-path ]; do shift; done
mkdir "$2/zero" && echo state >"$2/zero/left"
echo '{"ready_s": 1.0}'
while read -r word count; do
    list=0.25
    [ "$count" = 1 ] || list=0.25,0.75
    echo "{\"losses\": [1.0], \"seconds\": [$list], \"peak_bytes\": 0}"
done
SH
    chmod +x "$scratch/python"
    bench peers --trainer --preset tiny --shapes 1x16 --steps 2 --dtype fp32 --peers "$scratch/python"
    columns peers "$parts DeepSpeed of ours peak MiB DeepSpeed's"
    rows peers "1x16 fp32" deepspeed_s,deepspeed_of_ours
    grep -q '"deepspeed_s": \[0.500000, 0.500000, 0.500000\]' "$scratch/peers.json" || fail "means of a peer: $(cat "$scratch/peers.json")"
    grep -q -- "--serve deepspeed --stage 3 .*--precision fp32 --offload nvme --nvme-path $scratch/drive/deepspeed.* --layers .*, 0 of 1" "$scratch/python.said" ||
        fail "the peer was asked: $(cat "$scratch/python.said")"
    for option in $(tr ' ' '\n' <"$scratch/python.said" | grep -- '^--'); do
        grep -qE "\"$option\"|${option#--}" "$source/bench/trainer_peers.py" || fail "trainer_peers.py has no $option"
    done

    # One that ends at once is left out, and the reason is reported.
    printf '#!/bin/sh\necho "no torch here" >&2\nexit 1\n' >"$scratch/python"
    bench gone --trainer --preset tiny --shapes 1x16 --steps 1 --dtype fp32 --peers "$scratch/python"
    columns gone "$parts peak MiB"
    grep -q "DeepSpeed is left out: it ended, or was not ready in time: no torch here" "$scratch/gone.errors" ||
        fail "a peer that ended: $(cat "$scratch/gone.errors")"
    "$program" --trainer --place cpu --peers python3 >/dev/null 2>&1 && fail "--peers beside --place cpu is taken"
    "$program" --trainer --shapes 2y64 >/dev/null 2>&1 && fail "--shapes 2y64 is taken"
else
    bench device --trainer --backend cuda --place cpu --stage 2 --preset tiny --shapes 1x8 --steps 1 --threads 1 --dtype bf16
    columns device "queued waited forward backward update link limit ratio of rounds first but first waits peak MiB"
    rows device "1x8 bf16" queued_s,waited_s,forward_s,update_s,link_s
    grep -q '^# tokens/s: [0-9]* queued, [0-9]* waited, [0-9]* without an update' "$scratch/device.said" || fail "$(cat "$scratch/device.said")"
fi
[ $failed = 0 ] && echo "ok"
exit $failed

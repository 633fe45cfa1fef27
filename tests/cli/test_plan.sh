#!/bin/sh
# sherd plan: test_plan.sh SHERD PYTHON. Rows against the ZeRO paper's table, bytes that add up, what fits, the layout
# that is chosen and its configuration read again, mistakes.
set -eu
sherd=$(realpath "$1")
python=$2
subcommand=plan
. "$(dirname "$0")/lib.sh"
cd "$scratch"

fail() {
    echo "not ok: $*"
    failed=1
}
# check WHAT: python on standard input over the rows of out
check() {
    { cat rows.py - >check.py; }
    "$python" check.py || fail "$1"
}
cat >rows.py <<'PY'
import json, sys

def read(path):
    return [json.loads(line) for line in open(path)]

rows = read("out")

def must(what, is_true):
    if not is_true:
        print("not ok:", what)
        sys.exit(1)

def state(row):
    return row["params_bytes"] + row["grads_bytes"] + row["optimizer_bytes"]
PY

# Table 1 of Rajbhandari et al. 2020, in GB: model state of a rank. Its last digits are rounded or cut off.
for size in 7.5B 128B 1T; do
    run 0 --params $size --world 1,4,16,64,256,1024 --stage 1,2,3 --json
    mv out out.$size
done
cat out.7.5B out.128B out.1T >out
check "the ZeRO paper's table" <<'PY'
PAPER = {
    (7.5e9, 1): "120 52.5 35.6 31.4 30.4 30.1", (7.5e9, 2): "120 41.3 21.6 16.6 15.4 15.1",
    (7.5e9, 3): "120 30 7.5 1.88 0.47 0.12",
    (128e9, 1): "2048 896 608 536 518 513", (128e9, 2): "2048 704 368 284 263 257",
    (128e9, 3): "2048 512 128 32 8 2",
    (1e12, 1): "16000 7000 4750 4187 4046 4011", (1e12, 2): "16000 5500 2875 2218 2054 2013",
    (1e12, 3): "16000 4000 1000 250 62.5 15.6"}
WORLDS = [1, 4, 16, 64, 256, 1024]
seen, most = 0, 0
for row in rows:
    elems, stage, world = row["param_elems"], row["stage"], row["world_size"]
    formula = elems * (2 / (world if stage >= 3 else 1) + 2 / (world if stage >= 2 else 1) + 12 / world)
    printed = PAPER[elems, stage].split()[WORLDS.index(world)]
    last = 10 ** -(len(printed.split(".")[1]) if "." in printed else 0)
    most = max(most, abs(state(row) / formula - 1))
    must(f"{elems:g} stage {stage} world {world}: {state(row)} is not {formula:.0f}", abs(state(row) / formula - 1) < 0.01)
    must(f"paper_bytes {row['paper_bytes']} is not {formula}", abs(row["paper_bytes"] / formula - 1) < 1e-9)
    must(f"{elems:g} stage {stage} world {world}: {state(row) / 1e9} is not the paper's {printed}",
         abs(state(row) / 1e9 - float(printed)) < last + 0.001 * float(printed))
    seen += 1
must(f"{seen} rows of 54", seen == 54)
print(f"the ZeRO paper's table: 54 rows, at most {100 * most:.3f} % above the formula")
PY

# Bytes by purpose are the bytes by space, whatever rests where; a row for all that can be.
for backend in cpu cuda; do
    run 0 --arch gpt2 --preset 355m --world 1,3,8 --all --backend $backend --set gradient_accumulation_steps=2 --json
    mv out out.$backend
done
run 0 --params 7.5B --all --world 64 --json
cat out.cpu out.cuda >>out
check "bytes by purpose and by place" <<'PY'
must(f"{len(rows)} rows of 84", len(rows) == 84)
for row in rows:
    purposes = state(row) + sum(row[k] for k in ("gathered_bytes", "transient_bytes", "staging_bytes", "spare_bytes"))
    spaces = row["device_bytes"] + row["host_bytes"] + row["nvme_bytes"]
    must(f"{purposes} by purpose, {spaces} by place: {row}", purposes == spaces)
    must("pinned is a part of the host's", row["pinned_bytes"] <= row["host_bytes"])
    must("nothing rests on a drive without one", (row["nvme_bytes"] > 0) == ("nvme" in row["offload"]))
    must("what cannot be", row["offload"] == "none" or row["stage"] >= (3 if "params" in row["offload"] else 1))
    for move in ("wire", "link_down", "link_up", "nvme_read", "nvme_written"):
        at = {k: row[f"{move}_bytes_per_{k}"] for k in ("micro_batch", "boundary", "step")}
        must(f"{move} of a step: {at}", at["step"] == row["accumulation"] * at["micro_batch"] + at["boundary"])
    must("the step", abs(row["step_s"] - row["accumulation"] * row["micro_s"] - row["boundary_s"]) <= 1e-9 * row["step_s"])
    must("no memory was given", row["fits"] is None)
names = {row["offload"] for row in rows}
must(f"offloads {names}", names == {"none", "optimizer-cpu", "optimizer-nvme", "params-cpu", "params-nvme"})
PY

# Times scale with the rates that are given.
run 0 --params 1B --world 8 --stage 3 --offload nvme --tokens 1000 --batch 2 --json \
    --rate flops=1e13,wire=1G,between=1G --rate down=1e9,up=1e9,nvme_read=1G,nvme_write=1G,device=1T,host=1e9,products=1T
check "times at given rates" <<'PY'
row = rows[0]
must("compute", abs(row["compute_s"] - 6 * 1e9 * 2000 / 1e13) < 1e-6)
must("wire", abs(row["wire_s"] - row["wire_bytes_per_step"] / 1e9) < 1e-6)
must("nvme", abs(row["nvme_s"] - 8 * (row["nvme_read_bytes_per_step"] + row["nvme_written_bytes_per_step"]) / 1e9) < 1e-6)
parts = {k: row[k + "_s"] for k in ("compute", "wire", "link", "nvme", "update")}
must(f"bound {row['bound']} of {parts}", row["bound"] == max(parts, key=parts.get))
must("origins", {rate["origin"] for rate in row["rates"].values()} == {"given"})
PY

# For people: one row in words, several as a table.
run 0 --arch gpt2 --preset 124m --world 8 --stage 3 --offload optimizer-nvme --set train_micro_batch_size_per_gpu=4
says out "gpt2 124m: 124439808 parameters, bf16, on cpu; rank 0"
says out "stage 3, offload optimizer-nvme, 8 ranks, 8 to a host; a step is 1 micro-batch of 4 sequences of 1024 tokens"
says out "optimizer state, x2 on nvme"
says out "by the ZeRO paper's formula"
says out "nvme, written"
says out "wear: a drive"
says out "flops 1e+11/s assumed"
says out "bound by compute"
run 0 --arch gpt2 --preset 124m --world 8 --all --device-memory 4GB
says out "= device"
says out "params-nvme"
says out "counted in what fits"
[ "$(grep -c '  yes$' out)" -gt 3 ] || fail "rows that fit"
run 0 --arch gpt2 --preset 124m --full --stage 1 --world 4
says out "plan of rank 0 of 4: stage 1"
run 0 --arch gpt2 --preset 124m --full --json --all
run 0 --params 124M --world 16 --stage 3 --check
says out "plans of 16 ranks checked in"
run 0 --params 124M --world 4,16 --all --check --json
says err "stage 2, offload optimizer-nvme: plans of 16 ranks checked in"
check "JSON beside --check" <<'PY'
must(f"{len(rows)} rows of 24", len(rows) == 24)
PY
run 0 --arch gpt2 --preset help
says out "1558m"
run 0 --help
says out "--device-memory SIZE"

# Models from files.
cat >units.json <<'JSON'
{"units": [{"name": "in", "params": [{"name": "in.w", "shape": [1000, 64]}]},
           {"name": "out", "params": [{"name": "out.w", "shape": [64, 500], "frozen": true}], "reads": ["in.w"]}]}
JSON
run 0 --model units.json --stage all --world 2 --json
check "a list of units" <<'PY'
must(f"{len(rows)} rows of 4", len(rows) == 4)
must("elements", all(row["param_elems"] == 96000 and row["trainable_elems"] == 64000 for row in rows))
PY
run 0 --model units.json --stage 2
says out "96000 parameters (64000 trained)"
says out "arithmetic is left out, --tokens says how much there is"
mkdir folder
echo '{"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}' >folder/config.json
run 0 --model folder --stage 3 --world 8
says out "124439808 parameters"
says out "1 sequence of 1024 tokens"
run 1 --model ds.none
echo '[1, 2]' >list.json
run 1 --model list.json
says err "list.json"

# A model that does not fit: 16 bytes for each parameter are more than 10 GiB.
run 1 --params 1B --stage 1 --device-memory 10G
says out "fits: no: device +"
says err "MiB of device memory on each rank"
says err "would fit"
run 1 --params 1B --stage 1 --device-memory 10G --json
check "a row that does not fit" <<'PY'
must("one row, though it does not fit", len(rows) == 1 and rows[0]["fits"] is False and "would fit" in rows[0]["why"])
must("on a GPU", rows[0]["backend"] == "cuda")
PY
run 0 --params 1B --stage 1 --device-memory 16.1GB
says out "fits: yes"
run 1 --params 1B --stage 1 --device-memory 16.1GB --activations 1G
says out "activations, as given"
run 1 --params 1B --stage 1 --world 2 --host-memory 18G
says out "fits: no: host +"
run 1 --params 1B --stage 1 --offload nvme --nvme-space 10G
says out "fits: no: nvme +12.4 GiB"
says out "its drives                       22.4 GiB of 10.0 GiB: missing 12.4 GiB"
says err "of the drives of each host"
! grep -qi "activations are not known" out || fail "activations do not lie on drives"
run 0 --params 1B --device-memory 10G
says out "no: device +"
[ "$(grep -c '  yes$' out)" -gt 3 ] || fail "rows that fit beside rows that do not"

# --best: its configuration, read again, is its row.
cat >ds.json <<'JSON'
{ // as people write it
  "train_batch_size": "auto", "gradient_accumulation_steps": 4, "train_micro_batch_size_per_gpu": 2,
  "bfloat16": {"enabled": true}, # an old name
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.9, 0.95]}},
  "tensorboard": {"enabled": true, "output_path": "a//b # \" c"},
  "zero_optimization": {
    "stage": 3, "stage3_prefetch_bucket_size": "auto", "sub_group_size": 1e8, "reduce_bucket_size": 2e8,
    "offload_optimizer": {"device": "nvme", "nvme_path": ["/mnt/a", "/mnt/b"], "gradients": "nvme", "durable": false,
                          "buffer_count": 6},
    "offload_param": {"device": "cpu", /* and */ "pin_memory": false,},
  },
}
JSON
echo '{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "Lamb", "params": {"lr": 0.1}},
      "zero_optimization": {"stage": 2, "cpu_offload": true}, "sherd": {"strict": false}}' >old.json
model="--arch gpt2 --preset 1558m --world 4 --backend cuda"
round=0
for arguments in "" "--config ds.json" "--config ds.json --offload params-nvme" "--config ds.json --offload cpu" \
    "--config old.json" "--config old.json --offload nvme --stage 2,3 --set gradient_clipping=0.5" "--batch 3 --offload none"; do
    round=$((round + 1))
    # shellcheck disable=SC2086
    run 0 $model $arguments --best --rates assumed --json --device-memory 28G --host-memory 200G
    says err "Chosen: stage"
    mv out chosen.json
    # shellcheck disable=SC2086
    run 0 $model $arguments --best --rates assumed --device-memory 28G --host-memory 200G --out written.$round.json
    says err "written to written.$round.json"
    # shellcheck disable=SC2086
    run 0 $model --config written.$round.json --json --device-memory 28G --host-memory 200G --stage all --offload all
    # shellcheck disable=SC2086
    run 0 $model --config written.$round.json --json
    check "the configuration of --best $arguments" <<'PY'
chosen = read("chosen.json")[0]
again = rows[0]
must("one row", len(rows) == 1)
different = {k: (chosen[k], again.get(k)) for k in chosen if k not in ("fits", "ratio", "buffer_count") and chosen[k] != again.get(k)}
must(f"the row again: {different}", not different)
must("it fits", chosen["fits"] is True)
PY
    "$sherd" config written.$round.json >config.out 2>&1 || fail "sherd config reads what --best wrote"
done
"$python" - <<'PY' || fail "what the file says is kept"
import json
nvme, cpu, set_ = (json.load(open(f"written.{n}.json")) for n in (3, 4, 6))
zero = nvme["zero_optimization"]
assert nvme["optimizer"]["params"] == {"lr": 3e-5, "betas": [0.9, 0.95]}, nvme
assert nvme["tensorboard"] == {"enabled": True, "output_path": 'a//b # " c'}, nvme
assert nvme["bf16"] == {"enabled": True} and "bfloat16" not in nvme, nvme
assert zero["stage3_prefetch_bucket_size"] == "auto" and zero["sub_group_size"] == 1e8, zero
assert zero["offload_optimizer"]["nvme_path"] == ["/mnt/a", "/mnt/b"] and zero["offload_optimizer"]["gradients"] == "nvme", zero
assert zero["offload_param"]["nvme_path"] == ["/local_nvme"] and zero["offload_param"]["pin_memory"] is True, zero
ratio = cpu["zero_optimization"]["offload_optimizer"].pop("ratio")  # the file leaves it open: tuned
assert 0 < ratio < 1, ratio
assert cpu["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "buffer_count": 6, "pin_memory": True}, cpu
assert "offload_param" not in cpu["zero_optimization"], cpu
assert set_["gradient_clipping"] == 0.5 and set_["optimizer"]["type"] == "Lamb", set_
PY

# Several hosts: copies on each are layouts too, and what crosses between hosts has a rate of its own.
several="--params 2B --world 16 --ranks-per-host 4 --tokens 1000 --backend cuda --rates assumed"
# shellcheck disable=SC2086
run 0 $several --world 16,12 --all --json
check "layouts of several hosts" <<'PY'
for world in (16, 12):
    ways = [(row["stage"], row["offload"], row.get("shard_size"), row.get("zero_hpz_partition_size")) for row in rows if row["world_size"] == world]
    must(f"each layout once: {ways}", len(set(ways)) == len(ways) == 27)
    must("replicas of what is sharded", {way[0] for way in ways if way[2]} == {1, 2, 3} and {way[2] for way in ways} == {None, 4})
    must("second copies at stage 3", {way[0] for way in ways if way[3]} == {3} and {way[3] for way in ways} == {None, 4})
    must("not of parameters on a drive", "params-nvme" not in [way[1] for way in ways if way[3]])
for row in rows:
    at = {k: row[f"between_bytes_per_{k}"] for k in ("micro_batch", "boundary", "step")}
    must(f"between hosts: {at}", at["step"] == row["accumulation"] * at["micro_batch"] + at["boundary"])
    must("a part of the wire", 0 < at["step"] < row["wire_bytes_per_step"])
    rates = {name: row["rates"][name]["value"] for name in ("wire", "between")}
    seconds = (row["wire_bytes_per_step"] - at["step"]) / rates["wire"] + at["step"] / rates["between"]
    must("the wire's seconds", abs(row["wire_s"] / seconds - 1) < 1e-6)
PY
# shellcheck disable=SC2086
run 0 $several --all
says out "stage offload        copies       world"
says out "    3 none           replicas        16"
says out "between: the part of wire that goes to other hosts"
says out "replicas: sherd.shard_size 4, or the ranks of a host; second copy: zero_optimization.zero_hpz_partition_size, likewise."
run 0 --params 2B --world 16 --ranks-per-host 5 --all --json # 16 are not hosts of 5
[ "$(wc -l <out)" = 12 ] || fail "copies on hosts with different numbers of ranks"
run 0 --params 2B --world 16 --ranks-per-host 1 --all --json
[ "$(wc -l <out)" = 12 ] || fail "copies of one rank"
for key in sherd.shard_size zero_optimization.zero_hpz_partition_size; do
    run 0 --params 2B --world 16 --ranks-per-host 4 --all --json --set $key=2
    check "no other way than that of --set $key" <<'PY'
must("none", all("shard_size" not in row and "zero_hpz_partition_size" not in row for row in rows))
must("stages", len({row["stage"] for row in rows}) in (3, 4))
PY
done
run 0 --params 2B --world 16 --ranks-per-host 4 --stage 3 --json
[ "$(wc -l <out)" = 1 ] || fail "a stage alone is one layout"
run 0 --params 2B --world 16 --ranks-per-host 4 --stage 3
says out "  of these between hosts"
says out "between 6e+08/s assumed"

# A slow wire between hosts makes replicas the best, a memory that is too small for them second copies, and one as fast as inside them flat ones.
for wanted in "1e9 20G replicas shard_size" "1e9 7G second zero_hpz_partition_size" "1e13 20G flat -"; do
    # shellcheck disable=SC2086
    set -- $wanted
    rates="flops=1e13,wire=1e13,between=$1,device=1e13"
    # shellcheck disable=SC2086
    run 0 $several --best --stage 3 --offload none --device-memory "$2" --rate $rates --json
    mv out chosen.json
    # shellcheck disable=SC2086
    run 0 $several --best --stage 3 --offload none --device-memory "$2" --rate $rates --force --out hosts.json
    [ "$3" = flat ] || says err "Chosen: stage 3, offload none, $3"
    [ "$3" = flat ] || says err "$4 is 4: each host has"
    # shellcheck disable=SC2086
    run 0 $several --config hosts.json --rate $rates --json
    WAY=$4 check "the configuration of several hosts, $3" <<'PY'
import os
chosen = read("chosen.json")[0]
way = {"shard_size", "zero_hpz_partition_size"}
must(f"the way of {chosen}", {key for key in way if key in chosen} == way & {os.environ["WAY"]})
different = {k: (chosen[k], rows[0].get(k)) for k in chosen if k not in way | {"fits"} and chosen[k] != rows[0].get(k)}
must(f"the row again: {different}", not different)
PY
done
# The configuration, with lists: what it says of copies holds for all its layouts.
run 0 --params 2B --world 16 --ranks-per-host 4 --config hosts.json --all --json
run 0 --params 2B --world 16 --ranks-per-host 4 --backend cuda --all --check
says out "stage 3, offload none, replicas: plans of 16 ranks checked"

# Its reasons, and that nothing is lost.
run 0 --params 7.5B --world 8 --device-memory 80G --host-memory 1T --tokens 2048 --best --rates assumed
says err "7.5B parameters on 8 ranks, 8 to a host: 12 layouts"
says err "stage 0, offload none            does not fit: device +32.1 GiB"
says err "Chosen: stage 1, offload none"
says err "sherd bench --out rates.json"
"$python" -m json.tool <out >/dev/null || fail "the configuration on standard output"

# The two keys of offloaded state are tuned where they are not given: the device keeps what hides the host's part, a drive reads ahead.
drive="--arch gpt2 --preset 124m --backend cpu --stage 1 --offload optimizer-nvme --batch 4 --tokens 128 --host-memory 4G --best --force
    --rate nvme_read=2.6G --rate nvme_write=2.6G --rate flops=165G"
# shellcheck disable=SC2086
run 0 $drive --out tuned.json
says err "Changed: zero_optimization.offload_optimizer.ratio is 0."
says err "Changed: zero_optimization.offload_optimizer.buffer_count is "
says err "Its steps are queued: an update takes "
# shellcheck disable=SC2086
run 0 $drive --out fixed.json --set zero_optimization.offload_optimizer.ratio=1 --set zero_optimization.offload_optimizer.buffer_count=4
grep -q Changed err && fail "keys that are given are changed"
# shellcheck disable=SC2086
run 0 ${drive%--best*} --json --rate nvme_read=2.6G --rate nvme_write=2.6G --rate flops=165G --config fixed.json
cp out fixed.rows
# shellcheck disable=SC2086
run 0 ${drive%--best*} --json --rate nvme_read=2.6G --rate nvme_write=2.6G --rate flops=165G --config tuned.json
check "what tuning gives" <<'PY'
fixed = read("fixed.rows")[0]
must("tuned is shorter", rows[0]["queued_s"] * 1.02 < fixed["queued_s"] < fixed["step_s"])
must("and waits less", rows[0]["wait_update_s"] < fixed["wait_update_s"] <= fixed["beside_s"])
PY

# Rates are measured first where nobody gave any, and each is reported with its origin. With given ones the choice is what it was.
run 0 --arch gpt2 --hidden 64 --layers 2 --heads 2 --inner 128 --vocab 500 --batch 2 --tokens 64 --host-memory 4G --best --json
says err "Measured: this machine ("
says err "wire           8e+09  assumed: one rank sends nothing"
says err "between        6e+08  assumed: the plan has one host"
says err "It needs "
says err "It trains on "
check "rates that are measured" <<'PY'
origins = {name: rate["origin"] for name, rate in rows[0]["rates"].items()}
want = {name: "assumed" if name in ("wire", "between", "products") else "measured" for name in origins}
must(f"origins {origins}", len(origins) == 10 and origins == want)
PY
mv out measured.rows
"$python" - >given.txt <<'PY'
import json
print(",".join(f"{name}={rate['value']:.17g}" for name, rate in json.load(open("measured.rows"))["rates"].items() if rate["origin"] == "measured"))
PY
run 0 --arch gpt2 --hidden 64 --layers 2 --heads 2 --inner 128 --vocab 500 --batch 2 --tokens 64 --host-memory 4G --best --json \
    --rate "$(cat given.txt)"
grep -q "Measured: this machine" err && fail "something is measured beside rates that are given"
check "the same choice by given rates" <<'PY'
measured, given = read("measured.rows")[0], rows[0]
must("origins", {name: rate["origin"] for name, rate in given["rates"].items()}["flops"] == "given")
must("the same row", {k: v for k, v in given.items() if k != "rates"} == {k: v for k, v in measured.items() if k != "rates"})
PY
# What is given is not measured, and what cannot be measured leaves the plan whole: no device, no drive.
run 0 --params 1B --tokens 64 --device-memory 80G --best --force --out drives.json --nvme-path nowhere --rates measured --rate host=1e9
says err "flops          4e+14  assumed: no cuda device here"
says err "host           1e+09  given"
says err "nvme_read      1e+10  assumed: --nvme-path: nowhere"
says err "The times come from assumed rates (flops, "
TMPDIR=$scratch/nowhere run 0 --params 1B --host-memory 80G --best --force --out drives.json
says err "host         2.5e+10  assumed: its measurement did not end"
says err "Chosen: stage"

# Activations: where they wait is planned, and --best moves them where they do not fit.
large="--arch llama --preset 8b --stage 3 --offload optimizer-cpu --backend cuda --batch 4 --tokens 4096"
# shellcheck disable=SC2086
run 0 $large --json
cp out kept.rows
# shellcheck disable=SC2086
run 0 $large --json --activations cpu:20,device
check "activations that are moved" <<'PY'
kept = read("kept.rows")[0]
must("the trainer has fewer", rows[0]["activation_bytes"] < kept["activation_bytes"])
must("the host has 18 layers of 20", rows[0]["host_bytes"] - kept["host_bytes"] == 18 * (rows[0]["device_bytes"] - kept["device_bytes"]) / 2)
PY
# shellcheck disable=SC2086
run 0 $large --json --activations cheap
check "norms that are made again" <<'PY'
rows_of_batch, hidden, kept = 4 * 4096, 4096, read("kept.rows")[0]
bytes_of_row = 63 * 2 * hidden + 62 * 8 # of 32 layers two norms and their stats, and the last norm, where two norms are left
must("fewer bytes", kept["activation_bytes"] - rows[0]["activation_bytes"] == bytes_of_row * rows_of_batch)
must("nothing is moved", kept["host_bytes"] == rows[0]["host_bytes"])
PY
# shellcheck disable=SC2086
run 0 $large --json --activations recompute
cp out again.rows
# shellcheck disable=SC2086
run 0 $large --json --activations recompute-cpu
check "inputs that are moved" <<'PY'
again, each = read("again.rows")[0], 2 * 4 * 4096 * 4096
must("the device has one input that is moved next", again["activation_bytes"] - rows[0]["activation_bytes"] == 31 * each)
must("two places of the device", rows[0]["device_bytes"] - again["device_bytes"] == 2 * each)
must("the host has 30 of 32", rows[0]["host_bytes"] - again["host_bytes"] == 30 * each)
must("a second forward", rows[0]["compute_s"] == again["compute_s"] > read("kept.rows")[0]["compute_s"])
PY
# shellcheck disable=SC2086
run 0 $large --best --rates assumed --force --out moved.json --device-memory 64G --host-memory 250G
says err "the trainer takes --activations cpu"
# shellcheck disable=SC2086
run 0 $large --best --rates assumed --force --out moved.json --device-memory 72G --host-memory 250G
says err "the trainer takes --activations cheap"
# shellcheck disable=SC2086
run 0 $large --best --rates assumed --force --out moved.json --device-memory 26G --host-memory 120G
says err "the trainer takes --activations recompute-cpu"
grep -q '"device": "cpu"' moved.json || fail "inputs do not move"
# Where nothing fits, what is reported as the least has tried the other words too.
# shellcheck disable=SC2086
run 1 --arch llama --preset 8b --tokens 2048 --best --rates assumed --force --out moved.json --device-memory 5G --host-memory 126G
says err "nothing fits. The least is stage 3, offload params-cpu, activations recompute-cpu"
# shellcheck disable=SC2086
run 2 $large --recompute --activations cpu
says err "give one of them, once"
# shellcheck disable=SC2086
run 2 $large --activations 1G --activations 2G
says err "give one of them, once"
# shellcheck disable=SC2086
run 2 $large --activations shelf
says err '"shelf" is no place of layers'

# An encoding that loses nothing is proposed where it makes the layout fit, reported where it does not, left alone where one is named.
small="--params 1.5B --backend cpu --stage 0 --offload none --best --rates assumed"
run 0 $small --host-memory 22G --out beside.json
says err "stage 0, offload none *          1.68 s a step, bound by update; 19.6 GiB of a host"
says err 'Changed: sherd.master_encoding is "bf16_beside", which loses no bit and needs 2.79 GiB less of a host'
run 0 --params 1.5B --backend cpu --config beside.json --host-memory 22G --json
check "the row of the proposed encoding" <<'PY'
must(f"10 bytes: {rows[0]['state']}", rows[0]["state_bytes_per_elem"] == 10)
must("it fits", rows[0]["fits"] is True)
PY
run 0 $small --host-memory 40G --out roomy.json
says err 'With sherd.master_encoding "bf16_beside", which loses no bit, it would need 2.79 GiB less of a host'
grep -q encoding roomy.json && fail "an encoding that nothing needs is written"
run 0 --params 1.5B --backend cpu --stage 2 --offload nvme --best --rates assumed --force --out roomy.json
says err 'loses no bit, it would need 2.80 GiB less to be read from a drive in a step'
run 1 $small --host-memory 22G --set 'sherd.master_encoding="fp32"' --out none.json
says err "nothing fits"
run 0 --params 1.5B --world 2 --backend cpu --stage all --offload all --set 'sherd.master_encoding="bf16_beside"' --json
check "layouts that can be with an encoding, and others" <<'PY'
must("12 rows", len(rows) == 12)
must("each is planned or refused", all(("refused" in r) != ("state" in r) for r in rows))
plain = [r for r in rows if r["offload"] == "none"]
must("10 bytes", all(r.get("state_bytes_per_elem") == 10 for r in plain))
PY
echo mine >there.json
run 1 --params 1B --best --rates assumed --out there.json
says err "--force overwrites it"
[ "$(cat there.json)" = mine ] || fail "a file that was there is overwritten"
run 0 --params 1B --best --rates assumed --out there.json --force
"$sherd" config there.json >/dev/null 2>&1 || fail "--force"
run 1 --params 70B --world 8 --device-memory 1G --host-memory 100G --best --rates assumed --out none.json
says err "nothing fits. The least is stage 3, offload params-nvme, which needs"
run 1 --params 70B --world 64 --device-memory 1G --host-memory 100G --best --rates assumed --out none.json # others need as much of the device
says err "nothing fits. The least is stage 3, offload params-nvme, which needs"

# A drive that is too small is not chosen, nor where memory is left open.
few="--params 1B --world 8 --device-memory 1G --host-memory 4G --best --rates assumed --force --out drives.json"
run 0 $few
says err "Chosen: stage 3, offload optimizer-nvme"
run 0 $few --nvme-space 40G
says err "Chosen: stage 3, offload optimizer-nvme"
run 1 $few --nvme-space 10G
says err "A host has 4.00 GiB. Its drives have 10.0 GiB."
says err "stage 3, offload optimizer-nvme  does not fit: nvme +"
run 0 --params 1B --backend cuda --stage 3 --offload optimizer-cpu,optimizer-nvme --nvme-space 1G --best --rates assumed --force --out drives.json
says err "Chosen: stage 3, offload optimizer-cpu"
! grep -q Activations err || fail "activations do not lie on drives"
[ ! -e none.json ] || fail "a configuration of nothing"
run 1 --params 1B --best --rates assumed --out /nowhere/at/all.json
says err "/nowhere/at/all.json"

# Mistakes.
run 2 --stage 4
says err "--stage wants stages from 0 to 3, not '4'"
run 2 --offload tape
says err "not 'tape'"
run 2 --stage 2 --offload none,params-cpu
says err "--offload params-cpu cannot be at stage 2: parameters are offloaded at stage 3 alone"
run 2 --stage 0 --offload cpu
says err "--offload optimizer-cpu cannot be at stage 0"
run 2 --params 7.5X
says err "--params wants a count like 7.5B, not '7.5X'"
run 2 --params 1B --model config.json
says err "a model is one of"
run 2 --params 1B --device-memory 80Q
says err "not '80Q'"
run 2 --device-memory 80G --backend cpu
says err "give --host-memory"
run 2 --backend tpu
run 2 --rate speed=1
says err "'speed=1' is not a rate"
run 2 --world 0
run 2 --world 4 --rank 4
says err "--rank is 4"
run 2 --stage 1 --set zero_optimization.stage=2
says err "give it one way"
run 0 --params 1M --world 4 --stage 2 --set 'zero_optimization.offload_optimizer.device="cpu"'
says out "stage 2, offload optimizer-cpu"
run 2 --arch gpt2 --preset 124m --tokens 2048
says err "1024 positions"
groups='sherd.groups=[{"name": "tensors", "type": "lamb", "matching": ["*w*"]}]'
run 0 --arch gpt2 --preset 124m --stage 2 --set "$groups" --full --check
says out "layer.0                      trainable              7079424      7079424        0       1  Lamb"
says out "plans of 1 ranks checked"
run 1 --arch gpt2 --preset 124m --stage 2 --set 'sherd.groups=[{"name": "head", "type": "Lamb"}]'
says err "sherd.groups has an entry for group head"
run 2 --out there.json
run 2 --best --check
run 2 --best --world 1,2 --out there.json
run 2 plan
run 2 --arch bert
run 2 --preset enormous
run 2 --hidden 100 --heads 7 --layers 2 --vocab 10
run 1 --model nowhere.json
says err "nowhere.json"
run 1 --config nowhere.json
says err "nowhere.json"
run 1 --rates nowhere.json
says err "nowhere.json"
run 1 --set "optimizer.params.lr=-1"
says err "optimizer.params.lr"

# A full disk is noticed.
for arguments in "--all" "--json" "--full" "--best --rates assumed"; do
    # shellcheck disable=SC2086
    if "$sherd" plan $arguments >/dev/full 2>/dev/null; then
        fail "sherd plan $arguments on a full disk"
    fi
done

# What is no file is not replaced, and is not written to.
mkfifo pipe.json
ln -s there.json link.json
for odd in pipe.json link.json; do
    run 1 --params 1B --best --rates assumed --force --out $odd
    says err "only a regular file is replaced"
done
[ -p pipe.json ] && [ -L link.json ] || fail "what is no file was replaced"

[ $failed = 0 ] && echo "sherd plan says what would be"
exit $failed

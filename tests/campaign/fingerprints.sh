#!/bin/sh
# The same global batch on many shapes of hosts: fingerprints.sh SHERD_LLM FOLDER, which has text. In deterministic mode the whole log of a training, with
# loss, norm, clipping and skipped steps, is the same on every shape, at every stage, for all three ways to shard. Prints a table.
program=$(realpath "$1")
text=$(realpath "$2")
. "$(dirname "$0")/../hosts.sh"
command -v mpirun >/dev/null || { echo "skipped: no mpirun command"; exit 77; }
hosts_make 4
failed=0
batch=0 # micro-batches of a step, over all ranks

# on NUMBERS: ranks on hosts, as mpirun wants it. Sets $list and $ranks.
on() {
    list=
    ranks=0
    at=1
    for number in $(echo "$1" | tr + ' '); do
        list=$list${list:+,}$(echo "$hosts" | cut -d ' ' -f $at):$number
        ranks=$((ranks + number))
        at=$((at + 1))
    done
}

# train NUMBERS STAGE SHARD_SIZE SECOND_COPY OFFLOAD: a training. Its status; the log is in $dir/log, the output in $dir/out.
train() {
    on "$1"
    cat >"$dir/config.json" <<JSON
{"deterministic": true, "train_batch_size": $batch, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.5,
 "fp16": {"enabled": true, "initial_scale_power": 19, "hysteresis": 1}, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
 "zero_optimization": {"stage": $2, "zero_hpz_partition_size": $4, "stage3_param_persistence_threshold": 0}, "sherd": {"shard_size": $3}}
JSON
    rm -f "$dir/log"
    "$dir/agent" "$(echo "$hosts" | cut -d ' ' -f 1)" "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 SHERD_CPU_BIND=none timeout -k 2 100 \
        mpirun --oversubscribe $mpi_parameters --host $list --map-by slot -n $ranks -x SHERD_CPU_BIND $program --data $text --arch gpt2 --preset tiny \
        --config $dir/config.json --offload $5 --steps 10 --eval-every 0 --sample 0 --threads 1 --log $dir/log" >"$dir/out" 2>&1
}

# cell NUMBERS STAGE SHARD_SIZE SECOND_COPY OFFLOAD: prints a row, and compares the log with that of the first row.
cell() {
    if ! train "$@"; then
        failed=1
        what="FAILED: $(grep -m 1 -i 'error\|sherd' "$dir/out")"
    else
        sed 's/"seconds": [0-9.e+-]*, //; s/, "figures": {[^}]*}//' "$dir/log" | grep '"step"' >"$dir/got"
        [ -e "$dir/want" ] || cp "$dir/got" "$dir/want"
        what=$(sed -n 's/^fingerprint of the weights //p' "$dir/out")
        if ! cmp -s "$dir/want" "$dir/got"; then
            failed=1
            what="$what DIFFERS: $(diff "$dir/want" "$dir/got" | head -3 | tr '\n' ' ')"
        fi
    fi
    printf '%-10s %5s %10s %11s %7s  %s\n' "$1" "$2" "$3" "$4" "$5" "$what"
}

# shape NUMBERS RANKS_THAT_SHARE
shape() {
    for stage in 1 2 3; do
        cell "$1" $stage 0 1 none
        cell "$1" $stage "$2" 1 none
    done
    cell "$1" 3 0 "$2" none
    cell "$1" 3 0 1 cpu
    cell "$1" 3 "$2" 1 cpu
}

for batch in 24 120; do
    rm -f "$dir/want"
    echo "$batch micro-batches in a step"
    printf '%-10s %5s %10s %11s %7s  %s\n' hosts stage shard_size second_copy offload fingerprint
    if [ $batch = 24 ]; then
        shape 2+2 2
        shape 3+3 3
        shape 4+2 2
        shape 2+2+2+2 2
    else
        shape 2+2 2
        cell 3+2 1 0 1 none
        cell 3+2 2 0 1 none
        cell 3+2 3 0 1 none
        cell 3+2 3 0 1 cpu
    fi
    echo "the log: $(wc -l <"$dir/want") steps, $(grep -c '"updated": false' "$dir/want") skipped"
    if [ "$(grep -c '"updated": false' "$dir/want")" = 0 ] || [ "$(grep -c '"updated": true' "$dir/want")" = 0 ]; then
        echo "FAIL: the log has skipped steps and updates"
        failed=1
    fi
done
if train 3+2 3 2 1 none; then
    echo "FAIL: three and two ranks take shards of two"
    failed=1
else
    echo "3+2 with shards of two: $(grep -m 1 -i 'shard_size' "$dir/out")"
fi
[ $failed = 0 ]

#!/bin/sh
# The trainer as a person starts it: test_trainer.sh PROGRAM GROUP SHERD. Layouts must give the same
# fingerprints, bad input a sentence; what is killed can be gone on from.
# shellcheck disable=SC2317 # the functions are called by name
set -eu
program=$1
group=$2
sherd=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

awk 'BEGIN { for (i = 0; i < 1500; i++) printf "%d times %d is %d. ", i % 37, i % 11, (i % 37) * (i % 11) }' >"$scratch/text"

# tiny ARGS: a small run, its log in $scratch/log, its output in $scratch/out.
tiny_flags="--hidden 48 --layers 2 --heads 4 --kv-heads 2 --inner 80 --length 24 --steps 4 --sample 0 --threads 1 --eval-every 0"
tiny() {
    # shellcheck disable=SC2086
    "$program" --data "$scratch/text" $tiny_flags --log "$scratch/log" "$@" >"$scratch/out" 2>&1 || {
        echo "failed: $*"
        cat "$scratch/out"
        failed=1
    }
}

fail() {
    echo "not ok: $*"
    failed=1
}

fingerprints() {
    sed 's/.*"fingerprint": "\(0x[0-9a-f]*\)".*/\1/' "$scratch/log" | tr '\n' ' '
}

losses() {
    sed 's/.*"loss": \([0-9.]*\),.*/\1/' "$scratch/log" | tr '\n' ' '
}

# Edits that leave of a log what the training itself is, whatever its speed and layout.
only_training='s/"seconds": [0-9.e+-]*, //; s/, "figures": {[^}]*}//'

# same NAME WANT GOT
same() {
    if [ -z "$2" ] || [ "$2" != "$3" ]; then
        fail "$1: $3, not $2"
    fi
}

stages() {
    for arch in minimind gpt2; do
        heads=""
        [ "$arch" = gpt2 ] && heads="--kv-heads 4"
        for precision in fp32 bf16; do
            for ranks in 1 2 4; do
                want=""
                for stage in 0 1 2 3; do
                    # shellcheck disable=SC2086
                    tiny --arch "$arch" --preset tiny $heads --precision "$precision" --ranks "$ranks" --stage "$stage"
                    got=$(fingerprints)
                    want=${want:-$got}
                    same "$arch $precision, $ranks ranks, stage $stage" "$want" "$got"
                done
            done
        done
    done
}

# What the machine does must not show: threads, recomputation, processes.
machine() {
    tiny --ranks 2 --stage 3
    want=$(fingerprints)
    tiny --ranks 2 --stage 3 --threads 3
    same "three threads" "$want" "$(fingerprints)"
    tiny --ranks 2 --stage 2 --recompute
    same "recomputation" "$want" "$(fingerprints)"
    deep="" # two layers stay on the device
    for places in device cheap cpu nvme recompute:1,cheap:1,cpu recompute-nvme:3,recompute-cpu; do
        tiny --layers 5 --ranks 2 --stage 3 --nvme-path "$scratch" --activations "$places" --eval-every 2
        deep=${deep:-$(fingerprints)}
        same "activations on $places" "$deep" "$(fingerprints)"
    done
    for wrong in tape cpu:0 cpu: device:1,,cpu cpu:2:3 ''; do
        "$program" --data "$scratch/text" --activations "$wrong" >"$scratch/out" 2>&1 && fail "--activations '$wrong' was taken"
        grep -q "give device, cheap, cpu, nvme, recompute, recompute-cpu or recompute-nvme" "$scratch/out" || fail "--activations '$wrong': $(cat "$scratch/out")"
    done
    tiny --ranks 2 --stage 3 --sample 5 --eval-every 1
    same "validation after each step" "$want" "$(fingerprints)"

    tiny --ranks 2 --stage 3 --minutes 1000
    same "a trial before" "$want" "$(fingerprints)"
    grep -q "4 of 4 steps fit into 1000 minutes" "$scratch/out" || fail "no trial: $(cat "$scratch/out")"
    tiny --ranks 2 --stage 3 --minutes 0
    grep -q "1 of 4 steps fit into 0 minutes" "$scratch/out" || fail "no trial: $(cat "$scratch/out")"
    [ "$(wc -l <"$scratch/log")" = 1 ] || fail "more steps than fit"

    # The global batch of 4 micro-batches is the same however it is laid out.
    tiny --ranks 4 --precision fp32
    data=$(losses | cut -d' ' -f1)
    tiny --ranks 2 --accumulation 2 --precision fp32
    same "loss of 2 ranks x 2 micro-batches" "$data" "$(losses | cut -d' ' -f1)"
    tiny --ranks 1 --accumulation 4 --precision fp32
    same "loss of 4 micro-batches" "$data" "$(losses | cut -d' ' -f1)"
    tiny --ranks 1 --precision fp16 --steps 2
}

launched() {
    tiny --ranks 2 --stage 3
    want=$(fingerprints)
    for rank in 0 1; do
        # shellcheck disable=SC2086
        SHERD_RANK=$rank SHERD_WORLD_SIZE=2 SHERD_RENDEZVOUS="unix://$scratch/meet" \
            "$program" --data "$scratch/text" $tiny_flags --stage 3 --log "$scratch/log.$rank" >"$scratch/out.$rank" 2>&1 &
        pids="${pids-} $!"
    done
    for pid in $pids; do
        wait "$pid" || fail "a process failed: $(cat "$scratch"/out.?)"
    done
    mv "$scratch/log.0" "$scratch/log"
    same "two processes" "$want" "$(fingerprints)"
    [ ! -e "$scratch/log.1" ] || fail "rank 1 wrote a log"
    OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 timeout 20 "$program" --data "$scratch/text" >"$scratch/probe" 2>&1 || true
    if command -v mpirun >/dev/null && ! grep -q "built without MPI" "$scratch/probe"; then
        # MPI leaves memory behind when it ends, which is not ours to report.
        # shellcheck disable=SC2086
        ASAN_OPTIONS=${ASAN_OPTIONS-}:detect_leaks=0 mpirun --oversubscribe -n 2 "$program" --data "$scratch/text" $tiny_flags --stage 1 --log "$scratch/log" \
            >"$scratch/out" 2>&1 || fail "mpirun: $(cat "$scratch/out")"
        same "mpirun" "$want" "$(fingerprints)"
    fi
}

# A folder for state; ends the test where the build can keep none.
drive=$scratch/drive
drive_open() {
    mkdir "$drive"
    if ! "$sherd" state list "$drive" >"$scratch/out" 2>&1; then
        cat "$scratch/out"
        exit 77
    fi
}

drive_is_empty() {
    [ -z "$(ls -A "$drive")" ] || fail "$* leaves $(ls -A "$drive")"
}

# Where state and parameters rest must not show.
offload() {
    drive_open
    printf '{"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true}, "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "zero_optimization": {"stage": 3, "sub_group_size": 4096,
        "offload_optimizer": {"device": "nvme", "nvme_path": "%s", "gradients": "nvme"},
        "offload_param": {"device": "nvme", "nvme_path": "%s", "max_in_cpu": 0, "buffer_size": 4096}}}' \
        "$drive" "$drive" >"$scratch/small.json"
    sed 's/"device": "nvme"/"device": "none"/; s/, "gradients": "nvme"//' "$scratch/small.json" >"$scratch/plain.json"
    for ranks in 1 2; do
        for precision in fp32 bf16; do
            tiny --ranks "$ranks" --precision "$precision" --stage 0
            want=$(fingerprints)
            for stage in 1 2 3; do
                for tier in cpu nvme; do
                    tiny --ranks "$ranks" --precision "$precision" --stage "$stage" --offload "$tier" --nvme-path "$drive"
                    same "$ranks ranks, $precision, stage $stage, optimizer on $tier" "$want" "$(fingerprints)"
                done
            done
            for tier in cpu nvme; do
                tiny --ranks "$ranks" --precision "$precision" --offload-params "$tier" --nvme-path "$drive"
                same "$ranks ranks, $precision, parameters on $tier" "$want" "$(fingerprints)"
                tiny --ranks "$ranks" --precision "$precision" --offload "$tier" --offload-params "$tier" --nvme-path "$drive"
                same "$ranks ranks, $precision, both on $tier" "$want" "$(fingerprints)"
            done
        done
        tiny --ranks "$ranks" --config "$scratch/plain.json"
        want=$(fingerprints)
        tiny --ranks "$ranks" --config "$scratch/small.json"
        same "$ranks ranks, all on nvme in small blocks" "$want" "$(fingerprints)"
        grep -q "on NVMe" "$scratch/out" || fail "nothing is on NVMe: $(cat "$scratch/out")"
        drive_is_empty "a clean end"
    done
}

# A rate that does not depend on --steps, so that runs of any length agree.
killed_config() {
    printf '{"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}' >"$scratch/config.json"
    killed_flags="--config $scratch/config.json --offload nvme --nvme-path $drive --sample 0"
}

# Until the log has some steps, or the program ends by itself, which it must not.
killed_wait() {
    while [ ! -s "$scratch/killed" ] || [ "$(wc -l <"$scratch/killed")" -lt 3 ]; do
        if ! kill -0 "$1"; then
            fail "ends by itself: $(cat "$scratch/killed.out")"
            return
        fi
        sleep 0.02
    done
}

# A process that was killed may keep its files a moment longer: the kernel tidies up for it.
killed_settle() {
    tries=0
    while "$sherd" state list "$drive" | grep -q "in use" && [ "$tries" -lt 500 ]; do
        tries=$((tries + 1))
        sleep 0.02
    done
    "$sherd" state list "$drive" >"$scratch/list"
    grep -q "^run [0-9a-f]*: resumable, 2 of 2 ranks" "$scratch/list" || fail "$1: $(cat "$scratch/list")"
}

# steps LOG: its whole lines, without times, figures and the last one's validation.
steps() {
    sed -n "/}}\$/!d; $only_training; s/\"validation_loss\": [0-9.]*, //; p" "$1"
}

# Goes on with the command that is given, three steps, and compares every step with an undisturbed run.
killed_resume() {
    name=$1
    shift
    logged=$(steps "$scratch/killed" | wc -l)
    last=$((logged + 4))
    # Steps that are done already: nothing to do, and all stays.
    # shellcheck disable=SC2086
    "$@" "$program" --data "$scratch/text" $tiny_flags $killed_flags $killed_ranks --resume --steps 1 \
        >"$scratch/out" 2>&1 || fail "$name, nothing to do: $(cat "$scratch/out")"
    grep -q "nothing to do: [0-9]* steps are done" "$scratch/out" || fail "$name: $(cat "$scratch/out")"
    killed_settle "$name: nothing to do"
    # The log goes on, even after a line that was torn.
    printf '{"step": 1, "lo' >"$scratch/resumed"
    # shellcheck disable=SC2086
    "$@" "$program" --data "$scratch/text" $tiny_flags $killed_flags $killed_ranks --resume --steps "$last" \
        --log "$scratch/resumed" >"$scratch/out" 2>&1 || fail "$name: $(cat "$scratch/out")"
    first=$(sed -n 's/.*goes on from step \([0-9]*\) of run.*/\1/p' "$scratch/out")
    if [ "${first:-x}" != "$logged" ] && [ "${first:-x}" != $((logged + 1)) ]; then
        fail "$name: the log ends with step $logged, the state has '$first': $(cat "$scratch/out")"
        return
    fi
    drive_is_empty "$name: a clean end"
    tiny --config "$scratch/config.json" --ranks 2 --steps "$last"
    steps "$scratch/log" >"$scratch/want"
    for file in killed resumed; do
        odd=$(steps "$scratch/$file" | grep -vxF -f "$scratch/want" || true)
        [ -z "$odd" ] || fail "$name: $file has steps that the undisturbed run does not have: $odd"
    done
    [ "$(head -1 "$scratch/resumed")" = '{"step": 1, "lo' ] || fail "$name: the log began anew"
    [ "$(wc -l <"$scratch/resumed")" = $((last - first + 1)) ] || fail "$name: steps are missing"
}

# Killed when the first values are committed and no step is: it begins with the first step, in a window of any length.
killed_at_first() {
    # shellcheck disable=SC2086
    "$program" --data "$scratch/text" $tiny_flags $killed_flags $killed_ranks --steps 1 --accumulation 100000 >"$scratch/killed.out" 2>&1 &
    pid=$!
    until "$sherd" state list "$drive" 2>/dev/null | grep -qE "^ +1 +0 .*in use"; do
        kill -0 "$pid" || break
        sleep 0.02
    done
    kill -9 "$pid"
    wait "$pid" 2>/dev/null || true
    killed_settle "a kill in the first step"
    rm -f "$scratch/resumed"
    # shellcheck disable=SC2086
    "$program" --data "$scratch/text" $tiny_flags $killed_flags $killed_ranks --resume --steps 2 --log "$scratch/resumed" \
        >"$scratch/out" 2>&1 || fail "a kill in the first step: $(cat "$scratch/out")"
    tiny --config "$scratch/config.json" --ranks 2 --steps 2
    same "a kill in the first step" "$(steps "$scratch/log")" "$(steps "$scratch/resumed")"
}

# Ranks as threads of one process.
killed() {
    drive_open
    killed_config
    killed_ranks="--ranks 2"
    for round in first second; do
        rm -f "$scratch/killed"
        # shellcheck disable=SC2086
        "$program" --data "$scratch/text" $tiny_flags $killed_flags $killed_ranks --steps 1000000 \
            --log "$scratch/killed" >"$scratch/killed.out" 2>&1 &
        pid=$!
        killed_wait "$pid"
        kill -9 "$pid"
        wait "$pid" 2>/dev/null || true
        killed_settle "$round kill"
        if [ "$round" = first ]; then
            killed_resume "killed"
        fi
    done
    # Other ranks: nothing fits, and what is there stays.
    tiny --config "$scratch/config.json" --offload nvme --nvme-path "$drive" --ranks 1 --resume
    grep -q "finds no state that fits" "$scratch/out" || fail "another number of ranks: $(cat "$scratch/out")"
    killed_settle "a run of another number of ranks"
    "$sherd" state remove "$drive" --all --yes >"$scratch/out" || fail "$(cat "$scratch/out")"
    drive_is_empty "sherd state remove"
    killed_at_first
}

# Ranks as processes, of which one is killed.
killed_launched() {
    drive_open
    killed_config
    killed_ranks=""
    OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 timeout 20 "$program" --data "$scratch/text" >"$scratch/probe" 2>&1 || true
    if ! command -v mpirun >/dev/null || grep -q "built without MPI" "$scratch/probe"; then
        echo "no mpirun, or built without MPI"
        exit 77
    fi
    ASAN_OPTIONS=${ASAN_OPTIONS-}:detect_leaks=0
    export ASAN_OPTIONS
    # The ranks' numbers: exec keeps them.
    # shellcheck disable=SC2016,SC2086
    mpirun --oversubscribe -n 2 sh -c 'echo $$ >"$0.$OMPI_COMM_WORLD_RANK"; exec "$@"' "$scratch/pid" \
        "$program" --data "$scratch/text" $tiny_flags $killed_flags --steps 1000000 --log "$scratch/killed" \
        >"$scratch/killed.out" 2>&1 &
    pid=$!
    killed_wait "$pid"
    kill -9 "$(cat "$scratch/pid.1")"
    wait "$pid" && fail "mpirun ends well when a rank is killed"
    killed_settle "a killed rank"
    killed_resume "a killed rank" mpirun --oversubscribe -n 2
}

# One job, however it is laid out: every printed digit of the log is the same, times and figures apart.
deterministic() {
    printf '{"deterministic": true, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": "auto",
        "bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "zero_optimization": {"stage": "auto"}}' >"$scratch/config.json"
    want=""
    for layout in "1 6 0" "1 6 3" "6 1 3" "6 1 0" "2 3 1" "3 2 2"; do
        # shellcheck disable=SC2086
        set -- $layout
        tiny --config "$scratch/config.json" --ranks "$1" --accumulation "$2" --stage "$3"
        got=$(sed "$only_training" "$scratch/log")
        want=${want:-$got}
        same "the log of $1 ranks x $2 micro-batches, stage $3" "$want" "$got"
    done
}

# signalled SIGNAL: sends it, and waits until it has arrived: of two that are on their way at once, one is lost.
signalled() {
    kill -"$1" "$pid"
    while [ $((0x$(sed -n 's/^ShdPnd:[[:space:]]*//p' "/proc/$pid/status" || echo 0) & 0x300000)) -ne 0 ]; do
        sleep 0.01
    done
}

# resized RANKS SIGNAL...: sends the signals, and waits until so many ranks train.
resized() {
    before=$(grep -c '"resized"' "$scratch/log" || true)
    ranks=$1
    shift
    for signal in "$@"; do
        signalled "$signal"
    done
    tries=0
    until grep '"resized"' "$scratch/log" | tail -1 | grep -q "\"resized\": $ranks,"; do
        kill -0 "$pid" 2>/dev/null || return 1
        tries=$((tries + 1))
        [ $tries -lt 600 ] || return 1
        sleep 0.05
    done
    [ "$(grep -c '"resized"' "$scratch/log")" -gt "$before" ]
}

# elastic_start STAGE COMMAND...: starts a long run in the background, and waits for its first step.
elastic_start() {
    printf '{"deterministic": true, "train_batch_size": 14, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.5,
        "bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "sherd": {%s},
        "zero_optimization": {"stage": %d}}' "${redundancy-}" "$1" >"$scratch/config.json"
    shift
    rm -f "$scratch/log"
    # shellcheck disable=SC2086
    "$@" --data "$scratch/text" $tiny_flags --config "$scratch/config.json" --elastic 2:5 --steps 1000000 --log "$scratch/log" >"$scratch/out" 2>&1 &
    pid=$!
    until [ -s "$scratch/log" ]; do
        kill -0 "$pid" || break
        sleep 0.05
    done
}

# elastic_end NAME: ends the run; the log has to be that of one rank.
elastic_end() {
    kill -TERM "$pid"
    wait "$pid" || fail "$1: $(cat "$scratch/out")"
    grep -v '"resized"' "$scratch/log" | sed "$only_training" >"$scratch/got"
    steps=$(wc -l <"$scratch/got")
    tiny --config "$scratch/config.json" --ranks 1 --steps "$steps"
    # the last step of the other run was validated, since it was stopped then
    sed "$only_training; s/, \"validation_loss\": [0-9.e+-]*//" "$scratch/log" >"$scratch/want"
    sed -i 's/, "validation_loss": [0-9.e+-]*//' "$scratch/got"
    cmp -s "$scratch/want" "$scratch/got" ||
        fail "$1: not the log of one rank: $(diff "$scratch/want" "$scratch/got" | head -4)"
}

# Ranks come and go by signals while the training goes on, also where some are without data in the last micro-batch of a step:
# the log is that of one rank, step by step. The ranks are threads, or processes.
elastic() {
    for stage in 0 1 2 3; do
        elastic_start $stage "$program" --ranks 4
        resized 3 TTOU && resized 5 TTIN TTIN && resized 2 TTOU TTOU TTOU && resized 4 TTIN TTIN ||
            fail "stage $stage, resizing: $(cat "$scratch/out")"
        elastic_end "stage $stage"
    done
    for stage in 1 3; do
        elastic_start $stage "$sherd" launch -n 4 --elastic 2:5 "$program"
        resized 3 TTOU && resized 5 TTIN TTIN && resized 2 TTOU TTOU TTOU && resized 4 TTIN TTIN ||
            fail "stage $stage, resizing processes: $(cat "$scratch/out")"
        grep -q "4 ranks are wanted" "$scratch/out" || fail "the launcher does not say what is wanted: $(cat "$scratch/out")"
        elastic_end "stage $stage, processes"
    done
    for mistake in "3" "5:2" "0:4" "2:x"; do
        "$program" --data "$scratch/text" --elastic "$mistake" >"$scratch/out" 2>&1 && fail "--elastic $mistake is accepted"
        grep -q -- "--elastic $mistake" "$scratch/out" || fail "--elastic $mistake: $(cat "$scratch/out")"
    done
}

# lose NUMBER...: kills these children of the launcher, counted from 1, and waits until $ranks train.
lose() {
    before=$(grep -c '"lost"' "$scratch/log" || true)
    children=$(cat "/proc/$pid/task/$pid/children")
    for number in "$@"; do
        # shellcheck disable=SC2086
        kill -KILL "$(echo $children | cut -d' ' -f"$number")"
    done
    tries=0
    until [ "$(grep -c '"lost"' "$scratch/log")" -gt "$before" ] && grep '"resized"' "$scratch/log" | tail -1 | grep -q "\"resized\": $ranks,"; do
        kill -0 "$pid" 2>/dev/null || return 1
        tries=$((tries + 1))
        [ $tries -lt 600 ] || return 1
        sleep 0.05
    done
}

# Processes die, rank 0 too, and two at once: the log stays that of one rank, whether they are started again or not.
elastic_killed() {
    redundancy='"redundancy": "host"'
    export TMPDIR="$scratch"
    for stage in 1 2 3; do
        elastic_start $stage "$sherd" launch -n 4 --elastic 2:5 "$program"
        ranks=4
        lose 2 && lose 1 && lose 1 3 && lose 4 || fail "stage $stage, killing: $(cat "$scratch/out")"
        grep -q "was ended by signal 9 (Killed): 3 ranks go on, and it is started again" "$scratch/out" ||
            fail "the launcher does not say what it does: $(cat "$scratch/out")"
        elastic_end "stage $stage, killed"
    done
    elastic_start 3 "$sherd" launch -n 4 --elastic 2:5 --no-restart "$program"
    ranks=3
    lose 1 || fail "killing without a restart: $(cat "$scratch/out")"
    grep -q "process 0 was ended by signal 9 (Killed): 3 ranks go on without it" "$scratch/out" || fail "without a restart: $(cat "$scratch/out")"
    ranks=2
    lose 3 || fail "killing without a restart: $(cat "$scratch/out")"
    elastic_end "without a restart"
    # Too few are left.
    elastic_start 3 "$sherd" launch -n 2 --elastic 2:5 --grace 1 "$program"
    kill -KILL "$(cut -d' ' -f1 "/proc/$pid/task/$pid/children")"
    status=0
    wait "$pid" || status=$?
    same "the status when too few are left" 137 "$status"
    grep -q "1 rank is left, and --elastic wants at least 2; the job ends" "$scratch/out" || fail "the launcher with one rank: $(cat "$scratch/out")"
    grep -q "1 of 2 ranks are left, and --elastic wants at least 2; --save DIR would have kept checkpoints" "$scratch/out" ||
        fail "one rank: $(cat "$scratch/out")"
    # A newcomer that always fails is not started for ever.
    # shellcheck disable=SC2016
    elastic_start 3 "$sherd" launch -n 3 --elastic 2:5 --grace 0 --deaths 3 sh -c '[ -n "${SHERD_RANK-}" ] || exit 7; exec "$@"' sh "$program"
    kill -TTIN "$pid"
    status=0
    wait "$pid" || status=$?
    same "the status of a crash loop" 7 "$status"
    same "starts of a crash loop" 2 "$(grep -c "ended with status 7 before it was a rank: 3 ranks go on, and it is started again" "$scratch/out")"
    grep -q "3 processes in a row have ended so within 60 seconds of training; the job ends" "$scratch/out" || fail "a crash loop: $(cat "$scratch/out")"
    # What the state has is gone with its rank.
    redundancy=
    elastic_start 3 "$sherd" launch -n 3 --elastic 2:5 --grace 1 --no-restart "$program" --save "$scratch/kept" --save-every 1
    until [ -e "$scratch/kept/latest" ]; do
        kill -0 "$pid" || break
        sleep 0.05
    done
    kill -KILL "$(cut -d' ' -f2 "/proc/$pid/task/$pid/children")"
    wait "$pid" && fail "ranks go on without the state of one: $(cat "$scratch/out")"
    grep -q "2 of 3 ranks are left, and cannot go on: .*; start again with --resume: the last checkpoint is $scratch/kept/step-0000[0-9]*, [0-9]* s old" "$scratch/out" ||
        fail "state that is gone: $(cat "$scratch/out")"
    [ -z "$(find "$scratch" -name 'sherd-launch-*')" ] || fail "the launcher leaves $(find "$scratch" -name 'sherd-launch-*')"
    # Ranks end with their launcher.
    elastic_start 3 "$sherd" launch -n 3 --elastic 2:5 "$program"
    children=$(cat "/proc/$pid/task/$pid/children")
    kill -KILL "$pid"
    wait "$pid" || true
    for child in $children; do
        tries=0
        while kill -0 "$child" 2>/dev/null && [ $tries -lt 600 ]; do
            tries=$((tries + 1))
            sleep 0.05
        done
        ! kill -KILL "$child" 2>/dev/null || fail "a rank goes on without its launcher: $(cat "$scratch/out")"
    done
}

# A global batch of 84 sequences, which 1, 2, 3, 4 and 7 ranks share out. saved_open IS_ASYNC
saved_open() {
    drive_open
    printf '{"deterministic": true, "train_batch_size": 84, "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": "auto", "bf16": {"enabled": true}, "checkpoint": {"async": %s},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "zero_optimization": {"stage": 3}}' "$1" >"$scratch/config.json"
    checkpoints=$scratch/new/checkpoints
}

# saved_run RANKS STAGE ARGS
saved_run() {
    ranks=$1
    stage=$2
    shift 2
    tiny --config "$scratch/config.json" --ranks "$ranks" --stage "$stage" --accumulation $((84 / ranks)) "$@"
}

# saved_same NAME FIRST LAST: the log has just these steps, each as the undisturbed run in $scratch/want has it.
saved_same() {
    steps "$scratch/log" >"$scratch/got"
    [ "$(wc -l <"$scratch/got")" = $(($3 - $2 + 1)) ] || fail "$1: steps are missing"
    sed -n "$2,$3p" "$scratch/want" | cmp -s - "$scratch/got" ||
        fail "$1: not steps $2 to $3 of the undisturbed run: $(diff "$scratch/want" "$scratch/got")"
}

# What four ranks saved goes on anywhere, with the same log.
saved() {
    saved_open false
    saved_run 4 3 --steps 6 --save "$checkpoints" --save-every 2 --keep 2 --offload nvme --nvme-path "$drive"
    steps "$scratch/log" >"$scratch/want"
    same "checkpoints kept" "latest step-000004 step-000006" "$(ls "$checkpoints" | tr '\n' ' ' | sed 's/ $//')"
    same "checkpoints in the log" 3 "$(grep -c '"checkpoint": "step-00000[246]", "step": [246], "bytes"' "$scratch/log")"
    grep -q "3 checkpoints saved in $checkpoints, the last is step-000006" "$scratch/out" || fail "no summary: $(cat "$scratch/out")"
    drive_is_empty "a run that was saved"
    for layout in "1 0 none" "2 1 cpu" "3 3 nvme" "7 2 none"; do
        # shellcheck disable=SC2086
        set -- $layout
        rm "$scratch/log"
        saved_run "$1" "$2" --steps 6 --offload "$3" --nvme-path "$drive" --resume-from "$checkpoints/step-000004/"
        saved_same "$1 ranks, stage $2, state on $3" 5 6
    done
    # Another seed or global batch is reported; the data go on behind the 336 sequences that four steps of 84 had.
    sed 's/: 84,/: 42,/' "$scratch/config.json" >"$scratch/half.json"
    rm "$scratch/log"
    tiny --config "$scratch/half.json" --ranks 2 --accumulation 21 --steps 6 --resume-from "$checkpoints/step-000004"
    grep -q "step-000004 is of a run with seed 1, .* steps of 84 sequences; this one has seed 1, .* steps of 42" "$scratch/out" ||
        fail "another batch: $(cat "$scratch/out")"
    same "tokens of 336 and 42 sequences" $((378 * 24)) "$(sed -n '/"step": 5,/s/.*"tokens": \([0-9]*\),.*/\1/p' "$scratch/log")"
    # The latest one: nothing is left to do, and nothing is saved again.
    saved_run 2 3 --steps 6 --save "$checkpoints" --resume --offload nvme --nvme-path "$drive"
    drive_is_empty "a run with nothing to do"
    grep -q "goes on from step 6 of $checkpoints/step-000006" "$scratch/out" || fail "the latest: $(cat "$scratch/out")"
    grep -q "nothing to do: 6 steps are done" "$scratch/out" || fail "nothing to do: $(cat "$scratch/out")"
    saved_run 2 3 --steps 1 --save "$scratch/other" --resume
    grep -q "finds no checkpoint in $scratch/other" "$scratch/out" || fail "starts anew: $(cat "$scratch/out")"
    saved_run 2 3 --steps 1 --save "$scratch/other"
    grep -q "has checkpoints of an earlier run, the latest is step-000001" "$scratch/out" || fail "an earlier run: $(cat "$scratch/out")"
}

# A file where a checkpoint should be, then a limit: training goes on, and says what was not saved.
saved_badly() {
    for is_async in false true; do
        rm -rf "$drive" "$scratch/new"
        saved_open "$is_async"
        mkdir -p "$checkpoints"
        : >"$checkpoints/step-000001"
        saved_run 3 3 --steps 2 --save "$checkpoints" --save-every 1
        grep -q "step-000001 is not saved: .*; training goes on" "$scratch/out" || fail "async $is_async: $(cat "$scratch/out")"
        grep -q '"checkpoint": "step-000001", "step": 1, "failed": "SHERD_E_IO"' "$scratch/log" || fail "async $is_async: $(cat "$scratch/log")"
        saved_run 2 2 --steps 2 --resume-from "$checkpoints/step-000002"
        (
            trap '' XFSZ
            ulimit -f 100
            refused "the run ended and $checkpoints/step-000001 could not be saved" --data "$scratch/text" $tiny_flags \
                --ranks 2 --config "$scratch/config.json" --accumulation 42 --save "$checkpoints" --steps 1
            exit "$failed"
        ) || failed=1
    done
}

# saved_stop SIGNAL EVERY: a run that saves every EVERY steps gets it when three are done; what it exits with is $code.
saved_stop() {
    rm -rf "$checkpoints" "$scratch/log"
    # shellcheck disable=SC2086
    "$program" --data "$scratch/text" $tiny_flags --config "$scratch/config.json" --ranks 4 --accumulation 21 --steps 100000 \
        --save "$checkpoints" --save-every "$2" --keep 2 --log "$scratch/log" >"$scratch/out" 2>&1 &
    pid=$!
    until [ -s "$scratch/log" ] && [ "$(grep -c '"loss"' "$scratch/log")" -ge 3 ]; do
        kill -0 "$pid" || break
        sleep 0.02
    done
    code=0
    kill "-$1" "$pid"
    wait "$pid" 2>/dev/null || code=$?
}

# Goes on for two steps on three ranks, and then without a stop.
saved_go_on() {
    steps "$scratch/log" >"$scratch/before"
    rm "$scratch/log"
    step=$(sed -n 's/^step-0*\([0-9]*\) .*/\1/p' "$checkpoints/latest")
    saved_run 3 2 --steps $((step + 2)) --save "$checkpoints" --resume
    grep -q "goes on from step $step of" "$scratch/out" || fail "$1: does not go on from step $step: $(cat "$scratch/out")"
    cp "$scratch/log" "$scratch/after"
    saved_run 2 3 --steps $((step + 2))
    steps "$scratch/log" >"$scratch/want"
    cp "$scratch/after" "$scratch/log"
    saved_same "$1" $((step + 1)) $((step + 2))
    head -n "$step" "$scratch/before" | cmp -s - "$scratch/want" -n "$(head -n "$step" "$scratch/before" | wc -c)" ||
        fail "$1: other steps before it stopped"
}

saved_killed() {
    saved_open true
    saved_stop KILL 1
    [ "$code" = 137 ] || fail "exit code $code of what was killed"
    saved_go_on "killed"
}

saved_stopped() {
    saved_open false
    for signal in TERM USR1; do
        saved_stop "$signal" 100000
        [ "$code" = 0 ] || fail "SIG$signal: exit code $code: $(cat "$scratch/out")"
        grep -q "stopped after step [0-9]*; --resume goes on from $checkpoints/step-" "$scratch/out" || fail "SIG$signal: $(cat "$scratch/out")"
        saved_go_on "SIG$signal"
    done
}

# refused WORDS ARGS: exits 1 or 2 and says WORDS.
refused() {
    words=$1
    shift
    code=0
    "$program" "$@" >"$scratch/out" 2>&1 || code=$?
    if [ "$code" != 1 ] && [ "$code" != 2 ]; then
        fail "exit code $code: $*"
    fi
    grep -q -- "$words" "$scratch/out" || fail "'$words' is not said by: $*: $(cat "$scratch/out")"
}

mistakes() {
    refused "--data PATH is needed"
    refused "unrecognized option" --data "$scratch/text" --bogus
    refused "is no option" --data "$scratch/text" more
    refused "requires an argument" --data
    refused "takes gpt2, minimind, llama, mistral, qwen2 or qwen3, not 'bert'" --data "$scratch/text" --arch bert
    refused "gpt2 has no preset '1t'; it has tiny bytes 124m" --data "$scratch/text" --arch gpt2 --preset 1t
    refused "takes a number from 0 to 3, not '4'" --data "$scratch/text" --stage 4
    refused "takes a number of at least 1, not '12x'" --data "$scratch/text" --hidden 12x
    refused "takes a number of at least 0, not '-1e-3'" --data "$scratch/text" --lr=-1e-3
    refused "takes fp32, bf16 or fp16, not 'int8'" --data "$scratch/text" --precision int8
    refused "hidden 50 is not a multiple of heads 4" --data "$scratch/text" --hidden 50 --heads 4
    printf '{"model_type": "mistral", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "intermediate_size": 16, "vocab_size": 256, "sliding_window": 64}' >"$scratch/config.json"
    refused "sliding_window is 64), which the trainer does not compute: use --length 64 or less" --data "$scratch/text" --model "$scratch/config.json"
    refused "$scratch has neither model.safetensors.index.json" --data "$scratch/text" --model "$scratch" --length 64
    refused "brings weights" --data "$scratch/text" --model "$scratch" --init "$scratch/other"
    refused "--heads cannot change it" --data "$scratch/text" --model "$scratch" --heads 4
    refused "--arch cannot change it" --data "$scratch/text" --arch llama --model "$scratch"
    refused "$scratch/nowhere: No such file" --data "$scratch/text" --model "$scratch/nowhere"
    refused "sliding_window is 4096), which" --data "$scratch/text" --arch mistral --preset 7b-v0.1 --length 8192
    sed 's/"sliding_window": 64/"rope_scaling": {"rope_type": "yarn", "factor": 4}/' "$scratch/config.json" >"$scratch/yarn.json"
    refused "yarn.json: rope_type is \"yarn\"; the trainer computes default, linear and llama3" --data "$scratch/text" --model "$scratch/yarn.json"
    refused "too few for --length 5000" --data "$scratch/text" --arch gpt2 --length 5000
    refused "give --steps" --data "$scratch/text" --minutes 1 --resume
    refused "No such file" --data "$scratch/missing"
    refused "No such file" --data "$scratch/text" --config "$scratch/missing.json"
    refused "cannot be written" --data "$scratch/text" --log /missing/log
    printf 'short' >"$scratch/short"
    refused "too short" --data "$scratch/short"
    printf '\377\376 not text' >"$scratch/binary"
    refused "neither UTF-8 text" --data "$scratch/binary"
    refused "give --vocab 256" --data "$scratch/text" --vocab 100
    printf '{"optimizer": {"type": "AdamW"' >"$scratch/bad.json"
    refused "bad.json:1" --data "$scratch/text" --config "$scratch/bad.json"
    printf '{"optimizer": {"type": "OneBitLamb"}}' >"$scratch/bad.json"
    refused "OneBitLamb" --data "$scratch/text" --config "$scratch/bad.json"

    refused "needs nvme_path" --data "$scratch/text" --offload nvme
    refused "needs nvme_path" --data "$scratch/text" --offload-params nvme
    refused 'offload_optimizer.device is "disk"; known: none|cpu|nvme' --data "$scratch/text" --offload disk
    if "$sherd" state list "$scratch" >"$scratch/probe" 2>&1; then
        refused "$scratch/nowhere: No such file" --data "$scratch/text" --offload nvme --nvme-path "$scratch/nowhere"
        refused "$scratch/short: Not a directory" --data "$scratch/text" --offload nvme --nvme-path "$scratch/short"
        # Nobody can make files there, root neither.
        refused "no file can be made in folder /proc .*name a folder on a drive" --data "$scratch/text" --offload nvme --nvme-path /proc
        if [ "$(id -u)" != 0 ]; then
            mkdir -m 500 "$scratch/locked"
            refused "cannot open $scratch/locked/.*: Permission denied" --data "$scratch/text" --offload nvme \
                --nvme-path "$scratch/locked"
        fi
    else
        refused "libxxhash" --data "$scratch/text" --offload nvme --nvme-path "$scratch"
    fi
    refused "need --save DIR" --data "$scratch/text" --save-every 3
    refused "give one of them" --data "$scratch/text" --resume --resume-from "$scratch"
    refused "$scratch: no checkpoint is there" --data "$scratch/text" --resume-from "$scratch"
    refused "cannot be written to: Not a directory" --data "$scratch/text" --save "$scratch/short"
    refused "cannot be made: Not a directory" --data "$scratch/text" --save "$scratch/short/below"
    mkdir "$scratch/whole"
    mkfifo "$scratch/odd.safetensors" "$scratch/odd.bin" "$scratch/whole/config.json"
    for odd in odd.safetensors odd.bin whole; do
        refused "$odd.* is a pipe, and only a regular file is replaced" --data "$scratch/text" --export "$scratch/$odd" --steps 100000
        [ -p "$scratch/$odd" ] || [ -p "$scratch/$odd/config.json" ] || fail "export to $odd: it was replaced"
    done
    # Without state on a drive there is nothing to go on from, and that is said.
    tiny --resume
    grep -q "resume finds no state" "$scratch/out" || fail "--resume alone: $(cat "$scratch/out")"

    "$program" --help >"$scratch/out" 2>&1 || fail "--help fails"
    grep -q "mpirun" "$scratch/out" || fail "--help has no examples"
}

summary() {
    tiny --ranks 2 --sample 20 --prompt "3 times"
    for words in "validation loss" "memory per rank" "at stage 0" "steps/s" "3 times|" "fingerprint of the weights 0x"; do
        grep -qF -- "$words" "$scratch/out" || fail "no '$words' in the summary: $(cat "$scratch/out")"
    done
    [ "$(wc -l <"$scratch/log")" = 4 ] || fail "the log has not 4 lines"
    # The later half of so few steps: what warms up is no measure of the rest.
    sed 's/.*"seconds": \([0-9.e+-]*\).*/\1/' "$scratch/log" | awk -v shown="$(sed -n 's/^median step \([0-9.e+-]*\) s,.*/\1/p' "$scratch/out")" '
        { s[NR] = $1 } END { median = (s[3] + s[4]) / 2; gap = shown / median - 1; exit !(gap < 1e-3 && gap > -1e-3) }' ||
        fail "the median step is not that of the log: $(cat "$scratch/out" "$scratch/log")"
    # Memory as planned is what is held, and the system reports as much at least: the process has more than its engine.
    tiny --ranks 1 --offload nvme --nvme-path "$scratch"
    same "lines of memory" "start: start: start: end: end: end: " "$(sed -nE 's/^(start:|end:) (device|host|pinned) .* planned, .*/\1/p' "$scratch/out" | tr '\n' ' ')"
    sed -nE 's/^(start|end): (device|host|pinned) ([0-9.]+ [KMG]?i?B) planned, ([0-9.]+ [KMG]?i?B) held(.* reports ([0-9.]+ [KMG]?i?B) )?.*/\2 \3 \4 \6/p' \
        "$scratch/out" | awk 'function bytes(n, unit) { return n * 1024 ^ index("BKMG", substr(unit, 1, 1)) }
            { planned = bytes($2, $3); held = bytes($4, $5); system_has = bytes($6, $7) }
            planned != held { exit 1 }
            $1 != "pinned" { all += held; if (planned == 0) exit 1 }
            $1 == "host" { if (system_has < all) exit 1; all = 0; lines++ }
            $1 == "pinned" && system_has < held { exit 1 }
            END { if (lines != 2) exit 1 }' || fail "memory: $(cat "$scratch/out")"
    # Layers of more elements than the default model's are gathered ahead too.
    tiny --ranks 2 --stage 3 --hidden 256 --inner 1024 --vocab 4096 --steps 1
    grep "nothing is gathered ahead" "$scratch/out" && fail "the trainer's own bucket is too small"
    # Validation before the first step is for who asks.
    grep -qE "validation loss [0-9.]+$" "$scratch/out" || fail "validated first: $(cat "$scratch/out")"
    tiny --ranks 2 --eval-first
    grep -qE "validation loss [0-9.]+ -> [0-9.]+$" "$scratch/out" || fail "--eval-first: $(cat "$scratch/out")"

    # A configuration of one's own; "auto" is filled, the command line is over the file.
    cat >"$scratch/own.json" <<'JSON'
{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3,
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "zero_optimization": {"stage": 1},
 "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_num_steps": "auto"}}}
JSON
    tiny --config "$scratch/own.json" --ranks 2 --lr 5e-3
    grep -q "ZeRO stage 1, fp32, 2 ranks" "$scratch/out" || fail "own.json: $(cat "$scratch/out")"
    grep -q "a step is 12 sequences" "$scratch/out" || fail "own.json: $(cat "$scratch/out")"
    tail -1 "$scratch/log" | grep -q '"tokens": 1152,' || fail "own.json: $(tail -1 "$scratch/log")"

    # What there is to warn of in a configuration is said once, however many ranks read it.
    printf '{"train_micro_batch_size_per_gpu": 1, "optimiser": {}, "dump_state": true}' >"$scratch/own.json"
    tiny --config "$scratch/own.json" --ranks 2
    for words in "did you mean optimizer?" "dump_state is ignored"; do
        same "warnings of '$words'" 1 "$(grep -cF -- "$words" "$scratch/out")"
    done

    # A configuration is read once, so that it may come through a pipe.
    mkfifo "$scratch/once"
    cat "$scratch/own.json" >"$scratch/once" &
    tiny --config "$scratch/once" --ranks 2
    grep -q "^memory per rank: .* at stage 0, .* at stage 0" "$scratch/out" || fail "from a pipe: $(cat "$scratch/out")"

    # A log and a trace may go through pipes.
    mkfifo "$scratch/piped" "$scratch/traced"
    cat "$scratch/piped" >"$scratch/piped.text" &
    cat "$scratch/traced" >"$scratch/traced.text" &
    SHERD_TRACE="$scratch/traced" tiny --ranks 1 --log "$scratch/piped"
    wait
    same "lines of a log in a pipe" 4 "$(wc -l <"$scratch/piped.text")"
    [ -p "$scratch/piped" ] && [ -p "$scratch/traced" ] && grep -q traceEvents "$scratch/traced.text" || fail "a log or a trace in a pipe"

    # Before the first step a signal just ends the program. Opening the pipe waits for its reader.
    mkfifo "$scratch/pipe"
    "$program" --data "$scratch/text" --config "$scratch/pipe" --ranks 1 >"$scratch/out" 2>&1 &
    pid=$!
    exec 3>"$scratch/pipe"
    kill -TERM "$pid"
    exec 3>&-
    code=0
    wait "$pid" || code=$?
    [ "$code" = 143 ] || fail "the first SIGTERM is ignored, exit code $code: $(cat "$scratch/out")"

    # Ctrl-C finishes the step and sums up.
    rm "$scratch/log"
    # shellcheck disable=SC2086
    "$program" --data "$scratch/text" $tiny_flags --steps 100000 --ranks 2 --log "$scratch/log" >"$scratch/out" 2>&1 &
    pid=$!
    until [ -s "$scratch/log" ]; do
        kill -0 "$pid" || break
        sleep 0.1
    done
    kill -TERM "$pid"
    wait "$pid" || fail "stopping fails: $(cat "$scratch/out")"
    grep -q "stopped after step" "$scratch/out" || fail "stopping: $(cat "$scratch/out")"
    grep -q "memory per rank" "$scratch/out" || fail "no summary after stopping"
}

$group
[ $failed = 0 ] && echo "$group: ok"
exit $failed

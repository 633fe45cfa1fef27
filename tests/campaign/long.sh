#!/usr/bin/env bash
# What `./run test --long` does after the suite: long.sh BUILD SEED MINUTES. It first runs the long lists of the suite's
# own tests, then random layouts, kills, modules of PyTorch and fuzzing for the time that is left. It ends with the counts, and fails if any
# part fails. The logs are in BUILD/long.
set -uo pipefail
build=$1
seed=$2
minutes=$3
logs=$build/long
fuzz_build=$build-fuzz
started=$SECONDS
failed=0
rm -rf "$logs"
mkdir -p "$logs"

# The long lists take about twelve minutes on two cores.
LEAST_FOR_LISTS=18
# Each remaining part gets at least so many seconds, however late it is.
LEAST_SECONDS=20

say() { printf 'long: %s\n' "$*"; }

seconds_left() {
    local left=$((minutes * 60 - (SECONDS - started)))
    echo $((left > 2 * LEAST_SECONDS ? left : 2 * LEAST_SECONDS))
}

lists() {
    if [ "$minutes" -lt "$LEAST_FOR_LISTS" ]; then
        say "the long lists are left out: they need --minutes $LEAST_FOR_LISTS"
        return
    fi
    say "the long lists of the suite's tests"
    # -v puts the counts of injected faults into the log.
    SHERD_TEST_LONG=1 meson test -C "$build" --no-rebuild --suite long -t 6 -v >"$logs/lists" 2>&1 || {
        failed=1
        grep -E "FAIL|TIMEOUT|Fail:|Timeout:" "$logs/lists"
        say "the long lists FAIL: $logs/lists"
    }
}

# campaign NAME SECONDS PROGRAM [VARIABLE=VALUE ...]: runs a campaign; a failure adds NAME to the list of failures.
campaign() {
    local name=$1 seconds=$2 program=$3
    shift 3
    [ -x "$program" ] || { echo "not built" >"$logs/$name"; return; }
    env "$@" "$program" --seed "$seed" --seconds "$seconds" >"$logs/$name" 2>&1 || echo "$name" >>"$logs/failed"
}

# The campaign of sherd.torch, by the interpreter that SHERD_PYTHON names.
ways() {
    SHERD_LIBRARY=$(cd "$build" && pwd)/libsherd.so PYTHONPATH=$PWD/python OMP_NUM_THREADS=1 tests/weights/run.sh \
        python/tests/test_torch_ways.py --seed "$seed" --seconds "$1" >"$logs/ways" 2>&1
    case $? in
    0 | 77) ;;
    *) echo ways >>"$logs/failed" ;;
    esac
}

fuzz_is_built() {
    command -v clang >/dev/null || { echo "left out: no clang here" >"$logs/fuzz"; return 1; }
    if [ ! -f "$fuzz_build/build.ninja" ]; then
        CC=clang meson setup "$fuzz_build" -Dfuzz=true -Dcuda=disabled >"$logs/fuzz-build" 2>&1 || return 1
    fi
    fuzz_targets=$(ninja -C "$fuzz_build" -t targets all | sed -n 's/^\(tests\/fuzz\/fuzz_[a-z]*\): .*/\1/p')
    # shellcheck disable=SC2086
    ninja -C "$fuzz_build" $fuzz_targets >>"$logs/fuzz-build" 2>&1
}

# Fuzzes with each target in turn. The corpora start from files that people wrote and from the seeds of tests/fuzz.
fuzz() {
    local until=$((SECONDS + $1)) count=0 target name seconds
    if ! fuzz_is_built; then
        [ -s "$logs/fuzz" ] || { echo "fuzz" >>"$logs/failed"; echo "the fuzz targets do not build: $logs/fuzz-build" >"$logs/fuzz"; }
        return
    fi
    for target in $fuzz_targets; do count=$((count + 1)); done
    for target in $fuzz_targets; do
        name=$(basename "$target")
        seconds=$(((until - SECONDS) / count))
        count=$((count - 1))
        mkdir -p "$logs/$name.corpus"
        [ "$name" != fuzz_state ] && cp examples/*/*.json ../shared/ds_configs/*.json "$logs/$name.corpus" 2>/dev/null
        cp tests/fuzz/"corpus_${name#fuzz_}"/* "$logs/$name.corpus" 2>/dev/null
        "$fuzz_build/$target" -seed=$((seed % 2147483647 + 1)) -max_total_time=$((seconds > 5 ? seconds : 5)) -print_final_stats=1 \
            -artifact_prefix="$logs/$name-" "$logs/$name.corpus" >"$logs/$name" 2>&1 || echo "$name" >>"$logs/failed"
        echo "$name: $(sed -n 's/^stat::number_of_executed_units: //p' "$logs/$name") runs" >>"$logs/fuzz"
    done
}

# Prints the last line of each log that is being written.
progress() {
    for name in layouts layouts_emulated kills ways fuzz; do
        if [ -s "$logs/$name" ]; then
            say "  $name: $(grep -v -e '^ok ' -e ' passed, ' "$logs/$name" | tail -1 | cut -c1-150)"
        fi
    done
}

# Adds up the numbers that follow WORD: in the log of the lists.
sum_of() {
    awk -v word="$1:" '{ for (i = 1; i < NF; i++) if ($i == word) n += $(i + 1) } END { print n + 0 }' "$logs/lists" 2>/dev/null || echo 0
}

say "seed $seed, $minutes minutes"
lists
half=$(($(seconds_left) / 2))
say "random layouts, kills and modules of PyTorch, beside layouts on the emulated device and fuzzing: $((2 * half)) seconds"
(
    campaign layouts "$((half * 2 / 3))" "$build/tests/campaign/layouts"
    campaign kills "$((half * 2 / 3))" "$build/tests/campaign/kills"
    ways "$((half * 2 / 3))"
) &
lane=$!
(
    campaign layouts_emulated "$half" "$build/tests/campaign/layouts_emulated" SHERD_BACKEND=cuda SHERD_EMULATOR_EAGER=1 \
        SHERD_EMULATOR_GUARD=0 SHERD_NCCL_LIBRARY=/nonexistent
    fuzz "$half"
) &
other=$!
while kill -0 "$lane" 2>/dev/null || kill -0 "$other" 2>/dev/null; do
    for _ in $(seq 60); do
        kill -0 "$lane" 2>/dev/null || kill -0 "$other" 2>/dev/null || break
        sleep 1
    done
    say "after $((SECONDS - started)) seconds"
    progress
done
wait

while read -r name; do
    failed=1
    say "$name FAILS: $logs/$name"
    grep -v -e '^ok ' -e ' passed, ' -e '^FAIL [a-z]*_' "$logs/$name" | grep -B3 -A5 -m3 -e '^FAIL' -e 'ERROR: ' | cut -c1-1500
done < <(cat "$logs/failed" 2>/dev/null)
say "summary, seed $seed"
for name in layouts layouts_emulated kills ways; do
    say "  $(tail -1 "$logs/$name" | sed "s/^layouts:/$name:/")"
done
say "  faults in the lists: $(sum_of faults), kills in them: $(sum_of kills)"
while read -r line; do
    say "  fuzz: $line"
done <"$logs/fuzz"
if [ "$failed" = 0 ]; then
    say "passed"
else
    say "FAILED"
fi
exit "$failed"

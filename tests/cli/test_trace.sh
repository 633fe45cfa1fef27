#!/bin/sh
# sherd trace, on a trace whose numbers are known and on one of the trainer: test_trace.sh SHERD TRAINER.
set -eu
sherd=$1
trainer=$2
subcommand=trace
. "$(dirname "$0")/lib.sh"


# Two steps of 200 and 300 microseconds; a wait inside the boundary counts once, transfers overlap.
cat >"$scratch/known.json" <<'TEXT'
{"displayTimeUnit":"ms","traceEvents":[
{"ph":"M","pid":3,"name":"process_name","args":{"name":"rank 3"}},
{"ph":"M","pid":3,"tid":0,"name":"thread_name","args":{"name":"compute"}},
{"ph":"M","pid":3,"tid":1,"name":"thread_name","args":{"name":"wait (exposed)"}},
{"ph":"M","pid":3,"tid":6,"name":"thread_name","args":{"name":"read (NVMe)"}},
{"ph":"M","pid":3,"tid":9,"name":"thread_name","args":{"name":"step"}},
{"ph":"X","pid":3,"tid":0,"ts":1000.000,"name":"compute \"dur\":7","cat":"compute","dur":20.000},
{"ph":"X","pid":3,"tid":1,"ts":1020.000,"name":"wait","cat":"wait (exposed)","dur":10.000},
{"ph":"X","pid":3,"tid":0,"ts":1030.000,"name":"compute","cat":"compute","dur":70.000},
{"ph":"X","pid":3,"tid":1,"ts":1150.000,"name":"wait","cat":"wait (exposed)","dur":20.000},
{"ph":"X","pid":3,"tid":9,"ts":1100.000,"name":"step","cat":"step","dur":100.000},
{"ph":"X","pid":3,"tid":0,"ts":1200.000,"name":"compute","cat":"compute","dur":200.000},
{"ph":"b","pid":3,"tid":6,"ts":1190.000,"name":"read","cat":"read (NVMe)","id":1,"args":{"bytes":4096}},
{"ph":"e","pid":3,"tid":6,"ts":1290.000,"name":"read","cat":"read (NVMe)","id":1},
{"ph":"b","pid":3,"tid":6,"ts":1250.000,"name":"read","cat":"read (NVMe)","id":2,"args":{"bytes":4096}},
{"ph":"e","pid":3,"tid":6,"ts":1320.000,"name":"read","cat":"read (NVMe)","id":2},
{"ph":"X","pid":3,"tid":9,"ts":1400.000,"name":"step","cat":"step","dur":100.000}
]}
TEXT
run 0 "$scratch/known.json" --json
says out '"rank": 3, "is_whole": true, "skipped": 1'
says out '{"step": 1, "length_s": 0.000200000, "exposed_s": 0.000110000, "exposed_share": 0.550000, "lanes": {"compute": 0.000090000, "wait (exposed)": 0.000030000, "read (NVMe)": 0.000010000, "step": 0.000100000}}'
says out '{"step": 2, "length_s": 0.000300000, "exposed_s": 0.000100000, "exposed_share": 0.333333, "lanes": {"compute": 0.000200000, "wait (exposed)": 0.000000000, "read (NVMe)": 0.000120000, "step": 0.000100000}}'
run 0 "$scratch/known.json" --skip 0
says out "rank 3, 2 steps"
says out "median          0.250        0.105     42.00" # 105 of 250
run 0 "$scratch/known.json" --skip 7 # the last one stays
says out "medians of 1 steps, without the first 1"

# A run that was killed.
head -c 1150 "$scratch/known.json" >"$scratch/cut.json"
run 0 "$scratch/cut.json"
says out "1 steps; it was not written to its end"

# Mistakes.
run 1 "$scratch/nowhere.json"
says err "nowhere.json: No such file or directory"
echo '{"a": 1}' >"$scratch/other.json"
run 1 "$scratch/other.json"
says err "other.json: no step in it"
run 2
says err "usage: sherd trace FILE"
run 2 "$scratch/known.json" --skip few
says err "--skip wants a number of steps, not 'few'"

# The trainer's own, on the CPU.
awk 'BEGIN { for (i = 0; i < 1500; i++) printf "%d times %d is %d. ", i % 37, i % 11, (i % 37) * (i % 11) }' >"$scratch/text"
SHERD_TRACE=$scratch/run.json "$trainer" --data "$scratch/text" --hidden 48 --layers 2 --heads 4 --kv-heads 2 --inner 80 \
    --length 24 --steps 4 --sample 0 --threads 1 --eval-every 0 --ranks 2 --stage 3 --quiet
for file in run.json run.1.json; do
    run 0 "$scratch/$file"
    says out ", 4 steps"
    for lane in compute gather reduce update step; do
        says out "$lane"
    done
    run 0 "$scratch/$file" --json
    awk -v RS='[{,]' -F': ' '/"exposed_share"/ { n++; if (!($2 > 0 && $2 <= 1)) bad = 1 } END { exit bad || n != 5 }' \
        "$scratch/out" || {
        echo "not ok: the shares of $file"
        cat "$scratch/out"
        failed=1
    }
    if command -v python3 >/dev/null; then
        python3 -c 'import json, sys; assert len(json.load(sys.stdin)["steps"]) == 4' <"$scratch/out" || failed=1
    fi
done

[ $failed = 0 ] && echo "sherd trace tells"
exit $failed

#!/bin/sh
# The rehearsal of check.sh: test_check.sh BUILD. On the emulated device every part runs to its figure; one that fails, or
# whose program was not built, ends no other.
set -eu
build=$1
check=$(dirname "$0")/check.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
PARTS="env kernels compute attention adam trainer exposed compiled choices profile large queued nccl proof engine worlds torch sanitizer offload lamb memory seven rivals fourteen"

fail() {
    echo "not ok: $*"
    failed=1
}

# Stand-ins for what no machine without a GPU has: PyTorch with CUDA, the sanitizer and the profiler.
mkdir "$scratch/bin"
cat >"$scratch/bin/torch" <<'SH'
#!/bin/sh
case "$*" in
*trainer_torch.py*) printf 'step 80.00 ms (79.00 .. 81.00), 409600 tokens/s, MFU 36.5 %%; loss 9.8\n' ;;
*rivals.py*fsdp2*) printf 'fsdp2 2.11: 2 layers, started in 1.0 s\nfsdp2 step 1: 0.9 s, loss 6.0\nfsdp2 0.800 s a step, 40 tokens/s, 400.0 ms a layer\n' ;;
*rivals.py*) echo "OutOfMemoryError: no pinned memory" >&2 && exit 1 ;;
*test_torch_cuda.py*) printf 'loss 4.0 -> 1.0\nRan 3 tests in 0.1s\n\n\033[32mOK\r\n' ;;
esac
SH
cat >"$scratch/bin/compute-sanitizer" <<'SH'
#!/bin/sh
while [ "${1#--}" != "$1" ]; do
    case $1 in --tool | --leak-check | --report-api-errors | --error-exitcode) shift 2 ;; *) shift ;; esac
done
"$@" && echo "========= ERROR SUMMARY: 0 errors"
SH
cat >"$scratch/bin/ncu" <<'SH'
#!/bin/sh
while [ "${1#--}" != "$1" ]; do
    case $1 in
    --csv) shift ;;
    --log-file) log=$2 && shift 2 ;;
    *) shift 2 ;;
    esac
done
"$@" || exit
cat >"$log" <<'CSV'
==PROF== Connected to process 7
"ID","Kernel Name","gpu__time_duration.sum"
"","","ns"
"0","void rows(int)","9,000"
"1","embed_forward(int)","1,000"
"2","void product<float>(T1)","50,000"
"3","void product<float>(T1)","49,000"
"4","embed_forward(int)","1,000"
CSV
SH
chmod +x "$scratch/bin/torch" "$scratch/bin/compute-sanitizer" "$scratch/bin/ncu"
PATH=$scratch/bin:$PATH

# rehearse NAME ARGS
rehearse() {
    name=$1
    shift
    status=0
    "$check" --emulated --out "$scratch/$name" "$@" >"$scratch/$name.page" 2>&1 || status=$?
}

# reports NAME PART PATTERN: its line in check.json.
reports() {
    grep "^{\"part\": \"$2\", " "$scratch/$1/check.json" | grep -qE -- "$3" ||
        fail "$1: part $2 does not say $3: $(grep "\"part\": \"$2\"" "$scratch/$1/check.json" || cat "$scratch/$1.page")"
}

rehearse all --build "$build" --python "$scratch/bin/torch"
[ "$status" = 0 ] || fail "status $status: $(cat "$scratch/all.page")"
# The page has them in order; check.json as they end, since some run at the same time.
ran=$(sed -n 's/^## \([a-z]*\): .*/\1/p' "$scratch/all.page" | tr '\n' ' ')
[ "$ran" = "$PARTS " ] || fail "parts in another order: $ran"
for part in $PARTS; do
    # A figure with a number in it, marked as what it is.
    case $part in
    nccl) if ! [ -x "$build/tests/gpu/test_nccl_gpu_emulated" ]; then continue; fi ;;
    esac
    reports all "$part" '"result": "pass", "seconds": [0-9]+, "figure": "emulated: .*[0-9].*"emulated": true}'
done
reports all attention '"values": {"heads_64_own_forward_tflop_per_s": [0-9.]+,"heads_64_own_backward_tflop_per_s": [0-9.]+,"heads_64_warpgroup_forward'
reports all trainer '"values": {"tokens_per_s": [0-9]+,"mfu_percent": [0-9.]+,"own_mfu_percent": [0-9.]+,"cudnn_mfu_percent": [0-9.]+}'
reports all trainer 'attention own [0-9]+ tokens/s, MFU [0-9.]+ %'
reports all trainer 'attention cudnn [0-9]+ tokens/s, MFU [0-9.]+ %, attention by kernels of its own'
reports all choices '"default": [0-9]+,"own": [0-9]+,"cudnn": [0-9]+,"tuned": [0-9]+'
reports all choices 'default [0-9]+ tokens/s .*, attention by kernels of its own'
reports all choices '"graphs": [0-9]+,"small_default": [0-9.]+,"small_graphs": [0-9.]+'
reports all choices '3 passes of units as graphs'
reports all choices ' 1 fingerprint of the last two'
reports all compiled 'MFU 36.5 % by torch.compile, [0-9.]+ % ours'
reports all adam '"of_copy": [0-9.]+'
reports all profile 'default: 0.10 ms of kernels a step, 3 launches, of 1 steps; cudnn: 0.10 ms'
# Of parts of steps none is shown as a step.
for marks in '' '"1","embed_forward(int)","1,000"'; do
    printf '"ID","Kernel Name","gpu__time_duration.sum"\n"","","ns"\n"0","void rows(int)","9,000"\n%s\n"2","loss_finish(int)","1,000"\n' "$marks" >"$scratch/parts.csv"
    said=$(python3 "$(dirname "$0")/step_profile.py" "$scratch/parts.csv") && fail "a profile without a whole step passes"
    case $said in 'no whole step in '[23]' launches: '*) ;; *) fail "of a profile without a whole step: $said" ;; esac
done
# Any kernel that a step launches once shows a step: the window may begin after one and end before the other's second.
printf '"4","loss_finish(int)","1,000"\n' >>"$scratch/parts.csv"
said=$(python3 "$(dirname "$0")/step_profile.py" "$scratch/parts.csv" | tail -n 1)
[ "$said" = "0.00 ms of kernels a step, 1 launches, of 1 steps" ] || fail "of a profile with one step: $said"
reports all exposed '"exposed_percent": [0-9.]+'
reports all large '"offloaded_share": [0-9.]+'
reports all queued '774m 1x8 tokens/s waited [0-9]+, queued [0-9]+, without an update [0-9]+, of the limit [0-9.]+; *7b 1x8 tokens/s '
reports all queued '"774m_1x8": [0-9.]+,"7b_1x8": [0-9.]+'
reports all seven '"values": {"seven_64k": [0-9]+,"seven_512k": [0-9]+}'
reports all seven 'seven planned: device 0.1 MiB and .* of activations, host 0.3 MiB, drive 0.0 MiB, [0-9.e-]+ s a step; seven_64k [0-9]+ tokens/s, planned [1-9][0-9]*, '
reports all seven 'one fingerprint of two runs: 2 0x[0-9a-f]+'
reports all rivals '"values": {"ours": [0-9]+,"fsdp2": 40}'
reports all rivals 'ours 2 layers, .* ms a layer; fsdp2 .* 40 tokens/s, .*; deepspeed gave no step .*no pinned memory", "line": "at least 1.0 of fsdp2"'
reports all fourteen '"fourteen": [0-9]+,"deepest": [0-9]+,"deepest_layers": 3}'
# What is known of a part that runs for minutes is on the page before its end.
grep -q '^  seven_64k: step 5/5 ' "$scratch/all.page" || fail "the steps of a long part are not reported"
python3 -c 'import json, sys; [json.loads(line) for line in open(sys.argv[1])]' "$scratch/all/check.json" || fail "check.json is no JSON"
cmp -s "$scratch/all.page" "$scratch/all/page.md" || fail "the page that is kept is another"

# A part by itself leaves what others have found, and is held against it.
printf '{"part": "large", "kept": true}\n' >>"$scratch/all/check.json"
rehearse all --build "$build" --python "$scratch/bin/torch" --part compiled
[ "$status" = 0 ] || fail "status $status: $(cat "$scratch/all.page")"
reports all compiled 'MFU 36.5 % by torch.compile, [0-9.]+ % ours'
[ "$(grep -c '"part": "compiled"' "$scratch/all/check.json")" = 1 ] || fail "a part that ran again is reported twice"
grep -q '"kept": true' "$scratch/all/check.json" || fail "what an earlier call has found is gone"

# A build that lacks a program, and a part that fails: the others go on.
mkdir -p "$scratch/less/tests/cli" "$scratch/less/tests/gpu"
ln -s "$build/meson-info" "$scratch/less/meson-info"
ln -s "$build/libsherd.so" "$scratch/less/libsherd.so"
ln -s "$build/tests/cli/sherd_emulated_command" "$scratch/less/tests/cli/"
printf '#!/bin/sh\n[ "$1" = -c ] || exit 3\n' >"$scratch/bin/torch"
mkdir -p "$scratch/site/nvidia/cu13/include"
touch "$scratch/site/nvidia/cu13/include/cublasLt.h" "$scratch/site/nvidia/cu13/include/cuda_runtime.h"
mkdir -p "$scratch/site/nvidia/cudnn/include"
touch "$scratch/site/nvidia/cudnn/include/cudnn_backend.h" "$scratch/site/nvidia/cudnn/include/cudnn_version.h"
PYTHONPATH=$scratch/site rehearse less --build "$scratch/less" --part env,trainer,torch,proof --python "$scratch/bin/torch"
[ "$status" = 1 ] || fail "a part failed and the status is $status"
reports less env '"result": "pass"'
# Headers of wheels that the toolkit may lack are found, and no runtime of another version.
grep -q "wheels   cublasLt.h of cu13" "$scratch/less.page" || fail "cublasLt.h of a wheel is not found: $(cat "$scratch/less.page")"
[ "$(ls "$scratch/less/wheels" | tr '\n' ' ')" = "cublasLt.h cudnn_backend.h cudnn_version.h " ] || fail "of a wheel's headers: $(ls "$scratch/less/wheels")"
reports less trainer '"result": "not tested", .*"figure": "tests/trainer/sherd-llm-emulated was not built"'
reports less torch '"result": "FAIL: status 3"'
reports less proof '"result": "pass"'

# A choice that dies, and one that is fast and wrong: the part says which, and the others are measured.
mkdir -p "$scratch/odd/tests/trainer"
cat >"$scratch/odd/tests/trainer/sherd-llm-emulated" <<'SH'
#!/bin/sh
case "$*" in *"--attention own"*) echo "sherd-llm: no such attention" >&2 && exit 1 ;; esac
last=4.0
case "$*" in *--graphs*) last=4.2 ;; esac
while [ "$1" != --log ]; do shift; done
for step in 1 2 3 4 5 6; do echo "{\"tokens\": ${step}00, \"seconds\": 0.5}"; done >"$2"
echo "loss 5.0 -> $last"
SH
chmod +x "$scratch/odd/tests/trainer/sherd-llm-emulated"
rehearse odd --build "$scratch/odd" --part choices
reports odd choices '"result": "FAIL: status 1"'
reports odd choices 'default 200 tokens/s .*chosen own FAILED; cudnn 200 tokens/s [(]1.000[)]; tuned 200 tokens/s .*chosen graphs FAILED; small default'
reports odd choices 'chosen again FAILED; 0 fingerprint'
grep -q "the loss of choice_graphs is wrong: loss 5.0 -> 4.2, choice_default 4.0" "$scratch/odd.page" ||
    fail "a wrong loss is not reported: $(cat "$scratch/odd.page")"

# Nothing of a suite was built, neither a test nor the program that another one runs: the part says so.
mkdir -p "$scratch/bare/meson-info"
cat >"$scratch/bare/meson-info/intro-tests.json" <<'JSON'
[{"name": "a", "cmd": ["/nowhere/a"], "suite": ["a:rehearsal-kernels"], "depends": []},
 {"name": "b", "cmd": ["/bin/true", "program"], "suite": ["a:rehearsal-kernels"], "depends": ["p"]}]
JSON
printf '[{"id": "p", "filename": ["/nowhere/program"]}]\n' >"$scratch/bare/meson-info/intro-targets.json"
touch "$scratch/bare/libsherd.so"
mkdir -p "$scratch/carried/usr/lib/x86_64-linux-gnu"
printf '#!/bin/sh\n[ "$1" = -c ] || printf "Ran 1 test\\nlibraries %%s\\n" "$LD_LIBRARY_PATH"\n' >"$scratch/bin/torch"
rehearse none --build "$scratch/bare" --part kernels,torch --carried "$scratch/carried" --python "$scratch/bin/torch"
reports none kernels '"result": "not tested", .*"figure": "0 passed, 2 not built"'
# PyTorch's process, which loads libsherd.so, finds what was carried.
reports none torch "libraries [^ ]*$scratch/carried/usr/lib/x86_64-linux-gnu"

# A test that hangs is ended before its part is, and what has no turn says so.
mkdir -p "$scratch/hung/meson-info"
for name in first second; do
    printf '{"name": "%s", "cmd": ["/bin/sleep", "60"], "suite": ["a:gpu-x"], "timeout": 30, "workdir": null, "env": {}, "depends": []}\n' "$name"
done | paste -sd, | sed 's/.*/[&]/' >"$scratch/hung/meson-info/intro-tests.json"
echo '[]' >"$scratch/hung/meson-info/intro-targets.json"
status=0
python3 "$(dirname "$0")/suite.py" "$scratch/hung" gpu-x --seconds 0.5 >"$scratch/hung.said" || status=$?
[ "$status" = 1 ] || fail "a test that hangs gives $status"
grep -q '^0 passed, 1 failed, 1 not run$' "$scratch/hung.said" || fail "a test that hangs: $(cat "$scratch/hung.said")"

# The libraries that were carried stay beside those of the build, and no test binds its threads to the CPUs of another one.
mkdir -p "$scratch/found/meson-info"
cat >"$scratch/found/meson-info/intro-tests.json" <<'JSON'
[{"name": "a", "cmd": ["/bin/sh", "-c", "echo \"skipped: $LD_LIBRARY_PATH $SHERD_CPU_BIND\"; exit 77"], "suite": ["a:gpu-x"],
  "timeout": 30, "workdir": null, "env": {"LD_LIBRARY_PATH": "/of/build/"}, "depends": []}]
JSON
echo '[]' >"$scratch/found/meson-info/intro-targets.json"
(
    unset SHERD_CPU_BIND
    LD_LIBRARY_PATH=/carried python3 "$(dirname "$0")/suite.py" "$scratch/found" gpu-x >"$scratch/found.said" || true
)
grep -q '^skipped: /of/build/:/carried none$' "$scratch/found.said" || fail "libraries of a test: $(cat "$scratch/found.said")"

# Without the profiler the part is not tested, which is no failure.
PATH=$(printf '%s' "$PATH" | sed "s#$scratch/bin:##") rehearse unprofiled --build "$build" --part profile
[ "$status" = 0 ] || fail "a profile without ncu gives $status"
reports unprofiled profile '"result": "not tested", .*"figure": "ncu is not installed"'
rehearse wrong --part ""
[ "$status" = 2 ] || fail "an empty list of parts gives $status"

# No time: said, and no failure of what did not run.
rehearse late --build "$build" --part env,large --limit 5
[ "$status" = 0 ] || fail "no time gives $status"
reports late large '"result": "not run"'
# A part that had less time than it wants, and was cut off, has not failed by itself.
printf '#!/bin/sh\nsleep 60\n' >"$scratch/odd/tests/trainer/sherd-llm-emulated"
rehearse cut --build "$scratch/odd" --part trainer --limit 13
[ "$status" = 1 ] || fail "a part that was cut off gives $status"
reports cut trainer '"result": "not finished: [0-9]+ s were left"'
rehearse wrong --part nothing
[ "$status" = 2 ] || fail "a part that is not there gives $status"

[ $failed = 0 ] && echo "check.sh rehearses"
exit $failed

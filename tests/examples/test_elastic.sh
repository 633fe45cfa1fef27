#!/bin/sh
# Processes come, leave and die while the example trains: the model is that of one process. test_elastic.sh ELASTIC SHERD.
set -eu
elastic=$(realpath "$1")
sherd=$(realpath "$2")
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
export TMPDIR="$scratch" OMP_NUM_THREADS=1 SHERD_THREADS=1

steps=4000
want=$("$elastic" $steps)
"$sherd" launch -n 3 --elastic 2:4 --deaths 1000 "$elastic" $steps >"$scratch/out" 2>"$scratch/err" &
launcher=$!
changes=0
until ls "$scratch"/sherd-launch-*/trains-2 >"$scratch/begun" 2>&1; do # a death before that ends the job
    kill -0 $launcher || break
    sleep 0.02
done
while kill -0 $launcher 2>/dev/null; do
    children=$(cat /proc/$launcher/task/$launcher/children 2>/dev/null || true)
    # shellcheck disable=SC2086
    set -- $children
    if [ $# -ge 3 ]; then
        case $((changes % 3)) in
        0) kill -KILL "$1" 2>/dev/null || true ;;
        1) kill -TTIN $launcher 2>/dev/null || true ;;
        2) kill -TTOU $launcher 2>/dev/null || true ;;
        esac
        changes=$((changes + 1))
    fi
    sleep 0.1
done
wait $launcher || {
    cat "$scratch/err"
    exit 1
}
got=$(cat "$scratch/out")
if [ "$want" != "$got" ] || ! grep -q "was ended by signal 9 (Killed): [0-9]* ranks go on, and it is started again" "$scratch/err"; then
    echo "wanted $want, got $got; $changes changes:"
    cat "$scratch/err"
    exit 1
fi
echo "$changes changes, $got"

#!/bin/sh
# sherd test's folder on a drive: test_proof.sh SHERD. What the rows say is sherd test's own verdict; here: it
# leaves nothing behind, finds another place, says why it skips.
set -eu
sherd=$(realpath "$1")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
mkdir "$scratch/drive" "$scratch/here"
cd "$scratch/here"

fail() {
    echo "not ok: $*"
    cat "$scratch/out"
    failed=1
}
# says TEXT, empty FOLDER WHEN
says() {
    grep -qF -- "$1" "$scratch/out" || fail "no '$1'"
}
empty() {
    [ -z "$(ls -A "$1")" ] || fail "$2 leaves $(ls -A "$1")"
}

# A clean end, in a folder whose name has to be written carefully.
odd="$scratch/drive/a \"folder\""
mkdir "$odd"
"$sherd" test --optimizer adamw -n 1 --nvme-path "$odd" >"$scratch/out" 2>&1 || fail "sherd test fails"
says "PASS: "
says "deterministic bf16, 1 rank: optimizer on cpu"
empty "$odd" "a clean end"
rmdir "$odd"

# Mistakes.
status=0
"$sherd" test --nvme-path "$scratch/nowhere" >"$scratch/out" 2>&1 || status=$?
[ "$status" = 1 ] || fail "a folder that is not there gives $status"
says "--nvme-path: $scratch/nowhere: No such file or directory"
if [ "$(id -u)" != 0 ]; then
    chmod 500 "$scratch/here"
    status=0
    "$sherd" test --nvme-path . >"$scratch/out" 2>&1 || status=$?
    [ "$status" = 1 ] || fail "a folder that cannot be written to gives $status"
    says "no folder can be made in .: Permission denied"
    TMPDIR=$scratch/drive "$sherd" test --optimizer adamw -n 1 >"$scratch/out" 2>&1 || fail "no other folder is taken"
    chmod 700 "$scratch/here"
fi

# No room is no failure.
(
    ulimit -f 1000
    "$sherd" test --optimizer adamw -n 1 >"$scratch/out" 2>&1
) || fail "a limit on the size of files fails"
says "skipped: files may have"
says " skipped"
empty "$scratch/here" "a run without room"

# Interrupted.
"$sherd" test --optimizer adamw --nvme-path "$scratch/drive" >"$scratch/out" 2>&1 &
pid=$!
until [ -n "$(ls -A "$scratch/drive")" ]; do
    kill -0 "$pid" || break
    sleep 0.01
done
kill -TERM "$pid"
status=0
wait "$pid" || status=$?
[ "$status" = 143 ] || fail "a signal ends with $status"
empty "$scratch/drive" "a signal"

[ $failed = 0 ] && echo "sherd test cleans up"
exit $failed

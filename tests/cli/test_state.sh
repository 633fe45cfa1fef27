#!/bin/sh
# sherd state, on real files: test_state.sh SHERD MAKE_STATE.
set -eu
sherd=$1
make_state=$2
subcommand=state
. "$(dirname "$0")/lib.sh"
one=$scratch/one
two=$scratch/two
mkdir "$one" "$two"

# silent out|err TEXT
silent() {
    if grep -qF -- "$2" "$scratch/$1"; then
        echo "not ok: '$2' in"
        cat "$scratch/$1"
        failed=1
    fi
}
# same WANT GOT WHAT
same() {
    if [ "$1" != "$2" ]; then
        echo "not ok: $3: $2, not $1"
        failed=1
    fi
}
files() {
    find "$one" "$two" -name '*.state*' | wc -l | tr -d ' '
}

# A build without checksums has no state files.
if ! "$sherd" state list "$one" >/dev/null 2>"$scratch/err" && grep -q libxxhash "$scratch/err"; then
    cat "$scratch/err"
    exit 77
fi

# Nothing there.
run 0 list "$one"
says out "no state files"
run 0 list "$one" --json
says out '{"runs": []}'
run 0 remove "$one" --all --yes
says out "no state files"
run 1 list "$scratch/nowhere"
says err "$scratch/nowhere"

# Mistakes.
run 2
says err "usage: sherd state list"
run 2 show "$one"
says err "'show' is neither list nor remove"
run 2 list
says err "list wants a folder"
run 2 remove "$one"
says err "either --run HEX or --all"
run 2 remove "$one" --run ab --all
says err "either --run HEX or --all"
run 2 remove "$one" --run xyz
says err "--run wants a run as list shows it, not 'xyz'"
run 2 remove "$one" --all --json
run 2 list "$one" --all
says err "list takes no option but --json"
run 2 list "$one" --everything
run 0 --help
says out "--run HEX"

# Two ranks in two folders, one step apart; a rank alone; two that are too far apart; one without a commit.
"$make_state" "$one" ab 0 2 3
"$make_state" "$two" ab 1 2 4
"$make_state" "$one" cd 1 12 5
"$make_state" "$one" ef 0 2 1
"$make_state" "$one" ef 1 2 3
"$make_state" "$one" f0 0 1 0
run 0 list "$one" "$two" "$one/"
says out "run 00000000000000ab: resumable, 2 of 2 ranks"
says out "run 00000000000000cd: incomplete, 1 of 12 ranks"
says out "; no file of rank 0, 2, 3, 4, 5, 6, 7, 8 and 3 more"
says out "run 00000000000000ef: apart, 2 of 2 ranks"
says out "run 00000000000000f0: empty, 1 of 1 ranks"
same 2 "$(grep -c 0of2.state "$scratch/out")" "ranks 0 of 2, with a folder given twice"
same 1 "$(grep -cE "^ +1 +4 .* whole +$two/sherd-00000000000000ab-1of2.state" "$scratch/out")" "rank 1 at step 4"
run 0 list "$one"
says out "run 00000000000000ab: incomplete, 1 of 2 ranks"
says out "; no file of rank 1"
run 0 list "$one" "$two" --json
says out '{"run": "00000000000000ab", "state": "resumable", "world_size": 2, "ranks": 2, '
says out '{"rank": 1, "path": "'"$two"'/sherd-00000000000000ab-1of2.state", "state": "whole", "step": 4, '
says out '"step": -1, "generation": 0, '
if command -v python3 >/dev/null; then
    same 4 "$(python3 -c 'import json, sys; print(len(json.load(sys.stdin)["runs"]))' <"$scratch/out")" "runs in JSON"
fi

# A damaged index is no reason to fail, or to keep the file.
"$make_state" "$two" d0 0 1 2
damaged=$two/sherd-00000000000000d0-0of1.state
dd if=/dev/zero of="$damaged" bs=4096 count="$(($(wc -c <"$damaged") / 4096))" conv=notrunc 2>/dev/null
run 0 list "$two"
says out "run 00000000000000d0: damaged, 1 of 1 ranks"
run 0 remove "$two" --run d0 --yes
says out "removed 1 file,"
same 0 "$(find "$two" -name '*-00000000000000d0-*' | wc -l)" "damaged files"

# A file that somebody has open stays.
mkfifo "$scratch/hold" "$scratch/held"
"$make_state" "$one" aa 0 2 2
"$make_state" "$two" aa 1 2 2 hold <"$scratch/hold" >"$scratch/held" &
exec 3>"$scratch/hold"
read -r _ <"$scratch/held"
run 0 list "$one" "$two"
says out "run 00000000000000aa: in use, 2 of 2 ranks"
before=$(files)
run 1 remove "$one" "$two" --run aa --yes
says err "run 00000000000000aa is in use and stays"
same "$before" "$(files)" "files beside one in use"

# Without a terminal nothing is removed unless it is said so; another run is none.
run 2 remove "$one" "$two" --run ab
says out "run 00000000000000ab: resumable"
says err "without a terminal it takes --yes"
same "$before" "$(files)" "files without a yes"
run 1 remove "$one" "$two" --run 123 --yes
says err "no state files of run 0000000000000123"
same "$before" "$(files)" "files when another run is named"

# One run, then all but the one in use, then that too.
run 0 remove "$one" "$two" --run 00000000000000AB --yes
says out "removed 2 files,"
run 0 list "$one" "$two"
silent out 00000000000000ab
run 1 remove "$one" "$two" --all --yes
says out "removed 4 files,"
silent out 00000000000000aa
says err "run 00000000000000aa is in use and stays"
exec 3>&-
wait
run 0 remove "$one" "$two" --all --yes
says out "removed 2 files,"
same 0 "$(files)" "files after all"

# On a terminal it asks.
if command -v script >/dev/null && script -qec true /dev/null </dev/null >/dev/null 2>&1; then
    "$make_state" "$one" ab 0 1 1
    echo n | script -qec "$sherd state remove $one --all" /dev/null >"$scratch/out" 2>&1 || true
    says out "remove 1 file, "
    says out "nothing is removed"
    same 1 "$(files)" "files after a no"
    echo y | script -qec "$sherd state remove $one --all" /dev/null >"$scratch/out" 2>&1 || true
    says out "removed 1 file, "
    same 0 "$(files)" "files after a yes"
fi

[ $failed = 0 ] && echo "sherd state lists and removes"
exit $failed

# For the tests of the sherd command, sourced: `sherd` is the program, `subcommand` what it is asked to do. Makes a
# folder of the test's own, $scratch, which goes with it, and counts in $failed.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0

# run STATUS ARGS: the command's exit status; its output in $scratch/out and $scratch/err.
run() {
    want=$1
    shift
    status=0
    "$sherd" "$subcommand" "$@" >"$scratch/out" 2>"$scratch/err" </dev/null || status=$?
    if [ "$status" != "$want" ]; then
        echo "not ok: sherd $subcommand $* gives $status, not $want"
        cat "$scratch/out" "$scratch/err"
        failed=1
    fi
}
# says out|err TEXT
says() {
    if ! grep -qF -- "$2" "$scratch/$1"; then
        echo "not ok: no '$2' in"
        cat "$scratch/$1"
        failed=1
    fi
}

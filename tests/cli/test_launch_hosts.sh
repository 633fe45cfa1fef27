#!/bin/sh
# sherd launch on two hosts that are network namespaces: test_launch_hosts.sh SHERD MINIMAL.
set -u
sherd=$(realpath "$1")
minimal=$(realpath "$2")
. "$(dirname "$0")/../hosts.sh"
hosts_make 2
first=$(echo "$hosts" | cut -d ' ' -f 1)
second=$(echo "$hosts" | cut -d ' ' -f 2)
failed=0

# launched STATUS ARGS: from the first host, with the agent as ssh; its output in $dir/out and $dir/err.
launched() {
    want=$1
    shift
    status=0
    SHERD_SSH=$dir/agent timeout -k 2 60 ip netns exec "$first" unshare --uts --mount sh -c \
        'mount --bind "$0/hosts" /etc/hosts; hostname "$1"; shift; exec "$@"' "$dir" "$first" "$sherd" launch "$@" \
        >"$dir/out" 2>"$dir/err" </dev/null || status=$?
    if [ "$status" != "$want" ]; then
        echo "not ok: sherd launch $* gives $status, not $want"
        cat "$dir/out" "$dir/err"
        failed=1
    fi
}
# says out|err TEXT
says() {
    if ! grep -qF -- "$2" "$dir/$1"; then
        echo "not ok: no '$2' in"
        cat "$dir/$1"
        failed=1
    fi
}

# ends LINE: the last line of the errors.
ends() {
    if [ "$(tail -n 1 "$dir/err")" != "$1" ]; then
        echo "not ok: the last line is not '$1'"
        cat "$dir/err"
        failed=1
    fi
}

# Parts through ssh: numbers, one secret, the variables, quotes, and the rank before each line.
OMP_NUM_THREADS=3 launched 0 --hosts "$first:2,$second:3" --starter ssh sh -c \
    'echo "$SHERD_RANK of $SHERD_WORLD_SIZE on $(hostname), $OMP_NUM_THREADS threads, secret $SHERD_JOB_SECRET: $*"' name "it's" 'a  b'
says out "[0] 0 of 5 on $first, 3 threads, secret "
says out "[4] 4 of 5 on $second, 3 threads, secret "
says out ": it's a  b"
if [ "$(sed 's/.*secret \([0-9a-f]*\):.*/\1/' "$dir/out" | sort -u | grep -c '^[0-9a-f]\{32\}$')" != 1 ]; then
    echo "not ok: the ranks have no common secret"
    cat "$dir/out"
    failed=1
fi
launched 0 --hosts "$first:1,$second:1" --starter ssh --dry-run true
says out "$dir/agent $second "

# Files of hosts, as people and other programs write them.
hostfile() {
    printf "$2" >"$dir/hostfile"
    launched "$1" --hostfile "$dir/hostfile" --starter ssh --dry-run true
}
hostfile 0 '\357\273\277node1 max_slots=4 slots=3\r\nnode2:2 # two\n\nnode3\n'
says out "$dir/agent node1 "
says out "--part 0:3:6 "
says out "--part 3:2:6 "
says out "--part 5:1:6 "
for line in 'a slots = 2' 'a slots=2 b slots=2' 'a:2 slots=3' 'fe80::1 slots=2' 'a slots=0'; do
    hostfile 2 "node1\n$line\n"
    says err "that is line 2 of $dir/hostfile"
done
launched 0 --hosts "someone@node1:2,node2:2" --starter ssh --dry-run true
says out "$dir/agent someone@node1 "
says out "tcp://node1:"
launched 2 --hosts "node1:8,node2:8" -n 10 --starter srun --dry-run true
says err "srun starts as many ranks on each host"
launched 0 --hosts "$first:1,$second:1" --starter ssh --no-prefix echo alone
says out "alone"
if grep -q '\[' "$dir/out"; then
    echo "not ok: --no-prefix prints ranks"
    failed=1
fi

# The ranks meet; between hosts without MPI and NCCL no data can move, and the message says so.
SHERD_NCCL_LIBRARY=/nonexistent launched 1 --hosts "$first:1,$second:1" --starter ssh "$minimal"
says err "between hosts use transport mpi"

# One fails: the others are ended, and the last lines are those of the one that failed first.
launched 7 --hosts "$first:2,$second:2" --starter ssh --grace 0 sh -c \
    '[ "$SHERD_RANK" = 3 ] && { echo "rank 3 has no luck" >&2; exit 7; }; sleep 1000'
says err "rank 3 on $second ended with status 7"
ends "[3] rank 3 has no luck"
launched 127 --hosts "$first:1,$second:1" --starter ssh "$dir/no-program"
says err "no-program cannot be run"
launched 255 --hosts "$first:1,other:1" --starter ssh sleep 1000
says err "the part on other ended with status 255: there is no connection to the host"

# waits TEXT COUNT: until so many lines of $dir/out have the text.
waits() {
    tries=0
    until [ "$(grep -cF -- "$1" "$dir/out")" = "$2" ] || [ $tries = 400 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
}
# begun ARGS: a launch that goes on; its number is in $launcher.
begun() {
    SHERD_SSH=$dir/agent setsid ip netns exec "$first" unshare --uts --mount sh -c \
        'mount --bind "$0/hosts" /etc/hosts; hostname "$1"; shift; exec "$@"' "$dir" "$first" "$sherd" launch "$@" \
        >"$dir/out" 2>"$dir/err" </dev/null &
    launcher=$!
}
# A signal goes to the ranks of all hosts.
begun --hosts "$first:1,$second:2" --starter ssh sh -c 'trap "echo ended; exit 9" USR1; echo ready; while :; do sleep 0.1; done'
waits ready 3
kill -USR1 $launcher
status=0
wait $launcher || status=$?
if [ "$status" != 9 ] || [ "$(grep -c ended "$dir/out")" != 3 ]; then
    echo "not ok: a signal ends three ranks with $status, and $(grep -c ended "$dir/out") of them took it"
    failed=1
fi
# So does an interrupt of the terminal, which ssh itself gets too.
begun --hosts "$first:1,$second:2" --starter ssh sh -c 'trap "echo ended; exit 9" INT; echo ready; while :; do sleep 0.1; done'
waits ready 3
kill -INT -$launcher
status=0
wait $launcher || status=$?
if [ "$status" != 9 ] || [ "$(grep -c ended "$dir/out")" != 3 ]; then
    echo "not ok: an interrupt ends three ranks with $status, and $(grep -c ended "$dir/out") of them took it"
    failed=1
fi
# The launcher dies: the ranks of all hosts end. So do those whose connection is lost.
begun --hosts "$first:1,$second:1" --starter ssh sh -c 'echo ready; exec sleep 1000'
waits ready 2
kill -KILL $launcher
wait $launcher 2>/dev/null
tries=0
while ip netns pids "$second" | xargs -r ps -o args= -p 2>/dev/null | grep -q "sleep 1000" && [ $tries -lt 200 ]; do
    sleep 0.05
    tries=$((tries + 1))
done
if [ $tries = 200 ]; then
    echo "not ok: ranks of the other host outlive the launcher"
    failed=1
fi

# mpirun: the same ranks, and data moves.
if command -v mpirun >/dev/null && "$sherd" env | grep -q "^mpi: Open MPI"; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    launched 0 --hosts "$first:2,$second:1" --starter mpirun --starter-args "--oversubscribe $mpi_parameters" "$minimal"
    says out "[0] rank 0 of 3: y = 3.00 x + 1.00"
    says out "[2] rank 2 of 3: y = 3.00 x + 1.00"
    launched 7 --hosts "$first:1,$second:1" --starter mpirun --starter-args "--oversubscribe $mpi_parameters" sh -c \
        '[ "$OMPI_COMM_WORLD_RANK" = 1 ] && { echo "rank 1 has no luck" >&2; exit 7; }; sleep 1000'
    says err "rank 1 on $second ended with status 7"
    ends "[1] rank 1 has no luck"
fi
[ $failed = 0 ] && echo "sherd launch starts, tells and ends on two hosts"
exit $failed

#!/bin/sh
# Jobs on two hosts that lose something: starts.sh STARTS [COUNT [SEED [SLACK_MS]]]. Each job has two ranks a host. At a random moment a rank is
# killed, or stopped, or the link between the hosts goes down. Every other rank must end, with a message that names who is lost: 5 seconds
# after a kill; else after the limit of silence, which is 5 seconds here, and 5 more.
# Open MPI 4 ends a rank at once whose message to the lost one was on its way. Such a rank has no message, and others may name it; the last
# line counts them. mpirun or another rank must name the one that was killed. One start in four loses a rank before all have met. MPI's own start then never returns, so there mpirun alone ends the
# ranks, and names the one that is lost.
program=$(realpath "$1")
count=${2:-6}
seed=${3:-1}
slack=${4:-0} # milliseconds more, for a machine that does other work
. "$(dirname "$0")/../hosts.sh"
command -v mpirun >/dev/null || { echo "skipped: no mpirun command"; exit 77; }
hosts_make 2
a=$(echo "$hosts" | cut -d ' ' -f 1)
b=$(echo "$hosts" | cut -d ' ' -f 2)
limit=5 # seconds of silence
failed=0
ended=0 # ranks that MPI has ended
most=0
at_once="--mca odls_base_sigkill_timeout 0" # else mpirun takes seconds to end ranks that cannot end by themselves
case $mpi_parameters in *--with-ft*) at_once="--prtemca odls_base_sigkill_timeout 0" ;; esac

# now: milliseconds.
now() { date +%s%3N; }

# draw MOST: a number below it, of the start's own.
draw() {
    state=$(((state * 1103515245 + 12345) % 2147483648))
    echo $((state / 65536 % $1))
}

# others_alive VICTIM: whether a rank other than it runs.
others_alive() {
    for r in 0 1 2 3; do
        if [ "$r" != "$1" ] && [ -e "$files/$r.pid" ] && [ ! -e "$files/$r.end" ] && kill -0 "$(cat "$files/$r.pid")" 2>/dev/null; then
            return 0
        fi
    done
    return 1
}

# by_mpi RANK: whether MPI has ended the rank, so that it left no message.
by_mpi() {
    case $what in 0 | 1) [ "$1" != "$victim" ] && [ ! -e "$files/$1.end" ] ;; *) false ;; esac
}

# rank_check RANK: changes the verdict if the rank did not name who is lost.
rank_check() {
    case $what,$1 in
    3,0 | 3,1) lost="rank [23]\|host" ;;
    3,*) lost="rank [01]\|host" ;;
    2,*) lost="rank [0-3]" ;; # of ranks that wait for one another, the one that a rank waits for
    *) lost="rank $victim" ;;
    esac
    grep -q "$lost" "$files/$1.end" 2>/dev/null && return
    if by_mpi "$1"; then
        ended=$((ended + 1))
        return
    fi
    for other in 0 1 2 3; do
        by_mpi $other && grep -q "rank $other is lost" "$files/$1.end" 2>/dev/null && return
    done
    verdict="not ok: rank $1 says: $(cat "$files/$1.end" 2>/dev/null || echo nothing)"
}

# one NUMBER: one start.
one() {
    state=$1
    draw 2 >/dev/null
    what=$(draw 4)
    victim=$(draw 4)
    moment=$(draw 3000)
    how=
    [ "$(draw 4)" = 0 ] && how=$at_once && what=early
    call=60 # most seconds of a call, longer than a silence
    [ "$what" = 2 ] && call=$limit
    files=$dir/start
    rm -rf "$files"
    mkdir "$files"
    "$dir/agent" "$a" "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 SHERD_THREADS=1 SHERD_HOST_TIMEOUT=$limit exec timeout -k 2 60 \
        mpirun --oversubscribe $how $mpi_parameters --host $a:2,$b:2 --map-by slot -n 4 -x SHERD_THREADS -x SHERD_HOST_TIMEOUT \
        $program $files $1 $call" >"$dir/log" 2>&1 &
    mpirun=$!
    tries=0
    while [ $tries -lt 400 ]; do
        [ "$(ls "$files" | grep -c 'met$')" = 4 ] && break
        [ $what = early ] && [ -e "$files/$victim.pid" ] && moment=$((moment % 300)) && break
        sleep 0.05
        tries=$((tries + 1))
    done
    sleep "$((moment / 1000)).$(printf %03d $((moment % 1000)))"
    met=$(ls "$files" | grep -c 'met$')
    begin=$(now)
    case $what in
    0 | 1 | early) name="rank $victim is killed" && kill -9 "$(cat "$files/$victim.pid")" && within=5000 ;;
    2) name="rank $victim is stopped" && kill -STOP "$(cat "$files/$victim.pid")" && within=$((limit * 1000 + 5000)) ;;
    3) name="the link is cut" && victim=none && hosts_link "$b" down && within=$((limit * 1000 + 5000)) ;;
    esac
    within=$((within + slack))
    while others_alive "$victim" && [ $(($(now) - begin)) -lt $((within + 3000)) ]; do sleep 0.05; done
    took=$(($(now) - begin))
    [ $took -gt $most ] && most=$took
    verdict=ok
    [ $took -gt $within ] && verdict="not ok: other ranks live longer than $within ms"
    case $what in
    0 | 1 | early)
        tries=0
        while kill -0 $mpirun 2>/dev/null && [ $tries -lt 100 ]; do sleep 0.05; tries=$((tries + 1)); done
        cat "$dir/log" "$files"/*.end 2>/dev/null | grep -q "rank $victim\b" || verdict="not ok: nobody names the rank"
        ;;
    esac
    for r in 0 1 2 3; do
        [ $what != early ] && [ $r != "$victim" ] && rank_check $r
    done
    ip netns pids "$a" | xargs -r kill -9 2>/dev/null
    ip netns pids "$b" | xargs -r kill -9 2>/dev/null
    [ "$what" = 3 ] && hosts_link "$b" up
    wait $mpirun 2>/dev/null
    echo "start $1: $name after $moment ms, $met of 4 had met: $took ms: $verdict"
    [ "$verdict" = ok ] || { failed=$((failed + 1)); [ -n "$SHERD_STARTS_LOG" ] && cat "$dir/log" "$files"/*.end; }
}

number=$seed
while [ $number -lt $((seed + count)) ]; do
    one $number
    number=$((number + 1))
done
echo "$count starts, $failed failed; the slowest end took $most ms; MPI ended $ended ranks"
[ $failed = 0 ]

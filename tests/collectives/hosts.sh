#!/bin/sh
# Runs the parts of a test program on two hosts that are network namespaces of this one, with
# MPI over TCP between them: hosts.sh PROGRAM. Exits 77 where that cannot be made.
program=$1
. "$(dirname "$0")/../hosts.sh"
hosts_make 2
a=$(echo "$hosts" | cut -d ' ' -f 1)
b=$(echo "$hosts" | cut -d ' ' -f 2)
command -v mpirun >/dev/null || skip "no mpirun command"

# run COUNT PART KILLED MAPPING [HOSTS]: every rank must leave its file but the killed one.
run() {
    results=$dir/$2-$1-$4
    "$dir/agent" $a "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        SHERD_TEST_RESULTS=$results timeout -k 2 100 mpirun --oversubscribe \
        --enable-recovery $mpi_parameters \
        --host ${5:-$a:4,$b:4} --map-by $4 -n $1 -x SHERD_TEST_RESULTS \
        $program --part $2" >"$dir/log" 2>&1
    rank=0
    while [ $rank -lt "$1" ]; do
        if [ $rank != "$3" ] && [ ! -e "$results.rank$rank" ]; then
            cat "$dir/log"
            echo "FAIL $2: rank $rank of $1 by $4 did not pass"
            exit 1
        fi
        rank=$((rank + 1))
    done
    echo "ok   $2 with $1 ranks by $4"
}

# link PART TIMEOUT [BACK_S]: the link between the hosts goes down while both ranks wait for each other; after BACK_S seconds it comes
# back. mpirun itself may wait for ever then.
link() {
    results=$dir/$1
    "$dir/agent" $a "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 SHERD_TEST_RESULTS=$results SHERD_HOST_TIMEOUT=$2 \
        SHERD_TEST_READY=$results.ready exec timeout -k 2 60 mpirun --enable-recovery $mpi_parameters \
        --host $a:1,$b:1 --map-by node -n 2 -x SHERD_TEST_RESULTS -x SHERD_TEST_READY \
        -x SHERD_HOST_TIMEOUT $program --part $1" >"$dir/log" 2>&1 &
    mpirun=$!
    tries=0
    while [ ! -e "$results.ready" ] && [ $tries -lt 600 ]; do sleep 0.05; tries=$((tries + 1)); done
    hosts_link $a down
    if [ -n "$3" ]; then
        sleep "$3"
        hosts_link $a up
        : >"$results.ready.back"
    fi
    while { [ ! -e "$results.rank0" ] || [ ! -e "$results.rank1" ]; } && kill -0 $mpirun 2>/dev/null; do sleep 0.05; done
    if [ ! -e "$results.rank0" ] || [ ! -e "$results.rank1" ]; then
        cat "$dir/log"
        echo "FAIL $1"
        exit 1
    fi
    ip netns pids $a | xargs -r kill -9 2>/dev/null
    ip netns pids $b | xargs -r kill -9 2>/dev/null
    wait $mpirun 2>/dev/null
    echo "ok   $1"
}

run 2 part_suite -1 node
run 3 part_suite -1 node
run 4 part_suite -1 slot
run 4 part_suite -1 slot $a:3,$b:1
run 3 part_killed_in_barrier 2 node
run 3 part_aborts -1 node
run 3 part_first_leaves_early -1 node
# the empty limit is the default: longer than these seconds of silence
link part_link_comes_back "" 6
link part_link_goes_down 4

#!/bin/sh
# Random layouts on two and three hosts, with equal and different numbers of ranks: launched.sh LAUNCHED [COUNT]. Every rank
# compares each with its twin, which has no engine, so the bits are those of every other layout.
program=$(realpath "$1")
count=${2:-60}
. "$(dirname "$0")/../hosts.sh"
command -v mpirun >/dev/null || { echo "skipped: no mpirun command"; exit 77; }
hosts_make 3
a=$(echo "$hosts" | cut -d ' ' -f 1)
b=$(echo "$hosts" | cut -d ' ' -f 2)
c=$(echo "$hosts" | cut -d ' ' -f 3)

# run RANKS HOSTS SEED
run() {
    mkdir "$dir/files"
    if ! "$dir/agent" "$a" "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 SHERD_THREADS=1 timeout -k 2 500 mpirun --oversubscribe \
        $mpi_parameters --host $2 --map-by slot -n $1 $program $dir/files $3 $count" >"$dir/log" 2>&1 ||
        [ "$(grep -c 'agree with their twins: yes' "$dir/log")" != "$1" ]; then
        cat "$dir/log"
        echo "FAIL: $1 ranks on $2"
        exit 1
    fi
    rm -rf "$dir/files"
    echo "ok   $1 ranks on $2: $(grep -c '^ok' "$dir/log") layouts of ranks"
}

run 4 "$a:2,$b:2" 1
run 8 "$a:5,$b:3" 1
run 8 "$a:4,$b:4" 61
run 7 "$a:4,$b:2,$c:1" 1
run 3 "$a:1,$b:1,$c:1" 1

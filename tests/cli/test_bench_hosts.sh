#!/bin/sh
# sherd bench on two hosts that are network namespaces, over MPI: test_bench_hosts.sh SHERD LOAD_RATES. The rate between hosts is measured where
# there are several, and a plan takes it.
set -u
sherd=$(realpath "$1")
load=$(realpath "$2")
. "$(dirname "$0")/../hosts.sh"
command -v mpirun >/dev/null || skip "no mpirun command"
hosts_make 2
a=$(echo "$hosts" | cut -d ' ' -f 1)
b=$(echo "$hosts" | cut -d ' ' -f 2)

fail() {
    echo "not ok: $1"
    cat "$dir/log"
    exit 1
}

# measure RANKS HOSTS MAPPING FILE
measure() {
    "$dir/agent" "$a" "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 SHERD_THREADS=1 timeout -k 2 60 mpirun --oversubscribe \
        $mpi_parameters --host $2 --map-by $3 -n $1 $sherd bench --size 64K --rounds 2 --out $dir/$4" >"$dir/log" 2>&1
}

measure 4 "$a:2,$b:2" slot even.json || fail "two hosts with two ranks each"
grep -q "^between " "$dir/log" || fail "no line of the rate between hosts"
grep -q "^4 ranks, 2 to a host, by mpi" "$dir/log" || fail "other ranks"
"$load" cpu "$dir/even.json" wire between down up device host products || fail "the file of rates"
measure 3 "$a:2,$b:1" slot uneven.json || fail "hosts with other numbers of ranks"
"$load" cpu "$dir/uneven.json" wire between down up device host products || fail "the file of rates of uneven hosts"
measure 2 "$a:1,$b:1" slot single.json || fail "a rank on each host"
"$load" cpu "$dir/single.json" between down up device host products || fail "nothing goes over the wire inside a host of one rank"
measure 2 "$a:2" slot one.json || fail "one host"
"$load" cpu "$dir/one.json" wire down up device host products || fail "there is nothing between one host"
measure 4 "$a:2,$b:2" node cyclic.json && fail "ranks that do not follow one another"
grep -q "the ranks of a host do not follow one another: start them host by host" "$dir/log" || fail "no reason"
"$sherd" plan --params 10M --world 4 --ranks-per-host 2 --rates "$dir/even.json" >"$dir/log" 2>&1 || fail "a plan with these rates"
grep -q "between .*/s measured" "$dir/log" || fail "the plan has another rate"
echo "ok   the rate between hosts"

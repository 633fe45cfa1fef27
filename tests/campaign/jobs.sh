#!/bin/sh
# Jobs on hosts: two at once on the same two hosts; one on eight hosts; one whose hosts have other configurations: jobs.sh LAUNCHED STARTS.
launched=$(realpath "$1")
starts=$(realpath "$2")
. "$(dirname "$0")/../hosts.sh"
command -v mpirun >/dev/null || { echo "skipped: no mpirun command"; exit 77; }
hosts_make 8
a=$(echo "$hosts" | cut -d ' ' -f 1)
b=$(echo "$hosts" | cut -d ' ' -f 2)
failed=0

# job LOG ARGS: mpirun on the first host.
job() {
    log=$1
    shift
    "$dir/agent" "$a" "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 SHERD_THREADS=1 timeout -k 2 200 mpirun --oversubscribe \
        $mpi_parameters --map-by slot $*" >"$log" 2>&1
}

# agree LOG RANKS NAME: all ranks say that their layouts agree with their twins.
agree() {
    if [ "$(grep -c 'agree with their twins: yes' "$1")" = "$2" ]; then
        echo "ok   $3"
    else
        cat "$1"
        echo "FAIL $3"
        failed=1
    fi
}

mkdir "$dir/one" "$dir/two" "$dir/eight" "$dir/other"
job "$dir/one.log" --host "$a:2,$b:2" -n 4 "$launched" "$dir/one" 1 60 &
job "$dir/two.log" --host "$a:2,$b:2" -n 4 "$launched" "$dir/two" 61 60
wait
agree "$dir/one.log" 4 "the first of two jobs at once"
agree "$dir/two.log" 4 "the second of two jobs at once"

job "$dir/eight.log" --host "$(echo "$hosts" | sed 's/ $//; s/ /:1,/g'):1" -n 8 "$launched" "$dir/eight" 1 30
agree "$dir/eight.log" 8 "eight hosts"

# The layouts of these numbers have other stages.
job "$dir/other.log" --host "$a:2" -n 2 "$starts" "$dir/other" 0 20 : --host "$b:2" -n 2 "$starts" "$dir/other" 3 20
for r in 0 1 2 3; do
    if ! grep -q 'zero_optimization.stage' "$dir/other/$r.end"; then
        cat "$dir/other/$r.end" "$dir/other.log"
        echo "FAIL rank $r does not name the key that differs between the hosts"
        failed=1
    fi
done
echo "ok   another configuration on one host: $(cut -c 1-150 "$dir/other/3.end")"
exit $failed

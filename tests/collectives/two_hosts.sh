#!/bin/sh
# Runs the parts of a test program on two hosts that are network namespaces of this one, with
# MPI over TCP between them: two_hosts.sh PROGRAM. Exits 77 where that cannot be made.
program=$1

skip() {
    echo "skipped: $1"
    exit 77
}

[ "$(id -u)" = 0 ] || skip "not root"
for tool in ip unshare mpirun timeout mount; do
    command -v $tool >/dev/null 2>&1 || skip "no $tool command"
done

a=sherda$$
b=sherdb$$
dir=$(mktemp -d /tmp/sherd-hosts-XXXXXX) || exit 1
clean() {
    ip netns del $a 2>/dev/null
    ip netns del $b 2>/dev/null
    rm -rf "$dir"
}
trap clean EXIT
trap 'exit 1' INT TERM

ip netns add $a 2>/dev/null && ip netns add $b 2>/dev/null || skip "no network namespaces"
ip link add va$$ netns $a type veth peer name vb$$ netns $b 2>/dev/null || skip "no veth devices"
ip -n $a addr add 10.231.7.1/24 dev va$$ && ip -n $b addr add 10.231.7.2/24 dev vb$$ &&
    ip -n $a link set va$$ up && ip -n $b link set vb$$ up &&
    ip -n $a link set lo up && ip -n $b link set lo up || skip "the namespaces cannot be joined"

printf '127.0.0.1 localhost\n10.231.7.1 %s\n10.231.7.2 %s\n' $a $b >"$dir/hosts"
# What mpirun starts its daemons with, in place of ssh: HOST COMMAND...
cat >"$dir/agent" <<AGENT
#!/bin/sh
host=\$1
shift
exec ip netns exec \$host unshare --uts --mount sh -c \
    "mount --bind $dir/hosts /etc/hosts; hostname \$host; \$*"
AGENT
chmod +x "$dir/agent"
"$dir/agent" $a true || skip "a namespace cannot be entered"

# Open MPI 5 has other names for what starts its daemons and for memory that ranks share. Without fault tolerance it ends the ranks
# whose connection to a rank that died is closed.
case $(mpirun --version | sed -n 's/^mpirun (Open MPI) \([0-9]*\).*/\1/p') in
[1-4]) mpi_parameters="--mca orte_tmpdir_base $dir --mca plm_rsh_agent $dir/agent --mca btl self,vader,tcp --mca oob_tcp_if_include 10.231.7.0/24" ;;
*) mpi_parameters="--with-ft ulfm --prtemca prte_tmpdir_base $dir --prtemca plm_ssh_agent $dir/agent --mca btl self,sm,tcp --prtemca prte_if_include 10.231.7.0/24" ;;
esac

# run COUNT PART KILLED MAPPING: every rank must leave its file but the killed one.
run() {
    results=$dir/$2-$1-$4
    "$dir/agent" $a "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        SHERD_TEST_RESULTS=$results SHERD_TEST_HOSTS=2 timeout -k 2 100 mpirun --oversubscribe \
        --enable-recovery $mpi_parameters --mca btl_tcp_if_include 10.231.7.0/24 \
        --host $a:4,$b:4 --map-by $4 -n $1 -x SHERD_TEST_RESULTS -x SHERD_TEST_HOSTS \
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
        --mca btl_tcp_if_include 10.231.7.0/24 --host $a:1,$b:1 --map-by node -n 2 -x SHERD_TEST_RESULTS -x SHERD_TEST_READY \
        -x SHERD_HOST_TIMEOUT $program --part $1" >"$dir/log" 2>&1 &
    mpirun=$!
    tries=0
    while [ ! -e "$results.ready" ] && [ $tries -lt 600 ]; do sleep 0.05; tries=$((tries + 1)); done
    ip -n $a link set va$$ down
    if [ -n "$3" ]; then
        sleep "$3"
        ip -n $a link set va$$ up
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
run 3 part_killed_in_barrier 2 node
run 3 part_aborts -1 node
run 3 part_first_leaves_early -1 node
# the empty limit is the default: longer than these seconds of silence
link part_link_comes_back "" 6
link part_link_goes_down 4

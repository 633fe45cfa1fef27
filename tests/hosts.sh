# Hosts that are network namespaces of this one, joined by a bridge, sourced. `hosts_make N` makes them: their names are in
# $hosts, $dir is a folder of the test, and "$dir/agent" HOST COMMAND... runs a command there, as ssh does, with a name and an
# /etc/hosts of its own. Exits 77 where that cannot be made. The whole goes with the test.

skip() {
    echo "skipped: $1"
    exit 77
}

hosts_remove() {
    for host in $hosts $bridge; do
        ip netns pids "$host" 2>/dev/null | xargs -r kill -9 2>/dev/null
        ip netns del "$host" 2>/dev/null
    done
    rm -rf "$dir"
}

# host_join NUMBER: host NUMBER, with the address 10.231.7.NUMBER.
host_join() {
    host=$(echo "$hosts" | cut -d ' ' -f "$1")
    ip netns add "$host" && ip link add "v$$" netns "$host" type veth peer name "v$1" netns "$bridge" &&
        ip -n "$host" addr add "10.231.7.$1/24" dev "v$$" && ip -n "$host" link set "v$$" mtu 9000 up && ip -n "$host" link set lo up &&
        ip -n "$bridge" link set "v$1" mtu 9000 master hub up || skip "the namespaces cannot be joined"
    echo "10.231.7.$1 $host" >>"$dir/hosts"
}

hosts_make() {
    [ "$(id -u)" = 0 ] || skip "not root"
    for tool in ip unshare timeout mount; do
        command -v $tool >/dev/null 2>&1 || skip "no $tool command"
    done
    dir=$(mktemp -d /tmp/sherd-hosts-XXXXXX) || exit 1
    bridge=sherdhub$$
    hosts=$(for number in $(seq "$1"); do printf 'sherd%s-%s ' $number $$; done)
    trap hosts_remove EXIT
    trap 'exit 1' INT TERM
    ip netns add "$bridge" 2>/dev/null || skip "no network namespaces"
    ip -n "$bridge" link add hub type bridge 2>/dev/null || skip "no bridges of networks"
    ip -n "$bridge" link set hub mtu 9000 up
    echo '127.0.0.1 localhost' >"$dir/hosts"
    for number in $(seq "$1"); do
        host_join "$number"
    done
    cat >"$dir/agent" <<AGENT
#!/bin/sh
host=\$1
shift
exec ip netns exec \$host unshare --uts --mount sh -c "mount --bind $dir/hosts /etc/hosts; hostname \$host; \$*"
AGENT
    chmod +x "$dir/agent"
    "$dir/agent" "$host" true || skip "a namespace cannot be entered"
    # Open MPI 5 has other names for what starts its daemons and for memory that ranks share.
    case $(mpirun --version 2>/dev/null | sed -n 's/^mpirun (Open MPI) \([0-9]*\).*/\1/p') in
    [1-4]) mpi_parameters="--mca orte_tmpdir_base $dir --mca plm_rsh_agent $dir/agent --mca btl self,vader,tcp --mca oob_tcp_if_include 10.231.7.0/24" ;;
    *) mpi_parameters="--with-ft ulfm --prtemca prte_tmpdir_base $dir --prtemca plm_ssh_agent $dir/agent --mca btl self,sm,tcp --prtemca prte_if_include 10.231.7.0/24" ;;
    esac
    mpi_parameters="$mpi_parameters --mca btl_tcp_if_include 10.231.7.0/24"
}

# hosts_link HOST up|down: the cable of a host.
hosts_link() {
    ip -n "$1" link set "v$$" "$2"
}

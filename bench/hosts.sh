#!/bin/sh
# ./run bench hosts: a step of the trainer on two hosts that are network namespaces of this one, over a wire of a limited rate, beside the same
# ranks on one host and beside the plan: hosts.sh BUILD [ARGUMENTS]. Needs root, mpirun and tc. hosts.py says what the arguments are.
build=$1
shift
case " $* " in *" --help "* | *" -h "*) exec python3 "$(dirname "$0")/hosts.py" --help ;; esac
. "$(dirname "$0")/../tests/hosts.sh"
command -v mpirun >/dev/null || skip "no mpirun command"
command -v tc >/dev/null || skip "no tc command"
hosts_make 2
python3 "$(dirname "$0")/hosts.py" --build "$build" --folder "$dir" --hosts "$hosts" --interface "v$$" --mpi "$mpi_parameters" "$@"

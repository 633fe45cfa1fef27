#!/bin/sh
# sherd doctor finds faults that are made on purpose: test_doctor.sh SHERD CLOCK_AHEAD.so [OTHER_MPI.so].
set -eu
sherd=$(realpath "$1")
clock_ahead=$(realpath "$2")
other_mpi=${3:-}
subcommand=doctor
. "$(dirname "$0")/lib.sh"
unset OMP_NUM_THREADS SHERD_PORT MASTER_PORT OPENBLAS_CORETYPE || true

# finds VERDICT CHECK: of the last run.
finds() {
    if ! grep -Eq "^  $1 +$2 " "$scratch/out"; then
        echo "not ok: no $1 of $2 in"
        cat "$scratch/out"
        failed=1
    fi
}

mkdir "$scratch/folder"
run 0 --folder "$scratch/folder" --nvme "$scratch/folder" --space 0
says out "0 faults"
finds ok folder
if [ -n "$(ls -A "$scratch/folder")" ]; then
    echo "not ok: files stay in the folder"
    failed=1
fi
run 2 --space much
says err "wants GiB"
run 2 words
run 0 --ranks 1024
finds advice OMP_NUM_THREADS
finds advice processors
run 1 --ranks 1024 --strict
OMP_NUM_THREADS=999 run 0
finds advice OMP_NUM_THREADS
OMP_NUM_THREADS=many run 0
finds advice OMP_NUM_THREADS
SHERD_MEMORY_LIMIT=1000000 run 0
finds advice memory
says out SHERD_MEMORY_LIMIT
run 1 --nvme "$scratch/none"
finds FAULT NVMe
run 1 --folder "$scratch/folder" --space 1000000
finds FAULT folder
says out "sherd state list"
run 1 --json --folder "$scratch/none"
python3 - "$scratch/out" <<'PY'
import json, sys
report = json.load(open(sys.argv[1]))
folder = [c for c in report["hosts"][0]["checks"] if c["check"] == "folder"]
assert report["faults"] == 1 and folder[0]["verdict"] == "fault" and folder[0]["fix"], report
PY

# Kernels of OpenBLAS for an old processor.
if "$sherd" env | grep -q "trainer blas: OpenBLAS" && grep -q avx2 /proc/cpuinfo; then
    OPENBLAS_CORETYPE=Prescott run 0
    finds advice BLAS
fi

# The port, held by somebody.
python3 - "$scratch/port" <<'PY' &
import socket, sys, time
held = socket.create_server(("0.0.0.0", 0))
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(held.getsockname()[1]))
import os
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(60)
PY
holder=$!
until [ -s "$scratch/port" ]; do sleep 0.02; done
SHERD_PORT=$(cat "$scratch/port") run 1
finds FAULT port
says out "ss -ltnp"
kill $holder
wait $holder 2>/dev/null || true
SHERD_PORT=$(cat "$scratch/port") run 0
finds ok port

# MPI of another make: the library, and the mpirun.
if [ -n "$other_mpi" ]; then
    SHERD_FAKE_MPI="MPICH Version: 4.0.2" SHERD_MPI_LIBRARY=$(realpath "$other_mpi") run 1
    finds FAULT MPI
    says out "Open MPI 3 to 5"
fi
mkdir "$scratch/bin"
printf '#!/bin/sh\necho "HYDRA build details:"\n' >"$scratch/bin/mpirun"
chmod +x "$scratch/bin/mpirun"
PATH=$scratch/bin:$PATH SHERD_MPI_LIBRARY=/nonexistent run 1
finds FAULT MPI
says out "HYDRA"

# Ranks that cannot meet.
SHERD_RANK=1 SHERD_WORLD_SIZE=2 SHERD_RENDEZVOUS=unix://$scratch/nobody SHERD_TIMEOUT=1 run 1
finds FAULT meeting

# What only root can make, in mount namespaces of its own.
if [ "$(id -u)" != 0 ] || ! unshare --mount true 2>/dev/null; then
    echo "faults of mounts and control groups were not made: they want root"
    exit $failed
fi

# made SCRIPT STATUS ARGS: the same in a mount namespace, after SCRIPT.
made() {
    script=$1
    want=$2
    shift 2
    status=0
    unshare --mount sh -ec "$script"'; exec "$@"' made "$sherd" doctor "$@" >"$scratch/out" 2>"$scratch/err" </dev/null || status=$?
    if [ "$status" != "$want" ]; then
        echo "not ok: sherd doctor $* gives $status, not $want, after: $script"
        cat "$scratch/out" "$scratch/err"
        failed=1
    fi
}
made "mount -t tmpfs -o size=1m none /dev/shm" 0
finds advice /dev/shm
made "mount -t tmpfs -o size=1m none '$scratch/folder'" 1 --nvme "$scratch/folder"
finds FAULT NVMe
made "mount -t tmpfs none '$scratch/folder'" 0 --nvme "$scratch/folder" --space 0
finds advice NVMe
made "mount -t ramfs none '$scratch/folder'" 1 --nvme "$scratch/folder" --space 0
finds FAULT NVMe
says out O_DIRECT
if [ -e /sys/kernel/mm/transparent_hugepage/enabled ]; then
    echo "always madvise [never]" >"$scratch/never"
    made "mount --bind '$scratch/never' /sys/kernel/mm/transparent_hugepage/enabled" 0
    finds advice "huge pages"
fi
mkdir "$scratch/dev"
made "mount -t tmpfs none '$scratch/dev'; cd '$scratch/dev'
    for name in null zero urandom; do : >\$name; mount --bind /dev/\$name \$name; done
    : >nvidia0; mount --rbind . /dev" "$(grep -q '^cuda device 0' "$scratch/out" && echo 0 || echo 1)"
[ -e /dev/nvidia0 ] || finds FAULT GPU
made "ulimit -l 64; ulimit -n 256" 0
finds advice "open files"
if command -v setpriv >/dev/null; then
    status=0
    (ulimit -l 64; setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock "$sherd" doctor) >"$scratch/out" || status=$?
    finds advice memlock
fi

# Control groups, of the first version: their files are of the kernel.
cpu=/sys/fs/cgroup/cpu/sherd-doctor-$$
if [ -e /sys/fs/cgroup/cpu/cpu.cfs_quota_us ] && mkdir "$cpu" 2>/dev/null; then
    echo 50000 >"$cpu/cpu.cfs_quota_us"
    sh -c 'echo $$ >"$0/tasks"; exec "$1" doctor' "$cpu" "$sherd" >"$scratch/out" || true
    rmdir "$cpu"
    finds advice processors
    says out "0.5 cores"
fi
memory=/sys/fs/cgroup/memory/sherd-doctor-$$
if [ -e /sys/fs/cgroup/memory/memory.limit_in_bytes ] && mkdir "$memory" 2>/dev/null; then
    echo 300000000 >"$memory/memory.limit_in_bytes"
    sh -c 'echo $$ >"$0/tasks"; exec "$1" doctor' "$memory" "$sherd" >"$scratch/out" || true
    rmdir "$memory"
    finds advice memory
    says out "control group"
fi

# Two hosts that are one: the second has a name, a clock and a folder of its own. Only MPI moves data between hosts without a GPU.
if ! "$sherd" env | grep -q "^mpi: Open MPI" || ! command -v mpirun >/dev/null; then
    echo "faults between hosts were not made: they want MPI"
    exit $failed
fi
cat >"$scratch/rank" <<'SH'
[ "$OMPI_COMM_WORLD_RANK" = 1 ] || exec "$@"
exec unshare --uts --mount sh -ec 'hostname other
    export OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1
    eval "$ELSEWHERE"; exec "$@"' rank "$@"
SH
# apart ELSEWHERE STATUS
apart() {
    status=0
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ELSEWHERE=$1 timeout -k 2 60 mpirun --oversubscribe -n 2 \
        sh "$scratch/rank" "$sherd" doctor --folder "$scratch/folder" --space 0 >"$scratch/out" 2>"$scratch/err" || status=$?
    if [ "$status" != "$2" ]; then
        echo "not ok: two hosts, one with '$1', give $status, not $2"
        cat "$scratch/out" "$scratch/err"
        failed=1
    fi
}
apart : 0
says out "host other"
finds ok "shared folder"
finds ok clocks
apart "mount -t tmpfs none '$scratch/folder'" 1
finds FAULT "shared folder"
says out "other"
apart "export LD_PRELOAD=$clock_ahead SHERD_TEST_CLOCK_AHEAD=100" 1
finds FAULT clocks
says out "100.0 s ahead"
if "$sherd" env | grep -q "^nccl: [0-9]"; then
    apart "export SHERD_NCCL_LIBRARY=/nonexistent" 1
    finds FAULT "versions of NCCL"
fi
exit $failed

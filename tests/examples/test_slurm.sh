#!/bin/sh
# The script for Slurm, with an srun and an scontrol that stand for Slurm's on one host: test_slurm.sh SCRIPT MINIMAL.
set -eu
script=$1
minimal=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
printf '#!/bin/sh\necho localhost\necho other\n' >"$scratch/scontrol"
cat >"$scratch/srun" <<'SH'
#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
ranks=
for rank in 0 1 2 3; do
    SLURM_PROCID=$rank SLURM_LOCALID=$((rank % 4)) "$@" &
    ranks="$ranks $!"
done
trap 'kill -TERM $ranks' TERM
status=0
for rank in $ranks; do wait $rank || status=$?; done
exit $status
SH
chmod +x "$scratch/scontrol" "$scratch/srun"
export PATH="$scratch:$PATH" SLURM_JOB_NODELIST=all SLURM_JOB_ID=$$ SLURM_NTASKS=4 SLURM_NNODES=1
bash "$script" "$minimal" >"$scratch/out"
for rank in 0 1 2 3; do
    grep -q "rank $rank of 4: y = 3.00 x + 1.00" "$scratch/out" || { cat "$scratch/out"; exit 1; }
done
status=0
bash "$script" sh -c 'exit $((RANK == 2 ? 5 : 0))' || status=$?
[ $status = 5 ] || { echo "not ok: a rank that ends with 5 gives $status"; exit 1; }
echo "the ranks of the script are a world, and their status is the job's"

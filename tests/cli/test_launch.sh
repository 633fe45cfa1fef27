#!/bin/sh
# Programs as ranks: sherd launch: test_launch.sh SHERD MINIMAL.
set -eu
sherd=$1
minimal=$2
subcommand=launch
. "$(dirname "$0")/lib.sh"
export TMPDIR="$scratch"

run 0 -n 3 "$minimal"
for rank in 0 1 2; do
    says out "rank $rank of 3: y = 3.00 x + 1.00"
done
# What follows the program is the program's own, what is set before is not taken.
SHERD_RANK=7 SHERD_WORLD_SIZE=9 run 0 --ranks 2 -- sh -c 'echo "$SHERD_RANK of $SHERD_WORLD_SIZE: $*"' name -n 5
says out "0 of 2: -n 5"
says out "1 of 2: -n 5"

# Only rank 0 has the input.
status=0
echo words | "$sherd" launch -n 2 sh -c 'read -r line || line=nothing; echo "$SHERD_RANK has $line"' \
    >"$scratch/out" 2>"$scratch/err" || status=$?
[ "$status" = 0 ] || failed=1
says out "0 has words"
says out "1 has nothing"

# One fails: the others, which would wait for ever, are ended.
mkfifo "$scratch/never"
run 3 -n 3 --grace 0 sh -c '[ "$SHERD_RANK" != 1 ] || exit 3; read -r line <"$0"' "$scratch/never"
says err "rank 1 ended with status 3"
run 134 -n 2 --grace 0 sh -c '[ "$SHERD_RANK" != 0 ] || kill -ABRT $$; read -r line <"$0"' "$scratch/never"
says err "rank 0 was ended by signal 6"

# A signal goes to all of them. The fifo is open both ways, so that it does not end between the ranks' lines.
mkfifo "$scratch/ready"
exec 3<>"$scratch/ready"
"$sherd" launch -n 2 sh -c 'trap "kill \$!; exit 9" USR1; cat "$1" & echo "$SHERD_RANK" >"$0"; wait' \
    "$scratch/ready" "$scratch/never" 2>"$scratch/err" &
launcher=$!
read -r line <&3
read -r line <&3
kill -USR1 $launcher
status=0
wait $launcher || status=$?
exec 3<&-
if [ "$status" != 9 ]; then
    echo "not ok: a signal for the ranks ends them with $status"
    failed=1
fi

# Ranks that are scripts, which end by the signal: what they started is reported, may take its time, and is waited for.
cat >"$scratch/trainer" <<'SH'
trap 'sleep 0.3; echo saved >"$0.saved.$SHERD_RANK"; exit 0' TERM
echo $$ >"$0.pid.$SHERD_RANK"
while :; do sleep 0.05; done
SH
"$sherd" launch -n 2 --grace 0 sh -c 'sh "$0"; echo over' "$scratch/trainer" 2>"$scratch/err" &
launcher=$!
until [ -s "$scratch/trainer.pid.0" ] && [ -s "$scratch/trainer.pid.1" ]; do sleep 0.02; done
kill -TERM $launcher
status=0
wait $launcher || status=$?
if [ "$status" != 143 ] || [ ! -e "$scratch/trainer.saved.0" ] || [ ! -e "$scratch/trainer.saved.1" ]; then
    echo "not ok: status $status, or a trainer behind a script was not notified, or not waited for: $(ls "$scratch")"
    failed=1
fi
# Behind a rank that fails, nothing goes on that it had started.
run 3 -n 1 --grace 0 sh -c 'sleep 1000 & echo $! >"$0"; exit 3' "$scratch/left"
if kill -0 "$(cat "$scratch/left")" 2>/dev/null; then
    echo "not ok: what a failed rank had started goes on"
    failed=1
fi

run 127 -n 2 "$scratch/no-program"
says err "no-program cannot be run: No such file or directory"
run 2 -n 0 "$minimal"
says err "--ranks wants 1 to 1024, not '0'; sherd launch --help"
run 2 "$minimal"
says err "launch wants -n N"
run 2 -n 2
says err "launch wants a program"

# Processes that come and go: mistakes, and programs that have not begun to train. test_trainer.sh and test_turn.c have the rest.
run 2 -n 4 --elastic 5:2 "$minimal"
says err "--elastic wants MIN:MAX, two numbers of ranks from 1 to 1024"
run 2 -n 1 --elastic 2:4 "$minimal"
says err "-n has to be between the numbers of --elastic"
run 2 -n 2 --no-restart "$minimal"
says err "--no-restart and --deaths are for --elastic MIN:MAX"
run 2 --hosts a:1 --elastic 1:2 "$minimal"
says err "--elastic is for the processes of one host"
run 3 -n 2 --elastic 1:2 --grace 0 sh -c '[ "$SHERD_RANK" != 1 ] || exit 3; read -r line <"$0"' "$scratch/never"
says err "rank 1 ended with status 3"
run 0 -n 2 --elastic 1:3 "$minimal"
says out "rank 1 of 2: y = 3.00 x + 1.00"

if ls "$scratch" | grep -q sherd-launch; then
    echo "not ok: a folder stays"
    failed=1
fi

[ $failed = 0 ] && echo "sherd launch starts, tells and ends"
exit $failed

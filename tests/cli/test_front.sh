#!/bin/sh
# The command without a subcommand's own work: help, the version, what is not there: test_front.sh SHERD.
set -eu
sherd=$1
. "$(dirname "$0")/lib.sh"

subcommand=--help
run 0
says out "usage: sherd COMMAND"
subcommand=help
run 0 plan
says out "usage: sherd plan"
run 2 plam
says err "no command 'plam'"
says err "usage: sherd COMMAND"

for word in version --version -V; do
    subcommand=$word
    run 0
    says out "sherd 0."
done
subcommand=version
run 2 more

subcommand=verify
run 2
says err "it is sherd checkpoint verify"

# getopt's words are the command's.
subcommand=plan
run 2 --no-such-option
says err "sherd plan: unrecognized option '--no-such-option'"
subcommand=env
run 2 more
says err "'more' is not an option"

subcommand=config
echo '{"train_batch_size": 8}' >"$scratch/ds.json"
run 2 "$scratch/ds.json" --world 2x
says err "--world wants a number of ranks, not '2x'"
run 1 "$scratch/ds.json" --set optimizer.type=Lamb
says err 'optimizer.type: Lamb is not JSON; text stands in quotes: "Lamb"'
run 0 "$scratch/ds.json" --set 'optimizer.type="Lamb"'

[ $failed = 0 ] && echo "sherd finds its commands"
exit $failed

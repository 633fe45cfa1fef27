#!/bin/sh
# Checkpoints on hosts that each have a disk of their own under the path of the folder, with MPI between them:
# test_checkpoint_hosts.sh PROGRAM SHERD. Exits 77 where that cannot be made.
program=$(realpath "$1")
sherd=$(realpath "$2")
. "$(dirname "$0")/../hosts.sh"
command -v mpirun >/dev/null || { echo "skipped: no mpirun command"; exit 77; }
hosts_make 3
a=$(echo "$hosts" | cut -d ' ' -f 1)
b=$(echo "$hosts" | cut -d ' ' -f 2)
c=$(echo "$hosts" | cut -d ' ' -f 3)
mkdir "$dir/ckpt" "$dir/disk-$a" "$dir/disk-$b" "$dir/disk-$c"
sed -i "s|mount --bind|mount --bind $dir/disk-\$host $dir/ckpt; &|" "$dir/agent"

fail() {
    cat "$dir/log"
    find "$dir"/disk-*
    echo "FAIL: $1"
    exit 1
}

# run RANKS HOSTS ACTION...: its output is in $dir/log.
run() {
    ranks=$1
    on=$2
    shift 2
    "$dir/agent" "$a" "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 SHERD_THREADS=1 SHERD_LOG=warn timeout -k 2 20 mpirun --oversubscribe \
        --enable-recovery $mpi_parameters --host $on --map-by slot -n $ranks $program $dir/ckpt $*" >"$dir/log" 2>&1
}

# count TEXT NUMBER WHAT: the log has so many lines with the text.
count() {
    [ "$(grep -c "$1" "$dir/log")" = "$2" ] || fail "$3"
}

run 3 "$a:2,$b:1" save
grep -q "1 skipped" "$dir/log" && { grep skip "$dir/log"; exit 77; }
count "^rank . has" 3 "three ranks save on two hosts"
was=$(sed -n 's/^rank 0 has //p' "$dir/log")
count "2 hosts do not share the folder .*($a, $b)" 1 "it is said that they do not share the folder"
[ "$(cd "$dir/disk-$b/step-000002" && echo *)" = "frozen-00002-of-00003.safetensors manifest.json rank-00002-of-00003.safetensors" ] ||
    fail "the host of rank 2 has its part"
[ "$(cat "$dir/disk-$a/latest")" = "$(cat "$dir/disk-$b/latest")" ] || fail "both hosts name the latest"
grep -q "\"host\": \"$b\"" "$dir/disk-$a/step-000002/manifest.json" || fail "the manifest names the hosts"
echo "ok   hosts save their parts"

run 3 "$a:2,$b:1" load
count "has $was" 3 "what was saved is loaded"
echo "ok   hosts load their parts"

run 3 "$a:2,$b:1" die 2
count "lost a peer" 2 "the others learn of the death"
run 3 "$a:2,$b:1" load
count "has $was" 3 "the checkpoint before is loaded"
echo "ok   a rank that dies in a save leaves the checkpoint before"

"$sherd" checkpoint verify "$dir/disk-$b" >"$dir/log" 2>&1 && fail "a part is no whole"
count "^[^:]*-0000.-of-00003.safetensors: it is not here: rank . wrote it on host $a; copy" 4 "verify names the host"
"$sherd" checkpoint inspect "$dir/disk-$b" >"$dir/log" 2>&1
count "rank-00000-of-00003.safetensors is missing, which was written on host $a; 3 more files are missing; copy" 2 "inspect names the host"
echo "ok   the command names what is missing"

mv "$dir/disk-$b" "$dir/kept"
mkdir "$dir/disk-$b"
run 2 "$a:1,$b:1" missing
count "no rank has rank-00002-of-00003.safetensors that rank 2 wrote on host $b, and 1 more files; copy" 2 "all ranks say what is missing"
rm -r "$dir/disk-$b"
mv "$dir/kept" "$dir/disk-$b"
run 5 "$c:2,$b:1,$a:2" load
count "has $was" 5 "ranks send what hosts lack"
echo "ok   other hosts and ranks load it, or say what is missing"

cp -r "$dir/disk-$a" "$dir/all"
cp -r "$dir/disk-$b"/* "$dir/all"
"$sherd" checkpoint verify "$dir/all" >"$dir/log" 2>&1 || fail "all parts are a whole"
echo "ok   all parts in one folder are a whole checkpoint"

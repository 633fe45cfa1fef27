#!/bin/sh
# Benchmarks say what they take and refuse what they do not, each with the name of the option; and the list that
# ./run help shows is that of the programs: test_options.sh SOURCE BENCH-PROGRAM...
set -eu
source=$1
shift
failed=0

# refused PROGRAM WORD ARGUMENTS: ends with 2 and a sentence that has the word.
refused() {
    program=$1 word=$2
    shift 2
    said=$("$program" "$@" 2>&1 >/dev/null) && code=0 || code=$?
    if [ $code != 2 ] || ! printf '%s' "$said" | grep -q -- "$word"; then
        echo "$program $*: ended with $code and said '$said'"
        failed=1
    fi
}

for program in "$@"; do
    name=$(basename "$program" | sed 's/^bench-//')
    "$program" --help | grep -q "^usage: ./run bench $name " || { echo "$name: no usage"; failed=1; }
    "$source/bench/run" --list | grep -q "^  $name  *[a-z]" || { echo "bench/run does not list $name"; failed=1; }
    refused "$program" "help lists" --no-such-option
    refused "$program" "'more' is no option" more
done
for name in $("$source/bench/run" --list | awk '{ print $1 }'); do
    case $name in
    deterministic | hosts | peers | predicted | redundancy | torch | torch-limited) continue ;; # scripts
    esac
    [ -e "$source/bench/$(echo "$name" | tr - _).c" ] ||
        { echo "bench/run lists $name, which is not there"; failed=1; }
done
trainer=
for program in "$@"; do
    case $program in
    *-trainer) trainer=$program ;;
    esac
done
refused "$trainer" "--stage takes N (0 to 3), not '4'" --stage 4
refused "$trainer" "--backend takes NAME (cpu|cuda), not 'tpu'" --backend tpu
refused "$trainer" "--rounds takes N (at least 1), not '0'" --rounds 0
refused "$trainer" "not '1M2'" --batch 1M2
refused "$trainer" "not '-1'" --peak-tflops -1
exit $failed

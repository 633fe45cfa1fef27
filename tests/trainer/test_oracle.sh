#!/bin/sh
# The oracle must notice: test_oracle.sh PROGRAM FILE. Each number of the file moved a little more than
# allowed has to fail; a file that is not one of its form is refused.
set -eu
program=$1
file=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# wrong NAME SED: the file changed by SED must fail.
wrong() {
    sed "$2" "$file" >"$scratch/changed.json"
    if cmp -s "$file" "$scratch/changed.json"; then
        echo "$1: nothing was changed"
        exit 1
    fi
    code=0
    "$program" "$scratch/changed.json" --stage 3 --ranks 1 >"$scratch/out" || code=$?
    if [ $code != "$3" ]; then
        echo "$1: exit code $code, not $3: $(cat "$scratch/out")"
        exit 1
    fi
}

wrong "loss" 's/4\.16802119/4.16902119/' 1
wrong "gradient norm" 's/4\.11451405/4.12/' 1
wrong "gradient of one parameter" 's/1\.304685417/1.31/; s/1\.3046854/1.307/' 1
wrong "a step" 's/3\.2190292/3.2290292/' 1
wrong "a name" 's/layers\.1\.mlp\.up_proj/layers.1.mlp.upper_proj/' 2
wrong "a size" 's/"heads": 4/"heads": 5/' 2
"$program" "$file" --stage 7 >"$scratch/out" 2>&1 && exit 1
"$program" >"$scratch/out" 2>&1 && exit 1
"$program" --help | grep -q usage
echo "the oracle notices"

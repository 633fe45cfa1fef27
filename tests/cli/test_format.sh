#!/bin/sh
# The example of docs/checkpoint-format.md reads what was saved: test_format.sh MAKE PAGE PYTHON. SHERD_TEST_PYTHON names another
# interpreter, one that has safetensors.
set -eu
make=$1 page=$2 python=${SHERD_TEST_PYTHON:-$3}
"$python" -c 'import numpy, safetensors' 2>/dev/null || {
    echo "skipped: $python has no safetensors"
    exit 77
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
said=$("$make" "$scratch/dir" a 2>&1) || {
    case $said in *libxxhash*) exit 77 ;; esac
    echo "$said"
    exit 1
}
sed -n '/^```python$/,/^```$/p' "$page" | grep -v '^```' >"$scratch/read.py"

# reads WHAT PARAM PART: a parameter of 300 x 128 elements that count up in steps of 1/1024, or zeros of state.
reads() {
    got=$("$python" "$scratch/read.py" "$scratch/dir/a" "$2" "$3")
    [ "$got" = "(300, 128) $1" ] || { echo "$2 $3: '$got', wanted '(300, 128) $1'"; exit 1; }
}
reads '719981.25 37.499023' embed.weight master
reads '719981.25 37.499023' fixed.weight master
reads '0.0 0.0' embed.weight exp_avg
if "$python" "$scratch/read.py" "$scratch/dir/a" nothing master 2>/dev/null; then
    echo "a parameter that is not there was read"
    exit 1
fi

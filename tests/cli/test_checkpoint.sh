#!/bin/sh
# sherd checkpoint, on real files: test_checkpoint.sh SHERD MAKE_CHECKPOINT TRAINER.
set -eu
sherd=$(realpath "$1")
make_checkpoint=$(realpath "$2")
trainer=$(realpath "$3")
subcommand=checkpoint
. "$(dirname "$0")/lib.sh"
dir=$scratch/runs

# silent out|err TEXT
silent() {
    if grep -qF -- "$2" "$scratch/$1"; then
        echo "not ok: '$2' in"
        cat "$scratch/$1"
        failed=1
    fi
}
# json: what was printed is JSON, where somebody can tell.
json() {
    if command -v python3 >/dev/null && ! python3 -c 'import json, sys; json.load(sys.stdin)' <"$scratch/out"; then
        echo "not ok: no JSON"
        cat "$scratch/out"
        failed=1
    fi
}

# A build without checksums has no checkpoints.
mkdir "$dir"
if ! "$sherd" checkpoint list "$dir" >/dev/null 2>"$scratch/err" && grep -q libxxhash "$scratch/err"; then
    cat "$scratch/err"
    exit 77
fi

# Arguments.
run 0 --help
says out "usage: sherd checkpoint list DIR"
run 2
run 2 nothing "$dir"
run 2 list
run 2 list "$dir" "$dir"
run 2 export "$dir"
run 2 export "$dir" "$scratch/out" --json
run 2 export "$dir" "$scratch/out" --type int8
run 2 export "$dir" "$scratch/out" --arch gpt2
run 2 export "$dir" "$scratch/out" --model gpt2
run 2 import "$dir"
run 2 import "$dir" "$scratch/in/w" --json
run 2 import "$dir" "$scratch/in/w" --arch gpt2
run 2 import "$dir" "$scratch/in/w" --arch gpt2 --preset none
run 2 import "$dir" "$scratch/in/w" --arch gpt2 --preset tiny --model config.json
run 2 list "$dir" --nothing

# Nothing there.
run 0 list "$dir"
says out "no checkpoints"
run 0 list "$dir" --json
json
run 1 list "$scratch/none"
run 1 inspect "$dir"
says err "no complete checkpoint"
run 1 verify "$dir/none"
says err "there is no folder $dir/none"

"$make_checkpoint" "$dir" one two three
run 0 list "$dir"
says out " *three"
says out "  one"
run 0 list "$dir" --json
says out '{"tag": "one", "is_complete": 1, "is_latest": 0, '
json
run 0 inspect "$dir"
says out "/three (the latest)"
says out "[300, 128]"
says out "frozen-00000-of-00001.safetensors"
says out "head?[31m.weight" # a name does not reach the terminal as it is
run 0 inspect "$dir/one/" --json
says out '"shape": [300, 128]'
json
run 0 verify "$dir"
says out "three is whole: step 0, "
run 0 verify "$dir/two" --json
says out '"is_whole": true'
json

# A byte of one of them.
printf 'x' | dd of="$dir/two/rank-00000-of-00001.safetensors" bs=1 seek=20000 conv=notrunc 2>/dev/null
run 1 verify "$dir/two"
says out "/two/rank-00000-of-00001.safetensors, tensor embed.weight:master:0: "
run 1 verify "$dir/two" --json
says out '"is_whole": false'
json
run 1 export "$dir/two" "$scratch/two.safetensors"
run 0 verify "$dir/three"
rm "$dir/two/rank-00000-of-00001.safetensors"
run 1 inspect "$dir/two"
says err "rank-00000-of-00001.safetensors is missing"
run 0 list "$dir"
says out " two: NOT COMPLETE, rank-00000-of-00001.safetensors is missing"

# Weights.
run 0 export "$dir" "$scratch/weights.safetensors"
run 0 export "$dir/one" "$scratch/half" --type bf16
if python3 -c 'import safetensors' 2>/dev/null; then
    python3 - "$scratch" <<'END' || failed=1
import sys
from safetensors import safe_open
with safe_open(sys.argv[1] + "/weights.safetensors", "np") as f:
    t = f.get_tensor("embed.weight")
    assert t.shape == (300, 128) and t.dtype.name == "float32", t.dtype
    assert t.reshape(-1)[1025] == 1025 / 1024
END
fi
[ -s "$scratch/half/model.safetensors" ] || { echo "not ok: no file in the folder"; failed=1; }
run 1 export "$dir" "$scratch/gpt2" --arch gpt2 --preset 124m
run 2 export "$dir" "$scratch/gpt2" --arch gpt2 --preset none

# Weights in: as the file calls them, as a list of units does, as transformers does.
run 0 import "$scratch/weights.safetensors" "$scratch/in/own"
says out "imported to $scratch/in/own"
run 0 verify "$scratch/in"
says out "own is whole: step 0, "
run 0 inspect "$scratch/in/own"
says out "none: master"
run 0 export "$scratch/in" "$scratch/again.safetensors"
cmp "$scratch/weights.safetensors" "$scratch/again.safetensors" || failed=1
run 1 import "$scratch/weights.safetensors" "$scratch/in/own"
says err "own is there already"
run 1 import "$scratch/none.safetensors" "$scratch/in/none"
run 1 import "$scratch/weights.safetensors" "$scratch/in/latest"
cat >"$scratch/units.json" <<'END'
{"units": [{"name": "u", "params": [{"name": "fixed.weight", "shape": [300, 128]}]}]}
END
run 1 import "$scratch/weights.safetensors" "$scratch/in/units" --model "$scratch/units.json"
says err "the file has tensor embed.weight, which this model has not"
run 1 import "$scratch/weights.safetensors" "$scratch/in/units" --model "$scratch/none.json"
run 1 import "$scratch/weights.safetensors" "$scratch/in/gpt2" --arch gpt2 --preset tiny
says err "the file has no tensor transformer.wte.weight"
run 0 list "$scratch/in"
silent out units
seq 20000 >"$scratch/text"
"$trainer" --data "$scratch/text" --arch gpt2 --preset tiny --length 32 --batch 2 --steps 1 --save "$scratch/trained" --export "$scratch/gpt2" \
    >"$scratch/log" 2>&1 </dev/null || { cat "$scratch/log"; failed=1; }
run 0 import "$scratch/gpt2" "$scratch/in/gpt2" --arch gpt2 --preset tiny
run 0 list "$scratch/trained" --json
fingerprint=$(grep -o '"fingerprint": "[0-9a-f]*"' "$scratch/out")
run 0 list "$scratch/in" --json
says out "$fingerprint" # transposed back to what was trained
run 0 export "$scratch/in" "$scratch/back" --arch gpt2 --preset tiny
cmp "$scratch/gpt2/model.safetensors" "$scratch/back/model.safetensors" || failed=1
mkdir "$scratch/odd"
mkfifo "$scratch/odd/config.json"
run 1 export "$scratch/in" "$scratch/odd" --arch gpt2 --preset tiny
says err "only a regular file is replaced"
[ "$(ls -A "$scratch/odd")" = config.json ] && [ -p "$scratch/odd/config.json" ] || failed=1
run 0 import "$scratch/gpt2" "$scratch/in/config" --model "$scratch/gpt2/config.json"
if "$trainer" --data "$scratch/text" --arch gpt2 --preset tiny --length 32 --batch 2 --steps 2 \
    --resume-from "$scratch/in/gpt2" >"$scratch/err" 2>&1 </dev/null; then
    echo "not ok: weights alone are gone on from"
    failed=1
fi
says err "weights_only"

# Removal.
run 2 remove "$dir/one"
says err "without a terminal it takes --yes"
run 0 remove "$dir/three" "$dir/one" --yes
says out "removed $dir/three"
run 1 remove "$dir/three" --yes
run 0 list "$dir"
says out " *two"
silent out three
run 0 remove "$dir/two/" --yes
run 0 list "$dir"
says out "no checkpoints"
(cd "$dir" && "$make_checkpoint" . here && "$sherd" checkpoint verify here >/dev/null) || failed=1
(cd "$dir" && "$sherd" checkpoint remove here --yes >/dev/null) || failed=1

[ $failed = 0 ] && echo "sherd checkpoint lists, inspects, verifies, exports, imports and removes"
exit $failed

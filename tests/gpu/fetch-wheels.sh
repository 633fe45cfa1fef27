#!/usr/bin/env bash
# Downloads the peers that check.sh --part rivals compares with, for a machine that has PyTorch and transformers but no network:
# fetch-wheels.sh DIR [PYTHON_VERSION]. DIR is the folder of fetch-debs.sh; call this before the archive is made. What is
# compiled for a Python is for that of PYTHON_VERSION (default: 3.12), 64-bit x86.
set -euo pipefail
if [ $# -lt 1 ] || [ $# -gt 2 ] || [ "${1#-}" != "$1" ]; then
    echo "usage: tests/gpu/fetch-wheels.sh DIR [PYTHON_VERSION]" >&2
    exit 2
fi
version=${2:-3.12}

# DeepSpeed is published as a source alone, which gives a wheel of plain Python; it compiles its CPU Adam where it runs.
BUILT="deepspeed hjson"
WANTED="pydantic py-cpuinfo einops nvidia-ml-py"

mkdir -p "$1"
cd "$1"
wheels=$PWD/.wheels site=$PWD/usr/share/sherd-site
mkdir -p "$wheels" "$site"
# shellcheck disable=SC2086
DS_BUILD_OPS=0 python3 -m pip wheel -q --no-deps -w "$wheels" $BUILT
# shellcheck disable=SC2086
python3 -m pip download -q --only-binary=:all: --python-version "$version" --implementation cp -d "$wheels" \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 $WANTED
for wheel in "$wheels"/*.whl; do
    python3 -m zipfile -e "$wheel" "$site"
done
rm -rf "$wheels"
du -sh "$site" | awk '{ print "unpacked " $1 " of peers" }'

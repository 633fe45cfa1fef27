#!/bin/sh
# A test in Python by the interpreter that SHERD_PYTHON names: run.sh TEST ARGS. Python keeps what it compiles in the build folder, where
# tests begin, and not beside the sources.
python=${SHERD_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "skipped: there is no $python"; exit 77; }
if [ -e build.ninja ]; then
    unset PYTHONDONTWRITEBYTECODE
    export PYTHONPYCACHEPREFIX="$PWD/pycache"
else
    export PYTHONDONTWRITEBYTECODE=1
fi
exec "$python" "$@"

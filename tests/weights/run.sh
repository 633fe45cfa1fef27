#!/bin/sh
# A test in Python by the interpreter that SHERD_PYTHON names: run.sh TEST ARGS. Leaves no compiled files behind.
python=${SHERD_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "skipped: there is no $python"; exit 77; }
PYTHONDONTWRITEBYTECODE=1 exec "$python" "$@"

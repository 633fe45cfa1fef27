#!/bin/sh
# The shared library asks the loader for what every build needs and for nothing of a vendor: MPI, hwloc, CUDA and NCCL are opened
# when a world wants them: needs.sh LIBRARY
set -eu
needed=$(readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
[ -n "$needed" ] || { echo "readelf finds nothing that $1 needs"; exit 1; }
# What the loader and the sanitizers bring is theirs.
strange=$(echo "$needed" | grep -vE '^(libjansson|liburing)\.so|^(libc|libm|libdl|librt|libpthread|ld-linux-[a-z0-9-]*|lib[atu]b?san|libclang_rt\.[a-z0-9_-]*)\.so' || true)
if [ -n "$strange" ]; then
    echo "$1 needs, and no machine without it can load it:" $strange
    exit 1
fi
echo "needed:" $needed

#!/bin/sh
# Who may include whom (docs/architecture.md). Fails on an include that points the wrong way,
# and on a vendor header outside its one file.
set -eu
cd "$1"
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
failed=0

# allowed FOLDER REGEX: quoted includes of FOLDER must match REGEX (or be headers of the folder itself).
allowed() {
    bad=$(grep -rnE '^#include "' --include='*.[ch]' --include='*.cu' --include='*.cuh' "$1" | grep -vE "#include \"($2)" || true)
    if [ -n "$bad" ]; then
        echo "$1 may not include:"
        echo "$bad"
        failed=1
    fi
}

generated='sherd_build\.h|sherd_commit\.h'
allowed base "base/|sherd|$generated"
allowed kernels "kernels/|base/|sherd"
allowed collectives "collectives/|kernels/|base/|sherd"
allowed offload "offload/|kernels/|base/|sherd"
allowed engine "engine/|offload/|collectives/|kernels/|base/|sherd|$generated"
# Its rooms: run sees program and plan, program sees plan, plan sees the optimizers and the configuration, which know each other's tables.
allowed engine/config "engine/(config|optimizers)/|offload/|base/|sherd"
allowed engine/optimizers "engine/(config|optimizers)/|engine/model\.h|kernels/|base/|sherd"
allowed engine/monitor "engine/(monitor|config)/|base/|sherd"
allowed engine/plan "engine/(plan|config|optimizers)/|engine/(model|modules)\.h|collectives/world\.h|offload/|kernels/|base/|sherd"
allowed engine/program "engine/(program|plan|config|optimizers)/|engine/(model|modules)\.h|collectives/world\.h|offload/|kernels/|base/|sherd"
allowed engine/checkpoint "engine/(checkpoint|run|program|plan|config|optimizers)/|engine/(model|modules)\.h|collectives/(broadcast|world)\.h|offload/|kernels/|base/|sherd"
allowed engine/proof "engine/(proof|elastic|run|program|plan|config|optimizers)/|engine/(model|modules|engine|limits|report)\.h|collectives/(world|simulated|sums)\.h|offload/|kernels/|base/|sherd"
allowed engine/elastic "engine/(elastic|checkpoint|run|program|plan|config|optimizers)/|engine/(model|modules|engine|limits)\.h|collectives/(broadcast|host_memory|pass|world)\.h|kernels/(cpu/roles|lanes)\.h|offload/|base/|sherd"
allowed models "models/|sherd"
allowed planning "planning/|models/|sherd"
allowed cli "cli/|planning/|models/|sherd"
allowed trainer "trainer/|models/|sherd|[a-z_]+\.(h|cuh)"
allowed examples "sherd"
allowed bench "bench/|planning/|models/|trainer/|(engine|offload|collectives|kernels|base)/|sherd"
allowed include "sherd"

# The border of the core, and those of the modules (modules.txt): a file includes headers of the core, of its own module, and of the
# modules that this one needs. A list has lines of modules: each includes files of the module that its #ifdef names.
awk -v OFS=: '
    { sub(/#.*/, "") }
    /^\[/ { split($0, parts, /[][]/); module = parts[2]; needs[module] = " core " module " " parts[3] " "; next }
    NF == 1 { owner[$1] = module }
    END {
        for (file in owner) {
            asked = ""
            while ((getline line <file) > 0) {
                if (line ~ /^#ifdef SHERDI_MODULE_/ && file ~ /list\.h$/) {
                    asked = tolower(substr(line, length("#ifdef SHERDI_MODULE_") + 1))
                } else if (line ~ /^#endif/) {
                    asked = ""
                } else if (line ~ /^#include "/) {
                    split(line, quoted, "\"")
                    to = owner[quoted[2]]
                    if (to != "" && to != asked && index(needs[owner[file]], " " to " ") == 0) {
                        print file, "of " owner[file] " includes " quoted[2] " of " to
                    }
                }
            }
            close(file)
        }
    }' modules.txt >"$scratch/borders"
if [ -s "$scratch/borders" ]; then
    echo "an include crosses the border of a module (modules.txt):"
    cat "$scratch/borders"
    failed=1
fi

# What a build has is asked for in the lists that register tables, and nowhere else.
bad=$(grep -rlE 'SHERDI_(MODULE|IN)_[A-Z]+(\(|$)' --include='*.[ch]' base kernels collectives offload engine | grep -v '_\?list\.h$' || true)
if [ -n "$bad" ]; then
    echo "SHERDI_MODULE_... outside a list: $bad"
    failed=1
fi

# Sources with slow asserts are those that are compiled with them for the tests.
grep -rlE 'include "base/assert\.h"' --include='*.c' base kernels collectives offload engine | sort >"$scratch/with"
sed -n "/^slow = \[/,/\]/p" meson.build | grep -oE "[a-z_/]+\.c" | sort >"$scratch/listed"
if [ ! -s "$scratch/with" ] || ! diff "$scratch/with" "$scratch/listed"; then
    echo "the list slow of meson.build is not that of the sources with base/assert.h"
    failed=1
fi

# <folder>/<name>_impl.h is for its own folder.
bad=$(grep -rnE '#include "[a-z]+/([a-z]+/)?[a-z_]+_impl\.h"' --include='*.[ch]' base kernels collectives offload engine models planning cli trainer examples |
    awk -F: '{ split($1, at, "/"); line = $3; sub(/.*#include "/, "", line); split(line, to, "/"); if (at[1] != to[1]) print }')
if [ -n "$bad" ]; then
    echo "an _impl.h crosses folders:"
    echo "$bad"
    failed=1
fi

# Signals are for the program's own threads.
bad=$(grep -rl 'pthread_create(' --include='*.[ch]' base kernels collectives offload engine | grep -v '^base/thread\.[ch]$' || true)
if [ -n "$bad" ]; then
    echo "a thread is started by pthread_create, and not by sherdi_thread_start (base/thread.h): $bad"
    failed=1
fi

# Vendor headers, each in its one back-end file (and its public header).
vendor() {
    bad=$(grep -rlE "#include <($1)" --include='*.[ch]' --include='*.cu' --include='*.cuh' base kernels collectives offload engine models planning cli include trainer examples |
        grep -vE "$2" || true)
    if [ -n "$bad" ]; then
        echo "<$1> is included outside its file: $bad"
        failed=1
    fi
}
vendor 'mpi\.h' '^collectives/mpi[a-z_]*\.[ch]$|^include/sherd_mpi\.h$'
vendor 'jansson\.h' '^base/json[a-z_]*\.[ch]$|^engine/(env|proof/print|checkpoint/(fields|manifest)|config/config[a-z_]*)\.[ch]$|^models/hf_config\.c$|^planning/[a-z_]*\.[ch]$|^cli/(plan|bench|diff|doctor)[a-z_]*\.[ch]$'
vendor 'hwloc' '^kernels/cpu/binding\.c$'
vendor 'xxhash\.h' '^offload/checksum(_avx2|_avx512)?\.c$'
vendor 'liburing' '^offload/uring\.c$'
vendor 'omp\.h' '^$'
vendor 'cblas\.h|openblas|dnnl' '^$'
vendor 'cuda|mma\.h|device_launch' '^kernels/cuda/|^include/sherd_cuda\.h$|^collectives/nccl[a-z_]*\.[ch]$|^trainer/cuda/'
vendor 'nccl\.h' '^collectives/nccl[a-z_]*\.[ch]$|^include/sherd_cuda\.h$'
vendor 'cublas' '^trainer/cuda/'

[ $failed = 0 ] && echo "the arrows point down"
exit $failed

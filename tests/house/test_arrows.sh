#!/bin/sh
# arrows.sh finds what it is for: test_arrows.sh SOURCE. Each line of the list below is put into a copy of the tree, where it is wrong,
# and arrows.sh has to fail and to say what the line says.
set -eu
root=$1
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
failed=0
mkdir "$scratch/tree"
cd "$root"
cp -r base kernels collectives offload engine models planning cli trainer examples bench include modules.txt meson.build "$scratch/tree"

sh tests/house/arrows.sh "$scratch/tree" >/dev/null || {
    echo "the copy of the tree does not pass"
    exit 1
}

while IFS='|' read -r file line expected; do
    cp "$scratch/tree/$file" "$scratch/before"
    printf '%s\n' "$line" >>"$scratch/tree/$file"
    if sh tests/house/arrows.sh "$scratch/tree" >"$scratch/said"; then
        echo "not found: $line in $file"
        failed=1
    elif ! grep -qF "$expected" "$scratch/said"; then
        echo "$line in $file: arrows.sh does not say \"$expected\" but:"
        cat "$scratch/said"
        failed=1
    fi
    cp "$scratch/before" "$scratch/tree/$file"
done <<'LIST'
base/text.c|#include "kernels/backend.h"|base may not include
kernels/host.c|#include "collectives/world.h"|kernels may not include
collectives/world.c|#include "offload/io.h"|collectives may not include
offload/queue.c|#include "engine/model.h"|offload may not include
engine/plan/plan.c|#include "engine/program/program.h"|engine/plan may not include
engine/program/order.c|#include "engine/run/run.h"|engine/program may not include
engine/config/settings.c|#include "engine/plan/plan.h"|engine/config may not include
engine/monitor/csv.c|#include "engine/run/run.h"|engine/monitor may not include
engine/proof/dry.c|#include "engine/checkpoint/save.h"|engine/proof may not include
engine/checkpoint/save.c|#include "engine/proof/dry.h"|engine/checkpoint may not include
models/arch.h|#include "planning/rates.h"|models may not include
cli/env.c|#include "trainer/options.h"|cli may not include
trainer/trainer.c|#include "engine/model.h"|trainer may not include
examples/minimal/minimal.c|#include "models/arch.h"|examples may not include
include/sherd.h|#include "base/text.h"|include may not include
engine/run/run.c|#include "offload/io.h"|engine/run/run.c:of core includes offload/io.h of offload
engine/run/run.c|#include "engine/run/store.h"|engine/run/run.c:of core includes engine/run/store.h of offload
kernels/cpu/scalar.c|#include "kernels/codecs.h"|kernels/cpu/scalar.c:of core includes kernels/codecs.h of encodings
kernels/cpu/table_list.h|#include "kernels/product.h"|kernels/cpu/table_list.h:of core includes kernels/product.h of muon
base/text.c|#include "base/json.h"|base/text.c:of core includes base/json.h of json
engine/run/blobs.c|#include "engine/run/store.h"|engine/run/blobs.c:of blobs includes engine/run/store.h of offload
engine/run/run.c|#ifdef SHERDI_MODULE_JSON|SHERDI_MODULE_... outside a list
engine/run/run.c|SHERDI_IN_JSON(int i;)|SHERDI_MODULE_... outside a list
engine/run/run.c|#include "base/assert.h"|the list slow of meson.build
offload/queue.c|#include "collectives/world_impl.h"|an _impl.h crosses folders
engine/run/run.c|void f(void) { pthread_create(0, 0, 0, 0); }|not by sherdi_thread_start
engine/run/run.c|#include <jansson.h>|<jansson\.h> is included outside its file
engine/run/run.c|#include <mpi.h>|<mpi\.h> is included outside its file
engine/run/run.c|#include <cuda_runtime_api.h>|is included outside its file
offload/queue.c|#include <liburing.h>|<liburing> is included outside its file
trainer/trainer.c|#include <cblas.h>|is included outside its file
LIST
exit $failed

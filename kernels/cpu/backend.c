/* The CPU as a backend. It chooses the instruction set once, at creation. The loops are in scalar.c
 * (read it first) and in the files of other instruction sets; the threads are in team.c. */
#include "kernels/backend.h"

#include "base/absent.h"
#include "base/text.h"
#include "kernels/cpu/team.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const sherdi_kernel_ops *(*const VECTORS)(const char *isa) = SHERDI_VECTORS;

const sherdi_kernel_ops *sherdi_kernels_cpu_find(const char *isa)
{
    if (strcmp(isa, sherdi_kernels_scalar.isa) == 0) {
        return &sherdi_kernels_scalar;
    }
    return VECTORS == NULL ? NULL : VECTORS(isa);
}

static sherd_status kernels_choose(const sherdi_kernel_ops **out)
{
    const char              *wanted = getenv("SHERD_ISA");
    const sherdi_kernel_ops *best   = VECTORS == NULL ? NULL : VECTORS(NULL);
    size_t                   choice;

    if (wanted == NULL || wanted[0] == '\0') {
        *out = best != NULL ? best : &sherdi_kernels_scalar;
        return SHERD_OK;
    }
    *out = sherdi_kernels_cpu_find(wanted);
    if (*out != NULL) {
        return SHERD_OK;
    }
    if (!sherdi_text_choice("scalar|avx2|avx512", wanted, 0, &choice)) {
        return sherdi_fail(SHERD_E_INVAL, "SHERD_ISA is \"%s\"; it may be scalar, avx2 or avx512",
                           wanted);
    }
    return sherdi_fail(SHERD_E_NOTSUP,
                       "SHERD_ISA asks for %s, which this machine or build does not have", wanted);
}

static const sherdi_team_ops *const TEAM = SHERDI_TEAM;

static int is_asked(const char *variable, const char *nothing)
{
    const char *text = getenv(variable);

    return text != NULL && text[0] != '\0' && strcmp(text, nothing) != 0;
}

static sherd_status team_make(sherdi_backend *backend, const sherdi_cpu_params *params)
{
    if (TEAM != NULL) {
        return TEAM->create(params, backend->mem, &backend->threads, &backend->team);
    }
    backend->threads = 1;
    return params->threads > 1                  ? sherdi_absent("teams", "cpu_threads")
           : is_asked("SHERD_THREADS", "1")     ? sherdi_absent("teams", "SHERD_THREADS")
           : is_asked("SHERD_CPU_BIND", "none") ? sherdi_absent("teams", "SHERD_CPU_BIND")
                                                : SHERD_OK;
}

sherd_status sherdi_backend_cpu_create_with(const sherdi_cpu_params *params, sherdi_mem *mem,
                                            sherdi_backend **out)
{
    const sherdi_kernel_ops *kernels;
    sherdi_backend          *backend;
    sherd_status             status;

    if (params->threads < 0) {
        return sherdi_fail(SHERD_E_INVAL, "the CPU backend cannot have %d threads",
                           params->threads);
    }
    SHERDI_TRY(kernels_choose(&kernels));
    backend = sherdi_alloc(mem, SHERDI_MEM_CONTROL, sizeof(*backend) + kernels->own_bytes);
    if (backend == NULL) {
        return SHERD_E_NOMEM;
    }
    backend->ahead   = kernels->own_bytes > 0 ? (void *)(backend + 1) : NULL;
    backend->name    = "cpu";
    backend->kernels = kernels;
    backend->device  = &sherdi_device_cpu;
    backend->mem     = mem;
    status           = team_make(backend, params);
    if (status != SHERD_OK) {
        backend->device->lane_destroy(backend);
        return status;
    }
    *out = backend;
    return SHERD_OK;
}

void sherdi_backend_cpu_describe(const sherdi_backend *backend, char *text, size_t text_bytes)
{
    int threads = backend->threads;

    if (backend->team != NULL) {
        backend->team->ops->describe(backend->team, threads, text, text_bytes);
    } else {
        (void)snprintf(text, text_bytes, "%d thread%s", threads,
                       threads == 1 ? "" : "s, not bound");
    }
}

int sherdi_update_parts(sherdi_update_id update)
{
    static const int PARTS[] = {
#define SHERDI_UPDATE(name, num_parts) num_parts,
#include "kernels/updates/rows.h"
    };

    return PARTS[update];
}

size_t sherdi_update_bytes(sherdi_update_id update, const sherdi_update_args *args, int writes)
{
    int is_beside = sherdi_encoding_is_beside(args->encodings[0]); /* the parameter is read too */
    size_t param  = args->param == NULL ? 0 : sherd_dtype_bytes(args->param_dtype);
    size_t elem   = sherd_dtype_bytes(args->grad_dtype) + (is_beside ? sizeof(uint16_t) : 0);
    size_t chunk  = SHERD_CHUNK_ELEMS * (writes ? elem + param : elem);
    size_t elems  = 0;

    for (int i = 0; i < sherdi_update_parts(update); i++) {
        chunk += (writes ? 2 : 1) * sherdi_encoding_chunk_bytes(args->encodings[i]);
    }
    for (size_t i = 0; i < args->num_spans; i++) {
        elems += args->spans[i].count_elems;
    }
    return elems * chunk / SHERD_CHUNK_ELEMS;
}

void sherdi_backend_destroy(sherdi_backend *backend)
{
    if (backend != NULL) {
        backend->device->lane_destroy(backend);
    }
}

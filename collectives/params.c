/* The parameters of a world: defaults, ranges, and the kind of device that they ask for. */
#include "collectives/world_impl.h"

#include <stdlib.h>
#include <string.h>

static const world_transports *const TRANSPORTS = SHERDI_WORLD_TRANSPORTS;

void sherd_world_params_init(sherd_world_params *params)
{
    sherdi_api_init(params, &(sherd_world_params){
                                .struct_size = sizeof(*params),
                                .device      = -1,
                                .local_rank  = -1,
                            });
}

sherd_status sherdi_world_params_read(const sherd_world_params *given, sherd_world_params *out)
{
    const char *kind;

    sherd_world_params_init(out);
    if (given != NULL) {
        SHERDI_TRY(sherdi_api_check(given, SHERDI_API(sherd_world_params)));
        memcpy(out, given, given->struct_size); /* an earlier version's program has fewer fields */
        out->struct_size = sizeof(*out);
    }
    if (out->timeout_ns < 0 || out->cpu_threads < 0 || out->local_rank < -1 || out->device < -1) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "sherd_world_params has timeout_ns %lld, cpu_threads %d, local_rank %d, device %d; the "
            "first two must not be negative, the last two not below -1",
            (long long)out->timeout_ns, out->cpu_threads, out->local_rank, out->device);
    }
    if (out->cpu_threads > SHERDI_MOST_CPU_THREADS) {
        return sherdi_fail(SHERD_E_INVAL,
                           "sherd_world_params.cpu_threads is %d; it can be 0 (chosen) to %d",
                           out->cpu_threads, SHERDI_MOST_CPU_THREADS);
    }
    if (TRANSPORTS != NULL) {
        SHERDI_TRY(TRANSPORTS->params_read(out));
    }
    return sherdi_world_backend_kind(out, &kind);
}

int sherdi_world_wants_device(const char *transport)
{
    return TRANSPORTS != NULL && TRANSPORTS->wants_device(transport);
}

sherd_status sherdi_world_backend_kind(const sherd_world_params *params, const char **out)
{
    const char *wanted = params->backend;
    const char *where  = "sherd_world_params.backend";

    if (wanted == NULL) {
        wanted = getenv("SHERD_BACKEND");
        where  = "SHERD_BACKEND";
    }
    if (wanted == NULL || wanted[0] == '\0') {
        int is_given = params->device >= 0 || sherdi_world_wants_device(params->transport);

        *out = is_given ? "cuda" : "cpu";
        return SHERD_OK;
    }
    if (strcmp(wanted, "cpu") != 0 && strcmp(wanted, "cuda") != 0) {
        return sherdi_fail(SHERD_E_INVAL, "%s is \"%s\"; there are cpu and cuda", where, wanted);
    }
    *out = strcmp(wanted, "cpu") == 0 ? "cpu" : "cuda";
    return SHERD_OK;
}

/* The parameters of worlds: defaults, ranges, the kind of device that they ask for, and worlds of
 * threads that have parameters. */
#include "collectives/threads.h"
#include "collectives/transport.h"

#include <stdlib.h>
#include <string.h>

void sherd_world_params_init(sherd_world_params *params)
{
    sherdi_api_init(params, &sherdi_world_standard);
}

sherd_status sherdi_world_params_read(const sherd_world_params *given, sherd_world_params *out)
{
    const sherdi_transport *transport;
    const char             *kind;

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
    for (size_t i = 0; (transport = sherdi_transport_at(i)) != NULL; i++) {
        if (transport->params_read != NULL) {
            SHERDI_TRY(transport->params_read(out));
        }
    }
    return sherdi_world_backend_kind(out, &kind);
}

int sherdi_world_wants_device(const char *name)
{
    const sherdi_transport *transport = sherdi_transport_find(name);

    return transport != NULL && (transport->holds & SHERDI_TRANSPORT_DEVICES) != 0;
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

sherd_status sherd_world_threads_with(int world_size, const sherd_world_params *params,
                                      sherd_world **worlds_out)
{
    sherd_world_params here;

    SHERDI_TRY(sherdi_api_check_out(worlds_out, "sherd_world_threads_with"));
    SHERDI_TRY(sherdi_world_params_read(params, &here));
    if (here.transport != NULL && strcmp(here.transport, sherdi_threads_ops.name) != 0) {
        return sherdi_fail(SHERD_E_INVAL, "ranks that are threads cannot use transport %s",
                           here.transport);
    }
    here.local_rank = -1;
    return sherdi_threads_create(world_size, &here, worlds_out);
}

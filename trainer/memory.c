/* Prints a rank's memory. See memory.h. */
#include "memory.h"

#include "models/process.h"

#include <stdio.h>

sherd_memory_report memory_of(sherd_engine *engine)
{
    sherd_memory_report memory = {.struct_size = sizeof(memory)};

    if (sherd_engine_memory(engine, &memory) != SHERD_OK) {
        memory = (sherd_memory_report){.struct_size = sizeof(memory)};
    }
    return memory;
}

/* Of the device, with the world's room for reductions. */
typedef struct part {
    size_t planned, held;
} part;

static part host_of(const sherd_memory_report *m)
{
    return (part){m->host_params_planned + m->host_grads_planned + m->host_state_planned +
                      m->host_staging_planned + m->host_activations_planned,
                  m->host_params_held + m->host_grads_held + m->host_state_held +
                      m->host_staging_held + m->host_activations_held};
}

static part device_of(const sherd_memory_report *m, part host)
{
    return (part){m->total_planned - host.planned + m->receive_planned,
                  m->total_held - host.held + m->receive_held};
}

/* Of a GPU: what all programs have of it. On the CPU it is memory of the host, which the next line
 * reports. */
static void device_say(report *r, const char *when, const sherd_memory_report *m, part device,
                       const memory_place *place)
{
    char planned[32], held[32], activations[32], used[32], system[64] = "";

    if (place->is_gpu) {
        (void)snprintf(
            system, sizeof(system), "; the GPU reports %s in use",
            report_bytes(m->device_outside_held + m->transport_device_held + device.held, used));
    }
    report_say(r, "%s: device %s planned, %s held, in addition %s of activations%s", when,
               report_bytes(device.planned, planned), report_bytes(device.held, held),
               report_bytes(place->activation_bytes, activations), system);
}

void memory_say(report *r, const char *when, sherd_engine *engine, const memory_place *place)
{
    sherd_memory_report m      = memory_of(engine);
    process_memory      system = process_memory_now();
    part                host   = host_of(&m);
    char                planned[32], held[32], now[32], peak[32], ranks[32] = "";

    device_say(r, when, &m, device_of(&m, host), place);
    if (place->ranks > 1) {
        (void)snprintf(ranks, sizeof(ranks), " with %d ranks", place->ranks);
    }
    report_say(r,
               "%s: host %s planned, %s held; the system reports %s of this process%s, %s at its "
               "most",
               when, report_bytes(host.planned, planned), report_bytes(host.held, held),
               report_bytes(system.resident, now), ranks, report_bytes(system.peak, peak));
    report_say(r, "%s: pinned %s planned, %s held; the system reports %s locked or pinned", when,
               report_bytes(m.pinned_planned, planned), report_bytes(m.pinned_held, held),
               report_bytes(system.locked, now));
}

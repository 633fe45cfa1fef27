/* The stream of a trainer that works on a device. */
#include "engine/engine.h"
#include "engine/run/engine_impl.h"
#include "engine/run/needs.h"

void *sherd_engine_stream(const sherd_engine *engine)
{
    return engine == NULL ? NULL : engine->backend->device->lane_stream(engine->backend);
}

sherd_status sherd_engine_set_stream(sherd_engine *engine, void *stream)
{
    void *default_stream;

    SHERDI_TRY(sherdi_engine_need(engine, "sherd_engine_set_stream", SHERDI_NEED_OPEN));
    default_stream = engine->backend->device->default_stream;
    if (default_stream == NULL) {
        return sherdi_fail(SHERD_E_NOTSUP,
                           "sherd_engine_set_stream: the engine computes on the CPU, "
                           "which has no streams");
    }
    return sherdi_engine_lane(engine, stream == NULL ? default_stream : stream);
}

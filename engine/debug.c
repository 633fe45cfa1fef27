/* SHERD_DEBUG: whether parameters were written while a unit was acquired. What becomes of such a write depends on the
 * layout (kept where parameters are whole, lost where they are gathered), so it is an error in all of them.
 * loop.c calls this; what else SHERD_DEBUG does stands where it is done (is_debug). */
#include "engine/engine_impl.h"

#include "base/checked.h"
#include "base/hash.h"

#define PIECE_BYTES ((size_t)16 * 1024)

/* In pieces: a device's memory comes to the host for it. */
static sherd_status param_hash(sherd_engine *engine, size_t param, uint64_t *out)
{
    size_t len_bytes =
        engine->model.params[param].elems * sherd_dtype_bytes(engine->settings.compute_dtype);
    const unsigned char *memory = len_bytes == 0 ? NULL : sherdi_loop_param(engine, param);
    unsigned char        piece[PIECE_BYTES];

    *out = 0;
    for (size_t at = 0; at < len_bytes; at += PIECE_BYTES) {
        size_t here_bytes = sherdi_min_size(PIECE_BYTES, len_bytes - at);

        SHERDI_TRY(sherdi_place_get(engine, SHERDI_PLACE_DEVICE, piece, memory + at, here_bytes));
        *out = sherdi_hash_bytes(*out, piece, here_bytes);
    }
    return SHERD_OK;
}

sherd_status sherdi_debug_params_note(sherd_engine *engine, int unit)
{
    const sherdi_model_unit *info = &engine->model.units[unit];

    for (size_t i = 0; i < info->num_params && engine->settings.is_debug; i++) {
        SHERDI_TRY(
            param_hash(engine, (size_t)info->params[i], &engine->param_hashes[info->params[i]]));
    }
    return SHERD_OK;
}

sherd_status sherdi_debug_params_check(sherd_engine *engine, int unit)
{
    const sherdi_model_unit *info = &engine->model.units[unit];

    for (size_t i = 0; i < info->num_params && engine->settings.is_debug; i++) {
        size_t   param = (size_t)info->params[i];
        uint64_t hash;

        SHERDI_TRY(param_hash(engine, param, &hash));
        if (hash != engine->param_hashes[param]) {
            return sherdi_fail(
                SHERD_E_STATE,
                "unit %s: parameter %s was written while it was acquired; what sherd_param_data "
                "gives is read only: some layouts would keep the write and others lose it",
                info->name, engine->model.params[param].name);
        }
    }
    return SHERD_OK;
}

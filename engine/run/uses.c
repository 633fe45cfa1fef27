/* Units that backward may use any number of times: at the end of a micro-batch the ranks begin the
 * gradients that another rank has, and tell whether any rank had a backward pass. */
#include "engine/run/uses.h"

#include "engine/modules.h"

#include <string.h>

sherd_status sherdi_uses_open(sherd_engine *engine)
{
    size_t count = engine->plan->layout.used_words;

    engine->exchange.used =
        sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, (size_t)engine->world_size * count,
                           sizeof(*engine->exchange.used));
    return engine->exchange.used == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

void sherdi_uses_close(sherd_engine *engine)
{
    sherdi_free(engine->exchange.used);
    engine->exchange.used = NULL;
}

void sherdi_uses_note(const sherd_engine *engine, uint64_t *words)
{
    size_t bit = 0;

    for (size_t u = 0; u < engine->plan->layout.num_units; u++) {
        if (engine->plan->layout.units[u].is_open_ended) {
            words[bit / 64] |= (uint64_t)sherdi_unit_of(engine, (int)u)->has_gradient << bit % 64;
            bit++;
        }
    }
    words[bit / 64] |= (uint64_t)engine->window.has_backward << bit % 64;
}

/* Begins the gradients that any rank has; on a rank that had none, the gradient is zero. */
static sherd_status used_begin(sherd_engine *engine, const uint64_t *words)
{
    const sherdi_program *program = &engine->run.program;
    uint32_t              before  = sherdi_program_flag(program, SHERDI_OP_ALONE);
    sherd_status          status  = SHERD_OK;
    size_t                bit     = 0;

    for (size_t u = 0; u < engine->plan->layout.num_units && status == SHERD_OK; u++) {
        if (engine->plan->layout.units[u].is_open_ended) {
            if (words[bit / 64] >> bit % 64 & 1) {
                status = sherdi_program_gradient_begin(program, (int)u);
            }
            bit++;
        }
    }
    program->progress->flags = before;
    SHERDI_TRY(status);
    engine->window.has_backward = (int)(words[bit / 64] >> bit % 64 & 1);
    return SHERD_OK;
}

static sherd_status used_agree(sherd_engine *engine)
{
    size_t    count = engine->plan->layout.used_words;
    uint64_t *all   = engine->exchange.used;
    uint64_t *mine  = all + (size_t)engine->rank * count;

    if (count == 0) {
        return SHERD_OK;
    }
    memset(mine, 0, count * sizeof(*mine));
    sherdi_uses_note(engine, mine);
    SHERDI_TRY(sherdi_run_exchange(engine, SHERDI_EXCHANGE_USED, mine, all, NULL));
    for (size_t i = count; i < count * (size_t)engine->world_size; i++) {
        all[i % count] |= all[i];
    }
    return used_begin(engine, all);
}

const sherdi_module sherdi_module_uses = {
    .open = sherdi_uses_open, .close = sherdi_uses_close, .micro_batch_ending = used_agree};

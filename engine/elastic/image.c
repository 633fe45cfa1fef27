/* See image.h. The states of all blocks follow each other, and behind them lie the parameters. */
#include "engine/elastic/image.h"

#include "base/checked.h"
#include "engine/elastic/ledger.h"
#include "engine/program/program_walk.h"

static size_t state_bytes(const sherdi_plan *plan, const sherdi_block *block)
{
    return sherdi_round_up(sherdi_plan_state_bytes(plan, block), 64);
}

static size_t param_bytes(const sherdi_plan *plan, const sherdi_block *block)
{
    return sherdi_round_up(block->elems * sherdi_compute_bytes(sherdi_block_segment(plan, block)),
                           64);
}

size_t sherdi_image_bytes(const sherdi_plan *plan)
{
    size_t bytes = 0;

    if (plan->settings.redundancy != SHERDI_REDUNDANCY_HOST || plan->world_size == 1 ||
        plan->packing.buffers[SHERDI_BUFFER_DIRECTIONS].bytes == 0) {
        return 0;
    }
    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        bytes +=
            state_bytes(plan, &plan->layout.blocks[b]) + param_bytes(plan, &plan->layout.blocks[b]);
    }
    return bytes;
}

static void range_copy(const sherd_engine *engine, const sherdi_backend *lane, sherdi_range range,
                       unsigned char *image, int is_back)
{
    unsigned char *values = engine->memory.buffers[range.where] + range.offset;

    lane->kernels->copy(lane, is_back ? values : image, is_back ? image : values, range.bytes);
}

static unsigned char *states_copy(const sherd_engine *engine, unsigned char *image, int is_back)
{
    const sherdi_plan *plan = engine->plan;

    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        const sherdi_block *block = &plan->layout.blocks[b];

        range_copy(engine, engine->host, sherdi_state_at(plan, block), image, is_back);
        image += state_bytes(plan, block);
    }
    return image;
}

/* Without `has_own`, parameters that rest in a buffer of the engine's own stay: they are made again. */
static sherd_status params_copy(const sherd_engine *engine, unsigned char *image, int is_back,
                                int has_own)
{
    const sherdi_plan *plan = engine->plan;

    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        const sherdi_block *block = &plan->layout.blocks[b];
        sherdi_range        range =
            sherdi_program_param_at(plan, sherdi_block_segment(plan, block), block);
        int is_own = range.where == SHERDI_BUFFER_PARAMS;

        if (has_own || !is_own) {
            range_copy(engine, is_own ? engine->backend : engine->host, range, image, is_back);
        }
        image += param_bytes(plan, block);
    }
    return sherdi_lane_wait(engine->backend);
}

sherd_status sherdi_image_take(const sherd_engine *engine, unsigned char *image)
{
    return params_copy(engine, states_copy(engine, image, 0), 0, 1);
}

sherd_status sherdi_image_restore(const sherd_engine *engine, unsigned char *image, int has_own)
{
    return params_copy(engine, states_copy(engine, image, 1), 1, has_own);
}

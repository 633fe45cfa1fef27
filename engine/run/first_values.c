/* First values must be the same on all ranks. Parameters that are whole on every rank are compared by
 * a hash of all values, sliced ones by a few values that every rank asks for. */
#include "engine/modules.h"
#include "engine/run/fill.h"

#include "base/checked.h"
#include "base/hash.h"
#include "engine/run/differences.h"
#include "engine/run/loop.h"

#include <stdio.h>

/* How much device memory comes to the host at a time. */
#define PORTION_BYTES ((size_t)16 * 1024)

sherd_status sherdi_param_hash(sherd_engine *engine, size_t param, uint64_t *out)
{
    size_t len_bytes = engine->model.params[param].elems *
                       sherdi_compute_bytes(sherdi_param_segment(engine->plan, param));
    const unsigned char *memory = len_bytes == 0 ? NULL : sherdi_loop_param(engine, param);
    unsigned char        portion[PORTION_BYTES];

    *out = 0;
    for (size_t at = 0; at < len_bytes; at += PORTION_BYTES) {
        size_t here_bytes = sherdi_min_size(PORTION_BYTES, len_bytes - at);

        engine->backend->kernels->copy(engine->backend, portion, memory + at, here_bytes);
        SHERDI_TRY(sherdi_lane_wait(engine->backend));
        *out = sherdi_hash_bytes(*out, portion, here_bytes);
    }
    return SHERD_OK;
}

sherd_status sherdi_call_hash(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    (void)number_out;
    return sherdi_param_hash(engine, (size_t)op->param, &engine->run.hash);
}

/* For a sliced parameter, every rank asks for the same few values, spread evenly: SAMPLES times
 * SAMPLE_ELEMS. */
#define SAMPLES      4
#define SAMPLE_ELEMS 16

/* Hashes a few values, at the same elements on every rank. Of a sliced parameter no two ranks hold
 * the same elements, so this is the only way to see that they would fill it differently. */
static sherd_status sample_hash(sherdi_fill_source *given, uint64_t *out)
{
    size_t elems = given->engine->model.params[given->param].elems;
    size_t count = sherdi_min_size(elems, SAMPLE_ELEMS);
    size_t last  = SIZE_MAX;
    float  values[SAMPLE_ELEMS];

    *out = given->param;
    for (size_t i = 0; i < SAMPLES; i++) {
        size_t at = (elems - count) * i / (SAMPLES - 1);

        if (at != last && count > 0) {
            SHERDI_TRY(sherdi_fill_ask(given, 0, at, count, values));
            *out = sherdi_hash_bytes(*out, values, count * sizeof(*values));
        }
        last = at;
    }
    return SHERD_OK;
}

static sherd_status sample_take(sherd_engine *engine, sherdi_fill_source *given)
{
    const sherdi_segment *segment = sherdi_param_segment(engine->plan, given->param);

    return engine->world_size > 1 && !segment->is_resident && !segment->is_bound
               ? sample_hash(given, &engine->fill.samples[given->param])
               : SHERD_OK;
}

/* Returns a rank's message about the first value of a parameter. */
static uint64_t start_told(const sherd_engine *engine, int rank, size_t param)
{
    const uint64_t *words = sherdi_agree_message(engine, rank);

    return words[SHERDI_WORDS_OF_FIRST_HASHES + param];
}

static int starts_differ(const sherd_engine *engine, int rank, size_t param)
{
    return start_told(engine, rank, param) != start_told(engine, 0, param);
}

/* Writes "rank 2" or "ranks 1, 3", as many as there is room for: the ranks whose value for a
 * parameter differs from rank 0's. */
static void others_text(const sherd_engine *engine, size_t param, char *text, size_t len_bytes)
{
    size_t used   = 0;
    int    others = 0;

    for (int r = 1; r < engine->world_size; r++) {
        others += starts_differ(engine, r, param);
    }
    used = (size_t)snprintf(text, len_bytes, "rank%s", others > 1 ? "s" : "");
    for (int r = 1; r < engine->world_size && used + 8 < len_bytes; r++) {
        if (starts_differ(engine, r, param)) {
            used += (size_t)snprintf(text + used, len_bytes - used, "%s %d",
                                     used > sizeof("ranks") ? "," : "", r);
        }
    }
}

static sherd_status start_check(const sherd_engine *engine, size_t param)
{
    const sherdi_model_param *info = &engine->model.params[param];
    char                      others[64];

    for (int r = 1; r < engine->world_size; r++) {
        if (starts_differ(engine, r, param)) {
            others_text(engine, param, others, sizeof(others));
            return sherdi_fail(
                SHERD_E_INVAL,
                "parameter %s starts with other values on %s than on rank 0; %s must have the same "
                "values on every rank (same seed, same file)",
                info->name, others,
                info->bound_data != NULL ? "the memory that is bound, or the fill function,"
                                         : "the fill function");
        }
    }
    return SHERD_OK;
}

/* Hashes a parameter that is resident, or bound. */
static sherd_status param_hash(const sherdi_program *program, size_t param)
{
    const sherdi_plan    *plan    = program->plan;
    const sherdi_segment *segment = sherdi_param_segment(plan, param);
    size_t                elem    = sherdi_compute_bytes(segment);
    size_t                at      = segment->is_bound
                                        ? sherdi_trainer_offset(plan, program->model, param)
                                        : segment->param_offset + plan->layout.params[param].offset_elems * elem;
    sherdi_op op = sherdi_op_of_segment(plan, SHERDI_OP_HASH, SHERDI_LANE_COMPUTE, segment);

    op.param = (int)param;
    op.flags = SHERDI_OP_WAITS;
    sherdi_op_use(&op, SHERDI_USE_SRC, SHERDI_READS,
                  sherdi_range_of(segment->is_bound ? SHERDI_AT_TRAINER_DATA : SHERDI_BUFFER_PARAMS,
                                  at, program->model->params[param].elems * elem));
    return sherdi_program_emit(program, &op);
}

/* Computes this rank's value for the comparison of a parameter: a hash of all of it if it is whole,
 * else the sample. */
static sherd_status start_hash(sherd_engine *engine, size_t param, uint64_t *out)
{
    const sherdi_segment *segment =
        &engine->plan->layout.segments[engine->plan->layout.params[param].segment];

    *out = engine->fill.samples[param];
    if (segment->is_bound || segment->is_resident) {
        SHERDI_TRY(param_hash(&engine->run.program, param));
        *out = engine->run.hash;
    }
    return SHERD_OK;
}

/* `all` has room for the message of each rank about its parameters; `mine` for that of this
 * rank. */
static sherd_status starts_exchange(sherd_engine *engine, uint64_t *mine, uint64_t *all)
{
    size_t       count = engine->model.num_params;
    sherd_status own   = SHERD_OK;

    for (size_t p = 0; p < count && own == SHERD_OK; p++) {
        own = start_hash(engine, p, &mine[SHERDI_WORDS_OF_FIRST_HASHES + p]);
    }
    SHERDI_TRY(
        sherdi_agree_on(engine, SHERDI_EXCHANGE_FIRST_HASHES, own, mine, all, SHERDI_FILL_BEGINS));
    for (size_t p = 0; p < count; p++) {
        SHERDI_TRY(start_check(engine, p));
    }
    return SHERD_OK;
}

static sherd_status starts_compare(sherd_engine *engine)
{
    size_t       bytes = sherdi_exchange_bytes(engine->plan, SHERDI_EXCHANGE_FIRST_HASHES);
    size_t       world = (size_t)engine->world_size;
    sherd_status status;
    uint64_t    *mine;
    uint64_t    *all;

    if (world == 1) {
        return SHERD_OK;
    }
    mine   = sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, bytes);
    all    = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, world, bytes);
    status = sherdi_agree_status(engine, mine == NULL || all == NULL ? SHERD_E_NOMEM : SHERD_OK);
    if (status == SHERD_OK) {
        status = starts_exchange(engine, mine, all);
    }
    sherdi_free(all);
    sherdi_free(mine);
    return status;
}

const sherdi_module sherdi_module_first_values = {.param_filled = sample_take,
                                                  .filled       = starts_compare};

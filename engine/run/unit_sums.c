/* Fingerprints of units, made of what the kernels of a step add to the sums that it has anyway: the
 * exact sum of squares of the gradient, and the fingerprint of the weights. Both are sums of
 * integers, so what a kernel adds is the sum behind it minus the sum before it, and this costs two
 * reads. No data is read again but for what rests (`state_interval`): for a few units of each step,
 * the master weights before their update, and the other parts of the state behind it.
 *
 * The words of a unit go to the other ranks with the outcome of the update, so there is no meeting
 * more. On a device the sums are not there when a kernel's call returns, so this is of the CPU. */
#include "engine/run/unit_sums.h"

#include "engine/modules.h"
#include "engine/program/program_walk.h"
#include "engine/run/encoded.h"
#include "engine/run/scalars.h"

#include <string.h>

/* ---------------------------------------------------------------- gradient -- */

static uint64_t prime_add(uint64_t a, uint64_t b)
{
    uint64_t sum = a + b;

    return sum >= SHERDI_UNIT_SUM_PRIME ? sum - SHERDI_UNIT_SUM_PRIME : sum;
}

/* Returns word * 2^shift modulo the prime, in which 2^61 is 1. */
static uint64_t prime_shifted(uint64_t word, unsigned shift)
{
    uint64_t rest = prime_add(word & SHERDI_UNIT_SUM_PRIME, word >> 61);

    return shift == 0 ? rest : ((rest << shift) & SHERDI_UNIT_SUM_PRIME) | (rest >> (61 - shift));
}

/* Returns the remainder of the sum that the bins have, which is the same however they carry, and
 * changes with the chunks that are not finite. */
static uint64_t norm_remainder(const sherdi_norm_acc *norm)
{
    uint64_t rest = prime_shifted(norm->nonfinite, 7);

    for (unsigned k = 0; k < SHERDI_NORM_BINS; k++) {
        rest = prime_add(rest, prime_shifted(norm->bins[k], 32 * k % 61));
    }
    return rest;
}

static uint64_t *unit_word(const sherd_engine *engine, const sherdi_op *op, int word)
{
    sherdi_unit_sums *own = engine->sums.own;

    return &own->mine->words[(size_t)op->unit * own->words + (size_t)word];
}

static void gradient_run(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    const sherdi_norm_acc *norm   = &sherdi_space_scalars(engine, op->space)->head->norm;
    uint64_t              *sum    = &engine->sums.own->gradients[op->unit];
    uint64_t               before = norm_remainder(norm);

    sherdi_run_kernel(engine, lane, op);
    *sum = prime_add(*sum, norm_remainder(norm));
    *sum = prime_add(*sum, SHERDI_UNIT_SUM_PRIME - before);
}

static void gradients_begin(sherdi_unit_sums *own, const sherdi_plan *plan)
{
    memset(own->gradients, 0, plan->layout.num_units * sizeof(*own->gradients));
    own->counts_gradient = 1;
}

/* The ranks have exchanged the message of the window before: no update begins before that. */
static void gradients_end(sherdi_unit_sums *own, const sherdi_plan *plan)
{
    for (size_t u = 0; u < plan->layout.num_units && own->counts_gradient; u++) {
        own->mine->words[u * own->words + SHERDI_UNIT_GRADIENT] = own->gradients[u];
    }
    own->counts_gradient = 0;
}

/* ------------------------------------------------------------------- state -- */

static size_t slot_of(const sherdi_unit_parts *parts, const char *name)
{
    size_t slot = 0;

    while (strcmp(parts->names[slot], name) != 0) {
        slot++;
    }
    return slot;
}

/* Adds the fingerprint of a part of the operation's block. */
static void part_count(const sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op,
                       int part, uint64_t *sum)
{
    const sherdi_plan    *plan    = engine->plan;
    const sherdi_segment *segment = &plan->layout.segments[op->segment];
    const sherdi_span    *spans =
        sherdi_space_scalars(engine, op->space)->spans + op->block->first_span;
    size_t               count = op->block->num_spans;
    const unsigned char *at;

    if (sherdi_segment_part_is_encoded(segment, part)) {
        const sherdi_encoded encoded = sherdi_run_encoded_part(engine, op, part);

        lane->kernels->fingerprint_encoded(lane, spans, count, &encoded, sum);
        return;
    }
    at = part == 0 && !segment->has_master
             ? sherdi_run_address(engine, op, SHERDI_USE_PARAM)
             : (const unsigned char *)sherdi_run_address(engine, op, SHERDI_USE_STATE) +
                   sherdi_plan_part_offset(plan, op->block, part, 0);
    lane->kernels->fingerprint(lane, spans, count, (const float *)(const void *)at, sum);
}

static void parts_count(const sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    const sherdi_segment *segment = &engine->plan->layout.segments[op->segment];

    for (int part = 1; part < sherdi_segment_parts(segment); part++) {
        size_t slot = slot_of(&engine->sums.own->parts, segment->optimizer->parts[part].name);

        part_count(engine, lane, op, part, unit_word(engine, op, SHERDI_UNIT_PARTS + (int)slot));
    }
}

/* Whether a kernel of the walk writes the block that it gets. */
static int is_update(const sherd_engine *engine, const sherdi_op *op)
{
    return op->kind == SHERDI_OP_UPDATE &&
           op->sweep == engine->plan->layout.segments[op->segment].optimizer->num_sweeps - 1;
}

/* Runs a kernel that adds to the fingerprint of the weights. */
static void weights_run(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    const uint64_t *fingerprint = &sherdi_space_scalars(engine, op->space)->head->fingerprint;
    int             counts_rest = engine->sums.own->is_due[op->unit] && is_update(engine, op);
    uint64_t        before      = *fingerprint;

    if (counts_rest) {
        part_count(engine, lane, op, 0, unit_word(engine, op, SHERDI_UNIT_BEFORE));
    }
    sherdi_run_kernel(engine, lane, op);
    *unit_word(engine, op, SHERDI_UNIT_WEIGHTS) += *fingerprint - before;
    if (counts_rest) {
        parts_count(engine, lane, op);
    }
}

/* -------------------------------------------------------------- operations -- */

static int adds_to(const sherdi_op *op, size_t offset)
{
    const sherdi_range *scalars = &op->uses[SHERDI_USE_SCALARS];

    return scalars->where != SHERDI_AT_NOWHERE && scalars->offset == offset && op->unit >= 0;
}

/* The gradient of a window is counted from the clearing at its start to the norm at its end: later
 * kernels of norms belong to sherd_grad_norms, which clears the norm alone. */
static void sums_run(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    sherdi_unit_sums   *own = engine->sums.own;
    const sherdi_range *dst = &op->uses[SHERDI_USE_DST];

    /* each flag belongs to the thread that executes such operations */
    if ((op->kind == SHERDI_OP_NORM || op->flags & SHERDI_OP_MEASURES) &&
        adds_to(op, offsetof(sherdi_scalars_head, norm)) && own->counts_gradient) {
        gradient_run(engine, lane, op);
        return;
    }
    if ((op->kind == SHERDI_OP_UPDATE || op->kind == SHERDI_OP_FINGERPRINT) &&
        adds_to(op, offsetof(sherdi_scalars_head, fingerprint)) && own->counts_update) {
        weights_run(engine, lane, op);
        return;
    }
    if (op->kind == SHERDI_OP_CLEAR && dst->offset == offsetof(sherdi_scalars_head, norm) &&
        dst->bytes > sizeof(sherdi_norm_acc)) {
        gradients_begin(own, engine->plan);
    } else if (op->kind == SHERDI_OP_COLLECT &&
               op->uses[SHERDI_USE_SCALARS].bytes >= engine->plan->scalars.results_bytes) {
        gradients_end(own, engine->plan);
    }
    sherdi_run_kernel(engine, lane, op);
}

static void sums_walk_begin(sherd_engine *engine, sherdi_walk walk)
{
    sherdi_unit_sums *own      = engine->sums.own;
    int64_t           interval = engine->settings.fingerprints.state_interval;

    if (walk != SHERDI_WALK_UPDATE) {
        return;
    }
    own->counts_update = 1;
    for (size_t u = 0; u < engine->plan->layout.num_units; u++) {
        memset(&own->mine->words[u * own->words + SHERDI_UNIT_BEFORE], 0,
               (own->words - SHERDI_UNIT_BEFORE) * sizeof(uint64_t));
        own->is_due[u] = interval > 0 &&
                         engine->run.coeffs.step % interval == (int64_t)u % interval &&
                         !sherdi_program_is_skipped(sherdi_run_program(engine), walk, (int)u);
    }
}

static void sums_walk_end(sherd_engine *engine)
{
    engine->sums.own->counts_update = 0;
}

static void *sums_message(sherd_engine *engine, uint64_t own, void **all_out)
{
    engine->sums.own->mine->word = own;
    *all_out                     = engine->sums.own->all;
    return engine->sums.own->mine;
}

static const sherdi_sums_ops OPS = {sums_walk_begin, sums_walk_end, sums_run, sums_message};

/* -------------------------------------------------------------------- plan -- */

static int is_on(const sherdi_settings *settings)
{
    return settings->fingerprints.file[0] != '\0';
}

void sherdi_unit_parts_find(const sherdi_plan *plan, sherdi_unit_parts *out)
{
    out->count = 0;
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        const sherdi_segment *segment = &plan->layout.segments[s];

        for (int part = 1; part < sherdi_segment_parts(segment); part++) {
            const char *name = segment->optimizer->parts[part].name;
            size_t      slot = 0;

            while (slot < out->count && strcmp(out->names[slot], name) != 0) {
                slot++;
            }
            if (slot == out->count && slot < SHERDI_UNIT_MOST_PARTS) {
                out->names[out->count++] = name;
            }
        }
    }
}

static sherd_status sums_lay_out(sherdi_plan *plan, const sherdi_model *model)
{
    sherdi_unit_parts parts;

    (void)model;
    if (is_on(&plan->settings)) {
        sherdi_unit_parts_find(plan, &parts);
        plan->layout.sum_words = SHERDI_UNIT_PARTS + parts.count;
    }
    return SHERD_OK;
}

/* -------------------------------------------------------------------- life -- */

static sherd_status sums_alloc(sherd_engine *engine)
{
    size_t            units = engine->plan->layout.num_units;
    size_t            ranks = (size_t)engine->world_size;
    sherdi_unit_sums *own   = sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, sizeof(*own));

    if (own == NULL) {
        return SHERD_E_NOMEM;
    }
    /* the first window has begun before */
    *own = (sherdi_unit_sums){.words = engine->plan->layout.sum_words, .counts_gradient = 1};
    engine->sums.own = own;
    sherdi_unit_parts_find(engine->plan, &own->parts);
    own->message_bytes = sherdi_exchange_bytes(engine->plan, SHERDI_EXCHANGE_OUTCOME);
    own->mine          = sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, own->message_bytes);
    own->all = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, ranks, own->message_bytes);
    own->gradients = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, units, sizeof(uint64_t));
    own->is_due    = sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, units);
    if (own->mine == NULL || own->all == NULL || own->gradients == NULL || own->is_due == NULL) {
        return SHERD_E_NOMEM;
    }
    memset(own->gradients, 0, units * sizeof(uint64_t));
    memset(own->mine, 0, own->message_bytes);
    memset(own->is_due, 0, units);
    return SHERD_OK;
}

static sherd_status sums_open(sherd_engine *engine)
{
    if (!is_on(&engine->settings)) {
        return SHERD_OK;
    }
    if (engine->backend->device->is_async) {
        return sherdi_fail(SHERD_E_NOTSUP,
                           "sherd.fingerprints: the fingerprints of units are made on the CPU "
                           "only, and this engine computes on %s; remove the key",
                           engine->backend->name);
    }
    SHERDI_TRY(sums_alloc(engine));
    SHERDI_TRY(sherdi_unit_log_open(engine, &engine->sums.own->log));
    engine->sums.ops = &OPS;
    return SHERD_OK;
}

/* Writes the line of the last boundary if that was not done, and its update is over. */
static void sums_told(sherd_engine *engine)
{
    if (engine->sums.ops == NULL || !engine->sums.own->is_line_due) {
        return;
    }
    engine->sums.own->is_line_due = 0;
    if (engine->sums.own->log != NULL && !engine->fingerprints.is_unreported) {
        sherdi_unit_log_write(engine);
    }
}

static void sums_boundary(sherd_engine *engine)
{
    if (engine->sums.ops == NULL) {
        return;
    }
    engine->sums.own->is_line_due = engine->boundary.is_boundary;
    if (!engine->fingerprints.is_unreported) {
        sums_told(engine);
    }
}

static void sums_dropped(sherd_engine *engine)
{
    if (engine->sums.ops != NULL) {
        engine->sums.own->is_line_due = 0;
    }
}

static void sums_close(sherd_engine *engine)
{
    sherdi_unit_sums *own = engine->sums.own;

    engine->sums.ops = NULL;
    engine->sums.own = NULL;
    if (own == NULL) {
        return;
    }
    sherdi_unit_log_close(own->log);
    sherdi_free(own->mine);
    sherdi_free(own->all);
    sherdi_free(own->gradients);
    sherdi_free(own->is_due);
    sherdi_free(own);
}

const sherdi_module sherdi_module_fingerprints = {
    .lay_out  = sums_lay_out,
    .open     = sums_open,
    .boundary = sums_boundary,
    .reported = sums_told,
    .dropped  = sums_dropped,
    .close    = sums_close,
};

/* Loading: the ranks find every parameter of the model in the manifest. Each rank reads the state
 * that it owns and makes its parameters from it. Then the fingerprints of all ranks together are
 * compared with the manifest. */
#include "engine/checkpoint/folder.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "collectives/broadcast.h"
#include "engine/checkpoint/fit.h"
#include "engine/checkpoint/frozen.h"
#include "engine/checkpoint/parts.h"
#include "engine/checkpoint/reader.h"
#include "engine/checkpoint/save.h"
#include "engine/checkpoint/shard.h"
#include "engine/checkpoint/values.h"
#include "engine/optimizers/scaling.h"
#include "engine/program/program_rings.h"
#include "engine/run/blobs.h"
#include "engine/run/blocks.h"
#include "engine/run/differences.h"
#include "engine/run/failure.h"
#include "engine/run/fill.h"
#include "engine/run/loop.h"
#include "engine/run/marks.h"
#include "engine/run/needs.h"
#include "engine/run/restore.h"
#include "engine/run/update.h"
#include "engine/run/values.h"

#include <stdio.h>
#include <string.h>

#define NOT_THERE (-1)

typedef struct load {
    sherd_engine     *engine;
    sherd_load_params params;
    const char       *dir;
    char              tag[SHERDI_CHECKPOINT_NAME_BYTES];
    sherdi_ioq       *queue;
    unsigned char    *slots;
    float            *values; /* memory after the slots: values that are cast to fp32 */
    sherdi_reader    *reader;
    int64_t *found; /* by parameter of the model: its number in the manifest, or NOT_THERE */
    int (*parts)[SHERDI_MOST_PARTS]; /* by optimizer of the plan and part: number in the manifest */
    int      is_whole; /* nothing is missing, extra, or rounded: the fingerprints must agree */
    uint64_t fingerprint, state_fingerprint; /* of the values that this rank has read */
    uint64_t done_bytes, all_bytes;
    int      is_adopted; /* some rank had no manifest */

    sherdi_blobs blobs; /* of the run, if has_blobs: another rank has sent them */
    int          has_blobs;

    /* the part that is being read */
    const sherdi_op          *op;
    const sherdi_shard_range *range;
    int                       part;
    float  pending[SHERD_CHUNK_ELEMS]; /* the first elements of an incomplete chunk */
    size_t pending_at, num_pending;    /* its first element in the block; how many there are */
} load;

/* ---------------------------------------------------------------- what fits what -- */

static int shape_is(const sherdi_manifest_param *saved, const sherdi_model_param *param)
{
    return saved->ndim == param->ndim &&
           memcmp(saved->shape, param->shape, (size_t)param->ndim * sizeof(*param->shape)) == 0;
}

static sherd_status shape_refuse(const load *l, const sherdi_manifest_param *saved,
                                 const sherdi_model_param *param)
{
    char was[128];
    char is[128];

    sherdi_fit_shape_text(saved->ndim, saved->shape, was, sizeof(was));
    sherdi_fit_shape_text(param->ndim, param->shape, is, sizeof(is));
    return sherdi_fail(SHERD_E_INVAL,
                       "%s/%s: parameter %s has the shape %s there and %s here; load a checkpoint "
                       "of this model, or name the parameter in may_miss and may_be_extra",
                       l->dir, l->tag, param->name, was, is);
}

/* Returns whether the values of a parameter are rounded here. A frozen parameter has no master
 * weights, so rounding to its type changes the fingerprint. */
static int is_rounded(const load *l, const sherdi_manifest_param *saved, size_t p)
{
    sherd_dtype from = saved->is_frozen ? saved->dtype : SHERD_F32;
    sherd_dtype to   = sherdi_param_segment(l->engine->plan, p)->types.compute;

    return l->engine->model.params[p].is_frozen && from != to && to != SHERD_F32;
}

static sherd_status param_match(load *l, size_t p)
{
    const sherdi_model_param *param = &l->engine->model.params[p];
    int64_t                   at    = sherdi_reader_find_param(l->reader, param->name);
    int may_miss = sherdi_fit_is_allowed(l->params.may_miss, l->params.num_may_miss, param->name);

    l->found[p] = at;
    if (at >= 0 && !shape_is(&sherdi_reader_manifest(l->reader)->params[at], param)) {
        if (!may_miss) {
            return shape_refuse(l, &sherdi_reader_manifest(l->reader)->params[at], param);
        }
        l->found[p] = NOT_THERE;
    }
    if (l->found[p] != NOT_THERE) {
        l->is_whole &= !is_rounded(l, &sherdi_reader_manifest(l->reader)->params[at], p);
        return SHERD_OK;
    }
    l->is_whole = 0;
    return may_miss ? SHERD_OK
                    : sherdi_fail(SHERD_E_INVAL,
                                  "%s/%s has no parameter %s; load a checkpoint of this model, or "
                                  "name the parameter in may_miss and fill it",
                                  l->dir, l->tag, param->name);
}

/* Checks the parameters of the checkpoint that the model does not have. */
static sherd_status extra_check(load *l)
{
    const sherdi_manifest *m     = sherdi_reader_manifest(l->reader);
    size_t                 taken = 0;

    for (size_t p = 0; p < l->engine->model.num_params; p++) {
        taken += l->found[p] != NOT_THERE;
    }
    if (taken == m->num_params) {
        return SHERD_OK;
    }
    l->is_whole = 0;
    for (size_t e = 0; e < m->num_params; e++) {
        int is_taken = 0;

        for (size_t p = 0; p < l->engine->model.num_params && !is_taken; p++) {
            is_taken = l->found[p] == (int64_t)e;
        }
        if (!is_taken && !sherdi_fit_is_allowed(l->params.may_be_extra, l->params.num_may_be_extra,
                                                m->params[e].name)) {
            return sherdi_fail(SHERD_E_INVAL,
                               "%s/%s has parameter %s, which this model has not; load a "
                               "checkpoint of this model, or name the parameter in may_be_extra",
                               l->dir, l->tag, m->params[e].name);
        }
    }
    return SHERD_OK;
}

/* Returns the numbers in the manifest of the parts that a parameter's optimizer has. */
static const int *parts_of(const load *l, size_t param)
{
    const sherdi_plan           *plan = l->engine->plan;
    const sherdi_plan_optimizer *of =
        sherdi_plan_optimizer_of(plan, sherdi_param_segment(plan, param)->optimizer);

    return l->parts[of - plan->layout.optimizers];
}

static sherd_status optimizer_match(load *l, const sherdi_optimizer *optimizer, int *parts)
{
    const sherdi_manifest *m = sherdi_reader_manifest(l->reader);
    char                   names[128];

    for (int i = 0; i < optimizer->num_parts; i++) {
        parts[i] = sherdi_reader_find_part(l->reader, optimizer->parts[i].name);
        if (parts[i] < 0 && !l->params.weights_only) {
            sherdi_manifest_optimizers(m, names, sizeof(names));
            return sherdi_fail(SHERD_E_INVAL,
                               "%s/%s was saved by the optimizer %s and has no %s; load its "
                               "weights alone (weights_only), or use that optimizer",
                               l->dir, l->tag, names, optimizer->parts[i].name);
        }
        if (i > 0 && l->params.weights_only) {
            parts[i] = NOT_THERE;
        }
    }
    return SHERD_OK;
}

static int saved_parts(const sherdi_manifest_optimizer *was)
{
    int count = 0;

    for (unsigned left = was->parts; left != 0; left >>= 1) {
        count += (int)(left & 1);
    }
    return count;
}

/* Returns whether `optimizer` can continue from a state of the table `other`, if that one has saved
 * it: the state tags decide, so AdamW can continue from Adam's state. A table with momentum and one
 * without have the same name; the saved parts distinguish them. */
static int state_fits_of(const sherdi_manifest_optimizer *was, const sherdi_optimizer *other,
                         const sherdi_optimizer *optimizer)
{
    return other != NULL && other->num_parts == saved_parts(was) &&
           other->state_tag == optimizer->state_tag && other->num_parts == optimizer->num_parts;
}

/* Returns whether `optimizer` can continue from the state of the optimizer that saved. */
static int state_fits(const sherdi_manifest_optimizer *was, const sherdi_optimizer *optimizer)
{
    for (size_t i = 0; sherdi_optimizer_at(i) != NULL; i++) {
        const sherdi_optimizer *other = sherdi_optimizer_at(i);

        if (strcmp(was->name, sherdi_optimizer_name(other)) == 0) {
            return state_fits_of(was, other, optimizer) ||
                   state_fits_of(was, other->without_momentum, optimizer);
        }
    }
    return 0;
}

/* The difference between two optimizers of one name; "" if the names differ. */
static const char *momentum_text(const sherdi_manifest_optimizer *was, const char *name,
                                 int num_parts)
{
    return strcmp(was->name, name) != 0 ? ""
           : num_parts > 1              ? " with momentum"
                                        : " without momentum";
}

/* Refuses a parameter whose state the checkpoint lacks: one that was frozen when it was saved has
 * only its value, and one that another optimizer updated has a state with another meaning. */
static sherd_status param_state_match(load *l, size_t p)
{
    const sherdi_manifest           *m     = sherdi_reader_manifest(l->reader);
    const sherdi_model_param        *param = &l->engine->model.params[p];
    size_t                           saved = (size_t)l->found[p];
    const sherdi_optimizer          *optimizer;
    const sherdi_manifest_optimizer *was;

    if (!param->is_frozen && m->params[saved].is_frozen) {
        return sherdi_fail(SHERD_E_INVAL,
                           "%s/%s has no optimizer state of parameter %s, which was frozen "
                           "there; load the weights alone (weights_only)",
                           l->dir, l->tag, param->name);
    }
    optimizer = sherdi_param_segment(l->engine->plan, p)->optimizer;
    was       = sherdi_manifest_optimizer_of(m, saved);
    if (optimizer != NULL && !state_fits(was, optimizer)) {
        const char *name = sherdi_optimizer_name(optimizer);

        return sherdi_fail(SHERD_E_INVAL,
                           "%s/%s: parameter %s was updated by %s%s there, and is updated by %s%s "
                           "here; load the weights alone (weights_only), or give its group that "
                           "optimizer",
                           l->dir, l->tag, param->name, was->name,
                           momentum_text(was, name, saved_parts(was)), name,
                           momentum_text(was, name, optimizer->num_parts));
    }
    l->is_whole = l->is_whole && param->is_frozen == m->params[saved].is_frozen;
    return SHERD_OK;
}

static sherd_status parts_match(load *l)
{
    const sherdi_plan *plan = l->engine->plan;

    l->parts = sherdi_alloc_array(&l->engine->mem, SHERDI_MEM_CONTROL, plan->layout.num_optimizers,
                                  sizeof(*l->parts));
    if (l->parts == NULL) {
        return SHERD_E_NOMEM;
    }
    for (size_t o = 0; o < plan->layout.num_optimizers; o++) {
        SHERDI_TRY(optimizer_match(l, plan->layout.optimizers[o].optimizer, l->parts[o]));
    }
    for (size_t p = 0; p < l->engine->model.num_params && !l->params.weights_only; p++) {
        if (l->found[p] >= 0) {
            SHERDI_TRY(param_state_match(l, p));
        }
    }
    return SHERD_OK;
}

/* Prints the parts of an optimizer that lose bits here: their encoding loses more than the one in
 * which the saving run had them. */
static size_t losses_print(const load *l, size_t optimizer, char *text, size_t len_bytes)
{
    const sherdi_plan *plan = l->engine->plan;
    const int         *from = l->parts[optimizer];
    size_t             at   = 0;

    for (int i = 0; i < plan->layout.optimizers[optimizer].optimizer->num_parts; i++) {
        const char *name = sherdi_encoding_name(SHERDI_ENCODING_F32);
        const char *held = name;

        for (size_t s = 0; s < plan->layout.num_segments; s++) {
            const char *own = sherdi_encoding_name(plan->layout.segments[s].encodings[i]);

            if (plan->layout.segments[s].optimizer ==
                    plan->layout.optimizers[optimizer].optimizer &&
                sherdi_encoding_loss(own) > sherdi_encoding_loss(name)) {
                name = own;
            }
        }
        if (from[i] >= 0) {
            held = sherdi_manifest_held(sherdi_reader_manifest(l->reader), from[i]);
        }
        if (from[i] >= 0 && sherdi_encoding_loss(name) > sherdi_encoding_loss(held) &&
            at < len_bytes) {
            at += (size_t)snprintf(
                text + at, len_bytes - at, "%s%s from %s to %s", at == 0 ? "" : ", ",
                plan->layout.optimizers[optimizer].optimizer->parts[i].name, held, name);
        }
    }
    return at;
}

static void losses_warn(const load *l)
{
    char text[256];

    for (size_t o = 0; o < l->engine->plan->layout.num_optimizers && l->engine->rank == 0; o++) {
        if (losses_print(l, o, text, sizeof(text)) > 0) {
            sherdi_log(SHERD_LOG_WARN, l->engine->rank,
                       "%s/%s: the state is rounded while it is loaded (%s), so the run does not "
                       "continue with the same bits (sherd.master_encoding, sherd.moment_encoding)",
                       l->dir, l->tag, text);
        }
    }
}

static sherd_status match(load *l)
{
    l->is_whole = !l->params.weights_only;
    l->found = sherdi_alloc_array(&l->engine->mem, SHERDI_MEM_CONTROL, l->engine->model.num_params,
                                  sizeof(*l->found));
    if (l->found == NULL) {
        return SHERD_E_NOMEM;
    }
    for (size_t p = 0; p < l->engine->model.num_params; p++) {
        SHERDI_TRY(param_match(l, p));
    }
    SHERDI_TRY(extra_check(l));
    return parts_match(l);
}

/* ------------------------------------------------------------------------ values -- */

static void progress_report(load *l, uint64_t bytes)
{
    l->done_bytes += bytes;
    sherdi_engine_progress(l->engine, "sherd_checkpoint_load", l->params.progress,
                           l->params.progress_ctx, l->done_bytes, l->all_bytes);
}

/* Returns the global index of an element, as the saved model counted it. */
static uint64_t saved_index(const load *l, size_t param, size_t first)
{
    return l->engine->model.params[param].first_index + first;
}

static void chunk_flush(load *l)
{
    if (l->num_pending > 0) {
        sherdi_run_block_put(l->engine, l->op, l->part, l->pending_at, l->num_pending, l->pending);
        l->num_pending = 0;
    }
}

/* Puts elements into the block by whole chunks, since an encoding may need a chunk as a whole.
 * Portions of files end anywhere, so a part of a chunk waits in `pending` for the rest. */
static void chunks_put(load *l, size_t offset, size_t count, const float *values)
{
    while (count > 0) {
        size_t some = sherdi_min_size(SHERD_CHUNK_ELEMS - offset % SHERD_CHUNK_ELEMS, count);

        if (l->num_pending == 0 && some == SHERD_CHUNK_ELEMS) {
            some = count / SHERD_CHUNK_ELEMS * SHERD_CHUNK_ELEMS;
            sherdi_run_block_put(l->engine, l->op, l->part, offset, some, values);
        } else {
            l->pending_at = l->num_pending == 0 ? offset : l->pending_at;
            memcpy(l->pending + l->num_pending, values, some * sizeof(*values));
            l->num_pending += some;
            if ((offset + some) % SHERD_CHUNK_ELEMS == 0) {
                chunk_flush(l);
            }
        }
        offset += some;
        values += some;
        count -= some;
    }
}

static sherd_status signs_check(const load *l, size_t first, size_t count, const float *values)
{
    const sherdi_segment *segment = sherdi_param_segment(l->engine->plan, l->range->param);
    size_t                at      = sherdi_values_find_refused(segment, l->part, count, values);

    return at == count
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL,
                             "%s/%s: %s of parameter %s is %g at element %zu, and is never "
                             "negative; here its sign is not stored (sherd.master_encoding, "
                             "sherd.moment_encoding); load another checkpoint, or take fp32",
                             l->dir, l->tag, segment->optimizer->parts[l->part].name,
                             l->engine->model.params[l->range->param].name, (double)values[at],
                             first + at);
}

static sherd_status values_take(void *ctx, size_t first, size_t count, const void *values,
                                sherd_dtype dtype)
{
    load                 *l      = ctx;
    const sherdi_backend *host   = l->engine->host;
    const float          *wide   = values;
    size_t                param  = l->range->param;
    size_t                offset = l->range->offset_elems + (first - l->range->first);
    uint64_t              sum;

    if (dtype != SHERD_F32) {
        host->kernels->cast(host, l->values, SHERD_F32, values, dtype, count);
        wide = l->values;
    }
    SHERDI_TRY(signs_check(l, first, count, wide));
    sum = sherdi_values_fingerprint(host, saved_index(l, param, first), count, wide);
    if (l->part == 0) {
        l->fingerprint += sum;
    } else {
        l->state_fingerprint += sherdi_values_part_sum(parts_of(l, param)[l->part], sum);
    }
    chunks_put(l, offset, count, wide);
    progress_report(l, count * sherd_dtype_bytes(dtype));
    return SHERD_OK;
}

/* Zeroes a part of the state that the load does not take: with weights_only, all parts but the
 * master begin anew. */
static void part_zero(load *l, const sherdi_shard_range *range)
{
    size_t room = l->engine->plan->packing.checkpoint_slot_bytes / sizeof(*l->values);

    memset(l->values, 0, room * sizeof(*l->values));
    for (size_t at = 0; at < range->count; at += room) {
        sherdi_run_block_put(l->engine, l->op, l->part, range->offset_elems + at,
                             sherdi_min_size(room, range->count - at), l->values);
    }
}

static sherd_status range_load(load *l, const sherdi_shard_range *range)
{
    int64_t    saved = l->found[range->param];
    int        count = sherdi_segment_parts(sherdi_param_segment(l->engine->plan, range->param));
    const int *parts = parts_of(l, range->param);

    if (saved == NOT_THERE) {
        return SHERD_OK; /* the parameter keeps its values */
    }
    l->range = range;
    for (l->part = 0; l->part < count; l->part++) {
        if (l->part > 0 && parts[l->part] == NOT_THERE) {
            part_zero(l, range);
            continue;
        }
        SHERDI_TRY(sherdi_reader_values(l->reader, (size_t)saved, l->part == 0 ? 0 : parts[l->part],
                                        range->first, range->count, values_take, l));
        chunk_flush(l);
    }
    return SHERD_OK;
}

static sherd_status block_load(void *ctx, const sherdi_op *op)
{
    load               *l      = ctx;
    sherdi_shard_ranges ranges = sherdi_shard_all(l->engine->plan, &l->engine->model, op->block);
    sherdi_shard_range  range;

    l->op = op;
    while (sherdi_shard_next(&ranges, &range)) {
        SHERDI_TRY(range_load(l, &range));
    }
    return SHERD_OK;
}

/* ------------------------------------------------------------------------ phases -- */

static uint64_t names_hash(uint64_t hash, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        hash = sherdi_hash_bytes(hash, names[i], strlen(names[i]) + 1);
    }
    return sherdi_hash_u64(hash, count);
}

/* The hash does not include the folder, which hosts may have under different paths. The manifest
 * shows whether it is the same checkpoint. */
static uint64_t arguments_hash(const load *l, const char *tag)
{
    uint64_t hash = sherdi_hash_u64(1, (uint64_t)(l->params.weights_only != 0));

    hash = tag == NULL ? hash : sherdi_hash_bytes(hash, tag, strlen(tag));
    hash = names_hash(hash, l->params.may_miss, l->params.num_may_miss);
    return names_hash(hash, l->params.may_be_extra, l->params.num_may_be_extra);
}

/* Returns E_INVAL on all ranks if `word` is not the same on all of them; `own` is the outcome on
 * this rank so far. Collective. */
static sherd_status same_check(const load *l, sherd_status own, uint64_t word, const char *what)
{
    int odd;

    SHERDI_TRY(sherdi_agree_same(l->engine, "sherd_checkpoint_load", own, word, &odd));
    return odd == 0 ? SHERD_OK
                    : sherdi_fail(SHERD_E_INVAL,
                                  "sherd_checkpoint_load: rank %d %s than rank 0; all ranks load "
                                  "the same checkpoint in the same way",
                                  odd, what);
}

/* Finds the latest tag of rank 0 or, if there is none, of the first rank that has one: rank 0 may be
 * on a host that had no part in the save. Collective. */
static sherd_status latest_find(load *l)
{
    sherd_engine        *engine     = l->engine;
    const sherdi_outcome own        = sherdi_outcome_of(sherdi_checkpoint_latest(l->dir, l->tag));
    int                  is_damaged = own.status != SHERD_OK && own.status != SHERD_E_IO;
    int                  root       = 0;

    SHERDI_TRY(sherdi_agree_word(engine, SHERDI_EXCHANGE_PARTS,
                                 engine->rank == 0 && is_damaged ? own.status : SHERD_OK,
                                 own.status == SHERD_OK, NULL));
    while (root < engine->world_size && sherdi_agree_word_of(engine, root) == 0) {
        root++;
    }
    return root == engine->world_size
               ? sherdi_outcome_end(&own)
               : sherdi_world_broadcast(engine->world, l->tag, sizeof(l->tag), root);
}

static sherd_status tag_find(load *l, const char *tag)
{
    sherd_status status = tag == NULL ? SHERD_OK : sherdi_tag_check(tag);

    SHERDI_TRY(
        same_check(l, status, arguments_hash(l, tag), "gives another tag, or other params,"));
    if (tag != NULL) {
        (void)snprintf(l->tag, sizeof(l->tag), "%s", tag);
        return SHERD_OK;
    }
    return latest_find(l);
}

static sherd_status open_local(load *l)
{
    sherd_engine *engine = l->engine;
    sherdi_plan  *plan   = engine->plan;
    size_t        slots  = plan->packing.checkpoint_slots;

    SHERDI_TRY(sherdi_checkpoint_queue(engine, &l->queue));
    l->slots = sherdi_alloc(&engine->mem, SHERDI_MEM_HOST_STAGING,
                            (slots + 2) * plan->packing.checkpoint_slot_bytes);
    if (l->slots == NULL) {
        return SHERD_E_NOMEM;
    }
    /* with room for two slots: a slot of two-byte values becomes twice as long in fp32 */
    l->values = (float *)(void *)(l->slots + slots * plan->packing.checkpoint_slot_bytes);
    SHERDI_TRY(sherdi_reader_open(
        &(sherdi_reader_params){.queue      = l->queue,
                                .mem        = &engine->mem,
                                .dir        = l->dir,
                                .tag        = l->tag,
                                .memory     = l->slots,
                                .slot_bytes = plan->packing.checkpoint_slot_bytes,
                                .num_slots  = slots},
        &l->reader));
    return match(l);
}

static void load_close(load *l)
{
    sherdi_reader_close(l->reader);
    sherdi_ioq_destroy(l->queue);
    sherdi_free(l->slots);
    sherdi_free(l->found);
    sherdi_free(l->parts);
    l->reader = NULL;
    l->queue  = NULL;
    l->slots  = NULL;
    l->found  = NULL;
    l->parts  = NULL;
}

static uint64_t checksum_of(const load *l, sherd_status status)
{
    return status == SHERD_OK ? sherdi_reader_manifest(l->reader)->checksum : 0;
}

static int is_absent(const load *l)
{
    char path[SHERDI_CHECKPOINT_PATH_BYTES];

    return sherdi_checkpoint_path(l->dir, l->tag, SHERDI_MANIFEST_NAME, path) == SHERD_OK &&
           !sherdi_checkpoint_has(path);
}

/* Opens the checkpoint of the first rank that has one of this name; other ranks may get its manifest.
 * Collective. */
static sherd_status same_open(load *l)
{
    sherdi_outcome opened = sherdi_outcome_of(open_local(l));
    uint64_t       own    = checksum_of(l, opened.status);
    sherd_status   status = opened.status;
    int            root   = 0;
    uint64_t       wanted;
    int            odd;

    SHERDI_TRY(sherdi_agree_same(l->engine, "sherd_checkpoint_load",
                                 is_absent(l) ? SHERD_OK : status, own, &odd));
    if (odd == 0) {
        return sherdi_outcome_end(&opened); /* all have it, or none has it */
    }
    while (sherdi_agree_word_of(l->engine, root) == 0) {
        root++;
    }
    wanted        = sherdi_agree_word_of(l->engine, root);
    l->is_adopted = 1;
    SHERDI_TRY(sherdi_parts_adopt(l->engine, l->dir, l->tag, root, wanted, own != wanted));
    if (own != wanted) {
        load_close(l);
        status = open_local(l);
    }
    return same_check(l, status, checksum_of(l, status), "finds another checkpoint in its folder");
}

/* Marks the files that this rank reads. */
static void needs_mark(const load *l, unsigned char (*needs)[SHERDI_DATA_FILES])
{
    const sherd_engine *engine = l->engine;
    const sherdi_plan  *plan   = engine->plan;
    size_t              begin;
    size_t              end;

    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        sherdi_shard_ranges ranges =
            sherdi_shard_all(plan, &engine->model, &plan->layout.blocks[b]);
        sherdi_shard_range range;

        while (sherdi_shard_next(&ranges, &range)) {
            if (l->found[range.param] != NOT_THERE) {
                sherdi_reader_mark(l->reader, (size_t)l->found[range.param], range.first,
                                   range.count, needs);
            }
        }
    }
    for (size_t p = 0; p < engine->model.num_params; p++) {
        if (engine->model.params[p].is_frozen && l->found[p] != NOT_THERE) {
            sherdi_plan_held(plan, p, engine->model.params[p].elems, &begin, &end);
            sherdi_reader_mark(l->reader, (size_t)l->found[p], begin, end - begin, needs);
        }
    }
    for (int r = engine->rank;
         r < sherdi_reader_manifest(l->reader)->world_size && !l->params.weights_only;
         r += engine->world_size) {
        needs[r][SHERDI_DATA_STATE] = 1;
    }
}

/* Of a checkpoint in parts, or one that hosts lack, gets what this rank needs from others.
 * Collective. */
static sherd_status parts_complete(load *l)
{
    const sherdi_plan *plan   = l->engine->plan;
    sherdi_parts       parts  = {.engine      = l->engine,
                                 .reader      = l->reader,
                                 .dir         = l->dir,
                                 .tag         = l->tag,
                                 .needs_blobs = !l->params.weights_only,
                                 .buffer      = l->slots,
                                 .buffer_bytes =
                                     plan->packing.checkpoint_slots * plan->packing.checkpoint_slot_bytes,
                                 .blobs = &l->blobs};
    sherd_status       status = SHERD_OK;

    if (!l->is_adopted && sherdi_reader_manifest(l->reader)->hosts == NULL) {
        return SHERD_OK;
    }
    parts.needs = sherdi_alloc_array(&l->engine->mem, SHERDI_MEM_CONTROL,
                                     (size_t)sherdi_reader_manifest(l->reader)->world_size,
                                     sizeof(*parts.needs));
    if (parts.needs == NULL) {
        status = SHERD_E_NOMEM;
    } else {
        needs_mark(l, parts.needs);
    }
    status       = sherdi_parts_complete(&parts, status);
    l->has_blobs = parts.has_blobs;
    sherdi_free(parts.needs);
    return status;
}

typedef struct loaded_message {
    uint64_t status;
    uint64_t fingerprint, state_fingerprint;
} loaded_message;

_Static_assert(sizeof(loaded_message) == SHERDI_WORDS_OF_LOADED * sizeof(uint64_t),
               "the table has the words of the message");

/* Compares the fingerprints with the manifest. The checksums were right, but the values must also
 * be those that were saved. The ranks sum the fingerprints of the values that they have read.
 * Collective. */
static sherd_status fingerprints_check(void *ctx)
{
    load                  *l      = ctx;
    const sherdi_manifest *m      = sherdi_reader_manifest(l->reader);
    sherd_engine          *engine = l->engine;
    loaded_message         mine   = {.fingerprint       = l->fingerprint,
                                     .state_fingerprint = l->state_fingerprint};
    uint64_t               sum    = engine->fingerprints.frozen;
    uint64_t               state  = 0;
    int                    parts  = engine->plan->layout.is_sliced ? engine->plan->world_size : 1;

    SHERDI_TRY(sherdi_agree_on(engine, SHERDI_EXCHANGE_LOADED, SHERD_OK, &mine, NULL, NULL));
    for (int r = 0; r < parts; r++) {
        const loaded_message *other =
            sherdi_agree_message(engine, sherdi_plan_rank_of_all(engine->plan, r));

        sum += other->fingerprint;
        state += other->state_fingerprint;
    }
    engine->checkpoints->report.fingerprint = sum;
    if (!l->is_whole ||
        (sum == m->fingerprint && (!m->has_state_fingerprint || state == m->state_fingerprint))) {
        return SHERD_OK;
    }
    return sherdi_fail(SHERD_E_INVAL,
                       "%s/%s: what was loaded has fingerprint %016llx (state %016llx), and the "
                       "manifest says %016llx (%016llx); load another checkpoint",
                       l->dir, l->tag, (unsigned long long)sum, (unsigned long long)state,
                       (unsigned long long)m->fingerprint,
                       (unsigned long long)m->state_fingerprint);
}

static void counters_take(const load *l)
{
    const sherdi_manifest *m      = sherdi_reader_manifest(l->reader);
    sherd_engine          *engine = l->engine;

    if (l->params.weights_only) {
        return;
    }
    engine->counters.step = m->step;
    sherdi_samples_set(engine, m->micro_step, m->samples);
    engine->counters.skipped_steps = m->skipped_steps;
    sherdi_scaler_resume(&engine->scaler, &m->scaler);
}

static sherd_status blobs_copy(const load *l)
{
    for (size_t i = 0; i < l->blobs.count; i++) {
        const sherdi_blob *blob = &l->blobs.list[i];

        SHERDI_TRY(sherdi_blobs_put(l->engine->blobs, blob->key, blob->kind, 0, blob->is_large,
                                    blob->data, blob->len_bytes));
    }
    return SHERD_OK;
}

/* Takes the run's blobs and those of ranks. If fewer ranks load than saved, rank r also takes those
 * of ranks r + world_size, and so on. */
static sherd_status blobs_take(load *l)
{
    sherd_engine *engine = l->engine;
    int           saved  = sherdi_reader_manifest(l->reader)->world_size;

    if (l->params.weights_only) {
        return SHERD_OK;
    }
    sherdi_blobs_clear(engine->blobs, 1);
    SHERDI_TRY(l->has_blobs ? blobs_copy(l)
                            : sherdi_reader_blobs(l->reader, SHERDI_BLOB_GLOBAL, 0, engine->blobs));
    for (int r = engine->rank; r < saved; r += engine->world_size) {
        SHERDI_TRY(sherdi_reader_blobs(l->reader, SHERDI_BLOB_OF_RANK, r, engine->blobs));
    }
    return SHERD_OK;
}

/* Marks the loaded parameters as filled: an engine at its start then needs first values only for
 * those that the checkpoint lacks. */
static void fill_settle(load *l)
{
    sherd_engine *engine = l->engine;

    for (size_t p = 0; p < engine->model.num_params; p++) {
        engine->fill.is_filled[p] = engine->fill.is_filled[p] || l->found[p] != NOT_THERE;
    }
    engine->fill.is_loaded  = 1;
    engine->fill.is_changed = 0;
    sherdi_rings_complete(&engine->run.progress, SHERDI_RING_STATE);
    sherdi_rings_complete(&engine->run.progress, SHERDI_RING_PARAMS);
}

static sherd_status frozen_load(void *ctx)
{
    load *l = ctx;

    return sherdi_frozen_load(l->engine, l->reader, l->found, &l->engine->fingerprints.frozen);
}

static sherd_status rest_take(void *ctx)
{
    counters_take(ctx);
    return blobs_take(ctx);
}

/* Loads all values and counters. From here on, a failure leaves the engine changed. Collective. */
static sherd_status values_load(load *l)
{
    const sherdi_load_parts parts  = {frozen_load, block_load, fingerprints_check, rest_take, l};
    int                     is_all = 1;

    for (size_t p = 0; p < l->engine->model.num_params; p++) {
        is_all = is_all && l->found[p] != NOT_THERE;
    }
    SHERDI_TRY(
        sherdi_restore_load(l->engine, is_all ? SHERDI_WALK_LOAD : SHERDI_WALK_LOAD_SOME, &parts));
    fill_settle(l);
    return SHERD_OK;
}

/* Returns the bytes of this rank's state that the checkpoint has. */
static uint64_t bytes_wanted(const load *l)
{
    const sherd_engine *engine = l->engine;
    uint64_t            bytes  = 0;

    for (size_t b = 0; b < engine->plan->layout.num_blocks; b++) {
        const sherdi_block *block = &engine->plan->layout.blocks[b];
        int                 parts = sherdi_segment_parts(sherdi_block_segment(engine->plan, block));
        sherdi_shard_ranges ranges = sherdi_shard_all(engine->plan, &engine->model, block);
        sherdi_shard_range  range;

        while (sherdi_shard_next(&ranges, &range)) {
            for (int part = 0; part < parts; part++) {
                int is_there = l->found[range.param] != NOT_THERE &&
                               parts_of(l, range.param)[part] != NOT_THERE;

                bytes += is_there ? range.count * sizeof(float) : 0;
            }
        }
    }
    return bytes;
}

static sherd_status load_run(load *l, const char *tag)
{
    sherd_engine *engine = l->engine;

    SHERDI_TRY(tag_find(l, tag));
    SHERDI_TRY(same_open(l));
    SHERDI_TRY(parts_complete(l));
    losses_warn(l);
    l->all_bytes               = bytes_wanted(l);
    engine->failure.why.status = SHERD_OK;
    return values_load(l);
}

/* ------------------------------------------------------------------------- calls -- */

void sherd_load_params_init(sherd_load_params *params)
{
    sherdi_api_init(params, &(sherd_load_params){.struct_size = sizeof(*params)});
}

static sherd_status load_check(const sherd_engine *engine, const char *dir)
{
    SHERDI_TRY(sherdi_engine_check_caller(engine, "sherd_checkpoint_load"));
    SHERDI_TRY(sherdi_api_need(dir != NULL, "sherd_checkpoint_load", "dir"));
    SHERDI_TRY(sherdi_world_status(engine->world));
    if (engine->failure.why.status == SHERD_E_DEVICE ||
        (engine->failure.why.status != SHERD_OK && engine->plan == NULL)) { /* it has left */
        return sherdi_engine_check_alive(engine, "sherd_checkpoint_load");
    }
    if (engine->failure.why.status != SHERD_OK) {
        return SHERD_OK;
    }
    return sherdi_engine_need(engine, "sherd_checkpoint_load",
                              SHERDI_NEED_SEALED | SHERDI_NEED_UNPREPARED | SHERDI_NEED_NO_EVAL |
                                  SHERDI_NEED_RELEASED | SHERDI_NEED_NO_GRADIENTS);
}

sherd_status sherd_checkpoint_load(sherd_engine *engine, const char *dir, const char *tag,
                                   const sherd_load_params *params)
{
    load           l     = {.engine = engine, .dir = dir};
    int64_t        start = sherdi_now_ns();
    sherdi_outcome outcome;

    sherd_load_params_init(&l.params);
    SHERDI_TRY(load_check(engine, dir));
    SHERDI_TRY(sherdi_api_read(params, SHERDI_API(sherd_load_params), &l.params));
    SHERDI_TRY(sherdi_api_check_flag(l.params.weights_only, "sherd_load_params.weights_only"));
    SHERDI_TRY(sherdi_fit_check("sherd_checkpoint_load", l.params.may_miss, l.params.num_may_miss,
                                l.params.may_be_extra, l.params.num_may_be_extra));
    SHERDI_TRY(sherd_checkpoint_wait(engine, NULL));
    sherd_checkpoint_report_init(&engine->checkpoints->report);
    sherdi_blobs_init(&l.blobs, &engine->mem);
    outcome                           = sherdi_outcome_of(load_run(&l, tag));
    engine->checkpoints->report.bytes = l.reader == NULL ? 0 : sherdi_reader_bytes(l.reader);
    engine->checkpoints->report.step  = engine->counters.step;
    if (outcome.status == SHERD_OK) {
        sherdi_checkpoint_note(engine, l.dir, l.tag);
    }
    load_close(&l);
    sherdi_blobs_fini(&l.blobs);
    engine->checkpoints->report.blocked_s = engine->checkpoints->report.all_s =
        (double)(sherdi_now_ns() - start) / 1e9;
    return sherdi_engine_outcome(engine, sherdi_outcome_end(&outcome));
}

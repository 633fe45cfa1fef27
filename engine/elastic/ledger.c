/* See ledger.h. The order of the marks is what counts: a piece is saved, then marked as saved, then
 * made, then marked as made. Of a process that is killed, all that it has stored is there. */
#include "engine/elastic/ledger.h"

#include "base/checked.h"
#include "base/log.h"
#include "collectives/host_memory.h"
#include "engine/elastic/image.h"
#include "engine/elastic/move.h"
#include "engine/elastic/room.h"
#include "engine/program/program_walk.h"
#include "engine/run/kernels.h"
#include "engine/run/scalars.h"

#include <string.h>

/* Bytes of the small blobs of a rank: the run's, and its own. */
#define BLOB_BYTES (2 * ((size_t)SHERD_BLOB_MAX_BYTES + SHERD_ALIGN_BYTES))

/* The buffer: the ledger, two copies of the small blobs (each the run's, and then the rank's), and with
 * "host" the ring. */
static size_t blobs_offset(void)
{
    return sherdi_round_up(sizeof(sherdi_ledger), SHERD_ALIGN_BYTES);
}

size_t sherdi_ledger_head_bytes(void)
{
    return blobs_offset() + 2 * BLOB_BYTES;
}

static size_t ring_bytes(const sherdi_plan *plan)
{
    size_t most = 0;

    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        const sherdi_segment *segment = &plan->layout.segments[s];
        size_t elems = SHERDI_PIECE_ELEMS + 2 * SHERD_CHUNK_ELEMS; /* the chunks of both ends */
        size_t bytes = elems * sherdi_compute_bytes(segment);

        for (int part = 0; part < sherdi_segment_parts(segment); part++) {
            bytes += sherdi_segment_part_bytes(segment, part, elems);
        }
        most = sherdi_max_size(most, bytes);
    }
    return sherdi_round_up(most, SHERD_ALIGN_BYTES);
}

static int is_host(const sherdi_plan *plan)
{
    return plan->settings.redundancy == SHERDI_REDUNDANCY_HOST;
}

static int has_ring(const sherdi_plan *plan)
{
    return is_host(plan) && plan->packing.buffers[SHERDI_BUFFER_DIRECTIONS].bytes == 0;
}

size_t sherdi_ledger_bytes(const sherdi_plan *plan)
{
    return sherdi_ledger_head_bytes() + (has_ring(plan) ? ring_bytes(plan) : 0) +
           sherdi_round_up(sherdi_image_bytes(plan), SHERD_ALIGN_BYTES);
}

sherd_status sherdi_ledger_lay_out(sherdi_plan *plan, const sherdi_model *model)
{
    static const sherdi_buffer_id SEEN[] = {SHERDI_BUFFER_HOST_PARAMS, SHERDI_BUFFER_HOST_GRADS,
                                            SHERDI_BUFFER_HOST_STATE,  SHERDI_BUFFER_PARAMS,
                                            SHERDI_BUFFER_GRADS,       SHERDI_BUFFER_STATE};
    sherdi_plan_buffer           *buffer = &plan->packing.buffers[SHERDI_BUFFER_REDUNDANCY];
    size_t                        count  = plan->machine.has_device ? 3 : 6; /* in host memory */

    (void)model;
    if (!is_host(plan)) {
        return SHERD_OK;
    }
    sherdi_plan_buffer_name(plan, SHERDI_BUFFER_REDUNDANCY, "ledger of redundancy",
                            SHERDI_MEM_STAGING, 1);
    buffer->is_shared = sherdi_ledger_sharing(plan);
    buffer->is_pinned = plan->machine.has_device;
    buffer->bytes     = sherdi_ledger_bytes(plan) + sherdi_room_bytes(plan);
    for (size_t i = 0; i < count; i++) {
        sherdi_plan_buffer *seen = &plan->packing.buffers[SEEN[i]];

        seen->is_shared = seen->bytes > 0 ? sherdi_ledger_sharing(plan) : 0;
        seen->is_pinned = seen->is_pinned && plan->machine.has_device;
    }
    return SHERD_OK;
}

/* ------------------------------------------------------------------- the check -- */

static sherd_status refuse(const sherd_engine *engine, const char *why)
{
    static const char *const NAMES[] = {"none", "host", "peer"};

    return sherdi_fail(SHERD_E_NOTSUP, "sherd.redundancy is \"%s\", %s",
                       NAMES[engine->settings.redundancy], why);
}

/* What rests on a device is lost with its rank: that must be parameters alone, which are made again
 * from masters in host memory, or which all ranks have. */
static sherd_status apart_check(const sherd_engine *engine)
{
    const sherdi_plan_layout *layout = &engine->plan->layout;

    for (size_t b = 0; b < layout->num_blocks; b++) {
        if (layout->blocks[b].space != SHERDI_SPACE_HOST) {
            return refuse(engine,
                          "and the engine has state on a device, whose memory ends with its "
                          "process; set zero_optimization.offload_optimizer.device to "
                          "\"cpu\", or choose \"peer\"");
        }
    }
    for (size_t s = 0; s < layout->num_segments; s++) {
        const sherdi_segment *segment = &layout->segments[s];

        if (segment->kind == SHERDI_SEGMENT_FROZEN && !segment->is_resident &&
            segment->param_space != SHERDI_SPACE_HOST) {
            return refuse(engine,
                          "and a device has slices of frozen parameters, and its memory ends "
                          "with its process; set zero_optimization.offload_param.device to "
                          "\"cpu\", or choose \"peer\"");
        }
    }
    return SHERD_OK;
}

static sherd_status segments_check(const sherd_engine *engine)
{
    for (size_t s = 0; s < engine->plan->layout.num_segments; s++) {
        const sherdi_segment *segment = &engine->plan->layout.segments[s];

        if (sherdi_segment_has_matrices(segment) && !is_host(engine->plan)) {
            return refuse(engine, "and Muon updates by whole matrices, which the ranks make "
                                  "together: a second copy cannot be updated alone; choose "
                                  "\"host\"");
        }
        if (segment->is_bound && engine->plan->layout.is_sliced) {
            return refuse(engine, "and parameters are in memory of the program (sherd_param_bind), "
                                  "which the other ranks do not have; do not bind them");
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_ledger_check(sherd_engine *engine)
{
    const sherdi_offloads_settings *offload = &engine->settings.offload;

    if (engine->settings.redundancy == SHERDI_REDUNDANCY_NONE) {
        return SHERD_OK;
    }
    if (sherdi_world_caps(engine->world) & SHERDI_WORLD_SIMULATES) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_pass_check(engine->world, "sherd.redundancy"));
    if (engine->settings.sharding.stage == 0) {
        return refuse(engine, "and at stage 0 every rank has everything; remove the key");
    }
    if (offload->state.space == SHERDI_SPACE_STORAGE) {
        return refuse(engine, "and the state is on NVMe, where its generations outlive a rank; "
                              "remove the key");
    }
    if (offload->params.space == SHERDI_SPACE_STORAGE) {
        return refuse(engine, "and parameters are on NVMe; keep them in memory");
    }
    if (engine->group != NULL || engine->settings.sharding.shard_size > 0) {
        return refuse(engine, "and replicas or second copies (sherd.shard_size, "
                              "zero_hpz_partition_size) are on; remove one of the keys");
    }
    if (is_host(engine->plan) && engine->plan->machine.has_device) {
        SHERDI_TRY(apart_check(engine));
    }
    return segments_check(engine);
}

/* ------------------------------------------------------------------ the ledger -- */

static unsigned char *memory_of(const sherd_engine *engine)
{
    return engine->plan != NULL && engine->plan->packing.buffers[SHERDI_BUFFER_REDUNDANCY].bytes > 0
               ? engine->memory.buffers[SHERDI_BUFFER_REDUNDANCY]
               : NULL;
}

sherdi_ledger *sherdi_ledger_of(sherd_engine *engine)
{
    unsigned char *memory = memory_of(engine);

    return memory != NULL ? (sherdi_ledger *)(void *)memory : &engine->elastic->noted.own;
}

static void blobs_changed(void *ctx)
{
    sherd_engine *engine = ctx;

    sherdi_ledger_blobs_put(engine, engine->blobs);
}

sherd_status sherdi_ledger_open(sherd_engine *engine)
{
    sherdi_noted *noted = &engine->elastic->noted;

    if (noted->skipped == NULL) { /* a move keeps it */
        noted->skipped =
            sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, engine->plan->layout.num_units + 1);
    }
    engine->blobs->changed = sherdi_keeps_nothing(&engine->settings) ? NULL : blobs_changed;
    engine->blobs->ctx     = engine;
    return noted->skipped == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

void sherdi_ledger_close(sherd_engine *engine)
{
    sherdi_free(engine->elastic->noted.skipped);
    engine->elastic->noted.skipped = NULL;
}

/* ------------------------------------------------------------------- the pieces -- */

/* A part of a block's spans. */
typedef struct piece {
    const sherdi_span *spans;
    size_t             count;
    size_t             first, end; /* elements from the start of the block */
    sherdi_span        cut;        /* of a span that is longer than a piece */
} piece;

/* Where the next piece of a block begins. */
typedef struct cursor {
    size_t span, at;
} cursor;

/* Gives the next piece of a block; 0: there is none. */
static int piece_next(const sherdi_span *spans, size_t num_spans, cursor *next, piece *out)
{
    size_t elems = 0;

    if (next->span == num_spans) {
        return 0;
    }
    out->spans = &spans[next->span];
    if (spans[next->span].count_elems > SHERDI_PIECE_ELEMS) {
        const sherdi_span *span = &spans[next->span];

        out->cut = *span;
        out->cut.offset_elems += next->at;
        out->cut.first_index += next->at;
        out->cut.count_elems = sherdi_min_size(SHERDI_PIECE_ELEMS, span->count_elems - next->at);
        out->spans           = &out->cut;
        out->count           = 1;
        next->at += out->cut.count_elems;
        if (next->at == span->count_elems) {
            *next = (cursor){.span = next->span + 1};
        }
    } else {
        while (next->span < num_spans &&
               elems + spans[next->span].count_elems <= SHERDI_PIECE_ELEMS) {
            elems += spans[next->span++].count_elems;
        }
        out->count = (size_t)(&spans[next->span] - out->spans);
    }
    out->first = out->spans[0].offset_elems / SHERD_CHUNK_ELEMS * SHERD_CHUNK_ELEMS;
    out->end   = sherdi_round_up(out->spans[out->count - 1].offset_elems +
                                     out->spans[out->count - 1].count_elems,
                                 SHERD_CHUNK_ELEMS);
    return 1;
}

static uint64_t block_pieces(const sherd_engine *engine, const sherdi_block *block)
{
    cursor   next  = {0};
    uint64_t count = 0;
    piece    unused;

    if (!has_ring(engine->plan)) {
        return 1;
    }
    while (piece_next(engine->plan->layout.spans + block->first_span, block->num_spans, &next,
                      &unused)) {
        count++;
    }
    return count;
}

void sherdi_ledger_skips(sherd_engine *engine)
{
    for (size_t u = 0; u < engine->plan->layout.num_units; u++) {
        engine->elastic->noted.skipped[u] = (unsigned char)sherdi_program_is_skipped(
            &engine->run.program, SHERDI_WALK_UPDATE, (int)u);
    }
}

sherd_status sherdi_ledger_begin(sherd_engine *engine)
{
    const sherdi_plan *plan  = engine->plan;
    uint64_t           total = 0;
    sherdi_noted      *noted;
    sherdi_ledger     *ledger;
    sherdi_pieces     *pieces;
    uint64_t           version;

    if (engine->elastic == NULL) { /* a dry engine */
        return SHERD_OK;
    }
    noted   = &engine->elastic->noted;
    ledger  = sherdi_ledger_of(engine);
    version = ledger->version + 1;
    pieces  = sherdi_ledger_pieces(ledger, version);
    sherdi_ledger_skips(engine);
    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        const sherdi_block *block = &plan->layout.blocks[b];

        total += noted->skipped[sherdi_block_segment(plan, block)->unit]
                     ? 0
                     : block_pieces(engine, block);
    }
    if (sherdi_image_bytes(plan) > 0 && memory_of(engine) != NULL) {
        SHERDI_TRY(sherdi_image_take(engine, memory_of(engine) + sherdi_ledger_head_bytes()));
    }
    pieces->total   = total;
    pieces->saved   = 0;
    pieces->done    = 0;
    noted->walked   = 0;
    ledger->version = version;
    return SHERD_OK;
}

void sherdi_ledger_set(sherd_engine *engine, uint64_t version)
{
    sherdi_ledger *ledger = sherdi_ledger_of(engine);

    *sherdi_ledger_pieces(ledger, version) = (sherdi_pieces){0};
    ledger->version                        = version;
}

uint64_t sherdi_ledger_whole(sherdi_ledger *ledger)
{
    return ledger->version - !sherdi_ledger_is_complete(ledger);
}

/* Whoever is lost while it undoes leaves an update that is torn. */
sherd_status sherdi_ledger_undo(sherd_engine *engine, int has_own)
{
    sherdi_ledger *ledger  = sherdi_ledger_of(engine);
    sherdi_pieces *pieces  = sherdi_ledger_pieces(ledger, ledger->version);
    uint64_t       version = ledger->version - 1;

    pieces->done  = 0;
    pieces->total = 1;
    SHERDI_TRY(
        sherdi_image_restore(engine, memory_of(engine) + sherdi_ledger_head_bytes(), has_own));
    sherdi_ledger_set(engine, version);
    return SHERD_OK;
}

/* ------------------------------------------------------------------- the update -- */

/* What of a block a piece changes: a part of its state, or the parameter (part < 0). */
static unsigned char *part_at(sherd_engine *engine, const sherdi_op *op, int part, size_t first,
                              size_t elems, size_t *bytes)
{
    const sherdi_segment *segment = &engine->plan->layout.segments[op->segment];
    unsigned char        *param   = sherdi_run_address(engine, op, SHERDI_USE_PARAM);
    size_t                elem    = sherdi_compute_bytes(segment);

    if (part < 0) {
        *bytes = param == NULL ? 0 : elems * elem;
        return param == NULL ? NULL : param + first * elem;
    }
    *bytes = sherdi_segment_part_bytes(segment, part, elems);
    return (unsigned char *)sherdi_run_address(engine, op, SHERDI_USE_STATE) +
           sherdi_plan_part_offset(engine->plan, op->block, part, first);
}

/* Copies the values of a piece to the ring, or back. */
static void piece_copy(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op,
                       const piece *what, int is_back)
{
    const sherdi_segment *segment = &engine->plan->layout.segments[op->segment];
    unsigned char        *ring    = memory_of(engine) + sherdi_ledger_head_bytes();
    size_t                elems   = sherdi_min_size(what->end, op->block->elems) - what->first;

    for (int part = segment->has_master ? 0 : 1; part <= sherdi_segment_parts(segment); part++) {
        int            is_param = part == sherdi_segment_parts(segment);
        size_t         bytes;
        unsigned char *values =
            part_at(engine, op, is_param ? -1 : part, what->first, elems, &bytes);

        /* the update makes a parameter anew that is no part of the master */
        if (is_param && segment->has_master && !sherdi_segment_is_beside(segment)) {
            continue;
        }
        if (bytes > 0) {
            lane->kernels->copy(lane, is_back ? values : ring, is_back ? ring : values, bytes);
        }
        ring += bytes;
    }
}

static void piece_make(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op,
                       const piece *what, sherdi_pieces *pieces)
{
    if (engine->elastic->noted.walked++ < pieces->done) {
        return; /* the rank that was lost has made it */
    }
    if (pieces->saved > pieces->done) { /* it was lost in this one */
        piece_copy(engine, lane, op, what, 1);
    } else {
        piece_copy(engine, lane, op, what, 0);
        pieces->saved = pieces->done + 1;
    }
    sherdi_run_update(engine, lane, op, what->spans, what->count);
    pieces->done = pieces->done + 1;
}

void sherdi_kernel_update_noted(sherd_engine *engine, const sherdi_backend *lane,
                                const sherdi_op *op)
{
    const sherdi_segment *segment = &engine->plan->layout.segments[op->segment];
    const sherdi_span    *spans =
        sherdi_space_scalars(engine, op->space)->spans + op->block->first_span;
    sherdi_ledger *ledger = sherdi_ledger_of(engine);
    sherdi_pieces *pieces = sherdi_ledger_pieces(ledger, ledger->version);
    cursor         next   = {0};
    piece          what;

    if (op->sweep + 1 != segment->optimizer->num_sweeps || !has_ring(engine->plan)) {
        sherdi_run_update(engine, lane, op, spans, op->block->num_spans);
        pieces->done += op->sweep + 1 == segment->optimizer->num_sweeps;
        return;
    }
    while (piece_next(spans, op->block->num_spans, &next, &what)) {
        piece_make(engine, lane, op, &what, pieces);
    }
}

/* -------------------------------------------------------------------- the blobs -- */

void sherdi_ledger_blobs_put(sherd_engine *engine, const sherdi_blobs *blobs)
{
    sherdi_ledger *ledger = sherdi_ledger_of(engine);
    unsigned       next   = !ledger->blobs;
    size_t         run    = sherdi_blobs_bytes(blobs, SHERDI_BLOB_GLOBAL, -1);
    size_t         rank   = sherdi_blobs_bytes(blobs, SHERDI_BLOB_OF_RANK, -1);
    unsigned char *at;

    if (memory_of(engine) == NULL) {
        return;
    }
    if (run + rank > BLOB_BYTES) { /* it has those of ranks that have left, too */
        sherdi_log(SHERD_LOG_WARN, engine->rank,
                   "the small blobs of this rank take %zu bytes, and %zu can outlive it: they are "
                   "lost if it is",
                   run + rank, BLOB_BYTES);
        run = rank = 0;
    }
    at = memory_of(engine) + blobs_offset() + next * BLOB_BYTES;
    ledger->blob_bytes[next][SHERDI_BLOB_GLOBAL]  = run;
    ledger->blob_bytes[next][SHERDI_BLOB_OF_RANK] = rank;
    if (run > 0) {
        sherdi_blobs_write(blobs, SHERDI_BLOB_GLOBAL, -1, at);
        sherdi_blobs_write(blobs, SHERDI_BLOB_OF_RANK, -1, at + run);
    }
    ledger->blobs                       = next;
    ledger->blob_changes                = ledger->blob_changes + 1; /* sherdi_ledger_blobs_copy */
    engine->elastic->noted.blob_changes = blobs->changes;
}

sherd_status sherdi_ledger_blobs_get(const unsigned char *memory, sherdi_blobs *out)
{
    const sherdi_ledger *ledger = (const sherdi_ledger *)(const void *)memory;
    unsigned             which  = ledger->blobs;
    const unsigned char *at     = memory + blobs_offset() + which * BLOB_BYTES;

    for (int kind = 0; kind < SHERDI_BLOB_KINDS; kind++) {
        size_t bytes = ledger->blob_bytes[which][kind];

        if (bytes > 0) {
            SHERDI_TRY(sherdi_blobs_read(out, at, bytes));
        }
        at += bytes;
    }
    return SHERD_OK;
}

const unsigned char *sherdi_ledger_memory_of(const sherd_engine *engine, int rank)
{
    return sherdi_world_host_of(engine->shards, rank, memory_of(engine),
                                engine->plan->packing.buffers[SHERDI_BUFFER_REDUNDANCY].bytes);
}

/* The rank may set blobs meanwhile: then the copy is made again. */
void sherdi_ledger_blobs_copy(const unsigned char *memory, unsigned char *copy)
{
    const sherdi_ledger *from = (const sherdi_ledger *)(const void *)memory;
    sherdi_ledger       *to   = (sherdi_ledger *)(void *)copy;

    while (to->blob_changes != from->blob_changes) {
        uint64_t changes = from->blob_changes;
        unsigned which   = from->blobs;
        size_t   at      = blobs_offset() + which * BLOB_BYTES;

        memcpy(to->blob_bytes, from->blob_bytes, sizeof(to->blob_bytes));
        memcpy(
            copy + at, memory + at,
            sherdi_min_size(from->blob_bytes[which][0] + from->blob_bytes[which][1], BLOB_BYTES));
        to->blobs        = which;
        to->blob_changes = changes;
    }
}

/* The opening and the end of a store (store.h): the engine's tiers, opened as the plan says. A run's
 * state has a file for each rank. Opening looks for files of earlier runs, resumes one of these runs
 * if the configuration asks for it, and otherwise starts a new run. */
#include "engine/run/store.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/random.h"
#include "collectives/broadcast.h"
#include "engine/model_hash.h"
#include "engine/modules.h"
#include "engine/run/agree.h"
#include "engine/run/marks.h"
#include "engine/run/needs.h"
#include "engine/run/restore.h"
#include "engine/program/program_rings.h"

#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------- open -- */

typedef struct folder_list {
    const char *paths[SHERDI_MAX_FOLDERS];
    int         count;
} folder_list;

static folder_list folders_of(const sherdi_offload_settings *settings)
{
    folder_list list = {.count = settings->num_folders};

    for (int i = 0; i < settings->num_folders; i++) {
        list.paths[i] = settings->folders[i];
    }
    return list;
}

static sherd_status queue_open(sherd_engine *engine)
{
    static const sherdi_ioq_kind KINDS[] = {
        [SHERDI_IO_AUTO]    = SHERDI_IOQ_AUTO,
        [SHERDI_IO_URING]   = SHERDI_IOQ_URING,
        [SHERDI_IO_THREADS] = SHERDI_IOQ_THREADS,
    };
    const sherdi_settings *settings = &engine->settings;
    sherdi_ioq_params      params   = {
               .kind          = KINDS[settings->io.engine],
               .request_bytes = settings->io.block_bytes,
               .depth         = settings->io.depth,
               .rank          = engine->rank,
               .trace         = sherdi_marks_trace(engine),
    };

    /* a tier without files has no use for a queue */
    return engine->plan->has_files || engine->plan->rings[SHERDI_RING_ACTIVATIONS].num_extents > 0
               ? sherdi_ioq_create(&params, &engine->mem, &engine->storage.store->queue)
               : SHERD_OK;
}

static void queue_register(sherd_engine *engine)
{
    static const int RINGS[] = {SHERDI_BUFFER_STATE_RING, SHERDI_BUFFER_PARAM_RING,
                                SHERDI_BUFFER_GRAD_RING};
    struct iovec     memory[3];
    int              count = 0;

    for (int i = 0; i < 3; i++) {
        const sherdi_plan_buffer *buffer = &engine->plan->packing.buffers[RINGS[i]];

        if (buffer->bytes > 0 && buffer->is_pinned) {
            memory[count++] = (struct iovec){.iov_base = engine->memory.buffers[RINGS[i]],
                                             .iov_len  = buffer->bytes};
        }
    }
    if (count > 0) {
        sherdi_ioq_register(engine->storage.store->queue, memory, count,
                            &engine->storage.pinned_bytes);
    }
}

/* Hashes the meaning of the parts of the state: the optimizer's tag if there is one optimizer, else
 * the tag of each segment's. */
static uint64_t optimizers_hash(uint64_t hash, const sherdi_plan *plan)
{
    uint64_t tag = plan->layout.optimizers[0].optimizer->state_tag;

    if (plan->layout.num_optimizers == 1) {
        return tag == 0 ? hash : sherdi_hash_u64(hash, tag);
    }
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        const sherdi_optimizer *optimizer = plan->layout.segments[s].optimizer;

        hash = sherdi_hash_u64(hash, optimizer == NULL ? UINT64_MAX : optimizer->state_tag);
    }
    return hash;
}

/* Hashes how the parts are stored, if any of them is not plain fp32. */
static uint64_t encodings_hash(uint64_t hash, const sherdi_plan *plan)
{
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        const sherdi_segment *segment = &plan->layout.segments[s];

        for (int i = 0; i < sherdi_segment_parts(segment) &&
                        sherdi_has_encoded(segment->encodings, SHERDI_MOST_PARTS);
             i++) {
            hash = sherdi_hash_u64(hash, s);
            hash = sherdi_hash_u64(hash, (uint64_t)i);
            hash = sherdi_hash_u64(hash, (uint64_t)segment->encodings[i]);
            hash = sherdi_hash_u64(hash, (uint64_t)segment->ties_part);
        }
    }
    return hash;
}

/* Hashes all that must be equal for a state file to fit a plan of this engine. */
static uint64_t layout_hash(const sherd_engine *engine, const sherdi_plan *plan)
{
    uint64_t hash = sherdi_hash_u64(1, (uint64_t)engine->settings.numerics.compute_dtype);

    hash = sherdi_hash_u64(hash, (uint64_t)engine->settings.sharding.stage);
    hash = optimizers_hash(hash, plan);
    /* without the groups: like the configuration's rates, theirs are no part of the state */
    for (size_t i = engine->model.num_groups; i < sherdi_model_num_items(&engine->model); i++) {
        hash = sherdi_hash_u64(hash, sherdi_model_item_state_hash(&engine->model, i));
    }
    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        const sherdi_block *block    = &plan->layout.blocks[b];
        uint64_t            fields[] = {(uint64_t)block->segment, block->offset_elems, block->elems,
                                        block->stride_elems,      block->extent,       block->state_offset};

        hash = sherdi_hash_bytes(hash, fields, sizeof(fields));
    }
    return encodings_hash(hash, plan);
}

static uint64_t run_draw(void)
{
    uint64_t run = sherdi_random_u64();

    return run == 0 ? 1 : run;
}

/* ----------------------------------------------- state files that are there -- */

/* Runs that could be resumed, newest first. */
#define MOST_RUNS        16
#define LOCK_PATIENCE_NS ((int64_t)5 * 1000 * 1000 * 1000)

typedef struct file_run {
    uint64_t run;
    int64_t  changed_s;
} file_run;

typedef struct file_search {
    const sherd_engine *engine;
    uint64_t            layout;
    folder_list         folders;
    file_run            runs[MOST_RUNS]; /* this rank's file fits and has a generation */
    size_t              num_runs;
    size_t              older;  /* files that are this rank's, but in another format */
    uint32_t            format; /* the format of one of these */
    size_t              others; /* files that no process has open */
    uint64_t            locked; /* a run whose file fits, but a process has it open; 0: none */
    uint64_t            others_bytes;
} file_search;

static void run_insert(file_search *search, file_run run)
{
    size_t at = search->num_runs;

    while (at > 0 && search->runs[at - 1].changed_s < run.changed_s) {
        at--;
    }
    if (at == MOST_RUNS) {
        return;
    }
    search->num_runs = sherdi_min_size(search->num_runs + 1, MOST_RUNS);
    memmove(&search->runs[at + 1], &search->runs[at],
            (search->num_runs - 1 - at) * sizeof(search->runs[0]));
    search->runs[at] = run;
}

/* Removes a file without a generation: nothing can be resumed from it, and nobody else would free
 * its space. If somebody else has removed it first, it counts as removed too. */
static int empty_reclaim(const file_search *search, const sherdi_state_found *found)
{
    uint64_t     freed_bytes;
    sherd_status status;

    if (!sherdi_state_found_is_empty(found)) {
        return 0;
    }
    status = sherdi_state_reclaim(found->path, search->folders.paths, search->folders.count,
                                  &freed_bytes);
    if (status == SHERD_OK) {
        sherdi_log(SHERD_LOG_INFO, search->engine->rank,
                   "removed %s (%llu bytes): its run ended before it committed any state to it",
                   found->path, (unsigned long long)freed_bytes);
    }
    return status == SHERD_OK || status == SHERD_E_STATE;
}

static sherd_status file_found(void *ctx, const sherdi_state_found *found)
{
    file_search *search = ctx;

    int is_mine = found->is_valid && found->generation > 0 &&
                  found->id.rank == search->engine->rank &&
                  found->id.world_size == search->engine->world_size;
    int fits =
        is_mine && found->format == SHERDI_STATE_FORMAT && found->id.layout == search->layout;

    if (found->is_locked) {
        search->locked = fits ? found->id.run : search->locked;
        return SHERD_OK;
    }
    if (empty_reclaim(search, found)) {
        return SHERD_OK;
    }
    if (is_mine && found->format != SHERDI_STATE_FORMAT) {
        search->older++;
        search->format = found->format;
    }
    search->others++;
    search->others_bytes += found->held_bytes;
    if (fits) {
        run_insert(search, (file_run){found->id.run, found->changed_s});
    }
    return SHERD_OK;
}

/* Names the key of the folder in the message of a search that failed. */
static sherd_status search_fail(sherd_status status)
{
    char text[SHERDI_ERROR_BYTES];

    (void)snprintf(text, sizeof(text), "zero_optimization.offload_optimizer.nvme_path: %s",
                   sherd_last_error());
    return sherdi_fail_relay(status, text);
}

/* Searches the folder. A process that was killed holds its files until its requests in flight have
 * ended, so a locked file that fits is waited for. After LOCK_PATIENCE_NS it is considered to
 * belong to a living run, and is not touched. */
static sherd_status files_search(const sherd_engine *engine, const char *folder,
                                 file_search *search)
{
    static const struct timespec REST  = {0, 20 * 1000 * 1000};
    int64_t                      start = sherdi_now_ns();
    file_search                  empty = *search;
    sherd_status                 status;

    for (;;) {
        *search = empty;
        status  = sherdi_state_find(folder, file_found, search);
        if (status != SHERD_OK) {
            return search_fail(status);
        }
        if (search->locked == 0 || !engine->settings.offload.resume_state ||
            sherdi_now_ns() - start > LOCK_PATIENCE_NS) {
            return SHERD_OK;
        }
        (void)nanosleep(&REST, NULL);
    }
}

/* Chooses the newest of rank 0's runs for which every rank has its file; 0: none. Collective. */
static sherd_status run_choose(sherd_engine *engine, const file_search *search, uint64_t *out)
{
    uint64_t wanted[MOST_RUNS] = {0};
    uint64_t mine              = 0;
    uint64_t common            = ~(uint64_t)0;

    for (size_t i = 0; i < search->num_runs; i++) {
        wanted[i] = search->runs[i].run;
    }
    SHERDI_TRY(sherdi_world_broadcast(engine->world, wanted, sizeof(wanted), 0));
    for (size_t w = 0; w < MOST_RUNS; w++) {
        for (size_t i = 0; i < search->num_runs; i++) {
            mine |= (uint64_t)(wanted[w] == search->runs[i].run) << w;
        }
    }
    SHERDI_TRY(sherdi_agree_word(engine, SHERDI_EXCHANGE_RUNS, SHERD_OK, mine, NULL));
    for (int r = 0; r < engine->world_size; r++) {
        common &= sherdi_agree_word_of(engine, r);
    }
    *out = common == 0 ? 0 : wanted[__builtin_ctzll(common)];
    return SHERD_OK;
}

/* Reports why a run that was to be resumed is not resumed: a new run in its place must not look
 * like it. A checkpoint, which fits any layout, may still be loaded; this code cannot know. */
static void anew_report(const sherd_engine *engine, const char *folder, const file_search *search)
{
    if (search->locked != 0) {
        sherdi_log(SHERD_LOG_WARN, engine->rank,
                   "run %016llx in %s is not resumed, because another process is using it: the "
                   "state starts anew, unless a checkpoint is loaded",
                   (unsigned long long)search->locked, folder);
    } else if (search->older > 0) {
        sherdi_log(SHERD_LOG_WARN, engine->rank,
                   "%zu state files of this rank in %s are not resumed: they have format %u, and "
                   "this version of sherd reads %u; the state starts anew, unless a checkpoint is "
                   "loaded; the version that wrote them can resume them",
                   search->older, folder, search->format, SHERDI_STATE_FORMAT);
    } else {
        sherdi_log(SHERD_LOG_WARN, engine->rank,
                   "nothing is resumed, though \"resume\" is true: no run in %s fits this model, "
                   "configuration and number of ranks; the state starts anew, unless a checkpoint "
                   "is loaded",
                   folder);
    }
}

static void others_report(const sherd_engine *engine, const char *folder, const file_search *search)
{
    if (search->others > 0) {
        sherdi_log(SHERD_LOG_WARN, engine->rank,
                   "%s holds %zu state files of earlier runs (%.1f MiB), which are kept: `sherd "
                   "state list` shows them, `\"resume\": true` resumes a run that fits, `sherd "
                   "state remove` frees the space",
                   folder, search->others, (double)search->others_bytes / 0x1p20);
    }
}

static sherd_status state_create(sherd_engine *engine, sherdi_state_params *params)
{
    params->id.run = run_draw();
    SHERDI_TRY(sherdi_world_broadcast(engine->world, &params->id.run, sizeof(params->id.run), 0));
    SHERDI_TRY(sherdi_agree_status(engine, sherdi_state_create(engine->storage.store->queue, params,
                                                               &engine->mem,
                                                               &engine->storage.store->state)));
    engine->storage.run = params->id.run;
    return SHERD_OK;
}

static sherd_status state_reopen(sherd_engine *engine, sherdi_state_params *params)
{
    sherdi_store *store = engine->storage.store;

    store->is_worth_keeping =
        1; /* even after a failure on this rank or another: it belongs to an earlier run */
    SHERDI_TRY(sherdi_agree_status(
        engine, sherdi_state_open(store->queue, params, &engine->mem, &store->state)));
    engine->storage.run        = params->id.run;
    engine->storage.is_resumed = 1;
    return SHERD_OK;
}

/* Gives the parameters of the state of a plan's rank. */
static sherdi_state_params state_params(const sherd_engine *engine, const sherdi_plan *plan,
                                        const folder_list *folders)
{
    return (sherdi_state_params){
        .folders     = folders->paths,
        .num_folders = folders->count,
        .id          = {.rank       = sherdi_plan_rank_of_all(plan, plan->rank),
                        .world_size = sherdi_plan_all_ranks(plan),
                        .layout     = layout_hash(engine, plan)},
        .extents     = plan->rings[SHERDI_RING_STATE].extents,
        .num_extents = sherdi_plan_stored(plan),
        .note_bytes  = SHERDI_STATE_NOTE_BYTES,
        .is_verified = engine->settings.offload.verify_reads,
        .is_durable  = engine->settings.offload.durable,
    };
}

static sherd_status state_open(sherd_engine *engine)
{
    folder_list         folders = folders_of(&engine->settings.offload.state);
    sherdi_state_params params  = state_params(engine, engine->plan, &folders);
    file_search         search = {.engine = engine, .layout = params.id.layout, .folders = folders};

    engine->storage.store->note =
        sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, SHERDI_STATE_NOTE_BYTES);
    SHERDI_TRY(sherdi_agree_status(engine, engine->storage.store->note == NULL
                                               ? SHERD_E_NOMEM
                                               : files_search(engine, folders.paths[0], &search)));
    if (engine->settings.offload.resume_state) {
        SHERDI_TRY(run_choose(engine, &search, &params.id.run));
        if (params.id.run != 0) {
            return state_reopen(engine, &params);
        }
    }
    if (engine->rank == 0 && engine->settings.offload.resume_state) {
        anew_report(engine, folders.paths[0], &search);
    }
    if (engine->rank == 0) {
        others_report(engine, folders.paths[0], &search);
    }
    return state_create(engine, &params);
}

/* A file of another rank that is awaited. */
typedef struct file_wait {
    const sherdi_state_id *id;
    int                    is_found, is_locked;
} file_wait;

static sherd_status file_awaited(void *ctx, const sherdi_state_found *found)
{
    file_wait *wait = ctx;

    if (found->id.run == wait->id->run && found->id.rank == wait->id->rank &&
        found->id.world_size == wait->id->world_size) {
        wait->is_found  = 1;
        wait->is_locked = found->is_locked;
    }
    return SHERD_OK;
}

/* Waits until the kernel has let go of the files of a process that has ended. E_STATE: there are
 * none. */
static sherd_status file_await(const char *folder, const sherdi_state_id *id)
{
    static const struct timespec REST  = {0, 2 * 1000 * 1000};
    int64_t                      start = sherdi_now_ns();
    file_wait                    wait  = {.id = id, .is_locked = 1};

    while (wait.is_locked && sherdi_now_ns() - start < LOCK_PATIENCE_NS) {
        wait.is_locked = 0;
        SHERDI_TRY(sherdi_state_find(folder, file_awaited, &wait));
        if (wait.is_locked) {
            (void)nanosleep(&REST, NULL);
        }
    }
    return wait.is_found
               ? SHERD_OK
               : sherdi_fail(SHERD_E_STATE, "%s has no state of rank %d of %d of run %016llx",
                             folder, id->rank, id->world_size, (unsigned long long)id->run);
}

sherd_status sherdi_store_open_other(sherd_engine *engine, sherdi_ioq *queue,
                                     const sherdi_plan *plan, uint64_t run, sherdi_state **out)
{
    folder_list         folders = folders_of(&engine->settings.offload.state);
    sherdi_state_params params  = state_params(engine, plan, &folders);

    params.id.run = run;
    SHERDI_TRY(file_await(folders.paths[0], &params.id));
    return sherdi_state_open(queue, &params, &engine->mem, out);
}

/* Opens the tier of a ring that a block of the configuration names, for contents that mean nothing
 * after this process. */
static sherd_status scratch_tier_open(sherd_engine *engine, const sherdi_tier_kind *kind,
                                      const sherdi_offload_settings *where, sherdi_ring ring,
                                      const char *what, const sherdi_extent *extents,
                                      size_t num_extents)
{
    folder_list        folders = folders_of(where);
    sherdi_tier_params params  = {.queue       = engine->storage.store->queue,
                                  .folders     = folders.paths,
                                  .num_folders = folders.count,
                                  .what        = what,
                                  .extents     = extents,
                                  .num_extents = num_extents};

    return num_extents == 0
               ? SHERD_OK
               : kind->open(&params, &engine->mem, &engine->storage.store->tiers[ring]);
}

/* Opens state that cannot be resumed: the rest of it is in memory, or its tier keeps no
 * generations. */
static sherd_status state_scratch_open(sherd_engine *engine)
{
    const sherdi_plan *plan = engine->plan;

    return sherdi_agree_status(engine,
                               scratch_tier_open(engine, engine->settings.offload.state.tier,
                                                 &engine->settings.offload.state, SHERDI_RING_STATE,
                                                 "state", plan->rings[SHERDI_RING_STATE].extents,
                                                 sherdi_plan_stored(plan)));
}

static sherd_status scratch_open(sherd_engine *engine)
{
    const sherdi_plan *plan = engine->plan;

    SHERDI_TRY(scratch_tier_open(engine, engine->settings.offload.params.tier,
                                 &engine->settings.offload.params, SHERDI_RING_PARAMS, "parameters",
                                 plan->rings[SHERDI_RING_PARAMS].extents,
                                 plan->offload->num_pieces));
    SHERDI_TRY(scratch_tier_open(engine, plan->rings[SHERDI_RING_ACTIVATIONS].tier,
                                 &engine->settings.offload.activations, SHERDI_RING_ACTIVATIONS,
                                 "activations", plan->rings[SHERDI_RING_ACTIVATIONS].extents,
                                 plan->rings[SHERDI_RING_ACTIVATIONS].num_extents));
    return scratch_tier_open(engine, engine->settings.offload.state.tier,
                             &engine->settings.offload.state, SHERDI_RING_GRADS, "gradients",
                             plan->rings[SHERDI_RING_GRADS].extents,
                             plan->rings[SHERDI_RING_GRADS].num_extents);
}

static int drive_asks(void *ctx, sherdi_lane_id lane, uint64_t number)
{
    return sherdi_run_lane_is_over(ctx, lane, number);
}

static sherd_status drive_waits(void *ctx, sherdi_lane_id lane, uint64_t number)
{
    return sherdi_run_lane_wait(ctx, lane, number);
}

static sherd_status drive_open(sherd_engine *engine)
{
    sherdi_drive_others others = {
        .is_over = drive_asks, .wait = drive_waits, .ctx = engine, .users = engine->run.users};

    return sherdi_drive_open(&engine->storage.store->drive, sherdi_program_transfers(engine->plan),
                             &engine->lanes.own->order, &engine->lanes.own->lock, &others,
                             &engine->mem);
}

sherd_status sherdi_store_create(sherd_engine *engine)
{
    engine->storage.store =
        sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, sizeof(*engine->storage.store));
    return engine->storage.store == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

void sherdi_store_destroy(sherd_engine *engine)
{
    sherdi_free(engine->storage.store);
    engine->storage.store = NULL;
}

/* Opens the files that a rank can open without the other ranks. From the drive on, the engine has
 * this table. */
static sherd_status local_open(sherd_engine *engine)
{
    sherd_status status;

    SHERDI_TRY(sherdi_store_create(engine));
    status = drive_open(engine);
    if (status != SHERD_OK) {
        sherdi_drive_close(&engine->storage.store->drive);
        sherdi_store_destroy(engine);
        return status;
    }
    engine->storage.ops          = &sherdi_storage_drive;
    engine->lanes.own->transfers = &sherdi_store_transfers;
    SHERDI_TRY(queue_open(engine));
    if (engine->storage.store->queue != NULL) {
        queue_register(engine);
    }
    SHERDI_TRY(sherdi_world_endings_make(engine->world));
    return scratch_open(engine);
}

static sherd_status store_open(sherd_engine *engine)
{
    size_t stored = 0;

    for (int ring = 0; ring < SHERDI_RINGS; ring++) {
        stored += engine->plan->rings[ring].num_extents;
    }
    if (stored == 0) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_agree_status(engine, local_open(engine)));
    if (engine->plan->has_generations) {
        sherdi_store *store = engine->storage.store;

        SHERDI_TRY(state_open(engine));
        store->tiers[SHERDI_RING_STATE] = sherdi_state_extents(store->state);
        sherdi_world_ending_open(engine->world, &store->ending, engine->storage.run);
        return SHERD_OK;
    }
    return engine->plan->rings[SHERDI_RING_STATE].num_extents > 0 ? state_scratch_open(engine)
                                                                  : SHERD_OK;
}

/* ------------------------------------------------------------------ close -- */

sherd_status sherd_engine_keep_state(sherd_engine *engine, int is_kept)
{
    SHERDI_TRY(sherdi_engine_need(engine, "sherd_engine_keep_state", SHERDI_NEED_SEALED));
    engine->settings.offload.keep_state = is_kept != 0;
    return SHERD_OK;
}

/* How long a rank that has ended waits for the others; sherd_engine_destroy states this time. */
#define END_PATIENCE_NS ((int64_t)10 * 1000 * 1000 * 1000)

/* Whether the state's files stay on the drive. Files with a whole generation stay if the run
 * failed, its last update included, if keep_state is set, or if this run has committed nothing. A
 * run that ended well removes them once every rank has ended: until then the ranks that still work
 * can end in any way, and their run must be resumable. */
static int state_is_kept(sherd_engine *engine)
{
    sherdi_store *store   = engine->storage.store;
    int           is_over = store->is_changed && !engine->settings.offload.keep_state &&
                  engine->failure.why.status == SHERD_OK &&
                  sherdi_world_status(engine->world) == SHERD_OK;
    int64_t most_ns = END_PATIENCE_NS < sherdi_world_timeout_ns(engine->world)
                          ? END_PATIENCE_NS
                          : sherdi_world_timeout_ns(engine->world);

    if (!store->is_worth_keeping) {
        (void)sherdi_world_ending_close(engine->world, &store->ending, 1, 0);
        return 0;
    }
    if (sherdi_world_ending_close(engine->world, &store->ending, is_over, most_ns)) {
        return 0;
    }
    if (is_over) {
        sherdi_log(
            SHERD_LOG_WARN, engine->rank,
            "the state of run %016llx stays on the drive, because not all ranks reached the end of "
            "the run; `\"resume\": true` resumes it, `sherd state remove` frees the space",
            (unsigned long long)engine->storage.run);
    }
    return 1;
}

void sherdi_store_close(sherd_engine *engine)
{
    sherdi_store *store   = engine->storage.store;
    int           is_kept = state_is_kept(engine);

    if (store->state != NULL) {
        sherdi_state_close(store->state, is_kept);
        store->tiers[SHERDI_RING_STATE] = NULL;
    }
    for (int ring = 0; ring < SHERDI_RINGS; ring++) {
        if (store->tiers[ring] != NULL) {
            store->tiers[ring]->ops->close(store->tiers[ring]);
        }
    }
    sherdi_ioq_destroy(store->queue);
    sherdi_free(store->note);
    sherdi_store_destroy(engine);
}

void sherdi_store_stop(sherd_engine *engine)
{
    sherdi_drive_close(&engine->storage.store->drive);
}

/* Commits the first values, so that all ranks are at one generation. */
static sherd_status store_begin(sherd_engine *engine)
{
    if (engine->storage.store != NULL) {
        SHERDI_TRY(sherdi_restore_begin(engine));
        sherdi_store_agreed(engine);
    }
    sherdi_rings_complete(&engine->run.progress, SHERDI_RING_STATE);
    sherdi_rings_complete(&engine->run.progress, SHERDI_RING_PARAMS);
    return SHERD_OK;
}

const sherdi_module sherdi_module_store = {.storage_open = store_open, .filled = store_begin};

#include "engine/run/updater.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "engine/modules.h"
#include "engine/run/failure.h"
#include "engine/run/loop.h"
#include "engine/run/marks.h"
#include "engine/run/store.h"
#include "engine/run/update.h"
#include "engine/program/program_rings.h"
#include "engine/run/lanes_impl.h"
#include "kernels/cpu/roles.h"

#include <stdio.h>
#include <unistd.h>

/* The place of a unit on the board is its number; after them comes the end of the walk. */
static size_t place_of(const sherd_engine *engine, sherdi_post post, int unit)
{
    return post == SHERDI_POST_UNIT ? (size_t)unit : engine->plan->layout.num_units;
}

static int is_here(const sherd_engine *engine)
{
    const sherdi_updater_own *updater = engine->updater.own;

    return updater->is_acting ||
           (updater->is_open && pthread_equal(pthread_self(), updater->thread));
}

static void updater_beat(sherd_engine *engine)
{
    if (is_here(engine)) {
        sherdi_board_beat(engine->updater.own->board);
    }
}

static const sherdi_program *program_of(const sherd_engine *engine)
{
    return is_here(engine) ? &engine->updater.own->program : &engine->run.program;
}

/* ---------------------------------------------------------------- accounts -- */

/* Reads ahead for the next update count for the next update, while the one before it is in
 * progress. */
static int account_of(uint64_t number)
{
    return 1 + (int)(number % 2);
}

int sherdi_updater_account(const sherd_engine *engine, const sherdi_op *op)
{
    const sherdi_updater_own *updater = engine->updater.own;

    if (!engine->updater.is_there) {
        return 0;
    }
    if (op->ring == SHERDI_RING_STATE && (op->flags & SHERDI_OP_AHEAD) != 0) {
        return account_of(updater->number + 1);
    }
    return is_here(engine) ? account_of(updater->number) : 0;
}

/* Takes what an account has moved since it was last taken. */
static sherdi_io_traffic account_take(sherdi_store *store, int account)
{
    sherdi_io_traffic *taken = &store->taken[account];
    sherdi_io_traffic  all =
        store->queue == NULL ? *taken : sherdi_ioq_traffic_of(store->queue, account);
    sherdi_io_traffic moved = {all.read_bytes - taken->read_bytes,
                               all.written_bytes - taken->written_bytes};

    *taken = all;
    return moved;
}

sherdi_file_traffic sherdi_updater_traffic_take(sherd_engine *engine)
{
    sherdi_store     *store = engine->storage.store;
    sherdi_io_traffic moved = account_take(store, 0);
    sherdi_io_traffic ahead = {0};

    if (engine->updater.is_there && !engine->updater.is_queued) {
        ahead = account_take(store, account_of(engine->updater.own->number + 1));
    }
    return (sherdi_file_traffic){moved.read_bytes + ahead.read_bytes,
                                 moved.written_bytes + ahead.written_bytes};
}

sherdi_file_traffic sherdi_updater_traffic(sherd_engine *engine)
{
    sherdi_store *store     = engine->storage.store;
    int           under_way = engine->updater.is_queued ? account_of(engine->updater.own->number)
                                                        : SHERDI_IO_ACCOUNTS; /* of nothing */
    sherdi_file_traffic all = {0};

    for (int account = 0; account < SHERDI_IO_ACCOUNTS && store->queue != NULL; account++) {
        sherdi_io_traffic moved = store->taken[account];

        if (account != under_way) { /* reads ahead count, however fast the drive is */
            sherdi_ioq_settle(store->queue, account);
            moved = sherdi_ioq_traffic_of(store->queue, account);
        }
        all.read_bytes += moved.read_bytes;
        all.written_bytes += moved.written_bytes;
    }
    return all;
}

/* ------------------------------------------------------------- the updater -- */

static void all_post(sherd_engine *engine, uint64_t number)
{
    for (size_t place = 0;
         place <= engine->plan->layout.num_units && engine->updater.own->board != NULL; place++) {
        sherdi_board_post(engine->updater.own->board, place, number);
    }
}

static void update_run(sherd_engine *engine)
{
    sherdi_updater_own *updater = engine->updater.own;
    int                 before = sherdi_io_account(account_of(updater->number)); /* of the commit */
    sherd_status        status = sherdi_update_walk(engine);

    (void)sherdi_io_account(before);
    updater->outcome = sherdi_outcome_of(status);
    if (status != SHERD_OK) {
        all_post(engine, SHERDI_BOARD_FAILED);
    }
    (void)sherdi_queued_post(&updater->program, SHERDI_POST_END, -1);
    updater->ended_ns = sherdi_now_ns();
}

/* Reads ahead as long as the trainer's thread wants it before it takes the outcome. Under the
 * lock. */
static void ahead_read(sherd_engine *engine)
{
    sherdi_updater_own *updater = engine->updater.own;

    while (updater->wants_ahead) {
        updater->wants_ahead = 0;
        (void)pthread_mutex_unlock(&updater->lock);
        if (updater->outcome.status == SHERD_OK) {
            /* a failed read is returned when its result is needed */
            (void)sherdi_rings_read_ahead(&updater->program);
        }
        (void)pthread_mutex_lock(&updater->lock);
    }
}

static void *updater_main(void *raw)
{
    sherd_engine       *engine  = raw;
    sherdi_updater_own *updater = engine->updater.own;

    (void)pthread_setname_np(pthread_self(), "sherd-updater");
    sherdi_backend_cpu_keep(engine->host, SHERDI_CPU_ROLE_UPDATES, engine->rank);
    sherdi_mem_forbid_begin();
    sherdi_marks_queued();
    (void)pthread_mutex_lock(&updater->lock);
    updater->has_begun = 1;
    (void)pthread_cond_broadcast(&updater->changed);
    while (!updater->shall_end || updater->state == SHERDI_UPDATER_WORKING) {
        if (updater->state != SHERDI_UPDATER_WORKING) {
            (void)pthread_cond_wait(&updater->changed, &updater->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&updater->lock);
        update_run(engine);
        (void)pthread_mutex_lock(&updater->lock);
        ahead_read(engine);
        updater->state = SHERDI_UPDATER_OVER;
        (void)pthread_cond_broadcast(&updater->changed);
    }
    (void)pthread_mutex_unlock(&updater->lock);
    sherdi_mem_forbid_end();
    return NULL;
}

/* ------------------------------------------------------- begin and take -- */

/* Gives a ring, which has no transfer under way, to a user. */
static void ring_give(sherd_engine *engine, sherdi_ring ring, sherdi_user user)
{
    sherdi_lanes_impl *lanes = engine->lanes.own;

    if (lanes == NULL) { /* a dry engine has one thread */
        engine->run.users[ring] = user;
        return;
    }
    (void)pthread_mutex_lock(&lanes->lock);
    engine->run.users[ring] = user;
    (void)pthread_mutex_unlock(&lanes->lock);
}

/* The rings of the update; activations always belong to the trainer. */
static void rings_give(sherd_engine *engine, sherdi_user user)
{
    for (int ring = 0; ring < SHERDI_RING_ACTIVATIONS; ring++) {
        ring_give(engine, (sherdi_ring)ring, user);
    }
}

static void state_set(sherdi_updater_own *updater, sherdi_updater_state state)
{
    (void)pthread_mutex_lock(&updater->lock);
    updater->state = state;
    (void)pthread_cond_broadcast(&updater->changed);
    (void)pthread_mutex_unlock(&updater->lock);
}

static void update_begin(sherd_engine *engine)
{
    sherdi_updater_own *updater = engine->updater.own;

    updater->number++;
    updater->begun_ns         = sherdi_now_ns();
    engine->updater.is_queued = 1;
    sherdi_program_queued_begin(&engine->run.program, &updater->program);
    rings_give(engine, SHERDI_USER_UPDATER);
    if (!updater->is_open) { /* a dry engine */
        updater->is_acting = 1;
        update_run(engine);
        updater->is_acting = 0;
        return;
    }
    state_set(updater, SHERDI_UPDATER_WORKING);
}

/* The ranks exchange a failure of the queued update at the next boundary, or before. Before it
 * begins, nothing fails on one rank alone, so that all ranks begin it. */
static sherd_status updater_queue(sherd_engine *engine)
{
    sherdi_run_drop_ahead(engine, SHERDI_RING_PARAMS); /* they are about to change */
    SHERDI_TRY(sherdi_run_quiet(engine));              /* the world or the device is lost */
    /* the scaler, which is the same on all ranks */
    SHERDI_TRY(sherdi_update_commit_note(engine));
    engine->fingerprints.has_own       = 0;
    engine->fingerprints.is_unreported = 1;
    engine->report.fingerprint         = 0;
    update_begin(engine);
    return SHERD_OK;
}

/* Waits until the updater has ended. */
static void updater_wait(sherd_engine *engine)
{
    sherdi_updater_own *updater = engine->updater.own;

    (void)pthread_mutex_lock(&updater->lock);
    while (updater->state == SHERDI_UPDATER_WORKING) {
        (void)pthread_cond_wait(&updater->changed, &updater->lock);
    }
    updater->state = SHERDI_UPDATER_IDLE;
    (void)pthread_mutex_unlock(&updater->lock);
}

void sherdi_updater_take(sherd_engine *engine, sherdi_post post)
{
    if (post == SHERDI_POST_END) {
        engine->updater.own->was_asked = 0;
        ring_give(engine, SHERDI_RING_STATE, SHERDI_USER_TRAINER);
    }
    if (post != SHERDI_POST_UNIT) {
        ring_give(engine, SHERDI_RING_PARAMS, SHERDI_USER_TRAINER);
        ring_give(engine, SHERDI_RING_GRADS, SHERDI_USER_TRAINER);
    }
}

/* Takes the bytes that the update has moved, and its times. */
static void moved_take(sherd_engine *engine)
{
    sherdi_updater_own *updater = engine->updater.own;
    sherdi_link        *joined  = &engine->updater.joined_link;
    const sherdi_link  *all     = &engine->run.links[SHERDI_USER_UPDATER];

    updater->moved = (sherdi_io_traffic){0};
    if (engine->storage.store != NULL) {
        updater->moved = account_take(engine->storage.store, account_of(updater->number));
    }
    updater->moved_link.down_bytes = all->down_bytes - joined->down_bytes;
    updater->moved_link.up_bytes   = all->up_bytes - joined->up_bytes;
    updater->has_moved             = 1;
    sherdi_marks_resolve(engine);
    *joined                         = *all;
    engine->updater.published_bytes = 0;
    updater->times =
        (sherdi_updater_times){.all_ns   = updater->ended_ns - updater->begun_ns,
                               .update_s = sherdi_marks_take_queued(engine, SHERDI_MARK_UPDATE),
                               .copy_s   = sherdi_marks_take_queued(engine, SHERDI_MARK_DOWN) +
                                         sherdi_marks_take_queued(engine, SHERDI_MARK_UP),
                               .waited_s = sherdi_marks_take(engine, SHERDI_MARK_WAIT_UPDATE)};
    for (int ring = 0; ring < SHERDI_RINGS && engine->storage.store != NULL; ring++) {
        sherdi_storage_waits waits =
            sherdi_store_waits_take(engine, SHERDI_USER_UPDATER, (sherdi_ring)ring);

        updater->times.read_ns += waits.read_ns;
        updater->times.write_ns += waits.write_ns;
    }
}

static void updater_report(sherd_engine *engine, sherd_step_report *report)
{
    sherdi_updater_own *updater = engine->updater.own;

    if (!updater->has_moved) {
        return;
    }
    updater->has_moved = 0;
    report->nvme_read_bytes += updater->moved.read_bytes;
    report->nvme_written_bytes += updater->moved.written_bytes;
    report->link_down_bytes += updater->moved_link.down_bytes;
    report->link_up_bytes += updater->moved_link.up_bytes;
    report->update_s += updater->times.update_s;
    report->copy_s += updater->times.copy_s;
    report->beside_s       = (double)updater->times.all_ns * 1e-9;
    report->beside_read_s  = (double)updater->times.read_ns * 1e-9;
    report->beside_write_s = (double)updater->times.write_ns * 1e-9;
    report->wait_update_s  = updater->times.waited_s;
    report->exposed_s += report->wait_update_s;
}

/* Notes the failure of a rank; the outcome of this rank's was written before the number of its
 * failure. */
static sherd_status failure_note(sherd_engine *engine, int rank)
{
    sherdi_updater_own *updater = engine->updater.own;
    const char         *way_out = sherdi_engine_way_out(engine);

    sherdi_outcome_add(
        &updater->seen,
        rank == engine->rank
            ? sherdi_fail(updater->outcome.status, "%s; the update failed: %s",
                          updater->outcome.text, way_out)
            : sherdi_fail(SHERD_E_IO, "rank %d failed in the update; its own message says more; %s",
                          rank, way_out));
    return sherdi_outcome_end(&updater->seen);
}

static void update_end(sherd_engine *engine)
{
    sherdi_updater_own *updater = engine->updater.own;

    if (engine->updater.is_queued) {
        engine->updater.is_queued = 0;
        /* a failure of another rank is reported when the ranks meet, or by an acquire */
        (void)sherdi_program_queued_end(&engine->run.program);
        sherdi_program_queued_forget(&engine->run.program);
        moved_take(engine);
    }
    if (updater->outcome.status != SHERD_OK) {
        (void)failure_note(engine, engine->rank);
    }
}

static sherd_status updater_join(sherd_engine *engine)
{
    sherdi_updater_own *updater = engine->updater.own;

    update_end(engine);
    updater->is_heard |= updater->outcome.status != SHERD_OK;
    return sherdi_outcome_end(&updater->outcome);
}

static sherd_status updater_check(sherd_engine *engine)
{
    sherdi_updater_own *updater = engine->updater.own;

    updater->is_heard |= updater->seen.status != SHERD_OK;
    return sherdi_outcome_end(&updater->seen);
}

static void updater_forget(sherd_engine *engine)
{
    sherdi_updater_own *updater = engine->updater.own;

    update_end(engine);
    updater->seen.status = SHERD_OK;
    updater->is_heard    = 0;
    if (updater->outcome.status != SHERD_OK) {
        updater->outcome.status = SHERD_OK;
        all_post(engine, updater->number);
    }
}

/* Reads the state ahead for the next update, now or after the commit that is under way. */
static sherd_status updater_read_ahead(sherd_engine *engine)
{
    sherdi_updater_own *updater    = engine->updater.own;
    int                 is_working = 0;

    if (engine->run.progress.is_queued && updater->is_open) { /* is_queued: there is one */
        (void)pthread_mutex_lock(&updater->lock);
        is_working           = updater->state == SHERDI_UPDATER_WORKING;
        updater->wants_ahead = is_working;
        (void)pthread_mutex_unlock(&updater->lock);
        updater->was_asked |= is_working;
    }
    if (is_working) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_queued_await(&engine->run.program, SHERDI_POST_END, -1));
    return sherdi_rings_read_ahead(&engine->run.program);
}

/* The update follows the last backward pass of a window. */
static sherd_status update_foresee(sherd_engine *engine, int unit, sherd_pass pass)
{
    (void)unit;
    if (pass != SHERD_BACKWARD || !engine->settings.offload.pipeline_read ||
        !sherdi_loop_ends_after(engine, engine->window.micro_seen + 1)) {
        return SHERD_OK;
    }
    return engine->updater.ops == NULL ? sherdi_rings_read_ahead(&engine->run.program)
                                       : updater_read_ahead(engine);
}

static void updater_settle_ahead(sherd_engine *engine)
{
    if (engine->updater.own->was_asked) {
        (void)sherdi_queued_await(&engine->run.program, SHERDI_POST_END, -1);
    }
}

/* ----------------------------------------------------------- operations -- */

sherd_status sherdi_call_post(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    sherdi_post post = (sherdi_post)op->part;

    (void)number_out;
    if (engine->updater.own == NULL || post == SHERDI_POST_END) {
        return SHERD_OK; /* the state says so, when the thread has ended */
    }
    if (post == SHERDI_POST_WALK) {
        engine->updater.own->walked_ns = sherdi_now_ns();
    }
    sherdi_board_post(engine->updater.own->board, place_of(engine, post, op->unit),
                      engine->updater.own->number);
    return SHERD_OK;
}

static sherd_status board_await(sherd_engine *engine, const sherdi_op *op)
{
    char         what[256];
    int          failed;
    sherd_status status;

    (void)snprintf(what, sizeof(what), "the update of unit %s",
                   op->unit < 0 ? "" : engine->model.units[op->unit].name);
    status = sherdi_board_wait(
        engine->updater.own->board, place_of(engine, (sherdi_post)op->part, op->unit),
        engine->updater.own->number, (op->flags & SHERDI_OP_STABLE) != 0, what, &failed);
    return failed < 0 ? status : failure_note(engine, failed);
}

sherd_status sherdi_call_await(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    int64_t      start_ns = sherdi_now_ns();
    sherd_status status   = SHERD_OK;

    (void)number_out;
    if (engine->updater.own == NULL) {
        return SHERD_OK;
    }
    if (op->part == SHERDI_POST_END) {
        updater_wait(engine);
    } else {
        status = board_await(engine, op);
    }
    if (status == SHERD_OK) {
        sherdi_updater_take(engine, (sherdi_post)op->part);
    }
    sherdi_marks_add(engine, SHERDI_MARK_WAIT_UPDATE,
                     op->unit < 0 ? NULL : engine->model.units[op->unit].name, 0, start_ns,
                     sherdi_now_ns());
    return status;
}

static int is_posted(void *ctx, int unit)
{
    const sherd_engine *engine = ctx;

    return sherdi_board_is_shared(engine->updater.own->board) &&
           sherdi_board_has(engine->updater.own->board, (size_t)unit, engine->updater.own->number,
                            1);
}

/* ---------------------------------------------------------- open and close -- */

static sherd_status thread_open(sherd_engine *engine)
{
    sherdi_updater_own *updater = engine->updater.own;
    int                 error;

    (void)pthread_mutex_init(&updater->lock, NULL);
    (void)pthread_cond_init(&updater->changed, NULL);
    (void)pthread_mutex_lock(&updater->lock); /* the thread waits until it is known */
    error            = sherdi_thread_start(&updater->thread, 0, updater_main, engine);
    updater->is_open = error == 0;
    while (updater->is_open && !updater->has_begun) { /* it reads the engine, which may move */
        (void)pthread_cond_wait(&updater->changed, &updater->lock);
    }
    (void)pthread_mutex_unlock(&updater->lock);
    return error == 0 ? SHERD_OK : sherdi_fail(SHERD_E_NOMEM, "no thread for updates");
}

static void walk_made(sherd_engine *engine, sherdi_outcome *all)
{
    if (!is_here(engine)) {
        return;
    }
    sherdi_outcome_add(all, sherdi_run_settle(engine, SHERDI_RING_PARAMS));
    sherdi_outcome_add(all, sherdi_run_settle(engine, SHERDI_RING_GRADS));
    if (all->status == SHERD_OK) {
        sherdi_outcome_add(all, sherdi_queued_post(program_of(engine), SHERDI_POST_WALK, -1));
    }
}

/* Gives the engine an updater that has nothing yet. */
static sherd_status own_open(sherd_engine *engine)
{
    engine->updater.own =
        sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, sizeof(*engine->updater.own));
    if (engine->updater.own == NULL) {
        return SHERD_E_NOMEM;
    }
    engine->updater.ops = &sherdi_updater_thread;
    return SHERD_OK;
}

static sherd_status program_open(sherd_engine *engine)
{
    sherdi_updater_own *updater = engine->updater.own;

    updater->program          = engine->run.program;
    updater->program.progress = &updater->progress;
    engine->updater.is_there  = 1;
    return sherdi_progress_open_queued(&updater->progress, &engine->run.progress, engine->plan,
                                       &engine->mem);
}

sherd_status sherdi_updater_open_program(sherd_engine *engine)
{
    if (!sherdi_program_can_be_queued(engine->plan)) {
        return SHERD_OK;
    }
    SHERDI_TRY(own_open(engine));
    return program_open(engine);
}

void sherdi_updater_close_program(sherd_engine *engine)
{
    if (engine->updater.own != NULL) {
        sherdi_progress_close_queued(&engine->updater.own->progress);
        sherdi_free(engine->updater.own);
        engine->updater.own = NULL;
        engine->updater.ops = NULL;
    }
}

static sherd_status updater_open(sherd_engine *engine)
{
    sherdi_board *board = NULL;
    sherd_status  own, status;

    if (!sherdi_program_can_be_queued(engine->plan)) {
        return SHERD_OK;
    }
    own = own_open(engine); /* all ranks come to the board, whatever happened here */
    status =
        sherdi_board_open(engine->shards, engine->plan->layout.num_units + 1, &engine->mem, &board);
    if (own != SHERD_OK) {
        sherdi_board_close(board);
        return own;
    }
    SHERDI_TRY(status);
    engine->updater.own->board = board;
    if (!sherdi_board_is_shared(board) && sherdi_program_has_loose_publish(engine->plan)) {
        return SHERD_OK;
    }
    engine->run.program.is_posted = is_posted;
    status                        = program_open(engine);
    return status == SHERD_OK ? thread_open(engine) : status;
}

/* A run whose last update has failed has not ended well, even if the failure is unreported. */
static void failure_keep(sherd_engine *engine)
{
    const sherdi_updater_own *updater = engine->updater.own;

    if (updater->seen.status == SHERD_OK || engine->failure.why.status != SHERD_OK) {
        return;
    }
    if (!updater->is_heard) {
        sherdi_log(SHERD_LOG_ERROR, engine->rank,
                   "the last update has failed, and no call has said so: %s",
                   updater->outcome.status != SHERD_OK ? updater->outcome.text
                                                       : updater->seen.text);
    }
    engine->failure.why = updater->seen;
}

static void updater_close(sherd_engine *engine)
{
    sherdi_updater_own *updater = engine->updater.own;

    if (updater->is_open && engine->process == getpid()) {
        update_end(engine);
        updater_report(engine, &engine->boundary);
        failure_keep(engine);
        (void)pthread_mutex_lock(&updater->lock);
        updater->shall_end = 1;
        (void)pthread_cond_broadcast(&updater->changed);
        (void)pthread_mutex_unlock(&updater->lock);
        (void)pthread_join(updater->thread, NULL);
        (void)pthread_cond_destroy(&updater->changed);
        (void)pthread_mutex_destroy(&updater->lock);
    }
    sherdi_board_close(updater->board);
    sherdi_updater_close_program(engine);
}

const sherdi_updater_ops sherdi_updater_thread = {
    .close        = updater_close,
    .beat         = updater_beat,
    .program      = program_of,
    .walk_made    = walk_made,
    .queue        = updater_queue,
    .join         = updater_join,
    .check        = updater_check,
    .report       = updater_report,
    .forget       = updater_forget,
    .settle_ahead = updater_settle_ahead,
};

const sherdi_module sherdi_module_updater = {.updater_open  = updater_open,
                                             .unit_acquired = update_foresee};

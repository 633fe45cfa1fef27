/* sherd_engine_move. The ranks meet (meet.c). They make everything that the new layout needs, and
 * agree on it; then the values go, segment by segment (wire.c); then each rank closes what it has
 * of the old world. Until the values go, a failure closes what was made, and the engine is in the
 * old world as before. */
#include "engine/elastic/copies.h"
#include "engine/elastic/generation.h"
#include "engine/elastic/lost.h"
#include "engine/elastic/room.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/pages.h"
#include "engine/elastic/sizes.h"
#include "engine/engine.h"
#include "engine/modules.h"
#include "engine/run/agree.h"
#include "engine/run/differences.h"
#include "engine/run/failure.h"
#include "engine/run/fill.h"
#include "engine/run/loop.h"
#include "engine/run/needs.h"
#include "engine/run/unit_sums.h"
#include "engine/run/update.h"

#include <stdlib.h>
#include <string.h>

#define CALL SHERDI_MOVE_CALL

/* ------------------------------------------------------------------ what is refused -- */

static sherd_status refuse(const char *what)
{
    return sherdi_fail(SHERD_E_NOTSUP,
                       CALL ": not with %s yet; save a checkpoint, and load it in the new world",
                       what);
}

static sherd_status trace_check(void)
{
    const char *trace = getenv("SHERD_TRACE");

    if (trace != NULL && trace[0] != '\0') {
        return refuse("SHERD_TRACE, whose file has one number of ranks");
    }
    return SHERD_OK;
}

static sherd_status world_check(sherd_engine *engine, sherd_world *world)
{
    SHERDI_TRY(sherdi_world_check_caller(world, CALL));
    if (world == engine->world) {
        return sherdi_fail(SHERD_E_INVAL, CALL ": the engine is in this world already");
    }
    if (sherdi_world_caps(world) & SHERDI_WORLD_SIMULATES) {
        return refuse("a simulated world");
    }
    return sherdi_pass_check(world, CALL);
}

static sherd_status call_check(sherd_engine *engine, sherd_world *world)
{
    SHERDI_TRY(sherdi_engine_check_caller(engine, CALL));
    if (engine->failure.is_final || sherdi_world_status(engine->world) == SHERD_OK) {
        SHERDI_TRY(sherdi_engine_check_alive(engine, CALL));
    }
    SHERDI_TRY(sherdi_api_need(world != NULL || engine->phase != SHERDI_PHASE_OPEN, CALL,
                               "the world of a newcomer"));
    if (sherdi_world_caps(engine->world) & SHERDI_WORLD_SIMULATES) {
        return refuse("a simulated world");
    }
    SHERDI_TRY(trace_check());
    SHERDI_TRY(sherdi_pass_check(engine->world, CALL));
    return world == NULL ? SHERD_OK : world_check(engine, world);
}

/* ------------------------------------------------------------------------ the rest -- */

sherd_status sherdi_move_rest(sherdi_move *m)
{
    sherd_engine *engine = m->engine;

    SHERDI_TRY(sherdi_world_status(engine->world));
    SHERDI_TRY(sherdi_fill_finish(engine));
    m->report.dropped_micro_batches = engine->window.micro_seen + engine->window.has_begun;
    SHERDI_TRY(sherd_step_discard(engine));
    SHERDI_TRY(SHERDI_ASK(queue, wait, engine));
    SHERDI_TRY(SHERDI_ASK(updater, join, engine));
    SHERDI_TRY(sherd_checkpoint_wait(engine, NULL));
    sherdi_world_caller_note(engine->world, CALL);
    SHERDI_TRY(SHERDI_ASK(lanes, wire_wait, engine));
    SHERDI_TELL(lanes, drain, engine);
    sherdi_move_files_rest(engine);
    SHERDI_TRY(sherdi_lane_wait(engine->backend));
    sherdi_unit_log_lock(engine, 0); /* rank 0 of the new world writes it */
    m->hello.at = (sherdi_standing){.version = sherdi_ledger_of(engine)->version,
                                    .step    = engine->counters.step,
                                    .skipped = engine->counters.skipped_steps,
                                    .micro   = engine->counters.micro_step,
                                    .scaler  = engine->scaler};
    return SHERD_OK;
}

/* -------------------------------------------------------------------------- the seat -- */

static int keeps_watch(const sherdi_move *m)
{
    return m->old.plan != NULL && (m->old.rank == 0) == (m->engine->rank == 0);
}

/* Whether the old memory is kept until the end: then the engine can go back to it, and if one more
 * rank is lost meanwhile the survivors can move again. */
static int keeps_old(const sherdi_move *m)
{
    const sherdi_settings *settings = &m->engine->settings;

    return !sherdi_keeps_nothing(settings) || sherdi_move_is_stored(settings) ||
           sherdi_shard_ranks(settings, m->old_size) < m->old_size;
}

/* Opens the engine in the new world. Collective there. */
static sherd_status seat_open(sherdi_move *m)
{
    sherd_engine  *engine = m->engine;
    sherdi_machine machine;
    sherd_status   status;
    int            resumes = engine->settings.offload.resume_state;
    int            before;

    status        = sherdi_seat_open(engine, m->new_world, &m->batch, &m->old);
    engine->watch = keeps_watch(m) ? m->old.watch : NULL;
    if (status == SHERD_OK) {
        status = sherdi_modules_declared(engine);
    }
    SHERDI_TRY(sherdi_agree_world(engine->world, status));
    SHERDI_TRY(sherdi_modules_created(engine)); /* compares settings, and makes groups */
    SHERDI_TRY(sherdi_modules_sealing(engine));
    SHERDI_TRY(sherdi_machine_detect(engine->world, &machine));
    if (machine.memory_bytes > 0 &&
        !keeps_old(m)) { /* it is given back while the new one is taken */
        machine.memory_bytes += m->old_bytes;
    }
    before                                = sherdi_pages_defer_set(1);
    engine->settings.offload.resume_state = 0; /* the values come from the old layout */
    status                                = sherdi_engine_parts_open(engine, &machine);
    engine->settings.offload.resume_state = resumes;
    (void)sherdi_pages_defer_set(before);
    return status;
}

/* Puts the engine back into the old world. */
static void seat_leave(sherdi_move *m)
{
    if (!m->is_seated) {
        return;
    }
    sherdi_move_wire_close(&m->wire); /* its lane is the new seat's */
    if (keeps_watch(m)) {
        m->engine->watch = NULL; /* the old seat has it */
    }
    sherdi_seat_close(m->engine);
    sherdi_seat_put(m->engine, &m->old);
    m->is_seated                  = 0;
    m->engine->elastic->noted.own = m->own_ledger;
}

/* Gives the layout in which this rank is not; the machine is of no consequence to its borders. */
static sherd_status layout_lend(sherdi_move *m, const sherdi_machine *machine)
{
    sherdi_settings settings = m->engine->settings;
    int             size     = m->old_world == NULL ? m->old_size : m->new_size;

    settings.batch = m->old_world == NULL ? m->hello.batch : m->batch;
    return sherdi_plan_create(&m->engine->model, &settings, 0, size, machine, &m->engine->mem,
                              &m->lent);
}

static sherd_status maps_make(sherdi_move *m)
{
    sherdi_mem *mem = &m->engine->mem;

    m->old_at = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, (size_t)m->old_size, sizeof(int));
    m->new_at = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, (size_t)m->new_size, sizeof(int));
    m->from   = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, (size_t)m->old_size, sizeof(*m->from));
    if (m->stayed == NULL) { /* this rank leaves */
        m->stayed = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, (size_t)m->new_size, sizeof(int));
    }
    if (m->old_at == NULL || m->new_at == NULL || m->from == NULL || m->stayed == NULL) {
        return SHERD_E_NOMEM;
    }
    for (int r = 0; r < m->old_size && m->is_lost; r++) {
        m->old_at[r] = m->goes[r] >= 0 ? m->goes[r] : sherdi_lost_giver(m, r);
    }
    for (int r = 0; r < m->old_size && m->all == m->old_world; r++) {
        m->old_at[r] = r;
        if (m->goes[r] >= 0) {
            m->new_at[m->goes[r]] = r;
            m->stayed[m->goes[r]] = r;
        }
    }
    for (int r = 0; r < m->new_size && m->all == m->new_world; r++) {
        m->new_at[r] = r;
        if (m->stayed[r] >= 0) {
            m->old_at[m->stayed[r]] = r;
        }
    }
    return SHERD_OK;
}

/* Checks that the host has room for both layouts while values go, and notes the most that they take.
 * The device has had room: the new layout is there next to the old one. */
static sherd_status peak_check(sherdi_move *m)
{
    const sherdi_plan    *old_plan = m->old_world == NULL ? NULL : m->plans.old_plan;
    const sherdi_plan    *new_plan = m->new_world == NULL ? NULL : m->plans.new_plan;
    const sherdi_machine *machine  = &m->engine->plan->machine;
    size_t                room     = machine->memory_bytes / (size_t)machine->ranks_per_host;
    sherdi_move_peak      peak     = sherdi_move_peak_of(old_plan, new_plan);

    if (keeps_old(m)) {
        peak.host_held += sherdi_move_given_back(old_plan);
    }
    m->report.peak_bytes = peak.host + peak.device;
    if (new_plan != NULL && machine->memory_bytes > 0 && peak.host - peak.host_held > room) {
        return sherdi_fail(SHERD_E_NOMEM,
                           CALL ": the move from %d to %d ranks takes %zu bytes of the host for a "
                                "while, and each of the %d ranks of this host may take %zu",
                           m->old_size, m->new_size, peak.host - peak.host_held,
                           machine->ranks_per_host, room);
    }
    return SHERD_OK;
}

/* Returns the rank that this one has in the old world. */
static int own_old_rank(const sherdi_move *m)
{
    return m->new_world == NULL ? m->engine->rank : m->old.rank;
}

static sherd_status plans_make(sherdi_move *m)
{
    sherd_engine *engine = m->engine;

    m->wire = (sherdi_move_wire){.plans = &m->plans, .world = m->all};
    if (engine->backend->device->is_async) {
        m->wire.lane = engine->backend;
    }
    SHERDI_TRY(maps_make(m));
    m->wire.from   = m->from;
    m->wire.old_at = m->old_at;
    m->wire.new_at = m->new_at;
    if (m->old_world == NULL || m->new_world == NULL) {
        SHERDI_TRY(layout_lend(m, &engine->plan->machine));
    }
    m->plans = (sherdi_move_plans){
        .old_plan = m->old_world == NULL   ? m->lent
                    : m->new_world == NULL ? engine->plan
                                           : m->old.plan,
        .new_plan = m->new_world == NULL ? m->lent : engine->plan,
        .model    = &engine->model,
        .stayed   = m->stayed,
        .lost     = m->is_lost ? m->gives : NULL,
    };
    m->wire.is_from_state = m->is_aimed;
    if (m->old_world != NULL) {
        m->from[own_old_rank(m)] = (sherdi_holding){
            .plan    = m->plans.old_plan,
            .model   = &engine->model,
            .buffers = m->new_world == NULL ? engine->memory.buffers : m->old.memory.buffers,
            .lane    = m->wire.lane};
    }
    for (int r = 0; r < m->old_size && m->is_aimed; r++) {
        if (sherdi_generation_remains(m, r) != NULL) {
            m->from[r] = (sherdi_holding){.plan  = sherdi_generation_remains(m, r)->plan,
                                          .model = &engine->model};
        }
    }
    for (int r = 0; r < m->old_size && m->ghosts != NULL; r++) {
        if (sherdi_lost_holding(m, r) != NULL) {
            m->from[r] = *sherdi_lost_holding(m, r);
        }
    }
    if (m->new_world != NULL) {
        m->wire.to = (sherdi_holding){.plan    = engine->plan,
                                      .model   = &engine->model,
                                      .buffers = engine->memory.buffers,
                                      .lane    = m->wire.lane};
    }
    SHERDI_TRY(sherdi_move_check(&m->plans));
    SHERDI_TRY(peak_check(m));
    return sherdi_move_files_open(m);
}

/* Makes all that the move needs, on all ranks or on none. */
static sherd_status all_open(sherdi_move *m)
{
    sherd_status status = SHERD_OK;

    if (m->new_world != NULL) {
        m->own_ledger = m->engine->elastic->noted.own; /* it goes along, and back after a failure */
        sherdi_seat_take(m->engine, &m->old);
        m->is_seated = 1;
        status       = seat_open(m);
    }
    status = sherdi_agree_world(m->all, status);
    if (status == SHERD_OK) {
        SHERDI_TRY(sherdi_move_wire_open(&m->wire, &m->engine->mem, plans_make(m)));
        sherdi_blobs_init(&m->blobs, &m->engine->mem);
        status = sherdi_move_blobs(m);
    }
    return status;
}

/* ------------------------------------------------------------------------ the values -- */

/* Gives back this rank's memory of the old layout: what is passing in it; of a segment. */
static void old_drop(sherdi_move *m, int segment)
{
    const sherdi_holding *from = m->old_world == NULL ? NULL : &m->from[own_old_rank(m)];

    if (from != NULL && segment < 0) {
        sherdi_move_drop_passing(from->plan, from->buffers);
    } else if (from != NULL) {
        sherdi_move_drop_segment(from->plan, from->buffers, segment);
    }
}

/* Moves values of which some rest on a drive. A drive can fail: the old layout stays whole. */
static sherd_status stored_move(sherdi_move *m)
{
    old_drop(m, -1);
    for (size_t s = 0; s < m->plans.new_plan->layout.num_segments; s++) {
        SHERDI_TRY(sherdi_move_files_segment(m, (int)s));
    }
    if (m->new_world != NULL) {
        sherdi_ledger_set(m->engine, m->hello.at.version);
    }
    return sherdi_move_files_commit(m);
}

static sherd_status values_move(sherdi_move *m)
{
    sherd_status status;

    if (sherdi_move_is_stored(&m->engine->settings)) {
        return stored_move(m);
    }
    m->is_begun = !keeps_old(m);
    old_drop(m, -1); /* no window needs it, also where the engine comes back to it */
    for (size_t s = 0; s < m->plans.new_plan->layout.num_segments; s++) {
        if (m->new_world != NULL) {
            sherdi_move_take_segment(m->engine->plan, m->engine->memory.buffers, (int)s);
        }
        SHERDI_TRY(sherdi_move_wire_segment(&m->wire, (int)s));
        if (!keeps_old(m)) {
            old_drop(m, (int)s);
        }
    }
    status = sherdi_move_wire_finish(&m->wire);
    if (m->new_world != NULL &&
        status == SHERD_OK) { /* it may be lost in the new world from now on */
        sherdi_ledger_set(m->engine, m->hello.at.version);
        sherdi_ledger_blobs_put(m->engine, &m->blobs);
        if (m->old_world != NULL) {
            m->copies     = sherdi_copies_set(m->engine, NULL);
            m->has_copies = 1;
        }
        status = sherdi_copies_take(m->engine); /* those that leave wait for its outcome */
    }
    return sherdi_agree_world(m->all, status);
}

/* --------------------------------------------------------------------------- the end -- */

/* Closes what the engine has of the old world. */
static void old_close(sherdi_move *m)
{
    sherdi_seat fresh;

    sherdi_seat_take(m->engine, &fresh);
    sherdi_seat_put(m->engine, &m->old);
    if (fresh.watch == m->old.watch) {
        m->engine->watch = NULL; /* the new seat has it */
    }
    sherdi_seat_close(m->engine);
    sherdi_seat_put(m->engine, &fresh);
}

static void blobs_settle(sherdi_move *m)
{
    sherdi_blobs *blobs = m->engine->blobs;

    m->blobs.changed = blobs->changed;
    m->blobs.ctx     = blobs->ctx;
    sherdi_blobs_fini(blobs);
    *blobs = m->blobs;
    sherdi_blobs_init(&m->blobs, &m->engine->mem);
}

/* Counts what the engine holds of the new world alone. */
static void report_settle(sherd_engine *engine)
{
    sherd_memory_report *noted = &engine->reports.memory;

    noted->control_model = sherdi_mem_held(&engine->mem, SHERDI_MEM_CONTROL) - noted->control_plan -
                           noted->control_run - noted->control_store - noted->control_updater;
}

static void engine_settle(sherdi_move *m)
{
    sherd_engine        *engine = m->engine;
    sherdi_scaler_params scaler = engine->scaler.params;

    for (size_t p = 0; p < engine->model.num_params; p++) {
        engine->fill.is_filled[p] = 1;
    }
    engine->fill.is_loaded         = 1;
    engine->phase                  = SHERDI_PHASE_RUNNING;
    engine->scaler                 = m->hello.at.scaler;
    engine->scaler.params          = scaler;
    engine->counters.step          = m->hello.at.step;
    engine->counters.skipped_steps = m->hello.at.skipped;
    engine->failure                = (sherdi_failure){0};
    engine->is_evaluating          = 0;
    engine->fingerprints           = (sherdi_fingerprints){.frozen = m->hello.frozen};
    sherdi_samples_set(engine, m->hello.at.micro, m->hello.samples);
    memcpy(engine->identity.run_text, m->hello.run_text, sizeof(engine->identity.run_text));
    sherdi_step_forget(engine);
    sherdi_loop_window_begin(engine);
    sherdi_move_files_settle(engine);
    sherdi_modules_sealed(engine);
    if (m->is_lost) { /* a rank that is lost now is lost in the new world, which says so */
        (void)sherdi_update_publish(engine);
    }
}

/* A rank that has left can only be destroyed. */
static void engine_left(sherdi_move *m)
{
    sherd_engine *engine = m->engine;

    sherdi_engine_parts_close(engine);
    engine->failure.is_final = 1;
    sherdi_engine_poison(engine, sherdi_fail(SHERD_E_STATE, "this rank has left its world (" CALL
                                                            "), and its state went to the others"));
}

/* Closes the copies of the world that the engine is not in. */
static void copies_settle(sherdi_move *m, int is_moved)
{
    sherdi_copies *fresh;

    if (m->has_copies) {
        fresh = sherdi_copies_set(m->engine, m->copies);
        if (!is_moved) {
            (void)sherdi_copies_set(m->engine, fresh);
        }
        sherdi_copies_close(m->engine);
        (void)sherdi_copies_set(m->engine, is_moved ? fresh : m->copies);
        m->has_copies = 0;
    }
}

static void move_commit(sherdi_move *m)
{
    if (m->new_world == NULL) {
        sherdi_copies_close(m->engine);
        engine_left(m);
        return;
    }
    sherdi_lost_close(m);
    sherdi_generation_close(m, m->is_old_kept);
    copies_settle(m, 1);
    old_close(m);
    blobs_settle(m);
    engine_settle(m);
}

/* A failure after the values have begun to go: neither layout is whole. Files of either remain. */
static void move_lose(sherdi_move *m, sherd_status status)
{
    m->engine->failure.is_final = 1;
    sherdi_engine_poison(m->engine, status);
    if (m->new_world != NULL) {
        old_close(m);
        m->engine->phase = SHERDI_PHASE_RUNNING;
    }
}

static void move_close(sherdi_move *m)
{
    sherdi_lost_close(m);
    sherdi_generation_close(m, 1);
    sherdi_move_wire_close(&m->wire);
    sherdi_plan_destroy(m->lent);
    sherdi_free(m->goes);
    sherdi_free(m->gives);
    sherdi_free(m->stayed);
    sherdi_free(m->old_at);
    sherdi_free(m->new_at);
    sherdi_free(m->from);
    if (m->blobs.mem != NULL) {
        sherdi_blobs_fini(&m->blobs);
    }
}

static sherd_status move_run(sherdi_move *m)
{
    sherd_status status;

    if (m->is_lost && m->new_world == NULL) {
        move_commit(m);
        return SHERD_OK;
    }
    if (m->is_aimed) {
        SHERDI_TRY(sherdi_generation_find(m));
    } else if (m->is_lost) {
        SHERDI_TRY(sherdi_agree_world(m->new_world, sherdi_lost_open(m)));
    }
    SHERDI_TRY(all_open(m));
    m->report.planned_s = (double)(sherdi_now_ns() - m->start_ns) * 1e-9;
    status              = values_move(m);
    if (status == SHERD_OK) {
        sherdi_move_files_count(m);
        sherdi_move_files_close(m);
        move_commit(m);
    }
    return status;
}

static void report_write(sherdi_move *m)
{
    m->report.struct_size    = sizeof(m->report);
    m->report.old_size       = m->old_size;
    m->report.new_size       = m->new_size;
    m->report.moved_bytes    = m->wire.moved_bytes;
    m->report.sent_bytes     = m->wire.own_sent_bytes;
    m->report.received_bytes = m->wire.own_got_bytes;
    m->report.kept_bytes     = m->wire.kept_bytes;
    m->report.step           = m->hello.at.step;
    if (m->new_world != NULL) {
        sherdi_copies_report(m->engine, &m->report);
    }
    m->report.seconds = (double)(sherdi_now_ns() - m->start_ns) * 1e-9;
}

sherd_status sherd_engine_move(sherd_engine *engine, sherd_world *world)
{
    sherdi_move    m = {.engine = engine, .new_world = world, .start_ns = sherdi_now_ns()};
    sherdi_outcome outcome;
    sherd_status   status;

    SHERDI_TRY(call_check(engine, world));
    if (engine->phase != SHERDI_PHASE_OPEN) {
        m.old_world   = engine->world;
        m.old_size    = engine->world_size;
        m.hello.batch = engine->settings.batch; /* a rank that leaves gets no other */
    }
    engine->elastic->is_moving = 1;
    status                     = sherdi_move_meet(&m);
    if (status == SHERD_OK) {
        status = move_run(&m);
    }
    outcome = sherdi_outcome_of(status);
    sherdi_move_files_close(&m);
    if (status != SHERD_OK && m.is_begun) {
        move_lose(&m, status);
    } else if (status != SHERD_OK) {
        copies_settle(&m, 0);
        seat_leave(&m);
        sherdi_unit_log_lock(engine, 1);
    }
    report_write(&m);
    move_close(&m);
    engine->elastic->is_moving = 0;
    if (status == SHERD_OK) {
        engine->elastic->report = m.report;
        if (world != NULL) {
            report_settle(engine);
            sherdi_log(SHERD_LOG_INFO, engine->rank,
                       "moved from %d to %d ranks: %llu bytes over the wire, %.3f s",
                       m.report.old_size, m.report.new_size,
                       (unsigned long long)m.report.moved_bytes, m.report.seconds);
        }
    }
    return sherdi_outcome_end(&outcome);
}

/* ----------------------------------------------------------------------- the report -- */

void sherd_move_report_init(sherd_move_report *report)
{
    sherdi_api_init(report, &(sherd_move_report){.struct_size = sizeof(*report)});
}

sherd_status sherd_move_query(const sherd_engine *engine, sherd_move_report *out)
{
    SHERDI_TRY(sherdi_api_need(engine != NULL, "sherd_move_query", "the engine"));
    SHERDI_TRY(sherdi_api_check(out, SHERDI_API(sherd_move_report)));
    sherdi_api_write(&engine->elastic->report, out);
    return SHERD_OK;
}

static sherd_status elastic_create(sherd_engine *engine)
{
    engine->elastic = sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, sizeof(*engine->elastic));
    if (engine->elastic == NULL) {
        return SHERD_E_NOMEM;
    }
    sherd_move_report_init(&engine->elastic->report);
    return SHERD_OK;
}

static void elastic_destroy(sherd_engine *engine)
{
    if (engine->elastic != NULL) {
        sherdi_move_files_sweep(engine);
        sherdi_ledger_close(engine);
    }
    sherdi_free(engine->elastic);
    engine->elastic = NULL;
}

static sherd_status unit_acquiring(sherd_engine *engine, int unit, sherd_pass pass)
{
    if (pass != SHERD_EVAL && engine->window.micro_seen == 0) {
        sherdi_step_forget(engine); /* a window begins */
    }
    return engine->elastic == NULL ? SHERD_OK /* a dry engine makes all of its window */
                                   : sherdi_share_check(engine, unit, pass);
}

/* The outcome of a queued update is not known yet. */
static sherd_status stepped(sherd_engine *engine)
{
    sherdi_step_forget(engine);
    if (!engine->fingerprints.is_unreported) {
        sherdi_copies_begin(engine);
    }
    return SHERD_OK;
}

static sherd_status measuring(sherd_engine *engine)
{
    SHERDI_TRY(sherdi_copies_gradient(engine));
    return sherdi_ledger_begin(engine);
}

static sherd_status check(sherd_engine *engine)
{
    SHERDI_TRY(sherdi_ledger_check(engine));
    SHERDI_TRY(sherdi_ghost_check(engine));
    return sherdi_elastic_check(engine);
}

/* The copies go with the memory in which they are. */
static void abandon(sherd_engine *engine)
{
    if (engine->elastic != NULL && !engine->elastic->is_moving) {
        sherdi_copies_close(engine);
    }
}

static sherd_status lay_out(sherdi_plan *plan, const sherdi_model *model)
{
    SHERDI_TRY(sherdi_ledger_lay_out(plan, model));
    SHERDI_TRY(sherdi_copies_lay_out(plan, model));
    return sherdi_elastic_lay_out(plan, model);
}

const sherdi_module sherdi_module_elastic = {.create         = elastic_create,
                                             .lay_out        = lay_out,
                                             .check          = check,
                                             .open           = sherdi_ledger_open,
                                             .storage_open   = sherdi_elastic_disk_check,
                                             .unit_acquiring = unit_acquiring,
                                             .window_ending  = sherdi_step_note,
                                             .window_reduced = sherdi_room_emit,
                                             .measuring      = measuring,
                                             .stepped        = stepped,
                                             .reported       = sherdi_copies_begin,
                                             .filled         = sherdi_copies_take,
                                             .replaced       = sherdi_copies_take,
                                             .dropped        = sherdi_step_forget,
                                             .abandon        = abandon,
                                             .destroy        = elastic_destroy};

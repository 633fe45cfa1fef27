/* See mover.h. */
#include "tests/engine/mover.h"

#include "base/hash.h"
#include "engine/run/engine_impl.h"
#include "tests/engine/ways.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------- the model -- */

/* Parameters bound to memory of the test. */
typedef struct bound_memory {
    sherd_world *home; /* outlives the worlds of the engine, whose memory ends with them */
    sherdi_mem   mem;
    void        *data[RIG_PARAMS], *grad[RIG_PARAMS];
} bound_memory;

static void bound_make(bound_memory *bound, int p, size_t len_bytes)
{
    const sherdi_backend *lane;

    if (bound->home == NULL) {
        sherdi_mem_init(&bound->mem);
        CHECK_OK(sherd_world_self(&bound->home));
    }
    lane = sherdi_world_backend(bound->home);
    if (bound->data[p] == NULL) {
        bound->data[p] = ways_alloc(bound->home, &bound->mem, len_bytes);
        bound->grad[p] = ways_alloc(bound->home, &bound->mem, len_bytes);
    }
    lane->device->fill(lane, bound->data[p], 0xee, len_bytes);
    lane->device->fill(lane, bound->grad[p], 0, len_bytes);
    CHECK_OK(sherdi_lane_wait(lane));
}

static void bound_free(bound_memory *bound)
{
    for (int p = 0; p < RIG_PARAMS && bound->home != NULL; p++) {
        ways_free(bound->home, bound->data[p]);
        ways_free(bound->home, bound->grad[p]);
    }
    sherd_world_destroy(bound->home);
}

static void model_declare(const mover *m, rig *r, sherd_world *world, bound_memory *bound)
{
    static const char *const UNITS[] = {"first", "second", "third"};
    static const size_t      ELEMS[] = {3000, 5003, 1922};
    rig_options              options = m->options;
    sherd_param_params       params;

    options.accumulation = m->global / sherd_world_size(world);
    rig_open(r, world, &options);
    for (int u = 0; u < 3; u++) {
        char name[32];

        (void)rig_unit(r, UNITS[u]);
        sherd_param_params_init(&params);
        params.atom_elems = m->has_atoms && u == 1 ? 160 : 0;
        (void)snprintf(name, sizeof(name), "%s.w", UNITS[u]);
        (void)rig_param_as(r, u, name, m->elems[u] > 0 ? m->elems[u] : ELEMS[u], &params);
        (void)snprintf(name, sizeof(name), "%s.b", UNITS[u]);
        (void)rig_param(r, u, name, u == 0 ? 64 : u == 1 ? 1 : 130);
    }
    sherd_param_params_init(&params);
    params.frozen = 1;
    (void)rig_param_as(r, 1, "second.fixed", 777, &params);
    for (int p = 0; p < r->num_params && m->is_bound; p++) {
        size_t bytes = r->params[p].elems * sherd_dtype_bytes(r->params[p].dtype);

        bound_make(bound, p, bytes);
        CHECK_OK(sherd_param_bind(r->engine, r->params[p].handle, bound->data[p],
                                  r->params[p].is_frozen ? NULL : bound->grad[p]));
    }
}

static void memory_check(sherd_engine *engine)
{
    sherd_memory_report memory;

    sherd_memory_report_init(&memory);
    CHECK_OK(sherd_engine_memory(engine, &memory));
    CHECK_INT(memory.total_planned, memory.total_held);
    CHECK_INT(memory.control_held, memory.control_model + memory.control_plan + memory.control_run +
                                       memory.control_store + memory.control_updater);
}

/* -------------------------------------------------------------------- the steps -- */

static void phase_train(const mover *m, rig *r, int phase, mover_result *out, int first_step)
{
    int size = m->phases[phase].size;

    for (int s = 0; s < m->phases[phase].steps; s++) {
        mover_outcome    *outcome = &out->steps[first_step + s];
        sherd_step_report report;

        r->micro = (int64_t)(first_step + s) * m->global / size;
        report   = rig_train(r, m->global / size);
        CHECK_INT(1, report.is_boundary);
        outcome->fingerprint = report.fingerprint;
        outcome->norm        = report.grad_norm;
        outcome->loss_scale  = sherd_loss_scale(r->engine);
    }
    (void)rig_train(r, m->phases[phase].left_micro);
    if (m->phases[phase].is_torn) {
        rig_acquire(r, 0, SHERD_FORWARD);
    }
}

static void part_hash(rig *r, int param, const char *value, uint64_t *hash)
{
    size_t count  = r->params[param].elems;
    float *values = calloc(count + 1, sizeof(*values));

    CHECK(values != NULL);
    CHECK_OK(sherd_param_read(r->engine, r->params[param].handle, value, 0, count, values));
    *hash = sherdi_hash_bytes(*hash, values, count * sizeof(*values));
    free(values);
}

uint64_t mover_values(rig *r)
{
    uint64_t hash = 1;

    for (int p = 0; p < r->num_params; p++) {
        const sherdi_segment *segment =
            sherdi_param_segment(r->engine->plan, (size_t)r->params[p].handle);

        part_hash(r, p, SHERD_COMPUTE, &hash);
        for (int i = 0; i < sherdi_segment_parts(segment); i++) {
            part_hash(r, p, segment->optimizer->parts[i].name, &hash);
        }
    }
    return hash;
}

/* --------------------------------------------------------------------- the blobs -- */

static void blobs_set(rig *r)
{
    sherd_blob_params params;
    int               rank = sherd_world_rank(r->world);

    sherd_blob_params_init(&params);
    CHECK_OK(sherd_blob_set(r->engine, "place", "of the run", 11, &params));
    params.is_per_rank = 1;
    CHECK_OK(sherd_blob_set(r->engine, "random", &rank, sizeof(rank), &params));
}

/* Rank r has what rank r of the first world has set, and that of rank r + size, and so on. */
static void blobs_check(rig *r, int first_size)
{
    sherd_blob_params params;
    char              text[16];
    size_t            bytes = sizeof(text);

    sherd_blob_params_init(&params);
    CHECK_OK(sherd_blob_get(r->engine, "place", text, &bytes, &params));
    CHECK_INT(11, bytes);
    CHECK(strcmp(text, "of the run") == 0);
    params.is_per_rank = 1;
    for (int rank = 0; rank < first_size; rank++) {
        int          got    = -1;
        int          is_own = rank % sherd_world_size(r->world) == sherd_world_rank(r->world);
        sherd_status status;

        params.rank = rank;
        bytes       = sizeof(got);
        status      = sherd_blob_get(r->engine, "random", &got, &bytes, &params);
        CHECK_INT(is_own ? SHERD_OK : SHERD_E_INVAL, status);
        CHECK_INT(is_own ? rank : -1, got);
    }
}

/* ---------------------------------------------------------------------- the life -- */

static int rank_in(const mover *m, int phase, int slot)
{
    for (int r = 0; phase >= 0 && phase < m->num_phases && r < m->phases[phase].size; r++) {
        if (m->phases[phase].slots[r] == slot) {
            return r;
        }
    }
    return -1;
}

static void newcomer_declare(const mover *m, rig *r, bound_memory *bound)
{
    sherd_world *alone;

    CHECK_OK(sherd_world_self(&alone));
    model_declare(m, r, alone, bound);
    sherd_world_destroy(alone);
}

static void report_check(const rig *r, const mover *m, int phase)
{
    sherd_move_report report;

    sherd_move_report_init(&report);
    CHECK_OK(sherd_move_query(r->engine, &report));
    CHECK_INT(m->phases[phase].size, report.new_size);
    CHECK_INT(m->phases[phase - 1].size, report.old_size);
    CHECK(report.sent_bytes <= report.moved_bytes && report.received_bytes <= report.moved_bytes);
    CHECK(report.peak_bytes >= r->engine->plan->packing.total_bytes);
}

/* An engine that has left can be asked, and does nothing else. */
static void left_check(sherd_engine *engine)
{
    sherd_memory_report  memory;
    sherd_traffic_report traffic;
    sherd_engine_info    info;

    sherd_memory_report_init(&memory);
    sherd_traffic_report_init(&traffic);
    sherd_engine_info_init(&info);
    CHECK_STATUS(SHERD_E_STATE, sherd_checkpoint_load(engine, "/nowhere", NULL, NULL));
    CHECK_STATUS(SHERD_E_STATE, sherd_step(engine, NULL));
    CHECK_STATUS(SHERD_E_STATE, sherd_step_undo(engine));
    CHECK_STATUS(SHERD_E_STATE, sherd_engine_move(engine, NULL));
    (void)!sherd_engine_query(engine, &info);
    (void)!sherd_engine_memory(engine, &memory);
    (void)!sherd_engine_traffic(engine, &traffic);
    CHECK_STATUS(SHERD_E_STATE, sherd_engine_seal(engine));
}

/* Enters a phase: seals, or moves. Returns the world of the slot there; NULL: it is in none. */
static sherd_world *phase_enter(const mover *m, rig *r, int phase, int slot, sherd_world *old,
                                bound_memory *bound)
{
    int          rank  = rank_in(m, phase, slot);
    sherd_world *world = NULL;

    if (rank < 0 && old == NULL) {
        return NULL;
    }
    world = m->world(m->ctx, phase, rank, old);
    if (phase == 0) {
        model_declare(m, r, world, bound);
        rig_seal(r);
        if (m->has_blobs) {
            blobs_set(r);
        }
        return world;
    }
    if (old == NULL) {
        newcomer_declare(m, r, bound);
    }
    CHECK_OK(sherd_engine_move(r->engine, world));
    if (world == NULL) {
        CHECK_STATUS(SHERD_E_STATE, sherd_unit_acquire(r->engine, r->units[0], SHERD_FORWARD));
        CHECK_ERROR_SAYS("has left its world");
        left_check(r->engine);
        rig_close(r);
    } else {
        r->world = world;
        report_check(r, m, phase);
        memory_check(r->engine);
        if (m->has_blobs) {
            blobs_check(r, m->phases[0].size);
        }
    }
    sherd_world_destroy(old);
    return world;
}

void mover_live(const mover *m, int slot, mover_result *out)
{
    bound_memory bound = {0};
    sherd_world *world = NULL;
    rig          r     = {0};
    int          step  = 0;

    memset(out, 0, sizeof(*out));
    for (int phase = 0; phase < m->num_phases; phase++) {
        world = phase_enter(m, &r, phase, slot, world, &bound);
        if (world != NULL) {
            phase_train(m, &r, phase, out, step);
        }
        step += m->phases[phase].steps;
    }
    out->num_steps = step;
    if (world != NULL) {
        CHECK_OK(sherd_step_discard(r.engine));
        out->values = mover_values(&r);
        rig_close(&r);
        sherd_world_destroy(world);
    }
    bound_free(&bound);
}

/* --------------------------------------------------------------------- threads -- */

typedef struct crew {
    const mover *m;
    sherd_world *worlds[MOVER_PHASES][MOVER_SLOTS]; /* by phase and rank; none where it shrinks */
    mover_result results[MOVER_SLOTS];
} crew;

static sherd_world *crew_world(void *ctx, int phase, int rank, sherd_world *old)
{
    crew        *c     = ctx;
    sherd_world *world = NULL;

    if (phase > 0 && c->m->phases[phase].size < c->m->phases[phase - 1].size) {
        if (rank < 0) {
            CHECK_OK(sherd_world_leave(old));
            return NULL;
        }
        CHECK_OK(sherd_world_shrink(old, &world));
        CHECK_INT(rank, sherd_world_rank(world));
        return world;
    }
    return rank < 0 ? NULL : c->worlds[phase][rank];
}

static void crew_part(int slot, void *ctx)
{
    crew *c = ctx;
    mover m = *c->m;

    m.world = crew_world;
    m.ctx   = c;
    mover_live(&m, slot, &c->results[slot]);
}

int mover_slots(const mover *m)
{
    int most = 0;

    for (int p = 0; p < m->num_phases; p++) {
        for (int r = 0; r < m->phases[p].size; r++) {
            most = m->phases[p].slots[r] > most ? m->phases[p].slots[r] : most;
        }
    }
    return most + 1;
}

void mover_threads(const mover *m, mover_result *out)
{
    crew              *c = calloc(1, sizeof(*c));
    sherd_world_params params;

    CHECK(c != NULL);
    c->m = m;
    sherd_world_params_init(&params);
    params.timeout_ns  = INT64_C(30000000000); /* a rank that fails a check ends the others */
    params.cpu_threads = 1;
    for (int p = 0; p < m->num_phases; p++) {
        if (p == 0 || m->phases[p].size > m->phases[p - 1].size) {
            CHECK_OK(sherd_world_threads_with(m->phases[p].size, &params, c->worlds[p]));
        }
    }
    test_threads(mover_slots(m), crew_part, c);
    /* each step from a slot that made it */
    *out = c->results[m->phases[m->num_phases - 1].slots[0]];
    for (int p = 0, step = 0; p < m->num_phases; step += m->phases[p++].steps) {
        memcpy(&out->steps[step], &c->results[m->phases[p].slots[0]].steps[step],
               (size_t)m->phases[p].steps * sizeof(out->steps[0]));
    }
    free(c);
}

void mover_twin(const mover *m, int world_size, mover_result *out)
{
    mover twin = *m;

    twin.num_phases = 1;
    twin.phases[0]  = (mover_phase){.size = world_size};
    for (int r = 0; r < world_size; r++) {
        twin.phases[0].slots[r] = r;
    }
    for (int p = 0; p < m->num_phases; p++) {
        twin.phases[0].steps += m->phases[p].steps;
    }
    mover_threads(&twin, out);
}

void mover_compare(const char *what, const mover_result *want, const mover_result *got)
{
    CHECK_INT(want->num_steps, got->num_steps);
    for (int s = 0; s < want->num_steps; s++) {
        if (memcmp(&want->steps[s], &got->steps[s], sizeof(want->steps[s])) != 0) {
            test_fail(
                __FILE__, __LINE__,
                "%s, step %d: fingerprint %016llx norm %.17g, and without moves %016llx %.17g",
                what, s, (unsigned long long)got->steps[s].fingerprint, got->steps[s].norm,
                (unsigned long long)want->steps[s].fingerprint, want->steps[s].norm);
        }
    }
    if (want->values != got->values) {
        test_fail(__FILE__, __LINE__, "%s: the values are others than without moves", what);
    }
}

void mover_usual(mover *m)
{
    static const mover_phase USUAL[] = {
        {.size = 4, .slots = {0, 1, 2, 3}, .steps = 2, .left_micro = 1},
        {.size = 3, .slots = {0, 2, 3}, .steps = 1},
        {.size = 5, .slots = {0, 2, 3, 1, 4}, .steps = 2, .is_torn = 1},
        {.size = 2, .slots = {3, 4}, .steps = 1, .left_micro = 2, .is_torn = 1},
        {.size = 4, .slots = {3, 4, 0, 1}, .steps = 2},
    };

    m->global     = 60;
    m->num_phases = (int)(sizeof(USUAL) / sizeof(USUAL[0]));
    memcpy(m->phases, USUAL, sizeof(USUAL));
}

/* Trains a layout on an engine. See layout.h. */
#include "tests/campaign/layout.h"
#include "sherd_tools.h"

#include "tests/engine/elements.h"
#include "tests/lib/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct trainer {
    const layout *what;
    sherd_world  *world;
    sherd_engine *engine;
    sherd_unit    units[LAYOUT_UNITS];
    sherd_param   params[LAYOUT_PARAMS];
    void         *data[LAYOUT_PARAMS], *grad[LAYOUT_PARAMS]; /* bound memory */
    int           is_on_host;
    int64_t       micro; /* micro-batches of this rank so far, with those that were dropped */
    layout_outcome
                 *untold; /* of a queued step whose report was not asked for; NULL: there is none */
    layout_asking asking; /* when it will be */
} trainer;

/* ------------------------------------------------------------- declaring -- */

static void declare_model(trainer *t)
{
    const layout *what = t->what;
    char          name[32];

    for (int g = 1; g < what->num_groups; g++) {
        sherd_group_params params;
        sherd_group        group;

        sherd_group_params_init(&params);
        (void)snprintf(name, sizeof(name), "g%d", g);
        params.name         = name;
        params.lr           = what->group_lr[g];
        params.weight_decay = what->group_decay[g];
        params.exclude_1d   = what->group_excludes[g];
        params.optimizer    = what->group_optimizer[g];
        CHECK_OK(sherd_group_add(t->engine, &params, &group));
        CHECK_INT(g, group);
    }
    for (int u = 0; u < what->num_units; u++) {
        sherd_unit_params params;

        sherd_unit_params_init(&params);
        (void)snprintf(name, sizeof(name), "u%d", u);
        params.name          = name;
        params.backward_uses = what->is_any[u] ? SHERD_USES_ANY : 0;
        CHECK_OK(sherd_unit_add(t->engine, &params, &t->units[u]));
    }
    for (int p = 0; p < what->num_params; p++) {
        const layout_param *from = &what->params[p];
        sherd_param_params  params;

        sherd_param_params_init(&params);
        (void)snprintf(name, sizeof(name), "u%d.p%d", from->unit, p);
        params.name       = name;
        params.ndim       = from->ndim;
        params.shape[0]   = from->shape[0];
        params.shape[1]   = from->shape[1];
        params.group      = from->group;
        params.frozen     = from->is_frozen;
        params.atom_elems = from->atom_elems;
        params.dtype      = from->dtype == what->dtype ? -1 : (int)from->dtype;
        CHECK_OK(sherd_param_add(t->engine, t->units[from->unit], &params, &t->params[p]));
    }
}

static void declare_uses(trainer *t)
{
    const layout *what = t->what;

    for (int u = 0; u < what->num_units; u++) {
        if (what->reads[u] >= 0) {
            CHECK_OK(sherd_unit_reads(t->engine, t->units[u], t->params[what->reads[u]]));
        }
    }
    for (int i = 0; i < what->num_forward && what->num_forward > what->num_units; i++) {
        CHECK_OK(sherd_pass_add(t->engine, SHERD_FORWARD, t->units[what->forward[i]]));
    }
    for (int p = 0; p < what->num_params && what->is_bound; p++) {
        size_t len = what->params[p].elems * sherd_dtype_bytes(what->params[p].dtype);

        t->data[p] = calloc(1, len);
        t->grad[p] = calloc(1, len);
        CHECK(t->data[p] != NULL && t->grad[p] != NULL);
        CHECK_OK(sherd_param_bind(t->engine, t->params[p], t->data[p],
                                  what->params[p].is_frozen ? NULL : t->grad[p]));
    }
}

static void trainer_open(trainer *t, int is_resumed)
{
    const layout     *what = t->what;
    sherd_config     *config;
    sherd_engine_info info;
    sherd_status      status;

    CHECK_OK(sherd_config_parse(what->json, strlen(what->json), &config));
    CHECK_OK(sherd_engine_create(t->world, config, &t->engine));
    sherd_config_destroy(config);
    declare_model(t);
    declare_uses(t);
    status = sherd_engine_check_plans(t->engine);
    if (status == SHERD_E_INVAL && strstr(sherd_last_error(), "keeping atom_elems whole") != NULL) {
        test_skip("refused: %s", sherd_last_error());
    }
    CHECK_OK(status);
    CHECK_OK(sherd_engine_seal(t->engine));
    for (int p = 0; p < what->num_params; p++) {
        CHECK_OK(sherd_param_fill(t->engine, t->params[p], layout_fill, (void *)(uintptr_t)p));
    }
    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(t->engine, &info));
    t->is_on_host = strcmp(info.backend, "cpu") == 0;
    CHECK_INT(is_resumed, info.is_resumed);
}

static void trainer_close(trainer *t)
{
    sherd_engine_destroy(t->engine);
    for (int p = 0; p < LAYOUT_PARAMS; p++) {
        free(t->data[p]);
        free(t->grad[p]);
        t->data[p] = t->grad[p] = NULL;
    }
}

/* -------------------------------------------------------------- computing -- */

/* Returns a copy, on the host, of values that the engine handed out. */
static float *pulled(trainer *t, int param, void *from)
{
    sherd_dtype dtype = t->what->params[param].dtype;
    size_t      elems = t->what->params[param].elems;
    size_t      len   = elems * sherd_dtype_bytes(dtype);
    float      *values;
    void       *copy = from;

    CHECK(from != NULL);
    values = malloc(elems * sizeof(*values));
    CHECK(values != NULL);
    if (!t->is_on_host) {
        copy = malloc(len);
        CHECK(copy != NULL);
        CHECK_OK(sherd_copy(t->engine, copy, from, len));
    }
    for (size_t i = 0; i < elems; i++) {
        values[i] = load(copy, i, dtype);
    }
    if (!t->is_on_host) {
        free(copy);
    }
    return values;
}

/* Writes values to memory that the engine handed out, and frees them. */
static void pushed(trainer *t, int param, void *to, float *values)
{
    sherd_dtype dtype = t->what->params[param].dtype;
    size_t      elems = t->what->params[param].elems;
    size_t      len   = elems * sherd_dtype_bytes(dtype);
    void       *copy  = t->is_on_host ? to : malloc(len);

    CHECK(copy != NULL);
    for (size_t i = 0; i < elems; i++) {
        store(copy, i, dtype, values[i]);
    }
    if (!t->is_on_host) {
        CHECK_OK(sherd_copy(t->engine, to, copy, len));
        free(copy);
    }
    free(values);
}

static void read_unit(trainer *t, int unit)
{
    for (int p = 0; p < t->what->num_params; p++) {
        if (t->what->params[p].unit == unit || t->what->reads[unit] == p) {
            float *values = pulled(t, p, sherd_param_data(t->engine, t->params[p]));

            for (size_t i = 0; i < t->what->params[p].elems; i++) {
                CHECK(isfinite(values[i]));
            }
            free(values);
        }
    }
}

/* The number of this rank's micro-batch, counted over all ranks. */
static int64_t number_of(const trainer *t)
{
    return t->micro * sherd_world_size(t->world) + sherd_world_rank(t->world);
}

/* Adds to every gradient that the unit touches, as the use-th visit of a backward. */
static void touch_unit(trainer *t, int unit, int use, const layout_window *inf)
{
    const layout *what  = t->what;
    float         scale = sherd_loss_scale(t->engine);
    int64_t       n     = number_of(t);

    for (int p = 0; p < what->num_params; p++) {
        void  *memory;
        float *data, *grad;

        if (!layout_touches(what, unit, p)) {
            continue;
        }
        memory = sherd_param_grad(t->engine, t->params[p]);
        data   = pulled(t, p, sherd_param_data(t->engine, t->params[p]));
        grad   = pulled(t, p, memory);
        for (size_t i = 0; i < what->params[p].elems; i++) {
            grad[i] += layout_gradient(n, p, use, i, data[i], scale);
        }
        if (inf != NULL && inf->inf_param == p) {
            grad[inf->inf_elem] = INFINITY;
        }
        free(data);
        pushed(t, p, memory, grad);
    }
}

static void visit(trainer *t, int unit, sherd_pass pass)
{
    CHECK_OK(sherd_unit_acquire(t->engine, t->units[unit], pass));
    read_unit(t, unit);
    CHECK_OK(sherd_unit_release(t->engine, t->units[unit], pass));
}

static void evaluate(trainer *t)
{
    for (int i = 0; i < t->what->num_forward; i++) {
        visit(t, t->what->forward[i], SHERD_EVAL);
    }
}

static int visits_of(const trainer *t, const layout_window *window, int unit)
{
    return layout_visits(t->what, window, unit, sherd_world_rank(t->world));
}

static void forward(trainer *t, const layout_window *window)
{
    for (int i = 0; i < t->what->num_forward; i++) {
        for (int v = visits_of(t, window, t->what->forward[i]); v > 0; v--) {
            visit(t, t->what->forward[i], SHERD_FORWARD);
        }
    }
}

/* Makes `visits` visits, each inside the one before. */
static void backward_visit(trainer *t, int unit, int use, int visits, const layout_window *inf)
{
    if (visits > 0) {
        CHECK_OK(sherd_unit_acquire(t->engine, t->units[unit], SHERD_BACKWARD));
        touch_unit(t, unit, use, inf);
        backward_visit(t, unit, use, visits - 1, inf);
        CHECK_OK(sherd_unit_release(t->engine, t->units[unit], SHERD_BACKWARD));
    }
}

/* Makes the first `most` visits of the window's order. */
static void backward(trainer *t, const layout_window *window, int most, const layout_window *inf)
{
    int order[LAYOUT_PASS];
    int count = layout_backward(t->what, window, order);

    for (int i = 0; i < count && i < most; i++) {
        int visits = visits_of(t, window, order[i]);

        if (window->has_recompute && visits > 0) {
            visit(t, order[i], SHERD_FORWARD);
        }
        backward_visit(t, order[i], i, visits, inf);
    }
}

static void outcome_write(const sherd_step_report *report, layout_outcome *out)
{
    *out = (layout_outcome){.fingerprint  = report->fingerprint,
                            .norm         = report->has_overflow ? 0 : report->grad_norm,
                            .loss_scale   = report->loss_scale,
                            .has_overflow = report->has_overflow};
}

/* Asks for the report of a queued step, if that has not been done. */
static void outcome_ask(trainer *t)
{
    sherd_step_report report;

    if (t->untold != NULL) {
        sherd_step_report_init(&report);
        CHECK_OK(sherd_step_wait(t->engine, &report));
        CHECK_INT(!report.has_overflow, report.was_updated);
        outcome_write(&report, t->untold);
        t->untold = NULL;
    }
}

/* Runs the k-th micro-batch of its window, up to the step. */
static void micro_batch(trainer *t, const layout_window *window, int k)
{
    int has_inf =
        window->has_inf && window->inf_micro == k && window->inf_rank == sherd_world_rank(t->world);

    if (t->asking == LAYOUT_ASKS_BEHIND_FORWARD && window->skips != 0) {
        outcome_ask(t); /* all ranks together */
    }
    if (layout_skips(t->what, window, k, sherd_world_rank(t->world))) {
        CHECK_OK(sherd_micro_batch_skip(t->engine));
        return;
    }
    forward(t, window);
    if (t->what->most_weight > 0) {
        CHECK_OK(sherd_micro_batch_weight(t->engine, layout_weight(t->what, number_of(t))));
    }
    if (t->asking == LAYOUT_ASKS_BEHIND_FORWARD) {
        outcome_ask(t);
    }
    backward(t, window, LAYOUT_PASS, has_inf ? window : NULL);
}

/* --------------------------------------------------------------- windows -- */

/* Drops the window where it says. */
static void window_drop(trainer *t, const layout_window *window)
{
    sherd_step_report report;

    for (int k = 0; k < window->micro; k++, t->micro++) {
        micro_batch(t, window, k);
        if (t->what->opens_windows && k == t->what->accumulation - 1) {
            CHECK_OK(sherd_step_close_window(t->engine));
        }
        if (k == t->what->accumulation - 1) {
            outcome_ask(t); /* the boundary has a report of its own */
        }
        sherd_step_report_init(&report);
        CHECK_OK(sherd_step_prepare(t->engine, &report));
        CHECK_INT(k == t->what->accumulation - 1, report.is_boundary);
    }
    if (window->drop == 2) {
        forward(t, window);
        backward(t, window, 1 + (int)(t->what->seed % 3), NULL);
        t->micro++;
    }
    CHECK_OK(sherd_step_discard(t->engine));
}

/* Ends a micro-batch by a call that does not wait for the update. */
static void micro_batch_queue(trainer *t, const layout_window *window, int is_last,
                              layout_outcome *out)
{
    sherd_step_params params;
    sherd_step_report report;

    if (window->ending == LAYOUT_ENDS_QUEUED) {
        CHECK_OK(sherd_step_queue(t->engine));
        return;
    }
    sherd_step_report_init(&report);
    sherd_step_params_init(&params);
    params.is_queued = 1;
    CHECK_OK(sherd_step_prepare(t->engine, &report));
    CHECK_INT(is_last, report.is_boundary);
    if (is_last) {
        outcome_write(&report, out);
        CHECK_OK(sherd_step_apply(t->engine, &params));
    }
}

/* Ends a micro-batch. At the boundary the report of the window before is lost. */
static void micro_batch_end(trainer *t, const layout_window *window, int is_last,
                            layout_outcome *out)
{
    sherd_step_report report;

    if (is_last) {
        outcome_ask(t);
    }
    if (window->ending != LAYOUT_ENDS_BY_STEP) {
        micro_batch_queue(t, window, is_last, out);
        return;
    }
    sherd_step_report_init(&report);
    CHECK_OK(sherd_step(t->engine, &report));
    CHECK_INT(is_last, report.is_boundary);
    if (is_last) {
        CHECK_INT(!report.has_overflow, report.was_updated);
        outcome_write(&report, out);
    }
}

static void window_step(trainer *t, const layout_window *window, layout_outcome *out)
{
    for (int k = 0; k < window->micro; k++, t->micro++) {
        micro_batch(t, window, k);
        if (k == window->micro - 1 &&
            (t->what->opens_windows || window->micro < t->what->accumulation)) {
            CHECK_OK(sherd_step_close_window(t->engine));
        }
        micro_batch_end(t, window, k == window->micro - 1, out);
    }
    if (window->ending == LAYOUT_ENDS_BY_STEP) {
        return;
    }
    t->untold = out;
    t->asking = window->asking;
    if (window->asking == LAYOUT_ASKS_AT_ONCE) {
        outcome_ask(t);
    } else if (window->is_undone && window->ending == LAYOUT_ENDS_QUEUED_IN_HALVES) {
        out->is_unseen = 1; /* undone while it is under way; prepare has said the rest */
        t->untold      = NULL;
    } else if (window->is_undone) {
        outcome_ask(t); /* whether there is an update to be undone */
    }
}

/* Makes micro-batches of a window that will not end. */
static void window_begin(trainer *t, int count)
{
    static const layout_window PLAIN = {.skipped = -1};

    for (int k = 0; k < count; k++, t->micro++) {
        micro_batch(t, &PLAIN, k);
        CHECK_OK(sherd_step(t->engine, NULL));
    }
}

static void window_undo(trainer *t, const layout_window *window, uint64_t *out)
{
    window_begin(t, window->undo_micro);
    CHECK_OK(sherd_step_undo(t->engine));
    CHECK_OK(sherd_engine_fingerprint(t->engine, out));
}

/* Ends the engine, which leaves its state, and goes on with another one. */
static void window_leave(trainer *t, const layout_window *window, uint64_t *out)
{
    outcome_ask(t);
    CHECK_OK(sherd_engine_fingerprint(t->engine, out)); /* it starts the engine, which commits */
    window_begin(t, window->leave_micro);
    CHECK_OK(sherd_engine_keep_state(t->engine, 1));
    trainer_close(t);
    trainer_open(t, 1);
    CHECK_OK(sherd_engine_fingerprint(t->engine, out));
}

static void window_write(trainer *t, const layout_window *window)
{
    const layout_param *param  = &t->what->params[window->written];
    size_t              first  = layout_written_from(t->what, window);
    float              *values = malloc(param->elems * sizeof(*values));

    CHECK(values != NULL);
    for (size_t i = first; i < param->elems; i++) {
        values[i] = layout_written(window, i);
    }
    CHECK_OK(sherd_param_write(t->engine, t->params[window->written],
                               param->is_frozen ? SHERD_COMPUTE : SHERD_MASTER, first,
                               param->elems - first, values + first));
    free(values);
}

/* Requests are counted when they end, and as many bytes as the rings hold may be under way. */
static void check_files(uint64_t planned, uint64_t counted, uint64_t ring_bytes, const char *what)
{
    uint64_t gap = counted > planned ? counted - planned : planned - counted;

    if (gap > ring_bytes) {
        test_fail(__FILE__, __LINE__, "%llu bytes are %s, not %llu (rings of %llu)",
                  (unsigned long long)counted, what, (unsigned long long)planned,
                  (unsigned long long)ring_bytes);
    }
}

/* Checks that a step which follows the plan moves the planned bytes. */
static void traffic_check(trainer *t, const sherd_traffic_report *before)
{
    sherd_traffic_report now;
    sherd_memory_report  memory;
    uint64_t             micro = (uint64_t)t->what->accumulation;

    sherd_traffic_report_init(&now);
    CHECK_OK(sherd_engine_traffic(t->engine, &now));
    sherd_memory_report_init(&memory);
    CHECK_OK(sherd_engine_memory(t->engine, &memory));
    CHECK_INT(now.wire_micro_planned * micro + now.wire_step_planned,
              now.wire_counted - before->wire_counted);
    if (strcmp(sherd_world_transport(t->world), "nccl") != 0) {
        CHECK_INT(now.between_micro_planned * micro + now.between_step_planned,
                  now.between_counted - before->between_counted);
    }
    CHECK_INT(now.down_micro_planned * micro + now.down_step_planned,
              now.down_counted - before->down_counted);
    CHECK_INT(now.up_micro_planned * micro + now.up_step_planned,
              now.up_counted - before->up_counted);
    check_files(now.read_micro_planned * micro + now.read_step_planned,
                now.read_counted - before->read_counted, memory.host_staging_held, "read");
    check_files(now.written_micro_planned * micro + now.written_step_planned,
                now.written_counted - before->written_counted, memory.host_staging_held, "written");
}

static void memory_check(trainer *t)
{
    sherd_memory_report memory;

    sherd_memory_report_init(&memory);
    CHECK_OK(sherd_engine_memory(t->engine, &memory));
    CHECK_INT(memory.params_planned, memory.params_held);
    CHECK_INT(memory.grads_planned, memory.grads_held);
    CHECK_INT(memory.state_planned, memory.state_held);
    CHECK_INT(memory.gather_planned, memory.gather_held);
    CHECK_INT(memory.transient_planned, memory.transient_held);
    CHECK_INT(memory.staging_planned, memory.staging_held);
    CHECK_INT(memory.total_planned, memory.total_held);
    CHECK_INT(memory.receive_planned, memory.receive_held);
}

void layout_train(sherd_world *world, const layout *what, layout_result *out)
{
    sherd_traffic_report before;
    uint64_t             fingerprint;
    trainer              t = {.what = what, .world = world};

    trainer_open(&t, 0);
    for (int w = 0; w < what->num_windows; w++) {
        const layout_window *window = &what->windows[w];

        if (window->written >= 0) {
            window_write(&t, window);
        }
        if (window->is_left) {
            window_leave(&t, window, &out->resumed[w]);
        }
        sherd_traffic_report_init(&before);
        CHECK_OK(sherd_engine_traffic(t.engine, &before));
        if (window->drop > 0) {
            window_drop(&t, window);
        } else {
            window_step(&t, window, &out->windows[w]);
        }
        if (window->is_undone && !out->windows[w].has_overflow) {
            window_undo(&t, window, &out->undone[w]);
        }
        if (window->has_eval) {
            evaluate(&t);
        }
    }
    if (!out->windows[what->num_windows - 2].has_overflow &&
        !out->windows[what->num_windows - 1]
             /* after two windows by the plan, as much is read ahead at the start as at the end */
             .has_overflow) {
        traffic_check(&t, &before);
    }
    memory_check(&t);
    CHECK_OK(sherd_engine_fingerprint(t.engine, &fingerprint));
    CHECK_INT(out->windows[what->num_windows - 1].fingerprint, fingerprint);
    trainer_close(&t);
}

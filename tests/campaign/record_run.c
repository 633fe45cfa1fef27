/* Trains one layout of the record on one rank. See record.h. */
#include "tests/campaign/record.h"
#include "sherd_tools.h"

#include "base/hash.h"
#include "collectives/world.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNITS   5
#define PASS    6
#define WINDOWS 3

#define LARGE_ELEMS 20011
/* The limit is near the norms, so that some gradients are clipped and others are not. */
#define CLIP 16

typedef struct recorder {
    rig                  r;
    const record_layout *what;
    record_lines        *out;
    sherdi_mem           mem; /* counts the bound memory */
    void                *bound[2 * RIG_PARAMS];
    int                  forward[PASS];
    int                  num_forward;
    int                  window; /* the window that is trained now, from 0 */
    double               read;   /* the sum of all parameters that were read since the last line */
} recorder;

static int has(const recorder *t, unsigned way)
{
    return (t->what->theme->ways & way) != 0;
}

/* ------------------------------------------------------------------- text -- */

static sherd_status text_add(void *ctx, const char *text, size_t len_bytes)
{
    record_text *out = ctx;

    if (out->len_bytes + len_bytes + 1 > out->room_bytes) {
        out->room_bytes = 2 * (out->len_bytes + len_bytes + 1);
        out->at         = realloc(out->at, out->room_bytes);
        CHECK(out->at != NULL);
    }
    memcpy(out->at + out->len_bytes, text, len_bytes);
    out->len_bytes += len_bytes;
    out->at[out->len_bytes] = '\0';
    return SHERD_OK;
}

static void say(record_text *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(record_text *out, const char *fmt, ...)
{
    char    text[1024];
    va_list args;
    int     len;

    va_start(args, fmt);
    len = vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    CHECK(len >= 0 && (size_t)len < sizeof(text));
    CHECK_OK(text_add(out, text, (size_t)len));
}

static void say_step(recorder *t, const char *event, const sherd_step_report *report)
{
    say(&t->out->steps, "%s %s: ", t->what->name, event);
    say(&t->out->steps, "fingerprint %016llx norm %a scale %a clip %a ",
        (unsigned long long)report->fingerprint, report->has_overflow ? 0 : report->grad_norm,
        report->loss_scale, report->has_overflow ? 0 : report->clip_coefficient);
    say(&t->out->steps, "overflow %d updated %d step %lld skipped %lld micro %lld read %a\n",
        report->has_overflow, report->was_updated, (long long)report->step,
        (long long)report->skipped_steps, (long long)report->micro_step, t->read);
    t->read = 0;
}

static void say_state(recorder *t, const char *event)
{
    say(&t->out->steps, "%s %s: fingerprint %016llx read %a\n", t->what->name, event,
        (unsigned long long)rig_fingerprint(&t->r), t->read);
    t->read = 0;
}

/* -------------------------------------------------------------- declaring -- */

static void engine_open(recorder *t, sherd_world *world)
{
    const record_theme *theme   = t->what->theme;
    rig_options         options = {.accumulation = t->what->accumulation,
                                   .stage        = t->what->stage,
                                   .dtype        = t->what->dtype,
                                   .clip         = CLIP,
                                   .zero         = theme->zero,
                                   .top          = theme->top,
                                   .optimizer    = theme->lamb ? "Lamb" : NULL};
    const char         *json    = rig_json(&options);
    sherd_config       *config;

    memset(&t->r, 0, sizeof(t->r));
    t->r.world = world;
    t->r.dtype = options.dtype;
    CHECK_OK(sherd_config_parse(json, strlen(json), &config));
    if (theme->lamb == 2) {
        CHECK_OK(sherd_config_set(config, "optimizer.params.lamb_form", "\"paper\""));
    }
    CHECK_OK(sherd_engine_create(world, config, &t->r.engine));
    sherd_config_destroy(config);
}

/* The sizes avoid round numbers. */
static void declare_model(recorder *t)
{
    static const char *const NAMES[UNITS] = {"embedding", "one", "two", "three", "head"};
    static const struct {
        const char *name;
        int         unit;
        size_t      elems, atom_elems;
        int         is_small; /* belongs to the second group */
    } PARAMS[] = {
        {"embedding.w", 0, 407, 2, 0}, {"one.w", 1, 899, 32, 0}, {"one.b", 1, 29, 0, 1},
        {"two.fixed", 2, 221, 0, 0},   {"two.w", 2, 335, 0, 0},  {"two.scale", 2, 1, 0, 1},
        {"three.w", 3, 640, 64, 0},    {"head.w", 4, 387, 0, 0}, {"head.b", 4, 3, 0, 1},
    };
    int has_groups = has(t, RECORD_GROUPS);
    int is_large   = has(t, RECORD_LARGE);

    if (has_groups) {
        sherd_group_params group;
        sherd_group        made;

        sherd_group_params_init(&group);
        group.name         = "no decay";
        group.weight_decay = 0;
        group.lr           = 0.02;
        group.exclude_1d   = 1;
        CHECK_OK(sherd_group_add(t->r.engine, &group, &made));
    }
    for (int u = 0; u < UNITS; u++) {
        (void)rig_unit(&t->r, NAMES[u]);
    }
    for (size_t p = 0; p < sizeof(PARAMS) / sizeof(PARAMS[0]); p++) {
        sherd_param_params params;

        sherd_param_params_init(&params);
        params.frozen     = has(t, RECORD_FROZEN) && (p == 3 || PARAMS[p].unit == 3);
        params.group      = has_groups ? PARAMS[p].is_small : 0;
        params.atom_elems = has_groups ? PARAMS[p].atom_elems : 0;
        (void)rig_param_as(&t->r, PARAMS[p].unit, PARAMS[p].name,
                           is_large && p == 1 ? LARGE_ELEMS : PARAMS[p].elems, &params);
    }
}

static void declare_order(recorder *t)
{
    static const int PLAIN[]    = {0, 1, 2, 3, 4};
    static const int REPEATED[] = {0, 1, 2, 1, 3, 4};
    int              is_longer  = has(t, RECORD_REPEAT);

    t->num_forward = is_longer ? 6 : 5;
    memcpy(t->forward, is_longer ? REPEATED : PLAIN, (size_t)t->num_forward * sizeof(int));
    if (has(t, RECORD_TIED)) {
        CHECK_OK(sherd_unit_reads(t->r.engine, t->r.units[4], t->r.params[0].handle));
    }
    for (int i = 0; i < t->num_forward && is_longer; i++) {
        CHECK_OK(sherd_pass_add(t->r.engine, SHERD_FORWARD, t->r.units[t->forward[i]]));
    }
    for (int i = t->num_forward - 1; i >= 0 && has(t, RECORD_NO_BACKWARD); i--) {
        if (t->forward[i] != 2) {
            CHECK_OK(sherd_pass_add(t->r.engine, SHERD_BACKWARD, t->r.units[t->forward[i]]));
        }
    }
}

/* Allocates memory of the trainer's own in the space of the engine's device memory. */
static void *bound_memory(recorder *t, int param)
{
    sherdi_backend *lane = (sherdi_backend *)(uintptr_t)sherdi_world_backend(t->r.world);
    void           *memory;

    CHECK_OK(lane->device->alloc(lane, &t->mem, SHERDI_MEM_CONTROL,
                                 t->r.params[param].elems * sherd_dtype_bytes(t->r.dtype),
                                 &memory));
    return memory;
}

static void bind(recorder *t)
{
    for (int p = 0; p < t->r.num_params; p++) {
        int is_frozen = t->r.params[p].is_frozen;

        t->bound[2 * p]     = bound_memory(t, p);
        t->bound[2 * p + 1] = is_frozen ? NULL : bound_memory(t, p);
        CHECK_OK(sherd_param_bind(t->r.engine, t->r.params[p].handle, t->bound[2 * p],
                                  t->bound[2 * p + 1]));
    }
}

static void recorder_open(recorder *t, sherd_world *world)
{
    engine_open(t, world);
    declare_model(t);
    declare_order(t);
    if (has(t, RECORD_BOUND)) {
        bind(t);
    }
    CHECK_OK(sherd_engine_check_plans(t->r.engine));
    rig_seal(&t->r);
}

static void recorder_close(recorder *t)
{
    sherdi_backend *lane = (sherdi_backend *)(uintptr_t)sherdi_world_backend(t->r.world);

    rig_close(&t->r);
    for (int i = 0; i < 2 * RIG_PARAMS; i++) {
        lane->device->free(lane, t->bound[i]);
    }
}

/* ---------------------------------------------------------------- driving -- */

static void read_unit(recorder *t, int unit)
{
    for (int p = 0; p < t->r.num_params; p++) {
        if (t->r.params[p].unit == unit || (unit == 4 && p == 0 && has(t, RECORD_TIED))) {
            t->read += rig_read(&t->r, p);
        }
    }
}

static void visit(recorder *t, int unit, sherd_pass pass)
{
    rig_acquire(&t->r, unit, pass);
    read_unit(t, unit);
    rig_release(&t->r, unit, pass);
}

/* Acquires each unit before the unit ahead of it is released. If the plan has no room for two
 * units, a line says so and the next unit is acquired after the release. */
static void forward_nested(recorder *t)
{
    rig *r = &t->r;

    rig_acquire(r, t->forward[0], SHERD_FORWARD);
    for (int i = 0; i < t->num_forward; i++) {
        sherd_status status =
            i + 1 == t->num_forward
                ? SHERD_OK
                : sherd_unit_acquire(r->engine, r->units[t->forward[i + 1]], SHERD_FORWARD);

        read_unit(t, t->forward[i]);
        rig_release(r, t->forward[i], SHERD_FORWARD);
        if (status != SHERD_OK) {
            say(&t->out->steps, "%s acquire %d: %s\n", t->what->name, i + 1,
                sherd_status_name(status));
            rig_acquire(r, t->forward[i + 1], SHERD_FORWARD);
        }
    }
}

static int is_off_plan(const recorder *t)
{
    return has(t, RECORD_OFF_PLAN) && t->window == 1;
}

/* Returns the unit at this index of the order; off the plan, two neighbours are swapped. */
static int unit_at(const recorder *t, int index)
{
    return t->forward[!is_off_plan(t) ? index : index == 1 ? 2 : index == 2 ? 1 : index];
}

static void forward(recorder *t, sherd_pass pass)
{
    if (has(t, RECORD_NESTED) && pass == SHERD_FORWARD) {
        forward_nested(t);
        return;
    }
    for (int i = 0; i < t->num_forward; i++) {
        visit(t, unit_at(t, i), pass);
    }
}

static void touch_unit(recorder *t, int unit, float share)
{
    for (int p = 0; p < t->r.num_params; p++) {
        int is_read = unit == 4 && p == 0 && has(t, RECORD_TIED);

        if ((t->r.params[p].unit == unit || is_read) && !t->r.params[p].is_frozen) {
            rig_touch(&t->r, p, share);
        }
    }
}

/* Visits the last `most` units of the order, the last one first. */
static void backward(recorder *t, int most)
{
    for (int i = t->num_forward - 1; i >= 0 && i >= t->num_forward - most; i--) {
        int unit = unit_at(t, i);

        if ((unit == 2 && has(t, RECORD_NO_BACKWARD)) ||
            (unit == 3 && has(t, RECORD_SKIP) && t->window == 1)) {
            continue;
        }
        if (has(t, RECORD_RECOMPUTE)) {
            visit(t, unit, SHERD_FORWARD);
        }
        rig_acquire(&t->r, unit, SHERD_BACKWARD);
        touch_unit(t, unit, i == 3 ? 0.5f : 1);
        if (unit == 1 && has(t, RECORD_OVERFLOW) && t->window == 1 &&
            sherd_world_rank(t->r.world) == t->what->world_size - 1) {
            rig_poke(&t->r, 1, 17, INFINITY);
        }
        rig_release(&t->r, unit, SHERD_BACKWARD);
    }
}

static void micro_batch(recorder *t)
{
    forward(t, SHERD_FORWARD);
    backward(t, PASS);
    if (has(t, RECORD_EVAL)) {
        forward(t, SHERD_EVAL);
    }
}

/* ---------------------------------------------------------------- windows -- */

static sherd_step_report step(recorder *t)
{
    sherd_step_report report;

    if (!has(t, RECORD_PREPARE)) {
        return rig_step(&t->r);
    }
    sherd_step_report_init(&report);
    CHECK_OK(sherd_step_prepare(t->r.engine, &report));
    if (report.is_boundary) {
        CHECK_OK(sherd_step_apply(t->r.engine, NULL));
        sherd_step_report_init(&report);
        CHECK_OK(sherd_step_wait(t->r.engine, &report));
    }
    t->r.micro++;
    return report;
}

static void window_train(recorder *t)
{
    int  is_short = has(t, RECORD_SHORT) && t->window == 1;
    int  count    = is_short ? 2 : t->what->accumulation;
    char event[32];

    (void)snprintf(event, sizeof(event), "window %d", t->window);
    for (int k = 0; k < count; k++) {
        sherd_step_report report;

        micro_batch(t);
        if (is_short && k == count - 1) {
            CHECK_OK(sherd_step_close_window(t->r.engine));
        }
        report = step(t);
        CHECK_INT(k == count - 1, report.is_boundary);
        if (report.is_boundary) {
            say_step(t, event, &report);
        }
    }
}

static void window_drop(recorder *t)
{
    sherd_step_report report;

    for (int k = 0; k < t->what->accumulation; k++) {
        micro_batch(t);
        sherd_step_report_init(&report);
        CHECK_OK(sherd_step_prepare(t->r.engine, &report));
        t->r.micro++;
    }
    say_step(t, "prepared", &report);
    CHECK_OK(sherd_step_discard(t->r.engine));
    say_state(t, "dropped");
}

/* Discards the window in the middle of its last backward. */
static void window_drop_mid(recorder *t)
{
    for (int k = 0; k < t->what->accumulation; k++, t->r.micro++) {
        forward(t, SHERD_FORWARD);
        backward(t, k == t->what->accumulation - 1 ? 2 : PASS);
        if (k < t->what->accumulation - 1) {
            CHECK_OK(sherd_step(t->r.engine, NULL));
        }
    }
    CHECK_OK(sherd_step_discard(t->r.engine));
    say_state(t, "dropped in backward");
}

static void undo(recorder *t, int is_mid)
{
    for (int k = 0; k < t->what->accumulation - 1 && is_mid; k++) {
        micro_batch(t);
        (void)rig_step(&t->r);
    }
    CHECK_OK(sherd_step_undo(t->r.engine));
    say_state(t, is_mid ? "undone in a window" : "undone");
}

/* Another engine, declared alike, takes over the files of this engine. */
static void resume(recorder *t)
{
    sherd_world      *world = t->r.world;
    int64_t           micro = t->r.micro;
    sherd_engine_info info;

    recorder_close(t);
    CHECK_OK(sherd_world_barrier(world));
    recorder_open(t, world);
    t->r.micro = micro;
    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(t->r.engine, &info));
    say(&t->out->steps, "%s resumed: %d step %lld micro %lld\n", t->what->name, info.is_resumed,
        (long long)info.step, (long long)info.micro_step);
    say_state(t, "resumed");
}

static void train(recorder *t)
{
    say_state(t, "filled");
    for (t->window = 0; t->window < WINDOWS; t->window++) {
        if (t->window == 1 && has(t, RECORD_DROP)) {
            window_drop(t);
        }
        if (t->window == 2 && has(t, RECORD_DROP_MID)) {
            window_drop_mid(t);
        }
        window_train(t);
        if (t->window == 0 && has(t, RECORD_UNDO)) {
            undo(t, 0);
        }
        if (t->window == 1 && has(t, RECORD_UNDO_MID)) {
            undo(t, 1);
        }
        if (t->window == 1 && has(t, RECORD_RESUME)) {
            resume(t);
        }
    }
    say_state(t, "end");
}

/* ------------------------------------------------------------------ bytes -- */

/* The counts do not depend on the clock, because the call waits for the transfers that are under
 * way. The bytes in a step's report do depend on it: what is read ahead when the report is written
 * may or may not be counted. So they are left out. */
static void say_traffic(recorder *t)
{
    record_text         *out = &t->out->end;
    sherd_traffic_report now;

    sherd_traffic_report_init(&now);
    CHECK_OK(sherd_engine_traffic(t->r.engine, &now));
#define BYTES(field) say(out, " %s %llu", #field, (unsigned long long)now.field)
    say(out, "%s rank %d traffic:", t->what->name, sherd_world_rank(t->r.world));
    BYTES(wire_micro_planned);
    BYTES(wire_step_planned);
    BYTES(wire_counted);
    BYTES(down_micro_planned);
    BYTES(down_step_planned);
    BYTES(down_counted);
    BYTES(up_micro_planned);
    BYTES(up_step_planned);
    BYTES(up_counted);
    BYTES(read_micro_planned);
    BYTES(read_step_planned);
    BYTES(read_counted);
    BYTES(written_micro_planned);
    BYTES(written_step_planned);
    BYTES(written_counted);
    BYTES(update_device_planned);
    BYTES(update_host_planned);
    say(out, "\n");
#undef BYTES
}

static void say_memory(recorder *t)
{
    record_text        *out = &t->out->end;
    sherd_memory_report now;

    sherd_memory_report_init(&now);
    CHECK_OK(sherd_engine_memory(t->r.engine, &now));
#define BYTES(purpose)                                                                             \
    say(out, " %s %llu %llu", #purpose, (unsigned long long)now.purpose##_planned,                 \
        (unsigned long long)now.purpose##_held)
    say(out, "%s rank %d memory, planned and held:", t->what->name, sherd_world_rank(t->r.world));
    BYTES(params);
    BYTES(grads);
    BYTES(state);
    BYTES(gather);
    BYTES(transient);
    BYTES(staging);
    BYTES(total);
    BYTES(host_params);
    BYTES(host_grads);
    BYTES(host_state);
    BYTES(host_staging);
    BYTES(pinned);
    BYTES(receive);
#undef BYTES
    say(out, " transport %llu nvme %llu params %llu grads %llu state %llu spare %d padding %llu\n",
        (unsigned long long)now.transport_held, (unsigned long long)now.nvme_planned,
        (unsigned long long)now.nvme_params_planned, (unsigned long long)now.nvme_grads_planned,
        (unsigned long long)now.nvme_state_planned, now.has_spare_state,
        (unsigned long long)now.padding_elems);
}

static void say_plan(recorder *t)
{
    record_text *plan = &t->out->plan;

    CHECK_OK(sherd_engine_plan(t->r.engine, SHERD_PLAN_JSON, text_add, plan));
    say(&t->out->end, "%s rank %d plan: %016llx\n", t->what->name, sherd_world_rank(t->r.world),
        (unsigned long long)sherdi_hash_bytes(0, plan->at, plan->len_bytes));
}

void record_run(sherd_world *world, const record_layout *what, record_lines *out)
{
    recorder t = {.what = what, .out = out};

    sherdi_mem_init(&t.mem);
    recorder_open(&t, world);
    train(&t);
    say_traffic(&t);
    say_memory(&t);
    say_plan(&t);
    recorder_close(&t);
}

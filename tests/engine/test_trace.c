/* SHERD_TRACE: a file per rank that is JSON, with a span for everything that the plan has, rows on
 * which one thing runs at a time, and the report's sums of the same times. */
#include "engine/proof/emit.h"
#include "base/json.h"
#include "base/trace.h"
#include "engine/run/engine_impl.h"
#include "sherd_build.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 3

typedef struct job {
    rig_options       options;
    int               is_queued;
    sherd_step_report reports[STEPS];
    size_t            gathers; /* of the plan, forward and backward */
    size_t            reductions;
} job;

static sherd_status op_expect(void *ctx, sherdi_phase_name phase, const sherdi_op *op)
{
    job *what = ctx;

    what->gathers +=
        op->kind == SHERDI_OP_GATHER && (phase == SHERDI_IN_FORWARD || phase == SHERDI_IN_BACKWARD);
    what->reductions += op->kind == SHERDI_OP_REDUCE;
    return SHERD_OK;
}

static void train(sherd_world *world, void *raw)
{
    job *what = raw;
    rig  r;

    rig_open(&r, world, &what->options);
    for (int u = 0; u < 3; u++) {
        char name[32];

        (void)snprintf(name, sizeof(name), "unit \"%d\"\\", u); /* what JSON must escape */
        (void)rig_unit(&r, name);
        (void)snprintf(name, sizeof(name), "u%d.w", u);
        (void)rig_param(&r, u, name, 5000);
    }
    rig_seal(&r);
    for (int i = 0; i < STEPS; i++) {
        sherd_step_report report;

        if (what->is_queued) {
            rig_micro_batch(&r);
            CHECK_OK(sherd_step_queue(r.engine));
        } else {
            (void)rig_train(&r, 1);
        }
        sherd_step_report_init(&report);
        CHECK_OK(sherd_step_wait(r.engine, &report)); /* a device ends its work after the step */
        if (sherd_world_rank(world) == 0) {
            what->reports[i] = report;
        }
    }
    if (sherd_world_rank(world) == 0) {
        CHECK_OK(
            sherdi_dry_emit(r.engine->plan, &r.engine->model, SHERDI_EMIT_FIRST, op_expect, what));
    }
    rig_close(&r);
}

#define MOST_SPANS 256

typedef struct span {
    double start, end; /* us */
} span;

typedef struct rows {
    size_t spans[SHERDI_TRACE_LANES];
    double seconds[SHERDI_TRACE_LANES];
    span   timed[SHERDI_TRACE_LANES][MOST_SPANS];
    size_t num_timed[SHERDI_TRACE_LANES];
    int    has_name; /* the quoted one */
    int    num_updates_awaited;
    double awaited_s;
} rows;

static double number_of(const sherdi_json_node *event, const char *key)
{
    const sherdi_json_node *node = sherdi_json_find(event, key);

    CHECK(node != NULL && node->kind == SHERDI_JSON_NUMBER);
    return node->number;
}

static void event_count(const sherdi_json_node *event, rows *out)
{
    const char *phase = sherdi_json_find(event, "ph")->string;
    int         lane;

    if (strcmp(phase, "X") != 0 && strcmp(phase, "b") != 0) {
        return;
    }
    lane = (int)number_of(event, "tid");
    out->spans[lane]++;
    out->has_name |= strstr(sherdi_json_find(event, "name")->string, "unit \"1\"\\") != NULL;
    if (phase[0] == 'X') {
        double start = number_of(event, "ts"), duration = number_of(event, "dur");

        CHECK(duration >= 0);
        CHECK(out->num_timed[lane] < MOST_SPANS);
        out->seconds[lane] += duration * 1e-6;
        if (strstr(sherdi_json_find(event, "name")->string, "wait for the update") != NULL) {
            out->num_updates_awaited++;
            out->awaited_s += duration * 1e-6;
        }
        out->timed[lane][out->num_timed[lane]++] = (span){start, start + duration};
    }
}

static int span_compare(const void *a, const void *b)
{
    double left = ((const span *)a)->start, right = ((const span *)b)->start;

    return (left > right) - (left < right);
}

/* One thing runs at a time. A device's spans are in the file when they are known to be over, and
 * its clock is known to 0.2 ms; a row may also have spans of the host. */
static void rows_check(rows *r)
{
    double most_us = getenv("SHERD_BACKEND") == NULL ? 1e-3 : 500;

    for (int lane = 0; lane < SHERDI_TRACE_LANES; lane++) {
        if (lane == SHERDI_TRACE_WAIT) { /* a wait may be inside another */
            continue;
        }
        qsort(r->timed[lane], r->num_timed[lane], sizeof(span), span_compare);
        for (size_t i = 1; i < r->num_timed[lane]; i++) {
            CHECK(r->timed[lane][i].start >= r->timed[lane][i - 1].end - most_us);
        }
    }
}

static rows rows_of(const char *path)
{
    static char  text[1 << 22];
    FILE        *file = fopen(path, "rb");
    sherdi_mem   mem;
    sherdi_json *json;
    rows         out = {0};
    size_t       len;

    CHECK(file != NULL);
    len = fread(text, 1, sizeof(text), file);
    CHECK(len < sizeof(text));
    (void)fclose(file);
    sherdi_mem_init(&mem);
    CHECK_OK(sherdi_json_parse(&mem, path, text, len, &json));
    for (const sherdi_json_node *event =
             sherdi_json_first(sherdi_json_find(sherdi_json_root(json), "traceEvents"));
         event != NULL; event = sherdi_json_next(event)) {
        event_count(event, &out);
    }
    sherdi_json_destroy(json);
    rows_check(&out);
    return out;
}

static void trace_train(int ranks, job *what, const char *file, char path[512])
{
    (void)snprintf(path, 512, "%s/%s", test_scratch(), file);
    CHECK_INT(0, setenv("SHERD_TRACE", path, 1));
    test_world(ranks, train, what);
    CHECK_INT(0, unsetenv("SHERD_TRACE"));
}

static void trace_has_a_row_for_everything(void)
{
    job  what = {.options = {.stage = 3, .dtype = SHERD_BF16}};
    char path[512];
    rows seen;

    trace_train(2, &what, "trace.json", path);
    seen = rows_of(path);
    CHECK_INT(STEPS * what.gathers, seen.spans[SHERDI_TRACE_GATHER]);
    CHECK_INT(STEPS * what.reductions, seen.spans[SHERDI_TRACE_REDUCE]);
    CHECK_INT(STEPS * 6, seen.spans[SHERDI_TRACE_COMPUTE]);
    CHECK_INT(STEPS * 3 + STEPS, seen.spans[SHERDI_TRACE_UPDATE]); /* blocks, and the norm */
    CHECK_INT(STEPS, seen.spans[SHERDI_TRACE_STEP]);
    CHECK(seen.has_name);
    (void)snprintf(path, sizeof(path), "%s/trace.1.json", test_scratch());
    CHECK_INT(STEPS * what.gathers, rows_of(path).spans[SHERDI_TRACE_GATHER]);
}

static void trace_has_the_copies_of_offload(void)
{
    job  what = {.options = {.stage = 3,
                             .dtype = SHERD_BF16,
                             .zero  = ", \"offload_optimizer\": {\"device\": \"cpu\"}"}};
    char path[512];
    rows seen;

    trace_train(2, &what, "copies-%r.json", path);
    (void)snprintf(path, sizeof(path), "%s/copies-1.json", test_scratch());
    seen = rows_of(path);
    CHECK_INT(STEPS * 3, seen.spans[SHERDI_TRACE_DOWN]);
    CHECK_INT(STEPS * 3, seen.spans[SHERDI_TRACE_UP]);
}

static void trace_has_the_transfers_of_a_drive(void)
{
#ifdef SHERDI_HAVE_XXHASH
    char keys[512];
    job  what = {.options = {.stage = 3, .dtype = SHERD_BF16, .zero = keys}};
    char path[512];
    rows seen;

    (void)snprintf(keys, sizeof(keys),
                   ", \"sub_group_size\": 2048, \"offload_optimizer\": {\"device\": \"nvme\", "
                   "\"nvme_path\": \"%s\", \"durable\": false, \"fast_init\": true}",
                   test_scratch());
    trace_train(1, &what, "drive.json", path);
    seen = rows_of(path);
    CHECK(seen.spans[SHERDI_TRACE_READ] > 0 && seen.spans[SHERDI_TRACE_WRITE] > 0);
#else
    test_skip("no libxxhash in this build");
#endif
}

/* A wait for a queued update is in the trace, and in the report. */
static void trace_has_the_waits_for_an_update(void)
{
    job    what = {.options   = {.stage = 3,
                                 .dtype = SHERD_BF16,
                                 .zero  = ", \"offload_optimizer\": {\"device\": \"cpu\"}"},
                   .is_queued = 1};
    char   path[512];
    rows   seen;
    double waited = 0;

    trace_train(1, &what, "waits.json", path);
    seen = rows_of(path);
    for (int i = 0; i < STEPS; i++) {
        waited += what.reports[i].wait_update_s;
        CHECK(what.reports[i].beside_s > 0);
        CHECK_INT(-1, what.reports[i].stored_step); /* there is no drive */
    }
    CHECK(seen.num_updates_awaited >= STEPS);
    CHECK(waited > 0 && fabs(waited - seen.awaited_s) < 1e-6);
}

static void report_has_the_traces_sums(void)
{
    job    what = {.options = {.stage = 3, .dtype = SHERD_BF16}};
    char   path[512];
    rows   seen;
    double step = 0, compute = 0, update = 0;

    trace_train(2, &what, "sums.json", path);
    seen = rows_of(path);
    for (int i = 0; i < STEPS; i++) {
        const sherd_step_report *report = &what.reports[i];

        step += report->step_s;
        compute += report->compute_s;
        update += report->update_s + report->norm_s;
        CHECK(report->exposed_s >= report->step_s);
        CHECK(report->gather_s > 0 && report->reduce_s > 0);
        CHECK(report->hidden_s <= report->gather_s + report->reduce_s);
    }
    CHECK(fabs(step - seen.seconds[SHERDI_TRACE_STEP]) < 1e-6);
    CHECK(fabs(compute - seen.seconds[SHERDI_TRACE_COMPUTE]) < 1e-6);
    CHECK(fabs(update - seen.seconds[SHERDI_TRACE_UPDATE]) < 1e-6);
}

typedef struct refused_trace {
    const char  *path, *says;
    sherd_status status;
} refused_trace;

static void seal_trace(sherd_world *world, void *ctx)
{
    static const rig_options OPTIONS = {.stage = 1, .dtype = SHERD_F32};
    const refused_trace     *refused = ctx;
    rig                      r;

    rig_open(&r, world, &OPTIONS);
    (void)rig_unit(&r, "a");
    (void)rig_param(&r, 0, "a.w", 100);
    CHECK_STATUS(refused->status, sherd_engine_seal(r.engine));
    CHECK_ERROR_SAYS(refused->says);
    rig_close(&r);
}

static void trace_that_cannot_be_written_is_refused_at_seal(void)
{
    static char   deep[1200];
    refused_trace rows[] = {{"/no/such/folder/trace.json", "/no/such/folder/trace", SHERD_E_IO},
                            {deep, "the path has 1199 characters", SHERD_E_INVAL}};

    memset(deep, 'a', sizeof(deep) - 1);
    deep[0] = '/';
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        CHECK_INT(0, setenv("SHERD_TRACE", rows[i].path, 1));
        test_world(1, seal_trace, &rows[i]);
        CHECK_INT(0, unsetenv("SHERD_TRACE"));
    }
}

static const test_case CASES[] = {
    CASE(trace_has_a_row_for_everything),     CASE(trace_has_the_copies_of_offload),
    CASE(trace_has_the_transfers_of_a_drive), CASE(trace_has_the_waits_for_an_update),
    CASE(report_has_the_traces_sums),         CASE(trace_that_cannot_be_written_is_refused_at_seal),
};

RUN_MAIN(CASES)

/* sherd bench --check: checks whether the measured rates predict times. It runs steps of a model
 * without arithmetic in several layouts, and compares their times with those that a plan with these
 * rates gives. */
#include "cli/bench.h"
#include "models/clock.h"
#include "planning/model.h"
#include "planning/row.h"

#include <stdio.h>
#include <string.h>

typedef struct check_layout {
    int              stage;
    planning_offload offload;
    const char      *state_device, *param_device;
} check_layout;

static const check_layout LAYOUTS[] = {
    {1, PLANNING_OFFLOAD_NONE, NULL, NULL},
    {2, PLANNING_OFFLOAD_NONE, NULL, NULL},
    {3, PLANNING_OFFLOAD_NONE, NULL, NULL},
    {1, PLANNING_OFFLOAD_OPTIMIZER_CPU, "cpu", NULL},
    {3, PLANNING_OFFLOAD_OPTIMIZER_CPU, "cpu", NULL},
    {3, PLANNING_OFFLOAD_PARAMS_CPU, "cpu", "cpu"},
    {1, PLANNING_OFFLOAD_OPTIMIZER_NVME, "nvme", NULL},
    {3, PLANNING_OFFLOAD_OPTIMIZER_NVME, "nvme", NULL},
};

typedef struct check {
    sherd_world         *world;
    const bench_request *request;
    const bench_result  *measured;
    planning_model      *model;
} check;

/* The seconds of the passes of a micro-batch, and of the boundary after them. */
typedef struct step_seconds {
    double micro, boundary;
} step_seconds;

/* ------------------------------------------------------------ the real steps -- */

static sherd_status pass_run(const check *c, sherd_engine *engine, sherd_pass pass)
{
    int units = (int)c->model->num_units;

    for (int i = 0; i < units; i++) {
        sherd_unit u = pass == SHERD_BACKWARD ? units - 1 - i : i;

        BENCH_TRY(sherd_unit_acquire(engine, u, pass));
        BENCH_TRY(sherd_unit_release(engine, u, pass));
    }
    return SHERD_OK;
}

/* The report is complete when the device has finished. The part of the micro-batch that a GPU has
 * not finished counts for the boundary. */
static sherd_status step_run(const check *c, sherd_engine *engine, step_seconds *out)
{
    sherd_step_report report;
    double            start_s;
    double            micro_s;
    double            end_s;

    BENCH_TRY(sherd_world_barrier(c->world));
    sherd_step_report_init(&report);
    start_s = clock_now_s();
    BENCH_TRY(pass_run(c, engine, SHERD_FORWARD));
    BENCH_TRY(pass_run(c, engine, SHERD_BACKWARD));
    micro_s = clock_now_s();
    BENCH_TRY(sherd_step(engine, NULL));
    BENCH_TRY(sherd_step_wait(engine, &report));
    end_s = clock_now_s();
    BENCH_TRY(bench_slowest(c->world, micro_s - start_s, &out->micro));
    return bench_slowest(c->world, end_s - micro_s, &out->boundary);
}

static sherd_status steps_run(const check *c, sherd_engine *engine, step_seconds *out)
{
    double       micro[BENCH_MOST_ROUNDS];
    double       boundary[BENCH_MOST_ROUNDS];
    step_seconds step;

    for (int round = -2; round < c->request->rounds; round++) { /* the first two do not count */
        BENCH_TRY(step_run(c, engine, &step));
        if (round >= 0) {
            micro[round]    = step.micro;
            boundary[round] = step.boundary;
        }
        bench_progress(c->world, ".");
    }
    out->micro    = bench_median(micro, c->request->rounds);
    out->boundary = bench_median(boundary, c->request->rounds);
    return SHERD_OK;
}

static sherd_status engine_open(const check *c, const check_layout *layout, const char *nvme_path,
                                sherd_engine **out)
{
    bench_settings settings = {.stage         = layout->stage,
                               .micro_batches = 1,
                               .state_device  = layout->state_device,
                               .param_device  = layout->param_device,
                               .nvme_path     = nvme_path};
    sherd_config  *config;
    sherd_status   status;

    BENCH_TRY(bench_config_make(c->request, &settings, &config));
    status = sherd_engine_create(c->world, config, out);
    sherd_config_destroy(config);
    BENCH_TRY(status);
    status = planning_model_declare(c->model, *out);
    if (status == SHERD_OK) {
        status = sherd_engine_seal(*out);
    }
    for (size_t p = 0; p < c->model->num_params && status == SHERD_OK; p++) {
        status = sherd_param_fill(*out, (sherd_param)p, bench_fill, NULL);
    }
    if (status != SHERD_OK) {
        sherd_engine_destroy(*out);
    }
    return status;
}

static sherd_status layout_run(const check *c, const check_layout *layout, const char *nvme_path,
                               step_seconds *out)
{
    sherd_engine *engine;
    sherd_status  status;

    BENCH_TRY(engine_open(c, layout, nvme_path, &engine));
    status = steps_run(c, engine, out);
    sherd_engine_destroy(engine);
    return status;
}

/* ----------------------------------------------------------- the predictions -- */

static sherd_status layout_predict(const check *c, const check_layout *layout, step_seconds *out)
{
    static const char *const SETTINGS[] = {"zero_optimization.overlap_comm=false"};
    planning_layout          planned    = {
                    .stage = layout->stage, .offload = layout->offload, .world_size = c->measured->ranks};
    planning_request request = {.model          = c->model,
                                .settings       = SETTINGS,
                                .num_settings   = 1,
                                .backend        = c->request->backend,
                                .ranks_per_host = c->measured->ranks_per_host};
    planning_row     row;

    planning_rates_assume(c->request->backend, &request.rates);
    for (int i = 0; i < PLANNING_RATES; i++) {
        if (c->measured->rates[i].median > 0) {
            request.rates.values[i] = c->measured->rates[i].median;
        }
    }
    BENCH_TRY(planning_row_make(&request, &planned, &row));
    out->micro    = row.time.micro_s;
    out->boundary = row.time.boundary_s;
    return SHERD_OK;
}

/* ------------------------------------------------------------------ the table -- */

static void row_print(const check *c, const check_layout *layout, const step_seconds *planned,
                      const step_seconds *took)
{
    double planned_s = planned->micro + planned->boundary;
    double took_s    = took->micro + took->boundary;

    if (sherd_world_rank(c->world) != 0) {
        return;
    }
    (void)printf("%5d  %-15s %10.1f %10.1f %11.1f %10.1f %10.1f %10.1f %8.2f\n", layout->stage,
                 planning_offload_name(layout->offload), planned->micro * 1e3, took->micro * 1e3,
                 planned->boundary * 1e3, took->boundary * 1e3, planned_s * 1e3, took_s * 1e3,
                 planned_s / took_s);
}

static int is_on_nvme(const check_layout *layout)
{
    return layout->state_device != NULL && strcmp(layout->state_device, "nvme") == 0;
}

static sherd_status layouts_run(const check *c, const char *nvme_path)
{
    if (sherd_world_rank(c->world) == 0) {
        (void)printf("\n%zu elements, a step without arithmetic, milliseconds\n", c->model->elems);
        (void)printf("%5s  %-15s %10s %10s %11s %10s %10s %10s %8s\n", "stage", "offload",
                     "micro plan", "took", "boundary p.", "took", "step plan", "took", "ratio");
    }
    for (size_t i = 0; i < sizeof(LAYOUTS) / sizeof(LAYOUTS[0]); i++) {
        step_seconds planned;
        step_seconds took;

        if (is_on_nvme(&LAYOUTS[i]) && nvme_path == NULL) {
            continue;
        }
        BENCH_TRY(layout_predict(c, &LAYOUTS[i], &planned));
        BENCH_TRY(layout_run(c, &LAYOUTS[i], is_on_nvme(&LAYOUTS[i]) ? nvme_path : NULL, &took));
        bench_progress(c->world, "\n");
        row_print(c, &LAYOUTS[i], &planned, &took);
    }
    return SHERD_OK;
}

static sherd_status folder_run(const check *c, char *why, size_t why_bytes)
{
    scratch_folder folder;
    sherd_status   status;

    if (c->request->nvme_path == NULL) {
        return layouts_run(c, NULL);
    }
    if (bench_folder_make(c->world, c->request, c->measured->ranks_per_host, &folder) != 0) {
        (void)snprintf(why, why_bytes, "--nvme-path: %s", folder.why);
        return SHERD_E_IO;
    }
    status = layouts_run(c, folder.path);
    scratch_remove(c->world);
    return status;
}

sherd_status bench_check_run(sherd_world *world, const bench_request *request,
                             const bench_result *measured, char *why, size_t why_bytes)
{
    check        c = {.world = world, .request = request, .measured = measured};
    sherd_status status;

    why[0]  = '\0';
    c.model = planning_model_from_count(request->elems * (size_t)measured->ranks, why, why_bytes);
    if (c.model == NULL) {
        return SHERD_E_NOMEM;
    }
    status = folder_run(&c, why, why_bytes);
    planning_model_destroy(c.model);
    return status;
}

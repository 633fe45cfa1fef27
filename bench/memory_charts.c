/* Charts of bench-memory: planned for GPUs, and measured for real ranks on this machine. See
 * memory.h. */
#include "bench/memory.h"

#include "bench/plot.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define MOST_SERIES 16
#define MOST_BARS   (MEMORY_STAGES * PLANNING_OFFLOADS)
#define GIB         0x1p30

/* The paper's example (Rajbhandari et al. 2020, figure 1), on one host: there every part can be
 * seen. */
#define PAPER_MODEL  "7.5B"
#define MAKEUP_WORLD 8

static const double WORLDS[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
#define NUM_WORLDS (sizeof(WORLDS) / sizeof(WORLDS[0]))

static int path_make(const char *folder, const char *name, char out[1024])
{
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
        perror(folder);
        return -1;
    }
    (void)snprintf(out, 1024, "%s/memory-%s.svg", folder, name);
    return 0;
}

static int plan(const planning_model *model, int stage, planning_offload offload, int world,
                planning_row *out)
{
    planning_layout layout = {.stage = stage, .offload = offload, .world_size = world};

    if (memory_plan(model, "cuda", &layout, out) != SHERD_OK) {
        (void)fprintf(stderr, "bench-memory: %s\n", sherd_last_error());
        return -1;
    }
    return 0;
}

/* -------------------------------------------------------- against the world -- */

/* Stage by stage the memory of a GPU and, dashed, the paper's formula. */
static int worlds_draw(const char *folder, const planning_model *model)
{
    static const char *const SERIES[2 * MEMORY_STAGES] = {
        "stage 0", "stage 1", "stage 2", "stage 3", "paper, 0", "paper, 1", "paper, 2", "paper, 3"};
    static const int LOOKS[2 * MEMORY_STAGES] = {
        [4] = BENCH_LOOK_DASHES, BENCH_LOOK_DASHES, BENCH_LOOK_DASHES, BENCH_LOOK_DASHES};
    static const int COLOURS[2 * MEMORY_STAGES] = {0, 1, 2, 3, 0, 1, 2, 3};
    double           values[NUM_WORLDS * 2 * MEMORY_STAGES];
    char             title[128];
    char             path[1024];
    bench_lines      lines = {.title      = title,
                              .x_label    = "GPUs",
                              .y_label    = "GiB of each GPU",
                              .x          = WORLDS,
                              .num_points = NUM_WORLDS,
                              .series     = SERIES,
                              .num_series = 2 * MEMORY_STAGES,
                              .values     = values,
                              .looks      = LOOKS,
                              .colours    = COLOURS};

    for (size_t w = 0; w < NUM_WORLDS; w++) {
        for (int stage = 0; stage < MEMORY_STAGES; stage++) {
            double      *point = &values[w * 2 * MEMORY_STAGES + (size_t)stage];
            planning_row row;

            if (plan(model, stage, PLANNING_OFFLOAD_NONE, (int)WORLDS[w], &row) != 0) {
                return -1;
            }
            point[0]             = (double)row.device_bytes / GIB;
            point[MEMORY_STAGES] = row.paper_bytes / GIB;
        }
    }
    (void)snprintf(title, sizeof(title), "%s without offload, bf16 and AdamW: planned",
                   model->label);
    return path_make(folder, "worlds", path) == 0 ? bench_plot_lines(&lines, path) : -1;
}

/* The same of real ranks: lines are plans, points the system's report. */
static int real_worlds_draw(const char *folder, const memory_table *table)
{
    static const char *const SERIES[2 * MEMORY_STAGES] = {
        "stage 0 planned",  "stage 1 planned",  "stage 2 planned",  "stage 3 planned",
        "stage 0 reported", "stage 1 reported", "stage 2 reported", "stage 3 reported"};
    static const int LOOKS[2 * MEMORY_STAGES] = {
        [4] = BENCH_LOOK_POINTS, BENCH_LOOK_POINTS, BENCH_LOOK_POINTS, BENCH_LOOK_POINTS};
    static const int COLOURS[2 * MEMORY_STAGES]             = {0, 1, 2, 3, 0, 1, 2, 3};
    double           values[NUM_WORLDS * 2 * MEMORY_STAGES] = {0};
    char             title[128];
    char             path[1024];
    size_t           count = 0, points = 0;
    bench_lines      lines = {.title      = title,
                              .x_label    = "ranks (processes)",
                              .y_label    = "GiB of each rank",
                              .x          = WORLDS,
                              .series     = SERIES,
                              .num_series = 2 * MEMORY_STAGES,
                              .values     = values,
                              .looks      = LOOKS,
                              .colours    = COLOURS};

    for (size_t i = 0; i < table->count; i++) {
        const memory_row *row = &table->rows[i];

        if (strcmp(row->model, table->rows[0].model) != 0 ||
            row->layout.offload != PLANNING_OFFLOAD_NONE || !row->is_real) {
            continue;
        }
        for (size_t w = 0; w < NUM_WORLDS; w++) {
            if ((int)WORLDS[w] == row->layout.world_size) {
                double *point = &values[w * 2 * MEMORY_STAGES + (size_t)row->layout.stage];

                point[0]             = (double)row->planned_bytes / GIB;
                point[MEMORY_STAGES] = row->system_bytes / GIB;
                points               = w + 1 > points ? w + 1 : points;
                count++;
            }
        }
    }
    if (count == 0) {
        return 0;
    }
    lines.num_points = points;
    (void)snprintf(title, sizeof(title), "%s without offload: planned, and reported by the system",
                   table->rows[0].model);
    return path_make(folder, "real-worlds", path) == 0 ? bench_plot_lines(&lines, path) : -1;
}

/* ------------------------------------------------------------------ make-up -- */

typedef struct makeup {
    char        labels[MOST_BARS][48];
    const char *groups[MOST_BARS];
    double      device[MOST_BARS * 4], host[MOST_BARS * 8];
    size_t      count;
} makeup;

static double gib(size_t bytes)
{
    return (double)bytes / GIB;
}

static void makeup_add(makeup *m, int stage, planning_offload offload, const planning_row *row)
{
    const sherd_memory_report *r      = &row->memory;
    double                    *device = &m->device[m->count * 4];
    double                    *host   = &m->host[m->count * 8];
    size_t                     live   = r->nvme_state_planned / (r->has_spare_state ? 2 : 1);

    (void)snprintf(m->labels[m->count], sizeof(m->labels[0]), "%d\n%s", stage,
                   planning_offload_name(offload));
    m->groups[m->count] = m->labels[m->count];
    device[0]           = gib(r->params_planned);
    device[1]           = gib(r->grads_planned);
    device[2]           = gib(r->state_planned);
    device[3] =
        gib(r->gather_planned + r->transient_planned + r->staging_planned + r->receive_planned);
    host[0] = gib(r->host_params_planned);
    host[1] = gib(r->host_grads_planned);
    host[2] = gib(r->host_state_planned);
    host[3] = gib(r->host_staging_planned);
    host[4] = gib(r->nvme_params_planned);
    host[5] = gib(r->nvme_grads_planned);
    host[6] = gib(live);
    host[7] = gib(r->nvme_state_planned - live);
    m->count++;
}

static int makeup_draw(const char *folder, const planning_model *model)
{
    static const char *const DEVICE[] = {"parameters", "gradients", "state", "buffers"};
    static const char *const HOST[]   = {"parameters",   "gradients",         "state",
                                         "buffers",      "drive: parameters", "drive: gradients",
                                         "drive: state", "drive: spare state"};
    makeup                   m        = {0};
    char                     title[160];
    char                     path[1024];
    bench_bars               bars = {.title      = title,
                                     .y_label    = "GiB of each GPU",
                                     .groups     = m.groups,
                                     .series     = DEVICE,
                                     .num_series = 4,
                                     .values     = m.device,
                                     .is_stacked = 1};

    for (int stage = 0; stage < MEMORY_STAGES; stage++) {
        for (int offload = 0; offload < PLANNING_OFFLOADS; offload++) {
            planning_row row;

            if (!planning_offload_fits_stage((planning_offload)offload, stage)) {
                continue;
            }
            if (plan(model, stage, (planning_offload)offload, MAKEUP_WORLD, &row) != 0) {
                return -1;
            }
            makeup_add(&m, stage, (planning_offload)offload, &row);
        }
    }
    bars.num_groups = m.count;
    (void)snprintf(title, sizeof(title), "%s on %d GPUs, by stage and offload: device memory",
                   model->label, MAKEUP_WORLD);
    if (path_make(folder, "makeup-device", path) != 0 || bench_plot_bars(&bars, path) != 0) {
        return -1;
    }
    (void)snprintf(title, sizeof(title),
                   "%s on %d GPUs, by stage and offload: host memory and drive", model->label,
                   MAKEUP_WORLD);
    bars.y_label    = "GiB for each GPU";
    bars.series     = HOST;
    bars.num_series = 8;
    bars.values     = m.host;
    return path_make(folder, "makeup-host", path) == 0 ? bench_plot_bars(&bars, path) : -1;
}

/* The first model's real rows in its largest world. */
static int real_draw(const char *folder, const memory_table *table)
{
    static const char *const SERIES[] = {"planned", "held", "reported by the system", "its peak"};
    char                     labels[MOST_BARS][48];
    const char              *groups[MOST_BARS];
    double                   values[MOST_BARS * 4];
    char                     title[160];
    char                     path[1024];
    int                      world = 0;
    bench_bars               bars  = {.title      = title,
                                      .y_label    = "GiB of each rank",
                                      .groups     = groups,
                                      .series     = SERIES,
                                      .num_series = 4,
                                      .values     = values};

    for (size_t i = 0; i < table->count; i++) {
        const memory_row *row = &table->rows[i];

        if (strcmp(row->model, table->rows[0].model) == 0 && row->is_real &&
            row->layout.world_size > world) {
            world = row->layout.world_size;
        }
    }
    for (size_t i = 0; i < table->count && bars.num_groups < MOST_BARS; i++) {
        const memory_row *row   = &table->rows[i];
        double           *value = &values[bars.num_groups * 4];

        if (strcmp(row->model, table->rows[0].model) != 0 || !row->is_real ||
            row->layout.world_size != world) {
            continue;
        }
        (void)snprintf(labels[bars.num_groups], sizeof(labels[0]), "%d\n%s", row->layout.stage,
                       planning_offload_name(row->layout.offload));
        groups[bars.num_groups] = labels[bars.num_groups];
        value[0]                = gib(row->planned_bytes);
        value[1]                = gib(row->held_bytes);
        value[2]                = row->system_bytes / GIB;
        value[3]                = row->peak_bytes / GIB;
        bars.num_groups++;
    }
    if (bars.num_groups == 0) {
        return 0;
    }
    (void)snprintf(title, sizeof(title),
                   "%s in %d processes, by stage and offload: memory of a rank",
                   table->rows[0].model, world);
    return path_make(folder, "real", path) == 0 ? bench_plot_bars(&bars, path) : -1;
}

/* -------------------------------------------------------------- the largest -- */

static int limits_draw(const char *folder, const memory_limit *limits, size_t num_limits)
{
    char        labels[MOST_SERIES][48];
    const char *series[MOST_SERIES];
    double      gpus[16];
    double      values[16 * MOST_SERIES];
    char        path[1024];
    size_t      points = 0;
    bench_lines lines  = {.title   = "The largest model by stage and offload, without activations",
                          .x_label = "GPUs",
                          .y_label = "parameters, in billions",
                          .x       = gpus,
                          .series  = series,
                          .values  = values};

    while (points < num_limits && points < 16 && limits[points].stage == limits[0].stage &&
           limits[points].offload == limits[0].offload) {
        gpus[points] = limits[points].gpus;
        points++;
    }
    if (points == 0) {
        return 0;
    }
    lines.num_points = points;
    lines.num_series = num_limits / points < MOST_SERIES ? num_limits / points : MOST_SERIES;
    for (size_t s = 0; s < lines.num_series; s++) {
        const memory_limit *first = &limits[s * points];

        (void)snprintf(labels[s], sizeof(labels[0]), "stage %d, %s", first->stage,
                       planning_offload_name(first->offload));
        series[s] = labels[s];
        for (size_t i = 0; i < points; i++) {
            values[i * lines.num_series + s] = (double)first[i].elems / 1e9;
        }
    }
    return path_make(folder, "largest", path) == 0 ? bench_plot_lines(&lines, path) : -1;
}

int memory_charts_write(const char *folder, const memory_table *table, const memory_limit *limits,
                        size_t num_limits)
{
    char            why[256];
    planning_model *model  = memory_model_find(PAPER_MODEL, why, sizeof(why));
    int             status = -1;

    if (model == NULL) {
        (void)fprintf(stderr, "bench-memory: %s\n", why);
        return -1;
    }
    if (worlds_draw(folder, model) == 0 && makeup_draw(folder, model) == 0 &&
        real_worlds_draw(folder, table) == 0 && real_draw(folder, table) == 0 &&
        limits_draw(folder, limits, num_limits) == 0) {
        status = 0;
    }
    planning_model_destroy(model);
    return status;
}

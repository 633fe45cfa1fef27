/* bench-memory: the memory that an engine plans, that it holds and that the system reports, in one
 * table. Real ranks are processes that train two steps; large worlds are planned on simulated ones.
 * A row whose ranks hold other bytes than planned, or whose plan is not within 2 % or 32 MiB of the
 * system's report, makes the program fail. Read next: memory.h. */
#include "bench/memory.h"
#include "bench/timing.h"

#include <stdlib.h>
#include <string.h>

#define MOST_LIMITS (MEMORY_STAGES * PLANNING_OFFLOADS * 8)

typedef struct bench {
    const memory_options *options;
    memory_folders        folders;
    memory_table          table;
    memory_limit          limits[MOST_LIMITS];
    size_t                num_limits;
    FILE                 *json;
    /* failed, or the planned bytes differ from the held ones or from the system's report */
    int bad_rows;
    int left_out;
} bench;

/* --------------------------------------------------------------------- rows -- */

static memory_row *row_new(bench *b)
{
    memory_table *table = &b->table;

    if (table->count == table->capacity) {
        size_t      capacity = table->capacity == 0 ? 64 : 2 * table->capacity;
        memory_row *rows     = realloc(table->rows, capacity * sizeof(*rows));

        if (rows == NULL) {
            (void)fputs("bench-memory: no memory for a row\n", stderr);
            exit(1);
        }
        table->rows     = rows;
        table->capacity = capacity;
    }
    return &table->rows[table->count++];
}

static void row_print(bench *b, const planning_model *model, const char *backend,
                      const memory_row *row)
{
    planning_request request = {.model = model, .backend = backend};

    memory_print_row(stdout, row);
    (void)fflush(stdout);
    planning_rates_assume(backend, &request.rates);
    if (b->json != NULL && memory_json_row(b->json, &request, row) != 0) {
        (void)fprintf(stderr, "bench-memory: %s cannot be written\n", b->options->json);
        exit(1);
    }
    if (row->is_real && (!row->is_equal || !row->is_close)) {
        b->bad_rows++;
    }
}

static void row_fail(const memory_row *row)
{
    (void)fprintf(stderr, "bench-memory: %s, stage %d, %s, world %d: %s\n", row->model,
                  row->layout.stage, planning_offload_name(row->layout.offload),
                  row->layout.world_size, row->why);
}

typedef struct row_kind {
    const planning_model *model;
    const char           *name;
    int                   stage;
    planning_offload      offload;
} row_kind;

/* 1: it ran; 0: it does not fit, cannot be, or failed, which counts; -1: the end is wanted. */
static int real_row(bench *b, const row_kind *kind, int world, int is_printed)
{
    planning_layout layout = {.stage = kind->stage, .offload = kind->offload, .world_size = world};
    memory_run      run    = {
                .folders = &b->folders, .backend = b->options->backend, .keys = b->options->keys};
    memory_row *row = row_new(b);
    int         status;

    (void)fprintf(stderr, "%s, stage %d, %s, world %d ...\n", kind->name, kind->stage,
                  planning_offload_name(kind->offload), world);
    status = memory_row_run(&run, kind->model, kind->name, &layout, row);
    if (status < 0) {
        row_fail(row);
        b->bad_rows++;
        b->table.count--;
        return memory_signal() != 0 ? -1 : 0;
    }
    if (status == 0 && (row->is_real || is_printed)) {
        row_print(b, kind->model, b->options->backend, row);
        return row->is_real;
    }
    if (status > 0 && b->left_out++ == 0) {
        (void)fprintf(stderr, "bench-memory: rows are left out: %s\n", row->why);
    }
    b->table.count--;
    return 0;
}

/* All worlds of one kind of row, or the largest that fits. */
static int real_rows(bench *b, const row_kind *kind, int is_every_world)
{
    const memory_options *o = b->options;

    for (size_t w = 0; w < o->num_worlds; w++) {
        size_t at  = is_every_world ? w : o->num_worlds - 1 - w;
        int    ran = 0;

        if (o->worlds[at] <= MEMORY_MOST_RANKS) {
            ran = real_row(b, kind, o->worlds[at], is_every_world || at == 0);
        }
        if (ran < 0) {
            return -1;
        }
        if (ran > 0 && !is_every_world) {
            return 0;
        }
    }
    return 0;
}

static int planned_rows(bench *b, const row_kind *kind)
{
    const memory_options *o = b->options;

    for (size_t w = 0; w < o->num_worlds; w++) {
        planning_layout layout = {
            .stage = kind->stage, .offload = kind->offload, .world_size = o->worlds[w]};
        memory_row *row;

        if (layout.world_size <= MEMORY_MOST_RANKS && !o->is_planned_only) {
            continue;
        }
        row = row_new(b);
        if (memory_row_plan(kind->model, kind->name, "cuda", &layout, row) != 0) {
            row_fail(row);
            return -1;
        }
        row_print(b, kind->model, "cuda", row);
    }
    return 0;
}

/* Every stage and offload of one model. */
static int model_rows(bench *b, const char *name, int is_real, int is_every_world)
{
    const memory_options *o = b->options;
    char                  why[256];
    planning_model       *model  = memory_model_find(name, why, sizeof(why));
    int                   status = 0;

    if (model == NULL) {
        (void)fprintf(stderr, "bench-memory: %s\n", why);
        return -1;
    }
    for (int stage = 0; stage < MEMORY_STAGES && status == 0; stage++) {
        for (int offload = 0; offload < PLANNING_OFFLOADS && status == 0; offload++) {
            row_kind kind = {model, name, stage, (planning_offload)offload};

            if (!o->has_stage[stage] || !o->has_offload[offload] ||
                !planning_offload_fits_stage(kind.offload, stage)) {
                continue;
            }
            status = is_real ? real_rows(b, &kind, is_every_world) : planned_rows(b, &kind);
            if (memory_signal() != 0) {
                status = -1;
            }
        }
    }
    planning_model_destroy(model);
    return status;
}

static int limits_find(bench *b)
{
    static const int      GPUS[] = {1, 2, 4, 8, 16, 64, 256, 1024};
    const memory_options *o      = b->options;

    for (int stage = 0; stage < MEMORY_STAGES; stage++) {
        for (int offload = 0; offload < PLANNING_OFFLOADS; offload++) {
            if (!o->has_stage[stage] || !o->has_offload[offload] ||
                !planning_offload_fits_stage((planning_offload)offload, stage)) {
                continue;
            }
            (void)fprintf(stderr, "largest model, stage %d, %s ...\n", stage,
                          planning_offload_name((planning_offload)offload));
            for (size_t g = 0; g < sizeof(GPUS) / sizeof(GPUS[0]); g++) {
                memory_limit *limit = &b->limits[b->num_limits];

                if (memory_limit_find(&o->limits, stage, (planning_offload)offload, GPUS[g],
                                      limit) != 0) {
                    return -1;
                }
                b->num_limits++;
                if (b->json != NULL && memory_json_limit(b->json, limit) != 0) {
                    return -1;
                }
            }
        }
    }
    (void)printf("\n# the largest model, GPUs of %.0f GB, hosts of %d with %.2f TB and drives of "
                 "%.1f TB; no activations; d, h, n: what is full, device, host or drive\n",
                 (double)o->limits.device_bytes / 1e9, o->limits.ranks_per_host,
                 (double)o->limits.host_bytes / 1e12, (double)o->limits.nvme_bytes / 1e12);
    memory_print_limits(stdout, b->limits, b->num_limits);
    (void)fflush(stdout);
    return 0;
}

static int bench_run(bench *b)
{
    const memory_options *o      = b->options;
    int                   status = 0;

    memory_print_head(stdout);
    for (size_t m = 0; m < o->num_models && !o->is_planned_only && status == 0; m++) {
        status = model_rows(b, o->models[m], 1, m == 0);
    }
    for (size_t m = 0; m < o->num_planned_models && !o->is_real_only && status == 0; m++) {
        status = model_rows(b, o->planned_models[m], 0, 1);
    }
    if (status == 0 && !o->is_real_only) {
        status = limits_find(b);
    }
    if (status == 0 && o->plots != NULL) {
        status = memory_charts_write(o->plots, &b->table, b->limits, b->num_limits);
    }
    return status;
}

/* --------------------------------------------------------------------- main -- */

int main(int argc, char **argv)
{
    memory_options options = {
        .backend            = "cpu",
        .nvme_path          = ".",
        .models             = {"124m", "355m", "774m", "1558m", "2.5B", "7B"},
        .num_models         = 6,
        .planned_models     = {"124m", "1558m", "7.5B", "70B", "128B", "1T"},
        .num_planned_models = 6,
        .worlds             = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024},
        .num_worlds         = 11,
        .has_stage          = {1, 1, 1, 1},
        .has_offload        = {1, 1, 1, 1, 1},
        .limits             = {.device_bytes   = 80000000000,
                               .host_bytes     = 1500000000000,
                               .nvme_bytes     = 28000000000000,
                               .ranks_per_host = 8},
    };
    static bench b;
    int          status;

    if (argc > 1 && strcmp(argv[1], "--part") == 0) {
        return memory_part_main(argc, argv);
    }
    memory_options_parse(argc, argv, &options);
    b.options = &options;
    if (strcmp(options.backend, "cuda") == 0 && sherd_device_count("cuda") == 0) {
        (void)fprintf(stderr, "bench-memory: %s\n", sherd_last_error());
        return 77;
    }
    if (options.touch_bytes > 0) {
        bench_print_machine(argc, argv);
        return memory_touch_run(options.touch_bytes, options.backend);
    }
    if (options.json != NULL && (b.json = fopen(options.json, "we")) == NULL) {
        perror(options.json);
        return 1;
    }
    (void)atexit(memory_folders_remove);
    memory_signals_catch();
    if (!options.is_planned_only && memory_folders_make(options.nvme_path, &b.folders) != 0) {
        return 1;
    }
    bench_print_machine(argc, argv);
    status = bench_run(&b);
    if (b.json != NULL && fclose(b.json) != 0) {
        perror(options.json);
        status = -1;
    }
    free(b.table.rows);
    if (memory_signal() != 0) {
        return 128 + memory_signal();
    }
    if (b.bad_rows > 0) {
        (void)fprintf(stderr, "bench-memory: %d rows failed or are not as planned; named above\n",
                      b.bad_rows);
    }
    return status != 0 || b.bad_rows > 0 ? 1 : 0;
}

/* bench-storage: the queue of transfers (offload/io.h) against a bare io_uring loop on the same
 * file, with the same memory, request size and depth, both registered. They take turns in each
 * round, who begins changes from round to round; a ratio is taken inside each round and the median
 * shown. fio, where it is installed, takes its turn too, for a figure that others know. */
#include "bench/bare.h"
#include "bench/plot.h"
#include "bench/options.h"
#include "bench/timing.h"

#include "base/checked.h"
#include "base/clock.h"
#include "offload/io.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The bytes that the engine would move at a time. */
#define TRANSFER_BYTES ((size_t)16 << 20)
#define MAX_LIST       BENCH_MOST_LIST
#define MAX_TRANSFERS  128

typedef struct bench_options {
    const char *dir;
    const char *json; /* NULL: none */
    const char *plot;
    const char *engine;
    size_t      size_bytes, rounds;
    bench_list  blocks, depths;
    int         has_fio;
} bench_options;

enum { QUEUE = 0, BARE, FIO, RUNNERS };

/* GB/s of each runner in each round, reads [0] and writes [1]. */
typedef struct bench_cell {
    size_t  block_bytes, depth;
    double *rates[2][RUNNERS];
} bench_cell;

typedef struct bench_setting {
    const bench_options *options;
    bench_cell          *cell;
    sherdi_mem          *mem;
    unsigned char       *memory;
    size_t               memory_bytes; /* whole transfers, twice what may be in flight */
    sherdi_ioq          *queue;
    sherdi_file         *file;
    bench_bare          *bare;
} bench_setting;

static _Noreturn void die(const char *what, const char *why)
{
    (void)fprintf(stderr, "bench-storage: %s: %s\n", what, why);
    exit(1);
}

/* ------------------------------------------------------------- the queue -- */

/* As many transfers at a time as there is memory, one after another through the file. */
static void queue_pass(bench_setting *set, int is_write)
{
    sherdi_io ios[MAX_TRANSFERS];
    size_t    in_flight = set->memory_bytes / TRANSFER_BYTES;
    size_t    count     = set->options->size_bytes / TRANSFER_BYTES;

    for (size_t i = 0; i < count + in_flight; i++) {
        sherdi_io *io = &ios[i % in_flight];

        if (i >= in_flight && i - in_flight < count && sherdi_io_wait(set->queue, io) != SHERD_OK) {
            die("transfer", sherd_last_error());
        }
        if (i < count) {
            *io = (sherdi_io){
                .file         = set->file,
                .is_write     = is_write,
                .memory       = set->memory + i % in_flight * TRANSFER_BYTES,
                .offset_bytes = i * TRANSFER_BYTES,
                .len_bytes    = TRANSFER_BYTES,
            };
            sherdi_io_start(set->queue, io);
        }
    }
}

/* -------------------------------------------------------------- the loop -- */

static void bare_open(bench_setting *set)
{
    const bench_bare_params params = {.path         = sherdi_file_path(set->file),
                                      .memory       = set->memory,
                                      .memory_bytes = set->memory_bytes,
                                      .size_bytes   = set->options->size_bytes,
                                      .block_bytes  = set->cell->block_bytes,
                                      .depth        = set->cell->depth};
    char                    why[256];

    set->bare = bench_bare_open(&params, why, sizeof(why));
    if (set->bare == NULL) {
        die("bare loop", why);
    }
}

static void bare_pass(bench_setting *set, int is_write)
{
    char why[256];

    if (bench_bare_run(set->bare, is_write ? BENCH_BARE_WRITE : BENCH_BARE_READ, why,
                       sizeof(why)) == 0) {
        die("bare loop", why);
    }
}

/* ------------------------------------------------------------------- fio -- */

static int fio_is_there(void)
{
    return system("fio --version >/dev/null 2>&1") == 0;
}

/* Its own figure, in GB/s; 0 when it has none. */
static double fio_pass(const bench_setting *set, int is_write)
{
    char  command[1024];
    char  line[8192];
    FILE *pipe;
    char *field  = NULL;
    char *rest   = line;
    int   wanted = is_write ? 48 : 7; /* of the terse format: bandwidth in KiB/s */

    (void)snprintf(command, sizeof(command),
                   "fio --name=bench --filename='%s' --rw=%s --bs=%zu --iodepth=%zu --size=%zu "
                   "--direct=1 --ioengine=io_uring --fixedbufs=1 --registerfiles=1 --thread=1 "
                   "--output-format=terse --terse-version=3 2>/dev/null",
                   sherdi_file_path(set->file), is_write ? "write" : "read", set->cell->block_bytes,
                   set->cell->depth, set->options->size_bytes);
    pipe = popen(command, "r");
    if (pipe == NULL) {
        return 0;
    }
    if (fgets(line, sizeof(line), pipe) == NULL) {
        rest = NULL;
    }
    for (int i = 0; i < wanted && rest != NULL; i++) {
        field = strsep(&rest, ";");
    }
    (void)pclose(pipe);
    return field == NULL ? 0 : atof(field) * 1024 * 1e-9;
}

/* ----------------------------------------------------------------- rounds -- */

static double runner_rate(bench_setting *set, int runner, int is_write)
{
    int64_t start_ns = sherdi_now_ns();

    if (runner == FIO) {
        return fio_pass(set, is_write);
    }
    (runner == QUEUE ? queue_pass : bare_pass)(set, is_write);
    return (double)set->options->size_bytes / (double)(sherdi_now_ns() - start_ns);
}

static void cell_rounds(bench_setting *set)
{
    for (int is_write = 1; is_write >= 0; is_write--) { /* also fills the file and warms up */
        (void)runner_rate(set, QUEUE, is_write);
        (void)runner_rate(set, BARE, is_write);
    }
    for (size_t round = 0; round < set->options->rounds; round++) {
        for (int is_write = 0; is_write < 2; is_write++) {
            for (int turn = 0; turn < 2; turn++) {
                int runner = (turn + (int)round) % 2 == 0 ? QUEUE : BARE;

                set->cell->rates[is_write][runner][round] = runner_rate(set, runner, is_write);
            }
            if (set->options->has_fio) {
                set->cell->rates[is_write][FIO][round] = runner_rate(set, FIO, is_write);
            }
        }
    }
}

static void cell_run(const bench_options *options, bench_cell *cell)
{
    const sherdi_ioq_params params = {
        .kind = strcmp(options->engine, "threads") == 0 ? SHERDI_IOQ_THREADS : SHERDI_IOQ_URING,
        .request_bytes = cell->block_bytes,
        .depth         = (int)cell->depth,
    };
    const sherdi_file_params file = {
        .folders        = &options->dir,
        .num_folders    = 1,
        .name           = "sherd-bench-storage",
        .capacity_bytes = options->size_bytes,
        .flags          = SHERDI_FILE_CREATE,
    };
    sherdi_mem    mem;
    bench_setting set = {.options = options, .cell = cell, .mem = &mem};
    struct iovec  range;
    size_t        pinned_bytes;

    sherdi_mem_init(&mem);
    set.memory_bytes = sherdi_round_up(
        sherdi_max_size(4 * TRANSFER_BYTES, 2 * cell->depth * cell->block_bytes), TRANSFER_BYTES);
    set.memory = sherdi_alloc(&mem, SHERDI_MEM_STAGING, set.memory_bytes);
    if (set.memory == NULL || sherdi_ioq_create(&params, &mem, &set.queue) != SHERD_OK ||
        sherdi_file_open(set.queue, &file, &set.file) != SHERD_OK) {
        die("set-up", sherd_last_error());
    }
    range = (struct iovec){.iov_base = set.memory, .iov_len = set.memory_bytes};
    sherdi_ioq_register(set.queue, &range, 1, &pinned_bytes);
    if (pinned_bytes == 0 && params.kind == SHERDI_IOQ_URING) {
        (void)printf("# the queue's memory could not be registered\n");
    }
    bare_open(&set);
    cell_rounds(&set);
    bench_bare_close(set.bare);
    sherdi_file_close(set.file, 1);
    sherdi_ioq_destroy(set.queue);
    sherdi_free(set.memory);
}

/* ----------------------------------------------------------------- output -- */

static bench_stat ratio_of(const bench_cell *cell, int is_write, size_t rounds, double *scratch)
{
    for (size_t i = 0; i < rounds; i++) {
        scratch[i] = cell->rates[is_write][QUEUE][i] / cell->rates[is_write][BARE][i];
    }
    return bench_stat_of(scratch, rounds);
}

static bench_stat rate_of(const bench_cell *cell, int is_write, int runner, size_t rounds,
                          double *scratch)
{
    memcpy(scratch, cell->rates[is_write][runner], rounds * sizeof(*scratch));
    return bench_stat_of(scratch, rounds);
}

static void cell_print(const bench_options *options, const bench_cell *cell, double *scratch)
{
    for (int is_write = 0; is_write < 2; is_write++) {
        bench_stat ratio = ratio_of(cell, is_write, options->rounds, scratch);

        (void)printf("%-5s %5zuK %3zu  %6.2f %6.2f  %5.3f (%.2f..%.2f)",
                     is_write ? "write" : "read", cell->block_bytes >> 10, cell->depth,
                     rate_of(cell, is_write, QUEUE, options->rounds, scratch).median,
                     rate_of(cell, is_write, BARE, options->rounds, scratch).median, ratio.median,
                     ratio.min, ratio.max);
        if (options->has_fio) {
            (void)printf("  %6.2f", rate_of(cell, is_write, FIO, options->rounds, scratch).median);
        }
        (void)printf("\n");
    }
    (void)fflush(stdout);
}

static void cell_print_json(const bench_options *options, const bench_cell *cell, double *scratch,
                            int is_first)
{
    for (int is_write = 0; is_write < 2; is_write++) {
        bench_stat ratio = ratio_of(cell, is_write, options->rounds, scratch);

        (void)printf("%s{\"direction\": \"%s\", \"block_bytes\": %zu, \"depth\": %zu, "
                     "\"queue_gb_s\": %.4f, \"bare_gb_s\": %.4f, \"ratio\": %.4f, "
                     "\"ratio_min\": %.4f, \"ratio_max\": %.4f",
                     is_first && !is_write ? "" : ", ", is_write ? "write" : "read",
                     cell->block_bytes, cell->depth,
                     rate_of(cell, is_write, QUEUE, options->rounds, scratch).median,
                     rate_of(cell, is_write, BARE, options->rounds, scratch).median, ratio.median,
                     ratio.min, ratio.max);
        if (options->has_fio) {
            (void)printf(", \"fio_gb_s\": %.4f",
                         rate_of(cell, is_write, FIO, options->rounds, scratch).median);
        }
        (void)printf("}");
    }
}

static void json_write(const bench_options *options, const bench_cell *cells, size_t count,
                       double *scratch, int argc, char **argv)
{
    if (freopen(options->json, "w", stdout) == NULL) {
        die(options->json, strerror(errno));
    }
    (void)printf("{");
    bench_print_machine_json(argc, argv);
    (void)printf(", \"engine\": \"%s\", \"size_bytes\": %zu, \"rounds\": %zu, \"rows\": [",
                 options->engine, options->size_bytes, options->rounds);
    for (size_t i = 0; i < count; i++) {
        cell_print_json(options, &cells[i], scratch, i == 0);
    }
    (void)printf("]}\n");
    if (fclose(stdout) != 0) {
        die(options->json, strerror(errno));
    }
}

static int plot_write(const bench_options *options, const bench_cell *cells, size_t count,
                      double *scratch)
{
    static const char *const SERIES[] = {"sherd", "bare io_uring loop", "fio"};
    char                     labels[2 * MAX_LIST * MAX_LIST][64];
    const char              *groups[2 * MAX_LIST * MAX_LIST];
    double                   values[2 * MAX_LIST * MAX_LIST * RUNNERS];
    size_t                   num_series = options->has_fio ? RUNNERS : FIO;
    size_t                   num_values = 0;
    bench_bars               bars       = {.title      = "Transfers of a file",
                                           .y_label    = "GB/s",
                                           .groups     = groups,
                                           .num_groups = 2 * count,
                                           .series     = SERIES,
                                           .num_series = num_series,
                                           .values     = values};

    for (size_t i = 0; i < 2 * count; i++) {
        const bench_cell *cell     = &cells[i % count];
        int               is_write = i >= count;

        (void)snprintf(labels[i], sizeof(labels[i]), "%s\n%zuK x %zu", is_write ? "write" : "read",
                       cell->block_bytes >> 10, cell->depth);
        groups[i] = labels[i];
        for (size_t runner = 0; runner < num_series; runner++) {
            values[num_values++] =
                rate_of(cell, is_write, (int)runner, options->rounds, scratch).median;
        }
    }
    return bench_plot_bars(&bars, options->plot);
}

/* ---------------------------------------------------------------- options -- */

static void options_parse(int argc, char **argv, bench_options *o)
{
    int                is_without_fio = 0;
    const bench_option rows[]         = {
                {"dir", "FOLDER",
                 "folder in which the file is made, and removed again (default: the current one)",
                 BENCH_TEXT, .value = &o->dir},
                {"size", "BYTES", "size of the file, at least 256M (default 1G)", BENCH_SIZE,
                 .value = &o->size_bytes, .least = 0x1p28},
                {"block", "LIST", "sizes of one request (default 256K,1M,4M)", BENCH_LIST,
                 .value = &o->blocks, .least = SHERD_ALIGN_BYTES, .most = TRANSFER_BYTES},
                {"depth", "LIST", "requests in flight (default 8,16,32)", BENCH_LIST, .value = &o->depths,
                 .least = 1, .most = MAX_TRANSFERS / 2.0},
                {"rounds", "N", "rounds (default 7)", BENCH_SIZE, .value = &o->rounds, .least = 1},
                {"engine", "NAME", "what the queue runs on: io_uring (default) or threads", BENCH_TEXT,
                 .value = &o->engine, .choices = "io_uring|threads"},
                {"no-fio", NULL, "leave fio out, even if it is installed", BENCH_SWITCH,
                 .value = &is_without_fio},
                {"json", "FILE", "write the figures as JSON", BENCH_TEXT, .value = &o->json},
                {"plot", "FILE.svg", "draw a chart, if gnuplot is installed", BENCH_TEXT,
                 .value = &o->plot}};
    const bench_command command = {
        .name = "storage",
        .about =
            "Times reads and writes of the engine's queue, of a bare io_uring loop, and of fio.",
        .options     = rows,
        .num_options = sizeof(rows) / sizeof(rows[0]),
        .end = "Ratios are the queue's rate over the bare loop's, taken in the same round."};

    (void)bench_options_read(&command, argc, argv);
    o->has_fio = !is_without_fio && fio_is_there();
    for (size_t i = 0; i < o->blocks.count; i++) {
        if (TRANSFER_BYTES % o->blocks.values[i] != 0) {
            bench_options_refuse(&command, "--block %zu does not divide a transfer of %zu bytes",
                                 o->blocks.values[i], (size_t)TRANSFER_BYTES);
        }
    }
    if (o->size_bytes % TRANSFER_BYTES != 0) {
        bench_options_refuse(&command, "--size %zu is no multiple of a transfer's %zu bytes",
                             o->size_bytes, (size_t)TRANSFER_BYTES);
    }
}

static bench_cell cell_make(size_t block_bytes, size_t depth, size_t rounds)
{
    bench_cell cell = {.block_bytes = block_bytes, .depth = depth};

    for (int i = 0; i < 2 * RUNNERS; i++) {
        cell.rates[i / RUNNERS][i % RUNNERS] = calloc(rounds, sizeof(double));
        if (cell.rates[i / RUNNERS][i % RUNNERS] == NULL) {
            die("set-up", "out of memory");
        }
    }
    return cell;
}

int main(int argc, char **argv)
{
    bench_options options = {
        .dir        = ".",
        .engine     = "io_uring",
        .size_bytes = (size_t)1 << 30,
        .rounds     = 7,
        .blocks     = {{(size_t)256 << 10, (size_t)1 << 20, (size_t)4 << 20}, 3},
        .depths     = {{8, 16, 32}, 3},
    };
    bench_cell cells[MAX_LIST * MAX_LIST];
    size_t     count = 0;
    double    *scratch;

    options_parse(argc, argv, &options);
    scratch = calloc(options.rounds, sizeof(*scratch));
    bench_print_machine(argc, argv);
    (void)printf("# %zu MiB in %s, %zu rounds; GB/s are medians\n", options.size_bytes >> 20,
                 options.dir, options.rounds);
    (void)printf("      block depth  queue   bare  ratio (min..max)%s\n",
                 options.has_fio ? "      fio" : "");
    for (size_t b = 0; b < options.blocks.count; b++) {
        for (size_t q = 0; q < options.depths.count; q++) {
            cells[count] =
                cell_make(options.blocks.values[b], options.depths.values[q], options.rounds);
            cell_run(&options, &cells[count]);
            cell_print(&options, &cells[count++], scratch);
        }
    }
    if (options.plot != NULL && plot_write(&options, cells, count, scratch) != 0) {
        return 1;
    }
    if (options.json != NULL) {
        json_write(&options, cells, count, scratch, argc, argv);
    }
    return 0;
}

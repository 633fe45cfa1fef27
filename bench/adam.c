/* bench-adam: the CPU optimizers, in fp32, mixed (bf16 gradient in, bf16 parameter out) and with
 * encoded states, by size and threads, against loops with the same loads and stores and no
 * arithmetic, against a copy around the caches, and AdamW against PyTorch and DeepSpeed where they
 * are installed (peers.py). Kernels with the same loads and stores are a table: its rows take turns
 * in each round, peers too; a ratio is taken inside each round, and the median of the rounds is
 * shown. */
#include "base/clock.h"
#include "bench/arrays.h"
#include "bench/peers.h"
#include "bench/plot.h"
#include "bench/options.h"
#include "bench/timing.h"
#include "bench/updates.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Loops over less than this are repeated: a clock and a waking thread are nothing then. */
#define TIMED_ELEMS ((size_t)64 << 20)
/* The distance of the limits that prefetch: of those that were tried the one that is nowhere
 * slower. */
#define AHEAD_BYTES 4096

typedef struct bench_options {
    bench_list  sizes, threads;
    size_t      rounds;
    const char *isa;     /* NULL: the best; "all" */
    const char *kernels; /* NULL: all */
    int         is_cpu_time;
    const char *python; /* NULL: no peers */
    const char *json;
    const char *plot;
} bench_options;

static _Noreturn void die(const char *what, const char *why)
{
    (void)fprintf(stderr, "bench-adam: %s: %s\n", what, why);
    exit(1);
}

/* Wall time, or that of all threads of this program, which others on the machine do not
 * lengthen. */
static int64_t clock_ns(const bench_options *options)
{
    struct timespec time;

    if (!options->is_cpu_time) {
        return sherdi_now_ns();
    }
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* ----------------------------------------------------------------- rows -- */

/* One shape of traffic at one instruction set, number of threads and size: a copy, the shape's
 * limits, the kernels that move the same bytes, and peers. */
#define MAX_ROWS 24

typedef enum bench_row_kind {
    ROW_COPY,
    ROW_LIMIT,
    ROW_LIMIT_AHEAD,
    ROW_KERNEL,
    ROW_PEER,
} bench_row_kind;

typedef struct bench_row {
    char           name[64];
    bench_row_kind kind;
    size_t         index; /* in BENCH_UPDATES, or of the peer */
    sherdi_ahead   ahead; /* of a kernel: the choice that it settled on */
    bench_stat     gel_per_s;
    bench_stat     of_limit; /* of a kernel: by time, of the faster limit */
    bench_stat     ours_of;  /* of a peer: AdamW's elements per second over the peer's */
} bench_row;

typedef struct bench_table {
    char             isa[16];
    int              threads;
    size_t           elems;
    traffic_shape_id shape;
    bench_row        rows[MAX_ROWS];
    size_t           num_rows;
} bench_table;

/* The bytes that a row's algorithm must move. */
static double row_bytes(const bench_table *table, const bench_row *row)
{
    return row->kind == ROW_COPY
               ? 8
               : (double)traffic_shape_bytes(&TRAFFIC_TABLE[table->shape]) / SHERD_CHUNK_ELEMS;
}

static void row_add(bench_table *table, const char *name, bench_row_kind kind, size_t index)
{
    bench_row *row = &table->rows[table->num_rows++];

    if (table->num_rows > MAX_ROWS) {
        die(name, "a row too many");
    }
    (void)snprintf(row->name, sizeof(row->name), "%s", name);
    row->kind  = kind;
    row->index = index;
}

static int is_asked(const bench_options *options, size_t update)
{
    return options->kernels == NULL || strstr(BENCH_UPDATES[update].name, options->kernels) != NULL;
}

/* The peers have AdamW alone. */
static void peers_add(bench_table *table, const bench_peers *peers)
{
    for (size_t i = 0; i < peers->count; i++) {
        int is_mixed = strstr(peers->names[i], "mixed") != NULL;

        if (table->shape == (is_mixed ? TRAFFIC_MIXED_3 : TRAFFIC_F32_3)) {
            row_add(table, peers->names[i], ROW_PEER, i);
        }
    }
}

/* The rows of the shape of BENCH_UPDATES[first]; returns where the next shape begins. */
static size_t rows_make(bench_table *table, const bench_options *options, const bench_peers *peers,
                        size_t first)
{
    size_t end = first;

    table->num_rows = 0;
    table->shape    = BENCH_UPDATES[first].shape;
    row_add(table, "copy-nt", ROW_COPY, 0);
    row_add(table, "same traffic (limit)", ROW_LIMIT, 0);
    row_add(table, "  the same, prefetching", ROW_LIMIT_AHEAD, 0);
    for (; end < BENCH_NUM_UPDATES && BENCH_UPDATES[end].shape == table->shape; end++) {
        if (is_asked(options, end)) {
            row_add(table, BENCH_UPDATES[end].name, ROW_KERNEL, end);
        }
    }
    peers_add(table, peers);
    return end;
}

static int table_has_kernels(const bench_table *table)
{
    return table->num_rows > ROW_KERNEL && table->rows[ROW_KERNEL].kind == ROW_KERNEL;
}

/* --------------------------------------------------------------- rounds -- */

static void row_run(bench_run *run, const bench_table *table, const bench_row *row)
{
    switch (row->kind) {
    case ROW_COPY:
        bench_copy_nt(run);
        break;
    case ROW_LIMIT:
        bench_traffic(run, table->shape, 0);
        break;
    case ROW_LIMIT_AHEAD:
        bench_traffic(run, table->shape, AHEAD_BYTES);
        break;
    default:
        bench_ahead_set(run, row->ahead);
        bench_update_run(run, &BENCH_UPDATES[row->index]);
        break;
    }
}

static double row_seconds(bench_run *run, const bench_table *table, const bench_row *row,
                          bench_peers *peers, const bench_options *options)
{
    size_t  repeats = table->elems < TIMED_ELEMS ? TIMED_ELEMS / table->elems : 1;
    int64_t start_ns;

    if (row->kind == ROW_PEER) {
        return bench_peer_seconds(peers, row->index, repeats);
    }
    start_ns = clock_ns(options);
    for (size_t i = 0; i < repeats; i++) {
        row_run(run, table, row);
    }
    return (double)(clock_ns(options) - start_ns) * 1e-9 / (double)repeats;
}

static void table_measure(const bench_table *table, const bench_options *options, bench_run *run,
                          bench_peers *peers, double *seconds)
{
    for (size_t round = 0; round <= options->rounds; round++) { /* the first is thrown away */
        double *of_round = seconds + (round == 0 ? 0 : round - 1) * table->num_rows;

        for (size_t row = 0; row < table->num_rows; row++) {
            of_round[row] = row_seconds(run, table, &table->rows[row], peers, options);
        }
    }
}

/* Of each round: the seconds of one row over those of another; of the faster limit where it is a
 * limit. */
static bench_stat ratio_of(const bench_table *table, size_t rounds, const double *seconds,
                           double *scratch, size_t row, size_t over)
{
    for (size_t i = 0; i < rounds; i++) {
        const double *round = seconds + i * table->num_rows;
        double        base  = round[row];

        if (row == ROW_LIMIT && round[ROW_LIMIT_AHEAD] < base) {
            base = round[ROW_LIMIT_AHEAD];
        }
        scratch[i] = base / round[over];
    }
    return bench_stat_of(scratch, rounds);
}

static void table_evaluate(bench_table *table, size_t rounds, const double *seconds,
                           double *scratch)
{
    for (size_t i = 0; i < table->num_rows; i++) {
        bench_row *row = &table->rows[i];

        for (size_t round = 0; round < rounds; round++) {
            scratch[round] = (double)table->elems / seconds[round * table->num_rows + i] * 1e-9;
        }
        row->gel_per_s = bench_stat_of(scratch, rounds);
        if (row->kind == ROW_KERNEL) {
            row->of_limit = ratio_of(table, rounds, seconds, scratch, ROW_LIMIT, i);
        } else if (row->kind == ROW_PEER) {
            row->ours_of = ratio_of(table, rounds, seconds, scratch, i, ROW_KERNEL);
        }
    }
}

/* The limit moves the same bytes as the kernels; otherwise it is no limit. */
static void shape_check(const bench_table *table, const bench_arrays *arrays)
{
    for (size_t i = ROW_KERNEL; i < table->num_rows && table->rows[i].kind == ROW_KERNEL; i++) {
        const bench_update *update = &BENCH_UPDATES[table->rows[i].index];
        double less = bench_update_bytes(arrays, update) - row_bytes(table, &table->rows[i]);

        if (less < -1e-9 || less > 1e-9) {
            die(update->name, "its limit does not move the same bytes");
        }
    }
}

/* A state that a kernel of the table has spoilt is none for the others. */
static void state_check(const bench_table *table, const bench_run *run)
{
    const bench_update *update = &BENCH_UPDATES[table->rows[ROW_KERNEL].index];

    if (!bench_update_is_sound(run, update)) {
        die(update->name, "its state or that of another kernel has a NaN, an Inf or a denormal");
    }
}

static void table_run(bench_table *table, const bench_options *options, bench_run *run,
                      bench_peers *peers)
{
    double *seconds = calloc(options->rounds * (table->num_rows + 1), sizeof(*seconds));

    if (seconds == NULL) {
        die("rounds", strerror(ENOMEM));
    }
    shape_check(table, run->arrays);
    bench_update_prepare(run, &BENCH_UPDATES[table->rows[ROW_KERNEL].index]);
    for (size_t i = ROW_KERNEL; i < table->num_rows; i++) {
        if (table->rows[i].kind == ROW_KERNEL) {
            table->rows[i].ahead = bench_update_settle(run, &BENCH_UPDATES[table->rows[i].index]);
        }
    }
    table_measure(table, options, run, peers, seconds);
    state_check(table, run);
    table_evaluate(table, options->rounds, seconds, seconds + options->rounds * table->num_rows);
    free(seconds);
}

/* --------------------------------------------------------------- output -- */

static void size_name(size_t elems, char *text, size_t text_bytes)
{
    if (elems >> 20 << 20 == elems) {
        (void)snprintf(text, text_bytes, "%zu Mi", elems >> 20);
    } else {
        (void)snprintf(text, text_bytes, "%.4g Mi", (double)elems * 0x1p-20);
    }
}

static void head_print(const bench_table *table, size_t rounds)
{
    char size[32];

    size_name(table->elems, size, sizeof(size));
    (void)printf("\n%s, %d thread%s, %s elements, %zu rounds: median (min..max)\n", table->isa,
                 table->threads, table->threads == 1 ? "" : "s", size, rounds);
    (void)printf("%-28s %6s %-15s %6s   %s\n", "", "Gel/s", "", "GB/s", "/ its limit; ours / this");
}

static void table_print(const bench_table *table)
{
    for (size_t i = 0; i < table->num_rows; i++) {
        const bench_row  *row   = &table->rows[i];
        const bench_stat *rate  = &row->gel_per_s;
        const bench_stat *ratio = row->kind == ROW_PEER ? &row->ours_of : &row->of_limit;

        (void)printf("%-28s %6.3f (%5.3f..%5.3f)", row->name, rate->median, rate->min, rate->max);
        if (row->kind != ROW_PEER) {
            (void)printf(" %6.1f", rate->median * row_bytes(table, row));
        } else {
            (void)printf(" %6s", "");
        }
        if (row->kind >= ROW_KERNEL) {
            (void)printf("   %5.3f (%.3f..%.3f)", ratio->median, ratio->min, ratio->max);
        }
        (void)printf("\n");
    }
    (void)fflush(stdout);
}

static void stat_print_json(const char *name, const bench_stat *stat)
{
    (void)printf(", \"%s\": [%.4f, %.4f, %.4f]", name, stat->median, stat->min, stat->max);
}

/* Standard output becomes the file. */
static void json_write(const bench_options *options, const bench_table *tables, size_t count,
                       int argc, char **argv)
{
    if (freopen(options->json, "w", stdout) == NULL) {
        die(options->json, strerror(errno));
    }
    (void)printf("{");
    bench_print_machine_json(argc, argv);
    (void)printf(", \"rounds\": %zu, \"tables\": [", options->rounds);
    for (size_t t = 0; t < count; t++) {
        (void)printf("%s\n{\"isa\": \"%s\", \"threads\": %d, \"elems\": %zu, \"rows\": [",
                     t > 0 ? "," : "", tables[t].isa, tables[t].threads, tables[t].elems);
        for (size_t i = 0; i < tables[t].num_rows; i++) {
            const bench_row *row = &tables[t].rows[i];

            (void)printf("%s\n {\"name\": \"%s\"", i > 0 ? "," : "", row->name);
            stat_print_json("gel_per_s", &row->gel_per_s);
            if (row->kind == ROW_KERNEL) {
                stat_print_json("of_limit", &row->of_limit);
            } else if (row->kind == ROW_PEER) {
                stat_print_json("ours_of_this", &row->ours_of);
            }
            (void)printf("}");
        }
        (void)printf("]}");
    }
    (void)printf("\n]}\n");
    if (fflush(stdout) != 0) {
        die(options->json, strerror(errno));
    }
}

/* The chart shows AdamW alone, which every peer has: its limit, ours, theirs. */
enum { PLOTTED_OWN = 2, PLOTTED_MOST = PLOTTED_OWN + BENCH_MAX_PEERS };

static int table_is_plotted(const bench_table *table)
{
    return (table->shape == TRAFFIC_F32_3 || table->shape == TRAFFIC_MIXED_3) &&
           strncmp(table->rows[ROW_KERNEL].name, "adamw", 5) == 0;
}

static void bars_of_table(const bench_table *table, char *label, size_t label_bytes, double *values)
{
    char size[32];

    size_name(table->elems, size, sizeof(size));
    (void)snprintf(label, label_bytes, "%s\n%d thread%s\n%s\n%s", size, table->threads,
                   table->threads == 1 ? "" : "s", table->isa,
                   table->shape == TRAFFIC_F32_3 ? "fp32" : "mixed");
    for (size_t i = 0; i < PLOTTED_MOST; i++) {
        values[i] = -1; /* no bar */
    }
    values[0] = table->rows[ROW_LIMIT].gel_per_s.median;
    values[1] = table->rows[ROW_KERNEL].gel_per_s.median;
    for (size_t i = 0; i < table->num_rows; i++) {
        if (table->rows[i].kind == ROW_PEER) {
            values[PLOTTED_OWN + table->rows[i].index] = table->rows[i].gel_per_s.median;
        }
    }
}

static int plot_write(const bench_options *options, const bench_table *tables, size_t count,
                      const bench_peers *peers)
{
    const char *series[PLOTTED_MOST] = {"limit", "sherd"};
    size_t      num_series           = PLOTTED_OWN + peers->count;
    char(*labels)[64]                = calloc(count, sizeof(*labels));
    const char **groups              = calloc(count, sizeof(*groups));
    double      *values              = calloc(count * PLOTTED_MOST, sizeof(*values));
    bench_bars   bars                = {.title      = "AdamW, elements per second",
                                        .y_label    = "10^9 elements / s",
                                        .groups     = groups,
                                        .series     = series,
                                        .num_series = num_series,
                                        .values     = values};
    int          result;

    if (labels == NULL || groups == NULL || values == NULL) {
        die(options->plot, strerror(ENOMEM));
    }
    for (size_t i = 0; i < peers->count; i++) {
        series[PLOTTED_OWN + i] = peers->names[i];
    }
    for (size_t t = 0; t < count; t++) {
        if (table_is_plotted(&tables[t])) {
            groups[bars.num_groups] = labels[t];
            bars_of_table(&tables[t], labels[t], sizeof(labels[t]),
                          values + bars.num_groups * num_series);
            bars.num_groups++;
        }
    }
    result = bench_plot_bars(&bars, options->plot);
    free(labels);
    free(groups);
    free(values);
    return result;
}

/* -------------------------------------------------------------- command -- */

static void threads_default(bench_list *threads)
{
    size_t cores = (size_t)sysconf(_SC_NPROCESSORS_ONLN);

    for (size_t n = 1; threads->count < BENCH_MOST_LIST - 1 && n < cores; n *= 2) {
        threads->values[threads->count++] = n;
    }
    threads->values[threads->count++] = cores;
}

static void options_parse(int argc, char **argv, bench_options *o)
{
    const bench_option rows[] = {
        {"sizes", "LIST", "elements (default 1M,16M,128M; the last takes 3 GiB)", BENCH_LIST,
         .value = &o->sizes, .least = 1},
        {"threads", "LIST", "numbers of threads (default: 1, 2, 4 .. all cores)", BENCH_LIST,
         .value = &o->threads, .least = 1, .most = 1024},
        {"rounds", "N", "interleaved rounds (default 7)", BENCH_SIZE, .value = &o->rounds,
         .least = 1},
        {"isa", "NAME", "scalar, avx2, avx512, or all (default: the best of the machine)",
         BENCH_TEXT, .value = &o->isa, .choices = "scalar|avx2|avx512|all"},
        {"kernels", "TEXT", "only kernels whose names contain TEXT", BENCH_TEXT,
         .value = &o->kernels},
        {"cpu-time", NULL,
         "count the time of this program's threads, also of waiting ones, instead of wall time; "
         "for machines that do other work",
         BENCH_SWITCH, .value = &o->is_cpu_time},
        {"peers", "PYTHON",
         "also time PyTorch and DeepSpeed in the same rounds, as far as this interpreter has them; "
         "takes as much memory again, and more",
         BENCH_TEXT, .value = &o->python},
        {"json", "FILE", "write the figures as JSON", BENCH_TEXT, .value = &o->json},
        {"plot", "FILE.svg", "draw a chart, if gnuplot is installed", BENCH_TEXT,
         .value = &o->plot}};
    const bench_command command = {
        .name    = "adam",
        .about   = "Times the optimizers' kernels on the CPU and the same loads and stores without "
                   "arithmetic.",
        .options = rows,
        .num_options = sizeof(rows) / sizeof(rows[0]),
        .end =
            "Ratios are taken inside a round. \"/ its limit\" is the rate over that of the faster "
            "limit above, \"ours / this\" the rate of our AdamW over the peer's."};

    (void)bench_options_read(&command, argc, argv);
    if (o->threads.count == 0) {
        threads_default(&o->threads);
    }
    for (size_t i = 0; i < o->sizes.count; i++) {
        o->sizes.values[i] = (o->sizes.values[i] + 63) / 64 * 64;
    }
}

/* The asked-for sets that this machine has. */
static size_t isas_find(const char *asked, const char **out)
{
    static const char *const ISAS[] = {"avx512", "avx2", "scalar"};
    size_t                   count  = 0;

    for (size_t i = 0; i < sizeof(ISAS) / sizeof(ISAS[0]); i++) {
        int is_asked =
            asked == NULL ? count == 0 : strcmp(asked, "all") == 0 || strcmp(asked, ISAS[i]) == 0;

        if (is_asked && sherdi_kernels_cpu_find(ISAS[i]) != NULL) {
            out[count++] = ISAS[i];
        }
    }
    if (count == 0) {
        die(asked, "this machine or build does not have it");
    }
    return count;
}

static size_t largest(const bench_options *options)
{
    size_t elems = 0;

    for (size_t i = 0; i < options->sizes.count; i++) {
        elems = options->sizes.values[i] > elems ? options->sizes.values[i] : elems;
    }
    return elems;
}

/* All tables of one size and number of threads; returns how many. */
static size_t tables_run(bench_table *tables, const bench_options *options, bench_run *run,
                         bench_peers *peers, const char *isa)
{
    bench_table *table = tables;

    bench_peers_setup(peers, "%zu %d", run->elems, run->backend->threads);
    for (size_t first = 0; first < BENCH_NUM_UPDATES;) {
        (void)snprintf(table->isa, sizeof(table->isa), "%s", isa);
        table->threads = run->backend->threads;
        table->elems   = run->elems;
        first          = rows_make(table, options, peers, first);
        if (table_has_kernels(table)) {
            if (table == tables) {
                head_print(table, options->rounds);
            }
            table_run(table, options, run, peers);
            table_print(table);
            table++;
        }
    }
    return (size_t)(table - tables);
}

int main(int argc, char **argv)
{
    bench_options options = {.sizes  = {{(size_t)1 << 20, (size_t)16 << 20, (size_t)128 << 20}, 3},
                             .rounds = 7};
    const char   *isas[3];
    size_t        num_isas;
    size_t        count = 0;
    bench_table  *tables;
    bench_arrays  arrays;
    bench_peers   peers = {.to = NULL};

    options_parse(argc, argv, &options);
    num_isas = isas_find(options.isa, isas);
    tables   = calloc(num_isas * options.threads.count * options.sizes.count * TRAFFIC_NUM_SHAPES,
                      sizeof(*tables));
    if (tables == NULL) {
        die("tables", strerror(ENOMEM));
    }
    bench_print_machine(argc, argv);
    (void)fflush(stdout);
    if (options.python != NULL) {
        bench_peers_start(&peers, options.python, BENCH_PEERS);
    }
    arrays = bench_arrays_make(largest(&options));
    for (size_t i = 0; i < num_isas; i++) {
        for (size_t s = 0; s < options.sizes.count; s++) {
            for (size_t t = 0; t < options.threads.count; t++) {
                bench_run run;

                bench_run_init(&run, &arrays, isas[i], (int)options.threads.values[t]);
                run.elems = options.sizes.values[s];
                count += tables_run(tables + count, &options, &run, &peers, isas[i]);
                bench_run_fini(&run);
            }
        }
    }
    if (options.plot != NULL && plot_write(&options, tables, count, &peers) != 0) {
        return 1;
    }
    if (options.json != NULL) {
        json_write(&options, tables, count, argc, argv);
    }
    free(tables);
    return 0;
}

/* bench-adam: the CPU optimizers. AdamW and both sweeps of LAMB in fp32 and mixed (bf16 gradient in, bf16
 * parameter out) by size and threads, against loops with the same loads and stores and no arithmetic, against
 * a copy around the caches, and AdamW against PyTorch and DeepSpeed where they are installed (peers.py). Rows
 * take turns in each round, peers too; a ratio is taken inside each round, and the median of the rounds is
 * shown. */
#include "base/clock.h"
#include "bench/arrays.h"
#include "bench/peers.h"
#include "bench/plot.h"
#include "bench/options.h"
#include "bench/timing.h"
#include "kernels/updates/updates.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Loops over less than this are repeated: a clock and a waking thread are nothing then. */
#define TIMED_ELEMS ((size_t)64 << 20)
/* The distance of the limits that prefetch. */
#define AHEAD_BYTES 1024

typedef struct bench_options {
    bench_list  sizes, threads;
    size_t      rounds;
    const char *isa;    /* NULL: the best; "all" */
    const char *python; /* NULL: no peers */
    const char *json;
    const char *plot;
} bench_options;

static _Noreturn void die(const char *what, const char *why)
{
    (void)fprintf(stderr, "bench-adam: %s: %s\n", what, why);
    exit(1);
}

/* ----------------------------------------------------------------- rows -- */

static void adam_call(bench_run *run, int is_mixed, sherdi_encoding master)
{
    const bench_arrays      *a      = run->arrays;
    const sherdi_span        span   = {.count_elems = run->elems};
    const sherdi_adam_coeffs coeffs = {
        .grad_scale      = 1.0f,
        .beta1           = 0.9f,
        .one_minus_beta1 = 0.1f,
        .beta2           = 0.999f,
        .one_minus_beta2 = 0.001f,
        .eps             = 1e-8f,
        .neg_lr_decay    = -1e-6f,
        .neg_step_size   = -1e-4f,
        .inv_sqrt_bias   = 1.5f,
    };
    const sherdi_update_args args = {
        .spans       = &span,
        .num_spans   = 1,
        .coeffs      = &coeffs,
        .grad        = is_mixed ? (const void *)a->g16 : a->g,
        .grad_dtype  = is_mixed ? SHERD_BF16 : SHERD_F32,
        .master      = a->p,
        .m           = a->m,
        .v           = a->v,
        .param       = is_mixed ? a->p16 : NULL,
        .param_dtype = SHERD_BF16,
        .fingerprint = &run->sink,
        .encodings   = {master},
        .ties_part   = 2,
    };

    run->backend->kernels->update(run->backend, SHERDI_UPDATE_adam, &args);
}

static void row_adam_f32(bench_run *run)
{
    adam_call(run, 0, SHERDI_ENCODING_F32);
}

static void row_adam_mixed(bench_run *run)
{
    adam_call(run, 1, SHERDI_ENCODING_F32);
}

static void row_adam_beside(bench_run *run)
{
    adam_call(run, 1, SHERDI_ENCODING_BESIDE);
}

static void lamb_call(bench_run *run, int is_mixed, int is_norms)
{
    const bench_arrays      *a      = run->arrays;
    const sherdi_span        span   = {.count_elems = run->elems};
    const sherdi_lamb_coeffs coeffs = {
        .grad_scale      = 1.0f,
        .beta1           = 0.9f,
        .one_minus_beta1 = 0.1f,
        .beta2           = 0.999f,
        .one_minus_beta2 = 0.001f,
        .inv_bias1       = 1.0f,
        .inv_bias2       = 1.0f,
        .eps             = 1e-8f,
        .decay           = 0.01f,
        .neg_step_size   = -1e-4f,
    };
    const float              ratio = 0.5f;
    sherdi_lamb_norms        norms = {0};
    const sherdi_update_args args  = {
         .spans       = &span,
         .num_spans   = 1,
         .coeffs      = &coeffs,
         .grad        = is_mixed ? (const void *)a->g16 : a->g,
         .grad_dtype  = is_mixed ? SHERD_BF16 : SHERD_F32,
         .master      = a->p,
         .m           = a->m,
         .v           = a->v,
         .param       = is_mixed ? a->p16 : NULL,
         .param_dtype = SHERD_BF16,
         .fingerprint = &run->sink,
         .norms       = &norms,
         .ratios      = &ratio,
    };

    if (is_norms) {
        run->backend->kernels->lamb_norms(run->backend, &args);
        run->sink += norms.update.bins[10];
    } else {
        run->backend->kernels->update(run->backend, SHERDI_UPDATE_lamb, &args);
    }
}

static void row_lamb_norms_f32(bench_run *run)
{
    lamb_call(run, 0, 1);
}

static void row_lamb_norms_mixed(bench_run *run)
{
    lamb_call(run, 1, 1);
}

static void row_lamb_f32(bench_run *run)
{
    lamb_call(run, 0, 0);
}

static void row_lamb_mixed(bench_run *run)
{
    lamb_call(run, 1, 0);
}

static void row_read_f32(bench_run *run)
{
    bench_traffic_read_f32(run, 0);
}

static void row_read_f32_ahead(bench_run *run)
{
    bench_traffic_read_f32(run, AHEAD_BYTES);
}

static void row_read_mixed(bench_run *run)
{
    bench_traffic_read_mixed(run, 0);
}

static void row_read_mixed_ahead(bench_run *run)
{
    bench_traffic_read_mixed(run, AHEAD_BYTES);
}

static void row_traffic_f32(bench_run *run)
{
    bench_traffic_f32(run, 0);
}

static void row_traffic_f32_ahead(bench_run *run)
{
    bench_traffic_f32(run, AHEAD_BYTES);
}

static void row_traffic_mixed(bench_run *run)
{
    bench_traffic_mixed(run, 0);
}

static void row_traffic_mixed_ahead(bench_run *run)
{
    bench_traffic_mixed(run, AHEAD_BYTES);
}

static void row_traffic_beside(bench_run *run)
{
    bench_traffic_beside(run, 0);
}

static void row_traffic_beside_ahead(bench_run *run)
{
    bench_traffic_beside(run, AHEAD_BYTES);
}

enum {
    ROW_COPY,
    ROW_LIMIT_F32,
    ROW_LIMIT_F32_AHEAD,
    ROW_F32,
    ROW_LAMB_F32,
    ROW_LIMIT_MIXED,
    ROW_LIMIT_MIXED_AHEAD,
    ROW_MIXED,
    ROW_LAMB_MIXED,
    ROW_LIMIT_BESIDE,
    ROW_LIMIT_BESIDE_AHEAD,
    ROW_BESIDE,
    ROW_READ_F32,
    ROW_READ_F32_AHEAD,
    ROW_NORMS_F32,
    ROW_READ_MIXED,
    ROW_READ_MIXED_AHEAD,
    ROW_NORMS_MIXED,
    NUM_ROWS,
};

typedef struct bench_row {
    const char *name;
    void (*run)(bench_run *run);
    double bytes_per_elem; /* that the algorithm must move */
    int    limit;          /* the row that it is held against, or the next if that was faster */
    int    is_kernel;
} bench_row;

static const bench_row ROWS[NUM_ROWS] = {
    [ROW_COPY]              = {"copy-nt (limit)", bench_copy_nt, 8, ROW_COPY, 0},
    [ROW_LIMIT_F32]         = {"fp32 traffic (limit)", row_traffic_f32, 28, ROW_LIMIT_F32, 0},
    [ROW_LIMIT_F32_AHEAD]   = {"  the same, prefetching", row_traffic_f32_ahead, 28, ROW_LIMIT_F32,
                               0},
    [ROW_F32]               = {"adamw fp32", row_adam_f32, 28, ROW_LIMIT_F32, 1},
    [ROW_LAMB_F32]          = {"lamb fp32", row_lamb_f32, 28, ROW_LIMIT_F32, 1},
    [ROW_LIMIT_MIXED]       = {"mixed traffic (limit)", row_traffic_mixed, 28, ROW_LIMIT_MIXED, 0},
    [ROW_LIMIT_MIXED_AHEAD] = {"  the same, prefetching", row_traffic_mixed_ahead, 28,
                               ROW_LIMIT_MIXED, 0},
    [ROW_MIXED]             = {"adamw mixed bf16", row_adam_mixed, 28, ROW_LIMIT_MIXED, 1},
    [ROW_LAMB_MIXED]        = {"lamb mixed bf16", row_lamb_mixed, 28, ROW_LIMIT_MIXED, 1},
    [ROW_LIMIT_BESIDE] = {"beside traffic (limit)", row_traffic_beside, 26, ROW_LIMIT_BESIDE, 0},
    [ROW_LIMIT_BESIDE_AHEAD] = {"  the same, prefetching", row_traffic_beside_ahead, 26,
                                ROW_LIMIT_BESIDE, 0},
    [ROW_BESIDE]             = {"adamw beside bf16", row_adam_beside, 26, ROW_LIMIT_BESIDE, 1},
    [ROW_READ_F32]           = {"fp32 reads (limit)", row_read_f32, 16, ROW_READ_F32, 0},
    [ROW_READ_F32_AHEAD]     = {"  the same, prefetching", row_read_f32_ahead, 16, ROW_READ_F32, 0},
    [ROW_NORMS_F32]          = {"lamb norms fp32", row_lamb_norms_f32, 16, ROW_READ_F32, 1},
    [ROW_READ_MIXED]         = {"mixed reads (limit)", row_read_mixed, 14, ROW_READ_MIXED, 0},
    [ROW_READ_MIXED_AHEAD]   = {"  the same, prefetching", row_read_mixed_ahead, 14, ROW_READ_MIXED,
                                0},
    [ROW_NORMS_MIXED] = {"lamb norms mixed bf16", row_lamb_norms_mixed, 14, ROW_READ_MIXED, 1},
};

/* --------------------------------------------------------------- rounds -- */

#define MAX_ROWS (NUM_ROWS + BENCH_MAX_PEERS)

/* One instruction set, number of threads and size. */
typedef struct bench_table {
    char       isa[16];
    int        threads;
    size_t     elems, num_rows;
    char       names[MAX_ROWS][64];
    bench_stat gel_per_s[MAX_ROWS];
    bench_stat of_copy[MAX_ROWS];  /* by bytes; of ours */
    bench_stat of_limit[MAX_ROWS]; /* by time; of ours */
    bench_stat ours_of[MAX_ROWS];  /* our elements per second over theirs; of peers */
} bench_table;

static double own_seconds(bench_run *run, size_t row, size_t repeats)
{
    int64_t start_ns = sherdi_now_ns();

    for (size_t i = 0; i < repeats; i++) {
        ROWS[row].run(run);
    }
    return (double)(sherdi_now_ns() - start_ns) * 1e-9 / (double)repeats;
}

static void table_measure(bench_table *table, const bench_options *options, bench_run *run,
                          bench_peers *peers, double *seconds)
{
    size_t repeats = table->elems < TIMED_ELEMS ? TIMED_ELEMS / table->elems : 1;

    for (size_t round = 0; round <= options->rounds; round++) { /* the first is thrown away */
        double *of_round = seconds + (round == 0 ? 0 : round - 1) * table->num_rows;

        for (size_t row = 0; row < table->num_rows; row++) {
            of_round[row] = row < NUM_ROWS ? own_seconds(run, row, repeats)
                                           : bench_peer_seconds(peers, row - NUM_ROWS, repeats);
        }
    }
}

/* Of each round: work of one row by time, over that of another. */
static bench_stat ratio_of(const bench_table *table, size_t rounds, const double *seconds,
                           double *scratch, size_t row, size_t other, double scale)
{
    for (size_t i = 0; i < rounds; i++) {
        const double *round = seconds + i * table->num_rows;
        double        base  = round[other];

        if (row < NUM_ROWS && ROWS[row].is_kernel && ROWS[row].limit == (int)other &&
            round[other + 1] < base) {
            base = round[other + 1];
        }
        scratch[i] = scale * base / round[row];
    }
    return bench_stat_of(scratch, rounds);
}

static void table_evaluate(bench_table *table, size_t rounds, const double *seconds,
                           double *scratch)
{
    for (size_t row = 0; row < table->num_rows; row++) {
        for (size_t i = 0; i < rounds; i++) {
            scratch[i] = (double)table->elems / seconds[i * table->num_rows + row] * 1e-9;
        }
        table->gel_per_s[row] = bench_stat_of(scratch, rounds);
        if (row < NUM_ROWS) {
            table->of_copy[row] =
                ratio_of(table, rounds, seconds, scratch, row, ROW_COPY,
                         ROWS[row].bytes_per_elem / ROWS[ROW_COPY].bytes_per_elem);
            table->of_limit[row] =
                ratio_of(table, rounds, seconds, scratch, row, (size_t)ROWS[row].limit, 1);
        } else {
            size_t ours = strstr(table->names[row], "mixed") != NULL ? ROW_MIXED : ROW_F32;

            table->ours_of[row] = ratio_of(table, rounds, seconds, scratch, ours, row, 1);
        }
    }
}

static void table_run(bench_table *table, const bench_options *options, const bench_arrays *arrays,
                      bench_peers *peers)
{
    bench_run run;
    double   *seconds;

    bench_peers_setup(peers, table->elems, table->threads);
    table->num_rows = NUM_ROWS + peers->count;
    for (size_t row = 0; row < table->num_rows; row++) {
        (void)snprintf(table->names[row], sizeof(table->names[0]), "%s",
                       row < NUM_ROWS ? ROWS[row].name : peers->names[row - NUM_ROWS]);
    }
    seconds = calloc(options->rounds * (table->num_rows + 1), sizeof(*seconds));
    if (seconds == NULL) {
        die("rounds", strerror(ENOMEM));
    }
    bench_run_init(&run, arrays, table->isa, table->threads);
    run.elems = table->elems;
    table_measure(table, options, &run, peers, seconds);
    bench_run_fini(&run);
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

static void table_print(const bench_table *table, size_t rounds)
{
    char size[32];

    size_name(table->elems, size, sizeof(size));
    (void)printf("\n%s, %d thread%s, %s elements, %zu rounds: median (min..max)\n", table->isa,
                 table->threads, table->threads == 1 ? "" : "s", size, rounds);
    (void)printf("%-28s %6s %-15s %6s %6s   %s\n", "", "Gel/s", "", "GB/s", "/ copy",
                 "/ its limit; ours / this");
    for (size_t row = 0; row < table->num_rows; row++) {
        const bench_stat *rate  = &table->gel_per_s[row];
        const bench_stat *ratio = row < NUM_ROWS ? &table->of_limit[row] : &table->ours_of[row];

        (void)printf("%-28s %6.3f (%5.3f..%5.3f)", table->names[row], rate->median, rate->min,
                     rate->max);
        if (row < NUM_ROWS) {
            (void)printf(" %6.1f %6.3f", rate->median * ROWS[row].bytes_per_elem,
                         table->of_copy[row].median);
        } else {
            (void)printf(" %6s %6s", "", "");
        }
        if (row >= NUM_ROWS || ROWS[row].is_kernel) {
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
        for (size_t row = 0; row < tables[t].num_rows; row++) {
            (void)printf("%s\n {\"name\": \"%s\"", row > 0 ? "," : "", tables[t].names[row]);
            stat_print_json("gel_per_s", &tables[t].gel_per_s[row]);
            if (row < NUM_ROWS) {
                stat_print_json("of_copy", &tables[t].of_copy[row]);
                stat_print_json("of_limit", &tables[t].of_limit[row]);
            } else {
                stat_print_json("ours_of_this", &tables[t].ours_of[row]);
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

/* AdamW's rows that say something at a glance: limits, ours, peers. */
static int row_is_plotted(size_t row)
{
    return row >= NUM_ROWS || row == ROW_LIMIT_F32 || row == ROW_F32 || row == ROW_LIMIT_MIXED ||
           row == ROW_MIXED;
}

static int plot_write(const bench_options *options, const bench_table *tables, size_t count)
{
    const char *series[MAX_ROWS];
    size_t      num_series = 0;
    size_t      num_values = 0;
    char(*labels)[64]      = calloc(count, sizeof(*labels));
    const char **groups    = calloc(count, sizeof(*groups));
    double      *values    = calloc(count * MAX_ROWS, sizeof(*values));
    bench_bars   bars      = {.title   = "AdamW, elements per second",
                              .y_label = "10^9 elements / s",
                              .groups  = groups,
                              .series  = series,
                              .values  = values};
    int          result;

    if (labels == NULL || groups == NULL || values == NULL) {
        die(options->plot, strerror(ENOMEM));
    }
    for (size_t t = 0; t < count; t++) {
        char size[32];

        size_name(tables[t].elems, size, sizeof(size));
        (void)snprintf(labels[t], sizeof(labels[t]), "%s\n%d thread%s\n%s", size, tables[t].threads,
                       tables[t].threads == 1 ? "" : "s", tables[t].isa);
        groups[t] = labels[t];
        for (size_t row = 0; row < tables[t].num_rows; row++) {
            if (row_is_plotted(row)) {
                if (t == 0) {
                    series[num_series++] = tables[0].names[row];
                }
                values[num_values++] = tables[t].gel_per_s[row].median;
            }
        }
    }
    bars.num_groups = count;
    bars.num_series = num_series;
    result          = bench_plot_bars(&bars, options->plot);
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
        {"threads", "LIST", "(default: 1, 2, 4 .. all cores)", BENCH_LIST, .value = &o->threads,
         .least = 1, .most = 1024},
        {"rounds", "N", "interleaved rounds (default 7)", BENCH_SIZE, .value = &o->rounds,
         .least = 1},
        {"isa", "NAME", "scalar, avx2, avx512, or all (default: the best of the machine)",
         BENCH_TEXT, .value = &o->isa, .choices = "scalar|avx2|avx512|all"},
        {"peers", "PYTHON",
         "times PyTorch and DeepSpeed in the same rounds, as far as this interpreter has them; as "
         "much "
         "memory again, and more",
         BENCH_TEXT, .value = &o->python},
        {"json", "FILE", "the same figures for programs", BENCH_TEXT, .value = &o->json},
        {"plot", "FILE.svg", "a chart, where gnuplot is installed", BENCH_TEXT, .value = &o->plot}};
    const bench_command command = {
        .name = "adam",
        .about =
            "Times the optimizers' kernels on the CPU beside the same loads and stores without "
            "arithmetic.",
        .options     = rows,
        .num_options = sizeof(rows) / sizeof(rows[0]),
        .end =
            "Ratios are taken inside a round. \"/ its limit\" is the rate over that of the faster "
            "limit of its kind above, \"ours / this\" our rate over the peer's."};

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
    tables   = calloc(num_isas * options.threads.count * options.sizes.count, sizeof(*tables));
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
                bench_table *table = &tables[count++];

                (void)snprintf(table->isa, sizeof(table->isa), "%s", isas[i]);
                table->threads = (int)options.threads.values[t];
                table->elems   = options.sizes.values[s];
                table_run(table, &options, &arrays, &peers);
                table_print(table, options.rounds);
            }
        }
    }
    if (options.plot != NULL && plot_write(&options, tables, count) != 0) {
        return 1;
    }
    if (options.json != NULL) {
        json_write(&options, tables, count, argc, argv);
    }
    free(tables);
    return 0;
}

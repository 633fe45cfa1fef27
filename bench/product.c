/* bench-product: matrix products of the CPU, the shapes that the Muon optimizer multiplies, against
 * the fused multiply-adds that the same instruction set does without memory on as many threads.
 * Rows take turns in each round; a ratio is taken inside each round, and the median of the rounds
 * is shown. Of a symmetric result the half is counted that must be computed. */
#include "bench/arrays.h"
#include "bench/options.h"
#include "bench/products.h"
#include "bench/timing.h"
#include "kernels/cpu/parallel.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef struct bench_options {
    size_t      rows, cols;
    size_t      rounds;
    int         threads; /* 0: one, then all cores */
    const char *isa;     /* NULL: the best; "all" */
    int         is_json;
} bench_options;

/* ----------------------------------------------------------------- peak -- */

/* Independent sums: more than the latency of one times what begins in a cycle. */
#define PEAK_SUMS 12

#if defined(__x86_64__)
/* Each gives something that depends on all sums. */
#define PEAK_LOOP(name, flags, vector, set, fma, first)                                            \
    __attribute__((target(flags), noinline)) static float name(size_t steps, float x)              \
    {                                                                                              \
        vector sums[PEAK_SUMS];                                                                    \
        vector factor = set(x);                                                                    \
                                                                                                   \
        for (size_t i = 0; i < PEAK_SUMS; i++) {                                                   \
            sums[i] = set((float)i);                                                               \
        }                                                                                          \
        for (size_t step = 0; step < steps; step++) {                                              \
            sums[0]  = fma(sums[0], factor, factor);                                               \
            sums[1]  = fma(sums[1], factor, factor);                                               \
            sums[2]  = fma(sums[2], factor, factor);                                               \
            sums[3]  = fma(sums[3], factor, factor);                                               \
            sums[4]  = fma(sums[4], factor, factor);                                               \
            sums[5]  = fma(sums[5], factor, factor);                                               \
            sums[6]  = fma(sums[6], factor, factor);                                               \
            sums[7]  = fma(sums[7], factor, factor);                                               \
            sums[8]  = fma(sums[8], factor, factor);                                               \
            sums[9]  = fma(sums[9], factor, factor);                                               \
            sums[10] = fma(sums[10], factor, factor);                                              \
            sums[11] = fma(sums[11], factor, factor);                                              \
        }                                                                                          \
        for (size_t i = 1; i < PEAK_SUMS; i++) {                                                   \
            sums[0] = fma(sums[i], factor, sums[0]);                                               \
        }                                                                                          \
        return first(sums[0]);                                                                     \
    }

PEAK_LOOP(peak_avx512, "avx512f", __m512, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_cvtss_f32)
PEAK_LOOP(peak_avx2, "avx2,fma", __m256, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_cvtss_f32)
#endif

/* One at a time, as the C library does them. */
static float peak_scalar(size_t steps, float x)
{
    float sums[PEAK_SUMS] = {0};

    for (size_t step = 0; step < steps; step++) {
        for (size_t i = 0; i < PEAK_SUMS; i++) {
            sums[i] = fmaf(sums[i], x, x);
        }
    }
    for (size_t i = 1; i < PEAK_SUMS; i++) {
        sums[0] += sums[i];
    }
    return sums[0];
}

typedef struct peak_loop {
    const char *isa;
    float (*run)(size_t steps, float x);
    size_t lanes;
} peak_loop;

static const peak_loop PEAKS[] = {
    {"scalar", peak_scalar, 1},
#if defined(__x86_64__)
    {"avx2", peak_avx2, 8},
    {"avx512", peak_avx512, 16},
#endif
};

#define NUM_PEAKS (sizeof(PEAKS) / sizeof(PEAKS[0]))

/* ----------------------------------------------------------------- rows -- */

/* Steps of a peak loop: some milliseconds. */
#define PEAK_STEPS ((size_t)1 << 20)

typedef struct product_run {
    bench_run        run;
    const peak_loop *peak;
    float           *x, *small, *dst; /* [rows, cols], [rows, rows], the larger of both */
    size_t           rows, cols;
    _Atomic uint32_t sink;
} product_run;

static void peak_task(void *ctx, int task, int tasks)
{
    product_run *run = ctx;
    float        sum = run->peak->run(PEAK_STEPS, 0.5f);

    (void)tasks;
    atomic_fetch_add(&run->sink, (uint32_t)sum + (uint32_t)task);
}

static sherdi_split peak_split(const product_run *run)
{
    return (sherdi_split){run->run.backend->threads, SIZE_MAX};
}

static void peak_run(product_run *run)
{
    sherdi_parallel_run(run->run.backend, peak_split(run), peak_task, run);
}

static double peak_operations(const product_run *run)
{
    return 2.0 * (double)(PEAK_STEPS * PEAK_SUMS * run->peak->lanes) *
           (double)peak_split(run).tasks;
}

/* Row 0 is the limit, the others are the products. */
#define NUM_ROWS (1 + BENCH_PRODUCTS)

static const char *row_name(size_t row)
{
    return row == 0 ? "fused multiply-adds (limit)" : BENCH_PRODUCT_TABLE[row - 1].name;
}

static sherdi_product_args row_args(const product_run *run, size_t row)
{
    sherdi_product_args args =
        bench_product_args(&BENCH_PRODUCT_TABLE[row - 1], run->x, run->small, run->rows, run->cols);

    args.dst = run->dst;
    return args;
}

static double row_operations(const product_run *run, size_t row)
{
    sherdi_product_args args;

    if (row == 0) {
        return peak_operations(run);
    }
    args = row_args(run, row);
    return bench_product_operations(&args);
}

static void row_run(void *ctx, size_t row)
{
    product_run        *run = ctx;
    sherdi_product_args args;

    if (row == 0) {
        peak_run(run);
        return;
    }
    args = row_args(run, row);
    run->run.backend->kernels->product(run->run.backend, &args);
}

/* --------------------------------------------------------------- tables -- */

static void row_print(const bench_options *options, product_run *run, const double *seconds,
                      double *scratch, size_t row)
{
    double     operations = row_operations(run, row);
    double     limit      = row_operations(run, 0);
    bench_stat rate;
    bench_stat ratio;

    for (size_t i = 0; i < options->rounds; i++) {
        scratch[i] = operations / seconds[i * NUM_ROWS + row] * 1e-9;
    }
    rate = bench_stat_of(scratch, options->rounds);
    for (size_t i = 0; i < options->rounds; i++) {
        const double *round = seconds + i * NUM_ROWS;

        scratch[i] = operations / round[row] / (limit / round[0]);
    }
    ratio = bench_stat_of(scratch, options->rounds);
    if (options->is_json) {
        (void)printf("%s{\"name\": \"%s\", \"gflop_per_s\": [%.3f, %.3f, %.3f], "
                     "\"of_limit\": [%.4f, %.4f, %.4f]}",
                     row == 0 ? "" : ",\n", row_name(row), rate.median, rate.min, rate.max,
                     ratio.median, ratio.min, ratio.max);
        return;
    }
    (void)printf("%-30s %8.1f (%6.1f..%6.1f) %8.3f (%.3f..%.3f)\n", row_name(row), rate.median,
                 rate.min, rate.max, ratio.median, ratio.min, ratio.max);
}

static float *matrix_make(size_t elems)
{
    float *x = malloc(elems * sizeof(*x));

    if (x == NULL) {
        (void)fprintf(stderr, "bench-product: no memory for %zu elements\n", elems);
        exit(1);
    }
    bench_array_fill(x, elems, 1e-3f);
    return x;
}

static void table_run(const bench_options *options, const peak_loop *peak, int threads,
                      int is_first)
{
    const bench_arrays none    = {0};
    size_t             large   = options->rows > options->cols ? options->rows : options->cols;
    double            *seconds = calloc(options->rounds * (NUM_ROWS + 1), sizeof(*seconds));
    product_run        run     = {.peak  = peak,
                                  .rows  = options->rows,
                                  .cols  = options->cols,
                                  .x     = matrix_make(options->rows * options->cols),
                                  .small = matrix_make(options->rows * options->rows),
                                  .dst   = matrix_make(options->rows * large)};

    if (seconds == NULL) {
        (void)fprintf(stderr, "bench-product: no memory for %zu rounds\n", options->rounds);
        exit(1);
    }
    bench_run_init(&run.run, &none, peak->isa, threads);
    bench_rounds(options->rounds, NUM_ROWS, row_run, &run, seconds);
    if (options->is_json) {
        (void)printf("%s{\"isa\": \"%s\", \"threads\": %d, \"rows\": [\n", is_first ? "" : ",\n",
                     peak->isa, threads);
    } else {
        (void)printf("\n%s, %d thread%s, %zu x %zu, %zu rounds: median (min..max)\n", peak->isa,
                     threads, threads == 1 ? "" : "s", options->rows, options->cols,
                     options->rounds);
        (void)printf("%-30s %8s %16s %8s\n", "", "GFLOP/s", "", "/ limit, paired");
    }
    for (size_t row = 0; row < NUM_ROWS; row++) {
        row_print(options, &run, seconds, seconds + options->rounds * NUM_ROWS, row);
    }
    if (options->is_json) {
        (void)printf("]}");
    }
    (void)fflush(stdout);
    bench_run_fini(&run.run);
    free(run.x);
    free(run.small);
    free(run.dst);
    free(seconds);
}

/* -------------------------------------------------------------- command -- */

static void options_parse(int argc, char **argv, bench_options *o)
{
    const bench_option rows[] = {
        {"rows", "N", "rows of X, no more than it has columns (default 768)", BENCH_SIZE,
         .value = &o->rows, .least = 1},
        {"cols", "N", "columns of X (default 3072)", BENCH_SIZE, .value = &o->cols, .least = 1},
        {"threads", "N", "threads (default: one, then all cores)", BENCH_INT, .value = &o->threads,
         .least = 1, .most = 1024},
        {"rounds", "N", "interleaved rounds (default 7)", BENCH_SIZE, .value = &o->rounds,
         .least = 1},
        {"isa", "NAME", "scalar, avx2, avx512, or all (default: the best of the machine)",
         BENCH_TEXT, .value = &o->isa, .choices = "scalar|avx2|avx512|all"},
        {"json", NULL, "print one JSON object", BENCH_SWITCH, .value = &o->is_json}};
    const bench_command command = BENCH_COMMAND(
        "product",
        "Times the matrix products of the Muon optimizer and multiply-adds without memory, "
        "which are the limit.",
        rows);

    (void)bench_options_read(&command, argc, argv);
    if (o->rows > o->cols) {
        bench_options_refuse(&command, "--rows %zu is more than --cols %zu", o->rows, o->cols);
    }
}

static int isa_is_asked(const bench_options *options, size_t index, size_t best)
{
    if (options->isa == NULL) {
        return index == best;
    }
    return strcmp(options->isa, "all") == 0 || strcmp(options->isa, PEAKS[index].isa) == 0;
}

int main(int argc, char **argv)
{
    bench_options options = {.rows = 768, .cols = 3072, .rounds = 7};
    size_t        best    = 0;
    int           tables  = 0;
    int           cores   = (int)sysconf(_SC_NPROCESSORS_ONLN);

    options_parse(argc, argv, &options);
    for (size_t i = 0; i < NUM_PEAKS; i++) {
        best = sherdi_kernels_cpu_find(PEAKS[i].isa) != NULL ? i : best;
    }
    if (options.is_json) {
        (void)printf("{");
        bench_print_machine_json(argc, argv);
        (void)printf(", \"rows\": %zu, \"cols\": %zu, \"rounds\": %zu, \"tables\": [", options.rows,
                     options.cols, options.rounds);
    } else {
        bench_print_machine(argc, argv);
    }
    for (size_t i = 0; i < NUM_PEAKS; i++) {
        int first = options.threads > 0 ? options.threads : 1;
        int last  = options.threads > 0 ? options.threads : cores;

        if (!isa_is_asked(&options, i, best) || sherdi_kernels_cpu_find(PEAKS[i].isa) == NULL) {
            continue;
        }
        for (int threads = first; threads <= last; threads = threads < last ? last : last + 1) {
            table_run(&options, &PEAKS[i], threads, tables++ == 0);
        }
    }
    if (options.is_json) {
        (void)printf("]}\n");
    }
    if (tables == 0) {
        (void)fprintf(stderr, "bench-product: this machine or build has no %s\n", options.isa);
        return 1;
    }
    return 0;
}

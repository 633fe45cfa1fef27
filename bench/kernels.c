/* bench-kernels: the element-wise kernels but the update (bench-adam) against what memory allows:
 * norm, casts, reduction and copy against a copy that goes around the caches. Rows take turns in
 * each round; a ratio is taken inside each round, and the median of the rounds is shown. */
#include "bench/arrays.h"
#include "bench/options.h"
#include "bench/timing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct bench_options {
    size_t      elems;
    size_t      rounds;
    int         threads; /* 0: one, then all cores */
    const char *isa;     /* NULL: the best; "all" */
    int         is_json;
} bench_options;

/* ----------------------------------------------------------------- rows -- */

static void row_copy(bench_run *run)
{
    const bench_arrays *a = run->arrays;

    run->backend->kernels->copy(run->backend, a->out, a->g, run->elems * sizeof(float));
}

static void sumsq_call(bench_run *run, const void *x, sherd_dtype dtype)
{
    sherdi_norm_acc acc = {0};

    run->backend->kernels->sumsq(run->backend, x, dtype, run->elems, &acc);
    run->sink += acc.bins[10];
}

static void row_norm_f32(bench_run *run)
{
    sumsq_call(run, run->arrays->g, SHERD_F32);
}

static void row_norm_bf16(bench_run *run)
{
    sumsq_call(run, run->arrays->g16, SHERD_BF16);
}

static void row_fingerprint(bench_run *run)
{
    const sherdi_span span = {.count_elems = run->elems};

    run->backend->kernels->fingerprint(run->backend, &span, 1, run->arrays->g, &run->sink);
}

static void row_cast_f32_bf16(bench_run *run)
{
    const bench_arrays *a = run->arrays;

    run->backend->kernels->cast(run->backend, a->p16, SHERD_BF16, a->g, SHERD_F32, run->elems);
}

static void row_cast_bf16_f32(bench_run *run)
{
    const bench_arrays *a = run->arrays;

    run->backend->kernels->cast(run->backend, a->out, SHERD_F32, a->g16, SHERD_BF16, run->elems);
}

static void reduce_call(bench_run *run, const void *x, const void *y, sherd_dtype dtype)
{
    const void *const        srcs[2] = {x, y};
    const sherdi_reduce_args args    = {
           .srcs        = srcs,
           .num_srcs    = 2,
           .src_dtype   = dtype,
           .comm_dtype  = dtype,
           .dst         = run->arrays->out,
           .dst_dtype   = dtype,
           .count_elems = run->elems,
           .scale       = 0.5f,
    };

    run->backend->kernels->reduce(run->backend, &args);
}

static void row_reduce_f32(bench_run *run)
{
    reduce_call(run, run->arrays->g, run->arrays->v, SHERD_F32);
}

static void row_reduce_bf16(bench_run *run)
{
    reduce_call(run, run->arrays->g16, run->arrays->p16, SHERD_BF16);
}

static void row_accumulate(bench_run *run)
{
    const bench_arrays *a = run->arrays;

    run->backend->kernels->accumulate(run->backend, a->out, SHERD_F32, a->g16, SHERD_BF16,
                                      run->elems);
}

static void row_zero(bench_run *run)
{
    run->backend->kernels->zero(run->backend, run->arrays->out, run->elems * sizeof(float));
}

typedef struct bench_row {
    const char *name;
    void (*run)(bench_run *run);
    double bytes_per_elem; /* that the algorithm must move */
} bench_row;

static const bench_row ROWS[] = {
    {"copy-nt (limit)", bench_copy_nt, 8},
    {"read only, 4 streams", bench_read, 4},
    {"norm fp32", row_norm_f32, 4},
    {"norm bf16", row_norm_bf16, 2},
    {"fingerprint", row_fingerprint, 4},
    {"cast fp32 to bf16", row_cast_f32_bf16, 6},
    {"cast bf16 to fp32", row_cast_bf16_f32, 6},
    {"reduce 2 x fp32", row_reduce_f32, 12},
    {"reduce 2 x bf16", row_reduce_bf16, 6},
    {"accumulate fp32 += bf16", row_accumulate, 10},
    {"copy", row_copy, 8},
    {"zero", row_zero, 4},
};

#define NUM_ROWS (sizeof(ROWS) / sizeof(ROWS[0]))

static void row_run(void *ctx, size_t row)
{
    ROWS[row].run(ctx);
}

/* --------------------------------------------------------------- tables -- */

/* GB/s of a row over GB/s of the copy, in each round. */
static bench_stat ratio_of(const bench_options *options, const double *seconds, double *scratch,
                           size_t row)
{
    for (size_t i = 0; i < options->rounds; i++) {
        const double *round = seconds + i * NUM_ROWS;

        scratch[i] = ROWS[row].bytes_per_elem / round[row] / (ROWS[0].bytes_per_elem / round[0]);
    }
    return bench_stat_of(scratch, options->rounds);
}

static bench_stat rate_of(const bench_options *options, const double *seconds, double *scratch,
                          size_t row)
{
    for (size_t i = 0; i < options->rounds; i++) {
        scratch[i] =
            ROWS[row].bytes_per_elem * (double)options->elems / seconds[i * NUM_ROWS + row] * 1e-9;
    }
    return bench_stat_of(scratch, options->rounds);
}

static void row_print(const bench_options *options, const double *seconds, double *scratch,
                      size_t row)
{
    bench_stat rate = rate_of(options, seconds, scratch, row);
    bench_stat copy = ratio_of(options, seconds, scratch, row);

    if (options->is_json) {
        (void)printf("%s{\"name\": \"%s\", \"gb_per_s\": [%.3f, %.3f, %.3f], "
                     "\"of_copy\": [%.4f, %.4f, %.4f]}",
                     row == 0 ? "" : ",\n", ROWS[row].name, rate.median, rate.min, rate.max,
                     copy.median, copy.min, copy.max);
        return;
    }
    (void)printf("%-28s %6.3f %7.1f (%5.1f..%5.1f) %8.3f (%.3f..%.3f)\n", ROWS[row].name,
                 rate.median / ROWS[row].bytes_per_elem, rate.median, rate.min, rate.max,
                 copy.median, copy.min, copy.max);
}

static int table_run(const bench_options *options, const bench_arrays *arrays, const char *isa,
                     int threads, int is_first)
{
    bench_run run;
    double   *seconds = calloc(options->rounds * (NUM_ROWS + 1), sizeof(*seconds));

    if (seconds == NULL) {
        (void)fprintf(stderr, "bench-kernels: no memory for %zu rounds\n", options->rounds);
        return 1;
    }
    bench_run_init(&run, arrays, isa, threads);
    bench_rounds(options->rounds, NUM_ROWS, row_run, &run, seconds);
    bench_run_fini(&run);

    if (options->is_json) {
        (void)printf("%s{\"isa\": \"%s\", \"threads\": %d, \"rows\": [\n", is_first ? "" : ",\n",
                     isa, threads);
    } else {
        (void)printf("\n%s, %d thread%s, %zu elements, %zu rounds: median (min..max)\n", isa,
                     threads, threads == 1 ? "" : "s", options->elems, options->rounds);
        (void)printf("%-28s %6s %7s %14s %8s\n", "", "Gel/s", "GB/s", "", "/ copy, paired");
    }
    for (size_t row = 0; row < NUM_ROWS; row++) {
        row_print(options, seconds, seconds + options->rounds * NUM_ROWS, row);
    }
    if (options->is_json) {
        (void)printf("]}");
    }
    (void)fflush(stdout);
    free(seconds);
    return 0;
}

/* -------------------------------------------------------------- command -- */

static void options_parse(int argc, char **argv, bench_options *o)
{
    const bench_option rows[] = {
        {"elems", "N", "elements (default 128M: about 3 GiB)", BENCH_SIZE, .value = &o->elems,
         .least = 1},
        {"threads", "N", "threads (default: one, then all cores)", BENCH_INT, .value = &o->threads,
         .least = 1, .most = 1024},
        {"rounds", "N", "interleaved rounds (default 7)", BENCH_SIZE, .value = &o->rounds,
         .least = 1},
        {"isa", "NAME", "scalar, avx2, avx512, or all (default: the best of the machine)",
         BENCH_TEXT, .value = &o->isa, .choices = "scalar|avx2|avx512|all"},
        {"json", NULL, "print one JSON object", BENCH_SWITCH, .value = &o->is_json}};
    const bench_command command = BENCH_COMMAND(
        "kernels", "Times each kernel of the CPU and a copy, which is the limit.", rows);

    (void)bench_options_read(&command, argc, argv);
    o->elems = (o->elems + 63) / 64 * 64;
}

static int isa_is_asked(const bench_options *options, const char *isa, size_t best, size_t index)
{
    if (options->isa == NULL) {
        return index == best;
    }
    return strcmp(options->isa, "all") == 0 || strcmp(options->isa, isa) == 0;
}

int main(int argc, char **argv)
{
    static const char *const ISAS[]  = {"scalar", "avx2", "avx512"};
    bench_options            options = {.elems = (size_t)128 << 20, .rounds = 7};
    bench_arrays             arrays;
    size_t                   best   = 0;
    int                      tables = 0;
    int                      cores  = (int)sysconf(_SC_NPROCESSORS_ONLN);

    options_parse(argc, argv, &options);
    for (size_t i = 0; i < 3; i++) {
        best = sherdi_kernels_cpu_find(ISAS[i]) != NULL ? i : best;
    }
    arrays = bench_arrays_make(options.elems);
    if (options.is_json) {
        (void)printf("{");
        bench_print_machine_json(argc, argv);
        (void)printf(", \"elems\": %zu, \"rounds\": %zu, \"tables\": [", options.elems,
                     options.rounds);
    } else {
        bench_print_machine(argc, argv);
    }
    for (size_t i = 0; i < 3; i++) {
        int first = options.threads > 0 ? options.threads : 1;
        int last  = options.threads > 0 ? options.threads : cores;

        if (!isa_is_asked(&options, ISAS[i], best, i) || sherdi_kernels_cpu_find(ISAS[i]) == NULL) {
            continue;
        }
        for (int threads = first; threads <= last; threads = threads < last ? last : last + 1) {
            if (table_run(&options, &arrays, ISAS[i], threads, tables++ == 0) != 0) {
                return 1;
            }
        }
    }
    if (options.is_json) {
        (void)printf("]}\n");
    }
    if (tables == 0) {
        (void)fprintf(stderr, "bench-kernels: this machine or build has no %s\n", options.isa);
        return 1;
    }
    return 0;
}

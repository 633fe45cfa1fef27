/* bench-adam: the element-wise kernels against what memory allows. AdamW is held against a
 * loop with the same loads and stores and no arithmetic; norm, casts, reduction and copy against
 * a copy that goes around the caches. Rows take turns in each round; a ratio is taken inside
 * each round, and the median of the rounds is shown. */
#include "bench/timing.h"
#include "bench/traffic.h"
#include "kernels/backend.h"
#include "kernels/cpu/parallel.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct bench_options {
    size_t      elems;
    size_t      rounds;
    int         threads; /* 0: one, then all cores */
    const char *isa;     /* NULL: the best; "all" */
    int         is_json;
} bench_options;

typedef struct bench_arrays {
    float    *p, *m, *v, *g, *out;
    uint16_t *g16, *p16;
    size_t    elems;
} bench_arrays;

/* The distance of the limits that prefetch. */
#define AHEAD_BYTES 1024

typedef struct bench_run {
    const bench_arrays  *arrays;
    sherdi_backend       backend;
    const traffic_loops *traffic;
    size_t               ahead_bytes;
    uint64_t             sink;
} bench_run;

/* ----------------------------------------------------------------- rows -- */

static void adam_call(bench_run *run, int is_mixed)
{
    const bench_arrays      *a      = run->arrays;
    const sherdi_span        span   = {.count_elems = a->elems};
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
    const sherdi_adam_args args = {
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
    };

    run->backend.kernels->adam(&run->backend, &args);
}

static void row_adam_f32(bench_run *run)
{
    adam_call(run, 0);
}

static void row_adam_mixed(bench_run *run)
{
    adam_call(run, 1);
}

static void on_all_threads(bench_run *run, sherdi_part_fn fn)
{
    const sherdi_split split = {run->backend.threads, SIZE_MAX};

    sherdi_parallel_run(&run->backend, split, fn, run);
}

/* First element and number of elements of a part, whole pages. */
static size_t part_range(size_t elems, int part, int parts, size_t *first)
{
    size_t each = elems / (size_t)parts / 4096 * 4096;

    *first = each * (size_t)part;
    return part == parts - 1 ? elems - *first : each;
}

static void traffic_f32_part(void *ctx, int part, int parts)
{
    const bench_run    *run = ctx;
    const bench_arrays *a   = run->arrays;
    size_t              first;
    size_t              count = part_range(a->elems, part, parts, &first);

    run->traffic->adam_f32(a->p + first, a->m + first, a->v + first, a->g + first, count,
                           run->ahead_bytes);
}

static void row_traffic_f32(bench_run *run)
{
    run->ahead_bytes = 0;
    on_all_threads(run, traffic_f32_part);
}

static void row_traffic_f32_ahead(bench_run *run)
{
    run->ahead_bytes = AHEAD_BYTES;
    on_all_threads(run, traffic_f32_part);
}

static void traffic_mixed_part(void *ctx, int part, int parts)
{
    const bench_run    *run = ctx;
    const bench_arrays *a   = run->arrays;
    size_t              first;
    size_t              count = part_range(a->elems, part, parts, &first);

    run->traffic->adam_mixed(a->p + first, a->m + first, a->v + first, a->g16 + first,
                             a->p16 + first, count, run->ahead_bytes);
}

static void row_traffic_mixed(bench_run *run)
{
    run->ahead_bytes = 0;
    on_all_threads(run, traffic_mixed_part);
}

static void row_traffic_mixed_ahead(bench_run *run)
{
    run->ahead_bytes = AHEAD_BYTES;
    on_all_threads(run, traffic_mixed_part);
}

static void copy_nt_part(void *ctx, int part, int parts)
{
    const bench_run    *run = ctx;
    const bench_arrays *a   = run->arrays;
    size_t              first;
    size_t              count = part_range(a->elems, part, parts, &first);

    run->traffic->copy(a->out + first, a->g + first, count * sizeof(float));
}

static void row_copy_nt(bench_run *run)
{
    on_all_threads(run, copy_nt_part);
}

/* The gradient is read and nothing else: four far-apart streams of whole lines, one word of each.
 * What a machine cannot read, no norm reads. */
static void read_part(void *ctx, int part, int parts)
{
    bench_run      *run     = ctx;
    const uint64_t *words   = (const uint64_t *)(const void *)run->arrays->g;
    size_t          lines   = run->arrays->elems / 16 / (size_t)parts;
    size_t          stream  = lines / 4;
    uint64_t        sums[4] = {0, 0, 0, 0};

    words += lines * 8 * (size_t)part;
    for (size_t i = 0; i < stream; i++) {
        for (size_t k = 0; k < 4; k++) {
            sums[k] += words[(k * stream + i) * 8];
        }
    }
    (void)__atomic_fetch_add(&run->sink, sums[0] + sums[1] + sums[2] + sums[3], __ATOMIC_RELAXED);
}

static void row_read(bench_run *run)
{
    on_all_threads(run, read_part);
}

static void row_copy(bench_run *run)
{
    const bench_arrays *a = run->arrays;

    run->backend.kernels->copy(&run->backend, a->out, a->g, a->elems * sizeof(float));
}

static void sumsq_call(bench_run *run, const void *x, sherd_dtype dtype)
{
    sherdi_norm_acc acc = {0};

    run->backend.kernels->sumsq(&run->backend, x, dtype, run->arrays->elems, &acc);
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
    const sherdi_span span = {.count_elems = run->arrays->elems};

    run->sink += run->backend.kernels->fingerprint(&run->backend, &span, 1, run->arrays->g);
}

static void row_cast_f32_bf16(bench_run *run)
{
    const bench_arrays *a = run->arrays;

    run->backend.kernels->cast(&run->backend, a->p16, SHERD_BF16, a->g, SHERD_F32, a->elems);
}

static void row_cast_bf16_f32(bench_run *run)
{
    const bench_arrays *a = run->arrays;

    run->backend.kernels->cast(&run->backend, a->out, SHERD_F32, a->g16, SHERD_BF16, a->elems);
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
           .count_elems = run->arrays->elems,
           .scale       = 0.5f,
    };

    run->backend.kernels->reduce(&run->backend, &args);
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

    run->backend.kernels->accumulate(&run->backend, a->out, SHERD_F32, a->g16, SHERD_BF16,
                                     a->elems);
}

static void row_zero(bench_run *run)
{
    run->backend.kernels->zero(&run->backend, run->arrays->out, run->arrays->elems * sizeof(float));
}

typedef struct bench_row {
    const char *name;
    void (*run)(bench_run *run);
    double bytes_per_elem; /* that the algorithm must move */
    int    limit;          /* index of the row that it is held against; -1: it is a limit */
} bench_row;

enum { LIMIT_COPY = 0, LIMIT_F32 = 1, LIMIT_F32_AHEAD, LIMIT_MIXED = 4, LIMIT_MIXED_AHEAD };

/* Of the two limits of AdamW the faster one of each round counts. */
static const bench_row ROWS[] = {
    [LIMIT_COPY]      = {"copy-nt (limit)", row_copy_nt, 8, -1},
    [LIMIT_F32]       = {"adamw fp32 traffic (limit)", row_traffic_f32, 28, -1},
    [LIMIT_F32_AHEAD] = {"  the same, prefetching", row_traffic_f32_ahead, 28, -1},
    {"adamw fp32", row_adam_f32, 28, LIMIT_F32},
    [LIMIT_MIXED]       = {"adamw mixed traffic (limit)", row_traffic_mixed, 28, -1},
    [LIMIT_MIXED_AHEAD] = {"  the same, prefetching", row_traffic_mixed_ahead, 28, -1},
    {"adamw mixed bf16", row_adam_mixed, 28, LIMIT_MIXED},
    {"read only, 4 streams", row_read, 4, LIMIT_COPY},
    {"norm fp32", row_norm_f32, 4, LIMIT_COPY},
    {"norm bf16", row_norm_bf16, 2, LIMIT_COPY},
    {"fingerprint", row_fingerprint, 4, LIMIT_COPY},
    {"cast fp32 to bf16", row_cast_f32_bf16, 6, LIMIT_COPY},
    {"cast bf16 to fp32", row_cast_bf16_f32, 6, LIMIT_COPY},
    {"reduce 2 x fp32", row_reduce_f32, 12, LIMIT_COPY},
    {"reduce 2 x bf16", row_reduce_bf16, 6, LIMIT_COPY},
    {"accumulate fp32 += bf16", row_accumulate, 10, LIMIT_COPY},
    {"copy", row_copy, 8, LIMIT_COPY},
    {"zero", row_zero, 4, LIMIT_COPY},
};

#define NUM_ROWS (sizeof(ROWS) / sizeof(ROWS[0]))

static void row_run(void *ctx, size_t row)
{
    ROWS[row].run(ctx);
}

/* --------------------------------------------------------------- tables -- */

/* GB/s of a row over GB/s of another, in each round. */
static bench_stat ratio_of(const bench_options *options, const double *seconds, double *scratch,
                           size_t row, size_t limit)
{
    for (size_t i = 0; i < options->rounds; i++) {
        const double *round         = seconds + i * NUM_ROWS;
        double        limit_seconds = round[limit];

        if (limit != row && limit != LIMIT_COPY && round[limit + 1] < limit_seconds) {
            limit_seconds = round[limit + 1];
        }
        scratch[i] =
            ROWS[row].bytes_per_elem / round[row] / (ROWS[limit].bytes_per_elem / limit_seconds);
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
    size_t     limit = ROWS[row].limit < 0 ? row : (size_t)ROWS[row].limit;
    bench_stat rate  = rate_of(options, seconds, scratch, row);
    bench_stat copy  = ratio_of(options, seconds, scratch, row, LIMIT_COPY);
    bench_stat ratio = ratio_of(options, seconds, scratch, row, limit);

    if (options->is_json) {
        (void)printf("%s{\"name\": \"%s\", \"gb_per_s\": [%.3f, %.3f, %.3f], \"of_copy\": %.4f, "
                     "\"of_limit\": [%.4f, %.4f, %.4f]}",
                     row == 0 ? "" : ",\n", ROWS[row].name, rate.median, rate.min, rate.max,
                     copy.median, ratio.median, ratio.min, ratio.max);
        return;
    }
    (void)printf("%-28s %6.3f %7.1f (%5.1f..%5.1f) %8.3f", ROWS[row].name,
                 rate.median / ROWS[row].bytes_per_elem, rate.median, rate.min, rate.max,
                 copy.median);
    if (limit != row) {
        (void)printf("   %5.3f (%.3f..%.3f)", ratio.median, ratio.min, ratio.max);
    }
    (void)printf("\n");
}

static int table_run(const bench_options *options, const bench_arrays *arrays, const char *isa,
                     int threads, int is_first)
{
    bench_run run     = {.arrays = arrays, .traffic = traffic_loops_find(isa)};
    double   *seconds = calloc(options->rounds * (NUM_ROWS + 1), sizeof(*seconds));

    if (seconds == NULL) {
        (void)fprintf(stderr, "bench-adam: no memory for %zu rounds\n", options->rounds);
        return 1;
    }
    run.backend = (sherdi_backend){
        .name = "cpu", .kernels = sherdi_kernels_cpu_find(isa), .threads = threads};
    bench_rounds(options->rounds, NUM_ROWS, row_run, &run, seconds);

    if (options->is_json) {
        (void)printf("%s{\"isa\": \"%s\", \"threads\": %d, \"rows\": [\n", is_first ? "" : ",\n",
                     isa, threads);
    } else {
        (void)printf("\n%s, %d thread%s, %zu elements, %zu rounds: median (min..max)\n", isa,
                     threads, threads == 1 ? "" : "s", options->elems, options->rounds);
        (void)printf("%-28s %6s %7s %14s %8s   %s\n", "", "Gel/s", "GB/s", "", "/ copy",
                     "/ its limit above, paired");
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

/* --------------------------------------------------------------- arrays -- */

/* Some pages apart from the next: the first-level cache of AMD's cores takes addresses that
 * differ by a multiple of 256 MiB for one another, and a loop over such arrays is three times
 * slower whatever it does. */
#define GAP_BYTES ((size_t)37 * 4096)

static void *array_map(size_t len_bytes)
{
    void *array = mmap(NULL, len_bytes + GAP_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (array == MAP_FAILED) {
        (void)fprintf(stderr, "bench-adam: no memory for %zu bytes\n", len_bytes);
        exit(1);
    }
    (void)madvise(array, len_bytes, MADV_HUGEPAGE); /* as base/mem.c asks for large blocks */
    return array;
}

static void array_fill(float *x, size_t elems, float scale)
{
    uint32_t state = 12345;

    for (size_t i = 0; i < elems; i++) {
        state = state * 1664525u + 1013904223u;
        x[i]  = scale * (float)((state >> 8) + 1) * 0x1p-24f;
    }
}

static bench_arrays arrays_make(size_t elems)
{
    bench_arrays a = {.elems = elems};

    a.p   = array_map(elems * sizeof(float));
    a.m   = array_map(elems * sizeof(float));
    a.v   = array_map(elems * sizeof(float));
    a.g   = array_map(elems * sizeof(float));
    a.out = array_map(elems * sizeof(float));
    a.g16 = array_map(elems * sizeof(uint16_t));
    a.p16 = array_map(elems * sizeof(uint16_t));
    array_fill(a.p, elems, 1.0f);
    array_fill(a.m, elems, 1e-3f);
    array_fill(a.v, elems, 1e-5f);
    array_fill(a.g, elems, 1e-3f);
    memset(a.out, 0, elems * sizeof(float));
    for (size_t i = 0; i < elems; i++) {
        a.g16[i] = sherdi_cast_f32_bf16(a.g[i]);
    }
    memcpy(a.p16, a.g16, elems * sizeof(uint16_t));
    return a;
}

/* -------------------------------------------------------------- command -- */

static const char USAGE[] =
    "usage: bench-adam [--elems N] [--threads N] [--rounds N] [--isa NAME] [--json]\n"
    "  --elems N    elements, suffix K, M or G (default 128M: about 3 GiB)\n"
    "  --threads N  threads (default: one, then all cores)\n"
    "  --rounds N   interleaved rounds (default 7)\n"
    "  --isa NAME   scalar, avx2, avx512, or all (default: the best of the machine)\n"
    "  --json       one JSON object\n";

static int options_parse(int argc, char **argv, bench_options *options)
{
    static const struct option LONG[] = {
        {"elems", required_argument, NULL, 'e'},
        {"threads", required_argument, NULL, 't'},
        {"rounds", required_argument, NULL, 'r'},
        {"isa", required_argument, NULL, 'i'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    int option;

    while ((option = getopt_long(argc, argv, "h", LONG, NULL)) != -1) {
        size_t value = optarg == NULL ? 0 : bench_parse_size(optarg);

        if (option == 'h') {
            (void)fputs(USAGE, stdout);
            exit(0);
        } else if (option == 'j') {
            options->is_json = 1;
        } else if (option == 'i') {
            options->isa = optarg;
        } else if (option == 'e' && value > 0) {
            options->elems = (value + 63) / 64 * 64;
        } else if (option == 'r' && value > 0) {
            options->rounds = value;
        } else if (option == 't' && value > 0 && value <= 1024) {
            options->threads = (int)value;
        } else {
            return 1;
        }
    }
    return optind != argc;
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

    if (options_parse(argc, argv, &options) != 0) {
        (void)fputs(USAGE, stderr);
        return 2;
    }
    for (size_t i = 0; i < 3; i++) {
        best = sherdi_kernels_cpu_find(ISAS[i]) != NULL ? i : best;
    }
    arrays = arrays_make(options.elems);
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
        (void)fprintf(stderr, "bench-adam: this machine or build has no %s\n", options.isa);
        return 1;
    }
    return 0;
}

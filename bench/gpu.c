/* bench-gpu: the optimizers and the norm on a CUDA device, against its own copy from memory to
 * memory and, where it is installed, against PyTorch (gpu_peers.py). Rows take turns in each round,
 * peers too; times are between two events of the device; a ratio is taken inside each round, and
 * the median of the rounds is shown. Rates count the bytes that an algorithm must move: a copy
 * reads and writes each byte. Exits 77 where there is no device. */
#include "bench/peers.h"
#include "bench/options.h"
#include "bench/timing.h"
#include "kernels/codecs.h"
#include "kernels/devices.h"
#include "kernels/lanes.h"
#include "kernels/updates/updates.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Loops over less than this are repeated, so that the cost of a launch is negligible. */
#define TIMED_ELEMS ((size_t)1 << 30)
#define EXIT_SKIP   77

typedef struct bench_options {
    bench_list  sizes; /* none: 1M to 1G, as far as memory goes */
    size_t      rounds, repeats;
    int         device;
    const char *rows;   /* NULL: all; else those whose names have one of these words */
    const char *python; /* NULL: no peers */
    const char *json;
} bench_options;

static _Noreturn void die(const char *what, const char *why)
{
    (void)fprintf(stderr, "bench-gpu: %s: %s\n", what, why);
    exit(1);
}

static void check(sherd_status status, const char *what)
{
    if (status != SHERD_OK) {
        die(what, sherd_last_error());
    }
}

/* --------------------------------------------------------------- arrays -- */

/* All on the device. */
typedef struct gpu_arrays {
    float    *p, *m, *v, *g, *out;
    uint16_t *g16, *p16;
    /* a state in encodings, as the row at hand has them: master, its bf16 parameter, moments */
    unsigned char      *rest;
    uint16_t           *beside;
    unsigned char      *em, *ev;
    sherdi_span        *span;
    void               *others[SHERDI_UPDATE_IDS]; /* coefficients of the other updates */
    sherdi_adam_coeffs *adam;
    sherdi_lamb_coeffs *lamb;
    int32_t            *group;
    float              *ratio;
    sherdi_lamb_norms  *norms;
    sherdi_norm_acc    *acc;
    uint64_t           *fingerprint;
    size_t              elems;
} gpu_arrays;

typedef struct gpu_run {
    sherdi_backend *lane;
    sherdi_event   *start, *end;
    gpu_arrays      a;
    size_t          elems;
    sherdi_mem      mem;
} gpu_run;

/* A chunk of the largest split master: 16 bits each, and a plane. */
#define REST_BYTES(elems) ((elems) / SHERD_CHUNK_ELEMS * SHERDI_CHUNK_PLANE_BYTES)
#define BYTES_PER_ELEM    36.125 /* of all arrays */

static int array_try(gpu_run *run, size_t len_bytes, void *out)
{
    return run->lane->device->alloc(run->lane, &run->mem, SHERDI_MEM_STATE, len_bytes, out) ==
           SHERD_OK;
}

static void small_put(gpu_run *run, const void *from, size_t len_bytes, void *out)
{
    void *memory = NULL;

    if (!array_try(run, len_bytes, &memory)) {
        die("memory", sherd_last_error());
    }
    run->lane->kernels->copy(run->lane, memory, from, len_bytes);
    *(void **)out = memory;
}

/* A first part by the host, then doubled on the device. */
static void array_fill(gpu_run *run, float *x, size_t elems, float scale)
{
    enum { PART = 1 << 16 };
    static float part[PART];
    uint32_t     state = 12345;
    size_t       done  = elems < PART ? elems : PART;

    for (size_t i = 0; i < PART; i++) {
        state   = state * 1664525u + 1013904223u;
        part[i] = scale * (float)((state >> 8) + 1) * 0x1p-24f;
    }
    run->lane->kernels->copy(run->lane, x, part, done * sizeof(float));
    while (done < elems) {
        size_t count = done < elems - done ? done : elems - done;

        run->lane->kernels->copy(run->lane, x + done, x, count * sizeof(float));
        done += count;
    }
}

static void arrays_free(gpu_run *run)
{
    gpu_arrays *a     = &run->a;
    void       *all[] = {a->p,   a->m,    a->v,      a->g,  a->out, a->g16,
                         a->p16, a->rest, a->beside, a->em, a->ev};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        run->lane->device->free(run->lane, all[i]);
    }
    run->a.p = run->a.m = run->a.v = run->a.g = run->a.out = NULL;
    run->a.g16 = run->a.p16 = run->a.beside = NULL;
    run->a.rest = run->a.em = run->a.ev = NULL;
}

/* 0: not so much memory. */
static int arrays_make(gpu_run *run, size_t elems)
{
    gpu_arrays *a = &run->a;

    a->elems = elems;
    if (!array_try(run, elems * 4, &a->p) || !array_try(run, elems * 4, &a->m) ||
        !array_try(run, elems * 4, &a->v) || !array_try(run, elems * 4, &a->g) ||
        !array_try(run, elems * 4, &a->out) || !array_try(run, elems * 2, &a->g16) ||
        !array_try(run, elems * 2, &a->p16) || !array_try(run, REST_BYTES(elems), &a->rest) ||
        !array_try(run, elems * 2, &a->beside) || !array_try(run, elems * 4, &a->em) ||
        !array_try(run, elems * 4, &a->ev)) {
        arrays_free(run);
        return 0;
    }
    array_fill(run, a->p, elems, 1.0f);
    array_fill(run, a->m, elems, 1e-3f);
    array_fill(run, a->v, elems, 1e-5f);
    array_fill(run, a->g, elems, 1e-3f);
    run->lane->kernels->cast(run->lane, a->g16, SHERD_BF16, a->g, SHERD_F32, elems);
    check(sherdi_lane_wait(run->lane), "filling arrays");
    return 1;
}

/* As a group's numbers make them. */
static void others_make(gpu_run *run)
{
    static const sherdi_group_step STEP    = {.grad_scale = 1,
                                              .lr         = 1e-4,
                                              .beta1      = 0.9,
                                              .beta2      = 0.99,
                                              .eps        = 1e-8,
                                              .decay      = 0.01,
                                              .bias1      = 0.5,
                                              .bias2      = 0.5,
                                              .step       = 7};
    const sherdi_lion_coeffs       lion    = sherdi_lion_coeffs_of(&STEP);
    const sherdi_sgd_coeffs        sgd     = sherdi_sgd_coeffs_of(&STEP);
    const sherdi_adagrad_coeffs    adagrad = sherdi_adagrad_coeffs_of(&STEP);

    small_put(run, &lion, sizeof(lion), &run->a.others[SHERDI_UPDATE_lion]);
    small_put(run, &sgd, sizeof(sgd), &run->a.others[SHERDI_UPDATE_sgd]);
    small_put(run, &adagrad, sizeof(adagrad), &run->a.others[SHERDI_UPDATE_adagrad]);
    check(sherdi_lane_wait(run->lane), "coefficients");
}

static void small_arrays_make(gpu_run *run)
{
    static const sherdi_adam_coeffs ADAM = {.grad_scale      = 1.0f,
                                            .beta1           = 0.9f,
                                            .one_minus_beta1 = 0.1f,
                                            .beta2           = 0.999f,
                                            .one_minus_beta2 = 0.001f,
                                            .eps             = 1e-8f,
                                            .neg_lr_decay    = -1e-6f,
                                            .neg_step_size   = -1e-4f,
                                            .inv_sqrt_bias   = 1.5f};
    static const sherdi_lamb_coeffs LAMB = {.grad_scale      = 1.0f,
                                            .beta1           = 0.9f,
                                            .one_minus_beta1 = 0.1f,
                                            .beta2           = 0.999f,
                                            .one_minus_beta2 = 0.001f,
                                            .inv_bias1       = 1,
                                            .inv_bias2       = 1,
                                            .eps             = 1e-8f,
                                            .decay           = 0.01f,
                                            .neg_step_size   = -1e-4f,
                                            .min_ratio       = 0.01f,
                                            .max_ratio       = 10};
    static const sherdi_lamb_norms  NORMS;
    static const float              RATIO = 1;
    static const int32_t            GROUP = 0;
    static const uint64_t           ZERO  = 0;
    static const sherdi_span        SPAN;
    gpu_arrays                     *a = &run->a;

    small_put(run, &SPAN, sizeof(SPAN), &a->span);
    small_put(run, &ADAM, sizeof(ADAM), &a->adam);
    small_put(run, &LAMB, sizeof(LAMB), &a->lamb);
    small_put(run, &NORMS, sizeof(NORMS), &a->norms);
    small_put(run, &NORMS.param, sizeof(NORMS.param), &a->acc);
    small_put(run, &RATIO, sizeof(RATIO), &a->ratio);
    small_put(run, &GROUP, sizeof(GROUP), &a->group);
    small_put(run, &ZERO, sizeof(ZERO), &a->fingerprint);
    others_make(run);
}

/* One parameter of as many elements. */
static void span_set(gpu_run *run, size_t elems)
{
    sherdi_span span = {.count_elems = elems};

    run->elems = elems;
    run->lane->kernels->copy(run->lane, run->a.span, &span, sizeof(span));
    check(sherdi_lane_wait(run->lane), "setting the span");
}

/* ----------------------------------------------------------------- rows -- */

static void row_copy(gpu_run *run)
{
    run->lane->kernels->copy(run->lane, run->a.out, run->a.g, run->elems * sizeof(float));
}

static void adam_call(gpu_run *run, int is_mixed)
{
    const gpu_arrays *a = &run->a;

    run->lane->kernels->update(
        run->lane, SHERDI_UPDATE_adam,
        &(sherdi_update_args){.spans       = a->span,
                              .num_spans   = 1,
                              .coeffs      = a->adam,
                              .grad        = is_mixed ? (const void *)a->g16 : a->g,
                              .grad_dtype  = is_mixed ? SHERD_BF16 : SHERD_F32,
                              .master      = a->p,
                              .m           = a->m,
                              .v           = a->v,
                              .param       = is_mixed ? a->p16 : NULL,
                              .param_dtype = SHERD_BF16,
                              .fingerprint = a->fingerprint});
}

static void row_adam_f32(gpu_run *run)
{
    adam_call(run, 0);
}

static void row_adam_mixed(gpu_run *run)
{
    adam_call(run, 1);
}

static sherdi_update_args lamb_args(const gpu_run *run)
{
    const gpu_arrays *a = &run->a;

    return (sherdi_update_args){.spans       = a->span,
                                .num_spans   = 1,
                                .coeffs      = a->lamb,
                                .grad        = a->g16,
                                .grad_dtype  = SHERD_BF16,
                                .master      = a->p,
                                .m           = a->m,
                                .v           = a->v,
                                .param       = a->p16,
                                .param_dtype = SHERD_BF16,
                                .fingerprint = a->fingerprint,
                                .norms       = a->norms,
                                .ratios      = a->ratio};
}

static void row_lamb_norms(gpu_run *run)
{
    const sherdi_update_args args = lamb_args(run);

    run->lane->kernels->lamb_norms(run->lane, &args);
}

static void row_lamb_update(gpu_run *run)
{
    const sherdi_update_args args = lamb_args(run);

    run->lane->kernels->update(run->lane, SHERDI_UPDATE_lamb, &args);
}

/* As a step has them. */
static void row_lamb(gpu_run *run)
{
    const gpu_arrays *a = &run->a;

    run->lane->kernels->zero(run->lane, a->norms, sizeof(*a->norms));
    row_lamb_norms(run);
    run->lane->kernels->lamb_ratios(run->lane, &(sherdi_lamb_ratio_args){.norms      = a->norms,
                                                                         .groups     = a->group,
                                                                         .coeffs     = a->lamb,
                                                                         .ratios     = a->ratio,
                                                                         .num_params = 1});
    row_lamb_update(run);
}

/* Updates with one other part; the sum of squares is where Adam's is. */
static void other_call(gpu_run *run, sherdi_update_id update, float *part)
{
    const gpu_arrays *a = &run->a;

    run->lane->kernels->update(run->lane, update,
                               &(sherdi_update_args){.spans       = a->span,
                                                     .num_spans   = 1,
                                                     .coeffs      = a->others[update],
                                                     .grad        = a->g16,
                                                     .grad_dtype  = SHERD_BF16,
                                                     .parts       = {a->p, part},
                                                     .param       = a->p16,
                                                     .param_dtype = SHERD_BF16,
                                                     .fingerprint = a->fingerprint});
}

static void row_lion(gpu_run *run)
{
    other_call(run, SHERDI_UPDATE_lion, run->a.m);
}

static void row_momentum(gpu_run *run)
{
    other_call(run, SHERDI_UPDATE_sgd, run->a.m);
}

static void row_adagrad(gpu_run *run)
{
    other_call(run, SHERDI_UPDATE_adagrad, run->a.v);
}

/* ------------------------------------------------------------- encodings -- */

/* How the parts of a row's state are stored. */
typedef struct state_row {
    sherdi_update_id update;
    sherdi_encoding  master, m, v;
} state_row;

static const state_row TEN_BYTES = {SHERDI_UPDATE_adam, SHERDI_ENCODING_BESIDE, SHERDI_ENCODING_F32,
                                    SHERDI_ENCODING_F32};
static const state_row BF16_MOMENTS = {SHERDI_UPDATE_adam, SHERDI_ENCODING_BESIDE,
                                       SHERDI_ENCODING_BF16, SHERDI_ENCODING_BF16};
static const state_row FP8_MOMENTS  = {SHERDI_UPDATE_adam, SHERDI_ENCODING_BESIDE_PLANE,
                                       SHERDI_ENCODING_FP8, SHERDI_ENCODING_UFP8};
static const state_row LION_BESIDE  = {SHERDI_UPDATE_lion, SHERDI_ENCODING_BESIDE_PLANE,
                                       SHERDI_ENCODING_F32, SHERDI_ENCODING_F32};

static void part_encode(gpu_run *run, const sherdi_encoded *part)
{
    run->lane->kernels->encode(run->lane, part, 0, run->a.g, run->elems);
}

/* Numbers like those of gradients, before the row is timed: the row before wrote others. */
static void state_make(gpu_run *run, const state_row *row)
{
    const gpu_arrays *a = &run->a;

    part_encode(run, &(sherdi_encoded){.encoding = row->m, .data = a->em});
    part_encode(run, &(sherdi_encoded){.encoding = row->v, .data = a->ev});
    part_encode(run, &(sherdi_encoded){.encoding      = row->master,
                                       .data          = a->rest,
                                       .param         = a->beside,
                                       .ties          = a->ev,
                                       .ties_encoding = row->v});
}

static void state_call(gpu_run *run, const state_row *row)
{
    const gpu_arrays *a = &run->a;

    run->lane->kernels->update(run->lane, row->update,
                               &(sherdi_update_args){.spans      = a->span,
                                                     .num_spans  = 1,
                                                     .coeffs     = row->update == SHERDI_UPDATE_adam
                                                                       ? (const void *)a->adam
                                                                       : a->others[row->update],
                                                     .grad       = a->g16,
                                                     .grad_dtype = SHERD_BF16,
                                                     .master     = (float *)(void *)a->rest,
                                                     .m          = (float *)(void *)a->em,
                                                     .v          = (float *)(void *)a->ev,
                                                     .param      = a->beside,
                                                     .param_dtype = SHERD_BF16,
                                                     .encodings   = {row->master, row->m, row->v},
                                                     .ties_part   = 2,
                                                     .step        = 7,
                                                     .fingerprint = a->fingerprint});
}

static void row_norm_f32(gpu_run *run)
{
    run->lane->kernels->sumsq(run->lane, run->a.g, SHERD_F32, run->elems, run->a.acc);
}

static void row_norm_bf16(gpu_run *run)
{
    run->lane->kernels->sumsq(run->lane, run->a.g16, SHERD_BF16, run->elems, run->a.acc);
}

static void row_cast(gpu_run *run)
{
    run->lane->kernels->cast(run->lane, run->a.p16, SHERD_BF16, run->a.g, SHERD_F32, run->elems);
}

/* Four slices into one. */
static void row_reduce(gpu_run *run)
{
    size_t      slice = run->elems / 4 / 64 * 64;
    const void *srcs[4];

    for (size_t k = 0; k < 4; k++) {
        srcs[k] = run->a.g16 + k * slice;
    }
    run->lane->kernels->reduce(run->lane, &(sherdi_reduce_args){.srcs        = srcs,
                                                                .num_srcs    = 4,
                                                                .src_dtype   = SHERD_BF16,
                                                                .comm_dtype  = SHERD_BF16,
                                                                .dst         = run->a.p16,
                                                                .dst_dtype   = SHERD_BF16,
                                                                .count_elems = slice,
                                                                .scale       = 0.25f});
}

static void row_fingerprint(gpu_run *run)
{
    run->lane->kernels->fingerprint(run->lane, run->a.span, 1, run->a.p, run->a.fingerprint);
}

enum { ROW_COPY, ROW_ADAM_F32, ROW_ADAM_MIXED, ROW_REST };

typedef struct bench_row {
    const char *name;
    void (*run)(gpu_run *run);
    double           bytes_per_elem; /* that the algorithm must move */
    const state_row *state; /* in place of run: an update of a state in encodings; else NULL */
} bench_row;

static const bench_row ROWS[] = {
    [ROW_COPY]       = {"copy (limit)", row_copy, 8, NULL},
    [ROW_ADAM_F32]   = {"adamw fp32", row_adam_f32, 28, NULL},
    [ROW_ADAM_MIXED] = {"adamw mixed bf16", row_adam_mixed, 28, NULL},
    [ROW_REST]       = {"adamw, state of 10 bytes", NULL, 26, &TEN_BYTES},
    {"adamw, bf16 moments", NULL, 18, &BF16_MOMENTS},
    {"adamw, fp8 moments", NULL, 14.5, &FP8_MOMENTS},
    {"lion mixed bf16", row_lion, 20, NULL},
    {"lion, state of 6 bytes", NULL, 18.25, &LION_BESIDE},
    {"sgd with momentum, mixed", row_momentum, 20, NULL},
    {"adagrad mixed bf16", row_adagrad, 20, NULL},
    {"lamb mixed, both sweeps", row_lamb, 42, NULL},
    {"  its norms", row_lamb_norms, 14, NULL},
    {"  its update", row_lamb_update, 28, NULL},
    {"norm fp32", row_norm_f32, 4, NULL},
    {"norm bf16", row_norm_bf16, 2, NULL},
    {"fingerprint", row_fingerprint, 4, NULL},
    {"cast fp32 to bf16", row_cast, 6, NULL},
    {"reduce 4 x bf16", row_reduce, 2.5, NULL},
};

#define NUM_ROWS (sizeof(ROWS) / sizeof(ROWS[0]))
#define MAX_ROWS (NUM_ROWS + BENCH_MAX_PEERS)

/* --------------------------------------------------------------- rounds -- */

typedef struct bench_table {
    size_t     elems, num_rows;
    size_t     own[NUM_ROWS], num_own; /* rows that are run; the copy is the first */
    char       names[MAX_ROWS][64];
    bench_stat gb_per_s[MAX_ROWS];  /* of ours */
    bench_stat gel_per_s[MAX_ROWS]; /* 10^9 elements */
    bench_stat of_copy[MAX_ROWS];   /* of ours */
    bench_stat ours_of[MAX_ROWS];   /* our elements per second over theirs; of peers */
} bench_table;

static double own_seconds(gpu_run *run, const bench_row *row, size_t repeats)
{
    const sherdi_lane_ops *device = sherdi_lanes_of(run->lane);

    if (row->state != NULL) {
        state_make(run, row->state);
    }
    check(sherdi_lane_wait(run->lane), row->name);
    device->event_record(run->start, run->lane);
    for (size_t i = 0; i < repeats; i++) {
        if (row->state != NULL) {
            state_call(run, row->state);
        } else {
            row->run(run);
        }
    }
    device->event_record(run->end, run->lane);
    check(device->event_wait(run->end), row->name);
    return (double)(device->event_ns(run->end) - device->event_ns(run->start)) * 1e-9 /
           (double)repeats;
}

static void table_measure(bench_table *table, const bench_options *options, gpu_run *run,
                          bench_peers *peers, double *seconds)
{
    size_t repeats = table->elems < TIMED_ELEMS ? TIMED_ELEMS / table->elems : 1;

    repeats = repeats > options->repeats ? options->repeats : repeats;
    for (size_t round = 0; round <= options->rounds; round++) { /* the first is thrown away */
        double *of_round = seconds + (round == 0 ? 0 : round - 1) * table->num_rows;

        for (size_t row = 0; row < table->num_rows; row++) {
            of_round[row] = row < table->num_own
                                ? own_seconds(run, &ROWS[table->own[row]], repeats)
                                : bench_peer_seconds(peers, row - table->num_own, repeats);
        }
    }
}

/* Of each round: scale / seconds of `row`, times seconds of `other` when there is one. */
static bench_stat stat_of(const bench_table *table, size_t rounds, const double *seconds,
                          double *scratch, size_t row, size_t other, double scale)
{
    for (size_t i = 0; i < rounds; i++) {
        const double *round = seconds + i * table->num_rows;

        scratch[i] = scale / round[row] * (other < table->num_rows ? round[other] : 1);
    }
    return bench_stat_of(scratch, rounds);
}

/* Where a row of ROWS is in the table; MAX_ROWS: it was omitted. */
static size_t row_find(const bench_table *table, size_t which)
{
    for (size_t i = 0; i < table->num_own; i++) {
        if (table->own[i] == which) {
            return i;
        }
    }
    return MAX_ROWS;
}

static void table_evaluate(bench_table *table, size_t rounds, const double *seconds,
                           double *scratch)
{
    double elems = (double)table->elems * 1e-9;

    for (size_t row = 0; row < table->num_rows; row++) {
        table->gel_per_s[row] = stat_of(table, rounds, seconds, scratch, row, MAX_ROWS, elems);
        if (row < table->num_own) {
            double bytes = ROWS[table->own[row]].bytes_per_elem;

            table->gb_per_s[row] =
                stat_of(table, rounds, seconds, scratch, row, MAX_ROWS, elems * bytes);
            table->of_copy[row] = stat_of(table, rounds, seconds, scratch, row, ROW_COPY,
                                          bytes / ROWS[ROW_COPY].bytes_per_elem);
        } else {
            size_t ours = row_find(
                table, strstr(table->names[row], "mixed") != NULL ? ROW_ADAM_MIXED : ROW_ADAM_F32);

            if (ours < table->num_own) {
                table->ours_of[row] = stat_of(table, rounds, seconds, scratch, ours, row, 1);
            }
        }
    }
}

/* By one of the words between commas. */
static int row_is_asked(const bench_row *row, const char *words)
{
    char        word[64];
    const char *at = words;

    while (at != NULL && *at != '\0') {
        size_t len = strcspn(at, ",");

        (void)snprintf(word, sizeof(word), "%.*s", (int)len, at);
        if (strstr(row->name, word) != NULL) {
            return 1;
        }
        at += len + (at[len] == ',');
    }
    return words == NULL;
}

static void table_run(bench_table *table, const bench_options *options, gpu_run *run,
                      bench_peers *peers)
{
    double *seconds;

    for (size_t i = 0; i < NUM_ROWS; i++) {
        if (i == ROW_COPY || row_is_asked(&ROWS[i], options->rows)) {
            (void)snprintf(table->names[table->num_own], sizeof(table->names[0]), "%s",
                           ROWS[i].name);
            table->own[table->num_own++] = i;
        }
    }
    bench_peers_setup(peers, "%zu %d", table->elems, options->device);
    table->num_rows = table->num_own + peers->count;
    for (size_t i = 0; i < peers->count; i++) {
        (void)snprintf(table->names[table->num_own + i], sizeof(table->names[0]), "%s",
                       peers->names[i]);
    }
    seconds = calloc(options->rounds * (table->num_rows + 1), sizeof(*seconds));
    if (seconds == NULL) {
        die("rounds", strerror(ENOMEM));
    }
    span_set(run, table->elems);
    table_measure(table, options, run, peers, seconds);
    table_evaluate(table, options->rounds, seconds, seconds + options->rounds * table->num_rows);
    free(seconds);
}

/* --------------------------------------------------------------- output -- */

static void table_print(const bench_table *table, size_t rounds)
{
    (void)printf("\n%.4g million elements, %zu rounds: median (min..max)\n",
                 (double)table->elems * 1e-6, rounds);
    (void)printf("%-26s %8s %-19s %8s   %s\n", "", "GB/s", "", "Gel/s", "/ copy; ours / this");
    for (size_t row = 0; row < table->num_rows; row++) {
        const bench_stat *rate = &table->gb_per_s[row];
        const bench_stat *ratio =
            row < table->num_own ? &table->of_copy[row] : &table->ours_of[row];

        (void)printf("%-26s ", table->names[row]);
        if (row < table->num_own) {
            (void)printf("%8.1f (%8.1f..%8.1f)", rate->median, rate->min, rate->max);
        } else {
            (void)printf("%8s %20s", "", "");
        }
        (void)printf(" %8.2f   %5.3f (%.3f..%.3f)\n", table->gel_per_s[row].median, ratio->median,
                     ratio->min, ratio->max);
    }
    (void)fflush(stdout);
}

static void stat_print_json(const char *name, const bench_stat *stat)
{
    (void)printf(", \"%s\": [%.4f, %.4f, %.4f]", name, stat->median, stat->min, stat->max);
}

/* Standard output becomes the file. */
static void json_write(const bench_options *options, const char *device, const bench_table *tables,
                       size_t count, int argc, char **argv)
{
    if (freopen(options->json, "w", stdout) == NULL) {
        die(options->json, strerror(errno));
    }
    (void)printf("{");
    bench_print_machine_json(argc, argv);
    (void)printf(", \"device\": \"%s\", \"rounds\": %zu, \"tables\": [", device, options->rounds);
    for (size_t t = 0; t < count; t++) {
        (void)printf("%s\n{\"elems\": %zu, \"rows\": [", t > 0 ? "," : "", tables[t].elems);
        for (size_t row = 0; row < tables[t].num_rows; row++) {
            (void)printf("%s\n {\"name\": \"%s\"", row > 0 ? "," : "", tables[t].names[row]);
            stat_print_json("gel_per_s", &tables[t].gel_per_s[row]);
            if (row < tables[t].num_own) {
                stat_print_json("gb_per_s", &tables[t].gb_per_s[row]);
                stat_print_json("of_copy", &tables[t].of_copy[row]);
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

/* -------------------------------------------------------------- command -- */

static void options_parse(int argc, char **argv, bench_options *o)
{
    const bench_option rows[] = {
        {"sizes", "LIST",
         "elements (default 1M,16M,128M,1G as far as memory goes; 1G takes 36 GiB)", BENCH_LIST,
         .value = &o->sizes, .least = 1},
        {"rounds", "N", "interleaved rounds (default 7)", BENCH_SIZE, .value = &o->rounds,
         .least = 1},
        {"repeats", "N", "most repeats of a kernel in a round (default 256)", BENCH_SIZE,
         .value = &o->repeats, .least = 1},
        {"rows", "WORDS",
         "only rows whose names contain one of these words, separated by commas (adamw, lion, "
         "lamb, norm, ..), and the copy",
         BENCH_TEXT, .value = &o->rows},
        {"device", "N", "number of the GPU (default 0)", BENCH_INT, .value = &o->device},
        {"peers", "PYTHON",
         "also time PyTorch's AdamW in the same rounds; takes as much memory again, and more",
         BENCH_TEXT, .value = &o->python},
        {"json", "FILE", "write the figures as JSON", BENCH_TEXT, .value = &o->json}};
    const bench_command command = {
        .name        = "gpu",
        .about       = "Times each kernel of a GPU and the device's own copy.",
        .options     = rows,
        .num_options = sizeof(rows) / sizeof(rows[0]),
        .end = "Ratios are taken inside a round. \"/ copy\" is the rate in bytes over that of the "
               "device's own copy, \"ours / this\" our rate over the peer's. Exits with 77 where "
               "there is no "
               "device."};

    (void)bench_options_read(&command, argc, argv);
    for (size_t i = 0; i < o->sizes.count; i++) {
        o->sizes.values[i] = (o->sizes.values[i] + 63) / 64 * 64;
    }
}

static void run_init(gpu_run *run, int device)
{
    sherdi_mem_init(&run->mem);
    check(sherdi_backend_device_create("cuda", device, &run->mem, &run->lane), "the device");
    check(sherdi_lanes_of(run->lane)->event_create(run->lane, 1, &run->start), "an event");
    check(sherdi_lanes_of(run->lane)->event_create(run->lane, 1, &run->end), "an event");
    small_arrays_make(run);
}

static void run_fini(gpu_run *run)
{
    sherdi_lanes_of(run->lane)->event_destroy(run->start);
    sherdi_lanes_of(run->lane)->event_destroy(run->end);
    sherdi_backend_destroy(run->lane); /* and its output */
}

int main(int argc, char **argv)
{
    static const bench_list SIZES = {
        {(size_t)1 << 20, (size_t)16 << 20, (size_t)128 << 20, (size_t)1 << 30}, 4};
    bench_options options = {.rounds = 7, .repeats = 256};
    bench_peers   peers   = {.to = NULL};
    gpu_run       run     = {.lane = NULL};
    bench_table  *tables  = calloc(BENCH_MOST_LIST, sizeof(*tables));
    size_t        count   = 0;
    int           is_asked;
    char          text[256];

    options_parse(argc, argv, &options);
    if (tables == NULL) {
        die("tables", strerror(ENOMEM));
    }
    if (sherdi_backend_device_count("cuda", text, sizeof(text)) == 0) {
        (void)printf("bench-gpu: skipped: %s\n", text);
        return EXIT_SKIP;
    }
    is_asked = options.sizes.count > 0;
    if (!is_asked) {
        options.sizes = SIZES;
    }
    bench_print_machine(argc, argv);
    sherdi_backend_device_describe("cuda", options.device, text, sizeof(text));
    (void)printf("# device   %s\n", text);
    (void)fflush(stdout);
    if (options.python != NULL) {
        bench_peers_start(&peers, options.python, BENCH_PEERS);
    }
    run_init(&run, options.device);
    for (size_t s = 0; s < options.sizes.count; s++) {
        bench_table *table = &tables[count];

        table->elems = options.sizes.values[s];
        if (!arrays_make(&run, table->elems)) {
            (void)printf("\n%.4g million elements: no memory for %.4g GB\n",
                         (double)table->elems * 1e-6, (double)table->elems * BYTES_PER_ELEM * 1e-9);
            if (is_asked) {
                return 1;
            }
            continue;
        }
        count++;
        table_run(table, &options, &run, &peers);
        table_print(table, options.rounds);
        arrays_free(&run);
    }
    run_fini(&run);
    if (options.json != NULL) {
        json_write(&options, text, tables, count, argc, argv);
    }
    free(tables);
    return 0;
}

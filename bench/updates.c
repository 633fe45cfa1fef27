#include "bench/updates.h"

#include "kernels/codecs.h"
#include "kernels/updates/updates.h"

#include <math.h>
#include <string.h>

/* ----------------------------------------------------------------- rows -- */

#define F32    SHERDI_ENCODING_F32
#define BF16   SHERDI_ENCODING_BF16
#define BESIDE SHERDI_ENCODING_BESIDE
#define PLANE  SHERDI_ENCODING_BESIDE_PLANE
#define FP8    SHERDI_ENCODING_FP8
#define UFP8   SHERDI_ENCODING_UFP8

#define PLAIN(row, shape, update)                                                                  \
    {                                                                                              \
        row, TRAFFIC_##shape, SHERDI_UPDATE_##update, 0,                                           \
        {                                                                                          \
            F32, F32, F32                                                                          \
        }                                                                                          \
    }
#define NORMS(row, shape)                                                                          \
    {                                                                                              \
        row, TRAFFIC_##shape, SHERDI_UPDATE_lamb, 1,                                               \
        {                                                                                          \
            F32, F32, F32                                                                          \
        }                                                                                          \
    }
#define ENCODED(row, shape, update, ...)                                                           \
    {                                                                                              \
        row, TRAFFIC_##shape, SHERDI_UPDATE_##update, 0,                                           \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

const bench_update BENCH_UPDATES[] = {
    PLAIN("adamw fp32", F32_3, adam),
    PLAIN("lamb fp32", F32_3, lamb),
    PLAIN("lion fp32", F32_2, lion),
    PLAIN("sgd momentum fp32", F32_2, sgd),
    PLAIN("adagrad fp32", F32_2, adagrad),
    PLAIN("sgd fp32", F32_1, sgd_plain),
    PLAIN("adamw mixed", MIXED_3, adam),
    PLAIN("lamb mixed", MIXED_3, lamb),
    PLAIN("lion mixed", MIXED_2, lion),
    PLAIN("sgd momentum mixed", MIXED_2, sgd),
    PLAIN("adagrad mixed", MIXED_2, adagrad),
    PLAIN("sgd mixed", MIXED_1, sgd_plain),
    ENCODED("adamw beside", BESIDE_F32, adam, BESIDE, F32, F32),
    ENCODED("lamb beside", BESIDE_F32, lamb, BESIDE, F32, F32),
    ENCODED("adamw beside, moments bf16", BESIDE_BF16, adam, BESIDE, BF16, BF16),
    ENCODED("adamw beside, moments fp8", PLANE_FP8, adam, PLANE, FP8, UFP8),
    ENCODED("lion beside", PLANE_F32, lion, PLANE, F32, F32),
    ENCODED("adamw master bf16", BF16_F32, adam, BF16, F32, F32),
    ENCODED("adamw moments bf16", F32_BF16, adam, F32, BF16, BF16),
    ENCODED("adamw moments fp8", F32_FP8, adam, F32, FP8, UFP8),
    NORMS("lamb norms fp32", READ_F32),
    NORMS("lamb norms mixed", READ_MIXED),
};

const size_t BENCH_NUM_UPDATES = sizeof(BENCH_UPDATES) / sizeof(BENCH_UPDATES[0]);

/* ---------------------------------------------------------------- calls -- */

/* More than an engine's trials. */
#define FIRST_CALLS 16

static int is_mixed(const bench_update *update)
{
    return TRAFFIC_TABLE[update->shape].grad_bytes < SHERD_CHUNK_ELEMS * sizeof(float);
}

static sherdi_encoded part_of(const bench_arrays *a, const bench_update *update, int part)
{
    float *const parts[] = {a->p, a->m, a->v};

    return (sherdi_encoded){
        .encoding      = update->encodings[part],
        .data          = parts[part],
        .param         = a->p16,
        .ties          = a->v,
        .ties_encoding = update->encodings[2],
        .has_ties      = part == 2 && update->encodings[0] == SHERDI_ENCODING_BESIDE,
    };
}

static void part_fill(const bench_run *run, const bench_update *update, int part, float scale)
{
    const bench_arrays  *a       = run->arrays;
    const sherdi_encoded encoded = part_of(a, update, part);

    bench_array_fill(a->out, run->elems, scale);
    run->backend->kernels->encode(run->backend, &encoded, 0, a->out, run->elems);
}

/* The master last: its ties are in another part. */
void bench_update_prepare(const bench_run *run, const bench_update *update)
{
    part_fill(run, update, 2, 1e-5f);
    part_fill(run, update, 1, 1e-3f);
    part_fill(run, update, 0, 1.0f);
}

typedef union bench_coeffs {
    sherdi_adam_coeffs    adam;
    sherdi_lamb_coeffs    lamb;
    sherdi_lion_coeffs    lion;
    sherdi_sgd_coeffs     sgd;
    sherdi_adagrad_coeffs adagrad;
} bench_coeffs;

static bench_coeffs coeffs_of(sherdi_update_id update)
{
    /* Without decay: sums of positive gradients stay positive, and are valid states for the next
     * update. */
    const sherdi_group_step step   = {.grad_scale = 1,
                                      .lr         = 1e-4,
                                      .beta1      = 0.9,
                                      .beta2      = 0.999,
                                      .eps        = 1e-8,
                                      .bias1      = 0.9,
                                      .bias2      = 0.5,
                                      .step       = 10};
    bench_coeffs            coeffs = {.adam = sherdi_adamw_coeffs_of(&step)};

    switch (update) {
    case SHERDI_UPDATE_lamb:
        coeffs.lamb = (sherdi_lamb_coeffs){
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
        break;
    case SHERDI_UPDATE_lion:
        coeffs.lion = sherdi_lion_coeffs_of(&step);
        break;
    case SHERDI_UPDATE_sgd:
    case SHERDI_UPDATE_sgd_plain:
        coeffs.sgd = sherdi_sgd_coeffs_of(&step);
        break;
    case SHERDI_UPDATE_adagrad:
        coeffs.adagrad = sherdi_adagrad_coeffs_of(&step);
        break;
    default:
        break;
    }
    return coeffs;
}

int bench_update_is_sound(const bench_run *run, const bench_update *update)
{
    const float *out = run->arrays->out;

    for (int part = 0; part < TRAFFIC_MOST_PARTS; part++) {
        const sherdi_encoded encoded = part_of(run->arrays, update, part);

        run->backend->kernels->decode(run->backend, run->arrays->out, &encoded, 0, run->elems);
        for (size_t i = 0; i < run->elems; i++) {
            if (out[i] != 0 && !isnormal(out[i])) {
                return 0;
            }
        }
    }
    return 1;
}

static sherdi_update_args args_of(const bench_arrays *a, const bench_update *update)
{
    sherdi_update_args args = {
        .num_spans   = 1,
        .grad        = is_mixed(update) ? (const void *)a->g16 : a->g,
        .grad_dtype  = is_mixed(update) ? SHERD_BF16 : SHERD_F32,
        .master      = a->p,
        .m           = a->m,
        .v           = a->v,
        .param       = is_mixed(update) ? a->p16 : NULL,
        .param_dtype = SHERD_BF16,
        .step        = 10,
        .ties_part   = update->encodings[0] == SHERDI_ENCODING_BESIDE ? 2 : 0,
    };

    memcpy(args.encodings, update->encodings, sizeof(update->encodings));
    return args;
}

void bench_update_run(bench_run *run, const bench_update *update)
{
    const sherdi_span  span   = {.count_elems = run->elems};
    const bench_coeffs coeffs = coeffs_of(update->update);
    sherdi_lamb_norms  norms  = {0};
    sherdi_update_args args   = args_of(run->arrays, update);

    args.spans       = &span;
    args.coeffs      = &coeffs;
    args.fingerprint = &run->sink;
    args.norms       = &norms;
    if (update->is_norms) {
        run->backend->kernels->lamb_norms(run->backend, &args);
        run->sink += norms.update.bins[10];
    } else {
        run->backend->kernels->update(run->backend, update->update, &args);
    }
}

void bench_ahead_set(const bench_run *run, sherdi_ahead ahead)
{
    if (run->backend->ahead != NULL) {
        *run->backend->ahead = ahead;
    }
}

sherdi_ahead bench_update_settle(bench_run *run, const bench_update *update)
{
    bench_update of_engine = *update;

    of_engine.is_norms = 0; /* they are filled ahead as the update that follows them */
    bench_ahead_set(run, (sherdi_ahead){0});
    for (int i = 0; i < FIRST_CALLS; i++) {
        bench_update_run(run, &of_engine);
    }
    return run->backend->ahead == NULL ? (sherdi_ahead){0} : *run->backend->ahead;
}

double bench_update_bytes(const bench_arrays *arrays, const bench_update *update)
{
    const sherdi_span  span = {.count_elems = (size_t)1 << 20};
    sherdi_update_args args = args_of(arrays, update);
    size_t             bytes;

    args.spans = &span;
    bytes      = update->is_norms ? sherdi_lamb_norms_traffic_bytes(&args)
                                  : sherdi_update_bytes(update->update, &args, 1);
    return (double)bytes / (double)span.count_elems;
}

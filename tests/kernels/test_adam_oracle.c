/* AdamW and Adam (decay in the gradient) against trajectories that other people's code computed
 * in double: optimizers.json, its path in SHERD_TEST_OPTIMIZERS. The update is fp32, so a
 * parameter near 1 is off by about one rounding (6e-8) a step: 12 steps stay within 1e-6,
 * relative for what is larger. */
#include "kernels/backend.h"
#include "tests/lib/check.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#define RTOL        1e-6
#define ATOL        1e-6
#define NUM_TENSORS 2
#define BLOCK_ELEMS 128 /* tensor B starts at the second chunk */

static const size_t COUNTS[NUM_TENSORS] = {25, 12};

typedef struct oracle {
    json_t *root;
    int     seed;
    int     steps;
    double  lr, beta1, beta2, eps, weight_decay;
} oracle;

static oracle oracle_load(void)
{
    const char  *path = getenv("SHERD_TEST_OPTIMIZERS");
    oracle       all  = {0};
    json_error_t error;

    if (path == NULL) {
        test_skip("SHERD_TEST_OPTIMIZERS does not say where optimizers.json is");
    }
    all.root = json_load_file(path, 0, &error);
    CHECK(all.root != NULL);
    CHECK_INT(0, json_unpack_ex(all.root, &error, 0, "{s:i, s:i, s:F, s:[F, F], s:F, s:F}", "seed",
                                &all.seed, "steps", &all.steps, "lr", &all.lr, "betas", &all.beta1,
                                &all.beta2, "eps", &all.eps, "weight_decay", &all.weight_decay));
    return all;
}

/* The inputs: "r" of the file. */
static double oracle_random(int stream, size_t index)
{
    uint64_t state = ((uint64_t)stream << 32) + index;

    return 2.0 * (double)(test_random(&state) >> 11) / 0x1p53 - 1.0;
}

static float oracle_gradient(const oracle *all, int step, int tensor, size_t index)
{
    double scale = pow(10.0, 2.0 * oracle_random(all->seed + 1000 + tensor, index));

    return (float)(oracle_random(all->seed + 10 * step + tensor, index) * scale);
}

static sherdi_adam_coeffs coeffs_at(const oracle *all, int step, int is_decoupled)
{
    return (sherdi_adam_coeffs){
        .grad_scale      = 1.0f,
        .beta1           = (float)all->beta1,
        .one_minus_beta1 = (float)(1.0 - all->beta1),
        .beta2           = (float)all->beta2,
        .one_minus_beta2 = (float)(1.0 - all->beta2),
        .eps             = (float)all->eps,
        .neg_lr_decay    = is_decoupled ? (float)(-all->lr * all->weight_decay) : 0.0f,
        .l2_decay        = is_decoupled ? 0.0f : (float)all->weight_decay,
        .neg_step_size   = (float)(-all->lr / (1.0 - pow(all->beta1, step))),
        .inv_sqrt_bias   = (float)(1.0 / sqrt(1.0 - pow(all->beta2, step))),
    };
}

static void tensors_check(const oracle *all, const char *name, const char *when, const float *got)
{
    const json_t *tensors =
        json_object_get(json_object_get(json_object_get(all->root, "cases"), name), when);

    CHECK_INT(NUM_TENSORS, json_array_size(tensors));
    for (size_t k = 0; k < NUM_TENSORS; k++) {
        const json_t *values = json_array_get(tensors, k);
        float         want[64];

        CHECK_INT(COUNTS[k], json_array_size(values));
        for (size_t i = 0; i < COUNTS[k]; i++) {
            want[i] = (float)json_real_value(json_array_get(values, i));
        }
        CHECK_CLOSE_F32(got + k * SHERD_CHUNK_ELEMS, want, COUNTS[k], RTOL, ATOL);
    }
}

static void trajectory_follow(const oracle *all, const char *name, const char *isa,
                              int is_decoupled)
{
    sherdi_backend backend = {.name = "cpu", .kernels = sherdi_kernels_cpu_find(isa), .threads = 1};
    sherdi_span    spans[NUM_TENSORS];
    float          grad[BLOCK_ELEMS]   = {0};
    float          master[BLOCK_ELEMS] = {0};
    float          m[BLOCK_ELEMS]      = {0};
    float          v[BLOCK_ELEMS]      = {0};

    for (size_t k = 0; k < NUM_TENSORS; k++) {
        spans[k] = (sherdi_span){.offset_elems = k * SHERD_CHUNK_ELEMS, .count_elems = COUNTS[k]};
        for (size_t i = 0; i < COUNTS[k]; i++) {
            master[spans[k].offset_elems + i] = (float)oracle_random(all->seed + (int)k, i);
        }
    }
    for (int step = 1; step <= all->steps; step++) {
        uint64_t           fingerprint = 0;
        sherdi_adam_coeffs coeffs      = coeffs_at(all, step, is_decoupled);
        sherdi_adam_args   args        = {.spans       = spans,
                                          .num_spans   = NUM_TENSORS,
                                          .coeffs      = &coeffs,
                                          .grad        = grad,
                                          .grad_dtype  = SHERD_F32,
                                          .master      = master,
                                          .m           = m,
                                          .v           = v,
                                          .fingerprint = &fingerprint};

        for (size_t k = 0; k < NUM_TENSORS; k++) {
            for (size_t i = 0; i < COUNTS[k]; i++) {
                grad[spans[k].offset_elems + i] = oracle_gradient(all, step, (int)k, i);
            }
        }
        backend.kernels->adam(&backend, &args);
        if (step == 1) {
            tensors_check(all, name, "first", master);
        }
    }
    tensors_check(all, name, "last", master);
}

static void every_isa_follows(const char *name, int is_decoupled)
{
    static const char *const ISAS[] = {"scalar", "avx2", "avx512"};
    oracle                   all    = oracle_load();

    for (size_t i = 0; i < 3; i++) {
        if (sherdi_kernels_cpu_find(ISAS[i]) != NULL) {
            trajectory_follow(&all, name, ISAS[i], is_decoupled);
        }
    }
    json_decref(all.root);
}

static void adamw_follows_the_trajectory(void)
{
    every_isa_follows("adamw", 1);
}

static void adam_with_decay_in_the_gradient_follows_the_trajectory(void)
{
    every_isa_follows("adam_l2", 0);
}

static const test_case CASES[] = {
    CASE(adamw_follows_the_trajectory),
    CASE(adam_with_decay_in_the_gradient_follows_the_trajectory),
};

RUN_MAIN(CASES)

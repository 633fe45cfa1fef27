/* The optimizers against trajectories that other people's code computed in double: optimizers.json,
 * its path in SHERD_TEST_OPTIMIZERS. The update is fp32, so a parameter near 1 is off by about one
 * rounding (6e-8) a step: 12 steps stay within 1e-6, relative for what is larger. LAMB's trust
 * ratio and direction have roundings of their own, but relative ones of a step that is some
 * hundredths of the parameter: they add less than one of those. Muon's iteration makes roundings of
 * its direction up to 3.4445^5 = 485 times as large, of a step of 0.01: a few of them stay within
 * these bounds, too. */
#include "kernels/backend.h"
#include "kernels/orthogonal.h"
#include "kernels/updates/updates.h"
#include "tests/lib/check.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    double  min_ratio, max_ratio; /* of LAMB */
    double  lion_betas[2];
    double  muon_momentum;
    int     muon_steps;
} oracle;

/* Both tensors and their state. */
typedef struct oracle_block {
    sherdi_span spans[NUM_TENSORS];
    float       grad[BLOCK_ELEMS];
    float       master[BLOCK_ELEMS];
    float       m[BLOCK_ELEMS];
    float       v[BLOCK_ELEMS];
} oracle_block;

/* One step with the gradients in the block. */
typedef void (*step_fn)(const sherdi_backend *backend, const oracle *all, int step,
                        oracle_block *block);

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
    CHECK_INT(0,
              json_unpack_ex(all.root, &error, 0,
                             "{s:i, s:i, s:F, s:[F, F], s:F, s:F, s:[F, F], s:[F, F], s:F, s:i}",
                             "seed", &all.seed, "steps", &all.steps, "lr", &all.lr, "betas",
                             &all.beta1, &all.beta2, "eps", &all.eps, "weight_decay",
                             &all.weight_decay, "lamb_coefficients", &all.min_ratio, &all.max_ratio,
                             "lion_betas", &all.lion_betas[0], &all.lion_betas[1], "muon_momentum",
                             &all.muon_momentum, "muon_steps", &all.muon_steps));
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
                              step_fn take_step)
{
    sherdi_backend backend = {.name = "cpu", .kernels = sherdi_kernels_cpu_find(isa), .threads = 1};
    oracle_block   block   = {.grad = {0}};

    for (size_t k = 0; k < NUM_TENSORS; k++) {
        block.spans[k] = (sherdi_span){
            .offset_elems = k * SHERD_CHUNK_ELEMS, .count_elems = COUNTS[k], .param = (int32_t)k};
        for (size_t i = 0; i < COUNTS[k]; i++) {
            block.master[block.spans[k].offset_elems + i] =
                (float)oracle_random(all->seed + (int)k, i);
        }
    }
    for (int step = 1; step <= all->steps; step++) {
        for (size_t k = 0; k < NUM_TENSORS; k++) {
            for (size_t i = 0; i < COUNTS[k]; i++) {
                block.grad[block.spans[k].offset_elems + i] = oracle_gradient(all, step, (int)k, i);
            }
        }
        take_step(&backend, all, step, &block);
        if (step == 1) {
            tensors_check(all, name, "first", block.master);
        }
    }
    tensors_check(all, name, "last", block.master);
}

static void every_isa_follows(const char *name, step_fn take_step)
{
    static const char *const ISAS[] = {"scalar", "avx2", "avx512"};
    oracle                   all    = oracle_load();

    for (size_t i = 0; i < 3; i++) {
        if (sherdi_kernels_cpu_find(ISAS[i]) != NULL) {
            trajectory_follow(&all, name, ISAS[i], take_step);
        }
    }
    json_decref(all.root);
}

/* ----------------------------------------------------------------- adam -- */

static sherdi_adam_coeffs adam_coeffs_at(const oracle *all, int step, int is_decoupled)
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

static void adam_step(const sherdi_backend *backend, const oracle *all, int step,
                      oracle_block *block, int is_decoupled)
{
    uint64_t           fingerprint = 0;
    sherdi_adam_coeffs coeffs      = adam_coeffs_at(all, step, is_decoupled);
    sherdi_update_args args        = {.spans       = block->spans,
                                      .num_spans   = NUM_TENSORS,
                                      .coeffs      = &coeffs,
                                      .grad        = block->grad,
                                      .grad_dtype  = SHERD_F32,
                                      .master      = block->master,
                                      .m           = block->m,
                                      .v           = block->v,
                                      .fingerprint = &fingerprint};

    backend->kernels->update(backend, SHERDI_UPDATE_adam, &args);
}

static void adamw_step(const sherdi_backend *backend, const oracle *all, int step,
                       oracle_block *block)
{
    adam_step(backend, all, step, block, 1);
}

static void adam_l2_step(const sherdi_backend *backend, const oracle *all, int step,
                         oracle_block *block)
{
    adam_step(backend, all, step, block, 0);
}

static void adamw_follows_the_trajectory(void)
{
    every_isa_follows("adamw", adamw_step);
}

static void adam_with_decay_in_the_gradient_follows_the_trajectory(void)
{
    every_isa_follows("adam_l2", adam_l2_step);
}

/* ----------------------------------------------------------------- lamb -- */

/* DeepSpeed's form without bias correction, which the others change in a field or two. */
static sherdi_lamb_coeffs lamb_coeffs(const oracle *all)
{
    return (sherdi_lamb_coeffs){
        .grad_scale      = 1.0f,
        .beta1           = (float)all->beta1,
        .one_minus_beta1 = (float)(1.0 - all->beta1),
        .beta2           = (float)all->beta2,
        .one_minus_beta2 = (float)(1.0 - all->beta2),
        .inv_bias1       = 1.0f,
        .inv_bias2       = 1.0f,
        .eps             = (float)all->eps,
        .decay           = (float)all->weight_decay,
        .neg_step_size   = (float)-all->lr,
        .min_ratio       = (float)all->min_ratio,
        .max_ratio       = (float)all->max_ratio,
    };
}

static void lamb_step(const sherdi_backend *backend, oracle_block *block,
                      const sherdi_lamb_coeffs *coeffs)
{
    static const int32_t   GROUPS[NUM_TENSORS] = {0, 0};
    sherdi_lamb_norms      norms[NUM_TENSORS]  = {{.param = {.nonfinite = 0}}};
    float                  ratios[NUM_TENSORS];
    uint64_t               fingerprint = 0;
    sherdi_update_args     args        = {.spans       = block->spans,
                                          .num_spans   = NUM_TENSORS,
                                          .coeffs      = coeffs,
                                          .grad        = block->grad,
                                          .grad_dtype  = SHERD_F32,
                                          .master      = block->master,
                                          .m           = block->m,
                                          .v           = block->v,
                                          .fingerprint = &fingerprint,
                                          .norms       = norms,
                                          .ratios      = ratios};
    sherdi_lamb_ratio_args ratio_args  = {.norms      = norms,
                                          .groups     = GROUPS,
                                          .coeffs     = coeffs,
                                          .ratios     = ratios,
                                          .num_params = NUM_TENSORS};

    backend->kernels->lamb_norms(backend, &args);
    backend->kernels->lamb_ratios(backend, &ratio_args);
    backend->kernels->update(backend, SHERDI_UPDATE_lamb, &args);
}

static void lamb_deepspeed_step(const sherdi_backend *backend, const oracle *all, int step,
                                oracle_block *block)
{
    sherdi_lamb_coeffs coeffs = lamb_coeffs(all);

    coeffs.neg_step_size =
        (float)(-all->lr * sqrt(1.0 - pow(all->beta2, step)) / (1.0 - pow(all->beta1, step)));
    lamb_step(backend, block, &coeffs);
}

static void lamb_uncorrected_step(const sherdi_backend *backend, const oracle *all, int step,
                                  oracle_block *block)
{
    sherdi_lamb_coeffs coeffs = lamb_coeffs(all);

    (void)step;
    lamb_step(backend, block, &coeffs);
}

static void lamb_paper_step(const sherdi_backend *backend, const oracle *all, int step,
                            oracle_block *block)
{
    sherdi_lamb_coeffs coeffs = lamb_coeffs(all);

    coeffs.inv_bias1 = (float)(1.0 / (1.0 - pow(all->beta1, step)));
    coeffs.inv_bias2 = (float)(1.0 / (1.0 - pow(all->beta2, step)));
    lamb_step(backend, block, &coeffs);
}

static void lamb_in_deepspeeds_form_follows_the_trajectory(void)
{
    every_isa_follows("lamb_deepspeed", lamb_deepspeed_step);
}

static void lamb_without_bias_correction_follows_the_trajectory(void)
{
    every_isa_follows("lamb_deepspeed_no_bias_correction", lamb_uncorrected_step);
}

static void lamb_in_the_papers_form_follows_the_trajectory(void)
{
    every_isa_follows("lamb_paper", lamb_paper_step);
}

/* --------------------------------------------------------------- others -- */

/* Coefficients as the optimizers make them of a group's numbers. */
static sherdi_group_step group_step(const oracle *all, int step)
{
    return (sherdi_group_step){
        .grad_scale = 1, .lr = all->lr, .eps = all->eps, .decay = all->weight_decay, .step = step};
}

static void update_run(const sherdi_backend *backend, sherdi_update_id update, const void *coeffs,
                       oracle_block *block)
{
    uint64_t           fingerprint = 0;
    sherdi_update_args args        = {.spans       = block->spans,
                                      .num_spans   = NUM_TENSORS,
                                      .coeffs      = coeffs,
                                      .grad        = block->grad,
                                      .grad_dtype  = SHERD_F32,
                                      .master      = block->master,
                                      .m           = block->m,
                                      .v           = block->v,
                                      .fingerprint = &fingerprint};

    backend->kernels->update(backend, update, &args);
}

static void lion_step(const sherdi_backend *backend, const oracle *all, int step,
                      oracle_block *block)
{
    sherdi_group_step  group = group_step(all, step);
    sherdi_lion_coeffs coeffs;

    group.beta1 = all->lion_betas[0];
    group.beta2 = all->lion_betas[1];
    coeffs      = sherdi_lion_coeffs_of(&group);
    update_run(backend, SHERDI_UPDATE_lion, &coeffs, block);
}

static void sgd_plain_step(const sherdi_backend *backend, const oracle *all, int step,
                           oracle_block *block)
{
    sherdi_group_step       group  = group_step(all, step);
    sherdi_sgd_plain_coeffs coeffs = sherdi_sgd_plain_coeffs_of(&group);

    update_run(backend, SHERDI_UPDATE_sgd_plain, &coeffs, block);
}

static void sgd_step(const sherdi_backend *backend, const oracle *all, int step,
                     oracle_block *block, int is_nesterov)
{
    sherdi_group_step group = group_step(all, step);
    sherdi_sgd_coeffs coeffs;

    group.beta1       = 0.9;
    group.is_nesterov = is_nesterov;
    coeffs            = sherdi_sgd_coeffs_of(&group);
    update_run(backend, SHERDI_UPDATE_sgd, &coeffs, block);
}

static void momentum_step(const sherdi_backend *backend, const oracle *all, int step,
                          oracle_block *block)
{
    sgd_step(backend, all, step, block, 0);
}

static void nesterov_step(const sherdi_backend *backend, const oracle *all, int step,
                          oracle_block *block)
{
    sgd_step(backend, all, step, block, 1);
}

static void adagrad_step(const sherdi_backend *backend, const oracle *all, int step,
                         oracle_block *block)
{
    sherdi_group_step     group  = group_step(all, step);
    sherdi_adagrad_coeffs coeffs = sherdi_adagrad_coeffs_of(&group);

    update_run(backend, SHERDI_UPDATE_adagrad, &coeffs, block);
}

static void sgd_follows_the_trajectory(void)
{
    every_isa_follows("sgd", sgd_plain_step);
}

static void sgd_with_momentum_follows_the_trajectory(void)
{
    every_isa_follows("sgd_momentum", momentum_step);
}

static void sgd_with_nesterovs_momentum_follows_the_trajectory(void)
{
    every_isa_follows("sgd_nesterov", nesterov_step);
}

static void adagrad_follows_the_trajectory(void)
{
    every_isa_follows("adagrad", adagrad_step);
}

static void lion_follows_the_trajectory(void)
{
    every_isa_follows("lion", lion_step);
}

/* ----------------------------------------------------------------- muon -- */

/* In place. */
static void direction_make_orthogonal(const sherdi_backend *backend, const oracle *all, float *x,
                                      size_t rows, size_t cols, int matches_rms)
{
    size_t bytes   = sherdi_orthogonal_workspace_bytes(rows, cols);
    double longest = (double)(rows > cols ? rows : cols);
    void  *space   = aligned_alloc(SHERD_ALIGN_BYTES, bytes);

    CHECK(space != NULL);
    sherdi_orthogonal(backend, &(sherdi_orthogonal_args){
                                   .dst       = x,
                                   .src       = x,
                                   .rows      = rows,
                                   .cols      = cols,
                                   .steps     = all->muon_steps,
                                   .scale     = (float)(matches_rms ? 0.2 * sqrt(longest)
                                                                    : sqrt(longest / (double)cols)),
                                   .workspace = space});
    free(space);
}

/* The second tensor is a matrix of `rows`. Nesterov's momentum goes with the rate "original", no
 * such with the other. */
static void muon_step(const sherdi_backend *backend, const oracle *all, int step,
                      oracle_block *block, int is_nesterov, size_t rows)
{
    float                        direction[BLOCK_ELEMS] = {0};
    sherdi_group_step            group                  = group_step(all, step);
    sherdi_muon_direction_coeffs blend;
    sherdi_muon_coeffs           coeffs;
    sherdi_update_args           args = {.spans      = block->spans,
                                         .num_spans  = NUM_TENSORS,
                                         .coeffs     = &blend,
                                         .grad       = block->grad,
                                         .grad_dtype = SHERD_F32,
                                         .parts      = {direction, block->m}};

    group.beta1       = all->muon_momentum;
    group.is_nesterov = is_nesterov;
    blend             = sherdi_muon_direction_coeffs_of(&group);
    coeffs            = sherdi_muon_coeffs_of(&group);
    backend->kernels->update(backend, SHERDI_UPDATE_muon_direction, &args);
    direction_make_orthogonal(backend, all, direction, 5, 5, !is_nesterov);
    direction_make_orthogonal(backend, all, direction + SHERD_CHUNK_ELEMS, rows, COUNTS[1] / rows,
                              !is_nesterov);
    args.coeffs = &coeffs;
    args.grad   = direction;
    args.master = block->master;
    args.m      = NULL;
    backend->kernels->update(backend, SHERDI_UPDATE_muon, &args);
}

static void muon_wide_step(const sherdi_backend *backend, const oracle *all, int step,
                           oracle_block *block)
{
    muon_step(backend, all, step, block, 1, 3);
}

static void muon_tall_step(const sherdi_backend *backend, const oracle *all, int step,
                           oracle_block *block)
{
    muon_step(backend, all, step, block, 1, 4);
}

static void muon_plain_wide_step(const sherdi_backend *backend, const oracle *all, int step,
                                 oracle_block *block)
{
    muon_step(backend, all, step, block, 0, 3);
}

static void muon_plain_tall_step(const sherdi_backend *backend, const oracle *all, int step,
                                 oracle_block *block)
{
    muon_step(backend, all, step, block, 0, 4);
}

static void muon_follows_the_trajectory(void)
{
    every_isa_follows("muon_wide", muon_wide_step);
    every_isa_follows("muon_tall", muon_tall_step);
}

static void muon_without_nesterovs_momentum_follows_the_trajectory(void)
{
    every_isa_follows("muon_without_nesterov_wide", muon_plain_wide_step);
    every_isa_follows("muon_without_nesterov_tall", muon_plain_tall_step);
}

/* ------------------------------------------------------------------ all -- */

/* Under the name of the row, or under that name and a form of it (sgd_momentum). */
static void every_elementwise_optimizer_has_a_trajectory(void)
{
#define SHERDI_ELEMENTWISE(table, type, update, fields) #table,
    static const char *const NAMES[] = {
#include "kernels/updates/rows.h"
    };
    oracle        all   = oracle_load();
    json_t       *cases = json_object_get(all.root, "cases");
    const char   *key;
    const json_t *ignored;

    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        size_t len = strlen(NAMES[i]);
        int    has = 0;

        json_object_foreach(cases, key, ignored)
        {
            has |= strncmp(key, NAMES[i], len) == 0 && (key[len] == '\0' || key[len] == '_');
        }
        if (!has) {
            test_fail(__FILE__, __LINE__, "optimizers.json has no trajectory of %s", NAMES[i]);
        }
    }
    json_decref(all.root);
}

static const test_case CASES[] = {
    CASE(every_elementwise_optimizer_has_a_trajectory),
    CASE(adamw_follows_the_trajectory),
    CASE(adam_with_decay_in_the_gradient_follows_the_trajectory),
    CASE(lamb_in_deepspeeds_form_follows_the_trajectory),
    CASE(lamb_without_bias_correction_follows_the_trajectory),
    CASE(lamb_in_the_papers_form_follows_the_trajectory),
    CASE(lion_follows_the_trajectory),
    CASE(sgd_follows_the_trajectory),
    CASE(sgd_with_momentum_follows_the_trajectory),
    CASE(sgd_with_nesterovs_momentum_follows_the_trajectory),
    CASE(adagrad_follows_the_trajectory),
    CASE(muon_follows_the_trajectory),
    CASE(muon_without_nesterovs_momentum_follows_the_trajectory),
};

RUN_MAIN(CASES)

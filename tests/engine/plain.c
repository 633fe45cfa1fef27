/* See plain.h. */
#include "tests/engine/plain.h"

#include "kernels/formulas.h"
#include "kernels/orthogonal.h"
#include "kernels/product.h"
#include "tests/engine/elements.h"
#include "tests/lib/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void plain_param_init(plain_param *param, size_t elems)
{
    float *all = calloc(5 * elems, sizeof(*all));

    CHECK(all != NULL);
    *param = (plain_param){.elems  = elems,
                           .master = all,
                           .m      = all + elems,
                           .v      = all + 2 * elems,
                           .weight = all + 3 * elems,
                           .grad   = all + 4 * elems};
}

void plain_param_fini(plain_param *param)
{
    free(param->master);
    *param = (plain_param){0};
}

float plain_round(float value, sherd_dtype dtype)
{
    float rounded;

    store(&rounded, 0, dtype, value);
    return load(&rounded, 0, dtype);
}

float plain_mean(const float *g, int world_size, sherd_dtype comm)
{
    float sum = g[0]; /* world_size is at least 1 */

    for (int r = 1; r < world_size; r++) {
        sum += g[r];
    }
    return plain_round(sum * (float)(1.0 / world_size), comm);
}

int plain_fixed_shift(int global_batch)
{
    int shift = 50;

    while ((1 << (50 - shift)) < global_batch) {
        shift--;
    }
    return shift;
}

/* Rounds the quotient first, as docs/numerics.md says; llrint rounds to nearest even. */
int64_t plain_fixed(float g, float loss_scale, int shift, double factor)
{
    return llrint((double)g * (ldexp(1, shift) / (double)loss_scale * factor));
}

/* Adds to the norm exactly, chunk by chunk, as docs/numerics.md says. */
static void norm_add(sherdi_norm_acc *acc, const float *values, size_t elems)
{
    for (size_t at = 0; at < elems; at += SHERD_CHUNK_ELEMS) {
        float  chunk[SHERD_CHUNK_ELEMS] = {0};
        size_t count = elems - at < SHERD_CHUNK_ELEMS ? elems - at : SHERD_CHUNK_ELEMS;

        memcpy(chunk, values + at, count * sizeof(float));
        sherdi_norm_add(acc, sherdi_norm_chunk(chunk));
    }
}

double plain_sumsq(const plain_param *params, size_t num_params)
{
    sherdi_norm_acc acc;

    memset(&acc, 0, sizeof(acc));
    for (size_t p = 0; p < num_params; p++) {
        if (!params[p].is_frozen) {
            norm_add(&acc, params[p].grad, params[p].elems);
        }
    }
    return sherdi_norm_value(&acc);
}

static void update_adam(plain_param *param, const plain_rule *rule, double scale, int t)
{
    int   is_l2 = rule->kind == PLAIN_ADAM;
    float l2    = is_l2 ? (float)param->decay : 0;
    float decay = is_l2 ? 0 : (float)(-param->lr * param->decay);
    float b1 = (float)rule->beta1, c1 = (float)(1 - rule->beta1);
    float b2 = (float)rule->beta2, c2 = (float)(1 - rule->beta2);
    float step_size = (float)(-param->lr / (1 - pow(rule->beta1, t)));
    float inv_root  = (float)(1 / sqrt(1 - pow(rule->beta2, t)));

    for (size_t i = 0; i < param->elems; i++) {
        float g = param->grad[i] * (float)scale;
        float w = param->master[i];

        g           = fmaf(l2, w, g);
        w           = fmaf(decay, w, w);
        param->m[i] = fmaf(b1, param->m[i], c1 * g);
        param->v[i] = fmaf(c2 * g, g, b2 * param->v[i]);
        w = fmaf(step_size, param->m[i] / fmaf(sqrtf(param->v[i]), inv_root, (float)rule->eps), w);
        param->master[i] = w;
    }
}

static double norm_of(const float *values, size_t elems)
{
    sherdi_norm_acc acc = {0};

    norm_add(&acc, values, elems);
    return sqrt(sherdi_norm_value(&acc));
}

static void update_lamb(plain_param *param, const plain_rule *rule, double scale, int t)
{
    int    is_paper = rule->kind == PLAIN_LAMB_PAPER;
    float  decay    = (float)param->decay;
    double bias1 = 1 - pow(rule->beta1, t), bias2 = 1 - pow(rule->beta2, t);
    float  b1 = (float)rule->beta1, c1 = (float)(1 - rule->beta1);
    float  b2 = (float)rule->beta2, c2 = (float)(1 - rule->beta2);
    float  step  = (float)-(is_paper ? param->lr : param->lr * sqrt(bias2) / bias1);
    float  fix1  = is_paper ? (float)(1 / bias1) : 1;
    float  fix2  = is_paper ? (float)(1 / bias2) : 1;
    double ratio = 1;
    double norm_w, norm_u;
    float *u = calloc(param->elems + 1, sizeof(*u));

    CHECK(u != NULL);
    for (size_t i = 0; i < param->elems; i++) {
        float g = param->grad[i] * (float)scale;

        param->m[i] = fmaf(b1, param->m[i], c1 * g);
        param->v[i] = fmaf(c2 * g, g, b2 * param->v[i]);
        u[i]        = fmaf(decay, param->master[i],
                           (param->m[i] * fix1) / (sqrtf(fix2 * param->v[i]) + (float)rule->eps));
    }
    norm_w = norm_of(param->master, param->elems);
    norm_u = norm_of(u, param->elems);
    if (norm_w != 0 && norm_u != 0 && !param->has_no_ratio) {
        ratio = fmin(fmax(norm_w / norm_u, (double)0.01f), (float)rule->max_coeff);
    }
    for (size_t i = 0; i < param->elems; i++) {
        param->master[i] = fmaf(step * (float)ratio, u[i], param->master[i]);
    }
    free(u);
}

static void update_lion(plain_param *param, const plain_rule *rule, double scale, int t)
{
    float decay = (float)(-param->lr * param->decay);
    float b1 = (float)rule->beta1, c1 = (float)(1 - rule->beta1);
    float b2 = (float)rule->beta2, c2 = (float)(1 - rule->beta2);

    (void)t;
    for (size_t i = 0; i < param->elems; i++) {
        float g     = param->grad[i] * (float)scale;
        float w     = fmaf(decay, param->master[i], param->master[i]);
        float blend = fmaf(b1, param->m[i], c1 * g);
        float sign  = blend > 0 ? 1.0f : blend < 0 ? -1.0f : blend;

        param->m[i]      = fmaf(b2, param->m[i], c2 * g);
        param->master[i] = fmaf((float)-param->lr, sign, w);
    }
}

static void update_sgd(plain_param *param, const plain_rule *rule, double scale, int t)
{
    float momentum = rule->kind == PLAIN_SGD ? 0 : 0.9f;
    float fresh    = rule->kind == PLAIN_MOMENTUM && t > 1 ? 0.5f : 1;

    for (size_t i = 0; i < param->elems; i++) {
        float w = param->master[i];
        float g = fmaf((float)param->decay, w, param->grad[i] * (float)scale);

        if (rule->kind != PLAIN_SGD) {
            param->m[i] = fmaf(momentum, param->m[i], fresh * g);
            g = rule->kind == PLAIN_NESTEROV ? fmaf(momentum, param->m[i], g) : param->m[i];
        }
        param->master[i] = fmaf((float)-param->lr, g, w);
    }
}

static void update_adagrad(plain_param *param, const plain_rule *rule, double scale, int t)
{
    float step = (float)(-param->lr / (1 + (t - 1) * 0.1));

    for (size_t i = 0; i < param->elems; i++) {
        float w = param->master[i];
        float g = fmaf((float)param->decay, w, param->grad[i] * (float)scale);

        param->m[i]      = fmaf(g, g, param->m[i]);
        param->master[i] = fmaf(step, g / (sqrtf(param->m[i] + 0.25f) + (float)rule->eps), w);
    }
}

static void muon_normalize(float *x, size_t elems)
{
    sherdi_norm_acc acc = {0};
    double          factor;

    norm_add(&acc, x, elems);
    factor = sherdi_normalize_factor(&acc, SHERDI_ORTHOGONAL_EPS);
    for (size_t i = 0; i < elems; i++) {
        x[i] = sherdi_normalize_element(x[i], factor);
    }
}

/* Makes one step, a X + (b A + c A A) X with A = X X', or the same on the transposed matrix where
 * that is smaller. */
static void muon_iterate(float *x, size_t rows, size_t cols, float scale)
{
    const float a = 3.4445f, b = -4.7750f, c = 2.0315f;
    int         is_wide = rows <= cols;
    size_t      n       = is_wide ? rows : cols;
    size_t      inner   = is_wide ? cols : rows;
    size_t      outer =
        is_wide ? cols
                     : 1; /* from one row of the smaller side to the next; `along`: inside a row */
    size_t along = is_wide ? 1 : cols;
    float *gram  = malloc(2 * n * n * sizeof(float));
    float *blend = gram + n * n;
    float *next  = malloc(rows * cols * sizeof(float));

    CHECK(gram != NULL && next != NULL);
    for (size_t i = 0; i < n * n; i++) {
        gram[i] = sherdi_product_element(
            sherdi_product_sum(x + i / n * outer, along, x + i % n * outer, along, inner), 1, NULL,
            0);
    }
    for (size_t i = 0; i < n * n; i++) {
        blend[i] = sherdi_product_element(
            sherdi_product_sum(gram + i / n * n, 1, gram + i % n, n, n), c, &gram[i], b);
    }
    for (size_t i = 0; i < rows * cols; i++) {
        size_t row = i / cols, col = i % cols;
        float  sum = is_wide ? sherdi_product_sum(blend + row * n, 1, x + col, cols, n)
                             : sherdi_product_sum(x + row * cols, 1, blend + col, n, n);

        next[i] = sherdi_product_element(sum, scale, &x[i], scale * a);
    }
    memcpy(x, next, rows * cols * sizeof(float));
    free(gram);
    free(next);
}

static void update_muon(plain_param *param, const plain_rule *rule, double scale, int t)
{
    const plain_muon *muon     = &rule->muon;
    size_t            rows     = param->elems / param->cols;
    double            longest  = (double)(rows > param->cols ? rows : param->cols);
    double            ratio    = longest / (double)param->cols;
    float             factor   = (float)(muon->matches_rms ? 0.2 * sqrt(longest) : sqrt(ratio));
    float             momentum = (float)muon->momentum, fresh = (float)(1 - muon->momentum);
    float             decay = (float)(-param->lr * param->decay);
    float            *x     = param->v;

    (void)t;
    for (size_t i = 0; i < param->elems; i++) {
        float g = param->grad[i] * (float)scale;

        param->m[i] = fmaf(momentum, param->m[i], fresh * g);
        x[i]        = muon->is_nesterov ? fmaf(momentum, param->m[i], fresh * g)
                                        : fmaf(1, param->m[i], 0 * g);
    }
    muon_normalize(x, param->elems);
    for (int step = 0; step < muon->steps; step++) {
        muon_iterate(x, rows, param->cols, step + 1 == muon->steps ? factor : 1);
    }
    for (size_t i = 0; i < param->elems; i++) {
        float w = fmaf(decay, param->master[i], param->master[i]);

        param->master[i] = fmaf((float)-param->lr, x[i], w);
    }
}

static const struct {
    const char *type;
    void (*update)(plain_param *param, const plain_rule *rule, double scale, int t);
} KINDS[PLAIN_KINDS + 1] = {
    [PLAIN_ADAMW]      = {"\"AdamW\", \"params\": {", update_adam},
    [PLAIN_ADAM]       = {"\"Adam\", \"params\": {\"adam_w_mode\": false, ", update_adam},
    [PLAIN_LAMB]       = {"\"Lamb\", \"params\": {", update_lamb},
    [PLAIN_LAMB_PAPER] = {"\"Lamb\", \"params\": {\"lamb_form\": \"paper\", ", update_lamb},
    [PLAIN_LION]       = {"\"Lion\", \"params\": {", update_lion},
    [PLAIN_SGD]        = {"\"SGD\", \"params\": {", update_sgd},
    [PLAIN_MOMENTUM]   = {"\"SGD\", \"params\": {\"momentum\": 0.9, \"dampening\": 0.5, ",
                          update_sgd},
    [PLAIN_NESTEROV]   = {"\"SGD\", \"params\": {\"momentum\": 0.9, \"nesterov\": true, ",
                          update_sgd},
    [PLAIN_ADAGRAD]    = {"\"Adagrad\", \"params\": {\"lr_decay\": 0.1, "
                             "\"initial_accumulator_value\": 0.25, ",
                          update_adagrad},
    [PLAIN_MUON]       = {"\"Muon\", \"params\": {", update_muon},
};

const char *plain_type(plain_kind kind)
{
    return KINDS[kind].type;
}

void plain_update(plain_param *param, const plain_rule *rule, double scale, int t)
{
    KINDS[rule->kind].update(param, rule, scale, t);
    for (size_t i = 0; i < param->elems; i++) {
        param->weight[i] = plain_round(param->master[i], param->dtype);
    }
}

uint64_t plain_param_fingerprint(const plain_param *params, size_t p)
{
    const float *values = params[p].is_frozen ? params[p].weight : params[p].master;
    uint64_t     index  = 0;
    uint64_t     sum    = 0;

    for (size_t before = 0; before < p; before++) {
        index += params[before].elems;
    }
    for (size_t i = 0; i < params[p].elems; i++) {
        sum += sherdi_mix_element(index + i, values[i]);
    }
    return sum;
}

uint64_t plain_fingerprint(const plain_param *params, size_t num_params)
{
    uint64_t sum = 0;

    for (size_t p = 0; p < num_params; p++) {
        sum += plain_param_fingerprint(params, p);
    }
    return sum;
}

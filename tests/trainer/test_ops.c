/* Every operation of the trainer: its backward against differences of its forward, its bits under
 * another number of threads, the rows of wide vectors against the plain ones. */
#include "tests/lib/check.h"

#include "trainer/compute.h"
#include "trainer/gemm.h"
#include "models/onednn.h"
#include "trainer/rows.h"
#include "kernels/formulas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sizes with remainders everywhere: 3 sequences of 13, heads of 6 and 2, tiles and chunks cut. */
#define BATCH    3
#define LENGTH   13
#define ROWS     (BATCH * LENGTH)
#define HEADS    6
#define KV_HEADS 2
#define WIDTH    10
#define HIDDEN   (HEADS * WIDTH)
#define OUT      75

#define VOCAB 61

typedef struct bench {
    pool              *threads;
    compute           *c;
    const compute_ops *ops;
} bench;

static bench bench_of(int threads, compute_limits limits)
{
    bench          b      = {.threads = pool_create(threads)};
    compute_params params = {.limits = limits, .threads = b.threads};
    char           why[256];

    CHECK(b.threads != NULL);
    b.c = compute_create(&params, why, sizeof(why));
    CHECK(b.c != NULL);
    b.ops = b.c->ops;
    return b;
}

static bench bench_open(int threads, sherd_dtype dtype)
{
    return bench_of(threads, (compute_limits){.batch  = BATCH,
                                              .length = LENGTH,
                                              .hidden = HIDDEN,
                                              .inner  = OUT,
                                              .heads  = HEADS,
                                              .vocab  = VOCAB,
                                              .dtype  = dtype});
}

/* What a case has allocated; freed when it closes its bench. */
static void  *kept[4096];
static size_t num_kept;

static void *keep(void *memory)
{
    CHECK(memory != NULL && num_kept < sizeof(kept) / sizeof(kept[0]));
    kept[num_kept++] = memory;
    return memory;
}

static void kept_free(void)
{
    while (num_kept > 0) {
        free(kept[--num_kept]);
    }
}

static void bench_close(bench *b)
{
    compute_destroy(b->c);
    pool_destroy(b->threads);
    kept_free();
}

static float *randoms(size_t count, uint64_t seed, float scale)
{
    float *x = keep(malloc(count * sizeof(*x)));

    for (size_t i = 0; i < count; i++) {
        x[i] = scale * test_random_float(&seed);
    }
    return x;
}

static float *zeros(size_t count)
{
    return keep(calloc(count, sizeof(float)));
}

static tensor f32(float *data, float *grad)
{
    return (tensor){.data = data, .grad = grad, .dtype = SHERD_F32};
}

/* sum(weights[i] * y[i]): the value whose gradient is taken. */
static double weigh(const float *weights, const float *y, size_t count)
{
    double sum = 0.0;

    for (size_t i = 0; i < count; i++) {
        sum += (double)weights[i] * (double)y[i];
    }
    return sum;
}

/* Central differences of `value` by `input` against `grad`. In fp32 with steps of 1/128 they are
 * good to about 1e-3 of the typical entry. */
static void differences_check(float *input, const float *grad, size_t count,
                              double (*value)(void *ctx), void *ctx)
{
    const float step    = 0x1p-7f;
    double      typical = 0.0;

    for (size_t i = 0; i < count; i++) {
        typical += (double)grad[i] * (double)grad[i] / (double)count;
    }
    typical = sqrt(typical) + 1e-6;
    for (size_t i = 0; i < count; i += 1 + count / 300) {
        float  kept = input[i];
        double up, down, want;

        input[i] = kept + step;
        up       = value(ctx);
        input[i] = kept - step;
        down     = value(ctx);
        input[i] = kept;
        want     = (up - down) / (2.0 * (double)step);
        if (!(fabs(want - (double)grad[i]) <= 4e-3 * (typical + fabs(want)))) {
            test_fail(__FILE__, __LINE__, "gradient [%zu of %zu] is %g, differences say %g", i,
                      count, (double)grad[i], want);
        }
    }
}

/* ---------------------------------------------------------------- linear -- */

typedef struct linear_case {
    bench       b;
    linear_args args;
    float      *dy;
} linear_case;

static double linear_value(void *ctx)
{
    linear_case *c = ctx;

    c->b.ops->linear(c->b.c, &c->args);
    return weigh(c->dy, c->args.y, c->args.shape.rows * c->args.shape.out);
}

static void linear_back_matches_differences(void)
{
    float      *x = randoms(ROWS * HIDDEN, 1, 1.0f), *residual = randoms(ROWS * OUT, 4, 1.0f);
    float      *dx = zeros(ROWS * HIDDEN), *dw = zeros(OUT * HIDDEN), *dbias = zeros(OUT);
    tensor      weight = f32(randoms(OUT * HIDDEN, 2, 0.5f), dw);
    tensor      bias   = f32(randoms(OUT, 3, 1.0f), dbias);
    linear_case c      = {.b    = bench_open(2, SHERD_F32),
                          .args = {.shape    = {.rows = ROWS, .in = HIDDEN, .out = OUT},
                                   .x        = x,
                                   .weight   = weight,
                                   .bias     = bias,
                                   .residual = residual,
                                   .y        = zeros(ROWS * OUT)},
                          .dy   = randoms(ROWS * OUT, 5, 1.0f)};

    c.b.ops->linear_back(
        c.b.c,
        &(linear_back_args){
            .shape = c.args.shape, .x = x, .dy = c.dy, .weight = weight, .bias = bias, .dx = dx});
    differences_check(x, dx, ROWS * HIDDEN, linear_value, &c);
    differences_check(weight.data, dw, OUT * HIDDEN, linear_value, &c);
    differences_check(bias.data, dbias, OUT, linear_value, &c);
    differences_check(residual, c.dy, ROWS * OUT, linear_value, &c);
    bench_close(&c.b);
}

static void linear_adds_to_a_residual_in_place(void)
{
    bench       b        = bench_open(1, SHERD_F32);
    float      *residual = randoms(ROWS * OUT, 3, 1.0f), *y = zeros(ROWS * OUT);
    linear_args args = {.shape    = {.rows = ROWS, .in = HIDDEN, .out = OUT},
                        .x        = randoms(ROWS * HIDDEN, 1, 1.0f),
                        .weight   = f32(randoms(OUT * HIDDEN, 2, 0.5f), NULL),
                        .residual = residual,
                        .y        = y};

    b.ops->linear(b.c, &args);
    args.y = residual;
    b.ops->linear(b.c, &args);
    CHECK_CLOSE_F32(residual, y, ROWS * OUT, 1e-5, 1e-5); /* sums in another order */
    bench_close(&b);
}

/* Matrices of bf16 and fp16 compared with the same values in fp32; gradients are added and rounded
 * to their type. `apart`: what a product may be apart by, of the root of its length. */
static void half_check(sherd_dtype type, double apart)
{
    linear_shape shape = {.rows = ROWS, .in = HIDDEN, .out = OUT};
    bench        b     = bench_open(2, type);
    float       *x = randoms(ROWS * HIDDEN, 1, 1.0f), *dy = randoms(ROWS * OUT, 2, 1.0f);
    float       *full = randoms(OUT * HIDDEN, 3, 0.5f), *dfull = zeros(OUT * HIDDEN);
    uint16_t    *half = keep(calloc(OUT * HIDDEN, 2)), *dhalf = keep(calloc(OUT * HIDDEN, 2));
    float       *y[2]  = {zeros(ROWS * OUT), zeros(ROWS * OUT)};
    float       *dx[2] = {zeros(ROWS * HIDDEN), zeros(ROWS * HIDDEN)};
    double       step  = type == SHERD_BF16 ? 0x1p-8 : 0x1p-11;
    tensor       weights[2];

    for (size_t i = 0; i < OUT * HIDDEN; i++) {
        half[i] = type == SHERD_BF16 ? sherdi_cast_f32_bf16(full[i]) : sherdi_cast_f32_f16(full[i]);
        full[i] = type == SHERD_BF16 ? sherdi_cast_bf16_f32(half[i]) : sherdi_cast_f16_f32(half[i]);
    }
    weights[0] = f32(full, dfull);
    weights[1] = (tensor){.data = half, .grad = dhalf, .dtype = type};
    for (int k = 0; k < 2; k++) {
        b.ops->linear(b.c, &(linear_args){.shape = shape, .x = x, .weight = weights[k], .y = y[k]});
        b.ops->linear_back(
            b.c, &(linear_back_args){
                     .shape = shape, .x = x, .dy = dy, .weight = weights[k], .dx = dx[k]});
    }
    CHECK_CLOSE_F32(y[1], y[0], ROWS * OUT, apart, apart * sqrt(HIDDEN));
    CHECK_CLOSE_F32(dx[1], dx[0], ROWS * HIDDEN, apart, apart * sqrt(OUT));
    for (size_t i = 0; i < OUT * HIDDEN; i++) {
        full[i] =
            type == SHERD_BF16 ? sherdi_cast_bf16_f32(dhalf[i]) : sherdi_cast_f16_f32(dhalf[i]);
    }
    CHECK_CLOSE_F32(full, dfull, OUT * HIDDEN, step, apart * sqrt(ROWS));
    bench_close(&b);
}

/* Strides may choose another kernel of fp32. Where the CPU multiplies bf16, the other operand is
 * rounded to it too. */
static void linear_of_half_types_matches_fp32(void)
{
    const double widened[ONEDNN_LEVELS] = {[ONEDNN_NONE] = 1.0};
    double       own[ONEDNN_LEVELS]     = {0};

    own[onednn_open()->own_level] = 1.0;
    onednn_settle(widened);
    half_check(SHERD_BF16, 1e-5);
    half_check(SHERD_F16, 1e-5);
    onednn_settle(own);
    half_check(SHERD_F16, 1e-5);
    half_check(SHERD_BF16, 0x1p-8);
}

/* ------------------------------------------------------------ embedding -- */

static void embedding_back_sums_every_use_of_a_token(void)
{
    bench    b = bench_open(2, SHERD_F32);
    int32_t  ids[ROWS];
    uint64_t seed   = 9;
    float   *tokens = randoms(7 * HIDDEN, 1, 1.0f), *positions = randoms(LENGTH * HIDDEN, 2, 1.0f);
    float   *dtokens = zeros(7 * HIDDEN), *dpositions = zeros(LENGTH * HIDDEN);
    float   *want_tokens = zeros(7 * HIDDEN), *want_positions = zeros(LENGTH * HIDDEN);
    float   *y = zeros(ROWS * HIDDEN), *dy = randoms(ROWS * HIDDEN, 3, 1.0f);
    tensor   token_table    = f32(tokens, dtokens);
    tensor   position_table = f32(positions, dpositions);

    for (size_t r = 0; r < ROWS; r++) {
        ids[r] = (int32_t)(test_random(&seed) % 6); /* token 6 never comes */
    }
    b.ops->batch_set(b.c, ids, NULL);
    b.ops->embed(b.c, token_table, position_table, y);
    b.ops->embed_back(b.c, dy, token_table, position_table);
    for (size_t r = 0; r < ROWS; r++) {
        for (size_t i = 0; i < HIDDEN; i++) {
            size_t token = (size_t)ids[r] * HIDDEN + i, position = r % LENGTH * HIDDEN + i;
            float  want = tokens[token] + positions[position];

            CHECK_CLOSE_F32(&y[r * HIDDEN + i], &want, 1, 0.0, 0.0);
            want_tokens[token] += dy[r * HIDDEN + i];
            want_positions[position] += dy[r * HIDDEN + i];
        }
    }
    CHECK_BYTES_EQUAL(want_tokens, dtokens, 7 * HIDDEN * sizeof(float));
    CHECK_BYTES_EQUAL(want_positions, dpositions, LENGTH * HIDDEN * sizeof(float));
    bench_close(&b);
}

/* ---------------------------------------------------------------- norms -- */

typedef struct norm_case {
    bench     b;
    norm_rows args;
    float    *y, *dy;
} norm_case;

static double norm_value(void *ctx)
{
    norm_case *c = ctx;

    c->b.ops->norm(c->b.c, &c->args, c->y);
    return weigh(c->dy, c->y, c->args.rows * c->args.width);
}

static void norm_check(size_t rows, size_t width, int has_bias)
{
    float    *x = randoms(rows * width, 1, 1.0f), *w = randoms(width, 2, 1.0f);
    float    *bias = has_bias ? randoms(width, 3, 1.0f) : NULL;
    float    *dx = zeros(rows * width), *dw = zeros(width), *dbias = zeros(width);
    norm_case c = {.b    = bench_open(2, SHERD_F32),
                   .args = {.rows   = rows,
                            .width  = width,
                            .eps    = has_bias ? 1e-5f : 1e-6f,
                            .x      = x,
                            .weight = f32(w, dw),
                            .bias   = f32(bias, dbias)},
                   .y    = zeros(rows * width),
                   .dy   = randoms(rows * width, 4, 1.0f)};

    c.b.ops->norm_back(c.b.c, &c.args, c.dy, dx, 0);
    differences_check(x, dx, rows * width, norm_value, &c);
    differences_check(w, dw, width, norm_value, &c);
    if (has_bias) {
        differences_check(bias, dbias, width, norm_value, &c);
    }
    bench_close(&c.b);
}

static void layer_norm_back_matches_differences(void)
{
    norm_check(ROWS, HIDDEN, 1);
}

static void rms_norm_back_matches_differences(void)
{
    norm_check(ROWS, HIDDEN, 0);
    norm_check(ROWS * HEADS, WIDTH, 0);
}

/* ---------------------------------------------------- rotary, attention -- */

static void rotation_is_undone_by_its_inverse(void)
{
    bench     b = bench_open(2, SHERD_F32);
    float     cosines[LENGTH * WIDTH / 2], sines[LENGTH * WIDTH / 2];
    float    *x = randoms(ROWS * HIDDEN, 1, 1.0f), *kept = zeros(ROWS * HIDDEN);
    rope_args args = {.width   = WIDTH,
                      .cosines = cosines,
                      .sines   = sines,
                      .parts   = {{.heads = HEADS, .x = x, .y = x, .dy = x, .dx = x}}};

    memcpy(kept, x, ROWS * HIDDEN * sizeof(*x));
    compute_rotate_tables(LENGTH, WIDTH, &(arch_rope){.theta = 1e6}, cosines, sines);
    b.ops->rope(b.c, &args);
    CHECK_CLOSE_F32(x, kept, WIDTH, 0.0, 0.0); /* time 0 does not turn */
    CHECK(fabsf(x[HIDDEN] - (kept[HIDDEN] * cosf(1.0f) - kept[HIDDEN + WIDTH / 2] * sinf(1.0f))) <
          1e-6f);
    b.ops->rope_back(b.c, &args);
    CHECK_CLOSE_F32(x, kept, ROWS * HIDDEN, 0.0, 1e-6);
    bench_close(&b);
}

typedef struct attention_case {
    bench      b;
    heads_args args;
    float     *q, *k, *v, *y, *dy, *log_sums;
} attention_case;

static double attention_value(void *ctx)
{
    attention_case *c = ctx;

    c->b.ops->attention(c->b.c, &c->args, c->y, c->log_sums);
    return weigh(c->dy, c->y, c->args.batch * c->args.length * c->args.heads * c->args.width);
}

static attention_case attention_open(void)
{
    attention_case c = {.b        = bench_open(2, SHERD_F32),
                        .q        = randoms(ROWS * HIDDEN, 1, 1.5f),
                        .k        = randoms(ROWS * KV_HEADS * WIDTH, 2, 1.5f),
                        .v        = randoms(ROWS * KV_HEADS * WIDTH, 3, 1.0f),
                        .y        = zeros(ROWS * HIDDEN),
                        .dy       = randoms(ROWS * HIDDEN, 4, 1.0f),
                        .log_sums = zeros(ROWS * HEADS)};

    c.args = (heads_args){.batch     = BATCH,
                          .length    = LENGTH,
                          .heads     = HEADS,
                          .kv_heads  = KV_HEADS,
                          .width     = WIDTH,
                          .q_stride  = HIDDEN,
                          .kv_stride = KV_HEADS * WIDTH,
                          .q         = c.q,
                          .k         = c.k,
                          .v         = c.v};
    return c;
}

static void attention_back_matches_differences(void)
{
    attention_case c  = attention_open();
    float         *dq = zeros(ROWS * HIDDEN);
    float         *dk = zeros(ROWS * KV_HEADS * WIDTH), *dv = zeros(ROWS * KV_HEADS * WIDTH);

    (void)attention_value(&c);
    c.b.ops->attention_back(c.b.c, &c.args, c.y, c.dy, c.log_sums, dq, dk, dv);
    differences_check(c.q, dq, ROWS * HIDDEN, attention_value, &c);
    differences_check(c.k, dk, ROWS * KV_HEADS * WIDTH, attention_value, &c);
    differences_check(c.v, dv, ROWS * KV_HEADS * WIDTH, attention_value, &c);
    bench_close(&c.b);
}

/* Token t sees nothing after it, and nothing of another sequence. */
static void attention_does_not_see_the_future(void)
{
    attention_case c    = attention_open();
    float         *kept = zeros(ROWS * HIDDEN);
    size_t         t    = LENGTH + 4; /* of the second sequence */

    (void)attention_value(&c);
    memcpy(kept, c.y, ROWS * HIDDEN * sizeof(float));
    for (size_t i = 0; i < KV_HEADS * WIDTH; i++) {
        c.k[t * KV_HEADS * WIDTH + i] += 1.0f;
        c.v[t * KV_HEADS * WIDTH + i] -= 1.0f;
    }
    (void)attention_value(&c);
    CHECK_BYTES_EQUAL(kept, c.y, t * HIDDEN * sizeof(float));
    CHECK(memcmp(kept + t * HIDDEN, c.y + t * HIDDEN, HIDDEN * sizeof(float)) != 0);
    CHECK_BYTES_EQUAL(kept + 2 * LENGTH * HIDDEN, c.y + 2 * LENGTH * HIDDEN,
                      LENGTH * HIDDEN * sizeof(float));
    bench_close(&c.b);
}

/* More queries than are taken at once give what one block at a time gives. */
static void attention_of_several_blocks_matches_its_plain_form(void)
{
    enum { LONG = 150, W = 6 };
    bench      b = bench_of(2, (compute_limits){.batch  = 1,
                                                .length = LONG,
                                                .hidden = W,
                                                .inner  = 3 * W,
                                                .heads  = 1,
                                                .vocab  = VOCAB,
                                                .dtype  = SHERD_F32});
    float     *q = randoms(LONG * W, 1, 1.0f), *k = randoms(LONG * W, 2, 1.0f);
    float     *v = randoms(LONG * W, 3, 1.0f), *y = zeros(LONG * W), *log_sums = zeros(LONG);
    heads_args args = {.batch     = 1,
                       .length    = LONG,
                       .heads     = 1,
                       .kv_heads  = 1,
                       .width     = W,
                       .q_stride  = W,
                       .kv_stride = W,
                       .q         = q,
                       .k         = k,
                       .v         = v};

    b.ops->attention(b.c, &args, y, log_sums);
    for (size_t t = 0; t < LONG; t++) {
        double p[LONG], sum = 0.0;

        for (size_t s = 0; s <= t; s++) {
            p[s] = exp(weigh(q + t * W, k + s * W, W) / sqrt((double)W));
            sum += p[s];
        }
        for (size_t i = 0; i < W; i++) {
            double want = 0.0;

            for (size_t s = 0; s <= t; s++) {
                want += p[s] / sum * (double)v[s * W + i];
            }
            CHECK(fabs((double)y[t * W + i] - want) < 1e-5);
        }
        CHECK(fabs((double)log_sums[t] - log(sum)) < 1e-5);
    }
    attention_case c = {
        .b = b, .args = args, .y = y, .dy = randoms(LONG * W, 4, 1.0f), .log_sums = log_sums};
    float *dq = zeros(LONG * W), *dk = zeros(LONG * W), *dv = zeros(LONG * W);

    b.ops->attention_back(b.c, &args, y, c.dy, log_sums, dq, dk, dv);
    differences_check(q, dq, LONG * W, attention_value, &c);
    differences_check(k, dk, LONG * W, attention_value, &c);
    differences_check(v, dv, LONG * W, attention_value, &c);
    bench_close(&b);
}

/* ------------------------------------------------------- element by element -- */

/* gelu comes after a product: with a weight of one it is of x itself. */
typedef struct element_case {
    bench  b;
    int    is_swiglu;
    float *x, *gate, *y, *dy, *sum;
    tensor one;
    size_t count;
} element_case;

static double element_value(void *ctx)
{
    element_case *c = ctx;

    if (c->is_swiglu) {
        c->b.ops->swiglu(c->b.c, c->count, c->gate, c->x, c->y);
    } else {
        c->b.ops->linear(c->b.c, &(linear_args){.shape  = {.rows = c->count, .in = 1, .out = 1},
                                                .x      = c->x,
                                                .weight = c->one,
                                                .y      = c->sum,
                                                .gelu   = c->y});
    }
    return weigh(c->dy, c->y, c->count);
}

static element_case element_open(int is_swiglu)
{
    element_case c = {.b         = bench_open(2, SHERD_F32),
                      .is_swiglu = is_swiglu,
                      .count     = 277,
                      .x         = randoms(277, 1, 4.0f),
                      .gate      = randoms(277, 2, 4.0f),
                      .y         = zeros(277),
                      .sum       = zeros(277),
                      .dy        = randoms(277, 3, 1.0f),
                      .one       = f32(zeros(1), zeros(1))};

    *(float *)c.one.data = 1.0f;
    return c;
}

static void gelu_back_matches_differences(void)
{
    element_case c = element_open(0);
    float       *d = zeros(c.count);

    c.b.ops->linear_back(c.b.c, &(linear_back_args){.shape  = {.rows = c.count, .in = 1, .out = 1},
                                                    .x      = c.y,
                                                    .dy     = c.dy,
                                                    .weight = c.one,
                                                    .dx     = d,
                                                    .gelu_x = c.x});
    differences_check(c.x, d, c.count, element_value, &c);
    bench_close(&c.b);
}

static void gelu_is_its_tanh_form(void)
{
    element_case c = element_open(0);

    (void)element_value(&c);
    for (size_t i = 0; i < c.count; i++) {
        double x = (double)c.x[i];
        double want =
            0.5 * x * (1.0 + tanh(sqrt(2.0 / 3.14159265358979) * (x + 0.044715 * x * x * x)));

        CHECK(fabs((double)c.y[i] - want) < 2e-6);
    }
    bench_close(&c.b);
}

static void swiglu_back_matches_differences(void)
{
    element_case c     = element_open(1);
    float       *d     = zeros(c.count);
    float       *dgate = zeros(c.count);

    memcpy(d, c.dy, c.count * sizeof(*d));
    c.b.ops->swiglu_back(c.b.c, c.count, c.gate, c.x, c.y, d, dgate);
    differences_check(c.x, d, c.count, element_value, &c);
    differences_check(c.gate, dgate, c.count, element_value, &c);
    bench_close(&c.b);
}

/* ---------------------------------------------------------- cross-entropy -- */

/* A table of ones on the diagonal makes the logits the head's input, and its gradient theirs. */
static void cross_entropy_matches_double(void)
{
    bench    b = bench_of(2, (compute_limits){.batch  = BATCH,
                                              .length = LENGTH,
                                              .hidden = VOCAB,
                                              .inner  = VOCAB,
                                              .heads  = 1,
                                              .vocab  = VOCAB,
                                              .dtype  = SHERD_F32});
    int32_t  targets[ROWS];
    uint64_t seed   = 5;
    float   *logits = randoms(ROWS * VOCAB, 1, 8.0f), *grad = zeros(ROWS * VOCAB);
    float   *dx     = zeros(ROWS * VOCAB);
    tensor   weight = f32(zeros(VOCAB * VOCAB), zeros(VOCAB * VOCAB));
    double   want   = 0.0, value, loss;

    for (size_t i = 0; i < VOCAB; i++) {
        ((float *)weight.data)[i * VOCAB + i] = 1.0f;
    }
    for (size_t r = 0; r < ROWS; r++) {
        double sum = 0.0;

        targets[r] = (int32_t)(test_random(&seed) % VOCAB);
        for (size_t i = 0; i < VOCAB; i++) {
            sum += exp((double)logits[r * VOCAB + i]);
        }
        want += log(sum) - (double)logits[r * VOCAB + (size_t)targets[r]];
        for (size_t i = 0; i < VOCAB; i++) {
            double p = exp((double)logits[r * VOCAB + i]) / sum;

            grad[r * VOCAB + i] = (float)(2.0 * (p - ((int32_t)i == targets[r])) / ROWS);
        }
    }
    b.ops->batch_set(b.c, NULL, targets);
    b.ops->head(b.c, logits, weight, 0.0f);
    CHECK_OK(b.ops->losses_take(b.c, &value));
    b.ops->head(b.c, logits, weight, 2.0f);
    CHECK_OK(b.ops->losses_take(b.c, &loss));
    b.ops->head_back(b.c, logits, weight, dx);
    CHECK_CLOSE(want / ROWS, value, 1e-6);
    CHECK_CLOSE(value, loss, 1e-12);
    CHECK_CLOSE_F32(dx, grad, ROWS * VOCAB, 1e-5, 1e-8);
    bench_close(&b);
}

/* --------------------------------------------------------------- rows, gemm -- */

/* The same numbers through both tables, lengths around the width of a vector. */
static void rows_pair_check(const rows_ops *a, const rows_ops *b, size_t n)
{
    float          *x = randoms(n + 1, n + 1, 3.0f), *w = randoms(n + 1, n + 2, 1.0f);
    float          *d = randoms(n + 1, n + 3, 1.0f);
    float          *out[2][4];
    double          loss[2];
    const rows_ops *tables[2] = {a, b};

    for (int t = 0; t < 2; t++) {
        for (int i = 0; i < 4; i++) {
            out[t][i] = randoms(8 * n + 8, 77, 1.0f); /* equal starts: some slots add */
        }
        tables[t]->gelu(x, out[t][0], n);
        memcpy(out[t][1], d, n * sizeof(float));
        tables[t]->gelu_back(x, out[t][1], n);
        tables[t]->swiglu(x, w, out[t][2], n);
        memcpy(out[t][3], d, n * sizeof(float));
        tables[t]->swiglu_back(x, w, out[t][3], out[t][0] + n, n);
        tables[t]->layer_norm(x, w, d, out[t][0] + 2 * n, n, 1e-5f);
        tables[t]->layer_norm_back(x, w, d, out[t][1] + n, out[t][1] + 2 * n, out[t][1] + 3 * n, n,
                                   1e-5f);
        tables[t]->rms_norm(x, w, out[t][2] + n, n, 1e-6f);
        tables[t]->rms_norm_back(x, w, d, out[t][2] + 2 * n, out[t][2] + 3 * n, n, 1e-6f);
        memcpy(out[t][0] + 3 * n, x, n * sizeof(float));
        out[t][0][4 * n] = tables[t]->softmax(out[t][0] + 3 * n, n, n, 0.3f);
        memcpy(out[t][0] + 5 * n, x, n * sizeof(float));
        tables[t]->softmax_again(out[t][0] + 5 * n, n, n, 0.3f, out[t][0][4 * n]);
        memcpy(out[t][0] + 6 * n, d, n * sizeof(float));
        tables[t]->softmax_back(out[t][0] + 3 * n, out[t][0] + 6 * n, n, n, 0.3f);
        loss[t] = tables[t]->cross_entropy_value(x, n, n / 2);
        memcpy(out[t][3] + n, x, n * sizeof(float));
        loss[t] += tables[t]->cross_entropy(out[t][3] + n, n, n / 2, 0.7f);
        tables[t]->narrow(x, (uint16_t *)(out[t][2] + 4 * n), n);
    }
    for (int i = 0; i < 4; i++) {
        CHECK_BYTES_EQUAL(out[0][i], out[1][i], (8 * n + 8) * sizeof(float));
    }
    CHECK_BYTES_EQUAL(&loss[0], &loss[1], sizeof(loss[0]));
    kept_free();
}

static void rows_of_every_table_equal_plain_ones(void)
{
    const rows_ops *tables[ROWS_MOST_TABLES];
    size_t          count = rows_tables(tables);

    if (count == 1) {
        test_skip("no AVX2 here");
    }
    for (size_t t = 0; t + 1 < count; t++) {
        for (size_t n = 1; n < 70; n++) {
            rows_pair_check(&rows_ops_plain, tables[t], n);
        }
        rows_pair_check(&rows_ops_plain, tables[t], 1000);
    }
}

/* All halves, and floats around every half, against the engine's own casts. */
static void half_types_match_the_engine(void)
{
    static uint16_t half[65536];
    static float    full[65536];

    for (int type = SHERD_BF16; type <= SHERD_F16; type++) {
        for (uint32_t i = 0; i < 65536; i++) {
            half[i] = (uint16_t)i;
        }
        rows_best()->widen((sherd_dtype)type, half, full, 65536);
        for (uint32_t i = 0; i < 65536; i++) {
            float want = type == SHERD_BF16 ? sherdi_cast_bf16_f32((uint16_t)i)
                                            : sherdi_cast_f16_f32((uint16_t)i);

            CHECK(isnan(want) ? isnan(full[i]) : memcmp(&want, &full[i], sizeof(want)) == 0);
        }
        for (int shift = -1; shift <= 1; shift++) {
            static uint16_t rounded[65536];

            for (uint32_t i = 0; i < 65536; i++) { /* a random fraction and exponent near half's */
                uint32_t bits = (i << 16) + 0x8000u * (i & 1u) + (uint32_t)shift;
                memcpy(&full[i], &bits, sizeof(bits));
                rounded[i] = 0;
            }
            rows_best()->accumulate((sherd_dtype)type, full, rounded, 65536);
            if (type == SHERD_BF16) {
                static uint16_t again[65536];

                rows_best()->narrow(full, again, 65536);
                for (uint32_t i = 0; i < 65536; i++) { /* but -0, which a sum with 0 is not */
                    CHECK(again[i] == rounded[i] || (rounded[i] == 0 && again[i] == 0x8000u));
                }
            }
            for (uint32_t i = 0; i < 65536; i++) {
                float    sum = 0.0f + full[i];
                uint16_t want =
                    type == SHERD_BF16 ? sherdi_cast_f32_bf16(sum) : sherdi_cast_f32_f16(sum);

                if (!isnan(sum)) {
                    CHECK_INT(want, rounded[i]);
                }
            }
        }
    }
}

static void gemm_matches_double(void)
{
    enum { M = 37, N = 131, K = 150 };
    float *a = randoms(M * K, 1, 1.0f), *b = randoms(K * N, 2, 1.0f), *c = randoms(M * N, 3, 1.0f);
    float *at = zeros(M * K), *bt = zeros(K * N), *start = zeros(M * N), *want = zeros(M * N);

    memcpy(start, c, M * N * sizeof(*c));
    for (size_t i = 0; i < M; i++) {
        for (size_t j = 0; j < N; j++) {
            double sum = 0.0;

            for (size_t p = 0; p < K; p++) {
                sum += (double)a[i * K + p] * (double)b[p * N + j];
                at[p * M + i] = a[i * K + p];
                bt[j * K + p] = b[p * N + j];
            }
            want[i * N + j] = (float)(0.5 * sum + 2.0 * (double)c[i * N + j]);
        }
    }
    for (int flips = 0; flips < 4; flips++) {
        gemm_matrix x = flips & 1 ? (gemm_matrix){at, M, 1} : (gemm_matrix){a, K, 0};
        gemm_matrix y = flips & 2 ? (gemm_matrix){bt, K, 1} : (gemm_matrix){b, N, 0};

        memcpy(c, start, M * N * sizeof(*c));
        gemm(M, N, K, 0.5f, x, y, 2.0f, c, N);
        CHECK_CLOSE_F32(c, want, M * N, 1e-5, 1e-5);
    }
    kept_free();
}

/* ------------------------------------------------------------------- pool -- */

static void count_task(void *ctx, size_t task, int thread)
{
    unsigned char *seen = ctx;

    (void)thread;
    seen[task]++;
}

static void pool_runs_every_task_once(void)
{
    static unsigned char seen[1000], once[1000];

    memset(once, 1, sizeof(once));
    for (int threads = 1; threads <= 5; threads++) {
        pool *p = pool_create(threads);

        CHECK(p != NULL);
        for (int round = 0; round < 200; round++) {
            size_t count = (size_t)round * 5;

            memset(seen, 0, sizeof(seen));
            pool_run(p, count, count_task, seen);
            CHECK_BYTES_EQUAL(once, seen, count);
        }
        pool_destroy(p);
    }
    CHECK(pool_create(0) == NULL);
}

static const test_case cases[] = {
    CASE(linear_back_matches_differences),
    CASE(linear_adds_to_a_residual_in_place),
    CASE(linear_of_half_types_matches_fp32),
    CASE(embedding_back_sums_every_use_of_a_token),
    CASE(layer_norm_back_matches_differences),
    CASE(rms_norm_back_matches_differences),
    CASE(rotation_is_undone_by_its_inverse),
    CASE(attention_back_matches_differences),
    CASE(attention_does_not_see_the_future),
    CASE(attention_of_several_blocks_matches_its_plain_form),
    CASE(gelu_back_matches_differences),
    CASE(gelu_is_its_tanh_form),
    CASE(swiglu_back_matches_differences),
    CASE(cross_entropy_matches_double),
    CASE(rows_of_every_table_equal_plain_ones),
    CASE(half_types_match_the_engine),
    CASE(gemm_matches_double),
    CASE(pool_runs_every_task_once),
};

RUN_MAIN(cases)

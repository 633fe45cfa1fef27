/* The GPU's operations, on the emulator with a stand-in for cuBLASLt and on a real one: each
 * against the CPU's, in every type. Attention is in test_cuda_attention.c, and whole models are in
 * test_cuda_models.c. The limits of the emulator are in tests/emulator/emulator.h. */
#include "tests/lib/check.h"
#include "tests/trainer/close.h"
#include "tests/trainer/device_rig.h"

#include "trainer/model.h"
#include "kernels/formulas.h"

#ifdef TEST_EMULATED
#include <emulator.h>
#endif

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of the rigs that are opened from now on. */
static compute_choices choices;

/* Sizes that sixteen bytes divide, and some that nothing does. */
static const compute_limits shapes[] = {
    {.batch = 3, .length = 24, .hidden = 64, .inner = 160, .heads = 2, .vocab = 256},
    {.batch = 2, .length = 37, .hidden = 42, .inner = 75, .heads = 3, .vocab = 37},
    {.batch = 5, .length = 33, .hidden = 320, .inner = 88, .heads = 4, .vocab = 1003},
    {.batch = 1, .length = 1, .hidden = 8, .inner = 16, .heads = 2, .vocab = 5},
};

#define NUM_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static void shapes_run(void (*body)(rig *r))
{
    for (size_t i = 0; i < NUM_SHAPES; i++) {
        for (int dtype = SHERD_F32; dtype <= SHERD_F16; dtype++) {
            rig r = rig_open(shapes[i], (sherd_dtype)dtype, choices);

            rig_set(&r);
            body(&r);
            rig_close(&r);
        }
    }
}

/* ------------------------------------------------------------- operations -- */

static void embed_body(rig *r)
{
    size_t h        = r->limits.hidden;
    pair   tokens   = pair_make(r, r->limits.vocab * h, 1, 1.0f),
         y          = pair_make(r, r->rows * h, 2, 1.0f);
    pair positions  = pair_make(r, r->limits.length * h, 3, 1.0f);
    pair dtokens    = pair_make(r, tokens.count, 4, 1.0f);
    pair dpositions = pair_make(r, positions.count, 5, 1.0f), dy = pair_make(r, y.count, 6, 1.0f);
    pair all[] = {tokens, y, positions, dtokens, dpositions, dy};

    for (int has_positions = 0; has_positions < 2; has_positions++) {
        pair p  = has_positions ? positions : pair_none(),
             dp = has_positions ? dpositions : pair_none();

        r->cpu->ops->embed(r->cpu, cpu_tensor(tokens, dtokens), cpu_tensor(p, dp), y.cpu);
        r->gpu->ops->embed(r->gpu, gpu_tensor(r, tokens, dtokens), gpu_tensor(r, p, dp), y.gpu);
        pair_check(r, "embedding", y);
        r->cpu->ops->embed_back(r->cpu, dy.cpu, cpu_tensor(tokens, dtokens), cpu_tensor(p, dp));
        r->gpu->ops->embed_back(r->gpu, dy.gpu, gpu_tensor(r, tokens, dtokens),
                                gpu_tensor(r, p, dp));
    }
    pair_check(r, "gradient of tokens", dtokens);
    pair_check(r, "gradient of positions", dpositions);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        pair_free(r, all[i]);
    }
}

static void embedding_matches_the_cpu(void)
{
    shapes_run(embed_body);
}

/* A product whose output has the gradient dy, and whose bias has the sums of its columns. */
static void bias_back(rig *r, size_t width, pair x, pair dy, pair weight, pair dx)
{
    pair dweight = pair_make(r, weight.count, 13, 1.0f), dbias = pair_make(r, width, 14, 1.0f);
    linear_back_args on_cpu = {.shape  = {r->rows, width, width},
                               .x      = x.cpu,
                               .dy     = dy.cpu,
                               .weight = cpu_tensor(weight, dweight),
                               .bias   = cpu_tensor(dbias, dbias),
                               .dx     = dx.cpu};
    linear_back_args on_gpu = on_cpu;

    on_gpu.x      = x.gpu;
    on_gpu.dy     = dy.gpu;
    on_gpu.weight = gpu_tensor(r, weight, dweight);
    on_gpu.bias   = gpu_tensor(r, dbias, dbias);
    on_gpu.dx     = dx.gpu;
    r->cpu->ops->linear_back(r->cpu, &on_cpu);
    r->gpu->ops->linear_back(r->gpu, &on_gpu);
    pair_check(r, "gradient of a bias behind a norm", dbias);
    pair_free(r, dweight);
    pair_free(r, dbias);
}

/* The sums of the columns of `dx` may be known from the norm that wrote it, and must be taken anew
 * when something else has. */
static void biases_behind_a_norm(rig *r, size_t width, pair dx)
{
    pair x = pair_make(r, dx.count, 10, 0.1f), weight = pair_make(r, width * width, 11, 0.1f);
    pair other = pair_make(r, dx.count, 12, 1.0f);

    bias_back(r, width, x, dx, weight, other);
    bias_back(r, width, x, other, weight, dx);
    bias_back(r, width, x, dx, weight, other);
    pair_free(r, x);
    pair_free(r, weight);
    pair_free(r, other);
}

static void norm_run(rig *r, size_t rows, size_t width, int is_layer)
{
    pair x = pair_make(r, rows * width, 1, 2.0f), weight = pair_make(r, width, 2, 1.0f);
    pair bias    = is_layer ? pair_make(r, width, 3, 1.0f) : pair_none(),
         y       = pair_make(r, x.count, 4, 1.0f);
    pair      dy = pair_make(r, x.count, 5, 1.0f), dx = pair_make(r, x.count, 6, 1.0f);
    pair      dweight = pair_make(r, width, 7, 1.0f);
    pair      dbias   = is_layer ? pair_make(r, width, 8, 1.0f) : pair_none();
    pair      all[]   = {x, weight, bias, y, dy, dx, dweight, dbias};
    float    *stats   = r->gpu->keeps_stats ? device_alloc(r, 2 * rows * sizeof(*stats)) : NULL;
    norm_rows on_cpu  = {rows,
                         width,
                        is_layer ? 1e-5f : 1e-6f,
                         x.cpu,
                         cpu_tensor(weight, dweight),
                         cpu_tensor(bias, dbias),
                         NULL};
    norm_rows on_gpu  = {rows,
                         width,
                        is_layer ? 1e-5f : 1e-6f,
                         x.gpu,
                         gpu_tensor(r, weight, dweight),
                         gpu_tensor(r, bias, dbias),
                         stats};

    r->cpu->ops->norm(r->cpu, &on_cpu, y.cpu);
    r->gpu->ops->norm(r->gpu, &on_gpu, y.gpu);
    pair_check(r, "norm", y);
    for (int is_added = 1; is_added >= 0; is_added--) {
        r->cpu->ops->norm_back(r->cpu, &on_cpu, dy.cpu, dx.cpu, is_added);
        r->gpu->ops->norm_back(r->gpu, &on_gpu, dy.gpu, dx.gpu, is_added);
        pair_check(r, is_added ? "gradient of a norm, added" : "gradient of a norm", dx);
        pair_check(r, "gradient of a norm's weight", dweight);
        if (is_layer) {
            pair_check(r, "gradient of a norm's bias", dbias);
        }
        if (rows == r->rows && width == r->limits.hidden && width < 1000) {
            biases_behind_a_norm(r, width, dx);
        }
    }
    r->gpu->ops->free(r->gpu, stats);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        pair_free(r, all[i]);
    }
}

static void norm_body(rig *r)
{
    for (int is_layer = 0; is_layer < 2; is_layer++) {
        norm_run(r, r->rows, r->limits.hidden, is_layer);
        norm_run(r, r->rows * r->limits.heads, r->limits.hidden / r->limits.heads, is_layer);
    }
}

static void norms_match_the_cpu(void)
{
    shapes_run(norm_body);
}

/* Rows of 2, 3, 4 and 8 vectors in registers, and one that is too wide for them. */
static void norm_widths_body(rig *r)
{
    norm_run(r, 70, 8 * 32 * 2, 1);
    norm_run(r, 70, 768, 1);
    norm_run(r, 70, 32 * 3 * 4, 0);
    norm_run(r, 70, 8 * 32 * 3 - 8, 0);
    norm_run(r, 70, 8 * 32 * 3 + 8, 1);
    norm_run(r, 9, 8 * 32 * 9 + 8, 1);
    norm_run(r, 9, 8 * 32 * 5 + 24, 0);
}

static void norms_of_rows_in_registers_match_the_cpu(void)
{
    for (int dtype = SHERD_F32; dtype <= SHERD_F16; dtype++) {
        rig r = rig_open((compute_limits){.batch  = 7,
                                          .length = 10,
                                          .hidden = 8 * 32 * 9 + 8,
                                          .inner  = 8,
                                          .heads  = 2 * 32 * 9 + 2,
                                          .vocab  = 5},
                         (sherd_dtype)dtype, choices);

        norm_widths_body(&r);
        rig_close(&r);
    }
}

/* The sums of these rows are more than the 48 KiB of shared memory that each device gives a block,
 * and of the widest LayerNorm more than the 99 KiB that some devices have at all. */
/* Rows that a block holds: of few vectors past a warp's, of vectors that are no whole number of
 * warps', and the widest. */
static void norms_of_rows_that_a_block_holds_match_the_cpu(void)
{
    static const size_t WIDTHS[] = {2056, 3584, 8192};

    for (size_t i = 0; i < sizeof(WIDTHS) / sizeof(WIDTHS[0]); i++) {
        for (int dtype = SHERD_BF16; dtype <= SHERD_F16; dtype++) {
            rig r = rig_open((compute_limits){.batch  = 1,
                                              .length = 70,
                                              .hidden = WIDTHS[i],
                                              .inner  = 8,
                                              .heads  = WIDTHS[i] / 8,
                                              .vocab  = 5},
                             (sherd_dtype)dtype, choices);

            norm_run(&r, 70, WIDTHS[i], dtype == SHERD_F16);
            norm_run(&r, 33, WIDTHS[i], dtype == SHERD_BF16);
            rig_close(&r);
        }
    }
}

static void norms_of_very_wide_rows_match_the_cpu(void)
{
    static const size_t WIDTHS[] = {6145, 12800};

#ifdef TEST_EMULATED
    emulator_limit_shared(99 << 10);
#endif
    for (size_t i = 0; i < sizeof(WIDTHS) / sizeof(WIDTHS[0]); i++) {
        for (int dtype = SHERD_F32; dtype <= SHERD_F16; dtype++) {
            rig r = rig_open((compute_limits){.batch  = 1,
                                              .length = 70,
                                              .hidden = WIDTHS[i],
                                              .inner  = 8,
                                              .heads  = WIDTHS[i] / 5,
                                              .vocab  = 5},
                             (sherd_dtype)dtype, choices);

            norm_run(&r, 70, WIDTHS[i], 1);
            norm_run(&r, 35, 2 * WIDTHS[i], 0);
            rig_close(&r);
        }
    }
#ifdef TEST_EMULATED
    emulator_limit_shared(0);
#endif
}

static void linear_body(rig *r)
{
    size_t rows = r->rows, in = r->limits.hidden, out = r->limits.inner;
    pair   x = pair_make(r, rows * in, 1, 1.0f), weight = pair_make(r, out * in, 2, 0.3f);
    pair   bias = pair_make(r, out, 3, 1.0f), y = pair_make(r, rows * out, 4, 1.0f);
    pair   dweight = pair_make(r, weight.count, 5, 1.0f), dbias = pair_make(r, out, 6, 1.0f);
    pair   dy = pair_make(r, y.count, 7, 1.0f), dx = pair_make(r, x.count, 8, 1.0f);
    pair   gelu  = pair_make(r, y.count, 9, 1.0f);
    pair   all[] = {x, weight, bias, y, dweight, dbias, dy, dx, gelu};

    for (int form = 0; form < 4; form++) { /* plain, bias, bias and residual, bias and gelu */
        pair        b      = form > 0 ? bias : pair_none();
        linear_args on_cpu = {.shape    = {rows, in, out},
                              .x        = x.cpu,
                              .weight   = cpu_tensor(weight, dweight),
                              .bias     = cpu_tensor(b, pair_none()),
                              .residual = form == 2 ? dy.cpu : NULL,
                              .y        = y.cpu,
                              .gelu     = form == 3 ? gelu.cpu : NULL};
        linear_args on_gpu = on_cpu;

        on_gpu.x        = x.gpu;
        on_gpu.weight   = gpu_tensor(r, weight, dweight);
        on_gpu.bias     = gpu_tensor(r, b, pair_none());
        on_gpu.residual = form == 2 ? dy.gpu : NULL;
        on_gpu.y        = y.gpu;
        on_gpu.gelu     = form == 3 ? gelu.gpu : NULL;
        r->cpu->ops->linear(r->cpu, &on_cpu);
        r->gpu->ops->linear(r->gpu, &on_gpu);
        pair_check(r, "product", y);
    }
    pair_check(r, "gelu of a product", gelu);
    for (int form = 0; form < 3; form++) { /* plain, added, through gelu */
        linear_back_args on_cpu = {.shape    = {rows, in, out},
                                   .x        = x.cpu,
                                   .dy       = dy.cpu,
                                   .weight   = cpu_tensor(weight, dweight),
                                   .bias     = cpu_tensor(bias, dbias),
                                   .dx       = dx.cpu,
                                   .is_added = form == 1,
                                   .gelu_x   = form == 2 ? x.cpu : NULL};
        linear_back_args on_gpu = on_cpu;

        on_gpu.x      = x.gpu;
        on_gpu.dy     = dy.gpu;
        on_gpu.weight = gpu_tensor(r, weight, dweight);
        on_gpu.bias   = gpu_tensor(r, bias, dbias);
        on_gpu.dx     = dx.gpu;
        on_gpu.gelu_x = form == 2 ? x.gpu : NULL;
        r->cpu->ops->linear_back(r->cpu, &on_cpu);
        r->gpu->ops->linear_back(r->gpu, &on_gpu);
        pair_check(r, "gradient of a product's input", dx);
        pair_check(r, "gradient of a product's weight", dweight);
        pair_check(r, "gradient of a product's bias", dbias);
    }
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        pair_free(r, all[i]);
    }
}

static void products_match_the_cpu(void)
{
    shapes_run(linear_body);
}

/* The library may say in two ways that it has none. */
static void products_without_fused_kernels_match_the_cpu(void)
{
    static const char *const REFUSED[] = {"1", "2"};

    for (int i = 0; i < 2; i++) {
        (void)setenv("SHERD_EMULATOR_NO_EPILOGUES", REFUSED[i], 1);
        shapes_run(linear_body);
    }
    (void)unsetenv("SHERD_EMULATOR_NO_EPILOGUES");
}

/* Memory of the pair's bytes `offset_bytes` after a multiple of 256, with its numbers; *alloc is
 * to be freed. */
static void *device_place(rig *r, pair p, size_t offset_bytes, void **alloc)
{
    size_t bytes = p.count * sherd_dtype_bytes(r->dtype);
    char  *at;

    *alloc = device_alloc(r, bytes + 256);
    at     = (char *)(((uintptr_t)*alloc + 255) / 256 * 256 + offset_bytes);
    CHECK(cudaMemcpyAsync(at, p.gpu, bytes, cudaMemcpyDeviceToDevice, r->stream) == cudaSuccess);
    return at;
}

/* A product with bias, its gelu and that one's gradient, one after the other, where bias and gelu's
 * operand stand there. */
static char *epilogue_bits(sherd_dtype dtype, size_t offset_bytes, size_t *bytes_out)
{
    compute_limits limits = {
        .batch = 3, .length = 24, .hidden = 512, .inner = 160, .heads = 2, .vocab = 16};
    rig    r    = rig_open(limits, dtype, choices);
    size_t rows = r.rows, in = limits.hidden, out = limits.inner;
    pair   x = pair_make(&r, rows * in, 1, 1.0f), weight = pair_make(&r, out * in, 2, 0.3f);
    pair   bias = pair_make(&r, out, 3, 1.0f), y = pair_make(&r, rows * out, 4, 1.0f);
    pair   gelu = pair_make(&r, rows * out, 5, 1.0f), dy = pair_make(&r, rows * out, 6, 1.0f);
    pair   dweight = pair_make(&r, weight.count, 7, 1.0f), dx = pair_make(&r, x.count, 8, 1.0f);
    pair   all[] = {x, weight, bias, y, gelu, dy, dweight, dx};
    void  *allocs[3];
    size_t bytes             = y.count * sherd_dtype_bytes(dtype);
    size_t dx_bytes          = dx.count * sherd_dtype_bytes(dtype);
    char  *bits              = malloc(2 * bytes + dx_bytes); /* the caller's: outlives the rig */
    linear_args      forward = {.shape  = {rows, in, out},
                                .x      = x.gpu,
                                .weight = gpu_tensor(&r, weight, dweight),
                                .y      = y.gpu};
    linear_back_args back    = {.shape  = {rows, in, out},
                                .x      = x.gpu,
                                .dy     = dy.gpu,
                                .weight = gpu_tensor(&r, weight, dweight),
                                .dx     = dx.gpu};

    CHECK(bits != NULL);
    forward.bias      = gpu_tensor(&r, bias, pair_none());
    forward.bias.data = device_place(&r, bias, offset_bytes, &allocs[0]);
    r.gpu->ops->linear(r.gpu, &forward);
    device_get(&r, y.gpu, bits, bytes);
    forward.y    = device_place(&r, y, offset_bytes, &allocs[1]);
    forward.gelu = gelu.gpu;
    r.gpu->ops->linear(r.gpu, &forward);
    device_get(&r, gelu.gpu, bits + bytes, bytes);
    back.gelu_x = device_place(&r, x, offset_bytes, &allocs[2]);
    r.gpu->ops->linear_back(r.gpu, &back);
    device_get(&r, dx.gpu, bits + 2 * bytes, dx_bytes);
    for (int i = 0; i < 3; i++) {
        r.gpu->ops->free(r.gpu, allocs[i]);
    }
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        pair_free(&r, all[i]);
    }
    rig_close(&r);
    *bytes_out = 2 * bytes + dx_bytes;
    return bits;
}

/* The library's choice follows the alignment of addresses: a parameter's differs between stages and
 * between runs. */
static void addresses_of_biases_and_gelus_do_not_choose_kernels(void)
{
    for (int dtype = SHERD_F32; dtype <= SHERD_F16; dtype++) {
        size_t bytes;
        char  *want = epilogue_bits((sherd_dtype)dtype, 0, &bytes);
        char  *got  = epilogue_bits((sherd_dtype)dtype, 128, &bytes);

        CHECK_BYTES_EQUAL(want, got, bytes);
        free(want);
        free(got);
    }
}

/* What the device has, in host memory of the rig. */
static const void *numbers_of(rig *r, pair p)
{
    size_t bytes = p.count * sherd_dtype_bytes(r->dtype);
    void  *to    = keep(r, malloc(bytes + 1));

    device_get(r, p.gpu, to, bytes);
    return to;
}

/* The gradients of a product's input and of its weight and bias, by one call and by one for
 * each. */
static void apart_body(rig *r)
{
    size_t in = r->limits.hidden, out = r->limits.inner;
    pair   x = pair_make(r, r->rows * in, 1, 1.0f), dy = pair_make(r, r->rows * out, 2, 1.0f);
    pair   weight = pair_make(r, in * out, 3, 1.0f), bias = pair_make(r, out, 4, 1.0f);
    pair   dx[2], dweight[2], dbias[2];
    linear_back_args args = {.shape = {r->rows, in, out}, .dy = dy.gpu};

    for (int i = 0; i < 2; i++) {
        dx[i]       = pair_make(r, x.count, 5, 1.0f);
        dweight[i]  = pair_make(r, weight.count, 6, 1.0f);
        dbias[i]    = pair_make(r, out, 7, 1.0f);
        args.weight = gpu_tensor(r, weight, dweight[i]);
        args.bias   = gpu_tensor(r, bias, dbias[i]);
        args.dx     = dx[i].gpu;
        args.x      = i == 0 ? x.gpu : NULL;
        r->gpu->ops->linear_back(r->gpu, &args);
    }
    args.x  = x.gpu;
    args.dx = NULL;
    r->gpu->ops->linear_back(r->gpu, &args);

    pair both[][2] = {{dx[0], dx[1]}, {dweight[0], dweight[1]}, {dbias[0], dbias[1]}};

    for (size_t i = 0; i < sizeof(both) / sizeof(both[0]); i++) {
        CHECK_BYTES_EQUAL(numbers_of(r, both[i][0]), numbers_of(r, both[i][1]),
                          both[i][0].count * sherd_dtype_bytes(r->dtype));
        pair_free(r, both[i][0]);
        pair_free(r, both[i][1]);
    }
    pair_free(r, x);
    pair_free(r, dy);
    pair_free(r, weight);
    pair_free(r, bias);
}

static void gradients_of_a_product_by_two_calls_have_the_same_bits(void)
{
    shapes_run(apart_body);
}

static void swiglu_body(rig *r)
{
    size_t count = r->rows * r->limits.inner;
    pair   gate = pair_make(r, count, 1, 4.0f), up = pair_make(r, count, 2, 1.0f);
    pair   y = pair_make(r, count, 3, 1.0f), d = pair_make(r, count, 4, 1.0f);
    pair   dgate = pair_make(r, count, 5, 1.0f), again = pair_make(r, count, 6, 1.0f);
    pair   all[] = {gate, up, y, d, dgate, again};

    r->cpu->ops->swiglu(r->cpu, count, gate.cpu, up.cpu, y.cpu);
    r->gpu->ops->swiglu(r->gpu, count, gate.gpu, up.gpu, y.gpu);
    pair_check(r, "swiglu", y);
    r->cpu->ops->swiglu_back(r->cpu, count, gate.cpu, up.cpu, again.cpu, d.cpu, dgate.cpu);
    r->gpu->ops->swiglu_back(r->gpu, count, gate.gpu, up.gpu, again.gpu, d.gpu, dgate.gpu);
    CHECK_BYTES_EQUAL(y.cpu, again.cpu, count * sizeof(float));
    CHECK_BYTES_EQUAL(numbers_of(r, y), numbers_of(r, again), count * sherd_dtype_bytes(r->dtype));
    pair_check(r, "gradient of swiglu's up", d);
    pair_check(r, "gradient of swiglu's gate", dgate);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        pair_free(r, all[i]);
    }
}

static void swiglu_matches_the_cpu(void)
{
    shapes_run(swiglu_body);
}

/* The heads of q or of k on both sides. */
typedef struct rope_pairs {
    size_t heads;
    pair   x, y, dy, dx, weight, dweight;
} rope_pairs;

static rope_pairs rope_pairs_make(rig *r, size_t heads, size_t width, uint64_t seed)
{
    size_t elems = r->rows * heads * width;

    return (rope_pairs){.heads   = heads,
                        .x       = pair_make(r, elems, seed, 2.0f),
                        .y       = pair_make(r, elems, seed + 1, 1.0f),
                        .dy      = pair_make(r, elems, seed + 2, 1.0f),
                        .dx      = pair_make(r, elems, seed + 3, 1.0f),
                        .weight  = pair_make(r, width, seed + 4, 1.0f),
                        .dweight = pair_make(r, width, seed + 5, 1.0f)};
}

static void rope_pairs_free(rig *r, const rope_pairs *p)
{
    pair all[] = {p->x, p->y, p->dy, p->dx, p->weight, p->dweight};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        pair_free(r, all[i]);
    }
}

/* Without a norm the heads are rotated where they are. */
static rope_part rope_part_on(const rig *r, const rope_pairs *p, int has_norm, int is_gpu)
{
    pair y = has_norm ? p->y : p->x, dx = has_norm ? p->dx : p->dy;

    if (is_gpu) {
        return (rope_part){p->heads,  has_norm ? gpu_tensor(r, p->weight, p->dweight) : (tensor){0},
                           p->x.gpu,  y.gpu,
                           p->dy.gpu, dx.gpu};
    }
    return (rope_part){p->heads,  has_norm ? cpu_tensor(p->weight, p->dweight) : (tensor){0},
                       p->x.cpu,  y.cpu,
                       p->dy.cpu, dx.cpu};
}

/* norms: a bit for q and a bit for k. */
static void rope_run(rig *r, size_t heads, size_t kv_heads, size_t width, int norms)
{
    size_t     angles   = r->limits.length * (width / 2);
    float     *tables   = keep(r, calloc(2 * angles + 1, sizeof(*tables)));
    float     *device   = device_alloc(r, 2 * angles * sizeof(*tables));
    rope_pairs parts[2] = {rope_pairs_make(r, heads, width, 1),
                           rope_pairs_make(r, kv_heads, width, 11)};
    rope_args  on_cpu = {.width = width, .eps = 1e-5f, .cosines = tables, .sines = tables + angles};
    rope_args  on_gpu = {.width = width, .eps = 1e-5f, .cosines = device, .sines = device + angles};

    compute_rotate_tables(r->limits.length, width, &(arch_rope){.theta = 1e4}, tables,
                          tables + angles);
    r->gpu->ops->upload(r->gpu, device, tables, 2 * angles * sizeof(*tables));
    for (int i = 0; i < 2; i++) {
        on_cpu.parts[i] = rope_part_on(r, &parts[i], norms >> i & 1, 0);
        on_gpu.parts[i] = rope_part_on(r, &parts[i], norms >> i & 1, 1);
    }
    r->cpu->ops->rope_back(r->cpu, &on_cpu);
    r->gpu->ops->rope_back(r->gpu, &on_gpu);
    r->cpu->ops->rope(r->cpu, &on_cpu);
    r->gpu->ops->rope(r->gpu, &on_gpu);
    for (int i = 0; i < 2; i++) {
        int has_norm = norms >> i & 1;

        pair_check(r, "rotated heads", has_norm ? parts[i].y : parts[i].x);
        pair_check(r, "gradient of heads", has_norm ? parts[i].dx : parts[i].dy);
        pair_check(r, "gradient of the heads' norm", parts[i].dweight);
        rope_pairs_free(r, &parts[i]);
    }
    r->gpu->ops->free(r->gpu, device);
}

#ifdef TEST_EMULATED
/* q and k have one kernel; in backward two more add up the gradients of the norms' weights. */
static void rotation_takes_one_kernel(void)
{
    static const struct {
        int           norms;
        unsigned long launches;
    } CASES[] = {{0, 2}, {3, 4}};

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        rig           r      = rig_open(shapes[0], SHERD_BF16, choices);
        unsigned long before = emulator_launches();

        rope_run(&r, 4, 2, 64, CASES[i].norms);
        CHECK_INT(CASES[i].launches, emulator_launches() - before);
        rig_close(&r);
    }
}
#endif

static void rope_body(rig *r)
{
    rope_run(r, r->limits.heads, 1, r->limits.hidden / r->limits.heads, 0);
    rope_run(r, r->limits.heads, 1, r->limits.hidden / r->limits.heads, 3);
}

/* Widths of one vector and of several for a lane, whole powers of two and not, with a norm of
 * either part alone. */
static void rotation_of_many_widths_matches_the_cpu(void)
{
    static const size_t widths[] = {64, 80, 100, 128, 256};

    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++) {
        compute_limits limits = {
            .batch = 2, .length = 9, .hidden = 7 * widths[i], .inner = 16, .heads = 7, .vocab = 16};

        for (int dtype = SHERD_F32; dtype <= SHERD_F16; dtype++) {
            rig r = rig_open(limits, (sherd_dtype)dtype, choices);

            rope_run(&r, 7, 1, widths[i], 1);
            rope_run(&r, 4, 2, widths[i], 2);
            rig_close(&r);
        }
    }
}

static void rotation_matches_the_cpu(void)
{
    shapes_run(rope_body);
}

static void head_body(rig *r)
{
    size_t h = r->limits.hidden, vocab = r->limits.vocab;
    pair   x = pair_make(r, r->rows * h, 1, 1.0f), weight = pair_make(r, vocab * h, 2, 0.2f);
    pair   dx = pair_make(r, x.count, 3, 1.0f), dweight = pair_make(r, weight.count, 4, 0.01f);
    pair   all[] = {x, weight, dx, dweight};
    double want, got;

    r->cpu->ops->head(r->cpu, x.cpu, cpu_tensor(weight, dweight), 0.0f);
    r->gpu->ops->head(r->gpu, x.gpu, gpu_tensor(r, weight, dweight), 0.0f);
    CHECK_OK(r->cpu->ops->losses_take(r->cpu, &want));
    CHECK_OK(r->gpu->ops->losses_take(r->gpu, &got));
    CHECK_CLOSE(want, got, r->dtype == SHERD_F32 ? 1e-6 : 5e-3);
    if (r->limits.keeps_logits) {
        float *logits = keep(r, calloc(2 * vocab, sizeof(*logits)));

        r->cpu->ops->logits_get(r->cpu, r->rows - 1, logits);
        r->gpu->ops->logits_get(r->gpu, r->rows - 1, logits + vocab);
        close_check("logits", logits, logits + vocab, vocab, tolerance_of(r->dtype));
    }
    r->cpu->ops->head(r->cpu, x.cpu, cpu_tensor(weight, dweight), 2.0f);
    r->gpu->ops->head(r->gpu, x.gpu, gpu_tensor(r, weight, dweight), 2.0f);
    r->cpu->ops->head_back(r->cpu, x.cpu, cpu_tensor(weight, dweight), dx.cpu);
    r->gpu->ops->head_back(r->gpu, x.gpu, gpu_tensor(r, weight, dweight), dx.gpu);
    CHECK_OK(r->cpu->ops->losses_take(r->cpu, &want));
    CHECK_OK(r->gpu->ops->losses_take(r->gpu, &got));
    CHECK_CLOSE(want, got, r->dtype == SHERD_F32 ? 1e-6 : 5e-3);
    pair_check(r, "gradient of the head's input", dx);
    pair_check(r, "gradient of the head's weight", dweight);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        pair_free(r, all[i]);
    }
}

static void head_matches_the_cpu(void)
{
    shapes_run(head_body);
}

/* How far the gradient of the head's weight is from the CPU's, which is not rounded: root of the
 * mean square, in roundings of the type. The logits come in parts of so many rows; 0: in one. */
static double head_grad_gap(sherd_dtype dtype, size_t logits_rows)
{
    compute_limits limits = shapes[0];
    rig            r;
    pair           x, weight, dx, dweight;
    void          *bits;
    float         *got;
    double         gap = 0.0, size = 0.0;

    limits.logits_rows = logits_rows;
    r                  = rig_open(limits, dtype, choices);
    rig_set(&r);
    x       = pair_make(&r, r.rows * limits.hidden, 1, 1.0f);
    weight  = pair_make(&r, limits.vocab * limits.hidden, 2, 0.2f);
    dx      = pair_make(&r, x.count, 3, 1.0f);
    dweight = pair_make(&r, weight.count, 4, 0.01f);
    bits    = keep(&r, malloc(dweight.count * sherd_dtype_bytes(dtype)));
    got     = keep(&r, malloc(dweight.count * sizeof(*got)));
    r.cpu->ops->head(r.cpu, x.cpu, cpu_tensor(weight, dweight), 2.0f);
    r.gpu->ops->head(r.gpu, x.gpu, gpu_tensor(&r, weight, dweight), 2.0f);
    r.cpu->ops->head_back(r.cpu, x.cpu, cpu_tensor(weight, dweight), dx.cpu);
    r.gpu->ops->head_back(r.gpu, x.gpu, gpu_tensor(&r, weight, dweight), dx.gpu);
    device_get(&r, dweight.gpu, bits, dweight.count * sherd_dtype_bytes(dtype));
    widen(dtype, bits, got, dweight.count);
    for (size_t i = 0; i < dweight.count; i++) {
        double want = (double)dweight.cpu[i];

        gap += (want - (double)got[i]) * (want - (double)got[i]);
        size += want * want;
    }
    pair_free(&r, x);
    pair_free(&r, weight);
    pair_free(&r, dx);
    pair_free(&r, dweight);
    rig_close(&r);
    return sqrt(gap / size) / (dtype == SHERD_BF16 ? 0x1p-9 : 0x1p-12);
}

/* It is rounded once, however many parts the logits come in. The two gradients are not compared
 * with each other: a device may compute logits by other kernels where there are fewer rows, and
 * round some of them to their neighbour. Either is as far from the CPU's then, by about one
 * rounding, while nine roundings in a row take it 2.2 away. */
static void parts_of_the_logits_round_the_gradient_once(void)
{
    for (int dtype = SHERD_BF16; dtype <= SHERD_F16; dtype++) {
        double whole = head_grad_gap((sherd_dtype)dtype, 0);
        double parts = head_grad_gap((sherd_dtype)dtype, 8);

        if (!(parts < 1.5 * whole)) {
            test_fail(__FILE__, __LINE__,
                      "in %s the gradient is %.3g roundings off in one part, %.3g in nine",
                      sherd_dtype_name((sherd_dtype)dtype), whole, parts);
        }
    }
}

/* The weight's gradient is then summed separately, and added at the end. */
static void head_in_parts_matches_the_cpu(void)
{
    for (size_t i = 0; i < NUM_SHAPES; i++) {
        for (int dtype = SHERD_BF16; dtype <= SHERD_F16; dtype++) {
            compute_limits limits = shapes[i];
            rig            r;

            limits.logits_rows = 8;
            r                  = rig_open(limits, (sherd_dtype)dtype, choices);
            rig_set(&r);
            head_body(&r);
            rig_close(&r);
        }
    }
}

static void logits_match_the_cpu(void)
{
    for (int dtype = SHERD_F32; dtype <= SHERD_F16; dtype++) {
        compute_limits limits = shapes[1];
        rig            r;

        limits.keeps_logits = 1;
        r                   = rig_open(limits, (sherd_dtype)dtype, choices);
        rig_set(&r);
        head_body(&r);
        rig_close(&r);
    }
}

static const test_case cases[] = {
    CASE(embedding_matches_the_cpu),
    CASE(norms_match_the_cpu),
    CASE(norms_of_rows_in_registers_match_the_cpu),
    CASE(norms_of_rows_that_a_block_holds_match_the_cpu),
    CASE(norms_of_very_wide_rows_match_the_cpu),
    CASE(products_match_the_cpu),
    CASE(products_without_fused_kernels_match_the_cpu),
    CASE(addresses_of_biases_and_gelus_do_not_choose_kernels),
    CASE(gradients_of_a_product_by_two_calls_have_the_same_bits),
    CASE(swiglu_matches_the_cpu),
    CASE(rotation_matches_the_cpu),
    CASE(rotation_of_many_widths_matches_the_cpu),
#ifdef TEST_EMULATED
    CASE(rotation_takes_one_kernel),
#endif
    CASE(head_matches_the_cpu),
    CASE(head_in_parts_matches_the_cpu),
    CASE(parts_of_the_logits_round_the_gradient_once),
    CASE(logits_match_the_cpu),
};

RUN_MAIN(cases)

/* Attention on the GPU, on the emulator and on a real one: against sums in double, and twice for
 * the same bits. */
#include "tests/lib/check.h"
#include "tests/trainer/device_rig.h"

#ifdef TEST_EMULATED
#include <emulator.h>
#endif

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct heads_case {
    size_t batch, length, heads, kv_heads, width;
    int    is_joined; /* q, k and v are columns of one matrix, as GPT-2 has them */
} heads_case;

/* Elements of q, k, v, out and the gradients; where they stand is in heads_args. */
typedef struct heads_rig {
    rig        r;
    heads_args cpu, gpu;
    pair       q, k, v, out, dout, dq, dk, dv;
    float     *log_sums; /* of the device */
    size_t     num_log_sums;
} heads_rig;

/* Of the rigs that are opened from here on, and what they say of their attention; NULL: they say
 * what they like. */
static compute_choices choices = {.attention = ATTENTION_OWN};
static const char     *want_note;

static heads_rig heads_open(heads_case c, sherd_dtype dtype)
{
    compute_limits limits = {.batch  = c.batch,
                             .length = c.length,
                             .hidden = c.heads * c.width,
                             .inner  = 16,
                             .heads  = c.heads,
                             .vocab  = 16};
    heads_rig      h      = {.r = rig_open(limits, dtype, choices)};
    size_t rows = c.batch * c.length, wide = c.heads * c.width, kv_wide = c.kv_heads * c.width;
    size_t bytes = sherd_dtype_bytes(dtype);

    h.cpu = (heads_args){.batch     = c.batch,
                         .length    = c.length,
                         .heads     = c.heads,
                         .kv_heads  = c.kv_heads,
                         .width     = c.width,
                         .q_stride  = c.is_joined ? 3 * wide : wide,
                         .kv_stride = c.is_joined ? 3 * wide : kv_wide};
    if (c.is_joined) {
        h.q  = pair_make(&h.r, rows * 3 * wide, 1, 1.5f);
        h.dq = pair_make(&h.r, rows * 3 * wide, 2, 1.0f);
        h.k = h.v = h.q;
        h.dk = h.dv = h.dq;
        h.k.cpu += wide;
        h.v.cpu += 2 * wide;
        h.dk.cpu += wide;
        h.dv.cpu += 2 * wide;
        h.k.gpu  = (char *)h.q.gpu + wide * bytes;
        h.v.gpu  = (char *)h.q.gpu + 2 * wide * bytes;
        h.dk.gpu = (char *)h.dq.gpu + wide * bytes;
        h.dv.gpu = (char *)h.dq.gpu + 2 * wide * bytes;
    } else {
        h.q  = pair_make(&h.r, rows * wide, 1, 1.5f);
        h.k  = pair_make(&h.r, rows * kv_wide, 2, 1.5f);
        h.v  = pair_make(&h.r, rows * kv_wide, 3, 1.0f);
        h.dq = pair_make(&h.r, rows * wide, 4, 1.0f);
        h.dk = pair_make(&h.r, rows * kv_wide, 5, 1.0f);
        h.dv = pair_make(&h.r, rows * kv_wide, 6, 1.0f);
    }
    h.cpu.q        = h.q.cpu;
    h.cpu.k        = h.k.cpu;
    h.cpu.v        = h.v.cpu;
    h.gpu          = h.cpu;
    h.gpu.q        = h.q.gpu;
    h.gpu.k        = h.k.gpu;
    h.gpu.v        = h.v.gpu;
    h.out          = pair_make(&h.r, rows * wide, 7, 1.0f);
    h.dout         = pair_make(&h.r, rows * wide, 8, 1.0f);
    h.num_log_sums = rows * c.heads;
    h.log_sums     = device_alloc(&h.r, h.num_log_sums * sizeof(float));
    return h;
}

static void heads_close(heads_rig *h, int is_joined)
{
    h->r.gpu->ops->free(h->r.gpu, h->log_sums);
    pair_free(&h->r, h->q);
    pair_free(&h->r, h->dq);
    pair_free(&h->r, h->out);
    pair_free(&h->r, h->dout);
    if (!is_joined) {
        pair_free(&h->r, h->k);
        pair_free(&h->r, h->v);
        pair_free(&h->r, h->dk);
        pair_free(&h->r, h->dv);
    }
    rig_close(&h->r);
}

static void heads_compute(heads_rig *h)
{
    compute *g = h->r.gpu;

    g->ops->attention(g, &h->gpu, h->out.gpu, h->log_sums);
    g->ops->attention_back(g, &h->gpu, h->out.gpu, h->dout.gpu, h->log_sums, h->dq.gpu, h->dk.gpu,
                           h->dv.gpu);
}

/* One head in double, the way it is written down; adds to dk and dv. */
static void head_naive(const heads_rig *h, size_t sequence, size_t head, double *p,
                       double *log_sums)
{
    const heads_args *a = &h->cpu;
    size_t            w = a->width, group = a->heads / a->kv_heads;
    size_t            q0 = sequence * a->length * a->q_stride + head * w;
    size_t            k0 = sequence * a->length * a->kv_stride + head / group * w;
    size_t            o0 = (sequence * a->length * a->heads + head) * w, o_stride = a->heads * w;
    double            scale = 1.0 / sqrt((double)w);

    for (size_t t = 0; t < a->length; t++) {
        double sum = 0.0, delta = 0.0;

        for (size_t s = 0; s <= t; s++) {
            p[s] = 0.0;
            for (size_t c = 0; c < w; c++) {
                p[s] += (double)h->q.cpu[q0 + t * a->q_stride + c] *
                        (double)h->k.cpu[k0 + s * a->kv_stride + c];
            }
            sum += exp(p[s] * scale);
        }
        log_sums[t] = log(sum);
        for (size_t c = 0; c < w; c++) {
            double y = 0.0;

            for (size_t s = 0; s <= t; s++) {
                y += exp(p[s] * scale) / sum * (double)h->v.cpu[k0 + s * a->kv_stride + c];
            }
            h->out.cpu[o0 + t * o_stride + c] = (float)y;
            delta += y * (double)h->dout.cpu[o0 + t * o_stride + c];
            h->dq.cpu[q0 + t * a->q_stride + c] = 0.0f;
        }
        for (size_t s = 0; s <= t; s++) {
            double score = exp(p[s] * scale) / sum, dp = 0.0;

            for (size_t c = 0; c < w; c++) {
                double d = (double)h->dout.cpu[o0 + t * o_stride + c];

                dp += d * (double)h->v.cpu[k0 + s * a->kv_stride + c];
                h->dv.cpu[k0 + s * a->kv_stride + c] += (float)(score * d);
            }
            for (size_t c = 0; c < w; c++) {
                double ds = score * (dp - delta) * scale;

                h->dq.cpu[q0 + t * a->q_stride + c] +=
                    (float)(ds * (double)h->k.cpu[k0 + s * a->kv_stride + c]);
                h->dk.cpu[k0 + s * a->kv_stride + c] +=
                    (float)(ds * (double)h->q.cpu[q0 + t * a->q_stride + c]);
            }
        }
    }
}

/* The gradient of the bias of the product that made q, k and v: sums of the columns of theirs,
 * which attention may have made. */
static void bias_check(heads_rig *h, size_t wide)
{
    rig *r = &h->r;
    pair x = pair_make(r, r->rows * wide, 9, 1.0f), dx = pair_make(r, r->rows * wide, 10, 1.0f);
    pair weight  = pair_make(r, 3 * wide * wide, 11, 1.0f),
         dweight = pair_make(r, 3 * wide * wide, 12, 1.0f);
    pair bias = pair_make(r, 3 * wide, 13, 1.0f), dbias = pair_make(r, 3 * wide, 14, 1.0f);
    pair all[] = {x, dx, weight, dweight, bias, dbias};

    linear_back_args on_cpu = {.shape  = {r->rows, wide, 3 * wide},
                               .x      = x.cpu,
                               .dy     = h->dq.cpu,
                               .weight = cpu_tensor(weight, dweight),
                               .bias   = cpu_tensor(bias, dbias),
                               .dx     = dx.cpu};
    linear_back_args on_gpu = on_cpu;

    on_gpu.x      = x.gpu;
    on_gpu.dy     = h->dq.gpu;
    on_gpu.weight = gpu_tensor(r, weight, dweight);
    on_gpu.bias   = gpu_tensor(r, bias, dbias);
    on_gpu.dx     = dx.gpu;
    r->cpu->ops->linear_back(r->cpu, &on_cpu);
    r->gpu->ops->linear_back(r->gpu, &on_gpu);
    pair_check(r, "gradient of the bias", dbias);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        pair_free(r, all[i]);
    }
}

static void heads_check(heads_case c, sherd_dtype dtype)
{
    heads_rig h    = heads_open(c, dtype);
    size_t    rows = c.batch * c.length, kv_wide = c.kv_heads * c.width;
    float    *got_logs = keep(&h.r, calloc(h.num_log_sums, sizeof(*got_logs)));
    double   *p        = keep(&h.r, calloc(c.length, sizeof(*p)));
    double   *log_sums = keep(&h.r, calloc(h.num_log_sums, sizeof(*log_sums)));

    for (size_t r = 0; r < rows; r++) {
        memset(h.dk.cpu + r * h.cpu.kv_stride, 0, kv_wide * sizeof(float));
        memset(h.dv.cpu + r * h.cpu.kv_stride, 0, kv_wide * sizeof(float));
    }
    for (size_t i = 0; i < c.batch * c.heads; i++) {
        head_naive(&h, i / c.heads, i % c.heads, p, log_sums + i * c.length);
    }
    heads_compute(&h);
    if (want_note != NULL) {
        test_check_contains(__FILE__, __LINE__, h.r.gpu->note, want_note);
    }
    pair_check(&h.r, "attention", h.out);
    device_get(&h.r, h.log_sums, got_logs, h.num_log_sums * sizeof(float));
    for (size_t i = 0; i < h.num_log_sums; i++) {
        if (!(fabs((double)got_logs[i] - log_sums[i]) < 2e-5)) {
            test_fail(__FILE__, __LINE__, "log sum %zu: %.9g, not %.9g", i, (double)got_logs[i],
                      log_sums[i]);
        }
    }
    h.r.slack =
        3.0; /* differences of near numbers, one of which is a sum over the rounded output */
    pair_check(&h.r, "gradient of q", h.dq); /* joined: of all three */
    if (c.is_joined) {
        bias_check(&h, c.heads * c.width);
    } else {
        pair_check(&h.r, "gradient of k", h.dk);
        pair_check(&h.r, "gradient of v", h.dv);
    }
    heads_close(&h, c.is_joined);
}

/* Computes twice, and fails where the gradients' bits differ. */
static void bits_check(heads_case c, sherd_dtype dtype)
{
    heads_rig h     = heads_open(c, dtype);
    size_t    bytes = h.dq.count * sherd_dtype_bytes(dtype),
           less     = h.dk.count * sherd_dtype_bytes(dtype);
    char *first = keep(&h.r, malloc(3 * bytes)), *second = keep(&h.r, malloc(3 * bytes));

    for (int time = 0; time < 2; time++) {
        char *to = time == 0 ? first : second;

        heads_compute(&h);
        device_get(&h.r, h.dq.gpu, to, bytes);
        device_get(&h.r, h.dk.gpu, to + bytes, less);
        device_get(&h.r, h.dv.gpu, to + bytes + less, less);
    }
    CHECK_BYTES_EQUAL(first, second, bytes + 2 * less);
    heads_close(&h, 0);
}

/* All lengths where tiles end, on one narrow head; then widths, groups and strides. */
static void attention_matches_its_definition(void)
{
    static const size_t     lengths[] = {1, 2, 63, 64, 65, 129, 200};
    static const heads_case others[]  = {
         {2, 70, 4, 2, 64, 0},  {1, 130, 3, 1, 96, 0}, {1, 66, 2, 2, 128, 0}, {2, 33, 2, 1, 48, 0},
         {1, 150, 2, 2, 64, 1}, {2, 20, 6, 3, 12, 0},  {1, 40, 2, 2, 80, 1},  {1, 35, 3, 3, 10, 1},
    };

    for (int dtype = SHERD_F32; dtype <= SHERD_F16; dtype++) {
        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            heads_check((heads_case){1, lengths[i], 2, 1, 32, 0}, (sherd_dtype)dtype);
        }
        for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
            heads_check(others[i], (sherd_dtype)dtype);
        }
    }
}

/* Chooses warpgroups' products; ends the case as skipped where the device has none. */
static void warpgroups_need(void)
{
    struct cudaDeviceProp properties;

    CHECK(cudaGetDeviceProperties(&properties, 0) == cudaSuccess);
    if (properties.major != 9 || properties.minor != 0) {
        test_skip("the device has no products of warpgroups: its compute capability is %d.%d",
                  properties.major, properties.minor);
    }
    choices.attention = ATTENTION_WARPGROUP;
}

/* Lengths where tiles, the rows of a group and those of a block end; one, two and three blocks of
 * rows; groups of heads; more works than the device has multiprocessors. */
static void warpgroups_match_the_definition(void)
{
    static const heads_case CASES[] = {
        {1, 1, 1, 1, 64, 0},    {1, 2, 2, 1, 64, 0},    {1, 63, 1, 1, 64, 1},
        {1, 64, 2, 2, 64, 0},   {1, 65, 1, 1, 64, 0},   {2, 127, 1, 1, 64, 0},
        {1, 128, 2, 1, 64, 0},  {1, 129, 3, 3, 64, 1},  {1, 193, 1, 1, 64, 0},
        {1, 257, 2, 1, 64, 0},  {3, 70, 6, 2, 64, 0},   {1, 385, 1, 1, 64, 1},
        {2, 640, 1, 1, 64, 0},  {3, 70, 2, 2, 64, 1},   {2, 128, 3, 3, 64, 1},
        {1, 1, 2, 1, 128, 0},   {1, 63, 1, 1, 128, 1},  {2, 64, 2, 1, 128, 0},
        {1, 65, 4, 1, 128, 0},  {1, 127, 1, 1, 128, 0}, {1, 130, 7, 1, 128, 0},
        {1, 193, 2, 2, 128, 1}, {1, 390, 2, 1, 128, 0}, {3, 70, 2, 1, 128, 0},
    };

    static const char UNFIT[] =
        "attention without warpgroups' products: they need heads of 64 or 128 elements of 16 bits";

    warpgroups_need();
    want_note = "attention by warpgroups' products";
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        heads_check(CASES[i], i % 3 == 2 ? SHERD_F16 : SHERD_BF16);
    }
    want_note = UNFIT; /* the other kernels do it */
    heads_check((heads_case){1, 40, 2, 2, 80, 1}, SHERD_BF16);
    heads_check(CASES[1], SHERD_F32);
    want_note         = NULL;
    choices.attention = ATTENTION_OWN;
}

static void warpgroups_give_the_same_bits_again(void)
{
    warpgroups_need();
    bits_check((heads_case){2, 200, 4, 2, 64, 0}, SHERD_BF16);
    bits_check((heads_case){1, 200, 4, 1, 128, 0}, SHERD_BF16);
    choices.attention = ATTENTION_OWN;
}

static void auto_takes_warpgroups_where_it_can(void)
{
    warpgroups_need();
    choices.attention = ATTENTION_AUTO;
    want_note         = "attention by warpgroups' products";
    heads_check((heads_case){1, 40, 2, 2, 64, 1}, SHERD_BF16);
    want_note = "attention by ";
    heads_check((heads_case){1, 40, 2, 2, 80, 1}, SHERD_BF16);
    want_note         = NULL;
    choices.attention = ATTENTION_OWN;
}

static void attention_gives_the_same_bits_again(void)
{
    for (int dtype = SHERD_F32; dtype <= SHERD_BF16; dtype++) {
        bits_check((heads_case){2, 100, 4, 2, 64, 0}, (sherd_dtype)dtype);
    }
}

#ifdef TEST_EMULATED
/* What a head gives, forward and back, on a device whose blocks have so much shared memory. */
static char *heads_bits(heads_case c, sherd_dtype dtype, size_t block_bytes, size_t *bytes_out)
{
    heads_rig h;
    size_t    bytes = 0;
    char     *bits;

    emulator_limit_shared(block_bytes);
    h = heads_open(c, dtype);

    const struct {
        const void *at;
        size_t      bytes;
    } arrays[] = {{h.out.gpu, h.out.count * sherd_dtype_bytes(dtype)},
                  {h.log_sums, h.num_log_sums * sizeof(float)},
                  {h.dq.gpu, h.dq.count * sherd_dtype_bytes(dtype)},
                  {h.dk.gpu, h.dk.count * sherd_dtype_bytes(dtype)},
                  {h.dv.gpu, h.dv.count * sherd_dtype_bytes(dtype)}};

    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        bytes += arrays[i].bytes;
    }
    bits = malloc(bytes); /* the caller's: outlives the rig */
    CHECK(bits != NULL);
    heads_compute(&h);
    bytes = 0;
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        device_get(&h.r, arrays[i].at, bits + bytes, arrays[i].bytes);
        bytes += arrays[i].bytes;
    }
    heads_close(&h, 0);
    *bytes_out = bytes;
    return bits;
}

/* 8.6, 8.9 and 12.x give a block 99 KiB and all blocks of a multiprocessor 100, 8.0 163 and 164:
 * fewer tiles at a time there, with the same sums, where one block would fit alone, and as on 9.0
 * where two do or less would not make two. */
static void attention_takes_less_shared_memory_where_two_blocks_would_not_fit(void)
{
    static const struct {
        heads_case heads;
        size_t     block_kib,
            most_bytes; /* of the largest block of forward and backward; 0: as on 9.0 */
    } CASES[] = {
        {{1, 100, 2, 1, 32, 0}, 99, 0},      {{1, 300, 2, 1, 64, 0}, 99, 46080},
        {{2, 70, 1, 1, 64, 0}, 99, 46080},   {{1, 130, 4, 2, 48, 0}, 99, 46080},
        {{1, 70, 1, 1, 64, 0}, 163, 0},      {{1, 70, 1, 1, 96, 0}, 99, 0},
        {{1, 100, 2, 1, 128, 0}, 99, 87040}, {{1, 70, 1, 1, 104, 0}, 163, 87040},
    };

    for (int dtype = SHERD_BF16; dtype <= SHERD_F16; dtype++) {
        for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
            size_t bytes, most_there, most;
            char  *want, *got;

            (void)emulator_most_shared();
            want       = heads_bits(CASES[i].heads, (sherd_dtype)dtype, 0, &bytes);
            most_there = emulator_most_shared();
            got  = heads_bits(CASES[i].heads, (sherd_dtype)dtype, CASES[i].block_kib << 10, &bytes);
            most = emulator_most_shared();
            CHECK_INT(CASES[i].most_bytes != 0 ? CASES[i].most_bytes : most_there, most);
            CHECK_BYTES_EQUAL(want, got, bytes);
            free(want);
            free(got);
        }
    }
    emulator_limit_shared(0);
}

static void attention_that_fits_nowhere_is_refused(void)
{
    compute_limits limits = {
        .batch = 1, .length = 8, .hidden = 64, .inner = 16, .heads = 1, .vocab = 16};
    compute_params params   = {.limits = limits};
    char           why[256] = "";

    params.limits.dtype = SHERD_BF16;
    emulator_limit_shared((size_t)64 << 10);
    CHECK(compute_cuda_create(&params, why, sizeof(why)) == NULL);
    emulator_limit_shared(0);
    test_check_contains(__FILE__, __LINE__, why, "65536 bytes of shared memory");
}
#endif

static const test_case cases[] = {
    CASE(attention_matches_its_definition),
    CASE(warpgroups_match_the_definition),
    CASE(warpgroups_give_the_same_bits_again),
    CASE(auto_takes_warpgroups_where_it_can),
    CASE(attention_gives_the_same_bits_again),
#ifdef TEST_EMULATED
    CASE(attention_takes_less_shared_memory_where_two_blocks_would_not_fit),
    CASE(attention_that_fits_nowhere_is_refused),
#endif
};

RUN_MAIN(cases)

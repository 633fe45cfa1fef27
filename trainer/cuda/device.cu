/* The GPU's operations of compute.h: its memory, the queue of a micro-batch, and the kernel of each
 * operation. All work is queued on the engine's stream. The first failure is stored and reported
 * when the losses are taken. After create, only the first product of a shape allocates memory. */
extern "C" {
#include "trainer/compute.h"
}

#include "attention_choice.h"
#include "graphs.h"
#include "kernels.h"
#include "lt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A copy on the host that the device may still be reading. */
typedef struct batch_slot {
    unsigned char *memory; /* pinned */
    cudaEvent_t    copied;
} batch_slot;

typedef struct cuda {
    compute        base;
    compute_limits limits;
    compute_choices choices;
    size_t         rows;
    cudaStream_t   stream;
    lt            *products;
    attention_kernels *attention;
    tuned         *measured; /* NULL: kernels are not measured */
    graphs        *passes;   /* NULL: every pass is queued without a graph */
    shared_memory  shared; /* memory of the device's multiprocessors */
    cudaError_t    error;
    int            has_failed; /* base.why says why */

    char        *scratch; /* in device memory; `at` points into it */
    size_t       scratch_bytes;
    cuda_scratch at;

    batch_slot slots[2];
    size_t     num_batches;
    /* of the micro-batch; repeated_at is an offset in `batch` */
    size_t     num_ranges, num_repeated, repeated_at;
    int32_t   *token_counts;                          /* [vocab + 1] */
    float     *host;                                  /* pinned; a row of logits */
    /* pinned; what losses_take gives, once `closed` */
    double    *losses;
    cudaEvent_t closed;
    int        has_closed; /* losses_take has not returned it yet */
    float      grad_scale;
    /* The last output of the backward of a norm or of attention, if at.columns has the sums of its
     * columns, which are the gradient of the bias of a product that made its input. NULL: none. */
    const void *summed;
    size_t      num_sums; /* of each column of `summed` */
} cuda;

static cuda *cuda_of(compute *c)
{
    return (cuda *)c;
}

/* ------------------------------------------------------------ failures -- */

static void failed(cuda *m, const char *what)
{
    if (!m->has_failed) {
        (void)snprintf(m->base.why, sizeof(m->base.why), "%s", what);
        m->has_failed = 1;
    }
}

static void check(cuda *m, cudaError_t error)
{
    if (error != cudaSuccess && !m->has_failed) {
        (void)snprintf(m->base.why, sizeof(m->base.why), "work on the GPU failed: %s",
                       cudaGetErrorString(error));
        m->has_failed = 1;
    }
}

/* Is called after kernels were queued. */
static void check_queued(cuda *m)
{
    check(m, cudaGetLastError());
}

/* Writes what there is to say so far: whose attention, and how many passes are graphs. */
static void notes_join(cuda *m)
{
    const char *attention = attention_kernels_note(m->attention);
    size_t      len       = (size_t)snprintf(m->base.note, sizeof(m->base.note), "%s", attention);

    if (m->passes != NULL) {
        (void)snprintf(m->base.note + len, sizeof(m->base.note) - len, "%s%zu passes of units as graphs", len > 0 ? "; " : "",
                       graphs_count(m->passes));
    }
}

/* Is called before an operation writes the gradient `to`: its sums would be those of the old
 * values. */
static void written(cuda *m, const void *to)
{
    if (to == m->summed) {
        m->summed = NULL;
    }
}

/* -------------------------------------------------------------- memory -- */

static void cuda_destroy(compute *c)
{
    cuda *m = cuda_of(c);

    (void)cudaStreamSynchronize(m->stream);
    lt_destroy(m->products);
    attention_kernels_destroy(m->attention);
    graphs_destroy(m->passes);
    tuned_close(m->measured);
    for (int i = 0; i < 2; i++) {
        (void)cudaFreeHost(m->slots[i].memory);
        if (m->slots[i].copied != NULL) {
            (void)cudaEventDestroy(m->slots[i].copied);
        }
    }
    (void)cudaFreeHost(m->host);
    (void)cudaFreeHost(m->losses);
    if (m->closed != NULL) {
        (void)cudaEventDestroy(m->closed);
    }
    (void)cudaFree(m->scratch);
    free(m->token_counts);
    free(m);
}

static size_t cuda_scratch_bytes(const compute *c)
{
    const cuda *m = (const cuda *)c;

    return m->scratch_bytes + lt_bytes(m->products) + attention_kernels_bytes(m->attention);
}

static void *cuda_alloc(compute *c, size_t len_bytes)
{
    void *memory = NULL;

    (void)c;
    if (cudaMalloc(&memory, len_bytes) != cudaSuccess) {
        (void)cudaGetLastError(); /* the caller reports it, once */
        return NULL;
    }
    return memory;
}

static void cuda_free(compute *c, void *memory)
{
    (void)cudaStreamSynchronize(cuda_of(c)->stream);
    written(cuda_of(c), memory);
    (void)cudaFree(memory);
}

static void cuda_upload(compute *c, void *dst, const void *src, size_t len_bytes)
{
    cuda *m = cuda_of(c);

    written(m, dst);
    if (len_bytes > 0) {
        check(m, cudaMemcpyAsync(dst, src, len_bytes, cudaMemcpyHostToDevice, m->stream));
        check(m, cudaStreamSynchronize(m->stream));
    }
}

static void cuda_copy(compute *c, void *dst, const void *src, size_t len_bytes)
{
    cuda *m = cuda_of(c);

    written(m, dst);
    check(m, cudaMemcpyAsync(dst, src, len_bytes, cudaMemcpyDeviceToDevice, m->stream));
}

/* --------------------------------------------------------------- batch -- */

/* Puts the rows in the order of their tokens and makes the ranges of each token (kernels.h). The
 * host does this by counting, so the gradient of the table needs neither atomics nor a sort on the
 * device. Returns how many bytes to copy. */
static size_t batch_sort(cuda *m, unsigned char *memory, const int32_t *inputs)
{
    int32_t     *starts   = m->token_counts; /* at first starts[token + 1] counts the token */
    int32_t     *order    = (int32_t *)(memory + m->at.layout.order);
    embed_range *ranges   = (embed_range *)(memory + m->at.layout.ranges);
    embed_token *repeated = NULL;
    size_t       vocab    = m->limits.vocab;
    int32_t      slots = 0, end = 0;

    memset(starts, 0, (vocab + 1) * sizeof(*starts));
    for (size_t r = 0; r < m->rows; r++) {
        starts[inputs[r] + 1]++;
    }
    for (size_t token = 0; token < vocab; token++) {
        starts[token + 1] += starts[token];
    }
    for (size_t r = 0; r < m->rows; r++) {
        order[starts[inputs[r]]++] = (int32_t)r;
    }
    /* now starts[token] is where the next token begins */
    m->num_ranges   = 0;
    m->num_repeated = 0;
    for (size_t token = 0, first = 0; token < vocab; first = (size_t)end, token++) {
        int32_t count = starts[token] - (int32_t)first;

        end = starts[token];
        for (int32_t at = 0; at < count; at += EMBED_RANGE_ROWS) {
            embed_range *range = &ranges[m->num_ranges++];

            range->first = (int32_t)first + at;
            range->count = count - at < EMBED_RANGE_ROWS ? count - at : EMBED_RANGE_ROWS;
            range->token = (int32_t)token;
            range->slot  = count > EMBED_RANGE_ROWS ? slots++ : -1;
        }
    }
    m->repeated_at = m->at.layout.ranges + m->num_ranges * sizeof(*ranges);
    repeated       = (embed_token *)(memory + m->repeated_at);
    for (size_t i = 0; i < m->num_ranges; i++) {
        if (ranges[i].slot < 0) {
            continue;
        }
        if (i == 0 || ranges[i - 1].token != ranges[i].token) {
            embed_token *token = &repeated[m->num_repeated++];

            token->first_slot = ranges[i].slot;
            token->slots      = 0;
            token->token      = ranges[i].token;
            token->reserved   = 0;
        }
        repeated[m->num_repeated - 1].slots++;
    }
    return m->repeated_at + m->num_repeated * sizeof(*repeated);
}

static void cuda_batch_set(compute *c, const int32_t *inputs, const int32_t *targets)
{
    cuda       *m    = cuda_of(c);
    batch_slot *slot = &m->slots[m->num_batches++ % 2];
    size_t      bytes;

    /* the copy of the micro-batch before the last one */
    check(m, cudaEventSynchronize(slot->copied));
    memcpy(slot->memory + m->at.layout.inputs, inputs, m->rows * sizeof(*inputs));
    memcpy(slot->memory + m->at.layout.targets, targets, m->rows * sizeof(*targets));
    bytes = batch_sort(m, slot->memory, inputs);
    check(m, cudaMemcpyAsync(m->at.batch, slot->memory, bytes, cudaMemcpyHostToDevice, m->stream));
    check(m, cudaEventRecord(slot->copied, m->stream));
}

static void cuda_losses_close(compute *c)
{
    cuda *m = cuda_of(c);

    check(m, cudaMemcpyAsync(m->losses, m->at.loss_sum, sizeof(double), cudaMemcpyDeviceToHost, m->stream));
    check(m, cudaMemsetAsync(m->at.loss_sum, 0, sizeof(double), m->stream));
    check(m, cudaEventRecord(m->closed, m->stream));
    m->has_closed = 1;
}

static sherd_status cuda_losses_take(compute *c, double *sum_out)
{
    cuda *m = cuda_of(c);

    if (!m->has_closed) {
        cuda_losses_close(c);
    }
    m->has_closed = 0;
    check(m, cudaEventSynchronize(m->closed));
    if (m->has_failed) {
        return SHERD_E_DEVICE;
    }
    *sum_out = *m->losses;
    return SHERD_OK;
}

static void cuda_logits_get(compute *c, size_t row, float *out)
{
    cuda  *m     = cuda_of(c);
    size_t bytes = m->limits.vocab * sizeof(*out);

    widen_launch(m->limits.dtype,
                 (const char *)m->at.logits + row * m->at.logits_stride * m->base.elem_bytes,
                 m->at.logits_row, m->limits.vocab, m->stream);
    check_queued(m);
    check(m, cudaMemcpyAsync(m->host, m->at.logits_row, bytes, cudaMemcpyDeviceToHost, m->stream));
    check(m, cudaStreamSynchronize(m->stream));
    memcpy(out, m->host, bytes);
}

/* -------------------------------------------------------------- passes -- */

static void check_graphs(cuda *m)
{
    if (graphs_error(m->passes) != cudaSuccess && !m->has_failed) {
        (void)cudaGetLastError();
        (void)snprintf(m->base.why, sizeof(m->base.why), "a pass cannot be captured on the GPU as a graph (%s): train without --graphs",
                       cudaGetErrorString(graphs_error(m->passes)));
        m->has_failed = 1;
    }
}

/* After a failure nothing is captured. */
static int cuda_pass_begin(compute *c, size_t pass, const void *key, size_t key_bytes)
{
    cuda *m = cuda_of(c);
    int   is_done;

    if (m->passes == NULL || m->has_failed) {
        return 0;
    }
    is_done = graphs_begin(m->passes, pass, key, key_bytes);
    check_graphs(m);
    return is_done;
}

static void cuda_pass_end(compute *c)
{
    cuda *m = cuda_of(c);

    if (m->passes != NULL) {
        graphs_end(m->passes);
        check_graphs(m);
        notes_join(m);
    }
}

/* ------------------------------------------------------------ products -- */

/* Queues one product. If no kernel adds the bias to it, the bias is added afterwards. */
static void multiply(cuda *m, lt_product p)
{
    lt_result result = lt_multiply(m->products, &p, m->stream);

    if (result == LT_UNFUSED && p.bias != NULL && p.gelu_x == NULL && p.gelu_back == NULL) {
        const void *bias = p.bias;

        p.bias = NULL;
        result = lt_multiply(m->products, &p, m->stream);
        bias_add_launch(p.dtype, p.m, p.n, bias, p.d,
                        m->stream); /* only linear has a bias, so d is contiguous */
        check_queued(m);
    }
    if (result != LT_OK) {
        failed(m, lt_why(m->products));
    }
}

static lt_matrix matrix(const void *data, size_t stride, int is_transposed)
{
    lt_matrix made;

    made.data          = data;
    made.stride        = stride;
    made.is_transposed = is_transposed;
    return made;
}

static lt_product product_of(const cuda *m, size_t rows, size_t columns, size_t depth)
{
    lt_product p;

    memset(&p, 0, sizeof(p));
    p.dtype    = m->limits.dtype;
    p.m        = rows;
    p.n        = columns;
    p.k        = depth;
    p.d_stride = columns;
    return p;
}

static void cuda_linear(compute *c, const linear_args *args)
{
    cuda        *m = cuda_of(c);
    linear_shape s = args->shape;
    lt_product   p = product_of(m, s.rows, s.out, s.in);

    p.a    = matrix(args->x, s.in, 0);
    p.b    = matrix(args->weight.data, s.in, 1);
    p.c    = args->residual;
    p.bias = args->bias.data;
    p.d    = args->y;
    if (args->gelu == NULL) {
        multiply(m, p);
        return;
    }
    p.d      = args->gelu;
    p.gelu_x = args->y;
    if (lt_multiply(m->products, &p, m->stream) != LT_OK) {
        p.d      = args->y;
        p.gelu_x = NULL;
        multiply(m, p);
        gelu_launch(p.dtype, s.rows * s.out, args->y, args->gelu, m->stream);
        check_queued(m);
    }
}

/* Adds the sums of the columns of dy to the gradient of the bias. */
static void bias_grad_sum(cuda *m, const void *dy, size_t rows, size_t columns, tensor bias)
{
    if (dy == m->summed) {
        columns_finish_launch(m->limits.dtype, m->at.columns, columns, m->num_sums, columns, bias.grad, m->stream);
    } else {
        column_sums_launch(m->limits.dtype, dy, rows, columns, m->at.partials, bias.grad, m->stream);
    }
    check_queued(m);
}

/* Computes the gradient of gelu_x: the product times gelu', with as few kernels as possible. */
static void input_grad_gelu(cuda *m, lt_product p, const linear_back_args *args)
{
    p.gelu_back = args->gelu_x;
    if (lt_multiply(m->products, &p, m->stream) != LT_OK) {
        p.gelu_back = NULL;
        multiply(m, p);
        gelu_back_launch(m->limits.dtype, args->shape.rows * args->shape.in, args->gelu_x, args->dx, m->stream);
        check_queued(m);
    }
}

static void weight_grad(cuda *m, const linear_back_args *args)
{
    linear_shape s      = args->shape;
    lt_product   weight = product_of(m, s.out, s.in, s.rows);

    weight.a = matrix(args->dy, s.out, 1);
    weight.b = matrix(args->x, s.in, 0);
    weight.c = args->weight.grad;
    weight.d = args->weight.grad;
    multiply(m, weight);
    if (args->bias.data != NULL) {
        bias_grad_sum(m, args->dy, s.rows, s.out, args->bias);
    }
}

static void input_grad(cuda *m, const linear_back_args *args)
{
    linear_shape s     = args->shape;
    lt_product   input = product_of(m, s.rows, s.in, s.out);

    written(m, args->dx);
    input.a = matrix(args->dy, s.out, 0);
    input.b = matrix(args->weight.data, s.in, 0);
    input.c = args->is_added ? args->dx : NULL;
    input.d = args->dx;
    if (args->gelu_x == NULL) {
        multiply(m, input);
    } else {
        input_grad_gelu(m, input, args);
    }
}

static void cuda_linear_back(compute *c, const linear_back_args *args)
{
    if (args->x != NULL) {
        weight_grad(cuda_of(c), args);
    }
    if (args->dx != NULL) {
        input_grad(cuda_of(c), args);
    }
}

/* --------------------------------------------------------- other rows -- */

static embed_launch embed_of(const cuda *m)
{
    embed_launch e;

    memset(&e, 0, sizeof(e));
    e.dtype        = m->limits.dtype;
    e.rows         = m->rows;
    e.length       = m->limits.length;
    e.hidden       = m->limits.hidden;
    e.ids          = (const int32_t *)(m->at.batch + m->at.layout.inputs);
    e.order        = (const int32_t *)(m->at.batch + m->at.layout.order);
    e.ranges       = (const embed_range *)(m->at.batch + m->at.layout.ranges);
    e.repeated     = (const embed_token *)(m->at.batch + m->repeated_at);
    e.num_ranges   = m->num_ranges;
    e.num_repeated = m->num_repeated;
    e.partials     = m->at.partials;
    return e;
}

static void cuda_embed(compute *c, tensor tokens, tensor positions, void *y)
{
    cuda        *m = cuda_of(c);
    embed_launch e = embed_of(m);

    e.tokens    = tokens.data;
    e.positions = positions.data;
    e.y         = y;
    embed_queue(&e, m->stream);
    check_queued(m);
}

static void cuda_embed_back(compute *c, const void *dy, tensor tokens, tensor positions)
{
    cuda        *m = cuda_of(c);
    embed_launch e = embed_of(m);

    e.dy         = dy;
    e.dtokens    = tokens.grad;
    e.dpositions = positions.data == NULL ? NULL : positions.grad;
    embed_queue(&e, m->stream);
    check_queued(m);
}

static norm_launch norm_of(const cuda *m, const norm_rows *args)
{
    norm_launch n;

    memset(&n, 0, sizeof(n));
    n.dtype    = m->limits.dtype;
    n.rows     = args->rows;
    n.width    = args->width;
    n.eps      = args->eps;
    n.x        = args->x;
    n.weight   = args->weight.data;
    n.bias     = args->bias.data;
    n.partials = m->at.partials;
    n.stats    = args->stats;
    return n;
}

static void cuda_norm(compute *c, const norm_rows *args, void *y)
{
    cuda       *m = cuda_of(c);
    norm_launch n = norm_of(m, args);

    n.y = y;
    norm_queue(&n, m->stream);
    check_queued(m);
}

static void cuda_norm_back(compute *c, const norm_rows *args, const void *dy, void *dx,
                           int is_added)
{
    cuda       *m = cuda_of(c);
    norm_launch n = norm_of(m, args);

    n.dy       = dy;
    n.dx       = dx;
    n.is_added = is_added;
    n.dweight  = args->weight.grad;
    n.dbias    = args->bias.grad;
    written(m, dx);
    if (args->rows == m->rows && args->width == m->limits.hidden && norm_sums_dx(&n)) {
        n.dx_partials = m->at.columns;
        m->summed     = dx;
        m->num_sums   = count_of(m->rows, NORM_CHUNK);
    }
    norm_queue(&n, m->stream);
    check_queued(m);
}

static void rope_compute(cuda *m, const rope_args *args, int is_backward)
{
    rope_launch l;

    memset(&l, 0, sizeof(l));
    l.dtype       = m->limits.dtype;
    l.rows        = m->rows;
    l.length      = m->limits.length;
    l.width       = args->width;
    l.eps         = args->eps;
    l.cosines     = args->cosines;
    l.sines       = args->sines;
    l.is_backward = is_backward;
    l.partials    = m->at.partials;
    for (int i = 0; i < 2; i++) {
        const rope_part *part = &args->parts[i];

        l.parts[i].heads   = part->heads;
        l.parts[i].x       = part->x;
        l.parts[i].weight  = part->weight.data;
        l.parts[i].y       = part->y;
        l.parts[i].dy      = part->dy;
        l.parts[i].dx      = part->dx;
        l.parts[i].dweight = part->weight.grad;
        if (is_backward) {
            written(m, part->dx);
        }
    }
    rope_queue(&l, m->stream);
    check_queued(m);
}

static void cuda_rope(compute *c, const rope_args *args)
{
    rope_compute(cuda_of(c), args, 0);
}

static void cuda_rope_back(compute *c, const rope_args *args)
{
    rope_compute(cuda_of(c), args, 1);
}

static attention_launch attention_of(const cuda *m, const heads_args *args, const void *out, const float *log_sums)
{
    attention_launch a;

    memset(&a, 0, sizeof(a));
    a.dtype    = m->limits.dtype;
    a.shape    = *args;
    a.out      = (void *)out;
    a.log_sums = (float *)log_sums;
    a.deltas   = m->at.deltas;
    return a;
}

static void attention_compute(cuda *m, const attention_launch *a)
{
    bool is_first = m->base.attention == ATTENTION_AUTO;
    char why[200];

    if (attention_kernels_queue(m->attention, *a, m->stream, why, sizeof(why)) != 0) {
        failed(m, why);
    }
    m->base.attention = attention_kernels_used(m->attention);
    if (is_first) {
        notes_join(m);
    }
    check_queued(m);
}

static void cuda_attention(compute *c, const heads_args *args, void *out, float *log_sums)
{
    cuda            *m = cuda_of(c);
    attention_launch a = attention_of(m, args, out, log_sums);

    attention_compute(m, &a);
}

static void cuda_attention_back(compute *c, const heads_args *args, const void *out,
                                const void *dout, const float *log_sums, void *dq, void *dk,
                                void *dv)
{
    cuda            *m = cuda_of(c);
    attention_launch a = attention_of(m, args, out, log_sums);

    written(m, dq);
    written(m, dk);
    written(m, dv);
    a.dout = dout;
    a.dq   = dq;
    a.dk   = dk;
    a.dv   = dv;
    if (attention_kernels_sum_columns(m->attention, &a)) {
        a.columns   = m->at.columns;
        m->summed   = dq;
        m->num_sums = args->batch * count_of(args->length, ATTENTION_CHUNK);
    }
    attention_compute(m, &a);
}

static void cuda_gelu(compute *c, size_t elems, const void *x, void *y)
{
    cuda *m = cuda_of(c);

    gelu_launch(m->limits.dtype, elems, x, y, m->stream);
    check_queued(m);
}

static void cuda_swiglu(compute *c, size_t elems, const void *gate, const void *up, void *y)
{
    cuda *m = cuda_of(c);

    swiglu_launch(m->limits.dtype, elems, gate, up, y, m->stream);
    check_queued(m);
}

static void cuda_swiglu_back(compute *c, size_t elems, const void *gate, const void *up, void *y,
                             void *d, void *dgate)
{
    cuda *m = cuda_of(c);

    written(m, y);
    written(m, d);
    written(m, dgate);
    swiglu_back_launch(m->limits.dtype, elems, gate, up, y, d, dgate, m->stream);
    check_queued(m);
}

/* ---------------------------------------------------------------- head -- */

/* Address of an element of an array of activations or parameters. */
static const void *elem_at(const cuda *m, const void *base, size_t elems)
{
    return (const char *)base + elems * m->base.elem_bytes;
}

static void *elem_of(const cuda *m, void *base, size_t elems)
{
    return (char *)base + elems * m->base.elem_bytes;
}

/* Returns the largest multiple of eight in the vocabulary. With another size (GPT-2 has 50,257)
 * products could not use the fast kernels. So one product is computed for this many tokens, and
 * another one for the few remaining tokens. */
static size_t vocab_whole(const cuda *m)
{
    return m->limits.vocab / 8 * 8;
}

/* logits[rows, first .. first + count) = x . weight'. */
static void logits_make(cuda *m, const void *x, tensor weight, size_t rows, size_t first,
                        size_t count)
{
    size_t     hidden = m->limits.hidden;
    lt_product p      = product_of(m, rows, count, hidden);

    p.a        = matrix(x, hidden, 0);
    p.b        = matrix(elem_at(m, weight.data, first * hidden), hidden, 1);
    p.d        = elem_of(m, m->at.logits, first);
    p.d_stride = m->at.logits_stride;
    multiply(m, p);
}

/* Makes the product add to the gradient of the weight: to the gradient itself, rounded to its type;
 * or to a copy in fp32, if the rows come in several parts. */
static void head_grad_set(const cuda *m, lt_product *p, tensor weight, size_t first_elem, int is_first)
{
    if (m->at.head_grad_elems == 0) {
        p->c = elem_at(m, weight.grad, first_elem);
        p->d = elem_of(m, weight.grad, first_elem);
        return;
    }
    p->is_wide = 1;
    p->d       = m->at.head_grad + first_elem;
    p->c       = is_first ? NULL : p->d;
}

/* Backward through the logits of `count` tokens for a part of the rows: computes the gradient of
 * the weight's rows of these tokens, and dx. */
static void logits_back(cuda *m, const void *x, tensor weight, size_t rows, size_t first,
                        size_t count, void *dx, int is_added, int is_first_part)
{
    size_t      hidden  = m->limits.hidden;
    const void *dlogits = elem_at(m, m->at.logits, first);
    lt_product  grad    = product_of(m, count, hidden, rows);
    lt_product  input   = product_of(m, rows, hidden, count);

    grad.a = matrix(dlogits, m->at.logits_stride, 1);
    grad.b = matrix(x, hidden, 0);
    head_grad_set(m, &grad, weight, first * hidden, is_first_part);
    multiply(m, grad);
    input.a = matrix(dlogits, m->at.logits_stride, 0);
    input.b = matrix(elem_at(m, weight.data, first * hidden), hidden, 0);
    input.c = is_added ? dx : NULL;
    input.d = dx;
    multiply(m, input);
}

/* Computes the losses of all rows, a part of them at a time; if dx is not NULL, also the
 * gradients. */
static void head_run(cuda *m, const void *x, tensor weight, void *dx)
{
    size_t hidden = m->limits.hidden, vocab = m->limits.vocab, whole = vocab_whole(m);

    for (size_t row = 0; row < m->rows; row += m->at.logits_rows) {
        const void    *portion = elem_at(m, x, row * hidden);
        size_t         rows = size_min(m->at.logits_rows, m->rows - row);
        entropy_launch e;

        if (whole > 0) {
            logits_make(m, portion, weight, rows, 0, whole);
        }
        if (whole < vocab) {
            logits_make(m, portion, weight, rows, whole, vocab - whole);
        }
        memset(&e, 0, sizeof(e));
        e.dtype      = m->limits.dtype;
        e.rows       = rows;
        e.vocab      = vocab;
        e.stride     = m->at.logits_stride;
        e.logits     = m->at.logits;
        e.targets    = (const int32_t *)(m->at.batch + m->at.layout.targets) + row;
        e.losses     = m->at.losses + row;
        e.grad_scale = dx == NULL ? 0.0f : m->grad_scale / (float)m->rows;
        e.memory     = m->shared;
        entropy_launch_rows(&e, m->stream);
        if (dx != NULL && whole > 0) {
            logits_back(m, portion, weight, rows, 0, whole, elem_of(m, dx, row * hidden), 0, row == 0);
        }
        if (dx != NULL && whole < vocab) {
            logits_back(m, portion, weight, rows, whole, vocab - whole,
                        elem_of(m, dx, row * hidden), whole > 0, row == 0);
        }
    }
    if (dx != NULL && m->at.head_grad_elems > 0) {
        add_wide_launch(m->limits.dtype, vocab * hidden, m->at.head_grad, weight.grad, m->stream);
    }
    loss_finish_launch(m->at.losses, m->rows, m->at.loss_sum, m->stream);
    check_queued(m);
}

/* Only backward has the weight's gradient, so only backward computes the logits, unless no backward
 * follows. */
static void cuda_head(compute *c, const void *x, tensor weight, float grad_scale)
{
    cuda *m = cuda_of(c);

    m->grad_scale = grad_scale;
    if (grad_scale == 0.0f) {
        head_run(m, x, weight, NULL);
    }
}

static void cuda_head_back(compute *c, const void *x, tensor weight, void *dx)
{
    written(cuda_of(c), dx);
    head_run(cuda_of(c), x, weight, dx);
}

/* -------------------------------------------------------------- create -- */

static const compute_ops cuda_ops = {
    sizeof(compute_ops), "cuda",          cuda_destroy,   cuda_scratch_bytes,  cuda_alloc,
    cuda_free,           cuda_upload,     cuda_copy,      cuda_batch_set,      cuda_losses_close,
    cuda_losses_take,    cuda_logits_get,
    cuda_pass_begin,     cuda_pass_end,
    cuda_embed,          cuda_embed_back, cuda_linear,    cuda_linear_back,    cuda_norm,
    cuda_norm_back,      cuda_rope,       cuda_rope_back, cuda_attention,      cuda_attention_back,
    cuda_gelu,           cuda_swiglu,     cuda_swiglu_back, cuda_head,         cuda_head_back,
};

static int memory_make(cuda *m, char *why, size_t why_bytes)
{
    const compute_limits *l     = &m->limits;
    cudaError_t           error = cudaSuccess;
    room                  r     = {NULL, 0};

    m->token_counts = (int32_t *)calloc(l->vocab + 1, sizeof(*m->token_counts));
    cuda_scratch_lay_out(l, &r, &m->at);
    m->scratch_bytes = r.used_bytes;
    error            = cudaMalloc((void **)&m->scratch, m->scratch_bytes);
    if (error == cudaSuccess) {
        error = cudaHostAlloc((void **)&m->host, l->vocab * sizeof(float), cudaHostAllocDefault);
    }
    if (error == cudaSuccess) {
        error = cudaHostAlloc((void **)&m->losses, sizeof(*m->losses), cudaHostAllocDefault);
    }
    if (error == cudaSuccess) {
        error = cudaEventCreateWithFlags(&m->closed, cudaEventDisableTiming);
    }
    for (int i = 0; error == cudaSuccess && i < 2; i++) {
        error = cudaHostAlloc((void **)&m->slots[i].memory, m->at.layout.most_bytes,
                              cudaHostAllocDefault);
        if (error == cudaSuccess) {
            error = cudaEventCreateWithFlags(&m->slots[i].copied, cudaEventDisableTiming);
        }
    }
    if (error != cudaSuccess || m->token_counts == NULL) {
        (void)cudaGetLastError();
        (void)snprintf(why, why_bytes,
                       "no memory for %.1f MiB of logits and scratch on the GPU (%s); a smaller "
                       "--batch needs less",
                       (double)m->scratch_bytes / 0x1p20, cudaGetErrorString(error));
        return -1;
    }
    r.memory     = m->scratch;
    r.used_bytes = 0;
    cuda_scratch_lay_out(l, &r, &m->at);
    error = cudaMemsetAsync(m->at.loss_sum, 0, sizeof(double), m->stream);
    if (error != cudaSuccess) {
        (void)snprintf(why, why_bytes, "the GPU cannot be used: %s", cudaGetErrorString(error));
        return -1;
    }
    return 0;
}

/* Returns a number that describes the device, unless there was an error before. */
static int device_number(int device, cudaDeviceAttr attribute, cudaError_t *error)
{
    int value = 0;

    if (*error == cudaSuccess) {
        *error = cudaDeviceGetAttribute(&value, attribute, device);
    }
    return value;
}

/* Makes the device of the engine's stream the thread's current one. It need not be the first
 * device. */
static int device_enter(cuda *m, char *why, size_t why_bytes)
{
    int              device = 0, major, minor, block_bytes, processor_bytes;
    attention_params attention;
    cudaDeviceProp   properties;
    cudaError_t      error;

#if CUDART_VERSION >= 12080
    error = cudaStreamGetDevice(m->stream, &device);
    if (error == cudaErrorCallRequiresNewerDriver) { /* the driver is older than this toolkit */
        (void)cudaGetLastError();
        error = cudaGetDevice(&device);
    }
#else
    error = cudaGetDevice(&device); /* the engine has made its device the current one */
#endif
    if (error == cudaSuccess) {
        error = cudaSetDevice(device);
    }
    if (error == cudaSuccess) {
        error = cudaGetDeviceProperties(&properties, device);
    }
    major           = device_number(device, cudaDevAttrComputeCapabilityMajor, &error);
    minor           = device_number(device, cudaDevAttrComputeCapabilityMinor, &error);
    block_bytes     = device_number(device, cudaDevAttrMaxSharedMemoryPerBlockOptin, &error);
    processor_bytes = device_number(device, cudaDevAttrMaxSharedMemoryPerMultiprocessor, &error);
    attention.processors = (size_t)device_number(device, cudaDevAttrMultiProcessorCount, &error);
    if (error == cudaSuccess && major < 8) {
        (void)snprintf(why, why_bytes,
                       "GPU %d has compute capability %d; the trainer's kernels need 8.0 or newer",
                       device, major);
        return -1;
    }
    if (error == cudaSuccess) {
        m->shared.block_bytes     = (size_t)block_bytes;
        m->shared.processor_bytes = (size_t)processor_bytes;
        error                     = entropy_prepare(m->shared);
    }
    if (error != cudaSuccess) {
        (void)snprintf(why, why_bytes, "the GPU cannot be used: %s", cudaGetErrorString(error));
        return -1;
    }
    attention.choice         = m->choices.attention;
    attention.memory         = m->shared;
    attention.has_warpgroups = major == 9 && minor == 0;
    m->attention             = attention_kernels_create(&attention, why, why_bytes);
    if (m->attention == NULL) {
        return -1;
    }
    (void)snprintf(m->base.device, sizeof(m->base.device), "%s", properties.name);
    return 0;
}

/* Refuses shapes that no kernel can compute. */
static int limits_check(const compute_limits *l, char *why, size_t why_bytes)
{
    if (limits_head(l) > ATTENTION_MOST_WIDTH) {
        (void)snprintf(why, why_bytes, "heads of %zu elements are too wide for the GPU: at most %d",
                       limits_head(l), ATTENTION_MOST_WIDTH);
        return -1;
    }
    if (l->batch > ATTENTION_MOST_BATCH) {
        (void)snprintf(why, why_bytes, "%zu sequences at once are too many for the GPU: at most %d",
                       l->batch, ATTENTION_MOST_BATCH);
        return -1;
    }
    return 0;
}

extern "C" compute *compute_cuda_create(const compute_params *params, char *why, size_t why_bytes)
{
    lt_tuning tuning;
    cuda     *m;

    if (limits_check(&params->limits, why, why_bytes) != 0) {
        return NULL;
    }
    m = (cuda *)calloc(1, sizeof(*m));
    if (m == NULL) {
        (void)snprintf(why, why_bytes, "out of memory");
        return NULL;
    }
    m->base.ops        = &cuda_ops;
    m->base.elem_bytes = sherd_dtype_bytes(params->limits.dtype);
    m->base.keeps_stats = 1;
    m->base.keeps_gelu = params->limits.dtype != SHERD_F32; /* lt_multiply may fuse it */
    m->choices         = params->choices;
    m->limits          = params->limits;
    m->rows            = params->limits.batch * params->limits.length;
    m->stream          = (cudaStream_t)params->stream;
    if (device_enter(m, why, why_bytes) != 0) {
        free(m);
        return NULL;
    }
    if (m->choices.tune > 1) {
        m->measured = tuned_open(m->choices.tuned, why, why_bytes);
        if (m->measured == NULL) {
            cuda_destroy(&m->base);
            return NULL;
        }
    }
    tuning.file       = m->measured;
    tuning.candidates = m->choices.tune;
    tuning.device     = m->base.device;
    m->products       = lt_create(&tuning, why, why_bytes);
    m->passes         = m->choices.is_graphed ? graphs_create(m->stream) : NULL;
    if (m->choices.is_graphed && m->passes == NULL) {
        (void)snprintf(why, why_bytes, "out of memory");
        cuda_destroy(&m->base);
        return NULL;
    }
    if (m->products == NULL || memory_make(m, why, why_bytes) != 0) {
        cuda_destroy(&m->base);
        return NULL;
    }
    return &m->base;
}

/* cuDNN, for sdpa.h. A graph of operations is described to it, tensor by tensor, and it finds a
 * kernel that computes the whole graph: in forward the scores, scale, mask, softmax and products;
 * in backward the same recomputed, with the gradients. The graphs are those of the paper (Dao et
 * al. 2022), in the order that cuDNN's engines expect. */
#include "sdpa.h"

#include <cudnn_backend.h>

#include <dlfcn.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_DESCRIPTORS 128
#define MOST_OPERATIONS  32
#define MOST_CONFIGS     16
/* A plan that needs more workspace than this is not used. */
#define MOST_WORKSPACE ((int64_t)2 << 30)

#define DNN_FUNCTIONS(X)                                                                           \
    X(cudnnGetVersion)                                                                             \
    X(cudnnGetErrorString)                                                                         \
    X(cudnnCreate)                                                                                 \
    X(cudnnDestroy)                                                                                \
    X(cudnnSetStream)                                                                              \
    X(cudnnBackendCreateDescriptor)                                                                \
    X(cudnnBackendDestroyDescriptor)                                                               \
    X(cudnnBackendSetAttribute)                                                                    \
    X(cudnnBackendGetAttribute)                                                                    \
    X(cudnnBackendFinalize)                                                                        \
    X(cudnnBackendExecute)

typedef struct dnn_functions {
#define DNN_POINTER(name) decltype(&::name) name;
    DNN_FUNCTIONS(DNN_POINTER)
#undef DNN_POINTER
} dnn_functions;

typedef cudnnBackendDescriptor_t descriptor;

/* A graph while it is built, and the plan that was found for it. */
typedef struct graph {
    const dnn_functions *f;
    cudnnStatus_t        status; /* of the first failure; nothing is done after it */
    const char          *at;     /* what failed */
    descriptor           made[MOST_DESCRIPTORS];
    size_t               num_made;
    descriptor           operations[MOST_OPERATIONS];
    size_t               num_operations;
    int64_t              next_virtual;
    descriptor           device; /* NULL: the device of the handle */
    descriptor           plan;
    int64_t              workspace_bytes;
    int                  is_deterministic;
} graph;

struct sdpa {
    dnn_functions f;
    cudnnHandle_t handle;
    sdpa_shape    shape;
    graph         forward, backward;
    int           has_accumulator; /* backward sums dq in fp32, in `accumulator` */
    void         *workspace, *accumulator;
    size_t        accumulator_bytes;
};

/* Numbers of the tensors that are in memory. Virtual tensors have the numbers from ID_VIRTUAL
 * on. */
typedef enum tensor_id {
    ID_Q = 1, ID_K, ID_V, ID_OUT, ID_STATS, ID_DOUT, ID_DQ, ID_DK, ID_DV, ID_DELTAS, ID_ACCUMULATOR,
    ID_SCALE, ID_MASKED, ID_ONE, ID_VIRTUAL = 100,
} tensor_id;

typedef struct tensor4 {
    descriptor desc;
    int64_t    dims[4], strides[4];
} tensor4;

/* ------------------------------------------------------------- library -- */

#define TEXT_OF(x)  #x
#define VALUE_OF(x) TEXT_OF(x)

static int functions_find(dnn_functions *f, char *why, size_t why_bytes)
{
    const char *named   = getenv("SHERD_CUDNN_LIBRARY");
    void       *library = NULL;

    const char *const names[] = {
        named,
        named == NULL ? "libcudnn.so." VALUE_OF(CUDNN_MAJOR) : NULL,
#ifdef LLM_CUDA_LIBDIR
        named == NULL ? LLM_CUDA_LIBDIR "/libcudnn.so." VALUE_OF(CUDNN_MAJOR) : NULL,
#endif
    };

    for (size_t i = 0; library == NULL && i < sizeof(names) / sizeof(names[0]); i++) {
        library = names[i] == NULL ? NULL : dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    }
    if (library == NULL) {
        (void)snprintf(why, why_bytes, "cuDNN %s cannot be opened: %s", VALUE_OF(CUDNN_MAJOR), dlerror());
        return -1;
    }
#define DNN_SYMBOL(name)                                                                           \
    {                                                                                              \
        void *symbol = dlsym(library, #name);                                                      \
                                                                                                   \
        if (symbol == NULL) {                                                                      \
            (void)snprintf(why, why_bytes, "cuDNN has no %s", #name);                              \
            return -1;                                                                             \
        }                                                                                          \
        memcpy(&f->name, &symbol, sizeof(symbol));                                                 \
    }
    DNN_FUNCTIONS(DNN_SYMBOL)
#undef DNN_SYMBOL
    return 0; /* the library stays open, as cuBLASLt does */
}

/* --------------------------------------------------------- descriptors -- */

static int goes_on(graph *g, cudnnStatus_t status, const char *what)
{
    if (g->status == CUDNN_STATUS_SUCCESS && status != CUDNN_STATUS_SUCCESS) {
        g->status = status;
        g->at     = what;
    }
    return g->status == CUDNN_STATUS_SUCCESS;
}

static descriptor make(graph *g, cudnnBackendDescriptorType_t type)
{
    descriptor made = NULL;

    if (g->num_made == MOST_DESCRIPTORS) {
        (void)goes_on(g, CUDNN_STATUS_INTERNAL_ERROR, "room for descriptors");
    }
    if (g->status == CUDNN_STATUS_SUCCESS &&
        goes_on(g, g->f->cudnnBackendCreateDescriptor(type, &made), "a descriptor")) {
        g->made[g->num_made++] = made;
    }
    return made;
}

static void set(graph *g, descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                const void *values)
{
    if (g->status == CUDNN_STATUS_SUCCESS) {
        (void)goes_on(g, g->f->cudnnBackendSetAttribute(d, name, type, count, values), "an attribute");
    }
}

static void set_desc(graph *g, descriptor d, cudnnBackendAttributeName_t name, descriptor value)
{
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finish(graph *g, descriptor d, const char *what)
{
    if (g->status == CUDNN_STATUS_SUCCESS) {
        (void)goes_on(g, g->f->cudnnBackendFinalize(d), what);
    }
}

static void graph_close(graph *g)
{
    for (size_t i = g->num_made; i > 0; i--) {
        (void)g->f->cudnnBackendDestroyDescriptor(g->made[i - 1]);
    }
    g->num_made       = 0;
    g->num_operations = 0;
    g->plan           = NULL;
}

/* --------------------------------------------------------------- tensors -- */

typedef enum tensor_kind { TENSOR_MEMORY, TENSOR_VIRTUAL, TENSOR_VALUE } tensor_kind;

static tensor4 tensor_make(graph *g, int64_t id, tensor_kind kind, cudnnDataType_t type, const int64_t *dims,
                           const int64_t *strides)
{
    tensor4 t;
    int64_t align      = 16;
    bool    is_virtual = kind == TENSOR_VIRTUAL, is_value = kind == TENSOR_VALUE;

    memcpy(t.dims, dims, sizeof(t.dims));
    memcpy(t.strides, strides, sizeof(t.strides));
    t.desc = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(g, t.desc, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(g, t.desc, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(g, t.desc, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims);
    set(g, t.desc, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
    set(g, t.desc, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    set(g, t.desc, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    set(g, t.desc, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &is_value);
    finish(g, t.desc, "a tensor");
    return t;
}

static tensor4 virtual_make(graph *g, cudnnDataType_t type, const int64_t *dims, const int64_t *strides)
{
    return tensor_make(g, g->next_virtual++, TENSOR_VIRTUAL, type, dims, strides);
}

/* A number in host memory. */
static tensor4 value_make(graph *g, tensor_id id)
{
    static const int64_t ones[4] = {1, 1, 1, 1};

    return tensor_make(g, id, TENSOR_VALUE, CUDNN_DATA_FLOAT, ones, ones);
}

static tensor4 like(graph *g, const tensor4 *t, cudnnDataType_t type)
{
    return virtual_make(g, type, t->dims, t->strides);
}

static cudnnDataType_t type_of(sherd_dtype dtype)
{
    return dtype == SHERD_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
}

/* A tensor with the strides of q, or with those of k and v if is_kv. */
static tensor4 rows_tensor(graph *g, const sdpa_shape *s, tensor_id id, int is_kv)
{
    int64_t stride     = (int64_t)(is_kv ? s->kv_stride : s->q_stride), width = (int64_t)s->width;
    int64_t dims[4]    = {(int64_t)s->batch, (int64_t)(is_kv ? s->kv_heads : s->heads), (int64_t)s->length, width};
    int64_t strides[4] = {(int64_t)s->length * stride, width, stride, 1};

    return tensor_make(g, id, TENSOR_MEMORY, type_of(s->dtype), dims, strides);
}

/* k or v, transposed. */
static tensor4 columns_tensor(graph *g, const sdpa_shape *s, tensor_id id)
{
    int64_t stride     = (int64_t)s->kv_stride, width = (int64_t)s->width;
    int64_t dims[4]    = {(int64_t)s->batch, (int64_t)s->kv_heads, width, (int64_t)s->length};
    int64_t strides[4] = {(int64_t)s->length * stride, width, 1, stride};

    return tensor_make(g, id, TENSOR_MEMORY, type_of(s->dtype), dims, strides);
}

static tensor4 out_tensor(graph *g, const sdpa_shape *s, tensor_id id)
{
    int64_t stride     = (int64_t)(s->heads * s->width), width = (int64_t)s->width;
    int64_t dims[4]    = {(int64_t)s->batch, (int64_t)s->heads, (int64_t)s->length, width};
    int64_t strides[4] = {(int64_t)s->length * stride, width, stride, 1};

    return tensor_make(g, id, TENSOR_MEMORY, type_of(s->dtype), dims, strides);
}

/* One number per query: [batch, heads, length, 1]. */
static tensor4 query_tensor(graph *g, const sdpa_shape *s, int64_t id, tensor_kind kind)
{
    int64_t heads = (int64_t)s->heads, length = (int64_t)s->length;
    int64_t dims[4] = {(int64_t)s->batch, heads, length, 1}, strides[4] = {heads * length, length, 1, 1};

    return tensor_make(g, id, kind, CUDNN_DATA_FLOAT, dims, strides);
}

/* One number per pair of query and key. It exists only in the tiles of a kernel. */
static tensor4 pair_tensor(graph *g, const sdpa_shape *s)
{
    int64_t heads = (int64_t)s->heads, length = (int64_t)s->length;
    int64_t dims[4]    = {(int64_t)s->batch, heads, length, length};
    int64_t strides[4] = {heads * length * length, length * length, length, 1};

    return virtual_make(g, CUDNN_DATA_FLOAT, dims, strides);
}

/* ------------------------------------------------------------ operations -- */

static void operation_add(graph *g, descriptor operation, const char *what)
{
    finish(g, operation, what);
    if (g->num_operations == MOST_OPERATIONS) {
        (void)goes_on(g, CUDNN_STATUS_INTERNAL_ERROR, "room for operations");
    }
    if (g->status == CUDNN_STATUS_SUCCESS) {
        g->operations[g->num_operations++] = operation;
    }
}

typedef struct pointwise_args {
    cudnnPointwiseMode_t mode;
    const tensor4       *x, *b, *mask; /* b and mask are NULL if the mode takes none */
    const tensor4       *y;
    cudnnDataType_t      type; /* of the calculation */
    int64_t              axis; /* of an index; below 0: the mode has none */
} pointwise_args;

static void pointwise(graph *g, const pointwise_args *a)
{
    descriptor what      = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    descriptor operation = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);

    set(g, what, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &a->mode);
    set(g, what, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &a->type);
    if (a->axis >= 0) {
        set(g, what, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &a->axis);
    }
    finish(g, what, "what is done element by element");
    set_desc(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, what);
    set_desc(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, a->x->desc);
    if (a->b != NULL) {
        set_desc(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, a->b->desc);
    }
    if (a->mask != NULL) {
        set_desc(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, a->mask->desc);
    }
    set_desc(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, a->y->desc);
    operation_add(g, operation, "an operation element by element");
}

static void combine(graph *g, cudnnPointwiseMode_t mode, const tensor4 *x, const tensor4 *b, const tensor4 *y)
{
    pointwise_args args = {mode, x, b, NULL, y, CUDNN_DATA_FLOAT, -1};

    pointwise(g, &args);
}

static tensor4 combined(graph *g, cudnnPointwiseMode_t mode, const tensor4 *x, const tensor4 *b)
{
    tensor4 y = like(g, x, CUDNN_DATA_FLOAT);

    combine(g, mode, x, b, &y);
    return y;
}

static void reduce(graph *g, cudnnReduceTensorOp_t op, const tensor4 *x, const tensor4 *y)
{
    descriptor      what      = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    descriptor      operation = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    cudnnDataType_t type      = CUDNN_DATA_FLOAT;

    set(g, what, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op);
    set(g, what, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    finish(g, what, "what is reduced");
    set_desc(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, what);
    set_desc(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x->desc);
    set_desc(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y->desc);
    operation_add(g, operation, "a reduction");
}

static void multiply(graph *g, const tensor4 *a, const tensor4 *b, const tensor4 *c)
{
    descriptor      what      = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    descriptor      operation = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    cudnnDataType_t type      = CUDNN_DATA_FLOAT;

    set(g, what, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    finish(g, what, "what is multiplied");
    set_desc(g, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, what);
    set_desc(g, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a->desc);
    set_desc(g, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b->desc);
    set_desc(g, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c->desc);
    operation_add(g, operation, "a product");
}

/* Returns x with the last two dimensions exchanged, in `type`. */
static tensor4 transposed(graph *g, const tensor4 *x, cudnnDataType_t type)
{
    descriptor operation  = make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    int64_t    dims[4]    = {x->dims[0], x->dims[1], x->dims[3], x->dims[2]};
    int64_t    strides[4] = {x->strides[0], x->strides[1], x->strides[3], x->strides[2]};
    tensor4    y          = virtual_make(g, type, dims, strides);

    set_desc(g, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x->desc);
    set_desc(g, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y.desc);
    operation_add(g, operation, "a transposition");
    return y;
}

/* Returns the scores, with the masked number (ID_MASKED) where the key comes after the query. */
static tensor4 causal(graph *g, const tensor4 *scores)
{
    tensor4 row = like(g, scores, CUDNN_DATA_INT32), column = like(g, scores, CUDNN_DATA_INT32);
    tensor4 is_seen = like(g, scores, CUDNN_DATA_BOOLEAN), y = like(g, scores, CUDNN_DATA_FLOAT);
    tensor4 masked = value_make(g, ID_MASKED);

    pointwise_args rows    = {CUDNN_POINTWISE_GEN_INDEX, scores, NULL, NULL, &row, CUDNN_DATA_FLOAT, 2};
    pointwise_args columns = {CUDNN_POINTWISE_GEN_INDEX, scores, NULL, NULL, &column, CUDNN_DATA_FLOAT, 3};
    pointwise_args compare = {CUDNN_POINTWISE_CMP_GE, &row, &column, NULL, &is_seen, CUDNN_DATA_BOOLEAN, -1};
    pointwise_args select  = {CUDNN_POINTWISE_BINARY_SELECT, scores, &masked, &is_seen, &y, CUDNN_DATA_FLOAT, -1};

    pointwise(g, &rows);
    pointwise(g, &columns);
    pointwise(g, &compare);
    pointwise(g, &select);
    return y;
}

/* ----------------------------------------------------------------- graphs -- */

static void forward_describe(graph *g, const sdpa_shape *s)
{
    tensor4 q = rows_tensor(g, s, ID_Q, 0), k = columns_tensor(g, s, ID_K), v = rows_tensor(g, s, ID_V, 1);
    tensor4 out = out_tensor(g, s, ID_OUT), stats = query_tensor(g, s, ID_STATS, TENSOR_MEMORY);
    tensor4 scale  = value_make(g, ID_SCALE);
    tensor4 scores = pair_tensor(g, s), scaled, seen, lowered, raised, p;
    tensor4 most = query_tensor(g, s, g->next_virtual++, TENSOR_VIRTUAL);
    tensor4 sum  = query_tensor(g, s, g->next_virtual++, TENSOR_VIRTUAL), log_sum;

    multiply(g, &q, &k, &scores);
    scaled = combined(g, CUDNN_POINTWISE_MUL, &scores, &scale);
    seen   = causal(g, &scaled);
    reduce(g, CUDNN_REDUCE_TENSOR_MAX, &seen, &most);
    lowered = combined(g, CUDNN_POINTWISE_SUB, &seen, &most);
    raised  = combined(g, CUDNN_POINTWISE_EXP, &lowered, NULL);
    reduce(g, CUDNN_REDUCE_TENSOR_ADD, &raised, &sum);
    log_sum = combined(g, CUDNN_POINTWISE_LOG, &sum, NULL);
    combine(g, CUDNN_POINTWISE_ADD, &most, &log_sum, &stats);
    p = like(g, &raised, type_of(s->dtype));
    combine(g, CUDNN_POINTWISE_DIV, &raised, &sum, &p);
    multiply(g, &p, &v, &out);
}

/* Describes dq: as a product of its own, which an engine can compute with the same bits every time;
 * or as a sum in fp32, to which blocks add in any order. */
static void query_gradient(graph *g, const sdpa_shape *s, const tensor4 *dscores, const tensor4 *k, int has_accumulator)
{
    tensor4 rows = transposed(g, k, type_of(s->dtype)), dq = rows_tensor(g, s, ID_DQ, 0);

    if (has_accumulator) {
        int64_t width = (int64_t)s->width, length = (int64_t)s->length, heads = (int64_t)s->heads;
        int64_t strides[4] = {heads * length * width, length * width, width, 1};
        tensor4 sum        = tensor_make(g, ID_ACCUMULATOR, TENSOR_MEMORY, CUDNN_DATA_FLOAT, dq.dims, strides);

        multiply(g, dscores, &rows, &sum);
        combine(g, CUDNN_POINTWISE_IDENTITY, &sum, NULL, &dq);
    } else {
        multiply(g, dscores, &rows, &dq);
    }
}

/* Describes the gradient of k or v, from transposed scores. Heads that share a k and v are
 * added. */
static void key_gradient(graph *g, const sdpa_shape *s, const tensor4 *scores, const tensor4 *rows, tensor_id id)
{
    tensor4 gradient = rows_tensor(g, s, id, 1);

    if (s->heads == s->kv_heads) {
        multiply(g, scores, rows, &gradient);
    } else {
        int64_t width = (int64_t)s->width, length = (int64_t)s->length, heads = (int64_t)s->heads;
        int64_t dims[4]    = {(int64_t)s->batch, heads, length, width};
        int64_t strides[4] = {heads * length * width, length * width, width, 1};
        tensor4 each       = virtual_make(g, type_of(s->dtype), dims, strides);

        multiply(g, scores, rows, &each);
        reduce(g, CUDNN_REDUCE_TENSOR_ADD, &each, &gradient);
    }
}

/* Describes the deltas: for each query the sum of dout * out. */
static tensor4 deltas_describe(graph *g, const sdpa_shape *s, const tensor4 *out, const tensor4 *dout)
{
    tensor4 product = like(g, dout, CUDNN_DATA_FLOAT), one = value_make(g, ID_ONE);
    tensor4 sum = query_tensor(g, s, g->next_virtual++, TENSOR_VIRTUAL);
    tensor4 deltas = query_tensor(g, s, ID_DELTAS, TENSOR_MEMORY);

    combine(g, CUDNN_POINTWISE_MUL, dout, out, &product);
    reduce(g, CUDNN_REDUCE_TENSOR_ADD, &product, &sum);
    combine(g, CUDNN_POINTWISE_MUL, &sum, &one, &deltas);
    return deltas;
}

static void backward_describe(graph *g, const sdpa_shape *s, int has_accumulator)
{
    tensor4 q = rows_tensor(g, s, ID_Q, 0), k = columns_tensor(g, s, ID_K), v = columns_tensor(g, s, ID_V);
    tensor4 out = out_tensor(g, s, ID_OUT), dout = out_tensor(g, s, ID_DOUT);
    tensor4 stats = query_tensor(g, s, ID_STATS, TENSOR_MEMORY), scale = value_make(g, ID_SCALE);
    tensor4 deltas = deltas_describe(g, s, &out, &dout);
    tensor4 scores = pair_tensor(g, s), scaled, lowered, seen, p, turned, dp = pair_tensor(g, s);

    multiply(g, &q, &k, &scores);
    scaled  = combined(g, CUDNN_POINTWISE_MUL, &scores, &scale);
    lowered = combined(g, CUDNN_POINTWISE_SUB, &scaled, &stats);
    seen    = causal(g, &lowered);
    p       = combined(g, CUDNN_POINTWISE_EXP, &seen, NULL);
    turned  = transposed(g, &p, type_of(s->dtype));
    key_gradient(g, s, &turned, &dout, ID_DV);
    multiply(g, &dout, &v, &dp);
    lowered = combined(g, CUDNN_POINTWISE_SUB, &dp, &deltas);
    scaled  = combined(g, CUDNN_POINTWISE_MUL, &lowered, &p);
    scaled  = combined(g, CUDNN_POINTWISE_MUL, &scaled, &scale);
    turned  = transposed(g, &scaled, type_of(s->dtype));
    key_gradient(g, s, &turned, &q, ID_DK);
    query_gradient(g, s, &scaled, &k, has_accumulator);
}

/* ------------------------------------------------------------------ plans -- */

static descriptor graph_finish(graph *g, cudnnHandle_t handle)
{
    descriptor whole = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);

    if (handle != NULL) {
        set(g, whole, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    }
    set(g, whole, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, (int64_t)g->num_operations, g->operations);
    finish(g, whole, "the graph");
    return whole;
}

/* Finds the configurations that cuDNN proposes, the best first. Returns how many there are. */
static int64_t configs_find(graph *g, descriptor whole, descriptor *configs)
{
    descriptor         heuristic = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    cudnnBackendHeurMode_t mode  = CUDNN_HEUR_MODE_A;
    int64_t            count     = 0;

    set_desc(g, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, whole);
    set(g, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (g->device != NULL) {
        set_desc(g, heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, g->device);
    }
    finish(g, heuristic, "looking for kernels");
    for (int i = 0; i < MOST_CONFIGS; i++) {
        configs[i] = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    }
    if (g->status == CUDNN_STATUS_SUCCESS) {
        (void)goes_on(g, g->f->cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                                        MOST_CONFIGS, &count, configs), "what kernels there are");
    }
    if (g->status != CUDNN_STATUS_SUCCESS) {
        return 0;
    }
    /* cuDNN counts all that it has, not only those that it returned */
    return count < MOST_CONFIGS ? count : MOST_CONFIGS;
}

/* On devices from 10.0 on, whether bits repeat depends on an engine's settings too (cudnn-frontend
 * sets each of them). This has not been tried here. */
static int engines_say_what_repeats(void)
{
    int device = 0, major = 0;

    return cudaGetDevice(&device) != cudaSuccess ||
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess || major < 10;
}

/* Returns whether the engine gives the same bits every time, by its own notes. An engine that
 * cannot be asked counts as one that does not. */
static int config_is_deterministic(graph *g, descriptor config)
{
    descriptor               engine = NULL;
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t                  count = 0;

    if (g->f->cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) != CUDNN_STATUS_SUCCESS) {
        return 0;
    }
    if (g->f->cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                       &engine) != CUDNN_STATUS_SUCCESS ||
        g->f->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                       CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes) != CUDNN_STATUS_SUCCESS) {
        count    = 1;
        notes[0] = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    }
    (void)g->f->cudnnBackendDestroyDescriptor(engine);
    if (g->device == NULL && !engines_say_what_repeats()) {
        return 0;
    }
    for (int64_t i = 0; i < count && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++) {
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) {
            return 0;
        }
    }
    return 1;
}

/* Makes a plan of a configuration. Returns 0 if it can run. */
static int plan_try(graph *g, cudnnHandle_t handle, descriptor config)
{
    descriptor plan  = make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    int64_t    count = 0, bytes = 0;

    set(g, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    set_desc(g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (g->status != CUDNN_STATUS_SUCCESS || g->f->cudnnBackendFinalize(plan) != CUDNN_STATUS_SUCCESS ||
        g->f->cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &bytes) !=
            CUDNN_STATUS_SUCCESS ||
        bytes > MOST_WORKSPACE) {
        return -1;
    }
    g->plan            = plan;
    g->workspace_bytes = bytes;
    return 0;
}

/* Chooses the first configuration that gives the same bits every time, else the first one (unless
 * must_repeat). For a device that is only described, no plan is made, since that needs the driver
 * of the device. */
static void plan_find(graph *g, cudnnHandle_t handle, int must_repeat)
{
    descriptor configs[MOST_CONFIGS];
    int64_t    count    = configs_find(g, graph_finish(g, handle), configs);
    int        is_found = 0;

    for (int wants = 1; wants >= must_repeat && !is_found; wants--) {
        for (int64_t i = 0; i < count && !is_found && g->status == CUDNN_STATUS_SUCCESS; i++) {
            is_found = config_is_deterministic(g, configs[i]) == wants &&
                       (g->device != NULL || plan_try(g, handle, configs[i]) == 0);
            g->is_deterministic = is_found && wants;
        }
    }
    if (!is_found) {
        (void)goes_on(g, CUDNN_STATUS_NOT_SUPPORTED, "a kernel for this");
    }
}

static void graph_begin(graph *g, const dnn_functions *f, const char *device_json)
{
    memset(g, 0, sizeof(*g));
    g->f            = f;
    g->status       = CUDNN_STATUS_SUCCESS;
    g->next_virtual = ID_VIRTUAL;
    if (device_json != NULL) {
        g->device = make(g, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
        set(g, g->device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)strlen(device_json) + 1,
            device_json);
        finish(g, g->device, "a device that is described");
    }
}

/* Chooses a backward that sums dq in one order, if cuDNN has an engine for that, else one that adds
 * in any order. */
static void backward_find(sdpa *s, const char *device_json)
{
    for (int has_accumulator = 0; has_accumulator < 2; has_accumulator++) {
        graph_begin(&s->backward, &s->f, device_json);
        backward_describe(&s->backward, &s->shape, has_accumulator);
        plan_find(&s->backward, s->handle, !has_accumulator);
        s->has_accumulator = has_accumulator;
        if (s->backward.status == CUDNN_STATUS_SUCCESS) {
            return;
        }
        if (!has_accumulator) {
            graph_close(&s->backward);
        }
    }
}

static int graph_check(const sdpa *s, const graph *g, const char *what, char *why, size_t why_bytes)
{
    if (g->status == CUDNN_STATUS_SUCCESS) {
        return 0;
    }
    (void)snprintf(why, why_bytes, "cuDNN %zu has no %s of attention for heads of %zu in %s (%s: %s)", s->f.cudnnGetVersion(), what,
                   s->shape.width, sherd_dtype_name(s->shape.dtype), g->at, s->f.cudnnGetErrorString(g->status));
    return -1;
}

static int plans_find(sdpa *s, const char *device_json, char *why, size_t why_bytes)
{
    graph_begin(&s->forward, &s->f, device_json);
    forward_describe(&s->forward, &s->shape);
    plan_find(&s->forward, s->handle, 0);
    if (graph_check(s, &s->forward, "forward", why, why_bytes) != 0) {
        return -1;
    }
    backward_find(s, device_json);
    return graph_check(s, &s->backward, "backward", why, why_bytes);
}

/* ---------------------------------------------------------------- creation -- */

const char *sdpa_fault_of(size_t version, const sdpa_shape *shape)
{
    if (version < 90800) {
        return "9.8 is the oldest whose attention is used";
    }
    if (version == 91000 || version == 91001) {
        return "attention of 9.10.0 and 9.10.1 has known faults";
    }
    /* cudnn-frontend avoids this with padding masks, which cost time. */
    if (version <= 91500 && shape->length % 128 != 0) {
        return "up to 9.15.0 its backward may read past the keys where the length is no multiple of 128";
    }
    return shape->length == 1 ? "one token has nothing to attend to" : NULL;
}

static sdpa *handle_make(const sdpa_shape *shape, char *why, size_t why_bytes)
{
    sdpa       *s = (sdpa *)calloc(1, sizeof(*s));
    const char *fault;

    if (s == NULL) {
        (void)snprintf(why, why_bytes, "out of memory");
        return NULL;
    }
    memcpy(&s->shape, shape, sizeof(*shape)); /* shapes are compared as bytes, padding included */
    if (shape->dtype == SHERD_F32) {
        (void)snprintf(why, why_bytes, "cuDNN has no attention in fp32");
        free(s);
        return NULL;
    }
    if (functions_find(&s->f, why, why_bytes) != 0) {
        free(s);
        return NULL;
    }
    fault = sdpa_fault_of(s->f.cudnnGetVersion(), shape);
    if (fault != NULL) {
        (void)snprintf(why, why_bytes, "cuDNN is %zu: %s", s->f.cudnnGetVersion(), fault);
        free(s);
        return NULL;
    }
    return s;
}

static size_t most_workspace(const sdpa *s)
{
    int64_t bytes = s->forward.workspace_bytes > s->backward.workspace_bytes ? s->forward.workspace_bytes
                                                                             : s->backward.workspace_bytes;

    return (size_t)bytes;
}

static int memory_make(sdpa *s, char *why, size_t why_bytes)
{
    size_t      bytes = most_workspace(s);
    cudaError_t error = cudaSuccess;

    if (s->has_accumulator) {
        s->accumulator_bytes = s->shape.batch * s->shape.length * s->shape.heads * s->shape.width * sizeof(float);
        error                = cudaMalloc(&s->accumulator, s->accumulator_bytes);
    }
    if (error == cudaSuccess && bytes > 0) {
        error = cudaMalloc(&s->workspace, bytes);
    }
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        (void)snprintf(why, why_bytes, "no memory for %zu MiB that cuDNN's attention works in",
                       (bytes + s->accumulator_bytes) >> 20);
        return -1;
    }
    return 0;
}

sdpa *sdpa_create(const sdpa_shape *shape, char *why, size_t why_bytes)
{
    sdpa         *s = handle_make(shape, why, why_bytes);
    cudnnStatus_t status;

    if (s == NULL) {
        return NULL;
    }
    status = s->f.cudnnCreate(&s->handle);
    if (status != CUDNN_STATUS_SUCCESS) {
        s->handle = NULL;
        (void)snprintf(why, why_bytes, "cuDNN does not start: %s", s->f.cudnnGetErrorString(status));
    }
    if (status != CUDNN_STATUS_SUCCESS || plans_find(s, NULL, why, why_bytes) != 0 || memory_make(s, why, why_bytes) != 0) {
        sdpa_destroy(s);
        return NULL;
    }
    return s;
}

void sdpa_destroy(sdpa *s)
{
    if (s == NULL) {
        return;
    }
    graph_close(&s->forward);
    graph_close(&s->backward);
    if (s->handle != NULL) {
        (void)s->f.cudnnDestroy(s->handle);
    }
    (void)cudaFree(s->workspace);
    (void)cudaFree(s->accumulator);
    free(s);
}

sdpa_info sdpa_describe(const sdpa *s)
{
    sdpa_info info = {s->f.cudnnGetVersion(), s->backward.is_deterministic, most_workspace(s) + s->accumulator_bytes};

    return info;
}

int sdpa_is_of(const sdpa *s, const sdpa_shape *shape)
{
    return memcmp(&s->shape, shape, sizeof(*shape)) == 0;
}

int sdpa_check(const sdpa_shape *shape, const char *device_json, sdpa_info *out, char *why, size_t why_bytes)
{
    sdpa *s      = handle_make(shape, why, why_bytes);
    int   result = s == NULL ? -1 : plans_find(s, device_json, why, why_bytes);

    if (result == 0) {
        *out = sdpa_describe(s);
    }
    if (s != NULL) {
        graph_close(&s->forward);
        graph_close(&s->backward);
        free(s);
    }
    return result;
}

/* --------------------------------------------------------------------- runs -- */

typedef struct pack {
    int64_t     ids[16];
    const void *data[16];
    int64_t     count;
} pack;

static void pack_add(pack *p, tensor_id id, const void *data)
{
    p->ids[p->count]    = id;
    p->data[p->count++] = data;
}

static int graph_run(sdpa *s, const graph *planned, const pack *p, cudaStream_t stream, char *why, size_t why_bytes)
{
    graph      run; /* owns the descriptors of this call */
    descriptor variant;

    graph_begin(&run, &s->f, NULL);
    variant = make(&run, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(&run, variant, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, p->count, p->ids);
    set(&run, variant, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, p->count, p->data);
    set(&run, variant, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &s->workspace);
    finish(&run, variant, "the memory of attention");
    if (run.status == CUDNN_STATUS_SUCCESS && goes_on(&run, s->f.cudnnSetStream(s->handle, stream), "the stream")) {
        (void)goes_on(&run, s->f.cudnnBackendExecute(s->handle, planned->plan, variant), "the kernel");
    }
    graph_close(&run);
    if (run.status != CUDNN_STATUS_SUCCESS) {
        (void)snprintf(why, why_bytes, "attention by cuDNN failed at %s: %s", run.at, s->f.cudnnGetErrorString(run.status));
        return -1;
    }
    return 0;
}

/* Numbers in host memory. cuDNN reads them when the call is queued. */
typedef struct numbers {
    float scale, masked, one;
} numbers;

static numbers numbers_of(const sdpa *s)
{
    /* Before 9.10 the largest score of a row must not be infinite (cudnn-frontend uses the lowest
     * number for them too). */
    float   masked = s->f.cudnnGetVersion() < 91000 ? -FLT_MAX : -INFINITY;
    numbers n      = {1.0f / sqrtf((float)s->shape.width), masked, 1.0f};

    return n;
}

static pack inputs_of(const heads_args *args, const numbers *n)
{
    pack p;

    p.count = 0;
    pack_add(&p, ID_Q, args->q);
    pack_add(&p, ID_K, args->k);
    pack_add(&p, ID_V, args->v);
    pack_add(&p, ID_SCALE, &n->scale);
    pack_add(&p, ID_MASKED, &n->masked);
    return p;
}

int sdpa_forward(sdpa *s, const heads_args *args, void *out, float *log_sums, cudaStream_t stream, char *why, size_t why_bytes)
{
    numbers n = numbers_of(s);
    pack    p = inputs_of(args, &n);

    pack_add(&p, ID_OUT, out);
    pack_add(&p, ID_STATS, log_sums);
    return graph_run(s, &s->forward, &p, stream, why, why_bytes);
}

int sdpa_backward(sdpa *s, const heads_args *args, const sdpa_back_args *back, cudaStream_t stream, char *why, size_t why_bytes)
{
    numbers n = numbers_of(s);
    pack    p = inputs_of(args, &n);

    pack_add(&p, ID_OUT, back->out);
    pack_add(&p, ID_DOUT, back->dout);
    pack_add(&p, ID_STATS, back->log_sums);
    pack_add(&p, ID_DELTAS, back->deltas);
    pack_add(&p, ID_ONE, &n.one);
    pack_add(&p, ID_DQ, back->dq);
    pack_add(&p, ID_DK, back->dk);
    pack_add(&p, ID_DV, back->dv);
    if (s->has_accumulator) {
        pack_add(&p, ID_ACCUMULATOR, s->accumulator);
        if (cudaMemsetAsync(s->accumulator, 0, s->accumulator_bytes, stream) != cudaSuccess) {
            (void)snprintf(why, why_bytes, "attention by cuDNN failed: its room cannot be cleared");
            return -1;
        }
    }
    return graph_run(s, &s->backward, &p, stream, why, why_bytes);
}

/* A stand-in for cuBLASLt, in plain loops on the emulator's streams: it shows that the trainer says
 * what it means in cuBLASLt's terms (column-major, operands, epilogues), and nothing about speed or
 * about what NVIDIA's library supports. SHERD_EMULATOR_NO_EPILOGUES=1: it knows neither bias nor
 * gelu, so that the trainer's own kernels have to; 2: the same, said by the state of a result. Of
 * each product it has three kernels, which add in orders of their own; which of them it names first
 * depends on the alignment of the bias and of the auxiliary matrix. */
#include "cublasLt.h"

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "emulator.h"

#include <stdlib.h>
#include <string.h>

struct cublasLtContext {
    int is_open;
};

struct cublasLtMatmulDescOpaque_t {
    cublasOperation_t  op_a, op_b;
    cublasLtEpilogue_t epilogue;
    void              *bias, *aux;
    int64_t            aux_stride;
};

struct cublasLtMatrixLayoutOpaque_t {
    cudaDataType_t type;
    uint64_t       rows, columns;
    int64_t        stride;
};

struct cublasLtMatmulPreferenceOpaque {
    uint64_t workspace;
};

#define KERNELS 3

typedef struct product {
    cublasLtMatmulDescOpaque_t   desc;
    cublasLtMatrixLayoutOpaque_t a_layout, b_layout, c_layout, d_layout;
    const void                  *a, *b, *c;
    void                        *d;
    float                        alpha, beta;
    uint64_t                     kernel; /* 1 .. KERNELS */
} product;

static float get(const void *data, cudaDataType_t type, size_t i)
{
    switch (type) {
    case CUDA_R_32F:
        return ((const float *)data)[i];
    case CUDA_R_16F:
        return __half2float(((const __half *)data)[i]);
    default:
        return __bfloat162float(((const __nv_bfloat16 *)data)[i]);
    }
}

static void put(void *data, cudaDataType_t type, size_t i, float x)
{
    switch (type) {
    case CUDA_R_32F:
        ((float *)data)[i] = x;
        return;
    case CUDA_R_16F:
        ((__half *)data)[i] = __float2half_rn(x);
        return;
    default:
        ((__nv_bfloat16 *)data)[i] = __float2bfloat16_rn(x);
        return;
    }
}

/* op(matrix) as floats, [rows of the result][columns]. */
static float *unpack(const void *data, const cublasLtMatrixLayoutOpaque_t *layout, cublasOperation_t op)
{
    float *all = (float *)malloc(layout->rows * layout->columns * sizeof(*all) + 1);

    for (size_t column = 0; column < layout->columns; column++) {
        for (size_t row = 0; row < layout->rows; row++) {
            float x = get(data, layout->type, column * (size_t)layout->stride + row);

            all[op == CUBLAS_OP_N ? row * layout->columns + column : column * layout->rows + row] = x;
        }
    }
    return all;
}

static float gelu_gate(float x)
{
    return 1.0f / (1.0f + expf(-1.5957691216f * (x + 0.044715f * x * x * x)));
}

static float epilogue_apply(const product *p, size_t row, size_t column, float x)
{
    cublasLtEpilogue_t e  = p->desc.epilogue;
    size_t             at = column * (size_t)p->desc.aux_stride + row;

    if (e == CUBLASLT_EPILOGUE_BIAS || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
        x += get(p->desc.bias, p->d_layout.type, row);
    }
    if (e == CUBLASLT_EPILOGUE_GELU_AUX || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
        put(p->desc.aux, p->d_layout.type, at, x);
        x = x * gelu_gate(x);
    }
    if (e == CUBLASLT_EPILOGUE_DGELU) {
        float y = get(p->desc.aux, p->d_layout.type, at), gate = gelu_gate(y);

        x *= gate + y * 1.5957691216f * (1.0f + 0.134145f * y * y) * gate * (1.0f - gate);
    }
    return x;
}

static void product_run(const void *args)
{
    const product *p = (const product *)args;
    size_t   rows = p->d_layout.rows, columns = p->d_layout.columns;
    size_t   depth = p->desc.op_a == CUBLAS_OP_N ? p->a_layout.columns : p->a_layout.rows;
    float   *a = unpack(p->a, &p->a_layout, p->desc.op_a), *b = unpack(p->b, &p->b_layout, p->desc.op_b);
    float   *line = (float *)malloc(columns * sizeof(*line) + 1);

    for (size_t row = 0; row < rows; row++) {
        memset(line, 0, columns * sizeof(*line));
        for (size_t i = 0; i < depth; i++) {
            size_t k = p->kernel == 2 ? depth - 1 - i : (i + p->kernel - 1) % depth;

            for (size_t column = 0; column < columns; column++) {
                line[column] += a[row * depth + k] * b[k * columns + column];
            }
        }
        for (size_t column = 0; column < columns; column++) {
            float x = p->alpha * line[column];

            if (p->beta != 0.0f) {
                x += p->beta * get(p->c, p->c_layout.type, column * (size_t)p->c_layout.stride + row);
            }
            x = epilogue_apply(p, row, column, x);
            put(p->d, p->d_layout.type, column * (size_t)p->d_layout.stride + row, x);
        }
    }
    free(line);
    free(a);
    free(b);
}

/* What the sizes of the four layouts have to be. */
static int is_fitting(cublasLtMatmulDesc_t desc, const cublasLtMatrixLayoutOpaque_t *a,
                      const cublasLtMatrixLayoutOpaque_t *b, const cublasLtMatrixLayoutOpaque_t *c,
                      const cublasLtMatrixLayoutOpaque_t *d)
{
    uint64_t m  = desc->op_a == CUBLAS_OP_N ? a->rows : a->columns;
    uint64_t ka = desc->op_a == CUBLAS_OP_N ? a->columns : a->rows;
    uint64_t kb = desc->op_b == CUBLAS_OP_N ? b->rows : b->columns;
    uint64_t n  = desc->op_b == CUBLAS_OP_N ? b->columns : b->rows;

    return ka == kb && m == d->rows && n == d->columns && c->rows == d->rows &&
           c->columns == d->columns && a->type == b->type && c->type == d->type &&
           (d->type == a->type || d->type == CUDA_R_32F) &&
           a->stride >= (int64_t)a->rows && b->stride >= (int64_t)b->rows &&
           c->stride >= (int64_t)c->rows && d->stride >= (int64_t)d->rows;
}

static int is_supported(cublasLtMatmulDesc_t desc, const cublasLtMatrixLayoutOpaque_t *d)
{
    const char *refused = getenv("SHERD_EMULATOR_NO_EPILOGUES");
    int         has_aux = (desc->epilogue & 128) != 0;

    if (desc->epilogue == CUBLASLT_EPILOGUE_DEFAULT) {
        return 1;
    }
    if (refused != NULL) {
        return 0;
    }
    return !has_aux || (d->type != CUDA_R_32F && desc->aux_stride % 8 == 0);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t, cudaStream_t stream)
{
    product p;

    if (!is_fitting(desc, a_layout, b_layout, c_layout, d_layout) || algo->data[0] < 1 || algo->data[0] > KERNELS ||
        workspace == NULL || !is_supported(desc, d_layout)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    p.kernel   = algo->data[0];
    p.desc     = *desc;
    p.a_layout = *a_layout;
    p.b_layout = *b_layout;
    p.c_layout = *c_layout;
    p.d_layout = *d_layout;
    p.a        = a;
    p.b        = b;
    p.c        = c;
    p.d        = d;
    p.alpha    = *(const float *)alpha;
    p.beta     = *(const float *)beta;
    return emulator_call_kernel(stream, product_run, &p, sizeof(p)) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                                                  : CUBLAS_STATUS_INVALID_VALUE;
}

/* What the heuristic makes of an address: 0 for multiples of 128 bytes that are none of 256. */
static uint64_t address_rank(const void *at)
{
    return at == NULL || (uintptr_t)at % 256 == 128 ? 0 : (uintptr_t)at % 256 == 0 ? 1 : 2;
}

/* A status of success that holds a result without it, as the library may answer. */
static cublasStatus_t unsupported_answer(cublasLtMatmulHeuristicResult_t *found, int *num_found)
{
    const char *refused = getenv("SHERD_EMULATOR_NO_EPILOGUES");

    if (refused == NULL || refused[0] != '2') {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    memset(found, 0, sizeof(*found));
    found->state = CUBLAS_STATUS_NOT_SUPPORTED;
    *num_found   = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a_layout,
    cublasLtMatrixLayout_t b_layout, cublasLtMatrixLayout_t c_layout, cublasLtMatrixLayout_t d_layout,
    cublasLtMatmulPreference_t, int wanted, cublasLtMatmulHeuristicResult_t *found, int *num_found)
{
    uint64_t first = address_rank(desc->bias) + address_rank(desc->aux);

    *num_found = 0;
    if (!is_fitting(desc, a_layout, b_layout, c_layout, d_layout) || wanted < 1) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (!is_supported(desc, d_layout)) {
        return unsupported_answer(found, num_found);
    }
    for (; *num_found < wanted && *num_found < KERNELS; (*num_found)++) {
        memset(&found[*num_found], 0, sizeof(*found));
        found[*num_found].algo.data[0] = (first + (uint64_t)*num_found) % KERNELS + 1;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a_layout,
                                       cublasLtMatrixLayout_t b_layout, cublasLtMatrixLayout_t c_layout,
                                       cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    memset(result, 0, sizeof(*result));
    result->algo = *algo;
    return is_fitting(desc, a_layout, b_layout, c_layout, d_layout) && is_supported(desc, d_layout) &&
                   algo->data[0] >= 1 && algo->data[0] <= KERNELS
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_NOT_SUPPORTED;
}

size_t cublasLtGetVersion(void)
{
    return 130000;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t           desc,
                                              cublasLtMatmulDescAttributes_t what, const void *value,
                                              size_t value_bytes)
{
    void  *to   = NULL;
    size_t size = 0;

#define FIELD(name)                                                                                \
    to   = &desc->name;                                                                            \
    size = sizeof(desc->name);                                                                     \
    break
    switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        FIELD(op_a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        FIELD(op_b);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        FIELD(epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        FIELD(bias);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        FIELD(aux);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        FIELD(aux_stride);
    }
#undef FIELD
    if (to == NULL || size != value_bytes) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    memcpy(to, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t           preference,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void *value, size_t value_bytes)
{
    size_t size = what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? 8 : 4;

    if (size != value_bytes) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    memcpy(&preference->workspace, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

template <typename T> static cublasStatus_t make(T **out)
{
    *out = (T *)calloc(1, sizeof(**out));
    return CUBLAS_STATUS_SUCCESS;
}

template <typename T> static cublasStatus_t drop(T *object)
{
    free(object);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    return make(handle);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return drop(handle);
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "invalid value";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    (void)make(desc);
    (*desc)->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    return drop(desc);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    return make(preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    return drop(preference);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t stride)
{
    (void)make(layout);
    (*layout)->type    = type;
    (*layout)->rows    = rows;
    (*layout)->columns = columns;
    (*layout)->stride  = stride;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return drop(layout);
}

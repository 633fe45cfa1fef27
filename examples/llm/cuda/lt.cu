/* cuBLASLt behind lt.h. Its matrices are column-major: a row-major product d = a . b is its d' = b' . a', so
 * our b is its first operand and our n its rows. */
#include "lt.h"

#include "models/room_cuda.h"

#include <cublasLt.h>

#ifndef LLM_CUBLASLT_LINKED
#include <dlfcn.h>
#endif
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_PLANS 128 /* shapes of one model: about forty */
/* Parameters begin at multiples of 64 elements, which is this many bytes of the 16-bit types. Kernels are
 * chosen for no more, so that the address of a parameter, which differs between stages, does not choose. */
#define ALIGN_BYTES 128

#define LT_FUNCTIONS(X)                                                                            \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtGetStatusString)                                                                     \
    X(cublasLtMatmul)                                                                              \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)

typedef struct lt_functions {
#define LT_POINTER(name) decltype(&::name) name;
    LT_FUNCTIONS(LT_POINTER)
#undef LT_POINTER
} lt_functions;

/* What chooses a kernel. Compared as bytes: zeroed before it is filled. */
typedef struct plan_key {
    size_t   m, n, k, a_stride, b_stride, d_stride;
    int32_t  dtype, a_is_transposed, b_is_transposed, has_c, has_bias, gelu; /* gelu: 1 forward, 2 back */
    int32_t  is_wide, has_sums;
    uint32_t align_a, align_b, align_c, align_d;
} plan_key;

typedef struct plan {
    plan_key               key;
    int                    is_there; /* 0: no kernel for this */
    cublasLtMatmulDesc_t   desc;
    cublasLtMatrixLayout_t a, b, d; /* ours; c has the layout of d */
    cublasLtMatmulAlgo_t   algo;
} plan;

struct lt {
    lt_functions     f;
    void            *library;
    cublasLtHandle_t handle;
    void            *workspace;
    plan             plans[MOST_PLANS];
    size_t           num_plans;
    char             why[256];
};

/* ------------------------------------------------------------- library -- */

#ifdef LLM_CUBLASLT_LINKED

static int functions_find(lt *l, char *why, size_t why_bytes)
{
    (void)why;
    (void)why_bytes;
#define LT_ADDRESS(name) l->f.name = ::name;
    LT_FUNCTIONS(LT_ADDRESS)
#undef LT_ADDRESS
    return 0;
}

#else

#define TEXT_OF(x)  #x
#define VALUE_OF(x) TEXT_OF(x)

/* The library of the version that this was compiled for: first where the system looks, then where the
 * toolkit was when this was built. */
static void *library_open(void)
{
    static const char *const names[] = {
        "libcublasLt.so." VALUE_OF(CUBLAS_VER_MAJOR),
#ifdef LLM_CUDA_LIBDIR
        LLM_CUDA_LIBDIR "/libcublasLt.so." VALUE_OF(CUBLAS_VER_MAJOR),
#endif
    };
    void *library = NULL;

    for (size_t i = 0; library == NULL && i < sizeof(names) / sizeof(names[0]); i++) {
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    }
    return library;
}

static int functions_find(lt *l, char *why, size_t why_bytes)
{
    l->library = library_open();
    if (l->library == NULL) {
        (void)snprintf(why, why_bytes, "cuBLASLt %s cannot be opened: %s",
                       VALUE_OF(CUBLAS_VER_MAJOR), dlerror());
        return -1;
    }
#define LT_SYMBOL(name)                                                                            \
    {                                                                                              \
        void *symbol = dlsym(l->library, #name);                                                   \
                                                                                                   \
        if (symbol == NULL) {                                                                      \
            (void)snprintf(why, why_bytes, "cuBLASLt has no %s", #name);                           \
            return -1;                                                                             \
        }                                                                                          \
        memcpy(&l->f.name, &symbol, sizeof(symbol));                                               \
    }
    LT_FUNCTIONS(LT_SYMBOL)
#undef LT_SYMBOL
    return 0;
}

#endif

lt *lt_create(char *why, size_t why_bytes)
{
    lt            *l = (lt *)calloc(1, sizeof(*l));
    cublasStatus_t status;

    if (l == NULL) {
        (void)snprintf(why, why_bytes, "out of memory");
        return NULL;
    }
    if (functions_find(l, why, why_bytes) != 0) {
        lt_destroy(l);
        return NULL;
    }
    status = l->f.cublasLtCreate(&l->handle);
    if (status != CUBLAS_STATUS_SUCCESS) {
        (void)snprintf(why, why_bytes, "cuBLASLt does not start: %s",
                       l->f.cublasLtGetStatusString(status));
        l->handle = NULL;
        lt_destroy(l);
        return NULL;
    }
    if (cudaMalloc(&l->workspace, LT_WORKSPACE_BYTES) != cudaSuccess) {
        (void)cudaGetLastError();
        (void)snprintf(why, why_bytes, "no memory on the GPU for cuBLASLt's workspace of %zu MiB",
                       LT_WORKSPACE_BYTES >> 20);
        l->workspace = NULL;
        lt_destroy(l);
        return NULL;
    }
    return l;
}

static void plan_close(lt *l, plan *p)
{
    if (p->a != NULL) {
        (void)l->f.cublasLtMatrixLayoutDestroy(p->a);
    }
    if (p->b != NULL) {
        (void)l->f.cublasLtMatrixLayoutDestroy(p->b);
    }
    if (p->d != NULL) {
        (void)l->f.cublasLtMatrixLayoutDestroy(p->d);
    }
    if (p->desc != NULL) {
        (void)l->f.cublasLtMatmulDescDestroy(p->desc);
    }
}

void lt_destroy(lt *l)
{
    if (l == NULL) {
        return;
    }
    for (size_t i = 0; i < l->num_plans; i++) {
        plan_close(l, &l->plans[i]);
    }
    (void)cudaFree(l->workspace);
    if (l->handle != NULL) {
        (void)l->f.cublasLtDestroy(l->handle);
    }
    /* The library stays open: it keeps threads and memory of its own until the process ends. */
    free(l);
}

const char *lt_why(const lt *l)
{
    return l->why;
}

size_t lt_bytes(const lt *l)
{
    (void)l;
    return LT_WORKSPACE_BYTES;
}

/* --------------------------------------------------------------- plans -- */

static cudaDataType_t type_of(sherd_dtype dtype)
{
    return dtype == SHERD_F32 ? CUDA_R_32F : dtype == SHERD_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

static uint32_t align_of(const void *data)
{
    uint32_t align = ALIGN_BYTES;

    while (((uintptr_t)data & (align - 1)) != 0) {
        align /= 2;
    }
    return align;
}

static plan_key key_of(const lt_product *p)
{
    plan_key key;

    memset(&key, 0, sizeof(key));
    key.m               = p->m;
    key.n               = p->n;
    key.k               = p->k;
    key.a_stride        = p->a.stride;
    key.b_stride        = p->b.stride;
    key.d_stride        = p->d_stride;
    key.dtype           = (int32_t)p->dtype;
    key.a_is_transposed = p->a.is_transposed;
    key.b_is_transposed = p->b.is_transposed;
    key.has_c           = p->c != NULL;
    key.has_bias        = p->bias != NULL;
    key.is_wide         = p->is_wide;
    key.has_sums        = p->sums != NULL;
    key.gelu            = p->gelu_x != NULL ? 1 : p->gelu_back != NULL ? 2 : 0;
    key.align_a         = align_of(p->a.data);
    key.align_b         = align_of(p->b.data);
    key.align_c         = align_of(p->c);
    key.align_d         = align_of(p->d);
    return key;
}

static cublasLtEpilogue_t epilogue_of(const plan_key *key)
{
    if (key->gelu == 1) {
        return key->has_bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    }
    if (key->gelu == 2) {
        return key->has_sums ? CUBLASLT_EPILOGUE_DGELU_BGRAD : CUBLASLT_EPILOGUE_DGELU;
    }
    if (key->has_sums) { /* our a is the library's B */
        return CUBLASLT_EPILOGUE_BGRADB;
    }
    return key->has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

static cublasStatus_t desc_set(lt *l, cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what,
                               const void *value, size_t value_bytes)
{
    return l->f.cublasLtMatmulDescSetAttribute(desc, what, value, value_bytes);
}

/* A matrix of memory rows x columns is column-major columns x rows to the library. */
static cublasStatus_t layout_make(lt *l, cudaDataType_t type, size_t rows, size_t columns, size_t stride,
                                  cublasLtMatrixLayout_t *out)
{
    return l->f.cublasLtMatrixLayoutCreate(out, type, columns, rows, (int64_t)stride);
}

/* Bias, sums and gelu's operand are addresses inside the description: set before each use. */
static cublasStatus_t pointers_set(lt *l, const plan *p, const lt_product *product)
{
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    const void    *aux    = product->gelu_x != NULL ? product->gelu_x : product->gelu_back;

    const void    *bias   = product->sums != NULL ? product->sums : product->bias;

    if (bias != NULL) {
        status = desc_set(l, p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias));
    }
    if (status == CUBLAS_STATUS_SUCCESS && aux != NULL) {
        status = desc_set(l, p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof(aux));
    }
    return status;
}

static cublasStatus_t desc_make(lt *l, plan *p, const lt_product *product)
{
    const plan_key    *key      = &p->key;
    cublasOperation_t  first    = key->b_is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t  second   = key->a_is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = epilogue_of(key);
    int64_t            stride   = (int64_t)key->d_stride;
    cublasStatus_t     status =
        l->f.cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);

    if (status == CUBLAS_STATUS_SUCCESS) {
        status = desc_set(l, p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first));
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = desc_set(l, p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second));
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = desc_set(l, p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
    }
    if (status == CUBLAS_STATUS_SUCCESS && key->gelu != 0) {
        status = desc_set(l, p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &stride, sizeof(stride));
    }
    return status == CUBLAS_STATUS_SUCCESS ? pointers_set(l, p, product) : status;
}

static cublasStatus_t preference_make(lt *l, const plan_key *key, cublasLtMatmulPreference_t *out)
{
    size_t workspace = LT_WORKSPACE_BYTES;
    /* Splits of k are summed in fp32, in the workspace, in one order. */
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    struct {
        cublasLtMatmulPreferenceAttributes_t what;
        const void                          *value;
        size_t                               value_bytes;
    } const attributes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof(reductions)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &key->align_b, sizeof(key->align_b)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &key->align_a, sizeof(key->align_a)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key->has_c ? &key->align_c : &key->align_d,
         sizeof(key->align_c)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &key->align_d, sizeof(key->align_d)},
    };
    cublasStatus_t status = l->f.cublasLtMatmulPreferenceCreate(out);

    for (size_t i = 0; status == CUBLAS_STATUS_SUCCESS && i < sizeof(attributes) / sizeof(attributes[0]);
         i++) {
        status = l->f.cublasLtMatmulPreferenceSetAttribute(*out, attributes[i].what, attributes[i].value,
                                                           attributes[i].value_bytes);
    }
    return status;
}

static cublasStatus_t algo_choose(lt *l, plan *p)
{
    cublasLtMatmulPreference_t      preference = NULL;
    cublasLtMatmulHeuristicResult_t found;
    int                             count  = 0;
    cublasStatus_t                  status = preference_make(l, &p->key, &preference);

    if (status == CUBLAS_STATUS_SUCCESS) {
        status = l->f.cublasLtMatmulAlgoGetHeuristic(l->handle, p->desc, p->b, p->a, p->d, p->d,
                                                     preference, 1, &found, &count);
    }
    if (status == CUBLAS_STATUS_SUCCESS && count > 0) {
        p->algo     = found.algo;
        p->is_there = 1;
    }
    if (preference != NULL) {
        (void)l->f.cublasLtMatmulPreferenceDestroy(preference);
    }
    return status;
}

static cublasStatus_t layouts_make(lt *l, plan *p)
{
    const plan_key *key    = &p->key;
    cudaDataType_t  type   = type_of((sherd_dtype)key->dtype);
    cublasStatus_t  status = layout_make(l, type, key->a_is_transposed ? key->k : key->m,
                                         key->a_is_transposed ? key->m : key->k, key->a_stride, &p->a);

    if (status == CUBLAS_STATUS_SUCCESS) {
        status = layout_make(l, type, key->b_is_transposed ? key->n : key->k,
                             key->b_is_transposed ? key->k : key->n, key->b_stride, &p->b);
    }
    return status == CUBLAS_STATUS_SUCCESS
               ? layout_make(l, key->is_wide ? CUDA_R_32F : type, key->m, key->n, key->d_stride, &p->d)
               : status;
}

static int is_fused(const plan_key *key)
{
    return key->has_bias || key->has_sums || key->gelu != 0;
}

/* gelu's operand has to have rows of a multiple of eight, and fp32 has no such kernels. */
static int is_hopeless(const plan_key *key)
{
    return key->gelu != 0 && (key->dtype == SHERD_F32 || key->d_stride % 8 != 0);
}

/* NULL: lt_why says what failed. */
static plan *plan_get(lt *l, const lt_product *product)
{
    plan_key       key = key_of(product);
    plan          *p;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

    for (size_t i = 0; i < l->num_plans; i++) {
        if (memcmp(&l->plans[i].key, &key, sizeof(key)) == 0) {
            return &l->plans[i];
        }
    }
    if (l->num_plans == MOST_PLANS) {
        (void)snprintf(l->why, sizeof(l->why), "more than %d shapes of products", MOST_PLANS);
        return NULL;
    }
    p = &l->plans[l->num_plans++];
    memset(p, 0, sizeof(*p));
    p->key = key;
    if (is_hopeless(&key)) {
        return p;
    }
    status = desc_make(l, p, product);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = layouts_make(l, p);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = algo_choose(l, p);
    }
    if (!p->is_there && !is_fused(&key)) {
        (void)snprintf(l->why, sizeof(l->why), "cuBLASLt has no product of %zu x %zu x %zu in %s: %s",
                       key.m, key.n, key.k, sherd_dtype_name((sherd_dtype)key.dtype),
                       l->f.cublasLtGetStatusString(status));
        return NULL;
    }
    return p;
}

lt_result lt_multiply(lt *l, const lt_product *product, cudaStream_t stream)
{
    const float    one = 1.0f, beta = product->c != NULL ? 1.0f : 0.0f;
    const void    *c = product->c != NULL ? product->c : product->d;
    plan          *p = plan_get(l, product);
    cublasStatus_t status;

    if (p == NULL) {
        return LT_FAILED;
    }
    if (!p->is_there) {
        return LT_UNFUSED;
    }
    status = pointers_set(l, p, product);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = l->f.cublasLtMatmul(l->handle, p->desc, &one, product->b.data, p->b, product->a.data,
                                     p->a, &beta, c, p->d, product->d, p->d, &p->algo, l->workspace,
                                     LT_WORKSPACE_BYTES, stream);
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
        (void)snprintf(l->why, sizeof(l->why), "a product of %zu x %zu x %zu failed: %s", product->m,
                       product->n, product->k, l->f.cublasLtGetStatusString(status));
        return LT_FAILED;
    }
    return LT_OK;
}

/* cuBLASLt, for lt.h. Its matrices are column-major. A row-major product d = a . b is d' = b' . a'
 * there, so our b is its first operand, and its rows are our n. */
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

#define MOST_PLANS 128 /* a model has about forty shapes */
/* Parameters begin at multiples of 64 elements, which are this many bytes in the 16-bit types.
 * Kernels are chosen for no larger alignment, so that the choice does not depend on the address of
 * a parameter, which differs between stages. */
#define ALIGN_BYTES 128

#define LT_FUNCTIONS(X)                                                                            \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtGetStatusString)                                                                     \
    X(cublasLtGetVersion)                                                                          \
    X(cublasLtMatmul)                                                                              \
    X(cublasLtMatmulAlgoCheck)                                                                     \
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

/* The inputs of the choice of a kernel. Keys are compared as bytes, so they are zeroed before they
 * are filled. */
typedef struct plan_key {
    size_t   m, n, k, a_stride, b_stride, d_stride;
    /* gelu: 1 forward, 2 backward */
    int32_t  dtype, a_is_transposed, b_is_transposed, has_c, has_bias, gelu;
    int32_t  is_wide;
    uint32_t align_a, align_b, align_c, align_d, align_bias, align_aux;
} plan_key;

typedef struct plan {
    plan_key               key;
    int                    is_there; /* 0: there is no kernel for this key */
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
    lt_tuning        tuning;
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

/* Opens the library of the version that this file was compiled for: the one that the system finds,
 * else the one where the toolkit was when this was built. */
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

lt *lt_create(const lt_tuning *tuning, char *why, size_t why_bytes)
{
    lt            *l = (lt *)calloc(1, sizeof(*l));
    cublasStatus_t status;

    if (l == NULL) {
        (void)snprintf(why, why_bytes, "out of memory");
        return NULL;
    }
    l->tuning = *tuning;
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
    /* The library stays open, since it keeps threads and memory of its own until the process
     * ends. */
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

/* The address of gelu's operand. */
static const void *aux_of(const lt_product *p)
{
    return p->gelu_x != NULL ? p->gelu_x : p->gelu_back;
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
    key.gelu            = p->gelu_x != NULL ? 1 : p->gelu_back != NULL ? 2 : 0;
    key.align_a         = align_of(p->a.data);
    key.align_b         = align_of(p->b.data);
    key.align_c         = align_of(p->c);
    key.align_d         = align_of(p->d);
    key.align_bias      = align_of(p->bias);
    key.align_aux       = align_of(aux_of(p));
    return key;
}

static cublasLtEpilogue_t epilogue_of(const plan_key *key)
{
    if (key->gelu == 1) {
        return key->has_bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    }
    if (key->gelu == 2) {
        return CUBLASLT_EPILOGUE_DGELU;
    }
    return key->has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

static cublasStatus_t desc_set(lt *l, cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what,
                               const void *value, size_t value_bytes)
{
    return l->f.cublasLtMatmulDescSetAttribute(desc, what, value, value_bytes);
}

/* For the library, a row-major matrix of rows x columns is a column-major one of columns x rows. */
static cublasStatus_t layout_make(lt *l, cudaDataType_t type, size_t rows, size_t columns, size_t stride,
                                  cublasLtMatrixLayout_t *out)
{
    return l->f.cublasLtMatrixLayoutCreate(out, type, columns, rows, (int64_t)stride);
}

static cublasStatus_t addresses_set(lt *l, const plan *p, const void *bias, const void *aux)
{
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

    if (bias != NULL) {
        status = desc_set(l, p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias));
    }
    if (status == CUBLAS_STATUS_SUCCESS && aux != NULL) {
        status = desc_set(l, p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof(aux));
    }
    return status;
}

/* Is called before each use of a plan. */
static cublasStatus_t pointers_set(lt *l, const plan *p, const lt_product *product)
{
    return addresses_set(l, p, product->bias, aux_of(product));
}

/* Sets addresses for the choice of a kernel, which depends on their alignment too. They have the
 * alignment of the key and no larger one. They are in the workspace, which begins at a multiple of
 * 256 bytes; a choice reads nothing there. */
static cublasStatus_t pointers_stand_in(lt *l, const plan *p, const lt_product *product)
{
    const char *base = (const char *)l->workspace;

    return addresses_set(l, p, product->bias != NULL ? base + p->key.align_bias : NULL,
                         aux_of(product) != NULL ? base + p->key.align_aux : NULL);
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
    return status == CUBLAS_STATUS_SUCCESS ? pointers_stand_in(l, p, product) : status;
}

static cublasStatus_t preference_make(lt *l, const plan_key *key, cublasLtMatmulPreference_t *out)
{
    size_t workspace = LT_WORKSPACE_BYTES;
    /* if k is split, the parts are summed in fp32, in the workspace, in a fixed order */
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

/* ------------------------------------------------------- by measurement -- */

#define TIMED_RUNS 3 /* the fastest counts; one execution before them is not timed */

static cublasStatus_t plan_run(lt *l, const plan *p, const cublasLtMatmulAlgo_t *algo,
                               const lt_product *product, cudaStream_t stream)
{
    const float one = 1.0f, beta = product->c != NULL ? 1.0f : 0.0f;
    const void *c = product->c != NULL ? product->c : product->d;

    return l->f.cublasLtMatmul(l->handle, p->desc, &one, product->b.data, p->b, product->a.data, p->a, &beta,
                               c, p->d, product->d, p->d, algo, l->workspace, LT_WORKSPACE_BYTES, stream);
}

/* Writes the key of a choice. Of the addresses it contains the alignment, on which the choice
 * depends. */
static void key_write(const lt *l, const plan_key *k, char *out, size_t out_bytes)
{
    (void)snprintf(out, out_bytes,
                   "%.120s, cuBLASLt %zu, %s%s: m %zu n %zu k %zu, strides %zu %zu %zu, %c%c, c %d, bias %d, gelu %d, "
                   "aligned %u %u %u %u %u %u",
                   l->tuning.device, l->f.cublasLtGetVersion(), sherd_dtype_name((sherd_dtype)k->dtype),
                   k->is_wide ? " to fp32" : "", k->m, k->n, k->k, k->a_stride, k->b_stride, k->d_stride,
                   k->a_is_transposed ? 'T' : 'N', k->b_is_transposed ? 'T' : 'N', k->has_c, k->has_bias, k->gelu,
                   k->align_a, k->align_b, k->align_c, k->align_d, k->align_bias, k->align_aux);
}

static int hex_read(const char *text, cublasLtMatmulAlgo_t *out)
{
    unsigned char bytes[sizeof(*out)];

    for (size_t i = 0; i < sizeof(bytes); i++) {
        char  two[3] = {text[2 * i], text[2 * i] == '\0' ? '\0' : text[2 * i + 1], '\0'};
        char *end;

        bytes[i] = (unsigned char)strtoul(two, &end, 16);
        if (end != two + 2) {
            return -1;
        }
    }
    memcpy(out, bytes, sizeof(bytes));
    return 0;
}

/* Keeps a choice as "MICROSECONDS us ALGORITHM", the algorithm in hexadecimal. The documentation of
 * cuBLASLt says that its bytes may be stored and used with the same version. */
static void choice_keep(lt *l, const char *key, const cublasLtMatmulAlgo_t *algo, float ms)
{
    const unsigned char *bytes = (const unsigned char *)algo;
    char                 value[64 + 2 * sizeof(*algo)];
    int                  used = snprintf(value, sizeof(value), "%.1f us ", (double)ms * 1e3);

    for (size_t i = 0; i < sizeof(*algo); i++) {
        used += snprintf(value + used, sizeof(value) - (size_t)used, "%02x", bytes[i]);
    }
    /* if the file cannot be written, the next run measures again */
    (void)tuned_add(l->tuning.file, key, value);
}

/* Reads the choice from the file. Returns 0 if there is one that the library accepts. */
static int choice_find(lt *l, plan *p, const char *key)
{
    const char                     *value = tuned_find(l->tuning.file, key);
    const char                     *hex   = value == NULL ? NULL : strstr(value, " us ");
    cublasLtMatmulAlgo_t            algo;
    cublasLtMatmulHeuristicResult_t result;

    if (hex == NULL || hex_read(hex + 4, &algo) != 0 ||
        l->f.cublasLtMatmulAlgoCheck(l->handle, p->desc, p->b, p->a, p->d, p->d, &algo, &result) !=
            CUBLAS_STATUS_SUCCESS ||
        result.workspaceSize > LT_WORKSPACE_BYTES) {
        return -1;
    }
    p->algo = algo;
    return 0;
}

/* Returns the milliseconds of the fastest execution, below 0 if this kernel fails. */
static float algo_time(lt *l, const plan *p, const cublasLtMatmulAlgo_t *algo, const lt_product *product,
                       cudaEvent_t *events, cudaStream_t stream)
{
    float least = -1.0f;

    if (plan_run(l, p, algo, product, stream) != CUBLAS_STATUS_SUCCESS) {
        return -1.0f;
    }
    for (int run = 0; run < TIMED_RUNS; run++) {
        float ms = -1.0f;

        if (cudaEventRecord(events[0], stream) != cudaSuccess ||
            plan_run(l, p, algo, product, stream) != CUBLAS_STATUS_SUCCESS ||
            cudaEventRecord(events[1], stream) != cudaSuccess || cudaEventSynchronize(events[1]) != cudaSuccess ||
            cudaEventElapsedTime(&ms, events[0], events[1]) != cudaSuccess) {
            return -1.0f;
        }
        least = least < 0.0f || ms < least ? ms : least;
    }
    return least;
}

/* Returns the index of the fastest one. The measured products write d; if the product adds to d,
 * its old values are restored. */
static int fastest_find(lt *l, const plan *p, const lt_product *product,
                        const cublasLtMatmulHeuristicResult_t *found, int count, float *ms_out, cudaStream_t stream)
{
    size_t      bytes = p->key.m * p->key.d_stride * (p->key.is_wide ? sizeof(float) : sherd_dtype_bytes(product->dtype));
    cudaEvent_t events[2] = {NULL, NULL};
    void       *copy      = NULL;
    cudaError_t error     = cudaEventCreate(&events[0]);
    int         best      = 0;

    if (error == cudaSuccess) {
        error = cudaEventCreate(&events[1]);
    }
    if (error == cudaSuccess && product->c == product->d) {
        error = cudaMalloc(&copy, bytes);
    }
    if (error == cudaSuccess && copy != NULL) {
        error = cudaMemcpyAsync(copy, product->d, bytes, cudaMemcpyDeviceToDevice, stream);
    }
    *ms_out = -1.0f;
    for (int i = 0; error == cudaSuccess && i < count; i++) {
        float ms = algo_time(l, p, &found[i].algo, product, events, stream);

        if (ms >= 0.0f && (*ms_out < 0.0f || ms < *ms_out)) {
            *ms_out = ms;
            best    = i;
        }
    }
    if (copy != NULL) {
        (void)cudaMemcpyAsync(product->d, copy, bytes, cudaMemcpyDeviceToDevice, stream);
        (void)cudaStreamSynchronize(stream);
    }
    (void)cudaFree(copy);
    for (int i = 0; i < 2; i++) {
        if (events[i] != NULL) {
            (void)cudaEventDestroy(events[i]);
        }
    }
    (void)cudaGetLastError(); /* if memory is out, nothing is measured and the first one is used */
    return best;
}

/* Chooses among several algorithms: the one in the file, else the fastest, which then goes to the
 * file. If nothing can be measured, the first one stays. */
static void algo_tune(lt *l, plan *p, const lt_product *product, const cublasLtMatmulHeuristicResult_t *found, int count,
                      cudaStream_t stream)
{
    char  key[512];
    float ms;

    key_write(l, &p->key, key, sizeof(key));
    if (choice_find(l, p, key) == 0 || pointers_set(l, p, product) != CUBLAS_STATUS_SUCCESS) {
        return;
    }
    p->algo = found[fastest_find(l, p, product, found, count, &ms, stream)].algo;
    if (ms >= 0.0f) {
        choice_keep(l, key, &p->algo, ms);
    }
}

/* Moves the usable results to the front. Returns how many there are. */
static int results_usable(cublasLtMatmulHeuristicResult_t *found, int count)
{
    int usable = 0;

    for (int i = 0; i < count; i++) {
        if (found[i].state == CUBLAS_STATUS_SUCCESS) {
            found[usable++] = found[i];
        }
    }
    return usable;
}

static cublasStatus_t algo_choose(lt *l, plan *p, const lt_product *product, cudaStream_t stream)
{
    cublasLtMatmulPreference_t      preference = NULL;
    cublasLtMatmulHeuristicResult_t found[LT_MOST_CANDIDATES];
    int            wanted = l->tuning.file == NULL ? 1 : l->tuning.candidates;
    int            count  = 0;
    cublasStatus_t status = preference_make(l, &p->key, &preference);

    wanted = wanted < LT_MOST_CANDIDATES ? wanted : LT_MOST_CANDIDATES;
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = l->f.cublasLtMatmulAlgoGetHeuristic(l->handle, p->desc, p->b, p->a, p->d, p->d,
                                                     preference, wanted, found, &count);
    }
    if (status == CUBLAS_STATUS_SUCCESS && count > 0) {
        status      = found[0].state; /* says why, if none is usable */
        count       = results_usable(found, count);
        p->is_there = count > 0;
    }
    if (p->is_there) {
        p->algo = found[0].algo;
        if (count > 1) {
            algo_tune(l, p, product, found, count, stream);
        }
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
    return key->has_bias || key->gelu != 0;
}

/* Rows of gelu's operand must have a multiple of eight elements, and fp32 has no kernels for it. */
static int is_hopeless(const plan_key *key)
{
    return key->gelu != 0 && (key->dtype == SHERD_F32 || key->d_stride % 8 != 0);
}

/* Returns the plan for a product, or NULL; then lt_why says what failed. */
static plan *plan_get(lt *l, const lt_product *product, cudaStream_t stream)
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
        status = algo_choose(l, p, product, stream);
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
    plan          *p = plan_get(l, product, stream);
    cublasStatus_t status;

    if (p == NULL) {
        return LT_FAILED;
    }
    if (!p->is_there) {
        return LT_UNFUSED;
    }
    status = pointers_set(l, p, product);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = plan_run(l, p, &p->algo, product, stream);
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
        (void)snprintf(l->why, sizeof(l->why), "a product of %zu x %zu x %zu failed: %s", product->m,
                       product->n, product->k, l->f.cublasLtGetStatusString(status));
        return LT_FAILED;
    }
    return LT_OK;
}

/* Opens oneDNN and keeps its primitives, one for each shape of product. See onednn.h. */
#include "models/onednn.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static onednn_state    state;
static pthread_once_t  once  = PTHREAD_ONCE_INIT;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER; /* protects the cached primitives */

/* ------------------------------------------------------------- library -- */

/* The part of dnnl.h that is used, so that a build needs neither headers nor the library. The
 * description of a matrix is an opaque struct in the caller's memory in version 2 (696 bytes in
 * 2.6), and memory of the library in version 3; here it is a pointer in both. An operation of
 * version 2 is also a struct of this kind (2,800 bytes); version 3 has none. */
enum {
    CPU              = 1,
    BF16             = 2,
    F32              = 3,
    U8               = 6,
    TYPE_OF_RESULT   = 0,
    SCRATCH_USER     = 1,
    QUERY_SCRATCH    = 136,
    ARG_SRC          = 1,
    ARG_DST          = 17,
    ARG_WEIGHTS      = 33,
    ARG_SCRATCH      = 80,
    ISA_AVX512_BF16  = 0xe7,
    ISA_AVX512_AMX   = 0x3e7,
    MATRIX_DIMS      = 2,
    DESCRIPTION_ROOM = 2048,
    OPERATION_ROOM   = 8192,
};

typedef struct dnnl_version {
    int         major, minor, patch;
    const char *hash;
    unsigned    cpu_runtime, gpu_runtime;
} dnnl_version;

typedef struct dnnl_arg {
    int   arg;
    void *memory;
} dnnl_arg;

typedef void dnnl_matrix;

/* Differences of the versions. A `plan` describes how a primitive is carried out. */
typedef struct dnnl_edition {
    const char *file;
    int         major;
    dnnl_matrix *(*matrix_make)(int ndims, const int64_t *dims, int type, const int64_t *strides);
    void (*matrix_free)(dnnl_matrix *);
    int (*plan_make)(void **out, const dnnl_matrix *a, const dnnl_matrix *b, const dnnl_matrix *c,
                     const void *attr);
    int (*after_sum)(void *after);
} dnnl_edition;

static struct {
    void               *handle;
    void               *engine;
    const dnnl_edition *edition;
    const dnnl_version *(*version)(void);
    int (*isa_get)(void);
    int (*isa_set)(int);
    int (*engine_create)(void **, int kind, size_t index);
    int (*stream_create)(void **, void *engine, unsigned flags);
    int (*stream_destroy)(void *);
    int (*attr_create)(void **);
    int (*attr_destroy)(void *);
    int (*attr_scratch)(void *attr, int mode);
    int (*attr_after)(void *attr, const void *after);
    int (*after_create)(void **);
    int (*after_destroy)(void *);
    /* version 2 */
    int (*matrix_init)(dnnl_matrix *, int ndims, const int64_t *dims, int type,
                       const int64_t *strides);
    int (*matmul_init)(void *operation, const dnnl_matrix *a, const dnnl_matrix *b,
                       const dnnl_matrix *bias, const dnnl_matrix *c);
    int (*plan_create)(void **, const void *operation, const void *attr, void *engine,
                       const void *hint);
    int (*sum_v2)(void *after, float scale);
    /* version 3 */
    int (*matrix_create)(dnnl_matrix **, int ndims, const int64_t *dims, int type,
                         const int64_t *strides);
    int (*matrix_destroy)(dnnl_matrix *);
    int (*matmul_plan)(void **, void *engine, const dnnl_matrix *a, const dnnl_matrix *b,
                       const dnnl_matrix *bias, const dnnl_matrix *c, const void *attr);
    int (*sum_v3)(void *after, float scale, int zero_point, int type);
    /* both */
    int (*plan_destroy)(void *);
    const dnnl_matrix *(*plan_matrix)(const void *plan, int what, int index);
    size_t (*matrix_bytes)(const dnnl_matrix *);
    int (*primitive_create)(void **, const void *plan);
    int (*primitive_destroy)(void *);
    int (*execute)(const void *primitive, void *stream, int count, const dnnl_arg *args);
    int (*memory_create)(void **, const dnnl_matrix *, void *engine, void *data);
    int (*memory_destroy)(void *);
    void (*threads_set)(int); /* OpenMP's, for the calling thread; NULL: another runtime */
} library;

static dnnl_matrix *matrix_make_v2(int ndims, const int64_t *dims, int type, const int64_t *strides)
{
    dnnl_matrix *matrix = calloc(1, DESCRIPTION_ROOM);

    if (matrix != NULL && library.matrix_init(matrix, ndims, dims, type, strides) != 0) {
        free(matrix);
        return NULL;
    }
    return matrix;
}

static dnnl_matrix *matrix_make_v3(int ndims, const int64_t *dims, int type, const int64_t *strides)
{
    dnnl_matrix *matrix = NULL;

    return library.matrix_create(&matrix, ndims, dims, type, strides) == 0 ? matrix : NULL;
}

static void matrix_free_v3(dnnl_matrix *matrix)
{
    if (matrix != NULL) {
        (void)library.matrix_destroy(matrix);
    }
}

static int plan_make_v2(void **out, const dnnl_matrix *a, const dnnl_matrix *b,
                        const dnnl_matrix *c, const void *attr)
{
    void *operation = calloc(1, OPERATION_ROOM);
    int   failed    = operation == NULL || library.matmul_init(operation, a, b, NULL, c) ||
                 library.plan_create(out, operation, attr, library.engine, NULL);

    free(operation);
    return failed;
}

static int plan_make_v3(void **out, const dnnl_matrix *a, const dnnl_matrix *b,
                        const dnnl_matrix *c, const void *attr)
{
    return library.matmul_plan(out, library.engine, a, b, NULL, c, attr);
}

static int after_sum_v2(void *after)
{
    return library.sum_v2(after, 1.0f);
}

static int after_sum_v3(void *after)
{
    return library.sum_v3(after, 1.0f, 0, TYPE_OF_RESULT);
}

/* Newest first: the first that opens is taken. */
static const dnnl_edition EDITIONS[] = {
    {"libdnnl.so.3", 3, matrix_make_v3, matrix_free_v3, plan_make_v3, after_sum_v3},
    {"libdnnl.so.2", 2, matrix_make_v2, free, plan_make_v2, after_sum_v2},
};

static int symbols_find(void)
{
    const struct {
        const char *name;
        void       *function;
        int         major; /* 0: every version's */
    } wanted[] = {
        {"dnnl_version", &library.version, 0},
        {"dnnl_get_effective_cpu_isa", &library.isa_get, 0},
        {"dnnl_set_max_cpu_isa", &library.isa_set, 0},
        {"dnnl_engine_create", &library.engine_create, 0},
        {"dnnl_stream_create", &library.stream_create, 0},
        {"dnnl_stream_destroy", &library.stream_destroy, 0},
        {"dnnl_memory_desc_init_by_strides", &library.matrix_init, 2},
        {"dnnl_matmul_desc_init", &library.matmul_init, 2},
        {"dnnl_primitive_desc_create", &library.plan_create, 2},
        {"dnnl_post_ops_append_sum", &library.sum_v2, 2},
        {"dnnl_memory_desc_create_with_strides", &library.matrix_create, 3},
        {"dnnl_memory_desc_destroy", &library.matrix_destroy, 3},
        {"dnnl_matmul_primitive_desc_create", &library.matmul_plan, 3},
        {"dnnl_post_ops_append_sum", &library.sum_v3, 3},
        {"dnnl_primitive_attr_create", &library.attr_create, 0},
        {"dnnl_primitive_attr_destroy", &library.attr_destroy, 0},
        {"dnnl_primitive_attr_set_scratchpad_mode", &library.attr_scratch, 0},
        {"dnnl_primitive_attr_set_post_ops", &library.attr_after, 0},
        {"dnnl_post_ops_create", &library.after_create, 0},
        {"dnnl_post_ops_destroy", &library.after_destroy, 0},
        {"dnnl_primitive_desc_destroy", &library.plan_destroy, 0},
        {"dnnl_primitive_desc_query_md", &library.plan_matrix, 0},
        {"dnnl_memory_desc_get_size", &library.matrix_bytes, 0},
        {"dnnl_primitive_create", &library.primitive_create, 0},
        {"dnnl_primitive_destroy", &library.primitive_destroy, 0},
        {"dnnl_primitive_execute", &library.execute, 0},
        {"dnnl_memory_create", &library.memory_create, 0},
        {"dnnl_memory_destroy", &library.memory_destroy, 0},
    };

    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        if (wanted[i].major != 0 && wanted[i].major != library.edition->major) {
            continue;
        }
        *(void **)wanted[i].function = dlsym(library.handle, wanted[i].name);
        if (*(void **)wanted[i].function == NULL) {
            (void)snprintf(state.why, sizeof(state.why), "%s has no %s", library.edition->file,
                           wanted[i].name);
            return -1;
        }
    }
    *(void **)&library.threads_set = dlsym(library.handle, "omp_set_num_threads");
    return 0;
}

static int cpu_has_bf16(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512bf16");
#else
    return 0;
#endif
}

static onednn_level level_of(int isa)
{
    return (isa & ISA_AVX512_AMX) == ISA_AVX512_AMX     ? ONEDNN_AMX
           : (isa & ISA_AVX512_BF16) == ISA_AVX512_BF16 ? ONEDNN_AVX512
                                                        : ONEDNN_NONE;
}

static int library_open(void)
{
    for (size_t i = 0; i < sizeof(EDITIONS) / sizeof(EDITIONS[0]) && library.handle == NULL; i++) {
        library.edition = &EDITIONS[i];
        library.handle  = dlopen(EDITIONS[i].file, RTLD_NOW | RTLD_LOCAL);
    }
    if (library.handle == NULL) {
        (void)snprintf(state.why, sizeof(state.why), "%s", dlerror());
        return -1;
    }
    if (symbols_find() != 0) {
        return -1;
    }
    if (library.version()->major != library.edition->major ||
        library.engine_create(&library.engine, CPU, 0) != 0) {
        (void)snprintf(state.why, sizeof(state.why), "%s does not start", library.edition->file);
        return -1;
    }
    return 0;
}

/* Opens the library only if the CPU multiplies bf16: it maps 40 MB, and on other CPUs its bf16
 * would be slower than fp32. */
static void open_once(void)
{
    if (LLM_BLAS_IS_DISABLED) {
        (void)snprintf(state.why, sizeof(state.why), "built with -Dblas=disabled");
    } else if (!cpu_has_bf16()) {
        (void)snprintf(state.why, sizeof(state.why), "this CPU does not multiply bf16");
    } else if (library_open() == 0) {
        const dnnl_version *v = library.version();

        (void)snprintf(state.library, sizeof(state.library), "oneDNN %d.%d.%d", v->major, v->minor,
                       v->patch);
        state.level = state.own_level = level_of(library.isa_get());
        if (state.level == ONEDNN_NONE) {
            (void)snprintf(state.why, sizeof(state.why), "ONEDNN_MAX_CPU_ISA");
        }
    } else if (library.handle != NULL) {
        (void)dlclose(library.handle);
        library.handle = NULL;
    }
}

const onednn_state *onednn_open(void)
{
    (void)pthread_once(&once, open_once);
    return &state;
}

void onednn_settle(const double counts[ONEDNN_LEVELS])
{
    onednn_level least = onednn_open()->own_level;

    for (onednn_level i = ONEDNN_NONE; i < least; i++) {
        least = counts[i] > 0.0 ? i : least;
    }
    if (least == ONEDNN_AVX512 && state.own_level > least &&
        library.isa_set(ISA_AVX512_BF16) != 0) {
        least = ONEDNN_NONE; /* too late to choose kernels; ranks would have different bits */
    }
    if (least == ONEDNN_NONE && state.own_level != ONEDNN_NONE) {
        (void)snprintf(state.why, sizeof(state.why), "another rank has none");
    }
    state.level = least;
}

/* ---------------------------------------------------------- primitives -- */

/* The key of a primitive. */
typedef struct shape {
    size_t m, n, k, a_stride, b_stride, c_stride;
    int    flips_a, flips_b, is_added, is_half;
} shape;

typedef struct primitive {
    struct primitive *next;
    shape             of;
    void             *run;
    dnnl_matrix      *a, *b, *c, *scratch;
    size_t            scratch_bytes;
} primitive;

static primitive *kept;

static shape shape_of(const onednn_product *p)
{
    shape s;

    memset(&s, 0, sizeof(s)); /* with its padding, because shapes are compared as bytes */
    s.m        = p->m;
    s.n        = p->n;
    s.k        = p->k;
    s.a_stride = p->a.stride;
    s.b_stride = p->b.stride;
    s.c_stride = p->c_stride;
    s.flips_a  = p->a.is_transposed;
    s.flips_b  = p->b.is_transposed;
    s.is_added = p->is_added;
    s.is_half  = p->is_half;
    return s;
}

static dnnl_matrix *matrix_make(size_t rows, size_t columns, size_t stride, int is_transposed,
                                int type)
{
    const int64_t dims[MATRIX_DIMS]    = {(int64_t)rows, (int64_t)columns};
    const int64_t strides[MATRIX_DIMS] = {is_transposed ? 1 : (int64_t)stride,
                                          is_transposed ? (int64_t)stride : 1};

    return library.edition->matrix_make(MATRIX_DIMS, dims, type, strides);
}

/* The caller gives the scratch: scratch of the library's own would belong to the thread that made
 * the primitive. */
static void *attributes_make(int is_added)
{
    void *attr = NULL, *after = NULL;
    int   failed = library.attr_create(&attr);

    failed = failed || library.attr_scratch(attr, SCRATCH_USER);
    if (!failed && is_added) {
        failed = library.after_create(&after);
        failed = failed || library.edition->after_sum(after) || library.attr_after(attr, after);
    }
    if (after != NULL) {
        (void)library.after_destroy(after);
    }
    if (failed && attr != NULL) {
        (void)library.attr_destroy(attr);
        attr = NULL;
    }
    return attr;
}

static int primitive_build(primitive *p)
{
    void   *attr = attributes_make(p->of.is_added), *plan = NULL;
    int64_t scratch_bytes, stride                         = 1;
    int     failed = attr == NULL;

    failed = failed || library.edition->plan_make(&plan, p->a, p->b, p->c, attr);
    failed = failed || library.primitive_create(&p->run, plan);
    if (plan != NULL) {
        p->scratch_bytes = library.matrix_bytes(library.plan_matrix(plan, QUERY_SCRATCH, 0));
        (void)library.plan_destroy(plan);
    }
    if (attr != NULL) {
        (void)library.attr_destroy(attr);
    }
    scratch_bytes = (int64_t)p->scratch_bytes;
    p->scratch    = failed ? NULL : library.edition->matrix_make(1, &scratch_bytes, U8, &stride);
    return p->scratch == NULL ? -1 : 0;
}

static void primitive_free(primitive *p)
{
    if (p->run != NULL) {
        (void)library.primitive_destroy(p->run);
    }
    library.edition->matrix_free(p->a);
    library.edition->matrix_free(p->b);
    library.edition->matrix_free(p->c);
    library.edition->matrix_free(p->scratch);
    free(p);
}

static primitive *primitive_make(const shape *s)
{
    primitive *p = calloc(1, sizeof(*p));

    if (p == NULL) {
        return NULL;
    }
    p->of = *s;
    p->a  = matrix_make(s->m, s->k, s->a_stride, s->flips_a, BF16);
    p->b  = matrix_make(s->k, s->n, s->b_stride, s->flips_b, BF16);
    p->c  = matrix_make(s->m, s->n, s->c_stride, 0, s->is_half ? BF16 : F32);
    if (p->a == NULL || p->b == NULL || p->c == NULL || primitive_build(p) != 0) {
        primitive_free(p);
        return NULL;
    }
    return p;
}

/* Finds the primitive of a shape, or makes it and keeps it: a model has few shapes, and making a
 * primitive takes milliseconds. */
static const primitive *primitive_find(const shape *s)
{
    primitive *p;

    (void)pthread_mutex_lock(&guard);
    p = kept;
    while (p != NULL && memcmp(&p->of, s, sizeof(*s)) != 0) {
        p = p->next;
    }
    if (p == NULL) {
        p = primitive_make(s);
        if (p != NULL) {
            p->next = kept;
            kept    = p;
        }
    }
    (void)pthread_mutex_unlock(&guard);
    return p;
}

/* ------------------------------------------------------------ products -- */

/* State of each thread for products. */
typedef struct bench {
    void  *stream, *scratch;
    size_t scratch_bytes;
} bench;

static pthread_key_t  bench_key;
static pthread_once_t bench_once = PTHREAD_ONCE_INIT;
static int            has_bench_key;

static void bench_free(void *memory)
{
    bench *b = memory;

    (void)library.stream_destroy(b->stream);
    free(b->scratch);
    free(b);
}

static void bench_key_make(void)
{
    has_bench_key = pthread_key_create(&bench_key, bench_free) == 0;
}

static bench *bench_make(void)
{
    bench *b = calloc(1, sizeof(*b));

    if (b == NULL || library.stream_create(&b->stream, library.engine, 1) != 0) {
        free(b);
        return NULL;
    }
    if (pthread_setspecific(bench_key, b) != 0) {
        bench_free(b);
        return NULL;
    }
    return b;
}

static bench *bench_of_thread(size_t scratch_bytes)
{
    bench *b;

    (void)pthread_once(&bench_once, bench_key_make);
    b = has_bench_key ? pthread_getspecific(bench_key) : NULL;
    if (b == NULL && has_bench_key) {
        b = bench_make();
    }
    if (b != NULL && b->scratch_bytes < scratch_bytes) {
        size_t room = (scratch_bytes + 4095) / 4096 * 4096;

        free(b->scratch);
        b->scratch       = aligned_alloc(4096, room);
        b->scratch_bytes = b->scratch == NULL ? 0 : room;
    }
    return b != NULL && b->scratch_bytes >= scratch_bytes ? b : NULL;
}

int onednn_multiply(const onednn_product *product)
{
    const shape      s = shape_of(product);
    const primitive *p;
    bench           *b;
    dnnl_arg         args[4];
    int              failed = 0, made = 0, count;

    if (library.threads_set != NULL) {
        library.threads_set(1); /* a primitive is cut for as many threads as its maker has */
    }
    p = primitive_find(&s);
    b = p == NULL ? NULL : bench_of_thread(p->scratch_bytes);
    if (b == NULL) {
        return -1;
    }
    {
        const struct {
            int                arg;
            const dnnl_matrix *matrix;
            void              *data;
        } of[4] = {{ARG_SRC, p->a, (void *)product->a.data},
                   {ARG_WEIGHTS, p->b, (void *)product->b.data},
                   {ARG_DST, p->c, product->c},
                   {ARG_SCRATCH, p->scratch, b->scratch}};

        count = p->scratch_bytes > 0 ? 4 : 3;
        while (made < count && !failed) {
            args[made].arg = of[made].arg;
            failed = library.memory_create(&args[made].memory, of[made].matrix, library.engine,
                                           of[made].data);
            made += !failed;
        }
    }
    failed = failed || library.execute(p->run, b->stream, made, args);
    while (made > 0) {
        (void)library.memory_destroy(args[--made].memory);
    }
    return failed ? -1 : 0;
}

/* --------------------------------------------------------------- words -- */

const char *onednn_describe(char out[320])
{
    static const char *const names[ONEDNN_LEVELS] = {"", "AVX512_BF16", "AMX"};
    const onednn_state      *s                    = onednn_open();

    if (s->level == ONEDNN_NONE) {
        (void)snprintf(out, 320, "widened to fp32 (%s)", s->why);
    } else {
        (void)snprintf(out, 320, "%s, %s", s->library, names[s->level]);
    }
    return out;
}

/* Parameters and gradients as DLPack tensors, which the test reads as dlpack.h lays them out: what
 * they say, that they show the engine's memory, and that they end without the engine. On the
 * emulated device too. */
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#ifdef TEST_EMULATED
#include "sherd_cuda.h"

#include "emulator.h"
#endif

#include <stdlib.h>
#include <string.h>

typedef struct dl_tensor {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t ndim;
    struct {
        uint8_t  code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;

struct DLManagedTensorVersioned {
    struct {
        uint32_t major, minor;
    } version;
    void *manager_ctx;
    void (*deleter)(DLManagedTensorVersioned *self);
    uint64_t  flags;
    dl_tensor tensor;
};

#ifdef TEST_EMULATED
enum { KIND = 2 }; /* kDLCUDA */

static int device_of(const rig *r)
{
    return sherd_world_local_rank(r->world) % sherd_device_count("cuda");
}
#else
enum { KIND = 1 }; /* kDLCPU */

static int device_of(const rig *r)
{
    (void)r;
    return 0;
}
#endif

typedef struct made {
    rig         r;
    sherd_param matrix, scalar, none, wide, frozen;
} made;

static sherd_param param_add(rig *r, const char *name, int ndim, const size_t *shape,
                             sherd_param_params params)
{
    sherd_param param;

    params.struct_size = sizeof(params);
    params.name        = name;
    params.ndim        = ndim;
    memcpy(params.shape, shape, (size_t)ndim * sizeof(*shape));
    CHECK_OK(sherd_param_add(r->engine, r->units[0], &params, &param));
    return param;
}

/* A unit with a parameter of each kind, sealed and filled. */
static void made_open(made *m, sherd_world *world, const rig_options *options)
{
    sherd_param_params plain;

    sherd_param_params_init(&plain);
    rig_open(&m->r, world, options);
    (void)rig_unit(&m->r, "unit");
    m->matrix    = param_add(&m->r, "matrix", 3, (size_t[]){3, 70, 2}, plain);
    m->scalar    = param_add(&m->r, "scalar", 0, (size_t[]){0}, plain);
    m->none      = param_add(&m->r, "none", 2, (size_t[]){4, 0}, plain);
    plain.dtype  = SHERD_F32;
    m->wide      = param_add(&m->r, "wide", 1, (size_t[]){100}, plain);
    plain.dtype  = -1;
    plain.frozen = 1;
    m->frozen    = param_add(&m->r, "frozen", 1, (size_t[]){5}, plain);
    CHECK_OK(sherd_engine_seal(m->r.engine));
    for (sherd_param p = m->matrix; p <= m->frozen; p++) {
        CHECK_OK(sherd_param_fill(m->r.engine, p, rig_fill, NULL));
    }
}

static DLManagedTensorVersioned *of_param(const made *m, sherd_param param)
{
    DLManagedTensorVersioned *got = NULL;

    CHECK_OK(sherd_param_dlpack(m->r.engine, param, &got));
    return got;
}

static DLManagedTensorVersioned *of_grad(const made *m, sherd_param param)
{
    DLManagedTensorVersioned *got = NULL;

    CHECK_OK(sherd_param_grad_dlpack(m->r.engine, param, &got));
    return got;
}

/* Type, shape and device, then frees it. */
static void tensor_check(const made *m, DLManagedTensorVersioned *got, const void *data, int code,
                         int bits, int ndim, const int64_t *shape, const int64_t *strides)
{
    const dl_tensor *tensor = &got->tensor;

    CHECK_INT(1, got->version.major);
    CHECK(tensor->data == data && tensor->byte_offset == 0);
    CHECK_INT(KIND, tensor->device.type);
    CHECK_INT(device_of(&m->r), tensor->device.id);
    CHECK_INT(code, tensor->dtype.code);
    CHECK_INT(bits, tensor->dtype.bits);
    CHECK_INT(1, tensor->dtype.lanes);
    CHECK_INT(ndim, tensor->ndim);
    CHECK_BYTES_EQUAL(shape, tensor->shape, (size_t)ndim * sizeof(*shape));
    CHECK_BYTES_EQUAL(strides, tensor->strides, (size_t)ndim * sizeof(*strides));
    got->deleter(got);
}

static void describe(sherd_world *world, void *ctx)
{
    const int64_t matrix[] = {3, 70, 2}, rows[] = {140, 2, 1}, none[] = {4, 0}, zero[] = {0, 1};
    const int64_t wide[] = {100}, one[] = {1};
    made          m;

    made_open(&m, world, ctx);
    tensor_check(&m, of_param(&m, m.matrix), sherd_param_address(m.r.engine, m.matrix), 4, 16, 3,
                 matrix, rows);
    tensor_check(&m, of_grad(&m, m.matrix), sherd_param_grad_address(m.r.engine, m.matrix), 4, 16,
                 3, matrix, rows);
    tensor_check(&m, of_param(&m, m.scalar), sherd_param_address(m.r.engine, m.scalar), 4, 16, 0,
                 one, one);
    tensor_check(&m, of_param(&m, m.none), NULL, 4, 16, 2, none, zero);
    tensor_check(&m, of_grad(&m, m.wide), sherd_param_grad_address(m.r.engine, m.wide), 2, 32, 1,
                 wide, one);
    rig_close(&m.r);
}

static void a_tensor_says_where_what_and_how_long(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        rig_options options = {.stage = stage, .dtype = SHERD_BF16};

        test_world(1, describe, &options);
        test_world(2, describe, &options);
    }
}

/* What tensors that were made before the first acquire show while the unit is acquired. */
static void show(sherd_world *world, void *ctx)
{
    DLManagedTensorVersioned *data, *grad;
    rig_options               options = {.stage = 3, .dtype = SHERD_F16};
    float                     want[100], got[100];
    made                      m;

    (void)ctx;
    made_open(&m, world, &options);
    data = of_param(&m, m.wide);
    grad = of_grad(&m, m.wide);
    CHECK_INT(1, data->flags); /* read-only */
    CHECK_INT(0, grad->flags);
    CHECK_OK(sherd_unit_acquire(m.r.engine, m.r.units[0], SHERD_FORWARD));
    CHECK(data->tensor.data == sherd_param_data(m.r.engine, m.wide));
    CHECK_OK(rig_fill(NULL, 0, 100, want));
    CHECK_OK(sherd_copy(m.r.engine, got, data->tensor.data, sizeof(got)));
    CHECK_BYTES_EQUAL(want, got, sizeof(want));
    CHECK_OK(sherd_unit_release(m.r.engine, m.r.units[0], SHERD_FORWARD));
    CHECK_OK(sherd_unit_acquire(m.r.engine, m.r.units[0], SHERD_BACKWARD));
    CHECK(grad->tensor.data == sherd_param_grad(m.r.engine, m.wide));
    CHECK_OK(sherd_unit_release(m.r.engine, m.r.units[0], SHERD_BACKWARD));
    rig_close(&m.r);
    data->deleter(data); /* after the engine */
    grad->deleter(grad);
}

static void a_tensor_shows_the_engines_memory(void)
{
    test_world(2, show, NULL);
}

static void refuse(sherd_world *world, void *ctx)
{
    rig_options options = {
        .stage = 3, .dtype = SHERD_BF16, .top = ", \"sherd\": {\"free_packing\": true}"};
    DLManagedTensorVersioned *got = (DLManagedTensorVersioned *)ctx;
    made                      m;

    made_open(&m, world, &options);
    CHECK_STATUS(SHERD_E_NOTSUP, sherd_param_dlpack(m.r.engine, m.matrix, &got));
    CHECK_ERROR_SAYS("free_packing");
    CHECK_STATUS(SHERD_E_STATE, sherd_param_grad_dlpack(m.r.engine, m.frozen, &got));
    CHECK_ERROR_SAYS("is frozen and has no gradient");
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_dlpack(m.r.engine, 99, &got));
    rig_close(&m.r);
    rig_open(&m.r, world, &options);
    (void)rig_param(&m.r, rig_unit(&m.r, "unit"), "early", 100);
    CHECK_STATUS(SHERD_E_STATE, sherd_param_dlpack(m.r.engine, 0, &got));
    CHECK_ERROR_SAYS("before sherd_engine_seal");
    CHECK(got == ctx);
    rig_close(&m.r);
}

static void what_has_no_address_has_no_tensor(void)
{
    int nothing;

    test_world(2, refuse, &nothing); /* one rank has them gathered for good */
}

#ifdef TEST_EMULATED

typedef struct reading {
    const float *from; /* device memory */
    float        got[100];
} reading;

static void read_now(void *ctx)
{
    reading *what = ctx;

    memcpy(what->got, what->from, sizeof(what->got));
}

/* A library that works on a stream of its own. Lanes have seeded delays: one that does not follow
 * reads too early, or too late, when the unit's memory is the next one's. */
static void follow(sherd_world *world, void *ctx)
{
    static reading what[2];
    float          want[100];
    rig_options    options = {.stage = 3,
                              .zero  = ", \"stage3_prefetch_bucket_size\": 0, "
                                          "\"stage3_max_reuse_distance\": 0"};
    cudaStream_t   consumer;
    rig            r;

    (void)ctx;
    rig_open(&r, world, &options);
    for (int u = 0; u < 2; u++) {
        (void)rig_param(&r, rig_unit(&r, u == 0 ? "a" : "b"), u == 0 ? "wa" : "wb", 100);
    }
    rig_seal(&r);
    CHECK_INT(cudaSuccess, cudaStreamCreateWithFlags(&consumer, cudaStreamNonBlocking));
    for (int u = 0; u < 2; u++) {
        DLManagedTensorVersioned *tensor;

        CHECK_OK(sherd_param_dlpack(r.engine, r.params[u].handle, &tensor));
        what[u].from = tensor->tensor.data;
        tensor->deleter(tensor);
        rig_acquire(&r, u, SHERD_EVAL);
        CHECK_INT(cudaSuccess, sherd_cuda_follow(consumer, sherd_cuda_stream(r.engine)));
        CHECK_INT(cudaSuccess, emulator_call(consumer, read_now, &what[u]));
        CHECK_INT(cudaSuccess, sherd_cuda_follow(sherd_cuda_stream(r.engine), consumer));
        rig_release(&r, u, SHERD_EVAL);
    }
    CHECK_INT(cudaSuccess, cudaStreamSynchronize(consumer));
    for (int u = 0; u < 2; u++) {
        CHECK_OK(rig_fill((void *)(uintptr_t)u, 0, 100, want));
        CHECK_BYTES_EQUAL(want, what[u].got, sizeof(want));
    }
    rig_close(&r);
    CHECK_INT(cudaSuccess, cudaStreamDestroy(consumer));
}

static void a_stream_of_the_consumers_follows_and_is_followed(void)
{
    test_world(1, follow, NULL);
}

#endif

static const test_case CASES[] = {
    CASE(a_tensor_says_where_what_and_how_long),
    CASE(a_tensor_shows_the_engines_memory),
    CASE(what_has_no_address_has_no_tensor),
#ifdef TEST_EMULATED
    CASE(a_stream_of_the_consumers_follows_and_is_followed),
#endif
};

RUN_MAIN(CASES)

#include "tests/trainer/device_rig.h"

#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>

tolerance tolerance_of(sherd_dtype dtype)
{
    switch (dtype) {
    case SHERD_F32:
        return (tolerance){2e-6, 2e-5, 0.1};
    case SHERD_BF16:
        return (tolerance){6e-3, 1e-2, 0.1};
    default:
        return (tolerance){1e-3, 2e-3, 0.1};
    }
}

void *keep(rig *r, void *memory)
{
    if (r->num_kept == r->max_kept) {
        r->max_kept = 2 * r->max_kept + 64;
        r->kept     = realloc(r->kept, r->max_kept * sizeof(*r->kept));
    }
    CHECK(memory != NULL && r->kept != NULL);
    r->kept[r->num_kept++] = memory;
    return memory;
}

rig rig_open(compute_limits limits, sherd_dtype dtype, compute_choices choices)
{
    rig            r = {.limits = limits, .dtype = dtype, .threads = pool_create(1), .slack = 1.0};
    char           why[256] = "";
    uint64_t       seed     = 99;
    compute_params params   = {.limits = limits, .backend = "cpu", .threads = r.threads};

    r.rows              = limits.batch * limits.length;
    params.limits.dtype = SHERD_F32;
    r.cpu               = compute_create(&params, why, sizeof(why));
    params.limits.dtype = dtype;
    params.backend      = "cuda";
    params.choices      = choices;
    CHECK(cudaStreamCreate(&r.stream) == cudaSuccess);
    params.stream = r.stream;
    r.gpu         = compute_create(&params, why, sizeof(why));
    if (r.cpu == NULL || r.gpu == NULL) {
        test_fail(__FILE__, __LINE__, "no computes: %s", why);
    }
    r.inputs  = keep(&r, calloc(2 * r.rows, sizeof(*r.inputs)));
    r.targets = r.inputs + r.rows;
    for (size_t i = 0; i < 2 * r.rows; i++) { /* half of them few, so that some come often */
        uint64_t word = test_random(&seed);

        r.inputs[i] = (int32_t)(word % (word >> 32 & 1 ? limits.vocab : (limits.vocab + 15) / 16));
    }
    return r;
}

void rig_set(rig *r)
{
    r->cpu->ops->batch_set(r->cpu, r->inputs, r->targets);
    r->gpu->ops->batch_set(r->gpu, r->inputs, r->targets);
}

void *device_alloc(rig *r, size_t len_bytes)
{
    void *memory = r->gpu->ops->alloc(r->gpu, len_bytes + 256);

    CHECK(memory != NULL);
    return memory;
}

void device_get(rig *r, const void *from, void *to, size_t len_bytes)
{
    CHECK(cudaMemcpyAsync(to, from, len_bytes, cudaMemcpyDeviceToHost, r->stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(r->stream) == cudaSuccess);
}

pair pair_make(rig *r, size_t count, uint64_t seed, float scale)
{
    pair  p    = {.cpu = keep(r, calloc(count + 1, sizeof(float))), .count = count};
    void *room = keep(r, calloc(count + 1, sizeof(float)));

    for (size_t i = 0; i < count; i++) {
        p.cpu[i] = scale * test_random_float(&seed);
    }
    narrow(r->dtype, p.cpu, room, count);
    widen(r->dtype, room, p.cpu, count);
    p.gpu = device_alloc(r, count * sherd_dtype_bytes(r->dtype));
    r->gpu->ops->upload(r->gpu, p.gpu, room, count * sherd_dtype_bytes(r->dtype));
    return p;
}

pair pair_none(void)
{
    return (pair){0};
}

tensor cpu_tensor(pair data, pair grad)
{
    return (tensor){.data = data.cpu, .grad = grad.cpu, .dtype = SHERD_F32};
}

tensor gpu_tensor(const rig *r, pair data, pair grad)
{
    return (tensor){.data = data.gpu, .grad = grad.gpu, .dtype = r->dtype};
}

void pair_check(rig *r, const char *what, pair p)
{
    size_t bytes = p.count * sherd_dtype_bytes(r->dtype);
    void  *raw   = keep(r, malloc(bytes + 1));
    float *got   = keep(r, malloc(p.count * sizeof(*got) + 1));
    char   name[128];

    tolerance t = tolerance_of(r->dtype);

    device_get(r, p.gpu, raw, bytes);
    widen(r->dtype, raw, got, p.count);
    (void)snprintf(name, sizeof(name), "%s in %s", what, sherd_dtype_name(r->dtype));
    t.of_most *= r->slack;
    close_check(name, p.cpu, got, p.count, t);
}

void pair_free(rig *r, pair p)
{
    r->gpu->ops->free(r->gpu, p.gpu);
}

void rig_close(rig *r)
{
    compute_destroy(r->cpu);
    compute_destroy(r->gpu);
    CHECK(cudaStreamDestroy(r->stream) == cudaSuccess);
    pool_destroy(r->threads);
    while (r->num_kept > 0) {
        free(r->kept[--r->num_kept]);
    }
    free(r->kept);
}

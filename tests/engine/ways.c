#include "tests/engine/ways.h"

#include "collectives/world.h"
#include "tests/engine/toy.h"
#include "tests/lib/check.h"

#include <stdlib.h>
#include <string.h>

const rig_options WAYS_KINDS[WAYS_NUM_KINDS] = {
    {.accumulation = 1, .dtype = SHERD_F32, .clip = 1, .zero = ", \"overlap_comm\": false"},
    {.accumulation = 1, .dtype = SHERD_BF16, .clip = 1, .zero = ", \"overlap_comm\": true"},
    {.accumulation = 2, .dtype = SHERD_F32, .clip = 1, .zero = ", \"overlap_comm\": false"},
    {.accumulation = 2, .dtype = SHERD_BF16, .clip = 1, .zero = ", \"overlap_comm\": true"},
    {.accumulation = 2, .dtype = SHERD_BF16, .clip = 1, .top = ", \"deterministic\": true"},
};

typedef struct ways {
    way_fn      one, other;
    rig_options options;
} ways;

static void train_in_two_ways(sherd_world *world, void *raw)
{
    const ways *w    = raw;
    uint64_t    want = w->one(world, &w->options);

    CHECK_INT(want, w->other(world, &w->options));
}

static const int RANKS[] = {1, 2, 3};

void ways_expect_same(way_fn one, way_fn other, int last_stage)
{
    for (size_t r = 0; r < sizeof(RANKS) / sizeof(RANKS[0]); r++) {
        for (int stage = 0; stage <= last_stage && toy_takes_ranks(RANKS[r]); stage++) {
            for (size_t kind = 0; kind < WAYS_NUM_KINDS; kind++) {
                ways w = {one, other, WAYS_KINDS[kind]};

                w.options.stage = stage;
                test_world(RANKS[r], train_in_two_ways, &w);
            }
        }
    }
}

void ways_on_every_stage(int world_size, void (*body)(sherd_world *world, void *ctx))
{
    for (int stage = 0; stage <= 3; stage++) {
        rig_options options = {.stage = stage};

        test_world(world_size, body, &options);
    }
}

void ways_declare_tied(rig *r, sherd_world *world, const rig_options *options)
{
    rig_open(r, world, options);
    (void)rig_unit(r, "embedding");
    (void)rig_unit(r, "layer");
    (void)rig_unit(r, "head");
    (void)rig_param(r, 0, "embedding.w", 333);
    (void)rig_param(r, 1, "layer.w", 129);
    (void)rig_param(r, 2, "head.w", 65);
}

void ways_declare_layers(rig *r, sherd_world *world, const rig_options *options)
{
    static const char *const UNITS[]  = {"zero", "one", "two", "three"};
    static const char *const WIDE[]   = {"zero.w", "one.w", "two.w", "three.w"};
    static const char *const NARROW[] = {"zero.b", "one.b", "two.b", "three.b"};
    sherd_param_params       fixed;

    sherd_param_params_init(&fixed);
    fixed.frozen = 1;
    rig_open(r, world, options);
    for (int u = 0; u < 4; u++) {
        (void)rig_unit(r, UNITS[u]);
        (void)rig_param(r, u, WIDE[u], 150 + 50 * (size_t)u);
        (void)rig_param(r, u, NARROW[u], 7);
    }
    (void)rig_param_as(r, 1, "one.fixed", 77, &fixed);
}

uint64_t ways_close(rig *r, int64_t steps)
{
    uint64_t          fingerprint = rig_fingerprint(r);
    sherd_step_report report;

    sherd_step_report_init(&report);
    CHECK_OK(sherd_step_wait(r->engine, &report));
    CHECK_INT(steps, report.step);
    CHECK_INT(fingerprint, report.fingerprint);
    rig_close(r);
    return fingerprint;
}

uint64_t ways_train_as_planned(sherd_world *world, const rig_options *options)
{
    rig r;

    ways_declare_layers(&r, world, options);
    rig_seal(&r);
    (void)rig_train(&r, 4);
    return ways_close(&r, 4 / options->accumulation);
}

static sherdi_backend *lane_of(const sherd_world *world)
{
    return (sherdi_backend *)(uintptr_t)sherdi_world_backend(world);
}

void *ways_alloc(sherd_world *world, sherdi_mem *mem, size_t len_bytes)
{
    sherdi_backend *lane = lane_of(world);
    void           *memory;

    CHECK_OK(lane->device->alloc(lane, mem, SHERDI_MEM_CONTROL, len_bytes, &memory));
    return memory;
}

void ways_free(sherd_world *world, void *memory)
{
    sherdi_backend *lane = lane_of(world);

    lane->device->free(lane, memory);
}

void ways_bind(rig *r, ways_bound *memory)
{
    memset(memory, 0, sizeof(*memory));
    memory->world = r->world;
    sherdi_mem_init(&memory->mem);
    for (int p = 0; p < r->num_params; p++) {
        size_t len_bytes = r->params[p].elems * sherd_dtype_bytes(r->params[p].dtype);

        memory->data[p] = ways_alloc(r->world, &memory->mem, len_bytes);
        memory->grad[p] = ways_alloc(r->world, &memory->mem, len_bytes);
        CHECK_OK(sherd_param_bind(r->engine, r->params[p].handle, memory->data[p],
                                  r->params[p].is_frozen ? NULL : memory->grad[p]));
    }
}

void ways_unbind(ways_bound *memory)
{
    for (int p = 0; p < RIG_PARAMS; p++) {
        ways_free(memory->world, memory->data[p]);
        ways_free(memory->world, memory->grad[p]);
    }
}

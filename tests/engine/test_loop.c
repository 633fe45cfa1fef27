/* The training loop allocates nothing, of anybody: this program counts every malloc of the process
 * between two marks. And it sends what the plan says. The first two windows are not counted: there
 * the C library makes its buffers. */
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <jansson.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------ counting malloc --- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define IS_SANITIZED 1
#endif
#endif

#if !defined(IS_SANITIZED) && defined(__GLIBC__)
#define CAN_COUNT 1

static atomic_int    is_counting;
static atomic_size_t num_allocations;

/* What glibc's own are called; a program's malloc takes their place everywhere in the process. */
void *__libc_malloc(size_t len_bytes);
void *__libc_calloc(size_t count, size_t elem_bytes);
void *__libc_realloc(void *memory, size_t len_bytes);
void *__libc_memalign(size_t align, size_t len_bytes);
void  __libc_free(void *memory);

static void count_one(void)
{
    if (atomic_load_explicit(&is_counting, memory_order_relaxed)) {
        (void)atomic_fetch_add(&num_allocations, 1);
    }
}

void *malloc(size_t len_bytes)
{
    count_one();
    return __libc_malloc(len_bytes);
}

void *calloc(size_t count, size_t elem_bytes)
{
    count_one();
    return __libc_calloc(count, elem_bytes);
}

void *realloc(void *memory, size_t len_bytes)
{
    count_one();
    return __libc_realloc(memory, len_bytes);
}

void *aligned_alloc(size_t align, size_t len_bytes)
{
    count_one();
    return __libc_memalign(align, len_bytes);
}

void *memalign(size_t align, size_t len_bytes)
{
    count_one();
    return __libc_memalign(align, len_bytes);
}

int posix_memalign(void **out, size_t align, size_t len_bytes)
{
    count_one();
    *out = __libc_memalign(align, len_bytes);
    return *out == NULL ? 12 /* ENOMEM */ : 0;
}

void free(void *memory)
{
    __libc_free(memory);
}

static void counting_start(void)
{
    atomic_store(&num_allocations, 0);
    atomic_store(&is_counting, 1);
}

static size_t counting_stop(void)
{
    atomic_store(&is_counting, 0);
    return atomic_load(&num_allocations);
}
#else
#define CAN_COUNT 0

static void counting_start(void)
{
}

static size_t counting_stop(void)
{
    return 0;
}
#endif

/* ------------------------------------------------------------ the loop ---- */

typedef struct text {
    char   bytes[1 << 18];
    size_t len_bytes;
} text;

static sherd_status text_add(void *ctx, const char *portion, size_t len_bytes)
{
    text *all = ctx;

    CHECK(all->len_bytes + len_bytes < sizeof(all->bytes));
    memcpy(all->bytes + all->len_bytes, portion, len_bytes);
    all->len_bytes += len_bytes;
    return SHERD_OK;
}

typedef struct wire {
    uint64_t micro_bytes, boundary_bytes;
} wire;

static wire planned_wire(sherd_engine *engine)
{
    text    plan = {.len_bytes = 0};
    json_t *root;
    wire    planned;

    CHECK_OK(sherd_engine_plan(engine, SHERD_PLAN_JSON, text_add, &plan));
    root = json_loadb(plan.bytes, plan.len_bytes, 0, NULL);
    CHECK(root != NULL);
    planned.micro_bytes =
        (uint64_t)json_integer_value(json_object_get(root, "wire_bytes_per_micro_batch"));
    planned.boundary_bytes =
        (uint64_t)json_integer_value(json_object_get(root, "wire_bytes_per_boundary"));
    json_decref(root);
    return planned;
}

/* A tied embedding, a frozen and two small parameters, a unit that is used twice in each pass. */
static void declare(rig *r)
{
    static const int   FORWARD[]  = {0, 1, 2, 1, 3};
    static const int   BACKWARD[] = {3, 1, 2, 1, 0};
    sherd_param_params fixed;

    sherd_param_params_init(&fixed);
    fixed.frozen = 1;
    (void)rig_unit(r, "embedding");
    (void)rig_unit(r, "shared");
    (void)rig_unit(r, "layer");
    (void)rig_unit(r, "head");
    (void)rig_param(r, 0, "embedding.w", 3001);
    (void)rig_param(r, 1, "shared.w", 500);
    (void)rig_param(r, 1, "shared.b", 5);
    (void)rig_param(r, 2, "layer.w", 900);
    (void)rig_param_as(r, 2, "layer.f", 333, &fixed);
    (void)rig_param(r, 3, "head.b", 3);
    CHECK_OK(sherd_unit_reads(r->engine, r->units[3], r->params[0].handle));
    for (size_t i = 0; i < sizeof(FORWARD) / sizeof(FORWARD[0]); i++) {
        CHECK_OK(sherd_pass_add(r->engine, SHERD_FORWARD, r->units[FORWARD[i]]));
        CHECK_OK(sherd_pass_add(r->engine, SHERD_BACKWARD, r->units[BACKWARD[i]]));
    }
}

/* The passes as listed. */
static void window(rig *r, int accumulation)
{
    static const int FORWARD[]  = {0, 1, 2, 1, 3};
    static const int BACKWARD[] = {3, 1, 2, 1, 0};
    int              k;

    for (k = 0; k < accumulation; k++) {
        for (size_t i = 0; i < sizeof(FORWARD) / sizeof(FORWARD[0]); i++) {
            rig_forward(r, FORWARD[i], SHERD_FORWARD);
        }
        for (size_t i = 0; i < sizeof(BACKWARD) / sizeof(BACKWARD[0]); i++) {
            rig_backward(r, BACKWARD[i]);
        }
        CHECK_INT(k == accumulation - 1, rig_step(r).is_boundary);
    }
}

#define WINDOWS 3

static void loop_and_count(sherd_world *world, void *raw)
{
    const rig_options *options = raw;
    uint64_t           sent[2];
    uint64_t           received[2];
    uint64_t           want;
    wire               planned;
    rig                r;

    rig_open(&r, world, options);
    declare(&r);
    rig_seal(&r);
    planned = planned_wire(r.engine);
    want =
        WINDOWS * (planned.micro_bytes * (uint64_t)options->accumulation + planned.boundary_bytes);
    window(&r, options->accumulation);
    window(&r, options->accumulation);
    CHECK_OK(sherd_world_barrier(world));
    if (sherd_world_rank(world) == 0) {
        counting_start();
    }
    CHECK_OK(sherd_world_barrier(world));
    sherd_world_traffic(world, &sent[0], &received[0]);
    for (int i = 0; i < WINDOWS; i++) {
        window(&r, options->accumulation);
    }
    sherd_world_traffic(world, &sent[1], &received[1]);
    CHECK_OK(sherd_world_barrier(world));
    if (sherd_world_rank(world) == 0) {
        CHECK_INT(0, counting_stop());
    }
    CHECK_INT(want, sent[1] - sent[0]);
    CHECK_INT(want, received[1] - received[0]);
    rig_close(&r);
}

static void loop_everywhere(int world_size)
{
    static const char *const ZERO[] = {
        ", \"overlap_comm\": false",
        ", \"overlap_comm\": true",
        ", \"overlap_comm\": true, \"stage3_prefetch_bucket_size\": 0",
        ", \"stage3_max_reuse_distance\": 1e9, \"sub_group_size\": 128",
        ", \"stage3_max_live_parameters\": 4000, \"stage3_max_reuse_distance\": 2000",
        ", \"stage3_param_persistence_threshold\": 10",
    };
    static const char *const TOP[] = {NULL, ", \"communication_data_type\": \"fp32\"",
                                      ", \"deterministic\": true"};

    for (int stage = 0; stage <= 3; stage++) {
        for (int accumulation = 1; accumulation <= 3; accumulation += 2) {
            for (size_t i = 0; i < sizeof(ZERO) / sizeof(ZERO[0]); i++) {
                rig_options options = {.stage        = stage,
                                       .accumulation = accumulation,
                                       .dtype        = i % 2 == 0 ? SHERD_BF16 : SHERD_F32,
                                       .clip         = 1,
                                       .zero         = ZERO[i],
                                       .top          = TOP[i / 2]};

                test_world(world_size, loop_and_count, &options);
            }
        }
    }
}

/* The counter itself: a program that links something else would count nothing. */
static void malloc_is_counted(void)
{
    void *volatile memory;

    if (!CAN_COUNT) {
        test_skip("a sanitizer or another C library owns malloc here");
    }
    counting_start();
    memory = malloc(100);
    CHECK_INT(1, counting_stop());
    free(memory);
}

static void loop_on_one_rank_allocates_nothing_and_sends_what_is_planned(void)
{
    loop_everywhere(1);
}

static void loop_on_three_ranks_allocates_nothing_and_sends_what_is_planned(void)
{
    loop_everywhere(3);
}

static void loop_on_four_ranks_allocates_nothing_and_sends_what_is_planned(void)
{
    loop_everywhere(4);
}

static const test_case CASES[] = {
    CASE(malloc_is_counted),
    CASE(loop_on_one_rank_allocates_nothing_and_sends_what_is_planned),
    CASE(loop_on_three_ranks_allocates_nothing_and_sends_what_is_planned),
    CASE(loop_on_four_ranks_allocates_nothing_and_sends_what_is_planned),
};

RUN_MAIN(CASES)

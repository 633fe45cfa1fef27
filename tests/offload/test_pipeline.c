/* The pipeline over every tier against a plain array of seeds; failures in the middle of a pass. */
#include "offload/pipeline.h"

#include "tests/offload/fault_uring.h"
#include "tests/offload/tier_rig.h"

#include <string.h>
#include <unistd.h>

#define DEPTH     4
#define CHUNK     (8 * PAGE)
#define MAX_ORDER 24

typedef enum tier_kind {
    TIER_MEMORY = 0,
    TIER_SCRATCH,
    TIER_STATE,
    TIER_VERIFIED,
    TIER_KINDS,
} tier_kind;

/* A tier of the kind, a pipeline over it, and what its extents hold. */
typedef struct pipe_rig {
    sherdi_ioq            *queue;
    unsigned char         *space;   /* of the memory tier */
    unsigned char         *buffers; /* of the others */
    sherdi_tier           *tier;
    sherdi_pipeline       *pipe;
    sherdi_pipeline_params params;
    uint64_t               seeds[RIG_EXTENTS];
    uint64_t               seed;
} pipe_rig;

static void rig_tier(pipe_rig *rig, tier_kind kind)
{
    sherdi_tier_state_params params;

    rig->queue = rig_queue(CHUNK, DEPTH);
    rig->space = rig_memory(rig_space_bytes());
    if (kind == TIER_MEMORY) {
        CHECK_OK(sherdi_tier_memory("host", rig->space, rig_extents(), RIG_EXTENTS, rig_mem(),
                                    &rig->tier));
    } else if (kind == TIER_SCRATCH) {
        CHECK_OK(sherdi_tier_scratch(rig->queue, rig_folders(), 2, "block", rig_extents(),
                                     RIG_EXTENTS, rig_mem(), &rig->tier));
    } else {
        params             = rig_state_params(2);
        params.is_verified = kind == TIER_VERIFIED;
        CHECK_OK(sherdi_tier_state_create(rig->queue, &params, rig_mem(), &rig->tier));
    }
}

static void rig_open(pipe_rig *rig, tier_kind kind, int buffer_count, int is_read_ahead,
                     int is_write_behind)
{
    *rig = (pipe_rig){0};
    rig_tier(rig, kind);
    rig->buffers = rig_memory((size_t)buffer_count * RIG_LONGEST_BYTES);
    rig->params  = (sherdi_pipeline_params){
         .tier            = rig->tier,
         .memory          = kind == TIER_MEMORY ? NULL : rig->buffers,
         .buffer_bytes    = RIG_LONGEST_BYTES,
         .buffer_count    = buffer_count,
         .is_read_ahead   = is_read_ahead,
         .is_write_behind = is_write_behind,
    };
    CHECK_OK(sherdi_pipeline_create(&rig->params, rig_mem(), &rig->pipe));
}

static void rig_close(pipe_rig *rig)
{
    sherdi_pipeline_destroy(rig->pipe);
    rig->tier->ops->close(rig->tier, 0);
    sherdi_ioq_destroy(rig->queue);
    sherdi_free(rig->buffers);
    sherdi_free(rig->space);
}

/* Takes the next one, which has to be `extent` with what it should hold, and fills it anew. */
static void rig_take(pipe_rig *rig, size_t extent, int is_written)
{
    size_t         len_bytes = rig_extents()[extent].len_bytes;
    unsigned char *want      = rig_memory(len_bytes);
    size_t         got_extent;
    void          *memory;

    CHECK_OK(sherdi_pipeline_take(rig->pipe, &got_extent, &memory));
    CHECK_INT(extent, got_extent);
    rig_contents(extent, rig->seeds[extent], want);
    CHECK_BYTES_EQUAL(want, memory, len_bytes);
    if (is_written) {
        rig->seeds[extent] = ++rig->seed;
        rig_contents(extent, rig->seed, memory);
    }
    sherdi_free(want);
}

/* Nothing that is taken may be in the last `held` of the order. */
static int is_held(const uint32_t *order, size_t position, size_t held)
{
    for (size_t i = position - held; i < position; i++) {
        if (order[i] == order[position]) {
            return 1;
        }
    }
    return 0;
}

/* Up to `nested` are held at a time; about three in four are written. Ends after `end` of them. */
static void rig_pass(pipe_rig *rig, const uint32_t *order, size_t count, size_t end, size_t nested,
                     uint64_t *random)
{
    int    is_written[MAX_ORDER];
    size_t held = 0;

    sherdi_pipeline_start(rig->pipe, order, count);
    CHECK(sherdi_pipeline_is_running(rig->pipe));
    for (size_t i = 0; i < end; i++) {
        while (held == nested || is_held(order, i, held)) {
            CHECK_OK(sherdi_pipeline_give(rig->pipe, is_written[i - held]));
            held--;
        }
        CHECK_INT(i, sherdi_pipeline_position(rig->pipe));
        is_written[i] = test_random(random) % 4 != 0;
        rig_take(rig, order[i], is_written[i]);
        held++;
    }
    for (; held > 0; held--) {
        CHECK_OK(sherdi_pipeline_give(rig->pipe, is_written[end - held]));
    }
    CHECK_OK(sherdi_pipeline_finish(rig->pipe));
    CHECK(!sherdi_pipeline_is_running(rig->pipe));
}

static void rig_passes(pipe_rig *rig, size_t nested, uint64_t *random)
{
    uint32_t order[MAX_ORDER];

    for (int pass = 0; pass < 2; pass++) {
        size_t count = test_random(random) % MAX_ORDER;
        size_t end   = pass % 2 == 0 ? count : test_random(random) % (count + 1);

        /* Few extents and a long order: repeats, near to each other too. */
        for (size_t i = 0; i < count; i++) {
            order[i] = (uint32_t)(test_random(random) % RIG_EXTENTS);
        }
        rig_pass(rig, order, count, end, nested, random);
    }
}

static void pipeline_passes_what_the_tier_holds(void)
{
    static const int COUNTS[] = {1, 2, 3, 5};
    const int        kinds    = rig_has_state() ? TIER_KINDS : TIER_STATE;
    uint64_t         random   = 7;

    for (int run = 0; run < kinds * 4 * 4; run++) {
        int      count = COUNTS[run / 4 % 4];
        pipe_rig rig;

        rig_open(&rig, (tier_kind)(run / 16), count, run & 1, run >> 1 & 1);
        rig_passes(&rig, 1, &random);
        rig_passes(&rig, (size_t)count, &random);
        rig_passes(&rig, (size_t)(count + 1) / 2, &random);
        for (size_t i = 0; rig.params.memory != NULL && i < RIG_EXTENTS; i++) {
            rig_expect(rig.tier, i, rig.seeds[i]);
        }
        rig_close(&rig);
    }
}
BOTH(pipeline_passes_what_the_tier_holds)

static void pipeline_without_an_order_counts_up(void)
{
    pipe_rig rig;

    rig_open(&rig, TIER_STATE, 3, 1, 1);
    for (int pass = 0; pass < 3; pass++) {
        sherdi_pipeline_start(rig.pipe, NULL, RIG_EXTENTS);
        for (size_t i = 0; i < RIG_EXTENTS; i++) {
            rig_take(&rig, i, 1);
            CHECK_OK(sherdi_pipeline_give(rig.pipe, 1));
        }
        CHECK_OK(sherdi_pipeline_finish(rig.pipe));
        rig_commit(rig.tier, 1);
    }
    rig_close(&rig);
}
BOTH(pipeline_without_an_order_counts_up)

static void pipeline_allocates_nothing_in_a_pass(void)
{
    size_t   extent;
    void    *memory;
    pipe_rig rig;

    rig_open(&rig, TIER_VERIFIED, 2, 1, 1);
    sherdi_mem_forbid_begin();
    sherdi_pipeline_start(rig.pipe, NULL, RIG_EXTENTS);
    for (size_t i = 0; i < RIG_EXTENTS; i++) {
        CHECK_OK(sherdi_pipeline_take(rig.pipe, &extent, &memory));
        CHECK_OK(sherdi_pipeline_give(rig.pipe, 1));
    }
    CHECK_OK(sherdi_pipeline_finish(rig.pipe));
    sherdi_mem_forbid_end();
    rig_close(&rig);
}
BOTH(pipeline_allocates_nothing_in_a_pass)

static void pipeline_misuse_is_told(void)
{
    static const uint32_t  TWICE[] = {1, 1, 2, 3};
    sherdi_pipeline       *none    = NULL;
    size_t                 extent  = 99;
    void                  *memory  = NULL;
    sherdi_pipeline_params params;
    pipe_rig               rig;

    rig_open(&rig, TIER_SCRATCH, 2, 1, 1);
    CHECK_STATUS(SHERD_E_STATE, sherdi_pipeline_take(rig.pipe, &extent, &memory));
    CHECK_STATUS(SHERD_E_STATE, sherdi_pipeline_give(rig.pipe, 1));
    CHECK_STATUS(SHERD_E_STATE, sherdi_pipeline_finish(rig.pipe));
    sherdi_pipeline_start(rig.pipe, TWICE, 4);
    CHECK_STATUS(SHERD_E_STATE, sherdi_pipeline_give(rig.pipe, 1));
    rig_take(&rig, 1, 1);
    CHECK_STATUS(SHERD_E_STATE, sherdi_pipeline_take(rig.pipe, &extent, &memory));
    CHECK_ERROR_SAYS("extent 1 is taken already");
    CHECK_OK(sherdi_pipeline_give(rig.pipe, 1));
    rig_take(&rig, 1, 1); /* and the mistake cost nothing */
    rig_take(&rig, 2, 0);
    CHECK_STATUS(SHERD_E_STATE, sherdi_pipeline_take(rig.pipe, &extent, &memory));
    CHECK_ERROR_SAYS("all 2 buffers are taken");
    CHECK_INT(99, extent);
    CHECK_OK(sherdi_pipeline_give(rig.pipe, 1));
    rig_take(&rig, 3, 0);
    CHECK_STATUS(SHERD_E_STATE, sherdi_pipeline_take(rig.pipe, &extent, &memory));
    CHECK_OK(sherdi_pipeline_finish(rig.pipe)); /* two were never given back */

    params              = rig.params;
    params.buffer_count = 0;
    CHECK_STATUS(SHERD_E_INVAL, sherdi_pipeline_create(&params, rig_mem(), &none));
    params              = rig.params;
    params.buffer_bytes = PAGE + 1;
    CHECK_STATUS(SHERD_E_INVAL, sherdi_pipeline_create(&params, rig_mem(), &none));
    params        = rig.params;
    params.memory = NULL;
    CHECK_STATUS(SHERD_E_INVAL, sherdi_pipeline_create(&params, rig_mem(), &none));
    rig_close(&rig);
}
BOTH(pipeline_misuse_is_told)

static void pipeline_counts_its_waits(void)
{
    sherdi_pipeline_waits waits;
    uint64_t              random = 3;
    pipe_rig              rig;

    rig_open(&rig, TIER_STATE, 1, 1, 0);
    rig_put_all(rig.tier, 1);
    for (size_t i = 0; i < RIG_EXTENTS; i++) {
        rig.seeds[i] = 1;
    }
    rig_passes(&rig, 1, &random);
    waits = sherdi_pipeline_waits_take(rig.pipe);
    CHECK(waits.read_ns > 0 && waits.write_ns > 0);
    waits = sherdi_pipeline_waits_take(rig.pipe);
    CHECK(waits.read_ns == 0 && waits.write_ns == 0);
    rig_close(&rig);
}
BOTH(pipeline_counts_its_waits)

static void pipeline_destroyed_in_a_pass_waits_for_it(void)
{
    pipe_rig rig;

    rig_open(&rig, TIER_STATE, 3, 1, 1);
    rig_put_all(rig.tier, 1);
    sherdi_pipeline_start(rig.pipe, NULL, RIG_EXTENTS);
    rig_close(&rig); /* buffers are freed after: a read in flight would show under ASan */
}
BOTH(pipeline_destroyed_in_a_pass_waits_for_it)

/* ---------------------------------------------------------------- failures -- */

/* Takes and gives until something fails; returns at which extent, RIG_EXTENTS when nothing did. */
static size_t pass_until_failure(pipe_rig *rig, int is_written)
{
    size_t extent;
    void  *memory;

    for (size_t i = 0; i < RIG_EXTENTS; i++) {
        sherd_status status = sherdi_pipeline_take(rig->pipe, &extent, &memory);

        if (status == SHERD_OK) {
            CHECK_INT(i, extent);
            status = sherdi_pipeline_give(rig->pipe, is_written);
        }
        if (status != SHERD_OK) {
            CHECK_STATUS(SHERD_E_IO, status);
            return i;
        }
    }
    return RIG_EXTENTS;
}

static void pipeline_read_that_fails_ends_the_pass(void)
{
    for (int count = 1; count <= 3; count++) {
        size_t   extent = 99;
        void    *memory = NULL;
        pipe_rig rig;

        rig_open(&rig, TIER_STATE, count, count > 1, 1);
        rig_put_all(rig.tier, 1);
        rig_commit(rig.tier, 1);
        /* The second stripe's file loses all: extents in the first one's front go on. */
        CHECK(truncate(rig_state_path(), 64 * 1024) == 0);
        sherdi_pipeline_start(rig.pipe, NULL, RIG_EXTENTS);
        CHECK(pass_until_failure(&rig, 0) < RIG_EXTENTS);
        CHECK_ERROR_SAYS("the file ends before");
        CHECK(sherdi_pipeline_is_running(rig.pipe));
        CHECK_STATUS(SHERD_E_IO, sherdi_pipeline_take(rig.pipe, &extent, &memory)); /* again */
        CHECK_ERROR_SAYS("the file ends before");
        CHECK_INT(99, extent);
        (void)!sherdi_pipeline_finish(rig.pipe); /* further reads ahead may have failed too */
        CHECK(!sherdi_pipeline_is_running(rig.pipe));
        rig_close(&rig);
    }
}
BOTH(pipeline_read_that_fails_ends_the_pass)

static void pipeline_read_with_a_wrong_bit_is_found(void)
{
    size_t   extent = 99;
    void    *memory = NULL;
    pipe_rig rig;

    rig_open(&rig, TIER_VERIFIED, 3, 1, 1);
    rig_put_all(rig.tier, 1);
    rig_commit(rig.tier, 1);
    CHECK(truncate(rig_state_path(), 0) == 0 && truncate(rig_state_path(), 4 << 20) == 0);
    sherdi_pipeline_start(rig.pipe, NULL, RIG_EXTENTS);
    CHECK_STATUS(SHERD_E_IO, sherdi_pipeline_take(rig.pipe, &extent, &memory));
    CHECK_ERROR_SAYS("does not hold what was written: state 0 at byte");
    CHECK_STATUS(SHERD_E_IO, sherdi_pipeline_finish(rig.pipe)); /* the reads ahead were wrong too */
    CHECK_ERROR_SAYS("does not hold what was written: state ");
    rig_close(&rig);
}
BOTH(pipeline_read_with_a_wrong_bit_is_found)

/* Whichever write it is: told once, by give, take or finish. */
static void pipeline_write_that_fails_is_told_once(void)
{
    if (rig_kind() == SHERDI_IOQ_URING && !fault_can_inject()) {
        test_skip("this kernel cannot make a request of io_uring fail");
    }
    for (int run = 0; run < 2 * 3 * (int)RIG_EXTENTS; run++) {
        size_t       at;
        sherd_status status;
        pipe_rig     rig;

        rig_open(&rig, TIER_STATE, 1 + run / 2 % 3, 1, run % 2);
        rig_put_all(rig.tier, 1);
        rig_commit(rig.tier, 1);
        fault_arm(FAULT_EIO, FAULT_WRITES, 1 + run / 6, 1);
        sherdi_pipeline_start(rig.pipe, NULL, RIG_EXTENTS);
        at     = pass_until_failure(&rig, 1);
        status = sherdi_pipeline_finish(rig.pipe);
        CHECK_INT(at == RIG_EXTENTS ? SHERD_E_IO : SHERD_OK, status);
        CHECK_ERROR_SAYS("writing state");
        CHECK_INT(1, fault_hits());
        CHECK_STATUS(SHERD_E_STATE, rig_try_commit(rig.tier, 2));
        rig.tier->ops->abandon(rig.tier);
        rig_expect_all(rig.tier, 1);
        rig_close(&rig);
    }
}
BOTH(pipeline_write_that_fails_is_told_once)

static void pipeline_without_memory_for_itself_leaves_nothing(void)
{
    sherdi_pipeline *pipe = NULL;
    sherd_status     status;
    size_t           nth = 0;
    pipe_rig         rig;

    rig_open(&rig, TIER_SCRATCH, 2, 1, 1);
    do {
        size_t held = sherdi_mem_held_all(rig_mem());

        (void)sherdi_mem_fail_nth(++nth);
        status = sherdi_pipeline_create(&rig.params, rig_mem(), &pipe);
        (void)sherdi_mem_fail_nth(0);
        CHECK(status == SHERD_OK ||
              (status == SHERD_E_NOMEM && pipe == NULL && sherdi_mem_held_all(rig_mem()) == held));
    } while (status != SHERD_OK);
    CHECK(nth > 1);
    sherdi_pipeline_destroy(pipe);
    sherdi_pipeline_destroy(NULL);
    rig_close(&rig);
}
BOTH(pipeline_without_memory_for_itself_leaves_nothing)

static const test_case cases[] = {
    CASES(pipeline_passes_what_the_tier_holds),
    CASES(pipeline_without_an_order_counts_up),
    CASES(pipeline_allocates_nothing_in_a_pass),
    CASES(pipeline_misuse_is_told),
    CASES(pipeline_counts_its_waits),
    CASES(pipeline_destroyed_in_a_pass_waits_for_it),
    CASES(pipeline_read_that_fails_ends_the_pass),
    CASES(pipeline_read_with_a_wrong_bit_is_found),
    CASES(pipeline_write_that_fails_is_told_once),
    CASES(pipeline_without_memory_for_itself_leaves_nothing),
};

RUN_MAIN(cases)

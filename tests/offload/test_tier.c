/* Tiers: scratch files, and generations of state against a model of them. */
#include "offload/tiers.h"
#include "tests/offload/tier_rig.h"

#include <string.h>

#define DEPTH 4
#define CHUNK (8 * PAGE)

static void extents_that_are_wrong_are_refused(void)
{
    static const sherdi_extent WRONG[][2] = {
        {{0, PAGE}, {PAGE + 1, PAGE}},           /* offset */
        {{0, PAGE}, {PAGE, PAGE - 1}},           /* length */
        {{0, 2 * PAGE}, {PAGE, PAGE}},           /* overlap */
        {{PAGE, PAGE}, {0, PAGE}},               /* order */
        {{0, PAGE}, {SIZE_MAX - PAGE + 1, PAGE}} /* beyond any space */
    };
    sherdi_ioq  *queue;
    sherdi_tier *tier = NULL;

    rig_begin(SHERDI_IOQ_THREADS);
    queue = rig_queue(CHUNK, DEPTH);
    for (size_t i = 0; i < sizeof(WRONG) / sizeof(WRONG[0]); i++) {
        CHECK_STATUS(SHERD_E_INVAL, rig_tier_open(&sherdi_tier_nvme, queue, 1, WRONG[i], 2, &tier));
    }
    CHECK_INT(0, rig_folder_count(rig_folder("f0")));
    sherdi_ioq_destroy(queue);
    rig_end();
}

/* No file is as long as these together, and twice the first already is more than a number holds. */
static void extents_that_no_file_holds_are_refused(void)
{
    static const sherdi_extent LONG[3] = {{0, (size_t)1 << 61},
                                          {(size_t)1 << 61, (size_t)1 << 62},
                                          {(size_t)3 << 61, (size_t)1 << 62}};
    sherdi_state_params        params;
    sherdi_ioq                *queue;
    sherdi_tier               *tier  = NULL;
    sherdi_state              *state = NULL;

    rig_begin(SHERDI_IOQ_THREADS);
    queue = rig_queue(CHUNK, DEPTH);
    CHECK_STATUS(SHERD_E_INVAL, rig_tier_open(&sherdi_tier_nvme, queue, 1, LONG, 3, &tier));
    CHECK_ERROR_SAYS("too many for one file");
    params             = rig_state_params(1);
    params.extents     = LONG;
    params.num_extents = 3;
    CHECK_STATUS(SHERD_E_INVAL, sherdi_state_create(queue, &params, rig_mem(), &state));
    CHECK_ERROR_SAYS("too many for one file");
    CHECK(sherdi_state_commit_bytes(SIZE_MAX, 0) == SIZE_MAX);
    CHECK_INT(0, rig_folder_count(rig_folder("f0")));
    sherdi_ioq_destroy(queue);
    rig_end();
}

/* --------------------------------------------------------------- scratch -- */

static void scratch_reads_what_was_written(void)
{
    sherdi_ioq *queue = rig_queue(CHUNK, DEPTH);

    for (int folders = 1; folders <= 3; folders++) {
        sherdi_tier *tier = NULL;

        CHECK_OK(
            rig_tier_open(&sherdi_tier_nvme, queue, folders, rig_extents(), RIG_EXTENTS, &tier));
        CHECK_INT(0, rig_folder_count(rig_folder("f0"))); /* it has no name */
        for (uint64_t seed = 0; seed <= 2; seed++) {
            for (size_t i = 0; i < RIG_EXTENTS; i++) {
                if (seed > 0) {
                    CHECK_OK(rig_tier_put(tier, i, seed));
                }
                CHECK_OK(rig_tier_expect(tier, i, seed));
            }
        }
        CHECK_OK(rig_tier_put(tier, 3, 3));
        CHECK_OK(rig_tier_expect(tier, 2, 2));
        CHECK_OK(rig_tier_expect(tier, 3, 3));
        CHECK_OK(rig_tier_expect(tier, 4, 2));
        tier->ops->close(tier);
    }
    sherdi_ioq_destroy(queue);
}
BOTH(scratch_reads_what_was_written)

/* ----------------------------------------------------------------- state -- */

static void state_without_libxxhash_is_refused(void)
{
    const sherdi_state_params none = {.extents = rig_extents(), .num_extents = RIG_EXTENTS};
    sherdi_ioq               *queue;
    sherdi_state             *tier = NULL;

    if (rig_has_state()) {
        test_skip("built with libxxhash");
    }
    rig_begin(SHERDI_IOQ_THREADS);
    queue = rig_queue(CHUNK, DEPTH);
    CHECK_STATUS(SHERD_E_NOTSUP, sherdi_state_create(queue, &none, rig_mem(), &tier));
    CHECK_ERROR_SAYS("libxxhash");
    CHECK_STATUS(SHERD_E_NOTSUP, sherdi_state_open(queue, &none, rig_mem(), &tier));
    CHECK_STATUS(SHERD_E_NOTSUP, sherdi_state_find(test_scratch(), NULL, NULL));
    CHECK_STATUS(SHERD_E_NOTSUP, sherdi_state_remove("/some/file"));
    sherdi_ioq_destroy(queue);
    rig_end();
}

static void state_reads_what_was_written_last(void)
{
    sherdi_ioq   *queue = rig_queue(CHUNK, DEPTH);
    sherdi_state *state = rig_state_create(queue, 2);

    CHECK_INT(0, sherdi_state_generation(state));
    rig_expect_all(state, 0);
    rig_put(state, 3, 1);
    rig_put(state, 0, 1);
    rig_expect(state, 3, 1);
    rig_put(state, 3, 2);
    rig_expect(state, 3, 2);
    rig_expect(state, 0, 1);
    rig_expect(state, 1, 0);
    rig_commit(state, 1);
    rig_expect(state, 3, 2);
    rig_put(state, 3, 3);
    rig_expect(state, 3, 3);
    sherdi_state_close(state, 0);
    sherdi_ioq_destroy(queue);
}
BOTH(state_reads_what_was_written_last)

static void state_commit_is_there_after_reopen(void)
{
    sherdi_ioq *queue = rig_queue(CHUNK, DEPTH);

    for (int folders = 1; folders <= 3; folders++) {
        sherdi_state *state = rig_state_create(queue, folders);

        rig_put(state, 1, 1);
        rig_put(state, 3, 1);
        rig_commit(state, 1);
        sherdi_state_close(state, 1);
        state = rig_state_open(queue, folders);
        rig_expect_generation(state, 1, 1);
        CHECK(!sherdi_state_has_previous(state));
        rig_expect(state, 1, 1);
        rig_expect(state, 3, 1);
        rig_expect(state, 4, 0); /* never written, here or there */
        rig_put(state, 3, 2);
        rig_commit(state, 2);
        rig_put_all(state, 3);                                                /* not committed */
        sherdi_state_extents(state)->ops->close(sherdi_state_extents(state)); /* keeps the files */
        state = rig_state_open(queue, folders);
        rig_expect_generation(state, 2, 2);
        rig_expect(state, 1, 1);
        rig_expect(state, 3, 2);
        rig_expect(state, 4, 0);
        sherdi_state_close(state, 0);
        CHECK_INT(0, rig_folder_count(rig_folder("f0")) + rig_folder_count(rig_folder("f1")) +
                         rig_folder_count(rig_folder("f2")));
    }
    sherdi_ioq_destroy(queue);
}
BOTH(state_commit_is_there_after_reopen)

static void state_abandon_forgets_what_was_written(void)
{
    sherdi_ioq   *queue = rig_queue(CHUNK, DEPTH);
    sherdi_state *state = rig_state_create(queue, 1);

    rig_put_all(state, 1);
    sherdi_state_abandon(state);
    rig_expect_all(state, 0);
    rig_put_all(state, 2);
    rig_commit(state, 2);
    rig_put(state, 3, 3);
    sherdi_state_abandon(state);
    rig_expect_all(state, 2);
    rig_put(state, 4, 4);
    rig_commit(state, 4);
    rig_expect(state, 3, 2);
    rig_expect(state, 4, 4);
    sherdi_state_close(state, 0);
    sherdi_ioq_destroy(queue);
}
BOTH(state_abandon_forgets_what_was_written)

static void state_rollback_returns_to_the_generation_before(void)
{
    sherdi_ioq   *queue = rig_queue(CHUNK, DEPTH);
    sherdi_state *state = rig_state_create(queue, 2);

    CHECK_STATUS(SHERD_E_STATE, sherdi_state_rollback(state));
    rig_put_all(state, 1);
    rig_commit(state, 1);
    CHECK_STATUS(SHERD_E_STATE, sherdi_state_rollback(state)); /* 0 is no generation */
    rig_put(state, 3, 2);
    rig_commit(state, 2);
    rig_rollback(state, 1);
    rig_expect_generation(state, 1, 1);
    rig_expect_all(state, 1);
    CHECK_STATUS(SHERD_E_STATE, sherdi_state_rollback(state)); /* not twice */
    sherdi_state_close(state, 1);

    state = rig_state_open(queue, 2); /* it is durable */
    rig_expect_generation(state, 1, 1);
    rig_expect_all(state, 1);
    rig_put(state, 3, 3);
    rig_commit(state, 3);
    rig_expect_generation(state, 2, 3);
    rig_expect(state, 3, 3);
    rig_rollback(state, 1);
    rig_expect_all(state, 1);
    sherdi_state_close(state, 0);
    sherdi_ioq_destroy(queue);
}
BOTH(state_rollback_returns_to_the_generation_before)

static void state_rollback_after_a_write_is_refused(void)
{
    sherdi_ioq   *queue = rig_queue(CHUNK, DEPTH);
    sherdi_state *state = rig_state_create(queue, 1);

    for (uint64_t seed = 1; seed <= 2; seed++) {
        rig_put_all(state, seed);
        rig_commit(state, seed);
    }
    rig_put(state, 2, 3);
    CHECK(!sherdi_state_has_previous(state));
    CHECK_STATUS(SHERD_E_STATE, sherdi_state_rollback(state));
    sherdi_state_abandon(state); /* forgets it, and cannot bring back what was there */
    CHECK_STATUS(SHERD_E_STATE, sherdi_state_rollback(state));
    rig_expect_all(state, 2);
    rig_commit(state, 4); /* nothing new: the same contents as generation 3 */
    rig_rollback(state, 2);
    rig_expect_all(state, 2);
    sherdi_state_close(state, 0);
    sherdi_ioq_destroy(queue);
}
BOTH(state_rollback_after_a_write_is_refused)

static void state_rollback_of_another_process_is_compared(void)
{
    sherdi_ioq   *queue = rig_queue(CHUNK, DEPTH);
    sherdi_state *state = rig_state_create(queue, 1);

    for (uint64_t seed = 1; seed <= 2; seed++) {
        rig_put_all(state, seed);
        rig_commit(state, seed);
    }
    rig_put(state, 3, 3);
    sherdi_state_close(state, 1);
    state = rig_state_open(queue, 1);
    CHECK(sherdi_state_has_previous(state)); /* as far as the index knows */
    CHECK_STATUS(SHERD_E_STATE, sherdi_state_rollback(state));
    CHECK_ERROR_SAYS("cannot go back to generation 1, a part of it was overwritten (state 3)");
    CHECK(!sherdi_state_has_previous(state));
    rig_expect_generation(state, 2, 2);
    rig_expect_all(state, 2);
    sherdi_state_close(state, 0);
    sherdi_ioq_destroy(queue);
}
BOTH(state_rollback_of_another_process_is_compared)

static void state_commit_writes_what_it_says_and_allocates_nothing(void)
{
    sherdi_ioq       *queue  = rig_queue(CHUNK, DEPTH);
    sherdi_state     *state  = rig_state_create(queue, 2);
    sherdi_tier      *tier   = sherdi_state_extents(state);
    unsigned char    *memory = rig_memory(RIG_LONGEST_BYTES);
    sherdi_io         io     = {0};
    sherdi_io_traffic before, after;

    rig_contents(3, 1, memory);
    before = sherdi_ioq_traffic(queue);
    sherdi_mem_forbid_begin();
    tier->ops->write_start(tier, 3, memory, &io);
    CHECK_OK(tier->ops->wait(tier, &io));
    tier->ops->read_start(tier, 3, memory, &io);
    CHECK_OK(tier->ops->wait(tier, &io));
    rig_commit(state, 1);
    sherdi_mem_forbid_end();
    after = sherdi_ioq_traffic(queue);
    CHECK_INT(RIG_LONGEST_BYTES + sherdi_state_commit_bytes(RIG_EXTENTS, RIG_NOTE_BYTES),
              after.written_bytes - before.written_bytes);
    CHECK_INT(RIG_LONGEST_BYTES, after.read_bytes - before.read_bytes);
    sherdi_free(memory);
    sherdi_state_close(state, 0);
    sherdi_ioq_destroy(queue);
}
BOTH(state_commit_writes_what_it_says_and_allocates_nothing)

/* A table of many pages, and one of none. */
static void state_of_any_number_of_extents_is_kept(void)
{
    static const size_t  COUNTS[] = {0, 1, 255, 256, 257, 5000};
    static sherdi_extent extents[5000];
    unsigned char        note[] = {1, 2, 3};
    unsigned char       *memory = rig_memory(PAGE);
    sherdi_ioq          *queue  = rig_queue(CHUNK, DEPTH);

    for (size_t i = 0; i < 5000; i++) {
        extents[i] = (sherdi_extent){i * PAGE, PAGE};
    }
    for (size_t c = 0; c < sizeof(COUNTS) / sizeof(COUNTS[0]); c++) {
        sherdi_state_params params = rig_state_params(2);
        sherdi_state       *state  = NULL;
        sherdi_tier        *tier;
        sherdi_io           io   = {0};
        size_t              last = COUNTS[c] - 1;

        params.extents     = extents;
        params.num_extents = COUNTS[c];
        CHECK_OK(sherdi_state_create(queue, &params, rig_mem(), &state));
        if (COUNTS[c] > 0) {
            tier = sherdi_state_extents(state);
            memset(memory, 5, PAGE);
            tier->ops->write_start(tier, last, memory, &io);
            CHECK_OK(tier->ops->wait(tier, &io));
        }
        CHECK_OK(sherdi_state_commit(state, note, c % 2 == 0 ? sizeof(note) : 0));
        sherdi_state_close(state, 1);
        CHECK_OK(sherdi_state_open(queue, &params, rig_mem(), &state));
        CHECK_INT(1, sherdi_state_generation(state));
        if (COUNTS[c] > 0) {
            tier = sherdi_state_extents(state);
            memset(memory, 0, PAGE);
            tier->ops->read_start(tier, last, memory, &io);
            CHECK_OK(tier->ops->wait(tier, &io));
            CHECK_INT(5, memory[0]);
            CHECK_INT(5, memory[PAGE - 1]);
        }
        sherdi_state_close(state, 0);
    }
    sherdi_free(memory);
    sherdi_ioq_destroy(queue);
}
BOTH(state_of_any_number_of_extents_is_kept)

/* ----------------------------------------------------- against a model -- */

/* Seeds that the extents hold: what a read sees, in the live generation, in the one before. */
typedef struct state_model {
    uint64_t now[RIG_EXTENTS], live[RIG_EXTENTS], previous[RIG_EXTENTS];
    uint64_t generation, live_note, previous_note;
    int      has_previous;         /* its record is there */
    int      is_touched;           /* this process wrote since the commit */
    int      is_over[RIG_EXTENTS]; /* its slot holds something else by now */
    uint64_t seed;
} state_model;

static void model_put(state_model *model, sherdi_state *state, size_t extent)
{
    rig_put(state, extent, ++model->seed);
    model->now[extent]     = model->seed;
    model->is_touched      = 1;
    model->is_over[extent] = 1;
}

static void model_commit(state_model *model, sherdi_state *state)
{
    rig_commit(state, ++model->seed);
    memcpy(model->previous, model->live, sizeof(model->live));
    memcpy(model->live, model->now, sizeof(model->live));
    memset(model->is_over, 0, sizeof(model->is_over));
    model->previous_note = model->live_note;
    model->live_note     = model->seed;
    model->has_previous  = model->generation > 0;
    model->is_touched    = 0;
    model->generation++;
}

static void model_abandon(state_model *model, sherdi_state *state)
{
    sherdi_state_abandon(state);
    memcpy(model->now, model->live, sizeof(model->live));
}

/* Both generations use the same slot of what the live one did not change. */
static int model_can_roll_back(const state_model *model)
{
    int can = model->has_previous && !model->is_touched;

    for (size_t i = 0; i < RIG_EXTENTS; i++) {
        can = can && !(model->is_over[i] && model->previous[i] != model->live[i] &&
                       model->previous[i] != 0 && rig_extents()[i].len_bytes > 0);
    }
    return can;
}

static void model_rollback(state_model *model, sherdi_state *state)
{

    if (!model_can_roll_back(model)) {
        CHECK_STATUS(SHERD_E_STATE, sherdi_state_rollback(state));
        return;
    }
    rig_rollback(state, model->previous_note);
    memcpy(model->now, model->previous, sizeof(model->now));
    memcpy(model->live, model->previous, sizeof(model->live));
    model->live_note    = model->previous_note;
    model->has_previous = 0;
    model->generation--;
}

static sherdi_state *model_reopen(state_model *model, sherdi_ioq *queue, sherdi_state *state,
                                  int folders)
{
    if (model->generation == 0) {
        return state; /* would be refused */
    }
    sherdi_state_close(state, 1);
    memcpy(model->now, model->live, sizeof(model->live));
    model->is_touched = 0;
    return rig_state_open(queue, folders);
}

static void model_compare(const state_model *model, sherdi_state *state)
{
    for (size_t i = 0; i < RIG_EXTENTS; i++) {
        rig_expect(state, i, model->now[i]);
    }
    if (model->generation > 0) {
        rig_expect_generation(state, model->generation, model->live_note);
    }
}

static void state_does_what_the_model_does(void)
{
    sherdi_ioq *queue = rig_queue(CHUNK, DEPTH);
    uint64_t    seed  = 20261121;

    for (int walk = 0; walk < 6; walk++) {
        int           folders = 1 + walk % 3;
        sherdi_state *state   = rig_state_create(queue, folders);
        state_model   model   = {0};

        for (int i = 0; i < 60; i++) {
            switch (test_random(&seed) % 8) {
            default:
                model_put(&model, state, test_random(&seed) % RIG_EXTENTS);
                break;
            case 4:
                model_commit(&model, state);
                break;
            case 5:
                model_abandon(&model, state);
                break;
            case 6:
                model_rollback(&model, state);
                break;
            case 7:
                state = model_reopen(&model, queue, state, folders);
                break;
            }
            model_compare(&model, state);
        }
        sherdi_state_close(state, 0);
    }
    sherdi_ioq_destroy(queue);
}
BOTH(state_does_what_the_model_does)

static const test_case cases[] = {
    CASE(extents_that_are_wrong_are_refused),
    CASE(extents_that_no_file_holds_are_refused),
    CASE(state_without_libxxhash_is_refused),
    CASES(scratch_reads_what_was_written),
    CASES(state_reads_what_was_written_last),
    CASES(state_commit_is_there_after_reopen),
    CASES(state_abandon_forgets_what_was_written),
    CASES(state_rollback_returns_to_the_generation_before),
    CASES(state_rollback_after_a_write_is_refused),
    CASES(state_rollback_of_another_process_is_compared),
    CASES(state_commit_writes_what_it_says_and_allocates_nothing),
    CASES(state_of_any_number_of_extents_is_kept),
    CASES(state_does_what_the_model_does),
};

RUN_MAIN(cases)

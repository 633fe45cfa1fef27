/* State files when something is wrong with them: damaged, cut, locked, of another layout, removed;
 * listing and removing; transfers and memory that fail. test_state_kill.c kills who writes them. */
#include "offload/state_file.h"
#include "offload/tiers.h"
#include "offload/tiers.h"
#include "tests/offload/fault_uring.h"
#include "tests/offload/tier_rig.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEPTH 4
#define CHUNK (8 * PAGE)

/* Of an index with RIG_EXTENTS extents; state_file.h. */
#define HEADS_AT    PAGE
#define TABLES_AT   (3 * PAGE)
#define NOTES_AT    (5 * PAGE)
#define INDEX_BYTES (9 * PAGE)

/* --------------------------------------------------------------- damage -- */

/* Generations 1 and 2 in every extent, closed. */
static void state_make(sherdi_ioq *queue, int folders)
{
    sherdi_state *state = rig_state_create(queue, folders);

    for (uint64_t seed = 1; seed <= 2; seed++) {
        rig_put_all(state, seed);
        rig_commit(state, seed);
    }
    sherdi_state_close(state, 1);
}

static void file_flip(const char *path, size_t offset_bytes, unsigned char bits)
{
    unsigned char byte;
    int           fd = open(path, O_RDWR);

    CHECK(fd >= 0 && pread(fd, &byte, 1, (off_t)offset_bytes) == 1);
    byte ^= bits;
    CHECK(pwrite(fd, &byte, 1, (off_t)offset_bytes) == 1);
    (void)close(fd);
}

/* Opens what may be damaged: a generation whose contents are right, or an error, never other bytes.
 * Returns the generation, 0 when it was refused. */
static uint64_t state_probe(sherdi_ioq *queue)
{
    sherdi_state_params params = rig_state_params(1);
    sherdi_state       *state  = NULL;
    sherd_status        status = sherdi_state_open(queue, &params, rig_mem(), &state);
    uint64_t            generation;

    if (status != SHERD_OK) {
        CHECK(state == NULL && (status == SHERD_E_STATE || status == SHERD_E_IO));
        return 0;
    }
    generation = sherdi_state_generation(state);
    for (size_t i = 0; i < RIG_EXTENTS; i++) {
        status = rig_try_expect(state, i, generation); /* checks what it could read */
        CHECK(status == SHERD_OK || status == SHERD_E_IO);
    }
    rig_expect_generation(state, generation, generation);
    sherdi_state_close(state, 1);
    return generation;
}

static void state_with_a_damaged_index_falls_back_or_is_refused(void)
{
    static const size_t OFFSETS[] = {0,    1,    7,    8,    40, 47, 48, 559, 560,
                                     2000, 4087, 4088, 4095, 16, 24, 32, 100, 111};
    sherdi_ioq         *queue     = rig_queue(CHUNK, DEPTH);
    uint64_t            got[2];

    state_make(queue, 1);
    CHECK_INT(2, state_probe(queue));
    for (size_t i = 0; i < sizeof(OFFSETS) / sizeof(OFFSETS[0]); i++) {
        for (size_t page = 0; page < INDEX_BYTES / PAGE; page++) {
            file_flip(rig_state_path(), page * PAGE + OFFSETS[i], 0x10);
            got[page != 0] = state_probe(queue);
            /* A header is refused; of two records, one is damaged, the other one counts. */
            CHECK(page != 0 || got[0] == 0);
            CHECK(page == 0 || got[1] == 1 || got[1] == 2);
            file_flip(rig_state_path(), page * PAGE + OFFSETS[i], 0x10);
        }
    }
    /* Which is which: the record of generation 2 is the one whose damage brings 1. */
    file_flip(rig_state_path(), HEADS_AT + 100, 1);
    got[0] = state_probe(queue);
    file_flip(rig_state_path(), HEADS_AT + 100, 1);
    file_flip(rig_state_path(), HEADS_AT + PAGE + 100, 1);
    got[1] = state_probe(queue);
    CHECK_INT(3, got[0] + got[1]);
    file_flip(rig_state_path(), TABLES_AT + 8, 1); /* and the table of the other one */
    CHECK_INT(0, state_probe(queue));
    CHECK_ERROR_SAYS("holds no generation that is intact");
    CHECK_OK(sherdi_state_remove(rig_state_path()));
    sherdi_ioq_destroy(queue);
}
BOTH(state_with_a_damaged_index_falls_back_or_is_refused)

static void state_of_random_damage_never_gives_wrong_data(void)
{
    sherdi_ioq *queue = rig_queue(CHUNK, DEPTH);
    uint64_t    seed  = 99;

    state_make(queue, 1);
    for (int i = 0; i < 60; i++) {
        const char   *path     = i % 2 == 0 ? rig_state_path() : rig_slots_path(i / 2 % 2, 0);
        size_t        at_bytes = test_random(&seed) % (i % 2 == 0 ? INDEX_BYTES : 400 * PAGE);
        unsigned char bits     = (unsigned char)(1 + test_random(&seed) % 255);

        file_flip(path, at_bytes, bits);
        (void)state_probe(queue);
        if (i % 3 != 0) {
            file_flip(path, at_bytes, bits);
        }
    }
    CHECK_OK(sherdi_state_remove(rig_state_path()));
    sherdi_ioq_destroy(queue);
}
BOTH(state_of_random_damage_never_gives_wrong_data)

static void state_that_was_cut_is_refused_or_found(void)
{
    static const size_t LENGTHS[] = {INDEX_BYTES,
                                     NOTES_AT + PAGE,
                                     NOTES_AT,
                                     NOTES_AT - 1,
                                     TABLES_AT + PAGE,
                                     TABLES_AT,
                                     HEADS_AT,
                                     100,
                                     0};
    sherdi_ioq         *queue     = rig_queue(CHUNK, DEPTH);

    state_make(queue, 1);
    for (size_t len = 400 * PAGE; len > 0; len /= 3) {
        CHECK(truncate(rig_slots_path((int)(len % 2), 0), (off_t)len) == 0);
        (void)state_probe(queue);
    }
    for (size_t i = 0; i < sizeof(LENGTHS) / sizeof(LENGTHS[0]); i++) {
        CHECK(truncate(rig_state_path(), (off_t)LENGTHS[i]) == 0);
        (void)state_probe(queue);
        CHECK(LENGTHS[i] >= TABLES_AT + PAGE || state_probe(queue) == 0);
    }
    CHECK_OK(sherdi_state_remove(rig_state_path()));
    sherdi_ioq_destroy(queue);
}
BOTH(state_that_was_cut_is_refused_or_found)

/* Flips a bit of the extent's live contents, generation 2's: which set has them is found by
 * looking. */
static void live_slot_flip(size_t extent, size_t byte, unsigned char bits)
{
    size_t         len_bytes = rig_extents()[extent].len_bytes;
    unsigned char *want      = rig_memory(len_bytes);
    unsigned char *got       = rig_memory(len_bytes);
    size_t         at_bytes  = 0;
    int            set       = -1;

    for (size_t i = 0; i < extent; i++) {
        at_bytes += rig_extents()[i].len_bytes;
    }
    rig_contents(extent, 2, want);
    do {
        int fd = open(rig_slots_path(++set, 0), O_RDONLY);

        CHECK(fd >= 0);
        CHECK(pread(fd, got, len_bytes, (off_t)at_bytes) == (ssize_t)len_bytes);
        (void)close(fd);
    } while (memcmp(want, got, len_bytes) != 0);
    file_flip(rig_slots_path(set, 0), at_bytes + byte, bits);
    sherdi_free(got);
    sherdi_free(want);
}

static void state_flipped_bit_in_data_is_found_on_load(void)
{
    sherdi_ioq   *queue = rig_queue(CHUNK, DEPTH);
    sherdi_state *state;

    state_make(queue, 1);
    live_slot_flip(3, 12345, 0x40);
    state = rig_state_open(queue, 1);
    rig_expect(state, 2, 2);
    for (int again = 0; again < 2; again++) {
        CHECK_STATUS(SHERD_E_IO, rig_try_expect(state, 3, 2));
        CHECK_ERROR_SAYS("state 3 at byte");
        CHECK_ERROR_SAYS("-0of1.slots-");
        CHECK_ERROR_SAYS("does not hold what was written");
    }
    rig_put(state, 3, 3); /* written anew it is whole again */
    rig_expect(state, 3, 3);
    sherdi_state_abandon(state);
    CHECK_STATUS(SHERD_E_IO, rig_try_expect(state, 3, 2));
    rig_put(state, 3, 3);
    rig_commit(state, 3);
    rig_expect(state, 3, 3);
    sherdi_state_close(state, 0);
    sherdi_ioq_destroy(queue);
}
BOTH(state_flipped_bit_in_data_is_found_on_load)

static void state_flipped_bit_is_found_by_every_read_that_verifies(void)
{
    sherdi_ioq         *queue  = rig_queue(CHUNK, DEPTH);
    sherdi_state_params params = rig_state_params(1);
    sherdi_state       *state  = NULL;

    params.is_verified = 1;
    CHECK_OK(sherdi_state_create(queue, &params, rig_mem(), &state));
    rig_put_all(state, 2);
    rig_expect_all(state, 2);
    live_slot_flip(4, 1, 1); /* before its commit */
    CHECK_STATUS(SHERD_E_IO, rig_try_expect(state, 4, 2));
    rig_put(state, 4, 2);
    rig_commit(state, 1);
    rig_expect_all(state, 2);
    live_slot_flip(4, 1, 1); /* after it */
    CHECK_STATUS(SHERD_E_IO, rig_try_expect(state, 4, 2));
    sherdi_state_close(state, 0);
    sherdi_ioq_destroy(queue);
}
BOTH(state_flipped_bit_is_found_by_every_read_that_verifies)

/* ------------------------------------------------------------- refusals -- */

/* Reads return one of the two generations, and nothing changes; what is written over is found. */
static void state_reads_the_generation_that_it_is_aimed_at(void)
{
    sherdi_ioq   *queue = rig_queue(CHUNK, DEPTH);
    sherdi_state *state = rig_state_create(queue, 1);

    CHECK_STATUS(SHERD_E_STATE, sherdi_state_aim(state, 0));
    CHECK_STATUS(SHERD_E_STATE, sherdi_state_aim(state, 1));
    for (uint64_t seed = 1; seed <= 3; seed++) {
        rig_put_all(state, seed);
        rig_commit(state, seed);
    }
    for (int is_opened = 0; is_opened < 2; is_opened++) {
        CHECK_STATUS(SHERD_E_STATE, sherdi_state_aim(state, 1));
        CHECK_ERROR_SAYS("does not hold generation 1: its newest is 3");
        CHECK_STATUS(SHERD_E_STATE, sherdi_state_aim(state, 4));
        for (int again = 0; again < 2; again++) {
            CHECK_OK(sherdi_state_aim(state, 2));
            rig_expect_all(state, 2);
            rig_expect_generation(state, 3, 2); /* the note is that of the one before */
            CHECK_OK(sherdi_state_aim(state, 3));
            rig_expect_all(state, 3);
            rig_expect_generation(state, 3, 3);
        }
        CHECK_OK(sherdi_state_aim(state, 2));
        CHECK_OK(sherdi_state_abandon(state));
        rig_expect_all(state, 3);
        sherdi_state_close(state, 1);
        state = rig_state_open(queue, 1);
    }
    rig_put(state, 2, 4); /* writes over generation 2 */
    CHECK_STATUS(SHERD_E_STATE, sherdi_state_aim(state, 2));
    CHECK_OK(sherdi_state_aim(state, 3));
    rig_expect_all(state, 3);
    sherdi_state_close(state, 1);
    state = rig_state_open(queue, 1);
    CHECK_OK(sherdi_state_aim(state, 2)); /* the index does not know it */
    rig_expect(state, 1, 2);
    CHECK_STATUS(SHERD_E_IO, rig_try_expect(state, 2, 2));
    CHECK_ERROR_SAYS("does not hold what was written");
    sherdi_state_close(state, 0);
    sherdi_ioq_destroy(queue);
}
BOTH(state_reads_the_generation_that_it_is_aimed_at)

static void state_of_another_layout_is_refused(void)
{
    static sherdi_extent other[RIG_EXTENTS];
    sherdi_ioq          *queue = rig_queue(CHUNK, DEPTH);
    sherdi_state        *state = NULL;
    sherdi_state_params  params;

    state_make(queue, 1);
    params           = rig_state_params(1);
    params.id.layout = 78;
    CHECK_STATUS(SHERD_E_STATE, sherdi_state_open(queue, &params, rig_mem(), &state));
    CHECK_ERROR_SAYS("another model or configuration");
    params             = rig_state_params(1);
    params.num_extents = RIG_EXTENTS - 1;
    CHECK_STATUS(SHERD_E_STATE, sherdi_state_open(queue, &params, rig_mem(), &state));
    params = rig_state_params(1);
    memcpy(other, rig_extents(), sizeof(other));
    other[0].len_bytes = 0; /* lengths alone; one page more after it */
    other[2].len_bytes += PAGE;
    other[2].offset_bytes -= PAGE;
    params.extents = other;
    CHECK_STATUS(SHERD_E_STATE, sherdi_state_open(queue, &params, rig_mem(), &state));
    params        = rig_state_params(1);
    params.id.run = 5;
    CHECK_STATUS(SHERD_E_IO, sherdi_state_open(queue, &params, rig_mem(), &state));
    CHECK(state == NULL);
    CHECK_INT(2, state_probe(queue)); /* and nothing was harmed */
    CHECK_STATUS(SHERD_E_IO, sherdi_state_create(queue,
                                                 &(sherdi_state_params){.folders = params.folders,
                                                                        .num_folders = 1,
                                                                        .id = {RIG_RUN, 0, 1, 77},
                                                                        .extents = rig_extents(),
                                                                        .num_extents = RIG_EXTENTS},
                                                 rig_mem(), &state));
    CHECK_ERROR_SAYS("already exists");
    CHECK_INT(2, state_probe(queue)); /* not removed on that account */
    CHECK_OK(sherdi_state_remove(rig_state_path()));
    sherdi_ioq_destroy(queue);
}
BOTH(state_of_another_layout_is_refused)

/* A file that was renamed to be another rank's. */
static void state_of_another_rank_is_refused(void)
{
    sherdi_ioq         *queue  = rig_queue(CHUNK, DEPTH);
    sherdi_state_params params = rig_state_params(1);
    sherdi_state       *state  = NULL;
    char                path[512];

    state_make(queue, 1);
    (void)snprintf(path, sizeof(path), "%s/sherd-ab54a98ceb1f0ad2-1of2.state", params.folders[0]);
    CHECK(rename(rig_state_path(), path) == 0);
    params.id.rank       = 1;
    params.id.world_size = 2;
    CHECK_STATUS(SHERD_E_STATE, sherdi_state_open(queue, &params, rig_mem(), &state));
    CHECK_ERROR_SAYS("belongs to rank 0 of 1");
    CHECK_OK(sherdi_state_remove(path));
    sherdi_ioq_destroy(queue);
}
BOTH(state_of_another_rank_is_refused)

static void state_in_other_folders_is_refused(void)
{
    sherdi_ioq         *queue  = rig_queue(CHUNK, DEPTH);
    sherdi_state_params params = rig_state_params(2);
    sherdi_state       *state  = NULL;

    state_make(queue, 2);
    params.num_folders = 1;
    CHECK_STATUS(SHERD_E_STATE, sherdi_state_open(queue, &params, rig_mem(), &state));
    CHECK_ERROR_SAYS("lies in 2 folders, and nvme_path names 1");
    params.num_folders = 3;
    CHECK_STATUS(SHERD_E_STATE, sherdi_state_open(queue, &params, rig_mem(), &state));
    CHECK_OK(sherdi_state_remove(rig_state_path()));
    CHECK_INT(0, rig_folder_count(rig_folder("f0")) + rig_folder_count(rig_folder("f1")));
    sherdi_ioq_destroy(queue);
}
BOTH(state_in_other_folders_is_refused)

static void state_without_a_commit_is_refused(void)
{
    sherdi_ioq         *queue  = rig_queue(CHUNK, DEPTH);
    sherdi_state_params params = rig_state_params(1);
    sherdi_state       *state  = rig_state_create(queue, 1);

    rig_put_all(state, 1);
    sherdi_state_close(state, 1);
    CHECK_STATUS(SHERD_E_STATE, sherdi_state_open(queue, &params, rig_mem(), &state));
    CHECK_ERROR_SAYS("nothing was committed");
    CHECK_OK(sherdi_state_remove(rig_state_path()));
    sherdi_ioq_destroy(queue);
}
BOTH(state_without_a_commit_is_refused)

/* -------------------------------------------------------- listing, removing -- */

#define MAX_FOUND 8

typedef struct found_list {
    sherdi_state_found found[MAX_FOUND];
    size_t             count;
    size_t             fail_at; /* 1: the first */
} found_list;

static sherd_status list_add(void *ctx, const sherdi_state_found *found)
{
    found_list *list = ctx;

    CHECK(list->count < MAX_FOUND);
    list->found[list->count++] = *found;
    return list->count == list->fail_at ? SHERD_E_AGAIN : SHERD_OK;
}

static const found_list *list_of(const char *folder)
{
    static found_list list;

    list = (found_list){0};
    CHECK_OK(sherdi_state_find(folder, list_add, &list));
    return &list;
}

/* In a process of its own, which answers with its exit status. */
static int in_a_child(int (*body)(void))
{
    int   answer = -1;
    pid_t child  = fork();

    CHECK(child >= 0);
    if (child == 0) {
        _exit(body());
    }
    CHECK_INT(child, waitpid(child, &answer, 0));
    CHECK(WIFEXITED(answer));
    return WEXITSTATUS(answer);
}

/* Without the queue's threads: what looks from outside needs none. */
static int child_looks(void)
{
    static found_list list;

    list = (found_list){0};
    if (sherdi_state_find(rig_folder("f0"), list_add, &list) != SHERD_OK || list.count != 1) {
        return 1;
    }
    if (!list.found[0].is_locked || !list.found[0].is_valid || list.found[0].generation != 1) {
        return 2;
    }
    return sherdi_state_remove(rig_state_path()) == SHERD_E_STATE ? 0 : 3;
}

static void state_in_use_is_listed_and_left_alone(void)
{
    sherdi_ioq         *queue  = rig_queue(CHUNK, DEPTH);
    sherdi_state_params params = rig_state_params(1);
    sherdi_state       *state  = rig_state_create(queue, 1);
    sherdi_state       *second = NULL;

    rig_put_all(state, 1);
    rig_commit(state, 1);
    CHECK_STATUS(SHERD_E_STATE, sherdi_state_open(queue, &params, rig_mem(), &second));
    CHECK_ERROR_SAYS("in use");
    CHECK_STATUS(SHERD_E_STATE, sherdi_state_remove(rig_state_path()));
    CHECK_ERROR_SAYS("in use");
    CHECK_INT(0, in_a_child(child_looks));
    rig_expect_all(state, 1);
    rig_put_all(state, 2);
    rig_commit(state, 2);
    sherdi_state_close(state, 1);
    CHECK_INT(2, state_probe(queue));
    CHECK_OK(sherdi_state_remove(rig_state_path()));
    sherdi_ioq_destroy(queue);
}
BOTH(state_in_use_is_listed_and_left_alone)

static void file_put(const char *folder, const char *name, size_t len_bytes, int is_written)
{
    char path[512];
    int  fd;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)len_bytes) == 0);
    CHECK(!is_written || write(fd, &fd, sizeof(fd)) == sizeof(fd));
    (void)close(fd);
}

static void found_check(const sherdi_state_found *found, uint64_t run, int rank, int world_size,
                        uint64_t generation, uint64_t previous)
{
    unsigned char note[SHERDI_STATE_NOTE_FRONT] = {0};

    CHECK(found->is_valid && !found->is_locked);
    CHECK_INT(run, found->id.run);
    CHECK_INT(rank, found->id.rank);
    CHECK_INT(world_size, found->id.world_size);
    CHECK_INT(77, found->id.layout);
    CHECK_INT(generation, found->generation);
    CHECK_INT(previous, found->previous);
    CHECK(found->changed_s > 0 && found->held_bytes > 0);
    if (generation > 0) {
        rig_fill(note, sizeof(note), generation);
    }
    CHECK_BYTES_EQUAL(note, found->note, sizeof(note));
}

static void state_files_are_listed_in_order_of_name(void)
{
    sherdi_ioq         *queue  = rig_queue(CHUNK, DEPTH);
    sherdi_state_params params = rig_state_params(2);
    const char         *folder = params.folders[0];
    const found_list   *list;
    found_list          stopped = {.fail_at = 2};

    CHECK_INT(0, list_of(folder)->count);
    for (uint64_t run = 3; run > 0; run--) { /* run 1 has no commit, 2 one, 3 three */
        sherdi_state *state  = NULL;
        params.id.run        = run;
        params.id.rank       = (int)run;
        params.id.world_size = 12;
        CHECK_OK(sherdi_state_create(queue, &params, rig_mem(), &state));
        for (uint64_t seed = 1; seed <= (run == 3 ? 3 : run - 1); seed++) {
            rig_put(state, 1, seed);
            rig_commit(state, seed);
        }
        sherdi_state_close(state, 1);
    }
    file_put(folder, "sherd-0000000000000009-0of4.state", 100 * PAGE, 1); /* no header */
    file_put(folder, "sherd-000000000000000a-0of4.state", 10, 0);         /* never written to */
    file_put(folder, "sherd-0000000000000009-4of4.state", 10, 1);         /* no such rank */
    file_put(folder, "sherd-0000000000000009-0of4.state.bak", 10, 1);     /* none of ours */
    file_put(folder, "other", 10, 1);
    list = list_of(folder);
    CHECK_INT(5, list->count);
    found_check(&list->found[0], 1, 1, 12, 0, 0);
    found_check(&list->found[1], 2, 2, 12, 1, 0);
    found_check(&list->found[2], 3, 3, 12, 3, 2);
    CHECK(strstr(list->found[2].path, "f0/sherd-0000000000000003-3of12.state") != NULL);
    CHECK(!list->found[3].is_valid && list->found[3].id.run == 9 && !list->found[3].is_locked);
    CHECK(list->found[4].is_valid && list->found[4].generation == 0);
    CHECK_INT(0, list_of(params.folders[1])->count); /* stripes are no state files */
    CHECK_STATUS(SHERD_E_AGAIN, sherdi_state_find(folder, list_add, &stopped));
    CHECK_INT(2, stopped.count);
    CHECK_STATUS(SHERD_E_IO, sherdi_state_find("/there/is/no/such", list_add, &stopped));
    CHECK_ERROR_SAYS("cannot list folder /there/is/no/such");

    list = list_of(folder);
    for (size_t i = 0; i < list->count; i++) {
        CHECK_OK(sherdi_state_remove(list->found[i].path));
    }
    CHECK_INT(3, rig_folder_count(folder)); /* what was none of ours */
    CHECK_INT(0, rig_folder_count(params.folders[1]));
    sherdi_ioq_destroy(queue);
}
BOTH(state_files_are_listed_in_order_of_name)

static void state_listed_as_damaged_is_refused_and_removed(void)
{
    sherdi_ioq *queue = rig_queue(CHUNK, DEPTH);

    state_make(queue, 3);
    file_flip(rig_state_path(), HEADS_AT + 50, 1);
    CHECK(list_of(rig_folder("f0"))->found[0].is_valid); /* the other head is there */
    file_flip(rig_state_path(), HEADS_AT + PAGE + 50, 1);
    CHECK(!list_of(rig_folder("f0"))->found[0].is_valid);
    CHECK_OK(sherdi_state_remove(rig_state_path()));
    CHECK_INT(0, rig_folder_count(rig_folder("f0")) + rig_folder_count(rig_folder("f1")) +
                     rig_folder_count(rig_folder("f2")));
    CHECK_STATUS(SHERD_E_IO, sherdi_state_remove(rig_state_path()));
    file_put(rig_folder("f0"), "weights", 100, 1);
    CHECK_STATUS(SHERD_E_INVAL, sherdi_state_remove(rig_folder("f0")));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_state_remove("weights"));
    CHECK_INT(1, rig_folder_count(rig_folder("f0")));
    sherdi_ioq_destroy(queue);
}
BOTH(state_listed_as_damaged_is_refused_and_removed)

/* All stripes in one folder, and a header that nobody can read. */
static void state_without_a_header_is_removed_with_its_stripes(void)
{
    sherdi_ioq         *queue  = rig_queue(CHUNK, DEPTH);
    sherdi_state_params params = rig_state_params(3);
    const char *const   same[] = {params.folders[0], params.folders[0], params.folders[0]};
    sherdi_state       *state  = NULL;

    params.folders = same;
    CHECK_OK(sherdi_state_create(queue, &params, rig_mem(), &state));
    sherdi_state_close(state, 1);
    CHECK_INT(1 + 2 * 3, rig_folder_count(same[0]));
    file_flip(rig_state_path(), 100, 1);
    file_put(same[0], "sherd-ab54a98ceb1f0ad2-0of1.state.2", PAGE, 1); /* of format 2 */
    CHECK_OK(sherdi_state_remove(rig_state_path()));
    CHECK_INT(0, rig_folder_count(same[0]));
    sherdi_ioq_destroy(queue);
}
BOTH(state_without_a_header_is_removed_with_its_stripes)

static size_t count_in_log(const char *part)
{
    size_t count = 0;

    for (const char *at = rig_log(); (at = strstr(at, part)) != NULL; at++) {
        count++;
    }
    return count;
}

static void state_removed_by_somebody_is_warned_of_once(void)
{
    sherdi_ioq   *queue = rig_queue(CHUNK, DEPTH);
    sherdi_state *state = rig_state_create(queue, 2);

    rig_commit(state, 1);
    CHECK_INT(0, count_in_log("was removed"));
    CHECK(unlink(rig_state_path()) == 0);
    for (uint64_t seed = 1; seed <= 3; seed++) {
        rig_put_all(state, seed);
        rig_commit(state, seed);
        rig_expect_all(state, seed);
    }
    CHECK_INT(1, count_in_log("was removed"));
    sherdi_state_close(state, 0);
    CHECK_INT(0, rig_folder_count(rig_folder("f1")));
    sherdi_ioq_destroy(queue);
}
BOTH(state_removed_by_somebody_is_warned_of_once)

/* --------------------------------------------------------------- faults -- */

static void faults_need_to_be_possible(void)
{
    if (rig_kind() == SHERDI_IOQ_URING && !fault_can_inject()) {
        test_skip("this kernel cannot make a request of io_uring fail");
    }
}

/* After each of a commit's writes in turn: the generation before counts, or the new one, and until
 * it is opened again nothing more is written. */
static void state_commit_that_fails_ends_the_writing_until_it_is_abandoned(void)
{
    sherdi_ioq *queue;

    faults_need_to_be_possible();
    queue = rig_queue(CHUNK, DEPTH);
    for (int nth = 1; nth <= 3; nth++) { /* note, table, head */
        sherdi_state *state = rig_state_create(queue, 1);

        rig_put_all(state, 1);
        rig_commit(state, 1);
        rig_put_all(state, 2);
        fault_arm(FAULT_EIO, FAULT_WRITES, nth, 1);
        CHECK_STATUS(SHERD_E_IO, rig_try_commit(state, 2));
        CHECK_ERROR_SAYS(nth == 1 ? "note" : "index");
        CHECK_INT(1, fault_hits());
        fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
        CHECK_STATUS(SHERD_E_STATE, rig_try_commit(state, 2));
        CHECK_ERROR_SAYS("an earlier commit failed");
        CHECK_STATUS(SHERD_E_STATE, sherdi_state_rollback(state));
        CHECK_STATUS(SHERD_E_IO, rig_try_put(state, 1, 3));
        CHECK_ERROR_SAYS("an earlier commit failed");
        rig_expect_generation(state, 1, 1);
        rig_expect_all(state, 2); /* still what was written last */
        fault_arm(FAULT_EIO, FAULT_WRITES, 1, 1);
        CHECK_STATUS(SHERD_E_IO, sherdi_state_abandon(state)); /* the drive does not take it back */
        fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
        CHECK_STATUS(SHERD_E_STATE, rig_try_commit(state, 2));
        rig_expect_all(state, 1);
        if (nth == 1) {
            CHECK_OK(sherdi_state_abandon(state));
            rig_put_all(state, 2);
            rig_commit(state, 2);
            rig_expect_generation(state, 2, 2);
            sherdi_state_close(state, 1);
            CHECK_INT(2, state_probe(queue));
        } else {
            sherdi_state_close(state, 1);
            CHECK_INT(1, state_probe(queue));
        }
        CHECK_OK(sherdi_state_remove(rig_state_path()));
    }
    sherdi_ioq_destroy(queue);
}
BOTH(state_commit_that_fails_ends_the_writing_until_it_is_abandoned)

static void state_write_that_fails_is_not_committed(void)
{
    sherdi_ioq   *queue;
    sherdi_state *state;

    faults_need_to_be_possible();
    queue = rig_queue(CHUNK, DEPTH);
    state = rig_state_create(queue, 1);
    rig_put_all(state, 1);
    rig_commit(state, 1);
    fault_arm(FAULT_ENOSPC, FAULT_WRITES, 2, 1);
    CHECK_STATUS(SHERD_E_IO, rig_try_put(state, 3, 2));
    CHECK_ERROR_SAYS("writing state 3");
    fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
    CHECK_STATUS(SHERD_E_IO, rig_try_expect(state, 3, 2)); /* half of it, and never given out */
    CHECK_STATUS(SHERD_E_STATE, rig_try_commit(state, 2));
    CHECK_ERROR_SAYS("a write failed since the last commit");
    sherdi_state_abandon(state);
    rig_expect_all(state, 1);
    rig_put(state, 3, 3);
    rig_commit(state, 3);
    rig_expect(state, 3, 3);
    sherdi_state_close(state, 0);
    sherdi_ioq_destroy(queue);
}
BOTH(state_write_that_fails_is_not_committed)

static void state_rollback_that_fails_leaves_one_of_both(void)
{
    sherdi_ioq   *queue;
    sherdi_state *state;

    faults_need_to_be_possible();
    queue = rig_queue(CHUNK, DEPTH);
    state_make(queue, 1);
    state = rig_state_open(queue, 1);
    fault_arm(FAULT_EIO, FAULT_READS, 3, 1); /* while it compares: nothing has changed */
    CHECK_STATUS(SHERD_E_IO, sherdi_state_rollback(state));
    fault_arm(FAULT_EIO, FAULT_WRITES, 1, 1); /* while it takes the head away */
    CHECK_STATUS(SHERD_E_IO, sherdi_state_rollback(state));
    fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
    CHECK_STATUS(SHERD_E_IO, rig_try_put(state, 1, 3));
    sherdi_state_close(state, 1);
    CHECK_INT(2, state_probe(queue));
    state = rig_state_open(queue, 1);
    fault_arm(FAULT_EIO, FAULT_WRITES, 1, 1);
    CHECK_STATUS(SHERD_E_IO, sherdi_state_rollback(state));
    fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
    CHECK_OK(sherdi_state_abandon(state)); /* changes nothing about it */
    CHECK_STATUS(SHERD_E_IO, rig_try_put(state, 1, 3));
    rig_rollback(state, 1); /* goes on where the one before failed */
    CHECK_STATUS(SHERD_E_STATE, sherdi_state_rollback(state));
    sherdi_state_close(state, 1);
    CHECK_INT(1, state_probe(queue));
    CHECK_OK(sherdi_state_remove(rig_state_path()));
    sherdi_ioq_destroy(queue);
}
BOTH(state_rollback_that_fails_leaves_one_of_both)

static void state_whose_header_cannot_be_written_leaves_nothing(void)
{
    sherdi_ioq         *queue;
    sherdi_state_params params;
    sherdi_state       *state = NULL;

    faults_need_to_be_possible();
    queue  = rig_queue(CHUNK, DEPTH);
    params = rig_state_params(2);
    fault_arm(FAULT_EIO, FAULT_WRITES, 1, 1);
    CHECK_STATUS(SHERD_E_IO, sherdi_state_create(queue, &params, rig_mem(), &state));
    fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
    CHECK_INT(0, rig_folder_count(params.folders[0]) + rig_folder_count(params.folders[1]));
    sherdi_ioq_destroy(queue);
}
BOTH(state_whose_header_cannot_be_written_leaves_nothing)

/* What is made: one of the two. */
typedef struct made {
    sherdi_state *state;
    sherdi_tier  *tier;
} made;

typedef sherd_status (*make_fn)(sherdi_ioq *queue, made *out);

static sherd_status make_state(sherdi_ioq *queue, made *out)
{
    const sherdi_state_params params = rig_state_params(2);

    return sherdi_state_create(queue, &params, rig_mem(), &out->state);
}

static sherd_status make_opened(sherdi_ioq *queue, made *out)
{
    const sherdi_state_params params = rig_state_params(2);

    return sherdi_state_open(queue, &params, rig_mem(), &out->state);
}

static sherd_status make_scratch(sherdi_ioq *queue, made *out)
{
    return rig_tier_open(&sherdi_tier_nvme, queue, 2, rig_extents(), RIG_EXTENTS, &out->tier);
}

/* Every allocation in turn. Returns what was made when all of them succeeded. */
static made make_with_faults(sherdi_ioq *queue, make_fn make)
{
    made         out = {NULL, NULL};
    sherd_status status;
    size_t       nth = 0;

    do {
        int    files = rig_folder_count(rig_folder("f0")) + rig_folder_count(rig_folder("f1"));
        int    descriptors = rig_descriptors();
        size_t held        = sherdi_mem_held_all(rig_mem());

        (void)sherdi_mem_fail_nth(++nth);
        status = make(queue, &out);
        (void)sherdi_mem_fail_nth(0);
        if (status != SHERD_OK) {
            CHECK_STATUS(SHERD_E_NOMEM, status);
            CHECK(out.state == NULL && out.tier == NULL);
            CHECK_INT(held, sherdi_mem_held_all(rig_mem()));
            CHECK_INT(files,
                      rig_folder_count(rig_folder("f0")) + rig_folder_count(rig_folder("f1")));
            CHECK_INT(descriptors, rig_descriptors());
        }
    } while (status != SHERD_OK);
    CHECK(nth > 3);
    return out;
}

static void tiers_without_memory_leave_nothing(void)
{
    sherdi_ioq   *queue = rig_queue(CHUNK, DEPTH);
    sherdi_state *state = make_with_faults(queue, make_state).state;
    sherdi_tier  *tier;

    for (uint64_t seed = 1; seed <= 2; seed++) {
        rig_put_all(state, seed);
        rig_commit(state, seed);
    }
    sherdi_state_close(state, 1);
    state = make_with_faults(queue, make_opened).state;
    rig_expect_all(state, 2);
    (void)sherdi_mem_fail_nth(1);
    CHECK_STATUS(SHERD_E_NOMEM, sherdi_state_rollback(state));
    (void)sherdi_mem_fail_nth(0);
    rig_rollback(state, 1);
    sherdi_state_close(state, 0);
    tier = make_with_faults(queue, make_scratch).tier;
    tier->ops->close(tier);
    sherdi_ioq_destroy(queue);
}
BOTH(tiers_without_memory_leave_nothing)

/* Folders whose names the header has no room for. */
static void state_in_folders_of_long_names_is_refused(void)
{
    static char         name[4][1200];
    const char         *folders[4];
    sherdi_ioq         *queue  = rig_queue(CHUNK, DEPTH);
    sherdi_state_params params = rig_state_params(1);
    sherdi_state       *state  = NULL;

    for (int i = 0; i < 4; i++) {
        size_t used = (size_t)snprintf(name[i], sizeof(name[i]), "%s/%d", params.folders[0], i);

        CHECK(mkdir(name[i], 0700) == 0);
        while (used < 1000) {
            memset(name[i] + used, 'x', 200);
            name[i][used] = '/';
            used += 200;
            name[i][used] = '\0';
            CHECK(mkdir(name[i], 0700) == 0);
        }
        folders[i] = name[i];
    }
    params.folders     = folders;
    params.num_folders = 4;
    CHECK_STATUS(SHERD_E_INVAL, sherdi_state_create(queue, &params, rig_mem(), &state));
    CHECK_ERROR_SAYS("more than 3072 bytes together");
    params.num_folders = 2;
    CHECK_OK(sherdi_state_create(queue, &params, rig_mem(), &state));
    sherdi_state_close(state, 0);
    name[1][20] = '?';
    CHECK_STATUS(SHERD_E_IO, sherdi_state_create(queue, &params, rig_mem(), &state));
    sherdi_ioq_destroy(queue);
}
BOTH(state_in_folders_of_long_names_is_refused)

static const test_case cases[] = {
    CASES(state_with_a_damaged_index_falls_back_or_is_refused),
    CASES(state_of_random_damage_never_gives_wrong_data),
    CASES(state_that_was_cut_is_refused_or_found),
    CASES(state_flipped_bit_in_data_is_found_on_load),
    CASES(state_flipped_bit_is_found_by_every_read_that_verifies),
    CASES(state_reads_the_generation_that_it_is_aimed_at),
    CASES(state_of_another_layout_is_refused),
    CASES(state_of_another_rank_is_refused),
    CASES(state_in_other_folders_is_refused),
    CASES(state_without_a_commit_is_refused),
    CASES(state_in_use_is_listed_and_left_alone),
    CASES(state_files_are_listed_in_order_of_name),
    CASES(state_listed_as_damaged_is_refused_and_removed),
    CASES(state_without_a_header_is_removed_with_its_stripes),
    CASES(state_removed_by_somebody_is_warned_of_once),
    CASES(state_commit_that_fails_ends_the_writing_until_it_is_abandoned),
    CASES(state_write_that_fails_is_not_committed),
    CASES(state_rollback_that_fails_leaves_one_of_both),
    CASES(state_whose_header_cannot_be_written_leaves_nothing),
    CASES(tiers_without_memory_leave_nothing),
    CASES(state_in_folders_of_long_names_is_refused),
};

RUN_MAIN(cases)

/* Linked generations: a linked one never changes again, the state continues, and the description
 * for readers is complete. Real files over one folder and two, both engines. */
#include "offload/checksum.h"
#include "offload/state_file.h"
#include "tests/offload/fault_uring.h"
#include "tests/offload/tier_rig.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEPTH 4
#define CHUNK (8 * PAGE)

/* Checkpoints of a case: next to the state's folders. */
static const char *kept_folder(void)
{
    return rig_folder("kept");
}

/* ------------------------------------------------------------ looking -- */

/* A linked file, opened without the state. */
static sherdi_file *kept_open(sherdi_ioq *queue, const char *name,
                              const sherdi_state_slots_file *shape)
{
    const char              *folders[] = {kept_folder(), kept_folder(), kept_folder()};
    const sherdi_file_params params    = {.folders        = folders,
                                          .num_folders    = shape->num_stripes,
                                          .name           = name,
                                          .capacity_bytes = shape->len_bytes,
                                          .stripe_bytes   = shape->stripe_bytes,
                                          .flags          = SHERDI_FILE_READ};
    sherdi_file             *file      = NULL;

    CHECK_OK(sherdi_file_open(queue, &params, &file));
    return file;
}

/* The description of the live generation, and its contents as a reader finds them. */
typedef struct description {
    sherdi_state_slot       slots[RIG_EXTENTS];
    sherdi_state_slots_file file;
} description;

static description describe(const sherdi_state *state)
{
    description d;

    for (size_t i = 0; i < RIG_EXTENTS; i++) {
        sherdi_state_describe(state, i, &d.slots[i]);
    }
    sherdi_state_describe_file(state, &d.file);
    return d;
}

/* seeds [RIG_EXTENTS]; 0: never written. */
static void kept_expect_each(sherdi_ioq *queue, const char *name, const description *d,
                             const uint64_t *seeds)
{
    sherdi_file   *file = kept_open(queue, name, &d->file);
    unsigned char *want = rig_memory(RIG_LONGEST_BYTES);
    unsigned char *got  = rig_memory(RIG_LONGEST_BYTES);

    CHECK_INT(d->file.len_bytes, sherdi_file_len(file));
    for (size_t i = 0; i < RIG_EXTENTS; i++) {
        const sherdi_state_slot *slot = &d->slots[i];

        CHECK_INT(rig_extents()[i].len_bytes, slot->len_bytes);
        CHECK_INT(seeds[i] != 0, slot->is_written);
        if (seeds[i] != 0) {
            rig_contents(i, seeds[i], want);
            CHECK_OK(rig_read(queue, file, got, slot->offset_bytes, slot->len_bytes));
            CHECK_BYTES_EQUAL(want, got, slot->len_bytes);
            CHECK_INT(sherdi_checksum(want, slot->len_bytes), slot->checksum);
        }
    }
    sherdi_file_close(file, 0);
    sherdi_free(got);
    sherdi_free(want);
}

static void kept_expect(sherdi_ioq *queue, const char *name, const description *d, uint64_t seed)
{
    uint64_t seeds[RIG_EXTENTS];

    for (size_t i = 0; i < RIG_EXTENTS; i++) {
        seeds[i] = seed;
    }
    kept_expect_each(queue, name, d, seeds);
}

/* Of all bytes in a folder, in order of name, by the C library; 0 when it is empty. */
static uint64_t folder_checksum(const char *folder)
{
    struct dirent **entries;
    int             count = scandir(folder, &entries, NULL, alphasort);
    uint64_t        sum   = 0;
    static char     bytes[1 << 16];

    CHECK(count >= 2);
    for (int i = 0; i < count; i++) {
        char   path[512];
        FILE  *file;
        size_t got;

        (void)snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name);
        file = entries[i]->d_name[0] == '.' ? NULL : fopen(path, "rb");
        while (file != NULL && (got = fread(bytes, 1, sizeof(bytes), file)) > 0) {
            sum = sum * 31 + sherdi_checksum(bytes, got);
        }
        if (file != NULL) {
            (void)fclose(file);
        }
        free(entries[i]);
    }
    free(entries);
    return sum;
}

static int files_in_state_folders(void)
{
    return rig_folder_count(rig_folder("f0")) + rig_folder_count(rig_folder("f1"));
}

static void step(sherdi_state *state, uint64_t seed)
{
    rig_put_all(state, seed);
    rig_commit(state, seed);
}

/* -------------------------------------------------------------- keeping -- */

static void kept_generation_never_changes(void)
{
    sherdi_ioq *queue = rig_queue(CHUNK, DEPTH);

    for (int folders = 1; folders <= 2; folders++) {
        sherdi_state *state  = rig_state_create(queue, folders);
        char          name[] = "state-0";
        description   kept[4];
        uint64_t      sums[4];

        name[6] = (char)('0' + folders);
        step(state, 1);
        step(state, 2);
        CHECK_OK(sherdi_state_keep(state, kept_folder(), name));
        kept[0] = describe(state);
        sums[0] = folder_checksum(kept_folder());
        for (uint64_t seed = 3; seed <= 7; seed++) {
            step(state, seed);
            rig_expect_all(state, seed);
            CHECK_INT(sums[0], folder_checksum(kept_folder()));
            /* index, and a third set as long as a generation that may be returned to lies in the
             * linked one */
            CHECK_INT(1 + (seed == 3 ? 3 : 2) * folders, files_in_state_folders());
        }
        kept_expect(queue, name, &kept[0], 2);
        rig_expect_generation(state, 7, 7);
        sherdi_state_close(state, 0);
        CHECK_INT(0, files_in_state_folders());
        CHECK_INT(sums[0],
                  folder_checksum(kept_folder())); /* the run's end is not the checkpoint's */
    }
    sherdi_ioq_destroy(queue);
}
BOTH(kept_generation_never_changes)

/* After every step, as often as one likes, and twice the same. */
static void each_generation_can_be_kept(void)
{
    sherdi_ioq   *queue = rig_queue(CHUNK, DEPTH);
    sherdi_state *state = rig_state_create(queue, 2);
    description   kept[12];
    char          name[32];

    for (uint64_t seed = 1; seed <= 12; seed++) {
        step(state, seed);
        (void)snprintf(name, sizeof(name), "g%d", (int)seed);
        CHECK_OK(sherdi_state_keep(state, kept_folder(), name));
        if (seed % 5 == 0) {
            CHECK_OK(sherdi_state_keep(state, kept_folder(), "again"));
            CHECK_STATUS(SHERD_E_IO, sherdi_state_keep(state, kept_folder(), "again"));
            CHECK_ERROR_SAYS("File exists");
            kept[seed - 1] = describe(state);
            kept_expect(queue, "again", &kept[seed - 1], seed);
            test_files_remove(kept_folder(), "again");
        }
        kept[seed - 1] = describe(state);
        rig_expect_all(state, seed);
    }
    for (int i = 0; i < 12; i++) {
        (void)snprintf(name, sizeof(name), "g%d", i + 1);
        kept_expect(queue, name, &kept[i], (uint64_t)i + 1);
    }
    CHECK(sherdi_state_has_previous(state));
    rig_rollback(state, 11); /* the linked one before */
    rig_expect_all(state, 11);
    step(state, 20);
    rig_expect_all(state, 20);
    kept_expect(queue, "g12", &kept[11], 12);
    kept_expect(queue, "g11", &kept[10], 11);
    sherdi_state_close(state, 0);
    sherdi_ioq_destroy(queue);
}
BOTH(each_generation_can_be_kept)

/* Opened by another process's run, which has nothing but the number of links to know it by. */
static void kept_generation_is_gone_on_from_and_stays(void)
{
    sherdi_ioq   *queue = rig_queue(CHUNK, DEPTH);
    sherdi_state *state = rig_state_create(queue, 2);
    description   kept;

    step(state, 1);
    step(state, 2);
    CHECK_OK(sherdi_state_keep(state, kept_folder(), "state"));
    kept = describe(state);
    for (uint64_t seed = 2; seed <= 6; seed++) {
        sherdi_state_close(state, 1);
        state = rig_state_open(queue, 2);
        rig_expect_generation(state, seed, seed);
        rig_expect_all(state, seed);
        if (seed == 4) { /* back into it, and on again */
            rig_rollback(state, 3);
            rig_expect_all(state, 3);
            rig_put_all(state, 4);
            rig_commit(state, 4);
        }
        kept_expect(queue, "state", &kept, 2);
        step(state, seed + 1);
        kept_expect(queue, "state", &kept, 2);
    }
    sherdi_state_close(state, 0);
    kept_expect(queue, "state", &kept, 2);
    CHECK_INT(0, files_in_state_folders());
    sherdi_ioq_destroy(queue);
}
BOTH(kept_generation_is_gone_on_from_and_stays)

/* When its checkpoint is removed, the set is the run's own again, from the next start on. */
static void kept_generation_whose_checkpoint_went_is_written_again(void)
{
    sherdi_ioq   *queue = rig_queue(CHUNK, DEPTH);
    sherdi_state *state = rig_state_create(queue, 1);
    char          path[256];

    step(state, 1);
    CHECK_OK(sherdi_state_keep(state, kept_folder(), "state"));
    (void)snprintf(path, sizeof(path), "%s/state", kept_folder());
    CHECK(unlink(path) == 0);
    step(state, 2);
    rig_rollback(state, 1);
    rig_expect_all(state, 1);
    sherdi_state_close(state, 1);
    state = rig_state_open(queue, 1);
    rig_expect_generation(state, 1, 1);
    rig_expect_all(state, 1);
    for (uint64_t seed = 2; seed <= 5; seed++) {
        step(state, seed);
        rig_expect_all(state, seed);
        CHECK_INT(3, rig_folder_count(rig_folder("f0")));
    }
    sherdi_state_close(state, 0);
    sherdi_ioq_destroy(queue);
}
BOTH(kept_generation_whose_checkpoint_went_is_written_again)

/* Some extents alone were written last: they lie in the other set and are brought together. */
static void mixed_generation_is_gathered(void)
{
    static const size_t AGAIN[] = {1, 3};
    sherdi_ioq         *queue   = rig_queue(CHUNK, DEPTH);
    sherdi_state       *state   = rig_state_create(queue, 2);
    uint64_t            seeds[] = {1, 1, 1, 1, 1, 1, 1};
    sherdi_io_traffic   before, after;
    description         kept;

    step(state, 1);
    for (size_t i = 0; i < 2; i++) {
        rig_put(state, AGAIN[i], 2);
        seeds[AGAIN[i]] = 2;
    }
    rig_commit(state, 2);
    before = sherdi_ioq_traffic(queue);
    CHECK_OK(sherdi_state_keep(state, kept_folder(), "mixed"));
    after = sherdi_ioq_traffic(queue);
    /* copied are the others, since those two have most */
    CHECK_INT(150 * PAGE + sherdi_state_commit_bytes(RIG_EXTENTS, RIG_NOTE_BYTES) +
                  PAGE, /* the head of the record before */
              after.written_bytes - before.written_bytes);
    rig_expect_generation(state, 2, 2); /* the same one */
    CHECK(!sherdi_state_has_previous(state));
    kept = describe(state);
    kept_expect_each(queue, "mixed", &kept, seeds);
    /* Over a linked set: some extents alone again, then all. */
    rig_put(state, 0, 5);
    rig_commit(state, 5);
    CHECK_OK(sherdi_state_keep(state, kept_folder(), "next"));
    kept_expect_each(queue, "mixed", &kept, seeds);
    seeds[0] = 5;
    kept     = describe(state);
    kept_expect_each(queue, "next", &kept, seeds);
    rig_expect_generation(state, 3, 5);
    sherdi_state_close(state, 1);
    state = rig_state_open(queue, 2);
    rig_expect_generation(state, 3, 5);
    step(state, 6);
    step(state, 7);
    kept_expect_each(queue, "next", &kept, seeds);
    rig_expect_all(state, 7);
    sherdi_state_close(state, 0);
    sherdi_ioq_destroy(queue);
}
BOTH(mixed_generation_is_gathered)

static void extents_never_written_are_told(void)
{
    sherdi_ioq   *queue   = rig_queue(CHUNK, DEPTH);
    sherdi_state *state   = rig_state_create(queue, 1);
    uint64_t      seeds[] = {0, 0, 0, 4, 0, 0, 0};
    description   kept;

    rig_commit(state, 1);
    CHECK_OK(sherdi_state_keep(state, kept_folder(), "none"));
    rig_put(state, 3, 4);
    rig_commit(state, 4);
    CHECK_OK(sherdi_state_keep(state, kept_folder(), "one"));
    kept = describe(state);
    kept_expect_each(queue, "one", &kept, seeds);
    step(state, 5);
    kept_expect_each(queue, "one", &kept, seeds);
    sherdi_state_close(state, 0);
    sherdi_ioq_destroy(queue);
}
BOTH(extents_never_written_are_told)

/* -------------------------------------------------------------- refusals -- */

static void keep_that_cannot_be_is_refused_and_changes_nothing(void)
{
    sherdi_ioq   *queue = rig_queue(CHUNK, DEPTH);
    sherdi_state *state = rig_state_create(queue, 2);
    struct stat   here, there;

    CHECK_STATUS(SHERD_E_STATE, sherdi_state_keep(state, kept_folder(), "state"));
    CHECK_ERROR_SAYS("nothing was committed");
    step(state, 1);
    CHECK_STATUS(SHERD_E_IO, sherdi_state_keep(state, "/nowhere/at/all", "state"));
    CHECK_ERROR_SAYS("/nowhere/at/all/.state: No such file");
    CHECK(stat(kept_folder(), &here) == 0 && stat("/dev/shm", &there) == 0);
    if (here.st_dev != there.st_dev) {
        CHECK_STATUS(SHERD_E_NOTSUP, sherdi_state_keep(state, "/dev/shm", "sherd-test-state"));
        CHECK_ERROR_SAYS("Invalid cross-device link");
    }
    rig_put(state, 2, 9);
    CHECK_STATUS(SHERD_E_STATE, sherdi_state_keep(state, kept_folder(), "state"));
    CHECK_ERROR_SAYS("commit or abandon it first");
    CHECK_OK(sherdi_state_abandon(state));
    CHECK_INT(1 + 2 * 2, files_in_state_folders());
    CHECK_INT(0, rig_folder_count(kept_folder()));
    rig_expect_all(state, 1);
    CHECK_OK(sherdi_state_reserve(state));
    CHECK_OK(sherdi_state_reserve(state)); /* is there */
    CHECK_INT(1 + 3 * 2, files_in_state_folders());
    sherdi_state_unreserve(state);
    sherdi_state_unreserve(state);
    CHECK_INT(1 + 2 * 2, files_in_state_folders());
    CHECK_OK(sherdi_state_reserve(state));
    step(state, 2); /* nothing is written there */
    CHECK_OK(sherdi_state_keep(state, kept_folder(), "state"));
    CHECK_OK(sherdi_state_reserve(state)); /* a linked one needs none */
    CHECK_INT(1 + 3 * 2, files_in_state_folders());
    sherdi_state_close(state, 0);
    CHECK_INT(0, files_in_state_folders());
    sherdi_ioq_destroy(queue);
}
BOTH(keep_that_cannot_be_is_refused_and_changes_nothing)

static void keep_without_room_body(int rank, void *ctx)
{
    sherdi_ioq   *queue;
    sherdi_state *state;
    char          path[256];

    (void)rank;
    (void)ctx;
    rig_mount_over("tmpfs", "size=5m"); /* two sets of 1.8 MB, and not three */
    (void)snprintf(path, sizeof(path), "%s/kept", rig_folder("f0"));
    CHECK(mkdir(path, 0700) == 0);
    queue = rig_queue(CHUNK, DEPTH);
    state = rig_state_create(queue, 1);
    step(state, 1);
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(SHERD_E_IO, i == 0 ? sherdi_state_reserve(state)
                                        : sherdi_state_keep(state, path, "state"));
        CHECK_ERROR_SAYS("slots-c needs 1855488 bytes");
    }
    /* Where it would have to be copied, there is nothing that room is missing for. */
    CHECK_STATUS(SHERD_E_NOTSUP, sherdi_state_keep(state, kept_folder(), "state"));
    CHECK_INT(0, rig_folder_count(path));
    CHECK_INT(1 + 2 + 1, rig_folder_count(rig_folder("f0")));
    step(state, 2);
    step(state, 3);
    rig_expect_all(state, 3);
    sherdi_state_close(state, 1);
    state = rig_state_open(queue, 1);
    rig_expect_all(state, 3);
    sherdi_state_close(state, 0);
    sherdi_ioq_destroy(queue);
}

static void keep_without_room_is_refused_before(void)
{
    test_threads(1, keep_without_room_body, NULL);
}
BOTH(keep_without_room_is_refused_before)

/* ----------------------------------------------------------------- faults -- */

/* Each request of a keep that gathers fails in turn: no link, and the state is what it was. */
static void keep_that_fails_at_each_request_leaves_nothing(void)
{
    sherdi_ioq *queue;
    int         nth = 0, hits;

    if (rig_kind() == SHERDI_IOQ_URING && !fault_can_inject()) {
        test_skip("this kernel cannot make a request of io_uring fail");
    }
    queue = rig_queue(CHUNK, DEPTH);
    do {
        sherdi_state *state = rig_state_create(queue, 1);
        sherd_status  status;

        step(state, 1);
        rig_put(state, 1, 2);
        rig_commit(state, 2);
        fault_arm(FAULT_EIO, FAULT_ANY, ++nth, 1);
        status = sherdi_state_keep(state, kept_folder(), "state");
        hits   = fault_hits();
        fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
        CHECK_STATUS(hits > 0 ? SHERD_E_IO : SHERD_OK, status);
        if (hits > 0) {
            CHECK_INT(0, rig_folder_count(kept_folder()));
            CHECK_INT(3, rig_folder_count(rig_folder("f0")));
            if (nth % 2 == 0) { /* by the next process */
                sherdi_state_close(state, 1);
                state = rig_state_open(queue, 1);
            }
            CHECK_OK(sherdi_state_abandon(state));
            rig_expect_generation(state, 2, 2);
            rig_expect(state, 0, 1);
            rig_expect(state, 1, 2);
            CHECK_OK(sherdi_state_keep(state, kept_folder(), "state"));
        }
        step(state, 3);
        rig_expect_all(state, 3);
        sherdi_state_close(state, 0);
        test_files_remove(kept_folder(), "");
    } while (hits > 0);
    CHECK(nth > 5);
    sherdi_ioq_destroy(queue);
}
BOTH(keep_that_fails_at_each_request_leaves_nothing)

static void keep_that_fails_at_each_allocation_leaves_nothing(void)
{
    sherdi_ioq   *queue = rig_queue(CHUNK, DEPTH);
    sherdi_state *state = rig_state_create(queue, 2);
    size_t        nth   = 0, held;
    sherd_status  status;

    step(state, 1);
    rig_put(state, 1, 2);
    rig_commit(state, 2);
    held = sherdi_mem_held_all(rig_mem());
    do {
        (void)sherdi_mem_fail_nth(++nth);
        status = sherdi_state_keep(state, kept_folder(), "state");
        (void)sherdi_mem_fail_nth(0);
        if (status != SHERD_OK) {
            CHECK_STATUS(SHERD_E_NOMEM, status);
            CHECK_INT(0, rig_folder_count(kept_folder()));
            CHECK_INT(1 + 2 * 2, files_in_state_folders());
            CHECK_INT(held, sherdi_mem_held_all(rig_mem()));
            rig_expect(state, 0, 1);
            rig_expect(state, 1, 2);
        }
    } while (status != SHERD_OK);
    CHECK_INT(6, nth); /* file, stripes, two paths, memory to copy through */
    step(state, 3);
    rig_expect_all(state, 3);
    sherdi_state_close(state, 0);
    sherdi_ioq_destroy(queue);
}
BOTH(keep_that_fails_at_each_allocation_leaves_nothing)

static const test_case cases[] = {
    CASES(kept_generation_never_changes),
    CASES(each_generation_can_be_kept),
    CASES(kept_generation_is_gone_on_from_and_stays),
    CASES(kept_generation_whose_checkpoint_went_is_written_again),
    CASES(mixed_generation_is_gathered),
    CASES(extents_never_written_are_told),
    CASES(keep_that_cannot_be_is_refused_and_changes_nothing),
    CASES(keep_without_room_is_refused_before),
    CASES(keep_that_fails_at_each_request_leaves_nothing),
    CASES(keep_that_fails_at_each_allocation_leaves_nothing),
};

RUN_MAIN(cases)

/* Who writes state is killed at random moments; whoever opens the files next finds a generation
 * that is whole, and the one before it too when a rollback says so. A linked generation never
 * changes. Every extent of a generation is filled with one random word, its serial, which its note
 * holds too: a generation mixed of two shows. Who removes state is killed at every removal. */
#include "tests/offload/tier_rig.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KILLS 50
#define DEPTH 4
#define CHUNK (8 * PAGE)

/* Until the kernel has ended a dead process's transfers its file stays locked. */
#define OPEN_TRIES    2000
#define OPEN_PAUSE_NS 5000000

#define EXTENTS    12
#define NOTE_BYTES (3 * PAGE)

static sherdi_extent extents[EXTENTS];

static void pause_for(long ns)
{
    const struct timespec pause = {.tv_nsec = ns};

    (void)nanosleep(&pause, NULL);
}

static sherdi_state_params kill_params(int is_durable)
{
    sherdi_state_params params = rig_state_params(2);

    for (size_t i = 0; i < EXTENTS; i++) {
        extents[i] = (sherdi_extent){i * 64 * PAGE, (1 + i * i % 50) * PAGE};
    }
    params.extents     = extents;
    params.num_extents = EXTENTS;
    params.is_durable  = is_durable;
    params.note_bytes  = NOTE_BYTES;
    return params;
}

/* ------------------------------------------------------------ generations -- */

static uint64_t note_serial(const unsigned char *note)
{
    uint64_t serial;

    memcpy(&serial, note, sizeof(serial));
    return serial;
}

static void words_fill(unsigned char *memory, size_t len_bytes, uint64_t word)
{
    for (size_t i = 0; i < len_bytes; i += sizeof(word)) {
        memcpy(memory + i, &word, sizeof(word));
    }
}

/* All writes of a generation are in flight at a time, as many as the queue takes. The first `count`
 * extents. */
static sherd_status extents_write(sherdi_state *state, unsigned char *memory, uint64_t serial,
                                  size_t count)
{
    sherdi_tier  *tier             = sherdi_state_extents(state);
    unsigned char note[NOTE_BYTES] = {0};
    sherdi_io     ios[EXTENTS]     = {0};
    sherd_status  status           = SHERD_OK;

    words_fill(memory, 64 * PAGE, serial);
    for (size_t i = 0; i < count; i++) {
        tier->ops->write_start(tier, i, memory, &ios[i]);
    }
    for (size_t i = 0; i < count; i++) {
        sherd_status one = tier->ops->wait(tier, &ios[i]);

        status = status == SHERD_OK ? one : status;
    }
    words_fill(note, sizeof(note), serial);
    return status == SHERD_OK ? sherdi_state_commit(state, note, sizeof(note)) : status;
}

static sherd_status generation_write(sherdi_state *state, unsigned char *memory, uint64_t serial)
{
    return extents_write(state, memory, serial, EXTENTS);
}

/* Every word of every extent is the serial of the note. */
static void generation_check(sherdi_state *state)
{
    sherdi_tier   *tier = sherdi_state_extents(state);
    unsigned char  note[NOTE_BYTES];
    unsigned char *want = rig_memory(64 * PAGE);
    unsigned char *got  = rig_memory(64 * PAGE);

    CHECK_INT(NOTE_BYTES, sherdi_state_get_note(state, note, sizeof(note)));
    words_fill(want, 64 * PAGE, note_serial(note));
    CHECK_BYTES_EQUAL(want, note, sizeof(note));
    for (size_t i = 0; i < EXTENTS; i++) {
        sherdi_io io = {0};

        tier->ops->read_start(tier, i, got, &io);
        CHECK_OK(tier->ops->wait(tier, &io));
        CHECK_BYTES_EQUAL(want, got, extents[i].len_bytes);
    }
    sherdi_free(got);
    sherdi_free(want);
}

/* --------------------------------------------------------------- the child -- */

/* "kept-<serial>", in a folder next to it; when the drive is full of them the parent takes them
 * away. */
static sherd_status generation_keep(sherdi_state *state, unsigned char *memory, int is_mixed)
{
    unsigned char note[NOTE_BYTES];
    char          name[64];

    (void)sherdi_state_get_note(state, note, sizeof(note));
    if (is_mixed) { /* some extents once more, so that it has to be gathered */
        SHERDI_TRY(extents_write(state, memory, note_serial(note), EXTENTS / 2));
    }
    (void)snprintf(name, sizeof(name), "kept-%016llx", (unsigned long long)note_serial(note));
    return sherdi_state_keep(state, rig_folder("kept"), name);
}

/* Writes until it is killed; says when it has begun, and when it has kept one. Now and then it goes
 * back, or keeps what is live. */
static int child_write(int ready, int is_durable, uint64_t seed)
{
    const sherdi_state_params params = kill_params(is_durable);
    sherdi_ioq               *queue  = rig_queue(CHUNK, DEPTH);
    unsigned char            *memory = rig_memory(64 * PAGE);
    sherdi_state             *state;
    int                       has_kept = 0;

    if (sherdi_state_open(queue, &params, rig_mem(), &state) != SHERD_OK ||
        write(ready, "r", 1) != 1) {
        return 1;
    }
    for (;;) {
        if (generation_write(state, memory, test_random(&seed)) != SHERD_OK) {
            return 2;
        }
        if (test_random(&seed) % 3 == 0) {
            if (generation_keep(state, memory, test_random(&seed) % 2 == 0) != SHERD_OK ||
                (!has_kept && write(ready, "k", 1) != 1)) {
                return 4;
            }
            has_kept = 1;
        }
        if (test_random(&seed) % 4 == 0 && sherdi_state_has_previous(state) &&
            sherdi_state_rollback(state) != SHERD_OK) {
            return 3;
        }
    }
}

static void child_run_and_kill(int is_durable, int keeps, uint64_t *seed)
{
    int   ready[2], ended;
    char  byte;
    pid_t child;

    CHECK(pipe(ready) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        (void)close(ready[0]);
        _exit(child_write(ready[1], is_durable, test_random(seed))); /* no serial twice */
    }
    (void)close(ready[1]);
    CHECK_INT(1, read(ready[0], &byte, 1));
    CHECK(!keeps || read(ready[0], &byte, 1) == 1); /* however busy the machine is */
    pause_for((long)(test_random(seed) % 25000000));
    CHECK(kill(child, SIGKILL) == 0);
    CHECK_INT(child, waitpid(child, &ended, 0));
    CHECK(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGKILL);
    (void)close(ready[0]);
}

/* -------------------------------------------------------------- the parent -- */

/* One whose stripes are all there: every word of every extent is the serial of its name. */
static void kept_check(sherdi_ioq *queue, const char *name, unsigned char *want, unsigned char *got)
{
    const char              *folders[] = {rig_folder("kept"), rig_folder("kept")};
    const sherdi_file_params params    = {.folders      = folders,
                                          .num_folders  = 2,
                                          .name         = name,
                                          .stripe_bytes = (size_t)1 << 20,
                                          .flags        = SHERDI_FILE_READ};
    sherdi_file             *file      = NULL;
    size_t                   at_bytes  = 0;

    CHECK_OK(sherdi_file_open(queue, &params, &file));
    words_fill(want, 64 * PAGE, strtoull(name + strlen("kept-"), NULL, 16));
    for (size_t i = 0; i < EXTENTS; i++) {
        CHECK_OK(rig_read(queue, file, got, at_bytes, extents[i].len_bytes));
        CHECK_BYTES_EQUAL(want, got, extents[i].len_bytes);
        at_bytes += extents[i].len_bytes;
    }
    CHECK_INT(at_bytes, sherdi_file_len(file));
    sherdi_file_close(file, 0);
}

/* All that were kept, by the process that was killed and those before it. Returns how many. */
static int kept_check_all(void)
{
    sherdi_ioq    *queue = rig_queue(CHUNK, DEPTH);
    unsigned char *want  = rig_memory(64 * PAGE);
    unsigned char *got   = rig_memory(64 * PAGE);
    DIR           *dir   = opendir(rig_folder("kept"));
    struct dirent *entry;
    int            count = 0;

    CHECK(dir != NULL);
    while ((entry = readdir(dir)) != NULL) {
        char name[64];

        /* The last stripe is linked last. */
        if (sscanf(entry->d_name, "%21[^.].1", name) == 1 && strchr(entry->d_name, '.') != NULL &&
            entry->d_name[0] != '.') {
            kept_check(queue, name, want, got);
            count++;
        }
    }
    (void)closedir(dir);
    sherdi_free(got);
    sherdi_free(want);
    sherdi_ioq_destroy(queue);
    return count;
}

static sherdi_state *open_after_death(sherdi_ioq *queue, const sherdi_state_params *params)
{
    sherdi_state *state  = NULL;
    sherd_status  status = SHERD_E_STATE;

    for (int i = 0; i < OPEN_TRIES && status == SHERD_E_STATE; i++) {
        status = sherdi_state_open(queue, params, rig_mem(), &state);
        if (status == SHERD_E_STATE) {
            test_check_contains(__FILE__, __LINE__, sherd_last_error(), "in use");
            pause_for(OPEN_PAUSE_NS);
        }
    }
    CHECK_OK(status);
    return state;
}

/* Returns whether the generation before was there too. */
static int survivor_check(int is_durable, int is_rolled_back)
{
    const sherdi_state_params params = kill_params(is_durable);
    sherdi_ioq               *queue  = rig_queue(CHUNK, DEPTH);
    sherdi_state             *state  = open_after_death(queue, &params);
    uint64_t                  before;
    sherd_status              status = SHERD_E_STATE;

    before = sherdi_state_generation(state);
    generation_check(state);
    if (is_rolled_back && sherdi_state_has_previous(state)) {
        status = sherdi_state_rollback(state);
        CHECK(status == SHERD_OK || status == SHERD_E_STATE);
        CHECK_INT(status == SHERD_OK ? before - 1 : before, sherdi_state_generation(state));
        generation_check(state);
    }
    sherdi_state_close(state, 1);
    sherdi_ioq_destroy(queue);
    return status == SHERD_OK;
}

static void first_generation(int is_durable)
{
    const sherdi_state_params params = kill_params(is_durable);
    sherdi_ioq               *queue  = rig_queue(CHUNK, DEPTH);
    unsigned char            *memory = rig_memory(64 * PAGE);
    sherdi_state             *state  = NULL;

    CHECK_OK(sherdi_state_create(queue, &params, rig_mem(), &state));
    CHECK_OK(generation_write(state, memory, 1));
    sherdi_state_close(state, 1);
    sherdi_free(memory);
    sherdi_ioq_destroy(queue);
}

static void state_survives_who_writes_it(void)
{
    uint64_t seed     = 4711;
    int      num_kept = 0;

    for (int is_durable = 0; is_durable < 2; is_durable++) {
        first_generation(is_durable);
        for (int i = 0; i < KILLS / 2; i++) {
            child_run_and_kill(is_durable, i % 10 == 0, &seed);
            (void)survivor_check(is_durable, i % 3 != 0);
            if (i % 5 == 4) {
                num_kept += kept_check_all();
                test_files_remove(rig_folder("kept"), "");
            }
        }
        CHECK_OK(sherdi_state_remove(rig_state_path()));
        CHECK_INT(0, rig_folder_count(rig_folder("f0")) + rig_folder_count(rig_folder("f1")));
    }
    CHECK(num_kept > 0);
}
BOTH(state_survives_who_writes_it)

/* ------------------------------------------------------------ at its end -- */

static int unlinks_until_death = -1; /* negative: it does not come */

/* Stands before the C library's. */
int unlink(const char *path)
{
    if (unlinks_until_death == 0) {
        (void)raise(SIGKILL);
    }
    unlinks_until_death -= unlinks_until_death > 0;
    return (int)syscall(SYS_unlink, path);
}

static int child_end(int is_durable, int unlinks)
{
    const sherdi_state_params params = kill_params(is_durable);
    sherdi_ioq               *queue  = rig_queue(CHUNK, DEPTH);
    sherdi_state             *state;

    if (sherdi_state_open(queue, &params, rig_mem(), &state) != SHERD_OK) {
        return 1;
    }
    unlinks_until_death = unlinks;
    sherdi_state_close(state, 0);
    return 0;
}

/* Ends a run that has a generation; 0 when the removals were fewer than `unlinks` + 1, so that it
 * was not killed. */
static int end_and_kill(int is_durable, int unlinks)
{
    pid_t child;
    int   ended;

    first_generation(is_durable);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        _exit(child_end(is_durable, unlinks));
    }
    CHECK_INT(child, waitpid(child, &ended, 0));
    CHECK(WIFSIGNALED(ended) || WEXITSTATUS(ended) == 0);
    return WIFSIGNALED(ended);
}

static sherd_status reclaim_found(void *ctx, const sherdi_state_found *found)
{
    int         *count  = ctx;
    uint64_t     freed  = 0;
    sherd_status status = SHERD_E_STATE;

    CHECK(sherdi_state_found_is_empty(found));
    for (int i = 0; i < OPEN_TRIES && status == SHERD_E_STATE; i++) {
        status = sherdi_state_reclaim(found->path, rig_folders(), 2, &freed);
        if (status == SHERD_E_STATE) {
            test_check_contains(__FILE__, __LINE__, sherd_last_error(), "in use");
            pause_for(OPEN_PAUSE_NS);
        }
    }
    ++*count;
    return status;
}

/* Two sets of two stripes each, and the index after them. */
static void state_that_was_being_removed_is_gone_on_from_by_nobody(void)
{
    for (int is_durable = 0; is_durable < 2; is_durable++) {
        int unlinks = 0, found;

        for (; end_and_kill(is_durable, unlinks); unlinks++) {
            found = 0;
            CHECK_OK(sherdi_state_find(rig_folder("f0"), reclaim_found, &found));
            CHECK_INT(1, found);
            CHECK_INT(0, rig_folder_count(rig_folder("f0")) + rig_folder_count(rig_folder("f1")));
        }
        CHECK_INT(5, unlinks);
        CHECK_INT(0, rig_folder_count(rig_folder("f0")) + rig_folder_count(rig_folder("f1")));
    }
}
BOTH(state_that_was_being_removed_is_gone_on_from_by_nobody)

static const test_case cases[] = {
    CASES(state_survives_who_writes_it),
    CASES(state_that_was_being_removed_is_gone_on_from_by_nobody),
};

RUN_MAIN(cases)

/* The queue of transfers and its files, over both engines, when nothing goes wrong. */
#include "tests/offload/io_rig.h"

#include "offload/io_impl.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the queue ---- */

static void nobody_wake(sherdi_ioq *queue)
{
    (void)queue;
}

/* Takes the next request, which has to be one of `io`, at this page of it. */
static void request_check(sherdi_ioq *queue, const sherdi_io *io, size_t page)
{
    sherdi_request request;

    CHECK(sherdi_ioq_take(queue, &request));
    CHECK(request.io == io);
    CHECK_INT(io->offset_bytes + page * PAGE, request.offset_bytes);
}

/* Nobody takes requests but this test. */
static void queue_hands_out_reads_before_writes(void)
{
    const sherdi_ioq_ops    ops    = {.name = "nobody", .wake = nobody_wake};
    const sherdi_ioq_params params = {.request_bytes = PAGE, .depth = 1};
    static unsigned char    memory[2 * PAGE] __attribute__((aligned(PAGE)));
    sherdi_ioq              queue   = {0};
    sherdi_file             file    = {.queue = &queue, .num_stripes = 1, .granularity_bytes = 1};
    sherdi_io               ios[6]  = {0};
    sherdi_request          request = {0};

    sherdi_ioq_init(&queue, &ops, &params, rig_mem());
    for (int i = 0; i < 6; i++) {
        ios[i] = (sherdi_io){.file         = &file,
                             .is_write     = i == 0 || i == 1 || i == 4,
                             .memory       = memory,
                             .offset_bytes = (size_t)i * 2 * PAGE,
                             .len_bytes    = 2 * PAGE};
    }
    sherdi_io_start(&queue, &ios[0]); /* writes */
    sherdi_io_start(&queue, &ios[1]);
    request_check(&queue, &ios[0], 0);
    sherdi_io_start(&queue, &ios[2]); /* reads: after the write that was begun */
    sherdi_io_start(&queue, &ios[3]);
    sherdi_io_start(&queue, &ios[4]); /* a write: after all */
    request_check(&queue, &ios[0], 1);
    request_check(&queue, &ios[2], 0);
    sherdi_io_start(&queue, &ios[5]); /* a read: after the reads that wait */
    request_check(&queue, &ios[2], 1);
    for (size_t page = 0; page < 2; page++) {
        request_check(&queue, &ios[3], page);
    }
    for (size_t page = 0; page < 2; page++) {
        request_check(&queue, &ios[5], page);
    }
    for (size_t page = 0; page < 2; page++) {
        request_check(&queue, &ios[1], page);
    }
    for (size_t page = 0; page < 2; page++) {
        request_check(&queue, &ios[4], page);
    }
    CHECK(!sherdi_ioq_take(&queue, &request));
    CHECK(queue.first == NULL && queue.last == NULL);
    sherdi_ioq_fini(&queue);
}

static void queue_says_which_engine_it_is(void)
{
    sherdi_ioq *queue = rig_queue(PAGE, 2);

    CHECK(strcmp(sherdi_ioq_name(queue), rig_kind() == SHERDI_IOQ_URING ? "io_uring" : "threads") ==
          0);
    sherdi_ioq_destroy(queue);
    sherdi_ioq_destroy(NULL);
}
BOTH(queue_says_which_engine_it_is)

static void queue_auto_follows_the_environment(void)
{
    const sherdi_ioq_params params = {.request_bytes = 1, .depth = 1};
    sherdi_ioq             *queue  = NULL;

    rig_begin(SHERDI_IOQ_THREADS);
    CHECK(setenv("SHERD_IO", "threads", 1) == 0);
    CHECK_OK(sherdi_ioq_create(&params, rig_mem(), &queue));
    CHECK(strcmp(sherdi_ioq_name(queue), "threads") == 0);
    sherdi_ioq_destroy(queue);
    CHECK(setenv("SHERD_IO", "telepathy", 1) == 0);
    CHECK_STATUS(SHERD_E_INVAL, sherdi_ioq_create(&params, rig_mem(), &queue));
    CHECK_ERROR_SAYS("telepathy");
    CHECK(unsetenv("SHERD_IO") == 0);
    CHECK_OK(sherdi_ioq_create(&params, rig_mem(), &queue));
    sherdi_ioq_destroy(queue);
    rig_end();
}

static void queue_leaves_no_descriptor(void)
{
    int          before = rig_descriptors();
    sherdi_ioq  *queue  = rig_queue(PAGE, 4);
    sherdi_file *file   = rig_file(queue, "descriptors", 3, 16 * PAGE, PAGE);

    CHECK(rig_descriptors() >= before + 3);
    sherdi_file_close(file, 1);
    sherdi_ioq_destroy(queue);
    CHECK_INT(before, rig_descriptors());
}
BOTH(queue_leaves_no_descriptor)

static volatile sig_atomic_t was_signalled;

static void signal_note(int number)
{
    (void)number;
    was_signalled = 1;
}

/* Blocked here, it stays pending when no other thread takes it. */
static void queue_threads_take_no_signals(void)
{
    sherdi_ioq      *queue = rig_queue(PAGE, 4);
    struct sigaction note  = {.sa_handler = signal_note};
    struct sigaction old;
    sigset_t         mask, before, pending;

    CHECK(sigaction(SIGUSR1, &note, &old) == 0);
    (void)sigemptyset(&mask);
    (void)sigaddset(&mask, SIGUSR1);
    (void)pthread_sigmask(SIG_BLOCK, &mask, &before);
    (void)kill(getpid(), SIGUSR1);
    (void)sigpending(&pending);
    CHECK(sigismember(&pending, SIGUSR1) == 1);
    CHECK(!was_signalled);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    CHECK(was_signalled);
    was_signalled = 0;
    CHECK(sigaction(SIGUSR1, &old, NULL) == 0);
    sherdi_ioq_destroy(queue);
}
BOTH(queue_threads_take_no_signals)

static void queue_counts_what_it_moved(void)
{
    sherdi_ioq    *queue  = rig_queue(2 * PAGE, 3);
    sherdi_file   *file   = rig_file(queue, "traffic", 2, 16 * PAGE, PAGE);
    unsigned char *memory = rig_memory(16 * PAGE);

    CHECK_OK(rig_write(queue, file, memory, 0, 16 * PAGE));
    CHECK_OK(rig_read(queue, file, memory, 3 * PAGE, 5 * PAGE));
    CHECK_INT(16 * PAGE, sherdi_ioq_traffic(queue).written_bytes);
    CHECK_INT(5 * PAGE, sherdi_ioq_traffic(queue).read_bytes);
    sherdi_free(memory);
    sherdi_file_close(file, 1);
    sherdi_ioq_destroy(queue);
}
BOTH(queue_counts_what_it_moved)

/* ---- transfers ---- */

#define REQUEST (4 * PAGE)

static void transfer_of_each_length_moves_that_much(void)
{
    static const size_t LENGTHS[] = {
        0, PAGE, REQUEST - PAGE, REQUEST, REQUEST + PAGE, 2 * REQUEST, 7 * REQUEST + 3 * PAGE,
    };
    const size_t   all    = 16 * REQUEST;
    sherdi_ioq    *queue  = rig_queue(REQUEST, 3);
    sherdi_file   *file   = rig_file(queue, "lengths", 1, all, 0);
    unsigned char *wrote  = rig_memory(all);
    unsigned char *got    = rig_memory(all);
    unsigned char *expect = rig_memory(all);

    for (size_t i = 0; i < sizeof(LENGTHS) / sizeof(LENGTHS[0]); i++) {
        const size_t offset = 3 * PAGE, len = LENGTHS[i];

        rig_fill(expect, all, i);
        CHECK_OK(rig_write(queue, file, expect, 0, all));
        rig_fill(wrote, all, 100 + i);
        CHECK_OK(rig_write(queue, file, wrote, offset, len));
        memcpy(expect + offset, wrote, len);
        CHECK_OK(rig_read(queue, file, got, 0, all));
        CHECK_BYTES_EQUAL(expect, got, all);
        /* A short read leaves what lies behind it alone. */
        rig_fill(got, all, 200 + i);
        memcpy(wrote, got, all);
        CHECK_OK(rig_read(queue, file, got, offset, len));
        memcpy(wrote, expect + offset, len);
        CHECK_BYTES_EQUAL(wrote, got, all);
    }
    sherdi_free(wrote);
    sherdi_free(got);
    sherdi_free(expect);
    sherdi_file_close(file, 1);
    sherdi_ioq_destroy(queue);
}
BOTH(transfer_of_each_length_moves_that_much)

static void transfer_never_started_is_done(void)
{
    sherdi_ioq    *queue  = rig_queue(PAGE, 1);
    sherdi_file   *file   = rig_file(queue, "done", 1, PAGE, 0);
    unsigned char *memory = rig_memory(PAGE);
    sherdi_io      io     = {.file = file, .memory = memory, .len_bytes = PAGE};

    CHECK(sherdi_io_is_done(queue, &io));
    CHECK_OK(sherdi_io_wait(queue, &io));
    sherdi_io_start(queue, &io);
    while (!sherdi_io_is_done(queue, &io)) {
        (void)sched_yield();
    }
    CHECK_OK(sherdi_io_wait(queue, &io));
    CHECK(sherdi_io_is_done(queue, &io));
    sherdi_io_start(queue, &io); /* again, with the same storage */
    CHECK_OK(sherdi_io_wait(queue, &io));
    sherdi_free(memory);
    sherdi_file_close(file, 1);
    sherdi_ioq_destroy(queue);
}
BOTH(transfer_never_started_is_done)

static void transfer_allocates_nothing(void)
{
    sherdi_ioq    *queue  = rig_queue(PAGE, 4);
    sherdi_file   *file   = rig_file(queue, "quiet", 2, 32 * PAGE, 3 * PAGE);
    unsigned char *memory = rig_memory(32 * PAGE);
    size_t         before = atomic_load(&rig_mem()->allocations);

    sherdi_mem_forbid_begin();
    CHECK_OK(rig_write(queue, file, memory, 0, 32 * PAGE));
    CHECK_OK(rig_read(queue, file, memory, 0, 32 * PAGE));
    sherdi_mem_forbid_end();
    CHECK_INT(before, atomic_load(&rig_mem()->allocations));
    sherdi_free(memory);
    sherdi_file_close(file, 1);
    sherdi_ioq_destroy(queue);
}
BOTH(transfer_allocates_nothing)

/* Blocks of random lengths lie one after another; in each round every block is either written anew
 * or read, all of them at once, in a random order. `pinned` of the memory is registered. */
#define MANY 48

typedef struct many {
    size_t         offset[MANY], len[MANY];
    size_t         all_bytes;
    sherdi_io      ios[MANY];
    unsigned char *truth;  /* what the file holds */
    unsigned char *memory; /* each block at its own offset */
} many;

static void many_plan(many *plan, uint64_t *seed)
{
    plan->all_bytes = 0;
    for (int i = 0; i < MANY; i++) {
        plan->offset[i] = plan->all_bytes;
        plan->len[i]    = test_random(seed) % 23 * PAGE;
        plan->all_bytes += plan->len[i];
    }
}

static void many_round(many *plan, sherdi_ioq *queue, sherdi_file *file, uint64_t *seed)
{
    int first = (int)(test_random(seed) % MANY);

    for (int turn = 0; turn < MANY; turn++) {
        int            i      = (first + turn * 5) % MANY; /* 5 and 48 share no factor */
        sherdi_io     *io     = &plan->ios[i];
        unsigned char *memory = plan->memory + plan->offset[i];

        *io = (sherdi_io){
            .file         = file,
            .is_write     = (int)(test_random(seed) % 2),
            .memory       = memory,
            .offset_bytes = plan->offset[i],
            .len_bytes    = plan->len[i],
            .what         = "block",
            .number       = (size_t)i,
        };
        rig_fill(memory, plan->len[i], test_random(seed));
        if (io->is_write) {
            memcpy(plan->truth + plan->offset[i], memory, plan->len[i]);
        }
        sherdi_io_start(queue, io);
    }
    for (int i = 0; i < MANY; i++) {
        CHECK_OK(sherdi_io_wait(queue, &plan->ios[i]));
    }
    CHECK_BYTES_EQUAL(plan->truth, plan->memory, plan->all_bytes);
}

static void many_run(int num_folders, size_t stripe_bytes, size_t request_bytes, int depth,
                     int pinned_halves)
{
    uint64_t     seed  = stripe_bytes + request_bytes + (size_t)depth;
    sherdi_ioq  *queue = rig_queue(request_bytes, depth);
    sherdi_file *file;
    many         plan;
    struct iovec pinned;
    size_t       pinned_bytes;

    many_plan(&plan, &seed);
    plan.truth  = rig_memory(plan.all_bytes);
    plan.memory = rig_memory(plan.all_bytes);
    pinned      = (struct iovec){.iov_base = plan.memory,
                                 .iov_len  = plan.all_bytes / 2 * (size_t)pinned_halves};
    sherdi_ioq_register(queue, &pinned, 1, &pinned_bytes);
    CHECK(pinned_bytes == 0 || pinned_bytes == pinned.iov_len);
    file = rig_file(queue, "many", num_folders, plan.all_bytes, stripe_bytes);
    for (int i = 0; i < 6; i++) {
        many_round(&plan, queue, file, &seed);
    }
    sherdi_file_close(file, 1);
    sherdi_ioq_destroy(queue);
    sherdi_free(plan.truth);
    sherdi_free(plan.memory);
}

static void transfer_many_at_once_move_the_right_bytes(void)
{
    many_run(1, 0, PAGE, 1, 0);
    many_run(1, 0, 3 * PAGE, 4, 2);
    many_run(1, 0, 64 * PAGE, 32, 1);
    many_run(1, 0, 1, 7, 2); /* rounded up to a page */
}
BOTH(transfer_many_at_once_move_the_right_bytes)

static void transfer_over_stripes_moves_the_right_bytes(void)
{
    many_run(2, PAGE, 4 * PAGE, 5, 2);
    many_run(2, 5 * PAGE, 3 * PAGE, 16, 1);
    many_run(3, 3 * PAGE, 64 * PAGE, 3, 0);
    many_run(3, 7 * PAGE, PAGE, 1, 2);
    many_run(3, 4096 * PAGE, 2 * PAGE, 8, 1); /* all in the first */
}
BOTH(transfer_over_stripes_moves_the_right_bytes)

typedef struct crowd {
    sherdi_ioq  *queue;
    sherdi_file *files[3];
} crowd;

static void crowd_member(int rank, void *ctx)
{
    crowd         *all   = ctx;
    unsigned char *wrote = rig_memory(40 * PAGE);
    unsigned char *got   = rig_memory(40 * PAGE);

    for (uint64_t i = 0; i < 20; i++) {
        rig_fill(wrote, 40 * PAGE, i * 3 + (uint64_t)rank);
        CHECK_OK(rig_write(all->queue, all->files[rank], wrote, 0, 40 * PAGE));
        CHECK_OK(rig_read(all->queue, all->files[rank], got, 0, 40 * PAGE));
        CHECK_BYTES_EQUAL(wrote, got, 40 * PAGE);
    }
    sherdi_free(wrote);
    sherdi_free(got);
}

static void transfers_of_several_threads_share_a_queue(void)
{
    crowd all = {.queue = rig_queue(7 * PAGE, 4)};

    all.files[0] = rig_file(all.queue, "a", 1, 40 * PAGE, 0);
    all.files[1] = rig_file(all.queue, "b", 2, 40 * PAGE, PAGE);
    all.files[2] = rig_file(all.queue, "c", 3, 40 * PAGE, 3 * PAGE);
    test_threads(3, crowd_member, &all);
    for (int i = 0; i < 3; i++) {
        sherdi_file_close(all.files[i], 1);
    }
    sherdi_ioq_destroy(all.queue);
}
BOTH(transfers_of_several_threads_share_a_queue)

/* More files than the ring has room to register. */
static void transfer_over_many_files_finds_each(void)
{
    enum { FILES = 70 };
    sherdi_ioq    *queue = rig_queue(2 * PAGE, 8);
    unsigned char *wrote = rig_memory(FILES * 4 * PAGE);
    unsigned char *got   = rig_memory(FILES * 4 * PAGE);
    sherdi_file   *files[FILES];
    sherdi_io      ios[FILES];

    rig_fill(wrote, FILES * 4 * PAGE, 3);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < FILES; i++) {
            char name[32];

            (void)snprintf(name, sizeof(name), "file-%d", i);
            if (pass == 0) {
                files[i] = rig_file(queue, name, 1, 4 * PAGE, 0);
            }
            ios[i] = (sherdi_io){
                .file      = files[i],
                .is_write  = pass == 0,
                .memory    = (pass == 0 ? wrote : got) + (size_t)i * 4 * PAGE,
                .len_bytes = 4 * PAGE,
            };
            sherdi_io_start(queue, &ios[i]);
        }
        for (int i = 0; i < FILES; i++) {
            CHECK_OK(sherdi_io_wait(queue, &ios[i]));
        }
    }
    CHECK_BYTES_EQUAL(wrote, got, FILES * 4 * PAGE);
    for (int i = 0; i < FILES; i++) {
        sherdi_file_close(files[i], 1);
    }
    sherdi_free(wrote);
    sherdi_free(got);
    sherdi_ioq_destroy(queue);
}
BOTH(transfer_over_many_files_finds_each)

/* A registered range may be longer than the kernel's longest buffer. The range is long in addresses
 * only: one small portion of memory, mapped again and again. */
static void transfer_across_two_registered_buffers_works(void)
{
    const size_t   portion = (size_t)4 << 20, border = (size_t)1 << 30, all = border + portion;
    sherdi_ioq    *queue  = rig_queue(4 * PAGE, 4);
    sherdi_file   *file   = rig_file(queue, "border", 1, portion, 0);
    unsigned char *got    = rig_memory(portion);
    unsigned char *base   = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int            fd     = memfd_create("piece", MFD_CLOEXEC);
    size_t         pinned = 0;
    struct iovec   range  = {.iov_base = base, .iov_len = all};

    CHECK(base != MAP_FAILED && fd >= 0 && ftruncate(fd, (off_t)portion) == 0);
    for (size_t at = 0; at < all; at += portion) {
        CHECK(mmap(base + at, portion, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
              base + at);
    }
    sherdi_ioq_register(queue, &range, 1, &pinned);
    CHECK(pinned == all || pinned == 0);
    rig_fill(base, portion, 4);
    /* Half of it before the border, half after; the middle request lies on both sides. */
    CHECK_OK(rig_write(queue, file, base + border - portion / 2 + PAGE, 0, portion));
    CHECK_OK(rig_read(queue, file, got, 0, portion));
    CHECK_BYTES_EQUAL(base + border - portion / 2 + PAGE, got, portion);
    sherdi_file_close(file, 1);
    sherdi_ioq_destroy(queue);
    sherdi_free(got);
    (void)munmap(base, all);
    (void)close(fd);
}
BOTH(transfer_across_two_registered_buffers_works)

/* ---- files ---- */

static void check_stripe(const char *folder, const char *name, size_t size_bytes,
                         const unsigned char *want)
{
    char           path[256];
    struct stat    info;
    unsigned char *got = rig_memory(size_bytes);
    int            fd;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && fstat(fd, &info) == 0);
    CHECK_INT(size_bytes, info.st_size);
    CHECK_INT(0600, info.st_mode & 0777);
    CHECK_INT(size_bytes, read(fd, got, size_bytes));
    CHECK_BYTES_EQUAL(want, got, size_bytes);
    (void)close(fd);
    sherdi_free(got);
}

/* Seven and a half stripes of two pages: 0 3 6 | 1 4 7 | 2 5. */
static void file_stripes_lie_in_turn_in_the_folders(void)
{
    static const size_t ORDER[3][3] = {{0, 3, 6}, {1, 4, 7}, {2, 5, 0}};
    static const size_t SIZES[]     = {6 * PAGE, 5 * PAGE, 4 * PAGE};
    static const char  *NAMES[]     = {"turns", "turns.1", "turns.2"};
    sherdi_ioq         *queue       = rig_queue(8 * PAGE, 3);
    sherdi_file        *file        = rig_file(queue, "turns", 3, 15 * PAGE, 2 * PAGE);
    unsigned char      *wrote       = rig_memory(16 * PAGE);
    unsigned char      *want        = rig_memory(6 * PAGE);
    const char         *folders[]   = {rig_folder("f0"), rig_folder("f1"), rig_folder("f2")};

    rig_fill(wrote, 15 * PAGE, 9);
    CHECK_OK(rig_write(queue, file, wrote, 0, 15 * PAGE));
    CHECK_OK(sherdi_file_sync(file));
    CHECK(strncmp(sherdi_file_path(file), folders[0], strlen(folders[0])) == 0);
    for (int i = 0; i < 3; i++) {
        for (size_t k = 0; k < SIZES[i] / (2 * PAGE) + (SIZES[i] / PAGE) % 2; k++) {
            memcpy(want + 2 * k * PAGE, wrote + 2 * ORDER[i][k] * PAGE, 2 * PAGE);
        }
        check_stripe(folders[i], NAMES[i], SIZES[i], want);
    }
    sherdi_file_close(file, 1);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(0, rig_folder_count(folders[i]));
    }
    sherdi_free(wrote);
    sherdi_free(want);
    sherdi_ioq_destroy(queue);
}
BOTH(file_stripes_lie_in_turn_in_the_folders)

static void file_granularity_divides_the_alignment(void)
{
    sherdi_ioq  *queue = rig_queue(PAGE, 1);
    sherdi_file *file  = rig_file(queue, "grain", 2, PAGE, PAGE);
    size_t       grain = sherdi_file_granularity(file);

    CHECK(grain > 0 && SHERD_ALIGN_BYTES % grain == 0);
    sherdi_file_close(file, 1);
    sherdi_ioq_destroy(queue);
}
BOTH(file_granularity_divides_the_alignment)

static void file_opened_again_has_its_bytes(void)
{
    sherdi_ioq    *queue = rig_queue(2 * PAGE, 2);
    sherdi_file   *file  = rig_file(queue, "kept", 2, 9 * PAGE, PAGE);
    unsigned char *wrote = rig_memory(9 * PAGE);
    unsigned char *got   = rig_memory(9 * PAGE);

    rig_fill(wrote, 9 * PAGE, 11);
    CHECK_OK(rig_write(queue, file, wrote, 0, 9 * PAGE));
    sherdi_file_close(file, 0);
    CHECK_OK(rig_file_open(queue, "kept", 2, 9 * PAGE, PAGE, 0, &file));
    CHECK_OK(rig_read(queue, file, got, 0, 9 * PAGE));
    CHECK_BYTES_EQUAL(wrote, got, 9 * PAGE);
    sherdi_file_close(file, 1);
    sherdi_free(wrote);
    sherdi_free(got);
    sherdi_ioq_destroy(queue);
}
BOTH(file_opened_again_has_its_bytes)

static void file_that_exists_is_not_created(void)
{
    sherdi_ioq  *queue = rig_queue(PAGE, 1);
    sherdi_file *file  = rig_file(queue, "there", 1, PAGE, 0);
    sherdi_file *other = NULL;

    CHECK_STATUS(SHERD_E_IO, rig_file_open(queue, "there", 1, PAGE, 0, SHERDI_FILE_CREATE, &other));
    CHECK_ERROR_SAYS("already exists");
    CHECK(sherdi_file_is_linked(file)); /* and was left alone */
    sherdi_file_close(file, 1);
    CHECK_STATUS(SHERD_E_IO, rig_file_open(queue, "there", 1, PAGE, 0, 0, &other));
    CHECK_ERROR_SAYS("No such file");
    CHECK(other == NULL);
    sherdi_ioq_destroy(queue);
}
BOTH(file_that_exists_is_not_created)

static void file_in_a_missing_folder_says_so(void)
{
    sherdi_ioq              *queue     = rig_queue(PAGE, 1);
    int                      before    = rig_descriptors();
    size_t                   held      = sherdi_mem_held_all(rig_mem());
    const char              *folders[] = {rig_folder("f0"), "/nowhere/at/all"};
    const sherdi_file_params params    = {
           .folders        = folders,
           .num_folders    = 2,
           .name           = "lost",
           .capacity_bytes = 4 * PAGE,
           .stripe_bytes   = PAGE,
           .flags          = SHERDI_FILE_CREATE,
    };
    sherdi_file *file = NULL;

    CHECK_STATUS(SHERD_E_IO, sherdi_file_open(queue, &params, &file));
    CHECK_ERROR_SAYS("folder /nowhere/at/all does not exist; create it");
    CHECK(file == NULL);
    CHECK_INT(0, rig_folder_count(folders[0])); /* its first stripe went again */
    CHECK_INT(before, rig_descriptors());
    CHECK_INT(held, sherdi_mem_held_all(rig_mem()));
    sherdi_ioq_destroy(queue);
}
BOTH(file_in_a_missing_folder_says_so)

static void file_with_odd_stripes_is_refused(void)
{
    sherdi_ioq  *queue = rig_queue(PAGE, 1);
    sherdi_file *file  = NULL;

    CHECK_STATUS(SHERD_E_INVAL,
                 rig_file_open(queue, "odd", 2, PAGE, 1000, SHERDI_FILE_CREATE, &file));
    CHECK_ERROR_SAYS("1000");
    CHECK_STATUS(SHERD_E_INVAL, rig_file_open(queue, "odd", 2, PAGE, 0, SHERDI_FILE_CREATE, &file));
    sherdi_ioq_destroy(queue);
}
BOTH(file_with_odd_stripes_is_refused)

static void file_of_scratch_has_no_name(void)
{
    sherdi_ioq    *queue  = rig_queue(PAGE, 2);
    unsigned char *wrote  = rig_memory(8 * PAGE);
    unsigned char *got    = rig_memory(8 * PAGE);
    sherdi_file   *file   = NULL;
    const char    *folder = rig_folder("f0");

    CHECK_OK(rig_file_open(queue, "scratch", 2, 8 * PAGE, PAGE,
                           SHERDI_FILE_CREATE | SHERDI_FILE_SCRATCH, &file));
    CHECK_INT(0, rig_folder_count(folder));
    CHECK(sherdi_file_is_linked(file));
    rig_fill(wrote, 8 * PAGE, 2);
    CHECK_OK(rig_write(queue, file, wrote, 0, 8 * PAGE));
    CHECK_OK(rig_read(queue, file, got, 0, 8 * PAGE));
    CHECK_BYTES_EQUAL(wrote, got, 8 * PAGE);
    CHECK_OK(sherdi_file_sync(file));
    sherdi_file_close(file, 1);
    sherdi_free(wrote);
    sherdi_free(got);
    sherdi_ioq_destroy(queue);
}
BOTH(file_of_scratch_has_no_name)

static void file_that_is_open_is_locked(void)
{
    sherdi_ioq  *queue = rig_queue(PAGE, 1);
    sherdi_file *file  = rig_file(queue, "locked", 2, 4 * PAGE, PAGE);
    sherdi_file *other = NULL;

    CHECK_STATUS(SHERD_E_STATE, rig_file_open(queue, "locked", 2, 4 * PAGE, PAGE, 0, &other));
    CHECK_ERROR_SAYS("in use");
    CHECK_ERROR_SAYS(sherdi_file_path(file));
    sherdi_file_close(file, 0);
    CHECK_OK(rig_file_open(queue, "locked", 2, 4 * PAGE, PAGE, 0, &other));
    sherdi_file_close(other, 1);
    sherdi_ioq_destroy(queue);
}
BOTH(file_that_is_open_is_locked)

/* A child that holds the lock until it is asked to end. */
static void file_locked_by_another_process_is_refused(void)
{
    sherdi_ioq  *queue = rig_queue(PAGE, 1);
    sherdi_file *file  = rig_file(queue, "shared", 1, PAGE, 0);
    char         path[256];
    int          there[2], back[2];
    char         byte = 0;
    pid_t        child;

    (void)snprintf(path, sizeof(path), "%s", sherdi_file_path(file));
    sherdi_file_close(file, 0);
    CHECK(pipe(there) == 0 && pipe(back) == 0);
    child = fork();
    if (child == 0) {
        int fd = open(path, O_RDWR);

        (void)close(there[1]);
        byte = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
        if (write(back[1], &byte, 1) != 1 || read(there[0], &byte, 1) < 0) {
            _exit(1);
        }
        _exit(0);
    }
    CHECK_INT(1, read(back[0], &byte, 1));
    CHECK_INT(1, byte);
    CHECK_STATUS(SHERD_E_STATE, rig_file_open(queue, "shared", 1, PAGE, 0, 0, &file));
    (void)close(there[1]);
    CHECK_INT(child, waitpid(child, NULL, 0));
    CHECK_OK(rig_file_open(queue, "shared", 1, PAGE, 0, 0, &file));
    sherdi_file_close(file, 1);
    sherdi_ioq_destroy(queue);
    (void)close(there[0]);
    (void)close(back[0]);
    (void)close(back[1]);
}
BOTH(file_locked_by_another_process_is_refused)

/* Its copy of the descriptor must not keep the file locked. */
static void file_closed_while_a_child_lives_is_free(void)
{
    sherdi_ioq  *queue = rig_queue(PAGE, 1);
    sherdi_file *file  = rig_file(queue, "child", 1, PAGE, 0);
    int          there[2];
    char         byte;
    pid_t        child;

    CHECK(pipe(there) == 0);
    child = fork();
    if (child == 0) {
        (void)close(there[1]);
        _exit(read(there[0], &byte, 1) < 0);
    }
    sherdi_file_close(file, 0);
    CHECK_OK(rig_file_open(queue, "child", 1, PAGE, 0, 0, &file));
    (void)close(there[1]);
    CHECK_INT(child, waitpid(child, NULL, 0));
    sherdi_file_close(file, 1);
    sherdi_ioq_destroy(queue);
    (void)close(there[0]);
}
BOTH(file_closed_while_a_child_lives_is_free)

static void file_that_was_deleted_is_not_linked(void)
{
    sherdi_ioq    *queue  = rig_queue(PAGE, 1);
    sherdi_file   *file   = rig_file(queue, "gone", 2, 4 * PAGE, PAGE);
    unsigned char *memory = rig_memory(4 * PAGE);
    char           path[256];

    CHECK(sherdi_file_is_linked(file));
    (void)snprintf(path, sizeof(path), "%s/gone.1", rig_folder("f1"));
    CHECK(unlink(path) == 0);
    CHECK(!sherdi_file_is_linked(file));
    CHECK_OK(rig_write(queue, file, memory, 0, 4 * PAGE)); /* it still is there for us */
    sherdi_file_close(file, 1);
    CHECK_INT(0, rig_folder_count(rig_folder("f0")));
    sherdi_free(memory);
    sherdi_ioq_destroy(queue);
}
BOTH(file_that_was_deleted_is_not_linked)

static void file_of_somebody_else_is_not_removed(void)
{
    sherdi_ioq  *queue = rig_queue(PAGE, 1);
    sherdi_file *file  = rig_file(queue, "mine", 1, PAGE, 0);
    char         path[256];
    int          fd;

    (void)snprintf(path, sizeof(path), "%s", sherdi_file_path(file));
    CHECK(unlink(path) == 0);
    fd = open(path, O_CREAT | O_EXCL | O_RDWR, 0600);
    CHECK(fd >= 0);
    sherdi_file_close(file, 1);
    CHECK(access(path, F_OK) == 0);
    (void)close(fd);
    CHECK(unlink(path) == 0);
    sherdi_ioq_destroy(queue);
}
BOTH(file_of_somebody_else_is_not_removed)

static const test_case CASE_LIST[] = {
    CASE(queue_hands_out_reads_before_writes),
    CASES(queue_says_which_engine_it_is),
    CASE(queue_auto_follows_the_environment),
    CASES(queue_leaves_no_descriptor),
    CASES(queue_threads_take_no_signals),
    CASES(queue_counts_what_it_moved),
    CASES(transfer_of_each_length_moves_that_much),
    CASES(transfer_never_started_is_done),
    CASES(transfer_allocates_nothing),
    CASES(transfer_many_at_once_move_the_right_bytes),
    CASES(transfer_over_stripes_moves_the_right_bytes),
    CASES(transfers_of_several_threads_share_a_queue),
    CASES(transfer_over_many_files_finds_each),
    CASES(transfer_across_two_registered_buffers_works),
    CASES(file_stripes_lie_in_turn_in_the_folders),
    CASES(file_granularity_divides_the_alignment),
    CASES(file_opened_again_has_its_bytes),
    CASES(file_that_exists_is_not_created),
    CASES(file_in_a_missing_folder_says_so),
    CASES(file_with_odd_stripes_is_refused),
    CASES(file_of_scratch_has_no_name),
    CASES(file_that_is_open_is_locked),
    CASES(file_locked_by_another_process_is_refused),
    CASES(file_closed_while_a_child_lives_is_free),
    CASES(file_that_was_deleted_is_not_linked),
    CASES(file_of_somebody_else_is_not_removed),
};
RUN_MAIN(CASE_LIST)

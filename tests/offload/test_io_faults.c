/* The queue of transfers and its files, over both engines, when things go wrong: at every request,
 * at every allocation, and by what file systems and limits really do. */
#include "tests/offload/fault_uring.h"
#include "tests/offload/io_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- the n-th request ---- */

/* Three transfers at once, eight requests each, over two folders: writes, then reads. */
#define PARTS      3
#define PART_BYTES (8 * PAGE)

typedef struct trip {
    sherdi_ioq    *queue;
    sherdi_file   *file;
    unsigned char *wrote, *got; /* [PARTS * PART_BYTES] */
    sherdi_io      ios[PARTS];
} trip;

static trip trip_begin(void)
{
    trip         t = {.queue = rig_queue(PAGE, 3)};
    struct iovec range;
    size_t       pinned_bytes;

    t.file  = rig_file(t.queue, "trip", 2, PARTS * PART_BYTES, 3 * PAGE);
    t.wrote = rig_memory(PARTS * PART_BYTES);
    t.got   = rig_memory(PARTS * PART_BYTES);
    range   = (struct iovec){.iov_base = t.wrote, .iov_len = PARTS * PART_BYTES};
    sherdi_ioq_register(t.queue, &range, 1, &pinned_bytes);
    return t;
}

static void trip_end(trip *t)
{
    sherdi_file_close(t->file, 1);
    sherdi_ioq_destroy(t->queue);
    sherdi_free(t->wrote);
    sherdi_free(t->got);
}

/* Returns how many of the transfers failed; each that did must say so in full. */
static int trip_half(trip *t, int is_write, const char *cause)
{
    int failed = 0;

    for (int i = 0; i < PARTS; i++) {
        t->ios[i] = (sherdi_io){
            .file         = t->file,
            .is_write     = is_write,
            .memory       = (is_write ? t->wrote : t->got) + (size_t)i * PART_BYTES,
            .offset_bytes = (size_t)i * PART_BYTES,
            .len_bytes    = PART_BYTES,
            .what         = "state",
            .number       = (size_t)i,
        };
        sherdi_io_start(t->queue, &t->ios[i]);
    }
    for (int i = 0; i < PARTS; i++) {
        char name[64];

        if (sherdi_io_wait(t->queue, &t->ios[i]) == SHERD_OK) {
            continue;
        }
        failed++;
        (void)snprintf(name, sizeof(name), "%s state %d failed at byte ",
                       is_write ? "writing" : "reading", i);
        CHECK_ERROR_SAYS(name);
        CHECK_ERROR_SAYS("/trip");
        CHECK_ERROR_SAYS(cause);
    }
    return failed;
}

static void trip_check_clean(trip *t)
{
    fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
    rig_fill(t->wrote, PARTS * PART_BYTES, 77);
    CHECK_INT(0, trip_half(t, 1, ""));
    CHECK_INT(0, trip_half(t, 0, ""));
    CHECK_BYTES_EQUAL(t->wrote, t->got, PARTS * PART_BYTES);
}

static void skip_unless_injectable(void)
{
    if (rig_kind() == SHERDI_IOQ_URING && !fault_can_inject()) {
        test_skip("this kernel cannot be told how an entry of a ring completes");
    }
}

static void request_nth_error_fails_its_transfer_alone(void)
{
    trip t;
    int  hits;
    int  rounds = 0;

    skip_unless_injectable();
    t = trip_begin();
    do {
        int failed;

        fault_arm(FAULT_EIO, FAULT_ANY, ++rounds, 1);
        rig_fill(t.wrote, PARTS * PART_BYTES, (uint64_t)rounds);
        failed = trip_half(&t, 1, "Input/output error");
        failed += trip_half(&t, 0, "Input/output error");
        hits = fault_hits();
        CHECK_INT(hits, failed);
        trip_check_clean(&t);
    } while (hits > 0);
    CHECK_INT(2 * PARTS * 8 + 1, rounds);
    trip_end(&t);
}
BOTH(request_nth_error_fails_its_transfer_alone)

static void requests_that_all_fail_fail_all(void)
{
    trip t;

    skip_unless_injectable();
    t = trip_begin();
    fault_arm(FAULT_ENOSPC, FAULT_WRITES, 1, 0);
    CHECK_INT(PARTS, trip_half(&t, 1, "No space left on device; free space there"));
    CHECK_INT(0, trip_half(&t, 0, ""));
    trip_check_clean(&t);
    trip_end(&t);
}
BOTH(requests_that_all_fail_fail_all)

/* kind: short, EINTR, EAGAIN at each request, once and three times in a row. */
static void nth_is_made_again(fault_kind kind, size_t request_bytes)
{
    trip t = {0};
    int  hits, nth = 0;

    t.queue = rig_queue(request_bytes, 3);
    t.file  = rig_file(t.queue, "trip", 2, PARTS * PART_BYTES, 5 * PAGE);
    t.wrote = rig_memory(PARTS * PART_BYTES);
    t.got   = rig_memory(PARTS * PART_BYTES);
    do {
        nth++;
        hits = 0;
        for (int count = 1; count <= 3; count += 2) {
            sherdi_io_traffic before = sherdi_ioq_traffic(t.queue);

            fault_arm(kind, FAULT_ANY, nth, count);
            rig_fill(t.wrote, PARTS * PART_BYTES, (uint64_t)nth);
            CHECK_INT(0, trip_half(&t, 1, ""));
            CHECK_INT(0, trip_half(&t, 0, ""));
            CHECK_BYTES_EQUAL(t.wrote, t.got, PARTS * PART_BYTES);
            CHECK_INT(PARTS * PART_BYTES,
                      sherdi_ioq_traffic(t.queue).written_bytes - before.written_bytes);
            CHECK_INT(PARTS * PART_BYTES,
                      sherdi_ioq_traffic(t.queue).read_bytes - before.read_bytes);
            hits += fault_hits();
        }
    } while (hits > 0);
    CHECK(nth > PARTS);
    trip_end(&t);
}

static void request_nth_short_is_resumed(void)
{
    nth_is_made_again(FAULT_SHORT, 4 * PAGE);
}
BOTH(request_nth_short_is_resumed)

static void request_nth_interrupted_is_made_again(void)
{
    skip_unless_injectable();
    nth_is_made_again(FAULT_EINTR, 4 * PAGE);
    nth_is_made_again(FAULT_EAGAIN, 4 * PAGE);
}
BOTH(request_nth_interrupted_is_made_again)

/* It gives up in the end. */
static void request_refused_for_ever_fails(void)
{
    trip t;

    skip_unless_injectable();
    t = trip_begin();
    fault_arm(FAULT_EAGAIN, FAULT_READS, 1, 0);
    CHECK_STATUS(SHERD_E_IO, rig_read(t.queue, t.file, t.got, 0, PART_BYTES));
    CHECK_ERROR_SAYS("Resource temporarily unavailable");
    trip_check_clean(&t);
    trip_end(&t);
}
BOTH(request_refused_for_ever_fails)

static void uring_nth_submission_refused_is_made_again(void)
{
    trip t;
    int  hits, nth = 0;

    rig_begin(SHERDI_IOQ_URING);
    t = trip_begin();
    do {
        fault_arm(FAULT_BUSY, FAULT_ANY, ++nth, 3);
        rig_fill(t.wrote, PARTS * PART_BYTES, (uint64_t)nth);
        CHECK_INT(0, trip_half(&t, 1, ""));
        CHECK_INT(0, trip_half(&t, 0, ""));
        CHECK_BYTES_EQUAL(t.wrote, t.got, PARTS * PART_BYTES);
        hits = fault_hits();
    } while (hits > 0 && nth < 60);
    CHECK(nth > 2);
    trip_end(&t);
    rig_end();
}

/* The ring itself fails: every transfer ends, now and later, and the queue goes without a trace. */
static void uring_nth_submission_broken_ends_all(void)
{
    int broken = 1;

    rig_begin(SHERDI_IOQ_URING);
    for (int nth = 1; broken; nth++) {
        trip t = trip_begin();
        int  failed;

        fault_arm(FAULT_RING, FAULT_ANY, nth, 1);
        failed = trip_half(&t, 1, "Input/output error");
        broken = fault_hits() > 0;
        failed += trip_half(&t, 0, "Input/output error");
        broken = broken || fault_hits() > 0;
        fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
        if (broken && failed > 0) {
            CHECK_INT(PARTS, trip_half(&t, 1, "Input/output error"));
            CHECK(strstr(rig_log(), "io_uring takes no more requests") != NULL);
        }
        trip_end(&t);
        CHECK(nth < 100);
    }
    rig_end();
}

/* ---- the n-th allocation ---- */

static void allocation_nth_failing_leaves_no_queue(void)
{
    const sherdi_ioq_params params = {.kind = rig_kind(), .request_bytes = PAGE, .depth = 2};
    sherdi_ioq             *queue  = NULL;
    int                     before = rig_descriptors();
    size_t                  nth    = 0;
    sherd_status            status;

    do {
        (void)sherdi_mem_fail_nth(++nth);
        status = sherdi_ioq_create(&params, rig_mem(), &queue);
        (void)sherdi_mem_fail_nth(0);
        if (status != SHERD_OK) {
            CHECK_STATUS(SHERD_E_NOMEM, status);
            CHECK_INT(0, sherdi_mem_held_all(rig_mem()));
            CHECK_INT(before, rig_descriptors());
        }
    } while (status != SHERD_OK);
    CHECK(nth > 2);
    sherdi_ioq_destroy(queue);
}
BOTH(allocation_nth_failing_leaves_no_queue)

static void allocation_nth_failing_leaves_no_file(void)
{
    sherdi_ioq  *queue  = rig_queue(PAGE, 2);
    sherdi_file *file   = NULL;
    int          before = rig_descriptors();
    size_t       held   = sherdi_mem_held_all(rig_mem());
    size_t       nth    = 0;
    sherd_status status;

    do {
        (void)sherdi_mem_fail_nth(++nth);
        status = rig_file_open(queue, "half", 3, 9 * PAGE, PAGE, SHERDI_FILE_CREATE, &file);
        (void)sherdi_mem_fail_nth(0);
        if (status != SHERD_OK) {
            CHECK_STATUS(SHERD_E_NOMEM, status);
            CHECK_INT(held, sherdi_mem_held_all(rig_mem()));
            CHECK_INT(before, rig_descriptors());
            CHECK_INT(0, rig_folder_count(rig_folder("f0")));
            CHECK_INT(0, rig_folder_count(rig_folder("f1")));
        }
    } while (status != SHERD_OK);
    CHECK_INT(6, nth); /* handle, table, three paths */
    sherdi_file_close(file, 1);
    sherdi_ioq_destroy(queue);
}
BOTH(allocation_nth_failing_leaves_no_file)

static void allocation_failing_leaves_memory_unregistered(void)
{
    sherdi_ioq    *queue  = rig_queue(PAGE, 2);
    unsigned char *memory = rig_memory(4 * PAGE);
    struct iovec   range  = {.iov_base = memory, .iov_len = 4 * PAGE};
    size_t         pinned = 1;

    (void)sherdi_mem_fail_nth(1);
    sherdi_ioq_register(queue, &range, 1, &pinned);
    (void)sherdi_mem_fail_nth(0);
    CHECK_INT(0, pinned);
    sherdi_free(memory);
    sherdi_ioq_destroy(queue);
}
BOTH(allocation_failing_leaves_memory_unregistered)

/* ---- files that others change ---- */

static void file_cut_short_is_told(size_t left_bytes)
{
    trip t = trip_begin();
    char path[256];

    (void)snprintf(path, sizeof(path), "%s", sherdi_file_path(t.file));
    CHECK_INT(0, trip_half(&t, 1, ""));
    CHECK(truncate(path, (off_t)left_bytes) == 0);
    CHECK_OK(rig_read(t.queue, t.file, t.got, 0, 2 * PAGE)); /* before the end */
    CHECK_STATUS(SHERD_E_IO, rig_read(t.queue, t.file, t.got, 2 * PAGE, PAGE));
    CHECK_ERROR_SAYS("reading state 17 failed at byte 8192 of ");
    CHECK_ERROR_SAYS("the file ends before");
    CHECK_STATUS(SHERD_E_IO, rig_read(t.queue, t.file, t.got, 0, PARTS * PART_BYTES));
    CHECK_ERROR_SAYS("the file ends before");
    trip_check_clean(&t); /* writing makes it whole again */
    trip_end(&t);
}

static void file_cut_short_fails_the_read(void)
{
    file_cut_short_is_told(2 * PAGE);
    file_cut_short_is_told(2 * PAGE + 100);
}
BOTH(file_cut_short_fails_the_read)

/* ---- limits ---- */

/* SIGXFSZ, unhandled, would end this program. */
static void file_limit_is_a_sentence(void)
{
    sherdi_ioq    *queue  = rig_queue(4 * PAGE, 2);
    sherdi_file   *file   = rig_file(queue, "limit", 1, 16 * PAGE, 0);
    sherdi_file   *other  = NULL;
    unsigned char *memory = rig_memory(16 * PAGE);
    struct rlimit  before, limit;

    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    limit          = before;
    limit.rlim_cur = 6 * PAGE; /* in the middle of the second request */
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK_STATUS(SHERD_E_IO, rig_write(queue, file, memory, 0, 16 * PAGE));
    CHECK_ERROR_SAYS("File too large; raise the limit");
    CHECK_OK(rig_write(queue, file, memory, 0, 4 * PAGE));
    CHECK_STATUS(SHERD_E_IO,
                 rig_file_open(queue, "over", 2, 32 * PAGE, PAGE, SHERDI_FILE_CREATE, &other));
    CHECK_ERROR_SAYS("ulimit -f");
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK_INT(1, rig_folder_count(rig_folder("f0")));
    CHECK_INT(0, rig_folder_count(rig_folder("f1")));
    sherdi_free(memory);
    sherdi_file_close(file, 1);
    sherdi_ioq_destroy(queue);
}
BOTH(file_limit_is_a_sentence)

/* Of this thread alone. */
static void capability_set(int number, int is_on)
{
    struct __user_cap_header_struct header  = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct   data[2] = {{0}};

    CHECK(syscall(SYS_capget, &header, data) == 0);
    if (is_on) {
        data[number / 32].effective |= data[number / 32].permitted & (1U << (number % 32));
    } else {
        data[number / 32].effective &= ~(1U << (number % 32));
    }
    CHECK(syscall(SYS_capset, &header, data) == 0);
}

static void memory_that_may_not_be_locked_still_transfers(void)
{
    const sherdi_ioq_params params = {.kind = rig_kind(), .request_bytes = PAGE, .depth = 2};
    sherdi_ioq             *queue  = NULL;
    unsigned char          *memory = rig_memory(512 * PAGE);
    unsigned char          *got    = rig_memory(512 * PAGE);
    struct iovec            range  = {.iov_base = memory, .iov_len = 512 * PAGE};
    size_t                  pinned = 1;
    sherdi_file            *file;
    struct rlimit           before, limit;
    sherd_status            status;

    CHECK(getrlimit(RLIMIT_MEMLOCK, &before) == 0);
    limit          = before;
    limit.rlim_cur = before.rlim_max < 64 * PAGE ? before.rlim_max : 64 * PAGE; /* for the ring */
    CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    capability_set(CAP_IPC_LOCK, 0);
    status = sherdi_ioq_create(&params, rig_mem(), &queue);
    if (status == SHERD_OK) {
        sherdi_ioq_register(queue, &range, 1, &pinned);
    }
    capability_set(CAP_IPC_LOCK, 1);
    CHECK(setrlimit(RLIMIT_MEMLOCK, &before) == 0);
    if (status == SHERD_E_NOTSUP) {
        sherdi_free(memory);
        sherdi_free(got);
        test_skip("%s", sherd_last_error());
    }
    CHECK_OK(status);
    CHECK_INT(0, pinned);
    if (rig_kind() == SHERDI_IOQ_URING) {
        CHECK(strstr(rig_log(), "ulimit -l") != NULL);
    }
    file = rig_file(queue, "unlocked", 1, 512 * PAGE, 0);
    rig_fill(memory, 64 * PAGE, 6);
    CHECK_OK(rig_write(queue, file, memory, 0, 512 * PAGE));
    CHECK_OK(rig_read(queue, file, got, 0, 512 * PAGE));
    CHECK_BYTES_EQUAL(memory, got, 512 * PAGE);
    sherdi_free(memory);
    sherdi_free(got);
    sherdi_file_close(file, 1);
    sherdi_ioq_destroy(queue);
}
BOTH(memory_that_may_not_be_locked_still_transfers)

/* From here on, on this thread, the kernel has no io_uring for us. */
static void uring_forbid(int error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof(filter) / sizeof(filter[0]), .filter = filter};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        test_skip("system calls cannot be filtered here: %s", strerror(errno));
    }
}

static void queue_where_uring_is_forbidden(int rank, void *ctx)
{
    const sherdi_ioq_params named = {.kind = SHERDI_IOQ_URING, .request_bytes = PAGE, .depth = 1};
    const sherdi_ioq_params any   = {.kind = SHERDI_IOQ_AUTO, .request_bytes = PAGE, .depth = 1};
    const int              *error = ctx;
    sherdi_ioq             *queue = NULL;

    (void)rank;
    uring_forbid(*error);
    CHECK_STATUS(SHERD_E_NOTSUP, sherdi_ioq_create(&named, rig_mem(), &queue));
    CHECK_ERROR_SAYS(strerror(*error));
    CHECK_INT(0, sherdi_mem_held_all(rig_mem()));
    CHECK_OK(sherdi_ioq_create(&any, rig_mem(), &queue));
    CHECK(strcmp(sherdi_ioq_name(queue), "threads") == 0);
    CHECK(strstr(rig_log(), "transfers run on 1 thread") != NULL);
    sherdi_ioq_destroy(queue);
}

static void uring_forbidden_falls_to_threads(void)
{
    int error = EPERM;

    rig_begin(SHERDI_IOQ_URING);
    test_threads(1, queue_where_uring_is_forbidden, &error);
    error = ENOSYS;
    test_threads(1, queue_where_uring_is_forbidden, &error);
    rig_end();
}

/* ---- file systems ---- */

static void space_that_is_missing_body(int rank, void *ctx)
{
    sherdi_ioq  *queue = rig_queue(PAGE, 2);
    sherdi_file *file  = NULL;

    (void)rank;
    (void)ctx;
    rig_mount_over("tmpfs", "size=1m");
    CHECK_STATUS(SHERD_E_IO,
                 rig_file_open(queue, "large", 1, (size_t)3 << 20, 0, SHERDI_FILE_CREATE, &file));
    CHECK_ERROR_SAYS("/f0/large needs 3145728 bytes and its file system has 1048576 free");
    CHECK_ERROR_SAYS("2097152 more");
    CHECK_INT(0, rig_folder_count(rig_folder("f0")));
    /* Two stripes in one place: there is room for the first. */
    CHECK_STATUS(SHERD_E_IO, rig_file_open(queue, "large", 2, (size_t)3 << 20, PAGE,
                                           SHERDI_FILE_CREATE, &file));
    CHECK_INT(0, rig_folder_count(rig_folder("f0")));
    CHECK_OK(rig_file_open(queue, "small", 1, (size_t)1 << 19, 0, SHERDI_FILE_CREATE, &file));
    sherdi_file_close(file, 1);
    sherdi_ioq_destroy(queue);
}

static void space_that_is_missing_is_told(void)
{
    test_threads(1, space_that_is_missing_body, NULL);
}
BOTH(space_that_is_missing_is_told)

/* A file with holes, as copying may leave behind, on a file system that is full. */
static void space_that_runs_out_body(int rank, void *ctx)
{
    const size_t   all    = (size_t)2 << 20;
    sherdi_ioq    *queue  = NULL;
    sherdi_file   *file   = NULL;
    unsigned char *memory = rig_memory(all);
    char           path[256];
    int            fd;

    (void)rank;
    (void)ctx;
    rig_mount_over("tmpfs", "size=1m");
    queue = rig_queue(16 * PAGE, 4);
    (void)snprintf(path, sizeof(path), "%s/holes", rig_folder("f0"));
    fd = open(path, O_CREAT | O_RDWR, 0600);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)all) == 0);
    (void)close(fd);
    CHECK_OK(rig_file_open(queue, "holes", 1, all, 0, 0, &file));
    CHECK_STATUS(SHERD_E_IO, rig_write(queue, file, memory, 0, all));
    CHECK_ERROR_SAYS("/f0/holes: No space left on device; free space there");
    CHECK_OK(rig_read(queue, file, memory, 0, all)); /* holes read as zero */
    sherdi_file_close(file, 1);
    sherdi_ioq_destroy(queue);
    sherdi_free(memory);
}

static void space_that_runs_out_fails_the_write(void)
{
    test_threads(1, space_that_runs_out_body, NULL);
}
BOTH(space_that_runs_out_fails_the_write)

/* A file system without direct I/O: all the same, through the page cache. */
static void direct_refused_body(int rank, void *ctx)
{
    sherdi_ioq    *queue = NULL;
    sherdi_file   *file  = NULL;
    unsigned char *wrote = rig_memory(33 * PAGE);
    unsigned char *got   = rig_memory(33 * PAGE);

    (void)rank;
    (void)ctx;
    rig_mount_over("ramfs", NULL);
    queue = rig_queue(4 * PAGE, 4);
    /* ramfs does not know how much it has free. */
    CHECK_OK(rig_file_open(queue, "cached", 2, 0, 3 * PAGE, SHERDI_FILE_CREATE, &file));
    rig_fill(wrote, 33 * PAGE, 8);
    CHECK_OK(rig_write(queue, file, wrote, 0, 33 * PAGE));
    CHECK_OK(rig_read(queue, file, got, 0, 33 * PAGE));
    CHECK_BYTES_EQUAL(wrote, got, 33 * PAGE);
    CHECK(strstr(rig_log(), "takes no direct I/O") != NULL);
    CHECK_STATUS(SHERD_E_IO, rig_read(queue, file, got, 32 * PAGE, 2 * PAGE));
    CHECK_ERROR_SAYS("the file ends before");
    sherdi_file_close(file, 1);
    sherdi_ioq_destroy(queue);
    sherdi_free(wrote);
    sherdi_free(got);
}

static void file_system_without_direct_io_works(void)
{
    test_threads(1, direct_refused_body, NULL);
}
BOTH(file_system_without_direct_io_works)

static const test_case CASE_LIST[] = {
    CASES(request_nth_error_fails_its_transfer_alone),
    CASES(requests_that_all_fail_fail_all),
    CASES(request_nth_short_is_resumed),
    CASES(request_nth_interrupted_is_made_again),
    CASES(request_refused_for_ever_fails),
    CASE(uring_nth_submission_refused_is_made_again),
    CASE(uring_nth_submission_broken_ends_all),
    CASES(allocation_nth_failing_leaves_no_queue),
    CASES(allocation_nth_failing_leaves_no_file),
    CASES(allocation_failing_leaves_memory_unregistered),
    CASES(file_cut_short_fails_the_read),
    CASES(file_limit_is_a_sentence),
    CASES(memory_that_may_not_be_locked_still_transfers),
    CASE(uring_forbidden_falls_to_threads),
    CASES(space_that_is_missing_is_told),
    CASES(space_that_runs_out_fails_the_write),
    CASES(file_system_without_direct_io_works),
};
RUN_MAIN(CASE_LIST)

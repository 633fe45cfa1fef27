/* Files that are not a run's alone: written in whole pages and cut to length, read whatever their
 * length, on a drive and in memory, over both engines. */
#include "tests/offload/fault_uring.h"
#include "tests/offload/io_rig.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define REQUEST   (4 * PAGE)
#define ALL_BYTES (6 * REQUEST)

static const size_t LENGTHS[] = {0,    1,           4095,        4096,
                                 4097, REQUEST - 1, REQUEST + 1, 4 * REQUEST + 77};
#define NUM_LENGTHS (sizeof(LENGTHS) / sizeof(LENGTHS[0]))

/* A program's thread-local variables may be larger than the stack that a queue's thread asks
 * for. */
static _Thread_local volatile char of_the_program[(size_t)512 << 10];

static size_t pages_of(size_t len_bytes)
{
    return (len_bytes + PAGE - 1) / PAGE * PAGE;
}

static sherd_status plain_open(sherdi_ioq *queue, const char *folder, size_t capacity_bytes,
                               uint32_t flags, sherdi_file **out)
{
    const sherdi_file_params params = {.folders        = &folder,
                                       .num_folders    = 1,
                                       .name           = "plain",
                                       .capacity_bytes = capacity_bytes,
                                       .flags          = flags};

    return sherdi_file_open(queue, &params, out);
}

static const char *plain_path(const char *folder)
{
    static char path[256];

    (void)snprintf(path, sizeof(path), "%s/plain", folder);
    return path;
}

/* A file of that many bytes of `memory` [ALL_BYTES], made the way that a checkpoint's are. */
static void plain_make(sherdi_ioq *queue, const char *folder, unsigned char *memory,
                       size_t len_bytes)
{
    sherdi_file *file = NULL;

    of_the_program[0] = 1;
    (void)unlink(plain_path(folder));
    CHECK_OK(plain_open(queue, folder, len_bytes, SHERDI_FILE_CREATE | SHERDI_FILE_PLAIN, &file));
    CHECK_OK(rig_write(queue, file, memory, 0, pages_of(len_bytes)));
    CHECK_OK(sherdi_file_trim(file, len_bytes));
    CHECK_OK(sherdi_file_sync(file));
    sherdi_file_close(file, 0);
}

/* What the C library reads, so that nothing of ours compares with itself. */
static void plain_compare(const char *folder, const unsigned char *expect, size_t len_bytes)
{
    unsigned char *got  = rig_memory(ALL_BYTES);
    FILE          *file = fopen(plain_path(folder), "rb");

    CHECK(file != NULL);
    CHECK_INT(len_bytes, fread(got, 1, ALL_BYTES, file));
    CHECK_BYTES_EQUAL(expect, got, len_bytes);
    (void)fclose(file);
    sherdi_free(got);
}

/* Each length written, compared, and read back as a whole and by pages. */
static void lengths_in(sherdi_ioq *queue, const char *folder)
{
    unsigned char *wrote = rig_memory(ALL_BYTES);
    unsigned char *got   = rig_memory(ALL_BYTES);

    rig_fill(wrote, ALL_BYTES, 11);
    for (size_t i = 0; i < NUM_LENGTHS; i++) {
        const size_t len = LENGTHS[i], pages = pages_of(len);
        sherdi_file *file = NULL;

        plain_make(queue, folder, wrote, len);
        plain_compare(folder, wrote, len);
        CHECK_OK(plain_open(queue, folder, len, SHERDI_FILE_READ, &file));
        CHECK_INT(len, sherdi_file_len(file));
        memset(got, 0xAA, ALL_BYTES);
        CHECK_OK(rig_read(queue, file, got, 0, pages));
        CHECK_BYTES_EQUAL(wrote, got, len);
        for (size_t at = len; at < ALL_BYTES; at++) {
            CHECK_INT(at < pages ? 0 : 0xAA, got[at]);
        }
        if (pages > 0) {
            memset(got, 0xAA, PAGE);
            CHECK_OK(rig_read(queue, file, got, pages - PAGE, PAGE));
            CHECK_BYTES_EQUAL(wrote + pages - PAGE, got, len - (pages - PAGE));
        }
        CHECK_STATUS(SHERD_E_IO, rig_read(queue, file, got, 0, pages + PAGE));
        CHECK_ERROR_SAYS("the file ends before");
        CHECK_STATUS(SHERD_E_IO, rig_read(queue, file, got, pages, PAGE));
        sherdi_file_close(file, 0);
        plain_compare(folder, wrote, len);
    }
    sherdi_free(wrote);
    sherdi_free(got);
}

static void plain_of_each_length_is_written_and_read(void)
{
    sherdi_ioq *queue = rig_queue(REQUEST, 3);

    lengths_in(queue, rig_folder("f0"));
    sherdi_ioq_destroy(queue);
}
BOTH(plain_of_each_length_is_written_and_read)

/* Over the folder "f0", for this thread and those it starts. */
static void lengths_on_file_system(int rank, void *ctx)
{
    const char *type = ctx;
    sherdi_ioq *queue;

    (void)rank;
    rig_mount_over(type, NULL);
    queue = rig_queue(REQUEST, 3);
    lengths_in(queue, rig_folder("f0"));
    sherdi_ioq_destroy(queue);
}

static void plain_in_memory_is_the_same(void)
{
    char tmpfs[] = "tmpfs", ramfs[] = "ramfs";

    test_threads(1, lengths_on_file_system, tmpfs);
    test_threads(1, lengths_on_file_system, ramfs);
}
BOTH(plain_in_memory_is_the_same)

/* ---- opening ---- */

static void plain_is_for_all_to_read(void)
{
    const mode_t   before = umask(027);
    sherdi_ioq    *queue  = rig_queue(PAGE, 1);
    const char    *folder = rig_folder("f0");
    unsigned char *memory = rig_memory(PAGE);
    struct stat    info;

    plain_make(queue, folder, memory, 10);
    (void)umask(before);
    CHECK(stat(plain_path(folder), &info) == 0);
    CHECK_INT(0640, info.st_mode & 07777);
    sherdi_free(memory);
    sherdi_ioq_destroy(queue);
}
BOTH(plain_is_for_all_to_read)

/* A name that is there is never written over. */
static void plain_that_is_there_stays(void)
{
    sherdi_ioq    *queue  = rig_queue(PAGE, 1);
    const char    *folder = rig_folder("f0");
    unsigned char *memory = rig_memory(PAGE);
    sherdi_file   *file   = NULL;

    rig_fill(memory, PAGE, 5);
    plain_make(queue, folder, memory, 1234);
    CHECK_STATUS(SHERD_E_IO, plain_open(queue, folder, 2 * PAGE,
                                        SHERDI_FILE_CREATE | SHERDI_FILE_PLAIN, &file));
    CHECK_ERROR_SAYS("already exists");
    plain_compare(folder, memory, 1234);
    sherdi_free(memory);
    sherdi_ioq_destroy(queue);
}
BOTH(plain_that_is_there_stays)

/* Somebody's lock, and a mode that lets nobody write, are no matter to who reads. */
static void read_takes_no_lock_and_needs_none(void)
{
    sherdi_ioq    *queue  = rig_queue(PAGE, 2);
    const char    *folder = rig_folder("f0");
    unsigned char *memory = rig_memory(PAGE);
    sherdi_file   *first = NULL, *second = NULL;
    int            fd;

    plain_make(queue, folder, memory, 100);
    CHECK(chmod(plain_path(folder), 0400) == 0);
    fd = open(plain_path(folder), O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0);
    CHECK_OK(plain_open(queue, folder, 0, SHERDI_FILE_READ, &first));
    CHECK_OK(plain_open(queue, folder, 0, SHERDI_FILE_READ, &second));
    CHECK_OK(rig_read(queue, first, memory, 0, PAGE));
    CHECK_OK(rig_read(queue, second, memory, 0, PAGE));
    (void)close(fd);
    fd = open(plain_path(folder), O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0); /* they hold none */
    (void)close(fd);
    sherdi_file_close(first, 0);
    sherdi_file_close(second, 0);
    sherdi_free(memory);
    sherdi_ioq_destroy(queue);
}
BOTH(read_takes_no_lock_and_needs_none)

static void read_of_what_is_no_such_file_is_refused(void)
{
    sherdi_ioq    *queue  = rig_queue(PAGE, 1);
    const char    *folder = rig_folder("f0");
    unsigned char *memory = rig_memory(PAGE);
    sherdi_file   *file   = NULL;
    int            before = rig_descriptors();
    char           other[256];

    CHECK_STATUS(SHERD_E_IO, plain_open(queue, folder, 0, SHERDI_FILE_READ, &file));
    CHECK_ERROR_SAYS("No such file");
    CHECK_INT(0, rig_folder_count(folder));
    plain_make(queue, folder, memory, 100);
    CHECK_STATUS(SHERD_E_IO, plain_open(queue, folder, 101, SHERDI_FILE_READ, &file));
    CHECK_ERROR_SAYS("has 100 bytes where 101 are expected");
    (void)snprintf(other, sizeof(other), "%s/other", folder);
    CHECK(rename(plain_path(folder), other) == 0);
    CHECK(symlink("other", plain_path(folder)) == 0);
    CHECK_STATUS(SHERD_E_IO, plain_open(queue, folder, 0, SHERDI_FILE_READ, &file));
    CHECK_ERROR_SAYS("symbolic link");
    CHECK(unlink(plain_path(folder)) == 0 && mkfifo(plain_path(folder), 0600) == 0);
    CHECK_STATUS(SHERD_E_IO, plain_open(queue, folder, 0, SHERDI_FILE_READ, &file));
    CHECK_ERROR_SAYS("not a regular file");
    CHECK(unlink(plain_path(folder)) == 0 && mkdir(plain_path(folder), 0700) == 0);
    CHECK_STATUS(SHERD_E_IO, plain_open(queue, folder, 0, SHERDI_FILE_READ, &file));
    CHECK_INT(before, rig_descriptors());
    sherdi_free(memory);
    sherdi_ioq_destroy(queue);
}
BOTH(read_of_what_is_no_such_file_is_refused)

static void flags_that_do_not_fit_are_refused(void)
{
    static const uint32_t WRONG[] = {SHERDI_FILE_PLAIN, SHERDI_FILE_SCRATCH,
                                     SHERDI_FILE_READ | SHERDI_FILE_CREATE};
    sherdi_ioq           *queue   = rig_queue(PAGE, 1);
    sherdi_file          *file    = NULL;

    for (size_t i = 0; i < sizeof(WRONG) / sizeof(WRONG[0]); i++) {
        CHECK_STATUS(SHERD_E_INVAL, plain_open(queue, rig_folder("f0"), PAGE, WRONG[i], &file));
    }
    CHECK_STATUS(SHERD_E_INVAL, rig_file_open(queue, "two", 2, PAGE, PAGE,
                                              SHERDI_FILE_CREATE | SHERDI_FILE_PLAIN, &file));
    sherdi_ioq_destroy(queue);
}
BOTH(flags_that_do_not_fit_are_refused)

/* ---- links ---- */

/* Over two folders, and its other names both in a third. */
static void linked_file_is_read_by_its_other_name(void)
{
    sherdi_ioq    *queue  = rig_queue(REQUEST, 2);
    sherdi_file   *file   = rig_file(queue, "first", 2, ALL_BYTES, REQUEST);
    unsigned char *wrote  = rig_memory(ALL_BYTES);
    unsigned char *got    = rig_memory(ALL_BYTES);
    const char    *away[] = {rig_folder("f2"), rig_folder("f2")};
    sherdi_file   *read   = NULL;

    const sherdi_file_params params = {.folders        = away,
                                       .num_folders    = 2,
                                       .name           = "second",
                                       .capacity_bytes = ALL_BYTES,
                                       .stripe_bytes   = REQUEST,
                                       .flags          = SHERDI_FILE_READ};

    rig_fill(wrote, ALL_BYTES, 21);
    CHECK_OK(rig_write(queue, file, wrote, 0, ALL_BYTES));
    CHECK(!sherdi_file_is_shared(file));
    CHECK_OK(sherdi_file_link(file, away, "second"));
    CHECK(sherdi_file_is_shared(file));
    CHECK_INT(2, rig_folder_count(away[0]));
    sherdi_file_close(file, 1);
    CHECK_OK(sherdi_file_open(queue, &params, &read));
    CHECK_INT(ALL_BYTES, sherdi_file_len(read));
    CHECK(!sherdi_file_is_shared(read));
    CHECK_OK(rig_read(queue, read, got, 0, ALL_BYTES));
    CHECK_BYTES_EQUAL(wrote, got, ALL_BYTES);
    sherdi_file_close(read, 0);
    sherdi_free(wrote);
    sherdi_free(got);
    sherdi_ioq_destroy(queue);
}
BOTH(linked_file_is_read_by_its_other_name)

static void links_are_all_made_or_none(void)
{
    sherdi_ioq  *queue   = rig_queue(PAGE, 2);
    sherdi_file *file    = rig_file(queue, "first", 2, 4 * PAGE, PAGE);
    const char  *away[]  = {rig_folder("f2"), "/nowhere/at/all"};
    const char  *other[] = {rig_folder("f2"), "/dev/shm"};
    struct stat  here, there;
    char         path[256];

    CHECK_STATUS(SHERD_E_IO, sherdi_file_link(file, away, "second"));
    CHECK_ERROR_SAYS("/nowhere/at/all/second.1: No such file");
    if (stat(away[0], &here) == 0 && stat(other[1], &there) == 0 && here.st_dev != there.st_dev) {
        CHECK_STATUS(SHERD_E_NOTSUP, sherdi_file_link(file, other, "sherd-test-second"));
    }
    away[1] = away[0];
    CHECK_OK(sherdi_file_link(file, away, "second"));
    CHECK_STATUS(SHERD_E_IO, sherdi_file_link(file, away, "second"));
    CHECK_ERROR_SAYS("File exists");
    CHECK_INT(2, rig_folder_count(away[0])); /* those that were there stay */
    sherdi_file_unlink(file, away, "second");
    CHECK_INT(0, rig_folder_count(away[0]));
    (void)snprintf(path, sizeof(path), "%s/first.1", rig_folder("f1"));
    CHECK(unlink(path) == 0);
    (void)fclose(fopen(path, "w")); /* not the one that is open */
    CHECK_STATUS(SHERD_E_IO, sherdi_file_link(file, away, "second"));
    CHECK_ERROR_SAYS("is another file than the one that was opened");
    CHECK_INT(0, rig_folder_count(away[0]));
    sherdi_file_close(file, 1);
    sherdi_ioq_destroy(queue);
}
BOTH(links_are_all_made_or_none)

/* ---- what goes wrong ---- */

/* Cut while it is read: never resumed for ever, never taken for whole. */
static void read_of_a_file_that_shrinks_fails(void)
{
    sherdi_ioq    *queue  = rig_queue(PAGE, 2);
    const char    *folder = rig_folder("f0");
    unsigned char *memory = rig_memory(4 * PAGE);
    sherdi_file   *file   = NULL;

    plain_make(queue, folder, memory, 3 * PAGE + 100);
    CHECK_OK(plain_open(queue, folder, 0, SHERDI_FILE_READ, &file));
    for (int cut = 3 * (int)PAGE + 99; cut > 0; cut -= (int)PAGE - 33) {
        CHECK(truncate(plain_path(folder), cut) == 0);
        CHECK_STATUS(SHERD_E_IO, rig_read(queue, file, memory, 0, 4 * PAGE));
        CHECK_ERROR_SAYS("the file ends before");
    }
    sherdi_file_close(file, 0);
    sherdi_free(memory);
    sherdi_ioq_destroy(queue);
}
BOTH(read_of_a_file_that_shrinks_fails)

/* What is added after the end while it is open does not come into its last page. */
static void read_of_a_file_that_grows_ends_where_it_did(void)
{
    sherdi_ioq    *queue  = rig_queue(PAGE, 2);
    const char    *folder = rig_folder("f0");
    unsigned char *memory = rig_memory(PAGE);
    sherdi_file   *file   = NULL;
    int            fd;

    plain_make(queue, folder, memory, 100);
    CHECK_OK(plain_open(queue, folder, 0, SHERDI_FILE_READ, &file));
    memset(memory, 0xAA, PAGE);
    fd = open(plain_path(folder), O_WRONLY | O_APPEND | O_CLOEXEC);
    CHECK(fd >= 0 && write(fd, memory, PAGE) == (ssize_t)PAGE);
    (void)close(fd);
    CHECK_OK(rig_read(queue, file, memory, 0, PAGE));
    for (size_t i = 0; i < PAGE; i++) {
        CHECK_INT(0, memory[i]);
    }
    sherdi_file_close(file, 0);
    sherdi_free(memory);
    sherdi_ioq_destroy(queue);
}
BOTH(read_of_a_file_that_grows_ends_where_it_did)

static void read_short_at_each_request_is_resumed(void)
{
    const size_t   len    = 2 * REQUEST + 3 * PAGE + 5;
    sherdi_ioq    *queue  = rig_queue(REQUEST, 2);
    const char    *folder = rig_folder("f0");
    unsigned char *wrote  = rig_memory(ALL_BYTES);
    unsigned char *got    = rig_memory(ALL_BYTES);
    sherdi_file   *file   = NULL;
    int            nth    = 0;

    rig_fill(wrote, ALL_BYTES, 3);
    plain_make(queue, folder, wrote, len);
    CHECK_OK(plain_open(queue, folder, len, SHERDI_FILE_READ, &file));
    do {
        fault_arm(FAULT_SHORT, FAULT_READS, ++nth, 1);
        memset(got, 0xAA, ALL_BYTES);
        CHECK_OK(rig_read(queue, file, got, 0, pages_of(len)));
        CHECK_BYTES_EQUAL(wrote, got, len);
    } while (fault_hits() > 0);
    CHECK(nth > 3);
    sherdi_file_close(file, 0);
    sherdi_free(wrote);
    sherdi_free(got);
    sherdi_ioq_destroy(queue);
}
BOTH(read_short_at_each_request_is_resumed)

static void read_failing_at_each_request_fails(void)
{
    const size_t   len    = 2 * REQUEST + 5;
    sherdi_ioq    *queue  = rig_queue(REQUEST, 2);
    const char    *folder = rig_folder("f0");
    unsigned char *memory = rig_memory(ALL_BYTES);
    sherdi_file   *file   = NULL;

    if (rig_kind() == SHERDI_IOQ_URING && !fault_can_inject()) {
        sherdi_free(memory);
        sherdi_ioq_destroy(queue);
        test_skip("this kernel cannot be told how an entry of a ring completes");
    }
    plain_make(queue, folder, memory, len);
    CHECK_OK(plain_open(queue, folder, len, SHERDI_FILE_READ, &file));
    for (int nth = 1; nth <= 3; nth++) {
        fault_arm(FAULT_EIO, FAULT_READS, nth, 1);
        CHECK_STATUS(SHERD_E_IO, rig_read(queue, file, memory, 0, pages_of(len)));
        CHECK_ERROR_SAYS("plain: Input/output error");
    }
    fault_arm(FAULT_NONE, FAULT_ANY, 0, 0);
    CHECK_OK(rig_read(queue, file, memory, 0, pages_of(len)));
    sherdi_file_close(file, 0);
    sherdi_free(memory);
    sherdi_ioq_destroy(queue);
}
BOTH(read_failing_at_each_request_fails)

static void plain_without_room_body(int rank, void *ctx)
{
    sherdi_ioq  *queue;
    sherdi_file *file = NULL;

    (void)rank;
    (void)ctx;
    rig_mount_over("tmpfs", "size=1m");
    queue = rig_queue(PAGE, 2);
    CHECK_STATUS(SHERD_E_IO, plain_open(queue, rig_folder("f0"), (size_t)3 << 20,
                                        SHERDI_FILE_CREATE | SHERDI_FILE_PLAIN, &file));
    CHECK_ERROR_SAYS("/f0/plain needs 3145728 bytes and its file system has 1048576 free");
    CHECK_INT(0, rig_folder_count(rig_folder("f0")));
    sherdi_ioq_destroy(queue);
}

static void plain_without_room_is_told_before(void)
{
    test_threads(1, plain_without_room_body, NULL);
}
BOTH(plain_without_room_is_told_before)

static void folder_that_is_not_there_is_not_synced(void)
{
    rig_begin(SHERDI_IOQ_THREADS);
    CHECK_OK(sherdi_folder_sync(rig_folder("f0")));
    CHECK_STATUS(SHERD_E_IO, sherdi_folder_sync("/nowhere/at/all"));
    CHECK_ERROR_SAYS("cannot sync folder /nowhere/at/all to its drive: No such file");
    rig_end();
}

static const test_case CASE_LIST[] = {
    CASES(plain_of_each_length_is_written_and_read),
    CASES(plain_in_memory_is_the_same),
    CASES(plain_is_for_all_to_read),
    CASES(plain_that_is_there_stays),
    CASES(read_takes_no_lock_and_needs_none),
    CASES(read_of_what_is_no_such_file_is_refused),
    CASES(flags_that_do_not_fit_are_refused),
    CASES(linked_file_is_read_by_its_other_name),
    CASES(links_are_all_made_or_none),
    CASES(read_of_a_file_that_shrinks_fails),
    CASES(read_of_a_file_that_grows_ends_where_it_did),
    CASES(read_short_at_each_request_is_resumed),
    CASES(read_failing_at_each_request_fails),
    CASES(plain_without_room_is_told_before),
    CASE(folder_that_is_not_there_is_not_synced),
};
RUN_MAIN(CASE_LIST)

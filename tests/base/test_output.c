/* Tests of base/output.c: a file is written whole or not at all, and takes no other thing's place.
 * Calls of the system fail here on request. */
#include "sherd_tools.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The call that fails, and its errno. */
typedef enum failing { FAIL_NOTHING, FAIL_WRITE, FAIL_SYNC, FAIL_RENAME, NUM_FAILING } failing;
static failing failing_call;
static int     write_interruptions; /* writes that end by EINTR first */

ssize_t write(int fd, const void *bytes, size_t len_bytes)
{
    if (write_interruptions > 0) {
        write_interruptions--;
        errno = EINTR;
        return -1;
    }
    if (failing_call == FAIL_WRITE) {
        errno = ENOSPC;
        return -1;
    }
    return (ssize_t)syscall(SYS_write, fd, bytes, len_bytes > 3 ? 3 : len_bytes); /* never all */
}

int fsync(int fd)
{
    errno = EIO;
    return failing_call == FAIL_SYNC ? -1 : (int)syscall(SYS_fsync, fd);
}

int rename(const char *from, const char *to)
{
    errno = EACCES;
    return failing_call == FAIL_RENAME
               ? -1
               : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

static const char *path_of(const char *name)
{
    static char     paths[4][600];
    static unsigned turn;
    char           *path = paths[turn++ % 4];

    (void)snprintf(path, sizeof(paths[0]), "%s/%s", test_scratch(), name);
    return path;
}

static void holds(const char *path, const char *text)
{
    char  got[64] = "";
    FILE *file    = fopen(path, "r");

    CHECK(file != NULL);
    CHECK_INT(strlen(text), fread(got, 1, sizeof(got), file));
    CHECK_BYTES_EQUAL(text, got, strlen(text));
    CHECK(fclose(file) == 0);
}

static void output_is_written_and_replaced(void)
{
    const char *path = path_of("file");

    CHECK_OK(sherd_output_write(path, "the first", 9));
    holds(path, "the first");
    write_interruptions = 2;
    CHECK_OK(sherd_output_write(path, "second", 6));
    holds(path, "second");
    CHECK_OK(sherd_output_write(path, NULL, 0));
    holds(path, "");
    CHECK(chdir(test_scratch()) == 0);
    CHECK_OK(sherd_output_write("file", "by its name", 11));
    holds(path, "by its name");
}

static void output_that_fails_leaves_the_old_file(void)
{
    static const char *const WHY[NUM_FAILING] = {NULL, "No space left", "Input/output error",
                                                 "Permission denied"};

    CHECK(mkdir(path_of("failing"), 0700) == 0);
    CHECK_OK(sherd_output_write(path_of("failing/old"), "old", 3));
    for (int call = FAIL_WRITE; call < NUM_FAILING; call++) {
        sherd_status status;

        failing_call = (failing)call;
        status       = sherd_output_write(path_of("failing/old"), "new", 3);
        failing_call = FAIL_NOTHING;
        CHECK_STATUS(SHERD_E_IO, status);
        CHECK_ERROR_SAYS("/old cannot be written: ");
        CHECK_ERROR_SAYS(WHY[call]);
        holds(path_of("failing/old"), "old");
        CHECK(access(path_of("failing/.old.partial"), F_OK) != 0);
    }
    CHECK_STATUS(SHERD_E_IO, sherd_output_write(path_of("none/file"), "new", 3));
    CHECK_ERROR_SAYS("none/file cannot be written: No such file or directory");
}

static void output_takes_the_place_of_regular_files_alone(void)
{
    static const char *const KINDS[TEST_ODDS] = {"a pipe",          "a socket", "a symbolic link",
                                                 "a symbolic link", "a folder", "a device"};
    const char              *path             = path_of("odd");

    CHECK_OK(sherd_output_check(path));
    for (int odd = 0; odd < TEST_ODDS; odd++) {
        if (test_odd_make(path, (test_odd)odd)) {
            CHECK_STATUS(SHERD_E_IO, sherd_output_check(path));
            CHECK_STATUS(SHERD_E_IO, sherd_output_write(path, "new", 3));
            CHECK_ERROR_SAYS(KINDS[odd]);
            CHECK_ERROR_SAYS("name another path");
            test_odd_remove(path, (test_odd)odd);
        }
    }
}

static void output_removes_what_a_killed_run_has_left(void)
{
    for (int odd = 0; odd < TEST_ODDS; odd++) {
        if (odd != TEST_ODD_FOLDER && test_odd_make(path_of(".after.partial"), (test_odd)odd)) {
            CHECK_OK(sherd_output_write(path_of("after"), "new", 3));
            holds(path_of("after"), "new");
            CHECK(access(path_of(".after.partial"), F_OK) != 0);
            if (odd == TEST_ODD_LINK) {
                holds(path_of(".after.partial.beside"), "kept");
                CHECK(unlink(path_of(".after.partial.beside")) == 0);
            }
        }
    }
}

static void output_with_too_long_a_path_is_refused(void)
{
    char path[5000];

    memset(path, 'a', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    CHECK_STATUS(SHERD_E_INVAL, sherd_output_write(path, "", 0));
    CHECK_ERROR_SAYS("is too long");
}

static const test_case CASES[] = {
    CASE(output_is_written_and_replaced),
    CASE(output_that_fails_leaves_the_old_file),
    CASE(output_takes_the_place_of_regular_files_alone),
    CASE(output_removes_what_a_killed_run_has_left),
    CASE(output_with_too_long_a_path_is_refused),
};

RUN_MAIN(CASES)

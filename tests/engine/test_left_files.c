/* Runs that were killed at their start leave files without state in the folders of state. The next
 * start removes these files, even if others start at the same time, and removes nothing else. */
#include "tests/engine/rig.h"
#include "tests/lib/check.h"
#include "sherd_tools.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ELEMS   200000 /* several stripes in each folder */
#define FOLDERS 2
#define KILLS   5
#define JOBS    4
#define ROUNDS  10

static atomic_int unlocks_are_slow;

/* Replaces the C library's function. After it has let go of a lock, a thread may lose the processor
 * and then meet what others have done since. */
int flock(int fd, int operation)
{
    static const struct timespec PAUSE  = {.tv_nsec = 2 * 1000 * 1000};
    int                          result = (int)syscall(SYS_flock, fd, operation);

    if (operation == LOCK_UN && atomic_load(&unlocks_are_slow)) {
        (void)nanosleep(&PAUSE, NULL);
    }
    return result;
}

static const char *folder_path(int index)
{
    static _Thread_local char path[FOLDERS][512];

    (void)snprintf(path[index], sizeof(path[0]), "%s/f%d", test_scratch(), index);
    return path[index];
}

/* Counts the files in a folder, and removes them if `is_removed` is set. */
static int files_now(int index, int is_removed)
{
    DIR           *dir = opendir(folder_path(index));
    struct dirent *entry;
    int            count = 0;

    CHECK(dir != NULL);
    while ((entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.') {
            count++;
            CHECK(!is_removed || unlinkat(dirfd(dir), entry->d_name, 0) == 0);
        }
    }
    (void)closedir(dir);
    return count;
}

static void case_begin(void)
{
    for (int i = 0; i < FOLDERS; i++) {
        (void)mkdir(folder_path(i), 0700);
        (void)files_now(i, 1);
    }
}

static void engine_open(rig *r, sherd_world *world, const char *keys)
{
    char        zero[2048];
    rig_options options = {.stage = 2, .dtype = SHERD_BF16, .zero = zero};

    (void)snprintf(zero, sizeof(zero),
                   ", \"sub_group_size\": 65536, \"offload_optimizer\": {\"device\": \"nvme\","
                   " \"durable\": false, \"nvme_path\": [\"%s\", \"%s\"]%s}",
                   folder_path(0), folder_path(1), keys);
    rig_open(r, world, &options);
    (void)rig_unit(r, "a");
    (void)rig_param(r, 0, "a.w", ELEMS);
}

static void train_run(sherd_world *world, void *keys)
{
    rig r;

    engine_open(&r, world, keys);
    rig_seal(&r);
    (void)rig_train(&r, 1);
    rig_close(&r);
}

/* ---------------------------------------------------------------------- log -- */

static char told[16384];

static void line_keep(void *ctx, sherd_log_level level, const char *line)
{
    size_t len = strlen(told);

    (void)ctx;
    (void)level;
    (void)snprintf(told + len, sizeof(told) - len, "%s\n", line);
}

static int told_count(const char *words)
{
    int count = 0;

    for (const char *at = strstr(told, words); at != NULL; at = strstr(at + 1, words)) {
        count++;
    }
    return count;
}

static void listen_begin(void)
{
    told[0] = '\0';
    sherd_log_set(line_keep, NULL, SHERD_LOG_INFO);
}

static void listen_end(void)
{
    sherd_log_set(NULL, NULL, SHERD_LOG_WARN);
}

static void train_and_listen(int world_size, const char *keys)
{
    listen_begin();
    test_world(world_size, train_run, (void *)(uintptr_t)keys);
    listen_end();
}

/* -------------------------------------------------------------------- cases -- */

static sherd_status locked_count(void *ctx, const sherd_state_file *file)
{
    *(int *)ctx += file->is_locked;
    return SHERD_OK;
}

/* Waits until at most `most` files are locked. The kernel keeps the files of a killed process
 * locked a moment longer than the process exists. */
static void locks_await(int most)
{
    int count = most + 1;

    while (count > most) {
        count = 0;
        CHECK_OK(sherd_state_files_find(folder_path(0), locked_count, &count));
    }
}

/* Starts a run that is killed between seal and the first commit. */
static void start_and_die(void)
{
    pid_t child = fork();
    int   status;

    if (child == 0) {
        sherd_world *world;
        rig          r;

        CHECK_OK(sherd_world_self(&world));
        engine_open(&r, world, "");
        CHECK_OK(sherd_engine_seal(r.engine));
        (void)raise(SIGKILL);
    }
    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
}

/* Makes stripe `index` of a run that had reserved the space and was killed before it wrote a
 * byte. */
static void blank_leave(int run, int index)
{
    char path[1024];
    int  fd;

    (void)snprintf(path, sizeof(path), "%s/sherd-%016x-0of1.state%s", folder_path(index), run,
                   index == 0 ? "" : ".1");
    fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0);
    CHECK(posix_fallocate(fd, 0, 1 << 20) == 0);
    (void)close(fd);
}

static void empty_files_go_and_others_stay(void)
{
    sherd_world *world;
    rig          lives;
    int          fd;
    char         path[1024];

    case_begin();
    test_world(1, train_run, ", \"keep\": true"); /* this run leaves a generation */
    CHECK_OK(sherd_world_self(&world));
    engine_open(&lives, world, ""); /* without state, but a process has it open */
    CHECK_OK(sherd_engine_seal(lives.engine));
    (void)snprintf(path, sizeof(path), "%s/sherd-00000000000000dd-0of1.state", folder_path(0));
    fd = open(path, O_RDWR | O_CREAT, 0600); /* damaged: what it had is unknown */
    CHECK(fd >= 0 && write(fd, path, sizeof(path)) == sizeof(path));
    (void)close(fd);
    for (int i = 0; i < KILLS; i++) {
        start_and_die();
        locks_await(1);
    }
    CHECK_INT(3 + 3 + 1 + 3, files_now(0, 0)); /* each start has removed what the one before left */
    blank_leave(0xb1, 0);
    blank_leave(0xb1, 1);
    locks_await(1);
    train_and_listen(2, "");
    CHECK_INT(3 + 3 + 1, files_now(0, 0));
    CHECK_INT(2 + 2, files_now(1, 0));
    CHECK_INT(2, told_count("before it committed any state to it"));
    CHECK_INT(1, told_count("sherd-00000000000000b1-0of1.state (2097152 bytes)"));
    CHECK_INT(1, told_count("holds 2 state files of earlier runs"));
    rig_close(&lives);
    sherd_world_destroy(world);
    test_world(1, train_run, ", \"resume\": true");
    CHECK_INT(1, files_now(0, 1));
    CHECK_INT(0, files_now(1, 1));
}

/* Runs that are killed at their start do not fill the drive. */
static void killed_starts_do_not_add_up(void)
{
    case_begin();
    for (int i = 0; i < KILLS; i++) {
        start_and_die();
        locks_await(0);
        CHECK_INT(3, files_now(0, 0)); /* the index and two slot files */
        CHECK_INT(2, files_now(1, 0));
    }
    train_and_listen(1, "");
    CHECK_INT(0, files_now(0, 0));
    CHECK_INT(0, files_now(1, 0));
}

static void job_run(int job, void *ctx)
{
    (void)ctx;
    test_world(1 + job % 2, train_run, "");
}

/* All starts look at the files that others have just made, and at the same files without state. */
static void many_start_at_once(void)
{
    case_begin();
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < KILLS; i++) {
            blank_leave(0x100 + i, 0);
            blank_leave(0x100 + i, 1);
        }
        listen_begin();
        atomic_store(&unlocks_are_slow, round % 2);
        test_threads(JOBS, job_run, NULL);
        atomic_store(&unlocks_are_slow, 0);
        listen_end();
        /* a file that another start removes must not be counted as one */
        CHECK_INT(0, told_count("of earlier runs"));
        CHECK_INT(0, files_now(0, 0));
        CHECK_INT(0, files_now(1, 0));
    }
}

#define MOST_MOVED 8

/* Moves all files of the second folder elsewhere and links to them, or moves them back. */
static void stripes_move(char names[MOST_MOVED][256], int count, int is_away)
{
    char path[1024];
    char away[1024];

    for (int i = 0; i < count; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", folder_path(1), names[i]);
        (void)snprintf(away, sizeof(away), "%s/away%d", test_scratch(), i);
        if (is_away) {
            CHECK(rename(path, away) == 0 && symlink(away, path) == 0);
        } else {
            CHECK(unlink(path) == 0 && rename(away, path) == 0);
        }
    }
}

static int stripes_list(char names[MOST_MOVED][256])
{
    DIR           *dir   = opendir(folder_path(1));
    int            count = 0;
    struct dirent *entry;

    CHECK(dir != NULL);
    while ((entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.') {
            CHECK(count < MOST_MOVED);
            (void)snprintf(names[count++], sizeof(names[0]), "%s", entry->d_name);
        }
    }
    (void)closedir(dir);
    return count;
}

/* The second stripes of a kept run are replaced by links to other places. */
static void a_symbolic_link_is_not_followed(void)
{
    sherd_world *world;
    rig          r;
    char         names[MOST_MOVED][256];
    int          count;

    case_begin();
    test_world(1, train_run, ", \"keep\": true");
    count = stripes_list(names);
    CHECK(count > 0);
    stripes_move(names, count, 1);
    CHECK_OK(sherd_world_self(&world));
    engine_open(&r, world, ", \"resume\": true");
    CHECK_STATUS(SHERD_E_IO, sherd_engine_seal(r.engine));
    CHECK_ERROR_SAYS("is a symbolic link");
    rig_close(&r);
    sherd_world_destroy(world);
    stripes_move(names, count, 0);
    test_world(1, train_run, ", \"resume\": true"); /* the state is unchanged */
    CHECK_INT(0, files_now(0, 0));
    CHECK_INT(0, files_now(1, 0));
}

static const test_case CASES[] = {
    CASE(empty_files_go_and_others_stay),
    CASE(killed_starts_do_not_add_up),
    CASE(many_start_at_once),
    CASE(a_symbolic_link_is_not_followed),
};

RUN_MAIN(CASES)

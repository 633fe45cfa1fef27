/* Implements the test runner. See check.h. */
#include "tests/lib/check.h"

#include <dirent.h>
#include <ftw.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PART_PASSED = 0, PART_FAILED = 1, PART_SKIPPED = 2 };

typedef struct thread_part {
    pthread_t thread;
    int       rank;
    void (*body)(int rank, void *ctx);
    void *ctx;
    int   result;
} thread_part;

static _Thread_local jmp_buf *part_exit;
static char                   scratch_dir[64];
static pid_t                  scratch_process;
static pthread_mutex_t        print_lock = PTHREAD_MUTEX_INITIALIZER;

_Noreturn void test_fail(const char *file, int line, const char *fmt, ...)
{
    va_list args;

    (void)pthread_mutex_lock(&print_lock);
    (void)printf("%s:%d: ", file, line);
    va_start(args, fmt);
    (void)vprintf(fmt, args);
    va_end(args);
    (void)printf("\n");
    (void)fflush(stdout);
    (void)pthread_mutex_unlock(&print_lock);
    if (part_exit == NULL) {
        exit(1);
    }
    longjmp(*part_exit, PART_FAILED);
}

_Noreturn void test_skip(const char *fmt, ...)
{
    va_list args;

    (void)printf("  skipped: ");
    va_start(args, fmt);
    (void)vprintf(fmt, args);
    va_end(args);
    (void)printf("\n");
    if (part_exit == NULL) {
        exit(77);
    }
    longjmp(*part_exit, PART_SKIPPED);
}

static void *part_run(void *raw)
{
    thread_part *part = raw;
    jmp_buf      here;

    part_exit    = &here;
    part->result = setjmp(here);
    if (part->result == PART_PASSED) {
        part->body(part->rank, part->ctx);
    }
    part_exit = NULL;
    return NULL;
}

void test_threads(int count, void (*body)(int rank, void *ctx), void *ctx)
{
    thread_part *parts = calloc((size_t)count, sizeof(*parts));
    int          worst = PART_PASSED;

    for (int i = 0; i < count; i++) {
        parts[i] = (thread_part){.rank = i, .body = body, .ctx = ctx};
        if (pthread_create(&parts[i].thread, NULL, part_run, &parts[i]) != 0) {
            test_fail(__FILE__, __LINE__, "no thread %d", i);
        }
    }
    for (int i = 0; i < count; i++) {
        (void)pthread_join(parts[i].thread, NULL);
        worst = parts[i].result == PART_FAILED ? PART_FAILED
                : worst == PART_PASSED         ? parts[i].result
                                               : worst;
    }
    free(parts);
    if (worst != PART_PASSED) {
        longjmp(*part_exit, worst);
    }
}

typedef struct world_body {
    sherd_world *worlds[64];
    void (*body)(sherd_world *world, void *ctx);
    void *ctx;
} world_body;

static void world_part(int rank, void *raw)
{
    world_body *all   = raw;
    jmp_buf    *outer = part_exit;
    jmp_buf     here;
    int         result;

    /* A failed check must not leave the other ranks waiting for this one, so this rank aborts its
     * world. */
    part_exit = &here;
    result    = setjmp(here);
    if (result == PART_PASSED) {
        all->body(all->worlds[rank], all->ctx);
    } else {
        sherd_world_abort(all->worlds[rank], "a check failed");
    }
    part_exit = outer;
    sherd_world_destroy(all->worlds[rank]);
    if (result != PART_PASSED) {
        longjmp(*outer, result);
    }
}

void test_world(int world_size, void (*body)(sherd_world *world, void *ctx), void *ctx)
{
    world_body all = {.body = body, .ctx = ctx};

    CHECK(world_size <= 64);
    CHECK_OK(sherd_world_threads(world_size, all.worlds));
    test_threads(world_size, world_part, &all);
}

int test_is_long(void)
{
    return getenv("SHERD_TEST_LONG") != NULL;
}

void test_need_long(void)
{
    if (!test_is_long()) {
        test_skip("in the long list (SHERD_TEST_LONG=1)");
    }
}

static int scratch_remove_one(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

/* Removes the scratch folder. A child that a case has forked must leave it alone: it belongs to the
 * parent. */
static void scratch_remove(void)
{
    if (scratch_process != getpid()) {
        return;
    }
    (void)nftw(scratch_dir, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void scratch_make(void)
{
    (void)snprintf(scratch_dir, sizeof(scratch_dir), "/tmp/sherd-test-XXXXXX");
    if (mkdtemp(scratch_dir) == NULL) {
        scratch_dir[0] = '\0';
        return;
    }
    scratch_process = getpid();
    (void)atexit(scratch_remove);
}

/* Ranks that are threads may all ask for the folder at the same time, so pthread_once makes it. */
const char *test_scratch(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, scratch_make);
    if (scratch_dir[0] == '\0') {
        test_fail(__FILE__, __LINE__, "no scratch folder under /tmp");
    }
    return scratch_dir;
}

#define BESIDE_BYTES 1024

static const char *beside(const char *path, char other[BESIDE_BYTES])
{
    (void)snprintf(other, BESIDE_BYTES, "%s.beside", path);
    return other;
}

int test_odd_make(const char *path, test_odd odd)
{
    char  other[BESIDE_BYTES];
    FILE *file;

    switch (odd) {
    case TEST_ODD_PIPE:
        CHECK(mkfifo(path, 0600) == 0);
        break;
    case TEST_ODD_SOCKET:
        CHECK(mknod(path, S_IFSOCK | 0600, 0) == 0);
        break;
    case TEST_ODD_LINK:
        file = fopen(beside(path, other), "w");
        CHECK(file != NULL && fputs("kept", file) >= 0 && fclose(file) == 0);
        CHECK(symlink(beside(path, other), path) == 0);
        break;
    case TEST_ODD_DANGLING:
        CHECK(symlink(beside(path, other), path) == 0);
        break;
    case TEST_ODD_FOLDER:
        CHECK(mkdir(path, 0700) == 0);
        break;
    default:
        return mknod(path, S_IFCHR | 0600, makedev(1, 3)) == 0;
    }
    return 1;
}

void test_odd_remove(const char *path, test_odd odd)
{
    static const mode_t TYPES[TEST_ODDS] = {S_IFIFO, S_IFSOCK, S_IFLNK, S_IFLNK, S_IFDIR, S_IFCHR};
    struct stat         about;
    char                folder[1024];
    char                other[BESIDE_BYTES];
    DIR                *dir;
    struct dirent      *entry;

    CHECK(lstat(path, &about) == 0 && (about.st_mode & S_IFMT) == TYPES[odd]);
    CHECK_INT(odd == TEST_ODD_LINK ? 0 : -1, stat(beside(path, other), &about));
    CHECK(odd != TEST_ODD_LINK || (about.st_size == 4 && unlink(other) == 0));
    CHECK(remove(path) == 0);
    (void)snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(path, '/') - path), path);
    dir = opendir(folder);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        CHECK(entry->d_name[0] != '.' || strcmp(entry->d_name, ".") == 0 ||
              strcmp(entry->d_name, "..") == 0);
    }
    CHECK(dir != NULL && closedir(dir) == 0);
}

static int files_visit(const char *folder, const char *part, int is_removed)
{
    DIR           *dir   = opendir(folder);
    int            count = 0;
    struct dirent *entry;

    CHECK(dir != NULL);
    while ((entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.' && strstr(entry->d_name, part) != NULL) {
            CHECK(!is_removed || unlinkat(dirfd(dir), entry->d_name, 0) == 0);
            count++;
        }
    }
    (void)closedir(dir);
    return count;
}

int test_files(const char *folder, const char *part)
{
    return files_visit(folder, part, 0);
}

void test_files_remove(const char *folder, const char *part)
{
    (void)files_visit(folder, part, 1);
}

/* splitmix64 (Steele, Lea and Flood 2014). */
int test_files_count(const char *folder, const char *ends)
{
    DIR *dir   = opendir(folder);
    int  count = 0;

    CHECK(dir != NULL);
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        count += entry->d_name[0] != '.' && strstr(entry->d_name, ends) != NULL;
    }
    (void)closedir(dir);
    return count;
}

uint64_t test_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

float test_random_float(uint64_t *state)
{
    return (float)((double)(test_random(state) >> 11) * 0x1p-52 - 1.0);
}

void test_check_contains(const char *file, int line, const char *text, const char *part)
{
    if (text == NULL || strstr(text, part) == NULL) {
        test_fail(file, line, "\"%s\" is not in \"%s\"", part, text == NULL ? "(null)" : text);
    }
}

void test_check_bytes(const char *file, int line, const char *what, const void *want,
                      const void *got, size_t len_bytes)
{
    const unsigned char *a = want;
    const unsigned char *b = got;

    for (size_t i = 0; i < len_bytes; i++) {
        if (a[i] != b[i]) {
            test_fail(file, line, "%s differs at byte %zu of %zu: %02x, not %02x", what, i,
                      len_bytes, b[i], a[i]);
        }
    }
}

void test_check_close_f32(const char *file, int line, const char *what, const float *got,
                          const float *want, size_t count, double rtol, double atol)
{
    for (size_t i = 0; i < count; i++) {
        double gap = fabs((double)got[i] - (double)want[i]);

        if (!(gap <= rtol * fabs((double)want[i]) + atol)) {
            test_fail(file, line, "%s[%zu] is %.9g, not %.9g", what, i, (double)got[i],
                      (double)want[i]);
        }
    }
}

/* This is a function of its own because setjmp may leave the locals of its caller undefined. */
static int case_run(const test_case *test)
{
    jmp_buf here;
    int     result = setjmp(here);

    if (result == PART_PASSED) {
        part_exit = &here;
        test->run();
    }
    part_exit = NULL;
    return result;
}

/* Ends a program that should run on a device if there is no device. A child process does the
 * look-up, because a process that has used a device cannot fork ranks that use it. */
static void device_need(void)
{
    const char *backend = getenv("SHERD_BACKEND");
    int         status;
    pid_t       child;

    if (backend == NULL || backend[0] == '\0' || strcmp(backend, "cpu") == 0) {
        return;
    }
    (void)fflush(stdout);
    child = fork();
    if (child == 0) {
        status = sherd_device_count(backend) == 0 ? 77 : 0;
        if (status != 0) {
            (void)printf("skipped: %s\n", sherd_last_error());
            (void)fflush(stdout);
        }
        _exit(status);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) {
        (void)printf("nobody could look for a device of %s\n", backend);
        exit(1);
    }
    if (WEXITSTATUS(status) != 0) {
        exit(WEXITSTATUS(status));
    }
}

int test_main(int argc, char **argv, const test_case *cases, size_t num_cases)
{
    size_t counts[3] = {0, 0, 0};

    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    device_need();
    for (size_t i = 0; i < num_cases; i++) {
        int result;

        if (argc > 1 && strstr(cases[i].name, argv[1]) == NULL) {
            continue;
        }
        result = case_run(&cases[i]);
        counts[result]++;
        (void)printf("%s %s\n",
                     result == PART_FAILED    ? "FAIL"
                     : result == PART_SKIPPED ? "skip"
                                              : "ok  ",
                     cases[i].name);
    }
    (void)printf("%zu passed, %zu failed, %zu skipped\n", counts[PART_PASSED], counts[PART_FAILED],
                 counts[PART_SKIPPED]);
    if (counts[PART_FAILED] > 0) {
        return 1;
    }
    return counts[PART_PASSED] == 0 && counts[PART_SKIPPED] > 0 ? 77 : 0;
}

/* Which kernels of OpenBLAS compute. The library itself plays the wrong choice: it is opened with
 * the kernels of an old CPU as if it had taken them by itself. */
#include "tests/lib/check.h"

#include "models/blas.h"
#include "trainer/gemm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void blas_needed(void)
{
    if (!blas_open()->is_open) {
        test_skip("no OpenBLAS: %s", blas_open()->why);
    }
}

/* Integers: exact in any order of summation. */
static void product_check(void)
{
    enum { M = 33, N = 70, K = 51 };
    static float a[M * K], b[K * N], c[M * N];

    for (size_t i = 0; i < M * K; i++) {
        a[i] = (float)(i * 7 % 11) - 5.0f;
    }
    for (size_t i = 0; i < K * N; i++) {
        b[i] = (float)(i * 5 % 13) - 6.0f;
    }
    gemm(M, N, K, 1.0f, (gemm_matrix){a, K, 0}, (gemm_matrix){b, N, 0}, 0.0f, c, N);
    for (size_t i = 0; i < M; i++) {
        for (size_t j = 0; j < N; j++) {
            float sum = 0.0f;

            for (size_t p = 0; p < K; p++) {
                sum += a[i * K + p] * b[p * N + j];
            }
            CHECK(c[i * N + j] == sum);
        }
    }
}

/* A build for one CPU has nothing to choose. */
static void choice_needed(void)
{
    int obeys;

    blas_needed();
    CHECK_INT(0, setenv("OPENBLAS_CORETYPE", "Prescott", 1));
    obeys = strcmp("Prescott", blas_reopen(NULL)->core) == 0;
    CHECK_INT(0, unsetenv("OPENBLAS_CORETYPE"));
    (void)blas_reopen(NULL);
    if (!obeys || blas_cpu_level() == BLAS_SSE) {
        test_skip("this OpenBLAS, or this CPU, has one kind of kernels");
    }
}

static void wrong_choice_of_the_library_is_found(void)
{
    const blas_state *s;
    char              text[512];

    choice_needed();
    s = blas_reopen("Prescott");
    CHECK(s->is_open);
    CHECK(strcmp("Prescott", s->own_core) == 0);
    CHECK(strcmp("Prescott", s->core) != 0);
    CHECK_INT(blas_cpu_level(), s->level);
    CHECK(blas_warning(text) == NULL);
    test_check_contains(__FILE__, __LINE__, blas_describe(text), "its own choice was Prescott");
    CHECK(getenv("OPENBLAS_CORETYPE") == NULL);
    product_check();
    (void)blas_reopen(NULL);
    CHECK(blas_open()->is_open);
    product_check();
}

static void choice_of_the_user_stays(void)
{
    const blas_state *s;
    char              text[512];

    choice_needed();
    CHECK_INT(0, setenv("OPENBLAS_CORETYPE", "Prescott", 1));
    s = blas_reopen(NULL);
    CHECK(s->is_open);
    CHECK(s->is_users_core);
    CHECK(strcmp(s->core, s->own_core) == 0);
    CHECK(strcmp("Prescott", s->core) == 0);
    CHECK(blas_warning(text) != NULL);
    test_check_contains(__FILE__, __LINE__, text, "Prescott kernels (SSE)");
    test_check_contains(__FILE__, __LINE__, text, "unset OPENBLAS_CORETYPE");
    product_check();
    CHECK_INT(0, unsetenv("OPENBLAS_CORETYPE"));
    (void)blas_reopen(NULL);
}

static void better_core_is_as_wide_as_the_cpu(void)
{
    CHECK(strcmp("SkylakeX", blas_better_core("Prescott", BLAS_AVX512)) == 0);
    CHECK(strcmp("SkylakeX", blas_better_core("Zen", BLAS_AVX512)) == 0);
    CHECK(strcmp("Haswell", blas_better_core("Sandybridge", BLAS_AVX2)) == 0);
    CHECK(strcmp("Haswell", blas_better_core("of next year", BLAS_AVX2)) == 0);
    CHECK(strcmp("Sandybridge", blas_better_core("Nehalem", BLAS_AVX)) == 0);
    CHECK(blas_better_core("Cooperlake", BLAS_AVX512) == NULL);
    CHECK(blas_better_core("Sapphirerapids", BLAS_AVX512) == NULL);
    CHECK(blas_better_core("Zen", BLAS_AVX2) == NULL);
    CHECK(blas_better_core("Neoversen1", BLAS_SSE) == NULL);
}

/* Two hosts, one with AVX2, one with AVX-512: both take what both can run. */
static void ranks_settle_on_one_core(void)
{
    double same[BLAS_CORES] = {0}, mixed[BLAS_CORES] = {0};
    char   core[32];

    choice_needed();
    if (blas_cpu_level() != BLAS_AVX512) {
        test_skip("this CPU has no AVX-512");
    }
    memcpy(core, blas_open()->core, sizeof(core));
    same[blas_core_number()] = 4.0;
    blas_settle(same);
    CHECK(strcmp(core, blas_open()->core) == 0);

    mixed[blas_core_number()] = 2.0; /* ours */
    CHECK_INT(0, setenv("OPENBLAS_CORETYPE", "Haswell", 1));
    mixed[(blas_reopen(NULL), blas_core_number())] += 2.0; /* theirs */
    CHECK_INT(0, unsetenv("OPENBLAS_CORETYPE"));
    (void)blas_reopen(NULL);
    CHECK(strcmp(core, blas_open()->core) == 0);
    blas_settle(mixed);
    CHECK(strcmp("Haswell", blas_open()->core) == 0);
    product_check();
    (void)blas_reopen(NULL);
}

static size_t address_space(void)
{
    size_t pages = 0;
    FILE  *file  = fopen("/proc/self/statm", "r");

    if (file != NULL) {
        if (fscanf(file, "%zu", &pages) != 1) {
            pages = 0;
        }
        (void)fclose(file);
    }
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* In a process of its own, whose limit leaves room for two buffers. 0: as it should be. */
static int limited_run(void)
{
    char          why[256] = "";
    size_t        most     = address_space() + ((size_t)300 << 20);
    struct rlimit limit    = {.rlim_cur = most, .rlim_max = most};

    if (setrlimit(RLIMIT_AS, &limit) != 0) {
        return 77;
    }
    if (blas_reserve(64, why, sizeof(why)) == 0 || strstr(why, "for each of 64 threads") == NULL) {
        return 1;
    }
    if (blas_reserve(2, why, sizeof(why)) != 0) {
        return 2;
    }
    product_check();
    for (int more = 0; more < 64; more++) { /* how many there is room for is the library's */
        if (blas_reserve(1, why, sizeof(why)) != 0) {
            return 0;
        }
    }
    return 3;
}

static void buffers_that_cannot_be_had_are_told(void)
{
    int   status;
    pid_t child;

    blas_needed();
    if (address_space() == 0) {
        test_skip("no /proc");
    }
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        (void)alarm(60); /* what it must not do is wait */
        _exit(limited_run());
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_INT(0, WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status));
}

/* More than its tables hold, which it would write past. */
static void threads_beyond_the_librarys_own_limit_are_refused(void)
{
    char why[256] = "";

    blas_needed();
    CHECK_INT(-1, blas_reserve(1000000, why, sizeof(why)));
    if (strstr(why, "address space") != NULL) {
        test_skip("this OpenBLAS does not say how many threads it serves");
    }
    CHECK(strstr(why, "at most") != NULL && strstr(why, "as processes") != NULL);
    CHECK_INT(0, blas_reserve(1, why, sizeof(why)));
}

static const test_case cases[] = {
    CASE(wrong_choice_of_the_library_is_found),
    CASE(choice_of_the_user_stays),
    CASE(better_core_is_as_wide_as_the_cpu),
    CASE(ranks_settle_on_one_core),
    CASE(buffers_that_cannot_be_had_are_told),
    CASE(threads_beyond_the_librarys_own_limit_are_refused),
};

RUN_MAIN(cases)

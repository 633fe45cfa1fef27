/* The test runner: cases, checks that print both values, counts at the end. A program
 * is a list of cases and RUN_MAIN; it takes a name filter as its argument, exits 0 pass, 1 fail,
 * 77 skip. A failed check ends its case (longjmp), so a case may leave memory behind then. */
#ifndef TESTS_LIB_CHECK_H
#define TESTS_LIB_CHECK_H

#include "sherd.h"

#include <stddef.h>
#include <stdint.h>

typedef struct test_case {
    const char *name;
    void (*run)(void);
} test_case;

#define CASE(function)                                                                             \
    {                                                                                              \
#function, function                                                                        \
    }

/** Runs the cases whose names contain argv[1] (all without it). Skips them all where SHERD_BACKEND names a
 *  backend of which there is no device. */
int test_main(int argc, char **argv, const test_case *cases, size_t num_cases);

#define RUN_MAIN(cases)                                                                            \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        return test_main(argc, argv, cases, sizeof(cases) / sizeof((cases)[0]));                   \
    }

/** Ends the case as failed / skipped. From a thread that test_threads started, ends that thread's
 *  part; the case fails when any part does. */
_Noreturn void test_fail(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void test_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/** Runs body(rank, ctx) on `count` threads and waits for all. A failed check in one ends that one. */
void test_threads(int count, void (*body)(int rank, void *ctx), void *ctx);

/** Makes a world of threads and runs body on each rank; destroys each rank's world after. */
void test_world(int world_size, void (*body)(sherd_world *world, void *ctx), void *ctx);

/** Whether this run takes its lists whole (SHERD_TEST_LONG is set, as ./run test --long does), else a sample. */
int test_is_long(void);
/** Ends the case as skipped unless it does. */
void test_need_long(void);

/** An empty folder for this run, removed at the end of the program. */
const char *test_scratch(void);
/** How many entries of a folder have `part` in their names and do not begin with a dot. */
int test_files(const char *folder, const char *part);
/** Removes them. */
void test_files_remove(const char *folder, const char *part);

/** splitmix64 of a counter: the same sequence on every machine. */
uint64_t test_random(uint64_t *state);
float    test_random_float(uint64_t *state); /* in (-1, 1) */

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            test_fail(__FILE__, __LINE__, "not true: %s (last error: %s)", #condition,             \
                      sherd_last_error());                                                         \
        }                                                                                          \
    } while (0)

#define CHECK_STATUS(want, call)                                                                   \
    do {                                                                                           \
        sherd_status check_got_ = (call);                                                          \
        if (check_got_ != (want)) {                                                                \
            test_fail(__FILE__, __LINE__, "%s gave %s, not %s (last error: %s)", #call,            \
                      sherd_status_name(check_got_), sherd_status_name(want), sherd_last_error()); \
        }                                                                                          \
    } while (0)

#define CHECK_OK(call) CHECK_STATUS(SHERD_OK, call)

/* The last error holds every word of `part`. */
#define CHECK_ERROR_SAYS(part) test_check_contains(__FILE__, __LINE__, sherd_last_error(), part)
void test_check_contains(const char *file, int line, const char *text, const char *part);

#define CHECK_INT(want, got)                                                                       \
    do {                                                                                           \
        long long check_want_ = (long long)(want), check_got_ = (long long)(got);                  \
        if (check_want_ != check_got_) {                                                           \
            test_fail(__FILE__, __LINE__, "%s is %lld (0x%llx), not %lld (0x%llx)", #got,          \
                      check_got_, (unsigned long long)check_got_, check_want_,                     \
                      (unsigned long long)check_want_);                                            \
        }                                                                                          \
    } while (0)

#define CHECK_BYTES_EQUAL(want, got, len_bytes)                                                    \
    test_check_bytes(__FILE__, __LINE__, #got, want, got, len_bytes)
void test_check_bytes(const char *file, int line, const char *what, const void *want,
                      const void *got, size_t len_bytes);

/* |got - want| <= rtol * |want| + atol for each; says why a tolerance is needed at the call. */
#define CHECK_CLOSE_F32(got, want, n, rtol, atol)                                                  \
    test_check_close_f32(__FILE__, __LINE__, #got, got, want, n, rtol, atol)
void test_check_close_f32(const char *file, int line, const char *what, const float *got,
                          const float *want, size_t count, double rtol, double atol);

#define CHECK_CLOSE(want, got, rtol)                                                               \
    do {                                                                                           \
        double check_want_ = (want), check_got_ = (got);                                           \
        double check_gap_ =                                                                        \
            check_got_ > check_want_ ? check_got_ - check_want_ : check_want_ - check_got_;        \
        if (!(check_gap_ <= (rtol) * (check_want_ < 0 ? -check_want_ : check_want_))) {            \
            test_fail(__FILE__, __LINE__, "%s is %.17g, not %.17g", #got, check_got_,              \
                      check_want_);                                                                \
        }                                                                                          \
    } while (0)

#endif

/* The test runner: cases, checks that print both values, and the counts at the end. A test program
 * is a list of cases and RUN_MAIN. It takes a filter of case names as its argument, and exits with
 * 0 for pass, 1 for fail and 77 for skip. A failed check ends its case by longjmp, so a failed case
 * may leak memory. */
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

/** Runs the cases whose names contain argv[1], or all cases without an argument. Skips the whole
 *  program if SHERD_BACKEND names a backend of which there is no device. */
int test_main(int argc, char **argv, const test_case *cases, size_t num_cases);

#define RUN_MAIN(cases)                                                                            \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        return test_main(argc, argv, cases, sizeof(cases) / sizeof((cases)[0]));                   \
    }

/** End the case as failed or as skipped. In a thread that test_threads started they end that
 *  thread's part; the case fails if any part fails. */
_Noreturn void test_fail(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void test_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/** Runs body(rank, ctx) on `count` threads and waits for all of them. A failed check ends only the
 *  thread that made it. */
void test_threads(int count, void (*body)(int rank, void *ctx), void *ctx);

/** Makes a world of threads, runs body on each rank, and destroys each rank's world afterwards. */
void test_world(int world_size, void (*body)(sherd_world *world, void *ctx), void *ctx);

/** Returns whether this run goes through its whole lists (SHERD_TEST_LONG is set, as `./run test
 *  --long` does) or only a sample. */
int test_is_long(void);
/** Ends the case as skipped if this run is not a long one. */
void test_need_long(void);

/** Returns an empty folder for this run. It is removed when the program ends. */
const char *test_scratch(void);
/** Returns how many files of a folder have `ends` in their names ("": all); no hidden ones. */
int test_files_count(const char *folder, const char *ends);
/** Counts the entries of a folder that have `part` in their names and do not begin with a dot. */
int test_files(const char *folder, const char *part);
/** Removes the entries that test_files would count. */
void test_files_remove(const char *folder, const char *part);

/* What may lie at a path in place of a regular file. */
typedef enum test_odd {
    TEST_ODD_PIPE,
    TEST_ODD_SOCKET,
    TEST_ODD_LINK,     /* to a file in the same folder */
    TEST_ODD_DANGLING, /* a link to nothing */
    TEST_ODD_FOLDER,
    TEST_ODD_DEVICE, /* which root alone can make */
    TEST_ODDS,
} test_odd;
/** Makes it. Returns 0 where it cannot be made. */
int test_odd_make(const char *path, test_odd odd);
/** Fails unless it is there as it was made, with nothing else in its folder that begins with a dot;
 *  then removes it. */
void test_odd_remove(const char *path, test_odd odd);

/** Returns the next number of splitmix64, a generator over a counter: the sequence is the same on
 *  every machine. */
uint64_t test_random(uint64_t *state);
float    test_random_float(uint64_t *state); /* in [-1, 1) */

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

/* Checks that the last error contains `part`. */
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

/* Checks |got - want| <= rtol * |want| + atol for each element. Where it is used, a comment should
 * say why a tolerance is needed. */
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

/* Tests of base/: statuses and the last error, the log, counted memory with its injected faults,
 * checked arithmetic, hashes, the clock and threads. */
#include "base/checked.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/siphash.h"
#include "base/thread.h"
#include "tests/lib/check.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- status ---- */

static void status_names_and_texts_are_known(void)
{
    CHECK(strcmp(sherd_status_name(SHERD_OK), "SHERD_OK") == 0);
    CHECK(strcmp(sherd_status_name(SHERD_E_PEER_LOST), "SHERD_E_PEER_LOST") == 0);
    CHECK(strcmp(sherd_status_text(SHERD_E_NOMEM), "out of memory") == 0);
    CHECK(sherd_status_name((sherd_status)99) != NULL);
    CHECK(strcmp(sherd_status_text((sherd_status)99), "unknown status") == 0);
}

static void status_failure_keeps_its_sentence(void)
{
    CHECK_STATUS(SHERD_E_IO, sherdi_fail(SHERD_E_IO, "disk %d of %s", 3, "four"));
    CHECK(strcmp(sherd_last_error(), "disk 3 of four") == 0);
    CHECK_STATUS(SHERD_E_INVAL, sherdi_fail_relay(SHERD_E_INVAL, "100 % as it stands"));
    CHECK(strcmp(sherd_last_error(), "100 % as it stands") == 0);
}

static void status_sentence_may_quote_the_last_one(void)
{
    (void)sherdi_fail(SHERD_E_IO, "cause");
    (void)sherdi_fail(SHERD_E_IO, "rank 1: %s", sherd_last_error());
    CHECK(strcmp(sherd_last_error(), "rank 1: cause") == 0);
}

static void status_of_several_steps_is_the_first_failure(void)
{
    sherdi_outcome all = {.status = SHERD_OK};

    (void)sherdi_fail(SHERD_E_IO, "of an earlier call");
    sherdi_outcome_add(&all, SHERD_OK);
    CHECK_OK(sherdi_outcome_end(&all));
    sherdi_outcome_add(&all, sherdi_fail(SHERD_E_INVAL, "the first"));
    sherdi_outcome_add(&all, sherdi_fail(SHERD_E_NOMEM, "the second"));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_outcome_end(&all));
    CHECK(strcmp(sherd_last_error(), "the first") == 0);
    all = sherdi_outcome_of(sherdi_fail(SHERD_E_NOMEM, "alone"));
    (void)sherdi_fail(SHERD_E_IO, "while it was undone");
    CHECK_STATUS(SHERD_E_NOMEM, sherdi_outcome_end(&all));
    CHECK(strcmp(sherd_last_error(), "alone") == 0);
    all = sherdi_outcome_of(SHERD_OK);
    CHECK_OK(sherdi_outcome_end(&all));
}

static void status_long_sentence_is_cut(void)
{
    char text[2 * SHERDI_ERROR_BYTES];

    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    (void)sherdi_fail(SHERD_E_IO, "%s", text);
    CHECK_INT(SHERDI_ERROR_BYTES - 1, strlen(sherd_last_error()));
}

static void thread_fails(int rank, void *ctx)
{
    (void)ctx;
    CHECK(sherd_last_error()[0] == '\0');
    (void)sherdi_fail(SHERD_E_IO, "of thread %d", rank);
    CHECK_ERROR_SAYS(rank == 0 ? "of thread 0" : "of thread 1");
}

static void status_each_thread_has_its_own_last_error(void)
{
    (void)sherdi_fail(SHERD_E_IO, "of main");
    test_threads(2, thread_fails, NULL);
    CHECK_ERROR_SAYS("of main");
}

static sherd_status try_twice(sherd_status first, int *reached)
{
    SHERDI_TRY(first);
    *reached = 1;
    return SHERD_OK;
}

static void status_try_passes_failures_on(void)
{
    int reached = 0;

    CHECK_STATUS(SHERD_E_AGAIN, try_twice(SHERD_E_AGAIN, &reached));
    CHECK_INT(0, reached);
    CHECK_OK(try_twice(SHERD_OK, &reached));
    CHECK_INT(1, reached);
}

static void element_types_have_names_and_sizes(void)
{
    CHECK_INT(4, sherd_dtype_bytes(SHERD_F32));
    CHECK_INT(2, sherd_dtype_bytes(SHERD_BF16));
    CHECK_INT(2, sherd_dtype_bytes(SHERD_F16));
    CHECK_INT(0, sherd_dtype_bytes((sherd_dtype)9));
    CHECK(strcmp(sherd_dtype_name(SHERD_BF16), "bf16") == 0);
}

static void version_starts_with_the_numbers(void)
{
    char want[32];

    (void)snprintf(want, sizeof(want), "%d.%d.%d", SHERD_VERSION_MAJOR, SHERD_VERSION_MINOR,
                   SHERD_VERSION_PATCH);
    CHECK(strncmp(sherd_version(), want, strlen(want)) == 0);
}

/* ---- log ---- */

typedef struct heard {
    int             lines;
    sherd_log_level level;
    char            line[SHERDI_ERROR_BYTES];
} heard;

static void hear(void *ctx, sherd_log_level level, const char *line)
{
    heard *into = ctx;

    into->lines++;
    into->level = level;
    (void)snprintf(into->line, sizeof(into->line), "%s", line);
}

static void log_lines_reach_the_listener_up_to_its_level(void)
{
    heard got = {0};

    sherd_log_set(hear, &got, SHERD_LOG_INFO);
    CHECK(sherdi_log_is_on(SHERD_LOG_ERROR));
    CHECK(!sherdi_log_is_on(SHERD_LOG_DEBUG));
    sherdi_log(SHERD_LOG_DEBUG, -1, "not heard");
    CHECK_INT(0, got.lines);
    sherdi_log(SHERD_LOG_INFO, 3, "bytes %d", 4096);
    CHECK_INT(1, got.lines);
    CHECK_INT(SHERD_LOG_INFO, got.level);
    CHECK(strcmp(got.line, "rank 3: bytes 4096") == 0);
    sherdi_log(SHERD_LOG_WARN, -1, "no rank yet");
    CHECK(strcmp(got.line, "no rank yet") == 0);
    sherd_log_set(NULL, NULL, SHERD_LOG_TRACE);
    CHECK(!sherdi_log_is_on(SHERD_LOG_ERROR));
    sherdi_log(SHERD_LOG_ERROR, -1, "nobody hears");
    CHECK_INT(2, got.lines);
}

/* The log speaks in a process of its own, because the environment is read only once in a
 * process. */
static void log_of_an_unknown_level_is_told_once(void)
{
    static const char WANT[] =
        "sherd warn: SHERD_LOG is \"foo\": it may be error, warn, info, debug or trace\n"
        "sherd warn: heard\n";
    char    text[512] = "";
    char    line[600];
    char    self[300];
    FILE   *child;
    ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);

    CHECK(len > 0);
    self[len] = '\0';
    (void)snprintf(line, sizeof(line), "SHERD_LOG=foo %s --log 2>&1", self);
    child = popen(line, "r");
    CHECK(child != NULL);
    (void)!fread(text, 1, sizeof(text) - 1, child);
    CHECK_INT(0, pclose(child));
    CHECK_BYTES_EQUAL(WANT, text, sizeof(WANT));
}

/* This is what that process does. */
static int log_speak(void)
{
    sherdi_log(SHERD_LOG_INFO, -1, "not heard");
    sherdi_log(SHERD_LOG_WARN, -1, "heard");
    return 0;
}

static void log_long_line_is_cut(void)
{
    heard got = {0};
    char  text[2 * SHERDI_ERROR_BYTES];

    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    sherd_log_set(hear, &got, SHERD_LOG_TRACE);
    sherdi_log(SHERD_LOG_TRACE, 0, "%s", text);
    sherd_log_set(NULL, NULL, SHERD_LOG_TRACE);
    CHECK_INT(SHERDI_ERROR_BYTES - 1, strlen(got.line));
}

enum { THREAD_LINES = 200 };

static void thread_logs(int rank, void *ctx)
{
    (void)ctx;
    for (int i = 0; i < THREAD_LINES; i++) {
        sherdi_log(SHERD_LOG_INFO, rank, "line %d", i);
    }
}

static void log_calls_the_listener_one_at_a_time(void)
{
    heard got = {0};

    sherd_log_set(hear, &got, SHERD_LOG_INFO);
    test_threads(4, thread_logs, NULL);
    sherd_log_set(NULL, NULL, SHERD_LOG_INFO);
    CHECK_INT(4 * THREAD_LINES, got.lines);
}

/* ---- memory ---- */

static size_t peak_of(sherdi_mem *mem, sherdi_mem_purpose purpose)
{
    return atomic_load(&mem->peak_bytes[purpose]);
}

static void mem_allocations_are_counted_by_purpose(void)
{
    sherdi_mem mem;
    void      *small, *large;

    sherdi_mem_init(&mem);
    small = sherdi_alloc(&mem, SHERDI_MEM_CONTROL, 100);
    large = sherdi_alloc(&mem, SHERDI_MEM_STATE, 100000);
    CHECK(small != NULL && large != NULL);
    CHECK_INT(100, sherdi_mem_held(&mem, SHERDI_MEM_CONTROL));
    CHECK_INT(100000, sherdi_mem_held(&mem, SHERDI_MEM_STATE));
    CHECK_INT(100100, sherdi_mem_held_all(&mem));
    CHECK_INT(2, atomic_load(&mem.allocations));
    sherdi_free(large);
    CHECK_INT(100, sherdi_mem_held_all(&mem));
    CHECK_INT(100000, peak_of(&mem, SHERDI_MEM_STATE));
    sherdi_free(small);
    sherdi_free(NULL);
    CHECK_INT(0, sherdi_mem_held_all(&mem));
    CHECK_INT(2, atomic_load(&mem.allocations));
}

static void mem_blocks_are_zeroed_and_aligned(void)
{
    static const size_t SIZES[] = {0, 1, 63, 64, 65, 4095, 4096, 4097, 1 << 20};
    sherdi_mem          mem;

    sherdi_mem_init(&mem);
    for (size_t i = 0; i < sizeof(SIZES) / sizeof(SIZES[0]); i++) {
        unsigned char *block = sherdi_alloc(&mem, SHERDI_MEM_PARAMS, SIZES[i]);
        size_t         align = SIZES[i] >= SHERD_ALIGN_BYTES ? SHERD_ALIGN_BYTES : 64;

        CHECK(block != NULL);
        CHECK_INT(0, (uintptr_t)block % align);
        for (size_t at = 0; at < SIZES[i]; at++) {
            CHECK_INT(0, block[at]);
        }
        memset(block, 0xff, SIZES[i]);
        sherdi_free(block);
    }
    CHECK_INT(0, sherdi_mem_held_all(&mem));
}

/* A locked or large block begins at a huge page, and shares no page with another block. */
static void mem_pages_are_zeroed_and_aligned_to_huge_pages(void)
{
    static const size_t SIZES[] = {1, 4096, 5000, SHERDI_HUGE_BYTES, 3 * SHERDI_HUGE_BYTES + 1};
    sherdi_mem          mem;

    sherdi_mem_init(&mem);
    for (size_t i = 0; i < sizeof(SIZES) / sizeof(SIZES[0]); i++) {
        unsigned char *block = sherdi_alloc_pages(&mem, SHERDI_MEM_STATE, SIZES[i]);

        CHECK(block != NULL);
        CHECK_INT(0, (uintptr_t)block % SHERDI_HUGE_BYTES);
        CHECK_INT(SIZES[i], sherdi_mem_held(&mem, SHERDI_MEM_STATE));
        CHECK_INT(0, sherdi_pages_take(block, SIZES[i]));
        CHECK_INT(0, block[0]);
        CHECK_INT(0, block[SIZES[i] - 1]);
        memset(block, 0xff, SIZES[i]);
        sherdi_free(block);
    }
    (void)sherdi_mem_fail_nth(1);
    CHECK(sherdi_alloc_pages(&mem, SHERDI_MEM_STATE, 4096) == NULL);
    CHECK(sherdi_alloc_pages(&mem, SHERDI_MEM_STATE, SIZE_MAX - 4096) == NULL);
    CHECK_INT(0, sherdi_mem_held_all(&mem));
}

static void mem_impossible_sizes_fail_with_a_sentence(void)
{
    sherdi_mem mem;

    sherdi_mem_init(&mem);
    CHECK(sherdi_alloc(&mem, SHERDI_MEM_GATHER, SIZE_MAX) == NULL);
    CHECK_ERROR_SAYS("bytes of gather");
    CHECK(sherdi_alloc(&mem, SHERDI_MEM_GATHER, SIZE_MAX - 4096) == NULL);
    CHECK(sherdi_alloc_array(&mem, SHERDI_MEM_GATHER, SIZE_MAX / 2, 3) == NULL);
    CHECK_ERROR_SAYS("more than an address holds");
    CHECK_INT(0, sherdi_mem_held_all(&mem));
    CHECK_INT(0, atomic_load(&mem.allocations));
}

static void mem_array_grows_and_keeps_its_contents(void)
{
    sherdi_mem mem;
    void      *array    = NULL;
    size_t     capacity = 0;
    int       *numbers;

    sherdi_mem_init(&mem);
    for (int i = 0; i < 100; i++) {
        CHECK_OK(
            sherdi_grow(&mem, SHERDI_MEM_CONTROL, &array, &capacity, (size_t)i + 1, sizeof(int)));
        CHECK(capacity > (size_t)i);
        numbers    = array;
        numbers[i] = i;
    }
    numbers = array;
    for (int i = 0; i < 100; i++) {
        CHECK_INT(i, numbers[i]);
    }
    CHECK_INT(capacity * sizeof(int), sherdi_mem_held_all(&mem));
    CHECK(atomic_load(&mem.allocations) < 10);
    CHECK_STATUS(SHERD_E_NOMEM,
                 sherdi_grow(&mem, SHERDI_MEM_CONTROL, &array, &capacity, SIZE_MAX, 2));
    CHECK(array == numbers);
    sherdi_free(array);
    CHECK_INT(0, sherdi_mem_held_all(&mem));
}

static void mem_text_is_copied(void)
{
    sherdi_mem mem;
    char      *copy;

    sherdi_mem_init(&mem);
    copy = sherdi_strdup(&mem, "a name");
    CHECK(copy != NULL && strcmp(copy, "a name") == 0);
    CHECK_INT(7, sherdi_mem_held(&mem, SHERDI_MEM_CONTROL));
    sherdi_free(copy);
    CHECK_INT(0, sherdi_mem_held_all(&mem));
}

static void mem_notes_enter_and_leave(void)
{
    sherdi_mem mem;

    sherdi_mem_init(&mem);
    sherdi_mem_note(&mem, SHERDI_MEM_TRANSPORT, 5000);
    sherdi_mem_note(&mem, SHERDI_MEM_TRANSPORT, -2000);
    CHECK_INT(3000, sherdi_mem_held(&mem, SHERDI_MEM_TRANSPORT));
    CHECK_INT(5000, peak_of(&mem, SHERDI_MEM_TRANSPORT));
    sherdi_mem_note(&mem, SHERDI_MEM_TRANSPORT, -3000);
    CHECK_INT(0, sherdi_mem_held_all(&mem));
}

static void mem_every_purpose_has_a_name(void)
{
    for (int i = 0; i < SHERDI_MEM_PURPOSES; i++) {
        CHECK(sherdi_mem_purpose_name((sherdi_mem_purpose)i)[0] != '\0');
    }
}

static void mem_nth_allocation_fails_once(void)
{
    sherdi_mem mem;
    void      *blocks[4];

    sherdi_mem_init(&mem);
    (void)sherdi_mem_fail_nth(3);
    for (int i = 0; i < 4; i++) {
        blocks[i] = sherdi_alloc(&mem, SHERDI_MEM_CONTROL, 8);
        CHECK_INT(i != 2, blocks[i] != NULL);
    }
    CHECK_ERROR_SAYS("no memory for 8 bytes of control");
    CHECK_INT(4, sherdi_mem_fail_nth(0));
    CHECK_INT(0, sherdi_mem_fail_nth(0));
    for (int i = 0; i < 4; i++) {
        sherdi_free(blocks[i]);
    }
    CHECK_INT(0, sherdi_mem_held_all(&mem));
}

static void thread_allocates(int rank, void *ctx)
{
    void *block = sherdi_alloc(ctx, SHERDI_MEM_CONTROL, 8);

    (void)rank;
    CHECK(block != NULL);
    sherdi_free(block);
}

static void mem_fault_is_for_one_thread(void)
{
    sherdi_mem mem;

    sherdi_mem_init(&mem);
    (void)sherdi_mem_fail_nth(1);
    test_threads(3, thread_allocates, &mem);
    CHECK(sherdi_alloc(&mem, SHERDI_MEM_CONTROL, 8) == NULL);
    (void)sherdi_mem_fail_nth(0);
}

static void thread_churns(int rank, void *ctx)
{
    for (size_t i = 1; i < 2000; i++) {
        void *block = sherdi_alloc(ctx, (sherdi_mem_purpose)rank, i);

        CHECK(block != NULL);
        sherdi_free(block);
    }
}

static void mem_account_is_exact_across_threads(void)
{
    sherdi_mem mem;

    sherdi_mem_init(&mem);
    test_threads(4, thread_churns, &mem);
    CHECK_INT(0, sherdi_mem_held_all(&mem));
    CHECK_INT(4 * 1999, atomic_load(&mem.allocations));
    CHECK_INT(1999, peak_of(&mem, SHERDI_MEM_STATE));
}

/* ---- arithmetic ---- */

static void checked_products_and_sums_say_when_they_do_not_fit(void)
{
    size_t got;

    CHECK(sherdi_mul_fits(SIZE_MAX / 2, 2, &got));
    CHECK(got == SIZE_MAX - 1);
    CHECK(!sherdi_mul_fits(SIZE_MAX / 2 + 1, 2, &got));
    CHECK(got == SIZE_MAX);
    CHECK(sherdi_mul_fits(0, SIZE_MAX, &got));
    CHECK_INT(0, got);
    CHECK(sherdi_add_fits(SIZE_MAX, 0, &got));
    CHECK(!sherdi_add_fits(SIZE_MAX, 1, &got));
    CHECK(got == SIZE_MAX);
}

static void rounding_goes_up_to_the_unit(void)
{
    CHECK_INT(0, sherdi_div_up(0, 64));
    CHECK_INT(1, sherdi_div_up(1, 64));
    CHECK_INT(1, sherdi_div_up(64, 64));
    CHECK_INT(2, sherdi_div_up(65, 64));
    CHECK(sherdi_div_up(SIZE_MAX, 2) == SIZE_MAX / 2 + 1); /* the calculation must not overflow */
    CHECK_INT(0, sherdi_round_up(0, 64));
    CHECK_INT(64, sherdi_round_up(64, 64));
    CHECK_INT(192, sherdi_round_up(129, 64));
    CHECK_INT(3, sherdi_min_size(3, 5));
    CHECK_INT(5, sherdi_max_size(3, 5));
}

static void hash_sees_every_byte_length_and_order(void)
{
    unsigned char bytes[37] = {0};
    uint64_t      zero      = sherdi_hash_bytes(0, bytes, sizeof(bytes));

    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = 1;
        CHECK(sherdi_hash_bytes(0, bytes, sizeof(bytes)) != zero);
        bytes[i] = 0;
    }
    CHECK(sherdi_hash_bytes(0, bytes, sizeof(bytes) - 1) != zero);
    CHECK(sherdi_hash_u64(sherdi_hash_u64(0, 1), 2) != sherdi_hash_u64(sherdi_hash_u64(0, 2), 1));
}

static void clock_never_goes_back(void)
{
    int64_t previous = sherdi_now_ns();

    for (int i = 0; i < 1000; i++) {
        int64_t now = sherdi_now_ns();

        CHECK(now >= previous);
        previous = now;
    }
}

/* ---- siphash ---- */

static void siphash_gives_the_numbers_of_its_paper(void)
{
    static const uint64_t KEY[2] = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
    unsigned char         text[15];

    for (size_t i = 0; i < sizeof(text); i++) {
        text[i] = (unsigned char)i;
    }
    /* the example of the paper's appendix A */
    CHECK(sherdi_siphash(KEY, text, sizeof(text)) == 0xa129ca6149be45e5);
    /* the first of vectors_sip64 in the reference implementation */
    CHECK(sherdi_siphash(KEY, text, 0) == 0x726fdb47dd0e0e31);
}

typedef struct told_thread {
    sigset_t blocked;
    size_t   stack_bytes;
} told_thread;

static void *thread_tells(void *ctx)
{
    told_thread   *told = ctx;
    pthread_attr_t attributes;

    CHECK_INT(0, pthread_sigmask(SIG_BLOCK, NULL, &told->blocked));
    CHECK_INT(0, pthread_getattr_np(pthread_self(), &attributes));
    CHECK_INT(0, pthread_attr_getstacksize(&attributes, &told->stack_bytes));
    (void)pthread_attr_destroy(&attributes);
    return NULL;
}

/* No stack can have the last size, so that thread gets the default size. */
static void thread_has_its_stack_and_no_signal_reaches_it(void)
{
    static const size_t STACKS[] = {0, (size_t)256 << 10, 1};
    told_thread         told[sizeof(STACKS) / sizeof(STACKS[0])];
    sigset_t            before, after;

    CHECK_INT(0, pthread_sigmask(SIG_BLOCK, NULL, &before));
    for (size_t i = 0; i < sizeof(STACKS) / sizeof(STACKS[0]); i++) {
        pthread_t thread;

        CHECK_INT(0, sherdi_thread_start(&thread, STACKS[i], thread_tells, &told[i]));
        CHECK_INT(0, pthread_join(thread, NULL));
        CHECK(sigismember(&told[i].blocked, SIGINT) && sigismember(&told[i].blocked, SIGUSR1));
    }
    CHECK(told[1].stack_bytes < told[0].stack_bytes);
    CHECK_INT(told[0].stack_bytes, told[2].stack_bytes);
    CHECK_INT(0, pthread_sigmask(SIG_BLOCK, NULL, &after));
    CHECK_INT(sigismember(&before, SIGINT), sigismember(&after, SIGINT));
}

static const test_case CASES[] = {
    CASE(status_names_and_texts_are_known),
    CASE(status_failure_keeps_its_sentence),
    CASE(status_of_several_steps_is_the_first_failure),
    CASE(status_sentence_may_quote_the_last_one),
    CASE(status_long_sentence_is_cut),
    CASE(status_each_thread_has_its_own_last_error),
    CASE(status_try_passes_failures_on),
    CASE(element_types_have_names_and_sizes),
    CASE(version_starts_with_the_numbers),
    CASE(log_lines_reach_the_listener_up_to_its_level),
    CASE(log_of_an_unknown_level_is_told_once),
    CASE(log_long_line_is_cut),
    CASE(log_calls_the_listener_one_at_a_time),
    CASE(mem_allocations_are_counted_by_purpose),
    CASE(mem_blocks_are_zeroed_and_aligned),
    CASE(mem_pages_are_zeroed_and_aligned_to_huge_pages),
    CASE(mem_impossible_sizes_fail_with_a_sentence),
    CASE(mem_array_grows_and_keeps_its_contents),
    CASE(mem_text_is_copied),
    CASE(mem_notes_enter_and_leave),
    CASE(mem_every_purpose_has_a_name),
    CASE(mem_nth_allocation_fails_once),
    CASE(mem_fault_is_for_one_thread),
    CASE(mem_account_is_exact_across_threads),
    CASE(checked_products_and_sums_say_when_they_do_not_fit),
    CASE(rounding_goes_up_to_the_unit),
    CASE(hash_sees_every_byte_length_and_order),
    CASE(clock_never_goes_back),
    CASE(thread_has_its_stack_and_no_signal_reaches_it),
    CASE(siphash_gives_the_numbers_of_its_paper),
};

int main(int argc, char **argv)
{
    return argc == 2 && strcmp(argv[1], "--log") == 0
               ? log_speak()
               : test_main(argc, argv, CASES, sizeof(CASES) / sizeof(CASES[0]));
}

/* Messages between ranks: every exchange of a sealed engine is an operation of its kind, so that
 * all of its bytes are counted. */
#include "engine/run/engine_impl.h"
#include "engine/proof/moves.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <string.h>

/* -------------------------------------------------------------- recording -- */

#define MOST 32

/* Stands before the engine's own function. */
typedef struct recorder {
    rig         *r;
    sherdi_op_fn fn;
    void        *ctx;
    int          kinds[MOST], count;
    uint64_t     wire, sent_before;
} recorder;

static sherd_status op_record(void *ctx, const sherdi_op *op)
{
    recorder *recorder = ctx;

    recorder->wire += sherdi_op_wire(recorder->r->engine->plan, op);
    if (op->kind == SHERDI_OP_EXCHANGE && recorder->count < MOST) {
        recorder->kinds[recorder->count++] = op->part;
    }
    return recorder->fn(recorder->ctx, op);
}

static uint64_t sent(const rig *r)
{
    uint64_t sent_bytes;

    sherd_world_traffic(r->world, &sent_bytes, NULL);
    return sent_bytes;
}

static void record_begin(recorder *recorder, rig *r)
{
    sherdi_program *program = &r->engine->run.program;

    recorder->r           = r;
    recorder->fn          = program->fn;
    recorder->ctx         = program->ctx;
    recorder->count       = 0;
    recorder->wire        = 0;
    recorder->sent_before = sent(r);
    program->fn           = op_record;
    program->ctx          = recorder;
}

/* Ends the recording of a call, which has made these exchanges and sent no other bytes than its
 * operations count. */
static void record_end(recorder *recorder, const char *call, const int *kinds, int count)
{
    sherdi_program *program = &recorder->r->engine->run.program;

    program->fn  = recorder->fn;
    program->ctx = recorder->ctx;
    if (recorder->count != count ||
        memcmp(recorder->kinds, kinds, sizeof(*kinds) * (size_t)count)) {
        test_fail(__FILE__, __LINE__, "%s made %d exchanges, not %d, or others; the first is %d",
                  call, recorder->count, count, recorder->kinds[0]);
    }
    if (sent(recorder->r) - recorder->sent_before != recorder->wire) {
        test_fail(__FILE__, __LINE__, "%s sent %llu bytes, and counted %llu", call,
                  (unsigned long long)(sent(recorder->r) - recorder->sent_before),
                  (unsigned long long)recorder->wire);
    }
}

#define RECORDED(call, ...)                                                                        \
    do {                                                                                           \
        const int kinds_[] = {__VA_ARGS__};                                                        \
                                                                                                   \
        record_begin(&recorder, &r);                                                               \
        CHECK_OK(call);                                                                            \
        record_end(&recorder, #call, kinds_, (int)(sizeof(kinds_) / sizeof(kinds_[0])));           \
    } while (0)

/* ------------------------------------------------------------------ cases -- */

static void calls_of_a_layout(sherd_world *world, void *raw)
{
    const rig_options *options  = raw;
    float              value    = 1;
    recorder           recorder = {0};
    sherd_step_params  skip;
    rig                r;
    uint64_t           seen;

    rig_open(&r, world, options);
    rig_three(&r, 300);
    rig_seal(&r);
    RECORDED(sherd_engine_fingerprint(r.engine, &seen), SHERDI_EXCHANGE_FIRST_VALUES,
             SHERDI_EXCHANGE_STATUS, SHERDI_EXCHANGE_FIRST_HASHES, SHERDI_EXCHANGE_FINGERPRINT);
    RECORDED(sherd_param_fingerprint(r.engine, 1, &seen), SHERDI_EXCHANGE_FINGERPRINT);
    RECORDED(sherd_eval_begin(r.engine, NULL), SHERDI_EXCHANGE_ARGUMENTS);
    RECORDED(sherd_eval_end(r.engine), SHERDI_EXCHANGE_ARGUMENTS);
    RECORDED(sherd_param_write(r.engine, 1, SHERD_MASTER, 3, 1, &value), SHERDI_EXCHANGE_ARGUMENTS,
             SHERDI_EXCHANGE_OUTCOME);
    RECORDED(sherd_engine_set_step(r.engine, 5, 5), SHERDI_EXCHANGE_ARGUMENTS);
    rig_micro_batch(&r);
    if (options->optimizer == NULL) {
        RECORDED(sherd_step(r.engine, NULL), SHERDI_EXCHANGE_USES, SHERDI_EXCHANGE_NORM,
                 SHERDI_EXCHANGE_OUTCOME);
    } else {
        RECORDED(sherd_step(r.engine, NULL), SHERDI_EXCHANGE_USES, SHERDI_EXCHANGE_NORM,
                 SHERDI_EXCHANGE_STATUS, SHERDI_EXCHANGE_OUTCOME);
    }
    rig_micro_batch(&r);
    RECORDED(sherd_step_prepare(r.engine, NULL), SHERDI_EXCHANGE_USES, SHERDI_EXCHANGE_NORM);
    sherd_step_params_init(&skip);
    skip.overflow = 1;
    RECORDED(sherd_step_apply(r.engine, &skip), SHERDI_EXCHANGE_CALL, SHERDI_EXCHANGE_OUTCOME);
    rig_close(&r);
}

static void every_exchange_is_an_operation_and_counted(void)
{
    static const rig_options OPTIONS[] = {
        {.stage = 3, .dtype = SHERD_BF16},
        {.stage = 1, .dtype = SHERD_F32},
        {.stage = 0, .dtype = SHERD_F32},
        {.stage = 2, .dtype = SHERD_BF16, .optimizer = "Lamb"},
    };

    for (size_t i = 0; i < sizeof(OPTIONS) / sizeof(OPTIONS[0]); i++) {
        for (int ranks = 2; ranks <= 3; ranks++) {
            test_world(ranks, calls_of_a_layout, (void *)(uintptr_t)&OPTIONS[i]);
        }
    }
}

static void table_is_in_the_page(void)
{
    static const struct {
        const char *kind;
        size_t      words;
    } ROWS[] = {
#define SHERDI_EXCHANGE(kind, words, ...) {#kind, words},
#include "engine/program/exchange_list.h"
#undef SHERDI_EXCHANGE
    };
    static char page[1 << 18], row[512];
    FILE       *file = fopen(TEST_PAGE, "r");

    CHECK(file != NULL);
    CHECK(fread(page, 1, sizeof(page) - 1, file) > 0);
    (void)fclose(file);
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
        (void)snprintf(row, sizeof(row), "\n| %s | %zu | ", ROWS[i].kind,
                       ROWS[i].words * sizeof(uint64_t));
        if (strstr(page, row) == NULL) {
            test_fail(__FILE__, __LINE__, "%s does not have this row:%s", TEST_PAGE, row);
        }
    }
}

static const test_case CASES[] = {
    CASE(every_exchange_is_an_operation_and_counted),
    CASE(table_is_in_the_page),
};

RUN_MAIN(CASES)

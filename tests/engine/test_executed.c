/* What an engine carries out in a window that follows the plan is what its plan tells: the operations that are printed,
 * counted, played against rates and proved, one by one, with their lanes, ranges and bytes. */
#include "engine/dry/tell.h"
#include "engine/run/engine_impl.h"
#include "sherd_build.h"
#include "tests/engine/op_list.h"
#include "tests/engine/rig.h"
#include "tests/engine/toy.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ lists -- */

static sherd_status told_add(void *ctx, sherdi_phase_name phase, const sherdi_op *op)
{
    (void)phase;
    return op_list_add(ctx, op);
}

/* Stands before the engine's own function. */
typedef struct recorder {
    op_list      list;
    sherdi_op_fn fn;
    void        *ctx;
} recorder;

static sherd_status op_record(void *ctx, const sherdi_op *op)
{
    recorder *recorder = ctx;

    SHERDI_TRY(op_list_add(&recorder->list, op));
    return recorder->fn(recorder->ctx, op);
}

static void record_begin(recorder *recorder, sherd_engine *engine)
{
    sherdi_program *program = &engine->run.program;

    recorder->list = (op_list){0};
    recorder->fn   = program->fn;
    recorder->ctx  = program->ctx;
    program->fn    = op_record;
    program->ctx   = recorder;
}

static void record_end(const recorder *recorder, sherd_engine *engine)
{
    engine->run.program.fn  = recorder->fn;
    engine->run.program.ctx = recorder->ctx;
}

/* ------------------------------------------------------------- comparison -- */

/* Operations that keep their order among themselves. State and parameters are read ahead, the state while backward runs,
 * and are told where they are used; a gradient that was staged leaves when its place is wanted, and is told with its
 * micro-batch. Which of two places of the staging a gradient has goes on from window to window. */
typedef enum op_order {
    ORDER_READ_AHEAD = 0,
    ORDER_STAGED,
    ORDER_OTHERS,
    ORDERS,
} op_order;

static op_order order_of(const sherdi_op *op)
{
    int from = op->uses[SHERDI_USE_SRC].where;

    if (op->kind == SHERDI_OP_READ && op->ring != SHERDI_RING_GRADS) {
        return ORDER_READ_AHEAD;
    }
    return from == SHERDI_BUFFER_GRAD_STAGING || from == SHERDI_BUFFER_BOUNCE ||
                   ((op->kind == SHERDI_OP_READ || op->kind == SHERDI_OP_WRITE) &&
                    op->ring == SHERDI_RING_GRADS)
               ? ORDER_STAGED
               : ORDER_OTHERS;
}

static int are_ranges_same(const sherdi_op *a, const sherdi_op *b)
{
    for (int u = 0; u < SHERDI_USES; u++) {
        const sherdi_range *x = &a->uses[u];
        const sherdi_range *y = &b->uses[u];

        if (x->where != y->where ||
            (x->where != SHERDI_AT_NOWHERE &&
             (x->access != y->access || x->is_all_ranks != y->is_all_ranks ||
              (x->offset != y->offset && x->where != SHERDI_BUFFER_GRAD_STAGING) ||
              x->bytes != y->bytes))) {
            return 0;
        }
    }
    return memcmp(a->moves, b->moves, sizeof(a->moves)) == 0;
}

static int are_same(const sherdi_op *a, const sherdi_op *b)
{
    return op_is_alike(a, b) && are_ranges_same(a, b);
}

/* The next of an order. */
static size_t next_of(const op_list *list, op_order order, size_t at)
{
    while (at < list->count && order_of(&list->ops[at]) != order) {
        at++;
    }
    return at;
}

static void lists_compare(const op_list *told, const op_list *done, op_order order,
                          const char *what)
{
    size_t t = next_of(told, order, 0);
    size_t d = next_of(done, order, 0);
    char   text[2][128];

    while (t < told->count && d < done->count && are_same(&told->ops[t], &done->ops[d])) {
        t = next_of(told, order, t + 1);
        d = next_of(done, order, d + 1);
    }
    if (t < told->count || d < done->count) {
        test_fail(__FILE__, __LINE__, "%s: told is %s; carried out is %s", what,
                  op_list_text(told, t, text[0]), op_list_text(done, d, text[1]));
    }
}

/* What is read ahead: as many bytes of each file, and of the same extents. */
static void reads_compare(const op_list *told, const op_list *done, const char *what)
{
    const op_list *lists[] = {told, done};
    uint64_t       sums[2][SHERDI_RINGS][3]; /* how many, their bytes, their extents */

    memset(sums, 0, sizeof(sums));
    for (int l = 0; l < 2; l++) {
        for (size_t i = 0; i < lists[l]->count; i++) {
            const sherdi_op *op = &lists[l]->ops[i];

            if (order_of(op) == ORDER_READ_AHEAD) {
                sums[l][op->ring][0]++;
                sums[l][op->ring][1] += op->moves[SHERDI_MOVES_READ];
                sums[l][op->ring][2] += (op->extent + 1) * (op->extent + 1);
            }
        }
    }
    for (int ring = 0; ring < SHERDI_RINGS; ring++) {
        if (memcmp(sums[0][ring], sums[1][ring], sizeof(sums[0][ring])) != 0) {
            test_fail(__FILE__, __LINE__, "%s, ring %d: %llu reads are told, %llu carried out",
                      what, ring, (unsigned long long)sums[0][ring][0],
                      (unsigned long long)sums[1][ring][0]);
        }
    }
}

/* ------------------------------------------------------------------ cases -- */

typedef struct one_case {
    rig_options options;
    const char *name;
    int         world_size;
    int         is_beside;
} one_case;

static void window_run(rig *r, int accumulation)
{
    (void)rig_train(r, accumulation);
    for (int u = 0; u < r->num_units; u++) {
        rig_forward(r, u, SHERD_EVAL);
    }
}

static void window_compare(sherd_world *world, void *raw)
{
    const one_case *what = raw;
    recorder        recorder;
    op_list         told = {0};
    char            name[128];
    rig             r;

    rig_open(&r, world, &what->options);
    rig_three(&r, 3000);
    rig_seal(&r);
    CHECK_OK(sherdi_dry_tell(r.engine->plan, &r.engine->model, SHERDI_TELL_ALL, told_add, &told));
    CHECK(told.count > 0);
    window_run(&r, what->options.accumulation); /* the first one ends what the fill began */
    for (int window = 1; window < 4; window++) {
        (void)snprintf(name, sizeof(name), "%s, stage %d, %d ranks, rank %d, window %d", what->name,
                       what->options.stage, what->world_size, sherd_world_rank(world), window);
        record_begin(&recorder, r.engine);
        window_run(&r, what->options.accumulation);
        record_end(&recorder, r.engine);
        for (int order = ORDER_STAGED; order < ORDERS; order++) {
            lists_compare(&told, &recorder.list, (op_order)order, name);
        }
        reads_compare(&told, &recorder.list, name);
        op_list_free(&recorder.list);
    }
    op_list_free(&told);
    rig_close(&r);
}

typedef struct layout_row {
    const char *name;
    const char *zero; /* %s is the folder */
    int         least_stage;
} layout_row;

#define STATE(device, more)                                                                        \
    ", \"offload_optimizer\": {\"device\": \"" device                                              \
    "\", \"nvme_path\": \"%s\", \"durable\": false, \"buffer_size\": 4096" more "}"
#define PARAMS(device)                                                                             \
    ", \"offload_param\": {\"device\": \"" device                                                  \
    "\", \"nvme_path\": \"%s\", \"buffer_size\": 2048, \"max_in_cpu\": 0}"

static const layout_row ROWS[] = {
    {"device", "", 0},
    {"small blocks", ", \"sub_group_size\": 512", 0},
    {"state cpu", STATE("cpu", ""), 1},
    {"state cpu, half", STATE("cpu", ", \"ratio\": 0.5"), 1},
    {"state and parameters cpu", STATE("cpu", "") PARAMS("cpu"), 3},
#ifdef SHERDI_HAVE_XXHASH
    {"state nvme", STATE("nvme", ""), 1},
    {"state nvme, one buffer", STATE("nvme", ", \"buffer_count\": 1"), 1},
    {"all nvme", STATE("nvme", ", \"gradients\": \"nvme\"") PARAMS("nvme"), 3},
#endif
};

static void rows_compare(one_case what)
{
    static const int WORLDS[] = {1, 2, 3};
    char             zero[512];

    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
        if (what.is_beside && strstr(ROWS[i].name, "state cpu") != NULL) {
            continue;
        }
        (void)snprintf(zero, sizeof(zero), ROWS[i].zero, test_scratch(), test_scratch());
        what.name         = ROWS[i].name;
        what.options.zero = zero;
        for (int stage = ROWS[i].least_stage; stage <= 3; stage++) {
            for (size_t w = 0; w < 3; w++) {
                if (!toy_takes_ranks(WORLDS[w])) {
                    continue;
                }
                what.options.stage = stage;
                what.world_size    = WORLDS[w];
                test_world(what.world_size, window_compare, &what);
            }
        }
    }
}

static void one_micro_batch(void)
{
    rows_compare((one_case){.options = {.dtype = SHERD_BF16, .accumulation = 1, .clip = 1}});
}

static void two_micro_batches(void)
{
    rows_compare((one_case){.options = {.dtype = SHERD_F32, .accumulation = 2}});
}

static void norms_of_whole_tensors(void)
{
    rows_compare((one_case){
        .options = {.dtype = SHERD_BF16, .accumulation = 2, .clip = 1, .optimizer = "Lamb"}});
}

static void in_one_order_of_sums(void)
{
    rows_compare((one_case){
        .options = {.dtype = SHERD_BF16, .accumulation = 2, .top = ", \"deterministic\": true"}});
}

static void units_of_any_uses(void)
{
    rows_compare((one_case){
        .options = {.dtype = SHERD_BF16, .accumulation = 2, .backward_uses = SHERD_USES_ANY}});
}

/* Of the rows where a parameter rests with its state, or the state on a drive. */
static void masters_beside_parameters(void)
{
    rows_compare(
        (one_case){.options   = {.dtype        = SHERD_BF16,
                                 .accumulation = 2,
                                 .top = ", \"sherd\": {\"master_encoding\": \"bf16_beside\"}"},
                   .is_beside = 1});
}

static const test_case CASES[] = {
    CASE(one_micro_batch),      CASE(two_micro_batches), CASE(norms_of_whole_tensors),
    CASE(in_one_order_of_sums), CASE(units_of_any_uses), CASE(masters_beside_parameters),
};

RUN_MAIN(CASES)

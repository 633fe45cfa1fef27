/* Compares what must be the same on all ranks, by hash. If it differs, the ranks search together
 * for the first difference and name it. All calls are collective. */
#include "engine/run/agree.h"

#include "base/checked.h"
#include "base/hash.h"
#include "engine/run/engine_impl.h"
#include "engine/run/loop.h"

#include <stdio.h>
#include <string.h>

/* Returns the first rank whose word number `at` differs from rank 0's; 0: all agree. */
static int odd_rank(const sherdi_told *told, int world_size, size_t at)
{
    const uint64_t *first = sherdi_told_by(told, 0);

    for (int r = 1; r < world_size; r++) {
        const uint64_t *other = sherdi_told_by(told, r);

        if (other[at] != first[at]) {
            return r;
        }
    }
    return 0;
}

/* -------------------------------------------------------------- status ---- */

/* Every message with a status begins with it. */
static sherd_status peers_check(const sherd_world *world, const sherdi_told *told, const char *when)
{
    for (int r = 0; r < sherd_world_size(world); r++) {
        sherd_status status = (sherd_status) * (const uint64_t *)sherdi_told_by(told, r);

        if (status != SHERD_OK) {
            return sherdi_fail(status,
                               "%s: rank %d failed%s%s: %s; its own sherd_last_error() says more",
                               sherdi_world_caller(world), r, when == NULL ? "" : " ",
                               when == NULL ? "" : when, sherd_status_text(status));
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_agree_world(sherd_world *world, sherd_status own)
{
    const sherdi_outcome here = sherdi_outcome_of(own);
    const uint64_t       mine = (uint64_t)own;
    const char          *name = sherdi_exchange_row_of(SHERDI_EXCHANGE_STATUS)->name;
    sherdi_told          told;
    sherd_status         status = sherdi_world_tell(world, &mine, sizeof(mine), name, &told);

    SHERDI_TRY(sherdi_outcome_end(&here));
    SHERDI_TRY(status);
    return peers_check(world, &told, NULL);
}

/* ----------------------------------------------------------- exchanges ---- */

/* `status` is the outcome of the exchange. */
static sherd_status exchange_end(const sherd_engine *engine, const sherdi_outcome *own,
                                 sherd_status status, const char *when)
{
    SHERDI_TRY(sherdi_outcome_end(own));
    SHERDI_TRY(status);
    return peers_check(engine->world, &engine->run.told, when);
}

sherd_status sherdi_agree_on(sherd_engine *engine, sherdi_exchange_kind kind, sherd_status own,
                             void *mine, void *all, const char *when)
{
    const sherdi_outcome here = sherdi_outcome_of(own);

    *(uint64_t *)mine       = (uint64_t)own;
    engine->exchange.status = sherdi_run_exchange(engine, kind, mine, all, NULL);
    return exchange_end(engine, &here, engine->exchange.status, when);
}

sherd_status sherdi_agree_word(sherd_engine *engine, sherdi_exchange_kind kind, sherd_status own,
                               uint64_t word, const char *when)
{
    sherdi_word_message mine = {.word = word};

    return sherdi_agree_on(engine, kind, own, &mine, NULL, when);
}

sherd_status sherdi_agree_status(sherd_engine *engine, sherd_status own)
{
    uint64_t mine;

    return engine->run.program.fn == NULL
               ? sherdi_agree_world(engine->world, own)
               : sherdi_agree_on(engine, SHERDI_EXCHANGE_STATUS, own, &mine, NULL, NULL);
}

const void *sherdi_agree_told(const sherd_engine *engine, int rank)
{
    return sherdi_told_by(&engine->run.told, rank);
}

uint64_t sherdi_agree_word_of(const sherd_engine *engine, int rank)
{
    const sherdi_word_message *message = sherdi_agree_told(engine, rank);

    return message->word;
}

uint64_t sherdi_agree_sum(const sherd_engine *engine)
{
    uint64_t sum = 0;

    for (int r = 0; r < engine->world_size; r++) {
        sum += sherdi_agree_word_of(engine, r);
    }
    return sum;
}

/* ---------------------------------------------------------------- calls ---- */

sherd_status sherdi_agree_same(sherd_engine *engine, const char *call, sherd_status own,
                               uint64_t word, int *odd_out)
{
    const sherdi_outcome here = sherdi_outcome_of(own);
    sherdi_word_message  mine = {.status = (uint64_t)own, .word = word};

    SHERDI_TRY(exchange_end(
        engine, &here, sherdi_run_exchange(engine, SHERDI_EXCHANGE_CALL, &mine, NULL, call), NULL));
    *odd_out = odd_rank(&engine->run.told, engine->world_size, 1);
    return SHERD_OK;
}

static sherd_status argument_compare(sherd_engine *engine, sherd_status own, uint64_t word,
                                     int *odd_out)
{
    SHERDI_TRY(sherdi_agree_word(engine, SHERDI_EXCHANGE_ARGUMENTS, own, word, NULL));
    *odd_out = odd_rank(&engine->run.told, engine->world_size, 1);
    return SHERD_OK;
}

static sherd_status arguments_differ(sherd_engine *engine, const char *call, uint64_t hash,
                                     const sherdi_argument *arguments, size_t count)
{
    int rank;

    SHERDI_TRY(argument_compare(engine, SHERD_OK, hash, &rank));
    if (rank != 0) {
        return sherdi_fail(SHERD_E_INVAL,
                           "the ranks disagree: rank %d makes another call than rank 0 (this rank "
                           "calls %s); all ranks must make the same calls in the same order, "
                           "and " SHERDI_USUAL_CAUSE,
                           rank, call);
    }
    for (size_t i = 0; i < count && rank == 0; i++) {
        SHERDI_TRY(argument_compare(engine, SHERD_OK, arguments[i].value, &rank));
        if (rank != 0) {
            return sherdi_fail(SHERD_E_INVAL,
                               "the ranks disagree: rank %d calls %s with another %s than rank 0; "
                               "all ranks must pass the same",
                               rank, call, arguments[i].name);
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_agree_call(sherd_engine *engine, const char *call,
                               const sherdi_argument *arguments, size_t count, sherd_status own)
{
    uint64_t name = sherdi_hash_bytes(count, call, strlen(call));
    uint64_t hash = name;
    int      odd;

    for (size_t i = 0; i < count; i++) {
        hash = sherdi_hash_u64(hash, arguments[i].value);
    }
    SHERDI_TRY(argument_compare(engine, own, hash, &odd));
    return odd == 0 ? SHERD_OK : arguments_differ(engine, call, name, arguments, count);
}

/* ------------------------------------------------------------ settings ---- */

_Static_assert(SHERDI_SETTINGS_MOST * sizeof(uint64_t) <= SHERDI_TOLD_BYTES,
               "a rank can tell its settings");

sherd_status sherdi_agree_settings(sherd_world *world, const sherdi_settings *settings)
{
    sherdi_named_bits list[SHERDI_SETTINGS_MOST];
    uint64_t          mine[SHERDI_SETTINGS_MOST];
    size_t            count = sherdi_settings_list(settings, list);
    sherdi_told       told;

    for (size_t i = 0; i < count; i++) {
        mine[i] = list[i].bits;
    }
    SHERDI_TRY(sherdi_world_tell(world, mine, count * sizeof(*mine), "settings", &told));
    for (size_t i = 0; i < count; i++) {
        int rank = odd_rank(&told, sherd_world_size(world), i);

        if (rank != 0) {
            return sherdi_fail(SHERD_E_INVAL,
                               "rank %d has another value of %s than rank 0; all ranks must be "
                               "given the same configuration",
                               rank, list[i].key);
        }
    }
    return SHERD_OK;
}

/* --------------------------------------------------------------- model ---- */

static uint64_t items_hash(const sherdi_model *model, size_t count)
{
    uint64_t hash = 0;

    for (size_t i = 0; i < count && i < sherdi_model_num_items(model); i++) {
        hash = sherdi_hash_u64(hash, sherdi_model_item_hash(model, i));
    }
    return hash;
}

/* Compares a word; *told_out has those of all ranks. */
static sherd_status model_compare(const sherd_engine *engine, uint64_t word, sherdi_told *told_out,
                                  int *odd_out)
{
    SHERDI_TRY(sherdi_world_tell(engine->world, &word, sizeof(word), "the model", told_out));
    *odd_out = odd_rank(told_out, engine->world_size, 0);
    return SHERD_OK;
}

/* Finds the first item that differs: all ranks halve the list together until one item remains. */
static sherd_status first_difference(const sherd_engine *engine, size_t *out)
{
    size_t low  = 0; /* the first `low` items agree */
    size_t high = sherdi_model_num_items(&engine->model);

    while (high - low > 1) {
        size_t      middle = low + (high - low) / 2;
        sherdi_told unused;
        int         odd;

        SHERDI_TRY(model_compare(engine, items_hash(&engine->model, middle), &unused, &odd));
        if (odd == 0) {
            low = middle;
        } else {
            high = middle;
        }
    }
    *out = low;
    return SHERD_OK;
}

#define ITEM_TEXT_BYTES 192

static sherd_status model_difference_name(const sherd_engine *engine)
{
    char        mine[ITEM_TEXT_BYTES] = "";
    sherdi_told told;
    size_t      item;
    int         rank;

    SHERDI_TRY(first_difference(engine, &item));
    sherdi_model_item_text(&engine->model, item, mine, sizeof(mine));
    SHERDI_TRY(model_compare(engine, sherdi_model_item_hash(&engine->model, item), &told, &rank));
    SHERDI_TRY(sherdi_world_tell(engine->world, mine, sizeof(mine), "the model", &told));
    return sherdi_fail(SHERD_E_INVAL,
                       "the ranks declare different models: rank 0 has %s where rank %d has %s; "
                       "declare the same on every rank",
                       (const char *)sherdi_told_by(&told, 0), rank,
                       (const char *)sherdi_told_by(&told, rank));
}

sherd_status sherdi_agree_model(const sherd_engine *engine)
{
    size_t      count = sherdi_model_num_items(&engine->model);
    sherdi_told told;
    int         rank;

    SHERDI_TRY(model_compare(engine, count, &told, &rank));
    if (rank != 0) {
        return sherdi_fail(SHERD_E_INVAL,
                           "the ranks declare different models: rank 0 has %llu groups, units and "
                           "parameters, rank %d has %llu; declare the same on every rank",
                           *(const unsigned long long *)sherdi_told_by(&told, 0), rank,
                           *(const unsigned long long *)sherdi_told_by(&told, rank));
    }
    SHERDI_TRY(model_compare(engine, items_hash(&engine->model, count), &told, &rank));
    return rank == 0 ? SHERD_OK : model_difference_name(engine);
}

/* ---------------------------------------------------------------- uses ---- */

/* Returns one of a unit's counts: the acquires for pass `count`; for NUM_PASSES the micro-batches
 * with a complete backward. */
#define NUM_PASSES (SHERD_EVAL + 1)

static uint64_t uses_count(const sherd_engine *engine, int rank, size_t unit, int count)
{
    const sherdi_unit_uses *uses =
        &engine->exchange.uses[(size_t)rank * engine->plan->layout.num_units + unit];

    return count == NUM_PASSES ? uses->runs : uses->acquired[count];
}

/* Lists the ranks whose count differs from rank 0's, " 1 3", as many as fit. Returns the length. */
static size_t uses_odd_ranks(const sherd_engine *engine, size_t unit, int count, char *text,
                             size_t len_bytes)
{
    size_t used = 0;

    text[0] = '\0';
    for (int r = 1; r < engine->world_size && used < len_bytes; r++) {
        if (uses_count(engine, r, unit, count) != uses_count(engine, 0, unit, count)) {
            used += (size_t)snprintf(text + used, len_bytes - used, " %d", r);
        }
    }
    return used;
}

/* Names a unit that the ranks used differently, and the ranks. Backward counts are compared first:
 * a rank that misses a backward pass also differs in its acquires. */
static sherd_status uses_difference_name(sherd_engine *engine)
{
    char ranks[64];

    for (size_t u = 0; u < engine->plan->layout.num_units; u++) {
        if (uses_odd_ranks(engine, u, NUM_PASSES, ranks, sizeof(ranks)) > 0) {
            return sherdi_fail(
                SHERD_E_STATE,
                "the ranks disagree about unit %s: rank 0 ran its backward %llu time(s) in this "
                "window, but rank(s)%s more or fewer times; the window was dropped, nothing was "
                "updated; all ranks must use the same units, and " SHERDI_USUAL_CAUSE,
                engine->model.units[u].name,
                (unsigned long long)uses_count(engine, 0, u, NUM_PASSES), ranks);
        }
    }
    for (size_t u = 0; u < engine->plan->layout.num_units; u++) {
        for (int pass = 0; pass < NUM_PASSES; pass++) {
            if (uses_odd_ranks(engine, u, pass, ranks, sizeof(ranks)) > 0) {
                return sherdi_fail(
                    SHERD_E_STATE,
                    "the ranks disagree about unit %s: rank 0 acquired it %llu time(s) for %s in "
                    "this window, but rank(s)%s more or fewer times; the window was dropped, "
                    "nothing was updated; all ranks must acquire the same units, for eval too, "
                    "and " SHERDI_USUAL_CAUSE,
                    engine->model.units[u].name, (unsigned long long)uses_count(engine, 0, u, pass),
                    sherdi_pass_name((sherd_pass)pass), ranks);
            }
        }
    }
    return sherdi_fail(SHERD_E_STATE, "the ranks disagree about the number of micro-batches in "
                                      "this window; the window was dropped, nothing was updated; "
                                      "all ranks must call sherd_step equally often, "
                                      "and " SHERDI_USUAL_CAUSE);
}

void sherdi_agree_used_note(const sherd_engine *engine, uint64_t *words)
{
    size_t bit = 0;

    for (size_t u = 0; u < engine->plan->layout.num_units; u++) {
        if (engine->plan->layout.units[u].is_open_ended) {
            words[bit / 64] |= (uint64_t)sherdi_unit_of(engine, (int)u)->has_gradient << bit % 64;
            bit++;
        }
    }
    words[bit / 64] |= (uint64_t)engine->window.has_backward << bit % 64;
}

/* Begins the gradients that any rank has; on a rank that had none, the gradient is zero. */
static sherd_status used_begin(sherd_engine *engine, const uint64_t *words)
{
    const sherdi_program *program = &engine->run.program;
    uint32_t              before  = sherdi_program_flag(program, SHERDI_OP_ALONE);
    sherd_status          status  = SHERD_OK;
    size_t                bit     = 0;

    for (size_t u = 0; u < engine->plan->layout.num_units && status == SHERD_OK; u++) {
        if (engine->plan->layout.units[u].is_open_ended) {
            if (words[bit / 64] >> bit % 64 & 1) {
                status = sherdi_program_gradient_begin(program, (int)u);
            }
            bit++;
        }
    }
    program->progress->flags = before;
    SHERDI_TRY(status);
    engine->window.has_backward = (int)(words[bit / 64] >> bit % 64 & 1);
    return SHERD_OK;
}

sherd_status sherdi_agree_used(sherd_engine *engine)
{
    size_t    count = sherdi_plan_used_words(engine->plan->layout.num_open_ended);
    uint64_t *all   = engine->exchange.used;
    uint64_t *mine  = all + (size_t)engine->rank * count;

    if (count == 0) {
        return SHERD_OK;
    }
    memset(mine, 0, count * sizeof(*mine));
    sherdi_agree_used_note(engine, mine);
    SHERDI_TRY(sherdi_run_exchange(engine, SHERDI_EXCHANGE_USED, mine, all, NULL));
    for (size_t i = count; i < count * (size_t)engine->world_size; i++) {
        all[i % count] |= all[i];
    }
    return used_begin(engine, all);
}

/* Compares by which call the ranks end the window: where some wait for the update, the others
 * must. */
static sherd_status step_calls_compare(const sherd_engine *engine)
{
    static const char *const   NAMES[] = {[SHERDI_STEP_WHOLE]    = "sherd_step",
                                          [SHERDI_STEP_QUEUED]   = "sherd_step_queue",
                                          [SHERDI_STEP_PREPARED] = "sherd_step_prepare"};
    const sherdi_uses_message *first   = sherdi_agree_told(engine, 0);

    for (int r = 1; r < engine->world_size; r++) {
        const sherdi_uses_message *other = sherdi_agree_told(engine, r);

        if (other->call != first->call) {
            return sherdi_fail(SHERD_E_STATE,
                               "the ranks disagree: rank 0 ends this window by %s, rank %d by %s; "
                               "the window was dropped, nothing was updated; all ranks must end a "
                               "window by the same call",
                               NAMES[first->call], r, NAMES[other->call]);
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_agree_uses(sherd_engine *engine)
{
    size_t              num_units = engine->plan->layout.num_units;
    sherdi_unit_uses   *mine      = engine->exchange.own_uses;
    sherdi_uses_message message   = {.micro_seen     = (uint64_t)engine->window.micro_seen,
                                     .micro_backward = (uint64_t)engine->window.micro_backward,
                                     .call           = (uint64_t)engine->window.call};
    int                 differs   = 0;

    for (size_t u = 0; u < num_units; u++) {
        mine[u] = sherdi_unit_of(engine, (int)u)->uses;
        if (engine->plan->layout.units[u].is_open_ended) { /* ranks may acquire it differently */
            mine[u].acquired[SHERD_FORWARD]  = 0;
            mine[u].acquired[SHERD_BACKWARD] = 0;
        }
        message.uses_hash = sherdi_hash_bytes(message.uses_hash, &mine[u], sizeof(mine[u]));
    }
    SHERDI_TRY(sherdi_agree_on(engine, SHERDI_EXCHANGE_USES, SHERD_OK, &message, NULL, NULL));
    SHERDI_TRY(step_calls_compare(engine));
    for (int r = 1; r < engine->world_size; r++) {
        differs |= memcmp(sherdi_agree_told(engine, r), sherdi_agree_told(engine, 0),
                          sizeof(message)) != 0;
    }
    if (!differs && engine->window.micro_backward == engine->window.micro_seen) {
        return SHERD_OK;
    }
    if (!differs) {
        return sherdi_fail(SHERD_E_STATE,
                           "%d of the %d micro-batches of this window had no backward pass; the "
                           "window was dropped, nothing was updated; run the backward pass of each "
                           "micro-batch before its sherd_step",
                           engine->window.micro_seen - engine->window.micro_backward,
                           engine->window.micro_seen);
    }
    SHERDI_TRY(
        sherdi_run_exchange(engine, SHERDI_EXCHANGE_UNIT_USES, mine, engine->exchange.uses, NULL));
    return uses_difference_name(engine);
}

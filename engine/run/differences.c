/* Compares calls and their arguments over the ranks, and names what differs: a setting, the first
 * group, unit or parameter of the model, the unit of a window.
 * The ranks search together, so all calls are collective. */
#include "engine/run/differences.h"

#include "base/hash.h"
#include "engine/config/compare.h"
#include "engine/model_hash.h"
#include "engine/modules.h"
#include "engine/run/engine_impl.h"
#include "engine/run/loop.h"

#include <stdio.h>
#include <string.h>

/* Returns the first rank whose word number `at` is not rank 0's; 0: all agree. */
static int told_odd(const sherdi_messages *messages, int world_size, size_t at)
{
    const uint64_t *first = sherdi_message_of(messages, 0);

    for (int r = 1; r < world_size; r++) {
        const uint64_t *other = sherdi_message_of(messages, r);

        if (other[at] != first[at]) {
            return r;
        }
    }
    return 0;
}

/* ------------------------------------------------------------ settings ---- */

_Static_assert(SHERDI_SETTINGS_MOST * sizeof(uint64_t) <= SHERDI_TOLD_BYTES,
               "a rank can tell its settings");

sherd_status sherdi_agree_settings(sherd_world *world, const sherdi_settings *settings)
{
    sherdi_named_bits list[SHERDI_SETTINGS_MOST];
    uint64_t          mine[SHERDI_SETTINGS_MOST];
    size_t            count = sherdi_settings_list(settings, list);
    sherdi_messages   messages;

    for (size_t i = 0; i < count; i++) {
        mine[i] = list[i].bits;
    }
    SHERDI_TRY(sherdi_world_tell(world, mine, count * sizeof(*mine), "settings", &messages));
    for (size_t i = 0; i < count; i++) {
        int rank = told_odd(&messages, sherd_world_size(world), i);

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

static sherd_status model_word(const sherd_engine *engine, uint64_t word, sherdi_messages *told_out,
                               int *odd_out)
{
    SHERDI_TRY(sherdi_world_tell(engine->world, &word, sizeof(word), "the model", told_out));
    *odd_out = told_odd(told_out, engine->world_size, 0);
    return SHERD_OK;
}

/* ---------------------------------------------------------------- calls ---- */

sherd_status sherdi_agree_same(sherd_engine *engine, const char *call, sherd_status own,
                               uint64_t word, int *odd_out)
{
    const sherdi_outcome here = sherdi_outcome_of(own);
    sherdi_word_message  mine = {.status = (uint64_t)own, .word = word};

    SHERDI_TRY(sherdi_agree_end(
        engine, &here, sherdi_run_exchange(engine, SHERDI_EXCHANGE_CALL, &mine, NULL, call), NULL));
    *odd_out = told_odd(&engine->run.messages, engine->world_size, 1);
    return SHERD_OK;
}

static sherd_status argument_compare(sherd_engine *engine, sherd_status own, uint64_t word,
                                     int *odd_out)
{
    SHERDI_TRY(sherdi_agree_word(engine, SHERDI_EXCHANGE_ARGUMENTS, own, word, NULL));
    *odd_out = told_odd(&engine->run.messages, engine->world_size, 1);
    return SHERD_OK;
}

static sherd_status calls_name(sherd_engine *engine, const char *call,
                               const sherdi_argument *arguments, size_t count)
{
    int rank;

    SHERDI_TRY(
        argument_compare(engine, SHERD_OK, sherdi_hash_bytes(count, call, strlen(call)), &rank));
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
    uint64_t hash = sherdi_hash_bytes(count, call, strlen(call));
    int      odd;

    for (size_t i = 0; i < count; i++) {
        hash = sherdi_hash_u64(hash, arguments[i].value);
    }
    SHERDI_TRY(argument_compare(engine, own, hash, &odd));
    return odd == 0 ? SHERD_OK : calls_name(engine, call, arguments, count);
}

/* --------------------------------------------------------------- model ---- */

static void param_text(const sherdi_model_param *param, char *text, size_t len_bytes)
{
    size_t used = (size_t)snprintf(text, len_bytes, "parameter %.60s [", param->name);

    for (int i = 0; i < param->ndim && used < len_bytes; i++) {
        used += (size_t)snprintf(text + used, len_bytes - used, "%s%zu", i == 0 ? "" : " x ",
                                 param->shape[i]);
    }
    if (used < len_bytes) {
        (void)snprintf(text + used, len_bytes - used,
                       "]%s%s%s%s of unit %d, group %d, atoms of %zu", param->dtype >= 0 ? " " : "",
                       param->dtype >= 0 ? sherd_dtype_name((sherd_dtype)param->dtype) : "",
                       param->is_frozen ? " frozen" : "", param->bound_data != NULL ? " bound" : "",
                       param->unit, param->group, param->atom_elems);
    }
}

/* Writes "the passes forward 0+2 1 2, backward (default), ...", as much as there is room for; +2:
 * held through two more acquires. */
static void passes_text(const sherdi_model *model, char *text, size_t len_bytes)
{
    static const char *const NAMES[] = {"forward", "backward", "eval"};
    size_t                   used    = (size_t)snprintf(text, len_bytes, "the passes");

    for (int pass = 0; pass < 3; pass++) {
        const sherdi_model_pass *order = &model->passes[pass];

        if (used < len_bytes) {
            used += (size_t)snprintf(text + used, len_bytes - used, "%s %s%s", pass == 0 ? "" : ",",
                                     NAMES[pass], order->num_uses == 0 ? " (default)" : "");
        }
        for (size_t i = 0; i < order->num_uses && used < len_bytes; i++) {
            used += (size_t)snprintf(text + used, len_bytes - used, " %d", order->uses[i].unit);
            if (order->uses[i].held > 0 && used < len_bytes) {
                used += (size_t)snprintf(text + used, len_bytes - used, "+%d", order->uses[i].held);
            }
        }
    }
}

static void group_text(const sherdi_model_group *group, char *text, size_t len_bytes)
{
    (void)snprintf(
        text, len_bytes,
        "group %.40s (lr %g, weight decay %g, betas %g %g, eps %g, exclude_1d %d%s%.20s; "
        "nan and -1: not given)",
        group->name, group->lr, group->weight_decay, group->beta1, group->beta2, group->eps,
        group->exclude_1d, group->optimizer_name == NULL ? "" : ", ",
        group->optimizer_name == NULL ? "" : group->optimizer_name);
}

/* Adds numbers, as many as there is room for: " 3 4 5". Returns the length with them. */
static size_t numbers_add(char *text, size_t len_bytes, size_t used, const int *list, size_t count)
{
    for (size_t i = 0; i < count && used < len_bytes; i++) {
        used += (size_t)snprintf(text + used, len_bytes - used, " %d", list[i]);
    }
    return used;
}

static void unit_text(const sherdi_model_unit *unit, char *text, size_t len_bytes)
{
    size_t used = (size_t)snprintf(
        text, len_bytes, "unit %.60s%s%s, %zu bytes of activation, %zu parameters:", unit->name,
        unit->has_any_uses ? " with any number of backward uses" : "",
        unit->retains_grads ? ", retaining gradients" : "", unit->activation_bytes,
        unit->num_params);

    used = numbers_add(text, len_bytes, used, unit->params, unit->num_params);
    if (unit->num_reads > 0 && used < len_bytes) {
        used += (size_t)snprintf(text + used, len_bytes - used, ", reading units");
    }
    (void)numbers_add(text, len_bytes, used, unit->reads, unit->num_reads);
}

static void item_text(const sherdi_model *model, size_t item, char *text, size_t len_bytes)
{
    if (item < model->num_groups) {
        group_text(&model->groups[item], text, len_bytes);
        return;
    }
    item -= model->num_groups;
    if (item < model->num_units) {
        unit_text(&model->units[item], text, len_bytes);
        return;
    }
    item -= model->num_units;
    if (item < model->num_params) {
        param_text(&model->params[item], text, len_bytes);
    } else {
        passes_text(model, text, len_bytes);
    }
}

/* Finds the first item that differs: all ranks halve the list together until one item remains. */
static sherd_status first_difference(const sherd_engine *engine, size_t *out)
{
    size_t low  = 0; /* the first `low` items agree */
    size_t high = sherdi_model_num_items(&engine->model);

    while (high - low > 1) {
        size_t          middle = low + (high - low) / 2;
        sherdi_messages unused;
        int             odd;

        SHERDI_TRY(model_word(engine, items_hash(&engine->model, middle), &unused, &odd));
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

static sherd_status models_name(const sherd_engine *engine)
{
    char            mine[ITEM_TEXT_BYTES] = "";
    sherdi_messages messages;
    size_t          item;
    int             rank;

    SHERDI_TRY(first_difference(engine, &item));
    item_text(&engine->model, item, mine, sizeof(mine));
    SHERDI_TRY(model_word(engine, sherdi_model_item_hash(&engine->model, item), &messages, &rank));
    SHERDI_TRY(sherdi_world_tell(engine->world, mine, sizeof(mine), "the model", &messages));
    return sherdi_fail(SHERD_E_INVAL,
                       "the ranks declare different models: rank 0 has %s where rank %d has %s; "
                       "declare the same on every rank",
                       (const char *)sherdi_message_of(&messages, 0), rank,
                       (const char *)sherdi_message_of(&messages, rank));
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

/* The message of SHERDI_EXCHANGE_USES. */
typedef struct uses_message {
    uint64_t status;
    uint64_t uses_hash; /* which units were acquired and had a backward, and how often */
    uint32_t micro_seen;
    uint32_t micro_backward; /* micro-batches seen that had a backward pass */
    uint64_t call;           /* sherdi_step_call */
    uint64_t weight;         /* of these micro-batches; not compared */
} uses_message;

_Static_assert(sizeof(uses_message) == SHERDI_WORDS_OF_USES * sizeof(uint64_t),
               "the table has the words of the message");

/* Compares by which call the ranks end the window: where some wait for the update, the others
 * must. */
static sherd_status step_calls_compare(const sherd_engine *engine)
{
    static const char *const NAMES[] = {[SHERDI_STEP_WHOLE]    = "sherd_step",
                                        [SHERDI_STEP_QUEUED]   = "sherd_step_queue",
                                        [SHERDI_STEP_PREPARED] = "sherd_step_prepare"};
    const uses_message      *first   = sherdi_agree_message(engine, 0);

    for (int r = 1; r < engine->world_size; r++) {
        const uses_message *other = sherdi_agree_message(engine, r);

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

/* Names a unit that the ranks used differently, and the ranks. Backward counts are compared first:
 * a rank that misses a backward pass also differs in its acquires. */
static sherd_status uses_name(sherd_engine *engine)
{
    char ranks[64];

    SHERDI_TRY(step_calls_compare(engine));
    SHERDI_TRY(sherdi_run_exchange(engine, SHERDI_EXCHANGE_UNIT_USES, engine->exchange.own_uses,
                                   engine->exchange.uses, NULL));

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

/* Compares which units the ranks used in the window. E_STATE names the unit and the ranks that
 * differ. */
static sherd_status uses_agree(sherd_engine *engine)
{
    size_t            num_units = engine->plan->layout.num_units;
    sherdi_unit_uses *mine      = engine->exchange.own_uses;
    uses_message      message   = {.micro_seen     = (uint32_t)engine->window.micro_seen,
                                   .micro_backward = (uint32_t)engine->window.micro_backward,
                                   .call           = (uint64_t)engine->window.call,
                                   .weight         = engine->window.weighing.sum};
    int               differs   = 0;

    for (size_t u = 0; u < num_units; u++) {
        mine[u] = sherdi_unit_of(engine, (int)u)->uses;
        if (engine->plan->layout.units[u].is_open_ended) { /* ranks may acquire it differently */
            mine[u].acquired[SHERD_FORWARD]  = 0;
            mine[u].acquired[SHERD_BACKWARD] = 0;
        }
        message.uses_hash = sherdi_hash_bytes(message.uses_hash, &mine[u], sizeof(mine[u]));
    }
    SHERDI_TRY(sherdi_agree_on(engine, SHERDI_EXCHANGE_USES, SHERD_OK, &message, NULL, NULL));
    engine->window.weighing.total = 0;
    for (int r = 0; r < engine->world_size; r++) {
        const uses_message *other = sherdi_agree_message(engine, r);

        differs |=
            memcmp(other, sherdi_agree_message(engine, 0), offsetof(uses_message, weight)) != 0;
        engine->window.weighing.total += other->weight;
    }
    return differs ? uses_name(engine) : SHERD_OK;
}

/* -------------------------------------------------------------- memory ---- */

sherd_status sherdi_uses_memory_open(sherd_engine *engine)
{
    sherdi_exchange *exchange = &engine->exchange;
    size_t           units    = engine->model.num_units;

    exchange->own_uses =
        sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, units, sizeof(*exchange->own_uses));
    exchange->uses =
        sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, (size_t)engine->world_size * units,
                           sizeof(*exchange->uses));
    return exchange->own_uses == NULL || exchange->uses == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

void sherdi_uses_memory_close(sherd_engine *engine)
{
    sherdi_free(engine->exchange.own_uses);
    sherdi_free(engine->exchange.uses);
    engine->exchange.own_uses = engine->exchange.uses = NULL;
}

sherd_status sherdi_agree_model(sherd_engine *engine)
{
    size_t          count = sherdi_model_num_items(&engine->model);
    sherdi_messages messages;
    int             rank;

    SHERDI_TRY(model_word(engine, count, &messages, &rank));
    if (rank != 0) {
        return sherdi_fail(SHERD_E_INVAL,
                           "the ranks declare different models: rank 0 has %llu groups, units and "
                           "parameters, rank %d has %llu; declare the same on every rank",
                           *(const unsigned long long *)sherdi_message_of(&messages, 0), rank,
                           *(const unsigned long long *)sherdi_message_of(&messages, rank));
    }
    SHERDI_TRY(model_word(engine, items_hash(&engine->model, count), &messages, &rank));
    return rank == 0 ? SHERD_OK : models_name(engine);
}

static sherd_status settings_agree(sherd_engine *engine)
{
    return sherdi_agree_settings(engine->world, &engine->settings);
}

const sherdi_module sherdi_module_differences = {
    .open          = sherdi_uses_memory_open,
    .close         = sherdi_uses_memory_close,
    .created       = settings_agree,
    .sealing       = sherdi_agree_model,
    .window_ending = uses_agree,
};

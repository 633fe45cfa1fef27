/* The trainer's calls between two steps: they read and write ranges of values (sherd_param_read,
 * sherd_param_write, sherd_grad_norms) and set the counters. Before anything moves, the ranks
 * compare the arguments of their calls. After that exchange no rank reads the values that are about
 * to change. After the exchange that follows a write, all of it is written on every rank. */
#include "engine/modules.h"
#include "engine/run/values.h"

#include "base/checked.h"
#include "base/hash.h"
#include "collectives/broadcast.h"
#include "collectives/sums.h"
#include "engine/engine.h"
#include "engine/run/differences.h"
#include "engine/run/failure.h"
#include "engine/run/loop.h"
#include "engine/run/needs.h"
#include "engine/run/optimizer.h"
#include "engine/run/update.h"
#include "engine/program/values.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Most of a counter: a checkpoint has it as a number of JSON, which many readers take for a
 * double. */
#define MOST_COUNT ((int64_t)1 << 53)

/* How many elements ranks give each other at a time. */
#define PORTION_ELEMS ((size_t)64 << 10)

/* One call, with the arguments that must be the same on all ranks. */
typedef struct value_call {
    const char   *name;
    sherd_param   param;
    sherd_value   value;
    sherdi_values values; /* complete after the checks */
    int           part;
} value_call;

/* ------------------------------------------------------------------ checks -- */

/* Writes the names of an optimizer's parts: "master", "exp_avg", ... */
static void parts_text(const sherdi_optimizer *optimizer, char *text, size_t len_bytes)
{
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < optimizer->num_parts && used < len_bytes; i++) {
        used +=
            (size_t)snprintf(text + used, len_bytes - used, "\"%s\", ", optimizer->parts[i].name);
    }
}

/* Gives the part that a value's name means for a parameter, numbered as in sherdi_values.parts.
 * E_INVAL: the value does not exist; the message has the names that exist. */
static sherd_status value_part(const sherd_engine *engine, size_t param, sherd_value value,
                               int *out)
{
    const sherdi_model_param *of = &engine->model.params[param];
    const sherdi_optimizer   *optimizer =
        sherdi_group_optimizer(&engine->settings, &engine->model.groups[of->group]);
    char names[128];

    if (strcmp(value, SHERD_COMPUTE) == 0 || strcmp(value, SHERD_GRAD) == 0) {
        *out = strcmp(value, SHERD_GRAD) == 0 ? SHERDI_VALUE_GRADIENT : SHERDI_VALUE_COMPUTE;
        return SHERD_OK;
    }
    for (int i = 0; i < optimizer->num_parts; i++) {
        if (strcmp(value, optimizer->parts[i].name) == 0) {
            *out = i;
            return SHERD_OK;
        }
    }
    parts_text(optimizer, names, sizeof(names));
    return sherdi_fail(
        SHERD_E_INVAL,
        "there is no value \"%s\" of parameter %s, which %s updates; there are %s\"%s\" and \"%s\"",
        value, of->name, sherdi_optimizer_name(optimizer), names, SHERD_COMPUTE, SHERD_GRAD);
}

/* Checks parameter, value and range as the trainer gave them in `call`, and completes it. */
static sherd_status range_check(const sherd_engine *engine, value_call *call)
{
    const sherdi_model_param *param;

    SHERDI_TRY(sherdi_model_check_param(&engine->model, call->name, call->param));
    SHERDI_TRY(sherdi_api_need(call->value != NULL, call->name, "value"));
    SHERDI_TRY(value_part(engine, (size_t)call->param, call->value, &call->part));
    param              = &engine->model.params[call->param];
    call->values.parts = 1u << call->part;
    if (param->is_frozen && call->part != SHERDI_VALUE_COMPUTE) {
        return sherdi_fail(SHERD_E_STATE,
                           "%s: parameter %s is frozen: it has no \"%s\", only \"%s\"", call->name,
                           param->name, call->value, SHERD_COMPUTE);
    }
    if (call->values.first > param->elems ||
        call->values.count > param->elems - call->values.first) {
        return sherdi_fail(SHERD_E_INVAL,
                           "%s: parameter %s has %zu elements, and the range of %zu from element "
                           "%zu on goes beyond them",
                           call->name, param->name, param->elems, call->values.count,
                           call->values.first);
    }
    return SHERD_OK;
}

static sherd_status read_check(const sherd_engine *engine, value_call *call)
{
    SHERDI_TRY(range_check(engine, call));
    if (call->part == SHERDI_VALUE_GRADIENT) {
        SHERDI_TRY(sherdi_engine_need(engine, call->name, SHERDI_NEED_PREPARED));
    }
    return sherdi_engine_need(engine, call->name, SHERDI_NEED_RELEASED);
}

static sherd_status write_check(const sherd_engine *engine, value_call *call, const float *in)
{
    SHERDI_TRY(range_check(engine, call));
    SHERDI_TRY(sherdi_api_need(in != NULL || call->values.count == 0, call->name, "in"));
    if (call->part == SHERDI_VALUE_GRADIENT) {
        return sherdi_fail(SHERD_E_INVAL,
                           "%s: a gradient cannot be written; add to sherd_param_grad during the "
                           "backward pass instead",
                           call->name);
    }
    return sherdi_engine_need(engine, call->name, SHERDI_NEEDS_TO_WRITE);
}

/* Compares the call over the ranks; `values` is a hash of the values that are written. Starts the
 * engine if it has not started. */
static sherd_status call_agree(sherd_engine *engine, value_call *call, uint64_t values,
                               sherd_status own)
{
    const sherdi_argument arguments[] = {{"param", (uint64_t)call->param},
                                         {"value", (uint64_t)call->part},
                                         {"first_elem", call->values.first},
                                         {"count_elems", call->values.count},
                                         {"value of an element", values}};

    call->values.param = (size_t)call->param;
    SHERDI_TRY(sherdi_agree_call(engine, call->name, arguments,
                                 sizeof(arguments) / sizeof(arguments[0]), own));
    return sherdi_fill_finish(engine);
}

/* -------------------------------------------------------------------- read -- */

/* Where the values of a range go; first: the element that goes to out[0]. */
typedef struct target {
    size_t first;
    float *out;
} target;

static sherd_status target_take(void *raw, int part, size_t first, size_t count, float *values)
{
    const target *to = raw;

    (void)part;
    memcpy(to->out + (first - to->first), values, count * sizeof(*values));
    return SHERD_OK;
}

/* Reads this rank's part of a range. */
static sherd_status range_get(sherd_engine *engine, const value_call *call, size_t first,
                              size_t count, float *out)
{
    sherdi_values values = call->values;
    target        to     = {.first = first, .out = out};

    values.first = first;
    values.count = count;
    return call->part == SHERDI_VALUE_GRADIENT
               ? sherdi_values_get_gradient(engine, &values, target_take, &to)
               : sherdi_values_get_here(engine, &values, target_take, &to);
}

/* Whether every rank has the whole value. */
static int is_here(const sherd_engine *engine, const value_call *call)
{
    const sherdi_plan    *plan    = engine->plan;
    const sherdi_segment *segment = sherdi_param_segment(plan, (size_t)call->param);

    switch (call->part) {
    case SHERDI_VALUE_COMPUTE:
        return plan->world_size == 1 || segment->is_resident || segment->is_bound;
    case SHERDI_VALUE_GRADIENT:
        return plan->world_size == 1 || !(plan->layout.is_sliced || plan->layout.is_deterministic);
    default:
        return plan->world_size == 1 || !plan->layout.is_sliced;
    }
}

/* Sends the part of the range that `owner`, a rank of the first replica, owns to all ranks. A
 * failure on the owner is returned
 * only after all portions went out, because the other ranks wait for them. */
static sherd_status owned_share(sherd_engine *engine, const value_call *call, int owner, float *out,
                                float *room)
{
    size_t         last = call->values.first + call->values.count;
    sherdi_outcome all  = {.status = SHERD_OK};
    size_t         first;
    size_t         count;
    size_t         end;

    sherdi_values_slice(engine, call->values.param, owner, &first, &count);
    end = sherdi_min_size(last, first + count);
    for (size_t at = sherdi_max_size(call->values.first, first); at < end; at += PORTION_ELEMS) {
        size_t some    = sherdi_min_size(PORTION_ELEMS, end - at);
        float *portion = out != NULL ? out + (at - call->values.first) : room;

        if (owner == engine->rank && all.status == SHERD_OK) {
            sherdi_outcome_add(&all, range_get(engine, call, at, some, portion));
        }
        SHERDI_TRY(sherdi_world_broadcast(engine->world, portion, some * sizeof(*portion), owner));
    }
    return sherdi_outcome_end(&all);
}

static sherd_status read_run(sherd_engine *engine, const value_call *call, float *out, float *room)
{
    sherdi_outcome all = {.status = SHERD_OK};

    SHERDI_TRY(SHERDI_ASK(queue, tell, engine));
    sherdi_outcome_add(&all, SHERDI_RINGS(sherdi_values_begin(engine), SHERD_OK));
    if (is_here(engine, call) && out != NULL && all.status == SHERD_OK) {
        sherdi_outcome_add(&all,
                           range_get(engine, call, call->values.first, call->values.count, out));
    }
    for (int r = 0; r < engine->plan->world_size && !is_here(engine, call); r++) {
        sherd_status own = owned_share(engine, call, r, out, room);

        if (own == SHERD_E_PEER_LOST) {
            return own;
        }
        sherdi_outcome_add(&all, own);
    }
    sherdi_outcome_add(&all, sherdi_values_end(engine));
    if (call->part == SHERDI_VALUE_GRADIENT) {
        sherdi_outcome_add(&all,
                           SHERDI_RINGS(sherdi_run_settle(engine, SHERDI_RING_GRADS), SHERD_OK));
    }
    return sherdi_agree_status(engine, sherdi_outcome_end(&all));
}

sherd_status sherd_param_read(sherd_engine *engine, sherd_param param, sherd_value value,
                              size_t first_elem, size_t count_elems, float *out)
{
    value_call   call = {.name   = "sherd_param_read",
                         .param  = param,
                         .value  = value,
                         .values = {.first = first_elem, .count = count_elems}};
    float       *room = NULL;
    sherd_status status;

    SHERDI_TRY(sherdi_engine_need(engine, call.name, SHERDI_NEED_SEALED));
    status = read_check(engine, &call);
    if (status == SHERD_OK && out == NULL && engine->world_size > 1) {
        room   = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL,
                                    sherdi_min_size(count_elems, PORTION_ELEMS), sizeof(*room));
        status = room == NULL ? SHERD_E_NOMEM : SHERD_OK;
    }
    status = call_agree(engine, &call, 0, status);
    if (status == SHERD_OK) {
        status = sherdi_engine_outcome(engine, read_run(engine, &call, out, room));
    }
    sherdi_free(room);
    return status;
}

/* ------------------------------------------------------- norms of gradients -- */

/* For how many parameters the ranks add the sums at a time: 11 KiB. */
#define NORMS_AT_ONCE 64

static sherd_status norms_check(const sherd_engine *engine, const double *out, size_t count)
{
    SHERDI_TRY(sherdi_api_check_out(out, "sherd_grad_norms"));
    if (count != engine->model.num_params) {
        return sherdi_fail(SHERD_E_INVAL,
                           "sherd_grad_norms: count is %zu, but the number of parameters is %zu; "
                           "give room for one norm of each",
                           count, engine->model.num_params);
    }
    return sherdi_engine_need(engine, "sherd_grad_norms", SHERDI_NEED_PREPARED);
}

/* The integers of the deterministic mode do not say which element was not finite: then no norm is
 * known. */
static double norm_of(const sherd_engine *engine, size_t param, const sherdi_norm_acc *sum)
{
    int is_lost = engine->plan->layout.is_deterministic && !isfinite(engine->window.sumsq) &&
                  !engine->model.params[param].is_frozen;

    return is_lost ? (double)NAN : sqrt(sherdi_norm_value(sum)) * sherdi_optimizer_unscale(engine);
}

/* Gives the norms of some parameters. A failure is stored in *all: the other ranks wait in the sum,
 * so this rank continues. */
static sherd_status norms_share(sherd_engine *engine, size_t first, size_t count, double *out,
                                sherdi_outcome *all)
{
    sherdi_norm_acc sums[NORMS_AT_ONCE] = {0};

    for (size_t i = 0; i < count && all->status == SHERD_OK; i++) {
        sherdi_outcome_add(all, sherdi_program_param_norm(&engine->run.program, first + i));
        sums[i] = engine->kernel_data.results.norm; /* digits below 2^32: the sum over ranks fits */
    }
    if (engine->plan->layout.is_sliced || engine->plan->layout.is_deterministic) {
        SHERDI_TRY(sherdi_world_sum_u64(engine->shards, (uint64_t *)(void *)sums,
                                        count * sizeof(*sums) / sizeof(uint64_t)));
    }
    for (size_t i = 0; i < count; i++) {
        out[i] = norm_of(engine, first + i, &sums[i]);
    }
    return SHERD_OK;
}

static sherd_status norms_run(sherd_engine *engine, double *out, size_t count)
{
    sherdi_outcome all = {.status = SHERD_OK};

    for (size_t first = 0; first < count; first += NORMS_AT_ONCE) {
        SHERDI_TRY(norms_share(engine, first, sherdi_min_size(NORMS_AT_ONCE, count - first),
                               out + first, &all));
    }
    sherdi_outcome_add(&all, SHERDI_RINGS(sherdi_run_settle(engine, SHERDI_RING_GRADS), SHERD_OK));
    return sherdi_agree_status(engine, sherdi_outcome_end(&all));
}

sherd_status sherd_grad_norms(sherd_engine *engine, double *out, size_t count)
{
    sherd_status status;

    SHERDI_TRY(sherdi_engine_need(engine, "sherd_grad_norms", SHERDI_NEED_SEALED));
    SHERDI_TRY(
        sherdi_agree_call(engine, "sherd_grad_norms", NULL, 0, norms_check(engine, out, count)));
    sherdi_mem_forbid_begin();
    status = norms_run(engine, out, count);
    sherdi_mem_forbid_end();
    return sherdi_engine_outcome(engine, status);
}

/* ------------------------------------------------------------------- local -- */

sherd_status sherd_param_local(sherd_engine *engine, sherd_param param, size_t *first_elem_out,
                               size_t *count_elems_out)
{
    SHERDI_TRY(sherdi_engine_need(engine, "sherd_param_local", SHERDI_NEED_SEALED));
    SHERDI_TRY(sherdi_model_check_param(&engine->model, "sherd_param_local", param));
    SHERDI_TRY(sherdi_api_need(first_elem_out != NULL, "sherd_param_local", "first_elem_out"));
    SHERDI_TRY(sherdi_api_need(count_elems_out != NULL, "sherd_param_local", "count_elems_out"));
    sherdi_values_owned(engine, (size_t)param, engine->plan->rank, first_elem_out, count_elems_out);
    return SHERD_OK;
}

static sherd_status local_check(const sherd_engine *engine, value_call *call, const float *out)
{
    size_t first;
    size_t count;

    SHERDI_TRY(read_check(engine, call));
    SHERDI_TRY(sherdi_api_need(out != NULL || call->values.count == 0, call->name, "out"));
    SHERDI_TRY(sherdi_engine_need(engine, call->name, SHERDI_NEED_STARTED));
    call->values.param = (size_t)call->param;
    if (is_here(engine, call)) {
        return SHERD_OK;
    }
    sherdi_values_slice(engine, call->values.param, engine->plan->rank, &first, &count);
    if (call->values.count > 0 &&
        (call->values.first < first || call->values.first + call->values.count > first + count)) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "%s: of parameter %s rank %d holds only %zu elements from element %zu on, and %zu from "
            "element %zu on are asked for; call sherd_param_local for the range that it holds",
            call->name, engine->model.params[call->param].name, engine->rank, count, first,
            call->values.count, call->values.first);
    }
    return SHERD_OK;
}

sherd_status sherd_param_read_local(sherd_engine *engine, sherd_param param, sherd_value value,
                                    size_t first_elem, size_t count_elems, float *out)
{
    value_call     call = {.name   = "sherd_param_read_local",
                           .param  = param,
                           .value  = value,
                           .values = {.first = first_elem, .count = count_elems}};
    sherdi_outcome all  = {.status = SHERD_OK};

    SHERDI_TRY(sherdi_engine_need(engine, call.name, SHERDI_NEED_SEALED));
    SHERDI_TRY(local_check(engine, &call, out));
    sherdi_outcome_add(&all, SHERDI_RINGS(sherdi_values_begin(engine), SHERD_OK));
    if (all.status == SHERD_OK) {
        sherdi_outcome_add(&all, range_get(engine, &call, first_elem, count_elems, out));
    }
    sherdi_outcome_add(&all, sherdi_values_end(engine));
    if (call.part == SHERDI_VALUE_GRADIENT) {
        sherdi_outcome_add(&all,
                           SHERDI_RINGS(sherdi_run_settle(engine, SHERDI_RING_GRADS), SHERD_OK));
    }
    return sherdi_engine_outcome(engine, sherdi_outcome_end(&all));
}

/* ------------------------------------------------------------------- write -- */

/* The values of a range, of which a part at a time is asked for; first: the element that in[0] is
 * for. */
typedef struct source {
    size_t       first;
    const float *in;
} source;

static sherd_status source_give(void *raw, int part, size_t first, size_t count, float *values)
{
    const source *from = raw;

    (void)part;
    memcpy(values, from->in + (first - from->first), count * sizeof(*values));
    return SHERD_OK;
}

static int is_weights(const value_call *call)
{
    return call->part == 0 || call->part == SHERDI_VALUE_COMPUTE;
}

/* Puts the range; *change_out is how much the range's share of the fingerprint grows, where the
 * engine keeps it. */
static sherd_status range_put(sherd_engine *engine, const value_call *call, const float *in,
                              uint64_t *change_out)
{
    source    from  = {.first = call->values.first, .in = in};
    uint64_t *share = sherdi_values_share(engine);
    uint64_t  old   = 0;

    if (is_weights(call)) {
        SHERDI_TRY(sherdi_update_range_fingerprint(engine, &call->values, &old));
    }
    *share = 0;
    SHERDI_TRY(sherdi_values_put(engine, &call->values, source_give, &from));
    *change_out = *share - old;
    return SHERD_OK;
}

/* Writes this rank's part. When it returns, all of it is where it rests, and state with generations
 * is committed. */
static sherd_status write_here(sherd_engine *engine, const value_call *call, const float *in,
                               uint64_t *change_out)
{
    int            is_frozen = engine->model.params[call->param].is_frozen;
    sherdi_outcome all       = {.status = SHERD_OK};

    *change_out = 0;
    sherdi_outcome_add(&all, SHERDI_RINGS(sherdi_values_begin(engine), SHERD_OK));
    if (all.status == SHERD_OK) {
        sherdi_outcome_add(&all, range_put(engine, call, in, change_out));
    }
    sherdi_outcome_add(&all, sherdi_values_end(engine));
    SHERDI_TRY(sherdi_outcome_end(&all));
    if (is_frozen) {
        return SHERD_OK;
    }
    if (!engine->plan->has_generations) {
        engine->fingerprints.has_own = engine->fingerprints.is_sent =
            0; /* computed anew when it is asked for */
        return SHERD_OK;
    }
    engine->fingerprints.own += *change_out;
    return SHERDI_ASK(storage, commit_written, engine);
}

/* Handles a write that failed on some rank. Where the values are state with generations, all ranks
 * go back to the generation that all have. Otherwise the ranks no longer have equal values, so the
 * engine is poisoned permanently. */
static sherd_status write_fail(sherd_engine *engine, int is_frozen, sherd_status status)
{
    const sherdi_outcome failed = sherdi_outcome_of(status);

    if (is_frozen || !engine->plan->has_generations) {
        sherdi_engine_poison(engine, status);
        engine->failure.is_final = 1;
        return status;
    }
    /* one that fails poisons the engine; the caller hears why all this began */
    (void)SHERDI_ASK(storage, restore, engine);
    return sherdi_outcome_end(&failed);
}

static sherd_status write_run(sherd_engine *engine, const value_call *call, const float *in)
{
    int          is_frozen = engine->model.params[call->param].is_frozen;
    uint64_t     change    = 0;
    uint64_t     unused;
    sherd_status status;

    SHERDI_TRY(SHERDI_ASK(queue, tell, engine)); /* of the state after the step */
    status = sherdi_program_forget(&engine->run.program);
    if (status == SHERD_OK) {
        status = write_here(engine, call, in, &change);
    }
    status = sherdi_update_agree(engine, status, change, "while it wrote values", &unused);
    if (status == SHERD_E_PEER_LOST && engine->plan->layout.is_sliced &&
        !engine->plan->has_generations) { /* the lost rank may not have written its slice */
        sherdi_engine_poison(engine, status);
    }
    if (status == SHERD_E_PEER_LOST || status == SHERD_E_DEVICE) {
        return status;
    }
    if (status != SHERD_OK) {
        return write_fail(engine, is_frozen, status);
    }
    engine->fingerprints.frozen += is_frozen ? sherdi_agree_sum(engine, engine->plan->replica) : 0;
    SHERDI_TELL(storage, agreed, engine);
    sherdi_loop_fetch_ahead(engine);
    return engine->phase == SHERDI_PHASE_SEALED ? SHERD_OK : sherdi_modules_replaced(engine);
}

sherd_status sherdi_values_write(sherd_engine *engine, size_t param, int part, size_t first,
                                 size_t count, const float *in)
{
    const value_call call = {
        .param  = (sherd_param)param,
        .part   = part,
        .values = {.param = param, .first = first, .count = count, .parts = 1u << part}};

    return sherdi_engine_outcome(engine, write_run(engine, &call, in));
}

sherd_status sherd_param_write(sherd_engine *engine, sherd_param param, sherd_value value,
                               size_t first_elem, size_t count_elems, const float *in)
{
    value_call   call = {.name   = "sherd_param_write",
                         .param  = param,
                         .value  = value,
                         .values = {.first = first_elem, .count = count_elems}};
    uint64_t     hash = 0;
    sherd_status status;

    SHERDI_TRY(sherdi_engine_need(engine, call.name, SHERDI_NEED_SEALED));
    status = write_check(engine, &call, in);
    if (status == SHERD_OK && engine->world_size > 1) {
        hash = sherdi_hash_bytes(0, in, count_elems * sizeof(*in));
    }
    SHERDI_TRY(call_agree(engine, &call, hash, status));
    if (count_elems == 0) {
        return SHERD_OK;
    }
    return sherdi_engine_outcome(engine, write_run(engine, &call, in));
}

/* ------------------------------------------------------------- fingerprint -- */

/* Sums the element mixes of this rank's part of a range of one parameter, frozen or not. */
static sherd_status range_fingerprint(sherd_engine *engine, const sherdi_values *values,
                                      uint64_t *out)
{
    sherd_status status = SHERDI_RINGS(sherdi_values_begin(engine), SHERD_OK);
    sherd_status own;

    if (status == SHERD_OK) {
        status = sherdi_update_range_fingerprint(engine, values, out);
    }
    own = SHERDI_RINGS(sherdi_values_begin(engine), SHERD_OK);
    return own == SHERD_OK ? status : own;
}

sherd_status sherd_param_fingerprint(sherd_engine *engine, sherd_param param, uint64_t *out)
{
    sherd_status  status;
    uint64_t      own    = 0;
    sherdi_values values = {.param = (size_t)param};
    int           is_frozen;

    SHERDI_TRY(sherdi_fingerprint_check(engine, out, "sherd_param_fingerprint"));
    SHERDI_TRY(sherdi_model_check_param(&engine->model, "sherd_param_fingerprint", param));
    is_frozen    = engine->model.params[param].is_frozen; /* counted by slice at every stage */
    values.count = engine->model.params[param].elems;
    SHERDI_TRY(SHERDI_ASK(queue, tell, engine));
    status = range_fingerprint(engine, &values, &own);
    return sherdi_fingerprint_sum(engine, status, own, is_frozen || engine->plan->layout.is_sliced,
                                  out);
}

/* ---------------------------------------------------------------- counters -- */

static sherd_status step_check(const sherd_engine *engine, int64_t step, int64_t micro_step)
{
    if (step < 0 || micro_step < 0 || step > MOST_COUNT || micro_step > MOST_COUNT) {
        return sherdi_fail(SHERD_E_INVAL,
                           "sherd_engine_set_step: step %lld and micro_step %lld: neither may be "
                           "below 0 or above 2^53",
                           (long long)step, (long long)micro_step);
    }
    return sherdi_engine_need(engine, "sherd_engine_set_step", SHERDI_NEEDS_TO_WRITE);
}

sherd_status sherd_engine_set_step(sherd_engine *engine, int64_t step, int64_t micro_step)
{
    const sherdi_argument arguments[] = {{"step", (uint64_t)step},
                                         {"micro_step", (uint64_t)micro_step}};
    uint64_t              unused;
    sherd_status          status;

    SHERDI_TRY(sherdi_engine_need(engine, "sherd_engine_set_step", SHERDI_NEED_SEALED));
    SHERDI_TRY(sherdi_agree_call(engine, "sherd_engine_set_step", arguments, 2,
                                 step_check(engine, step, micro_step)));
    SHERDI_TRY(SHERDI_ASK(queue, tell, engine));
    engine->counters.step = step;
    sherdi_samples_set(engine, micro_step, sherdi_samples_of(engine, micro_step));
    engine->window.first_micro = micro_step;
    if (!engine->plan->has_generations || SHERDI_RINGS(sherdi_fill_commits(engine), 0)) {
        return SHERD_OK; /* the first commit writes them */
    }
    status = sherdi_update_agree(engine, SHERDI_ASK(storage, commit_written, engine), 0,
                                 "while it wrote the counters", &unused);
    if (status == SHERD_E_PEER_LOST) {
        return status;
    }
    if (status != SHERD_OK) {
        return write_fail(engine, 0, status);
    }
    SHERDI_TELL(storage, agreed, engine);
    return SHERD_OK;
}

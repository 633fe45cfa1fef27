/* Calls at the wrong time: each is refused, the message begins with the call's own name, and
 * training goes on as if it had not been made. */
#include "sherd_tools.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <string.h>

/* The states that an engine may be in, as bits; a call lists those in which it is refused. */
enum {
    IN_OPEN      = 1 << 0, /* declared, not sealed */
    IN_SEALED    = 1 << 1, /* filled, nothing acquired yet */
    IN_EVAL      = 1 << 2, /* between sherd_eval_begin and _end */
    IN_UNIT      = 1 << 3, /* a unit is acquired for forward */
    IN_FORWARD   = 1 << 4, /* a unit was acquired and released for forward */
    IN_GRADIENTS = 1 << 5, /* after the first of two micro-batches */
    IN_PREPARED  = 1 << 6,
    IN_BETWEEN   = 1 << 7, /* between two windows */
    STATES       = 8,
};

#define IN_LATER                                                                                   \
    (IN_SEALED | IN_EVAL | IN_UNIT | IN_FORWARD | IN_GRADIENTS | IN_PREPARED | IN_BETWEEN)
#define IN_WINDOW  (IN_UNIT | IN_FORWARD | IN_GRADIENTS | IN_PREPARED)
#define UNPREPARED (IN_SEALED | IN_EVAL | IN_UNIT | IN_FORWARD | IN_GRADIENTS | IN_BETWEEN)

static sherd_status give_nothing(void *ctx, size_t first, size_t count, float *out)
{
    (void)ctx;
    (void)first;
    memset(out, 0, count * sizeof(*out));
    return SHERD_OK;
}

static sherd_status try_seal(rig *r)
{
    return sherd_engine_seal(r->engine);
}

static sherd_status try_pass_add(rig *r)
{
    return sherd_pass_add(r->engine, SHERD_FORWARD, 0);
}

static sherd_status try_describe(rig *r)
{
    return sherd_engine_describe_run(r->engine, "a run");
}

static sherd_status try_fits(rig *r)
{
    return sherd_engine_fits(r->engine);
}

static sherd_status try_fill(rig *r)
{
    return sherd_param_fill(r->engine, 0, give_nothing, NULL);
}

static sherd_status try_fill_from(rig *r)
{
    return sherd_param_fill_from(r->engine, 0, 0, give_nothing, NULL);
}

static sherd_status try_acquire(rig *r)
{
    return sherd_unit_acquire(r->engine, 0, SHERD_FORWARD);
}

static sherd_status try_release(rig *r)
{
    return sherd_unit_release(r->engine, 0, SHERD_BACKWARD);
}

static sherd_status try_step(rig *r)
{
    return sherd_step(r->engine, NULL);
}

static sherd_status try_queue(rig *r)
{
    return sherd_step_queue(r->engine);
}

static sherd_status try_prepare(rig *r)
{
    return sherd_step_prepare(r->engine, NULL);
}

static sherd_status try_apply(rig *r)
{
    return sherd_step_apply(r->engine, NULL);
}

static sherd_status try_discard(rig *r)
{
    return sherd_step_discard(r->engine);
}

static sherd_status try_wait(rig *r)
{
    return sherd_step_wait(r->engine, NULL);
}

static sherd_status try_close_window(rig *r)
{
    return sherd_step_close_window(r->engine);
}

static sherd_status try_undo(rig *r)
{
    return sherd_step_undo(r->engine);
}

static sherd_status try_keep_state(rig *r)
{
    return sherd_engine_keep_state(r->engine, 0);
}

static sherd_status try_eval_begin(rig *r)
{
    return sherd_eval_begin(r->engine, NULL);
}

static sherd_status try_eval_end(rig *r)
{
    return sherd_eval_end(r->engine);
}

static sherd_status try_read(rig *r)
{
    float out;

    return sherd_param_read(r->engine, 0, SHERD_MASTER, 0, 1, &out);
}

static sherd_status try_read_grad(rig *r)
{
    float out;

    return sherd_param_read(r->engine, 0, SHERD_GRAD, 0, 1, &out);
}

static sherd_status try_read_local(rig *r)
{
    float out;

    return sherd_param_read_local(r->engine, 0, SHERD_MASTER, 0, 1, &out);
}

static sherd_status try_local(rig *r)
{
    size_t first;
    size_t count;

    return sherd_param_local(r->engine, 0, &first, &count);
}

static sherd_status try_grad_norms(rig *r)
{
    double out[RIG_PARAMS];

    return sherd_grad_norms(r->engine, out, (size_t)r->num_params);
}

static sherd_status try_write(rig *r)
{
    const float in = 1;

    return sherd_param_write(r->engine, 0, SHERD_MASTER, 0, 1, &in);
}

static sherd_status try_set_step(rig *r)
{
    return sherd_engine_set_step(r->engine, 7, 7);
}

static sherd_status try_fingerprint(rig *r)
{
    uint64_t out;

    return sherd_engine_fingerprint(r->engine, &out);
}

static sherd_status try_param_fingerprint(rig *r)
{
    uint64_t out;

    return sherd_param_fingerprint(r->engine, 0, &out);
}

static sherd_status try_save(rig *r)
{
    return sherd_checkpoint_save(r->engine, "/nowhere", "tag", NULL);
}

static sherd_status try_load(rig *r)
{
    return sherd_checkpoint_load(r->engine, "/nowhere", "tag", NULL);
}

static sherd_status try_export(rig *r)
{
    return sherd_export_safetensors(r->engine, "/nowhere/file", NULL);
}

static sherd_status try_import(rig *r)
{
    return sherd_import_safetensors(r->engine, "/nowhere/file", NULL);
}

static const struct {
    const char *name;
    sherd_status (*call)(rig *r);
    unsigned refused; /* states */
} CALLS[] = {
    {"sherd_engine_seal", try_seal, IN_LATER},
    {"sherd_pass_add", try_pass_add, IN_LATER},
    {"sherd_engine_describe_run", try_describe, IN_LATER},
    {"sherd_engine_fits", try_fits, IN_LATER},
    {"sherd_param_fill", try_fill, ~(unsigned)IN_SEALED},
    {"sherd_param_fill_from", try_fill_from, ~(unsigned)IN_SEALED},
    {"sherd_unit_acquire", try_acquire, IN_OPEN | IN_PREPARED},
    {"sherd_unit_release", try_release, IN_OPEN | IN_PREPARED},
    {"sherd_step", try_step, IN_OPEN | IN_SEALED | IN_EVAL | IN_UNIT | IN_PREPARED},
    {"sherd_step_queue", try_queue, IN_OPEN | IN_SEALED | IN_EVAL | IN_UNIT | IN_PREPARED},
    {"sherd_step_prepare", try_prepare, IN_OPEN | IN_SEALED | IN_EVAL | IN_UNIT | IN_PREPARED},
    {"sherd_step_apply", try_apply, IN_OPEN | UNPREPARED},
    {"sherd_step_discard", try_discard, IN_OPEN},
    {"sherd_step_wait", try_wait, IN_OPEN},
    {"sherd_step_close_window", try_close_window, IN_OPEN | IN_SEALED | IN_PREPARED},
    {"sherd_step_undo", try_undo, IN_OPEN},
    {"sherd_engine_keep_state", try_keep_state, IN_OPEN},
    {"sherd_eval_begin", try_eval_begin, IN_OPEN | IN_EVAL | IN_UNIT | IN_PREPARED},
    {"sherd_eval_end", try_eval_end, ~(unsigned)IN_EVAL},
    {"sherd_param_read", try_read, IN_OPEN | IN_UNIT},
    {"sherd_param_read", try_read_grad, IN_OPEN | UNPREPARED},
    {"sherd_param_read_local", try_read_local, IN_OPEN | IN_SEALED | IN_UNIT},
    {"sherd_param_local", try_local, IN_OPEN},
    {"sherd_grad_norms", try_grad_norms, IN_OPEN | UNPREPARED},
    {"sherd_param_write", try_write, IN_OPEN | IN_EVAL | IN_WINDOW},
    {"sherd_engine_set_step", try_set_step, IN_OPEN | IN_EVAL | IN_WINDOW},
    {"sherd_engine_fingerprint", try_fingerprint, IN_OPEN},
    {"sherd_param_fingerprint", try_param_fingerprint, IN_OPEN},
    {"sherd_checkpoint_save", try_save, IN_OPEN | IN_UNIT | IN_GRADIENTS | IN_PREPARED},
    {"sherd_checkpoint_load", try_load, IN_OPEN | IN_EVAL | IN_UNIT | IN_GRADIENTS | IN_PREPARED},
    {"sherd_export_safetensors", try_export, IN_OPEN | IN_UNIT},
    {"sherd_import_safetensors", try_import, IN_OPEN | IN_EVAL | IN_WINDOW},
};

/* Makes every call that is refused in the state. */
static void calls_refused(rig *r, unsigned state)
{
    for (size_t c = 0; c < sizeof(CALLS) / sizeof(CALLS[0]); c++) {
        char begin[64];

        if ((CALLS[c].refused & state) == 0) {
            continue;
        }
        (void)snprintf(begin, sizeof(begin), "%s: ", CALLS[c].name);
        CHECK_STATUS(SHERD_E_STATE, CALLS[c].call(r));
        if (strncmp(sherd_last_error(), begin, strlen(begin)) != 0) {
            test_fail(__FILE__, __LINE__, "in state %#x %s says: %s", state, CALLS[c].name,
                      sherd_last_error());
        }
    }
}

/* Trains two windows of two micro-batches and passes through every state; in each it makes the
 * calls of `refused_in` that are refused there. Returns the fingerprint at the end. */
static uint64_t train(int stage, unsigned refused_in)
{
    const rig_options options = {.stage = stage, .accumulation = 2};
    sherd_world      *world;
    uint64_t          found;
    rig               r;

    CHECK_OK(sherd_world_self(&world));
    rig_open(&r, world, &options);
    sherd_world_destroy(world); /* the engine has a reference of its own */
    rig_three(&r, 64);
    calls_refused(&r, refused_in & IN_OPEN);
    rig_seal(&r);
    calls_refused(&r, refused_in & IN_SEALED);
    CHECK_OK(sherd_eval_begin(r.engine, NULL));
    calls_refused(&r, refused_in & IN_EVAL);
    CHECK_OK(sherd_eval_end(r.engine));
    for (int window = 0; window < 2; window++) {
        rig_acquire(&r, 0, SHERD_FORWARD);
        calls_refused(&r, refused_in & IN_UNIT);
        rig_release(&r, 0, SHERD_FORWARD);
        calls_refused(&r, refused_in & IN_FORWARD);
        CHECK_OK(sherd_step_discard(r.engine));
        rig_micro_batch(&r);
        CHECK_INT(0, rig_step(&r).is_boundary);
        calls_refused(&r, refused_in & IN_GRADIENTS);
        rig_micro_batch(&r);
        CHECK_OK(sherd_step_prepare(r.engine, NULL));
        calls_refused(&r, refused_in & IN_PREPARED);
        CHECK_OK(sherd_step_apply(r.engine, NULL));
        calls_refused(&r, refused_in & IN_BETWEEN);
    }
    found = rig_fingerprint(&r);
    rig_close(&r);
    return found;
}

static void calls_at_the_wrong_time_name_themselves_and_change_nothing(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        uint64_t expected = train(stage, 0);

        for (int state = 0; state < STATES; state++) {
            CHECK_INT(expected, train(stage, 1u << state));
        }
    }
}

/* A forward pass alone brings no gradient: a checkpoint has all that there is. But what is written
 * after it would be missing in the loss. */
static void forward_alone_allows_a_save_and_no_write(void)
{
    const rig_options options = {.stage = 3};
    const char       *dir     = test_scratch();
    const float       value   = 1;
    sherd_world      *world;
    rig               r;

    CHECK_OK(sherd_world_self(&world));
    rig_open(&r, world, &options);
    sherd_world_destroy(world); /* the engine has a reference of its own */
    rig_three(&r, 64);
    rig_seal(&r);
    (void)rig_train(&r, 1);
    rig_forward(&r, 0, SHERD_FORWARD);
    CHECK_OK(sherd_checkpoint_save(r.engine, dir, "tag", NULL));
    CHECK_STATUS(SHERD_E_STATE, sherd_param_write(r.engine, 0, SHERD_MASTER, 0, 1, &value));
    CHECK_OK(sherd_checkpoint_load(r.engine, dir, "tag", NULL)); /* ends the window */
    CHECK_OK(sherd_param_write(r.engine, 0, SHERD_MASTER, 0, 1, &value));
    rig_close(&r);
}

static const test_case CASES[] = {
    CASE(calls_at_the_wrong_time_name_themselves_and_change_nothing),
    CASE(forward_alone_allows_a_save_and_no_write),
};

RUN_MAIN(CASES)

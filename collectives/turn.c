/* The turns of an elastic job: before a step, rank 0 reads the roll (roll.h), and all ranks do what
 * it says. A turn in which a newcomer does not come changes nothing; one in which a rank is lost
 * ends with the loss, as every call does. */
#include "collectives/alone.h"
#include "collectives/procs.h"
#include "collectives/resize.h"
#include "collectives/roll.h"
#include "collectives/transport.h"
#include "collectives/world_impl.h"

#include "base/clock.h"
#include "base/log.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How long the ranks wait for a newcomer that waits for them inside this file. */
#define TURN_NS (10 * INT64_C(1000000000))
/* The limit of a call, as world.c has it. */
#define CALL_NS       (30 * 60 * INT64_C(1000000000))
#define LOOK_MS       2
#define LOOKS_A_CHECK 100

/* What the launcher knows of this process; a process is a rank once. */
typedef enum roll_place { PLACE_NONE = 0, PLACE_TRAINS, PLACE_LEAVES } roll_place;
static atomic_int place;

int sherd_launched_late(void)
{
    roll roll;

    return sherdi_roll_open(&roll) && getenv("SHERD_RANK") == NULL;
}

static sherd_status place_take(const roll *roll, roll_place wanted)
{
    if ((int)wanted == atomic_load(&place)) {
        return SHERD_OK;
    }
    SHERDI_TRY(wanted == PLACE_TRAINS ? sherdi_roll_train(roll) : sherdi_roll_leave(roll));
    atomic_store(&place, (int)wanted);
    return SHERD_OK;
}

/* ---- newcomers ---- */

/* Waits until this process is called, or is not needed. */
static sherd_status call_await(const roll *roll, roll_call *call, roll_word *word)
{
    for (int looks = 1;; looks++) {
        SHERDI_TRY(sherdi_roll_look(roll, TURN_NS, call, word));
        if (*word != ROLL_WAIT) {
            return SHERD_OK;
        }
        if (looks % LOOKS_A_CHECK == 0 && !sherdi_roll_has_launcher(roll)) {
            return sherdi_fail(SHERD_E_PEER_LOST,
                               "sherd_world_join: the launcher of the job has ended");
        }
        (void)poll(NULL, 0, LOOK_MS);
    }
}

/* Meets the ranks that have called this process. */
static sherd_status call_answer(const roll *roll, const roll_call *call,
                                const sherd_world_params *params, sherd_world **out)
{
    const int64_t      call_ns = params->timeout_ns;
    sherd_world_params here    = *params;
    char               address[ROLL_ADDRESS_BYTES];
    sherd_world       *world;
    job_key            key;

    sherdi_roll_address(roll, call->turn, address);
    here.transport  = "shm";
    here.timeout_ns = TURN_NS;
    sherdi_job_key_read(NULL, NULL, &key);
    SHERDI_TRY(sherdi_world_at(call->rank, call->world_size, address, &key, &here, &world));
    world->timeout_ns = call_ns > 0 ? call_ns : CALL_NS;
    *out              = world;
    return SHERD_OK;
}

/* Waits for one turn. *out stays NULL where that has not come about, or is not to be. */
static sherd_status turn_join(const roll *roll, const sherd_world_params *params, roll_word *word,
                              sherd_world **out)
{
    roll_call    call  = {0};
    sherd_world *world = NULL;
    int          lock  = -1;
    sherd_status status;

    SHERDI_TRY(sherdi_roll_wait(roll, &lock));
    status = call_await(roll, &call, word);
    if (status == SHERD_OK && *word == ROLL_CALLED) {
        status = call_answer(roll, &call, params, &world);
        if (status == SHERD_E_PEER_LOST) {
            sherdi_log(SHERD_LOG_WARN, -1, "the ranks did not come, and are waited for again: %s",
                       sherd_last_error());
            *word  = ROLL_LOST;
            status = SHERD_OK;
        } else if (status == SHERD_OK) {
            status = place_take(roll, PLACE_TRAINS);
        }
    }
    sherdi_roll_forget(roll);
    (void)close(lock);
    if (status != SHERD_OK) {
        const sherdi_outcome failed = sherdi_outcome_of(status);

        sherd_world_destroy(world);
        return sherdi_outcome_end(&failed);
    }
    *out = world;
    return SHERD_OK;
}

sherd_status sherd_world_join(const sherd_world_params *params, sherd_world **out)
{
    sherd_world       *world = NULL;
    roll_word          word  = ROLL_LOST;
    sherd_world_params here;
    roll               roll;

    SHERDI_TRY(sherdi_api_check_out(out, "sherd_world_join"));
    SHERDI_TRY(sherdi_world_params_read(params, &here));
    if (!sherd_launched_late() || !sherdi_roll_open(&roll)) {
        return sherdi_fail(SHERD_E_STATE,
                           "sherd_world_join: this process is no newcomer of an elastic job "
                           "(sherd_launched_late); call sherd_world_from_env");
    }
    while (word == ROLL_LOST) {
        SHERDI_TRY(turn_join(&roll, &here, &word, &world));
    }
    *out = world;
    return SHERD_OK;
}

/* ---- ranks ---- */

/* What rank 0 tells all: how many ranks go on, at most those of the world; how many come; in which
 * turn. These numbers are summed. */
typedef struct turn_plan {
    double size, newcomers, turn, failed;
} turn_plan;

static sherd_status plan_make(const roll *roll, const sherd_world *world, turn_plan *out)
{
    int wanted, count = 0, turn = 0;

    SHERDI_TRY(sherdi_roll_wanted(roll, &wanted));
    if (wanted > world->world_size) {
        SHERDI_TRY(
            sherdi_roll_call(roll, world->world_size, wanted - world->world_size, &count, &turn));
    }
    *out =
        (turn_plan){.size = wanted >= 1 && wanted < world->world_size ? wanted : world->world_size,
                    .newcomers = count,
                    .turn      = turn};
    return SHERD_OK;
}

/* Returns the plan of rank 0. A rank whose part of the roll cannot be read fails all. */
static sherd_status plan_tell(const roll *roll, sherd_world *world, turn_plan *out)
{
    turn_plan      plan   = {0};
    sherd_status   status = place_take(roll, PLACE_TRAINS);
    sherdi_outcome own;

    if (status == SHERD_OK && world->rank == 0) {
        status = plan_make(roll, world, &plan);
    }
    own         = sherdi_outcome_of(status);
    plan.failed = status != SHERD_OK;
    SHERDI_TRY(sherd_world_sum_f64(world, (double *)&plan, sizeof(plan) / sizeof(double)));
    SHERDI_TRY(sherdi_outcome_end(&own));
    *out = plan;
    return plan.failed == 0
               ? SHERD_OK
               : sherdi_fail(SHERD_E_IO, "sherd_world_turn: another rank cannot read or write the "
                                         "folder of the job; its own sherd_last_error() says more");
}

/* Goes on with the newcomers if all of these ranks have met them. */
static sherd_status turn_grow(const roll *roll, sherd_world *world, const turn_plan *plan,
                              sherd_world **out)
{
    const int    size = (int)(plan->size + plan->newcomers);
    sherd_world *next = NULL;
    double       failed;
    char         address[ROLL_ADDRESS_BYTES];
    sherd_status status;

    sherdi_roll_address(roll, (int)plan->turn, address);
    failed = sherdi_world_grow_within(world, size, address, TURN_NS, &next) != SHERD_OK;
    if (failed != 0 && world->rank == 0) {
        sherdi_log(SHERD_LOG_WARN, 0, "newcomers did not come, and the ranks go on: %s",
                   sherd_last_error());
    }
    status = sherd_world_sum_f64(world, &failed, 1);
    if (status != SHERD_OK || failed != 0) {
        const sherdi_outcome result = sherdi_outcome_of(status);

        sherd_world_destroy(next);
        *out = world;
        return sherdi_outcome_end(&result);
    }
    *out = next;
    return SHERD_OK;
}

static sherd_status turn_shrink(const roll *roll, sherd_world *world, const turn_plan *plan,
                                sherd_world **out)
{
    if (world->rank < (int)plan->size) {
        return sherd_world_shrink(world, out);
    }
    SHERDI_TRY(sherd_world_leave(world));
    SHERDI_TRY(place_take(roll, PLACE_LEAVES));
    *out = NULL;
    return SHERD_OK;
}

sherd_status sherd_world_turn(sherd_world *world, sherd_world **out)
{
    turn_plan    plan;
    roll         roll;
    sherd_world *next = world;

    SHERDI_TRY(sherdi_api_check_out(out, "sherd_world_turn"));
    SHERDI_TRY(sherdi_world_check_caller(world, "sherd_world_turn"));
    if (!sherdi_roll_open(&roll)) {
        *out = world;
        return SHERD_OK;
    }
    if (strcmp(world->ops->name, "shm") != 0 && world->ops != &sherdi_self_ops) {
        return sherdi_fail(SHERD_E_NOTSUP,
                           "sherd_world_turn: not over transport %s; only the ranks of a world "
                           "over shm can come and go",
                           world->ops->name);
    }
    SHERDI_TRY(plan_tell(&roll, world, &plan));
    if (plan.newcomers > 0) {
        SHERDI_TRY(turn_grow(&roll, world, &plan, &next));
    } else if ((int)plan.size < world->world_size) {
        SHERDI_TRY(turn_shrink(&roll, world, &plan, &next));
    }
    *out = next;
    return SHERD_OK;
}

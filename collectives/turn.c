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

/* The world that made a turn last, and the one that came of it; 0: none. By numbers that a world has
 * alone, since programs destroy worlds. */
static _Atomic uint64_t turned[2];
/* Losses after which this process, or those that it has met, have gone on. */
static atomic_int losses;

static uint64_t session_of(const sherd_world *world)
{
    return world->ops == &sherdi_self_ops ? 0 : ((const sherdi_procs *)world)->meeting.session;
}

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

/* Waits until this process is called, or is not needed. A launcher that has ended may have left a
 * word between the look and its end. */
static sherd_status call_await(const roll *roll, roll_call *call, roll_word *word)
{
    int has_launcher = 1;

    for (int looks = 1; has_launcher; looks++) {
        has_launcher = looks % LOOKS_A_CHECK != 0 || sherdi_roll_has_launcher(roll);
        SHERDI_TRY(sherdi_roll_look(roll, TURN_NS, call, word));
        if (*word != ROLL_WAIT) {
            return SHERD_OK;
        }
        (void)poll(NULL, 0, LOOK_MS);
    }
    return sherdi_fail(SHERD_E_PEER_LOST, "sherd_world_join: the launcher of the job has ended");
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
            atomic_store(&losses, call.losses);
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
    atomic_store(&turned[1], world != NULL ? session_of(world) : 0);
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
            sherdi_roll_call(roll, world->world_size, wanted, atomic_load(&losses), &count, &turn));
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

/* Ranks may part: a rank dies at the end of a move, some have their engines in the new world by then,
 * and others go back to the old one. Both are survivors; those that claim the loss first go on. */
sherd_status sherdi_turn_claim(sherd_world *world, sherd_world *next)
{
    const uint64_t session = session_of(world);
    double         verdict[2]; /* refused, and failed */
    double        *known;
    int            number  = 0;
    int            is_ours = 1;
    roll           roll;
    sherd_status   status;

    if (!sherdi_roll_open(&roll) || session == 0 ||
        (session != atomic_load(&turned[0]) && session != atomic_load(&turned[1]))) {
        return SHERD_OK;
    }
    known = calloc((size_t)next->world_size, sizeof(*known));
    if (known == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for a list of %d ranks", next->world_size);
    }
    known[next->rank] = atomic_load(&losses);
    status            = sherd_world_sum_f64(next, known, (size_t)next->world_size);
    for (int r = 0; r < next->world_size; r++) {
        number = (int)known[r] > number ? (int)known[r] : number;
    }
    free(known);
    SHERDI_TRY(status);
    status = next->rank == 0 ? sherdi_roll_claim(&roll, number + 1, session, &is_ours) : SHERD_OK;
    verdict[0] = !is_ours;
    verdict[1] = status != SHERD_OK;
    SHERDI_TRY(sherd_world_sum_f64(next, verdict, 2));
    if (verdict[0] != 0 || verdict[1] != 0) {
        return sherdi_fail(SHERD_E_STATE,
                           verdict[0] != 0
                               ? "sherd_world_shrink: other ranks of the elastic job have gone on "
                                 "without these %d"
                               : "sherd_world_shrink: the folder of the elastic job cannot be read "
                                 "or written, and these %d ranks cannot go on",
                           next->world_size);
    }
    atomic_store(&losses, number + 1);
    atomic_store(&turned[1], session_of(next));
    return SHERD_OK;
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
    atomic_store(&turned[0], session_of(world));
    SHERDI_TRY(plan_tell(&roll, world, &plan));
    if (plan.newcomers > 0) {
        SHERDI_TRY(turn_grow(&roll, world, &plan, &next));
    } else if ((int)plan.size < world->world_size) {
        SHERDI_TRY(turn_shrink(&roll, world, &plan, &next));
    }
    atomic_store(&turned[1], next != NULL ? session_of(next) : 0);
    *out = next;
    return SHERD_OK;
}

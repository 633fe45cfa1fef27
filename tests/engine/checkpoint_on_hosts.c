/* What test_checkpoint_hosts.sh runs as the ranks of mpirun: checkpoint_on_hosts DIR ACTION, where
 * the action is
 *
 *   save     two steps, each with its checkpoint
 *   die N    goes on from the latest and saves, in which rank N is killed
 *   load     loads the latest
 *   missing  tries to load it, and prints why that fails */
#include "tests/engine/saved.h"
#include "tests/lib/check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sherd_world *world;
static const char  *dir, *action;
static int          victim;

static void die(void *ctx, uint64_t done_bytes, uint64_t all_bytes)
{
    (void)ctx, (void)done_bytes, (void)all_bytes;
    (void)raise(SIGKILL);
}

static void say(rig *r)
{
    (void)printf("rank %d has %016llx\n", sherd_world_rank(world),
                 (unsigned long long)rig_fingerprint(r));
}

static void save(rig *r)
{
    saved_fill(r);
    for (int s = 0; s < 2; s++) {
        saved_train(r, 1);
        CHECK_OK(sherd_checkpoint_save(r->engine, dir, NULL, NULL));
    }
    say(r);
}

static void save_dying(rig *r)
{
    sherd_save_params params;

    sherd_save_params_init(&params);
    params.progress = sherd_world_rank(world) == victim ? die : NULL;
    CHECK_OK(sherd_checkpoint_load(r->engine, dir, NULL, NULL));
    saved_train(r, 1);
    /* a rank may find first that rank 0 has removed the folder */
    CHECK(sherd_checkpoint_save(r->engine, dir, NULL, &params) != SHERD_OK);
    (void)printf("rank %d lost a peer\n", sherd_world_rank(world));
    (void)fflush(NULL);
    _Exit(0); /* MPI itself would wait for the rank */
}

static void action_runs(void)
{
    const rig_options options = {.stage = 3, .dtype = SHERD_BF16, .clip = 1};
    rig               r;

    saved_need_checksums();
    saved_open(&r, world, &options);
    if (strcmp(action, "save") == 0) {
        save(&r);
    } else if (strcmp(action, "die") == 0) {
        save_dying(&r);
    } else if (strcmp(action, "load") == 0) {
        CHECK_OK(sherd_checkpoint_load(r.engine, dir, NULL, NULL));
        say(&r);
    } else {
        CHECK_STATUS(SHERD_E_IO, sherd_checkpoint_load(r.engine, dir, NULL, NULL));
        (void)printf("rank %d: %s\n", sherd_world_rank(world), sherd_last_error());
    }
    rig_close(&r);
}

static const test_case CASES[] = {CASE(action_runs)};

int main(int argc, char **argv)
{
    int result;

    if (argc < 3 || sherd_world_from_env(NULL, &world) != SHERD_OK) {
        (void)printf("no world: %s\n", sherd_last_error());
        return 1;
    }
    dir    = argv[1];
    action = argv[2];
    victim = argc > 3 ? atoi(argv[3]) : -1;
    result = test_main(0, NULL, CASES, 1);
    sherd_world_destroy(world);
    return result;
}

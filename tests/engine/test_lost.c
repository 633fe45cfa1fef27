/* A rank is lost and training goes on: processes that are killed, at moments of every phase. */
#include "tests/engine/loser.h"
#include "tests/lib/check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOST ", \"deterministic\": true, \"sherd\": {\"redundancy\": \"host\"}"

static loser loser_of(int stage, sherd_dtype dtype, const char *top)
{
    return (loser){
        .options = {.stage = stage, .dtype = dtype, .clip = 1, .top = top, .accumulation = 2},
        .ranks   = 4,
        .elems   = {30000, 50003, 19220},
        .folder  = ""};
}

/* Kills one rank at moments that cover a step. */
static void kills_run(loser l, loser_model model, int times, int most_us)
{
    uint64_t state = 11;
    int      moves = 0;

    for (int n = 0; n < times; n++) {
        loser_result result;

        l.model     = model;
        l.shards    = 2;
        l.num_kills = 1;
        l.kills[0]  = (loser_kill){.rank     = (int)(test_random(&state) % (uint64_t)l.ranks),
                                   .step     = 1 + (int)(test_random(&state) % 4),
                                   .delay_us = (int)(test_random(&state) % (uint64_t)most_us)};
        loser_run(&l, &result);
        moves += result.moves;
    }
    CHECK(moves > 0);
}

static void host_memory_outlives_a_rank(void)
{
    int times = test_is_long() ? 40 : 2;

    for (int stage = 1; stage < 4; stage++) {
        kills_run(loser_of(stage, SHERD_BF16, HOST), LOSER_ALWAYS, times, 20000);
    }
    kills_run(loser_of(3, SHERD_F32, HOST), LOSER_ALWAYS, times, 20000);
}

#define PEER ", \"deterministic\": true, \"sherd\": {\"redundancy\": \"peer\"}"

static void second_copy_outlives_a_rank(void)
{
    int times = test_is_long() ? 40 : 2;

    for (int stage = 1; stage < 4; stage++) {
        kills_run(loser_of(stage, SHERD_BF16, PEER), LOSER_ALWAYS, times, 20000);
    }
    kills_run(loser_of(3, SHERD_F32, PEER), LOSER_ALWAYS, times, 20000);
}

#define REPLICAS ", \"deterministic\": true, \"sherd\": {\"shard_size\": 2, \"elastic\": [1, 6]}"

/* Without any redundancy but that: a rank of each of two replicas, or both of a slice, at once. */
static void replica_outlives_a_rank(void)
{
    int      times = test_is_long() ? 40 : 4;
    uint64_t state = 12;
    int      moves = 0, refused = 0;
    char     folder[300];

    for (int stage = 1; stage < 4; stage++) {
        kills_run(loser_of(stage, SHERD_BF16, REPLICAS), LOSER_REPLICAS, times, 20000);
    }
    for (int n = 0; n < 2 * times; n++) {
        loser        l = loser_of(1 + n % 3, SHERD_F32, REPLICAS);
        loser_result result;

        (void)snprintf(folder, sizeof(folder), "%s/state-%d", test_scratch(), n);
        l.folder    = folder;
        l.ranks     = 4 + n % 2 * 2;
        l.model     = LOSER_REPLICAS;
        l.shards    = 2;
        l.num_kills = 2;
        for (int k = 0; k < 2; k++) {
            l.kills[k] = (loser_kill){.rank     = (int)(test_random(&state) % 2) + 2 * k,
                                      .step     = 2,
                                      .delay_us = k > 0 ? l.kills[0].delay_us
                                                        : (int)(test_random(&state) % 20000)};
        }
        loser_run(&l, &result);
        moves += result.moves;
        refused += result.refused;
    }
    CHECK(moves > 0 && refused > 0);
}

/* ----------------------------------------------------------------- one loss by one rank -- */

/* An engine of this process's world, with what TEST_TOP says. */
static void engine_open(rig *r, int stage)
{
    sherd_world *world;
    rig_options  options = {.stage = stage, .train_batch = 6, .top = getenv("TEST_TOP")};

    CHECK_OK(sherd_world_from_env(NULL, &world));
    rig_open(r, world, &options);
    rig_three(r, 20000);
    rig_seal(r);
}

static void engine_close(rig *r)
{
    sherd_world *world = r->world;

    rig_close(r);
    sherd_world_destroy(world);
}

/* Moves to the world of the survivors, and returns how that ends. */
static sherd_status survivors_move(rig *r)
{
    sherd_world *next = NULL;
    sherd_status status;

    while (sherd_world_barrier(r->world) == SHERD_OK) {
    }
    CHECK_OK(sherd_world_shrink(r->world, &next));
    status = sherd_engine_move(r->engine, next);
    sherd_world_destroy(status == SHERD_OK ? r->world : next);
    r->world = status == SHERD_OK ? next : r->world;
    return status;
}

/* Ends the process of one rank. A step may fail where a rank is lost at its end, so all have to be out
 * of theirs. */
static void rank_ends(const rig *r, int rank)
{
    sherd_status status = sherd_world_barrier(r->world);

    if (sherd_world_rank(r->world) == rank) {
        CHECK_OK(status);
        (void)raise(SIGKILL);
    }
}

/* Its first values are in no other rank. */
static void rank_is_lost_before_the_first_step(void)
{
    rig r;

    engine_open(&r, 2);
    rank_ends(&r, 1);
    CHECK_STATUS(SHERD_E_STATE, survivors_move(&r));
    CHECK_ERROR_SAYS("the state is gone");
    engine_close(&r);
}

/* Blobs of the run come from rank 0, and its own ones go on, too. */
static void rank_with_blobs_is_lost(void)
{
    sherd_blob_params params;
    char              text[16] = "";
    size_t            len      = sizeof(text);
    rig               r;

    engine_open(&r, 2);
    (void)rig_train(&r, 2);
    CHECK_OK(sherd_blob_set(r.engine, "place", "second", 7, NULL));
    sherd_blob_params_init(&params);
    params.is_per_rank = 1;
    CHECK_OK(sherd_blob_set(r.engine, "own", sherd_world_rank(r.world) == 0 ? "zero" : "more", 5,
                            &params));
    (void)rig_train(&r, 2);
    rank_ends(&r, 0);
    CHECK_OK(survivors_move(&r));
    CHECK_OK(sherd_blob_get(r.engine, "place", text, &len, NULL));
    CHECK(strcmp(text, "second") == 0);
    len = sizeof(text);
    CHECK_OK(sherd_blob_get(r.engine, "own", text, &len, &params));
    CHECK(strcmp(text, sherd_world_rank(r.world) == 0 ? "zero" : "more") == 0);
    (void)rig_train(&r, 2 * 3);
    engine_close(&r);
}

static void rank_with_units_is_lost(void)
{
    rig r;

    engine_open(&r, 2);
    (void)rig_train(&r, 3 * 2);
    rank_ends(&r, ranks_variable("TEST_LOST"));
    CHECK_OK(survivors_move(&r));
    (void)rig_train(&r, 2 * 3);
    engine_close(&r);
}

/* Three ranks, of which one is lost. */
static void ranks_lose(const char *part, int lost, const char *top)
{
    rank_start starts[3];
    char       ranks[3][32], address[300], text[600], who[32];

    (void)snprintf(address, sizeof(address), "SHERD_RENDEZVOUS=%s", ranks_address());
    (void)snprintf(text, sizeof(text), "TEST_TOP=%s", top);
    (void)snprintf(who, sizeof(who), "TEST_LOST=%d", lost);
    for (int r = 0; r < 3; r++) {
        (void)snprintf(ranks[r], sizeof(ranks[r]), "SHERD_RANK=%d", r);
        starts[r] =
            (rank_start){.part        = part,
                         .environment = {ranks[r], "SHERD_WORLD_SIZE=3", address, text, who},
                         .ends        = r == lost ? RANK_IS_KILLED : RANK_PASSES};
    }
    ranks_run(starts, 3);
}

static void loss_before_the_first_step_is_refused(void)
{
    ranks_lose("rank_is_lost_before_the_first_step", 1, HOST);
    ranks_lose("rank_is_lost_before_the_first_step", 1, PEER);
    ranks_lose("rank_is_lost_before_the_first_step", 1, ", \"deterministic\": true");
}

/* The log of fingerprints goes on: rank 0 has written it. */
static void fingerprints_of_units_go_on(void)
{
    char  top[400], path[300], line[4096];
    int   steps = 0;
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/units.jsonl", test_scratch());
    for (int lost = 0; lost < 2; lost++) {
        (void)snprintf(top, sizeof(top),
                       ", \"deterministic\": true, \"sherd\": {\"redundancy\": \"host\", "
                       "\"fingerprints\": {\"file\": \"%s\"}}",
                       path);
        ranks_lose("rank_with_units_is_lost", lost, top);
    }
    file = fopen(path, "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof(line), file) != NULL) {
        steps += strstr(line, "\"was_updated\": true") != NULL;
    }
    (void)fclose(file);
    CHECK_INT(10, steps);
}

static void blobs_of_a_lost_rank_go_on(void)
{
    ranks_lose("rank_with_blobs_is_lost", 0, HOST);
    ranks_lose("rank_with_blobs_is_lost", 0, PEER);
}

static const test_case CASES[] = {
    CASE(host_memory_outlives_a_rank), CASE(second_copy_outlives_a_rank),
    CASE(replica_outlives_a_rank),     CASE(loss_before_the_first_step_is_refused),
    CASE(blobs_of_a_lost_rank_go_on),  CASE(fingerprints_of_units_go_on)};
static const rank_part PARTS[] = {LOSER_PART, PART(rank_is_lost_before_the_first_step),
                                  PART(rank_with_blobs_is_lost), PART(rank_with_units_is_lost)};

RANKS_MAIN(CASES, PARTS)

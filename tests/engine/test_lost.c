/* A rank is lost and training goes on: processes that are killed, at moments of every phase. */
#include "tests/engine/loser.h"
#include "tests/lib/check.h"

#include <stdio.h>
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
    int times = test_is_long() ? 40 : 4;

    for (int stage = 1; stage < 4; stage++) {
        kills_run(loser_of(stage, SHERD_BF16, HOST), LOSER_ALWAYS, times, 20000);
    }
    kills_run(loser_of(3, SHERD_F32, HOST), LOSER_ALWAYS, times, 20000);
}

#define PEER ", \"deterministic\": true, \"sherd\": {\"redundancy\": \"peer\"}"

static void second_copy_outlives_a_rank(void)
{
    int times = test_is_long() ? 40 : 4;

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

static const test_case CASES[] = {CASE(host_memory_outlives_a_rank),
                                  CASE(second_copy_outlives_a_rank), CASE(replica_outlives_a_rank)};
static const rank_part PARTS[] = {LOSER_PART};

RANKS_MAIN(CASES, PARTS)

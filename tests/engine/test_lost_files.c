/* A rank is lost and training goes on, with the state on a drive: a survivor gives what the lost
 * rank had committed, and no file of it remains. */
#include "tests/engine/loser.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <string.h>

#define DETERMINISTIC ", \"deterministic\": true"

/* Kills ranks at moments that cover a step, and the move after it. */
static void kills_run(int stage, const char *optimizer, const char *top, int num_kills, int times)
{
    static uint64_t state = 12;
    char            zero[256];
    int             killed = 0;
    int             moves  = 0;
    loser           l      = {.options = {.stage        = stage,
                                          .dtype        = SHERD_BF16,
                                          .clip         = 1,
                                          .zero         = zero,
                                          .top          = top,
                                          .optimizer    = optimizer,
                                          .has_matrices = optimizer != NULL,
                                          .accumulation = 2},
                              .ranks   = 4,
                              .elems   = {30000, 50003, 19220},
                              .folder  = ""};

    (void)snprintf(zero, sizeof(zero),
                   ", \"sub_group_size\": 8192, \"offload_optimizer\": {\"device\": \"nvme\", "
                   "\"nvme_path\": \"%s\"}",
                   test_scratch());
    for (int n = 0; n < times; n++) {
        loser_result result;

        l.is_queued      = n % 2;
        l.is_all_trained = stage == 3;
        l.num_kills      = num_kills;
        for (int k = 0; k < num_kills; k++) {
            l.kills[k] = (loser_kill){.rank     = (int)(test_random(&state) % 2) + 2 * k,
                                      .step     = k == 0 ? 1 + (int)(test_random(&state) % 4) : -1,
                                      .delay_us = (int)(test_random(&state) % 40000)};
        }
        loser_run(&l, &result);
        killed += result.killed;
        moves += result.moves;
        CHECK_INT(0, test_files_count(test_scratch(), ""));
    }
    CHECK(killed > 0 && moves > 0);
}

static int times(void)
{
    return test_is_long() ? 40 : 4;
}

static void state_on_a_drive_outlives_a_rank(void)
{
    for (int stage = 1; stage <= 3; stage++) {
        kills_run(stage, NULL, DETERMINISTIC, 1, times());
    }
}

static void encoded_state_on_a_drive_outlives_a_rank(void)
{
    kills_run(3, NULL,
              DETERMINISTIC ", \"sherd\": {\"master_encoding\": \"bf16_beside\", "
                            "\"moment_encoding\": \"fp8\"}",
              1, times());
}

/* The ranks make Muon's updates together; the last commit has whole ones. */
static void matrices_on_a_drive_outlive_a_rank(void)
{
    kills_run(2, "Muon", DETERMINISTIC, 1, times());
}

static void state_on_a_drive_outlives_a_rank_that_is_lost_in_the_move(void)
{
    for (int stage = 1; stage <= 3; stage += 2) {
        kills_run(stage, NULL, DETERMINISTIC, 2, times());
    }
}

/* Frozen parameters in slices are in no file of the state. */
static void frozen_slices_of_a_lost_rank_are_gone(void)
{
    char         zero[256];
    char         folder[300];
    loser_result result;
    loser        l = {.options   = {.stage        = 3,
                                    .dtype        = SHERD_BF16,
                                    .zero         = zero,
                                    .top          = DETERMINISTIC,
                                    .accumulation = 2},
                      .ranks     = 3,
                      .elems     = {3000, 5003, 1920},
                      .kills     = {{.rank = 1, .step = 2, .delay_us = 1000}},
                      .num_kills = 1,
                      .model     = LOSER_NEVER};

    (void)snprintf(folder, sizeof(folder), "%s/c", test_scratch());
    l.folder = folder;
    (void)snprintf(zero, sizeof(zero),
                   ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}",
                   test_scratch());
    loser_run(&l, &result);
    CHECK_INT(1, result.killed);
    CHECK_INT(1, result.refused);
}

static const test_case CASES[] = {
    CASE(state_on_a_drive_outlives_a_rank),
    CASE(encoded_state_on_a_drive_outlives_a_rank),
    CASE(matrices_on_a_drive_outlive_a_rank),
    CASE(state_on_a_drive_outlives_a_rank_that_is_lost_in_the_move),
    CASE(frozen_slices_of_a_lost_rank_are_gone),
};
static const rank_part PARTS[] = {LOSER_PART};

RANKS_MAIN(CASES, PARTS)

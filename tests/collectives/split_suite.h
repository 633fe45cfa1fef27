/* Worlds of some ranks of a world, over any transport: cases of the suite, and parts for what ranks
 * that are processes fail with (split_suite.c, split_failures.c). */
#ifndef TESTS_COLLECTIVES_SPLIT_SUITE_H
#define TESTS_COLLECTIVES_SPLIT_SUITE_H

#include "collectives/world.h"

void split_groups_have_their_ranks_in_order(sherd_world *world, void *ctx);
void split_of_a_split_knows_its_ranks(sherd_world *world, void *ctx);
void split_comes_after_calls_that_are_queued(sherd_world *world, void *ctx);
void split_that_fails_on_one_rank_fails_on_all(sherd_world *world, void *ctx);

/** That `child` has these ranks of a world, in this order, and moves and sums among them. */
void split_check(sherd_world *child, int parent_rank, const int *ranks, int count);

/** Rank 1 aborts a world while the others wait in one that was split from it. */
void split_abort_reaches_the_groups(sherd_world *world, void *ctx);

/** Four ranks: the last dies, and its group and the other learn of it. */
void part_split_killed(void);
/** The same where all have destroyed the parent: the other group goes on. */
void part_split_killed_apart(void);
/** Four ranks: the last dies while the others split. */
void part_split_killed_within(void);
/** Four ranks, of which the first aborts. */
void part_split_aborts(void);

#define SPLIT_FAILURES(_)                                                                          \
    _(rank_killed_fails_all_groups_of_its_parent, part_split_killed, 3)                            \
    _(rank_killed_leaves_a_group_without_a_parent_alone, part_split_killed_apart, 3)               \
    _(rank_killed_while_others_split_is_named, part_split_killed_within, 3)                        \
    _(abort_of_the_parent_reaches_its_groups, part_split_aborts, -1)

#endif

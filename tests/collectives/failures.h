/* What happens when a rank dies, gives up, leaves or does not come: parts for processes of any
 * transport. Each makes its world from the environment. */
#ifndef TESTS_COLLECTIVES_FAILURES_H
#define TESTS_COLLECTIVES_FAILURES_H

/** The whole suite in one world. */
void part_suite(void);
/** The last rank dies by SIGKILL while the others wait in a barrier. */
void part_killed_in_barrier(void);
/** The same while calls of theirs are queued. */
void part_killed_in_queue(void);
/** The same in the middle of long all-reduces in ordinary memory. */
void part_killed_in_all_reduce(void);
/** Rank 0, which all connections go to, dies. */
void part_killed_first(void);
/** The same two with a child that the rank has forked, and that lives on. */
void part_killed_with_a_child(void);
void part_first_killed_with_a_child(void);
/** Every rank forks a child that destroys its copy of the world; nobody notices. */
void part_child_destroys(void);
void part_exits_without_destroy(void);
void part_aborts(void);
/** Between two hosts the link goes down when rank 0 has left the file SHERD_TEST_READY. Each host
 *  names the other one's. */
void part_link_goes_down(void);
void part_link_comes_back(void);
/** Of three ranks the last is on a host of its own, and the others learn over memory that one of
 *  them gave up: they disconnect before the last one is notified. Needs root. */
void part_aborts_in_memory(void);
void part_leaves_early(void);
void part_first_leaves_early(void);
void part_does_not_come(void);
void part_disagrees(void);
void part_created_twice(void);

/* Cases of three ranks over any transport of processes: _(name, part, rank that is killed or
 * -1). */
#define FAILURES_ANYWHERE(_)                                                                       \
    _(rank_killed_in_barrier_is_named, part_killed_in_barrier, 2)                                  \
    _(first_rank_killed_is_named, part_killed_first, 0)                                            \
    _(rank_killed_while_calls_are_queued_is_named, part_killed_in_queue, 2)                        \
    _(abort_reaches_all_with_its_reason, part_aborts, -1)
/* ... and of those where nothing but the ranks takes note of an end: no mpirun. */
#define FAILURES_ALONE(_)                                                                          \
    _(rank_killed_in_all_reduce_is_named, part_killed_in_all_reduce, 2)                            \
    _(rank_that_exits_without_destroy_is_named, part_exits_without_destroy, -1)                    \
    _(rank_that_does_not_come_is_named, part_does_not_come, -1)                                    \
    _(ranks_that_disagree_are_told, part_disagrees, -1)                                            \
    _(world_can_be_made_again_at_the_same_address, part_created_twice, -1)
#define FAILURE_PART(name, part, killed) PART(part),

#endif

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
void part_leaves_early(void);
void part_first_leaves_early(void);
void part_does_not_come(void);
void part_disagrees(void);
void part_created_twice(void);

#endif

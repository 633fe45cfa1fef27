/* The threads of this process by their names, from the system. */
#ifndef TESTS_LIB_TASKS_H
#define TESTS_LIB_TASKS_H

#include <sched.h>

/** Counts the threads whose names begin with `name`, and sets *cpus (may be NULL) to where they may
 *  run; fails the test if they differ in that. */
int test_tasks_cpus(const char *name, cpu_set_t *cpus);

#endif

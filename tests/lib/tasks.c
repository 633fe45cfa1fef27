/* See tasks.h. */
#include "tests/lib/tasks.h"

#include "tests/lib/check.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int task_is(const char *task, const char *name)
{
    char  path[320];
    char  comm[32] = "";
    FILE *file;
    int   is_read;

    (void)snprintf(path, sizeof(path), "/proc/self/task/%s/comm", task);
    file = fopen(path, "r");
    if (file == NULL) {
        return 0; /* it has ended */
    }
    is_read = fgets(comm, sizeof(comm), file) != NULL;
    (void)fclose(file);
    return is_read && strncmp(comm, name, strlen(name)) == 0;
}

int test_tasks_cpus(const char *name, cpu_set_t *cpus)
{
    DIR           *tasks = opendir("/proc/self/task");
    struct dirent *task;
    int            count = 0;

    CHECK(tasks != NULL);
    while ((task = readdir(tasks)) != NULL) {
        cpu_set_t own;

        if (!task_is(task->d_name, name)) {
            continue;
        }
        if (cpus != NULL && sched_getaffinity((pid_t)atoi(task->d_name), sizeof(own), &own) == 0) {
            CHECK(count == 0 || CPU_EQUAL(cpus, &own));
            *cpus = own;
        }
        count++;
    }
    (void)closedir(tasks);
    return count;
}

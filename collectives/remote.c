/* See remote.h. */
#include "collectives/remote.h"

#include <sched.h>
#include <time.h>

/* How to wait for something that does not wake us: first yield the core this number of times, then
 * sleep between the checks. */
#define LOOKS_BEFORE_SLEEP 2000
#define SLEEP_NS           50000

void sherdi_nap(int turn)
{
    const struct timespec nap = {.tv_nsec = SLEEP_NS};

    if (turn < LOOKS_BEFORE_SLEEP) {
        (void)sched_yield();
    } else {
        (void)nanosleep(&nap, NULL);
    }
}

/* How the allocation went on a rank, and how many bytes it asked for. */
typedef struct alloc_record {
    uint64_t len_bytes;
    int32_t  status;
    int32_t  unused;
} alloc_record;

_Static_assert(sizeof(alloc_record) <= SHERDI_TOLD_BYTES / 2,
               "records of all ranks fit the scratch of sums");

sherd_status sherdi_world_alloc_agree(sherd_world *world, sherd_status here, size_t len_bytes,
                                      const char *what)
{
    alloc_record           mine = {.len_bytes = len_bytes, .status = (int32_t)here};
    alloc_record          *all  = (alloc_record *)(void *)world->sum_scratch;
    sherdi_all_gather_args args = {
        .send = &mine, .recv = all, .slice_bytes = sizeof(mine), .flags = SHERDI_COLL_HOST};

    if (world->world_size == 1) {
        return here;
    }
    SHERDI_TRY(world->ops->all_gather(world, &args));
    for (int r = 0; r < world->world_size; r++) {
        if (all[r].len_bytes != mine.len_bytes) {
            return sherdi_world_fail(
                world, SHERD_E_INVAL,
                "ranks disagree: rank %d allocates %llu bytes of %s, rank %d "
                "%llu; all ranks must declare the same model and configuration",
                world->rank, (unsigned long long)mine.len_bytes, what, r,
                (unsigned long long)all[r].len_bytes);
        }
    }
    for (int r = 0; r < world->world_size; r++) {
        if (all[r].status != SHERD_OK) {
            return sherdi_fail((sherd_status)all[r].status, "rank %d: %s%llu bytes of %s", r,
                               all[r].status == SHERD_E_NOMEM ? "no memory for "
                                                              : "its device gives no ",
                               (unsigned long long)mine.len_bytes, what);
        }
    }
    return SHERD_OK;
}

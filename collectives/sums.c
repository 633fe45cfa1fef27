/* Sums of integers over the ranks. See sums.h. */
#include "collectives/sums.h"

#include "base/checked.h"
#include "collectives/world_impl.h"

#include <string.h>

/* Adds modulo 2^64. */
void sherdi_integers_add(const void *const *srcs, int num_srcs, void *dst, size_t count)
{
    uint64_t *sums = dst;

    for (size_t i = 0; i < count; i++) {
        uint64_t sum = 0;

        for (int k = 0; k < num_srcs; k++) {
            sum += ((const uint64_t *)srcs[k])[i];
        }
        sums[i] = sum;
    }
}

/* Rank r adds up slice r of a portion. The portion is padded with zeros. */
static sherd_status sum_integers(sherd_world *world, uint64_t *values, size_t count, size_t slice)
{
    size_t                      words   = slice * (size_t)world->world_size;
    uint64_t                   *portion = (uint64_t *)(void *)world->sum_scratch;
    uint64_t                   *own     = portion + (size_t)world->rank * slice;
    const sherdi_reduction_args sum     = {.send        = portion,
                                           .recv        = own,
                                           .slice_elems = slice,
                                           .flags       = SHERDI_COLL_HOST,
                                           .add         = sherdi_integers_add};

    memcpy(portion, values, count * sizeof(*values));
    memset(portion + count, 0, (words - count) * sizeof(*values));
    SHERDI_TRY(sherdi_world_reduce_scatter(world, &sum, NULL));
    SHERDI_TRY(sherdi_world_exchange(world, own, portion, slice * sizeof(*own), "sum"));
    memcpy(values, portion, count * sizeof(*values));
    return SHERD_OK;
}

sherd_status sherdi_world_sum_u64(sherd_world *world, uint64_t *values, size_t count)
{
    SHERDI_TRY(sherdi_world_check_process(world));
    SHERDI_TRY(sherdi_world_status(world));
    if (world->ops->sum_u64 != NULL && world->world_size > 1) {
        uint64_t bytes = sherdi_wire_sum_u64(world->world_size, count);

        sherdi_world_drain(world);
        SHERDI_TRY(world->ops->sum_u64(world, values, count));
        sherdi_world_traffic_add(world, bytes, bytes);
        return SHERD_OK;
    }
    for (size_t at = 0; at < count && world->world_size > 1;) {
        size_t slice   = sherdi_sum_slice(world->world_size, count - at);
        size_t portion = sherdi_min_size(slice * (size_t)world->world_size, count - at);

        SHERDI_TRY(sum_integers(world, values + at, portion, slice));
        at += portion;
    }
    return SHERD_OK;
}

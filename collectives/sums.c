/* Sums over the ranks: of integers (sums.h), and of the numbers of the program. */
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

/* ------------------------------------------------------ sums of the program -- */

/* Values of a rank that ranks of one host send with the note of a call (PEERS_MAIL_BYTES). */
#define SUM_PORTION 128

/* Sums one portion: values[i] = ((v of rank 0 + v of rank 1) + ...). All simulated ranks have this
 * rank's values. */
static sherd_status sum_portion(sherd_world *world, double *values, size_t count)
{
    sherdi_messages messages;

    SHERDI_TRY(sherdi_world_tell(world, values, count * sizeof(*values), "a sum", &messages));
    memcpy(values, sherdi_message_of(&messages, 0), count * sizeof(*values));
    for (int r = 1; r < world->world_size; r++) {
        const double *other = sherdi_message_of(&messages, r);

        for (size_t i = 0; i < count; i++) {
            values[i] += other[i];
        }
    }
    return SHERD_OK;
}

sherd_status sherd_world_sum_f64(sherd_world *world, double *values, size_t count)
{
    SHERDI_TRY(sherdi_world_check_caller(world, "sherd_world_sum_f64"));
    if (values == NULL && count > 0) {
        return sherdi_fail(SHERD_E_INVAL, "sherd_world_sum_f64: values is NULL");
    }
    SHERDI_TRY(sherdi_world_check_process(world));
    SHERDI_TRY(sherdi_world_status(world));
    sherdi_world_drain(world);
    for (size_t at = 0; at < count && world->world_size > 1; at += SUM_PORTION) {
        SHERDI_TRY(sum_portion(world, values + at, sherdi_min_size(SUM_PORTION, count - at)));
    }
    return SHERD_OK;
}

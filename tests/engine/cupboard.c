/* Shows all that the engine has to know of another tier: its tables. The line of the list of tiers
 * is in more_tiers/. A read is done only when it is waited for, as late as a drive may be; a write
 * copies its bytes when it is started. */
#include "tests/engine/cupboard.h"

#include "offload/tier.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic uint64_t read_bytes, written_bytes;

cupboard_traffic cupboard_traffic_take(void)
{
    return (cupboard_traffic){.read_bytes    = atomic_exchange(&read_bytes, 0),
                              .written_bytes = atomic_exchange(&written_bytes, 0)};
}

typedef struct cupboard {
    sherdi_tier    tier;
    unsigned char *shelves;
    sherdi_extent *extents;
} cupboard;

static void cupboard_close(sherdi_tier *tier)
{
    cupboard *self = (cupboard *)tier;

    free(self->shelves);
    free(self->extents);
    free(self);
}

static void transfer_start(cupboard *self, size_t extent, void *memory, int is_write, sherdi_io *io)
{
    *io = (sherdi_io){.is_write     = is_write,
                      .memory       = memory,
                      .offset_bytes = self->extents[extent].offset_bytes,
                      .len_bytes    = self->extents[extent].len_bytes,
                      .is_started   = 1};
}

static void cupboard_read_start(sherdi_tier *tier, size_t extent, void *memory, sherdi_io *io)
{
    transfer_start((cupboard *)tier, extent, memory, 0, io);
    memset(memory, 0xff, io->len_bytes); /* who does not wait reads NaN */
}

static void cupboard_write_start(sherdi_tier *tier, size_t extent, void *memory, sherdi_io *io)
{
    cupboard *self = (cupboard *)tier;

    transfer_start(self, extent, memory, 1, io);
    memcpy(self->shelves + io->offset_bytes, memory, io->len_bytes);
    (void)atomic_fetch_add(&written_bytes, io->len_bytes);
}

static sherd_status cupboard_wait(sherdi_tier *tier, sherdi_io *io)
{
    cupboard *self = (cupboard *)tier;

    if (io->is_started && !io->is_write) {
        memcpy(io->memory, self->shelves + io->offset_bytes, io->len_bytes);
        (void)atomic_fetch_add(&read_bytes, io->len_bytes);
    }
    io->is_started = 0;
    return SHERD_OK;
}

static int cupboard_is_done(sherdi_tier *tier, const sherdi_io *io)
{
    (void)tier;
    (void)io;
    return 1;
}

static const sherdi_tier_ops CUPBOARD_OPS = {
    .close       = cupboard_close,
    .read_start  = cupboard_read_start,
    .write_start = cupboard_write_start,
    .wait        = cupboard_wait,
    .is_done     = cupboard_is_done,
};

static sherd_status cupboard_open(const sherdi_tier_params *params, sherdi_mem *mem,
                                  sherdi_tier **out)
{
    const sherdi_extent *last = &params->extents[params->num_extents - 1];
    cupboard            *self = calloc(1, sizeof(*self));

    (void)mem; /* its memory is not counted as the engine's */
    if (self == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no room for the cupboard");
    }
    self->tier.ops = &CUPBOARD_OPS;
    self->shelves  = calloc(1, last->offset_bytes + last->len_bytes);
    self->extents  = calloc(params->num_extents, sizeof(*self->extents));
    if (self->shelves == NULL || self->extents == NULL) {
        cupboard_close(&self->tier);
        return sherdi_fail(SHERD_E_NOMEM, "no room for the cupboard");
    }
    memcpy(self->extents, params->extents, params->num_extents * sizeof(*self->extents));
    *out = &self->tier;
    return SHERD_OK;
}

const sherdi_tier_kind test_tier_cupboard = {.space = SHERDI_SPACE_STORAGE, .open = cupboard_open};

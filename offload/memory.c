/* The tiers of memory: an extent is where it is, nothing moves. See tier.h. On the CPU device memory is host memory; the
 * two differ in what the plan says of them. */
#include "offload/tier_impl.h"

#include "base/checked.h"

#include <string.h>

typedef struct memory_tier {
    sherdi_tier    tier;
    unsigned char *memory;
    sherdi_extent  extents[];
} memory_tier;

static void memory_close(sherdi_tier *tier, int is_kept)
{
    (void)is_kept; /* the memory is the caller's */
    sherdi_free(tier);
}

static void *memory_address(sherdi_tier *tier, size_t extent)
{
    memory_tier *self = (memory_tier *)tier;

    return self->memory + self->extents[extent].offset_bytes;
}

static const sherdi_tier_ops MEMORY_OPS = {
    .struct_size = sizeof(sherdi_tier_ops),
    .name        = "memory",
    .close       = memory_close,
    .address     = memory_address,
};

static sherd_status memory_open(const sherdi_tier_params *params, sherdi_mem *mem,
                                sherdi_tier **out)
{
    size_t       num_extents = params->num_extents;
    memory_tier *self;
    size_t       len_bytes;

    SHERDI_TRY(sherdi_extents_check(params->extents, num_extents));
    if (!sherdi_mul_fits(num_extents, sizeof(self->extents[0]), &len_bytes) ||
        !sherdi_add_fits(len_bytes, sizeof(*self), &len_bytes)) {
        return sherdi_fail(SHERD_E_INVAL, "%zu extents are more than memory holds", num_extents);
    }
    self = sherdi_alloc(mem, SHERDI_MEM_CONTROL, len_bytes);
    if (self == NULL) {
        return SHERD_E_NOMEM;
    }
    self->tier.ops = &MEMORY_OPS;
    self->memory   = params->memory;
    if (num_extents > 0) {
        memcpy(self->extents, params->extents, num_extents * sizeof(self->extents[0]));
    }
    *out = &self->tier;
    return SHERD_OK;
}

const sherdi_tier_kind sherdi_tier_device = {.place = SHERDI_PLACE_DEVICE, .open = memory_open};
const sherdi_tier_kind sherdi_tier_host   = {.place = SHERDI_PLACE_HOST, .open = memory_open};

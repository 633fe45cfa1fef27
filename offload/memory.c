/* The tiers of memory: an extent is where it is, nothing moves. See tier.h. */
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

/* On the CPU device memory is host memory; they differ in what the plan says of them. */
static const sherdi_tier_ops MEMORY_OPS[] = {
    {
        .struct_size = sizeof(sherdi_tier_ops),
        .name        = "device",
        .close       = memory_close,
        .address     = memory_address,
    },
    {
        .struct_size = sizeof(sherdi_tier_ops),
        .name        = "host",
        .close       = memory_close,
        .address     = memory_address,
    },
};

static const sherdi_tier_ops *ops_find(const char *name)
{
    for (size_t i = 0; i < sizeof(MEMORY_OPS) / sizeof(MEMORY_OPS[0]); i++) {
        if (strcmp(MEMORY_OPS[i].name, name) == 0) {
            return &MEMORY_OPS[i];
        }
    }
    return NULL;
}

sherd_status sherdi_tier_memory(const char *name, void *memory, const sherdi_extent *extents,
                                size_t num_extents, sherdi_mem *mem, sherdi_tier **out)
{
    const sherdi_tier_ops *ops = ops_find(name);
    memory_tier           *self;
    size_t                 len_bytes;

    if (ops == NULL) {
        return sherdi_fail(SHERD_E_INVAL, "there is no tier of memory called %s", name);
    }
    SHERDI_TRY(sherdi_extents_check(extents, num_extents));
    if (!sherdi_mul_fits(num_extents, sizeof(self->extents[0]), &len_bytes) ||
        !sherdi_add_fits(len_bytes, sizeof(*self), &len_bytes)) {
        return sherdi_fail(SHERD_E_INVAL, "%zu extents are more than memory holds", num_extents);
    }
    self = sherdi_alloc(mem, SHERDI_MEM_CONTROL, len_bytes);
    if (self == NULL) {
        return SHERD_E_NOMEM;
    }
    self->tier.ops = ops;
    self->memory   = memory;
    if (num_extents > 0) {
        memcpy(self->extents, extents, num_extents * sizeof(extents[0]));
    }
    *out = &self->tier;
    return SHERD_OK;
}

static sherd_status device_open(const sherdi_tier_params *params, sherdi_mem *mem,
                                sherdi_tier **out)
{
    return sherdi_tier_memory("device", params->memory, params->extents, params->num_extents, mem,
                              out);
}

static sherd_status host_open(const sherdi_tier_params *params, sherdi_mem *mem, sherdi_tier **out)
{
    return sherdi_tier_memory("host", params->memory, params->extents, params->num_extents, mem,
                              out);
}

const sherdi_tier_kind sherdi_tier_device = {.place = SHERDI_PLACE_DEVICE, .open = device_open};
const sherdi_tier_kind sherdi_tier_host   = {.place = SHERDI_PLACE_HOST, .open = host_open};

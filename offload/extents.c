/* Checks that extents are as tier.h requires, and lays them out in a file. */
#include "offload/tier_impl.h"

#include "base/checked.h"

#include <stdint.h>

sherd_status sherdi_extents_lay_out(const sherdi_extent *extents, size_t num_extents,
                                    sherdi_extent *in_file, size_t *end_out)
{
    size_t end_bytes = 0;
    size_t at_bytes  = 0;

    for (size_t i = 0; i < num_extents; i++) {
        size_t offset_bytes = extents[i].offset_bytes, len_bytes = extents[i].len_bytes;

        if (offset_bytes % SHERD_ALIGN_BYTES != 0 || len_bytes % SHERD_ALIGN_BYTES != 0 ||
            offset_bytes < end_bytes || !sherdi_add_fits(offset_bytes, len_bytes, &end_bytes)) {
            return sherdi_fail(SHERD_E_INVAL,
                               "extent %zu at byte %zu with %zu bytes: multiples of %d that ascend "
                               "and do not overlap are needed",
                               i, offset_bytes, len_bytes, SHERD_ALIGN_BYTES);
        }
        in_file[i] = (sherdi_extent){at_bytes, len_bytes};
        if (!sherdi_add_fits(at_bytes, len_bytes, &at_bytes) || at_bytes > INT64_MAX) {
            return sherdi_fail(SHERD_E_INVAL, "%zu extents are too many for one file", num_extents);
        }
    }
    *end_out = at_bytes;
    return SHERD_OK;
}

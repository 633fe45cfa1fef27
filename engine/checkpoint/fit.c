/* See fit.h. */
#include "engine/checkpoint/fit.h"

#include <fnmatch.h>
#include <stdio.h>

int sherdi_fit_is_allowed(const char *const *patterns, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (fnmatch(patterns[i], name, 0) == 0) {
            return 1;
        }
    }
    return 0;
}

void sherdi_fit_shape_text(int ndim, const size_t *shape, char *text, size_t len_bytes)
{
    size_t used = (size_t)snprintf(text, len_bytes, "[");

    for (int d = 0; d < ndim && used < len_bytes; d++) {
        used += (size_t)snprintf(text + used, len_bytes - used, d == 0 ? "%zu" : ", %zu", shape[d]);
    }
    (void)snprintf(text + (used < len_bytes ? used : len_bytes - 1),
                   used < len_bytes ? len_bytes - used : 1, "]");
}

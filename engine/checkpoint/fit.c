/* See fit.h. */
#include "engine/checkpoint/fit.h"

#include <fnmatch.h>
#include <stdio.h>

static sherd_status patterns_check(const char *call, const char *what, const char *const *patterns,
                                   size_t count)
{
    SHERDI_TRY(sherdi_api_need(patterns != NULL || count == 0, call, what));
    for (size_t i = 0; i < count; i++) {
        if (patterns[i] == NULL) {
            return sherdi_fail(SHERD_E_INVAL, "%s: %s[%zu] is NULL", call, what, i);
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_fit_check(const char *call, const char *const *may_miss, size_t num_may_miss,
                              const char *const *may_be_extra, size_t num_may_be_extra)
{
    SHERDI_TRY(patterns_check(call, "may_miss", may_miss, num_may_miss));
    return patterns_check(call, "may_be_extra", may_be_extra, num_may_be_extra);
}

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

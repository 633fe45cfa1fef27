/* Small helpers of loading and importing, which compare the contents of a file with a model. */
#ifndef SHERDI_CHECKPOINT_FIT_H
#define SHERDI_CHECKPOINT_FIT_H

#include "base/api.h"

/** Returns E_INVAL where a list of patterns, or one of its patterns, is NULL; the message begins
 *  with `call`. */
sherd_status sherdi_fit_check(const char *call, const char *const *may_miss, size_t num_may_miss,
                              const char *const *may_be_extra, size_t num_may_be_extra);
/** Returns whether one of the patterns, written as for a shell, matches a name. */
int sherdi_fit_is_allowed(const char *const *patterns, size_t count, const char *name);
/** Writes a shape like "[700, 900]", cut if there is no room. */
void sherdi_fit_shape_text(int ndim, const size_t *shape, char *text, size_t len_bytes);

#endif

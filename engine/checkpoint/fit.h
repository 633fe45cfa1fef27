/* What a file has against what a model has: words that both loading and importing need. */
#ifndef SHERDI_CHECKPOINT_FIT_H
#define SHERDI_CHECKPOINT_FIT_H

#include <stddef.h>

/** Whether a name is matched by one of the patterns, as of a shell. */
int sherdi_fit_is_allowed(const char *const *patterns, size_t count, const char *name);
/** "[700, 900]"; cut where there is no room. */
void sherdi_fit_shape_text(int ndim, const size_t *shape, char *text, size_t len_bytes);

#endif

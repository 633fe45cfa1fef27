/* The rows of list.h, for whoever has defined SHERDI_UPDATE(name, num_parts), which ends here. No guard: each place that
 * names all updates includes it. */
#define SHERDI_UPDATE_ROWS
#include "kernels/updates/list.h"
#undef SHERDI_UPDATE_ROWS
#undef SHERDI_UPDATE

/* The rows of list.h. Define some of the four macros below, then include this file; it undefines
 * them at its end. It has no guard, since every file that lists all updates or all element-wise
 * optimizers includes it.
 *
 *   SHERDI_UPDATE(update, num_parts)
 *       a formula, and the number of parts of the state that it updates
 *   SHERDI_ELEMENTWISE(table, type, update, (fields))
 *       an optimizer with `update` as its only sweep: its type in a configuration, and the fields
 *       of its table (engine/optimizers/optimizer.h) that do not follow from the rest
 *   SHERDI_VARIANT(table, type, update, (fields))
 *       a table without its own type: the optimizer of `type` with some settings
 *   SHERDI_SWEEP(update)
 *       one of several sweeps of an optimizer whose table is elsewhere; its coefficients too are
 *       made only of a group's numbers
 */
#ifndef SHERDI_UPDATE
#define SHERDI_UPDATE(update, num_parts)
#endif
#ifndef SHERDI_ELEMENTWISE
#define SHERDI_ELEMENTWISE(table, type, update, fields)
#endif
#ifndef SHERDI_VARIANT
#define SHERDI_VARIANT(table, type, update, fields)
#endif
#ifndef SHERDI_SWEEP
#define SHERDI_SWEEP(update)
#endif
#define SHERDI_UPDATE_ROWS
#include "kernels/updates/list.h"
#undef SHERDI_UPDATE_ROWS
#undef SHERDI_UPDATE
#undef SHERDI_ELEMENTWISE
#undef SHERDI_VARIANT
#undef SHERDI_SWEEP

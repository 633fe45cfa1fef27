/* The rows of list.h, for whoever has defined some of these four; they end here. No guard: each place that names
 * all updates or all element-wise optimizers includes it.
 *
 *   SHERDI_UPDATE(update, num_parts)                      a formula
 *   SHERDI_ELEMENTWISE(table, type, update, (fields))     an optimizer that it is the sweep of: its name in a configuration,
 *                                                         and the fields of its table (engine/optimizers/optimizer.h) that
 *                                                         do not follow from the rest
 *   SHERDI_VARIANT(table, type, update, (fields))         what that type means with some settings: a table without a type
 *                                                         of its own
 *   SHERDI_SWEEP(update)                                  one of several sweeps of an optimizer, whose table is elsewhere;
 *                                                         its coefficients too are made of a group's numbers alone */
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

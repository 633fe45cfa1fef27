/* Asserts of our own invariants; what a caller gives is checked by a status. A cheap one is assert, where the invariant
 * is relied on. A walk over a structure is a slow one: the tests' library has those (slow_sources of the meson.build files), the
 * library that is shipped and timed does not. */
#ifndef SHERDI_BASE_ASSERT_H
#define SHERDI_BASE_ASSERT_H

#include <assert.h>

#ifdef SHERDI_SLOW_ASSERTS
#define SHERDI_SLOW_ASSERT(is_true) assert(is_true)
#else
#define SHERDI_SLOW_ASSERT(is_true) ((void)(0 && (is_true)))
#endif

#endif

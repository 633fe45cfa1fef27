/* Asserts of the library's own invariants; a caller's arguments are checked by a status. A cheap
 * check is an assert where the invariant is relied on. A check that walks over a structure is a
 * slow assert: the library for the tests has them (slow_sources of the meson.build files), the
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

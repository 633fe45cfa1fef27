/* Prefetching: how far ahead of their loads the loops of updates, reductions and copies fill the
 * caches. On some machines prefetching gains a tenth and more, on others it costs as much. So the
 * first large updates of a backend try both ways, and the backend keeps the faster one. Updates of
 * an encoded state are tried by themselves, since their loads lie further apart. No result depends
 * on this. Vectors alone prefetch (range_ahead_begin and the like). */
#ifndef SHERDI_KERNELS_CPU_AHEAD_H
#define SHERDI_KERNELS_CPU_AHEAD_H

#include "kernels/cpu/ranges.h"

/** Returns the distance for plain loops; 0: no prefetching. */
size_t sherdi_ahead_bytes(const sherdi_backend *backend);

/** Begin and end an update that moves `bytes` bytes, on any thread. The update uses ahead_bytes of
 *  what begin returns. */
sherdi_ahead_trial sherdi_ahead_begin(const sherdi_backend *backend, sherdi_ahead_kind kind,
                                      size_t bytes);
void               sherdi_ahead_end(const sherdi_backend *backend, const sherdi_ahead_trial *trial);

#endif

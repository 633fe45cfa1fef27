/* The formulas of all updates over single floats, and the functions that update one element with
 * the bits that every kernel stores. */
#ifndef SHERDI_KERNELS_UPDATES_UPDATES_H
#define SHERDI_KERNELS_UPDATES_UPDATES_H

#include "kernels/updates/real.h"

#include "kernels/updates/list.h"

/* sherdi_adam_element(c, grad, x) and so on: x[0] is the master, then follow the other parts of the
 * state. A formula leaves NaN as it comes; these functions replace it by the one fixed NaN. */
#define SHERDI_UPDATE(name, num_parts)                                                             \
    SHERDI_FN void sherdi_##name##_element(const sherdi_##name##_coeffs *c, float grad, float *x)  \
    {                                                                                              \
        sherdi_##name##_update(c, grad, x);                                                        \
        for (int part = 0; part < (num_parts); part++) {                                           \
            x[part] = sherdi_canonical_f32(x[part]);                                               \
        }                                                                                          \
    }
#include "kernels/updates/rows.h"

#endif

/* All element-wise updates with coefficients, as the rows of kernels/updates/list.h give them: a
 * new one is tested with the others. */
#ifndef TESTS_KERNELS_RULES_H
#define TESTS_KERNELS_RULES_H

#include "kernels/backend.h"

#define MOST_COEFF_BYTES 64

typedef struct update_rule {
    const char      *name;
    sherdi_update_id update;
    size_t           coeff_bytes;                 /* of a group */
    unsigned char    coeffs[2 * MOST_COEFF_BYTES] /* of two groups */
        __attribute__((aligned(8)));
} update_rule;

enum {
#define RULE_OF(table, type, update, fields) UPDATE_RULE_##table,
#define SHERDI_ELEMENTWISE                   RULE_OF
#define SHERDI_VARIANT                       RULE_OF
#define SHERDI_SWEEP(update)                 RULE_OF(update, #update, update, )
#include "kernels/updates/rows.h"
    UPDATE_RULES,
};

/** UPDATE_RULES of them. Static storage, made in the first call. */
const update_rule *update_rules(void);

#endif

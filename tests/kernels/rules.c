#include "tests/kernels/rules.h"

#include "kernels/updates/updates.h"
#include "tests/lib/check.h"

#include <string.h>

/* The second has no memory, so that what is infinite meets a factor of zero. */
static const sherdi_group_step STEPS[2] = {
    {.grad_scale = 0.37,
     .lr         = 0.01,
     .beta1      = 0.9,
     .beta2      = 0.99,
     .eps        = 1e-8,
     .decay      = 0.1,
     .bias1      = 0.19,
     .bias2      = 0.02,
     .step       = 3,
     .dampening  = 0.25,
     .lr_decay   = 0.5,
     .initial    = 0.125},
    {.grad_scale  = 1.0 / 65536.0,
     .lr          = 0.3,
     .beta1       = 0.8,
     .eps         = 1e-6,
     .bias1       = 1,
     .bias2       = 1,
     .step        = 1,
     .is_nesterov = 1},
};

#define SHERDI_ELEMENTWISE   MAKE_OF
#define SHERDI_VARIANT       MAKE_OF
#define SHERDI_SWEEP(update) MAKE_OF(update, #update, update, )
#define MAKE_OF(table, type, update_name, fields)                                                  \
    static void table##_make(update_rule *rule)                                                    \
    {                                                                                              \
        CHECK(sizeof(sherdi_##update_name##_coeffs) <= MOST_COEFF_BYTES);                          \
        rule->name        = type;                                                                  \
        rule->update      = SHERDI_UPDATE_##update_name;                                           \
        rule->coeff_bytes = sizeof(sherdi_##update_name##_coeffs);                                 \
        for (size_t group = 0; group < 2; group++) {                                               \
            sherdi_##update_name##_coeffs coeffs = sherdi_##table##_coeffs_of(&STEPS[group]);      \
                                                                                                   \
            memcpy(rule->coeffs + group * sizeof(coeffs), &coeffs, sizeof(coeffs));                \
        }                                                                                          \
    }
#include "kernels/updates/rows.h"

const update_rule *update_rules(void)
{
    static update_rule rules[UPDATE_RULES];

#define MADE_OF(table, type, update, fields) table##_make(&rules[UPDATE_RULE_##table]);
#define SHERDI_ELEMENTWISE                   MADE_OF
#define SHERDI_VARIANT                       MADE_OF
#define SHERDI_SWEEP(update)                 MADE_OF(update, , update, )
#include "kernels/updates/rows.h"
    return rules;
}

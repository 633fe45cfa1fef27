/* The tables of the optimizers that work element by element, made from the rows of kernels/updates/
 * (rows.h explains them). Each has one sweep, which reads and writes all parts of the state. */
#include "engine/optimizers/optimizer.h"

#include "kernels/updates/updates.h"

enum {
#define SHERDI_UPDATE(update, num_parts) PARTS_OF_##update = (num_parts),
#include "kernels/updates/rows.h"
};

#define FIELDS(...)        __VA_ARGS__
#define SHERDI_VARIANT     TABLE_OF
#define SHERDI_ELEMENTWISE TABLE_OF
#define TABLE_OF(table, type, update_name, fields)                                                 \
    static void table##_run(const sherdi_backend *lane, const sherdi_update_args *args,            \
                            float *direction)                                                      \
    {                                                                                              \
        (void)direction;                                                                           \
        lane->kernels->update(lane, SHERDI_UPDATE_##update_name, args);                            \
    }                                                                                              \
                                                                                                   \
    static void table##_coeffs(const sherdi_settings *settings, const sherdi_group_step *step,     \
                               void *out)                                                          \
    {                                                                                              \
        (void)settings;                                                                            \
        *(sherdi_##update_name##_coeffs *)out = sherdi_##table##_coeffs_of(step);                  \
    }                                                                                              \
                                                                                                   \
    const sherdi_optimizer sherdi_optimizer_##table = {                                            \
        .num_parts   = PARTS_OF_##update_name,                                                     \
        .sweeps      = {{.reads          = (1u << PARTS_OF_##update_name) - 1,                     \
                         .writes         = (1u << PARTS_OF_##update_name) - 1,                     \
                         .reads_gradient = 1,                                                      \
                         .writes_param   = 1,                                                      \
                         .run            = table##_run}},                                                     \
        .num_sweeps  = 1,                                                                          \
        .coeff_bytes = sizeof(sherdi_##update_name##_coeffs),                                      \
        .coeffs      = table##_coeffs,                                                             \
        FIELDS fields};
#include "kernels/updates/rows.h"

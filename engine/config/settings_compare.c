/* Lists the settings that ranks compare. */
#include "engine/config/compare.h"

#include "base/hash.h"
#include "engine/optimizers/optimizer.h"

/* Lists the fields of sherd_settings, by their names there. */
size_t sherdi_plain_settings(const sherdi_settings *settings, sherdi_named_bits *out)
{
    const sherdi_scaler_params *scaler = &settings->numerics.scaler;
    size_t                      count  = 0;

#define FIELD(name, setting, ...)                                                                  \
    out[count++] = (sherdi_named_bits){                                                            \
        #name, sherdi_hash_bytes(0, &settings->setting, sizeof(settings->setting))};
#include "engine/config/settings_fields.h"
    out[count++] =
        (sherdi_named_bits){"optimizer", sherdi_optimizer_index(settings->update.optimizer)};
    out[count++] =
        (sherdi_named_bits){"loss_scale or initial_loss_scale",
                            sherdi_hash_bytes(0, &scaler->initial_scale, sizeof(double))};
    out[count++] = (sherdi_named_bits){"loss_scale (fixed or not)", (uint64_t)scaler->is_dynamic};
    out[count++] = (sherdi_named_bits){"SHERD_DEBUG (environment)", (uint64_t)settings->is_debug};
    return count;
}

size_t sherdi_settings_list(const sherdi_settings *settings, sherdi_named_bits *out)
{
#define SHERDI_SETTINGS_LISTER(name) return name(settings, out);
#include "engine/config/settings_list.h"
#undef SHERDI_SETTINGS_LISTER
}

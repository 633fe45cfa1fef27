/* The optimizers of list.h, by number and by name, and their numbers where a group gives none. See
 * optimizer.h. */
#include "engine/optimizers/optimizer.h"

#include "base/text.h"
#include "sherd_build.h"

#include <assert.h>

#define SHERDI_OPTIMIZER(type, table) "|" type
const char sherdi_optimizer_types[] =
#include "engine/optimizers/list.h"
    ;
#undef SHERDI_OPTIMIZER

/* How many optimizers there are; behind them ROWS has the variants of their types. */
#define SHERDI_OPTIMIZER(type, table) +1
enum {
    COUNT = 0
#include "engine/optimizers/list.h"
};
#undef SHERDI_OPTIMIZER

#define SHERDI_OPTIMIZER(type, table) {type, &(table)},
static const struct {
    const char             *type;
    const sherdi_optimizer *table;
} ROWS[] = {
#include "engine/optimizers/list.h"
#define SHERDI_VARIANT(table, type, update, fields) {type, &sherdi_optimizer_##table},
#include "kernels/updates/rows.h"
};
#undef SHERDI_OPTIMIZER

const sherdi_optimizer *sherdi_optimizer_at(size_t index)
{
    return index < COUNT ? ROWS[index].table : NULL;
}

size_t sherdi_optimizer_index(const sherdi_optimizer *optimizer)
{
    size_t index = 0;

    while (ROWS[index].table != optimizer) {
        index++;
        assert(index < sizeof(ROWS) / sizeof(ROWS[0]));
    }
    return index;
}

const char *sherdi_optimizer_name(const sherdi_optimizer *optimizer)
{
    return ROWS[sherdi_optimizer_index(optimizer)].type;
}

const sherdi_optimizer *sherdi_optimizer_in(const sherdi_settings  *settings,
                                            const sherdi_optimizer *optimizer, double beta1)
{
    if (settings->update.decouples_decay && optimizer->decoupled != NULL) {
        return optimizer->decoupled;
    }
    if (optimizer->with_momentum == NULL) {
        return optimizer;
    }
    beta1 = isnan(beta1) ? sherdi_optimizer_numbers(settings, optimizer).betas[0] : beta1;
    return beta1 != 0 ? optimizer->with_momentum : optimizer->without_momentum;
}

sherd_status sherdi_optimizer_find(const sherdi_settings *settings, const char *who,
                                   const char *name, const sherdi_optimizer **out)
{
    size_t index;

    if (!sherdi_text_choice(sherdi_optimizer_types + 1, name, 1, &index)) {
        return sherdi_fail(SHERD_E_NOTSUP, "%s: optimizer %s is not known; known: %s%s", who, name,
                           sherdi_optimizer_types + 1, SHERDI_MORE_NAMES);
    }
    *out = sherdi_optimizer_in(settings, ROWS[index].table, NAN);
    return SHERD_OK;
}

/* Returns the configuration's number if it is set; else the optimizer's own, or the key's default
 * if the optimizer has none. */
static double number_of(int is_given, double given, double own, double standard)
{
    return is_given ? given : own != 0 ? own : standard;
}

sherdi_optimizer_defaults sherdi_optimizer_numbers(const sherdi_settings  *settings,
                                                   const sherdi_optimizer *optimizer)
{
    const sherdi_optimizer_defaults *own = &optimizer->defaults;

    return (sherdi_optimizer_defaults){
        .lr = number_of(settings->update.has_lr, settings->update.lr, own->lr, SHERDI_STANDARD_LR),
        .betas = {optimizer->with_momentum != NULL
                      ? number_of(settings->update.sgd.has_momentum, settings->update.sgd.momentum,
                                  own->betas[0], 0)
                      : number_of(settings->update.has_betas, settings->update.betas[0],
                                  own->betas[0], SHERDI_STANDARD_BETA1),
                  number_of(settings->update.has_betas, settings->update.betas[1], own->betas[1],
                            SHERDI_STANDARD_BETA2)},
        .eps = number_of(settings->update.has_eps, settings->update.eps, own->eps,
                         SHERDI_STANDARD_EPS),
        .is_nesterov =
            settings->update.sgd.has_nesterov ? settings->update.sgd.is_nesterov : own->is_nesterov,
    };
}

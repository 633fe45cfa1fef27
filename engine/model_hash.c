/* Hashes of a model's declarations. */
#include "engine/model_hash.h"

#include "base/hash.h"

#include <string.h>

/* The items are the groups, the units, the parameters, then one for the passes. */
size_t sherdi_model_num_items(const sherdi_model *model)
{
    return model->num_groups + model->num_units + model->num_params + 1;
}

static uint64_t hash_text(uint64_t hash, const char *text)
{
    return sherdi_hash_bytes(hash, text, strlen(text));
}

static uint64_t group_hash(const sherdi_model_group *group)
{
    const double fields[] = {group->lr,    group->weight_decay, group->beta1,
                             group->beta2, group->eps,          group->exclude_1d};
    uint64_t     hash     = sherdi_hash_bytes(1, fields, sizeof(fields));

    return group->optimizer_name == NULL ? hash : hash_text(hash, group->optimizer_name);
}

static uint64_t unit_hash(const sherdi_model_unit *unit, int is_of_state)
{
    uint64_t hash = hash_text(2, unit->name);

    if (!is_of_state && (unit->has_any_uses || unit->retains_grads)) {
        hash = sherdi_hash_u64(hash, (uint64_t)(unit->has_any_uses + 2 * unit->retains_grads));
    }
    if (!is_of_state && unit->activation_bytes > 0) {
        hash = sherdi_hash_u64(hash, unit->activation_bytes);
        hash = sherdi_hash_u64(hash, unit->activation_tier_number);
    }
    hash = sherdi_hash_bytes(hash, unit->params, unit->num_params * sizeof(*unit->params));
    return sherdi_hash_bytes(hash, unit->reads, unit->num_reads * sizeof(*unit->reads));
}

static uint64_t param_hash(const sherdi_model_param *param, int is_of_state)
{
    const uint64_t fields[] = {(uint64_t)param->unit,
                               (uint64_t)param->group,
                               (uint64_t)param->ndim,
                               param->elems,
                               param->atom_elems,
                               (uint64_t)param->is_frozen,
                               !is_of_state && param->bound_data != NULL};
    uint64_t       hash     = hash_text(3, param->name);

    hash = sherdi_hash_bytes(hash, fields, sizeof(fields));
    if (param->dtype >= 0) { /* else nothing: older state files stay valid */
        hash = sherdi_hash_u64(hash, (uint64_t)param->dtype);
    }
    return sherdi_hash_bytes(hash, param->shape, (size_t)param->ndim * sizeof(param->shape[0]));
}

static uint64_t passes_hash(const sherdi_model *model)
{
    uint64_t hash = 4;

    for (int pass = 0; pass < 3; pass++) {
        hash = sherdi_hash_bytes(hash, model->passes[pass].uses,
                                 model->passes[pass].num_uses * sizeof(sherdi_model_use));
    }
    return hash;
}

static uint64_t item_hash(const sherdi_model *model, size_t item, int is_of_state)
{
    if (item < model->num_groups) {
        return group_hash(&model->groups[item]);
    }
    item -= model->num_groups;
    if (item < model->num_units) {
        return unit_hash(&model->units[item], is_of_state);
    }
    item -= model->num_units;
    return item < model->num_params ? param_hash(&model->params[item], is_of_state)
                                    : passes_hash(model);
}

uint64_t sherdi_model_item_hash(const sherdi_model *model, size_t item)
{
    return item_hash(model, item, 0);
}

uint64_t sherdi_model_item_state_hash(const sherdi_model *model, size_t item)
{
    return item_hash(model, item, 1);
}

/* The values in force of the parameters of schedules, for the rows of the table that name these
 * rules. */
#include "engine/config/config_impl.h"
#include "engine/optimizers/optimizer.h"

#define SHERDI_SCHEDULE(id, type, table) "|" type
const char sherdi_schedule_types[] =
#include "engine/optimizers/schedule_list.h"
    ;
#undef SHERDI_SCHEDULE

const sherdi_schedule *sherdi_config_schedule(const sherd_config *config)
{
    const sherdi_config_entry *type = &config->entries[SHERDI_CONFIG_SCHEDULER_TYPE];

    return sherdi_config_is_given(config, SHERDI_CONFIG_SCHEDULER_TYPE)
               ? sherdi_schedule_of((sherdi_schedule_kind)(type->value.integer + 1))
               : NULL;
}

int sherdi_config_is_among(const int *keys, size_t count, sherdi_config_id id)
{
    for (size_t i = 0; i < count; i++) {
        if (keys[i] == (int)id) {
            return 1;
        }
    }
    return 0;
}

/* Says that the schedule needs the parameter, or that it is not needed where it has no default. */
void sherdi_effect_schedule(sherdi_config_effect *effect)
{
    const sherdi_config_key *key      = &sherdi_config_table[effect->id];
    const sherdi_schedule   *schedule = sherdi_config_schedule(effect->config);

    if (schedule != NULL &&
        sherdi_config_is_among(schedule->keys, schedule->num_needed, effect->id)) {
        sherdi_effect_missing(effect,
                              key->fix == NULL ? "this type of schedule needs it" : key->fix);
    } else if (sherdi_config_fallback(key) == NULL) {
        effect->is_null = 1;
        sherdi_effect_say(effect, "not needed");
    }
}

void sherdi_effect_max_lr(sherdi_config_effect *effect)
{
    effect->is_null =
        sherdi_config_schedule(effect->config) != &sherdi_schedule_warmup_decay || effect->is_auto;
    effect->value.real = effect->is_null ? 0 : 0.001;
    sherdi_effect_say(effect, "%s",
                      effect->is_null ? "each group's rate" : "default of WarmupDecayLR");
}

void sherdi_effect_warmup_steps(sherdi_config_effect *effect)
{
    const sherdi_schedule *schedule = sherdi_config_schedule(effect->config);

    if (effect->is_auto) {
        effect->value.integer = 0;
        sherdi_effect_say(effect, "auto: no warm-up");
    } else if (schedule != NULL && schedule->is_transformers) {
        effect->value.integer = 0;
        sherdi_effect_say(effect, "default of transformers");
    }
}

void sherdi_effect_warmup_type(sherdi_config_effect *effect)
{
    if (sherdi_config_schedule(effect->config) == &sherdi_schedule_stable_decay) {
        effect->value.integer = SHERDI_RAMP_LINEAR;
        sherdi_effect_say(effect, "default of warmup_stable_decay");
    }
}

void sherdi_effect_num_cycles(sherdi_config_effect *effect)
{
    if (sherdi_config_schedule(effect->config) == &sherdi_schedule_restarts) {
        effect->value.real = 1;
        sherdi_effect_say(effect, "default of cosine_with_restarts");
    }
}

/* The second half of the cycle is as the first. */
void sherdi_effect_second(sherdi_config_effect *effect)
{
    sherdi_config_id first = effect->id == SHERDI_CONFIG_CYCLE_SECOND_STEPS
                                 ? SHERDI_CONFIG_CYCLE_FIRST_STEPS
                                 : SHERDI_CONFIG_CYCLE_FIRST_STAIRS;

    effect->value.integer = sherdi_config_integer(effect->config, first);
    sherdi_effect_say(effect, "derived: as %s",
                      sherdi_config_leaf(sherdi_config_table[first].path));
}

void sherdi_effect_timescale(sherdi_config_effect *effect)
{
    int64_t warmup = sherdi_config_integer(effect->config, SHERDI_CONFIG_WARMUP_STEPS);

    effect->value.integer = warmup == 0 ? 10000 : warmup;
    sherdi_effect_say(effect, "derived: from num_warmup_steps");
}

/* The stable steps are those that warm-up and decay leave of all steps. If they are below 0, the
 * decay starts before the warm-up ends, as in transformers. */
void sherdi_effect_stable_steps(sherdi_config_effect *effect)
{
    const sherd_config *config = effect->config;

    if (sherdi_config_schedule(config) != &sherdi_schedule_stable_decay) {
        effect->is_null = 1;
        return;
    }
    if (!sherdi_config_is_given(config, SHERDI_CONFIG_TOTAL_STEPS)) {
        sherdi_effect_missing(effect, "give it, or num_training_steps of the whole training");
        return;
    }
    effect->value.integer = sherdi_config_integer(config, SHERDI_CONFIG_TOTAL_STEPS) -
                            sherdi_config_integer(config, SHERDI_CONFIG_WARMUP_STEPS) -
                            sherdi_config_integer(config, SHERDI_CONFIG_DECAY_STEPS);
    sherdi_effect_say(effect, "derived: what is left of num_training_steps");
}

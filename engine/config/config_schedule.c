/* The values in force of the parameters of schedules, for the rows of the table that name these
 * rules. */
#include "engine/config/config_impl.h"
#include "engine/optimizers/optimizer.h"

#include <stdio.h>

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

/* Returns whether a parameter of the schedule has no default and must be set. */
static int schedule_needs(const sherdi_schedule *schedule, sherdi_config_id id)
{
    for (size_t i = 0; schedule != NULL && i < schedule->num_needed; i++) {
        if (schedule->keys[i] == (int)id) {
            return 1;
        }
    }
    return 0;
}

/* Says that the schedule needs the parameter, or that it is not needed where it has no default. */
void sherdi_effect_schedule(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    const sherdi_config_key *key = &sherdi_config_table[asked->id];

    if (schedule_needs(sherdi_config_schedule(asked->config), asked->id)) {
        sherdi_effect_missing(asked, key->fix == NULL ? "this type of schedule needs it" : key->fix,
                              out);
    } else if (sherdi_config_fallback(key) == NULL) {
        out->is_null = 1;
        sherdi_effect_say(out, "not needed");
    }
}

void sherdi_effect_max_lr(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    out->is_null =
        sherdi_config_schedule(asked->config) != &sherdi_schedule_warmup_decay || asked->is_auto;
    out->value.real = out->is_null ? 0 : 0.001;
    sherdi_effect_say(out, out->is_null ? "each group's rate" : "default of WarmupDecayLR");
}

void sherdi_effect_warmup_steps(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    const sherdi_schedule *schedule = sherdi_config_schedule(asked->config);

    if (asked->is_auto) {
        out->value.integer = 0;
        sherdi_effect_say(out, "auto: no warm-up");
    } else if (schedule != NULL && schedule->is_transformers) {
        out->value.integer = 0;
        sherdi_effect_say(out, "default of transformers");
    }
}

void sherdi_effect_warmup_type(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    if (sherdi_config_schedule(asked->config) == &sherdi_schedule_stable_decay) {
        out->value.integer = SHERDI_RAMP_LINEAR;
        sherdi_effect_say(out, "default of warmup_stable_decay");
    }
}

void sherdi_effect_num_cycles(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    if (sherdi_config_schedule(asked->config) == &sherdi_schedule_restarts) {
        out->value.real = 1;
        sherdi_effect_say(out, "default of cosine_with_restarts");
    }
}

/* The second half of the cycle is as the first. */
void sherdi_effect_second(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    sherdi_config_id first = asked->id == SHERDI_CONFIG_CYCLE_SECOND_STEPS
                                 ? SHERDI_CONFIG_CYCLE_FIRST_STEPS
                                 : SHERDI_CONFIG_CYCLE_FIRST_STAIRS;

    out->value.integer = sherdi_config_integer(asked->config, first);
    (void)snprintf(out->origin, sizeof(out->origin), "derived: as %s",
                   sherdi_config_leaf(sherdi_config_table[first].path));
}

void sherdi_effect_timescale(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    int64_t warmup = sherdi_config_integer(asked->config, SHERDI_CONFIG_WARMUP_STEPS);

    out->value.integer = warmup == 0 ? 10000 : warmup;
    sherdi_effect_say(out, "derived: from num_warmup_steps");
}

/* The stable steps are those that warm-up and decay leave of all steps. If they are below 0, the
 * decay starts before the warm-up ends, as in transformers. */
void sherdi_effect_stable_steps(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    const sherd_config *config = asked->config;

    if (sherdi_config_schedule(config) != &sherdi_schedule_stable_decay) {
        out->is_null = 1;
        return;
    }
    if (!sherdi_config_is_given(config, SHERDI_CONFIG_TOTAL_STEPS)) {
        sherdi_effect_missing(asked, "give it, or num_training_steps of the whole training", out);
        return;
    }
    out->value.integer = sherdi_config_integer(config, SHERDI_CONFIG_TOTAL_STEPS) -
                         sherdi_config_integer(config, SHERDI_CONFIG_WARMUP_STEPS) -
                         sherdi_config_integer(config, SHERDI_CONFIG_DECAY_STEPS);
    sherdi_effect_say(out, "derived: what is left of num_training_steps");
}

/* The effective value of a key: the value of the file or program, the value of "auto", the value
 * that follows from other keys, or the default; with a sentence that says which. Both
 * sherdi_config_resolve and the dump ask here, so they cannot differ. */
#include "engine/config/config_impl.h"
#include "engine/optimizers/optimizer.h"

#include <assert.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>

static const sherdi_config_entry *entry_of(const sherd_config *config, sherdi_config_id id)
{
    return &config->entries[id];
}

/* ---- batch ---- */

/* One of the two batch sizes is set. */
static sherd_status batch_fail(const sherd_config *config, int world_size,
                               const sherdi_config_batch *batch)
{
    sherdi_config_id id = sherdi_config_is_given(config, SHERDI_CONFIG_TRAIN_BATCH)
                              ? SHERDI_CONFIG_TRAIN_BATCH
                              : SHERDI_CONFIG_MICRO_BATCH;
    char             where[SHERDI_LOCATION_BYTES];

    (void)sherdi_config_location(config, id, where);
    if (sherdi_batch_samples(batch, world_size) > INT_MAX) {
        return sherdi_fail(SHERD_E_INVAL,
                           "%s: the batch train_micro_batch_size_per_gpu %lld x "
                           "gradient_accumulation_steps %lld x %d ranks does not fit 32 bits",
                           where, (long long)batch->micro, (long long)batch->accumulation,
                           world_size);
    }
    return sherdi_fail(SHERD_E_INVAL,
                       "%s: train_batch_size %lld is not train_micro_batch_size_per_gpu %lld x "
                       "gradient_accumulation_steps %lld x %d ranks; change one of them",
                       where, (long long)batch->train, (long long)batch->micro,
                       (long long)batch->accumulation, world_size);
}

sherd_status sherdi_config_batch_solve(const sherd_config *config, int world_size,
                                       sherdi_config_batch *out)
{
    sherdi_config_batch batch = {
        /* a size that is not set is 0 */
        .train        = entry_of(config, SHERDI_CONFIG_TRAIN_BATCH)->value.integer,
        .micro        = entry_of(config, SHERDI_CONFIG_MICRO_BATCH)->value.integer,
        .accumulation = entry_of(config, SHERDI_CONFIG_ACCUMULATION)->value.integer,
        .is_elastic   = entry_of(config, SHERDI_CONFIG_ELASTIC)->value.real > 0};

    assert(world_size >= 1);
    if (batch.train == 0 && batch.micro == 0 && sherdi_config_optimizer(config)->is_inference) {
        batch.micro = 1; /* an engine for inference counts no samples */
    }
    if (batch.train == 0 && batch.micro == 0) {
        return sherdi_fail(SHERD_E_INVAL,
                           "%s: no batch size is given: set train_micro_batch_size_per_gpu or "
                           "train_batch_size, in the file or by the program",
                           config->name);
    }
    if (!sherdi_batch_derive(&batch, world_size)) {
        return batch_fail(config, world_size, &batch);
    }
    *out = batch;
    return SHERD_OK;
}

void sherdi_effect_say(sherdi_config_effect *effect, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(effect->origin, sizeof(effect->origin), fmt, args);
    va_end(args);
}

void sherdi_effect_batch(sherdi_config_effect *effect)
{
    sherdi_config_batch batch = {0};

    if (effect->world_size == 0) {
        effect->is_missing = 1;
        sherdi_effect_say(effect, "derived once the number of ranks is known");
        return;
    }
    if (sherdi_config_batch_solve(effect->config, effect->world_size, &batch) != SHERD_OK) {
        effect->is_missing = 1;
        sherdi_effect_say(effect, "%s", sherd_last_error());
        return;
    }
    effect->value.integer = effect->id == SHERDI_CONFIG_TRAIN_BATCH   ? batch.train
                            : effect->id == SHERDI_CONFIG_MICRO_BATCH ? batch.micro
                                                                      : batch.accumulation;
    sherdi_effect_say(effect, "derived for %d ranks", effect->world_size);
}

/* ---- rules ---- */

void sherdi_effect_missing(sherdi_config_effect *effect, const char *fix)
{
    const sherd_config *config = effect->config;
    char                location[SHERDI_LOCATION_BYTES];

    effect->is_missing = 1;
    if (effect->is_auto) {
        (void)snprintf(effect->origin, sizeof(effect->origin),
                       "%s: %s is \"auto\" and the program has not set it; %s",
                       sherdi_config_location(config, effect->id, location),
                       sherdi_config_name(config, effect->id), fix);
    } else {
        sherdi_effect_say(effect, "%s: %s is not there; %s", config->name,
                          sherdi_config_table[effect->id].path, fix);
    }
}

void sherdi_effect_clipping(sherdi_config_effect *effect)
{
    if (sherdi_config_is_given(effect->config, SHERDI_CONFIG_MAX_GRAD_NORM)) {
        effect->value.real = entry_of(effect->config, SHERDI_CONFIG_MAX_GRAD_NORM)->value.real;
        sherdi_effect_say(effect, "derived from optimizer.params.max_grad_norm");
    }
}

/* The kind of the device decides, which the engine knows. */
void sherdi_effect_accumulate_place(sherdi_config_effect *effect)
{
    effect->is_null = 1;
    sherdi_effect_say(effect, "%s", sherdi_config_table[effect->id].fallback);
}

int64_t sherdi_config_compute_choice(const sherd_config *config)
{
    return sherdi_config_is_on(config, SHERDI_CONFIG_FP16_ENABLED)   ? SHERDI_CHOICE_FP16
           : sherdi_config_is_on(config, SHERDI_CONFIG_BF16_ENABLED) ? SHERDI_CHOICE_BF16
                                                                     : SHERDI_CHOICE_FP32;
}

void sherdi_effect_dtype(sherdi_config_effect *effect)
{
    effect->value.integer = sherdi_config_compute_choice(effect->config);
    sherdi_effect_say(effect, "derived: the compute type");
}

void sherdi_effect_overlap(sherdi_config_effect *effect)
{
    effect->value.integer = sherdi_config_integer(effect->config, SHERDI_CONFIG_STAGE) == 3;
    sherdi_effect_say(effect, "derived from zero_optimization.stage");
}

/* ---- sizes that follow from the width of the model ---- */

static double hidden_size(const sherdi_config_effect *effect)
{
    return (double)sherdi_config_integer(effect->config, SHERDI_CONFIG_HIDDEN_SIZE);
}

/* Takes a size for "auto", if the width is known. */
static void size_take(sherdi_config_effect *effect, double elems)
{
    if (effect->is_auto && elems == 0) {
        sherdi_effect_say(effect, "auto: the default, without sherd.hidden_size");
    } else if (effect->is_auto) {
        effect->value.integer = (int64_t)elems;
        sherdi_effect_say(effect, "auto: from hidden_size %.0f", hidden_size(effect));
    }
}

void sherdi_effect_prefetch(sherdi_config_effect *effect)
{
    size_take(effect, 0.9 * hidden_size(effect) * hidden_size(effect));
}

void sherdi_effect_persistence(sherdi_config_effect *effect)
{
    size_take(effect, 10 * hidden_size(effect));
}

/* ---- what an optimizer may have a default of its own for ---- */

const sherdi_optimizer *sherdi_config_optimizer(const sherd_config *config)
{
    static const sherdi_optimizer NONE = {0};
    const sherdi_config_id        id   = SHERDI_CONFIG_OPTIMIZER_TYPE;

    return sherdi_config_is_given(config, id)
               ? sherdi_optimizer_at((size_t)entry_of(config, id)->value.integer)
               : &NONE;
}

/* Takes a default of the optimizer; one of 0 is none. `second` is for a pair. */
static void own_take(sherdi_config_effect *effect, double own, double second)
{
    if (own != 0) {
        effect->value =
            (sherdi_config_value){.integer = (int64_t)own, .real = own, .second = second};
        sherdi_effect_say(effect, "%sdefault of %s", effect->is_auto ? "auto: the " : "",
                          sherdi_optimizer_name(sherdi_config_optimizer(effect->config)));
    }
}

void sherdi_effect_lr(sherdi_config_effect *effect)
{
    own_take(effect, sherdi_config_optimizer(effect->config)->defaults.lr, 0);
}

void sherdi_effect_eps(sherdi_config_effect *effect)
{
    own_take(effect, sherdi_config_optimizer(effect->config)->defaults.eps, 0);
}

/* An optimizer with a momentum has it as its first beta, and reads one of the two keys. */
void sherdi_effect_betas(sherdi_config_effect *effect)
{
    const sherdi_optimizer *optimizer = sherdi_config_optimizer(effect->config);

    if (optimizer->with_momentum == NULL) {
        own_take(effect, optimizer->defaults.betas[0], optimizer->defaults.betas[1]);
    }
}

void sherdi_effect_momentum(sherdi_config_effect *effect)
{
    const sherdi_optimizer *optimizer = sherdi_config_optimizer(effect->config);

    if (optimizer->with_momentum != NULL) {
        own_take(effect, optimizer->defaults.betas[0], 0);
    }
}

void sherdi_effect_nesterov(sherdi_config_effect *effect)
{
    own_take(effect, sherdi_config_optimizer(effect->config)->defaults.is_nesterov, 0);
}

/* DeepSpeed hands the file's values to torch.optim.AdamW if torch_adam is true, and torch's own
 * default is 0.01. */
void sherdi_effect_decay(sherdi_config_effect *effect)
{
    const sherd_config     *config    = effect->config;
    const sherdi_optimizer *optimizer = sherdi_config_optimizer(config);

    if (!effect->is_auto && sherdi_config_is_on(config, SHERDI_CONFIG_TORCH_ADAM) &&
        (optimizer == &sherdi_optimizer_adamw ||
         (optimizer->decoupled == &sherdi_optimizer_adamw &&
          sherdi_config_is_on(config, SHERDI_CONFIG_ADAM_W_MODE)))) {
        effect->value.real = 0.01;
        sherdi_effect_say(effect, "default of torch.optim.AdamW");
    }
}

/* ---- the value in force ---- */

static void given_effect(sherdi_config_effect *out)
{
    const sherdi_config_key *key = &sherdi_config_table[out->id];

    out->value = entry_of(out->config, out->id)->value;
    (void)sherdi_config_location(out->config, out->id, out->origin);
    if (key->zero_is_default && out->value.integer == 0) {
        out->value = key->standard;
        sherdi_effect_say(out, "derived: 0 is read as the default");
    }
}

void sherdi_config_effective(const sherd_config *config, int world_size, sherdi_config_id id,
                             sherdi_config_effect *out)
{
    const sherdi_config_key *key = &sherdi_config_table[id];

    *out = (sherdi_config_effect){.config     = config,
                                  .id         = id,
                                  .world_size = world_size,
                                  .is_auto    = entry_of(config, id)->is_auto};
    if (sherdi_config_is_given(config, id)) {
        given_effect(out);
        return;
    }
    out->value = key->standard;
    sherdi_effect_say(out, out->is_auto ? "auto: the default" : "default");
    if (key->is_schedules && key->effect == NULL) {
        sherdi_effect_schedule(out);
    } else if (key->fix != NULL && (out->is_auto || key->fallback == NULL)) {
        sherdi_effect_missing(out, key->fix);
    } else if (key->effect != NULL) {
        key->effect(out);
    } else {
        out->is_null = sherdi_config_fallback(key) == NULL;
    }
}

static sherdi_config_value value_of(const sherd_config *config, sherdi_config_id id)
{
    sherdi_config_effect effect;

    sherdi_config_effective(config, 0, id, &effect);
    return effect.value;
}

int64_t sherdi_config_integer(const sherd_config *config, sherdi_config_id id)
{
    return value_of(config, id).integer;
}

double sherdi_config_real(const sherd_config *config, sherdi_config_id id)
{
    return value_of(config, id).real;
}

const char *sherdi_config_text(const sherd_config *config, sherdi_config_id id)
{
    const char *text = value_of(config, id).text;

    return text == NULL ? "" : text;
}

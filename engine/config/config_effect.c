/* The effective value of a key: the value of the file or program, the value of "auto", the value
 * that follows from other keys, or the default; with a sentence that says which. Both
 * sherdi_config_resolve and the dump ask here, so they cannot differ. */
#include "engine/config/config_impl.h"
#include "engine/optimizers/optimizer.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>

static const sherdi_config_entry *entry_of(const sherd_config *config, sherdi_config_id id)
{
    return &config->entries[id];
}

/* ---- batch ---- */

/* Returns a batch size; 0: it is not set. */
static int64_t batch_given(const sherd_config *config, sherdi_config_id id)
{
    return sherdi_config_is_given(config, id) ? entry_of(config, id)->value.integer : 0;
}

/* Writes where the batch sizes are set: train_batch_size, else the micro-batch size. One of the two
 * is set. */
static const char *batch_location(const sherd_config *config, char location[SHERDI_LOCATION_BYTES])
{
    sherdi_config_id id = SHERDI_CONFIG_TRAIN_BATCH;

    if (!sherdi_config_is_given(config, id)) {
        id = SHERDI_CONFIG_MICRO_BATCH;
    }
    return sherdi_config_location(config, id, location);
}

static sherd_status batch_fail(const sherd_config *config, int world_size,
                               const sherdi_config_batch *batch)
{
    char location[SHERDI_LOCATION_BYTES];

    if (sherdi_batch_samples(batch, world_size) > INT_MAX) {
        return sherdi_fail(SHERD_E_INVAL,
                           "%s: the batch train_micro_batch_size_per_gpu %lld x "
                           "gradient_accumulation_steps %lld x %d ranks does not fit 32 bits",
                           batch_location(config, location), (long long)batch->micro,
                           (long long)batch->accumulation, world_size);
    }
    return sherdi_fail(SHERD_E_INVAL,
                       "%s: train_batch_size %lld is not train_micro_batch_size_per_gpu %lld x "
                       "gradient_accumulation_steps %lld x %d ranks; change one of them",
                       batch_location(config, location), (long long)batch->train,
                       (long long)batch->micro, (long long)batch->accumulation, world_size);
}

sherd_status sherdi_config_batch_solve(const sherd_config *config, int world_size,
                                       sherdi_config_batch *out)
{
    sherdi_config_batch batch = {
        .train        = batch_given(config, SHERDI_CONFIG_TRAIN_BATCH),
        .micro        = batch_given(config, SHERDI_CONFIG_MICRO_BATCH),
        .accumulation = batch_given(config, SHERDI_CONFIG_ACCUMULATION),
    };

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

void sherdi_effect_say(sherdi_config_effect *out, const char *origin)
{
    (void)snprintf(out->origin, sizeof(out->origin), "%s", origin);
}

void sherdi_effect_batch(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    sherdi_config_batch batch = {0};

    if (asked->world_size == 0) {
        out->is_missing = 1;
        sherdi_effect_say(out, "derived once the number of ranks is known");
        return;
    }
    if (sherdi_config_batch_solve(asked->config, asked->world_size, &batch) != SHERD_OK) {
        out->is_missing = 1;
        sherdi_effect_say(out, sherd_last_error());
        return;
    }
    out->value.integer = asked->id == SHERDI_CONFIG_TRAIN_BATCH   ? batch.train
                         : asked->id == SHERDI_CONFIG_MICRO_BATCH ? batch.micro
                                                                  : batch.accumulation;
    (void)snprintf(out->origin, sizeof(out->origin), "derived for %d ranks", asked->world_size);
}

/* ---- rules ---- */

void sherdi_effect_missing(const sherdi_config_question *asked, const char *fix,
                           sherdi_config_effect *out)
{
    const sherd_config *config = asked->config;
    char                location[SHERDI_LOCATION_BYTES];

    out->is_missing = 1;
    if (asked->is_auto) {
        (void)snprintf(out->origin, sizeof(out->origin),
                       "%s: %s is \"auto\" and the program has not set it; %s",
                       sherdi_config_location(config, asked->id, location),
                       sherdi_config_name(config, asked->id), fix);
    } else {
        (void)snprintf(out->origin, sizeof(out->origin), "%s: %s is not there; %s", config->name,
                       sherdi_config_table[asked->id].path, fix);
    }
}

void sherdi_effect_clipping(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    if (sherdi_config_is_given(asked->config, SHERDI_CONFIG_MAX_GRAD_NORM)) {
        out->value.real = entry_of(asked->config, SHERDI_CONFIG_MAX_GRAD_NORM)->value.real;
        sherdi_effect_say(out, "derived from optimizer.params.max_grad_norm");
    }
}

/* The kind of the device decides, which the engine knows. */
void sherdi_effect_accumulate_place(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    out->is_null = 1;
    sherdi_effect_say(out, sherdi_config_table[asked->id].fallback);
}

int64_t sherdi_config_compute_choice(const sherd_config *config)
{
    return sherdi_config_is_on(config, SHERDI_CONFIG_FP16_ENABLED)   ? SHERDI_CHOICE_FP16
           : sherdi_config_is_on(config, SHERDI_CONFIG_BF16_ENABLED) ? SHERDI_CHOICE_BF16
                                                                     : SHERDI_CHOICE_FP32;
}

void sherdi_effect_dtype(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    out->value.integer = sherdi_config_compute_choice(asked->config);
    sherdi_effect_say(out, "derived: the compute type");
}

void sherdi_effect_overlap(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    out->value.integer = sherdi_config_integer(asked->config, SHERDI_CONFIG_STAGE) == 3;
    sherdi_effect_say(out, "derived from zero_optimization.stage");
}

/* ---- sizes that follow from the width of the model ---- */

static double hidden_size(const sherdi_config_question *asked)
{
    return (double)sherdi_config_integer(asked->config, SHERDI_CONFIG_HIDDEN_SIZE);
}

/* Takes a size for "auto", if the width is known. */
static void size_take(const sherdi_config_question *asked, double elems, sherdi_config_effect *out)
{
    if (asked->is_auto && elems == 0) {
        sherdi_effect_say(out, "auto: the default, without sherd.hidden_size");
    } else if (asked->is_auto) {
        out->value.integer = (int64_t)elems;
        (void)snprintf(out->origin, sizeof(out->origin), "auto: from hidden_size %.0f",
                       hidden_size(asked));
    }
}

void sherdi_effect_prefetch(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    size_take(asked, 0.9 * hidden_size(asked) * hidden_size(asked), out);
}

void sherdi_effect_persistence(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    size_take(asked, 10 * hidden_size(asked), out);
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

/* Takes a default of the optimizer; one of 0 is none. */
static void own_take(const sherdi_config_question *asked, sherdi_config_value own,
                     sherdi_config_effect *out)
{
    if (own.real != 0) {
        out->value = own;
        (void)snprintf(out->origin, sizeof(out->origin), "%sdefault of %s",
                       asked->is_auto ? "auto: the " : "",
                       sherdi_optimizer_name(sherdi_config_optimizer(asked->config)));
    }
}

void sherdi_effect_lr(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    double own = sherdi_config_optimizer(asked->config)->defaults.lr;

    own_take(asked, (sherdi_config_value){.real = own}, out);
}

void sherdi_effect_eps(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    double own = sherdi_config_optimizer(asked->config)->defaults.eps;

    own_take(asked, (sherdi_config_value){.real = own}, out);
}

/* An optimizer with a momentum has it as its first beta, and reads one of the two keys. */
void sherdi_effect_betas(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    const sherdi_optimizer *optimizer = sherdi_config_optimizer(asked->config);
    const double           *own       = optimizer->defaults.betas;

    if (optimizer->with_momentum == NULL) {
        own_take(asked, (sherdi_config_value){.real = own[0], .second = own[1]}, out);
    }
}

void sherdi_effect_momentum(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    const sherdi_optimizer *optimizer = sherdi_config_optimizer(asked->config);

    if (optimizer->with_momentum != NULL) {
        own_take(asked, (sherdi_config_value){.real = optimizer->defaults.betas[0]}, out);
    }
}

void sherdi_effect_nesterov(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    int own = sherdi_config_optimizer(asked->config)->defaults.is_nesterov;

    own_take(asked, (sherdi_config_value){.integer = own, .real = own}, out);
}

/* DeepSpeed hands the file's values to torch.optim.AdamW if torch_adam is true, and torch's own
 * default is 0.01. */
void sherdi_effect_decay(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    const sherd_config     *config    = asked->config;
    const sherdi_optimizer *optimizer = sherdi_config_optimizer(config);

    if (!asked->is_auto && sherdi_config_is_on(config, SHERDI_CONFIG_TORCH_ADAM) &&
        (optimizer == &sherdi_optimizer_adamw ||
         (optimizer->decoupled == &sherdi_optimizer_adamw &&
          sherdi_config_is_on(config, SHERDI_CONFIG_ADAM_W_MODE)))) {
        out->value.real = 0.01;
        sherdi_effect_say(out, "default of torch.optim.AdamW");
    }
}

/* ---- the value in force ---- */

static void given_effect(const sherd_config *config, sherdi_config_id id, sherdi_config_effect *out)
{
    const sherdi_config_key *key = &sherdi_config_table[id];

    out->value = entry_of(config, id)->value;
    (void)sherdi_config_location(config, id, out->origin);
    if (key->zero_is_default && out->value.integer == 0) {
        out->value = key->standard;
        sherdi_effect_say(out, "derived: 0 is read as the default");
    }
}

void sherdi_config_effective(const sherd_config *config, int world_size, sherdi_config_id id,
                             sherdi_config_effect *out)
{
    const sherdi_config_key *key   = &sherdi_config_table[id];
    sherdi_config_question   asked = {config, world_size, id, entry_of(config, id)->is_auto};

    *out = (sherdi_config_effect){0};
    if (sherdi_config_is_given(config, id)) {
        given_effect(config, id, out);
        return;
    }
    out->value = key->standard;
    sherdi_effect_say(out, asked.is_auto ? "auto: the default" : "default");
    if (key->is_schedules && key->effect == NULL) {
        sherdi_effect_schedule(&asked, out);
    } else if (key->fix != NULL && (asked.is_auto || key->fallback == NULL)) {
        sherdi_effect_missing(&asked, key->fix, out);
    } else if (key->effect != NULL) {
        key->effect(&asked, out);
    } else {
        out->is_null = sherdi_config_fallback(key) == NULL;
    }
}

int64_t sherdi_config_integer(const sherd_config *config, sherdi_config_id id)
{
    sherdi_config_effect effect;

    sherdi_config_effective(config, 0, id, &effect);
    return effect.value.integer;
}

double sherdi_config_real(const sherd_config *config, sherdi_config_id id)
{
    sherdi_config_effect effect;

    sherdi_config_effective(config, 0, id, &effect);
    return effect.value.real;
}

const char *sherdi_config_text(const sherd_config *config, sherdi_config_id id)
{
    sherdi_config_effect effect;

    sherdi_config_effective(config, 0, id, &effect);
    return effect.value.text == NULL ? "" : effect.value.text;
}

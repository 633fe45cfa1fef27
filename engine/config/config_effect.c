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
    char    location[SHERDI_LOCATION_BYTES];
    int64_t product;
    int is_product_known = !__builtin_mul_overflow(batch->micro, batch->accumulation, &product) &&
                           !__builtin_mul_overflow(product, (int64_t)world_size, &product);

    if (!is_product_known || product > INT_MAX) {
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

/* An engine for inference counts no samples. */
static int is_inference(const sherd_config *config)
{
    return sherdi_config_is_given(config, SHERDI_CONFIG_OPTIMIZER_TYPE) &&
           sherdi_optimizer_at((size_t)sherdi_config_integer(config, SHERDI_CONFIG_OPTIMIZER_TYPE))
               ->is_inference;
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
    if (batch.train == 0 && batch.micro == 0 && is_inference(config)) {
        batch.micro = 1;
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

/* Returns 0 if the batch sizes cannot be derived; *out says why. */
static int batch_of(const sherdi_config_question *asked, sherdi_config_batch *batch_out,
                    sherdi_config_effect *out)
{
    if (asked->world_size == 0) {
        out->is_missing = 1;
        sherdi_effect_say(out, "derived once the number of ranks is known");
        return 0;
    }
    if (sherdi_config_batch_solve(asked->config, asked->world_size, batch_out) != SHERD_OK) {
        out->is_missing = 1;
        sherdi_effect_say(out, sherd_last_error());
        return 0;
    }
    (void)snprintf(out->origin, sizeof(out->origin), "derived for %d ranks", asked->world_size);
    return 1;
}

void sherdi_effect_train_batch(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    sherdi_config_batch batch = {0};

    if (batch_of(asked, &batch, out)) {
        out->value.integer = batch.train;
    }
}

void sherdi_effect_micro_batch(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    sherdi_config_batch batch = {0};

    if (batch_of(asked, &batch, out)) {
        out->value.integer = batch.micro;
    }
}

void sherdi_effect_accumulation(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    sherdi_config_batch batch = {0};

    if (batch_of(asked, &batch, out)) {
        out->value.integer = batch.accumulation;
    }
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

void sherdi_effect_stage(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    if (asked->is_auto) {
        sherdi_effect_missing(asked, "set it to 0, 1, 2 or 3", out);
    }
}

/* ---- sizes that follow from the width of the model ---- */

/* Returns that width; 0: it is not known, or the key is absent, and the default holds. */
static double hidden_of(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    double hidden = (double)sherdi_config_integer(asked->config, SHERDI_CONFIG_HIDDEN_SIZE);

    if (!asked->is_auto) {
        return 0;
    }
    if (hidden == 0) {
        sherdi_effect_say(out, "auto: the default, without sherd.hidden_size");
    } else {
        (void)snprintf(out->origin, sizeof(out->origin), "auto: from hidden_size %.0f", hidden);
    }
    return hidden;
}

void sherdi_effect_prefetch(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    double hidden = hidden_of(asked, out);

    if (hidden > 0) {
        out->value.integer = (int64_t)(0.9 * hidden * hidden);
    }
}

void sherdi_effect_persistence(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    double hidden = hidden_of(asked, out);

    if (hidden > 0) {
        out->value.integer = (int64_t)(10 * hidden);
    }
}

/* ---- what an optimizer may have a default of its own for ---- */

void sherdi_effect_optimizer(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    sherdi_effect_missing(
        asked,
        "add \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4}} with "
        "the rate you want, or \"type\": \"none\" for inference",
        out);
}

/* Returns the optimizer that is named; NULL: none is. */
static const sherdi_optimizer *optimizer_of(const sherdi_config_question *asked)
{
    const sherdi_config_entry *type = entry_of(asked->config, SHERDI_CONFIG_OPTIMIZER_TYPE);

    return sherdi_config_is_given(asked->config, SHERDI_CONFIG_OPTIMIZER_TYPE)
               ? sherdi_optimizer_at((size_t)type->value.integer)
               : NULL;
}

/* Takes a default of the optimizer; one of 0 is none. */
static void own_take(const sherdi_config_question *asked, const sherdi_optimizer *optimizer,
                     sherdi_config_value own, sherdi_config_effect *out)
{
    if (own.real != 0) {
        out->value = own;
        (void)snprintf(out->origin, sizeof(out->origin), "%sdefault of %s",
                       asked->is_auto ? "auto: the " : "", sherdi_optimizer_name(optimizer));
    }
}

void sherdi_effect_lr(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    const sherdi_optimizer *optimizer = optimizer_of(asked);

    if (asked->is_auto) {
        sherdi_effect_missing(asked, "give a learning rate", out);
    } else if (optimizer != NULL) {
        own_take(asked, optimizer, (sherdi_config_value){.real = optimizer->defaults.lr}, out);
    }
}

void sherdi_effect_eps(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    const sherdi_optimizer *optimizer = optimizer_of(asked);

    if (optimizer != NULL) {
        own_take(asked, optimizer, (sherdi_config_value){.real = optimizer->defaults.eps}, out);
    }
}

/* An optimizer with a momentum has it as its first beta, and reads one of the two keys. */
void sherdi_effect_betas(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    const sherdi_optimizer *optimizer = optimizer_of(asked);

    if (optimizer != NULL && optimizer->with_momentum == NULL) {
        const double *own = optimizer->defaults.betas;

        own_take(asked, optimizer, (sherdi_config_value){.real = own[0], .second = own[1]}, out);
    }
}

void sherdi_effect_momentum(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    const sherdi_optimizer *optimizer = optimizer_of(asked);

    if (optimizer != NULL && optimizer->with_momentum != NULL) {
        own_take(asked, optimizer, (sherdi_config_value){.real = optimizer->defaults.betas[0]},
                 out);
    }
}

void sherdi_effect_nesterov(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    const sherdi_optimizer *optimizer = optimizer_of(asked);

    if (optimizer != NULL) {
        int own = optimizer->defaults.is_nesterov;

        own_take(asked, optimizer, (sherdi_config_value){.integer = own, .real = own}, out);
    }
}

/* DeepSpeed hands the file's values to torch.optim.AdamW if torch_adam is true, and torch's own
 * default is 0.01. */
void sherdi_effect_decay(const sherdi_config_question *asked, sherdi_config_effect *out)
{
    const sherd_config     *config    = asked->config;
    const sherdi_optimizer *optimizer = optimizer_of(asked);

    if (asked->is_auto || optimizer == NULL ||
        !sherdi_config_is_on(config, SHERDI_CONFIG_TORCH_ADAM)) {
        return;
    }
    if (optimizer == &sherdi_optimizer_adamw ||
        (optimizer->decoupled == &sherdi_optimizer_adamw &&
         sherdi_config_is_on(config, SHERDI_CONFIG_ADAM_W_MODE))) {
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
    if (key->effect != NULL) {
        key->effect(&asked, out);
    } else {
        out->is_null = key->fallback == NULL;
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

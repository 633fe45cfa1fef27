/* The value in force of a key: the given value, what "auto" stands for, what follows from other keys, or the default; with a
 * sentence that says which. Both sherdi_config_resolve and the dump ask here, so they cannot differ. */
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

/* Returns a given batch size; 0: it is not given. */
static int64_t batch_given(const sherd_config *config, sherdi_config_id id)
{
    return sherdi_config_is_given(config, id) ? entry_of(config, id)->value.integer : 0;
}

/* Writes where the batch sizes are given: train_batch_size, else the micro-batch size. One of the two is given. */
static const char *batch_location(const sherd_config *config, char location[SHERDI_LOCATION_BYTES])
{
    sherdi_config_id id = SHERDI_CONFIG_TRAIN_BATCH;

    if (!sherdi_config_is_given(config, id)) {
        id = SHERDI_CONFIG_MICRO_BATCH;
    }
    return sherdi_config_location(config, id, location);
}

static sherd_status batch_check(const sherd_config *config, int world_size,
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
    if (batch->micro < 1 || batch->accumulation < 1 || product != batch->train) {
        return sherdi_fail(SHERD_E_INVAL,
                           "%s: train_batch_size %lld is not train_micro_batch_size_per_gpu %lld x "
                           "gradient_accumulation_steps %lld x %d ranks; change one of them",
                           batch_location(config, location), (long long)batch->train,
                           (long long)batch->micro, (long long)batch->accumulation, world_size);
    }
    return SHERD_OK;
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
    int64_t             world = world_size;
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
    if (batch.accumulation == 0) {
        batch.accumulation =
            batch.train == 0 || batch.micro == 0 ? 1 : batch.train / batch.micro / world;
    }
    /* A quotient above may be 0, and would then be a divisor here; the check below reports it. */
    if (batch.micro == 0) {
        batch.micro = batch.train / world / batch.accumulation;
    }
    if (batch.train == 0 &&
        (__builtin_mul_overflow(batch.micro, batch.accumulation, &batch.train) ||
         __builtin_mul_overflow(batch.train, world, &batch.train))) {
        batch.train = 0;
    }
    SHERDI_TRY(batch_check(config, world_size, &batch));
    *out = batch;
    return SHERD_OK;
}

static void batch_effect(const sherd_config *config, int world_size, sherdi_config_id id,
                         sherdi_config_effect *out)
{
    sherdi_config_batch batch;

    if (world_size == 0) {
        out->is_missing = 1;
        (void)snprintf(out->origin, sizeof(out->origin),
                       "derived once the number of ranks is known");
        return;
    }
    if (sherdi_config_batch_solve(config, world_size, &batch) != SHERD_OK) {
        out->is_missing = 1;
        (void)snprintf(out->origin, sizeof(out->origin), "%s", sherd_last_error());
        return;
    }
    out->value.integer = id == SHERDI_CONFIG_TRAIN_BATCH   ? batch.train
                         : id == SHERDI_CONFIG_MICRO_BATCH ? batch.micro
                                                           : batch.accumulation;
    (void)snprintf(out->origin, sizeof(out->origin), "derived for %d ranks", world_size);
}

/* ---- rules ---- */

static void effect_say(sherdi_config_effect *out, const char *origin)
{
    (void)snprintf(out->origin, sizeof(out->origin), "%s", origin);
}

static void effect_missing(const sherd_config *config, sherdi_config_id id, const char *fix,
                           sherdi_config_effect *out)
{
    char location[SHERDI_LOCATION_BYTES];

    out->is_missing = 1;
    if (entry_of(config, id)->is_auto) {
        (void)snprintf(out->origin, sizeof(out->origin),
                       "%s: %s is \"auto\" and the program has not set it; %s",
                       sherdi_config_location(config, id, location), sherdi_config_name(config, id),
                       fix);
    } else {
        (void)snprintf(out->origin, sizeof(out->origin), "%s: %s is not there; %s", config->name,
                       sherdi_config_table[id].path, fix);
    }
}

/* The value of sizes that follow from the width of the model. */
static void hidden_size_effect(const sherd_config *config, sherdi_config_id id,
                               sherdi_config_effect *out)
{
    double hidden = (double)sherdi_config_integer(config, SHERDI_CONFIG_HIDDEN_SIZE);

    if (hidden == 0) {
        effect_say(out, "auto: the default, without sherd.hidden_size");
        return;
    }
    if (id == SHERDI_CONFIG_PREFETCH_BUCKET) {
        out->value.integer = (int64_t)(0.9 * hidden * hidden);
    } else {
        out->value.integer = (int64_t)(10 * hidden);
    }
    (void)snprintf(out->origin, sizeof(out->origin), "auto: from hidden_size %.0f", hidden);
}

int64_t sherdi_config_compute_choice(const sherd_config *config)
{
    return sherdi_config_is_on(config, SHERDI_CONFIG_FP16_ENABLED)   ? SHERDI_CHOICE_FP16
           : sherdi_config_is_on(config, SHERDI_CONFIG_BF16_ENABLED) ? SHERDI_CHOICE_BF16
                                                                     : SHERDI_CHOICE_FP32;
}

/* The value of keys for which "auto" does not stand for the default. */
static void auto_effect(const sherd_config *config, sherdi_config_id id, sherdi_config_effect *out)
{
    switch (id) {
    case SHERDI_CONFIG_LR:
        effect_missing(config, id, "give a learning rate", out);
        break;
    case SHERDI_CONFIG_STAGE:
        effect_missing(config, id, "set it to 0, 1, 2 or 3", out);
        break;
    case SHERDI_CONFIG_WARMUP_STEPS:
        out->value.integer = 0;
        effect_say(out, "auto: no warm-up");
        break;
    case SHERDI_CONFIG_PREFETCH_BUCKET:
    case SHERDI_CONFIG_PERSISTENCE:
        hidden_size_effect(config, id, out);
        break;
    default:
        break;
    }
}

/* The value of a key for which the optimizer may have a default of its own. */
static void own_default_effect(const sherd_config *config, sherdi_config_id id,
                               sherdi_config_effect *out)
{
    int                              is_auto = entry_of(config, id)->is_auto;
    const sherdi_optimizer          *optimizer;
    const sherdi_optimizer_defaults *own;
    double                           first, second = 0;
    int64_t                          integer = 0;

    if (!sherdi_config_is_given(config, SHERDI_CONFIG_OPTIMIZER_TYPE)) {
        return;
    }
    optimizer =
        sherdi_optimizer_at((size_t)entry_of(config, SHERDI_CONFIG_OPTIMIZER_TYPE)->value.integer);
    own   = &optimizer->defaults;
    first = id == SHERDI_CONFIG_LR ? own->lr : id == SHERDI_CONFIG_EPS ? own->eps : own->betas[0];
    if (id == SHERDI_CONFIG_BETAS) {
        second = own->betas[1];
    }
    if (id == SHERDI_CONFIG_NESTEROV) {
        integer = own->is_nesterov;
        first   = own->is_nesterov;
    }
    if (id == (optimizer->with_momentum == NULL ? SHERDI_CONFIG_MOMENTUM : SHERDI_CONFIG_BETAS)) {
        first = 0; /* the optimizer uses the other of the two keys */
    }
    if (first != 0) {
        out->value.integer = integer;
        out->value.real    = first;
        out->value.second  = second;
        (void)snprintf(out->origin, sizeof(out->origin), "%sdefault of %s",
                       is_auto ? "auto: the " : "", sherdi_optimizer_name(optimizer));
    }
}

/* DeepSpeed hands the file's values to torch.optim.AdamW if torch_adam is true, and torch's own default is 0.01. */
static void torch_decay_effect(const sherd_config *config, sherdi_config_effect *out)
{
    const sherdi_optimizer *optimizer;

    if (!sherdi_config_is_on(config, SHERDI_CONFIG_TORCH_ADAM) ||
        !sherdi_config_is_given(config, SHERDI_CONFIG_OPTIMIZER_TYPE)) {
        return;
    }
    optimizer =
        sherdi_optimizer_at((size_t)entry_of(config, SHERDI_CONFIG_OPTIMIZER_TYPE)->value.integer);
    if (optimizer == &sherdi_optimizer_adamw ||
        (optimizer->decoupled == &sherdi_optimizer_adamw &&
         sherdi_config_is_on(config, SHERDI_CONFIG_ADAM_W_MODE))) {
        out->value.real = 0.01;
        effect_say(out, "default of torch.optim.AdamW");
    }
}

const sherdi_schedule *sherdi_config_schedule(const sherd_config *config)
{
    const sherdi_config_entry *type = entry_of(config, SHERDI_CONFIG_SCHEDULER_TYPE);

    return sherdi_config_is_given(config, SHERDI_CONFIG_SCHEDULER_TYPE)
               ? sherdi_schedule_of((sherdi_schedule_kind)(type->value.integer + 1))
               : NULL;
}

/* Returns whether a parameter of the schedule has no default and must be given. */
static int schedule_needs(const sherdi_schedule *schedule, sherdi_config_id id)
{
    for (size_t i = 0; schedule != NULL && i < schedule->num_needed; i++) {
        if (schedule->keys[i] == (int)id) {
            return 1;
        }
    }
    return 0;
}

/* The stable steps are those that warm-up and decay leave of all steps. If they are below 0, the decay starts before the warm-up
 * ends, as in transformers. */
static void stable_steps_effect(const sherd_config *config, sherdi_config_effect *out)
{
    if (!sherdi_config_is_given(config, SHERDI_CONFIG_TOTAL_STEPS)) {
        effect_missing(config, SHERDI_CONFIG_STABLE_STEPS,
                       "give it, or num_training_steps of the whole training", out);
        return;
    }
    out->value.integer = sherdi_config_integer(config, SHERDI_CONFIG_TOTAL_STEPS) -
                         sherdi_config_integer(config, SHERDI_CONFIG_WARMUP_STEPS) -
                         sherdi_config_integer(config, SHERDI_CONFIG_DECAY_STEPS);
    effect_say(out, "derived: what is left of num_training_steps");
}

/* The value of a parameter of the schedule that the configuration names. */
static void schedule_effect(const sherd_config *config, sherdi_config_id id,
                            sherdi_config_effect *out)
{
    const sherdi_schedule *schedule = sherdi_config_schedule(config);
    int                    is_auto  = entry_of(config, id)->is_auto;

    switch (id) {
    case SHERDI_CONFIG_WARMUP_MAX_LR:
        out->is_null    = schedule != &sherdi_schedule_warmup_decay || is_auto;
        out->value.real = out->is_null ? 0 : 0.001;
        effect_say(out, out->is_null ? "each group's rate" : "default of WarmupDecayLR");
        break;
    case SHERDI_CONFIG_WARMUP_STEPS:
        if (schedule != NULL && schedule->is_transformers) {
            out->value.integer = 0;
            effect_say(out, "default of transformers");
        }
        break;
    case SHERDI_CONFIG_WARMUP_TYPE:
        if (schedule == &sherdi_schedule_stable_decay) {
            out->value.integer = SHERDI_RAMP_LINEAR;
            effect_say(out, "default of warmup_stable_decay");
        }
        break;
    case SHERDI_CONFIG_NUM_CYCLES:
        if (schedule == &sherdi_schedule_restarts) {
            out->value.real = 1;
            effect_say(out, "default of cosine_with_restarts");
        }
        break;
    case SHERDI_CONFIG_CYCLE_SECOND_STEPS:
        out->value.integer = sherdi_config_integer(config, SHERDI_CONFIG_CYCLE_FIRST_STEPS);
        effect_say(out, "derived: as cycle_first_step_size");
        break;
    case SHERDI_CONFIG_CYCLE_SECOND_STAIRS:
        out->value.integer = sherdi_config_integer(config, SHERDI_CONFIG_CYCLE_FIRST_STAIRS);
        effect_say(out, "derived: as cycle_first_stair_count");
        break;
    case SHERDI_CONFIG_TIMESCALE:
        out->value.integer = sherdi_config_integer(config, SHERDI_CONFIG_WARMUP_STEPS);
        out->value.integer = out->value.integer == 0 ? 10000 : out->value.integer;
        effect_say(out, "derived: from num_warmup_steps");
        break;
    case SHERDI_CONFIG_STABLE_STEPS:
        out->is_null = schedule != &sherdi_schedule_stable_decay;
        if (!out->is_null) {
            stable_steps_effect(config, out);
        }
        break;
    default:
        if (schedule_needs(schedule, id)) {
            effect_missing(config, id,
                           id == SHERDI_CONFIG_TOTAL_STEPS
                               ? "give the number of steps of the whole training, or leave the "
                                 "block \"scheduler\" out if the program sets the rates"
                               : "this type of schedule needs it",
                           out);
        } else if (sherdi_config_table[id].fallback == NULL) {
            out->is_null = 1;
            effect_say(out, "not needed");
        }
        break;
    }
}

/* The value of a key that is absent or "auto". */
static void rule_effect(const sherd_config *config, int world_size, sherdi_config_id id,
                        sherdi_config_effect *out)
{
    int is_auto = entry_of(config, id)->is_auto;

    effect_say(out, is_auto ? "auto: the default" : "default");
    switch (id) {
    case SHERDI_CONFIG_TRAIN_BATCH:
    case SHERDI_CONFIG_MICRO_BATCH:
    case SHERDI_CONFIG_ACCUMULATION:
        batch_effect(config, world_size, id, out);
        return;
    case SHERDI_CONFIG_GRADIENT_CLIPPING:
        if (sherdi_config_is_given(config, SHERDI_CONFIG_MAX_GRAD_NORM)) {
            out->value.real = entry_of(config, SHERDI_CONFIG_MAX_GRAD_NORM)->value.real;
            effect_say(out, "derived from optimizer.params.max_grad_norm");
        }
        return;
    case SHERDI_CONFIG_STATE_ACCUMULATE:
        out->is_null = 1;
        effect_say(out, sherdi_config_table[id].fallback);
        return;
    case SHERDI_CONFIG_COMM_DTYPE:
    case SHERDI_CONFIG_PARAM_DTYPE:
        out->value.integer = sherdi_config_compute_choice(config);
        effect_say(out, "derived: the compute type");
        return;
    case SHERDI_CONFIG_OPTIMIZER_TYPE:
        effect_missing(config, id,
                       "add \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4}} with "
                       "the rate you want, or \"type\": \"none\" for inference",
                       out);
        return;
    case SHERDI_CONFIG_LR:
    case SHERDI_CONFIG_BETAS:
    case SHERDI_CONFIG_EPS:
    case SHERDI_CONFIG_MOMENTUM:
    case SHERDI_CONFIG_NESTEROV:
        own_default_effect(config, id, out);
        break;
    case SHERDI_CONFIG_WEIGHT_DECAY:
        if (!is_auto) {
            torch_decay_effect(config, out);
        }
        break;
    case SHERDI_CONFIG_OVERLAP_COMM:
        out->value.integer = sherdi_config_integer(config, SHERDI_CONFIG_STAGE) == 3;
        effect_say(out, "derived from zero_optimization.stage");
        return;
    default:
        if (sherdi_config_is_schedules(id)) {
            schedule_effect(config, id, out);
        } else {
            out->is_null = sherdi_config_table[id].fallback == NULL;
        }
        break;
    }
    if (is_auto) {
        auto_effect(config, id, out);
    }
}

void sherdi_config_effective(const sherd_config *config, int world_size, sherdi_config_id id,
                             sherdi_config_effect *out)
{
    const sherdi_config_entry *entry = entry_of(config, id);

    *out = (sherdi_config_effect){0};
    if (!sherdi_config_is_given(config, id)) {
        out->value = sherdi_config_table[id].standard;
        rule_effect(config, world_size, id, out);
        return;
    }
    out->value = entry->value;
    (void)sherdi_config_location(config, id, out->origin);
    if (id == SHERDI_CONFIG_SUB_GROUP && entry->value.integer == 0) {
        out->value = sherdi_config_table[id].standard; /* a block cannot have 0 elements */
        effect_say(out, "derived: 0 is read as the default");
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

/* From keys to settings: checks across keys, then every field of sherdi_settings from the value
 * in force of its key. */
#include "engine/config_impl.h"
#include "engine/optimizers/optimizer.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

sherd_status sherdi_config_key_fail(const sherd_config *config, sherdi_config_id id,
                                    sherd_status code, const char *sentence)
{
    char place[SHERDI_PLACE_BYTES];

    return sherdi_fail(code, "%s: %s %s", sherdi_config_place(config, id, place),
                       sherdi_config_table[id].path, sentence);
}

sherd_status sherdi_config_key_warn(sherd_config *config, sherdi_config_id id, const char *sentence)
{
    char place[SHERDI_PLACE_BYTES];
    char line[SHERDI_ERROR_BYTES];

    (void)snprintf(line, sizeof(line), "%s: %s %s", sherdi_config_place(config, id, place),
                   sherdi_config_table[id].path, sentence);
    return sherdi_config_warn(config, line);
}

/* ---- checks without a world ---- */

static sherd_status precision_check(const sherd_config *config)
{
    char other[SHERDI_PLACE_BYTES];
    char sentence[SHERDI_PLACE_BYTES + 64];

    if (sherdi_config_is_on(config, SHERDI_CONFIG_FP16_ENABLED) &&
        sherdi_config_is_on(config, SHERDI_CONFIG_BF16_ENABLED)) {
        (void)snprintf(sentence, sizeof(sentence),
                       "and bf16.enabled (%s) are both true; switch one off",
                       sherdi_config_place(config, SHERDI_CONFIG_BF16_ENABLED, other));
        return sherdi_config_key_fail(config, SHERDI_CONFIG_FP16_ENABLED, SHERD_E_INVAL, sentence);
    }
    if (sherdi_config_is_on(config, SHERDI_CONFIG_FP16_ENABLED) &&
        sherdi_config_real(config, SHERDI_CONFIG_LOSS_SCALE) == 0 &&
        sherdi_config_integer(config, SHERDI_CONFIG_SCALE_WINDOW) < 1) {
        return sherdi_config_key_fail(config, SHERDI_CONFIG_SCALE_WINDOW, SHERD_E_INVAL,
                                      "must be at least 1 when the loss scale is dynamic");
    }
    return SHERD_OK;
}

static sherd_status coefficients_check(const sherd_config *config)
{
    if (sherdi_config_is_on(config, SHERDI_CONFIG_VENDOR_REDUCTION) &&
        sherdi_config_is_on(config, SHERDI_CONFIG_DETERMINISTIC)) {
        return sherdi_config_key_fail(config, SHERDI_CONFIG_VENDOR_REDUCTION, SHERD_E_INVAL,
                                      "is true beside \"deterministic\": true; no vendor's sum has "
                                      "the same bits for every layout");
    }
    if (sherdi_config_real(config, SHERDI_CONFIG_MIN_COEFF) >
        sherdi_config_real(config, SHERDI_CONFIG_MAX_COEFF)) {
        return sherdi_config_key_fail(config, SHERDI_CONFIG_MIN_COEFF, SHERD_E_INVAL,
                                      "is larger than max_coeff");
    }
    return SHERD_OK;
}

sherd_status sherdi_config_check(const sherd_config *config, int is_complete)
{
    SHERDI_TRY(coefficients_check(config));
    SHERDI_TRY(precision_check(config));
    return sherdi_config_offload_check(config, is_complete);
}

/* ---- remarks ---- */

/* Which of the optimizers the configuration names. */
static size_t optimizer_index(const sherd_config *config)
{
    return (size_t)sherdi_config_integer(config, SHERDI_CONFIG_OPTIMIZER_TYPE);
}

/* Given keys that another optimizer than the one named is alone to read. */
static sherd_status others_remark(sherd_config *config, size_t other)
{
    const sherdi_optimizer *optimizer = sherdi_optimizer_at(other);
    char                    sentence[64];
    size_t                  bytes;
    const char *type = sherdi_config_choice_at(sherdi_optimizer_types + 1, other, &bytes);

    (void)snprintf(sentence, sizeof(sentence), "is ignored: only %.*s reads it", (int)bytes, type);
    for (size_t i = 0; i < optimizer->num_keys; i++) {
        sherdi_config_id key = (sherdi_config_id)optimizer->keys[i];

        if (sherdi_config_is_given(config, key)) {
            SHERDI_TRY(sherdi_config_key_warn(config, key, sentence));
        }
    }
    return SHERD_OK;
}

static sherd_status optimizer_remark(sherd_config *config)
{
    int has_type = sherdi_config_is_given(config, SHERDI_CONFIG_OPTIMIZER_TYPE);

    for (size_t i = 0; i < sherdi_optimizer_count() && has_type; i++) {
        if (i != optimizer_index(config)) {
            SHERDI_TRY(others_remark(config, i));
        }
    }
    if (sherdi_config_is_given(config, SHERDI_CONFIG_MAX_GRAD_NORM)) {
        SHERDI_TRY(
            sherdi_config_key_warn(config, SHERDI_CONFIG_MAX_GRAD_NORM,
                                   sherdi_config_is_given(config, SHERDI_CONFIG_GRADIENT_CLIPPING)
                                       ? "is ignored: gradient_clipping is there too, and wins"
                                       : "is taken as gradient_clipping; write it there"));
    }
    if (has_type && sherdi_optimizer_at(optimizer_index(config))->decoupled == NULL &&
        !sherdi_config_is_on(config, SHERDI_CONFIG_ADAM_W_MODE)) {
        return sherdi_config_key_warn(
            config, SHERDI_CONFIG_ADAM_W_MODE,
            "is ignored: AdamW always decouples the decay, and Lamb scales it; type Adam does not "
            "have to");
    }
    return SHERD_OK;
}

static sherd_status scaler_remark(sherd_config *config)
{
    if (!sherdi_config_is_on(config, SHERDI_CONFIG_FP16_ENABLED) ||
        sherdi_config_real(config, SHERDI_CONFIG_LOSS_SCALE) != 0) {
        return SHERD_OK;
    }
    if (sherdi_config_real(config, SHERDI_CONFIG_MIN_SCALE) == 0) {
        SHERDI_TRY(sherdi_config_key_warn(config, SHERDI_CONFIG_MIN_SCALE,
                                          "is 0: the loss scale may fall without a floor"));
    }
    if (sherdi_config_integer(config, SHERDI_CONFIG_HYSTERESIS) == 0) {
        SHERDI_TRY(
            sherdi_config_key_warn(config, SHERDI_CONFIG_HYSTERESIS, "is 0 and counts as 1"));
    }
    return SHERD_OK;
}

/* Which of the schedules read a parameter: bit i for choice i. */
static const struct {
    sherdi_config_id id;
    unsigned         readers;
} SCHEDULER_READERS[] = {
    {SHERDI_CONFIG_WARMUP_MIN_LR, 1u << SHERDI_CHOICE_WARMUP | 1u << SHERDI_CHOICE_DECAY},
    {SHERDI_CONFIG_WARMUP_MAX_LR, 1u << SHERDI_CHOICE_WARMUP | 1u << SHERDI_CHOICE_DECAY},
    {SHERDI_CONFIG_TOTAL_STEPS, 1u << SHERDI_CHOICE_DECAY | 1u << SHERDI_CHOICE_COSINE},
    {SHERDI_CONFIG_MIN_RATIO, 1u << SHERDI_CHOICE_COSINE},
    {SHERDI_CONFIG_COS_MIN_RATIO, 1u << SHERDI_CHOICE_COSINE},
};

static sherd_status scheduler_remark(sherd_config *config)
{
    unsigned reader;

    if (!sherdi_config_is_given(config, SHERDI_CONFIG_SCHEDULER_TYPE)) {
        if (config->entries[SHERDI_CONFIG_SCHEDULER_PARAMS].origin != SHERDI_ORIGIN_DEFAULT) {
            return sherdi_config_key_warn(config, SHERDI_CONFIG_SCHEDULER_PARAMS,
                                          "is ignored: scheduler.type is not there");
        }
        return SHERD_OK;
    }
    reader = 1u << sherdi_config_integer(config, SHERDI_CONFIG_SCHEDULER_TYPE);
    for (size_t i = 0; i < sizeof(SCHEDULER_READERS) / sizeof(SCHEDULER_READERS[0]); i++) {
        if ((SCHEDULER_READERS[i].readers & reader) == 0 &&
            sherdi_config_is_given(config, SCHEDULER_READERS[i].id)) {
            SHERDI_TRY(
                sherdi_config_key_warn(config, SCHEDULER_READERS[i].id,
                                       "is ignored: this type of schedule does not read it"));
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_config_remark(sherd_config *config)
{
    SHERDI_TRY(sherdi_config_offload_remark(config));
    SHERDI_TRY(optimizer_remark(config));
    SHERDI_TRY(scaler_remark(config));
    return scheduler_remark(config);
}

/* ---- settings ---- */

static sherd_dtype dtype_of(int64_t choice)
{
    return choice == SHERDI_CHOICE_FP16   ? SHERD_F16
           : choice == SHERDI_CHOICE_BF16 ? SHERD_BF16
                                          : SHERD_F32;
}

static sherd_status batch_resolve(const sherd_config *config, int world_size, sherdi_settings *out)
{
    int64_t             steps = sherdi_config_integer(config, SHERDI_CONFIG_STEPS_PER_PRINT);
    sherdi_config_batch batch;

    SHERDI_TRY(sherdi_config_batch_solve(config, world_size, &batch));
    out->train_batch_size = (int)batch.train;
    out->micro_batch_size = (int)batch.micro;
    out->accumulation     = (int)batch.accumulation;
    out->steps_per_print  = steps > INT_MAX ? INT_MAX : (int)steps; /* people write 2e16: never */
    return SHERD_OK;
}

static void scaler_resolve(const sherd_config *config, sherdi_scaler_params *out)
{
    double fixed = sherdi_config_real(config, SHERDI_CONFIG_LOSS_SCALE);

    out->initial_scale = 1;
    out->window        = sherdi_config_integer(config, SHERDI_CONFIG_SCALE_WINDOW);
    out->hysteresis    = (int)sherdi_config_integer(config, SHERDI_CONFIG_HYSTERESIS);
    out->min_scale     = sherdi_config_real(config, SHERDI_CONFIG_MIN_SCALE);
    out->is_consecutive_hysteresis =
        sherdi_config_is_on(config, SHERDI_CONFIG_CONSECUTIVE_HYSTERESIS);
    if (sherdi_config_is_on(config, SHERDI_CONFIG_FP16_ENABLED)) {
        out->is_dynamic    = fixed == 0;
        out->initial_scale = fixed;
        if (out->is_dynamic) {
            out->initial_scale =
                ldexp(1, (int)sherdi_config_integer(config, SHERDI_CONFIG_SCALE_POWER));
        }
    }
}

static sherd_status precision_resolve(const sherd_config *config, sherdi_settings *out)
{
    /* Absent, it is the compute type; given, it has to agree with that. */
    int64_t param = sherdi_config_integer(config, SHERDI_CONFIG_PARAM_DTYPE);

    out->compute_dtype = sherdi_config_is_on(config, SHERDI_CONFIG_FP16_ENABLED)   ? SHERD_F16
                         : sherdi_config_is_on(config, SHERDI_CONFIG_BF16_ENABLED) ? SHERD_BF16
                                                                                   : SHERD_F32;
    if (dtype_of(param) != out->compute_dtype) {
        return sherdi_config_key_fail(config, SHERDI_CONFIG_PARAM_DTYPE, SHERD_E_INVAL,
                                      "contradicts fp16.enabled and bf16.enabled; remove it");
    }
    out->comm_dtype     = dtype_of(sherdi_config_integer(config, SHERDI_CONFIG_COMM_DTYPE));
    out->accum_dtype    = dtype_of(sherdi_config_integer(config, SHERDI_CONFIG_ACCUM_DTYPE));
    out->check_overflow = out->compute_dtype == SHERD_F16 ||
                          sherdi_config_is_on(config, SHERDI_CONFIG_BF16_CHECK_OVERFLOW);
    scaler_resolve(config, &out->scaler);
    return SHERD_OK;
}

static const sherdi_optimizer *optimizer_of(const sherd_config *config, size_t choice)
{
    const sherdi_optimizer *named        = sherdi_optimizer_at(choice);
    int                     is_decoupled = sherdi_config_is_on(config, SHERDI_CONFIG_ADAM_W_MODE);

    return named->decoupled != NULL && is_decoupled ? named->decoupled : named;
}

static sherd_status optimizer_resolve(const sherd_config *config, sherdi_settings *out)
{
    sherdi_config_value  type, lr;
    sherdi_config_effect betas;

    SHERDI_TRY(sherdi_config_need(config, 0, SHERDI_CONFIG_OPTIMIZER_TYPE, &type));
    SHERDI_TRY(sherdi_config_need(config, 0, SHERDI_CONFIG_LR, &lr));
    sherdi_config_effective(config, 0, SHERDI_CONFIG_BETAS, &betas);
    out->optimizer         = optimizer_of(config, (size_t)type.integer);
    out->lr                = lr.real;
    out->betas[0]          = betas.value.real;
    out->betas[1]          = betas.value.second;
    out->eps               = sherdi_config_real(config, SHERDI_CONFIG_EPS);
    out->weight_decay      = sherdi_config_real(config, SHERDI_CONFIG_WEIGHT_DECAY);
    out->bias_correction   = sherdi_config_is_on(config, SHERDI_CONFIG_BIAS_CORRECTION);
    out->gradient_clipping = sherdi_config_real(config, SHERDI_CONFIG_GRADIENT_CLIPPING);
    out->lamb              = (sherdi_lamb_settings){
                     .max_coeff       = sherdi_config_real(config, SHERDI_CONFIG_MAX_COEFF),
                     .min_coeff       = sherdi_config_real(config, SHERDI_CONFIG_MIN_COEFF),
                     .eps_inside_sqrt = sherdi_config_is_on(config, SHERDI_CONFIG_EPS_INSIDE_SQRT),
                     .is_papers =
                         sherdi_config_integer(config, SHERDI_CONFIG_LAMB_FORM) == SHERDI_CHOICE_LAMB_PAPER,
                     .exclude_1d = sherdi_config_is_on(config, SHERDI_CONFIG_EXCLUDE_1D),
    };
    return SHERD_OK;
}

static sherd_status schedule_resolve(const sherd_config *config, sherdi_schedule_params *out)
{
    static const sherdi_schedule_kind KINDS[] = {
        [SHERDI_CHOICE_WARMUP] = SHERDI_SCHEDULE_WARMUP,
        [SHERDI_CHOICE_DECAY]  = SHERDI_SCHEDULE_WARMUP_DECAY,
        [SHERDI_CHOICE_COSINE] = SHERDI_SCHEDULE_WARMUP_COSINE,
    };
    sherdi_config_effect max_lr;
    sherdi_config_value  total = {0};

    out->kind   = SHERDI_SCHEDULE_CONSTANT;
    out->max_lr = NAN;
    if (!sherdi_config_is_given(config, SHERDI_CONFIG_SCHEDULER_TYPE)) {
        return SHERD_OK;
    }
    out->kind = KINDS[sherdi_config_integer(config, SHERDI_CONFIG_SCHEDULER_TYPE)];
    if (out->kind != SHERDI_SCHEDULE_WARMUP) {
        SHERDI_TRY(sherdi_config_need(config, 0, SHERDI_CONFIG_TOTAL_STEPS, &total));
    }
    sherdi_config_effective(config, 0, SHERDI_CONFIG_WARMUP_MAX_LR, &max_lr);
    out->max_lr        = max_lr.is_null ? NAN : max_lr.value.real;
    out->min_lr        = sherdi_config_real(config, SHERDI_CONFIG_WARMUP_MIN_LR);
    out->is_linear     = sherdi_config_is_on(config, SHERDI_CONFIG_WARMUP_TYPE);
    out->warmup_steps  = sherdi_config_integer(config, SHERDI_CONFIG_WARMUP_STEPS);
    out->total_steps   = total.integer;
    out->min_ratio     = sherdi_config_real(config, SHERDI_CONFIG_MIN_RATIO);
    out->cos_min_ratio = sherdi_config_real(config, SHERDI_CONFIG_COS_MIN_RATIO);
    return SHERD_OK;
}

static sherd_status zero_resolve(const sherd_config *config, sherdi_settings *out)
{
    sherdi_config_value stage;

    SHERDI_TRY(sherdi_config_need(config, 0, SHERDI_CONFIG_STAGE, &stage));
    out->stage                       = (int)stage.integer;
    out->persistence_threshold       = sherdi_config_size(config, SHERDI_CONFIG_PERSISTENCE);
    out->model_persistence_threshold = sherdi_config_size(config, SHERDI_CONFIG_MODEL_PERSISTENCE);
    out->sub_group_size              = sherdi_config_size(config, SHERDI_CONFIG_SUB_GROUP);
    out->prefetch_bucket_size        = sherdi_config_size(config, SHERDI_CONFIG_PREFETCH_BUCKET);
    out->max_live_parameters         = sherdi_config_size(config, SHERDI_CONFIG_MAX_LIVE);
    out->max_reuse_distance          = sherdi_config_size(config, SHERDI_CONFIG_MAX_REUSE);
    out->vendor_reduction            = sherdi_config_is_on(config, SHERDI_CONFIG_VENDOR_REDUCTION);
    out->free_packing                = sherdi_config_is_on(config, SHERDI_CONFIG_FREE_PACKING);
    out->overlap_comm                = sherdi_config_is_on(config, SHERDI_CONFIG_OVERLAP_COMM);
    out->deterministic               = sherdi_config_is_on(config, SHERDI_CONFIG_DETERMINISTIC);
    out->wall_clock_breakdown        = sherdi_config_is_on(config, SHERDI_CONFIG_WALL_CLOCK);
    sherdi_config_offload_resolve(config, out);
    return SHERD_OK;
}

sherd_status sherdi_config_resolve(const sherd_config *config, int world_size, sherdi_settings *out)
{
    sherdi_settings settings;

    memset(&settings, 0, sizeof(settings)); /* padding too: ranks may hash it */
    SHERDI_TRY(sherdi_config_check(config, 1));
    SHERDI_TRY(batch_resolve(config, world_size, &settings));
    SHERDI_TRY(precision_resolve(config, &settings));
    SHERDI_TRY(optimizer_resolve(config, &settings));
    SHERDI_TRY(schedule_resolve(config, &settings.schedule));
    SHERDI_TRY(zero_resolve(config, &settings));
    memcpy(out, &settings, sizeof(settings));
    return SHERD_OK;
}

/* Makes settings of keys. It checks across keys, fills every field of sherdi_settings from the
 * value in force of its key, and then applies the rules that take more than one key. It also lists
 * the settings that ranks compare. */
#include "engine/config/config_impl.h"

#include "engine/config/compare.h"
#include "engine/optimizers/optimizer.h"

#include "base/absent.h"
#include "base/hash.h"
#include "offload/tiers.h"

#include <assert.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Writes location and key, then the sentence. */
static void key_line(const sherd_config *config, sherdi_config_id id, const char *fmt, va_list args,
                     char line[SHERDI_ERROR_BYTES])
{
    char location[SHERDI_LOCATION_BYTES];
    int  start =
        snprintf(line, SHERDI_ERROR_BYTES, "%s: %s ", sherdi_config_location(config, id, location),
                 sherdi_config_name(config, id));

    (void)vsnprintf(line + start, SHERDI_ERROR_BYTES - (size_t)start, fmt, args);
}

sherd_status sherdi_config_key_fail(const sherd_config *config, sherdi_config_id id,
                                    const char *fmt, ...)
{
    char    line[SHERDI_ERROR_BYTES];
    va_list args;

    va_start(args, fmt);
    key_line(config, id, fmt, args, line);
    va_end(args);
    return sherdi_fail(SHERD_E_INVAL, "%s", line);
}

sherd_status sherdi_config_key_warn(sherd_config *config, sherdi_config_id id, const char *fmt, ...)
{
    char    line[SHERDI_ERROR_BYTES];
    va_list args;

    va_start(args, fmt);
    key_line(config, id, fmt, args, line);
    va_end(args);
    return sherdi_config_warn(config, line);
}

/* ---- checks without a world ---- */

static sherd_status precision_check(const sherd_config *config)
{
    char other[SHERDI_LOCATION_BYTES];

    if (sherdi_config_is_on(config, SHERDI_CONFIG_FP16_ENABLED) &&
        sherdi_config_is_on(config, SHERDI_CONFIG_BF16_ENABLED)) {
        return sherdi_config_key_fail(
            config, SHERDI_CONFIG_FP16_ENABLED,
            "and bf16.enabled (%s) are both true; switch one off",
            sherdi_config_location(config, SHERDI_CONFIG_BF16_ENABLED, other));
    }
    if (sherdi_config_is_on(config, SHERDI_CONFIG_FP16_ENABLED) &&
        sherdi_config_real(config, SHERDI_CONFIG_LOSS_SCALE) == 0 &&
        sherdi_config_integer(config, SHERDI_CONFIG_SCALE_WINDOW) < 1) {
        return sherdi_config_key_fail(config, SHERDI_CONFIG_SCALE_WINDOW,
                                      "must be at least 1 when the loss scale is dynamic");
    }
    return SHERD_OK;
}

/* Returns the number of the optimizer that the configuration names. */
static size_t optimizer_index(const sherd_config *config)
{
    return (size_t)sherdi_config_integer(config, SHERDI_CONFIG_OPTIMIZER_TYPE);
}

/* Returns whether a key is a member of optimizer.params that is among the names "a|b|c"; NULL:
 * there are none. */
static int is_param_among(sherdi_config_id id, const char *names)
{
    static const char BLOCK[] = "optimizer.params.";
    const char       *path    = sherdi_config_table[id].path;
    size_t            index;

    return names != NULL && strncmp(path, BLOCK, sizeof(BLOCK) - 1) == 0 &&
           sherdi_text_choice(names, path + sizeof(BLOCK) - 1, 0, &index);
}

/* Returns whether only some optimizers read a key, and this is one. */
static int optimizer_reads(size_t index, sherdi_config_id id)
{
    return is_param_among(id, sherdi_optimizer_at(index)->keys);
}

/* Returns whether the named optimizer reads "nesterov" but not "dampening": it has Nesterov's
 * momentum, and never lacks a buffer. */
static int has_no_dampening(const sherd_config *config)
{
    size_t index;

    if (!sherdi_config_is_given(config, SHERDI_CONFIG_OPTIMIZER_TYPE)) {
        return 0;
    }
    index = optimizer_index(config);
    return optimizer_reads(index, SHERDI_CONFIG_NESTEROV) &&
           !optimizer_reads(index, SHERDI_CONFIG_DAMPENING);
}

static sherd_status coefficients_check(const sherd_config *config)
{
    if (sherdi_config_is_on(config, SHERDI_CONFIG_VENDOR_REDUCTION) &&
        sherdi_config_is_on(config, SHERDI_CONFIG_DETERMINISTIC)) {
        return sherdi_config_key_fail(
            config, SHERDI_CONFIG_VENDOR_REDUCTION,
            "is true, and so is \"deterministic\": a vendor's reduction does not give the same "
            "bits in every layout; switch one off");
    }
    if (sherdi_config_integer(config, SHERDI_CONFIG_EVAL_KEEP) > 0 &&
        sherdi_config_is_on(config, SHERDI_CONFIG_FREE_PACKING)) {
        return sherdi_config_key_fail(
            config, SHERDI_CONFIG_EVAL_KEEP,
            "keeps units in memory at fixed places, which they do not have "
            "with sherd.free_packing; remove one of the two");
    }
    if (sherdi_config_is_on(config, SHERDI_CONFIG_NESTEROV) && !has_no_dampening(config) &&
        (sherdi_config_real(config, SHERDI_CONFIG_MOMENTUM) == 0 ||
         sherdi_config_real(config, SHERDI_CONFIG_DAMPENING) != 0)) {
        return sherdi_config_key_fail(config, SHERDI_CONFIG_NESTEROV,
                                      "needs a momentum above 0 and a dampening of 0");
    }
    if (sherdi_config_real(config, SHERDI_CONFIG_MIN_COEFF) >
        sherdi_config_real(config, SHERDI_CONFIG_MAX_COEFF)) {
        return sherdi_config_key_fail(config, SHERDI_CONFIG_MIN_COEFF, "is larger than max_coeff");
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

/* Returns whether an optimizer is named for all parameters, or for those of a group. */
static int optimizer_is_used(const sherd_config *config, size_t index)
{
    const sherdi_config_value *groups = &config->entries[SHERDI_CONFIG_GROUPS].value;

    for (int64_t g = 0; groups->groups != NULL && g < groups->integer; g++) {
        if (groups->groups[g].optimizer == 1 + (int)index) {
            return 1;
        }
    }
    return index == optimizer_index(config);
}

/* Returns whether the named optimizer or that of a group reads a key that only some optimizers
 * leave unread. */
static int optimizers_read(const sherd_config *config, sherdi_config_id id)
{
    for (size_t i = 0; sherdi_optimizer_at(i) != NULL; i++) {
        if (optimizer_is_used(config, i) && !is_param_among(id, sherdi_optimizer_at(i)->unread)) {
            return 1;
        }
    }
    return 0;
}

/* Warns of a key that only some optimizers read, if none of them is used. */
static sherd_status others_remark(sherd_config *config, sherdi_config_id id)
{
    char   readers[64] = "";
    size_t len         = 0;

    for (size_t i = 0; sherdi_optimizer_at(i) != NULL; i++) {
        if (!optimizer_reads(i, id)) {
            continue;
        }
        if (optimizer_is_used(config, i)) {
            return SHERD_OK;
        }
        len +=
            (size_t)snprintf(readers + len, sizeof(readers) - len, "%s%s", len == 0 ? "" : " or ",
                             sherdi_optimizer_name(sherdi_optimizer_at(i)));
    }
    return len == 0 ? SHERD_OK
                    : sherdi_config_key_warn(config, id, "is ignored: only %s reads it", readers);
}

/* Warns of a key that the named optimizer does not read, though others do, unless a group has one
 * of these. */
static sherd_status unread_remark(sherd_config *config, sherdi_config_id id)
{
    const sherdi_optimizer *optimizer = sherdi_config_optimizer(config);

    return !is_param_among(id, optimizer->unread) || optimizers_read(config, id)
               ? SHERD_OK
               : sherdi_config_key_warn(config, id, "is ignored: %s does not read it",
                                        sherdi_optimizer_name(optimizer));
}

/* Makes a remark on each key that is given. */
static sherd_status given_remark(sherd_config *config,
                                 sherd_status (*remark)(sherd_config *, sherdi_config_id))
{
    for (sherdi_config_id id = 0; id < SHERDI_CONFIG_IDS; id++) {
        if (sherdi_config_is_given(config, id)) {
            SHERDI_TRY(remark(config, id));
        }
    }
    return SHERD_OK;
}

static sherd_status optimizer_remark(sherd_config *config)
{
    int has_type = sherdi_config_is_given(config, SHERDI_CONFIG_OPTIMIZER_TYPE);

    if (has_type) {
        SHERDI_TRY(given_remark(config, others_remark));
        SHERDI_TRY(given_remark(config, unread_remark));
    }
    if (sherdi_config_is_given(config, SHERDI_CONFIG_MAX_GRAD_NORM)) {
        SHERDI_TRY(
            sherdi_config_key_warn(config, SHERDI_CONFIG_MAX_GRAD_NORM,
                                   sherdi_config_is_given(config, SHERDI_CONFIG_GRADIENT_CLIPPING)
                                       ? "is ignored: gradient_clipping is there too, and wins"
                                       : "is taken as gradient_clipping; write it there"));
    }
    if (has_type && sherdi_config_optimizer(config)->decoupled == NULL &&
        !sherdi_config_is_on(config, SHERDI_CONFIG_ADAM_W_MODE)) {
        return sherdi_config_key_warn(
            config, SHERDI_CONFIG_ADAM_W_MODE,
            "is ignored: AdamW always decouples the decay, and other optimizers decay in their own "
            "way; type Adam does not have to decouple it");
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

/* A fixed scale is a normal float, as gradients are divided by it. */
static sherd_status fixed_scale_check(const sherd_config *config)
{
    double fixed = sherdi_config_real(config, SHERDI_CONFIG_LOSS_SCALE);

    return fixed == 0 || fixed >= (double)FLT_MIN
               ? SHERD_OK
               : sherdi_config_key_fail(config, SHERDI_CONFIG_LOSS_SCALE,
                                        "is too small for a number of 32 bits, by which gradients "
                                        "could be divided; give 0 for a dynamic loss scale");
}

static int schedule_reads(const sherdi_schedule *schedule, sherdi_config_id id)
{
    return schedule != NULL && sherdi_config_is_among(schedule->keys, schedule->num_keys, id);
}

/* Warns of keys about a momentum that the schedule would move, if no optimizer that is used has
 * betas. */
static sherd_status cycle_remark(sherd_config *config)
{
    static const sherdi_config_id KEYS[] = {
        SHERDI_CONFIG_CYCLE_MOMENTUM, SHERDI_CONFIG_CYCLE_MIN_MOM, SHERDI_CONFIG_CYCLE_MAX_MOM,
        SHERDI_CONFIG_DECAY_MOM_RATE};
    const sherdi_optimizer *optimizer = sherdi_optimizer_at(optimizer_index(config));

    if (optimizers_read(config, SHERDI_CONFIG_BETAS) ||
        !sherdi_config_is_on(config, SHERDI_CONFIG_CYCLE_MOMENTUM)) {
        return SHERD_OK;
    }
    for (size_t i = 0; i < sizeof(KEYS) / sizeof(KEYS[0]); i++) {
        if (sherdi_config_is_given(config, KEYS[i])) {
            SHERDI_TRY(sherdi_config_key_warn(
                config, KEYS[i], "is ignored: %s has no betas%s", sherdi_optimizer_name(optimizer),
                optimizer->with_momentum == NULL ? "" : ", and keeps its momentum"));
        }
    }
    return SHERD_OK;
}

/* Warns of a whole training that is shorter than its warm-up, as DeepSpeed does: the rate falls at
 * once when the warm-up ends. */
static sherd_status warmup_remark(sherd_config *config, const sherdi_schedule *schedule)
{
    int64_t total  = sherdi_config_integer(config, SHERDI_CONFIG_TOTAL_STEPS);
    int64_t warmup = sherdi_config_integer(config, SHERDI_CONFIG_WARMUP_STEPS);

    if (schedule->num_needed == 0 || schedule->keys[0] != SHERDI_CONFIG_TOTAL_STEPS ||
        !sherdi_config_is_given(config, SHERDI_CONFIG_TOTAL_STEPS) || total >= warmup) {
        return SHERD_OK;
    }
    return sherdi_config_key_warn(
        config, SHERDI_CONFIG_TOTAL_STEPS,
        "is %lld, and the warm-up alone takes %lld steps; give a warmup_num_steps below it",
        (long long)total, (long long)warmup);
}

static sherd_status schedule_unread_remark(sherd_config *config, sherdi_config_id id)
{
    return !sherdi_config_table[id].is_schedules ||
                   schedule_reads(sherdi_config_schedule(config), id)
               ? SHERD_OK
               : sherdi_config_key_warn(config, id,
                                        "is ignored: this type of schedule does not read it");
}

static sherd_status scheduler_remark(sherd_config *config)
{
    const sherdi_schedule *schedule = sherdi_config_schedule(config);

    if (schedule == NULL) {
        if (config->entries[SHERDI_CONFIG_SCHEDULER_PARAMS].origin != SHERDI_ORIGIN_DEFAULT) {
            return sherdi_config_key_warn(config, SHERDI_CONFIG_SCHEDULER_PARAMS,
                                          "is ignored, because scheduler.type is not there");
        }
        return SHERD_OK;
    }
    SHERDI_TRY(given_remark(config, schedule_unread_remark));
    SHERDI_TRY(warmup_remark(config, schedule));
    if (!schedule->is_transformers &&
        sherdi_config_integer(config, SHERDI_CONFIG_WARMUP_TYPE) > SHERDI_RAMP_LINEAR &&
        schedule_reads(schedule, SHERDI_CONFIG_WARMUP_TYPE)) {
        return sherdi_config_key_warn(config, SHERDI_CONFIG_WARMUP_TYPE,
                                      "is read as log: this type of schedule has log and linear");
    }
    return schedule->betas != NULL ? cycle_remark(config) : SHERD_OK;
}

sherd_status sherdi_config_remark(sherd_config *config)
{
    SHERDI_TRY(sherdi_config_offload_remark(config));
    SHERDI_TRY(optimizer_remark(config));
    SHERDI_TRY(fixed_scale_check(config));
    SHERDI_TRY(scaler_remark(config));
    return scheduler_remark(config);
}

/* ---- settings ---- */

static void rates_put(const sherdi_config_effect *effect, sherdi_rates *out)
{
    out->count = effect->value.count;
    out->at[0] = effect->is_null ? NAN : effect->value.real;
    if (out->count > 0) {
        memcpy(out->at, effect->value.list, out->count * sizeof(*out->at));
    }
}

void sherdi_setting_put(const sherdi_config_key *key, const sherdi_config_effect *effect,
                        void *field)
{
    /* in the order of the choices */
    static const sherd_dtype DTYPES[] = {SHERD_F32, SHERD_F16, SHERD_BF16};
    int64_t                  integer  = effect->value.integer;

    switch (key->setting.kind) {
    case SHERDI_SETTING_NONE:
        break;
    case SHERDI_SETTING_INT:
        if (key->type == SHERDI_TYPE_TEXT && (key->fallback == NULL || key->is_rule)) {
            integer = effect->is_null ? 0 : integer + 1;
        }
        *(int *)field =
            integer > INT_MAX ? INT_MAX : (int)integer; /* people write 2e16 for "never" */
        break;
    case SHERDI_SETTING_INT64:
        *(int64_t *)field = integer;
        break;
    case SHERDI_SETTING_SIZE:
        *(size_t *)field = integer == INT64_MAX ? SIZE_MAX : (size_t)integer;
        break;
    case SHERDI_SETTING_RATES:
        rates_put(effect, field);
        break;
    case SHERDI_SETTING_PAIR:
        ((double *)field)[1] = effect->value.second;
        /* fall through */
    case SHERDI_SETTING_REAL:
        *(double *)field = effect->value.real;
        break;
    case SHERDI_SETTING_DTYPE:
        *(sherd_dtype *)field = DTYPES[integer];
        break;
    case SHERDI_SETTING_OPTIMIZER:
        *(const sherdi_optimizer **)field = sherdi_optimizer_at((size_t)integer);
        break;
    case SHERDI_SETTING_TIER:
        *(const sherdi_tier_kind **)field = sherdi_tier_at((size_t)integer);
        break;
    case SHERDI_SETTING_GROUPS:
        if (effect->value.groups != NULL) {
            memcpy(field, effect->value.groups, (size_t)integer * sizeof(*effect->value.groups));
        }
        break;
    }
}

/* Returns the address of a key's field. */
static void *setting_at(const sherdi_config_key *key, const sherdi_settings *settings)
{
    return (unsigned char *)settings + key->setting.offset;
}

static sherd_status settings_put(const sherd_config *config, int world_size, sherdi_settings *out)
{
    const sherdi_schedule *schedule = sherdi_config_schedule(config);
    sherdi_config_effect   effect;

    for (sherdi_config_id id = 0; id < SHERDI_CONFIG_IDS; id++) {
        const sherdi_config_key *key = &sherdi_config_table[id];

        /* Parameters that this type of schedule does not read stay 0, even if the file sets them. */
        if (key->setting.kind == SHERDI_SETTING_NONE || key->setting.is_derived ||
            (key->is_schedules && !schedule_reads(schedule, id))) {
            continue;
        }
        sherdi_config_effective(config, world_size, id, &effect);
        if (effect.is_missing) {
            return sherdi_fail(SHERD_E_INVAL, "%s", effect.origin);
        }
        sherdi_setting_put(key, &effect, setting_at(key, out));
    }
    return SHERD_OK;
}

/* ---- rules ---- */

static void scaler_resolve(const sherd_config *config, sherdi_scaler_params *out)
{
    double fixed = sherdi_config_real(config, SHERDI_CONFIG_LOSS_SCALE);
    int    power = (int)sherdi_config_integer(config, SHERDI_CONFIG_SCALE_POWER);

    if (sherdi_config_is_on(config, SHERDI_CONFIG_FP16_ENABLED)) {
        out->is_dynamic    = fixed == 0;
        out->initial_scale = out->is_dynamic ? ldexp(1, power) : fixed;
    } else {
        out->initial_scale = 1;
    }
}

static sherd_status schedule_resolve(const sherd_config *config, sherdi_settings *settings)
{
    const sherdi_schedule *schedule = sherdi_config_schedule(config);

    return schedule == NULL || schedule->resolve == NULL ? SHERD_OK
                                                         : schedule->resolve(config, settings);
}

/* Makes the folder of a monitor that is on: output_path/job_name. */
static sherd_status monitor_resolve(const sherd_config *config, sherdi_config_id path_id,
                                    sherdi_config_id job_id, sherdi_monitor_settings *out)
{
    const char *path = sherdi_config_text(config, path_id);
    const char *job  = sherdi_config_text(config, job_id);
    int         len;

    if (!out->is_on) {
        return SHERD_OK;
    }
    if (path[0] == '\0' && job[0] == '\0') {
        return sherdi_config_key_fail(config, job_id, "and output_path are empty: give a folder");
    }
    len = snprintf(out->folder, sizeof(out->folder), "%s%s%s", path,
                   path[0] != '\0' && job[0] != '\0' ? "/" : "", job);
    return len < (int)sizeof(out->folder)
               ? SHERD_OK
               : sherdi_config_key_fail(config, path_id,
                                        "and job_name are too long: together at most 1022 bytes");
}

static sherd_status monitors_resolve(const sherd_config *config, sherdi_monitor_settings *out)
{
    SHERDI_TRY(monitor_resolve(config, SHERDI_CONFIG_CSV_PATH, SHERDI_CONFIG_CSV_JOB,
                               &out[SHERDI_MONITOR_CSV]));
    return monitor_resolve(config, SHERDI_CONFIG_BOARD_PATH, SHERDI_CONFIG_BOARD_JOB,
                           &out[SHERDI_MONITOR_TENSORBOARD]);
}

static sherd_status fingerprints_resolve(const sherd_config          *config,
                                         sherdi_fingerprint_settings *out)
{
    const char *file = sherdi_config_text(config, SHERDI_CONFIG_FINGERPRINTS_FILE);
    int         len  = snprintf(out->file, sizeof(out->file), "%s", file);

    return len < (int)sizeof(out->file)
               ? SHERD_OK
               : sherdi_config_key_fail(config, SHERDI_CONFIG_FINGERPRINTS_FILE,
                                        "is too long: at most 1023 bytes");
}

/* Refuses keys without an effect in this build. */
static sherd_status absent_refuse(const sherd_config *config)
{
#define SHERDI_ABSENT_KEY(id, module)                                                              \
    if (sherdi_config_is_on(config, SHERDI_CONFIG_##id) ||                                         \
        sherdi_config_real(config, SHERDI_CONFIG_##id) > 0) {                                      \
        return sherdi_absent(module, sherdi_config_name(config, SHERDI_CONFIG_##id));              \
    }
#define SHERDI_ABSENT_TEXT(id, module)                                                             \
    if (sherdi_config_text(config, SHERDI_CONFIG_##id)[0] != '\0') {                               \
        return sherdi_absent(module, sherdi_config_name(config, SHERDI_CONFIG_##id));              \
    }
#include "engine/config/absent_list.h"
#undef SHERDI_ABSENT_KEY
#undef SHERDI_ABSENT_TEXT
    (void)config;
    return SHERD_OK;
}

static void rules_apply(const sherd_config *config, sherdi_settings *settings)
{
    settings->numerics.has_comm_dtype = sherdi_config_is_given(config, SHERDI_CONFIG_COMM_DTYPE);
    settings->update.has_lr           = sherdi_config_is_given(config, SHERDI_CONFIG_LR);
    settings->update.has_betas        = sherdi_config_is_given(config, SHERDI_CONFIG_BETAS);
    settings->update.has_eps          = sherdi_config_is_given(config, SHERDI_CONFIG_EPS);
    settings->update.sgd.has_momentum = sherdi_config_is_given(config, SHERDI_CONFIG_MOMENTUM);
    settings->update.sgd.has_nesterov = sherdi_config_is_given(config, SHERDI_CONFIG_NESTEROV);
    scaler_resolve(config, &settings->numerics.scaler);
    settings->numerics.check_overflow |= settings->numerics.compute_dtype == SHERD_F16;
    settings->update.optimizer = sherdi_optimizer_in(settings, settings->update.optimizer, NAN);
    sherdi_config_offload_resolve(config, settings);
}

/* Applies DeepSpeed's keys of the block bf16, which have no effect if the block is off. */
static sherd_status bf16_state_resolve(const sherd_config *config, sherdi_settings *settings)
{
    int masters = sherdi_config_is_on(config, SHERDI_CONFIG_BF16_MASTER);
    int moments = sherdi_config_is_on(config, SHERDI_CONFIG_BF16_STATES);

    if (settings->numerics.compute_dtype != SHERD_BF16) {
        return SHERD_OK;
    }
    if (moments && !masters) {
        return sherdi_config_key_fail(
            config, SHERDI_CONFIG_BF16_STATES,
            "needs bf16.bf16_master_weights_and_grads; for bf16 moments with another master set "
            "sherd.moment_encoding");
    }
    if ((masters && settings->master_encoding == SHERDI_MASTER_BESIDE) ||
        (moments && settings->moment_encoding == SHERDI_MOMENTS_FP8)) {
        return sherdi_config_key_fail(
            config, SHERDI_CONFIG_BF16_MASTER,
            "contradicts sherd.master_encoding or sherd.moment_encoding; remove one of the two");
    }
    if (masters) {
        settings->master_encoding = SHERDI_MASTER_BF16;
    }
    if (moments) {
        settings->moment_encoding = SHERDI_MOMENTS_BF16;
    }
    return SHERD_OK;
}

static sherd_status encodings_resolve(const sherd_config *config, sherdi_settings *settings)
{
    SHERDI_TRY(bf16_state_resolve(config, settings));
    if (settings->master_encoding != SHERDI_MASTER_F32 &&
        settings->numerics.compute_dtype != SHERD_BF16) {
        return sherdi_config_key_fail(
            config, SHERDI_CONFIG_MASTER_ENCODING,
            settings->numerics.compute_dtype == SHERD_F32
                ? "needs bf16 parameters: an fp32 parameter is its own "
                  "master; set bf16.enabled, or take fp32"
                : "needs bf16 parameters: fp16 has other exponents than fp32, so 16 more bits do "
                  "not make it fp32; set bf16.enabled, or take fp32");
    }
    return SHERD_OK;
}

sherd_status sherdi_config_json_resolve(const sherd_config *config, int world_size,
                                        sherdi_settings *out)
{
    sherdi_settings     settings;
    sherdi_config_batch batch;

    memset(&settings, 0, sizeof(settings)); /* padding too: ranks may hash it */
    SHERDI_TRY(absent_refuse(config));
    SHERDI_TRY(sherdi_config_check(config, 1));
    SHERDI_TRY(sherdi_config_batch_solve(config, world_size, &batch));
    /* If the key is absent, its value is the compute type; if it is set, it must agree with the
     * compute type. */
    if (sherdi_config_integer(config, SHERDI_CONFIG_PARAM_DTYPE) !=
        sherdi_config_compute_choice(config)) {
        return sherdi_config_key_fail(config, SHERDI_CONFIG_PARAM_DTYPE,
                                      "contradicts fp16.enabled and bf16.enabled; remove it");
    }
    SHERDI_TRY(settings_put(config, world_size, &settings));
    rules_apply(config, &settings);
    SHERDI_TRY(schedule_resolve(config, &settings));
    SHERDI_TRY(encodings_resolve(config, &settings));
    SHERDI_TRY(monitors_resolve(config, settings.monitors));
    SHERDI_TRY(fingerprints_resolve(config, &settings.fingerprints));
    memcpy(out, &settings, sizeof(settings));
    return SHERD_OK;
}

/* ---- comparison of ranks ---- */

static uint64_t setting_bits(const sherdi_config_key *key, const sherdi_settings *settings)
{
    const void *field = setting_at(key, settings);

    switch (key->setting.kind) { /* pointers to tables differ between processes */
    case SHERDI_SETTING_OPTIMIZER:
        return sherdi_optimizer_index(*(const sherdi_optimizer *const *)field);
    case SHERDI_SETTING_TIER:
        return sherdi_tier_index(*(const sherdi_tier_kind *const *)field);
    default:
        return sherdi_hash_bytes(0, field, key->setting.bytes);
    }
}

size_t sherdi_json_settings(const sherdi_settings *settings, sherdi_named_bits *out)
{
    size_t count = 0;

    /* The compute type comes first, since other settings follow from it. */
    out[count++] =
        (sherdi_named_bits){"fp16.enabled or bf16.enabled", settings->numerics.compute_dtype};
    for (int id = 0; id < SHERDI_CONFIG_IDS; id++) {
        const sherdi_config_key *key = &sherdi_config_table[id];

        if (key->setting.kind != SHERDI_SETTING_NONE && !key->is_local) {
            out[count++] = (sherdi_named_bits){key->path, setting_bits(key, settings)};
        }
    }
    out[count++] = (sherdi_named_bits){sherdi_config_table[SHERDI_CONFIG_COMM_DTYPE].path,
                                       (uint64_t)settings->numerics.has_comm_dtype};
    out[count++] = (sherdi_named_bits){"SHERD_DEBUG (environment)", (uint64_t)settings->is_debug};
    assert(count <= SHERDI_SETTINGS_MOST);
    return count;
}

/* Configurations of the core: what every kind of them has in common, and the kind that is made of
 * sherd_settings. The engine reads sherdi_settings, which each kind resolves to. */
#include "engine/config/config.h"

#include "base/api.h"
#include "engine/optimizers/optimizer.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- every kind ---- */

static const sherdi_config_kind *kind_of(const sherd_config *config)
{
    return *(const sherdi_config_kind *const *)(const void *)config;
}

sherd_status sherdi_config_resolve(const sherd_config *config, int world_size, sherdi_settings *out)
{
    return kind_of(config)->resolve(config, world_size, out);
}

void sherd_config_destroy(sherd_config *config)
{
    if (config != NULL) {
        kind_of(config)->destroy(config);
    }
}

int sherdi_batch_derive(sherdi_config_batch *batch, int world_size)
{
    int64_t more = batch->is_elastic ? world_size - 1 : 0; /* ranks that may be without data */
    double  samples;

    assert(world_size >= 1);
    if (batch->accumulation == 0) {
        batch->accumulation = batch->train == 0 || batch->micro == 0
                                  ? 1
                                  : (batch->train / batch->micro + more) / world_size;
    }
    /* A quotient above may be 0, and would then be a divisor here; the check below finds it. */
    if (batch->micro == 0 && batch->accumulation != 0) {
        batch->micro = batch->train / world_size / batch->accumulation;
    }
    samples = sherdi_batch_samples(batch, world_size);
    if (batch->train == 0 && samples < 0x1p63) {
        batch->train = batch->micro * batch->accumulation * world_size;
    }
    return batch->micro >= 1 && batch->accumulation >= 1 && samples <= INT_MAX &&
           batch->train % batch->micro == 0 && samples >= (double)batch->train &&
           samples - (double)batch->train <= (double)(batch->micro * more);
}

/* ---- the settings of a plain run ---- */

typedef struct plain_config {
    const sherdi_config_kind *kind;
    sherdi_settings settings; /* all but the sizes of a batch that follow from the ranks */
} plain_config;

void sherd_settings_init(sherd_settings *settings)
{
    static const sherd_settings STANDARD = {
#define NUMBER(name, standard, least, below) .name = (standard),
#include "engine/config/settings_fields.h"
        .struct_size = sizeof(*settings),
    };

    sherdi_api_init(settings, &STANDARD);
}

/* ---- checks ---- */

/* Checks that a number is from `least` to below `below`, or NaN like its default. */
static sherd_status number_check(const char *field, double value, double standard, double least,
                                 double below)
{
    return (value >= least && value < below) || (isnan(value) && isnan(standard))
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL,
                             "sherd_settings.%s is %g; it may be from %g to below %g", field, value,
                             least, below);
}

static sherd_status numbers_check(const sherd_settings *s)
{
#define NUMBER(name, ...) SHERDI_TRY(number_check(#name, (double)s->name, __VA_ARGS__));
#include "engine/config/settings_fields.h"
    return SHERD_OK;
}

static sherd_status given_check(const sherd_settings *s)
{
    SHERDI_TRY(sherdi_api_check_flag(s->is_deterministic, "sherd_settings.is_deterministic"));
    SHERDI_TRY(sherdi_api_check_flag(s->bias_correction, "sherd_settings.bias_correction"));
    SHERDI_TRY(sherdi_api_check_flag(s->check_overflow, "sherd_settings.check_overflow"));
    SHERDI_TRY(numbers_check(s));
    return s->train_batch_size != 0 || s->micro_batch_size != 0
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL,
                             "sherd_settings: no batch size is given; set micro_batch_size or "
                             "train_batch_size");
}

static void fields_copy(const sherd_settings *given, sherdi_settings *out)
{
#define FIELD(name, setting, ...)                                                                  \
    _Static_assert(sizeof(out->setting) == sizeof(given->name), "they have one type");             \
    memcpy(&out->setting, &given->name, sizeof(out->setting));
#include "engine/config/settings_fields.h"
}

/* ---- rules for settings that hold copies ---- */

static sherd_status batch_complete(int world_size, sherdi_batch_settings *out)
{
    sherdi_config_batch batch = {out->train_batch_size, out->micro_batch_size, out->accumulation,
                                 0};

    if (!sherdi_batch_derive(&batch, world_size)) {
        return sherdi_fail(SHERD_E_INVAL,
                           "sherd_settings: train_batch_size %lld is not micro_batch_size %lld x "
                           "accumulation %lld x %d ranks, or does not fit 32 bits; change one of "
                           "them",
                           (long long)batch.train, (long long)batch.micro,
                           (long long)batch.accumulation, world_size);
    }
    out->train_batch_size = (int)batch.train;
    out->micro_batch_size = (int)batch.micro;
    out->accumulation     = (int)batch.accumulation;
    return SHERD_OK;
}

static void numerics_complete(const sherd_settings *given, sherdi_numerics_settings *out)
{
    int is_half = given->dtype == SHERD_F16;

    out->has_comm_dtype = given->comm_dtype != -1;
    if (!out->has_comm_dtype) {
        out->comm_dtype = out->compute_dtype;
    }
    out->check_overflow |= is_half;
    out->scaler.is_dynamic    = is_half && given->loss_scale == 0;
    out->scaler.initial_scale = out->scaler.is_dynamic ? given->initial_loss_scale
                                : is_half              ? given->loss_scale
                                                       : 1;
}

/* Settings that no field of sherd_settings gives: as those of a file without these keys. A test
 * compares. */
static const sherdi_settings STANDARD = {
    .update = {.decouples_decay = 1},
#define SHERDI_SETTINGS_OF(member, ...) __VA_ARGS__
#include "engine/config/members_list.h"
};

/* Puts the optimizer's number where none is given. Returns whether one is. */
static int number_complete(double *number, double own)
{
    int is_given = !isnan(*number);

    *number = is_given ? *number : own;
    return is_given;
}

/* Finds the optimizer by its name, and completes its numbers. beta1 may be its momentum. */
static sherd_status update_complete(const sherd_settings *given, sherdi_settings *all)
{
    sherdi_update_settings   *out = &all->update;
    sherdi_optimizer_defaults numbers;

    out->sgd.has_momentum = !isnan(given->beta1);
    out->sgd.momentum     = given->beta1;
    SHERDI_TRY(sherdi_optimizer_find(all, "sherd_settings.optimizer",
                                     given->optimizer == NULL ? "AdamW" : given->optimizer,
                                     &out->optimizer));
    numbers        = sherdi_optimizer_numbers(all, out->optimizer);
    out->has_lr    = number_complete(&out->lr, numbers.lr);
    out->has_eps   = number_complete(&out->eps, numbers.eps);
    out->has_betas = number_complete(&out->betas[0], numbers.betas[0]);
    out->has_betas |= number_complete(&out->betas[1], numbers.betas[1]);
    if (out->optimizer->with_momentum == NULL) {
        out->sgd = (sherdi_sgd_settings){0};
    } else {
        out->has_betas &= !out->sgd.has_momentum;
        out->sgd.momentum = numbers.betas[0];
        out->betas[0]     = SHERDI_STANDARD_BETA1;
    }
    out->sgd.is_nesterov = numbers.is_nesterov;
    return SHERD_OK;
}

static void sharding_complete(sherdi_sharding_settings *out)
{
    if (out->sub_group_size == 0) {
        out->sub_group_size = 1000000000;
    }
    if (out->overlap_comm == -1) {
        out->overlap_comm = out->stage == 3;
    }
}

static sherd_status plain_resolve(const sherd_config *config, int world_size, sherdi_settings *out)
{
    const sherdi_settings *plain = &((const plain_config *)(const void *)config)->settings;
    sherdi_batch_settings  batch = plain->batch;

    SHERDI_TRY(batch_complete(world_size, &batch));
    memcpy(out, plain, sizeof(*out)); /* padding too: ranks may hash it */
    out->batch = batch;
    return SHERD_OK;
}

static void plain_destroy(sherd_config *config)
{
    free(config);
}

static const sherdi_config_kind PLAIN = {plain_resolve, plain_destroy};

sherd_status sherd_config_from_settings(const sherd_settings *settings, sherd_config **out)
{
    sherd_settings  given;
    sherdi_settings all;
    plain_config   *config;

    SHERDI_TRY(sherdi_api_need(settings != NULL, "sherd_config_from_settings", "settings"));
    SHERDI_TRY(sherdi_api_check_out(out, "sherd_config_from_settings"));
    sherd_settings_init(&given);
    SHERDI_TRY(sherdi_api_read(settings, SHERDI_API(sherd_settings), &given));
    SHERDI_TRY(given_check(&given));
    memcpy(&all, &STANDARD, sizeof(all));
    fields_copy(&given, &all);
    numerics_complete(&given, &all.numerics);
    SHERDI_TRY(update_complete(&given, &all));
    sharding_complete(&all.sharding);
    config = calloc(1, sizeof(*config));
    if (config == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for a configuration");
    }
    config->kind = &PLAIN;
    memcpy(&config->settings, &all, sizeof(all));
    *out = (sherd_config *)(void *)config;
    return SHERD_OK;
}

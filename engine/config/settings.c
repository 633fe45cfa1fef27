/* Configurations of the core: what every kind of them has in common, and the kind that is made of
 * sherd_settings. The engine reads sherdi_settings, which each kind resolves to. */
#include "engine/config/config.h"

#include "base/api.h"
#include "base/hash.h"
#include "engine/optimizers/optimizer.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- every kind ---- */

static const sherdi_config_kind *kind_of(const sherd_config *config)
{
    return ((const sherdi_config_head *)(const void *)config)->kind;
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
    int64_t world = world_size;
    int64_t product;

    assert(world >= 1);
    if (batch->accumulation == 0) {
        batch->accumulation =
            batch->train == 0 || batch->micro == 0 ? 1 : batch->train / batch->micro / world;
    }
    /* A quotient above may be 0, and would then be a divisor here; the check below finds it. */
    if (batch->micro == 0 && batch->accumulation != 0) {
        batch->micro = batch->train / world / batch->accumulation;
    }
    if (batch->train == 0 &&
        (__builtin_mul_overflow(batch->micro, batch->accumulation, &batch->train) ||
         __builtin_mul_overflow(batch->train, world, &batch->train))) {
        batch->train = 0;
    }
    return batch->micro >= 1 && batch->accumulation >= 1 &&
           !__builtin_mul_overflow(batch->micro, batch->accumulation, &product) &&
           !__builtin_mul_overflow(product, world, &product) && product <= INT_MAX &&
           product == batch->train;
}

/* ---- the settings of a plain run ---- */

typedef struct plain_config {
    sherdi_config_head head;
    sherd_settings     given;
} plain_config;

void sherd_settings_init(sherd_settings *settings)
{
    sherdi_api_init(settings, &(sherd_settings){.struct_size                 = sizeof(*settings),
                                                .comm_dtype                  = -1,
                                                .accum_dtype                 = SHERD_F32,
                                                .overlap_comm                = -1,
                                                .gradient_clipping           = 1,
                                                .lr                          = NAN,
                                                .beta1                       = NAN,
                                                .beta2                       = NAN,
                                                .eps                         = NAN,
                                                .bias_correction             = 1,
                                                .check_overflow              = 1,
                                                .initial_loss_scale          = 65536,
                                                .min_loss_scale              = 1,
                                                .loss_scale_window           = 1000,
                                                .hysteresis                  = 2,
                                                .sub_group_size              = 1000000000,
                                                .prefetch_bucket_size        = 50000000,
                                                .persistence_threshold       = 100000,
                                                .model_persistence_threshold = SIZE_MAX,
                                                .max_live_parameters         = 1000000000});
}

/* Checks that a number is from `least` to below `below`. */
static sherd_status number_check(const char *field, double value, double least, double below)
{
    return value >= least && value < below
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL,
                             "sherd_settings.%s is %g; it may be from %g to below %g", field, value,
                             least, below);
}

static sherd_status numbers_check(const sherd_settings *s)
{
    const struct {
        const char *field;
        double      value, least, below;
    } NUMBERS[] = {
        {"train_batch_size", s->train_batch_size, 0, 0x1p31},
        {"micro_batch_size", s->micro_batch_size, 0, 0x1p31},
        {"accumulation", s->accumulation, 0, 0x1p31},
        {"stage", s->stage, 0, 4},
        {"dtype", s->dtype, SHERD_F32, SHERD_F16 + 1},
        {"comm_dtype", s->comm_dtype, -1, SHERD_F16 + 1},
        {"accum_dtype", s->accum_dtype, SHERD_F32, SHERD_F16 + 1},
        {"overlap_comm", s->overlap_comm, -1, 2},
        {"steps_per_print", s->steps_per_print, 0, 0x1p31},
        {"gradient_clipping", s->gradient_clipping, 0, INFINITY},
        {"weight_decay", s->weight_decay, 0, INFINITY},
        {"loss_scale", s->loss_scale, 0, 8e37},
        {"initial_loss_scale", s->initial_loss_scale, 1, 0x1p127},
        {"min_loss_scale", s->min_loss_scale, 0, 8e37},
        {"loss_scale_window", (double)s->loss_scale_window, 1, 0x1p63},
        {"hysteresis", s->hysteresis, 0, 0x1p31},
    };
    const struct {
        const char *field;
        double      value, below;
    } OWN[] = {{"lr", s->lr, INFINITY},
               {"beta1", s->beta1, 1},
               {"beta2", s->beta2, 1},
               {"eps", s->eps, INFINITY}};

    for (size_t i = 0; i < sizeof(NUMBERS) / sizeof(NUMBERS[0]); i++) {
        SHERDI_TRY(
            number_check(NUMBERS[i].field, NUMBERS[i].value, NUMBERS[i].least, NUMBERS[i].below));
    }
    for (size_t i = 0; i < sizeof(OWN) / sizeof(OWN[0]); i++) {
        if (!isnan(OWN[i].value)) {
            SHERDI_TRY(number_check(OWN[i].field, OWN[i].value, 0, OWN[i].below));
        }
    }
    return SHERD_OK;
}

static sherd_status given_check(const sherd_settings *s)
{
    SHERDI_TRY(numbers_check(s));
    SHERDI_TRY(sherdi_api_check_flag(s->is_deterministic, "sherd_settings.is_deterministic"));
    SHERDI_TRY(sherdi_api_check_flag(s->bias_correction, "sherd_settings.bias_correction"));
    SHERDI_TRY(sherdi_api_check_flag(s->check_overflow, "sherd_settings.check_overflow"));
    return s->train_batch_size != 0 || s->micro_batch_size != 0
               ? SHERD_OK
               : sherdi_fail(SHERD_E_INVAL,
                             "sherd_settings: no batch size is given; set micro_batch_size or "
                             "train_batch_size");
}

static sherd_status batch_put(const sherd_settings *given, int world_size,
                              sherdi_batch_settings *out)
{
    sherdi_config_batch batch = {.train        = given->train_batch_size,
                                 .micro        = given->micro_batch_size,
                                 .accumulation = given->accumulation};

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

static void numerics_put(const sherd_settings *given, sherdi_numerics_settings *out)
{
    int is_half = given->dtype == SHERD_F16;

    out->compute_dtype  = (sherd_dtype)given->dtype;
    out->has_comm_dtype = given->comm_dtype != -1;
    out->comm_dtype =
        out->has_comm_dtype ? (sherd_dtype)given->comm_dtype : (sherd_dtype)given->dtype;
    out->accum_dtype    = (sherd_dtype)given->accum_dtype;
    out->check_overflow = given->check_overflow || is_half;
    out->deterministic  = given->is_deterministic;
    out->scaler         = (sherdi_scaler_params){
                .is_dynamic    = is_half && given->loss_scale == 0,
                .initial_scale = !is_half                 ? 1
                                 : given->loss_scale == 0 ? given->initial_loss_scale
                                                          : given->loss_scale,
                .scale_window  = given->loss_scale_window,
                .hysteresis    = given->hysteresis,
                .min_scale     = given->min_loss_scale,
    };
}

/* Finds the optimizer by its name. Settings of the optimizer's own keys have the defaults of
 * config_keys.h: a test compares. */
static sherd_status optimizer_put(const sherd_settings *given, sherdi_settings *all)
{
    sherdi_update_settings  *out = &all->update;
    const sherdi_optimizer **at  = &out->optimizer;

    out->decouples_decay  = 1;
    out->lamb             = (sherdi_lamb_settings){.max_coeff = 10, .min_coeff = 0.01};
    out->muon.steps       = 5;
    out->sgd.has_momentum = !isnan(given->beta1);
    out->sgd.momentum     = out->sgd.has_momentum ? given->beta1 : 0;
    SHERDI_TRY(sherdi_optimizer_find(all, "sherd_settings.optimizer",
                                     given->optimizer == NULL ? "AdamW" : given->optimizer, at));
    if ((*at)->with_momentum == NULL) { /* its beta1 is no momentum */
        out->sgd = (sherdi_sgd_settings){0};
    } else if (!out->sgd.has_momentum) {
        out->sgd.momentum = (*at)->defaults.betas[0];
    }
    out->sgd.is_nesterov = (*at)->defaults.is_nesterov;
    return SHERD_OK;
}

static sherd_status update_put(const sherd_settings *given, sherdi_settings *all)
{
    sherdi_update_settings   *out = &all->update;
    sherdi_optimizer_defaults numbers;

    SHERDI_TRY(optimizer_put(given, all));
    numbers              = sherdi_optimizer_numbers(all, out->optimizer);
    out->has_lr          = !isnan(given->lr);
    out->has_betas       = !out->sgd.has_momentum && (!isnan(given->beta1) || !isnan(given->beta2));
    out->has_eps         = !isnan(given->eps);
    out->lr              = out->has_lr ? given->lr : numbers.lr;
    out->eps             = out->has_eps ? given->eps : numbers.eps;
    out->betas[0]        = out->optimizer->with_momentum != NULL ? SHERDI_STANDARD_BETA1
                           : isnan(given->beta1)                 ? numbers.betas[0]
                                                                 : given->beta1;
    out->betas[1]        = isnan(given->beta2) ? numbers.betas[1] : given->beta2;
    out->weight_decay    = given->weight_decay;
    out->bias_correction = given->bias_correction;
    out->gradient_clipping = given->gradient_clipping;
    return SHERD_OK;
}

static void sharding_put(const sherd_settings *given, sherdi_sharding_settings *out)
{
    out->stage                       = given->stage;
    out->persistence_threshold       = given->persistence_threshold;
    out->model_persistence_threshold = given->model_persistence_threshold;
    out->sub_group_size       = given->sub_group_size == 0 ? 1000000000 : given->sub_group_size;
    out->prefetch_bucket_size = given->prefetch_bucket_size;
    out->max_live_parameters  = given->max_live_parameters;
    out->max_reuse_distance   = given->max_reuse_distance;
    out->overlap_comm         = given->overlap_comm == -1 ? given->stage == 3 : given->overlap_comm;
}

/* Nothing is offloaded. The other values are those of a file without these keys. */
static void offload_put(sherdi_settings *out)
{
    const sherdi_offload_settings none = {.tier = &sherdi_tier_device, .pin_memory = 1};

    out->offload.state = out->offload.params = out->offload.activations = none;
    out->offload.state.buffer_count                                     = 4;
    out->offload.state.buffer_elems                                     = 4194304;
    out->offload.params.buffer_count                                    = 5;
    out->offload.params.buffer_elems                                    = 100000000;
    out->offload.activations.buffer_count                               = 2;
    out->offload.params_in_cpu                                          = 1000000000;
    out->offload.ratio                                                  = 1;
    out->offload.pipeline_read = out->offload.pipeline_write = out->offload.durable = 1;
    out->io = (sherdi_io_settings){.block_bytes = 1048576, .depth = 8, .drive_tbw = 600};
}

static sherd_status plain_resolve(const sherd_config *config, int world_size, sherdi_settings *out)
{
    const sherd_settings *given = &((const plain_config *)(const void *)config)->given;
    sherdi_settings       all;

    memset(&all, 0, sizeof(all)); /* padding too: ranks may hash it */
    SHERDI_TRY(batch_put(given, world_size, &all.batch));
    numerics_put(given, &all.numerics);
    SHERDI_TRY(update_put(given, &all));
    sharding_put(given, &all.sharding);
    offload_put(&all);
    all.watch.steps_per_print = given->steps_per_print;
    memcpy(out, &all, sizeof(all));
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
    sherdi_settings probe;
    plain_config   *config;

    SHERDI_TRY(sherdi_api_need(settings != NULL, "sherd_config_from_settings", "settings"));
    SHERDI_TRY(sherdi_api_check_out(out, "sherd_config_from_settings"));
    sherd_settings_init(&given);
    SHERDI_TRY(sherdi_api_read(settings, SHERDI_API(sherd_settings), &given));
    SHERDI_TRY(given_check(&given));
    memset(&probe, 0, sizeof(probe));
    SHERDI_TRY(update_put(&given, &probe));
    given.optimizer = sherdi_optimizer_name(probe.update.optimizer);
    config          = calloc(1, sizeof(*config));
    if (config == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for a configuration");
    }
    config->head.kind = &PLAIN;
    config->given     = given;
    *out              = (sherd_config *)(void *)config;
    return SHERD_OK;
}

/* ---- comparison of ranks ---- */

#define SETTING(name, field)                                                                       \
    {                                                                                              \
        name, offsetof(sherdi_settings, field), sizeof(((sherdi_settings *)0)->field)              \
    }
static const struct {
    const char *name;
    size_t      offset, bytes;
} COMPARED[] = {
    SETTING("dtype", numerics.compute_dtype),
    SETTING("train_batch_size", batch.train_batch_size),
    SETTING("micro_batch_size", batch.micro_batch_size),
    SETTING("accumulation", batch.accumulation),
    SETTING("stage", sharding.stage),
    SETTING("comm_dtype", numerics.comm_dtype),
    SETTING("accum_dtype", numerics.accum_dtype),
    SETTING("is_deterministic", numerics.deterministic),
    SETTING("overlap_comm", sharding.overlap_comm),
    SETTING("gradient_clipping", update.gradient_clipping),
    SETTING("lr", update.lr),
    SETTING("beta1 or beta2", update.betas),
    SETTING("eps", update.eps),
    SETTING("weight_decay", update.weight_decay),
    SETTING("bias_correction", update.bias_correction),
    SETTING("check_overflow", numerics.check_overflow),
    SETTING("loss_scale or initial_loss_scale", numerics.scaler.initial_scale),
    SETTING("loss_scale (fixed or not)", numerics.scaler.is_dynamic),
    SETTING("min_loss_scale", numerics.scaler.min_scale),
    SETTING("loss_scale_window", numerics.scaler.scale_window),
    SETTING("hysteresis", numerics.scaler.hysteresis),
    SETTING("sub_group_size", sharding.sub_group_size),
    SETTING("prefetch_bucket_size", sharding.prefetch_bucket_size),
    SETTING("persistence_threshold", sharding.persistence_threshold),
    SETTING("model_persistence_threshold", sharding.model_persistence_threshold),
    SETTING("max_live_parameters", sharding.max_live_parameters),
    SETTING("max_reuse_distance", sharding.max_reuse_distance),
};

/* Lists the fields of sherd_settings, by their names there. */
size_t sherdi_plain_settings(const sherdi_settings *settings, sherdi_named_bits *out)
{
    size_t count = 0;

    out[count++] =
        (sherdi_named_bits){"optimizer", sherdi_optimizer_index(settings->update.optimizer)};
    for (size_t i = 0; i < sizeof(COMPARED) / sizeof(COMPARED[0]); i++) {
        const unsigned char *field = (const unsigned char *)settings + COMPARED[i].offset;

        out[count++] =
            (sherdi_named_bits){COMPARED[i].name, sherdi_hash_bytes(0, field, COMPARED[i].bytes)};
    }
    out[count++] = (sherdi_named_bits){"SHERD_DEBUG (environment)", (uint64_t)settings->is_debug};
    return count;
}

size_t sherdi_settings_list(const sherdi_settings *settings, sherdi_named_bits *out)
{
    static size_t (*const LISTERS[])(const sherdi_settings *, sherdi_named_bits *) = {
#define SHERDI_SETTINGS_LISTER(name) name,
#include "engine/config/settings_list.h"
#undef SHERDI_SETTINGS_LISTER
    };

    return LISTERS[0](settings, out);
}

/* Fills in and overrides a configuration through the public API. See settings.h. */
#include "settings.h"

#include <math.h>
#include <stdio.h>

static const char default_json[] =
#include "default_json.h"
    ;

/* A value for a key if is_set: JSON, a text or a number. */
typedef struct setting {
    int         is_set;
    const char *key; /* a leading '!' overrides the file */
    const char *json, *text;
    double      number;
} setting;

/* Writes a text of the command line as a JSON string. */
static void text_quote(const char *text, char *json, size_t json_bytes)
{
    size_t len = 0;

    json[len++] = '"';
    for (; *text != '\0' && len + 4 < json_bytes; text++) {
        if (*text == '"' || *text == '\\') {
            json[len++] = '\\';
        }
        json[len++] = *text;
    }
    json[len++] = '"';
    json[len]   = '\0';
}

static sherd_status settings_set(sherd_config *config, const setting *rows, size_t count)
{
    sherd_status status = SHERD_OK;

    for (size_t i = 0; status == SHERD_OK && i < count; i++) {
        const setting *row = &rows[i];
        char           json[1024];

        if (row->text != NULL) {
            text_quote(row->text, json, sizeof(json));
        } else {
            (void)snprintf(json, sizeof(json), "%.17g", row->number);
        }
        if (row->is_set) {
            status = sherd_config_set(config, row->key, row->json != NULL ? row->json : json);
        }
    }
    return status;
}

#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))

/* Returns the elements of the largest unit's parameters. */
static size_t largest_unit(const arch *sizes)
{
    size_t most = 0;

    for (size_t unit = 0; unit < arch_unit_count(sizes); unit++) {
        size_t elems = 0;

        for (size_t k = arch_unit_first_param(sizes, unit);
             k < arch_unit_first_param(sizes, unit + 1); k++) {
            arch_param info;

            arch_param_get(sizes, k, &info);
            elems += arch_param_elems(&info);
        }
        most = elems > most ? elems : most;
    }
    return most;
}

/* Sets the values that are "auto" or missing in the configuration: the batch, the optimizer and the
 * length of the schedule; without a file also the elements that are gathered ahead. */
static sherd_status open_fill(sherd_config *config, const options *o)
{
    int has_batch = sherd_config_has(config, "train_micro_batch_size_per_gpu") ||
                    sherd_config_has(config, "train_batch_size");
    int has_length = !sherd_config_has(config, "scheduler.type") ||
                     sherd_config_has(config, "scheduler.params.total_num_steps");
    const setting rows[] = {
        {o->config_path == NULL, "zero_optimization.stage3_prefetch_bucket_size",
         .number = 2.0 * (double)largest_unit(&o->sizes)}, /* twice, because slices add padding */
        {!sherd_config_has(config, "optimizer.type"), "optimizer.type", .json = "\"AdamW\""},
        {!sherd_config_has(config, "optimizer.params.lr"), "optimizer.params.lr", .number = 1e-3},
        {!has_batch, "train_micro_batch_size_per_gpu", .number = 4},
        {!has_length, "scheduler.params.total_num_steps",
         .number = o->steps > 0 ? (double)o->steps : 1.0},
    };

    return settings_set(config, rows, COUNT(rows));
}

static sherd_status overrides_set(sherd_config *config, const options *o)
{
    int           has_type = o->precision != PRECISION_CONFIG;
    const setting rows[]   = {
          {!isnan(o->lr), "!optimizer.params.lr", .number = o->lr},
          {o->batch > 0, "!train_micro_batch_size_per_gpu", .number = o->batch},
          {o->accumulation > 0, "!gradient_accumulation_steps", .number = o->accumulation},
          {o->stage >= 0, "!zero_optimization.stage", .number = o->stage},
          {has_type, "!bf16.enabled", .json = o->precision == PRECISION_BF16 ? "true" : "false"},
          {has_type, "!fp16.enabled", .json = o->precision == PRECISION_FP16 ? "true" : "false"},
          {o->offload != NULL, "!zero_optimization.offload_optimizer.device", .text = o->offload},
          {o->offload_params != NULL, "!zero_optimization.offload_param.device",
           .text = o->offload_params},
          {o->nvme_path != NULL, "!zero_optimization.offload_optimizer.nvme_path",
           .text = o->nvme_path},
          {o->nvme_path != NULL, "!zero_optimization.offload_param.nvme_path", .text = o->nvme_path},
          {o->nvme_path != NULL, "!sherd.activations.nvme_path", .text = o->nvme_path},
          {o->is_resumed, "!zero_optimization.offload_optimizer.resume", .json = "true"},
          {1, "sherd.hidden_size", .number = (double)o->sizes.hidden},
    };

    return settings_set(config, rows, COUNT(rows));
}

static sherd_status elastic_set(sherd_config *config, const options *o)
{
    char json[64];

    (void)snprintf(json, sizeof(json), "[%d, %d]", o->least_ranks, o->most_ranks);
    return o->most_ranks > 0 ? sherd_config_set(config, "!sherd.elastic", json) : SHERD_OK;
}

sherd_status settings_make(const options *o, sherd_config **out)
{
    sherd_config *config;
    sherd_status  status;

    if (o->config_path != NULL) {
        status = sherd_config_load(o->config_path, &config);
    } else {
        status = sherd_config_parse(default_json, sizeof(default_json) - 1, &config);
    }
    if (status != SHERD_OK) {
        return status;
    }
    status = overrides_set(config, o);
    if (status == SHERD_OK) {
        status = elastic_set(config, o);
    }
    if (status == SHERD_OK) {
        status = open_fill(config, o);
    }
    if (status != SHERD_OK) {
        sherd_config_destroy(config);
        return status;
    }
    *out = config;
    return SHERD_OK;
}

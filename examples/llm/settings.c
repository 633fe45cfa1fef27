/* Fills and overrides a configuration through the public API. See settings.h. */
#include "settings.h"

#include <math.h>
#include <stdio.h>

static const char default_json[] =
#include "default_json.h"
    ;

static sherd_status number_set(sherd_config *config, const char *key, double value)
{
    char json[32];

    (void)snprintf(json, sizeof(json), "%.17g", value);
    return sherd_config_set(config, key, json);
}

/* What was left open: the batch, the optimizer, the length of the schedule. */
static sherd_status open_fill(sherd_config *config, const options *o)
{
    sherd_status status = SHERD_OK;

    if (!sherd_config_has(config, "optimizer.type")) {
        status = sherd_config_set(config, "optimizer.type", "\"AdamW\"");
    }
    if (status == SHERD_OK && !sherd_config_has(config, "optimizer.params.lr")) {
        status = number_set(config, "optimizer.params.lr", 1e-3);
    }
    if (status == SHERD_OK && !sherd_config_has(config, "train_micro_batch_size_per_gpu") &&
        !sherd_config_has(config, "train_batch_size")) {
        status = number_set(config, "train_micro_batch_size_per_gpu", 4);
    }
    if (status == SHERD_OK && sherd_config_has(config, "scheduler.type") &&
        !sherd_config_has(config, "scheduler.params.total_num_steps")) {
        status = number_set(config, "scheduler.params.total_num_steps",
                            o->steps > 0 ? (double)o->steps : 1.0);
    }
    return status;
}

/* A text of the command line as a JSON string. */
static sherd_status text_set(sherd_config *config, const char *key, const char *text)
{
    char   json[1024] = "\"";
    size_t len        = 1;

    for (; *text != '\0' && len + 4 < sizeof(json); text++) {
        if (*text == '"' || *text == '\\') {
            json[len++] = '\\';
        }
        json[len++] = *text;
    }
    json[len++] = '"';
    json[len]   = '\0';
    return sherd_config_set(config, key, json);
}

static sherd_status offload_set(sherd_config *config, const options *o)
{
    sherd_status status = SHERD_OK;

    if (o->offload != NULL) {
        status = text_set(config, "!zero_optimization.offload_optimizer.device", o->offload);
    }
    if (status == SHERD_OK && o->offload_params != NULL) {
        status = text_set(config, "!zero_optimization.offload_param.device", o->offload_params);
    }
    if (status == SHERD_OK && o->nvme_path != NULL) {
        status = text_set(config, "!zero_optimization.offload_optimizer.nvme_path", o->nvme_path);
    }
    if (status == SHERD_OK && o->nvme_path != NULL) {
        status = text_set(config, "!zero_optimization.offload_param.nvme_path", o->nvme_path);
    }
    if (status == SHERD_OK && o->is_resumed) {
        status = sherd_config_set(config, "!zero_optimization.offload_optimizer.resume", "true");
    }
    return status;
}

/* A leading '!' overrides what the file says. */
static sherd_status overrides_set(sherd_config *config, const options *o, int stage)
{
    sherd_status status = SHERD_OK;

    if (!isnan(o->lr)) {
        status = number_set(config, "!optimizer.params.lr", o->lr);
    }
    if (status == SHERD_OK && o->batch > 0) {
        status = number_set(config, "!train_micro_batch_size_per_gpu", o->batch);
    }
    if (status == SHERD_OK && o->accumulation > 0) {
        status = number_set(config, "!gradient_accumulation_steps", o->accumulation);
    }
    if (status == SHERD_OK && stage >= 0) {
        status = number_set(config, "!zero_optimization.stage", stage);
    }
    if (status == SHERD_OK && o->precision != PRECISION_CONFIG) {
        status = sherd_config_set(config, "!bf16.enabled",
                                  o->precision == PRECISION_BF16 ? "true" : "false");
    }
    if (status == SHERD_OK && o->precision != PRECISION_CONFIG) {
        status = sherd_config_set(config, "!fp16.enabled",
                                  o->precision == PRECISION_FP16 ? "true" : "false");
    }
    return status == SHERD_OK ? offload_set(config, o) : status;
}

sherd_status settings_make(const options *o, int stage, sherd_config **out)
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
    status = overrides_set(config, o, stage >= 0 ? stage : o->stage);
    if (status == SHERD_OK) {
        status = number_set(config, "sherd.hidden_size", (double)o->sizes.hidden);
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

/* Fills and overrides a configuration through the public API. See settings.h. */
#include "settings.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char default_json[] =
#include "default_json.h"
    ;

/* What sherd_config_dump writes, in one piece. */
typedef struct dump {
    char  *text;
    size_t len_bytes;
} dump;

static sherd_status dump_append(void *ctx, const char *text, size_t len_bytes)
{
    dump *d     = ctx;
    char *grown = realloc(d->text, d->len_bytes + len_bytes + 1);

    if (grown == NULL) {
        return SHERD_E_NOMEM;
    }
    memcpy(grown + d->len_bytes, text, len_bytes);
    d->text = grown;
    d->len_bytes += len_bytes;
    d->text[d->len_bytes] = '\0';
    return SHERD_OK;
}

/* Whether neither file nor default gives the key a value: "auto", or not there. */
static int is_open(const dump *d, const char *key)
{
    char        line[128];
    const char *at;

    (void)snprintf(line, sizeof(line), "\"%s\": {\"value\": ", key);
    at = d->text == NULL ? NULL : strstr(d->text, line);
    return at != NULL && strncmp(at + strlen(line), "null", 4) == 0;
}

static sherd_status number_set(sherd_config *config, const char *key, double value)
{
    char json[32];

    (void)snprintf(json, sizeof(json), "%.17g", value);
    return sherd_config_set(config, key, json);
}

/* What was left open: the batch, the optimizer, the length of the schedule. */
static sherd_status open_fill(sherd_config *config, const options *o)
{
    dump         d      = {0};
    sherd_status status = sherd_config_dump(config, dump_append, &d);

    if (status == SHERD_OK && is_open(&d, "optimizer.type")) {
        status = sherd_config_set(config, "optimizer.type", "\"AdamW\"");
    }
    if (status == SHERD_OK && is_open(&d, "optimizer.params.lr")) {
        status = number_set(config, "optimizer.params.lr", 1e-3);
    }
    if (status == SHERD_OK && is_open(&d, "train_micro_batch_size_per_gpu") &&
        is_open(&d, "train_batch_size")) {
        status = number_set(config, "train_micro_batch_size_per_gpu", 4);
    }
    if (status == SHERD_OK && !is_open(&d, "scheduler.type") &&
        is_open(&d, "scheduler.params.total_num_steps")) {
        status = number_set(config, "scheduler.params.total_num_steps",
                            o->steps > 0 ? (double)o->steps : 1.0);
    }
    free(d.text);
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
    return status;
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

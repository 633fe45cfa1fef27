/* A libFuzzer target for the configuration parser: any bytes must give a configuration or an error,
 * and never a crash, a leak or memory that is not accounted for (sherd_config_destroy asserts
 * that). A configuration that can be resolved is used to plan a small model; it may name the
 * model's groups. This target is built by -Dfuzz=true with clang; run it with a folder of
 * configuration files as its corpus. */
#include "engine/config/config_impl.h"
#include "sherd_tools.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static sherd_status discard(void *ctx, const char *text, size_t len_bytes)
{
    (void)ctx;
    (void)text;
    (void)len_bytes;
    return SHERD_OK;
}

/* Uses the first line, if it has the form "key value", as a setting that the program makes. */
static void set_from_first_line(sherd_config *config, const char *text)
{
    char  line[256];
    char *space;

    (void)snprintf(line, sizeof(line), "%.*s", (int)strcspn(text, "\n"), text);
    space = strchr(line, ' ');
    if (space != NULL) {
        *space = '\0';
        (void)!sherd_config_set(config, line, space + 1);
    }
}

/* Plans a small model. Nothing is opened or allocated before seal. */
static void plan_small(const sherd_config *config)
{
    static const char *const NAMES[] = {"layers.0.weight", "layers.0.bias"};
    sherd_world             *world;
    sherd_engine            *engine;
    sherd_unit               unit;
    sherd_unit_params        units;

    sherd_unit_params_init(&units);
    units.name = "layers.0";
    if (sherd_world_simulate(1, 3, &world) != SHERD_OK) {
        abort();
    }
    if (sherd_engine_create(world, config, &engine) == SHERD_OK) {
        if (sherd_unit_add(engine, &units, &unit) != SHERD_OK) {
            abort();
        }
        for (size_t i = 0; i < 2; i++) {
            sherd_param_params params;
            sherd_param        param;

            sherd_param_params_init(&params);
            params.name     = NAMES[i];
            params.ndim     = 1;
            params.shape[0] = 300;
            (void)!sherd_param_add(engine, unit, &params, &param);
        }
        (void)!sherd_engine_fits(engine);
        sherd_engine_destroy(engine);
    }
    sherd_world_destroy(world);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
    sherd_config   *config;
    sherdi_settings settings;
    char           *text;

    if (sherd_config_parse((const char *)data, len_bytes, &config) == SHERD_OK) {
        if (sherdi_config_resolve(config, 3, &settings) == SHERD_OK &&
            settings.batch.train_batch_size !=
                settings.batch.micro_batch_size * settings.batch.accumulation * 3) {
            abort();
        }
        plan_small(config);
        if (sherd_config_dump(config, discard, NULL) != SHERD_OK) {
            abort();
        }
        sherd_config_destroy(config);
    }
    if (sherd_config_parse("{}", 2, &config) == SHERD_OK) {
        text = calloc(1, len_bytes + 1);
        if (text != NULL) {
            memcpy(text, data, len_bytes);
            set_from_first_line(config, text);
        }
        free(text);
        sherd_config_destroy(config);
    }
    return 0;
}

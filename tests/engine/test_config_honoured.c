/* Another value of a key of engine/config/config_keys.h makes other settings in some file at least;
 * of one that config_unused.h reads and does not refuse, in none. */
#include "tests/engine/config_helpers.h"

/* Files in which every honoured key counts somewhere. */
static const char *const FILES[] = {
    "\"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": \"auto\"}",
    "\"fp16\": {\"enabled\": true}",
    "\"bf16\": {\"enabled\": true}",
    "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.1, \"momentum\": 0.9}}",
    "\"csv_monitor\": {\"enabled\": true}, \"tensorboard\": {\"enabled\": true}",
    "\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true}",
    "\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 90}}",
    "\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": 90}}",
    "\"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 1e-4, "
    "\"cycle_max_lr\": 0.01}}",
    "\"scheduler\": {\"type\": \"LRRangeTest\", \"params\": {}}",
    "\"scheduler\": {\"type\": \"polynomial\", \"params\": {\"num_training_steps\": 90}}",
    "\"scheduler\": {\"type\": \"inverse_sqrt\", \"params\": {}}",
    "\"scheduler\": {\"type\": \"cosine_with_restarts\", \"params\": {\"num_training_steps\": 90}}",
    "\"scheduler\": {\"type\": \"cosine_with_min_lr\", \"params\": {\"num_training_steps\": 90, "
    "\"min_lr\": 1e-6}}",
    "\"scheduler\": {\"type\": \"cosine_with_min_lr\", \"params\": {\"num_training_steps\": 90, "
    "\"min_lr_rate\": 0.5}}",
    "\"scheduler\": {\"type\": \"warmup_stable_decay\", \"params\": {\"num_training_steps\": 90, "
    "\"num_decay_steps\": 9}}",
    "\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"nvme\","
    " \"nvme_path\": \"/x\"}, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": "
    "\"/x\"}}",
};

/* Values of which one at least is not the one in force; of a text, its choices are tried too. */
static const char *const VALUES[] = {"false",
                                     "true",
                                     "0",
                                     "1",
                                     "3",
                                     "0.25",
                                     "8192",
                                     "[0.5, 0.7]",
                                     "\"/y\"",
                                     "\"Adam\"",
                                     "\"any\"",
                                     "\"auto\"",
                                     "[{\"name\": \"a\"}]"};

/* The settings of a file after the program set a key of it. 0: it may not be set so. */
static int settings_get(const char *members, const char *path, const char *value,
                        sherdi_settings *out)
{
    sherd_config *config = completed(members);
    char          key[128];
    int           is_set;

    (void)snprintf(key, sizeof(key), "!%s", path);
    is_set = (value == NULL || sherd_config_set(config, key, value) == SHERD_OK) &&
             sherdi_config_resolve(config, 2, out) == SHERD_OK;
    sherd_config_destroy(config);
    return is_set;
}

/* Whether `value` makes other settings in some of the files; *was_set_out: whether it was allowed
 * in any. */
static int value_counts(const char *path, const char *value, int *was_set_out)
{
    sherdi_settings before, after;

    for (size_t i = 0; i < COUNT_OF(FILES); i++) {
        CHECK(settings_get(FILES[i], path, NULL, &before));
        if (settings_get(FILES[i], path, value, &after)) {
            *was_set_out = 1;
            if (memcmp(&before, &after, sizeof(before)) != 0) {
                return 1;
            }
        }
    }
    return 0;
}

static int key_counts(const sherdi_config_key *key, int *was_set_out)
{
    const char *choices = key->range.choices;
    char        value[64];
    size_t      bytes;
    int         counts = 0;

    *was_set_out = 0;
    for (size_t i = 0; i < COUNT_OF(VALUES) && !counts; i++) {
        counts = value_counts(key->path, VALUES[i], was_set_out);
    }
    for (; choices != NULL && *choices != '\0' && !counts;
         choices += bytes + (choices[bytes] == '|')) {
        bytes = strcspn(choices, "|");
        (void)snprintf(value, sizeof(value), "\"%.*s\"", (int)bytes, choices);
        counts = value_counts(key->path, value, was_set_out);
    }
    return counts;
}

/* The two that say how a file is read, and so whether; param_dtype only says again what fp16 and
 * bf16 say, and adam_w_mode is about one type. */
static int is_tested_alone(int id)
{
    return id == SHERDI_CONFIG_STRICT || id == SHERDI_CONFIG_LENIENT ||
           id == SHERDI_CONFIG_PARAM_DTYPE || id == SHERDI_CONFIG_ADAM_W_MODE;
}

static void config_honoured_keys_count_and_others_do_not(void)
{
    int num_honoured = 0;

    for (int id = 0; id < SHERDI_CONFIG_IDS; id++) {
        const sherdi_config_key *key         = &sherdi_config_table[id];
        int                      is_honoured = key->use == SHERDI_USE_HONOURED;
        int                      was_set;

        if (key->type <= SHERDI_TYPE_OPAQUE || key->use == SHERDI_USE_REFUSED ||
            is_tested_alone(id)) {
            continue;
        }
        if (key_counts(key, &was_set) != is_honoured) {
            test_fail(__FILE__, __LINE__, "%s is %s, but another value of it makes %s settings",
                      key->path, is_honoured ? "honoured" : "without effect",
                      is_honoured ? "no other" : "other");
        }
        CHECK(was_set);
        num_honoured += is_honoured;
    }
    CHECK(num_honoured > 60);
}

static void config_adam_w_mode_counts(void)
{
    sherd_config *config = completed("");
    const void   *decoupled;

    CHECK_OK(sherd_config_set(config, "!optimizer.type", "\"Adam\""));
    decoupled = resolved(config, 1).update.optimizer;
    CHECK_OK(sherd_config_set(config, "optimizer.params.adam_w_mode", "false"));
    CHECK(resolved(config, 1).update.optimizer != decoupled);
    sherd_config_destroy(config);
}

static void config_param_dtype_counts(void)
{
    sherdi_settings settings;

    CHECK(settings_get(FILES[1], "data_types.param_dtype", "\"fp16\"", &settings));
    CHECK(!settings_get(FILES[1], "data_types.param_dtype", "\"bf16\"", &settings));
}

static void config_strict_and_lenient_count(void)
{
    sherd_config *config = completed("\"flops_profiler\": {\"enabled\": true}");

    CHECK_STATUS(SHERD_E_INVAL, sherd_config_set(config, "optimizer.params.nonsense", "1"));
    CHECK_OK(sherd_config_set(config, "lenient", "true"));
    CHECK_OK(sherd_config_set(config, "optimizer.params.nonsense", "1"));
    CHECK_STATUS(SHERD_E_INVAL, sherd_config_set(config, "strict", "true"));
    sherd_config_destroy(config);
}

static const test_case CASES[] = {
    CASE(config_honoured_keys_count_and_others_do_not),
    CASE(config_adam_w_mode_counts),
    CASE(config_param_dtype_counts),
    CASE(config_strict_and_lenient_count),
};

RUN_MAIN(CASES)

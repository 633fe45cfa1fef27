/* Real configuration files, from a folder that is given: which of them load, and what they resolve
 * to. The folder has MANIFEST.tsv (a row for each file; the column "policy" is clean, warn, reject,
 * or empty for a file that is not JSON) and ORACLE.json (for each file, what DeepSpeed resolves it
 * to after "auto" is filled in). The case is skipped without a folder. */
#include "engine/config/config_impl.h"
#include "engine/optimizers/optimizer.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

enum { LINE_BYTES = 4096, COLUMN_BYTES = 512 };

static const char *folder;

/* ---- files ---- */

static char *read_whole(const char *name, size_t *bytes_out)
{
    char  path[LINE_BYTES];
    FILE *file;
    char *text;
    long  bytes;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    file = fopen(path, "rb");
    if (file == NULL) {
        test_skip("no %s", path);
    }
    CHECK(fseek(file, 0, SEEK_END) == 0);
    bytes = ftell(file);
    rewind(file);
    text = calloc(1, (size_t)bytes + 1);
    CHECK(text != NULL && fread(text, 1, (size_t)bytes, file) == (size_t)bytes);
    (void)fclose(file);
    *bytes_out = (size_t)bytes;
    return text;
}

/* Copies column `index` of a tab-separated line. */
static void column_of(const char *line, size_t index, char out[COLUMN_BYTES])
{
    for (; index > 0; index--) {
        line = strchr(line, '\t');
        CHECK(line != NULL);
        line++;
    }
    CHECK(line != NULL);
    (void)snprintf(out, COLUMN_BYTES, "%.*s", (int)strcspn(line, "\t\r\n"), line);
}

static size_t column_named(const char *header, const char *name)
{
    char column[COLUMN_BYTES];

    for (size_t i = 0;; i++) {
        column_of(header, i, column);
        if (strcmp(column, name) == 0) {
            return i;
        }
    }
}

/* ---- values ---- */

/* Where the oracle has the value of a key: in a block, or at the top level if `block` is NULL. */
static const struct {
    const char *path, *block, *name;
} COMPARED[] = {
    {"train_batch_size", NULL, "train_batch_size"},
    {"train_micro_batch_size_per_gpu", NULL, "train_micro_batch_size_per_gpu"},
    {"gradient_accumulation_steps", NULL, "gradient_accumulation_steps"},
    {"gradient_clipping", NULL, "gradient_clipping"},
    {"steps_per_print", NULL, "steps_per_print"},
    {"fp16.enabled", "fp16", "enabled"},
    {"fp16.loss_scale", "fp16", "loss_scale"},
    {"fp16.initial_scale_power", "fp16", "initial_scale_power"},
    {"fp16.loss_scale_window", "fp16", "loss_scale_window"},
    {"fp16.hysteresis", "fp16", "hysteresis"},
    {"fp16.consecutive_hysteresis", "fp16", "consecutive_hysteresis"},
    {"fp16.min_loss_scale", "fp16", "min_loss_scale"},
    {"bf16.enabled", "bf16", "enabled"},
    {"bf16.check_grad_overflow", "bf16", "check_grad_overflow"},
    {"zero_optimization.stage", "zero", "stage"},
    {"zero_optimization.overlap_comm", "zero", "overlap_comm"},
    {"zero_optimization.allgather_bucket_size", "zero", "allgather_bucket_size"},
    {"zero_optimization.sub_group_size", "zero", "sub_group_size"},
    {"zero_optimization.stage3_prefetch_bucket_size", "zero", "prefetch_bucket_size"},
    {"zero_optimization.stage3_param_persistence_threshold", "zero", "param_persistence_threshold"},
    {"zero_optimization.stage3_model_persistence_threshold", "zero", "model_persistence_threshold"},
    {"zero_optimization.stage3_max_live_parameters", "zero", "max_live_parameters"},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", "zero",
     "gather_16bit_weights_on_model_save"},
    {"zero_optimization.contiguous_gradients", "zero", "contiguous_gradients"},
    {"zero_optimization.reduce_scatter", "zero", "reduce_scatter"},
    {"zero_optimization.round_robin_gradients", "zero", "round_robin_gradients"},
    {"zero_optimization.offload_optimizer.device", "offload_optimizer", "device"},
    {"zero_optimization.offload_optimizer.pin_memory", "offload_optimizer", "pin_memory"},
    {"zero_optimization.offload_optimizer.buffer_count", "offload_optimizer", "buffer_count"},
    {"zero_optimization.offload_optimizer.nvme_path", "offload_optimizer", "nvme_path"},
    {"zero_optimization.offload_optimizer.pipeline_read", "offload_optimizer", "pipeline_read"},
    {"zero_optimization.offload_optimizer.pipeline_write", "offload_optimizer", "pipeline_write"},
    {"zero_optimization.offload_optimizer.fast_init", "offload_optimizer", "fast_init"},
    {"zero_optimization.offload_optimizer.ratio", "offload_optimizer", "ratio"},
    {"zero_optimization.offload_param.device", "offload_param", "device"},
    {"zero_optimization.offload_param.pin_memory", "offload_param", "pin_memory"},
    {"zero_optimization.offload_param.buffer_count", "offload_param", "buffer_count"},
    {"zero_optimization.offload_param.buffer_size", "offload_param", "buffer_size"},
    {"zero_optimization.offload_param.nvme_path", "offload_param", "nvme_path"},
    {"zero_optimization.offload_param.max_in_cpu", "offload_param", "max_in_cpu"},
    {"aio.block_size", "aio", "block_size"},
    {"aio.queue_depth", "aio", "queue_depth"},
    {"aio.intra_op_parallelism", "aio", "intra_op_parallelism"},
    {"aio.single_submit", "aio", "single_submit"},
    {"aio.overlap_events", "aio", "overlap_events"},
};

/* Values for what a file leaves open, the same as those of the trainer that the oracle imitates. */
static const struct {
    sherdi_config_id id;
    const char      *value;
} FILLED[] = {
    {SHERDI_CONFIG_ACCUMULATION, "1"},
    {SHERDI_CONFIG_LR, "1e-4"},
    {SHERDI_CONFIG_TOTAL_STEPS, "1000"},
};

static void fill_auto(sherd_config *config)
{
    int has_fp16;

    for (size_t i = 0; i < COUNT_OF(FILLED); i++) {
        if (config->entries[FILLED[i].id].is_auto) {
            CHECK_OK(
                sherd_config_set(config, sherdi_config_table[FILLED[i].id].path, FILLED[i].value));
        }
    }
    if (!sherdi_config_is_given(config, SHERDI_CONFIG_TRAIN_BATCH) &&
        !sherdi_config_is_given(config, SHERDI_CONFIG_MICRO_BATCH)) {
        CHECK_OK(sherd_config_set(config, "train_micro_batch_size_per_gpu", "1"));
    }
    has_fp16 = sherdi_config_integer(config, SHERDI_CONFIG_FP16_ENABLED) != 0;
    if (config->entries[SHERDI_CONFIG_BF16_ENABLED].is_auto) {
        CHECK_OK(sherd_config_set(config, "bf16.enabled", has_fp16 ? "false" : "true"));
    }
    CHECK_OK(sherd_config_set(config, "hidden_size", "4096"));
    if (!sherdi_config_is_given(config, SHERDI_CONFIG_OPTIMIZER_TYPE)) {
        CHECK_OK(sherd_config_set(config, "optimizer.type", "\"AdamW\""));
    }
}

static int value_agrees(const sherdi_config_key *key, const sherdi_config_value *ours,
                        const sherdi_json_node *theirs)
{
    int64_t integer;
    size_t  choice;

    switch (theirs->kind) {
    case SHERDI_JSON_BOOL:
        return ours->integer == theirs->is_true;
    case SHERDI_JSON_NUMBER:
        if (key->type == SHERDI_TYPE_REAL) {
            return ours->real == theirs->number;
        }
        (void)sherdi_json_integer(theirs, &integer);
        return ours->integer == integer;
    case SHERDI_JSON_STRING:
        if (key->type == SHERDI_TYPE_FOLDERS) {
            return ours->text != NULL && strcmp(ours->text, theirs->string) == 0;
        }
        if (key->range.choices == NULL) {
            return 1; /* an "auto" that was not filled */
        }
        return sherdi_text_choice(key->range.choices, theirs->string, 0, &choice) &&
               ours->integer == (int64_t)choice;
    case SHERDI_JSON_NULL:
    case SHERDI_JSON_ARRAY:
    case SHERDI_JSON_OBJECT:
        break;
    }
    return 1;
}

/* Whether the value differs from DeepSpeed's because the key has another meaning here on
 * purpose. */
static int is_other_on_purpose(const sherd_config *config, sherdi_config_id id)
{
    switch (id) {
    case SHERDI_CONFIG_SUB_GROUP: /* 0 means the default here */
        return config->entries[id].value.integer == 0;
    case SHERDI_CONFIG_GRADIENT_CLIPPING: /* here max_grad_norm replaces it */
        return sherdi_config_is_given(config, SHERDI_CONFIG_MAX_GRAD_NORM);
    case SHERDI_CONFIG_STATE_PIPELINE_READ: /* true by default here, which gives the same bits */
    case SHERDI_CONFIG_STATE_PIPELINE_WRITE:
        return !sherdi_config_is_given(config, id);
    default:
        return 0;
    }
}

/* Compares the values of one file, and returns their number. */
static size_t compare_file(const char *name, sherd_config *config, const sherdi_json_node *oracle)
{
    const sherdi_json_node *theirs = sherdi_json_find(oracle, "resolved");
    const sherdi_json_node *world  = theirs == NULL ? NULL : sherdi_json_find(theirs, "world_size");
    int                     world_size;
    size_t                  count = 0;
    sherdi_settings         settings;

    if (world == NULL || world->kind != SHERDI_JSON_NUMBER) {
        return 0;
    }
    world_size = (int)world->number;
    fill_auto(config);
    if (sherdi_config_resolve(config, world_size, &settings) != SHERD_OK) {
        test_fail(__FILE__, __LINE__, "%s does not resolve: %s", name, sherd_last_error());
    }
    for (size_t i = 0; i < COUNT_OF(COMPARED); i++) {
        const sherdi_json_node *block =
            COMPARED[i].block == NULL ? theirs : sherdi_json_find(theirs, COMPARED[i].block);
        const sherdi_json_node *value =
            block == NULL ? NULL : sherdi_json_find(block, COMPARED[i].name);
        sherdi_config_id     id = sherdi_config_find(COMPARED[i].path);
        sherdi_config_effect ours;

        if (value == NULL || is_other_on_purpose(config, id)) {
            continue;
        }
        sherdi_config_effective(config, world_size, id, &ours);
        if (!value_agrees(&sherdi_config_table[id], &ours.value, value)) {
            test_fail(__FILE__, __LINE__, "%s: %s is %lld or %g, not %.*s (%s)", name,
                      COMPARED[i].path, (long long)ours.value.integer, ours.value.real,
                      (int)value->lexeme_bytes, value->lexeme, ours.origin);
        }
        count++;
    }
    return count;
}

/* ---- the folder ---- */

typedef struct tally {
    size_t files, loaded, refused, not_json, warned, resolved, values;
} tally;

static void check_file(const char *name, const char *policy, const sherdi_json_node *oracle,
                       tally *counts)
{
    char          path[LINE_BYTES];
    sherd_config *config      = NULL;
    int           must_load   = strcmp(policy, "clean") == 0 || strcmp(policy, "warn") == 0;
    int           is_not_json = policy[0] == '\0';
    size_t        values;
    sherd_status  status;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    status = sherd_config_load(path, &config);
    counts->files++;
    /* the folder's list is older than this optimizer */
    must_load |=
        status == SHERD_OK &&
        sherdi_optimizer_at((size_t)sherdi_config_integer(config, SHERDI_CONFIG_OPTIMIZER_TYPE)) ==
            &sherdi_optimizer_lamb;
    if (must_load != (status == SHERD_OK)) {
        test_fail(__FILE__, __LINE__, "%s is %s, but loading it gives %s: %s", name,
                  is_not_json ? "not JSON" : policy, sherd_status_name(status), sherd_last_error());
    }
    if (status != SHERD_OK) {
        CHECK_STATUS(is_not_json ? SHERD_E_INVAL : SHERD_E_NOTSUP, status);
        CHECK_ERROR_SAYS(name);
        counts->refused += !is_not_json;
        counts->not_json += is_not_json;
        return;
    }
    counts->loaded++;
    counts->warned += sherd_config_warning_count(config) > 0;
    values = oracle == NULL ? 0 : compare_file(name, config, oracle);
    counts->resolved += values > 0;
    counts->values += values;
    sherd_config_destroy(config);
}

static void ds_configs_load_and_resolve_as_expected(void)
{
    char         name[COLUMN_BYTES], policy[COLUMN_BYTES];
    tally        counts = {0};
    size_t       bytes, policy_column;
    char        *manifest, *oracle_text;
    sherdi_mem   account;
    sherdi_json *oracle;
    const char  *line;
    char         oracle_name[] = "ORACLE.json";

    if (folder == NULL) {
        test_skip("no folder of configuration files is given");
    }
    manifest    = read_whole("MANIFEST.tsv", &bytes);
    oracle_text = read_whole(oracle_name, &bytes);
    sherdi_mem_init(&account);
    CHECK_OK(sherdi_json_parse(&account, oracle_name, oracle_text, bytes, &oracle));
    policy_column = column_named(manifest, "policy");
    for (line = strchr(manifest, '\n'); line != NULL && line[1] != '\0';
         line = strchr(line + 1, '\n')) {
        const sherdi_json_node *files = sherdi_json_find(sherdi_json_root(oracle), "files");

        column_of(line + 1, 0, name);
        column_of(line + 1, policy_column, policy);
        check_file(name, policy, sherdi_json_find(files, name), &counts);
    }
    (void)printf("  %zu files: %zu load (%zu with warnings), %zu refused, %zu not JSON, all as "
                 "expected; %zu resolve, %zu values equal\n",
                 counts.files, counts.loaded, counts.warned, counts.refused, counts.not_json,
                 counts.resolved, counts.values);
    CHECK(counts.loaded > 0 && counts.values > 0);
    sherdi_json_destroy(oracle);
    CHECK_INT(0, sherdi_mem_held_all(&account));
    free(oracle_text);
    free(manifest);
}

static const test_case CASES[] = {
    CASE(ds_configs_load_and_resolve_as_expected),
};

/* The one argument is the folder, not a filter of cases. */
int main(int argc, char **argv)
{
    folder = argc > 1 ? argv[1] : NULL;
    return test_main(1, argv, CASES, COUNT_OF(CASES));
}

/* The program's side of a configuration: its values, strict and lenient mode, the dump and the
 * reference page, files, and that nothing leaks. */
#include "tests/engine/config_helpers.h"
#include "sherd_tools.h"

#include <stdlib.h>

/* ---- the program's values ---- */

static void config_program_may_not_contradict_the_file(void)
{
    sherd_config *config = completed("\n\"gradient_clipping\": 0.5");

    CHECK_STATUS(SHERD_E_INVAL, sherd_config_set(config, "gradient_clipping", "1.0"));
    CHECK_ERROR_SAYS("gradient_clipping is 0.5 at configuration:2:1, and the program gives 1.0");
    CHECK_ERROR_SAYS("set \"!gradient_clipping\" to override the file");
    CHECK_CLOSE(0.5, resolved(config, 1).update.gradient_clipping, 0);
    CHECK_OK(sherd_config_set(config, "gradient_clipping", "5e-1"));
    CHECK_OK(sherd_config_set(config, "gradient_clipping", "\"auto\""));
    CHECK_CLOSE(0.5, resolved(config, 1).update.gradient_clipping, 0);
    CHECK_OK(sherd_config_set(config, "!gradient_clipping", "1.0"));
    CHECK_CLOSE(1.0, resolved(config, 1).update.gradient_clipping, 0);
    CHECK_OK(sherd_config_set(config, "gradient_clipping", "2.0")); /* its own may change */
    CHECK_CLOSE(2.0, resolved(config, 1).update.gradient_clipping, 0);
    sherd_config_destroy(config);
}

static void config_program_fills_what_is_absent(void)
{
    sherd_config *config = parsed("{}");

    CHECK_OK(sherd_config_set(config, "train_micro_batch_size_per_gpu", "3"));
    CHECK_OK(sherd_config_set(config, "optimizer.type", "\"adamw\""));
    CHECK_OK(sherd_config_set(config, "optimizer.params.lr", "1"));
    CHECK_OK(sherd_config_set(config, "bfloat16.enabled", "true"));
    CHECK_OK(sherd_config_set(config, "zero_optimization.prefetch_bucket_size", "77"));
    CHECK_INT(6, resolved(config, 2).batch.train_batch_size);
    CHECK_INT(SHERD_BF16, resolved(config, 2).numerics.compute_dtype);
    CHECK_INT(77, resolved(config, 2).sharding.prefetch_bucket_size);
    sherd_config_destroy(config);
}

static void config_has_tells_what_is_left_to_the_program(void)
{
    sherd_config *config =
        parsed("{\"train_micro_batch_size_per_gpu\": \"auto\", \"optimizer\": {\"type\":"
               " \"AdamW\", \"params\": {\"lr\": \"auto\", \"eps\": \"auto\"}}}");

    CHECK_INT(1, sherd_config_has(config, "optimizer.type"));
    CHECK_INT(0, sherd_config_has(config, "optimizer.params.lr"));
    CHECK_INT(0, sherd_config_has(config, "train_micro_batch_size_per_gpu"));
    CHECK_INT(1, sherd_config_has(config, "gradient_clipping")); /* by default */
    CHECK_INT(0,
              sherd_config_has(config, "optimizer.params.eps")); /* "auto", whatever the default */
    CHECK_INT(1, sherd_config_has(config, "zero_optimization.prefetch_bucket_size")); /* an alias */
    CHECK_INT(0, sherd_config_has(config, "no.such.key"));
    CHECK_INT(0, sherd_config_has(NULL, "optimizer.type"));
    CHECK_OK(sherd_config_set(config, "optimizer.params.lr", "1e-3"));
    CHECK_INT(1, sherd_config_has(config, "optimizer.params.lr"));
    sherd_config_destroy(config);
}

static void config_program_gets_errors_too(void)
{
    static const struct {
        const char  *key, *value;
        sherd_status status;
        const char  *sentence;
    } ROWS[] = {
        {"optimizer.params.lr", "fast", SHERD_E_INVAL,
         "optimizer.params.lr: fast is not JSON; text stands in quotes: \"fast\""},
        {"optimizer.params.lr", "\"fast\"", SHERD_E_INVAL,
         "set by the program: optimizer.params.lr"},
        {"optimizer.params.wieght_decay", "1", SHERD_E_INVAL,
         "did you mean optimizer.params.weight_decay?"},
        {"nothing", "1", SHERD_E_INVAL, "nothing is not a known key"},
        {"", "1", SHERD_E_INVAL, "is not a known key"},
        {"zero_optimization", "{}", SHERD_E_INVAL, "is a block; set its keys one by one"},
        {"bfloat16", "{}", SHERD_E_INVAL, "is a block"},
        {"tensorboard", "{}", SHERD_E_INVAL, "is a block"},
        {"zero_optimization.stage", "7", SHERD_E_INVAL, "must be from 0 to 3"},
        {"optimizer.params.amsgrad", "true", SHERD_E_NOTSUP, "AMSGrad is another optimizer"},
    };
    sherd_config *config = parsed("{}");

    for (size_t i = 0; i < COUNT_OF(ROWS); i++) {
        CHECK_STATUS(ROWS[i].status, sherd_config_set(config, ROWS[i].key, ROWS[i].value));
        CHECK_ERROR_SAYS(ROWS[i].sentence);
    }
    CHECK_STATUS(SHERD_E_INVAL, sherd_config_set(NULL, "a", "1"));
    CHECK_STATUS(SHERD_E_INVAL, sherd_config_set(config, NULL, "1"));
    CHECK_STATUS(SHERD_E_INVAL, sherd_config_set(config, "a", NULL));
    sherd_config_destroy(config);
}

static void config_contradiction_by_the_program_shows_when_resolving(void)
{
    sherd_config   *config = completed("\"fp16\": {\"enabled\": true}");
    sherdi_settings settings;

    CHECK_OK(sherd_config_set(config, "bf16.enabled", "true"));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_config_resolve(config, 1, &settings));
    CHECK_ERROR_SAYS("bf16.enabled (the program) are both true");
    CHECK_OK(sherd_config_set(config, "!fp16.enabled", "false"));
    CHECK_INT(SHERD_BF16, resolved(config, 1).numerics.compute_dtype);
    sherd_config_destroy(config);
}

/* ---- strict and lenient ---- */

static void config_strict_makes_warnings_errors(void)
{
    sherd_config *config = completed("");

    check_load_refused(SHERD_E_INVAL, "{\"bp16\": {}, \"sherd\": {\"strict\": true}}",
                       "strict: configuration:1:2: bp16 is not a known key");
    CHECK_OK(sherd_config_set(config, "strict", "true"));
    CHECK_STATUS(SHERD_E_INVAL, sherd_config_set(config, "dump_state", "true"));
    CHECK_ERROR_SAYS("strict: set by the program: dump_state is ignored");
    sherd_config_destroy(config);

    config = completed("\"bp16\": {}");
    CHECK_STATUS(SHERD_E_INVAL, sherd_config_set(config, "strict", "true"));
    CHECK_ERROR_SAYS("strict: configuration:1:");
    sherd_config_destroy(config);
}

static void config_lenient_lets_unknown_keys_of_closed_blocks_warn(void)
{
    sherd_config *config = completed("");

    check_warns("\"zero_optimization\": {\"stage3_thing\": 1}, \"sherd\": {\"lenient\": true}",
                "zero_optimization.stage3_thing is not a known key and is ignored");
    CHECK_OK(sherd_config_set(config, "lenient", "true"));
    CHECK_OK(sherd_config_set(config, "zero_optimization.stage3_thing", "1"));
    CHECK_INT(1, sherd_config_warning_count(config));
    sherd_config_destroy(config);
}

/* ---- log ---- */

typedef struct heard {
    int  warnings, infos;
    char last_info[SHERDI_ERROR_BYTES];
} heard;

static void hear(void *ctx, sherd_log_level level, const char *line)
{
    heard *into = ctx;

    into->warnings += level == SHERD_LOG_WARN;
    into->infos += level == SHERD_LOG_INFO;
    if (level == SHERD_LOG_INFO) {
        (void)snprintf(into->last_info, sizeof(into->last_info), "%s", line);
    }
}

static void config_log_hears_warnings_and_what_makes_no_difference(void)
{
    heard         got = {0};
    sherd_config *config;

    sherd_log_set(hear, &got, SHERD_LOG_INFO);
    config = completed("\"dump_state\": true, \"wandb\": {\"enabled\": false},"
                       " \"prescale_gradients\": true");
    sherd_log_set(NULL, NULL, SHERD_LOG_INFO);
    CHECK_INT(1, got.warnings);
    CHECK_INT(2, got.infos);
    test_check_contains(__FILE__, __LINE__, got.last_info,
                        "prescale_gradients makes no difference: sums are taken in fp32");
    sherd_config_destroy(config);
}

/* ---- text ---- */

typedef struct page {
    char  *text;
    size_t bytes, capacity;
    size_t writes_left; /* the write after so many fails */
} page;

static sherd_status page_write(void *ctx, const char *text, size_t len_bytes)
{
    page *into = ctx;

    if (into->writes_left-- == 0) {
        return SHERD_E_IO;
    }
    while (into->bytes + len_bytes + 1 > into->capacity) {
        into->capacity = into->capacity * 2 + 4096;
        into->text     = realloc(into->text, into->capacity);
        CHECK(into->text != NULL);
    }
    memcpy(into->text + into->bytes, text, len_bytes);
    into->bytes += len_bytes;
    into->text[into->bytes] = '\0';
    return SHERD_OK;
}

static page empty_page(void)
{
    return (page){.writes_left = SIZE_MAX};
}

static void check_dumped(const page *dump, const char *line)
{
    test_check_contains(__FILE__, __LINE__, dump->text, line);
}

static void config_dump_is_json_and_names_origins(void)
{
    sherd_config        *config = completed("\n\"zero_optimization\": {\"stage\": 3,"
                                                   " \"stage3_param_persistence_threshold\": \"auto\"}, "
                                                   "\"data_types\": {\"buffer_dtype\": \"a\\\"b\"}");
    page                 dump   = empty_page();
    sherdi_mem           account;
    sherdi_json         *document;
    sherdi_config_effect batch;

    CHECK_OK(sherd_config_set(config, "optimizer.params.betas", "[0.5, 0.25]"));
    CHECK_OK(sherd_config_set(config, "hidden_size", "16"));
    CHECK_OK(sherd_config_dump(config, page_write, &dump));
    check_dumped(
        &dump, "\"optimizer.params.betas\": {\"value\": [0.5, 0.25], \"origin\": \"the program\"}");
    check_dumped(&dump,
                 "\"zero_optimization.stage\": {\"value\": 3, \"origin\": \"configuration:2:23\"}");
    check_dumped(&dump, "\"optimizer.params.lr\": {\"value\": 0.0001,");
    check_dumped(&dump,
                 "\"zero_optimization.stage3_param_persistence_threshold\": {\"value\": 160, "
                 "\"origin\": \"auto: from hidden_size 16\"}");
    check_dumped(&dump,
                 "\"zero_optimization.overlap_comm\": {\"value\": true, \"origin\": \"derived");
    check_dumped(&dump, "\"gradient_clipping\": {\"value\": 1, \"origin\": \"default\"}");
    check_dumped(&dump, "\"train_batch_size\": {\"value\": null, \"origin\": \"derived once");
    check_dumped(&dump, "\"value\": \"a\\\"b\", \"origin\": \"configuration:2:");
    sherdi_mem_init(&account);
    CHECK_OK(sherdi_json_parse(&account, "dump", dump.text, dump.bytes, &document));
    sherdi_json_destroy(document);

    sherdi_config_effective(config, 4, SHERDI_CONFIG_TRAIN_BATCH, &batch);
    CHECK_INT(8, batch.value.integer);
    CHECK(strcmp(batch.origin, "derived for 4 ranks") == 0);
    free(dump.text);
    sherd_config_destroy(config);
}

static void config_writers_may_stop(void)
{
    sherd_config *config = completed("");
    page          dump   = empty_page();
    sherd_status  status = SHERD_E_NOMEM;

    dump.writes_left = 0;
    CHECK_STATUS(SHERD_E_IO, sherd_config_dump(config, page_write, &dump));
    dump.writes_left = 0;
    CHECK_STATUS(SHERD_E_IO, sherd_config_reference(page_write, &dump));
    CHECK_INT(0, dump.bytes);
    dump.writes_left = SIZE_MAX;
    for (size_t n = 1; status != SHERD_OK; n++) {
        (void)sherdi_mem_fail_nth(n);
        status = sherd_config_dump(config, page_write, &dump);
        (void)sherdi_mem_fail_nth(0);
        CHECK(status == SHERD_OK || (status == SHERD_E_NOMEM && dump.bytes == 0 && n < 50));
    }
    CHECK_STATUS(SHERD_E_INVAL, sherd_config_dump(NULL, page_write, &dump));
    CHECK_STATUS(SHERD_E_INVAL, sherd_config_dump(config, NULL, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_config_reference(NULL, NULL));
    free(dump.text);
    sherd_config_destroy(config);
}

static void config_reference_page_is_the_one_in_docs(void)
{
    page   want = empty_page();
    char  *have;
    long   bytes;
    FILE  *file = fopen(TEST_REFERENCE_PAGE, "rb");
    size_t same = 0;

    CHECK_OK(sherd_config_reference(page_write, &want));
    CHECK(file != NULL);
    CHECK(fseek(file, 0, SEEK_END) == 0);
    bytes = ftell(file);
    rewind(file);
    have = calloc(1, (size_t)bytes + 1);
    CHECK(have != NULL && fread(have, 1, (size_t)bytes, file) == (size_t)bytes);
    (void)fclose(file);
    while (have[same] != '\0' && have[same] == want.text[same]) {
        same++;
    }
    if (have[same] != want.text[same]) {
        test_fail(__FILE__, __LINE__,
                  "docs/configuration.md differs from the table at byte %zu: write it again with "
                  "sherd config --reference > docs/configuration.md",
                  same);
    }
    free(have);
    free(want.text);
}

/* Every default that the page shows is the one that is used, and every rule has a reader. */
static void config_table_is_well_formed(void)
{
    for (int id = 0; id < SHERDI_CONFIG_IDS; id++) {
        const sherdi_config_key *key = &sherdi_config_table[id];
        sherdi_config_reader     reader;
        sherd_config            *config;
        sherdi_config_value      value = {0};
        sherdi_mem               account;
        sherdi_json             *document;
        int                      is_auto;

        CHECK_INT(id, sherdi_config_find(key->path));
        CHECK(key->meaning[0] != '\0');
        CHECK(sherdi_config_alias_find(key->path) == NULL);
        if (key->fallback == NULL || key->is_rule) {
            continue;
        }
        config = parsed("{}");
        reader = (sherdi_config_reader){.config = config, .origin = SHERDI_ORIGIN_PROGRAM};
        sherdi_mem_init(&account);
        CHECK_OK(sherdi_json_parse(&account, key->path, key->fallback, strlen(key->fallback),
                                   &document));
        CHECK_OK(sherdi_config_value_read(
            &(sherdi_config_site){&reader, key, key->path, sherdi_json_root(document)}, &value,
            &is_auto));
        if (key->type != SHERDI_TYPE_TEXT || key->range.choices != NULL) {
            CHECK(sherdi_config_same(key, &key->standard, &value));
        }
        sherdi_free(value.text);
        sherdi_json_destroy(document);
        sherd_config_destroy(config);
    }
}

/* ---- files and memory ---- */

static void write_file(char path[256], const char *name, const char *text)
{
    FILE *file;

    (void)snprintf(path, 256, "%s/%s", test_scratch(), name);
    file = fopen(path, "wb");
    CHECK(file != NULL);
    CHECK(fwrite(text, 1, strlen(text), file) == strlen(text));
    CHECK(fclose(file) == 0);
}

static void config_file_errors_name_the_file(void)
{
    sherd_config *config = NULL;
    char          path[256];

    write_file(path, "ds.json", "{\r\n  \"zero_optimization\": { // why\r\n\t\"stage\": 9 } }");
    CHECK_STATUS(SHERD_E_INVAL, sherd_config_load(path, &config));
    CHECK_ERROR_SAYS("/ds.json:3:2: zero_optimization.stage is 9");
    CHECK_STATUS(SHERD_E_IO, sherd_config_load("/no/such/file.json", &config));
    CHECK_ERROR_SAYS("cannot open /no/such/file.json: No such file");
    CHECK_STATUS(SHERD_E_IO, sherd_config_load(test_scratch(), &config));
    CHECK_STATUS(SHERD_E_INVAL, sherd_config_load("/dev/zero", &config));
    CHECK_ERROR_SAYS("/dev/zero is no configuration");
    CHECK_STATUS(SHERD_E_INVAL, sherd_config_load(NULL, &config));
    CHECK_STATUS(SHERD_E_INVAL, sherd_config_parse("{}", 2, NULL));
    CHECK(config == NULL);
    write_file(path, "empty.json", "");
    CHECK_STATUS(SHERD_E_INVAL, sherd_config_load(path, &config));
    sherd_config_destroy(NULL);
}

/* Longer than one portion of reading. */
static void config_long_file_is_read_whole(void)
{
    sherd_config *config = NULL;
    char          path[256];
    char          text[20000];

    (void)snprintf(text, sizeof(text), "{\"train_batch_size\": 6, %19000s}",
                   "\"optimizer\": {\"type\": \"AdamW\"}");
    write_file(path, "long.json", text);
    CHECK_OK(sherd_config_load(path, &config));
    CHECK_INT(6, resolved(config, 1).batch.train_batch_size);
    sherd_config_destroy(config);
}

static void config_warnings_out_of_range_are_empty(void)
{
    sherd_config *config = completed("");

    CHECK(sherd_config_warning(config, 0)[0] == '\0');
    CHECK_INT(0, sherd_config_warning_count(NULL));
    CHECK(sherd_config_warning(NULL, 3)[0] == '\0');
    sherd_config_destroy(config);
}

/* Everything that allocates: text values, quoted numbers, warnings, other names. */
static const char FULL[] =
    "{\"train_batch_size\": \"8\", \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4,"
    " \"max_grad_norm\": 1}}, \"x\": 1, \"y\": 2, \"bfloat16\": {\"enabled\": true},"
    " \"zero_optimization\": {\"stage\": 2, \"cpu_offload\": false, \"offload_param\": "
    "{\"nvme_path\":"
    " [\"/x\", \"/z\"]}}, \"data_types\": {\"buffer_dtype\": \"fp32\"}}";

static void config_failed_allocations_leave_nothing(void)
{
    sherd_status  status = SHERD_E_NOMEM;
    sherd_config *config = NULL;
    char          path[256];
    size_t        n;

    write_file(path, "full.json", FULL);
    for (n = 1; status != SHERD_OK; n++) {
        (void)sherdi_mem_fail_nth(n);
        status = sherd_config_load(path, &config);
        (void)sherdi_mem_fail_nth(0);
        if (status != SHERD_OK) {
            CHECK_INT(SHERD_E_NOMEM, status);
            CHECK_ERROR_SAYS("no memory");
            CHECK(config == NULL);
        }
    }
    CHECK(n > 20);
    for (status = SHERD_E_NOMEM, n = 1; status != SHERD_OK; n++) {
        (void)sherdi_mem_fail_nth(n);
        status = sherd_config_set(config, "!zero_optimization.offload_param.nvme_path", "\"/y\"");
        (void)sherdi_mem_fail_nth(0);
        CHECK(status == SHERD_OK || status == SHERD_E_NOMEM);
    }
    sherd_config_destroy(config);
}

/* Cut and bent versions of a good file: any status, but never a crash or a leak. */
static void config_damaged_texts_are_survived(void)
{
    static const char BYTES[] = "{}[],:\"\\/#*x0-.e\n\xff\x80\x01";
    char              text[sizeof(FULL)];
    uint64_t          seed = 20;

    for (size_t i = 0; i < 4000; i++) {
        size_t        bytes  = sizeof(FULL) - 1;
        sherd_config *config = NULL;

        memcpy(text, FULL, sizeof(FULL));
        for (uint64_t edits = test_random(&seed) % 4; edits > 0; edits--) {
            text[test_random(&seed) % bytes] = BYTES[test_random(&seed) % (sizeof(BYTES) - 1)];
        }
        if (test_random(&seed) % 2 == 0) {
            bytes = test_random(&seed) % bytes;
        }
        if (sherd_config_parse(text, bytes, &config) == SHERD_OK) {
            sherdi_settings settings;

            (void)sherdi_config_resolve(config, 3, &settings);
            sherd_config_destroy(config);
        } else {
            CHECK(sherd_last_error()[0] != '\0');
        }
    }
}

static const test_case CASES[] = {
    CASE(config_program_may_not_contradict_the_file),
    CASE(config_program_fills_what_is_absent),
    CASE(config_has_tells_what_is_left_to_the_program),
    CASE(config_program_gets_errors_too),
    CASE(config_contradiction_by_the_program_shows_when_resolving),
    CASE(config_strict_makes_warnings_errors),
    CASE(config_lenient_lets_unknown_keys_of_closed_blocks_warn),
    CASE(config_log_hears_warnings_and_what_makes_no_difference),
    CASE(config_dump_is_json_and_names_origins),
    CASE(config_writers_may_stop),
    CASE(config_reference_page_is_the_one_in_docs),
    CASE(config_table_is_well_formed),
    CASE(config_file_errors_name_the_file),
    CASE(config_long_file_is_read_whole),
    CASE(config_warnings_out_of_range_are_empty),
    CASE(config_failed_allocations_leave_nothing),
    CASE(config_damaged_texts_are_survived),
};

RUN_MAIN(CASES)

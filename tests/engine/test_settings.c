/* Configurations that are made of sherd_settings, and files with the same values: both give the
 * engine the same, in every byte. */
#include "engine/config/compare.h"
#include "tests/engine/config_helpers.h"

#include <math.h>

static sherd_settings settings_given(void)
{
    sherd_settings settings;

    sherd_settings_init(&settings);
    settings.micro_batch_size = 2;
    return settings;
}

static sherdi_settings settings_resolved(const sherd_settings *given, int world_size)
{
    sherd_config   *config = NULL;
    sherdi_settings settings;

    CHECK_OK(sherd_config_from_settings(given, &config));
    settings = resolved(config, world_size);
    sherd_config_destroy(config);
    return settings;
}

/* Checks that both are equal, and names the first byte that is not. */
static void check_same(const sherd_settings *given, const char *json, int world_size)
{
    sherd_config        *config = parsed(json);
    sherdi_settings      want   = resolved(config, world_size);
    sherdi_settings      got    = settings_resolved(given, world_size);
    const unsigned char *a      = (const unsigned char *)&want;
    const unsigned char *b      = (const unsigned char *)&got;

    for (size_t i = 0; i < sizeof(want); i++) {
        if (a[i] != b[i]) {
            test_fail(__FILE__, __LINE__, "%s: byte %zu of sherdi_settings is %d, not %d", json, i,
                      b[i], a[i]);
        }
    }
    sherd_config_destroy(config);
}

#define FILE_OF(optimizer, members)                                                                \
    "{\"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": " optimizer "}" members "}"

static void settings_as_they_are_give_what_a_file_without_keys_gives(void)
{
    static const char *const NAMES[] = {"AdamW",   "Adam", "Lion", "SGD",
                                        "Adagrad", "Lamb", "Muon", "none"};
    sherd_settings           given   = settings_given();
    char                     text[TEXT_BYTES];

    check_same(&given, FILE_OF("\"AdamW\"", ""), 1);
    check_same(&given, FILE_OF("\"AdamW\"", ""), 3);
    for (size_t i = 0; i < COUNT_OF(NAMES); i++) {
        given.optimizer = NAMES[i];
        (void)snprintf(text, sizeof(text), FILE_OF("\"%s\"", ""), NAMES[i]);
        check_same(&given, text, 1);
    }
}

static void settings_of_a_plan_are_those_of_the_keys(void)
{
    sherd_settings given = settings_given();

    given.gradient_clipping           = 0.5;
    given.is_deterministic            = 1;
    given.steps_per_print             = 7;
    given.sub_group_size              = 4096;
    given.prefetch_bucket_size        = 11;
    given.persistence_threshold       = 12;
    given.model_persistence_threshold = 13;
    given.max_live_parameters         = 14;
    given.max_reuse_distance          = 15;
    for (given.stage = 0; given.stage <= 3; given.stage++) {
        char text[TEXT_BYTES];

        (void)snprintf(
            text, sizeof(text),
            FILE_OF(
                "\"AdamW\"",
                ", \"gradient_clipping\": 0.5, \"deterministic\": true, \"steps_per_print\": 7, "
                "\"zero_optimization\": {\"stage\": %d, \"sub_group_size\": 4096, "
                "\"stage3_prefetch_bucket_size\": 11, \"stage3_param_persistence_threshold\": "
                "12, \"stage3_model_persistence_threshold\": 13, "
                "\"stage3_max_live_parameters\": 14, \"stage3_max_reuse_distance\": 15}"),
            given.stage);
        check_same(&given, text, 1);
    }
    given              = settings_given();
    given.overlap_comm = 1;
    check_same(&given, FILE_OF("\"AdamW\"", ", \"zero_optimization\": {\"overlap_comm\": true}"),
               1);
}

static void settings_of_numbers_are_those_of_the_keys(void)
{
    sherd_settings given = settings_given();

    given.dtype        = SHERD_BF16;
    given.comm_dtype   = SHERD_F32;
    given.accum_dtype  = SHERD_BF16;
    given.lr           = 0.25;
    given.beta1        = 0.5;
    given.beta2        = 0.75;
    given.eps          = 0.125;
    given.weight_decay = 0.0625;
    check_same(&given,
               "{\"train_micro_batch_size_per_gpu\": 2, \"bf16\": {\"enabled\": true}, "
               "\"communication_data_type\": \"fp32\", \"data_types\": {\"grad_accum_dtype\": "
               "\"bf16\"}, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.25, "
               "\"betas\": [0.5, 0.75], \"eps\": 0.125, \"weight_decay\": 0.0625}}}",
               1);
    given                    = settings_given();
    given.dtype              = SHERD_F16;
    given.hysteresis         = 3;
    given.loss_scale_window  = 9;
    given.min_loss_scale     = 2;
    given.initial_loss_scale = 1024;
    check_same(
        &given,
        FILE_OF("\"AdamW\"",
                ", \"fp16\": {\"enabled\": true, \"hysteresis\": 3, \"loss_scale_window\": 9, "
                "\"min_loss_scale\": 2, \"initial_scale_power\": 10}"),
        1);
    given            = settings_given();
    given.dtype      = SHERD_F16;
    given.loss_scale = 64;
    check_same(&given, FILE_OF("\"AdamW\"", ", \"fp16\": {\"enabled\": true, \"loss_scale\": 64}"),
               1);
    given           = settings_given();
    given.optimizer = "SGD";
    given.beta1     = 0.5;
    check_same(&given,
               "{\"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": \"SGD\", "
               "\"params\": {\"momentum\": 0.5}}}",
               1);
    given                 = settings_given();
    given.optimizer       = "adam";
    given.bias_correction = 0;
    check_same(&given,
               "{\"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": \"Adam\", "
               "\"params\": {\"bias_correction\": false}}}",
               1);
}

static void settings_of_batches_are_solved_as_in_files(void)
{
    sherd_settings given = settings_given();
    sherd_config  *config;

    given.train_batch_size = 24;
    check_same(&given, FILE_OF("\"AdamW\"", ", \"train_batch_size\": 24"), 3);
    given.micro_batch_size = 0;
    given.accumulation     = 4;
    check_same(&given,
               "{\"train_batch_size\": 24, \"gradient_accumulation_steps\": 4, \"optimizer\": "
               "{\"type\": \"AdamW\"}}",
               3);
    given.micro_batch_size = 5;
    CHECK_OK(sherd_config_from_settings(&given, &config));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_config_resolve(config, 3, &(sherdi_settings){0}));
    CHECK_ERROR_SAYS("train_batch_size 24 is not micro_batch_size 5 x accumulation 4 x 3 ranks");
    sherd_config_destroy(config);
    given.train_batch_size = 1;
    given.micro_batch_size = given.accumulation = 0;
    CHECK_OK(sherd_config_from_settings(&given, &config));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_config_resolve(config, 3, &(sherdi_settings){0}));
    sherd_config_destroy(config);
}

/* Sets a field of a copy, and checks that it is refused by name. */
#define CHECK_REFUSED(status, field, value)                                                        \
    do {                                                                                           \
        sherd_settings wrong = settings_given();                                                   \
        sherd_config  *none  = NULL;                                                               \
        wrong.field          = value;                                                              \
        CHECK_STATUS(status, sherd_config_from_settings(&wrong, &none));                           \
        CHECK_ERROR_SAYS("sherd_settings");                                                        \
        CHECK_ERROR_SAYS(#field);                                                                  \
        CHECK(none == NULL);                                                                       \
    } while (0)

static void settings_out_of_range_are_refused_by_name(void)
{
    CHECK_REFUSED(SHERD_E_INVAL, micro_batch_size, 0);
    CHECK_REFUSED(SHERD_E_INVAL, micro_batch_size, -1);
    CHECK_REFUSED(SHERD_E_INVAL, accumulation, -1);
    CHECK_REFUSED(SHERD_E_INVAL, stage, 4);
    CHECK_REFUSED(SHERD_E_INVAL, dtype, 3);
    CHECK_REFUSED(SHERD_E_INVAL, comm_dtype, -2);
    CHECK_REFUSED(SHERD_E_INVAL, overlap_comm, 2);
    CHECK_REFUSED(SHERD_E_INVAL, is_deterministic, 5);
    CHECK_REFUSED(SHERD_E_INVAL, gradient_clipping, -1.0);
    CHECK_REFUSED(SHERD_E_INVAL, gradient_clipping, (double)NAN);
    CHECK_REFUSED(SHERD_E_INVAL, lr, -1.0);
    CHECK_REFUSED(SHERD_E_INVAL, beta1, 1.0);
    CHECK_REFUSED(SHERD_E_INVAL, beta2, -0.5);
    CHECK_REFUSED(SHERD_E_INVAL, eps, (double)INFINITY);
    CHECK_REFUSED(SHERD_E_INVAL, loss_scale_window, 0);
    CHECK_REFUSED(SHERD_E_NOTSUP, optimizer, "Abacus");
}

static sherd_status nobody_writes(void *ctx, const char *text, size_t len_bytes)
{
    (void)ctx, (void)text, (void)len_bytes;
    return SHERD_OK;
}

static void settings_have_no_keys(void)
{
    sherd_settings given  = settings_given();
    sherd_config  *config = NULL;

    CHECK_OK(sherd_config_from_settings(&given, &config));
    CHECK_STATUS(SHERD_E_STATE, sherd_config_set(config, "optimizer.params.lr", "1"));
    CHECK_ERROR_SAYS("sherd_config_set: the configuration was made of sherd_settings");
    CHECK_STATUS(SHERD_E_STATE, sherd_config_dump(config, nobody_writes, NULL));
    CHECK_INT(0, sherd_config_has(config, "optimizer.params.lr"));
    CHECK_INT(0, sherd_config_warning_count(config));
    sherd_config_destroy(config);
}

static void ranks_compare_settings_by_field(void)
{
    sherd_settings    given = settings_given();
    sherdi_settings   one   = settings_resolved(&given, 1);
    sherdi_settings   two;
    sherdi_named_bits a[SHERDI_SETTINGS_MOST], b[SHERDI_SETTINGS_MOST];
    size_t            count = sherdi_plain_settings(&one, a);
    size_t            odd   = 0;

    given.max_reuse_distance = 1;
    two                      = settings_resolved(&given, 1);
    CHECK_INT(count, sherdi_plain_settings(&two, b));
    for (size_t i = 0; i < count; i++) {
        if (a[i].bits != b[i].bits) {
            CHECK(strcmp(a[i].key, "max_reuse_distance") == 0);
            odd++;
        }
    }
    CHECK_INT(1, odd);
}

static const test_case CASES[] = {
    CASE(settings_as_they_are_give_what_a_file_without_keys_gives),
    CASE(settings_of_a_plan_are_those_of_the_keys),
    CASE(settings_of_numbers_are_those_of_the_keys),
    CASE(settings_of_batches_are_solved_as_in_files),
    CASE(settings_out_of_range_are_refused_by_name),
    CASE(settings_have_no_keys),
    CASE(ranks_compare_settings_by_field),
};

RUN_MAIN(CASES)

/* Files: what resolves to what, and what is refused or warned of with which sentence. The cases
 * named "head" are what DeepSpeed itself was seen to do with an input. */
#include "engine/optimizers/optimizer.h"
#include "tests/engine/config_helpers.h"

#include <limits.h>
#include <math.h>

/* ---- defaults ---- */

static void config_smallest_file_resolves_to_the_defaults(void)
{
    sherdi_settings got = settings_of("");

    CHECK_INT(2, got.batch.train_batch_size);
    CHECK_INT(2, got.batch.micro_batch_size);
    CHECK_INT(1, got.batch.accumulation);
    CHECK_INT(0, got.steps_per_print);
    CHECK_INT(SHERD_F32, got.numerics.compute_dtype);
    CHECK_INT(SHERD_F32, got.numerics.comm_dtype);
    CHECK_INT(SHERD_F32, got.numerics.accum_dtype);
    CHECK_INT(1, got.numerics.check_overflow);
    CHECK_INT(0, got.numerics.scaler.is_dynamic);
    CHECK_CLOSE(1, got.numerics.scaler.initial_scale, 0);
    CHECK(got.update.optimizer == &sherdi_optimizer_adamw);
    CHECK_CLOSE(1e-4, got.update.lr, 0);
    CHECK_CLOSE(0.9, got.update.betas[0], 0);
    CHECK_CLOSE(0.999, got.update.betas[1], 0);
    CHECK_CLOSE(1e-8, got.update.eps, 0);
    CHECK_CLOSE(0, got.update.weight_decay, 0);
    CHECK_INT(1, got.update.bias_correction);
    CHECK_INT(SHERDI_SCHEDULE_CONSTANT, got.schedule.kind);
    CHECK_CLOSE(1, got.update.gradient_clipping, 0);
    CHECK_INT(0, got.sharding.stage);
    CHECK_INT(100000, got.sharding.persistence_threshold);
    CHECK(got.sharding.model_persistence_threshold == SIZE_MAX);
    CHECK_INT(1000000000, got.sharding.sub_group_size);
    CHECK_INT(50000000, got.sharding.prefetch_bucket_size);
    CHECK_INT(1000000000, got.sharding.max_live_parameters);
    CHECK_INT(0, got.sharding.max_reuse_distance); /* ours: memory is what stage 3 is chosen for */
    CHECK_INT(0, got.sharding.overlap_comm);
    CHECK_INT(0, got.numerics.deterministic);
    CHECK_INT(0, got.watch.wall_clock_breakdown);
}

static void config_every_honoured_key_arrives(void)
{
    sherdi_settings got = settings_of(
        "\"steps_per_print\": 10, \"gradient_clipping\": 0.5, \"communication_data_type\": "
        "\"fp32\","
        "\"deterministic\": true, \"wall_clock_breakdown\": true, \"data_types\": "
        "{\"grad_accum_dtype\": \"fp16\"},"
        "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 10, \"loss_scale_window\": 500,"
        " \"hysteresis\": 3, \"consecutive_hysteresis\": true, \"min_loss_scale\": 0.25},"
        "\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"warmup_min_lr\": 1e-6,"
        " \"warmup_max_lr\": 2e-4, \"warmup_num_steps\": 20, \"total_num_steps\": 300,"
        " \"warmup_type\": \"linear\"}},"
        "\"zero_optimization\": {\"stage\": 2, \"overlap_comm\": true,"
        " \"sub_group_size\": 3, \"stage3_prefetch_bucket_size\": 4,"
        " \"stage3_param_persistence_threshold\": 5, \"stage3_model_persistence_threshold\": 6,"
        " \"stage3_max_live_parameters\": 7, \"stage3_max_reuse_distance\": 8}");

    CHECK_INT(10, got.steps_per_print);
    CHECK_CLOSE(0.5, got.update.gradient_clipping, 0);
    CHECK_INT(SHERD_F16, got.numerics.compute_dtype);
    CHECK_INT(SHERD_F32, got.numerics.comm_dtype);
    CHECK_INT(SHERD_F16, got.numerics.accum_dtype);
    CHECK_INT(1, got.numerics.deterministic);
    CHECK_INT(1, got.watch.wall_clock_breakdown);
    CHECK_INT(1, got.numerics.scaler.is_dynamic);
    CHECK_CLOSE(1024, got.numerics.scaler.initial_scale, 0);
    CHECK_INT(500, got.numerics.scaler.scale_window);
    CHECK_INT(3, got.numerics.scaler.hysteresis);
    CHECK_INT(1, got.numerics.scaler.is_consecutive_hysteresis);
    CHECK_CLOSE(0.25, got.numerics.scaler.min_scale, 0);
    CHECK_INT(SHERDI_SCHEDULE_WARMUP_DECAY, got.schedule.kind);
    CHECK_CLOSE(1e-6, got.schedule.min_lr.at[0], 0);
    CHECK_CLOSE(2e-4, got.schedule.max_lr.at[0], 0);
    CHECK_INT(20, got.schedule.warmup_steps);
    CHECK_INT(300, got.schedule.total_steps);
    CHECK_INT(SHERDI_RAMP_LINEAR, got.schedule.warmup_ramp);
    CHECK_INT(2, got.sharding.stage);
    CHECK_INT(1, got.sharding.overlap_comm);
    CHECK_INT(3, got.sharding.sub_group_size);
    CHECK_INT(4, got.sharding.prefetch_bucket_size);
    CHECK_INT(5, got.sharding.persistence_threshold);
    CHECK_INT(6, got.sharding.model_persistence_threshold);
    CHECK_INT(7, got.sharding.max_live_parameters);
    CHECK_INT(8, got.sharding.max_reuse_distance);
}

static void config_optimizer_params_arrive(void)
{
    sherd_config *config = parsed(
        "{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"adam\", \"params\": {\"lr\": 5,"
        " \"betas\": [0.8, 0.99], \"eps\": 1e-6, \"weight_decay\": 0.01, \"bias_correction\": "
        "false,"
        " \"adam_w_mode\": false, \"torch_adam\": true, \"amsgrad\": false}}}");
    sherdi_settings got = resolved(config, 2);

    CHECK(got.update.optimizer == &sherdi_optimizer_adam);
    CHECK_CLOSE(5, got.update.lr, 0);
    CHECK_CLOSE(0.8, got.update.betas[0], 0);
    CHECK_CLOSE(0.99, got.update.betas[1], 0);
    CHECK_CLOSE(1e-6, got.update.eps, 0);
    CHECK_CLOSE(0.01, got.update.weight_decay, 0);
    CHECK_INT(0, got.update.bias_correction);
    CHECK_INT(0, sherd_config_warning_count(config));
    sherd_config_destroy(config);
}

static void config_adam_is_adamw_unless_told(void)
{
    sherd_config *config = parsed("{\"train_batch_size\": 1, \"optimizer\": {\"type\": \"Adam\"}}");

    CHECK(resolved(config, 1).update.optimizer == &sherdi_optimizer_adamw);
    CHECK_CLOSE(1e-3, resolved(config, 1).update.lr, 0);
    sherd_config_destroy(config);
}

/* The rates are DeepSpeed's, which for SGD and Adagrad are torch's. */
static void config_rate_that_nobody_gives_is_the_optimizers(void)
{
    static const struct {
        const char *type;
        double      lr;
    } CASES_OF[] = {
        {"AdamW", 1e-3}, {"Adam", 1e-3},    {"Lion", 1e-3}, {"Lamb", 1e-3},
        {"SGD", 1e-3},   {"Adagrad", 0.01}, {"Muon", 0.02},
    };

    for (size_t i = 0; i < COUNT_OF(CASES_OF); i++) {
        char members[64];

        (void)snprintf(members, sizeof(members), "\"optimizer\": {\"type\": \"%s\"}",
                       CASES_OF[i].type);
        CHECK_CLOSE(CASES_OF[i].lr, settings_of(members).update.lr, 0);
    }
}

/* DeepSpeed gives torch.optim.AdamW what the file has, so a decay that the file lacks is
 * torch's. */
static void config_torch_adam_brings_torchs_weight_decay(void)
{
    static const struct {
        const char *type, *params;
        double      weight_decay;
    } CASES_OF[] = {
        {"AdamW", "\"torch_adam\": true", 0.01},
        {"Adam", "\"torch_adam\": true", 0.01},
        {"AdamW", "\"torch_adam\": true, \"adam_w_mode\": false", 0.01},
        {"Adam", "\"torch_adam\": true, \"adam_w_mode\": false", 0},
        {"AdamW", "\"torch_adam\": true, \"weight_decay\": 0", 0},
        {"AdamW", "\"torch_adam\": true, \"weight_decay\": \"auto\"", 0},
        {"AdamW", "\"torch_adam\": \"torch_impl\"", 0.01},
        {"AdamW", "\"torch_adam\": false", 0},
        {"Lion", "\"torch_adam\": true", 0},
    };

    for (size_t i = 0; i < COUNT_OF(CASES_OF); i++) {
        char members[256];

        (void)snprintf(members, sizeof(members),
                       "\"optimizer\": {\"type\": \"%s\", \"params\": {%s}}", CASES_OF[i].type,
                       CASES_OF[i].params);
        CHECK_CLOSE(CASES_OF[i].weight_decay, settings_of(members).update.weight_decay, 0);
    }
}

/* Numbers that are not set are the optimizer's own; a set number counts for every optimizer that
 * has it. */
static void config_momentum_is_the_optimizers(void)
{
    static const struct {
        const char *type, *params;
        double      muon, sgd;
        int         muon_is_nesterov, sgd_is_nesterov;
    } CASES_OF[] = {
        {"Muon", "", 0.95, 0, 1, 0},
        {"AdamW", "", 0.95, 0, 1, 0},
        {"SGD", "\"momentum\": 0.5", 0.5, 0.5, 1, 0},
        {"Muon", "\"momentum\": 0.5, \"nesterov\": false", 0.5, 0.5, 0, 0},
        {"SGD", "\"momentum\": 0.5, \"nesterov\": true", 0.5, 0.5, 1, 1},
        {"Muon", "\"momentum\": 0, \"nesterov\": true", 0, 0, 1, 1},
    };

    for (size_t i = 0; i < sizeof(CASES_OF) / sizeof(CASES_OF[0]); i++) {
        char                      json[256];
        sherd_config             *config;
        sherdi_settings           got;
        sherdi_optimizer_defaults muon, sgd;

        (void)snprintf(
            json, sizeof(json),
            "{\"train_batch_size\": 1, \"optimizer\": {\"type\": \"%s\", \"params\": {%s}}}",
            CASES_OF[i].type, CASES_OF[i].params);
        config = parsed(json);
        got    = resolved(config, 1);
        muon   = sherdi_optimizer_numbers(&got, &sherdi_optimizer_muon);
        sgd    = sherdi_optimizer_numbers(&got, &sherdi_optimizer_sgd);
        CHECK_CLOSE(CASES_OF[i].muon, muon.betas[0], 0);
        CHECK_CLOSE(CASES_OF[i].sgd, sgd.betas[0], 0);
        CHECK_INT(CASES_OF[i].muon_is_nesterov, muon.is_nesterov);
        CHECK_INT(CASES_OF[i].sgd_is_nesterov, sgd.is_nesterov);
        CHECK(sherdi_optimizer_in(&got, &sherdi_optimizer_muon, NAN) == &sherdi_optimizer_muon);
        CHECK(sherdi_optimizer_in(&got, &sherdi_optimizer_sgd, NAN) ==
              (CASES_OF[i].sgd != 0 ? &sherdi_optimizer_sgd : &sherdi_optimizer_sgd_plain));
        CHECK_INT(0, sherd_config_warning_count(config));
        sherd_config_destroy(config);
    }
}

#define CYCLE_OF_MOMENTA                                                                           \
    ", \"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 1, "                 \
    "\"cycle_max_lr\": 2, \"cycle_max_mom\": 0.95}}"

#define GROUP_OF(type)                                                                             \
    ", \"sherd\": {\"groups\": [{\"name\": \"g\", \"type\": \"" type "\", \"matching\": \"*\"}]}"

/* One optimizer that is used reads it, or a sentence names all that would. */
static void config_key_that_no_optimizer_reads_is_remarked_on(void)
{
    static const struct {
        const char *optimizer, *groups, *says;
    } CASES_OF[] = {
        {"\"AdamW\", \"params\": {\"momentum\": 0.9}", "",
         "optimizer.params.momentum is ignored: only SGD or Muon reads it"},
        {"\"Lion\", \"params\": {\"ns_steps\": 4}", "",
         "optimizer.params.ns_steps is ignored: only Muon reads it"},
        {"\"Muon\", \"params\": {\"dampening\": 0.5}", "",
         "optimizer.params.dampening is ignored: only SGD reads it"},
        {"\"Muon\", \"params\": {\"eps\": 1e-6}", "",
         "optimizer.params.eps is ignored: Muon does not read it"},
        {"\"Muon\", \"params\": {\"momentum\": 0.9}", "", NULL},
        {"\"Muon\"", CYCLE_OF_MOMENTA,
         "scheduler.params.cycle_max_mom is ignored: Muon has no betas, and keeps its momentum"},
        {"\"Lion\"", CYCLE_OF_MOMENTA, NULL},
        {"\"Adagrad\"", CYCLE_OF_MOMENTA,
         "scheduler.params.cycle_max_mom is ignored: Adagrad has no betas"},
        {"\"Muon\", \"params\": {\"eps\": 1e-6, \"betas\": [0.8, 0.9]}", GROUP_OF("AdamW"), NULL},
        {"\"Muon\", \"params\": {\"eps\": 1e-6}", GROUP_OF("Lion"),
         "optimizer.params.eps is ignored: Muon does not read it"},
        {"\"Muon\"", CYCLE_OF_MOMENTA GROUP_OF("AdamW"), NULL},
        {"\"Muon\"", CYCLE_OF_MOMENTA GROUP_OF("SGD"),
         "scheduler.params.cycle_max_mom is ignored: Muon has no betas, and keeps its momentum"},
        {"\"AdamW\", \"params\": {\"ns_steps\": 4}", GROUP_OF("Muon"), NULL},
    };

    for (size_t i = 0; i < sizeof(CASES_OF) / sizeof(CASES_OF[0]); i++) {
        char          json[512];
        sherd_config *config;

        (void)snprintf(json, sizeof(json),
                       "{\"train_batch_size\": 1, \"optimizer\": {\"type\": %s}%s}",
                       CASES_OF[i].optimizer, CASES_OF[i].groups);
        config = parsed(json);
        (void)resolved(config, 1);
        CHECK_INT(CASES_OF[i].says != NULL, sherd_config_warning_count(config));
        CHECK(CASES_OF[i].says == NULL ||
              strstr(sherd_config_warning(config, 0), CASES_OF[i].says) != NULL);
        sherd_config_destroy(config);
    }
}

static void config_muon_has_numbers_of_its_own(void)
{
    sherd_config   *config = parsed("{\"train_batch_size\": 1, \"optimizer\": {\"type\": \"muon\", "
                                      "\"params\": {\"ns_method\": \"gram\", \"ns_steps\": 3, "
                                      "\"adjust_lr_fn\": \"match_rms_adamw\"}}}");
    sherdi_settings got    = resolved(config, 1);

    CHECK(got.update.optimizer == &sherdi_optimizer_muon);
    CHECK_INT(3, got.muon.steps);
    CHECK_INT(1, got.muon.matches_rms);
    CHECK_CLOSE(0.95, sherdi_optimizer_numbers(&got, got.update.optimizer).betas[0], 0);
    CHECK_INT(1, sherdi_optimizer_numbers(&got, got.update.optimizer).is_nesterov);
    CHECK_INT(0, sherd_config_warning_count(config));
    sherd_config_destroy(config);
}

/* ---- batch ---- */

static void config_batch_sizes_are_derived(void)
{
    static const struct {
        int train, micro, accumulation, world_size; /* 0: not given */
        int want[3];
    } ROWS[] = {
        {32, 16, 1, 2, {32, 16, 1}}, {32, 8, 2, 2, {32, 8, 2}},   {32, 8, 0, 2, {32, 8, 2}},
        {32, 0, 2, 2, {32, 8, 2}},   {0, 4, 3, 2, {24, 4, 3}},    {32, 0, 0, 4, {32, 8, 1}},
        {0, 4, 0, 7, {28, 4, 1}},    {32, 16, 0, 2, {32, 16, 1}},
    };
    char            text[TEXT_BYTES];
    sherd_config   *config;
    sherdi_settings got;

    for (size_t i = 0; i < COUNT_OF(ROWS); i++) {
        config = parsed("{\"optimizer\": {\"type\": \"AdamW\"}}");
        if (ROWS[i].train > 0) {
            (void)snprintf(text, sizeof(text), "%d", ROWS[i].train);
            CHECK_OK(sherd_config_set(config, "train_batch_size", text));
        }
        if (ROWS[i].micro > 0) {
            (void)snprintf(text, sizeof(text), "%d", ROWS[i].micro);
            CHECK_OK(sherd_config_set(config, "train_micro_batch_size_per_gpu", text));
        }
        if (ROWS[i].accumulation > 0) {
            (void)snprintf(text, sizeof(text), "%d", ROWS[i].accumulation);
            CHECK_OK(sherd_config_set(config, "gradient_accumulation_steps", text));
        }
        got = resolved(config, ROWS[i].world_size);
        CHECK_INT(ROWS[i].want[0], got.batch.train_batch_size);
        CHECK_INT(ROWS[i].want[1], got.batch.micro_batch_size);
        CHECK_INT(ROWS[i].want[2], got.batch.accumulation);
        sherd_config_destroy(config);
    }
}

static void config_inference_needs_no_batch_size(void)
{
    sherd_config   *config = parsed("{\"optimizer\": {\"type\": \"none\"}}");
    sherdi_settings got    = resolved(config, 3);

    CHECK_INT(1, got.batch.micro_batch_size);
    CHECK_INT(3, got.batch.train_batch_size);
    sherd_config_destroy(config);
}

static void config_batch_sizes_that_do_not_multiply_out_are_refused(void)
{
    static const struct {
        const char *text;
        int         world_size;
        const char *sentence;
    } ROWS[] = {
        {"{\n \"train_batch_size\": 33, \"train_micro_batch_size_per_gpu\": 17,"
         " \"gradient_accumulation_steps\": 2}",
         2,
         "configuration:2:2: train_batch_size 33 is not train_micro_batch_size_per_gpu 17 x "
         "gradient_accumulation_steps 2 x 2 ranks"},
        {"{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 18,"
         " \"gradient_accumulation_steps\": 1}",
         2, "train_batch_size 32 is not"},
        {"{\"train_batch_size\": 7, \"train_micro_batch_size_per_gpu\": 2}", 1, "7 is not"},
        {"{\"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 2,"
         " \"gradient_accumulation_steps\": 2}",
         1, "8 is not"},
        {"{\"train_batch_size\": 3}", 4, "3 is not"},
        {"{\"train_batch_size\": 1, \"train_micro_batch_size_per_gpu\": 2}", 1, "1 is not"},
        {"{\"train_batch_size\": 9, \"gradient_accumulation_steps\": 2}", 4, "9 is not"},
        {"{\"gradient_accumulation_steps\": 2}", 1,
         "no batch size is given: set train_micro_batch_size_per_gpu or train_batch_size"},
        {"{}", 1, "no batch size is given"},
        {"{\"train_micro_batch_size_per_gpu\": 2147483647, \"gradient_accumulation_steps\": "
         "2147483647}",
         1000, "does not fit 32 bits"},
    };

    for (size_t i = 0; i < COUNT_OF(ROWS); i++) {
        check_resolve_refused(SHERD_E_INVAL, ROWS[i].text, ROWS[i].world_size, ROWS[i].sentence);
    }
}

/* ---- what DeepSpeed was seen to do with an input ---- */

static void config_head_stage_is_read_generously(void)
{
    CHECK_INT(2, settings_of("\"zero_optimization\": {\"stage\": \"2\"}").sharding.stage);
    CHECK_INT(2, settings_of("\"zero_optimization\": {\"stage\": 2.0}").sharding.stage);
    CHECK_INT(1, settings_of("\"zero_optimization\": true").sharding.stage);
    CHECK_INT(0, settings_of("\"zero_optimization\": false").sharding.stage);
    check_warns("\"zero_optimization\": true", "read as {\"stage\": 1}");
    check_load_refused(SHERD_E_INVAL, "{\"zero_optimization\": {\n\"stage\": 4}}",
                       "configuration:2:1: zero_optimization.stage is 4; it must be from 0 to 3");
    check_load_refused(SHERD_E_INVAL, "{\"zero_optimization\": {\"stage\": [1, 2]}}",
                       "must be a whole number");
    check_load_refused(SHERD_E_INVAL, "{\"zero_optimization\": null}", "zero_optimization is null");
    check_load_refused(SHERD_E_INVAL, "{\"zero_optimization\": 3}", "must be a block in braces");
}

static void config_stage_auto_needs_the_program(void)
{
    sherd_config *config = completed("\n\"zero_optimization\": {\"stage\": \"auto\"}");
    char          text[TEXT_BYTES];

    complete(text, "\n\"zero_optimization\": {\"stage\": \"auto\"}");
    check_resolve_refused(SHERD_E_INVAL, text, 1,
                          "configuration:2:23: zero_optimization.stage is \"auto\" and the program "
                          "has not set it; set it to 0, 1, 2 or 3");
    CHECK_OK(sherd_config_set(config, "zero_optimization.stage", "3"));
    CHECK_INT(3, resolved(config, 1).sharding.stage);
    sherd_config_destroy(config);
}

static size_t most_live_of(const char *value)
{
    char members[256];

    (void)snprintf(members, sizeof(members),
                   "\"zero_optimization\": {\"stage3_max_live_parameters\": %s}", value);
    return settings_of(members).sharding.max_live_parameters;
}

static void config_head_sizes_are_read_generously(void)
{
    static const char *const BAD[] = {"\"5e-1\"", "1.5",   "-1",        "null",
                                      "[]",       "\"\"",  "\"--3\"",   "\"5e8x\"",
                                      "{}",       "\"x\"", "\"[5e8]\"", "\"-5e8\""};
    char                     text[TEXT_BYTES];

    CHECK_INT(500000000, most_live_of("5e8"));
    CHECK_INT(500000000, most_live_of("\"500000000\""));
    CHECK_INT(500000000, most_live_of("\"5e8\"")); /* as YAML writes it */
    CHECK_INT(50000000, most_live_of("\"5.0e+7\""));
    CHECK_INT(0, most_live_of("0"));
    CHECK_INT(100000000000000, most_live_of("1e14"));
    CHECK_INT(1, most_live_of("true"));
    CHECK_INT(1000000000, most_live_of("\"auto\""));
    CHECK_INT(9007199254740993, most_live_of("9007199254740993"));
    CHECK(most_live_of("9223372036854775807") == SIZE_MAX);
    CHECK(most_live_of("99999999999999999999999999") == SIZE_MAX);
    CHECK(most_live_of("1e300") == SIZE_MAX);
    for (size_t i = 0; i < COUNT_OF(BAD); i++) {
        (void)snprintf(text, sizeof(text),
                       "{\"zero_optimization\": {\"stage3_max_live_parameters\": %s}}", BAD[i]);
        check_load_refused(SHERD_E_INVAL, text,
                           "configuration:1:24: zero_optimization.stage3_max_live_parameters is ");
    }
}

static void config_prefetch_bucket_fraction_is_cut_off(void)
{
    CHECK_INT(15099494, settings_of("\"zero_optimization\": {\"stage3_prefetch_bucket_size\": "
                                    "15099494.4}")
                            .sharding.prefetch_bucket_size);
}

static void config_sub_group_of_zero_is_the_default(void)
{
    CHECK_INT(
        1000000000,
        settings_of("\"zero_optimization\": {\"sub_group_size\": 0}").sharding.sub_group_size);
}

static void config_head_overlap_depends_on_the_stage(void)
{
    static const struct {
        const char *block;
        int         want;
    } ROWS[] = {
        {"{\"stage\": 3}", 1},
        {"{\"stage\": 2}", 0},
        {"{\"stage\": 3, \"overlap_comm\": \"auto\"}", 1},
        {"{\"stage\": 1, \"overlap_comm\": \"auto\"}", 0},
        {"{\"stage\": 3, \"overlap_comm\": null}", 1},
        {"{\"stage\": 3, \"overlap_comm\": false}", 0},
        {"{\"stage\": 2, \"overlap_comm\": \"true\"}", 1},
        {"{\"stage\": 2, \"overlap_comm\": 1}", 1},
    };
    char members[256];

    for (size_t i = 0; i < COUNT_OF(ROWS); i++) {
        (void)snprintf(members, sizeof(members), "\"zero_optimization\": %s", ROWS[i].block);
        CHECK_INT(ROWS[i].want, settings_of(members).sharding.overlap_comm);
    }
}

static void config_head_offload_blocks_that_mean_none_resolve(void)
{
    check_silent("\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": null}");
    check_silent("\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": \"auto\"}");
    check_silent("\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {}}");
    (void)settings_of("\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {}}");
    (void)settings_of("\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": "
                      "{\"device\": \"none\", \"pin_memory\": true}, \"offload_param\": "
                      "{\"device\": \"auto\"}}");
}

static void config_head_offload_errors_are_named(void)
{
    static const struct {
        const char *block, *sentence;
    } ROWS[] = {
        {"{\"offload_optimizer\": {\"device\": \"CPU\"}}",
         "zero_optimization.offload_optimizer.device is \"CPU\"; known: none|cpu|nvme"},
        {"{\"offload_optimizer\": {\"device\": null}}", "remove it or give it a value"},
        {"{\"stage\": 3, \"offload_param\": {\"device\": \"nvme\"}}", "needs nvme_path"},
        {"{\"cpu_offload\": true, \"offload_optimizer\": {}}",
         "zero_optimization.cpu_offload and the block zero_optimization.offload_optimizer that "
         "replaced it are both there"},
        {"{\"offload_optimizer\": {\"device\": \"cpu\"}, \"cpu_offload\": false}",
         "zero_optimization.cpu_offload sets again what "
         "zero_optimization.offload_optimizer.device"},
        {"{\"stage3_max_live_parameters\": 1, \"max_live_parameters\": 1}", "keep one of them"},
        {"{\"max_live_parameters\": 1, \"stage3_max_live_parameters\": 1}",
         "sets again what zero_optimization.max_live_parameters (configuration:1:24) sets"},
        {"{\"offload_optimizer\": {\"devise\": \"cpu\"}}",
         "zero_optimization.offload_optimizer.devise is not a known key; did you mean "
         "zero_optimization.offload_optimizer.device?"},
        {"{\"offload_optimizer\": true}", "must be a block in braces"},
    };
    char text[TEXT_BYTES];

    for (size_t i = 0; i < COUNT_OF(ROWS); i++) {
        (void)snprintf(text, sizeof(text), "{\"zero_optimization\": %s}", ROWS[i].block);
        check_load_refused(SHERD_E_INVAL, text, ROWS[i].sentence);
    }
}

static void config_head_precision_blocks(void)
{
    CHECK_INT(SHERD_F32, settings_of("\"bf16\": {\"enabled\": false}, \"bfloat16\": "
                                     "{\"enabled\": true}")
                             .numerics.compute_dtype);
    CHECK_INT(SHERD_BF16, settings_of("\"bfloat16\": {\"enabled\": true}").numerics.compute_dtype);
    CHECK_INT(SHERD_F16, settings_of("\"fp16\": {\"enabled\": \"true\"}").numerics.compute_dtype);
    CHECK_INT(SHERD_F32, settings_of("\"fp16\": {\"enabled\": \"auto\"}").numerics.compute_dtype);
    CHECK_INT(SHERD_F16, settings_of("\"fp16\": {\"enabled\": true}, \"bf16\": "
                                     "{\"enabled\": \"auto\"}")
                             .numerics.compute_dtype);
    CHECK_INT(SHERD_F32, settings_of("\"bf16\": null, \"aio\": null").numerics.compute_dtype);
    CHECK_CLOSE(1,
                settings_of("\"fp16\": {\"enabled\": true, \"min_loss_scale\": 1.0}")
                    .numerics.scaler.min_scale,
                0);
    check_load_refused(SHERD_E_INVAL,
                       "{\"fp16\": {\"enabled\": true},\n\"bf16\": {\"enabled\": true}}",
                       "configuration:1:11: fp16.enabled and bf16.enabled (configuration:2:10) are "
                       "both true");
    check_load_refused(SHERD_E_INVAL, "{\"fp16\": null}", "fp16 is null");
    check_load_refused(SHERD_E_INVAL, "{\"optimizer\": null}", "optimizer is null");
    check_load_refused(SHERD_E_INVAL, "{\"scheduler\": null}", "scheduler is null");
}

static void config_head_general_keys(void)
{
    CHECK_CLOSE(1, settings_of("\"gradient_clipping\": \"auto\"").update.gradient_clipping, 0);
    CHECK_CLOSE(5, settings_of("\"gradient_clipping\": 5").update.gradient_clipping, 0);
    CHECK_CLOSE(0, settings_of("\"gradient_clipping\": 0").update.gradient_clipping, 0);
    CHECK_INT(100000, settings_of("\"steps_per_print\": 1e5").steps_per_print);
    CHECK_INT(0, settings_of("\"steps_per_print\": null").steps_per_print);
    CHECK_INT(INT_MAX, settings_of("\"steps_per_print\": 20000000000000000").steps_per_print);
    CHECK_INT(SHERD_F32, settings_of("\"communication_data_type\": \"FP32\"").numerics.comm_dtype);
    CHECK_INT(8, settings_of("\"gradient_accumulation_steps\": \"8\"").batch.accumulation);
    check_warns("\"gradient_accumulation_steps\": \"8\"", "a number in quotes");
    check_warns("\"steps_per_print\": \"auto\"", "which means its default here");
    check_load_refused(SHERD_E_INVAL, "{\"gradient_clipping\": null}", "gradient_clipping is null");
    check_load_refused(SHERD_E_INVAL, "{\"communication_data_type\": \"float32\"}",
                       "known: fp32|fp16|bf16");
    check_load_refused(SHERD_E_INVAL, "{\"fp16\": {},\n \"fp16\": {}}",
                       "configuration:2:2: key \"fp16\" stands here for the second time");
}

static void config_head_batch_may_be_written_as_a_real(void)
{
    sherd_config *config =
        parsed("{\"train_batch_size\": 1e3, \"optimizer\": {\"type\": \"AdamW\"}}");

    CHECK_INT(1000, resolved(config, 1).batch.train_batch_size);
    sherd_config_destroy(config);
}

/* ---- other names ---- */

static void config_other_names_arrive(void)
{
    CHECK_INT(7, settings_of("\"zero_optimization\": {\"max_live_parameters\": 7}")
                     .sharding.max_live_parameters);
    CHECK_INT(7, settings_of("\"zero_optimization\": {\"prefetch_bucket_size\": 7}")
                     .sharding.prefetch_bucket_size);
    CHECK_INT(7, settings_of("\"zero_optimization\": {\"stage3_param_persitence_threshold\": 7}")
                     .sharding.persistence_threshold);
    check_silent("\"zero_optimization\": {\"gather_16bit_weights_on_model_save\": true}");
    check_silent("\"bfloat16\": {\"enabled\": true}");
    check_warns("\"zero_optimization\": {\"stage3_param_persitance_threshold\": 7}",
                "is read as zero_optimization.stage3_param_persistence_threshold");
    check_warns("\"zero_optimization\": {\"stage3_gather_fp16_weights_on_model_save\": true}",
                "is read as zero_optimization.stage3_gather_16bit_weights_on_model_save");
    check_warns("\"zero_optimization\": {\"cpu_offload_use_pin_memory\": false}",
                "is read as zero_optimization.offload_optimizer.pin_memory");
    check_warns("\"zero_optimization\": {\"cpu_offload_pin_memory\": true}", "is read as");
    check_warns("\"aio\": {\"thread_count\": 2}", "is read as aio.intra_op_parallelism");
    check_warns("\"zero_optimization\": {\"find_unused_parameters\": false}", "the opposite");
    check_warns("\"zero_optimization\": {\"cpu_offload\": false}", "is an old name");
    check_warns("\"bfloat16\": {}, \"bf16\": {}", "bfloat16 is ignored: bf16 is there too");
}

static void config_max_grad_norm_is_clipping_where_that_is_absent(void)
{
    sherd_config *config;
    char          text[TEXT_BYTES];

    for (int i = 0; i < 2; i++) {
        (void)snprintf(text, sizeof(text),
                       "{\"train_batch_size\": 1, \"optimizer\": {\"type\": \"Adam\", \"params\": "
                       "{\"%s\": 0.25}}}",
                       i == 0 ? "max_grad_norm" : "__max_grad_norm__");
        config = parsed(text);
        CHECK_CLOSE(0.25, resolved(config, 1).update.gradient_clipping, 0);
        CHECK(sherd_config_warning_count(config) > 0);
        sherd_config_destroy(config);
    }
    config = parsed("{\"train_batch_size\": 1, \"gradient_clipping\": 2, \"optimizer\": {\"type\": "
                    "\"Adam\", \"params\": {\"max_grad_norm\": 0.25}}}");
    CHECK_CLOSE(2, resolved(config, 1).update.gradient_clipping, 0);
    test_check_contains(__FILE__, __LINE__, sherd_config_warning(config, 0), "and wins");
    sherd_config_destroy(config);
}

/* ---- unknown, ignored, refused ---- */

static void config_unknown_keys_warn_at_the_top_and_fail_in_closed_blocks(void)
{
    check_warns("\n \"bp16\": {\"enabled\": true}",
                "configuration:2:2: bp16 is not a known key and is ignored; did you mean bf16?");
    check_warns("\"bf16\": {\"enable\": true}", "did you mean bf16.enabled?");
    check_warns("\"offload_optimizer\": {}", "did you mean zero_optimization.offload_optimizer?");
    check_warns("\"max_grad_norm\": 1", "did you mean gradient_clipping?");
    check_warns("\"gradient_cliping\": 1", "did you mean gradient_clipping?");
    check_warns("\"train_micro_batch_size\": 1", "did you mean train_micro_batch_size_per_gpu?");
    check_warns("\"Micro_Batch_Size_per_GPU\": 1", "did you mean train_micro_batch_size_per_gpu?");
    check_warns("\"accumulation-steps\": 1", "did you mean gradient_accumulation_steps?");
    check_warns("\"zero_stage\": 3", "did you mean zero_optimization.stage?");
    check_warns("\"batch_size\": 1", "batch_size is not a known key and is ignored");
    check_warns("\"step\": 1", "step is not a known key and is ignored");
    check_load_refused(
        SHERD_E_INVAL,
        "{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_steps\": 5}}}",
        "did you mean scheduler.params.warmup_num_steps?");
    check_warns("\"zero_optimization.stage\": 3", "zero_optimization.stage is not a known key");
    check_warns("\"aio\": {\"nothing\": 1}", "aio.nothing is not a known key and is ignored");
    check_warns("\"strict\": true", "did you mean sherd.strict?");
    check_silent("\"_comment\": \"x\", \"comment\": [1]");
    check_load_refused(
        SHERD_E_INVAL, "{\"zero_optimization\": {\"stage3_max_live_params\": 1}}",
        "configuration:1:24: zero_optimization.stage3_max_live_params is not a known "
        "key; remove it");
    check_load_refused(SHERD_E_INVAL, "{\"zero_optimization\": {\"reduce_bucket_sizes\": 1}}",
                       "did you mean zero_optimization.reduce_bucket_size?");
    check_load_refused(SHERD_E_INVAL, "{\"optimizer\": {\"params\": {\"weight-decays\": 1}}}",
                       "did you mean optimizer.params.weight_decay?");
    check_load_refused(SHERD_E_INVAL, "{\"scheduler\": {\"params\": {\"steps\": 1}}}",
                       "scheduler.params.steps is not a known key");
}

static void config_messages_are_one_line(void)
{
    check_warns("\"a\\nb\\u001b\": 1", "a b  is not a known key");
}

static void config_hints_are_ignored_with_a_warning(void)
{
    static const char *const ACTIVE[] = {
        "\"dump_state\": true",
        "\"disable_allgather\": true",
        "\"wandb\": {\"enabled\": true}",
        "\"comet\": {\"enabled\": true}",
        "\"comms_logger\": {\"prof_ops\": [\"all_reduce\"]}",
        "\"flops_profiler\": {\"enabled\": true, \"profile_step\": 1}",
        "\"autotuning\": {\"enabled\": true}",
        "\"compile\": {\"disable\": false, \"backend\": \"inductor\"}",
        "\"activation_checkpointing\": {\"partition_activations\": true}",
        "\"timers\": {}",
        "\"fp16\": {\"auto_cast\": true}",
        "\"fp16\": {\"opt_level\": \"O2\"}",
        "\"bf16\": {\"loss_scale\": 0}",
        "\"zero_optimization\": {\"round_robin_gradients\": true}",
        "\"zero_optimization\": {\"mics_shard_size\": 8}",
        "\"zero_optimization\": {\"zenflow\": {}}",
        "\"nebula\": {\"enabled\": true}",
    };
    static const char *const OFF[] = {
        "\"wall_clock_breakdown\": true",
        "\"tensorboard\": {\"enabled\": true, \"output_path\": \"x\"}, \"csv_monitor\": {}",
        "\"comms_logger\": {\"enabled\": true, \"prof_all\": true, \"debug\": false}",
        "\"tensorboard\": {\"enabled\": false, \"output_path\": \"x\"}",
        "\"zero_optimization\": {\"ignore_unused_parameters\": true, \"zenflow\": null}",
        "\"zero_optimization\": {\"zero_hpz_partition_size\": 1, \"mics_shard_size\": -1}",
        "\"prescale_gradients\": true, \"gradient_predivide_factor\": 8",
        "\"zero_allow_untested_optimizer\": true, \"zero_force_ds_cpu_optimizer\": false",
        "\"zero_optimization\": {\"contiguous_gradients\": false, \"reduce_scatter\": false}",
        "\"zero_optimization\": {\"reduce_bucket_size\": \"auto\", \"allgather_bucket_size\": 7}",
    };

    for (size_t i = 0; i < COUNT_OF(ACTIVE); i++) {
        check_warns(ACTIVE[i], "is ignored: ");
    }
    for (size_t i = 0; i < COUNT_OF(OFF); i++) {
        check_silent(OFF[i]);
    }
}

static void config_what_would_train_something_else_is_refused(void)
{
    static const struct {
        const char *members, *sentence;
    } ROWS[] = {
        {"\"compression_training\": {\"weight_quantization\": {\"shared_parameters\": "
         "{\"enabled\": true}}}",
         "compression_training is on, which sherd cannot do"},
        {"\"quantize_training\": {\"quantize_groups\": 1}", "quantize_training is on"},
        {"\"sparse_attention\": {\"mode\": \"fixed\"}", "sparse_attention is on"},
        {"\"eigenvalue\": {\"enabled\": true}", "eigenvalue is on"},
        {"\"optimizer\": {\"type\": \"Muon\", \"params\": {\"muon_lr\": 0.02}}",
         "optimizer.params.muon_lr is 0.02, which sherd cannot do: write the rate of the matrices"},
        {"\"optimizer\": {\"type\": \"Muon\", \"params\": {\"adam_lr\": 3e-4}}",
         "optimizer.params.adam_lr is 3e-4, which sherd cannot do: give a group of sherd.groups"},
        {"\"optimizer\": {\"type\": \"Muon\", \"params\": {\"per_head_muon\": true}}",
         "optimizer.params.per_head_muon is true, which sherd cannot do"},
        {"\"elasticity\": {\"enabled\": \"True\"}", "elasticity is on"},
        {"\"data_efficiency\": {\"enabled\": \"yes\"}", "data_efficiency is on"},
        {"\"torch_autocast\": {\"enabled\": \"1\"}", "torch_autocast is on"},
        {"\"hybrid_engine\": {\"enabled\": \"treu\"}", "hybrid_engine is on"},
        {"\"compression_training\": {\"layer_reduction\": {\"enabled\": \"On\"}}",
         "compression_training is on"},
        {"\"compression_training\": {\"layer_reduction\": {\"enabled\": 1}}",
         "compression_training is on"},
        {"\"progressive_layer_drop\": {\"enabled\": true}", "progressive_layer_drop is on"},
        {"\"curriculum_learning\": {\"enabled\": true}", "curriculum_learning is on"},
        {"\"data_efficiency\": {\"enabled\": true}", "data_efficiency is on"},
        {"\"amp\": {\"enabled\": true}", "use the fp16 or bf16 block"},
        {"\"torch_autocast\": {\"enabled\": true}", "torch_autocast is on"},
        {"\"elasticity\": {\"enabled\": true}", "elasticity is on"},
        {"\"expert_parallel\": {\"enabled\": true, \"autoep_size\": 2}", "expert_parallel is on"},
        {"\"weight_quantization\": {\"num_bits\": 8}", "weight_quantization is on"},
        {"\"hybrid_engine\": {\"enabled\": true}", "hybrid_engine is on"},
        {"\"tensor_parallel\": {\"autotp_size\": 2}", "tensor_parallel.autotp_size is 2"},
        {"\"sequence_parallel_size\": 2", "sequence_parallel_size is 2"},
        {"\"gradient_allreduce_op\": \"sum\"", "gradient_allreduce_op is \"sum\""},
        {"\"managed_gradient_accumulation\": false", "managed_gradient_accumulation is false"},
        {"\"fp16\": {\"fp16_master_weights_and_grads\": true}", "fp16 master loses updates"},
        {"\"optimizer\": {\"type\": \"OneBitAdam\", \"params\": {\"freeze_step\": 1}}",
         "optimizer.type is \"OneBitAdam\", which sherd does not have; known: AdamW|Adam"},
        {"\"optimizer\": {\"type\": \"Adam\", \"params\": {\"amsgrad\": true}}",
         "optimizer.params.amsgrad is true"},
        {"\"scheduler\": {\"type\": \"StepLR\", \"params\": {\"step_size\": 1}}",
         "scheduler.type is \"StepLR\", which sherd does not have"},
    };
    static const char *const OFF[] = {
        "\"compression_training\": {\"layer_reduction\": {\"enabled\": false}}",
        "\"expert_parallel\": {\"enabled\": false}",
        "\"weight_quantization\": {\"enabled\": false}",
        "\"amp\": {\"enabled\": false, \"opt_level\": \"O2\"}",
        "\"sparse_attention\": {\"enabled\": false}",
        "\"sparse_attention\": {\"enabled\": \"False\"}, \"elasticity\": {\"enabled\": null}",
        "\"amp\": {\"enabled\": \"auto\"}, \"eigenvalue\": {\"enabled\": 0}",
        "\"tensor_parallel\": {\"autotp_size\": 1}",
        "\"data_efficiency\": {\"seed\": 1}",
        "\"optimizer\": {\"type\": \"Muon\", \"params\": {\"per_head_muon\": false}}",
        "\"gradient_allreduce_op\": \"mean\"",
    };
    char text[TEXT_BYTES];

    for (size_t i = 0; i < COUNT_OF(ROWS); i++) {
        (void)snprintf(text, sizeof(text), "{\n  %s}", ROWS[i].members);
        check_load_refused(SHERD_E_NOTSUP, text, ROWS[i].sentence);
        CHECK_ERROR_SAYS("configuration:2:");
    }
    for (size_t i = 0; i < COUNT_OF(OFF); i++) {
        check_silent(OFF[i]);
    }
}

static void config_bad_values_name_location_key_and_reason(void)
{
    static const struct {
        const char *text, *sentence;
    } ROWS[] = {
        {"[]", "configuration:1:1: a configuration is a block in braces"},
        {"", "configuration:1:1: not JSON"},
        {"{\n\t\"train_batch_size\": CONFIG_MBSIZE\n}",
         "configuration:2:22: not JSON: invalid token near CONFIG_MBSIZE"},
        {"{\"train_batch_size\": 0}", "train_batch_size is 0; it must be at least 1"},
        {"{\"train_batch_size\": 3e9}", "it must be at least 1 and fit 32 bits"},
        {"{\"train_batch_size\": 1.5}", "must be a whole number"},
        {"{\"gradient_clipping\": -1}", "must be at least 0"},
        {"{\"gradient_clipping\": \"one\"}", "must be a number"},
        {"{\"gradient_clipping\": true}", "must be a number"},
        {"{\"wall_clock_breakdown\": \"maybe\"}", "must be true or false"},
        {"{\"wall_clock_breakdown\": 2}", "must be true or false"},
        {"{\"fp16\": {\"loss_scale\": -1}}", "fp16.loss_scale is -1; it must be"},
        {"{\"fp16\": {\"loss_scale\": true}}", "must be a number"},
        {"{\"fp16\": {\"initial_scale_power\": 127}}", "must be from 0 to 126"},
        {"{\"fp16\": {\"enabled\": true, \"loss_scale_window\": 0}}",
         "fp16.loss_scale_window must be at least 1"},
        {"{\"optimizer\": {\"params\": {\"betas\": [0.9]}}}", "must be a list of two numbers"},
        {"{\"optimizer\": {\"params\": {\"betas\": [0.9, 1.0]}}}", "must be from 0 to below 1"},
        {"{\"optimizer\": {\"params\": {\"betas\": [0.9, 0.9, 0.9]}}}",
         "must be a list of two numbers"},
        {"{\"optimizer\": {\"type\": 3}}", "optimizer.type is 3; it must be text"},
        {"{\"optimizer\": []}", "must be a block in braces"},
        {"{\"sherd\": {\"stict\": true}}", "did you mean sherd.strict?"},
    };

    for (size_t i = 0; i < COUNT_OF(ROWS); i++) {
        check_load_refused(SHERD_E_INVAL, ROWS[i].text, ROWS[i].sentence);
    }
}

static void config_combinations_that_do_nothing_warn(void)
{
    check_warns("\"zero_optimization\": {\"stage\": 2, \"offload_param\": {\"device\": \"cpu\"}}",
                "offload_param.device is ignored");
    check_warns("\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"cpu\"}}",
                "offload_optimizer.device is ignored");
    check_warns("\"fp16\": {\"enabled\": true, \"min_loss_scale\": 0.0}", "without a floor");
    check_warns("\"fp16\": {\"enabled\": true, \"hysteresis\": 0}", "counts as 1");
    check_warns("\"scheduler\": {\"params\": {}}", "scheduler.type is not there");
    check_warns("\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": "
                "{\"total_num_steps\": 100}}",
                "scheduler.params.total_num_steps is 100, and the warm-up alone takes 1000 steps");
    check_warns("\"scheduler\": {\"type\": \"linear\", \"params\": "
                "{\"num_training_steps\": 100, \"num_warmup_steps\": 101}}",
                "num_training_steps is 100, and the warm-up alone takes 101 steps");
    check_silent("\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": "
                 "{\"total_num_steps\": 100, \"warmup_num_steps\": 100}}");
    check_warns("\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"total_num_steps\": 9}}",
                "does not read it");
    check_warns("\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_type\": \"cubic\"}}",
                "the default is taken");
}

/* ---- resolving ---- */

static void config_missing_values_name_the_fix(void)
{
    static const struct {
        const char *text, *sentence;
    } ROWS[] = {
        {"{\"train_batch_size\": 1}",
         "configuration: optimizer.type is not there; add \"optimizer\": {\"type\": \"AdamW\""},
        {"{\"train_batch_size\": 1, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\n\"lr\": "
         "\"auto\"}}}",
         "configuration:2:1: optimizer.params.lr is \"auto\" and the program has not set it"},
        {"{\"train_micro_batch_size_per_gpu\": \"auto\", \"train_batch_size\": \"auto\"}",
         "no batch size is given"},
        {"{\"train_batch_size\": 1, \"optimizer\": {\"type\": \"Adam\"}, \"scheduler\": {\"type\": "
         "\"WarmupDecayLR\", \"params\": {\"total_num_steps\": \"auto\"}}}",
         "scheduler.params.total_num_steps is \"auto\""},
        {"{\"train_batch_size\": 1, \"optimizer\": {\"type\": \"Adam\"}, \"scheduler\": {\"type\": "
         "\"WarmupCosineLR\"}}",
         "scheduler.params.total_num_steps is not there; give the number of steps"},
        {"{\"train_batch_size\": 1, \"optimizer\": {\"type\": \"AdamW\"}, \"scheduler\": "
         "{\"type\": "
         "\"linear\", \"params\": {\"num_training_steps\": \"auto\"}}}",
         "scheduler.params.num_training_steps is \"auto\" and the program has not set it; give the "
         "number of steps of the whole training, or leave the block \"scheduler\" out if the "
         "program "
         "sets the rates"},
        {"{\"train_batch_size\": 1, \"optimizer\": {\"type\": \"Adam\"}, \"data_types\": "
         "{\"param_dtype\": \"bf16\"}}",
         "data_types.param_dtype contradicts"},
    };

    for (size_t i = 0; i < COUNT_OF(ROWS); i++) {
        check_resolve_refused(SHERD_E_INVAL, ROWS[i].text, 1, ROWS[i].sentence);
    }
}

static void config_auto_sizes_follow_the_hidden_size(void)
{
    static const char members[] = "\"zero_optimization\": {\"stage\": 3,"
                                  " \"stage3_prefetch_bucket_size\": \"auto\","
                                  " \"stage3_param_persistence_threshold\": \"auto\"}";
    sherd_config     *config    = completed(members);
    sherdi_settings   got       = resolved(config, 1);

    CHECK_INT(50000000, got.sharding.prefetch_bucket_size);
    CHECK_INT(100000, got.sharding.persistence_threshold);
    CHECK_OK(sherd_config_set(config, "hidden_size", "4096"));
    got = resolved(config, 1);
    CHECK_INT(15099494, got.sharding.prefetch_bucket_size);
    CHECK_INT(40960, got.sharding.persistence_threshold);
    CHECK_STATUS(SHERD_E_INVAL, sherd_config_set(config, "hidden_size", "0"));
    sherd_config_destroy(config);
}

static void config_auto_of_the_optimizer_and_schedule_has_rules(void)
{
    sherd_config *config = parsed(
        "{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\","
        " \"gradient_accumulation_steps\": \"auto\", \"bf16\": {\"enabled\": \"auto\"},"
        " \"fp16\": {\"enabled\": \"auto\"}, \"optimizer\": {\"type\": \"AdamW\", \"params\": {"
        " \"lr\": \"auto\", \"betas\": \"auto\", \"eps\": \"auto\", \"weight_decay\": \"auto\"}},"
        " \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"warmup_min_lr\": \"auto\","
        " \"warmup_max_lr\": \"auto\", \"warmup_num_steps\": \"auto\", \"total_num_steps\": "
        "\"auto\"}}}");
    sherdi_settings got;

    CHECK_OK(sherd_config_set(config, "train_micro_batch_size_per_gpu", "4"));
    CHECK_OK(sherd_config_set(config, "optimizer.params.lr", "2e-5"));
    CHECK_OK(sherd_config_set(config, "scheduler.params.total_num_steps", "500"));
    CHECK_OK(sherd_config_set(config, "bf16.enabled", "true"));
    got = resolved(config, 3);
    CHECK_INT(12, got.batch.train_batch_size);
    CHECK_INT(1, got.batch.accumulation);
    CHECK_INT(SHERD_BF16, got.numerics.compute_dtype);
    CHECK_INT(SHERD_BF16, got.numerics.comm_dtype);
    CHECK_CLOSE(2e-5, got.update.lr, 0);
    CHECK_CLOSE(0.999, got.update.betas[1], 0);
    CHECK_CLOSE(0, got.schedule.min_lr.at[0], 0);
    CHECK(isnan(got.schedule.max_lr.at[0]));
    CHECK_INT(0, got.schedule.warmup_steps);
    CHECK_INT(500, got.schedule.total_steps);
    CHECK_INT(0, sherd_config_warning_count(config));
    sherd_config_destroy(config);
}

static void config_warmup_maximum_depends_on_the_schedule(void)
{
    CHECK(isnan(settings_of("\"scheduler\": {\"type\": \"WarmupLR\"}").schedule.max_lr.at[0]));
    CHECK(isnan(settings_of("\"scheduler\": {\"type\": \"WarmupLR\", \"params\": "
                            "{\"warmup_max_lr\": null}}")
                    .schedule.max_lr.at[0]));
    CHECK_CLOSE(0.001,
                settings_of("\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": "
                            "{\"total_num_steps\": 5}}")
                    .schedule.max_lr.at[0],
                0);
    CHECK_INT(1000, settings_of("\"scheduler\": {\"type\": \"WarmupLR\"}").schedule.warmup_steps);
    CHECK_CLOSE(1e-4,
                settings_of("\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": "
                            "{\"total_num_steps\": 5}}")
                    .schedule.cos_min_ratio,
                0);
}

#define SCHEDULE(type, params) "\"scheduler\": {\"type\": \"" type "\", \"params\": {" params "}}"

static void config_schedules_have_defaults_of_their_own(void)
{
    sherdi_schedule_params cycle =
        settings_of(SCHEDULE("OneCycle", "\"cycle_min_lr\": 0.1, \"cycle_max_lr\": [0.2, 0.3],"
                                         " \"cycle_first_step_size\": 30,"
                                         " \"cycle_first_stair_count\": 4"))
            .schedule;

    CHECK_INT(0, cycle.cycle_min_lr.count);
    CHECK_INT(2, cycle.cycle_max_lr.count);
    CHECK_CLOSE(0.3, sherdi_rate_of(&cycle.cycle_max_lr, 1), 0);
    CHECK_CLOSE(0.1, sherdi_rate_of(&cycle.cycle_min_lr, 1), 0);
    CHECK_INT(30, cycle.second_steps);
    CHECK_INT(4, cycle.second_stairs);
    CHECK_CLOSE(0.9, cycle.cycle_max_mom.at[0], 0);
    CHECK_INT(1, cycle.cycles_momentum);
    CHECK_INT(0, settings_of(SCHEDULE("linear", "\"total_num_steps\": 9")).schedule.warmup_steps);
    CHECK_INT(10000, settings_of(SCHEDULE("inverse_sqrt", "")).schedule.timescale);
    CHECK_INT(7,
              settings_of(SCHEDULE("inverse_sqrt", "\"num_warmup_steps\": 7")).schedule.timescale);
    CHECK_CLOSE(
        0.25,
        settings_of(SCHEDULE("cosine_with_min_lr", "\"total_num_steps\": 9, \"min_lr\": 25e-6"))
            .schedule.min_lr_rate,
        1e-15);
}

static void config_schedules_say_what_they_need(void)
{
    static const struct {
        const char *members, *sentence;
    } ROWS[] = {
        {SCHEDULE("OneCycle", "\"cycle_min_lr\": 1"), "cycle_max_lr is not there"},
        {SCHEDULE("linear", ""), "total_num_steps is not there; give the number of steps"},
        {SCHEDULE("warmup_stable_decay", "\"total_num_steps\": 9"), "num_decay_steps is not there"},
        {SCHEDULE("warmup_stable_decay", "\"num_decay_steps\": 9"),
         "num_stable_steps is not there"},
        {SCHEDULE("warmup_stable_decay",
                  "\"num_decay_steps\": 9, \"num_stable_steps\": 1, \"warmup_type\": \"log\""),
         "warms up linear, cosine or 1-sqrt"},
        {SCHEDULE("cosine_with_min_lr", "\"total_num_steps\": 9"), "needs one of"},
        {SCHEDULE("cosine_with_min_lr",
                  "\"total_num_steps\": 9, \"min_lr\": 0, \"min_lr_rate\": 0"),
         "needs one of"},
        {SCHEDULE("polynomial", "\"total_num_steps\": 9, \"lr_end\": 1"), "is not below"},
    };

    for (size_t i = 0; i < COUNT_OF(ROWS); i++) {
        sherd_config   *config = completed(ROWS[i].members);
        sherdi_settings settings;

        CHECK_STATUS(SHERD_E_INVAL, sherdi_config_resolve(config, 1, &settings));
        CHECK_ERROR_SAYS(ROWS[i].sentence);
        sherd_config_destroy(config);
    }
    check_load_refused(SHERD_E_INVAL,
                       "{" SCHEDULE("LRRangeTest", "\"lr_range_test_min_lr\": []") "}",
                       "a list with one for each parameter group");
    check_warns(SCHEDULE("cosine", "\"total_num_steps\": 9, \"power\": 2"),
                "this type of schedule does not read it");
    check_warns(SCHEDULE("WarmupLR", "\"warmup_type\": \"cosine\""), "is read as log");
}

static void config_fixed_loss_scale_is_not_dynamic(void)
{
    sherdi_settings got = settings_of("\"fp16\": {\"enabled\": true, \"loss_scale\": 128}");

    CHECK_INT(0, got.numerics.scaler.is_dynamic);
    CHECK_CLOSE(128, got.numerics.scaler.initial_scale, 0);
    CHECK_INT(1, got.numerics.check_overflow);
}

static void config_dynamic_loss_scale_may_be_a_word(void)
{
    sherdi_settings got = settings_of("\"fp16\": {\"enabled\": true, \"loss_scale\": \"dynamic\"}");

    CHECK_INT(1, got.numerics.scaler.is_dynamic);
    CHECK_CLOSE(65536, got.numerics.scaler.initial_scale, 0);
    check_warns("\"fp16\": {\"enabled\": true, \"loss_scale\": \"dynamic\"}",
                "fp16.loss_scale is \"dynamic\": the word is read as 0");
    check_load_refused(SHERD_E_INVAL, "{\"fp16\": {\"loss_scale\": \"static\"}}",
                       "fp16.loss_scale is \"static\"; it must be a number");
    check_load_refused(SHERD_E_INVAL, "{\"fp16\": {\"min_loss_scale\": \"dynamic\"}}",
                       "fp16.min_loss_scale is \"dynamic\"; it must be a number");
}

static void config_overflow_check_follows_its_key_outside_fp16(void)
{
    CHECK_INT(1, settings_of("\"bf16\": {\"enabled\": true}").numerics.check_overflow);
    CHECK_INT(0, settings_of("\"bf16\": {\"enabled\": true, \"check_grad_overflow\": false}")
                     .numerics.check_overflow);
    CHECK_INT(
        1, settings_of("\"fp16\": {\"enabled\": true}, \"bf16\": {\"check_grad_overflow\": false}")
               .numerics.check_overflow);
}

/* DeepSpeed's keys mean sherd's own, where bf16 is on. */
static void config_bf16_states_are_encodings(void)
{
    sherd_config   *config = completed("\"bf16\": {\"enabled\": true, "
                                         "\"bf16_master_weights_and_grads\": true, "
                                         "\"bf16_optimizer_states\": true}");
    sherdi_settings got    = resolved(config, 2);

    CHECK_INT(SHERDI_MASTER_BF16, got.master_encoding);
    CHECK_INT(SHERDI_MOMENTS_BF16, got.moment_encoding);
    sherd_config_destroy(config);
    config = completed("\"bf16\": {\"bf16_master_weights_and_grads\": true}");
    CHECK_INT(SHERDI_MASTER_F32, resolved(config, 2).master_encoding);
    sherd_config_destroy(config);
    config = completed("\"bf16\": {\"enabled\": true, \"bf16_optimizer_states\": true}");
    CHECK(sherdi_config_resolve(config, 2, &got) != SHERD_OK);
    CHECK_ERROR_SAYS("needs bf16.bf16_master_weights_and_grads");
    sherd_config_destroy(config);
}

static const test_case CASES[] = {
    CASE(config_bf16_states_are_encodings),
    CASE(config_smallest_file_resolves_to_the_defaults),
    CASE(config_every_honoured_key_arrives),
    CASE(config_optimizer_params_arrive),
    CASE(config_adam_is_adamw_unless_told),
    CASE(config_rate_that_nobody_gives_is_the_optimizers),
    CASE(config_torch_adam_brings_torchs_weight_decay),
    CASE(config_momentum_is_the_optimizers),
    CASE(config_key_that_no_optimizer_reads_is_remarked_on),
    CASE(config_muon_has_numbers_of_its_own),
    CASE(config_batch_sizes_are_derived),
    CASE(config_inference_needs_no_batch_size),
    CASE(config_batch_sizes_that_do_not_multiply_out_are_refused),
    CASE(config_head_stage_is_read_generously),
    CASE(config_stage_auto_needs_the_program),
    CASE(config_head_sizes_are_read_generously),
    CASE(config_prefetch_bucket_fraction_is_cut_off),
    CASE(config_sub_group_of_zero_is_the_default),
    CASE(config_head_overlap_depends_on_the_stage),
    CASE(config_head_offload_blocks_that_mean_none_resolve),
    CASE(config_head_offload_errors_are_named),
    CASE(config_head_precision_blocks),
    CASE(config_head_general_keys),
    CASE(config_head_batch_may_be_written_as_a_real),
    CASE(config_other_names_arrive),
    CASE(config_max_grad_norm_is_clipping_where_that_is_absent),
    CASE(config_unknown_keys_warn_at_the_top_and_fail_in_closed_blocks),
    CASE(config_messages_are_one_line),
    CASE(config_hints_are_ignored_with_a_warning),
    CASE(config_what_would_train_something_else_is_refused),
    CASE(config_bad_values_name_location_key_and_reason),
    CASE(config_combinations_that_do_nothing_warn),
    CASE(config_missing_values_name_the_fix),
    CASE(config_auto_sizes_follow_the_hidden_size),
    CASE(config_auto_of_the_optimizer_and_schedule_has_rules),
    CASE(config_warmup_maximum_depends_on_the_schedule),
    CASE(config_schedules_have_defaults_of_their_own),
    CASE(config_schedules_say_what_they_need),
    CASE(config_fixed_loss_scale_is_not_dynamic),
    CASE(config_dynamic_loss_scale_may_be_a_word),
    CASE(config_overflow_check_follows_its_key_outside_fp16),
};

RUN_MAIN(CASES)

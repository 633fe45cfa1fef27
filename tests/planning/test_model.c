/* Models without a file: built-in architectures and counts, as an engine sees them. */
#include "tests/planning/rig.h"

#include "trainer/declare.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static char why[512];

static arch preset_of(arch_kind kind, const char *name)
{
    arch sizes;

    CHECK_INT(0, arch_preset(kind, name, &sizes));
    return sizes;
}

/* The plan of a declared engine. */
typedef struct plan_text {
    char   bytes[1 << 20];
    size_t len_bytes;
} plan_text;

static sherd_status plan_append(void *ctx, const char *bytes, size_t len_bytes)
{
    plan_text *text = ctx;

    if (len_bytes > sizeof(text->bytes) - text->len_bytes) {
        return SHERD_E_NOMEM;
    }
    memcpy(text->bytes + text->len_bytes, bytes, len_bytes);
    text->len_bytes += len_bytes;
    return SHERD_OK;
}

static void model_from_arch_is_planned_as_the_trainer_declares_it(void)
{
    static plan_text plans[2];

    for (int kind = ARCH_GPT2; kind < ARCH_KINDS; kind++) {
        arch            sizes = preset_of((arch_kind)kind, "tiny");
        planning_model *model = planning_model_from_arch(&sizes, "tiny", why, sizeof(why));

        CHECK(model != NULL);
        for (int i = 0; i < 2; i++) {
            sherd_world  *world;
            sherd_engine *engine = rig_engine_open(&world);

            CHECK_OK(i == 0 ? arch_declare(&sizes, engine) : planning_model_declare(model, engine));
            plans[i].len_bytes = 0;
            CHECK_OK(sherd_engine_plan(engine, SHERD_PLAN_JSON, plan_append, &plans[i]));
            rig_engine_close(engine, world);
        }
        CHECK_INT(plans[0].len_bytes, plans[1].len_bytes);
        CHECK_BYTES_EQUAL(plans[0].bytes, plans[1].bytes, plans[0].len_bytes);
        planning_model_destroy(model);
    }
}

static void model_from_every_preset_has_its_elements(void)
{
    for (int kind = ARCH_GPT2; kind < ARCH_KINDS; kind++) {
        const char *name;

        for (size_t i = 0; (name = arch_preset_name((arch_kind)kind, i)) != NULL; i++) {
            arch            sizes = preset_of((arch_kind)kind, name);
            planning_model *model = planning_model_from_arch(&sizes, name, why, sizeof(why));

            CHECK(model != NULL);
            CHECK_INT(arch_elems(&sizes), model->elems);
            CHECK_INT(arch_unit_count(&sizes), model->num_units);
            CHECK_INT(arch_param_count(&sizes), model->num_params);
            CHECK(model->has_arch && model->sizes.hidden == sizes.hidden);
            CHECK_CLOSE(arch_flops_per_token(&sizes, 777),
                        planning_model_flops_per_token(model, 777), 0);
            rig_check_declared(model);
            planning_model_destroy(model);
        }
    }
}

static void check_label(planning_model *model, const char *label)
{
    CHECK(model != NULL);
    CHECK_BYTES_EQUAL(label, model->label, strlen(label) + 1);
    planning_model_destroy(model);
}

static void model_labels_say_what_was_asked_for(void)
{
    arch sizes = preset_of(ARCH_GPT2, "124m"), flat = preset_of(ARCH_MINIMIND, "tiny");

    flat.layers = 1;
    check_label(planning_model_from_arch(&sizes, "124m", why, sizeof(why)), "gpt2 124m");
    check_label(planning_model_from_arch(&sizes, NULL, why, sizeof(why)),
                "gpt2 hidden 768, 12 layers");
    check_label(planning_model_from_arch(&flat, NULL, why, sizeof(why)),
                "minimind hidden 64, 1 layer");
    check_label(planning_model_from_count(7500000000, why, sizeof(why)), "7.5B parameters");
    check_label(planning_model_from_count(124439808, why, sizeof(why)), "124.4M parameters");
    check_label(planning_model_from_count(63, why, sizeof(why)), "63 parameters");
    check_label(planning_model_from_count(1, why, sizeof(why)), "1 parameter");
}

static void check_refused(planning_model *model, const char *sentence)
{
    CHECK(model == NULL);
    test_check_contains(__FILE__, __LINE__, why, sentence);
}

static void model_that_cannot_be_is_refused(void)
{
    arch bad = preset_of(ARCH_GPT2, "124m"), deep = preset_of(ARCH_GPT2, "tiny");

    bad.heads   = 7;
    deep.layers = 1 << 28;
    check_refused(planning_model_from_arch(&bad, NULL, why, sizeof(why)),
                  "hidden 768 is not a multiple of heads 7");
    check_refused(planning_model_from_arch(&deep, NULL, why, sizeof(why)),
                  "at most 131072 can be planned");
    check_refused(planning_model_from_count(0, why, sizeof(why)), "between 1 and");
    check_refused(planning_model_from_count(SIZE_MAX, why, sizeof(why)), "between 1 and");
}

/* Padding is a chunk at most, in the whole model; parameters are as many as said. */
static void model_from_count_is_exact(void)
{
    static const size_t COUNTS[] = {
        1,         63,         64,         65,          1000,         999999,        1 << 20,
        124439808, 7500000000, 6738415616, 70000000001, 175000000000, 1000000000000, SIZE_MAX / 64};
    uint64_t seed = 1;

    for (size_t i = 0; i < 100; i++) {
        size_t num_known = sizeof(COUNTS) / sizeof(COUNTS[0]);
        size_t elems     = i < num_known ? COUNTS[i] : 1 + test_random(&seed) % (1ull << (i / 2));
        planning_model *model = planning_model_from_count(elems, why, sizeof(why));
        size_t          sum = 0, uneven = 0;

        CHECK(model != NULL);
        CHECK_INT(elems, model->elems);
        CHECK(model->num_units >= 1 && model->num_units <= 128 && !model->has_arch);
        for (size_t k = 0; k < model->num_params; k++) {
            sum += model->params[k].elems;
            uneven += model->params[k].elems % SHERD_CHUNK_ELEMS != 0;
        }
        CHECK_INT(elems, sum);
        CHECK(uneven <= 1);
        CHECK_CLOSE(6.0 * (double)elems, planning_model_flops_per_token(model, 1024), 0);
        rig_check_declared(model);
        planning_model_destroy(model);
    }
}

/* The layers of the models of these sizes, roughly. */
static void model_from_count_grows_in_depth(void)
{
    static const struct {
        size_t elems, least, most;
    } known[] = {{1, 1, 1},
                 {124439808, 8, 16},
                 {6738415616, 28, 36},
                 {70000000000, 64, 96},
                 {1000000000000, 128, 128}};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        planning_model *model = planning_model_from_count(known[i].elems, why, sizeof(why));

        CHECK(model != NULL);
        CHECK(model->num_units >= known[i].least && model->num_units <= known[i].most);
        planning_model_destroy(model);
    }
}

static void count_is_read_exactly(void)
{
    static const struct {
        const char *text;
        size_t      elems;
    } known[] = {
        {"7.5B", 7500000000},
        {"124M", 124000000},
        {"1T", 1000000000000},
        {"1e9", 1000000000},
        {"1E+9", 1000000000},
        {"64000", 64000},
        {"64k", 64000},
        {"0.5G", 500000000},
        {"1.5K", 1500},
        {"1.500000000000000000000000000000K", 1500},
        {"007", 7},
        {"6.738415616B", 6738415616},
        {"2.5e1", 25},
        {"18446744073709551615", SIZE_MAX},
        {"18.446744073709551615e18", SIZE_MAX},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        CHECK_INT(known[i].elems, planning_count_parse(known[i].text));
    }
}

static void count_that_is_none_is_refused(void)
{
    static const char *const BAD[] = {"",
                                      "0",
                                      "0B",
                                      "-1",
                                      "+1",
                                      " 1",
                                      "1 ",
                                      "B",
                                      "1.5",
                                      "1.B",
                                      ".5B",
                                      "1.2345K",
                                      "1BB",
                                      "1e",
                                      "1e-3",
                                      "1e9B",
                                      "0x10",
                                      "1,000",
                                      "nan",
                                      "1e100",
                                      "1e20",
                                      "18446744073709551616",
                                      "20000000000000000000",
                                      "18446745T",
                                      "1..5B",
                                      "1.5.5B",
                                      "seven",
                                      "1e9.5",
                                      "1\xcb"};

    for (size_t i = 0; i < sizeof(BAD) / sizeof(BAD[0]); i++) {
        if (planning_count_parse(BAD[i]) != 0) {
            test_fail(__FILE__, __LINE__, "\"%s\" was read", BAD[i]);
        }
    }
}

static const test_case cases[] = {
    CASE(model_from_arch_is_planned_as_the_trainer_declares_it),
    CASE(model_from_every_preset_has_its_elements),
    CASE(model_labels_say_what_was_asked_for),
    CASE(model_that_cannot_be_is_refused),
    CASE(model_from_count_is_exact),
    CASE(model_from_count_grows_in_depth),
    CASE(count_is_read_exactly),
    CASE(count_that_is_none_is_refused),
};

RUN_MAIN(cases)

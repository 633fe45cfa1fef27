/* Tensors and headers of the formats that models leave in: names, shapes and order, and what is
 * refused. Whether other programs agree is held by tests/weights. */
#include "models/hf.h"
#include "models/llmc.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <string.h>

static arch preset_of(arch_kind kind, const char *name)
{
    arch model;

    CHECK_INT(0, arch_preset(kind, name, &model));
    return model;
}

static const sherd_tensor_map *named(const maps *list, const char *name)
{
    for (size_t i = 0; i < list->count; i++) {
        if (strcmp(list->tensors[i].name, name) == 0) {
            return &list->tensors[i];
        }
    }
    test_fail(__FILE__, __LINE__, "no tensor is called %s", name);
}

static void check_map(const maps *list, const char *name, size_t rows, size_t columns,
                      int is_transposed)
{
    const sherd_tensor_map *map = named(list, name);

    CHECK_INT(columns == 0 ? 1 : 2, map->ndim);
    CHECK_INT(rows, map->shape[0]);
    CHECK(columns == 0 || map->shape[1] == columns);
    CHECK_INT(is_transposed, map->is_transposed);
    CHECK(strcmp(map->param, name) == 0);
}

static size_t elems_of(const maps *list)
{
    size_t elems = 0;

    for (size_t i = 0; i < list->count; i++) {
        const sherd_tensor_map *map = &list->tensors[i];

        elems += map->shape[0] * (map->ndim == 2 ? map->shape[1] : 1);
    }
    return elems;
}

/* ---- Hugging Face ---- */

static void gpt2_matrices_of_layers_are_transposed(void)
{
    arch model = preset_of(ARCH_GPT2, "124m");
    maps list;

    CHECK_INT(0, hf_maps_open(&model, &list));
    check_map(&list, "transformer.wte.weight", 50257, 768, 0);
    check_map(&list, "transformer.wpe.weight", 1024, 768, 0);
    check_map(&list, "transformer.h.11.attn.c_attn.weight", 768, 2304, 1);
    check_map(&list, "transformer.h.0.mlp.c_proj.weight", 3072, 768, 1);
    check_map(&list, "transformer.h.0.mlp.c_fc.bias", 3072, 0, 0);
    check_map(&list, "transformer.ln_f.weight", 768, 0, 0);
    CHECK_INT(arch_elems(&model), elems_of(&list));
    maps_close(&list);
}

static void minimind_is_qwen3_by_its_names(void)
{
    arch model = preset_of(ARCH_MINIMIND, "64m");
    char text[4096];
    maps list;

    CHECK_INT(0, hf_maps_open(&model, &list));
    check_map(&list, "model.embed_tokens.weight", 6400, 768, 0);
    check_map(&list, "model.layers.7.self_attn.k_proj.weight", 384, 768, 0);
    check_map(&list, "model.layers.0.self_attn.q_norm.weight", 96, 0, 0);
    check_map(&list, "model.layers.0.mlp.down_proj.weight", 768, 2432, 0);
    CHECK_INT(arch_elems(&model), elems_of(&list));
    maps_close(&list);
    CHECK(hf_config_write(&model, SHERD_BF16, text, sizeof(text)) < sizeof(text));
    test_check_contains(__FILE__, __LINE__, text, "\"Qwen3ForCausalLM\"");
    test_check_contains(__FILE__, __LINE__, text, "\"torch_dtype\": \"bfloat16\"");
}

static void a_tied_head_may_be_there_once_more(void)
{
    arch   model = preset_of(ARCH_GPT2, "tiny");
    size_t tied = 0, untied = 0;

    while (hf_extra(&model, tied) != NULL) {
        tied++;
    }
    model.is_untied = 1;
    while (hf_extra(&model, untied) != NULL) {
        untied++;
    }
    CHECK_INT(tied - 1, untied);
}

static const char *checked(const arch *model, const char *text)
{
    static char why[256];

    return hf_config_check(model, text, strlen(text), why, sizeof(why));
}

static void check_config_refused(const arch *model, const char *config, const char *from,
                                 const char *to, const char *sentence)
{
    char        text[4096];
    const char *at = strstr(config, from);
    const char *why;

    CHECK(at != NULL);
    (void)snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - config), config, to,
                   at + strlen(from));
    why = checked(model, text);
    CHECK(why != NULL);
    test_check_contains(__FILE__, __LINE__, why, sentence);
}

static void a_config_that_was_written_is_of_its_model_alone(void)
{
    for (int kind = ARCH_GPT2; kind < ARCH_KINDS; kind++) {
        arch model = preset_of((arch_kind)kind, "tiny");
        char text[4096];

        (void)hf_config_write(&model, SHERD_F32, text, sizeof(text));
        CHECK(checked(&model, text) == NULL);
        check_config_refused(&model, text, "\"vocab_size\": 256", "\"vocab_size\": 255",
                             "vocab_size");
        check_config_refused(&model, text, "\"tie_word_embeddings\": ",
                             model.is_untied ? "\"tie_word_embeddings\": true, \"x\": "
                                             : "\"tie_word_embeddings\": false, \"x\": ",
                             "tie_word_embeddings");
        check_config_refused(&model, text, "\"model_type\"", "\"model_type\": \"bert\", \"x\"",
                             "model_type");
        check_config_refused(&model, text, "{", "[{", "not a JSON object");
    }
}

static void what_shapes_do_not_show_is_compared(void)
{
    arch model = preset_of(ARCH_MINIMIND, "tiny");
    char text[4096];

    (void)hf_config_write(&model, SHERD_F32, text, sizeof(text));
    check_config_refused(&model, text, "\"rope_theta\": 1000000.0}", "\"rope_theta\": 10000.0}",
                         "rope_theta is 10000 there");
    check_config_refused(&model, text, "\"rope_type\": \"default\"", "\"rope_type\": \"yarn\"",
                         "rope_type is \"yarn\"");
    check_config_refused(&model, text, "\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 1e-05",
                         "rms_norm_eps");
    check_config_refused(&model, text, "\"silu\"", "\"gelu\"", "hidden_act");
    check_config_refused(&model, text, "\"num_attention_heads\": 4", "\"num_attention_heads\": 8",
                         "num_attention_heads is 8 there and 4");
    check_config_refused(&model, text, "\"head_dim\": 16", "\"head_dim\": \"x\"", "head_dim");
}

/* What is written is read as the same model, and written as the same text again. */
static void check_round_trip(const arch *model)
{
    char      text[4096], again[4096], why[256];
    hf_config config;
    size_t    len_bytes = hf_config_write(model, SHERD_BF16, text, sizeof(text));

    CHECK(len_bytes < sizeof(text));
    CHECK_INT(0, hf_config_parse(text, len_bytes, &config, why, sizeof(why)));
    CHECK_BYTES_EQUAL("", config.not_computed, 1);
    CHECK(arch_check(&config.sizes, why, sizeof(why)) == NULL);
    CHECK_INT(model->kind == ARCH_MINIMIND ? ARCH_QWEN3 : model->kind, config.sizes.kind);
    CHECK_INT(arch_elems(model), arch_elems(&config.sizes));
    CHECK(checked(model, text) == NULL);
    (void)hf_config_write(&config.sizes, SHERD_BF16, again, sizeof(again));
    CHECK_BYTES_EQUAL(text, again, len_bytes + 1);
}

static void every_model_is_read_as_it_was_written(void)
{
    arch model;

    for (int kind = ARCH_GPT2; kind < ARCH_KINDS; kind++) {
        for (size_t i = 0; arch_preset_name((arch_kind)kind, i) != NULL; i++) {
            model = preset_of((arch_kind)kind, arch_preset_name((arch_kind)kind, i));
            check_round_trip(&model);
        }
    }
    model          = preset_of(ARCH_LLAMA, "tiny");
    model.features = ARCH_HAS_QKV_BIAS | ARCH_HAS_O_BIAS | ARCH_HAS_MLP_BIAS;
    model.rope     = (arch_rope){12345.678, ARCH_ROPE_LINEAR, 0.3, 0.0, 0.0, 0};
    model.norm_eps = 1.0 / 3e5;
    check_round_trip(&model);
    model             = preset_of(ARCH_QWEN2, "tiny");
    model.window      = 100;
    model.full_layers = 1;
    model.rope        = (arch_rope){1e4, ARCH_ROPE_LLAMA3, 8.0, 1.25, 4.5, 100};
    check_round_trip(&model);
}

/* A config.json of a small model, with more keys. */
static hf_config config_of(const char *type, const char *more)
{
    char      text[1024], why[256] = "";
    hf_config config = {0};

    (void)snprintf(text, sizeof(text),
                   "{\"model_type\": \"%s\", \"hidden_size\": 8, \"num_hidden_layers\": 2, "
                   "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
                   "\"intermediate_size\": 16, \"head_dim\": 4, \"vocab_size\": 10%s}",
                   type, more);
    if (hf_config_parse(text, strlen(text), &config, why, sizeof(why)) != 0) {
        test_fail(__FILE__, __LINE__, "%s: %s", text, why);
    }
    return config;
}

static void windows_are_read_as_transformers_does(void)
{
    static const struct {
        const char *type, *more;
        size_t      window, full_layers;
    } known[] = {
        {"mistral", "", 4096, 0},
        {"mistral", ", \"sliding_window\": null", 0, 0},
        {"mistral", ", \"sliding_window\": 7", 7, 0},
        {"llama", ", \"sliding_window\": 7", 0, 0},
        {"qwen2", ", \"sliding_window\": 7", 0, 0},
        {"qwen2", ", \"use_sliding_window\": false, \"sliding_window\": 7", 0, 0},
        {"qwen2", ", \"use_sliding_window\": true, \"sliding_window\": null", 0, 0},
        {"qwen2", ", \"use_sliding_window\": true, \"sliding_window\": 7", 0, 0},
        {"qwen2", ", \"use_sliding_window\": true, \"max_window_layers\": 1", 4096, 1},
        {"qwen3", ", \"use_sliding_window\": true, \"max_window_layers\": 0, \"sliding_window\": 9",
         9, 0},
        {"qwen3",
         ", \"use_sliding_window\": true, \"sliding_window\": 9, \"layer_types\": "
         "[\"full_attention\", \"sliding_attention\"]",
         9, 1},
        {"qwen3",
         ", \"use_sliding_window\": true, \"sliding_window\": 9, \"layer_types\": "
         "[\"full_attention\", \"full_attention\"]",
         0, 0},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        hf_config config = config_of(known[i].type, known[i].more);

        CHECK_INT(known[i].window, config.sizes.window);
        CHECK_INT(known[i].full_layers, config.sizes.full_layers);
        CHECK_INT(0, config.not_computed[0]);
    }
}

static void rotations_of_older_files_are_read(void)
{
    arch_rope rope = config_of("llama", "").sizes.rope;

    CHECK(rope.theta == 1e4 && rope.kind == ARCH_ROPE_PLAIN);
    rope = config_of("minimind", "").sizes.rope;
    CHECK(rope.theta == 1e6);
    rope = config_of("llama", ", \"rope_theta\": 5, \"rope_scaling\": {\"type\": \"linear\", "
                              "\"factor\": 2}")
               .sizes.rope;
    CHECK(rope.theta == 5.0 && rope.kind == ARCH_ROPE_LINEAR && rope.factor == 2.0);
    rope = config_of("qwen2", ", \"rope_theta\": 5, \"rope_parameters\": {\"rope_theta\": 7}")
               .sizes.rope;
    CHECK(rope.theta == 7.0 && rope.kind == ARCH_ROPE_PLAIN);
}

#define LLAMA3_BLOCK(more)                                                                         \
    "{\"rope_type\": \"llama3\", \"factor\": 4, \"low_freq_factor\": 1, \"high_freq_factor\": "    \
    "4" more "}"

/* As transformers 5 reads a file that somebody has added the older block to. */
static void the_older_block_of_rotation_goes_before_the_newer(void)
{
    arch_rope rope = config_of("llama", ", \"rope_parameters\": {\"rope_theta\": 7, \"rope_type\": "
                                        "\"default\"}, \"rope_scaling\": {\"type\": \"linear\", "
                                        "\"factor\": 2}")
                         .sizes.rope;

    CHECK(rope.theta == 1e4 && rope.kind == ARCH_ROPE_LINEAR && rope.factor == 2.0);
    rope = config_of("qwen3", ", \"rope_parameters\": {\"rope_theta\": 7}, \"rope_scaling\": {}")
               .sizes.rope;
    CHECK(rope.theta == 7.0 && rope.kind == ARCH_ROPE_PLAIN);
    rope = config_of("mistral", ", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 4, "
                                "\"rope_theta\": 123456}")
               .sizes.rope;
    CHECK(rope.theta == 123456.0 && rope.kind == ARCH_ROPE_LINEAR);
    rope = config_of("llama",
                     ", \"original_max_position_embeddings\": 16, \"rope_scaling\": " LLAMA3_BLOCK(
                         ", \"original_max_position_embeddings\": 32"))
               .sizes.rope;
    CHECK(rope.original_length == 16);
    rope = config_of("llama", ", \"rope_scaling\": " LLAMA3_BLOCK("")).sizes.rope;
    CHECK(rope.kind == ARCH_ROPE_LLAMA3 && rope.original_length > 0);
}

/* Sizes hold all the same, which is all that planning needs. */
static void what_is_not_computed_is_named(void)
{
    static const struct {
        const char *more, *says;
    } known[] = {
        {", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4}", "rope_type is \"yarn\""},
        {", \"rope_parameters\": {\"rope_type\": \"dynamic\"}", "rope_type is \"dynamic\""},
        {", \"rope_scaling\": {\"type\": \"longrope\"}", "rope_type is \"longrope\""},
        {", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 4, \"low_freq_factor\": 1}",
         "high_freq_factor is missing"},
        {", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 0}", "factor is 0"},
        {", \"rope_parameters\": {\"rope_theta\": 7}, \"rope_scaling\": {\"rope_type\": \"yarn\"}",
         "rope_type is \"yarn\""},
        {", \"rope_scaling\": \"linear\"", "is no block of keys"},
        {", \"rope_scaling\": {\"rope_type\": null, \"type\": \"linear\"}", "rope_type is no text"},
        {", \"rope_scaling\": " LLAMA3_BLOCK(", \"original_max_position_embeddings\": 32.5"),
         "is no whole number"},
        {", \"rope_theta\": -1", "rope_theta is 0, or below"},
        {", \"rms_norm_eps\": \"1e-5\"", "rms_norm_eps is a text"},
        {", \"partial_rotary_factor\": 0.5", "partial_rotary_factor"},
        {", \"hidden_act\": \"gelu\"", "hidden_act is \"gelu\""},
        {", \"use_sliding_window\": true, \"layer_types\": [\"sliding_attention\", "
         "\"full_attention\"]",
         "layer_types"},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        hf_config config = config_of("qwen3", known[i].more);

        test_check_contains(__FILE__, __LINE__, config.not_computed, known[i].says);
        CHECK_INT(8, config.sizes.hidden);
    }
}

/* ---- llm.c ---- */

static void llmc_headers_say_what_the_model_is(void)
{
    arch          model = preset_of(ARCH_GPT2, "124m"), got;
    unsigned char header[LLMC_HEADER_BYTES];
    char          why[256];
    size_t        padded;
    sherd_dtype   dtype;

    CHECK(llmc_header_make(&model, SHERD_BF16, header, why, sizeof(why)) == NULL);
    CHECK_INT(20240326 & 255, header[0]);
    CHECK(llmc_header_read(header, &got, &padded, &dtype, why, sizeof(why)) == NULL);
    CHECK_BYTES_EQUAL(&model, &got, sizeof(got));
    CHECK_INT(50304, padded);
    CHECK(dtype == SHERD_BF16);
}

static void llmc_headers_of_other_models_are_refused(void)
{
    arch          model = preset_of(ARCH_GPT2, "tiny"), got = {0};
    const arch    minimind = preset_of(ARCH_MINIMIND, "tiny");
    unsigned char header[LLMC_HEADER_BYTES];
    char          why[256];
    size_t        padded = 0;
    sherd_dtype   dtype;

    CHECK(llmc_header_make(&minimind, SHERD_F32, header, why, sizeof(why)) != NULL);
    CHECK(llmc_header_make(&model, SHERD_F16, header, why, sizeof(why)) != NULL);
    for (size_t at = 0; at < 32; at++) {
        CHECK(llmc_header_make(&model, SHERD_F32, header, why, sizeof(why)) == NULL);
        header[at] = 0xff;
        if (llmc_header_read(header, &got, &padded, &dtype, why, sizeof(why)) == NULL) {
            CHECK(arch_check(&got, why, sizeof(why)) == NULL && padded >= got.vocab);
        }
    }
    header[4] = 4; /* norms in fp32 with bf16 */
    CHECK(llmc_header_make(&model, SHERD_F32, header, why, sizeof(why)) == NULL);
    header[4] = 4;
    CHECK(llmc_header_read(header, &got, &padded, &dtype, why, sizeof(why)) != NULL);
    test_check_contains(__FILE__, __LINE__, why, "version 4");
}

static void llmc_tensors_of_all_layers_follow_each_other(void)
{
    arch model = preset_of(ARCH_GPT2, "124m");
    maps list;

    CHECK_INT(0, llmc_maps_open(&model, 50304, &list));
    CHECK(list.tensors[1].param == NULL && list.tensors[1].shape[0] == 47);
    CHECK(strcmp(list.tensors[3].name, "transformer.h.0.ln_1.weight") == 0);
    CHECK(strcmp(list.tensors[4].name, "transformer.h.1.ln_1.weight") == 0);
    CHECK(strcmp(list.tensors[list.count - 1].name, "transformer.ln_f.bias") == 0);
    CHECK_INT(arch_elems(&model) + (size_t)47 * 768, elems_of(&list));
    CHECK_INT(124475904, elems_of(&list)); /* as llm.c counts the padded model */
    maps_close(&list);
    CHECK_INT(0, llmc_maps_open(&model, 50257, &list));
    CHECK_INT(arch_param_count(&model), list.count);
    maps_close(&list);
}

static const test_case CASES[] = {
    CASE(gpt2_matrices_of_layers_are_transposed),
    CASE(minimind_is_qwen3_by_its_names),
    CASE(a_tied_head_may_be_there_once_more),
    CASE(a_config_that_was_written_is_of_its_model_alone),
    CASE(what_shapes_do_not_show_is_compared),
    CASE(every_model_is_read_as_it_was_written),
    CASE(windows_are_read_as_transformers_does),
    CASE(rotations_of_older_files_are_read),
    CASE(the_older_block_of_rotation_goes_before_the_newer),
    CASE(what_is_not_computed_is_named),
    CASE(llmc_headers_say_what_the_model_is),
    CASE(llmc_headers_of_other_models_are_refused),
    CASE(llmc_tensors_of_all_layers_follow_each_other),
};

RUN_MAIN(CASES)

/* Tensors and headers of the formats that models leave in: names, shapes and order, and what is refused. Whether other
 * programs agree is held by tests/weights. */
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
    CHECK(hf_config_write(&model, &(hf_constants){1e-6, 1e6}, SHERD_BF16, text, sizeof(text)) <
          sizeof(text));
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
    static char        why[256];
    const hf_constants constants = hf_constants_of(model);

    return hf_config_check(model, &constants, text, strlen(text), why, sizeof(why));
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
    for (int kind = ARCH_GPT2; kind <= ARCH_MINIMIND; kind++) {
        arch               model     = preset_of((arch_kind)kind, "tiny");
        const hf_constants constants = hf_constants_of(&model);
        char               text[4096];

        (void)hf_config_write(&model, &constants, SHERD_F32, text, sizeof(text));
        CHECK(checked(&model, text) == NULL);
        check_config_refused(&model, text, "\"vocab_size\": 256", "\"vocab_size\": 255",
                             "vocab_size");
        check_config_refused(&model, text, "\"tie_word_embeddings\": true",
                             "\"tie_word_embeddings\": false", "tie_word_embeddings");
        check_config_refused(&model, text, "\"model_type\"", "\"model_type\": \"bert\", \"x\"",
                             "model_type");
        check_config_refused(&model, text, "{", "[{", "not a JSON object");
    }
}

static void what_shapes_do_not_show_is_compared(void)
{
    arch               model     = preset_of(ARCH_MINIMIND, "tiny");
    const hf_constants constants = hf_constants_of(&model);
    char               text[4096];

    (void)hf_config_write(&model, &constants, SHERD_F32, text, sizeof(text));
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
    header[4] = 4; /* norms in fp32 beside bf16 */
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
    CASE(llmc_headers_say_what_the_model_is),
    CASE(llmc_headers_of_other_models_are_refused),
    CASE(llmc_tensors_of_all_layers_follow_each_other),
};

RUN_MAIN(CASES)

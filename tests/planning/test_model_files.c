/* Models from files: the counts that are published, every format, and what is said of files that
 * are none. */
#include "tests/planning/rig.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char why[1024];

/* ---- files ---- */

static const char *path_of(const char *name)
{
    static char path[512];

    (void)snprintf(path, sizeof(path), "%s/%s", test_scratch(), name);
    return path;
}

/* `size_bytes` past the contents is a hole. */
static void file_write(const char *name, const void *bytes, size_t len_bytes, size_t size_bytes)
{
    FILE *file = fopen(path_of(name), "wb");

    CHECK(file != NULL);
    CHECK(len_bytes == 0 || fwrite(bytes, 1, len_bytes, file) == len_bytes);
    CHECK(fflush(file) == 0 && ftruncate(fileno(file), (off_t)size_bytes) == 0);
    CHECK(fclose(file) == 0);
}

static void text_write(const char *name, const char *text)
{
    file_write(name, text, strlen(text), strlen(text));
}

/* A header that announces `announced_bytes` bytes, and data after it. */
static void tensors_write_announced(const char *name, const char *header, uint64_t announced_bytes,
                                    size_t data_bytes)
{
    size_t         len_bytes = strlen(header);
    unsigned char *bytes     = malloc(8 + len_bytes);

    CHECK(bytes != NULL);
    for (int i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)(announced_bytes >> (8 * i));
    }
    memcpy(bytes + 8, header, len_bytes);
    file_write(name, bytes, 8 + len_bytes, 8 + len_bytes + data_bytes);
    free(bytes);
}

static void tensors_write(const char *name, const char *header, size_t data_bytes)
{
    tensors_write_announced(name, header, strlen(header), data_bytes);
}

static planning_model *model_load(const char *name)
{
    planning_model *model = planning_model_from_file(path_of(name), why, sizeof(why));

    if (model == NULL) {
        test_fail(__FILE__, __LINE__, "%s was refused: %s", name, why);
    }
    rig_check_declared(model);
    return model;
}

/* The sentence names the file and holds `part`. */
static void check_refused(const char *name, const char *part)
{
    why[0] = '\0';
    CHECK(planning_model_from_file(path_of(name), why, sizeof(why)) == NULL);
    test_check_contains(__FILE__, __LINE__, why, path_of(name));
    test_check_contains(__FILE__, __LINE__, why, part);
}

static void check_text_refused(const char *text, const char *part)
{
    text_write("bad.json", text);
    check_refused("bad.json", part);
}

static void check_tensors_refused(const char *header, size_t data_bytes, const char *part)
{
    tensors_write("bad.safetensors", header, data_bytes);
    check_refused("bad.safetensors", part);
}

static void check_text(const char *want, const char *got)
{
    if (strcmp(want, got) != 0) {
        test_fail(__FILE__, __LINE__, "\"%s\" is not \"%s\"", got, want);
    }
}

static const planning_param *param_find(const planning_model *model, const char *name)
{
    for (size_t k = 0; k < model->num_params; k++) {
        if (strcmp(model->params[k].name, name) == 0) {
            return &model->params[k];
        }
    }
    return NULL;
}

static void check_shape(const planning_model *model, const char *name, size_t rows, size_t columns)
{
    const planning_param *param = param_find(model, name);

    CHECK(param != NULL);
    CHECK_INT(2, param->ndim);
    CHECK_INT(rows, param->shape[0]);
    CHECK_INT(columns, param->shape[1]);
}

/* ---- config.json ---- */

#define GPT2                                                                                       \
    "{\"model_type\": \"gpt2\", \"n_embd\": 768, \"n_layer\": 12, \"n_head\": 12, "                \
    "\"vocab_size\": 50257, \"n_positions\": 1024, \"n_ctx\": 1024, \"n_inner\": null"
#define LLAMA7B                                                                                    \
    "{\"model_type\": \"llama\", \"hidden_size\": 4096, \"num_hidden_layers\": 32, "               \
    "\"num_attention_heads\": 32, \"num_key_value_heads\": 32, \"intermediate_size\": 11008, "     \
    "\"vocab_size\": 32000, \"max_position_embeddings\": 4096, \"num_experts\": 1"
#define QWEN3                                                                                      \
    "{\"model_type\": \"qwen3\", \"hidden_size\": 1024, \"num_hidden_layers\": 28, "               \
    "\"num_attention_heads\": 16, \"num_key_value_heads\": 8, \"head_dim\": 128, "                 \
    "\"intermediate_size\": 3072, \"vocab_size\": 151936"
#define MINIMIND3                                                                                  \
    "{\"model_type\": \"minimind\", \"hidden_size\": 768, \"num_hidden_layers\": 8, "              \
    "\"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"vocab_size\": 6400, "               \
    "\"max_position_embeddings\": 32768, \"use_moe\": false, \"num_experts\": 4"
#define SMALL                                                                                      \
    "\"hidden_size\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": 2, "                   \
    "\"num_key_value_heads\": 1, \"intermediate_size\": 16, \"vocab_size\": 10"

static void config_gives_the_published_numbers_of_parameters(void)
{
    static const struct {
        const char *text;
        size_t      elems;
        const char *label;
    } known[] = {
        {GPT2 "}", 124439808, "config.json (gpt2)"},
        {GPT2 ", \"tie_word_embeddings\": false}", 124439808 + 50257 * 768, "config.json (gpt2)"},
        {LLAMA7B "}", 6738415616, "config.json (llama)"},
        {"{\"model_type\": \"mistral\", \"hidden_size\": 4096, \"num_hidden_layers\": 32, "
         "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"intermediate_size\": 14336, "
         "\"vocab_size\": 32000, \"head_dim\": null}",
         7241732096, "config.json (mistral)"},
        {"{\"model_type\": \"qwen2\", \"hidden_size\": 896, \"num_hidden_layers\": 24, "
         "\"num_attention_heads\": 14, \"num_key_value_heads\": 2, \"intermediate_size\": 4864, "
         "\"vocab_size\": 151936, \"tie_word_embeddings\": true}",
         494032768, "config.json (qwen2)"},
        {QWEN3 ", \"tie_word_embeddings\": true}", 596049920, "config.json (qwen3)"},
        {QWEN3 ", \"tie_word_embeddings\": false}", 596049920 + 151936 * 1024,
         "config.json (qwen3)"},
        {MINIMIND3 "}", 63912192, "config.json (minimind)"},
        {MINIMIND3 ", \"intermediate_size\": null}", 63912192, "config.json (minimind)"},
        {"{\"model_type\": \"minimind\", \"hidden_size\": 512, \"num_hidden_layers\": 8, "
         "\"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"vocab_size\": 6400, "
         "\"use_moe\": false, \"n_routed_experts\": 4, \"intermediate_size\": null}",
         25829888, "config.json (minimind)"},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        planning_model *model;

        text_write("config.json", known[i].text);
        model = model_load("config.json");
        CHECK_INT(known[i].elems, model->elems);
        check_text(known[i].label, model->label);
        CHECK(model->has_arch);
        planning_model_destroy(model);
    }
}

static void config_tied_head_reads_the_embedding(void)
{
    planning_model *model;

    text_write("config.json", GPT2 "}");
    model = model_load("config.json");
    CHECK_INT(1, model->num_reads);
    CHECK_INT(13, model->reads[0].unit);
    CHECK_INT(0, model->reads[0].param);
    check_text("transformer.wte.weight", model->params[0].name);
    check_shape(model, "transformer.h.11.attn.c_attn.weight", 768, 2304);
    planning_model_destroy(model);

    text_write("config.json", LLAMA7B "}");
    model = model_load("config.json");
    CHECK_INT(0, model->num_reads);
    check_text("lm_head.weight", model->params[model->num_params - 1].name);
    check_text("head", model->units[model->num_units - 1].name);
    check_shape(model, "model.layers.31.mlp.down_proj.weight", 4096, 11008);
    planning_model_destroy(model);
}

/* Where the trainer has the very architecture, arithmetic is the trainer's; heads wider than hidden
 * / heads count with what they have, an untied table of tokens does not count. */
static void config_arithmetic_counts_what_is_multiplied(void)
{
    arch            sizes;
    planning_model *model;
    double          attention;

    CHECK_INT(0, arch_preset(ARCH_MINIMIND, "64m", &sizes));
    text_write("config.json", MINIMIND3 "}");
    model = model_load("config.json");
    CHECK_BYTES_EQUAL(&sizes, &model->sizes, sizeof(sizes));
    CHECK_CLOSE(arch_flops_per_token(&sizes, 340), planning_model_flops_per_token(model, 340), 0);
    planning_model_destroy(model);

    text_write("config.json", QWEN3 "}");
    model     = model_load("config.json");
    attention = 12.0 * 28 * 2048 * 512;
    CHECK_CLOSE(
        6.0 * (28 * (2.0 * 1024 * 2048 + 2 * 1024 * 1024 + 3 * 1024 * 3072) + 1024 * 151936.0) +
            attention,
        planning_model_flops_per_token(model, 512), 0);
    planning_model_destroy(model);
}

static size_t config_elems(const char *text)
{
    planning_model *model;
    size_t          elems;

    text_write("config.json", text);
    model = model_load("config.json");
    elems = model->elems;
    planning_model_destroy(model);
    return elems;
}

/* hidden 8, 2 heads, 1 key head, inner 16, vocabulary 10, by hand. */
static void config_parts_are_counted(void)
{
    const size_t plain = 80 + 2 * 64 + 2 * 32 + 3 * 128 + 3 * 8, head = 80;

    CHECK_INT(plain + head, config_elems("{\"model_type\": \"llama\", " SMALL "}"));
    CHECK_INT(plain, config_elems("{\"model_type\": \"llama\", " SMALL
                                  ", \"tie_word_embeddings\": true}"));
    CHECK_INT(plain + head + 8 + 4 + 4 + 8,
              config_elems("{\"model_type\": \"llama\", " SMALL ", \"attention_bias\": true}"));
    CHECK_INT(plain + head + 16 + 16 + 8,
              config_elems("{\"model_type\": \"llama\", " SMALL ", \"mlp_bias\": true}"));
    CHECK_INT(plain + head + 8 + 4 + 4, config_elems("{\"model_type\": \"qwen2\", " SMALL "}"));
    CHECK_INT(plain + head + 4 + 4,
              config_elems("{\"model_type\": \"qwen3\", " SMALL ", \"head_dim\": 4}"));
    /* 128 by default: q, o 256 x 8, k, v 128 x 8 */
    CHECK_INT(80 + 2 * 2048 + 2 * 1024 + 256 + 3 * 128 + 3 * 8 + head,
              config_elems("{\"model_type\": \"qwen3\", " SMALL "}"));
    CHECK_INT(plain + head, config_elems("{\"model_type\": \"mistral\", " SMALL "}"));
}

static void config_that_is_not_known_is_refused(void)
{
    check_text_refused(
        "{\"model_type\": \"mamba\"}",
        "model_type is mamba; it has to be one of gpt2, minimind, llama, mistral, qwen2 or qwen3");
    check_text_refused("{\"model_type\": \"mamba\"}", "--params");
    check_text_refused("{\"model_type\": 7}", "is a whole number; it has to be one of");
    check_text_refused("{\"model_type\": \"llama\"}", "hidden_size is missing");
    check_text_refused("{\"model_type\": \"llama\", \"hidden_size\": \"8\"}",
                       "hidden_size is a text; it has to be a whole number from 1 to 268435456");
    check_text_refused("{\"model_type\": \"llama\", \"hidden_size\": -8}", "hidden_size is -8");
    check_text_refused("{\"model_type\": \"llama\", \"hidden_size\": 8.5}",
                       "hidden_size is a fraction");
    check_text_refused("{\"model_type\": \"llama\", \"hidden_size\": 9223372036854775807}",
                       "hidden_size is 9223372036854775807");
    check_text_refused("{\"model_type\": \"llama\", \"hidden_size\": 99999999999999999999}",
                       "not JSON at line 1");
    check_text_refused("{\"model_type\": \"llama\", \"hidden_size\": 10, "
                       "\"num_hidden_layers\": 1, \"num_attention_heads\": 3}",
                       "hidden_size 10 is not a multiple of num_attention_heads 3");
    check_text_refused("{\"model_type\": \"llama\", \"hidden_size\": 10, "
                       "\"num_hidden_layers\": 1, \"num_attention_heads\": 5, "
                       "\"num_key_value_heads\": 2}",
                       "num_attention_heads 5 is not a multiple of num_key_value_heads 2");
    check_text_refused("{\"model_type\": \"gpt2\", \"n_embd\": 64, \"n_layer\": 100000000, "
                       "\"n_head\": 4, \"vocab_size\": 100}",
                       "would have 100000002 units");
    check_text_refused(GPT2 ", \"n_layer\": 12}", "duplicate");
    check_text_refused(GPT2 ", \"tie_word_embeddings\": 1}",
                       "tie_word_embeddings is a whole number; it has to be true or false");
    check_text_refused(GPT2 ", \"add_cross_attention\": true}", "add_cross_attention");
    check_text_refused("{\"model_type\": \"llama\", " SMALL ", \"num_local_experts\": 8}",
                       "num_local_experts is 8: a mixture of experts");
    check_text_refused("{\"model_type\": \"qwen3\", " SMALL ", \"num_experts\": 128}",
                       "num_experts is 128");
    check_text_refused("{\"model_type\": \"minimind\", \"use_moe\": true}", "use_moe is true");
    /* too large for any engine, and too deep */
    check_text_refused("{\"model_type\": \"llama\", \"hidden_size\": 268435456, "
                       "\"num_hidden_layers\": 1000, \"num_attention_heads\": 268435456, "
                       "\"num_key_value_heads\": 268435456, \"head_dim\": 268435456, "
                       "\"intermediate_size\": 268435456, \"vocab_size\": 268435456}",
                       "more than 288230376151711743 elements");
    check_text_refused("{\"model_type\": \"llama\", \"hidden_size\": 2, "
                       "\"num_hidden_layers\": 268435456, \"num_attention_heads\": 1, "
                       "\"intermediate_size\": 1, \"vocab_size\": 1}",
                       "would have 268435458 units");
}

/* ---- units ---- */

static void units_are_taken_as_they_stand(void)
{
    planning_model *model;

    text_write("units.json",
               "{\"units\": [{\"name\": \"in\", \"reads\": [\"out.bias\"], \"params\": ["
               "{\"name\": \"in.weight\", \"shape\": [3, 5]},"
               "{\"name\": \"scale\", \"shape\": [], \"frozen\": true}]},"
               "{\"name\": \"out\", \"params\": [{\"name\": \"out.bias\", \"shape\": [7],"
               " \"frozen\": false}], \"reads\": [\"in.weight\", \"scale\"]},"
               "{\"name\": \"loss\", \"params\": [], \"reads\": [\"out.bias\"]}]}");
    model = model_load("units.json");
    check_text("units.json", model->label);
    CHECK_INT(3, model->num_units);
    CHECK_INT(23, model->elems);
    CHECK_INT(4, model->num_reads);
    CHECK_INT(0, model->reads[0].unit);
    CHECK_INT(2, model->reads[0].param);
    CHECK(model->params[1].is_frozen && !model->params[0].is_frozen && !model->has_arch);
    CHECK_INT(0, model->params[1].ndim);
    CHECK_CLOSE(6.0 * 23, planning_model_flops_per_token(model, 100), 0);
    planning_model_destroy(model);
}

#define UNIT(params) "{\"units\": [{\"name\": \"u\", \"params\": [" params "]}]}"

static void units_with_mistakes_are_refused(void)
{
    check_text_refused("{\"units\": 7}", "units is a whole number; it has to be a list");
    check_text_refused("{\"units\": []}", "describes no parameters");
    check_text_refused("{\"units\": [7]}", "units[0] is a whole number; it has to be an object");
    check_text_refused("{\"units\": [{}]}", "units[0].name is missing");
    check_text_refused("{\"units\": [{\"name\": \"\"}]}", "units[0].name is empty");
    check_text_refused("{\"units\": [{\"name\": \"u\"}]}", "units[0].params is missing");
    check_text_refused("{\"units\": [{\"name\": \"u\", \"parms\": []}]}", "unknown key \"parms\"");
    check_text_refused(UNIT("{\"name\": \"p\"}"), "units[0].params[0].shape is missing");
    check_text_refused(UNIT("{\"name\": \"p\", \"shape\": [1, 0]}"),
                       "units[0].params[0].shape[1] is 0");
    check_text_refused(UNIT("{\"name\": \"p\", \"shape\": [1, \"2\"]}"),
                       "units[0].params[0].shape[1] is a text");
    check_text_refused(UNIT("{\"name\": \"p\", \"shape\": [1,1,1,1,1,1,1,1,1]}"), "9 dimensions");
    check_text_refused(UNIT("{\"name\": \"p\", \"shape\": [4000000000, 4000000000]}"),
                       "parameter p: with it the model has more than");
    check_text_refused(UNIT("{\"name\": \"p\", \"shape\": [288230376151711743]},"
                            "{\"name\": \"q\", \"shape\": [1]}"),
                       "parameter q: with it the model has more than");
    check_text_refused(UNIT("{\"name\": \"p\", \"shape\": [1], \"frozen\": 1}"),
                       "frozen is a whole number; it has to be true or false");
    check_text_refused(UNIT("{\"name\": \"p\", \"shape\": [1]}, {\"name\": \"p\", \"shape\": [1]}"),
                       "parameter p is there twice");
    check_text_refused("{\"units\": [{\"name\": \"u\", \"params\": [{\"name\": \"p\", \"shape\": "
                       "[1]}]}, {\"name\": \"u\", \"params\": []}]}",
                       "unit u is there twice");
    check_text_refused("{\"units\": [{\"name\": \"u\", \"params\": [], \"reads\": [\"q\"]}]}",
                       "units[0].reads[0]: there is no parameter q");
    check_text_refused("{\"units\": [{\"name\": \"u\", \"params\": [], \"reads\": \"q\"}]}",
                       "units[0].reads is a text; it has to be a list");
}

/* ---- safetensors ---- */

#define TENSOR(name, dtype, shape, begin, end)                                                     \
    "\"" name "\": {\"dtype\": \"" dtype "\", \"shape\": [" shape "], \"data_offsets\": [" #begin  \
    ", " #end "]}"

static void tensors_of_a_layer_become_a_unit(void)
{
    static const char *const UNITS[] = {"embedding",       "model.layers.0",  "model.layers.2",
                                        "model.layers.10", "vision.layers.0", "head"};
    planning_model          *model;

    tensors_write(
        "model.safetensors",
        "{\"__metadata__\": {\"format\": \"pt\"}," TENSOR("model.embed_tokens.weight", "BF16", "5, 4", 0, 40) "," TENSOR("model.layers.0.b", "F32", "4", 40, 56) "," TENSOR(
            "model.layers.0.a", "F32", "2, 2, 2", 56,
            88) "," TENSOR("model.layers.10.w", "F16", "", 88,
                           90) "," TENSOR("model.layers.2.w", "F8_E4M3", "10", 90,
                                          100) "," TENSOR("model.layers.2.rotary_emb.inv_freq",
                                                          "F32", "2", 100,
                                                          108) "," TENSOR("model.layers.2.attn."
                                                                          "bias",
                                                                          "F32", "1, 1, 1, 2", 108,
                                                                          116) "," TENSOR("model."
                                                                                          "layers."
                                                                                          "2.attn."
                                                                                          "masked_"
                                                                                          "bias",
                                                                                          "F32", "",
                                                                                          116,
                                                                                          120) "," TENSOR("model.norm.weight",
                                                                                                          "F64",
                                                                                                          "4",
                                                                                                          120,
                                                                                                          152) "," TENSOR("model.nothing",
                                                                                                                          "F32",
                                                                                                                          "0, 7",
                                                                                                                          152,
                                                                                                                          152) "," TENSOR("vision.layers.0.w",
                                                                                                                                          "F4",
                                                                                                                                          "3",
                                                                                                                                          152,
                                                                                                                                          154) "," TENSOR("position_ids",
                                                                                                                                                          "I64",
                                                                                                                                                          "3",
                                                                                                                                                          154,
                                                                                                                                                          178) "}   ",
        178);
    model = model_load("model.safetensors");
    check_text("model.safetensors", model->label);
    CHECK_INT(20 + 4 + 8 + 1 + 10 + 4 + 3, model->elems);
    CHECK_INT(6, model->num_units);
    for (size_t u = 0; u < 6; u++) {
        check_text(UNITS[u], model->units[u].name);
    }
    check_text("model.layers.0.a", model->params[1].name);
    CHECK_INT(3, model->params[1].ndim);
    CHECK_INT(1, model->num_reads); /* the head has no matrix: it is tied */
    CHECK_INT(5, model->reads[0].unit);
    CHECK_INT(0, model->reads[0].param);
    planning_model_destroy(model);
}

static void tensors_of_gpt2_without_prefix_are_told_apart(void)
{
    planning_model *model;

    tensors_write("gpt2.safetensors",
                  "{" TENSOR("h.0.attn.bias", "F32", "1, 1, 2, 2", 0, 16) "," TENSOR(
                      "h.0.attn.c_attn.bias", "F32", "6", 16,
                      40) "," TENSOR("h.1.ln_1.weight", "F32", "2", 40,
                                     48) "," TENSOR("lm_head.weight", "F32", "3, 2", 48,
                                                    72) "," TENSOR("wpe.weight", "F32", "4, 2", 72,
                                                                   104) "," TENSOR("wte.weight",
                                                                                   "F32", "3, 2",
                                                                                   104, 128) "}",
                  128);
    model = model_load("gpt2.safetensors");
    CHECK_INT(4, model->num_units);
    CHECK_INT(2, model->units[0].num_params);
    check_text("h.0", model->units[1].name);
    CHECK_INT(0, model->num_reads);
    CHECK_INT(6 + 2 + 6 + 8 + 6, model->elems);
    planning_model_destroy(model);
}

static void tensors_that_do_not_fit_are_refused(void)
{
    const uint64_t most = 100 << 20;

    check_tensors_refused("{" TENSOR("w", "F32", "3", 0, 12) "}", 11,
                          "data_offsets of tensor w are 0 to 12, but the data are 11 bytes");
    check_tensors_refused("{" TENSOR("w", "F32", "3", 0, 8) "}", 12,
                          "8 bytes apart, which is not the size of 3 elements of F32");
    check_tensors_refused("{" TENSOR("w", "F32", "3", 12, 0) "}", 12, "12 to 0");
    check_tensors_refused("{" TENSOR("w", "F32", "-3", 0, 12) "}", 12,
                          "the shape of tensor w is -3");
    check_tensors_refused("{" TENSOR("w", "F32", "288230376151711743, 4096", 0, 12) "}", 12,
                          "too many elements");
    check_tensors_refused("{" TENSOR("w", "F32", "288230376151711743", 0, 12) "}", 12, "apart");
    check_tensors_refused("{" TENSOR("w", "F32", "1,1,1,1,1,1,1,1,1", 0, 4) "}", 4, "9 dimensions");
    check_tensors_refused("{" TENSOR("w", "X99", "3", 0, 12) "}", 12, "dtype X99");
    check_tensors_refused("{" TENSOR("", "F32", "3", 0, 12) "}", 12, "empty name");
    check_tensors_refused("{\"w\": 7}", 12, "tensor w is a whole number");
    check_tensors_refused("{\"w\": {}}", 12, "dtype (none)");
    check_tensors_refused("{\"w\": {\"dtype\": \"F32\"}}", 12, "shape of tensor w is missing");
    check_tensors_refused("{\"w\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [1]}}",
                          12, "list of two numbers");
    check_tensors_refused("{" TENSOR("w", "F32", "3", 0, 12) "," TENSOR("w", "F32", "3", 0, 12) "}",
                          12, "duplicate");
    check_tensors_refused("{}", 12, "no tensors of floating point");
    check_tensors_refused(
        "{" TENSOR("q", "I32", "3", 0, 12) "," TENSOR("s", "F32", "1", 12, 16) "}", 16,
        "a quantized model");
    check_tensors_refused("{", 12, "not JSON at line 1");
    tensors_write_announced("bad.safetensors", "{}", 3, 0);
    check_refused("bad.safetensors", "announces a header of 3 bytes, but has only 2");
    tensors_write_announced("bad.safetensors", "{}", most + 1, most + 1);
    check_refused("bad.safetensors", "104857601 bytes; at most 104857600");
    tensors_write_announced("bad.safetensors", "{}", UINT64_MAX, 0);
    check_refused("bad.safetensors", "this is no safetensors file");
}

static void index_reads_every_file_that_it_names(void)
{
    planning_model *model;

    CHECK(mkdir(path_of("shards"), 0700) == 0);
    tensors_write("shards/a.safetensors",
                  "{" TENSOR("model.embed.weight", "F32", "3, 2", 0,
                             24) "," TENSOR("model.layers.0.w", "F32", "2, 2", 24,
                                            40) "," TENSOR("stale", "F32", "1", 40, 44) "}",
                  44);
    tensors_write("shards/b.safetensors",
                  "{" TENSOR("model.layers.0.v", "F32", "2", 0,
                             8) "," TENSOR("lm_head.weight", "F32", "3, 2", 8, 32) "}",
                  32);
    text_write("shards/model.safetensors.index.json",
               "{\"metadata\": {\"total_size\": 72}, \"weight_map\": {"
               "\"model.embed.weight\": \"a.safetensors\", \"model.layers.0.w\": \"a.safetensors\","
               "\"model.layers.0.v\": \"b.safetensors\", \"lm_head.weight\": \"b.safetensors\"}}");
    model = model_load("shards/model.safetensors.index.json");
    CHECK_INT(6 + 4 + 2 + 6, model->elems);
    CHECK_INT(3, model->num_units);
    CHECK_INT(2, model->units[1].num_params);
    check_text("model.safetensors.index.json", model->label);
    planning_model_destroy(model);

    model = model_load("shards"); /* the folder: two files, but an index */
    check_text("shards", model->label);
    planning_model_destroy(model);

    text_write("shards/bad.json", "{\"weight_map\": {\"w\": \"c.safetensors\"}}");
    CHECK(planning_model_from_file(path_of("shards/bad.json"), why, sizeof(why)) == NULL);
    test_check_contains(__FILE__, __LINE__, why, "shards/c.safetensors: cannot be opened: No such");
    text_write("shards/bad.json", "{\"weight_map\": {\"w\": \"a.safetensors\"}}");
    check_refused("shards/bad.json", "names 1 tensors, of which the files in its folder hold 0");
    text_write("shards/bad.json", "{\"weight_map\": {\"w\": \"../a.safetensors\"}}");
    check_refused("shards/bad.json", "the file of tensor w is ../a.safetensors");
    text_write("shards/bad.json", "{\"weight_map\": {\"w\": 7}}");
    check_refused("shards/bad.json", "the file of tensor w is a whole number");
    text_write("shards/bad.json", "{\"weight_map\": []}");
    check_refused("shards/bad.json", "weight_map has to be an object");
}

/* ---- llm.c ---- */

static void bin_write(const char *name, const uint32_t fields[8], size_t size_bytes)
{
    unsigned char header[1024] = {0};

    for (size_t i = 0; i < 32; i++) {
        header[i] = (unsigned char)(fields[i / 4] >> (8 * (i % 4)));
    }
    file_write(name, header, size_bytes < sizeof(header) ? size_bytes : sizeof(header), size_bytes);
}

static void bin_is_gpt2_with_padded_vocabulary(void)
{
    const size_t elems = 124439808 + (50304 - 50257) * 768;

    for (uint32_t version = 3; version <= 5; version += 2) {
        const uint32_t  fields[8] = {20240326, version, 1024, 50257, 12, 12, 768, 50304};
        planning_model *model;

        bin_write("gpt2.bin", fields, 1024 + (version == 3 ? 4 : 2) * elems);
        model = model_load("gpt2.bin");
        CHECK_INT(elems, model->elems);
        check_text("gpt2.bin (gpt2)", model->label);
        CHECK(model->has_arch && model->sizes.vocab == 50304);
        planning_model_destroy(model);
    }
}

static void bin_with_mistakes_is_refused(void)
{
    uint32_t fields[8] = {20240326, 3, 16, 10, 1, 2, 8, 12};

    bin_write("bad.bin", fields, 1023);
    check_refused("bad.bin", "header has 1023 bytes of 1024");
    bin_write("bad.bin", fields, 1024);
    check_refused("bad.bin", "is cut short");
    fields[1] = 4;
    bin_write("bad.bin", fields, 5000);
    check_refused("bad.bin", "version 4; 3 (fp32) and 5 (bf16)");
    fields[1] = 3;
    fields[5] = 3;
    bin_write("bad.bin", fields, 5000);
    check_refused("bad.bin", "hidden 8 is not a multiple of heads 3");
    fields[7] = 9;
    bin_write("bad.bin", fields, 5000);
    check_refused("bad.bin", "padded_vocab_size 9, which is less than vocab_size 10");
    fields[4] = UINT32_MAX;
    bin_write("bad.bin", fields, 5000);
    check_refused("bad.bin", "num_layers 4294967295");
    fields[4] = 1 << 28;
    fields[5] = 2;
    fields[7] = 10;
    bin_write("bad.bin", fields, 5000);
    check_refused("bad.bin", "at most 131072 can be planned");
}

/* ---- what is what ---- */

static void folder_is_read_by_what_lies_in_it(void)
{
    char            slashed[520];
    planning_model *model;

    CHECK(mkdir(path_of("own"), 0700) == 0);
    check_refused("own", "holds neither config.json, nor model.safetensors.index.json");
    tensors_write("own/x.safetensors", "{" TENSOR("w", "F32", "3", 0, 12) "}", 12);
    (void)snprintf(slashed, sizeof(slashed), "%s//", path_of("own"));
    model = planning_model_from_file(slashed, why, sizeof(why));
    CHECK(model != NULL && model->elems == 3);
    check_text("own", model->label);
    planning_model_destroy(model);
    tensors_write("own/y.safetensors", "{" TENSOR("w", "F32", "3", 0, 12) "}", 12);
    check_refused("own", "2 .safetensors files and no model.safetensors.index.json");
    text_write("own/config.json", GPT2 "}");
    model = model_load("own");
    check_text("own (gpt2)", model->label);
    planning_model_destroy(model);
    text_write("own/config.json", "{\"model_type\": \"gpt2\"}");
    check_refused("own", "config.json: n_embd is missing");
}

static void nest_write(const char *name, size_t depth)
{
    char *text = malloc(2 * depth + 32);
    int   used = snprintf(text, 32, "{\"units\": ");

    memset(text + used, '[', depth);
    memset(text + used + depth, ']', depth);
    text[(size_t)used + 2 * depth]     = '}';
    text[(size_t)used + 2 * depth + 1] = '\0';
    text_write(name, text);
    free(text);
}

static void file_that_is_nothing_is_refused(void)
{
    planning_model *model;

    check_refused("no-such-file", "cannot be opened: No such file");
    check_text_refused("", "is empty");
    check_text_refused("  \n", "not JSON");
    check_text_refused("version https://git-lfs.github.com/spec/v1", "is neither JSON, nor");
    check_text_refused("[1]", "is neither JSON, nor");
    check_text_refused("{}", "describes no model");
    check_text_refused("{\"model_type\": \"gpt2\"", "not JSON at line 1");
    check_text_refused("{} {}", "not JSON at line 1");
    check_text_refused("{\"a\": \"\xff\"}", "not JSON at line 1");
    check_text_refused("{\"units\": \"\\u0000\"}", "not JSON at line 1");
    nest_write("bad.json", 1000);
    check_refused("bad.json", "units[0] is a list; it has to be an object");
    nest_write("bad.json", 100000);
    check_refused("bad.json", "maximum parsing depth");
    CHECK(mkfifo(path_of("pipe"), 0600) == 0);
    check_refused("pipe", "is not a regular file");
    /* a name that is not UTF-8 becomes a label that is */
    text_write("caf\xe9.json", UNIT("{\"name\": \"p\", \"shape\": [1]}"));
    model = model_load("caf\xe9.json");
    check_text("caf?.json", model->label);
    planning_model_destroy(model);
}

/* Every way to cut a file short is refused or read, and nothing else. */
static void file_cut_anywhere_is_survived(void)
{
    static const char *const TEXTS[] = {
        GPT2 "}",
        "{\"units\": [{\"name\": \"u\", \"params\": [{\"name\": \"p\", \"shape\": [2]}]}]}"};
    static const char HEADER[] = "\x40\0\0\0\0\0\0\0{" TENSOR("w", "F32", "3", 0, 12) "  }";

    for (size_t i = 0; i < 2; i++) {
        for (size_t cut = 0; cut < strlen(TEXTS[i]); cut++) {
            file_write("cut", TEXTS[i], cut, cut);
            CHECK(planning_model_from_file(path_of("cut"), why, sizeof(why)) == NULL);
        }
    }
    for (size_t cut = 0; cut < sizeof(HEADER) - 1; cut++) {
        file_write("cut", HEADER, cut, cut);
        CHECK(planning_model_from_file(path_of("cut"), why, sizeof(why)) == NULL);
    }
}

static const test_case cases[] = {
    CASE(config_gives_the_published_numbers_of_parameters),
    CASE(config_tied_head_reads_the_embedding),
    CASE(config_arithmetic_counts_what_is_multiplied),
    CASE(config_parts_are_counted),
    CASE(config_that_is_not_known_is_refused),
    CASE(units_are_taken_as_they_stand),
    CASE(units_with_mistakes_are_refused),
    CASE(tensors_of_a_layer_become_a_unit),
    CASE(tensors_of_gpt2_without_prefix_are_told_apart),
    CASE(tensors_that_do_not_fit_are_refused),
    CASE(index_reads_every_file_that_it_names),
    CASE(bin_is_gpt2_with_padded_vocabulary),
    CASE(bin_with_mistakes_is_refused),
    CASE(folder_is_read_by_what_lies_in_it),
    CASE(file_that_is_nothing_is_refused),
    CASE(file_cut_anywhere_is_survived),
};

RUN_MAIN(cases)

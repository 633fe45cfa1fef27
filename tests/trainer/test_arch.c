/* Sizes, names and presets of the architectures. */
#include "tests/lib/check.h"

#include "models/arch.h"
#include "models/room_cuda.h"

#include <stdio.h>
#include <string.h>

static arch preset_of(arch_kind kind, const char *name)
{
    arch sizes;

    CHECK_INT(0, arch_preset(kind, name, &sizes));
    return sizes;
}

static void presets_have_the_published_numbers_of_parameters(void)
{
    const struct {
        arch_kind   kind;
        const char *name;
        size_t      elems;
    } known[] = {
        {ARCH_GPT2, "124m", 124439808},
        {ARCH_GPT2, "355m", 354823168},
        {ARCH_GPT2, "774m", 774030080},
        {ARCH_GPT2, "1558m", 1557611200},
        {ARCH_MINIMIND, "64m", 63912192},
        {ARCH_LLAMA, "1b", 1235814400},
        {ARCH_LLAMA, "8b", 8030261248},
        {ARCH_MISTRAL, "7b", 7248023552},
        {ARCH_MISTRAL, "7b-v0.1", 7241732096},
        {ARCH_QWEN2, "0.5b", 494032768},
        {ARCH_QWEN2, "7b", 7615616512},
        {ARCH_QWEN3, "0.6b", 596049920},
        {ARCH_QWEN3, "8b", 8190735360},
        /* the second generation's, and the norms of the heads that it did not have */
        {ARCH_MINIMIND, "26m", 25829888 + 8 * 2 * 64},
        {ARCH_MINIMIND, "104m", 104030976 + 16 * 2 * 96},
    };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        arch sizes = preset_of(known[i].kind, known[i].name);

        CHECK_INT(known[i].elems, arch_elems(&sizes));
    }
}

/* Units cover all parameters in order; every preset fits together. */
static void presets_are_whole(void)
{
    for (int kind = ARCH_GPT2; kind < ARCH_KINDS; kind++) {
        const char *name;

        for (size_t i = 0; (name = arch_preset_name((arch_kind)kind, i)) != NULL; i++) {
            arch   sizes = preset_of((arch_kind)kind, name);
            char   text[256];
            size_t elems = 0, unit = 0;

            CHECK(arch_check(&sizes, text, sizeof(text)) == NULL);
            for (size_t k = 0; k < arch_param_count(&sizes); k++) {
                arch_param param;

                arch_param_get(&sizes, k, &param);
                CHECK(param.unit == unit || param.unit == unit + 1);
                unit = param.unit;
                CHECK(k >= arch_unit_first_param(&sizes, unit));
                CHECK(k < arch_unit_first_param(&sizes, unit + 1));
                elems += arch_param_elems(&param);
            }
            CHECK_INT(arch_unit_count(&sizes) - 1, unit);
            CHECK_INT(arch_elems(&sizes), elems);
        }
    }
}

static void param_is(const arch *sizes, size_t k, const char *name, size_t rows, size_t columns)
{
    arch_param param;

    arch_param_get(sizes, k, &param);
    CHECK(strcmp(param.name, name) == 0);
    CHECK_INT(rows, param.shape[0]);
    CHECK_INT(columns, param.shape[1]);
}

static void names_and_shapes_are_those_of_the_models(void)
{
    arch gpt2 = preset_of(ARCH_GPT2, "124m"), minimind = preset_of(ARCH_MINIMIND, "64m");

    param_is(&gpt2, 1, "transformer.wpe.weight", 1024, 768);
    param_is(&gpt2, 2 + 12 * 11 + 2, "transformer.h.11.attn.c_attn.weight", 2304, 768);
    param_is(&gpt2, 2 + 12 * 12 + 1, "transformer.ln_f.bias", 768, 1);
    param_is(&minimind, 0, "model.embed_tokens.weight", 6400, 768);
    param_is(&minimind, 1 + 11 * 7 + 1, "model.layers.7.self_attn.k_proj.weight", 384, 768);
    param_is(&minimind, 1 + 11 * 7 + 4, "model.layers.7.self_attn.q_norm.weight", 96, 1);
    param_is(&minimind, 1 + 11 * 7 + 9, "model.layers.7.mlp.down_proj.weight", 768, 2432);
}

static void sizes_that_do_not_fit_are_named(void)
{
    const struct {
        arch        sizes;
        const char *says;
    } bad[] = {
        {ARCH_SIZES(ARCH_GPT2, 30, 1, 4, 4, 120, 61, 16), "hidden 30 is not a multiple of heads 4"},
        {ARCH_SIZES(ARCH_MINIMIND, 32, 1, 4, 3, 96, 61, 16),
         "heads 4 is not a multiple of kv-heads 3"},
        {ARCH_SIZES(ARCH_GPT2, 32, 1, 4, 2, 96, 61, 16), "as many kv-heads as heads"},
        {ARCH_SIZES(ARCH_MINIMIND, 12, 1, 4, 4, 96, 61, 16), "cannot be rotated"},
        {ARCH_SIZES(ARCH_MINIMIND, 0, 1, 4, 4, 96, 61, 16), "between 1 and"},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char        text[256];
        const char *why = arch_check(&bad[i].sizes, text, sizeof(text));

        CHECK(why != NULL);
        test_check_contains(__FILE__, __LINE__, why, bad[i].says);
    }
}

/* Of the head of Llama 3 8B and of Qwen 2.5 7B with one layer's activations at a time: a copy of
 * the weight's gradient in fp32 takes as much as logits of twice as many rows as the hidden
 * size. */
static void logits_come_in_parts_where_that_takes_less_memory(void)
{
    static const struct {
        size_t vocab, hidden, inner, rows, part;
    } CASES[] = {
        {128256, 4096, 14336, 2048, 2048},   {128256, 4096, 14336, 8192, 8192},
        {128256, 4096, 14336, 11392, 11392}, {128256, 4096, 14336, 16384, 3584},
        {152064, 3584, 18944, 8192, 8192},   {152064, 3584, 18944, 16384, 3968},
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        compute_limits limits = {.batch  = 1,
                                 .length = CASES[i].rows,
                                 .hidden = CASES[i].hidden,
                                 .inner  = CASES[i].inner,
                                 .heads  = CASES[i].hidden / 128,
                                 .vocab  = CASES[i].vocab,
                                 .dtype  = SHERD_BF16,
                                 .layers = 1};
        room           r      = {0};
        cuda_scratch   whole, scratch;

        cuda_scratch_lay_out(&limits, &r, &scratch);
        CHECK_INT(CASES[i].part, scratch.logits_rows);
        CHECK_INT(CASES[i].part < CASES[i].rows ? CASES[i].vocab * CASES[i].hidden : 0,
                  scratch.head_grad_elems);
        CHECK_INT(CASES[i].vocab, scratch.logits_stride);
        limits.keeps_logits = 1;
        cuda_scratch_lay_out(&limits, &r, &whole);
        CHECK_INT(CASES[i].rows, whole.logits_rows);
    }
}

static const test_case cases[] = {
    CASE(presets_have_the_published_numbers_of_parameters),  CASE(presets_are_whole),
    CASE(names_and_shapes_are_those_of_the_models),          CASE(sizes_that_do_not_fit_are_named),
    CASE(logits_come_in_parts_where_that_takes_less_memory),
};

RUN_MAIN(cases)

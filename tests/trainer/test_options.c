/* The trainer's command line: what was given is given. */
#include "tests/lib/check.h"

#include "trainer/options.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Parses "--data text" and the words that follow, up to NULL. */
static options parsed(const char *first, ...)
{
    char   *argv[16] = {"sherd-llm", "--data", "text"};
    int     argc     = 3;
    options o;
    va_list words;

    va_start(words, first);
    for (const char *word = first; word != NULL; word = va_arg(words, const char *)) {
        argv[argc++] = (char *)(size_t)word;
    }
    va_end(words);
    CHECK_INT(0, options_parse(argc, argv, &o));
    return o;
}

static void heads_of_keys_equal_to_the_presets_are_kept(void)
{
    size_t of_preset = parsed(NULL).sizes.kv_heads;
    char   text[32];

    CHECK_INT(3, of_preset);
    for (int kv_heads = 2; kv_heads <= 4; kv_heads++) {
        (void)snprintf(text, sizeof(text), "%d", kv_heads);
        CHECK_INT(kv_heads, parsed("--heads", "12", "--kv-heads", text, NULL).sizes.kv_heads);
        CHECK_INT(kv_heads, parsed("--kv-heads", text, "--heads", "12", NULL).sizes.kv_heads);
    }
    CHECK_INT(6, parsed("--heads", "12", NULL).sizes.kv_heads);
}

static void inner_width_equal_to_the_presets_is_kept(void)
{
    char text[32];

    CHECK_INT(512, parsed(NULL).sizes.inner);
    for (int inner = 511; inner <= 513; inner++) {
        (void)snprintf(text, sizeof(text), "%d", inner);
        CHECK_INT(inner, parsed("--hidden", "96", "--inner", text, NULL).sizes.inner);
    }
    CHECK_INT(320, parsed("--hidden", "96", NULL).sizes.inner);
    CHECK_INT(512, parsed("--hidden", "192", NULL).sizes.inner); /* the preset as it is */
}

static void choices_of_a_gpu_are_words(void)
{
    char   *wrong[] = {"sherd-llm", "--data", "text", "--attention", "melted"};
    options o;

    CHECK_INT(ATTENTION_AUTO, parsed(NULL).choices.attention);
    CHECK_INT(ATTENTION_OWN, parsed("--attention", "own", NULL).choices.attention);
    CHECK_INT(ATTENTION_CUDNN, parsed("--attention", "cudnn", NULL).choices.attention);
    CHECK_INT(2, options_parse(5, wrong, &o));
}

/* Writes a config.json of the test's own. */
static const char *config_write(const char *text)
{
    static char path[4096];
    FILE       *file;

    (void)snprintf(path, sizeof(path), "%s/config.json", test_scratch());
    file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
    return path;
}

static void models_of_transformers_say_all_sizes(void)
{
    const char *config = config_write(
        "{\"model_type\": \"qwen3\", \"hidden_size\": 48, \"num_hidden_layers\": 3, "
        "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"intermediate_size\": 40, "
        "\"head_dim\": 80, \"vocab_size\": 300, \"rope_theta\": 7, "
        "\"tie_word_embeddings\": false}");
    options o = parsed("--model", config, NULL);

    CHECK(o.init_path == NULL); /* a config.json alone has no weights */
    CHECK(o.sizes.kind == ARCH_QWEN3 && o.sizes.is_untied && o.sizes.rope.theta == 7.0);
    CHECK_INT(80, o.sizes.head_elems);
    CHECK_INT(300, o.sizes.vocab);
    o = parsed("--init", "weights", "--model", config, NULL);
    CHECK_BYTES_EQUAL("weights", o.init_path, sizeof("weights"));
    o = parsed("--model", test_scratch(), NULL);
    CHECK(o.init_path != NULL && strcmp(o.init_path, test_scratch()) == 0);
    CHECK_INT(3, o.sizes.layers);
}

/* The window of Mistral 7B v0.1 is 4096 tokens. */
static void sequences_longer_than_a_window_are_refused(void)
{
    char   *longer[] = {"sherd-llm", "--data",  "text",     "--arch", "mistral",
                        "--preset",  "7b-v0.1", "--length", "4097"};
    options o;

    CHECK_INT(
        4096,
        parsed("--arch", "mistral", "--preset", "7b-v0.1", "--length", "4096", NULL).sizes.window);
    CHECK_INT(2, options_parse(9, longer, &o));
}

static void heads_of_a_preset_go_with_its_width(void)
{
    CHECK_INT(
        128, parsed("--arch", "qwen3", "--preset", "0.6b", "--layers", "2", NULL).sizes.head_elems);
    CHECK_INT(
        0, parsed("--arch", "qwen3", "--preset", "0.6b", "--hidden", "512", NULL).sizes.head_elems);
}

static const test_case cases[] = {
    CASE(models_of_transformers_say_all_sizes),
    CASE(sequences_longer_than_a_window_are_refused),
    CASE(heads_of_a_preset_go_with_its_width),
    CASE(choices_of_a_gpu_are_words),
    CASE(heads_of_keys_equal_to_the_presets_are_kept),
    CASE(inner_width_equal_to_the_presets_is_kept),
};

RUN_MAIN(cases)

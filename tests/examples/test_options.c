/* The trainer's command line: what was given is given. */
#include "tests/lib/check.h"

#include "examples/llm/options.h"

#include <stdarg.h>
#include <stdio.h>

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

static const test_case cases[] = {
    CASE(choices_of_a_gpu_are_words),
    CASE(heads_of_keys_equal_to_the_presets_are_kept),
    CASE(inner_width_equal_to_the_presets_is_kept),
};

RUN_MAIN(cases)

/* What the tests of the configuration share: functions that complete a file from a few members, and
 * checks of refusals and warnings. */
#ifndef TESTS_ENGINE_CONFIG_HELPERS_H
#define TESTS_ENGINE_CONFIG_HELPERS_H

#include "engine/config/config_impl.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <string.h>

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* Room for the longest text that a case composes. */
#define TEXT_BYTES 2048

static inline sherd_config *parsed(const char *text)
{
    sherd_config *config = NULL;

    CHECK_OK(sherd_config_parse(text, strlen(text), &config));
    return config;
}

/* Puts `members` into a file that resolves on one rank; its optimizer is AdamW unless they name
 * one. */
static inline void complete(char text[TEXT_BYTES], const char *members)
{
    (void)snprintf(text, TEXT_BYTES, "{\"train_micro_batch_size_per_gpu\": 2%s%s%s}",
                   strstr(members, "\"optimizer\": ") != NULL
                       ? ""
                       : ", \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4}}",
                   members[0] == '\0' ? "" : ", ", members);
}

static inline sherd_config *completed(const char *members)
{
    char text[TEXT_BYTES];

    complete(text, members);
    return parsed(text);
}

static inline sherdi_settings resolved(const sherd_config *config, int world_size)
{
    sherdi_settings settings;

    CHECK_OK(sherdi_config_resolve(config, world_size, &settings));
    return settings;
}

/* Returns the settings of a complete file with `members` in it. */
static inline sherdi_settings settings_of(const char *members)
{
    sherd_config   *config   = completed(members);
    sherdi_settings settings = resolved(config, 1);

    sherd_config_destroy(config);
    return settings;
}

static inline void check_load_refused(sherd_status status, const char *text, const char *sentence)
{
    sherd_config *config = NULL;

    CHECK_STATUS(status, sherd_config_parse(text, strlen(text), &config));
    CHECK_ERROR_SAYS(sentence);
    CHECK(config == NULL);
}

static inline void check_resolve_refused(sherd_status status, const char *text, int world_size,
                                         const char *sentence)
{
    sherd_config   *config = parsed(text);
    sherdi_settings settings;

    CHECK_STATUS(status, sherdi_config_resolve(config, world_size, &settings));
    CHECK_ERROR_SAYS(sentence);
    sherd_config_destroy(config);
}

/* Checks that there is one warning, which contains the sentence. */
static inline void check_warns(const char *members, const char *sentence)
{
    sherd_config *config = completed(members);

    CHECK_INT(1, sherd_config_warning_count(config));
    test_check_contains(__FILE__, __LINE__, sherd_config_warning(config, 0), sentence);
    sherd_config_destroy(config);
}

static inline void check_silent(const char *members)
{
    sherd_config *config = completed(members);

    if (sherd_config_warning_count(config) > 0) {
        test_fail(__FILE__, __LINE__, "%s warns: %s", members, sherd_config_warning(config, 0));
    }
    sherd_config_destroy(config);
}

#endif

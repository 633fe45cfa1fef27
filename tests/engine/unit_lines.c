#include "tests/engine/unit_lines.h"

#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *unit_lines_read(const char *path)
{
    static char text[UNIT_LINES_BYTES];
    FILE       *file = fopen(path, "rb");
    size_t      bytes;

    if (file == NULL) {
        test_fail(__FILE__, __LINE__, "there is no %s", path);
    }
    bytes = fread(text, 1, sizeof(text) - 1, file);
    (void)fclose(file);
    CHECK(bytes < sizeof(text) - 1);
    text[bytes] = '\0';
    return text;
}

const char *unit_lines_last(const char *text, const char *start)
{
    const char *found = NULL;

    for (const char *at = text; at != NULL && *at != '\0';) {
        if (strncmp(at, start, strlen(start)) == 0) {
            found = at;
        }
        at = strchr(at, '\n');
        at = at == NULL ? NULL : at + 1;
    }
    return found;
}

const char *unit_lines_step(const char *text, long long step)
{
    char        start[64];
    const char *line;

    (void)snprintf(start, sizeof(start), "{\"step\": %lld, ", step);
    line = unit_lines_last(text, start);
    if (line == NULL) {
        test_fail(__FILE__, __LINE__, "no line of step %lld", step);
    }
    return line;
}

/* Reads column number `column` of quoted words. */
static uint64_t column_read(const char *at, int column)
{
    CHECK(at != NULL && *at == '"');
    for (at++; column > 0; column--) {
        at += 17;
    }
    CHECK(strspn(at, "0123456789abcdef") == 16);
    return strtoull(at, NULL, 16);
}

/* Returns where the text that is `skipped` quoted words behind `at` begins. */
static const char *words_skip(const char *at, int skipped)
{
    for (; skipped > 0 && at != NULL; skipped--) {
        at = strchr(at + 1, '"');
        at = at == NULL ? NULL : strchr(at + 1, '"');
    }
    return at;
}

uint64_t unit_lines_word(const char *line, const char *list, int unit, int column)
{
    char        start[32];
    const char *at;

    (void)snprintf(start, sizeof(start), "\"%s\": [", list);
    at = strstr(line, start);
    CHECK(at != NULL && at < strchr(line, '\n'));
    return column_read(words_skip(at + strlen(start), unit), column);
}

int unit_lines_state(const char *line, int unit, int item, int column, uint64_t *out)
{
    char        start[32];
    const char *end = strchr(line, '\n');
    const char *at  = strstr(line, "\"state\": [");

    (void)snprintf(start, sizeof(start), "[%d, ", unit);
    at = at == NULL ? NULL : strstr(at, start);
    if (at == NULL || at > end) {
        return 0;
    }
    *out = column_read(words_skip(at + strlen(start), item), column);
    return 1;
}

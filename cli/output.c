/* Writes results to files and words to a terminal. */
#include "cli/cli.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

int cli_file_check(const char *path, int is_forced)
{
    struct stat info;

    if (sherd_output_check(path) != SHERD_OK) {
        return cli_fail();
    }
    if (!is_forced && lstat(path, &info) == 0) {
        (void)fprintf(stderr, "sherd: %s is there already; --force overwrites it\n", path);
        return 1;
    }
    return 0;
}

int cli_file_save(const char *path, const char *text, int is_forced)
{
    size_t       len = strlen(text);
    char        *line;
    sherd_status status;

    if (cli_file_check(path, is_forced) != 0) {
        return 1;
    }
    line = malloc(len + 2);
    if (line == NULL) {
        (void)fprintf(stderr, "sherd: no memory for %s\n", path);
        return 1;
    }
    (void)snprintf(line, len + 2, "%s\n", text);
    status = sherd_output_write(path, line, len + 1);
    free(line);
    return status == SHERD_OK ? 0 : cli_fail();
}

/* ---- words ---- */

const char *cli_bytes_text(uint64_t bytes, char text[CLI_WORD_BYTES])
{
    if (bytes >= (uint64_t)1 << 30) {
        (void)snprintf(text, CLI_WORD_BYTES, "%.2f GiB", (double)bytes / 0x1p30);
    } else if (bytes >= (uint64_t)1 << 20) {
        (void)snprintf(text, CLI_WORD_BYTES, "%.2f MiB", (double)bytes / 0x1p20);
    } else {
        (void)snprintf(text, CLI_WORD_BYTES, "%.0f KiB", (double)bytes / 0x1p10);
    }
    return text;
}

const char *cli_age_text(int64_t changed_s, char text[CLI_WORD_BYTES])
{
    int64_t age_s = (int64_t)time(NULL) - changed_s;

    if (age_s < 120) {
        (void)snprintf(text, CLI_WORD_BYTES, "%" PRId64 " s", age_s > 0 ? age_s : 0);
    } else if (age_s < 120 * 60) {
        (void)snprintf(text, CLI_WORD_BYTES, "%" PRId64 " min", age_s / 60);
    } else if (age_s < 48 * 3600) {
        (void)snprintf(text, CLI_WORD_BYTES, "%" PRId64 " h", age_s / 3600);
    } else {
        (void)snprintf(text, CLI_WORD_BYTES, "%" PRId64 " d", age_s / 86400);
    }
    return text;
}

void cli_json_text_print(const char *text)
{
    (void)putchar('"');
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') {
            (void)printf("\\%c", *text);
        } else if ((unsigned char)*text < ' ') {
            (void)printf("\\u%04x", (unsigned)*text);
        } else {
            (void)putchar(*text);
        }
    }
    (void)putchar('"');
}

void cli_plain_print(const char *text)
{
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; at++) {
        int is_two = at[0] == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0;

        (void)putchar(is_two || *at < ' ' || *at == 0x7f ? '?' : *at);
        at += is_two;
    }
}

int cli_confirm(const char *question)
{
    int answer;
    int next;

    (void)printf("%s [y/N] ", question);
    (void)fflush(stdout);
    answer = getchar();
    for (next = answer; next != '\n' && next != EOF;) {
        next = getchar();
    }
    return answer == 'y' || answer == 'Y';
}

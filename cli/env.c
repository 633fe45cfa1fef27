/* sherd env: prints the build, the machine and the environment, to read or to paste into a
 * report. */
#include "cli/cli.h"

#include "models/blas.h"
#include "models/onednn.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char HELP[] =
    "usage: sherd env [--json]\n\n"
    "Prints the version, the machine, what this build was made with, the environment\n"
    "variables that matter, and the BLAS and the kernels with which the trainer multiplies\n"
    "matrices, also in bf16.\n\n"
    "  --json   print one JSON object\n";

typedef struct env_text {
    char  *text; /* NULL: no text yet, or memory is out */
    size_t len;
} env_text;

static sherd_status text_add(void *ctx, const char *portion, size_t len_bytes)
{
    env_text *all   = ctx;
    char     *grown = realloc(all->text, all->len + len_bytes + 1);

    if (grown == NULL) {
        return SHERD_E_NOMEM;
    }
    memcpy(grown + all->len, portion, len_bytes);
    all->text = grown;
    all->len += len_bytes;
    grown[all->len] = '\0';
    return SHERD_OK;
}

/* Prints the report of the library, and the BLAS of the trainer, which the library does not
 * know. */
static sherd_status env_print(sherd_plan_format format)
{
    env_text     all = {0};
    char         blas[256], half[320];
    sherd_status status = sherd_env_write(format, text_add, &all);

    if (status != SHERD_OK) {
        free(all.text);
        return status;
    }
    if (format == SHERD_PLAN_JSON) {
        *strrchr(all.text, '}') = '\0';
        printf("%.*s,\n \"trainer blas\": \"%s\",\n \"trainer bf16\": \"%s\"\n}\n",
               (int)strlen(all.text) - 1, all.text, blas_describe(blas), onednn_describe(half));
    } else {
        printf("%strainer blas: %s\ntrainer bf16: %s\n", all.text, blas_describe(blas),
               onednn_describe(half));
    }
    free(all.text);
    return SHERD_OK;
}

int cli_env(int argc, char **argv)
{
    static const cli_option  LIST[]  = {{"json", 'j', 0, NULL, NULL, 0, 0}, {0}};
    static const cli_options OPTIONS = {"env", HELP, LIST, 0};
    char                     warning[512];
    int                      is_json = 0;
    int                      status  = cli_options_read(&OPTIONS, argc, argv, &is_json);

    if (status >= 0) {
        return status;
    }
    if (optind != argc) {
        (void)fprintf(stderr, "sherd: '%s' is not an option; sherd env --help lists them\n",
                      argv[optind]);
        return 2;
    }
    if (env_print(is_json ? SHERD_PLAN_JSON : SHERD_PLAN_TABLE) != SHERD_OK) {
        return cli_fail();
    }
    if (blas_warning(warning) != NULL) {
        (void)fprintf(stderr, "sherd: %s\n", warning);
    }
    return 0;
}

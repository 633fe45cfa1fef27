/* sherd checkpoint: lists and verifies the checkpoints in folders, writes their weights as files
 * for other programs, and makes checkpoints from files of this kind. It needs nothing of the
 * model's code. */
#include "cli/cli.h"

#include "models/hf.h"
#include "planning/model.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char COMMAND[] = "checkpoint";

static const char HELP[] =
    "usage: sherd checkpoint list DIR [--json]\n"
    "       sherd checkpoint inspect DIR[/TAG] [--json]\n"
    "       sherd checkpoint verify DIR[/TAG] [--json]\n"
    "       sherd checkpoint export DIR[/TAG] OUT [--type TYPE] [--arch NAME --preset NAME]\n"
    "       sherd checkpoint import WEIGHTS DIR/TAG [--arch NAME --preset NAME | --model FILE]\n"
    "       sherd checkpoint remove DIR/TAG... [--yes]\n\n"
    "Works on the checkpoints in the folder DIR. DIR alone stands for the checkpoint that\n"
    "DIR/latest names.\n\n"
    "  list            print a line for each checkpoint, the oldest first; * marks the latest\n"
    "  inspect         print the model, the counters and the files\n"
    "  verify          read every byte, and name every tensor and file that is damaged\n"
    "  export          write the weights as safetensors: one file if OUT ends in .safetensors,\n"
    "                  else a folder. Tensors have the names of the model. With --arch they\n"
    "                  have transformers' names, and a folder gets the config.json too\n"
    "  import          make a checkpoint of weights alone from WEIGHTS (safetensors: a file, an\n"
    "                  index or a folder). Every engine of that model loads it without the\n"
    "                  optimizer's state. Parameters have the names of the file, with --arch\n"
    "                  those of transformers, with --model those that FILE lists\n"
    "  remove          ask, then remove checkpoints. If the latest is removed, the one before\n"
    "                  it becomes the latest\n\n"
    "  --type TYPE     element type of the exported weights: fp32, bf16 or fp16 (default fp32)\n"
    "  --arch NAME     gpt2, minimind, llama, mistral, qwen2 or qwen3\n"
    "  --preset NAME   sizes of --arch by name (sherd plan --arch NAME --preset help lists them)\n"
    "  --model FILE    a model as sherd plan reads it: config.json, a list of units, or a\n"
    "                  folder with one\n"
    "  --yes           remove without asking; needed if there is no terminal to ask on\n"
    "  --json          print one JSON object\n\n"
    "Exit status: 0; 1 if something is damaged or failed; 2 if the arguments are wrong.\n";

typedef struct checkpoint_arguments {
    const char *verb;
    char      **paths;
    int         num_paths;
    sherd_dtype dtype;
    const char *arch, *preset, *model; /* NULL: not set */
    int         is_json, is_yes;
} checkpoint_arguments;

/* ---- paths ---- */

/* A path DIR, or DIR/TAG if the path has a manifest or a tag is required. */
typedef struct checkpoint_path {
    char        dir[4096];
    const char *tag; /* NULL: the latest */
} checkpoint_path;

static int has_manifest(const char *path)
{
    char manifest[4096 + 16];

    (void)snprintf(manifest, sizeof(manifest), "%s/manifest.json", path);
    return access(manifest, F_OK) == 0;
}

static void path_read(const char *path, int needs_tag, checkpoint_path *out)
{
    size_t len = strlen(path);
    char  *slash;

    (void)snprintf(out->dir, sizeof(out->dir), "%s", path);
    len = len < sizeof(out->dir) ? len : sizeof(out->dir) - 1;
    while (len > 1 && out->dir[len - 1] == '/') {
        out->dir[--len] = '\0';
    }
    out->tag = NULL;
    if (!needs_tag && !has_manifest(out->dir)) {
        return;
    }
    slash = strrchr(out->dir, '/');
    if (slash == NULL) { /* a tag in the current folder */
        memmove(out->dir + 2, out->dir, len + 1);
        memcpy(out->dir, ".", 2);
        out->tag = out->dir + 2;
    } else {
        *slash   = '\0';
        out->tag = slash + 1;
    }
}

int cli_checkpoint_open(const char *path, sherd_checkpoint **out)
{
    checkpoint_path at;

    path_read(path, 0, &at);
    return sherd_checkpoint_open(at.dir[0] == '\0' ? "/" : at.dir, at.tag, out) == SHERD_OK
               ? 0
               : cli_fail();
}

/* ---- progress ---- */

typedef struct progress {
    const char *what;
    time_t      printed;
    int         is_shown;
} progress;

/* Prints a line to a terminal, at most once a second. */
static void progress_print(void *ctx, uint64_t done_bytes, uint64_t all_bytes)
{
    progress *p   = ctx;
    time_t    now = time(NULL);
    char      word[2][CLI_WORD_BYTES];

    if (now == p->printed || !isatty(STDERR_FILENO)) {
        return;
    }
    p->printed  = now;
    p->is_shown = 1;
    (void)fprintf(stderr, "\r%s: %s of %s ", p->what, cli_bytes_text(done_bytes, word[0]),
                  cli_bytes_text(all_bytes, word[1]));
    (void)fflush(stderr);
}

static void progress_end(const progress *p)
{
    if (p->is_shown) {
        (void)fprintf(stderr, "\r%*s\r", 72, "");
    }
}

/* ---- list ---- */

typedef struct listing {
    int is_json;
    int count;
} listing;

static void info_print_json(const sherd_checkpoint_info *info, int is_first)
{
    (void)printf("%s\n {\"tag\": ", is_first ? "" : ",");
    cli_json_text_print(info->tag);
    (void)printf(", \"is_complete\": %d, \"is_latest\": %d, \"problem\": ", info->is_complete,
                 info->is_latest);
    cli_json_text_print(info->problem);
    (void)printf(", \"step\": %" PRId64 ", \"saved\": %" PRId64
                 ", \"world_size\": %d, \"stage\": %d, \"compute_type\": \"%s\", \"optimizer\": ",
                 info->step, info->saved_s, info->world_size, info->stage,
                 info->step < 0 ? "" : sherd_dtype_name(info->compute_dtype));
    cli_json_text_print(info->optimizer);
    (void)printf(", \"num_params\": %" PRIu64 ", \"num_elems\": %" PRIu64
                 ", \"data_bytes\": %" PRIu64 ", \"held_bytes\": %" PRIu64
                 ", \"shared_bytes\": %" PRIu64 ", \"fingerprint\": \"%016" PRIx64
                 "\", \"state_fingerprint\": \"%016" PRIx64 "\"}",
                 info->num_params, info->num_elems, info->data_bytes, info->held_bytes,
                 info->shared_bytes, info->fingerprint, info->state_fingerprint);
}

static void info_print(const sherd_checkpoint_info *info, int is_first)
{
    char word[3][CLI_WORD_BYTES];

    if (is_first) {
        (void)printf("%10s %9s %6s %6s %12s %12s  %-16s  %s\n", "step", "saved", "ranks", "stage",
                     "size", "shared", "fingerprint", "tag");
    }
    if (info->step < 0) {
        (void)printf("%10s %9s %6s %6s %12s %12s  %-16s ", "-", "-", "-", "-",
                     cli_bytes_text(info->held_bytes, word[0]),
                     cli_bytes_text(info->shared_bytes, word[1]), "-");
    } else {
        (void)printf("%10" PRId64 " %9s %6d %6d %12s %12s  %016" PRIx64 " ", info->step,
                     cli_age_text(info->saved_s, word[2]), info->world_size, info->stage,
                     cli_bytes_text(info->held_bytes, word[0]),
                     cli_bytes_text(info->shared_bytes, word[1]), info->fingerprint);
    }
    (void)printf(info->is_latest ? "*" : " ");
    cli_plain_print(info->tag);
    if (!info->is_complete) {
        (void)printf(": NOT COMPLETE, ");
        cli_plain_print(info->problem);
    }
    (void)printf("\n");
}

static sherd_status info_take(void *ctx, const sherd_checkpoint_info *info)
{
    listing *l = ctx;

    if (l->is_json) {
        info_print_json(info, l->count == 0);
    } else {
        info_print(info, l->count == 0);
    }
    l->count++;
    return SHERD_OK;
}

static int checkpoint_list(const checkpoint_arguments *arguments)
{
    listing l = {.is_json = arguments->is_json};

    if (l.is_json) {
        (void)printf("{\"checkpoints\": [");
    }
    if (sherd_checkpoints_find(arguments->paths[0], info_take, &l) != SHERD_OK) {
        return cli_fail();
    }
    (void)printf(l.is_json ? "]}\n" : l.count == 0 ? "no checkpoints\n" : "");
    return 0;
}

/* ---- inspect ---- */

static int checkpoint_inspect(const checkpoint_arguments *arguments)
{
    sherd_checkpoint *c;
    sherd_status      status;

    if (cli_checkpoint_open(arguments->paths[0], &c) != 0) {
        return 1;
    }
    status = sherd_checkpoint_write(c, arguments->is_json ? SHERD_PLAN_JSON : SHERD_PLAN_TABLE,
                                    cli_print, stdout);
    if (status == SHERD_OK && !sherd_checkpoint_describe(c)->is_complete) {
        (void)fprintf(stderr, "sherd: the checkpoint is not complete: %s\n",
                      sherd_checkpoint_describe(c)->problem);
        status = SHERD_E_INVAL;
    } else if (status != SHERD_OK) {
        (void)cli_fail();
    }
    sherd_checkpoint_close(c);
    return status == SHERD_OK ? 0 : 1;
}

/* ---- verify ---- */

static void damage_print(void *ctx, const sherd_checkpoint_damage *damage)
{
    listing *l = ctx;

    if (l->is_json) {
        (void)printf("%s\n {\"file\": ", l->count == 0 ? "" : ",");
        cli_json_text_print(damage->file);
        (void)printf(", \"tensor\": ");
        cli_json_text_print(damage->tensor == NULL ? "" : damage->tensor);
        (void)printf(", \"begin\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"what\": ", damage->begin,
                     damage->len_bytes);
        cli_json_text_print(damage->what);
        (void)printf("}");
    } else {
        cli_plain_print(damage->file);
        if (damage->tensor != NULL) {
            (void)printf(", tensor ");
            cli_plain_print(damage->tensor);
        }
        (void)printf(": ");
        cli_plain_print(damage->what);
        if (damage->len_bytes > 0) {
            (void)printf(" (bytes %" PRIu64 " to %" PRIu64 ")", damage->begin,
                         damage->begin + damage->len_bytes);
        }
        (void)printf("\n");
    }
    l->count++;
}

static int checkpoint_verify(const checkpoint_arguments *arguments)
{
    progress            shown = {.what = "verify", .printed = time(NULL)};
    listing             l     = {.is_json = arguments->is_json};
    sherd_verify_params params;
    sherd_checkpoint   *c;
    sherd_status        status;
    char                word[CLI_WORD_BYTES];

    if (cli_checkpoint_open(arguments->paths[0], &c) != 0) {
        return 1;
    }
    sherd_verify_params_init(&params);
    params.progress     = progress_print;
    params.progress_ctx = &shown;
    params.damage       = damage_print;
    params.damage_ctx   = &l;
    if (l.is_json) {
        (void)printf("{\"damages\": [");
    }
    status = sherd_checkpoint_verify(c, &params);
    progress_end(&shown);
    if (l.is_json) {
        (void)printf("],\n \"is_whole\": %s}\n", status == SHERD_OK ? "true" : "false");
    }
    if (status != SHERD_OK) {
        (void)cli_fail();
    } else if (!l.is_json) {
        (void)printf("%s is whole: step %" PRId64 ", %s of data, fingerprint %016" PRIx64 "\n",
                     sherd_checkpoint_describe(c)->tag, sherd_checkpoint_describe(c)->step,
                     cli_bytes_text(sherd_checkpoint_describe(c)->data_bytes, word),
                     sherd_checkpoint_describe(c)->fingerprint);
    }
    sherd_checkpoint_close(c);
    return status == SHERD_OK ? 0 : 1;
}

/* ---- export ---- */

static int export_write(const checkpoint_arguments *arguments, sherd_checkpoint *c,
                        const maps *names)
{
    progress            shown = {.what = "export", .printed = time(NULL)};
    sherd_export_params params;
    sherd_status        status;

    sherd_export_params_init(&params);
    params.dtype        = arguments->dtype;
    params.progress     = progress_print;
    params.progress_ctx = &shown;
    if (names != NULL) {
        params.tensors     = names->tensors;
        params.num_tensors = names->count;
    }
    status = sherd_checkpoint_export(c, arguments->paths[1], &params);
    progress_end(&shown);
    return status == SHERD_OK ? 0 : cli_fail();
}

/* Writes the path of the config.json in the folder of the weights; "": the weights are one file. */
static int config_path(const checkpoint_arguments *arguments, char path[4096])
{
    const char *weights = arguments->paths[1];
    size_t      len     = strlen(weights);

    path[0] = '\0';
    if (len > 12 && strcmp(weights + len - 12, ".safetensors") == 0) {
        return 0;
    }
    if (snprintf(path, 4096, "%s/config.json", weights) >= 4096) {
        (void)fprintf(stderr, "sherd: the path is too long: %s\n", weights);
        return 1;
    }
    return cli_file_check(path, 1);
}

static int config_write(const checkpoint_arguments *arguments, const arch *model, const char *path)
{
    char text[4096];

    if (hf_config_write(model, arguments->dtype, text, sizeof(text)) >= sizeof(text)) {
        (void)fprintf(stderr, "sherd: the description of the model is too long for %s\n", path);
        return 1;
    }
    return path[0] == '\0' ? 0 : cli_file_save(path, text, 1);
}

static int model_find(const checkpoint_arguments *arguments, arch *out)
{
    arch_kind kind;

    if (arch_kind_find(arguments->arch, &kind) != 0 ||
        arch_preset(kind, arguments->preset, out) != 0) {
        (void)fprintf(stderr,
                      "sherd: no model %s of %s; sherd plan --arch NAME --preset help lists them\n",
                      arguments->preset, arguments->arch);
        return 0;
    }
    return 1;
}

static int checkpoint_export(const checkpoint_arguments *arguments)
{
    sherd_checkpoint *c;
    arch              model;
    maps              names;
    int               is_named = arguments->arch != NULL;
    int               failed;
    char              config[4096];

    if (is_named && !model_find(arguments, &model)) {
        return 2;
    }
    if (is_named && config_path(arguments, config) != 0) {
        return 1;
    }
    if (cli_checkpoint_open(arguments->paths[0], &c) != 0) {
        return 1;
    }
    if (is_named && hf_maps_open(&model, &names) != 0) {
        (void)fprintf(stderr, "sherd: no memory for the names of the tensors\n");
        sherd_checkpoint_close(c);
        return 1;
    }
    failed = export_write(arguments, c, is_named ? &names : NULL);
    if (failed == 0 && is_named) {
        failed = config_write(arguments, &model, config);
    }
    if (is_named) {
        maps_close(&names);
    }
    sherd_checkpoint_close(c);
    return failed;
}

/* ---- import ---- */

/* The parameters of a model, in the order of declaration. */
typedef struct listed {
    sherd_checkpoint_param *params;
    size_t                  count;
} listed;

static int listed_open(listed *list, size_t count)
{
    list->count  = 0;
    list->params = calloc(count + 1, sizeof(*list->params));
    if (list->params == NULL) {
        (void)fprintf(stderr, "sherd: no memory for the model's parameters\n");
        return 1;
    }
    return 0;
}

static void listed_add(listed *list, const char *name, int ndim, const size_t *shape)
{
    sherd_checkpoint_param *param = &list->params[list->count++];

    sherd_checkpoint_param_init(param);
    param->name = name;
    param->ndim = ndim;
    memcpy(param->shape, shape, (size_t)ndim * sizeof(*shape));
}

/* With a model, the file may also contain the tensors that transformers writes besides its
 * parameters. */
static int import_write(const checkpoint_arguments *arguments, const listed *list,
                        const arch *model, sherd_import_params *params)
{
    progress        shown = {.what = "import", .printed = time(NULL)};
    const char     *extra[8];
    checkpoint_path at;

    params->progress     = progress_print;
    params->progress_ctx = &shown;
    if (model != NULL) {
        while ((extra[params->num_may_be_extra] = hf_extra(model, params->num_may_be_extra)) !=
               NULL) {
            params->num_may_be_extra++;
        }
        params->may_be_extra    = extra;
        params->optional_prefix = hf_prefix(model);
    }
    path_read(arguments->paths[1], 1, &at);
    if (sherd_checkpoint_import(arguments->paths[0], at.dir[0] == '\0' ? "/" : at.dir, at.tag,
                                list == NULL ? NULL : list->params, list == NULL ? 0 : list->count,
                                params) != SHERD_OK) {
        progress_end(&shown);
        return cli_fail();
    }
    progress_end(&shown);
    (void)printf("imported to ");
    cli_plain_print(arguments->paths[1]);
    (void)printf("\n");
    return 0;
}

/* Imports tensors under the names of transformers, some of which are transposed. */
static int import_arch(const checkpoint_arguments *arguments, sherd_import_params *params)
{
    arch   model;
    maps   names;
    listed list;
    int    failed = 1;

    if (!model_find(arguments, &model)) {
        return 2;
    }
    if (listed_open(&list, arch_param_count(&model)) != 0) {
        return 1;
    }
    if (hf_maps_open(&model, &names) != 0) {
        (void)fprintf(stderr, "sherd: no memory for the names of the tensors\n");
        free(list.params);
        return 1;
    }
    for (size_t k = 0; k < names.count; k++) {
        arch_param param;

        arch_param_get(&model, k, &param);
        listed_add(&list, names.names[k], param.ndim, param.shape);
    }
    params->tensors     = names.tensors;
    params->num_tensors = names.count;
    failed              = import_write(arguments, &list, &model, params);
    maps_close(&names);
    free(list.params);
    return failed;
}

/* Imports by a description: each parameter in it is a tensor of that name and shape. */
static int import_model(const checkpoint_arguments *arguments, sherd_import_params *params)
{
    char            why[512];
    planning_model *model = planning_model_from_file(arguments->model, why, sizeof(why));
    listed          list;
    int             failed;

    if (model == NULL) {
        (void)fprintf(stderr, "sherd: %s\n", why);
        return 1;
    }
    if (listed_open(&list, model->num_params) != 0) {
        planning_model_destroy(model);
        return 1;
    }
    for (size_t p = 0; p < model->num_params; p++) {
        listed_add(&list, model->params[p].name, model->params[p].ndim, model->params[p].shape);
    }
    failed = import_write(arguments, &list, model->has_arch ? &model->sizes : NULL, params);
    free(list.params);
    planning_model_destroy(model);
    return failed;
}

static int checkpoint_import(const checkpoint_arguments *arguments)
{
    sherd_import_params params;

    sherd_import_params_init(&params);
    if (arguments->arch != NULL && arguments->model != NULL) {
        return cli_bad(COMMAND, "--arch and --model are two ways to say one thing");
    }
    return arguments->arch != NULL    ? import_arch(arguments, &params)
           : arguments->model != NULL ? import_model(arguments, &params)
                                      : import_write(arguments, NULL, NULL, &params);
}

/* ---- remove ---- */

static int checkpoint_remove(const checkpoint_arguments *arguments)
{
    char question[64];
    int  failed = 0;

    (void)snprintf(question, sizeof(question), "remove %d checkpoint%s?", arguments->num_paths,
                   arguments->num_paths == 1 ? "" : "s");
    if (!arguments->is_yes) {
        if (!isatty(STDIN_FILENO)) {
            (void)fprintf(stderr, "sherd: nothing is removed; without a terminal it takes --yes\n");
            return 2;
        }
        if (!cli_confirm(question)) {
            (void)printf("nothing is removed\n");
            return 1;
        }
    }
    for (int i = 0; i < arguments->num_paths; i++) {
        checkpoint_path at;

        path_read(arguments->paths[i], 1, &at);
        if (sherd_checkpoint_remove(at.dir[0] == '\0' ? "/" : at.dir, at.tag) != SHERD_OK) {
            failed = cli_fail();
        } else {
            (void)printf("removed %s\n", arguments->paths[i]);
        }
    }
    return failed;
}

/* ---- arguments ---- */

static const struct verb {
    const char *name;
    int (*run)(const checkpoint_arguments *arguments);
    int least_paths, most_paths;
    int has_json;
} VERBS[] = {
    {"list", checkpoint_list, 1, 1, 1},     {"inspect", checkpoint_inspect, 1, 1, 1},
    {"verify", checkpoint_verify, 1, 1, 1}, {"export", checkpoint_export, 2, 2, 0},
    {"import", checkpoint_import, 2, 2, 0}, {"remove", checkpoint_remove, 1, 1 << 20, 0},
};

static int dtype_take(const cli_option *option, const char *text, void *field)
{
    (void)option;
    for (int t = SHERD_F32; t <= SHERD_F16; t++) {
        if (strcmp(text, sherd_dtype_name((sherd_dtype)t)) == 0) {
            *(sherd_dtype *)field = (sherd_dtype)t;
            return 1;
        }
    }
    return 0;
}

static int verb_run(const checkpoint_arguments *arguments)
{
    for (size_t v = 0; v < sizeof(VERBS) / sizeof(VERBS[0]); v++) {
        const struct verb *verb = &VERBS[v];

        if (strcmp(arguments->verb, verb->name) != 0) {
            continue;
        }
        if (arguments->num_paths < verb->least_paths || arguments->num_paths > verb->most_paths) {
            return cli_bad(COMMAND, "%s wants %s", verb->name,
                           verb->least_paths == 2 ? "what it reads and where it goes"
                                                  : "a checkpoint, or its folder");
        }
        if (arguments->is_json && !verb->has_json) {
            return cli_bad(COMMAND, "%s has no --json", verb->name);
        }
        if (arguments->model != NULL && verb->run != checkpoint_import) {
            return cli_bad(COMMAND, "%s has no --model", verb->name);
        }
        if ((arguments->arch == NULL) != (arguments->preset == NULL)) {
            return cli_bad(COMMAND, "--arch and --preset come together");
        }
        return verb->run(arguments);
    }
    return cli_bad(COMMAND, "there is no 'sherd checkpoint %s'", arguments->verb);
}

int cli_checkpoint(int argc, char **argv)
{
    static const cli_option LIST[] = {
        CLI_FLAG("json", 'j', checkpoint_arguments, is_json),
        CLI_FLAG("yes", 'y', checkpoint_arguments, is_yes),
        CLI_READ("type", 't', checkpoint_arguments, dtype, dtype_take, "is fp32, bf16 or fp16"),
        CLI_TEXT("arch", 'a', checkpoint_arguments, arch),
        CLI_TEXT("preset", 'p', checkpoint_arguments, preset),
        CLI_TEXT("model", 'm', checkpoint_arguments, model),
        {0}};
    static const cli_options OPTIONS   = {COMMAND, HELP, LIST, 0};
    checkpoint_arguments     arguments = {.dtype = SHERD_F32};
    int                      status    = cli_options_read(&OPTIONS, argc, argv, &arguments);

    if (status >= 0) {
        return status;
    }
    if (optind == argc) {
        (void)fputs(HELP, stderr);
        return 2;
    }
    arguments.verb      = argv[optind];
    arguments.paths     = argv + optind + 1;
    arguments.num_paths = argc - optind - 1;
    return verb_run(&arguments);
}

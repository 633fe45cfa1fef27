/* sherd plan: the plan of one rank, or a line per world size and stage, for a model of a
 * built-in architecture. Nothing of the model's size is allocated. */
#include "cli/cli.h"

#include "examples/llm/arch.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_WORLDS 32

static const char HELP[] =
    "usage: sherd plan [OPTIONS]\n\n"
    "Memory by purpose and traffic of a rank, before anything is allocated.\n\n"
    "model\n"
    "  --arch NAME        gpt2 or minimind (default minimind)\n"
    "  --preset NAME      its sizes by name (--arch NAME --preset help lists them)\n"
    "  --hidden N --layers N --heads N --kv-heads N --inner N --vocab N --length N\n"
    "layout\n"
    "  --config FILE      DeepSpeed-style configuration (default: AdamW, bf16, stage 3,\n"
    "                     one micro-batch, persistence threshold 0)\n"
    "  --set KEY=JSON     set a key of it (may repeat)\n"
    "  --stage LIST       stages, for example 0,1,2,3\n"
    "  --world LIST       world sizes, for example 1,8,64,1024 (default 1)\n"
    "  --rank N           which rank (default 0)\n"
    "output\n"
    "  One stage and one world: the whole plan. Several: a line each.\n"
    "  --json             the same as JSON, one object per plan\n";

static const char DEFAULT_CONFIG[] =
    "{\"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": true},"
    " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4}},"
    " \"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": 0}}";

typedef struct plan_arguments {
    arch        model;
    const char *config_path;
    const char *settings[64];
    int         num_settings;
    int         stages[4], num_stages;
    int         worlds[MOST_WORLDS], num_worlds;
    int         rank;
    int         is_json;
} plan_arguments;

static int bad(const char *fmt, const char *what)
{
    (void)fprintf(stderr, "sherd: ");
    (void)fprintf(stderr, fmt, what);
    (void)fprintf(stderr, "; sherd plan --help lists the options\n");
    return 2;
}

static int read_size(const char *text, size_t *out)
{
    char *end;

    errno = 0;
    *out  = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0' && end != text && text[0] != '-' && *out > 0;
}

/* "1,8,64" */
static int read_list(const char *text, int least, int most, int *list, int capacity, int *count)
{
    *count = 0;
    while (*text != '\0') {
        char *end;
        long  value = strtol(text, &end, 10);

        if (end == text || value < least || value > most || *count == capacity ||
            (*end != ',' && *end != '\0')) {
            return 0;
        }
        list[(*count)++] = (int)value;
        text             = *end == ',' ? end + 1 : end;
    }
    return *count > 0;
}

static sherd_status config_open(const plan_arguments *arguments, int stage, sherd_config **out)
{
    sherd_status status = arguments->config_path == NULL
                              ? sherd_config_parse(DEFAULT_CONFIG, strlen(DEFAULT_CONFIG), out)
                              : sherd_config_load(arguments->config_path, out);
    char         text[24];

    if (status != SHERD_OK) {
        return status;
    }
    (void)snprintf(text, sizeof(text), "%zu", arguments->model.hidden);
    status = sherd_config_set(*out, "hidden_size", text);
    if (status == SHERD_OK && stage >= 0) {
        (void)snprintf(text, sizeof(text), "%d", stage);
        status = sherd_config_set(*out, "!zero_optimization.stage", text);
    }
    for (int i = 0; i < arguments->num_settings && status == SHERD_OK; i++) {
        char        key[128];
        const char *equals = strchr(arguments->settings[i], '=');

        (void)snprintf(key, sizeof(key), "!%.*s", (int)(equals - arguments->settings[i]),
                       arguments->settings[i]);
        status = sherd_config_set(*out, key, equals + 1);
    }
    if (status != SHERD_OK) {
        sherd_config_destroy(*out);
    }
    return status;
}

static sherd_status engine_open(const plan_arguments *arguments, int stage, int world_size,
                                sherd_engine **out)
{
    sherd_config *config;
    sherd_world  *world;
    sherd_status  status = config_open(arguments, stage, &config);

    if (status != SHERD_OK) {
        return status;
    }
    status = sherd_world_simulate(arguments->rank, world_size, &world);
    if (status == SHERD_OK) {
        status = sherd_engine_create(world, config, out);
        sherd_world_destroy(world);
    }
    sherd_config_destroy(config);
    if (status != SHERD_OK) {
        return status;
    }
    status = arch_declare(&arguments->model, *out);
    if (status != SHERD_OK) {
        sherd_engine_destroy(*out);
    }
    return status;
}

static sherd_status line_print(sherd_engine *engine, int world_size)
{
    sherd_memory_report memory = {.struct_size = sizeof(memory)};
    sherd_engine_info   info   = {.struct_size = sizeof(info)};
    sherd_status        status = sherd_engine_memory(engine, &memory);

    if (status == SHERD_OK) {
        status = sherd_engine_query(engine, &info);
    }
    if (status == SHERD_OK) {
        size_t host = memory.host_params_planned + memory.host_grads_planned +
                      memory.host_state_planned + memory.host_staging_planned;

        (void)printf(
            "%6d %6d %10.2f %10.2f %10.2f %10.2f %10.2f %10.2f %10.2f %10.2f %10.2f\n", info.stage,
            world_size, (double)memory.params_planned / 0x1p20,
            (double)memory.grads_planned / 0x1p20, (double)memory.state_planned / 0x1p20,
            (double)memory.gather_planned / 0x1p20, (double)memory.transient_planned / 0x1p20,
            (double)memory.staging_planned / 0x1p20, (double)(memory.total_planned - host) / 0x1p20,
            (double)host / 0x1p20, (double)memory.nvme_planned / 0x1p20);
    }
    return status;
}

static int one_plan(const plan_arguments *arguments, int stage, int world_size, int is_line)
{
    sherd_engine *engine;
    sherd_status  status = engine_open(arguments, stage, world_size, &engine);

    if (status != SHERD_OK) {
        return cli_fail();
    }
    if (is_line) {
        status = line_print(engine, world_size);
    } else {
        status = sherd_engine_plan(engine, arguments->is_json ? SHERD_PLAN_JSON : SHERD_PLAN_TABLE,
                                   cli_print, stdout);
    }
    sherd_engine_destroy(engine);
    return status == SHERD_OK ? 0 : cli_fail();
}

static int plans_print(const plan_arguments *arguments)
{
    int is_line = !arguments->is_json && arguments->num_stages * arguments->num_worlds > 1;
    int failed  = 0;

    if (is_line) {
        (void)printf("%s, %zu elements; MiB of rank %d\n", arch_kind_name(arguments->model.kind),
                     arch_elems(&arguments->model), arguments->rank);
        (void)printf("%6s %6s %10s %10s %10s %10s %10s %10s %10s %10s %10s\n", "stage", "world",
                     "params", "grads", "state", "gathered", "transient", "staging", "= device",
                     "host", "nvme");
    }
    for (int s = 0; s < arguments->num_stages; s++) {
        for (int w = 0; w < arguments->num_worlds; w++) {
            failed |= one_plan(arguments, arguments->stages[s], arguments->worlds[w], is_line);
        }
    }
    return failed;
}

static int presets_list(arch_kind kind)
{
    (void)printf("presets of %s:", arch_kind_name(kind));
    for (size_t i = 0; arch_preset_name(kind, i) != NULL; i++) {
        (void)printf(" %s", arch_preset_name(kind, i));
    }
    (void)printf("\n");
    return 0;
}

/* The sizes: the preset's, then those given one by one. */
static int model_finish(arch *model, arch_kind kind, const char *preset, const arch *given)
{
    char        text[256];
    const char *wrong;

    if (preset == NULL && given->hidden == 0) {
        preset = arch_preset_name(kind, 0);
    }
    model->kind = kind;
    if (preset != NULL && arch_preset(kind, preset, model) != 0) {
        return bad("no preset '%s'", preset);
    }
    model->hidden     = given->hidden > 0 ? given->hidden : model->hidden;
    model->layers     = given->layers > 0 ? given->layers : model->layers;
    model->heads      = given->heads > 0 ? given->heads : model->heads;
    model->kv_heads   = given->kv_heads > 0 ? given->kv_heads : model->kv_heads;
    model->inner      = given->inner > 0 ? given->inner : model->inner;
    model->vocab      = given->vocab > 0 ? given->vocab : model->vocab;
    model->max_length = given->max_length > 0 ? given->max_length : model->max_length;
    arch_complete(model);
    wrong = arch_check(model, text, sizeof(text));
    return wrong == NULL ? 0 : bad("%s", wrong);
}

int cli_plan(int argc, char **argv)
{
    enum { HIDDEN = 256, LAYERS, HEADS, KV_HEADS, INNER, VOCAB, LENGTH };
    static const struct option OPTIONS[] = {{"arch", required_argument, NULL, 'a'},
                                            {"preset", required_argument, NULL, 'p'},
                                            {"config", required_argument, NULL, 'c'},
                                            {"set", required_argument, NULL, 's'},
                                            {"stage", required_argument, NULL, 'z'},
                                            {"world", required_argument, NULL, 'w'},
                                            {"rank", required_argument, NULL, 'r'},
                                            {"json", no_argument, NULL, 'j'},
                                            {"help", no_argument, NULL, 'h'},
                                            {"hidden", required_argument, NULL, HIDDEN},
                                            {"layers", required_argument, NULL, LAYERS},
                                            {"heads", required_argument, NULL, HEADS},
                                            {"kv-heads", required_argument, NULL, KV_HEADS},
                                            {"inner", required_argument, NULL, INNER},
                                            {"vocab", required_argument, NULL, VOCAB},
                                            {"length", required_argument, NULL, LENGTH},
                                            {NULL, 0, NULL, 0}};
    plan_arguments arguments = {.stages = {-1}, .num_stages = 1, .worlds = {1}, .num_worlds = 1};
    arch           given     = {0};
    arch_kind      kind      = ARCH_MINIMIND;
    const char    *preset    = NULL;
    size_t *const  sizes[]   = {&given.hidden, &given.layers, &given.heads,     &given.kv_heads,
                                &given.inner,  &given.vocab,  &given.max_length};
    int            option;
    int            wrong;

    while ((option = getopt_long(argc, argv, "jh", OPTIONS, NULL)) != -1) {
        switch (option) {
        case 'a':
            if (arch_kind_find(optarg, &kind) != 0) {
                return bad("no architecture '%s': gpt2 or minimind", optarg);
            }
            break;
        case 'p':
            preset = optarg;
            break;
        case 'c':
            arguments.config_path = optarg;
            break;
        case 's':
            if (strchr(optarg, '=') == NULL || arguments.num_settings == 64) {
                return bad("--set wants KEY=JSON (at most 64 times), not '%s'", optarg);
            }
            arguments.settings[arguments.num_settings++] = optarg;
            break;
        case 'z':
            if (!read_list(optarg, 0, 3, arguments.stages, 4, &arguments.num_stages)) {
                return bad("--stage wants stages from 0 to 3, not '%s'", optarg);
            }
            break;
        case 'w':
            if (!read_list(optarg, 1, 1 << 20, arguments.worlds, MOST_WORLDS,
                           &arguments.num_worlds)) {
                return bad("--world wants numbers of ranks, not '%s'", optarg);
            }
            break;
        case 'r':
            if (!read_list(optarg, 0, 1 << 20, &arguments.rank, 1, &wrong)) {
                return bad("--rank wants a rank, not '%s'", optarg);
            }
            break;
        case 'j':
            arguments.is_json = 1;
            break;
        case 'h':
            (void)fputs(HELP, stdout);
            return 0;
        default:
            if (option < HIDDEN || option > LENGTH) {
                (void)fputs(HELP, stderr);
                return 2;
            }
            if (!read_size(optarg, sizes[option - HIDDEN])) {
                return bad("a size is a whole number above 0, not '%s'", optarg);
            }
        }
    }
    if (optind != argc) {
        return bad("'%s' is not an option", argv[optind]);
    }
    if (preset != NULL && strcmp(preset, "help") == 0) {
        return presets_list(kind);
    }
    wrong = model_finish(&arguments.model, kind, preset, &given);
    return wrong != 0 ? wrong : plans_print(&arguments);
}

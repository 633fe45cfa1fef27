/* The arguments of sherd plan: a model, layouts, a machine, and what to print. */
#include "cli/plan_parse.h"

#include "cli/cli.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char HELP[] =
    "usage: sherd plan [OPTIONS]\n\n"
    "Predicts memory by purpose, traffic and time of a rank's step, before anything is\n"
    "allocated. Prints one layout in full, or many as a table, or chooses the fastest layout\n"
    "that fits and writes its configuration.\n\n"
    "Model: one of these (default: --arch minimind --preset tiny)\n"
    "  --arch NAME          gpt2, minimind, llama, mistral, qwen2 or qwen3, with its sizes:\n"
    "  --preset NAME        sizes by name (--arch NAME --preset help lists the names)\n"
    "  --hidden N --layers N --heads N --kv-heads N --inner N --vocab N --length N\n"
    "                       single sizes, instead of those of the preset; --length is the\n"
    "                       number of positions, and sherd-llm's --length is --tokens here\n"
    "  --model FILE|FOLDER  config.json of Hugging Face, a list of units, safetensors or their\n"
    "                       index, or a model .bin of llm.c; of weights only headers are read\n"
    "  --params COUNT       number of parameters, for example 124M, 7.5B, 1T (powers of 1000)\n\n"
    "Layout\n"
    "  --config FILE        DeepSpeed-style configuration (default: AdamW, bf16, stage 3,\n"
    "                       one micro-batch, persistence threshold 0)\n"
    "  --set KEY=JSON       set a key of the configuration; may be given up to 64 times\n"
    "  --stage LIST         stages, for example 0,1,2,3, or all (default: as configured)\n"
    "  --offload LIST       none, optimizer-cpu (or cpu), optimizer-nvme (or nvme), params-cpu,\n"
    "                       params-nvme (parameters and state), or all (default: as configured)\n"
    "  --all                all possible stages and offloads, and with several hosts copies on\n"
    "                       each. This is the default with --best.\n"
    "                       It is also the default if memory or drives are given, and neither\n"
    "                       --stage nor --offload\n"
    "  --world LIST         numbers of ranks, for example 1,8,64,1024 (default 1)\n"
    "  --rank N             rank that is planned (default 0)\n\n"
    "Machine\n"
    "  --backend NAME       backend whose memory is planned, cpu or cuda (default: cuda with\n"
    "                       --device-memory, else cpu)\n"
    "  --device-memory SIZE memory of the device of one rank\n"
    "  --host-memory SIZE   memory of one host, for all its ranks; on cpu, --device-memory and\n"
    "                       --host-memory both mean the memory of the host\n"
    "  --nvme-space SIZE    space on the drives of one host, for all its ranks\n"
    "                       80G and 80GiB are powers of 1024, 80GB of 1000. If a SIZE is given,\n"
    "                       each row says whether the layout fits\n"
    "  --ranks-per-host N   ranks on each host (default: 8 on cuda, all on cpu)\n"
    "  --rates FILE         rates that `sherd bench --out FILE` measured; or one of two words:\n"
    "                       measured: this call measures them first, on this machine, in a few\n"
    "                       seconds, which is the default of --best without --rate; assumed: "
    "those\n"
    "                       of a typical machine, which is the default otherwise\n"
    "  --nvme-path DIR      folder on the drives: it is measured (default: the current one), and\n"
    "                       --best writes it where no folder is named (default: /local_nvme)\n"
    "  --rate NAME=VALUE    one rate per second: flops, wire, between, down, up, nvme_read, "
    "nvme_write,\n"
    "                       device, host or products; for example wire=25G or up=50e9 (powers of\n"
    "                       1000); may be given up to 16 times\n\n"
    "Trainer: its activations and arithmetic\n"
    "  --batch N            sequences of a micro-batch (the same as\n"
    "                       --set train_micro_batch_size_per_gpu=N)\n"
    "  --tokens N           tokens of a sequence (default: --length, else the longest sequence\n"
    "                       of the model, at most 2048)\n"
    "  --recompute          activations are computed a second time in backward\n"
    "  --activations LIST   where its layers' activations wait: device, cheap, cpu, nvme,\n"
    "                       recompute, recompute-cpu or recompute-nvme; cpu:20,device: those of\n"
    "                       the first 20 layers in host memory\n"
    "  --activations SIZE   memory of activations (default: by the formula for sherd's trainer)\n\n"
    "Output: one layout in full words, several with a line each\n"
    "  --json               print each layout as a JSON object on one line\n"
    "  --full               print the whole plan instead: every buffer and every collective\n"
    "                       (also with --json)\n"
    "  --check              also make and check the plans of all ranks of each layout\n"
    "  --best               choose the layout with the shortest predicted step that fits. Its\n"
    "                       reasons go to standard error, its configuration (with --json its\n"
    "                       row) to standard output\n"
    "  --out FILE           with --best: write the configuration to FILE\n"
    "  --force              with --out: overwrite FILE if it exists\n\n"
    "Exit status: 0; 1 if the only layout that was asked for does not fit, if --best finds none,\n"
    "or if something failed; 2 if the arguments are wrong.\n\n"
    "  sherd plan --arch gpt2 --preset 1558m --world 1,8,64,1024 --stage 0,1,2,3\n"
    "  sherd plan --params 7.5B --world 8 --device-memory 80G --host-memory 1T\n"
    "  sherd plan --model config.json --batch 4 --recompute --stage 3 --world 64 \\\n"
    "      --device-memory 80G\n"
    "  sherd plan --params 70B --world 64 --device-memory 80G --host-memory 2T --best \\\n"
    "      --out ds.json\n";

/* ----------------------------------------------------------------- values -- */

static int read_size(const char *text, size_t *out)
{
    char *end;

    errno = 0;
    *out  = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0' && text[0] >= '0' && text[0] <= '9' && *out > 0;
}

/* Reads a list such as "1,8,64". */
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

/* Reads a size. "80G" and "80GiB" are in powers of 1024, "80GB" is in powers of 1000; "8e9" is in
 * bytes. */
static int read_bytes(const char *text, size_t *out)
{
    static const char UNITS[] = "KMGTP";
    char             *end;
    double            value = strtod(text, &end);
    const char       *unit;

    if (end == text || !(value > 0)) {
        return 0;
    }
    if (*end != '\0' && strcmp(end, "B") != 0) {
        unit = strchr(UNITS, *end >= 'a' ? *end - 'a' + 'A' : *end);
        if (unit == NULL) {
            return 0;
        }
        end++;
        if (*end != '\0' && strcmp(end, "B") != 0 && strcmp(end, "iB") != 0) {
            return 0;
        }
        for (const char *u = UNITS; u <= unit; u++) {
            value *= *end == 'B' ? 1000 : 1024;
        }
    }
    if (!(value >= 1 && value < 0x1p63)) {
        return 0;
    }
    *out = (size_t)value;
    return 1;
}

static int read_stages(const char *text, plan_parse *in)
{
    if (strcmp(text, "all") == 0) {
        in->is_every_stage = 1;
        in->num_stages     = 0;
        return 1;
    }
    in->is_every_stage = 0; /* if the option comes twice, the last one counts */
    return read_list(text, 0, 3, in->stages, 4, &in->num_stages);
}

static int read_offloads(const char *text, plan_parse *in)
{
    if (strcmp(text, "all") == 0) {
        in->is_every_offload = 1;
        in->num_offloads     = 0;
        return 1;
    }
    in->is_every_offload = 0;
    in->num_offloads     = 0;
    while (*text != '\0') {
        size_t len = strcspn(text, ",");
        char   name[32];

        if (len >= sizeof(name) || in->num_offloads == PLANNING_OFFLOADS) {
            return 0;
        }
        (void)snprintf(name, sizeof(name), "%.*s", (int)len, text);
        if (planning_offload_find(name, &in->offloads[in->num_offloads++]) != 0) {
            return 0;
        }
        text += len + (text[len] == ',');
    }
    return in->num_offloads > 0;
}

/* ---------------------------------------------------------------- options -- */

enum {
    HIDDEN = 256,
    LAYERS,
    HEADS,
    KV_HEADS,
    INNER,
    VOCAB,
    LENGTH,
    BATCH,
    TOKENS, /* the options up to here take whole numbers */
    DEVICE_MEMORY,
    HOST_MEMORY,
    NVME_SPACE,
    ACTIVATIONS, /* those up to here take bytes */
    MODEL,
    PARAMS,
    OFFLOAD,
    ALL,
    BACKEND,
    RANKS_PER_HOST,
    RATES,
    NVME_PATH,
    RATE,
    RECOMPUTE,
    FULL,
    CHECK,
    BEST,
    OUT,
    FORCE
};

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
                                        {"batch", required_argument, NULL, BATCH},
                                        {"tokens", required_argument, NULL, TOKENS},
                                        {"device-memory", required_argument, NULL, DEVICE_MEMORY},
                                        {"host-memory", required_argument, NULL, HOST_MEMORY},
                                        {"nvme-space", required_argument, NULL, NVME_SPACE},
                                        {"activations", required_argument, NULL, ACTIVATIONS},
                                        {"model", required_argument, NULL, MODEL},
                                        {"params", required_argument, NULL, PARAMS},
                                        {"offload", required_argument, NULL, OFFLOAD},
                                        {"all", no_argument, NULL, ALL},
                                        {"backend", required_argument, NULL, BACKEND},
                                        {"ranks-per-host", required_argument, NULL, RANKS_PER_HOST},
                                        {"rates", required_argument, NULL, RATES},
                                        {"nvme-path", required_argument, NULL, NVME_PATH},
                                        {"rate", required_argument, NULL, RATE},
                                        {"recompute", no_argument, NULL, RECOMPUTE},
                                        {"full", no_argument, NULL, FULL},
                                        {"check", no_argument, NULL, CHECK},
                                        {"best", no_argument, NULL, BEST},
                                        {"out", required_argument, NULL, OUT},
                                        {"force", no_argument, NULL, FORCE},
                                        {NULL, 0, NULL, 0}};

/* The place of activations and their bytes are set only once. */
static int activations_check(const planning_request *request)
{
    return request->places.count == 0 && request->activation_bytes == 0
               ? 0
               : cli_bad("plan", "--activations and --recompute say where activations are, or what "
                                 "they take: give one of them, once");
}

/* Reads an option that takes a number. */
static int number_take(int option, const char *value, plan_parse *in)
{
    planning_request *request = &in->out->request;
    size_t *const     sizes[] = {&in->given.hidden,     &in->given.layers, &in->given.heads,
                                 &in->given.kv_heads,   &in->given.inner,  &in->given.vocab,
                                 &in->given.max_length, &in->batch,        &in->tokens};
    size_t *const     bytes[] = {&request->device_bytes, &request->host_bytes, &request->nvme_bytes,
                                 &request->activation_bytes};

    if (option == ACTIVATIONS && activations_check(request) != 0) {
        return 2;
    }
    if (option == ACTIVATIONS && (value[0] < '0' || value[0] > '9')) {
        char why[320];

        return layer_places_parse(value, &request->places, why, sizeof(why)) == 0
                   ? 0
                   : cli_bad("plan", "--activations: %s; or the bytes that they take, like 2G",
                             why);
    }
    if (option >= DEVICE_MEMORY) {
        return read_bytes(value, bytes[option - DEVICE_MEMORY])
                   ? 0
                   : cli_bad("plan", "a size is like 80G, 80GB or 512M, not '%s'", value);
    }
    return read_size(value, sizes[option - HIDDEN])
               ? 0
               : cli_bad("plan", "a size is a whole number above 0, not '%s'", value);
}

/* Reads an option of the layout. */
static int layout_take(int option, const char *value, plan_parse *in)
{
    plan_options *out = in->out;
    int           count;

    switch (option) {
    case 's':
        if (strchr(value, '=') == NULL || out->request.num_settings == PLAN_MOST_SETTINGS) {
            return cli_bad("plan", "--set wants KEY=JSON (at most 64 times), not '%s'", value);
        }
        out->settings[out->request.num_settings++] = value;
        return 0;
    case 'z':
        return read_stages(value, in)
                   ? 0
                   : cli_bad("plan", "--stage wants stages from 0 to 3, not '%s'", value);
    case OFFLOAD:
        return read_offloads(value, in) ? 0
                                        : cli_bad("plan",
                                                  "--offload wants none, optimizer-cpu, "
                                                  "optimizer-nvme, params-cpu, params-nvme or all, "
                                                  "not '%s'",
                                                  value);
    case 'w':
        return read_list(value, 1, 1 << 20, out->worlds, PLAN_MOST_WORLDS, &out->num_worlds)
                   ? 0
                   : cli_bad("plan", "--world wants numbers of ranks, not '%s'", value);
    case 'r':
        return read_list(value, 0, 1 << 20, &out->request.rank, 1, &count)
                   ? 0
                   : cli_bad("plan", "--rank wants a rank, not '%s'", value);
    case RANKS_PER_HOST:
        return read_list(value, 1, 1 << 20, &out->request.ranks_per_host, 1, &count)
                   ? 0
                   : cli_bad("plan", "--ranks-per-host wants a number of ranks, not '%s'", value);
    case RATE:
        if (out->num_rates == PLAN_MOST_RATES) {
            return cli_bad("plan", "--rate at most 16 times; '%s' is one more", value);
        }
        out->rates[out->num_rates++] = value;
        return 0;
    default:
        (void)fputs(HELP, stderr);
        return 2;
    }
}

static int option_take(int option, const char *value, plan_parse *in)
{
    plan_options *out = in->out;

    if (option >= HIDDEN && option <= ACTIVATIONS) {
        return number_take(option, value, in);
    }
    switch (option) {
    case 'a':
        in->has_kind = 1;
        return arch_kind_find(value, &in->kind) == 0
                   ? 0
                   : cli_bad("plan", "no architecture '%s': " ARCH_KIND_NAMES, value);
    case 'p':
        in->preset = value;
        return 0;
    case 'c':
        out->request.config_path = value;
        return 0;
    case MODEL:
        in->path = value;
        return 0;
    case PARAMS:
        in->count = value;
        return 0;
    case ALL:
        in->is_every_stage = in->is_every_offload = 1;
        return 0;
    case BACKEND:
        in->backend = value;
        return strcmp(value, "cpu") == 0 || strcmp(value, "cuda") == 0
                   ? 0
                   : cli_bad("plan", "--backend wants cpu or cuda, not '%s'", value);
    case RATES:
        out->rates_path = value;
        return 0;
    case NVME_PATH:
        out->nvme_path = value;
        return strpbrk(value, "\"\\") == NULL
                   ? 0
                   : cli_bad("plan", "--nvme-path wants a folder without quotes, not '%s'", value);
    case RECOMPUTE:
        if (activations_check(&out->request) != 0) {
            return 2;
        }
        out->request.places = layer_places_all(LAYER_RECOMPUTED);
        return 0;
    case 'j':
        out->is_json = 1;
        return 0;
    case FULL:
        out->is_full = 1;
        return 0;
    case CHECK:
        out->is_check = 1;
        return 0;
    case BEST:
        out->is_best = 1;
        return 0;
    case OUT:
        out->out_path = value;
        return 0;
    case FORCE:
        out->is_forced = 1;
        return 0;
    case 'h':
        (void)fputs(HELP, stdout);
        return -1;
    default:
        return layout_take(option, value, in);
    }
}

int plan_options_init(int argc, char **argv, plan_options *out)
{
    plan_parse in = {.out = out, .kind = ARCH_MINIMIND};
    int        wrong;
    int        option;

    *out                  = (plan_options){.worlds = {1}, .num_worlds = 1};
    out->request.settings = out->settings;
    while ((option = getopt_long(argc, argv, "jh", OPTIONS, NULL)) != -1) {
        wrong = option_take(option, optarg, &in);
        if (wrong != 0) {
            return wrong;
        }
    }
    if (optind != argc) {
        return cli_bad("plan", "'%s' is not an option", argv[optind]);
    }
    if (in.preset != NULL && strcmp(in.preset, "help") == 0) {
        plan_presets_list(in.kind);
        return -1;
    }
    return plan_request_make(&in);
}

void plan_options_fini(plan_options *options)
{
    planning_model_destroy(options->model);
}

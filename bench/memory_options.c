/* Options of bench-memory. See memory.h. */
#include "bench/memory.h"
#include "bench/timing.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

static const char HELP[] =
    "usage: ./run bench memory [OPTIONS]\n\n"
    "Memory of a rank: planned by the engine, held by it, reported by the system (proportional "
    "set\n"
    "size at rest after two steps, less the platform's: libraries, stacks, a GPU's context), and\n"
    "the ZeRO paper's formula. Worlds up to 8 run as processes, larger ones are planned (GPUs, "
    "bf16).\n"
    "Activations are left out. Ends with 1 when planned is not held to the byte or not within 2 % "
    "or\n"
    "32 MiB of what the system reports.\n\n"
    "  --models LIST       sizes of GPT-2 (124m, 355m, 774m, 1558m) or counts (7.5B); real rows of "
    "the\n"
    "                      first in every world, of the others in the largest that fits\n"
    "  --worlds LIST       (default 1,2,4,8 and 16 ... 1024)\n"
    "  --stages LIST       (default 0,1,2,3)\n"
    "  --offloads LIST     none, optimizer-cpu, optimizer-nvme, params-cpu, params-nvme\n"
    "  --backend B         of real rows: cpu (default) or cuda\n"
    "  --nvme-path DIR     drive of offloaded state (default: the current folder)\n"
    "  --device-memory N   of a GPU, for the largest models (default 80G)\n"
    "  --host-memory N     of a host of 8 GPUs (default 1.5T)\n"
    "  --nvme-space N      of its drives (default 28T)\n"
    "  --json FILE         JSON lines, one row each\n"
    "  --plots DIR         SVG charts, where gnuplot is installed\n"
    "  --planned-only, --real-only\n"
    "  --brief             a small model in worlds 1 and 2\n";

/* Cuts a copy of a list at its commas; the copies live as long as the program. */
static size_t list_split(const char *text, const char **out, size_t most)
{
    static char   copies[2048];
    static size_t used;
    size_t        count = 0;
    char         *copy  = copies + used;

    if (strlen(text) >= sizeof(copies) - used) {
        return 0;
    }
    memcpy(copy, text, strlen(text) + 1);
    used += strlen(text) + 1;
    for (char *part = strtok(copy, ","); part != NULL; part = strtok(NULL, ",")) {
        if (count == most) {
            return 0;
        }
        out[count++] = part;
    }
    return count;
}

static int worlds_parse(const char *text, memory_options *o)
{
    const char *parts[MEMORY_MOST_WORLDS];

    o->num_worlds = list_split(text, parts, MEMORY_MOST_WORLDS);
    for (size_t i = 0; i < o->num_worlds; i++) {
        size_t world = bench_parse_size(parts[i]);

        o->worlds[i] = world <= 1 << 20 ? (int)world : 0;
        if (o->worlds[i] < 1 || (i > 0 && o->worlds[i] <= o->worlds[i - 1])) {
            return -1;
        }
    }
    return o->num_worlds > 0 ? 0 : -1;
}

static int stages_parse(const char *text, memory_options *o)
{
    const char *parts[MEMORY_STAGES];
    size_t      count = list_split(text, parts, MEMORY_STAGES);

    memset(o->has_stage, 0, sizeof(o->has_stage));
    for (size_t i = 0; i < count; i++) {
        if (parts[i][0] < '0' || parts[i][0] >= '0' + MEMORY_STAGES || parts[i][1] != '\0') {
            return -1;
        }
        o->has_stage[parts[i][0] - '0'] = 1;
    }
    return count > 0 ? 0 : -1;
}

static int offloads_parse(const char *text, memory_options *o)
{
    const char *parts[PLANNING_OFFLOADS];
    size_t      count = list_split(text, parts, PLANNING_OFFLOADS);

    memset(o->has_offload, 0, sizeof(o->has_offload));
    for (size_t i = 0; i < count; i++) {
        planning_offload offload;

        if (planning_offload_find(parts[i], &offload) != 0) {
            return -1;
        }
        o->has_offload[offload] = 1;
    }
    return count > 0 ? 0 : -1;
}

static int models_parse(const char *text, memory_options *o)
{
    o->num_models         = list_split(text, o->models, MEMORY_MOST_MODELS);
    o->num_planned_models = o->num_models;
    memcpy(o->planned_models, o->models, sizeof(o->models));
    return o->num_models > 0 ? 0 : -1;
}

static int size_parse(const char *text, size_t *out)
{
    *out = planning_count_parse(text);
    return *out > 0 ? 0 : -1;
}

static void options_brief(memory_options *o)
{
    o->num_models   = 1;
    o->models[0]    = "2M";
    o->num_worlds   = 2;
    o->is_real_only = 1;
}

enum { OPTION_DEVICE = 256, OPTION_HOST, OPTION_SPACE, OPTION_BRIEF };

static int option_take(int c, memory_options *o)
{
    switch (c) {
    case 'm':
        return models_parse(optarg, o);
    case 'w':
        return worlds_parse(optarg, o);
    case 's':
        return stages_parse(optarg, o);
    case 'o':
        return offloads_parse(optarg, o);
    case 'b':
        o->backend = optarg;
        return strcmp(optarg, "cpu") == 0 || strcmp(optarg, "cuda") == 0 ? 0 : -1;
    case 'n':
        o->nvme_path = optarg;
        return 0;
    case 'j':
        o->json = optarg;
        return 0;
    case 'p':
        o->plots = optarg;
        return 0;
    case 'P':
        o->is_planned_only = 1;
        return 0;
    case 'R':
        o->is_real_only = 1;
        return 0;
    case OPTION_DEVICE:
        return size_parse(optarg, &o->limits.device_bytes);
    case OPTION_HOST:
        return size_parse(optarg, &o->limits.host_bytes);
    case OPTION_SPACE:
        return size_parse(optarg, &o->limits.nvme_bytes);
    case OPTION_BRIEF:
        options_brief(o);
        return 0;
    case 'h':
        (void)fputs(HELP, stdout);
        exit(0);
    default:
        return -1;
    }
}

int memory_options_parse(int argc, char **argv, memory_options *o)
{
    static const struct option LONG[] = {{"models", required_argument, NULL, 'm'},
                                         {"worlds", required_argument, NULL, 'w'},
                                         {"stages", required_argument, NULL, 's'},
                                         {"offloads", required_argument, NULL, 'o'},
                                         {"backend", required_argument, NULL, 'b'},
                                         {"nvme-path", required_argument, NULL, 'n'},
                                         {"json", required_argument, NULL, 'j'},
                                         {"plots", required_argument, NULL, 'p'},
                                         {"planned-only", no_argument, NULL, 'P'},
                                         {"real-only", no_argument, NULL, 'R'},
                                         {"device-memory", required_argument, NULL, OPTION_DEVICE},
                                         {"host-memory", required_argument, NULL, OPTION_HOST},
                                         {"nvme-space", required_argument, NULL, OPTION_SPACE},
                                         {"brief", no_argument, NULL, OPTION_BRIEF},
                                         {"help", no_argument, NULL, 'h'},
                                         {NULL, 0, NULL, 0}};
    int                        c;

    while ((c = getopt_long(argc, argv, "h", LONG, NULL)) != -1) {
        if (option_take(c, o) != 0) {
            (void)fputs(HELP, stderr);
            return 2;
        }
    }
    if (optind < argc || (o->is_planned_only && o->is_real_only)) {
        (void)fputs(HELP, stderr);
        return 2;
    }
    return 0;
}

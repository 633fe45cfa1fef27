/* Options of bench-memory. See memory.h. */
#include "bench/memory.h"
#include "bench/options.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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

static int worlds_parse(const char *text, void *value)
{
    memory_options *o = value;
    const char     *parts[MEMORY_MOST_WORLDS];

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

static int stages_parse(const char *text, void *value)
{
    memory_options *o = value;
    const char     *parts[MEMORY_STAGES];
    size_t          count = list_split(text, parts, MEMORY_STAGES);

    memset(o->has_stage, 0, sizeof(o->has_stage));
    for (size_t i = 0; i < count; i++) {
        if (parts[i][0] < '0' || parts[i][0] >= '0' + MEMORY_STAGES || parts[i][1] != '\0') {
            return -1;
        }
        o->has_stage[parts[i][0] - '0'] = 1;
    }
    return count > 0 ? 0 : -1;
}

static int offloads_parse(const char *text, void *value)
{
    memory_options *o = value;
    const char     *parts[PLANNING_OFFLOADS];
    size_t          count = list_split(text, parts, PLANNING_OFFLOADS);

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

static int models_parse(const char *text, void *value)
{
    memory_options *o     = value;
    o->num_models         = list_split(text, o->models, MEMORY_MOST_MODELS);
    o->num_planned_models = o->num_models;
    memcpy(o->planned_models, o->models, sizeof(o->models));
    return o->num_models > 0 ? 0 : -1;
}

static int size_parse(const char *text, void *value)
{
    size_t *out = value;

    *out = planning_count_parse(text);
    return *out > 0 ? 0 : -1;
}

static int options_brief(const char *text, void *value)
{
    memory_options *o = value;

    (void)text;
    o->num_models   = 1;
    o->models[0]    = "2M";
    o->num_worlds   = 2;
    o->is_real_only = 1;
    return 0;
}

void memory_options_parse(int argc, char **argv, memory_options *o)
{
    const bench_option rows[] = {
        {"models", "LIST",
         "sizes of GPT-2 (124m, 355m, 774m, 1558m) or counts (7.5B); the first has real rows in "
         "every world, the others in the largest world that fits",
         BENCH_CALL, .value = o, .read = models_parse},
        {"worlds", "LIST", "numbers of ranks (default 1,2,4,8 and 16 ... 1024)", BENCH_CALL,
         .value = o, .read = worlds_parse},
        {"stages", "LIST", "ZeRO stages (default 0,1,2,3)", BENCH_CALL, .value = o,
         .read = stages_parse},
        {"offloads", "LIST", "none, optimizer-cpu, optimizer-nvme, params-cpu, params-nvme",
         BENCH_CALL, .value = o, .read = offloads_parse},
        {"backend", "B", "backend of real rows: cpu (default) or cuda", BENCH_TEXT,
         .value = &o->backend, .choices = "cpu|cuda"},
        {"nvme-path", "DIR", "drive of offloaded state (default: the current folder)", BENCH_TEXT,
         .value = &o->nvme_path},
        {"keys", "TEXT",
         "more keys for the configuration of real rows: '\"sherd\": {\"master_encoding\": "
         "\"bf16_beside\"}'",
         BENCH_TEXT, .value = &o->keys},
        {"device-memory", "N", "memory of a GPU, for the largest models (default 80G)", BENCH_CALL,
         .value = &o->limits.device_bytes, .read = size_parse},
        {"host-memory", "N", "memory of a host of 8 GPUs (default 1.5T)", BENCH_CALL,
         .value = &o->limits.host_bytes, .read = size_parse},
        {"nvme-space", "N", "space on the drives of that host (default 28T)", BENCH_CALL,
         .value = &o->limits.nvme_bytes, .read = size_parse},
        {"json", "FILE", "write JSON lines, one for each row", BENCH_TEXT, .value = &o->json},
        {"plots", "DIR", "draw SVG charts, if gnuplot is installed", BENCH_TEXT,
         .value = &o->plots},
        {"planned-only", NULL, "no real rows", BENCH_SWITCH, .value = &o->is_planned_only},
        {"real-only", NULL, "no rows of worlds that are only planned", BENCH_SWITCH,
         .value = &o->is_real_only},
        {"touch", "BYTES",
         "no rows: times the allocation of so much host memory, for example 8G, beside a memset of "
         "fresh pages of 4 KiB and one of warm memory; with --backend cuda it is locked",
         BENCH_SIZE, .value = &o->touch_bytes, .least = 2 << 20, .most = SIZE_MAX / 4},
        {"brief", NULL, "a small model in worlds 1 and 2", BENCH_CALL, .value = o,
         .read = options_brief}};
    const bench_command command = {
        .name = "memory",
        .about =
            "Shows the memory of a rank: as the engine plans it, as the engine holds it, as the "
            "system reports it "
            "(proportional set size at rest after two steps, less the platform's: libraries, "
            "stacks, a "
            "GPU's context), and the ZeRO paper's formula. Worlds up to 8 run as processes, larger "
            "ones are planned (GPUs, bf16). Activations are left out.",
        .options     = rows,
        .num_options = sizeof(rows) / sizeof(rows[0]),
        .end = "Ends with 1 when planned is not held to the byte or not within 2 % or 32 MiB of "
               "what the "
               "system reports."};

    (void)bench_options_read(&command, argc, argv);
    if (o->is_planned_only && o->is_real_only) {
        bench_options_refuse(&command, "--planned-only and --real-only leave nothing");
    }
    if (o->keys != NULL && !o->is_real_only) {
        bench_options_refuse(&command, "--keys are of real rows: it needs --real-only");
    }
}

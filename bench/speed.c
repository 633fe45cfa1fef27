/* bench-speed: the time of a step of the trainer by stage, number of ranks and tier of the
 * optimizer state, and whether it moves the planned bytes. Every cell of the table trains the same
 * model on the same sequences, in a process of its own; a round runs them all once, one after the
 * other, so that a machine that drifts does so for all. Times are medians; bytes have to be the
 * plan's in every step after the first ones. */
#include "bench/plot.h"
#include "bench/options.h"
#include "bench/timing.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST_LIST      16
#define MOST_STEPS     1000
#define MOST_ARGUMENTS 96

typedef enum tier { TIER_NONE = 0, TIER_CPU, TIER_NVME, TIERS } tier;
static const char *const TIER_NAMES[TIERS] = {"none", "cpu", "nvme"};

/* Columns of times, in seconds; of rank 0 but for the first. */
typedef enum figure {
    FIGURE_STEP = 0, /* of the trainer: data, forward, backward, update */
    /* of the engine, the time for which the trainer was blocked; the next three are parts of it */
    FIGURE_EXPOSED,
    FIGURE_RANKS,    /* waits for other ranks between units; at the boundary they count there */
    FIGURE_DRIVE,    /* waits for NVMe; those of the update are in the boundary too */
    FIGURE_BOUNDARY, /* from the last backward to the next forward */
    FIGURE_UPDATE,   /* the optimizer's kernels, a part of the boundary */
    FIGURES
} figure;
static const char *const FIGURE_NAMES[FIGURES] = {"step",      "exposed",  "wait_ranks",
                                                  "wait_nvme", "boundary", "update"};

/* Rows of the table of bytes; keys of the log end with _bytes and _planned. */
#define MEDIA 5
static const char *const MEDIUM_KEYS[MEDIA]  = {"wire", "link_down", "link_up", "nvme_read",
                                                "nvme_written"};
static const char *const MEDIUM_NAMES[MEDIA] = {"sent to ranks", "link down", "link up",
                                                "NVMe read", "NVMe written"};

typedef struct bench_options {
    const char        *trainer, *data, *arch, *preset, *length, *precision, *threads;
    const char        *nvme_path, *json, *plot;
    bench_list         stages, worlds, tiers;
    int                batch, accumulation, steps, first_steps, rounds, is_brief;
    const char *const *more; /* of the command line, for the trainer; ends with NULL */
} bench_options;

/* One row of the table. */
typedef struct cell {
    int      tier, world, stage;
    double  *figures[FIGURES];               /* [rounds], each the median of a run */
    double   tokens;                         /* of a step */
    uint64_t counted[MEDIA], planned[MEDIA]; /* of the last step, over all ranks */
    uint64_t memory_planned, memory_held;    /* of rank 0 */
    long     steps_checked, steps_off;       /* off: other bytes than planned */
} cell;

typedef struct bench {
    const bench_options *options;
    char                 folder[64]; /* of this run's files; removed at the end */
    cell                *cells;
    size_t               num_cells;
} bench;

static volatile sig_atomic_t is_stopped;

static void stop(int number)
{
    (void)number;
    is_stopped = 1;
}

/* ------------------------------------------------------------- files ---- */

static void folder_remove(const bench *b)
{
    static const char *const FILES[] = {"text", "log", "out"};
    char                     path[96];

    for (size_t i = 0; i < sizeof(FILES) / sizeof(FILES[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", b->folder, FILES[i]);
        (void)unlink(path);
    }
    (void)rmdir(b->folder);
}

_Noreturn static void die(const bench *b, const char *what, const char *why)
{
    (void)fprintf(stderr, "bench-speed: %s: %s\n", what, why);
    if (b != NULL) {
        folder_remove(b);
    }
    exit(2);
}

static void *room(size_t count, size_t each)
{
    void *memory = calloc(count, each);

    if (memory == NULL) {
        die(NULL, "memory", strerror(errno));
    }
    return memory;
}

/* Bytes that are the same on every machine; their content does not change the speed. */
static void text_make(const char *path, const bench *b)
{
    FILE *file = fopen(path, "w");

    for (int i = 0; file != NULL && i < 20000; i++) {
        (void)fprintf(file, "%d times %d is %d. ", i % 37, i % 11, i % 37 * (i % 11));
    }
    if (file == NULL || fclose(file) != 0) {
        die(b, path, strerror(errno));
    }
}

/* The trainer's message, when it failed. */
static void output_show(const char *path)
{
    char  line[512];
    FILE *file = fopen(path, "r");

    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        (void)fputs(line, stderr);
    }
    if (file != NULL) {
        (void)fclose(file);
    }
}

/* ------------------------------------------------------------ a run ---- */

typedef struct argument_list {
    const char *values[MOST_ARGUMENTS];
    size_t      count;
    char        numbers[8][16];
    size_t      num_numbers;
} argument_list;

static void argument_add(argument_list *list, const char *name, const char *value)
{
    if (value != NULL) {
        list->values[list->count++] = name;
        list->values[list->count++] = value;
    }
}

static void argument_add_number(argument_list *list, const char *name, int value)
{
    char *text = list->numbers[list->num_numbers++];

    (void)snprintf(text, sizeof(list->numbers[0]), "%d", value);
    argument_add(list, name, text);
}

static void arguments_make(const bench_options *o, const cell *c, const char *data, const char *log,
                           argument_list *list)
{
    *list = (argument_list){.values = {o->trainer, "--quiet"}, .count = 2};
    argument_add(list, "--data", data);
    argument_add(list, "--log", log);
    argument_add(list, "--arch", o->arch);
    argument_add(list, "--preset", o->preset);
    argument_add(list, "--length", o->length);
    argument_add(list, "--precision", o->precision);
    argument_add(list, "--threads", o->threads);
    argument_add(list, "--sample", "0");
    argument_add(list, "--eval-every", "0");
    argument_add(list, "--offload", TIER_NAMES[c->tier]);
    argument_add(list, "--nvme-path", c->tier == TIER_NVME ? o->nvme_path : NULL);
    argument_add_number(list, "--ranks", c->world);
    argument_add_number(list, "--stage", c->stage);
    argument_add_number(list, "--batch", o->batch / (c->world * o->accumulation));
    argument_add_number(list, "--accumulation", o->accumulation);
    argument_add_number(list, "--steps", o->first_steps + o->steps);
    for (size_t i = 0; o->more[i] != NULL && list->count + 1 < MOST_ARGUMENTS; i++) {
        list->values[list->count++] = o->more[i];
    }
}

static pid_t trainer_start(const bench *b, const argument_list *list, const char *output)
{
    pid_t child = fork();
    int   file;

    if (child < 0) {
        die(b, "fork", strerror(errno));
    }
    if (child > 0) {
        return child;
    }
    file = open(output, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file >= 0 && dup2(file, STDOUT_FILENO) >= 0 && dup2(file, STDERR_FILENO) >= 0) {
        (void)execv(list->values[0], (char *const *)(uintptr_t)list->values);
    }
    (void)fprintf(stderr, "%s: %s\n", list->values[0], strerror(errno));
    _exit(127);
}

/* Ends the program when the trainer fails, with its message. */
static void trainer_run(const bench *b, const cell *c, const char *log)
{
    char          made[96], output[96], what[96];
    argument_list list;
    int           status;
    pid_t         child;

    (void)snprintf(made, sizeof(made), "%s/text", b->folder);
    (void)snprintf(output, sizeof(output), "%s/out", b->folder);
    (void)snprintf(what, sizeof(what), "stage %d on %d rank%s, offload %s", c->stage, c->world,
                   c->world == 1 ? "" : "s", TIER_NAMES[c->tier]);
    arguments_make(b->options, c, b->options->data != NULL ? b->options->data : made, log, &list);
    child = trainer_start(b, &list, output);
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) {
            die(b, what, strerror(errno));
        }
    }
    if (is_stopped) {
        die(b, what, "stopped");
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        output_show(output);
        die(b, what, WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "the trainer failed");
    }
}

/* --------------------------------------------------------- its log ---- */

static double real_get(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static uint64_t count_get(const bench *b, const json_t *figures, const char *key, const char *end)
{
    const json_t *value;
    char          name[64];

    (void)snprintf(name, sizeof(name), "%s_%s", key, end);
    value = json_object_get(figures, name);
    if (!json_is_integer(value)) {
        die(b, "the trainer's log has no whole number of this name", name);
    }
    return (uint64_t)json_integer_value(value);
}

static void step_times(const json_t *line, const json_t *figures, double out[FIGURES])
{
    out[FIGURE_EXPOSED] = real_get(figures, "exposed_s");
    out[FIGURE_STEP]    = real_get(line, "seconds");
    out[FIGURE_RANKS]   = real_get(figures, "wait_gather_s") + real_get(figures, "wait_reduce_s");
    out[FIGURE_DRIVE]   = real_get(figures, "wait_read_s") + real_get(figures, "wait_write_s") +
                        real_get(figures, "wait_param_s");
    out[FIGURE_BOUNDARY] = real_get(figures, "step_s");
    out[FIGURE_UPDATE]   = real_get(figures, "update_s");
}

static void step_check(const bench *b, const json_t *figures, cell *c)
{
    int is_off = json_integer_value(json_object_get(figures, "ranks_off_plan")) != 0;

    for (int i = 0; i < MEDIA; i++) {
        c->counted[i] = count_get(b, figures, MEDIUM_KEYS[i], "bytes");
        c->planned[i] = count_get(b, figures, MEDIUM_KEYS[i], "planned");
        is_off        = is_off || c->counted[i] != c->planned[i];
    }
    c->memory_planned = count_get(b, figures, "memory", "planned");
    c->memory_held    = count_get(b, figures, "memory", "held");
    c->steps_checked++;
    c->steps_off += is_off || c->memory_planned != c->memory_held;
}

/* Takes the steps after the first ones: how many there were. */
static size_t log_take(const bench *b, FILE *log, cell *c, double *times[FIGURES])
{
    size_t  count = 0;
    json_t *line;

    while ((line = json_loadf(log, JSON_DISABLE_EOF_CHECK, NULL)) != NULL) {
        json_int_t    step    = json_integer_value(json_object_get(line, "step"));
        const json_t *figures = json_object_get(line, "figures");

        if (figures == NULL) {
            die(b, b->options->trainer, "its log has no figures: it is older than this program");
        }
        if (step > b->options->first_steps && count < (size_t)b->options->steps) {
            double at[FIGURES];

            step_times(line, figures, at);
            for (int i = 0; i < FIGURES; i++) {
                times[i][count] = at[i];
            }
            count++;
            c->tokens = real_get(line, "tokens") / (double)step;
            step_check(b, figures, c);
        }
        json_decref(line);
    }
    return count;
}

static void cell_run(const bench *b, cell *c, int round)
{
    size_t  steps = (size_t)b->options->steps, count;
    double *times[FIGURES];
    char    path[96];
    FILE   *log;

    (void)snprintf(path, sizeof(path), "%s/log", b->folder);
    trainer_run(b, c, path);
    log = fopen(path, "r");
    if (log == NULL) {
        die(b, path, strerror(errno));
    }
    for (int i = 0; i < FIGURES; i++) {
        times[i] = room(steps, sizeof(double));
    }
    count = log_take(b, log, c, times);
    (void)fclose(log);
    if (count != steps) {
        die(b, path, "not as many steps as were asked for");
    }
    for (int i = 0; i < FIGURES; i++) {
        c->figures[i][round] = bench_stat_of(times[i], count).median;
        free(times[i]);
    }
}

static void rounds_run(bench *b)
{
    for (int round = 0; round < b->options->rounds; round++) {
        for (size_t i = 0; i < b->num_cells; i++) {
            const cell *c = &b->cells[i];

            (void)fprintf(stderr,
                          "bench-speed: round %d of %d, run %zu of %zu: %d rank%s, stage %d, %s\n",
                          round + 1, b->options->rounds, i + 1, b->num_cells, c->world,
                          c->world == 1 ? "" : "s", c->stage, TIER_NAMES[c->tier]);
            cell_run(b, &b->cells[i], round);
        }
    }
}

/* ---------------------------------------------------------- results ---- */

/* Values stay as they are. */
static bench_stat stat_get(const bench *b, const cell *c, figure which)
{
    size_t     rounds = (size_t)b->options->rounds;
    double    *copy   = room(rounds, sizeof(*copy));
    bench_stat stat;

    memcpy(copy, c->figures[which], rounds * sizeof(*copy));
    stat = bench_stat_of(copy, rounds);
    free(copy);
    return stat;
}

/* Stage 0 on as many ranks with all in memory; NULL: not among the cells. */
static const cell *base_of(const bench *b, const cell *c)
{
    for (size_t i = 0; i < b->num_cells; i++) {
        const cell *other = &b->cells[i];

        if (other->stage == 0 && other->world == c->world && other->tier == TIER_NONE) {
            return other;
        }
    }
    return NULL;
}

/* Of a step's time to the base's, round by round; 0: there is no base. */
static double ratio_of(const bench *b, const cell *c)
{
    const cell *base   = base_of(b, c);
    size_t      rounds = (size_t)b->options->rounds;
    double     *ratios, median;

    if (base == NULL) {
        return 0.0;
    }
    ratios = room(rounds, sizeof(*ratios));
    for (size_t i = 0; i < rounds; i++) {
        ratios[i] = c->figures[FIGURE_STEP][i] / base->figures[FIGURE_STEP][i];
    }
    median = bench_stat_of(ratios, rounds).median;
    free(ratios);
    return median;
}

static void times_print(const bench *b)
{
    (void)printf(
        "\ntimes of a step in ms, medians; exposed and what follows are of rank 0: what the "
        "engine made it\nstand still for, of which waits for ranks between units and for "
        "NVMe, the boundary, its update\n%-8s %5s %5s  %9s (%8s .. %8s) %10s %10s",
        "offload", "ranks", "stage", "step", "min", "max", "tokens/s", "of stage 0");
    for (int i = FIGURE_EXPOSED; i < FIGURES; i++) {
        (void)printf(" %10s", FIGURE_NAMES[i]);
    }
    (void)printf("\n");
    for (size_t i = 0; i < b->num_cells; i++) {
        const cell *c     = &b->cells[i];
        bench_stat  step  = stat_get(b, c, FIGURE_STEP);
        double      ratio = ratio_of(b, c);
        char        text[16];

        (void)snprintf(text, sizeof(text), ratio > 0.0 ? "%.3f" : "-", ratio);
        (void)printf("%-8s %5d %5d  %9.3f (%8.3f .. %8.3f) %10.0f %10s", TIER_NAMES[c->tier],
                     c->world, c->stage, 1e3 * step.median, 1e3 * step.min, 1e3 * step.max,
                     c->tokens / step.median, text);
        for (int k = FIGURE_EXPOSED; k < FIGURES; k++) {
            (void)printf(" %10.3f", 1e3 * stat_get(b, c, (figure)k).median);
        }
        (void)printf("\n");
    }
}

/* A medium that no cell uses has no column. */
static int is_medium_used(const bench *b, int medium)
{
    for (size_t i = 0; i < b->num_cells; i++) {
        if (b->cells[i].counted[medium] != 0 || b->cells[i].planned[medium] != 0) {
            return 1;
        }
    }
    return 0;
}

static void bytes_print(const bench *b)
{
    (void)printf("\nbytes of a step over all ranks, counted / planned, and of the engine's memory "
                 "on rank 0, held / planned\n"
                 "%-8s %5s %5s",
                 "offload", "ranks", "stage");
    for (int m = 0; m < MEDIA; m++) {
        if (is_medium_used(b, m)) {
            (void)printf("  %25s", MEDIUM_NAMES[m]);
        }
    }
    (void)printf("  %25s  %s\n", "memory", "steps as planned");
    for (size_t i = 0; i < b->num_cells; i++) {
        const cell *c = &b->cells[i];

        (void)printf("%-8s %5d %5d", TIER_NAMES[c->tier], c->world, c->stage);
        for (int m = 0; m < MEDIA; m++) {
            if (is_medium_used(b, m)) {
                (void)printf("  %11llu / %11llu", (unsigned long long)c->counted[m],
                             (unsigned long long)c->planned[m]);
            }
        }
        (void)printf("  %11llu / %11llu  %ld of %ld%s\n", (unsigned long long)c->memory_held,
                     (unsigned long long)c->memory_planned, c->steps_checked - c->steps_off,
                     c->steps_checked, c->steps_off > 0 ? "  OFF" : "");
    }
}

/* The verdict; 1 when some step was not as planned. */
static int verdict_print(const bench *b)
{
    long steps = 0, off = 0;

    for (size_t i = 0; i < b->num_cells; i++) {
        steps += b->cells[i].steps_checked;
        off += b->cells[i].steps_off;
    }
    if (off > 0) {
        (void)printf("\n%ld of %ld steps moved or held other bytes than planned\n", off, steps);
        return 1;
    }
    (void)printf("\nall %ld steps moved and held the bytes that were planned\n", steps);
    return 0;
}

static json_t *cell_json(const bench *b, const cell *c)
{
    json_t *out =
        json_pack("{ss si si sf sI sI sI sI}", "offload", TIER_NAMES[c->tier], "ranks", c->world,
                  "stage", c->stage, "tokens", c->tokens, "memory_planned",
                  (json_int_t)c->memory_planned, "memory_held", (json_int_t)c->memory_held, "steps",
                  (json_int_t)c->steps_checked, "steps_off_plan", (json_int_t)c->steps_off);
    double ratio = ratio_of(b, c);

    for (int i = 0; i < FIGURES; i++) {
        bench_stat stat = stat_get(b, c, (figure)i);
        char       name[32];

        (void)snprintf(name, sizeof(name), "%s_s", FIGURE_NAMES[i]);
        (void)json_object_set_new(
            out, name,
            json_pack("{sf sf sf}", "median", stat.median, "min", stat.min, "max", stat.max));
    }
    for (int m = 0; m < MEDIA; m++) {
        char name[32];

        (void)snprintf(name, sizeof(name), "%s_bytes", MEDIUM_KEYS[m]);
        (void)json_object_set_new(out, name, json_integer((json_int_t)c->counted[m]));
        (void)snprintf(name, sizeof(name), "%s_planned", MEDIUM_KEYS[m]);
        (void)json_object_set_new(out, name, json_integer((json_int_t)c->planned[m]));
    }
    (void)json_object_set_new(out, "of_stage0", ratio > 0.0 ? json_real(ratio) : json_null());
    return out;
}

/* Standard output becomes the file: the machine's members are printed there. */
static int json_write(const bench *b, int argc, char **argv)
{
    if (freopen(b->options->json, "w", stdout) == NULL) {
        (void)fprintf(stderr, "bench-speed: %s: %s\n", b->options->json, strerror(errno));
        return 1;
    }
    (void)printf("{");
    bench_print_machine_json(argc, argv);
    (void)printf(", \"rounds\": %d, \"steps\": %d, \"batch\": %d, \"accumulation\": %d}\n",
                 b->options->rounds, b->options->steps, b->options->batch,
                 b->options->accumulation);
    for (size_t i = 0; i < b->num_cells; i++) {
        json_t *object = cell_json(b, &b->cells[i]);

        (void)json_dumpf(object, stdout, JSON_REAL_PRECISION(9));
        (void)putchar('\n');
        json_decref(object);
    }
    if (fflush(stdout) != 0 || ferror(stdout)) {
        (void)fprintf(stderr, "bench-speed: %s cannot be written\n", b->options->json);
        return 1;
    }
    return 0;
}

/* Bars of a group: cells of the same tier and stage, numbered as they come on the first number of
 * ranks. NULL: how many there are. */
static size_t series_of(const bench *b, const cell *wanted)
{
    size_t count = 0;

    for (size_t i = 0; i < b->num_cells; i++) {
        const cell *c = &b->cells[i];

        if ((size_t)c->world != b->options->worlds.values[0]) {
            continue;
        }
        if (wanted != NULL && c->tier == wanted->tier && c->stage == wanted->stage) {
            break;
        }
        count++;
    }
    return count;
}

static size_t group_of(const bench *b, const cell *c)
{
    size_t i = 0;

    while (b->options->worlds.values[i] != (size_t)c->world) {
        i++;
    }
    return i;
}

/* A group for each number of ranks, in it a bar for each tier and stage. */
static int plot_write(const bench *b)
{
    size_t groups = b->options->worlds.count, series = series_of(b, NULL);
    char(*names)[48]    = room(groups + series, sizeof(*names));
    const char **labels = room(groups + series, sizeof(*labels));
    double      *values = room(groups * series, sizeof(*values));
    bench_bars   bars   = {.title      = "A step of the trainer, the same sequences",
                           .y_label    = "ms, median",
                           .groups     = labels,
                           .num_groups = groups,
                           .series     = labels + groups,
                           .num_series = series,
                           .values     = values};
    int          result;

    for (size_t i = 0; i < groups + series; i++) {
        labels[i] = names[i];
    }
    for (size_t i = 0; i < b->num_cells; i++) {
        const cell *c = &b->cells[i];
        size_t      g = group_of(b, c), s = series_of(b, c);

        (void)snprintf(names[g], sizeof(names[g]), "%d rank%s", c->world, c->world == 1 ? "" : "s");
        (void)snprintf(names[groups + s], sizeof(names[0]),
                       c->tier == TIER_NONE ? "stage %d" : "stage %d, state on %s", c->stage,
                       TIER_NAMES[c->tier]);
        values[g * series + s] = 1e3 * stat_get(b, c, FIGURE_STEP).median;
    }
    result = bench_plot_bars(&bars, b->options->plot);
    free(values);
    free(labels);
    free(names);
    return result;
}

/* ---------------------------------------------------- command line ---- */

/* "none,cpu,nvme"; nothing comes twice. */
static int tiers_read(const char *text, void *value)
{
    bench_list list = {.count = 0};

    for (const char *at = text;; at++) {
        size_t len  = strcspn(at, ",");
        size_t tier = 0;

        while (tier < TIERS &&
               (strlen(TIER_NAMES[tier]) != len || strncmp(at, TIER_NAMES[tier], len) != 0)) {
            tier++;
        }
        for (size_t i = 0; i < list.count; i++) {
            tier = list.values[i] == tier ? TIERS : tier;
        }
        if (tier == TIERS) {
            return -1;
        }
        list.values[list.count++] = tier;
        at += len;
        if (*at == '\0') {
            *(bench_list *)value = list;
            return 0;
        }
    }
}

/* A model that takes no time, everywhere. Options after it still count. */
static int brief_set(const char *text, void *value)
{
    static const char *const TINY[] = {"--hidden", "48", "--layers",   "2", "--heads", "4",
                                       "--inner",  "80", "--kv-heads", "2", NULL};
    bench_options           *o      = value;

    (void)text;
    o->worlds      = (bench_list){{1, 2, 4}, 3};
    o->tiers       = (bench_list){{TIER_NONE, TIER_CPU, TIER_NVME}, 3};
    o->length      = "24";
    o->threads     = "1";
    o->steps       = 3;
    o->first_steps = 1;
    o->rounds      = 1;
    o->more        = TINY;
    return 0;
}

static void options_check(const bench_command *command, const bench_options *o)
{
    for (size_t i = 0; i < o->worlds.count; i++) {
        if ((size_t)o->batch % (o->worlds.values[i] * (size_t)o->accumulation) != 0) {
            bench_options_refuse(command,
                                 "%d sequences of a step cannot be shared out to %zu ranks with %d "
                                 "micro-batches each; --batch takes a multiple",
                                 o->batch, o->worlds.values[i], o->accumulation);
        }
    }
    if (access(o->trainer, X_OK) != 0) {
        bench_options_refuse(command, "no trainer %s: %s; ./run build makes it", o->trainer,
                             strerror(errno));
    }
}

static void options_parse(int argc, char **argv, bench_options *o)
{
    const bench_option rows[] = {
        {"stages", "LIST", "ZeRO stages (default 0,1,2,3)", BENCH_LIST, .value = &o->stages,
         .most = 3},
        {"worlds", "LIST", "numbers of ranks, which are threads of one process (default 1,2,4,8)",
         BENCH_LIST, .value = &o->worlds, .least = 1, .most = 256},
        {"offload", "LIST",
         "where optimizer state rests: none, cpu, nvme (default none); stage 0 keeps it in memory",
         BENCH_CALL, .value = &o->tiers, .read = tiers_read},
        {"nvme-path", "DIR", "folder on the drive for nvme (default: the current one)", BENCH_TEXT,
         .value = &o->nvme_path},
        {"arch", "NAME", "the model, as the trainer takes it (default: its own)", BENCH_TEXT,
         .value = &o->arch},
        {"preset", "NAME", "its size, as the trainer takes it", BENCH_TEXT, .value = &o->preset},
        {"length", "N", "tokens of a sequence", BENCH_TEXT, .value = &o->length},
        {"precision", "TYPE", "fp32, bf16 or fp16", BENCH_TEXT, .value = &o->precision},
        {"batch", "N", "sequences of a step over all ranks (default 8)", BENCH_INT,
         .value = &o->batch, .least = 1, .most = 1 << 20},
        {"accumulation", "N", "micro-batches per rank and step (default 1)", BENCH_INT,
         .value = &o->accumulation, .least = 1, .most = 1 << 20},
        {"threads", "N", "threads per rank (default: cores / ranks)", BENCH_TEXT,
         .value = &o->threads},
        {"steps", "N", "steps that are timed in each run (default 20)", BENCH_INT,
         .value = &o->steps, .least = 1, .most = MOST_STEPS},
        {"first-steps", "N", "steps before them (default 3)", BENCH_INT, .value = &o->first_steps,
         .least = 1, .most = MOST_STEPS},
        {"rounds", "N", "runs of each cell (default 3)", BENCH_INT, .value = &o->rounds, .least = 1,
         .most = 1000},
        {"data", "PATH", "text to train on (default: one that is made up)", BENCH_TEXT,
         .value = &o->data},
        {"trainer", "FILE", "the program (default: the one of this build)", BENCH_TEXT,
         .value = &o->trainer},
        {"json", "FILE", "results as JSON, one object a line", BENCH_TEXT, .value = &o->json},
        {"plot", "FILE.svg", "a chart of step times", BENCH_TEXT, .value = &o->plot},
        {"brief", NULL, "a tiny model, one round, every place: seconds in all", BENCH_CALL,
         .value = o, .read = brief_set}};
    const bench_command command = {
        .name  = "speed",
        .about = "Trains one model at every stage, with every number of ranks, the same sequences "
                 "a step, "
                 "and prints times of a step and the bytes that it moved. Exits with 1 when some "
                 "step moved "
                 "other bytes than were planned. Arguments behind \"--\" are the trainer's.",
        .options     = rows,
        .num_options = sizeof(rows) / sizeof(rows[0]),
        .has_rest    = 1};
    int rest = bench_options_read(&command, argc, argv);

    if (rest < argc) {
        o->more = (const char *const *)argv + rest;
    }
    options_check(&command, o);
}

/* ---------------------------------------------------------------- main -- */

static void cells_make(bench *b)
{
    const bench_options *o = b->options;
    size_t               n = o->tiers.count * o->worlds.count * o->stages.count;

    b->cells = room(n, sizeof(*b->cells));
    for (size_t p = 0; p < o->tiers.count; p++) {
        for (size_t w = 0; w < o->worlds.count; w++) {
            for (size_t s = 0; s < o->stages.count; s++) {
                cell *c = &b->cells[b->num_cells];

                if (o->tiers.values[p] != TIER_NONE && o->stages.values[s] == 0) {
                    continue; /* the stage that offloads nothing */
                }
                b->num_cells++;
                c->tier  = (int)o->tiers.values[p];
                c->world = (int)o->worlds.values[w];
                c->stage = (int)o->stages.values[s];
                for (int i = 0; i < FIGURES; i++) {
                    c->figures[i] = room((size_t)o->rounds, sizeof(double));
                }
            }
        }
    }
}

static void cells_free(bench *b)
{
    for (size_t i = 0; i < b->num_cells; i++) {
        for (int k = 0; k < FIGURES; k++) {
            free(b->cells[i].figures[k]);
        }
    }
    free(b->cells);
}

static void folder_make(bench *b)
{
    const char *parent = getenv("TMPDIR");
    char        text[96];

    if (parent == NULL || strlen(parent) > sizeof(b->folder) - 24) {
        parent = "/tmp";
    }
    (void)snprintf(b->folder, sizeof(b->folder), "%s/sherd-speed-XXXXXX", parent);
    if (mkdtemp(b->folder) == NULL) {
        die(NULL, b->folder, strerror(errno));
    }
    (void)snprintf(text, sizeof(text), "%s/text", b->folder);
    if (b->options->data == NULL) {
        text_make(text, b);
    }
}

int main(int argc, char **argv)
{
    static const char *const none[]  = {NULL};
    bench_options            options = {.trainer      = BENCH_TRAINER,
                                        .nvme_path    = ".",
                                        .stages       = {{0, 1, 2, 3}, 4},
                                        .worlds       = {{1, 2, 4, 8}, 4},
                                        .tiers        = {{TIER_NONE}, 1},
                                        .batch        = 8,
                                        .accumulation = 1,
                                        .steps        = 20,
                                        .first_steps  = 3,
                                        .rounds       = 3,
                                        .more         = none};
    bench                    b       = {.options = &options};
    struct sigaction         action  = {.sa_handler = stop};
    int                      status;

    options_parse(argc, argv, &options);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    cells_make(&b);
    if (b.num_cells == 0) {
        die(NULL, "nothing to run", "stage 0 keeps its state in memory");
    }
    folder_make(&b);
    bench_print_machine(argc, argv);
    (void)fflush(stdout);
    rounds_run(&b);
    folder_remove(&b);
    times_print(&b);
    bytes_print(&b);
    status = verdict_print(&b);
    if (options.plot != NULL && plot_write(&b) != 0) {
        status = 1;
    }
    if (options.json != NULL && json_write(&b, argc, argv) != 0) {
        status = 1;
    }
    cells_free(&b);
    return status;
}

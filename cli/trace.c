/* sherd trace: shows where the time of a step went, from a trace (SHERD_TRACE). A step lasts from
 * the end of the boundary before it to the end of its own. The file is read by lines, which
 * base/trace.c writes with one event each. Quotes in names are escaped there, so a key with its
 * quotes is never part of a name. */
#include "cli/cli.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LANES 16

static const char HELP[] =
    "usage: sherd trace FILE [OPTIONS]\n\n"
    "Reads a trace that one rank of a run with SHERD_TRACE=FILE wrote. For each step it prints\n"
    "how long the step was, how much of it was exposed, and the share of it in which each lane\n"
    "had something to do. Exposed is the time in which the trainer stood still for the engine:\n"
    "waits, and the boundary between the last backward and the next forward. Lanes run at the\n"
    "same time, so their shares add up to more than 100 %.\n\n"
    "  --skip N   number of first steps that the medians leave out (default 1)\n"
    "  --json     print one JSON object, with times in seconds\n";

/* In microseconds, as in the file. */
typedef struct trace_interval {
    double start_us, end_us;
} trace_interval;

typedef struct trace_lane {
    char            name[32];
    trace_interval *intervals;
    size_t          count, capacity;
    double          begun_us; /* start of an asynchronous event, whose end comes next */
} trace_lane;

typedef struct step_times {
    double length_us, exposed_us;
    double busy_us[MAX_LANES];
} step_times;

typedef struct trace_file {
    const char *path;
    int         rank;
    int         is_whole; /* 1: the file has its end */
    trace_lane  lanes[MAX_LANES];
    trace_lane  exposed; /* waits and boundaries together */
    step_times *steps;
    size_t      num_steps, skipped;
    step_times  median;
} trace_file;

static int fail(const char *path, const char *why)
{
    (void)fprintf(stderr, "sherd: %s: %s\n", path, why);
    return 1;
}

/* ---------------------------------------------------------------- reading -- */

static int interval_add(trace_lane *lane, double start_us, double end_us)
{
    if (lane->count == lane->capacity) {
        size_t          capacity  = lane->capacity == 0 ? 256 : 2 * lane->capacity;
        trace_interval *intervals = realloc(lane->intervals, capacity * sizeof(*intervals));

        if (intervals == NULL) {
            return -1;
        }
        lane->intervals = intervals;
        lane->capacity  = capacity;
    }
    lane->intervals[lane->count++] = (trace_interval){start_us, end_us};
    return 0;
}

/* Returns what follows a key and its colon, or NULL if the line does not have it. */
static const char *value_of(const char *line, const char *key)
{
    const char *found = strstr(line, key);

    return found == NULL ? NULL : found + strlen(key);
}

static int number_of(const char *line, const char *key, double *out)
{
    const char *value = value_of(line, key);
    char       *end;

    if (value == NULL) {
        return -1;
    }
    *out = strtod(value, &end);
    return end == value ? -1 : 0;
}

static trace_lane *lane_of(trace_file *file, const char *line)
{
    double tid;

    if (number_of(line, "\"tid\":", &tid) != 0 || !(tid >= 0 && tid < MAX_LANES)) {
        return NULL;
    }
    return &file->lanes[(int)tid];
}

/* Reads {"ph":"M",...,"name":"thread_name","args":{"name":"copy down"}}. */
static void name_read(trace_file *file, const char *line)
{
    trace_lane *lane = lane_of(file, line);
    const char *name = value_of(line, "\"args\":{\"name\":\"");
    double      rank;

    if (number_of(line, "\"pid\":", &rank) == 0) {
        file->rank = (int)rank;
    }
    if (lane != NULL && name != NULL && strstr(line, "\"thread_name\"") != NULL) {
        (void)snprintf(lane->name, sizeof(lane->name), "%.*s", (int)strcspn(name, "\""), name);
    }
}

static int event_read(trace_file *file, const char *line)
{
    const char *phase = value_of(line, "\"ph\":\"");
    trace_lane *lane  = lane_of(file, line);
    double      start_us;
    double      length_us;

    if (phase != NULL && phase[0] == 'M') {
        name_read(file, line);
        return 0;
    }
    if (phase == NULL || lane == NULL || number_of(line, "\"ts\":", &start_us) != 0) {
        return 0; /* the line is cut off, or not from sherd */
    }
    if (phase[0] == 'X' && number_of(line, "\"dur\":", &length_us) == 0) {
        return interval_add(lane, start_us, start_us + length_us);
    }
    if (phase[0] == 'b') {
        lane->begun_us = start_us;
    } else if (phase[0] == 'e') {
        return interval_add(lane, lane->begun_us,
                            start_us); /* it follows the line of its beginning */
    }
    return 0;
}

static int file_read(trace_file *file)
{
    FILE  *in    = fopen(file->path, "re");
    char  *line  = NULL;
    size_t room  = 0;
    int    error = 0;

    if (in == NULL) {
        return fail(file->path, strerror(errno));
    }
    while (error == 0 && getline(&line, &room, in) >= 0) {
        file->is_whole = strncmp(line, "]}", 2) == 0;
        error          = event_read(file, line);
    }
    if (error != 0) {
        error = fail(file->path, "no memory for its spans");
    } else if (ferror(in)) {
        error = fail(file->path, strerror(errno));
    }
    free(line);
    (void)fclose(in);
    return error;
}

/* ---------------------------------------------------------------- counting -- */

static int interval_compare(const void *a, const void *b)
{
    const trace_interval *x = a;
    const trace_interval *y = b;

    return (x->start_us > y->start_us) - (x->start_us < y->start_us);
}

/* Sorts the intervals and joins those that overlap. */
static void lane_merge(trace_lane *lane)
{
    size_t kept = 0;

    if (lane->count == 0) {
        return;
    }
    qsort(lane->intervals, lane->count, sizeof(*lane->intervals), interval_compare);
    for (size_t i = 1; i < lane->count; i++) {
        if (lane->intervals[i].start_us > lane->intervals[kept].end_us) {
            lane->intervals[++kept] = lane->intervals[i];
        } else if (lane->intervals[i].end_us > lane->intervals[kept].end_us) {
            lane->intervals[kept].end_us = lane->intervals[i].end_us;
        }
    }
    lane->count = kept + 1;
}

/* Returns the busy time of a merged lane inside a window, beginning at interval *next_inout.
 * Windows come in order. */
static double lane_busy(const trace_lane *lane, size_t *next_inout, double from_us, double to_us)
{
    double busy_us = 0;

    while (*next_inout < lane->count && lane->intervals[*next_inout].end_us <= from_us) {
        (*next_inout)++;
    }
    for (size_t i = *next_inout; i < lane->count && lane->intervals[i].start_us < to_us; i++) {
        double start_us =
            lane->intervals[i].start_us > from_us ? lane->intervals[i].start_us : from_us;
        double end_us = lane->intervals[i].end_us < to_us ? lane->intervals[i].end_us : to_us;

        busy_us += end_us - start_us;
    }
    return busy_us;
}

static const trace_lane *lane_named(const trace_file *file, const char *name)
{
    for (int i = 0; i < MAX_LANES; i++) {
        if (strcmp(file->lanes[i].name, name) == 0) {
            return &file->lanes[i];
        }
    }
    return NULL;
}

static int exposed_gather(trace_file *file)
{
    static const char *const NAMES[] = {"wait (exposed)", "step"};

    for (int n = 0; n < 2; n++) {
        const trace_lane *lane = lane_named(file, NAMES[n]);

        for (size_t i = 0; lane != NULL && i < lane->count; i++) {
            if (interval_add(&file->exposed, lane->intervals[i].start_us,
                             lane->intervals[i].end_us) != 0) {
                return fail(file->path, "no memory for its spans");
            }
        }
    }
    lane_merge(&file->exposed);
    return 0;
}

static double first_start(const trace_file *file)
{
    double first_us = 0;
    int    is_found = 0;

    for (int i = 0; i < MAX_LANES; i++) {
        if (file->lanes[i].count > 0 &&
            (!is_found || file->lanes[i].intervals[0].start_us < first_us)) {
            first_us = file->lanes[i].intervals[0].start_us;
            is_found = 1;
        }
    }
    return first_us;
}

/* Boundaries mark the steps. They do not overlap and are not merged. */
static int steps_count(trace_file *file)
{
    const trace_lane *boundary        = lane_named(file, "step");
    size_t            next[MAX_LANES] = {0};
    size_t            next_exposed    = 0;
    double            from_us;

    if (boundary == NULL || boundary->count == 0) {
        return fail(file->path, "no step in it: not a file of SHERD_TRACE, or of a run that did "
                                "not come to its first step");
    }
    file->num_steps = boundary->count;
    file->steps     = calloc(file->num_steps, sizeof(*file->steps));
    if (file->steps == NULL) {
        return fail(file->path, "no memory for its steps");
    }
    qsort(boundary->intervals, boundary->count, sizeof(*boundary->intervals), interval_compare);
    for (int i = 0; i < MAX_LANES; i++) {
        if (&file->lanes[i] != boundary) {
            lane_merge(&file->lanes[i]);
        }
    }
    from_us = first_start(file);
    for (size_t s = 0; s < file->num_steps; s++) {
        step_times *step  = &file->steps[s];
        double      to_us = boundary->intervals[s].end_us;

        step->length_us  = to_us - from_us;
        step->exposed_us = lane_busy(&file->exposed, &next_exposed, from_us, to_us);
        for (int i = 0; i < MAX_LANES; i++) {
            step->busy_us[i] = lane_busy(&file->lanes[i], &next[i], from_us, to_us);
        }
        from_us = to_us;
    }
    return 0;
}

static double share_of(double part_us, double whole_us)
{
    return whole_us > 0 ? part_us / whole_us : 0;
}

static int double_compare(const void *a, const void *b)
{
    const double *x = a;
    const double *y = b;

    return (*x > *y) - (*x < *y);
}

/* Returns the median of the double at `offset` of each step that is not skipped. */
static double steps_median(const trace_file *file, double *scratch, size_t offset)
{
    size_t count = file->num_steps - file->skipped;

    for (size_t s = 0; s < count; s++) {
        scratch[s] =
            *(const double *)(const void *)((const char *)&file->steps[file->skipped + s] + offset);
    }
    qsort(scratch, count, sizeof(*scratch), double_compare);
    return count % 2 == 1 ? scratch[count / 2] : (scratch[count / 2 - 1] + scratch[count / 2]) / 2;
}

/* Computes the medians without the first `skip` steps, or fewer if the trace has few steps. */
static int medians_take(trace_file *file, size_t skip)
{
    double *scratch = calloc(file->num_steps, sizeof(*scratch));

    if (scratch == NULL) {
        return fail(file->path, "no memory for its steps");
    }
    file->skipped           = skip < file->num_steps ? skip : file->num_steps - 1;
    file->median.length_us  = steps_median(file, scratch, offsetof(step_times, length_us));
    file->median.exposed_us = steps_median(file, scratch, offsetof(step_times, exposed_us));
    for (size_t i = 0; i < MAX_LANES; i++) {
        file->median.busy_us[i] =
            steps_median(file, scratch, offsetof(step_times, busy_us) + i * sizeof(double));
    }
    free(scratch);
    return 0;
}

/* ---------------------------------------------------------------- printing -- */

static int lane_is_shown(const trace_file *file, int lane)
{
    return file->lanes[lane].name[0] != '\0' && file->lanes[lane].count > 0;
}

static void row_print(const trace_file *file, const char *name, const step_times *step)
{
    (void)printf("%-8s %12.3f %12.3f %9.2f", name, step->length_us * 1e-3, step->exposed_us * 1e-3,
                 100 * share_of(step->exposed_us, step->length_us));
    for (int i = 0; i < MAX_LANES; i++) {
        if (lane_is_shown(file, i)) {
            (void)printf(" %*.2f",
                         (int)strlen(file->lanes[i].name) > 7 ? (int)strlen(file->lanes[i].name)
                                                              : 7,
                         100 * share_of(step->busy_us[i], step->length_us));
        }
    }
    (void)printf("\n");
}

static void table_print(const trace_file *file)
{
    (void)printf("%s: rank %d, %zu steps%s\n\n", file->path, file->rank, file->num_steps,
                 file->is_whole ? "" : "; it was not written to its end");
    (void)printf("%-8s %12s %12s %9s", "step", "length ms", "exposed ms", "exposed %");
    for (int i = 0; i < MAX_LANES; i++) {
        if (lane_is_shown(file, i)) {
            (void)printf(" %7s", file->lanes[i].name);
        }
    }
    (void)printf("   (%% of the step)\n");
    for (size_t s = 0; s < file->num_steps; s++) {
        char name[24];

        (void)snprintf(name, sizeof(name), "%zu", s + 1);
        row_print(file, name, &file->steps[s]);
    }
    row_print(file, "median", &file->median);
    (void)printf("\nmedians of %zu steps, without the first %zu\n", file->num_steps - file->skipped,
                 file->skipped);
}

/* Prints the members of an object, without its braces. */
static void step_json(const trace_file *file, const step_times *step)
{
    int is_first = 1;

    (void)printf("\"length_s\": %.9f, \"exposed_s\": %.9f, \"exposed_share\": %.6f, \"lanes\": {",
                 step->length_us * 1e-6, step->exposed_us * 1e-6,
                 share_of(step->exposed_us, step->length_us));
    for (int i = 0; i < MAX_LANES; i++) {
        if (lane_is_shown(file, i)) {
            (void)printf("%s\"%s\": %.9f", is_first ? "" : ", ", file->lanes[i].name,
                         step->busy_us[i] * 1e-6);
            is_first = 0;
        }
    }
    (void)printf("}");
}

static void json_print(const trace_file *file)
{
    (void)printf("{\"rank\": %d, \"is_whole\": %s, \"skipped\": %zu, \"median\": {", file->rank,
                 file->is_whole ? "true" : "false", file->skipped);
    step_json(file, &file->median);
    (void)printf("}, \"steps\": [");
    for (size_t s = 0; s < file->num_steps; s++) {
        (void)printf("%s\n {\"step\": %zu, ", s > 0 ? "," : "", s + 1);
        step_json(file, &file->steps[s]);
        (void)printf("}");
    }
    (void)printf("\n]}\n");
}

static int trace_print(trace_file *file, size_t skip, int is_json)
{
    if (file_read(file) != 0 || exposed_gather(file) != 0 || steps_count(file) != 0 ||
        medians_take(file, skip) != 0) {
        return 1;
    }
    if (is_json) {
        json_print(file);
    } else {
        table_print(file);
    }
    return 0;
}

typedef struct trace_arguments {
    int skip, is_json;
} trace_arguments;

int cli_trace(int argc, char **argv)
{
    static const cli_option LIST[] = {
        CLI_NUMBER("skip", 's', trace_arguments, skip, 0, INT_MAX, "wants a number of steps"),
        CLI_FLAG("json", 'j', trace_arguments, is_json),
        {0}};
    static const cli_options OPTIONS   = {"trace", HELP, LIST, 0};
    trace_arguments          arguments = {.skip = 1};
    trace_file               file      = {.path = NULL};
    int                      status    = cli_options_read(&OPTIONS, argc, argv, &arguments);

    if (status >= 0) {
        return status;
    }
    if (optind + 1 != argc) {
        (void)fputs(HELP, stderr);
        return 2;
    }
    file.path = argv[optind];
    status    = trace_print(&file, (size_t)arguments.skip, arguments.is_json);
    for (int i = 0; i < MAX_LANES; i++) {
        free(file.lanes[i].intervals);
    }
    free(file.exposed.intervals);
    free(file.steps);
    return status;
}

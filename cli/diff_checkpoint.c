/* The fingerprints of a checkpoint, of the units and ranks of a log or of its parameters. Bytes
 * that do not match their checksums are counted as they are: then the fingerprint that differs says
 * in which unit they lie. */
#include "cli/diff.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A checkpoint that is open, and its parameters in the order of their numbers. */
typedef struct reading {
    sherd_checkpoint            *checkpoint;
    const sherd_checkpoint_info *info;
    sherd_checkpoint_param      *params;
    uint64_t                    *first; /* [params + 1]: the number of its first element */
    diff_run                    *run;
} reading;

static int memory_fail(void)
{
    (void)fprintf(stderr, "sherd: no memory for the fingerprints of a checkpoint\n");
    return 2;
}

/* ---------------------------------------------------------------------- open -- */

static int params_read(reading *r)
{
    size_t count = (size_t)r->info->num_params;

    r->params = calloc(count + 1, sizeof(*r->params));
    r->first  = calloc(count + 1, sizeof(*r->first));
    if (r->params == NULL || r->first == NULL) {
        return memory_fail();
    }
    for (size_t p = 0; p < count; p++) {
        sherd_checkpoint_param_init(&r->params[p]);
        if (sherd_checkpoint_param_at(r->checkpoint, p, &r->params[p]) != SHERD_OK) {
            (void)cli_fail();
            return 2;
        }
        r->first[p + 1] = r->first[p] + r->params[p].elems;
    }
    return 0;
}

/* DIR/latest is what DIR means. */
static int path_open(const char *path, sherd_checkpoint **out)
{
    static const char LATEST[] = "/latest";
    char              dir[4096];
    struct stat       file;
    size_t            len = strlen(path);

    (void)snprintf(dir, sizeof(dir), "%s", path);
    if (len > sizeof(LATEST) - 1 && len < sizeof(dir) &&
        strcmp(path + len - (sizeof(LATEST) - 1), LATEST) == 0 && stat(path, &file) == 0 &&
        S_ISREG(file.st_mode)) {
        dir[len - (sizeof(LATEST) - 1)] = '\0';
    }
    return cli_checkpoint_open(dir, out) == 0 ? 0 : 2;
}

/* Reads the name NAME:PART:FIRST of a damaged tensor. */
static void tensor_read(reading *r, const char *name)
{
    diff_run   *run   = r->run;
    const char *last  = strrchr(name, ':');
    size_t      count = (size_t)r->info->num_params;

    for (size_t p = 0; p < count && last != NULL; p++) {
        size_t len = strlen(r->params[p].name);

        if (strncmp(name, r->params[p].name, len) == 0 && name[len] == ':' &&
            strchr(name + len + 1, ':') == last) {
            (void)snprintf(run->tensor, sizeof(run->tensor), "%s", name);
            run->damaged_elem = r->first[p] + strtoull(last + 1, NULL, 10);
        }
    }
}

static void damage_take(void *ctx, const sherd_checkpoint_damage *damage)
{
    reading  *r   = ctx;
    diff_run *run = r->run;

    if (run->is_damaged) {
        return;
    }
    run->is_damaged = 1;
    (void)snprintf(run->damage, sizeof(run->damage), "%s%s%s: %s", damage->file,
                   damage->tensor == NULL ? "" : ", tensor ",
                   damage->tensor == NULL ? "" : damage->tensor, damage->what);
    if (damage->tensor != NULL) {
        tensor_read(r, damage->tensor);
    }
}

/* Reads every byte, and keeps the first damage. */
static int damage_find(reading *r)
{
    sherd_verify_params params;

    sherd_verify_params_init(&params);
    params.damage     = damage_take;
    params.damage_ctx = r;
    if (sherd_checkpoint_verify(r->checkpoint, &params) != SHERD_OK && !r->run->is_damaged) {
        (void)cli_fail();
        return 2;
    }
    return 0;
}

/* -------------------------------------------------------------------- values -- */

static int has_part(const reading *r, size_t param, const char *part)
{
    uint64_t none;

    return sherd_checkpoint_fingerprint(r->checkpoint, r->params[param].name, part, 0, 0, NULL,
                                        &none) == SHERD_OK;
}

/* Adds the fingerprint of elements of a part; *has_out: some parameter has the part. What cannot be
 * read at all leaves the sum short, so that it differs. */
static void range_count(const reading *r, const diff_range *range, const char *part, int *has_out,
                        uint64_t *sum)
{
    size_t count = (size_t)r->info->num_params;

    for (size_t p = 0; p < count; p++) {
        uint64_t first = range->first > r->first[p] ? range->first : r->first[p];
        uint64_t end   = range->end < r->first[p + 1] ? range->end : r->first[p + 1];
        uint64_t more  = 0;
        int      is_damaged;

        if (first >= end || !has_part(r, p, part)) {
            continue;
        }
        *has_out = 1;
        if (sherd_checkpoint_fingerprint(r->checkpoint, r->params[p].name, part,
                                         (size_t)(first - r->first[p]), (size_t)(end - first),
                                         &is_damaged, &more) != SHERD_OK) {
            more = 0;
            if (!r->run->is_damaged) {
                r->run->is_damaged = 1;
                (void)snprintf(r->run->damage, sizeof(r->run->damage), "%s", sherd_last_error());
            }
        }
        *sum += more;
    }
}

static void unit_count(const reading *r, const diff_layout *layout, size_t unit, size_t kind,
                       diff_line *line)
{
    const char *part   = kind == diff_weights(layout) ? "master" : layout->parts[kind - DIFF_PARTS];
    uint64_t   *words  = diff_words(line, unit, kind);
    int         has    = 0;
    int         copies = layout->ranks / layout->owners;

    for (int owner = 0; owner < layout->owners; owner++) {
        const diff_owned *owned = &layout->units[unit].owned[owner];
        uint64_t          sum   = 0;

        for (size_t i = 0; i < owned->count; i++) {
            range_count(r, &owned->ranges[i], part, &has, &sum);
        }
        words[0] += sum;
        for (int copy = 0; copy < copies; copy++) {
            words[1 + copy * layout->owners + owner] = sum;
        }
    }
    line->has[diff_at(layout, unit, kind)] = (unsigned char)has;
}

/* -------------------------------------------------------------------- layout -- */

static sherd_status text_add(void *ctx, const char *text, size_t len_bytes)
{
    json_t **out = ctx;

    *out = json_loadb(text, len_bytes, 0, NULL);
    return *out == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

/* Makes each parameter a unit. */
static int units_make(const reading *r, diff_layout *layout)
{
    layout->num_units = (size_t)r->info->num_params;
    layout->units     = calloc(layout->num_units + 1, sizeof(*layout->units));
    for (size_t p = 0; layout->units != NULL && p < layout->num_units; p++) {
        diff_unit *unit = &layout->units[p];

        unit->name  = strdup(r->params[p].name);
        unit->owned = calloc(1, sizeof(*unit->owned));
        if (unit->name == NULL || unit->owned == NULL) {
            return memory_fail();
        }
        unit->owned->ranges = calloc(1, sizeof(*unit->owned->ranges));
        if (unit->owned->ranges == NULL) {
            return memory_fail();
        }
        unit->owned->ranges[0] = (diff_range){r->first[p], r->first[p + 1]};
        unit->owned->count     = r->params[p].elems > 0;
    }
    return layout->units == NULL ? memory_fail() : 0;
}

/* The parts after the master, as the manifest lists them. */
static int parts_make(const reading *r, diff_layout *layout)
{
    json_t       *from = NULL;
    const json_t *parts;
    int           failed = 0;

    if (sherd_checkpoint_write(r->checkpoint, SHERD_PLAN_JSON, text_add, &from) != SHERD_OK) {
        return memory_fail();
    }
    parts             = json_object_get(from, "parts");
    layout->num_parts = json_array_size(parts) > 0 ? json_array_size(parts) - 1 : 0;
    layout->parts     = calloc(layout->num_parts + 1, sizeof(*layout->parts));
    for (size_t i = 0; layout->parts != NULL && i < layout->num_parts && !failed; i++) {
        layout->parts[i] = strdup(json_string_value(json_array_get(parts, i + 1)));
        failed           = layout->parts[i] == NULL;
    }
    json_decref(from);
    return layout->parts == NULL || failed ? memory_fail() : 0;
}

static int layout_make(const reading *r, const diff_layout **out)
{
    diff_run    *run    = r->run;
    diff_layout *layout = calloc(1, sizeof(*layout));

    run->layouts = calloc(1, sizeof(*run->layouts));
    if (layout == NULL || run->layouts == NULL) {
        free(layout);
        return memory_fail();
    }
    run->layouts[run->num_layouts++] = layout;
    layout->stage                    = r->info->stage;
    layout->ranks = layout->copies = layout->owners = 1;
    layout->elems                                   = r->info->num_elems;
    *out                                            = layout;
    return units_make(r, layout) != 0 ? 2 : parts_make(r, layout);
}

/* Finds the log's line of the checkpoint's step. */
static int line_find(const reading *r, const diff_run *log, const diff_line **out)
{
    for (size_t i = 0; i < log->count; i++) {
        if (log->lines[i].step == r->info->step && log->lines[i].was_updated) {
            *out = &log->lines[i];
            if ((*out)->layout->elems == r->info->num_elems) {
                return 0;
            }
            (void)fprintf(stderr,
                          "sherd: %s and %s are of different models: %" PRIu64
                          " elements, and %" PRIu64 "\n",
                          r->run->path, log->path, r->info->num_elems, (*out)->layout->elems);
            return 2;
        }
    }
    (void)fprintf(stderr,
                  "sherd: %s is of step %" PRId64 ", which %s does not have: it has steps %" PRId64
                  " to %" PRId64 "\n",
                  r->run->path, r->info->step, log->path, log->lines[0].step,
                  log->lines[log->count - 1].step);
    return 2;
}

/* ----------------------------------------------------------------- checkpoints -- */

static int line_make(reading *r, const diff_run *log)
{
    const diff_layout *layout = NULL;
    const diff_line   *like   = NULL;
    diff_line         *line;

    if (params_read(r) != 0 || damage_find(r) != 0 ||
        (log == NULL ? layout_make(r, &layout) : line_find(r, log, &like)) != 0) {
        return 2;
    }
    layout = like != NULL ? like->layout : layout;
    if (diff_line_add(r->run, layout, &line) != 0) {
        return 2;
    }
    line->number      = like != NULL ? like->number : r->info->step;
    line->step        = r->info->step;
    line->was_updated = 1;
    line->fingerprint = r->info->fingerprint;
    for (size_t u = 0; u < layout->num_units; u++) {
        for (size_t kind = DIFF_PARTS; kind < diff_kinds(layout); kind++) {
            if (like == NULL || like->has[diff_at(layout, u, kind)]) {
                unit_count(r, layout, u, kind, line);
            }
        }
    }
    return 0;
}

int diff_checkpoint_read(const char *path, const diff_run *log, diff_run *out)
{
    reading r = {.run = out};
    int     failed;

    *out = (diff_run){.path = path, .is_checkpoint = 1};
    if (path_open(path, &r.checkpoint) != 0) {
        return 2;
    }
    r.info = sherd_checkpoint_describe(r.checkpoint);
    failed = line_make(&r, log);
    free(r.params);
    free(r.first);
    sherd_checkpoint_close(r.checkpoint);
    if (failed != 0) {
        diff_run_close(out);
    }
    return failed;
}

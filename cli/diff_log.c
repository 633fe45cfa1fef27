/* Reads a log of fingerprints (engine/run/unit_log.c writes it): lines of JSON. Every line ends
 * with a hash of what stands before it, so damage is found here and is not taken for a difference
 * of two runs. A line of a step says that the run has come to that step: the lines before it of
 * this step and later ones are of an attempt that was given up. */
#include "cli/diff.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char CHECK[] = ", \"check\": \"";

/* The file that is read, and how far it is. */
typedef struct reading {
    diff_run *run;
    size_t    number; /* of the line */
} reading;

static int log_fail(const reading *r, const char *why)
{
    (void)fprintf(stderr, "sherd: %s, line %zu: %s\n", r->run->path, r->number, why);
    return 2;
}

static int memory_fail(void)
{
    (void)fprintf(stderr, "sherd: no memory for the fingerprints\n");
    return 2;
}

/* ---------------------------------------------------------------------- runs -- */

static void layout_free(diff_layout *layout)
{
    for (size_t u = 0; layout->units != NULL && u < layout->num_units; u++) {
        for (int r = 0; layout->units[u].owned != NULL && r < layout->owners; r++) {
            free(layout->units[u].owned[r].ranges);
        }
        free(layout->units[u].owned);
        free(layout->units[u].name);
    }
    for (size_t p = 0; layout->parts != NULL && p < layout->num_parts; p++) {
        free(layout->parts[p]);
    }
    free(layout->units);
    free(layout->parts);
    free(layout);
}

static void line_free(diff_line *line)
{
    free(line->has);
    free(line->words);
}

void diff_run_close(diff_run *run)
{
    for (size_t i = 0; i < run->count; i++) {
        line_free(&run->lines[i]);
    }
    for (size_t i = 0; i < run->num_layouts; i++) {
        layout_free(run->layouts[i]);
    }
    free(run->lines);
    free(run->layouts);
    *run = (diff_run){.path = run->path};
}

int diff_line_add(diff_run *run, const diff_layout *layout, diff_line **out)
{
    size_t    places = layout->num_units * diff_kinds(layout);
    diff_line line   = {.layout = layout};

    if (run->count == run->capacity) {
        size_t     more  = run->capacity == 0 ? 64 : 2 * run->capacity;
        diff_line *lines = realloc(run->lines, more * sizeof(*lines));

        if (lines == NULL) {
            return memory_fail();
        }
        run->lines    = lines;
        run->capacity = more;
    }
    line.has   = calloc(places + 1, 1);
    line.words = calloc(places * (1 + (size_t)layout->ranks) + 1, sizeof(*line.words));
    if (line.has == NULL || line.words == NULL) {
        line_free(&line);
        return memory_fail();
    }
    run->lines[run->count] = line;
    *out                   = &run->lines[run->count++];
    return 0;
}

/* -------------------------------------------------------------------- layout -- */

static int ranges_read(const reading *r, const json_t *list, diff_owned *out)
{
    out->count  = json_array_size(list);
    out->ranges = calloc(out->count + 1, sizeof(*out->ranges));
    if (out->ranges == NULL) {
        return memory_fail();
    }
    for (size_t i = 0; i < out->count; i++) {
        const json_t *range = json_array_get(list, i);

        out->ranges[i] = (diff_range){
            (uint64_t)json_integer_value(json_array_get(range, 0)),
            (uint64_t)json_integer_value(json_array_get(range, 1)),
        };
        if (json_array_size(range) != 2 || out->ranges[i].end <= out->ranges[i].first) {
            return log_fail(r, "a range of elements is not one");
        }
    }
    return 0;
}

static int unit_read(const reading *r, const json_t *from, int owners, diff_unit *out)
{
    const char   *name  = json_string_value(json_object_get(from, "name"));
    const json_t *owned = json_object_get(from, "owned");

    if (name == NULL || json_array_size(owned) != (size_t)owners) {
        return log_fail(r, "a unit lacks its name, or the elements of some rank");
    }
    out->name  = strdup(name);
    out->owned = calloc((size_t)owners, sizeof(*out->owned));
    if (out->name == NULL || out->owned == NULL) {
        return memory_fail();
    }
    for (int rank = 0; rank < owners; rank++) {
        if (ranges_read(r, json_array_get(owned, (size_t)rank), &out->owned[rank]) != 0) {
            return 2;
        }
    }
    return 0;
}

static int lists_read(const reading *r, const json_t *from, diff_layout *layout)
{
    const json_t *parts = json_object_get(from, "parts");
    const json_t *units = json_object_get(from, "units");

    layout->num_parts = json_array_size(parts);
    layout->num_units = json_array_size(units);
    layout->parts     = calloc(layout->num_parts + 1, sizeof(*layout->parts));
    layout->units     = calloc(layout->num_units + 1, sizeof(*layout->units));
    if (layout->parts == NULL || layout->units == NULL) {
        return memory_fail();
    }
    for (size_t p = 0; p < layout->num_parts; p++) {
        const char *name = json_string_value(json_array_get(parts, p));

        layout->parts[p] = strdup(name == NULL ? "" : name);
        if (layout->parts[p] == NULL) {
            return memory_fail();
        }
    }
    for (size_t u = 0; u < layout->num_units; u++) {
        if (unit_read(r, json_array_get(units, u), layout->owners, &layout->units[u]) != 0) {
            return 2;
        }
    }
    return 0;
}

static int layout_read(const reading *r, const json_t *from)
{
    diff_run     *run     = r->run;
    diff_layout **layouts = realloc(run->layouts, (run->num_layouts + 1) * sizeof(*run->layouts));
    diff_layout  *layout  = calloc(1, sizeof(*layout));

    if (layouts != NULL) {
        run->layouts = layouts;
    }
    if (layouts == NULL || layout == NULL) {
        free(layout);
        return memory_fail();
    }
    run->layouts[run->num_layouts++] = layout;
    if (json_integer_value(json_object_get(from, "sherd_fingerprints")) != 1) {
        return log_fail(r, "it is of a newer version of the log; use the sherd that wrote it");
    }
    layout->stage            = (int)json_integer_value(json_object_get(from, "stage"));
    layout->ranks            = (int)json_integer_value(json_object_get(from, "ranks"));
    layout->copies           = (int)json_integer_value(json_object_get(from, "copies"));
    layout->is_sliced        = json_is_true(json_object_get(from, "is_sliced"));
    layout->slices_gradients = json_is_true(json_object_get(from, "slices_gradients"));
    layout->elems            = (uint64_t)json_integer_value(json_object_get(from, "elems"));
    if (layout->ranks < 1 || layout->copies < 1 || layout->ranks % layout->copies != 0) {
        return log_fail(r, "the number of ranks is not one");
    }
    layout->owners = layout->is_sliced ? layout->ranks / layout->copies : 1;
    return lists_read(r, from, layout);
}

/* --------------------------------------------------------------------- steps -- */

/* Reads the words of a unit: "ALL RANK0 RANK1 ...", of one rank "ALL". */
static int words_read(const reading *r, const json_t *from, const diff_layout *layout,
                      uint64_t *words)
{
    const char *at = json_string_value(from);

    for (int i = 0; i < (layout->ranks == 1 ? 1 : 1 + layout->ranks); i++) {
        char *end = NULL;

        if (at == NULL || strspn(at, "0123456789abcdef") != 16) {
            return log_fail(r, "a fingerprint is not one");
        }
        words[i] = strtoull(at, &end, 16);
        at       = *end == ' ' ? end + 1 : end;
    }
    if (layout->ranks == 1) {
        words[1] = words[0];
    }
    return *at == '\0' ? 0 : log_fail(r, "a unit has fingerprints of too many ranks");
}

static int kind_read(const reading *r, const json_t *from, size_t kind, diff_line *line)
{
    if (json_array_size(from) != line->layout->num_units) {
        return log_fail(r, "a list does not have a fingerprint of each unit");
    }
    for (size_t u = 0; u < line->layout->num_units; u++) {
        line->has[diff_at(line->layout, u, kind)] = 1;
        if (words_read(r, json_array_get(from, u), line->layout, diff_words(line, u, kind)) != 0) {
            return 2;
        }
    }
    return 0;
}

/* Reads what rested of a unit: its number, its weights before the update, and its parts. */
static int rest_read(const reading *r, const json_t *from, diff_line *line)
{
    const diff_layout *layout = line->layout;
    const json_t      *number = json_array_get(from, 0);
    size_t             unit   = (size_t)json_integer_value(number);

    if (!json_is_integer(number) || unit >= layout->num_units ||
        json_array_size(from) != 2 + layout->num_parts) {
        return log_fail(r, "the state of a unit is not one");
    }
    for (size_t i = 0; i <= layout->num_parts; i++) {
        size_t kind = i == 0 ? DIFF_BEFORE : DIFF_PARTS + i - 1;

        line->has[diff_at(layout, unit, kind)] = 1;
        if (words_read(r, json_array_get(from, i + 1), layout, diff_words(line, unit, kind)) != 0) {
            return 2;
        }
    }
    return 0;
}

static int step_read(const reading *r, const json_t *from)
{
    diff_run     *run     = r->run;
    const json_t *step    = json_object_get(from, "step");
    const json_t *skipped = json_object_get(from, "skipped");
    const json_t *state   = json_object_get(from, "state");
    const char   *all     = json_string_value(json_object_get(from, "fingerprint"));
    int64_t       number  = json_integer_value(step) + json_integer_value(skipped);
    diff_line    *line;

    if (!json_is_integer(step) || !json_is_integer(skipped) || all == NULL) {
        return log_fail(r, "it is neither a layout nor a step");
    }
    if (run->num_layouts == 0) {
        return log_fail(r,
                        "a step stands before the layout of its run; the file has lost its start");
    }
    while (run->count > 0 && run->lines[run->count - 1].number >= number) {
        line_free(&run->lines[--run->count]);
    }
    if (diff_line_add(run, run->layouts[run->num_layouts - 1], &line) != 0) {
        return 2;
    }
    line->number      = number;
    line->was_updated = json_is_true(json_object_get(from, "was_updated"));
    line->step        = json_integer_value(step) + !line->was_updated;
    line->fingerprint = strtoull(all, NULL, 16);
    for (size_t i = 0; i < json_array_size(state); i++) {
        if (rest_read(r, json_array_get(state, i), line) != 0) {
            return 2;
        }
    }
    if (kind_read(r, json_object_get(from, "gradients"), DIFF_GRADIENT, line) != 0) {
        return 2;
    }
    return line->was_updated
               ? kind_read(r, json_object_get(from, "weights"), diff_weights(line->layout), line)
               : 0;
}

/* --------------------------------------------------------------------- files -- */

/* FNV-1a, of Fowler, Noll and Vo. */
static uint64_t text_hash(const char *text, size_t len_bytes)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (size_t i = 0; i < len_bytes; i++) {
        hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3u;
    }
    return hash;
}

/* Whether a line ends with the hash of the rest of it. */
static int line_is_whole(const char *text, size_t len_bytes)
{
    size_t end = sizeof(CHECK) - 1 + 16 + 2; /* the hash, a quote and a brace */
    char   digits[17];

    if (len_bytes < end || memcmp(text + len_bytes - end, CHECK, sizeof(CHECK) - 1) != 0) {
        return 0;
    }
    (void)snprintf(digits, sizeof(digits), "%016" PRIx64, text_hash(text, len_bytes - end));
    return memcmp(text + len_bytes - 18, digits, 16) == 0;
}

static int line_read(const reading *r, const char *text, size_t len_bytes)
{
    json_error_t error;
    json_t      *from;
    int          failed;

    if (!line_is_whole(text, len_bytes)) {
        return log_fail(r,
                        "it is damaged, or no line of a log of fingerprints (sherd.fingerprints)");
    }
    from = json_loadb(text, len_bytes, 0, &error);
    if (from == NULL) {
        return log_fail(r, error.text);
    }
    failed = json_object_get(from, "sherd_fingerprints") != NULL ? layout_read(r, from)
                                                                 : step_read(r, from);
    json_decref(from);
    return failed;
}

static int lines_read(FILE *file, reading *r)
{
    char   *text = NULL;
    size_t  room = 0;
    ssize_t len;
    int     failed = 0;

    while (failed == 0 && (len = getline(&text, &room, file)) > 0) {
        r->number++;
        if (text[len - 1] != '\n') {
            (void)fprintf(stderr, "sherd: %s, line %zu: it is not whole and is left out\n",
                          r->run->path, r->number);
            break;
        }
        failed = line_read(r, text, (size_t)len - 1);
    }
    if (failed == 0 && ferror(file)) {
        (void)fprintf(stderr, "sherd: cannot read %s: %s\n", r->run->path, strerror(errno));
        failed = 2;
    }
    free(text);
    return failed;
}

int diff_log_read(const char *path, diff_run *out)
{
    reading r = {.run = out};
    FILE   *file;
    int     failed;

    *out = (diff_run){.path = path};
    file = fopen(path, "rb");
    if (file == NULL) {
        (void)fprintf(stderr, "sherd: cannot open %s: %s\n", path, strerror(errno));
        return 2;
    }
    failed = lines_read(file, &r);
    (void)fclose(file);
    if (failed == 0 && out->count == 0) {
        (void)fprintf(stderr, "sherd: %s has no step\n", path);
        failed = 2;
    }
    if (failed != 0) {
        diff_run_close(out);
    }
    return failed;
}

/* The file of `sherd.fingerprints`: a JSON object a line, for the layout of an engine and then for
 * each of its updates. docs/diverged.md has an example of each, and cli/diff_log.c reads them. Each
 * line ends with a hash of all that stands before it, so a damaged line is no difference of two
 * runs.
 *
 * A file is only appended to: what is there is of the runs before. A line says that the run has
 * come to its step, whatever lines of this step and later ones stand before it. Steps and skipped steps
 * together number the lines. */
#include "engine/run/unit_sums.h"

#include "base/folder.h"
#include "base/json_text.h"
#include "base/log.h"
#include "engine/monitor/monitor.h"
#include "engine/run/engine_impl.h"
#include "sherd_tools.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORD_BYTES 17 /* of a word in hexadecimal digits, and what separates it from the next */
#define CHECK_TEXT ", \"check\": \""

typedef struct sherdi_unit_log {
    int    fd;
    char   path[SHERDI_FINGERPRINTS_FILE_BYTES];
    char  *text; /* the layout, then the line of an update */
    size_t layout_bytes, capacity_bytes;
    int    has_layout; /* the file has it */
    int    has_failed; /* the last write failed: the log has the warning */
} sherdi_unit_log;

/* FNV-1a, of Fowler, Noll and Vo: a few lines in any language. */
static uint64_t line_check(const char *text, size_t len_bytes)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (size_t i = 0; i < len_bytes; i++) {
        hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3u;
    }
    return hash;
}

/* ------------------------------------------------------------------ layout -- */

/* Whether the ranks of a copy have slices of what a word is about, and not the whole. */
static int is_sliced(const sherd_engine *engine, int word)
{
    return engine->plan->layout.is_sliced ||
           (word == SHERDI_UNIT_GRADIENT && engine->plan->layout.is_deterministic);
}

/* Numbers [first, end) of elements, which the last range may end with. */
typedef struct owned_range {
    uint64_t first, end;
    int      count; /* of ranges that were written before */
} owned_range;

static void range_put(sherdi_text *text, const owned_range *range)
{
    if (range->end > range->first) {
        sherdi_text_print(text, "%s[%" PRIu64 ", %" PRIu64 "]", range->count > 0 ? ", " : "",
                          range->first, range->end);
    }
}

/* Adds what a rank updates of a parameter. */
static void owned_add(const sherd_engine *engine, size_t param, int rank, owned_range *range,
                      sherdi_text *text)
{
    const sherdi_plan        *plan    = engine->plan;
    const sherdi_model_param *info    = &engine->model.params[param];
    const sherdi_segment     *segment = sherdi_param_segment(plan, param);
    size_t                    start   = plan->layout.params[param].offset_elems;
    size_t                    first   = start;
    size_t                    end     = start + info->elems;

    if (plan->layout.is_sliced) {
        size_t slice = (size_t)rank * segment->slice_elems;

        first = first > slice ? first : slice;
        end   = end < slice + segment->slice_elems ? end : slice + segment->slice_elems;
    }
    if (info->is_frozen || first >= end) {
        return;
    }
    if (range->end > range->first && range->end != info->first_index + (first - start)) {
        range_put(text, range);
        range->count++;
        range->first = range->end = 0;
    }
    if (range->end == range->first) {
        range->first = info->first_index + (first - start);
    }
    range->end = info->first_index + (end - start);
}

static void owned_put(const sherd_engine *engine, size_t unit, int rank, sherdi_text *text)
{
    const sherdi_model_unit *info  = &engine->model.units[unit];
    owned_range              range = {0};

    sherdi_text_print(text, "%s[", rank > 0 ? ", " : "");
    for (size_t i = 0; i < info->num_params; i++) {
        owned_add(engine, (size_t)info->params[i], rank, &range, text);
    }
    range_put(text, &range);
    sherdi_text_print(text, "]");
}

static void unit_put(const sherd_engine *engine, size_t unit, sherdi_text *text)
{
    int owners = engine->plan->layout.is_sliced ? engine->plan->world_size : 1;

    sherdi_text_print(text, "%s{\"name\": ", unit > 0 ? ", " : "");
    sherdi_text_quote(text, engine->model.units[unit].name);
    sherdi_text_print(text, ", \"owned\": [");
    for (int rank = 0; rank < owners; rank++) {
        owned_put(engine, unit, rank, text);
    }
    sherdi_text_print(text, "]}");
}

static void layout_put(const sherd_engine *engine, sherdi_text *text)
{
    const sherdi_unit_parts *parts = &engine->sums.own->parts;

    sherdi_text_print(
        text,
        "{\"sherd_fingerprints\": 1, \"stage\": %d, \"ranks\": %d, \"copies\": %d, "
        "\"is_sliced\": %s, \"slices_gradients\": %s, \"elems\": %zu, \"parts\": [",
        engine->settings.sharding.stage, engine->world_size, engine->plan->num_replicas,
        is_sliced(engine, SHERDI_UNIT_WEIGHTS) ? "true" : "false",
        is_sliced(engine, SHERDI_UNIT_GRADIENT) ? "true" : "false", engine->model.total_elems);
    for (size_t i = 0; i < parts->count; i++) {
        sherdi_text_print(text, "%s\"%s\"", i > 0 ? ", " : "", parts->names[i]);
    }
    sherdi_text_print(text, "], \"units\": [");
    for (size_t u = 0; u < engine->model.num_units; u++) {
        unit_put(engine, u, text);
    }
    sherdi_text_print(text, "]");
    if (text->status == SHERD_OK) {
        sherdi_text_print(text, CHECK_TEXT "%016" PRIx64 "\"}\n",
                          line_check(text->bytes, text->len_bytes));
    }
}

/* ------------------------------------------------------------------- lines -- */

/* A line that is being written; there is room for it. */
typedef struct line {
    char  *text;
    size_t len_bytes, capacity_bytes;
} line;

static void line_put(line *l, const char *fmt, ...) SHERDI_PRINTF(2, 3);
static void line_put(line *l, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    l->len_bytes +=
        (size_t)vsnprintf(l->text + l->len_bytes, l->capacity_bytes - l->len_bytes, fmt, args);
    va_end(args);
}

static void digits_put(line *l, char before, uint64_t value)
{
    l->text[l->len_bytes++] = before;
    for (int shift = 60; shift >= 0; shift -= 4) {
        l->text[l->len_bytes++] = "0123456789abcdef"[(value >> shift) & 15];
    }
}

/* Returns a word of the unit over all ranks of the first copy. */
static uint64_t word_of_all(const sherd_engine *engine, size_t unit, int word)
{
    uint64_t sum   = 0;
    int      ranks = is_sliced(engine, word) ? engine->plan->world_size : 1;

    for (int r = 0; r < ranks; r++) {
        sum += sherdi_unit_words(engine->sums.own, r, unit)[word];
        if (word == SHERDI_UNIT_GRADIENT) {
            sum %= SHERDI_UNIT_SUM_PRIME;
        }
    }
    return sum;
}

/* Writes a word of a unit: of all ranks, then of each. */
static void word_put(const sherd_engine *engine, size_t unit, int word, line *l)
{
    digits_put(l, '"', word_of_all(engine, unit, word));
    for (int r = 0; engine->world_size > 1 && r < engine->world_size; r++) {
        digits_put(l, ' ', sherdi_unit_words(engine->sums.own, r, unit)[word]);
    }
    line_put(l, "\"");
}

static void words_put(const sherd_engine *engine, const char *name, int word, line *l)
{
    line_put(l, ", \"%s\": [", name);
    for (size_t u = 0; u < engine->model.num_units; u++) {
        line_put(l, u > 0 ? ", " : "");
        word_put(engine, u, word, l);
    }
    line_put(l, "]");
}

/* Writes what rests of the units that were due: the number of the unit, its weights before the
 * update, and its parts behind it. */
static void rest_put(const sherd_engine *engine, line *l)
{
    const sherdi_unit_sums *own   = engine->sums.own;
    const char             *comma = "";

    line_put(l, ", \"state\": [");
    for (size_t u = 0; u < engine->model.num_units; u++) {
        if (!own->is_due[u]) {
            continue;
        }
        line_put(l, "%s[%zu, ", comma, u);
        word_put(engine, u, SHERDI_UNIT_BEFORE, l);
        for (size_t part = 0; part < own->parts.count; part++) {
            line_put(l, ", ");
            word_put(engine, u, SHERDI_UNIT_PARTS + (int)part, l);
        }
        line_put(l, "]");
        comma = ", ";
    }
    line_put(l, "]");
}

static size_t update_put(const sherd_engine *engine, char *text, size_t capacity_bytes)
{
    line l = {text, 0, capacity_bytes};

    line_put(&l, "{\"step\": %" PRId64 ", \"skipped\": %" PRId64 ", \"was_updated\": %s",
             engine->boundary.step, engine->boundary.skipped_steps,
             engine->boundary.was_updated ? "true" : "false");
    line_put(&l, ", \"fingerprint\": ");
    digits_put(&l, '"', engine->boundary.fingerprint);
    line_put(&l, "\"");
    words_put(engine, "gradients", SHERDI_UNIT_GRADIENT, &l);
    if (engine->boundary.was_updated) {
        words_put(engine, "weights", SHERDI_UNIT_WEIGHTS, &l);
        rest_put(engine, &l);
    }
    line_put(&l, CHECK_TEXT "%016" PRIx64 "\"}\n", line_check(text, l.len_bytes));
    return l.len_bytes;
}

/* The most that a line can take. */
static size_t line_most(const sherd_engine *engine)
{
    size_t words = engine->model.num_units * engine->sums.own->words;

    return 512 + words * (((size_t)engine->world_size + 1) * WORD_BYTES + 32);
}

/* ------------------------------------------------------------------- files -- */

/* Returns the bytes of a file that are whole lines: a run that was killed may have cut the last one
 * short. */
static sherd_status lines_whole(const sherdi_unit_log *log, uint64_t len_bytes, uint64_t *out)
{
    char     part[4096];
    uint64_t end = len_bytes;

    while (end > 0) {
        uint64_t start = end > sizeof(part) ? end - sizeof(part) : 0;
        ssize_t  got   = pread(log->fd, part, (size_t)(end - start), (off_t)start);

        if (got != (ssize_t)(end - start)) {
            return sherdi_fail(SHERD_E_IO, "cannot read %s: %s", log->path, strerror(errno));
        }
        for (; end > start; end--) {
            if (part[end - start - 1] == '\n') {
                *out = end;
                return SHERD_OK;
            }
        }
    }
    *out = 0;
    return SHERD_OK;
}

static sherd_status folder_make(const char *path)
{
    char  folder[SHERDI_FINGERPRINTS_FILE_BYTES];
    char *slash;

    (void)snprintf(folder, sizeof(folder), "%s", path);
    slash = strrchr(folder, '/');
    if (slash == NULL || slash == folder) {
        return SHERD_OK;
    }
    *slash = '\0';
    return sherdi_folders_make(folder, "sherd.fingerprints.file");
}

static sherd_status file_open(sherdi_unit_log *log)
{
    struct stat file;
    uint64_t    whole_bytes;

    SHERDI_TRY(folder_make(log->path));
    SHERDI_TRY(sherd_output_check(log->path));
    log->fd = open(log->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (log->fd < 0 || fstat(log->fd, &file) != 0) {
        return sherdi_fail(SHERD_E_IO, "sherd.fingerprints.file: cannot open %s: %s", log->path,
                           strerror(errno));
    }
    if (flock(log->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        return sherdi_fail(SHERD_E_INVAL,
                           "sherd.fingerprints.file: another engine writes %s; give each engine a "
                           "file of its own",
                           log->path);
    }
    SHERDI_TRY(lines_whole(log, (uint64_t)file.st_size, &whole_bytes));
    if (whole_bytes < (uint64_t)file.st_size && ftruncate(log->fd, (off_t)whole_bytes) != 0) {
        return sherdi_fail(SHERD_E_IO,
                           "sherd.fingerprints.file: cannot cut the last line of %s, "
                           "which is not whole: %s",
                           log->path, strerror(errno));
    }
    return SHERD_OK;
}

static sherd_status text_open(sherd_engine *engine, sherdi_unit_log *log)
{
    sherdi_text  layout;
    sherd_status status;

    sherdi_text_init(&layout, &engine->mem);
    layout_put(engine, &layout);
    status = layout.status;
    if (status == SHERD_OK) {
        log->layout_bytes   = layout.len_bytes;
        log->capacity_bytes = layout.len_bytes + line_most(engine);
        log->text           = sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, log->capacity_bytes);
        status              = log->text == NULL ? SHERD_E_NOMEM : SHERD_OK;
    }
    if (status == SHERD_OK) {
        memcpy(log->text, layout.bytes, layout.len_bytes);
    }
    sherdi_text_fini(&layout);
    return status;
}

sherd_status sherdi_unit_log_open(sherd_engine *engine, struct sherdi_unit_log **out)
{
    sherdi_unit_log *log;
    sherd_status     status;

    if (engine->rank != 0 || (sherdi_world_caps(engine->world) & SHERDI_WORLD_SIMULATES) != 0) {
        return SHERD_OK;
    }
    log = sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, sizeof(*log));
    if (log == NULL) {
        return SHERD_E_NOMEM;
    }
    *log = (sherdi_unit_log){.fd = -1};
    memcpy(log->path, engine->settings.fingerprints.file, sizeof(log->path));
    status = file_open(log);
    if (status == SHERD_OK) {
        status = text_open(engine, log);
    }
    if (status != SHERD_OK) {
        sherdi_unit_log_close(log);
        return status;
    }
    *out = log;
    return SHERD_OK;
}

void sherdi_unit_log_lock(const sherd_engine *engine, int is_held)
{
    if (engine->sums.own != NULL && engine->sums.own->log != NULL) {
        (void)flock(engine->sums.own->log->fd, is_held ? LOCK_EX | LOCK_NB : LOCK_UN);
    }
}

void sherdi_unit_log_close(struct sherdi_unit_log *log)
{
    if (log == NULL) {
        return;
    }
    if (log->fd >= 0 && close(log->fd) != 0) {
        sherdi_log(SHERD_LOG_WARN, 0, "sherd.fingerprints: %s: %s", log->path, strerror(errno));
    }
    sherdi_free(log->text);
    sherdi_free(log);
}

void sherdi_unit_log_write(sherd_engine *engine)
{
    sherdi_unit_log *log    = engine->sums.own->log;
    size_t           from   = log->has_layout ? log->layout_bytes : 0;
    size_t           end    = log->layout_bytes;
    sherd_status     status = SHERD_OK;
    struct stat      file;

    end += update_put(engine, log->text + end, log->capacity_bytes - end);
    if (fstat(log->fd, &file) != 0) {
        status = sherdi_fail(SHERD_E_IO, "cannot write %s: %s", log->path, strerror(errno));
    } else {
        status = sherdi_monitor_append(log->fd, log->path, (uint64_t)file.st_size, log->text + from,
                                       end - from);
    }
    log->has_layout |= status == SHERD_OK;
    if (status != SHERD_OK && !log->has_failed) {
        sherdi_log(SHERD_LOG_WARN, 0,
                   "sherd.fingerprints: %s; training goes on without it, and the next step tries "
                   "again",
                   sherd_last_error());
    }
    log->has_failed = status != SHERD_OK;
}

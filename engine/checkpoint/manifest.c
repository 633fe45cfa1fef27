/* Writes and reads the manifest as JSON. See manifest.h. */
#include "engine/checkpoint/manifest.h"

#include "base/checked.h"
#include "base/json.h"
#include "engine/checkpoint/bytes.h"
#include "engine/config/config.h"
#include "offload/checksum.h"

#include <jansson.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The checksum is the last member. It is of all bytes before its own first digit. */
#define CHECKSUM_KEY "\"checksum\": \""
#define END_TEXT     "\"}\n"
#define END_BYTES    (sizeof(CHECKSUM_KEY) - 1 + SHERDI_HEX_DIGITS + sizeof(END_TEXT) - 1)

/* The most ranks of which a manifest may have files. */
#define MOST_RANKS (1 << 20)
/* The limit of counters: no run counts this far, and counting on from here does not overflow. */
#define MOST_COUNT ((int64_t)1 << 53)

void sherdi_manifest_init(sherdi_manifest *manifest, sherdi_mem *mem)
{
    memset(manifest, 0, sizeof(*manifest));
    manifest->mem = mem;
}

void sherdi_manifest_fini(sherdi_manifest *manifest)
{
    for (size_t p = 0; p < manifest->num_params; p++) {
        sherdi_free(manifest->params[p].name);
    }
    sherdi_free(manifest->params);
    sherdi_free(manifest->segments);
    sherdi_free(manifest->files);
    sherdi_manifest_init(manifest, manifest->mem);
}

static const char *const DATA_FILE_NAMES[SHERDI_DATA_FILES] = {"rank", "frozen"};

void sherdi_data_file_name(sherdi_data_file which, int rank, int world_size,
                           char out[SHERDI_CHECKPOINT_NAME_BYTES])
{
    (void)snprintf(out, SHERDI_CHECKPOINT_NAME_BYTES, "%s-%05d-of-%05d.safetensors",
                   DATA_FILE_NAMES[which], rank, world_size);
}

int sherdi_is_data_file_name(const char *name)
{
    char        again[SHERDI_CHECKPOINT_NAME_BYTES];
    const char *numbers = strchr(name, '-');
    int         rank, world_size;

    if (numbers == NULL || sscanf(numbers, "-%d-of-%d", &rank, &world_size) != 2) {
        return 0;
    }
    for (int which = 0; which < SHERDI_DATA_FILES; which++) {
        sherdi_data_file_name((sherdi_data_file)which, rank, world_size, again);
        if (strcmp(again, name) == 0) {
            return 1;
        }
    }
    return 0;
}

sherd_status sherdi_tag_check(const char *tag)
{
    size_t len = strlen(tag);

    for (size_t i = 0; i < len; i++) {
        if (tag[i] == '/' || (unsigned char)tag[i] < ' ' || tag[i] == 0x7f) {
            return sherdi_fail(SHERD_E_INVAL,
                               "a checkpoint's tag is the name of a folder: it may have no slash "
                               "and no control character");
        }
    }
    if (len == 0 || tag[0] == '.' || len > 200 || strcmp(tag, "latest") == 0) {
        return sherdi_fail(SHERD_E_INVAL,
                           "a checkpoint's tag is the name of a folder: it has 1 to 200 bytes, "
                           "does not begin with a dot, and is not \"latest\"");
    }
    return SHERD_OK;
}

/* ------------------------------------------------------------------- writing -- */

static json_t *hex_of(uint64_t value)
{
    char text[SHERDI_HEX_DIGITS + 1];

    (void)snprintf(text, sizeof(text), "%016" PRIx64, value);
    return json_string(text);
}

static json_t *integer_of(uint64_t value)
{
    return json_integer((json_int_t)value);
}

/* The type is written only if it is not that of the engine. */
static json_t *param_json(const sherdi_manifest *manifest, const sherdi_manifest_param *param)
{
    json_t *shape = json_array();

    for (int d = 0; d < param->ndim; d++) {
        (void)json_array_append_new(shape, integer_of(param->shape[d]));
    }
    return json_pack(
        "{s:s, s:o, s:b, s:s*, s:o, s:o}", "name", param->name, "shape", shape, "frozen",
        param->is_frozen, "type",
        param->dtype == manifest->compute_dtype ? NULL : sherd_dtype_name(param->dtype), "segment",
        integer_of(param->segment), "offset", integer_of(param->offset_elems));
}

static json_t *params_json(const sherdi_manifest *manifest)
{
    json_t *all = json_array();

    for (size_t p = 0; p < manifest->num_params; p++) {
        (void)json_array_append_new(all, param_json(manifest, &manifest->params[p]));
    }
    return all;
}

/* Returns the names of the parts whose bits are in `parts`. */
static json_t *part_names_json(const sherdi_manifest *manifest, unsigned parts)
{
    json_t *all = json_array();

    for (int i = 0; i < manifest->num_parts; i++) {
        if (parts >> i & 1) {
            (void)json_array_append_new(all, json_string(manifest->parts[i]));
        }
    }
    return all;
}

static json_t *segments_json(const sherdi_manifest *manifest)
{
    json_t *all = json_array();

    for (size_t s = 0; s < manifest->num_segments; s++) {
        const sherdi_manifest_segment *segment = &manifest->segments[s];
        json_t *json = json_pack("{s:o, s:b}", "slice", integer_of(segment->slice_elems), "frozen",
                                 segment->is_frozen);

        if (manifest->num_optimizers > 1 && !segment->is_frozen && json != NULL) {
            const sherdi_manifest_optimizer *of = &manifest->optimizers[segment->optimizer];

            (void)json_object_set_new(json, "optimizer", json_string(of->name));
            (void)json_object_set_new(json, "parts", part_names_json(manifest, of->parts));
        }
        (void)json_array_append_new(all, json);
    }
    return all;
}

static json_t *files_json(const sherdi_manifest *manifest)
{
    json_t *all = json_array();
    char    name[SHERDI_CHECKPOINT_NAME_BYTES];

    for (int r = 0; r < manifest->world_size; r++) {
        for (int f = 0; f < SHERDI_DATA_FILES; f++) {
            const sherdi_manifest_file *file = &manifest->files[r][f];

            if (file->bytes > 0) {
                sherdi_data_file_name((sherdi_data_file)f, r, manifest->world_size, name);
                (void)json_array_append_new(
                    all, json_pack("{s:s, s:i, s:o, s:o}", "name", name, "rank", r, "bytes",
                                   integer_of(file->bytes), "header_checksum",
                                   hex_of(file->header_checksum)));
            }
        }
    }
    return all;
}

static json_t *parts_json(const sherdi_manifest *manifest)
{
    json_t *all = json_array();

    for (int i = 0; i < manifest->num_parts; i++) {
        (void)json_array_append_new(all, json_pack("{s:s, s:s, s:s}", "name", manifest->parts[i],
                                                   "encoding", "F32", "held",
                                                   sherdi_manifest_held(manifest, i)));
    }
    return all;
}

static json_t *scaler_json(const sherdi_scaler *scaler)
{
    return json_pack("{s:b, s:f, s:i, s:I, s:I}", "dynamic", scaler->params.is_dynamic, "scale",
                     scaler->scale, "hysteresis_left", scaler->hysteresis_left, "iteration",
                     (json_int_t)scaler->iteration, "last_overflow",
                     (json_int_t)scaler->last_overflow);
}

static json_t *manifest_json(const sherdi_manifest *m)
{
    return json_pack(
        "{s:i, s:s, s:s, s:I, s:i, s:i, s:s, s:s, s:o, s:I, s:I, s:I, s:I, s:i, s:i, s:s, s:o, "
        "s:o, s:o, s:o, s:o, s:i, s:o, s:o, s:o}",
        SHERDI_MANIFEST_KEY, SHERDI_CHECKPOINT_FORMAT, "version", m->version, "tag", m->tag,
        "saved", (json_int_t)m->saved_s, "world_size", m->world_size, "stage", m->stage,
        "compute_type", sherd_dtype_name(m->compute_dtype), "optimizer", m->optimizers[0].name,
        "parts", parts_json(m), "step", (json_int_t)m->step, "micro_step",
        (json_int_t)m->micro_step, "skipped_steps", (json_int_t)m->skipped_steps, "samples",
        (json_int_t)m->samples, "gradient_accumulation_steps", m->accumulation,
        "train_micro_batch_size_per_gpu", m->micro_batch_size, "run", m->run_text, "loss_scaler",
        scaler_json(&m->scaler), "fingerprint", hex_of(m->fingerprint), "frozen_fingerprint",
        hex_of(m->frozen_fingerprint), "state_fingerprint",
        m->has_state_fingerprint ? hex_of(m->state_fingerprint) : json_null(), "data_bytes",
        integer_of(m->data_bytes), "extent_bytes", (int)SHERDI_CHECKPOINT_EXTENT_BYTES, "params",
        params_json(m), "segments", segments_json(m), "files", files_json(m));
}

sherd_status sherdi_manifest_text(const sherdi_manifest *manifest, char **text_out,
                                  size_t *len_bytes_out)
{
    json_t *json = manifest_json(manifest);
    char   *body = json == NULL ? NULL : json_dumps(json, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    size_t  len  = body == NULL ? 0 : strlen(body);
    char   *text = body == NULL ? NULL : malloc(len + END_BYTES + 2);
    size_t  at;

    json_decref(json);
    if (text == NULL) {
        free(body);
        return sherdi_fail(SHERD_E_NOMEM, "no memory for the manifest of a checkpoint");
    }
    memcpy(text, body, len);
    free(body);
    while (len > 0 && text[len - 1] != '}') {
        len--;
    }
    at = len == 0 ? 0 : len - 1; /* the checksum replaces the last bracket */
    while (at > 0 && text[at - 1] == '\n') {
        at--;
    }
    at += (size_t)sprintf(text + at, ",\n" CHECKSUM_KEY);
    at += (size_t)sprintf(text + at, "%016" PRIx64 END_TEXT, sherdi_checksum(text, at));
    *text_out      = text;
    *len_bytes_out = at;
    return SHERD_OK;
}

void sherdi_manifest_text_free(char *text)
{
    free(text);
}

int sherdi_manifest_find_part(const sherdi_manifest *manifest, const char *name)
{
    for (int i = 0; i < manifest->num_parts; i++) {
        if (strcmp(manifest->parts[i], name) == 0) {
            return i;
        }
    }
    return -1;
}

void sherdi_manifest_optimizers(const sherdi_manifest *manifest, char *text, size_t len_bytes)
{
    size_t used = 0;

    text[0] = '\0';
    for (int o = 0; o < manifest->num_optimizers && used < len_bytes; o++) {
        used += (size_t)snprintf(text + used, len_bytes - used, "%s%s", o == 0 ? "" : ", ",
                                 manifest->optimizers[o].name);
    }
}

/* ------------------------------------------------------------------- reading -- */

/* A manifest that is read. */
typedef struct reader {
    sherdi_manifest *manifest;
    const char      *path;
    int              most_ranks;
} reader;

static sherd_status damaged(const reader *r, const char *what)
{
    return sherdi_fail(SHERD_E_INVAL,
                       "%s: %s; the checkpoint is damaged, or no checkpoint of sherd", r->path,
                       what);
}

static int hex_read(const char *text, uint64_t *out)
{
    *out = 0;
    for (int i = 0; i < SHERDI_HEX_DIGITS; i++) {
        const char *digits = "0123456789abcdef";
        const char *found  = text[i] == '\0' ? NULL : strchr(digits, text[i]);

        if (found == NULL) {
            return 0;
        }
        *out = *out << 4 | (uint64_t)(found - digits);
    }
    return 1;
}

/* Checks the checksum, before anything in the text is trusted. */
static sherd_status checksum_check(const reader *r, const char *text, size_t len_bytes)
{
    size_t   key = sizeof(CHECKSUM_KEY) - 1;
    uint64_t said;

    SHERDI_TRY(sherdi_checksum_check_built());
    if (len_bytes < END_BYTES) {
        return damaged(r, "the manifest is cut off");
    }
    if (memcmp(text + len_bytes - END_BYTES, CHECKSUM_KEY, key) != 0 ||
        memcmp(text + len_bytes - (sizeof(END_TEXT) - 1), END_TEXT, sizeof(END_TEXT) - 1) != 0 ||
        !hex_read(text + len_bytes - END_BYTES + key, &said)) {
        return damaged(r, "the manifest does not end with its checksum");
    }
    if (said != sherdi_checksum(text, len_bytes - END_BYTES + key)) {
        return damaged(r, "the manifest does not match its checksum");
    }
    r->manifest->checksum = said;
    return SHERD_OK;
}

/* Reads a whole number from `least` to `most`. */
static sherd_status whole_read(const reader *r, const sherdi_json_node *object, const char *key,
                               int64_t least, int64_t most, int64_t *out)
{
    const sherdi_json_node *node = sherdi_json_find(object, key);
    char                    text[128];

    if (node == NULL || node->kind != SHERDI_JSON_NUMBER ||
        sherdi_json_integer(node, out) != SHERDI_JSON_FITS || *out < least || *out > most) {
        (void)snprintf(text, sizeof(text), "its %s is missing or out of range", key);
        return damaged(r, text);
    }
    return SHERD_OK;
}

static sherd_status size_read(const reader *r, const sherdi_json_node *object, const char *key,
                              size_t *out)
{
    int64_t value = 0;

    SHERDI_TRY(whole_read(r, object, key, 0, INT64_MAX, &value));
    *out = (size_t)value;
    return SHERD_OK;
}

static sherd_status int_read(const reader *r, const sherdi_json_node *object, const char *key,
                             int least, int most, int *out)
{
    int64_t value = 0;

    SHERDI_TRY(whole_read(r, object, key, least, most, &value));
    *out = (int)value;
    return SHERD_OK;
}

static const char *string_of(const sherdi_json_node *object, const char *key)
{
    const sherdi_json_node *node = sherdi_json_find(object, key);

    return node == NULL || node->kind != SHERDI_JSON_STRING ? NULL : node->string;
}

static sherd_status text_read(const reader *r, const sherdi_json_node *object, const char *key,
                              char *out, size_t out_bytes)
{
    const char *found = string_of(object, key);
    char        text[128];

    if (found == NULL || strlen(found) >= out_bytes) {
        (void)snprintf(text, sizeof(text), "its %s is missing or too long", key);
        return damaged(r, text);
    }
    memcpy(out, found, strlen(found) + 1);
    return SHERD_OK;
}

static sherd_status hash_read(const reader *r, const sherdi_json_node *object, const char *key,
                              uint64_t *out)
{
    char digits[SHERDI_HEX_DIGITS + 1];

    SHERDI_TRY(text_read(r, object, key, digits, sizeof(digits)));
    return strlen(digits) == SHERDI_HEX_DIGITS && hex_read(digits, out)
               ? SHERD_OK
               : damaged(r, "a hash has other than 16 hexadecimal digits");
}

static sherd_status array_find(const reader *r, const sherdi_json_node *object, const char *key,
                               const sherdi_json_node **out)
{
    char text[128];

    *out = sherdi_json_find(object, key);
    if (*out == NULL || (*out)->kind != SHERDI_JSON_ARRAY) {
        (void)snprintf(text, sizeof(text), "its list of %s is missing", key);
        return damaged(r, text);
    }
    return SHERD_OK;
}

static sherd_status shape_read(const reader *r, const sherdi_json_node *node,
                               sherdi_manifest_param *param)
{
    const sherdi_json_node *shape;

    SHERDI_TRY(array_find(r, node, "shape", &shape));
    param->elems = 1;
    for (const sherdi_json_node *d = sherdi_json_first(shape); d != NULL; d = sherdi_json_next(d)) {
        int64_t size = -1;

        if (param->ndim == SHERD_MAX_NDIM || d->kind != SHERDI_JSON_NUMBER ||
            sherdi_json_integer(d, &size) != SHERDI_JSON_FITS || size < 0 ||
            !sherdi_mul_fits(param->elems, (size_t)size, &param->elems)) {
            return damaged(r, "a parameter's shape is none");
        }
        param->shape[param->ndim++] = (size_t)size;
    }
    return SHERD_OK;
}

static sherd_status dtype_read(const reader *r, const sherdi_json_node *object, const char *key,
                               sherd_dtype *out)
{
    const char *name = string_of(object, key);

    for (int t = SHERD_F32; t <= SHERD_F16 && name != NULL; t++) {
        if (strcmp(name, sherd_dtype_name((sherd_dtype)t)) == 0) {
            *out = (sherd_dtype)t;
            return SHERD_OK;
        }
    }
    return damaged(r, "a compute type is none that this version knows");
}

static sherd_status param_read(const reader *r, const sherdi_json_node *node)
{
    sherdi_manifest        *m      = r->manifest;
    const char             *name   = string_of(node, "name");
    const sherdi_json_node *frozen = sherdi_json_find(node, "frozen");
    sherdi_manifest_param  *param;
    size_t                  end;
    size_t                  whole;

    SHERDI_TRY(sherdi_grow(m->mem, SHERDI_MEM_CONTROL, (void **)&m->params, &m->cap_params,
                           m->num_params + 1, sizeof(*m->params)));
    param = &m->params[m->num_params];
    if (name == NULL || name[0] == '\0' || frozen == NULL || frozen->kind != SHERDI_JSON_BOOL) {
        return damaged(r, "a parameter has no name, or does not say whether it is frozen");
    }
    param->name = sherdi_strdup(m->mem, name);
    if (param->name == NULL) {
        return SHERD_E_NOMEM;
    }
    m->num_params++;
    param->is_frozen = frozen->is_true;
    param->dtype     = m->compute_dtype;
    if (sherdi_json_find(node, "type") != NULL) {
        SHERDI_TRY(dtype_read(r, node, "type", &param->dtype));
    }
    SHERDI_TRY(shape_read(r, node, param));
    SHERDI_TRY(size_read(r, node, "segment", &param->segment));
    SHERDI_TRY(size_read(r, node, "offset", &param->offset_elems));
    if (param->segment >= m->num_segments ||
        m->segments[param->segment].is_frozen != param->is_frozen ||
        !sherdi_mul_fits(m->segments[param->segment].slice_elems, (size_t)m->world_size, &whole) ||
        !sherdi_add_fits(param->offset_elems, param->elems, &end) || end > whole) {
        return damaged(r, "a parameter lies outside of its segment");
    }
    return SHERD_OK;
}

static sherd_status params_read(const reader *r, const sherdi_json_node *root)
{
    const sherdi_json_node *all;

    SHERDI_TRY(array_find(r, root, "params", &all));
    for (const sherdi_json_node *n = sherdi_json_first(all); n != NULL; n = sherdi_json_next(n)) {
        SHERDI_TRY(param_read(r, n));
    }
    return SHERD_OK;
}

static sherd_status segment_parts_read(const reader *r, const sherdi_json_node *node, unsigned *out)
{
    const sherdi_json_node *all;
    unsigned                is_twice = 0;

    SHERDI_TRY(array_find(r, node, "parts", &all));
    *out = 0;
    for (const sherdi_json_node *n = sherdi_json_first(all); n != NULL; n = sherdi_json_next(n)) {
        int part =
            n->kind == SHERDI_JSON_STRING ? sherdi_manifest_find_part(r->manifest, n->string) : -1;

        if (part < 0) {
            return damaged(r, "a segment has a part of the state that its list of parts has not");
        }
        is_twice |= *out >> part & 1;
        *out |= 1u << part;
    }
    return !(*out & 1) ? damaged(r, "a segment has no master weights")
           : is_twice  ? damaged(r, "a segment names a part of the state twice")
                       : SHERD_OK;
}

/* Finds an optimizer by name and parts, or adds it the first time: SGD with momentum and SGD without it may both be there. */
static sherd_status optimizer_take(const reader *r, const sherdi_manifest_optimizer *wanted,
                                   int *out)
{
    sherdi_manifest *m = r->manifest;
    int              o = 0;

    while (o < m->num_optimizers &&
           (strcmp(m->optimizers[o].name, wanted->name) != 0 ||
            (m->optimizers[o].parts != 0 && m->optimizers[o].parts != wanted->parts))) {
        o++;
    }
    if (o == SHERDI_CHECKPOINT_OPTIMIZERS) {
        return damaged(r, "it has more optimizers than this version reads");
    }
    if (o == m->num_optimizers) {
        m->optimizers[m->num_optimizers++] = *wanted;
    }
    if (m->optimizers[o].parts == 0) { /* the head's optimizer: its first segment gives the parts */
        m->optimizers[o].parts = wanted->parts;
    }
    *out = o;
    return SHERD_OK;
}

/* A segment without an optimizer of its own has the head's, with all parts. */
static sherd_status segment_optimizer_read(const reader *r, const sherdi_json_node *node,
                                           sherdi_manifest_segment *segment)
{
    sherdi_manifest_optimizer wanted = r->manifest->optimizers[0];

    if (segment->is_frozen) {
        return SHERD_OK;
    }
    wanted.parts = (1u << r->manifest->num_parts) - 1;
    if (sherdi_json_find(node, "optimizer") != NULL) {
        SHERDI_TRY(text_read(r, node, "optimizer", wanted.name, sizeof(wanted.name)));
        SHERDI_TRY(segment_parts_read(r, node, &wanted.parts));
    }
    return optimizer_take(r, &wanted, &segment->optimizer);
}

static sherd_status segments_read(const reader *r, const sherdi_json_node *root)
{
    sherdi_manifest        *m = r->manifest;
    const sherdi_json_node *all;

    SHERDI_TRY(array_find(r, root, "segments", &all));
    for (const sherdi_json_node *n = sherdi_json_first(all); n != NULL; n = sherdi_json_next(n)) {
        const sherdi_json_node *frozen = sherdi_json_find(n, "frozen");

        SHERDI_TRY(sherdi_grow(m->mem, SHERDI_MEM_CONTROL, (void **)&m->segments, &m->cap_segments,
                               m->num_segments + 1, sizeof(*m->segments)));
        SHERDI_TRY(size_read(r, n, "slice", &m->segments[m->num_segments].slice_elems));
        m->segments[m->num_segments].is_frozen = frozen != NULL && frozen->is_true;
        SHERDI_TRY(segment_optimizer_read(r, n, &m->segments[m->num_segments]));
        m->num_segments++;
    }
    return SHERD_OK;
}

/* The name must be the one that follows from kind and rank, so no path that a manifest gives is ever opened. */
static sherd_status file_read(const reader *r, const sherdi_json_node *node)
{
    sherdi_manifest *m    = r->manifest;
    const char      *name = string_of(node, "name");
    char             expected[SHERDI_CHECKPOINT_NAME_BYTES];
    int              rank;

    SHERDI_TRY(int_read(r, node, "rank", 0, m->world_size - 1, &rank));
    for (int f = 0; f < SHERDI_DATA_FILES && name != NULL; f++) {
        sherdi_manifest_file *file = &m->files[rank][f];
        int64_t               bytes;

        sherdi_data_file_name((sherdi_data_file)f, rank, m->world_size, expected);
        if (strcmp(name, expected) != 0) {
            continue;
        }
        SHERDI_TRY(whole_read(r, node, "bytes", 1, INT64_MAX, &bytes));
        if (file->bytes != 0) {
            return damaged(r, "a data file is named twice");
        }
        file->bytes = (uint64_t)bytes;
        return hash_read(r, node, "header_checksum", &file->header_checksum);
    }
    return damaged(r, "a data file has another name than its rank says");
}

static sherd_status files_read(const reader *r, const sherdi_json_node *root)
{
    sherdi_manifest        *m = r->manifest;
    const sherdi_json_node *all;

    SHERDI_TRY(array_find(r, root, "files", &all));
    m->files =
        sherdi_alloc_array(m->mem, SHERDI_MEM_CONTROL, (size_t)m->world_size, sizeof(*m->files));
    if (m->files == NULL) {
        return SHERD_E_NOMEM;
    }
    for (const sherdi_json_node *n = sherdi_json_first(all); n != NULL; n = sherdi_json_next(n)) {
        SHERDI_TRY(file_read(r, n));
    }
    return SHERD_OK;
}

/* Earlier versions did not write "held"; that means fp32. */
static sherd_status held_read(const reader *r, const sherdi_json_node *node, const char **out)
{
    char name[16];

    if (sherdi_json_find(node, "held") == NULL) {
        return SHERD_OK;
    }
    SHERDI_TRY(text_read(r, node, "held", name, sizeof(name)));
    for (int e = 0; e < SHERDI_ENCODINGS; e++) {
        if (strcmp(name, sherdi_encoding_name((sherdi_encoding)e)) == 0) {
            *out = sherdi_encoding_name((sherdi_encoding)e);
            return SHERD_OK;
        }
    }
    return damaged(r,
                   "a part of the state was held in an encoding that this version does not know");
}

static sherd_status parts_read(const reader *r, const sherdi_json_node *root)
{
    sherdi_manifest        *m = r->manifest;
    const sherdi_json_node *all;
    char                    encoding[8];

    SHERDI_TRY(array_find(r, root, "parts", &all));
    for (const sherdi_json_node *n = sherdi_json_first(all); n != NULL; n = sherdi_json_next(n)) {
        if (m->num_parts == SHERDI_CHECKPOINT_PARTS) {
            return damaged(r, "it has more parts of the state than this version reads");
        }
        SHERDI_TRY(text_read(r, n, "name", m->parts[m->num_parts], sizeof(m->parts[0])));
        SHERDI_TRY(text_read(r, n, "encoding", encoding, sizeof(encoding)));
        if (strcmp(encoding, "F32") != 0) {
            return damaged(r,
                           "a part of the state has an encoding that this version does not read");
        }
        SHERDI_TRY(held_read(r, n, &m->held[m->num_parts]));
        m->num_parts++;
    }
    return m->num_parts == 0 || strcmp(m->parts[0], "master") != 0
               ? damaged(r, "its first part is not the master weights")
               : SHERD_OK;
}

static sherd_status number_read(const reader *r, const sherdi_json_node *object, const char *key,
                                double *out)
{
    const sherdi_json_node *node = sherdi_json_find(object, key);

    if (node == NULL || node->kind != SHERDI_JSON_NUMBER || !(node->number > 0)) {
        return damaged(r, "the loss scaler has no scale");
    }
    *out = node->number;
    return SHERD_OK;
}

static sherd_status scaler_read(const reader *r, const sherdi_json_node *root)
{
    const sherdi_json_node *node   = sherdi_json_find(root, "loss_scaler");
    sherdi_scaler          *scaler = &r->manifest->scaler;
    const sherdi_json_node *dynamic;

    if (node == NULL) {
        return damaged(r, "its loss scaler is missing");
    }
    dynamic                   = sherdi_json_find(node, "dynamic"); /* earlier versions lack it */
    scaler->params.is_dynamic = dynamic == NULL || dynamic->kind != SHERDI_JSON_BOOL
                                    ? r->manifest->compute_dtype == SHERD_F16
                                    : dynamic->is_true;
    SHERDI_TRY(number_read(r, node, "scale", &scaler->scale));
    SHERDI_TRY(
        int_read(r, node, "hysteresis_left", INT32_MIN, INT32_MAX, &scaler->hysteresis_left));
    SHERDI_TRY(whole_read(r, node, "iteration", 0, MOST_COUNT, &scaler->iteration));
    return whole_read(r, node, "last_overflow", -1, MOST_COUNT, &scaler->last_overflow);
}

static sherd_status format_check(const reader *r, const sherdi_json_node *root)
{
    int64_t format = 0;
    int64_t extent = 0;

    SHERDI_TRY(whole_read(r, root, SHERDI_MANIFEST_KEY, 1, INT32_MAX, &format));
    if (format != SHERDI_CHECKPOINT_FORMAT) {
        return sherdi_fail(SHERD_E_INVAL,
                           "%s is of format %lld, and this version of sherd reads format %d; load "
                           "it with the version that wrote it",
                           r->path, (long long)format, SHERDI_CHECKPOINT_FORMAT);
    }
    return whole_read(r, root, "extent_bytes", (int64_t)SHERDI_CHECKPOINT_EXTENT_BYTES,
                      (int64_t)SHERDI_CHECKPOINT_EXTENT_BYTES, &extent);
}

static sherd_status head_read(const reader *r, const sherdi_json_node *root)
{
    sherdi_manifest *m = r->manifest;
    size_t           bytes;

    SHERDI_TRY(text_read(r, root, "version", m->version, sizeof(m->version)));
    SHERDI_TRY(text_read(r, root, "tag", m->tag, sizeof(m->tag)));
    SHERDI_TRY(whole_read(r, root, "saved", 0, INT64_MAX, &m->saved_s));
    SHERDI_TRY(int_read(r, root, "world_size", 1, r->most_ranks, &m->world_size));
    SHERDI_TRY(int_read(r, root, "stage", 0, 3, &m->stage));
    SHERDI_TRY(
        text_read(r, root, "optimizer", m->optimizers[0].name, sizeof(m->optimizers[0].name)));
    m->num_optimizers = 1;
    SHERDI_TRY(whole_read(r, root, "step", 0, MOST_COUNT, &m->step));
    SHERDI_TRY(whole_read(r, root, "micro_step", 0, MOST_COUNT, &m->micro_step));
    SHERDI_TRY(whole_read(r, root, "skipped_steps", 0, MOST_COUNT, &m->skipped_steps));
    SHERDI_TRY(int_read(r, root, "gradient_accumulation_steps", 1, INT32_MAX, &m->accumulation));
    SHERDI_TRY(
        int_read(r, root, "train_micro_batch_size_per_gpu", 0, INT32_MAX, &m->micro_batch_size));
    m->samples = sherdi_samples(m->micro_step, m->micro_batch_size, m->world_size);
    if (sherdi_json_find(root, "samples") != NULL) { /* earlier versions did not write it */
        SHERDI_TRY(whole_read(r, root, "samples", INT64_MIN, INT64_MAX, &m->samples));
    }
    SHERDI_TRY(text_read(r, root, "run", m->run_text, sizeof(m->run_text)));
    SHERDI_TRY(hash_read(r, root, "fingerprint", &m->fingerprint));
    SHERDI_TRY(hash_read(r, root, "frozen_fingerprint", &m->frozen_fingerprint));
    m->has_state_fingerprint = string_of(root, "state_fingerprint") != NULL;
    if (m->has_state_fingerprint) {
        SHERDI_TRY(hash_read(r, root, "state_fingerprint", &m->state_fingerprint));
    }
    SHERDI_TRY(size_read(r, root, "data_bytes", &bytes));
    m->data_bytes = bytes;
    return SHERD_OK;
}

static sherd_status root_read(const reader *r, const sherdi_json_node *root)
{
    SHERDI_TRY(format_check(r, root));
    SHERDI_TRY(head_read(r, root));
    SHERDI_TRY(dtype_read(r, root, "compute_type", &r->manifest->compute_dtype));
    SHERDI_TRY(scaler_read(r, root));
    SHERDI_TRY(parts_read(r, root));
    SHERDI_TRY(segments_read(r, root));
    SHERDI_TRY(params_read(r, root));
    return files_read(r, root);
}

sherd_status sherdi_manifest_parse(sherdi_manifest *manifest, sherdi_mem *mem, const char *path,
                                   const char *text, size_t len_bytes)
{
    reader       r    = {.manifest = manifest, .path = path};
    sherdi_json *json = NULL;
    sherd_status status;

    /* Tables have a row for each rank, so the length of the text limits the ranks: a short text then takes little memory. Ranks
     * without data are not in the text, but no real model has a hundred times as many ranks as chunks of 64 elements. */
    r.most_ranks = len_bytes < MOST_RANKS ? (int)len_bytes : MOST_RANKS;
    sherdi_manifest_init(manifest, mem);
    SHERDI_TRY(checksum_check(&r, text, len_bytes));
    SHERDI_TRY(sherdi_json_parse(mem, path, text, len_bytes, &json));
    status = root_read(&r, sherdi_json_root(json));
    sherdi_json_destroy(json);
    if (status != SHERD_OK) {
        sherdi_manifest_fini(manifest);
    }
    return status;
}

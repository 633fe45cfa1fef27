/* Writes and reads the manifest as JSON. See manifest.h. */
#include "engine/checkpoint/manifest.h"

#include "base/checked.h"
#include "engine/checkpoint/bytes.h"
#include "engine/checkpoint/fields.h"
#include "engine/config/config.h"
#include "offload/checksum.h"
#include "engine/plan/checkpoint.h"

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
    sherdi_free(manifest->hosts);
    sherdi_manifest_init(manifest, manifest->mem);
}

static const char *const DATA_FILE_NAMES[SHERDI_DATA_FILES] = {"rank", "frozen"};

void sherdi_data_file_name(sherdi_data_file which, int rank, int world_size,
                           char out[SHERDI_CHECKPOINT_NAME_BYTES])
{
    (void)snprintf(out, SHERDI_CHECKPOINT_NAME_BYTES, "%s-%05d-of-%05d.safetensors",
                   DATA_FILE_NAMES[which], rank, world_size);
}

int sherdi_manifest_next_file(const sherdi_manifest *manifest, int *at,
                              char name[SHERDI_CHECKPOINT_NAME_BYTES])
{
    int end = manifest->world_size * SHERDI_DATA_FILES;

    do {
        ++*at;
    } while (*at < end && (&manifest->files[0][0])[*at].bytes == 0);
    sherdi_data_file_name((sherdi_data_file)(*at % SHERDI_DATA_FILES), *at / SHERDI_DATA_FILES,
                          manifest->world_size, name);
    return *at < end;
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

/* -------------------------------------------------------------------- fields -- */

static const char *dtype_name(const void *root, int dtype)
{
    (void)root;
    return dtype > SHERD_F16 ? NULL : sherd_dtype_name((sherd_dtype)dtype);
}

static const char *part_name(const void *root, int part)
{
    const sherdi_manifest *m = root;

    return part < m->num_parts ? m->parts[part].name : NULL;
}

/* Of a part that no parameter has (-1) the name is that of fp32. */
static const char *held_name(const void *root, int encoding)
{
    (void)root;
    return encoding < 0                  ? sherdi_encoding_name(SHERDI_ENCODING_F32)
           : encoding < SHERDI_ENCODINGS ? sherdi_encoding_name((sherdi_encoding)encoding)
                                         : NULL;
}

/* Files have fp32, whatever the encoding of the run was. */
static const char *encoding_name(const void *root, int encoding)
{
    (void)root;
    return encoding == 0 ? "F32" : NULL;
}

static const sherdi_field PART[] = {
    SHERDI_FIELD(TEXT, "name", sherdi_manifest_part, name),
    {.type = SHERDI_FIELD_NAME, .key = "encoding", .name = encoding_name},
    SHERDI_FIELD(NAME, "held", sherdi_manifest_part, held, .name = held_name,
                 .since = "2026-11-22"),
    SHERDI_FIELD_END,
};

static const sherdi_field SCALER[] = {
    SHERDI_FIELD(FLAG, "dynamic", sherdi_manifest, scaler.params.is_dynamic, .since = "2026-11-26"),
    SHERDI_FIELD(REAL, "scale", sherdi_manifest, scaler.scale),
    SHERDI_FIELD(NUMBER, "hysteresis_left", sherdi_manifest, scaler.hysteresis_left,
                 .least = INT32_MIN),
    SHERDI_FIELD(NUMBER, "iteration", sherdi_manifest, scaler.iteration, .most = MOST_COUNT),
    SHERDI_FIELD(NUMBER, "last_overflow", sherdi_manifest, scaler.last_overflow, .least = -1,
                 .most = MOST_COUNT),
    SHERDI_FIELD_END,
};

static const sherdi_field SIZE[] = {
    {.type = SHERDI_FIELD_NUMBER, .key = "dimension", .bytes = sizeof(size_t)},
    SHERDI_FIELD_END,
};

static const sherdi_field PARAM[] = {
    SHERDI_FIELD(STRING, "name", sherdi_manifest_param, name, .least = 1),
    SHERDI_FIELD_LIST_IN("shape", sherdi_manifest_param, shape, ndim, SHERD_MAX_NDIM, SIZE),
    SHERDI_FIELD(FLAG, "frozen", sherdi_manifest_param, is_frozen),
    SHERDI_FIELD_IF(has_dtype, NAME, "type", sherdi_manifest_param, dtype, .name = dtype_name),
    SHERDI_FIELD(NUMBER, "segment", sherdi_manifest_param, segment),
    SHERDI_FIELD(NUMBER, "offset", sherdi_manifest_param, offset_elems),
    SHERDI_FIELD_END,
};

static const sherdi_field NAMED[] = {
    {.type = SHERDI_FIELD_NAME, .key = "part", .bytes = sizeof(int), .name = part_name},
    SHERDI_FIELD_END,
};

static const sherdi_field SEGMENT[] = {
    SHERDI_FIELD(NUMBER, "slice", sherdi_manifest_segment, slice_elems),
    SHERDI_FIELD(FLAG, "frozen", sherdi_manifest_segment, is_frozen),
    SHERDI_FIELD_IF(has_optimizer, TEXT, "optimizer", sherdi_manifest_segment, optimizer.name),
    SHERDI_FIELD_LIST_IN("parts", sherdi_manifest_segment, named, num_named,
                         SHERDI_CHECKPOINT_PARTS, NAMED,
                         .has = offsetof(sherdi_manifest_segment, has_optimizer)),
    SHERDI_FIELD_END,
};

/* A data file. */
typedef struct file_row {
    char                 name[SHERDI_CHECKPOINT_NAME_BYTES];
    int                  rank;
    int                  has_host;
    char                 host[SHERDI_CHECKPOINT_HOST_BYTES];
    sherdi_manifest_file file;
} file_row;

static const sherdi_field FILE_ROW[] = {
    SHERDI_FIELD(TEXT, "name", file_row, name),
    SHERDI_FIELD(NUMBER, "rank", file_row, rank, .most = MOST_RANKS),
    SHERDI_FIELD_IF(has_host, TEXT, "host", file_row, host),
    SHERDI_FIELD(NUMBER, "bytes", file_row, file.bytes, .least = 1),
    SHERDI_FIELD(HASH, "header_checksum", file_row, file.header_checksum),
    SHERDI_FIELD_END,
};

static const sherdi_field HEAD[] = {
    {.type  = SHERDI_FIELD_NUMBER,
     .key   = SHERDI_MANIFEST_KEY,
     .least = SHERDI_CHECKPOINT_FORMAT,
     .most  = SHERDI_CHECKPOINT_FORMAT},
    SHERDI_FIELD(TEXT, "version", sherdi_manifest, version),
    SHERDI_FIELD(TEXT, "tag", sherdi_manifest, tag),
    SHERDI_FIELD(NUMBER, "saved", sherdi_manifest, saved_s),
    SHERDI_FIELD(NUMBER, "world_size", sherdi_manifest, world_size, .least = 1, .most = MOST_RANKS),
    SHERDI_FIELD(NUMBER, "stage", sherdi_manifest, stage, .most = 3),
    SHERDI_FIELD(NAME, "compute_type", sherdi_manifest, compute_dtype, .name = dtype_name),
    SHERDI_FIELD(TEXT, "optimizer", sherdi_manifest, optimizers[0].name),
    SHERDI_FIELD_LIST_IN("parts", sherdi_manifest, parts, num_parts, SHERDI_CHECKPOINT_PARTS, PART),
    SHERDI_FIELD(NUMBER, "step", sherdi_manifest, step, .most = MOST_COUNT),
    SHERDI_FIELD(NUMBER, "micro_step", sherdi_manifest, micro_step, .most = MOST_COUNT),
    SHERDI_FIELD(NUMBER, "skipped_steps", sherdi_manifest, skipped_steps, .most = MOST_COUNT),
    SHERDI_FIELD(NUMBER, "samples", sherdi_manifest, samples, .least = INT64_MIN,
                 .since = "2026-11-25"),
    SHERDI_FIELD(NUMBER, "gradient_accumulation_steps", sherdi_manifest, accumulation, .least = 1),
    SHERDI_FIELD(NUMBER, "train_micro_batch_size_per_gpu", sherdi_manifest, micro_batch_size),
    SHERDI_FIELD(TEXT, "run", sherdi_manifest, run_text),
    {.type = SHERDI_FIELD_OBJECT, .key = "loss_scaler", .fields = SCALER},
    SHERDI_FIELD(HASH, "fingerprint", sherdi_manifest, fingerprint),
    SHERDI_FIELD(HASH, "frozen_fingerprint", sherdi_manifest, frozen_fingerprint),
    SHERDI_FIELD_IF(has_state_fingerprint, HASH, "state_fingerprint", sherdi_manifest,
                    state_fingerprint),
    SHERDI_FIELD(NUMBER, "data_bytes", sherdi_manifest, data_bytes),
    {.type  = SHERDI_FIELD_NUMBER,
     .key   = "extent_bytes",
     .least = SHERDI_CHECKPOINT_EXTENT_BYTES,
     .most  = SHERDI_CHECKPOINT_EXTENT_BYTES},
    SHERDI_FIELD_LIST_AT("params", sherdi_manifest, params, num_params, cap_params, PARAM),
    SHERDI_FIELD_LIST_AT("segments", sherdi_manifest, segments, num_segments, cap_segments,
                         SEGMENT),
    SHERDI_FIELD_END,
};

/* ------------------------------------------------------------------- writing -- */

static json_t *files_json(const sherdi_manifest *m)
{
    json_t  *all = json_array();
    file_row row;

    for (int at = -1; sherdi_manifest_next_file(m, &at, row.name);) {
        row.rank = at / SHERDI_DATA_FILES;
        row.file = (&m->files[0][0])[at];
        (void)snprintf(row.host, sizeof(row.host), "%s", sherdi_manifest_host(m, row.rank));
        row.has_host = row.host[0] != '\0';
        (void)json_array_append_new(all, sherdi_fields_json(FILE_ROW, m, &row));
    }
    return all;
}

static json_t *manifest_json(const sherdi_manifest *m)
{
    json_t *json = sherdi_fields_json(HEAD, m, m);

    (void)json_object_set_new(json, "files", files_json(m));
    return json;
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
    at = len - strlen("\n}"); /* the checksum replaces the last bracket */
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
        if (strcmp(manifest->parts[i].name, name) == 0) {
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

/* Checks the checksum, before anything in the text is trusted. */
static sherd_status checksum_check(const sherdi_fields_reader *r, const char *text,
                                   size_t len_bytes, uint64_t *out)
{
    size_t   key = sizeof(CHECKSUM_KEY) - 1;
    uint64_t said;

    SHERDI_TRY(sherdi_checksum_check_built());
    if (len_bytes < END_BYTES) {
        return sherdi_fields_damaged(r, "the manifest is cut off");
    }
    if (memcmp(text + len_bytes - END_BYTES, CHECKSUM_KEY, key) != 0 ||
        memcmp(text + len_bytes - (sizeof(END_TEXT) - 1), END_TEXT, sizeof(END_TEXT) - 1) != 0 ||
        !sherdi_hash_read(text + len_bytes - END_BYTES + key, &said)) {
        return sherdi_fields_damaged(r, "the manifest does not end with its checksum");
    }
    if (said != sherdi_checksum(text, len_bytes - END_BYTES + key)) {
        return sherdi_fields_damaged(r, "the manifest does not match its checksum");
    }
    *out = said;
    return SHERD_OK;
}

/* Adds an optimizer to the list the first time: SGD with momentum and SGD without it may both be
 * there. The head's optimizer has the parts of its first segment. */
static sherd_status optimizer_take(const sherdi_fields_reader *r, sherdi_manifest *m,
                                   const sherdi_manifest_optimizer *own)
{
    int o = 0;

    while (o < m->num_optimizers &&
           (strcmp(m->optimizers[o].name, own->name) != 0 ||
            (m->optimizers[o].parts != 0 && m->optimizers[o].parts != own->parts))) {
        o++;
    }
    if (o == SHERDI_CHECKPOINT_OPTIMIZERS) {
        return sherdi_fields_damaged(r, "it has more optimizers than this version reads");
    }
    m->num_optimizers = o == m->num_optimizers ? o + 1 : m->num_optimizers;
    m->optimizers[o]  = *own;
    return SHERD_OK;
}

/* A segment without an optimizer of its own has the head's, with all parts. */
static sherd_status segments_check(const sherdi_fields_reader *r, sherdi_manifest *m)
{
    m->num_optimizers = 1;
    for (size_t s = 0; s < m->num_segments; s++) {
        sherdi_manifest_segment *segment  = &m->segments[s];
        unsigned                 is_twice = 0;

        if (segment->is_frozen) {
            continue;
        }
        if (!segment->has_optimizer && segment->optimizer.name[0] != '\0') {
            return sherdi_fields_damaged(r, "a segment has an optimizer and no list of parts");
        }
        if (!segment->has_optimizer) {
            segment->optimizer       = m->optimizers[0];
            segment->optimizer.parts = (1u << m->num_parts) - 1;
        }
        for (int i = 0; i < segment->num_named; i++) {
            is_twice |= segment->optimizer.parts >> segment->named[i] & 1;
            segment->optimizer.parts |= 1u << segment->named[i];
        }
        if (!(segment->optimizer.parts & 1) || is_twice) {
            return sherdi_fields_damaged(r, segment->optimizer.parts & 1
                                                ? "a segment names a part of the state twice"
                                                : "a segment has no master weights");
        }
        SHERDI_TRY(optimizer_take(r, m, &segment->optimizer));
    }
    return SHERD_OK;
}

static sherd_status params_check(const sherdi_fields_reader *r, sherdi_manifest *m)
{
    size_t whole;
    size_t end;

    for (size_t p = 0; p < m->num_params; p++) {
        sherdi_manifest_param         *param = &m->params[p];
        const sherdi_manifest_segment *segment =
            param->segment < m->num_segments ? &m->segments[param->segment] : NULL;

        param->dtype = param->has_dtype ? param->dtype : m->compute_dtype;
        param->elems = 1;
        for (int d = 0; d < param->ndim; d++) {
            if (!sherdi_mul_fits(param->elems, param->shape[d], &param->elems)) {
                return sherdi_fields_damaged(r, "a parameter's shape is none");
            }
        }
        if (segment == NULL || segment->is_frozen != param->is_frozen ||
            !sherdi_mul_fits(segment->slice_elems, (size_t)m->world_size, &whole) ||
            !sherdi_add_fits(param->offset_elems, param->elems, &end) || end > whole) {
            return sherdi_fields_damaged(r, "a parameter lies outside of its segment");
        }
    }
    return SHERD_OK;
}

/* Messages have the name, so it must be as plain as names of hosts are. */
static sherd_status host_take(const sherdi_fields_reader *r, sherdi_manifest *m,
                              const file_row *row)
{
    if (!row->has_host) {
        return SHERD_OK;
    }
    for (const char *at = row->host; at == row->host || *at != '\0'; at++) {
        if (*at <= ' ' || *at > '~') {
            return sherdi_fields_damaged(r, "a data file has a host whose name is none");
        }
    }
    if (m->hosts == NULL) {
        m->hosts = sherdi_alloc_array(m->mem, SHERDI_MEM_CONTROL, (size_t)m->world_size,
                                      sizeof(*m->hosts));
    }
    if (m->hosts == NULL) {
        return SHERD_E_NOMEM;
    }
    (void)snprintf(m->hosts[row->rank], sizeof(row->host), "%s", row->host);
    return SHERD_OK;
}

/* The name must be the one that follows from kind and rank, so no path that a manifest gives is
 * ever opened. */
static sherd_status file_take(const sherdi_fields_reader *r, sherdi_manifest *m,
                              const file_row *row)
{
    char expected[SHERDI_CHECKPOINT_NAME_BYTES];

    for (int f = 0; f < SHERDI_DATA_FILES && row->rank < m->world_size; f++) {
        sherdi_manifest_file *file = &m->files[row->rank][f];

        sherdi_data_file_name((sherdi_data_file)f, row->rank, m->world_size, expected);
        if (strcmp(row->name, expected) == 0 && file->bytes == 0) {
            *file = row->file;
            return host_take(r, m, row);
        }
    }
    return sherdi_fields_damaged(
        r, "a data file has another name than its rank says, or is named twice");
}

/* `files` is NULL if there is no list of them. */
static sherd_status files_read(sherdi_fields_reader *r, const sherdi_json_node *files,
                               sherdi_manifest *m)
{
    file_row row;

    if (files == NULL || files->kind != SHERDI_JSON_ARRAY) {
        return sherdi_fields_damaged(r, "its list of files is missing");
    }
    m->files =
        sherdi_alloc_array(m->mem, SHERDI_MEM_CONTROL, (size_t)m->world_size, sizeof(*m->files));
    if (m->files == NULL) {
        return SHERD_E_NOMEM;
    }
    for (files = sherdi_json_first(files); files != NULL; files = sherdi_json_next(files)) {
        SHERDI_TRY(sherdi_fields_read(r, FILE_ROW, files, &row));
        SHERDI_TRY(file_take(r, m, &row));
    }
    return SHERD_OK;
}

static sherd_status head_check(const sherdi_fields_reader *r, sherdi_manifest *m, int most_ranks)
{
    if (m->world_size > most_ranks) {
        return sherdi_fields_damaged(r, "its world_size is more than a text of its length has");
    }
    if (m->num_parts == 0 || strcmp(m->parts[0].name, "master") != 0) {
        return sherdi_fields_damaged(r, "its first part is not the master weights");
    }
    if (m->samples == -1) {
        m->samples = sherdi_samples(m->micro_step, m->micro_batch_size, m->world_size);
    }
    if (m->scaler.params.is_dynamic == -1) {
        m->scaler.params.is_dynamic = m->compute_dtype == SHERD_F16;
    }
    return SHERD_OK;
}

static sherd_status root_read(sherdi_fields_reader *r, const sherdi_json_node *root,
                              sherdi_manifest *m, int most_ranks)
{
    const sherdi_json_node *format = sherdi_json_find(root, SHERDI_MANIFEST_KEY);

    if (format != NULL && format->number > SHERDI_CHECKPOINT_FORMAT) {
        return sherdi_fail(SHERD_E_INVAL,
                           "%s is of format %g, and this version of sherd reads format %d; load "
                           "it with the version that wrote it",
                           r->label, format->number, SHERDI_CHECKPOINT_FORMAT);
    }
    m->samples                  = -1; /* for files from before these fields */
    m->scaler.params.is_dynamic = -1;
    SHERDI_TRY(sherdi_fields_read(r, HEAD, root, m));
    SHERDI_TRY(head_check(r, m, most_ranks));
    SHERDI_TRY(segments_check(r, m));
    SHERDI_TRY(params_check(r, m));
    return files_read(r, sherdi_json_find(root, "files"), m);
}

sherd_status sherdi_manifest_parse(sherdi_manifest *manifest, sherdi_mem *mem, const char *path,
                                   const char *text, size_t len_bytes)
{
    sherdi_fields_reader r    = {.mem   = mem,
                                 .label = path,
                                 .sentence =
                                     "%s: %s; the checkpoint is damaged, or no checkpoint of sherd",
                                 .root = manifest};
    sherdi_json         *json = NULL;
    sherd_status         status;

    sherdi_manifest_init(manifest, mem);
    SHERDI_TRY(checksum_check(&r, text, len_bytes, &manifest->checksum));
    SHERDI_TRY(sherdi_json_parse(mem, path, text, len_bytes, &json));
    /* Tables have a row for each rank, so the length of the text limits the ranks: a short text
     * then takes little memory. Ranks without data are not in the text, but no real model has a
     * hundred times as many ranks as chunks of 64 elements. */
    status = root_read(&r, sherdi_json_root(json), manifest,
                       (int)sherdi_min_size(len_bytes, MOST_RANKS));
    sherdi_json_destroy(json);
    if (status != SHERD_OK) {
        sherdi_manifest_fini(manifest);
    }
    return status;
}

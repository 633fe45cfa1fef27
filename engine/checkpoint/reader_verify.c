/* Reads a data file from end to end and checks every byte against its checksum, every tensor
 * against the manifest. See reader.h. */
#include "engine/checkpoint/reader_impl.h"

#include "base/checked.h"
#include "engine/checkpoint/shard.h"

#include <stdio.h>
#include <string.h>

/* A file that is read from end to end. */
typedef struct verifying {
    sherdi_reader             *reader;
    sherdi_reader_file        *file;
    const sherdi_reader_watch *watch;
    sherdi_data_file           which;
    int                        rank;
    char                       path[SHERDI_CHECKPOINT_PATH_BYTES];
} verifying;

static void damage_report(const verifying *v, const char *tensor, size_t begin, size_t len_bytes,
                          const char *what)
{
    v->watch->damage(v->watch->ctx, &(sherdi_reader_damage){.file      = v->path,
                                                            .tensor    = tensor,
                                                            .begin     = begin,
                                                            .len_bytes = len_bytes,
                                                            .what      = what});
}

/* Reports all tensors that have bytes in a damaged extent, since the checksum does not say which of
 * them is damaged. */
static void extent_report(const verifying *v, size_t begin, size_t len_bytes)
{
    const sherdi_safetensors *header = v->file->header;

    for (size_t t = 0; t < header->num_tensors; t++) {
        const sherdi_tensor *tensor = &header->tensors[t];

        if (tensor->begin < begin + len_bytes && tensor->end > begin) {
            damage_report(v, tensor->name, header->data_at + begin, len_bytes,
                          "bytes do not match their checksum");
        }
    }
}

static void slot_verify(const verifying *v, sherdi_reader_slot *s)
{
    sherdi_reader *reader   = v->reader;
    size_t         len      = sherdi_reader_slot_len(reader, s->file, s->number);
    int            is_whole = 1;
    size_t         some;

    for (size_t at = 0; at < len; at += SHERDI_CHECKPOINT_EXTENT_BYTES) {
        if (!sherdi_reader_extent_is_whole(reader, s, at, &some)) {
            extent_report(v, s->number * reader->params.slot_bytes + at, some);
            is_whole = 0;
        }
    }
    if (!is_whole) {
        *s = (sherdi_reader_slot){.file = NULL}; /* so that no values are taken from it */
    }
}

static void data_verify(const verifying *v)
{
    sherdi_reader *reader = v->reader;
    size_t         bytes  = v->file->header->data_bytes;

    for (size_t n = 0; n * reader->params.slot_bytes < bytes; n++) {
        size_t              len = sherdi_reader_slot_len(reader, v->file, n);
        sherdi_reader_slot *s;
        int                 is_new;

        if (sherdi_reader_fetch(reader, n, &s, &is_new) != SHERD_OK) {
            damage_report(v, NULL, v->file->header->data_at + n * reader->params.slot_bytes, len,
                          sherd_last_error());
        } else if (is_new) {
            slot_verify(v, s);
        }
        if (v->watch->progress != NULL) {
            v->watch->progress(v->watch->ctx, len);
        }
    }
}

/* Checks the rank's linked state. A damaged extent is reported for every tensor that has bytes in
 * it. */
static sherd_status linked_verify(verifying *v)
{
    size_t extents = v->file->linked == NULL ? 0 : sherdi_linked_extents(v->file->linked);
    char   name[SHERDI_CHECKPOINT_NAME_BYTES];

    sherdi_linked_name(v->rank, v->reader->manifest.world_size, name);
    SHERDI_TRY(sherdi_checkpoint_path(v->reader->params.dir, v->reader->params.tag, name, v->path));
    for (size_t e = 0; e < extents; e++) {
        const unsigned char *memory;
        sherd_status         status = sherdi_reader_extent(v->reader, v->file, e, &memory);

        for (size_t t = 0; t < sherdi_linked_count(v->file->linked) && status != SHERD_OK; t++) {
            const sherdi_linked_tensor *at = sherdi_linked_tensor_at(v->file->linked, t);

            if (sherdi_linked_tensor_lies_in(at, e)) {
                damage_report(v, at->name, 0, 0, sherd_last_error());
            }
        }
        if (v->watch->progress != NULL) {
            v->watch->progress(v->watch->ctx, sherdi_linked_extent_bytes(v->file->linked, e));
        }
    }
    return SHERD_OK;
}

/* Returns the range of a parameter that this rank saved, by the manifest: [*first, *first + count).
 * Returns count. */
static size_t share_of(const verifying *v, const sherdi_manifest_param *param, size_t *first)
{
    size_t slice = v->reader->manifest.segments[param->segment].slice_elems;
    size_t begin = sherdi_max_size((size_t)v->rank * slice, param->offset_elems);
    size_t end = sherdi_min_size(((size_t)v->rank + 1) * slice, param->offset_elems + param->elems);

    *first = begin - param->offset_elems;
    return begin < end ? end - begin : 0;
}

/* Checks one part of a parameter: the file's tensors must have each element of the rank's share
 * once. */
static void part_verify(const verifying *v, size_t param, int part)
{
    const sherdi_manifest_param *p   = &v->reader->manifest.params[param];
    const sherdi_reader_found   *end = v->file->tensors + v->file->num_tensors;
    size_t                       first;
    size_t                       count = share_of(v, p, &first);
    const sherdi_reader_found   *at;
    char                         what[128];

    at = count == 0 ? NULL : sherdi_reader_tensor(v->file, param, part, first);
    while (count > 0 && at != NULL && at < end && at->param == param && at->part == part &&
           at->first == first && at->count <= count) {
        first += at->count;
        count -= at->count;
        at++;
    }
    if (count > 0 || (at != NULL && at < end && at->param == param && at->part == part)) {
        (void)snprintf(what, sizeof(what),
                       "its elements of %s are not there once each, from element %zu on",
                       part == 0 ? "master" : v->reader->manifest.parts[part].name, first);
        damage_report(v, p->name, 0, 0, what);
    }
}

static void parts_verify(const verifying *v)
{
    const sherdi_manifest *m = &v->reader->manifest;

    for (size_t p = 0; p < m->num_params; p++) {
        if (m->params[p].is_frozen != (v->which == SHERDI_DATA_FROZEN)) {
            continue;
        }
        for (int part = 0; part < m->num_parts; part++) {
            if (sherdi_manifest_has_part(m, p, part)) {
                part_verify(v, p, part);
            }
        }
    }
}

/* Checks that a tensor belongs to a parameter and a part that the manifest knows, or is a blob. */
static sherd_status tensor_verify(const verifying *v, const sherdi_tensor *tensor)
{
    char               *text  = sherdi_strdup(v->reader->params.mem, tensor->name);
    sherdi_reader_found ours  = {.count = 0};
    int                 is_ok = 0;
    int                 is_large;

    if (text == NULL) {
        return SHERD_E_NOMEM;
    }
    if (sherdi_reader_blob_key(tensor, SHERDI_BLOB_GLOBAL, &is_large) != NULL ||
        sherdi_reader_blob_key(tensor, SHERDI_BLOB_OF_RANK, &is_large) != NULL) {
        is_ok = 1;
    } else if (sherdi_reader_take(v->reader, tensor, v->which, text, &ours)) {
        is_ok =
            sherdi_reader_dtype_fits(v->reader, v->which, ours.param, tensor->dtype) &&
            v->reader->manifest.params[ours.param].is_frozen == (v->which == SHERDI_DATA_FROZEN) &&
            sherdi_manifest_has_part(&v->reader->manifest, ours.param, ours.part);
    }
    sherdi_free(text);
    if (!is_ok) {
        damage_report(v, tensor->name, v->file->header->data_at + tensor->begin,
                      tensor->end - tensor->begin,
                      "no parameter of the manifest has such a tensor");
    }
    return SHERD_OK;
}

/* Returns whether the file need not exist: by the manifest, the rank had nothing to save in it. */
static int is_needless(const verifying *v)
{
    const sherdi_manifest *m = &v->reader->manifest;
    size_t                 first;

    for (size_t p = 0; p < m->num_params; p++) {
        if (m->params[p].is_frozen == (v->which == SHERDI_DATA_FROZEN) &&
            share_of(v, &m->params[p], &first) > 0) {
            return 0;
        }
    }
    return 1;
}

sherd_status sherdi_reader_verify(sherdi_reader *reader, sherdi_data_file which, int rank,
                                  const sherdi_reader_watch *watch)
{
    verifying    v = {.reader = reader,
                      .file   = &reader->files[rank][which],
                      .watch  = watch,
                      .which  = which,
                      .rank   = rank};
    char         where[SHERDI_READER_ELSEWHERE_BYTES];
    sherd_status status;

    SHERDI_TRY(sherdi_reader_path(reader, v.file, v.path));
    if (sherdi_reader_said(reader, v.file)->bytes == 0) {
        if (!is_needless(&v)) {
            damage_report(&v, NULL, 0, 0,
                          "the manifest does not name this file, which should be there");
        }
        return SHERD_OK;
    }
    if (sherdi_reader_is_elsewhere(reader, v.file, where, sizeof(where))) {
        damage_report(&v, NULL, 0, 0, where);
        return SHERD_OK;
    }
    status = sherdi_reader_use(reader, v.file);
    if (status != SHERD_OK) {
        damage_report(&v, NULL, 0, 0, sherd_last_error());
        return status == SHERD_E_NOMEM ? status : SHERD_OK;
    }
    for (size_t t = 0; t < v.file->header->num_tensors; t++) {
        SHERDI_TRY(tensor_verify(&v, &v.file->header->tensors[t]));
    }
    parts_verify(&v);
    if (watch->progress != NULL) {
        watch->progress(watch->ctx, v.file->header->data_at);
    }
    data_verify(&v);
    SHERDI_TRY(linked_verify(&v));
    return SHERD_OK;
}

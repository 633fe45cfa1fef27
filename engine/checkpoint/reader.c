/* See reader.h. reader_verify.c reads files from end to end. */
#include "engine/checkpoint/reader_impl.h"

#include "base/checked.h"
#include "base/json_text.h"
#include "engine/checkpoint/bytes.h"
#include "engine/checkpoint/shard.h"
#include "offload/checksum.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Most elements at a time of a tensor that does not lie at multiples of their size. */
#define ODD_ELEMS ((size_t)1024)

/* The most files that are open at once. */
#define MOST_OPEN 8

/* ----------------------------------------------------------------------- open -- */

static sherd_status names_sort(sherdi_reader *reader)
{
    const sherdi_manifest *m = &reader->manifest;

    reader->names = sherdi_alloc_array(reader->params.mem, SHERDI_MEM_CONTROL, m->num_params + 1,
                                       sizeof(*reader->names));
    reader->files = sherdi_alloc_array(reader->params.mem, SHERDI_MEM_CONTROL,
                                       (size_t)m->world_size, sizeof(*reader->files));
    if (reader->names == NULL || reader->files == NULL) {
        return SHERD_E_NOMEM;
    }
    for (size_t p = 0; p < m->num_params; p++) {
        reader->names[p] = (sherdi_reader_name){m->params[p].name, p};
    }
    qsort(reader->names, m->num_params, sizeof(*reader->names), sherdi_text_order);
    for (size_t p = 1; p < m->num_params; p++) {
        if (strcmp(reader->names[p - 1].name, reader->names[p].name) == 0) {
            return sherdi_fail(SHERD_E_INVAL, "%s/%s: parameter %s is there twice",
                               reader->params.dir, reader->params.tag, reader->names[p].name);
        }
    }
    return SHERD_OK;
}

static sherd_status manifest_read(sherdi_reader *reader)
{
    char         path[SHERDI_CHECKPOINT_PATH_BYTES];
    char        *text = NULL;
    size_t       len  = 0;
    sherd_status status;

    SHERDI_TRY(sherdi_checkpoint_check_folder(reader->params.dir, reader->params.tag));
    SHERDI_TRY(
        sherdi_checkpoint_path(reader->params.dir, reader->params.tag, SHERDI_MANIFEST_NAME, path));
    SHERDI_TRY(
        sherdi_checkpoint_get(reader->params.mem, path, SHERDI_MANIFEST_MOST_BYTES, &text, &len));
    status = sherdi_manifest_parse(&reader->manifest, reader->params.mem, path, text, len);
    sherdi_free(text);
    return status == SHERD_OK ? names_sort(reader) : status;
}

sherd_status sherdi_reader_open(const sherdi_reader_params *params, sherdi_reader **out)
{
    sherdi_reader *reader;
    sherd_status   status;

    SHERDI_TRY(sherdi_checksum_check_built());
    SHERDI_TRY(sherdi_tag_check(params->tag));
    reader = sherdi_alloc(params->mem, SHERDI_MEM_CONTROL, sizeof(*reader));
    if (reader == NULL) {
        return SHERD_E_NOMEM;
    }
    reader->params = *params;
    sherdi_manifest_init(&reader->manifest, params->mem);
    status = manifest_read(reader);
    if (status != SHERD_OK) {
        sherdi_reader_close(reader);
        return status;
    }
    *out = reader;
    return SHERD_OK;
}

static void slot_empty(sherdi_reader *reader, sherdi_reader_slot *s)
{
    if (s->file != NULL && !s->is_checked) {
        (void)sherdi_io_wait(reader->params.queue, &s->io); /* read ahead and never used */
    }
    *s = (sherdi_reader_slot){.file = NULL};
}

/* Closes a file. It waits for its reads and empties its slots first. */
static void file_close(sherdi_reader *reader, sherdi_reader_file *file)
{
    for (size_t i = 0; i < SHERDI_CHECKPOINT_SLOTS; i++) {
        sherdi_reader_slot *s = &reader->slots[i];

        if (s->file == file) {
            slot_empty(reader, s);
        }
    }
    if (file->is_linked_open) {
        sherdi_linked_close(file->linked);
        file->is_linked_open = 0;
    }
    sherdi_file_close(file->open, 0);
    reader->num_open -= file->open != NULL;
    file->open = NULL;
}

static void header_forget(sherdi_reader_file *file)
{
    sherdi_safetensors_destroy(file->header);
    sherdi_linked_destroy(file->linked);
    sherdi_free(file->tensors);
    file->linked         = NULL;
    file->is_linked_open = 0;
    file->header         = NULL;
    file->tensors        = NULL;
    file->num_tensors    = 0;
}

void sherdi_reader_close(sherdi_reader *reader)
{
    if (reader == NULL) {
        return;
    }
    for (int r = 0; reader->files != NULL && r < reader->manifest.world_size; r++) {
        for (int f = 0; f < SHERDI_DATA_FILES; f++) {
            file_close(reader, &reader->files[r][f]);
            header_forget(&reader->files[r][f]);
        }
    }
    sherdi_free(reader->files);
    sherdi_free(reader->names);
    sherdi_manifest_fini(&reader->manifest);
    sherdi_free(reader);
}

const sherdi_manifest *sherdi_reader_manifest(const sherdi_reader *reader)
{
    return &reader->manifest;
}

uint64_t sherdi_reader_bytes(const sherdi_reader *reader)
{
    return reader->read_bytes;
}

int64_t sherdi_reader_find_param(const sherdi_reader *reader, const char *name)
{
    const sherdi_reader_name *at = bsearch(&name, reader->names, reader->manifest.num_params,
                                           sizeof(*reader->names), sherdi_text_order);

    return at == NULL ? -1 : (int64_t)at->param;
}

int sherdi_reader_find_part(const sherdi_reader *reader, const char *name)
{
    return sherdi_manifest_find_part(&reader->manifest, name);
}

/* -------------------------------------------------------------------- headers -- */

/* Gives the rank and the kind of a data file. */
static void file_identify(const sherdi_reader *reader, const sherdi_reader_file *file,
                          int *rank_out, sherdi_data_file *which_out)
{
    size_t number = (size_t)(file - &reader->files[0][0]);

    *rank_out  = (int)(number / SHERDI_DATA_FILES);
    *which_out = (sherdi_data_file)(number % SHERDI_DATA_FILES);
}

sherd_status sherdi_reader_path(const sherdi_reader *reader, const sherdi_reader_file *file,
                                char out[SHERDI_CHECKPOINT_PATH_BYTES])
{
    char             name[SHERDI_CHECKPOINT_NAME_BYTES];
    sherdi_data_file which;
    int              rank;

    file_identify(reader, file, &rank, &which);
    sherdi_data_file_name(which, rank, reader->manifest.world_size, name);
    return sherdi_checkpoint_path(reader->params.dir, reader->params.tag, name, out);
}

static sherd_status file_damaged(const sherdi_reader *reader, const sherdi_reader_file *file,
                                 const char *what)
{
    char path[SHERDI_CHECKPOINT_PATH_BYTES];

    SHERDI_TRY(sherdi_reader_path(reader, file, path));
    return sherdi_fail(SHERD_E_INVAL,
                       "%s: %s; the file is damaged, load another checkpoint, or copy it again",
                       path, what);
}

const sherdi_manifest_file *sherdi_reader_said(const sherdi_reader      *reader,
                                               const sherdi_reader_file *file)
{
    return &(&reader->manifest.files[0][0])[file - &reader->files[0][0]];
}

static int found_order(const void *a, const void *b)
{
    const sherdi_reader_found *one   = a;
    const sherdi_reader_found *other = b;

    if (one->param != other->param) {
        return one->param < other->param ? -1 : 1;
    }
    if (one->part != other->part) {
        return one->part < other->part ? -1 : 1;
    }
    return one->first == other->first ? 0 : one->first < other->first ? -1 : 1;
}

int sherdi_reader_take(sherdi_reader *reader, const sherdi_tensor *tensor, sherdi_data_file which,
                       char *text, sherdi_reader_found *out)
{
    char   *first = strrchr(text, ':');
    char   *part  = NULL;
    char   *end   = NULL;
    int64_t param;

    if (first != NULL) {
        *first = '\0';
        part   = strrchr(text, ':');
    }
    if (part == NULL) {
        return 0;
    }
    *part      = '\0';
    param      = sherdi_reader_find_param(reader, text);
    out->part  = which == SHERDI_DATA_FROZEN ? 0 : sherdi_reader_find_part(reader, part + 1);
    out->first = strtoull(first + 1, &end, 10);
    if (param < 0 || out->part < 0 || *end != '\0' || first[1] == '\0') {
        return 0;
    }
    out->param = (size_t)param;
    out->count = tensor->elems;
    out->at    = tensor->begin;
    return 1;
}

int sherdi_reader_dtype_fits(const sherdi_reader *reader, sherdi_data_file which, size_t param,
                             sherdi_tensor_dtype dtype)
{
    static const sherdi_tensor_dtype DTYPES[] = {[SHERD_F32]  = SHERDI_TENSOR_F32,
                                                 [SHERD_BF16] = SHERDI_TENSOR_BF16,
                                                 [SHERD_F16]  = SHERDI_TENSOR_F16};

    return dtype == (which == SHERDI_DATA_FROZEN ? DTYPES[reader->manifest.params[param].dtype]
                                                 : SHERDI_TENSOR_F32);
}

/* Enters a tensor of the file, or of its linked state, if it belongs to a parameter. */
static sherd_status tensor_enter(sherdi_reader *reader, sherdi_reader_file *file,
                                 const sherdi_tensor *tensor, size_t linked)
{
    sherdi_reader_found *found = &file->tensors[file->num_tensors];
    sherdi_data_file     which;
    int                  rank;
    char                *text = sherdi_strdup(reader->params.mem, tensor->name);

    if (text == NULL) {
        return SHERD_E_NOMEM;
    }
    file_identify(reader, file, &rank, &which);
    if (sherdi_reader_take(reader, tensor, which, text, found) &&
        sherdi_reader_dtype_fits(reader, which, found->param, tensor->dtype)) {
        file->tensors[file->num_tensors++].linked = linked;
    }
    sherdi_free(text);
    return SHERD_OK;
}

static sherd_status linked_find(sherdi_reader *reader, sherdi_reader_file *file, const char *path)
{
    const char *text = sherdi_safetensors_note(file->header, SHERDI_LINKED_KEY);

    return text == NULL ? SHERD_OK
                        : sherdi_linked_parse(reader->params.mem, path, text, &file->linked);
}

static sherd_status tensors_index(sherdi_reader *reader, sherdi_reader_file *file)
{
    size_t linked = file->linked == NULL ? 0 : sherdi_linked_count(file->linked);

    file->tensors =
        sherdi_alloc_array(reader->params.mem, SHERDI_MEM_CONTROL,
                           file->header->num_tensors + linked + 1, sizeof(*file->tensors));
    if (file->tensors == NULL) {
        return SHERD_E_NOMEM;
    }
    for (size_t t = 0; t < file->header->num_tensors; t++) {
        SHERDI_TRY(tensor_enter(reader, file, &file->header->tensors[t], SHERDI_READER_IN_FILE));
    }
    for (size_t t = 0; t < linked; t++) {
        const sherdi_linked_tensor *at = sherdi_linked_tensor_at(file->linked, t);
        sherdi_tensor tensor = {.name = at->name, .dtype = SHERDI_TENSOR_F32, .elems = at->count};

        SHERDI_TRY(tensor_enter(reader, file, &tensor, t));
    }
    qsort(file->tensors, file->num_tensors, sizeof(*file->tensors), found_order);
    return SHERD_OK;
}

/* Finds the text of checksums; it must have one for each extent of the data. */
static sherd_status checksums_find(sherdi_reader *reader, sherdi_reader_file *file)
{
    size_t extents  = sherdi_div_up(file->header->data_bytes, SHERDI_CHECKPOINT_EXTENT_BYTES);
    file->checksums = sherdi_safetensors_note(file->header, "checksums");
    if (file->checksums == NULL || strlen(file->checksums) != extents * SHERDI_HEX_DIGITS) {
        return file_damaged(reader, file, "its header does not have one checksum for each extent");
    }
    return SHERD_OK;
}

static sherd_status header_parse(sherdi_reader *reader, sherdi_reader_file *file, const char *bytes,
                                 size_t len_bytes)
{
    const sherdi_manifest_file *said = sherdi_reader_said(reader, file);
    char                        path[SHERDI_CHECKPOINT_PATH_BYTES];
    sherd_status                status;

    SHERDI_TRY(sherdi_reader_path(reader, file, path));
    if (sherdi_checksum(bytes, len_bytes) != said->header_checksum) {
        return file_damaged(reader, file, "its header is not what the manifest says");
    }
    SHERDI_TRY(sherdi_safetensors_parse(
        reader->params.mem, path, bytes + SHERDI_SAFETENSORS_PREFIX_BYTES,
        len_bytes - SHERDI_SAFETENSORS_PREFIX_BYTES, (size_t)said->bytes, &file->header));
    status = checksums_find(reader, file);
    status = status == SHERD_OK ? linked_find(reader, file, path) : status;
    status = status == SHERD_OK ? tensors_index(reader, file) : status;
    if (status != SHERD_OK) {
        header_forget(file);
    }
    file->is_known = status == SHERD_OK;
    return status;
}

/* Reads the first bytes of a file, through the memory of the first slot, which is empty. */
static sherd_status bytes_read(sherdi_reader *reader, const sherdi_reader_file *file, char *out,
                               size_t len_bytes)
{
    size_t room = reader->params.slot_bytes;

    for (size_t at = 0; at < len_bytes; at += room) {
        sherdi_io io = {
            .file         = file->open,
            .memory       = reader->params.memory,
            .offset_bytes = at,
            .len_bytes = sherdi_min_size(room, sherdi_round_up(len_bytes - at, SHERD_ALIGN_BYTES)),
            .what      = "header"};

        sherdi_io_start(reader->params.queue, &io);
        SHERDI_TRY(sherdi_io_wait(reader->params.queue, &io));
        memcpy(out + at, reader->params.memory, sherdi_min_size(room, len_bytes - at));
    }
    return SHERD_OK;
}

static sherd_status header_read(sherdi_reader *reader, sherdi_reader_file *file)
{
    unsigned char prefix[SHERDI_SAFETENSORS_PREFIX_BYTES];
    uint64_t      len = 0;
    char         *bytes;
    sherd_status  status;

    slot_empty(reader, &reader->slots[0]);
    SHERDI_TRY(bytes_read(reader, file, (char *)prefix, sizeof(prefix)));
    for (int i = 7; i >= 0; i--) {
        len = len << 8 | prefix[i];
    }
    if (len > SHERDI_SAFETENSORS_MAX_HEADER_BYTES ||
        len + sizeof(prefix) > sherdi_reader_said(reader, file)->bytes ||
        (len + sizeof(prefix)) % SHERD_ALIGN_BYTES != 0) {
        return file_damaged(reader, file, "its header cannot be as long as it says");
    }
    bytes = sherdi_alloc(reader->params.mem, SHERDI_MEM_CONTROL, (size_t)len + sizeof(prefix));
    if (bytes == NULL) {
        return SHERD_E_NOMEM;
    }
    status = bytes_read(reader, file, bytes, (size_t)len + sizeof(prefix));
    if (status == SHERD_OK) {
        status = header_parse(reader, file, bytes, (size_t)len + sizeof(prefix));
    }
    sherdi_free(bytes);
    return status;
}

/* If MOST_OPEN files are open, closes the one whose last use is longest ago. */
static void files_make_room(sherdi_reader *reader)
{
    sherdi_reader_file *oldest = NULL;

    for (int r = 0; r < reader->manifest.world_size && reader->num_open == MOST_OPEN; r++) {
        for (int f = 0; f < SHERDI_DATA_FILES; f++) {
            sherdi_reader_file *file = &reader->files[r][f];

            if (file->open != NULL && (oldest == NULL || file->used < oldest->used)) {
                oldest = file;
            }
        }
    }
    if (oldest != NULL) {
        file_close(reader, oldest);
    }
}

int sherdi_reader_is_elsewhere(const sherdi_reader *reader, const sherdi_reader_file *file,
                               char *text, size_t len_bytes)
{
    sherdi_data_file which;
    int              rank;

    file_identify(reader, file, &rank, &which);
    if (reader->manifest.hosts == NULL || sherdi_reader_file_bytes(reader, which, rank) >= 0) {
        return 0;
    }
    (void)snprintf(text, len_bytes,
                   "it is not here: rank %d wrote it on host %s; copy the files of that host's "
                   "folder into this one",
                   rank, sherdi_manifest_host(&reader->manifest, rank));
    return 1;
}

static sherd_status presence_check(const sherdi_reader *reader, const sherdi_reader_file *file)
{
    char path[SHERDI_CHECKPOINT_PATH_BYTES];
    char text[SHERDI_READER_ELSEWHERE_BYTES];

    if (!sherdi_reader_is_elsewhere(reader, file, text, sizeof(text))) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_reader_path(reader, file, path));
    return sherdi_fail(SHERD_E_IO, "%s: %s", path, text);
}

/* Reads the header the first time. */
sherd_status sherdi_reader_use(sherdi_reader *reader, sherdi_reader_file *file)
{
    char               folder[SHERDI_CHECKPOINT_PATH_BYTES];
    char               name[SHERDI_CHECKPOINT_NAME_BYTES];
    const char        *folders[] = {folder};
    sherdi_file_params params    = {.folders      = folders,
                                    .num_folders  = 1,
                                    .name         = name,
                                    .stripe_bytes = SHERD_ALIGN_BYTES,
                                    .flags        = SHERDI_FILE_READ};
    sherdi_data_file   which;
    int                rank;

    file->used      = ++reader->clock;
    reader->current = file;
    if (file->open != NULL) {
        return file->is_known ? SHERD_OK : header_read(reader, file);
    }
    files_make_room(reader);
    file_identify(reader, file, &rank, &which);
    if (sherdi_reader_said(reader, file)->bytes == 0) {
        return file_damaged(reader, file,
                            "the manifest does not name this file, which should hold a tensor");
    }
    SHERDI_TRY(presence_check(reader, file));
    sherdi_data_file_name(which, rank, reader->manifest.world_size, name);
    SHERDI_TRY(sherdi_checkpoint_path(reader->params.dir, reader->params.tag, NULL, folder));
    SHERDI_TRY(sherdi_file_open(reader->params.queue, &params, &file->open));
    reader->num_open++;
    if (sherdi_file_len(file->open) != sherdi_reader_said(reader, file)->bytes) {
        file_close(reader, file); /* so that the next call checks it again */
        return file_damaged(reader, file, "it is not as long as the manifest says");
    }
    return file->is_known ? SHERD_OK : header_read(reader, file);
}

/* ---------------------------------------------------------------------- slots -- */

size_t sherdi_reader_slot_len(const sherdi_reader *reader, const sherdi_reader_file *file,
                              size_t number)
{
    return sherdi_min_size(reader->params.slot_bytes,
                           file->header->data_bytes - number * reader->params.slot_bytes);
}

static unsigned char *slot_memory(const sherdi_reader *reader, const sherdi_reader_slot *s)
{
    return reader->params.memory + (size_t)(s - reader->slots) * reader->params.slot_bytes;
}

static sherdi_reader_slot *slot_find(sherdi_reader *reader, size_t number)
{
    for (size_t i = 0; i < reader->params.num_slots; i++) {
        if (reader->slots[i].file == reader->current && reader->slots[i].number == number) {
            return &reader->slots[i];
        }
    }
    return NULL;
}

/* Returns a slot to reuse: an empty one, else the one whose last use is longest ago. Slots that
 * were read ahead and not used yet come last. */
static sherdi_reader_slot *slot_oldest(sherdi_reader *reader)
{
    sherdi_reader_slot *oldest = &reader->slots[0];

    for (size_t i = 0; i < reader->params.num_slots; i++) {
        sherdi_reader_slot *s = &reader->slots[i];

        if (s->file == NULL) {
            return s;
        }
        if (s->is_checked != oldest->is_checked ? s->is_checked : s->used < oldest->used) {
            oldest = s;
        }
    }
    return oldest;
}

static sherdi_reader_slot *slot_start(sherdi_reader *reader, size_t number)
{
    sherdi_reader_file *file = reader->current;
    sherdi_reader_slot *s    = slot_oldest(reader);

    slot_empty(reader, s);
    *s = (sherdi_reader_slot){
        .file   = file,
        .number = number,
        .used   = ++reader->clock,
        .io     = {.file         = file->open,
                   .memory       = slot_memory(reader, s),
                   .offset_bytes = file->header->data_at + number * reader->params.slot_bytes,
                   .len_bytes =
                       sherdi_round_up(sherdi_reader_slot_len(reader, file, number), SHERD_ALIGN_BYTES),
                   .what   = "extent",
                   .number = number}};
    sherdi_io_start(reader->params.queue, &s->io);
    reader->read_bytes += s->io.len_bytes;
    return s;
}

/* Fails with a message that names the first tensor with bytes in the extent [at, end). */
static sherd_status extent_damaged(const sherdi_reader *reader, const sherdi_reader_file *file,
                                   size_t at, size_t end)
{
    char             path[SHERDI_CHECKPOINT_PATH_BYTES];
    const char      *name = NULL;
    sherdi_data_file which;
    int              rank;
    size_t           more = 0;

    for (size_t t = 0; t < file->header->num_tensors; t++) {
        const sherdi_tensor *tensor = &file->header->tensors[t];

        if (tensor->begin < end && tensor->end > at) {
            name = name == NULL ? tensor->name : name;
            more++;
        }
    }
    file_identify(reader, file, &rank, &which);
    SHERDI_TRY(sherdi_reader_path(reader, file, path));
    return sherdi_fail(SHERD_E_INVAL,
                       "%s: bytes %zu to %zu of rank %d's data do not match their checksum; tensor "
                       "%s%s is damaged; load another checkpoint, or copy the file again",
                       path, at, end, rank, name == NULL ? "(padding)" : name,
                       more > 1 ? " or one that follows it" : "");
}

int sherdi_reader_extent_is_whole(const sherdi_reader *reader, const sherdi_reader_slot *s,
                                  size_t at, size_t *len_bytes_out)
{
    size_t number = (s->number * reader->params.slot_bytes + at) / SHERDI_CHECKPOINT_EXTENT_BYTES;
    char   digits[SHERDI_HEX_DIGITS + 1];

    *len_bytes_out = sherdi_min_size(SHERDI_CHECKPOINT_EXTENT_BYTES,
                                     sherdi_reader_slot_len(reader, s->file, s->number) - at);
    (void)snprintf(digits, sizeof(digits), "%016" PRIx64,
                   sherdi_checksum(slot_memory(reader, s) + at, *len_bytes_out));
    return memcmp(digits, s->file->checksums + number * SHERDI_HEX_DIGITS, SHERDI_HEX_DIGITS) == 0;
}

static sherd_status slot_check(const sherdi_reader *reader, const sherdi_reader_slot *s)
{
    size_t begin = s->number * reader->params.slot_bytes;
    size_t some;

    for (size_t at = 0; at < sherdi_reader_slot_len(reader, s->file, s->number);
         at += SHERDI_CHECKPOINT_EXTENT_BYTES) {
        if (!sherdi_reader_extent_is_whole(reader, s, at, &some)) {
            return extent_damaged(reader, s->file, begin + at, begin + at + some);
        }
    }
    return SHERD_OK;
}

void sherdi_reader_tolerate(sherdi_reader *reader, int *damage)
{
    reader->damage = damage;
}

/* Starts reading the slots that follow, into three quarters of the slots. The others are reserved
 * for another file, since callers may alternate between files. */
static void slots_ahead(sherdi_reader *reader, size_t number)
{
    size_t all = sherdi_div_up(reader->current->header->data_bytes, reader->params.slot_bytes);

    for (size_t n = number + 1; n < all && n <= number + reader->params.num_slots * 3 / 4; n++) {
        if (slot_find(reader, n) == NULL) {
            (void)slot_start(reader, n);
        }
    }
}

sherd_status sherdi_reader_fetch(sherdi_reader *reader, size_t number, sherdi_reader_slot **out,
                                 int *is_new_out)
{
    sherdi_reader_slot *s = slot_find(reader, number);
    sherd_status        status;

    if (s == NULL) {
        s = slot_start(reader, number);
    }
    s->used     = ++reader->clock;
    *out        = s;
    *is_new_out = !s->is_checked;
    if (s->is_checked) {
        return SHERD_OK;
    }
    slots_ahead(reader, number);
    status        = sherdi_io_wait(reader->params.queue, &s->io);
    s->is_checked = 1;
    if (status != SHERD_OK) {
        *s = (sherdi_reader_slot){.file = NULL};
    }
    return status;
}

/* Returns the slot with byte `at` of the current file's data, checked. */
static sherd_status slot_take(sherdi_reader *reader, size_t at, sherdi_reader_slot **out)
{
    int          is_new;
    sherd_status status;

    SHERDI_TRY(sherdi_reader_fetch(reader, at / reader->params.slot_bytes, out, &is_new));
    status             = is_new || (*out)->is_damaged ? slot_check(reader, *out) : SHERD_OK;
    (*out)->is_damaged = status == SHERD_E_INVAL;
    if ((*out)->is_damaged && reader->damage != NULL) {
        *reader->damage = 1;
        return SHERD_OK;
    }
    if (status != SHERD_OK) {
        **out = (sherdi_reader_slot){.file = NULL};
    }
    return status;
}

/* --------------------------------------------------------------------- values -- */

/* Copies bytes of the current file, which may be in two slots. */
static sherd_status range_copy(sherdi_reader *reader, size_t at, size_t len_bytes,
                               unsigned char *out)
{
    while (len_bytes > 0) {
        size_t              in_slot = at % reader->params.slot_bytes;
        size_t              some = sherdi_min_size(len_bytes, reader->params.slot_bytes - in_slot);
        sherdi_reader_slot *s;

        SHERDI_TRY(slot_take(reader, at, &s));
        memcpy(out, slot_memory(reader, s) + in_slot, some);
        at += some;
        out += some;
        len_bytes -= some;
    }
    return SHERD_OK;
}

/* The same as range_hand for elements that do not lie at multiples of their size, as an fp32 tensor
 * after one of 16 bits with an odd number of elements: files have no gaps. */
static sherd_status odd_range_hand(sherdi_reader *reader, size_t at, size_t elem, sherd_dtype dtype,
                                   size_t first, size_t count, sherdi_reader_fn fn, void *ctx)
{
    float portion[ODD_ELEMS];

    while (count > 0) {
        size_t some = sherdi_min_size(count, ODD_ELEMS);

        SHERDI_TRY(range_copy(reader, at, some * elem, (unsigned char *)portion));
        SHERDI_TRY(fn(ctx, first, some, portion, dtype));
        at += some * elem;
        first += some;
        count -= some;
    }
    return SHERD_OK;
}

/* Hands elements of the current file to `fn`: `count` from byte `at` on, of `elem` bytes each; `fn`
 * receives `dtype`. */
static sherd_status range_hand(sherdi_reader *reader, size_t at, size_t elem, sherd_dtype dtype,
                               size_t first, size_t count, sherdi_reader_fn fn, void *ctx)
{
    if (at % elem != 0) {
        return odd_range_hand(reader, at, elem, dtype, first, count, fn, ctx);
    }
    while (count > 0) {
        sherdi_reader_slot *s;
        size_t              in_slot = at % reader->params.slot_bytes;
        size_t some = sherdi_min_size(count, (reader->params.slot_bytes - in_slot) / elem);

        SHERDI_TRY(slot_take(reader, at, &s));
        SHERDI_TRY(fn(ctx, first, some, slot_memory(reader, s) + in_slot, dtype));
        at += some * elem;
        first += some;
        count -= some;
    }
    return SHERD_OK;
}

static sherd_status linked_use(sherdi_reader *reader, sherdi_reader_file *file)
{
    char             folder[SHERDI_CHECKPOINT_PATH_BYTES];
    sherdi_data_file which;
    int              rank;

    if (file->is_linked_open) {
        return SHERD_OK;
    }
    file_identify(reader, file, &rank, &which);
    SHERDI_TRY(sherdi_checkpoint_path(reader->params.dir, reader->params.tag, NULL, folder));
    SHERDI_TRY(sherdi_linked_open(file->linked, reader->params.queue, folder, rank,
                                  reader->manifest.world_size));
    file->is_linked_open = 1;
    return SHERD_OK;
}

sherd_status sherdi_reader_extent(sherdi_reader *reader, sherdi_reader_file *file, size_t extent,
                                  const unsigned char **out)
{
    SHERDI_TRY(linked_use(reader, file));
    reader->read_bytes += sherdi_linked_extent_bytes(file->linked, extent);
    return sherdi_linked_read(file->linked, extent, out);
}

/* Passes elements of a tensor in linked state to `fn`, as many at once as are decoded. */
static sherd_status linked_hand(sherdi_reader *reader, sherdi_reader_file *file,
                                const sherdi_reader_found *at, size_t first, size_t count,
                                sherdi_reader_fn fn, void *ctx)
{
    const sherdi_linked_tensor *tensor = sherdi_linked_tensor_at(file->linked, at->linked);

    SHERDI_TRY(linked_use(reader, file));
    reader->read_bytes += sherdi_linked_extent_bytes(file->linked, tensor->extent);
    while (count > 0) {
        size_t       some = count;
        const float *values;

        SHERDI_TRY(
            sherdi_linked_values(file->linked, at->linked, first - at->first, &some, &values));
        SHERDI_TRY(fn(ctx, first, some, values, SHERD_F32));
        first += some;
        count -= some;
    }
    return SHERD_OK;
}

/* Hands elements of one tensor to `fn`. */
static sherd_status tensor_hand(sherdi_reader *reader, sherdi_reader_file *file,
                                const sherdi_reader_found *at, sherd_dtype dtype, size_t first,
                                size_t count, sherdi_reader_fn fn, void *ctx)
{
    size_t elem = sherd_dtype_bytes(dtype);

    if (at->linked != SHERDI_READER_IN_FILE) {
        return linked_hand(reader, file, at, first, count, fn, ctx);
    }
    return range_hand(reader, at->at + (first - at->first) * elem, elem, dtype, first, count, fn,
                      ctx);
}

const sherdi_reader_found *sherdi_reader_tensor(const sherdi_reader_file *file, size_t param,
                                                int part, size_t first)
{
    size_t              low  = 0;
    size_t              high = file->num_tensors;
    sherdi_reader_found key  = {.param = param, .part = part, .first = first};

    while (low < high) { /* finds the first tensor that begins after the element */
        size_t middle = low + (high - low) / 2;

        if (found_order(&file->tensors[middle], &key) <= 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == 0) {
        return NULL;
    }
    return file->tensors[low - 1].param == param && file->tensors[low - 1].part == part &&
                   first - file->tensors[low - 1].first < file->tensors[low - 1].count
               ? &file->tensors[low - 1]
               : NULL;
}

sherd_status sherdi_reader_values(sherdi_reader *reader, size_t param, int part, size_t first,
                                  size_t count, sherdi_reader_fn fn, void *ctx)
{
    const sherdi_manifest_param *p     = &reader->manifest.params[param];
    size_t                       slice = reader->manifest.segments[p->segment].slice_elems;
    sherdi_data_file             which = p->is_frozen ? SHERDI_DATA_FROZEN : SHERDI_DATA_STATE;
    sherd_dtype                  dtype = p->is_frozen ? p->dtype : SHERD_F32;

    while (count > 0) {
        sherdi_reader_file        *file = &reader->files[(p->offset_elems + first) / slice][which];
        const sherdi_reader_found *at;
        size_t                     some;

        SHERDI_TRY(sherdi_reader_use(reader, file));
        at = sherdi_reader_tensor(file, param, part, first);
        if (at == NULL) {
            return file_damaged(reader, file, "it lacks a tensor that it should hold");
        }
        some = sherdi_min_size(count, at->count - (first - at->first));
        SHERDI_TRY(tensor_hand(reader, file, at, dtype, first, some, fn, ctx));
        first += some;
        count -= some;
    }
    return SHERD_OK;
}

/* ---------------------------------------------------------------------- blobs -- */

const char *sherdi_reader_blob_key(const sherdi_tensor *tensor, sherdi_blob_kind kind,
                                   int *is_large_out)
{
    for (int is_large = 0; is_large < 2 && tensor->dtype == SHERDI_TENSOR_U8; is_large++) {
        const char *prefix = sherdi_shard_blob_prefix(kind, is_large);

        if (strncmp(tensor->name, prefix, strlen(prefix)) == 0) {
            *is_large_out = is_large;
            return tensor->name + strlen(prefix);
        }
    }
    return NULL;
}

static sherd_status bytes_take(void *ctx, size_t first, size_t count, const void *values,
                               sherd_dtype dtype)
{
    (void)dtype;
    memcpy((unsigned char *)ctx + first, values, count);
    return SHERD_OK;
}

static sherd_status blob_read(sherdi_reader *reader, const sherdi_tensor *tensor, const char *key,
                              sherdi_blob_kind kind, int rank, int is_large, sherdi_blobs *out)
{
    unsigned char *data = sherdi_alloc(reader->params.mem, SHERDI_MEM_CONTROL, tensor->elems);
    sherd_status   status;

    if (data == NULL) {
        return SHERD_E_NOMEM;
    }
    status = range_hand(reader, tensor->begin, 1, SHERD_F32, 0, tensor->elems, bytes_take, data);
    if (status == SHERD_OK) {
        status = sherdi_blobs_put(out, key, kind, rank, is_large, data, tensor->elems);
    }
    sherdi_free(data);
    return status;
}

sherd_status sherdi_reader_blobs(sherdi_reader *reader, sherdi_blob_kind kind, int rank,
                                 sherdi_blobs *out)
{
    sherdi_reader_file *file = &reader->files[rank][SHERDI_DATA_STATE];

    if (sherdi_reader_said(reader, file)->bytes == 0) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_reader_use(reader, file));
    for (size_t t = 0; t < file->header->num_tensors; t++) {
        const sherdi_tensor *tensor = &file->header->tensors[t];
        int                  is_large;
        const char          *key = sherdi_reader_blob_key(tensor, kind, &is_large);

        if (key != NULL) {
            SHERDI_TRY(blob_read(reader, tensor, key, kind, rank, is_large, out));
        }
    }
    return SHERD_OK;
}

void sherdi_reader_mark(const sherdi_reader *reader, size_t param, size_t first, size_t count,
                        unsigned char (*flags)[SHERDI_DATA_FILES])
{
    const sherdi_manifest_param *p     = &reader->manifest.params[param];
    size_t                       slice = reader->manifest.segments[p->segment].slice_elems;
    size_t                       begin = p->offset_elems + first;

    for (size_t r = begin / slice; count > 0 && r <= (begin + count - 1) / slice; r++) {
        flags[r][p->is_frozen ? SHERDI_DATA_FROZEN : SHERDI_DATA_STATE] = 1;
    }
}

int sherdi_reader_stripes(const sherdi_reader *reader, int rank)
{
    const sherdi_reader_file *file = &reader->files[rank][SHERDI_DATA_STATE];

    return file->linked == NULL ? 0 : sherdi_linked_stripes(file->linked);
}

sherd_status sherdi_reader_look(sherdi_reader *reader, sherdi_data_file which, int rank,
                                int *is_there_out)
{
    sherdi_reader_file *file = &reader->files[rank][which];
    char                name[SHERDI_CHECKPOINT_NAME_BYTES];
    char                path[SHERDI_CHECKPOINT_PATH_BYTES];

    *is_there_out = sherdi_reader_file_bytes(reader, which, rank) ==
                    (int64_t)sherdi_reader_said(reader, file)->bytes;
    if (!*is_there_out || which != SHERDI_DATA_STATE || reader->manifest.has_state_fingerprint) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_reader_use(reader, file));
    for (int i = 0; i < sherdi_reader_stripes(reader, rank); i++) {
        sherdi_linked_stripe_name(rank, reader->manifest.world_size, i, name);
        SHERDI_TRY(sherdi_checkpoint_path(reader->params.dir, reader->params.tag, name, path));
        *is_there_out = *is_there_out && sherdi_checkpoint_has(path);
    }
    return SHERD_OK;
}

int64_t sherdi_reader_file_bytes(const sherdi_reader *reader, sherdi_data_file which, int rank)
{
    char        path[SHERDI_CHECKPOINT_PATH_BYTES];
    struct stat at;

    if (sherdi_reader_path(reader, &reader->files[rank][which], path) != SHERD_OK ||
        lstat(path, &at) != 0 || !S_ISREG(at.st_mode)) {
        return -1;
    }
    return (int64_t)at.st_size;
}

/* See blobs.h. The sequence of bytes is a head, then for each blob its own head, its key and its
 * data, without padding. Numbers are little-endian:
 *
 *     count u64                                              number of blobs
 *     kind u32, rank u32, key bytes u64, data bytes u64      head of each blob */
#include "engine/run/blobs.h"
#include "engine/run/engine_impl.h"

#include "base/checked.h"
#include "engine/modules.h"
#include "engine/run/failure.h"
#include "engine/run/needs.h"

#include <string.h>

#define HEAD_BYTES 8u
#define BLOB_BYTES 24u

/* ----------------------------------------------------------------- the list -- */

void sherdi_blobs_init(sherdi_blobs *blobs, sherdi_mem *mem)
{
    *blobs = (sherdi_blobs){.mem = mem};
}

static void blob_drop(sherdi_blobs *blobs, size_t index)
{
    sherdi_free(blobs->list[index].data);
    blobs->changes++;
    blobs->count--;
    memmove(&blobs->list[index], &blobs->list[index + 1],
            (blobs->count - index) * sizeof(blobs->list[0]));
}

void sherdi_blobs_clear(sherdi_blobs *blobs, int is_large_too)
{
    for (size_t i = blobs->count; i-- > 0;) {
        if (is_large_too || !blobs->list[i].is_large) {
            blob_drop(blobs, i);
        }
    }
}

void sherdi_blobs_fini(sherdi_blobs *blobs)
{
    sherdi_blobs_clear(blobs, 1);
    sherdi_free(blobs->list);
    *blobs = (sherdi_blobs){
        .mem = blobs->mem, .changes = blobs->changes, .changed = blobs->changed, .ctx = blobs->ctx};
}

/* Returns the index of a blob; blobs->count: there is none. */
static size_t blob_index(const sherdi_blobs *blobs, const char *key, sherdi_blob_kind kind,
                         int rank)
{
    size_t i = 0;

    while (i < blobs->count && (blobs->list[i].kind != kind || blobs->list[i].rank != rank ||
                                strcmp(blobs->list[i].key, key) != 0)) {
        i++;
    }
    return i;
}

const sherdi_blob *sherdi_blobs_find(const sherdi_blobs *blobs, const char *key,
                                     sherdi_blob_kind kind, int rank)
{
    size_t i = blob_index(blobs, key, kind, rank);

    return i == blobs->count ? NULL : &blobs->list[i];
}

/* A key can stand in the header of a file, and a person can read it. */
static sherd_status key_check(const char *key)
{
    size_t len = strnlen(key, SHERD_BLOB_KEY_BYTES + 1);

    for (size_t i = 0; i < len; i++) {
        if (key[i] < ' ' || key[i] > '~') {
            return sherdi_fail(SHERD_E_INVAL,
                               "byte %zu of a blob's key is 0x%02x; a key may have printable ASCII "
                               "characters only",
                               i, (unsigned)(unsigned char)key[i]);
        }
    }
    if (len == 0 || len > SHERD_BLOB_KEY_BYTES) {
        return sherdi_fail(SHERD_E_INVAL,
                           "the key of a blob is empty or too long; it may have 1 to %d bytes",
                           SHERD_BLOB_KEY_BYTES);
    }
    return SHERD_OK;
}

sherd_status sherdi_blobs_put(sherdi_blobs *blobs, const char *key, sherdi_blob_kind kind, int rank,
                              int is_large, const void *data, size_t len_bytes)
{
    size_t         i = blob_index(blobs, key, kind, rank);
    unsigned char *copy;

    SHERDI_TRY(key_check(key));
    SHERDI_TRY(sherdi_grow(blobs->mem, SHERDI_MEM_CONTROL, (void **)&blobs->list, &blobs->capacity,
                           i + 1, sizeof(*blobs->list)));
    copy = sherdi_alloc(blobs->mem, SHERDI_MEM_CONTROL, len_bytes);
    if (copy == NULL) {
        return SHERD_E_NOMEM;
    }
    if (len_bytes > 0) {
        memcpy(copy, data, len_bytes);
    }
    if (i == blobs->count) {
        blobs->list[i] = (sherdi_blob){.kind = kind, .rank = rank};
        memcpy(blobs->list[i].key, key, strlen(key));
        blobs->count++;
    }
    sherdi_free(blobs->list[i].data);
    blobs->changes++;
    blobs->list[i].is_large  = is_large;
    blobs->list[i].data      = copy;
    blobs->list[i].len_bytes = len_bytes;
    return SHERD_OK;
}

/* Removes a blob; does nothing if there is none. */
static void blob_remove(sherdi_blobs *blobs, const char *key, sherdi_blob_kind kind, int rank)
{
    size_t i = blob_index(blobs, key, kind, rank);

    if (i < blobs->count) {
        blob_drop(blobs, i);
    }
}

/* -------------------------------------------------------------------- bytes -- */

static int is_written(const sherdi_blob *blob, sherdi_blob_kind kind, int rank)
{
    return blob->kind == kind && !blob->is_large &&
           (kind == SHERDI_BLOB_GLOBAL || rank < 0 || blob->rank == rank);
}

size_t sherdi_blobs_small(const sherdi_blobs *blobs)
{
    size_t count = 0;

    for (size_t i = 0; i < blobs->count; i++) {
        count += !blobs->list[i].is_large;
    }
    return count;
}

static size_t blob_bytes(size_t key_bytes, size_t len_bytes)
{
    return BLOB_BYTES + key_bytes + len_bytes;
}

size_t sherdi_blobs_bytes(const sherdi_blobs *blobs, sherdi_blob_kind kind, int rank)
{
    size_t bytes = HEAD_BYTES;

    for (size_t i = 0; i < blobs->count; i++) {
        const sherdi_blob *blob = &blobs->list[i];

        bytes += is_written(blob, kind, rank) ? blob_bytes(strlen(blob->key), blob->len_bytes) : 0;
    }
    return bytes;
}

static unsigned char *number_write(unsigned char *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        out[i] = (unsigned char)(value >> 8 * i);
    }
    return out + bytes;
}

static uint64_t number_read(const unsigned char *from, int bytes)
{
    uint64_t value = 0;

    for (int i = 0; i < bytes; i++) {
        value |= (uint64_t)from[i] << 8 * i;
    }
    return value;
}

static unsigned char *bytes_write(unsigned char *out, const void *data, size_t len_bytes)
{
    if (len_bytes > 0) {
        memcpy(out, data, len_bytes);
    }
    return out + len_bytes;
}

void sherdi_blobs_write(const sherdi_blobs *blobs, sherdi_blob_kind kind, int rank,
                        unsigned char *out)
{
    unsigned char *at    = out + HEAD_BYTES;
    uint64_t       count = 0;

    for (size_t i = 0; i < blobs->count; i++) {
        const sherdi_blob *blob = &blobs->list[i];

        if (is_written(blob, kind, rank)) {
            at = number_write(at, (uint64_t)blob->kind, 4);
            at = number_write(at, (uint64_t)blob->rank, 4);
            at = number_write(at, strlen(blob->key), 8);
            at = number_write(at, blob->len_bytes, 8);
            at = bytes_write(at, blob->key, strlen(blob->key));
            at = bytes_write(at, blob->data, blob->len_bytes);
            count++;
        }
    }
    (void)number_write(out, count, HEAD_BYTES);
}

static sherd_status bytes_fail(size_t at)
{
    return sherdi_fail(SHERD_E_INVAL,
                       "the blobs that were read are damaged at byte %zu; load another checkpoint",
                       at);
}

/* Reads the blob that begins at *at, and sets *at to its end. */
static sherd_status blob_read(sherdi_blobs *blobs, const unsigned char *bytes, size_t len_bytes,
                              size_t *at)
{
    const unsigned char *head                          = bytes + *at;
    size_t               left                          = len_bytes - *at;
    char                 key[SHERD_BLOB_KEY_BYTES + 1] = {0};
    uint64_t             kind, rank, key_bytes, data_bytes;

    if (left < BLOB_BYTES) {
        return bytes_fail(*at);
    }
    kind       = number_read(head, 4);
    rank       = number_read(head + 4, 4);
    key_bytes  = number_read(head + 8, 8);
    data_bytes = number_read(head + 16, 8);
    left -= BLOB_BYTES;
    if (kind >= SHERDI_BLOB_KINDS || rank > INT32_MAX || key_bytes > SHERD_BLOB_KEY_BYTES ||
        key_bytes > left || data_bytes > left - key_bytes) {
        return bytes_fail(*at);
    }
    memcpy(key, head + BLOB_BYTES, key_bytes);
    if (strlen(key) != key_bytes) {
        return bytes_fail(*at);
    }
    *at += blob_bytes(key_bytes, data_bytes);
    return sherdi_blobs_put(blobs, key, (sherdi_blob_kind)kind, (int)rank, 0,
                            head + BLOB_BYTES + key_bytes, data_bytes);
}

sherd_status sherdi_blobs_read(sherdi_blobs *blobs, const unsigned char *bytes, size_t len_bytes)
{
    size_t   at = HEAD_BYTES;
    uint64_t count;

    if (len_bytes < HEAD_BYTES) {
        return bytes_fail(0);
    }
    count = number_read(bytes, HEAD_BYTES);
    for (uint64_t i = 0; i < count; i++) { /* each blob takes bytes, so a false count ends too */
        SHERDI_TRY(blob_read(blobs, bytes, len_bytes, &at));
    }
    return at == len_bytes ? SHERD_OK : bytes_fail(at);
}

/* ------------------------------------------------------------- public calls -- */

void sherd_blob_params_init(sherd_blob_params *params)
{
    sherdi_api_init(params, &(sherd_blob_params){.struct_size = sizeof(*params), .rank = -1});
}

/* Gives the kind, the rank and the size class of the blob that a call means. */
static sherd_status asked_read(const sherd_engine *engine, const sherd_blob_params *params,
                               sherdi_blob *out)
{
    sherd_blob_params given;

    sherd_blob_params_init(&given);
    SHERDI_TRY(sherdi_api_read(params, SHERDI_API(sherd_blob_params), &given));
    SHERDI_TRY(sherdi_api_check_flag(given.is_large, "sherd_blob_params.is_large"));
    SHERDI_TRY(sherdi_api_check_flag(given.is_per_rank, "sherd_blob_params.is_per_rank"));
    *out      = (sherdi_blob){.is_large = given.is_large};
    out->kind = given.is_per_rank ? SHERDI_BLOB_OF_RANK : SHERDI_BLOB_GLOBAL;
    out->rank = given.rank < 0 ? engine->rank : given.rank;
    out->rank = given.is_per_rank ? out->rank : 0;
    return SHERD_OK;
}

/* The bytes that the small blobs of this rank take together with one of `kind`. On ranks other than
 * 0, the run's blobs and the rank's own have separate room, because rank 0's blobs of the run are
 * the valid ones. */
static size_t held_bytes(const sherd_engine *engine, sherdi_blob_kind kind)
{
    size_t held = 0;

    for (int k = 0; k < SHERDI_BLOB_KINDS; k++) {
        held += engine->rank == 0 || k == (int)kind
                    ? sherdi_blobs_bytes(engine->blobs, (sherdi_blob_kind)k, engine->rank)
                    : 0;
    }
    return held;
}

/* Checks that there is room for the new small blob, which replaces the old one of its key. */
static sherd_status room_check(const sherd_engine *engine, const char *key, sherdi_blob_kind kind,
                               size_t len_bytes)
{
    const sherdi_blobs *blobs = engine->blobs;
    const sherdi_blob  *old =
        sherdi_blobs_find(blobs, key, kind, kind == SHERDI_BLOB_OF_RANK ? engine->rank : 0);
    size_t held = held_bytes(engine, kind);

    held -= old == NULL || old->is_large ? 0 : blob_bytes(strlen(key), old->len_bytes);
    if (len_bytes > SHERD_BLOB_MAX_BYTES ||
        held + blob_bytes(strlen(key), len_bytes) > SHERD_BLOB_MAX_BYTES) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "no room for blob %s of %zu bytes: the other small blobs of this rank "
            "take %zu, and together they may take %d; set sherd_blob_params.is_large "
            "for what only checkpoints need",
            key, len_bytes, held, SHERD_BLOB_MAX_BYTES);
    }
    return SHERD_OK;
}

static sherd_status blob_set(sherd_engine *engine, const char *key, const void *data,
                             size_t len_bytes, const sherd_blob_params *params)
{
    sherdi_blob asked;

    SHERDI_TRY(sherdi_engine_check_alive(engine, "sherd_blob_set"));
    SHERDI_TRY(sherdi_api_need(key != NULL, "sherd_blob_set", "key"));
    SHERDI_TRY(sherdi_api_need(data != NULL || len_bytes == 0, "sherd_blob_set", "data"));
    SHERDI_TRY(asked_read(engine, params, &asked));
    SHERDI_TRY(key_check(key));
    if (asked.kind == SHERDI_BLOB_OF_RANK && asked.rank != engine->rank) {
        return sherdi_fail(SHERD_E_INVAL,
                           "blob %s: rank %d can set its own blobs only, not those of rank %d", key,
                           engine->rank, asked.rank);
    }
    if (data == NULL) {
        blob_remove(engine->blobs, key, asked.kind, asked.rank);
        return SHERD_OK;
    }
    if (!asked.is_large) {
        SHERDI_TRY(room_check(engine, key, asked.kind, len_bytes));
    }
    return sherdi_blobs_put(engine->blobs, key, asked.kind, asked.rank, asked.is_large, data,
                            len_bytes);
}

sherd_status sherd_blob_set(sherd_engine *engine, const char *key, const void *data,
                            size_t len_bytes, const sherd_blob_params *params)
{
    SHERDI_TRY(blob_set(engine, key, data, len_bytes, params));
    if (engine->blobs->changed != NULL) {
        engine->blobs->changed(engine->blobs->ctx);
    }
    return SHERD_OK;
}

sherd_status sherd_blob_get(sherd_engine *engine, const char *key, void *data,
                            size_t *len_bytes_inout, const sherd_blob_params *params)
{
    const sherdi_blob *blob;
    sherdi_blob        asked;
    size_t             room;

    SHERDI_TRY(sherdi_engine_check_alive(engine, "sherd_blob_get"));
    SHERDI_TRY(sherdi_api_need(key != NULL, "sherd_blob_get", "key"));
    SHERDI_TRY(sherdi_api_need(len_bytes_inout != NULL, "sherd_blob_get", "len_bytes_inout"));
    SHERDI_TRY(asked_read(engine, params, &asked));
    blob = sherdi_blobs_find(engine->blobs, key, asked.kind, asked.rank);
    if (blob == NULL && asked.kind == SHERDI_BLOB_OF_RANK) {
        return sherdi_fail(SHERD_E_INVAL, "there is no blob %s of rank %d here", key, asked.rank);
    }
    if (blob == NULL) {
        return sherdi_fail(SHERD_E_INVAL, "there is no blob %s", key);
    }
    room             = *len_bytes_inout;
    *len_bytes_inout = blob->len_bytes;
    if (data != NULL && room < blob->len_bytes) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "blob %s has %zu bytes, and the buffer has %zu; give a buffer of that size", key,
            blob->len_bytes, room);
    }
    if (data != NULL && blob->len_bytes > 0) {
        memcpy(data, blob->data, blob->len_bytes);
    }
    return SHERD_OK;
}

static sherd_status blobs_create(sherd_engine *engine)
{
    engine->blobs = sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, sizeof(*engine->blobs));
    if (engine->blobs == NULL) {
        return SHERD_E_NOMEM;
    }
    sherdi_blobs_init(engine->blobs, &engine->mem);
    return SHERD_OK;
}

static void blobs_destroy(sherd_engine *engine)
{
    if (engine->blobs != NULL) {
        sherdi_blobs_fini(engine->blobs);
        sherdi_free(engine->blobs);
    }
}

const sherdi_module sherdi_module_blobs = {.create = blobs_create, .destroy = blobs_destroy};

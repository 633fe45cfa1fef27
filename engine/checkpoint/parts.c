/* See parts.h. */
#include "engine/checkpoint/parts.h"

#include "base/checked.h"
#include "collectives/broadcast.h"
#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/linked.h"
#include "engine/run/engine_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* --------------------------------------------------------------------- share -- */

/* Broadcasts bytes of any number. */
static sherd_status bytes_share(sherd_engine *engine, void *bytes, size_t len_bytes, int root)
{
    return len_bytes == 0 ? SHERD_OK
                          : sherdi_world_broadcast(engine->world, bytes, len_bytes, root);
}

/* Allocates on all ranks but the root as many bytes as the root has. Collective. */
static sherd_status copy_make(sherd_engine *engine, sherd_status own, int root, uint64_t *len_bytes,
                              char **copy_out)
{
    SHERDI_TRY(sherdi_agree_status(engine, own));
    SHERDI_TRY(sherdi_world_broadcast(engine->world, len_bytes, sizeof(*len_bytes), root));
    if (engine->rank != root) {
        *copy_out = sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, (size_t)*len_bytes + 1);
        own       = *copy_out == NULL ? SHERD_E_NOMEM : SHERD_OK;
    }
    return sherdi_agree_status(engine, own);
}

sherd_status sherdi_text_share(sherd_engine *engine, sherd_status own, int root,
                               sherdi_shared_text *shared)
{
    uint64_t len = shared->len_bytes;

    SHERDI_TRY(copy_make(engine, own, root, &len, &shared->copy));
    shared->len_bytes = (size_t)len;
    shared->text      = engine->rank == root ? shared->text : shared->copy;
    return bytes_share(engine, (void *)(uintptr_t)shared->text, shared->len_bytes, root);
}

/* ------------------------------------------------------------------- manifest -- */

static sherd_status manifest_share(sherd_engine *engine, const char *path, int root,
                                   sherdi_shared_text *shared)
{
    sherd_status status = SHERD_OK;
    char        *text   = NULL;

    if (engine->rank == root) {
        status       = sherdi_checkpoint_get(&engine->mem, path, SHERDI_MANIFEST_MOST_BYTES, &text,
                                             &shared->len_bytes);
        shared->text = text;
    }
    status = sherdi_text_share(engine, status, root, shared);
    if (engine->rank == root) {
        shared->copy = text;
    }
    return status;
}

sherd_status sherdi_parts_adopt(sherd_engine *engine, const char *dir, const char *tag, int root,
                                uint64_t checksum, int is_other)
{
    char               path[SHERDI_CHECKPOINT_PATH_BYTES];
    sherdi_shared_text shared = {.text = NULL};
    sherd_status       status = sherdi_checkpoint_path(dir, tag, SHERDI_MANIFEST_NAME, path);
    int                has    = 1;

    if (status == SHERD_OK && is_other) {
        status = sherdi_checkpoint_settle(&engine->mem, dir, tag, checksum, 0);
        has    = sherdi_checkpoint_has(path);
    }
    SHERDI_TRY(sherdi_agree_word(engine, SHERDI_EXCHANGE_PARTS, status, !has, NULL));
    if (sherdi_agree_sum(engine, engine->plan->replica) == 0) {
        return SHERD_OK;
    }
    status = manifest_share(engine, path, root, &shared);
    if (status == SHERD_OK) {
        status = sherdi_agree_status(
            engine,
            has ? SHERD_OK : sherdi_checkpoint_adopt(dir, tag, shared.text, shared.len_bytes));
    }
    sherdi_free(shared.copy);
    return status;
}

/* ---------------------------------------------------------------------- files -- */

/* A file on its way from the rank that has it to those that lack it. */
typedef struct transfer {
    sherdi_parts *parts;
    int           root, is_lacking;
    char          path[SHERDI_CHECKPOINT_PATH_BYTES];
    char          beside[SHERDI_CHECKPOINT_PATH_BYTES]; /* its name until it is complete */
    int           fd; /* below 0: this rank neither reads nor writes */
} transfer;

static sherd_status io_fail(const char *what, const char *path)
{
    return sherdi_fail(SHERD_E_IO, "cannot %s %s: %s", what, path, strerror(errno));
}

/* Of the ranks of a host that lack a file, the one that locks it writes it. What an interrupted load
 * has left is written anew. */
static sherd_status beside_open(transfer *t)
{
    t->fd = open(t->beside, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (t->fd < 0) {
        return io_fail("make", t->beside);
    }
    if (flock(t->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        (void)close(t->fd);
        t->fd = -1;
        return SHERD_OK;
    }
    return ftruncate(t->fd, 0) == 0 ? SHERD_OK : io_fail("write", t->beside);
}

static sherd_status transfer_open(transfer *t, const char *name, uint64_t *bytes_out)
{
    char        other[SHERDI_CHECKPOINT_NAME_BYTES + 8];
    struct stat at;

    (void)snprintf(other, sizeof(other), ".%s.part", name);
    SHERDI_TRY(sherdi_checkpoint_path(t->parts->dir, t->parts->tag, name, t->path));
    SHERDI_TRY(sherdi_checkpoint_path(t->parts->dir, t->parts->tag, other, t->beside));
    if (t->is_lacking) {
        return beside_open(t);
    }
    if (t->parts->engine->rank != t->root) {
        return SHERD_OK;
    }
    t->fd = open(t->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (t->fd < 0 || fstat(t->fd, &at) != 0) {
        return io_fail("open", t->path);
    }
    *bytes_out = (uint64_t)at.st_size;
    return SHERD_OK;
}

static sherd_status piece_read(const transfer *t, unsigned char *out, size_t len_bytes)
{
    for (size_t at = 0; at < len_bytes;) {
        ssize_t some = read(t->fd, out + at, len_bytes - at);

        if (some <= 0) {
            errno = some == 0 ? EIO : errno;
            return io_fail("read", t->path);
        }
        at += (size_t)some;
    }
    return SHERD_OK;
}

static sherd_status piece_write(const transfer *t, const unsigned char *bytes, size_t len_bytes)
{
    for (size_t at = 0; at < len_bytes;) {
        ssize_t some = write(t->fd, bytes + at, len_bytes - at);

        if (some < 0) {
            return io_fail("write", t->beside);
        }
        at += (size_t)some;
    }
    return SHERD_OK;
}

/* Sends all pieces. A rank that fails goes on with the calls, and all learn of it at the end. */
static sherd_status pieces_send(const transfer *t, uint64_t bytes)
{
    sherd_engine *engine = t->parts->engine;
    sherd_status  status = SHERD_OK;

    for (uint64_t at = 0; at < bytes; at += t->parts->buffer_bytes) {
        size_t some = sherdi_min_size(t->parts->buffer_bytes, (size_t)(bytes - at));

        if (status == SHERD_OK && engine->rank == t->root) {
            status = piece_read(t, t->parts->buffer, some);
        }
        SHERDI_TRY(sherdi_world_broadcast(engine->world, t->parts->buffer, some, t->root));
        if (status == SHERD_OK && t->is_lacking && t->fd >= 0) {
            status = piece_write(t, t->parts->buffer, some);
        }
    }
    if (status == SHERD_OK && t->is_lacking && t->fd >= 0 && fsync(t->fd) != 0) {
        status = io_fail("write", t->beside);
    }
    return status;
}

static sherd_status transfer_end(const transfer *t, sherd_status status)
{
    int is_writer = t->is_lacking && t->fd >= 0;

    status = sherdi_agree_status(t->parts->engine, status);
    if (is_writer && status == SHERD_OK && rename(t->beside, t->path) != 0) {
        status = io_fail("give its name to", t->path);
    }
    if (is_writer && status != SHERD_OK) {
        (void)unlink(t->beside);
    }
    if (t->fd >= 0) {
        (void)close(t->fd);
    }
    return status;
}

/* Sends a file. Collective. */
static sherd_status file_send(sherdi_parts *parts, const char *name, int root, int is_lacking)
{
    transfer     t      = {.parts = parts, .root = root, .is_lacking = is_lacking, .fd = -1};
    uint64_t     bytes  = 0;
    sherd_status status = sherdi_agree_status(parts->engine, transfer_open(&t, name, &bytes));

    if (status == SHERD_OK) {
        status = sherdi_world_broadcast(parts->engine->world, &bytes, sizeof(bytes), root);
        status = status == SHERD_OK ? pieces_send(&t, bytes) : status;
        return sherdi_agree_status(parts->engine, transfer_end(&t, status));
    }
    if (t.fd >= 0) { /* what it has made is written anew by the next load */
        (void)close(t.fd);
    }
    return status;
}

/* Sends a data file, after the linked state that it describes. Collective. */
static sherd_status data_file_send(sherdi_parts *parts, sherdi_data_file which, int rank, int root,
                                   int is_lacking)
{
    int      world_size = sherdi_reader_manifest(parts->reader)->world_size;
    uint64_t stripes    = 0;
    char     name[SHERDI_CHECKPOINT_NAME_BYTES];

    if (which == SHERDI_DATA_STATE && parts->engine->rank == root) {
        stripes = (uint64_t)sherdi_reader_stripes(parts->reader, rank);
    }
    SHERDI_TRY(sherdi_world_broadcast(parts->engine->world, &stripes, sizeof(stripes), root));
    for (int i = 0; i < (int)stripes; i++) {
        sherdi_linked_stripe_name(rank, world_size, i, name);
        SHERDI_TRY(file_send(parts, name, root, is_lacking));
    }
    sherdi_data_file_name(which, rank, world_size, name);
    return file_send(parts, name, root, is_lacking);
}

/* ------------------------------------------------------------------ who has what -- */

/* What a rank says of a file. */
#define HAS   ((uint64_t)1)
#define LACKS ((uint64_t)2)

/* What is known of a file. */
typedef struct file_state {
    int root;       /* the first rank that has it; below 0: none */
    int is_lacking; /* this rank */
    int is_wanted;  /* by a rank that lacks it */
} file_state;

/* Asks all ranks about a file. Collective. */
static sherd_status file_ask(sherdi_parts *parts, int at, file_state *out)
{
    int          is_there = 0;
    int          needs    = (&parts->needs[0][0])[at];
    sherd_status status =
        sherdi_reader_look(parts->reader, (sherdi_data_file)(at % SHERDI_DATA_FILES),
                           at / SHERDI_DATA_FILES, &is_there);

    *out = (file_state){.root = -1, .is_lacking = needs && !is_there};
    SHERDI_TRY(sherdi_agree_word(parts->engine, SHERDI_EXCHANGE_PARTS, status,
                                 (is_there ? HAS : 0) | (out->is_lacking ? LACKS : 0), NULL));
    for (int r = parts->engine->world_size - 1; r >= 0; r--) {
        uint64_t word = sherdi_agree_word_of(parts->engine, r);

        out->root = word & HAS ? r : out->root;
        out->is_wanted |= (word & LACKS) != 0;
    }
    return SHERD_OK;
}

/* Fails with what is missing, the same on all ranks. */
static sherd_status missing_fail(const sherdi_parts *parts, int at, int count)
{
    const sherdi_manifest *m    = sherdi_reader_manifest(parts->reader);
    int                    rank = at / SHERDI_DATA_FILES;
    const char            *host = sherdi_manifest_host(m, rank);
    char                   name[SHERDI_CHECKPOINT_NAME_BYTES];
    char                   more[64]                                = "";
    char                   from[SHERDI_CHECKPOINT_HOST_BYTES + 32] = "";

    sherdi_data_file_name((sherdi_data_file)(at % SHERDI_DATA_FILES), rank, m->world_size, name);
    if (count > 1) {
        (void)snprintf(more, sizeof(more), ", and %d more files", count - 1);
    }
    if (host[0] != '\0') {
        (void)snprintf(from, sizeof(from), " that rank %d wrote on host %s", rank, host);
    }
    return sherdi_fail(SHERD_E_IO,
                       "%s: no rank has %s%s%s; copy %s/*-%05d-of-%05d*%s%s into that folder of "
                       "any host of this job, or load another checkpoint",
                       parts->tag, name, from, more, parts->tag, rank, m->world_size,
                       host[0] == '\0' ? "" : " of host ", host);
}

/* Finds who has each file, and sends those that are wanted. Collective. */
static sherd_status files_send(sherdi_parts *parts, file_state *states)
{
    const sherdi_manifest *m       = sherdi_reader_manifest(parts->reader);
    int                    missing = 0;
    int                    first   = 0;
    char                   name[SHERDI_CHECKPOINT_NAME_BYTES];

    for (int at = -1; sherdi_manifest_next_file(m, &at, name);) {
        SHERDI_TRY(file_ask(parts, at, &states[at]));
        if (states[at].is_wanted && states[at].root < 0) {
            first = missing++ == 0 ? at : first;
        }
    }
    if (missing > 0) {
        return missing_fail(parts, first, missing);
    }
    for (int at = -1; sherdi_manifest_next_file(m, &at, name);) {
        if (states[at].is_wanted) {
            SHERDI_TRY(data_file_send(parts, (sherdi_data_file)(at % SHERDI_DATA_FILES),
                                      at / SHERDI_DATA_FILES, states[at].root,
                                      states[at].is_lacking));
        }
    }
    return SHERD_OK;
}

/* ---------------------------------------------------------------------- blobs -- */

/* The beginning of a blob's message. */
typedef struct blob_message {
    char     key[SHERD_BLOB_KEY_BYTES + 1];
    uint64_t is_large;
} blob_message;

static sherd_status blob_share(sherdi_parts *parts, const sherdi_blob *blob, int root)
{
    sherd_engine *engine  = parts->engine;
    uint64_t      len     = blob == NULL ? 0 : blob->len_bytes;
    blob_message  message = {.is_large = blob != NULL && blob->is_large};
    char         *copy    = NULL;
    sherd_status  status  = copy_make(engine, SHERD_OK, root, &len, &copy);

    if (blob != NULL) {
        memcpy(message.key, blob->key, sizeof(message.key));
    }
    status = status == SHERD_OK
                 ? sherdi_world_broadcast(engine->world, &message, sizeof(message), root)
                 : status;
    status = status == SHERD_OK
                 ? bytes_share(engine, blob == NULL ? copy : (char *)blob->data, (size_t)len, root)
                 : status;
    if (status == SHERD_OK && blob == NULL) {
        status = sherdi_blobs_put(parts->blobs, message.key, SHERDI_BLOB_GLOBAL, 0,
                                  (int)message.is_large, copy, (size_t)len);
    }
    sherdi_free(copy);
    return status;
}

/* Gives the blobs of the run to all ranks. Collective. */
static sherd_status blobs_share(sherdi_parts *parts, int root)
{
    sherd_engine *engine = parts->engine;
    sherd_status  status = SHERD_OK;
    uint64_t      count;

    if (engine->rank == root) {
        status = sherdi_reader_blobs(parts->reader, SHERDI_BLOB_GLOBAL, 0, parts->blobs);
    }
    SHERDI_TRY(sherdi_agree_status(engine, status));
    count = parts->blobs->count;
    SHERDI_TRY(sherdi_world_broadcast(engine->world, &count, sizeof(count), root));
    for (uint64_t i = 0; i < count; i++) {
        status = blob_share(parts, engine->rank == root ? &parts->blobs->list[i] : NULL, root);
        SHERDI_TRY(sherdi_agree_status(engine, status));
    }
    parts->has_blobs = 1;
    return SHERD_OK;
}

/* ------------------------------------------------------------------------ all -- */

/* What a rank lacks: the number of files, and above them whether it lacks the blobs of the run. */
#define LACKS_BLOBS ((uint64_t)1 << 40)

/* Counts what this rank lacks. */
static sherd_status lacks_count(sherdi_parts *parts, uint64_t *out)
{
    const sherdi_manifest *m = sherdi_reader_manifest(parts->reader);
    char                   name[SHERDI_CHECKPOINT_NAME_BYTES];

    for (int at = -1; sherdi_manifest_next_file(m, &at, name);) {
        int needs    = (&parts->needs[0][0])[at];
        int is_there = 1;

        if (needs || (at == 0 && parts->needs_blobs)) {
            SHERDI_TRY(sherdi_reader_look(parts->reader, (sherdi_data_file)(at % SHERDI_DATA_FILES),
                                          at / SHERDI_DATA_FILES, &is_there));
        }
        *out += needs && !is_there;
        *out += at == 0 && parts->needs_blobs && !is_there ? LACKS_BLOBS : 0;
    }
    return SHERD_OK;
}

/* Brings the files. Collective. */
static sherd_status files_complete(sherdi_parts *parts)
{
    size_t files = (size_t)sherdi_reader_manifest(parts->reader)->world_size * SHERDI_DATA_FILES;
    file_state *states =
        sherdi_alloc_array(&parts->engine->mem, SHERDI_MEM_CONTROL, files, sizeof(*states));
    sherd_status status =
        sherdi_agree_status(parts->engine, states == NULL ? SHERD_E_NOMEM : SHERD_OK);

    status = status == SHERD_OK ? files_send(parts, states) : status;
    sherdi_free(states);
    return status;
}

sherd_status sherdi_parts_complete(sherdi_parts *parts, sherd_status own)
{
    sherd_engine *engine     = parts->engine;
    uint64_t      lacks      = 0;
    uint64_t      all        = 0;
    int           blobs_root = engine->world_size;
    int           is_blobs   = 0;

    own = own == SHERD_OK ? lacks_count(parts, &lacks) : own;
    SHERDI_TRY(sherdi_agree_word(engine, SHERDI_EXCHANGE_PARTS, own, lacks, NULL));
    for (int r = engine->world_size - 1; r >= 0; r--) {
        uint64_t word = sherdi_agree_word_of(engine, r);

        all += word & (LACKS_BLOBS - 1);
        is_blobs |= word >= LACKS_BLOBS;
        blobs_root = word >= LACKS_BLOBS ? blobs_root : r;
    }
    if (is_blobs && blobs_root == engine->world_size) { /* all need the file then */
        parts->needs[0][SHERDI_DATA_STATE] = 1;
        all++;
        is_blobs = 0;
    }
    SHERDI_TRY(all > 0 ? files_complete(parts) : SHERD_OK);
    return is_blobs ? blobs_share(parts, blobs_root) : SHERD_OK;
}

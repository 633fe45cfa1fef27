/* See parts.h. */
#include "engine/checkpoint/parts.h"

#include "collectives/broadcast.h"
#include "engine/checkpoint/folder.h"
#include "engine/run/engine_impl.h"

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
    if (sherdi_agree_sum(engine) == 0) {
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

/* A save on hosts that may not share the folder of checkpoints. The ranks that see one folder have an
 * owner, which does there what rank 0 does in a folder that all share. Nobody says which hosts share
 * it: marks show it, at each save. folder.h says why the checkpoint is complete on all hosts or on
 * none. */
#include "engine/checkpoint/save_impl.h"

#include "base/log.h"
#include "base/random.h"
#include "collectives/broadcast.h"
#include "engine/checkpoint/parts.h"
#include "engine/run/agree.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The most prepared parts of earlier saves that one save settles. */
#define MOST_PREPARED 8

/* The most bytes of the names of hosts in a message. */
#define NAMES_BYTES 512

/* -------------------------------------------------------------------- owners -- */

static int is_owner(const sherdi_save *save)
{
    return save->owners[save->engine->rank] == save->engine->rank;
}

static sherd_status folder_make(sherdi_save *save, const char *mark)
{
    SHERDI_TRY(sherdi_checkpoint_begin(save->dir, save->tag, &save->claim));
    return sherdi_checkpoint_mark(mark);
}

/* A rank makes its folder with a mark, and becomes the owner of all ranks that see the mark and have
 * no owner yet. Collective. */
static sherd_status owner_add(sherdi_save *save, int owner, const char *name)
{
    sherd_engine *engine = save->engine;
    sherd_status  status = SHERD_OK;
    int           sees   = 0;
    char          mark[SHERDI_CHECKPOINT_PATH_BYTES];

    SHERDI_TRY(sherdi_checkpoint_partial_path(save->dir, save->tag, name, mark));
    SHERDI_TRY(
        sherdi_agree_status(engine, engine->rank == owner ? folder_make(save, mark) : SHERD_OK));
    if (save->owners[engine->rank] < 0) {
        status = sherdi_checkpoint_sees(save->dir, save->tag, name, &sees);
    }
    status = sherdi_agree_word(engine, SHERDI_EXCHANGE_PARTS, status, (uint64_t)sees, NULL);
    if (engine->rank == owner) {
        sherdi_checkpoint_unlink(mark);
    }
    SHERDI_TRY(status);
    for (int r = 0; r < engine->world_size; r++) {
        save->owners[r] = sherdi_agree_word_of(engine, r) != 0 ? owner : save->owners[r];
    }
    save->owners[owner] = owner; /* even on a file system that shows nothing */
    save->num_owners++;
    return SHERD_OK;
}

/* ---------------------------------------------------------------------- hosts -- */

/* What an owner says of its host. */
typedef struct owner_message {
    char     host[SHERDI_CHECKPOINT_HOST_BYTES];
    uint64_t num_prepared; /* parts of which another host knows whether they are complete */
    char     prepared[MOST_PREPARED][SHERDI_CHECKPOINT_NAME_BYTES];
    uint64_t checksums[MOST_PREPARED]; /* of their manifests */
} owner_message;

static void message_fill(const sherdi_save *save, owner_message *message)
{
    memset(message, 0, sizeof(*message));
    if (gethostname(message->host, sizeof(message->host) - 1) != 0 || message->host[0] == '\0') {
        (void)snprintf(message->host, sizeof(message->host), "of-rank-%d", save->engine->rank);
    }
    for (char *at = message->host; *at != '\0'; at++) {
        *at = *at <= ' ' || *at > '~' ? '?' : *at;
    }
}

/* Lists the prepared parts of this owner, as many as can be read. */
static sherd_status prepared_list(const sherdi_save *save, owner_message *message)
{
    size_t count = sherdi_checkpoint_prepared(save->dir, message->prepared, MOST_PREPARED);

    for (size_t i = 0; i < count; i++) {
        SHERDI_TRY(sherdi_checkpoint_checksum(&save->engine->mem, save->dir, message->prepared[i],
                                              1, &message->checksums[i]));
        message->num_prepared++;
    }
    return SHERD_OK;
}

/* Finds the prepared parts of another owner that belong to checkpoints of this one: bit i is part
 * i. */
static sherd_status prepared_judge(const sherdi_save *save, const owner_message *message,
                                   uint64_t *complete_out)
{
    for (uint64_t i = 0; i < message->num_prepared && is_owner(save); i++) {
        uint64_t here;

        SHERDI_TRY(sherdi_checkpoint_checksum(&save->engine->mem, save->dir, message->prepared[i],
                                              0, &here));
        *complete_out |= (uint64_t)(here != 0 && here == message->checksums[i]) << i;
    }
    return SHERD_OK;
}

/* Settles the prepared parts of an owner. One belongs to a complete checkpoint if any host has that
 * checkpoint: rank 0 of its save then was the first to have it. Collective. */
static sherd_status prepared_settle(sherdi_save *save, int owner, const owner_message *message)
{
    sherd_engine *engine   = save->engine;
    uint64_t      complete = 0;
    sherd_status  status   = prepared_judge(save, message, &complete);

    SHERDI_TRY(sherdi_agree_word(engine, SHERDI_EXCHANGE_PARTS, status, complete, NULL));
    for (int r = 0; r < engine->world_size; r++) {
        complete |= sherdi_agree_word_of(engine, r);
    }
    for (uint64_t i = 0; i < message->num_prepared && engine->rank == owner; i++) {
        if (sherdi_checkpoint_settle(&engine->mem, save->dir, message->prepared[i],
                                     complete >> i & 1 ? message->checksums[i] : 0,
                                     1) != SHERD_OK) {
            sherdi_log(SHERD_LOG_WARN, engine->rank,
                       "a part of a checkpoint could neither be completed nor removed: %s",
                       sherd_last_error());
        }
    }
    return SHERD_OK;
}

/* Learns the hosts of all owners, for the manifest, and settles what interrupted saves have left
 * there. Collective. */
static sherd_status hosts_learn(sherdi_save *save)
{
    sherd_engine    *engine = save->engine;
    sherdi_manifest *m      = &save->manifest;
    sherd_status     status = SHERD_OK;
    owner_message    message;

    m->hosts =
        sherdi_alloc_array(m->mem, SHERDI_MEM_CONTROL, (size_t)m->world_size, sizeof(*m->hosts));
    SHERDI_TRY(sherdi_agree_status(engine, m->hosts == NULL ? SHERD_E_NOMEM : SHERD_OK));
    for (int owner = 0; owner < engine->world_size; owner++) {
        if (save->owners[owner] != owner) {
            continue;
        }
        if (engine->rank == owner) {
            message_fill(save, &message);
            status = prepared_list(save, &message);
        }
        SHERDI_TRY(sherdi_world_broadcast(engine->world, &message, sizeof(message), owner));
        for (int r = 0; r < engine->world_size; r++) {
            if (save->owners[r] == owner) {
                memcpy(m->hosts[r], message.host, sizeof(message.host));
            }
        }
        if (message.num_prepared > 0) {
            SHERDI_TRY(prepared_settle(save, owner, &message));
        }
    }
    return sherdi_agree_status(engine, status);
}

/* Says once that hosts do not share the folder: it may have been forgotten to mount it. */
static void hosts_tell(sherdi_save *save)
{
    char   names[NAMES_BYTES] = "";
    size_t used               = 0;

    if (save->engine->checkpoints->has_told || save->engine->rank != 0) {
        return;
    }
    save->engine->checkpoints->has_told = 1;
    for (int r = 0; r < save->engine->world_size && used < sizeof(names); r++) {
        if (save->owners[r] == r) {
            used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", r == 0 ? "" : ", ",
                                     save->manifest.hosts[r]);
        }
    }
    sherdi_log(
        SHERD_LOG_WARN, 0,
        "%d hosts do not share the folder %s: each has a part of the checkpoints there (%s), "
        "and a run goes on from them where it finds all parts",
        save->num_owners, save->dir, names);
}

sherd_status sherdi_save_folders_make(sherdi_save *save)
{
    sherd_engine *engine = save->engine;
    uint64_t      nonce  = engine->rank == 0 ? sherdi_random_u64() : 0;
    char          name[32];

    for (int r = 0; r < engine->world_size; r++) {
        save->owners[r] = -1;
    }
    SHERDI_TRY(sherdi_world_broadcast(engine->world, &nonce, sizeof(nonce), 0));
    (void)snprintf(name, sizeof(name), "seen-%016llx", (unsigned long long)nonce);
    for (int owner = 0; owner < engine->world_size; owner++) {
        if (save->owners[owner] < 0) {
            SHERDI_TRY(owner_add(save, owner, name));
        }
    }
    if (save->num_owners > 1) {
        SHERDI_TRY(hosts_learn(save));
        hosts_tell(save);
    }
    return SHERD_OK;
}

/* -------------------------------------------------------------------- publish -- */

static sherd_status part_prepare(const sherdi_save *save, const char *text, size_t len_bytes)
{
    if (!is_owner(save)) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_checkpoint_put(save->folder, SHERDI_MANIFEST_NAME, text, len_bytes));
    return save->engine->rank == 0 ? SHERD_OK : sherdi_checkpoint_prepare(save->dir, save->tag);
}

/* A part stays prepared if it is not known whether rank 0 has completed the checkpoint: the next save
 * or load finds out. */
static sherd_status parts_finish(sherdi_save *save, const char *text, size_t len_bytes)
{
    sherd_engine *engine  = save->engine;
    int           is_part = is_owner(save) && engine->rank != 0;
    sherd_status  status  = sherdi_agree_status(engine, part_prepare(save, text, len_bytes));

    if (status != SHERD_OK) {
        if (is_part && status != SHERD_E_PEER_LOST) {
            sherdi_checkpoint_withdraw(save->dir, save->tag);
        }
        return status;
    }
    SHERDI_TRY(sherdi_agree_status(
        engine, engine->rank == 0 ? sherdi_checkpoint_finish(save->dir, save->tag, &save->claim)
                                  : SHERD_OK));
    return sherdi_agree_status(
        engine,
        is_part ? sherdi_checkpoint_finish_part(save->dir, save->tag, &save->claim) : SHERD_OK);
}

sherd_status sherdi_save_publish_parts(sherdi_save *save, const char *text, size_t len_bytes)
{
    sherdi_shared_text shared = {.text = text, .len_bytes = len_bytes};
    sherd_status       status = sherdi_text_share(save->engine, SHERD_OK, 0, &shared);

    status = status == SHERD_OK ? parts_finish(save, shared.text, shared.len_bytes) : status;
    sherdi_free(shared.copy);
    return status;
}

/* --------------------------------------------------------------------- remove -- */

/* Takes a tag out of a list of checkpoints that are to be removed. */
static void old_keep(sherdi_checkpoint_found *old, size_t count, const char *tag)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(old[i].tag, tag) == 0) {
            old[i].tag[0] = '\0';
        }
    }
}

/* Takes the checkpoints that rank 0 has out of the lists of the others. Returns 0 if it could not.
 * Collective. */
static int old_agree(const sherdi_save *save, const sherdi_checkpoint_found *kept, uint64_t count,
                     sherdi_checkpoint_found *old, size_t num_old)
{
    sherd_world *world = save->engine->world;
    char         tag[SHERDI_CHECKPOINT_NAME_BYTES];

    if (sherdi_world_broadcast(world, &count, sizeof(count), 0) != SHERD_OK) {
        return 0;
    }
    for (uint64_t i = 0; i < count; i++) {
        if (save->engine->rank == 0) {
            memcpy(tag, kept[i].tag, sizeof(tag));
        }
        if (sherdi_world_broadcast(world, tag, sizeof(tag), 0) != SHERD_OK) {
            return 0;
        }
        old_keep(old, num_old, tag);
    }
    return count > 0; /* there is at least the one that was just saved, unless rank 0 cannot look */
}

void sherdi_save_parts_remove(const sherdi_save *save)
{
    int                      is_first = save->engine->rank == 0;
    size_t                   keep     = (size_t)save->params.keep_last;
    sherdi_checkpoint_found *all      = NULL;
    size_t                   count    = 0;
    size_t                   old;
    sherdi_mem               mem;

    if (keep == 0) {
        return;
    }
    sherdi_mem_init(&mem);
    if (is_owner(save) && sherdi_checkpoint_list(&mem, save->dir, &all, &count) != SHERD_OK) {
        count = 0;
    }
    old = is_first || count < keep ? 0 : count - keep;
    if (!old_agree(save, all, is_first ? count : 0, all, old)) {
        old = 0;
    }
    for (size_t i = 0; i < old; i++) {
        if (all[i].tag[0] != '\0' && sherdi_checkpoint_remove(save->dir, all[i].tag) != SHERD_OK) {
            sherdi_log(SHERD_LOG_WARN, save->engine->rank,
                       "the part of an old checkpoint could not be removed: %s",
                       sherd_last_error());
        }
    }
    if (count > 0) {
        sherdi_free(all);
    }
}

/* sherd_world_split: finds the group of each rank, and makes all ranks return the same result. The
 * transport makes the world of a group (sherdi_world_ops.split). */
#include "collectives/split.h"

#include "collectives/group.h"

#include "base/checked.h"
#include "base/random.h"
#include "collectives/alone.h"
#include "collectives/family.h"
#include "collectives/threads.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The request of a rank. */
typedef struct split_wish {
    int32_t  color;
    int32_t  key;
    uint64_t token; /* rank 0's identifies this split */
} split_wish;

typedef struct split_message {
    int32_t       status;
    char          text[SHERDI_ERROR_BYTES];
    unsigned char data[SPLIT_TOLD_BYTES];
} split_message;

_Static_assert(sizeof(split_message) <= SHERDI_TOLD_BYTES &&
                   sizeof(split_wish) <= sizeof(split_message),
               "what all ranks tell fits the scratch of sums");

/* Gives each rank's data to all ranks, in the scratch of sums: a rank that failed must take part
 * too, so nothing may have to be allocated. */
static sherd_status ranks_exchange(sherd_world *parent, const void *mine, size_t len_bytes)
{
    const sherdi_all_gather_args args = {.send        = mine,
                                         .recv        = parent->sum_scratch,
                                         .slice_bytes = len_bytes,
                                         .flags       = SHERDI_COLL_HOST,
                                         .what        = "sherd_world_split"};

    return sherdi_world_all_gather(parent, &args, NULL);
}

/* ------------------------------------------------------------ for transports -- */

static void message_read(const sherdi_split *split, int rank, size_t len_bytes, split_message *out)
{
    const unsigned char *all = (const unsigned char *)split->parent->sum_scratch;

    memcpy(out, all + (size_t)rank * len_bytes, len_bytes);
    out->text[sizeof(out->text) - 1] = '\0';
}

/* Finds the rank whose failure is the cause. E_PEER_LOST is often only the consequence: ranks that
 * waited for a failed rank return it. */
static int cause_find(const sherdi_split *split, size_t len_bytes)
{
    int cause = -1;

    for (int r = 0; r < split->parent->world_size; r++) {
        split_message message;

        message_read(split, r, len_bytes, &message);
        if (message.status != SHERD_OK && message.status != SHERD_E_PEER_LOST) {
            return r;
        }
        if (message.status != SHERD_OK && cause < 0) {
            cause = r;
        }
    }
    return cause;
}

sherd_status sherdi_split_tell(sherdi_split *split, sherd_status here, void *data, size_t len_bytes)
{
    size_t        told_bytes = offsetof(split_message, data) + len_bytes;
    split_message message;
    int           cause;

    if (split->is_over || split->parent->world_size == 1) {
        return here;
    }
    memset(&message, 0, sizeof(message));
    message.status = (int32_t)here;
    if (here != SHERD_OK) {
        (void)snprintf(message.text, sizeof(message.text), "%s", sherd_last_error());
    } else if (len_bytes > 0) {
        memcpy(message.data, data, len_bytes);
    }
    SHERDI_TRY(ranks_exchange(split->parent, &message, told_bytes));
    cause = cause_find(split, told_bytes);
    if (cause >= 0) {
        split->is_over = 1;
        message_read(split, cause, told_bytes, &message);
        return sherdi_fail((sherd_status)message.status, "sherd_world_split: rank %d: %s", cause,
                           message.text);
    }
    if (split->world_size > 0 && len_bytes > 0) {
        message_read(split, split->ranks[0], told_bytes, &message);
        memcpy(data, message.data, len_bytes);
    }
    return SHERD_OK;
}

void sherdi_split_adopt(const sherdi_split *split, sherd_world *child)
{
    const sherd_world *parent = split->parent;

    child->first  = split->first;
    child->stride = split->stride;
    child->share  = parent->share;
    child->shares = parent->shares;
    child->crowd  = parent->crowd > parent->local_size ? parent->crowd : parent->local_size;
    sherdi_family_join(split->parent, child);
}

/* ---------------------------------------------------------------- the groups -- */

static int comes_before(const split_wish *wishes, int a, int b)
{
    return wishes[a].key != wishes[b].key ? wishes[a].key < wishes[b].key : a < b;
}

/* Counts the ranks of the same color that come before `rank`: its rank in the group. */
static int place_of(const split_wish *wishes, int world_size, int rank)
{
    int place = 0;

    for (int r = 0; r < world_size; r++) {
        place += wishes[r].color == wishes[rank].color && comes_before(wishes, r, rank);
    }
    return place;
}

static sherd_status group_find(sherdi_split *split, const split_wish *wishes)
{
    const sherd_world *parent = split->parent;
    int                color  = wishes[parent->rank].color;

    if (color < 0) {
        return SHERD_OK;
    }
    for (int r = 0; r < parent->world_size; r++) {
        split->world_size += wishes[r].color == color;
    }
    split->ranks = calloc((size_t)split->world_size, sizeof(*split->ranks));
    if (split->ranks == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for a list of %d ranks", split->world_size);
    }
    for (int r = 0; r < parent->world_size; r++) {
        if (wishes[r].color == color) {
            split->ranks[place_of(wishes, parent->world_size, r)] = r;
        }
    }
    split->rank = place_of(wishes, parent->world_size, parent->rank);
    return SHERD_OK;
}

void sherdi_split_params(const sherd_world *parent, sherd_world_params *out)
{
    *out                 = sherdi_world_standard;
    out->transport       = parent->ops->name;
    out->timeout_ns      = parent->timeout_ns;
    out->host_timeout_ns = parent->host_timeout_ns;
    out->cpu_threads     = parent->cpu_threads;
    out->backend         = parent->backend->name;
    if (sherdi_world_has_device(parent)) {
        out->device = parent->device->index;
    }
}

/* ------------------------------------------------------------------ the call -- */

static sherd_status self_split(sherdi_split *split, sherd_world **out)
{
    if (split->world_size == 0) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_self_create(&split->params, out));
    sherdi_split_adopt(split, *out);
    return SHERD_OK;
}

/* NULL: the world cannot be split. */
static sherd_status (*split_of(const sherd_world *world))(sherdi_split *, sherd_world **)
{
    return world->ops == &sherdi_self_ops      ? self_split
           : world->ops == &sherdi_threads_ops ? sherdi_threads_split
                                               : world->ops->split;
}

/* The transport's world is usable when all ranks have theirs. A rank that cannot continue notifies
 * the others at once, because ranks of its group may be waiting for it. */
static sherd_status child_make(sherdi_split *split, uint64_t token, sherd_world **out)
{
    sherd_world *parent = split->parent;
    sherd_world *child  = NULL;
    sherd_status status = split_of(parent)(split, &child);

    if (status != SHERD_OK && !split->is_over && parent->world_size > 1 &&
        parent->ops->tell_ending != NULL) {
        parent->ops->tell_ending(parent, token, 0);
    }
    status = sherdi_split_tell(split, status, NULL, 0);
    if (status != SHERD_OK) {
        const sherdi_outcome failed = sherdi_outcome_of(status);

        sherd_world_destroy(child);
        return sherdi_outcome_end(&failed);
    }
    *out = child;
    return SHERD_OK;
}

static sherd_status split_run(sherdi_split *split, const split_wish *mine, sherd_world **out)
{
    sherd_world      *parent = split->parent;
    const split_wish *wishes = mine;
    uint64_t          token;
    sherd_status      status;

    if (parent->world_size > 1) {
        SHERDI_TRY(ranks_exchange(parent, mine, sizeof(*mine)));
        wishes = (const split_wish *)(const void *)parent->sum_scratch;
    }
    token  = wishes[0].token;
    status = group_find(split, wishes);
    if (status == SHERD_OK) {
        status = sherdi_family_begin(parent, token);
    }
    status = sherdi_split_tell(split, status, NULL, 0);
    if (status == SHERD_OK) {
        sherdi_split_params(parent, &split->params);
        status = child_make(split, token, out);
    }
    sherdi_family_end(parent, status == SHERD_OK ? *out : NULL);
    return status;
}

/* Splits the world; `first` and `stride` as in sherdi_split. */
static sherd_status world_split(sherd_world *world, int color, int key, int first, int stride,
                                sherd_world **out)
{
    const split_wish mine  = {.color = color, .key = key, .token = sherdi_random_u64()};
    sherdi_split     split = {.parent = world, .rank = -1, .first = first, .stride = stride};
    sherd_world     *child = NULL;
    sherd_status     status;

    if (split_of(world) == NULL) {
        return sherdi_fail(SHERD_E_NOTSUP, "a world over transport %s cannot be split",
                           world->ops->name);
    }
    status = split_run(&split, &mine, &child);
    free(split.ranks);
    SHERDI_TRY(status);
    *out = child;
    return SHERD_OK;
}

sherd_status sherd_world_split(sherd_world *world, int color, int key, sherd_world **out)
{
    SHERDI_TRY(sherdi_api_check_out(out, "sherd_world_split"));
    SHERDI_TRY(sherdi_world_check_caller(world, "sherd_world_split"));
    SHERDI_TRY(sherdi_world_check_process(world));
    if (world->ops->caps & SHERDI_WORLD_SIMULATES) {
        return sherdi_fail(SHERD_E_NOTSUP,
                           "a simulated world cannot be split: it knows the color of its own rank "
                           "only; simulate the world of the group (sherd_world_simulate)");
    }
    return world_split(world, color, key, 0, 0, out);
}

sherd_status sherdi_world_group(sherd_world *world, int first, int stride, int count,
                                sherd_world **out)
{
    sherdi_split split = {.parent     = world,
                          .rank       = (world->rank - first) / stride,
                          .world_size = count,
                          .first      = first,
                          .stride     = stride};

    return (world->ops->caps & SHERDI_WORLD_SIMULATES) != 0
               ? world->ops->split(&split, out)
               : world_split(world, first, world->rank, first, stride, out);
}

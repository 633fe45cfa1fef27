/* See family.h. Locks are taken from parent to child, never the other way round. */
#include "collectives/family.h"

#include "collectives/listeners.h"

#include <stdlib.h>

/* Owned by the parent and by each child. */
typedef struct kinship {
    world_listener  common; /* first */
    atomic_int      owners;
    pthread_mutex_t lock;       /* guards the members below */
    sherd_world    *first;      /* children that are alive */
    uint64_t        key;        /* key of the split in progress; 0: none */
    int             is_refused; /* a rank has said that it cannot go on with this split */
} kinship;

static void family_drop(world_listener *common)
{
    kinship *family = (kinship *)common;

    if (atomic_fetch_sub(&family->owners, 1) == 1) {
        (void)pthread_mutex_destroy(&family->lock);
        free(family);
    }
}

/* Call it under the lock. While a child is being made, its ranks are ranks of the parent, which all
 * learn of the failure there. */
static void child_fail(sherd_world *child, sherd_status status, const char *text)
{
    if (child->is_made) {
        (void)sherdi_world_fail(child, status,
                                "the world from which this one was split has failed: %s", text);
    } else {
        sherdi_world_set_failed(child, status, text);
    }
}

static void family_failed(sherd_world *parent, world_listener *self)
{
    kinship *family = (kinship *)self;

    (void)pthread_mutex_lock(&family->lock);
    for (sherd_world *child = family->first; child != NULL; child = child->next_of_kin) {
        child_fail(child, parent->failure_status, parent->failure_text);
    }
    (void)pthread_mutex_unlock(&family->lock);
}

/* Call it under the lock. Fails the child that is being made, which will not be completed. */
static void child_refuse(sherd_world *child)
{
    if (!child->is_made) {
        sherdi_world_set_failed(child, SHERD_E_PEER_LOST,
                                "another rank could not go on with sherd_world_split");
    }
}

/* A rank that says no cannot go on with the split of that key. */
static void family_told(sherd_world *parent, world_listener *self, uint64_t key, int is_agreed)
{
    kinship *family = (kinship *)self;

    (void)parent;
    (void)pthread_mutex_lock(&family->lock);
    if (family->key == key && !is_agreed) {
        family->is_refused = 1;
        for (sherd_world *child = family->first; child != NULL; child = child->next_of_kin) {
            child_refuse(child);
        }
    }
    (void)pthread_mutex_unlock(&family->lock);
}

static void family_leave(sherd_world *child)
{
    kinship      *family = (kinship *)child->kin;
    sherd_world **at     = &family->first;

    (void)pthread_mutex_lock(&family->lock);
    while (*at != child) {
        at = &(*at)->next_of_kin;
    }
    *at = child->next_of_kin;
    (void)pthread_mutex_unlock(&family->lock);
    child->kin = NULL;
    family_drop(&family->common);
}

static const world_listener_ops FAMILY_OPS = {
    .failed = family_failed, .told = family_told, .leave = family_leave, .drop = family_drop};

/* NULL: there is none yet. */
static kinship *family_of(const sherd_world *parent)
{
    return (kinship *)sherdi_world_listener(parent, &FAMILY_OPS);
}

static sherd_status family_create(kinship **out)
{
    kinship *family = calloc(1, sizeof(*family));

    if (family == NULL) {
        return sherdi_fail(SHERD_E_NOMEM,
                           "no memory for the link between a world and those split from it");
    }
    family->common.ops = &FAMILY_OPS;
    atomic_init(&family->owners, 1);
    (void)pthread_mutex_init(&family->lock, NULL);
    *out = family;
    return SHERD_OK;
}

sherd_status sherdi_family_begin(sherd_world *parent, uint64_t key)
{
    kinship *family = family_of(parent);

    if (family == NULL) {
        SHERDI_TRY(family_create(&family));
        sherdi_world_listen(parent, &family->common);
    }
    (void)pthread_mutex_lock(&family->lock);
    family->key        = key;
    family->is_refused = 0;
    (void)pthread_mutex_unlock(&family->lock);
    return SHERD_OK;
}

void sherdi_family_end(sherd_world *parent, sherd_world *child)
{
    kinship *family = family_of(parent);

    if (family == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&family->lock);
    family->key = 0;
    if (child != NULL) {
        child->is_made = 1;
    }
    (void)pthread_mutex_unlock(&family->lock);
    /* The parent failed in between. The ranks of the child's group are not notified yet, and this
     * rank may leave the group at once. The child keeps the failure that it has. */
    if (child != NULL && sherdi_world_has_failed(child)) {
        (void)sherdi_world_fail(child, SHERD_E_PEER_LOST,
                                "the world from which this one was split has failed");
    }
}

void sherdi_family_join(sherd_world *parent, sherd_world *child)
{
    kinship *family = family_of(parent);

    (void)atomic_fetch_add(&family->owners, 1);
    (void)pthread_mutex_lock(&family->lock);
    child->company     = &sherdi_world_company;
    child->kin         = &family->common;
    child->next_of_kin = family->first;
    family->first      = child;
    if (family->is_refused) {
        child_refuse(child);
    }
    (void)pthread_mutex_unlock(&family->lock);
    if (sherdi_world_status(parent) != SHERD_OK) { /* it failed before the child was in the list */
        sherdi_world_set_failed(child, parent->failure_status, parent->failure_text);
    }
}

/* The connection of parent and child after a split: the failure of a parent is a failure of its
 * children, and nothing else. Either may be destroyed first. A child itself notifies the ranks of
 * its group, because some of them may have destroyed the parent. split.c calls this; the core calls
 * the table of a family. */
#ifndef SHERDI_COLLECTIVES_FAMILY_H
#define SHERDI_COLLECTIVES_FAMILY_H

#include "collectives/world_impl.h"

/** Call sherdi_family_begin before a split, and sherdi_family_end after it with the world that the
 *  split made (NULL: none). `key` identifies the split and is the same on all ranks. Errors:
 *  E_NOMEM. */
sherd_status sherdi_family_begin(sherd_world *parent, uint64_t key);
void         sherdi_family_end(sherd_world *parent, sherd_world *child);
/** Links parent and child: from now on a failure of the parent fails the child, until one of the
 *  two leaves. */
void sherdi_family_join(sherd_world *parent, sherd_world *child);

#endif

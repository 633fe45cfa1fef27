/* Comparisons between ranks, which find the ranks that differ. All of it goes through exchanges of
 * the kinds in engine/program/exchange_list.h.
 *
 * Either all ranks go on or none: each rank comes with its own outcome, and leaves with a failure
 * if any rank had one, its own or one that names the first rank that failed. Once the program of an
 * engine is there, an exchange is an operation of it; before that, the ranks ask the world. Nothing
 * here allocates. All calls are collective. */
#ifndef SHERDI_ENGINE_RUN_AGREE_H
#define SHERDI_ENGINE_RUN_AGREE_H

#include "collectives/world.h"
#include "engine/config/config.h"
#include "engine/model.h"
#include "engine/program/exchange.h"

sherd_status sherdi_agree_status(sherd_engine *engine, sherd_status own);
/** Does the same before there is an engine. */
sherd_status sherdi_agree_world(sherd_world *world, sherd_status own);
/** Does the same with a message of the kind's size, whose first word this sets to `own`. `all` gets
 *  the messages of all ranks; NULL: sherdi_agree_message has them. `when` names the activity of the
 *  rank, as in "rank 1 failed while it wrote values"; NULL: the name of its call suffices. */
sherd_status sherdi_agree_on(sherd_engine *engine, sherdi_exchange_kind kind, sherd_status own,
                             void *mine, void *all, const char *when);
/** Does the same with a sherdi_word_message. */
sherd_status sherdi_agree_word(sherd_engine *engine, sherdi_exchange_kind kind, sherd_status own,
                               uint64_t word, const char *when);
/** Return the message of a rank, its word, and the sum of the words of a replica, until the next call
 *  on the world. */
const void *sherdi_agree_message(const sherd_engine *engine, int rank);
uint64_t    sherdi_agree_word_of(const sherd_engine *engine, int rank);
uint64_t    sherdi_agree_sum(const sherd_engine *engine, int replica);
/** Ends an exchange whose outcome is `status`. */
sherd_status sherdi_agree_end(const sherd_engine *engine, const sherdi_outcome *own,
                              sherd_status status, const char *when);
#endif

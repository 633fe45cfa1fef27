/* The messages that ranks exchange in addition to data: one row for each kind of exchange.
 * engine/run/agree.h has the functions. */
#ifndef SHERDI_ENGINE_PROGRAM_EXCHANGE_H
#define SHERDI_ENGINE_PROGRAM_EXCHANGE_H

#include "engine/plan/plan.h"

typedef enum sherdi_exchange_kind {
#define SHERDI_EXCHANGE(kind, words, ...) SHERDI_EXCHANGE_##kind,
#include "engine/program/exchange_list.h"
#undef SHERDI_EXCHANGE
    SHERDI_EXCHANGES,
} sherdi_exchange_kind;

enum {
#define SHERDI_EXCHANGE(kind, words, ...) SHERDI_WORDS_OF_##kind = (words),
#include "engine/program/exchange_list.h"
#undef SHERDI_EXCHANGE
};

/* Messages. All but those of USED, UNIT_USES and ACQUIRE begin with the rank's status so far. */
typedef struct sherdi_word_message {
    uint64_t status, word;
} sherdi_word_message;

typedef struct sherdi_norm_message {
    uint64_t            status;
    sherdi_norm_acc     norm;
    sherdi_fixed_counts counts;
} sherdi_norm_message;

/** Returns the name of an exchange; NULL: it gets one of the caller. */
const char *sherdi_exchange_name(sherdi_exchange_kind kind);
/** Returns the bytes that each rank gives. */
size_t sherdi_exchange_bytes(const sherdi_plan *plan, sherdi_exchange_kind kind);

#endif

#include "engine/program/exchange.h"

#include "engine/program/program.h"

static const struct {
    size_t      words;
    const char *name;
} ROWS[] = {
#define SHERDI_EXCHANGE(kind, words, name) {words, name},
#include "engine/program/exchange_list.h"
#undef SHERDI_EXCHANGE
};

_Static_assert(sizeof(sherdi_word_message) == SHERDI_WORDS_OF_OUTCOME * sizeof(uint64_t) &&
                   sizeof(sherdi_norm_message) == SHERDI_WORDS_OF_NORM * sizeof(uint64_t),
               "the table has the words of each message");

const char *sherdi_exchange_name(sherdi_exchange_kind kind)
{
    return ROWS[kind].name;
}

size_t sherdi_exchange_bytes(const sherdi_plan *plan, sherdi_exchange_kind kind)
{
    size_t bytes = ROWS[kind].words * sizeof(uint64_t);

    switch (kind) {
    case SHERDI_EXCHANGE_USED:
        return plan->layout.used_words * sizeof(uint64_t);
    case SHERDI_EXCHANGE_UNIT_USES:
        return plan->layout.num_units * sizeof(sherdi_unit_uses);
    case SHERDI_EXCHANGE_FIRST_HASHES:
        return bytes + plan->layout.num_params * sizeof(uint64_t);
    default:
        return bytes;
    }
}

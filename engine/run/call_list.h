/* The kinds of operations that can fail at once, a line each: the kind, and the function. Those of
 * the core come first; a build has the lines of its modules (modules.txt). */
#include "sherd_build.h"

SHERDI_CALL(GATHER, sherdi_call_gather)
SHERDI_CALL(REDUCE, sherdi_call_reduce)
SHERDI_CALL(ALL_REDUCE, sherdi_call_all_reduce)
SHERDI_CALL(EXCHANGE, sherdi_call_exchange)
SHERDI_CALL(FILL, sherdi_call_fill)

SHERDI_IN_OFFLOAD(SHERDI_CALL(COMMIT, sherdi_call_generation))
SHERDI_IN_OFFLOAD(SHERDI_CALL(ABANDON, sherdi_call_generation))
SHERDI_IN_OFFLOAD(SHERDI_CALL(ROLLBACK, sherdi_call_generation))
SHERDI_IN_OFFLOAD(SHERDI_CALL(POST, sherdi_call_post))
SHERDI_IN_OFFLOAD(SHERDI_CALL(AWAIT, sherdi_call_await))
SHERDI_IN_OFFLOAD(SHERDI_CALL(SAVE, sherdi_call_block))
SHERDI_IN_OFFLOAD(SHERDI_CALL(LOAD, sherdi_call_block))
SHERDI_IN_DIFFERENCES(SHERDI_CALL(HASH, sherdi_call_hash))
SHERDI_IN_VALUES(SHERDI_CALL(TAKE, sherdi_call_take))
SHERDI_IN_REPLICAS(SHERDI_CALL(ACROSS, sherdi_call_across))
SHERDI_IN_LAMB(SHERDI_CALL(SUM, sherdi_call_sum))

/* How a meeting ends to which a rank comes without a call of its own (CALL_REGROUP): the function of a
 * module, or NULL in a build without it, where no rank does so. */
#include "sherd_build.h"

#ifdef SHERDI_MODULE_STEPS
sherd_status sherdi_peers_regrouped(struct sherdi_peers *peers);
#define SHERDI_PEERS_REGROUPED sherdi_peers_regrouped
#else
#define SHERDI_PEERS_REGROUPED NULL
#endif

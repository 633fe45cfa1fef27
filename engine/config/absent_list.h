/* Keys that are refused when they are on, and those whose text is refused unless it is empty, since
 * their effect is in a module that this build does not have: the key, and the module. config_resolve.c reads this list. */
#include "sherd_build.h"

#ifndef SHERDI_MODULE_MONITORS
SHERDI_ABSENT_KEY(CSV_ENABLED, "monitors")
SHERDI_ABSENT_KEY(BOARD_ENABLED, "monitors")
#endif
#ifndef SHERDI_MODULE_FINGERPRINTS
SHERDI_ABSENT_TEXT(FINGERPRINTS_FILE, "fingerprints")
#endif
#ifndef SHERDI_MODULE_REPLICAS
SHERDI_ABSENT_KEY(SHARD_SIZE, "replicas")
#endif
#ifndef SHERDI_MODULE_STEPS
SHERDI_ABSENT_KEY(MOST_WEIGHT, "steps")
#endif
#ifndef SHERDI_MODULE_ELASTIC
SHERDI_ABSENT_KEY(ELASTIC, "elastic")
SHERDI_ABSENT_KEY(REDUNDANCY, "elastic")
#endif
#ifndef SHERDI_MODULE_DETERMINISTIC
SHERDI_ABSENT_KEY(DETERMINISTIC, "deterministic")
#endif

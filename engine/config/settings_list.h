/* Who lists the settings that ranks compare, a line each; the first one does it. A build has the
 * lines of its modules (modules.txt). */
#include "sherd_build.h"

SHERDI_IN_JSON(SHERDI_SETTINGS_LISTER(sherdi_json_settings))
SHERDI_SETTINGS_LISTER(sherdi_plain_settings)

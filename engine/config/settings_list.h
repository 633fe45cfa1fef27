/* Who lists the settings that ranks compare, a line each; the first one does it. A build has the
 * lines of its modules (modules.txt). */
#include "sherd_build.h"

#ifdef SHERDI_MODULE_JSON
SHERDI_SETTINGS_LISTER(sherdi_json_settings)
#endif
SHERDI_SETTINGS_LISTER(sherdi_plain_settings)

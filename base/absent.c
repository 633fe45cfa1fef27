/* See absent.h. */
#include "base/absent.h"

sherd_status sherdi_absent(const char *module, const char *call)
{
    return sherdi_fail(
        SHERD_E_NOTSUP,
        "%s: this build has no module %s; build with -Dmodules=all, or with its name "
        "among those of -Dmodules",
        call, module);
}

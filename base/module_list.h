/* What modules add to the base, or NULL in a build without the module. */
#include "sherd_build.h"

/* Mapped memory: a table. */
#ifdef SHERDI_MODULE_PAGES
extern const struct sherdi_pages_ops sherdi_pages;
#define SHERDI_PAGES (&sherdi_pages)
#else
#define SHERDI_PAGES NULL
#endif

/* Whether a name can be printed as JSON. */
#ifdef SHERDI_MODULE_JSON
#include "base/json_text.h"
#define SHERDI_NAME_IS_PRINTABLE(name) sherdi_text_is_utf8(name, strlen(name))
#else
#define SHERDI_NAME_IS_PRINTABLE(name) 1
#endif

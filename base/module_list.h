/* What modules add to the base, or NULL in a build without the module. */
#include "sherd_build.h"

/* Mapped memory: a table. */
#ifdef SHERDI_MODULE_PAGES
extern const struct sherdi_pages_ops sherdi_pages;
#define SHERDI_PAGES (&sherdi_pages)
#else
#define SHERDI_PAGES NULL
#endif

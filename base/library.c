/* See library.h. */
#include "base/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *sherdi_library_open(const char *variable, const char *usual, int flags, char *why,
                          size_t why_bytes)
{
    const char *named   = variable == NULL ? NULL : getenv(variable);
    const char *path    = named == NULL || named[0] == '\0' ? usual : named;
    void       *library = dlopen(path, flags);

    if (library == NULL && variable == NULL) {
        (void)snprintf(why, why_bytes, "%s", dlerror());
    } else if (library == NULL) {
        (void)snprintf(why, why_bytes, "%s (%s names another file)", dlerror(), variable);
    }
    return library;
}

int sherdi_symbols_find(void *library, const char *called, const sherdi_symbol *symbols,
                        size_t num_symbols, void *table, char *why, size_t why_bytes)
{
    for (size_t i = 0; i < num_symbols; i++) {
        void *symbol = dlsym(library, symbols[i].name);

        if (symbol == NULL && !symbols[i].is_optional) {
            (void)snprintf(why, why_bytes, "the %s library has no %s", called, symbols[i].name);
            return 0;
        }
        memcpy((char *)table + symbols[i].offset, &symbol, sizeof(symbol));
    }
    return 1;
}

const char *sherdi_library_path(const void *address)
{
    Dl_info info;

    return dladdr(address, &info) != 0 && info.dli_fname != NULL ? info.dli_fname : "this program";
}

/* Libraries that are opened at run time (NCCL, MPI, hwloc), so that one binary runs with and
 * without them. A back-end keeps the addresses in a struct of pointers. It finds all symbols that
 * it needs, or names a missing one. */
#ifndef SHERDI_BASE_LIBRARY_H
#define SHERDI_BASE_LIBRARY_H

#include <stddef.h>

/* A function or variable of the library. Its address goes to `offset` in the back-end's struct. */
typedef struct sherdi_symbol {
    const char *name;
    size_t      offset;
    int         is_optional; /* NULL where the library lacks it */
} sherdi_symbol;

/** Opens the library that the environment variable names (NULL: no variable), or `usual`; `flags`
 *  are those of dlopen. The library stays open. Returns NULL with one sentence in `why`. */
void *sherdi_library_open(const char *variable, const char *usual, int flags, char *why,
                          size_t why_bytes);

/** Fills `table` with symbols of `library`, which is a handle of dlopen or RTLD_DEFAULT; `called`
 *  is the library's name in messages. Returns 0 with one sentence in `why` when a symbol is
 *  missing; `table` is then filled in part. */
int sherdi_symbols_find(void *library, const char *called, const sherdi_symbol *symbols,
                        size_t num_symbols, void *table, char *why, size_t why_bytes);

/** Returns the file that holds `address`, for messages; "this program" where the linker does not
 *  say. */
const char *sherdi_library_path(const void *address);

#endif

/* Libraries that are opened at run time, so that one binary runs where they are and where they are not: NCCL's, MPI's,
 * hwloc's. A back-end keeps what it found in a struct of pointers, and finds all of it or says what is missing. */
#ifndef SHERDI_BASE_LIBRARY_H
#define SHERDI_BASE_LIBRARY_H

#include <stddef.h>

/* A function or a variable of the library, whose address goes to `offset` of the back-end's struct. */
typedef struct sherdi_symbol {
    const char *name;
    size_t      offset;
    int         is_optional; /* NULL where the library lacks it */
} sherdi_symbol;

/** Opens the library that the environment variable names (NULL: there is none for it), or `usual`, with `flags` of dlopen. It stays open.
 *  NULL with one sentence in `why`. */
void *sherdi_library_open(const char *variable, const char *usual, int flags, char *why,
                          size_t why_bytes);

/** Fills `table` from `library`, a handle of dlopen or RTLD_DEFAULT; `called` is what people call it. 0 with one
 *  sentence in `why` when a symbol is missing; `table` is then filled in part. */
int sherdi_symbols_find(void *library, const char *called, const sherdi_symbol *symbols,
                        size_t num_symbols, void *table, char *why, size_t why_bytes);

/** The file that holds `address`, for people; "this program" where the linker does not say. */
const char *sherdi_library_path(const void *address);

#endif

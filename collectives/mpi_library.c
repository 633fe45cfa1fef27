/* See mpi_library.h. The library is opened once per process, under a lock, and its version is
 * checked first. */
#include "collectives/mpi_library.h"

#include "base/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The libraries of these versions have one binary interface (libmpi.so.40). */
#define OLDEST_MAJOR 3
#define NEWEST_MAJOR 5

#define FUNCTION(name)             {"MPI_" #name, offsetof(mpi_api, name), 0},
#define OBJECT(type, name, symbol) {symbol, offsetof(mpi_api, name), 0},
static const sherdi_symbol SYMBOLS[] = {MPI_FUNCTIONS(FUNCTION) MPI_OBJECTS(OBJECT)};
#undef FUNCTION
#undef OBJECT

mpi_api sherdi_mpi_api;

static pthread_mutex_t api_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the two variables below */
static int             is_loaded;
static char            version_text[300]; /* version and file of the loaded library */

/* Checks the library's version. Every MPI has this function, so a library of another kind is
 * reported by its name, and not by a missing symbol of Open MPI. */
static int version_check(void *library, char *why, size_t why_bytes)
{
    static const sherdi_symbol symbol = {"MPI_Get_library_version", 0, 0};
    static const char          open[] = "Open MPI v";
    int (*version_get)(char *, int *);
    char text[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "";
    int  len                                      = 0;
    long major;

    if (!sherdi_symbols_find(library, "MPI", &symbol, 1, &version_get, why, why_bytes)) {
        return 0;
    }
    (void)version_get(text, &len);
    text[strcspn(text, ",\n")] = '\0';
    major =
        strncmp(text, open, sizeof(open) - 1) == 0 ? strtol(text + sizeof(open) - 1, NULL, 10) : 0;
    (void)snprintf(version_text, sizeof(version_text), "%.60s, %.200s", text,
                   sherdi_library_path(*(void **)(void *)&version_get));
    if (major < OLDEST_MAJOR || major > NEWEST_MAJOR) {
        (void)snprintf(
            why, why_bytes,
            "the MPI library is %s; sherd speaks the binary interface of Open MPI %d to %d "
            "(SHERD_MPI_LIBRARY names another file)",
            version_text, OLDEST_MAJOR, NEWEST_MAJOR);
        return 0;
    }
    return 1;
}

static int library_check(void *library, mpi_api *found, char *why, size_t why_bytes)
{
    return version_check(library, why, why_bytes) &&
           sherdi_symbols_find(library, "MPI", SYMBOLS, sizeof(SYMBOLS) / sizeof(SYMBOLS[0]), found,
                               why, why_bytes);
}

static void *library_open(int scope, char *why, size_t why_bytes)
{
    return sherdi_library_open("SHERD_MPI_LIBRARY", "libmpi.so.40", RTLD_NOW | scope, why,
                               why_bytes);
}

/* Finds the functions and objects. If the program links MPI or has opened it globally, that MPI is
 * used, and the objects are looked up in the whole process, because the linker may have put copies
 * of them into the program itself. */
static int api_find(mpi_api *found, char *why, size_t why_bytes)
{
    void *library;

    if (dlsym(RTLD_DEFAULT, "MPI_Get_library_version") != NULL) {
        return library_check(RTLD_DEFAULT, found, why, why_bytes);
    }
    library = library_open(RTLD_LOCAL, why, why_bytes);
    if (library == NULL || !library_check(library, found, why, why_bytes)) {
        return 0;
    }
    /* Opens it globally too: its plug-ins look there for its symbols. */
    return library_open(RTLD_GLOBAL, why, why_bytes) != NULL;
}

int sherdi_mpi_load(char *why, size_t why_bytes)
{
    mpi_api found;
    int     is_there;

    (void)pthread_mutex_lock(&api_lock);
    if (!is_loaded && api_find(&found, why, why_bytes)) {
        sherdi_mpi_api = found;
        is_loaded      = 1;
    }
    is_there = is_loaded;
    (void)pthread_mutex_unlock(&api_lock);
    return is_there;
}

const char *sherdi_mpi_text(void)
{
    static _Thread_local char text[400];
    char                      why[300];

    if (sherdi_mpi_load(why, sizeof(why))) {
        (void)snprintf(text, sizeof(text), "%s", version_text);
    } else {
        (void)snprintf(text, sizeof(text), "no: %s", why);
    }
    return text;
}

/* See nccl_library.h. The library is opened once per process, under a lock. */
#include "collectives/nccl_library.h"

#include "base/library.h"
#include "collectives/nccl.h"

#include <dlfcn.h>
#include <stdio.h>

/* The oldest library with non-blocking communicators. */
#define OLDEST_VERSION 21800

#define SYMBOL(name) {"nccl" #name, offsetof(nccl_api, name), 0},
static const sherdi_symbol SYMBOLS[] = {
    NCCL_FUNCTIONS(SYMBOL)
    /* A library may lack the following. */
    {"ncclCommRegister", offsetof(nccl_api, CommRegister), 1},
    {"ncclCommDeregister", offsetof(nccl_api, CommDeregister), 1},
    {"ncclAlltoAll", offsetof(nccl_api, AlltoAll), 1},
    {"ncclCommWindowRegister", offsetof(nccl_api, CommWindowRegister), 1},
    {"ncclCommWindowDeregister", offsetof(nccl_api, CommWindowDeregister), 1},
    {"ncclMemAlloc", offsetof(nccl_api, MemAlloc), 1},
    {"ncclMemFree", offsetof(nccl_api, MemFree), 1},
};
#undef SYMBOL

nccl_api sherdi_nccl_api;

static pthread_mutex_t api_lock = PTHREAD_MUTEX_INITIALIZER; /* guards loading */

static int library_open(nccl_api *found, char *why, size_t why_bytes)
{
    void *library = sherdi_library_open("SHERD_NCCL_LIBRARY", "libnccl.so.2", RTLD_NOW | RTLD_LOCAL,
                                        why, why_bytes);

    if (library == NULL ||
        !sherdi_symbols_find(library, "NCCL", SYMBOLS, sizeof(SYMBOLS) / sizeof(SYMBOLS[0]), found,
                             why, why_bytes)) {
        return 0;
    }
    if (found->GetVersion(&found->version) != ncclSuccess || found->version < OLDEST_VERSION ||
        found->version / 10000 != NCCL_MAJOR) {
        (void)snprintf(why, why_bytes, "%s is NCCL %d.%d.%d; 2.%d or a later 2 is needed",
                       sherdi_library_path(*(void **)(void *)&found->GetVersion),
                       found->version / 10000, found->version / 100 % 100, found->version % 100,
                       OLDEST_VERSION / 100 % 100);
        return 0;
    }
    return 1;
}

int sherdi_nccl_version(char *why, size_t why_bytes)
{
    nccl_api found = {.version = 0};

    (void)pthread_mutex_lock(&api_lock);
    if (sherdi_nccl_api.version == 0 && library_open(&found, why, why_bytes)) {
        sherdi_nccl_api = found;
    }
    found.version = sherdi_nccl_api.version;
    (void)pthread_mutex_unlock(&api_lock);
    return found.version;
}

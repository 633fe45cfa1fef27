/* See modules.h. */
#include "engine/modules.h"

/* A build without any of them has the last entry alone. */
#define SHERDI_MODULE(table) &(table),
static const sherdi_module *const TABLE[] = {
#include "engine/module_list.h"
    &(const sherdi_module){0}};
#undef SHERDI_MODULE

#define COUNT (sizeof(TABLE) / sizeof(TABLE[0]))

/* Calls a function of all modules that have it, up to the first failure. */
#define SHERDI_TRIED(name, parameters, arguments)                                                  \
    sherd_status sherdi_modules_##name parameters                                                  \
    {                                                                                              \
        for (size_t i = 0; i < COUNT; i++) {                                                       \
            if (TABLE[i]->name != NULL) {                                                          \
                SHERDI_TRY(TABLE[i]->name arguments);                                              \
            }                                                                                      \
        }                                                                                          \
        return SHERD_OK;                                                                           \
    }

#define SHERDI_CALLED(name, parameters, arguments)                                                 \
    void sherdi_modules_##name parameters                                                          \
    {                                                                                              \
        for (size_t i = 0; i < COUNT; i++) {                                                       \
            if (TABLE[i]->name != NULL) {                                                          \
                TABLE[i]->name arguments;                                                          \
            }                                                                                      \
        }                                                                                          \
    }

#include "engine/hook_list.h"

/* See modules.h. */
#include "engine/run/modules.h"

/* A build without any of them has the last entry alone. */
#define SHERDI_MODULE(table) &(table),
static const sherdi_module *const TABLE[] = {
#include "engine/run/module_list.h"
    &(const sherdi_module){0}};
#undef SHERDI_MODULE

#define COUNT (sizeof(TABLE) / sizeof(TABLE[0]))

sherd_status sherdi_modules_planned(sherdi_plan *plan, const sherdi_model *model)
{
    for (size_t i = 0; i < COUNT; i++) {
        if (TABLE[i]->planned != NULL) {
            SHERDI_TRY(TABLE[i]->planned(plan, model));
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_modules_check(const sherd_engine *engine)
{
    for (size_t i = 0; i < COUNT; i++) {
        if (TABLE[i]->check != NULL) {
            SHERDI_TRY(TABLE[i]->check(engine));
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_modules_open(sherd_engine *engine)
{
    for (size_t i = 0; i < COUNT; i++) {
        if (TABLE[i]->open != NULL) {
            SHERDI_TRY(TABLE[i]->open(engine));
        }
    }
    return SHERD_OK;
}

#define CALL_ALL(name)                                                                             \
    void sherdi_modules_##name(sherd_engine *engine)                                               \
    {                                                                                              \
        for (size_t i = 0; i < COUNT; i++) {                                                       \
            if (TABLE[i]->name != NULL) {                                                          \
                TABLE[i]->name(engine);                                                            \
            }                                                                                      \
        }                                                                                          \
    }

CALL_ALL(sealed)
CALL_ALL(boundary)
CALL_ALL(told)
CALL_ALL(dropped)
CALL_ALL(abandon)
CALL_ALL(close)

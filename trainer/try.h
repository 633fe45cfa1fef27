/* Passes on the failure of a call, whose message is already set. */
#ifndef LLM_TRY_H
#define LLM_TRY_H

#include "sherd.h"

/* Returns from the function if `call` fails. Only for places where nothing has to be undone. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        sherd_status try_status = (call);                                                          \
                                                                                                   \
        if (try_status != SHERD_OK) {                                                              \
            return try_status;                                                                     \
        }                                                                                          \
    } while (0)

#endif

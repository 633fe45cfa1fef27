/* Passing on a failure that somebody below has told. */
#ifndef LLM_TRY_H
#define LLM_TRY_H

#include "sherd.h"

/* Leaves the function where `call` fails: nothing is to be undone. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        sherd_status try_status = (call);                                                          \
                                                                                                   \
        if (try_status != SHERD_OK) {                                                              \
            return try_status;                                                                     \
        }                                                                                          \
    } while (0)

#endif

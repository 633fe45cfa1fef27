/* The last error of a thread, and the one macro that hides a return. Everything
 * that can fail goes through sherdi_fail() once, where the cause is known. */
#ifndef SHERDI_BASE_STATUS_H
#define SHERDI_BASE_STATUS_H

#include "sherd.h"

#if defined(__GNUC__)
#define SHERDI_PRINTF(fmt_index, first) __attribute__((format(printf, fmt_index, first)))
#else
#define SHERDI_PRINTF(fmt_index, first)
#endif

/* Long enough for a sentence with a path in it. */
#define SHERDI_ERROR_BYTES 1024

/** Keeps the sentence for sherd_last_error() on this thread and returns `code`. */
sherd_status sherdi_fail(sherd_status code, const char *fmt, ...) SHERDI_PRINTF(2, 3);

/** Moves a failure that another thread had to this one: `text` from its last error. */
sherd_status sherdi_fail_relay(sherd_status code, const char *text);

/** Passes a failure on without adding words. */
#define SHERDI_TRY(call)                                                                           \
    do {                                                                                           \
        sherd_status sherdi_try_status_ = (call);                                                  \
        if (sherdi_try_status_ != SHERD_OK) {                                                      \
            return sherdi_try_status_;                                                             \
        }                                                                                          \
    } while (0)

#endif

/* The last error of a thread, and the one macro that hides a return. Every failure calls sherdi_fail() once, where the cause
 * is known. */
#ifndef SHERDI_BASE_STATUS_H
#define SHERDI_BASE_STATUS_H

#include "sherd.h"

#if defined(__GNUC__)
#define SHERDI_PRINTF(fmt_index, first) __attribute__((format(printf, fmt_index, first)))
#else
#define SHERDI_PRINTF(fmt_index, first)
#endif

/* Enough for a sentence with a path. */
#define SHERDI_ERROR_BYTES 1024

/** Stores the message for sherd_last_error() on this thread and returns `code`. */
sherd_status sherdi_fail(sherd_status code, const char *fmt, ...) SHERDI_PRINTF(2, 3);

/** Takes over a failure of another thread: `text` is that thread's last error. */
sherd_status sherdi_fail_relay(sherd_status code, const char *text);

/** Returns from the calling function on a failure, without changing the message. */
#define SHERDI_TRY(call)                                                                           \
    do {                                                                                           \
        sherd_status sherdi_try_status_ = (call);                                                  \
        if (sherdi_try_status_ != SHERD_OK) {                                                      \
            return sherdi_try_status_;                                                             \
        }                                                                                          \
    } while (0)

#endif

/* The last error of a thread, and the one macro that hides a return. Every failure calls
 * sherdi_fail() once, where the cause is known. */
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

/* The outcome of several steps, of which later ones are done even if an earlier one has failed: the
 * first failure, with its message. All zero: none has failed. */
typedef struct sherdi_outcome {
    sherd_status status;
    char         text[SHERDI_ERROR_BYTES];
} sherdi_outcome;

/** Takes the status of a step, with this thread's last error, unless an earlier step has failed. */
void sherdi_outcome_add(sherdi_outcome *outcome, sherd_status status);
/** Returns an outcome that has this step alone. */
sherdi_outcome sherdi_outcome_of(sherd_status status);
/** Returns the first failure, and makes its message this thread's last error; SHERD_OK: none has
 *  failed. */
sherd_status sherdi_outcome_end(const sherdi_outcome *outcome);

/** Returns from the calling function on a failure, without changing the message. */
#define SHERDI_TRY(call)                                                                           \
    do {                                                                                           \
        sherd_status sherdi_try_status_ = (call);                                                  \
        if (sherdi_try_status_ != SHERD_OK) {                                                      \
            return sherdi_try_status_;                                                             \
        }                                                                                          \
    } while (0)

#endif

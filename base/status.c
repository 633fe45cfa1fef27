/* Status names and the per-thread last error. See status.h. */
#include "base/status.h"

#include "sherd_build.h"
#include "sherd_commit.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[SHERDI_ERROR_BYTES];

const char *sherd_status_name(sherd_status status)
{
    switch (status) {
#define STATUS_CASE(name, code, text)                                                              \
    case name:                                                                                     \
        return #name;
        SHERD_STATUS_LIST(STATUS_CASE)
#undef STATUS_CASE
    }
    return "SHERD_E_UNKNOWN";
}

const char *sherd_status_text(sherd_status status)
{
    switch (status) {
#define STATUS_CASE(name, code, text)                                                              \
    case name:                                                                                     \
        return text;
        SHERD_STATUS_LIST(STATUS_CASE)
#undef STATUS_CASE
    }
    return "unknown status";
}

const char *sherd_last_error(void)
{
    return last_error;
}

sherd_status sherdi_fail(sherd_status code, const char *fmt, ...)
{
    /* The arguments may point into last_error itself, so the text is made elsewhere first. */
    char    text[SHERDI_ERROR_BYTES];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    memcpy(last_error, text, sizeof(text));
    return code;
}

sherd_status sherdi_fail_relay(sherd_status code, const char *text)
{
    return sherdi_fail(code, "%s", text);
}

void sherdi_outcome_add(sherdi_outcome *outcome, sherd_status status)
{
    if (outcome->status == SHERD_OK && status != SHERD_OK) {
        outcome->status = status;
        (void)snprintf(outcome->text, sizeof(outcome->text), "%s", sherd_last_error());
    }
}

sherdi_outcome sherdi_outcome_of(sherd_status status)
{
    sherdi_outcome outcome = {.status = SHERD_OK};

    sherdi_outcome_add(&outcome, status);
    return outcome;
}

sherd_status sherdi_outcome_end(const sherdi_outcome *outcome)
{
    return outcome->status == SHERD_OK ? SHERD_OK
                                       : sherdi_fail_relay(outcome->status, outcome->text);
}

const char *sherd_version(void)
{
    return SHERDI_VERSION " (" SHERDI_COMMIT ")";
}

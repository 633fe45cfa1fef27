/* See job.h. A job's key is a SipHash key that is made of a text. */
#include "collectives/job.h"

#include "base/siphash.h"

#include <stdlib.h>
#include <string.h>

#define MEETING_NS     (120 * INT64_C(1000000000))
#define MEETING_MOST_S (30 * 86400.0)
/* The kernel asks a silent host every second, so a lower limit could not be distinguished from a
 * late answer. */
#define HOST_NS      (30 * INT64_C(1000000000))
#define HOST_LEAST_S 2.0
#define HOST_MOST_S  (7 * 86400.0)

void sherdi_job_key_read(const char *name, const char *id, job_key *out)
{
    const char *text = getenv("SHERD_JOB_SECRET");

    out->source = "SHERD_JOB_SECRET";
    if (text == NULL || text[0] == '\0') {
        text        = id;
        out->source = name;
    }
    if (text == NULL) {
        text        = "";
        out->source = "none, SHERD_JOB_SECRET is not set";
    }
    /* Two hashes with public keys turn the text into a key of the right length. */
    for (uint64_t i = 0; i < 2; i++) {
        out->words[i] = sherdi_siphash((const uint64_t[2]){0x7368657264, i}, text, strlen(text));
    }
}

uint64_t sherdi_job_digest(const job_key *key, const void *data, size_t len_bytes)
{
    return sherdi_siphash(key->words, data, len_bytes);
}

uint64_t sherdi_job_proof(const job_key *key, const uint64_t *words, size_t num_words)
{
    return sherdi_siphash(key->words, words, num_words * sizeof(*words));
}

/* Reads a number of seconds in [least_s, most_s], above 0. Leaves *ns_out alone when the variable
 * is not set. */
static sherd_status seconds_read(const char *name, double least_s, double most_s, int64_t *ns_out)
{
    const char *text = getenv(name);
    char       *end;
    double      seconds;

    if (text == NULL || text[0] == '\0') {
        return SHERD_OK;
    }
    seconds = strtod(text, &end);
    if (end == text || *end != '\0' || !(seconds > 0) || seconds < least_s || seconds > most_s) {
        return sherdi_fail(SHERD_E_INVAL,
                           "%s is \"%s\", not a number of seconds %s %g and up to %.0f", name, text,
                           least_s > 0 ? "from" : "above", least_s, most_s);
    }
    *ns_out = (int64_t)(seconds * 1e9) + 1;
    return SHERD_OK;
}

sherd_status sherdi_meeting_limit(const sherd_world_params *params, int64_t *ns_out)
{
    *ns_out =
        params->timeout_ns > 0 && params->timeout_ns < MEETING_NS ? params->timeout_ns : MEETING_NS;
    return seconds_read("SHERD_TIMEOUT", 0, MEETING_MOST_S, ns_out);
}

sherd_status sherdi_host_limit(sherd_world_params *params)
{
    int64_t ns = params->host_timeout_ns;

    if (ns != 0 && !((double)ns >= HOST_LEAST_S * 1e9 && (double)ns <= HOST_MOST_S * 1e9)) {
        return sherdi_fail(SHERD_E_INVAL,
                           "sherd_world_params.host_timeout_ns is %lld, not 0 (chosen) or a number "
                           "of nanoseconds from %.0f to %.0f s",
                           (long long)ns, HOST_LEAST_S, HOST_MOST_S);
    }
    params->host_timeout_ns = ns != 0 ? ns : HOST_NS;
    return seconds_read("SHERD_HOST_TIMEOUT", HOST_LEAST_S, HOST_MOST_S, &params->host_timeout_ns);
}

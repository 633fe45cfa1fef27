/* See job.h. A job's key is a SipHash key that is made of a text. */
#include "collectives/job.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/siphash.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define MEETING_NS     (120 * INT64_C(1000000000))
#define MEETING_MOST_S (30 * 86400.0)

uint64_t sherdi_random_u64(void)
{
    uint64_t number;

    if (getrandom(&number, sizeof(number), 0) != (ssize_t)sizeof(number)) {
        number = sherdi_mix64((uint64_t)sherdi_now_ns() ^ (uint64_t)getpid() << 40);
    }
    return number;
}

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

sherd_status sherdi_meeting_limit(const sherd_world_params *params, int64_t *ns_out)
{
    const char *text = getenv("SHERD_TIMEOUT");
    char       *end;
    double      seconds;

    *ns_out =
        params->timeout_ns > 0 && params->timeout_ns < MEETING_NS ? params->timeout_ns : MEETING_NS;
    if (text == NULL || text[0] == '\0') {
        return SHERD_OK;
    }
    seconds = strtod(text, &end);
    if (end == text || *end != '\0' || !(seconds > 0) || seconds > MEETING_MOST_S) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "SHERD_TIMEOUT is \"%s\", not a number of seconds above 0 and up to %.0f", text,
            MEETING_MOST_S);
    }
    *ns_out = (int64_t)(seconds * 1e9) + 1;
    return SHERD_OK;
}

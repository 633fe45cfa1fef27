/* The key that distinguishes a job from other jobs that meet at the same address, and the limits on
 * how long the ranks of a job wait for each other. env.c, create.c, shm.c and rendezvous.c use
 * it. */
#ifndef SHERDI_COLLECTIVES_JOB_H
#define SHERDI_COLLECTIVES_JOB_H

#include "collectives/world_impl.h"

/* A secret that only the ranks of a job know. docs/launching.md describes its protection. */
typedef struct job_key {
    uint64_t    words[2];
    const char *source; /* for messages: the variable that it came from; static storage */
} job_key;

/** Makes the key of SHERD_JOB_SECRET. If that is not set, makes it of `id`, which the launcher
 *  gives to all ranks in the variable `name`; if `id` is NULL too, the key is that of an empty
 *  text. */
void sherdi_job_key_read(const char *name, const char *id, job_key *out);
/** Return a keyed hash of `words`, or of data. A rank that returns the hash over somebody's nonce
 *  proves to them that it has the key; longer data enters such a proof as its digest. */
uint64_t sherdi_job_proof(const job_key *key, const uint64_t *words, size_t num_words);
uint64_t sherdi_job_digest(const job_key *key, const void *data, size_t len_bytes);

/** Sets *ns_out to the longest wait for all ranks to meet: SHERD_TIMEOUT, in seconds; without it
 *  two minutes, or params->timeout_ns if that is shorter. Errors: E_INVAL. */
sherd_status sherdi_meeting_limit(const sherd_world_params *params, int64_t *ns_out);
/** Sets params->host_timeout_ns to the longest silence of another host: SHERD_HOST_TIMEOUT, in
 *  seconds; without the variable it does not change, or becomes half a minute if it is 0. Errors:
 *  E_INVAL. */
sherd_status sherdi_host_limit(sherd_world_params *params);

#endif

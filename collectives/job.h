/* What tells a job from others that meet at the same address, and how long its ranks wait for each other. */
#ifndef SHERDI_COLLECTIVES_JOB_H
#define SHERDI_COLLECTIVES_JOB_H

#include "collectives/world_impl.h"

/* Known to the ranks of a job alone; see docs/launching.md for what it is good for. */
typedef struct job_key {
    uint64_t    words[2];
    const char *source; /* for sentences: the variable that it comes from; static storage */
} job_key;

/** Of SHERD_JOB_SECRET; without it of `id`, which the launcher gives all ranks in the variable `name`; of
 *  nothing when that is NULL too. */
void sherdi_job_key_read(const char *name, const char *id, job_key *out);
/** Proves the possession of the key to who gave `nonce`: of `words`, and for a digest of more. */
uint64_t sherdi_job_proof(const job_key *key, const uint64_t *words, size_t num_words);
uint64_t sherdi_job_digest(const job_key *key, const void *data, size_t len_bytes);

/** A number that nobody can foresee. */
uint64_t sherdi_random_u64(void);

/** Longest wait for all ranks to meet: SHERD_TIMEOUT, in seconds; without it two minutes, or timeout_ns of `params`
 *  where that is shorter. E_INVAL. */
sherd_status sherdi_meeting_limit(const sherd_world_params *params, int64_t *ns_out);

#endif

/* sherd doctor: looks at the hosts of a job for what makes sherd fail or slow, with a fix for each
 * finding. doctor_host.c looks at one host, doctor_places.c at its port and folders, and
 * doctor_hosts.c compares the hosts. */
#ifndef SHERD_CLI_DOCTOR_H
#define SHERD_CLI_DOCTOR_H

#include "cli/cli.h"

struct json_t;

typedef enum doctor_verdict {
    DOCTOR_SKIPPED = 0, /* not looked at; `found` says why */
    DOCTOR_OK,
    DOCTOR_ADVICE, /* it works, but is slow, or will fail with a larger job */
    DOCTOR_FAULT,
    DOCTOR_VERDICTS,
} doctor_verdict;

typedef struct doctor_finding {
    char           check[24];
    doctor_verdict verdict;
    char           found[320], fix[320]; /* sentences without the last dot; fix: of the last two */
} doctor_finding;

#define DOCTOR_MOST_FINDINGS 24

/* What a rank has found, as it is sent to rank 0. */
typedef struct doctor_host {
    char           name[64], boot[40]; /* of the host; its kernel's boot id */
    char           sherd[64], mpi[160], nccl[64];
    double         clock_s; /* on rank 0: how far this rank's clock is ahead of rank 0's */
    int            ranks;   /* of this host */
    int            num_findings;
    doctor_finding findings[DOCTOR_MOST_FINDINGS];
} doctor_host;

typedef struct doctor_request {
    const char *folder; /* of checkpoints; NULL: not asked about */
    const char *nvme;   /* of offloaded data; NULL: not asked about */
    uint64_t    space_bytes;
    int         ranks; /* of this host; 0: the launcher's, else 1 */
    int         is_json, is_strict;
} doctor_request;

/** Adds a finding. `fix` is NULL where there is nothing to do; `found` is a format. */
void doctor_add(doctor_host *host, const char *check, doctor_verdict verdict, const char *fix,
                const char *found, ...) __attribute__((format(printf, 5, 6)));
/** Whether two ranks are on one host. */
int doctor_same_host(const doctor_host *a, const doctor_host *b);
/** Copies a text into an array, cut to its size. */
void doctor_text(char *out, size_t out_bytes, const char *text);

/* What the checks are given. */
typedef struct doctor_look {
    const doctor_request *request;
    const struct json_t  *env;
    doctor_host          *host;
    int                   ranks; /* of this host */
    long                  cores; /* that this process may use */
} doctor_look;

void doctor_port_look(const doctor_look *l);
void doctor_nvme_look(const doctor_look *l);
void doctor_folder_look(const doctor_look *l);

/** Looks at this host. `env` is the object of sherd_env_write. */
void doctor_host_look(const doctor_request *request, const struct json_t *env, doctor_host *host);

/** Compares the hosts of a world, and adds what it finds to *host on rank 0; `all` has an element
 *  for each rank, filled. Collective. Returns 0, or 1 after it has printed why to standard
 *  error. */
int doctor_hosts_compare(sherd_world *world, const doctor_request *request, doctor_host *all,
                         doctor_host *host);

#endif

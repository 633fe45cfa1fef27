/* Campaigns: cases that are drawn from a seed, each of which runs in a process of its own. */
#ifndef TESTS_LIB_DRAWN_H
#define TESTS_LIB_DRAWN_H

#include "tests/lib/check.h"

#include <stddef.h>
#include <stdint.h>

typedef struct drawn_campaign {
    const char *what;    /* "moves", for the sum at the end */
    int         seconds; /* after which a case is ended, which has failed then */
    test_case   run;     /* draws the case of drawn_seed, and runs it */
    void (*describe)(char *text, size_t len_bytes); /* says what is drawn of drawn_seed */
    int *wants_files;                               /* set by --files 1 */
} drawn_campaign;

/* The seed of the case that runs. */
extern uint64_t drawn_seed;

/** The main function of a campaign: runs the seeds N, N + 1, ... of --seed N (1) and --count N (10).
 *  A case that fails prints what was drawn, and what its checks have said. Returns the exit status,
 *  77 where there is no such device. */
int drawn_main(int argc, char **argv, const drawn_campaign *campaign);

#endif

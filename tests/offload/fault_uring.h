/* Faults in transfers, for programs that link fault_uring.c; see there for programs that preload
 * it. */
#ifndef TESTS_OFFLOAD_FAULT_URING_H
#define TESTS_OFFLOAD_FAULT_URING_H

typedef enum fault_kind {
    FAULT_NONE = 0,
    FAULT_EIO,
    FAULT_ENOSPC,
    FAULT_EAGAIN,
    FAULT_EINTR,
    FAULT_SHORT, /* half of it is moved, whole pages, at least one */
    FAULT_BUSY,  /* io_uring: the submission gives EAGAIN and takes nothing */
    FAULT_RING,  /* io_uring: the submission gives EIO and takes nothing */
} fault_kind;

typedef enum fault_only {
    FAULT_ANY = 0,
    FAULT_READS,
    FAULT_WRITES,
} fault_only;

/** The `nth` request from now (1: the next) and those after it, `count` in all (0: for ever), go
 *  wrong. For BUSY and RING submissions are counted. nth 0: none. Starts to count at zero. */
void fault_arm(fault_kind kind, fault_only only, int nth, int count);
/** What fails does so late by as many microseconds, from now on. */
void fault_late(unsigned us);
/** How many requests (or submissions) were counted since then. */
int fault_seen(void);
/** How many of them were made to go wrong. */
int fault_hits(void);

/** Whether this kernel lets io_uring complete an entry with a requested result (from 6.10 on).
 *  Without, kinds that end with an errno cannot be made there. */
int fault_can_inject(void);

#endif

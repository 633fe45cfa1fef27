/* How fast a machine is: predicted step times are computed from these rates. `sherd bench` measures
 * a file of rates; `sherd plan` reads it, or takes options. Other rates are assumed, and are
 * printed as assumed. */
#ifndef SHERD_PLANNING_RATES_H
#define SHERD_PLANNING_RATES_H

#include <stddef.h>

/* Each rate is in bytes per second of one rank, unless it says otherwise. */
typedef enum planning_rate {
    PLANNING_RATE_FLOPS = 0, /* operations per second of the trainer's forward and backward */
    PLANNING_RATE_WIRE,      /* sent inside a host by collectives, while all ranks send */
    /* sent to other hosts by collectives, while all ranks of the host do */
    PLANNING_RATE_BETWEEN,
    PLANNING_RATE_DOWN,       /* link, device to host */
    PLANNING_RATE_UP,         /* link, host to device */
    PLANNING_RATE_NVME_READ,  /* read from a host's drives, by all its ranks together */
    PLANNING_RATE_NVME_WRITE, /* written to them, likewise */
    PLANNING_RATE_DEVICE,     /* device memory that the update reads and writes */
    /* host memory that the update reads and writes, while all ranks of the host do */
    PLANNING_RATE_HOST,
    /* operations per second of products in an update by whole matrices, while all ranks do them */
    PLANNING_RATE_PRODUCTS,
    PLANNING_RATES,
} planning_rate;

typedef enum planning_origin {
    PLANNING_ASSUMED = 0, /* from planning_rates_assume */
    PLANNING_MEASURED,    /* from a file of `sherd bench`, or by the same call */
    PLANNING_GIVEN,       /* by an option */
} planning_origin;

typedef struct planning_rates {
    double          values[PLANNING_RATES];
    planning_origin origins[PLANNING_RATES];
} planning_rates;

/** Returns "flops", "wire", "between", "down", "up", "nvme_read", "nvme_write", "device", "host" or
 *  "products". */
const char *planning_rate_name(planning_rate rate);
const char *planning_origin_name(planning_origin origin); /* "assumed", "measured", "given" */

/** Says what machine the assumed rates are those of. */
const char *planning_assumed_machine(const char *backend);
/** Sets the assumed rates. "cuda": a GPU like the H100 with a 400 Gb/s port, on a host of eight
 *  GPUs and two NVMe drives; "cpu": a host of two cores with a port of 10 Gb/s. */
void planning_rates_assume(const char *backend, planning_rates *out);
/** Reads a JSON object {"flops": 4e14, "wire": ...} and sets the rates that it has. Ignores other
 *  keys, except that "backend", if present, must be `backend`: rates of another machine are no
 *  measurement of this one. Returns -1 with a sentence in `why` on failure. */
int planning_rates_load(const char *path, const char *backend, planning_rates *rates, char *why,
                        size_t why_bytes);
/** Reads "wire=50e9,up=25G", the --rate of `sherd plan`. Returns -1 with a sentence in `why` on
 *  failure. */
int planning_rates_set(const char *text, planning_rates *rates, char *why, size_t why_bytes);

#endif

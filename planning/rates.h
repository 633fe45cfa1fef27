/* How fast a machine is: what predicted step times are made from. `sherd bench` measures a file of rates,
 * `sherd plan` reads it or takes options; what nobody said is assumed and printed as such. */
#ifndef SHERD_PLANNING_RATES_H
#define SHERD_PLANNING_RATES_H

#include <stddef.h>

/* Bytes per second of one rank, unless said otherwise. */
typedef enum planning_rate {
    PLANNING_RATE_FLOPS = 0,  /* arithmetic of the trainer's forward and backward, per second */
    PLANNING_RATE_WIRE,       /* sent in gathers and reductions, all ranks at it */
    PLANNING_RATE_DOWN,       /* link, device to host */
    PLANNING_RATE_UP,         /* link, host to device */
    PLANNING_RATE_NVME_READ,  /* of a host's drives, for all its ranks together */
    PLANNING_RATE_NVME_WRITE, /* the same */
    PLANNING_RATE_DEVICE,     /* device memory, read and written, in the update */
    PLANNING_RATE_HOST,       /* host memory in the update, all ranks of the host at it */
    PLANNING_RATE_PRODUCTS, /* arithmetic of an update by whole matrices, per second, all ranks at it */
    PLANNING_RATES,
} planning_rate;

typedef enum planning_origin {
    PLANNING_ASSUMED = 0, /* of the defaults below */
    PLANNING_MEASURED,    /* from a file of `sherd bench` */
    PLANNING_GIVEN,       /* by an option */
} planning_origin;

typedef struct planning_rates {
    double          values[PLANNING_RATES];
    planning_origin origins[PLANNING_RATES];
} planning_rates;

/** "flops", "wire", "down", "up", "nvme_read", "nvme_write", "device", "host", "products". */
const char *planning_rate_name(planning_rate rate);
const char *planning_origin_name(planning_origin origin); /* "assumed", "measured", "given" */

/** What is assumed: "cuda": a GPU of the H100's kind, 8 to a host of two NVMe drives, 400 Gb/s each; "cpu": a host of two cores. */
void planning_rates_assume(const char *backend, planning_rates *out);
/** A JSON object {"flops": 4e14, "wire": ...}; other keys are left alone, but "backend" has to be `backend` where
 *  it is there: rates of another machine are no measurement of this one. Fills what the file has. -1 with a
 *  sentence in `why`. */
int planning_rates_load(const char *path, const char *backend, planning_rates *rates, char *why,
                        size_t why_bytes);
/** "wire=50e9,up=25G": for --rate of `sherd plan`. -1 with a sentence in `why`. */
int planning_rates_set(const char *text, planning_rates *rates, char *why, size_t why_bytes);

#endif

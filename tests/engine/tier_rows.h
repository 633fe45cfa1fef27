/* Tiers for state and parameters, as further keys of zero_optimization. */
#ifndef TESTS_ENGINE_TIER_ROWS_H
#define TESTS_ENGINE_TIER_ROWS_H

#include "sherd_build.h"

#include <stddef.h>

typedef struct tier_row {
    const char *name;
    const char *zero; /* %s is the folder, twice at most */
    int         least_stage;
} tier_row;

#define TIER_STATE(device, more)                                                                   \
    ", \"offload_optimizer\": {\"device\": \"" device                                              \
    "\", \"nvme_path\": \"%s\", \"durable\": false, \"buffer_size\": 4096" more "}"
#define TIER_PARAMS(device)                                                                        \
    ", \"offload_param\": {\"device\": \"" device                                                  \
    "\", \"nvme_path\": \"%s\", \"buffer_size\": 2048, \"max_in_cpu\": 0}"

/* Those on the device come first. */
static const tier_row TIER_ROWS[] = {
    {"device", "", 0},
    {"small blocks", ", \"sub_group_size\": 512", 0},
    {"state cpu", TIER_STATE("cpu", ""), 1},
    {"state cpu, half", TIER_STATE("cpu", ", \"ratio\": 0.5"), 1},
    {"state and parameters cpu", TIER_STATE("cpu", "") TIER_PARAMS("cpu"), 3},
#ifdef SHERDI_HAVE_XXHASH
    {"state nvme", TIER_STATE("nvme", ""), 1},
    {"state nvme, one buffer", TIER_STATE("nvme", ", \"buffer_count\": 1"), 1},
    {"all nvme", TIER_STATE("nvme", ", \"gradients\": \"nvme\"") TIER_PARAMS("nvme"), 3},
#endif
};

#define NUM_TIER_ROWS   (sizeof(TIER_ROWS) / sizeof(TIER_ROWS[0]))
#define FIRST_OFFLOADED ((size_t)2)

#endif
